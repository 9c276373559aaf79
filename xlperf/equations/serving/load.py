"""Per-request workload of a serving replica: decode steps, prompts of a prefill pass, batches that are timed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, array, divide, expm1, octave_below
from xlperf.equations.plan.serving_plan import InferencePlan
from xlperf.equations.serving.queueing import Service, step_line

UNBOUNDED = 65536.0
"""Requests in flight at most where requests arrive and the memory has room for none: numbers are kept. [-]"""
_RARE = 0.05
"""Prompts that come with another one and are left out. [-]"""
_LENGTHS = 0.1
"""Share by which prompts of one load differ in length, at the least. [-]"""
_MANY_ROWS = 32768.0
"""Rows of a product from which on the padding of a tile is a small part. [-]"""


class RequestLoad(NamedTuple):
    """Per-request workload of a serving replica, independent of its batch size, (rows,).

    Attributes
    ----------
    decode_steps : Array
        Decode steps per request. [-]
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
    own_tokens : Array
        New tokens of a prompt on one of the ranks that share it. [-]
    pass_tokens : Array
        Most tokens of a prefill pass. [-]
    mixed : Array
        1 where a prefill pass is computed together with a decode step, 0 where they alternate. [-]
    balance_rows : Array
        Rows of a product from which on it is compute-bound. [-]
    """

    decode_steps: Array
    max_prefill_prompts: Array
    pipeline_stages: Array
    burst_fraction: Array
    attention_replicas: Array
    polling_steps: Array
    gathering_steps: Array
    decode_stages: Array
    tokens_checked: Array
    own_tokens: Array
    pass_tokens: Array
    mixed: Array
    balance_rows: Array

    def take(self, rows: np.ndarray) -> RequestLoad:
        """The same of some of the plans."""
        return RequestLoad(*(values[rows] for values in self))

    def prompts(self, requests: Array) -> Array:
        r"""Prompts batched into a prefill pass, mean: those that come until they are admitted, or in a burst. [-]

        Heuristic, this work: x prompts arrive at random between two scheduler polls; a poll that finds any finds m on
        average, the mean of a Poisson count that is not zero. A second prompt found in fewer than one poll in 20 is
        neglected.

        .. math:: m = \max\left(\frac{x}{1 - e^{-x}}, \sigma r\right), \qquad x = r \min\left(\frac{w}{N}, 1\right)
        """
        window, _ = self._admission(requests)
        coming = requests * np.minimum(window / np.maximum(self.decode_steps, 1.0), 1.0)
        found = divide(coming, -expm1(-coming), 1.0)
        found = np.where(found < 2.0, 1.0 + np.maximum(found - 1.0 - _RARE, 0.0) / (1.0 - _RARE), found)
        found = np.minimum(np.maximum(found, self.burst_fraction * requests), requests)
        return np.asarray(np.clip(found, 1.0, self.max_prefill_prompts))

    def _admission(self, requests: Array) -> tuple[Array, Array]:
        return admission(self.attention_replicas, requests, self.decode_steps, self.polling_steps, self.gathering_steps)

    def service(self, requests: Array, cycle: Cycle, half: Array) -> Service:
        """Service demand of a request on a replica, from step times at the batch sizes given.

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
        line, (_, wait) = step_line(requests, cycle.step, half_of(requests), half), self._admission(requests)
        share = (cycle.prefills + np.maximum(requests - 1.0, 0.0) * cycle.saving) / requests
        longest = np.where(self.mixed > 0.0, cycle.longest, np.inf)
        return Service(cycle.prefill, share, *line, self.decode_steps, self.burst_fraction, wait, cycle.saving, longest)

    def passes(self, prompts: Array) -> Array:
        """Prefill passes of some prompts; the next prompt fills up the last one. [-]"""
        own = np.ceil(prompts / self.attention_replicas) * self.own_tokens
        return np.asarray(np.maximum(own / self.pass_tokens, 1.0))

    def mixed_times(
        self, batch: Array, prompts: Array, prefill: Array, step_parts: Array, prefill_parts: Array
    ) -> tuple[Array, Array]:
        r"""Time that the prefill of some prompts saves in the steps of a batch, and what a pass adds to a step. [s, s]

        A pass of C tokens and a step of b share the weights, which are read once, and the gaps between kernels. With
        times t of matrix products, w of the gaps, and R rows from which on a product is compute-bound:

        .. math:: \delta = t(C) + t(b) - t(C + b) + \min(w_C, w_b)

        .. math:: t(C + b) = \max\left(t(C), t(b), \min\left(t(C)\,\frac{C + b}{C},\; t(b)\,\frac{C + b}{b},\;
            \min(t(C), t(b))\,\frac{C + b}{R}\right)\right)

        A request shares no more passes than it has decode steps: N for each b prompts. Heuristic, this work.
        """
        passes = self.passes(prompts)
        chunk, rows = prompts * self.own_tokens / passes, batch * self.tokens_checked
        step, alone = step_parts[..., 0], prefill_parts[..., 0] / passes
        every, read = chunk + rows, np.minimum(step, alone)
        both = np.minimum(np.minimum(alone / chunk, step / rows), read / self.balance_rows) * every
        both = np.maximum(np.maximum(step, alone), both)
        gaps = np.minimum(step_parts[..., 1], prefill_parts[..., 1] / passes)
        shared = np.minimum(passes, self.decode_steps * prompts / batch)
        saving = step + alone - both + gaps
        return np.asarray(self.mixed * shared * saving), np.asarray(self.mixed * (prefill / passes - saving))

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
        Time that the prefills of all of them add to their decode steps. [s]
    saving : Array
        Time that a prompt takes less in the decode steps of others than by itself. [s]
    longest : Array
        Time that a pass of it adds to such a step, 0 where they alternate. [s]
    """

    step: Array
    prefill: Array
    prompts: Array
    prefills: Array
    saving: Array
    longest: Array


def admission(
    attention_replicas: Array, requests: Array, decode_steps: Array, polling_steps: Array, gathering_steps: Array
) -> tuple[Array, Array]:
    r"""Decode steps over which arriving requests are admitted together, and the mean wait of one of them.

    A scheduler polls for requests every p steps. With data-parallel attention it may hold prompts back until each of
    the d replicas has one, g steps at most. The first prompt waits for all that time T; of the others, of which
    lambda T arrive meanwhile, each waits for half of it: the mean is the second term.

    .. math:: w = \frac{p}{2} + T\,\frac{1 + \lambda T / 2}{1 + \lambda T}, \qquad
        T = \min\left(g, \frac{d}{\lambda}\right), \qquad \lambda = \frac{r}{N}

    Parameters
    ----------
    attention_replicas : Array
        Data-parallel replicas d of the attention layers, (rows,). [-]
    requests : Array
        Requests r in flight on a replica, (rows,) or (number, rows). [-]
    decode_steps : Array
        Decode steps N per request, (rows,). [-]
    polling_steps : Array
        Decode steps p between two scheduler polls, (rows,). [-]
    gathering_steps : Array
        Most decode steps g that a prompt waits for prompts of the other replicas, (rows,). [-]

    Returns
    -------
    window : Array
        Decode steps in which requests admitted together arrive, in the shape of the requests. [-]
    wait : Array
        Mean wait in decode steps, in the shape of the requests. [-]

    References
    ----------
    .. [1] SGLang documentation, server arguments: scheduler-recv-interval.
    .. [2] NVIDIA, TensorRT-LLM API reference, AttentionDpConfig: enable_balance, timeout_iters.

    Ten steps between polls: five on average; gathering four prompts at 8 requests in 100 steps takes 50 steps at most:

    >>> window, wait = admission(1.0, 8.0, 100.0, 10.0, 20.0)
    >>> float(window), float(wait)
    (10.0, 5.0)
    >>> window, _ = admission(4.0, 8.0, 100.0, 10.0, 60.0)
    >>> float(window)
    50.0
    """
    polling, gathering = array(polling_steps), array(gathering_steps)
    arriving = array(requests) / np.maximum(array(decode_steps), 1.0)
    many = array(attention_replicas)
    held = np.where(many > 1.0, np.minimum(gathering, many / arriving), 0.0 * many)
    come = arriving * held
    wait = held * (1.0 + 0.5 * come) / (1.0 + come)
    return np.asarray(np.maximum(polling, held)), np.asarray(0.5 * polling + wait)


def octave(number: Array, most: Array) -> tuple[Array, Array]:
    r"""The powers of two below and above a number, the larger at the most ``most``; the same for a power of two.

    Heuristic, this work: times are computed at powers of two and linear in between.

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
    lower = octave_below(np.maximum(between, 1.0)) + 0.0 * array(most)
    return np.asarray(lower), np.where(between > lower, np.minimum(2.0 * lower, most), lower)


def bounded_rise(lower: Array, upper: Array, time: Array, upper_time: Array) -> Array:
    r"""Time with the larger of two batches: not below that of the smaller one, nor more in proportion.

    Heuristic, this work: a batch just above whole tiles computes almost a tile of padding. A scheduler then serves
    requests as fast with decode steps of the smaller batch only, which take b2 / b1 times as long for all of them.

    .. math:: t = \min\left(\max(t_2, t_1), \frac{b_2}{b_1} t_1\right)

    >>> bounded_rise(1.0, 2.0, 3.0, np.array([2.0, 4.0, 9.0])).tolist()
    [3.0, 4.0, 6.0]

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


def whole_of(prompts: Array) -> Array:
    r"""Whole prompts of a pass, mean over prompts that are not all of the same length.

    Heuristic, this work: where almost one more would fit, some passes take it: those of the shorter prompts.

    .. math:: n = \lfloor x \rfloor + \max\left(1 - \frac{1 - (x - \lfloor x \rfloor)}{w}, 0\right)

    >>> whole_of(np.array([2.0, 2.5, 2.95, 3.0])).round(9).tolist()  # 2.95: 0.05 / 0.1 are lacking
    [2.0, 2.0, 2.5, 3.0]

    Parameters
    ----------
    prompts : Array
        Prompts x of the mean length that a pass has tokens for. [-]

    Returns
    -------
    Array
        Mean number n. [-]
    """
    least = np.floor(prompts)
    return np.asarray(least + np.maximum(1.0 - (1.0 + least - prompts) / _LENGTHS, 0.0))


def request_load(
    plan: InferencePlan,
    prefilling: InferencePlan,
    burst_fraction: Array,
    mixed: Array,
    balance_rows: Array,
    whole_prompts: bool = False,
) -> RequestLoad:
    """Per-request workload of the replicas of plans.

    An engine that decodes between its passes fills them up with a part of the next prompt; a pool that prefills alone
    takes whole prompts, as its engines are run.

    Parameters
    ----------
    plan : InferencePlan
        Of the replicas that decode, (rows,).
    prefilling : InferencePlan
        Of those that prefill, (rows,).
    burst_fraction : Array
        Fraction of the in-flight requests that arrive at the same moment, (rows,). [-]
    mixed : Array
        1 where a prefill pass is computed together with a decode step, else 0, (rows,). [-]
    balance_rows : Array
        Rows of a product from which on it is compute-bound, (rows,). [-]
    whole_prompts : bool, default False
        Whether a pass takes whole prompts alone.

    Returns
    -------
    RequestLoad
        Steps, prompts and stages, (rows,).

    Examples
    --------
    99 steps after the first token; two replicas take 8.192 prompts of 1,000 tokens each in a pass of 8,192.

    >>> from types import SimpleNamespace
    >>> steps = {"tokens_after_first": 99.0, "tokens_per_step": 1.0, "polling_steps": 1.0, "gathering_steps": 0.0}
    >>> sizes = {"prefill_tokens": 8192.0, "own_tokens": 1000.0, "data_parallel_attention": 2.0}
    >>> plan = SimpleNamespace(**steps, **sizes, pipeline_parallel=1.0, draft_tokens=0.0)
    >>> load = request_load(plan, plan, 0.0, 1.0, 256.0)
    >>> load.decode_steps, float(load.max_prefill_prompts)
    (99.0, 16.384)
    """
    taken = np.maximum(prefilling.prefill_tokens / prefilling.own_tokens, 1.0)
    taken = whole_of(taken) if whole_prompts else taken
    return RequestLoad(
        plan.tokens_after_first / plan.tokens_per_step,
        prefilling.data_parallel_attention * taken,
        prefilling.pipeline_parallel,
        burst_fraction,
        plan.data_parallel_attention,
        plan.polling_steps,
        plan.gathering_steps,
        plan.pipeline_parallel,
        1.0 + plan.draft_tokens,
        prefilling.own_tokens,
        prefilling.prefill_tokens,
        mixed,
        balance_rows,
    )


def half_of(batch: Array) -> Array:
    r"""Half of a batch: the other end of the line that gives the time of one more request (heuristic, this work).

    .. math:: b_2 = \max\left(\left\lfloor \frac{b}{2} \right\rfloor, 1\right)

    >>> half_of(np.array([1.0, 7.0])).tolist()
    [1.0, 3.0]

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
