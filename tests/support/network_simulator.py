"""A small link-level simulator: chunks that move over links one after the other, and schedules of collectives.

It knows nothing of the equations under test. A machine is a set of links with a bandwidth; a message crosses stages of
links in order and holds all links of a stage while it is sent (cut through a switch), then needs the latency to arrive.
It starts when its sender has what it carries. A link serves the message first that has the most stages to go.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from random import Random

import numpy as np
from scipy.optimize import linprog

Link = Hashable
Chunk = tuple[int, ...]
Part = tuple[int, Chunk]  # who holds which chunk
Stages = Sequence[tuple[Link, ...]]


@dataclass(frozen=True)
class Message:
    """A chunk on its way from a rank to another; ``size`` in bytes.

    It starts when its source has received the chunk ``needs`` times: once to pass it on, or an addend of each other.
    """

    source: int
    target: int
    chunk: Chunk
    size: float
    stages: Stages
    needs: int = 1


def simulate(
    messages: Iterable[Message], held: Iterable[Part], bandwidth: Callable[[Link], float], latency: float
) -> tuple[float, set[Part]]:
    """Time of the last arrival, and who holds which chunk then."""
    have = dict.fromkeys(held, 1)
    waiting: dict[Part, list[Message]] = defaultdict(list)
    queue: dict[Link, list[tuple[int, int, Message, int]]] = defaultdict(list)
    free: dict[Link, float] = defaultdict(float)
    events: list[tuple[float, int, str, Message | None, int]] = []
    number, now = 0, 0.0

    def event(time: float, kind: str, message: Message | None, stage: int) -> None:
        nonlocal number
        number += 1
        heapq.heappush(events, (time, number, kind, message, stage))

    def serve(time: float, link: Link) -> None:
        """Send what has waited longest among the most distant, where all links of its stage are free."""
        while queue[link] and free[link] <= time:
            _, _, message, stage = queue[link][0]
            links = message.stages[stage]
            busy = max(free[other] for other in links)
            if busy > time:
                return event(busy, "serve", message, stage)
            heapq.heappop(queue[link])
            done = time + max(message.size / bandwidth(other) for other in links)
            for other in links:
                free[other] = done
            event(done, "serve", message, stage)
            event(done + latency, "arrive", message, stage + 1)
        return None

    for message in messages:
        if have.get((message.source, message.chunk), 0) >= message.needs:
            event(0.0, "arrive", message, 0)
        else:
            waiting[message.source, message.chunk].append(message)
    while events:
        now, order, kind, message, stage = heapq.heappop(events)
        assert message is not None
        if kind == "serve":
            for link in message.stages[stage]:
                serve(now, link)
        elif stage < len(message.stages):
            first = message.stages[stage][0]
            heapq.heappush(queue[first], (stage - len(message.stages), order, message, stage))
            serve(now, first)
        else:
            part = (message.target, message.chunk)
            have[part] = have.get(part, 0) + 1
            for follower in waiting.get(part, ()):
                if follower.needs == have[part]:
                    event(now, "arrive", follower, 0)
    return now, set(have)


@dataclass(frozen=True)
class Torus:
    """Places along axes, the first ones rings; link (rank, axis, way)."""

    lengths: tuple[int, ...]
    num_rings: int = 0

    @property
    def size(self) -> int:
        size = 1
        for length in self.lengths:
            size *= length
        return size

    def place(self, rank: int) -> tuple[int, ...]:
        found = []
        for length in self.lengths:
            found.append(rank % length)
            rank //= length
        return tuple(found)

    def rank(self, place: Sequence[int]) -> int:
        rank = 0
        for length, position in zip(reversed(self.lengths), reversed(place), strict=True):
            rank = rank * length + position
        return rank

    def walk(self, rank: int, axis: int, steps: int) -> tuple[int, list[tuple[Link, ...]]]:
        """Where so many steps along an axis lead, and the links on the way; negative: the other way."""
        place, way, stages = list(self.place(rank)), 1 if steps > 0 else -1, []
        for _ in range(abs(steps)):
            stages.append(((self.rank(place), axis, way),))
            place[axis] += way
            if axis < self.num_rings:
                place[axis] %= self.lengths[axis]
            assert 0 <= place[axis] < self.lengths[axis], "over the end of a line"
        return self.rank(place), stages


def members_along(torus: Torus, group: Sequence[int], axis: int) -> tuple[int, int, bool]:
    """Members, places from one to the next, and whether they go all the way round, of a group on an axis."""
    places = sorted({torus.place(rank)[axis] for rank in group})
    hop = places[1] - places[0] if len(places) > 1 else 1
    closed = axis < torus.num_rings and len(places) > 1 and len(places) * hop == torus.lengths[axis]
    return len(places), hop, closed


def part_sizes(along: Sequence[tuple[int, int, bool]]) -> dict[tuple[int, ...], float]:
    """Shares of the buffer that go along the axes in each order, the busiest axis as idle as can be.

    On an axis the load of a part is what it has gathered, over the links that share it.
    """
    active = [axis for axis, (count, _, _) in enumerate(along) if count > 1]
    orders = list(permutations(active))
    loads = np.zeros((len(active), len(orders)))
    for order, axes in enumerate(orders):
        gathered = 1.0 / float(np.prod([along[axis][0] for axis in active]))
        for axis in axes:
            count, hop, closed = along[axis]
            loads[active.index(axis), order] = (count - 1) * gathered * hop / (2.0 if closed else 1.0)
            gathered *= count
    whole = np.append(np.ones(len(orders)), 0.0)
    busiest = np.hstack([loads, -np.ones((len(active), 1))])
    solved = linprog(1.0 - whole, A_ub=busiest, b_ub=np.zeros(len(active)), A_eq=whole[None], b_eq=[1.0])
    return {axes: share for axes, share in zip(orders, solved.x[:-1], strict=True) if share > 1e-9}


def gather_on_torus(torus: Torus, groups: Sequence[Sequence[int]], size: float) -> list[Message]:
    """All-gathers of all groups at once: each part of the buffer goes along the axes in an order of its own."""
    messages = []
    for group in groups:
        along = [members_along(torus, group, axis) for axis in range(len(torus.lengths))]
        lowest = [min(torus.place(rank)[axis] for rank in group) for axis in range(len(torus.lengths))]
        parts = part_sizes(along).items()
        for owner, (number, (axes, share)), half in product(group, enumerate(parts), range(2)):
            chunk = (owner, number, half)
            bytes_sent = size / len(group) * share / 2.0
            reached = [owner]
            for axis in axes:
                count, hop, closed = along[axis]
                for start in list(reached):
                    position = (torus.place(start)[axis] - lowest[axis]) // hop
                    if closed:
                        ahead = (count // 2, (count - 1) // 2)
                        reach = {1: ahead[half], -1: ahead[1 - half]}
                    else:
                        reach = {1: count - 1 - position, -1: position}
                    for way, steps in reach.items():
                        here = start
                        for _ in range(steps):
                            there, stages = torus.walk(here, axis, way * hop)
                            messages.append(Message(here, there, chunk, bytes_sent, stages))
                            reached.append(there)
                            here = there
    return messages


def exchange_on_torus(torus: Torus, groups: Sequence[Sequence[int]], size: float, pieces: int) -> list[Message]:
    """All-to-alls of all groups at once, along the axes in order, both ways at half a round."""
    messages = []
    for group in groups:
        for source, target in product(group, group):
            if source == target:
                continue
            for piece in range(2 * pieces):
                here, stages = source, []
                for axis, length in enumerate(torus.lengths):
                    away = torus.place(target)[axis] - torus.place(source)[axis]
                    if axis < torus.num_rings:
                        away %= length
                        if 2 * away > length or (2 * away == length and piece % 2):
                            away -= length
                    here, links = torus.walk(here, axis, away)
                    stages += links
                assert here == target
                chunk = (source, target, piece)
                messages.append(Message(source, target, chunk, size / len(group) / pieces / 2.0, stages))
    return messages


def reversed_in_time(messages: Sequence[Message]) -> list[Message]:
    """The reduce-scatter that runs an all-gather backwards: what was copied outwards is summed inwards.

    What has farther to go comes first.
    """
    copies = Counter((message.source, message.chunk) for message in messages)
    depth: Counter[Part] = Counter()
    for message in messages:
        depth[message.target, message.chunk] = depth[message.source, message.chunk] + 1
    return [
        Message(
            message.target,
            message.source,
            message.chunk,
            message.size,
            [*reversed(message.stages)],
            copies[message.target, message.chunk],
        )
        for message in sorted(messages, key=lambda one: -depth[one.target, one.chunk])
    ]


def sums(messages: Sequence[Message]) -> dict[Chunk, set[int]]:
    """Whose addends the last rank has in each chunk of a reduce-scatter; fails where one counts twice."""
    held: dict[Part, set[int]] = {}
    last: dict[Chunk, set[int]] = {}
    for message in messages:
        here = held.setdefault((message.source, message.chunk), {message.source})
        there = held.setdefault((message.target, message.chunk), {message.target})
        assert not here & there, "an addend counts twice"
        there |= here
        last[message.chunk] = there
    return last


def step(rank: int, distance: int, size: int) -> int:
    """The rank so far ahead, round a group of ranks 0 to size - 1."""
    return (rank + distance) % size


def ring_on_switch(size: int, message_size: float) -> list[Message]:
    """All-gather round a ring of ranks, each with a link into a switch and one out of it."""
    return [
        Message(
            step(owner, hop, size),
            step(owner, hop + 1, size),
            (owner,),
            message_size / size,
            [(("up", step(owner, hop, size)), ("down", step(owner, hop + 1, size)))],
        )
        for owner, hop in product(range(size), range(size - 1))
    ]


def direct_on_links(group: Sequence[int], message_size: float) -> list[Message]:
    """Everybody sends a piece to everybody over a link of its own: an all-gather; an all-to-all is as long."""
    return [
        Message(source, target, (source,), message_size / len(group), [((source, target),)])
        for source, target in product(group, group)
        if source != target
    ]


@dataclass(frozen=True)
class Dragonfly:
    """Accelerators of a router, routers of a group, groups; a router has as many global links as accelerators."""

    accelerators: int
    routers: int
    groups: int

    def route(self, source: int, target: int) -> Stages:
        """The shortest way: up, to the router with the link to the other group, over, to the target's router, down."""
        stages: list[tuple[Link, ...]] = [(("up", source),)]
        here, there = source // self.accelerators, target // self.accelerators
        first, last = here // self.routers, there // self.routers
        if first != last:
            leave = first * self.routers + self._port(first, last)
            enter = last * self.routers + self._port(last, first)
            if here != leave:
                stages.append(((here, leave),))
            stages.append((("global", first, last),))
            here = enter
        if here != there:
            stages.append(((here, there),))
        return [*stages, (("down", target),)]

    def _port(self, group: int, other: int) -> int:
        return int((other - group - 1) % self.groups) // self.accelerators

    def exchange(self, message_size: float) -> list[Message]:
        """All-to-all of the whole machine; every rank sends in an order of its own."""
        size = self.accelerators * self.routers * self.groups
        shuffle = Random(1)
        targets = {rank: shuffle.sample(range(size), size) for rank in range(size)}
        return [
            Message(rank, target, (rank, target), message_size / size, self.route(rank, target))
            for turn, rank in product(range(size), range(size))
            if (target := targets[rank][turn]) != rank
        ]
