"""Commands that choose plans: ``search`` (the best) and ``solve`` (the least that suffices)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from xlperf.base.errors import Fault, InputError
from xlperf.cli.command import Chosen, Sheets, command, packed
from xlperf.cli.options import catalog_for, read_chosen, read_one_kind
from xlperf.cli.output import Front, deliver, is_workbook, progress, say, text_table, write_sheets, wrote

if TYPE_CHECKING:
    from xlperf.explore.asked import Doubts
    from xlperf.explore.candidates import Bounds


def _doubts(robust: str | None, uncertain: tuple[str, ...], draws: int, seed: int) -> Doubts:
    from xlperf.explore.asked import doubts

    return doubts(robust, uncertain, draws, seed)


@command(doubts=packed("doubts", "doubts", _doubts))
def search(
    plans: str, output: str | None, objectives: tuple[str, ...], limits: tuple[str, ...], vary: tuple[str, ...],
    mapping: bool, top: int, every: bool, probability: float, doubts: Doubts, processes: int, chosen: Chosen,
    bounds: Bounds, catalog: Sheets,
) -> None:  # fmt: skip
    """Find the best of all plans that cells with auto stand for."""
    from xlperf.explore.asked import Choice, found_plans, wanted_plans
    from xlperf.explore.vary import vary_line

    rows = wanted_plans(read_chosen(plans, chosen), [vary_line(text) for text in vary], mapping, plans)
    kinds = list(dict.fromkeys(row.plan.kind for row in rows))
    if len(kinds) > 1 and output is not None and not is_workbook(output):
        raise InputError(Fault(plans, f"holds both kinds of plans: give --sheet {kinds[0]}, or an .xlsx output"))
    known = catalog_for(catalog, plans, [row.plan for row in rows])
    choice = Choice(objectives, limits, None if every else top, probability, doubts, processes, bounds)
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
    plans: str, vary: tuple[str, ...], targets: tuple[str, ...], mapping: bool, largest: bool, autos: tuple[str, ...],
    objective: str, probability: float, processes: int, chosen: Chosen, output: str | None, bounds: Bounds,
    catalog: Sheets,
) -> None:  # fmt: skip
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
