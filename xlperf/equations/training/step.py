"""Time of an optimizer step, from the kernels of a layer up.

Kernels are timed for one layer of each kind, counted over the contents of the first, a middle and the last stage, and
summed for the slowest stage. Arrays have shape (rows,), arrays of stages (rows, 3).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div, divide, side_by_side, some, total
from xlperf.equations.hardware.roofline import exposed_offload_time, vector_time
from xlperf.equations.plan.dimensions import MESSAGE_PARTS
from xlperf.equations.plan.records import Graphs, OffloadTarget, PipelineSchedule, QuantizedCopies, Recompute
from xlperf.equations.training.activations import LAST_PRODUCT, selected_share
from xlperf.equations.training.communication import (
    Communication,
    communication_of,
    context_time,
    exposed_collective_time,
    exposed_transfer_time,
    tensor_times,
    time_beside_chunks,
    waits_of_calls,
)
from xlperf.equations.training.kernels import kernel_parts
from xlperf.equations.training.memory import kept_activations, memory_of
from xlperf.equations.training.setting import (
    OF_EXPERTS,
    Part,
    Setting,
    StageContents,
    pacing_contents,
    quantized_weights,
)

PLACES = ("attention", "core", "local core", "mlp", "moe", "head", "embedding", "mtp")
_LAYERS, _OUTSIDE, CORES = slice(0, 5), slice(5, 8), slice(1, 3)
_HEAD, _EXPERTS = PLACES.index("head"), "moe"
_HYBRID = (*PLACES, "linear")
FIRST, MIDDLE, LAST = 0, 1, 2
COMPUTE_PARTS = ("time_forward", "time_backward", "time_recompute", "time_optimizer")  # results with time of kernels
STEP_PARTS = (
    *COMPUTE_PARTS[:3], *MESSAGE_PARTS[:-1], "time_pipeline_bubble", MESSAGE_PARTS[-1], "time_optimizer",
    "time_overhead",
)  # fmt: skip
"""Results that add up to the step time."""


class Step(NamedTuple):
    """A step in pieces."""

    parts: list[Part]  # kernels; of many plans the distinct ones
    communication: Communication
    results: dict[str, Array]  # columns of ``training_results`` that are times [s]
    counts: dict[str, Array]  # calls of each place per micro-batch on the critical stage [-]
    optimizer_traffic: Array  # [B]
    optimizer_time: Array  # [s]


class _BlockTimes(NamedTuple):
    """Kernel time per place, (rows, places), and exposed communication of one block, (rows,). [s]"""

    forward: Array
    backward: Array
    weight_gradients: Array
    again: Array  # selectively recomputed
    left_out: Array  # skipped under full recomputation
    tensor_forward: Array
    tensor_backward: Array
    context_forward: Array  # (rows, 1, cores)
    context_backward: Array  # (rows, 1, cores)
    exchange: Array  # dispatch and combination of tokens
    expert: Array  # within the tensor-parallel ranks of an expert
    logits: Array


class _StageTimes(NamedTuple):
    """Times of one micro-batch on a stage, (rows,) or (rows, 3). [s]"""

    forward: Array
    backward: Array
    again: Array
    weight_gradients: Array
    tensor: Array
    context: Array
    expert: Array
    waiting: Array
    backward_waiting: Array
    forward_span: Array  # kernels of a forward pass with their waits for the host and for the context
    backward_span: Array
    hidden: Array  # communication that overlaps with kernels

    def passes(self, transfer: Array | float = 0.0) -> tuple[Array, Array]:
        """Forward and backward pass, each with half of the tensor and expert communication. [s]"""
        share = 0.5 * (self.tensor + self.expert + transfer)
        return self.forward_span + share, self.backward_span + share

    @property
    def time(self) -> Array:
        """Time of a micro-batch. [s]"""
        parts = (self.forward, self.backward, self.again, self.tensor, self.context, self.expert, self.waiting)
        return total(side_by_side(*parts))

    def stage(self, index: int | Array) -> _StageTimes:
        """Times of one stage, the same for all rows or one per row."""
        if isinstance(index, int):
            return _StageTimes(*(values[:, index] for values in self))
        rows = np.arange(len(index))
        return _StageTimes(*(values[rows, index] for values in self))


def _places(setting: Setting) -> tuple[str, ...]:
    """Places of the parts of a step; the last one is linear attention if a model has it."""
    return _HYBRID if setting.architecture.linear_attention else PLACES


def _of_layers(values: Array) -> Array:
    """Sum over the places in layers, (rows, 3) of (rows, 3, places)."""
    layers = total(values[..., _LAYERS])
    return layers + values[..., -1] if values.shape[-1] > len(PLACES) else layers


def _kernel_times(setting: Setting, parts: list[Part]) -> Array:
    """Kernel time per place, (5, places, rows): forward, backward, weight gradient, recomputed, skipped. [s]"""
    slowdown = setting.constants["training_software"]["kernel_slowdown"]
    selective = some(setting.plan.recompute == Recompute.SELECTIVE)
    last_product = setting.constants["training_calls"]["last_product"]
    places = _places(setting)
    times = np.zeros((5, len(places), len(slowdown)))
    forward, backward, weights, again, left_out = times
    for part in parts:
        place = places.index(part.place)
        (forward if part.phase == "forward" else backward)[place] += part.total_time
        if part.phase == "backward" and part.family == "gemm":
            weights[place] += part.time_of("weight gradient")
        if part.phase != "forward":
            continue
        if LAST_PRODUCT in part.names and some(last_product < 1.0):
            left_out[place] += (1.0 - last_product[:, 0]) * part.time_of(LAST_PRODUCT)
        share = selected_share(setting.plan, part, last_product) if selective else None
        if share is not None:
            again[place] += total(part.calls * part.time * share)
    times *= slowdown[:, 0]
    return times


def _block_times(setting: Setting, kernels: Array, communication: Communication) -> _BlockTimes:
    """Kernel time per place and exposed communication per block, of one call each."""
    forward, backward, weights, again, left_out = (each.T for each in kernels)
    exchange = setting.constants["experts"]["exchange_slowdown"][:, 0] * communication["expert_exchange"].time
    tensor = tensor_times(setting, communication)
    cores = zip(forward[:, CORES].T, backward[:, CORES].T, strict=True)
    context = side_by_side(*(context_time(setting, communication, *core) for core in cores))
    return _BlockTimes(
        forward=forward,
        backward=backward,
        weight_gradients=weights,
        again=again,
        left_out=left_out,
        tensor_forward=tensor[:, 0],
        tensor_backward=tensor[:, 1],
        context_forward=context[:, None, 0],
        context_backward=context[:, None, 1],
        exchange=2.0 * exchange,
        expert=communication["expert_gather"].time + communication["expert_scatter"].time,
        logits=communication["logits_gather"].time,
    )


def _calls(setting: Setting, contents: StageContents) -> Array:
    """Calls of each place per micro-batch, (rows, 3, places); an MTP module has an embedding look-up and a head too."""
    model, attention, mtp = setting.model, contents.attention, contents.mtp
    local = attention * divide(model.num_local_layers, model.num_attention_layers)[:, None]
    blocks = attention, attention - local, local, contents.dense, contents.mixtures
    linear = (contents.linear,) if setting.architecture.linear_attention else ()
    return side_by_side(*blocks, contents.head + mtp, contents.embedding + mtp, mtp, *linear)


def _host_times(setting: Setting, contents: StageContents) -> tuple[Array, Array, Array]:
    """Host time of a pass: hidden behind kernels, exposed launches, exposed waits for token counts, (rows, 3). [s]

    Before the GEMMs of experts the host waits for token counts and loses its lead over the kernels: the launches of one
    layer are exposed (heuristic, this work). In the backward pass, and with experts padded to a capacity, it knows the
    counts (Megatron-Core 0.8 and later, token_dispatcher.py: drop_and_pad, cuda_sync_point no_sync). A graph needs one
    launch. Host time per rank of a collective occurs in runs over several machines. The inputs of each expert are cast
    by one kernel beside the GEMM, or by two if the scale needs the largest element.
    """
    plan, constants = setting.plan, setting.constants
    layers, mixtures, software = contents.layers, contents.mixtures, constants["training_software"]
    several = plan.num_accelerators > setting.network.size[:, 0]
    ranks = np.where(several & (plan.tensor_parallel > 1), plan.tensor_parallel, 0.0)[:, None]
    if setting.architecture.counted:  # hybrid models count a one-block layer as half a transformer layer
        layers = 0.5 * setting.model.num_blocks[:, None] * layers
    host = contents.dense * software["layer_overhead_time"] + layers * software["rank_overhead_time"] * ranks
    host = np.where((plan.graphs != Graphs.NONE)[:, None], 0.0, host)
    if not setting.architecture.experts:
        return host, np.zeros(host.shape), np.zeros(host.shape)
    launched = np.where(plan.captures_experts[:, None], 0.0, mixtures)
    experts = ceil_div(setting.model.num_experts, plan.expert_parallel)[:, None]
    host = host + launched * constants["experts"]["layer_overhead_time"]
    casts = np.where(plan.quantized, plan.cast_reads, 0.0)[:, None]
    launches = launched * experts * (1.0 + casts) * constants["experts"]["launch_time"]
    counted = np.isnan(plan.expert_capacity) & (plan.graphs == Graphs.NONE)
    relaunched = np.where(counted[:, None], mixtures, 0.0)
    return host, launches, relaunched * software["layer_overhead_time"]


def _stage_times(setting: Setting, blocks: _BlockTimes, contents: StageContents) -> _StageTimes:
    """Times of one micro-batch on each stage, (rows, 3): times per block x calls."""
    plan, calls = setting.plan, _calls(setting, contents)
    layers, mixtures = contents.layers, contents.mixtures
    splits = some(plan.pipeline_schedule >= PipelineSchedule.ZERO_BUBBLE)  # weight gradients from the backward pass

    # recomputed share of the layers, and passes over a layer
    full = (plan.recompute == Recompute.FULL)[:, None]
    selective = (plan.recompute == Recompute.SELECTIVE)[:, None]
    share = np.minimum(plan.recompute_layers[:, None] / layers, 1.0)
    passes = 2.0 + np.where(full, share, 0.0)  # forward, backward, and forward again

    # kernels of layers, (rows, 3), and of embedding, head and MTP modules
    forward, backward = calls * blocks.forward[:, None], calls * blocks.backward[:, None]
    layer_forward, layer_backward = _of_layers(forward), _of_layers(backward)
    repeated = _of_layers(calls * blocks.again[:, None]) if some(selective) else 0.0
    left_out = _of_layers(calls * blocks.left_out[:, None]) if some(blocks.left_out) else 0.0
    again = share * np.where(full, layer_forward - left_out, np.where(selective, repeated, 0.0))
    whole_forward = layer_forward + total(forward[..., _OUTSIDE])
    whole_backward = layer_backward + total(backward[..., _OUTSIDE])

    # tensor and context communication, and waits for the host
    shared = np.where(setting.model.shared_ffn_hidden_size > 0, 1.0, 0.0)
    block_count = contents.mixers + contents.dense + mixtures * (shared[:, None] if np.ndim(shared) else shared)
    tensor, tensor_backward = blocks.tensor_forward[:, None], blocks.tensor_backward[:, None]
    cores = calls[..., CORES]
    context, context_backward = total(cores * blocks.context_forward), total(cores * blocks.context_backward)
    host, launches, counts = _host_times(setting, contents)
    beside = tensor * block_count + context
    waiting, waiting_again = (  # a pass that is repeated leaves out products whose outputs no gradient needs
        np.maximum(host - kernels - beside, 0.0) + launches + counts
        for kernels in (layer_forward, layer_forward - left_out)
    )
    waiting_backward = host - layer_backward - tensor_backward * block_count - context_backward
    waiting_backward = np.maximum(waiting_backward, 0.0) + 2.0 * launches
    whole_waiting = waiting + waiting_again * (passes - 2.0) + waiting_backward
    whole_context = context * (passes - 1.0) + context_backward

    # expert exchanges, of which two-batch overlap hides a part
    mlp_again, moe_again = (share * plan.again(module)[:, None] for module in ("mlp", "moe"))
    blocks_again = mlp_again * contents.dense + moe_again * (block_count - contents.mixers - contents.dense)
    exchanges = mixtures * passes + moe_again * mixtures
    exchange = exchanges * blocks.exchange[:, None]
    computed = layer_forward + layer_backward + again + whole_waiting + whole_context
    exposed = exposed_collective_time(exchange, computed, setting.constants["experts"]["overlap_tax"])
    hidden = plan.expert_overlap[:, None] * (exchange - exposed)
    outside = total(calls[..., _OUTSIDE])
    return _StageTimes(
        forward=whole_forward,
        backward=whole_backward,
        again=again,
        weight_gradients=total(calls * blocks.weight_gradients[:, None]) if splits else np.zeros(layers.shape),
        tensor=tensor * ((passes - 1.0) * block_count + blocks_again + outside)
        + tensor_backward * block_count
        + blocks.logits[:, None] * calls[..., _HEAD],
        context=whole_context,
        expert=exchange - hidden + exchanges * blocks.expert[:, None],
        waiting=whole_waiting,
        backward_waiting=whole_waiting - waiting,
        forward_span=whole_forward + waiting + context,
        backward_span=whole_backward + again + whole_waiting - waiting + whole_context - context,
        hidden=hidden,
    )


def _critical_stage(setting: Setting, times: Array) -> Array:
    """Index of the slowest of the first, a middle and the last stage, (rows,), from their times, (rows, 3)."""
    stages = setting.plan.pipeline_parallel
    first, middle, last = times.T
    slower = np.where((last > first) & (stages > 1), LAST, FIRST)
    return np.where((middle > np.maximum(last, first)) & (stages > 2), MIDDLE, slower)


def pipeline_bubble_time(micro_batch_time: Numeric, pipeline_parallel: Numeric, virtual_pipeline: Numeric) -> Array:
    r"""Idle time of a stage in one step: the pipeline fills and drains once.

    .. math:: t = \frac{p - 1}{v} t_{mb}

    Source: D. Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM",
    2021, arXiv:2104.04473, section 2.2.

    >>> float(pipeline_bubble_time(0.1, 8, 2))  # 7 / 2 x 0.1 s
    0.35

    Parameters
    ----------
    micro_batch_time : Forward and backward of one micro-batch on one stage, all its chunks. [s]
    pipeline_parallel : Stages p. [-]
    virtual_pipeline : Chunks v per stage. [-]

    Returns
    -------
    time : Idle time per step. [s]
    """
    return np.asarray((array(pipeline_parallel) - 1.0) / array(virtual_pipeline) * array(micro_batch_time))


def zero_bubble_time(
    forward_time: Numeric, backward_time: Numeric, weight_gradient_time: Numeric, pipeline_parallel: Numeric
) -> Array:
    r"""Idle time of a stage under ZB-H1: weight gradients fill the drain of the pipeline.

    .. math:: t = (p - 1) (F + B - W)

    Source: P. Qi et al., "Zero bubble pipeline parallelism", 2023, arXiv:2401.10241, table 1.

    >>> float(zero_bubble_time(0.01, 0.01, 0.01, 4))  # 3 x (10 + 10 - 10) ms
    0.03

    Parameters
    ----------
    forward_time : Forward pass F of one micro-batch on one stage. [s]
    backward_time : Gradient B by the inputs, of one micro-batch on one stage. [s]
    weight_gradient_time : Gradient W by the weights. [s]
    pipeline_parallel : Stages p. [-]

    Returns
    -------
    time : Idle time per step, at least 0. [s]
    """
    idle = array(forward_time) + array(backward_time) - array(weight_gradient_time)
    return np.asarray((array(pipeline_parallel) - 1.0) * np.maximum(idle, 0.0))


def dualpipe_bubble_time(
    overlapped_time: Numeric, backward_time: Numeric, weight_gradient_time: Numeric, pipeline_parallel: Numeric
) -> Array:
    r"""Idle time of a stage under DualPipe: two directions, forward and backward passes overlap.

    .. math:: t = \left(\frac{p}{2} - 1\right) (F\&B + B - 3 W)

    Source: DeepSeek-AI, "DeepSeek-V3 technical report", 2024, arXiv:2412.19437, table 2.

    >>> float(dualpipe_bubble_time(0.03, 0.02, 0.01, 8))  # 3 x (30 + 20 - 3 x 10) ms
    0.06

    Parameters
    ----------
    overlapped_time : One forward and one full backward pass that overlap, F&B. [s]
    backward_time : Full backward pass B of one micro-batch on one stage. [s]
    weight_gradient_time : Gradient W by the weights. [s]
    pipeline_parallel : Stages p. [-]

    Returns
    -------
    time : Idle time per step, at least 0. [s]
    """
    idle = array(overlapped_time) + array(backward_time) - 3.0 * array(weight_gradient_time)
    return np.asarray(np.maximum(array(pipeline_parallel) / 2.0 - 1.0, 0.0) * np.maximum(idle, 0.0))


def _bubble(setting: Setting, times: _StageTimes, critical: Array, transfer: Array) -> Array:
    """Idle time of the critical stage while the pipeline fills and drains, (rows,). [s]"""
    plan, stage = setting.plan, times.stage(MIDDLE)
    stages, chunks = plan.pipeline_parallel, plan.virtual_pipeline
    bubble = pipeline_bubble_time(stage.time + transfer, stages, chunks)
    if some(plan.pipeline_schedule >= PipelineSchedule.ZERO_BUBBLE):
        forward, backward = stage.passes(transfer)
        weights = np.minimum(stage.weight_gradients, backward)
        # of the launches in a backward pass half are weight gradients
        weights = np.maximum(weights, np.minimum(weights + stage.backward_waiting, 0.5 * backward))
        filled = zero_bubble_time(forward, backward - weights, weights, stages)
        both = dualpipe_bubble_time(forward + backward, backward, weights, stages)
        early = plan.pipeline_schedule == PipelineSchedule.ZERO_BUBBLE
        bubble = np.where(early, filled, np.where(plan.dualpipe, both, bubble))
    if some(plan.split_by_cost):
        uneven = plan.split_by_cost & (stages > 1)
        bubble = np.where(uneven, _uneven_bubble(setting, times.time + transfer[:, None], critical), bubble)
    return bubble


def _uneven_bubble(setting: Setting, times: Array, critical: Array) -> Array:
    """Idle time of the slowest stage while one micro-batch passes the other stages, of unequal times. [s]"""
    first, middle, last = setting.pipeline
    middle_stages = (setting.model.num_layers - first.layers - last.layers) / middle.layers
    whole = times[:, FIRST] + times[:, LAST] + middle_stages * times[:, MIDDLE]
    return np.asarray(whole - times[np.arange(len(critical)), critical])


def _data_parallel_time(
    setting: Setting, communication: Communication, stage: _StageTimes, overlap: Array | float
) -> Array:
    """Exposed data-parallel communication, of which a share ``overlap`` of the passes hides a part. [s] ZeRO-3:
    all-gather and reduce-scatter per micro-batch, in a pipeline if it reshards. ZeRO-2 in a pipeline: reduce-scatter
    per micro-batch. The all-reduce between shard groups, and gradients accumulated whole: once a step.
    """
    plan = setting.plan
    tax = setting.constants["training_software"]["overlap_tax"][:, 0]
    repeats = np.where(plan.reduces_each, plan.num_micro_batches, 1.0)
    reduce, between, gather = (
        communication[name].time + communication[f"expert_{name}"].time
        for name in ("gradient_reduce", "group_reduce", "weight_gather")
    )
    # collectives that the backward pass hides: in every micro-batch, and in the last one
    backward = reduce + np.where(plan.regathers, gather, 0.0)
    each_reduced = np.where(plan.keeps_sums, backward - reduce, backward)
    last_reduced = backward + between
    hiding, first_hiding = overlap * stage.backward_span, overlap * stage.forward_span
    last_hiding = hiding
    chunked = (plan.virtual_pipeline > 1) & (plan.pipeline_parallel > 1) & ~(plan.regathers | plan.scatters)
    if some(chunked):
        chunks = plan.virtual_pipeline, np.minimum(plan.pipeline_parallel, plan.num_micro_batches)
        last_hiding = np.where(chunked, time_beside_chunks(last_reduced, hiding, *chunks), hiding)
        first_hiding = np.where(chunked, time_beside_chunks(gather, first_hiding, *chunks), first_hiding)

    forward = exposed_collective_time(gather, first_hiding, tax)
    last = exposed_collective_time(last_reduced, last_hiding, tax) + forward
    again = np.where(plan.scatters, 0.0, forward)
    return np.asarray((repeats - 1.0) * (exposed_collective_time(each_reduced, hiding, tax) + again) + last)


def _copied_weights(setting: Setting) -> Array | float:
    """Traffic per step of casting the quantized copies of the weights, unless the gather casts them. [B]"""
    plan = setting.plan
    if not some(plan.keeps_copies):
        return 0.0
    quantized = quantized_weights(plan, setting.parameters, setting.pipeline.middle) + setting.fullest.experts
    cast = plan.cast_reads * plan.element_size + plan.layouts * plan.product_size
    # gathered in one layout; the other layout is one more read and write
    turned = 2.0 * (plan.layouts - 1.0) * plan.product_size
    primary = (plan.quantized_copies == QuantizedCopies.PRIMARY) & (plan.turns > 0)
    each = np.where(primary, turned, np.where(plan.regathers, 0.0, cast))
    return np.where(plan.keeps_copies & ~plan.frozen, setting.narrow_share * quantized * each, 0.0)


def _optimizer_traffic(setting: Setting) -> Array:
    """Traffic of a rank to update its weights and to clear its gradients, (rows,). [B]"""
    plan, fullest = setting.plan, setting.fullest
    touched = 2.0 * plan.gradient_size + 2.0 * plan.optimizer_size + plan.element_size
    updated = _updated(setting)
    cleared = plan.gradient_size * np.where(plan.sums_shards, updated, fullest.trained + fullest.trained_experts)
    # for updates on the host the accelerator reads gradients and writes weights
    on_host = plan.offload_optimizer * updated * (touched - plan.gradient_size - plan.element_size)
    return np.asarray(touched * updated + cleared - on_host + _copied_weights(setting))


def _updated(setting: Setting) -> Array:
    """Parameters that a rank updates, (rows,). [-]"""
    plan, fullest = setting.plan, setting.fullest
    sharded = plan.zero_stage > 0
    owners, expert_owners = np.where(sharded, plan.zero_shards, 1.0), np.where(sharded, plan.expert_zero_shards, 1.0)
    return np.asarray(fullest.trained / owners + fullest.trained_experts / expert_owners)


def _host_optimizer_time(setting: Setting, behind: Array) -> Array | float:
    """Exposed time of the optimizer on the host; gradients leave during the last backward pass ``behind``. [s]"""
    plan, device = setting.plan, setting.device
    if not some(plan.offload_optimizer):
        return 0.0
    number = plan.offload_optimizer * _updated(setting)
    link, memory, drive = (
        values[:, 0] for values in (device.host_bandwidth, device.host_memory_bandwidth, device.drive_bandwidth)
    )
    drive = np.where(plan.offload_target == OffloadTarget.DRIVE, drive, np.inf)
    # The host reads gradients and state and writes state and weights, while drives transfer their state (ZeRO-Offload,
    # arXiv:2101.06840, section 4; ZeRO-Infinity, arXiv:2104.07857, section 5).
    weight, state = plan.element_size, plan.optimizer_size
    moved = np.maximum((2.0 * state + plan.gradient_size + weight) / memory, 2.0 * state / drive)
    update = number * (moved + weight / link)
    exposed = exposed_offload_time(number * plan.gradient_size, link, behind)
    return np.where(plan.offload_optimizer > 0.0, exposed + update, 0.0)


def _offloaded_activations_time(setting: Setting, which: Array, stage: _StageTimes) -> Array | float:
    """Exposed transfers of the activations of a micro-batch to the host and back. [s]"""
    plan, link = setting.plan, setting.device.host_bandwidth[:, 0]
    if not some(plan.offload_activations):
        return 0.0
    size = plan.offload_activations * kept_activations(setting)[np.arange(len(which)), which]
    out = exposed_offload_time(size, link, stage.forward_span)
    return out + exposed_offload_time(size, link, stage.backward_span)


def _reserved_memory(setting: Setting) -> Array:
    """Memory of the allocator, (rows,); 0 if no software of the plans retries when it is full. [B]"""
    if not some(setting.constants["training_calls"]["retry_time"]):
        return np.zeros(len(setting.plan))
    return memory_of(setting)["memory_reserved"]


def _kernels(setting: Setting) -> tuple[list[Part], Array]:
    """Kernels of a micro-batch, of many plans some distinct ones, and their time per place, (5, places, rows). [s]
    Plans with equal kernels share them; plans that differ in the split of their experts share all other kernels.
    """
    shared = setting.distinct_kernels(OF_EXPERTS) if setting.architecture.experts else None
    distinct, which = setting.distinct_kernels() or (setting, slice(None))
    if shared is None:
        parts = kernel_parts(distinct)
        return parts, _kernel_times(distinct, parts)[..., which]
    others, which_others = shared
    parts = kernel_parts(distinct, lambda place: place == _EXPERTS)
    times = _kernel_times(distinct, parts)[..., which]
    times_of_others = _kernel_times(others, kernel_parts(others, lambda place: place != _EXPERTS))
    return parts, times + times_of_others[..., which_others]


def _micro_batch(setting: Setting) -> tuple[list[Part], Communication, StageContents, _StageTimes]:
    """Kernels of distinct shapes, communication, and contents and times of three stages for one micro-batch."""
    parts, kernels = _kernels(setting)
    communication = communication_of(setting)
    contents = pacing_contents(setting.model, setting.plan, setting.pipeline, setting.contents)
    times = _stage_times(setting, _block_times(setting, kernels, communication), contents)
    return parts, communication, contents, times


def least_step_time(setting: Setting) -> Array:
    """Lower bound of the step time, (rows,): the passes of the slowest stage, and the bubble of a plain schedule. [s]

    It holds too for plans that recompute layers, if the setting recomputes nothing, and for each stage of ZeRO, if the
    setting has stage 2, whose gradients are added up in shards and whose weights are not cast again.
    """
    plan, (_, _, _, times) = setting.plan, _micro_batch(setting)
    every = times.time
    slowest = every[np.arange(len(plan)), _critical_stage(setting, every)]
    bubble = pipeline_bubble_time(every[:, MIDDLE], plan.pipeline_parallel, plan.virtual_pipeline)
    plain = (plan.pipeline_schedule < PipelineSchedule.ZERO_BUBBLE) & ~plan.split_by_cost
    return np.asarray(plan.num_micro_batches * slowest + np.where(plain, bubble, 0.0))


def step(setting: Setting) -> Step:
    """Time of one optimizer step.

    One sequence of 1,000 tokens: the kernels move 156 MB forward and 280 MB backward, and the optimizer 38 B for each
    of 14.0 M parameters, at 1 TB/s.

    >>> from ideal_machine import setting
    >>> results = step(setting()).results
    >>> [float(results[name][0]) for name in ("time_forward", "time_backward", "time_optimizer", "step_time")]
    [0.000156, 0.000280, 0.000532, 0.000968]
    """
    plan = setting.plan
    stages, chunks, batches = plan.pipeline_parallel, plan.virtual_pipeline, plan.num_micro_batches
    parts, communication, contents, times = _micro_batch(setting)
    stage_time = times.time
    which = _critical_stage(setting, stage_time)
    critical = times.stage(which)

    # transfers between stages
    transfer_time = communication["stage_transfer"].time
    transfers_per_batch = np.where(stages > 1, 2.0 * chunks, 0.0)
    both_ways = transfers_per_batch * transfer_time
    software = setting.constants["training_software"]
    unhidden_wait = np.where(plan.pipeline_overlap > 0, 0.0, software["transfer_wait_time"][:, 0])
    transfer_waits = transfers_per_batch * unhidden_wait
    overlapped = np.where(((chunks > 1) | plan.dualpipe) & (plan.pipeline_overlap > 0), 1.0, 0.0)
    exposed = exposed_transfer_time(transfer_time, *critical.passes(), batches, stages, chunks, overlapped)

    # data parallelism, with and without overlap; optimizer
    overlap = plan.data_overlap * software["data_parallel_overlap"][:, 0]
    data_parallel, all_data = (
        _data_parallel_time(setting, communication, times.stage(FIRST), share) for share in (overlap, 0.0)
    )
    traffic = _optimizer_traffic(setting)
    optimizer = vector_time(setting.device, setting.constants["vector"], traffic[:, None], 0.0)[:, 0]
    # the host's link and the network work at the same time: a wait for one of them hides the other
    optimizer = optimizer + _host_optimizer_time(setting, critical.backward_span + data_parallel)
    offloaded = batches * _offloaded_activations_time(setting, which, critical)
    waiting = batches * (critical.waiting + transfer_waits) + np.maximum(offloaded - data_parallel, 0.0)
    layers = setting.pipeline.middle.layers

    pieces = {
        "time_forward": batches * critical.forward,
        "time_backward": batches * critical.backward,
        "time_recompute": batches * critical.again,
        "time_tensor_parallel": batches * critical.tensor,
        "time_context_parallel": batches * critical.context,
        "time_expert_parallel": batches * critical.expert,
        "time_pipeline_communication": exposed,
        "time_pipeline_bubble": _bubble(setting, times, which, both_ways + transfer_waits),
        "time_data_parallel": data_parallel,
        "time_optimizer": optimizer,
        "time_overhead": waiting + waits_of_calls(setting, layers, _reserved_memory(setting)),
    }
    transfers = np.maximum(batches * both_ways - exposed, 0.0)
    results = {
        "step_time": total(side_by_side(*(pieces[name] for name in STEP_PARTS))),
        **pieces,
        "layer_time": stage_time[:, MIDDLE] / layers,
        "hidden_communication_time": all_data - data_parallel + transfers + batches * critical.hidden,
    }
    rows = np.arange(len(which))
    counts = dict(zip(_places(setting), _calls(setting, contents)[rows, which].T, strict=True))
    counts["layers"] = contents.layers[rows, which]
    return Step(parts, communication, results, counts, traffic, optimizer)
