"""Decode steps of an attention and an expert pool, which micro-batches pass in turns in every layer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, array, divide, some, total
from xlperf.equations.model.serving import DECODING
from xlperf.equations.network.collectives import collective_time
from xlperf.equations.serving.communication import distinct_ranks, pool_message_time
from xlperf.equations.serving.deployment import Deployment
from xlperf.equations.serving.memory import BatchMemory, memory_of, usable_memory
from xlperf.equations.serving.phases import (
    BOUNDS,
    COMMUNICATION,
    ServingWork,
    scaled_times,
    serving_bound,
    serving_work,
)

# Results that say how busy the pools and the links between them are
POOL_SHARES = ("attention_pool_share", "expert_pool_share", "expert_link_share")
_NETWORK = float(BOUNDS.index("network"))


class SplitStep(NamedTuple):
    """A decode step of an attention and an expert pool, (rows,)."""

    # Its time by part, as `xlperf.equations.serving.phases.phase_times` has it: of the pool that limits it, or of one
    # micro-batch where none is busy all the time, (rows, 5) [s]
    parts: Array
    bound: Array  # what bounds it, a position in `xlperf.equations.serving.phases.BOUNDS` [-]
    # Shares of the step in which the attention pool, the expert pool and the links between them are busy, (rows, 3) [-]
    shares: Array
    batches: Array  # micro-batches that it has [-]
    needed: Array  # fewest micro-batches with which one of the pools is busy all the time [-]
    work: tuple[ServingWork, ServingWork]  # of a micro-batch in the attention pool and in the expert pool
    messages: tuple[Array, Array]  # time to send the tokens of a micro-batch to the experts of a layer, and back [s]
    # How often each time of a micro-batch counts in the step: attention, experts, messages, (rows, 3) [-]
    repeats: Array


def ping_pong_time(
    attention_time: Array, expert_time: Array, message_time: Array, link_time: Array, batches: Array
) -> Array:
    r"""Time in which each of several micro-batches passes all layers, in turns in two pools and on the links between.

    While one is with the experts the next has attention: a pool that is busy all the time sets the pace; with too few
    micro-batches the walk of one through both pools and back does.

    .. math:: t = \max\left(t_a + t_e + t_c,\; m\,t_a,\; m\,t_e,\; m\,t_l\right)

    Parameters
    ----------
    attention_time : Array
        Time t_a of a micro-batch in the attention pool, all layers. [s]
    expert_time : Array
        Time t_e in the expert pool. [s]
    message_time : Array
        Time t_c of its messages, to and fro. [s]
    link_time : Array
        Time t_l for which they occupy a link in one direction. [s]
    batches : Array
        Micro-batches m. [-]

    Returns
    -------
    time : Array
        Of a decode step. [s]

    References
    ----------
    .. [1] R. Zhu et al., "MegaScale-Infer: Serving mixture-of-experts at scale with disaggregated expert parallelism",
       2025, arXiv:2504.02263, section 4.1.
    .. [2] StepFun, "Step-3 is large yet affordable: model-system co-design for cost-effective decoding", 2025,
       arXiv:2507.19427, section 5.

    Equal times in both pools and messages of a quarter of them each way: three micro-batches hide them.

    >>> ping_pong_time(4.0, 4.0, 2.0, 1.0, np.array([1.0, 2.0, 3.0, 4.0])).tolist()
    [10.0, 10.0, 12.0, 16.0]
    """
    walk = array(attention_time) + array(expert_time) + array(message_time)
    busiest = np.maximum(np.maximum(attention_time, expert_time), link_time)
    return np.asarray(np.maximum(walk, array(batches) * busiest))


def fewest_batches(attention_time: Array, expert_time: Array, message_time: Array) -> Array:
    r"""Fewest micro-batches that hide the messages between pools: one of them is then busy all the time.

    .. math:: m \ge \frac{t_a + t_e + t_c}{\max(t_a, t_e)}

    Parameters
    ----------
    attention_time : Array
        Time t_a of a micro-batch in the attention pool. [s]
    expert_time : Array
        Time t_e in the expert pool. [s]
    message_time : Array
        Time t_c of its messages, to and fro. [s]

    Returns
    -------
    batches : Array
        Whole number. [-]

    References
    ----------
    .. [1] R. Zhu et al., "MegaScale-Infer: Serving mixture-of-experts at scale with disaggregated expert parallelism",
       2025, arXiv:2504.02263, section 4.1: m >= 2 (1 + T_c / T_f) where both pools take the same time T_f and a
       message T_c each way; three below half of it, four above.

    >>> fewest_batches(1.0, 1.0, 2.0 * np.array([0.4, 0.6])).tolist()
    [3.0, 4.0]
    """
    walk = array(attention_time) + array(expert_time) + array(message_time)
    return np.asarray(np.ceil(divide(walk, np.maximum(attention_time, expert_time)) * (1.0 - 1e-12)))


def _message_times(attention: Deployment, experts: Deployment, sequences: Array) -> tuple[Array, Array, Array]:
    """Time to send the tokens of a micro-batch to the experts of a layer, back, and what they occupy of a link. [s]

    A token goes to the ranks of its experts, once more to those of experts that all share; ranks that share an expert
    get it each, or one of them, which passes it on: the faster of both.
    """
    plan, other, model = attention.plan, experts.plan, attention.model
    ranks = plan.tensor_parallel * plan.context_parallel, other.tensor_parallel
    each = np.ceil(sequences / plan.data_parallel_attention) * (1.0 + plan.drafted_tokens)
    routed = np.where(model.num_experts > 0.0, model.num_moe_layers / model.num_layers, 0.0)
    width = np.where(model.num_experts > 0.0, model.expert_hidden_size, model.hidden_size)
    shared = np.where(model.shared_ffn_hidden_size > 0.0, 1.0, 0.0)
    chosen = distinct_ranks(other.expert_parallel, np.minimum(model.top_k, model.num_experts) + shared)
    copies = routed * chosen + (1.0 - routed)
    own = each * width / (plan.attention_parallel * plan.context_parallel)
    there, back = np.minimum(plan.input_size, plan.activation_size), plan.activation_size
    apart = np.maximum(0.5 * (ranks[0] + ranks[1]), 1.0)

    def sent(amount: Array) -> Array:
        sizes = amount, amount * ranks[0] / ranks[1]
        return pool_message_time(sizes, apart, (attention, experts), plan.expert_bandwidth)

    start = sent(0.0 * own)
    group = other.expert_tensor_parallel
    direct = sent(own * copies * group * there), sent(own * copies * group * back)
    if not some(group > 1.0):
        return direct[0], direct[1], np.maximum(*direct) - start
    constants, gathering = experts.kernels, experts.kernels["all_gather"]
    gathered = own * copies * ranks[0] / other.expert_parallel
    steps = (("all_gather", there), ("reduce_scatter", back))
    inside = [
        collective_time(
            name, (gathered * size)[:, None], group[:, None], 1.0, experts.network, constants.get(name, gathering)
        )[:, 0]
        for name, size in steps
    ]
    once = sent(own * copies * there), sent(own * copies * back)
    passed = [one + more for one, more in zip(once, inside, strict=True)]
    shorter = (group > 1.0) & (passed[0] + passed[1] < direct[0] + direct[1])
    occupied = np.where(shorter, np.maximum(*once), np.maximum(*direct)) - start
    first, second = (np.where(shorter, *pair) for pair in zip(passed, direct, strict=True))
    return first, second, occupied


def split_step(attention: Deployment, experts: Deployment, batch: Array) -> SplitStep:
    """A decode step of requests whose attention is in one pool and whose feed-forward layers are in another."""
    plan, ones = attention.plan, np.ones_like(batch)
    each = np.ceil(batch / plan.ping_pong_batches)
    batches = np.ceil(batch / each)
    pools = attention.with_batch(each, ones), experts.with_batch(each, ones)
    own, other = (serving_work(pool, (DECODING,)) for pool in pools)
    layers, passes = own.layers, own.passes
    attended = layers * own.parts[:, 0, 0] + passes * own.parts[:, 0, 1]
    fed = layers * other.parts[:, 0, 0]
    there, back, occupied = _message_times(*pools, each)
    sent = np.zeros_like(attended)
    sent[:, COMMUNICATION] = layers[:, 0] * (there + back)
    times = total(attended), total(fed), sent[:, COMMUNICATION]
    link = layers[:, 0] * occupied
    step = ping_pong_time(*times, link, batches)
    busy = np.stack([batches * each for each in (times[0], times[1], link)], axis=-1)
    # Where a pool or the link is never idle the step is its time, else that of one micro-batch on its way.
    limit = np.where(step > np.max(busy, axis=-1), 3, np.argmax(busy, axis=-1))
    repeats = np.where(limit[:, None] == 3, 1.0, batches[:, None] * (np.arange(3) == limit[:, None]))
    parts = repeats[:, :1] * attended + repeats[:, 1:2] * fed + np.where(limit[:, None] == 3, sent, 0.0)
    parts[:, COMMUNICATION] += np.where(limit == 2, busy[:, 2], 0.0)
    longest = np.where(limit == 3, np.argmax(np.stack(times, axis=-1), axis=-1), limit)
    bounds = [serving_bound(pool, work) for pool, work in zip(pools, (own, other), strict=True)]
    bound = np.select([longest == 0, longest == 1], bounds, np.where(np.isnan(step), np.nan, _NETWORK))
    scaled = scaled_times(parts[:, None], attention, (DECODING,))[:, 0]
    needed = fewest_batches(*times)
    shares = busy / step[:, None]
    return SplitStep(scaled, bound, shares, batches, needed, (own, other), (there, back), repeats)


def expert_pool_memory(experts: Deployment, batch: Array) -> BatchMemory:
    """Memory of a rank of an expert pool: weights of its experts, tokens of all micro-batches on their way."""
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
    held = tokens * plan.activation_size * (2.0 * width + layer)
    usable = usable_memory(
        memory.capacity, memory.reserved, memory.weights, held, memory.budget, memory.activation_share
    )
    return BatchMemory(memory.weights, 0.0 * held, held, usable)
