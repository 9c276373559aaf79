"""Commands on plans: ``report``, ``evaluate``, ``explain``, ``frontier``; plans of launch files and logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from xlperf.base.errors import Fault, InputError
from xlperf.catalog.schema import Part, parts, rounded
from xlperf.cli.command import (
    Chosen,
    Machines,
    Sheets,
    catalog_for,
    catalog_of,
    command,
    note_unread,
    read_one,
    without_auto,
)
from xlperf.cli.output import (
    AS_JSON,
    NONE_COUNTED,
    STANDARD,
    Legal,
    deliver,
    is_json,
    is_page,
    is_workbook,
    legal_of,
    progress,
    say,
    text_table,
    working,
    write_sheets,
    write_tables_page,
    wrote,
)

if TYPE_CHECKING:
    from xlperf.catalog.catalog import Catalog
    from xlperf.catalog.table import Table
    from xlperf.explore.candidates import Bounds

BLOCK = 32_768  # rows that are evaluated and written at a time: bounds the memory of a table of any length


@command()
def report(workbook: str | None, output: str, study: str | None, bounds: Bounds, catalog: Sheets) -> None:
    """Compute the plans of a workbook and write the report workbook."""
    import datetime

    from xlperf.base.resources import workbook as shipped
    from xlperf.catalog.read import read_plans
    from xlperf.workbook.report.book import answers, write_report

    if study is not None:
        if catalog.measured:
            raise click.UsageError("--measured goes with the plans of a workbook, not with --study")
        _study(study, workbook, output, catalog.path)
        return
    source = workbook or str(shipped())
    tables = read_plans(source)
    known = catalog_for(catalog, source, tables)
    computed = [pair for table in tables for pair in _evaluated(table, known, len(table), bounds)]
    pairs = [list(each) for each in zip(*computed, strict=True)]
    findings = [f"{finding.tag}: {finding.words}" for finding in answers(known, *pairs)]
    if is_page(output):
        seen = [(f"{rows.kind} plans", _seen(rows, results)) for rows, results in zip(*pairs, strict=True)]
        write_tables_page(output, seen, findings)
    else:
        with working("writing the report"):
            write_report(output, known, *pairs, date=datetime.date.today())
    say(*findings)
    legal: dict[str, Legal] = {}
    for _ in _counting(zip(*pairs, strict=True), legal):
        pass
    _print_legal(output, legal)


def _study(name: str, workbook: str | None, output: str, catalog: str | None) -> None:
    """Run a study and write its report; ``list`` prints all studies."""
    import datetime

    from xlperf.studies import NAMES
    from xlperf.studies import study as study_of
    from xlperf.studies.outcome import read_inputs
    from xlperf.workbook.report.studies import write_study_report

    if name.strip().casefold() == "list":
        for known in NAMES:
            say(f"{known:18} {study_of(known).question}")
        return
    chosen = study_of(name)
    note_unread(catalog, workbook)
    inputs = read_inputs(chosen, workbook, catalog)
    with working(f"the study {chosen.name}"):
        outcome = chosen.analyse(inputs)
        if not is_page(output):
            write_study_report(output, chosen, inputs, outcome, date=datetime.date.today())
    found = [
        f"{one.tag}: {one.words}".removeprefix(f"{one.tag}: " * one.words.startswith(one.tag))
        for one in outcome.findings
    ]
    lines = [*found, f"What to do: {chosen.advised(outcome.facts)}"]
    if is_page(output):
        from xlperf.page.studies import study_charts

        tables = [(sheet.name, sheet.parts) for sheet in outcome.sheets]
        write_tables_page(output, tables, lines, chosen.question, [study_charts(sheet) for sheet in outcome.sheets])
    say(chosen.question, *lines)
    wrote(output, len(outcome.findings), "finding")


@command()
def evaluate(
    plans: str, output: str | None, sheet: str | None, machines: Machines, bounds: Bounds, catalog: Sheets
) -> int:
    """Compute plans and write results to .xlsx, .csv or .parquet."""
    from xlperf.catalog.read import is_workbook as is_read_workbook
    from xlperf.catalog.read import read_plans

    written = output is not None and not is_workbook(output) and not is_json(output)
    if output is not None and written and not is_read_workbook(plans) and sheet is None:
        from xlperf.cli.blocks import write_evaluated

        counted, kind = write_evaluated(plans, output, catalog_of(catalog, plans), bounds, *machines)
        return _print_legal(output, {kind: counted})
    tables = read_plans(plans, sheet=sheet)
    known = catalog_for(catalog, plans, tables)
    if output is not None and written:
        tables = [_only(tables, plans, output)]
    blocks = ((table, BLOCK if written else len(table)) for table in tables)
    legal: dict[str, Legal] = {}
    computed = _counting((pair for table, block in blocks for pair in _evaluated(table, known, block, bounds)), legal)
    if output is None:
        for number, (rows, results) in enumerate(computed):
            say(*([""] if number else []), *text_table(_seen(rows, results)))
    else:
        write_sheets(output, ((rows.kind, parts(rows, results)) for rows, results in computed))
    return _print_legal(output, legal)


def _counting(computed: Iterable[tuple[Table, Table]], legal: dict[str, Legal]) -> Iterator[tuple[Table, Table]]:
    """Plans and results as they come, counted by kind."""
    for rows, results in computed:
        legal[rows.kind] = legal.get(rows.kind, NONE_COUNTED).with_more(legal_of(results))
        yield rows, results


def _print_legal(output: str | None, legal: dict[str, Legal]) -> int:
    """Say how many plans were written, or that some are illegal; 1 if no plan is legal."""
    is_file = output not in (None, STANDARD, AS_JSON)
    words = [each.words(kind) for kind, each in legal.items() if is_file or each.legal < each.number]
    if words:
        say(f"{f'{output}: ' if is_file else ''}{', '.join(words)}", err=True)
    return 0 if any(each.legal for each in legal.values()) else 1


def _seen(plans: Table, results: Table) -> list[Part]:
    """Columns of computed plans for a terminal: name, machine, main results, and the reason if there are none."""
    import numpy as np

    from xlperf.explore.search import SHOWN

    inputs = [part for part in parts(plans) if part[0].name in ("name", "model", "accelerator", "num_accelerators")]
    wanted = (*SHOWN[plans.kind], "fits", "trust")
    shown = [part for part in parts(results) if part[0].name in wanted]
    time = results.number(SHOWN[plans.kind][1])
    reason = [
        (column, np.where(time == time, "", values)) for column, values in parts(results) if column.name == "reason"
    ]
    return [*inputs, *shown, *reason]


@command()
def explain(plans: str, chosen: Chosen, output: str | None, bounds: Bounds, catalog: Sheets) -> None:
    """Show the operators of one plan with FLOP, bytes, time and what limits them."""
    from xlperf.engine import evaluate as evaluated
    from xlperf.engine import explain as explained

    plan = read_one(plans, chosen)
    known = catalog_for(catalog, plans, [plan])
    plan = without_auto(plan, known, bounds)
    operators = explained(plan, known)
    if not len(operators):
        say(f"{plan.place(0, 'name')}: {evaluated(plan, known)['reason'][0]}", err=True)
        raise click.exceptions.Exit(1)
    deliver(output, "operators", parts(operators), "operator")
    if output is None:
        say("", *_limits(operators))


_WHOLE = {"prefill": "time to first token", "decode": "time per output token"}


def _limits(operators: Table) -> list[str]:
    """A line for the step, or for prefill and decode: its time, and the share of each thing that limits it."""
    import numpy as np

    share, time = operators.number("share"), operators.number("exposed_time")
    whole = np.floor(np.cumsum(share) - share + 1e-6)  # shares add up to 1 in each
    phases, bounds = operators.text("phase"), operators.text("bound")
    lines = []
    for number in np.unique(whole):
        rows = np.flatnonzero((whole == number) & (share > 0.0))  # the last ones may be hidden behind others
        if not len(rows):
            continue
        named = [phases[row] if phases[row] == "waiting" else bounds[row] for row in rows]
        shares = {
            name: float(sum(share[row] for row, own in zip(rows, named, strict=True) if own == name))
            for name in dict.fromkeys(named)
        }
        largest = sorted(shares, key=lambda one: -shares[one])
        words = [f"{one or 'not timed'} {100.0 * shares[one]:.0f} %" for one in largest]
        name = next((_WHOLE[phase] for phase in phases[rows] if phase in _WHOLE), "step")
        lines.append(f"{name} {rounded(float(time[rows].sum()) * 1e3)} ms: {', '.join(words)}")
    return lines


@command()
def frontier(
    plans: str,
    vary: tuple[str, ...],
    points: int,
    every: bool,
    sheet: str | None,
    output: str | None,
    bounds: Bounds,
    catalog: Sheets,
) -> None:
    """Show throughput against speed per user, over loads and a grid of plans."""
    from xlperf.catalog.read import read_plans
    from xlperf.explore.asked import varied
    from xlperf.explore.sweep import SHOWN, Frontier, distinguishing_columns
    from xlperf.explore.sweep import frontier as unbeaten_points
    from xlperf.explore.sweep import points as every_point
    from xlperf.explore.vary import vary_line

    tables = [table for table in read_plans(plans, sheet=sheet) if table.kind == "inference"]
    if not tables:
        raise InputError(Fault(plans, "has no inference plans; a frontier needs some"))
    table, values, _ = varied(tables[0], [vary_line(text) for text in vary])
    known = catalog_for(catalog, plans, [table])
    with progress(0, "points computed") as done:
        made = every_point if every else unbeaten_points
        best, results = made(table, known, values, points, done, **bounds)
    if not len(best):
        say("no plan at no load is legal, fits in memory and keeps the targets", err=True)
        raise click.exceptions.Exit(1)
    names = distinguishing_columns(Frontier(best, results), {**table.auto, **values}, named=len(table) > 1)
    shown = [part for part in parts(best) if part[0].name in names]
    shown += [part for part in parts(results) if part[0].name in SHOWN]
    deliver(output, "frontier", parts(best, results), "point", shown)


def _evaluated(table: Table, catalog: Catalog, block: int, bounds: Bounds) -> Iterator[tuple[Table, Table]]:
    """Plans and their results, block by block, with progress."""
    from xlperf.engine import evaluate

    notes: dict[int, str] = {}
    if table.auto:
        from xlperf.explore.search import resolve

        number = sum(bool(any(row)) for row in zip(*table.auto.values(), strict=True))
        with progress(number, f"{number:,} plan{'s' if number != 1 else ''} with auto searched") as done:
            table, notes = resolve(table, catalog, progress=done, **bounds)
    with progress(len(table), f"{len(table):,} {table.kind} plan{'s' if len(table) != 1 else ''}") as done:
        for start in range(0, len(table), block):
            rows = table.take(slice(start, start + block)) if len(table) > block else table
            results = evaluate(rows, catalog, done)
            if notes:
                from xlperf.explore.search import with_notes

                results = with_notes(
                    results, {row - start: note for row, note in notes.items() if 0 <= row - start < len(rows)}
                )
            yield rows, results


def _only(tables: list[Table], plans: str, output: str) -> Table:
    if len(tables) > 1:
        kinds = " and ".join(f"{len(table)} {table.kind} plans" for table in tables)
        where = "standard output" if output == STANDARD else output
        problem = f"holds {kinds}, {where} takes one kind: give --sheet {tables[0].kind}, or an .xlsx output"
        raise InputError(Fault(plans, problem))
    return tables[0]


def launched_plan(file: str, stack: str | None, given: tuple[str, ...], partial: bool, catalog: str | None) -> Table:
    """The plan of a launch file or a log with the entries of ``--set``; remarks go to standard error."""
    from xlperf.interop.launch_files import launch_of_file

    launched, remarks = launch_of_file(file, catalog_of(catalog, None).tables["models"], given, stack or "", partial)
    say(*(f"note: {remark}" for remark in remarks), err=True)
    return launched.plan


def plan_or_launched(file: str, chosen: Chosen, given: tuple[str, ...], catalog: str | None) -> Table:
    """The chosen plan of a file of plans, or the plan of a launch file or a log."""
    from xlperf.interop.launch_files import is_launch_file

    if is_launch_file(file):
        return launched_plan(file, None, given, False, catalog)
    if given:
        raise click.UsageError("--set is for a log or a launch file; edit the plans, or give --vary")
    return read_one(file, chosen)
