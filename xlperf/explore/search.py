"""Exhaustive search: evaluates every candidate of a plan and returns the best; plans without ``auto``."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import NamedTuple, Unpack
from weakref import WeakKeyDictionary

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError, raise_faults
from xlperf.catalog.catalog import Catalog, part_of
from xlperf.catalog.schema import PLAN_TABLES, shown_columns
from xlperf.catalog.table import Table, nowhere, place_of_row
from xlperf.catalog.table import stacked as rows_below
from xlperf.engine import evaluate
from xlperf.engine.tables import Progress, fitting, numbers
from xlperf.explore import objectives
from xlperf.explore.candidates import (
    MOST_CANDIDATES,
    Bounds,
    Candidates,
    auto_faults,
    by_bounds,
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
from xlperf.explore.space import Part, TooMany
from xlperf.explore.workers import worked

SHOWN = {kind: shown_columns(f"{kind}_results", "search") for kind in PLAN_TABLES}
"""Results in a table of a search, beside its objective and limits."""
BLOCK = 65_536
FIRST = 4096  # plans with the best bounds, evaluated before those that they may beat [-]
MEMORY_FIRST = 1024  # number of plans from which the search evaluates memory before the other results [-]
REFINED = 256  # best plans that get uneven virtual-pipeline chunks after a search over equal chunks [-]
_EVEN = f"virtual pipeline: chunks of equal size, and all that are legal for the best {REFINED} plans"
WIDTHS = (1.5, 1.03)  # ratios of successive refinements around the load of a good plan [-]
COARSE = 0.02  # relative loss over the best plan up to which plans get a finer load [-]
_PREDICTED = objectives.Limit._field_defaults["probability"]
PARTS = [Part(number, 16) for number in range(16)]  # parts of a large space that processes share


class Effort(Bounds, total=False):
    """Bounds of a search, the processes that share a large space, and what counts the plans of finished blocks."""

    progress: Progress | None
    processes: int


class _Keys(NamedTuple):
    """Sort keys of rows: kind, leading column, loss or distance to the limits, memory; and the row number."""

    kind: np.ndarray
    lead: Array
    loss: Array
    memory: Array
    number: np.ndarray

    @property
    def num_good(self) -> int:
        return int((self.kind == objectives.GOOD).sum())

    def best(self, top: int | None) -> np.ndarray:
        """The best feasible rows in order, at most ``top``; without any the nearest one."""
        order = np.lexsort((self.number, self.memory, self.loss, self.lead, self.kind))
        return order[: max(self.num_good if top is None else min(self.num_good, top), 1)]

    def take(self, rows: np.ndarray) -> _Keys:
        return _Keys(*(values[rows] for values in self))


def search(
    plan: Table, catalog: Catalog, objective: str = "", limits: Sequence[objectives.Limit] = (),
    values: Mapping[str, np.ndarray] | None = None, top: int | None = 1, progress: Progress | None = None,
    lead: objectives.Lead | None = None, processes: int = 1, rivals: Sequence[str] = (), **bounds: Unpack[Bounds],
) -> objectives.Search:  # fmt: skip
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
    refused = [name for name in values or {} if name in objectives.TARGETS.values()]
    if refused:
        raise InputError(Fault("", f"{refused[0].replace('_', ' ')} is no choice of a search: search once with each"))
    further = tuple(objectives.rival_of(plan.kind, name) for name in rivals)
    if objectives.is_number_of_accelerators(objective):
        first = next((rival for rival in further if rival.is_result), None)  # orders plans of equal numbers
        if further:
            further = (objectives.rival_of(plan.kind, objective), *(rival for rival in further if rival is not first))
        objective, lead = "" if first is None else first.column.name, (objectives.COUNT, False)
    goal = None if not objective else objectives.objective_of(plan.kind, objective, owned=True)
    targets = (*limits, *own_targets(plan))
    top = None if further else top

    def best(counts: Array | None = None) -> objectives.Search:
        largest = bounds.get("most_accelerators", MOST_ACCELERATORS)
        most = bounds.get("most", MOST_CANDIDATES)
        space = _Space(plan, catalog, values, counts, goal, targets, top, lead, further, largest, limits)
        try:
            whole = candidates(plan, catalog, values, counts, most=most, most_accelerators=largest, limits=limits)
        except TooMany:
            if "most" in bounds:
                raise
            return space.finished(space.joined(_counted(worked(space.best, PARTS, processes), progress)))
        return space.finished(space.best_of([whole], progress))

    result = best()
    while result.counts is not None:
        near = result.counts.between(result.plans[objectives.COUNT] if further else result.plans[objectives.COUNT][:1])
        if result.kind == objectives.ILLEGAL or not len(near):
            break
        result = _joined(result, best(near), top)

    if result.kind != objectives.ILLEGAL and refused_reasons(result.plans.take([0]), catalog)[0]:
        result.refused = stacks_of(result.plans.take([0]))
    place = partial(place_of_row, plan.place, np.zeros(len(result.plans), dtype=np.int64))
    result.plans, result.results = replace(result.plans, place=place), replace(result.results, place=place)
    return result


def _counted(parts: Iterable[objectives.Search], progress: Progress | None) -> Iterator[objectives.Search]:
    for part in parts:
        if progress is not None:
            progress(part.num_tried)
        yield part


class _Aim(NamedTuple):
    """The criteria that order plans."""

    objective: objectives.Objective
    limits: tuple[objectives.Limit, ...] = ()
    lead: objectives.Lead | None = None
    rivals: tuple[objectives.Objective, ...] = ()

    @property
    def goals(self) -> tuple[objectives.Objective, ...]:
        """The objective and its rivals."""
        return self.objective, *self.rivals

    def keys(self, plans: Table, results: Table, rows: np.ndarray) -> _Keys:
        """Sort keys of plans with these numbers."""
        loss = self.objective.loss(results)
        memory = results.number("memory_reserved" if "memory_reserved" in results else "memory")
        # Largest excess over a limit; infinite where there is no result
        excess = np.zeros(len(results))
        for limit in self.limits:
            excess = np.maximum(excess, limit.excess(results))
        bad = np.where(np.isnan(loss), np.inf, excess)
        unfit = [np.isnan(memory), results.number("fits") != 1.0, bad > 0.0]
        kind = np.select(unfit, [objectives.ILLEGAL, objectives.TOO_LARGE, objectives.BEYOND_LIMITS], objectives.GOOD)
        # Good plans by their loss, the others by what they lack
        measure = np.select(
            [kind == objectives.GOOD, kind == objectives.BEYOND_LIMITS, kind == objectives.TOO_LARGE],
            [loss, bad, memory],
            0.0,
        )
        ahead = plans.number(self.lead[0]) if self.lead else np.zeros(len(results))
        ahead = -ahead if self.lead and self.lead[1] else ahead
        return _Keys(kind, np.where(kind == objectives.GOOD, ahead, 0.0), measure, np.nan_to_num(memory), rows)

    def unbeaten(self, plans: Table, results: Table) -> np.ndarray:
        """Rows of the Pareto set of the objective and its rivals."""
        return objectives.unbeaten_rows(np.stack([goal.loss(results, plans) for goal in self.goals], axis=-1))


class _Space(NamedTuple):
    """The candidates of a plan and the criteria of the search; each process that searches a part receives a copy."""

    plan: Table
    catalog: Catalog
    values: Mapping[str, np.ndarray] | None
    counts: Array | None
    goal: objectives.Objective | None
    targets: tuple[objectives.Limit, ...]
    top: int | None
    lead: objectives.Lead | None
    rivals: tuple[objectives.Objective, ...]
    most_accelerators: float
    limits: Sequence[objectives.Limit]

    def best(self, part: Part) -> objectives.Search:
        """The best of a part of the candidates; more plans if uneven chunks follow."""
        stated = self.plan, self.catalog, self.values, self.counts
        return self.best_of(candidate_parts(*stated, part, self.most_accelerators, self.limits))

    def best_of(self, parts: Iterable[Candidates], progress: Progress | None = None) -> objectives.Search:
        """The best of some candidates."""
        return self.joined(
            self.ranked(
                tried,
                self.goal or objectives.default_objective(self.plan, tried.searched),
                self._retained(tried.even),
                progress,
            )
            for tried in parts
        )

    def ranked(
        self, tried: Candidates, objective: objectives.Objective, top: int | None, progress: Progress | None = None
    ) -> objectives.Search:
        """Candidates by the criteria."""
        return ranked(tried, self.catalog, objective, self.targets, top, progress, self.lead, self.rivals)

    def joined(self, parts: Iterable[objectives.Search]) -> objectives.Search:
        """The best of all parts, at least one."""
        return reduce(lambda known, more: _joined(known, more, self._retained(bool(more.note))), parts)

    def _retained(self, refined: bool) -> int | None:
        """Plans that a part returns: more than ``top`` before a refinement."""
        return self.top and (max(self.top, REFINED) if refined or self.load else self.top)

    @property
    def load(self) -> str:
        """The searched load column, "" if the load is given."""
        return open_load(self.plan, self.values or {})

    def finished(self, result: objectives.Search) -> objectives.Search:
        """The best of all parts, after the refinement of uneven chunks or of the load."""
        if self.load and self.top is not None and not self.rivals:
            return self._finer(result)
        if not result.note:
            return result
        more = uneven_chunks(result.plans.take(slice(REFINED)), self.catalog, result.searched)
        if not len(more) or result.kind == objectives.ILLEGAL:
            return result.taken(np.arange(min(len(result.plans), self.top or len(result.plans))))
        uneven = self.ranked(Candidates(more, result.searched), result.objective, self.top)
        return _joined(result, uneven, self.top)

    def _finer(self, searched: objectives.Search) -> objectives.Search:
        """Refine the load of the mappings that are near the best."""
        for width in WIDTHS:
            loss = np.abs(searched.objective.loss(searched.results))
            rows = first_of_each(searched.plans, searched.searched, self.load)
            rows = rows[np.abs(loss[rows] / loss[0] - 1.0) <= COARSE] if searched.found else rows[:0]
            most = searched.results.number("max_batch_size")[rows]
            more = finer_loads(searched.plans.take(rows), self.load, width, most)
            if not len(more):
                break
            finer = self.ranked(Candidates(more, searched.searched, searched.counts), searched.objective, len(more))
            if finer.found:
                finer = finer.taken(first_of_each(finer.plans, searched.searched, self.load))
            searched = _joined(searched, finer, self._retained(False))
        return searched if len(searched.plans) <= (self.top or 0) else searched.taken(np.arange(self.top or 0))


def own_targets(plan: Table, probability: float = _PREDICTED) -> list[objectives.Limit]:
    """A plan's own targets of ttft and tpot as limits on its results, with a probability; none for training."""
    bounds = {name: plan.stated(target) for name, target in objectives.TARGETS.items() if target in plan}
    return [
        objectives.Limit(objectives.objective_of("inference", name).column, "<=", bound, probability)
        for name, bound in bounds.items()
        if bound == bound
    ]


def ranked(
    tried: Candidates, catalog: Catalog, objective: objectives.Objective, limits: Sequence[objectives.Limit] = (),
    top: int | None = 1, progress: Progress | None = None, lead: objectives.Lead | None = None,
    rivals: Sequence[objectives.Objective] = (),
) -> objectives.Search:  # fmt: skip
    """Evaluate candidates and return the best of them; arguments as of :func:`search`."""
    plans, aim = tried.plans, _Aim(objective, objectives.tightest(limits), lead, tuple(rivals))
    names = {goal.column.name for goal in aim.goals if goal.is_result}
    needed = names | {limit.column.name for limit in aim.limits}
    quiet = without_targets(plans, needed)
    owned = objectives.are_owned(plans.kind, needed)
    plain = all(limit.probability == _PREDICTED for limit in aim.limits) and (top is not None or bool(rivals))
    keys: list[_Keys] = []
    parts: list[Table] = []
    counts = np.zeros(4, dtype=np.int64)
    chosen_rows, memory = _fitting_rows(quiet, catalog, counts)
    count = progress or (lambda number: None)
    count(int(counts.sum()))
    bounded = memory is not None and plain and len(chosen_rows) > FIRST and not (aim.limits or rivals or lead)
    chosen_rows, least = by_bounds(plans, catalog, chosen_rows, objective) if bounded else (chosen_rows, None)
    start = 0
    while start < len(chosen_rows):
        end = start + (FIRST if least is not None and not start else BLOCK)
        rows = chosen_rows[start:end]
        if least is not None:
            rows = by_kernels(plans, rows[: np.searchsorted(least[start:end], _loss_to_beat(keys, top), side="right")])
            if not len(rows):  # no further plan is among the best
                counts[objectives.GOOD] += len(chosen_rows) - start
                count(len(chosen_rows) - start)
                break
        start += len(rows)
        block = quiet if memory is None and len(rows) == len(plans) else quiet.take(rows)
        known = None if memory is None else memory[rows]
        sort_keys, results = _evaluated(block, catalog, aim, rows, needed if plain else set(), owned, known)
        count(len(rows))
        counts += np.bincount(sort_keys.kind, minlength=4)
        retained = sort_keys.best(top)
        if rivals and sort_keys.num_good:
            retained = retained[aim.unbeaten(plans.take(rows[retained]), results(retained))]
        keys.append(sort_keys.take(retained))
        parts.append(results(retained))
    every = _Keys(*(np.concatenate(columns) for columns in zip(*keys, strict=True)))
    best = every.best(top)
    if rivals and every.num_good:
        columns = {name: np.concatenate([part[name] for part in parts])[best] for name in names}
        best = best[aim.unbeaten(plans.take(every.number[best]), replace(parts[0], columns=columns))]
    chosen = plans.take(every.number[best])
    if quiet is plans and all("reason" in part for part in parts):
        columns = {name: np.concatenate([part[name] for part in parts])[best] for name in parts[0].columns}
        results_of_best = replace(parts[0], columns=columns, place=chosen.place)
    else:
        results_of_best = objectives.evaluated(chosen, catalog, owned)
    num_good, beyond, _, illegal = counts.tolist()
    return objectives.Search(
        plans=chosen, results=results_of_best, kind=int(every.kind[best[0]]), num_tried=len(plans),
        num_legal=len(plans) - illegal, num_fit=num_good + beyond, num_good=num_good, searched=tried.searched,
        objective=objective, limits=aim.limits, counts=tried.counts, lead=lead, note=_EVEN if tried.even else "",
        rivals=aim.rivals,
    )  # fmt: skip


def _loss_to_beat(keys: Sequence[_Keys], top: int | None) -> float:
    """Loss of the last of the best feasible plans known; infinite if there are fewer."""
    losses = np.sort(np.concatenate([np.zeros(0), *(each.loss[each.kind == objectives.GOOD] for each in keys)]))
    return float(losses[top - 1]) if top and len(losses) >= top else np.inf


def _fitting_rows(plans: Table, catalog: Catalog, counts: np.ndarray) -> tuple[np.ndarray, Array | None]:
    """Rows to evaluate, of training plans those that fit in a fast order, and the reserved memory of all. [B]"""
    every = np.arange(len(plans))
    if plans.kind != "training" or len(plans) < MEMORY_FIRST:
        return every, None
    fits, reserved = fits_of(plans, catalog)
    rows = np.flatnonzero(fits == 1.0)
    if not len(rows):
        return every, None
    counts[objectives.ILLEGAL] += np.count_nonzero(np.isnan(fits))
    counts[objectives.TOO_LARGE] += np.count_nonzero(fits == 0.0)
    return by_kernels(plans, rows), reserved


def _joined(known: objectives.Search, more: objectives.Search, top: int | None) -> objectives.Search:
    """The best of two searches with one objective; the second may have further numbers of accelerators."""
    plans, results = stacked([known.plans, more.plans]), stacked([known.results, more.results])
    aim = _Aim(known.objective, known.limits, known.lead, known.rivals)
    keys = aim.keys(plans, results, np.arange(len(plans)))
    best = keys.best(top)
    if known.rivals and keys.num_good:
        best = best[aim.unbeaten(plans.take(best), results.take(best))]
    return replace(
        known, plans=plans.take(best), results=results.take(best), kind=int(keys.kind[best[0]]),
        num_tried=known.num_tried + more.num_tried, num_legal=known.num_legal + more.num_legal,
        num_fit=known.num_fit + more.num_fit, num_good=known.num_good + more.num_good,
        counts=known.counts.also(more.counts.tried) if known.counts and more.counts else known.counts,
        note=known.note or more.note,
    )  # fmt: skip


def without_targets(plans: Table, needed: set[str]) -> Table:
    """Plans without their targets: the largest load under the targets is slow to compute and not needed here."""
    given = {*objectives.TARGETS.values()} & {*plans.columns}
    if not given or needed & set(objectives.AT_TARGETS):
        return plans
    return replace(plans, columns={name: values for name, values in plans.columns.items() if name not in given})


def _evaluated(
    plans: Table, catalog: Catalog, aim: _Aim, rows: np.ndarray, needed: Collection[str], owned: bool,
    reserved: Array | None,
) -> tuple[_Keys, Callable[[np.ndarray], Table]]:  # fmt: skip
    """Sort keys of plans, and a function that gives the results of some; memory comes first, as most do not fit."""
    memory = fitting(plans, catalog) if reserved is None and len(plans) >= MEMORY_FIRST else None
    if memory is None:
        results = _results(plans, catalog, () if reserved is None else needed, owned, reserved)
        return aim.keys(plans, results, rows), results.take
    # Keys of plans that do not fit: their memory
    fits = np.flatnonzero(memory["fits"] == 1.0)
    known = memory.get("memory_reserved")  # known for training plans that do not fit, but not for inference
    kind = np.where(np.isnan(memory["fits"]), objectives.ILLEGAL, objectives.TOO_LARGE)
    used = np.zeros(len(plans)) if known is None else np.nan_to_num(known)
    keys = _Keys(kind, np.zeros(len(plans)), np.where(kind == objectives.TOO_LARGE, used, 0.0), used, rows)
    if len(fits):
        plans_that_fit = plans.take(fits)
        results = _results(plans_that_fit, catalog, needed, owned, None if known is None else known[fits])
        for values, result in zip(keys, aim.keys(plans_that_fit, results, rows[fits]), strict=True):
            values[fits] = result
    if known is None and (keys.kind == objectives.TOO_LARGE).any() and not (keys.kind < objectives.TOO_LARGE).any():
        results = objectives.evaluated(plans, catalog, owned)  # to find the nearest plan
        return aim.keys(plans, results, rows), results.take
    if not len(fits):
        return keys, lambda chosen: objectives.evaluated(plans.take(chosen), catalog, owned)
    position = np.full(len(plans), -1)
    position[fits] = np.arange(len(fits))

    def results_of(chosen: np.ndarray) -> Table:
        inside = bool((position[chosen] >= 0).all())
        return results.take(position[chosen]) if inside else objectives.evaluated(plans.take(chosen), catalog, owned)

    return keys, results_of


def _results(plans: Table, catalog: Catalog, needed: Collection[str], owned: bool, reserved: Array | None) -> Table:
    """Results of plans that fit; only the needed numbers beside their reserved memory if these are known fast. [B]"""
    result = numbers(plans, catalog, needed) if needed and not owned and reserved is not None else None
    if reserved is None or result is None or not all(name in result for name in needed):
        return objectives.evaluated(plans, catalog, owned)
    known = {"memory_reserved": reserved, "fits": np.ones(len(plans))}
    return replace(result, columns={**known, **result.columns})


def stacked(tables: Sequence[Table]) -> Table:
    """Tables of one kind below each other, without their places."""
    return replace(rows_below(tables), place=nowhere)


class Resolved(NamedTuple):
    """Plans without ``auto``, with the same rows and places, and for each searched row a note on the choice."""

    plans: Table
    notes: dict[int, str]


def has_auto(plans: Table) -> bool:
    """Whether any cell is ``auto``."""
    return any(mask.any() for mask in plans.auto.values())


def resolve(plans: Table, catalog: Catalog, progress: Progress | None = None, **bounds: Unpack[Bounds]) -> Resolved:
    """Replace every ``auto`` by the best value.

    :func:`xlperf.explore.search.search` runs on each row without an objective; rows that differ only in name share one
    search. If no plan fits, the plan with the least memory replaces the row; if none satisfies its targets, the nearest
    one; if none is legal, the plan with its defaults.
    """
    if not has_auto(plans):
        return Resolved(plans, {})
    faults = auto_faults(plans)
    raise_faults(faults)
    rows = np.flatnonzero(np.logical_or.reduce(list(plans.auto.values()))).tolist()
    columns = dict(plans.columns)
    notes: dict[int, str] = {}
    for row in rows:
        plan = plans.take([row])
        try:
            result = _best(plan, catalog, **bounds)
        except InputError as error:
            faults += error.faults
            continue
        words = result.words if result.kind == objectives.ILLEGAL else f"{result.chosen_words}: {result.words}"
        notes[row] = f"auto: {words}"
        for name in result.searched:
            values = result.plans.columns.get(name)
            if values is not None:
                columns[name] = columns[name].copy()
                columns[name][row] = values[0]
        if progress is not None:
            progress(1)
    raise_faults(faults)
    return Resolved(replace(plans, columns=columns, auto={}), notes)


_CACHE_SIZE = 1024
_known: WeakKeyDictionary[Catalog, OrderedDict[object, objectives.Search]] = WeakKeyDictionary()


def _best(plan: Table, catalog: Catalog, **bounds: Unpack[Bounds]) -> objectives.Search:
    """Cached search of one plan, by its values except the name and by the catalog rows that it references."""
    part = part_of(catalog, plan)
    values = tuple((name, str(column[0])) for name, column in plan.columns.items() if name != "name")
    key = plan.kind, values, tuple(name for name, mask in plan.auto.items() if mask[0]), tuple(sorted(bounds.items()))
    cached = _known.setdefault(part, OrderedDict())
    if key not in cached:
        cached[key] = search(plan, part, **bounds)
    cached.move_to_end(key)
    while len(cached) > _CACHE_SIZE:
        cached.popitem(last=False)
    return cached[key]


def evaluate_resolved(
    plans: Table, catalog: Catalog, progress: Progress | None = None, **bounds: Unpack[Bounds]
) -> tuple[Table, Table]:
    """Plans with every ``auto`` chosen, and their results, whose reasons state the choice."""
    resolved = resolve(plans, catalog, **bounds)
    results = evaluate(resolved.plans, catalog, progress)
    return resolved.plans, with_notes(results, resolved.notes)


def with_notes(results: Table, notes: Mapping[int, str]) -> Table:
    """Results whose reasons begin with the notes of :class:`Resolved`."""
    if not notes:
        return results
    reason = results["reason"].copy()
    for row, note in notes.items():
        reason[row] = f"{note}; {reason[row]}" if reason[row] else note
    return replace(results, columns={**results.columns, "reason": reason})
