"""A decoder-only transformer as arrays, one row per plan, and how many parameters it has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, some
from xlperf.equations.model.linear import (
    linear_attention_parameters,
    linear_attention_small_parameters,
    linear_gate_parameters,
)
from xlperf.equations.model.sparse import grouped_output_parameters, index_parameters
from xlperf.equations.model.transformer import (
    embedding_parameters,
    expert_parameters,
    latent_attention_parameters,
    layer_matrix_parameters,
    layer_vector_parameters,
)


def _none() -> Array:
    return np.zeros(())


def _one() -> Array:
    return np.ones(())


def _unbounded() -> Array:
    return np.full((), np.inf)


@dataclass(frozen=True, eq=False)
class Model:
    """Columns of decoder models, one entry per plan; every field has shape (rows,).

    Fields from ``latent_attention`` on say how a model differs from a plain dense one; left out, it does not.

    Attributes
    ----------
    num_layers : Array
        Transformer layers. [-]
    hidden_size : Array
        Width of the residual stream. [-]
    num_attention_heads : Array
        Query heads. [-]
    num_query_groups : Array
        Key and value heads. [-]
    head_size : Array
        Width of one head. [-]
    ffn_hidden_size : Array
        Width of the feed-forward layer. [-]
    vocab_size : Array
        Vocabulary. [-]
    gated_mlp : Array
        1 where the feed-forward layer has three matrices, 0 where two. [-]
    tied_embeddings : Array
        1 where the output projection is the input embedding. [-]
    learned_positions : Array
        Rows of a learned position embedding; 0 where there is none. [-]
    rotary : Array
        1 where queries and keys are rotated. [-]
    layer_norm : Array
        1 for LayerNorm (scale and bias), 0 for RMSNorm (scale). [-]
    bias_qkv : Array
        1 where the query, key and value projections have a bias. [-]
    bias_all : Array
        1 where every linear layer has a bias. [-]
    query_key_norm : Array
        1 where queries and keys are normalised per head. [-]
    dropout : Array
        1 where dropout masks are applied and kept in training. [-]
    latent_attention : Array
        1 where queries, keys and values are compressed (MLA). [-]
    q_lora_rank : Array
        Rank of the query compression; 0 where queries are not compressed. [-]
    kv_lora_rank : Array
        Rank of the key and value compression; 0 without. [-]
    qk_rope_head_size : Array
        Width of the part of queries and keys that carries the position, MLA only. [-]
    qk_head_size : Array
        Width of a query and of a key head. [-]
    v_head_size : Array
        Width of a value head. [-]
    num_local_layers : Array
        Layers that attend within a window or a chunk. [-]
    window : Array
        Tokens of that window; infinite where all layers attend to everything. [-]
    chunked : Array
        1 where the window is a chunk (tokens attend within their own chunk), 0 where it slides. [-]
    num_moe_layers : Array
        Layers whose feed-forward layer is a mixture of experts. [-]
    moe_layer_step : Array
        Every how many layers one is a mixture; 1: all after the leading dense ones. [-]
    num_experts : Array
        Routed experts of such a layer; 0 in dense models. [-]
    top_k : Array
        Experts that each token visits. [-]
    expert_ffn_hidden_size : Array
        Width of one expert. [-]
    shared_ffn_hidden_size : Array
        Width of the experts that every token visits, together. [-]
    num_mtp_layers : Array
        Modules that predict tokens further ahead; each has one more layer. [-]
    shared_gate : Array
        1 where the shared expert has a gate of its own. [-]
    wide_attention : Array
        1 where 4-bit weights of a mixture of experts leave the attention layers in 16 bits. [-]
    num_linear_layers : Array
        Layers of linear attention (gated delta net) or of a state space (Mamba-2) in place of attention. [-]
    linear_key_heads : Array
        Query and key heads of such a layer. [-]
    linear_value_heads : Array
        Its value heads, each with a state. [-]
    linear_key_size : Array
        Width of a query and of a key head. [-]
    linear_value_size : Array
        Width of a value head. [-]
    linear_convolution : Array
        Tokens that its short convolution sees. [-]
    linear_state_size : Array
        Bytes of an element of its state. [B]
    attention_gate : Array
        1 where the output of attention is gated: the projection of queries is twice as wide. [-]
    state_space : Array
        1 where linear layers are Mamba-2: query and key heads are its groups, key width its state. [-]
    num_bare_layers : Array
        Layers that are a feed-forward layer and nothing else; the others then have none. 0: all have both. [-]
    moe_latent_size : Array
        Width that tokens are projected to before they are sent to routed experts; 0: the hidden size. [-]
    shared_key_value : Array
        1 where one vector per token, the same for all heads, is key and value, and queries and the output are
        projected in two steps (DeepSeek-V4). [-]
    output_lora_rank : Array
        Rank of the output projection of each group of heads. [-]
    output_groups : Array
        Groups of heads with an output projection of their own. [-]
    num_selected_layers : Array
        Layers of sparse attention that see the best entries of their cache by an index. [-]
    num_compressed_layers : Array
        Layers that see all entries of a compressed cache. [-]
    num_index_layers : Array
        Layers that score and select for themselves; others take the entries of a layer before. [-]
    selected_ratio : Array
        Tokens of an entry of a selected layer. [-]
    compressed_ratio : Array
        Tokens of an entry of a compressed layer. [-]
    index_heads : Array
        Heads of the index. [-]
    index_size : Array
        Width of an index key. [-]
    index_top_k : Array
        Entries that are selected for a query at most. [-]
    index_block : Array
        Entries that are scored and selected together. [-]
    index_key_size : Array
        Bytes of an element of an index key. [B]
    sparse_window : Array
        Tokens that selected and compressed layers see besides, whole. [-]
    residual_streams : Array
        Residual streams that each block reads and writes (hyper-connections); 1: one. [-]
    """

    num_layers: Array
    hidden_size: Array
    num_attention_heads: Array
    num_query_groups: Array
    head_size: Array
    ffn_hidden_size: Array
    vocab_size: Array
    gated_mlp: Array
    tied_embeddings: Array
    learned_positions: Array
    rotary: Array
    layer_norm: Array
    bias_qkv: Array
    bias_all: Array
    query_key_norm: Array
    dropout: Array
    latent_attention: Array = field(default_factory=_none)
    q_lora_rank: Array = field(default_factory=_none)
    kv_lora_rank: Array = field(default_factory=_none)
    qk_rope_head_size: Array = field(default_factory=_none)
    qk_head_size: Array = field(default_factory=_none)
    v_head_size: Array = field(default_factory=_none)
    num_local_layers: Array = field(default_factory=_none)
    window: Array = field(default_factory=_unbounded)
    chunked: Array = field(default_factory=_none)
    num_moe_layers: Array = field(default_factory=_none)
    moe_layer_step: Array = field(default_factory=_one)
    num_experts: Array = field(default_factory=_none)
    top_k: Array = field(default_factory=_none)
    expert_ffn_hidden_size: Array = field(default_factory=_none)
    shared_ffn_hidden_size: Array = field(default_factory=_none)
    num_mtp_layers: Array = field(default_factory=_none)
    shared_gate: Array = field(default_factory=_none)
    wide_attention: Array = field(default_factory=_one)
    num_linear_layers: Array = field(default_factory=_none)
    linear_key_heads: Array = field(default_factory=_none)
    linear_value_heads: Array = field(default_factory=_none)
    linear_key_size: Array = field(default_factory=_none)
    linear_value_size: Array = field(default_factory=_none)
    linear_convolution: Array = field(default_factory=_none)
    linear_state_size: Array = field(default_factory=_none)
    attention_gate: Array = field(default_factory=_none)
    state_space: Array = field(default_factory=_none)
    num_bare_layers: Array = field(default_factory=_none)
    moe_latent_size: Array = field(default_factory=_none)
    shared_key_value: Array = field(default_factory=_none)
    output_lora_rank: Array = field(default_factory=_none)
    output_groups: Array = field(default_factory=_none)
    num_selected_layers: Array = field(default_factory=_none)
    num_compressed_layers: Array = field(default_factory=_none)
    num_index_layers: Array = field(default_factory=_none)
    selected_ratio: Array = field(default_factory=_one)
    compressed_ratio: Array = field(default_factory=_one)
    index_heads: Array = field(default_factory=_none)
    index_size: Array = field(default_factory=_none)
    index_top_k: Array = field(default_factory=_unbounded)
    index_block: Array = field(default_factory=_one)
    index_key_size: Array = field(default_factory=_one)
    sparse_window: Array = field(default_factory=_none)
    residual_streams: Array = field(default_factory=_one)

    @property
    def num_dense_layers(self) -> Array:
        """Layers with a dense feed-forward layer. [-]"""
        if not np.any(self.num_bare_layers > 0.0):
            return np.asarray(self.num_layers - self.num_moe_layers)
        return np.asarray(
            np.where(self.num_bare_layers > 0.0, self.num_bare_layers, self.num_layers) - self.num_moe_layers
        )

    @property
    def expert_hidden_size(self) -> Array:
        """Width of the tokens that routed experts see: that of the latent space where they are projected first. [-]"""
        if not some(self.moe_latent_size):
            return self.hidden_size
        return np.where(self.moe_latent_size > 0.0, self.moe_latent_size, self.hidden_size)

    @property
    def num_attention_layers(self) -> Array:
        """Layers that attend to tokens, all or near ones. [-]"""
        return np.asarray(self.num_layers - self.num_linear_layers - self.num_bare_layers)

    @property
    def num_blocks(self) -> Array:
        """Blocks of a layer, each with a norm: 2, attention and feed-forward layer, or 1 of the two. [-]"""
        return np.where(self.num_bare_layers > 0.0, 1.0, 2.0)

    @property
    def num_global_layers(self) -> Array:
        """Layers that attend to the whole sequence. [-]"""
        return np.asarray(
            self.num_attention_layers - self.num_local_layers - self.num_selected_layers - self.num_compressed_layers
        )


class Architecture(NamedTuple):
    """Structure that plans evaluated together share: what operators their layers have at all."""

    latent_attention: bool
    experts: bool
    local_attention: bool
    linear_attention: bool = False
    latent_experts: bool = False
    sparse_attention: bool = False
    shared_key_value: bool = False

    @property
    def one_vector(self) -> bool:
        """Whether all heads read one vector per token that is key and value (latent attention, DeepSeek-V4)."""
        return self.latent_attention or self.shared_key_value


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


def sparse_attention_parameters(model: Model) -> Array:
    """Weights of the indexes of all layers and of what compresses their caches, beside attention itself.

    Entries of several tokens are pooled with a gate as wide as they are; those of selected layers overlap, which takes
    twice the width of each.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]

    Returns
    -------
    Array
        Of the whole model, (rows,). [-]

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V4", 2026, model card and configuration (compress_ratios).
    """
    pooled = model.selected_ratio > 1.0
    queries = np.where(model.q_lora_rank > 0.0, model.q_lora_rank, model.hidden_size)
    index = index_parameters(
        model.hidden_size, queries, model.index_heads, model.index_size, np.where(pooled, 4.0, 1.0),
        np.where(model.q_lora_rank > 0.0, 1.0, 0.0),
    )  # fmt: skip
    pools = np.where(pooled, 4.0 * model.num_selected_layers, 0.0) + 2.0 * model.num_compressed_layers
    return np.asarray(model.num_index_layers * index + pools * model.hidden_size * model.head_size)


def linear_layer_parameters(model: Model) -> tuple[Array, Array]:
    """Weights of one linear-attention block: in GEMMs, and outside them.

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
    """
    outside = (
        embedding_parameters(model.vocab_size, model.hidden_size, model.learned_positions, model.tied_embeddings)
        + (1.0 + model.layer_norm) * model.hidden_size
    )
    projection = model.hidden_size * model.vocab_size
    return np.asarray(matrix_parameters(model, experts_per_token) - projection + _all_small(model) + outside)
