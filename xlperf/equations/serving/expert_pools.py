"""Decode steps of an attention and an expert pool, between which micro-batches alternate in every layer (ping-pong)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, array, divide, some, total
from xlperf.equations.model.operators import DECODING
from xlperf.equations.network.collectives import collective_time
from xlperf.equations.serving.communication import distinct_ranks, pool_message_time
from xlperf.equations.serving.deployment import Deployment
from xlperf.equations.serving.memory import BatchMemory, memory_of, usable_memory
from xlperf.equations.serving.phases import BOUNDS, COMMUNICATION, ServingWork, serving_bound, serving_work

# Result columns: utilisation of the pools and of the links between them
POOL_SHARES = ("attention_pool_share", "expert_pool_share", "expert_link_share")
_NETWORK = float(BOUNDS.index("network"))


class SplitStep(NamedTuple):
    """A decode step of an attention and an expert pool, (rows,)."""

    # Time by part (as `phase_times`): of the limiting pool, or of one micro-batch if no pool is always busy, (rows, 5)
    parts: Array
    bound: Array  # limiting resource, a position in `phases.BOUNDS` [-]
    shares: Array  # utilisation of the attention pool, the expert pool and the links, (rows, 3) [-]
    batches: Array  # micro-batches of the step [-]
    needed: Array  # fewest micro-batches that keep one of the pools busy [-]
    work: tuple[ServingWork, ServingWork]  # of a micro-batch in the attention and in the expert pool
    messages: tuple[Array, Array]  # dispatch and combine of a micro-batch in a layer [s]
    repeats: Array  # multiples of a micro-batch's attention, expert and message time in the step, (rows, 3) [-]


def ping_pong_time(
    attention_time: Array, expert_time: Array, message_time: Array, link_time: Array, batches: Array
) -> Array:
    r"""Time of a decode step whose m micro-batches alternate between two pools in every layer.

    While one micro-batch is with the experts, the next has attention. The busiest pool or link sets the pace, or with
    few micro-batches the walk of one through both pools.

    .. math:: t = \max\left(t_a + t_e + t_c,\; m\,t_a,\; m\,t_e,\; m\,t_l\right)

    Parameters
    ----------
    attention_time : Time t_a of a micro-batch in the attention pool, all layers. [s]
    expert_time : Time t_e in the expert pool. [s]
    message_time : Time t_c of its messages in both directions. [s]
    link_time : Time t_l for which they occupy a link in one direction. [s]
    batches : Micro-batches m. [-]

    Returns
    -------
    time : Time of the step. [s]

    References
    ----------
    .. [1] R. Zhu et al., "MegaScale-Infer: Serving mixture-of-experts at scale with disaggregated expert parallelism",
       2025, arXiv:2504.02263, section 4.1.
    .. [2] StepFun, "Step-3 is large yet affordable: model-system co-design for cost-effective decoding", 2025,
       arXiv:2507.19427, section 5.

    Equal times in both pools, messages of a quarter each way: three micro-batches hide them.

    >>> ping_pong_time(4.0, 4.0, 2.0, 1.0, np.array([1.0, 2.0, 3.0, 4.0])).tolist()
    [10.0, 10.0, 12.0, 16.0]
    """
    walk = array(attention_time) + array(expert_time) + array(message_time)
    busiest = np.maximum(np.maximum(attention_time, expert_time), link_time)
    return np.asarray(np.maximum(walk, array(batches) * busiest))


def fewest_batches(attention_time: Array, expert_time: Array, message_time: Array) -> Array:
    r"""Fewest micro-batches that hide the messages between pools and keep one pool busy.

    .. math:: m \ge \frac{t_a + t_e + t_c}{\max(t_a, t_e)}

    Parameters
    ----------
    attention_time : Time t_a of a micro-batch in the attention pool. [s]
    expert_time : Time t_e in the expert pool. [s]
    message_time : Time t_c of its messages in both directions. [s]

    Returns
    -------
    batches : An integer. [-]

    References
    ----------
    .. [1] R. Zhu et al., "MegaScale-Infer: Serving mixture-of-experts at scale with disaggregated expert parallelism",
       2025, arXiv:2504.02263, section 4.1: m >= 2 (1 + T_c / T_f) for pools of equal time T_f and messages of T_c each
       way: three below half of T_f, four above.

    >>> fewest_batches(1.0, 1.0, 2.0 * np.array([0.4, 0.6])).tolist()
    [3.0, 4.0]
    """
    walk = array(attention_time) + array(expert_time) + array(message_time)
    return np.asarray(np.ceil(divide(walk, np.maximum(attention_time, expert_time)) * (1.0 - 1e-12)))


def _message_times(attention: Deployment, experts: Deployment, sequences: Array) -> tuple[Array, Array, Array]:
    """Dispatch, combine and link occupancy of a micro-batch in a layer. [s]

    A token goes to the ranks of its routed and shared experts. Ranks that split an expert each receive it, or one of
    them does and passes it on, whichever is faster.
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
    attention_work, expert_work = (serving_work(pool, (DECODING,)) for pool in pools)
    layers, passes = attention_work.layers, attention_work.passes
    attention_parts = layers * attention_work.parts[:, 0, 0] + passes * attention_work.parts[:, 0, 1]
    expert_parts = layers * expert_work.parts[:, 0, 0]
    dispatch, combine, occupied = _message_times(*pools, size)
    messages = np.zeros_like(attention_parts)
    messages[:, COMMUNICATION] = layers[:, 0] * (dispatch + combine)
    times = total(attention_parts), total(expert_parts), messages[:, COMMUNICATION]
    link = layers[:, 0] * occupied
    step = ping_pong_time(*times, link, batches)
    busy = np.stack([batches * time for time in (times[0], times[1], link)], axis=-1)
    # Parts of the limiting pool or link (0, 1, 2), or of one micro-batch on its way (3).
    limit = np.where(step > np.max(busy, axis=-1), 3, np.argmax(busy, axis=-1))
    repeats = np.where(limit[:, None] == 3, 1.0, batches[:, None] * (np.arange(3) == limit[:, None]))
    parts = repeats[:, :1] * attention_parts + repeats[:, 1:2] * expert_parts
    parts = parts + np.where(limit[:, None] == 3, messages, 0.0)
    parts[:, COMMUNICATION] += np.where(limit == 2, busy[:, 2], 0.0)
    # Limiting resource: of the pool with the longest time.
    longest = np.where(limit == 3, np.argmax(np.stack(times, axis=-1), axis=-1), limit)
    works = attention_work, expert_work
    bounds = [serving_bound(pool, work) for pool, work in zip(pools, works, strict=True)]
    bound = np.select([longest == 0, longest == 1], bounds, np.where(np.isnan(step), np.nan, _NETWORK))
    return SplitStep(
        parts=parts,
        bound=bound,
        shares=busy / step[:, None],
        batches=batches,
        needed=fewest_batches(*times),
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
