"""Parameters of a whole model, active or all: layers, experts, embeddings, MTP modules."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, some
from xlperf.equations.model.layer_parameters import (
    attention_matrix_parameters,
    embedding_parameters,
    expert_parameters,
    latent_projection_parameters,
    layer_small_parameters,
    router_parameters,
)
from xlperf.equations.model.linear import linear_layer_parameters
from xlperf.equations.model.model import Model
from xlperf.equations.model.sparse import sparse_attention_parameters


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
