"""Products of blocks of sparse attention: index, compression of the cache, projections around one shared vector."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, ceil_div, divide, side_by_side
from xlperf.equations.model.model import Model
from xlperf.equations.model.operators import Gemms

SPARSE = ("index query", "index key", "index weights", "pooling of selected", "pooling of compressed")
SHARED = ("query compression", "query expansion", "key and value", "output compression", "attention output")
ATTENTION_KINDS = ("selected attention", "index", "compressed attention")


class SparseShares(NamedTuple):
    """Shares of the layers, (rows,).

    Attributes
    ----------
    selected : Array
        That select the entries that they see. [-]
    indexed : Array
        That score and select for themselves. [-]
    compressed : Array
        That see all entries of a compressed cache. [-]
    """

    selected: Array
    indexed: Array
    compressed: Array


def sparse_shares(model: Model) -> SparseShares:
    """Shares of the layers that have each part of sparse attention.

    Parameters
    ----------
    model : Model
        Layers, (rows,). [-]

    Returns
    -------
    SparseShares
        Between 0 and 1. [-]
    """
    counts = (model.num_selected_layers, model.num_index_layers, model.num_compressed_layers)
    return SparseShares(*(divide(count, model.num_layers) for count in counts))


def index_ranks(model: Model, ranks: Array) -> Array:
    """Heads of the index on one rank.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    ranks : Array
        Ranks that share the heads of attention, (rows,). [-]

    Returns
    -------
    Array
        All of them where their scores are added up (DeepSeek-V3.2), its share where each belongs to a group of keys
        and values (MiniMax-M3), (rows,). [-]
    """
    whole, share = model.index_heads, ceil_div(model.index_heads, ranks)
    return np.where(model.q_lora_rank > 0.0, whole, share) + 0.0 * (model.q_lora_rank + share)


def sparse_gemms(model: Model, tokens: Array, ranks: Array) -> Gemms:
    """Products of the index and of the pooling of a cache, for one layer that has each.

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    tokens : Array
        Tokens of one pass, (rows,). [-]
    ranks : Array
        Ranks that share the heads of attention, (rows,). [-]

    Returns
    -------
    Gemms
        Queries, keys and weights of heads of the index; pooling of selected and of compressed layers. [-]
    """
    hidden, width = model.hidden_size, model.head_size
    pooled = model.selected_ratio > 1.0
    queries = np.where(model.q_lora_rank > 0.0, model.q_lora_rank, hidden) + 0.0 * model.q_lora_rank
    heads = np.maximum(index_ranks(model, ranks), 1.0)
    key = np.maximum(np.where(pooled, 4.0, 1.0) * model.index_size, 1.0) + 0.0 * model.selected_ratio
    n = side_by_side(heads * np.maximum(model.index_size, 1.0), key, heads, 4.0 * width, 2.0 * width)
    k = side_by_side(queries, hidden, hidden, hidden, hidden)
    return Gemms(SPARSE, np.repeat(tokens[:, None], len(SPARSE), axis=-1), n, k, np.ones_like(n))


def sparse_gemm_shares(model: Model) -> tuple[Array, ...]:
    """Shares of the layers that have each product of :func:`sparse_gemms`.

    Parameters
    ----------
    model : Model
        Layers, (rows,). [-]

    Returns
    -------
    tuple of Array
        In their order, (rows,). [-]
    """
    shares = sparse_shares(model)
    weighted = np.where(model.q_lora_rank > 0.0, shares.indexed, 0.0)
    pooled = np.where(model.selected_ratio > 1.0, shares.selected, 0.0)
    return shares.indexed, shares.indexed, weighted, pooled, shares.compressed


def shared_vector_gemms(model: Model, tokens: Array, ranks: Array) -> Gemms:
    """Projections of attention whose heads share one vector as key and value (DeepSeek-V4).

    Parameters
    ----------
    model : Model
        Shapes, (rows,). [-]
    tokens : Array
        Tokens of one pass, (rows,). [-]
    ranks : Array
        Ranks that share the heads, (rows,); each has groups of the output of its own or a part of one. [-]

    Returns
    -------
    Gemms
        Queries in two steps, the vector, the output in two steps. [-]
    """
    heads, hidden, width = ceil_div(model.num_attention_heads, ranks), model.hidden_size, model.head_size
    groups = np.maximum(np.ceil(model.output_groups / ranks), 1.0)
    rank, low = np.maximum(model.q_lora_rank, 1.0), np.maximum(model.output_lora_rank, 1.0)
    n = side_by_side(rank, heads * width, width, low, hidden)
    k = side_by_side(hidden, rank, hidden, heads * width / groups, groups * low)
    one = np.ones_like(heads)
    return Gemms(
        SHARED, np.repeat(tokens[:, None], len(SHARED), axis=-1), n, k, side_by_side(one, one, one, groups, one)
    )


def sparse_keys(model: Model, sequence_length: Array) -> Array:
    """Keys that a query at the end of a sequence sees in the sparse layers of a model, all of them together.

    Parameters
    ----------
    model : Model
        Layers and their entries, (rows,). [-]
    sequence_length : Array
        Tokens, (rows,). [-]

    Returns
    -------
    Array
        Entries and tokens of the window, (rows,). [-]
    """
    near = np.minimum(model.sparse_window, sequence_length)
    selected = np.minimum(model.index_top_k, sequence_length / model.selected_ratio) + near
    compressed = sequence_length / model.compressed_ratio + near
    return np.asarray(model.num_selected_layers * selected + model.num_compressed_layers * compressed)


def stream_passes(model: Model) -> Array:
    """Passes over the residual stream that a block mixing several streams makes beyond one with a single stream.

    All are read and mixed into the input of the block; all are read and written again with its output.

    Parameters
    ----------
    model : Model
        Residual streams, (rows,). [-]

    Returns
    -------
    Array
        0 for one stream, (rows,). [-]

    References
    ----------
    .. [1] D. Zhu et al., "Hyper-connections", 2024, arXiv:2409.19606, section 2.
    """
    streams = model.residual_streams
    return np.where(streams > 1.0, 3.0 * streams - 2.0, 0.0)
