"""Fleets: the mappings of copies and of replicas of pools that a search tries (sizes, degrees, stages and options), and
the cheapest pairs of a decode and a prefill mapping of two pools, with their numbers of replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.explore.fleet_plans import (
    CHUNK,
    COPY_SIZES,
    COUNT,
    DEGREES,
    DISPATCH,
    DPA,
    EP,
    EQUAL,
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
    Machine,
    Machines,
    Pairs,
    Probed,
    TriedNumbers,
    crossed,
    degrees_of,
    first_of_keys,
    in_copies,
    in_parts,
    least_numbers,
    least_of_keys,
    replica_size,
    same_values,
    whole_replicas,
    with_pools,
)
from xlperf.explore.mappings import sold_counts, started
from xlperf.explore.search import stacked
from xlperf.explore.space import divisors, with_columns

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
        self.known = set[object]()
        self.prompt, self.output = (float(formats.number(f"{name}_length")[0]) for name in ("prompt", "output"))
        decoding = (self.output - 1.0) * demand.tpot
        self.waiting = demand.first / decoding if decoding > 0.0 else 0.0  # longest wait over the decode time [-]

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


_CLOSE = {0.0: 20, 0.1: 10}
"""Pairs of a prefill and a decode mapping per engine whose pools are sized: the cheapest, by the part of a replica that
estimates of their numbers may be wrong by.
"""
SPLITS, SMALL, SAME = 20, 2, 2
"""Divisions of a given copy between two pools; cheapest pairs with replicas inside a server, and pairs with replicas of
equal sizes. [-]
"""
_ALIKE_NEED = 1.5
"""Ratio to the cheapest pair of an engine up to which its cheapest pair of each doubling of the decode replica counts.
[-]
"""
_LARGE = 1024.0
"""Accelerators from which on copies for equal parts of the demand are tried too: one copy for all has too many pairs of
numbers of replicas to find the best. [-]
"""
LARGEST = 4096.0  # most accelerators of one deployment with separate pools: larger fleets consist of several [-]
_SPREADS = (0.15, 0.05, 0.015)
"""Ranges of trial numbers of decode replicas around the best, over the estimate; as close to the smallest fleet of
their engine are pairs that get further numbers. [-]
"""
_ENDS = (0.4, 5.0)  # range of the numbers of prefill replicas over their estimate [-]
_LIKELY = (0.97, 1.12)
"""First trial numbers of prefill replicas over their estimate: most fleets need a number between them. [-]"""
_WAITING = 0.01  # largest share of the requests in flight that wait, without a TTFT target [-]
_LOADS, _FILLED, _SIZED = 12, (1.0, 1.15), (0.5, 1.3)
"""Loads per evaluation, and their range around a feasible or estimated load. [-]"""

STATE = ("fits", "tpot", "ttft", "max_batch_size", "tokens_per_second", "queue_time")
"""Results that give the largest load within the targets, and whether a plan satisfies them at its own load."""


class PoolSearch(FleetMappings):
    """Loads of copies within the targets, and sizes of separate pools, for one demand."""

    def fleet(self, plan: Table, results: Table) -> Fleet:
        """The fleet of copies of a plan."""
        load, users = float(plan.number(LOAD)[0]), self.demand.users
        users = users if users == users else self.demand.rate * float(results.number("latency")[0])
        counts = self.machines.counts(plan, np.ceil(users / load * (1.0 - ROUND)))
        whole = self.machines.in_servers(counts)
        used, accelerators = (float((own + other)[0]) for own, other in (counts, whole))
        return Fleet(plan, results, users, used, accelerators, float(self.machines.priced(whole)[0]))

    def limited(self, plans: Table, batch: Array) -> Table:
        """Plans whose replicas run a batch together at most, so that further requests wait for their first token and
        slow no one down; without a target of the first token, and where the engine starts none, as before.
        """
        if self.demand.first >= NEVER:
            return plans
        most = np.maximum(np.floor(batch * (1.0 + ROUND)), 1.0)
        starts = np.isin(np.arange(len(plans)), started(with_columns(plans, max_running_batch=most), self.catalog))
        return with_columns(plans, max_running_batch=np.where(starts, most, np.nan))

    def two_pools(self, decode: Probed, prefill: Probed) -> Table:
        """Plans of two pools at their largest loads, the cheapest of each engine."""
        pairs = self.paired(decode, prefill)
        if not len(pairs.batch):
            return pairs.plans
        if self.demand.size == self.demand.size:
            return self.divided(pairs).best(2, "software").plans
        tried = self.sized(*self.in_parts_too(pairs, decode, prefill))
        if not len(tried.plans):
            return tried.plans
        best = tried.best(2, "software").plans
        if self.demand.load == self.demand.load:
            return best
        best = stacked([best, in_parts(best)])
        return self.filled(best, best.number(LOAD), _FILLED)

    def in_parts_too(self, pairs: Pairs, decode: Probed, prefill: Probed) -> tuple[Pairs, Array]:
        """Pairs, and the least number of copies of each: of a large fleet also pairs for equal parts of the demand."""
        ones, demand = np.ones(len(pairs.batch)), self.demand
        parts = np.ceil(self.estimated(pairs).min() / _LARGE)
        if parts <= 1.0 or demand.load == demand.load:
            return pairs, ones
        smaller = copy(self)
        smaller.demand = replace(demand, users=demand.users / parts, rate=demand.rate / parts)
        more = smaller.paired(decode, prefill)
        numbers = [np.concatenate(values) for values in zip(pairs[1:], more[1:], strict=True)]
        copies = np.concatenate([ones, np.full(len(more.batch), parts)])
        return Pairs(stacked([pairs.plans, more.plans]), *numbers), copies

    def estimated(self, pairs: Pairs) -> Array:
        """Accelerators that the demand needs in pools of each pair, by Little's law."""
        rate, share = pairs.rates(self.demand, self.output)
        size, other = replica_size(pairs.plans), replica_size(pairs.plans, PREFILL_POOL)
        return rate * share * (size / pairs.decode + other / pairs.prefill)

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
        engines = decoders["software"][rows]
        keys = engines, size, other_size, decoders.number(PP)[rows], prefillers.number(PP)[columns]
        best = np.zeros(0, dtype=np.int64)
        for close, most in _CLOSE.items():
            own, others = whole_replicas(pairs, rate, share, self.demand, close)
            whole = self.machines.priced((own * size, others * other_size))
            likely = np.where(need < LARGEST, np.maximum(whole, need * share), need)
            order = np.lexsort((need, likely))
            sizes = list(zip(*(values[order].tolist() for values in keys), strict=True))
            order = first_of_keys(order, sizes, SAME)
            cheap = first_of_keys(order, engines[order].tolist(), most // len(self.demand.queues))
            best = np.union1d(best, cheap)
        small = order[((size <= self.machines.own.unit) & (other_size <= self.machines.prefill.unit))[order]]
        best = np.union1d(best, first_of_keys(small, engines[small].tolist(), SMALL))
        # Estimates of large replicas may all be wrong alike, so that pairs of every size come near the cheapest.
        near = order[(likely <= _ALIKE_NEED * least_of_keys(likely, engines))[order]]
        doublings = np.frexp(size)[1][near].tolist()
        best = np.union1d(best, first_of_keys(near, list(zip(engines[near].tolist(), doublings, strict=True)), 1))
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
        result = Pairs(with_columns(plans, **chosen), *(values[best] for values in numbers))
        running = np.minimum(result.batch, result.decode * (self.output - 1.0) * self.demand.tpot)  # by Little's law
        return result._replace(plans=self.limited(result.plans, running))

    def free(self, part: str, option: str, plans: Table) -> np.ndarray:
        """Whether any value of an option suits replicas: they dispatch no tokens to experts, or only inside a node."""
        inside = (plans.number(TP) <= self.machine(part).inner) & (option == DISPATCH)
        return np.asarray((plans.number(DPA) == 1.0) | inside)

    def sized(self, pairs: Pairs, least: Array) -> Probed:
        """Pools of pairs in whole replicas, within the targets, in a ``least`` number of copies.

        Little's law estimates the decode replicas; bisection finds the fewest prefill replicas for each number around.
        """
        demand, queues = self.demand, len(self.demand.queues)
        wait = np.repeat(demand.queues, len(pairs.batch)) * (demand.first if demand.first < NEVER else 1.0)
        pairs = Pairs(stacked([pairs.plans] * queues), *(np.tile(values, queues) for values in pairs[1:]))
        rate, share = pairs.rates(self.demand, self.output)
        copies = np.ceil(self.estimated(pairs) / min(self.machines.own.most, LARGEST))
        copies = np.maximum(copies, np.tile(least, queues))
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
            numbers.keep(pairs.plans["software"], 1.0 + spread)
        return Probed.joined(results).smallest()

    def fewest(
        self, plans: Table, decoders: Array, estimates: Array, users: Array, copies: Array, known: Array
    ) -> Probed:
        """Fleets with given numbers of decode replicas and the fewest prefill replicas within the targets.

        Fleets that cannot come near the smallest of their engine, or a ``known`` one, stay out.
        """

        def tried(rows: np.ndarray, prefillers: Array) -> tuple[Probed, np.ndarray]:
            return self.serving(plans.take(rows), decoders[rows], prefillers, users[rows], copies[rows])

        def near(low: Array, fleet: Array) -> np.ndarray:
            least = self.machines.priced(self.machines.counts(with_pools(plans, decoders, low + 1.0), copies))
            best = (1.0 + _SPREADS[0]) * least_of_keys(fleet, plans["software"])
            return np.asarray(least <= np.minimum(best, (1.0 + EQUAL) * known))

        ends = np.floor(_ENDS[0] * estimates), np.ceil(_ENDS[1] * estimates) + 1.0
        prefillers, fleet, need = least_numbers(ends, np.outer(estimates, _LIKELY), tried, near)
        return Probed(in_copies(plans, decoders, prefillers, users, copies, self.demand.load), fleet, need)

    def serving(
        self, plans: Table, decoders: Array, prefillers: Array, users: Array, copies: Array
    ) -> tuple[Probed, np.ndarray]:
        """Fleets that serve ``users`` with ``copies`` of given numbers of replicas, and whether more must prefill."""
        plans = in_copies(plans, decoders, prefillers, users, copies, self.demand.load)
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
            near = np.argsort(-rate, kind="stable")[:SPLITS].tolist()
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
