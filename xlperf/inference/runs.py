"""Runs that end: a benchmark that sends a fixed number of requests."""

from __future__ import annotations

import numpy as np

from xlperf.arrays import Array
from xlperf.inference.load import Service


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
