"""Mappings of copies and of replicas of pools that a search for fleets tries: sizes, degrees, stages and options."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.explore.fleet_plans import (
    CHUNK,
    COPY_SIZES,
    COUNT,
    DEGREES,
    DISPATCH,
    DPA,
    EP,
    ONE,
    OPTIONS,
    PP,
    TP,
    TWO,
    Demand,
    Machine,
    Machines,
    crossed,
    degrees_of,
    replica_size,
    with_columns,
)
from xlperf.explore.mappings import sold_counts
from xlperf.explore.search import stacked
from xlperf.explore.space import divisors

WHOLE, DECODE, PREFILL = "copy", "decode", "prefill"
"""Parts of a fleet with a mapping: a copy with one pool, and a replica of each of two pools."""
MOST_DENSE, MOST_RANKS = 64.0, 320.0
"""Largest replicas: of dense models and of prefill pools in the first round, and of others (EP 320 of DeepSeek-V3). [-]
"""
CHUNKS = (8192.0, 2048.0, 512.0, 1024.0, 4096.0, 16384.0, 24576.0, 32768.0)
"""Trial prefill token budgets, the default of plans first. [-]"""
_STAGES, STAGED, _MOST_STAGES = (2.0, 4.0), 512.0, 8.0
"""Pipeline stages of the first round, where they are likely to pay, and their prefill token budget beside the default:
stages wait less for small ones. The second round halves and multiplies those of the best mappings, up to the most. [-]
"""
_STAGE_FACTORS = (0.5, 2.0, 4.0)  # trial stages of the second round over the best mapping's [-]
_STAGED_CHUNKS = (2048.0, 32768.0)  # trial prefill token budgets with other stages beside the mapping's own [-]
_AROUND, _MOST_AROUND = 2.0, 6  # trial sizes around the best replica, as sold: largest ratio, and number [-]
_FACTORS = {DPA: (0.5, 2.0), EP: (0.25, 0.5, 2.0, 4.0)}
"""Trial attention replicas and expert groups over the best mapping's. [-]"""
_PROBE, _DECODERS = 31.0, 8.0
"""Replicas of the other pool per replica of the probed pool, and decode replicas of a probe: enough that the few
requests of each need not be a whole number. [-]
"""


class FleetMappings:
    """Mappings for one demand; degrees that the form gives are fixed."""

    def __init__(
        self,
        formats: Table,
        engines: Sequence[str],
        demand: Demand,
        machines: Machines,
        catalog: Catalog,
        wide_cache: str = "",
    ) -> None:
        """``formats``: plans of one replica, a row for each weight format. ``engines``: to compare."""
        self.formats, self.engines, self.demand, self.catalog = formats, engines, demand, catalog
        self.machines, self.wide_cache = machines, wide_cache
        rows = catalog.rows("models", formats.text("model"), formats, "model")
        self.experts = float(catalog.tables["models"].number("num_experts", 0.0)[rows][0])
        self.given = {name: value for name in DEGREES if (value := float(formats.number(name)[0])) == value}

    def single_users(self) -> Table:
        """All mappings of copies with one pool on every engine, with one user on each replica."""
        size, sizes = self.demand.size, self.sizes(WHOLE)
        tried = self.staged(WHOLE, self.formats.take(slice(0))), self.mapped(WHOLE, sizes)
        plans = crossed(stacked([own for own in tried if len(own)]), "software", self.engines)
        plans = with_columns(plans, mode=ONE, num_accelerators=size if size == size else replica_size(plans))
        return with_columns(plans, concurrency=np.maximum(np.floor(plans.number(COUNT) / replica_size(plans)), 1.0))

    def sizes(self, part: str) -> list[float]:
        """Replica sizes of the first round."""
        if TP in self.given and part != PREFILL:
            return [self.given[TP]]
        machine, size = self.machine(part), self.demand.size
        most = self.most(part) if part != PREFILL else min(max(MOST_DENSE, machine.unit), machine.most)
        sizes = sorted({number for number in (*COPY_SIZES, machine.unit, MOST_RANKS) if number <= most})
        if size != size:
            return sizes
        if part != WHOLE:
            return [number for number in sizes if number < size]
        return [number for number in divisors(size) if number <= most] or [size]

    def staged(self, part: str, found: Table) -> Table:
        """Mappings with several pipeline stages: those of the form, or inside servers where they can pay.

        They can if no plan ``found`` is of one domain of fast links, or if no links are fast.
        """
        machine, stages = self.machine(part), list(_STAGES)
        if part != PREFILL and PP in self.given:
            stages = [self.given[PP]] if self.given[PP] > 1.0 else []
        elif machine.is_fast and (found.number(TP) <= machine.inner).any():
            stages = []
        if not stages:
            return self.formats.take(slice(0))
        plans = self.mapped(part, [size for size in self.sizes(part) if size <= machine.unit], stages=stages)
        plans = plans.take(np.flatnonzero(replica_size(plans) <= self.most(part)))
        return plans if part == DECODE else crossed(plans, CHUNK, (STAGED, CHUNKS[0]))

    def most(self, part: str) -> float:
        """Accelerators of the largest replica that the search tries. [-]"""
        machine = self.machine(part)
        return min(MOST_RANKS if self.experts else max(MOST_DENSE, machine.unit), machine.most, MOST_RANKS)

    def machine(self, part: str) -> Machine:
        """The machine of a part of a fleet."""
        return self.machines.prefill if part == PREFILL else self.machines.own

    def mapped(
        self, part: str, sizes: Sequence[float], every: bool = False, stages: Sequence[float] = (), **fixed: float
    ) -> Table:
        """Mappings of stages of some sizes, for every weight format; multi-node mappings dispatch tokens by node."""
        given = fixed if part == PREFILL else self.given | fixed
        rows: list[tuple[float, float, float, float]] = []
        for size in sizes:
            degrees = degrees_of(size, every)
            attention = [given[DPA]] if DPA in given else degrees
            experts = [given[EP]] if EP in given else degrees if self.experts else [1.0]
            several = stages or [given.get(PP, 1.0)]
            rows += [(size, replicas, group, of) for of in several for replicas in attention for group in experts]
        index = np.repeat(np.arange(len(self.formats)), len(rows))
        columns: dict[str, object] = dict(
            zip((TP, DPA, EP, PP), np.tile(np.array(rows, np.float64).reshape(-1, 4).T, len(self.formats)), strict=True)
        )
        columns |= {"accelerator": self.machine(part).accelerator, CHUNK: CHUNKS[0]}
        plans = with_columns(self.formats.take(index), software=self.engines[0], **columns)
        plans = with_columns(plans, num_accelerators=replica_size(plans))
        if not self.experts:
            return plans
        return self.with_copies(part, with_columns(plans, expert_dispatch="nodes", two_batch_overlap=0.0))

    def other_options(self, plans: Table) -> list[Table]:
        """Plans with one option changed: KV-cache precision and, of MoE models, overlap and dispatch."""
        results = []
        if self.wide_cache:
            narrow = str(self.formats["kv_precision"][0])
            is_wide = plans.text("kv_precision") == self.wide_cache
            results.append(with_columns(plans, kv_precision=np.where(is_wide, narrow, self.wide_cache)))
        if self.experts:
            sent = plans.take(np.flatnonzero(plans.number(DPA) > 1.0))
            direct = sent.take(np.flatnonzero(sent.text(DISPATCH) == "nodes"))
            overlapped = with_columns(sent, two_batch_overlap=1.0 - sent.number("two_batch_overlap"))
            results += [overlapped, with_columns(direct, expert_dispatch="ranks")]
        return [own for own in results if len(own)]

    def beside(self, part: str, near: Table) -> Table:
        """Mappings with fewer and with more attention replicas or expert groups, and with other options."""
        result = self.other_options(near)
        for name, factors in _FACTORS.items() if self.experts else ((DPA, _FACTORS[DPA]),):
            for factor in factors if part == PREFILL or name not in self.given else ():
                degree = factor * near.number(name)
                good = (degree >= 1.0) & (near.number(TP) % np.maximum(degree, 1.0) == 0.0)
                result.append(with_columns(near, **{name: degree}).take(np.flatnonzero(good)))
        if part == PREFILL or PP not in self.given:
            result += self.restaged(part, near)
        result = [plans for plans in result if len(plans)]
        plans = stacked(result) if result else near.take(slice(0))
        return self.with_copies(part, plans) if self.experts else plans

    def restaged(self, part: str, near: Table) -> list[Table]:
        """Mappings with other numbers of stages, in as many accelerators or with ranks as before in each stage."""
        result = []
        for factor in _STAGE_FACTORS:
            stages, ranks = factor * near.number(PP), near.number(TP)
            for tensor in (ranks, ranks / factor) if TP not in self.given or part == PREFILL else (ranks,):
                widths = {name: np.minimum(near.number(name), tensor) for name in (DPA, EP)}
                plans = with_columns(near, pipeline_parallel=stages, tensor_parallel=tensor, **widths)
                good = (stages >= 1.0) & (stages <= _MOST_STAGES) & (tensor >= 1.0) & (tensor == np.floor(tensor))
                good &= replica_size(plans) <= self.most(part)
                plans = with_columns(plans, num_accelerators=replica_size(plans)).take(np.flatnonzero(good))
                result += [plans] if part == DECODE else [plans, crossed(plans, CHUNK, _STAGED_CHUNKS)]
        return result

    def with_copies(self, part: str, plans: Table) -> Table:
        """Plans with redundant experts for large groups, and without options that have no effect."""
        copied, alone = np.maximum(plans.number(EP) - self.experts, 0.0), plans.number(DPA) == 1.0
        overlapped = np.where(alone, 0.0, plans.number("two_batch_overlap"))
        sent = np.where(alone | (plans.number(TP) <= self.machine(part).inner), "ranks", plans.text(DISPATCH))
        return with_columns(plans, redundant_experts=copied, two_batch_overlap=overlapped, expert_dispatch=sent)

    def between(self, part: str, near: Table, engine: str) -> Table:
        """Mappings of sizes between an engine's best size and its neighbours."""
        of_engine = near.take(np.flatnonzero(near.text("software") == engine)[:1])
        if not len(of_engine) or (TP in self.given and part != PREFILL):
            return of_engine.take(slice(0))
        best = float(of_engine.number(TP)[0])
        machine = self.machine(part)
        sold = sold_counts(machine.unit, machine.most, min(_AROUND * best, MOST_RANKS))
        between = sold[(sold > best / _AROUND) & ~np.isin(sold, self.sizes(part))]
        if self.demand.size == self.demand.size:
            between = between[between < self.demand.size]
        if not len(between):
            return of_engine.take(slice(0))
        between = between[np.unique(np.linspace(0, len(between) - 1, _MOST_AROUND).round().astype(np.int64))]
        options = {name: of_engine[name][0] for name in ("software", "kv_precision", *OPTIONS) if name in of_engine}
        plans = self.mapped(part, between.tolist(), every=True, stages=of_engine.number(PP).tolist())
        return with_columns(plans, **options)

    def stated(self, part: str, plans: Table) -> Table:
        """One-pool copies, or a replica of a pool beside enough replicas of the other pool not to limit it."""
        size = replica_size(plans)
        if part == WHOLE:
            given = self.demand.size
            return with_columns(plans, mode=ONE, num_accelerators=given if given == given else size)
        most = np.floor(self.machine(part).most / size)
        number = np.clip(most - 1.0, 1.0, _DECODERS if part == DECODE else 1.0)
        others = np.clip(most - number, 1.0, _PROBE * number)
        prefill = size * (number if part == PREFILL else others)
        return with_columns(plans, mode=TWO, num_accelerators=size * (others + number), prefill_accelerators=prefill)
