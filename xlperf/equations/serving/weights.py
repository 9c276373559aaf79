"""Weights of a serving rank, in the precision of the plan and in that of what engines keep wide."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div, ones, side_by_side, total
from xlperf.equations.model.layer_parameters import (
    embedding_parameters,
    expert_parameters,
    latent_attention_parameters,
    latent_projection_parameters,
    layer_matrix_parameters,
    layer_vector_parameters,
    router_parameters,
)
from xlperf.equations.model.linear import (
    linear_attention_parameters,
    linear_attention_small_parameters,
    linear_gate_parameters,
)
from xlperf.equations.model.linear_blocks import linear_widths
from xlperf.equations.model.model import Architecture, Model, linear_share
from xlperf.equations.model.operators import Gemms
from xlperf.equations.model.sparse import shared_vector_gemms, sparse_gemm_shares, sparse_gemms
from xlperf.equations.plan.serving_plan import InferencePlan, LayerPart
from xlperf.equations.serving.kernels import wide_attention


def serving_weights_size(
    num_layers: Numeric,
    layer_matrix_parameters: Numeric,
    layer_vector_parameters: Numeric,
    table_parameters: Numeric,
    weight_size: Numeric,
    element_size: Numeric,
    tensor_parallel: Numeric,
) -> Array:
    r"""Bytes of the weights of one rank.

    .. math:: S = L \left(P_m e_w + P_v e\right) + \frac{P_t e}{t}

    Parameters
    ----------
    num_layers : numeric
        Layers L that the rank holds a share of. [-]
    layer_matrix_parameters : numeric
        Weights of the matrices of one layer on the rank. [-]
    layer_vector_parameters : numeric
        Scales and biases of one layer on the rank. [-]
    table_parameters : numeric
        Weights of the embedding and of the output projection that the stage holds, before they are split. [-]
    weight_size : numeric
        Bytes of a weight of a matrix, its share of the scales included. [B]
    element_size : numeric
        Bytes of any other weight: engines quantise neither norms nor embeddings. [B]
    tensor_parallel : numeric
        Ranks t that share the tables. [-]

    Returns
    -------
    size : numeric
        Weights of one rank. [B]

    References
    ----------
    .. [1] R. Pope et al., "Efficiently scaling transformer inference", 2022, arXiv:2211.05102, section 2.1.

    >>> float(serving_weights_size(10.0, 100.0, 4.0, 64.0, 1.0, 2.0, 8.0))  # 10 (100 + 8) + 64 x 2 / 8
    1096.0
    """
    layer = array(layer_matrix_parameters) * array(weight_size) + array(layer_vector_parameters) * array(element_size)
    tables = array(table_parameters) * array(element_size) / array(tensor_parallel)
    return np.asarray(array(num_layers) * layer + tables)


def _layer_weights_size(model: Model, plan: InferencePlan, architecture: Architecture) -> tuple[Array, Array]:
    """Weights of the matrices of a mean layer on one rank: in the precision of the plan, and in that between. [B]"""
    ranks = plan.attention_parallel
    apart = wide_attention(model, plan, architecture)
    heads, groups = np.ceil(model.num_attention_heads / ranks), np.ceil(model.num_query_groups / ranks)
    narrow_ffn = model.ffn_hidden_size / ranks
    beyond = architecture.one_vector or architecture.linear_attention or architecture.sparse_attention
    attends, feeds = _share(plan, LayerPart.ATTENTION), _share(plan, LayerPart.EXPERTS)
    if not architecture.experts and not beyond:
        widths = (model.hidden_size, heads, groups, model.head_size)
        found = layer_matrix_parameters(*widths, narrow_ffn, model.gated_mlp)
        if plan.computes(LayerPart.EXPERTS) is not None:
            attended = layer_matrix_parameters(*widths, 0.0, 0.0)
            found = attends * attended + feeds * (found - attended)
        return found, 0.0 * heads
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
    elif architecture.shared_key_value:
        narrow = _gemm_weights(shared_vector_gemms(model, ones(ranks), ranks))
    else:
        narrow = layer_matrix_parameters(model.hidden_size, heads, groups, model.head_size, 0.0, 0.0)
    if architecture.sparse_attention:
        narrow = narrow + _gemm_weights(sparse_gemms(model, ones(ranks), ranks), *sparse_gemm_shares(model))
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
    narrow, wide, dense = narrow * attends, wide * attends, dense * feeds
    if not architecture.experts:
        return np.asarray(narrow + dense), np.asarray(wide)
    mixed = model.num_moe_layers / model.num_layers
    expert = expert_parameters(
        model.expert_hidden_size, model.expert_ffn_hidden_size / plan.expert_tensor_parallel, model.gated_mlp
    )
    shared = expert_parameters(model.hidden_size, model.shared_ffn_hidden_size / ranks, model.gated_mlp)
    held = ceil_div(model.num_experts + plan.redundant_experts, plan.expert_parallel)
    if not architecture.linear_attention:
        dense = (1.0 - mixed) * dense
    narrow = narrow + dense + mixed * (held * expert + shared) * feeds
    if architecture.latent_experts:
        narrow = narrow + mixed * latent_projection_parameters(model) * attends
    return np.asarray(narrow), np.asarray(wide + mixed * router_parameters(model) * attends)


def _share(plan: InferencePlan, part: float) -> Array | float:
    """1 where a pool has a part of its layers, else 0, (rows,); 1 where every pool has all. [-]"""
    own = plan.computes(part)
    return 1.0 if own is None else own


def _gemm_weights(gemms: Gemms, *shares: Array) -> Array:
    """Weights of products, of those that only a share of the layers has that share. [-]"""
    weights = gemms.batch * gemms.n * gemms.k
    return total(weights * side_by_side(*shares) if shares else weights)


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


def rank_weights_size(model: Model, plan: InferencePlan, architecture: Architecture) -> Array:
    """Weights of the fullest rank: its layers, those it drafts with, and its share of one table.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    plan : InferencePlan
        Degrees and bytes per element, (rows,).
    architecture : Architecture
        Structure that the models share.

    Returns
    -------
    Array
        (rows,). [B]

    Examples
    --------
    Llama 3.1 8B on one rank in 2 bytes: 8,030,261,248 parameters but for the last norm.

    >>> from types import SimpleNamespace
    >>> llama = Model(*np.array([[32, 4096, 32, 8, 128, 14336, 128256, 1, 0, 0, 1, 0, 0, 0, 0, 0, 32.0]]).T)
    >>> plan = dict.fromkeys(("pipeline_parallel", "attention_parallel"), np.ones(1))
    >>> plan = SimpleNamespace(**plan, layers_drafted=0.0, weight_size=2.0, activation_size=2.0)
    >>> plan.four_bits, plan.computes = np.array([False]), lambda part: None
    >>> rank_weights_size(llama, plan, Architecture(False, False, False)).tolist()
    [16060514304.0]
    """
    stages = plan.pipeline_parallel
    layers = np.ceil(model.num_layers / stages) + plan.layers_drafted
    small = _layer_small_parameters(model, plan, architecture)
    # A first and a last stage that are not the same hold one table each, tied or not.
    tied = np.where(stages > 1.0, 1.0, model.tied_embeddings)
    tables = embedding_parameters(model.vocab_size, model.hidden_size, model.learned_positions, tied)
    narrow, wide = _layer_weights_size(model, plan, architecture)
    attends = _share(plan, LayerPart.ATTENTION)
    small, tables = small * attends, tables * attends
    sizes = plan.weight_size, plan.activation_size
    return serving_weights_size(layers, narrow, small + wide, tables, *sizes, plan.attention_parallel)
