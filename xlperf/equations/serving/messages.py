"""Messages of a served layer, of a prefill pass and of a decode step: sizes, times before overlap, and calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, beside, power, side_by_side, some
from xlperf.equations.hardware.roofline import transfer_time
from xlperf.equations.model.operators import BOTH_PHASES, ServingShape, cache_elements, cache_ratio
from xlperf.equations.network.collectives import Call, collective_time, collective_times
from xlperf.equations.network.topologies import FAT_TREE, Network, tier_shape
from xlperf.equations.plan.serving_plan import InferencePlan, LayerPart
from xlperf.equations.serving.deployment import Batching, Deployment

ALL_REDUCE, GATHERING, TRANSFER, EXCHANGE, CONTEXT = range(5)
_OF_MACHINE = ("peak_flop_rate", "memory_bandwidth", "memory_capacity", "thermal_design_power")
_OF_NETWORK = ("size", "link_bandwidth", "latency")
_OVER_ADAPTERS = 2.0  # ratio of link bandwidth to network bandwidth up to which links are PCIe slots [-]
_SOFTMAX_ELEMENTS = 4.0  # 16-bit elements in the size of a softmax's maximum and sum in FP32


def distinct_ranks(ranks: Array, chosen: Array) -> Array:
    r"""Expected number of ranks that hold the experts of one token, under even routing.

    .. math:: n \left(1 - \left(1 - \frac{1}{n}\right)^k\right)

    Heuristic, this work: experts are drawn independently.

    >>> distinct_ranks(np.array([1.0, 2.0]), np.array([2.0, 2.0])).tolist()
    [1.0, 1.5]

    Parameters
    ----------
    ranks : Ranks n that share the experts. [-]
    chosen : Experts k of a token. [-]

    Returns
    -------
    Array : Between 1 and k. [-]
    """
    number = array(ranks)
    return np.asarray(number * (1.0 - power(1.0 - 1.0 / number, chosen)))


def _exchange_calls(deployment: Deployment, tokens: Array) -> tuple[Array, dict[str, Call]]:
    """Bytes of an exchange with experts, and the calls of each way to dispatch tokens and to combine their outputs."""
    model, plan = deployment.model, deployment.plan
    group, alone = plan.tensor_parallel[:, None], np.ones((len(plan), 1))
    hidden = model.expert_hidden_size[:, None]
    there = np.minimum(plan.input_size, plan.activation_size)[:, None]  # bytes of an element that is dispatched
    back = plan.activation_size[:, None]  # and of one that is combined
    chosen = np.minimum(model.top_k, model.num_experts)
    reached = distinct_ranks(plan.expert_parallel, chosen)[:, None] * plan.expert_tensor_parallel[:, None]
    # All-to-all: tensor-parallel ranks send equal shares of their tokens; or all-gather and reduce-scatter.
    elements = tokens / plan.attention_parallel[:, None] * hidden
    sent, whole = elements * reached, elements * group
    calls = {
        "dispatch": Call("all_to_all", sent * there, group, alone),
        "combine": Call("all_to_all", sent * back, group, alone),
        "gather": Call("all_gather", whole * there, group, alone),
        "scatter": Call("reduce_scatter", whole * back, group, alone),
    }
    if some(plan.sent_to_nodes):
        # Hierarchical: a token goes once to each node of its experts, then to ranks.
        inside = np.minimum(deployment.network.size[:, :1], group)
        nodes = np.maximum(np.ceil(group / inside), 1.0)
        visited = distinct_ranks(nodes[:, 0], chosen)[:, None]
        for way, size in (("dispatch", there), ("combine", back)):
            calls[f"{way} across"] = Call("all_to_all", elements * size * visited, nodes, inside)
            calls[f"{way} within"] = Call("all_to_all", sent * size, inside, alone)
    return sent * (there + back), calls


def _exchange_time(plan: InferencePlan, times: Mapping[str, Array]) -> Array:
    """Time of the fastest way to dispatch tokens and to combine their outputs, (rows, phases). [s]"""
    fastest = np.minimum(times["dispatch"] + times["combine"], times["gather"] + times["scatter"])
    if "dispatch across" not in times:
        return fastest
    by_node = [np.maximum(times[f"{way} across"], times[f"{way} within"]) for way in ("dispatch", "combine")]
    return np.where(plan.sent_to_nodes[:, None], np.minimum(fastest, by_node[0] + by_node[1]), fastest)


def _context_calls(deployment: Deployment, decoded: Array, batching: Batching) -> dict[str, Call]:
    """Calls of context-parallel ranks in a layer. In a prefill pass the keys and values that its chunks attend to visit
    every rank in a ring of blocks, or are gathered at once. In a decode step the ranks attend to their parts of the
    cache, and an all-reduce combines their outputs with the softmax sums.
    """
    model, plan = deployment.model, deployment.plan
    latent = deployment.architecture.latent_attention
    group, stride = plan.context_parallel[:, None], plan.tensor_parallel[:, None]
    context = plan.chunk_context
    window = np.minimum(context, model.window) if some(model.num_local_layers > 0.0) else context
    local = model.num_local_layers / model.num_layers
    elements = cache_elements(model, plan.attention_parallel, latent)
    chunks = batching.own_prompts * plan.chunks / batching.passes
    far_width, near_width = cache_ratio(model, plan.attention_parallel, deployment.architecture)
    context = (1.0 - local) * context * far_width + local * window * near_width
    keys = (chunks * elements * plan.attention_size * context)[:, None]
    heads = np.ceil(model.num_attention_heads / plan.attention_parallel)
    width = model.kv_lora_rank if latent else model.head_size
    outputs = (decoded * heads * ((width + _SOFTMAX_ELEMENTS) * plan.activation_size))[:, None]
    return {
        "hop of keys": Call("point_to_point", keys / group, group, stride),
        "keys": Call("all_gather", keys, group, stride),
        "partial outputs": Call("all_reduce", outputs, group, stride),
    }


def _context_time(plan: InferencePlan, times: Mapping[str, Array]) -> Array:
    """Time of the exchange of context-parallel ranks before overlap, (rows, 2). [s]"""
    ring = (plan.context_parallel[:, None] - 1.0) * times["hop of keys"]
    return beside(np.where(plan.ring[:, None] > 0.0, ring, times["keys"]), times["partial outputs"])


def quick_all_reduce_time(
    message_size: Numeric, group_size: Numeric, network: Network, constants: Mapping[str, Array]
) -> Array:
    r"""Time of the one-shot and two-shot all-reduce kernels of serving engines, inside the innermost tier.

    One shot: each of n ranks reads the buffers S of all peers and adds them. Two shots: each rank reduces its piece and
    then reads the pieces of its peers. The faster kernel counts, :math:`\eta B` being the effective link bandwidth, of
    all links to the peers together: a pair of a mesh of eight has one of seven.

    .. math:: t = \min\left(t_0 + \frac{(n - 1) S}{\eta B},\ 2 t_0 + \frac{2 (n - 1) S}{n \eta B}\right)

    Heuristic, this work, after the one-shot and two-shot kernels of TensorRT-LLM and vLLM.
    """
    size, group = array(message_size), array(group_size)
    bandwidth = constants["bandwidth_efficiency"] * network.link_bandwidth[:, :1]
    if some(network.topology[:, 0] > FAT_TREE):
        inside = np.minimum(group, network.size[:, :1])
        bandwidth = bandwidth / tier_shape("all_gather", inside, np.ones(1), network, 0).slowdown
    start = constants["launch_time"] + network.latency[:, :1]
    peers = group - 1.0
    time = np.minimum(start + peers * size / bandwidth, 2.0 * start + 2.0 * (peers / group) * size / bandwidth)
    return np.asarray(np.where(group == 1.0, 0.0 * size, time))


def engine_all_reduce_time(
    message_size: Numeric,
    group_size: Numeric,
    stride: Numeric,
    network: Network,
    kernels: Mapping[str, Mapping[str, Array]],
) -> Array:
    r"""Time of an all-reduce of a serving engine: its library's, or the engine's own kernel inside the innermost tier.

    Engine kernels read the memory of other accelerators, which takes links if there are more than two. An innermost
    tier less than twice as fast as the next one is PCIe, whose slots have no such links. Between machines threads of
    the host post the messages of the library and ranks come late: an all-reduce in a step takes :math:`t_{host}` or
    longer. While a large message moves, that time passes too.

    .. math::
        t = \begin{cases} \min(t_{library}, t_{engine}) & \text{inside a machine} \\
        \max(t_{library}, t_{host}) & \text{else} \end{cases}

    Sources: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in MPICH",
    Int. J. High Perform. Comput. Appl. 19(1), 2005, doi:10.1177/1094342005051521. vLLM, custom_all_reduce.py: not
    supported on more than two PCIe-only GPUs, with hardly any gain over NCCL.
    """
    library = collective_time("all_reduce", message_size, group_size, stride, network, kernels["all_reduce"])
    return _faster_kernel(library, message_size, group_size, stride, network, kernels)


def _faster_kernel(
    library: Array,
    message_size: Numeric,
    group_size: Numeric,
    stride: Numeric,
    network: Network,
    kernels: Mapping[str, Mapping[str, Array]],
) -> Array:
    """:func:`engine_all_reduce_time` from the time of the library."""
    engine = quick_all_reduce_time(message_size, group_size, network, kernels["engine_all_reduce"])
    links, next_tier = network.link_bandwidth, network.size[:, 1:2] > network.size[:, :1]
    slots = next_tier & (links[:, :1] <= _OVER_ADAPTERS * links[:, 1:2]) if links.shape[1] > 1 else False
    inside = (array(group_size) <= network.size[:, :1]) & (array(stride) == 1.0)
    inside = inside & (np.logical_not(slots) | (array(group_size) <= 2.0))
    several = (array(group_size) > 1.0) & (array(group_size) * array(stride) > network.size[:, :1])
    library = np.where(several, np.maximum(library, kernels["engine_all_reduce"]["outer_time"]), library)
    return np.where(inside, np.minimum(library, engine), library)


def pool_message_time(
    sizes: tuple[Array, Array], distance: Array, ends: tuple[Deployment, Deployment], bandwidth: Array
) -> Array:
    r"""Time in which the ranks of one pool send ``sizes`` of bytes to the ranks of another, (rows,). [s]

    Pools of different machines share only the outermost tier of each; the slower end counts. ``distance`` in ranks
    applies to equal machines; a stated ``bandwidth`` [B/s] between the pools replaces their networks.

    .. math:: t = \max\left(t_1(S_1), t_2(S_2)\right)

    Heuristic, this work.
    """

    def outermost(share: float) -> Array:
        times = []
        for end, size in zip(ends, sizes, strict=True):
            tiers = end.network.size
            inner = np.where(tiers < np.max(tiers, axis=-1, keepdims=True), tiers, 1.0)
            times.append(_sent(end, share * size[:, None], np.max(inner, axis=-1, keepdims=True)))
        return np.asarray(np.maximum(*times))

    different, stated, larger = _different(*ends), ~np.isnan(bandwidth), np.maximum(*sizes)
    time = _sent(ends[0], larger[:, None], distance[:, None])
    if some(different):
        time = np.where(different, outermost(1.0), time)
    if some(stated):
        time = np.where(stated, outermost(0.0) + transfer_time(larger, bandwidth), time)
    return time


def _sent(deployment: Deployment, size: Array, distance: Array) -> Array:
    """Time in which a rank of a pool sends a message over a distance in ranks, (rows,). [s]"""
    constants, pair = deployment.kernels["point_to_point"], np.full_like(size, 2.0)
    return np.asarray(collective_time("point_to_point", size, pair, distance, deployment.network, constants)[:, 0])


def _different(first: Deployment, second: Deployment) -> np.ndarray:
    """Whether two pools have different accelerators or networks, (rows,)."""
    parts = [(getattr(first.device, name)[:, :1], getattr(second.device, name)[:, :1]) for name in _OF_MACHINE]
    parts += [(getattr(first.network, name), getattr(second.network, name)) for name in _OF_NETWORK]
    differs = [(a != b) & ~(np.isnan(a) & np.isnan(b)) for a, b in parts]
    return np.asarray(np.any(np.concatenate(differs, axis=-1), axis=-1))


class Messages(NamedTuple):
    """Messages of a rank in each phase; last axis: all-reduce, logits, stage transfer, experts, context."""

    size: Array  # bytes of one message, (rows, phases, 5) [B]
    time: Array  # unoverlapped time, (rows, phases, 5) [s]
    calls: Array  # all-reduces, expert exchanges and context exchanges of a layer, (rows, 3) [-]


def serving_messages(
    deployment: Deployment, shape: ServingShape, batching: Batching, phases: tuple[int, ...] = BOTH_PHASES
) -> Messages:
    """Messages of a layer, of a prefill pass and of a decode step."""
    model, network, plan = deployment.model, deployment.network, deployment.plan
    kernels, architecture = deployment.kernels, deployment.architecture
    ranks, stages = plan.attention_parallel[:, None], plan.pipeline_parallel[:, None]
    tokens, _, sampled = (side_by_side(*values) for values in zip(*map(shape.of, phases), strict=True))
    hidden = tokens * (model.hidden_size * plan.activation_size)[:, None]
    logits = sampled * (model.vocab_size * plan.activation_size)[:, None]
    sizes = side_by_side(hidden, logits, hidden, 0.0 * hidden, 0.0 * hidden)
    times = 0.0 * sizes
    alone, calls = np.ones_like(ranks), dict[str, Call]()
    if some(ranks != 1.0):
        calls["all-reduce"] = Call("all_reduce", hidden, ranks, alone)
        calls["logits"] = Call("all_gather", logits, ranks, alone)
    if some(stages != 1.0):
        calls["transfer"] = Call("point_to_point", hidden, stages, plan.stage_ranks[:, None])
    with_exchanges = architecture.experts and some(plan.data_parallel_attention != 1.0)
    if with_exchanges:
        exchanged, of_exchange = _exchange_calls(deployment, tokens)
        calls |= of_exchange
    split = plan.context_parallel > 1.0
    with_contexts = some(split)
    if with_contexts:
        calls |= _context_calls(deployment, shape.decode_tokens, batching)
    timed = collective_times(calls, network, kernels)
    # All-reduces: one per block, less the blocks whose outputs an expert exchange combines.
    reduces = np.full_like(plan.tensor_parallel, 2.0)
    if architecture.counted:
        # Attention and the linear block beside it reduce their outputs one after the other.
        reduces = reduces * (0.5 * model.num_blocks) + model.num_parallel_layers / model.num_layers
    exchanges = np.zeros_like(reduces)
    if "all-reduce" in timed:
        times[..., ALL_REDUCE] = _faster_kernel(timed["all-reduce"], hidden, ranks, 1.0, network, kernels)
        times[..., GATHERING] = timed["logits"]
    if "transfer" in timed:
        times[..., TRANSFER] = timed["transfer"]
    if with_exchanges:
        exchanging = plan.data_parallel_attention > 1.0
        sizes[..., EXCHANGE] = np.where(exchanging[:, None], exchanged, 0.0)
        times[..., EXCHANGE] = np.where(exchanging[:, None], _exchange_time(plan, timed), 0.0)
        exchanges = np.where(exchanging, model.num_moe_layers / model.num_layers, 0.0)
        reduces = reduces - exchanges
    attention = plan.computes(LayerPart.ATTENTION)
    if attention is not None:
        # Attention pools all-reduce their outputs; messages between the pools replace expert exchanges.
        part = plan.layer_part
        reduces = np.where(part == LayerPart.ATTENTION, 1.0, reduces) * attention
        exchanges, times = np.where(part == LayerPart.WHOLE, exchanges, 0.0), times * attention[:, None, None]
    if with_contexts:
        messages = beside(calls["keys"].size, calls["partial outputs"].size), _context_time(plan, timed)
        for values, of_phases in zip((sizes, times), messages, strict=True):
            values[..., CONTEXT] = np.where(split[:, None], of_phases[:, list(phases)], 0.0)
    return Messages(sizes, times, side_by_side(reduces, exchanges, np.where(split, 1.0, 0.0)))
