"""Runs that end: a benchmark that sends a fixed number of requests."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, array
from xlperf.equations.serving.load import Service, Steady

_ROOT_OF_THREE = 1.7320508075688772


def run_rate(service: Service, active: Array, run_requests: Array, rate: Array) -> Array:
    r"""Requests per second over a run that ends with its last request: whole waves, then a smaller one.

    .. math:: X = \frac{N}{N t_s + \lfloor N / r \rfloor s\,t(r) + s\,t(N \bmod r)}

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

    Returns
    -------
    Array
        (rows,). [request/s]

    References
    ----------
    .. [1] NVIDIA, TensorRT-LLM documentation, "Overview" of performance: throughput of a fixed number of requests.
    """
    total = np.maximum(np.where(np.isnan(run_requests), 1.0, run_requests), 1.0)
    together = np.minimum(active, total)
    waves = np.floor(total / together)
    rest = total - waves * together
    last = np.where(rest > 0.0, service.step_time(rest), 0.0)
    time = total * service.prefill_share + service.steps * (waves * service.step_time(together) + last)
    return np.asarray(np.where(np.isnan(run_requests), rate, total / time + 0.0 * rate))


def first_of_run(run_requests: Array, requests: Array) -> Array:
    """Share of the requests of a run that it starts with.

    Parameters
    ----------
    run_requests : Array
        Requests of the run, (rows,); NaN: without end. [-]
    requests : Array
        Requests in flight, (rows,). [-]

    Returns
    -------
    Array
        0 to 1; 0 without end, (rows,). [-]

    References
    ----------
    .. [1] SemiAnalysis, InferenceX, benchmark_serving.py: as many requests as may be in flight are sent at once.
    """
    run, started = array(run_requests), array(requests)
    return np.where(np.isnan(run), 0.0, np.minimum(started / np.maximum(run, 1.0), 1.0))


def staying_together(steps: Array, prefill_first: Array, output_variation: Array) -> Array:
    r"""Share of the requests of a run that keep coming in bursts, because those before them end in the same step.

    Where what waits is prefilled before anything is decoded on, requests that come together take all their steps
    together, and those of the same length end together. While prompts are prefilled nobody ends: those that end in
    different steps do not add to a burst. Lengths are spread evenly, with coefficient of variation v.

    .. math:: s = \frac{1}{\max(2 \sqrt{3}\,v\,N, 1)}

    Parameters
    ----------
    steps : Array
        Steps N of decoding that a request takes, (rows,). [-]
    prefill_first : Array
        1 where prompts go before all decoding, 0 where both share a step, (rows,). [-]
    output_variation : Array
        Coefficient of variation of the outputs, (rows,). [-]

    Returns
    -------
    Array
        0 to 1, (rows,). [-]

    References
    ----------
    .. [1] SGLang documentation, server arguments: enable-mixed-chunk is off by default.
    """
    spread = 2.0 * _ROOT_OF_THREE * array(output_variation) * array(steps)
    return np.asarray(array(prefill_first) / np.maximum(spread, 1.0))


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
    """
    share = first + (1.0 - first) * together
    ends = ~np.isnan(run_requests)
    pairs = zip(burst, steady, strict=True)
    return Steady(*(np.where(ends, early * share + late * (1.0 - share), late) for early, late in pairs))
