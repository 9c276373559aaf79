"""Sessions on a copy of a model: hit rate of each tier of the KV cache, times, sessions within the targets, their cost.

A form (a row of the table ``sessions``) states the sessions. Mappings are those that :mod:`xlperf.explore.serve` finds
for their mean turn; on each the load of a copy grows until a target is missed, and the mapping whose sessions are
cheapest answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from xlperf.base.arrays import Array, array
from xlperf.base.resources import stack_rows
from xlperf.base.units import MILLION, YEAR
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.equations.serving import sessions as equations
from xlperf.explore.fleet_plans import COUNT, DEGREES, ONE, Fleet, engine_title, with_columns
from xlperf.explore.money import MANY_USERS, Hours, cost_words, hours_of, lacking_words, with_prices
from xlperf.explore.search import stacked
from xlperf.explore.search_results import TABLES, Answer, dollars, short_name
from xlperf.explore.serve import serve_answer, serving_ways
from xlperf.interop.session_traces import Trace, read_trace

TIERS = ("host", "drive", "remote")
SIZES = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Sizes of the host's memory in the table, over the one of the form; the first without. [-]"""
COPY_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Accelerators of a copy that are tried besides the one that Serve chooses. [-]"""
MONTH = YEAR / 12.0
_GIGA = 1000.0 * MILLION
_LOADS, _SHARES, _AGES = 16, 4, 400
"""Loads of a copy, and shares of the prompt in its cache, that are evaluated together; ages of a table. [-]"""
_SHORTEST, _LONGEST, _STEPS = 1e-4, 1e8, 45
"""Bounds of the time of a turn [s], and bisection steps between them [-]."""
_MOST_LOAD = 4096.0
_SERVED = ("model", "accelerator", "software", "precision", "kv_precision", COUNT, *DEGREES, "speed_per_user",
           "ttft_target", "payment", "hour_price")  # fmt: skip
"""Entries that the form Serve has too."""
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
        if path := str(form.text("trace")[0]):
            return Traced.of_trace(read_trace(path))
        names = ("turns", "added_tokens", "generated_tokens", "common_tokens", "think_time", "think_variation")
        turns, added, generated, common, time, variation = (float(form.filled(name)[0]) for name in names)
        first = float(form.number("first_tokens")[0])
        return Sessions(turns, first if first == first else added, added, generated, common, time, variation)

    @property
    def tokens(self) -> tuple[float, float, float]:
        """Turns of a session that bring tokens, as equations take them: first, added, generated."""
        return self.first, self.added, self.generated

    @property
    def prompt(self) -> tuple[float, float, float]:
        """Mean common, own and new tokens of a prompt."""
        own = float(equations.own_prompt_tokens(self.turns, *self.tokens))
        return self.common, own, float(equations.new_prompt_tokens(self.turns, self.first, self.added))

    @property
    def waiting(self) -> float:
        """Mean tokens of its own that a session leaves for its next turn; of one turn what it leaves at all."""
        return float(equations.idle_tokens(max(self.turns, 2.0), *self.tokens)) if self.turns > 1.0 else self.last

    @property
    def last(self) -> float:
        """Tokens of its own after the last turn."""
        return float(equations.tokens_after_turn(self.turns, *self.tokens))

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

    def filled(self) -> tuple[Array, Array]:
        """Ages, and the tokens that the sessions of one turn a second leave in a tier up to each age."""
        share = np.linspace(0.0, 1.0, _AGES + 1)[:-1]
        ages = (self.think_time + 1.0) * (share / (1.0 - share)) * (1.0 + share / (1.0 - share))
        tokens = equations.cached_tokens(
            ages, 1.0, 0.0, self.turns, self.think_time, self.think_variation, 0.0, self.waiting, self.last, 0.0
        )
        return ages, tokens

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

    def filled(self) -> tuple[Array, Array]:
        """Ages, and the tokens that one request a second leaves in a tier up to each age."""
        known = self.trace.intervals[self.trace.intervals > 0.0]
        ages = np.concatenate([[0.0], np.geomspace(known[0], 1e3 * known[-1], _AGES)]) if len(known) else np.zeros(1)
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
        stated = float(form.number(f"{place}_memory")[0])
        size, bandwidth, price = (float(table.number(name)[row]) for name in ("size", "bandwidth", "price"))
        latency, life = (float(table.filled(name)[row]) for name in ("latency", "life"))
        size = stated if stated == stated else size
        tiers.append(Tier(place, str(table["kv_tier"][row]), size, bandwidth, latency, price / life))
    return tiers


def _whole(tokens: float) -> float:
    """Tokens of a plan, whose lengths are whole."""
    return max(float(np.round(tokens)), 1.0)


@dataclass(frozen=True)
class Copy:
    """A copy of the model: its plan at one request, tokens in its memory, bytes of a token on each accelerator."""

    plan: Table
    tokens: float
    token_size: float
    overlap: bool
    first: float  # prefill of the first turn alone [s]
    hit: float  # of a later turn whose tokens are cached
    miss: float  # of one whose own tokens are not

    @property
    def size(self) -> float:
        """Accelerators."""
        return float(self.plan.number(COUNT)[0])

    @staticmethod
    def of(plan: Table, sessions: Sessions, overlap: str, catalog: Catalog) -> Copy | None:
        """The copy of a plan; None if its memory cannot hold one turn."""
        common, own, new = sessions.prompt
        later = sessions.turns / max(sessions.turns - 1.0, 1.0)
        own, added = (own * later, sessions.added) if sessions.turns > 1.0 else (own, new)
        replicas = float(plan.filled("data_parallel_attention")[0])
        alone = with_columns(plan, output_length=_whole(sessions.generated))
        rows = stacked([
            with_columns(alone, concurrency=replicas, prompt_length=_whole(common + own + added), shared_prefix=0.0),
            *(
                with_columns(alone, concurrency=1.0, prompt_length=_whole(length), shared_prefix=kept / length)
                for length, kept in (
                    (common + sessions.first, common), (common + own + added, common + own),
                    (common + own + added, common),
                )
            ),
        ])  # fmt: skip
        results = evaluate(rows, catalog, results=(*_TIMES, "kv_cache_tokens", "memory_kv_cache"))
        tokens, fits = float(results.number("kv_cache_tokens")[0]), results.number("fits")[1] == 1.0
        if not tokens > 0.0 or not fits:
            return None
        size = float(results.number("memory_kv_cache")[0]) / (replicas * (common + own + added + sessions.generated))
        engine = str(plan.filled("software")[0])
        stated = {row["engine"]: row["overlap"] for row in stack_rows("kv_loads")}.get(engine.partition(" ")[0], "no")
        return Copy(plan, tokens, size, (overlap or stated) == "yes", *results.number("ttft")[1:].tolist())


class State(NamedTuple):
    """A copy at loads, (variants of the tiers, loads); ages and hits have the tiers first, the accelerators before."""

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
    """Times of the mean turn on a copy, (shares of the prompt in the cache, loads); alone for each share."""

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
            copy.plan.take(np.zeros(len(load), dtype=np.int64)), concurrency=load, prompt_length=_whole(prompt),
            output_length=_whole(sessions.generated),
            shared_prefix=np.concatenate([np.repeat(shares, len(loads)), shares]),
        )  # fmt: skip
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
    """A copy under loads with tiers of several sizes: hit rates and times that agree.

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
            loading[number] = equations.shared_load_time(waiting, tier.bandwidth, rate, tier.latency)
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
    fits = loads * sessions.running + common <= copy.tokens
    fast = tpot * float(form.filled("speed_per_user")[0]) <= 1.0 + 1e-9
    target = float(form.number("ttft_target")[0])
    soon = ~(later > (target if target == target else np.inf) * (1.0 + 1e-9)) & (high < 0.5 * _LONGEST)
    alive = loads * (time + sessions.thinking) / time
    return State(loads, kept, hits, loading, first, later, tpot, time, alive, fits & fast & soon)


class Choice(NamedTuple):
    """A copy with the load at which it holds most sessions within the targets, for each size of the host's memory."""

    copy: Copy
    fleet: Fleet
    states: list[State | None]
    hours: Hours

    def cost(self, variant: int, turns: float) -> float:
        """Cost of a session of so many turns; infinite if the targets are missed. [USD]"""
        state = self.states[variant]
        if state is None:
            return np.inf
        return self.hours.paid * self.copy.size * float(state.turn_time / state.load) * turns

    def rate(self, variant: int) -> float:
        """Turns that a copy begins within the targets. [1/s]"""
        state = self.states[variant]
        return 0.0 if state is None else float(state.load / state.turn_time)


def best_states(
    copy: Copy, sessions: Sessions, tiers: Sequence[Tier], sizes: Array, form: Table, catalog: Catalog
) -> list[State | None]:
    """The state of a copy with most sessions within the targets, for each column of sizes of the tiers."""
    most = max(np.floor((copy.tokens - sessions.common) / sessions.running), 1.0)
    loads: Array = np.unique(np.round(np.geomspace(1.0, min(most, _MOST_LOAD), _LOADS)))
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


def shared_evenly(state: State, sessions: Sessions, alive: float) -> State:
    """A state with fewer sessions at its times, which are then on the safe side."""
    return state._replace(
        sessions=np.array(alive), load=alive * state.turn_time / (state.turn_time + sessions.thinking)
    )


def sessions_answer(form: Table, catalog: Catalog) -> Answer:
    """How many sessions a copy holds, the hit rates and times then, their cost, and more or less memory of the host.

    ``form``: one row of kind ``sessions``. Returns results of the kind ``sessions_results`` with the tables ``memory``
    and ``tiers``.
    """
    sessions, tiers = Sessions.of(form), tiers_of(form, catalog)
    asked = _serving(form, sessions)
    own = np.array([[tier.size] for tier in tiers]).reshape(len(tiers), 1)
    chosen = [
        choice
        for fleet in _fleets(asked, catalog)
        if (choice := _choice(form, asked, fleet, sessions, tiers, own, catalog))
    ]
    kept = [choice for choice in chosen if choice.states[0] is not None]
    if not kept:
        return _refused(asked, bool(chosen), catalog)
    best = min(kept, key=lambda choice: choice.cost(0, sessions.turns) / max(choice.hours.paid, 1e-30))
    varied = own
    if tiers and tiers[0].place == TIERS[0] and tiers[0].size > 0.0:
        varied = np.repeat(own, 1 + len(SIZES), axis=1)
        varied[0, 1:] = tiers[0].size * np.array(SIZES)
    best = best._replace(states=best_states(best.copy, sessions, tiers, varied, form, catalog))
    return _answer(form, sessions, tiers, varied, best)


def _serving(form: Table, sessions: Sessions) -> Table:
    """The form Serve for the mean turn with an endless cache."""
    columns = {name: form[name] for name in _SERVED if name in form}
    common, own, new = sessions.prompt
    asked = Table("serve", columns, form.place, {name: mask for name, mask in form.auto.items() if name in columns})
    return with_columns(
        asked, users=MANY_USERS, prompt_length=_whole(common + own + new), output_length=_whole(sessions.generated),
        shared_prefix=min(sessions.reused, 1.0 - 1.0 / (common + own + new)), mode=ONE,
    )  # fmt: skip


def _fleets(asked: Table, catalog: Catalog) -> list[Fleet]:
    """Ways to serve the mean turn: of the form's copy, or of copies of every size that one replica fills."""
    fleets = serving_ways(asked, catalog)
    if asked.number(COUNT)[0] == asked.number(COUNT)[0]:
        return fleets
    for size in COPY_SIZES:
        fleets += serving_ways(with_columns(asked, num_accelerators=size), catalog)
    named: dict[object, Fleet] = {}
    for fleet in fleets:
        plan = fleet.plan
        degrees = tuple(float(plan.filled(name)[0]) for name in DEGREES)
        if float(plan.number(COUNT)[0]) == degrees[0] * float(plan.filled("pipeline_parallel")[0]):
            named.setdefault((str(plan.filled("software")[0]), *degrees), fleet)
    return list(named.values()) or fleets


def _choice(
    form: Table, asked: Table, fleet: Fleet, sessions: Sessions, tiers: Sequence[Tier], sizes: Array, catalog: Catalog
) -> Choice | None:
    plan = with_columns(with_prices(fleet.plan, asked), concurrency=1.0)
    copy = Copy.of(plan, sessions, str(form.text("load_overlap")[0]), catalog)
    if copy is None:
        return None
    hours = hours_of(asked, fleet.plan, fleet.results, catalog)[0]
    return Choice(copy, fleet, best_states(copy, sessions, tiers, sizes, form, catalog), hours)


def _refused(asked: Table, is_missed: bool, catalog: Catalog) -> Answer:
    """The reason why no copy holds a session."""
    served = serve_answer(asked, catalog)
    reason = str(served.get("reason", "")) or (
        "no load keeps the targets with these hits: allow a later first token or give the cache more memory"
        if is_missed
        else "no copy has memory for the cache of one turn: give it more accelerators"
    )
    return {"reason": reason, "answer": f"No answer: {reason}."}


def _answer(form: Table, sessions: Sessions, tiers: Sequence[Tier], sizes: Array, best: Choice) -> Answer:
    state, copy, plan = best.states[0], best.copy, best.fleet.plan
    assert state is not None
    common, own, new = sessions.prompt
    prompt = common + own + new
    stated = float(form.number("sessions")[0])
    alive = float(state.sessions)
    copies = float(np.ceil(stated / alive - 1e-9)) if stated == stated else 1.0
    if stated == stated:
        state = shared_evenly(state, sessions, stated / copies)
        best, alive = best._replace(states=[state, *best.states[1:]]), stated / copies
    shares = {"accelerator": (common + own * float(state.hits[0])) / prompt}
    shares |= {tier.place: own * float(hit) / prompt for tier, hit in zip(tiers, state.hits[1:], strict=True)}
    rate = best.rate(0)
    answer: Answer = {
        "sessions_per_accelerator": alive / copy.size, "sessions_per_copy": alive, "copies": copies,
        "running_sessions": float(state.load), "copy_size": copy.size, "accelerators": copies * copy.size,
        "resident_sessions": _resident(sessions, state), "reused_share": sessions.reused,
        "hit_rate": float(sum(shares.values())), **{f"hit_rate_{place}": share for place, share in shares.items()},
        "ttft_first": float(state.ttft_first), "ttft_later": float(state.ttft_later), "tpot": float(state.tpot),
        "turn_time": float(state.turn_time), "turn_rate": rate, "cache_tokens": copy.tokens,
        "tokens_per_session": sessions.waiting, "cache_per_session": sessions.waiting * copy.token_size * copy.size,
        "eviction_time": float(state.ages[0]),
    }  # fmt: skip
    answer |= {name: float(plan.filled(name)[0]) for name in DEGREES}
    answer |= best.hours.results | {
        "cost_per_session": best.cost(0, sessions.turns),
        "cost_per_million_output_tokens": best.cost(0, sessions.turns) / (sessions.turns * sessions.generated),
    }
    for tier, age in zip(tiers, state.ages[1:], strict=True):
        answer[f"eviction_time_{tier.place}"] = float(age)
    memory, worth, size = _memory(sessions, tiers, sizes, best)
    if tiers and tiers[0].place == TIERS[0]:
        answer |= {"host_worth": worth, "host_price": tiers[0].price * MONTH, "best_host_memory": size}
    answer |= {name: str(plan.filled(name)[0]) for name in ("software", "precision", "kv_precision")}
    answer |= {name: str(best.fleet.results[name][0]) for name in ("trust", "trust_reason")}
    answer["limit"] = _limit(form, sessions, copy, state)
    answer["price_basis"] = best.hours.basis
    order = "overlap" if copy.overlap else "precede"
    traced = f"trace of {sessions.trace.requests:,} requests; " if isinstance(sessions, Traced) else ""
    answer["defaults_used"] = (
        f"{traced}{answer['software']}, continuous batching in one pool; sessions stay with their copy; least recently "
        f"used is evicted; each tier also holds what the faster ones do; loads {order} prefill"
    )
    answer["tiers_used"] = "; ".join(_tier_words(tier) for tier in tiers) or "no tier outside the accelerators"
    answer["answer"] = _sentence(form, answer, best, sessions)
    tables = {"memory": memory, "tiers": _tiers(sessions, copy, tiers, state, shares)}
    return answer | {TABLES: tables}


def _resident(sessions: Sessions, state: State) -> float:
    """Sessions in the memory of the accelerators: in a turn, or thinking for less than its characteristic time."""
    think = sessions.stay(state.ages[0])
    share = (sessions.turns - 1.0) / sessions.turns
    return float(state.load * (1.0 + share * think / state.turn_time))


def _memory(sessions: Sessions, tiers: Sequence[Tier], sizes: Array, best: Choice) -> tuple[Table, float, float]:
    """The table of sizes of the host's memory, the worth of a GB of the form's own, and the best size."""
    common, own, new = sessions.prompt
    lines: list[dict[str, object]] = []
    price = tiers[0].price if tiers else np.nan
    spent = []
    for variant in range(1, sizes.shape[1]):
        state = best.states[variant]
        size = float(sizes[0, variant])
        line: dict[str, object] = {"host_memory": size}
        if state is not None:
            cost = best.cost(variant, sessions.turns)
            line |= {
                "hit_rate": (common + own * float(state.hits.sum())) / (common + own + new),
                "sessions_per_copy": float(state.sessions), "ttft_later": float(state.ttft_later),
                "cost_per_session": cost,
            }  # fmt: skip
            spent.append((cost * (1.0 + price * size / best.hours.paid), size))
        if variant > 1 and best.rate(variant - 1) > 0.0:
            gain = best.rate(variant) / best.rate(variant - 1) - 1.0
            worth = best.hours.paid * MONTH * gain / (size - float(sizes[0, variant - 1]))
            line |= {"worth_per_month": worth, "pays": "pays" if worth > price * MONTH else "does not"}
        lines.append(line)
    columns = {
        column.name: column.array([line.get(column.name, "" if column.is_text else np.nan) for line in lines])
        for column in table_schema("sessions_memory").columns
    }
    own = float(columns["worth_per_month"][SIZES.index(1.0) + 1]) if lines else np.nan  # of the next larger size
    return Table("sessions_memory", columns), own, min(spent, default=(0.0, np.nan))[1]


def _tiers(sessions: Sessions, copy: Copy, tiers: Sequence[Tier], state: State, shares: Mapping[str, float]) -> Table:
    """The tiers with their size, rate, eviction time and hit rate."""
    sizes = [copy.tokens * copy.token_size, *(tier.size for tier in tiers)]
    columns = {
        "tier": np.array(["accelerators", *(tier.name for tier in tiers)], dtype=object),
        "size": np.array(sizes),
        "bandwidth": np.array([np.nan, *(tier.bandwidth for tier in tiers)]),
        "eviction_time": state.ages,
        "hit_rate": np.array(list(shares.values())),
        "load_time": np.array([np.nan, *state.loading]),
    }
    return Table("sessions_tiers", columns)


def _limit(form: Table, sessions: Sessions, copy: Copy, state: State) -> str:
    """The resource that is nearest to its target."""
    used = {
        "the speed of a session is the limit": float(state.tpot * form.filled("speed_per_user")[0]),
        "the time to the first token is the limit": float(
            np.nan_to_num(state.ttft_later / form.number("ttft_target")[0])
        ),
        "memory for the turns at once is the limit": float(
            (state.load * sessions.running + sessions.common) / copy.tokens
        ),
    }
    return max(used, key=lambda words: used[words])


def _tier_words(tier: Tier) -> str:
    return f"{tier.name}: {tier.size / _GIGA:,.0f} GB at {tier.bandwidth / _GIGA:,.0f} GB/s each"


def _sentence(form: Table, answer: Answer, best: Choice, sessions: Sessions) -> str:
    accelerator, model = short_name(str(form.text("accelerator")[0])), str(form.text("model")[0])
    size, copies = answer["copy_size"], answer["copies"]
    many = f"{answer['sessions_per_accelerator']:,.1f} sessions of {model} per {accelerator}"
    copy = f"{answer['sessions_per_copy']:,.0f} on a copy of {size:,.0f}"
    copy += f", {copies:,.0f} copies" if copies > 1.0 else ""
    inside = f"{answer['hit_rate_accelerator']:.0%} on the accelerators"
    hits = f"{answer['hit_rate']:.0%} of the prompts come from the cache ({inside})"
    cost = cost_words(form, best.hours, 1000.0 * answer["cost_per_session"] / best.hours.paid, " per 1,000 sessions")
    worth = answer.get("host_worth", np.nan)
    more = f" The next GB of host memory saves {dollars(worth * _GIGA)} a month." if worth == worth else ""
    return (
        f"{many} ({copy}) with {engine_title(answer['software'])}{cost}: {hits}, a later turn starts after "
        f"{answer['ttft_later']:,.2f} s; {answer['limit']}.{more}{lacking_words(best.hours)}"
    )
