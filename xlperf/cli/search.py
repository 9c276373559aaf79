"""Commands that choose and vary plans: ``search`` (the best), ``solve`` (the least that suffices), ``sweep`` (grids and
samples), ``uncertainty``, ``worth`` of a change, ``diagnose``.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from xlperf.base.errors import Fault, InputError
from xlperf.catalog.schema import parts
from xlperf.cli.command import Chosen, Machines, Sheets, catalog_for, command, read_chosen, read_one_kind, without_auto
from xlperf.cli.output import (
    STANDARD,
    WORKBOOK_ROWS,
    Front,
    asked_of,
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
from xlperf.cli.plans import plan_or_launched

if TYPE_CHECKING:
    from xlperf.explore.candidates import Bounds
    from xlperf.explore.remedy import Diagnosed


@command()
def search(
    plans: str,
    output: str | None,
    objectives: tuple[str, ...],
    limits: tuple[str, ...],
    vary: tuple[str, ...],
    mapping: bool,
    top: int,
    every: bool,
    probability: float,
    processes: int,
    chosen: Chosen,
    bounds: Bounds,
    catalog: Sheets,
) -> None:
    """Find the best of all plans that cells with auto stand for."""
    from xlperf.explore.asked import Choice, found_plans, wanted_plans
    from xlperf.explore.vary import vary_line

    rows = wanted_plans(read_chosen(plans, chosen), [vary_line(text) for text in vary], mapping, plans)
    kinds = list(dict.fromkeys(row.plan.kind for row in rows))
    if len(kinds) > 1 and output is not None and not is_workbook(output):
        raise InputError(Fault(plans, f"holds both kinds of plans: give --sheet {kinds[0]}, or an .xlsx output"))
    known = catalog_for(catalog, plans, [row.plan for row in rows])
    choice = Choice(objectives, limits, None if every else top, probability, processes, bounds)
    with progress(0, "plans tried") as done:
        found = found_plans(rows, known, choice, done)
    say(*found.lines, err=True)
    sheets = found.sheets
    if output is None:
        for sheet in sheets:
            say(*text_table(sheet.shown))
    elif sheets:
        front = Front([name for sheet in sheets for name in sheet.goals], found.lines)
        write_sheets(output, [(sheet.plans.kind, sheet.whole) for sheet in sheets], front)
        wrote(output, sum(len(sheet.plans) for sheet in sheets), "plan")
    if not found.complete:
        raise click.exceptions.Exit(1)


@command()
def solve(
    plans: str,
    vary: tuple[str, ...],
    targets: tuple[str, ...],
    mapping: bool,
    largest: bool,
    autos: tuple[str, ...],
    objective: str,
    probability: float,
    processes: int,
    chosen: Chosen,
    output: str | None,
    bounds: Bounds,
    catalog: Sheets,
) -> None:
    """Find the fewest accelerators, or the least of a number, that reach a target."""
    from xlperf.explore.asked import solve_goal, solved_plans
    from xlperf.explore.vary import vary_line

    table = read_one_kind(plans, chosen)
    goal = solve_goal(table, [vary_line(text) for text in vary], targets, autos, mapping, largest, probability)
    known = catalog_for(catalog, plans, [goal.plans])
    say(*goal.unmoved(known), err=True)
    with progress(0, "plans tried") as done:
        solved = solved_plans(goal, known, objective, processes, bounds, done)
    say(*solved.lines, err=True)
    whole, shown = solved.blocks
    if whole:
        front = Front([goal.declared.name], solved.lines)
        deliver(output, table.kind, whole, "plan", shown, front=front)
    if not solved.complete:
        raise click.exceptions.Exit(1)


@command()
def sweep(
    plans: str,
    vary: tuple[str, ...],
    samples: int | None,
    sampling: str,
    seed: int,
    wanted: tuple[str, ...],
    objective: str | None,
    limits: tuple[str, ...],
    top: int | None,
    machines: Machines,
    chosen: Chosen,
    output: str | None,
    bounds: Bounds,
    catalog: Sheets,
) -> None:
    """Compute plans over a grid of values of their columns and of the catalog's."""
    from xlperf.explore.asked import asked_sweep
    from xlperf.explore.space import MOST_PLANS
    from xlperf.explore.sweep import best_rows
    from xlperf.explore.sweep import sweep as swept
    from xlperf.explore.vary import Sampling, vary_line

    table = read_one_kind(plans, chosen)
    lines = [vary_line(text) for text in vary]
    known = catalog_for(catalog, plans, [table])
    drawn = Sampling(samples, sampling, seed) if samples is not None else None
    asked = asked_sweep(table, known, lines, drawn, wanted, objective, limits, top, bounds)
    whole, words = asked.whole, []
    say(*asked.unmoved, err=True)
    if asked.best is not None:
        with progress(len(whole), f"{len(whole):,} {table.kind} plans") as done:
            rows = best_rows(asked.best, machines.processes, machines.scheduler, done)
        words = [asked.words(rows)]
        say(*words, err=True)
        if not len(rows.plans):
            raise click.exceptions.Exit(1)
    elif output is None or is_workbook(output) or is_json(output) or is_page(output):
        with progress(len(whole), "plans computed") as done:
            rows = swept(whole, done, WORKBOOK_ROWS if output is not None else MOST_PLANS)
    else:
        from xlperf.cli.blocks import Blocks, write_sweep

        suffix = ".csv" if output == STANDARD else Path(output).suffix.lower()
        blocks = Blocks(whole, (*sorted(asked.named), *asked.results) if asked.results else (), suffix)
        write_sweep(output, blocks, machines.processes, machines.scheduler)
        wrote(output, len(whole), "plan")
        return
    everything, shown = asked.blocks(rows)
    front = Front(asked.wanted[:1] if asked.best is not None else asked.results, words)
    deliver(output, "sweep", everything, "plan", shown, front=front)


@command()
def uncertainty(
    plans: str,
    result: str,
    vary: tuple[str, ...],
    band: bool,
    ranges: bool,
    draws: int,
    seed: int,
    limits: tuple[str, ...],
    processes: int,
    chosen: Chosen,
    output: str | None,
    catalog: Sheets,
) -> None:
    """Say how sure a result is, which plan is likely better, and which input decides."""
    from xlperf.explore.asked import asked_uncertainty
    from xlperf.explore.vary import vary_line

    table = read_one_kind(plans, chosen)
    lines = [vary_line(text) for text in vary]
    known = catalog_for(catalog, plans, [table])
    study = asked_uncertainty(
        table,
        known,
        lambda given: without_auto(given, known, {}),
        result,
        lines,
        limits,
        band=band,
        ranges=ranges,
        draws=draws,
        seed=seed,
        processes=processes,
    )
    summary, effects = map(parts, study)
    if output is None:
        say(*text_table(summary), "", *text_table(effects))
    elif is_workbook(output):
        write_sheets(output, [("uncertainty", summary), ("inputs", effects)])
    else:
        write_sheets(output, [("uncertainty", summary)])
    if output is not None:
        wrote(output, len(table), "plan")


@command()
def worth(
    plans: str,
    vary: tuple[str, ...],
    limits: tuple[str, ...],
    mapping: bool,
    against: tuple[str, ...],
    processes: int,
    chosen: Chosen,
    output: str | None,
    bounds: Bounds,
    catalog: Sheets,
) -> None:
    """Say what one more TB/s, GiB, TFLOP/s, mm2, W, GB/s, MW or ms of target is worth per accelerator."""
    from xlperf.explore.asked import asked_worth
    from xlperf.explore.vary import vary_line

    table = read_one_kind(plans, chosen)
    lines = [vary_line(text) for text in vary]
    known = catalog_for(catalog, plans, [table])
    with progress(0, "plans tried") as done:
        result = asked_worth(table, known, lines, limits, mapping, against, processes, bounds, done)
    deliver(output, "worth", parts(result), "accelerator" if against else "change")
    costs = {} if against else dict(zip(result["plan"].tolist(), result["cost_before"].tolist(), strict=True))
    for name in (name for name, cost in costs.items() if cost != cost):
        say(f"{name}: no worth, as no plan of it fits and keeps the limits", err=True)


@command()
def diagnose(
    plans: str,
    measured: tuple[str, ...],
    logs: tuple[str, ...],
    logs_before: tuple[str, ...],
    profile: str | None,
    profile_before: str | None,
    profile_steps: int | None,
    before: tuple[str, ...],
    top: int,
    mine: str | None,
    every: bool,
    given: tuple[str, ...],
    chosen: Chosen,
    output: str | None,
    bounds: Bounds,
    catalog: str | None,
) -> None:
    """Rank what would explain that a run is slower or faster than its plan."""
    from xlperf.explore.remedy import Evidence, asked_diagnosis
    from xlperf.interop.launch_files import is_launch_file, is_log

    plan = plan_or_launched(plans, chosen, given, catalog)
    if is_log(plans) and not (measured or logs or profile):
        logs = (plans,)
    files = tuple(text for text in measured if "=" not in text and Path(text).suffix)
    measured = tuple(text for text in measured if text not in files)
    known = catalog_for(Sheets(catalog, files), "" if is_launch_file(plans) else plans, [plan])
    plan = without_auto(plan, known, bounds)
    runs = Evidence(measured, logs, profile), Evidence(before, logs_before, profile_before)
    with progress(0, "variants of the plan") as done:
        found = asked_diagnosis(plan, known, *runs, profile_steps, top, every, done, lambda line: say(line, err=True))
    diagnosis, cure = found.diagnosis, found.cure
    say(*found.notes, err=True)
    silent = output is not None and (output == STANDARD or is_workbook(output) or is_json(output))
    for reading in diagnosis.readings:
        say(reading.words, err=silent)
    if mine is not None:
        from xlperf.explore.diagnose import as_it_ran

        ran = as_it_ran(plan, diagnosis)
        write_sheets(mine, [(plan.kind, parts(ran))])
        wrote(mine, 1, "run")
    if output is not None and is_workbook(output):
        from xlperf.workbook.report.book import write_diagnosis

        write_diagnosis(output, diagnosis, *asked_of(), cure.lines, cure.plan)
        wrote(output, len(diagnosis.explanations), "explanation")
    elif is_json(output):
        deliver(output, "diagnosis", parts(diagnosis.explanations), "explanation")
    elif output == STANDARD:
        deliver(output, cure.plan.kind, parts(cure.plan, cure.results), "plan")
    else:
        _say_causes(found)
    for line in cure.lines:  # flags are copied whole
        say(line, err=silent, folded=" --" not in line)
    if output is None:
        took(len(diagnosis.explanations), "explanation")
    if output is not None and not silent:
        deliver(output, cure.plan.kind, parts(cure.plan, cure.results), "plan")
        if cure.better:
            from xlperf.interop.software import stack_named

            is_written = stack_named(str(cure.plan.filled("software")[0])) or cure.plan.kind == "inference"
            named = [output, *([] if is_written else ["--for", "megatron"])]
            named += [] if catalog is None else ["--catalog", catalog]
            say(f"its launch line: xlperf launch {shlex.join(named)}", err=True, folded=False)
    if found.nothing_near:
        say(found.nothing_near, err=True)
        raise click.exceptions.Exit(1)


def _say_causes(found: Diagnosed) -> None:
    """Print the ranked causes, and below them where to look for each."""
    whole = parts(found.diagnosis.explanations)
    if len(found.diagnosis.explanations):
        say(*text_table([part for part in whole if part[0].name not in _AT_LENGTH]), "", "What to look at:")
    say(*found.lines, "")


_AT_LENGTH = ("advice", "change")
