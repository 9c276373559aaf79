"""When an engine takes up the requests that have come, and how many of them together."""

from __future__ import annotations

import numpy as np

from xlperf.arrays import Array
from xlperf.parallel.serving_plan import InferencePlan


def turn(
    plan: InferencePlan, requests: Array, steps: Array, polling_steps: Array, gathering_steps: Array
) -> tuple[Array, Array]:
    r"""Steps of decoding in which requests come that are taken up together, and how many one of them waits.

    An engine looks at what has come every p steps. One with copies of the attention layers may hold prompts back until
    each of the d copies has one, g steps at most; the first waits for all that time, others come meanwhile.

    .. math:: w = \frac{p}{2} + T\,\frac{1 + \lambda T / 2}{1 + \lambda T}, \qquad
        T = \min\left(g, \frac{d}{\lambda}\right), \qquad \lambda = \frac{r}{N}

    Parameters
    ----------
    plan : InferencePlan
        Copies d of the attention layers, (rows,).
    requests : Array
        Requests r in flight on a replica, (rows,). [-]
    steps : Array
        Steps N of decoding that a request takes, (rows,). [-]
    polling_steps : Array
        Steps p from one look at the requests that have come to the next, (rows,). [-]
    gathering_steps : Array
        Steps g that a prompt waits at most for prompts for the other copies, (rows,). [-]

    Returns
    -------
    tuple of Array
        Steps that go by, and mean wait in steps, (rows,). [-]

    References
    ----------
    .. [1] SGLang documentation, server arguments: scheduler-recv-interval.
    .. [2] NVIDIA, TensorRT-LLM API reference, AttentionDpConfig: enable_balance, timeout_iters.
    """
    if not np.any(gathering_steps > 0.0):
        return polling_steps + 0.0 * steps, 0.5 * polling_steps + 0.0 * steps
    rate = requests / np.maximum(steps, 1.0)
    copies = plan.attention_replicas
    held = np.where(copies > 1.0, np.minimum(gathering_steps, copies / rate), 0.0)
    come = rate * held
    wait = held * (1.0 + 0.5 * come) / (1.0 + come)
    return np.asarray(np.maximum(polling_steps, held)), np.asarray(0.5 * polling_steps + wait)


def prompts_together(
    plan: InferencePlan, requests: Array, steps: Array, share: Array, window: Array
) -> Array:
    """Prompts that are prefilled together: those that come until they are taken up, or in a burst.

    Parameters
    ----------
    plan : InferencePlan
        Lengths, tokens of a pass, (rows,).
    requests : Array
        Requests in flight on a replica, (rows,). [-]
    steps : Array
        Steps of decoding that a request takes, (rows,). [-]
    share : Array
        Share of the requests in flight that come together, (rows,). [-]
    window : Array
        Steps of decoding in which requests come that are taken up together, (rows,). [-]

    Returns
    -------
    Array
        Whole number, 1 or more, and no more than a pass takes, (rows,). [-]
    """
    most = plan.attention_replicas * np.maximum(np.floor(plan.prefill_tokens / plan.own_tokens), 1.0)
    coming = np.maximum(requests * np.minimum(window / np.maximum(steps, 1.0), 1.0), share * requests)
    return np.maximum(np.minimum(np.floor(coming), most), 1.0)
