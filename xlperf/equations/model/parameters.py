"""Parameters of whole models, from their shapes."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array
from xlperf.equations.model.linear import (
    linear_attention_parameters,
    linear_attention_small_parameters,
    linear_gate_parameters,
)
from xlperf.equations.model.model import Model
from xlperf.equations.model.transformer import (
    embedding_parameters,
    expert_parameters,
    latent_attention_parameters,
    layer_matrix_parameters,
    layer_vector_parameters,
)


def attention_matrix_parameters(model: Model) -> Array:
    """Weights of the attention matrices of one layer.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]

    Returns
    -------
    Array
        Plain or latent attention, (rows,). [-]
    """
    plain = layer_matrix_parameters(
        model.hidden_size, model.num_attention_heads, model.num_query_groups, model.head_size, 0.0, 0.0
    )
    latent = latent_attention_parameters(
        model.hidden_size,
        model.num_attention_heads,
        model.q_lora_rank,
        model.kv_lora_rank,
        model.qk_head_size,
        model.qk_rope_head_size,
        model.v_head_size,
    )
    gate = model.attention_gate * model.hidden_size * model.num_attention_heads * model.head_size
    return np.where(model.latent_attention > 0, latent, plain + gate)


def linear_layer_parameters(model: Model) -> tuple[Array, Array]:
    """Weights of linear attention in one layer.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]

    Returns
    -------
    tuple of Array
        Matrices with those of the gates; convolution, decay and norm of the output, (rows,). [-]
    """
    keys = model.linear_key_heads * model.linear_key_size
    values = model.linear_value_heads * model.linear_value_size
    matrices = linear_attention_parameters(model.hidden_size, keys, values)
    gates = linear_gate_parameters(model.hidden_size, model.linear_value_heads) * (1.0 - 0.5 * model.state_space)
    small = linear_attention_small_parameters(
        keys, values, model.linear_value_heads, model.linear_value_size, model.linear_convolution, model.state_space
    )
    return np.asarray(matrices + gates), small


def _all_attention(model: Model) -> Array:
    """Weights of the attention matrices of all layers, (rows,). [-]"""
    if not np.any(model.num_linear_layers > 0.0):
        return np.asarray(model.num_layers * attention_matrix_parameters(model))
    return np.asarray(
        model.num_attention_layers * attention_matrix_parameters(model)
        + model.num_linear_layers * linear_layer_parameters(model)[0]
    )


def _all_small(model: Model) -> Array:
    """Scales and biases of all layers, (rows,). [-]"""
    found = model.num_layers * layer_small_parameters(model)
    if not np.any(model.num_linear_layers > 0.0):
        return np.asarray(found)
    others = model.num_layers - model.num_attention_layers
    found = found - others * 2.0 * model.query_key_norm * model.head_size
    found = found - (2.0 - model.num_blocks) * model.num_layers * (1.0 + model.layer_norm) * model.hidden_size
    return np.asarray(found + model.num_linear_layers * linear_layer_parameters(model)[1])


def layer_small_parameters(model: Model) -> Array:
    """Scales and biases of one layer with a dense feed-forward layer.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]

    Returns
    -------
    Array
        Norms, biases, and the norms of compressed queries, keys and values, (rows,). [-]
    """
    plain = layer_vector_parameters(
        model.hidden_size,
        model.num_attention_heads,
        model.num_query_groups,
        model.head_size,
        model.ffn_hidden_size,
        model.gated_mlp,
        model.layer_norm,
        model.bias_qkv,
        model.bias_all,
        model.query_key_norm,
    )
    return np.asarray(plain + model.q_lora_rank + model.kv_lora_rank)


def router_parameters(model: Model) -> Array:
    """Weights of the router of one mixture-of-experts layer.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]

    Returns
    -------
    Array
        One row per expert, and one for a gate of the shared ones, (rows,). [-]
    """
    return np.asarray(model.hidden_size * (model.num_experts + model.shared_gate))


def matrix_parameters(model: Model, experts_per_token: bool) -> Array:
    """Weights in matrix products of all layers and the output projection.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    experts_per_token : bool
        Count the experts that one token visits (True) or all of them (False). [-]

    Returns
    -------
    Array
        Weights, (rows,). [-]
    """
    dense = expert_parameters(model.hidden_size, model.ffn_hidden_size, model.gated_mlp)
    expert = expert_parameters(model.hidden_size, model.expert_ffn_hidden_size, model.gated_mlp)
    shared = expert_parameters(model.hidden_size, model.shared_ffn_hidden_size, model.gated_mlp)
    visited = model.top_k if experts_per_token else model.num_experts
    mixture = visited * expert + shared + router_parameters(model)
    return np.asarray(
        _all_attention(model)
        + model.num_dense_layers * dense
        + model.num_moe_layers * np.where(model.num_moe_layers > 0, mixture, 0.0)
        + model.hidden_size * model.vocab_size
    )


def layer_matrices(model: Model, experts_per_token: bool) -> Array:
    """Weights of the matrices of the last layer: a mixture of experts where the model has any.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    experts_per_token : bool
        Count the experts that one token visits (True) or all of them (False). [-]

    Returns
    -------
    Array
        Weights, (rows,). [-]
    """
    dense = expert_parameters(model.hidden_size, model.ffn_hidden_size, model.gated_mlp)
    expert = expert_parameters(model.hidden_size, model.expert_ffn_hidden_size, model.gated_mlp)
    shared = expert_parameters(model.hidden_size, model.shared_ffn_hidden_size, model.gated_mlp)
    visited = model.top_k if experts_per_token else model.num_experts
    mixture = visited * expert + shared + router_parameters(model)
    return np.asarray(attention_matrix_parameters(model) + np.where(model.num_moe_layers > 0, mixture, dense))


def mtp_parameters(model: Model, experts_per_token: bool = False) -> Array:
    r"""Parameters of the multi-token prediction modules: what they do not share with the model.

    .. math:: P = D \left(P_{layer} + 2 h^2 + 3 (1 + \lambda) h\right)

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    experts_per_token : bool, default False
        Count only the experts that one token visits. [-]

    Returns
    -------
    Array
        Layers, projections of hidden state beside embedding, and norms of both and of the output, (rows,). [-]

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V3 technical report", 2024, arXiv:2412.19437, section 2.2; 11.5 billion parameters
       beside shared embedding and head (README_WEIGHTS of the weights).
    """
    hidden = model.hidden_size
    layer = layer_matrices(model, experts_per_token) + layer_small_parameters(model)
    return np.asarray(model.num_mtp_layers * (layer + 2.0 * hidden**2 + 3.0 * (1.0 + model.layer_norm) * hidden))


def parameter_count(model: Model, experts_per_token: bool = False) -> Array:
    r"""Parameters of models: layers, embeddings, output projection and the last norm.

    .. math:: P = P_{matrices} + L P_{small} + P_{embedding} + (1 + \lambda) h

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    experts_per_token : bool, default False
        Count only the experts that one token visits: active parameters. [-]

    Returns
    -------
    Array
        Parameters, (rows,). [-]

    References
    ----------
    .. [1] Count of the weights in the published checkpoints; the sheet ``models`` states them with their source.
    """
    outside = (
        embedding_parameters(model.vocab_size, model.hidden_size, model.learned_positions, model.tied_embeddings)
        + (1.0 + model.layer_norm) * model.hidden_size
    )
    projection = model.hidden_size * model.vocab_size
    return np.asarray(matrix_parameters(model, experts_per_token) - projection + _all_small(model) + outside)
