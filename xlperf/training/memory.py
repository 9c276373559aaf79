"""Memory of the fullest rank of a training step."""

from __future__ import annotations

import numpy as np

from xlperf.arrays import Array, ceil_div
from xlperf.parallel.memory import layer_activation_size, optimizer_element_size, weights_size
from xlperf.parallel.pipeline import in_flight_micro_batches, last_stage_layers, stage_layers
from xlperf.parallel.plan import RECOMPUTE_FULL, RECOMPUTE_SELECTIVE, TrainingPlan
from xlperf.training.setting import MASK, WORD, Setting, columns
from xlperf.workload.model import Model
from xlperf.workload.transformer import layer_matrix_parameters, layer_vector_parameters


def layer_and_head_parameters(model: Model, plan: TrainingPlan) -> tuple[Array, Array, Array]:
    """Parameters of one layer, of the embedding and of the output projection on one tensor-parallel rank.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    plan : TrainingPlan
        Degrees, (rows,). [-]

    Returns
    -------
    tuple of Array
        Layer, embedding with learned positions, output projection, each (rows,). [-]
    """
    shape = (
        model.hidden_size,
        model.num_attention_heads,
        model.num_query_groups,
        model.head_size,
        model.ffn_hidden_size,
        model.gated_mlp,
    )
    layer = layer_matrix_parameters(*shape) / plan.tensor_parallel + layer_vector_parameters(
        *shape, model.layer_norm, model.bias_qkv, model.bias_all, model.query_key_norm
    )
    table = ceil_div(model.vocab_size, plan.tensor_parallel) * model.hidden_size
    head = np.where((model.tied_embeddings > 0) & (plan.pipeline_parallel < 2), 0.0, table)
    return layer, table + model.learned_positions * model.hidden_size, head


def memory_of(setting: Setting) -> dict[str, Array]:
    """Memory of the fuller of the first and the last stage.

    Parameters
    ----------
    setting : Setting
        Model, plan and calibration. [-]

    Returns
    -------
    dict of str to Array
        Parts, their sum ``memory``, and ``memory_reserved`` with the allocator's share. [B]
    """
    model, plan = setting.model, setting.plan
    stages = plan.pipeline_parallel
    layer, embedding, head = layer_and_head_parameters(model, plan)
    layers = stage_layers(model.num_layers, stages, plan.virtual_pipeline)
    last = last_stage_layers(model.num_layers, stages, plan.virtual_pipeline)
    single = stages < 2
    parameters = columns(layers * layer + embedding + np.where(single, head, 0.0), last * layer + head)
    held = columns(layers, last)

    heads = ceil_div(model.num_attention_heads, plan.tensor_parallel)
    standard = (1.0 - plan.flash_attention) * plan.micro_batch_size * heads * plan.sequence_length**2
    width = model.num_attention_heads * model.head_size
    shape = (plan.tokens, model.hidden_size, width + 2.0 * model.num_query_groups * model.head_size, width,
             model.ffn_hidden_size, model.gated_mlp)  # fmt: skip
    split = (model.dropout, plan.tensor_parallel, plan.sequence_parallel, plan.element_size, MASK)
    everything = layer_activation_size(*shape, standard, *split)
    without_scores = layer_activation_size(*shape, 0.0, *split)
    shared = np.where(plan.sequence_parallel > 0, plan.tensor_parallel, 1.0)
    stream = plan.tokens * model.hidden_size * plan.element_size / shared
    full = plan.recompute == RECOMPUTE_FULL
    kept = np.where(full, stream, np.where(plan.recompute == RECOMPUTE_SELECTIVE, without_scores, everything))
    working = np.where(full, everything, 0.0)

    chunks, batches = plan.virtual_pipeline, plan.num_micro_batches
    first_held = in_flight_micro_batches(batches, stages, chunks, plan.gpipe)
    last_held = np.where(plan.gpipe > 0, batches, np.minimum(batches, ((chunks - 1.0) * stages + 1.0) / chunks))
    in_flight = columns(first_held, np.where(single, first_held, last_held))
    logits = plan.tokens * ceil_div(model.vocab_size, plan.tensor_parallel) * (plan.element_size + 2.0 * WORD)
    embedding_mask = model.dropout * MASK * plan.tokens * model.hidden_size / shared * first_held
    extra = columns(embedding_mask + np.where(single, logits, 0.0), logits + 2.0 * stream)
    activations = in_flight * held * kept[:, None] + working[:, None] + extra

    replicas = plan.data_parallel[:, None]
    zero = plan.zero_stage[:, None]
    state = optimizer_element_size(plan.adam, plan.element_size, WORD)[:, None]
    weights = weights_size(parameters, plan.element_size[:, None], np.where(zero > 2, replicas, 1.0))
    gradients = weights_size(parameters, plan.gradient_size[:, None], np.where(zero > 1, replicas, 1.0))
    optimizer = weights_size(parameters, state, np.where(zero > 0, replicas, 1.0))
    gathered = np.where(zero > 2, 2.0 * layer[:, None] * plan.element_size[:, None], 0.0)
    activations = activations + gathered
    stage_total = weights + gradients + optimizer + activations
    worst = np.where(stage_total[:, 1] > stage_total[:, 0], 1, 0)
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
        "worst_stage_parameters": parameters[rows, worst],
    }
