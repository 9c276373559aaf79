r"""Prices and volumes at which two machines or designs cost the same."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, divide


def break_even_cost_rate(cost_rate: Numeric, cost: Numeric, other_cost: Numeric) -> Array:
    r"""Cost of a second at which an accelerator makes tokens as cheaply as another one.

    .. math:: c^* = c\,\frac{k_2}{k_1}

    By definition: the cost of a token is that of a second over the tokens of a second.

    Parameters
    ----------
    cost_rate : numeric
        Cost c of a second of the accelerator now. [USD/s]
    cost : numeric
        Cost k1 of a token on it now. [USD]
    other_cost : numeric
        Cost k2 of a token on the other one. [USD]

    Returns
    -------
    cost_rate : numeric
        Cost of a second at which both cost the same. [USD/s]

    Examples
    --------
    Tokens cost half as much: it may cost twice as much.

    >>> float(break_even_cost_rate(3.0, 1.0, 2.0))
    6.0
    """
    return np.asarray(array(cost_rate) * array(other_cost) / array(cost))


def break_even_price(price: Numeric, cost_rate: Numeric, free_cost_rate: Numeric, wanted_rate: Numeric) -> Array:
    r"""Purchase price at which a second of an owned accelerator costs what is wanted.

    .. math:: C^* = C\,\frac{c^* - c_0}{c - c_0}

    What an owner pays for a second is linear in the price: :func:`xlperf.equations.cost.tco.accelerator_cost_rate`.

    Parameters
    ----------
    price : numeric
        Any purchase price C above 0. [USD]
    cost_rate : numeric
        Cost c of a second at that price. [USD/s]
    free_cost_rate : numeric
        Cost c0 of a second at a price of 0, its energy. [USD/s]
    wanted_rate : numeric
        Wanted cost of a second. [USD/s]

    Returns
    -------
    price : numeric
        Purchase price; NaN where the energy alone costs more. [USD]

    References
    ----------
    .. [1] L. A. Barroso, U. Hölzle and P. Ranganathan, "The Datacenter as a Computer", 3rd ed., 2018, chapter 6,
       doi:10.2200/S00874ED3V01Y201809CAC046.

    Examples
    --------
    A quarter of the 4 USD is energy; 7 USD leave twice as much for the purchase:

    >>> float(break_even_price(30_000.0, 4.0, 1.0, 7.0))
    60000.0
    """
    found = array(price) * (array(wanted_rate) - array(free_cost_rate)) / (array(cost_rate) - array(free_cost_rate))
    return np.asarray(np.where(found >= 0.0, found, np.nan))


def crossover_volume(
    unit_cost: Numeric, one_time_cost: Numeric, other_unit_cost: Numeric, other_one_time_cost: Numeric
) -> Array:
    r"""Volume at which two designs cost the same: one cheaper to make, the other cheaper to design.

    .. math:: V = \frac{C_2 - C_1}{c_1 - c_2}

    Parameters
    ----------
    unit_cost : numeric
        Cost c1 of making one of the first design. [USD]
    one_time_cost : numeric
        One-time cost C1 of the first design. [USD]
    other_unit_cost : numeric
        Cost c2 of making one of the other. [USD]
    other_one_time_cost : numeric
        One-time cost C2 of the other. [USD]

    Returns
    -------
    volume : numeric
        Units; NaN where one design is cheaper at every volume. [-]

    References
    ----------
    .. [1] Y. Feng and K. Ma, "Chiplet Actuary: a quantitative cost model and multi-chiplet architecture exploration",
       DAC 2022, doi:10.1145/3489517.3530428.

    Examples
    --------
    40,000 USD more for the design, 40 USD less for each unit:

    >>> float(crossover_volume(100.0, 50000.0, 60.0, 90000.0))
    1000.0
    """
    volume = divide(
        array(other_one_time_cost) - array(one_time_cost), array(unit_cost) - array(other_unit_cost), where_zero=np.nan
    )
    return np.asarray(np.where(volume > 0.0, volume, np.nan))
