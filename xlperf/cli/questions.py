"""Commands that answer a question as the front sheets do, in a line."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from xlperf.base.errors import Fault, InputError
from xlperf.catalog.parts import parts, rounded
from xlperf.catalog.questions import questions
from xlperf.catalog.schema import Column, first_words, table_schema
from xlperf.cli.command import Command, Sheets, command
from xlperf.cli.options import catalog_of
from xlperf.cli.output import (
    Front,
    aligned,
    deliver,
    is_json,
    is_page,
    is_workbook,
    progress,
    say,
    text_table,
    took,
    write_sheets,
    wrote,
)

if TYPE_CHECKING:
    from xlperf.catalog.catalog import Catalog
    from xlperf.catalog.table import Table
    from xlperf.explore.answers import Answered
    from xlperf.explore.objectives import Limit


_VARIED = ("serve", "train")
"""Questions whose entries vary, beside the chip."""


def _option(column: Column, value: str) -> Any:
    """The option of an entry of a form."""
    unit = column.unit if column.unit not in ("", "-") else "N" if column.kind == "number" else "NAME"
    metavar = "|".join(column.choices) or unit
    words = f"{column.meaning}.  [default: {value}]"
    option = f"--{column.name.replace('_', '-')}"
    return click.option(option, column.name, metavar=metavar, help=words, shell_complete=partial(_entries, column))


def _entries(column: Column, context: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Values of an entry as a shell completes them: names of a sheet, or words of a choice."""
    from xlperf.cli.completion import names_of, words_of

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
    card = [(one.header, f"{one.words}  80 %: {one.band}" if one.band else one.words) for one in answer.card]
    columns = aligned([[header for header, _ in card], [words for _, words in card]], (False, False))
    blocks = [[answer.words, *answer.beside], columns, shown, answer.notes]
    return [line for block in blocks if block for line in (*block, "")][:-1]


def _answered(
    kind: str, given: dict[str, str | None], output: str | None, catalog: Sheets, limits: tuple[Limit, ...] = ()
) -> int:
    """Answer a form and print or write it; 1 without an answer, or if it misses a limit."""
    from xlperf.engine import evaluate
    from xlperf.explore.answers import answered, nested_parts

    known = catalog_of(catalog, None)
    answer = answered(kind, given, known, limits)
    plan = answer.plan
    if output is None:
        say(*answer_lines(answer, _ways(answer.nested["ways"]) if kind == "serve" else _tables(answer)))
        took(1, "answer")
    elif plan is not None and not (is_json(output) or is_workbook(output) or is_page(output)):
        deliver(output, plan.kind, parts(plan, evaluate(plan, known)), "plan")
    elif is_page(output):
        _write_page(output, answer, known)
    else:
        front = Front(answers=[answer.words], nested=nested_parts(answer))
        deliver(output, kind, answer.whole, "answer", front=front)
    if answer.missed:
        say(*answer.missed, err=True)
    return 1 if answer.refused or answer.missed else 0


def _write_page(output: str, answer: Answered, catalog: Catalog) -> None:
    """Write an answer as a page to send."""
    from xlperf.explore.workers import all_processes
    from xlperf.page.answer import write_page

    with progress(0, "answers computed") as done:
        write_page(output, answer, catalog, all_processes(), done)
    wrote(output, 1, "answer")


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


def _tables(answer: Answered) -> list[str]:
    """Lines of the tables beside an answer, each below its title."""
    from xlperf.explore.answers import nested_parts

    titles = questions()[answer.kind].tables
    shown = [(titles[name], text_table(block)) for name, block in nested_parts(answer).items() if block]
    return [line for title, lines in shown for line in (f"{title}:", *lines, "")][:-1]


def _question(kind: str) -> Command:
    """The command of a question."""

    def asked(output: str | None, catalog: Sheets, **given: str | None) -> int:
        return _answered(kind, given, output, catalog)

    def varied(
        output: str | None, catalog: Sheets, vary: tuple[str, ...], limits: tuple[str, ...], **given: str | None
    ) -> int:
        from xlperf.explore.answers import asked_form
        from xlperf.explore.objectives import limits_of

        required = limits_of(kind, limits, "--limit")
        if vary:
            return _varied(asked_form(kind, given)[1], vary, required, output, catalog)
        return _answered(kind, given, output, catalog, tuple(required))

    function = varied if kind in _VARIED else asked
    function.__name__ = kind
    return command(entries=partial(form_options, kind))(function)


@command(entries=partial(form_options, "chip"))
def chip(output: str | None, catalog: Sheets, vary: tuple[str, ...], limits: tuple[str, ...], **given: Any) -> int:
    """Cost and worth of an accelerator of your own."""
    from xlperf.explore.answers import answered, asked_form
    from xlperf.explore.objectives import limits_of

    required = limits_of("chip", limits, "--limit")
    if vary:
        return _varied(asked_form("chip", given)[1], vary, required, output, catalog)
    known = catalog_of(catalog, None)
    return _one(answered("chip", given, known, required), output, known)


def _one(answer: Answered, output: str | None, catalog: Catalog) -> int:
    """Say or write the answer of one chip; 1 if it has none or misses a limit."""
    from xlperf.explore.answers import nested_parts

    worth, missed = answer.nested.get("worth"), answer.missed
    if output is None:
        shown = [] if worth is None else ["What the next unit is worth:", *text_table(parts(worth))]
        say(*answer_lines(answer, [*missed, *[""] * bool(missed and shown), *shown]))
        took(1, "answer")
    elif is_page(output):
        _write_page(output, answer, catalog)
    elif is_json(output) or answer.refused:
        front = Front(answers=[answer.words], nested=nested_parts(answer))
        deliver(output, "chip", answer.whole, "answer", front=front)
    elif not is_workbook(output):
        deliver(output, "accelerators", parts(answer.nested["accelerator"]), "accelerator")
    else:
        from xlperf.explore.chips import chip_row

        row, device = chip_row(answer.table, catalog, derived=True)
        sheets = [("accelerators", parts(row)), ("devices", parts(device)), ("chip", answer.whole)]
        sheets += [("worth", parts(worth))] if worth is not None else []
        write_sheets(output, sheets, Front(answers=[answer.words]))
        wrote(output, 1, "accelerator")
    if output is not None:
        say(*missed, err=True)
    return 1 if answer.refused or missed else 0


def _varied(form: Table, vary: tuple[str, ...], limits: list[Limit], output: str | None, catalog: Sheets) -> int:
    """Say or write a table of answers; 1 if none has an answer and keeps the limits."""
    from xlperf.catalog.schema import shown_columns
    from xlperf.explore.answers import varied_answers
    from xlperf.explore.chip_table import RATE, varied_forms
    from xlperf.explore.vary import vary_line

    if output is not None and is_page(output):
        raise InputError(Fault(output, "a page holds one answer: leave --vary out, or write .xlsx, .csv or .json"))
    known = catalog_of(catalog, None)
    forms, names = varied_forms(form, [vary_line(text) for text in vary], "--vary")
    chip = form.kind == "chip"
    noun, ranked = ("chip", [RATE, "unit_cost"]) if chip else ("answer", shown_columns(f"{form.kind}_results", "tile"))
    with progress(len(forms), f"{len(forms):,} {noun}s") as done:
        chips = varied_answers(forms, names, limits, known, done)
    if chips.whole:
        front = Front(list(ranked[:2]), [chips.words])
        deliver(output, f"{noun}s", chips.whole, noun, chips.shown, None, front)
    say(*(chips.none or [chips.words]), err=True)
    return 0 if chips.valid else 1


ASK = tuple(chip if kind == "chip" else _question(kind) for kind in questions())
"""The commands of the questions."""
