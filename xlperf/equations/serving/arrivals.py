"""When an engine takes up the requests that have come."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, array


def turn(
    copies: Array, requests: Array, steps: Array, polling_steps: Array, gathering_steps: Array
) -> tuple[Array, Array]:
    r"""Steps of decoding in which requests come that are taken up together, and how many one of them waits.

    An engine looks at what has come every p steps. One with copies of the attention layers may hold prompts back until
    each of the d copies has one, g steps at most; the first waits for all that time, others come meanwhile.

    .. math:: w = \frac{p}{2} + T\,\frac{1 + \lambda T / 2}{1 + \lambda T}, \qquad
        T = \min\left(g, \frac{d}{\lambda}\right), \qquad \lambda = \frac{r}{N}

    Parameters
    ----------
    copies : Array
        Copies d of the attention layers, (rows,). [-]
    requests : Array
        Requests r in flight on a replica, (rows,) or (number, rows). [-]
    steps : Array
        Steps N of decoding that a request takes, (rows,). [-]
    polling_steps : Array
        Steps p from one look at the requests that have come to the next, (rows,). [-]
    gathering_steps : Array
        Steps g that a prompt waits at most for prompts for the other copies, (rows,). [-]

    Returns
    -------
    window : Array
        Steps that go by, in the shape of the requests. [-]
    wait : Array
        Mean wait in steps, in the shape of the requests. [-]

    References
    ----------
    .. [1] SGLang documentation, server arguments: scheduler-recv-interval.
    .. [2] NVIDIA, TensorRT-LLM API reference, AttentionDpConfig: enable_balance, timeout_iters.
    """
    polling, gathering = array(polling_steps), array(gathering_steps)
    flowing = array(requests) / np.maximum(array(steps), 1.0)
    many = array(copies)
    held = np.where(many > 1.0, np.minimum(gathering, many / flowing), 0.0 * many)
    come = flowing * held
    wait = held * (1.0 + 0.5 * come) / (1.0 + come)
    return np.asarray(np.maximum(polling, held)), np.asarray(0.5 * polling + wait)
