"""Commands that answer a question as the front sheets do, in a line: ``serve``, ``train``, ``chip``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from xlperf.catalog.schema import Column, first_words, results_of, shown_columns, table_schema
from xlperf.cli.command import Sheets, command
from xlperf.cli.options import catalog_of, vary_line
from xlperf.cli.output import (
    Front,
    aligned,
    deliver,
    is_json,
    is_workbook,
    parts,
    progress,
    rounded,
    say,
    text_table,
    took,
    viewed_columns,
    write_sheets,
    wrote,
)

if TYPE_CHECKING:
    from xlperf.catalog.catalog import Catalog
    from xlperf.catalog.table import Table
    from xlperf.cli.table_files import Part
    from xlperf.explore.objectives import Limit
    from xlperf.explore.search_results import Answer


Words = Mapping[str, str | None]
_WITHOUT = {"request_rate": "users", "deadline": "num_accelerators"}
"""Entries that ask for what another one else states: the other one has no default beside them."""
_SHARES = ("memory_used", "head_room", "mfu", "goodput")
"""Results without a unit that are said in per cent."""
_BANDS = {"fleet_cost_per_million_output_tokens": "cost"}
"""How the ends of the 80 % band of a result are named, where not as the result."""


def _option(column: Column, value: str) -> Any:
    """The option of an entry of a form."""
    unit = column.unit if column.unit not in ("", "-") else "N" if column.kind == "number" else "NAME"
    metavar = "|".join(column.choices) or unit
    words = f"{column.meaning}.  [default: {value}]"
    return click.option(f"--{column.name.replace('_', '-')}", column.name, metavar=metavar, help=words)


def form_options(kind: str, function: Any) -> Any:
    """Give a command an option for each entry of a form."""
    first = first_words(kind)
    for column in reversed(table_schema(kind).columns):
        if column.name in first:
            function = _option(column, first[column.name])(function)
    return function


def _says(answer: Mapping[str, Any], name: str) -> bool:
    """Whether an answer has a text."""
    return answer.get(name, "") not in ("", "none")


def answer_lines(kind: str, form: Mapping[str, str], answer: Mapping[str, Any], shown: list[str]) -> list[str]:
    """Lines of an answer on a terminal: the sentence, results, ``shown``, and the assumptions."""
    card = _card(kind, answer)
    beside = [f"{answer[name]}".rstrip(".") + "." for name in ("best_way", "api_answer") if _says(answer, name)]
    blocks = [[str(answer["answer"]), *beside], card, shown, _notes(form, answer)]
    return [line for block in blocks if block for line in (*block, "")][:-1]


def _answered(kind: str, given: Words, output: str | None, catalog: Sheets) -> int:
    """Answer a form and print or write it; 1 without an answer."""
    import numpy as np

    from xlperf.engine import evaluate
    from xlperf.explore.forms import evaluate_forms, form_of, plan_of, ways_of, without_defaults

    values = {name: words for name, words in given.items() if words is not None}
    dropped = {other for name, other in _WITHOUT.items() if name in values}
    form = {name: value for name, value in first_words(kind).items() if name not in dropped} | values
    table = form_of(kind, form, lambda _, column: f"--{column.replace('_', '-')}")
    known = catalog_of(catalog, None)
    results = evaluate_forms(table, known)
    answer = {name: values[0] for name, values in results.columns.items()}
    plans, ways = ways_of(table, known) if kind == "serve" else (None, None)
    plans = plan_of(table, known) if kind == "train" else plans
    if output is None:
        say(*answer_lines(kind, form, answer, [] if ways is None else _ways(ways)))
        took(1, "answer")
    elif plans is not None and len(plans) and not is_json(output) and not is_workbook(output):
        chosen = without_defaults(plans.take([int(np.nan_to_num(answer.get("way", 1.0), nan=1.0)) - 1]))
        deliver(output, chosen.kind, parts(chosen, evaluate(chosen, known)), "plan")
    else:
        own = [part for part in parts(table) if part[0].name not in answer]
        nested = (
            {} if ways is None else {"ways": [part for part in parts(ways) if part[0].name in viewed_columns("ways")]}
        )
        whole = own + parts(results)
        deliver(output, kind, whole, "answer", front=Front(answers=[str(answer["answer"])], nested=nested))
    return 1 if str(answer["answer"]).startswith("No ") else 0


def _ways(ways: Table) -> list[str]:
    """Lines of the ways to serve, the cheapest first."""
    from xlperf.base.units import MILLION
    from xlperf.explore.fleet_plans import engine_title

    if not len(ways):
        return []
    lines = [("way", "engine", "pools", "copy", "number", "80 %", "$/M", "trust")]
    numbers = ("copy_size", "prefill_accelerators", "accelerators", "accelerators_low", "accelerators_high",
               "fleet_cost_per_million_output_tokens")  # fmt: skip
    for row in range(len(ways)):
        size, prefill, count, low, high, cost = (float(ways.number(name)[row]) for name in numbers)
        pools = prefill == prefill
        lines.append((
            f"{row + 1}", engine_title(str(ways["software"][row])), "two" if pools else "one",
            f"{prefill:,.0f} + {size - prefill:,.0f}" if pools else f"{size:,.0f}", f"{count:,.0f}",
            f"{low:,.0f} to {high:,.0f}", rounded(cost * MILLION), str(ways["trust"][row]),
        ))  # fmt: skip
    return aligned(list(zip(*lines, strict=True)), (True, False, False, True, True, True, True, False))


def _card(kind: str, answer: Mapping[str, Any]) -> list[str]:
    """Lines of name, value, unit and 80 % band of the results that a terminal shows."""
    from xlperf.catalog.schema import unit_of

    lines = []
    for column in (results_of(kind).by_name[name] for name in shown_columns(f"{kind}_results", "answer")):
        value = answer[column.name]
        if column.is_text or value != value:
            lines += [(column.header, str(value))] if column.is_text and _says(answer, column.name) else []
            continue
        factor, name = unit_of(column).factor, _BANDS.get(column.name, column.name)
        ends = [answer.get(f"{name}_{end}", float("nan")) / factor for end in ("low", "high")]
        band = f"  80 %: {rounded(ends[0])} to {rounded(ends[1])}" if ends[0] == ends[0] else ""
        words = f"{rounded(100.0 * value)} %" if column.name in _SHARES else rounded(value / factor)
        lines.append((column.header, words + band))
    return aligned([[header for header, _ in lines], [words for _, words in lines]], (False, False))


def _notes(form: Mapping[str, str], answer: Mapping[str, Any]) -> list[str]:
    """Notes below an answer: its trust, the defaults used, and the question."""
    sure = f"{answer['trust']}: {answer['trust_reason']}" if answer.get("trust") else ""
    asked = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in form.items() if value not in ("", "auto"))
    basis = str(answer.get("price_basis", ""))
    taken = "; ".join(filter(None, [answer.get("defaults_used", ""), basis and f"price: {basis}"]))
    return [
        f"{words}{text}" for words, text in (("", sure), ("taken for granted: ", taken), ("asked: ", asked)) if text
    ]


@command(entries=partial(form_options, "serve"))
def serve(output: str | None, catalog: Sheets, **given: str | None) -> int:
    """What it takes to serve a model to so many users."""
    return _answered("serve", given, output, catalog)


@command(entries=partial(form_options, "train"))
def train(output: str | None, catalog: Sheets, **given: str | None) -> int:
    """How long a training run takes, what it costs, and which mapping is best."""
    return _answered("train", given, output, catalog)


@command(entries=partial(form_options, "chip"))
def chip(output: str | None, catalog: Sheets, vary: tuple[str, ...], limits: tuple[str, ...], **given: Any) -> int:
    """What an accelerator of your own would cost and be worth."""
    from xlperf.catalog.schema import first_words
    from xlperf.explore.forms import form_of
    from xlperf.explore.objectives import limits_of

    form = first_words("chip") | {name: words for name, words in given.items() if words is not None}
    table = form_of("chip", form, lambda _, column: f"--{column.replace('_', '-')}")
    required = limits_of("chip", limits, "--limit")
    known = catalog_of(catalog, None)
    if vary:
        return _varied(table, vary, required, output, known)
    return _one(form, table, required, output, known)


def _one(form: dict[str, str], table: Table, limits: list[Limit], output: str | None, catalog: Catalog) -> int:
    """Say or write the answer of one chip; 1 if it has none or misses a limit."""
    from xlperf.explore.chip_table import chip_worth
    from xlperf.explore.chips import chip_row
    from xlperf.explore.forms import answers_of, answers_table

    answer = answers_of(table, catalog)[0]
    results = answers_table(table, [answer])
    missed = [words for limit in limits if (words := _missed(limit, results))]
    refused = str(answer["answer"]).startswith("No ")
    priced = not refused and answer["capex"] == answer["capex"]
    worth = chip_worth(table, answer, catalog) if priced else None
    if output is None:
        shown = [] if worth is None else ["What the next unit is worth:", *text_table(parts(worth))]
        values: dict[str, Any] = {name: column[0] for name, column in results.columns.items()}
        say(*answer_lines("chip", form, values, [*missed, *[""] * bool(missed and shown), *shown]))
        took(1, "answer")
    elif is_json(output) or refused:
        own = [part for part in parts(table) if part[0].name not in results]
        nested: dict[str, list[Part]] = {} if worth is None else {"worth": parts(worth)}
        nested |= {} if refused else {"accelerator": parts(chip_row(table, catalog)[0])}
        front = Front(answers=[str(answer["answer"])], nested=nested)
        deliver(output, "chip", [*own, *parts(results)], "answer", front=front)
    else:
        _write_row(output, table, results, worth, answer, catalog)
    if output is not None:
        say(*missed, err=True)
    return 1 if refused or missed else 0


def _write_row(
    output: str, table: Table, results: Table, worth: Table | None, answer: Answer, catalog: Catalog
) -> None:
    """Write a chip as rows of the catalog; a workbook adds its device, its answer and the worth of more."""
    from xlperf.explore.chips import chip_row

    row, device = chip_row(table, catalog, derived=is_workbook(output))
    if not is_workbook(output):
        deliver(output, "accelerators", parts(row), "accelerator")
        return
    own = [part for part in parts(table) if part[0].name not in results]
    sheets = [("accelerators", parts(row)), ("devices", parts(device)), ("chip", [*own, *parts(results)])]
    write_sheets(output, sheets + [("worth", parts(one)) for one in (worth,) if one is not None],
                 Front(answers=[str(answer["answer"])]))  # fmt: skip
    wrote(output, 1, "accelerator")


def _missed(limit: Limit, results: Table) -> str:
    """By how much a chip misses a limit, in words; "" if it keeps it or has no answer."""
    from xlperf.catalog.schema import unit_of
    from xlperf.cli.output import rounded

    value = float(limit.sure(results)[0])
    if value != value or limit.kept(results)[0]:
        return ""
    factor, unit = unit_of(limit.column).factor, limit.column.unit if limit.column.unit != "-" else ""
    beyond = rounded(abs(value - limit.bound) / factor)
    side = "more" if value > limit.bound else "less"
    words = f"{limit.column.name.replace('_', ' ')} is {rounded(value / factor)} {unit}".rstrip()
    return f"Limit missed: {words}, {beyond} {side} than {rounded(limit.bound / factor)}."


def _varied(table: Table, vary: tuple[str, ...], limits: list[Limit], output: str | None, catalog: Catalog) -> int:
    """Say or write a table of chips; 1 if none has an answer and keeps the limits."""
    import numpy as np

    from xlperf.catalog.schema import column
    from xlperf.explore.chip_table import RATE, frontier_of, varied_chips
    from xlperf.explore.forms import evaluate_forms
    from xlperf.explore.search import stacked

    forms, names = varied_chips(table, [vary_line(text) for text in vary], "--vary")
    blocks = []
    with progress(len(forms), f"{len(forms):,} chips") as done:
        for start in range(0, len(forms), 100):
            blocks.append(evaluate_forms(forms.take(slice(start, start + 100)), catalog))
            done(len(blocks[-1]))
    results = stacked(blocks)
    entries = [_entry(part, results) for part in parts(forms) if part[0].name in names]
    valid = np.logical_and.reduce([~np.isnan(results.number(RATE)), *(limit.kept(results) for limit in limits)])
    if limits and not valid.any():
        say(*_none_keeps(entries, results, limits), err=True)
        return 1
    rows = np.flatnonzero(valid) if limits else np.arange(len(forms))
    results = results.take(rows)
    entries = [(one, values[rows]) for one, values in entries]
    marked = (column("chip_variants", "frontier"), frontier_of(results))
    given = [part for part in parts(forms.take(rows)) if part[0].name not in (*names, *results.columns)]
    reached = [part for part in parts(results) if part[0].name not in names]
    by_name = {part[0].name: part for part in reached}
    shown = [by_name[name] for name in shown_columns("chip_results", "table") if name in by_name]
    reason = [part for part in reached if part[0].name == "reason"]
    number = int(np.nansum(marked[1]))
    words = f"{number:,} of {len(rows):,} chips are beaten by no other in tokens/s and cost of a unit"
    front = Front([RATE, "unit_cost"], [words])
    deliver(
        output, "chips", [*entries, *given, *reached, marked], "chip", [*entries, *shown, marked, *reason], None, front
    )
    say(words, err=True)
    return 0 if valid.any() else 1


def _entry(part: Part, results: Table) -> Part:
    """A varied entry, with the chosen value for ``auto``."""
    import numpy as np

    column, values = part
    if column.name not in results:
        return part
    chosen = results.number(column.name)
    return column, np.where(np.isnan(chosen), values, chosen)


def _none_keeps(entries: list[Part], results: Table, limits: list[Limit]) -> list[str]:
    """Lines that say which chip comes nearest to the limits, and by how much it misses them."""
    import numpy as np

    from xlperf.catalog.schema import unit_of
    from xlperf.cli.output import rounded

    beyond = np.nan_to_num(np.array([limit.excess(results) for limit in limits]), nan=np.inf).max(axis=0)
    words = f"No chip of {len(results):,} keeps {' and '.join(limit.words for limit in limits)}."
    row = int(np.argmin(beyond))
    if not np.isfinite(beyond[row]):
        return [words, f"None has an answer; the first: {results['reason'][0]}."]
    chip = ", ".join(
        f"{one.name.replace('_', ' ')} "
        f"{values[row] if one.is_text else f'{rounded(values[row] / unit_of(one).factor)} {one.unit}'.rstrip(' -')}"
        for one, values in entries
    )
    missed = [_missed(limit, results.take([row])) for limit in limits]
    return [words, f"Nearest: {chip}. {' '.join(filter(None, missed))}"]
