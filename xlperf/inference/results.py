"""Latency, throughput and memory of a served plan."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from xlperf.arrays import Array, divide, total
from xlperf.hardware.device import Device
from xlperf.inference.bound import serving_bound
from xlperf.inference.work import ATTENTION, COMMUNICATION, FIXED, MATRIX, VECTOR, phase_times, serving_work
from xlperf.network.tiers import Network
from xlperf.parallel.serving_memory import largest_batch, prefill_working_set, serving_weights_size
from xlperf.parallel.serving_plan import InferencePlan
from xlperf.workload.model import Model
from xlperf.workload.transformer import (
    embedding_parameters,
    kv_cache_size,
    layer_matrix_parameters,
    layer_vector_parameters,
)

_LOGIT_SIZE = 4.0


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
        "memory_activations": np.minimum(plan.micro_batch_size, most) * working_set,
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
        Columns of inference_results by name, (rows,); ``fits`` is 1 or 0, ``bound`` a position in
        :data:`xlperf.inference.BOUNDS`, NaN without a step of decoding. Beside them ``input_token_rate`` and
        ``output_token_rate``, tokens per second of one replica while it is in the phase that makes them, infinite
        where there is no such phase.
    """
    work = serving_work(model, device, attention_device, network, plan, kernels, software)
    phases = phase_times(work)
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
        "time_matrix": phases[:, 1, MATRIX],
        "time_attention": phases[:, 1, ATTENTION],
        "time_vector": phases[:, 1, VECTOR],
        "time_communication": phases[:, 1, COMMUNICATION],
        "time_overhead": phases[:, 1, FIXED],
        "input_token_rate": plan.batch_size * plan.prompt_length / prefill,
        "output_token_rate": divide(plan.batch_size * plan.output_length, decode, np.inf),
    }
