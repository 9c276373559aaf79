r"""Total cost of ownership: from a price, a life and a power to the cost and energy of a token.

Every function works on arrays that broadcast against each other. Costs of an accelerator are rates in USD per
second of useful work; what is paid for idle hours is in them through the utilisation.
"""

from __future__ import annotations

import numpy as np

from xlperf.arrays import Array, Numeric, array
from xlperf.units import YEAR

__all__ = [
    "accelerator_cost_rate",
    "building_power",
    "cost_per_token",
    "energy_cost_rate",
    "energy_per_token",
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
    """
    rent = array(rental_price)
    hardware = array(capex) / array(utilization) * (1.0 / array(life) + array(opex_share) / array(opex_period))
    owned = hardware + energy_cost_rate(server_power, power_usage_effectiveness, energy_price)
    return np.asarray(np.where(np.isnan(rent), owned, rent))


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

    References
    ----------
    .. [1] B. Cottier et al., "The rising costs of training frontier AI models", 2024, arXiv:2405.21015, section 2.
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

    References
    ----------
    .. [1] B. Cottier et al., "The rising costs of training frontier AI models", 2024, arXiv:2405.21015, section 2.
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

    References
    ----------
    .. [1] B. Cottier et al., "The rising costs of training frontier AI models", 2024, arXiv:2405.21015, section 2.
    """
    return np.asarray(array(token_rate) / (array(power) * array(num_accelerators)))
