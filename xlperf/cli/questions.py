"""Commands that answer a question as the front sheets do, in a line."""

from __future__ import annotations

from functools import partial
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click

from xlperf.catalog.schema import Column, first_words, parts, questions, rounded, software_title, table_schema
from xlperf.cli.command import Command, Sheets, catalog_of, command, names_of, words_of
from xlperf.cli.output import (
    Front,
    aligned,
    deliver,
    is_json,
    is_page,
    is_workbook,
    listed_choices,
    progress,
    say,
    terminal_width,
    text_table,
    took,
    write_sheets,
    wrote,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xlperf.catalog.catalog import Catalog
    from xlperf.catalog.table import Table
    from xlperf.explore.forms import Answered
    from xlperf.explore.objectives import Limit


_VARIED = ("serve", "train", "chip")
"""Questions whose entries vary."""


def _option(column: Column, value: str) -> Any:
    """The option of an entry of a form."""
    unit = column.unit if column.unit not in ("", "-") else "N" if column.kind == "number" else "NAME"
    metavar, more = listed_choices(column.choices)
    words = f"{column.meaning}.{more}" + (f"  [default: {value}]" if value else "")
    option = f"--{column.name.replace('_', '-')}"
    return click.option(
        option, column.name, metavar=metavar or unit, help=words, shell_complete=partial(_entries, column)
    )


def _entries(column: Column, context: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Values of an entry as a shell completes them: names of a sheet, or words of a choice."""
    complete = names_of(column.reference) if column.kind == "reference" else words_of(column.entries)
    return complete(context, parameter, incomplete)


def form_options(kind: str, function: Any) -> Any:
    """Give a command an option for each entry of a form."""
    first = first_words(kind)
    for column in reversed(table_schema(kind).columns):
        if column.name in first:
            function = _option(column, first[column.name])(function)
    return function


def answer_lines(answer: Answered, shown: list[str]) -> list[str]:
    """Lines of an answer on a terminal: the sentence, results, ``shown``, and the assumptions."""
    first = max((len(one.header) for one in answer.card), default=0) + 2
    room = max(terminal_width() - first, 20) if terminal_width() else 0
    lines: list[tuple[str, str]] = []
    for one in answer.card:
        pieces = [one.words, *([f"80 % band {one.band}"] if one.band else [])]
        whole = "  ".join(pieces)
        folded = [line for part in pieces for line in wrap(part, room)] if room and len(whole) > room else [whole]
        lines += [(one.header if number == 0 else "", line) for number, line in enumerate(folded)]
    columns = aligned([[header for header, _ in lines], [words for _, words in lines]], (False, False))
    blocks = [[answer.words, *answer.beside], columns, shown, answer.notes]
    return [line for block in blocks if block for line in (*block, "")][:-1]


def _delivered(answer: Answered, output: str | None, catalog: Catalog) -> int:
    """Print or write an answer; 1 if there is none, or if it misses a limit."""
    from xlperf.engine import evaluate
    from xlperf.explore.forms import nested_parts

    plan = answer.plan
    if output is None:
        say(*answer_lines(answer, _shown(answer)))
        took(1, "answer")
    elif is_page(output):
        _write_page(output, answer, catalog)
    elif answer.kind == "chip" and not (answer.refused or is_json(output)):
        _write_chip(output, answer, catalog)
    elif plan is not None and not (is_json(output) or is_workbook(output)):
        deliver(output, plan.kind, parts(plan, evaluate(plan, catalog)), "plan")
    else:
        front = Front(answers=[answer.words], nested=nested_parts(answer))
        deliver(output, answer.kind, answer.whole, "answer", front=front)
    if answer.missed and (output is not None or answer.kind != "chip"):
        say(*answer.missed, err=True)
    return 1 if answer.refused or answer.missed else 0


def _write_page(
    output: str, answer: Answered, catalog: Catalog, varied: Mapping[str, Sequence[str]] | None = None
) -> None:
    """Write an answer as a page to send, with sliders over varied entries; the terminal gets its sentence."""
    from xlperf.explore.workers import all_processes
    from xlperf.page.answer import question_of, write_page

    say(answer.words, *answer.beside)
    asked = question_of(answer, catalog, varied)
    with progress(len(asked), f"{output}: {len(asked):,} answers") as done:
        write_page(output, answer, asked, all_processes(), done)
    wrote(output, len(asked), "answer")


def _write_chip(output: str, answer: Answered, catalog: Catalog) -> None:
    """Write a chip as a row of accelerators, in a workbook with its device and its answer."""
    from xlperf.explore.chips import chip_row

    if not is_workbook(output):
        deliver(output, "accelerators", parts(answer.nested["accelerator"]), "accelerator")
        return
    row, device = chip_row(answer.table, catalog, derived=True)
    sheets = [("accelerators", parts(row)), ("devices", parts(device)), ("chip", answer.whole)]
    sheets += [("worth", parts(answer.nested["worth"]))] if "worth" in answer.nested else []
    write_sheets(output, sheets, Front(answers=[answer.words]))
    wrote(output, 1, "accelerator")


def _shown(answer: Answered) -> list[str]:
    """Lines of the tables beside an answer: ways to serve, limits that a chip misses and the worth of more, others."""
    from xlperf.explore.forms import nested_parts

    titles = {"worth": "What the next unit is worth"} if answer.kind == "chip" else questions()[answer.kind].tables
    ways = _ways(answer.nested["ways"]) if answer.kind == "serve" else []
    tables = [
        (titles[name], table)
        for name, table in nested_parts(answer).items()
        if name in titles and table and name != "ways" and len(answer.nested[name])
    ]
    blocks = [list(answer.missed), ways, *([f"{title}:", *text_table(table)] for title, table in tables)]
    return [line for block in blocks if block for line in (*block, "")][:-1]


def _ways(ways: Table) -> list[str]:
    """Lines of the ways to serve, the cheapest first."""
    from xlperf.base.units import MILLION

    if not len(ways):
        return []
    lines = [("way", "engine", "pools", "copy", "users", "number", "80 % band", "$/M", "trust")]
    numbers = (
        "copy_size",
        "prefill_accelerators",
        "users",
        "accelerators",
        "accelerators_low",
        "accelerators_high",
        "fleet_cost_per_million_output_tokens",
    )
    costs = MILLION * ways.number(numbers[-1])
    decimals = max(len(rounded(cost).partition(".")[2]) for cost in costs)
    for row in range(len(ways)):
        size, prefill, users, count, low, high = (float(ways.number(name)[row]) for name in numbers[:-1])
        pools = prefill == prefill
        lines.append(
            (
                f"{row + 1}",
                software_title(str(ways["software"][row])),
                "two" if pools else "one",
                f"{prefill:,.0f} + {size - prefill:,.0f}" if pools else f"{size:,.0f}",
                f"{users:,.0f}",
                f"{count:,.0f}",
                f"{low:,.0f} to {high:,.0f}",
                f"{costs[row]:,.{decimals}f}",
                str(ways["trust"][row]),
            )
        )
    columns = dict(zip(lines[0], zip(*lines, strict=True), strict=True))
    # Ways that fill a power limit or a copy serve unlike numbers of users; "200 + 128" says that pools are two.
    del columns["users" if len(set(columns["users"][1:])) == 1 else "pools"]
    return aligned(list(columns.values()), [name not in ("engine", "pools", "trust") for name in columns])


def _question(kind: str) -> Command:
    """The command of a question."""

    def asked(output: str | None, catalog: Sheets, **given: str | None) -> int:
        from xlperf.explore.forms import answered

        known = catalog_of(catalog, None)
        return _delivered(answered(kind, given, known), output, known)

    def varied(
        output: str | None, catalog: Sheets, vary: tuple[str, ...], limits: tuple[str, ...], **given: str | None
    ) -> int:
        return _varying(kind, output, catalog, vary, limits, given)

    function = varied if kind in _VARIED else asked
    function.__name__ = kind
    return command(entries=partial(form_options, kind))(function)


def _varying(
    kind: str,
    output: str | None,
    catalog: Sheets,
    vary: tuple[str, ...],
    limits: tuple[str, ...],
    given: dict[str, Any],
) -> int:
    """Answer a question whose entries vary: one answer, or a table of them."""
    from xlperf.explore.forms import answered, asked_form
    from xlperf.explore.objectives import limits_of

    required = limits_of(kind, limits, "--limit")
    if vary and output is not None and is_page(output):
        return _varied_page(kind, vary, required, output, catalog, given)
    if vary:
        return _varied(asked_form(kind, given)[1], vary, required, output, catalog)
    known = catalog_of(catalog, None)
    return _delivered(answered(kind, given, known, required), output, known)


def _varied(form: Table, vary: tuple[str, ...], limits: list[Limit], output: str | None, catalog: Sheets) -> int:
    """Say or write a table of answers; 1 if none has an answer and keeps the limits."""
    from xlperf.catalog.schema import shown_columns
    from xlperf.explore.chips import RATE
    from xlperf.explore.forms import varied_answers, varied_forms
    from xlperf.explore.vary import vary_line

    known = catalog_of(catalog, None)
    forms, names = varied_forms(form, [vary_line(text) for text in vary], "--vary", known)
    chip = form.kind == "chip"
    noun, ranked = ("chip", [RATE, "unit_cost"]) if chip else ("answer", shown_columns(f"{form.kind}_results", "tile"))
    with progress(len(forms), f"{len(forms):,} {noun}s") as done:
        chips = varied_answers(forms, names, limits, known, done)
    if chips.whole:
        front = Front(list(ranked[:2]), [chips.words])
        deliver(output, f"{noun}s", chips.whole, noun, chips.shown, None, front)
    if chips.words:
        say(chips.words, err=True)
    say(*chips.none, err=True)
    return 0 if chips.valid else 1


def _varied_page(
    kind: str, vary: tuple[str, ...], required: list[Limit], output: str, catalog: Sheets, given: dict[str, Any]
) -> int:
    """Write a page with a slider for each varied entry; it shows the values asked for, else the first ones."""
    from xlperf.catalog.schema import table_schema, unit_of
    from xlperf.explore.forms import answered, asked_form, varied_forms
    from xlperf.explore.vary import vary_line

    asked, form = asked_form(kind, given)
    known = catalog_of(catalog, None)
    forms, names = varied_forms(form, [vary_line(text) for text in vary], "--vary", known)
    columns, texts = table_schema(kind).by_name, {}
    for name in names:
        one = columns[name]
        values = [value if one.is_text else value / unit_of(one).factor for value in forms[name].tolist()]
        words = (str(value) if one.is_text else "" if value != value else f"{value:.6g}" for value in values)
        texts[name] = [*dict.fromkeys(word or "auto" for word in words)]
    first = {name: asked[name] if asked.get(name) in words else words[0] for name, words in texts.items()}
    answer = answered(kind, given | first, known, required)
    _write_page(output, answer, known, texts)
    return 1 if answer.refused or answer.missed else 0


ASK = tuple(_question(kind) for kind in questions())
"""The commands of the questions."""
