"""Throughput against interactivity: plans of a grid at every load, and their Pareto frontier.

More requests in flight give an accelerator more tokens per second and each user fewer. No other point of the grid
improves both rates of a frontier point.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Unpack

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import shown_columns
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.tables import Progress
from xlperf.explore.candidates import LOADS, NUM_POINTS, Bounds, expanded, load_steps
from xlperf.explore.objectives import TARGETS
from xlperf.explore.space import MOST_PLANS, grid

SHOWN = shown_columns("inference_results", "frontier")
"""Default results in a table of a frontier."""


class Frontier(NamedTuple):
    """Points and their plans, row by row; from the most tokens per accelerator to the most per user."""

    plans: Table
    results: Table


def loads(plans: Table, catalog: Catalog, num_points: int = NUM_POINTS, most: int = MOST_PLANS) -> Table:
    """Every inference plan at up to ``num_points`` numbers of requests in flight, in equal ratios from one per replica
    to the memory's limit; the last load of a plan with targets and one pool is the largest within the targets. Illegal
    plans, and plans that do not fit with a single request, are left out.
    """
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
    """Pareto-optimal rows of inference results, from the most tokens per second and accelerator to the most per user;
    the first of equal points counts.
    """
    user, accelerator = (results.number(f"tokens_per_second_per_{word}") for word in ("user", "accelerator"))
    return pareto_rows(-user, -accelerator)[::-1]


def pareto_rows(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Pareto-optimal rows of two quantities to be minimised, the smallest first quantity first; NaN rows are left out.

    >>> pareto_rows(np.array([1.0, 2.0, 3.0, 2.5]), np.array([9.0, 5.0, 6.0, 4.0]))
    array([0, 1, 3])
    """
    rows = np.flatnonzero(np.isfinite(first) & np.isfinite(second))
    rows = rows[np.lexsort((second[rows], first[rows]))]
    best = np.minimum.accumulate(np.concatenate([[np.inf], second[rows]]))[:-1]
    return np.asarray(rows[second[rows] < best])


def unbeaten_rows(losses: np.ndarray) -> np.ndarray:
    """Pareto-optimal rows of quantities to be minimised, (rows, quantities), of equal rows the first; NaN rows are left
    out.

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
