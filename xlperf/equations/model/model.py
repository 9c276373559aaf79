"""A decoder-only transformer as arrays: what the operator equations need of a models row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array


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

    @property
    def num_dense_layers(self) -> Array:
        """Layers with a dense feed-forward layer. [-]"""
        if not np.any(self.num_bare_layers > 0.0):
            return np.asarray(self.num_layers - self.num_moe_layers)
        return np.asarray(
            np.where(self.num_bare_layers > 0.0, self.num_bare_layers, self.num_layers) - self.num_moe_layers
        )

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
        return np.asarray(self.num_attention_layers - self.num_local_layers)


class Architecture(NamedTuple):
    """Structure that plans evaluated together share: what operators their layers have at all."""

    latent_attention: bool
    experts: bool
    local_attention: bool
    linear_attention: bool = False
