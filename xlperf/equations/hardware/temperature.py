"""Temperature of the compute dies of a package: heat through a stack of layers to a cooler on one side or on both."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array


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


def power_at_temperature(
    temperature: Numeric, area: Numeric, resistance: Numeric, coolant_temperature: Numeric
) -> Array:
    r"""Power at which compute dies have a temperature: the inverse of :func:`junction_temperature`.

    .. math:: P = A \frac{T - T_0}{R}

    By definition.

    >>> float(power_at_temperature(81.6, 814.0, 60.0, 30.0).round(1))
    700.0

    Parameters
    ----------
    temperature : Temperature T in degrees Celsius. [K]
    area : Area A of the compute dies. [mm2]
    resistance : Resistance R from the dies to the coolant. [mm2/(W/K)]
    coolant_temperature : Temperature T_0 of the coolant in degrees Celsius. [K]

    Returns
    -------
    power : Power of the dies and of what is stacked on them; negative below the coolant. [W]
    """
    return np.asarray(array(area) * (array(temperature) - array(coolant_temperature)) / array(resistance))
