"""An independent check of serving under load: requests one by one, in the order of events.

It shares no code with xlperf. A replica prefills what waits, before it decodes on, in passes that take one prompt or
several; every running request gains a token in a step. Times of passes and of steps grow linearly with what they take.
Outputs are geometric, so that requests lose all memory of when they began.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

COUNT, WARM = 4000, 500


@dataclass
class Request:
    """One request: when it came, got its first token and ended; steps that it takes and has left."""

    came: float
    steps: int
    left: int
    first: float = 0.0
    ended: float = 0.0


@dataclass
class Outcome:
    """Means over requests that ended after the start, and quantiles of the time to the first token."""

    rate: float
    running: float
    first: float
    per_token: float
    first_quantiles: np.ndarray = field(repr=False)
    token_quantiles: np.ndarray = field(repr=False)


def _request(came: float, mean_steps: float, random: np.random.Generator) -> Request:
    steps = int(random.geometric(1.0 / mean_steps))
    return Request(came, steps, steps)


def _outcome(done: list[Request], span: float, area: float) -> Outcome:
    first = np.array([request.first - request.came for request in done])
    each = np.array([(one.ended - one.first) / one.steps for one in done if one.steps > 20])
    decoding = sum(request.ended - request.first for request in done)
    quantiles = [np.quantile(values, [0.5, 0.9, 0.99]) for values in (first, each)]
    steps = sum(request.steps for request in done)
    return Outcome(len(done) / span, area / span, float(first.mean()), decoding / steps, *quantiles)


def replica(
    prefill: float,
    base: float,
    slope: float,
    mean_steps: float,
    seed: int,
    requests: int = 0,
    rate: float = 0.0,
    places: int = 10_000,
    most_prompts: int = 1,
    prompt: float = 0.0,
    outside: float = 0.0,
) -> Outcome:
    """A replica with a constant number of requests in flight, or with requests that arrive at random.

    A pass with m prompts takes ``prefill + prompt * (m - 1)``. Between two passes that batch prompts is a step. Of a
    constant number each request is handled for a random time outside the replica before it comes to its queue.
    """
    passed = False
    random = np.random.default_rng(seed)
    now, area, marked = 0.0, 0.0, (0.0, 0, 0.0)
    running: list[Request] = []
    done: list[Request] = []
    queue = [_request(0.0, mean_steps, random) for _ in range(requests)]
    handled: list[tuple[float, int, Request]] = []
    coming = random.exponential(1.0 / rate) if rate else np.inf
    while len(done) < COUNT:
        while handled and handled[0][0] <= now:
            queue.append(heapq.heappop(handled)[-1])
        while coming <= now:
            queue.append(_request(coming, mean_steps, random))
            coming += random.exponential(1.0 / rate)
        if queue and len(running) < places and not passed:
            taken = min(len(queue), most_prompts, places - len(running))
            spent = prefill + prompt * (taken - 1)
            area += spent * len(running)
            now += spent
            for request in queue[:taken]:
                request.first = now
            running += queue[:taken]
            queue, passed = queue[taken:], most_prompts > 1
        elif running:
            step = base + slope * len(running)
            area += step * len(running)
            now += step
            passed = False
            for request in running:
                request.left -= 1
            ended = [request for request in running if request.left == 0]
            running = [request for request in running if request.left > 0]
            for request in ended:
                request.ended = now
                done.append(request)
                if requests:
                    late = now + (random.exponential(outside) if outside else 0.0)
                    heapq.heappush(handled, (late, len(done), _request(now, mean_steps, random)))
        else:
            now = min(coming, handled[0][0]) if handled else coming
        if len(done) >= WARM and marked[1] == 0:
            marked = (now, len(done), area)
    return _outcome(done[marked[1] :], now - marked[0], area - marked[2])


def pools(
    prefill: float,
    base: float,
    slope: float,
    mean_steps: float,
    prefillers: int,
    decoders: int,
    transfer: float,
    seed: int,
    requests: int = 0,
    rate: float = 0.0,
    most_prompts: int = 1,
    prompt: float = 0.0,
) -> Outcome:
    """Replicas that prefill and others that decode; a request goes to the decoding replica with the fewest.

    A pass with m prompts takes ``prefill + prompt * (m - 1)``; a replica that ends one takes what waits.
    """
    random = np.random.default_rng(seed)
    free = [0.0] * prefillers
    queue: list[float] = []
    clocks, area = [0.0] * decoders, [0.0] * decoders
    running: list[list[Request]] = [[] for _ in range(decoders)]
    waiting: list[list[tuple[float, int, Request]]] = [[] for _ in range(decoders)]
    done: list[Request] = []
    number = 0

    def send(came: float) -> None:
        heapq.heappush(queue, came)

    def passes(now: float) -> None:
        """Start every pass that starts until now."""
        nonlocal number
        while queue and max(queue[0], free[0]) <= now:
            started = max(queue[0], heapq.heappop(free))
            taken = [heapq.heappop(queue)]
            while queue and queue[0] <= started and len(taken) < most_prompts:
                taken.append(heapq.heappop(queue))
            ended = started + prefill + prompt * (len(taken) - 1)
            heapq.heappush(free, ended)
            for came in taken:
                number += 1
                request = _request(came, mean_steps, random)
                request.first = ended + transfer
                least = min(range(decoders), key=lambda one: len(running[one]) + len(waiting[one]))
                heapq.heappush(waiting[least], (request.first, number, request))

    for _ in range(requests):
        send(0.0)
    coming = random.exponential(1.0 / rate) if rate else np.inf
    marked = (0.0, 0, 0.0)
    while len(done) < COUNT:
        one = min(range(decoders), key=lambda which: clocks[which])
        now = clocks[one]
        while coming <= now:
            send(coming)
            coming += random.exponential(1.0 / rate)
        passes(now)
        while waiting[one] and waiting[one][0][0] <= now:
            running[one].append(heapq.heappop(waiting[one])[2])
        if not running[one]:
            others = [clock for which, clock in enumerate(clocks) if which != one and clock > now]
            begins = [max(queue[0], free[0])] if queue else []
            clocks[one] = min([*(line[0] for line in waiting[one][:1]), coming, *others, *begins])
            continue
        step = base + slope * len(running[one])
        area[one] += step * len(running[one])
        clocks[one] = now + step
        for request in running[one]:
            request.left -= 1
        ended = [request for request in running[one] if request.left == 0]
        running[one] = [request for request in running[one] if request.left > 0]
        for request in ended:
            request.ended = now + step
            done.append(request)
            if requests:
                send(now + step)
        if len(done) >= WARM and marked[1] == 0:
            marked = (now, len(done), sum(area))
    return _outcome(done[marked[1] :], max(clocks) - marked[0], (sum(area) - marked[2]) / decoders)


def run_of_pools(
    prefill: float,
    prompt: float,
    most_prompts: int,
    decode: float,
    variation: float,
    requests: int,
    places: int,
    seed: int,
    waves: int = 10,
    transfer: float = 0.01,
) -> tuple[float, float]:
    """Mean time to the first token, and requests per second, of a run that starts with all that may be in flight.

    One replica prefills, ``places`` requests decode together for a time around ``decode``, as :func:`drawn_lengths` has
    it; a request that ends is followed by the next one of the run.
    """
    random = np.random.default_rng(seed)
    total = waves * requests
    lasts = decode * drawn_lengths(variation, total, random)
    came, first = np.zeros(total), np.zeros(total)
    events = [(0.0, one, "came", [one]) for one in range(requests)]
    begun, number, free, left = requests, requests, True, places
    queue: list[int] = []
    ready: list[int] = []
    while events:
        now, _, what, some = heapq.heappop(events)
        if what == "came":
            queue += some
        elif what == "passed":
            free = True
            events.append((now + transfer, number, "sent", some))
            heapq.heapify(events)
        elif what == "sent":
            ready += some
        else:
            left += 1
            if begun < total:
                came[begun] = now
                queue.append(begun)
                begun += 1
        number += 1
        if free and queue and not (events and events[0][0] == now):
            taken, queue, free = queue[:most_prompts], queue[most_prompts:], False
            heapq.heappush(events, (now + prefill + prompt * (len(taken) - 1), number, "passed", taken))
        while left and ready:
            one = ready.pop(0)
            left -= 1
            first[one] = now - came[one]
            number += 1
            heapq.heappush(events, (now + lasts[one], number, "ended", [one]))
    return float(first.mean()), total / now


def burst(
    prefill: float, base: float, slope: float, steps: float, number: int, places: int, seed: int | None
) -> tuple[float, float]:
    """A number of requests that all come at once, and nothing after them: the time of the run, mean wait of a prompt.

    ``seed``: of geometric outputs; none: outputs are all alike.
    """
    random = np.random.default_rng(seed)
    left = random.geometric(1.0 / steps, number) if seed is not None else np.full(number, int(steps))
    now, waited, begun = 0.0, 0.0, 0
    running = np.zeros(0, dtype=np.int64)
    while begun < number or len(running):
        if begun < number and len(running) < places:
            now += prefill
            waited += now
            running = np.append(running, left[begun])
            begun += 1
        else:
            now += base + slope * len(running)
            running = running[running > 1] - 1
    return now, waited / number


def groups(
    prompt: float, base: float, slope: float, steps: float, requests: int, group: int, late: float, waves: int
) -> float:
    """Mean time to the first token of all requests but those of the first burst, of equal requests.

    Each step decodes a token of all that run and takes the prompts of a group of those that wait, ``prompt`` s each.
    A request is followed by a new one that comes ``late`` s after its end.
    """
    now, first, sent = 0.0, [], requests
    waiting, coming = [0.0] * requests, list[float]()
    running = np.zeros(0, dtype=np.int64)
    began = 0
    while began < waves * requests:
        waiting += [came for came in coming if came <= now]
        coming = [came for came in coming if came > now]
        if not waiting and not len(running):
            now = min(coming)
            continue
        taken, waiting = waiting[:group], waiting[group:]
        now += base + slope * len(running) + prompt * len(taken)
        ended = int((running == 1).sum())
        running = np.append(running[running > 1] - 1, np.full(len(taken), int(steps)))
        first += [now - came + late for came in taken if began >= requests]
        began += len(taken)
        coming += [now + late] * min(ended, waves * requests - sent)
        sent += min(ended, waves * requests - sent)
    return float(np.mean(first))


def drawn_lengths(variation: float, number: int, random: np.random.Generator) -> np.ndarray:
    """Lengths over their mean: spread evenly, with a variation of 1 exponential, else by a generalised Pareto law."""
    half = np.sqrt(3.0) * variation
    if half <= 1.0:
        return random.uniform(1.0 - half, 1.0 + half, number)
    if variation == 1.0:
        return random.exponential(1.0, number)
    tail = 0.5 - 0.5 / variation**2
    return (1.0 - tail) / tail * (random.random(number) ** -tail - 1.0)


def tokens_of_a_burst(stall: float, longest: float, steps: float, variation: float, seed: int) -> float:
    """Mean over requests of the time per token that prefills of a burst add, lengths as :func:`drawn_lengths`."""
    random = np.random.default_rng(seed)
    length = np.maximum(steps * drawn_lengths(variation, 400_000, random), 1.0)
    return float(np.minimum(random.random(len(length)) * stall / length, longest).mean())
