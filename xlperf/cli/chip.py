"""Command ``chip``: an accelerator of one's own, tables of many, and the row of the catalog that it is."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from xlperf.cli.command import command
from xlperf.cli.options import catalog_of, vary_line
from xlperf.cli.output import (
    Front,
    deliver,
    is_json,
    is_workbook,
    parts,
    progress,
    say,
    text_table,
    took,
    write_sheets,
    wrote,
)
from xlperf.cli.questions import answer_lines, form_options

if TYPE_CHECKING:
    from xlperf.catalog.catalog import Catalog
    from xlperf.catalog.table import Table
    from xlperf.cli.table_files import Part
    from xlperf.explore.objectives import Limit
    from xlperf.explore.search_results import Answer

_SHOWN = (
    "tokens_per_second_per_accelerator", "unit_cost", "thermal_design_power", "tokens_per_thousand_dollars",
    "memory_stacks", "cache", "num_multiprocessors",
)  # fmt: skip
"""Results of a chip that a table on a terminal shows."""


@command(entries=partial(form_options, "chip"))
def chip(output: str | None, catalog: str | None, vary: tuple[str, ...], limits: tuple[str, ...], **given: Any) -> int:
    """An accelerator from node, dies, cache, memory and budgets: peak rates, cost, power, serving performance beside a
    B200, and the worth of the next mm2, stack, W and MB. The sheet Build a chip in a line; entries that are not given
    have the values of the sheet and are listed below the answer, and so is the choice for auto. More cache takes area
    from the cores.

    --vary makes a table of chips and marks each that no other beats in tokens per second and cost of a unit. -o
    chip.csv writes the chip as a row of accelerators, -o chip.xlsx adds its device, which gives it a cost: --catalog
    takes both. Exit code 1: a budget or a limit is missed; the answer names it, the gap, and a remedy.
    """
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
    shown = [part for part in reached if part[0].name in _SHOWN]
    shown.sort(key=lambda part: _SHOWN.index(part[0].name))
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
