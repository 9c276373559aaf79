"""Checkpoints in tiers, asynchronous writes, and runs that train on with fewer replicas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlperf.equations.hardware.failures import (
    asynchronous_interval,
    checkpoint_interval,
    goodput,
    running_rate,
    tiered_goodput,
)

times = st.floats(0.1, 1e5)


@given(times, times, times, st.floats(0.0, 1e5))
def test_one_tier_is_goodput(interval: float, write: float, failures: float, restart: float) -> None:
    lost = restart + (interval + write) / 2
    tiers = tiered_goodput(interval, interval, write, 0.0, 1 / failures, 0.0, lost, 0.0)
    assert float(tiers) == pytest.approx(float(goodput(interval, write, failures, restart)), rel=1e-12)


@given(times, times, times, st.floats(1e-6, 1e-4), st.floats(0.0, 1.0))
def test_a_tier_that_nothing_restarts_from_costs_its_checkpoints(
    interval: float, write: float, lost: float, rate: float, share: float
) -> None:
    near = tiered_goodput(interval, interval, write, 0.0, rate, 0.0, lost, 0.0)
    far = tiered_goodput(interval, interval, write, write, rate, 0.0, lost, 0.0)
    assert far < near
    split = tiered_goodput(interval, interval, write, 0.0, rate * share, rate * (1 - share), lost, lost)
    assert float(split) == pytest.approx(float(near), rel=1e-9)


@given(st.floats(0.1, 100.0), st.floats(1e4, 1e7), st.floats(0.3, 3.0))
def test_young_is_the_best_interval_of_a_tier_by_brute_force(snapshot: float, failures: float, factor: float) -> None:
    best = float(checkpoint_interval(snapshot, failures))
    tried = best * np.array([1.0, factor])
    share = tiered_goodput(tried, 1.0, snapshot, 0.0, 1 / failures, 0.0, (tried + snapshot) / 2, 0.0)
    assert share[1] <= share[0] * (1 + snapshot / failures)


def test_an_asynchronous_write_is_awaited_only_if_it_takes_longer_than_the_interval() -> None:
    assert asynchronous_interval(2.0, 100.0, 10_000.0) == checkpoint_interval(2.0, 10_000.0)
    assert asynchronous_interval(2.0, 2.0, 10_000.0) == checkpoint_interval(2.0, 10_000.0)


@given(st.integers(1, 64), st.integers(0, 20), st.sampled_from([0.5, 1.0, 2.0, 8.0]))
def test_running_on_is_never_slower_than_waiting(replicas: int, spares: int, size: float) -> None:
    down = np.arange(100.0)
    elastic = running_rate(down, spares, replicas, size, 1.0)
    waits = running_rate(down, spares, replicas, size, 0.0)
    assert (elastic >= waits).all() and (np.diff(elastic) <= 0).all()
    assert (elastic[: spares + 1] == 1.0).all() and elastic.min() >= 0.0
