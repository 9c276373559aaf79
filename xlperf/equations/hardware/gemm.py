r"""Matrix products: tiles that fit the shared memory, traffic through the main memory, and the time of a GEMM.

A product is cut into tiles whose operands fit the shared memory of a multiprocessor; the tiles that run at the same
time share rows and columns through the last-level cache. What that cache cannot hold until it is used again is read
anew from the main memory. Arguments broadcast to (rows, operators); columns of the device and calibration constants
have shape (rows, 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div, known_or, some
from xlperf.equations.hardware.roofline import (
    CACHE_SHARE,
    STAGES,
    Device,
    clock_limited_time,
    sustained_time,
    transfer_time,
)

LEAST_SIDE = 64.0
"""Rows or columns of whole depth that are worth keeping: a small tile. [-]"""
_LARGE_TILES = [(512.0, 256.0, 1.0), (256.0, 256.0, 1.0), (256.0, 128.0, 1.0), (128.0, 256.0, 1.0), (128.0, 128.0, 1.0),
                (128.0, 64.0, 1.0), (64.0, 64.0, 1.0), (128.0, 64.0, 4.0)]  # fmt: skip
_NARROW_TILES = [(32.0, 128.0, 1.0), (16.0, 128.0, 1.0), (16.0, 128.0, 4.0)]
TILES = {
    "training": np.array(_LARGE_TILES).T[:, :, None, None],
    "serving": np.array(_LARGE_TILES + _NARROW_TILES).T[:, :, None, None],
}
"""Tiles that libraries choose among where they fit the shared memory: rows, columns, pieces that the depth is cut into,
on an axis before the rows; the first two are for more shared memory than any accelerator has today. [-]"""
_FREE_TILES = np.array([(rows, columns, 1.0) for rows in (64.0, 128.0) for columns in np.arange(48.0, 177.0, 16.0)]).T
FREE_TILES = _FREE_TILES[:, :, None, None]
"""Tiles of libraries whose tiles have any multiple of 16 columns, as :data:`TILES`. [-]"""
USUAL_SHARED_MEMORY = 98304.0
"""Shared memory where none is stated: room for the tiles that every library has. [B]"""
SUM_WIDTH = 2.0
"""Size of a sum over a part of the depth, FP32, over that of an output, 16 bits. [-]"""
INSTRUCTION_ROWS = 8.0
"""Rows of the shortest instruction of matrix units whose operands are swapped: few rows are padded to it. [-]"""
FEW_ROWS = 16.0
"""Rows up to which libraries have kernels for products of a matrix and few vectors. [-]"""
SLOWEST_STREAM = 3.0
"""Longest time of a product of few rows, over that of its bytes through the main memory: its depth is cut until as many
multiprocessors read. [-]"""
MOST_SPLITS = TILES["serving"][2].max()
"""Pieces that libraries cut the depth into at most, each with a start of its own. [-]"""
_MANY = 2048
"""Products from which on tiles are tried one by one: all at once would leave the processor's cache. [-]"""


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
    tile_rows, tile_columns : numeric
        Rows and columns of outputs of one tile. [-]
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


def product_traffic(
    m: Numeric, n: Numeric, k: Numeric, batch: Numeric, element_size: Numeric, output_element_size: Numeric
) -> Array:
    r"""Compulsory traffic of a GEMM: both inputs read once, the output written once.

    .. math:: T = b\,(e\,k\,(m + n) + e_{out}\,m n)

    Parameters
    ----------
    m, n, k, batch : numeric
        Rows of the first and columns of the second matrix, depth; equal products in the call. [-]
    element_size, output_element_size : numeric
        Size of one element of the inputs, and of the output. [B]

    Returns
    -------
    traffic : numeric
        Bytes through the main memory. [B]

    References
    ----------
    .. [1] NVIDIA, "Matrix Multiplication Background User's Guide", section 1, arithmetic intensity.

    Examples
    --------
    2 x 4 x (2 + 3) bytes of inputs, 4 x 2 x 3 of outputs:

    >>> float(product_traffic(2.0, 3.0, 4.0, 1.0, 2.0, 4.0))
    64.0
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

    A library that starts its tiles in order, all rows of the outputs before the next column of tiles, reads the second
    input once and the first one anew for each band of :math:`\max(T_n, N T_m T_n / m)` columns, unless the whole cache
    holds it: what is read in turns is gone before it is read again where the least recently used goes first.

    Parameters
    ----------
    m, n, k, batch : numeric
        Rows of the first and columns of the second matrix, depth; equal products in the call. [-]
    element_size, output_element_size : numeric
        Size of one element of the inputs, and of the output. [B]
    tile_rows, tile_columns : numeric
        Rows and columns of outputs of one tile. [-]
    tiles_at_once : numeric
        Multiprocessors; NaN: all tiles run at the same time. [-]
    cache_capacity : numeric
        Last-level cache; NaN or infinite: inputs are read once. [B]
    window_depth : numeric, default 2048.0
        Depth d by which tiles that run at the same time are apart. [B]
    in_order : numeric, default 0.0
        1 for a library that starts its tiles in order, 0 for one that groups them into blocks. [-]

    Returns
    -------
    traffic : numeric
        Bytes through the main memory. [B]

    References
    ----------
    .. [1] J.-W. Hong and H. T. Kung, "I/O complexity: the red-blue pebble game", STOC 1981, doi:10.1145/800076.802486.
    .. [2] T. M. Smith et al., "A tight I/O lower bound for matrix multiplication", 2019, arXiv:1702.02017.
    .. [3] K. Goto and R. van de Geijn, ACM TOMS 34(3), 2008, doi:10.1145/1356052.1356053.

    Examples
    --------
    One tile at a time and no cache: each of 2 x 2 tiles reads its panels of 4 x 128 x 2 bytes anew:

    >>> float(product_memory_traffic(256.0, 256.0, 4.0, 1.0, 2.0, 0.0, 128.0, 128.0, 1.0, 0.0))
    8192.0
    """
    rows, columns, depth = array(m), array(n), array(element_size) * array(k)
    room = known_or(CACHE_SHARE * array(cache_capacity), np.inf)
    height, width = array(tile_rows), array(tile_columns)
    covered = known_or(tiles_at_once, np.inf) * height * width
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
    if some(array(in_order) != 0.0):  # of few libraries
        bands = np.maximum(columns / np.maximum(width, covered / rows), 1.0)
        streamed = columns + rows * np.where(depth * rows > room / CACHE_SHARE, bands, 1.0)
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

    Every tile computes ``tile_rows x tile_columns`` outputs over ``k / num_splits``, padding included, and reads its
    two panels from the last-level cache; a share of that reading is not hidden behind the arithmetic. A wave of short
    tiles, whose panels no neighbours share, is no faster than its reading. Sums of a depth that is cut are written to
    that cache and read again.

    .. math::

        t = \left\lceil \frac{s b \lceil m / T_m \rceil \lceil n / T_n \rceil}{p} \right\rceil \left(\frac{p k}{s}
        \max\left(\frac{2 T_m T_n}{\eta P} + c\,r,\; [\text{alone}]\,r\right) + s\,t_w\right)
        + [s > 1] \frac{2 s\,e_{sum}\,b m n}{B_{cache}}, \quad r = \frac{(T_m + T_n) e}{B_{cache}}

    Tiles and waves after [1]_; the part of the reading that is not hidden is a heuristic, this work.

    Parameters
    ----------
    m, n, k, batch : numeric
        Rows of the first and columns of the second matrix, depth; equal products in the call. [-]
    element_size : numeric
        Size of one element of the inputs. [B]
    tile_rows, tile_columns : numeric
        Rows and columns of outputs of one tile. [-]
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
    alone : numeric, default 0.0
        1 where each multiprocessor reads its panels alone and the cache may bind; 0 where tiles are tall enough, or
        neighbours share panels, so that it does not. [-]

    Returns
    -------
    time : numeric
        Time of the matrix units. [s]

    References
    ----------
    .. [1] NVIDIA, "Matrix Multiplication Background User's Guide", sections 2 and 3.
    .. [2] S. Williams, A. Waterman and D. Patterson, "Roofline", Commun. ACM 52(4), 2009, doi:10.1145/1498765.1498785.

    Examples
    --------
    2 x 256 x 256 x 100 FLOP at 131072 FLOP/s, one wave of four tiles on four multiprocessors:

    >>> peak = {"peak_flop_rate": 131072.0, "cache_bandwidth": np.inf, "num_multiprocessors": 4.0}
    >>> float(tiled_product_time(256.0, 256.0, 100.0, 1.0, 2.0, 128.0, 128.0, 1.0, **peak))
    100.0
    """
    height, width, splits = array(tile_rows), array(tile_columns), array(num_splits)
    units = array(num_multiprocessors)
    modelled = ~np.isnan(units)
    at_once = np.where(modelled, units, 1.0)
    arithmetic = 2.0 * height * width / (array(compute_efficiency) * array(peak_flop_rate))
    reading = (height + width) * array(element_size) / array(cache_bandwidth)
    start = np.where(modelled, wave_time, 0.0) * splits
    tiles = ceil_div(m, height) * ceil_div(n, width) * (array(batch) * splits)
    per_depth = np.maximum(arithmetic + array(cache_share) * reading, array(alone) * reading)
    one_wave = per_depth * (at_once / splits) * array(k) + start
    sums = np.where(splits > 1.0, 2.0 * splits, 0.0) * array(sum_size)
    outputs = array(m) * array(n) * array(batch)
    return np.asarray(np.ceil(tiles / at_once) * one_wave + sums * (outputs / array(cache_bandwidth)))


def few_rows_time(
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
    r"""Compute time of a GEMM of few rows: a GEMV or a product whose operands are swapped.

    The few rows are the short side of an instruction, and the depth is cut so that all multiprocessors are busy from
    the first to the last weight. Each weight passes through the last-level cache once, on its way from the main memory.

    .. math:: t = \frac{2 r \lceil m / r \rceil\, b\,n k}{\eta P} + t_w, \quad m \le m_{max}

    Parameters
    ----------
    m, n, k, batch : numeric
        Rows of the first and columns of the second matrix, depth; equal products in the call. [-]
    peak_flop_rate : numeric
        Dense peak of the whole accelerator. [FLOP/s]
    compute_efficiency : numeric, default 1.0
        Share of the peak that full instructions reach. [-]
    start_time : numeric, default 0.0
        Time t_w to start and drain the one wave. [s]
    instruction_rows : numeric, default 8.0
        Rows r of the shortest instruction. [-]
    most_rows : numeric, default 16.0
        Rows up to which there are such kernels. [-]

    Returns
    -------
    time : numeric
        Time of the matrix units; infinite for more rows. [s]

    References
    ----------
    .. [1] NVIDIA, "Parallel Thread Execution ISA": warpgroup shapes m64nNk16 with N any multiple of 8.
    .. [2] NVIDIA, "CUTLASS: efficient GEMM in CUDA", section "Parallelized reductions" (split-K).

    Examples
    --------
    One row is padded to eight: 2 x 8 x 100 x 1,000 FLOP at 1.6 MFLOP/s. 17 rows take tiles.

    >>> few_rows_time(np.array([1.0, 17.0]), 100.0, 1000.0, 1.0, peak_flop_rate=1.6e6).tolist()
    [1.0, inf]
    """
    rows, shortest = array(m), array(instruction_rows)
    work = 2.0 * (ceil_div(rows, shortest) * shortest) * array(n) * array(k) * array(batch)
    time = work / (array(compute_efficiency) * array(peak_flop_rate)) + array(start_time)
    return np.where(rows > array(most_rows), np.inf + 0.0 * time, time) + 0.0 * array(most_rows)


def _many_products_time(
    device: Device,
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
    """Least :func:`tiled_product_time` over tile shapes, bit for bit; common factors are computed once."""
    units = device.num_multiprocessors
    modelled = ~np.isnan(units)
    at_once = np.where(modelled, units, 1.0)
    wave_time = np.where(modelled, constants["wave_time"], 0.0)
    peak = constants["compute_efficiency"] * device.peak_flop_rate
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
        read = reading[height + width]
        time = np.maximum(arithmetic[height * width] + share * read, alone * read)
        time = (time * (at_once / splits)) * k
        time += wave_time * splits
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
    """1 for libraries with short tiles alone, started in order; others choose what the last-level cache can feed."""
    return np.where(constants["largest_tile_rows"] < TILES["training"][0].min(), 1.0, 0.0)


def _fitting(
    device: Device, constants: Mapping[str, Array], stack: str
) -> tuple[Array, np.ndarray, tuple[Array, Array]]:
    """Tiles that fit the shared memory of any of the devices, which of them fit each, and the largest of each.

    The smallest tile always fits; where the shared memory is not known it is the usual one. A library whose tallest
    tile is shorter than those of the stack has all that are no taller; one with any number of columns cuts no depth.
    Tiles shorter than those of the library are not among them.
    """
    room = device.shared_memory_capacity
    room = np.where(np.isnan(room), USUAL_SHARED_MEMORY, room)
    tiles, free = TILES["serving"], constants["any_tile_columns"] != 0.0
    own, shortest = np.True_, tiles[0].min()
    if free.any():  # of few libraries
        usual = np.arange(tiles.shape[1] + FREE_TILES.shape[1])[:, None, None] < tiles.shape[1]
        tiles = np.concatenate([tiles, FREE_TILES], axis=1)
        own = np.where(free, (tiles[2] == 1.0) & (tiles[0] >= LEAST_SIDE), usual)
        shortest = np.where(free, LEAST_SIDE, shortest)
    most_rows = np.maximum(constants["largest_tile_rows"], shortest)
    tallest = np.where(own & (tiles[0] <= most_rows), tiles[0], 0.0).max(axis=0)
    least_rows = np.maximum(TILES[stack][0].min(), constants["least_tile_rows"])
    legal = own & (tiles[0] >= np.minimum(least_rows, tallest)) & (tiles[0] <= most_rows)
    needed = tile_memory(tiles[0], tiles[1])
    fits = legal & (needed <= np.maximum(room, np.where(legal, needed, np.inf).min(axis=0)))
    used = fits.any(axis=(1, 2)) | (fits.size == 0)  # of no devices at all every tile stays
    tiles, fits = tiles[:, used], fits[used]
    largest = np.where(fits, tiles[0] * tiles[1], 0.0).argmax(axis=0)
    return tiles, fits, (tiles[0][largest][..., 0, 0], tiles[1][largest][..., 0, 0])


def gemm_time(
    device: Device,
    constants: Mapping[str, Array],
    m: Numeric,
    n: Numeric,
    k: Numeric,
    batch: Numeric,
    element_size: Numeric,
    output_element_size: Numeric,
    *,
    stack: str = "training",
) -> Array:
    r"""Time of a (batched) GEMM: ``batch`` products of an (m, k) by a (k, n) matrix.

    The tile is the fastest of :data:`TILES` that the library has and the shared memory fits; the last-level cache
    bounds what is read twice (:func:`product_memory_traffic`). A product of few rows does not pay for whole tiles: its
    arithmetic is that of the shortest instruction (:func:`few_rows_time`), and its weights stream through the
    multiprocessors in the time of its tiles, or in a few times that of its bytes where that is less. Inputs that have
    to be converted to the precision of the product first cost ``input_traffic`` bytes c an element, before the product
    starts. The clock of a long product falls until its power keeps the limit
    (:func:`xlperf.equations.hardware.roofline.clock_limited_time`).

    .. math::

        t = t_0 + \frac{c\,b m k}{B} + \max(t_{compute}, t_{memory}) + s \min(t_{compute}, t_{memory})
    """
    few = array(m) <= FEW_ROWS
    units = device
    if some(few) and some(device.stream_ratio != 1.0):
        rate = np.where(few, device.stream_ratio, 1.0) * device.peak_flop_rate
        units = replace(device, peak_flop_rate=rate)
    tiles, fits, block = _fitting(device, constants, stack)
    heights, widths, splits = tiles
    sum_size = SUM_WIDTH * array(output_element_size)
    given = array(m), array(n), array(k), array(batch), array(element_size)
    burst = (
        _many_products_time(units, constants, *given, sum_size, tiles, fits)
        if np.size(m) >= _MANY
        else np.where(
            fits,
            tiled_product_time(
                *given,
                heights,
                widths,
                splits,
                peak_flop_rate=units.peak_flop_rate,
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
    energy = device.product_energy(constants, 2.0 * (array(m) * array(n) * array(k) * array(batch)))

    def sustained(time: Array) -> Array:
        limited = clock_limited_time(time, energy, device.arithmetic_power)
        return sustained_time(time, limited, constants["boost_time"])

    compute = sustained(burst)
    size = m, n, k, batch, element_size, output_element_size
    in_order = _reads_alone(constants)
    machine = device.num_multiprocessors, device.l2_capacity
    traffic = product_memory_traffic(*size, *block, *machine, in_order=in_order)
    memory = transfer_time(traffic, device.memory_bandwidth, constants["memory_efficiency"])
    conversion = constants["input_traffic"] * (array(batch) * array(m) * array(k)) / device.memory_bandwidth
    fixed = constants["launch_time"] + conversion
    longer = compute
    if some(few):
        start = constants["wave_time"]
        rates = {"peak_flop_rate": device.peak_flop_rate, "compute_efficiency": constants["compute_efficiency"]}
        shortest = np.minimum(few_rows_time(m, n, k, batch, **rates, start_time=start), burst)
        least = sustained(np.where(few, shortest, burst))
        streamed = np.minimum(compute, SLOWEST_STREAM * memory + MOST_SPLITS * start)
        longer = np.where(few, np.maximum(least, streamed), compute)
    return np.asarray(fixed + (np.maximum(longer, memory) + constants["serial_share"] * np.minimum(compute, memory)))
