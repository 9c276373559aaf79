"""Collectives of a training step: messages of each parallel dimension, time of one call, and calls per step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, power, side_by_side, some
from xlperf.equations.hardware.roofline import transfer_time, vector_time
from xlperf.equations.model.model import distinct_share
from xlperf.equations.network.collectives import Call, collective_times
from xlperf.equations.plan.dimensions import TRAINING_DIMENSIONS
from xlperf.equations.plan.records import ContextMethod, QuantizedCopies, Recompute, TensorOverlap, TokenDispatch
from xlperf.equations.training.setting import Setting, StageParameters, quantized_weights

OPERATIONS = {name: operation for dimension in TRAINING_DIMENSIONS for name, operation in dimension.messages.items()}
"""Collective operation of each message of a parallel dimension."""


class Collective(NamedTuple):
    """One call of a collective operation, (rows,)."""

    operation: str
    time: Array  # first send to last receive [s]
    message_size: Array  # [B]


class _Message(NamedTuple):
    """One call of a collective, not timed yet, (rows,)."""

    size: Array  # [B]
    group: Array  # ranks; 1: no communication [-]
    stride: Array  # distance of neighbouring ranks of the group [-]
    calls: Array | None = None  # the message is sent in so many calls [-]


Communication = Mapping[str, Collective]
"""Collectives of a plan by the message names of the parallel dimensions; of layers one call per block and direction."""


def _timed(setting: Setting, messages: dict[str, _Message]) -> Communication:
    """Time of all messages, batched by operation; groups of one rank cost nothing."""
    silent = 0.0 * setting.plan.tokens
    sizes = {name: messages[name].size if name in messages else silent for name in OPERATIONS}
    timed = {name: Collective(operation, 0.0 * sizes[name], sizes[name]) for name, operation in OPERATIONS.items()}
    calling = {name: message for name, message in messages.items() if some(message.group != 1.0)}
    calls = {
        name: Call(OPERATIONS[name], *(values[:, None] for values in message[:3])) for name, message in calling.items()
    }
    for name, time in collective_times(calls, setting.network, setting.constants).items():
        timed[name] = timed[name]._replace(time=time[:, 0])
    for name, message in messages.items():
        if message.calls is not None:
            call = timed[name]
            timed[name] = Collective(call.operation, message.calls * call.time, message.calls * call.message_size)
    return timed


def _gathered_shares(setting: Setting) -> tuple[Array, Array]:
    """Bytes of gathered inputs and of gathered gradients over bytes of the residual stream, (rows,). [-]"""
    plan = setting.plan
    if not some(plan.keeps_copies):
        return np.ones(len(plan)), np.ones(len(plan))
    cast = np.where(plan.keeps_copies & ~plan.frozen, setting.narrow_share, 0.0)
    each = plan.product_size / plan.element_size
    return 1.0 - cast * (1.0 - each), 1.0 - cast * (1.0 - plan.gathered_layouts * each)


def _tensor_messages(setting: Setting) -> dict[str, _Message]:
    """Activations between blocks: an all-reduce, or with sequence parallelism an all-gather and a reduce-scatter. GEMM
    inputs are cast before the gather (Transformer Engine: "quantized all-gather"); gradients, inputs of two GEMMs, in
    both layouts unless one layout follows from the other. Sums and inputs of adapters are wide.
    """
    plan = setting.plan
    narrow, both = _gathered_shares(setting)
    split, stride = plan.sequence_parallel > 0, plan.strides["tp"]
    whole, halves = np.where(split, 1.0, plan.tensor_parallel), plan.stream_ranks  # ranks of an all-reduce, of a gather
    messages = {
        "tensor_reduce": _Message(setting.stream_size, whole, stride),
        "tensor_gather": _Message(narrow * setting.stream_size, halves, stride),
        "tensor_gradient_gather": _Message(both * setting.stream_size, halves, stride),
        "tensor_scatter": _Message(setting.stream_size, halves, stride),
    }
    gathers = plan.loss_shards < plan.tensor_parallel
    if some(gathers):
        size = plan.tokens * setting.model.vocab_size * plan.element_size
        ranks = np.where(gathers, plan.tensor_parallel, 1.0)
        messages["logits_gather"] = _Message(size, ranks, stride)
    return messages


def _context_messages(setting: Setting) -> dict[str, _Message]:
    """Keys and values of a part of the sequence: sent around a ring, gathered, or exchanged for heads (Ulysses)."""
    model, plan = setting.model, setting.plan
    heads = setting.shard.heads
    groups = np.where(model.latent_attention > 0, heads, setting.shard.groups)
    pair = model.qk_head_size + model.v_head_size
    keys_and_values = plan.tokens * groups * pair * plan.element_size
    queries_and_output = plan.tokens * heads * pair * plan.element_size

    def message(method: float, size: Array) -> _Message:
        group = np.where(plan.context_method == method, plan.context_parallel, 1.0)
        return _Message(size, group, plan.strides["cp"])

    whole = keys_and_values * plan.context_parallel
    return {
        "context_step": message(ContextMethod.RING, keys_and_values),
        "context_gather": message(ContextMethod.ALL_GATHER, whole),
        "context_exchange": message(ContextMethod.ULYSSES, queries_and_output + keys_and_values),
    }


def _sent_share(setting: Setting) -> Array:
    """Sent share of token copies: one copy per rank or node of the experts, or one per expert, (rows,). [-]"""
    model, plan = setting.model, setting.plan
    # groups of the dispatch: nodes if experts are on several, else ranks
    inside = np.maximum(setting.network.size[:, 0] / plan.expert_strides["ep"], 1.0)
    across = plan.expert_parallel / np.minimum(inside, plan.expert_parallel)
    share = distinct_share(np.where(across > 1.0, across, plan.expert_parallel), model.top_k)
    most = np.minimum(np.where(across > 1.0, plan.dispatch_nodes, np.inf), plan.dispatch_ranks)
    share = np.minimum(share, most / np.maximum(model.top_k, 1.0))
    share = np.where(plan.token_dispatch == TokenDispatch.COPIES, 1.0, share)
    # with a capacity, buffers of one size for each expert
    return np.where(np.isnan(plan.expert_capacity), share, plan.expert_capacity)


def _expert_messages(setting: Setting) -> dict[str, _Message]:
    """Tokens sent to the ranks of their experts, and gathered over the tensor-parallel ranks of an expert."""
    model, plan = setting.model, setting.plan
    routed, _, _ = setting.routed
    copies = routed * model.top_k * model.expert_hidden_size
    sent = _sent_share(setting) * copies * plan.dispatch_size
    stream = copies * plan.element_size * plan.expert_tensor_parallel
    shared = plan.expert_tensor_parallel, plan.expert_strides["tp"]
    return {
        "expert_exchange": _Message(sent, plan.expert_parallel, plan.expert_strides["ep"]),
        "expert_gather": _Message(stream, *shared),
        "expert_scatter": _Message(stream, *shared),
    }


def _saved_size(setting: Setting) -> Array:
    """Bytes saved per GEMM weight by gathering in low precision, (rows,). [B]"""
    plan = setting.plan
    if not some(plan.quantized):
        return np.zeros(len(plan))
    primary = plan.quantized & (plan.quantized_copies == QuantizedCopies.PRIMARY) & (plan.turns > 0)
    share = np.where(primary, setting.narrow_share, 0.0)
    return np.asarray(share * (plan.element_size - plan.product_size))


def _replica_messages(setting: Setting, parameters: StageParameters, quantized: Array) -> dict[str, _Message]:
    """Reduction of dense gradients over replicas and gathering of dense weights from their shards. Sharded gradients
    are reduce-scattered within the ranks of one set of shards, then all-reduced between such groups. With adapters
    ZeRO-1 and 2 gather adapters only.
    """
    model, plan = setting.model, setting.plan
    shards = np.where(plan.zero_stage > 0, plan.zero_shards, 1.0)
    stride = np.minimum(plan.strides["cp"], plan.strides["dp"])
    # software may send one message per tensor of a layer
    tensors = setting.constants["training_calls"]["tensors_per_layer"][:, 0]
    calls = np.maximum(tensors * (model.num_layers / plan.pipeline_parallel), 1.0)
    gradients = parameters.trained * plan.gradient_size
    weights = parameters.dense * plan.element_size - quantized * _saved_size(setting)
    only_trained = plan.frozen & (plan.zero_stage < 3)
    weights = np.where(only_trained, parameters.trained * plan.element_size, weights)
    groups = plan.shards / shards
    return {
        "gradient_reduce": _Message(gradients / calls, shards, stride, calls),
        "group_reduce": _Message(gradients / shards / calls, groups, stride * shards, calls),
        "weight_gather": _Message(weights / calls, shards, stride, calls),
    }


def _expert_replica_messages(setting: Setting, parameters: StageParameters) -> dict[str, _Message]:
    """Reduction of gradients and gathering of weights of routed experts."""
    plan = setting.plan
    shards = np.where(plan.zero_stage > 0, plan.expert_zero_shards, 1.0)
    stride = plan.expert_strides["dp"]
    gradients = parameters.trained_experts * plan.gradient_size
    weights = parameters.experts * (plan.element_size - _saved_size(setting))
    weights = np.where(plan.frozen & (plan.zero_stage < 3), 0.0, weights)
    groups = plan.expert_shards / shards
    return {
        "expert_gradient_reduce": _Message(gradients, shards, stride),
        "expert_group_reduce": _Message(gradients / shards, groups, stride * shards),
        "expert_weight_gather": _Message(weights, shards, stride),
    }


def communication_of(setting: Setting) -> Communication:
    """Time and size of every collective of a step.

    Gradients of 14.0 M parameters in FP32 over 4 replicas with 100 GB/s each: 3/4 x 56 MB / 100 GB/s; weights of 16
    bits are gathered in half of the time.

    >>> from ideal_machine import setting
    >>> collectives = communication_of(setting(num_accelerators=4, data_parallel=4, global_batch_size=4))
    >>> collectives["gradient_reduce"].time.tolist(), collectives["weight_gather"].time.tolist()
    ([0.00042], [0.00021])
    """
    plan = setting.plan
    quantized = quantized_weights(plan, setting.parameters, setting.pipeline.middle)
    messages = {
        **_tensor_messages(setting),
        **_context_messages(setting),
        "stage_transfer": _Message(
            setting.stream_size / plan.tensor_parallel, plan.pipeline_parallel, plan.strides["pp"]
        ),
        **_replica_messages(setting, setting.fullest, quantized),
    }
    if setting.architecture.experts:
        messages |= _expert_messages(setting)
        messages |= _expert_replica_messages(setting, setting.fullest)
    return _timed(setting, messages)


_ROOM = 0.94  # share of the memory for the allocator; communication buffers take the rest [-]
_CERTAINTY = 40.0  # steepness of the chance of a full allocator: 1.7 over an error of 4 % of its memory [-]
# latency of a ring step over NVLink over that over a network, by NCCL's table for large messages [-]
_STEP_INSIDE = 3.4 / 14.0
# share of the memory bandwidth of DTensor copies: beside collectives of 0.6 ms, 384 of 268 MB each make a step of Llama
# 3 8B on eight H100 (2.4 TB/s) with four tensor-parallel ranks 0.36 s longer (pytorch issue 88838) [-]
_COPIED = 0.65


def _copy_time(setting: Setting) -> Array:
    """Time of the tensor copy of a DTensor collective, (rows,). [s]

    DTensor gathers along the first dimension, the sequence is the second: a copy reorders the chunks after a gather and
    before a scatter (pytorch torch/distributed/_functional_collectives.py; torchtitan pull request 437). Asynchronous
    tensor parallelism has no copy.
    """
    plan, device = setting.plan, setting.device
    traffic = 2.0 * setting.stream_size[:, None]
    eager = transfer_time(traffic, device.memory_bandwidth, _COPIED)
    time = np.where(plan.compiled[:, None] > 0.0, vector_time(device, setting.constants["vector"], traffic, 0.0), eager)
    copied = (plan.copied_gathers > 0.0) & (plan.tensor_overlap != TensorOverlap.ALL) & (plan.tensor_parallel > 1.0)
    return np.where(copied, time[:, 0], 0.0)


def tensor_times(setting: Setting, communication: Communication) -> Array:
    """Exposed tensor-parallel communication of one block, forward and backward, (rows, 2). [s]

    With sequence parallelism the backward pass gathers the gradients of the output and, again, the input
    (arXiv:2205.05198, section 4.2.2). In gradient-only overlap the input all-gather hides behind the dgrad GEMM and the
    reduce-scatter behind wgrad; the gather of output gradients is exposed.
    """
    plan = setting.plan
    split = plan.sequence_parallel > 0
    gather, gradients, scatter, reduced = (
        communication[f"tensor_{name}"].time for name in ("gather", "gradient_gather", "scatter", "reduce")
    )
    if some(plan.copied_gathers):
        copy = _copy_time(setting)
        gather, scatter, gradients = gather + copy, scatter + copy, gradients + copy
    time, time_backward = np.where(split, gather + scatter, reduced), np.where(split, gradients + scatter, reduced)
    hidden = setting.constants["training_software"]["tensor_parallel_overlap"][:, 0]
    forward = time * (1.0 - np.where(plan.tensor_overlap == TensorOverlap.ALL, hidden, 0.0))
    again = np.where(split, plan.gathers_again * gather, 0.0)
    beside = np.where(split & (plan.tensor_overlap != TensorOverlap.ALL), again + scatter, time_backward + again)
    return side_by_side(
        forward, time_backward + again - np.where(plan.tensor_overlap != TensorOverlap.NONE, hidden, 0.0) * beside
    )


def context_time(setting: Setting, communication: Communication, forward_core: Array, backward_core: Array) -> Array:
    """Exposed context-parallel communication of one attention block, forward and backward, (rows, 2). [s]

    A ring hides each exchange behind the attention to the current block of keys; all-gathers and Ulysses' all-to-alls
    are exposed. The backward pass moves keys, values and their gradients. ``forward_core``, ``backward_core``: kernels
    of the attention core of one layer, (rows,). [s]
    """
    plan = setting.plan
    size = plan.context_parallel
    step, steps = communication["context_step"].time, size - 1.0
    ring = side_by_side(
        steps * np.maximum(step - forward_core / size, 0.0), steps * np.maximum(2.0 * step - backward_core / size, 0.0)
    )
    exchange, gather = communication["context_exchange"].time, communication["context_gather"].time
    ring[:, 0] += gather + exchange
    ring[:, 1] += 2.0 * gather + exchange
    return ring


def waits_of_calls(setting: Setting, layers: Array, reserved: Array) -> Array | float:
    r"""Exposed host time of a step: per-tensor collectives of ``layers`` of a stage, and retries of the allocator. [s]

    .. math:: t = L\,\left((M - 1 + 0.24 (n - M))\,t_{shard} + n_{replicas} t_{reduction}\right)
        + \frac{m\,t_{retry}}{1 + (0.94 C / R)^{k}}

    ZeRO 1 and 2 may launch a ring per slice of a tensor: M - 1 of its n - 1 steps over M machines are between machines,
    n - M within one, at a quarter of the latency (NCCL 2.19, src/graph/tuning.cc). Without sharding, gradients may be
    reduced tensor by tensor. An allocator without room for R ``reserved`` bytes returns its cache to the driver and
    asks again in each of the m micro-batches; R over the capacity C is known to 4 % (k = 40), and the time is its
    expectation. Heuristic, this work.
    """
    plan, calls = setting.plan, setting.constants["training_calls"]
    shard = setting.constants["training_software"]["shard_overhead_time"][:, 0]
    reduction, retry = calls["reduction_time"][:, 0], calls["retry_time"][:, 0]
    if not some(shard + reduction + retry):
        return 0.0
    # per layer: ring steps of slices over shards, or reductions over replicas, tensor by tensor
    inside = np.maximum(setting.network.size[:, 0] / plan.strides["dp"], 1.0)
    machines = np.maximum(plan.zero_shards / inside, 1.0)
    hops = machines - 1.0 + _STEP_INSIDE * np.maximum(plan.zero_shards - machines, 0.0)
    sliced = (plan.zero_stage > 0) & (plan.zero_stage < 3)
    whole = (plan.zero_stage < 1) & (plan.shards > 1)
    handed = np.where(sliced, hops * shard, 0.0) + np.where(whole, plan.shards * reduction, 0.0)
    # probability of a full allocator
    filled = power(np.minimum(reserved / (_ROOM * setting.device.memory_capacity[:, 0]), 2.0), _CERTAINTY)
    full = filled / (1.0 + filled)
    retried = np.where(np.isnan(reserved), reserved, plan.num_micro_batches * retry * full)
    return np.asarray(layers * handed + retried)


def exposed_collective_time(collective_time: Numeric, computing_time: Numeric, overlap_tax: Numeric) -> Array:
    r"""Time that a collective adds to the kernels that overlap with it.

    Kernels run at 1 - x of their pace during the collective, which shares multiprocessors and memory with them. A
    collective longer than the slowed kernels hides their slowdown.

    .. math:: t = \max(T - C, \ x T)

    Heuristic, this work.

    Kernels of 1 s that lose a fifth of their pace: a collective of 0.5 s costs 0.1 s, a collective of 4 s costs 3 s.

    >>> exposed_collective_time([0.5, 4.0], 1.0, 0.2).tolist()
    [0.1, 3.0]

    Parameters
    ----------
    collective_time : Time T of the collective alone. [s]
    computing_time : Time C of the overlapping kernels alone. [s]
    overlap_tax : Share x of its pace that a kernel loses while the collective runs. [-]

    Returns
    -------
    time : Time beyond the kernels alone; 0 to T. [s]
    """
    alone = array(collective_time)
    return np.asarray(np.maximum(alone - array(computing_time), array(overlap_tax) * alone))


def time_beside_chunks(collective_time: Numeric, span: Numeric, chunks: Numeric, passed: Numeric) -> Array:
    r"""Kernel time that overlaps with the data-parallel collectives of a stage, issued chunk by chunk.

    In an interleaved pipeline a chunk is reduced after its last micro-batch and gathered before its first one; in
    between every other chunk runs p micro-batches. The collective of the last chunk overlaps with its own pass only:

    .. math:: C = \min\left(\left((v - 1) p + 1\right) \frac{t}{v}, \ T - \frac{T - t}{v}\right)

    Source: NVIDIA, Megatron-LM, megatron/core/pipeline_parallel/schedules.py,
    forward_backward_pipelining_with_interleaving: grad_sync_func and param_sync_func of each model chunk.

    Collectives of 4 s, passes of 1 s: one chunk hides 1 s. Of two chunks, 2 s of the first hide behind the second; the
    last 2 s overlap with a half pass.

    >>> time_beside_chunks(4.0, 1.0, [1, 2], 4).tolist()
    [1.0, 2.5]

    Parameters
    ----------
    collective_time : Time T of the collectives of all chunks alone. [s]
    span : Time t of the kernels of one micro-batch in one direction on all chunks. [s]
    chunks : Chunks v of the stage; 1 without interleaving. [-]
    passed : Micro-batches p that a chunk runs before the next chunk. [-]

    Returns
    -------
    time : Time C for :func:`exposed_collective_time`; t for one chunk. [s]
    """
    alone, each = array(collective_time), array(span) / array(chunks)
    whole = ((array(chunks) - 1.0) * array(passed) + 1.0) * each
    return np.asarray(np.minimum(whole, alone - alone / array(chunks) + each))


def exposed_transfer_time(
    transfer_time: Numeric,
    forward_time: Numeric,
    backward_time: Numeric,
    num_micro_batches: Numeric,
    pipeline_parallel: Numeric,
    virtual_pipeline: Numeric,
    overlapped: Numeric,
) -> Array:
    r"""Exposed transfers between neighbouring stages in one step, excluding the bubble.

    A stage sends m v activations and m v gradients. Batched sends and receives (1F1B) are exposed. With overlap,
    activations are sent during the backward pass of another chunk and gradients during a forward pass; transfers of
    warm-up and cool-down stay exposed.

    .. math:: t = 2 w \tau + (m v - w) \left(\max\left(\tau - \frac{F}{v}, 0\right)
        + \max\left(\tau - \frac{B}{v}, 0\right)\right), \quad w = \min((v - 1) p, m v)

    and :math:`t = 2 m v \tau` without overlap.

    Transfers of 1 ms, 8 micro-batches: all 16 with 1F1B; with two overlapped chunks on 4 stages warm-up and cool-down.

    >>> exposed_transfer_time(1e-3, 0.01, 0.02, 8, 4, [1, 2], [0, 1]).tolist()
    [0.016, 0.008]

    Parameters
    ----------
    transfer_time : One transfer tau between neighbouring stages. [s]
    forward_time : Forward pass F of one micro-batch on one stage, all its chunks. [s]
    backward_time : Backward pass B of one micro-batch on one stage, all its chunks. [s]
    num_micro_batches : Micro-batches m per step. [-]
    pipeline_parallel : Stages p; 1 has no transfers. [-]
    virtual_pipeline : Chunks v per stage. [-]
    overlapped : 1 if transfers overlap with the computation of the steady state, 0 if not. [-]

    Returns
    -------
    time : Exposed transfers per step. [s]

    References
    ----------
    .. [1] D. Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM",
       2021, arXiv:2104.04473, section 2.2 (interleaving multiplies the transfers by v; warm-up of the schedule).
    .. [2] NVIDIA, Megatron-LM, megatron/core/pipeline_parallel/schedules.py, get_pp_rank_microbatches and
       forward_backward_pipelining_with_interleaving (overlap_p2p_comm).
    """
    each, stages, chunks = array(transfer_time), array(pipeline_parallel), array(virtual_pipeline)
    count = array(num_micro_batches) * chunks
    warm_up = np.minimum((chunks - 1.0) * stages, count)
    left = np.maximum(each - array(forward_time) / chunks, 0.0) + np.maximum(each - array(backward_time) / chunks, 0.0)
    share = array(overlapped)
    exposed = share * (2.0 * warm_up * each + (count - warm_up) * left) + (1.0 - share) * 2.0 * count * each
    return np.asarray(np.where(stages > 1.0, exposed, 0.0 * exposed))


class CollectiveCalls(NamedTuple):
    """Calls of one collective in a step, (rows,)."""

    result: str  # result that includes their exposed time
    name: str
    collective: Collective  # one call
    calls: Array  # [-]


def collective_calls(
    setting: Setting, communication: Communication, counts: Mapping[str, Array]
) -> list[CollectiveCalls]:
    """Calls of every collective in a step on its critical stage, in the order of results; 0 for unused ones.

    ``counts``: calls per micro-batch of each place on that stage, and its ``layers``, (rows,). With sequence
    parallelism two blocks of a layer scatter once in each pass, embedding and head in one:

    >>> from ideal_machine import setting
    >>> from xlperf.equations.training.step import step
    >>> plan = setting(num_accelerators=2, tensor_parallel=2)
    >>> calls = collective_calls(plan, communication_of(plan), step(plan).counts)
    >>> [float(each.calls[0]) for each in calls if each.name == "tensor-parallel scatter"]
    [6.0]
    """
    plan, batches = setting.plan, setting.plan.num_micro_batches
    attention, mixtures = counts["attention"], counts["moe"]

    # passes over layers, and selectively recomputed blocks
    share = np.minimum(plan.recompute_layers / counts["layers"], 1.0)
    passes = 2.0 + share * (plan.recompute == Recompute.FULL)  # forward, backward, and forward again
    mlp_again, moe_again = (share * plan.again(module) for module in ("mlp", "moe"))

    # tensor and expert parallelism: collectives of blocks, and of embedding, head and MTP modules in one pass
    shared = np.where(setting.model.shared_ffn_hidden_size > 0, 1.0, 0.0)
    blocks = attention + counts.get("linear", 0.0) + counts["mlp"] + mixtures * shared
    outside = counts["head"] + counts["embedding"] + counts["mtp"]
    blocks_again = mlp_again * counts["mlp"] + moe_again * mixtures * shared
    reductions = batches * (passes * blocks + blocks_again + outside)
    split, not_again = plan.sequence_parallel > 0, batches * (1.0 - plan.gathers_again) * blocks
    exchanges = batches * mixtures * (passes + moe_again)
    attended, ring_steps = batches * attention, plan.context_parallel - 1.0
    transfers = batches * 2.0 * plan.virtual_pipeline * (plan.pipeline_parallel > 1)

    # data parallelism: once a step, or for every micro-batch
    repeats = np.where(plan.reduces_each, batches, 1.0)
    gathers = np.where(plan.regathers, 2.0 * repeats, np.where(plan.gathers_forward, repeats, 1.0))
    whole = plan.zero_stage < 1
    sharded = np.where(whole, 0.0, np.where(plan.keeps_sums, 1.0, repeats))
    unsharded, between = np.where(whole, repeats, 0.0), np.where(whole, 0.0, 1.0)

    slower = setting.constants["experts"]["exchange_slowdown"][:, 0]
    exchange = communication["expert_exchange"]
    communication = {**communication, "expert_exchange": exchange._replace(time=slower * exchange.time)}
    listed: tuple[tuple[str, str, Array], ...] = (
        ("tensor_gather", "tensor-parallel gather", np.where(split, reductions - not_again, 0.0)),
        ("tensor_gradient_gather", "tensor-parallel gather of gradients", np.where(split, batches * blocks, 0.0)),
        ("tensor_scatter", "tensor-parallel scatter", np.where(split, reductions, 0.0)),
        ("tensor_reduce", "tensor-parallel reduction", np.where(split, 0.0, reductions)),
        ("logits_gather", "gathering of logits", batches * counts["head"]),
        ("expert_exchange", "expert exchange", 2.0 * exchanges),
        ("expert_gather", "expert gather", exchanges),
        ("expert_scatter", "expert scatter", exchanges),
        ("context_step", "context exchange of a ring", attended * ring_steps * (passes + 1.0)),
        ("context_gather", "context gathering", attended * (passes + 1.0)),
        ("context_exchange", "context exchange of heads", attended * passes),
        ("stage_transfer", "stage transfer", transfers),
        ("group_reduce", "gradient reduction", unsharded),
        ("gradient_reduce", "gradient reduction", sharded),
        ("expert_group_reduce", "expert gradient reduction", unsharded),
        ("expert_gradient_reduce", "expert gradient reduction", sharded),
        ("group_reduce", "gradient reduction between groups", between),
        ("expert_group_reduce", "expert gradient reduction between groups", between),
        ("weight_gather", "weight gathering", gathers),
        ("expert_weight_gather", "expert weight gathering", gathers),
    )
    results = {message: dimension.time for dimension in TRAINING_DIMENSIONS for message in dimension.messages}
    return [CollectiveCalls(results[message], name, communication[message], calls) for message, name, calls in listed]
