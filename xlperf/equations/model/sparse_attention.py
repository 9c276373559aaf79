"""Sparse attention: entries that queries see, the index that selects them, compression of the cache, its parameters.

A layer of sparse attention sees a window of tokens, and beyond it entries of a cache that may be compressed: one entry
for several tokens. A *selected* layer attends to the best entries by an index, a *compressed* one to all of them.
"""

from __future__ import annotations

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


def scores_per_entry(model: Model, heads: Array) -> Array:
    """Scores that an index writes per entry, (rows,): one for the sum over its heads, or one per head and block. [-]"""
    return np.where(model.index_block > 1.0, heads / model.index_block, 1.0)


def stream_passes(model: Model) -> Array:
    """Extra passes over the residual stream of a block with several streams, (rows,); 0 for one stream. [-]

    A block reads all streams and mixes them into its input, reads and writes all with its output (hyper-connections,
    arXiv:2409.19606, section 2).
    """
    streams = model.residual_streams
    return np.where(streams > 1.0, 3.0 * streams - 2.0, 0.0)
