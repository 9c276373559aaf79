"""Sweeps and frontiers: plans with all combinations of values, samples or loads; columns without effect."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import NamedTuple, Unpack

import numpy as np

from xlperf import __version__
from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import Column, shown_columns, unit_of
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.tables import Progress
from xlperf.explore.candidates import LOADS, NUM_POINTS, Bounds, expanded, load_steps
from xlperf.explore.changed_catalogs import changed_catalog, multiplied, row_catalog, unmarked
from xlperf.explore.objectives import TARGETS, Limit, Objective, names_of_owners, pareto_rows, with_owned
from xlperf.explore.search import evaluate_resolved, has_auto, resolve, stacked
from xlperf.explore.space import MOST_PLANS, grid
from xlperf.explore.vary import CALIBRATION, NAMING, Sampling, Varied, picked, uniforms
from xlperf.explore.workers import worked

SHOWN = shown_columns("inference_results", "frontier")  # default results in a table of a frontier


class Frontier(NamedTuple):
    """Points and their plans, row by row; from the most tokens per accelerator to the most per user."""

    plans: Table
    results: Table


def loads(plans: Table, catalog: Catalog, num_points: int = NUM_POINTS, most: int = MOST_PLANS) -> Table:
    """Every inference plan at up to ``num_points`` loads, in equal ratios up to the memory's or targets' limit."""
    index, batches, copies = load_steps(plans, catalog, num_points)
    if len(index) > most:
        problem = f"the grid has {len(index):,} plans with its loads, more than {most:,} (--most of the commands)"
        raise InputError(Fault("", problem))
    return _without_load(plans).take(index).with_columns({"concurrency": batches * copies})


def _without_load(plans: Table) -> Table:
    return plans.with_columns(dict.fromkeys(LOADS, np.full(len(plans), np.nan)))


def points(
    plans: Table,
    catalog: Catalog,
    values: Mapping[str, np.ndarray] | None = None,
    num_points: int = NUM_POINTS,
    progress: Progress | None = None,
    **bounds: Unpack[Bounds],
) -> Frontier:
    """Every inference plan of a grid at every load that is legal, fits and satisfies its targets, in the order of the
    grid; ``auto`` means every legal value.

    ``values``: columns of the grid. A ``concurrency``, ``batch_size`` or ``request_rate`` among them is the load; else
    :func:`loads` chooses ``num_points`` of each plan.
    """
    if plans.kind != "inference":
        raise InputError(Fault("", f"these are {plans.kind} plans; a frontier needs inference plans"))
    values = values or {}
    given = [name for name in LOADS if name in values]
    table = expanded(plans, catalog, {*LOADS, *values}, 1 if given else num_points, **bounds)
    most = bounds.get("most", MOST_PLANS)
    table = grid(_without_load(table) if given else table, values, most)  # a load of the grid replaces the plan's own
    if not given:
        table = loads(table, catalog, num_points, most)
    quiet = table.with_columns(dict.fromkeys(TARGETS.values(), np.full(len(table), np.nan)))
    results = evaluate(quiet, catalog, progress)
    good = (results.number("fits") == 1.0) & np.isfinite(results.number("tokens_per_second_per_user"))
    for result, target in TARGETS.items():
        good &= ~(results.number(result) > table.number(target))
    rows = np.flatnonzero(good)
    return Frontier(table.take(rows), results.take(rows))


def frontier(
    plans: Table,
    catalog: Catalog,
    values: Mapping[str, np.ndarray] | None = None,
    num_points: int = NUM_POINTS,
    progress: Progress | None = None,
    **bounds: Unpack[Bounds],
) -> Frontier:
    """Pareto frontier of :func:`points`: tokens per second of each accelerator against tokens per second of each user.

    Plans compete if they serve one model with equal prompt and output lengths. Each group is ordered from the most
    tokens per second and accelerator to the most per user; its first point is the largest throughput under the targets.
    """
    every = points(plans, catalog, values, num_points, progress, **bounds)
    models = catalog.rows("models", every.plans.text("model"), every.plans, "model")
    lengths = (every.plans.number(name) for name in ("prompt_length", "output_length"))
    groups: dict[object, list[int]] = {}
    for row, work in enumerate(zip(*(values.tolist() for values in (models, *lengths)), strict=True)):
        groups.setdefault(work, []).append(row)
    rows = [np.array(group)[unbeaten(every.results.take(group))] for group in groups.values()]
    index = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
    return Frontier(every.plans.take(index), every.results.take(index))


def distinguishing_columns(result: Frontier, values: Mapping[str, np.ndarray], named: bool) -> list[str]:
    """Columns of the plans that distinguish the points of a frontier, among them ``values`` of the grid."""
    several = [
        name
        for name in ("model", "prompt_length", "output_length")
        if name in result.plans and len(set(result.plans[name].tolist())) > 1
    ]
    wanted = {*several, *values, "concurrency", *(("name",) if named else ())}
    return [name for name in result.plans.columns if name in wanted]


def unbeaten(results: Table) -> np.ndarray:
    """Pareto-optimal rows of inference results, from the most token/s per accelerator to the most per user."""
    user, accelerator = (results.number(f"tokens_per_second_per_{word}") for word in ("user", "accelerator"))
    return pareto_rows(-user, -accelerator)[::-1]


BLOCK = 32_768  # plans of a block [-]


class Swept(NamedTuple):
    """Plans with their results, and the catalog values of each."""

    plans: Table  # of the first combination of catalog values, then of the second ...
    results: Table
    varied: list[tuple[Column, Array]]  # values or factors of the columns of the catalog, one per row


def _is_separate(varied: Varied) -> bool:
    """Whether plans with different values need separate catalogs instead of private rows in one."""
    return varied.sheet == CALIBRATION or varied.is_text


@dataclass(frozen=True)
class Sweep:
    """A sweep, evaluated block by block on demand."""

    plans: Table  # each combination chooses their ``auto`` cells anew
    catalog: Catalog
    values: Mapping[str, np.ndarray]  # columns of the plans
    varied: tuple[Varied, ...] = ()  # columns of the catalog, changed in the rows that the plans name
    sampling: Sampling | None = None  # draws of each plan in place of all combinations
    bounds: Bounds = field(default_factory=Bounds)
    owned: bool = False  # whether ownership results are included

    def __len__(self) -> int:
        return prod(self._shape)

    @cached_property
    def _shape(self) -> tuple[int, ...]:
        """Number of values of each varied column, the fastest-changing last."""
        if self.sampling is not None:
            return len(self.plans), self.sampling.number
        points = [len(varied.values) for varied in self.varied]
        return *points, len(self.plans), *(len(column) for column in self.values.values())

    @property
    def num_blocks(self) -> int:
        """Blocks of :data:`BLOCK` plans, the last one shorter."""
        return -(-len(self) // BLOCK)

    @cached_property
    def fingerprint(self) -> str:
        """Short hash of all inputs of the rows: sweeps with the same hash have the same blocks."""
        digest = hashlib.sha256(f"{__version__} {BLOCK} {self.catalog.fingerprint} {self.bounds} ".encode())
        digest.update(b"owned" * self.owned)
        varied = [(v.sheet, v.name, v.factors, v.shape, v.values.tolist()) for v in self.varied]
        digest.update(repr((self.sampling, varied)).encode())
        columns = {**self.plans.columns, **{f"vary {name}": values for name, values in self.values.items()}}
        for name, values in (*columns.items(), *self.plans.auto.items()):
            digest.update(repr((name, values.tolist())).encode())
        return digest.hexdigest()[:16]

    def rows(self, index: np.ndarray) -> tuple[Table, list[tuple[Varied, Array]]]:
        """Some of the plans, by their numbers, and the catalog values of each."""
        if self.sampling is not None:
            plan, draw = np.divmod(index, self.sampling.number)
            return self.at(plan, [uniforms(self.sampling, place, draw) for place in range(self.num_inputs)])
        where = np.unravel_index(index, self._shape)
        points, plan, chosen = where[: len(self.varied)], where[len(self.varied)], where[len(self.varied) + 1 :]
        numbers = [varied.values[place] for varied, place in zip(self.varied, points, strict=True)]
        values = [column[place] for column, place in zip(self.values.values(), chosen, strict=True)]
        return self._spread(plan, values, numbers)

    @property
    def num_inputs(self) -> int:
        """Number of varied columns: columns with values, then columns with a distribution or of the catalog."""
        return len(self.values) + len(self.varied)

    def at(self, plan: np.ndarray, shares: Sequence[Array] | Array) -> tuple[Table, list[tuple[Varied, Array]]]:
        """Plans, by row, with inputs at quantiles of their distributions, and the matching catalog values."""
        values = [picked(column, share) for column, share in zip(self.values.values(), shares, strict=False)]
        numbers = [varied.drawn(share) for varied, share in zip(self.varied, shares[len(self.values) :], strict=True)]
        return self._spread(plan, values, numbers)

    def _spread(
        self, plan: np.ndarray, values: Sequence[np.ndarray], numbers: Sequence[Array]
    ) -> tuple[Table, list[tuple[Varied, Array]]]:
        spread, kind = self.plans.take(plan), self.plans.kind
        changes = list(zip(self.varied, numbers, strict=True))
        of_plans = {varied.name: multiplied(spread, varied, drawn) for varied, drawn in changes if varied.sheet == kind}
        table = spread.with_columns(dict(zip(self.values, values, strict=True)))
        table = replace(table, columns={**table.columns, **of_plans}, own={}).in_order()
        return table, [(varied, drawn) for varied, drawn in changes if varied.sheet != kind]

    def block(self, number: int, progress: Progress | None = None) -> Swept:
        """Plans of a block with their results."""
        start = number * BLOCK
        return self.evaluated(*self.rows(np.arange(start, min(start + BLOCK, len(self)))), progress)

    def evaluated(self, table: Table, changes: list[tuple[Varied, Array]], progress: Progress | None = None) -> Swept:
        """Plans with their results, each under its own values of catalog columns."""
        separate = [(varied, values) for varied, values in changes if _is_separate(varied)]
        if separate:
            return self._apart(table, changes, separate, progress)
        catalog, marked = row_catalog(self.catalog, table, changes, self.owned)
        resolved, results = evaluate_resolved(marked, catalog, progress, **self.bounds)
        results = with_owned(resolved, results, catalog) if self.owned else results
        if changes:
            names = {name: table[name] for name in NAMING if name in table}
            stated = {name: values for name, values in resolved.columns.items() if name in table}
            resolved, results = replace(resolved, columns={**stated, **names}), unmarked(results)
        return Swept(resolved, results, [(varied.column, values) for varied, values in changes])

    def _apart(
        self,
        table: Table,
        changes: list[tuple[Varied, Array]],
        separate: list[tuple[Varied, Array]],
        progress: Progress | None,
    ) -> Swept:
        """As :meth:`evaluated` if constants or words of sheets vary: one catalog for rows with equal values."""
        each = [np.unique(v.astype(str) if varied.is_text else v, return_inverse=True)[1] for varied, v in separate]
        _, first, codes = np.unique(np.array(each), axis=1, return_index=True, return_inverse=True)
        codes = codes.reshape(-1)
        common = [(varied, values) for varied, values in changes if not _is_separate(varied)]
        pieces, order = [], np.argsort(codes, kind="stable")
        for code, row in enumerate(first.tolist()):
            rows = np.flatnonzero(codes == code)
            values_of_row = [(varied, values[row]) for varied, values in separate]
            known = replace(self, catalog=changed_catalog(self.catalog, table.take(rows), values_of_row))
            pieces.append(
                known.evaluated(table.take(rows), [(varied, values[rows]) for varied, values in common], progress)
            )
        back, plans, results = np.argsort(order), [one.plans for one in pieces], [one.results for one in pieces]
        varied_columns = [(varied.column, values) for varied, values in changes]
        return Swept(stacked(plans).take(back), stacked(results).take(back), varied_columns)


def sweep(wanted: Sweep, progress: Progress | None = None, most: int = MOST_PLANS) -> Swept:
    """Evaluate a whole sweep in memory: one row per plan and combination or draw; InputError for more than ``most``."""
    if len(wanted) > most:
        problem = f"the sweep has {len(wanted):,} plans, more than {most:,} here"
        raise InputError(Fault("", f"{problem}; -o FILE.parquet or .csv takes any number"))
    return joined([wanted.block(number, progress) for number in range(wanted.num_blocks)])


def joined(blocks: Sequence[Swept]) -> Swept:
    """Rows of several parts of a sweep, one part below the other."""
    varied = [
        (column, np.concatenate([block.varied[place][1] for block in blocks]))
        for place, (column, _) in enumerate(blocks[0].varied)
    ]
    return Swept(stacked([block.plans for block in blocks]), stacked([block.results for block in blocks]), varied)


class Best(NamedTuple):
    """The best rows of a sweep among the rows that fit and satisfy limits."""

    sweep: Sweep
    objective: Objective
    limits: tuple[Limit, ...]
    number: int  # most rows [-]

    def of_block(self, number: int) -> Swept:
        """The best rows of a block."""
        return self.of(self.sweep.block(number))

    def of(self, swept: Swept) -> Swept:
        """The best of some rows, in order; the first of equal rows counts."""
        loss = self.objective.loss(swept.results, swept.plans)
        good = (swept.results.number("fits") == 1.0) & ~np.isnan(loss)
        for limit in self.limits:
            good &= limit.kept(swept.results)
        rows = np.flatnonzero(good)
        rows = rows[np.argsort(loss[rows], kind="stable")][: self.number]
        varied = [(column, values[rows]) for column, values in swept.varied]
        return Swept(swept.plans.take(rows), swept.results.take(rows), varied)


def best_rows(
    wanted: Best, processes: int = 1, scheduler: str | None = None, progress: Progress | None = None
) -> Swept:
    """The best rows of a sweep of any length, by processes or the workers of a Dask scheduler."""
    result: Swept | None = None
    blocks = worked(wanted.of_block, range(wanted.sweep.num_blocks), processes, scheduler)
    for number, block in enumerate(blocks):
        result = block if result is None else wanted.of(joined([result, block]))
        if progress is not None:
            progress(min(BLOCK, len(wanted.sweep) - number * BLOCK))
    assert result is not None
    return result


_ROWS = 64  # trial rows of a sweep, from end to end [-]
_AUTO_ROWS = 2  # trial rows whose mappings are chosen anew [-]
_FAR = 1e3  # factor of the change beyond the values of a number, both ways [-]
Changes = list[tuple[Varied, Array]]


def unmoved_words(wanted: Sweep, names: Sequence[str]) -> list[str]:
    """A line for each column of a sweep that has no effect on the requested results, or on any without names.

    A result that does not respond to the values of a column may have another bottleneck. A result that does not respond
    to a thousandfold change both ways, on rows from the whole sweep, does not depend on the column. Columns that name
    rows of sheets, and results that no row has, are not judged.
    """
    rows = np.unique(np.linspace(0, len(wanted) - 1, _ROWS).astype(np.int64))
    auto = has_auto(wanted.plans)
    inputs: list[str | Varied] = [*wanted.values, *wanted.varied]
    lines = []
    for varied in inputs:
        try:
            if _moves(wanted, varied, rows, names, not auto) or (
                auto and _moves(wanted, varied, rows[:: max(len(rows) // _AUTO_ROWS, 1)], names, True)
            ):
                continue
            owned = [f"owned_{name}" for name in names if f"owned_{name}" in names_of_owners(wanted.plans.kind)]
            moved = bool(owned) and _moves(replace(wanted, owned=True), varied, rows, owned, not auto)
        except InputError:  # too large a change: the sweep itself reports the fault
            continue
        shown = " or ".join(name.replace("_", " ") for name in names) or "any result"
        instead = f"; {' or '.join(name.replace('_', ' ') for name in owned)} moves with it" if moved else ""
        label = varied if isinstance(varied, str) else varied.column.name
        words = f"{label.replace('_', ' ')} cannot move {shown} of these plans: it has no part in it"
        lines.append(f"{words}{_basis(wanted, rows, names)}{instead}")
    return lines


def _basis(wanted: Sweep, rows: np.ndarray, names: Sequence[str]) -> str:
    """How the plans of a sweep are paid, if a cost is among the results; "" if mixed or unknown."""
    if not any("cost" in name and not name.startswith("owned_") for name in names) or has_auto(wanted.plans):
        return ""
    bases = set(wanted.evaluated(*wanted.rows(rows[:1])).results["cost_basis"].tolist())
    return f" (cost basis: {bases.pop()})" if len(bases) == 1 and "" not in bases else ""


def _moves(wanted: Sweep, varied: str | Varied, rows: np.ndarray, names: Sequence[str], whole: bool) -> bool:
    """Whether any of some results responds to a column, or is in no row; ``whole``: ``auto`` cells are chosen anew."""
    table, changes = wanted.rows(rows)
    if not whole:
        table = resolve(table.take([0]), wanted.catalog, **wanted.bounds).plans
        changes = [(varied, values[:1]) for varied, values in changes]
    before = wanted.evaluated(table, changes).results
    asked = [name for name in names or before.columns if name in before and before[name].dtype != object]
    first = {name: before.number(name) for name in asked}
    if not any(np.isfinite(values).any() for values in first.values()):
        return True
    probes = list(_probes(wanted, varied))
    for value in probes:
        after = wanted.evaluated(*_changed(table, changes, varied, value)).results
        if any(not np.array_equal(values, after.number(name), equal_nan=True) for name, values in first.items()):
            return True
    return not probes


def _changed(table: Table, changes: Changes, varied: str | Varied, value: float | str) -> tuple[Table, Changes]:
    """Rows of a sweep with one value of a column in all of them."""
    if not isinstance(varied, str) and varied.sheet != table.kind:
        changed = [
            (v, np.full(len(table), value, dtype=values.dtype) if v is varied else values) for v, values in changes
        ]
        return table, changed
    name = varied if isinstance(varied, str) else varied.name
    values = table.schema.by_name[name].array([value] * len(table))
    return table.with_columns({name: values}).in_order(), changes


def _probes(wanted: Sweep, varied: str | Varied) -> Iterator[float | str]:
    """Values of a column that show whether it moves a result: its ends and numbers far beyond, or its choices."""
    values = wanted.values[varied] if isinstance(varied, str) else varied.values
    column = wanted.plans.schema.by_name[varied] if isinstance(varied, str) else varied.declared
    if column.kind in ("choice", "flag"):
        yield from column.choices or (0.0, 1.0)
    elif column.kind == "number":
        free = not isinstance(varied, str) and (varied.factors or varied.sheet == CALIBRATION)
        low, high, excluded = (0.0, float("inf"), True) if free else column.limits
        unit = unit_of(column).factor
        least, most = float(values.min()), float(values.max())
        below = max(least / _FAR, low * unit)
        yield from (least, most)
        if not (excluded and below == low * unit):
            yield below
        yield min(max(most, unit * 1e-3) * _FAR, high * unit)
