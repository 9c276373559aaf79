"""Exhaustive search: evaluates every candidate of a plan and returns the best."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Unpack

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import PLAN_TABLES, shown_columns
from xlperf.catalog.table import Table, place_of_row
from xlperf.engine.tables import Progress, fitting, numbers
from xlperf.explore.candidates import (
    MOST_CANDIDATES,
    Bounds,
    Candidates,
    by_kernels,
    candidate_parts,
    candidates,
    finer_loads,
    first_of_each,
    fits_of,
    open_load,
    uneven_chunks,
)
from xlperf.explore.mappings import MOST_ACCELERATORS, refused_reasons, stacks_of
from xlperf.explore.objectives import (
    AT_TARGETS,
    BEYOND_LIMITS,
    COUNT,
    GOOD,
    ILLEGAL,
    TARGETS,
    TOO_LARGE,
    Lead,
    Limit,
    Objective,
    Search,
    are_owned,
    default_objective,
    evaluated,
    is_number_of_accelerators,
    objective_of,
    rival_of,
    tightest,
    unbeaten_rows,
)
from xlperf.explore.space import Part, TooMany
from xlperf.explore.workers import worked

SHOWN = {kind: shown_columns(f"{kind}_results", "search") for kind in PLAN_TABLES}
"""Results in a table of a search, beside its objective and limits."""
BLOCK = 65_536
MEMORY_FIRST = 1024  # number of plans from which the search evaluates memory before the other results [-]
REFINED = 256  # best plans that get uneven virtual-pipeline chunks after a search over equal chunks [-]
_EVEN = f"virtual pipeline: chunks of equal size, and all that are legal for the best {REFINED} plans"
WIDTHS = (1.5, 1.03)  # ratios of successive refinements around the load of a good plan [-]
COARSE = 0.02  # relative loss over the best plan up to which plans get a finer load [-]
_PREDICTED = Limit._field_defaults["probability"]
PARTS = [Part(number, 16) for number in range(16)]  # parts of a large space that processes share


class _Keys(NamedTuple):
    """Sort keys of rows: kind, leading column, loss or distance to the limits, memory; and the row number."""

    kind: np.ndarray
    lead: Array
    loss: Array
    memory: Array
    number: np.ndarray

    @property
    def num_good(self) -> int:
        return int((self.kind == GOOD).sum())

    def best(self, top: int | None) -> np.ndarray:
        """The best feasible rows in order, at most ``top``; without any the nearest one."""
        order = np.lexsort((self.number, self.memory, self.loss, self.lead, self.kind))
        return order[: max(self.num_good if top is None else min(self.num_good, top), 1)]

    def take(self, rows: np.ndarray) -> _Keys:
        return _Keys(*(values[rows] for values in self))


def search(
    plan: Table,
    catalog: Catalog,
    objective: str = "",
    limits: Sequence[Limit] = (),
    values: Mapping[str, np.ndarray] | None = None,
    top: int | None = 1,
    progress: Progress | None = None,
    lead: Lead | None = None,
    processes: int = 1,
    rivals: Sequence[str] = (),
    **bounds: Unpack[Bounds],
) -> Search:
    """The best of all candidates of one plan, whose ``auto`` cells the search chooses.

    A plan that fits and satisfies the limits and its own targets (of ttft and tpot) comes before all others; then
    the better objective decides, then less memory, then the order of the candidates: smaller degrees first. If there
    are too many numbers of accelerators, the search tries a thinned list, then all between the neighbours of the best
    (with ``rivals``, of every result).

    - ``objective``: a result, or ``num accelerators`` for the fewest; "" for the default objective.
    - ``values``: values of columns in internal units; they replace ``auto`` or a stated value.
    - ``top``: number of plans to return; None: all feasible ones.
    - ``lead``: a number column of plans that precedes the objective: less is better, or more if True.
    - ``processes``: processes that share a large space; the answer is the same [-].
    - ``rivals``: further objectives: the result is the Pareto set of all.
    """
    refused = [name for name in values or {} if name in TARGETS.values()]
    if refused:
        raise InputError(Fault("", f"{refused[0].replace('_', ' ')} is no choice of a search: search once with each"))
    further = tuple(rival_of(plan.kind, name, owned=True) for name in rivals)
    if is_number_of_accelerators(objective):
        first = next((rival for rival in further if rival.is_result), None)  # orders plans of equal numbers
        if further:
            further = (rival_of(plan.kind, objective, owned=True), *(rival for rival in further if rival is not first))
        objective, lead = "" if first is None else first.column.name, (COUNT, False)
    goal = None if not objective else objective_of(plan.kind, objective, owned=True)
    targets = (*limits, *own_targets(plan))
    top = None if further else top

    def best(counts: Array | None = None) -> Search:
        largest = bounds.get("most_accelerators", MOST_ACCELERATORS)
        most = bounds.get("most", MOST_CANDIDATES)
        space = _Space(plan, catalog, values, counts, goal, targets, top, lead, further, largest, limits)
        try:
            whole = candidates(plan, catalog, values, counts, most=most, most_accelerators=largest, limits=limits)
        except TooMany:
            if "most" in bounds:
                raise
            return space.finished(worked(space.best, PARTS, processes), progress)
        return space.finished([space.best_of([whole], progress)])

    result = best()
    while result.counts is not None:
        near = result.counts.between(result.plans[COUNT] if further else result.plans[COUNT][:1])
        if result.kind == ILLEGAL or not len(near):
            break
        result = _joined(result, best(near), top)

    if result.kind != ILLEGAL and refused_reasons(result.plans.take([0]), catalog)[0]:
        result.refused = stacks_of(result.plans.take([0]))
    place = partial(place_of_row, plan.place, np.zeros(len(result.plans), dtype=np.int64))
    result.plans, result.results = replace(result.plans, place=place), replace(result.results, place=place)
    return result


class _Space(NamedTuple):
    """The candidates of a plan and the criteria of the search; each process that searches a part receives a copy."""

    plan: Table
    catalog: Catalog
    values: Mapping[str, np.ndarray] | None
    counts: Array | None
    goal: Objective | None
    targets: tuple[Limit, ...]
    top: int | None
    lead: Lead | None
    rivals: tuple[Objective, ...]
    most_accelerators: float
    limits: Sequence[Limit]

    def best(self, part: Part) -> Search:
        """The best of a part of the candidates; more plans if uneven chunks follow."""
        stated = self.plan, self.catalog, self.values, self.counts
        return self.best_of(candidate_parts(*stated, part, self.most_accelerators, self.limits))

    def best_of(self, parts: Iterable[Candidates], progress: Progress | None = None) -> Search:
        """The best of some candidates."""
        result: Search | None = None
        for tried in parts:
            wanted = self.goal or default_objective(self.plan, tried.searched)
            number = self._num_retained(tried.even)
            best = ranked(tried, self.catalog, wanted, self.targets, number, progress, self.lead, self.rivals)
            result = best if result is None else _joined(result, best, number)
        assert result is not None
        return result

    def _num_retained(self, refined: bool) -> int | None:
        """Plans that a part returns: more than ``top`` before a refinement."""
        return self.top and (max(self.top, REFINED) if refined or self.load else self.top)

    @property
    def load(self) -> str:
        """The searched load column, "" if the load is given."""
        return open_load(self.plan, self.values or {})

    def finished(self, parts: Iterable[Search], progress: Progress | None = None) -> Search:
        """The best of all parts, after the refinement of uneven chunks or of the load."""
        result: Search | None = None
        for best in parts:
            if progress is not None:
                progress(best.num_tried)
            number = self._num_retained(bool(best.note))
            result = best if result is None else _joined(result, best, number)
        assert result is not None
        if self.load and self.top is not None and not self.rivals:
            return self._finer(result)
        if not result.note:
            return result
        more = uneven_chunks(result.plans.take(slice(REFINED)), self.catalog, result.searched)
        if not len(more) or result.kind == ILLEGAL:
            return result.taken(np.arange(min(len(result.plans), self.top or len(result.plans))))
        uneven = Candidates(more, result.searched)
        best = ranked(uneven, self.catalog, result.objective, self.targets, self.top, None, self.lead, self.rivals)
        return _joined(result, best, self.top)

    def _finer(self, searched: Search) -> Search:
        """Refine the load of the mappings that are near the best."""
        for width in WIDTHS:
            loss = np.abs(searched.objective.loss(searched.results))
            rows = first_of_each(searched.plans, searched.searched, self.load)
            rows = rows[np.abs(loss[rows] / loss[0] - 1.0) <= COARSE] if searched.found else rows[:0]
            more = finer_loads(
                searched.plans.take(rows), self.load, width, searched.results.number("max_batch_size")[rows]
            )
            if not len(more):
                break
            tried = Candidates(more, searched.searched, searched.counts)
            finer = ranked(tried, self.catalog, searched.objective, self.targets, len(more), None, self.lead)
            if finer.found:
                finer = finer.taken(first_of_each(finer.plans, searched.searched, self.load))
            searched = _joined(searched, finer, self._num_retained(False))
        return searched if len(searched.plans) <= (self.top or 0) else searched.taken(np.arange(self.top or 0))


def own_targets(plan: Table, probability: float = _PREDICTED) -> list[Limit]:
    """A plan's own targets of ttft and tpot as limits on its results, with a probability; none for training."""
    bounds = {name: float(plan.number(target)[0]) for name, target in TARGETS.items() if target in plan}
    return [
        Limit(objective_of("inference", name).column, "<=", bound, probability)
        for name, bound in bounds.items()
        if bound == bound
    ]


def ranked(
    tried: Candidates,
    catalog: Catalog,
    objective: Objective,
    limits: Sequence[Limit] = (),
    top: int | None = 1,
    progress: Progress | None = None,
    lead: Lead | None = None,
    rivals: Sequence[Objective] = (),
) -> Search:
    """Evaluate candidates and return the best of them; arguments as of :func:`search`."""
    plans, limits = tried.plans, tightest(limits)
    goals = objective, *rivals
    names = {goal.column.name for goal in goals if goal.is_result}
    needed = names | {limit.column.name for limit in limits}
    quiet = without_targets(plans, needed)
    owned = are_owned(plans.kind, needed)
    plain = all(limit.probability == _PREDICTED for limit in limits) and (top is not None or bool(rivals))
    keys: list[_Keys] = []
    parts: list[Table] = []
    counts = np.zeros(4, dtype=np.int64)
    chosen_rows, memory = _fitting_rows(quiet, catalog, counts)
    count = progress or (lambda number: None)
    count(int(counts.sum()))
    for start in range(0, len(chosen_rows), BLOCK):
        rows = chosen_rows[start : start + BLOCK]
        block = quiet if memory is None and len(rows) == len(plans) else quiet.take(rows)
        first = plans.number(lead[0])[rows] if lead else None
        wanted = needed if plain else set()
        known = None if memory is None else memory[rows]
        sort_keys, results = _evaluated(block, catalog, objective, limits, rows, first, lead, wanted, owned, known)
        count(len(rows))
        counts += np.bincount(sort_keys.kind, minlength=4)
        retained = sort_keys.best(top)
        if rivals and sort_keys.num_good:
            retained = retained[unbeaten_rows(_losses(plans.take(rows[retained]), results(retained), goals))]
        keys.append(sort_keys.take(retained))
        parts.append(results(retained))
    every = _Keys(*(np.concatenate(columns) for columns in zip(*keys, strict=True)))
    best = every.best(top)
    if rivals and every.num_good:
        columns = {name: np.concatenate([part[name] for part in parts])[best] for name in names}
        losses = _losses(plans.take(every.number[best]), replace(parts[0], columns=columns), goals)
        best = best[unbeaten_rows(losses)]
    chosen = plans.take(every.number[best])
    if quiet is plans and all("reason" in part for part in parts):
        columns = {name: np.concatenate([part[name] for part in parts])[best] for name in parts[0].columns}
        results_of_best = replace(parts[0], columns=columns, place=chosen.place)
    else:
        results_of_best = evaluated(chosen, catalog, owned)
    return Search(
        plans=chosen,
        results=results_of_best,
        kind=int(every.kind[best[0]]),
        num_tried=len(plans),
        num_legal=len(plans) - int(counts[ILLEGAL]),
        num_fit=int(counts[GOOD] + counts[BEYOND_LIMITS]),
        num_good=int(counts[GOOD]),
        searched=tried.searched,
        objective=objective,
        limits=limits,
        counts=tried.counts,
        lead=lead,
        note=_EVEN if tried.even else "",
        rivals=tuple(rivals),
    )


def _fitting_rows(plans: Table, catalog: Catalog, counts: np.ndarray) -> tuple[np.ndarray, Array | None]:
    """Rows to evaluate and the reserved memory of all: of training plans those that fit, if any do, in a fast order;
    the counts by kind then have the others. [B]
    """
    every = np.arange(len(plans))
    if plans.kind != "training" or len(plans) < MEMORY_FIRST:
        return every, None
    fits, reserved = fits_of(plans, catalog)
    rows = np.flatnonzero(fits == 1.0)
    if not len(rows):
        return every, None
    counts[ILLEGAL] += np.count_nonzero(np.isnan(fits))
    counts[TOO_LARGE] += np.count_nonzero(fits == 0.0)
    return by_kernels(plans, rows), reserved


def _losses(plans: Table, results: Table, objectives: Sequence[Objective]) -> Array:
    """Losses to be minimised, (rows, objectives)."""
    return np.stack([goal.loss(results, plans) for goal in objectives], axis=-1)


def _joined(known: Search, more: Search, top: int | None) -> Search:
    """The best of two searches with one objective; the second may have further numbers of accelerators."""
    plans, results = stacked([known.plans, more.plans]), stacked([known.results, more.results])
    first = plans.number(known.lead[0]) if known.lead else None
    keys = _keys(first, results, known.objective, known.limits, np.arange(len(plans)), known.lead)
    best = keys.best(top)
    if known.rivals and keys.num_good:
        best = best[unbeaten_rows(_losses(plans.take(best), results.take(best), (known.objective, *known.rivals)))]
    counts = known.counts.also(more.counts.tried) if known.counts and more.counts else known.counts
    return replace(
        known,
        plans=plans.take(best),
        results=results.take(best),
        kind=int(keys.kind[best[0]]),
        num_tried=known.num_tried + more.num_tried,
        num_legal=known.num_legal + more.num_legal,
        num_fit=known.num_fit + more.num_fit,
        num_good=known.num_good + more.num_good,
        counts=counts,
        note=known.note or more.note,
    )


def without_targets(plans: Table, needed: set[str]) -> Table:
    """Plans without their targets: the largest load under the targets is slow to compute and not needed here."""
    given = {*TARGETS.values()} & {*plans.columns}
    if not given or needed & set(AT_TARGETS):
        return plans
    return replace(plans, columns={name: values for name, values in plans.columns.items() if name not in given})


def _evaluated(
    plans: Table,
    catalog: Catalog,
    objective: Objective,
    limits: Sequence[Limit],
    rows: np.ndarray,
    first: Array | None,
    lead: Lead | None,
    needed: Collection[str],
    owned: bool,
    reserved: Array | None = None,
) -> tuple[_Keys, Callable[[np.ndarray], Table]]:
    """Sort keys of plans, and a function that gives the results of some of them, or only the needed numbers.

    Memory comes first, and the other results only for plans that fit: most plans of a search do not. ``reserved``: the
    reserved memory of plans that are known to fit. [B]
    """
    memory = fitting(plans, catalog) if reserved is None and len(plans) >= MEMORY_FIRST else None
    if memory is None:
        results = _results(plans, catalog, () if reserved is None else needed, owned, reserved)
        return _keys(first, results, objective, limits, rows, lead), results.take
    fits = np.flatnonzero(memory["fits"] == 1.0)
    known = memory.get("memory_reserved")  # known for training plans that do not fit, but not for inference
    kind = np.where(np.isnan(memory["fits"]), ILLEGAL, TOO_LARGE)
    used = np.zeros(len(plans)) if known is None else np.nan_to_num(known)
    keys = _Keys(kind, np.zeros(len(plans)), np.where(kind == TOO_LARGE, used, 0.0), used, rows)
    if len(fits):
        results = _results(plans.take(fits), catalog, needed, owned, None if known is None else known[fits])
        fit_keys = _keys(None if first is None else first[fits], results, objective, limits, rows[fits], lead)
        for values, result in zip(keys, fit_keys, strict=True):
            values[fits] = result
    if known is None and (keys.kind == TOO_LARGE).any() and not (keys.kind < TOO_LARGE).any():
        results = evaluated(plans, catalog, owned)  # to find the nearest plan
        return _keys(first, results, objective, limits, rows, lead), results.take
    if not len(fits):
        return keys, lambda chosen: evaluated(plans.take(chosen), catalog, owned)
    position = np.full(len(plans), -1)
    position[fits] = np.arange(len(fits))

    def results_of(chosen: np.ndarray) -> Table:
        inside = bool((position[chosen] >= 0).all())
        return results.take(position[chosen]) if inside else evaluated(plans.take(chosen), catalog, owned)

    return keys, results_of


def _results(plans: Table, catalog: Catalog, needed: Collection[str], owned: bool, reserved: Array | None) -> Table:
    """Results of plans that fit; only the needed numbers beside their reserved memory if these are known fast. [B]"""
    result = numbers(plans, catalog, needed) if needed and not owned and reserved is not None else None
    if reserved is None or result is None or not all(name in result for name in needed):
        return evaluated(plans, catalog, owned)
    known = {"memory_reserved": reserved, "fits": np.ones(len(plans))}
    return replace(result, columns={**known, **result.columns})


def _keys(
    first: Array | None,
    results: Table,
    objective: Objective,
    limits: Sequence[Limit],
    rows: np.ndarray,
    lead: Lead | None,
) -> _Keys:
    """Sort keys of rows, from their numbers and the leading column."""
    loss = objective.loss(results)
    memory = results.number("memory_reserved" if "memory_reserved" in results else "memory")
    legal = ~np.isnan(memory)
    fits = results.number("fits") == 1.0
    excess = np.zeros(len(results))
    for limit in limits:
        excess = np.maximum(excess, limit.excess(results))
    bad = np.where(np.isnan(loss), np.inf, excess)
    kind = np.select([~legal, ~fits, bad > 0.0], [ILLEGAL, TOO_LARGE, BEYOND_LIMITS], GOOD)
    measure = np.select([kind == GOOD, kind == BEYOND_LIMITS, kind == TOO_LARGE], [loss, bad, memory], 0.0)
    ahead = np.zeros(len(results)) if first is None or lead is None else np.where(lead[1], -first, first)
    return _Keys(kind, np.where(kind == GOOD, ahead, 0.0), measure, np.nan_to_num(memory), rows)


def stacked(tables: Sequence[Table]) -> Table:
    """Tables of one kind below each other, with columns in the order of the schema and blank where a table has none."""
    columns = {}
    for column in tables[0].schema.columns:
        if any(column.name in table for table in tables):
            read = Table.text if column.is_text else Table.number
            columns[column.name] = np.concatenate([read(table, column.name) for table in tables])
    return Table(tables[0].kind, columns)
