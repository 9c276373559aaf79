"""Deployment under load: requests that come and go while others are decoded, and how long they wait.

A replica alternates prefills of new prompts with decode steps. The time of a step is taken as linear in the
requests that it decodes, between two of them that were computed operator by operator.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, divide, log, side_by_side, some
from xlperf.equations.serving.place_queue import PlaceWait

QUANTILES = (0.5, 0.9, 0.99)
_NORMAL = (0.0, 1.2815515655446004, 2.3263478740408408)
_TURN = 0.5  # decode steps that a request waits at least until it is admitted, mean: half of the step in progress [-]
# Passes over the batch that decodes while others wait for their turn: each leaves a small part of the error [-]
_SETTLED = 4
_HALF, _NONE, _ENDLESS = np.full(1, 0.5), np.asarray(0.0), np.asarray(np.inf)


class Service(NamedTuple):
    """Service times of a replica, and how requests come; every field has shape (rows,)."""

    prefill_time: Array  # time of a pass of the prefill, all its prompts together [s]
    prefill_share: Array  # time of the replica per prompt [s]
    step_base: Array  # time of a decode step without requests [s]
    step_slope: Array  # time that a request adds to it [s]
    decode_steps: Array  # decode steps per request [-]
    # Share of the requests in flight whose prefills a new one waits for: 1 where all come and go together [-]
    burst_fraction: Array
    turn_steps: Array = _HALF  # decode steps that pass before a request is admitted [-]
    # Time that the prefill of a prompt takes less in the decode steps of other requests than by itself [s]
    saving: Array = _NONE
    # Most time that prefills add to a decode step: that of one pass where both are computed together [s]
    longest: Array = _ENDLESS

    @property
    def per_request(self) -> tuple[Array, Array, Array]:
        """Decode steps, burst fraction and steps before a request is admitted, whatever the times. [-]"""
        return self.decode_steps, self.burst_fraction, self.turn_steps

    @property
    def added_share(self) -> Array:
        """Time that a prompt adds to the decode steps of other requests. [s]"""
        return np.asarray(self.prefill_share - self.saving)

    def step_time(self, running: Array) -> Array:
        """Time of a step with a number of requests. [s]"""
        return np.asarray(self.step_base + self.step_slope * running)

    def open_state(
        self,
        rate: Array,
        prompt_variation: Array,
        running: Array,
        least_share: Array,
        interval: Array,
        arrival_variation: Numeric = 1.0,
        queue_time: Numeric = 0.0,
    ) -> Steady:
        r"""Steady state with requests that arrive independently of each other.

        A request that finds a pass of the prefill in progress waits for the rest of it. As the load rises the prompts
        that wait are batched, so that the wait grows without bound only near the rate at which passes are full, with a
        time s of the replica per prompt. With Poisson arrivals, :math:`c_a = 1`, and passes of one prompt this is the
        formula of Pollaczek and Khinchin.

        .. math:: w = \frac{c_a^2 + v^2}{2} \left(\min(\lambda t_p, 1)\,t_p +
            \frac{(\lambda s)^2}{1 - \lambda s}\,s\right), \qquad T_{decode} =
            N\,\min\left(\frac{t(b)}{1 - \lambda (s_p - \delta)},\; t(b) + p\right)

        with the time delta that a prompt takes less in the steps of other requests than by itself, and the time p that
        one of its passes adds to such a step: what prefills take beyond that is waited for before the first token.

        References
        ----------
        .. [1] L. Kleinrock, "Queueing Systems, Volume I: Theory", Wiley, 1975, section 5.6 (Pollaczek and Khinchin).
        """
        keeps = np.isfinite(running)
        spread = array(arrival_variation) ** 2 + prompt_variation * prompt_variation
        full = np.where(keeps, rate * least_share, 0.0)
        wait = np.minimum(rate * interval, 1.0) * interval + full * full / (1.0 - full) * least_share
        wait = np.where(keeps, 0.5 * spread * wait, np.inf)
        step = self.step_time(np.where(keeps, running, 1.0))
        # One output token: nothing is decoded, also where prefills take all of the time.
        left = np.where(keeps & (self.decode_steps > 0.0), 1.0 - rate * self.added_share, 1.0)
        every = np.where(keeps, self.decode_steps * step / left, np.inf)
        decode = np.where(keeps, np.minimum(every, np.maximum(self.decode_steps, 1.0) * (step + self.longest)), np.inf)
        wait = wait + np.where(keeps, every - decode, 0.0)
        begun = np.where(
            self.decode_steps > 0.0,
            np.minimum(running, 1.0) * np.minimum(self.turn_steps, self.decode_steps) * step,
            0.0,
        )
        first = self.prefill_time + wait + np.where(keeps, begun, np.inf)
        return Steady(running, first, wait, decode, array(queue_time) + 0.0 * rate, rate + 0.0 * step)


class Steady(NamedTuple):
    """Steady state of one replica; every field has shape (rows,)."""

    running: Array  # requests that are decoded together, mean [-]
    first_token: Array  # from the start of the prefill to the first token, waiting for other prefills included [s]
    prefill_wait: Array  # of that, the wait for other prefills [s]
    decode_time: Array  # from the first token to the last [s]
    queue_time: Array  # wait for a free place before that [s]
    rate: Array  # requests that are finished per second [request/s]


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

    >>> [float(value) for value in step_line(8.0, 0.028, 4.0, 0.024)]  # 1 ms for each request, 20 ms without any
    [0.02, 0.001]
    """
    more, fewer = array(batch), array(other_batch)
    slope = np.maximum(divide(array(time) - array(other_time), more - fewer), 0.0)
    return np.asarray(array(time) - slope * more), np.asarray(slope)


def closed_state(service: Service, requests: Array, places: Array, outside: Numeric = 0.0) -> Steady:
    r"""Steady state with a constant number of requests in flight: each that ends is followed by a new one.

    In the cycle T of a request every other request of the replica is prefilled once, s each, in passes that take p.
    Before its own pass a request waits for a time h in which the replica works for the others: w steps until it is
    admitted, and what it spends outside the engine. The other passes come at any time but that of its own: of
    :math:`U = T - p` they take the share A / U. What is left of :math:`U - h` are its N decode steps, B. That is a
    quadratic equation; the cycle follows from its larger root.

    .. math:: (U - h) \left(1 - \frac{A}{U}\right) = B, \qquad A = c\,s - p, \qquad B = N\,t(c), \qquad
        h = w\,t(c) + \tau

    .. math:: T = p + \frac{A + B + h + \sqrt{(A + B + h)^2 - 4 A h}}{2}, \qquad X = \frac{c}{T}

    A replica with one request stands still while it waits, :math:`T = p + B + h`. One that only prefills is busy,
    :math:`T = c\,s`, unless h is longer than all other prefills. Requests that come in a burst wait together: their
    prefills are no part of A. With a cache that has room for r requests the wait for a place is longer than h, or
    nobody waits for one:

    .. math:: X = \min\left(\frac{c}{T}, \frac{r}{r\,s + N\,t(r)}\right), \qquad r = \min(c, c_{max})

    References
    ----------
    .. [1] J. D. C. Little, "A proof for the queuing formula L = lambda W", Oper. Res. 9(3), 1961,
       doi:10.1287/opre.9.3.383.
    """
    count = np.maximum(requests, 1.0)
    active = np.minimum(count, np.maximum(places, 1.0))
    burst, share, decodes = service.burst_fraction, service.prefill_share, service.decode_steps > 0.0
    # An engine that decodes nothing takes prompts up at once: none waits for more steps than another request takes.
    turn = np.minimum(service.turn_steps, service.decode_steps) * np.minimum(active - 1.0, 1.0)
    own = np.minimum(service.prefill_time, active * share)
    others, filling = count * share - own, active * share - own
    mixed = 1.0 - divide(service.saving, share, 0.0)
    spread = (1.0 - burst) * mixed * others
    step = service.step_time(active)
    for _ in range(_SETTLED if some(service.turn_steps > _TURN) else 1):
        steps, late = service.decode_steps * step, (1.0 - burst) * turn * step + outside
        lead = spread + steps - late
        # (A + B + h)^2 - 4 A h is (A + B - h)^2 + 4 B h, which is never below 0.
        root = 0.5 * (spread + steps + late + np.sqrt(lead * lead + 4.0 * steps * late))
        alone = own + burst * others + root
        # Requests that wait for a later poll, or for prompts of other replicas, are in no decode batch.
        held = np.maximum((1.0 - burst) * (turn - _TURN) * step, 0.0) / alone * count
        step = service.step_time(np.where(count <= active, np.maximum(active - held, 1.0), active))
    filled = own + (burst + (1.0 - burst) * mixed) * filling + steps
    cycle = np.where(count <= active, alone, np.maximum(alone, count * (filled / active)))
    inside = np.where(count <= active, alone - late, np.minimum(alone - late, filled))
    behind = np.maximum(inside - service.prefill_time, 0.0)
    # Where nothing is decoded, a prompt waits for all others.
    wait = np.where(decodes, 0.5 * burst * np.maximum(active * share - service.prefill_time, 0.0), behind)
    wait = np.maximum(wait, behind - steps - np.maximum(service.decode_steps, 1.0) * service.longest)
    decode = np.where(decodes, np.maximum(behind - wait, 0.0), 0.0)
    queue = np.where(count <= active, 0.0 * cycle, cycle - late - inside)
    rate = count / cycle
    running = np.maximum(burst * active + (1.0 - burst) * rate * decode, 1.0)
    return Steady(running, service.prefill_time + wait + late, wait, decode, queue, rate)


def spread_quantiles(
    service: Service,
    steady: Steady,
    tokens: Array,
    prompt_variation: Array,
    output_variation: Array,
    arrivals: bool,
    prefill_replicas: Array,
    interrupting: Array,
    place_wait: PlaceWait | None = None,
    arrival_variation: Numeric = 1.0,
) -> tuple[Array, Array]:
    r"""Quantiles of the time to the first token and of the time per token over requests.

    Waits are exponential where requests arrive by themselves, else spread evenly from none to twice the mean. Prefills
    that interrupt the steps of a request come at random: their number has the variance of its mean. Requests with few
    tokens spread them over fewer. Where requests arrive by themselves, a rush of them also makes every step longer: the
    number b that runs has z times the variance of its mean, with the peakedness z of the arrivals, and more as longer
    steps keep requests longer.

    .. math:: \sigma_t = \frac{t_p}{N} \sqrt{\lambda T (c_a^2 + v^2)} +
        \frac{t_1}{1 - \rho} \sqrt{\frac{z\,b}{1 - g}}, \qquad g = \frac{t_1 b}{t_0 + t_1 b}, \qquad
        z = \frac{c_a^2 + v_o^2}{1 + v_o^2}

    The waits for a place and for other prefills are independent: the squares of what their quantiles exceed their means
    by, with its sign, add up (exact where one of them is 0; heuristic, this work).

    References
    ----------
    .. [1] L. Kleinrock, "Queueing Systems, Volume I: Theory", Wiley, 1975, section 5.12.
    .. [2] W. Whitt, "Approximations for the GI/G/m queue", Prod. Oper. Manag. 2(2), 1993,
       doi:10.1111/j.1937-5956.1993.tb00094.x: peakedness.
    """
    fixed = steady.first_token - steady.prefill_wait + steady.queue_time
    irregular = np.asarray(array(arrival_variation) ** 2 if arrivals else 1.0)
    spread = prompt_variation * service.prefill_share
    added = service.added_share
    busy = steady.rate * service.prefill_share / prefill_replicas
    shares = np.maximum(tokens, 1.0)
    interrupts = interrupting * steady.rate * steady.decode_time * (irregular + prompt_variation * prompt_variation)
    interrupts = interrupts * (1.0 + output_variation * output_variation)
    jitter = added * np.sqrt(np.maximum(interrupts, 0.0)) / shares
    if arrivals:
        # With g = t1 b / t, b / (1 - g) is b t / t0.
        step = service.step_time(steady.running)
        lengths = output_variation * output_variation
        peaked = (irregular + lengths) / (1.0 + lengths)
        rush = np.sqrt(np.maximum(peaked * divide(steady.running * step, service.step_base), 0.0))
        taken = interrupting * steady.rate * added / prefill_replicas
        jitter = jitter + service.step_slope * rush / (1.0 - np.minimum(taken, 0.99))
    middle = steady.decode_time / shares
    first, each = [], []
    for quantile, normal in zip(QUANTILES, _NORMAL, strict=True):
        if arrivals:
            tail = divide(steady.prefill_wait, busy)
            late = np.maximum(log(np.maximum(busy, 1e-12) / (1.0 - quantile)), 0.0) * tail
            if place_wait is not None:
                place, other = place_wait.quantile(quantile) - place_wait.mean, late - steady.prefill_wait
                squares = place * np.abs(place) + other * np.abs(other)
                late = np.where(place == 0.0, late, steady.prefill_wait + np.sign(squares) * np.sqrt(np.abs(squares)))
        else:
            late = 2.0 * quantile * steady.prefill_wait
        first.append(fixed + late + normal * spread)
        each.append(middle + normal * jitter)
    return side_by_side(*first), side_by_side(*each)
