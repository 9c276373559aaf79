"""A decoder-only transformer as arrays, one row per plan, and FLOP per token."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, divide, some


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
    num_dense_layers : Array
        Layers with a dense feed-forward layer. [-]
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
    num_dense_layers: Array
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


@dataclass(frozen=True)
class Architecture:
    """Structure that plans evaluated together share: what operators their layers have at all.

    ``one_vector``: all heads read one vector per token that is key and value (latent attention, DeepSeek-V4).
    """

    latent_attention: bool
    experts: bool
    local_attention: bool
    linear_attention: bool = False
    latent_experts: bool = False
    sparse_attention: bool = False
    shared_key_value: bool = False
    one_vector: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "one_vector", self.latent_attention or self.shared_key_value)


def attention_flop(
    batch_size: Numeric, num_attention_heads: Numeric, query_length: Numeric, key_length: Numeric, head_size: Numeric
) -> Array:
    r"""FLOP of attention scores and weighted sum of one layer, without causal saving.

    .. math:: F = 4 b a s_q s_k d

    Parameters
    ----------
    batch_size : numeric
        Sequences b. [-]
    num_attention_heads : numeric
        Query heads a. [-]
    query_length : numeric
        Queries per sequence. [-]
    key_length : numeric
        Keys per sequence. [-]
    head_size : numeric
        Width d of one head. [-]

    Returns
    -------
    flop : numeric
        Operations of the two products. [FLOP]

    References
    ----------
    .. [1] V. Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022,
       arXiv:2205.05198, appendix A.

    Examples
    --------
    4 x 32 x 100 x 100 x 128:

    >>> float(attention_flop(1.0, 32.0, 100.0, 100.0, 128.0))
    163840000.0
    """
    products = array(batch_size) * array(num_attention_heads) * array(query_length) * array(key_length)
    return np.asarray(4.0 * products * array(head_size))


def training_flop_per_token(matrix_parameters: Numeric, score_products: Numeric) -> Array:
    r"""Model FLOP per trained token: forward and backward, no recomputation.

    .. math:: F = 6 (P + S)

    Parameters
    ----------
    matrix_parameters : numeric
        Active GEMM parameters P per token, LM head included. [-]
    score_products : numeric
        Multiplications S of a token in the scores and weighted sums of all layers: half of :func:`attention_flop`. [-]

    Returns
    -------
    flop : numeric
        Model FLOP per token: 2 per multiplication forward and 4 backward. [FLOP]

    References
    ----------
    .. [1] D. Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM",
       2021, arXiv:2104.04473, section 5.1 (without its recomputation).

    Examples
    --------
    6 x (10 + 2):

    >>> float(training_flop_per_token(10.0, 2.0))
    72.0
    """
    return np.asarray(6.0 * (array(matrix_parameters) + array(score_products)))


def linear_share(model: Model) -> Array:
    """Share of the layers that have linear attention.

    Parameters
    ----------
    model : Model
        Layers, (rows,). [-]

    Returns
    -------
    Array
        Between 0 and 1, (rows,). [-]

    Examples
    --------
    Qwen3-Next: 36 of 48 layers.

    >>> from types import SimpleNamespace
    >>> linear_share(SimpleNamespace(num_linear_layers=np.array([36.0]), num_layers=np.array([48.0]))).tolist()
    [0.75]
    """
    return divide(model.num_linear_layers, model.num_layers)


def local_share(model: Model) -> Array:
    """Share of the layers that attend within a window or a chunk.

    Parameters
    ----------
    model : Model
        Layers, (rows,). [-]

    Returns
    -------
    Array
        Between 0 and 1, (rows,). [-]

    Examples
    --------
    gpt-oss-120b: every second of 36 layers.

    >>> from types import SimpleNamespace
    >>> local_share(SimpleNamespace(num_local_layers=np.array([18.0]), num_layers=np.array([36.0]))).tolist()
    [0.5]
    """
    return divide(model.num_local_layers, model.num_layers)
