r"""Clock under a power limit, and power and energy of an accelerator from the work that it does."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array
from xlperf.base.units import factor

REFERENCE_ENERGY = 0.392 * factor("pJ/FLOP")
"""Energy of a 16-bit operation at 5 nm in the sheet technology: what energies of products are stated at. [J/FLOP]"""

STATIC_SHARE = 0.13
"""Share of the power limit that leakage and idle clocks take where no static power is stated. [-]"""
ARITHMETIC_SHARE = 0.75 / (1.0 - STATIC_SHARE)
"""Share of the rest that matrix units may draw in a long product; memory, caches and links take the others. [-]"""

_LEAST_SHARE = 0.05


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


def clock_limited_time(burst_time: Numeric, energy: Numeric, power: Numeric) -> Array:
    r"""Time of work whose clock falls until its power keeps a limit.

    Power is energy over time; with the clock falls the voltage, so that power goes with the cube of the clock:

    .. math:: t = t_b \max\left(\sqrt[3]{\frac{E / t_b}{P}}, 1\right)

    Near its nominal voltage a node's voltage is close to linear in the clock [1]_; the cube is its usual consequence.

    Parameters
    ----------
    burst_time : numeric
        Time at the boost clock. [s]
    energy : numeric
        Energy of the work at the boost clock. [J]
    power : numeric
        Power that the work may draw; infinite: no limit. [W]

    Returns
    -------
    time : numeric
        Time under the limit; infinite where no power is left. [s]

    References
    ----------
    .. [1] T. Sakurai and A. R. Newton, "Alpha-power law MOSFET model", IEEE JSSC 25(2), 1990, doi:10.1109/4.52187.

    Examples
    --------
    Eight times the power that may be drawn takes twice as long:

    >>> float(clock_limited_time(1.0, 8.0, 1.0))
    2.0
    """
    burst, ratio = array(burst_time), array(energy) / array(power)
    return np.asarray(np.maximum(burst, np.cbrt(ratio * burst * burst)))


def node_energy_ratio(
    flop_energy: Numeric,
    clock_rate: Numeric,
    nominal_clock_rate: Numeric,
    reference_energy: Numeric = REFERENCE_ENERGY,
) -> Array:
    r"""Energy of an operation on a node at a clock, over that of 5 nm at its nominal clock.

    .. math:: r = \frac{e}{e_0} \left(\frac{f}{f_0}\right)^2

    With the clock rises the voltage, and with its square the energy.

    Parameters
    ----------
    flop_energy : numeric
        Energy of a 16-bit operation of the node; NaN: that of 5 nm. [J/FLOP]
    clock_rate : numeric
        Boost clock f; NaN: the nominal one. [Hz]
    nominal_clock_rate : numeric
        Clock of the node at its nominal voltage; NaN: that of the accelerator. [Hz]
    reference_energy : numeric, default 0.392 pJ/FLOP
        Energy that the ratio is over. [J/FLOP]

    Returns
    -------
    ratio : numeric
        1 for 5 nm at its nominal clock. [-]

    References
    ----------
    .. [1] M. Horowitz, "Computing's energy problem (and what we can do about it)", ISSCC 2014,
       doi:10.1109/ISSCC.2014.6757323.

    Examples
    --------
    Twice the clock of 5 nm:

    >>> float(node_energy_ratio(0.392e-12, 3.66e9, 1.83e9).round(6))
    4.0
    """
    share = array(clock_rate) / array(nominal_clock_rate)
    energy, reference = array(flop_energy), array(reference_energy)
    energy = np.where(np.isnan(energy), reference, energy)
    return np.asarray(energy / reference * np.where(np.isnan(share), 1.0, share * share))
