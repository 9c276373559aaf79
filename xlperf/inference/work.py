"""Every operator of a pass of the prefill and of a step of decoding: its time, and how often it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xlperf.arrays import Array, total
from xlperf.hardware.device import Device
from xlperf.hardware.kernels import attention_time, decode_attention_time, gemm_time, vector_time
from xlperf.hardware.roofline import visible_pairs
from xlperf.network.collectives import collective_time
from xlperf.network.tiers import Network
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

MATRIX, ATTENTION, VECTOR, COMMUNICATION, FIXED = range(5)

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
    micro_batches, sequences = plan.num_micro_batches, plan.micro_batch_size
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
    parts[:, :, 0, MATRIX] = total(matrix[..., :LAYER_GEMMS])
    parts[:, :, 1, MATRIX] = total(matrix[..., LAYER_GEMMS:])
    parts[:, :, 0, ATTENTION] = work.attention_time
    parts[:, :, 0, VECTOR] = total(vector[..., :LAYER_VECTORS])
    parts[:, :, 1, VECTOR] = total(vector[..., LAYER_VECTORS:])
    parts[:, :, 0, COMMUNICATION] = _LAYER_REDUCES * work.message_time[..., 0]
    parts[:, :, 1, COMMUNICATION] = work.message_time[..., 0] + work.message_time[..., 1]
    parts[:, :, 0, FIXED] = work.layer_overhead
    parts[:, :, 1, FIXED] = work.pass_overhead
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


def phase_times(work: ServingWork) -> Array:
    """Times of the whole prefill and of one step of decoding on the critical path, by part.

    Parameters
    ----------
    work : ServingWork
        Operators and times.

    Returns
    -------
    Array
        (rows, 2, 5): matrix products, attention, other kernels, communication, fixed costs. [s]
    """
    parts = _parts(work)
    found = work.layers[..., None] * parts[:, :, 0] + work.passes[..., None] * parts[:, :, 1]
    found[..., COMMUNICATION] += work.transfers * work.message_time[..., 2]
    return found
