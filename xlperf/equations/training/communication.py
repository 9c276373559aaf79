"""Collectives of a training step: the messages of each parallelism, the time of one call, and calls per step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, power, side_by_side, some
from xlperf.equations.hardware.roofline import transfer_time, vector_time
from xlperf.equations.model.experts import distinct_share
from xlperf.equations.network.collectives import collective_time
from xlperf.equations.plan.records import ContextMethod, QuantizedCopies, Recompute, TensorOverlap, TokenDispatch
from xlperf.equations.training.setting import Setting, StageParameters, quantized_weights


class Collective(NamedTuple):
    """One call of a collective operation, (rows,): its operation, seconds and bytes."""

    operation: str
    time: Array
    message_size: Array


class _Message(NamedTuple):
    """A call to be timed, (rows,): operation, bytes, ranks of the group and their stride; repeated ``calls`` times."""

    operation: str
    size: Array
    group: Array
    stride: Array
    calls: Array | None = None


class Communication(NamedTuple):
    """Collectives of a plan, each (rows,); those of layers per block and direction.

    ``tensor_*`` of the activations between blocks, ``logits_gather`` of the logits of a loss that is not split over the
    vocabulary, ``context_*`` of keys and values (one ring step, one gathering,
    one exchange), ``expert_exchange`` one dispatch or combination, ``expert_*`` within an expert's tensor-parallel
    group, ``stage_transfer`` between stages, ``gradient_reduce`` and ``weight_gather`` within a group that shares one
    set of shards, ``group_reduce`` between such groups (between all replicas where nothing is sharded).
    """

    tensor_reduce: Collective
    tensor_gather: Collective
    tensor_gradient_gather: Collective
    tensor_scatter: Collective
    logits_gather: Collective
    context_step: Collective
    context_gather: Collective
    context_exchange: Collective
    expert_exchange: Collective
    expert_gather: Collective
    expert_scatter: Collective
    stage_transfer: Collective
    gradient_reduce: Collective
    group_reduce: Collective
    weight_gather: Collective
    expert_gradient_reduce: Collective
    expert_group_reduce: Collective
    expert_weight_gather: Collective


def _timed(setting: Setting, messages: dict[str, _Message]) -> Communication:
    """Time of all messages: those of one operation together; groups of one rank cost nothing."""
    silent = Collective("", 0.0 * setting.plan.tokens, 0.0 * setting.plan.tokens)
    found = dict.fromkeys(Communication._fields, silent)
    needed: dict[str, list[str]] = {}
    for name, message in messages.items():
        found[name] = Collective(message.operation, 0.0 * message.size, message.size)
        if some(message.group != 1.0):
            needed.setdefault(message.operation, []).append(name)
    for operation, names in needed.items():
        same = [messages[name] for name in names]
        size, group, stride = map(side_by_side, *((each.size, each.group, each.stride) for each in same))
        time = collective_time(operation, size, group, stride, setting.network, setting.constants[operation])
        for column, name in enumerate(names):
            found[name] = Collective(operation, time[:, column], messages[name].size)
    for name, message in messages.items():
        if message.calls is not None:
            found[name] = Collective(message.operation, message.calls * found[name].time, message.calls * message.size)
    return Communication(**found)


def _gathered_shares(setting: Setting) -> tuple[Array, Array]:
    """Bytes of inputs and of gradients that are gathered, over those of the residual stream, (rows,). [-]"""
    plan = setting.plan
    if not some(plan.keeps_copies):
        return np.ones(len(plan)), np.ones(len(plan))
    cast = np.where(plan.keeps_copies & ~plan.frozen, 1.0 - plan.wide_layers / setting.model.num_layers, 0.0)
    each = plan.product_size / plan.element_size
    return 1.0 - cast * (1.0 - each), 1.0 - cast * (1.0 - plan.gathered_layouts * each)


def _tensor_messages(setting: Setting) -> dict[str, _Message]:
    """Activations between the blocks of a layer: an all-reduce, or with sequence parallelism its two halves.

    What products take is cast before it is gathered (Transformer Engine: "quantized all-gather"); gradients, which two
    products take, in both layouts where one cannot be made of the other. Sums are not narrow, nor are the inputs of
    adapters, which take them wide.
    """
    plan = setting.plan
    narrow, both = _gathered_shares(setting)
    split, stride = plan.sequence_parallel > 0, plan.strides["tp"]
    whole, halves = np.where(split, 1.0, plan.tensor_parallel), np.where(split, plan.tensor_parallel, 1.0)
    messages = {
        "tensor_reduce": _Message("all_reduce", setting.stream_size, whole, stride),
        "tensor_gather": _Message("all_gather", narrow * setting.stream_size, halves, stride),
        "tensor_gradient_gather": _Message("all_gather", both * setting.stream_size, halves, stride),
        "tensor_scatter": _Message("reduce_scatter", setting.stream_size, halves, stride),
    }
    gathers = plan.loss_shards < plan.tensor_parallel
    if some(gathers):
        size = plan.tokens * setting.model.vocab_size * plan.element_size
        ranks = np.where(gathers, plan.tensor_parallel, 1.0)
        messages["logits_gather"] = _Message("all_gather", size, ranks, stride)
    return messages


def _context_messages(setting: Setting) -> dict[str, _Message]:
    """Keys and values of a part of the sequence: passed on in a ring, gathered, or exchanged for heads (Ulysses)."""
    model, plan = setting.model, setting.plan
    heads = setting.heads
    groups = np.where(model.latent_attention > 0, heads, setting.key_heads)
    pair = model.qk_head_size + model.v_head_size
    keys_and_values = plan.tokens * groups * pair * plan.element_size
    queries_and_output = plan.tokens * heads * pair * plan.element_size

    def message(operation: str, method: float, size: Array) -> _Message:
        group = np.where(plan.context_method == method, plan.context_parallel, 1.0)
        return _Message(operation, size, group, plan.strides["cp"])

    whole = keys_and_values * plan.context_parallel
    return {
        "context_step": message("point_to_point", ContextMethod.RING, keys_and_values),
        "context_gather": message("all_gather", ContextMethod.ALL_GATHER, whole),
        "context_exchange": message("all_to_all", ContextMethod.ULYSSES, queries_and_output + keys_and_values),
    }


def _sent_share(setting: Setting) -> Array:
    """Share of the copies of tokens that are sent to experts: once to each rank or node, or a copy for each expert."""
    model, plan = setting.model, setting.plan
    inside = np.maximum(setting.network.size[:, 0] / plan.expert_strides["ep"], 1.0)
    across = plan.expert_parallel / np.minimum(inside, plan.expert_parallel)
    share = distinct_share(np.where(across > 1.0, across, plan.expert_parallel), model.top_k)
    most = np.minimum(np.where(across > 1.0, plan.dispatch_nodes, np.inf), plan.dispatch_ranks)
    share = np.minimum(share, most / np.maximum(model.top_k, 1.0))
    share = np.where(plan.token_dispatch == TokenDispatch.COPIES, 1.0, share)
    # buffers of one size for each expert
    return np.where(np.isnan(plan.expert_capacity), share, plan.expert_capacity)


def _expert_messages(setting: Setting) -> dict[str, _Message]:
    """Tokens sent to the ranks of their experts, and gathered within the ranks that share an expert."""
    model, plan = setting.model, setting.plan
    routed, _, _ = setting.routed
    copies = routed * model.top_k * model.expert_hidden_size
    sent = _sent_share(setting) * copies * plan.dispatch_size
    stream = copies * plan.element_size * plan.expert_tensor_parallel
    shared = plan.expert_tensor_parallel, plan.expert_strides["tp"]
    return {
        "expert_exchange": _Message("all_to_all", sent, plan.expert_parallel, plan.expert_strides["ep"]),
        "expert_gather": _Message("all_gather", stream, *shared),
        "expert_scatter": _Message("reduce_scatter", stream, *shared),
    }


def _saved_size(setting: Setting) -> Array:
    """Bytes per GEMM weight that a gathering in low precision saves, (rows,). [B]"""
    plan = setting.plan
    if not some(plan.quantized):
        return np.zeros(len(plan))
    primary = plan.quantized & (plan.quantized_copies == QuantizedCopies.PRIMARY) & (plan.turns > 0)
    share = np.where(primary, 1.0 - plan.wide_layers / setting.model.num_layers, 0.0)
    return np.asarray(share * (plan.element_size - plan.product_size))


def _replica_messages(setting: Setting, parameters: StageParameters, quantized: Array) -> dict[str, _Message]:
    """Gradients reduced over replicas and weights gathered from their shards, outside routed experts.

    What is sharded is reduced in two steps: scattered within the ranks that share one set of shards, then added up
    between such groups. With adapters only what is trained has to be gathered, except by ZeRO-3.
    """
    model, plan = setting.model, setting.plan
    shards = np.where(plan.zero_stage > 0, plan.zero_shards, 1.0)
    stride = np.minimum(plan.strides["cp"], plan.strides["dp"])
    tensors = setting.constants["training_calls"]["tensors_per_layer"][:, 0]
    calls = np.maximum(tensors * (model.num_layers / plan.pipeline_parallel), 1.0)
    gradients = parameters.trained * plan.gradient_size
    weights = parameters.dense * plan.element_size - quantized * _saved_size(setting)
    only_trained = plan.frozen & (plan.zero_stage < 3)
    weights = np.where(only_trained, parameters.trained * plan.element_size, weights)
    groups = plan.shards / shards
    return {
        "gradient_reduce": _Message("reduce_scatter", gradients / calls, shards, stride, calls),
        "group_reduce": _Message("all_reduce", gradients / shards / calls, groups, stride * shards, calls),
        "weight_gather": _Message("all_gather", weights / calls, shards, stride, calls),
    }


def _expert_replica_messages(setting: Setting, parameters: StageParameters) -> dict[str, _Message]:
    """The same for routed experts."""
    plan = setting.plan
    shards = np.where(plan.zero_stage > 0, plan.expert_zero_shards, 1.0)
    stride = plan.expert_strides["dp"]
    gradients = parameters.trained_experts * plan.gradient_size
    weights = parameters.experts * (plan.element_size - _saved_size(setting))
    weights = np.where(plan.frozen & (plan.zero_stage < 3), 0.0, weights)
    groups = plan.expert_shards / shards
    return {
        "expert_gradient_reduce": _Message("reduce_scatter", gradients, shards, stride),
        "expert_group_reduce": _Message("all_reduce", gradients / shards, groups, stride * shards),
        "expert_weight_gather": _Message("all_gather", weights, shards, stride),
    }


def communication_of(setting: Setting) -> Communication:
    """Time and size of every collective of a step.

    Parameters
    ----------
    setting : Setting
        Model, network, plan and calibration. [-]

    Returns
    -------
    Communication
        Seconds and bytes, (rows,). [s, B]

    Examples
    --------
    Gradients of 14.0 M parameters in FP32 over 4 replicas with 100 GB/s each: 3/4 x 56 MB / 100 GB/s; weights of 16
    bits are gathered in half of that.

    >>> from ideal_machine import setting
    >>> found = communication_of(setting(num_accelerators=4, data_parallel=4, global_batch_size=4))
    >>> found.gradient_reduce.time.tolist(), found.weight_gather.time.tolist()
    ([0.00042], [0.00021])
    """
    plan = setting.plan
    quantized = quantized_weights(plan, setting.parameters, setting.pipeline.middle)
    messages = {
        **_tensor_messages(setting),
        **_context_messages(setting),
        "stage_transfer": _Message(
            "point_to_point", setting.stream_size / plan.tensor_parallel, plan.pipeline_parallel, plan.strides["pp"]
        ),
        **_replica_messages(setting, setting.fullest, quantized),
    }
    if setting.architecture.experts:
        messages |= _expert_messages(setting)
        messages |= _expert_replica_messages(setting, setting.fullest)
    return _timed(setting, messages)


_ROOM = 0.94
"""Share of the memory beyond which an allocator finds no room: the rest is of buffers of communication. [-]"""


_STEP_INSIDE = 3.4 / 14.0
"""Latency of a step of a ring over NVLink over that of one over a network, by NCCL's table for large messages. [-]"""


_CERTAINTY = 40.0
"""Steepness of the chance that an allocator finds no room: 1.7 over the error of 4 % of what it holds. [-]"""


_COPIED = 0.65
"""Share of the rate of main memory that such copies reach: beside collectives of 0.6 ms, 384 of 268 MB each make a step
of Llama 3 8B on eight H100 (2.4 TB/s) with four tensor-parallel ranks 0.36 s longer (pytorch issue 88838). [-]"""


def _copy_time(setting: Setting) -> Array:
    """Time of the copy of a whole tensor beside a collective of DTensor, (rows,). [s]

    Ranks gather and scatter the first dimension of tensors whose second one is the sequence: chunks are put in order
    by a copy after a gather and before a scatter (pytorch torch/distributed/_functional_collectives.py; torchtitan
    pull request 437). Asynchronous tensor parallelism goes without.
    """
    plan, device = setting.plan, setting.device
    traffic = 2.0 * setting.stream_size[:, None]
    eager = transfer_time(traffic, device.memory_bandwidth, _COPIED)
    time = np.where(plan.compiled[:, None] > 0.0, vector_time(device, setting.constants["vector"], traffic, 0.0), eager)
    copied = (plan.copied_gathers > 0.0) & (plan.tensor_overlap != TensorOverlap.ALL) & (plan.tensor_parallel > 1.0)
    return np.where(copied, time[:, 0], 0.0)


def tensor_times(setting: Setting, communication: Communication) -> Array:
    """Exposed tensor-parallel communication of one block, forward and backward.

    With sequence parallelism the backward pass gathers twice: the gradients of the output, and the input of which only
    the shard was kept (arXiv:2205.05198, section 4.2.2). Where nothing but gradients overlaps, that of the input runs
    beside the gradients of the inputs and the reduction beside those of the weights; the gather of the gradients of
    the output is exposed. Collectives of DTensor come with copies, and what it gathered stays.

    Parameters
    ----------
    setting : Setting
        Plan and calibration. [-]
    communication : Communication
        Collectives, (rows,). [s]

    Returns
    -------
    Array
        Exposed time, forward and backward, (rows, 2). [s]

    Examples
    --------
    A gather of 1 s and a scatter of 2 s, not overlapped: backward one more gather.

    >>> from types import SimpleNamespace
    >>> plan = SimpleNamespace(sequence_parallel=np.ones(1), tensor_overlap=np.array([TensorOverlap.NONE]))
    >>> plan.copied_gathers, plan.gathers_again = np.zeros(1), np.ones(1)
    >>> constants = {"training_software": {"tensor_parallel_overlap": np.array([[0.5]])}}
    >>> gather, scatter = (SimpleNamespace(time=np.array([time])) for time in (1.0, 2.0))
    >>> found = SimpleNamespace(tensor_gather=gather, tensor_scatter=scatter, tensor_reduce=gather)
    >>> found.tensor_gradient_gather = gather
    >>> tensor_times(SimpleNamespace(plan=plan, constants=constants), found).tolist()
    [[3.0, 4.0]]
    """
    plan = setting.plan
    split = plan.sequence_parallel > 0
    gather, scatter = communication.tensor_gather.time, communication.tensor_scatter.time
    gradients = communication.tensor_gradient_gather.time
    reduced = communication.tensor_reduce.time
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
    """Exposed context-parallel communication of one attention block, forward and backward.

    A ring hides each exchange behind the attention of the block that is already there; gathering and Ulysses'
    exchanges are exposed. The backward pass moves keys, values and their gradients.

    Parameters
    ----------
    setting : Setting
        Plan, (rows,). [-]
    communication : Communication
        Collectives, (rows,). [s]
    forward_core : Array
        Attention proper of one layer forward, (rows,). [s]
    backward_core : Array
        The same backward, (rows,). [s]

    Returns
    -------
    Array
        Exposed time, forward and backward, (rows, 2). [s]

    Examples
    --------
    A ring of four, blocks under way for 1 s: 2 / 4 s of attention hide half of that, backward 4 / 4 s half of 2 s.

    >>> from types import SimpleNamespace
    >>> setting = SimpleNamespace(plan=SimpleNamespace(context_parallel=np.array([4.0])))
    >>> step, none = SimpleNamespace(time=np.ones(1)), SimpleNamespace(time=np.zeros(1))
    >>> found = SimpleNamespace(context_step=step, context_gather=none, context_exchange=none)
    >>> context_time(setting, found, np.array([2.0]), np.array([4.0])).tolist()
    [[1.5, 3.0]]
    """
    plan = setting.plan
    size = plan.context_parallel
    step = communication.context_step.time
    steps = size - 1.0
    ring = side_by_side(
        steps * np.maximum(step - forward_core / size, 0.0), steps * np.maximum(2.0 * step - backward_core / size, 0.0)
    )
    waited = communication.context_exchange.time
    gathered = communication.context_gather.time
    ring[:, 0] += gathered + waited
    ring[:, 1] += 2.0 * gathered + waited
    return ring


def waits_of_calls(setting: Setting, layers: Array, reserved: Array) -> Array | float:
    r"""Exposed host time of a step: collectives launched tensor by tensor, and retries of a full allocator.

    .. math::

        t = L\,\left((M - 1 + 0.24 (n - M))\,t_{shard} + n_{replicas} t_{reduction}\right)
        + \frac{m\,t_{retry}}{1 + (0.94 C / R)^{k}}

    With ZeRO 1 and 2 slices of tensors may be handed to collectives one by one: each is a ring of its own, whose n - 1
    steps over M machines are M - 1 between machines and n - M within one, of a quarter of the latency [1]_. Where
    nothing is sharded, gradients may be added up tensor by tensor in rings. Where the allocator holds all that buffers
    of communication leave, it gives its cache back to the driver and asks for it again in each of the m micro-batches.
    What it holds, R of the capacity C, is known to some 4 % (k = 40): the time is the expected one. Heuristic, this
    work.

    Parameters
    ----------
    setting : Setting
        Plan, device and calibration. [-]
    layers : Array
        Layers of a stage, (rows,). [-]
    reserved : Array
        What the allocator holds, (rows,). [B]

    Returns
    -------
    Array or float
        (rows,). [s]

    References
    ----------
    .. [1] NVIDIA, NCCL 2.19, src/graph/tuning.cc: latencies of the steps of a ring over NVLink and over a network.

    Examples
    --------
    Ten layers with slices for sixteen shards on two machines of eight, at 1 ms for a step between machines: each layer
    takes one such step and fourteen within a machine of 3.4 / 14 ms. The allocator has room:

    >>> from types import SimpleNamespace
    >>> counts = {"zero_stage": 1, "zero_shards": 16.0, "shards": 16.0, "num_micro_batches": 4.0}
    >>> strides = {"dp": np.array([1.0])}
    >>> plan = SimpleNamespace(strides=strides, **{name: np.array([count]) for name, count in counts.items()})
    >>> times = {"reduction_time": np.zeros((1, 1)), "retry_time": np.zeros((1, 1))}
    >>> constants = {"training_calls": times, "training_software": {"shard_overhead_time": np.array([[0.001]])}}
    >>> device = SimpleNamespace(memory_capacity=np.array([[100.0]]))
    >>> network = SimpleNamespace(size=np.array([[8.0]]))
    >>> setting = SimpleNamespace(plan=plan, constants=constants, device=device, network=network)
    >>> waits_of_calls(setting, np.array([10.0]), np.array([50.0])).tolist()
    [0.044]
    """
    plan, calls = setting.plan, setting.constants["training_calls"]
    shard = setting.constants["training_software"]["shard_overhead_time"][:, 0]
    reduction, retry = calls["reduction_time"][:, 0], calls["retry_time"][:, 0]
    if not some(shard + reduction + retry):
        return 0.0
    inside = np.maximum(setting.network.size[:, 0] / plan.strides["dp"], 1.0)
    machines = np.maximum(plan.zero_shards / inside, 1.0)
    hops = machines - 1.0 + _STEP_INSIDE * np.maximum(plan.zero_shards - machines, 0.0)
    between = (plan.zero_stage > 0) & (plan.zero_stage < 3)
    apart = (plan.zero_stage < 1) & (plan.shards > 1)
    filled = power(np.minimum(reserved / (_ROOM * setting.device.memory_capacity[:, 0]), 2.0), _CERTAINTY)
    full = filled / (1.0 + filled)
    handed = np.where(between, hops * shard, 0.0) + np.where(apart, plan.shards * reduction, 0.0)
    retried = np.where(np.isnan(reserved), reserved, plan.num_micro_batches * retry * full)
    return np.asarray(layers * handed + retried)


def exposed_collective_time(collective_time: Numeric, computing_time: Numeric, overlap_tax: Numeric) -> Array:
    r"""Time that a collective adds to the kernels that it runs beside.

    While it runs, kernels come forward at 1 - x of their pace: both want the same multiprocessors and memory. What they
    lost is made up for after its end; a collective that is longer than the slowed kernels sets the pace itself, and
    then nothing of what they lost is seen.

    .. math:: t = \max(T - C, \ x T)

    Parameters
    ----------
    collective_time : numeric
        Time T of the collective alone. [s]
    computing_time : numeric
        Time C of the kernels beside it alone. [s]
    overlap_tax : numeric
        Share x of its pace that a kernel loses while the collective runs. [-]

    Returns
    -------
    time : numeric
        What is longer than the kernels alone; 0 to T. [s]

    References
    ----------
    Heuristic, this work.

    Examples
    --------
    A collective beside kernels of 1 s that lose a fifth of their pace: one of 0.5 s costs 0.1 s, one of 4 s the rest.

    >>> exposed_collective_time([0.5, 4.0], 1.0, 0.2).tolist()
    [0.1, 3.0]
    """
    alone = array(collective_time)
    return np.asarray(np.maximum(alone - array(computing_time), array(overlap_tax) * alone))


def time_beside_chunks(collective_time: Numeric, span: Numeric, chunks: Numeric, passed: Numeric) -> Array:
    r"""Time of kernels that the collectives of a stage run beside once a step, chunk by chunk of its layers.

    In an interleaved pipeline each chunk is reduced after its own last micro-batch, and gathered before its own first
    one; meanwhile each other chunk passes as many micro-batches as there are stages. The chunk at the end, which has
    its own pass alone, cannot be hidden by others:

    .. math:: C = \min\left(\left((v - 1) p + 1\right) \frac{t}{v}, \ T - \frac{T - t}{v}\right)

    Parameters
    ----------
    collective_time : numeric
        Time T of the collectives of all chunks alone. [s]
    span : numeric
        Time t of the kernels of one micro-batch in one direction on all chunks. [s]
    chunks : numeric
        Chunks v of the stage; 1 without interleaving. [-]
    passed : numeric
        Micro-batches p that a chunk passes before it is the turn of the next one. [-]

    Returns
    -------
    time : numeric
        Time C beside which :func:`exposed_collective_time` takes the collective; t for one chunk. [s]

    References
    ----------
    .. [1] NVIDIA, Megatron-LM, megatron/core/pipeline_parallel/schedules.py,
       forward_backward_pipelining_with_interleaving: grad_sync_func and param_sync_func of each model chunk.

    Examples
    --------
    Collectives of 4 s, passes of 1 s: one chunk hides 1 s; of two on four stages the others' 4 passes hide all but the
    last chunk's 2 s, which its own half pass is beside.

    >>> time_beside_chunks(4.0, 1.0, [1, 2], 4).tolist()
    [1.0, 2.5]
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
    r"""Time in which a stage waits for transfers from and to its neighbours in one step, the bubble excluded.

    A stage sends m v activations and m v gradients. Batched sends and receives (1F1B) are all exposed. Where they are
    overlapped, a send of activations runs beside the backward pass of another chunk and a send of gradients beside a
    forward pass; those of the warm-up and the cool-down, which have passes of one direction only, stay exposed.

    .. math::

        t = 2 w \tau + (m v - w) \left(\max\left(\tau - \frac{F}{v}, 0\right)
        + \max\left(\tau - \frac{B}{v}, 0\right)\right), \quad w = \min((v - 1) p, m v)

    and :math:`t = 2 m v \tau` without overlap.

    Parameters
    ----------
    transfer_time : numeric
        One transfer tau between neighbouring stages. [s]
    forward_time : numeric
        Forward pass F of one micro-batch on one stage, all its chunks. [s]
    backward_time : numeric
        Backward pass B of one micro-batch on one stage, all its chunks. [s]
    num_micro_batches : numeric
        Micro-batches m per step. [-]
    pipeline_parallel : numeric
        Stages p; 1 has no transfers. [-]
    virtual_pipeline : numeric
        Chunks v per stage. [-]
    overlapped : numeric
        1 where transfers run beside the computation of the steady state, 0 where none does. [-]

    Returns
    -------
    time : numeric
        Exposed transfers per step. [s]

    References
    ----------
    .. [1] D. Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM",
       2021, arXiv:2104.04473, section 2.2 (interleaving multiplies the transfers by v; warm-up of the schedule).
    .. [2] NVIDIA, Megatron-LM, megatron/core/pipeline_parallel/schedules.py, get_pp_rank_microbatches and
       forward_backward_pipelining_with_interleaving (overlap_p2p_comm).

    Examples
    --------
    Transfers of 1 ms, 8 micro-batches: all 16 with 1F1B; with two overlapped chunks on 4 stages those of the warm-up.

    >>> exposed_transfer_time(1e-3, 0.01, 0.02, 8, 4, [1, 2], [0, 1]).tolist()
    [0.016, 0.008]
    """
    each, stages, chunks = array(transfer_time), array(pipeline_parallel), array(virtual_pipeline)
    count = array(num_micro_batches) * chunks
    warm_up = np.minimum((chunks - 1.0) * stages, count)
    left = np.maximum(each - array(forward_time) / chunks, 0.0) + np.maximum(each - array(backward_time) / chunks, 0.0)
    share = array(overlapped)
    waited = share * (2.0 * warm_up * each + (count - warm_up) * left) + (1.0 - share) * 2.0 * count * each
    return np.asarray(np.where(stages > 1.0, waited, 0.0 * waited))


class CollectiveCalls(NamedTuple):
    """Calls of one collective in a step, (rows,): the result that holds their time, a name, one call, and how many."""

    result: str
    name: str
    collective: Collective
    calls: Array


def collective_calls(setting: Setting, found: Communication, counts: Mapping[str, Array]) -> list[CollectiveCalls]:
    """Calls of every collective in a step on its critical stage, those of one result after the other.

    A block reduces over its tensor-parallel ranks once in each pass (with sequence parallelism gathers and scatters,
    and gathers twice backward); experts are sent to and from once in each pass; ZeRO-3 gathers weights in both passes
    of every micro-batch.

    Parameters
    ----------
    setting : Setting
        Model, plan and calibration. [-]
    found : Communication
        One call of each collective, (rows,). [s]
    counts : mapping of str to Array
        Calls of each place per micro-batch on that stage, and its ``layers``, (rows,). [-]

    Returns
    -------
    list of CollectiveCalls
        Also those that a plan does not have, with 0 calls. [-]

    Examples
    --------
    With sequence parallelism two blocks of a layer scatter once in each pass, and so do embedding and head in one.

    >>> from ideal_machine import setting
    >>> from xlperf.equations.training.step import step
    >>> plan = setting(num_accelerators=2, tensor_parallel=2)
    >>> calls = collective_calls(plan, communication_of(plan), step(plan).counts)
    >>> [float(one.calls[0]) for one in calls if one.name == "tensor-parallel scatter"]
    [6.0]
    """
    plan, batches = setting.plan, setting.plan.num_micro_batches
    attention, mixtures = counts["attention"], counts["moe"]
    share = np.minimum(plan.recompute_layers / counts["layers"], 1.0)
    passes = 2.0 + share * (plan.recompute == Recompute.FULL)  # forward, backward, and forward again
    mlp_again, moe_again = (share * plan.again(module) for module in ("mlp", "moe"))

    shared = np.where(setting.model.shared_ffn_hidden_size > 0, 1.0, 0.0)
    blocks = attention + counts.get("linear", 0.0) + counts["mlp"] + mixtures * shared
    outside = counts["head"] + counts["embedding"] + counts["mtp"]
    blocks_again = mlp_again * counts["mlp"] + moe_again * mixtures * shared
    reductions = batches * (passes * blocks + blocks_again + outside)
    split, kept = plan.sequence_parallel > 0, batches * (1.0 - plan.gathers_again) * blocks
    exchanges = batches * mixtures * (passes + moe_again)
    slower = setting.constants["experts"]["exchange_slowdown"][:, 0]
    exchange = found.expert_exchange._replace(time=slower * found.expert_exchange.time)
    attended, turns = batches * attention, plan.context_parallel - 1.0
    transfers = batches * 2.0 * plan.virtual_pipeline * (plan.pipeline_parallel > 1)
    repeats = np.where(plan.reduces_each, batches, 1.0)
    gathers = np.where(plan.regathers, 2.0 * repeats, np.where(plan.gathers_forward, repeats, 1.0))
    whole = plan.zero_stage < 1
    sharded, unsharded, between = (
        np.where(whole, 0.0, np.where(plan.keeps_sums, 1.0, repeats)),
        np.where(whole, repeats, 0.0),
        np.where(whole, 0.0, 1.0),
    )
    listed: dict[str, tuple[tuple[str, Collective, Array], ...]] = {
        "time_tensor_parallel": (
            ("tensor-parallel gather", found.tensor_gather, np.where(split, reductions - kept, 0.0)),
            (
                "tensor-parallel gather of gradients",
                found.tensor_gradient_gather,
                np.where(split, batches * blocks, 0.0),
            ),
            ("tensor-parallel scatter", found.tensor_scatter, np.where(split, reductions, 0.0)),
            ("tensor-parallel reduction", found.tensor_reduce, np.where(split, 0.0, reductions)),
            ("gathering of logits", found.logits_gather, batches * counts["head"]),
        ),
        "time_expert_parallel": (
            ("expert exchange", exchange, 2.0 * exchanges),
            ("expert gather", found.expert_gather, exchanges),
            ("expert scatter", found.expert_scatter, exchanges),
        ),
        "time_context_parallel": (
            ("context exchange of a ring", found.context_step, attended * turns * (passes + 1.0)),
            ("context gathering", found.context_gather, attended * (passes + 1.0)),
            ("context exchange of heads", found.context_exchange, attended * passes),
        ),
        "time_pipeline_communication": (("stage transfer", found.stage_transfer, transfers),),
        "time_data_parallel": (
            ("gradient reduction", found.group_reduce, unsharded),
            ("gradient reduction", found.gradient_reduce, sharded),
            ("expert gradient reduction", found.expert_group_reduce, unsharded),
            ("expert gradient reduction", found.expert_gradient_reduce, sharded),
            ("gradient reduction between groups", found.group_reduce, between),
            ("expert gradient reduction between groups", found.expert_group_reduce, between),
            ("weight gathering", found.weight_gather, gathers),
            ("expert weight gathering", found.expert_weight_gather, gathers),
        ),
    }
    return [CollectiveCalls(result, *one) for result, calls in listed.items() for one in calls]
