"""Accelerators as arrays, and the hierarchical roofline: time of a kernel from its bytes and its arithmetic.

Levels: main memory (HBM), last-level cache (L2), matrix and vector units; the power limit lowers the clock of long
products. Columns of a device and calibration constants have shape (rows, 1) and broadcast with the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, cbrt, known_or, side_by_side
from xlperf.base.units import factor

LEAST_VOLTAGE_SHARE = 2.0 / 3.0  # voltage v_0 of a slow clock over the boost voltage, if none is stated [-]
STATIC_SHARE = 0.13  # leakage and idle clocks as a share of the power limit, if no static power is stated [-]
ARITHMETIC_SHARE = 0.75 / (1.0 - STATIC_SHARE)
"""Share of the remaining power for the matrix units in a long product; memory, caches and links draw the remainder."""
_LEAST_SHARE = 0.05
STAGES = 2.0  # stages of a software pipeline: a multiprocessor computes one and loads the next [-]
CACHE_SHARE = 0.5  # share of the last-level cache that holds data for reuse [-]
MEMORY_ENERGY = 4.2 * factor("pJ/bit")  # energy of a byte of HBM3 in the sheet memories [J/B]
_infinite, _unknown = (lambda: np.full((1, 1), np.inf)), (lambda: np.full((1, 1), np.nan))
WITHOUT_LAUNCH = ("gemm", "attention", "attention_backward", "attention_decode", "vector")


PLANNED, WIDE, CORE = range(3)
"""Precision classes of operators: the plan's; 16 bits or wider, for what a narrow one excludes; core attention's."""


class MatrixRate(NamedTuple):
    """Matrix units in the precision of an operator, (rows, 1) or (rows, operators)."""

    peak_flop_rate: Array  # dense peak [FLOP/s]
    energy_ratio: Array  # energy of an operation at the clock of the peak, relative to 5 nm at its nominal clock [-]
    thermal_design_power: Array  # power limit; infinite: none [W]
    static_power: Array  # leakage and idle clocks; NaN: 0.13 of the limit [W]

    @property
    def arithmetic_power(self) -> Array:
        """Power available to the matrix units. [W]"""
        return arithmetic_power(self.thermal_design_power, self.static_power)

    def product_energy(self, constants: Mapping[str, Array], flop: Array) -> Array:
        """Energy of product operations at the boost clock, by the constants of gemm or attention. [J]"""
        return constants["energy_per_flop"] * self.energy_ratio * flop


@dataclass(frozen=True, eq=False)
class Device:
    """Accelerators of plans, (rows, 1); ``by precision``: (rows, precision classes), or (rows, 1) if all are alike."""

    peak_flop_rate: Array  # Dense peak of the matrix units, by precision [FLOP/s]
    vector_flop_rate: Array  # Peak of the vector units in FP32 [FLOP/s]
    memory_bandwidth: Array  # Peak bandwidth of the main memory [B/s]
    memory_capacity: Array  # Main memory reported by the driver [B]
    l2_bandwidth: Array  # Bandwidth of the last-level cache; infinite: unknown [B/s]
    num_multiprocessors: Array  # Multiprocessors; NaN: waves are not modelled [-]
    thermal_design_power: Array = field(default_factory=_infinite)  # Power limit, by precision; infinite: none [W]
    l2_capacity: Array = field(default_factory=_unknown)  # Last-level cache; NaN: inputs of a product are read once [B]
    shared_memory_capacity: Array = field(default_factory=_unknown)  # Of a multiprocessor; NaN: every tile fits [B]
    # Energy of an operation at the clock of the peak, relative to 5 nm at its nominal clock, by precision [-]
    energy_ratio: Array = field(default_factory=lambda: np.ones((1, 1)))
    static_power: Array = field(default_factory=_unknown)  # Leakage and idle clocks; NaN: 0.13 of the limit [W]
    idle_power: Array = field(default_factory=_unknown)  # With a model in memory and no kernel; NaN: unknown [W]
    host_bandwidth: Array = field(default_factory=_infinite)  # Link to the host's memory, one direction [B/s]
    host_memory_bandwidth: Array = field(default_factory=_infinite)  # Host memory, per accelerator [B/s]
    host_memory_capacity: Array = field(default_factory=_infinite)  # Host memory, per accelerator [B]
    host_flop_rate: Array = field(default_factory=_infinite)  # Matrix products on the host, per accelerator [FLOP/s]
    drive_bandwidth: Array = field(default_factory=_infinite)  # Drives of the host, per accelerator [B/s]
    memory_energy: Array = field(default_factory=lambda: np.full((1, 1), MEMORY_ENERGY))  # Of a byte [J/B]
    # Exponentials per second, each as one FLOP; NaN: a sixteenth of the vector rate [FLOP/s]
    exponential_rate: Array = field(default_factory=_unknown)
    # Rate at which weights of products of few rows stream to the multiprocessors, relative to tiles [-]
    stream_ratio: Array = field(default_factory=lambda: np.ones(()))

    def rate(self, precision: int = PLANNED) -> MatrixRate:
        """Matrix units at a precision class."""
        columns = self.peak_flop_rate, self.energy_ratio, self.thermal_design_power
        peak, energy, power = (v if v.shape[-1] == 1 else v[:, precision : precision + 1] for v in columns)
        return MatrixRate(peak, energy, power, self.static_power)

    def with_attention(self, peak_flop_rate: Array) -> Device:
        """The accelerator with another peak rate of attention, (rows,), at the clock of the plan's precision."""
        columns = {"peak_flop_rate": side_by_side(*self.peak_flop_rate.T[:CORE], peak_flop_rate)}
        for name in ("energy_ratio", "thermal_design_power"):
            planned, *others = getattr(self, name).T
            if others:
                columns[name] = side_by_side(planned, others[0], planned)
        return replace(self, **columns)


def vector_flop_rate(vector_peak: Numeric, matrix_peak: Numeric, matrix_to_vector_ratio: Numeric) -> Array:
    r"""Peak of the vector units in FP32: stated, or from its ratio to the 16-bit peak of the matrix units.

    .. math:: P_v = P_{FP32} \text{ or } P_{BF16} / r

    Heuristic, this work.

    >>> float(vector_flop_rate(np.nan, 800.0, 16.0))  # Not stated beside a matrix peak of 800
    50.0

    Parameters
    ----------
    vector_peak : Stated peak in FP32; NaN: not stated. [FLOP/s]
    matrix_peak : Dense BF16 peak of the matrix units; may be NaN beside a stated vector peak. [FLOP/s]
    matrix_to_vector_ratio : Ratio r of the two peaks, 16 on A100; may be NaN beside a stated vector peak. [-]

    Returns
    -------
    rate : Peak of the vector units. [FLOP/s]
    """
    stated = array(vector_peak)
    return np.where(np.isnan(stated), array(matrix_peak) / array(matrix_to_vector_ratio), stated)


def transfer_time(traffic: Numeric, bandwidth: Numeric, efficiency: Numeric = 1.0) -> Array:
    r"""Time to move bytes through one memory level.

    .. math:: t = \frac{T}{\eta B}

    Source: S. Williams, A. Waterman and D. Patterson, "Roofline", Commun. ACM 52(4), 2009, doi:10.1145/1498765.1498785.

    >>> float(transfer_time(80.0, 100.0, 0.8))  # 80 B at four fifths of 100 B/s
    1.0

    Parameters
    ----------
    traffic : Bytes moved. [B]
    bandwidth : Peak bandwidth of the level; infinite: no limit. [B/s]
    efficiency : Efficiency, achieved over peak. [-]

    Returns
    -------
    time : Time of the transfer. [s]
    """
    return np.asarray(array(traffic) / (array(efficiency) * array(bandwidth)))


def blended_time(first_time: Numeric, second_time: Numeric, serial_share: Numeric = 0.0) -> Array:
    r"""Time of two activities that overlap except for a share of the shorter one.

    .. math:: t = \max(t_1, t_2) + s \min(t_1, t_2)

    Heuristic, this work, between the roofline and the sum. Source: S. Williams, A. Waterman and D. Patterson,
    "Roofline", Commun. ACM 52(4), 2009, doi:10.1145/1498765.1498785.

    >>> float(blended_time(3.0, 2.0, 0.5))  # Half of the shorter time is hidden: 3 + 0.5 x 2
    4.0

    Parameters
    ----------
    first_time : Time t_1 of one activity alone. [s]
    second_time : Time t_2 of the other activity alone. [s]
    serial_share : Exposed share s of the shorter time: 0 is the roofline, 1 the sum. [-]

    Returns
    -------
    time : Time of both. [s]
    """
    first, second = array(first_time), array(second_time)
    return np.asarray(np.maximum(first, second) + array(serial_share) * np.minimum(first, second))


def arithmetic_power(power_limit: Numeric, static_power: Numeric = np.nan) -> Array:
    r"""Power available to the matrix units under a power limit.

    .. math:: P_a = \frac{0.75}{1 - 0.13} (P_{max} - P_s), \quad P_s = 0.13\,P_{max} \text{ unless stated}

    Heuristic, this work: three quarters of the limit fit the products of ten accelerators best.

    >>> float(arithmetic_power(700.0))  # A limit of 700 W
    525.0

    Parameters
    ----------
    power_limit : Power limit of the accelerator; NaN or infinite: none. [W]
    static_power : Leakage and idle clocks P_s; NaN: 0.13 of the limit. [W]

    Returns
    -------
    power : At least a twentieth of the limit. [W]
    """
    limit, static = array(power_limit), array(static_power)
    limit = np.where(np.isnan(limit), np.inf, limit)
    left = np.where(np.isnan(static), (1.0 - STATIC_SHARE) * limit, limit - static)
    return np.asarray(ARITHMETIC_SHARE * np.maximum(left, _LEAST_SHARE * limit))


def clock_limited_time(burst_time: Numeric, energy: Numeric, power: Numeric) -> Array:
    r"""Time of work at the clock that keeps a power limit.

    Power falls with the cube of the clock, and linearly below the least voltage, :math:`v_0 = 2/3` of the boost one.

    .. math:: t = t_b \max\left(1,\, \sqrt[3]{p},\, v_0^2 p\right), \quad p = \frac{E / t_b}{P}

    Near the nominal voltage a node's voltage is almost linear in the clock. Source: T. Sakurai and A. R. Newton,
    "Alpha-power law MOSFET model", IEEE JSSC 25(2), 1990, doi:10.1109/4.52187.

    Twice and eight times the available power; the latter is at the least voltage:

    >>> clock_limited_time(1.0, np.array([2.0, 8.0]), 1.0).round(3).tolist()
    [1.26, 3.556]

    Parameters
    ----------
    burst_time : Time at the boost clock. [s]
    energy : Energy of the work at the boost clock. [J]
    power : Power P available to the work; infinite: no limit. [W]

    Returns
    -------
    time : Time under the limit; infinite without power. [s]
    """
    burst, least = array(burst_time), array(energy) / array(power)
    slowest = LEAST_VOLTAGE_SHARE * LEAST_VOLTAGE_SHARE * least
    return np.asarray(np.maximum(np.maximum(burst, cbrt(least * burst * burst)), slowest))


def doubling_savings(compute_time: Numeric, memory_time: Numeric, serial_share: Numeric = 0.0) -> tuple[Array, Array]:
    r"""Time saved by doubling the compute rate, and by doubling the memory bandwidth.

    .. math:: \Delta_1 = t(t_1, t_2) - t(t_1 / 2, t_2), \quad \Delta_2 = t(t_1, t_2) - t(t_1, t_2 / 2)

    with the time t of :func:`blended_time`. Source: S. Williams, A. Waterman and D. Patterson, "Roofline", Commun. ACM
    52(4), 2009, doi:10.1145/1498765.1498785.

    A kernel of 8 s of arithmetic and 2 s of traffic is compute-bound:

    >>> tuple(map(float, doubling_savings(8.0, 2.0)))
    (4.0, 0.0)

    Parameters
    ----------
    compute_time : Time t_1 of the arithmetic alone. [s]
    memory_time : Time t_2 of the traffic alone. [s]
    serial_share : Exposed share of the shorter time. [-]

    Returns
    -------
    compute_saving : Time saved by units of twice the rate. [s]
    memory_saving : Time saved by a memory of twice the bandwidth. [s]
    """
    compute, memory = array(compute_time), array(memory_time)
    whole = blended_time(compute, memory, serial_share)
    return (
        np.asarray(whole - blended_time(0.5 * compute, memory, serial_share)),
        np.asarray(whole - blended_time(compute, 0.5 * memory, serial_share)),
    )


def vector_time(device: Device, constants: Mapping[str, Array], traffic: Numeric, flop: Numeric) -> Array:
    """Time of an element-wise operation or a reduction: launch, and the longer of compute and memory time."""
    memory = transfer_time(traffic, device.memory_bandwidth, constants["memory_efficiency"])
    compute = array(flop) / (constants["compute_efficiency"] * device.vector_flop_rate)
    return np.asarray((constants["launch_time"] + 0.0 * memory) + np.maximum(compute, memory))


def linear_attention_time(
    device: Device,
    constants: Mapping[str, Array],
    traffic: Numeric,
    flop: Numeric,
    num_chunks: Numeric,
    rate: MatrixRate | None = None,
) -> Array:
    """Time of a chunked linear-attention scan (gated delta net, Mamba-2). Chunks run in parallel at the memory rate, or
    the matrix rate if slower; then the state passes through the chunks of a sequence one after the other.
    """
    memory = transfer_time(traffic, device.memory_bandwidth, constants["memory_efficiency"])
    compute = array(flop) / (rate or device.rate()).peak_flop_rate
    return np.asarray(
        constants["launch_time"] + np.maximum(memory, compute) + array(num_chunks) * constants["chunk_time"]
    )


def scan_time(
    device: Device, kernels: Mapping[str, Mapping[str, Array]], flop: Array, traffic: Array, chunks: Array | None = None
) -> Array:
    """Time of a scan of linear attention: in chunks on the matrix units, else on the vector units."""
    if chunks is None:
        return vector_time(device, kernels["vector"], traffic, flop)
    return linear_attention_time(device, kernels["linear_attention"], traffic, flop, chunks, device.rate(CORE))


def score_time(device: Device, kernels: Mapping[str, Mapping[str, Array]], flop: Array, traffic: Array) -> Array:
    """Time of products on the matrix units beside their traffic: the index of sparse attention."""
    compute = flop / (kernels["attention"]["compute_efficiency"] * device.rate(CORE).peak_flop_rate)
    return np.maximum(compute, vector_time(device, kernels["vector"], traffic, 0.0))


def stack_constants(kernels: Mapping[str, Mapping[str, Array]], input_casts: bool) -> dict[str, Mapping[str, Array]]:
    """Kernel constants in a running engine or training stack, without launch time or, in training, input casts. A stack
    launches ahead of the accelerator or as a graph, and casts once, fused with the previous kernel; gaps are part of
    the software's overhead per layer. Collectives keep their launch time, the rendezvous of the ranks.
    """
    in_stack: dict[str, Mapping[str, Array]] = {}
    for family, constants in kernels.items():
        zero = ["launch_time"] if family in WITHOUT_LAUNCH or family.startswith("gemm_") else []
        zero += ["input_traffic"] if family == "gemm" and not input_casts else []
        in_stack[family] = {**constants, **{name: 0.0 * constants[name] for name in zero}} if zero else constants
    return in_stack


RESOURCES = ("compute", "memory", "network", "overhead")
"""Limiting resources by code: arithmetic units and power; main memory and last-level cache; links; none of them."""
_TWICE, WITHOUT_LIMIT = 2.0, 2.0**40


class Faster(NamedTuple):
    """Speed-up factors of a machine's resources, a number for all plans or (rows, 1)."""

    compute: float | Array = 1.0  # matrix, vector and exponential units, and their power [-]
    memory: float | Array = 1.0  # bandwidth of main memory and last-level cache [-]
    network: float | Array = 1.0  # bandwidth of links [-]
    power: float | Array = 1.0  # power limit alone [-]

    def device(self, device: Device) -> Device:
        """The accelerator sped up by these factors."""
        units, memory = self.compute, self.memory
        return replace(
            device,
            peak_flop_rate=units * device.peak_flop_rate,
            vector_flop_rate=units * device.vector_flop_rate,
            exponential_rate=units * device.exponential_rate,
            thermal_design_power=units * self.power * device.thermal_design_power,
            static_power=units * device.static_power,
            memory_bandwidth=memory * device.memory_bandwidth,
            l2_bandwidth=memory * device.l2_bandwidth,
            stream_ratio=memory / units * device.stream_ratio,
        )


def limiting_resources(times: Callable[[Faster], Sequence[Array]], network: bool = False) -> list[np.ndarray]:
    """Limiting resource of several groups of times: its doubling shortens the time most. Overhead counts as half of the
    time that remains without any limit. Heuristic, this work.
    """
    tried = [Faster(), Faster(compute=_TWICE), Faster(memory=_TWICE)]
    tried += [Faster(network=_TWICE)] if network else []
    tried.append(Faster(*[WITHOUT_LIMIT] * 3))
    groups = zip(*(times(faster) for faster in tried), strict=True)
    return [most_saved(*(time[0] - faster for faster in time[1:-1]), 0.5 * time[-1]) for time in groups]


def most_saved(*saved: Array) -> np.ndarray:
    """Position in :data:`RESOURCES` of the largest time saved; the last argument belongs to overhead."""
    most = np.argmax(known_or(np.stack(saved, axis=-1), 0.0), axis=-1)
    return np.asarray(np.where(most == len(saved) - 1, len(RESOURCES) - 1, most))


def ideal_constants(constants: Mapping[str, Array]) -> dict[str, Array]:
    """Constants of a kernel at datasheet rates: efficiencies 1, overheads 0, tiles as in its library."""
    overheads = ("cache_share", "serial_share", "input_traffic", "energy_per_flop")

    def ideal(name: str, values: Array) -> Array:
        if name.endswith(("_efficiency", "_slowdown")):
            return 0.0 * values + 1.0
        return 0.0 * values + 0.0 if name.endswith("_time") or name in overheads else values

    return {name: ideal(name, values) for name, values in constants.items()}


def ideal_times(
    flop: Numeric, traffic: Numeric, peak_flop_rate: Numeric, memory_bandwidth: Numeric
) -> tuple[Array, Array]:
    r"""Time of a kernel on the ideal roofline, and its limiting resource.

    .. math:: t = \max\left(\frac{F}{P}, \frac{T}{B}\right)

    A kernel is compute-bound if its intensity F / T reaches the ridge point P / B. Source: S. Williams, A. Waterman and
    D. Patterson, "Roofline", Commun. ACM 52(4), 2009, doi:10.1145/1498765.1498785.

    191 FLOP/B on an H100, whose ridge is at 295 FLOP/B:

    >>> time, code = ideal_times(191e9, 1e9, 989e12, 3.35e12)
    >>> float(time.round(7)), RESOURCES[int(code)]
    (0.0002985, 'memory')

    Parameters
    ----------
    flop : Operations F. [FLOP]
    traffic : Bytes T through the main memory. [B]
    peak_flop_rate : Dense peak P of the datasheet. [FLOP/s]
    memory_bandwidth : Bandwidth B of the main memory. [B/s]

    Returns
    -------
    time : Time without padding or efficiencies. [s]
    code : Position in :data:`RESOURCES`. [-]
    """
    compute, memory = array(flop) / array(peak_flop_rate), array(traffic) / array(memory_bandwidth)
    longer = np.maximum(compute, memory)
    return longer, np.where(compute >= memory, 0.0, 1.0) + 0.0 * longer


def cache_bandwidth(
    stated_bandwidth: Numeric, num_multiprocessors: Numeric, clock_rate: Numeric, bytes_per_clock: Numeric
) -> Array:
    r"""Bandwidth of the last-level cache: as stated, else from the bytes that multiprocessors read per clock.

    .. math:: B = n f b

    Heuristic, this work; an unknown bandwidth is infinite.

    >>> float(cache_bandwidth(np.nan, 100.0, 2.0, 64.0))  # 100 multiprocessors at 2 Hz
    12800.0

    Parameters
    ----------
    stated_bandwidth : Bandwidth of the datasheet; NaN: not stated. [B/s]
    num_multiprocessors : Multiprocessors n; NaN: not stated. [-]
    clock_rate : Their clock f; NaN: not stated. [1/s]
    bytes_per_clock : Bytes b that each reads per clock; may be NaN if the bandwidth is stated. [B]

    Returns
    -------
    bandwidth : Infinite if nothing is stated. [B/s]
    """
    stated, clocked = array(stated_bandwidth), array(num_multiprocessors) * array(clock_rate)
    derived = np.where(np.isnan(clocked), np.inf, array(bytes_per_clock) * clocked)
    return np.where(np.isnan(stated), derived, stated)


def resident_share(working_set: Numeric, cache_capacity: Numeric) -> Array:
    r"""Share of the working set of a step that the last-level cache still holds from the previous step.

    A cyclic scan larger than the cache evicts every line before its reuse; a cache of twice its size holds all.

    .. math:: h = \min\left(\max\left(\frac{C - W}{C / 2}, 0\right), 1\right)

    Heuristic, this work, after cyclic scans. Source: P. J. Denning, "The working set model", Commun. ACM 11(5),
    1968, doi:10.1145/363095.363141.

    >>> resident_share(np.array([20.0, 75.0, 200.0]), 100.0).tolist()  # Working sets of 20, 75 and 200 MB beside 100 MB
    [1.0, 0.5, 0.0]

    Parameters
    ----------
    working_set : Bytes W that every step reads on an accelerator. [B]
    cache_capacity : Last-level cache C; NaN: nothing stays. [B]

    Returns
    -------
    share : 0 for working sets above the cache, 1 within half of it. [-]
    """
    needed, room = np.broadcast_arrays(array(working_set), known_or(cache_capacity, 0.0))
    filled = np.divide(needed, room, out=np.full(needed.shape, np.inf), where=room > 0.0)
    share = np.minimum(np.maximum((1.0 - filled) / (1.0 - CACHE_SHARE), 0.0), 1.0)
    return np.asarray(np.where(np.isnan(needed), np.nan, share))


def resident_bandwidth(share: Numeric, memory_bandwidth: Numeric, cache_bandwidth: Numeric) -> Array:
    r"""Mean bandwidth of reads if the last-level cache serves a share.

    .. math:: B = \left(\frac{1 - h}{B_m} + \frac{h}{B_c}\right)^{-1}

    Heuristic, this work.

    >>> float(resident_bandwidth(0.5, 1.0, 4.0))  # Half of the bytes at four times the rate
    1.6

    Parameters
    ----------
    share : Share h of the bytes that are in the cache. [-]
    memory_bandwidth : Bandwidth of the main memory. [B/s]
    cache_bandwidth : Bandwidth of the last-level cache; NaN or infinite: the main memory serves all reads. [B/s]

    Returns
    -------
    bandwidth : At least the bandwidth of the main memory. [B/s]
    """
    main, cache = array(memory_bandwidth), array(cache_bandwidth)
    cache = np.where(np.isfinite(cache), np.maximum(cache, main), main)
    hits = array(share)
    return np.asarray(1.0 / ((1.0 - hits) / main + hits / cache))


def exposed_offload_time(size: Numeric, bandwidth: Numeric, computing_time: Numeric) -> Array:
    r"""Exposed time of a transfer to or from the host, beyond the computation that hides it.

    .. math:: t = \max\left(\frac{S}{B} - t_c,\ 0\right)

    Source: M. Isaev et al., "Calculon", SC 2023, doi:10.1145/3581784.3607102, section 3 (tensor offloading).

    >>> float(exposed_offload_time(30.0, 10.0, 2.0))  # 3 s of transfer behind 2 s of computation
    1.0

    Parameters
    ----------
    size : Bytes S that move in one direction. [B]
    bandwidth : Bandwidth B of the link, one direction. [B/s]
    computing_time : Time t_c of the concurrent computation. [s]

    Returns
    -------
    time : Exposed part. [s]
    """
    return np.asarray(np.maximum(array(size) / array(bandwidth) - array(computing_time), 0.0))
