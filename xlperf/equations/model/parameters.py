"""Parameters of a layer, of embeddings, and of a whole model, active per token or all."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, ones, some
from xlperf.equations.model.blocks import (
    EXPERTS,
    INDEX,
    LATENT_SPACE,
    LINEAR,
    MLP,
    ROUTER,
    SHARED_EXPERT,
    Shard,
    attention_of,
    weights,
)
from xlperf.equations.model.model import Model


def whole_model(model: Model) -> Shard:
    """A model on one rank."""
    return Shard(model, ones(model.num_layers))


def attention_matrix_parameters(shard: Shard) -> Array:
    """GEMM weights of the attention block of a layer, plain or latent, (rows,). [-]"""
    return attention_of(shard.model, lambda block: weights(block, shard))


def layer_vector_parameters(shard: Shard, query_key_norm: Array | float) -> Array:
    """Scales and biases of a layer on one rank, excluding norms of compressed queries, keys and values, (rows,). [-]"""
    model = shard.model
    norms = 2.0 * (1.0 + model.layer_norm) * model.hidden_size + 2.0 * query_key_norm * model.head_size
    qkv = model.bias_qkv * model.head_size * (shard.heads + 2.0 * shard.groups)
    inner = (1.0 + model.gated_mlp) * (model.ffn_hidden_size / shard.ranks)
    return np.asarray(norms + qkv + model.bias_all * (inner + 2.0 * model.hidden_size))


def linear_vector_parameters(shard: Shard) -> Array:
    """Weights of a linear-attention layer outside products, (rows,): convolution, decay of each head, gated norm. [-]

    Mamba-2 has a bias of the convolution and a skip of each head more, and scales of the norm for all heads
    (arXiv:2405.21060, section 7.1; gated delta net: arXiv:2412.06464, section 3.4).
    """
    model, more = shard.model, shard.model.state_space
    channels = 2.0 * shard.linear_keys + shard.linear_values
    norm = model.linear_value_size + more * (shard.linear_values - model.linear_value_size)
    return np.asarray((model.linear_convolution + more) * channels + (2.0 + more) * shard.value_heads + norm)


def layer_small_parameters(model: Model) -> Array:
    """Scales and biases of one layer with attention and a dense feed-forward layer, (rows,). [-]"""
    plain = layer_vector_parameters(whole_model(model), model.query_key_norm)
    return np.asarray(plain + model.q_lora_rank + model.kv_lora_rank)


def embedding_parameters(model: Model, tied_embeddings: Array) -> Array:
    """Weights of the input embedding, learned positions and output projection, (rows,). [-]"""
    tables = (2.0 - tied_embeddings) * model.vocab_size + model.learned_positions
    return np.asarray(tables * model.hidden_size)


def index_parameters(model: Model) -> Array:
    """Weights of index and cache compression of all sparse layers, excluding attention itself, (rows,). [-]"""
    return np.asarray(model.num_layers * weights(INDEX, whole_model(model)))


def _all_attention(model: Model) -> Array:
    """GEMM weights of the attention blocks of all layers, (rows,). [-]"""
    sparse = index_parameters(model) if some(model.num_selected_layers) else 0.0
    shard = whole_model(model)
    if not some(model.num_linear_layers > 0.0):
        return np.asarray(model.num_layers * attention_matrix_parameters(shard) + sparse)
    linear = model.num_linear_layers * weights(LINEAR, shard)
    return np.asarray(model.num_attention_layers * attention_matrix_parameters(shard) + linear + sparse)


def _all_small(model: Model) -> Array:
    """Scales and biases of all layers, (rows,). [-]"""
    result = model.num_layers * layer_small_parameters(model)
    if not some(model.num_linear_layers > 0.0):
        return np.asarray(result)
    others = model.num_layers - model.num_attention_layers
    result = result - others * 2.0 * model.query_key_norm * model.head_size
    result = result - (2.0 - model.num_blocks) * model.num_layers * (1.0 + model.layer_norm) * model.hidden_size
    return np.asarray(result + model.num_linear_layers * linear_vector_parameters(whole_model(model)))


def feed_forward_parameters(model: Model, experts_per_token: bool) -> tuple[Array, Array]:
    """Weights of a dense feed-forward layer, and of a mixture of experts with its router, (rows,) each. [-]

    ``experts_per_token``: count the experts of one token, not all.
    """
    shard = whole_model(model)
    visited = model.top_k if experts_per_token else model.num_experts
    mixture = visited * weights(EXPERTS, shard)
    for block in (SHARED_EXPERT, ROUTER, LATENT_SPACE):
        mixture = mixture + weights(block, shard)
    return weights(MLP, shard), np.asarray(mixture)


def matrix_parameters(model: Model, experts_per_token: bool) -> Array:
    """GEMM weights of the whole model, LM head included, (rows,). [-]

    Llama 3.1 8B: 32 x (4096 x (32 + 8 + 8 + 32) x 128 + 3 x 4096 x 14336) + 4096 x 128256.

    >>> from ideal_machine import LLAMA
    >>> matrix_parameters(LLAMA, True).tolist()
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
    """GEMM weights of the last layer, (rows,): a mixture of experts if the model has any. [-]"""
    dense, mixture = feed_forward_parameters(model, experts_per_token)
    return np.asarray(
        attention_matrix_parameters(whole_model(model)) + np.where(model.num_moe_layers > 0, mixture, dense)
    )


def mtp_parameters(model: Model, experts_per_token: bool = False) -> Array:
    """Parameters of the MTP modules, (rows,), excluding the shared embedding and LM head. [-]

    A module has a layer, the projection of hidden state beside embedding, and norms of both and of its output
    (DeepSeek-V3, arXiv:2412.19437, section 2.2).
    """
    hidden = model.hidden_size
    layer = layer_matrices(model, experts_per_token) + layer_small_parameters(model)
    return np.asarray(model.num_mtp_layers * (layer + 2.0 * hidden**2 + 3.0 * (1.0 + model.layer_norm) * hidden))


def parameter_count(model: Model, experts_per_token: bool = False) -> Array:
    """Total or active parameters of a model, (rows,): layers, embeddings, LM head, final norm. [-]

    Llama 3.1 8B has 8.03 billion.

    >>> from ideal_machine import LLAMA
    >>> parameter_count(LLAMA).tolist()
    [8030261248.0]
    """
    outside = embedding_parameters(model, model.tied_embeddings) + (1.0 + model.layer_norm) * model.hidden_size
    projection = model.hidden_size * model.vocab_size
    return np.asarray(matrix_parameters(model, experts_per_token) - projection + _all_small(model) + outside)
