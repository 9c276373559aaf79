"""Per-request workload of a serving replica: decode steps, prompts of a prefill pass, batches that are timed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, array, divide
from xlperf.equations.plan.serving_plan import InferencePlan
from xlperf.equations.serving.queueing import Service, step_line

UNBOUNDED = 65536.0
"""Requests in flight at most where requests arrive and the memory has room for none: numbers are kept. [-]"""
_RARE = 0.05
"""Prompts that come with another one and are left out. [-]"""
_MANY_ROWS = 32768.0
"""Rows of a product from which on the padding of a tile is a small part. [-]"""


class RequestLoad(NamedTuple):
    """Per-request workload of a serving replica, independent of its batch size, (rows,).

    Attributes
    ----------
    decode_steps : Array
        Decode steps per request. [-]
    tokens_per_step : Array
        Tokens generated per decode step; above 1 with speculative decoding. [-]
    max_prefill_prompts : Array
        Largest number of prompts batched into one prefill pass, 1 or more. [-]
    pipeline_stages : Array
        Pipeline stages of the prefill replica. [-]
    burst_fraction : Array
        Fraction of the in-flight requests that arrive at the same moment. [-]
    attention_replicas : Array
        Data-parallel replicas of the attention layers. [-]
    polling_steps : Array
        Decode steps between two scheduler polls for new requests. [-]
    gathering_steps : Array
        Most decode steps that a prompt waits for prompts of the other attention replicas. [-]
    decode_stages : Array
        Pipeline stages of the decode replica. [-]
    tokens_checked : Array
        Tokens of a sequence in one decode step: 1 plus the drafted ones. [-]
    """

    decode_steps: Array
    tokens_per_step: Array
    max_prefill_prompts: Array
    pipeline_stages: Array
    burst_fraction: Array
    attention_replicas: Array
    polling_steps: Array
    gathering_steps: Array
    decode_stages: Array
    tokens_checked: Array

    def take(self, rows: np.ndarray) -> RequestLoad:
        """That of some of the plans."""
        return RequestLoad(*(values[rows] for values in self))

    def prompts(self, requests: Array) -> Array:
        r"""Prompts batched into a prefill pass, mean: those that come until they are taken up, or in a burst. [-]

        Heuristic, this work: x prompts arrive at random between two scheduler polls; a poll that finds any finds m on
        average, the mean of a Poisson count that is not zero. A second prompt found in fewer than one poll in 20 is
        neglected.

        .. math:: m = \max\left(\frac{x}{1 - e^{-x}}, \sigma r\right), \qquad x = r \min\left(\frac{w}{N}, 1\right)
        """
        window, _ = self._turn(requests)
        coming = requests * np.minimum(window / np.maximum(self.decode_steps, 1.0), 1.0)
        found = divide(coming, -np.expm1(-coming), 1.0)
        found = np.where(found < 2.0, 1.0 + np.maximum(found - 1.0 - _RARE, 0.0) / (1.0 - _RARE), found)
        found = np.minimum(np.maximum(found, self.burst_fraction * requests), requests)
        return np.asarray(np.clip(found, 1.0, self.max_prefill_prompts))

    def _turn(self, requests: Array) -> tuple[Array, Array]:
        return turn(self.attention_replicas, requests, self.decode_steps, self.polling_steps, self.gathering_steps)

    def service(self, requests: Array, cycle: Cycle, half: Array) -> Service:
        """What a replica needs for a request, from its times with a number of them.

        Parameters
        ----------
        requests : Array
            Requests in flight. [-]
        cycle : Cycle
            Times with them.
        half : Array
            Time of a step with half of them, as :func:`half_of` has it. [s]

        Returns
        -------
        Service
            Its times: a step is linear in the requests that it decodes.
        """
        line, (_, wait) = step_line(requests, cycle.step, half_of(requests), half), self._turn(requests)
        share = cycle.prefills / requests
        return Service(cycle.prefill, share, *line, self.decode_steps, self.burst_fraction, wait)

    def shared(self, batch: Array, prompts: Array, prefill: Array) -> Array:
        """Time of the replica per prompt, where passes of the prefill follow each other through the stages. [s]"""
        passes = np.maximum(np.minimum(self.pipeline_stages, batch / prompts), 1.0)
        return np.asarray(prefill / (prompts * passes))

    def whole_batches(self, requests: Array, most: Array) -> tuple[Array, Array]:
        """Batches on both sides of a number of requests that are computed operator by operator. [-]

        They are the powers of two and the most that there is room for. Products of batches in between pad whole tiles
        by turns more and less; the time of a step is taken as linear there. For the most requests alone the smaller
        batch is asked for only where a tile is much of it.
        """
        lower, upper = octave(requests, most)
        rows = np.ceil(most / (self.attention_replicas * self.decode_stages)) * self.tokens_checked
        alone = (requests == most) & (rows > _MANY_ROWS)
        return np.where(alone, upper, lower), upper


class Cycle(NamedTuple):
    """Times of a replica with a number of requests in flight.

    Attributes
    ----------
    step : Array
        Time of a step that decodes all of them. [s]
    prefill : Array
        Time of a pass of the prefill. [s]
    prompts : Array
        Prompts of a pass, mean. [-]
    prefills : Array
        Time of the passes that prefill all of them. [s]
    """

    step: Array
    prefill: Array
    prompts: Array
    prefills: Array


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


def octave(number: Array, most: Array) -> tuple[Array, Array]:
    r"""The powers of two on both sides of a number, the larger at the most ``most``; the same for one of them.

    .. math:: n_1 = 2^{\lfloor \log_2 n \rfloor}, \qquad n_2 = \min(2 n_1, n_{max})

    >>> [side.tolist() for side in octave(np.array([1.0, 2.5, 5.0]), np.array([6.0, 6.0, 6.0]))]
    [[1.0, 2.0, 4.0], [1.0, 4.0, 6.0]]

    Parameters
    ----------
    number : Array
        Number n, 1 or more, up to the largest. [-]
    most : Array
        Largest number. [-]

    Returns
    -------
    tuple of Array
        The smaller and the larger. [-]
    """
    between = array(number)
    lower = np.exp2(np.floor(np.log2(np.maximum(between, 1.0)))) + 0.0 * array(most)
    return np.asarray(lower), np.where(between > lower, np.minimum(2.0 * lower, most), lower)


def bounded_rise(lower: Array, upper: Array, time: Array, upper_time: Array) -> Array:
    r"""Time with the larger of two batches: not below that of the smaller one, nor more in proportion.

    With a batch just above whole tiles products compute almost a tile of padding. Requests are then served as fast
    where each step decodes only as many as the smaller batch, in turn.

    .. math:: t = \min\left(\max(t_2, t_1), \frac{b_2}{b_1} t_1\right)

    Parameters
    ----------
    lower : Array
        Smaller batch b1. [-]
    upper : Array
        Larger batch b2. [-]
    time : Array
        Time t1 with the former. [s]
    upper_time : Array
        Time t2 with the latter. [s]

    Returns
    -------
    Array
        Time with the latter. [s]
    """
    least = array(time)
    return np.asarray(np.minimum(np.maximum(upper_time, least), least * (array(upper) / array(lower))))


def split_passes(prompts: Array) -> tuple[Array, Array]:
    r"""Prompts of the passes of a prefill that takes a mean number: some take one more than the others.

    .. math:: k_1 = \lfloor m \rfloor, \qquad k_2 = \lceil m \rceil

    Parameters
    ----------
    prompts : Array
        Mean number m of prompts of a pass. [-]

    Returns
    -------
    tuple of Array
        Prompts of the smaller and of the larger passes. [-]
    """
    return np.asarray(np.floor(prompts)), np.asarray(np.ceil(prompts))


def mean_pass(prompts: Array, smaller: Array, larger: Array) -> Array:
    r"""Mean time of passes of the prefill, some with a prompt more than the others.

    .. math:: t = (1 - f)\,t_1 + f\,t_2, \qquad f = m - \lfloor m \rfloor

    Parameters
    ----------
    prompts : Array
        Mean number m of prompts of a pass. [-]
    smaller : Array
        Time t1 of a pass with as many, rounded down. [s]
    larger : Array
        Time t2 of a pass with one more. [s]

    Returns
    -------
    Array
        Between both. [s]
    """
    share = array(prompts) - np.floor(prompts)
    return np.asarray((1.0 - share) * array(smaller) + share * array(larger))


def request_load(plan: InferencePlan, prefilling: InferencePlan, burst_fraction: Array) -> RequestLoad:
    """Per-request workload of the replicas of plans.

    Parameters
    ----------
    plan : InferencePlan
        Of the replicas that decode, (rows,).
    prefilling : InferencePlan
        Of those that prefill, (rows,).
    burst_fraction : Array
        Fraction of the in-flight requests that arrive at the same moment, (rows,). [-]

    Returns
    -------
    RequestLoad
        Steps, prompts and stages, (rows,).
    """
    taken = np.maximum(np.floor(prefilling.prefill_tokens / prefilling.own_tokens), 1.0)
    return RequestLoad(
        plan.tokens_after_first / plan.tokens_per_step,
        plan.tokens_per_step,
        prefilling.data_parallel_attention * taken,
        prefilling.pipeline_parallel,
        burst_fraction,
        plan.data_parallel_attention,
        plan.polling_steps,
        plan.gathering_steps,
        plan.pipeline_parallel,
        1.0 + plan.draft_tokens,
    )


def half_of(batch: Array) -> Array:
    r"""The smaller batch that the time of a step with one more request is found from.

    .. math:: b_2 = \max\left(\left\lfloor \frac{b}{2} \right\rfloor, 1\right)

    Parameters
    ----------
    batch : Array
        Requests, (rows,). [-]

    Returns
    -------
    Array
        Half of them, whole, 1 or more, (rows,). [-]
    """
    return np.asarray(np.maximum(np.floor(0.5 * array(batch)), 1.0))
