"""Cheapest fleets that serve a demand, over engines, one pool or two, mappings, dispatch, overlap and chunks.

A coarse-to-fine search. The first round evaluates mappings with repeated halves as degrees; the best of them then get
the other engines, the other options and intermediate sizes. One pool: each mapping runs at the largest load within the
targets. Two pools: the search finds the request rates of a decode and of a prefill replica within their own targets,
combines the cheapest pairs, and varies the numbers of replicas around the rate of the demand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.tables import fitting
from xlperf.explore.fleet_plans import (
    CHUNK,
    COUNT,
    DPA,
    FAR,
    LOAD,
    NEVER,
    ONE,
    PP,
    ROUND,
    RUNNING,
    TP,
    TWO,
    Fleet,
    Probed,
    at_targets,
    copies_of_replicas,
    crossed,
    distinct_keys,
    first_of_keys,
    first_ways,
    replica_size,
    shared_loads,
)
from xlperf.explore.fleet_pools import CHUNKS, DECODE, PREFILL, SMALL, STAGED, WHOLE, PoolSearch
from xlperf.explore.mappings import started
from xlperf.explore.search import stacked
from xlperf.explore.space import with_columns

OF_SIZE, EACH = 2, 4  # mappings to refine: of each size, and of each engine [-]
SPREAD = 6.0
"""Largest ratio to the least need at which all engines run the best mapping of a number of attention replicas. [-]"""
_ROUNDS = 3  # rounds of neighbours of the best mappings [-]
_ROOMY = CHUNKS[:2]  # prefill token budgets of the first round; the first that fits counts [-]
_PATIENT = 0.1  # longest wait over the decode time from which the best copy of every size is tried [-]
_SEVERAL = (1.0, 2.0)  # range of the loads of several replicas over an even share [-]


def without_limit(plans: Table) -> Table:
    """Plans without their limit of requests that run together."""
    return with_columns(plans.take(np.flatnonzero(~np.isnan(plans.number(RUNNING)))), max_running_batch=np.nan)


class FleetSearch(PoolSearch):
    """The search for fleets of one demand."""

    def fleets(self, modes: Sequence[str]) -> list[Fleet]:
        """The cheapest fleet of each engine and mode that serves the demand, the cheapest first."""
        has_pools = TWO in modes and self.output > 1.0
        parts = self.refined([WHOLE] * (ONE in modes) + [DECODE, PREFILL] * has_pools)
        items = []
        if WHOLE in parts:
            best_copies = [parts[WHOLE].best(EACH, "software"), parts[WHOLE].smallest().best(2, "software")]
            # Where prompts take the room of requests, these wait for a place within the target of the first token.
            best_copies.append(parts[WHOLE].best(1, "software", CHUNK))
            if self.waiting > _PATIENT:  # waiting requests change the order of sizes
                best_copies.append(parts[WHOLE].near(FAR).best(1, "software", TP, PP))
            alone = self.queued(Probed.joined(best_copies).plans)
            items += [alone, self.of_several(alone), self.fastest_alone(parts[WHOLE].plans)]
        if DECODE in parts and PREFILL in parts:
            items.append(self.two_pools(parts[DECODE], parts[PREFILL]))
        items = [plans for plans in items if len(plans)]
        if not items:
            return []
        plans = stacked(items)
        plans = stacked([plans, without_limit(plans)])
        results = evaluate(plans, self.catalog)
        feasible = np.flatnonzero(self.demand.kept(results)).tolist()
        every = [self.fleet(plans.take([row]), results.take([row])) for row in feasible]
        if every:
            loads = shared_loads(np.array([fleet.users for fleet in every]), plans.number(LOAD)[feasible])
            paces = self.paces(plans.take(feasible), loads).tolist()
            every = [fleet._replace(tpot=pace) for fleet, pace in zip(every, paces, strict=True)]
        return first_ways(sorted(every, key=lambda fleet: fleet.order))

    def paces(self, plans: Table, loads: Array | float) -> Array:
        """Times per token of plans at the loads of the demand, which may be far below their largest. [s]"""
        plans = plans if self.demand.load == self.demand.load else with_columns(plans, concurrency=loads)
        results = evaluate(plans, self.catalog, results=("fits", "tpot"))
        return np.where(results.number("fits") == 1.0, results.number("tpot"), np.inf)

    def fastest_alone(self, plans: Table) -> Table:
        """Of copies one of which serves all users, the fastest of each engine and number of accelerators."""
        demand = self.demand
        users = max(demand.rate * (self.output - 1.0) * demand.tpot if demand.is_rate else demand.users, 1.0)
        plans = plans.take(
            np.flatnonzero((plans.number(LOAD) >= users) & (plans.number(COUNT) <= self.machines.own.unit))
        )
        if not len(plans):
            return plans
        order = np.argsort(self.paces(plans, np.ceil(users)), kind="stable")
        keys = zip(plans["software"][order].tolist(), plans.number(COUNT)[order].tolist(), strict=True)
        return plans.take(first_of_keys(order, list(keys), 1))

    # --- mappings

    def fits(self, tried: Mapping[str, Table]) -> dict[str, np.ndarray]:
        """Whether plans of each part are legal, start and fit in memory."""
        fits = {part: np.zeros(0, dtype=bool) for part in tried}
        # Rules of software read the modes of all plans together, so plans of one pool and of two are checked apart.
        for whole in (True, False):
            plans = {
                part: self.stated(part, own) for part, own in tried.items() if len(own) and (part == WHOLE) == whole
            }
            if plans:
                mask = self.fitting(stacked(list(plans.values())))
                ends = np.cumsum([len(own) for own in plans.values()])
                for part, own in zip(plans, np.split(mask, ends[:-1]), strict=True):
                    own[own] = self.starting(part, plans[part].take(np.flatnonzero(own)))
                    fits[part] = own
        return fits

    def fitting(self, plans: Table) -> np.ndarray:
        """Whether plans of one mode are legal and fit in memory."""
        known = fitting(plans, self.catalog)
        return np.ones(len(plans), dtype=bool) if known is None else np.asarray(known["fits"] == 1.0)

    def starting(self, part: str, plans: Table) -> np.ndarray:
        """Whether the engine of each plan starts it; a prefill replica decodes nothing, whatever is beside it."""
        plans = with_columns(plans, prefill_accelerators=np.nan) if part == PREFILL else plans
        return np.isin(np.arange(len(plans)), started(plans, self.catalog))

    def roomy(self, tried: Mapping[str, Table], number: int = 1) -> dict[str, Table]:
        """Of each ``number`` plans of a part the first that fits in memory, with the largest prefill budget."""
        every = {part: crossed(plans, CHUNK, _ROOMY) for part, plans in tried.items()}
        for part, plans in every.items():
            own = np.where(plans.number(CHUNK) == _ROOMY[0], np.repeat(tried[part].number(CHUNK), len(_ROOMY)), STAGED)
            budget = np.where(plans.number(PP) > 1.0, own, plans.number(CHUNK))
            every[part] = with_columns(plans, prefill_tokens=budget)
        # Most groups have room for their first plan; only the others need the rest.
        width = number * len(_ROOMY)
        first = self.fits({part: plans.take(slice(0, None, width)) for part, plans in every.items()})
        place = {part: np.where(fits, 0, -1) for part, fits in first.items()}
        left = {part: np.flatnonzero(own < 0) for part, own in place.items()}
        rows = {part: (own[:, None] * width + np.arange(1, width)).ravel() for part, own in left.items()}
        for part, fits in self.fits({part: plans.take(rows[part]) for part, plans in every.items()}).items():
            fits = fits.reshape(-1, width - 1)
            place[part][left[part]] = np.where(fits.any(axis=1), 1 + fits.argmax(axis=1), -1)
        chosen = {part: (np.arange(len(own)) * width + own)[own >= 0] for part, own in place.items()}
        return {part: plans.take(chosen[part]) for part, plans in every.items()}

    def on_engines(self, part: str, known: Probed) -> Table:
        """Mappings with each engine that starts them: the best of each size, and of each number of replicas."""
        plans = []
        named = self.stated(part, crossed(known.plans, "software", self.engines))
        for engine, starts in zip(
            self.engines, self.starting(part, named).reshape(-1, len(self.engines)).T, strict=True
        ):
            if not starts.any():
                continue
            startable = known.take(np.flatnonzero(starts))
            best = startable.near(FAR).best(OF_SIZE, TP, PP).plans
            tried = [best, *self.other_options(best)]
            if len(self.engines) > 1:
                tried.append(
                    startable.take(np.flatnonzero(startable.need <= SPREAD * startable.need.min()))
                    .best(1, TP, DPA, PP)
                    .plans
                )
            plans.append(with_columns(stacked(tried), software=engine))
        return stacked(plans)

    def refined(self, parts: Sequence[str]) -> dict[str, Probed]:
        """Mappings of copies and pools, coarse to fine: one budget on every engine, then options, then neighbours."""
        named = {part: crossed(self.mapped(part, self.sizes(part)), "software", self.engines) for part in parts}
        found = self.roomy(named, len(self.engines))
        staged = {part: crossed(self.staged(part, found[part]), "software", self.engines) for part in parts}
        if any(len(own) for own in staged.values()):
            deep = self.roomy({part: own for part, own in staged.items() if len(own)}, len(self.engines))
            found |= {part: stacked([found[part], own]) for part, own in deep.items()}
        result = {part: own for part, own in self.probed(found).items() if len(own.plans)}
        tried = {part: self.on_engines(part, own) for part, own in result.items()}
        more = self.probed(self.roomy(tried))
        result = {part: Probed.joined([result[part], more[part]]) for part in tried}
        for _ in range(_ROUNDS):
            tried = {part: self.untried(part, self.around(part, own)) for part, own in result.items()}
            fits = self.fits(tried)
            more = self.probed({part: plans.take(np.flatnonzero(fits[part])) for part, plans in tried.items()})
            if not any(len(own.plans) for own in more.values()):
                break
            result = {part: Probed.joined([own, more[part]]) for part, own in result.items()}
        return result

    def around(self, part: str, known: Probed) -> Table:
        """Neighbours of the best mappings, of each engine and inside a server: other options, degrees and budgets."""
        near = known.best(EACH, "software").plans
        inside = known.take(np.flatnonzero(replica_size(known.plans) <= 0.5 * self.machine(part).unit))
        several = known.best(OF_SIZE, "software", TP, PP).best(EACH, "software").plans
        return stacked(
            [
                self.beside(part, stacked([near, inside.best(SMALL, "software").plans])),
                crossed(several, CHUNK, CHUNKS[: 0 if part == DECODE else None]),
                *(self.between(part, near, engine) for engine in self.engines),
            ]
        )

    def untried(self, part: str, plans: Table) -> Table:
        """Plans that no round has tried before."""
        keys = [(part, CHUNK, *key) for key in distinct_keys(plans)]
        rows = [row for row, key in enumerate(keys) if key not in self.known]
        self.known.update(keys)
        return plans.take(rows)

    def probed(self, tried: Mapping[str, Table]) -> dict[str, Probed]:
        """Accelerators that plans of each part need at their largest loads within targets; known plans are left out."""
        plans = {}
        for part, own in tried.items():
            stated = with_columns(self.stated(part, own), concurrency=np.nan)
            first = dict(zip(reversed(distinct_keys(stated)), reversed(range(len(stated))), strict=True))
            rows = [row for key, row in first.items() if (part, key) not in self.known]
            self.known.update((part, key) for key in first)
            plans[part] = stated.take(sorted(rows))
        some = {part: own for part, own in plans.items() if len(own)}
        if not some:
            return {part: Probed(own, np.zeros(0), np.zeros(0)) for part, own in plans.items()}
        targeted = stacked([self.targeted(part, own) for part, own in some.items()])
        batches, rates = at_targets(targeted, self.catalog)
        result, start = {}, 0
        for part, own in plans.items():
            end = start + len(own)
            result[part] = self.scored(part, own, batches[start:end], rates[start:end] / self.output)
            start = end
        return result

    def targeted(self, part: str, plans: Table) -> Table:
        """Plans with the targets of their part."""
        first = NEVER if part == DECODE else self.demand.first
        return with_columns(plans, ttft_target=first, tpot_target=NEVER if part == PREFILL else self.demand.tpot)

    def scored(self, part: str, plans: Table, batch: Array, rate: Array) -> Probed:
        """Accelerators that plans of a part need, each at its largest load within the targets."""
        demand, replica = self.demand, replica_size(plans)
        size = plans.number(COUNT) if part == WHOLE else replica
        if part != WHOLE:
            prefill = plans.number("prefill_accelerators")
            with np.errstate(divide="ignore"):
                need = (prefill if part == PREFILL else plans.number(COUNT) - prefill) / rate
            return Probed.of(with_columns(plans, concurrency=np.maximum(batch, 1.0)), need, need)
        load, share = batch * size / replica, np.ones(len(batch))
        reached = load >= (0.0 if np.isnan(demand.load) else demand.load)
        if demand.load == demand.load:  # loads that come near it are first: with other options they may reach it
            share = np.where(reached, demand.load / np.maximum(load, 1.0), ROUND * load / demand.load)
        with np.errstate(divide="ignore"):
            copies = demand.rate / (rate * share) if demand.is_rate else demand.users / (load * share)
        stated = np.where(reached, np.maximum(np.round(load * share), 1.0), demand.load)
        plans = with_columns(plans, concurrency=stated)
        return Probed.of(
            plans, np.ceil(copies * (1.0 - ROUND)) * size, (np.maximum(copies, 1.0) + ROUND * copies) * size
        )

    def queued(self, plans: Table) -> Table:
        """Plans of copies at the largest load within the targets, including requests that wait for memory."""
        if self.demand.first >= NEVER or not len(plans):
            return plans
        batches, _ = at_targets(self.targeted(WHOLE, with_columns(plans, concurrency=np.nan)), self.catalog)
        every = stacked([plans, self.limited(plans, batches)])
        if self.demand.load == self.demand.load:
            return every
        return self.filled(every, every.number(LOAD), (1.0, 1.0 + min(2.0 * self.waiting, 1.0)))

    def of_several(self, plans: Table) -> Table:
        """Plans with few requests as copies of several replicas."""
        if self.demand.size == self.demand.size or self.demand.load == self.demand.load:
            return plans.take(slice(0))
        several = copies_of_replicas(plans, self.machines.own.most)
        return self.filled(several, several.number(LOAD), _SEVERAL) if len(several) else several
