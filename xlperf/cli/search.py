"""Commands that choose plans: ``search`` (the best) and ``solve`` (the least that suffices)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

import click

from xlperf.base.errors import Fault, InputError
from xlperf.cli.command import Chosen, Sheets, command, packed
from xlperf.cli.options import catalog_for, plan_name, read_chosen, read_one_kind, varied, vary_line
from xlperf.cli.output import Front, deliver, is_workbook, parts, progress, say, text_table, write_sheets, wrote
from xlperf.cli.sweep import Doubts
from xlperf.cli.sweep import doubts as read_doubts

if TYPE_CHECKING:
    import numpy as np

    from xlperf.catalog.catalog import Catalog
    from xlperf.catalog.table import Table
    from xlperf.cli.table_files import Part
    from xlperf.explore.candidates import Bounds
    from xlperf.explore.solve import Solution
    from xlperf.explore.uncertainty import Robust
    from xlperf.explore.vary import Varied


@command(doubts=packed("doubts", "doubts", read_doubts))
def search(
    plans: str, output: str | None, objectives: tuple[str, ...], limits: tuple[str, ...], vary: tuple[str, ...],
    mapping: bool, top: int, every: bool, probability: float, doubts: Doubts, processes: int, chosen: Chosen,
    bounds: Bounds, catalog: Sheets,
) -> None:  # fmt: skip
    """Find the best of all plans that cells with auto stand for."""
    import numpy as np

    from xlperf.catalog.schema import PLAN_TABLES
    from xlperf.explore.candidates import with_mapping
    from xlperf.explore.objectives import limits_of, rival_of
    from xlperf.explore.search import own_targets
    from xlperf.explore.search import search as best
    from xlperf.explore.uncertainty import MOST_DRAWN

    wanted = [varied(table, vary, of_catalog=True) for table in read_chosen(plans, chosen)]
    if mapping:
        wanted = [(with_mapping(table, values), values, numbers) for table, values, numbers in wanted]
    rows = [
        (table.take([index]), values, point)
        for table, values, numbers in wanted
        for index in _searched(table, values)
        for point in _points(numbers)
    ]
    if not rows:
        problem = "no cell says auto: write it where a value is to be chosen, or give --mapping or --vary"
        raise InputError(Fault(plans, problem))
    kinds = list(dict.fromkeys(plan.kind for plan, *_ in rows))
    if len(kinds) > 1 and output is not None and not is_workbook(output):
        raise InputError(Fault(plans, f"holds both kinds of plans: give --sheet {kinds[0]}, or an .xlsx output"))
    required = {kind: limits_of(kind, limits, "--limit", probability, owned=True) for kind in kinds}
    for kind in kinds:
        goals = [rival_of(kind, name, "--objective", owned=True).column.name for name in objectives]
        if len(set(goals)) < len(goals):
            raise InputError(Fault("--objective", "the same result twice: give each once"))
    known = catalog_for(catalog, plans, [plan for plan, *_ in rows])
    answers = []
    first, rivals = (objectives or ("",))[0], objectives[1:]
    number = MOST_DRAWN if doubts.measure else None if every else top
    with progress(0, "plans tried") as done:
        for row, values, point in rows:
            plan, changed = changed_for(known, row, values, point)
            needed = [*required[plan.kind], *own_targets(plan, probability)]
            tried = best(plan, changed, first, needed, values, number, done, None, processes, rivals, **bounds)
            answer = doubts.ordered(tried, changed, None if every or rivals else top, processes)
            count = len(answer.found.plans)
            searched = [
                (one.column, np.full(count, value, dtype=object if one.is_text else np.float64))
                for one, value in point
                if one.sheet not in PLAN_TABLES
            ]
            answers.append(answer._replace(columns=[*searched, *answer.columns]))
    labels = [", ".join([plan_name(plan), *(one.words(v) for one, v in point)]) for plan, _, point in rows]
    lines = [f"{label}: {answer.words}" for label, answer in zip(labels, answers, strict=True)]
    say(*lines, err=True)
    legal = [answer for answer in answers if answer.found.found]
    if legal:
        _write(legal, kinds, output, lines)
    if len(legal) < len(answers):
        raise click.exceptions.Exit(1)


def _points(numbers: Sequence[Varied]) -> list[list[tuple[Varied, float | str]]]:
    """Every combination of the values that are searched one by one; one empty combination if none vary."""
    return [list(zip(numbers, values, strict=True)) for values in product(*(one.values.tolist() for one in numbers))]


def changed_for(
    catalog: Catalog, plan: Table, values: Mapping[str, np.ndarray], point: Sequence[tuple[Varied, float | str]]
) -> tuple[Table, Catalog]:
    """The plan with other targets, and the catalog with other values in the rows that the plan or a value names."""
    from xlperf.explore.changed_catalogs import changed_catalog, with_value
    from xlperf.explore.space import grid
    from xlperf.explore.vary import NAMING

    of_catalog = [(number, value) for number, value in point if number.sheet != plan.kind]
    if of_catalog:
        names = {name: column for name, column in values.items() if name in (*NAMING, "mode")}
        catalog = changed_catalog(catalog, grid(plan, names), of_catalog)
    for number, value in point:
        if number.sheet == plan.kind:
            plan, _ = with_value(plan, catalog, number, value)
    return plan, catalog


def _searched(table: Table, values: dict[str, np.ndarray]) -> list[int]:
    """Rows that there is something to choose in."""
    import numpy as np

    if values:
        return list(range(len(table)))
    masks = [np.asarray(mask) for mask in table.auto.values()]
    rows: list[int] = np.flatnonzero(np.logical_or.reduce(masks)).tolist() if masks else []
    return rows


def _write(answers: list[Robust], kinds: list[str], output: str | None, lines: list[str]) -> None:
    import numpy as np

    from xlperf.explore.auto import with_notes
    from xlperf.explore.objectives import TARGETS
    from xlperf.explore.search import SHOWN, stacked
    from xlperf.explore.search_results import LIMITED_BY
    from xlperf.explore.uncertainty import SHOWN as DRAWN

    sheets = []
    for kind in kinds:
        of_kind = [answer for answer in answers if answer.found.plans.kind == kind]
        if of_kind:
            noted = stacked([with_notes(answer.found.results, {0: answer.words}) for answer in of_kind])
            drawn = [
                (column, np.concatenate([answer.columns[place][1] for answer in of_kind]))
                for place, (column, _) in enumerate(of_kind[0].columns)
            ]
            drawn.append((LIMITED_BY, np.concatenate([answer.found.limited_by for answer in of_kind])))
            sheets.append((of_kind[0].found, stacked([answer.found.plans for answer in of_kind]), drawn, noted))
    goals = [[goal.column.name for goal in (first.objective, *first.rivals)] for first, *_ in sheets]
    if output is not None:
        tables = [(plans.kind, [*parts(plans), *drawn, *parts(results)]) for _, plans, drawn, results in sheets]
        write_sheets(output, tables, Front([name for names in goals for name in names], lines))
        wrote(output, sum(len(plans) for _, plans, *_ in sheets), "plan")
        return
    for (first, plans, drawn, results), wanted in zip(sheets, goals, strict=True):
        names = {"name", *first.searched, *(rival.column.name for rival in first.rivals)}
        names |= {target for target in TARGETS.values() if target in plans and len(set(plans[target].tolist())) > 1}
        inputs = [part for part in parts(plans) if part[0].name in names]
        draws = [part for part in drawn if part[0].name in DRAWN or "." in part[0].name]
        reached = {part[0].name: part for part in parts(results)}
        order = dict.fromkeys([*wanted, *(limit.column.name for limit in first.limits), *SHOWN[plans.kind]])
        say(*text_table([*inputs, *draws, *(reached[name] for name in order if name in reached), drawn[-1]]))


@command()
def solve(
    plans: str, vary: tuple[str, ...], targets: tuple[str, ...], mapping: bool, largest: bool, autos: tuple[str, ...],
    objective: str, probability: float, processes: int, chosen: Chosen, output: str | None, bounds: Bounds,
    catalog: Sheets,
) -> None:  # fmt: skip
    """Find the fewest accelerators, or the least of a number, that reach a target."""
    import numpy as np

    from xlperf.explore.candidates import searched_column, with_auto, with_mapping
    from xlperf.explore.objectives import limits_of
    from xlperf.explore.search_results import are_owned
    from xlperf.explore.solve import solve_number, solve_plan
    from xlperf.explore.sweep import Sweep, unmoved_words
    from xlperf.explore.vary import read_variation

    if len(vary) > 1:
        raise click.UsageError("--target takes one --vary; give columns to choose with it as --with-auto")
    table = read_one_kind(plans, chosen)
    asked = read_variation(table.kind, [vary_line(vary[0])], "--vary")
    if not targets and not any(target in table for target in ("ttft_target", "tpot_target")):
        raise click.UsageError("give --target, as --target 'tpot<=20', or a ttft target or tpot target in the plans")
    required = limits_of(table.kind, targets, "--target", probability, owned=True)
    table = with_auto(table, [*autos, *asked.auto], "--with-auto" if autos else "--vary")
    table = with_mapping(table, asked.values) if mapping else table
    known = catalog_for(catalog, plans, [table])
    number = asked.varied[0] if asked.varied else None
    if number is not None and number.shape not in ("", "uniform"):
        raise InputError(Fault("--vary", f"{number.column.name}: give values, whole numbers or two ends"))
    column = "" if number else next(iter(asked.values), "") or searched_column(table.kind, asked.auto[0], "--vary")
    declared = number.column if number is not None else table.schema.by_name[column]
    if declared.kind != "number":
        name = declared.name.replace("_", " ")
        raise InputError(Fault("--vary", f"{name} is no number: there is no least of it"))
    solutions: list[tuple[str, Solution]] = []
    names = [limit.column.name for limit in required]
    if names and not table.auto:
        tried = Sweep(table, known, asked.values, asked.varied, owned=are_owned(table.kind, names))
        say(*unmoved_words(tried, names), err=True)
    with progress(0, "plans tried") as done:
        for index in range(len(table)):
            plan = table.take([index])
            settings = (required, largest, objective, done, processes, probability)
            if number is not None:
                answer = solve_number(plan, known, number, *settings, **bounds)
            else:
                answer = solve_plan(plan, known, column, asked.values.get(column), *settings, **bounds)
            solutions.append((plan_name(plan), answer))
    lines = [f"{label}: {_summary(answer, column, number, largest)}" for label, answer in solutions]
    say(*lines, err=True)
    solved = [answer for _, answer in solutions if answer.found]
    if solved:
        from xlperf.explore.search import SHOWN, stacked

        best, reached = stacked([a.best.plans for a in solved]), stacked([a.best.results for a in solved])
        extra: list[Part] = []
        if number is not None and (number.factors or number.sheet != table.kind):
            extra = [(number.column, np.array([a.value for a in solved]))]
        named = {"name", column, number.name if number else "", *solved[0].best.searched}
        results = {limit.column.name for limit in solved[0].best.limits} | set(SHOWN[table.kind])
        shown = [part for part in parts(best) if part[0].name in named] + extra
        shown += [part for part in parts(reached) if part[0].name in results]
        front = Front([declared.name], lines)
        deliver(output, table.kind, [*parts(best), *extra, *parts(reached)], "plan", shown, front=front)
    if len(solved) < len(solutions):
        raise click.exceptions.Exit(1)


def _summary(answer: Solution, column: str, varied: Varied | None, largest: bool) -> str:
    best = answer.best
    if not answer.found:
        return best.words
    value = varied.words(answer.value) if varied is not None else f"{column.replace('_', ' ')} {answer.value:g}"
    keep = f" with {best.kept_words}" if best.limits else ""
    others = best.chosen(without=column)
    tried = [others, best.counts.words if best.counts is not None else "", best.note]
    return "; ".join(filter(None, [f"{value} is the {'largest' if largest else 'least'}{keep}", *tried]))
