"""The largest throughput under targets: most requests in flight whose mean times stay within them."""

from __future__ import annotations

from typing import NamedTuple, Protocol, Self

import numpy as np

from xlperf.base.arrays import Array
from xlperf.equations.serving.continuous import Replicas
from xlperf.equations.serving.deployment import Deployment, RequestLatency
from xlperf.equations.serving.load import BatchTimes, RequestLoad, half_of, request_load, whole_sizes
from xlperf.equations.serving.pools import PoolLoad, Pools, pooled_steady
from xlperf.equations.serving.queueing import Service, Steady, closed_state

_MOST_TRIES = 40
_START = 64.0


class _Trial(NamedTuple):
    """Outcome of trial numbers of requests, (number, rows): whether they pass, rate, running requests, next trial."""

    good: np.ndarray
    rate: Array
    running: Array
    guess: Array


class _Targets(NamedTuple):
    """Targets of plans, (rows,), infinite where there is none. [s, s]

    ``tokens`` are those after the first, ``latency`` that of requests outside the loop of the engine.
    """

    first: Array
    token: Array
    tokens: Array
    latency: RequestLatency

    def take(self, rows: np.ndarray) -> _Targets:
        """The same of some of the plans."""
        latency = RequestLatency(*(values[rows] for values in self.latency))
        return _Targets(self.first[rows], self.token[rows], self.tokens[rows], latency)

    def kept(self, steady: Steady) -> tuple[np.ndarray, Array]:
        """Whether the mean times of a state are within them, and its rate. [request/s]"""
        first = steady.first_token + steady.queue_time
        each = np.where(self.tokens > 0.0, steady.decode_time / np.maximum(self.tokens, 1.0), 0.0)
        return np.asarray((first <= self.first) & (each <= self.token)), steady.rate


class _Search(Protocol):
    """Plans for which numbers of requests are tried."""

    def take(self, rows: np.ndarray) -> Self:
        """Some of the plans."""

    def attempt(self, requests: Array) -> _Trial:
        """What numbers of requests give, (number, rows)."""


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
        found = Replicas(self.times, workload, self.places).cycles(requests, list(half_of(requests)))
        service = workload.service(requests, found.cycle, found.steps)
        first, token, tokens, latency = self.targets
        outside = latency.time(requests)
        steady = closed_state(service, requests, requests, outside)
        guess = largest_within(service, self.places, tokens, first - outside, token)
        return _Trial(*self.targets.kept(steady), requests, guess)


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
        return _Trial(*self.targets.kept(steady), np.ceil(steady.running), np.nan * requests)


def _whole_sizes_to(most: Array) -> Array:
    """Batches between which times are linear, from 1 to the largest number or more. [-]"""
    found, largest = [1.0], float(np.max(most, initial=1.0, where=~np.isnan(most)))
    while found[-1] < largest:
        found.append(float(whole_sizes(np.array([np.nextafter(found[-1], np.inf)]))[1][0]))
    return np.array(found)


def _largest_good(most: Array, search: _Search) -> tuple[Array, Array, Array]:
    """Largest whole number that passes, with its rate and running requests; all below one that passes pass too.

    A try follows the guess of the one before, or halves the logarithm of what is left; from the third on the numbers
    beside it are tried with it, and those that halve the logarithms of what lies below and above.
    """
    low, high = 0.0 * most, np.floor(most) + 1.0
    rate, running = 0.0 * most, 0.0 * most
    rows = np.flatnonzero(high - low > 1.0)
    search = search.take(rows)
    tried = np.clip(np.minimum(most, _START), 1.0, np.maximum(high - 1.0, 1.0))[None, rows]
    for turn in range(_MOST_TRIES):
        if not len(rows):
            break
        good, rates, runs, guesses = search.attempt(tried)
        at = np.argmax(np.where(good, tried, 0.0), axis=0), np.arange(len(rows))
        passes = good[at]
        low[rows] = np.where(passes, tried[at], low[rows])
        rate[rows], running[rows] = np.where(passes, rates[at], rate[rows]), np.where(passes, runs[at], running[rows])
        high[rows] = np.minimum(high[rows], np.where(good | (tried <= low[rows]), np.inf, tried).min(axis=0))
        left = np.flatnonzero(high[rows] - low[rows] > 1.0)
        rows, guess, search = rows[left], guesses[0, left], search.take(left)
        first, last = low[rows], high[rows]
        guess = np.where(np.isnan(guess), np.floor(np.sqrt(np.maximum(first, 1.0) * last)), guess)
        guess = np.clip(guess, first + 1.0, last - 1.0)
        beside = [guess]
        if turn > 0:
            below = np.floor(np.sqrt(np.maximum(first, 1.0) * guess))
            above = np.ceil(np.sqrt(guess * last))
            beside = [guess, guess - 1.0, guess + 1.0, below, above]
        tried = np.clip(np.stack(beside), first + 1.0, last - 1.0)
    return low, rate, running


def _targets_of(deployment: Deployment) -> tuple[np.ndarray, _Targets]:
    """Mask of the plans that have targets, and their targets."""
    plan = deployment.plan
    first, token, tokens = plan.ttft_target, plan.tpot_target, plan.tokens_after_first
    asked = ~(np.isnan(first) & np.isnan(token))
    first, token = (np.where(np.isnan(each), np.inf, each) for each in (first, token))
    return asked, _Targets(first, token, tokens, deployment.request_latency)


def target_results(deployment: Deployment, places: Array, times: BatchTimes) -> dict[str, Array]:
    """Largest batch of a replica under the targets, and the throughput of all replicas with it.

    Parameters
    ----------
    deployment : Deployment
        Model, accelerators, plan, calibration, (rows,).
    places : Array
        Requests that a replica takes at once, whole, (rows,). [-]
    times : BatchTimes
        Times of the plans, (rows,).

    Returns
    -------
    dict of str to Array
        batch_at_targets, 0 where one request misses a target or does not fit, and tokens_per_second_at_targets,
        (rows,); NaN without a target.

    Examples
    --------
    A first token within a second is no limit where the memory has room for eight requests.

    >>> from ideal_machine import ONE, deployment
    >>> served = deployment(mode="continuous", ttft_target=1, output_length=101)
    >>> target_results(served, 8 * ONE, BatchTimes.of(served))["batch_at_targets"].tolist()
    [8.0]
    """
    plan = deployment.plan
    asked, targets = _targets_of(deployment)
    load = request_load(plan, plan, deployment.burst_fraction, deployment.mixed, deployment.balance_rows)
    search = _Replicas(times, load, targets, places)
    batch, rate, _ = _largest_good(np.where(asked, places, 0.0), search)
    known = places + targets.tokens + plan.prompt_length
    return {
        "batch_at_targets": np.where(asked & ~np.isnan(known), batch, np.nan),
        "tokens_per_second_at_targets": np.where(asked, rate * plan.num_replicas * plan.output_length, np.nan),
    }


def pooled_target_results(pools: Pools) -> dict[str, Array]:
    """Largest throughput of two pools under the targets, and the requests that a decoding replica then decodes.

    Parameters
    ----------
    pools : Pools
        As :func:`xlperf.equations.serving.pools_of` has them, (rows,).

    Returns
    -------
    dict of str to Array
        batch_at_targets, 0 where one request misses a target or does not fit, and tokens_per_second_at_targets,
        (rows,); NaN without a target.

    Examples
    --------
    A first token within a second is no limit: two tokens for each of the 9,684 prompts a second that full passes of
    eight prompts, 826 us each, prefill.

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
    _, rate, running = _largest_good(np.where(asked, most, 0.0), _Pools(pools.load, targets).with_known_times())
    known = most + targets.tokens + plan.prompt_length
    return {
        "batch_at_targets": np.where(asked & ~np.isnan(known), running, np.nan),
        "tokens_per_second_at_targets": np.where(asked, rate * plan.output_length, np.nan),
    }


def largest_within(service: Service, places: Array, tokens: Array, first_target: Array, token_target: Array) -> Array:
    """Most requests in flight whose mean times stay within targets.

    Parameters
    ----------
    service : Service
        Times of a replica, (rows,).
    places : Array
        Requests that the cache has room for, (rows,). [-]
    tokens : Array
        Tokens after the first, (rows,). [-]
    first_target : Array
        Largest time to the first token, (rows,). [s]
    token_target : Array
        Largest time per token, (rows,). [s]

    Returns
    -------
    Array
        Whole number; 0 where a single request misses a target or does not fit, (rows,). [-]

    References
    ----------
    .. [1] Y. Zhong et al., "DistServe: disaggregating prefill and decoding for goodput-optimized large language model
       serving", OSDI 2024, arXiv:2401.09670.

    A step takes 10 ms and 1 ms for each request: 15 of them keep to 25 ms per token.

    >>> service = Service(*(np.array([value]) for value in (0.0, 0.0, 0.01, 0.001, 100.0, 0.0)))
    >>> limits = (np.array([value]) for value in (64.0, 100.0, np.inf, 0.025))
    >>> largest_within(service, *limits).tolist()
    [15.0]
    """
    low, high = 0.0 * places, np.maximum(places, 0.0) + 1.0
    for _ in range(_HALVINGS):
        if not (high - low > 1.0).any():
            break
        middle = np.floor(0.5 * (low + high))
        steady = closed_state(service, middle, middle)
        per_token = steady.decode_time / np.maximum(tokens, 1.0)
        good = (steady.first_token <= first_target) & (per_token <= token_target) & (middle <= places)
        low, high = np.where(good, middle, low), np.where(good, high, middle)
    known = places + tokens + first_target + token_target + service.prefill_time + service.step_base
    return np.asarray(np.where(np.isnan(known), np.nan, low))


_HALVINGS = 24
"""Of ten million requests down to one. [-]"""
