"""Finite benchmark runs: initial burst, steady state, tail; variable output lengths.

A run begins with a burst. Later requests start as earlier ones end, in bursts again if these end together. Varying
outputs disperse requests, extend the run to its longest last output, and raise the time per token of short answers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, divide, expm1, log
from xlperf.equations.serving.queueing import QUANTILES, Service, Steady

_ROOT_OF_THREE = 1.7320508075688772
_MIDDLES: Array = (np.arange(32.0) + 0.5) / 32.0
_SHARES: Array = _MIDDLES * _MIDDLES * _MIDDLES
# Quadrature over output lengths: weights of _SHARES, denser for the shortest outputs
_SHARE_WEIGHTS: Array = 3.0 / 32.0 * _MIDDLES * _MIDDLES


def output_length(share: Numeric, output_variation: Numeric) -> Array:
    r"""Quantile of output lengths, relative to the mean length.

    Uniform up to the coefficient of variation :math:`1/\sqrt{3}`, as benchmarks draw lengths; beyond it a generalised
    Pareto distribution, exponential at 1 [1]_. Its fit to real conversations is a heuristic of this work.

    .. math:: x = \begin{cases} 1 + \sqrt{3}\,v\,(2 u - 1) & v \le 1/\sqrt{3} \\
        \frac{1 - \xi}{\xi} \left((1 - u)^{-\xi} - 1\right) & v > 1/\sqrt{3} \end{cases},
        \qquad \xi = \frac{1 - 1 / v^2}{2}

    Parameters
    ----------
    share : Share u of the outputs, 0 to less than 1. [-]
    output_variation : Coefficient of variation v of the outputs. [-]

    Returns
    -------
    Array : Length over the mean length, 0 or more. [-]

    References
    ----------
    .. [1] J. R. M. Hosking and J. R. Wallis, "Parameter and quantile estimation for the generalized Pareto
       distribution", Technometrics 29(3), 1987, doi:10.1080/00401706.1987.10488243.

    Equal lengths; uniform between 0 and twice the mean; exponential; a long tail:

    >>> output_length(0.9, [0.0, 3.0**-0.5, 1.0, 2.0]).round(3).tolist()
    [1.0, 1.8, 2.303, 2.287]
    """
    share, variation = array(share), array(output_variation)
    uniform = 1.0 + _ROOT_OF_THREE * variation * (2.0 * share - 1.0)
    tail = 0.5 * (1.0 - 1.0 / np.maximum(variation, 1.0 / _ROOT_OF_THREE) ** 2)
    hazard, exponential = -log(1.0 - share), tail == 0.0
    long = (1.0 - tail) * np.where(exponential, hazard, expm1(tail * hazard) / np.where(exponential, 1.0, tail))
    return np.asarray(np.where(variation * _ROOT_OF_THREE <= 1.0, uniform, long))


def longest_output(requests: Numeric, output_variation: Numeric) -> Array:
    """Excess length of the longest of n outputs over the mean length, relative to the mean.

    The largest of n draws is near the quantile n / (n + 1) [1]_.

    Parameters
    ----------
    requests : Outputs n, 1 or more. [-]
    output_variation : Coefficient of variation of the outputs. [-]

    Returns
    -------
    Array : 0 or more; 0 for one output and for equal outputs. [-]

    References
    ----------
    .. [1] H. A. David and H. N. Nagaraja, "Order Statistics", 3rd ed., Wiley, 2003, chapter 4: the largest of n.

    The longest of three is 1.5 times the mean if lengths are uniform from 0:

    >>> longest_output([1.0, 3.0, 99.0], 3.0**-0.5).round(3).tolist()
    [0.0, 0.5, 0.98]
    """
    number = array(requests)
    return np.maximum(output_length(number / (number + 1.0), output_variation) - 1.0, 0.0)


def run_rate(
    service: Service, active: Array, run_requests: Array, rate: Array, cycle: Array, output_variation: Numeric = 0.0
) -> Array:
    r"""Requests per second over a finite run: whole waves, then a smaller one.

    A wave of r requests takes their prefills, t_s each, and s steps of t(r); the last wave holds the remainder. The
    excess w of the cycle T adds to each wave. Varying outputs extend the run until the longest of a full wave ends,
    x(n) of :func:`longest_output`, in steps charged as empty steps.

    .. math:: X = \frac{N}{N t_s + \lfloor N / r \rfloor s\,t(r) + s\,t(N \bmod r) + \lceil N / r \rceil w + d},
        \qquad w = \max\left(T - r\,t_s - s\,t(r),\; 0\right), \qquad d = s\,x(\min(r, N))\,t(0)

    References
    ----------
    .. [1] NVIDIA, TensorRT-LLM documentation, "Overview" of performance: throughput of a fixed number of requests.
    """
    total = np.maximum(np.where(np.isnan(run_requests), 1.0, run_requests), 1.0)
    together = np.minimum(active, total)
    waves = np.floor(total / together)
    remainder = total - waves * together
    last = np.where(remainder > 0.0, service.step_time(remainder), 0.0)
    excess = np.maximum(cycle - active * service.added_share - service.decode_steps * service.step_time(active), 0.0)
    time = total * service.added_share + service.decode_steps * (waves * service.step_time(together) + last)
    time = time + np.ceil(total / together) * excess
    time = time + service.decode_steps * longest_output(together, output_variation) * service.step_base
    return np.asarray(np.where(np.isnan(run_requests), rate, total / time + 0.0 * rate))


def first_of_run(run_requests: Array, requests: Array) -> Array:
    """Fraction of the requests of a run that start it at once.

    Parameters
    ----------
    run_requests : Requests of the run, (rows,); NaN: without end. [-]
    requests : Requests in flight that fit into the cache, (rows,). [-]

    Returns
    -------
    Array : 0 to 1; 0 without end, (rows,). [-]

    References
    ----------
    .. [1] SemiAnalysis, InferenceX, benchmark_serving.py: as many requests as may be in flight are sent at once.

    >>> first_of_run([100.0, 4.0, np.nan], 10.0).tolist()
    [0.1, 1.0, 0.0]
    """
    run, started = array(run_requests), array(requests)
    return np.where(np.isnan(run), 0.0, np.minimum(started / np.maximum(run, 1.0), 1.0))


def run_wait(queue: Array, requests: Array, run_requests: Array) -> Array:
    r"""Mean wait for a free place over the requests of a finite run.

    Later requests find a queue as in the steady state. Of the c initial ones the first waits for nothing and the last
    as long as a later request: half of that on average.

    .. math:: w = q \left(1 - \frac{\min(c, N)}{2 N}\right)

    Parameters
    ----------
    queue : Wait q in the steady state, (rows,). [s]
    requests : Requests c in flight, (rows,). [-]
    run_requests : Requests N of the run, (rows,); NaN: without end. [-]

    Returns
    -------
    Array : (rows,). [s]

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
    r"""Fraction of the requests of a run that keep arriving in bursts, because their predecessors end in the same step.

    Requests of equal length that take all their steps together end together: a whole burst if prefills have priority,
    else the requests of one pass. Requests that end in different steps start no burst. Lengths are uniform.

    .. math:: s = \frac{1}{\max(2 \sqrt{3}\,v\,N, 1)}

    Parameters
    ----------
    steps : Decode steps N per request, (rows,). [-]
    in_step : 1 where such requests take all their steps together, else 0, (rows,). [-]
    output_variation : Coefficient of variation v of the outputs, (rows,). [-]

    Returns
    -------
    Array : 0 to 1, (rows,). [-]

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
    r"""Fraction of the in-flight requests that arrive at the same moment when outputs differ in length.

    Each request replaces one that ends. Requests that started together end over 2 sqrt(3) v of the mean length
    (uniform lengths). If that is short, arrivals are bunched; at the mean length, waves overlap and arrivals are
    Poisson. Heuristic, this work.

    .. math:: b = \sigma \max\left(1 - 2 \sqrt{3}\,v,\; 0\right)

    Parameters
    ----------
    burst_fraction : Fraction sigma of the in-flight requests that arrive at the same moment with equal outputs. [-]
    output_variation : Coefficient of variation v of the outputs. [-]

    Returns
    -------
    Array : 0 to sigma. [-]

    References
    ----------
    .. [1] SGLang, bench_serving.py: --random-range-ratio is 0 by default, lengths between 1 and the stated one.

    Lengths between 0.8 times the maximum and the maximum have v = 0.0642; between 0 and the maximum 0.577.

    >>> coming_together(0.05, [0.0, 0.0642, 0.577]).round(4).tolist()
    [0.05, 0.0389, 0.0]
    """
    spread = 2.0 * _ROOT_OF_THREE * array(output_variation)
    return np.asarray(array(burst_fraction) * np.maximum(1.0 - spread, 0.0))


def in_turn(service: Service, steady: Steady, pass_time: Array, group: Array, requests: Array) -> Steady:
    r"""Steady state of requests of equal length that keep arriving in the groups of one prefill pass.

    Requests of one pass end in one step, and their successors share a pass again. The groups of a burst end one step
    after another: in the step with the pass of one group the next group ends, and its successors wait for another such
    step. Only the first group waits for none. A prompt saves delta in such a step of t. The wait is at least that of
    unsynchronised prompts, and at most the part of the cycle without steps.

    .. math:: w = \max\left(\left(t_p + t - g\,\delta\right) \left(1 - \frac{g}{c}\right),\; w_{steady}\right)

    Heuristic, this work, validated with a step-by-step simulation. Late successors make groups, and waits, grow.

    References
    ----------
    .. [1] vLLM documentation, "Optimization and tuning": a step takes prompts up to a number of tokens.
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
    [0, 1], but for at most n passes of p in n steps. The mean over requests of time per token [1]_ grows because short
    answers, max(N x, 1) steps with lengths x of :func:`output_length`, spread the wait over fewer tokens.

    .. math:: \Delta = G(v) - G(0), \qquad G = \mathrm{E}\left[\min\left(\frac{U S}{n}, p\right)\right] =
        \mathrm{E}\left[m - \frac{m^2 n}{2 S}\right], \qquad m = \min\left(\frac{S}{n}, p\right)

    Quantile q: a request of length quantile 1 - q that waits for half of the stall, at most p a step, less the same
    with N steps, 0 at least.

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

    References
    ----------
    .. [1] vLLM, benchmarks/benchmark_serving.py: mean_tpot_ms is the mean of (latency - ttft) / (tokens - 1).

    Prefills first, lengths between 0 and 200: the mean of 1 / n is (1 + ln 200) / 200; equal lengths: 1 / 100.

    >>> added = uneven_time(np.array([10.0, 10.0]), np.array([100.0]), np.array([np.inf]), np.array([0.0, 3.0**-0.5]))
    >>> [times.round(3).tolist() for times in added]
    [[0.0, 0.108], [0.0, 0.0], [0.0, 0.2], [0.0, 2.45]]
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

    References
    ----------
    .. [1] SemiAnalysis, InferenceX, benchmark_serving.py: means over all requests of a run.
    """
    share = first + (1.0 - first) * together
    ends = ~np.isnan(run_requests)
    pairs = zip(burst, steady, strict=True)
    return Steady(*(np.where(ends, early * share + late * (1.0 - share), late) for early, late in pairs))
