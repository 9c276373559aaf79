"""Memory of the fullest rank of a training step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.arrays import Array, ceil_div, side_by_side
from xlperf.parallel.memory import (
    attention_activation_size,
    expert_activation_size,
    mlp_activation_size,
    optimizer_element_size,
    weights_size,
)
from xlperf.parallel.pipeline import in_flight_micro_batches, last_stage_layers, stage_layers
from xlperf.parallel.plan import DUALPIPE, RECOMPUTE_FULL, RECOMPUTE_SELECTIVE, TrainingPlan
from xlperf.training.kernels import routed_tokens
from xlperf.training.setting import MASK, WORD, Setting
from xlperf.workload.model import Model
from xlperf.workload.parameters import attention_matrix_parameters, layer_small_parameters, router_parameters
from xlperf.workload.transformer import expert_parameters


class RankParameters(NamedTuple):
    """Parameters on one rank, (rows,): of the blocks of a layer, of the embedding and of the head. [-]"""

    attention: Array
    mlp: Array
    shared: Array
    experts: Array
    embedding: Array
    head: Array


def rank_parameters(model: Model, plan: TrainingPlan) -> RankParameters:
    """Parameters that one rank holds of each block, before any sharding over replicas.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    plan : TrainingPlan
        Degrees, (rows,). [-]

    Returns
    -------
    RankParameters
        Attention with norms and biases; dense feed-forward; router with shared experts; routed experts; embedding
        with learned positions; output projection. [-]
    """
    tensor = plan.tensor_parallel
    hidden, gated = model.hidden_size, model.gated_mlp
    compressed = np.where(
        model.latent_attention > 0,
        hidden * (model.q_lora_rank + model.kv_lora_rank + model.qk_rope_head_size),
        0.0,
    )
    attention = (attention_matrix_parameters(model) - compressed) / tensor + compressed + layer_small_parameters(model)
    table = ceil_div(model.vocab_size, tensor) * hidden
    return RankParameters(
        attention=attention,
        mlp=expert_parameters(hidden, model.ffn_hidden_size, gated) / tensor,
        shared=expert_parameters(hidden, model.shared_ffn_hidden_size, gated) / tensor + router_parameters(model),
        experts=model.num_experts
        / plan.expert_parallel
        * expert_parameters(hidden, model.expert_ffn_hidden_size, gated)
        / plan.expert_tensor_parallel,
        embedding=table + model.learned_positions * hidden,
        head=np.where((model.tied_embeddings > 0) & (plan.pipeline_parallel < 2), 0.0, table),
    )


def mixture_layers(model: Model, layers: Array, stages: Array, first: bool) -> Array:
    """Mixture-of-experts layers among the layers of a stage.

    Dense layers stand at the start (DeepSeek) or in between (Llama 4); a later stage has as many mixtures as fit.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    layers : Array
        Layers of the stage, (rows,). [-]
    stages : Array
        Pipeline stages, (rows,). [-]
    first : bool
        Whether it is the first stage. [-]

    Returns
    -------
    Array
        Mixture-of-experts layers, (rows,). [-]
    """
    share = layers * model.num_moe_layers / model.num_layers
    leading = model.moe_layer_step <= 1
    later = np.where(leading, np.minimum(layers, model.num_moe_layers), share)
    start = np.where(leading, layers - np.minimum(model.num_dense_layers, layers), share)
    alone = np.clip(2.0 - stages, 0.0, 1.0)
    return np.asarray(alone * share + (1.0 - alone) * (start if first else later))


def _layer_activations(setting: Setting) -> tuple[Array, Array, Array, Array]:
    """Bytes that a dense layer and a mixture keep, (rows,): as planned, and without any recomputation."""
    model, plan = setting.model, setting.plan
    tensor, sequence, element = plan.tensor_parallel, plan.sequence_parallel, plan.element_size
    heads = ceil_div(model.num_attention_heads, tensor)
    scores = (1.0 - plan.flash_attention) * plan.micro_batch_size * heads * plan.sequence_length**2
    width = model.num_attention_heads * model.v_head_size
    plain = width + 2.0 * model.num_query_groups * model.head_size
    latent = model.num_attention_heads * (2.0 * model.qk_head_size + model.v_head_size) + tensor * (
        2.0 * model.q_lora_rank + 2.0 * model.kv_lora_rank + model.qk_rope_head_size
    )
    projected = np.where(model.latent_attention > 0, latent, plain)
    common = (tensor, sequence, element, MASK)

    def attention(kept_scores: Array) -> Array:
        return attention_activation_size(
            plan.tokens, model.hidden_size, projected, width, kept_scores, model.dropout, *common
        )

    dense = mlp_activation_size(
        plan.tokens, model.hidden_size, model.ffn_hidden_size, model.gated_mlp, model.dropout, *common
    )
    mixture = dense
    if setting.architecture.experts:
        routed, copies, _ = routed_tokens(setting)
        shared = mlp_activation_size(
            plan.tokens, model.hidden_size, model.shared_ffn_hidden_size, model.gated_mlp, model.dropout, *common
        )
        mixture = shared + expert_activation_size(
            routed * model.top_k,
            copies,
            model.hidden_size,
            model.expert_ffn_hidden_size / plan.expert_tensor_parallel,
            model.gated_mlp,
            element,
        )
    shards = np.where(sequence > 0, tensor, 1.0)
    stream = plan.tokens * model.hidden_size * element / shards
    full = plan.recompute == RECOMPUTE_FULL
    planned = attention(np.where(plan.recompute == RECOMPUTE_SELECTIVE, 0.0, scores))
    whole = attention(scores)
    return (
        np.where(full, stream, planned + dense),
        np.where(full, stream, planned + mixture),
        whole + dense,
        whole + mixture,
    )


def memory_of(setting: Setting, held: RankParameters) -> dict[str, Array]:
    """Memory of the fullest of the first, the second and the last stage.

    Parameters
    ----------
    setting : Setting
        Model, plan and calibration. [-]
    held : RankParameters
        As :func:`rank_parameters` has it. [-]

    Returns
    -------
    dict of str to Array
        Parts, their sum ``memory``, and ``memory_reserved`` with the allocator's share. [B]
    """
    model, plan = setting.model, setting.plan
    stages, chunks, batches = plan.pipeline_parallel, plan.virtual_pipeline, plan.num_micro_batches
    single = stages < 2
    full = stage_layers(model.num_layers, stages, chunks)
    last = last_stage_layers(model.num_layers, stages, chunks)
    layers = side_by_side(full, full, last)
    mixtures = side_by_side(
        mixture_layers(model, full, stages, first=True),
        mixture_layers(model, full, stages, first=False),
        mixture_layers(model, last, stages, first=False),
    )
    zero = np.zeros_like(full)
    outside = side_by_side(held.embedding + np.where(single, held.head, 0.0), zero, held.head)
    copies = np.where(plan.schedule == DUALPIPE, 2.0, 1.0)[:, None]
    dense = copies * (
        layers * held.attention[:, None]
        + (layers - mixtures) * held.mlp[:, None]
        + mixtures * np.where(model.num_experts > 0, held.shared, 0.0)[:, None]
        + outside
    )
    routed = copies * mixtures * held.experts[:, None]

    dense_kept, mixture_kept, dense_whole, mixture_whole = (values[:, None] for values in _layer_activations(setting))
    first_held = in_flight_micro_batches(batches, stages, chunks, plan.gpipe)
    step = np.where(chunks > 1.0, 1.0 / chunks, 1.0)
    second_held = np.where(plan.gpipe > 0, batches, np.maximum(np.minimum(batches, first_held - step), 1.0))
    last_held = np.where(plan.gpipe > 0, batches, np.minimum(batches, ((chunks - 1.0) * stages + 1.0) / chunks))
    both_ways = plan.schedule == DUALPIPE
    everywhere = np.minimum(batches, stages + 1.0)
    in_flight = side_by_side(
        np.where(both_ways, everywhere, first_held),
        np.where(both_ways, everywhere, second_held),
        np.where(both_ways, everywhere, np.where(single, first_held, last_held)),
    )
    again = (plan.recompute == RECOMPUTE_FULL)[:, None]
    working = np.where(again, np.where(mixtures > 0, mixture_whole, dense_whole), 0.0)
    shared = np.where(plan.sequence_parallel > 0, plan.tensor_parallel, 1.0)
    stream = plan.tokens * model.hidden_size * plan.element_size / shared
    logits = plan.tokens * ceil_div(model.vocab_size, plan.tensor_parallel) * (plan.element_size + 2.0 * WORD)
    mask = model.dropout * MASK * plan.tokens * model.hidden_size / shared * first_held
    extra = side_by_side(mask + np.where(single, logits, 0.0), zero, logits + 2.0 * stream)
    layer_kept = (layers - mixtures) * dense_kept + mixtures * mixture_kept
    activations = in_flight * layer_kept + working + extra

    element, gradient = plan.element_size[:, None], plan.gradient_size[:, None]
    state = optimizer_element_size(plan.adam, plan.element_size, WORD)[:, None]
    stage = plan.zero_stage[:, None]

    def sharded(size: Array, since: float) -> Array:
        shards = np.where(stage >= since, plan.shards[:, None], 1.0)
        expert_shards = np.where(stage >= since, plan.expert_shards[:, None], 1.0)
        return np.asarray(weights_size(dense, size, shards) + weights_size(routed, size, expert_shards))

    weights, gradients, optimizer = sharded(element, 3.0), sharded(gradient, 2.0), sharded(state, 1.0)
    one_layer = np.where(
        mixtures > 0, held.attention[:, None] + held.shared[:, None] + held.experts[:, None],
        held.attention[:, None] + held.mlp[:, None],
    )  # fmt: skip
    activations = activations + np.where(stage > 2, 2.0 * one_layer * element, 0.0)
    stage_total = weights + gradients + optimizer + activations
    present = side_by_side(zero, np.where(stages > 2, 0.0, -np.inf), np.where(single, -np.inf, 0.0))
    worst = np.argmax(np.nan_to_num(stage_total, nan=0.0) + present, axis=-1)
    rows = np.arange(len(worst))
    memory = stage_total[rows, worst]
    software = setting.constants["training_memory"]
    return {
        "memory": memory,
        "memory_weights": weights[rows, worst],
        "memory_gradients": gradients[rows, worst],
        "memory_optimizer": optimizer[rows, worst],
        "memory_activations": activations[rows, worst],
        "memory_reserved": memory * (1.0 + software["allocator_share"][:, 0]),
    }
