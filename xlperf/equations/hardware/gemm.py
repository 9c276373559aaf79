r"""Matrix products: tiles that fit the shared memory, traffic through the main memory, and the time of a GEMM.

A library cuts a product into tiles whose operands fit the shared memory of a multiprocessor. Concurrent tiles share
rows and columns through the last-level cache; panels that the cache evicts are read again from the main memory.
Arguments broadcast to (rows, operators); columns of the device and calibration constants have shape (rows, 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div, known_or, some
from xlperf.equations.hardware import roofline

LEAST_SIDE = 64.0  # smallest number of whole rows or columns that stay in the cache: the side of a small tile [-]
_LARGE_TILES = [(512.0, 256.0, 1.0), (256.0, 256.0, 1.0), (256.0, 128.0, 1.0), (128.0, 256.0, 1.0), (128.0, 128.0, 1.0),
                (128.0, 64.0, 1.0), (64.0, 64.0, 1.0), (128.0, 64.0, 4.0)]  # fmt: skip
_NARROW_TILES = [(32.0, 128.0, 1.0), (16.0, 128.0, 1.0), (16.0, 128.0, 4.0)]
TILES = {
    "training": np.array(_LARGE_TILES).T[:, :, None, None],
    "serving": np.array(_LARGE_TILES + _NARROW_TILES).T[:, :, None, None],
}
"""Tiles of libraries: rows, columns, splits of the depth, on an axis before the rows of plans; the first two need more
shared memory than any accelerator has today. [-]"""
_FREE_TILES = np.array([(rows, columns, 1.0) for rows in (64.0, 128.0) for columns in np.arange(48.0, 177.0, 16.0)]).T
FREE_TILES = _FREE_TILES[:, :, None, None]  # tiles of libraries with any multiple of 16 columns, as :data:`TILES` [-]
USUAL_SHARED_MEMORY = 98304.0  # shared memory if none is stated: room for the tiles that every library has [B]
SUM_WIDTH = 2.0  # size of a partial sum, FP32, over the size of an output, 16 bits [-]
INSTRUCTION_ROWS = 8.0
"""Rows of the shortest matrix instruction with swapped operands; fewer rows are padded to it. [-]"""
FEW_ROWS = 16.0  # largest number of rows with kernels for a matrix times few vectors [-]
SLOWEST_STREAM = 3.0
"""Longest time of a product of few rows over its memory time: split-K lets enough multiprocessors read. [-]"""
MOST_SPLITS = TILES["serving"][2].max()  # most splits of the depth, each with its own start [-]
_MANY = 2048  # number of products from which tiles are tried one by one, to stay in the processor's cache [-]


_STAGE_DEPTH, _SUM_SIZE, _REGISTERS = 128.0, 4.0, 131072.0
"""Bytes of a stage along the depth, of a sum in FP32, and of the sums that registers hold. [B]"""


def _tile_memory(tile_rows: Numeric, tile_columns: Numeric) -> Array:
    """Shared memory of a tile of a product: two stages of both panels, and sums beyond the registers. [B]

    Heuristic, this work, after the software pipelines of tiled products (CUTLASS, efficient_gemm.md). Tiles of 256 x
    128 fit 96 KiB:

    >>> float(_tile_memory(256.0, 128.0)) / 1024.0
    96.0
    """
    rows, columns = array(tile_rows), array(tile_columns)
    sums = np.maximum(_SUM_SIZE * rows * columns - _REGISTERS, 0.0)
    return np.asarray(roofline.STAGES * _STAGE_DEPTH * (rows + columns) + sums)


def product_traffic(
    m: Numeric, n: Numeric, k: Numeric, batch: Numeric, element_size: Numeric, output_element_size: Numeric
) -> Array:
    r"""Compulsory traffic of a GEMM: both inputs read once, the output written once.

    .. math:: T = b\,(e\,k\,(m + n) + e_{out}\,m n)

    Source: NVIDIA, "Matrix Multiplication Background User's Guide", section 1, arithmetic intensity.

    >>> float(product_traffic(2.0, 3.0, 4.0, 1.0, 2.0, 4.0))  # 2 x 4 x (2 + 3) bytes of inputs, 4 x 2 x 3 of outputs
    64.0

    Parameters
    ----------
    m, n, k, batch : Rows of the first and columns of the second matrix, depth; equal products in the call. [-]
    element_size, output_element_size : Size of one element of the inputs, and of the output. [B]

    Returns
    -------
    traffic : Bytes through the main memory. [B]
    """
    rows, columns = array(m), array(n)
    inputs = array(element_size) * array(k) * (rows + columns)
    return np.asarray(array(batch) * (inputs + array(output_element_size) * rows * columns))


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
    in_order: Numeric = 0.0,
) -> Array:
    r"""Traffic of a GEMM through the main memory, from the tiles that run at the same time and the last-level cache.

    Concurrent tiles cover a near-square block of the outputs, g_1 by g_2, along the shorter side l_1 and the longer
    side l_2, and share its panels in a window of the cache (R: half of the cache). The cheapest of three orders counts:
    both inputs stream past the block, or whole rows of one input stay while the other input streams.

    .. math:: T = b \left(e_{out} m n + e k \min\left(m n \left(\tfrac{1}{g_1} + \tfrac{1}{g_2}\right),\;
        l_1 + l_2 \tfrac{l_1}{K},\; l_2 + l_1 \tfrac{l_2}{K}\right)\right), \quad K = \frac{R}{e k}

    .. math:: g_1 = \min\left(l_1, \sqrt{N T_m T_n}, \tfrac{L}{2}\right), \quad
        g_2 = \min\left(l_2, \tfrac{N T_m T_n}{g_1}, L - g_1\right), \quad L = \frac{R}{\min(e k, d)}

    A library that launches tiles column by column reads the second input once, and the first input again for each band
    of :math:`\max(T_n, N T_m T_n / m)` columns unless the whole cache holds it (least recently used is evicted first).
    Never below the bound of [1]_ and [2]_. Heuristic, this work, after the blocks of [3]_.

    One tile at a time and no cache: each of 2 x 2 tiles reads its panels of 4 x 128 x 2 bytes anew:

    >>> float(product_memory_traffic(256.0, 256.0, 4.0, 1.0, 2.0, 0.0, 128.0, 128.0, 1.0, 0.0))
    8192.0

    Parameters
    ----------
    m, n, k, batch : Rows of the first and columns of the second matrix, depth; equal products in the call. [-]
    element_size, output_element_size : Size of one element of the inputs, and of the output. [B]
    tile_rows, tile_columns : Rows and columns of outputs of one tile. [-]
    tiles_at_once : Multiprocessors; NaN: all tiles run at the same time. [-]
    cache_capacity : Last-level cache; NaN or infinite: both inputs are read once. [B]
    window_depth : Depth d by which concurrent tiles drift apart. [B]
    in_order : 1 for a library that launches tiles column by column, 0 for blocks of tiles. [-]

    Returns
    -------
    traffic : Bytes through the main memory. [B]

    References
    ----------
    .. [1] J.-W. Hong and H. T. Kung, "I/O complexity: the red-blue pebble game", STOC 1981, doi:10.1145/800076.802486.
    .. [2] T. M. Smith et al., "A tight I/O lower bound for matrix multiplication", 2019, arXiv:1702.02017.
    .. [3] K. Goto and R. van de Geijn, ACM TOMS 34(3), 2008, doi:10.1145/1356052.1356053.
    """
    rows, columns, depth = array(m), array(n), array(element_size) * array(k)
    room = known_or(roofline.CACHE_SHARE * array(cache_capacity), np.inf)
    height, width = array(tile_rows), array(tile_columns)
    # Block of outputs that concurrent tiles cover: side by other, each within the window of the cache.
    covered = known_or(tiles_at_once, np.inf) * height * width
    short, long = np.minimum(rows, columns), np.maximum(rows, columns)
    window = room / np.minimum(depth, array(window_depth))
    side = np.maximum(np.minimum(np.sqrt(covered), 0.5 * window), np.minimum(height, width))
    side = np.maximum(np.minimum(side, short), 1.0)
    other = np.maximum(np.minimum(covered / side, window - side), np.maximum(height, width))
    other = np.maximum(np.minimum(other, long), 1.0)
    # Rows and columns of whole depth read from the main memory: both inputs stream, or one of them stays in the cache.
    resident = room / depth
    least = rows * columns * (1.0 / side + 1.0 / other)
    legal = resident >= np.minimum(LEAST_SIDE, short)
    resident = np.where(legal, resident, 1.0)
    with_short = short + long * np.maximum(short / resident, 1.0)
    with_long = long + short * np.maximum(long / resident, 1.0)
    least = np.where(legal, np.minimum(least, np.minimum(with_short, with_long)), least)
    least = np.maximum(least, rows + columns)
    if some(array(in_order) != 0.0):  # of few libraries
        bands = np.maximum(columns / np.maximum(width, covered / rows), 1.0)
        streamed = columns + rows * np.where(depth * rows > room / roofline.CACHE_SHARE, bands, 1.0)
        least = least + array(in_order) * np.maximum(streamed - least, 0.0)
    return np.asarray(array(batch) * (depth * least + array(output_element_size) * rows * columns))


def tiled_product_time(
    m: Numeric,
    n: Numeric,
    k: Numeric,
    batch: Numeric,
    element_size: Numeric,
    tile_rows: Numeric,
    tile_columns: Numeric,
    num_splits: Numeric,
    *,
    peak_flop_rate: Numeric,
    cache_bandwidth: Numeric,
    num_multiprocessors: Numeric,
    compute_efficiency: Numeric = 1.0,
    cache_share: Numeric = 0.0,
    wave_time: Numeric = 0.0,
    sum_size: Numeric = 0.0,
    alone: Numeric = 0.0,
) -> Array:
    r"""Compute time of a GEMM cut into tiles of one shape, in waves over the multiprocessors.

    A tile computes its outputs over k / s, padding included; a share of its cache reads r is exposed, and a wave of
    short tiles is no faster than its reads. Partial sums of split-K pass through the cache.

    .. math:: t = \left\lceil \frac{s b \lceil m / T_m \rceil \lceil n / T_n \rceil}{p} \right\rceil \left(\frac{p k}{s}
        \max\left(\frac{2 T_m T_n}{\eta P} + c\,r,\; [\text{alone}]\,r\right) + s\,t_w\right)
        + [s > 1] \frac{2 s\,e_{sum}\,b m n}{B_{cache}}, \quad r = \frac{(T_m + T_n) e}{B_{cache}}

    Tiles and waves after [1]_, the roofline after [2]_; the exposed share of reads is a heuristic, this work.

    2 x 256 x 256 x 100 FLOP at 131072 FLOP/s, one wave of four tiles on four multiprocessors:

    >>> peak = {"peak_flop_rate": 131072.0, "cache_bandwidth": np.inf, "num_multiprocessors": 4.0}
    >>> float(tiled_product_time(256.0, 256.0, 100.0, 1.0, 2.0, 128.0, 128.0, 1.0, **peak))
    100.0

    Parameters
    ----------
    m, n, k, batch : Rows of the first and columns of the second matrix, depth; equal products in the call. [-]
    element_size : Size of one element of the inputs. [B]
    tile_rows, tile_columns : Rows and columns of outputs of one tile. [-]
    num_splits : Splits s of the depth. [-]
    peak_flop_rate : Dense peak of the whole accelerator. [FLOP/s]
    cache_bandwidth : Bandwidth of the last-level cache; infinite: no limit. [B/s]
    num_multiprocessors : Tiles of one wave; NaN: waves and their start are not modelled. [-]
    compute_efficiency : Efficiency of a full wave. [-]
    cache_share : Exposed share of the reads from the cache. [-]
    wave_time : Time to start and drain one wave, per split. [s]
    sum_size : Size of one sum over a part of the depth. [B]
    alone : 1 if each multiprocessor reads its panels alone, so that the cache may bind; 0 if tiles share panels. [-]

    Returns
    -------
    time : Time of the matrix units. [s]

    References
    ----------
    .. [1] NVIDIA, "Matrix Multiplication Background User's Guide", sections 2 and 3.
    .. [2] S. Williams, A. Waterman and D. Patterson, "Roofline", Commun. ACM 52(4), 2009, doi:10.1145/1498765.1498785.
    """
    height, width, splits = array(tile_rows), array(tile_columns), array(num_splits)
    units = array(num_multiprocessors)
    modelled = ~np.isnan(units)
    at_once = np.where(modelled, units, 1.0)
    # Time per unit of depth of a tile: arithmetic, and reads of its two panels.
    arithmetic = 2.0 * height * width / (array(compute_efficiency) * array(peak_flop_rate))
    reading = (height + width) * array(element_size) / array(cache_bandwidth)
    start = np.where(modelled, wave_time, 0.0) * splits
    tiles = ceil_div(m, height) * ceil_div(n, width) * (array(batch) * splits)
    per_depth = np.maximum(arithmetic + array(cache_share) * reading, array(alone) * reading)
    # Waves of tiles, and the partial sums of split-K.
    one_wave = per_depth * (at_once / splits) * array(k) + start
    sums = np.where(splits > 1.0, 2.0 * splits, 0.0) * array(sum_size)
    outputs = array(m) * array(n) * array(batch)
    return np.asarray(np.ceil(tiles / at_once) * one_wave + sums * (outputs / array(cache_bandwidth)))


def _few_rows_time(
    m: Numeric,
    n: Numeric,
    k: Numeric,
    batch: Numeric,
    *,
    peak_flop_rate: Numeric,
    compute_efficiency: Numeric = 1.0,
    start_time: Numeric = 0.0,
    instruction_rows: Numeric = INSTRUCTION_ROWS,
    most_rows: Numeric = FEW_ROWS,
) -> Array:
    """Compute time of a GEMM of few rows, infinite for more: a GEMV or a product with swapped operands. [s]

    The rows are the short side of an instruction (PTX ISA: warpgroup shapes m64nNk16 with N any multiple of 8); split-K
    keeps all multiprocessors busy (CUTLASS, "Parallelized reductions"). One row is padded to eight: 2 x 8 x 100 x 1,000
    FLOP at 1.6 MFLOP/s. 17 rows take tiles.

    >>> _few_rows_time(np.array([1.0, 17.0]), 100.0, 1000.0, 1.0, peak_flop_rate=1.6e6).tolist()
    [1.0, inf]
    """
    rows, shortest = array(m), array(instruction_rows)
    work = 2.0 * (ceil_div(rows, shortest) * shortest) * array(n) * array(k) * array(batch)
    time = work / (array(compute_efficiency) * array(peak_flop_rate)) + array(start_time)
    return np.where(rows > array(most_rows), np.inf + 0.0 * time, time) + 0.0 * array(most_rows)


def _many_products_time(
    device: roofline.Device,
    peak_flop_rate: Array,
    constants: Mapping[str, Array],
    m: Array,
    n: Array,
    k: Array,
    batch: Array,
    element_size: Array,
    sum_size: Array,
    tiles: Array,
    fits: np.ndarray,
) -> Array:
    """Least :func:`tiled_product_time` over tile shapes, bit for bit, with common factors computed once."""
    # Factors of one tile side, of a pair of sides, or of the splits of the depth alone.
    units = device.num_multiprocessors
    modelled = ~np.isnan(units)
    at_once = np.where(modelled, units, 1.0)
    wave_time = np.where(modelled, constants["wave_time"], 0.0)
    peak = constants["compute_efficiency"] * peak_flop_rate
    m, n, k, batch = np.broadcast_arrays(m, n, k, batch)
    shapes = tiles[:, :, 0, 0].T.tolist()
    tall = {height: np.ceil(m / height) for height in {shape[0] for shape in shapes}}
    wide = {width: np.ceil(n / width) for width in {shape[1] for shape in shapes}}
    calls = {splits: batch * splits for splits in {shape[2] for shape in shapes}}
    share, alone = constants["cache_share"], _reads_alone(constants)
    edges = {height + width for height, width, _ in shapes}
    reading = {edge: edge * element_size / device.l2_bandwidth for edge in edges}
    arithmetic = {area: 2.0 * area / peak for area in {height * width for height, width, _ in shapes}}
    outputs = m * n * batch / device.l2_bandwidth
    best: Array | None = None
    for (height, width, splits), legal in zip(shapes, fits, strict=True):
        # One tile along the whole depth: arithmetic, and reads from the last-level cache.
        read = reading[height + width]
        time = np.maximum(arithmetic[height * width] + share * read, alone * read)
        time = (time * (at_once / splits)) * k
        time += wave_time * splits
        # Whole waves of tiles over the multiprocessors; splits write and read their sums.
        waves = tall[height] * wide[width]
        waves *= calls[splits]
        waves /= at_once
        time *= np.ceil(waves, out=waves)
        if splits > 1.0:
            time += 2.0 * splits * sum_size * outputs
        if not legal.all():
            time = np.where(legal, time, np.inf)
        best = time if best is None else np.minimum(best, time, out=best)
    assert best is not None
    return best


def _reads_alone(constants: Mapping[str, Array]) -> Array:
    """1: short tiles only, launched column by column; 0: tiles chosen for the bandwidth of the last-level cache."""
    return np.where(constants["largest_tile_rows"] < TILES["training"][0].min(), 1.0, 0.0)


_Tiles = tuple[Array, np.ndarray, tuple[Array, Array]]


def _fitting(device: roofline.Device, constants: Mapping[str, Array], stack: str) -> _Tiles:
    """Tiles that fit the shared memory of any device, a mask of the tiles that fit each, and the largest of each. The
    smallest tile always fits. If the tallest tile of a library is below the minimum of the stack, all shorter tiles are
    allowed; libraries with any number of columns do not split the depth.
    """
    room = known_or(device.shared_memory_capacity, USUAL_SHARED_MEMORY)
    given = room, *(constants[name] for name in ("any_tile_columns", "largest_tile_rows", "least_tile_rows"))
    if all(len(values) == 1 or (values == values[:1]).all() for values in given):  # one device and library, or several
        given = tuple(values[:1] for values in given)
    if all(values.shape == (1, 1) for values in given):
        return _fitting_one(stack, *(values.item() for values in given))
    return _fitting_each(stack, *given)


@lru_cache(maxsize=256)
def _fitting_one(stack: str, *given: float) -> _Tiles:
    return _fitting_each(stack, *(np.array([[value]]) for value in given))


def _fitting_each(stack: str, room: Array, any_columns: Array, largest_rows: Array, library_rows: Array) -> _Tiles:
    tiles, free = TILES["serving"], any_columns != 0.0
    in_library, shortest = np.True_, tiles[0].min()
    if free.any():  # few libraries
        usual = np.arange(tiles.shape[1] + FREE_TILES.shape[1])[:, None, None] < tiles.shape[1]
        tiles = np.concatenate([tiles, FREE_TILES], axis=1)
        in_library = np.where(free, (tiles[2] == 1.0) & (tiles[0] >= LEAST_SIDE), usual)
        shortest = np.where(free, LEAST_SIDE, shortest)
    most_rows = np.maximum(largest_rows, shortest)
    # Tiles between the shortest and the tallest of library and stack that fit the shared memory.
    tallest = np.where(in_library & (tiles[0] <= most_rows), tiles[0], 0.0).max(axis=0)
    least_rows = np.maximum(TILES[stack][0].min(), library_rows)
    legal = in_library & (tiles[0] >= np.minimum(least_rows, tallest)) & (tiles[0] <= most_rows)
    needed = _tile_memory(tiles[0], tiles[1])
    fits = legal & (needed <= np.maximum(room, np.where(legal, needed, np.inf).min(axis=0)))
    used = fits.any(axis=(1, 2)) | (fits.size == 0)  # without devices every tile stays
    tiles, fits = tiles[:, used], fits[used]
    largest = np.where(fits, tiles[0] * tiles[1], 0.0).argmax(axis=0)
    return tiles, fits, (tiles[0][largest][..., 0, 0], tiles[1][largest][..., 0, 0])


def gemm_time(
    device: roofline.Device,
    constants: Mapping[str, Array],
    m: Numeric,
    n: Numeric,
    k: Numeric,
    batch: Numeric,
    element_size: Numeric,
    output_element_size: Numeric,
    *,
    rate: roofline.MatrixRate | None = None,
    stack: str = "training",
) -> Array:
    """Time of a (batched) GEMM: ``batch`` products of an (m, k) by a (k, n) matrix.

    Launch, conversion of inputs, then compute and memory time overlapped but for the serial share. The library picks
    its fastest tile that fits the shared memory; few rows use short instructions; the power limit slows long products.
    ``rate``: matrix units at the precision of the product; the plan's by default.
    """
    rate = rate or device.rate()
    # Weights of few rows stream at a rate of their own.
    few = array(m) <= FEW_ROWS
    peak = rate.peak_flop_rate
    if some(few) and some(device.stream_ratio != 1.0):
        peak = np.where(few, device.stream_ratio, 1.0) * peak
    tiles, fits, block = _fitting(device, constants, stack)
    heights, widths, splits = tiles
    sum_size = SUM_WIDTH * array(output_element_size)
    given = array(m), array(n), array(k), array(batch), array(element_size)
    # Compute time of the fastest tile at the boost clock, then under the power limit.
    burst = (
        _many_products_time(device, peak, constants, *given, sum_size, tiles, fits)
        if np.size(m) >= _MANY
        else np.where(
            fits,
            tiled_product_time(
                *given,
                heights,
                widths,
                splits,
                peak_flop_rate=peak,
                cache_bandwidth=device.l2_bandwidth,
                num_multiprocessors=device.num_multiprocessors,
                compute_efficiency=constants["compute_efficiency"],
                cache_share=constants["cache_share"],
                wave_time=constants["wave_time"],
                sum_size=sum_size,
                alone=_reads_alone(constants),
            ),
            np.inf,
        ).min(axis=0)
    )
    energy = rate.product_energy(constants, 2.0 * (array(m) * array(n) * array(k) * array(batch)))

    def sustained(time: Array) -> Array:
        # Kernels start at the boost clock, until the power limit throttles them (heuristic, this work; H. He,
        # "Strangely, matrix multiplications on GPUs run faster when given predictable data", 2024, thonking.ai).
        limited = roofline.clock_limited_time(time, energy, rate.arithmetic_power)
        together = time + constants["boost_time"]
        throttled = time / np.where(together == 0.0, 1.0, together)
        return np.asarray(time + np.maximum(limited - time, 0.0) * throttled)

    compute = sustained(burst)
    # Memory time, and conversion of the first input before the product starts.
    machine = device.num_multiprocessors, device.l2_capacity
    traffic = product_memory_traffic(
        m, n, k, batch, element_size, output_element_size, *block, *machine, in_order=_reads_alone(constants)
    )
    memory = roofline.transfer_time(traffic, device.memory_bandwidth, constants["memory_efficiency"])
    conversion = constants["input_traffic"] * (array(batch) * array(m) * array(k)) / device.memory_bandwidth
    fixed = constants["launch_time"] + conversion
    longer = compute
    if some(few):  # short instructions, and weights that stream within a few times the memory time
        start = constants["wave_time"]
        rates = {"peak_flop_rate": rate.peak_flop_rate, "compute_efficiency": constants["compute_efficiency"]}
        shortest = np.minimum(_few_rows_time(m, n, k, batch, **rates, start_time=start), burst)
        least = sustained(np.where(few, shortest, burst))
        streamed = np.minimum(compute, SLOWEST_STREAM * memory + MOST_SPLITS * start)
        longer = np.where(few, np.maximum(least, streamed), compute)
    return np.asarray(fixed + (np.maximum(longer, memory) + constants["serial_share"] * np.minimum(compute, memory)))
