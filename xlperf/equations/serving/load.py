"""Per-request workload of a serving replica, and its prefill and decode step times at several batch sizes.

The load on a replica follows from a few batches of the same plan. Batches that are requested together are rows of one
call of the operator equations, and each batch is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, divide, expm1, in_sequence, octave_below, some, total
from xlperf.equations.model.operators import BOTH_PHASES, DECODING, PREFILL
from xlperf.equations.network.collectives import collective_time
from xlperf.equations.plan.serving_plan import InferencePlan
from xlperf.equations.serving import phases
from xlperf.equations.serving.deployment import Deployment
from xlperf.equations.serving.memory import BatchMemory, memory_of, usable_memory
from xlperf.equations.serving.messages import distinct_ranks, pool_message_time
from xlperf.equations.serving.queueing import Service, step_line

# Result columns: utilisation of the pools and of the links between them
POOL_SHARES = ("attention_pool_share", "expert_pool_share", "expert_link_share")
_NETWORK = float(phases.BOUNDS.index("network"))


class SplitStep(NamedTuple):
    """A decode step of an attention and an expert pool, (rows,)."""

    # Time by part (as `phase_times`): of the limiting pool, or of one micro-batch if no pool is always busy, (rows, 5)
    parts: Array
    bound: Array  # limiting resource, a position in `phases.BOUNDS` [-]
    shares: Array  # utilisation of the attention pool, the expert pool and the links, (rows, 3) [-]
    batches: Array  # micro-batches of the step [-]
    needed: Array  # fewest micro-batches that keep one of the pools busy [-]
    work: tuple[phases.ServingWork, phases.ServingWork]  # of a micro-batch in the attention and in the expert pool
    messages: tuple[Array, Array]  # dispatch and combine of a micro-batch in a layer [s]
    repeats: Array  # multiples of a micro-batch's attention, expert and message time in the step, (rows, 3) [-]


def _message_times(attention: Deployment, experts: Deployment, sequences: Array) -> tuple[Array, Array, Array]:
    """Dispatch, combine and link occupancy of a micro-batch in a layer. [s] A token goes to the ranks of its routed and
    shared experts. Ranks that split an expert each receive it, or one of them does and passes it on, whichever is
    faster.
    """
    plan, expert_plan, model = attention.plan, experts.plan, attention.model
    ranks = plan.tensor_parallel * plan.context_parallel, expert_plan.tensor_parallel
    # Elements that an attention rank sends, and expert ranks per token.
    tokens = np.ceil(sequences / plan.data_parallel_attention) * (1.0 + plan.drafted_tokens)
    routed = np.where(model.num_experts > 0.0, model.num_moe_layers / model.num_layers, 0.0)
    width = np.where(model.num_experts > 0.0, model.expert_hidden_size, model.hidden_size)
    shared = np.where(model.shared_ffn_hidden_size > 0.0, 1.0, 0.0)
    chosen = distinct_ranks(expert_plan.expert_parallel, np.minimum(model.top_k, model.num_experts) + shared)
    copies = routed * chosen + (1.0 - routed)
    elements = tokens * width / (plan.attention_parallel * plan.context_parallel)
    there, back = np.minimum(plan.input_size, plan.activation_size), plan.activation_size
    distance = np.maximum(0.5 * (ranks[0] + ranks[1]), 1.0)

    def sent(amount: Array) -> Array:
        sizes = amount, amount * ranks[0] / ranks[1]
        return pool_message_time(sizes, distance, (attention, experts), plan.expert_bandwidth)

    # To every rank of an expert.
    start = sent(0.0 * elements)
    group = expert_plan.expert_tensor_parallel
    direct = sent(elements * copies * group * there), sent(elements * copies * group * back)
    if not some(group > 1.0):
        return direct[0], direct[1], np.maximum(*direct) - start
    # To one rank of an expert, with a collective inside the expert's group.
    constants, gathering = experts.kernels, experts.kernels["all_gather"]
    gathered = elements * copies * ranks[0] / expert_plan.expert_parallel
    inside = [
        collective_time(
            name, (gathered * size)[:, None], group[:, None], 1.0, experts.network, constants.get(name, gathering)
        )[:, 0]
        for name, size in (("all_gather", there), ("reduce_scatter", back))
    ]
    once = sent(elements * copies * there), sent(elements * copies * back)
    passed = [message + collective for message, collective in zip(once, inside, strict=True)]
    shorter = (group > 1.0) & (passed[0] + passed[1] < direct[0] + direct[1])
    occupied = np.where(shorter, np.maximum(*once), np.maximum(*direct)) - start
    dispatch, combine = (np.where(shorter, *pair) for pair in zip(passed, direct, strict=True))
    return dispatch, combine, occupied


def split_step(attention: Deployment, experts: Deployment, batch: Array) -> SplitStep:
    """Decode step with attention in one pool and feed-forward layers in another."""
    plan, ones = attention.plan, np.ones_like(batch)
    size = np.ceil(batch / plan.ping_pong_batches)
    batches = np.ceil(batch / size)
    # A micro-batch in each pool, and its messages.
    pools = attention.with_batch(size, ones), experts.with_batch(size, ones)
    attention_work, expert_work = (phases.serving_work(pool, (DECODING,)) for pool in pools)
    layers, passes = attention_work.layers, attention_work.passes
    attention_parts = layers * attention_work.parts[:, 0, 0] + passes * attention_work.parts[:, 0, 1]
    expert_parts = layers * expert_work.parts[:, 0, 0]
    dispatch, combine, occupied = _message_times(*pools, size)
    messages = np.zeros_like(attention_parts)
    messages[:, phases.COMMUNICATION] = layers[:, 0] * (dispatch + combine)
    times = total(attention_parts), total(expert_parts), messages[:, phases.COMMUNICATION]
    link = layers[:, 0] * occupied
    # While a micro-batch is with the experts, the next has attention: the busiest pool or link sets the pace, or with
    # few micro-batches the walk of one through both pools (MegaScale-Infer, arXiv:2504.02263, section 4.1; Step-3,
    # arXiv:2507.19427, section 5).
    busy = np.stack([batches * time for time in (times[0], times[1], link)], axis=-1)
    step = np.maximum(times[0] + times[1] + times[2], np.max(busy, axis=-1))
    # Parts of the limiting pool or link (0, 1, 2), or of one micro-batch on its way (3).
    limit = np.where(step > np.max(busy, axis=-1), 3, np.argmax(busy, axis=-1))
    repeats = np.where(limit[:, None] == 3, 1.0, batches[:, None] * (np.arange(3) == limit[:, None]))
    parts = repeats[:, :1] * attention_parts + repeats[:, 1:2] * expert_parts
    parts = parts + np.where(limit[:, None] == 3, messages, 0.0)
    parts[:, phases.COMMUNICATION] += np.where(limit == 2, busy[:, 2], 0.0)
    # Limiting resource: of the pool with the longest time.
    longest = np.where(limit == 3, np.argmax(np.stack(times, axis=-1), axis=-1), limit)
    works = attention_work, expert_work
    bounds = [phases.serving_bound(pool, work) for pool, work in zip(pools, works, strict=True)]
    bound = np.select([longest == 0, longest == 1], bounds, np.where(np.isnan(step), np.nan, _NETWORK))
    return SplitStep(
        parts=parts,
        bound=bound,
        shares=busy / step[:, None],
        batches=batches,
        # fewest micro-batches that hide the messages and keep one pool busy (arXiv:2504.02263, section 4.1)
        needed=np.ceil(divide(times[0] + times[1] + times[2], np.maximum(times[0], times[1])) * (1.0 - 1e-12)),
        work=works,
        messages=(dispatch, combine),
        repeats=repeats,
    )


def expert_pool_memory(experts: Deployment, batch: Array) -> BatchMemory:
    """Memory of a rank of an expert pool: weights of its experts, and tokens of all micro-batches in flight."""
    plan, model, memory = experts.plan, experts.model, memory_of(experts)
    width = np.where(model.num_experts > 0.0, model.expert_hidden_size, model.hidden_size)
    copies = np.where(model.num_experts > 0.0, model.top_k, 1.0) / plan.expert_parallel
    tokens = batch * (1.0 + plan.drafted_tokens) * copies
    inner = np.where(
        model.num_experts > 0.0,
        model.expert_ffn_hidden_size / plan.expert_tensor_parallel,
        model.ffn_hidden_size / plan.tensor_parallel,
    )
    layer = (1.0 + model.gated_mlp) * inner / plan.ping_pong_batches
    activations = tokens * plan.activation_size * (2.0 * width + layer)
    usable = usable_memory(
        memory.capacity, memory.reserved, memory.weights, activations, memory.budget, memory.activation_share
    )
    return BatchMemory(memory.weights, 0.0 * activations, activations, usable)


_RARE = 0.05  # probability of a second prompt in a poll that is neglected [-]
_LARGE = 4096.0  # smallest batch above which 1.5 times a power of two is computed as well [-]
_LENGTHS = 0.1  # smallest relative spread of the prompt lengths of one load [-]
_MANY_ROWS = 32768.0  # GEMM rows from which tile padding is negligible [-]


class RequestLoad(NamedTuple):
    """Per-request workload of a serving replica, independent of its batch size, (rows,)."""

    decode_steps: Array  # decode steps per request [-]
    max_prefill_prompts: Array  # largest number of prompts batched into one prefill pass, 1 or more [-]
    pipeline_stages: Array  # pipeline stages of the prefill replica [-]
    burst_fraction: Array  # fraction of the in-flight requests that arrive at the same moment [-]
    attention_replicas: Array  # data-parallel replicas of the attention layers [-]
    polling_steps: Array  # decode steps between two scheduler polls for new requests [-]
    gathering_steps: Array  # most decode steps a prompt waits for other attention replicas, or for a full pass [-]
    decode_stages: Array  # pipeline stages of the decode replica [-]
    tokens_checked: Array  # tokens of a sequence in one decode step: 1 plus the drafted tokens [-]
    own_tokens: Array  # new tokens of a prompt on each rank that shares it [-]
    pass_tokens: Array  # most tokens of a prefill pass [-]
    mixed: Array  # 1: prefill passes share a batch with decode steps (chunked prefill); 0: they alternate [-]
    balance_rows: Array  # GEMM rows from which the GEMM is compute-bound [-]
    prefill_overlap: Array  # prefills in progress at once in a full pipeline [-]

    def take(self, rows: np.ndarray) -> RequestLoad:
        """Select rows."""
        return RequestLoad(*(values[rows] for values in self))

    def prompts(self, requests: Array) -> Array:
        r"""Mean prompts per prefill pass: arrivals until admission, or a burst. [-]

        Heuristic, this work: x prompts arrive at random between two scheduler polls. A poll that is not empty returns m
        on average (zero-truncated Poisson); a second prompt in fewer than one poll in 20 is neglected. The requests of
        s stages form s batches, and a pass takes the prompts of one batch.

        .. math:: m = \min\left(\max\left(\frac{x}{1 - e^{-x}}, \sigma r\right), \frac{r}{s}\right), \qquad
            x = r \min\left(\frac{w}{N}, 1\right)
        """
        window, _ = self._admission(requests)
        # Zero-truncated Poisson mean of the arrivals x, without rare second prompts.
        arrivals = requests * np.minimum(window / np.maximum(self.decode_steps, 1.0), 1.0)
        prompts = divide(arrivals, -expm1(-arrivals), 1.0)
        prompts = np.where(prompts < 2.0, 1.0 + np.maximum(prompts - 1.0 - _RARE, 0.0) / (1.0 - _RARE), prompts)
        # Bounds: a burst below; one stage's batch and the token limit above.
        prompts = np.minimum(np.maximum(prompts, self.burst_fraction * requests), requests / self.pipeline_stages)
        return np.minimum(np.maximum(prompts, 1.0), self.max_prefill_prompts)

    def whole_prompts(self, mean: Array) -> tuple[Array, Array]:
        """Integer prompts per prefill pass around the mean; multiples of the attention replicas once each has one."""
        unit = np.where(mean > self.attention_replicas, self.attention_replicas, 1.0)
        return np.floor(mean / unit) * unit, np.ceil(mean / unit) * unit

    def _admission(self, requests: Array) -> tuple[Array, Array]:
        gathered = np.where(self.attention_replicas > 1.0, self.attention_replicas, self.max_prefill_prompts)
        return admission(gathered, requests, self.decode_steps, self.polling_steps, self.gathering_steps)

    def service(self, requests: Array, cycle: Cycle, half: Array) -> Service:
        """Service demand of a request, from a cycle at ``requests`` in flight and the step time at half as many."""
        line, (_, wait) = step_line(requests, cycle.step, half_of(requests), half), self._admission(requests)
        share = (cycle.prefills + np.maximum(requests - 1.0, 0.0) * cycle.saving) / requests
        longest = np.where(self.mixed > 0.0, cycle.longest, np.inf)
        return Service(cycle.prefill, share, *line, self.decode_steps, self.burst_fraction, wait, cycle.saving, longest)

    def passes(self, prompts: Array) -> Array:
        """Prefill passes of some prompts; the next prompt fills the last pass. [-]"""
        tokens = np.ceil(prompts / self.attention_replicas) * self.own_tokens
        return np.asarray(np.maximum(tokens / self.pass_tokens, 1.0))

    def mixed_times(
        self, batch: Array, prompts: Array, prefill: Array, step_parts: Array, prefill_parts: Array
    ) -> tuple[Array, Array]:
        r"""Chunked prefill: time saved by sharing decode steps, and time that one pass adds to a step. [s, s]

        A pass of C tokens and a step of b read the weights once and share the gaps between kernels. With GEMM times t,
        gap times w, and R rows from which a GEMM is compute-bound:

        .. math:: \delta = t(C) + t(b) - t(C + b) + \min(w_C, w_b)

        .. math:: t(C + b) = \max\left(t(C), t(b), \min\left(t(C)\,\frac{C + b}{C},\; t(b)\,\frac{C + b}{b},\;
            \min(t(C), t(b))\,\frac{C + b}{R}\right)\right)

        A request shares at most one pass per decode step: N for each b prompts. Heuristic, this work.
        """
        passes = self.passes(prompts)
        # GEMM time of the combined batch, from its rows C and b and their separate times.
        chunk, rows = prompts * self.own_tokens / passes, batch * self.tokens_checked
        step, chunk_time = step_parts[..., 0], prefill_parts[..., 0] / passes
        all_rows, read = chunk + rows, np.minimum(step, chunk_time)
        combined = np.minimum(np.minimum(chunk_time / chunk, step / rows), read / self.balance_rows) * all_rows
        combined = np.maximum(np.maximum(step, chunk_time), combined)
        # Saving per shared pass, gaps included, times the passes that decode steps share.
        gaps = np.minimum(step_parts[..., 1], prefill_parts[..., 1] / passes)
        shared = np.minimum(passes, self.decode_steps * prompts / batch)
        saving = step + chunk_time - combined + gaps
        return np.asarray(self.mixed * shared * saving), np.asarray(self.mixed * (prefill / passes - saving))

    def shared(self, batch: Array, prompts: Array, prefill: Array) -> Array:
        """Replica time per prompt when prefills follow each other through the pipeline stages. [s]"""
        overlap = np.maximum(np.minimum(self.prefill_overlap, batch / prompts), 1.0)
        return np.asarray(prefill / (prompts * overlap))

    def whole_batches(self, requests: Array, most: Array) -> tuple[Array, Array]:
        """Batches below and above a number of requests that are computed operator by operator. [-] Powers of two, also
        above the cache limit ``most``: batches in between pad tiles irregularly, and step times are interpolated. A
        full cache is computed exactly if a tile is a small part of its GEMM rows.
        """
        lower, upper = octave(requests, 2.0 * requests)
        rows = np.ceil(most / (self.attention_replicas * self.decode_stages)) * self.tokens_checked
        exact = (requests == most) & (rows > _MANY_ROWS)
        return np.where(exact, most, lower), np.where(exact, most, upper)


class Cycle(NamedTuple):
    """Times of a replica with a number of requests in flight."""

    step: Array  # decode step of all requests [s]
    prefill: Array  # prefill pass [s]
    prompts: Array  # mean prompts per pass [-]
    prefills: Array  # time that the prefills of all requests add to their decode steps [s]
    saving: Array  # time saved per prompt by chunked prefill in decode steps [s]
    longest: Array  # time that a prefill pass adds to a decode step; 0 if they alternate [s]


def admission(
    attention_replicas: Array, requests: Array, decode_steps: Array, polling_steps: Array, gathering_steps: Array
) -> tuple[Array, Array]:
    r"""Decode steps over which arriving requests are admitted together, and the mean wait of one request.

    A scheduler polls every p steps, or when all N steps of the last admitted requests are over. It may gather prompts
    for g steps at most, until each of d data-parallel attention replicas has one or until d prompts fill a pass [3]_.
    The first prompt waits for the whole gathering time T, the lambda T later arrivals for half of it.

    .. math:: w = \frac{\min(p, N)}{2} + T\,\frac{1 + \lambda T / 2}{1 + \lambda T}, \qquad
        T = \min\left(g, \frac{d}{\lambda}\right), \qquad \lambda = \frac{r}{N}

    Parameters
    ----------
    attention_replicas : Data-parallel replicas d of the attention layers, or prompts of a full pass, (rows,). [-]
    requests : Requests r in flight on a replica, (rows,) or (number, rows). [-]
    decode_steps : Decode steps N per request, (rows,). [-]
    polling_steps : Decode steps p between two scheduler polls, (rows,). [-]
    gathering_steps : Most decode steps g that a prompt waits for the other prompts, (rows,). [-]

    Returns
    -------
    window : Decode steps in which requests admitted together arrive, in the shape of the requests. [-]
    wait : Mean wait in decode steps, in the shape of the requests. [-]

    References
    ----------
    .. [1] SGLang documentation, server arguments: scheduler-recv-interval.
    .. [2] NVIDIA, TensorRT-LLM API reference, AttentionDpConfig: enable_balance, timeout_iters.
    .. [3] NVIDIA, TensorRT-LLM API reference, TorchLlmArgs: batch_wait_timeout_iters, batch_wait_max_tokens_ratio.

    Ten steps between polls: a mean wait of five; four prompts at 8 requests in 100 steps gather for 50 steps:

    >>> window, wait = admission([1.0, 4.0], 8.0, 100.0, 10.0, 60.0)
    >>> window.tolist(), float(wait[0])
    ([10.0, 50.0], 5.0)
    """
    steps, gathering = np.maximum(array(decode_steps), 1.0), array(gathering_steps)
    polling, arriving = np.minimum(array(polling_steps), steps), array(requests) / steps
    # Gathering time T, arrivals lambda T within it, and their mean wait.
    prompts = array(attention_replicas)
    gathered = np.where(prompts > 1.0, np.minimum(gathering, prompts / arriving), 0.0 * prompts)
    arrivals = arriving * gathered
    wait = gathered * (1.0 + 0.5 * arrivals) / (1.0 + arrivals)
    return np.asarray(np.maximum(polling, gathered)), np.asarray(0.5 * polling + wait)


def octave(number: Array, most: Array) -> tuple[Array, Array]:
    r"""Powers of two below and above a number, the larger capped; both equal the number if it is a power of two.

    Heuristic, this work: times are computed at powers of two and linear in between.

    .. math:: n_1 = 2^{\lfloor \log_2 n \rfloor}, \qquad n_2 = \min(2 n_1, n_{max})

    >>> [side.tolist() for side in octave(np.array([1.0, 2.5, 5.0]), np.array([6.0, 6.0, 6.0]))]
    [[1.0, 2.0, 4.0], [1.0, 4.0, 6.0]]

    Parameters
    ----------
    number : Number n, 1 or more, up to the largest. [-]
    most : Largest number. [-]

    Returns
    -------
    Array : The smaller and the larger. [-]
    """
    between = array(number)
    lower = octave_below(np.maximum(between, 1.0)) + 0.0 * array(most)
    return np.asarray(lower), np.where(between > lower, np.minimum(2.0 * lower, most), lower)


def whole_sizes(number: Array) -> tuple[Array, Array]:
    r"""Batches below and above a number of requests: powers of two, and 1.5 times powers of two from a large batch on.

    .. math:: b \in \{2^k\} \cup \{\tfrac{3}{2}\,2^k : 2^k \ge b_0\}

    Heuristic, this work: above b_0 the padding of a tile is a small part also between powers of two.

    >>> [side.tolist() for side in whole_sizes(np.array([1.0, 5.0, 5000.0, 7000.0]))]
    [[1.0, 4.0, 4096.0, 6144.0], [1.0, 8.0, 6144.0, 8192.0]]

    Parameters
    ----------
    number : Number of requests, 1 or more. [-]

    Returns
    -------
    Array : The smaller and the larger; both equal the number if it is such a batch. [-]
    """
    lower, upper = octave(number, 2.0 * array(number))
    middle = np.where(lower >= _LARGE, 1.5 * lower, upper)
    lower, upper = np.where(number >= middle, middle, lower), np.where(number >= middle, upper, middle)
    return lower, np.where(number > lower, upper, lower)


def bounded_rise(lower: Array, upper: Array, time: Array, upper_time: Array) -> Array:
    r"""Time of the larger of two batches, bounded by the smaller one's time and by that time in proportion.

    Heuristic, this work: a batch just above whole tiles computes almost a tile of padding. A scheduler that runs steps
    of the smaller batch instead serves all requests in b2 / b1 times its time.

    .. math:: t = \min\left(\max(t_2, t_1), \frac{b_2}{b_1} t_1\right)

    >>> bounded_rise(1.0, 2.0, 3.0, np.array([2.0, 4.0, 9.0])).tolist()
    [3.0, 4.0, 6.0]

    Parameters
    ----------
    lower : Smaller batch b1. [-]
    upper : Larger batch b2. [-]
    time : Time t1 of the smaller batch. [s]
    upper_time : Time t2 of the larger batch. [s]

    Returns
    -------
    Array : Bounded time of the larger batch. [s]
    """
    least = array(time)
    return np.asarray(np.minimum(np.maximum(upper_time, least), least * (array(upper) / array(lower))))


def _whole_of(prompts: Array) -> Array:
    """Mean integer number of prompts per pass when prompt lengths vary.

    Heuristic, this work: if one more prompt almost fits, passes with shorter prompts include it.

    >>> _whole_of(np.array([2.0, 2.5, 2.95, 3.0])).round(9).tolist()  # 2.95: 0.05 / 0.1 are lacking
    [2.0, 2.0, 2.5, 3.0]
    """
    least = np.floor(prompts)
    return np.asarray(least + np.maximum(1.0 - (1.0 + least - prompts) / _LENGTHS, 0.0))


def request_load(
    plan: InferencePlan,
    pool: Deployment,
    burst_fraction: Array,
    mixed: Array,
    balance_rows: Array,
    whole_prompts: bool = False,
) -> RequestLoad:
    """Per-request workload of serving replicas, whose prompts a ``pool`` prefills.

    A pool of its own runs ``whole_prompts``, an engine fills its passes.
    """
    prefilling = pool.plan
    prompts = np.maximum(prefilling.prefill_tokens / prefilling.own_tokens, 1.0)
    prompts = _whole_of(prompts) if whole_prompts else prompts
    return RequestLoad(
        decode_steps=plan.tokens_after_first / plan.tokens_per_step,
        max_prefill_prompts=prefilling.data_parallel_attention * prompts,
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
        prefill_overlap=_overlap(pool),
    )


def _overlap(pool: Deployment) -> Array:
    """Prefills in progress at once in a full pipeline; halves of a two-batch overlap are passes of their own. [-]"""
    plan = pool.plan
    halves = np.where((plan.two_batch_overlap > 0.0) & (plan.data_parallel_attention > 1.0), 2.0, 1.0)
    passes = halves * np.maximum(plan.own_tokens / plan.prefill_tokens, 1.0)
    return pipeline_overlap(pool.model.num_layers, plan.pipeline_parallel, passes)


def pipeline_overlap(num_layers: Numeric, pipeline_parallel: Numeric, passes: Numeric) -> Array:
    r"""Prefills in progress at once in a full pipeline.

    A prefill of c passes takes all L layers and, for each further pass, those of the largest stage; it occupies that
    stage for c passes. With one pass each, p equal stages overlap p prefills; with many, a prefill fills the stages.
    Source: Y. Huang et al., GPipe, arXiv:1811.06965, section 2.3, without a flush between two prefills.

    .. math:: o = \frac{L + (c - 1) l}{c\,l}, \qquad l = \left\lceil \frac{L}{p} \right\rceil

    >>> pipeline_overlap(80.0, 4.0, np.array([1.0, 4.0, 1e9])).round(6).tolist()
    [4.0, 1.75, 1.0]

    Parameters
    ----------
    num_layers : Layers L of the model. [-]
    pipeline_parallel : Stages p. [-]
    passes : Passes c of a prefill. [-]

    Returns
    -------
    Array : Overlap o: latency of a prefill over the interval between two. [-]
    """
    layers, count = array(num_layers), array(passes)
    largest = np.ceil(layers / array(pipeline_parallel))
    return np.asarray((layers + (count - 1.0) * largest) / (count * largest))


def half_of(batch: Array) -> Array:
    r"""Half of a batch: the second point of the line that gives the time of one more request (heuristic, this work).

    .. math:: b_2 = \max\left(\left\lfloor \frac{b}{2} \right\rfloor, 1\right)

    >>> half_of(np.array([1.0, 7.0])).tolist()
    [1.0, 3.0]

    Parameters
    ----------
    batch : Requests, (rows,). [-]

    Returns
    -------
    Array : Half of them, an integer of 1 or more, (rows,). [-]
    """
    return np.asarray(np.maximum(np.floor(0.5 * array(batch)), 1.0))


_BATCH = 8192  # rows per call of the equations, so that their arrays stay in the processor's cache [-]
_FEW = 64  # most rows for which one call of both phases is faster than two calls [-]
_SHARED = [
    phases.MATRIX,
    phases.FIXED,
]  # parts of a pass that chunked prefill shares with decode steps: weights are read once


class Times(NamedTuple):
    """Times of decode steps and prefills at the requested batch sizes, (number, rows). [s]"""

    steps: Array
    prefills: Array
    step_parts: Array  # GEMM time and fixed costs of a step, (number, rows, 2) [s]
    prefill_parts: Array  # GEMM time and fixed costs of a prefill, (number, rows, 2) [s]


class DecodeStep(NamedTuple):
    """A decode step in detail, (rows,)."""

    batch: Array  # requests in the step [-]
    parts: Array  # time by part: GEMMs, attention, other kernels, communication, fixed costs, (rows, 5) [s]
    bound: Array  # limiting resource, a position in `phases.BOUNDS` [-]


class _TimeCache(NamedTuple):
    """Computed times of one phase by batch size."""

    batches: Array  # (number, rows) [-]
    times: Array  # total, GEMM time and fixed costs, (number, rows, 3) [s]

    def take(self, rows: np.ndarray) -> _TimeCache:
        """Select rows."""
        return _TimeCache(self.batches.take(rows, axis=1), self.times.take(rows, axis=1))


class _Query:
    """Requested batches of one phase, (number, rows), and the subset that is not in the cache or computed ``again``."""

    def __init__(self, cache: _TimeCache, requested: Array, again: np.ndarray) -> None:
        self.cache, self.before = cache, len(cache.batches)
        self.batches = np.concatenate([cache.batches, requested])
        # Position of the first equal batch of the row; a batch is new if that is its own position.
        position = np.arange(self.before, len(self.batches))[:, None]
        same = (requested[:, None] == self.batches).argmax(axis=1) if len(requested) else position
        self.same = np.where(np.isnan(requested), position, same)
        self.new = self.same == position
        if len(again):
            self.new[0, again] = True
        self.numbers, self.rows = np.nonzero(self.new)

    @property
    def values(self) -> Array:
        """Batches to compute, flat: all rows of the first number, then of the second."""
        return np.asarray(self.batches[self.before + self.numbers, self.rows])

    def answered(self, parts: Array) -> tuple[_TimeCache, Array]:
        """Cache with the computed parts (rows, 5), and the requested times (number, rows, 3)."""
        times = np.concatenate([self.cache.times, np.empty((*self.same.shape, 1 + len(_SHARED)))])
        requested = times[self.before :]
        requested[self.numbers, self.rows] = np.concatenate([total(parts)[:, None], parts[:, _SHARED]], axis=1)
        if len(parts) < self.same.size:
            numbers, rows = np.nonzero(~self.new)
            requested[numbers, rows] = times[self.same[numbers, rows], rows]
            new = np.concatenate([np.ones(self.before, dtype=bool), self.new.any(axis=1)])
            return _TimeCache(self.batches[new], times[new]), requested
        return _TimeCache(self.batches, times), requested


@dataclass
class BatchTimes:
    """Prefill and decode step times of a block of plans at requested batch sizes, (rows,)."""

    deployment: Deployment  # model, accelerators, plan, calibration; the batch of its plan is ignored
    rows: dict[int, np.ndarray]  # deployment rows that prefill and that decode
    cache: dict[int, _TimeCache]  # computed times by phase
    experts: np.ndarray | None = None  # deployment row of each decode row's expert pool, -1 without one
    detailed: list[tuple[np.ndarray, DecodeStep]] = field(default_factory=list)
    bounded: bool = True  # whether detailed steps have their limiting resource, which takes as long as another step

    @classmethod
    def of(cls, deployment: Deployment) -> BatchTimes:
        """Times of replicas that both prefill and decode."""
        every = np.arange(len(deployment.plan.batch_size))
        return cls._unknown(deployment, dict.fromkeys(BOTH_PHASES, every), None)

    @classmethod
    def of_pools(cls, deployment: Deployment, num_plans: int, split: np.ndarray) -> BatchTimes:
        """Times of disaggregated pools; deployment rows: decode, prefill, then expert pools of plans in ``split``."""
        every, experts = np.arange(num_plans), None
        if len(split):
            experts = np.full(num_plans, -1)
            experts[split] = 2 * num_plans + np.arange(len(split))
        return cls._unknown(deployment, {PREFILL: every + num_plans, DECODING: every}, experts)

    @classmethod
    def _unknown(cls, deployment: Deployment, rows: dict[int, np.ndarray], experts: np.ndarray | None) -> BatchTimes:
        empty = np.empty((0, len(rows[DECODING])))
        cache = _TimeCache(empty, np.empty((*empty.shape, 1 + len(_SHARED))))
        return cls(deployment, rows, dict.fromkeys(BOTH_PHASES, cache), experts)

    def take(self, rows: np.ndarray) -> BatchTimes:
        """Select rows with their cached times."""
        selected = {phase: every[rows] for phase, every in self.rows.items()}
        cache = {phase: times.take(rows) for phase, times in self.cache.items()}
        return BatchTimes(self.deployment, selected, cache, self.experts, bounded=self.bounded)

    def at(self, batches: Array, prompts: Array, detailed: bool = False) -> Times:
        """Decode step times at ``batches`` and prefill times of ``prompts``; ``detailed`` records the first step."""
        again = self._step(batches[0])[1] if detailed else np.empty(0, dtype=np.int64)
        prefill = _Query(self.cache[PREFILL], prompts, again[:0])
        decoding = _Query(self.cache[DECODING], batches, again)
        # Steps of the first number are recorded with their parts, and with their bound if it is asked for.
        first = int(np.searchsorted(decoding.numbers, 1)) if detailed else 0
        bounded = first if self.bounded else 0
        rows = self.rows[PREFILL][prefill.rows], self.rows[DECODING][decoding.rows]
        # Few batches of both phases are computed in one call.
        few = 0 < len(rows[0]) <= _FEW - len(rows[1]) < _FEW
        if few and (self.experts is None or (self.experts[rows[1]] < 0).all()):
            prefills, steps, bound = self._both(rows, (prefill.values, decoding.values), bounded > 0)
        else:
            prefills, _ = self._pieces(PREFILL, rows[0], prefill.values, 0)
            steps, bound = self._pieces(DECODING, rows[1], decoding.values, bounded)
        if first:
            bound = bound[:first] if bounded else np.full(first, np.nan)
            self.detailed.append((decoding.rows[:first], DecodeStep(decoding.values[:first], steps[:first], bound)))
        self.cache[PREFILL], prefill_times = prefill.answered(prefills)
        self.cache[DECODING], step_times = decoding.answered(steps)
        return Times(step_times[..., 0], prefill_times[..., 0], step_times[..., 1:], prefill_times[..., 1:])

    def step(self, batch: Array) -> DecodeStep:
        """Decode step in detail."""
        step, lacking = self._step(batch)
        if len(lacking):
            self.at(batch[None], np.empty((0, len(batch))), detailed=True)
            step, _ = self._step(batch)
        return step

    def _step(self, batch: Array) -> tuple[DecodeStep, np.ndarray]:
        """Recorded decode step, and the rows without a record."""
        step = DecodeStep(batch, np.full((len(batch), 5), np.nan), np.full(len(batch), np.nan))
        lacking = ~np.isnan(batch)
        for rows, recorded in self.detailed:
            same = recorded.batch == batch[rows]
            some = rows[same]
            step.parts[some], step.bound[some], lacking[some] = recorded.parts[same], recorded.bound[same], False
        return step, np.flatnonzero(lacking)

    def _both(self, rows: Sequence[np.ndarray], values: Sequence[Array], bounded: bool) -> tuple[Array, Array, Array]:
        """Parts (rows, 5) of prefills and of steps, and limiting resource of steps, in one call of both phases."""
        prefills = len(rows[0])
        ones = [np.ones(len(every)) for every in rows]
        served = self.deployment.take(np.concatenate(rows))
        served = served.with_batch(np.concatenate([ones[0], values[1]]), np.concatenate([values[0], ones[1]]))
        steps = len(rows[1])
        served = phases.with_doubled(served, prefills + np.arange(steps)) if bounded else served
        work = phases.serving_work(served)
        parts = phases.phase_times(work)
        bound = phases.serving_bound(served, work, steps) if bounded else np.empty(0)
        return parts[:prefills, PREFILL], parts[prefills : prefills + steps, DECODING], bound

    def _pieces(self, phase: int, rows: np.ndarray, values: Array, bounded: int) -> tuple[Array, Array]:
        """Parts (rows, 5) of one phase in blocks, and the limiting resource of the first ``bounded`` rows."""
        if len(rows) > _FEW and not bounded and self.experts is None:
            # Pools of several plans are often alike: each batch of theirs is computed once.
            keys = self.deployment.alike[rows] + 1j * values
            _, first, place = np.unique(keys, return_index=True, return_inverse=True, equal_nan=False)
            if len(first) < len(rows):
                return self._pieces(phase, rows[first], values[first], 0)[0][place], np.empty(0)
        parts, bound = np.empty((len(rows), 5)), np.empty(bounded)
        for start in range(0, len(rows), _BATCH):
            some = slice(start, start + _BATCH)
            chosen = rows[some]
            served = self.deployment.take(in_sequence(chosen))
            ones = np.ones(len(chosen))
            served = served.with_batch(*((ones, values[some]) if phase == PREFILL else (values[some], ones)))
            work = phases.serving_work(served, (phase,))
            parts[some] = phases.phase_times(work)[:, 0]
            if start < bounded:
                bound[some] = phases.serving_bound(served, work)[: bounded - start]
        # Attention pools decode with their expert pools.
        if phase == DECODING and self.experts is not None:
            partners = self.experts[rows]
            split = (partners >= 0).nonzero()[0]
            if not len(split):
                return parts, bound
            attention, experts = (self.deployment.take(some[split]) for some in (rows, partners))
            step = split_step(attention, experts, values[split])
            parts[split] = step.parts
            recorded = split < bounded
            bound[split[recorded]] = step.bound[recorded]
        return parts, bound
