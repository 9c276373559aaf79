r"""Tiles that fit the on-chip memories, and the traffic through the main memory that follows from them.

A product is cut into tiles whose operands fit the shared memory of a multiprocessor; the tiles that run at the same
time share rows and columns through the last-level cache. What that cache cannot hold until it is used again is read
anew from the main memory. Attention holds a tile of queries in the shared memory and passes over all keys.
"""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array

STAGES = 2.0
"""Stages that a multiprocessor holds at least: one is computed while the next one is loaded. [-]"""
CACHE_SHARE = 0.5
"""Share of the last-level cache that holds what will be used again. [-]"""
LEAST_SIDE = 64.0
"""Rows or columns of whole depth that are worth keeping: a small tile. [-]"""
KEY_BLOCK = 32.0
"""Keys and values of a stage of flash attention. [-]"""


def tile_memory(
    tile_rows: Numeric,
    tile_columns: Numeric,
    stage_depth: Numeric = 128.0,
    sum_size: Numeric = 4.0,
    register_size: Numeric = 131072.0,
) -> Array:
    r"""Shared memory that a tile of a product needs: two stages of both panels, and sums that no register holds.

    .. math:: S = 2 d\,(T_m + T_n) + \max(e T_m T_n - R, 0)

    Heuristic, this work, after the software pipelines of tiled products [1]_.

    Parameters
    ----------
    tile_rows : numeric
        Rows of outputs of a tile. [-]
    tile_columns : numeric
        Columns of outputs of a tile. [-]
    stage_depth : numeric, default 128.0
        Depth d of a stage of operands, per row and column of a tile. [B]
    sum_size : numeric, default 4.0
        Size e of a sum. [B]
    register_size : numeric, default 131072.0
        Registers R of a multiprocessor that hold sums, half of 256 KiB. [B]

    Returns
    -------
    size : numeric
        Shared memory of one multiprocessor. [B]

    References
    ----------
    .. [1] NVIDIA, "CUTLASS: efficient GEMM in CUDA", github.com/NVIDIA/cutlass, media/docs/efficient_gemm.md.

    Examples
    --------
    Tiles of 256 x 128 fit 96 KiB:

    >>> float(tile_memory(256.0, 128.0)) / 1024.0
    96.0
    """
    rows, columns = array(tile_rows), array(tile_columns)
    sums = np.maximum(array(sum_size) * rows * columns - array(register_size), 0.0)
    return np.asarray(STAGES * array(stage_depth) * (rows + columns) + sums)


def product_memory_traffic(
    m: Numeric,
    n: Numeric,
    k: Numeric,
    batch: Numeric,
    element_size: Numeric,
    output_element_size: Numeric,
    tile_rows: Numeric,
    tile_columns: Numeric,
    tiles_at_once: Numeric,
    cache_capacity: Numeric,
    window_depth: Numeric = 2048.0,
) -> Array:
    r"""Traffic of a GEMM through the main memory, from the tiles that run at the same time and the last-level cache.

    The tiles that run together cover a block of the outputs, as square as the matrix allows, whose rows and columns
    they share in a window of the cache: :math:`g_1` along the shorter side :math:`l_1` of the outputs, :math:`g_2`
    along the longer one :math:`l_2`. The least of three orders is taken: both inputs stream past the block, or whole
    rows of one input are kept while the other streams:

    .. math::

        T = b \left(e_{out} m n + e k \min\left(m n \left(\tfrac{1}{g_1} + \tfrac{1}{g_2}\right),\;
        l_1 + l_2 \tfrac{l_1}{K},\; l_2 + l_1 \tfrac{l_2}{K}\right)\right), \quad K = \frac{R}{e k}

    .. math::

        g_1 = \min\left(l_1, \sqrt{N T_m T_n}, \tfrac{L}{2}\right), \quad
        g_2 = \min\left(l_2, \tfrac{N T_m T_n}{g_1}, L - g_1\right), \quad L = \frac{R}{\min(e k, d)}

    with half of the cache as R; a block is one tile at least. Never below the bound of [1]_ and [2]_; compulsory
    where the cache is infinite. Heuristic, this work.

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
    tile_rows : numeric
        Rows of outputs of the largest tile that fits. [-]
    tile_columns : numeric
        Columns of outputs of it. [-]
    tiles_at_once : numeric
        Multiprocessors; NaN: all tiles run at the same time. [-]
    cache_capacity : numeric
        Last-level cache; NaN or infinite: inputs are read once. [B]
    window_depth : numeric, default 2048.0
        Depth d by which tiles that run at the same time are apart. [B]

    Returns
    -------
    traffic : numeric
        Bytes through the main memory. [B]

    References
    ----------
    .. [1] J.-W. Hong and H. T. Kung, "I/O complexity: the red-blue pebble game", STOC 1981, doi:10.1145/800076.802486.
    .. [2] T. M. Smith, B. Lowery, J. Langou and R. A. van de Geijn, "A tight I/O lower bound for matrix
       multiplication", 2019, arXiv:1702.02017.
    .. [3] K. Goto and R. van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS 34(3), 2008,
       doi:10.1145/1356052.1356053.

    Examples
    --------
    One tile at a time and no cache: each of 2 x 2 tiles reads its panels of 4 x 128 x 2 bytes anew:

    >>> float(product_memory_traffic(256.0, 256.0, 4.0, 1.0, 2.0, 0.0, 128.0, 128.0, 1.0, 0.0))
    8192.0
    """
    rows, columns, depth = array(m), array(n), array(element_size) * array(k)
    room = np.nan_to_num(CACHE_SHARE * array(cache_capacity), nan=np.inf, posinf=np.inf)
    height, width = array(tile_rows), array(tile_columns)
    covered = np.nan_to_num(array(tiles_at_once), nan=np.inf, posinf=np.inf) * height * width
    short, long = np.minimum(rows, columns), np.maximum(rows, columns)
    window = room / np.minimum(depth, array(window_depth))
    side = np.maximum(np.minimum(np.sqrt(covered), 0.5 * window), np.minimum(height, width))
    side = np.maximum(np.minimum(side, short), 1.0)
    other = np.maximum(np.minimum(covered / side, window - side), np.maximum(height, width))
    other = np.maximum(np.minimum(other, long), 1.0)
    kept = room / depth
    least = rows * columns * (1.0 / side + 1.0 / other)
    legal = kept >= np.minimum(LEAST_SIDE, short)
    kept = np.where(legal, kept, 1.0)
    with_short = short + long * np.maximum(short / kept, 1.0)
    with_long = long + short * np.maximum(long / kept, 1.0)
    least = np.where(legal, np.minimum(least, np.minimum(with_short, with_long)), least)
    least = np.maximum(least, rows + columns)
    return np.asarray(array(batch) * (depth * least + array(output_element_size) * rows * columns))


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
    room = np.nan_to_num(array(shared_memory_capacity), nan=np.inf, posinf=np.inf)
    tile = array(largest)
    return np.asarray(
        np.select(
            [(share * tile + 2.0 * STAGES * KEY_BLOCK) * row <= room for share in (1.0, 0.5, 0.25)],
            [share * tile for share in (1.0, 0.5, 0.25)],
            0.125 * tile,
        )
        + 0.0 * row
    )


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
    room = np.nan_to_num(CACHE_SHARE * array(cache_capacity), nan=np.inf, posinf=np.inf)
    together = np.nan_to_num(array(num_multiprocessors), nan=np.inf, posinf=np.inf) * array(query_tile)
    shared = array(num_heads) * array(query_length) / array(num_query_groups)
    keys = 2.0 * array(key_length) * array(head_size) * array(element_size)
    lost = np.clip(1.0 - room / keys, 0.0, 1.0)
    return np.asarray(1.0 + (np.maximum(shared / together, 1.0) - 1.0) * lost)


def resident_share(working_set: Numeric, cache_capacity: Numeric) -> Array:
    r"""Share of what is read in every step that the last-level cache still holds from the step before.

    A step passes over all of it once: a cache that is smaller has replaced each part before it is read again, one twice
    as large keeps all. Between them some sets of the cache are full and others are not:

    .. math:: h = \min\left(\max\left(\frac{C - W}{C / 2}, 0\right), 1\right)

    Heuristic, this work, after the cyclic scans of [1]_.

    Parameters
    ----------
    working_set : numeric
        Bytes W that every step reads on an accelerator. [B]
    cache_capacity : numeric
        Last-level cache C; NaN: nothing stays. [B]

    Returns
    -------
    share : numeric
        0 where the working set is larger than the cache, 1 where half of the cache holds it. [-]

    References
    ----------
    .. [1] P. J. Denning, "The working set model for program behavior", Commun. ACM 11(5), 1968,
       doi:10.1145/363095.363141.

    Examples
    --------
    Working sets of 20, 75 and 200 MB beside 100 MB:

    >>> resident_share(np.array([20.0, 75.0, 200.0]), 100.0).tolist()
    [1.0, 0.5, 0.0]
    """
    needed, room = np.broadcast_arrays(array(working_set), np.nan_to_num(array(cache_capacity), posinf=np.inf))
    filled = np.divide(needed, room, out=np.full(needed.shape, np.inf), where=room > 0.0)
    share = np.clip((1.0 - filled) / (1.0 - CACHE_SHARE), 0.0, 1.0)
    return np.asarray(np.where(np.isnan(needed), np.nan, share))


def resident_bandwidth(share: Numeric, memory_bandwidth: Numeric, cache_bandwidth: Numeric) -> Array:
    r"""Bandwidth of reads of which the last-level cache answers a share.

    .. math:: B = \left(\frac{1 - h}{B_m} + \frac{h}{B_c}\right)^{-1}

    Heuristic, this work.

    Parameters
    ----------
    share : numeric
        Share h of the bytes that are in the cache. [-]
    memory_bandwidth : numeric
        Bandwidth of the main memory. [B/s]
    cache_bandwidth : numeric
        Bandwidth of the last-level cache; NaN or infinite: all is read at that of the main memory. [B/s]

    Returns
    -------
    bandwidth : numeric
        That of the main memory at least. [B/s]

    Examples
    --------
    Half of the bytes at four times the rate:

    >>> float(resident_bandwidth(0.5, 1.0, 4.0))
    1.6
    """
    main, cache = array(memory_bandwidth), array(cache_bandwidth)
    cache = np.where(np.isfinite(cache), np.maximum(cache, main), main)
    hits = array(share)
    return np.asarray(1.0 / ((1.0 - hits) / main + hits / cache))
