"""Searches, sweeps, uncertainty and worth as commands and notebooks ask for them: options in, tables to show out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from xlperf.base.errors import Fault, InputError, OptionError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import PLAN_TABLES, Column, Part, parts, results_of, split_header
from xlperf.catalog.table import Table
from xlperf.engine.tables import Progress
from xlperf.explore.candidates import Bounds, searched_column, with_auto, with_mapping
from xlperf.explore.changed_catalogs import changed_catalog, with_value
from xlperf.explore.objectives import (
    LIMITED_BY,
    TARGETS,
    Objective,
    Search,
    are_owned,
    default_objective,
    limits_of,
    objective_of,
    rival_of,
)
from xlperf.explore.search import SHOWN, Effort, own_targets, search, stacked, with_notes
from xlperf.explore.solve import Solution, break_even, read_changes, solve_number, solve_plan, usual_changes, worth
from xlperf.explore.space import grid
from xlperf.explore.sweep import Best, Sweep, Swept, unmoved_words
from xlperf.explore.uncertainty import Uncertainty, sheet_ranges
from xlperf.explore.vary import LATIN_HYPERCUBE, NAMING, Sampling, Varied, read_variation

TOP = 10  # plans of a sweep that an objective or a limit keeps by default [-]


class AskedSweep(NamedTuple):
    """A sweep, the results that are asked for, and which plans remain."""

    whole: Sweep
    best: Best | None  # None: all remain
    named: frozenset[str]  # columns that vary, and the name
    results: tuple[str, ...]  # named by the user; none for all
    asked_for: tuple[str, ...]  # objective, limits, results

    @property
    def unmoved(self) -> list[str]:
        """A line for each column that has no effect."""
        return unmoved_words(self.whole, self.asked_for)

    @property
    def wanted(self) -> tuple[str, ...]:
        """Columns that the user asks for, the objective first."""
        return tuple(dict.fromkeys([*([self.best.objective.column.name] if self.best else []), *self.asked_for]))

    def blocks(self, rows: Swept) -> tuple[list[Part], list[Part]]:
        """All columns of some rows, or the varied columns and the named results; and the columns that decide."""
        key = [part for part in parts(rows.plans) if part[0].name in self.named] + rows.varied
        wanted = self.wanted if self.results else (*self.wanted, *SHOWN[rows.plans.kind])
        chosen = [part for part in parts(rows.results) if part[0].name in wanted]
        blank = rows.results.number("fits") != 1.0
        reason: list[Part] = [
            (column, np.where(blank, values, "")) for column, values in parts(rows.results) if column.name == "reason"
        ]
        whole = [*key, *chosen] if self.results else [*parts(rows.plans), *rows.varied, *parts(rows.results)]
        return whole, [*key, *chosen, *reason]

    def words(self, rows: Swept) -> str:
        """How many plans remain of how many."""
        best = self.best
        if best is None:
            return f"{len(self.whole):,} plans computed"
        limits = f" with {' and '.join(limit.words for limit in best.limits)}" if best.limits else ""
        if not len(rows.plans):
            return f"none of {len(self.whole):,} plans fits{limits}"
        goal = best.objective.words
        return f"{goal}: the best {len(rows.plans):,} that fit{limits}; {len(self.whole):,} plans computed"


def asked_sweep(
    table: Table,
    catalog: Catalog,
    vary: Lines,
    drawn: Sampling | None,
    wanted: Sequence[str],
    objective: str | None,
    limits: Sequence[str],
    top: int | None,
    bounds: Bounds,
) -> AskedSweep:
    """Read a sweep."""
    asked = read_variation(table.kind, vary, "--vary")
    table = with_auto(table, asked.auto, "--vary")
    for one in asked.varied:
        if one.shape and drawn is None:
            raise InputError(Fault("--vary", f"{one.column.name}: give values, not two ends, or --samples"))
    named = {"name", *asked.values, *table.auto, *(one.column.name for one in asked.varied)}
    named |= {one.name for one in asked.varied if one.sheet == table.kind}
    results = _named_results(table.kind, wanted)
    goal: Objective | None = objective_of(table.kind, objective, "--objective", owned=True) if objective else None
    required = tuple(limits_of(table.kind, limits, "--limit", owned=True))
    asked_for = dict.fromkeys([*([goal.column.name] if goal else []), *(one.column.name for one in required), *results])
    whole = Sweep(table, catalog, asked.values, asked.varied, drawn, bounds, are_owned(table.kind, asked_for))
    best = None
    if top is not None or objective is not None or limits:
        best = Best(whole, goal or default_objective(table, [*named]), required, top or TOP)
    return AskedSweep(whole, best, frozenset(named), results, tuple(asked_for))


def _named_results(kind: str, wanted: Sequence[str]) -> tuple[str, ...]:
    """Columns of results that a user names: numbers, fits, or reason."""
    names = [(split_header(text)[0], text) for text in wanted]
    known = results_of(kind).by_name
    return tuple(
        name if name in known else objective_of(kind, text, "--result", owned=True).column.name for name, text in names
    )


def asked_uncertainty(
    table: Table,
    catalog: Catalog,
    resolved: Callable[[Table], Table],
    result: str,
    vary: Lines,
    limits: Sequence[str],
    band: bool,
    ranges: bool,
    draws: int,
    seed: int,
    processes: int,
) -> tuple[Table, Table]:
    """How sure a result of plans is, and the effect of each uncertain input."""
    asked = read_variation(table.kind, vary, "--vary")
    if asked.auto:
        raise InputError(Fault("--vary", f"{asked.auto[0]} is auto: write a range, or auto in the plans"))
    required = limits_of(table.kind, limits, "--limit", owned=True)
    wanted = objective_of(table.kind, result, "--result", owned=True)
    owned = are_owned(table.kind, [wanted.column.name, *(limit.column.name for limit in required)])
    table = resolved(table)
    varied = (*asked.varied, *(sheet_ranges(table, catalog, asked.varied) if ranges else ()))
    if not varied and not asked.values and not band:
        raise OptionError("nothing is uncertain: give --vary, as --vary 'prices.rental price=x0.7..x1.5'")
    sampling = Sampling(draws, LATIN_HYPERCUBE, seed)
    whole = Sweep(table, catalog, asked.values, varied, sampling, owned=owned)
    study = Uncertainty(whole, result, band, processes, tuple(required))
    return study.summary(), study.effects()


def asked_worth(
    table: Table,
    catalog: Catalog,
    vary: Lines,
    limits: Sequence[str],
    mapping: bool,
    against: Sequence[str],
    processes: int,
    bounds: Bounds,
    done: Progress,
) -> Table:
    """Worth of changes of each plan, or at which cost of an hour other accelerators are as cheap."""
    if against and vary:
        raise OptionError("give --vary or --against, not both")
    wanted = read_changes(table.kind, vary, "--vary")
    required = limits_of(table.kind, limits, "--limit")
    effort: Effort = {**bounds, "progress": done, "processes": processes}
    tables = []
    for index in range(len(table)):
        plan = table.take([index])
        plan = with_mapping(plan) if mapping else plan
        if against:
            tables.append(break_even(plan, against, catalog, required, **effort))
        else:
            asked = wanted or usual_changes(plan, catalog, required)
            tables.append(worth(plan, catalog, asked, required, **effort))
    return stacked(tables)


Point = Sequence[tuple[Varied, float | str]]  # numbers that are searched one by one, each with a value
Lines = Sequence[tuple[str, Sequence[str]]]  # columns with the texts of their values


def plan_name(plans: Table, row: int = 0) -> str:
    """Name of a plan, or its place if it has none."""
    return str(plans.text("name")[row]) or plans.place(row, "name")


def varied(
    table: Table, vary: Lines, of_catalog: bool = False
) -> tuple[Table, dict[str, np.ndarray], tuple[Varied, ...]]:
    """Plans with ``auto``, values of columns, and numbers searched one by one (``of_catalog``: of sheets too)."""
    asked = read_variation(table.kind, vary, "--vary")
    for number in asked.varied:
        if number.shape:
            raise InputError(Fault("--vary", f"{number.column.name}: a search needs values, not a range"))
        if not of_catalog:
            factor = f"factor of {number.name.replace('_', ' ')}"
            refused = factor if number.sheet == table.kind else f"{number.column.name}, of the catalog"
            problem = f"a frontier takes no {refused}; xlperf evaluate --vary and a search without --frontier do"
            raise InputError(Fault("--vary", problem))
    targets = [name for name in asked.values if of_catalog and name in TARGETS.values()]
    alone = [Varied(table.kind, name, asked.values[name], False) for name in targets]
    values = {name: tried for name, tried in asked.values.items() if name not in targets}
    return with_auto(table, asked.auto, "--vary"), values, (*alone, *asked.varied)


class Wanted(NamedTuple):
    """A plan that is searched, the values of its columns, and the numbers that are searched one by one."""

    plan: Table
    values: dict[str, np.ndarray]
    point: Point

    def changed_for(self, catalog: Catalog) -> tuple[Table, Catalog]:
        """The plan with other targets, and the catalog with other values in the rows that the plan or a value names."""
        plan = self.plan
        of_catalog = [(number, value) for number, value in self.point if number.sheet != plan.kind]
        if of_catalog:
            names = {name: column for name, column in self.values.items() if name in (*NAMING, "mode")}
            catalog = changed_catalog(catalog, grid(plan, names), of_catalog)
        for number, value in self.point:
            if number.sheet == plan.kind:
                plan, _ = with_value(plan, catalog, number, value)
        return plan, catalog


def wanted_plans(tables: Sequence[Table], vary: Lines, mapping: bool, source: str) -> list[Wanted]:
    """The rows of plans that leave something to choose. Raises InputError, at ``source``, if there are none."""
    wanted = [varied(table, vary, of_catalog=True) for table in tables]
    if mapping:
        wanted = [(with_mapping(table, values), values, numbers) for table, values, numbers in wanted]
    rows = [
        Wanted(table.take([index]), values, point)
        for table, values, numbers in wanted
        for index in _searched(table, values)
        for point in _points(numbers)
    ]
    if not rows:
        problem = "no cell says auto: write it where a value is to be chosen, or give --mapping or --vary"
        raise InputError(Fault(source, problem))
    return rows


def _points(numbers: Sequence[Varied]) -> Iterator[Point]:
    """Every combination of the values that are searched one by one; one empty combination if none vary."""
    for values in product(*(one.values.tolist() for one in numbers)):
        yield list(zip(numbers, values, strict=True))


def _searched(table: Table, values: dict[str, np.ndarray]) -> list[int]:
    """Rows that there is something to choose in."""
    if values:
        return list(range(len(table)))
    masks = [np.asarray(mask) for mask in table.auto.values()]
    rows: list[int] = np.flatnonzero(np.logical_or.reduce(masks)).tolist() if masks else []
    return rows


class Found(NamedTuple):
    """Results of searches and a line for each."""

    answers: list[Search]
    lines: list[str]
    points: list[Point]  # of each search, the values of columns of the catalog

    @property
    def complete(self) -> bool:
        """Whether every search has a feasible plan."""
        return all(answer.found for answer in self.answers)

    @property
    def sheets(self) -> list[FoundSheet]:
        """The feasible plans of each kind."""
        legal = [pair for pair in zip(self.answers, self.points, strict=True) if pair[0].found]
        kinds = dict.fromkeys(answer.plans.kind for answer, _ in legal)
        return [FoundSheet.of([pair for pair in legal if pair[0].plans.kind == kind]) for kind in kinds]


class FoundSheet(NamedTuple):
    """Feasible plans of one kind, of all searches."""

    first: Search
    plans: Table
    beside: list[Part]  # values of columns of the catalog, and what limits each plan
    results: Table

    @classmethod
    def of(cls, searched: Sequence[tuple[Search, Point]]) -> FoundSheet:
        """The plans of several searches below each other."""
        answers = [answer for answer, _ in searched]
        counts = [len(answer.plans) for answer in answers]
        noted = stacked([with_notes(answer.results, {0: answer.words}) for answer in answers])
        beside: list[Part] = [
            (one.column, np.repeat(one.column.array([point[place][1] for _, point in searched]), counts))
            for place, (one, _) in enumerate(searched[0][1])
        ]
        beside.append((LIMITED_BY, np.concatenate([answer.limited_by for answer in answers])))
        return cls(answers[0], stacked([answer.plans for answer in answers]), beside, noted)

    @property
    def goals(self) -> list[str]:
        """The objectives."""
        return [goal.column.name for goal in (self.first.objective, *self.first.rivals)]

    @property
    def whole(self) -> list[Part]:
        """All columns."""
        return [*parts(self.plans), *self.beside, *parts(self.results)]

    @property
    def shown(self) -> list[Part]:
        """The columns that were searched, and the columns that decide."""
        plans, first = self.plans, self.first
        names = {"name", *first.searched, *(rival.column.name for rival in first.rivals)}
        names |= {target for target in TARGETS.values() if target in plans and len(set(plans[target].tolist())) > 1}
        inputs = [part for part in parts(plans) if part[0].name in names]
        reached = {part[0].name: part for part in parts(self.results)}
        order = dict.fromkeys([*self.goals, *(limit.column.name for limit in first.limits), *SHOWN[plans.kind]])
        return [*inputs, *self.beside[:-1], *(reached[name] for name in order if name in reached), self.beside[-1]]


class Choice(NamedTuple):
    """How the plans of a search are chosen and how many are returned."""

    objectives: Sequence[str]
    limits: Sequence[str]
    top: int | None  # None for all
    probability: float
    processes: int
    bounds: Bounds


def found_plans(rows: Sequence[Wanted], catalog: Catalog, choice: Choice, done: Progress) -> Found:
    """Search each of the rows."""
    kinds = list(dict.fromkeys(row.plan.kind for row in rows))
    probability, top = choice.probability, choice.top
    required = {kind: limits_of(kind, choice.limits, "--limit", probability, owned=True) for kind in kinds}
    for kind in kinds:
        goals = [rival_of(kind, name, "--objective").column.name for name in choice.objectives]
        if len(set(goals)) < len(goals):
            raise InputError(Fault("--objective", "the same result twice: give each once"))
    first, rivals = (*choice.objectives, "")[0], tuple(choice.objectives[1:])
    answers, lines, points = list[Search](), list[str](), list[Point]()
    for row in rows:
        plan, changed = row.changed_for(catalog)
        needed = [*required[plan.kind], *own_targets(plan, probability)]
        answer = search(
            plan, changed, first, needed, row.values, top, done, None, choice.processes, rivals, **choice.bounds
        )
        answers.append(answer)
        points.append([(one, value) for one, value in row.point if one.sheet not in PLAN_TABLES])
        label = ", ".join([plan_name(row.plan), *(one.words(value) for one, value in row.point)])
        lines.append(f"{label}: {answer.words}")
    return Found(answers, lines, points)


class Goal(NamedTuple):
    """The value to solve for: a column of plans, or a number with two ends, and the targets."""

    plans: Table
    column: str  # of the plans; "" with a number
    number: Varied | None
    tried: np.ndarray | None  # values of the column, None for all
    targets: Sequence[str]
    probability: float
    largest: bool

    @property
    def declared(self) -> Column:
        """The column that is solved for."""
        return self.number.column if self.number is not None else self.plans.schema.by_name[self.column]

    def unmoved(self, catalog: Catalog) -> list[str]:
        """A line if the value cannot move the targets."""
        required = limits_of(self.plans.kind, self.targets, "--target", self.probability, owned=True)
        names = [limit.column.name for limit in required]
        if not names or self.plans.auto:
            return []
        values = {} if self.tried is None else {self.column: self.tried}
        numbers = () if self.number is None else (self.number,)
        tried = Sweep(self.plans, catalog, values, numbers, owned=are_owned(self.plans.kind, names))
        return unmoved_words(tried, names)


def solve_goal(
    table: Table,
    vary: Lines,
    targets: Sequence[str],
    autos: Sequence[str],
    mapping: bool,
    largest: bool,
    probability: float,
) -> Goal:
    """Read the value to solve for and its targets."""
    if len(vary) > 1:
        raise OptionError("--target takes one --vary; give columns to choose with it as --with-auto")
    asked = read_variation(table.kind, vary, "--vary")
    if not targets and not any(target in table for target in ("ttft_target", "tpot_target")):
        raise OptionError("give --target, as --target 'tpot<=20', or a ttft target or tpot target in the plans")
    limits_of(table.kind, targets, "--target", probability, owned=True)
    table = with_auto(table, [*autos, *asked.auto], "--with-auto" if autos else "--vary")
    table = with_mapping(table, asked.values) if mapping else table
    number = asked.varied[0] if asked.varied else None
    if number is not None and number.shape not in ("", "uniform"):
        raise InputError(Fault("--vary", f"{number.column.name}: give values, whole numbers or two ends"))
    column = "" if number else next(iter(asked.values), "") or searched_column(table.kind, asked.auto[0], "--vary")
    goal = Goal(table, column, number, asked.values.get(column), targets, probability, largest)
    if goal.declared.kind != "number":
        name = goal.declared.name.replace("_", " ")
        raise InputError(Fault("--vary", f"{name} is no number: there is no least of it"))
    return goal


class Solved(NamedTuple):
    """The solution of each plan and a line for each."""

    goal: Goal
    solutions: list[Solution]
    lines: list[str]

    @property
    def complete(self) -> bool:
        """Whether every plan has a solution."""
        return all(answer.found for answer in self.solutions)

    @property
    def blocks(self) -> tuple[list[Part], list[Part]]:
        """All columns of the solved plans, and the columns that decide; empty if none is solved."""
        solved, goal, kind = [one for one in self.solutions if one.found], self.goal, self.goal.plans.kind
        if not solved:
            return [], []
        number = goal.number
        best, reached = stacked([a.best.plans for a in solved]), stacked([a.best.results for a in solved])
        extra: list[Part] = []
        if number is not None and (number.factors or number.sheet != kind):
            extra = [(number.column, np.array([a.value for a in solved]))]
        named = {"name", goal.column, number.name if number else "", *solved[0].best.searched}
        results = {limit.column.name for limit in solved[0].best.limits} | set(SHOWN[kind])
        shown = [part for part in parts(best) if part[0].name in named] + extra
        shown += [part for part in parts(reached) if part[0].name in results]
        return [*parts(best), *extra, *parts(reached)], shown


def solved_plans(
    goal: Goal, catalog: Catalog, objective: str, processes: int, bounds: Bounds, done: Progress
) -> Solved:
    """Solve for each of the plans."""
    required = limits_of(goal.plans.kind, goal.targets, "--target", goal.probability, owned=True)
    settings = (required, goal.largest, objective, goal.probability)
    effort: Effort = {**bounds, "progress": done, "processes": processes}
    solutions, lines = [], []
    for index in range(len(goal.plans)):
        plan = goal.plans.take([index])
        if goal.number is not None:
            answer = solve_number(plan, catalog, goal.number, *settings, **effort)
        else:
            answer = solve_plan(plan, catalog, goal.column, goal.tried, *settings, **effort)
        solutions.append(answer)
        lines.append(f"{plan_name(plan)}: {_summary(answer, goal)}")
    return Solved(goal, solutions, lines)


def _summary(answer: Solution, goal: Goal) -> str:
    best, column = answer.best, goal.column
    if not answer.found:
        return best.words
    value = (
        goal.number.words(answer.value) if goal.number is not None else (f"{column.replace('_', ' ')} {answer.value:g}")
    )
    keep = f" with {best.kept_words}" if best.limits else ""
    tried = [best.chosen(without=column), best.counts.words if best.counts is not None else "", best.note]
    return "; ".join(filter(None, [f"{value} is the {'largest' if goal.largest else 'least'}{keep}", *tried]))
