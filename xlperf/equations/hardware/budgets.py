"""Budgets of area, edge and power of a die: core area, memory stacks, link interfaces, voltage and clock."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array


def outer_perimeter(area: Numeric, aspect_ratio: Numeric) -> Array:
    r"""Outer perimeter (shoreline) of a rectangle of dies.

    .. math:: p = 2 \left(\sqrt{A r} + \sqrt{A / r}\right)

    Parameters
    ----------
    area : numeric
        Area A of all dies side by side. [mm2]
    aspect_ratio : numeric
        Long over short side r of their rectangle. [-]

    Returns
    -------
    perimeter : numeric
        Outer edge, without seams between dies. [mm]

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
        Area A of the core at its stated node. [mm2]
    sram_size : numeric
        Registers and shared memory S of the core. [B]
    reference_sram_area, sram_area : numeric
        SRAM area per byte, array overhead included, at the stated node (a) and at the other node (a'). [mm2/B]
    reference_logic_density, logic_density : numeric
        Transistors per area at the stated node and at the other node. [1/mm2]

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
        Data rate over the fastest rate; products stay below the fastest parts of their time. [-]

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
        Outer edge p of the dies. [mm]
    shoreline_share : numeric
        Share s of it for memory. [-]
    stack_shoreline : numeric
        Edge l that one stack takes. [mm]
    power_budget : numeric
        Power P of the package; infinite: no budget. [W]
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
        Area of the interfaces. [mm2]

    Examples
    --------
    10 mm of edge, 2 mm deep:

    >>> float(interface_area(1000.0, 100.0, 2.0))
    20.0
    """
    return np.asarray(array(bandwidth) / array(shoreline_bandwidth) * array(interface_depth))


_HALVINGS = 60


def voltage_share(clock_share: Numeric, least_voltage_share: Numeric) -> Array:
    r"""Supply voltage relative to nominal that a clock needs.

    .. math:: v = \max\left(v_0 + (1 - v_0)\,x,\; x\right)

    Heuristic, this work: a straight line below the nominal voltage [1]_, proportional to the clock above it.

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


def clock_share(
    power: Numeric, full_power: Numeric, least_voltage_share: Numeric, largest_share: Numeric = 1.0
) -> Array:
    r"""Clock relative to nominal within a budget of dynamic power.

    The largest x up to x_1 with

    .. math:: P_1\,x\,v(x)^2 \le P

    with the voltage v of :func:`voltage_share`, by bisection. Heuristic, this work.

    Parameters
    ----------
    power : numeric
        Power P for switching. [W]
    full_power : numeric
        Switching power P_1 at the nominal clock and voltage. [W]
    least_voltage_share : numeric
        Voltage of a slow clock over the nominal voltage. [-]
    largest_share : numeric, default 1.0
        Clock x_1 without a power limit, over the nominal clock. [-]

    Returns
    -------
    clock_share : numeric
        From 0 to the largest; 0 without power. [-]

    Examples
    --------
    Half the clock takes an eighth of the power if the voltage follows it; a fifth more takes 1.73 times:

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
    share = np.where(within(top), top, np.where(target <= 0.0, 0.0, low))
    return np.asarray(np.where(np.isnan(target + least + top), np.nan, share))
