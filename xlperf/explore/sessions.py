"""The question Sessions: how many a copy holds within the targets, at which cost, and what more memory is worth.

A form (a row of the table ``sessions``) states the sessions. Mappings are those that :mod:`xlperf.explore.serve` finds
for their mean turn; on each the load of a copy grows until a target is missed, and the mapping whose sessions are
cheapest answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.units import MILLION, YEAR, percent
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import software_title, table_schema
from xlperf.catalog.table import Table
from xlperf.explore.fleet_plans import COUNT, DEGREES, ONE, Fleet, replica_size
from xlperf.explore.money import MANY_USERS, Hours, cost_words, hours_of, lacking_words, with_prices
from xlperf.explore.objectives import TABLES, Answer, dollars, no_answer, short_name
from xlperf.explore.serve import serve_answer, serving_each
from xlperf.explore.session_states import (
    TIERS,
    Copy,
    Sessions,
    State,
    Tier,
    Traced,
    best_states,
    queued_states,
    shared_evenly,
    tiers_of,
    whole,
)
from xlperf.explore.space import with_columns

COPY_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0)  # accelerators of a copy that are tried besides the one that Serve chooses [-]
MONTH = YEAR / 12.0
FLEET = "fleet"  # key of the fleet of Serve whose copy answers, beside the results. Its plan has an endless cache
_GIGA = 1000.0 * MILLION
DOUBLINGS = tuple(size * _GIGA for size in (0.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0))
"""Sizes of the host's memory for each accelerator in the table, beside that of the form and the best. [B]"""
STEPS = tuple(size * part for size in DOUBLINGS[1:-1] for part in (1.25, 1.5, 1.75))
"""Sizes between them that may be the best. [B]"""
_SERVED = ("model", "accelerator", "software", "precision", "kv_precision", COUNT, *DEGREES, "speed_per_user",
           "ttft_target", "payment", "hour_price")  # fmt: skip
"""Entries that the form Serve has too."""


class Choice(NamedTuple):
    """A copy and the load at which it holds most sessions within the targets, for each size of the host's memory."""

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

    def copies(self, stated: float) -> float:
        """Whole copies for a stated number of sessions; one if none is stated."""
        state = self.states[0]
        assert state is not None
        held = self.copy.replicas * float(state.sessions)
        return float(np.ceil(stated / held - 1e-9)) if stated == stated else 1.0

    def rate(self, variant: int) -> float:
        """Turns that a replica begins within the targets. [1/s]"""
        state = self.states[variant]
        return 0.0 if state is None else float(state.load / state.turn_time)


def sessions_answer(form: Table, catalog: Catalog) -> Answer:
    """How many sessions a copy holds, the hit rates and times then, their cost, and more or less memory of the host."""
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
    stated = form.stated("sessions")

    def dearness(choice: Choice) -> tuple[float, float]:
        """Accelerators of whole copies if a number of sessions is stated, and accelerator time of a session."""
        whole_copies = choice.copies(stated) * choice.copy.replicas * choice.copy.size if stated == stated else 0.0
        return whole_copies, choice.cost(0, sessions.turns) / max(choice.hours.paid, 1e-30)

    best = min(kept, key=dearness)
    varied = own
    if tiers and tiers[0].place == TIERS[0]:
        size = tiers[0].size
        tried = np.unique([*DOUBLINGS[:-1], *STEPS, size, max(2.0 * size, DOUBLINGS[-1])])
        varied = np.repeat(own, 1 + len(tried), axis=1)
        varied[0, 1:] = tried
    best = best._replace(states=queued_states(best.copy, sessions, tiers, varied, form, catalog))
    return _answer(form, sessions, tiers, varied, best)


def _serving(form: Table, sessions: Sessions) -> Table:
    """The form Serve for the mean turn with an endless cache."""
    columns = {name: form[name] for name in _SERVED if name in form}
    common, own, new = sessions.prompt
    asked = Table("serve", columns, form.place, {name: mask for name, mask in form.auto.items() if name in columns})
    return with_columns(
        asked,
        users=MANY_USERS,
        prompt_length=whole(common + own + new),
        output_length=whole(sessions.generated),
        shared_prefix=min(sessions.reused, 1.0 - 1.0 / (common + own + new)),
        mode=ONE,
    )


def _fleets(asked: Table, catalog: Catalog) -> list[Fleet]:
    """Ways to serve the mean turn whose replicas fill the form's copy: those of Serve, and on copies of every size."""
    count = asked.number(COUNT)[0]  # NaN: any
    copies = [with_columns(asked, num_accelerators=size) for size in COPY_SIZES if not count % size > 0.0]
    named: dict[object, Fleet] = {}
    for fleet in chain.from_iterable(serving_each([*copies, asked], catalog)):
        if not count % replica_size(fleet.plan)[0] > 0.0:
            named.setdefault((fleet.plan.word("software"), *(fleet.plan.value(name) for name in DEGREES)), fleet)
    return list(named.values())


def _choice(
    form: Table, asked: Table, fleet: Fleet, sessions: Sessions, tiers: Sequence[Tier], sizes: Array, catalog: Catalog
) -> Choice | None:
    count = asked.stated(COUNT)
    count = count if count == count else float(replica_size(fleet.plan)[0])
    plan = with_columns(with_prices(fleet.plan, asked), concurrency=1.0, num_accelerators=count)
    copy = Copy.of(plan, sessions, form.stated_word("load_overlap"), catalog)
    if copy is None:
        return None
    hours = hours_of(asked, fleet.plan, fleet.results, catalog)[0]
    return Choice(copy, fleet, best_states(copy, sessions, tiers, sizes, form, catalog), hours)


def _refused(asked: Table, is_missed: bool, catalog: Catalog) -> Answer:
    served = serve_answer(asked, catalog)
    reason = str(served.get("reason", "")) or (
        "no load keeps the targets with these hits: allow a later first token or give the cache more memory"
        if is_missed
        else "no copy has memory for the cache of one turn: give it more accelerators"
    )
    return no_answer(reason)


def _answer(form: Table, sessions: Sessions, tiers: Sequence[Tier], sizes: Array, best: Choice) -> Answer:
    state, copy, plan = best.states[0], best.copy, best.fleet.plan
    assert state is not None
    common, own, new = sessions.prompt
    prompt = common + own + new
    stated, replicas = form.stated("sessions"), copy.replicas
    alive, size = replicas * float(state.sessions), replicas * copy.size
    copies = best.copies(stated)
    if stated == stated:
        state = shared_evenly(state, sessions, stated / copies / replicas)
        best, alive = best._replace(states=[state, *best.states[1:]]), stated / copies
    shares = {"accelerator": (common + own * float(state.hits[0])) / prompt}
    shares |= {tier.place: own * float(hit) / prompt for tier, hit in zip(tiers, state.hits[1:], strict=True)}
    answer: Answer = {
        "sessions_per_accelerator": alive / size,
        "sessions_per_copy": alive,
        "copies": copies,
        "running_sessions": replicas * float(state.load),
        "copy_size": size,
        "accelerators": copies * size,
        "resident_sessions": replicas * _resident(sessions, state),
        "reused_share": sessions.reused,
        "hit_rate": float(sum(shares.values())),
        **{f"hit_rate_{place}": share for place, share in shares.items()},
        "ttft_first": float(state.ttft_first),
        "ttft_later": float(state.ttft_later),
        "tpot": float(state.tpot),
        "turn_time": float(state.turn_time),
        "turn_rate": replicas * best.rate(0),
        "cache_tokens": replicas * copy.tokens,
        "tokens_per_session": sessions.waiting,
        "cache_per_session": sessions.waiting * copy.token_size * copy.size,
        "eviction_time": float(state.ages[0]),
    }
    answer |= {name: plan.value(name) for name in DEGREES}
    answer |= best.hours.results | {
        "cost_per_session": best.cost(0, sessions.turns),
        "cost_per_million_output_tokens": best.cost(0, sessions.turns) / (sessions.turns * sessions.generated),
    }
    for tier, age in zip(tiers, state.ages[1:], strict=True):
        answer[f"eviction_time_{tier.place}"] = float(age)
    memory, worth, size = _memory(sessions, tiers, sizes, best)
    if tiers and tiers[0].place == TIERS[0]:
        answer |= {
            "host_worth_per_month": worth,
            "host_price_per_month": tiers[0].price * MONTH,
            "best_host_memory": size,
        }
    answer |= {name: plan.word(name) for name in ("software", "precision", "kv_precision")}
    answer |= {name: str(best.fleet.results[name][0]) for name in ("trust", "trust_reason")}
    answer["limit"] = _limit(form, sessions, copy, state)
    answer["price_basis"] = best.hours.basis
    order = "overlap" if copy.overlap else "precede"
    traced = f"Trace of {sessions.trace.requests:,} requests; " if isinstance(sessions, Traced) else ""
    answer["defaults_used"] = (
        f"{traced}{software_title(answer['software'])}, continuous batching in one pool; sessions stay with "
        f"their replica; least recently used is evicted; each tier also holds what the faster ones do; "
        f"loads {order} prefill"
    )
    words = [f"{one.name}: {one.size / _GIGA:,.0f} GB at {one.bandwidth / _GIGA:,.0f} GB/s each" for one in tiers]
    answer["tiers_used"] = "; ".join(words) or "no tier outside the accelerators"
    answer["answer"] = _sentence(form, answer, best)
    tables = {"memory": memory, "tiers": _tiers(copy, tiers, state, shares)}
    return answer | {TABLES: tables, FLEET: best.fleet}


def _resident(sessions: Sessions, state: State) -> float:
    """Sessions in the memory of a replica: in a turn, or thinking for less than its characteristic time."""
    think = sessions.stay(state.ages[0])
    share = (sessions.turns - 1.0) / sessions.turns
    return float(state.load * (1.0 + share * think / state.turn_time))


def _memory(sessions: Sessions, tiers: Sequence[Tier], sizes: Array, best: Choice) -> tuple[Table, float, float]:
    """The table of sizes of the host's memory, the worth of a GB more than the form's, and the best size."""
    common, own, new = sessions.prompt
    blank = {column.name: "" if column.is_text else np.nan for column in table_schema("sessions_memory").columns}
    lines: list[dict[str, object]] = []
    price = tiers[0].price if tiers else np.nan
    spent = {
        size: best.cost(variant, sessions.turns) * (1.0 + price * size / best.hours.paid)
        for variant, size in enumerate(sizes[0].tolist() if tiers else [])
        if variant > 0 and size in (*DOUBLINGS, *STEPS)
    }
    cheapest = min(spent, key=lambda size: spent[size], default=np.nan)
    of_next, smaller = np.nan, 0
    for variant in range(1, sizes.shape[1]):
        state = best.states[variant]
        size = float(sizes[0, variant])
        if size in STEPS and size not in (cheapest, float(sizes[0, 0])):
            continue
        line: dict[str, object] = {**blank, "host_memory": size}
        if state is not None:
            hits = (common + own * float(state.hits.sum())) / (common + own + new)
            line |= {"hit_rate": hits, "cost_per_session": best.cost(variant, sessions.turns)}
            line |= {"sessions_per_copy": best.copy.replicas * float(state.sessions)}
            line |= {"ttft_later": float(state.ttft_later)}
        if smaller and best.rate(smaller) > 0.0:
            gain = max(best.rate(variant) / best.rate(smaller) - 1.0, 0.0)
            worth = best.hours.paid * MONTH * gain / (size - float(sizes[0, smaller]))
            line |= {"worth_per_month": worth, "pays": "pays" if worth > price * MONTH else "does not"}
            of_next = worth if sizes[0, smaller] == sizes[0, 0] else of_next
        smaller = variant
        lines.append(line)
    return Table.of_lines("sessions_memory", lines), of_next, cheapest


def _tiers(copy: Copy, tiers: Sequence[Tier], state: State, shares: Mapping[str, float]) -> Table:
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
        "the speed of a session": float(state.tpot * form.filled("speed_per_user")[0]),
        "the time to the first token": float(np.nan_to_num(state.ttft_later / form.number("ttft_target")[0])),
        "memory for the turns at once": float((state.load * sessions.running + sessions.common) / copy.tokens),
    }
    return f"{max(used, key=lambda words: used[words])} is the limit"


def _sentence(form: Table, answer: Answer, best: Choice) -> str:
    accelerator, model = short_name(form.stated_word("accelerator")), form.stated_word("model")
    size, copies = answer["copy_size"], answer["copies"]
    many = f"{answer['sessions_per_accelerator']:,.1f} sessions of {model} per {accelerator}"
    copy = f"{answer['sessions_per_copy']:,.0f} on a copy of {size:,.0f}"
    copy += f", {copies:,.0f} copies" if copies > 1.0 else ""
    hits = f"{percent(answer['hit_rate'], 0)} of the prompts are cached"
    cost = cost_words(form, best.hours, 1000.0 * answer["cost_per_session"] / best.hours.paid, " per 1,000 sessions")
    more = _worth_in_words(answer)
    return (
        f"{many} ({copy}) with {software_title(answer['software'])}{cost}: {hits}, later turns start after "
        f"{answer['ttft_later']:,.2f} s; {answer['limit']}.{more}{lacking_words(best.hours)}"
    )


def _worth_in_words(answer: Answer) -> str:
    """What the next GB of host memory saves and costs a month, and up to which size more pays."""
    names = ("host_worth_per_month", "host_price_per_month", "best_host_memory")
    worth, price, size = (answer.get(name, np.nan) for name in names)
    if worth != worth:
        return ""
    saved = "less than $0.01" if 0.0 < worth * _GIGA < 0.005 else dollars(worth * _GIGA)
    words = f" A GB more of host memory each saves {saved} a month"
    least = f"best: {size / _GIGA:,.0f} GB"
    costs = f", costs {dollars(price * _GIGA)}; {least}" if price == price else ""
    return f"{words}{costs}."
