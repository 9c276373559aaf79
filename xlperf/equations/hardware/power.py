"""Power, energy and temperature of an accelerator at work, and its clock under a lowered power limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, known_or, power, side_by_side
from xlperf.base.units import factor
from xlperf.equations.hardware.gemm import product_memory_traffic
from xlperf.equations.hardware.roofline import (
    LEAST_VOLTAGE_SHARE,
    STATIC_SHARE,
    Device,
    arithmetic_power,
    clock_limited_time,
)

REFERENCE_ENERGY = 0.392 * factor("pJ/FLOP")
"""Energy of a 16-bit operation at 5 nm in the sheet technology, the reference of energy ratios. [J/FLOP]"""

PRODUCT_ENERGY = 0.95 * factor("pJ/FLOP")
"""Energy of a 16-bit operation of a product of random operands at 5 nm and its nominal clock. [J/FLOP]"""

_TILE = (256.0, 128.0)
_USUAL_CACHE = 50.0 * 2.0**20  # last-level cache of the machines with measured energy [B]


class PowerLimits(NamedTuple):
    """Power limits of accelerators, by datasheet and as a plan lowers them, (rows,)."""

    own: Array  # Power limit by the datasheet [W]
    kept: Array  # The lower of datasheet and plan [W]
    clock_share: Array  # Clock of long products under it, over the clock under the datasheet limit [-]

    def take(self, rows: slice | np.ndarray) -> PowerLimits:
        """Selected rows."""
        return PowerLimits(*(values[rows] for values in self))


class WorkRates(NamedTuple):
    """Work of one accelerator per second, (rows,)."""

    flop: Array  # Operations of matrix products and attention [FLOP/s]
    weights: Array  # Weights streamed to the matrix units [1/s]
    traffic: Array  # Bytes read by the units [B/s]
    from_memory: Array  # Traffic to main memory, relative to a usual last-level cache [-]
    sending: Array  # Fraction of time with messages [-]
    busy: Array  # Fraction of time with any kernel [-]


class Machine(NamedTuple):
    """Accelerators with the inputs of their power model."""

    device: Device  # Accelerators, (rows, 1)
    limits: PowerLimits  # Their power limits, (rows,)
    constants: Mapping[str, Array]  # Constants of the family power, (rows, 1)


def node_energy_ratio(
    flop_energy: Numeric, clock_rate: Numeric, nominal_clock_rate: Numeric, reference_energy: Numeric = REFERENCE_ENERGY
) -> Array:
    r"""Energy of an operation on a node at a clock, relative to 5 nm at its nominal clock.

    .. math:: r = \frac{e}{e_0} \left(\frac{f}{f_0}\right)^2

    The voltage rises with the clock, and the energy with its square. Source: M. Horowitz, "Computing's energy problem",
    ISSCC 2014, doi:10.1109/ISSCC.2014.6757323.

    >>> float(node_energy_ratio(0.392e-12, 3.66e9, 1.83e9).round(6))  # Twice the clock of 5 nm
    4.0

    Parameters
    ----------
    flop_energy : Energy e of a 16-bit operation of the node; NaN: as at 5 nm. [J/FLOP]
    clock_rate : Boost clock f; NaN: the nominal clock. [Hz]
    nominal_clock_rate : Clock f_0 of the node at its nominal voltage; NaN: the boost clock. [Hz]
    reference_energy : Energy e_0 at 5 nm. [J/FLOP]

    Returns
    -------
    ratio : 1 for 5 nm at its nominal clock. [-]
    """
    share = array(clock_rate) / array(nominal_clock_rate)
    energy, reference = array(flop_energy), array(reference_energy)
    energy = np.where(np.isnan(energy), reference, energy)
    return np.asarray(energy / reference * np.where(np.isnan(share), 1.0, share * share))


_ROUNDED_CLOCK = 0.94  # least ratio of two clocks of a datasheet that counts as rounding [-]


def peak_clock_rate(
    peak_flop_rate: Numeric, num_multiprocessors: Numeric, clock_rate: Numeric, nominal_clock_rate: Numeric
) -> Array:
    r"""Clock that yields the stated peak; a higher boost clock is headroom.

    A multiprocessor does a power of two of operations per clock, so that the peak fixes the clock; datasheets round
    both, so a boost clock within a few per cent counts as the clock of the peak.

    .. math:: f_P = \min\left(\max\left(\frac{P}{n\,2^k}, f_0\right), f\right), \quad
              k = \left\lfloor \log_2 \frac{P}{n f} \right\rceil

    Heuristic, this work: holds on A100, H100, GB200, L40S and MI300X within rounding of the datasheet.

    132 multiprocessors of an H100 do 4,096 operations per clock, whatever its boost clock:

    >>> peak_clock_rate(989.4e12, 132.0, np.array([1.83e9, 2.2e9]), 1.83e9).round(-7).tolist()
    [1830000000.0, 1830000000.0]

    Parameters
    ----------
    peak_flop_rate : Dense 16-bit peak P; NaN means not stated. [FLOP/s]
    num_multiprocessors : Multiprocessors n; NaN: one. [-]
    clock_rate : Boost clock f; NaN means not stated. [Hz]
    nominal_clock_rate : Clock f_0 of the node at its nominal voltage; NaN means unknown. [Hz]

    Returns
    -------
    clock : The boost clock if another argument is unknown. [Hz]
    """
    # Operations per clock and multiprocessor, rounded to a power of two in the logarithm.
    clock, unit_rate = array(clock_rate), array(peak_flop_rate) / known_or(num_multiprocessors, 1.0)
    per_clock = unit_rate / clock
    mantissa, exponent = np.frexp(np.where(np.isfinite(per_clock), per_clock, 1.0))
    power_of_two = np.ldexp(1.0, np.where(mantissa * mantissa < 0.5, exponent - 1, exponent))
    stated = np.minimum(np.maximum(unit_rate / power_of_two, array(nominal_clock_rate)), clock)
    return np.where(stated < _ROUNDED_CLOCK * clock, stated, clock)


def _work_power(
    power_limit: Numeric,
    idle_power: Numeric,
    flop_rate: Numeric,
    flop_energy: Numeric,
    traffic_rate: Numeric,
    byte_energy: Numeric,
    sending_share: Numeric = 0.0,
    message_power: Numeric = 0.0,
) -> Array:
    """Mean power of an accelerator: idle power, operations, memory traffic and messages, up to the limit. [W]

    Heuristic, this work: linear in the work, fitted to power measured by batch size (arXiv:2505.06371). An H100 that
    decodes: 175 W, 50 TFLOP/s at 0.95 pJ, 2 TB/s at 141 pJ/B:

    >>> float(_work_power(700.0, 175.0, 50e12, 0.95e-12, 2e12, 141e-12))
    504.5
    """
    drawn = array(idle_power) + array(flop_rate) * array(flop_energy) + array(traffic_rate) * array(byte_energy)
    power = np.minimum(drawn + array(sending_share) * array(message_power), array(power_limit))
    return np.asarray(np.where(np.isfinite(power), power, np.nan))


def accelerator_power(
    device: Device, limits: PowerLimits, constants: Mapping[str, Array], product_size: Array, rates: WorkRates
) -> Array:
    """Mean power of accelerators by :func:`_work_power`, with the constants of the family power. A product draws as if
    it had a tile's rows more, because each weight, whatever its width, passes shared memory, registers and matrix
    units. A byte pays the caches, and the main memory for its share.
    """
    constants = {name: values[:, 0] for name, values in constants.items()}
    # Idle power [W]: as measured, else the model's; while kernels run, the clocks of all units add to it.
    clocks = power_at_clock(constants["active_share"] * limits.own, limits.clock_share)
    static = device.static_power[:, 0]  # scales the idle power; if not stated it is a share of the limit
    usual = np.where(np.isnan(static) | np.isnan(limits.own), limits.own, static / STATIC_SHARE)
    usual = constants["idle_share"] * usual
    idle = np.where(np.isnan(device.idle_power[:, 0]), usual, device.idle_power[:, 0])
    rest = idle + rates.busy * np.maximum(usual + clocks - idle, 0.0)
    # Operations with the extra rows per weight, and their energy; energy of a byte; power of messages.
    flop_energy = narrow_energy(constants["flop_energy"], product_size) * device.energy_ratio[:, 0]
    flop = rates.flop + 2.0 * constants["tile_rows"] * rates.weights
    byte_energy = (constants["memory_ratio"] - 1.0 + rates.from_memory) * device.memory_energy[:, 0]
    messages = constants["message_share"] * limits.own
    return _work_power(limits.kept, rest, flop, flop_energy, rates.traffic, byte_energy, rates.sending, messages)


def traffic_from_memory(device: Device, width: Array, depth: Array, tokens: Array, element_size: Array) -> Array:
    """Main-memory traffic of the widest product, relative to a cache of 50 MiB. Heuristic, this work."""
    rows, columns, inner, size = (values[:, None] for values in (np.maximum(tokens, 1.0), width, depth, element_size))
    units = device.num_multiprocessors
    caches = side_by_side(known_or(device.l2_capacity[:, 0], _USUAL_CACHE), _USUAL_CACHE)
    actual, usual = product_memory_traffic(rows, columns, inner, 1.0, size, size, *_TILE, units, caches).T
    return np.where(np.isnan(units[:, 0]), 1.0, actual / usual)


def narrow_energy(flop_energy: Numeric, element_size: Numeric, wide_size: Numeric = 2.0) -> Array:
    r"""Energy of an operation on narrow inputs.

    .. math:: e = e_{16} \left(\frac{s}{2\,\mathrm{B}}\right)^{0.6}

    Heuristic, this work: exponent from products in 16, 8 and 4 bits measured under one power limit.

    >>> float(narrow_energy(3.0, 1.0).round(2))  # FP8 takes two thirds of the energy of BF16
    1.98

    Parameters
    ----------
    flop_energy : Energy of a 16-bit operation. [J/FLOP]
    element_size : Size of an input. [B]
    wide_size : Size of a 16-bit input. [B]

    Returns
    -------
    energy : Energy of an operation. [J/FLOP]
    """
    return np.asarray(array(flop_energy) * power(array(element_size) / array(wide_size), 0.6))


def capped_clock_share(
    full_power: Numeric, capped_limit: Numeric, power_limit: Numeric, static_power: Numeric = np.nan
) -> Array:
    r"""Clock of long products under a lowered power limit, relative to the datasheet limit.

    .. math:: x = \frac{t(P_{max})}{t(P_{cap})}

    with the time t of :func:`clock_limited_time`. A B300 of 1,100 W at 900, 700, 550, 450 W: 0.95, 0.77, 0.61, 0.50.
    Source: T. Sakurai and A. R. Newton, "Alpha-power law MOSFET model", IEEE JSSC 25(2), 1990, doi:10.1109/4.52187.

    A B300 whose units would draw 1,836 W:

    >>> capped_clock_share(1836.0, np.array([900.0, 450.0]), 1100.0).round(2).tolist()
    [0.92, 0.42]

    Parameters
    ----------
    full_power : Power of the matrix units at the boost clock. [W]
    capped_limit : Lowered limit; NaN: none. [W]
    power_limit : Limit by the datasheet; NaN: none. [W]
    static_power : Leakage and idle clocks; NaN: 0.13 of the datasheet limit. [W]

    Returns
    -------
    share : 1 at most. [-]
    """
    rated, full, static = array(power_limit), array(full_power), array(static_power)
    static = np.where(np.isnan(static), STATIC_SHARE * rated, static)
    capped = np.fmin(array(capped_limit), rated)
    times = [clock_limited_time(1.0, full, arithmetic_power(limit, static)) for limit in (rated, capped)]
    return np.asarray(np.minimum(times[0] / times[1], 1.0))


def energy_at_clock(energy: Numeric, clock_share: Numeric) -> Array:
    r"""Energy of an operation at a share of the clock.

    .. math:: e' = \max(x, v_0)^2 e

    The voltage falls with the clock down to the least voltage of the node, :math:`v_0 = 2/3` of the full one, and the
    energy with its square. Source: M. Horowitz, "Computing's energy problem", ISSCC 2014,
    doi:10.1109/ISSCC.2014.6757323.

    At three quarters of the clock 9/16; at half the clock the voltage is two thirds:

    >>> energy_at_clock(1.0, np.array([0.75, 0.5])).round(4).tolist()
    [0.5625, 0.4444]

    Parameters
    ----------
    energy : Energy e at the full clock. [J]
    clock_share : Share x of the clock. [-]

    Returns
    -------
    energy : In the unit of the argument. [J]
    """
    voltage = np.maximum(array(clock_share), LEAST_VOLTAGE_SHARE)
    return np.asarray(array(energy) * (voltage * voltage))


def power_at_clock(full_power: Numeric, clock_share: Numeric) -> Array:
    r"""Power of clocked units at a share of the clock, each operation of :func:`energy_at_clock`.

    .. math:: P' = x\,e'(x)\,P

    By definition.

    >>> float(power_at_clock(640.0, 0.75))  # At three quarters of the clock 27/64
    270.0

    Parameters
    ----------
    full_power : Power P at the full clock. [W]
    clock_share : Share x of the clock. [-]

    Returns
    -------
    power : Power. [W]
    """
    share = array(clock_share)
    return np.asarray(array(full_power) * energy_at_clock(share, share))


def outer_perimeter(area: Numeric, aspect_ratio: Numeric) -> Array:
    r"""Outer perimeter (shoreline) of a rectangle of dies.

    .. math:: p = 2 \left(\sqrt{A r} + \sqrt{A / r}\right)

    Source: N. Ardalani, S. Pal and P. Gupta, "DeepFlow", ACM TODAES 29(2), 2024, doi:10.1145/3635867.

    >>> float(outer_perimeter(800.0, 2.0))  # 800 mm2 as 40 mm x 20 mm
    120.0

    Parameters
    ----------
    area : Area A of all dies side by side. [mm2]
    aspect_ratio : Long over short side r of their rectangle. [-]

    Returns
    -------
    perimeter : Outer edge, without seams between dies. [mm]
    """
    size, ratio = array(area), array(aspect_ratio)
    return np.asarray(2.0 * (np.sqrt(size * ratio) + np.sqrt(size / ratio)))


def stack_bandwidth(interface_width: Numeric, pin_rate: Numeric, memory_rate_share: Numeric) -> Array:
    r"""Bandwidth of one HBM stack.

    .. math:: b = w\,r\,\sigma

    Source: JEDEC JESD238B (HBM3) and JESD270-4 (HBM4).

    >>> float(stack_bandwidth(1024.0, 0.8, 0.9))  # 1024 pins x 0.8 x 0.9
    737.28

    Parameters
    ----------
    interface_width : Data pins w. [-]
    pin_rate : Fastest data rate r of a pin. [B/s]
    memory_rate_share : Data rate over the fastest rate; products stay below the fastest parts of their time. [-]

    Returns
    -------
    stack_bandwidth : Both directions together, as memories are quoted. [B/s]
    """
    return np.asarray(array(interface_width) * array(pin_rate) * array(memory_rate_share))


def stack_count(
    perimeter: Numeric,
    shoreline_share: Numeric,
    stack_shoreline: Numeric,
    power_budget: Numeric,
    memory_power_share: Numeric,
    stack_power: Numeric,
) -> Array:
    r"""HBM stacks that shoreline and power allow.

    .. math:: n = \left\lfloor \min\left(\frac{p\,s}{l}, \frac{P\,s_P}{P_s}\right) \right\rfloor

    Heuristic, this work.

    60 mm of edge hold 5.5 stacks of 11 mm, 200 W feed 6.7 of 30 W:

    >>> float(stack_count(120.0, 0.5, 11.0, 1000.0, 0.2, 30.0))
    5.0

    Parameters
    ----------
    perimeter : Outer edge p of the dies. [mm]
    shoreline_share : Share s of it for memory. [-]
    stack_shoreline : Edge l that one stack takes. [mm]
    power_budget : Power P of the package; infinite: no budget. [W]
    memory_power_share : Largest share of it for memory. [-]
    stack_power : Power of one stack at full bandwidth. [W]

    Returns
    -------
    stack_count : Whole stacks. [-]
    """
    by_edge = array(perimeter) * array(shoreline_share) / array(stack_shoreline)
    by_power = array(power_budget) * array(memory_power_share) / array(stack_power)
    return np.asarray(np.floor(np.minimum(by_edge, by_power)))


_HALVINGS = 60


def voltage_share(clock_share: Numeric, least_voltage_share: Numeric) -> Array:
    r"""Supply voltage relative to nominal that a clock needs.

    .. math:: v = \max\left(v_0 + (1 - v_0)\,x,\; x\right)

    Heuristic, this work: a straight line below the nominal voltage, proportional to the clock above it. Source: T.
    Sakurai and A. R. Newton, "Alpha-power law MOSFET model", IEEE JSSC 25(2), 1990, doi:10.1109/4.52187.

    >>> voltage_share([0.5, 1.1], 0.6).tolist()  # Half-way between 0.6 and 1, and a tenth above the nominal clock
    [0.8, 1.1]

    Parameters
    ----------
    clock_share : Clock over the nominal clock x. [-]
    least_voltage_share : Voltage of a slow clock over the nominal voltage. [-]

    Returns
    -------
    voltage_share : Voltage over the nominal voltage. [-]
    """
    least, share = array(least_voltage_share), array(clock_share)
    return np.asarray(np.maximum(least + (1.0 - least) * share, share))


def clock_share(
    power: Numeric, full_power: Numeric, least_voltage_share: Numeric, largest_share: Numeric = 1.0
) -> Array:
    r"""Clock relative to nominal within a budget of dynamic power.

    The largest x up to x_1 with

    .. math:: P_1\,x\,v(x)^2 \le P

    with the voltage v of :func:`voltage_share`, by bisection. Heuristic, this work.

    Half the clock takes an eighth of the power if the voltage follows it; a fifth more takes 1.73 times:

    >>> clock_share(12.5, 100.0, 0.0).round(6).tolist(), clock_share(173.0, 100.0, 0.6, 1.2).round(6).tolist()
    (0.5, 1.2)

    Parameters
    ----------
    power : Power P for switching. [W]
    full_power : Switching power P_1 at the nominal clock and voltage. [W]
    least_voltage_share : Voltage of a slow clock over the nominal voltage. [-]
    largest_share : Clock x_1 without a power limit, over the nominal clock. [-]

    Returns
    -------
    clock_share : From 0 to the largest; 0 without power. [-]
    """
    target, least, top = array(power) / array(full_power), array(least_voltage_share), array(largest_share)

    def within(share: Array) -> np.ndarray:
        voltage = voltage_share(share, least)
        return np.asarray(share * voltage * voltage <= target)

    low = np.zeros(np.broadcast(target, least, top).shape)
    high = top + low
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        enough = within(middle)
        low, high = np.where(enough, middle, low), np.where(enough, high, middle)
    share = np.where(within(top), top, np.where(target <= 0.0, 0.0, low))
    return np.asarray(np.where(np.isnan(target + least + top), np.nan, share))


def heat_resistance(
    cooling_resistance: Numeric, stack_resistance: Numeric, stack_share: Numeric, back_resistance: Numeric
) -> Array:
    r"""Thermal resistance from the compute dies to the coolant, for a unit of their area.

    .. math:: \frac{1}{R} = \frac{1}{R_c + R_s / s} + \frac{1}{R_b}

    Source: F. P. Incropera et al., "Fundamentals of Heat and Mass Transfer", 6th ed., Wiley, 2007, section 3.1.

    Memory on half of the area, then a second way out of the same resistance:

    >>> heat_resistance(80.0, 60.0, 0.5, [float("inf"), 200.0]).tolist()
    [200.0, 100.0]

    Parameters
    ----------
    cooling_resistance : Resistance R_c of the interface material and the cooler above the dies. [mm2/(W/K)]
    stack_resistance : Resistance R_s of the dies and bonds between the compute dies and the cooler. [mm2/(W/K)]
    stack_share : Share s of the area of the compute dies that lies under the stacks. [-]
    back_resistance : Resistance R_b of the way out through the substrate; infinite: none. [mm2/(W/K)]

    Returns
    -------
    resistance : Resistance of both ways together. [mm2/(W/K)]
    """
    above = array(cooling_resistance) + array(stack_resistance) / array(stack_share)
    return np.asarray(1.0 / (1.0 / above + 1.0 / array(back_resistance)))


def junction_temperature(power: Numeric, area: Numeric, resistance: Numeric, coolant_temperature: Numeric) -> Array:
    r"""Temperature of compute dies whose heat leaves them evenly.

    .. math:: T = T_0 + \frac{P}{A} R

    Source: F. P. Incropera et al., "Fundamentals of Heat and Mass Transfer", 6th ed., Wiley, 2007, section 3.1.

    700 W of 814 mm2 over 60 mm2 K/W above a coolant of 30 degrees:

    >>> float(junction_temperature(700.0, 814.0, 60.0, 30.0).round(1))
    81.6

    Parameters
    ----------
    power : Power P of the dies and of what is stacked on them. [W]
    area : Area A of the compute dies. [mm2]
    resistance : Resistance R from the dies to the coolant. [mm2/(W/K)]
    coolant_temperature : Temperature T_0 of the coolant in degrees Celsius. [K]

    Returns
    -------
    temperature : Temperature in degrees Celsius. [K]
    """
    return np.asarray(array(coolant_temperature) + array(power) / array(area) * array(resistance))
