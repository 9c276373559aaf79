"""Attention kernels: tiles, query and key pairs, traffic and time of flash attention and of decode attention.

A multiprocessor holds a tile of queries in its shared memory and passes over all keys. Arguments broadcast to (rows,
operators); columns of the device and constants have shape (rows, 1).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div, known_or, some
from xlperf.equations.hardware import roofline

QUERY_TILE = 128.0  # queries of the largest tile of flash attention; a smaller tile starts more often [-]
KEY_BLOCK = 32.0  # keys, and as many values, of one stage of flash attention [-]
_EXPONENTIAL_SHARE = 2.0 / 3.0  # share of the softmax time spent in exponentials, at the usual exponential rate [-]
_USUAL_EXPONENTIALS = 1.0 / 16.0
"""Exponentials over FP32 operations of the vector units: 16 and 256 a multiprocessor and clock. [-]"""


def _query_tile(
    head_size: Numeric, element_size: Numeric, shared_memory_capacity: Numeric, largest: Numeric = 128.0
) -> Array:
    """Queries of a tile of flash attention, 16 or more: halved until it fits beside two stages of keys and values.

    Heuristic, this work, after the tiles of FlashAttention-2 (arXiv:2307.08691, section 3.3). 64 KiB of shared memory
    and heads of 128 in BF16: 32 KiB of queries beside 32 KiB of keys and values:

    >>> float(_query_tile(128.0, 2.0, 65536.0))
    128.0
    """
    row = array(head_size) * array(element_size)
    room = known_or(shared_memory_capacity, np.inf)
    tile = array(largest)
    queries = 0.125 * tile
    for share in (0.25, 0.5, 1.0):
        queries = np.where((share * tile + 2.0 * roofline.STAGES * KEY_BLOCK) * row <= room, share * tile, queries)
    return np.asarray(queries + 0.0 * row)


def _key_passes(
    num_heads: Numeric,
    num_query_groups: Numeric,
    query_length: Numeric,
    key_length: Numeric,
    head_size: Numeric,
    element_size: Numeric,
    query_tile: Numeric,
    num_multiprocessors: Numeric,
    cache_capacity: Numeric,
) -> Array:
    """Times that flash attention reads keys and values from the main memory, 1 or more.

    Concurrent tiles share keys through the last-level cache; later tiles of a head read evicted keys again (heuristic,
    this work, after arXiv:2205.14135, section 3). Half of the cache holds keys. 1,024 queries of a head in tiles of 128
    on four multiprocessors without a cache: two passes:

    >>> float(_key_passes(1.0, 1.0, 1024.0, 1024.0, 128.0, 2.0, 128.0, 4.0, 0.0))
    2.0
    """
    # Queries of all concurrent tiles, and queries that share one head of keys.
    concurrent = known_or(num_multiprocessors, np.inf) * array(query_tile)
    shared = array(num_heads) * array(query_length) / array(num_query_groups)
    # Fraction of the keys and values [B] that the cache evicts before the next tile reads them.
    room = known_or(roofline.CACHE_SHARE * array(cache_capacity), np.inf)
    keys = 2.0 * array(key_length) * array(head_size) * array(element_size)
    evicted = np.minimum(np.maximum(1.0 - room / keys, 0.0), 1.0)
    return np.asarray(1.0 + (np.maximum(shared / concurrent, 1.0) - 1.0) * evicted)


def visible_pairs(query_length: Numeric, key_length: Numeric, causal: Numeric) -> Array:
    r"""Query and key pairs of attention; under a causal mask the last query sees every key.

    .. math:: N = s_q s_k - c\,\frac{s_q (s_q - 1)}{2}

    Source: T. Dao, "FlashAttention-2", 2023, arXiv:2307.08691.

    >>> float(visible_pairs(3.0, 4.0, 1.0))  # Three queries see 2, 3 and 4 of four keys
    9.0

    Parameters
    ----------
    query_length, key_length : Queries and keys of one sequence. [-]
    causal : 1 if a query sees the keys up to its own position, 0 if it sees all. [-]

    Returns
    -------
    pairs : Pairs of one head and sequence. [-]
    """
    queries = array(query_length)
    return np.asarray(queries * array(key_length) - array(causal) * (0.5 * queries * (queries - 1.0)))


def core_attention_flop(batch: Numeric, num_heads: Numeric, head_size: Numeric, pairs: Numeric) -> Array:
    r"""Operations of the two products of attention: queries by keys, and probabilities by values.

    .. math:: F = 4\,b\,a\,d\,N

    By definition: two operations per element and pair in either product.

    >>> float(core_attention_flop(1, 32, 128, 1e6))  # 32 heads of 128 over 1,000 x 1,000 pairs
    16384000000.0

    Parameters
    ----------
    batch : Sequences b. [-]
    num_heads : Heads a of queries on this accelerator. [-]
    head_size : Elements d of a head, means of keys and values. [-]
    pairs : Query and key pairs N of one head and sequence. [-]

    Returns
    -------
    flop : Of one call. [FLOP]
    """
    return np.asarray(4.0 * (array(batch) * array(head_size)) * array(num_heads) * array(pairs))


def flash_compute_time(
    num_heads: Numeric,
    query_length: Numeric,
    key_length: Numeric,
    causal: Numeric,
    query_tile: Numeric,
    pair_time: Numeric,
    num_multiprocessors: Numeric,
    imbalance: Numeric = 0.0,
    tile_time: Numeric = 0.0,
) -> Array:
    r"""Compute time of flash attention: each tile of queries passes over all its keys on one multiprocessor.

    The last multiprocessor ends late by a share of the longest tile; a causal mask shortens all tiles but that one.

    .. math:: t = \max\left(n\,\bar t + i\,p\,\hat t,\; p\,\hat t\right) + \frac{n}{p}\,t_{tile}, \quad
        n = h \lceil s_q / T \rceil, \quad \bar t = T\,\bar s\,\tau, \quad \hat t = T\,s_k\,\tau

    Heuristic, this work, after the partitioning over queries; imbalance and tile time are fitted. Source: T. Dao,
    "FlashAttention-2", 2023, arXiv:2307.08691, section 3.2: work partitioning over queries.

    Four heads of 256 queries are 8 tiles; each takes 128 x 256 pairs of 1 ms:

    >>> float(flash_compute_time(4.0, 256.0, 256.0, 0.0, 128.0, 0.001, 4.0))
    262.144

    Parameters
    ----------
    num_heads : Heads of all sequences together. [-]
    query_length, key_length : Queries and keys of one sequence. [-]
    causal : 1 if a query sees the keys up to its own position, 0 if it sees all. [-]
    query_tile : Queries of one tile. [-]
    pair_time : Time of one query and key pair of a head, if the whole accelerator works on it. [s]
    num_multiprocessors : Tiles that run at the same time; NaN: the work is shared evenly. [-]
    imbalance : Share of the longest tile by which the last multiprocessor ends late. [-]
    tile_time : Time to start and end a tile. [s]

    Returns
    -------
    time : Time of the multiprocessors. [s]
    """
    queries, keys, tile, pair = array(query_length), array(key_length), array(query_tile), array(pair_time)
    units = array(num_multiprocessors)
    modelled = ~np.isnan(units)
    concurrent = np.where(modelled, units, 1.0)
    # Number of tiles, and their mean time: a causal mask hides half of the keys beyond the first tile.
    tiles = array(num_heads) * ceil_div(queries, tile)
    mean_keys = keys - array(causal) * (0.5 * (queries - np.minimum(tile, queries)))
    mean_tile = tile * mean_keys * pair
    # The longest tile runs on one multiprocessor alone.
    longest = np.where(modelled, concurrent, 0.0) * (tile * keys * pair)
    start = np.where(modelled, tile_time, 0.0) * (tiles / concurrent)
    return np.asarray(np.maximum(tiles * mean_tile + array(imbalance) * longest, longest) + start)


def flash_traffic(
    batch: Numeric,
    num_heads: Numeric,
    num_query_groups: Numeric,
    query_length: Numeric,
    key_length: Numeric,
    head_size: Numeric,
    element_size: Numeric,
    num_passes: Numeric = 1.0,
    num_key_passes: Numeric = 1.0,
) -> Array:
    r"""Main-memory traffic of flash attention: queries and outputs once per pass, keys and values p times.

    .. math:: T = 2 r b d\,(h s_q + g s_k p)\,e

    Source: T. Dao et al., "FlashAttention", 2022, arXiv:2205.14135.

    2 x 128 x (32 x 1024 + 8 x 1024) elements of 2 bytes:

    >>> float(flash_traffic(1.0, 32.0, 8.0, 1024.0, 1024.0, 128.0, 2.0))
    20971520.0

    Parameters
    ----------
    batch : Sequences. [-]
    num_heads, num_query_groups, query_length, key_length : Heads of queries, heads of keys and values; queries and keys
        of one sequence. [-]
    head_size : Elements of a head. [-]
    element_size : Size of one element. [B]
    num_passes : Passes r: 1 forward, 2 backward with the gradients. [-]
    num_key_passes : Passes p over keys and values, see :func:`_key_passes`. [-]

    Returns
    -------
    traffic : Bytes moved. [B]
    """
    keys = array(num_query_groups) * array(key_length) * array(num_key_passes)
    elements = array(num_heads) * array(query_length) + keys
    scale = 2.0 * array(num_passes) * array(batch) * array(head_size)
    return np.asarray(scale * elements * array(element_size))


def kv_cache_traffic(
    batch: Numeric, num_query_groups: Numeric, key_length: Numeric, head_size: Numeric, kv_element_size: Numeric
) -> Array:
    r"""KV-cache bytes read per layer and decode step.

    .. math:: T = 2 b g s d\,e

    Source: N. Shazeer, "Fast Transformer Decoding", 2019, arXiv:1911.02150.

    Keys and values, 8 heads x 1000 tokens x 128, of 2 bytes:

    >>> float(kv_cache_traffic(1.0, 8.0, 1000.0, 128.0, 2.0))
    4096000.0

    Parameters
    ----------
    batch : Sequences. [-]
    num_query_groups : Heads of keys and values on this accelerator. [-]
    key_length : Tokens in the cache. [-]
    head_size : Elements of a head. [-]
    kv_element_size : Size of one element of the cache. [B]

    Returns
    -------
    traffic : Bytes read. [B]
    """
    elements = 2.0 * array(batch) * array(num_query_groups) * array(key_length) * array(head_size)
    return np.asarray(elements * array(kv_element_size))


def softmax_time(softmax_flop: Numeric, vector_flop_rate: Numeric, exponential_rate: Numeric = np.nan) -> Array:
    r"""Time of the softmax of one score: its exponential beside the maximum, scaling, sum and conversion.

    .. math:: t = \frac{F}{R_v} \left(\frac{1}{3} + \frac{2}{3} \frac{R_v / 16}{R_e}\right)

    A multiprocessor usually does 16 exponentials and 128 other instructions a clock [1]_: the exponential takes twice
    the time of the four others; some accelerators do twice as many [2]_, [3]_. Heuristic, this work.

    12 FLOP at 160 FLOP/s; with 20 exponentials a second, 8 of the 12 take half the time:

    >>> float(softmax_time(12.0, 160.0)), float(softmax_time(12.0, 160.0, 20.0))
    (0.075, 0.05)

    Parameters
    ----------
    softmax_flop : Work F of the vector units for one score, at the usual exponential rate. [FLOP]
    vector_flop_rate : Peak R_v of the vector units in FP32. [FLOP/s]
    exponential_rate : Exponentials R_e per second, each counted as one FLOP; NaN: R_v / 16. [FLOP/s]

    Returns
    -------
    time : Time of the whole accelerator for one score. [s]

    References
    ----------
    .. [1] NVIDIA, "CUDA C++ programming guide", throughput of native arithmetic instructions.
    .. [2] NVIDIA, "Making softmax more efficient with NVIDIA Blackwell Ultra", developer.nvidia.com/blog.
    .. [3] AMD, "CDNA 4 architecture", white paper, 2025: transcendental functions at twice the rate.
    """
    vector, stated = array(vector_flop_rate), array(exponential_rate)
    usual = _USUAL_EXPONENTIALS * vector
    ratio = usual / np.where(np.isnan(stated), usual, stated)
    return np.asarray(array(softmax_flop) / vector * (1.0 + _EXPONENTIAL_SHARE * (ratio - 1.0)))


def attention_time(
    device: roofline.Device,
    constants: Mapping[str, Array],
    batch: Numeric,
    num_heads: Numeric,
    num_query_groups: Numeric,
    query_length: Numeric,
    key_length: Numeric,
    head_size: Numeric,
    causal: Numeric,
    element_size: Numeric,
    *,
    rate: roofline.MatrixRate | None = None,
    direction: str = "forward",
) -> Array:
    """Time of flash attention, forward (two products per pair) or backward (five: the scores are computed again).
    Launch, then compute and memory time overlapped but for the serial share; the power limit slows the products.
    ``rate``: matrix units at the precision of attention; the plan's by default.
    """
    rate = rate or device.rate()
    num_products, num_passes = (2.0, 1.0) if direction == "forward" else (5.0, 2.0)
    # Time of one query and key pair: products under the power limit, and softmax.
    flop = 2.0 * num_products * array(head_size)
    burst = flop / (constants["compute_efficiency"] * rate.peak_flop_rate)
    products = roofline.clock_limited_time(burst, rate.product_energy(constants, flop), rate.arithmetic_power)
    tile = _query_tile(head_size, element_size, device.shared_memory_capacity, QUERY_TILE)
    compute = flash_compute_time(
        array(batch) * array(num_heads),
        query_length,
        key_length,
        causal,
        QUERY_TILE,
        products + softmax_time(constants["softmax_flop"], device.vector_flop_rate, device.exponential_rate),
        device.num_multiprocessors,
        constants["imbalance"],
        constants["tile_time"] * (QUERY_TILE / tile),
    )
    sizes = num_heads, num_query_groups, query_length, key_length, head_size, element_size
    passes = _key_passes(*sizes, tile, device.num_multiprocessors, device.l2_capacity)
    traffic = flash_traffic(batch, *sizes, num_passes, passes)
    memory = roofline.transfer_time(traffic, device.memory_bandwidth, constants["memory_efficiency"])
    fixed = constants["launch_time"] + 0.0 * memory
    return np.asarray(fixed + roofline.blended_time(compute, memory, constants["serial_share"]))


def decode_attention_time(
    device: roofline.Device,
    constants: Mapping[str, Array],
    batch: Numeric,
    num_heads: Numeric,
    num_query_groups: Numeric,
    key_length: Numeric,
    head_size: Numeric,
    kv_element_size: Numeric,
    rate: roofline.MatrixRate | None = None,
) -> Array:
    """Time of decode attention: launch, and the longer of compute and KV-cache read for one new token per sequence."""
    traffic = kv_cache_traffic(batch, num_query_groups, key_length, head_size, kv_element_size)
    memory = roofline.transfer_time(traffic, device.memory_bandwidth, constants["memory_efficiency"])
    flop = 4.0 * array(batch) * array(num_heads) * array(key_length) * array(head_size)
    compute = flop / (constants["compute_efficiency"] * (rate or device.rate()).peak_flop_rate)
    return np.asarray((constants["launch_time"] + 0.0 * memory) + np.maximum(compute, memory))


def unshared_decode_attention_time(
    device: roofline.Device,
    constants: Mapping[str, Array],
    batch: Numeric,
    num_heads: Numeric,
    key_length: Numeric,
    head_size: Numeric,
    kv_element_size: Numeric,
) -> Array:
    """Time of decode attention on the vector units: each query head reads its keys from the last-level cache."""
    traffic = kv_cache_traffic(batch, num_heads, key_length, head_size, kv_element_size)
    cache = roofline.transfer_time(traffic, device.l2_bandwidth)
    flop = 4.0 * array(batch) * array(num_heads) * array(key_length) * array(head_size)
    compute = flop / (constants["vector_efficiency"] * device.vector_flop_rate)
    return np.asarray((constants["launch_time"] + 0.0 * cache) + np.maximum(cache, compute))


def tiled_heads(num_heads: Numeric, num_query_groups: Numeric, tile_rows: Numeric) -> Array:
    r"""Query heads that decode attention computes: at least one tile of rows per head of keys.

    .. math:: a' = \max(a, g r)

    Source: flash-attention issue 1572, 2025: 16 heads of keys on an H20 take as long with 1 query each as with 64.

    >>> tiled_heads(32.0, 8.0, [1.0, 16.0]).tolist()
    [32.0, 128.0]

    Parameters
    ----------
    num_heads, num_query_groups : Heads a of queries, and g of keys and values, on this accelerator. [-]
    tile_rows : Query rows r of a tile. [-]

    Returns
    -------
    num_heads : Heads that take arithmetic. [-]
    """
    return np.asarray(np.maximum(array(num_heads), array(num_query_groups) * array(tile_rows)))


def engine_decode_attention_time(
    device: roofline.Device,
    constants: Mapping[str, Array],
    batch: Numeric,
    num_heads: Numeric,
    num_query_groups: Numeric,
    key_length: Numeric,
    head_size: Numeric,
    kv_element_size: Numeric,
    tile_rows: Numeric,
    rate: roofline.MatrixRate | None = None,
) -> Array:
    """Time of decode attention in an engine: tiled, or the slower of tiled and unshared without shared keys."""
    stated = ~np.isnan(array(tile_rows))
    heads = tiled_heads(num_heads, num_query_groups, np.where(stated, array(tile_rows), constants["tile_rows"]))
    shape = key_length, head_size, kv_element_size
    time = decode_attention_time(device, constants, batch, heads, num_query_groups, *shape, rate)
    unshared = (array(constants["shared_keys"]) < 1.0) & ~stated
    if not some(unshared):
        return time
    alone = unshared_decode_attention_time(device, constants, batch, num_heads, *shape)
    return np.asarray(np.where(unshared, np.maximum(time, alone), time))
