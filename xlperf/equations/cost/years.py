"""Money over years: present values, prices that change from year to year, resale values and depreciation."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, divide, power
from xlperf.base.units import YEAR


def present_value(amount: Numeric, discount_rate: Numeric, time: Numeric, period: Numeric = YEAR) -> Array:
    r"""Value today of an amount that is paid later.

    .. math:: P = A\,(1 + r)^{-t/p}

    By definition of the discount rate.

    Parameters
    ----------
    amount : numeric
        Amount A that is paid at the time t. [USD]
    discount_rate : numeric
        Cost of capital r of one period, WACC. [-]
    time : numeric
        Time t until the payment. [s]
    period : numeric, default one year
        Period p of the discount rate. [s]

    Returns
    -------
    value : numeric
        Present value. [USD]

    Examples
    --------
    121 USD after two periods at 10 %:

    >>> float(present_value(121.0, 0.1, 2.0, 1.0))
    100.0
    """
    return np.asarray(array(amount) * power(1.0 + array(discount_rate), -array(time) / array(period)))


def compounded_price(price: Numeric, change: Numeric, time: Numeric, period: Numeric = YEAR) -> Array:
    r"""Price after a time in which each period changes it by the same share: list prices, and used machines.

    .. math:: p(t) = p_0\,(1 + c)^{t/p}

    By definition of compound change.

    Parameters
    ----------
    price : numeric
        Price p_0 at the start. [USD]
    change : numeric
        Change c of one period, above -1; a used machine that keeps two thirds of its value: -1/3. [-]
    time : numeric
        Time t since the start. [s]
    period : numeric, default one year
        Period p of the change. [s]

    Returns
    -------
    price : numeric
        Price at the time. [USD]

    Examples
    --------
    A tenth less in each of two periods:

    >>> float(compounded_price(100.0, -0.1, 2.0, 1.0))
    81.0
    """
    return np.asarray(array(price) * power(1.0 + array(change), array(time) / array(period)))


def annuity_book_value(
    price: Numeric,
    discount_rate: Numeric,
    life: Numeric,
    age: Numeric,
    residual_share: Numeric = 0.0,
    period: Numeric = YEAR,
) -> Array:
    r"""Value of a machine that its owner has not yet earned back at the rate of ``capital_recovery_rate``.

    .. math:: B = C \left(\frac{(1 - v\,q^{-T/p})\,(1 - q^{-(T - t)/p})}{1 - q^{-T/p}} + v\,q^{-(T - t)/p}\right),
        \quad q = 1 + r

    Without a discount rate it falls in a straight line. An owner who sells at this value has paid exactly the
    annuity until then.

    Parameters
    ----------
    price : numeric
        Purchase price C. [USD]
    discount_rate : numeric
        Cost of capital r of one period, WACC. [-]
    life : numeric
        Time T of use. [s]
    age : numeric
        Time t since the purchase; beyond the life the residual value stays. [s]
    residual_share : numeric, default 0.0
        Share v of the price that is left at the end of the life. [-]
    period : numeric, default one year
        Period p of the discount rate. [s]

    Returns
    -------
    value : numeric
        Book value. [USD]

    References
    ----------
    .. [1] L. A. Barroso et al., "The Datacenter as a Computer", 2018, chapter 6, doi:10.2200/S00874ED3V01Y201809CAC046.

    Examples
    --------
    210 USD over two periods at 10 % earn 121 USD in each; after the first one 210 x 1.1 - 121 remain:

    >>> float(annuity_book_value(210.0, 0.1, 2.0, 1.0, 0.0, 1.0))
    110.0
    """
    rate, share, length = array(discount_rate), array(residual_share), array(period)
    left = np.maximum(array(life) - array(age), 0.0)
    whole, rest = (power(1.0 + rate, -time / length) for time in (array(life), left))
    earned = divide((1.0 - share * whole) * (1.0 - rest), 1.0 - whole)
    straight = (1.0 - share) * left / array(life) + share
    return np.asarray(array(price) * np.where(rate == 0.0, straight, earned + share * rest))


def straight_line_depreciation(
    price: Numeric, life: Numeric, age: Numeric, duration: Numeric, residual_share: Numeric = 0.0
) -> Array:
    r"""Depreciation of a machine in a span of its life, as accounts show it.

    .. math:: D = C\,(1 - v)\,\frac{\min(t + d, T) - \min(t, T)}{T}

    By definition of the straight line.

    Parameters
    ----------
    price : numeric
        Purchase price C. [USD]
    life : numeric
        Depreciation time T. [s]
    age : numeric
        Age t at the start of the span. [s]
    duration : numeric
        Length d of the span. [s]
    residual_share : numeric, default 0.0
        Share v of the price that is left at the end of the life. [-]

    Returns
    -------
    depreciation : numeric
        Depreciation in the span. [USD]

    Examples
    --------
    The third of the four years of 100 USD:

    >>> float(straight_line_depreciation(100.0, 4.0, 2.0, 1.0))
    25.0
    """
    time, start = array(life), array(age)
    span = np.minimum(start + array(duration), time) - np.minimum(start, time)
    return np.asarray(array(price) * (1.0 - array(residual_share)) * span / time)
