"""Steady states of serving against a simulation of single requests."""

from __future__ import annotations

import numpy as np
import pytest
from serving_simulator import Outcome, pools, replica

from xlperf.inference.load import Service, Steady, closed_state, pooled_state, spread_quantiles

# Time of a prefill, of a step without requests, of one more request in it; mean steps of a request.
REPLICAS = [(0.05, 0.01, 0.0002, 200.0), (0.02, 0.01, 0.0001, 100.0), (0.1, 0.02, 0.0001, 300.0)]
ONE, NONE = np.ones(1), np.zeros(1)


def service(prefill: float, base: float, slope: float, steps: float) -> Service:
    columns = (np.array([value]) for value in (prefill, prefill, base, slope, steps, 0.0))
    return Service(*columns)


def agrees(found: Steady, seen: Outcome, steps: float, within: float, first_within: float | None = None) -> None:
    for name, value, measured in (
        ("rate", found.rate, seen.rate),
        ("running", found.running, seen.running),
        ("first token", found.first_token, seen.first),
        ("time per token", found.decode_time / steps, seen.per_token),
    ):
        close = first_within if name == "first token" and first_within is not None else within
        assert value[0] == pytest.approx(measured, rel=close), name


@pytest.mark.parametrize("times", REPLICAS)
@pytest.mark.parametrize("requests", [1, 8, 48])
def test_requests_in_flight(times: tuple[float, float, float, float], requests: int) -> None:
    seen = replica(*times, seed=3, requests=requests)
    found = closed_state(service(*times), np.array([float(requests)]), np.array([1e4]))
    # The equation lets a request wait for half a step where one in this simulation comes at its end.
    half = 0.5 * (times[1] + times[2] * requests) / seen.first
    agrees(found, seen, times[3], 0.06, 0.06 + half)
    _, each = spread_quantiles(service(*times), found, np.array([times[3]]), NONE, ONE, False, ONE, ONE)
    if requests > 1:
        assert each[0] == pytest.approx(seen.token_quantiles, rel=0.15)


@pytest.mark.parametrize("times", REPLICAS)
@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_requests_that_arrive(times: tuple[float, float, float, float], load: float) -> None:
    prefill, base, slope, steps = times
    rate = load / (prefill + steps * (slope + base / 50.0))
    seen = replica(*times, seed=4, rate=rate)
    found = service(*times).open_state(np.array([rate]), NONE, np.array([1e4]))
    agrees(found, seen, steps, 0.12)
    first, each = spread_quantiles(service(*times), found, np.array([steps]), NONE, ONE, True, ONE, ONE)
    assert first[0] == pytest.approx(seen.first_quantiles, rel=0.3)
    assert each[0] == pytest.approx(seen.token_quantiles, rel=0.2)


def test_a_full_cache_makes_requests_wait() -> None:
    """Sixteen of 48 run; the others wait in a queue for two thirds of their time."""
    times = REPLICAS[0]
    seen = replica(*times, seed=5, requests=48, places=16)
    found = closed_state(service(*times), np.array([48.0]), np.array([16.0]))
    assert found.rate[0] == pytest.approx(seen.rate, rel=0.05)
    assert (found.first_token + found.queue_time)[0] == pytest.approx(seen.first, rel=0.1)


@pytest.mark.parametrize(
    ("times", "prefillers", "decoders", "requests"),
    [(REPLICAS[0], 2, 2, 64), ((0.1, 0.01, 0.0001, 100.0), 3, 1, 64), ((0.2, 0.02, 0.0001, 300.0), 2, 2, 40)],
)
def test_two_pools(times: tuple[float, float, float, float], prefillers: int, decoders: int, requests: int) -> None:
    seen = pools(*times, prefillers, decoders, 0.01, seed=6, requests=requests)
    counts = (np.array([float(count)]) for count in (requests, prefillers, decoders, 1e4))
    found = pooled_state(service(*times), *counts, np.array([0.01]))
    agrees(found, seen, times[3], 0.12)
    _, each = spread_quantiles(service(*times), found, np.array([times[3]]), NONE, ONE, False, ONE * prefillers, NONE)
    assert each[0, 0] == each[0, 2], "no prefill interrupts a step"
    assert seen.token_quantiles == pytest.approx(each[0], rel=0.13)


@pytest.mark.parametrize("load", [0.4, 0.7])
@pytest.mark.parametrize(
    ("times", "prefillers", "decoders"),
    [(REPLICAS[0], 2, 2), ((0.1, 0.01, 0.0001, 100.0), 3, 1), ((0.2, 0.02, 0.0001, 300.0), 2, 2)],
)
def test_two_pools_with_requests_that_arrive(
    times: tuple[float, float, float, float], prefillers: int, decoders: int, load: float
) -> None:
    prefill, base, slope, steps = times
    rate = load * min(prefillers / prefill, decoders * 200.0 / (steps * (base + slope * 200.0)))
    seen = pools(*times, prefillers, decoders, 0.01, seed=7, rate=rate)
    several = np.array([float(prefillers)]), np.array([float(decoders)])
    found = service(*times).pooled_open_state(np.array([rate]), *several, np.array([1e4]), np.array([0.01]), NONE)
    agrees(found, seen, steps, 0.12)
    first, each = spread_quantiles(service(*times), found, np.array([steps]), NONE, ONE, True, several[0], NONE)
    assert first[0] == pytest.approx(seen.first_quantiles, rel=0.3)
    assert each[0] == pytest.approx(seen.token_quantiles, rel=0.15)
