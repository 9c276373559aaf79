r"""Accelerators as arrays, and the hierarchical roofline: how long a kernel takes that moves bytes and does arithmetic.

Every function works on arrays that broadcast against each other; columns of a device and calibration constants have
shape (rows, 1). The levels are main memory (HBM), last-level cache (L2) and the matrix and vector units; long products
run at the clock that the power limit leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, cbrt
from xlperf.base.units import factor

STATIC_SHARE = 0.13
"""Share of the power limit that leakage and idle clocks take where no static power is stated. [-]"""
ARITHMETIC_SHARE = 0.75 / (1.0 - STATIC_SHARE)
"""Share of the rest that matrix units may draw in a long product; memory, caches and links take the others. [-]"""
_LEAST_SHARE = 0.05
STAGES = 2.0
"""Stages that a multiprocessor holds at least: one is computed while the next one is loaded. [-]"""
CACHE_SHARE = 0.5
"""Share of the last-level cache that holds what will be used again. [-]"""
MEMORY_ENERGY = 4.2 * factor("pJ/bit")
"""Energy of a byte of HBM3 in the sheet memories. [J/B]"""
WITHOUT_LAUNCH = ("gemm", "gemm_wide", "attention", "attention_backward", "attention_decode", "vector")


def _column(value: float) -> Callable[[], Array]:
    return lambda: np.full((1, 1), value)


@dataclass(frozen=True, eq=False)
class Device:
    """Columns of accelerators, one entry per plan; shapes broadcast with the operators' (rows, 1)."""

    peak_flop_rate: Array  # Dense peak of the matrix units in the precision of the plan [FLOP/s]
    vector_flop_rate: Array  # Peak of the vector units in FP32 [FLOP/s]
    memory_bandwidth: Array  # Peak bandwidth of the main memory [B/s]
    memory_capacity: Array  # Main memory as the driver reports it [B]
    l2_bandwidth: Array  # Bandwidth of the last-level cache; infinite where it is not known [B/s]
    num_multiprocessors: Array  # Units that work on tiles at the same time; NaN where waves are not modelled [-]
    # Power limit, under which long products slow down; infinite where it does not bind [W]
    thermal_design_power: Array = field(default_factory=_column(np.inf))
    # Last-level cache; NaN where it is not known and inputs of a product are read once [B]
    l2_capacity: Array = field(default_factory=_column(np.nan))
    # Shared memory of one multiprocessor; NaN where it is not known and every tile fits [B]
    shared_memory_capacity: Array = field(default_factory=_column(np.nan))
    # Energy of an operation at the clock of the peak, over that of 5 nm at its nominal clock [-]
    energy_ratio: Array = field(default_factory=_column(1.0))
    # Leakage and idle clocks; NaN: the usual share of the power limit [W]
    static_power: Array = field(default_factory=_column(np.nan))
    # Power with a model in memory and nothing to run; NaN where it is not known [W]
    idle_power: Array = field(default_factory=_column(np.nan))
    # Bandwidth of the link to the host's memory, one direction [B/s]
    host_bandwidth: Array = field(default_factory=_column(np.inf))
    # Bandwidth of the host's memory, share of one accelerator [B/s]
    host_memory_bandwidth: Array = field(default_factory=_column(np.inf))
    # Bandwidth of the host's drives, share of one accelerator [B/s]
    drive_bandwidth: Array = field(default_factory=_column(np.inf))
    memory_energy: Array = field(default_factory=_column(MEMORY_ENERGY))  # Energy of a byte of the main memory [J/B]
    # Exponentials in a second, one as one FLOP; NaN: a sixteenth of the rate of the vector units [FLOP/s]
    exponential_rate: Array = field(default_factory=_column(np.nan))
    # Share of the rate of tiles at which weights of products of few rows reach the multiprocessors [-]
    stream_ratio: Array = field(default_factory=lambda: np.ones(()))

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
    .. [1] H. He, "Strangely, matrix multiplications on GPUs run faster when given predictable data", 2024, thonking.ai.

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


def vector_time(
    device: Device,
    constants: Mapping[str, Array],
    traffic: Numeric,
    flop: Numeric,
) -> Array:
    r"""Time of an element-wise operation or a reduction: norm, activation, residual, softmax, optimizer.

    .. math::

        t = t_0 + \max(t_{compute}, t_{memory})
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
    """
    memory = transfer_time(traffic, device.memory_bandwidth, constants["memory_efficiency"])
    compute = array(flop) / device.peak_flop_rate
    return np.asarray(
        constants["launch_time"] + np.maximum(memory, compute) + array(num_chunks) * constants["chunk_time"]
    )


def stack_constants(kernels: Mapping[str, Mapping[str, Array]], input_casts: bool) -> dict[str, Mapping[str, Array]]:
    """Kernel constants in a running engine or training stack, without launch time.

    A kernel that is timed alone is launched alone, and a product casts its first input each time. A stack launches
    ahead of the accelerator, or all kernels at once as a graph; what is left between them is in the software's overhead
    of a layer. Training casts once for the forward and the backward pass, and fuses that with what comes before.
    Collectives keep their start, which is the meeting of the ranks.
    """
    found = {}
    for family, constants in kernels.items():
        zero = ["launch_time"] if family in WITHOUT_LAUNCH else []
        zero += ["input_traffic"] if family == "gemm" and not input_casts else []
        found[family] = {**constants, **{name: 0.0 * constants[name] for name in zero}} if zero else constants
    return found
