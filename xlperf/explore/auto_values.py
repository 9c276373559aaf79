"""Values that ``auto`` tries where rules give no list: numbers of accelerators as sold, requests in flight."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, log2, power
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.tables import fitting
from xlperf.explore.objectives import TARGETS, Limit

MOST_ACCELERATORS = 16_384
"""Largest number of accelerators tried for ``auto`` by default. [-]"""
STEPS = (1.0, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0)
"""Ratios of neighbouring numbers of accelerators that are tried, from every number sold to powers of two. [-]"""
_CUBES = re.compile(r"\s*(\d+)\s*d\s*of\s*(\d+)\s*", re.IGNORECASE)


class Counts(NamedTuple):
    """Numbers of accelerators as machines are sold, and those of them that were tried.

    Attributes
    ----------
    sold, tried : array
        From the smallest. [-]
    unit : float
        Accelerators of a server or pod; NaN where machines differ in it. [-]
    """

    sold: Array
    tried: Array
    unit: float

    @property
    def words(self) -> str:
        """What was tried: ``all 2,051 numbers of accelerators from 1 to 16,384 tried (...)``."""
        unit = f" of {self.unit:,.0f}" if self.unit == self.unit else ""
        part, near = (
            ("all", "") if len(self.tried) == len(self.sold) else (f"{len(self.tried):,} of", ", all next to the best")
        )
        return (
            f"{part} {len(self.sold):,} numbers of accelerators from {self.sold[0]:,.0f} to {self.sold[-1]:,.0f} tried"
            f"{near} (powers of two, parts of a server or pod{unit} and whole ones)"
        )

    def between(self, counts: Array) -> Array:
        """Numbers that are sold but were not tried, between the neighbours of some that were."""
        places = np.searchsorted(self.tried, np.unique(counts))
        below = np.searchsorted(self.tried, self.sold, side="right")
        near = self.sold[np.isin(below, [places, places + 1])]
        return np.asarray(near[~np.isin(near, self.tried)])

    def also(self, more: Array) -> Counts:
        """With further numbers tried."""
        return self._replace(tried=np.union1d(self.tried, more))


def server_sizes(plans: Table, catalog: Catalog) -> tuple[Array, Array]:
    """Accelerators of a server or pod of the machines that plans name, and of the whole network.

    A server is what the outermost tier of the network joins (8 accelerators of a DGX, 72 of an NVL72), or a cube where
    a torus is wired of cubes (64 of a TPU v4).

    ``catalog``: with accelerators and networks. Returns one per plan; 1 and infinity where there is no network.
    """
    accelerators, networks = catalog.tables["accelerators"], catalog.tables["networks"]
    rows = catalog.rows("accelerators", plans.text("accelerator"), plans, "accelerator")
    given = plans.text("network")
    names = np.where(given == "", accelerators.text("default_network")[rows], given).tolist()
    known = {}
    for name in set(names):
        tiers = catalog.network_tiers(str(name))
        sizes = networks.number("size")[tiers]
        cubes = [_CUBES.fullmatch(str(text)) for text in networks.text("dimensions")[tiers[:1]].tolist()]
        unit = sizes[-2] if len(sizes) > 1 else sizes[-1] if len(sizes) else 1.0
        if cubes and cubes[0]:
            unit = math.prod([float(cubes[0][2])] * int(cubes[0][1]))
        known[name] = unit, (sizes.max() if len(sizes) else np.inf)
    units, totals = zip(*(known[name] for name in names), strict=True)
    return np.array(units), np.array(totals)


def sold_counts(unit: float, total: float, most: float) -> Array:
    """Numbers of accelerators to try: powers of two, what divides a server, and whole servers.

    ``unit``, ``total``: accelerators of a server and of the whole network [-]. ``most``: largest number [-]. The
    smallest comes first.

    >>> sold_counts(8.0, 65536.0, 40.0).tolist()
    [1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0, 40.0]
    >>> sold_counts(12.0, 30.0, 100.0).tolist()
    [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0]
    """
    bound = np.floor(min(most, total))
    parts = np.arange(1.0, np.minimum(unit, bound) + 1.0)
    whole = unit * np.arange(1.0, np.floor(bound / unit) + 1.0)
    powers = 2.0 ** np.arange(0.0, 64.0)
    found = np.unique(np.concatenate([powers, parts[unit % parts == 0.0], whole]))
    return np.asarray(found[found <= bound])


def thinned(counts: Array, step: float) -> Array:
    """Some of the numbers: the first, powers of two, and of the others those larger than the one before by a ratio.

    ``counts``: from the smallest [-]. ``step``: least ratio of neighbours; 1 keeps all, from 2 on powers of two and the
    ends stay [-].

    >>> thinned(sold_counts(8.0, 65536.0, 100.0), 1.5).tolist()
    [1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0]
    """
    if step <= 1.0:
        return counts
    kept: list[float] = []
    for count in counts.tolist():
        if not kept or log2(count) % 1.0 == 0.0 or (step < 2.0 and count >= step * kept[-1]):
            kept.append(count)
    return np.array(kept)


NUM_POINTS = 24
LOADS = ("concurrency", "batch_size", "request_rate")
FINER = 64
"""Loads that are tried around that of a good plan. [-]"""
RISING = ("ttft", "tpot", "latency", "queue_time")
"""First words of results that rise with the load: a limit on them bounds it."""


def load_steps(
    plans: Table, catalog: Catalog, num_points: int = NUM_POINTS, limits: Sequence[Limit] = ()
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers of requests in flight to try, from one per replica to as many as memory holds and targets allow.

    ``plans``: inference plans; their own load does not matter. ``num_points``: steps of each plan at the most, in equal
    ratios. ``limits``: what results must keep beside the targets of the plans; those on times bound the load. Of each
    step: the plan, requests of a replica, and replicas. Plans that are illegal, that do not fit with a single request
    or then miss a target have none.
    """
    columns = {**plans.columns, **dict.fromkeys(LOADS, np.full(len(plans), np.nan))}
    copies = replicas(plans)
    single = Table(plans.kind, {**columns, "concurrency": copies}, plans.place, plans.auto)
    memory = fitting(single, catalog)
    most = np.array(memory["max_batch_size"]) if memory is not None else np.full(len(plans), np.nan)
    bounds = [one for one in limits if one.sign in ("<", "<=") and one.column.name.startswith(RISING)]
    targets = any(name in plans for name in TARGETS.values())
    continuous = plans.filled("mode") == "continuous"
    some = np.flatnonzero((most >= 1.0) & continuous)
    if targets and len(some):
        kept = evaluate(single.take(some), catalog).number("batch_at_targets")
        most[some] = np.where(np.isnan(kept), most[some], kept)
    some = np.flatnonzero((most >= 1.0) & (~continuous if not bounds else True))
    if (targets or bounds) and len(some):
        most[some] = _largest_kept(single.take(some), copies[some], most[some], catalog, bounds)
    rows = np.flatnonzero(most >= 1.0)
    steps = [np.unique(np.round(power(room, np.linspace(0.0, 1.0, num_points)))) for room in most[rows].tolist()]
    index = np.repeat(rows, [len(batches) for batches in steps])
    return index, np.concatenate([*steps, np.zeros(0)]), copies[index]


def _largest_kept(plans: Table, copies: Array, most: Array, catalog: Catalog, limits: Sequence[Limit]) -> Array:
    """Largest whole number of requests of a replica with which plans keep their targets and limits, 0 where none."""
    plain = replace(plans, columns={n: v for n, v in plans.columns.items() if n not in TARGETS.values()})
    names = {*TARGETS, *(one.column.name for one in limits)}
    asked = names if all(one.probability == Limit._field_defaults["probability"] for one in limits) else None
    low, high = np.zeros(len(plans)), np.floor(most) + 1.0
    tried = np.floor(most)
    while len(rows := np.flatnonzero(high - low > 1.0)):
        load = {"concurrency": (tried * copies)[rows]}
        own = plain.take(rows)
        results = evaluate(replace(own, columns={**own.columns, **load}), catalog, results=asked)
        good = np.ones(len(rows), dtype=bool)
        for limit in limits:
            good &= limit.kept(results)
        for name, target in TARGETS.items():
            good &= ~(results.number(name) > plans.number(target)[rows])
        low[rows] = np.where(good, tried[rows], low[rows])
        high[rows] = np.where(good, high[rows], tried[rows])
        middle = np.floor(np.sqrt(np.maximum(low, 1.0) * high))
        tried = np.clip(middle, low + 1.0, high - 1.0)
    return low


def replicas(plans: Table) -> np.ndarray:
    """Copies of the model that decode, of plans of inference. [-]"""
    total, asked = plans.number("num_accelerators"), plans.number("prefill_accelerators")
    pools = plans.filled("mode") == "disaggregated"
    apart = np.where(np.isnan(asked), np.floor(0.5 * total), asked) + np.nan_to_num(plans.number("expert_accelerators"))
    decode = np.where(pools, total - apart, total)
    ranks = plans.filled("tensor_parallel") * plans.filled("context_parallel") * plans.filled("pipeline_parallel")
    return np.asarray(np.maximum(np.floor(decode / ranks), 1.0))


def finer_loads(plans: Table, load: str, width: float, most: Array) -> Table:
    """Plans with whole numbers of requests of a replica around their load, in even steps where there are many.

    ``load``: concurrency or batch_size. ``width``: ratio of the ends to the load. ``most``: requests that a replica
    has memory for. :data:`FINER` rows for each plan at the most, without its own load.
    """
    copies = replicas(plans) if load == "concurrency" else np.ones(len(plans))
    own = np.maximum(np.round(plans.number(load) / copies), 1.0)
    low, high = np.maximum(np.floor(own / width), 1.0), np.maximum(np.minimum(np.ceil(own * width), most), own)
    steps = [np.unique(np.round(np.linspace(*ends, FINER))) for ends in zip(low.tolist(), high.tolist(), strict=True)]
    kept = [found[found != one] for found, one in zip(steps, own.tolist(), strict=True)]
    index = np.repeat(np.arange(len(plans)), [len(found) for found in kept])
    taken = plans.take(index)
    return replace(taken, columns={**taken.columns, load: np.concatenate([*kept, np.zeros(0)]) * copies[index]})
