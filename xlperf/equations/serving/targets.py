"""The largest throughput under targets: most requests in flight whose mean times stay within them."""

from __future__ import annotations

from typing import NamedTuple, Protocol, Self

import numpy as np

from xlperf.base.arrays import Array, divide, power
from xlperf.equations.serving.continuous import Replicas
from xlperf.equations.serving.deployment import Deployment, RequestLatency
from xlperf.equations.serving.load import BatchTimes, RequestLoad, half_of, request_load, whole_sizes
from xlperf.equations.serving.pools import SHARE_RUNNING, PoolLoad, Pools, pooled_steady
from xlperf.equations.serving.queueing import Steady, closed_state

_MOST_TRIES = 60
_WIDE, _PARTS = 8.0, 5
"""Ratio of the ends of a range from which on it is divided, and into how many equal ratios. [-]"""
_FEW, _FINE = 64, 13
"""Plans up to which a trial takes little longer with more numbers, and parts of a range that are tried then. [-]"""
_SLOW = 4.0
"""Ratio of the widths of a range before and after a trial below which the range is divided next. [-]"""


class _Trial(NamedTuple):
    """Outcome of trial numbers of requests, (number, rows). ``excess``: how far the time that is furthest beyond its
    target exceeds it, over the target, below 0 if all pass.
    """

    within: np.ndarray  # whether all times are
    rate: Array
    running: Array
    excess: Array


class _Targets(NamedTuple):
    """Targets of plans, (rows,), infinite where there is none. [s, s] ``tokens`` are those after the first, ``latency``
    that of requests outside the loop of the engine.
    """

    first: Array
    token: Array
    tokens: Array
    latency: RequestLatency

    def take(self, rows: np.ndarray) -> _Targets:
        """The same of some of the plans."""
        latency = RequestLatency(*(values[rows] for values in self.latency))
        return _Targets(self.first[rows], self.token[rows], self.tokens[rows], latency)

    def trial(self, steady: Steady, running: Array) -> _Trial:
        """Whether the mean times of a state, (number, rows), are within them."""
        first = steady.first_token + steady.queue_time
        token = np.where(self.tokens > 0.0, steady.decode_time / np.maximum(self.tokens, 1.0), 0.0)
        within = (first <= self.first) & (token <= self.token)
        return _Trial(within, steady.rate, running, np.maximum(first / self.first, token / self.token) - 1.0)


class _Search(Protocol):
    """Plans for which numbers of requests are tried."""

    def take(self, rows: np.ndarray) -> Self:
        """Some of the plans."""

    def attempt(self, requests: Array) -> _Trial:
        """What numbers of requests give, (number, rows)."""

    def edge(self, requests: Array) -> Array:
        """Numbers above which times may jump: the last with the computed batches around a number, (rows,). [-]"""


class _Replicas(NamedTuple):
    """Replicas that prefill and decode: the number is that of requests on one of them."""

    times: BatchTimes
    workload: RequestLoad
    targets: _Targets
    places: Array

    def take(self, rows: np.ndarray) -> _Replicas:
        return _Replicas(self.times.take(rows), self.workload.take(rows), self.targets.take(rows), self.places[rows])

    def attempt(self, requests: Array) -> _Trial:
        workload = self.workload
        cycles = Replicas(self.times, workload, self.places).cycles(requests, list(half_of(requests)))
        service = workload.service(requests, cycles.cycle, cycles.steps)
        steady = closed_state(service, requests, requests, self.targets.latency.time(requests))
        return self.targets.trial(steady, requests)

    def edge(self, requests: Array) -> Array:
        return np.maximum(whole_sizes(requests)[1], requests + 1.0)


class _Pools(NamedTuple):
    """Separate pools: the number is that of requests in flight over both."""

    load: PoolLoad
    targets: _Targets

    def take(self, rows: np.ndarray) -> _Pools:
        return _Pools(self.load.take(rows), self.targets.take(rows))

    def with_known_times(self) -> _Pools:
        """The same once all times that a state is interpolated between are computed: one call instead of many."""
        places, most = self.load.places, self.load.workload.max_prefill_prompts
        steps, passes = (_whole_sizes_to(each)[:, None] for each in (places, most))
        self.load.times.at(np.minimum(steps, whole_sizes(places)[1]), np.minimum(passes, most))
        return self

    def attempt(self, requests: Array) -> _Trial:
        steady = pooled_steady(self.load, requests)
        return self.targets.trial(steady, np.ceil(steady.running))

    def edge(self, requests: Array) -> Array:
        each = SHARE_RUNNING / self.load.decode_replicas
        return np.ceil(whole_sizes(np.maximum(each * (requests + 1.0), 1.0))[1] / each) - 1.0


def _whole_sizes_to(most: Array) -> Array:
    """Batches between which times are linear, from 1 to the largest number or more. [-]"""
    sizes, largest = [1.0], float(np.max(most, initial=1.0, where=~np.isnan(most)))
    while sizes[-1] < largest:
        sizes.append(float(whole_sizes(np.array([np.nextafter(sizes[-1], np.inf)]))[1][0]))
    return np.array(sizes)


def _largest_within(most: Array, search: _Search) -> tuple[Array, Array, Array]:
    """Largest whole number that passes, with its rate and running requests; all below one that passes pass too. A wide
    range is divided into equal ratios, as is one that hardly shrank. In others the number follows from lines through
    the times of two numbers, and from the batches at which times jump.
    """
    low, high = 0.0 * most, np.floor(most) + 1.0
    rate, running, under, over = 0.0 * most, 0.0 * most, np.full_like(most, -1.0), np.full_like(most, np.nan)
    rows = np.flatnonzero(high - low > 1.0)
    search, tried = search.take(rows), np.concatenate([_divided(low[rows], high[rows], _PARTS), high[None, rows] - 1.0])
    for _ in range(_MOST_TRIES):
        if not len(rows):
            break
        trial, width = search.attempt(tried), high[rows] - low[rows]
        # Largest number that passes, and smallest one above it that does not.
        at = np.argmax(np.where(trial.within, tried, 0.0), axis=0), np.arange(len(rows))
        passes = trial.within[at]
        for best, values in ((low, tried), (rate, trial.rate), (running, trial.running), (under, trial.excess)):
            best[rows] = np.where(passes, values[at], best[rows])
        missed = np.where(trial.within | (tried <= low[rows]), np.inf, tried)
        at = np.argmin(missed, axis=0), np.arange(len(rows))
        misses = missed[at] < high[rows]
        for best, values in ((high, tried), (over, trial.excess)):
            best[rows] = np.where(misses, values[at], best[rows])
        # Zeros of the lines through an end and the next number beyond it, from both sides.
        lower = np.argmax(np.where(tried < low[rows], tried, -1.0), axis=0), np.arange(len(rows))
        upper = np.argmin(np.where(tried > high[rows], tried, np.inf), axis=0), np.arange(len(rows))
        zeros = [
            end[rows] - excess[rows] * divide(end[rows] - tried[at], excess[rows] - trial.excess[at], np.nan)
            for end, excess, at in ((low, under, lower), (high, over, upper))
        ]
        left = np.flatnonzero(high[rows] - low[rows] > 1.0)
        rows, search = rows[left], search.take(left)
        first, last = low[rows], high[rows]
        guess = first + (last - first) * divide(-under[rows], over[rows] - under[rows], np.nan)
        # The next jump of the times, and the line through both ends, replace lines without a zero in the range.
        near = np.floor(
            [
                np.where((zero[left] > first) & (zero[left] < last), zero[left], other)
                for zero, other in zip(zeros, (search.edge(first), guess), strict=True)
            ]
        )
        near = np.concatenate([near, near + 1.0])
        wide = np.isnan(guess) | (last > _WIDE * np.maximum(first, 1.0)) | ((last - first) * _SLOW > width[left])
        tried = np.where(wide, _divided(first, last, _PARTS), near)
        tried = tried if len(rows) > _FEW else np.concatenate([tried, _divided(first, last, _FINE)])
        tried = np.clip(tried, first + 1.0, last - 1.0)
    return low, rate, running


def _divided(first: Array, last: Array, parts: int) -> Array:
    """Whole numbers from 1 on that divide ranges into equal ratios, (parts - 1, rows). [-]"""
    least, shares = np.maximum(first, 1.0), np.arange(1.0, parts) / parts
    return np.floor(least * power(last / least, shares[:, None]))


def _targets_of(deployment: Deployment) -> tuple[np.ndarray, _Targets]:
    """Mask of the plans that have targets, and their targets."""
    plan = deployment.plan
    first, token, tokens = plan.ttft_target, plan.tpot_target, plan.tokens_after_first
    asked = ~(np.isnan(first) & np.isnan(token))
    first, token = (np.where(np.isnan(each), np.inf, each) for each in (first, token))
    return asked, _Targets(first, token, tokens, deployment.request_latency)


def target_results(deployment: Deployment, places: Array, times: BatchTimes) -> dict[str, Array]:
    """Largest batch of a replica under the targets, and the throughput of all replicas with it.

    0 if one request misses a target or does not fit, NaN without a target. ``places``: requests that a replica takes at
    once, whole, (rows,). A first token within a second is no limit where the memory has room for eight requests.

    >>> from ideal_machine import ONE, deployment
    >>> served = deployment(mode="continuous", ttft_target=1, output_length=101)
    >>> target_results(served, 8 * ONE, BatchTimes.of(served))["batch_at_targets"].tolist()
    [8.0]
    """
    plan = deployment.plan
    asked, targets = _targets_of(deployment)
    load = request_load(plan, deployment, deployment.burst_fraction, deployment.mixed, deployment.balance_rows)
    search = _Replicas(times, load, targets, places)
    batch, rate, _ = _largest_within(np.where(asked, places, 0.0), search)
    known = places + targets.tokens + plan.prompt_length
    return {
        "batch_at_targets": np.where(asked & ~np.isnan(known), batch, np.nan),
        "tokens_per_second_at_targets": np.where(asked, rate * plan.num_replicas * plan.output_length, np.nan),
    }


def pooled_target_results(pools: Pools) -> dict[str, Array]:
    """Largest throughput of two pools under the targets, and the requests that a decoding replica then decodes.

    0 if one request misses a target or does not fit, NaN without a target. A first token within a second is no limit:
    two tokens for each of the 9,684 prompts a second that full passes of eight prompts, 826 us each, prefill.

    >>> from ideal_machine import pools
    >>> pooled_target_results(pools(num_accelerators=2, ttft_target=1)[0])["tokens_per_second_at_targets"].tolist()
    [19367.2]
    """
    plan, other = pools.decoding.plan, pools.prefilling.plan
    asked, targets = _targets_of(pools.decoding)
    most = np.maximum(pools.memory.places(plan), 0.0) * plan.num_replicas
    # Requests that are being prefilled stand beside those that are decoded.
    most = most + np.where(
        most > 0.0, np.maximum(other.prefill_tokens / other.own_tokens, 1.0) * other.num_replicas, 0.0
    )
    _, rate, running = _largest_within(np.where(asked, most, 0.0), _Pools(pools.load, targets).with_known_times())
    known = most + targets.tokens + plan.prompt_length
    return {
        "batch_at_targets": np.where(asked & ~np.isnan(known), running, np.nan),
        "tokens_per_second_at_targets": np.where(asked, rate * plan.output_length, np.nan),
    }
