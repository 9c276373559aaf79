"""Replicas under load: service demand, steady state, and the distribution of waits.

A replica alternates prefills of new prompts with decode steps. Step times are linear in the requests that a step
decodes, between two batches that were computed operator by operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, divide, exp, expm1, log, power, side_by_side, some

_MOST_LOAD = 1.0 - 1e-12
_LEAST_SQUARE = 1e-6  # squared coefficient of variation below which times count as constant [-]
_LEAST_LOAD, _LEAST_SHARE = 1e-9, 1e-6  # least load in the equations; share of requests below which none waits [-]
# Normal tail: Abramowitz and Stegun, 26.2.17
_TAIL = 0.2316419, (0.319381530, -0.356563782, 1.781477937, -1.821255978, 1.330274429)
_ROOT_OF_TWO_PI = 2.5066282746310002
_MOST_GAMMA = 0.24  # largest correction for evenly spaced arrivals (Whitt 1993, equation 2.13) [-]
_FEWER, _FEWER_AT, _FEWER_POWER = 0.19, 1.6, -0.65  # M/D/c against M/M/c: fewer requests wait, fitted [-]
_NEWTON_ITERATIONS = 8  # Newton iterations for the decay rate [-]
_BEND = 0.9  # rate at which the wait distribution approaches its exponential tail: heuristic, this work [-]


class PlaceWait(NamedTuple):
    """Wait for a place of a replica, (rows,)."""

    probability: Array  # share of the requests that wait [-]
    mean: Array  # mean wait over all requests; infinite beyond the capacity [s]
    decay: Array  # decay rate of the tail of the wait distribution [1/s]

    def quantile(self, share: float) -> Array:
        r"""Wait that a share q of the requests does not exceed. [s]

        With :math:`u = \ln(P_w / (1 - q))`, at least 0: a quantile function that begins at 0 and has the decay rate
        theta of the tail and the mean W (heuristic, this work; exact for M/M/c, which has k = 1):

        .. math:: t_q = \frac{1}{\theta} \left(u + (k - 1)\,\frac{1 + a}{a}\,(1 - e^{-a u})\right), \qquad
            k = \frac{\theta\,W}{P_w}, \qquad a = 0.9

        Half of the requests wait, 1 s on average: nine of ten wait for at most 1 s x ln(0.5 / 0.1).

        >>> round(float(PlaceWait(*map(np.asarray, (0.5, 0.5, 1.0))).quantile(0.9)), 3)
        1.609
        """
        depth = np.maximum(log(np.maximum(self.probability, 1e-300) / (1.0 - share)), 0.0)
        shape = divide(self.decay * self.mean, self.probability, 1.0) - 1.0
        shape = np.maximum(shape, -1.0 / (1.0 + _BEND))
        bent = depth - shape * ((1.0 + _BEND) / _BEND) * expm1(-_BEND * depth)
        late = np.where(np.isinf(self.mean), np.inf, divide(bent, self.decay, np.inf))
        return np.where(depth > 0.0, late, 0.0 * self.mean)

    def chosen(self, rows: np.ndarray) -> PlaceWait:
        """The wait in rows of a mask, 0 elsewhere."""
        return PlaceWait(*(np.where(rows, values, 0.0) for values in self))


def erlang_c(servers: Numeric, busy_share: Numeric) -> Array:
    r"""Probability that an arrival finds all servers of an M/M/c queue busy, for a real number of servers of 1 or more.

    Mean of an upper and a lower bound of the inverse (Janssen, van Leeuwaarden and Zwart), in closed form: within 1.5 %
    for one server and 0.1 % from 16 on.

    .. math:: C \approx \left[\rho + (1 - \rho) \sqrt{c} \left(\frac{\Phi(\alpha)}{\varphi(\alpha)} +
        \frac{2}{3 \sqrt{c}} + \frac{1}{2 \varphi(\alpha) (12 c - 1)}\right)\right]^{-1}, \qquad
        \alpha = \sqrt{-2 c (1 - \rho + \ln \rho)}

    Source: A. J. E. M. Janssen, J. S. H. van Leeuwaarden and B. Zwart, "Refining square-root safety staffing by
    expanding Erlang C", Oper. Res. 59(6), 2011, doi:10.1287/opre.1110.0991.

    Exactly 0.5 with one server at half load; 0.2870 with four at 60 %:

    >>> erlang_c([1.0, 4.0], [0.5, 0.6]).round(3).tolist()
    [0.496, 0.287]

    Parameters
    ----------
    servers : Servers c, 1 or more. [-]
    busy_share : Utilisation rho. [-]

    Returns
    -------
    Array : 0 to 1. [-]
    """
    count, busy = np.maximum(array(servers), 1.0), np.minimum(array(busy_share), _MOST_LOAD)
    half_square = -count * np.minimum(1.0 - busy + log(busy), 0.0)
    alpha = np.sqrt(2.0 * half_square)
    argument, factors = 1.0 / (1.0 + _TAIL[0] * alpha), _TAIL[1]
    tail = 0.0 * alpha
    for factor in reversed(factors):
        tail = argument * (factor + tail)
    inverse_density = _ROOT_OF_TWO_PI * exp(half_square)
    root = np.sqrt(count)
    inside = inverse_density * (1.0 + 0.5 / (12.0 * count - 1.0)) - tail + 2.0 / (3.0 * root)
    return np.asarray(1.0 / (busy + (1.0 - busy) * root * inside))


def wait_correction(
    servers: Numeric, busy_share: Numeric, arrival_variation: Numeric, hold_variation: Numeric
) -> Array:
    r"""Mean wait of a GI/G/c queue over the Allen-Cunneen formula (Whitt 1993, equations 2.17 to 2.25).

    1 for M/M/c; above 1 with constant service times and several servers.

    .. math:: W = \phi\,\frac{c_a^2 + c_s^2}{2}\,W_{M/M/c}

    Source: W. Whitt, "Approximations for the GI/G/m queue", Prod. Oper. Manag. 2(2), 1993,
    doi:10.1111/j.1937-5956.1993.tb00094.x.

    >>> wait_correction(16.0, 0.9, 1.0, [1.0, 0.0]).round(4).tolist()  # M/M/c and M/D/c with 16 servers at 90 % load
    [1.0, 1.0466]

    Parameters
    ----------
    servers : Servers c. [-]
    busy_share : Utilisation rho. [-]
    arrival_variation : Coefficient of variation c_a of interarrival times. [-]
    hold_variation : Coefficient of variation c_s of service times. [-]

    Returns
    -------
    Array : The factor phi. [-]
    """
    count, busy = array(servers), np.minimum(array(busy_share), _MOST_LOAD)
    arriving, serving = array(arrival_variation) ** 2, array(hold_variation) ** 2
    gamma = (1.0 - busy) * (count - 1.0) * (np.sqrt(4.0 + 5.0 * count) - 2.0) / (16.0 * busy * count)
    # Factors of M/D/c (phi_1) and D/M/c (phi_3), and their combination for the variations between.
    constant = 1.0 + np.minimum(gamma, (count - 1.0) / (count + 1.0))
    even = (1.0 - 4.0 * np.minimum(gamma, _MOST_GAMMA)) * exp(-2.0 * (1.0 - busy) / (3.0 * busy))
    between = np.minimum(1.0, 0.5 * (constant + even))
    middle = 0.5 * (arriving + serving)
    mixed = exp(2.0 * np.maximum(1.0 - middle, 0.0) * log(between))
    varied, sides = 4.0 * arriving - 3.0 * serving, 2.0 * (arriving + serving)
    more = divide(4.0 * (arriving - serving) * constant + serving * mixed, varied, 1.0)
    less = divide((serving - arriving) * even + (serving + 3.0 * arriving) * mixed, sides, 1.0)
    return np.where(arriving >= serving, more, less)


def tail_decay(busy_share: Numeric, arrival_variation: Numeric, hold_variation: Numeric) -> Array:
    r"""Decay rate of the wait distribution of a GI/G/c queue, relative to the service rate of the busy servers.

    The positive root x of the equation of the moment-generating functions, for gamma-distributed interarrival and
    service times; 1 - rho for M/M/c.

    .. math:: -\frac{\ln(1 - x c_s^2)}{c_s^2} = \frac{\ln(1 + x c_a^2 / \rho)}{c_a^2}

    Source: Y. Takahashi, "Asymptotic exponentiality of the tail of the waiting-time distribution in a PH/PH/c queue",
    Adv. Appl. Probab. 13(3), 1981, doi:10.2307/1426788.

    >>> tail_decay(0.9, 1.0, [1.0, 0.0]).round(4).tolist()  # M/M/c and M/D/c at 90 %, with exp(x) = 1 + x / 0.9
    [0.1, 0.2072]

    Parameters
    ----------
    busy_share : Utilisation rho. [-]
    arrival_variation : Coefficient of variation c_a of interarrival times. [-]
    hold_variation : Coefficient of variation c_s of service times. [-]

    Returns
    -------
    Array : The root x; infinite if neither varies. [-]
    """
    busy = np.minimum(array(busy_share), _MOST_LOAD)
    arriving, serving = (np.maximum(array(each) ** 2, _LEAST_SQUARE) for each in (arrival_variation, hold_variation))
    # Newton's method in y = -ln(1 - x c_s^2) / c_s^2, convex and without a pole: to the right of its minimum the
    # iterates decrease to the root. The right-hand side at the largest x bounds y.
    lowest = (1.0 - busy) / (serving + arriving)
    first = np.minimum(2.0 * lowest, 0.5 * (lowest + 1.0 / serving))
    y, most = -log(1.0 - first * serving) / serving, log(1.0 + arriving / (serving * busy)) / arriving
    for _ in range(_NEWTON_ITERATIONS):
        root = -expm1(-serving * y) / serving
        value = y - log(1.0 + root * arriving / busy) / arriving
        slope = 1.0 - (1.0 - root * serving) / (busy + root * arriving)
        y = np.minimum(y - value / slope, most)
    return np.asarray(-expm1(-serving * y) / serving)


def place_wait(
    places: Numeric, busy_share: Numeric, hold: Numeric, arrival_variation: Numeric, hold_variation: Numeric
) -> PlaceWait:
    r"""Wait for a place of a replica under independent arrivals: Whitt's GI/G/c approximation.

    Places are the servers and the mean hold time h is the service time. The share of waiting requests is Erlang's C for
    c / z servers, with the peakedness z of the arrivals relative to the hold time.

    .. math:: W = \phi\,\frac{c_a^2 + c_s^2}{2}\,\frac{C(c, \rho)\,h}{c (1 - \rho)}, \qquad
        P_w = C\left(\frac{c}{z}, \rho\right), \qquad z = \frac{c_a^2 + c_s^2}{1 + c_s^2}

    One place at half load, hold time 1 s, Poisson arrivals: a wait of 1 s (M/M/1) or 0.5 s (M/D/1). Source: W. Whitt,
    "Approximations for the GI/G/m queue", Prod. Oper. Manag. 2(2), 1993, doi:10.1111/j.1937-5956.1993.tb00094.x.

    >>> place_wait(1.0, 0.5, 1.0, 1.0, [1.0, 0.0]).mean.round(2).tolist()
    [0.99, 0.5]
    """
    count, busy, time = np.maximum(array(places), 1.0), array(busy_share), array(hold)
    arriving, serving = array(arrival_variation) ** 2, array(hold_variation) ** 2
    rho = np.minimum(np.maximum(busy, _LEAST_LOAD), _MOST_LOAD)
    # Mean wait, share of waiting requests and decay rate.
    finish = time / count
    mean = erlang_c(count, rho) * finish / (1.0 - rho) * (0.5 * (arriving + serving))
    mean = mean * wait_correction(count, rho, arrival_variation, hold_variation)
    peakedness = np.maximum((arriving + serving) / (1.0 + serving), _LEAST_SQUARE)
    safety = (1.0 - rho) * np.sqrt(count)
    fewer = _FEWER * safety * exp(-safety / _FEWER_AT) * (1.0 - power(count, _FEWER_POWER))
    probability = erlang_c(count / peakedness, rho) * (1.0 - fewer * np.maximum(1.0 - serving, 0.0))
    decay = divide(tail_decay(rho, arrival_variation, hold_variation), finish, np.inf)
    # Rows without waits, beyond the capacity, or with unknown inputs.
    waits = (probability >= _LEAST_SHARE) | np.isnan(probability)
    endless = ~((busy < 1.0) | np.isnan(busy))
    mean = np.where(endless, np.inf, np.where(waits, mean, 0.0))
    unknown = 0.0 * (array(places) + arriving + serving) + np.where(np.isnan(time), np.nan, 0.0)
    share = np.where(endless, 1.0, np.where(waits, probability, 0.0))
    return PlaceWait(share + unknown, mean, np.where(endless, unknown, decay))


QUANTILES = (0.5, 0.9, 0.99)
_NORMAL = (0.0, 1.2815515655446004, 2.3263478740408408)
_LEAST_ADMISSION = 0.5  # least mean wait until admission: half of the step in progress [-]
_ITERATIONS = 4  # fixed-point iterations of the decode batch while requests wait for admission [-]
_HALF, _NONE, _ENDLESS = np.full(1, 0.5), np.asarray(0.0), np.asarray(np.inf)


class Service(NamedTuple):
    """Service demand on a replica, (rows,)."""

    prefill_time: Array  # prefill pass of all its prompts [s]
    prefill_share: Array  # replica time per prompt [s]
    step_base: Array  # decode step at batch 0 [s]
    step_slope: Array  # step time per request [s]
    decode_steps: Array  # decode steps per request [-]
    burst_fraction: Array  # fraction of the in-flight requests that arrive at the same moment [-]
    admission_steps: Array = _HALF  # decode steps until a request is admitted [-]
    saving: Array = _NONE  # time saved per prompt by chunked prefill in decode steps [s]
    longest: Array = _ENDLESS  # most time that prefills add to a decode step: one pass in chunked prefill [s]

    @property
    def per_request(self) -> tuple[Array, Array, Array]:
        """Per-request quantities that do not depend on service times. [-]"""
        return self.decode_steps, self.burst_fraction, self.admission_steps

    @property
    def added_share(self) -> Array:
        """Time that a prompt adds to the decode steps of other requests. [s]"""
        return np.asarray(self.prefill_share - self.saving)

    def step_time(self, running: Array) -> Array:
        """Decode step at a batch. [s]"""
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
        r"""Steady state under open arrivals.

        An arrival waits for the rest of the running pass. Under load, waiting prompts are batched: the wait diverges
        only near the rate of full passes, with replica time s per prompt. Poisson arrivals, :math:`c_a = 1`, and passes
        of one prompt give the Pollaczek-Khinchin formula.

        .. math:: w = \frac{c_a^2 + v^2}{2} \left(\min(\lambda t_p, 1)\,t_p +
            \frac{(\lambda s)^2}{1 - \lambda s}\,s\right), \qquad T_{decode} =
            N\,\min\left(\frac{t(b)}{1 - \lambda (s_p - \delta)},\; t(b) + p\right)

        Chunked prefill saves delta per prompt and adds at most p to a step; further prefill time delays first tokens.
        Source: L. Kleinrock, "Queueing Systems, Volume I: Theory", Wiley, 1975, section 5.6 (Pollaczek and Khinchin).
        """
        stable = np.isfinite(running)
        # Wait for the running pass and for full passes.
        spread = array(arrival_variation) ** 2 + prompt_variation * prompt_variation
        full = np.where(stable, rate * least_share, 0.0)
        wait = np.minimum(rate * interval, 1.0) * interval + full * full / (1.0 - full) * least_share
        wait = np.where(stable, 0.5 * spread * wait, np.inf)
        # Decode time with interleaved prefills; outputs of one token have none.
        step = self.step_time(np.where(stable, running, 1.0))
        decoding_share = np.where(stable & (self.decode_steps > 0.0), 1.0 - rate * self.added_share, 1.0)
        interleaved = np.where(stable, self.decode_steps * step / decoding_share, np.inf)
        limit = np.maximum(self.decode_steps, 1.0) * (step + self.longest)
        decode = np.where(stable, np.minimum(interleaved, limit), np.inf)
        wait = wait + np.where(stable, interleaved - decode, 0.0)
        # Admission waits for steps in progress, if any request decodes.
        admission = np.minimum(running, 1.0) * np.minimum(self.admission_steps, self.decode_steps) * step
        admission = np.where(self.decode_steps > 0.0, admission, 0.0)
        first = self.prefill_time + wait + np.where(stable, admission, np.inf)
        return Steady(running, first, wait, decode, array(queue_time) + 0.0 * rate, rate + 0.0 * step)


class Steady(NamedTuple):
    """Steady state of a replica, (rows,)."""

    running: Array  # mean decode batch [-]
    first_token: Array  # from a free place to the first token, waits for other prefills included [s]
    prefill_wait: Array  # wait for other prefills, part of first_token [s]
    decode_time: Array  # from the first token to the last [s]
    queue_time: Array  # wait for a free place [s]
    rate: Array  # throughput [request/s]


def step_line(batch: Array, time: Array, other_batch: Array, other_time: Array) -> tuple[Array, Array]:
    r"""Line through the step times of two batches.

    .. math:: t(b) = t_1 + \frac{t_1 - t_2}{b_1 - b_2} (b - b_1)

    Source: R. Pope et al., "Efficiently scaling transformer inference", 2022, arXiv:2211.05102, section 2.

    >>> [float(value) for value in step_line(8.0, 0.028, 4.0, 0.024)]  # 1 ms for each request, 20 ms without any
    [0.02, 0.001]

    Parameters
    ----------
    batch : Requests b1. [-]
    time : Step time t1. [s]
    other_batch : Fewer requests b2. [-]
    other_time : Step time t2. [s]

    Returns
    -------
    base : Time at batch 0. [s]
    slope : Time per request, 0 or more. [s]
    """
    more, fewer = array(batch), array(other_batch)
    slope = np.maximum(divide(array(time) - array(other_time), more - fewer), 0.0)
    return np.asarray(array(time) - slope * more), np.asarray(slope)


def closed_state(service: Service, requests: Array, places: Array, outside: Numeric = 0.0) -> Steady:
    r"""Steady state of a closed loop: a constant number c of requests in flight, ``outside`` the engine for tau each.

    In the cycle T of a request every other request is prefilled once, s each, and its own pass takes p. The replica
    works for other requests during its lead time h: w steps until admission, and tau. Other passes start at any time
    but during its own and occupy the share A / U of :math:`U = T - p`. The remainder of :math:`U - h` are its N decode
    steps, B: a quadratic equation, whose larger root gives the cycle.

    .. math:: (U - h) \left(1 - \frac{A}{U}\right) = B, \qquad A = c\,s - p, \qquad B = N\,t(c), \qquad
        h = w\,t(c) + \tau

    .. math:: T = p + \frac{A + B + h + \sqrt{(A + B + h)^2 - 4 A h}}{2}, \qquad X = \frac{c}{T}

    Limits: one request idles the replica while it waits, :math:`T = p + B + h`; a replica that only prefills is busy,
    :math:`T = c\,s`, unless h exceeds all other prefills. Prefills of a burst are no part of A. With a cache for r
    requests, the wait for a place exceeds h, or no request waits for one:

    .. math:: X = \min\left(\frac{c}{T}, \frac{r}{r\,s + N\,t(r)}\right), \qquad r = \min(c, c_{max})

    Source: J. D. C. Little, "A proof for the queuing formula L = lambda W", Oper. Res. 9(3), 1961,
    doi:10.1287/opre.9.3.383.
    """
    count = np.maximum(requests, 1.0)
    active = np.minimum(count, np.maximum(places, 1.0))
    burst, share, decodes = service.burst_fraction, service.prefill_share, service.decode_steps > 0.0
    # Admission takes no longer than the steps of another request; prompts without decoding start at once.
    admission = np.minimum(service.admission_steps, service.decode_steps) * np.minimum(active - 1.0, 1.0)
    # Prefill times: the own pass, all other requests, the requests in the cache.
    own = np.minimum(service.prefill_time, active * share)
    others, filling = count * share - own, active * share - own
    mixed = 1.0 - divide(service.saving, share, 0.0)
    interleaved = (1.0 - burst) * mixed * others
    step = service.step_time(active)
    for _ in range(_ITERATIONS if some(service.admission_steps > _LEAST_ADMISSION) else 1):
        steps, lead = service.decode_steps * step, (1.0 - burst) * admission * step + outside
        # (A + B + h)^2 - 4 A h equals (A + B - h)^2 + 4 B h, which is never negative.
        difference = interleaved + steps - lead
        root = 0.5 * (interleaved + steps + lead + np.sqrt(difference * difference + 4.0 * steps * lead))
        uncapped = own + burst * others + root
        # Requests that wait for admission are in no decode batch.
        waiting = np.maximum((1.0 - burst) * (admission - _LEAST_ADMISSION) * step, 0.0) / uncapped * count
        step = service.step_time(np.where(count <= active, np.maximum(active - waiting, 1.0), active))
    # Cycle: the quadratic root, or the time of a full cache for each of its batches.
    full = own + (burst + (1.0 - burst) * mixed) * filling + steps
    cycle = np.where(count <= active, uncapped, np.maximum(uncapped, count * (full / active)))
    inside = np.where(count <= active, uncapped - lead, np.minimum(uncapped - lead, full))
    after_prefill = np.maximum(inside - service.prefill_time, 0.0)
    # Wait for other prefills: half a burst; all of them without decoding; what chunked steps cannot hold.
    wait = np.where(decodes, 0.5 * burst * np.maximum(active * share - service.prefill_time, 0.0), after_prefill)
    wait = np.maximum(wait, after_prefill - steps - np.maximum(service.decode_steps, 1.0) * service.longest)
    decode = np.where(decodes, np.maximum(after_prefill - wait, 0.0), 0.0)
    queue = np.where(count <= active, 0.0 * cycle, cycle - lead - inside)
    rate = count / cycle
    running = np.maximum(burst * active + (1.0 - burst) * rate * decode, 1.0)
    return Steady(running, service.prefill_time + wait + lead, wait, decode, queue, rate)


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
    r"""Quantiles over requests of the time to first token and of the time per token.

    Waits are exponential under open arrivals, in closed loops uniform between 0 and twice the mean. Prefills interrupt
    decode steps at random: their number has the variance of its mean. Under open arrivals a rush also lengthens every
    step: the running number b has z times the variance of its mean, with the peakedness z of the arrivals, amplified as
    longer steps hold requests for longer.

    .. math:: \sigma_t = \frac{t_p}{N} \sqrt{\lambda T (c_a^2 + v^2)} +
        \frac{t_1}{1 - \rho} \sqrt{\frac{z\,b}{1 - g}}, \qquad g = \frac{t_1 b}{t_0 + t_1 b}, \qquad
        z = \frac{c_a^2 + v_o^2}{1 + v_o^2}

    The waits for a place and for other prefills are independent: the signed squares of the differences between their
    quantiles and means add up (exact if one of them is 0; heuristic, this work). Sources: L. Kleinrock, "Queueing
    Systems, Volume I: Theory", Wiley, 1975, section 5.12. W. Whitt, "Approximations for the GI/G/m queue", Prod. Oper.
    Manag. 2(2), 1993, doi:10.1111/j.1937-5956.1993.tb00094.x: peakedness.
    """
    fixed = steady.first_token - steady.prefill_wait + steady.queue_time
    # Standard deviation of the time per token: interrupting prefills, then rushes.
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
        prefilling = interrupting * steady.rate * added / prefill_replicas
        jitter = jitter + service.step_slope * rush / (1.0 - np.minimum(prefilling, 0.99))
    # Quantiles: exponential tail of the wait for prefills, combined with the wait for a place.
    middle = steady.decode_time / shares
    first, each = [], []
    for quantile, normal in zip(QUANTILES, _NORMAL, strict=True):
        if arrivals:
            tail = divide(steady.prefill_wait, busy)
            late = np.maximum(log(np.maximum(busy, 1e-12) / (1.0 - quantile)), 0.0) * tail
            if place_wait is not None:
                place, prefill = place_wait.quantile(quantile) - place_wait.mean, late - steady.prefill_wait
                squares = place * np.abs(place) + prefill * np.abs(prefill)
                late = np.where(place == 0.0, late, steady.prefill_wait + np.sign(squares) * np.sqrt(np.abs(squares)))
        else:
            late = 2.0 * quantile * steady.prefill_wait
        first.append(fixed + late + normal * spread)
        each.append(middle + normal * jitter)
    return side_by_side(*first), side_by_side(*each)


ROOT_OF_THREE = 1.7320508075688772
_MIDDLES: Array = (np.arange(32.0) + 0.5) / 32.0
_SHARES: Array = _MIDDLES * _MIDDLES * _MIDDLES
# Quadrature over output lengths: weights of _SHARES, denser for the shortest outputs
_SHARE_WEIGHTS: Array = 3.0 / 32.0 * _MIDDLES * _MIDDLES


def output_length(share: Numeric, output_variation: Numeric) -> Array:
    r"""Quantile of output lengths, relative to the mean length.

    Uniform up to the coefficient of variation :math:`1/\sqrt{3}`, as benchmarks draw lengths; beyond it a generalised
    Pareto distribution, exponential at 1. Its fit to real conversations is a heuristic of this work.

    .. math:: x = \begin{cases} 1 + \sqrt{3}\,v\,(2 u - 1) & v \le 1/\sqrt{3} \\
        \frac{1 - \xi}{\xi} \left((1 - u)^{-\xi} - 1\right) & v > 1/\sqrt{3} \end{cases},
        \qquad \xi = \frac{1 - 1 / v^2}{2}

    Source: J. R. M. Hosking and J. R. Wallis, "Parameter and quantile estimation for the generalized Pareto
    distribution", Technometrics 29(3), 1987, doi:10.1080/00401706.1987.10488243.

    Equal lengths; uniform between 0 and twice the mean; exponential; a long tail:

    >>> output_length(0.9, [0.0, 3.0**-0.5, 1.0, 2.0]).round(3).tolist()
    [1.0, 1.8, 2.303, 2.287]

    Parameters
    ----------
    share : Share u of the outputs, 0 to less than 1. [-]
    output_variation : Coefficient of variation v of the outputs. [-]

    Returns
    -------
    Array : Length over the mean length, 0 or more. [-]
    """
    share, variation = array(share), array(output_variation)
    uniform = 1.0 + ROOT_OF_THREE * variation * (2.0 * share - 1.0)
    tail = 0.5 * (1.0 - 1.0 / np.maximum(variation, 1.0 / ROOT_OF_THREE) ** 2)
    hazard, exponential = -log(1.0 - share), tail == 0.0
    long = (1.0 - tail) * np.where(exponential, hazard, expm1(tail * hazard) / np.where(exponential, 1.0, tail))
    return np.asarray(np.where(variation * ROOT_OF_THREE <= 1.0, uniform, long))


def longest_output(requests: Numeric, output_variation: Numeric) -> Array:
    """Excess length of the longest of n outputs over the mean length, relative to the mean.

    The largest of n draws is near the quantile n / (n + 1). Source: H. A. David and H. N. Nagaraja, "Order Statistics",
    3rd ed., Wiley, 2003, chapter 4: the largest of n.

    The longest of three is 1.5 times the mean if lengths are uniform from 0:

    >>> longest_output([1.0, 3.0, 99.0], 3.0**-0.5).round(3).tolist()
    [0.0, 0.5, 0.98]

    Parameters
    ----------
    requests : Outputs n, 1 or more. [-]
    output_variation : Coefficient of variation of the outputs. [-]

    Returns
    -------
    Array : 0 or more; 0 for one output and for equal outputs. [-]
    """
    number = array(requests)
    return np.maximum(output_length(number / (number + 1.0), output_variation) - 1.0, 0.0)


def last_output(run_requests: Numeric, together: Numeric, output_variation: Numeric) -> Array:
    r"""Excess length of the output that ends a run after the mean end of its last wave, relative to the mean length.

    It is the longest of the last wave of r requests, or the longest of all N, which starts in the middle of the run on
    average (heuristic, this work).

    .. math:: \max\left(x(r),\; x(N) - \frac{N / r - 1}{2}\right)

    Exponential lengths: of 512 requests in two waves one of the first is likely the last to end, in 64 none:

    >>> last_output(512.0, [256.0, 8.0], 1.0).round(2).tolist()
    [4.74, 1.2]

    Parameters
    ----------
    run_requests : Requests N of the run. [-]
    together : Requests r that run together, N at most. [-]
    output_variation : Coefficient of variation of the outputs. [-]

    Returns
    -------
    Array : 0 or more. [-]
    """
    number, wave = array(run_requests), array(together)
    longest = longest_output(number, output_variation) - 0.5 * (number / wave - 1.0)
    return np.maximum(longest_output(wave, output_variation), longest)


def run_rate(
    service: Service, active: Array, run_requests: Array, rate: Array, cycle: Array, output_variation: Numeric = 0.0
) -> Array:
    r"""Requests per second over a finite run: whole waves, then a smaller one.

    A wave of r requests takes their prefills, t_s each, and s steps of t(r); the last wave holds the remainder. The
    excess w of the cycle T adds to each wave. Varying outputs extend the run until its last one ends, x of
    :func:`last_output`, in steps charged as empty steps.

    .. math:: X = \frac{N}{N t_s + \lfloor N / r \rfloor s\,t(r) + s\,t(N \bmod r) + \lceil N / r \rceil w + d},
        \qquad w = \max\left(T - r\,t_s - s\,t(r),\; 0\right), \qquad d = s\,x(N, \min(r, N))\,t(0)

    Source: NVIDIA, TensorRT-LLM documentation, "Overview" of performance: throughput of a fixed number of requests.
    """
    total = np.maximum(np.where(np.isnan(run_requests), 1.0, run_requests), 1.0)
    together = np.minimum(active, total)
    waves = np.floor(total / together)
    remainder = total - waves * together
    last = np.where(remainder > 0.0, service.step_time(remainder), 0.0)
    excess = np.maximum(cycle - active * service.added_share - service.decode_steps * service.step_time(active), 0.0)
    time = total * service.added_share + service.decode_steps * (waves * service.step_time(together) + last)
    time = time + np.ceil(total / together) * excess
    time = time + service.decode_steps * last_output(total, together, output_variation) * service.step_base
    return np.asarray(np.where(np.isnan(run_requests), rate, total / time + 0.0 * rate))


def first_of_run(run_requests: Array, requests: Array) -> Array:
    """Fraction of the requests of a run that start it at once.

    Source: SemiAnalysis, InferenceX, benchmark_serving.py: as many requests as may be in flight are sent at once.

    >>> first_of_run([100.0, 4.0, np.nan], 10.0).tolist()
    [0.1, 1.0, 0.0]

    Parameters
    ----------
    run_requests : Requests of the run, (rows,); NaN: without end. [-]
    requests : Requests in flight that fit into the cache, (rows,). [-]

    Returns
    -------
    Array : 0 to 1; 0 without end, (rows,). [-]
    """
    run, started = array(run_requests), array(requests)
    return np.where(np.isnan(run), 0.0, np.minimum(started / np.maximum(run, 1.0), 1.0))


def in_turn(service: Service, steady: Steady, pass_time: Array, group: Array, requests: Array) -> Steady:
    r"""Steady state of requests of equal length that keep arriving in the groups of one prefill pass.

    Requests of one pass end in one step, and their successors share a pass again. The groups of a burst end one step
    after another: in the step with the pass of one group the next group ends, and its successors wait for another such
    step. Only the first group waits for none. A prompt saves delta in such a step of t. The wait is at least that of
    unsynchronised prompts, and at most the part of the cycle without steps.

    .. math:: w = \max\left(\left(t_p + t - g\,\delta\right) \left(1 - \frac{g}{c}\right),\; w_{steady}\right)

    Heuristic, this work, validated with a step-by-step simulation. Late successors make groups, and waits, grow.
    Source: vLLM documentation, "Optimization and tuning": a step takes prompts up to a number of tokens.
    """
    step = service.step_time(steady.running)
    wait = (pass_time + step - group * service.saving) * np.maximum(1.0 - group / np.maximum(requests, 1.0), 0.0)
    wait = np.maximum(wait, steady.prefill_wait)
    later = np.maximum(pass_time - service.prefill_time + wait - steady.prefill_wait, 0.0)
    later = np.minimum(later, np.maximum(steady.decode_time - service.decode_steps * step, 0.0))
    prefill_wait = np.minimum(wait, steady.prefill_wait + later)
    return steady._replace(
        first_token=steady.first_token + later, prefill_wait=prefill_wait, decode_time=steady.decode_time - later
    )


def uneven_time(
    stall: Numeric, steps: Numeric, longest: Numeric, output_variation: Numeric
) -> tuple[Array, Array, Array, Array]:
    r"""Extra time per token of a burst with varying outputs: mean and quantiles over requests.

    After its first token a request of a burst waits while later prompts are prefilled, for U S with U uniform in
    [0, 1], but for at most n passes of p in n steps. The mean over requests of time per token grows because short
    answers, max(N x, 1) steps with lengths x of :func:`output_length`, spread the wait over fewer tokens.

    .. math:: \Delta = G(v) - G(0), \qquad G = \mathrm{E}\left[\min\left(\frac{U S}{n}, p\right)\right] =
        \mathrm{E}\left[m - \frac{m^2 n}{2 S}\right], \qquad m = \min\left(\frac{S}{n}, p\right)

    Quantile q: a request of length quantile 1 - q that waits for half of the stall, at most p a step, less the same
    with N steps, 0 at least. Source: vLLM, benchmarks/benchmark_serving.py: mean_tpot_ms is the mean of (latency -
    ttft) / (tokens - 1).

    Prefills first, lengths between 0 and 200: the mean of 1 / n is (1 + ln 200) / 200; equal lengths: 1 / 100.

    >>> added = uneven_time(np.array([10.0, 10.0]), np.array([100.0]), np.array([np.inf]), np.array([0.0, 3.0**-0.5]))
    >>> [times.round(3).tolist() for times in added]
    [[0.0, 0.108], [0.0, 0.0], [0.0, 0.2], [0.0, 2.45]]

    Parameters
    ----------
    stall : Time S of all prefills of a burst after the first one, (rows,). [s]
    steps : Decode steps N per request, (rows,). [-]
    longest : Most time p that prefills add to a step, infinite if prefills have priority, (rows,). [s]
    output_variation : Coefficient of variation v of the outputs, (rows,). [-]

    Returns
    -------
    mean : Added to the mean time per token, 0 or more, (rows,). [s]
    median : Added to the median, (rows,). [s]
    ninetieth : Added to the 90th percentile, (rows,). [s]
    ninety_ninth : Added to the 99th percentile, (rows,). [s]
    """
    stall, steps, longest, variation = (array(values) for values in (stall, steps, longest, output_variation))

    def mean(lengths: Sequence[Array], weights: Sequence[float]) -> Array:
        time = 0.0 * stall
        for length, weight in zip(lengths, weights, strict=True):
            per_step = stall / np.maximum(steps * length, 1.0)
            most = np.minimum(per_step, longest)
            time = time + weight * (most - divide(0.5 * most * most, per_step, 0.0))
        return time

    def short(quantile: float) -> Array:
        lengths = np.maximum(steps * output_length(1.0 - quantile, variation), 1.0)
        return np.asarray(np.maximum(np.minimum(0.5 * stall / lengths, longest) - even, 0.0))

    even = np.minimum(0.5 * stall / np.maximum(steps, 1.0), longest)
    lengths = [output_length(share, variation) for share in _SHARES]
    longer = mean(lengths, _SHARE_WEIGHTS.tolist()) - mean([np.ones_like(variation)], [1.0])
    median, ninetieth, ninety_ninth = map(short, QUANTILES)
    return np.asarray(np.maximum(longer, 0.0)), median, ninetieth, ninety_ninth


def run_state(burst: Steady, steady: Steady, first: Array, together: Array, run_requests: Array) -> Steady:
    r"""Mean over the requests of a finite run: a fraction f starts it, and a fraction s of later requests is in bursts.

    .. math:: t_N = g\,t_{burst} + (1 - g)\,t, \qquad g = f + (1 - f)\,s

    Source: SemiAnalysis, InferenceX, benchmark_serving.py: means over all requests of a run.
    """
    share = first + (1.0 - first) * together
    ends = ~np.isnan(run_requests)
    pairs = zip(burst, steady, strict=True)
    return Steady(*(np.where(ends, early * share + late * (1.0 - share), late) for early, late in pairs))
