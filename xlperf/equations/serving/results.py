"""Latency, throughput and memory of a served plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, total
from xlperf.equations.hardware.device import Device
from xlperf.equations.model.linear import (
    linear_attention_parameters,
    linear_attention_small_parameters,
    linear_gate_parameters,
)
from xlperf.equations.model.model import Architecture, Model
from xlperf.equations.model.parameters import router_parameters
from xlperf.equations.model.serving import DECODING, DENSE, PREFILL, cache_elements, linear_share, linear_widths
from xlperf.equations.model.transformer import (
    embedding_parameters,
    expert_parameters,
    latent_attention_parameters,
    layer_matrix_parameters,
    layer_vector_parameters,
)
from xlperf.equations.network.topologies import Network
from xlperf.equations.plan.serving_memory import (
    cache_budget,
    largest_batch,
    prefill_working_set,
    serving_weights_size,
    usable_memory,
)
from xlperf.equations.plan.serving_plan import InferencePlan
from xlperf.equations.serving.bound import serving_bound
from xlperf.equations.serving.products import wide_attention
from xlperf.equations.serving.recurrent import state_size
from xlperf.equations.serving.work import ATTENTION, COMMUNICATION, FIXED, MATRIX, VECTOR, phase_times, serving_work

_LOGIT_SIZE = 4.0
_OF_ONE_SEQUENCE = ("kv_cache_size", "prefix_cache_size", "working_set_size", "most_sequences")
_OF_ENGINE = (
    "memory_fraction",
    "of_free_memory",
    "activations_included",
    "driver_memory",
    "reserve",
    "reserve_per_token",
    "reserve_per_rank",
)
_QUANTILES = ("median", "ninetieth", "ninety_ninth")


def _layer_weights_size(model: Model, plan: InferencePlan, architecture: Architecture) -> tuple[Array, Array]:
    """Weights of the matrices of a mean layer on one rank: in the precision of the plan, and in that between. [B]"""
    ranks = plan.attention_parallel
    apart = wide_attention(plan, architecture)
    heads, groups = np.ceil(model.num_attention_heads / ranks), np.ceil(model.num_query_groups / ranks)
    narrow_ffn = model.ffn_hidden_size / ranks
    if not architecture.experts and not architecture.latent_attention and not architecture.linear_attention:
        shapes = (model.hidden_size, heads, groups, model.head_size, narrow_ffn, model.gated_mlp)
        return layer_matrix_parameters(*shapes), 0.0 * heads
    wide = 0.0 * heads
    if architecture.latent_attention:
        narrow = latent_attention_parameters(
            model.hidden_size,
            heads,
            model.q_lora_rank,
            model.kv_lora_rank,
            model.qk_head_size,
            model.qk_rope_head_size,
            model.v_head_size,
        )
        # The expansion of keys and values is kept wide: it is folded into queries and outputs when decoding.
        wide = model.kv_lora_rank * heads * (model.qk_head_size - model.qk_rope_head_size + model.v_head_size)
        narrow = narrow - wide
    else:
        narrow = layer_matrix_parameters(model.hidden_size, heads, groups, model.head_size, 0.0, 0.0)
    if architecture.linear_attention:
        share = linear_share(model)
        gated = model.attention_gate * model.hidden_size * heads * model.head_size
        keys, values, own = linear_widths(model, ranks)
        attended = model.num_attention_layers / model.num_layers
        narrow = attended * (narrow + gated) + share * linear_attention_parameters(model.hidden_size, keys, values)
        wide = share * linear_gate_parameters(model.hidden_size, own) * (1.0 - 0.5 * model.state_space)
    wide, narrow = wide + np.where(apart, narrow, 0.0), np.where(apart, 0.0, narrow)
    dense = expert_parameters(model.hidden_size, narrow_ffn, model.gated_mlp)
    if architecture.linear_attention:
        dense = dense * (model.num_dense_layers / model.num_layers)
    if not architecture.experts:
        return np.asarray(narrow + dense), np.asarray(wide)
    mixed = model.num_moe_layers / model.num_layers
    expert = expert_parameters(
        model.hidden_size, model.expert_ffn_hidden_size / plan.expert_tensor_parallel, model.gated_mlp
    )
    shared = expert_parameters(model.hidden_size, model.shared_ffn_hidden_size / ranks, model.gated_mlp)
    held = model.num_experts / plan.expert_parallel
    if not architecture.linear_attention:
        dense = (1.0 - mixed) * dense
    narrow = narrow + dense + mixed * (held * expert + shared)
    return np.asarray(narrow), np.asarray(wide + mixed * router_parameters(model))


def _layer_small_parameters(model: Model, plan: InferencePlan, architecture: Architecture) -> Array:
    """Scales and biases of a mean layer on one rank. [-]"""
    ranks = plan.attention_parallel
    heads, groups = np.ceil(model.num_attention_heads / ranks), np.ceil(model.num_query_groups / ranks)
    shapes = (model.hidden_size, heads, groups, model.head_size, model.ffn_hidden_size / ranks, model.gated_mlp)
    biases = (model.layer_norm, model.bias_qkv, model.bias_all)
    found = layer_vector_parameters(*shapes, *biases, model.query_key_norm)
    if not architecture.linear_attention:
        return found
    share, sizes = linear_share(model), (model.linear_value_size, model.linear_convolution)
    own = linear_attention_small_parameters(*linear_widths(model, ranks), *sizes, model.state_space)
    without = layer_vector_parameters(*shapes, *biases, 0.0)
    attended = model.num_attention_layers / model.num_layers
    norms = (2.0 - model.num_blocks) * (1.0 + model.layer_norm) * model.hidden_size
    return np.asarray(attended * found + (1.0 - attended) * without - norms + share * own)


def _cache_tokens(model: Model, plan: InferencePlan, architecture: Architecture, context: Array) -> Array:
    """Tokens of a context that one of the ranks that share it keeps, mean over the layers."""
    if not architecture.local_attention and architecture.linear_attention:
        return np.asarray(model.num_attention_layers / model.num_layers * np.ceil(context / plan.context_parallel))
    if not architecture.local_attention:
        return np.asarray(np.ceil(context / plan.context_parallel))
    near = model.num_local_layers * np.ceil(np.minimum(context, model.window) / plan.context_parallel)
    context = np.ceil(context / plan.context_parallel)
    return np.asarray((near + model.num_global_layers * context) / model.num_layers)


def serving_memory(model: Model, plan: InferencePlan, architecture: Architecture = DENSE) -> dict[str, Array]:
    """Memory of the fullest accelerator of a replica, and what the batch adds to it.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    plan : InferencePlan
        Degrees, lengths, batch, (rows,).
    architecture : Architecture, default DENSE
        Structure that the models share.

    Returns
    -------
    dict of str to Array
        memory_weights, memory_kv_cache, memory_activations; and of one sequence at its longest kv_cache_size beside the
        prefix that all share, the state_size of linear attention in it and working_set_size; the prefix_cache_size of
        a copy of the attention layers, and most_sequences that one pass of the prefill takes. [B]
    """
    ranks, stages, replicas = plan.attention_parallel, plan.pipeline_parallel, plan.attention_replicas
    # Layers to draft with stand beside those of a stage: weights and a cache of their own.
    layers = np.ceil(model.num_layers / stages) + plan.layers_drafted
    small = _layer_small_parameters(model, plan, architecture)
    # A first and a last stage that are not the same hold one table each, tied or not.
    tied = np.where(stages > 1.0, 1.0, model.tied_embeddings)
    tables = embedding_parameters(model.vocab_size, model.hidden_size, model.learned_positions, tied)
    narrow, wide = _layer_weights_size(model, plan, architecture)
    weights = serving_weights_size(layers, narrow, small + wide, tables, plan.weight_size, plan.activation_size, ranks)
    elements = cache_elements(model, ranks, architecture.latent_attention)
    token_size, own_context = layers * elements, plan.new_tokens + plan.running_output
    cache = token_size * _cache_tokens(model, plan, architecture, own_context) * plan.kv_size
    prefix = token_size * _cache_tokens(model, plan, architecture, plan.prefix_tokens) * plan.kv_size
    state = 0.0 * cache
    if architecture.linear_attention:
        state = layers * linear_share(model) * state_size(model, plan)
        cache = cache + state
        prefix = prefix + np.where(plan.prefix_tokens > 0.0, state, 0.0)
    projected = (model.num_attention_heads + 2.0 * model.num_query_groups) * model.head_size
    attended = model.num_attention_heads * model.head_size
    if architecture.latent_attention:
        projected = model.num_attention_heads * (2.0 * model.qk_head_size + model.v_head_size)
        attended = model.num_attention_heads * model.v_head_size
    if architecture.linear_attention:
        # Queries with their gate; or all projections of linear attention and its output.
        projected = projected + model.attention_gate * attended
        keys, values, _ = linear_widths(model, np.ones_like(ranks))
        linear = np.where(model.num_linear_layers > 0.0, 2.0 * keys + 2.0 * values, 0.0)
        projected, attended = np.maximum(projected + attended, linear + values), 0.0 * attended
    widest = model.ffn_hidden_size
    if architecture.experts:
        copies = model.top_k * model.expert_ffn_hidden_size * ranks / plan.expert_tensor_parallel
        copies = copies * replicas / plan.expert_parallel + model.shared_ffn_hidden_size
        widest = np.where(model.num_dense_layers > 0.0, np.maximum(widest, copies), copies)
    working_set = prefill_working_set(
        model.hidden_size,
        projected,
        attended,
        widest,
        model.gated_mlp,
        model.vocab_size,
        plan.own_tokens,
        plan.prefill_tokens,
        ranks,
        plan.activation_size,
        _LOGIT_SIZE,
    )
    # Beside their own keys and values, the ranks of a prompt hold those they work on and those on their way.
    passing = np.where(plan.context_parallel > 1.0, 2.0 * elements * plan.attention_size, 0.0)
    working_set = working_set + passing * np.minimum(plan.own_tokens, plan.prefill_tokens)
    most = np.maximum(plan.prefill_tokens / plan.own_tokens, 1.0)
    return {
        "memory_weights": weights,
        **_batch_memory(plan, cache, prefix, working_set, most),
        "kv_cache_size": cache,
        "prefix_cache_size": prefix,
        "state_size": state,
        "working_set_size": working_set,
        "most_sequences": most,
    }


def _batch_memory(
    plan: InferencePlan, cache: Array, prefix: Array, working_set: Array, most: Array
) -> dict[str, Array]:
    """Cache and activations of the batch of a plan, from those of one sequence and of the prefix that all share. [B]"""
    own = np.ceil(plan.batch_size / plan.attention_replicas)
    prefilled = np.minimum(np.ceil(plan.micro_batch_size / plan.attention_replicas), most)
    return {"memory_kv_cache": own * cache + prefix, "memory_activations": prefilled * working_set}


class Room(NamedTuple):
    """Memory of a replica and how much of it the engine takes, (rows,).

    Attributes
    ----------
    memory : mapping of str to Array
        As :func:`serving_memory` has it. [B]
    capacity : Array
        Memory of an accelerator. [B]
    reserved : Array
        Of that, what the driver keeps. [B]
    budget : Array
        What the engine leaves for the cache, as :func:`xlperf.equations.plan.serving_memory.cache_budget` has it. [B]
    activation_share : Array
        Share of the activations that is taken off it. [-]
    places : Array
        Requests that there is room for, whole; 0 where not one fits. [-]
    """

    memory: Mapping[str, Array]
    capacity: Array
    reserved: Array
    budget: Array
    activation_share: Array
    places: Array

    @property
    def usable(self) -> Array:
        """Memory that weights, cache and activations of the batch may take. [B]"""
        held = self.memory["memory_weights"], self.memory["memory_activations"]
        return usable_memory(self.capacity, self.reserved, *held, self.budget, self.activation_share)

    @property
    def used(self) -> Array:
        """Memory that weights, cache and activations of the batch take. [B]"""
        return np.asarray(sum(self.memory[f"memory_{part}"] for part in ("weights", "kv_cache", "activations")))

    def with_batch(self, plan: InferencePlan) -> Room:
        """The same with the batch of a plan that is otherwise the same."""
        held = _batch_memory(plan, *(self.memory[name] for name in _OF_ONE_SEQUENCE))
        return self._replace(memory={**self.memory, **held})


def room_of(
    model: Model,
    device: Device,
    plan: InferencePlan,
    software: Mapping[str, Array],
    reserved_memory: Array,
    architecture: Architecture = DENSE,
) -> Room:
    """Memory of a replica and the requests that it has room for.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    device : Device
        Accelerators, (rows, 1).
    plan : InferencePlan
        Degrees, lengths, batch, (rows,).
    software : mapping of str to Array
        Constants (rows, 1) of the families serving_software and serving_memory.
    reserved_memory : Array
        Memory that the driver keeps from the engine, (rows,). [B]
    architecture : Architecture, default DENSE
        Structure that the models share.

    Returns
    -------
    Room
        Weights, cache and activations, what is usable, and the largest batch.
    """
    memory = serving_memory(model, plan, architecture)
    capacity, weights = device.memory_capacity[:, 0], memory["memory_weights"]
    engine = {name: software[name][:, 0] for name in _OF_ENGINE}
    outside = engine["reserve"] + engine["reserve_per_token"] * plan.prefill_tokens
    outside = outside + engine["reserve_per_rank"] * plan.replica_ranks
    shown = capacity - engine["driver_memory"]
    default = np.maximum(engine["memory_fraction"] - outside / shown, 0.0)
    share = np.where(np.isnan(plan.memory_fraction), default, plan.memory_fraction)
    budget = cache_budget(shown, capacity - reserved_memory, weights, share, engine["of_free_memory"])
    covered = engine["activations_included"] * np.where(engine["of_free_memory"] > 0.0, share, 1.0)
    room = Room(memory, capacity, reserved_memory, budget, covered, 0.0 * capacity)
    return room._replace(places=most_requests(plan, room))


def most_requests(plan: InferencePlan, room: Room) -> Array:
    """Largest batch of a replica that fits what the engine takes, and the memory of the accelerator.

    Parameters
    ----------
    plan : InferencePlan
        Degrees, (rows,).
    room : Room
        Memory of the replica, (rows,).

    Returns
    -------
    Array
        Whole number; 0 where not one sequence fits. [-]
    """
    memory = room.memory
    cache, prefix, working_set, most = (memory[name] for name in _OF_ONE_SEQUENCE)
    limits = (room.budget, room.activation_share), (room.capacity - room.reserved - memory["memory_weights"], 1.0)
    found = [
        largest_batch(free - prefix, cache, share * working_set, most, plan.pipeline_parallel) for free, share in limits
    ]
    return np.asarray(np.minimum(*found) * plan.attention_replicas)


def serving_results(
    model: Model,
    device: Device,
    attention_device: Device,
    wide_device: Device,
    network: Network,
    plan: InferencePlan,
    kernels: Mapping[str, Mapping[str, Array]],
    software: Mapping[str, Array],
    reserved_memory: Array,
    architecture: Architecture = DENSE,
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
    wide_device : Device
        The same with the peak of the precision of the products that a narrow precision leaves out, (rows, 1).
    network : Network
        Tiers, (rows, tiers).
    plan : InferencePlan
        Degrees, lengths, batch, (rows,).
    kernels : mapping of str to mapping of str to Array
        Calibration constants (rows, 1), as for :func:`xlperf.equations.serving.serving_work`.
    software : mapping of str to Array
        Constants (rows, 1) of the families serving_software and serving_memory.
    reserved_memory : Array
        Memory that the driver keeps from the engine, (rows,). [B]
    architecture : Architecture, default DENSE
        Structure that the models share.

    Returns
    -------
    dict of str to Array
        Columns of inference_results by name, (rows,); ``fits`` is 1 or 0, ``bound`` a position in
        :data:`xlperf.equations.serving.BOUNDS`, NaN without a step of decoding. Beside them ``memory_usable``, what the
        engine may use.
    """
    work = serving_work(model, device, attention_device, wide_device, network, plan, kernels, software, architecture)
    parts = phase_times(work)
    bound = serving_bound(work, device, attention_device, kernels, architecture.latent_attention)
    room = room_of(model, device, plan, software, reserved_memory, architecture)
    return batch_results(plan, room, total(parts[:, PREFILL]), parts[:, DECODING], bound)


def batch_results(plan: InferencePlan, room: Room, prefill: Array, parts: Array, bound: Array) -> dict[str, Array]:
    """Results of a static batch from the times of its prefill and of a step of decoding.

    Parameters
    ----------
    plan : InferencePlan
        Degrees, lengths, batch, (rows,).
    room : Room
        Memory of a replica with that batch, (rows,).
    prefill : Array
        Time of the prefill; where it is NaN, so is what takes it, (rows,). [s]
    parts : Array
        Times of a step by part, as :func:`phase_times` has them, (rows, 5). [s]
    bound : Array
        What a step waits for, a position in :data:`xlperf.equations.serving.BOUNDS`, (rows,). [-]

    Returns
    -------
    dict of str to Array
        As :func:`serving_results`.
    """
    steps = plan.output_length - 1.0
    gained = plan.tokens_per_step
    step = total(parts) / gained
    decode = steps * step
    latency = prefill + decode
    decodes = steps > 0.0
    rate = plan.num_requests * plan.output_length / latency
    weights, cache, activations = (room.memory[f"memory_{part}"] for part in ("weights", "kv_cache", "activations"))
    used, usable = room.used, room.usable
    per_token = np.where(decodes, step, np.nan)
    return {
        "ttft": prefill,
        "tpot": per_token,
        "tpot_itl": latency / plan.output_length,
        "latency": latency,
        "tokens_per_second": rate,
        "tokens_per_second_per_accelerator": rate / plan.num_accelerators,
        "memory": used,
        "memory_weights": weights,
        "memory_kv_cache": cache,
        "memory_activations": activations,
        "memory_capacity": room.capacity,
        "max_batch_size": room.places,
        "memory_usable": usable,
        "fits": np.where(np.isnan(used + usable), np.nan, used <= usable),
        "bound": np.where(decodes, bound, np.nan),
        "prefill_time": prefill,
        "decode_time": decode,
        **{f"ttft_{quantile}": prefill for quantile in _QUANTILES},
        **{f"tpot_{quantile}": per_token for quantile in _QUANTILES},
        "queue_time": 0.0 * prefill,
        "running_batch": plan.batch_size + 0.0 * prefill,
        "max_request_rate": rate / plan.output_length,
        "time_matrix": parts[:, MATRIX] / gained,
        "time_attention": parts[:, ATTENTION] / gained,
        "time_vector": parts[:, VECTOR] / gained,
        "time_communication": parts[:, COMMUNICATION] / gained,
        "time_overhead": parts[:, FIXED] / gained,
        "prefill_share": prefill / latency,
    }
