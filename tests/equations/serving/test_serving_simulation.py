"""Steady states of serving against a simulation of single requests."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from serving_simulator import Outcome, burst, groups, pools, replica, run_of_pools, tokens_of_a_burst

from xlperf.base.arrays import Array
from xlperf.equations.serving.continuous import Replicas
from xlperf.equations.serving.load import BatchTimes, RequestLoad, Times
from xlperf.equations.serving.pool_queueing import pooled_run_rate
from xlperf.equations.serving.pools import PoolLoad, PoolState, pool_state
from xlperf.equations.serving.queueing import (
    Service,
    Steady,
    closed_state,
    first_of_run,
    in_turn,
    run_rate,
    run_state,
    spread_quantiles,
    uneven_time,
)

# Time of a prefill, of a step without requests, of one more request in it; mean steps of a request.
REPLICAS = [(0.05, 0.01, 0.0002, 200.0), (0.02, 0.01, 0.0001, 100.0), (0.1, 0.02, 0.0001, 300.0)]
ONE, NONE = np.ones(1), np.zeros(1)


class Linear:
    """Times of passes and of steps that grow linearly, in the place of those of operators."""

    def __init__(self, prefill: float, prompt: float, base: float, slope: float) -> None:
        self.of_pass, self.of_step = (prefill - prompt, prompt), (base, slope)

    def take(self, rows: np.ndarray) -> Linear:
        return self

    def at(self, batches: Array, prompts: Array, detailed: bool = False) -> Times:
        steps, passes = ((first + more * x) for (first, more), x in ((self.of_step, batches), (self.of_pass, prompts)))
        return Times(steps, passes, np.zeros((*steps.shape, 2)), np.zeros((*passes.shape, 2)))


def linear(times: tuple[float, float, float, float], prompt: float) -> BatchTimes:
    return cast(Any, Linear(times[0], prompt, *times[1:3]))


def requests_of(steps: float, most_prompts: float = 1.0) -> RequestLoad:
    columns = (steps, most_prompts, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, most_prompts, 0.0, 1.0, 1.0)
    return RequestLoad(*(np.array([value]) for value in columns))


def service(prefill: float, base: float, slope: float, steps: float) -> Service:
    columns = (np.array([value]) for value in (prefill, prefill, base, slope, steps, 0.0))
    return Service(*columns)


def opened(
    times: tuple[float, float, float, float], rate: float, prompts: float = 1.0, prompt: float = 0.0
) -> tuple[Service, Steady]:
    asked = requests_of(times[3], prompts)
    state = Replicas(linear(times, prompt), asked, np.array([1e4])).at_rate(np.array([rate]))
    result, interval = state.service(service(*times)), state.prefill / asked.prefill_overlap
    return result, result.open_state(np.array([rate]), NONE, state.running, state.least_share, interval)


def pooled(
    times: tuple[float, float, float, float],
    counts: tuple[int, int],
    requests: float = 1.0,
    rate: float = np.nan,
    prompts: float = 1.0,
    prompt: float = 0.0,
    places: float = 1e4,
    waves: float = np.inf,
    variation: float = 0.0,
) -> PoolState:
    apart = 12.0 * variation * variation * 0.5 * waves if variation else np.inf
    columns = (*counts, places, 0.01, rate, 0.0, 0.0, 1.0, apart, 0.0, 0.0)
    asked = requests_of(times[3], prompts)._replace(burst_fraction=np.array([1.0 / waves]))
    load = PoolLoad(linear(times, prompt), asked, *(np.array([float(each)]) for each in columns))
    return pool_state(load, np.array([requests]))


def agrees(result: Steady, seen: Outcome, steps: float, within: float, first_within: float | None = None) -> None:
    for name, value, measured in (
        ("rate", result.rate, seen.rate),
        ("running", result.running, seen.running),
        ("first token", result.first_token, seen.first),
        ("time per token", result.decode_time / steps, seen.per_token),
    ):
        close = first_within if name == "first token" and first_within is not None else within
        assert value[0] == pytest.approx(measured, rel=close), name


@pytest.mark.parametrize("times", REPLICAS)
@pytest.mark.parametrize("requests", [1, 8, 48])
def test_requests_in_flight(times: tuple[float, float, float, float], requests: int) -> None:
    seen = replica(*times, seed=3, requests=requests)
    result = closed_state(service(*times), np.array([float(requests)]), np.array([1e4]))
    # The equation lets a request wait for half a step where one in this simulation comes at its end.
    half = 0.5 * (times[1] + times[2] * requests) / seen.first
    agrees(result, seen, times[3], 0.06, 0.06 + half)
    _, each = spread_quantiles(service(*times), result, np.array([times[3]]), NONE, ONE, False, ONE, ONE)
    if requests > 1:
        assert each[0] == pytest.approx(seen.token_quantiles, rel=0.15)


@pytest.mark.parametrize("times", REPLICAS)
@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_requests_that_arrive(times: tuple[float, float, float, float], load: float) -> None:
    prefill, base, slope, steps = times
    rate = load / (prefill + steps * (slope + base / 50.0))
    seen = replica(*times, seed=4, rate=rate)
    of_replica, result = opened(times, rate)
    agrees(result, seen, steps, 0.12)
    first, each = spread_quantiles(of_replica, result, np.array([steps]), NONE, ONE, True, ONE, ONE)
    assert first[0] == pytest.approx(seen.first_quantiles, rel=0.3)
    assert each[0] == pytest.approx(seen.token_quantiles, rel=0.2)


@pytest.mark.parametrize("prompt", [0.0, 0.01])
@pytest.mark.parametrize("load", [0.2, 0.5, 0.8])
def test_prompts_are_batched_as_the_queue_grows(load: float, prompt: float) -> None:
    """A prefill of 0.1 s alone serves 10 requests/s; with up to 16 prompts in a pass many more."""
    times = (0.1, 0.01, 0.0001, 100.0)
    most = Replicas(linear(times, prompt), requests_of(100.0, 16.0), np.array([1e4])).at_rate(np.ones(1)).capacity[0]
    assert most > 35.0
    seen = replica(*times, seed=8, rate=load * most, most_prompts=16, prompt=prompt)
    _, result = opened(times, load * most, 16.0, prompt)
    agrees(result, seen, 100.0, 0.35)


@pytest.mark.parametrize("times", [*REPLICAS, (0.2, 0.01, 0.0, 20.0)])
@pytest.mark.parametrize("requests", [1, 8, 48])
def test_a_replica_works_while_requests_are_handled_outside_of_it(
    times: tuple[float, float, float, float], requests: int
) -> None:
    """Half a second outside: a replica that stands still meanwhile is 2 to 10 % slower where requests are many.

    The last replica takes 0.2 s for a prefill and for all steps alone: 48 requests keep it busy.
    """
    seen = replica(*times, seed=9, requests=requests, outside=0.5)
    result = closed_state(service(*times), np.array([float(requests)]), np.array([1e4]), np.array([0.5]))
    assert result.rate[0] == pytest.approx(seen.rate, rel=0.045)
    prefill, base, slope, steps = times
    standing = requests * prefill + steps * (base + slope * requests) + 0.5
    assert requests == 1 or standing * seen.rate / requests > 1.0


def test_a_full_cache_makes_requests_wait() -> None:
    """Sixteen of 48 run; the others wait in a queue for two thirds of their time."""
    times = REPLICAS[0]
    seen = replica(*times, seed=5, requests=48, places=16)
    result = closed_state(service(*times), np.array([48.0]), np.array([16.0]))
    assert result.rate[0] == pytest.approx(seen.rate, rel=0.05)
    assert (result.first_token + result.queue_time)[0] == pytest.approx(seen.first, rel=0.1)


@pytest.mark.parametrize("varied", [0.0, 1.0])
@pytest.mark.parametrize(
    ("times", "number", "places"),
    [
        ((0.1, 0.02, 0.0005, 200.0), 500, 60),
        ((0.01, 0.02, 0.0005, 200.0), 500, 60),
        ((0.3, 0.02, 0.0005, 100.0), 200, 8),
        ((0.01, 0.02, 0.0002, 200.0), 1000, 300),
        ((0.01, 0.02, 0.0002, 200.0), 1000, 1000),
    ],
)
def test_all_requests_at_once(
    times: tuple[float, float, float, float], number: int, places: int, varied: float
) -> None:
    """What finds no place waits for half of the run on average; outputs that vary make its end longer."""
    seeds = [3, 4, 5] if varied else [None]
    seen, waited = np.mean([burst(*times, number, places, seed) for seed in seeds], axis=0)
    requests, room = np.array([float(number)]), np.array([float(min(number, places))])
    every = service(*times)
    steady = closed_state(every, requests, room)
    early = closed_state(every._replace(burst_fraction=ONE), requests, room)
    result = run_state(early, steady, first_of_run(requests, room), NONE, requests)
    first = result.first_token + 0.5 * result.queue_time
    assert first[0] == pytest.approx(waited, rel=0.25 if varied else 0.08)
    time = number / run_rate(every, room, requests, steady.rate, room / steady.rate, varied)[0]
    assert time == pytest.approx(seen, rel=0.15 if varied else 0.01)


@pytest.mark.parametrize("requests", [8, 16, 64, 128])
@pytest.mark.parametrize(
    ("prompt", "base", "steps", "group"),
    [(0.057, 0.017, 512.0, 8), (0.057, 0.017, 512.0, 2), (0.23, 0.017, 512.0, 2), (0.01, 0.03, 200.0, 4)],
)
def test_equal_requests_come_in_groups(prompt: float, base: float, steps: float, group: int, requests: int) -> None:
    """Those of one pass end together, and most groups wait for the pass of the group before."""
    seen = groups(prompt, base, 3e-5, steps, requests, group, 0.003, 10)
    number, taken = np.array([float(requests)]), np.array([float(min(group, requests))])
    every = service(prompt, base, 3e-5, steps)
    steady = closed_state(every, number, number, 0.003)
    result = in_turn(every, steady, taken * prompt, taken, number)
    assert result.first_token[0] == pytest.approx(seen, rel=0.3)


@pytest.mark.parametrize("variation", [0.1, 0.6, 1.4])
@pytest.mark.parametrize("longest", [0.05, 0.5, np.inf])
def test_mean_time_per_token_of_a_burst(longest: float, variation: float) -> None:
    stall, steps = 10.0, 200.0
    seen = [tokens_of_a_burst(stall, longest, steps, each, 3) for each in (0.0, variation)]
    result = uneven_time(stall, steps, longest, variation)
    assert result[0] == pytest.approx(seen[1] - seen[0], rel=0.05, abs=0.02 * seen[0])
    assert (np.diff(result[1:]) >= 0.0).all() and result[0] <= result[3]


@pytest.mark.parametrize(
    ("times", "counts", "requests", "prompts", "prompt"),
    [
        (REPLICAS[0], (2, 2), 64, 1, 0.0),
        ((0.1, 0.01, 0.0001, 100.0), (3, 1), 64, 1, 0.0),
        ((0.2, 0.02, 0.0001, 300.0), (2, 2), 40, 1, 0.0),
        ((0.1, 0.01, 0.0001, 100.0), (1, 1), 64, 8, 0.01),
        ((0.1, 0.01, 0.0001, 100.0), (1, 2), 256, 16, 0.02),
        ((0.4, 0.01, 0.0001, 100.0), (2, 2), 128, 32, 0.0),
        ((0.02, 0.0, 0.0002, 100.0), (2, 1), 64, 1, 0.0),  # the host limits steps: the rate is that of any batch
    ],
)
def test_two_pools(
    times: tuple[float, float, float, float], counts: tuple[int, int], requests: int, prompts: int, prompt: float
) -> None:
    seen = pools(*times, *counts, 0.01, seed=6, requests=requests, most_prompts=prompts, prompt=prompt)
    state = pooled(times, counts, float(requests), np.nan, float(prompts), prompt)
    result = state.steady
    agrees(result, seen, times[3], 0.12, 0.25 if prompts > 1 else None)
    several = ONE * counts[0]
    _, each = spread_quantiles(state.service, result, np.array([times[3]]), NONE, ONE, False, several, NONE)
    assert each[0, 0] == each[0, 2], "no prefill interrupts a step"
    assert seen.token_quantiles == pytest.approx(each[0], rel=0.13)


@pytest.mark.parametrize("load", [0.4, 0.7])
@pytest.mark.parametrize(
    ("times", "counts", "prompts", "prompt"),
    [
        (REPLICAS[0], (2, 2), 1, 0.0),
        ((0.1, 0.01, 0.0001, 100.0), (3, 1), 1, 0.0),
        ((0.2, 0.02, 0.0001, 300.0), (2, 2), 1, 0.0),
        ((0.1, 0.01, 0.0001, 100.0), (1, 1), 8, 0.01),
        ((0.1, 0.01, 0.0001, 100.0), (2, 2), 16, 0.02),
    ],
)
def test_two_pools_with_requests_that_arrive(
    times: tuple[float, float, float, float], counts: tuple[int, int], prompts: int, prompt: float, load: float
) -> None:
    prefill, base, slope, steps = times
    of_pass = (prefill + prompt * (prompts - 1)) / prompts
    rate = load * min(counts[0] / of_pass, counts[1] * 200.0 / (steps * (base + slope * 200.0)))
    seen = pools(*times, *counts, 0.01, seed=7, rate=rate, most_prompts=prompts, prompt=prompt)
    state = pooled(times, counts, rate=rate, prompts=float(prompts), prompt=prompt)
    agrees(state.steady, seen, steps, 0.12, 0.3 if prompts > 1 else None)
    several = ONE * counts[0]
    first, each = spread_quantiles(state.service, state.steady, np.array([steps]), NONE, ONE, True, several, NONE)
    if prompts == 1:
        assert first[0] == pytest.approx(seen.first_quantiles, rel=0.3)
    assert each[0] == pytest.approx(seen.token_quantiles, rel=0.15)


@pytest.mark.parametrize(
    ("prefill", "prompts", "prompt", "requests", "places"),
    [
        (0.1, 1, 0.0, 6, 3),
        (0.1, 16, 0.03, 24, 16),
        (0.4, 8, 0.15, 32, 64),
        (0.4, 8, 0.06, 128, 128),
        (0.1, 32, 0.02, 512, 512),
        (0.1, 32, 0.02, 60, 48),
        (0.3, 4, 0.15, 40, 100),
    ],
)
def test_a_run_with_more_requests_than_decode_together(
    prefill: float, prompts: int, prompt: float, requests: int, places: int
) -> None:
    """Waves of requests, ten of them, with outputs from 0.8 to 1 of the longest: most wait for a place to decode."""
    steps, step, variation = 1000.0, 0.01, 0.2 / np.sqrt(12.0) / 0.9
    seen, _ = run_of_pools(prefill, prompt, prompts, step * steps, variation, requests, places, seed=8)
    times = (prefill, step, 0.0, steps)
    state = pooled(times, (1, 1), requests, np.nan, prompts, prompt, places, 10.0, variation)
    first = state.steady.first_token + state.steady.queue_time
    # What the run loses at its end is part of the simulation alone.
    assert first[0] == pytest.approx(seen, rel=0.25)


@pytest.mark.parametrize(
    ("prefill", "prompts", "prompt", "decode", "variation", "requests", "places", "waves"),
    [
        (0.02, 16, 0.005, 300.0, 0.7, 64, 1000, 4),
        (0.02, 16, 0.005, 300.0, 0.3, 64, 1000, 4),
        (0.02, 16, 0.005, 300.0, 0.5, 128, 1000, 10),
        (0.1, 4, 0.08, 60.0, 0.7, 64, 1000, 4),
        (0.1, 4, 0.05, 300.0, 0.5, 64, 1000, 4),
        (0.02, 16, 0.005, 300.0, 0.5, 64, 32, 4),
        (0.02, 16, 0.005, 300.0, 0.5, 256, 1000, 1),
    ],
)
def test_a_run_goes_on_until_the_longest_of_its_last_requests_ends(
    prefill: float, prompts: int, prompt: float, decode: float, variation: float, requests: int, places: int, waves: int
) -> None:
    step = 0.007
    own = prefill, prompt, prompts, step * decode, variation, requests, places
    seen = np.mean([run_of_pools(*own, seed, waves)[1] for seed in range(8)])
    state = pooled((prefill, step, 0.0, decode), (1, 1), requests, np.nan, prompts, prompt, places, waves, variation)
    rate, running, run = state.steady.rate, state.steady.running, np.array([float(requests * waves)])
    steps, last = np.array([decode]), np.array([step])
    result = pooled_run_rate(rate, running, run, steps, last, variation)
    assert result[0] == pytest.approx(seen, rel=0.1 if waves > 1 else 0.15)
    assert result[0] < rate[0], "without its end the run would be faster"
    assert pooled_run_rate(rate, running, 1e4 * run, steps, last, variation)[0] == pytest.approx(rate[0], rel=1e-3)


@pytest.mark.parametrize("variation", [0.3, 1.0, 2.0])
def test_the_mean_time_per_token_of_a_run_lies_below_its_last_percent(variation: float) -> None:
    """Bursts of prompts whose answers vary: quantiles rise with the mean."""
    result = uneven_time(np.array([1.0, 10.0]), 128.0, np.array([np.inf, 0.05]), variation)
    mean, median, ninetieth, last = result
    assert (median <= ninetieth).all() and (ninetieth <= last).all() and (mean <= last).all()
