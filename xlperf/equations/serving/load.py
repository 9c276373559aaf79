"""Per-request workload of a serving replica, and the times of prefills and decode steps at several batch sizes.

The load on a replica is found from a few batches of the same plan. Those that are asked for together go through the
equations of the operators as rows of one call; what is known is not computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, array, divide, expm1, octave_below, total
from xlperf.equations.model.serving import BOTH_PHASES, DECODING, PREFILL
from xlperf.equations.plan.serving_plan import InferencePlan
from xlperf.equations.serving.deployment import Deployment
from xlperf.equations.serving.expert_pools import split_step
from xlperf.equations.serving.phases import (
    FIXED,
    MATRIX,
    phase_times,
    scaled_times,
    serving_bound,
    serving_work,
)
from xlperf.equations.serving.queueing import Service, step_line

_RARE = 0.05  # prompts that come with another one and are left out [-]
_LARGE = 4096.0  # requests from which on batches between powers of two are computed as well [-]
_LENGTHS = 0.1  # share by which prompts of one load differ in length, at the least [-]
_MANY_ROWS = 32768.0  # rows of a product from which on the padding of a tile is a small part [-]


class RequestLoad(NamedTuple):
    """Per-request workload of a serving replica, independent of its batch size, (rows,)."""

    decode_steps: Array  # decode steps per request [-]
    max_prefill_prompts: Array  # largest number of prompts batched into one prefill pass, 1 or more [-]
    pipeline_stages: Array  # pipeline stages of the prefill replica [-]
    burst_fraction: Array  # fraction of the in-flight requests that arrive at the same moment [-]
    attention_replicas: Array  # data-parallel replicas of the attention layers [-]
    polling_steps: Array  # decode steps between two scheduler polls for new requests [-]
    # Most decode steps that a prompt waits for prompts of the other attention replicas, or for a full pass [-]
    gathering_steps: Array
    decode_stages: Array  # pipeline stages of the decode replica [-]
    tokens_checked: Array  # tokens of a sequence in one decode step: 1 plus the drafted ones [-]
    own_tokens: Array  # new tokens of a prompt on one of the ranks that share it [-]
    pass_tokens: Array  # most tokens of a prefill pass [-]
    mixed: Array  # 1 where a prefill pass is computed together with a decode step, 0 where they alternate [-]
    balance_rows: Array  # rows of a product from which on it is compute-bound [-]

    def take(self, rows: np.ndarray) -> RequestLoad:
        """The same of some of the plans."""
        return RequestLoad(*(values[rows] for values in self))

    def prompts(self, requests: Array) -> Array:
        r"""Prompts batched into a prefill pass, mean: those that come until they are admitted, or in a burst. [-]

        Heuristic, this work: x prompts arrive at random between two scheduler polls; a poll that finds any finds m on
        average, the mean of a Poisson count that is not zero. A second prompt found in fewer than one poll in 20 is
        neglected. The requests of s stages are in as many batches, each in another stage: a pass takes those of one.

        .. math:: m = \min\left(\max\left(\frac{x}{1 - e^{-x}}, \sigma r\right), \frac{r}{s}\right), \qquad
            x = r \min\left(\frac{w}{N}, 1\right)
        """
        window, _ = self._admission(requests)
        coming = requests * np.minimum(window / np.maximum(self.decode_steps, 1.0), 1.0)
        found = divide(coming, -expm1(-coming), 1.0)
        found = np.where(found < 2.0, 1.0 + np.maximum(found - 1.0 - _RARE, 0.0) / (1.0 - _RARE), found)
        found = np.minimum(np.maximum(found, self.burst_fraction * requests), requests / self.pipeline_stages)
        return np.minimum(np.maximum(found, 1.0), self.max_prefill_prompts)

    def whole_prompts(self, mean: Array) -> tuple[Array, Array]:
        """Prompts of the passes that give a mean: whole ones; from one for each attention replica on, whole rounds.

        A pass lasts as long as that of the replica with most prompts: one prompt more than a round takes as long as
        another round, and a scheduler that has one left over need not take it before the next pass.
        """
        copies = np.where(mean > self.attention_replicas, self.attention_replicas, 1.0)
        lower, upper = np.floor(mean / copies) * copies, np.ceil(mean / copies) * copies
        return lower, np.minimum(upper, np.maximum(self.max_prefill_prompts, np.ceil(mean)))

    def _admission(self, requests: Array) -> tuple[Array, Array]:
        copies = np.where(self.attention_replicas > 1.0, self.attention_replicas, self.max_prefill_prompts)
        return admission(copies, requests, self.decode_steps, self.polling_steps, self.gathering_steps)

    def service(self, requests: Array, cycle: Cycle, half: Array) -> Service:
        """Service demand of a request on a replica, from step times at the batch sizes given."""
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

        They are the powers of two, also beyond the room: products of batches in between pad whole tiles by turns more
        and less, and a scheduler with more room never has to fill it. The time of a step is taken as linear there. The
        most requests that there is room for are computed alone where a tile is little of them.
        """
        lower, upper = octave(requests, 2.0 * requests)
        rows = np.ceil(most / (self.attention_replicas * self.decode_stages)) * self.tokens_checked
        alone = (requests == most) & (rows > _MANY_ROWS)
        return np.where(alone, most, lower), np.where(alone, most, upper)


class Cycle(NamedTuple):
    """Times of a replica with a number of requests in flight."""

    step: Array  # time of a step that decodes all of them [s]
    prefill: Array  # time of a pass of the prefill [s]
    prompts: Array  # prompts of a pass, mean [-]
    prefills: Array  # time that the prefills of all of them add to their decode steps [s]
    saving: Array  # time that a prompt takes less in the decode steps of others than by itself [s]
    longest: Array  # time that a pass of it adds to such a step, 0 where they alternate [s]


def admission(
    attention_replicas: Array, requests: Array, decode_steps: Array, polling_steps: Array, gathering_steps: Array
) -> tuple[Array, Array]:
    r"""Decode steps over which arriving requests are admitted together, and the mean wait of one of them.

    A scheduler polls for requests every p steps, and where none is left: those of the last poll end after N. With
    data-parallel attention it may hold prompts back until each of the d replicas has one, g steps at most; without,
    until d fill a pass [3]_. The first prompt waits for all that time T; of the others, of which lambda T arrive
    meanwhile, each waits for half of it: the mean is the second term.

    .. math:: w = \frac{\min(p, N)}{2} + T\,\frac{1 + \lambda T / 2}{1 + \lambda T}, \qquad
        T = \min\left(g, \frac{d}{\lambda}\right), \qquad \lambda = \frac{r}{N}

    Parameters
    ----------
    attention_replicas : Array
        Data-parallel replicas d of the attention layers, or prompts of a full pass, (rows,). [-]
    requests : Array
        Requests r in flight on a replica, (rows,) or (number, rows). [-]
    decode_steps : Array
        Decode steps N per request, (rows,). [-]
    polling_steps : Array
        Decode steps p between two scheduler polls, (rows,). [-]
    gathering_steps : Array
        Most decode steps g that a prompt waits for the other prompts, (rows,). [-]

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
    .. [3] NVIDIA, TensorRT-LLM API reference, TorchLlmArgs: batch_wait_timeout_iters, batch_wait_max_tokens_ratio.

    Ten steps between polls: five on average, or one where requests have two steps; gathering four prompts at 8 requests
    in 100 steps takes 50 steps at most:

    >>> window, wait = admission(1.0, 8.0, 100.0, 10.0, 20.0)
    >>> float(window), float(wait)
    (10.0, 5.0)
    >>> float(admission(1.0, 8.0, 2.0, 10.0, 0.0)[1])
    1.0
    >>> window, _ = admission(4.0, 8.0, 100.0, 10.0, 60.0)
    >>> float(window)
    50.0
    """
    steps, gathering = np.maximum(array(decode_steps), 1.0), array(gathering_steps)
    polling, arriving = np.minimum(array(polling_steps), steps), array(requests) / steps
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


def whole_sizes(number: Array) -> tuple[Array, Array]:
    r"""Batches on both sides of a number of requests of a pool: powers of two, and those in the middle of large ones.

    .. math:: b \in \{2^k\} \cup \{\tfrac{3}{2}\,2^k : 2^k \ge b_0\}

    Heuristic, this work: of batches above b_0 the padding of a tile is a small part also between powers of two.

    >>> [side.tolist() for side in whole_sizes(np.array([1.0, 5.0, 5000.0, 7000.0]))]
    [[1.0, 4.0, 4096.0, 6144.0], [1.0, 8.0, 6144.0, 8192.0]]

    Parameters
    ----------
    number : Array
        Number of requests, 1 or more. [-]

    Returns
    -------
    tuple of Array
        The smaller and the larger; the same for one of these batches. [-]
    """
    lower, upper = octave(number, 2.0 * array(number))
    middle = np.where(lower >= _LARGE, 1.5 * lower, upper)
    lower, upper = np.where(number >= middle, middle, lower), np.where(number >= middle, upper, middle)
    return lower, np.where(number > lower, upper, lower)


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
    """
    taken = np.maximum(prefilling.prefill_tokens / prefilling.own_tokens, 1.0)
    taken = whole_of(taken) if whole_prompts else taken
    return RequestLoad(
        decode_steps=plan.tokens_after_first / plan.tokens_per_step,
        max_prefill_prompts=prefilling.data_parallel_attention * taken,
        pipeline_stages=prefilling.pipeline_parallel,
        burst_fraction=burst_fraction,
        attention_replicas=plan.data_parallel_attention,
        polling_steps=plan.polling_steps,
        gathering_steps=plan.gathering_steps,
        decode_stages=plan.pipeline_parallel,
        tokens_checked=1.0 + plan.drafted_tokens,
        own_tokens=prefilling.own_tokens,
        pass_tokens=prefilling.prefill_tokens,
        mixed=mixed,
        balance_rows=balance_rows,
    )


def half_of(batch: Array) -> Array:
    r"""Half of a batch, the second point of the line that gives the time of one more request (heuristic, this work).

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


_BATCH = 8192  # rows that go through the equations together: their arrays stay in the processor's cache [-]
_FEW = 64  # up to so many rows one call of both phases is faster than a call of each [-]


# Parts of a pass that a step which is computed with it does not pay again: weights are read once [-]
_SHARED = [MATRIX, FIXED]


class Times(NamedTuple):
    """Times of decode steps and of prefills at the requested batch sizes, (number, rows) each. [s]

    ``step_parts`` and ``prefill_parts`` are those of matrix products and of fixed costs, (number, rows, 2).
    """

    steps: Array
    prefills: Array
    step_parts: Array
    prefill_parts: Array


class DecodeStep(NamedTuple):
    """A decode step in detail, (rows,)."""

    batch: Array  # requests that it decodes [-]
    parts: Array  # its time by part, as `xlperf.equations.serving.phases.phase_times` has it, (rows, 5) [s]
    bound: Array  # what bounds it, a position in `xlperf.equations.serving.phases.BOUNDS` [-]


class _Known(NamedTuple):
    """Cached times of one phase with their parts, (number, rows, 3), by batch size, (number, rows)."""

    batches: Array
    times: Array

    def take(self, rows: np.ndarray) -> _Known:
        """The same of some of the plans."""
        return _Known(self.batches.take(rows, axis=1), self.times.take(rows, axis=1))


class _Asked:
    """Batches of one phase that are asked for, (number, rows), and which of them have to be computed.

    ``again`` are rows whose first batch is computed, known or not.
    """

    def __init__(self, known: _Known, asked: Array, again: np.ndarray) -> None:
        self.known, self.before = known, len(known.batches)
        self.batches = np.concatenate([known.batches, asked])
        own = np.arange(self.before, len(self.batches))[:, None]
        same = (asked[:, None] == self.batches).argmax(axis=1) if len(asked) else own
        self.same = np.where(np.isnan(asked), own, same)
        self.new = self.same == own
        if len(again):
            self.new[0, again] = True
        self.numbers, self.rows = np.nonzero(self.new)

    @property
    def values(self) -> Array:
        """Batches to compute, one after the other: first those of all rows of the first number."""
        return np.asarray(self.batches[self.before + self.numbers, self.rows])

    def answered(self, computed: Array) -> tuple[_Known, Array]:
        """What is known with the times that were computed, and those that were asked for."""
        times = np.concatenate([self.known.times, np.empty((*self.same.shape, 1 + len(_SHARED)))])
        asked = times[self.before :]
        asked[self.numbers, self.rows] = computed
        if len(computed) < self.same.size:
            numbers, rows = np.nonzero(~self.new)
            asked[numbers, rows] = times[self.same[numbers, rows], rows]
            kept = np.concatenate([np.ones(self.before, dtype=bool), self.new.any(axis=1)])
            return _Known(self.batches[kept], times[kept]), asked
        return _Known(self.batches, times), asked


def _slice(rows: np.ndarray) -> np.ndarray | slice:
    """Rows as a slice, which copies nothing, where each follows the one before: else as they are.

    Rows of several batches come back to the first plan: the first and the last of them do not tell.
    """
    follows = not np.count_nonzero(rows[1:] - rows[:-1] != 1)
    return slice(int(rows[0]), int(rows[-1]) + 1) if follows else rows


def _with_total(parts: Array) -> Array:
    """Sum of the parts (rows, 5), and those of _SHARED, (rows, 3)."""
    return np.concatenate([total(parts)[:, None], parts[:, _SHARED]], axis=1)


@dataclass
class BatchTimes:
    """Times of prefills and of decode steps of a block of plans at the batch sizes that are asked for, (rows,)."""

    deployment: Deployment  # model, accelerators, plan, calibration; the batch of its plan has no meaning
    rows: dict[int, np.ndarray]  # rows of the deployment that prefill and that decode
    known: dict[int, _Known]  # times of each phase that are known
    # Rows of the deployment that are the expert pools of those that decode, -1 where there is none
    experts: np.ndarray | None = None
    detailed: list[tuple[np.ndarray, DecodeStep]] = field(default_factory=list)

    @classmethod
    def of(cls, deployment: Deployment) -> BatchTimes:
        """Times of plans whose replicas prefill and decode."""
        every = np.arange(len(deployment.plan.batch_size))
        return cls._unknown(deployment, dict.fromkeys(BOTH_PHASES, every), None)

    @classmethod
    def of_pools(cls, deployment: Deployment, num_plans: int, split: np.ndarray) -> BatchTimes:
        """Times of separate pools: first those that decode, then those that prefill, then expert pools of some."""
        every, experts = np.arange(num_plans), None
        if len(split):
            experts = np.full(num_plans, -1)
            experts[split] = 2 * num_plans + np.arange(len(split))
        return cls._unknown(deployment, {PREFILL: every + num_plans, DECODING: every}, experts)

    @classmethod
    def _unknown(cls, deployment: Deployment, rows: dict[int, np.ndarray], experts: np.ndarray | None) -> BatchTimes:
        nothing = np.empty((0, len(rows[DECODING])))
        known = _Known(nothing, np.empty((*nothing.shape, 1 + len(_SHARED))))
        return cls(deployment, rows, dict.fromkeys(BOTH_PHASES, known), experts)

    def take(self, rows: np.ndarray) -> BatchTimes:
        """The same of some of the plans, with the times that are known of them."""
        own = {phase: every[rows] for phase, every in self.rows.items()}
        known = {phase: known.take(rows) for phase, known in self.known.items()}
        return BatchTimes(self.deployment, own, known, self.experts)

    def at(self, batches: Array, prompts: Array, detailed: bool = False) -> Times:
        """Times of steps with some numbers of requests, and of prefills of some numbers of prompts."""
        again = self._step(batches[0])[1] if detailed else np.empty(0, dtype=np.int64)
        prefill = _Asked(self.known[PREFILL], prompts, again[:0])
        decoding = _Asked(self.known[DECODING], batches, again)
        first = int(np.searchsorted(decoding.numbers, 1)) if detailed else 0
        rows = self.rows[PREFILL][prefill.rows], self.rows[DECODING][decoding.rows]
        few = 0 < len(rows[0]) <= _FEW - len(rows[1]) < _FEW
        if few and (self.experts is None or (self.experts[rows[1]] < 0).all()):
            prefills, steps, bound = self._both(rows, (prefill.values, decoding.values))
        else:
            prefills, _ = self._pieces(PREFILL, rows[0], prefill, 0)
            steps, bound = self._pieces(DECODING, rows[1], decoding, first)
        if first:
            self.detailed.append(
                (decoding.rows[:first], DecodeStep(decoding.values[:first], steps[:first], bound[:first]))
            )
        self.known[PREFILL], passed = prefill.answered(_with_total(prefills))
        self.known[DECODING], stepped = decoding.answered(_with_total(steps))
        return Times(stepped[..., 0], passed[..., 0], stepped[..., 1:], passed[..., 1:])

    def step(self, batch: Array) -> DecodeStep:
        """A step with a number of requests in detail."""
        found, lacking = self._step(batch)
        if len(lacking):
            self.at(batch[None], np.empty((0, len(batch))), detailed=True)
            found, _ = self._step(batch)
        return found

    def _step(self, batch: Array) -> tuple[DecodeStep, np.ndarray]:
        """A step in detail where it is known, and the rows where it is not."""
        found = DecodeStep(batch, np.full((len(batch), 5), np.nan), np.full(len(batch), np.nan))
        lacking = ~np.isnan(batch)
        for rows, kept in self.detailed:
            same = kept.batch == batch[rows]
            some = rows[same]
            found.parts[some], found.bound[some], lacking[some] = kept.parts[same], kept.bound[same], False
        return found, np.flatnonzero(lacking)

    def _both(self, rows: Sequence[np.ndarray], values: Sequence[Array]) -> tuple[Array, Array, Array]:
        """Parts (rows, 5) of prefills and of steps, and bounds of steps, from one call of both phases for all rows."""
        prefills = len(rows[0])
        ones = [np.ones(len(every)) for every in rows]
        served = self.deployment.take(np.concatenate(rows))
        served = served.with_batch(np.concatenate([ones[0], values[1]]), np.concatenate([values[0], ones[1]]))
        work = serving_work(served)
        parts = scaled_times(phase_times(work), served, (PREFILL, DECODING))
        return parts[:prefills, PREFILL], parts[prefills:, DECODING], serving_bound(served, work)[prefills:]

    def _pieces(self, phase: int, rows: np.ndarray, asked: _Asked, bounded: int) -> tuple[Array, Array]:
        """Parts (rows, 5) of one phase, and bounds of the first rows."""
        parts, bound, values = np.empty((len(rows), 5)), np.empty(bounded), asked.values
        for start in range(0, len(rows), _BATCH):
            some = slice(start, start + _BATCH)
            chosen = rows[some]
            served = self.deployment.take(_slice(chosen))
            ones = np.ones(len(chosen))
            served = served.with_batch(*((ones, values[some]) if phase == PREFILL else (values[some], ones)))
            work = serving_work(served, (phase,))
            parts[some] = scaled_times(phase_times(work), served, (phase,))[:, 0]
            if start < bounded:
                bound[some] = serving_bound(served, work)[: bounded - start]
        if phase == DECODING and self.experts is not None:
            partners = self.experts[rows]
            split = np.flatnonzero(partners >= 0)
            attention, experts = (self.deployment.take(some[split]) for some in (rows, partners))
            step = split_step(attention, experts, values[split])
            parts[split] = step.parts
            asked_for = split < bounded
            bound[split[asked_for]] = step.bound[asked_for]
        return parts, bound
