"""Sweeps: every plan with every combination of values, or with random samples of them, in blocks of bounded memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np

from xlperf import __version__
from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import Column, table_schema
from xlperf.catalog.table import Table
from xlperf.engine.tables import Progress
from xlperf.explore.auto import evaluate_resolved
from xlperf.explore.candidates import Bounds
from xlperf.explore.changed_catalogs import changed_catalog, multiplied, row_catalog, unmarked
from xlperf.explore.objectives import Limit, Objective
from xlperf.explore.owned import with_owned
from xlperf.explore.search import stacked
from xlperf.explore.space import MOST_PLANS
from xlperf.explore.vary import CALIBRATION, NAMING, Sampling, Varied, picked, uniforms
from xlperf.explore.workers import worked

BLOCK = 32_768
"""Plans of a block. [-]"""


class Swept(NamedTuple):
    """Plans with their results, and the catalog values of each.

    - ``plans``, ``results``: the plans of the first combination of catalog values, then of the second ...
    - ``varied``: values or factors of the columns of the catalog, one per row.
    """

    plans: Table
    results: Table
    varied: list[tuple[Column, Array]]


def _is_separate(varied: Varied) -> bool:
    """Whether plans with different values need separate catalogs instead of private rows in one."""
    return varied.sheet == CALIBRATION or varied.is_text


@dataclass(frozen=True)
class Sweep:
    """A sweep, evaluated block by block on demand.

    - ``plans``: training or inference plans; each combination chooses their ``auto`` cells anew.
    - ``catalog``: the rows that the plans name.
    - ``values``: columns of the plans, from :func:`xlperf.explore.vary.read_values`.
    - ``varied``: columns of the catalog, changed in the rows that the plans name.
    - ``sampling``: draws of each plan in place of all combinations.
    - ``bounds``: most candidates of a plan, and most accelerators tried for ``auto``.
    - ``owned``: whether ownership results are included.
    """

    plans: Table
    catalog: Catalog
    values: Mapping[str, np.ndarray]
    varied: tuple[Varied, ...] = ()
    sampling: Sampling | None = None
    bounds: Bounds = field(default_factory=Bounds)
    owned: bool = False

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
        digest.update(
            repr(
                (self.sampling, [(v.sheet, v.name, v.factors, v.shape, v.values.tolist()) for v in self.varied])
            ).encode()
        )
        columns = {**self.plans.columns, **{f"vary {name}": values for name, values in self.values.items()}}
        for name, values in columns.items():
            digest.update(repr((name, values.tolist())).encode())
        for name, mask in self.plans.auto.items():
            digest.update(repr((name, mask.tolist())).encode())
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
        spread = self.plans.take(plan)
        columns = {**spread.columns, **dict(zip(self.values, values, strict=True))}
        changes = list(zip(self.varied, numbers, strict=True))
        for varied, drawn in changes:
            if varied.sheet == self.plans.kind:
                columns[varied.name] = multiplied(spread, varied, drawn)
        order = [column.name for column in table_schema(self.plans.kind).columns if column.name in columns]
        auto = {name: mask for name, mask in spread.auto.items() if name not in self.values}
        table = Table(self.plans.kind, {name: columns[name] for name in order}, spread.place, auto)
        return table, [(varied, drawn) for varied, drawn in changes if varied.sheet != self.plans.kind]

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
        """As :meth:`evaluated` if calibration constants or words of sheets vary: one catalog for all rows with equal
        values.
        """
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
        back = np.argsort(order)
        plans, results = (
            stacked([getattr(varied, part) for varied in pieces]).take(back) for part in ("plans", "results")
        )
        return Swept(plans, results, [(varied.column, values) for varied, values in changes])


def sweep(wanted: Sweep, progress: Progress | None = None, most: int = MOST_PLANS) -> Swept:
    """Evaluate a whole sweep in memory: one row per plan and combination or draw, none left out.

    ``progress``: called with the number of plans of each finished block. ``most``: most plans. Raises InputError if
    there are more, and as :func:`xlperf.explore.auto.evaluate_resolved`.
    """
    if len(wanted) > most:
        problem = (
            f"the sweep has {len(wanted):,} plans, more than {most:,} here; -o FILE.parquet or .csv takes any number"
        )
        raise InputError(Fault("", problem))
    return joined([wanted.block(number, progress) for number in range(wanted.num_blocks)])


def joined(blocks: Sequence[Swept]) -> Swept:
    """Rows of several parts of a sweep, one part below the other."""
    varied = [
        (column, np.concatenate([block.varied[place][1] for block in blocks]))
        for place, (column, _) in enumerate(blocks[0].varied)
    ]
    return Swept(stacked([block.plans for block in blocks]), stacked([block.results for block in blocks]), varied)


class Best(NamedTuple):
    """The best rows of a sweep among the rows that fit and satisfy limits.

    - ``sweep``: the sweep.
    - ``objective``: the result to optimise.
    - ``limits``: limits on results.
    - ``number``: most rows [-].
    """

    sweep: Sweep
    objective: Objective
    limits: tuple[Limit, ...]
    number: int

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
    """The best rows of a sweep of any length, in the memory of a few blocks.

    ``processes``: processes that compute; ``scheduler``: address of a Dask scheduler whose workers compute instead.
    ``progress``: called with the number of plans of each finished block.
    """
    result: Swept | None = None
    blocks = worked(wanted.of_block, range(wanted.sweep.num_blocks), processes, scheduler)
    for number, block in enumerate(blocks):
        result = block if result is None else wanted.of(joined([result, block]))
        if progress is not None:
            progress(min(BLOCK, len(wanted.sweep) - number * BLOCK))
    assert result is not None
    return result
