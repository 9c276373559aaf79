"""Power of a device at full rate, and the clock that a budget of power leaves."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array

_HALVINGS = 60


def voltage_share(clock_share: Numeric, least_voltage_share: Numeric) -> Array:
    r"""Supply voltage that a clock needs, over the nominal one: a straight line.

    .. math:: v = v_0 + (1 - v_0)\,x

    Heuristic, this work: near its nominal voltage a node is close to the straight line [1]_.

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
    .. [1] T. Sakurai and A. R. Newton, "Alpha-power law MOSFET model", IEEE JSSC 25(2), 1990, doi:10.1109/4.52187;
       near its nominal voltage a node is close to the straight line.

    Examples
    --------
    Half-way between 0.6 and 1:

    >>> float(voltage_share(0.5, 0.6))
    0.8
    """
    least = array(least_voltage_share)
    return np.asarray(least + (1.0 - least) * array(clock_share))


def switching_power(flop_rate: Numeric, flop_energy: Numeric, voltage_share: Numeric) -> Array:
    r"""Power of switching at a rate of operations.

    .. math:: P = R\,e\,v^2

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
    r"""Power of moving bytes.

    .. math:: P = B\,e

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
    r"""Power of leakage and idle clocks.

    .. math:: P = A\,p

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


def clock_share(power: Numeric, full_power: Numeric, least_voltage_share: Numeric) -> Array:
    r"""Clock at which switching stays within some power, over the nominal clock.

    The largest x up to 1 with

    .. math:: P_1\,x\,v(x)^2 \le P, \qquad v(x) = v_0 + (1 - v_0)\,x

    Found by bisection. Heuristic, this work: all switching power scales with the square of the voltage.

    Parameters
    ----------
    power : numeric
        Power P for switching. [W]
    full_power : numeric
        Power of switching at the nominal clock and voltage. [W]
    least_voltage_share : numeric
        Voltage of a slow clock over the nominal voltage. [-]

    Returns
    -------
    clock_share : numeric
        From 0 to 1; 0 where no power is left. [-]

    Examples
    --------
    Where the voltage follows the clock, half the clock takes an eighth of the power:

    >>> float(clock_share(12.5, 100.0, 0.0))
    0.5
    """
    target, least = array(power) / array(full_power), array(least_voltage_share)
    low = np.zeros(np.broadcast(target, least).shape)
    high = np.ones(low.shape)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        voltage = least + (1.0 - least) * middle
        within = middle * voltage * voltage <= target
        low, high = np.where(within, middle, low), np.where(within, high, middle)
    found = np.where(target >= 1.0, 1.0, np.where(target <= 0.0, 0.0, low))
    return np.asarray(np.where(np.isnan(target) | np.isnan(least), np.nan, found))
