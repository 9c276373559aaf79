"""Attention kernels: tiles, pairs of queries and keys, bytes, and time of flash attention and of attention in decoding.

Attention holds a tile of queries in the shared memory and passes over all keys. Arguments broadcast to (rows,
operators); columns of the device and constants have shape (rows, 1).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div, known_or, some
from xlperf.equations.hardware.roofline import (
    CACHE_SHARE,
    STAGES,
    Device,
    blended_time,
    clock_limited_time,
    transfer_time,
)

QUERY_TILE = 128.0
"""Queries of one tile of flash attention where the shared memory holds them; halves start one after the other. [-]"""
KEY_BLOCK = 32.0
"""Keys and values of a stage of flash attention. [-]"""
_EXPONENTIAL_SHARE = 2.0 / 3.0
"""Share of a softmax that its exponentials take where their units are the usual ones. [-]"""
_USUAL_EXPONENTIALS = 1.0 / 16.0
"""Exponentials over FP32 operations of the vector units: 16 and 256 a multiprocessor and clock. [-]"""


def query_tile(
    head_size: Numeric, element_size: Numeric, shared_memory_capacity: Numeric, largest: Numeric = 128.0
) -> Array:
    r"""Queries of one tile of flash attention: half as many, and again, until they fit beside two stages of keys.

    .. math:: T = \max\{T_0 / 2^i : T d e + 2 \cdot 2 \cdot 32\,d e \le S\}

    Heuristic, this work, after the tiles of [1]_.

    Parameters
    ----------
    head_size : numeric
        Elements of a head. [-]
    element_size : numeric
        Size of one element. [B]
    shared_memory_capacity : numeric
        Shared memory of one multiprocessor; NaN: the largest tile fits. [B]
    largest : numeric, default 128.0
        Queries of the largest tile. [-]

    Returns
    -------
    queries : numeric
        Queries of a tile, 16 at least. [-]

    References
    ----------
    .. [1] T. Dao, "FlashAttention-2", 2023, arXiv:2307.08691, section 3.3: tuning block sizes.

    Examples
    --------
    64 KiB of shared memory and heads of 128 in BF16: 32 KiB of queries beside 32 KiB of keys and values:

    >>> float(query_tile(128.0, 2.0, 65536.0))
    128.0
    """
    row = array(head_size) * array(element_size)
    room = known_or(shared_memory_capacity, np.inf)
    tile = array(largest)
    found = 0.125 * tile
    for share in (0.25, 0.5, 1.0):
        found = np.where((share * tile + 2.0 * STAGES * KEY_BLOCK) * row <= room, share * tile, found)
    return np.asarray(found + 0.0 * row)


def key_passes(
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
    r"""How often flash attention reads keys and values from the main memory.

    The tiles that run at the same time pass over the keys together and share them through the last-level cache; later
    tiles of the same head read them again, unless they are still in it:

    .. math:: p = 1 + (p_0 - 1) \min\left(\max\left(1 - \frac{R}{2 s_k d e}, 0\right), 1\right), \quad
        p_0 = \max\left(\frac{h s_q / g}{n T}, 1\right)

    with half of the cache as R. Heuristic, this work.

    Parameters
    ----------
    num_heads, num_query_groups, query_length, key_length : numeric
        Heads of queries, heads of keys and values; queries and keys of one sequence. [-]
    head_size : numeric
        Elements of a head. [-]
    element_size : numeric
        Size of one element. [B]
    query_tile : numeric
        Queries of one tile. [-]
    num_multiprocessors : numeric
        Tiles that run at the same time; NaN: all of them. [-]
    cache_capacity : numeric
        Last-level cache; NaN or infinite: one pass. [B]

    Returns
    -------
    passes : numeric
        1 or more. [-]

    References
    ----------
    .. [1] T. Dao et al., "FlashAttention", 2022, arXiv:2205.14135, section 3: re-reads by blocks.

    Examples
    --------
    1,024 queries of a head in tiles of 128 on four multiprocessors without a cache: two passes:

    >>> float(key_passes(1.0, 1.0, 1024.0, 1024.0, 128.0, 2.0, 128.0, 4.0, 0.0))
    2.0
    """
    room = known_or(CACHE_SHARE * array(cache_capacity), np.inf)
    together = known_or(num_multiprocessors, np.inf) * array(query_tile)
    shared = array(num_heads) * array(query_length) / array(num_query_groups)
    keys = 2.0 * array(key_length) * array(head_size) * array(element_size)
    lost = np.minimum(np.maximum(1.0 - room / keys, 0.0), 1.0)
    return np.asarray(1.0 + (np.maximum(shared / together, 1.0) - 1.0) * lost)


def visible_pairs(query_length: Numeric, key_length: Numeric, causal: Numeric) -> Array:
    r"""Query and key pairs that attention computes; with a causal mask the last query sees every key.

    .. math:: N = s_q s_k - c\,\frac{s_q (s_q - 1)}{2}

    Parameters
    ----------
    query_length, key_length : numeric
        Queries and keys of one sequence. [-]
    causal : numeric
        1 where a query sees the keys up to its own position, 0 where it sees all. [-]

    Returns
    -------
    pairs : numeric
        Pairs of one head and sequence. [-]

    References
    ----------
    .. [1] T. Dao, "FlashAttention-2", 2023, arXiv:2307.08691.

    Examples
    --------
    Three queries see 2, 3 and 4 of four keys:

    >>> float(visible_pairs(3.0, 4.0, 1.0))
    9.0
    """
    queries = array(query_length)
    return np.asarray(queries * array(key_length) - array(causal) * (0.5 * queries * (queries - 1.0)))


def core_attention_flop(batch: Numeric, num_heads: Numeric, head_size: Numeric, pairs: Numeric) -> Array:
    r"""Operations of the two products of attention: queries by keys, and probabilities by values.

    .. math:: F = 4\,b\,a\,d\,N

    By definition: two operations per element and pair in either product.

    Parameters
    ----------
    batch : numeric
        Sequences b. [-]
    num_heads : numeric
        Heads a of queries on this accelerator. [-]
    head_size : numeric
        Elements d of a head, means of keys and values. [-]
    pairs : numeric
        Query and key pairs N of one head and sequence. [-]

    Returns
    -------
    flop : numeric
        Of one call. [FLOP]

    Examples
    --------
    32 heads of 128 over 1,000 x 1,000 pairs:

    >>> float(core_attention_flop(1, 32, 128, 1e6))
    16384000000.0
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

    The multiprocessors share the tiles; some end later than others by a share of the longest tile, and none ends
    before that tile. With a causal mask tiles differ, and the one on the diagonal is computed in full.

    .. math::

        t = \max\left(n\,\bar t + i\,p\,\hat t,\; p\,\hat t\right) + \frac{n}{p}\,t_{tile}, \quad
        n = h \lceil s_q / T \rceil, \quad \bar t = T\,\bar s\,\tau, \quad \hat t = T\,s_k\,\tau

    Heuristic, this work, after the partitioning over queries [1]_; imbalance and start of tiles are fitted.

    Parameters
    ----------
    num_heads : numeric
        Heads of all sequences together. [-]
    query_length, key_length : numeric
        Queries and keys of one sequence. [-]
    causal : numeric
        1 where a query sees the keys up to its own position, 0 where it sees all. [-]
    query_tile : numeric
        Queries of one tile. [-]
    pair_time : numeric
        Time of the whole accelerator for one query and key pair of a head. [s]
    num_multiprocessors : numeric
        Tiles that run at the same time; NaN: the work is shared evenly. [-]
    imbalance : numeric, default 0.0
        Share of the longest tile by which the last multiprocessor ends late. [-]
    tile_time : numeric, default 0.0
        Time to start and end a tile. [s]

    Returns
    -------
    time : numeric
        Time of the multiprocessors. [s]

    References
    ----------
    .. [1] T. Dao, "FlashAttention-2", 2023, arXiv:2307.08691, section 3.2: work partitioning over queries.

    Examples
    --------
    Four heads of 256 queries are 8 tiles; each takes 128 x 256 pairs of 1 ms:

    >>> float(flash_compute_time(4.0, 256.0, 256.0, 0.0, 128.0, 0.001, 4.0))
    262.144
    """
    queries, keys, tile = array(query_length), array(key_length), array(query_tile)
    units = array(num_multiprocessors)
    modelled = ~np.isnan(units)
    at_once = np.where(modelled, units, 1.0)
    unhidden = 0.5 * (queries - np.minimum(tile, queries))
    mean_keys = keys - array(causal) * unhidden
    tiles = array(num_heads) * ceil_div(queries, tile)
    pair = array(pair_time)
    mean_tile = tile * mean_keys * pair
    longest = np.where(modelled, at_once, 0.0) * (tile * keys * pair)
    start = np.where(modelled, tile_time, 0.0) * (tiles / at_once)
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
    r"""Main-memory traffic of flash attention: queries and outputs once per pass, keys and values as often as needed.

    .. math:: T = 2 r b d\,(h s_q + g s_k p)\,e

    Parameters
    ----------
    batch : numeric
        Sequences. [-]
    num_heads, num_query_groups, query_length, key_length : numeric
        Heads of queries, heads of keys and values; queries and keys of one sequence. [-]
    head_size : numeric
        Elements of a head. [-]
    element_size : numeric
        Size of one element. [B]
    num_passes : numeric, default 1.0
        Passes r: 1 for the forward pass; 2 for the backward pass, which also reads and writes the gradients. [-]
    num_key_passes : numeric, default 1.0
        Passes p over keys and values, as :func:`key_passes` has them. [-]

    Returns
    -------
    traffic : numeric
        Bytes moved. [B]

    References
    ----------
    .. [1] T. Dao et al., "FlashAttention", 2022, arXiv:2205.14135; re-reads of keys and values hit the cache.

    Examples
    --------
    2 x 128 x (32 x 1024 + 8 x 1024) elements of 2 bytes:

    >>> float(flash_traffic(1.0, 32.0, 8.0, 1024.0, 1024.0, 128.0, 2.0))
    20971520.0
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

    Parameters
    ----------
    batch : numeric
        Sequences. [-]
    num_query_groups : numeric
        Heads of keys and values on this accelerator. [-]
    key_length : numeric
        Tokens in the cache. [-]
    head_size : numeric
        Elements of a head. [-]
    kv_element_size : numeric
        Size of one element of the cache. [B]

    Returns
    -------
    traffic : numeric
        Bytes read. [B]

    References
    ----------
    .. [1] N. Shazeer, "Fast Transformer Decoding", 2019, arXiv:1911.02150.

    Examples
    --------
    Keys and values, 8 heads x 1000 tokens x 128, of 2 bytes:

    >>> float(kv_cache_traffic(1.0, 8.0, 1000.0, 128.0, 2.0))
    4096000.0
    """
    elements = 2.0 * array(batch) * array(num_query_groups) * array(key_length) * array(head_size)
    return np.asarray(elements * array(kv_element_size))


def softmax_time(softmax_flop: Numeric, vector_flop_rate: Numeric, exponential_rate: Numeric = np.nan) -> Array:
    r"""Time of the softmax of one score: its exponential beside the maximum, scaling, sum and conversion.

    .. math:: t = \frac{F}{R_v} \left(\frac{1}{3} + \frac{2}{3} \frac{R_v / 16}{R_e}\right)

    The usual multiprocessor does 16 exponentials and 128 other instructions a clock [1]_, so that one exponential
    takes as long as eight of the others, twice the four that are left; others do twice as many [2]_, [3]_. Shares are a
    heuristic, this work.

    Parameters
    ----------
    softmax_flop : numeric
        Work F of the vector units for one score, with the usual exponentials. [FLOP]
    vector_flop_rate : numeric
        Peak R_v of the vector units in FP32. [FLOP/s]
    exponential_rate : numeric, default NaN
        Exponentials R_e that the accelerator does in a second, one as one FLOP; NaN: a sixteenth of R_v. [FLOP/s]

    Returns
    -------
    time : numeric
        Time of the whole accelerator for one score. [s]

    References
    ----------
    .. [1] NVIDIA, "CUDA C++ programming guide", throughput of native arithmetic instructions.
    .. [2] NVIDIA, "Making softmax more efficient with NVIDIA Blackwell Ultra", developer.nvidia.com/blog.
    .. [3] AMD, "CDNA 4 architecture", white paper, 2025: transcendental functions at twice the rate.

    Examples
    --------
    12 FLOP at 160 FLOP/s; 4 of them and 8 at half the time where 20 exponentials a second are done:

    >>> float(softmax_time(12.0, 160.0)), float(softmax_time(12.0, 160.0, 20.0))
    (0.075, 0.05)
    """
    vector, stated = array(vector_flop_rate), array(exponential_rate)
    usual = _USUAL_EXPONENTIALS * vector
    ratio = usual / np.where(np.isnan(stated), usual, stated)
    slower = 1.0 + _EXPONENTIAL_SHARE * (ratio - 1.0)
    return np.asarray(array(softmax_flop) / vector * slower)


def attention_time(
    device: Device,
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
    direction: str = "forward",
) -> Array:
    r"""Time of flash attention, of the forward or the backward pass.

    Keys, queries and values are loaded, the two products and the softmax run on the multiprocessors, the outputs
    are stored; with a serial share of 1 the phases add up. Products take longer under a low power limit. The backward
    pass has five products where the forward pass has two, because the scores are computed again.

    .. math::

        t = t_0 + \max(t_{memory}, t_{compute}) + s \min(t_{memory}, t_{compute})
    """
    num_products, num_passes = (2.0, 1.0) if direction == "forward" else (5.0, 2.0)
    flop = 2.0 * num_products * array(head_size)
    burst = flop / (constants["compute_efficiency"] * device.peak_flop_rate)
    products = clock_limited_time(burst, device.product_energy(constants, flop), device.arithmetic_power)
    tile = query_tile(head_size, element_size, device.shared_memory_capacity, QUERY_TILE)
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
    passes = key_passes(*sizes, tile, device.num_multiprocessors, device.l2_capacity)
    traffic = flash_traffic(batch, *sizes, num_passes, passes)
    memory = transfer_time(traffic, device.memory_bandwidth, constants["memory_efficiency"])
    fixed = constants["launch_time"] + 0.0 * memory
    return np.asarray(fixed + blended_time(compute, memory, constants["serial_share"]))


def decode_attention_time(
    device: Device,
    constants: Mapping[str, Array],
    batch: Numeric,
    num_heads: Numeric,
    num_query_groups: Numeric,
    key_length: Numeric,
    head_size: Numeric,
    kv_element_size: Numeric,
) -> Array:
    r"""Time of decode attention: one new token per sequence against its KV cache.

    .. math::

        t = t_0 + \max(t_{compute}, t_{memory})
    """
    traffic = kv_cache_traffic(batch, num_query_groups, key_length, head_size, kv_element_size)
    memory = transfer_time(traffic, device.memory_bandwidth, constants["memory_efficiency"])
    flop = 4.0 * array(batch) * array(num_heads) * array(key_length) * array(head_size)
    compute = flop / (constants["compute_efficiency"] * device.peak_flop_rate)
    return np.asarray((constants["launch_time"] + 0.0 * memory) + np.maximum(compute, memory))


def unshared_decode_attention_time(
    device: Device,
    constants: Mapping[str, Array],
    batch: Numeric,
    num_heads: Numeric,
    key_length: Numeric,
    head_size: Numeric,
    kv_element_size: Numeric,
) -> Array:
    r"""Time of decode attention whose heads of queries each read their keys alone, whatever they share.

    The first kernels of decoding [1]_, [2]_ have one block of threads for each head of queries: where heads share keys
    the blocks find them in the last-level cache, but each reads, converts and multiplies them all on the vector units,
    which takes many instructions beside each multiplication.

    .. math::

        t = t_0 + \max\left(\frac{2 b a s d\,e}{B_{L2}}, \frac{4 b a s d}{\eta P_v}\right)
    """
    traffic = kv_cache_traffic(batch, num_heads, key_length, head_size, kv_element_size)
    cache = transfer_time(traffic, device.l2_bandwidth)
    flop = 4.0 * array(batch) * array(num_heads) * array(key_length) * array(head_size)
    compute = flop / (constants["vector_efficiency"] * device.vector_flop_rate)
    return np.asarray((constants["launch_time"] + 0.0 * cache) + np.maximum(cache, compute))


def tiled_heads(num_heads: Numeric, num_query_groups: Numeric, tile_rows: Numeric) -> Array:
    r"""Heads of queries that decode attention computes: a tile of each head of keys, filled or not.

    .. math:: a' = \max(a, g r)

    Parameters
    ----------
    num_heads, num_query_groups : numeric
        Heads a of queries, and g of keys and values, on this accelerator. [-]
    tile_rows : numeric
        Query rows r of a tile. [-]

    Returns
    -------
    num_heads : numeric
        Heads that take arithmetic. [-]

    References
    ----------
    .. [1] flash-attention issue 1572, 2025: 16 heads of keys on an H20 take as long with 1 query each as with 64.

    Examples
    --------
    >>> tiled_heads(32.0, 8.0, [1.0, 16.0]).tolist()
    [32.0, 128.0]
    """
    return np.asarray(np.maximum(array(num_heads), array(num_query_groups) * array(tile_rows)))


def engine_decode_attention_time(
    device: Device,
    constants: Mapping[str, Array],
    batch: Numeric,
    num_heads: Numeric,
    num_query_groups: Numeric,
    key_length: Numeric,
    head_size: Numeric,
    kv_element_size: Numeric,
    tile_rows: Numeric,
) -> Array:
    r"""Time of decode attention in an engine: its tiles, or a kernel that does not share keys.

    .. math:: t = \max(t_{tiled}, t_{unshared})
    """
    stated = ~np.isnan(array(tile_rows))
    rows = np.where(stated, array(tile_rows), constants["tile_rows"])
    shape = key_length, head_size, kv_element_size
    tiled = tiled_heads(num_heads, num_query_groups, rows)
    time = decode_attention_time(device, constants, batch, tiled, num_query_groups, *shape)
    unshared = (array(constants["shared_keys"]) < 1.0) & ~stated
    if not some(unshared):
        return time
    own = unshared_decode_attention_time(device, constants, batch, num_heads, *shape)
    return np.asarray(np.where(unshared, np.maximum(time, own), time))
