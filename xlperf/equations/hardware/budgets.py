"""What budgets of area, edge and power hold: cores, caches, memory stacks, links, and the clock that power leaves."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array


def outer_perimeter(area: Numeric, aspect_ratio: Numeric) -> Array:
    r"""Outer perimeter (shoreline) of a rectangle of dies.

    .. math:: p = 2 \left(\sqrt{A r} + \sqrt{A / r}\right)

    Parameters
    ----------
    area : numeric
        Area A of all dies that stand side by side. [mm2]
    aspect_ratio : numeric
        Long side over short side r of the rectangle that they make. [-]

    Returns
    -------
    perimeter : numeric
        Edge to the outside; seams between dies do not count. [mm]

    References
    ----------
    .. [1] N. Ardalani, S. Pal and P. Gupta, "DeepFlow", ACM TODAES 29(2), 2024, doi:10.1145/3635867.

    Examples
    --------
    800 mm2 as 40 mm x 20 mm:

    >>> float(outer_perimeter(800.0, 2.0))
    120.0
    """
    size, ratio = array(area), array(aspect_ratio)
    return np.asarray(2.0 * (np.sqrt(size * ratio) + np.sqrt(size / ratio)))


def scaled_core_area(
    core_area: Numeric,
    sram_size: Numeric,
    reference_sram_area: Numeric,
    sram_area: Numeric,
    reference_logic_density: Numeric,
    logic_density: Numeric,
) -> Array:
    r"""Core area ported to another process node: SRAM scales with the bit cell, logic with transistor density.

    .. math:: A' = S a' + \max(A - S a, 0)\,\frac{\rho}{\rho'}

    Heuristic, this work.

    Parameters
    ----------
    core_area : numeric
        Area A of the core where it is stated. [mm2]
    sram_size : numeric
        Registers and shared memory S of the core. [B]
    reference_sram_area : numeric
        Area a of SRAM there, with all that is not bit cell. [mm2/B]
    sram_area : numeric
        Area a' of SRAM at the node that is asked for. [mm2/B]
    reference_logic_density : numeric
        Transistors per area there. [1/mm2]
    logic_density : numeric
        Transistors per area at the node that is asked for. [1/mm2]

    Returns
    -------
    scaled_core_area : numeric
        Area of the same core at the other node. [mm2]

    Examples
    --------
    SRAM shrinks from 1 to 0.5 mm2, logic of 2 mm2 to half:

    >>> float(scaled_core_area(3.0, 1000.0, 0.001, 0.0005, 100.0, 200.0))
    1.5
    """
    size = array(sram_size)
    logic = np.maximum(array(core_area) - size * array(reference_sram_area), 0.0)
    return np.asarray(size * array(sram_area) + logic * (array(reference_logic_density) / array(logic_density)))


def core_count(area: Numeric, core_area: Numeric, enabled_share: Numeric) -> Array:
    r"""Enabled cores of a die area.

    .. math:: n = \left\lfloor \epsilon \left\lfloor A / a \right\rfloor \right\rfloor

    Heuristic, this work.

    Parameters
    ----------
    area : numeric
        Area A for cores. [mm2]
    core_area : numeric
        Area a of one core. [mm2]
    enabled_share : numeric
        Share of the cores that are switched on; the rest are spares for defects. [-]

    Returns
    -------
    core_count : numeric
        Whole cores. [-]

    Examples
    --------
    Nine tenths of 33 cores:

    >>> float(core_count(100.0, 3.0, 0.9))
    29.0
    """
    return np.asarray(np.floor(np.floor(array(area) / array(core_area)) * array(enabled_share)))


def sram_area(sram_cell_area: Numeric, sram_cell_share: Numeric) -> Array:
    r"""SRAM area per byte, array overhead included.

    .. math:: a = a_\mathrm{cell} / \epsilon

    Heuristic, this work.

    Parameters
    ----------
    sram_cell_area : numeric
        Area of the bit cells. [mm2/B]
    sram_cell_share : numeric
        Share of the area that is bit cells. [-]

    Returns
    -------
    sram_area : numeric
        Area per byte that can be used. [mm2/B]

    Examples
    --------
    Half of the area is bit cells:

    >>> float(sram_area(0.2, 0.5))
    0.4
    """
    return np.asarray(array(sram_cell_area) / array(sram_cell_share))


def stack_bandwidth(interface_width: Numeric, pin_rate: Numeric, memory_rate_share: Numeric) -> Array:
    r"""Bandwidth of one HBM stack.

    .. math:: b = w\,r\,\sigma

    Parameters
    ----------
    interface_width : numeric
        Data pins w. [-]
    pin_rate : numeric
        Fastest data rate r of a pin. [B/s]
    memory_rate_share : numeric
        Data rate over the fastest; products stay below the best parts of their time. [-]

    Returns
    -------
    stack_bandwidth : numeric
        Both directions together, as memories are quoted. [B/s]

    References
    ----------
    .. [1] JEDEC JESD238B (HBM3) and JESD270-4 (HBM4).

    Examples
    --------
    1024 pins x 0.8 x 0.9:

    >>> float(stack_bandwidth(1024.0, 0.8, 0.9))
    737.28
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

    Parameters
    ----------
    perimeter : numeric
        Edge p of the dies to the outside. [mm]
    shoreline_share : numeric
        Share s of it for memory. [-]
    stack_shoreline : numeric
        Edge l that one stack takes. [mm]
    power_budget : numeric
        Power P of the package; infinite where there is no budget. [W]
    memory_power_share : numeric
        Largest share of it for memory. [-]
    stack_power : numeric
        Power of one stack at full bandwidth. [W]

    Returns
    -------
    stack_count : numeric
        Whole stacks. [-]

    Examples
    --------
    60 mm of edge hold 5.5 stacks of 11 mm, 200 W feed 6.7 of 30 W:

    >>> float(stack_count(120.0, 0.5, 11.0, 1000.0, 0.2, 30.0))
    5.0
    """
    by_edge = array(perimeter) * array(shoreline_share) / array(stack_shoreline)
    by_power = array(power_budget) * array(memory_power_share) / array(stack_power)
    return np.asarray(np.floor(np.minimum(by_edge, by_power)))


def lane_count(perimeter: Numeric, shoreline_share: Numeric, shoreline_bandwidth: Numeric, lane_rate: Numeric) -> Array:
    r"""Link lanes that fit the shoreline.

    .. math:: n = \left\lfloor p\,s\,\beta / r \right\rfloor

    Heuristic, this work.

    Parameters
    ----------
    perimeter : numeric
        Edge p of the dies to the outside. [mm]
    shoreline_share : numeric
        Share s of it for the links. [-]
    shoreline_bandwidth : numeric
        Bandwidth per edge, one direction; the other runs beside it. [B/s/mm]
    lane_rate : numeric
        Rate r of one lane. [B/s]

    Returns
    -------
    lane_count : numeric
        Whole lanes in one direction, and as many in the other. [-]

    Examples
    --------
    30 mm of edge at 10 per mm, lanes of 4:

    >>> float(lane_count(120.0, 0.25, 10.0, 4.0))
    75.0
    """
    length = array(perimeter) * array(shoreline_share)
    return np.asarray(np.floor(length * array(shoreline_bandwidth) / array(lane_rate)))


def interface_area(bandwidth: Numeric, shoreline_bandwidth: Numeric, interface_depth: Numeric) -> Array:
    r"""Die area of link interfaces (PHYs).

    .. math:: A = \frac{B}{\beta} d

    Heuristic, this work.

    Parameters
    ----------
    bandwidth : numeric
        Bandwidth B, one direction. [B/s]
    shoreline_bandwidth : numeric
        Bandwidth per edge, one direction. [B/s/mm]
    interface_depth : numeric
        Depth d behind the edge. [mm]

    Returns
    -------
    interface_area : numeric
        Area behind the edge that the links take. [mm2]

    Examples
    --------
    10 mm of edge, 2 mm deep:

    >>> float(interface_area(1000.0, 100.0, 2.0))
    20.0
    """
    return np.asarray(array(bandwidth) / array(shoreline_bandwidth) * array(interface_depth))


def crossing_bandwidth(bandwidth: Numeric, num_dies: Numeric) -> Array:
    r"""Die-to-die share of a traffic that is spread evenly over dies.

    .. math:: B_x = B\,\frac{n - 1}{n}

    Heuristic, this work: traffic is even.

    Parameters
    ----------
    bandwidth : numeric
        All traffic B. [B/s]
    num_dies : numeric
        Dies n that ask for it and hold it. [-]

    Returns
    -------
    crossing_bandwidth : numeric
        What crosses between dies; none on a single one. [B/s]

    Examples
    --------
    Three of four bytes come from another die:

    >>> float(crossing_bandwidth(100.0, 4.0))
    75.0
    """
    number = array(num_dies)
    return np.asarray(array(bandwidth) * ((number - 1.0) / number))


_HALVINGS = 60


def voltage_share(clock_share: Numeric, least_voltage_share: Numeric) -> Array:
    r"""Supply voltage relative to nominal that a clock needs.

    .. math:: v = \max\left(v_0 + (1 - v_0)\,x,\; x\right)

    Heuristic, this work: below its nominal voltage a node is close to the straight line [1]_; above it the voltage
    rises as the clock does, as in :func:`xlperf.equations.hardware.power.node_energy_ratio`.

    Parameters
    ----------
    clock_share : numeric
        Clock over the nominal clock x. [-]
    least_voltage_share : numeric
        Voltage of a slow clock over the nominal voltage. [-]

    Returns
    -------
    voltage_share : numeric
        Voltage over the nominal voltage. [-]

    References
    ----------
    .. [1] T. Sakurai and A. R. Newton, "Alpha-power law MOSFET model", IEEE JSSC 25(2), 1990, doi:10.1109/4.52187.

    Examples
    --------
    Half-way between 0.6 and 1, and a tenth above the nominal clock:

    >>> voltage_share([0.5, 1.1], 0.6).tolist()
    [0.8, 1.1]
    """
    least, share = array(least_voltage_share), array(clock_share)
    return np.asarray(np.maximum(least + (1.0 - least) * share, share))


def switching_power(flop_rate: Numeric, flop_energy: Numeric, voltage_share: Numeric) -> Array:
    r"""Dynamic power of arithmetic.

    .. math:: P = R\,e\,v^2

    By definition.

    Parameters
    ----------
    flop_rate : numeric
        Operations per second R. [FLOP/s]
    flop_energy : numeric
        Energy e of one at nominal voltage, with fetching its operands. [J/FLOP]
    voltage_share : numeric
        Voltage over the nominal voltage v. [-]

    Returns
    -------
    switching_power : numeric
        Power. [W]

    Examples
    --------
    1000 x 0.5 W, times 0.8 squared:

    >>> float(switching_power(1000.0, 0.5, 0.8))
    320.0
    """
    share = array(voltage_share)
    return np.asarray(array(flop_rate) * array(flop_energy) * share * share)


def transfer_power(bandwidth: Numeric, energy: Numeric) -> Array:
    r"""Dynamic power of data movement.

    .. math:: P = B\,e

    By definition.

    Parameters
    ----------
    bandwidth : numeric
        Bytes per second B. [B/s]
    energy : numeric
        Energy e of one byte. [J/B]

    Returns
    -------
    transfer_power : numeric
        Power. [W]

    Examples
    --------
    100 B/s x 0.4 J/B:

    >>> float(transfer_power(100.0, 0.4))
    40.0
    """
    return np.asarray(array(bandwidth) * array(energy))


def static_power(area: Numeric, power_density: Numeric) -> Array:
    r"""Static power: leakage and idle clocks.

    .. math:: P = A\,p

    By definition.

    Parameters
    ----------
    area : numeric
        Area A of cores or cache. [mm2]
    power_density : numeric
        Static power per area p. [W/mm2]

    Returns
    -------
    static_power : numeric
        Power. [W]

    Examples
    --------
    800 mm2 x 0.05 W/mm2:

    >>> float(static_power(800.0, 0.05))
    40.0
    """
    return np.asarray(array(area) * array(power_density))


def clock_share(
    power: Numeric, full_power: Numeric, least_voltage_share: Numeric, largest_share: Numeric = 1.0
) -> Array:
    r"""Clock relative to nominal within a budget of dynamic power.

    The largest x up to x_1 with

    .. math:: P_1\,x\,v(x)^2 \le P

    and the voltage v of :func:`voltage_share`, found by bisection. Heuristic, this work: all switching power scales
    with the square of the voltage.

    Parameters
    ----------
    power : numeric
        Power P for switching. [W]
    full_power : numeric
        Power of switching at the nominal clock and voltage. [W]
    least_voltage_share : numeric
        Voltage of a slow clock over the nominal voltage. [-]
    largest_share : numeric, default 1.0
        Clock x_1 without a limit of power, over the nominal one. [-]

    Returns
    -------
    clock_share : numeric
        From 0 to the largest; 0 where no power is left. [-]

    Examples
    --------
    Where the voltage follows the clock, half the clock takes an eighth of the power; a fifth more takes 1.73 times:

    >>> clock_share(12.5, 100.0, 0.0).round(6).tolist(), clock_share(173.0, 100.0, 0.6, 1.2).round(6).tolist()
    (0.5, 1.2)
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
    found = np.where(within(top), top, np.where(target <= 0.0, 0.0, low))
    return np.asarray(np.where(np.isnan(target + least + top), np.nan, found))
