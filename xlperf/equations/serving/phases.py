"""Prefill pass and decode step: kernels, communication and host time, critical path and limiting resource."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from xlperf.base.arrays import Array, beside, divide, side_by_side, some, total
from xlperf.equations.hardware import roofline
from xlperf.equations.hardware.gemm import FEW_ROWS
from xlperf.equations.model import operators
from xlperf.equations.model.blocks import Gemms
from xlperf.equations.model.cores import SELECTED, cores_of
from xlperf.equations.plan.records import WORD, OffloadTarget
from xlperf.equations.plan.serving_plan import InferencePlan, LayerPart, holds_weights
from xlperf.equations.serving.deployment import (
    Batching,
    Deployment,
    adapter_layer,
    batching_of,
    computed_batching,
    serving_shape,
)
from xlperf.equations.serving.kernels import (
    KernelTimes,
    attention_kernels,
    by_phase,
    decode_family,
    of_part,
    product_times,
)
from xlperf.equations.serving.messages import (
    ALL_REDUCE,
    CONTEXT,
    EXCHANGE,
    GATHERING,
    TRANSFER,
    Messages,
    serving_messages,
)
from xlperf.equations.serving.weights import rank_weights_size, with_host_weights

MATRIX, ATTENTION, VECTOR, COMMUNICATION, FIXED = range(5)
ENCODE_PARTS = ("encode_matrix", "encode_attention", "encode_vector", "encode_communication", "encode_fixed")
"""Time of the vision encoder for the images of a prompt by part, where requests have images. [s]"""
BOUNDS = roofline.RESOURCES
_CLEAR = 3.0  # ratio of two estimated savings above which their order is certain [-]

VECTOR_FLOP = 2.0  # FLOP per element that an element-wise kernel moves [FLOP]
# Bytes of each of the two passes over a logit in top-p sampling [B]. Counted in vLLM's sampler: a radix sort of FP32
# keys with positions (two stable sorts of 8 bits a pass, 230 B), softmax, sums and masks of the sorted logits (50 B),
# the scatter back (70 B), softmax, noise and maximum (50 B).
SORTED_LOGIT_SIZE = 200.0
_Rows = TypeVar("_Rows", operators.ServingShape, Batching)


def logit_size(plan: InferencePlan) -> Array:
    """Bytes per logit in each sampling pass. [B]"""
    return np.where(plan.sorted_sampling > 0.0, SORTED_LOGIT_SIZE, WORD)


class _Kernels(NamedTuple):
    """Kernels of a layer and of a pass; fields as in :class:`ServingWork`."""

    gemms: KernelTimes
    attention: KernelTimes
    vectors: KernelTimes
    attention_flop: Array
    shapes: Gemms


class ServingWork(NamedTuple):
    """Kernels and messages of a prefill pass and a decode step: time of each, and how often it runs."""

    gemms: KernelTimes
    attention: KernelTimes  # by attention kind
    vectors: KernelTimes  # element-wise and other kernels
    attention_flop: Array  # attention of a layer by kind, at the mean decode context, (rows, phases, kinds) [FLOP]
    shapes: Gemms  # GEMM shapes, (rows, phases x GEMMs) [-]
    messages: Messages  # communication before overlap
    exposed_time: Array  # exposed communication, (rows, phases, 5) [s]
    pass_overhead: Array  # exposed host time per pass or step, (rows, phases) [s]
    parts: Array  # time per layer and per pass, by part, (rows, phases, 2, 5) [s]
    layers: Array  # layers on the critical path, (rows, phases) [-]
    passes: Array  # passes on the critical path, (rows, phases) [-]
    transfers: Array  # transfers between stages on the critical path, (rows, phases) [-]


def _kernels(
    deployment: Deployment, shape: operators.ServingShape, batching: Batching, phases: tuple[int, ...]
) -> _Kernels:
    model, plan, architecture, number = deployment.model, deployment.plan, deployment.architecture, len(phases)
    # GEMMs: traffic and time, (rows, phases, GEMMs).
    products = operators.serving_gemms(model, shape, architecture, phases)
    traffic, time = product_times(deployment, products)
    names = products.gemms.names[: len(products.gemms.names) // number]
    traffic, time, calls = (by_phase(values, number) for values in (traffic, time, products.calls))
    # Other kernels; every rank of a node copies its inputs over the same host link.
    vectors = operators.serving_vectors(model, shape, architecture, plan.activation_size, logit_size(plan), phases)
    copied = np.array([name in operators.COPIED_VECTORS for name in vectors.names])
    moving = vectors.traffic * np.where(copied, deployment.software["ranks"], 1.0)
    work = moving * (VECTOR_FLOP / plan.activation_size[:, None])
    moved = roofline.vector_time(deployment.device, deployment.kernels["vector"], moving, work)
    attention, flop = attention_kernels(deployment, batching, phases)
    others = vectors.names[: len(vectors.names) // number]
    read, spent, often = (by_phase(values, number) for values in (moving, moved, vectors.calls))
    return _Kernels(
        KernelTimes(names, operators.ONCE_GEMMS, traffic, time, of_part(names, calls, plan)),
        attention,
        KernelTimes(others, operators.ONCE_VECTORS, read, spent, of_part(others, often, plan)),
        flop,
        products.gemms,
    )


def _resident(
    deployment: Deployment,
    shape: operators.ServingShape,
    batching: Batching,
    kernels: _Kernels,
    phases: tuple[int, ...],
) -> _Kernels:
    """Kernels with decode steps whose weights and cache stay in the last-level cache between steps."""
    if operators.DECODING not in phases:
        return kernels
    layers = deployment.model.num_layers / deployment.plan.pipeline_parallel
    cache = layers * total(kernels.attention.traffic[:, -1] * kernels.attention.calls[:, -1])
    per_layer = len(kernels.gemms.names) - kernels.gemms.once
    read = cache + layers * total(kernels.gemms.traffic[:, -1, :per_layer] * kernels.gemms.calls[:, -1, :per_layer])
    staying = np.flatnonzero(read < deployment.device.l2_capacity[:, 0])
    if len(staying):
        # The next step may route to any expert: all weights must fit, not only the weights that this step reads.
        few = deployment.take(staying)
        needed = np.maximum(read[staying], cache[staying] + rank_weights_size(few.model, few.plan, few.architecture))
        share = roofline.resident_share(needed, few.device.l2_capacity[:, 0])
        share, staying = share[share > 0.0], staying[share > 0.0]
    if not len(staying):
        return kernels
    few = deployment.take(staying)
    # Decode kernels anew, with memory bandwidth between main memory and last-level cache.
    bandwidth = roofline.resident_bandwidth(share[:, None], few.device.memory_bandwidth, few.device.l2_bandwidth)
    device = replace(few.device, memory_bandwidth=bandwidth)
    again = _kernels(
        replace(few, device=device), _some(shape, staying), _some(batching, staying), (operators.DECODING,)
    )

    def mixed(first: KernelTimes, second: KernelTimes) -> KernelTimes:
        time = first.time.copy(order="K")
        time[staying, -1] = second.time[:, 0]
        return first._replace(time=time)

    return kernels._replace(
        gemms=mixed(kernels.gemms, again.gemms),
        attention=mixed(kernels.attention, again.attention),
        vectors=mixed(kernels.vectors, again.vectors),
    )


def _some(values: _Rows, rows: np.ndarray) -> _Rows:
    """Select rows of a record of columns."""
    return type(values)(*(column[rows] if np.ndim(column) else column for column in values))


class _Host(NamedTuple):
    """Host time, (rows, phases). [s]"""

    layer_overhead: Array  # per layer
    layer_launches: Array  # kernel launches of a layer, which its kernels may hide
    pass_overhead: Array  # per pass
    request_overhead: Array  # per prompt of a pass or token of a step


def _host(
    deployment: Deployment,
    shape: operators.ServingShape,
    batching: Batching,
    launched: Array,
    between: Array,
    phases: tuple[int, ...],
) -> _Host:
    """Host time; ``launched``: kernels and messages per layer, ``between``: kernels outside piecewise graphs."""
    model, plan, software, kernels = deployment.model, deployment.plan, deployment.software, deployment.kernels
    architecture = deployment.architecture
    sequences = np.ceil(batching.sequences / plan.data_parallel_attention)
    served = side_by_side(shape.prefill_sampled * plan.data_parallel_attention, sequences)[:, list(phases)]
    prefill = np.array([1.0, 0.0])[list(phases)]
    each_served = prefill * software["request_overhead_time"] + (1.0 - prefill) * software["token_overhead_time"]
    blocks = (0.5 * model.num_blocks)[:, None] if architecture.counted else 1.0
    # Layer overhead by block; pools that compute one part of a layer run one of its two blocks.
    attention, experts = (plan.computes(part) for part in (LayerPart.ATTENTION, LayerPart.EXPERTS))
    if attention is not None and experts is not None:
        blocks = blocks * 0.5 * (attention + experts)[:, None]
        served = served * attention[:, None]
    layer_overhead = blocks * software["layer_overhead_time"] + 0.0 * served
    if architecture.experts:
        mixed = (model.num_moe_layers / model.num_layers)[:, None]
        mixed = mixed if experts is None else mixed * experts[:, None]
        layer_overhead = layer_overhead + mixed * kernels["serving_experts"]["layer_overhead_time"]
    # Launches of a prefill layer; piecewise graphs launch the kernels between two attention kernels at once. With
    # chunked prefill, the token limit of graphs covers the pass and its step together.
    launched_prefill = launched
    if architecture.experts:
        launched_prefill = launched_prefill + mixed * kernels["serving_experts"]["prefill_kernels"]
    if architecture.one_vector:
        launched_prefill = launched_prefill + kernels["attention_latent"]["prefill_kernels"]
    for core in cores_of(architecture):
        if core.families is not None and "prefill_kernels" in kernels[core.families[0]]:
            several = kernels[core.families[0]]["prefill_kernels"]
            launched_prefill = launched_prefill + core.share(model)[:, None] * several
    pieces = shape.prefill_tokens <= deployment.graph_tokens
    launched_prefill = np.where(pieces[:, None], np.minimum(between + 1.0, launched_prefill), launched_prefill)
    launches = prefill * software["kernel_overhead_time"] * launched_prefill
    if some(plan.graphs == 0.0):
        # Eager decode steps: gaps between the kernels of a graph are part of the host time without graphs.
        waited = kernels["serving_eager"]["launch_time"] * launched - layer_overhead
        launches = np.where((plan.graphs[:, None] == 0.0) & (prefill == 0.0), waited, launches)
    sent = (plan.stage_ranks - 1.0)[:, None] * software["worker_overhead_time"]
    each_pass = prefill * software["prefill_overhead_time"] + (1.0 - prefill) * software["step_overhead_time"] + sent
    if some(plan.draft_layers > 0.0):
        # The passes of a decode step share the time of those that draft.
        drafting = 1.0 - 1.0 / _decode_passes(plan)
        each_pass = each_pass + (1.0 - prefill) * software["draft_overhead_time"] * drafting[:, None]
    if attention is not None:
        each_pass = each_pass * attention[:, None]  # the attention pool draws tokens and prepares the next pass
    return _Host(layer_overhead, launches, each_pass + 0.0 * served, served * each_served)


def serving_work(deployment: Deployment, phases: tuple[int, ...] = operators.BOTH_PHASES) -> ServingWork:
    """Kernels, communication and host time of a prefill pass, a decode step, or both."""
    plan, architecture = deployment.plan, deployment.architecture
    running = batching_of(plan)
    batching = computed_batching(plan, running, deployment.software["whole_batch"][:, 0])
    shape = serving_shape(plan, batching, deployment.popularity)
    # An index that selects all of a prompt leaves latent attention as it is; else it runs in its absorbed form.
    if architecture.sparse_attention and architecture.latent_attention:
        selecting = plan.prompt_length > deployment.model.index_top_k
        share = np.where(selecting, SELECTED.share(deployment.model), 0.0)
        shape = shape._replace(absorbed_share=share)
    kernels = _resident(deployment, shape, batching, _kernels(deployment, shape, batching, phases), phases)
    messages = serving_messages(deployment, shape, batching, phases)
    # Kernels and messages that the host launches in a layer; attention stands between piecewise graphs.
    between = kernels.attention.layer_calls()
    launched = kernels.gemms.layer_calls() + kernels.vectors.layer_calls() + between + total(messages.calls)[:, None]
    with_adapters = some(plan.adapters > 0.0)
    if with_adapters:
        adding, kernel_calls = _adapters(deployment, shape, batching, phases)
        launched = launched + kernel_calls
    host = _host(deployment, shape, running, launched, between, phases)
    exposed = messages.time
    if operators.PREFILL in phases and some(plan.context_parallel > 1.0):
        # Attention hides the ring of keys and values but for the last block (ring attention, arXiv:2310.01889).
        hiding = total(kernels.attention.time[:, 0] * kernels.attention.calls[:, 0])
        exposed = exposed.copy()
        behind = plan.ring * (1.0 - 1.0 / plan.context_parallel) * hiding
        exposed[:, 0, CONTEXT] = np.maximum(exposed[:, 0, CONTEXT] - behind, 0.0)
    parts = _parts(kernels, messages, exposed, host)
    if architecture.experts and some(plan.two_batch_overlap > 0.0):
        halves = side_by_side(batching.prefill_split, batching.decode_split)[:, list(phases)]
        share = deployment.kernels["serving_experts"]["exchange_share"] * (np.array(phases) == operators.PREFILL)
        exposed = _overlapped(messages, exposed, parts, halves, share)
        # A pass pays its overhead once, not once per half.
        host = host._replace(pass_overhead=host.pass_overhead / halves, request_overhead=host.request_overhead / halves)
        parts = _parts(kernels, messages, exposed, host)
    if with_adapters:
        parts = parts.copy(order="F")
        parts[:, :, 0, VECTOR] += adding
    if holds_weights(plan):
        products = operators.serving_gemms(deployment.model, shape, architecture, phases)
        busy, launches = total(parts[:, :, 0, :FIXED]), host.layer_launches
        gemms, waiting = with_host_weights(deployment, shape, products, kernels.gemms, (busy, launches), parts, phases)
        kernels, parts = kernels._replace(gemms=gemms), parts.copy(order="F")
        parts[:, :, 0, MATRIX] = gemms.layer_time()
        parts[:, :, 0, FIXED] += waiting
    if some(plan.kv_offload > 0.0):
        parts = _with_offload(deployment, kernels, shape, parts, phases)
    if operators.PREFILL in phases and ENCODE_PARTS[0] in deployment.software:
        encoding = np.concatenate([deployment.software[name] for name in ENCODE_PARTS], axis=-1)
        parts[:, 0, 1] += (batching.own_prompts / batching.passes)[:, None] * encoding
    # Host time per request or token: in decoding it may overlap with the computation of a stage, drafts included.
    decoding = np.array(phases) == operators.DECODING
    passes = np.where(decoding, _decode_passes(plan)[:, None], 1.0)
    handled = np.where(decoding, plan.tokens_per_step[:, None], 1.0) * host.request_overhead
    stage = (deployment.model.num_layers / plan.pipeline_parallel)[:, None] * _drafting(deployment)[:, None]
    computing = stage * total(parts[:, :, 0]) + passes * total(parts[:, :, 1])
    beside = np.where(decoding, deployment.overlapped_host, 0.0)
    parts[:, :, 1, FIXED] += np.maximum(handled - beside * computing, 0.0) / passes
    path = _critical_path(deployment, batching, exposed, parts, phases)
    return ServingWork(*kernels, messages, exposed, parts[:, :, 1, FIXED], parts, *path)


def _overlapped(messages: Messages, exposed: Array, parts: Array, halves: Array, share: Array) -> Array:
    """Exposed communication with two-batch overlap: one half computes while the other exchanges tokens with experts."""
    exchanges, time = messages.calls[:, 1, None], exposed.copy()
    exchange = time[..., EXCHANGE]
    computed = total(parts[:, :, 0]) - exchanges * exchange
    hiding = divide(computed, exchanges + 0.0 * computed)
    overlapped = np.maximum(exchange - hiding, 0.0) + share * np.minimum(exchange, hiding)
    time[..., EXCHANGE] = np.where(halves > 1.0, overlapped, exchange)
    return time


def _parts(kernels: _Kernels, messages: Messages, exposed: Array, host: _Host) -> Array:
    """Times (rows, phases, 2, 5): per layer and per pass; GEMMs, attention, other kernels, communication, fixed."""
    parts = np.zeros((*exposed.shape[:2], 2, 5), order="F")
    for part, group in ((MATRIX, kernels.gemms), (ATTENTION, kernels.attention), (VECTOR, kernels.vectors)):
        parts[:, :, 0, part] = group.layer_time()
        if group.once:
            parts[:, :, 1, part] = group.pass_time()
    reduces, exchanges, contexts = (messages.calls[:, index, None] for index in range(3))
    parts[:, :, 0, COMMUNICATION] = reduces * exposed[..., ALL_REDUCE] + exchanges * exposed[..., EXCHANGE]
    parts[:, :, 0, COMMUNICATION] += contexts * exposed[..., CONTEXT]
    parts[:, :, 1, COMMUNICATION] = exposed[..., ALL_REDUCE] + exposed[..., GATHERING]
    # Fixed: overheads, and launch time that exceeds the kernel time of a layer.
    launching = np.maximum(host.layer_launches - total(parts[:, :, 0]), 0.0)
    parts[:, :, 0, FIXED] = host.layer_overhead + launching
    parts[:, :, 1, FIXED] = host.pass_overhead
    return parts


def _adapters(
    deployment: Deployment, shape: operators.ServingShape, batching: Batching, phases: tuple[int, ...]
) -> tuple[Array, Array]:
    """Time and kernels of the adapters of a layer, (rows, phases)."""
    plan, constants = deployment.plan, deployment.kernels["vector"]
    efficiency, each = constants["memory_efficiency"][:, 0], deployment.software["adapter_time"][:, 0]
    requests = {
        operators.PREFILL: shape.prefill_sampled,
        operators.DECODING: np.ceil(batching.sequences / plan.data_parallel_attention),
    }
    columns = [
        adapter_layer(deployment.model, plan, deployment.device, efficiency, each, shape.of(phase)[0], requests[phase])
        for phase in phases
    ]
    time, kernels = (side_by_side(*values) for values in zip(*columns, strict=True))
    return time, kernels


def _with_offload(
    deployment: Deployment, kernels: _Kernels, shape: operators.ServingShape, parts: Array, phases: tuple[int, ...]
) -> Array:
    """Parts with the exposed KV offload of a layer: decoding reads the cache from the host, the prefill writes it."""
    plan, model, architecture = deployment.plan, deployment.model, deployment.architecture
    link, drive = deployment.device.host_bandwidth[:, 0], deployment.device.drive_bandwidth[:, 0]
    link = np.where(plan.offload_target == OffloadTarget.DRIVE, np.minimum(link, drive), link)
    written = shape.prefill_tokens * operators.cache_elements(model, plan.attention_parallel, architecture.one_vector)
    moved = {operators.DECODING: total(kernels.attention.traffic[:, -1] * kernels.attention.calls[:, -1])}
    moved[operators.PREFILL] = written * plan.kv_size
    sizes = side_by_side(*(plan.kv_offload * moved[phase] for phase in phases))
    parts = parts.copy(order="F")
    parts[:, :, 0, FIXED] += roofline.exposed_offload_time(sizes, link[:, None], total(parts[:, :, 0]))
    return parts


def _decode_passes(plan: InferencePlan) -> Array:
    """Passes through embedding and output projection in a decode step: its own, and one for each drafted token.

    Drafts without layers are looked up in the text (n-grams) and take none. [-]
    """
    return np.asarray(1.0 + np.where(plan.draft_layers > 0.0, plan.drafted_tokens, 0.0))


def _drafting(deployment: Deployment) -> Array:
    """Layers per step relative to the model: drafted tokens run through the draft layers one by one. [-]"""
    plan = deployment.plan
    return np.asarray(1.0 + plan.drafted_tokens * plan.draft_layers / deployment.model.num_layers)


def _critical_path(
    deployment: Deployment, batching: Batching, exposed: Array, parts: Array, phases: tuple[int, ...]
) -> list[Array]:
    """Layers, passes and transfers (rows, phases) on the critical path of the prefill and of a decode step."""
    plan = deployment.plan
    stages, layers, micro_batches = plan.pipeline_parallel, deployment.model.num_layers, batching.micro_batches
    stage_layers = np.ceil(layers / stages)  # of the largest stage
    linked = np.minimum(stages - 1.0, 1.0)
    counts = []
    if operators.PREFILL in phases:
        # The first pass runs through all stages; each further one adds its time in the largest stage.
        more = batching.passes - 1.0
        counts.append((layers + more * stage_layers, 1.0 + more, stages - 1.0 + more * linked))
    if operators.DECODING in phases:
        # The longer of a walk through all stages and all micro-batches on the largest stage.
        layer, once = total(parts[:, -1]).T
        transfer = exposed[:, -1, TRANSFER]
        walk = layers * layer + once + (stages - 1.0) * transfer
        full = micro_batches * (stage_layers * layer + once + linked * transfer) > walk
        halves = batching.decode_split
        counts.append(
            (
                halves * np.where(full, micro_batches * stage_layers, layers) * _drafting(deployment),
                halves * np.where(full, micro_batches, 1.0) * _decode_passes(plan),
                halves * np.where(full, micro_batches * linked, stages - 1.0),
            )
        )
    return [side_by_side(*values) for values in zip(*counts, strict=True)]


def phase_times(work: ServingWork) -> Array:
    """Times of the whole prefill and of one decode step on the critical path, by part, (rows, phases, 5). [s]"""
    parts = work.parts
    times = work.layers[..., None] * parts[:, :, 0] + work.passes[..., None] * parts[:, :, 1]
    times[..., COMMUNICATION] += work.transfers * work.exposed_time[..., TRANSFER]
    return times


def on_machine(deployment: Deployment, faster: roofline.Faster) -> Deployment:
    """Deployment on faster accelerators."""
    return replace(deployment, device=faster.device(deployment.device))


def _fitted(first: Array, second: Array, busy: Array) -> tuple[Array, Array]:
    """Times of two fully overlapping activities, scaled so that the longer one equals the busy time."""
    longer = np.maximum(first, second)
    scale = np.divide(busy, longer, out=np.zeros(np.broadcast(busy, longer).shape), where=longer > 0.0)
    return np.where(first >= second, busy, np.minimum(first * scale, first)), np.where(
        first >= second, np.minimum(second, busy), busy
    )


def _split(busy: Array, memory: Array, serial_share: Array) -> tuple[Array, Array]:
    """Arithmetic and memory time of a kernel that takes the longer of both plus a serial share of the shorter one."""
    memory = np.minimum(memory, busy)
    longer = busy - serial_share * memory
    shorter = np.divide(busy - memory, serial_share, out=np.zeros(busy.shape), where=serial_share > 0.0)
    return np.where(longer >= memory, longer, np.minimum(shorter, memory)), memory


def with_doubled(deployment: Deployment, rows: np.ndarray) -> Deployment:
    """A deployment, then some of its rows with twice the compute, then these rows with twice the memory bandwidth."""
    number = len(deployment.plan)
    every = np.concatenate([np.arange(number), rows, rows])
    compute, memory = np.ones((2, len(every), 1))
    compute[number : number + len(rows)] = memory[number + len(rows) :] = 2.0
    return on_machine(deployment.take(every), roofline.Faster(compute=compute, memory=memory))


def serving_bound(deployment: Deployment, work: ServingWork, doubled: int = 0) -> Array:
    """Limiting resource of a decode step, a position in :data:`BOUNDS`: the resource whose doubling saves most time.

    Compute is the rate of the accelerator's units; memory the bandwidth of main memory and last-level cache; network
    all communication; overhead launches and fixed costs. Savings are estimated from times and bytes; if compute and
    memory are close, steps are computed on faster machines. ``doubled``: number of last rows of :func:`with_doubled`
    whose copies follow them; of these rows alone.
    """
    saved, times = _estimated_savings(deployment, work), total(phase_times(work)[:, -1])
    plans = slice(len(times) - 3 * doubled, len(times) - 2 * doubled) if doubled else slice(None)
    faster_times = times[plans.stop :].reshape(2, -1) if doubled else times
    saved, times = saved[plans], times[plans]
    units, memory, network, overhead = saved.T
    # Rows whose order of compute and memory, or of memory and the others, is uncertain.
    larger, fixed = np.maximum(units, memory), np.maximum(network, overhead)
    close = (_CLEAR * np.minimum(units, memory) > larger) | ((memory > units) & (_CLEAR * fixed > memory))
    rows = np.flatnonzero(close & (_CLEAR * larger > fixed))
    if len(rows):
        if doubled:
            faster_times = faster_times[:, rows]
        else:
            twice = np.repeat([[1.0], [2.0]], len(rows), axis=0)
            faster = on_machine(deployment.take(np.tile(rows, 2)), roofline.Faster(compute=twice[::-1], memory=twice))
            faster_times = total(phase_times(serving_work(faster, (operators.DECODING,)))[:, 0]).reshape(2, -1)
        saved[rows, :2] = (times[rows] - faster_times).T
    return np.where(np.isnan(total(saved)), np.nan, roofline.most_saved(*saved.T))


def _estimated_savings(deployment: Deployment, work: ServingWork) -> Array:
    """Estimated decode step time saved by doubling compute, memory, network or by halving overhead, (rows, 4). [s]"""
    kernels, step = deployment.kernels, phase_times(work)[:, -1]
    constants, attend = kernels["gemm"], kernels[decode_family(deployment.architecture)]
    bandwidth = deployment.device.memory_bandwidth
    groups = ((work.gemms, constants), (work.attention, attend), (work.vectors, kernels["vector"]))
    # Kernel times without launches, and calls on the critical path.
    times = [group.time[:, -1] for group, _ in groups]
    starts = [np.minimum(family["launch_time"], time) for time, (_, family) in zip(times, groups, strict=True)]
    gemm, attending, moved = (time - start for time, start in zip(times, starts, strict=True))
    calls = []
    for group, _ in groups:
        per_layer, number = len(group.names) - group.once, group.calls[:, -1]
        calls += [work.layers[:, -1:] * number[:, :per_layer], work.passes[:, -1:] * number[:, per_layer:]]
    # Memory time of GEMMs; with few rows the weights stream and memory takes the whole time.
    moving = work.gemms.traffic[:, -1] / (constants["memory_efficiency"] * bandwidth)
    if "serving_experts" in kernels:
        grouped = np.array([name.startswith("experts") for name in work.gemms.names])
        moving = np.where(grouped, kernels["serving_experts"]["memory_slowdown"], 1.0) * moving
    rows = by_phase(work.shapes.m + 0.0 * work.shapes.n, work.gemms.time.shape[1])[:, -1]
    moving = np.where(rows <= FEW_ROWS, gemm, moving)
    # Compute and memory parts of each kind of kernel, and what doubling either saves.
    product = _split(gemm, moving, constants["serial_share"] + 0.0 * gemm)
    attended = _fitted(
        work.attention_flop[:, -1]
        / (attend["compute_efficiency"] * deployment.device.rate(roofline.CORE).peak_flop_rate),
        work.attention.traffic[:, -1] / (attend["memory_efficiency"] * bandwidth),
        attending,
    )
    savings = (
        roofline.doubling_savings(*product, constants["serial_share"]),
        roofline.doubling_savings(*attended),
        (0.0 * moved, 0.5 * moved),
    )
    all_calls = beside(*calls)
    compute, memory = (total(all_calls * beside(*saving)) for saving in zip(*savings, strict=True))
    overhead = 0.5 * (total(all_calls * beside(*starts)) + step[:, FIXED])
    return side_by_side(compute, memory, 0.5 * step[:, COMMUNICATION], overhead + 0.0 * total(step))
