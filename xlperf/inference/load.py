"""Serving under load: requests that come and go while others are decoded, and how long they wait.

A replica alternates prefills of new prompts with steps of decoding. The time of a step is taken as linear in the
requests that it decodes, between two of them that were computed operator by operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from xlperf.arrays import Array, array, divide, side_by_side

QUANTILES = (0.5, 0.9, 0.99)
_NORMAL = (0.0, 1.2815515655446004, 2.3263478740408408)
_SECANTS, _HALVINGS = 16, 52
_SAME = 1e-15
_HALF = np.full(1, 0.5)


class Service(NamedTuple):
    """What a replica needs for a request; every field has shape (rows,).

    Attributes
    ----------
    prefill_time : Array
        Time of a prefill: of the prompts that go together. [s]
    prefill_share : Array
        Time that a prompt takes of it. [s]
    step_base : Array
        Time of a step of decoding without requests. [s]
    step_slope : Array
        Time that a request adds to it. [s]
    steps : Array
        Steps of decoding that a request takes. [-]
    waiting_share : Array
        Share of the requests in flight whose prefills a new one waits for: 1 where all come and go together. [-]
    turn_steps : Array, default a half
        Steps of decoding that pass before a request is taken up. [-]
    """

    prefill_time: Array
    prefill_share: Array
    step_base: Array
    step_slope: Array
    steps: Array
    waiting_share: Array
    turn_steps: Array = _HALF

    def step_time(self, running: Array) -> Array:
        """Time of a step with a number of requests. [s]"""
        return np.asarray(self.step_base + self.step_slope * running)

    def open_state(self, rate: Array, prompt_variation: Array, places: Array) -> Steady:
        r"""Steady state with requests that arrive independently of each other.

        .. math:: b = \frac{\lambda N t_0}{1 - \rho - \lambda N t_1}, \qquad \rho = \lambda t_p, \qquad
            w = \frac{\rho\,t_p (1 + v^2)}{2 (1 - \rho)}

        Parameters
        ----------
        rate : Array
            Requests lambda that arrive per second, (rows,). [request/s]
        prompt_variation : Array
            Coefficient of variation v of the prompts, (rows,). [-]
        places : Array
            Requests that the cache has room for, (rows,). [-]

        Returns
        -------
        Steady
            Of a replica, (rows,); infinite where it cannot keep up, in time or in room.

        References
        ----------
        .. [1] L. Kleinrock, "Queueing Systems, Volume I: Theory", Wiley, 1975, section 5.6 (Pollaczek and Khinchin).
        """
        busy = rate * self.prefill_share
        left = 1.0 - busy - rate * self.steps * self.step_slope
        keeps = left > 0.0
        running = np.where(keeps, rate * self.steps * self.step_base / np.where(keeps, left, 1.0), np.inf)
        keeps = keeps & (running <= places)
        running = np.where(keeps, running, np.inf)
        free = np.where(keeps, 1.0 - busy, 1.0)
        spread = 1.0 + prompt_variation * prompt_variation
        wait = np.where(keeps, 0.5 * busy * self.prefill_share * spread / free, np.inf)
        step = self.step_base + self.step_slope * np.where(keeps, running, 1.0)
        decode = np.where(keeps, self.steps * step / free, np.inf)
        begun = np.where(self.steps > 0.0, np.minimum(running, 1.0) * self.turn_steps * step, 0.0)
        first = self.prefill_time + wait + np.where(keeps, begun, np.inf)
        return Steady(running, first, wait, decode, 0.0 * rate, rate + 0.0 * step)

    def pooled_open_state(
        self,
        rate: Array,
        prefill_replicas: Array,
        decode_replicas: Array,
        places: Array,
        transfer: Array,
        prompt_variation: Array,
    ) -> Steady:
        r"""Steady state of two pools with requests that arrive independently of each other.

        .. math:: \rho = \frac{\lambda t_p}{n_p}, \qquad w = \frac{\rho\,t_p (1 + v^2)}{2 n_p (1 - \rho)}, \qquad
            b = \frac{\lambda N t(b)}{n_d}

        Parameters
        ----------
        rate : Array
            Requests lambda that arrive per second, (rows,). [request/s]
        prefill_replicas : Array
            Replicas n_p that prefill, (rows,). [-]
        decode_replicas : Array
            Replicas n_d that decode, (rows,). [-]
        places : Array
            Requests that the cache of a decoding replica has room for, (rows,). [-]
        transfer : Array
            Time to send the cache of a prompt, (rows,). [s]
        prompt_variation : Array
            Coefficient of variation v of the prompts, (rows,). [-]

        Returns
        -------
        Steady
            Running requests of a decoding replica; the rate of all together, (rows,); infinite where a pool cannot keep
            up.

        References
        ----------
        .. [1] L. Kleinrock, "Queueing Systems, Volume I: Theory", Wiley, 1975, section 5.6 (Pollaczek and Khinchin).
        """
        load = rate * self.prefill_share / prefill_replicas
        work = rate * self.steps
        left = decode_replicas - work * self.step_slope
        keeps = (load < 1.0) & (left > 0.0)
        running = np.where(keeps, work * self.step_base / np.where(keeps, left, 1.0), np.inf)
        keeps = keeps & (running <= places)
        running = np.where(keeps, running, np.inf)
        spread = 1.0 + prompt_variation * prompt_variation
        free = np.where(keeps, 1.0 - load, 1.0)
        wait = np.where(keeps, 0.5 * load * self.prefill_share * spread / (prefill_replicas * free), np.inf)
        step = self.step_time(np.maximum(np.where(keeps, running, 1.0), 1.0))
        decode = np.where(keeps, self.steps * step, np.inf)
        return Steady(running, self.prefill_time + wait + transfer, wait, decode, 0.0 * rate, rate + 0.0 * step)


class Steady(NamedTuple):
    """Steady state of one replica; every field has shape (rows,).

    Attributes
    ----------
    running : Array
        Requests that are decoded together, mean. [-]
    first_token : Array
        From the start of the prefill's turn to the first token, waiting for other prefills included. [s]
    prefill_wait : Array
        Of that, the wait for other prefills. [s]
    decode_time : Array
        From the first token to the last. [s]
    queue_time : Array
        Wait for a free place before that. [s]
    rate : Array
        Requests that are finished per second. [request/s]
    """

    running: Array
    first_token: Array
    prefill_wait: Array
    decode_time: Array
    queue_time: Array
    rate: Array


def step_line(batch: Array, time: Array, other_batch: Array, other_time: Array) -> tuple[Array, Array]:
    r"""Line through the times of a step with two batches.

    .. math:: t(b) = t_1 + \frac{t_1 - t_2}{b_1 - b_2} (b - b_1)

    Parameters
    ----------
    batch : Array
        Requests b1. [-]
    time : Array
        Time with them. [s]
    other_batch : Array
        Fewer requests b2. [-]
    other_time : Array
        Time with those. [s]

    Returns
    -------
    base : Array
        Time at no request. [s]
    slope : Array
        Time of one more, 0 or more. [s]

    References
    ----------
    .. [1] R. Pope et al., "Efficiently scaling transformer inference", 2022, arXiv:2211.05102, section 2.
    """
    more, fewer = array(batch), array(other_batch)
    slope = np.maximum(divide(array(time) - array(other_time), more - fewer), 0.0)
    return np.asarray(array(time) - slope * more), np.asarray(slope)


def closed_state(service: Service, requests: Array, places: Array) -> Steady:
    r"""Steady state with a constant number of requests in flight: each that ends is followed by a new one.

    In the time of one request every other request of the replica is prefilled once, and the request is decoded.

    .. math:: T = r\,t_p + N\,t(b), \qquad X = \frac{r}{T}, \qquad r = \min(c, c_{max})

    Parameters
    ----------
    service : Service
        Times of a replica, (rows,).
    requests : Array
        Requests c in flight, (rows,). [-]
    places : Array
        Requests that the cache has room for, (rows,). [-]

    Returns
    -------
    Steady
        Of a replica, (rows,).

    References
    ----------
    .. [1] J. D. C. Little, "A proof for the queuing formula L = lambda W", Oper. Res. 9(3), 1961,
       doi:10.1287/opre.9.3.383.
    """
    active = np.maximum(np.minimum(requests, places), 1.0)
    share = service.waiting_share
    wait = 0.5 * share * np.maximum(active * service.prefill_share - service.prefill_time, 0.0)
    prefills = active * service.prefill_share
    # Half a step until a turn is part of the steps; what an engine holds requests back for comes on top.
    held = np.where(active > 1.0, (1.0 - share) * (service.turn_steps - 0.5), 0.0)
    step = service.step_time(active)
    cycle = prefills + (service.steps + held) * step
    begun = np.minimum((service.prefill_time + wait + held * step) / cycle, 1.0)
    running = np.maximum(active * (1.0 - (1.0 - share) * begun), 1.0)
    step = service.step_time(running)
    own = np.minimum(service.prefill_time, prefills)
    # With a single request in flight nothing interrupts it: the cycle is its own prefill and its steps.
    cycle = prefills + (service.steps + held) * step
    turn = np.where(active > 1.0, (1.0 - share) * service.turn_steps * step, 0.0)
    first = np.minimum(np.maximum(own, service.prefill_share) + wait + np.where(service.steps > 0.0, turn, 0.0), cycle)
    queue = np.maximum(requests - active, 0.0) * (cycle / active)
    return Steady(running, first, wait, np.maximum(cycle - first, 0.0), queue, active / cycle)


def _decoding(
    rate: Array, steps: Array, base: Array, slope: Array, replicas: Array, room: Array
) -> tuple[Array, Array]:
    """Requests that a replica decodes at a rate of all together, and how long one takes."""
    work = rate * steps
    left = np.maximum(replicas - work * slope, 1e-12)
    running = np.minimum(np.maximum(work * base / left, 1.0), room)
    return running, steps * (base + slope * running)


def _reached(rate: Array, columns: Array) -> Array:
    """Rate at which the requests in flight fill both pools, while decoding takes what it does at another rate.

    The wait for a prefill grows with the rate X as X / (C - X) up to that of all requests: a quadratic equation.
    """
    requests, capacity, around, longest, offered, *decoding, most = columns
    known = around + _decoding(rate, *decoding)[1]
    half = 0.5 * (known * capacity - requests)
    root = requests * capacity / (half + requests + np.sqrt(half * half + offered))
    return np.asarray(np.minimum(np.maximum(root, requests / (known + longest)), most))


def _root(columns: Array, equation: Callable[[Array, Array], Array], most: Array) -> Array:
    """Where a falling function of x is x, between 0 and ``most``: by secants, at last by halves.

    Each plan ends by itself, so that its number does not depend on the others.
    """
    found = equation(most, columns)
    rows = np.flatnonzero(found < most)
    columns, before, rate = columns.take(rows, axis=1), most[rows], found[rows]
    gap_before, low, high = rate - before, 0.0 * before, before
    for turn in range(_SECANTS + _HALVINGS):
        if not len(rows):
            break
        gap = equation(rate, columns) - rate
        low, high = np.where(gap > 0.0, rate, low), np.where(gap > 0.0, high, rate)
        tried = 0.5 * (low + high)
        if turn < _SECANTS:
            secant = rate - gap * divide(rate - before, gap - gap_before)
            tried = np.where((secant >= low) & (secant <= high), secant, tried)
        done = ~(np.abs(gap) > _SAME * rate) | (tried == rate)
        found[rows] = np.where(done, rate, tried)
        left = np.flatnonzero(~done)
        rows, columns = rows[left], columns.take(left, axis=1)
        before, rate, gap_before, low, high = rate[left], tried[left], gap[left], low[left], high[left]
    return found


def pooled_state(
    service: Service, requests: Array, prefill_replicas: Array, decode_replicas: Array, places: Array, transfer: Array
) -> Steady:
    r"""Steady state of two pools: prompts are prefilled in one, their caches sent to the other and decoded there.

    The rate X is the one at which the requests in flight fill both pools.

    .. math:: c = X \left(t_{first}(X) + N\,t(b)\right), \qquad b = \frac{X N t(b)}{n_d}

    Parameters
    ----------
    service : Service
        Times of a replica of each pool, (rows,).
    requests : Array
        Requests c in flight, (rows,). [-]
    prefill_replicas : Array
        Replicas that prefill, (rows,). [-]
    decode_replicas : Array
        Replicas n_d that decode, (rows,). [-]
    places : Array
        Requests that the cache of a decoding replica has room for, (rows,). [-]
    transfer : Array
        Time to send the cache of a prompt, (rows,). [s]

    Returns
    -------
    Steady
        Running requests of a decoding replica; the rate of all together, (rows,).

    References
    ----------
    .. [1] Y. Zhong et al., "DistServe: disaggregating prefill and decoding for goodput-optimized large language model
       serving", OSDI 2024, arXiv:2401.09670.
    """
    room = np.maximum(places, 1.0)
    capacity = prefill_replicas / service.prefill_share
    decoding = np.where(
        service.steps > 0.0,
        divide(decode_replicas * room, service.steps * service.step_time(room), np.inf),
        np.inf,
    )
    most = np.minimum(capacity, decoding)

    burst = 0.5 * service.waiting_share * np.maximum(requests / prefill_replicas - 1.0, 0.0) * service.prefill_share
    share = 0.5 * service.prefill_share / prefill_replicas
    around, longest = service.prefill_time + burst + transfer, requests / capacity
    offered = share * requests * capacity
    steps, base, slope = service.steps, service.step_base, service.step_slope
    columns = np.broadcast_arrays(
        requests, capacity, around, longest, offered, steps, base, slope, decode_replicas, room, most
    )
    flat = np.stack(columns).reshape(len(columns), -1)
    rate = _root(flat, _reached, flat[-1]).reshape(columns[-1].shape)
    load = np.minimum(rate / capacity, 1.0)
    wait = 0.5 * service.prefill_share * load / np.maximum(1.0 - load, 1e-9) / prefill_replicas
    wait = np.minimum(wait, longest) + burst
    running, decode = _decoding(rate, steps, base, slope, decode_replicas, room)
    first = service.prefill_time + wait + transfer
    queue = np.maximum(requests / rate - first - decode, 0.0)
    return Steady(running, first, wait, decode, queue, rate)


def spread_quantiles(
    service: Service,
    steady: Steady,
    tokens: Array,
    prompt_variation: Array,
    output_variation: Array,
    arrivals: bool,
    prefill_replicas: Array,
    interrupting: Array,
) -> tuple[Array, Array]:
    r"""Quantiles of the time to the first token and of the time per token over requests.

    Waits are exponential where requests arrive by themselves, else spread evenly from none to twice the mean. Prefills
    that interrupt the steps of a request come at random: their number has the variance of its mean. Requests with few
    tokens spread them over fewer. Where requests arrive by themselves, a rush of them also makes every step longer: the
    number b that runs has the variance of its mean, and more as longer steps keep requests longer.

    .. math:: \sigma_t = \frac{t_p}{N} \sqrt{\lambda T (1 + v^2)} +
        \frac{t_1}{1 - \rho} \sqrt{\frac{b}{1 - g}}, \qquad g = \frac{t_1 b}{t_0 + t_1 b}

    Parameters
    ----------
    service : Service
        Times of a replica, (rows,).
    steady : Steady
        Its steady state, (rows,).
    tokens : Array
        Tokens after the first, (rows,). [-]
    prompt_variation : Array
        Coefficient of variation of the prompts, (rows,). [-]
    output_variation : Array
        Coefficient of variation of the outputs, (rows,). [-]
    arrivals : bool
        Whether requests arrive by themselves.
    prefill_replicas : Array
        Replicas that share the prefills of the rate, (rows,). [-]
    interrupting : Array
        1 where prefills interrupt decoding, 0 where they have a pool of their own, (rows,). [-]

    Returns
    -------
    first_token : Array
        Time to the first token, (rows, quantiles). [s]
    per_token : Array
        Time per token, (rows, quantiles). [s]

    References
    ----------
    .. [1] L. Kleinrock, "Queueing Systems, Volume I: Theory", Wiley, 1975, section 5.12.
    """
    fixed = steady.first_token - steady.prefill_wait + steady.queue_time
    spread = prompt_variation * service.prefill_share
    busy = steady.rate * service.prefill_share / prefill_replicas
    shares = np.maximum(tokens, 1.0)
    interrupts = interrupting * steady.rate * steady.decode_time * (1.0 + prompt_variation * prompt_variation)
    interrupts = interrupts * (1.0 + output_variation * output_variation)
    jitter = service.prefill_share * np.sqrt(np.maximum(interrupts, 0.0)) / shares
    if arrivals:
        # With g = t1 b / t, b / (1 - g) is b t / t0.
        step = service.step_time(steady.running)
        rush = np.sqrt(np.maximum(divide(steady.running * step, service.step_base), 0.0))
        jitter = jitter + service.step_slope * rush / (1.0 - np.minimum(interrupting * busy, 0.99))
    middle = steady.decode_time / shares
    first, each = [], []
    for quantile, normal in zip(QUANTILES, _NORMAL, strict=True):
        if arrivals:
            tail = divide(steady.prefill_wait, busy)
            late = np.maximum(np.log(np.maximum(busy, 1e-12) / (1.0 - quantile)), 0.0) * tail
        else:
            late = 2.0 * quantile * steady.prefill_wait
        first.append(fixed + late + normal * spread)
        each.append(middle + normal * jitter)
    return side_by_side(*first), side_by_side(*each)


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
    """
    low, high = 0.0 * places, np.maximum(places, 0.0) + 1.0
    for _ in range(math.ceil(math.log2(1e7))):
        if not (high - low > 1.0).any():
            break
        middle = np.floor(0.5 * (low + high))
        steady = closed_state(service, middle, middle)
        per_token = steady.decode_time / np.maximum(tokens, 1.0)
        good = (steady.first_token <= first_target) & (per_token <= token_target) & (middle <= places)
        low, high = np.where(good, middle, low), np.where(good, high, middle)
    known = places + tokens + first_target + token_target + service.prefill_time + service.step_base
    return np.asarray(np.where(np.isnan(known), np.nan, low))
