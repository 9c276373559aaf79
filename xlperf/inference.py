"""Time and memory of serving a dense model: a prefill, then decoding step by step with a growing cache.

A replica holds its whole batch together (static batch). With pipeline parallelism the batch runs as micro-batches
that follow each other through the stages; a step of decoding takes as long as the longer of a walk through all
stages and one turn of all micro-batches on the slowest stage. All functions are vectorised over plans (rows,);
phases are an axis of two: a pass of the prefill, a step of decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xlperf.arrays import Array, divide, total
from xlperf.hardware.device import Device
from xlperf.hardware.kernels import attention_time, decode_attention_time, gemm_time, vector_time
from xlperf.hardware.roofline import visible_pairs
from xlperf.network.collectives import collective_time
from xlperf.network.tiers import Network
from xlperf.parallel.serving_memory import largest_batch, prefill_working_set, serving_weights_size
from xlperf.parallel.serving_plan import InferencePlan
from xlperf.workload.model import Model
from xlperf.workload.operators import Gemms
from xlperf.workload.serving import (
    GEMM_NAMES,
    LAYER_GEMMS,
    LAYER_VECTORS,
    VECTOR_NAMES,
    serving_gemms,
    serving_vectors,
)
from xlperf.workload.transformer import (
    embedding_parameters,
    kv_cache_size,
    layer_matrix_parameters,
    layer_vector_parameters,
)

BOUNDS = ("compute", "memory", "network", "overhead")
COMPUTE, MEMORY, NETWORK, OVERHEAD = range(4)
LAUNCHED_AHEAD = ("gemm", "attention", "attention_decode", "vector")

_LAYER_REDUCES = 2.0
_VECTOR_FLOP = 2.0
_LOGIT_SIZE = 4.0


class ServingWork(NamedTuple):
    """Every operator of a pass of the prefill and of a step of decoding, with its time and how often it runs.

    Attributes
    ----------
    gemms : Gemms
        Products, (rows, 2 phases x 5). [-]
    gemm_traffic : Array
        Bytes of one product. [B]
    gemm_time : Array
        Time of one product. [s]
    vector_traffic : Array
        Bytes of one other kernel, (rows, 2 phases x 5). [B]
    vector_calls : Array
        Its calls per layer, or per pass for the last two. [-]
    vector_time : Array
        Time of one call. [s]
    context : Array
        Mean length of the cache over the steps of decoding, (rows,). [-]
    attention_flop : Array
        Attention of one layer, decoding at the mean context, (rows, 2). [FLOP]
    attention_traffic : Array
        Its bytes, (rows, 2). [B]
    attention_time : Array
        Its time, decoding averaged over the steps, (rows, 2). [s]
    message_size : Array
        All-reduce, gathering of logits, transfer to the next stage, (rows, 2, 3). [B]
    message_time : Array
        Their times, (rows, 2, 3). [s]
    layer_overhead : Array
        Fixed cost of the software per layer, (rows, 2). [s]
    pass_overhead : Array
        Fixed cost of the software per pass or step, (rows, 2). [s]
    layers : Array
        Layers on the critical path of the prefill and of a step, (rows, 2). [-]
    passes : Array
        Passes on it. [-]
    transfers : Array
        Transfers between stages on it. [-]
    """

    gemms: Gemms
    gemm_traffic: Array
    gemm_time: Array
    vector_traffic: Array
    vector_calls: Array
    vector_time: Array
    context: Array
    attention_flop: Array
    attention_traffic: Array
    attention_time: Array
    message_size: Array
    message_time: Array
    layer_overhead: Array
    pass_overhead: Array
    layers: Array
    passes: Array
    transfers: Array


class _Batching(NamedTuple):
    """How the batch of a replica is cut, (rows,): micro-batches, their sequences, passes of the prefill of each."""

    micro_batches: Array
    sequences: Array
    passes: Array
    tokens: Array
    logit_rows: Array
    steps: Array


def _batching(plan: InferencePlan) -> _Batching:
    micro_batches = np.minimum(plan.pipeline_parallel, plan.batch_size)
    sequences = np.ceil(plan.batch_size / micro_batches)
    tokens = sequences * plan.prompt_length
    passes = np.ceil(tokens / plan.prefill_tokens)
    steps = np.maximum(plan.output_length - 1.0, 0.0)
    return _Batching(micro_batches, sequences, passes, tokens / passes, np.ceil(sequences / passes), steps)


def _gemm_bytes(gemms: Gemms, plan: InferencePlan) -> tuple[Array, Array]:
    """Mean bytes of an input element, the two inputs keeping their own size, and traffic of one call."""
    inner = np.zeros(2 * len(GEMM_NAMES), dtype=bool)
    inner[:LAYER_GEMMS] = inner[len(GEMM_NAMES) : len(GEMM_NAMES) + LAYER_GEMMS] = True
    activation = plan.activation_size[:, None]
    rows_size = np.where(inner, plan.input_size[:, None], activation)
    weight_size = np.where(inner, plan.weight_size[:, None], activation)
    inputs = rows_size * gemms.m + weight_size * gemms.n
    return inputs / (gemms.m + gemms.n), gemms.k * inputs + activation * gemms.m * gemms.n


def _attention(
    model: Model,
    device: Device,
    plan: InferencePlan,
    batching: _Batching,
    kernels: Mapping[str, Mapping[str, Array]],
) -> tuple[Array, Array, Array, Array]:
    """Mean context, and FLOP, traffic and time (rows, 2) of the attention of one layer.

    The steps of decoding see contexts that grow by one token. Their mean is taken at two contexts, the mean less and
    plus the standard deviation, which is exact for a time that is a cubic polynomial of the context.
    """
    steps = np.maximum(batching.steps, 1.0)
    mean = (plan.prompt_length + 0.5 * (steps + 1.0))[:, None]
    spread = np.sqrt((steps * steps - 1.0) / 12.0)[:, None]
    heads = np.ceil(model.num_attention_heads / plan.tensor_parallel)[:, None]
    groups = np.ceil(model.num_query_groups / plan.tensor_parallel)[:, None]
    head_size, sequences = model.head_size[:, None], batching.sequences[:, None]
    prompt, passes = plan.prompt_length[:, None], batching.passes[:, None]
    size, cache_size = plan.attention_size[:, None], plan.kv_size[:, None]
    prefill = attention_time(
        device, kernels["attention"], sequences, heads, groups, prompt, prompt, head_size, 1.0, size
    )
    contexts = np.concatenate([mean - spread, mean + spread], axis=-1)
    decode = decode_attention_time(
        device, kernels["attention_decode"], sequences, heads, groups, contexts, head_size, cache_size
    )
    pairs = np.concatenate([visible_pairs(prompt, prompt, 1.0) / passes, mean], axis=-1)
    read = np.concatenate([(heads + groups) * prompt * size / passes, groups * mean * cache_size], axis=-1)
    time = np.concatenate([prefill / passes, 0.5 * (decode[:, :1] + decode[:, 1:])], axis=-1)
    work = sequences * head_size
    return mean[:, 0], 4.0 * work * heads * pairs, 2.0 * work * read, time


def _messages(
    model: Model,
    network: Network,
    plan: InferencePlan,
    batching: _Batching,
    kernels: Mapping[str, Mapping[str, Array]],
) -> tuple[Array, Array]:
    """Bytes and times (rows, 2, 3) of all-reduce, gathering of logits and transfer to the next stage."""
    tensor, pipeline = plan.tensor_parallel[:, None], plan.pipeline_parallel[:, None]
    sent = np.stack([batching.tokens, batching.sequences], axis=-1)
    gathered = np.stack([batching.logit_rows, batching.sequences], axis=-1)
    hidden = sent * (model.hidden_size * plan.activation_size)[:, None]
    logits = gathered * (model.vocab_size * plan.activation_size)[:, None]
    sizes = np.stack([hidden, logits, hidden], axis=-1)
    times = 0.0 * sizes
    if np.any(tensor != 1.0):
        times[..., 0] = collective_time("all_reduce", hidden, tensor, 1.0, network, kernels["all_reduce"])
        times[..., 1] = collective_time("all_gather", logits, tensor, 1.0, network, kernels["all_gather"])
    if np.any(pipeline != 1.0):
        times[..., 2] = collective_time("point_to_point", hidden, pipeline, tensor, network, kernels["point_to_point"])
    return sizes, times


def engine_kernels(kernels: Mapping[str, Mapping[str, Array]]) -> dict[str, Mapping[str, Array]]:
    """Constants of the kernels inside a serving engine: none waits for its own launch.

    A kernel that is timed alone is launched alone. An engine launches ahead of the accelerator, or all kernels at
    once as a graph; what is left between them is in the overhead of a layer. Collectives keep their start, which
    is the meeting of the ranks.

    Parameters
    ----------
    kernels : mapping of str to mapping of str to Array
        Calibration constants by family.

    Returns
    -------
    dict of str to mapping of str to Array
        The same with a launch time of 0 for the families of :data:`LAUNCHED_AHEAD`.
    """
    return {
        family: {**constants, "launch_time": 0.0 * constants["launch_time"]} if family in LAUNCHED_AHEAD else constants
        for family, constants in kernels.items()
    }


def serving_work(
    model: Model,
    device: Device,
    attention_device: Device,
    network: Network,
    plan: InferencePlan,
    kernels: Mapping[str, Mapping[str, Array]],
    software: Mapping[str, Array],
) -> ServingWork:
    """Operators of both phases with their times.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    device : Device
        Accelerators with the peak of the precision of the products, (rows, 1).
    attention_device : Device
        The same with the peak of the precision of attention, (rows, 1).
    network : Network
        Tiers, (rows, tiers).
    plan : InferencePlan
        Degrees, lengths, batch, (rows,).
    kernels : mapping of str to mapping of str to Array
        Calibration constants (rows, 1) of the families gemm, attention, attention_decode, vector, all_reduce,
        all_gather and point_to_point.
    software : mapping of str to Array
        Constants (rows, 1) of the family serving_software.

    Returns
    -------
    ServingWork
        Times of one call each, and how often each is called.
    """
    batching = _batching(plan)
    tensor, sequences, tokens, rows = plan.tensor_parallel, batching.sequences, batching.tokens, batching.logit_rows
    activation = plan.activation_size
    gemms = serving_gemms(model, tokens, rows, sequences, tensor)
    element_size, gemm_traffic = _gemm_bytes(gemms, plan)
    output_size = activation[:, None]
    product = gemm_time(device, kernels["gemm"], gemms.m, gemms.n, gemms.k, gemms.batch, element_size, output_size)
    logit_size = np.full_like(activation, _LOGIT_SIZE)
    vectors = serving_vectors(model, tokens, rows, sequences, tensor, activation, logit_size)
    vector = vector_time(device, kernels["vector"], vectors.traffic, vectors.traffic * (_VECTOR_FLOP / output_size))
    context, attention_flop, attention_traffic, attention = _attention(model, attention_device, plan, batching, kernels)
    message_size, message_time = _messages(model, network, plan, batching, kernels)
    admitted = np.stack([rows, 0.0 * rows], axis=-1)
    prefill = np.array([1.0, 0.0])
    work = ServingWork(
        gemms,
        gemm_traffic,
        product,
        vectors.traffic,
        vectors.calls,
        vector,
        context,
        attention_flop,
        attention_traffic,
        attention,
        message_size,
        message_time,
        software["layer_overhead_time"] + 0.0 * admitted,
        prefill * software["prefill_overhead_time"] + admitted * software["request_overhead_time"],
        admitted,
        admitted,
        admitted,
    )
    layers, passes, transfers = _critical_path(work, model, plan, batching)
    return work._replace(layers=layers, passes=passes, transfers=transfers)


def _parts(work: ServingWork) -> Array:
    """Times (rows, 2 phases, 2, 5): of a layer and of what runs once; matrix attention vector communication fixed."""
    rows = len(work.context)
    parts = np.zeros((rows, 2, 2, 5))
    matrix = work.gemm_time.reshape(rows, 2, len(GEMM_NAMES))
    vector = (work.vector_time * work.vector_calls).reshape(rows, 2, len(VECTOR_NAMES))
    parts[:, :, 0, 0] = total(matrix[..., :LAYER_GEMMS])
    parts[:, :, 1, 0] = total(matrix[..., LAYER_GEMMS:])
    parts[:, :, 0, 1] = work.attention_time
    parts[:, :, 0, 2] = total(vector[..., :LAYER_VECTORS])
    parts[:, :, 1, 2] = total(vector[..., LAYER_VECTORS:])
    parts[:, :, 0, 3] = _LAYER_REDUCES * work.message_time[..., 0]
    parts[:, :, 1, 3] = work.message_time[..., 0] + work.message_time[..., 1]
    parts[:, :, 0, 4] = work.layer_overhead
    parts[:, :, 1, 4] = work.pass_overhead
    return parts


def _critical_path(
    work: ServingWork, model: Model, plan: InferencePlan, batching: _Batching
) -> tuple[Array, Array, Array]:
    """Layers, passes and transfers (rows, 2) on the critical path of the prefill and of a step of decoding."""
    each = total(_parts(work))
    layer, once, transfer = each[..., 0], each[..., 1], work.message_time[..., 2]
    stages, layers, turns = plan.pipeline_parallel, model.num_layers, batching.micro_batches
    fullest = np.ceil(layers / stages)
    linked = np.minimum(stages - 1.0, 1.0)
    walk = layers * layer[:, 1] + once[:, 1] + (stages - 1.0) * transfer[:, 1]
    turn = turns * (fullest * layer[:, 1] + once[:, 1] + linked * transfer[:, 1])
    turning = turn > walk
    more = turns * batching.passes - 1.0
    return (
        np.stack([layers + more * fullest, np.where(turning, turns * fullest, layers)], axis=-1),
        np.stack([1.0 + more, np.where(turning, turns, 1.0)], axis=-1),
        np.stack([stages - 1.0 + more * linked, np.where(turning, turns * linked, stages - 1.0)], axis=-1),
    )


def _phase_parts(work: ServingWork) -> Array:
    """Times (rows, 2, 5) of the whole prefill and of one step of decoding, on the critical path."""
    parts = _parts(work)
    found = work.layers[..., None] * parts[:, :, 0] + work.passes[..., None] * parts[:, :, 1]
    found[..., 3] += work.transfers * work.message_time[..., 2]
    return found


def _roofs(flop: Array, traffic: Array, device: Device, peak: Array) -> Array:
    """Code of the roof that a kernel works under, were it as fast as the roof."""
    return np.where(flop / peak >= traffic / device.memory_bandwidth, float(COMPUTE), float(MEMORY))


class _Waits(NamedTuple):
    """What the kernels wait for (rows, operators): code of the roof, and the fixed share of the time of a call. [s]"""

    gemm: Array
    attention: Array
    vector: Array
    gemm_fixed: Array
    attention_fixed: Array
    vector_fixed: Array


def _waits(
    work: ServingWork, device: Device, attention_device: Device, kernels: Mapping[str, Mapping[str, Array]]
) -> _Waits:
    attention_fixed = [kernels[family]["launch_time"] for family in ("attention", "attention_decode")]
    vector_flop = 0.0 * work.vector_traffic
    return _Waits(
        _roofs(work.gemms.flop, work.gemm_traffic, device, device.peak_flop_rate),
        _roofs(work.attention_flop, work.attention_traffic, attention_device, attention_device.peak_flop_rate),
        _roofs(vector_flop, work.vector_traffic, device, device.vector_flop_rate),
        np.minimum(kernels["gemm"]["launch_time"], work.gemm_time),
        np.minimum(np.concatenate(attention_fixed, axis=-1), work.attention_time),
        np.minimum(kernels["vector"]["launch_time"], work.vector_time),
    )


def serving_bound(
    work: ServingWork,
    device: Device,
    attention_device: Device,
    kernels: Mapping[str, Mapping[str, Array]],
) -> Array:
    """Code of what most of a step of decoding waits for: a position in :data:`BOUNDS`.

    The time of a kernel beyond its launch counts to the roof that it works under, the launch and the fixed costs of
    the software to overhead.

    Parameters
    ----------
    work : ServingWork
        Operators and times, (rows,).
    device : Device
        As for :func:`serving_work`, (rows, 1).
    attention_device : Device
        As for :func:`serving_work`, (rows, 1).
    kernels : mapping of str to mapping of str to Array
        As for :func:`serving_work`.

    Returns
    -------
    code : Array
        Position in BOUNDS, NaN where the time is NaN. [-]
    """
    waits = _waits(work, device, attention_device, kernels)
    step = _phase_parts(work)[:, 1]
    half = slice(len(GEMM_NAMES), None)
    layers, passes = work.layers[:, 1:], work.passes[:, 1:]
    gemm_calls = np.where(np.arange(len(GEMM_NAMES)) < LAYER_GEMMS, layers, passes)
    vector_calls = np.where(np.arange(len(VECTOR_NAMES)) < LAYER_VECTORS, layers, passes) * work.vector_calls[:, half]
    calls = np.concatenate([gemm_calls, layers, vector_calls], axis=-1)
    times = np.concatenate([work.gemm_time[:, half], work.attention_time[:, 1:], work.vector_time[:, half]], axis=-1)
    fixed = np.concatenate(
        [waits.gemm_fixed[:, half], waits.attention_fixed[:, 1:], waits.vector_fixed[:, half]], axis=-1
    )
    roofs = np.concatenate([waits.gemm[:, half], waits.attention[:, 1:], waits.vector[:, half]], axis=-1)
    busy = calls * (times - fixed)
    compute = total(np.where(roofs == COMPUTE, busy, 0.0))
    memory = total(np.where(roofs == MEMORY, busy, 0.0))
    overhead = total(calls * fixed) + step[:, 4]
    shares = np.stack([compute, memory, step[:, 3], overhead], axis=-1)
    return np.where(np.isnan(total(step)), np.nan, np.argmax(np.nan_to_num(shares), axis=-1))


def serving_memory(model: Model, plan: InferencePlan) -> dict[str, Array]:
    """Memory of the fullest accelerator of a replica, and what the batch adds to it.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    plan : InferencePlan
        Degrees, lengths, batch, (rows,).

    Returns
    -------
    dict of str to Array
        memory_weights, memory_kv_cache, memory_activations; and of one sequence kv_cache_size and working_set_size,
        and most_sequences that one pass of the prefill takes. [B]
    """
    tensor, stages = plan.tensor_parallel, plan.pipeline_parallel
    layers = np.ceil(model.num_layers / stages)
    heads = np.ceil(model.num_attention_heads / tensor)
    groups = np.ceil(model.num_query_groups / tensor)
    shapes = (model.hidden_size, heads, groups, model.head_size, model.ffn_hidden_size / tensor, model.gated_mlp)
    small = layer_vector_parameters(*shapes, model.layer_norm, model.bias_qkv, model.bias_all, model.query_key_norm)
    # A first and a last stage that are not the same hold one table each, tied or not.
    tied = np.where(stages > 1.0, 1.0, model.tied_embeddings)
    tables = embedding_parameters(model.vocab_size, model.hidden_size, model.learned_positions, tied)
    weights = serving_weights_size(
        layers, layer_matrix_parameters(*shapes), small, tables, plan.weight_size, plan.activation_size, tensor
    )
    context = plan.prompt_length + plan.output_length
    cache = kv_cache_size(layers, model.num_query_groups, model.head_size, context, plan.kv_size, tensor)
    working_set = prefill_working_set(
        model.hidden_size,
        (model.num_attention_heads + 2.0 * model.num_query_groups) * model.head_size,
        model.num_attention_heads * model.head_size,
        model.ffn_hidden_size,
        model.gated_mlp,
        model.vocab_size,
        plan.prompt_length,
        plan.prefill_tokens,
        tensor,
        plan.activation_size,
        _LOGIT_SIZE,
    )
    most = np.maximum(plan.prefill_tokens / plan.prompt_length, 1.0)
    return {
        "memory_weights": weights,
        "memory_kv_cache": plan.batch_size * cache,
        "memory_activations": np.minimum(_batching(plan).sequences, most) * working_set,
        "kv_cache_size": cache,
        "working_set_size": working_set,
        "most_sequences": most,
    }


def serving_results(
    model: Model,
    device: Device,
    attention_device: Device,
    network: Network,
    plan: InferencePlan,
    kernels: Mapping[str, Mapping[str, Array]],
    software: Mapping[str, Array],
    reserved_memory: Array,
) -> dict[str, Array]:
    """Every number of the inference results that is not a cost, an energy or a band, in the units used inside.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    device : Device
        Accelerators with the peak of the precision of the products, (rows, 1).
    attention_device : Device
        The same with the peak of the precision of attention, (rows, 1).
    network : Network
        Tiers, (rows, tiers).
    plan : InferencePlan
        Degrees, lengths, batch, (rows,).
    kernels : mapping of str to mapping of str to Array
        Calibration constants (rows, 1) of the families gemm, attention, attention_decode, vector, all_reduce,
        all_gather and point_to_point.
    software : mapping of str to Array
        Constants (rows, 1) of the family serving_software.
    reserved_memory : Array
        Memory that the driver keeps from the engine, (rows,). [B]

    Returns
    -------
    dict of str to Array
        Columns of inference_results by name, (rows,); ``fits`` is 1 or 0, ``bound`` a position in :data:`BOUNDS`,
        NaN without a step of decoding. Beside them ``input_token_rate`` and ``output_token_rate``, tokens per second
        of one replica while it is in the phase that makes them, infinite where there is no such phase.
    """
    work = serving_work(model, device, attention_device, network, plan, kernels, software)
    phases = _phase_parts(work)
    times = total(phases)
    steps = plan.output_length - 1.0
    prefill, step = times[:, 0], times[:, 1]
    decode = steps * step
    latency = prefill + decode
    decodes = steps > 0.0
    rate = plan.num_requests * plan.output_length / latency
    memory = serving_memory(model, plan)
    weights, cache, activations = (memory[f"memory_{part}"] for part in ("weights", "kv_cache", "activations"))
    capacity = device.memory_capacity[:, 0]
    usable = capacity * software["memory_fraction"][:, 0] - reserved_memory
    used = weights + cache + activations
    return {
        "ttft": prefill,
        "tpot": np.where(decodes, step, np.nan),
        "tpot_itl": latency / plan.output_length,
        "latency": latency,
        "tokens_per_second": rate,
        "tokens_per_second_per_accelerator": rate / plan.num_accelerators,
        "memory": used,
        "memory_weights": weights,
        "memory_kv_cache": cache,
        "memory_activations": activations,
        "memory_capacity": capacity,
        "max_batch_size": largest_batch(
            usable - weights,
            memory["kv_cache_size"],
            memory["working_set_size"],
            memory["most_sequences"],
            plan.pipeline_parallel,
        ),
        "fits": np.where(np.isnan(used + usable), np.nan, used <= usable),
        "bound": np.where(decodes, serving_bound(work, device, attention_device, kernels), np.nan),
        "prefill_time": prefill,
        "decode_time": decode,
        "time_matrix": phases[:, 1, 0],
        "time_attention": phases[:, 1, 1],
        "time_vector": phases[:, 1, 2],
        "time_communication": phases[:, 1, 3],
        "time_overhead": phases[:, 1, 4],
        "input_token_rate": plan.batch_size * plan.prompt_length / prefill,
        "output_token_rate": divide(plan.batch_size * plan.output_length, decode, np.inf),
    }
