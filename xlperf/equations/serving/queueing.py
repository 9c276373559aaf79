"""Deployment under load: requests that come and go while others are decoded, and how long they wait.

A replica alternates prefills of new prompts with decode steps. The time of a step is taken as linear in the
requests that it decodes, between two of them that were computed operator by operator.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, divide, exp, log, side_by_side

QUANTILES = (0.5, 0.9, 0.99)
_NORMAL = (0.0, 1.2815515655446004, 2.3263478740408408)
_ROOT_OF_THREE = 1.7320508075688772
_NODES = (
    (0.0, 0.4571428571428571),
    (-1.1544053947399682, 0.2401231786050127),
    (1.1544053947399682, 0.2401231786050127),
    (-2.3667594107345415, 0.0307571239675865),
    (2.3667594107345415, 0.0307571239675865),
    (-3.7504397177257425, 0.0005482688559722),
    (3.7504397177257425, 0.0005482688559722),
)
"""Points and weights of the Gauss-Hermite quadrature of a normal deviate with seven points."""
_HALF, _NONE, _ENDLESS = np.full(1, 0.5), np.asarray(0.0), np.asarray(np.inf)


class Service(NamedTuple):
    """Service times of a replica, and how requests come; every field has shape (rows,).

    Attributes
    ----------
    prefill_time : Array
        Time of a pass of the prefill, all its prompts together. [s]
    prefill_share : Array
        Time of the replica per prompt. [s]
    step_base : Array
        Time of a decode step without requests. [s]
    step_slope : Array
        Time that a request adds to it. [s]
    decode_steps : Array
        Decode steps per request. [-]
    burst_fraction : Array
        Share of the requests in flight whose prefills a new one waits for: 1 where all come and go together. [-]
    turn_steps : Array, default a half
        Decode steps that pass before a request is admitted. [-]
    saving : Array, default none
        Time that the prefill of a prompt takes less in the decode steps of other requests than by itself. [s]
    longest : Array, default infinite
        Most time that prefills add to a decode step: that of one pass where both are computed together. [s]
    """

    prefill_time: Array
    prefill_share: Array
    step_base: Array
    step_slope: Array
    decode_steps: Array
    burst_fraction: Array
    turn_steps: Array = _HALF
    saving: Array = _NONE
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
        self, rate: Array, prompt_variation: Array, running: Array, least_share: Array, interval: Array
    ) -> Steady:
        r"""Steady state with requests that arrive independently of each other.

        A request that finds a pass of the prefill in progress waits for the rest of it. As the load rises the prompts
        that wait are batched, so that the wait grows without bound only near the rate at which passes are full, with a
        time s of the replica per prompt. With passes of one prompt this is the formula of Pollaczek and Khinchin.

        .. math:: w = \frac{1 + v^2}{2} \left(\min(\lambda t_p, 1)\,t_p +
            \frac{(\lambda s)^2}{1 - \lambda s}\,s\right), \qquad T_{decode} =
            N\,\min\left(\frac{t(b)}{1 - \lambda (s_p - \delta)},\; t(b) + p\right)

        with the time delta that a prompt takes less in the steps of other requests than by itself, and the time p that
        one of its passes adds to such a step: what prefills take beyond that is waited for before the first token.

        Parameters
        ----------
        rate : Array
            Requests lambda that arrive per second, (rows,). [request/s]
        prompt_variation : Array
            Coefficient of variation v of the prompts, (rows,). [-]
        running : Array
            Requests b in flight that the rate leads to, infinite where it exceeds the capacity, (rows,). [-]
        least_share : Array
            Time per prompt of a full pass of the prefill, (rows,). [s]
        interval : Array
            Time from the start of one pass of the prefill to that of the next one, (rows,). [s]

        Returns
        -------
        Steady
            Of a replica, (rows,); infinite where it cannot keep up, in time or in room.

        References
        ----------
        .. [1] L. Kleinrock, "Queueing Systems, Volume I: Theory", Wiley, 1975, section 5.6 (Pollaczek and Khinchin).
        """
        keeps = np.isfinite(running)
        spread = 1.0 + prompt_variation * prompt_variation
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
        return Steady(running, first, wait, decode, 0.0 * rate, rate + 0.0 * step)


class Steady(NamedTuple):
    """Steady state of one replica; every field has shape (rows,).

    Attributes
    ----------
    running : Array
        Requests that are decoded together, mean. [-]
    first_token : Array
        From the start of the prefill to the first token, waiting for other prefills included. [s]
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

    Parameters
    ----------
    service : Service
        Times of a replica with so many requests, (rows,).
    requests : Array
        Requests c in flight, (rows,). [-]
    places : Array
        Requests that the cache has room for, (rows,). [-]
    outside : numeric, default 0.0
        Time tau that a request spends outside the engine before its prefill, (rows,). [s]

    Returns
    -------
    Steady
        Of a replica, (rows,); the time to the first token has the time outside the engine in it.

    References
    ----------
    .. [1] J. D. C. Little, "A proof for the queuing formula L = lambda W", Oper. Res. 9(3), 1961,
       doi:10.1287/opre.9.3.383.

    Ten requests of 100 steps of 20 ms, a prefill of 100 ms each, half a step until one is admitted: U is the root of
    (U - 0.01) (1 - 0.9 / U) = 2, and the cycle 3.0069 s; were the replica to stand still meanwhile, 3.01 s.

    >>> service = Service(*map(np.asarray, (0.1, 0.1, 0.02, 0.0, 100.0, 0.0)))
    >>> state = closed_state(service, np.asarray(10.0), np.asarray(16.0))
    >>> round(float(10.0 / state.rate[0]), 4), round(float(state.first_token[0]), 6)
    (3.0069, 0.11)
    """
    count = np.maximum(requests, 1.0)
    active = np.minimum(count, np.maximum(places, 1.0))
    burst, share, decodes = service.burst_fraction, service.prefill_share, service.decode_steps > 0.0
    step = service.step_time(active)
    steps = service.decode_steps * step
    # An engine that decodes nothing takes prompts up at once: none waits for more steps than another request takes.
    turn = np.minimum(service.turn_steps, service.decode_steps) * np.minimum(active - 1.0, 1.0)
    late = (1.0 - burst) * turn * step + outside
    own = np.minimum(service.prefill_time, active * share)
    others, filling = count * share - own, active * share - own
    mixed = 1.0 - divide(service.saving, share, 0.0)
    spread = (1.0 - burst) * mixed * others
    lead = spread + steps - late
    # (A + B + h)^2 - 4 A h is (A + B - h)^2 + 4 B h, which is never below 0.
    root = 0.5 * (spread + steps + late + np.sqrt(lead * lead + 4.0 * steps * late))
    alone, filled = own + burst * others + root, own + (burst + (1.0 - burst) * mixed) * filling + steps
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

    Examples
    --------
    Requests all alike, a constant number in flight: 0.6 s of prefill and up to twice 0.4 s of wait; 100 tokens in 10 s.

    >>> service = Service(*(np.array([value]) for value in (0.0, 0.0, 0.1, 0.0, 100.0, 0.0)))
    >>> steady = Steady(*(np.array([value]) for value in (1.0, 1.0, 0.4, 10.0, 0.0, 0.1)))
    >>> none, one = np.zeros(1), np.ones(1)
    >>> found = spread_quantiles(service, steady, np.array([100.0]), none, none, False, one, none)
    >>> [times.tolist() for times in found]
    [[[1.0, 1.32, 1.392]], [[0.1, 0.1, 0.1]]]
    """
    fixed = steady.first_token - steady.prefill_wait + steady.queue_time
    spread = prompt_variation * service.prefill_share
    added = service.added_share
    busy = steady.rate * service.prefill_share / prefill_replicas
    shares = np.maximum(tokens, 1.0)
    interrupts = interrupting * steady.rate * steady.decode_time * (1.0 + prompt_variation * prompt_variation)
    interrupts = interrupts * (1.0 + output_variation * output_variation)
    jitter = added * np.sqrt(np.maximum(interrupts, 0.0)) / shares
    if arrivals:
        # With g = t1 b / t, b / (1 - g) is b t / t0.
        step = service.step_time(steady.running)
        rush = np.sqrt(np.maximum(divide(steady.running * step, service.step_base), 0.0))
        taken = interrupting * steady.rate * added / prefill_replicas
        jitter = jitter + service.step_slope * rush / (1.0 - np.minimum(taken, 0.99))
    middle = steady.decode_time / shares
    first, each = [], []
    for quantile, normal in zip(QUANTILES, _NORMAL, strict=True):
        if arrivals:
            tail = divide(steady.prefill_wait, busy)
            late = np.maximum(log(np.maximum(busy, 1e-12) / (1.0 - quantile)), 0.0) * tail
        else:
            late = 2.0 * quantile * steady.prefill_wait
        first.append(fixed + late + normal * spread)
        each.append(middle + normal * jitter)
    return side_by_side(*first), side_by_side(*each)


def run_rate(
    service: Service,
    active: Array,
    run_requests: Array,
    rate: Array,
    cycle: Array,
    output_variation: Numeric = 0.0,
) -> Array:
    r"""Requests per second over a run that ends with its last request: whole waves, then a smaller one.

    What the cycle T of a request is longer than the work of a wave is waited for with each. Where outputs vary, with
    coefficient of variation v, the run goes on until the longest of the last ones ends, in steps with ever fewer
    requests: of n draws the largest lies about :math:`v \sqrt{2 \ln n}` means above the mean [2]_.

    .. math:: X = \frac{N}{N t_s + \lfloor N / r \rfloor s\,t(r) + s\,t(N \bmod r) + \lceil N / r \rceil w + d},
        \qquad w = T - r\,t_s - s\,t(r), \qquad d = s\,v \sqrt{2 \ln \min(r, N)}\;t(0)

    Parameters
    ----------
    service : Service
        Times of a replica, (rows,).
    active : Array
        Requests r that a replica decodes together, (rows,). [-]
    run_requests : Array
        Requests N of the run on a replica, (rows,); NaN: the steady state. [-]
    rate : Array
        Rate in the steady state, (rows,). [request/s]
    cycle : Array
        Time T from one request to the next in one of the r places, (rows,). [s]
    output_variation : numeric, default 0.0
        Coefficient of variation v of the outputs, (rows,). [-]

    Returns
    -------
    Array
        (rows,). [request/s]

    References
    ----------
    .. [1] NVIDIA, TensorRT-LLM documentation, "Overview" of performance: throughput of a fixed number of requests.
    .. [2] H. A. David and H. N. Nagaraja, "Order Statistics", 3rd ed., Wiley, 2003, chapter 4: the largest of n.

    Ten requests in waves of 4, 4 and 2, each prefilled in 0.1 s and decoded in ten steps of 0.1 s: 10 / (1 + 3) per s.

    >>> service = Service(*map(np.asarray, (0.1, 0.1, 0.1, 0.0, 10.0, 0.0)))
    >>> run = np.asarray(4.0), np.asarray(10.0), np.asarray(9.0), np.asarray(1.4)
    >>> float(run_rate(service, *run))
    2.5

    Outputs that vary by 0.6006: the longest of the last four takes 10 more steps, 0.6006 x sqrt(2 ln 4) = 1 mean.

    >>> round(float(run_rate(service, *run, 0.6006)), 3)
    2.0
    """
    total = np.maximum(np.where(np.isnan(run_requests), 1.0, run_requests), 1.0)
    together = np.minimum(active, total)
    waves = np.floor(total / together)
    rest = total - waves * together
    last = np.where(rest > 0.0, service.step_time(rest), 0.0)
    waited = np.maximum(cycle - active * service.added_share - service.decode_steps * service.step_time(active), 0.0)
    time = total * service.added_share + service.decode_steps * (waves * service.step_time(together) + last)
    time = time + np.ceil(total / together) * waited
    longest = array(output_variation) * np.sqrt(2.0 * log(np.maximum(together, 1.0)))
    time = time + service.decode_steps * longest * service.step_base
    return np.asarray(np.where(np.isnan(run_requests), rate, total / time + 0.0 * rate))


def first_of_run(run_requests: Array, requests: Array) -> Array:
    """Share of the requests of a run that it starts with.

    Parameters
    ----------
    run_requests : Array
        Requests of the run, (rows,); NaN: without end. [-]
    requests : Array
        Requests that start at once: those in flight that there is room for, (rows,). [-]

    Returns
    -------
    Array
        0 to 1; 0 without end, (rows,). [-]

    References
    ----------
    .. [1] SemiAnalysis, InferenceX, benchmark_serving.py: as many requests as may be in flight are sent at once.

    >>> first_of_run([100.0, 4.0, np.nan], 10.0).tolist()
    [0.1, 1.0, 0.0]
    """
    run, started = array(run_requests), array(requests)
    return np.where(np.isnan(run), 0.0, np.minimum(started / np.maximum(run, 1.0), 1.0))


def run_wait(queue: Array, requests: Array, run_requests: Array) -> Array:
    r"""Wait for a free place, mean over the requests of a run that starts with all that are in flight at once.

    Those that follow as others end find as many before them as in the steady state. Of the c that the run starts with
    the first find a place at once and the last wait as long as those that follow: half of that on average.

    .. math:: w = q \left(1 - \frac{\min(c, N)}{2 N}\right)

    Parameters
    ----------
    queue : Array
        Wait q without end, (rows,). [s]
    requests : Array
        Requests c in flight, (rows,). [-]
    run_requests : Array
        Requests N of the run, (rows,); NaN: without end. [-]

    Returns
    -------
    Array
        (rows,). [s]

    References
    ----------
    .. [1] J. D. C. Little, "A proof for the queuing formula L = lambda W", Oper. Res. 9(3), 1961,
       doi:10.1287/opre.9.3.383.

    A burst; four times as many as are in flight; without end:

    >>> run_wait(8.0, 100.0, [100.0, 400.0, np.nan]).tolist()
    [4.0, 7.0, 8.0]
    """
    started = first_of_run(run_requests, requests)
    return np.asarray(array(queue) * (1.0 - 0.5 * started))


def staying_together(steps: Array, in_step: Array, output_variation: Array) -> Array:
    r"""Share of the requests of a run that keep coming in bursts, because those before them end in the same step.

    Requests that take all their steps together and have the same length end together: those of a burst where what
    waits is prefilled before anything is decoded on, those of one pass where it is not. While prompts are prefilled no
    request ends: those that end in different steps do not add to a burst. Lengths are spread evenly, with coefficient
    of variation v.

    .. math:: s = \frac{1}{\max(2 \sqrt{3}\,v\,N, 1)}

    Parameters
    ----------
    steps : Array
        Steps N of decoding that a request takes, (rows,). [-]
    in_step : Array
        1 where such requests take all their steps together, else 0, (rows,). [-]
    output_variation : Array
        Coefficient of variation of the outputs, (rows,). [-]

    Returns
    -------
    Array
        0 to 1, (rows,). [-]

    References
    ----------
    .. [1] SGLang documentation, server arguments: enable-mixed-chunk is off by default.

    >>> staying_together(100.0, [1.0, 0.0], 0.0).tolist()
    [1.0, 0.0]
    >>> round(float(staying_together(100.0, 1.0, 0.1)), 4)  # 1 / (2 x 1.732 x 0.1 x 100)
    0.0289
    """
    spread = 2.0 * _ROOT_OF_THREE * array(output_variation) * array(steps)
    return np.asarray(array(in_step) / np.maximum(spread, 1.0))


def coming_together(burst_fraction: Numeric, output_variation: Numeric) -> Array:
    r"""Fraction of the in-flight requests that arrive at the same moment where outputs differ in length.

    A request follows one that ends. Requests that started together end over a part of their N steps as wide as their
    lengths differ: spread evenly, with coefficient of variation v, over 2 sqrt(3) v of the mean. While that part is
    short, the rest of the steps passes without arrivals and what arrives is bunched; where it is as long as the mean,
    successive waves overlap and requests arrive at any time, as in a Poisson process. Heuristic, this work.

    .. math:: b = \sigma \max\left(1 - 2 \sqrt{3}\,v,\; 0\right)

    Parameters
    ----------
    burst_fraction : numeric
        Fraction sigma of the in-flight requests that arrive at the same moment where all outputs are equally long. [-]
    output_variation : numeric
        Coefficient of variation of the outputs. [-]

    Returns
    -------
    Array
        0 to the fraction of equally long outputs. [-]

    References
    ----------
    .. [1] SGLang, bench_serving.py: --random-range-ratio is 0 by default, lengths between 1 and the stated one.

    Lengths between 0.8 of the stated ones and all of them have v = 0.0642, those between none and all 0.577.

    >>> coming_together(0.05, [0.0, 0.0642, 0.577]).round(4).tolist()
    [0.05, 0.0389, 0.0]
    """
    spread = 2.0 * _ROOT_OF_THREE * array(output_variation)
    return np.asarray(array(burst_fraction) * np.maximum(1.0 - spread, 0.0))


def in_turn(service: Service, steady: Steady, pass_time: Array, group: Array, requests: Array) -> Steady:
    r"""Requests of equal length that keep coming in groups: those whose prompts a pass takes together.

    Requests of one pass end in one step, and those that follow them share a pass again. The groups of a burst got
    their passes one after the other, and so they end: in the step with the pass of one group the next group ends, and
    those that follow wait for another such step before their own. Only the first group finds none before it. A prompt
    takes delta less with such a step of t than by itself. Nobody waits less than where prompts come at any time, nor
    longer than the cycle leaves beside its steps.

    .. math:: w = \max\left(\left(t_p + t - g\,\delta\right) \left(1 - \frac{g}{c}\right),\; w_{steady}\right)

    Heuristic, this work, held against runs simulated step by step. Where those that follow come later than the step
    in which they are expected, groups grow, and wait longer.

    Parameters
    ----------
    service : Service
        Times of a replica, (rows,).
    steady : Steady
        Its state where prompts come at any time, (rows,).
    pass_time : Array
        Time t_p of a pass with the prompts of a group, (rows,). [s]
    group : Array
        Requests g of a pass, (rows,). [-]
    requests : Array
        Requests c in flight, (rows,). [-]

    Returns
    -------
    Steady
        The same cycle with a later first token: what is waited for is no step of decoding any more, (rows,).

    References
    ----------
    .. [1] vLLM documentation, "Optimization and tuning": a step takes prompts up to a number of tokens.

    Two requests of eight to a pass of 0.4 s, steps of 20 ms: three groups of four wait 0.42 s for another one.

    >>> service = Service(*np.array([[0.2], [0.2], [0.02], [0.0], [100.0], [0.0]]))
    >>> steady = Steady(*np.array([[8.0], [0.21], [0.0], [4.0], [0.0], [1.9]]))
    >>> found = in_turn(service, steady, np.array([0.4]), np.array([2.0]), np.array([8.0]))
    >>> [round(float(times[0]), 6) for times in (found.first_token, found.prefill_wait, found.decode_time)]
    [0.725, 0.315, 3.485]
    """
    step = service.step_time(steady.running)
    wait = (pass_time + step - group * service.saving) * np.maximum(1.0 - group / np.maximum(requests, 1.0), 0.0)
    wait = np.maximum(wait, steady.prefill_wait)
    later = np.maximum(pass_time - service.prefill_time + wait - steady.prefill_wait, 0.0)
    later = np.minimum(later, np.maximum(steady.decode_time - service.decode_steps * step, 0.0))
    waited = np.minimum(wait, steady.prefill_wait + later)
    return steady._replace(
        first_token=steady.first_token + later, prefill_wait=waited, decode_time=steady.decode_time - later
    )


def uneven_time(
    stall: Numeric, steps: Numeric, longest: Numeric, output_variation: Numeric
) -> tuple[Array, Array, Array, Array]:
    r"""What times per token are longer for answers of a burst whose lengths vary: mean over requests and quantiles.

    After its first token a request of a burst stands still while the others are prefilled, for U S on average S / 2.
    Benchmarks take the mean over requests of each one's time per token [1]_: few tokens share a stall as long as many
    do. A request of n steps stands still for no more than n passes of p. Lengths are taken as lognormal, with mean N
    and coefficient of variation v.

    .. math:: \Delta = G(v) - G(0), \qquad G = \mathrm{E}\left[\min\left(\frac{U S}{n}, p\right)\right] =
        \mathrm{E}\left[m - \frac{m^2 n}{2 S}\right], \qquad m = \min\left(\frac{S}{n}, p\right)

    A quantile is that of a request as short as the quantile of lengths, which stands still for half of the stall.

    Parameters
    ----------
    stall : numeric
        Time S that the prefills of a burst take after the first one, (rows,). [s]
    steps : numeric
        Decode steps N per request, (rows,). [-]
    longest : numeric
        Most time p that prefills add to a step, infinite where all prompts go before any decoding, (rows,). [s]
    output_variation : numeric
        Coefficient of variation v of the outputs, (rows,). [-]

    Returns
    -------
    mean : Array
        Added to the mean time per token, 0 or more, (rows,). [s]
    median : Array
        Added to the median, (rows,). [s]
    ninetieth : Array
        Added to the 90th percentile, (rows,). [s]
    ninety_ninth : Array
        Added to the 99th percentile, (rows,). [s]

    References
    ----------
    .. [1] vLLM, benchmarks/benchmark_serving.py: mean_tpot_ms is the mean of (latency - ttft) / (tokens - 1).

    Prompts first, v = 1: the mean of 1 / n is 2 / N, so that a mean stall of 5 s over 100 steps counts twice.

    >>> found = uneven_time(np.array([10.0, 10.0]), np.array([100.0]), np.array([np.inf]), np.array([0.0, 1.0]))
    >>> [times.round(4).tolist() for times in found]
    [[0.0, 0.05], [0.0, 0.0207], [0.0, 0.1555], [0.0, 0.4405]]
    """
    stall, steps, longest, variation = (array(values) for values in (stall, steps, longest, output_variation))
    width = np.sqrt(log(1.0 + variation * variation))

    def mean(spread: Array) -> Array:
        found = 0.0 * stall
        for point, weight in _NODES:
            each = stall / np.maximum(steps * exp(spread * (point - 0.5 * spread)), 1.0)
            most = np.minimum(each, longest)
            found = found + weight * (most - divide(0.5 * most * most, each, 0.0))
        return found

    def short(normal: float) -> Array:
        lengths = np.maximum(steps * exp(-width * (normal + 0.5 * width)), 1.0)
        return np.asarray(np.maximum(np.minimum(0.5 * stall / lengths, longest) - even, 0.0))

    even = np.minimum(0.5 * stall / np.maximum(steps, 1.0), longest)
    longer = np.asarray(np.maximum(mean(width) - mean(0.0 * width), 0.0))
    median, ninetieth, ninety_ninth = map(short, _NORMAL)
    return longer, median, ninetieth, ninety_ninth


def run_state(burst: Steady, steady: Steady, first: Array, together: Array, run_requests: Array) -> Steady:
    r"""Mean over the requests of a run: those it starts with come all at once, those that follow as earlier ones end.

    .. math:: t_N = g\,t_{burst} + (1 - g)\,t, \qquad g = f + (1 - f)\,s

    Parameters
    ----------
    burst : Steady
        State of requests that come all at once, (rows,).
    steady : Steady
        State t without end, (rows,).
    first : Array
        Share f of the requests of the run that it starts with, (rows,). [-]
    together : Array
        Share s of the others that keep coming at once, (rows,). [-]
    run_requests : Array
        Requests of the run, (rows,); NaN: without end. [-]

    Returns
    -------
    Steady
        Means, (rows,).

    References
    ----------
    .. [1] SemiAnalysis, InferenceX, benchmark_serving.py: means over all requests of a run.

    Examples
    --------
    A quarter starts the run and a fifth of the others keeps coming at once: 0.4 x 10 + 0.6 x 5.

    >>> burst, steady = (Steady(*np.full((len(Steady._fields), 1), time)) for time in (10.0, 5.0))
    >>> run_state(burst, steady, *np.array([[0.25], [0.2], [100.0]])).first_token.tolist()
    [7.0]
    """
    share = first + (1.0 - first) * together
    ends = ~np.isnan(run_requests)
    pairs = zip(burst, steady, strict=True)
    return Steady(*(np.where(ends, early * share + late * (1.0 - share), late) for early, late in pairs))
