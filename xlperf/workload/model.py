"""A decoder-only transformer as arrays: what the operator equations need of a models row."""

from __future__ import annotations

from dataclasses import dataclass

from xlperf.arrays import Array


@dataclass(frozen=True)
class Model:
    """Columns of dense decoder models, one entry per plan; every field has shape (rows,).

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
