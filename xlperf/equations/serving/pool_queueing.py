"""Disaggregated pools under load: throughput and waits from the requests in flight or the arrival rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, divide
from xlperf.equations.serving.queueing import Steady, last_output

_MOST_ITERATIONS, _BISECTION = 80, 5  # most iterations of the root search; every fifth bisects
_SAME = 1e-12  # relative tolerance of the root [-]
_PROPORTIONAL = 0.999  # largest slope over a proportional rise, whose fixed point would be undetermined [-]


class Curve(NamedTuple):
    """Time by batch: two lines that meet at a batch; the time per request never rises with the batch."""

    upper: Array  # batch at which the lines meet [-]
    base: Array  # first line at batch 0 [s]
    slope: Array  # its slope per request [s]
    last_base: Array  # second line at batch 0 [s]
    last_slope: Array  # its slope per request [s]

    def time(self, batch: Array) -> Array:
        """Time of a batch. [s]"""
        beyond = batch > self.upper
        return np.where(beyond, self.last_base, self.base) + np.where(beyond, self.last_slope, self.slope) * batch

    def batch(self, rate: Array) -> Array:
        """Batch that arrives in the time that it takes; infinite beyond the capacity. [-]"""
        batch = _fixed_point(rate, self.base, self.slope)
        above = np.maximum(_fixed_point(rate, self.last_base, self.last_slope), self.upper)
        return np.where(batch > self.upper, above, batch)

    @staticmethod
    def through(batches: Array, times: Array) -> Curve:
        """Curve through three batches in ascending order, (3, ...); slopes between 0 and proportional."""
        low, start = batches[:-1], times[:-1]
        slope = divide(times[1:] - start, batches[1:] - low)
        slope = np.minimum(np.maximum(slope, 0.0), _PROPORTIONAL * start / low)
        base = start - slope * low
        return Curve(batches[1], base[0], slope[0], base[1], slope[1])


def _fixed_point(rate: Array, base: Array, slope: Array) -> Array:
    """Fixed point of a rate times a line: x = r (a + b x). [-]"""
    divisor = 1.0 - rate * slope
    below = divisor > 0.0
    return np.where(below, rate * base / np.where(below, divisor, 1.0), np.inf)


class PoolTimes(NamedTuple):
    """Times of two pools, (rows,)."""

    pass_times: Curve  # prefill pass by prompts
    one_prefill: Array  # pass of one prompt [s]
    full_prefill: Array  # pass of the most prompts [s]
    max_prefill_prompts: Array  # largest number of prompts per pass, 1 or more [-]
    overlap: Array  # prefills in progress at once in the pipeline of a prefill replica [-]
    burst: Array  # fraction of the requests that arrive in the initial burst [-]
    wave_spread: Array  # squared dispersion of later waves over a cycle; infinite for unsynchronised requests [-]
    prefill_replicas: Array  # [-]
    step_times: Curve  # decode step by batch
    decode_steps: Array  # decode steps per request [-]
    decode_replicas: Array  # [-]
    places: Array  # requests in the cache of a decode replica [-]
    decode_capacity: Array  # decode throughput with full caches [request/s]
    transfer: Array  # time to send the cache of a prompt [s]

    @property
    def prefill_capacity(self) -> Array:
        """Prefill throughput with full passes. [request/s]"""
        return np.asarray(self.prefill_replicas * self.max_prefill_prompts * self.overlap / self.full_prefill)

    @property
    def capacity(self) -> Array:
        """Throughput limit of both pools. [request/s]"""
        return np.asarray(np.minimum(self.prefill_capacity, self.decode_capacity))

    def burst_pass(self, requests: Array) -> tuple[Array, Array]:
        """Prompts per pass, and its time, when all requests in flight arrive at once. [-, s]"""
        prompts = np.minimum(np.maximum(requests / self.prefill_replicas, 1.0), self.max_prefill_prompts)
        slope = divide(self.full_prefill - self.one_prefill, self.max_prefill_prompts - 1.0)
        return prompts, self.one_prefill + slope * (prompts - 1.0)

    def burst_wait(self, requests: Array) -> Array:
        """Mean wait for the other passes of a burst, averaged over all requests. [s]"""
        prompts, prefill = self.burst_pass(requests)
        passes = requests / (self.prefill_replicas * prompts)
        return np.asarray(0.5 * self.burst * (prefill / self.overlap) * np.maximum(passes - 1.0, 0.0))

    def prompts(self, rate: Array, most: Array) -> Array:
        """Prompts per pass: arrivals during the previous pass, ``most`` at most. [-]"""
        prompts = self.pass_times.batch(rate / (self.prefill_replicas * self.overlap))
        return np.asarray(np.minimum(np.maximum(prompts, 1.0), most))

    def prefill_wait(self, rate: Array, prefill: Array) -> Array:
        """Mean residual time of the running pass. [s]"""
        interval = prefill / self.overlap
        busy = np.minimum(rate * interval / self.prefill_replicas, 1.0)
        return np.asarray(0.5 * interval * busy / self.prefill_replicas)

    def overflow(self, rate: Array) -> Array:
        """Mean queueing for full passes times the free fraction of the capacity (M/D/1). [s]"""
        load = rate / self.prefill_capacity
        return np.asarray(0.5 * load * load / self.prefill_capacity)

    def decoding(self, rate: Array) -> tuple[Array, Array]:
        """Decode batch of a replica, and decode time of a request. [-, s]"""
        flow = rate * self.decode_steps / self.decode_replicas
        running = np.minimum(np.maximum(self.step_times.batch(flow), 1.0), self.places)
        step = self.step_times.time(running)
        return np.asarray(np.where(running > 1.0, running, flow * step)), np.asarray(self.decode_steps * step)


def _columns(times: PoolTimes, requests: Array, burst_wait: Array, outside: Array) -> list[Array]:
    """Arguments of :func:`_throughput` that do not depend on the rate."""
    flow, capacity = times.prefill_replicas * times.overlap, times.prefill_capacity
    limit, ahead = np.minimum(capacity, times.decode_capacity), 1.0 - 1.0 / np.maximum(requests, 1.0)
    # Longest wait: the prompts of all other requests of a replica, one after the other.
    longest = np.maximum(requests / times.prefill_replicas - 1.0, 0.0) * times.one_prefill / times.overlap
    most, burst_prefill = times.burst_pass(requests)
    curves = [line for lines in zip(times.pass_times, times.step_times, strict=True) for line in lines]
    pools = flow, times.decode_replicas, most, times.places
    prefill = times.overlap, times.prefill_replicas, times.burst, times.wave_spread, burst_prefill
    fixed = times.transfer + outside
    return [*curves, *pools, *prefill, times.decode_steps, fixed, burst_wait, requests, ahead, longest, capacity, limit]


def _wave_rate(rate: Array, capacity: Array, wave_spread: Array) -> Array:
    r"""Arrival rate of a later wave of a run at the prefill pool. [request/s]

    The first wave arrives at once and is prefilled in c / C. Output lengths of coefficient of variation v disperse the
    k-th wave further, uniformly over :math:`\sqrt{12 k}\,v` of a cycle c / X. Heuristic, this work.

    .. math:: \lambda = \max\left(X, \frac{X}{\sqrt{(X / C)^2 + 12 k v^2}}\right)
    """
    load = rate / capacity
    return np.asarray(rate / np.minimum(np.sqrt(load * load + wave_spread), 1.0))


def _mean_prefill(prefill: Array, burst_prefill: Array, burst: Array) -> Array:
    """Mean pass time over separate requests and the burst. [s]"""
    return prefill + burst * np.maximum(burst_prefill - prefill, 0.0)


def _throughput(rate: Array, columns: Array) -> Array:
    """Throughput by Little's law in both pools at frozen service times: a quadratic equation. [request/s]"""
    # Passes and steps side by side, (2, rows).
    curves, divisors, largest = Curve(*columns[:10].reshape(5, 2, -1)), columns[10:12], columns[12:14]
    overlap, prefill_replicas, burst, spread, burst_prefill, steps = columns[14:20]
    fixed, burst_wait, requests, ahead, longest, capacity, limit = columns[20:]
    # Service times at the trial rate.
    wave_rate = _wave_rate(rate, capacity, spread)
    batches = curves.batch(np.array([wave_rate, rate * steps]) / divisors)
    prefill, step = curves.time(np.minimum(np.maximum(batches, 1.0), largest))
    service = _mean_prefill(prefill, burst_prefill, burst) + fixed + steps * step
    interval, load = prefill / overlap, rate / capacity
    residual = 0.5 * interval * np.minimum(wave_rate * interval / prefill_replicas, 1.0) / prefill_replicas
    # Little's law c = X (service + waits), solved for X without cancellation.
    unqueued = service + burst_wait + residual * ahead
    total = capacity * (unqueued + 0.5 * load * load / capacity * ahead) + requests
    discriminant = np.maximum(total * total - 4.0 * unqueued * requests * capacity, 0.0)
    root = 2.0 * requests * capacity / (total + np.sqrt(discriminant))
    return np.asarray(np.minimum(np.maximum(root, requests / (service + longest)), limit))


def _root(columns: Array, equation: Callable[[Array, Array], Array], most: Array) -> Array:
    """Fixed point of a decreasing function on [0, most], for each plan: Illinois method with bisection steps."""
    root = equation(most, columns)
    rows = (root < most).nonzero()[0]
    columns, high, low = columns.take(rows, axis=1), most[rows], root[rows]
    low_gap, high_gap = equation(low, columns) - low, low - high
    searched, last_side = np.ones(len(rows), dtype=bool), np.zeros(len(rows))
    for iteration in range(_MOST_ITERATIONS):
        trial = low + (high - low) * (low_gap / np.where(low_gap > high_gap, low_gap - high_gap, 1.0))
        if iteration % _BISECTION == _BISECTION - 1:
            trial = 0.5 * (low + high)
        gap = equation(trial, columns) - trial
        above = gap > 0.0
        # An end that stays for a second time counts half (Illinois).
        halved_low, halved_high = (
            np.where(last_side < 0.0, 0.5 * low_gap, low_gap),
            np.where(last_side > 0.0, 0.5 * high_gap, high_gap),
        )
        low, low_gap = np.where(above, trial, low), np.where(above, gap, halved_low)
        high, high_gap = np.where(above, high, trial), np.where(above, halved_high, gap)
        last_side = np.where(above, 1.0, -1.0)
        done = searched & (~(np.abs(gap) > _SAME * trial) | (high - low <= _SAME * trial))
        root[rows[done]] = trial[done]
        searched &= ~done
        # Plans that are done leave once they are half of all.
        left = searched.nonzero()[0]
        if not len(left):
            break
        if 2 * len(left) < len(rows):
            rows, columns, searched, last_side = rows[left], columns.take(left, axis=1), searched[left], last_side[left]
            low, high, low_gap, high_gap, trial = (values[left] for values in (low, high, low_gap, high_gap, trial))
    else:
        root[rows[searched]] = trial[searched]
    return root


def pooled_state(times: PoolTimes, requests: Array, outside: Array) -> tuple[Steady, Array]:
    r"""Steady state of two pools with c requests in flight, each ``outside`` the engine for tau, and prompts per pass.

    The rate X satisfies Little's law over prefill, transfer and decoding. Every time on the right grows with the rate:
    more requests in flight never lower the rate or shorten a wait, and doubling them never more than doubles the rate.

    .. math:: c = X \left(\tau + \bar t_p + w(X) + t_{send} + N\,t(b)\right), \qquad b = \frac{X N t(b)}{n_d},
        \qquad m = \frac{\lambda}{n_p} t_p(m)

    Requests of a run arrive in waves that disperse: the first, a fraction f of all, arrives at once with m_0 prompts in
    a pass; later waves at the rate :math:`\lambda \ge X` of the middle of the run.

    .. math:: \bar t_p = t_p(m) + f \max(t_p(m_0) - t_p(m), 0), \qquad m_0 = \min(c / n_p, m_{max})

    Source: Y. Zhong et al., "DistServe: disaggregating prefill and decoding for goodput-optimized large language model
    serving", OSDI 2024, arXiv:2401.09670.
    """
    # Throughput, row by row.
    burst_wait, most = times.burst_wait(requests), np.asarray(times.capacity + 0.0 * requests)
    columns = np.stack(np.broadcast_arrays(*_columns(times, requests, burst_wait, outside)))
    rate = _root(columns.reshape(len(columns), -1), _throughput, most.ravel()).reshape(most.shape)
    # Prefill: batch, pass time and queueing at the rate of later waves.
    capacity, (burst_prompts, burst_prefill) = times.prefill_capacity, times.burst_pass(requests)
    wave_rate = _wave_rate(rate, capacity, times.wave_spread)
    prompts = times.prompts(wave_rate, burst_prompts)
    prefill = times.pass_times.time(prompts)
    queueing = times.overflow(rate) * divide(capacity, capacity - rate, np.inf) + times.prefill_wait(wave_rate, prefill)
    queueing = queueing * (1.0 - 1.0 / np.maximum(requests, 1.0))
    running, decode = times.decoding(rate)
    first = _mean_prefill(prefill, burst_prefill, times.burst) + times.transfer + outside
    # The remainder of a cycle is waiting: before the prefill first, then for a place.
    remainder = np.where(requests > 1.0, np.maximum(requests / rate - first - decode, 0.0), 0.0)
    wait = np.minimum(burst_wait + queueing, remainder)
    # No request waits for a place while there is one: where a step takes as much longer as it has more requests (the
    # host limits it), any batch gives the rate, and the requests in flight make up the largest.
    free = np.maximum(times.places - running, 0.0) * times.decode_replicas / rate
    held = np.where(rate >= times.decode_capacity * (1.0 - _SAME), np.minimum(remainder - wait, free), 0.0)
    running, decode = running + held * rate / times.decode_replicas, decode + held
    return Steady(running, first + wait, wait, decode, remainder - wait - held, rate), prompts


def pooled_open_state(
    times: PoolTimes, rate: Array, prompt_variation: Array, arrival_variation: Numeric = 1.0
) -> tuple[Steady, Array]:
    r"""Steady state of two pools under open arrivals, and prompts per pass; waits are infinite beyond the capacity.

    .. math:: w = \frac{c_a^2 + v^2}{2} \left(\min\left(\frac{\lambda t_p}{n_p}, 1\right) \frac{t_p}{n_p} +
        \frac{(\lambda / C)^2}{1 - \lambda / C} \frac{1}{C}\right), \qquad b = \frac{\lambda N t(b)}{n_d}

    c_a and v are the coefficients of variation of interarrival times and prompt lengths. Source: L. Kleinrock,
    "Queueing Systems, Volume I: Theory", Wiley, 1975, section 5.6 (Pollaczek and Khinchin).
    """
    stable = rate < times.capacity
    stable_rate = np.where(stable, rate, 0.0)
    prompts = times.prompts(stable_rate, times.max_prefill_prompts)
    prefill = times.pass_times.time(prompts)
    wait = times.prefill_wait(stable_rate, prefill)
    wait = wait + times.overflow(stable_rate) / (1.0 - stable_rate / times.prefill_capacity)
    irregular = np.asarray(array(arrival_variation) ** 2)
    wait = np.where(stable, wait * (irregular + prompt_variation * prompt_variation), np.inf)
    running, decode = times.decoding(stable_rate)
    decode, running = np.where(stable, decode, np.inf), np.where(stable, running, np.inf)
    return Steady(running, prefill + wait + times.transfer, wait, decode, 0.0 * rate, rate + 0.0 * prefill), prompts


def pooled_run_rate(
    rate: Numeric,
    running: Numeric,
    run_requests: Numeric,
    decode_steps: Numeric,
    last_step: Numeric,
    output_variation: Numeric,
) -> Array:
    r"""Requests per second over a finite run of two pools, until its last request ends.

    Both pools are busy as in the steady state until the last requests decode. With varying outputs these end one by
    one, in ever smaller batches; x as in :func:`xlperf.equations.serving.queueing.last_output`.

    .. math:: X_N = \frac{N}{N / X + N_s\,x(N, \min(n, N))\,t(1)}

    Source: H. A. David and H. N. Nagaraja, "Order Statistics", 3rd ed., Wiley, 2003, chapter 4: the largest of n.

    Ten requests at 5 a second; the longest of four outputs exceeds the mean by 0.6: 6 steps of 0.2 s.

    >>> pooled_run_rate(5.0, 4.0, [10.0, np.nan], 10.0, 0.2, 3.0**-0.5).round(3).tolist()
    [3.125, 5.0]

    Parameters
    ----------
    rate : Rate X of the steady state, (rows,). [request/s]
    running : Requests n that all replicas decode together, (rows,). [-]
    run_requests : Requests N of the run, (rows,); NaN: without end. [-]
    decode_steps : Mean decode steps N_s per request, (rows,). [-]
    last_step : Time t(1) of a step with one request, (rows,). [s]
    output_variation : Coefficient of variation v of the outputs, (rows,). [-]

    Returns
    -------
    rate : Rate over the whole run. [request/s]
    """
    steady, run = array(rate), array(run_requests)
    ends = ~np.isnan(run)
    total = np.where(ends, np.maximum(run, 1.0), 1.0)
    together = np.maximum(np.minimum(array(running), total), 1.0)
    tail = array(decode_steps) * array(last_step) * last_output(total, together, output_variation)
    return np.asarray(np.where(ends, total / (total / steady + tail), steady + 0.0 * tail))
