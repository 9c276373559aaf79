"""Sessions on a copy of a model under loads: hit rates of the tiers of the KV cache, and times that agree with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from xlperf.base.arrays import Array, array, exp, log
from xlperf.base.resources import stack_rows
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.equations.serving import sessions as equations
from xlperf.explore.fleet_plans import COUNT, replica_size
from xlperf.explore.mappings import started
from xlperf.explore.search import stacked
from xlperf.explore.space import with_columns
from xlperf.interop.logs import Trace, read_trace

TIERS = ("host", "drive", "remote")
_LOADS, _SHARES, _AGES = 16, 4, 400
"""Loads of a replica, and shares of the prompt in its cache, that are evaluated together; ages of a table. [-]"""
_SHORTEST, _LONGEST, _STEPS = 1e-4, 1e8, 45  # bounds of the time of a turn [s], and bisection steps between them [-]
_MOST_LOAD = 4096.0
_LEAST_LEFT = 1e-9  # least share of a link that is left for a load: enough for no load at all [-]
_TIMES = ("ttft", "tpot", "fits", "trust", "trust_reason")


@dataclass(frozen=True)
class Sessions:
    """Sessions of a form in internal units; tokens of a turn by part."""

    turns: float
    first: float
    added: float
    generated: float
    common: float
    think_time: float
    think_variation: float

    @staticmethod
    def of(form: Table) -> Sessions:
        """The sessions of a form, or of the trace that it names."""
        if path := form.stated_word("trace"):
            return Traced.of_trace(read_trace(path))
        names = ("turns", "added_tokens", "generated_tokens", "common_tokens", "think_time", "think_variation")
        turns, added, generated, common, time, variation = (form.value(name) for name in names)
        first = form.stated("first_tokens")
        return Sessions(turns, first if first == first else added, added, generated, common, time, variation)

    @property
    def _idle(self) -> float:
        """Mean tokens of its own over all turns of a session but the last."""
        return self.first + 0.5 * (self.turns - 2.0) * self.added + 0.5 * self.turns * self.generated

    @property
    def prompt(self) -> tuple[float, float, float]:
        """Mean common, own and new tokens of a prompt: of its own what earlier turns brought or got."""
        later = self.turns - 1.0
        return self.common, later / self.turns * self._idle, (self.first + later * self.added) / self.turns

    @property
    def waiting(self) -> float:
        """Mean tokens of its own that a session leaves for its next turn; of one turn what it leaves at all."""
        return self._idle if self.turns > 1.0 else self.last

    @property
    def last(self) -> float:
        """Tokens of its own after the last turn."""
        return self.first + (self.turns - 1.0) * self.added + self.turns * self.generated

    @property
    def running(self) -> float:
        """Mean tokens of its own during a turn: half of its output is there."""
        _, own, new = self.prompt
        return own + new + 0.5 * self.generated

    @property
    def reused(self) -> float:
        """Share of the prompt tokens that an endless cache holds. [-]"""
        common, own, new = self.prompt
        return (common + own) / (common + own + new)

    @property
    def thinking(self) -> float:
        """Mean think time of a turn: none follows the last one. [s]"""
        return self.think_time * (self.turns - 1.0) / self.turns

    def age(self, capacity: Array, rate: Array, time: Array, near: Array) -> Array:
        """Characteristic time of tiers of so many tokens at a rate of turns that take a time; ``near`` it. [s]"""
        usual, tokens = array(time) + self.think_time, (self.running, self.common)
        exact = equations.characteristic_time(capacity, usual, lambda each: self._cached(each, rate, time, *tokens))
        return np.maximum.accumulate(np.where(near > 0.0, exact, 0.0), axis=0)

    def filled(self) -> tuple[Array, Array]:
        """Ages, and the tokens that the sessions of one turn a second leave in a tier up to each age."""
        share = np.linspace(0.0, 1.0, _AGES + 1)[:-1]
        ages = (self.think_time + 1.0) * (share / (1.0 - share)) * (1.0 + share / (1.0 - share))
        return ages, self._cached(ages, 1.0, 0.0, 0.0, 0.0)

    def _cached(self, age: Array, rate: Array | float, time: Array | float, running: float, common: float) -> Array:
        """Tokens of a tier that keeps every session up to an age, at a rate of turns that take a time."""
        thinks, kept = (self.think_time, self.think_variation), (self.waiting, self.last)
        return equations.cached_tokens(age, rate, time, self.turns, *thinks, running, *kept, common)

    def within(self, age: Array) -> Array:
        """Share of the think times that are within an age."""
        return equations.within_time(age, self.think_time, self.think_variation)

    def stay(self, age: Array) -> Array:
        """Mean time that a session which thinks stays in a tier of an age. [s]"""
        return equations.mean_within_time(age, self.think_time, self.think_variation)


@dataclass(frozen=True)
class Traced(Sessions):
    """Sessions of a trace: means of its requests, and its times instead of a distribution."""

    trace: Trace

    @staticmethod
    def of_trace(trace: Trace) -> Traced:
        """The mean session of a trace."""
        turns = trace.requests / max(trace.sessions, 1)
        later = max(trace.requests - trace.sessions, 1)
        added = (trace.new * trace.requests - trace.first * trace.sessions) / later
        weights = np.diff(trace.reused, prepend=0.0)
        mean = float((weights * trace.intervals).sum() / max(weights.sum(), 1e-30))
        first = trace.first if trace.sessions else added
        return Traced(turns, first, max(added, 1.0), max(trace.generated, 1.0), 0.0, mean, 0.0, trace)

    @property
    def prompt(self) -> tuple[float, float, float]:
        """Mean common, own and new tokens of a prompt: what all share comes again soon."""
        return 0.0, self.trace.own, max(self.trace.new, 1.0)

    @property
    def waiting(self) -> float:
        """Mean tokens that come again in a later turn."""
        return self.trace.own * self.turns / max(self.turns - 1.0, 1e-9) if self.turns > 1.0 else self.last

    def age(self, capacity: Array, rate: Array, time: Array, near: Array) -> Array:
        """The age of the table: a trace has steps."""
        return near

    def filled(self) -> tuple[Array, Array]:
        """Ages, and the tokens that one request a second leaves in a tier up to each age."""
        known = self.trace.intervals[self.trace.intervals > 0.0]
        ages = np.concatenate([[0.0], _equal_ratios(known[0], 1e3 * known[-1], _AGES)]) if len(known) else np.zeros(1)
        short = np.searchsorted(self.trace.gaps, ages, side="right")
        ended = np.isfinite(self.trace.gaps)
        used = np.concatenate([[0.0], np.cumsum(np.where(ended, self.trace.gaps, 0.0) * self.trace.held)])
        held = np.concatenate([[0.0], np.cumsum(self.trace.held)])
        return ages, used[short] + ages * (held[-1] - held[short])

    def within(self, age: Array) -> Array:
        """Share of the tokens that come again which do so within an age."""
        if not len(self.trace.intervals):
            return np.zeros(age.shape)
        reused = np.concatenate([[0.0], self.trace.reused])
        return array(reused[np.searchsorted(self.trace.intervals, age, side="right")] / reused[-1])

    def stay(self, age: Array) -> Array:
        """Mean time that tokens which come again stay in a tier of an age. [s]"""
        weights = np.diff(self.trace.reused, prepend=0.0)
        stays = np.minimum(self.trace.intervals, np.expand_dims(age, -1)) * weights
        return array(stays.sum(axis=-1) / max(float(weights.sum()), 1e-30))


class Tier(NamedTuple):
    """A tier outside the accelerators: its place, its row, size and rate per accelerator, price of a B and second."""

    place: str
    name: str
    size: float
    bandwidth: float
    latency: float
    price: float


def tiers_of(form: Table, catalog: Catalog) -> list[Tier]:
    """The tiers that a form names, the fastest first."""
    table, tiers = catalog.tables["kv_tiers"], []
    for place in TIERS:
        row = int(catalog.rows("kv_tiers", form.text(f"{place}_tier"), form, f"{place}_tier")[0])
        if row < 0:
            continue
        stated = form.stated(f"{place}_memory")
        size, bandwidth, price = (float(table.number(name)[row]) for name in ("size", "bandwidth", "price"))
        latency, life = (float(table.filled(name)[row]) for name in ("latency", "life"))
        size = stated if stated == stated else size
        tiers.append(Tier(place, str(table["kv_tier"][row]), size, bandwidth, latency, price / life))
    return tiers


def whole(tokens: float) -> float:
    """Tokens of a plan, whose lengths are whole."""
    return max(float(np.round(tokens)), 1.0)


@dataclass(frozen=True)
class Copy:
    """A copy of the model, whose replicas share its sessions evenly: the plan of one replica at one request, tokens in
    the memory of the replica, bytes of a token on each of its accelerators.
    """

    plan: Table
    replicas: float
    tokens: float
    token_size: float
    overlap: bool
    first: float  # prefill of the first turn alone [s]
    hit: float  # of a later turn whose tokens are cached
    miss: float  # of one whose own tokens are not

    @property
    def size(self) -> float:
        """Accelerators of a replica."""
        return self.plan.stated(COUNT)

    @staticmethod
    def of(plan: Table, sessions: Sessions, overlap: str, catalog: Catalog) -> Copy | None:
        """The copy of a plan; None if its memory cannot hold one turn."""
        common, own, new = sessions.prompt
        later = sessions.turns / max(sessions.turns - 1.0, 1.0)
        own, added = (own * later, sessions.added) if sessions.turns > 1.0 else (own, new)
        size, ranks = float(replica_size(plan)[0]), plan.value("data_parallel_attention")
        replicas, plan = plan.stated(COUNT) / size, with_columns(plan, num_accelerators=size)
        alone = with_columns(plan, output_length=whole(sessions.generated))
        rows = stacked(
            [
                with_columns(alone, concurrency=ranks, prompt_length=whole(common + own + added), shared_prefix=0.0),
                *(
                    with_columns(alone, concurrency=1.0, prompt_length=whole(length), shared_prefix=kept / length)
                    for length, kept in (
                        (common + sessions.first, common),
                        (common + own + added, common + own),
                        (common + own + added, common),
                    )
                ),
            ]
        )
        results = evaluate(rows, catalog, results=(*_TIMES, "kv_cache_tokens", "memory_kv_cache"))
        tokens, fits = results.stated("kv_cache_tokens"), results.number("fits")[1] == 1.0
        if not tokens > 0.0 or not fits:
            return None
        token_size = results.stated("memory_kv_cache") / (ranks * (common + own + added + sessions.generated))
        engine = plan.word("software")
        stated = {row["engine"]: row["overlap"] for row in stack_rows("kv_loads")}.get(engine.partition(" ")[0], "no")
        overlaps = (overlap or stated) == "yes"
        return Copy(plan, replicas, tokens, token_size, overlaps, *results.number("ttft")[1:].tolist())


class State(NamedTuple):
    """A replica at (variants of the tiers, loads); ages and hits have the tiers first, the accelerators before."""

    load: Array
    ages: Array
    hits: Array  # share of the turns that a tier holds the session of and no faster one
    loading: Array  # time to load a mean session from each outer tier [s]
    ttft_first: Array
    ttft_later: Array
    tpot: Array
    turn_time: Array
    sessions: Array
    kept: npt.NDArray[np.bool_]  # whether the targets and the memory are kept

    def at(self, variant: int, place: int) -> State:
        """One load of one variant."""
        return State._make(values[..., variant, place] for values in self)


class Surface(NamedTuple):
    """Times of the mean turn on a replica, (shares of the prompt in the cache, loads); alone for each share."""

    loads: Array
    shares: Array
    ttft: Array
    tpot: Array
    alone: Array

    @staticmethod
    def of(copy: Copy, sessions: Sessions, loads: Array, catalog: Catalog) -> Surface:
        """Evaluate the mean turn at some loads and shares."""
        common, own, new = sessions.prompt
        prompt = common + own + new
        shares = np.linspace(common / prompt, min(sessions.reused, 1.0 - 1.0 / prompt), _SHARES)
        load = np.concatenate([np.tile(loads, _SHARES), np.ones(_SHARES)])
        plans = with_columns(
            copy.plan.take(np.zeros(len(load), dtype=np.int64)),
            concurrency=load,
            prompt_length=whole(prompt),
            output_length=whole(sessions.generated),
            shared_prefix=np.concatenate([np.repeat(shares, len(loads)), shares]),
        )
        results = evaluate(plans, catalog, results=_TIMES)
        ttft, tpot = (results.number(name) for name in ("ttft", "tpot"))
        grid = _SHARES, len(loads)
        return Surface(loads, shares, ttft[:-_SHARES].reshape(grid), tpot[:-_SHARES].reshape(grid), ttft[-_SHARES:])

    def at(self, share: Array) -> tuple[Array, Array]:
        """Wait before the prefill and time per token at a share for each load, (..., loads)."""
        step = max(float(self.shares[1] - self.shares[0]), 1e-12)
        place = np.clip((share - self.shares[0]) / step, 0.0, _SHARES - 1.0)
        low = np.minimum(place.astype(np.int64), _SHARES - 2)
        part, columns = place - low, np.broadcast_to(np.arange(len(self.loads)), share.shape)
        queued = np.maximum(self.ttft - self.alone[:, None], 0.0)
        wait, step_time = (
            values[low, columns] * (1.0 - part) + values[low + 1, columns] * part for values in (queued, self.tpot)
        )
        return wait, step_time


def states(copy: Copy, sessions: Sessions, tiers: Sequence[Tier], sizes: Array, surface: Surface, form: Table) -> State:
    """A replica under loads with tiers of several sizes: hit rates and times that agree.

    The longer a turn takes, the fewer begin, the longer a tier keeps them and the shorter the turn: its time is the
    root of a decreasing function, by bisection. ``sizes``: bytes of each tier per accelerator, (tiers, variants).
    """
    common, own, new = sessions.prompt
    loads = np.broadcast_to(surface.loads, (sizes.shape[1], len(surface.loads)))
    capacity = np.concatenate([np.full((1, sizes.shape[1]), copy.tokens), sizes / copy.token_size])[..., None]
    waiting = sessions.waiting * copy.token_size
    ages, filled = sessions.filled()

    def turn(time: Array) -> tuple[Array, ...]:
        # Tokens between turns that a tier has room for, per turn that begins in a second
        room = np.maximum(capacity - common - loads * sessions.running, 0.0) * time / loads
        kept = np.where(room < filled[-1], np.interp(room, filled, ages), np.inf)
        kept = np.maximum.accumulate(np.where(capacity > 0.0, kept, 0.0), axis=0)
        within = sessions.within(kept)
        hits = np.diff(np.concatenate([np.zeros((1, *loads.shape)), within]), axis=0)
        queued, tpot = surface.at((common + own * hits.sum(axis=0)) / (common + own + new))
        loading = np.zeros((len(tiers), *loads.shape))
        for number, tier in enumerate(tiers):
            rate = loads / time * hits[number + 1]
            # Loads share the link fairly (L. Kleinrock, "Queueing Systems", vol. 2, section 4.4: processor sharing).
            free = np.maximum(tier.bandwidth - rate * waiting, _LEAST_LEFT * tier.bandwidth)
            loading[number] = tier.latency + waiting / free
        loaded = np.maximum(loading, copy.hit) if copy.overlap else loading + copy.hit
        parts = hits[1:] * np.where(hits[1:] > 0.0, loaded, 0.0)
        missed = np.maximum(1.0 - hits.sum(axis=0), 0.0)
        later = queued + hits[0] * copy.hit + parts.sum(axis=0) + missed * copy.miss
        mean = (queued + copy.first + (sessions.turns - 1.0) * later) / sessions.turns
        return mean + (sessions.generated - 1.0) * tpot, kept, hits, loading, queued + copy.first, later, tpot

    low, high = np.full(loads.shape, _SHORTEST), np.full(loads.shape, _LONGEST)
    for _ in range(_STEPS):
        middle = np.sqrt(low * high)
        longer = turn(middle)[0] > middle
        low, high = np.where(longer, middle, low), np.where(longer, high, middle)
    time, kept, hits, loading, first, later, tpot = turn(high)
    kept = sessions.age(capacity, loads / time, time, kept)
    hits = np.diff(np.concatenate([np.zeros((1, *loads.shape)), sessions.within(kept)]), axis=0)
    fits = loads * sessions.running + common <= copy.tokens
    fast = tpot * form.value("speed_per_user") <= 1.0 + 1e-9
    target = form.stated("ttft_target")
    soon = ~(later > (target if target == target else np.inf) * (1.0 + 1e-9)) & (high < 0.5 * _LONGEST)
    alive = loads * (time + sessions.thinking) / time
    return State(loads, kept, hits, loading, first, later, tpot, time, alive, fits & fast & soon)


def best_states(
    copy: Copy,
    sessions: Sessions,
    tiers: Sequence[Tier],
    sizes: Array,
    form: Table,
    catalog: Catalog,
    least: float = 1.0,
) -> list[State | None]:
    """The state of a replica with most sessions within the targets, for each column of sizes of the tiers.

    ``least``: the smallest load to try.
    """
    most = max(np.floor((copy.tokens - sessions.common) / sessions.running), least)
    loads: Array = np.unique(np.round(_equal_ratios(least, max(min(most, _MOST_LOAD), least), _LOADS)))
    best: list[State | None] = [None] * sizes.shape[1]
    for _ in range(2):  # loads of equal ratio, then all between the neighbours of the best
        found = states(copy, sessions, tiers, sizes, Surface.of(copy, sessions, loads, catalog), form)
        near = []
        for variant in range(sizes.shape[1]):
            alive = np.where(found.kept[variant], found.sessions[variant], -np.inf)
            place = int(np.argmax(alive))
            if np.isfinite(alive[place]):
                best[variant] = found.at(variant, place)
                near.append(np.linspace(loads[max(place - 1, 0)], loads[min(place + 1, len(loads) - 1)], _LOADS))
        if not near:
            break
        loads = np.unique(np.round(np.concatenate(near)))
    return best


def queued_states(
    copy: Copy, sessions: Sessions, tiers: Sequence[Tier], sizes: Array, form: Table, catalog: Catalog
) -> list[State | None]:
    """The best states, with turns that wait: beyond a limit of the batch they slow no other one.

    Where the speed of a session ends the loads, the best one is a limit from which on loads are tried again, so that
    the time to the first token uses its target whatever the size of the tiers.
    """
    best = best_states(copy, sessions, tiers, sizes, form, catalog)
    target, speed = form.stated("ttft_target"), form.filled("speed_per_user")[0]
    slow = (state for state in best if state is not None and state.ttft_later < target * speed * state.tpot)
    for limit in sorted({float(state.load) for state in slow}):
        plan = with_columns(copy.plan, max_running_batch=limit)
        if len(started(plan, catalog)):
            others = best_states(replace(copy, plan=plan), sessions, tiers, sizes, form, catalog, limit)
            pairs = ([state for state in pair if state is not None] for pair in zip(best, others, strict=True))
            best = [max(pair, key=lambda state: float(state.sessions), default=None) for pair in pairs]
    return best


def shared_evenly(state: State, sessions: Sessions, alive: float) -> State:
    """A state with fewer sessions at its times, which are then on the safe side."""
    return state._replace(
        sessions=np.array(alive), load=alive * state.turn_time / (state.turn_time + sessions.thinking)
    )


def _equal_ratios(first: float, last: float, number: int) -> Array:
    """Values of equal ratio from the first to the last."""
    return exp(np.linspace(float(log(first)), float(log(last)), number))
