"""Parameters of the parts of a layer, of embeddings, and of a whole model, active per token or all."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, some
from xlperf.equations.model.linear_attention import linear_layer_parameters
from xlperf.equations.model.model import Model
from xlperf.equations.model.sparse_attention import sparse_attention_parameters


def layer_matrix_parameters(
    hidden_size: Numeric,
    num_attention_heads: Numeric,
    num_query_groups: Numeric,
    head_size: Numeric,
    ffn_hidden_size: Numeric,
    gated_mlp: Numeric,
) -> Array:
    r"""GEMM weights of one dense layer, excluding biases.

    .. math:: P = 2 h d (a + g) + (2 + \gamma) h f

    Parameters
    ----------
    hidden_size : numeric
        Width h of the residual stream. [-]
    num_attention_heads : numeric
        Query heads a. [-]
    num_query_groups : numeric
        Key and value heads g. [-]
    head_size : numeric
        Width d of one head. [-]
    ffn_hidden_size : numeric
        Width f of the feed-forward layer. [-]
    gated_mlp : numeric
        Gamma: 1 with a gate matrix, 0 without. [-]

    Returns
    -------
    parameters : numeric
        Weights that take part in matrix products. [-]

    References
    ----------
    .. [1] J. Ainslie et al., "GQA: Training generalized multi-query transformer models from multi-head
       checkpoints", 2023, arXiv:2305.13245.
    .. [2] N. Shazeer, "GLU variants improve transformer", 2020, arXiv:2002.05202.

    Examples
    --------
    Llama 3.1 8B: 2 x 4096 x 128 x (32 + 8) + 3 x 4096 x 14336:

    >>> float(layer_matrix_parameters(4096.0, 32.0, 8.0, 128.0, 14336.0, 1.0))
    218103808.0
    """
    hidden = array(hidden_size)
    heads = array(num_attention_heads) + array(num_query_groups)
    attention = 2.0 * hidden * array(head_size) * heads
    return np.asarray(attention + (2.0 + array(gated_mlp)) * hidden * array(ffn_hidden_size))


def layer_vector_parameters(
    hidden_size: Numeric,
    num_attention_heads: Numeric,
    num_query_groups: Numeric,
    head_size: Numeric,
    ffn_hidden_size: Numeric,
    gated_mlp: Numeric,
    layer_norm: Numeric,
    bias_qkv: Numeric,
    bias_all: Numeric,
    query_key_norm: Numeric,
) -> Array:
    r"""Scales and biases of one layer.

    .. math:: P = 2 (1 + \lambda) h + \beta_q d (a + 2 g) + \beta ((1 + \gamma) f + 2 h) + 2 \nu d

    Parameters
    ----------
    hidden_size : numeric
        Width h of the residual stream. [-]
    num_attention_heads : numeric
        Query heads a. [-]
    num_query_groups : numeric
        Key and value heads g. [-]
    head_size : numeric
        Width d of one head. [-]
    ffn_hidden_size : numeric
        Width f of the feed-forward layer. [-]
    gated_mlp : numeric
        Gamma: 1 with a gate matrix, 0 without. [-]
    layer_norm : numeric
        Lambda: 1 where norms have a bias. [-]
    bias_qkv : numeric
        Beta q: 1 where the projections of queries, keys and values have a bias. [-]
    bias_all : numeric
        Beta: 1 where every linear layer has one (bias_qkv is then 1 too). [-]
    query_key_norm : numeric
        Nu: 1 where queries and keys are normalised. [-]

    Returns
    -------
    parameters : numeric
        Scales and biases. [-]

    References
    ----------
    .. [1] A. Radford et al., "Language models are unsupervised multitask learners", 2019 (GPT-2 layer).

    Examples
    --------
    Llama 3.1 8B: two scales of 4096:

    >>> float(layer_vector_parameters(4096.0, 32.0, 8.0, 128.0, 14336.0, 1.0, 0.0, 0.0, 0.0, 0.0))
    8192.0
    """
    hidden, head = array(hidden_size), array(head_size)
    norms = 2.0 * (1.0 + array(layer_norm)) * hidden + 2.0 * array(query_key_norm) * head
    qkv = array(bias_qkv) * head * (array(num_attention_heads) + 2.0 * array(num_query_groups))
    rest = array(bias_all) * ((1.0 + array(gated_mlp)) * array(ffn_hidden_size) + 2.0 * hidden)
    return np.asarray(norms + qkv + rest)


def latent_attention_parameters(
    hidden_size: Numeric,
    num_attention_heads: Numeric,
    q_lora_rank: Numeric,
    kv_lora_rank: Numeric,
    qk_head_size: Numeric,
    qk_rope_head_size: Numeric,
    v_head_size: Numeric,
) -> Array:
    r"""GEMM weights of multi-head latent attention (MLA), excluding norms.

    .. math:: P = [q > 0] (h q + q a d_q) + [q = 0] h a d_q + h (c + d_r) + c a (d_q - d_r + d_v) + a d_v h

    Parameters
    ----------
    hidden_size : numeric
        Width h of the residual stream. [-]
    num_attention_heads : numeric
        Heads a. [-]
    q_lora_rank : numeric
        Rank q of the query compression; 0 where queries are projected directly. [-]
    kv_lora_rank : numeric
        Rank c of the key and value compression. [-]
    qk_head_size : numeric
        Width of a query head, with position. [-]
    qk_rope_head_size : numeric
        Width of its part that carries the position, shared by the keys of all heads. [-]
    v_head_size : numeric
        Width of a value head. [-]

    Returns
    -------
    parameters : numeric
        Weights that take part in matrix products. [-]

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V2: A strong, economical, and efficient mixture-of-experts language model", 2024,
       arXiv:2405.04434, section 2.1.

    Examples
    --------
    DeepSeek-V3: 7168 x 1536 + 1536 x 128 x 192 for queries, 7168 x 576 + 512 x 128 x 256 for keys and values,
    128 x 128 x 7168 for the output:

    >>> float(latent_attention_parameters(7168.0, 128.0, 1536.0, 512.0, 192.0, 64.0, 128.0))
    187105280.0
    """
    hidden, heads = array(hidden_size), array(num_attention_heads)
    rank, latent = array(q_lora_rank), array(kv_lora_rank)
    queries, position, values = array(qk_head_size), array(qk_rope_head_size), array(v_head_size)
    compressed = np.sign(rank)
    direct = rank * (hidden + heads * queries) + (1.0 - compressed) * hidden * heads * queries
    keys = hidden * (latent + position) + latent * heads * (queries - position + values)
    return np.asarray(direct + keys + heads * values * hidden)


def expert_parameters(hidden_size: Numeric, ffn_hidden_size: Numeric, gated_mlp: Numeric) -> Array:
    r"""Weights of one expert, or of a dense feed-forward layer.

    .. math:: P = (2 + \gamma) h f

    Parameters
    ----------
    hidden_size : numeric
        Width h of the residual stream. [-]
    ffn_hidden_size : numeric
        Width f of the expert. [-]
    gated_mlp : numeric
        Gamma: 1 with a gate matrix, 0 without. [-]

    Returns
    -------
    parameters : numeric
        Weights that take part in matrix products. [-]

    References
    ----------
    .. [1] N. Shazeer, "GLU variants improve transformer", 2020, arXiv:2002.05202.

    Examples
    --------
    3 x 4096 x 14336 (Llama 3.1 8B, Mixtral 8x7B):

    >>> float(expert_parameters(4096.0, 14336.0, 1.0))
    176160768.0
    """
    return np.asarray((2.0 + array(gated_mlp)) * array(hidden_size) * array(ffn_hidden_size))


def embedding_parameters(
    vocab_size: Numeric, hidden_size: Numeric, learned_positions: Numeric, tied_embeddings: Numeric
) -> Array:
    r"""Weights of the input embedding, learned positions and output projection.

    .. math:: P = (2 - \tau) V h + s_{max} h

    Parameters
    ----------
    vocab_size : numeric
        Vocabulary V. [-]
    hidden_size : numeric
        Width h of the residual stream. [-]
    learned_positions : numeric
        Rows of a learned position embedding; 0 without. [-]
    tied_embeddings : numeric
        Tau: 1 where input and output share their weights. [-]

    Returns
    -------
    parameters : numeric
        Weights outside the layers, excluding the final norm. [-]

    References
    ----------
    .. [1] O. Press and L. Wolf, "Using the output embedding to improve language models", 2017, arXiv:1608.05859.

    Examples
    --------
    2 x 32000 x 4096 (Llama 2 7B):

    >>> float(embedding_parameters(32000.0, 4096.0, 0.0, 0.0))
    262144000.0
    """
    tables = (2.0 - array(tied_embeddings)) * array(vocab_size) + array(learned_positions)
    return np.asarray(tables * array(hidden_size))


def grouped_output_parameters(
    hidden_size: Numeric, attention_size: Numeric, output_lora_rank: Numeric, output_groups: Numeric
) -> Array:
    r"""Weights of a grouped low-rank output projection: each group of heads to its rank, all ranks to the hidden size.

    .. math:: P = o r + g r h

    Parameters
    ----------
    hidden_size : numeric
        Width h of the residual stream. [-]
    attention_size : numeric
        Width o of the output of all heads. [-]
    output_lora_rank : numeric
        Rank r of each group. [-]
    output_groups : numeric
        Groups g. [-]

    Returns
    -------
    parameters : numeric
        Weights. [-]

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V4", 2026, model card and configuration (o_groups, o_lora_rank).

    DeepSeek-V4-Flash: 64 heads of 512 in 8 groups of rank 1,024, twice 33.6 million.

    >>> float(grouped_output_parameters(4096.0, 64 * 512.0, 1024.0, 8.0))
    67108864.0
    """
    rank = array(output_lora_rank)
    return np.asarray(array(attention_size) * rank + array(output_groups) * rank * array(hidden_size))


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


def _all_attention(model: Model) -> Array:
    """GEMM weights of the attention blocks of all layers, (rows,). [-]"""
    sparse = sparse_attention_parameters(model) if some(model.num_selected_layers) else 0.0
    if not some(model.num_linear_layers > 0.0):
        return np.asarray(model.num_layers * attention_matrix_parameters(model) + sparse)
    return np.asarray(
        model.num_attention_layers * attention_matrix_parameters(model)
        + model.num_linear_layers * linear_layer_parameters(model)[0]
        + sparse
    )


def _all_small(model: Model) -> Array:
    """Scales and biases of all layers, (rows,). [-]"""
    found = model.num_layers * layer_small_parameters(model)
    if not some(model.num_linear_layers > 0.0):
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
