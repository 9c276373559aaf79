r"""Total cost of ownership: from a price, a life and a power to the cost and energy of a token.

Every function works on arrays that broadcast against each other. Costs of an accelerator are rates in USD per
second of useful work; what is paid for idle hours is in them through the utilisation.
"""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, divide
from xlperf.base.units import YEAR

__all__ = [
    "accelerator_cost_rate",
    "building_power",
    "capital_recovery_rate",
    "cost_per_token",
    "energy_cost_rate",
    "energy_per_token",
    "owned_cost_rate",
    "pool_mean",
    "rate_per_cost",
    "run_cost",
    "token_rate_per_power",
]


def building_power(server_power: Numeric, power_usage_effectiveness: Numeric) -> Array:
    r"""Power drawn from the grid for one accelerator, cooling and distribution included.

    .. math:: P = P_s\,\mathrm{PUE}

    Parameters
    ----------
    server_power : numeric
        Power of one accelerator with its share of the server. [W]
    power_usage_effectiveness : numeric
        Power into the building over power into the servers, 1 or more. [-]

    Returns
    -------
    power : numeric
        Power into the building. [W]

    References
    ----------
    .. [1] L. A. Barroso, U. Hölzle and P. Ranganathan, "The Datacenter as a Computer", 3rd ed., 2018, chapter 5,
       doi:10.2200/S00874ED3V01Y201809CAC046.

    Examples
    --------
    1000 W x 1.25:

    >>> float(building_power(1000.0, 1.25))
    1250.0
    """
    return np.asarray(array(server_power) * array(power_usage_effectiveness))


def energy_cost_rate(server_power: Numeric, power_usage_effectiveness: Numeric, energy_price: Numeric) -> Array:
    r"""Cost of the electric energy of one accelerator at full load.

    .. math:: c = P_s\,\mathrm{PUE}\,p_e

    Parameters
    ----------
    server_power : numeric
        Power of one accelerator with its share of the server. [W]
    power_usage_effectiveness : numeric
        Power into the building over power into the servers, 1 or more. [-]
    energy_price : numeric
        Price of electric energy. [USD/J]

    Returns
    -------
    cost_rate : numeric
        Cost of energy per second. [USD/s]

    References
    ----------
    .. [1] L. A. Barroso, U. Hölzle and P. Ranganathan, "The Datacenter as a Computer", 3rd ed., 2018, chapter 6,
       doi:10.2200/S00874ED3V01Y201809CAC046.

    Examples
    --------
    1250 W x 2 cents per joule:

    >>> float(energy_cost_rate(1000.0, 1.25, 0.02))
    25.0
    """
    return np.asarray(building_power(server_power, power_usage_effectiveness) * array(energy_price))


def accelerator_cost_rate(
    rental_price: Numeric,
    capex: Numeric,
    life: Numeric,
    utilization: Numeric,
    server_power: Numeric,
    power_usage_effectiveness: Numeric,
    energy_price: Numeric,
    opex_share: Numeric,
    opex_period: Numeric = YEAR,
) -> Array:
    r"""Cost of one second of useful work of one accelerator: rented where a rent is given, else owned.

    An owned accelerator is written off in a straight line over its life, and runs at full load while it works.

    .. math:: c = \frac{C}{u} \left(\frac{1}{T} + \frac{o}{T_o}\right) + P_s\,\mathrm{PUE}\,p_e

    Parameters
    ----------
    rental_price : numeric
        All-in price of one accelerator; NaN: it is owned, and the other parameters count. [USD/s]
    capex : numeric
        Purchase price C of one accelerator with its share of server and network; may be NaN where it is rented. [USD]
    life : numeric
        Time T over which it is written off; may be NaN where it is rented. [s]
    utilization : numeric
        Share u of the time that is used, above 0; may be NaN where it is rented. [-]
    server_power : numeric
        Power of one accelerator with its share of the server at full load; may be NaN where it is rented. [W]
    power_usage_effectiveness : numeric
        Power into the building over power into the servers; may be NaN where it is rented. [-]
    energy_price : numeric
        Price of electric energy; may be NaN where it is rented. [USD/J]
    opex_share : numeric
        Running cost o of one period without energy, as a share of capex; may be NaN where it is rented. [-]
    opex_period : numeric, default one year
        Period that ``opex_share`` is for; may be NaN where it is rented. [s]

    Returns
    -------
    cost_rate : numeric
        Cost per second of work; NaN where there is neither a rent nor what an owner pays. [USD/s]

    References
    ----------
    .. [1] L. A. Barroso, U. Hölzle and P. Ranganathan, "The Datacenter as a Computer", 3rd ed., 2018, chapter 6,
       doi:10.2200/S00874ED3V01Y201809CAC046.

    Examples
    --------
    100 USD over 10 s, half of them used, a tenth more each second, and 1200 W at 0.1 cents per joule:
    100 / 0.5 x (0.1 + 0.1) + 1.2:

    >>> float(accelerator_cost_rate(np.nan, 100.0, 10.0, 0.5, 1000.0, 1.2, 0.001, 0.1, 1.0))
    41.2
    """
    rent, straight_line = array(rental_price), 1.0 / array(life)
    owned = owned_cost_rate(
        capex, straight_line, 0.0, 0.0, opex_share, 0.0, server_power, power_usage_effectiveness, energy_price,
        utilization, period=opex_period,
    )  # fmt: skip
    return np.asarray(np.where(np.isnan(rent), owned, rent))


def pool_mean(decode: Numeric, prefill: Numeric, prefill_share: Numeric) -> Array:
    r"""Mean over the accelerators of two pools: what one costs or draws that is neither of one pool nor the other.

    .. math:: x = x_d + s\,(x_p - x_d)

    A weighted mean; this work.

    Parameters
    ----------
    decode : numeric
        Value of an accelerator of the pool that decodes, e.g. a cost per second. [-]
    prefill : numeric
        Value of an accelerator of the pool that prefills. [-]
    prefill_share : numeric
        Share s of the accelerators, or of their time, that prefills. [-]

    Returns
    -------
    mean : numeric
        The value of both to the last bit where both are equal; NaN where one that counts is NaN. [-]

    Examples
    --------
    4 B200 at 2.34 USD/h beside 8 A100 at 1.89 USD/h that prefill, USD/h of all twelve:

    >>> float(12 * pool_mean(2.34, 1.89, 8 / 12))
    24.48
    """
    first, second, share = array(decode), array(prefill), array(prefill_share)
    mean = np.where(share == 0.0, first, first + share * (second - first))
    return np.asarray(np.where(first == second, first + 0.0 * share, mean))


def cost_per_token(cost_rate: Numeric, num_accelerators: Numeric, token_rate: Numeric) -> Array:
    r"""Cost of one token.

    .. math:: c_t = \frac{c\,n}{r}

    Parameters
    ----------
    cost_rate : numeric
        Cost c of one accelerator as :func:`accelerator_cost_rate` has it. [USD/s]
    num_accelerators : numeric
        Accelerators n that work on the tokens. [-]
    token_rate : numeric
        Tokens r per second of all of them, above 0. [token/s]

    Returns
    -------
    cost : numeric
        Cost of a token. [USD/token]

    Examples
    --------
    8 accelerators at 0.05 cents per second make 2000 tokens per second:

    >>> float(cost_per_token(0.0005, 8.0, 2000.0))
    2e-06
    """
    return np.asarray(array(cost_rate) * array(num_accelerators) / array(token_rate))


def energy_per_token(power: Numeric, num_accelerators: Numeric, token_rate: Numeric) -> Array:
    r"""Energy of one token.

    .. math:: e_t = \frac{P\,n}{r}

    Parameters
    ----------
    power : numeric
        Power P of one accelerator on the basis that the result is wanted on, e.g. :func:`building_power`. [W]
    num_accelerators : numeric
        Accelerators n that work on the tokens. [-]
    token_rate : numeric
        Tokens r per second of all of them, above 0. [token/s]

    Returns
    -------
    energy : numeric
        Energy of a token. [J/token]

    Examples
    --------
    8 kW over 4000 tokens per second:

    >>> float(energy_per_token(1000.0, 8.0, 4000.0))
    2.0
    """
    return np.asarray(array(power) * array(num_accelerators) / array(token_rate))


def token_rate_per_power(token_rate: Numeric, num_accelerators: Numeric, power: Numeric) -> Array:
    r"""Tokens per second and watt, the inverse of the energy per token.

    .. math:: r_P = \frac{r}{P\,n}

    Parameters
    ----------
    token_rate : numeric
        Tokens r per second of all accelerators. [token/s]
    num_accelerators : numeric
        Accelerators n that work on the tokens. [-]
    power : numeric
        Power P of one accelerator, above 0. [W]

    Returns
    -------
    rate : numeric
        Tokens per joule. [token/s/W]

    Examples
    --------
    4000 tokens per second from 8 kW:

    >>> float(token_rate_per_power(4000.0, 8.0, 1000.0))
    0.5
    """
    return np.asarray(array(token_rate) / (array(power) * array(num_accelerators)))


def capital_recovery_rate(
    discount_rate: Numeric, life: Numeric, residual_share: Numeric = 0.0, period: Numeric = YEAR
) -> Array:
    r"""Share of a purchase that each second of its life has to earn, capital included.

    .. math:: a = \frac{r\,(1 - v\,(1 + r)^{-T/p})}{1 - (1 + r)^{-T/p}}\,\frac{1}{p}

    Without a discount rate it is a straight line, :math:`(1 - v)/T`.

    Parameters
    ----------
    discount_rate : numeric
        Cost of capital r of one period, WACC. [-]
    life : numeric
        Time T of use. [s]
    residual_share : numeric, default 0.0
        Share v of the price that is left at the end. [-]
    period : numeric, default one year
        Period p that the discount rate is for. [s]

    Returns
    -------
    rate : numeric
        Share of the price per second. [1/s]

    References
    ----------
    .. [1] L. A. Barroso, U. Hölzle and P. Ranganathan, "The Datacenter as a Computer", 3rd ed., 2018, chapter 6,
       doi:10.2200/S00874ED3V01Y201809CAC046.

    Examples
    --------
    An annuity of two periods at 10 %: 0.1 / (1 - 1 / 1.21):

    >>> float(capital_recovery_rate(0.1, 2.0, 0.0, 1.0))
    0.57619
    """
    rate, left, length = array(discount_rate), array(residual_share), array(period)
    shrunk = np.power(1.0 + rate, -array(life) / length)
    interest = divide(rate * (1.0 - left * shrunk), 1.0 - shrunk)
    straight = (1.0 - left) * length / array(life)
    return np.asarray(np.where(rate == 0.0, straight, interest) / length)


def owned_cost_rate(
    capex: Numeric,
    recovery_rate: Numeric,
    facility: Numeric,
    facility_recovery_rate: Numeric,
    maintenance_share: Numeric,
    staff_cost: Numeric,
    server_power: Numeric,
    power_usage_effectiveness: Numeric,
    energy_price: Numeric,
    utilization: Numeric,
    load_share: Numeric = 1.0,
    period: Numeric = YEAR,
) -> Array:
    r"""Cost of one second of useful work of an accelerator that is owned, with what its capital costs.

    .. math:: c = \frac{1}{u} \left(C a + F a_F + \frac{C m + s}{p}\right) + P_s\,l\,\mathrm{PUE}\,p_e

    Parameters
    ----------
    capex : numeric
        Price C of one accelerator with its share of server and network. [USD]
    recovery_rate : numeric
        Share a of it that a second has to earn, :func:`capital_recovery_rate`. [1/s]
    facility : numeric
        Share F of one accelerator in rack, power, cooling and building. [USD]
    facility_recovery_rate : numeric
        Share of it that a second has to earn. [1/s]
    maintenance_share : numeric
        Repairs and spares m of one period as a share of C. [-]
    staff_cost : numeric
        Staff, insurance and rent s of one accelerator for one period. [USD]
    server_power : numeric
        Power of one accelerator with its share of the server at full load. [W]
    power_usage_effectiveness : numeric
        Power into the building over power into the servers. [-]
    energy_price : numeric
        Price of electric energy. [USD/J]
    utilization : numeric
        Share u of the time that is used, above 0. [-]
    load_share : numeric, default 1.0
        Mean power while it works over the power at full load. [-]
    period : numeric, default one year
        Period that maintenance and staff are for. [s]

    Returns
    -------
    cost_rate : numeric
        Cost per second of work. [USD/s]

    References
    ----------
    .. [1] L. A. Barroso, U. Hölzle and P. Ranganathan, "The Datacenter as a Computer", 3rd ed., 2018, chapter 6,
       doi:10.2200/S00874ED3V01Y201809CAC046.

    Examples
    --------
    (100 x 0.2 + 50 x 0.1 + 100 x 0.05 + 5) / 0.5 for capital and upkeep, 10 x 1.2 x 0.5 for energy:

    >>> float(owned_cost_rate(100.0, 0.2, 50.0, 0.1, 0.05, 5.0, 10.0, 1.2, 0.5, 0.5, 1.0, 1.0))
    76.0
    """
    price = array(capex)
    capital = price * array(recovery_rate) + array(facility) * array(facility_recovery_rate)
    running = (price * array(maintenance_share) + array(staff_cost)) / array(period)
    energy = energy_cost_rate(server_power, power_usage_effectiveness, energy_price) * array(load_share)
    return np.asarray((capital + running) / array(utilization) + energy)


def run_cost(cost_rate: Numeric, num_accelerators: Numeric, busy_time: Numeric, goodput_share: Numeric = 1.0) -> Array:
    r"""Cost of a step, a training run or a day of service.

    .. math:: c = \frac{r\,n\,t}{g}

    Parameters
    ----------
    cost_rate : numeric
        Cost r of one accelerator. [USD/s]
    num_accelerators : numeric
        Accelerators n that work on it. [-]
    busy_time : numeric
        Time t of useful work. [s]
    goodput_share : numeric, default 1.0
        Share g of the paid time that is useful: without restarts and lost steps. [-]

    Returns
    -------
    cost : numeric
        Cost of the run. [USD]

    Examples
    --------
    100 accelerators for an hour at 0.1 cents per second, nine tenths of it useful: 360 / 0.9:

    >>> float(run_cost(0.001, 100.0, 3600.0, 0.9))
    400.0
    """
    return np.asarray(array(cost_rate) * array(num_accelerators) * array(busy_time) / array(goodput_share))


def rate_per_cost(token_rate: Numeric, num_accelerators: Numeric, cost_rate: Numeric) -> Array:
    r"""Tokens per US dollar, the inverse of the cost per token.

    .. math:: r_c = \frac{r}{c\,n}

    Parameters
    ----------
    token_rate : numeric
        Tokens r per second of all accelerators. [token/s]
    num_accelerators : numeric
        Accelerators n that work on the tokens. [-]
    cost_rate : numeric
        Cost c of one accelerator, above 0. [USD/s]

    Returns
    -------
    rate : numeric
        Tokens per US dollar. [token/USD]

    Examples
    --------
    2000 tokens per second for 0.4 cents per second:

    >>> float(rate_per_cost(2000.0, 8.0, 0.0005))
    500000.0
    """
    return np.asarray(array(token_rate) / (array(cost_rate) * array(num_accelerators)))
