"""Sparse attention: entries that queries see, the index that selects them, compression of the cache, its parameters.

A layer of sparse attention sees a window of tokens, and beyond it entries of a cache that may be compressed: one entry
for several tokens. A *selected* layer attends to the best entries by an index, a *compressed* one to all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div, divide, side_by_side
from xlperf.equations.model.model import Model
from xlperf.equations.model.operators import Gemms


def entries_seen(first: Numeric, last: Numeric, ratio: Numeric, limit: Numeric) -> Array:
    r"""Mean entries that the queries from one context length to another attend to.

    .. math:: E = \frac{1}{b - a} \int_a^b \min\left(\frac{x}{r}, K\right) dx

    Parameters
    ----------
    first : numeric
        Tokens a before the first query. [-]
    last : numeric
        Tokens b up to the last query; where it is a, the entries at that context. [-]
    ratio : numeric
        Tokens r of an entry. [-]
    limit : numeric
        Entries K that are selected at most; infinite where all are seen. [-]

    Returns
    -------
    entries : numeric
        Mean over the queries. [-]

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V3.2: pushing the frontier of open large language models", 2025, arXiv:2512.02556,
       section 2.1 (top-k selection).

    Half of 8 up to context 8, 8 from there to 16:

    >>> float(entries_seen(0.0, 16.0, 1.0, 8.0))
    6.0
    >>> entries_seen([0.0, 0.0], 16.0, 4.0, [8.0, 2.0]).tolist()
    [2.0, 1.5]
    """
    start, end, each, most = array(first), array(last), array(ratio), array(limit)
    knee = np.minimum(most * each, np.maximum(start, end))
    rising = (np.minimum(end, knee) ** 2 - np.minimum(start, knee) ** 2) / (2.0 * each)
    level = knee / each * (np.maximum(end, knee) - np.maximum(start, knee))
    mean = divide(rising + level, end - start)
    return np.asarray(np.where(end > start, mean, np.minimum(end / each, most)) + 0.0 * (start + mean))


def index_flop(queries: Numeric, entries: Numeric, index_heads: Numeric, index_size: Numeric) -> Array:
    r"""FLOP of scoring the entries of a cache for queries: a product for each index head.

    .. math:: F = 2 Q E H d

    Parameters
    ----------
    queries : numeric
        Queries Q. [-]
    entries : numeric
        Entries E that each scores. [-]
    index_heads : numeric
        Heads H of the index on this accelerator. [-]
    index_size : numeric
        Width d of an index key. [-]

    Returns
    -------
    flop : numeric
        Operations of the matrix units. [FLOP]

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V3.2: pushing the frontier of open large language models", 2025, arXiv:2512.02556,
       equation 1.

    >>> float(index_flop(2.0, 3.0, 4.0, 5.0))
    240.0
    """
    return np.asarray(2.0 * array(queries) * array(entries) * array(index_heads) * array(index_size))


def index_traffic(
    queries: Numeric,
    seen_entries: Numeric,
    cached_entries: Numeric,
    index_size: Numeric,
    key_element_size: Numeric,
    scores_per_entry: Numeric,
    word_size: Numeric,
) -> Array:
    r"""Traffic of an index: its keys are read, scores written and read again to select the largest.

    .. math:: S = C d e_k + 2 Q E n_s w

    Parameters
    ----------
    queries : numeric
        Queries Q. [-]
    seen_entries : numeric
        Entries E that each scores. [-]
    cached_entries : numeric
        Entries C whose keys are read, of all sequences. [-]
    index_size : numeric
        Width d of an index key. [-]
    key_element_size : numeric
        Bytes e_k of an element of an index key, its share of a scale included. [B]
    scores_per_entry : numeric
        Scores n_s that are kept of an entry: 1 for the sum over heads, less where a block of entries has one. [-]
    word_size : numeric
        Bytes w of a score. [B]

    Returns
    -------
    traffic : numeric
        Bytes read and written. [B]

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V3.2: pushing the frontier of open large language models", 2025, arXiv:2512.02556,
       section 2.1.

    Ten keys of 8 bytes, 2 x 2 x 3 scores of 4 bytes:

    >>> float(index_traffic(2.0, 3.0, 10.0, 8.0, 1.0, 1.0, 4.0))
    128.0
    """
    keys = array(cached_entries) * array(index_size) * array(key_element_size)
    scores = 2.0 * array(queries) * array(seen_entries) * array(scores_per_entry) * array(word_size)
    return np.asarray(keys + scores)


def sparse_cache_entries(
    context: Numeric,
    num_layers: Numeric,
    full_layers: Numeric,
    windowed_layers: Numeric,
    selected_layers: Numeric,
    compressed_layers: Numeric,
    selected_ratio: Numeric,
    compressed_ratio: Numeric,
    window: Numeric,
) -> Array:
    r"""Entries that a sequence keeps in a cache with compressed layers, mean over the layers.

    .. math:: E = \frac{1}{L} \left(L_f c + (L_w + L_s + L_c) \min(c, w) + L_s \frac{c}{r_s} + L_c \frac{c}{r_c}\right)

    Parameters
    ----------
    context : numeric
        Tokens c of the sequence. [-]
    num_layers : numeric
        Layers L. [-]
    full_layers : numeric
        Layers L_f that keep every token. [-]
    windowed_layers : numeric
        Layers L_w that keep a window alone. [-]
    selected_layers : numeric
        Layers L_s that select entries, beside the window. [-]
    compressed_layers : numeric
        Layers L_c that see all compressed entries, beside the window. [-]
    selected_ratio : numeric
        Tokens r_s of an entry of a selected layer. [-]
    compressed_ratio : numeric
        Tokens r_c of an entry of a compressed layer. [-]
    window : numeric
        Tokens w of the window; 0 without one. [-]

    Returns
    -------
    entries : numeric
        Entries as large as that of one token. [-]

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V4", 2026, model card and configuration (compress_ratios, sliding_window).

    Half of the layers with 1 of 4 of 1,000 tokens, all with 100 of a window:

    >>> float(sparse_cache_entries(1000.0, 2.0, 0.0, 1.0, 1.0, 0.0, 4.0, 128.0, 100.0))
    225.0
    """
    length = array(context)
    near = (array(windowed_layers) + array(selected_layers) + array(compressed_layers)) * np.minimum(
        length, array(window)
    )
    far = array(selected_layers) * length / array(selected_ratio)
    far = far + array(compressed_layers) * length / array(compressed_ratio)
    return np.asarray((array(full_layers) * length + near + far) / array(num_layers))


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

    Examples
    --------
    Of 60 layers 30 select entries, by indices of 15; none sees a whole compressed cache.

    >>> from types import SimpleNamespace
    >>> layers = {"num_layers": 60.0, "num_selected_layers": 30.0, "num_index_layers": 15.0}
    >>> layers["num_compressed_layers"] = 0.0
    >>> model = SimpleNamespace(**{name: np.array([count]) for name, count in layers.items()})
    >>> [float(share[0]) for share in sparse_shares(model)]
    [0.5, 0.25, 0.0]
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

    Examples
    --------
    64 heads on eight ranks: all with compressed queries, eight without.

    >>> from types import SimpleNamespace
    >>> model = SimpleNamespace(index_heads=np.array([64.0, 64.0]), q_lora_rank=np.array([1536.0, 0.0]))
    >>> index_ranks(model, np.array([8.0, 8.0])).tolist()
    [64.0, 8.0]
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

    Examples
    --------
    Columns of DeepSeek-V3.2: 64 queries of 128, a key, 64 weights; what pools a cache of width 512 stands beside them.

    >>> from types import SimpleNamespace
    >>> sizes = {"hidden_size": 7168.0, "head_size": 512.0, "selected_ratio": 1.0, "q_lora_rank": 1536.0}
    >>> sizes |= {"index_heads": 64.0, "index_size": 128.0}
    >>> model = SimpleNamespace(**{name: np.array([size]) for name, size in sizes.items()})
    >>> sparse_gemms(model, np.ones(1), np.ones(1)).n.tolist()
    [[8192.0, 128.0, 64.0, 2048.0, 1024.0]]
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

    Examples
    --------
    Every layer of DeepSeek-V3.2 has an index with weighted heads, none a pooled cache.

    >>> from types import SimpleNamespace
    >>> layers = {"num_layers": 61.0, "num_selected_layers": 61.0, "num_index_layers": 61.0}
    >>> layers |= {"num_compressed_layers": 0.0, "q_lora_rank": 1536.0, "selected_ratio": 1.0}
    >>> model = SimpleNamespace(**{name: np.array([count]) for name, count in layers.items()})
    >>> [float(share[0]) for share in sparse_gemm_shares(model)]
    [1.0, 1.0, 1.0, 0.0, 0.0]
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

    Examples
    --------
    64 heads of 512 in 8 groups of rank 1,024, hidden size 4,096: depth 4096, 1024, 4096, 64 x 512 / 8 and 8 x 1024.

    >>> from types import SimpleNamespace
    >>> sizes = {"num_attention_heads": 64.0, "hidden_size": 4096.0, "head_size": 512.0, "output_groups": 8.0}
    >>> sizes |= {"q_lora_rank": 1024.0, "output_lora_rank": 1024.0}
    >>> model = SimpleNamespace(**{name: np.array([size]) for name, size in sizes.items()})
    >>> shared_vector_gemms(model, np.ones(1), np.ones(1)).k.tolist()
    [[4096.0, 1024.0, 4096.0, 4096.0, 8192.0]]
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
    """Keys that the last query of a sequence attends to, summed over the sparse layers of a model.

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

    Examples
    --------
    1,024 tokens: ten layers with 1,024 / 4 entries and 128 tokens of a window, five with 1,024 / 128 and the window.

    >>> from types import SimpleNamespace
    >>> layers = {"num_selected_layers": 10.0, "num_compressed_layers": 5.0, "sparse_window": 128.0}
    >>> model = SimpleNamespace(**layers, index_top_k=512.0, selected_ratio=4.0, compressed_ratio=128.0)
    >>> float(sparse_keys(model, np.array(1024.0)))
    4520.0
    """
    near = np.minimum(model.sparse_window, sequence_length)
    selected = np.minimum(model.index_top_k, sequence_length / model.selected_ratio) + near
    compressed = sequence_length / model.compressed_ratio + near
    return np.asarray(model.num_selected_layers * selected + model.num_compressed_layers * compressed)


def stream_passes(model: Model) -> Array:
    """Extra passes over the residual stream of a block with several residual streams (hyper-connections).

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

    Examples
    --------
    Four streams: read and mixed (4), read and written again (8), less the one read and one write of a plain block.

    >>> from types import SimpleNamespace
    >>> stream_passes(SimpleNamespace(residual_streams=np.array([4.0, 1.0]))).tolist()
    [10.0, 0.0]
    """
    streams = model.residual_streams
    return np.where(streams > 1.0, 3.0 * streams - 2.0, 0.0)


def sparse_attention_parameters(model: Model) -> Array:
    """Weights of index and cache compression of all sparse layers, excluding attention itself.

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

    Examples
    --------
    DeepSeek-V3.2: 61 indices of 13,959,168 as in :func:`index_parameters`, no pooling.

    >>> from types import SimpleNamespace
    >>> sizes = {"hidden_size": 7168.0, "head_size": 512.0, "selected_ratio": 1.0, "q_lora_rank": 1536.0}
    >>> sizes |= {"index_heads": 64.0, "index_size": 128.0, "num_selected_layers": 61.0}
    >>> model = SimpleNamespace(**sizes, num_index_layers=61.0, num_compressed_layers=0.0)
    >>> float(sparse_attention_parameters(model))
    851509248.0
    """
    pooled = model.selected_ratio > 1.0
    queries = np.where(model.q_lora_rank > 0.0, model.q_lora_rank, model.hidden_size)
    index = index_parameters(
        model.hidden_size, queries, model.index_heads, model.index_size, np.where(pooled, 4.0, 1.0),
        np.where(model.q_lora_rank > 0.0, 1.0, 0.0),
    )  # fmt: skip
    pools = np.where(pooled, 4.0 * model.num_selected_layers, 0.0) + 2.0 * model.num_compressed_layers
    return np.asarray(model.num_index_layers * index + pools * model.hidden_size * model.head_size)


def index_parameters(
    hidden_size: Numeric,
    query_size: Numeric,
    index_heads: Numeric,
    index_size: Numeric,
    key_width: Numeric,
    weighted: Numeric,
) -> Array:
    r"""Weights of the index of one layer: its queries, its keys, and weights of its heads.

    .. math:: P = q H d + h n_k d + \omega h H

    Parameters
    ----------
    hidden_size : numeric
        Width h of the residual stream. [-]
    query_size : numeric
        Width q that queries are made from: the rank of their compression, or the hidden size. [-]
    index_heads : numeric
        Heads H of the index. [-]
    index_size : numeric
        Width d of an index key. [-]
    key_width : numeric
        Widths n_k of the projection of keys over that of a key: 1, or 4 with overlapping compression and its gate. [-]
    weighted : numeric
        Omega: 1 where scores of heads are added up with weights that depend on the token. [-]

    Returns
    -------
    parameters : numeric
        Weights. [-]

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V3.2: pushing the frontier of open large language models", 2025, arXiv:2512.02556,
       section 2.1.

    DeepSeek-V3.2: 1,536 x 64 x 128 + 7,168 x 128 + 7,168 x 64.

    >>> float(index_parameters(7168.0, 1536.0, 64.0, 128.0, 1.0, 1.0))
    13959168.0
    """
    heads, size, hidden = array(index_heads), array(index_size), array(hidden_size)
    queries = array(query_size) * heads * size
    return np.asarray(queries + hidden * array(key_width) * size + array(weighted) * hidden * heads)
