"""Two pools under load, one for prefill and one for decoding: the rate that a number of requests in flight gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, divide
from xlperf.equations.serving.queueing import Steady
from xlperf.equations.serving.runs import longest_output

_MOST_TURNS, _HALVING = 80, 5
_SAME = 1e-12
# Of a rise in proportion to the batch: with all of it any number of requests would do at the same rate [-]
_PROPORTIONAL = 0.999


class Curve(NamedTuple):
    """Time by batch: two lines that meet at a batch; no batch is slower per request than a smaller one."""

    upper: Array  # batch from which on the second line holds [-]
    base: Array  # first line at no request [s]
    slope: Array  # time that a request adds to it [s]
    last_base: Array  # second line at no request [s]
    last_slope: Array  # time that a request adds to it [s]

    def time(self, batch: Array) -> Array:
        """Time with a batch. [s]"""
        beyond = batch > self.upper
        return np.where(beyond, self.last_base, self.base) + np.where(beyond, self.last_slope, self.slope) * batch

    def batch(self, rate: Array) -> Array:
        """Batch that comes at a rate in the time that it takes, infinite beyond the capacity. [-]"""
        found = _fixed(rate, self.base, self.slope)
        above = np.maximum(_fixed(rate, self.last_base, self.last_slope), self.upper)
        return np.where(found > self.upper, above, found)

    @staticmethod
    def through(batches: Array, times: Array) -> Curve:
        """Curve through the times of three batches in rising order, some of which may be the same, (3, ...).

        Its lines never fall, and rise less than in proportion to the batch.
        """
        low, start = batches[:-1], times[:-1]
        slope = divide(times[1:] - start, batches[1:] - low)
        slope = np.minimum(np.maximum(slope, 0.0), _PROPORTIONAL * start / low)
        base = start - slope * low
        return Curve(batches[1], base[0], slope[0], base[1], slope[1])


def _fixed(rate: Array, base: Array, slope: Array) -> Array:
    """Fixed point of a rate times a line: x = r (a + b x). [-]"""
    left = np.asarray(1.0 - rate * slope)
    return np.divide(rate * base, left, out=np.full_like(left, np.inf), where=left > 0.0)


class PoolTimes(NamedTuple):
    """Times of two pools, (rows,)."""

    pass_times: Curve  # time of a pass of the prefill by its prompts
    one_prefill: Array  # time of a pass with one prompt [s]
    full_prefill: Array  # time of a pass with as many as it takes [s]
    max_prefill_prompts: Array  # prompts that a pass takes, 1 or more [-]
    stages: Array  # stages that passes follow each other through [-]
    burst: Array  # share of the requests that come all at once, as many as are in flight [-]
    # Square of the part of a cycle over which those of the later waves come that their lengths set apart; infinite
    # where they come at any time [-]
    apart: Array
    prefill_replicas: Array  # replicas that prefill [-]
    step_times: Curve  # time of a decode step by its requests
    decode_steps: Array  # decode steps per request [-]
    decode_replicas: Array  # replicas that decode [-]
    places: Array  # requests that the cache of one of them has room for [-]
    decode_capacity: Array  # requests per second that they decode with full caches [request/s]
    transfer: Array  # time to send the cache of a prompt [s]

    @property
    def prefill_capacity(self) -> Array:
        """Requests per second that the first pool prefills with full passes. [request/s]"""
        return np.asarray(self.prefill_replicas * self.max_prefill_prompts * self.stages / self.full_prefill)

    @property
    def capacity(self) -> Array:
        """Requests per second that both pools can take. [request/s]"""
        return np.asarray(np.minimum(self.prefill_capacity, self.decode_capacity))

    def burst_pass(self, requests: Array) -> tuple[Array, Array]:
        """Prompts in a pass of those that all requests in flight send at once, and its time. [-, s]"""
        prompts = np.clip(requests / self.prefill_replicas, 1.0, self.max_prefill_prompts)
        slope = divide(self.full_prefill - self.one_prefill, self.max_prefill_prompts - 1.0)
        return prompts, self.one_prefill + slope * (prompts - 1.0)

    def burst_wait(self, requests: Array) -> Array:
        """Mean wait for the other passes of a burst, over all requests. [s]"""
        prompts, prefill = self.burst_pass(requests)
        passes = requests / (self.prefill_replicas * prompts)
        return np.asarray(0.5 * self.burst * (prefill / self.stages) * np.maximum(passes - 1.0, 0.0))

    def prompts(self, rate: Array, most: Array) -> Array:
        """Prompts batched into a pass: those that come while the one before is prefilled, ``most`` at most. [-]"""
        found = self.pass_times.batch(rate / (self.prefill_replicas * self.stages))
        return np.asarray(np.clip(found, 1.0, most))

    def longest_wait(self, requests: Array) -> Array:
        """Time of the prompts of all other requests of a replica, one after the other. [s]"""
        others = np.maximum(requests / self.prefill_replicas - 1.0, 0.0)
        return np.asarray(others * self.one_prefill / self.stages)

    def prefill_wait(self, rate: Array, prefill: Array) -> Array:
        """Mean wait for a replica to end the pass that it is at. [s]"""
        interval = prefill / self.stages
        busy = np.minimum(rate * interval / self.prefill_replicas, 1.0)
        return np.asarray(0.5 * interval * busy / self.prefill_replicas)

    def overflow(self, rate: Array) -> Array:
        """What the mean wait for full passes is beyond that, times the share of the capacity that is free. [s]"""
        load = rate / self.prefill_capacity
        return np.asarray(0.5 * load * load / self.prefill_capacity)

    def decoding(self, rate: Array) -> tuple[Array, Array]:
        """Requests that a replica decodes, and how long one takes. [-, s]"""
        flow = rate * self.decode_steps / self.decode_replicas
        running = np.minimum(np.maximum(self.step_times.batch(flow), 1.0), self.places)
        step = self.step_times.time(running)
        return np.asarray(np.where(running > 1.0, running, flow * step)), np.asarray(self.decode_steps * step)


def _columns(times: PoolTimes, requests: Array, burst_wait: Array, outside: Array) -> list[Array]:
    """Arguments of :func:`_reached` that do not depend on the rate."""
    flow, capacity = times.prefill_replicas * times.stages, times.prefill_capacity
    both = np.minimum(capacity, times.decode_capacity)
    others, alone = 1.0 - 1.0 / np.maximum(requests, 1.0), times.longest_wait(requests)
    most, prefill = times.burst_pass(requests)
    first = *times.pass_times, flow, most, times.stages, times.prefill_replicas, times.burst, times.apart, prefill
    second = *times.step_times, times.decode_steps, times.decode_replicas, times.places
    return [*first, *second, times.transfer + outside, burst_wait, requests, others, alone, capacity, both]


def _wave_rate(rate: Array, capacity: Array, apart: Array) -> Array:
    r"""Rate at which the requests of a later wave of a run come to be prefilled. [request/s]

    The first wave comes at once and is prefilled in c / C. The k-th comes over that time and over what the lengths of
    the outputs, of coefficient of variation v, have set its requests apart: evenly spread ones by
    :math:`\sqrt{12 k}\,v` of a cycle c / X. Heuristic, this work.

    .. math:: \lambda = \max\left(X, \frac{X}{\sqrt{(X / C)^2 + 12 k v^2}}\right)
    """
    load = rate / capacity
    return np.asarray(rate / np.minimum(np.sqrt(load * load + apart), 1.0))


def _mean_prefill(prefill: Array, together: Array, burst: Array) -> Array:
    """Mean time of a pass over requests that come by themselves and the share of those that come all at once. [s]"""
    return prefill + burst * np.maximum(together - prefill, 0.0)


def _reached(rate: Array, columns: Array) -> Array:
    """Rate at which the requests in flight fill both pools, while passes and steps take what they do at another rate.

    The wait for a prefill grows with the rate X as C / (C - X): a quadratic equation.
    """
    pass_times, (flow, most, stages, prefillers, burst, apart, together) = Curve(*columns[:5]), columns[5:12]
    step_times, (steps, decoders, places) = Curve(*columns[12:17]), columns[17:20]
    transfer, burst_wait, requests, others, alone, capacity, both = columns[20:]
    coming = _wave_rate(rate, capacity, apart)
    prefill = pass_times.time(np.clip(pass_times.batch(coming / flow), 1.0, most))
    running = np.minimum(np.maximum(step_times.batch(rate * steps / decoders), 1.0), places)
    unqueued = _mean_prefill(prefill, together, burst) + transfer + steps * step_times.time(running)
    interval, load = prefill / stages, rate / capacity
    waited = 0.5 * interval * np.minimum(coming * interval / prefillers, 1.0) / prefillers
    known = unqueued + burst_wait + waited * others
    total = capacity * (known + 0.5 * load * load / capacity * others) + requests
    under = np.maximum(total * total - 4.0 * known * requests * capacity, 0.0)
    root = 2.0 * requests * capacity / (total + np.sqrt(under))
    return np.asarray(np.minimum(np.maximum(root, requests / (unqueued + alone)), both))


def _root(columns: Array, equation: Callable[[Array, Array], Array], most: Array) -> Array:
    """Where a falling function of x is x, between 0 and ``most``: by false position, at times by times.

    The end of the range that stays counts for less each time (Illinois), so that both ends move. Each plan ends by
    itself, so that its number does not depend on the others.
    """
    found = equation(most, columns)
    rows = np.flatnonzero(found < most)
    columns, high, low = columns.take(rows, axis=1), most[rows], found[rows]
    over, under = equation(low, columns) - low, low - high
    searched, rose = np.ones(len(rows), dtype=bool), np.zeros(len(rows))
    for turn in range(_MOST_TURNS):
        tried = low + (high - low) * (over / np.where(over > under, over - under, 1.0))
        if turn % _HALVING == _HALVING - 1:
            tried = 0.5 * (low + high)
        gap = equation(tried, columns) - tried
        above = gap > 0.0
        low, over = np.where(above, tried, low), np.where(above, gap, np.where(rose < 0.0, 0.5 * over, over))
        high, under = np.where(above, high, tried), np.where(above, np.where(rose > 0.0, 0.5 * under, under), gap)
        rose = np.where(above, 1.0, -1.0)
        done = searched & (~(np.abs(gap) > _SAME * tried) | (high - low <= _SAME * tried))
        found[rows[done]] = tried[done]
        searched &= ~done
        left = np.flatnonzero(searched)
        if not len(left):
            break
        if 2 * len(left) < len(rows):
            rows, columns, searched, rose = rows[left], columns.take(left, axis=1), searched[left], rose[left]
            low, high, over, under, tried = low[left], high[left], over[left], under[left], tried[left]
    else:
        found[rows[searched]] = tried[searched]
    return found


def pooled_state(times: PoolTimes, requests: Array, outside: Array) -> tuple[Steady, Array]:
    r"""Steady state of two pools: prompts are prefilled in one, their caches sent to the other and decoded there.

    The rate X is the one at which the requests in flight fill both pools. Every time on the right grows with the rate,
    so that more requests in flight never give a lower rate or a shorter wait, nor twice as many more than twice the
    rate.

    .. math:: c = X \left(\tau + \bar t_p + w(X) + t_{send} + N\,t(b)\right), \qquad b = \frac{X N t(b)}{n_d},
        \qquad m = \frac{\lambda}{n_p} t_p(m)

    Requests of a run come in waves, which spread from one to the next: the first, a share f of all, comes at once, with
    m_0 prompts in a pass; those of later waves at the rate :math:`\lambda \ge X` of the middle of the run.

    .. math:: \bar t_p = t_p(m) + f \max(t_p(m_0) - t_p(m), 0), \qquad m_0 = \min(c / n_p, m_{max})

    References
    ----------
    .. [1] Y. Zhong et al., "DistServe: disaggregating prefill and decoding for goodput-optimized large language model
       serving", OSDI 2024, arXiv:2401.09670.
    """
    burst, most = times.burst_wait(requests), np.asarray(times.capacity + 0.0 * requests)
    columns = np.stack(np.broadcast_arrays(*_columns(times, requests, burst, outside)))
    flat = columns.reshape(len(columns), -1)
    rate = _root(flat, _reached, most.ravel()).reshape(most.shape)
    capacity, (together, batched) = times.prefill_capacity, times.burst_pass(requests)
    coming = _wave_rate(rate, capacity, times.apart)
    prompts = times.prompts(coming, together)
    prefill = times.pass_times.time(prompts)
    queueing = times.overflow(rate) * divide(capacity, capacity - rate, np.inf) + times.prefill_wait(coming, prefill)
    queueing = queueing * (1.0 - 1.0 / np.maximum(requests, 1.0))
    running, decode = times.decoding(rate)
    first = _mean_prefill(prefill, batched, times.burst) + times.transfer + outside
    # With the first pool at its capacity what is left of the cycle is the wait for it.
    left = np.where(requests > 1.0, np.maximum(requests / rate - first - decode, 0.0), 0.0)
    wait = np.minimum(burst + queueing, left)
    return Steady(running, first + wait, wait, decode, left - wait, rate), prompts


def pooled_open_state(
    times: PoolTimes, rate: Array, prompt_variation: Array, arrival_variation: Numeric = 1.0
) -> tuple[Steady, Array]:
    r"""Steady state of two pools with requests that arrive independently of each other.

    .. math:: w = \frac{c_a^2 + v^2}{2} \left(\min\left(\frac{\lambda t_p}{n_p}, 1\right) \frac{t_p}{n_p} +
        \frac{(\lambda / C)^2}{1 - \lambda / C} \frac{1}{C}\right), \qquad b = \frac{\lambda N t(b)}{n_d}

    References
    ----------
    .. [1] L. Kleinrock, "Queueing Systems, Volume I: Theory", Wiley, 1975, section 5.6 (Pollaczek and Khinchin).
    """
    keeps = rate < times.capacity
    rate_kept = np.where(keeps, rate, 0.0)
    prompts = times.prompts(rate_kept, times.max_prefill_prompts)
    prefill = times.pass_times.time(prompts)
    wait = times.prefill_wait(rate_kept, prefill)
    wait = wait + times.overflow(rate_kept) / (1.0 - rate_kept / times.prefill_capacity)
    irregular = np.asarray(array(arrival_variation) ** 2)
    wait = np.where(keeps, wait * (irregular + prompt_variation * prompt_variation), np.inf)
    running, decode = times.decoding(rate_kept)
    decode, running = np.where(keeps, decode, np.inf), np.where(keeps, running, np.inf)
    return Steady(running, prefill + wait + times.transfer, wait, decode, 0.0 * rate, rate + 0.0 * prefill), prompts


def pooled_run_rate(
    rate: Numeric,
    running: Numeric,
    run_requests: Numeric,
    decode_steps: Numeric,
    last_step: Numeric,
    output_variation: Numeric,
) -> Array:
    r"""Requests per second over a run of two pools that ends with its last request.

    Requests that follow one another keep both pools as busy as without end, up to the last ones that are decoded. Where
    outputs vary the run goes on until the longest of these ends, in steps with ever fewer requests: x(n) of
    :func:`xlperf.equations.serving.runs.longest_output`.

    .. math:: X_N = \frac{N}{N / X + N_s\,x(\min(n, N))\,t(1)}

    Parameters
    ----------
    rate : numeric
        Rate X without end, (rows,). [request/s]
    running : numeric
        Requests n that all replicas decode together, (rows,). [-]
    run_requests : numeric
        Requests N of the run, (rows,); NaN: without end. [-]
    decode_steps : numeric
        Steps N_s that a request takes on average, (rows,). [-]
    last_step : numeric
        Time t(1) of a step with one request, (rows,). [s]
    output_variation : numeric
        Coefficient of variation v of the outputs, (rows,). [-]

    Returns
    -------
    rate : numeric
        Rate over the whole run. [request/s]

    References
    ----------
    .. [1] H. A. David and H. N. Nagaraja, "Order Statistics", 3rd ed., Wiley, 2003, chapter 4: the largest of n.

    Examples
    --------
    Ten requests at 5 a second; the longest of four, between none and all, takes 0.6 of a mean more: 6 steps of 0.2 s.

    >>> pooled_run_rate(5.0, 4.0, [10.0, np.nan], 10.0, 0.2, 3.0**-0.5).round(3).tolist()
    [3.125, 5.0]
    """
    steady, run = array(rate), array(run_requests)
    ends = ~np.isnan(run)
    total = np.where(ends, np.maximum(run, 1.0), 1.0)
    together = np.maximum(np.minimum(array(running), total), 1.0)
    late = array(decode_steps) * array(last_step) * longest_output(together, output_variation)
    return np.asarray(np.where(ends, total / (total / steady + late), steady + 0.0 * late))
