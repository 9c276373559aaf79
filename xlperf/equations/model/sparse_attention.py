"""Sparse attention: entries that queries see, the index that selects them, compression of the cache, its parameters.

A layer of sparse attention sees a window of tokens, and beyond it entries of a cache that may be compressed: one entry
for several tokens. A *selected* layer attends to the best entries by an index, a *compressed* one to all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, divide
from xlperf.equations.model.model import Model


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


ATTENTION_KINDS = ("selected attention", "index", "compressed attention")


class SparseShares(NamedTuple):
    """Shares of the layers with each part of sparse attention, (rows,). [-]"""

    selected: Array  # layers that attend to selected entries
    indexed: Array  # layers that score and select for themselves
    compressed: Array  # layers that attend to all entries of a compressed cache


def sparse_shares(model: Model) -> SparseShares:
    """Shares of the layers that have each part of sparse attention."""
    counts = (model.num_selected_layers, model.num_index_layers, model.num_compressed_layers)
    return SparseShares(*(divide(count, model.num_layers) for count in counts))


def scores_per_entry(model: Model, heads: Array) -> Array:
    """Scores that an index writes per entry, (rows,): one for the sum over its heads, or one per head and block. [-]"""
    return np.where(model.index_block > 1.0, heads / model.index_block, 1.0)


def sparse_keys(model: Model, sequence_length: Array) -> Array:
    """Keys that the last query of a sequence attends to, summed over the sparse layers, (rows,). [-]"""
    near = np.minimum(model.sparse_window, sequence_length)
    selected = np.minimum(model.index_top_k, sequence_length / model.selected_ratio) + near
    compressed = sequence_length / model.compressed_ratio + near
    return np.asarray(model.num_selected_layers * selected + model.num_compressed_layers * compressed)


def stream_passes(model: Model) -> Array:
    """Extra passes over the residual stream of a block with several streams, (rows,); 0 for one stream. [-]

    A block reads all streams and mixes them into its input, reads and writes all with its output (hyper-connections,
    arXiv:2409.19606, section 2).
    """
    streams = model.residual_streams
    return np.where(streams > 1.0, 3.0 * streams - 2.0, 0.0)
