"""A small simulation of an LRU cache of sessions, which judges the closed forms."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Case:
    """Sessions on a tier; times in seconds, sizes in tokens."""

    sessions: int
    turns: int
    first: float
    added: float
    generated: float
    common: float
    think: float
    variation: float
    turn: float  # time of a turn
    capacity: float


def simulated_hit_rate(case: Case, seed: int, number: int = 12_000) -> float:
    """Share of the prompt tokens that the cache holds, over turns after a warm-up; leaves of a session go first."""
    random = np.random.default_rng(seed)
    spread = np.sqrt(np.log1p(case.variation**2))
    thinks = case.think * np.exp(spread * random.standard_normal(2 * number + case.sessions) - spread**2 / 2.0)
    turns = random.integers(1, case.turns + 1, case.sessions).tolist()  # as in the steady state
    events = [(random.random() * (case.turn + case.think), name, turn, True) for name, turn in enumerate(turns)]
    heapq.heapify(events)
    idle: OrderedDict[int, float] = OrderedDict()  # tokens of sessions between turns, the longest idle first
    running = 0.0  # tokens of sessions in a turn
    fresh, drawn, counted, prompts, hits = case.sessions, 0, 0, 0.0, 0.0
    free = case.capacity - case.common
    while counted < number:
        time, name, turn, begins = heapq.heappop(events)
        own = case.first + (turn - 1) * case.added + turn * case.generated  # after this turn
        if begins:
            new = case.first if turn == 1 else case.added
            held = idle.pop(name, 0.0)
            counted += 1
            if counted > number // 3:
                prompts += case.common + own - case.generated
                hits += case.common + min(held, own - case.generated - new)
            running += own - case.generated / 2.0
            heapq.heappush(events, (time + case.turn, name, turn, False))
        else:
            running -= own - case.generated / 2.0
            idle[name] = own
            if turn < case.turns:
                heapq.heappush(events, (time + thinks[drawn], name, turn + 1, True))
                drawn += 1
            else:
                heapq.heappush(events, (time, fresh, 1, True))
                fresh += 1
        excess = running + sum(idle.values()) - free
        while excess > 0.0 and idle:
            oldest = next(iter(idle))
            cut = min(excess, idle[oldest])
            idle[oldest] -= cut
            excess -= cut
            if idle[oldest] <= 0.0:
                del idle[oldest]
    return hits / prompts
