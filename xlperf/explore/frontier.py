"""Throughput against interactivity: plans of a grid at every load, and their Pareto frontier.

More requests in flight give an accelerator more tokens per second and each user fewer. No other point of the grid
improves both rates of a frontier point.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, Unpack

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.tables import Progress
from xlperf.explore.candidates import LOADS, NUM_POINTS, Bounds, expanded, load_steps
from xlperf.explore.space import MOST_PLANS, grid

SHOWN = ("tokens_per_second_per_user", "tokens_per_second_per_accelerator", "ttft", "tpot", "running_batch")
"""Default results in a table of a frontier."""
_TARGETS = ("ttft_target", "tpot_target")


class Frontier(NamedTuple):
    """Points and their plans, row by row; from the most tokens per accelerator to the most per user."""

    plans: Table
    results: Table


def loads(plans: Table, catalog: Catalog, num_points: int = NUM_POINTS, most: int = MOST_PLANS) -> Table:
    """Every plan at several numbers of requests in flight, from one per replica to the memory's limit.

    If a plan has targets and one pool, the last load is the largest within the targets.

    ``plans``: inference plans; their own load does not matter. ``num_points``: most loads per plan, in equal ratios.
    ``most``: most plans with their loads. Returns plans with ``concurrency``, without illegal plans and plans that do
    not fit with a single request.
    """
    index, batches, copies = load_steps(plans, catalog, num_points)
    columns = {**plans.columns, **dict.fromkeys(LOADS, np.full(len(plans), np.nan))}
    if len(index) > most:
        problem = f"the grid has {len(index):,} plans with its loads, more than {most:,} (--most of the commands)"
        raise InputError(Fault("", problem))
    loaded = Table(plans.kind, columns, plans.place, plans.auto).take(index)
    return replace(loaded, columns={**loaded.columns, "concurrency": batches * copies})


def points(
    plans: Table,
    catalog: Catalog,
    values: Mapping[str, np.ndarray] | None = None,
    num_points: int = NUM_POINTS,
    progress: Progress | None = None,
    **bounds: Unpack[Bounds],
) -> Frontier:
    """Every plan of a grid at every load, in the order of the grid.

    ``plans``: inference plans; ``auto`` means every legal value. ``values``: columns of the grid, from
    :func:`xlperf.explore.vary.read_values`. A ``concurrency``, ``batch_size`` or ``request_rate`` among them is the
    load; else :func:`loads` chooses it. ``num_points``: loads of each plan if they are chosen. ``progress``: called
    with the number of points of each finished block. Returns plans that are legal, fit and satisfy their
    ``ttft_target`` and ``tpot_target``. Raises InputError for training plans, for too large a grid, or as
    :func:`xlperf.engine.evaluate`.
    """
    if plans.kind != "inference":
        raise InputError(Fault("", f"these are {plans.kind} plans; a frontier needs inference plans"))
    values = values or {}
    given = [name for name in LOADS if name in values]
    plans = table = expanded(plans, catalog, {*LOADS, *values}, 1 if given else num_points, **bounds)
    if given:  # a load of the grid replaces the plan's own
        blank = np.full(len(plans), np.nan)
        table = Table(plans.kind, {**plans.columns, **dict.fromkeys(LOADS, blank)}, plans.place, plans.auto)
    most = bounds.get("most", MOST_PLANS)
    table = grid(table, values, most)
    if not given:
        table = loads(table, catalog, num_points, most)
    quiet = {name: np.full(len(table), np.nan) for name in _TARGETS}
    results = evaluate(replace(table, columns={**table.columns, **quiet}), catalog, progress)
    good = (results.number("fits") == 1.0) & np.isfinite(results.number("tokens_per_second_per_user"))
    for result, target in zip(("ttft", "tpot"), _TARGETS, strict=True):
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
    """Pareto frontier of a grid: tokens per second of each accelerator against tokens per second of each user.

    Plans compete if they serve one model with equal prompt and output lengths. Each group is ordered from the most
    tokens per second and accelerator to the most per user; its first point is the largest throughput under the targets.

    The parameters are the same as for :func:`points`. Raises InputError as :func:`points`.
    """
    every = points(plans, catalog, values, num_points, progress, **bounds)
    rows = [group[unbeaten(every.results.take(group))] for group in _rivals(every.plans, catalog)]
    index = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
    return Frontier(every.plans.take(index), every.results.take(index))


def _rivals(plans: Table, catalog: Catalog) -> list[np.ndarray]:
    """Rows that serve the same model with the same lengths, in the order of the first of each."""
    models = catalog.rows("models", plans.text("model"), plans, "model").tolist()
    lengths = zip(plans.number("prompt_length").tolist(), plans.number("output_length").tolist(), strict=True)
    groups: dict[object, list[int]] = {}
    for row, work in enumerate(zip(models, lengths, strict=True)):
        groups.setdefault(work, []).append(row)
    return [np.array(rows, dtype=np.int64) for rows in groups.values()]


def distinguishing_columns(result: Frontier, values: Mapping[str, np.ndarray], named: bool) -> list[str]:
    """Columns of the plans that distinguish the points of a frontier, in sheet order.

    ``result``: the points. ``values``: columns of the grid. ``named``: whether the names of the plans differ.
    """
    several = [
        name
        for name in ("model", "prompt_length", "output_length")
        if name in result.plans and len(set(result.plans[name].tolist())) > 1
    ]
    wanted = {*several, *values, "concurrency", *(("name",) if named else ())}
    return [name for name in result.plans.columns if name in wanted]


def unbeaten(results: Table) -> np.ndarray:
    """Pareto-optimal rows of tokens per second of each user and of each accelerator.

    ``results``: of inference plans, all finite. From the most tokens per second and accelerator to the most per user;
    the first of equal points counts.
    """
    user, accelerator = (results.number(f"tokens_per_second_per_{word}") for word in ("user", "accelerator"))
    return pareto_rows(-user, -accelerator)[::-1]


def pareto_rows(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Pareto-optimal rows of two quantities to be minimised; the smallest first quantity first.

    ``first``, ``second``: the quantities, (rows,); NaN rows are left out. Returns row indexes.

    >>> pareto_rows(np.array([1.0, 2.0, 3.0, 2.5]), np.array([9.0, 5.0, 6.0, 4.0]))
    array([0, 1, 3])
    """
    rows = np.flatnonzero(np.isfinite(first) & np.isfinite(second))
    rows = rows[np.lexsort((second[rows], first[rows]))]
    best = np.minimum.accumulate(np.concatenate([[np.inf], second[rows]]))[:-1]
    return np.asarray(rows[second[rows] < best])


def unbeaten_rows(losses: np.ndarray) -> np.ndarray:
    """Pareto-optimal rows of any number of quantities to be minimised.

    ``losses``: the quantities, (rows, quantities); rows with NaN are left out. Returns row indexes in their order; of
    equal rows the first.

    >>> unbeaten_rows(np.array([[1.0, 9.0, 1.0], [2.0, 5.0, 1.0], [3.0, 6.0, 1.0], [3.0, 6.0, 0.5], [1.0, 9.0, 1.0]]))
    array([0, 1, 3])
    """
    rows = np.flatnonzero(np.isfinite(losses).all(axis=1))
    rows = rows[np.lexsort((rows, *losses[rows].T[::-1]))]
    results = []
    while len(rows):
        first = rows[0]
        results.append(int(first))
        rows = rows[(losses[rows] < losses[first]).any(axis=1)]
    return np.sort(np.array(results, dtype=np.int64))
