"""Communication of a serving replica: all-reduces, logits, stage transfers, expert and context exchanges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, beside, power, side_by_side, some
from xlperf.equations.hardware.roofline import transfer_time
from xlperf.equations.model.serving import BOTH_PHASES, ServingShape, cache_elements
from xlperf.equations.network.collectives import collective_time
from xlperf.equations.network.topologies import Network
from xlperf.equations.plan.serving_plan import LayerPart
from xlperf.equations.serving.deployment import Batching, Deployment

ALL_REDUCE, GATHERING, TRANSFER, EXCHANGE, CONTEXT = range(5)
_OF_MACHINE = ("peak_flop_rate", "memory_bandwidth", "memory_capacity", "thermal_design_power")
_OF_NETWORK = ("size", "link_bandwidth", "latency")  # what tells machines of two kinds apart
# Rate of links over that of adapters to the network above which they are no slots: adapters sit in slots [-]
_OVER_ADAPTERS = 2.0
_SOFTMAX_ELEMENTS = 4.0  # maximum and sum of a softmax in FP32 take the room of four elements of 16 bits


def distinct_ranks(ranks: Array, chosen: Array) -> Array:
    r"""Ranks that the experts of one token are on, expected under even routing.

    .. math:: n \left(1 - \left(1 - \frac{1}{n}\right)^k\right)

    Heuristic, this work: experts are drawn independently.

    Parameters
    ----------
    ranks : Array
        Ranks n that the experts are split over. [-]
    chosen : Array
        Experts k of a token. [-]

    Returns
    -------
    Array
        Between 1 and k. [-]

    >>> distinct_ranks(np.array([1.0, 2.0]), np.array([2.0, 2.0])).tolist()
    [1.0, 1.5]
    """
    number = array(ranks)
    return np.asarray(number * (1.0 - power(1.0 - 1.0 / number, chosen)))


def _exchange(deployment: Deployment, tokens: Array) -> tuple[Array, Array]:
    """Bytes sent and time of sending tokens to experts and back, (rows, 2): the faster of two ways.

    Each token goes to the ranks of its experts; or all tokens go to all ranks and the results are added up.
    """
    model, network, plan, kernels = deployment.model, deployment.network, deployment.plan, deployment.kernels
    group = plan.tensor_parallel[:, None]
    hidden = model.expert_hidden_size[:, None]
    there = np.minimum(plan.input_size, plan.activation_size)[:, None]
    back = plan.activation_size[:, None]
    chosen = np.minimum(model.top_k, model.num_experts)
    reached = distinct_ranks(plan.expert_parallel, chosen)[:, None] * plan.expert_tensor_parallel[:, None]
    # A rank of several that share the heads sends its share of their tokens.
    own = tokens / plan.attention_parallel[:, None] * hidden
    sent = own * reached
    ways = beside(sent * there, sent * back)
    directly = collective_time("all_to_all", ways, group, 1.0, network, kernels["all_to_all"])
    direct = directly[:, : sent.shape[1]] + directly[:, sent.shape[1] :]
    spread = own * group
    shared = collective_time("all_gather", spread * there, group, 1.0, network, kernels["all_gather"])
    shared = shared + collective_time("reduce_scatter", spread * back, group, 1.0, network, kernels["reduce_scatter"])
    fastest = np.minimum(direct, shared)
    if some(plan.sent_to_nodes):
        crossing = [_by_node(deployment, own * size, sent * size) for size in (there, back)]
        crossed = crossing[0] + crossing[1]
        fastest = np.where(plan.sent_to_nodes[:, None], np.minimum(fastest, crossed), fastest)
    return sent * (there + back), fastest


def _by_node(deployment: Deployment, own: Array, sent: Array) -> Array:
    """Time of one way of an exchange in which a token goes to each node of its experts once, then to their ranks.

    A rank sends to the one of its own place in every other node; both ways are used at the same time.
    """
    model, network, plan, kernels = deployment.model, deployment.network, deployment.plan, deployment.kernels
    group, inside = plan.tensor_parallel[:, None], np.minimum(network.size[:, :1], plan.tensor_parallel[:, None])
    nodes = np.maximum(np.ceil(group / inside), 1.0)
    visited = distinct_ranks(nodes[:, 0], np.minimum(model.top_k, model.num_experts))[:, None]
    across = collective_time("all_to_all", own * visited, nodes, inside, network, kernels["all_to_all"])
    within = collective_time("all_to_all", sent, inside, 1.0, network, kernels["all_to_all"])
    return np.asarray(np.maximum(across, within))


def _context_messages(deployment: Deployment, decoded: Array, batching: Batching) -> tuple[Array, Array]:
    """What context-parallel ranks exchange in one layer, (rows, 2): bytes, and time without overlap.

    In a pass of the prefill keys and values that its chunks of prompts attend to, own ones and those of the cache,
    visit every rank.
    In a decode step each rank has attended to its part of the caches; outputs are added up, weighted by the
    sums of their softmaxes.
    """
    model, network, plan, kernels = deployment.model, deployment.network, deployment.plan, deployment.kernels
    latent = deployment.architecture.latent_attention
    group, stride = plan.context_parallel[:, None], plan.tensor_parallel[:, None]
    seen = plan.chunk_context
    near = np.minimum(seen, model.window) if some(model.num_local_layers > 0.0) else seen
    local = model.num_local_layers / model.num_layers
    elements = cache_elements(model, plan.attention_parallel, latent)
    chunks = batching.own_prompts * plan.chunks / batching.passes
    held = (chunks * elements * plan.attention_size * ((1.0 - local) * seen + local * near))[:, None]
    block = held / group
    turn = collective_time("point_to_point", block, group, stride, network, kernels["point_to_point"])
    gathered = collective_time("all_gather", held, group, stride, network, kernels["all_gather"])
    prefill = np.where(plan.ring[:, None] > 0.0, (group - 1.0) * turn, gathered)
    heads = np.ceil(model.num_attention_heads / plan.attention_parallel)
    width = model.kv_lora_rank if latent else model.head_size
    outputs = (decoded * heads * ((width + _SOFTMAX_ELEMENTS) * plan.activation_size))[:, None]
    decode = collective_time("all_reduce", outputs, group, stride, network, kernels["all_reduce"])
    return beside(held, outputs), beside(prefill, decode)


def quick_all_reduce_time(
    message_size: Numeric, group_size: Numeric, network: Network, constants: Mapping[str, Array]
) -> Array:
    r"""Time of the one-shot and two-shot all-reduce kernels of serving engines, inside the innermost tier.

    One shot: each rank reads the buffers of all others and adds them up. Two shots: each rank adds up its piece of
    all buffers, then reads the pieces of the others. The faster is taken. Groups that leave the innermost tier have
    no such kernels.

    .. math:: t = \min\left(t_0 + \frac{(n - 1) S}{\eta B},\ 2 t_0 + \frac{2 (n - 1) S}{n \eta B}\right)

    Heuristic, this work, after the one-shot and two-shot kernels of TensorRT-LLM and vLLM.
    """
    size, group = np.broadcast_arrays(array(message_size), array(group_size))
    bandwidth = constants["bandwidth_efficiency"] * network.link_bandwidth[:, :1]
    start = constants["launch_time"] + network.latency[:, :1]
    others = group - 1.0
    time = np.minimum(start + others * size / bandwidth, 2.0 * start + 2.0 * (others / group) * size / bandwidth)
    return np.asarray(np.where(group == 1.0, 0.0 * size, time))


def engine_all_reduce_time(
    message_size: Numeric,
    group_size: Numeric,
    stride: Numeric,
    network: Network,
    kernels: Mapping[str, Mapping[str, Array]],
) -> Array:
    r"""Time of an all-reduce of a serving engine: of its library or, inside the innermost tier, its own if faster.

    Kernels of engines read the memory of other accelerators: more than two are to have links. Cards in slots have what
    their adapters to the network have: an innermost tier that is less than twice as fast as the next.

    .. math:: t = \min(t_{library}, t_{engine})

    References
    ----------
    .. [1] R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in MPICH",
       Int. J. High Perform. Comput. Appl. 19(1), 2005, doi:10.1177/1094342005051521.
    .. [2] vLLM, custom_all_reduce.py: not supported on more than two PCIe-only GPUs; where there are more it is hardly
       faster than NCCL.
    """
    found = collective_time("all_reduce", message_size, group_size, stride, network, kernels["all_reduce"])
    quick = quick_all_reduce_time(message_size, group_size, network, kernels["engine_all_reduce"])
    links, next_tier = network.link_bandwidth, network.size[:, 1:2] > network.size[:, :1]
    slots = next_tier & (links[:, :1] <= _OVER_ADAPTERS * links[:, 1:2]) if links.shape[1] > 1 else False
    inside = (array(group_size) <= network.size[:, :1]) & (array(stride) == 1.0)
    inside = inside & (np.logical_not(slots) | (array(group_size) <= 2.0))
    return np.where(inside, np.minimum(found, quick), found)


def hidden_exchange(time: Array, attention: Array, ring: Array, context_parallel: Array) -> Array:
    r"""Time of the exchange of keys and values that attention does not hide.

    In a ring the next block of keys is on its way while attention works on the last; the last has nothing behind it.

    .. math:: t = \max\left(t_x - r\,\frac{c - 1}{c}\,t_a,\ 0\right)

    Parameters
    ----------
    time : Array
        Time t_x of the exchange alone. [s]
    attention : Array
        Time t_a of the attention of the same layer. [s]
    ring : Array
        Ring r: 1 where blocks go round a ring, 0 where all are gathered before. [-]
    context_parallel : Array
        Ranks c. [-]

    Returns
    -------
    Array
        0 where all is hidden. [s]

    References
    ----------
    .. [1] H. Liu, M. Zaharia and P. Abbeel, "Ring attention with blockwise transformers for near-infinite context",
       2023, arXiv:2310.01889.

    An exchange of 10 s in a ring of four: three quarters of 8 s of attention hide 6 s of it.

    >>> [float(hidden_exchange(10.0, 8.0, ring, 4.0)) for ring in (1.0, 0.0)]
    [4.0, 10.0]
    """
    behind = array(ring) * (1.0 - 1.0 / array(context_parallel)) * array(attention)
    return np.asarray(np.maximum(array(time) - behind, 0.0))


def pool_message_time(
    sizes: tuple[Array, Array], distance: Array, ends: tuple[Deployment, Deployment], bandwidth: Array
) -> Array:
    r"""Time in which the ranks of one pool send to those of another, or receive from them.

    Pools of unlike machines share no tier but the outermost of each; the end that takes longer sets the pace.

    .. math:: t = \max\left(t_1(S_1), t_2(S_2)\right)

    Heuristic, this work.
    """

    def outside(share: float) -> Array:
        times = (
            _sent(end, share * size[:, None], _outermost(end.network)) for end, size in zip(ends, sizes, strict=True)
        )
        return np.asarray(np.maximum(*times))

    unlike, given, larger = _unlike(*ends), ~np.isnan(bandwidth), np.maximum(*sizes)
    time = _sent(ends[0], larger[:, None], distance[:, None])
    if some(unlike):
        time = np.where(unlike, outside(1.0), time)
    if some(given):
        time = np.where(given, outside(0.0) + transfer_time(larger, bandwidth), time)
    return time


def _sent(deployment: Deployment, size: Array, distance: Array) -> Array:
    """Time in which a rank of a pool sends a message over a distance of ``distance`` ranks, (rows,). [s]"""
    constants, pair = deployment.kernels["point_to_point"], np.full_like(size, 2.0)
    return np.asarray(collective_time("point_to_point", size, pair, distance, deployment.network, constants)[:, 0])


def _outermost(network: Network) -> Array:
    """Distance of ranks that only the outermost tier connects: machines of two kinds share no other, (rows, 1). [-]"""
    whole = np.max(network.size, axis=-1, keepdims=True)
    return np.asarray(np.max(np.where(network.size < whole, network.size, 1.0), axis=-1, keepdims=True))


def _unlike(one: Deployment, other: Deployment) -> np.ndarray:
    """Where two pools have other accelerators or other networks, (rows,)."""
    parts = [(getattr(one.device, name), getattr(other.device, name)) for name in _OF_MACHINE]
    parts += [(getattr(one.network, name), getattr(other.network, name)) for name in _OF_NETWORK]
    other_kind = [(a != b) & ~(np.isnan(a) & np.isnan(b)) for a, b in parts]
    return np.asarray(np.any(np.concatenate(other_kind, axis=-1), axis=-1))


class Messages(NamedTuple):
    """What a rank sends and receives in each phase: the last axis is all-reduce, logits, stage, experts, context."""

    size: Array  # bytes of one message, (rows, phases, 5) [B]
    time: Array  # its time by itself, (rows, phases, 5) [s]
    # All-reduces, exchanges with experts and exchanges between context-parallel ranks of a layer, (rows, 3) [-]
    calls: Array


def serving_messages(
    deployment: Deployment, shape: ServingShape, batching: Batching, phases: tuple[int, ...] = BOTH_PHASES
) -> Messages:
    """Messages of a layer, of a pass of the prefill and of a decode step."""
    model, network, plan = deployment.model, deployment.network, deployment.plan
    kernels, architecture = deployment.kernels, deployment.architecture
    ranks, stages = plan.attention_parallel[:, None], plan.pipeline_parallel[:, None]
    tokens, _, sampled = (side_by_side(*values) for values in zip(*map(shape.of, phases), strict=True))
    hidden = tokens * (model.hidden_size * plan.activation_size)[:, None]
    logits = sampled * (model.vocab_size * plan.activation_size)[:, None]
    sizes = side_by_side(hidden, logits, hidden, 0.0 * hidden, 0.0 * hidden)
    times = 0.0 * sizes
    group = ranks
    reduces = np.full_like(plan.tensor_parallel, 2.0)
    if architecture.linear_attention:
        reduces = reduces * (0.5 * model.num_blocks)
    exchanges = np.zeros_like(reduces)
    if some(ranks != 1.0):
        times[..., ALL_REDUCE] = engine_all_reduce_time(hidden, group, 1.0, network, kernels)
        times[..., GATHERING] = collective_time("all_gather", logits, ranks, 1.0, network, kernels["all_gather"])
    if some(stages != 1.0):
        times[..., TRANSFER] = collective_time(
            "point_to_point", hidden, stages, plan.stage_ranks[:, None], network, kernels["point_to_point"]
        )
    if architecture.experts and some(plan.data_parallel_attention != 1.0):
        size, time = _exchange(deployment, tokens)
        exchanging = plan.data_parallel_attention > 1.0
        sizes[..., EXCHANGE] = np.where(exchanging[:, None], size, 0.0)
        times[..., EXCHANGE] = np.where(exchanging[:, None], time, 0.0)
        exchanges = np.where(exchanging, model.num_moe_layers / model.num_layers, 0.0)
        reduces = reduces - exchanges
    own = plan.computes(LayerPart.ATTENTION)
    if own is not None:
        # The attention pool adds up its outputs; what expert pools exchange is part of sending tokens to them.
        part = plan.layer_part
        reduces = np.where(part == LayerPart.ATTENTION, 1.0, reduces) * own
        exchanges, times = np.where(part == LayerPart.WHOLE, exchanges, 0.0), times * own[:, None, None]
    split = plan.context_parallel > 1.0
    if split.any():
        shared = _context_messages(deployment, shape.decode_tokens, batching)
        for values, own in zip((sizes, times), shared, strict=True):
            values[..., CONTEXT] = np.where(split[:, None], own[:, list(phases)], 0.0)
    return Messages(sizes, times, side_by_side(reduces, exchanges, np.where(split, 1.0, 0.0)))
