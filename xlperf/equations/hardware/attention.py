"""Attention kernels: pairs of queries and keys, bytes, and time of flash attention and of attention in decoding.

Arguments broadcast to (rows, operators); columns of the device and constants have shape (rows, 1).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div
from xlperf.equations.hardware.kernels import Device
from xlperf.equations.hardware.roofline import blended_time, clock_limited_time, transfer_time
from xlperf.equations.hardware.tiles import key_passes, query_tile

QUERY_TILE = 128.0
"""Queries of one tile of flash attention where the shared memory holds them; halves start one after the other. [-]"""


def visible_pairs(query_length: Numeric, key_length: Numeric, causal: Numeric) -> Array:
    r"""Query and key pairs that attention computes; with a causal mask the last query sees every key.

    .. math:: N = s_q s_k - c\,\frac{s_q (s_q - 1)}{2}

    Parameters
    ----------
    query_length : numeric
        Queries of one sequence. [-]
    key_length : numeric
        Keys of one sequence. [-]
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
    query_length : numeric
        Queries of one sequence. [-]
    key_length : numeric
        Keys of one sequence. [-]
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
    num_heads : numeric
        Heads of queries. [-]
    num_query_groups : numeric
        Heads of keys and values. [-]
    query_length : numeric
        Queries of one sequence. [-]
    key_length : numeric
        Keys of one sequence. [-]
    head_size : numeric
        Elements of a head. [-]
    element_size : numeric
        Size of one element. [B]
    num_passes : numeric, default 1.0
        Passes r: 1 for the forward pass; 2 for the backward pass, which also reads and writes the gradients. [-]
    num_key_passes : numeric, default 1.0
        Passes p over keys and values, as :func:`xlperf.equations.hardware.tiles.key_passes` has them. [-]

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


def _flash_time(
    device: Device,
    constants: Mapping[str, Array],
    shape: tuple[Numeric, ...],
    num_products: float,
    num_passes: float,
) -> Array:
    """Time of flash attention from its number of matrix products and of passes over its inputs."""
    batch, heads, groups, queries, keys, head_size, causal, element_size = shape
    flop = 2.0 * num_products * array(head_size)
    burst = flop / (constants["compute_efficiency"] * device.peak_flop_rate)
    products = clock_limited_time(burst, device.product_energy(constants, flop), device.arithmetic_power)
    tile = query_tile(head_size, element_size, device.shared_memory_capacity, QUERY_TILE)
    compute = flash_compute_time(
        array(batch) * array(heads),
        queries,
        keys,
        causal,
        QUERY_TILE,
        products + constants["softmax_flop"] / device.vector_flop_rate,
        device.num_multiprocessors,
        constants["imbalance"],
        constants["tile_time"] * (QUERY_TILE / tile),
    )
    sizes = heads, groups, queries, keys, head_size, element_size
    passes = key_passes(*sizes, tile, device.num_multiprocessors, device.l2_capacity)
    traffic = flash_traffic(batch, *sizes, num_passes, passes)
    memory = transfer_time(traffic, device.memory_bandwidth, constants["memory_efficiency"])
    fixed = constants["launch_time"] + 0.0 * memory
    return np.asarray(fixed + blended_time(compute, memory, constants["serial_share"]))


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
) -> Array:
    r"""Time of flash attention, forward.

    Keys, queries and values are loaded, the two products and the softmax run on the multiprocessors, the outputs
    are stored; with a serial share of 1 the phases add up. Products take longer under a low power limit.

    .. math::

        t = t_0 + \max(t_{memory}, t_{compute}) + s \min(t_{memory}, t_{compute})

    Parameters
    ----------
    device : Device
        Accelerator, (rows, 1).
    constants : mapping of str to Array
        Calibration constants of the family attention, (rows, 1).
    batch : numeric
        Sequences, (rows, operators). [-]
    num_heads : numeric
        Heads of queries on this accelerator, (rows, operators). [-]
    num_query_groups : numeric
        Heads of keys and values on this accelerator, (rows, operators). [-]
    query_length : numeric
        Queries of one sequence, (rows, operators). [-]
    key_length : numeric
        Keys of one sequence, (rows, operators). [-]
    head_size : numeric
        Elements of a head, (rows, operators). [-]
    causal : numeric
        1 where a query sees the keys up to its own position, 0 where it sees all, (rows, operators). [-]
    element_size : numeric
        Size of one element, (rows, operators). [B]

    Returns
    -------
    time : numeric
        Time of one call, (rows, operators). [s]

    References
    ----------
    .. [1] T. Dao, "FlashAttention-2", 2023, arXiv:2307.08691.
    """
    shape = (batch, num_heads, num_query_groups, query_length, key_length, head_size, causal, element_size)
    return _flash_time(device, constants, shape, 2.0, 1.0)


def attention_backward_time(
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
) -> Array:
    r"""Time of flash attention, backward.

    Five products where the forward pass has two, because the scores are computed again.

    .. math::

        t = t_0 + \max(t_{memory}, t_{compute}) + s \min(t_{memory}, t_{compute})

    Parameters
    ----------
    device : Device
        Accelerator, (rows, 1).
    constants : mapping of str to Array
        Calibration constants of the family attention_backward, (rows, 1).
    batch : numeric
        Sequences, (rows, operators). [-]
    num_heads : numeric
        Heads of queries on this accelerator, (rows, operators). [-]
    num_query_groups : numeric
        Heads of keys and values on this accelerator, (rows, operators). [-]
    query_length : numeric
        Queries of one sequence, (rows, operators). [-]
    key_length : numeric
        Keys of one sequence, (rows, operators). [-]
    head_size : numeric
        Elements of a head, (rows, operators). [-]
    causal : numeric
        1 where a query sees the keys up to its own position, 0 where it sees all, (rows, operators). [-]
    element_size : numeric
        Size of one element, (rows, operators). [B]

    Returns
    -------
    time : numeric
        Time of one call, (rows, operators). [s]

    References
    ----------
    .. [1] T. Dao, "FlashAttention-2", 2023, arXiv:2307.08691.
    """
    shape = (batch, num_heads, num_query_groups, query_length, key_length, head_size, causal, element_size)
    return _flash_time(device, constants, shape, 5.0, 2.0)


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

    Parameters
    ----------
    device : Device
        Accelerator, (rows, 1).
    constants : mapping of str to Array
        Calibration constants of the family attention_decode, (rows, 1).
    batch : numeric
        Sequences, (rows, operators). [-]
    num_heads : numeric
        Heads of queries on this accelerator, (rows, operators). [-]
    num_query_groups : numeric
        Heads of keys and values on this accelerator, (rows, operators). [-]
    key_length : numeric
        Tokens in the cache, (rows, operators). [-]
    head_size : numeric
        Elements of a head, (rows, operators). [-]
    kv_element_size : numeric
        Size of one element of the cache, (rows, operators). [B]

    Returns
    -------
    time : numeric
        Time of one call, (rows, operators). [s]

    References
    ----------
    .. [1] N. Shazeer, "Fast Transformer Decoding", 2019, arXiv:1911.02150.
    """
    traffic = kv_cache_traffic(batch, num_query_groups, key_length, head_size, kv_element_size)
    memory = transfer_time(traffic, device.memory_bandwidth, constants["memory_efficiency"])
    flop = 4.0 * array(batch) * array(num_heads) * array(key_length) * array(head_size)
    compute = flop / (constants["compute_efficiency"] * device.peak_flop_rate)
    return np.asarray((constants["launch_time"] + 0.0 * memory) + np.maximum(compute, memory))
