"""Parameters of a model: matrices and vectors of a layer, embeddings, experts, MTP modules; active or all of them."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, some
from xlperf.equations.model.layer_parameters import (
    embedding_parameters,
    expert_parameters,
    grouped_output_parameters,
    latent_attention_parameters,
    layer_matrix_parameters,
    layer_vector_parameters,
)
from xlperf.equations.model.linear_blocks import linear_layer_parameters
from xlperf.equations.model.model import Model
from xlperf.equations.model.sparse import sparse_attention_parameters


def attention_matrix_parameters(model: Model) -> Array:
    """GEMM weights of one attention block, plain or latent (MLA).

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]

    Returns
    -------
    Array
        Plain or latent attention, (rows,). [-]

    Examples
    --------
    Llama 3.1 8B, 32 heads and 8 key-value heads of 128: 4096 x (32 + 8 + 8 + 32) x 128.

    >>> llama = Model(*np.array([[32, 4096, 32, 8, 128, 14336, 128256, 1, 0, 0, 1, 0, 0, 0, 0, 0, 32.0]]).T)
    >>> attention_matrix_parameters(llama).tolist()
    [41943040.0]
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
    found = np.where(model.latent_attention > 0, latent, plain + gate)
    if not some(model.shared_key_value):
        return found
    width = model.num_attention_heads * model.head_size
    shared = model.hidden_size * (model.q_lora_rank + model.head_size) + model.q_lora_rank * width
    shared = shared + grouped_output_parameters(model.hidden_size, width, model.output_lora_rank, model.output_groups)
    return np.where(model.shared_key_value > 0, shared, found)


def _all_attention(model: Model) -> Array:
    """GEMM weights of the attention blocks of all layers, (rows,). [-]"""
    sparse = sparse_attention_parameters(model) if some(model.num_selected_layers) else 0.0
    if not np.any(model.num_linear_layers > 0.0):
        return np.asarray(model.num_layers * attention_matrix_parameters(model) + sparse)
    return np.asarray(
        model.num_attention_layers * attention_matrix_parameters(model)
        + model.num_linear_layers * linear_layer_parameters(model)[0]
        + sparse
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

    Examples
    --------
    Two RMSNorms of Llama 3.1 8B: 2 x 4096.

    >>> llama = Model(*np.array([[32, 4096, 32, 8, 128, 14336, 128256, 1, 0, 0, 1, 0, 0, 0, 0, 0, 32.0]]).T)
    >>> layer_small_parameters(llama).tolist()
    [8192.0]
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
    """Router weights of one mixture-of-experts layer.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]

    Returns
    -------
    Array
        One row per expert, and one for a gate of the shared ones, (rows,). [-]

    Examples
    --------
    DeepSeek-V3: 7,168 x 256.

    >>> from types import SimpleNamespace
    >>> float(router_parameters(SimpleNamespace(hidden_size=7168.0, num_experts=256.0, shared_gate=0.0)))
    1835008.0
    """
    return np.asarray(model.hidden_size * (model.num_experts + model.shared_gate))


def latent_projection_parameters(model: Model) -> Array:
    """Projections of one mixture-of-experts layer into the latent space of its routed experts and back.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]

    Returns
    -------
    Array
        Two matrices of hidden size x latent size; 0 where experts work on the hidden size, (rows,). [-]

    References
    ----------
    .. [1] NVIDIA, "Nemotron 3 Super", 2025, model card and configuration (moe_latent_size).

    Examples
    --------
    2 x 4,096 x 1,024:

    >>> from types import SimpleNamespace
    >>> float(latent_projection_parameters(SimpleNamespace(hidden_size=4096.0, moe_latent_size=1024.0)))
    8388608.0
    """
    return np.asarray(2.0 * model.hidden_size * model.moe_latent_size)


def feed_forward_parameters(model: Model, experts_per_token: bool) -> tuple[Array, Array]:
    """Weights of a dense feed-forward layer, and of a mixture-of-experts layer with its router.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    experts_per_token : bool
        Count the experts that one token visits (True) or all of them (False). [-]

    Returns
    -------
    tuple of Array
        Dense layer; routed and shared experts and router, (rows,). [-]

    Examples
    --------
    Three matrices of Llama 3.1 8B: 3 x 4096 x 14336.

    >>> llama = Model(*np.array([[32, 4096, 32, 8, 128, 14336, 128256, 1, 0, 0, 1, 0, 0, 0, 0, 0, 32.0]]).T)
    >>> feed_forward_parameters(llama, False)[0].tolist()
    [176160768.0]
    """
    dense = expert_parameters(model.hidden_size, model.ffn_hidden_size, model.gated_mlp)
    expert = expert_parameters(model.expert_hidden_size, model.expert_ffn_hidden_size, model.gated_mlp)
    shared = expert_parameters(model.hidden_size, model.shared_ffn_hidden_size, model.gated_mlp)
    visited = model.top_k if experts_per_token else model.num_experts
    return dense, visited * expert + shared + router_parameters(model) + latent_projection_parameters(model)


def matrix_parameters(model: Model, experts_per_token: bool) -> Array:
    """GEMM weights of the whole model, LM head included.

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

    Examples
    --------
    Llama 3.1 8B: 32 x (41,943,040 + 176,160,768) + 4096 x 128256.

    >>> llama = Model(*np.array([[32, 4096, 32, 8, 128, 14336, 128256, 1, 0, 0, 1, 0, 0, 0, 0, 0, 32.0]]).T)
    >>> matrix_parameters(llama, True).tolist()
    [7504658432.0]
    """
    dense, mixture = feed_forward_parameters(model, experts_per_token)
    return np.asarray(
        _all_attention(model)
        + model.num_dense_layers * dense
        + model.num_moe_layers * np.where(model.num_moe_layers > 0, mixture, 0.0)
        + model.hidden_size * model.vocab_size
    )


def layer_matrices(model: Model, experts_per_token: bool) -> Array:
    """GEMM weights of the last layer: a mixture of experts where the model has any.

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

    Examples
    --------
    Llama 3.1 8B: 41,943,040 + 176,160,768.

    >>> llama = Model(*np.array([[32, 4096, 32, 8, 128, 14336, 128256, 1, 0, 0, 1, 0, 0, 0, 0, 0, 32.0]]).T)
    >>> layer_matrices(llama, False).tolist()
    [218103808.0]
    """
    dense, mixture = feed_forward_parameters(model, experts_per_token)
    return np.asarray(attention_matrix_parameters(model) + np.where(model.num_moe_layers > 0, mixture, dense))


def mtp_parameters(model: Model, experts_per_token: bool = False) -> Array:
    r"""Parameters of the MTP modules, excluding the shared embedding and LM head.

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

    Examples
    --------
    A module for Llama 3.1 8B: a layer of 218,112,000, 2 x 4096 x 4096 and 3 x 4096.

    >>> from dataclasses import replace
    >>> llama = Model(*np.array([[32, 4096, 32, 8, 128, 14336, 128256, 1, 0, 0, 1, 0, 0, 0, 0, 0, 32.0]]).T)
    >>> mtp_parameters(replace(llama, num_mtp_layers=np.ones(1))).tolist()
    [251678720.0]
    """
    hidden = model.hidden_size
    layer = layer_matrices(model, experts_per_token) + layer_small_parameters(model)
    return np.asarray(model.num_mtp_layers * (layer + 2.0 * hidden**2 + 3.0 * (1.0 + model.layer_norm) * hidden))


def parameter_count(model: Model, experts_per_token: bool = False) -> Array:
    r"""Total or active parameters of a model: layers, embeddings, LM head, final norm.

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

    Examples
    --------
    Llama 3.1 8B has 8.03 billion.

    >>> llama = Model(*np.array([[32, 4096, 32, 8, 128, 14336, 128256, 1, 0, 0, 1, 0, 0, 0, 0, 0, 32.0]]).T)
    >>> parameter_count(llama).tolist()
    [8030261248.0]
    """
    outside = (
        embedding_parameters(model.vocab_size, model.hidden_size, model.learned_positions, model.tied_embeddings)
        + (1.0 + model.layer_norm) * model.hidden_size
    )
    projection = model.hidden_size * model.vocab_size
    return np.asarray(matrix_parameters(model, experts_per_token) - projection + _all_small(model) + outside)
