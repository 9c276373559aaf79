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
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.tables import fitting
from xlperf.explore.fleet_mappings import CHUNKS, DECODE, PREFILL, STAGED, WHOLE, FleetMappings
from xlperf.explore.fleet_plans import (
    CHUNK,
    COUNT,
    DEGREES,
    DISPATCH,
    DPA,
    EQUAL,
    FAR,
    LOAD,
    NEVER,
    ONE,
    OPTIONS,
    PP,
    PREFILL_POOL,
    ROUND,
    TP,
    TWO,
    Demand,
    Fleet,
    Machines,
    Pairs,
    Probed,
    TriedNumbers,
    at_targets,
    copies_of_replicas,
    crossed,
    distinct_keys,
    first_of_keys,
    first_ways,
    in_copies,
    least_numbers,
    least_of_keys,
    replica_size,
    same_values,
    whole_replicas,
    with_columns,
    with_pools,
)
from xlperf.explore.mappings import started
from xlperf.explore.search import stacked

OF_SIZE, EACH = 2, 4  # mappings to refine: of each size, and of each engine [-]
PAIRS, SMALL, SAME = 20, 2, 2
"""Pairs of a prefill and a decode mapping per engine whose pools are sized: the cheapest, the cheapest with replicas
inside a server, and the number with replicas of equal sizes. [-]
"""
LARGEST = 4096.0  # most accelerators of one deployment with separate pools: larger fleets consist of several [-]
SPREAD = 6.0
"""Largest ratio to the least need at which all engines run the best mapping of a number of attention replicas. [-]"""
_HOPELESS = 1.4
"""Ratio to the least need beyond which a way is not refined if only the cheapest is asked for: refinement lowers needs
by a quarter at most. [-]
"""
_ROOMY = CHUNKS[:2]  # prefill token budgets of the first round; the first that fits counts [-]
_SPREADS = (0.15, 0.05, 0.015)
"""Ranges of trial numbers of decode replicas around the best, over the estimate; as close to the smallest fleet of
their engine are pairs that get further numbers. [-]
"""
_ENDS = (0.4, 5.0)  # range of the numbers of prefill replicas over their estimate [-]
_LIKELY = (0.97, 1.12)
"""First trial numbers of prefill replicas over their estimate: most fleets need a number between them. [-]"""
_PATIENT = 0.1  # longest wait over the decode time from which the best copy of every size is tried [-]
_WAITING = 0.01  # largest share of the requests in flight that wait, without a TTFT target [-]
_LOADS, _FILLED, _SIZED, _SEVERAL = 12, (1.0, 1.15), (0.5, 1.3), (1.0, 2.0)
"""Loads per evaluation, and their range around a feasible or estimated load. [-]"""

STATE = ("fits", "tpot", "ttft", "max_batch_size", "tokens_per_second", "queue_time")
"""Results that give the largest load within the targets, and whether a plan satisfies them at its own load."""


class FleetSearch(FleetMappings):
    """The search for fleets of one demand."""

    def __init__(
        self, formats: Table, engines: Sequence[str], demand: Demand, machines: Machines, catalog: Catalog,
        wide_cache: str = "",
    ) -> None:  # fmt: skip
        super().__init__(formats, engines, demand, machines, catalog, wide_cache)
        self.rivals, self.known = "software", set[object]()
        self.prompt, self.output = (float(formats.number(f"{name}_length")[0]) for name in ("prompt", "output"))
        decoding = (self.output - 1.0) * demand.tpot
        self.waiting = demand.first / decoding if decoding > 0.0 else 0.0  # longest wait over the decode time [-]

    def fleets(self, modes: Sequence[str], all_engines: bool = True) -> list[Fleet]:
        """The cheapest fleet of each engine and mode that serves the demand, the cheapest first.

        ``all_engines``: with two pools also engines that come nowhere near the cheapest one.
        """
        self.rivals = "software" if all_engines else "mode"  # column whose values only the cheapest plan is read of
        pools = TWO in modes and self.output > 1.0
        self.far, self.spread = (FAR, SPREAD) if all_engines else (_HOPELESS, _HOPELESS)
        parts = self.refined([WHOLE] * (ONE in modes) + [DECODE, PREFILL] * pools)
        items = []
        if WHOLE in parts:
            best_copies = [parts[WHOLE].best(EACH, "software"), parts[WHOLE].smallest().best(2, "software")]
            if self.waiting > _PATIENT:  # waiting requests change the order of sizes
                best_copies.append(parts[WHOLE].near(FAR).best(1, "software", TP, PP))
            alone = self.queued(Probed.joined(best_copies).plans)
            items += [alone, self.of_several(alone)]
        if DECODE in parts and PREFILL in parts:
            items.append(self.two_pools(parts[DECODE], parts[PREFILL]))
        items = [plans for plans in items if len(plans)]
        if not items:
            return []
        plans = stacked(items)
        results = evaluate(plans, self.catalog)
        feasible = np.flatnonzero(self.demand.kept(results)).tolist()
        every = [self.fleet(plans.take([row]), results.take([row])) for row in feasible]
        return first_ways(sorted(every, key=lambda fleet: fleet.order))

    def fleet(self, plan: Table, results: Table) -> Fleet:
        """The fleet of copies of a plan."""
        load, users = float(plan.number(LOAD)[0]), self.demand.users
        users = users if users == users else self.demand.rate * float(results.number("latency")[0])
        counts = self.machines.counts(plan, np.ceil(users / load * (1.0 - ROUND)))
        whole = self.machines.in_servers(counts)
        used, accelerators = (float((own + other)[0]) for own, other in (counts, whole))
        return Fleet(plan, results, users, used, accelerators, float(self.machines.priced(whole)[0]))

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
            best = startable.near(self.far).best(OF_SIZE, TP, PP).plans
            tried = [best, *self.other_options(best)]
            if len(self.engines) > 1:
                tried.append(
                    startable.take(np.flatnonzero(startable.need <= self.spread * startable.need.min()))
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
        result = self.promising(self.probed(found))
        tried = {part: self.on_engines(part, own) for part, own in result.items()}
        more = self.probed(self.roomy(tried))
        result = self.promising({part: Probed.joined([result[part], more[part]]) for part in tried})
        tried = {}
        for part, known in result.items():
            near = known.best(EACH, "software").plans
            inside = known.take(np.flatnonzero(replica_size(known.plans) <= 0.5 * self.machine(part).unit))
            parted = [self.beside(part, stacked([near, inside.best(SMALL, "software").plans]))]
            several = known.best(OF_SIZE, "software", TP, PP).best(EACH, "software").plans
            parted += [] if part == DECODE else [crossed(several, CHUNK, CHUNKS)]
            parted += [self.between(part, near, engine) for engine in self.engines]
            parted = [plans for plans in parted if len(plans)]
            if parted:
                tried[part] = stacked(parted)
        fits = self.fits(tried)
        more = self.probed({part: plans.take(np.flatnonzero(fits[part])) for part, plans in tried.items()})
        return {part: Probed.joined([own, more[part]]) if part in more else own for part, own in result.items()}

    def promising(self, known: Mapping[str, Probed]) -> dict[str, Probed]:
        """Parts with plans; if only the cheapest way is asked for, those of engines and pools that come near it."""
        demand, costs = self.demand, dict[tuple[str, str], float]()
        known = {part: own for part, own in known.items() if len(own.plans)}
        if self.rivals == "software":
            return known
        for part, own in known.items():
            engines = own.plans["software"]
            costs |= {(part, name): float(own.need[engines == name].min()) for name in set(engines.tolist())}
        # A pair of pools costs its shares per request, at about the rate at which the users of one pool come back.
        rate = demand.rate if demand.is_rate else demand.users / max((self.output - 1.0) * demand.tpot, ROUND)
        for engine in self.engines:
            each = [costs.pop((part, engine), np.inf) for part in (DECODE, PREFILL)]
            costs[TWO, engine] = rate * float(self.machines.priced(tuple(np.array(each))))
        most = _HOPELESS * min(costs.values())
        good = {part: [engine for engine in self.engines if costs.get((part, engine), np.inf) <= most]
                for part in (WHOLE, TWO)}  # fmt: skip
        near = {part: np.isin(own.plans["software"], good[WHOLE if part == WHOLE else TWO])
                for part, own in known.items()}  # fmt: skip
        return {part: own.take(np.flatnonzero(near[part])) for part, own in known.items() if near[part].any()}

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
        return Probed.of(plans, np.ceil(copies * (1.0 - ROUND)) * size, copies * size)

    def queued(self, plans: Table) -> Table:
        """Plans of copies at the largest load within the targets, including requests that wait for memory."""
        if self.demand.first >= NEVER or self.demand.load == self.demand.load or not len(plans):
            return plans
        return self.filled(plans, plans.number(LOAD), (1.0, 1.0 + min(self.waiting, 1.0)))

    def of_several(self, plans: Table) -> Table:
        """Plans with few requests as copies of several replicas."""
        if self.demand.size == self.demand.size or self.demand.load == self.demand.load:
            return plans.take(slice(0))
        several = copies_of_replicas(plans, self.machines.own.most)
        return self.filled(several, several.number(LOAD), _SEVERAL) if len(several) else several

    # --- two pools

    def two_pools(self, decode: Probed, prefill: Probed) -> Table:
        """Plans of two pools at their largest loads, the cheapest of each engine."""
        pairs = self.paired(decode, prefill)
        if not len(pairs.batch):
            return pairs.plans
        if self.demand.size == self.demand.size:
            return self.divided(pairs).best(2, "software").plans
        tried = self.sized(pairs)
        if not len(tried.plans):
            return tried.plans
        best = tried.best(2, "software").plans
        return best if self.demand.load == self.demand.load else self.filled(best, best.number(LOAD), _FILLED)

    def paired(self, decode: Probed, prefill: Probed) -> Pairs:
        """The cheapest pairs of a decode and a prefill mapping of each engine that one plan can state."""
        decoders, prefillers = (part.plans for part in (decode, prefill))
        same = np.ones((len(decoders), len(prefillers)), dtype=bool)
        for name in ("software", "precision", "activation_precision", "kv_precision", "wide_attention"):
            if name in decoders:
                same &= same_values(decoders[name], prefillers[name])
        for name in OPTIONS if self.experts else ():
            free = self.free(DECODE, name, decoders)[:, None] | self.free(PREFILL, name, prefillers)
            same &= free | same_values(decoders[name], prefillers[name])
        rows, columns = np.nonzero(same)
        # The cheapest pairs by the accelerators that the demand needs, in whole replicas.
        size, other_size = replica_size(decoders)[rows], replica_size(prefillers)[columns]
        rates = other_size / prefill.need[columns], size / decode.need[rows]
        prompts = np.maximum(prefillers.number(CHUNK)[columns] / self.prompt, 1.0)
        first = np.where(self.demand.first < NEVER, self.demand.first, prompts / rates[0])
        numbers = *rates, decoders.number(LOAD)[rows], first
        pairs = Pairs(decoders, *numbers)
        rate, share = pairs.rates(self.demand, self.output)
        need = self.machines.priced((rate * size / pairs.decode, rate * other_size / pairs.prefill))
        own, others = whole_replicas(pairs, rate, share, self.demand)
        whole = self.machines.priced((own * size, others * other_size))
        order = np.lexsort((need, np.where(need < LARGEST, np.maximum(whole, need * share), need)))
        engines, rivals = decoders["software"][rows], decoders[self.rivals][rows]
        deep = decoders.number(PP)[rows], prefillers.number(PP)[columns]
        keys = engines, size, other_size, *deep
        sizes = list(zip(*(values[order].tolist() for values in keys), strict=True))
        order = first_of_keys(order, sizes, SAME)
        cheap = first_of_keys(order, rivals[order].tolist(), PAIRS // len(self.demand.queues))
        small = order[((size <= self.machines.own.unit) & (other_size <= self.machines.prefill.unit))[order]]
        best = np.union1d(cheap, first_of_keys(small, rivals[small].tolist(), SMALL))
        rows, columns = rows[best], columns[best]
        plans = decoders.take(rows)
        chosen = {f"prefill_{name}": prefillers.number(name)[columns] for name in DEGREES}
        chosen[CHUNK] = prefillers.number(CHUNK)[columns]
        if self.machines.unlike:
            chosen["prefill_accelerator"] = np.full(len(rows), self.machines.prefill.accelerator, dtype=object)
        if self.experts:
            for name in OPTIONS:
                chosen[name] = np.where(self.free(DECODE, name, plans), prefillers[name][columns], plans[name])
            copied = plans.number("redundant_experts"), prefillers.number("redundant_experts")[columns]
            chosen["redundant_experts"] = np.maximum(*copied)
        return Pairs(with_columns(plans, **chosen), *(values[best] for values in numbers))

    def free(self, part: str, option: str, plans: Table) -> np.ndarray:
        """Whether any value of an option suits replicas: they dispatch no tokens to experts, or only inside a node."""
        inside = (plans.number(TP) <= self.machine(part).inner) & (option == DISPATCH)
        return np.asarray((plans.number(DPA) == 1.0) | inside)

    def sized(self, pairs: Pairs) -> Probed:
        """Pools of pairs in whole replicas, within the targets.

        Little's law estimates the decode replicas; bisection finds the fewest prefill replicas for each number around.
        """
        demand, queues = self.demand, len(self.demand.queues)
        wait = np.repeat(demand.queues, len(pairs.batch)) * (demand.first if demand.first < NEVER else 1.0)
        pairs = Pairs(stacked([pairs.plans] * queues), *(np.tile(values, queues) for values in pairs[1:]))
        rate, share = pairs.rates(self.demand, self.output)
        size, other = replica_size(pairs.plans), replica_size(pairs.plans, PREFILL_POOL)
        most = min(self.machines.own.most, LARGEST)
        copies = np.ceil(rate * share * (size / pairs.decode + other / pairs.prefill) / most)
        if demand.load == demand.load and not demand.is_rate:
            copies = np.full(len(copies), np.ceil(demand.users / demand.load))
        estimates = [rate * share / copies / each for each in (pairs.decode, pairs.prefill)]
        flying = rate * (pairs.batch / pairs.decode + wait) if demand.is_rate else demand.users + 0.0 * rate
        numbers, results = TriedNumbers(estimates[0]), []
        for spread in _SPREADS:
            index, decoders = numbers.fresh(spread)
            if len(index):
                plans, needed = pairs.plans.take(index), estimates[1][index]
                fewest = self.fewest(plans, decoders, needed, flying[index], copies[index], numbers.bound[index])
                results.append(Probed.of(*fewest))
                numbers.add(index, decoders, fewest.fleet)
            numbers.keep(pairs.plans[self.rivals], 1.0 + spread)
        return Probed.joined(results).smallest()

    def fewest(
        self, plans: Table, decoders: Array, estimates: Array, users: Array, copies: Array, known: Array
    ) -> Probed:  # fmt: skip
        """Fleets with given numbers of decode replicas and the fewest prefill replicas within the targets.

        Fleets that cannot come near the smallest of their engine, or a ``known`` one, stay out.
        """

        def tried(rows: np.ndarray, prefillers: Array) -> tuple[Probed, np.ndarray]:
            return self.serving(plans.take(rows), decoders[rows], prefillers, users[rows], copies[rows])

        def near(low: Array, fleet: Array) -> np.ndarray:
            least = self.machines.priced(self.machines.counts(with_pools(plans, decoders, low + 1.0), copies))
            best = (1.0 + _SPREADS[0]) * least_of_keys(fleet, plans[self.rivals])
            return np.asarray(least <= np.minimum(best, (1.0 + EQUAL) * known))

        ends = np.floor(_ENDS[0] * estimates), np.ceil(_ENDS[1] * estimates) + 1.0
        prefillers, fleet, need = least_numbers(ends, np.outer(estimates, _LIKELY), tried, near)
        return Probed(in_copies(plans, decoders, prefillers, users, copies, self.demand.load)[0], fleet, need)

    def serving(
        self, plans: Table, decoders: Array, prefillers: Array, users: Array, copies: Array
    ) -> tuple[Probed, np.ndarray]:
        """Fleets that serve ``users`` with ``copies`` of given numbers of replicas, and whether more must prefill."""
        plans, copies = in_copies(plans, decoders, prefillers, users, copies, self.demand.load)
        results = evaluate(plans, self.catalog, results=STATE)
        good = self.demand.kept(results) & (held := self.held(plans, results))
        short = (results.number("ttft") > self.demand.first) | ~held
        if self.demand.is_rate:
            served = results.number("tokens_per_second") / self.output * copies
            few = served < self.demand.rate * (1.0 - ROUND)
            good, short = good & ~few, short | few
        counts = self.machines.counts(plans, copies)
        prices = [self.machines.priced(each) for each in (self.machines.in_servers(counts), counts)]
        return Probed(plans, *(np.where(good, price, np.inf) for price in prices)), short

    def held(self, plans: Table, results: Table) -> np.ndarray:
        """Whether hardly a request in flight waits for a prefill or a place; with a TTFT target some may."""
        if self.demand.first < NEVER:
            return np.ones(len(plans), dtype=bool)
        replicas, users = plans.number(COUNT) / replica_size(plans), plans.number(LOAD)
        waiting = results.number("tokens_per_second") / self.output * results.number("queue_time")
        places = users <= results.number("max_batch_size") * replicas * (1.0 + ROUND)
        one = np.isnan(plans.number("prefill_accelerators"))
        return np.asarray(np.where(one, places, waiting <= _WAITING * users))

    def divided(self, pairs: Pairs) -> Probed:
        """Pools that share a given number of accelerators, at their largest loads."""
        total = self.demand.size
        size, other = replica_size(pairs.plans), replica_size(pairs.plans, PREFILL_POOL)
        tried: list[tuple[float, ...]] = []
        for row in range(len(size)):
            number = np.arange(1.0, total // size[row] + 1.0)
            left = (total - number * size[row]) / other[row]
            whole = (left >= 1.0) & (left == np.floor(left))
            number, left = number[whole], left[whole]
            rate = np.minimum(number * pairs.decode[row], left * pairs.prefill[row])
            load = rate * pairs.batch[row] / pairs.decode[row]
            near = np.argsort(-rate, kind="stable")[:PAIRS].tolist()
            tried += [(row, number[best], left[best], load[best]) for best in near]
        rows, decoders, prefillers, loads = np.array(tried).reshape(-1, 4).T
        plans = with_pools(pairs.plans.take(rows.astype(np.int64)), decoders, prefillers)
        if not len(plans):
            return Probed(plans, np.zeros(0), np.zeros(0))
        plans = self.filled(plans, loads, _SIZED)
        results = evaluate(plans, self.catalog)
        used = np.array([self.fleet(plans.take([row]), results.take([row])).used for row in range(len(plans))])
        return Probed.of(plans, used, used)

    def filled(self, plans: Table, loads: Array, ends: tuple[float, float]) -> Table:
        """Plans at the largest load within the targets, in a range around given loads."""
        if self.demand.load == self.demand.load:
            loads, ends = np.full(len(plans), self.demand.load), (1.0, 1.0)
        low, high = ends[0] * loads, ends[1] * loads
        best = np.zeros(len(plans))
        for _ in range(2):
            steps = np.maximum(np.floor(np.linspace(low, high, _LOADS)), 1.0)
            index = np.tile(np.arange(len(plans)), _LOADS)
            tried = with_columns(plans.take(index), concurrency=steps.ravel())
            results = evaluate(tried, self.catalog, results=STATE)
            good = (self.demand.kept(results) & self.held(tried, results)).reshape(steps.shape)
            best = np.maximum(best, np.where(good, steps, 0.0).max(axis=0))
            width = (high - low) / (_LOADS - 1.0)
            low, high = np.maximum(best, 1.0), np.maximum(best + width, 1.0)
        rows = np.flatnonzero(best >= 1.0)
        return with_columns(plans.take(rows), concurrency=best[rows])
