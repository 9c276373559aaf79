r"""Hierarchical roofline: how long a kernel takes that moves bytes through the memory levels and does arithmetic.

Every function works on arrays that broadcast against each other. The levels are main memory (HBM), last-level cache
(L2) and the matrix and vector units; work is cut into tiles, one tile per multiprocessor, and tiles run in waves.
"""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div


def tiled_product_time(
    m: Numeric,
    n: Numeric,
    k: Numeric,
    batch: Numeric,
    element_size: Numeric,
    tile_rows: Numeric,
    tile_columns: Numeric,
    num_splits: Numeric,
    peak_flop_rate: Numeric,
    cache_bandwidth: Numeric,
    num_multiprocessors: Numeric,
    compute_efficiency: Numeric = 1.0,
    cache_share: Numeric = 0.0,
    wave_time: Numeric = 0.0,
    sum_size: Numeric = 0.0,
) -> Array:
    r"""Time of the matrix units for a product that is cut into tiles of one shape.

    Every tile computes ``tile_rows x tile_columns`` outputs over ``k / num_splits``, padding included, and reads its
    two panels from the last-level cache; a share of that reading is not hidden behind the arithmetic. Sums of a
    depth that is cut are written to that cache and read again.

    .. math::

        t = \left\lceil \frac{s b \lceil m / T_m \rceil \lceil n / T_n \rceil}{p} \right\rceil \left(\frac{p k}{s}
        \left(\frac{2 T_m T_n}{\eta P} + c\,\frac{(T_m + T_n) e}{B_{cache}}\right) + s\,t_w\right)
        + [s > 1] \frac{2 s\,e_{sum}\,b m n}{B_{cache}}

    Parameters
    ----------
    m : numeric
        Rows of the first matrix. [-]
    n : numeric
        Columns of the second matrix. [-]
    k : numeric
        Depth: columns of the first, rows of the second matrix. [-]
    batch : numeric
        Equal products in the call. [-]
    element_size : numeric
        Size of one element of the inputs. [B]
    tile_rows : numeric
        Rows of outputs of one tile. [-]
    tile_columns : numeric
        Columns of outputs of one tile. [-]
    num_splits : numeric
        Pieces that the depth is cut into; their sums are put together at the end. [-]
    peak_flop_rate : numeric
        Dense peak of the whole accelerator. [FLOP/s]
    cache_bandwidth : numeric
        Bandwidth of the last-level cache; infinite where it never binds. [B/s]
    num_multiprocessors : numeric
        Tiles of one wave; NaN: waves are not modelled and their start is not charged. [-]
    compute_efficiency : numeric, default 1.0
        Share of the peak that a full wave reaches. [-]
    cache_share : numeric, default 0.0
        Share of the reading from the cache that is not hidden. [-]
    wave_time : numeric, default 0.0
        Time to start and drain one wave, per split. [s]
    sum_size : numeric, default 0.0
        Size of one sum over a part of the depth. [B]

    Returns
    -------
    time : numeric
        Time of the matrix units. [s]

    References
    ----------
    .. [1] NVIDIA, "Matrix Multiplication Background User's Guide", sections 2 and 3.
    .. [2] S. Williams, A. Waterman and D. Patterson, "Roofline", Commun. ACM 52(4), 2009, doi:10.1145/1498765.1498785.
    """
    height, width, splits = array(tile_rows), array(tile_columns), array(num_splits)
    units = array(num_multiprocessors)
    modelled = ~np.isnan(units)
    at_once = np.where(modelled, units, 1.0)
    arithmetic = 2.0 * height * width / (array(compute_efficiency) * array(peak_flop_rate))
    reading = array(cache_share) * ((height + width) * array(element_size) / array(cache_bandwidth))
    start = np.where(modelled, wave_time, 0.0) * splits
    tiles = ceil_div(m, height) * ceil_div(n, width) * (array(batch) * splits)
    one_wave = (arithmetic + reading) * (at_once / splits) * array(k) + start
    sums = np.where(splits > 1.0, 2.0 * splits, 0.0) * array(sum_size)
    outputs = array(m) * array(n) * array(batch)
    return np.asarray(np.ceil(tiles / at_once) * one_wave + sums * (outputs / array(cache_bandwidth)))


def product_traffic(
    m: Numeric, n: Numeric, k: Numeric, batch: Numeric, element_size: Numeric, output_element_size: Numeric
) -> Array:
    r"""Compulsory bytes of a product: both inputs once, the output once.

    .. math:: T = b\,(e\,k\,(m + n) + e_{out}\,m n)

    Parameters
    ----------
    m : numeric
        Rows of the first matrix. [-]
    n : numeric
        Columns of the second matrix. [-]
    k : numeric
        Depth. [-]
    batch : numeric
        Equal products in the call. [-]
    element_size : numeric
        Size of one element of the inputs. [B]
    output_element_size : numeric
        Size of one element of the output. [B]

    Returns
    -------
    traffic : numeric
        Bytes through the main memory. [B]

    References
    ----------
    .. [1] NVIDIA, "Matrix Multiplication Background User's Guide", section 1, arithmetic intensity.
    """
    rows, columns = array(m), array(n)
    inputs = array(element_size) * array(k) * (rows + columns)
    return np.asarray(array(batch) * (inputs + array(output_element_size) * rows * columns))


def transfer_time(traffic: Numeric, bandwidth: Numeric, efficiency: Numeric = 1.0) -> Array:
    r"""Time to move bytes through one memory level.

    .. math:: t = \frac{T}{\eta B}

    Parameters
    ----------
    traffic : numeric
        Bytes moved. [B]
    bandwidth : numeric
        Peak bandwidth of the level; infinite where it never binds. [B/s]
    efficiency : numeric, default 1.0
        Share of the peak that is reached. [-]

    Returns
    -------
    time : numeric
        Time of the transfer. [s]

    References
    ----------
    .. [1] S. Williams, A. Waterman and D. Patterson, "Roofline", Commun. ACM 52(4), 2009, doi:10.1145/1498765.1498785.
    """
    return np.asarray(array(traffic) / (array(efficiency) * array(bandwidth)))


def blended_time(first_time: Numeric, second_time: Numeric, serial_share: Numeric = 0.0) -> Array:
    r"""Time of two activities that overlap but for a share of the shorter one.

    .. math:: t = \max(t_1, t_2) + s \min(t_1, t_2)

    Parameters
    ----------
    first_time : numeric
        Time of one activity alone. [s]
    second_time : numeric
        Time of the other alone. [s]
    serial_share : numeric, default 0.0
        Share of the shorter one that is not hidden: 0 is the roofline, 1 the sum. [-]

    Returns
    -------
    time : numeric
        Time of both. [s]

    References
    ----------
    .. [1] S. Williams, A. Waterman and D. Patterson, "Roofline", Commun. ACM 52(4), 2009, doi:10.1145/1498765.1498785.
    """
    first, second = array(first_time), array(second_time)
    return np.asarray(np.maximum(first, second) + array(serial_share) * np.minimum(first, second))


def sustained_time(burst_time: Numeric, limited_time: Numeric, boost_time: Numeric) -> Array:
    r"""Time of a kernel that starts at boost clocks and slows down as the power limit takes hold.

    A kernel whose units idle for part of the time draws less and is held back less, or not at all.

    .. math:: t' = t + \max(t_P - t, 0)\,\frac{t}{t + t_{boost}}

    Parameters
    ----------
    burst_time : numeric
        Time at boost clocks. [s]
    limited_time : numeric
        Least time that the power limit leaves a long kernel. [s]
    boost_time : numeric
        Length of a kernel that feels half of the limit. [s]

    Returns
    -------
    time : numeric
        Time under the power limit. [s]

    References
    ----------
    .. [1] H. He, "Strangely, matrix multiplications on GPUs run faster when given predictable data", 2024,
       thonking.ai: products are throttled by power.
    """
    burst = array(burst_time)
    together = burst + array(boost_time)
    felt = burst / np.where(together == 0.0, 1.0, together)
    return np.asarray(burst + np.maximum(array(limited_time) - burst, 0.0) * felt)


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
    r"""Time of products and softmax of flash attention, whose tiles hold some queries and pass over all their keys.

    The multiprocessors share the tiles; some end later than others by a share of the longest tile, and none ends
    before that tile. With a causal mask tiles differ, and the one on the diagonal is computed in full.

    .. math::

        t = \max\left(n\,\bar t + i\,p\,\hat t,\; p\,\hat t\right) + \frac{n}{p}\,t_{tile}, \quad
        n = h \lceil s_q / T \rceil, \quad \bar t = T\,\bar s\,\tau, \quad \hat t = T\,s_k\,\tau

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
) -> Array:
    r"""Bytes of flash attention through the main memory: queries, keys, values and outputs once per pass.

    .. math:: T = 2 r b d\,(h s_q + g s_k)\,e

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
        1 for the forward pass; 2 for the backward pass, which also reads and writes the gradients. [-]

    Returns
    -------
    traffic : numeric
        Bytes moved. [B]

    References
    ----------
    .. [1] T. Dao et al., "FlashAttention", 2022, arXiv:2205.14135; re-reads of keys and values hit the cache.
    """
    elements = array(num_heads) * array(query_length) + array(num_query_groups) * array(key_length)
    scale = 2.0 * array(num_passes) * array(batch) * array(head_size)
    return np.asarray(scale * elements * array(element_size))


def kv_cache_traffic(
    batch: Numeric, num_query_groups: Numeric, key_length: Numeric, head_size: Numeric, kv_element_size: Numeric
) -> Array:
    r"""Bytes of keys and values that one step of decoding reads in one layer.

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
    """
    elements = 2.0 * array(batch) * array(num_query_groups) * array(key_length) * array(head_size)
    return np.asarray(elements * array(kv_element_size))


def relaxed_savings(compute_time: Numeric, memory_time: Numeric, serial_share: Numeric = 0.0) -> tuple[Array, Array]:
    r"""Time that a kernel gains from units, or from a memory, of twice the speed.

    .. math:: \Delta_1 = t(t_1, t_2) - t(t_1 / 2, t_2), \quad \Delta_2 = t(t_1, t_2) - t(t_1, t_2 / 2)

    with the time t of :func:`blended_time`.

    Parameters
    ----------
    compute_time : numeric
        Time t_1 of the arithmetic alone. [s]
    memory_time : numeric
        Time t_2 of the traffic alone. [s]
    serial_share : numeric, default 0.0
        Share of the shorter one that is not hidden. [-]

    Returns
    -------
    compute_saving : numeric
        Time gained from units of twice the rate. [s]
    memory_saving : numeric
        Time gained from a memory of twice the bandwidth. [s]

    References
    ----------
    .. [1] S. Williams, A. Waterman and D. Patterson, "Roofline", Commun. ACM 52(4), 2009, doi:10.1145/1498765.1498785.
    """
    compute, memory = array(compute_time), array(memory_time)
    whole = blended_time(compute, memory, serial_share)
    return (
        np.asarray(whole - blended_time(0.5 * compute, memory, serial_share)),
        np.asarray(whole - blended_time(compute, 0.5 * memory, serial_share)),
    )
