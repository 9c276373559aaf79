"""Accelerators as arrays, and times of their kernels: matrix products, vector operations, scans of linear attention.

Arguments broadcast to (rows, operators); columns of the device and calibration constants have shape (rows, 1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from xlperf.base.arrays import Array, Numeric, array
from xlperf.equations.hardware.power import MEMORY_ENERGY
from xlperf.equations.hardware.roofline import (
    arithmetic_power,
    blended_time,
    clock_limited_time,
    sustained_time,
    tiled_product_time,
    transfer_time,
)
from xlperf.equations.hardware.tiles import product_memory_traffic, tile_memory


def _column(value: float) -> Callable[[], Array]:
    return lambda: np.full((1, 1), value)


@dataclass(frozen=True, eq=False)
class Device:
    """Columns of accelerators, one entry per plan; shapes broadcast with the operators' (rows, 1).

    Attributes
    ----------
    peak_flop_rate : Array
        Dense peak of the matrix units in the precision of the plan. [FLOP/s]
    vector_flop_rate : Array
        Peak of the vector units in FP32. [FLOP/s]
    memory_bandwidth : Array
        Peak bandwidth of the main memory. [B/s]
    memory_capacity : Array
        Main memory as the driver reports it. [B]
    l2_bandwidth : Array
        Bandwidth of the last-level cache; infinite where it is not known. [B/s]
    num_multiprocessors : Array
        Units that work on tiles at the same time; NaN where waves are not modelled. [-]
    thermal_design_power : Array
        Power limit, under which long products slow down; infinite where it does not bind. [W]
    l2_capacity : Array
        Last-level cache; NaN where it is not known and inputs of a product are read once. [B]
    shared_memory_capacity : Array
        Shared memory of one multiprocessor; NaN where it is not known and every tile fits. [B]
    energy_ratio : Array
        Energy of an operation at the clock of the peak, over that of 5 nm at its nominal clock. [-]
    static_power : Array
        Leakage and idle clocks; NaN: the usual share of the power limit. [W]
    host_bandwidth : Array
        Bandwidth of the link to the host's memory, one direction. [B/s]
    host_memory_bandwidth : Array
        Bandwidth of the host's memory, share of one accelerator. [B/s]
    drive_bandwidth : Array
        Bandwidth of the host's drives, share of one accelerator. [B/s]
    memory_energy : Array
        Energy of a byte of the main memory. [J/B]
    """

    peak_flop_rate: Array
    vector_flop_rate: Array
    memory_bandwidth: Array
    memory_capacity: Array
    l2_bandwidth: Array
    num_multiprocessors: Array
    thermal_design_power: Array = field(default_factory=_column(np.inf))
    l2_capacity: Array = field(default_factory=_column(np.nan))
    shared_memory_capacity: Array = field(default_factory=_column(np.nan))
    energy_ratio: Array = field(default_factory=_column(1.0))
    static_power: Array = field(default_factory=_column(np.nan))
    host_bandwidth: Array = field(default_factory=_column(np.inf))
    host_memory_bandwidth: Array = field(default_factory=_column(np.inf))
    drive_bandwidth: Array = field(default_factory=_column(np.inf))
    memory_energy: Array = field(default_factory=_column(MEMORY_ENERGY))

    @property
    def arithmetic_power(self) -> Array:
        """Power that is left to the matrix units. [W]"""
        return arithmetic_power(self.thermal_design_power, self.static_power)

    def product_energy(self, constants: Mapping[str, Array], flop: Array) -> Array:
        """Energy of operations of products at the boost clock, by the constants of gemm or attention. [J]"""
        return constants["energy_per_flop"] * self.energy_ratio * flop


def vector_flop_rate(vector_peak: Numeric, matrix_peak: Numeric, matrix_to_vector_ratio: Numeric) -> Array:
    r"""Peak of the vector units in FP32: as stated, else by its ratio to the 16-bit peak of the matrix units.

    .. math:: P_v = P_{FP32} \text{ or } P_{BF16} / r

    Heuristic, this work.

    Parameters
    ----------
    vector_peak : numeric
        Stated peak in FP32; NaN: not stated. [FLOP/s]
    matrix_peak : numeric
        Dense peak of the matrix units in BF16; may be NaN where the other is stated. [FLOP/s]
    matrix_to_vector_ratio : numeric
        Ratio r of the two peaks, 16 on A100; may be NaN where the first is stated. [-]

    Returns
    -------
    rate : numeric
        Peak of the vector units. [FLOP/s]

    Examples
    --------
    Not stated beside a matrix peak of 800:

    >>> float(vector_flop_rate(np.nan, 800.0, 16.0))
    50.0
    """
    stated = array(vector_peak)
    return np.where(np.isnan(stated), array(matrix_peak) / array(matrix_to_vector_ratio), stated)


def cache_bandwidth(
    stated_bandwidth: Numeric, num_multiprocessors: Numeric, clock_rate: Numeric, bytes_per_clock: Numeric
) -> Array:
    r"""Bandwidth of the last-level cache: as stated, else what the multiprocessors read per clock.

    .. math:: B = n f b

    Heuristic, this work; where neither is known the cache never binds.

    Parameters
    ----------
    stated_bandwidth : numeric
        Bandwidth of the datasheet; NaN: not stated. [B/s]
    num_multiprocessors : numeric
        Multiprocessors n; NaN: not stated. [-]
    clock_rate : numeric
        Their clock f; NaN: not stated. [1/s]
    bytes_per_clock : numeric
        Bytes b that each reads per clock; may be NaN where the bandwidth is stated. [B]

    Returns
    -------
    bandwidth : numeric
        Infinite where nothing is stated. [B/s]

    Examples
    --------
    100 multiprocessors at 2 Hz:

    >>> float(cache_bandwidth(np.nan, 100.0, 2.0, 64.0))
    12800.0
    """
    stated, clocked = array(stated_bandwidth), array(num_multiprocessors) * array(clock_rate)
    derived = np.where(np.isnan(clocked), np.inf, array(bytes_per_clock) * clocked)
    return np.where(np.isnan(stated), derived, stated)


# Tiles that libraries choose among where they fit the shared memory: rows, columns, pieces that the depth is cut into;
# on an axis before the rows. The first two are for more shared memory than any accelerator has today.
TILES = np.array(
    [
        (512.0, 256.0, 1.0),
        (256.0, 256.0, 1.0),
        (256.0, 128.0, 1.0),
        (128.0, 256.0, 1.0),
        (128.0, 128.0, 1.0),
        (128.0, 64.0, 1.0),
        (64.0, 64.0, 1.0),
        (128.0, 64.0, 4.0),
    ]
).T[:, :, None, None]

# Beside them what engines decode with: narrow tiles for products of few rows.
SERVING_TILES = np.concatenate(
    [
        TILES,
        np.array([(32.0, 128.0, 1.0), (16.0, 128.0, 1.0), (16.0, 128.0, 4.0)]).T[:, :, None, None],
    ],
    axis=1,
)
_SHORTEST = 64.0  # rows of the shortest tile of products in training, where the library has any as tall
USUAL_SHARED_MEMORY = 98304.0  # B; room for the tiles that every library has
SUM_WIDTH = 2.0  # sums over a part of the depth are in FP32, outputs in 16 bits

WITHOUT_LAUNCH = ("gemm", "gemm_wide", "attention", "attention_backward", "attention_decode", "vector")


_MANY = 2048
"""Products from which on tiles are tried one by one: all at once would leave the processor's cache. [-]"""


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
    share = constants["cache_share"]
    reading = {
        edge: edge * element_size / device.l2_bandwidth
        for edge in {height + width for height, width, _ in shapes}
    }
    arithmetic = {area: 2.0 * area / peak for area in {height * width for height, width, _ in shapes}}
    outputs = m * n * batch / device.l2_bandwidth
    best: Array | None = None
    for (height, width, splits), legal in zip(shapes, fits, strict=True):
        read = reading[height + width]
        time = np.maximum(arithmetic[height * width] + share * read, read)
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


def _gemm_time(
    device: Device,
    constants: Mapping[str, Array],
    m: Numeric,
    n: Numeric,
    k: Numeric,
    batch: Numeric,
    element_size: Numeric,
    output_element_size: Numeric,
    least_rows: float,
) -> Array:
    """Time of :func:`gemm_time` with the fastest of the tiles of so many rows at least that fit."""
    tiles, fits, block = _fitting(device, constants["largest_tile_rows"], least_rows)
    heights, widths, splits = tiles
    sum_size = SUM_WIDTH * array(output_element_size)
    burst = (
        _many_products_time(
            device,
            constants,
            array(m),
            array(n),
            array(k),
            array(batch),
            array(element_size),
            sum_size,
            tiles,
            fits,
        )
        if np.size(m) >= _MANY
        else np.where(
            fits,
            tiled_product_time(
                m,
                n,
                k,
                batch,
                element_size,
                heights,
                widths,
                splits,
                peak_flop_rate=device.peak_flop_rate,
                cache_bandwidth=device.l2_bandwidth,
                num_multiprocessors=device.num_multiprocessors,
                compute_efficiency=constants["compute_efficiency"],
                cache_share=constants["cache_share"],
                wave_time=constants["wave_time"],
                sum_size=sum_size,
            ),
            np.inf,
        ).min(axis=0)
    )
    flop = 2.0 * (array(m) * array(n) * array(k) * array(batch))
    limited = clock_limited_time(burst, device.product_energy(constants, flop), device.arithmetic_power)
    compute = sustained_time(burst, limited, constants["boost_time"])
    size = m, n, k, batch, element_size, output_element_size
    traffic = product_memory_traffic(*size, *block, device.num_multiprocessors, device.l2_capacity)
    memory = transfer_time(traffic, device.memory_bandwidth, constants["memory_efficiency"])
    conversion = constants["input_traffic"] * (array(batch) * array(m) * array(k)) / device.memory_bandwidth
    fixed = constants["launch_time"] + conversion
    return np.asarray(fixed + blended_time(compute, memory, constants["serial_share"]))


def _fitting(
    device: Device, most_rows: Array, least_rows: float
) -> tuple[Array, np.ndarray, tuple[Array, Array]]:
    """Tiles that fit the shared memory of any of the devices, which of them fit each, and the largest of each.

    The smallest tile always fits; where the shared memory is not known it is the usual one. A library whose tallest
    tile is shorter than the least rows asked for has all that are no taller.
    """
    room = device.shared_memory_capacity
    room = np.where(np.isnan(room), USUAL_SHARED_MEMORY, room)
    tiles = SERVING_TILES
    legal = (tiles[0] >= np.minimum(least_rows, most_rows)) & (tiles[0] <= most_rows)
    needed = tile_memory(tiles[0], tiles[1])
    smallest = np.where(legal, needed, np.inf).min(axis=0)
    fits = legal & (needed <= np.maximum(room, smallest))
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
) -> Array:
    r"""Time of a (batched) GEMM: ``batch`` products of an (m, k) by a (k, n) matrix.

    The tile is the fastest of :data:`TILES` that fits the shared memory; the last-level cache bounds what is read twice
    (:func:`xlperf.equations.hardware.tiles.product_memory_traffic`). Inputs that have to be converted to the precision
    of the product first cost ``input_traffic`` bytes c an element, before the product starts. The clock of a long
    product falls until its power keeps the limit (:func:`xlperf.equations.hardware.power.clock_limited_time`).

    .. math::

        t = t_0 + \frac{c\,b m k}{B} + \max(t_{compute}, t_{memory}) + s \min(t_{compute}, t_{memory})

    Parameters
    ----------
    device : Device
        Accelerator, (rows, 1).
    constants : mapping of str to Array
        Calibration constants of the family gemm, (rows, 1).
    m : numeric
        Rows of the first matrix, (rows, operators). [-]
    n : numeric
        Columns of the second matrix, (rows, operators). [-]
    k : numeric
        Depth, (rows, operators). [-]
    batch : numeric
        Equal products in one call, (rows, operators). [-]
    element_size : numeric
        Size of one element of the inputs, (rows, operators). [B]
    output_element_size : numeric
        Size of one element of the output, (rows, operators). [B]

    Returns
    -------
    time : numeric
        Time of one call, (rows, operators). [s]

    References
    ----------
    .. [1] S. Williams, A. Waterman and D. Patterson, "Roofline", Commun. ACM 52(4), 2009,
       doi:10.1145/1498765.1498785.
    """
    return _gemm_time(device, constants, m, n, k, batch, element_size, output_element_size, _SHORTEST)


def serving_gemm_time(
    device: Device,
    constants: Mapping[str, Array],
    m: Numeric,
    n: Numeric,
    k: Numeric,
    batch: Numeric,
    element_size: Numeric,
    output_element_size: Numeric,
) -> Array:
    r"""Time of a GEMM in serving: as :func:`gemm_time`, with narrow tiles for small batches (:data:`SERVING_TILES`).

    .. math::

        t = t_0 + \frac{c\,b m k}{B} + \max(t_{compute}, t_{memory}) + s \min(t_{compute}, t_{memory})

    Parameters
    ----------
    device : Device
        Accelerator, (rows, 1) or (rows, operators).
    constants : mapping of str to Array
        Calibration constants of the family gemm, (rows, 1) or (rows, operators).
    m : numeric
        Rows of the first matrix, (rows, operators). [-]
    n : numeric
        Columns of the second matrix, (rows, operators). [-]
    k : numeric
        Depth, (rows, operators). [-]
    batch : numeric
        Equal products in one call, (rows, operators). [-]
    element_size : numeric
        Size of one element of the inputs, (rows, operators). [B]
    output_element_size : numeric
        Size of one element of the output, (rows, operators). [B]

    Returns
    -------
    time : numeric
        Time of one call, (rows, operators). [s]

    References
    ----------
    .. [1] S. Williams, A. Waterman and D. Patterson, "Roofline", Commun. ACM 52(4), 2009,
       doi:10.1145/1498765.1498785.
    """
    return _gemm_time(device, constants, m, n, k, batch, element_size, output_element_size, 0.0)


def vector_time(
    device: Device,
    constants: Mapping[str, Array],
    traffic: Numeric,
    flop: Numeric,
) -> Array:
    r"""Time of an element-wise operation or a reduction: norm, activation, residual, softmax, optimizer.

    .. math::

        t = t_0 + \max(t_{compute}, t_{memory})

    Parameters
    ----------
    device : Device
        Accelerator, (rows, 1).
    constants : mapping of str to Array
        Calibration constants of the family vector, (rows, 1).
    traffic : numeric
        Bytes read and written, (rows, operators). [B]
    flop : numeric
        Work of the vector units, (rows, operators). [FLOP]

    Returns
    -------
    time : numeric
        Time of one call, (rows, operators). [s]

    References
    ----------
    .. [1] S. Williams, A. Waterman and D. Patterson, "Roofline", Commun. ACM 52(4), 2009,
       doi:10.1145/1498765.1498785.
    """
    memory = transfer_time(traffic, device.memory_bandwidth, constants["memory_efficiency"])
    compute = array(flop) / (constants["compute_efficiency"] * device.vector_flop_rate)
    return np.asarray((constants["launch_time"] + 0.0 * memory) + np.maximum(compute, memory))


def linear_attention_time(
    device: Device, constants: Mapping[str, Array], traffic: Numeric, flop: Numeric, num_chunks: Numeric
) -> Array:
    r"""Time of a chunked linear-attention scan (gated delta net, Mamba-2).

    What chunks do by themselves goes by at the rate of the memory, or of the matrix units where that is slower; then
    the state passes through all chunks of a sequence, one after the other. Heads and sequences run side by side.

    .. math:: t = t_0 + \max\left(\frac{S}{\eta B}, \frac{F}{R}\right) + c\,t_c

    Parameters
    ----------
    device : Device
        Accelerator, (rows, 1).
    constants : mapping of str to Array
        Calibration constants of the family linear_attention, (rows, 1).
    traffic : numeric
        Bytes S read and written, (rows, operators). [B]
    flop : numeric
        Operations F of the matrix units, (rows, operators). [FLOP]
    num_chunks : numeric
        Chunks c of the longest sequence, (rows, operators). [-]

    Returns
    -------
    time : numeric
        Time of one call, (rows, operators). [s]

    References
    ----------
    .. [1] S. Yang et al., "Parallelizing linear transformers with the delta rule over sequence length", 2024,
       arXiv:2406.06484, section 3.2.
    .. [2] Measured scans: github.com/ai-dynamo/aiconfigurator@095f58a, gdn_perf of SGLang 0.5.14.
    """
    memory = transfer_time(traffic, device.memory_bandwidth, constants["memory_efficiency"])
    compute = array(flop) / device.peak_flop_rate
    return np.asarray(
        constants["launch_time"] + np.maximum(memory, compute) + array(num_chunks) * constants["chunk_time"]
    )


def without_input_casts(kernels: Mapping[str, Mapping[str, Array]]) -> dict[str, Mapping[str, Array]]:
    """GEMM constants without input casts: inputs arrive in the precision of the product.

    A product that is measured alone casts its first input each time. A training stack casts once for the forward and
    the backward pass, and fuses that with what comes before.

    Parameters
    ----------
    kernels : mapping of str to mapping of str to Array
        Calibration constants by family.

    Returns
    -------
    dict of str to mapping of str to Array
        The same with no input traffic of the products.
    """
    return {
        family: {**constants, "input_traffic": 0.0 * constants["input_traffic"]} if family == "gemm" else constants
        for family, constants in kernels.items()
    }


def without_launch_time(kernels: Mapping[str, Mapping[str, Array]]) -> dict[str, Mapping[str, Array]]:
    """Kernel constants without launch time, as in a running engine or training stack.

    A kernel that is timed alone is launched alone. A stack launches ahead of the accelerator, or all kernels at
    once as a graph; what is left between them is in the software's overhead of a layer. Collectives keep their
    start, which is the meeting of the ranks.

    Parameters
    ----------
    kernels : mapping of str to mapping of str to Array
        Calibration constants by family.

    Returns
    -------
    dict of str to mapping of str to Array
        The same with a launch time of 0 for the families of :data:`WITHOUT_LAUNCH`.
    """
    return {
        family: {**constants, "launch_time": 0.0 * constants["launch_time"]} if family in WITHOUT_LAUNCH else constants
        for family, constants in kernels.items()
    }
