r"""Hierarchical roofline: how long a kernel takes that moves bytes through the memory levels and does arithmetic.

Every function works on arrays that broadcast against each other. The levels are main memory (HBM), last-level cache
(L2) and the matrix and vector units; work is cut into tiles, one tile per multiprocessor, and tiles run in waves. Long
products run at the clock that the power limit leaves.
"""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div
from xlperf.base.elementary import cbrt

STATIC_SHARE = 0.13
"""Share of the power limit that leakage and idle clocks take where no static power is stated. [-]"""
ARITHMETIC_SHARE = 0.75 / (1.0 - STATIC_SHARE)
"""Share of the rest that matrix units may draw in a long product; memory, caches and links take the others. [-]"""

_LEAST_SHARE = 0.05


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
) -> Array:
    r"""Compute time of a GEMM cut into tiles of one shape, in waves over the multiprocessors.

    Every tile computes ``tile_rows x tile_columns`` outputs over ``k / num_splits``, padding included, and reads its
    two panels from the last-level cache; a share of that reading is not hidden behind the arithmetic. Sums of a
    depth that is cut are written to that cache and read again.

    .. math::

        t = \left\lceil \frac{s b \lceil m / T_m \rceil \lceil n / T_n \rceil}{p} \right\rceil \left(\frac{p k}{s}
        \left(\frac{2 T_m T_n}{\eta P} + c\,\frac{(T_m + T_n) e}{B_{cache}}\right) + s\,t_w\right)
        + [s > 1] \frac{2 s\,e_{sum}\,b m n}{B_{cache}}

    Tiles and waves after [1]_; the part of the reading that is not hidden is a heuristic, this work.

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
    r"""Compulsory traffic of a GEMM: both inputs read once, the output written once.

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

    Examples
    --------
    2 x 4 x (2 + 3) bytes of inputs, 4 x 2 x 3 of outputs:

    >>> float(product_traffic(2.0, 3.0, 4.0, 1.0, 2.0, 4.0))
    64.0
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

    Examples
    --------
    80 B at four fifths of 100 B/s:

    >>> float(transfer_time(80.0, 100.0, 0.8))
    1.0
    """
    return np.asarray(array(traffic) / (array(efficiency) * array(bandwidth)))


def blended_time(first_time: Numeric, second_time: Numeric, serial_share: Numeric = 0.0) -> Array:
    r"""Time of two activities that overlap except for a share of the shorter one.

    .. math:: t = \max(t_1, t_2) + s \min(t_1, t_2)

    Heuristic, this work, between the roofline [1]_ and the sum.

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

    Examples
    --------
    Half of the shorter one is hidden: 3 + 0.5 x 2:

    >>> float(blended_time(3.0, 2.0, 0.5))
    4.0
    """
    first, second = array(first_time), array(second_time)
    return np.asarray(np.maximum(first, second) + array(serial_share) * np.minimum(first, second))


def arithmetic_power(power_limit: Numeric, static_power: Numeric = np.nan) -> Array:
    r"""Power that is left to the matrix units under a power limit.

    .. math:: P_a = \frac{0.75}{1 - 0.13} (P_{max} - P_s), \quad P_s = 0.13\,P_{max} \text{ where it is not stated}

    Heuristic, this work: three quarters of the limit explain the products of ten accelerators best.

    Parameters
    ----------
    power_limit : numeric
        Power limit of the accelerator; NaN or infinite: none. [W]
    static_power : numeric, default NaN
        Leakage and idle clocks; NaN: the usual share of the limit. [W]

    Returns
    -------
    power : numeric
        A twentieth of the limit at least. [W]

    Examples
    --------
    A limit of 700 W:

    >>> float(arithmetic_power(700.0))
    525.0
    """
    limit, static = array(power_limit), array(static_power)
    limit = np.where(np.isnan(limit), np.inf, limit)
    left = np.where(np.isnan(static), (1.0 - STATIC_SHARE) * limit, limit - static)
    return np.asarray(ARITHMETIC_SHARE * np.maximum(left, _LEAST_SHARE * limit))


def clock_limited_time(
    burst_time: Numeric, energy: Numeric, power: Numeric, least_voltage_share: Numeric = 2.0 / 3.0
) -> Array:
    r"""Time of work whose clock falls until its power keeps a limit.

    Power is energy over time; with the clock falls the voltage, so that power goes with the cube of the clock, and
    below the least voltage of the node with the clock itself:

    .. math:: t = t_b \max\left(1,\, \sqrt[3]{p},\, v_0^2 p\right), \quad p = \frac{E / t_b}{P}

    Near its nominal voltage a node's voltage is close to linear in the clock [1]_; the cube is its usual consequence.

    Parameters
    ----------
    burst_time : numeric
        Time at the boost clock. [s]
    energy : numeric
        Energy of the work at the boost clock. [J]
    power : numeric
        Power that the work may draw; infinite: no limit. [W]
    least_voltage_share : numeric, default 2/3
        Voltage v_0 of a slow clock over that of the boost clock. [-]

    Returns
    -------
    time : numeric
        Time under the limit; infinite where no power is left. [s]

    References
    ----------
    .. [1] T. Sakurai and A. R. Newton, "Alpha-power law MOSFET model", IEEE JSSC 25(2), 1990, doi:10.1109/4.52187.

    Examples
    --------
    Twice and eight times the power that may be drawn; the latter is at the least voltage:

    >>> clock_limited_time(1.0, np.array([2.0, 8.0]), 1.0).round(3).tolist()
    [1.26, 3.556]
    """
    burst, least = array(burst_time), array(energy) / array(power)
    voltage = array(least_voltage_share)
    return np.asarray(np.maximum(np.maximum(burst, cbrt(least * burst * burst)), voltage * voltage * least))


def sustained_time(burst_time: Numeric, limited_time: Numeric, boost_time: Numeric) -> Array:
    r"""Time of a kernel that starts at boost clocks and is throttled by the power limit.

    A kernel whose units idle for part of the time draws less and is held back less, or not at all.

    .. math:: t' = t + \max(t_P - t, 0)\,\frac{t}{t + t_{boost}}

    Heuristic, this work: that products are throttled by power was measured [1]_, the transition is fitted.

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

    Examples
    --------
    As long as the boost lasts, a kernel feels half of the limit: 1 + 0.5 x 0.5:

    >>> float(sustained_time(1.0, 1.5, 1.0))
    1.25
    """
    burst = array(burst_time)
    together = burst + array(boost_time)
    felt = burst / np.where(together == 0.0, 1.0, together)
    return np.asarray(burst + np.maximum(array(limited_time) - burst, 0.0) * felt)


def doubling_savings(compute_time: Numeric, memory_time: Numeric, serial_share: Numeric = 0.0) -> tuple[Array, Array]:
    r"""Time saved by doubling the compute rate, and by doubling the memory bandwidth.

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

    Examples
    --------
    A kernel of 8 s of arithmetic and 2 s of traffic is compute-bound:

    >>> tuple(map(float, doubling_savings(8.0, 2.0)))
    (4.0, 0.0)
    """
    compute, memory = array(compute_time), array(memory_time)
    whole = blended_time(compute, memory, serial_share)
    return (
        np.asarray(whole - blended_time(0.5 * compute, memory, serial_share)),
        np.asarray(whole - blended_time(compute, 0.5 * memory, serial_share)),
    )
