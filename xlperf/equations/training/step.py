"""Time of an optimizer step, from the kernels of a layer up.

Kernels are timed for one layer of each kind, counted over the contents of three stages (the first, one in the middle
and the last), and summed up for the slowest of them. Arrays have shape (rows,); those of stages (rows, 3).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, ceil_div, side_by_side, some, total
from xlperf.equations.hardware.memory import exposed_offload_time, host_update_time
from xlperf.equations.hardware.roofline import vector_time
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
from xlperf.equations.training.setting import Part, Setting, quantized_weights
from xlperf.equations.training.stages import (
    StageContents,
    dualpipe_bubble_time,
    pacing_contents,
    pipeline_bubble_time,
    zero_bubble_time,
)

PLACES = ("attention", "core", "local core", "mlp", "moe", "head", "embedding", "mtp")
_LAYERS, _OUTSIDE, CORES = slice(0, 5), slice(5, 8), slice(1, 3)
_HEAD = PLACES.index("head")
_HYBRID = (*PLACES, "linear")
FIRST, MIDDLE, LAST = 0, 1, 2
COMPUTE_PARTS = ("time_forward", "time_backward", "time_recompute", "time_optimizer")
"""Results in which the accelerator computes."""
MESSAGE_PARTS = (
    "time_tensor_parallel",
    "time_context_parallel",
    "time_expert_parallel",
    "time_pipeline_communication",
    "time_data_parallel",
)
"""Results in which nothing but messages are under way."""
STEP_PARTS = (
    "time_forward",
    "time_backward",
    "time_recompute",
    "time_tensor_parallel",
    "time_context_parallel",
    "time_expert_parallel",
    "time_pipeline_communication",
    "time_pipeline_bubble",
    "time_data_parallel",
    "time_optimizer",
    "time_overhead",
)
"""Results that add up to the step time."""


class Step(NamedTuple):
    """A step in pieces: kernels (of many plans those that differ), collectives, and calls of each place per micro-batch
    on the critical stage.
    """

    parts: list[Part]
    communication: Communication
    results: dict[str, Array]
    counts: dict[str, Array]
    optimizer_traffic: Array
    optimizer_time: Array


class _BlockTimes(NamedTuple):
    """Times of one block: kernels (rows, places), forward, backward, of weight gradients, recomputed selectively, and
    left out where all of it is recomputed; collectives of tensor and expert parallelism and of logits (rows,); of
    context parallelism (rows, 1, cores). [s]
    """

    forward: Array
    backward: Array
    weight_gradients: Array
    again: Array
    left_out: Array
    tensor_forward: Array
    tensor_backward: Array
    context_forward: Array
    context_backward: Array
    exchange: Array
    expert: Array
    logits: Array


class _StageTimes(NamedTuple):
    """Times of one micro-batch on a stage, (rows,) or (rows, 3); spans are kernels of a pass with what they wait for
    of the host and the context. [s]
    """

    forward: Array
    backward: Array
    again: Array
    weight_gradients: Array
    tensor: Array
    context: Array
    expert: Array
    waiting: Array
    backward_waiting: Array
    forward_span: Array
    backward_span: Array
    hidden: Array

    def passes(self, transfer: Array | float = 0.0) -> tuple[Array, Array]:
        """Forward and backward pass, each with half of the communication of tensor and expert parallelism. [s]"""
        share = 0.5 * (self.tensor + self.expert + transfer)
        return self.forward_span + share, self.backward_span + share

    @property
    def time(self) -> Array:
        """Time of a micro-batch. [s]"""
        shown = (self.forward, self.backward, self.again, self.tensor, self.context, self.expert, self.waiting)
        return total(side_by_side(*shown))

    def stage(self, index: int | Array) -> _StageTimes:
        """One of the stages, or the one that each row names."""
        if isinstance(index, int):
            return _StageTimes(*(values[:, index] for values in self))
        rows = np.arange(len(index))
        return _StageTimes(*(values[rows, index] for values in self))


def _places(setting: Setting) -> tuple[str, ...]:
    """Places of the parts of a step; the last one is that of linear attention where there is any."""
    return _HYBRID if setting.architecture.linear_attention else PLACES


def _of_layers(values: Array) -> Array:
    """Sum over the places in layers, (rows, 3) of (rows, 3, places)."""
    found = total(values[..., _LAYERS])
    return found + values[..., -1] if values.shape[-1] > len(PLACES) else found


def _kernel_times(setting: Setting, parts: list[Part]) -> Array:
    """Kernels of each place, (5, places, rows): forward, backward, of weight gradients, recomputed selectively, and
    what is left out where whole layers are recomputed. [s]
    """
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
    """Kernels of each place and collectives of each block, once."""
    forward, backward, weights, again, left_out = (each.T for each in kernels)
    exchange = setting.constants["experts"]["exchange_slowdown"][:, 0] * communication.expert_exchange.time
    tensor = tensor_times(setting, communication)
    cores = zip(forward[:, CORES].T, backward[:, CORES].T, strict=True)
    context = side_by_side(*(context_time(setting, communication, *core) for core in cores))
    return _BlockTimes(
        forward,
        backward,
        weights,
        again,
        left_out,
        tensor[:, 0],
        tensor[:, 1],
        context[:, None, 0],
        context[:, None, 1],
        2.0 * exchange,
        communication.expert_gather.time + communication.expert_scatter.time,
        communication.logits_gather.time,
    )


def _calls(setting: Setting, contents: StageContents) -> Array:
    """Calls of each place per micro-batch, (rows, 3, places): an MTP module looks tokens up and has a head as well."""
    model, attention, mtp = setting.model, contents.attention, contents.mtp
    local = attention * (model.num_local_layers / model.num_layers)[:, None]
    blocks = attention, attention - local, local, contents.dense, contents.mixtures
    linear = (contents.linear,) if setting.architecture.linear_attention else ()
    return side_by_side(*blocks, contents.head + mtp, contents.embedding + mtp, mtp, *linear)


def _host_times(setting: Setting, contents: StageContents) -> tuple[Array, Array, Array]:
    """Time in which the host launches the layers of a pass, what it adds for experts, and waits for, (rows, 3). [s]

    The first hides behind the kernels that run meanwhile; the others do not. Going forward the host waits for the
    counts of tokens of a layer before it launches the products of experts. Its lead over the kernels is then lost: the
    launches of one layer have nothing to hide behind (heuristic, this work). Backward the host knows the counts; with
    experts filled and padded to a capacity it knows them before and waits for nothing (Megatron-Core 0.8 and later,
    token_dispatcher.py: drop_and_pad makes the counts on the host, cuda_sync_point no_sync). Graphs are launched at
    once.
    What the host needs for each rank of a collective, it needs in runs over several machines. Inputs of each expert
    are cast on their own, by a kernel beside that of the product, by two where the scale needs their largest element.
    """
    plan, constants = setting.plan, setting.constants
    layers, mixtures, software = contents.layers, contents.mixtures, constants["training_software"]
    several = plan.num_accelerators > setting.network.size[:, 0]
    ranks = np.where(several & (plan.tensor_parallel > 1), plan.tensor_parallel, 0.0)[:, None]
    if setting.architecture.linear_attention:  # a layer of one block is half of one of two
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
    """Times of one micro-batch on each stage, (rows, 3): kernels and collectives of a block, times how often."""
    plan, calls = setting.plan, _calls(setting, contents)
    layers, mixtures = contents.layers, contents.mixtures
    full = (plan.recompute == Recompute.FULL)[:, None]
    selective = (plan.recompute == Recompute.SELECTIVE)[:, None]
    share = np.minimum(plan.recompute_layers[:, None] / layers, 1.0)
    passes = 2.0 + np.where(full, share, 0.0)  # forward, backward, and forward again

    forward, backward = calls * blocks.forward[:, None], calls * blocks.backward[:, None]
    layer_forward, layer_backward = _of_layers(forward), _of_layers(backward)
    repeated, left_out = (_of_layers(calls * times[:, None]) for times in (blocks.again, blocks.left_out))
    again = share * np.where(full, layer_forward - left_out, np.where(selective, repeated, 0.0))
    whole_forward = layer_forward + total(forward[..., _OUTSIDE])
    whole_backward = layer_backward + total(backward[..., _OUTSIDE])

    shared = np.where(setting.model.shared_ffn_hidden_size > 0, 1.0, 0.0)
    block_count = contents.mixers + contents.dense + mixtures * (shared[:, None] if np.ndim(shared) else shared)
    tensor, tensor_backward = blocks.tensor_forward[:, None], blocks.tensor_backward[:, None]
    cores = calls[..., CORES]
    context, context_backward = total(cores * blocks.context_forward), total(cores * blocks.context_backward)
    host, launches, counts = _host_times(setting, contents)
    waiting = np.maximum(host - layer_forward - tensor * block_count - context, 0.0) + launches + counts
    waiting_backward = host - layer_backward - tensor_backward * block_count - context_backward
    waiting_backward = np.maximum(waiting_backward, 0.0) + 2.0 * launches
    whole_waiting = waiting * (passes - 1.0) + waiting_backward
    whole_context = context * (passes - 1.0) + context_backward

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
        weight_gradients=total(calls * blocks.weight_gradients[:, None]),
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
    """Which of the first, a middle and the last stage sets the pace, (rows,), from their times, (rows, 3)."""
    stages = setting.plan.pipeline_parallel
    first, middle, last = times.T
    slower = np.where((last > first) & (stages > 1), LAST, FIRST)
    return np.where((middle > np.maximum(last, first)) & (stages > 2), MIDDLE, slower)


def _bubble(setting: Setting, times: _StageTimes, critical: Array, transfer: Array) -> Array:
    """Time in which the critical stage idles while the pipeline fills and drains, (rows,). [s]"""
    plan, stage = setting.plan, times.stage(MIDDLE)
    stages, chunks = plan.pipeline_parallel, plan.virtual_pipeline
    bubble = pipeline_bubble_time(stage.time + transfer, stages, chunks)
    if some(plan.pipeline_schedule >= PipelineSchedule.ZERO_BUBBLE):
        forward, backward = stage.passes(transfer)
        weights = np.minimum(stage.weight_gradients, backward)
        # where the host is waited for, half of what it launches in a backward pass are gradients of weights
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
    """Time in which the slowest stage waits while one micro-batch passes all others, each with its own time. [s]"""
    first, middle, last = setting.pipeline
    between = (setting.model.num_layers - first.layers - last.layers) / middle.layers  # in middle stages
    others = times[:, FIRST] + times[:, LAST] + between * times[:, MIDDLE]
    return np.asarray(others - times[np.arange(len(critical)), critical])


def _data_parallel_time(
    setting: Setting, communication: Communication, stage: _StageTimes, overlap: Array | float
) -> Array:
    """Reduction of gradients and gathering of weights, exposed beside a share of the passes; ZeRO-3 repeats both for
    every micro-batch (in a pipeline where it reshards), ZeRO-2 in a pipeline the former, but for what passes between
    groups of shards; gradients that are added up whole are reduced once.
    """
    plan, window = setting.plan, overlap
    tax = setting.constants["training_software"]["overlap_tax"][:, 0]
    sharded = plan.regathers
    repeats = np.where(plan.reduces_each, plan.num_micro_batches, 1.0)
    reduce = communication.gradient_reduce.time + communication.expert_gradient_reduce.time
    gather = communication.weight_gather.time + communication.expert_weight_gather.time
    behind_backward = reduce + np.where(sharded, gather, 0.0)
    behind_others = np.where(plan.keeps_sums, behind_backward - reduce, behind_backward)
    between = communication.group_reduce.time + communication.expert_group_reduce.time
    last_reduced = behind_backward + between
    hidden, first_hidden = window * stage.backward_span, window * stage.forward_span
    last_hidden = hidden
    chunked = (plan.virtual_pipeline > 1) & (plan.pipeline_parallel > 1) & ~(sharded | plan.scatters)
    if some(chunked):
        turns = plan.virtual_pipeline, np.minimum(plan.pipeline_parallel, plan.num_micro_batches)
        last_hidden = np.where(chunked, time_beside_chunks(last_reduced, hidden, *turns), hidden)
        first_hidden = np.where(chunked, time_beside_chunks(gather, first_hidden, *turns), first_hidden)

    forward = exposed_collective_time(gather, first_hidden, tax)
    last = exposed_collective_time(last_reduced, last_hidden, tax) + forward
    again = np.where(plan.scatters, 0.0, forward)
    return np.asarray((repeats - 1.0) * (exposed_collective_time(behind_others, hidden, tax) + again) + last)


def _copied_weights(setting: Setting) -> Array | float:
    """Bytes moved once a step to cast the quantized copies of the weights, unless they are cast when gathered. [B]"""
    plan = setting.plan
    if not some(plan.keeps_copies):
        return 0.0
    quantized = quantized_weights(plan, setting.parameters, setting.pipeline.middle) + setting.fullest.experts
    share = 1.0 - plan.wide_layers / setting.model.num_layers
    cast = plan.cast_reads * plan.element_size + plan.layouts * plan.product_size
    # gathered in one layout; where there is another, read and written once more
    turned = 2.0 * (plan.layouts - 1.0) * plan.product_size
    primary = (plan.quantized_copies == QuantizedCopies.PRIMARY) & (plan.turns > 0)
    each = np.where(primary, turned, np.where(plan.regathers, 0.0, cast))
    return np.where(plan.keeps_copies & ~plan.frozen, share * quantized * each, 0.0)


def _optimizer_traffic(setting: Setting) -> Array:
    """Bytes that a rank moves to update its weights and to clear its gradients, (rows,). [B]"""
    plan, fullest = setting.plan, setting.fullest
    trained, trained_experts = fullest.trained, fullest.trained_experts
    owners = np.where(plan.zero_stage > 0, plan.zero_shards, 1.0)
    expert_owners = np.where(plan.zero_stage > 0, plan.expert_zero_shards, 1.0)
    touched = 2.0 * plan.gradient_size + 2.0 * plan.optimizer_size + plan.element_size
    sharded = plan.sums_shards
    cleared = plan.gradient_size * (
        trained / np.where(sharded, owners, 1.0) + trained_experts / np.where(sharded, expert_owners, 1.0)
    )
    own = trained / owners + trained_experts / expert_owners
    # Of what is updated on the host gradients are read here, and weights written that come back.
    on_host = plan.offload_optimizer * own * (touched - plan.gradient_size - plan.element_size)
    return np.asarray(touched * own + cleared - on_host + _copied_weights(setting))


def _host_optimizer_time(setting: Setting, behind: Array) -> Array | float:
    """Time of the optimizer on the host that nothing hides: gradients leave while the last backward pass runs. [s]"""
    plan, device, fullest = setting.plan, setting.device, setting.fullest
    if not some(plan.offload_optimizer):
        return 0.0
    owners = np.where(plan.zero_stage > 0, plan.zero_shards, 1.0)
    expert_owners = np.where(plan.zero_stage > 0, plan.expert_zero_shards, 1.0)
    number = plan.offload_optimizer * (fullest.trained / owners + fullest.trained_experts / expert_owners)
    link, memory, drive = (
        values[:, 0] for values in (device.host_bandwidth, device.host_memory_bandwidth, device.drive_bandwidth)
    )
    drive = np.where(plan.offload_target == OffloadTarget.DRIVE, drive, np.inf)
    update = host_update_time(number, plan.gradient_size, plan.element_size, plan.optimizer_size, link, memory, drive)
    exposed = exposed_offload_time(number * plan.gradient_size, link, behind)
    return np.where(plan.offload_optimizer > 0.0, exposed + update, 0.0)


def _offloaded_activations_time(setting: Setting, which: Array, stage: _StageTimes) -> Array | float:
    """Exposed time of a micro-batch in which its activations leave for the host and come back. [s]"""
    plan, link = setting.plan, setting.device.host_bandwidth[:, 0]
    if not some(plan.offload_activations):
        return 0.0
    kept = kept_activations(setting)[np.arange(len(which)), which]
    size = plan.offload_activations * kept
    there = exposed_offload_time(size, link, stage.forward_span)
    return there + exposed_offload_time(size, link, stage.backward_span)


def _reserved_memory(setting: Setting) -> Array:
    """What the allocator holds; 0 where no software asks the driver again when it runs out, (rows,). [B]"""
    if not some(setting.constants["training_calls"]["retry_time"]):
        return np.zeros(len(setting.plan))
    return memory_of(setting)["memory_reserved"]


def step(setting: Setting) -> Step:
    """Time of one optimizer step.

    Parameters
    ----------
    setting : Setting
        Model, device, network, plan and calibration. [-]

    Returns
    -------
    Step
        Pieces and results; ``results`` has the columns of ``training_results`` that are times. [s]

    Examples
    --------
    One sequence of 1,000 tokens: the kernels move 156 MB forward and 280 MB backward, and the optimizer 38 B for each
    of 14.0 M parameters, at 1 TB/s.

    >>> from ideal_machine import setting
    >>> found = step(setting()).results
    >>> [float(found[name][0]) for name in ("time_forward", "time_backward", "time_optimizer", "step_time")]
    [0.000156, 0.000280, 0.000532, 0.000968]
    """
    plan = setting.plan
    stages, chunks, batches = plan.pipeline_parallel, plan.virtual_pipeline, plan.num_micro_batches
    shapes = setting.distinct_kernels()
    own = setting if shapes is None else shapes[0]
    parts = kernel_parts(own)
    kernels = _kernel_times(own, parts)
    kernels = kernels if shapes is None else kernels[..., shapes[1]]
    communication = communication_of(setting)
    contents = pacing_contents(setting.model, plan, setting.pipeline, setting.contents)
    times = _stage_times(setting, _block_times(setting, kernels, communication), contents)
    stage_time = times.time
    which = _critical_stage(setting, stage_time)
    critical = times.stage(which)

    transfer_time = communication.stage_transfer.time
    transfers_per_batch = np.where(stages > 1, 2.0 * chunks, 0.0)
    both_ways = transfers_per_batch * transfer_time
    software = setting.constants["training_software"]
    transfer_waits = transfers_per_batch * np.where(
        plan.pipeline_overlap > 0, 0.0, software["transfer_wait_time"][:, 0]
    )
    overlapped = np.where(((chunks > 1) | plan.dualpipe) & (plan.pipeline_overlap > 0), 1.0, 0.0)
    traffic = _optimizer_traffic(setting)
    optimizer = vector_time(setting.device, setting.constants["vector"], traffic[:, None], 0.0)[:, 0]
    layers = setting.pipeline.middle.layers
    overlap = plan.data_overlap * software["data_parallel_overlap"][:, 0]
    data_parallel, all_data = (
        _data_parallel_time(setting, communication, times.stage(FIRST), share) for share in (overlap, 0.0)
    )
    # The host's link and the network run side by side: what a pass waits for one of them hides the other.
    optimizer = optimizer + _host_optimizer_time(setting, critical.backward_span + data_parallel)
    offloaded = batches * _offloaded_activations_time(setting, which, critical)
    waiting = batches * (critical.waiting + transfer_waits) + np.maximum(offloaded - data_parallel, 0.0)
    exposed = exposed_transfer_time(transfer_time, *critical.passes(), batches, stages, chunks, overlapped)
    times_of_parts = (
        batches * critical.forward,
        batches * critical.backward,
        batches * critical.again,
        batches * critical.tensor,
        batches * critical.context,
        batches * critical.expert,
        exposed,
        _bubble(setting, times, which, both_ways + transfer_waits),
        data_parallel,
        optimizer,
        waiting + waits_of_calls(setting, layers, _reserved_memory(setting)),
    )
    transfers = np.maximum(batches * both_ways - exposed, 0.0)
    hidden = all_data - data_parallel + transfers + batches * critical.hidden
    results = {
        "step_time": total(side_by_side(*times_of_parts)),
        **dict(zip(STEP_PARTS, times_of_parts, strict=True)),
        "layer_time": stage_time[:, MIDDLE] / layers,
        "hidden_communication_time": hidden,
    }
    rows = np.arange(len(which))
    counts = dict(zip(_places(setting), _calls(setting, contents)[rows, which].T, strict=True))
    counts["layers"] = contents.layers[rows, which]
    return Step(parts, communication, results, counts, traffic, optimizer)
