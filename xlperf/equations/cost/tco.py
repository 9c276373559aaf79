"""Total cost of ownership: prices and margins, cost rate and carbon of an accelerator; cost and energy of tokens.

Costs of an accelerator are rates in USD per second of useful work; the utilisation adds the cost of idle hours. Cost,
energy and carbon of a token have one definition for plans at the sheet ``prices`` and plans of an owner: the energy of
all accelerators is divided by the tokens trained or generated, so that output tokens pay for their prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div, divide, finite, power
from xlperf.base.units import HOUR, YEAR


def mean_load(
    accelerator_power: Numeric, power_limit: Numeric, accelerator_share: Numeric, other_load: Numeric = 1.0
) -> Array:
    r"""Mean power of a server over its full load, from the mean power of its accelerators.

    .. math:: l = s\,\frac{P_a}{P_{max}} + (1 - s)\,l_0

    By definition.

    Accelerators have half of the power and draw half of their limit, the other parts four fifths:

    >>> float(mean_load(350.0, 700.0, 0.5, 0.8))
    0.65

    Parameters
    ----------
    accelerator_power : Mean power of an accelerator; NaN: unknown, the other load counts. [W]
    power_limit : Power limit of an accelerator. [W]
    accelerator_share : Share s of the accelerators in the power of the server at full load. [-]
    other_load : Mean load l_0 of the other parts of the server. [-]

    Returns
    -------
    load : 1 at full load. [-]
    """
    mean, share, rest = array(accelerator_power), array(accelerator_share), array(other_load)
    load = share * mean / array(power_limit) + (1.0 - share) * rest
    return np.asarray(np.where(np.isnan(mean), rest, load))


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
    r"""Cost of one second of useful work of one accelerator, rented or owned.

    An owner pays straight-line depreciation and full load; the owner's arguments may be NaN beside a rent.

    .. math:: c = \frac{C}{u} \left(\frac{1}{T} + \frac{o}{T_o}\right) + P_s\,\mathrm{PUE}\,p_e

    Source: L. A. Barroso et al., "The Datacenter as a Computer", 2018, chapter 6,
    doi:10.2200/S00874ED3V01Y201809CAC046.

    100 USD over 10 s, half of them used, a tenth more each second, and 1200 W at 0.1 cents per joule:
    100 / 0.5 x (0.1 + 0.1) + 1.2:

    >>> float(accelerator_cost_rate(np.nan, 100.0, 10.0, 0.5, 1000.0, 1.2, 0.001, 0.1, 1.0))
    41.2

    Parameters
    ----------
    rental_price : All-in rent of one accelerator; NaN: owned. [USD/s]
    capex : Purchase price C with server and network, or NaN. [USD]
    life : Depreciation time T, or NaN. [s]
    utilization : Used share u of the time, above 0, or NaN. [-]
    server_power : Power of one accelerator with its share of the server, or NaN. [W]
    power_usage_effectiveness : Power into the building over power into the servers, or NaN. [-]
    energy_price : Price of electric energy, or NaN. [USD/J]
    opex_share : Running cost o of one period without energy, as a share of capex, or NaN. [-]
    opex_period : Period T_o of ``opex_share``, or NaN. [s]

    Returns
    -------
    cost_rate : Cost per second of work; NaN if unknown. [USD/s]
    """
    rent, straight_line = array(rental_price), 1.0 / array(life)
    owned = owned_cost_rate(
        capex,
        straight_line,
        0.0,
        0.0,
        opex_share,
        0.0,
        server_power,
        power_usage_effectiveness,
        energy_price,
        utilization,
        period=opex_period,
    )
    return np.asarray(np.where(np.isnan(rent), owned, rent))


def capital_recovery_rate(
    discount_rate: Numeric, life: Numeric, residual_share: Numeric = 0.0, period: Numeric = YEAR
) -> Array:
    r"""Share of a purchase price to earn per second of its life, with the cost of capital.

    .. math:: a = \frac{r\,(1 - v\,(1 + r)^{-T/p})}{1 - (1 + r)^{-T/p}}\,\frac{1}{p}

    The limit without a discount rate is a straight line, :math:`(1 - v)/T`. Source: L. A. Barroso et al., "The
    Datacenter as a Computer", 2018, chapter 6, doi:10.2200/S00874ED3V01Y201809CAC046.

    >>> float(capital_recovery_rate(0.1, 2.0, 0.0, 1.0))  # An annuity of two periods at 10 %: 0.1 / (1 - 1 / 1.21)
    0.57619

    Parameters
    ----------
    discount_rate : Cost of capital r of one period, WACC. [-]
    life : Time T of use. [s]
    residual_share : Residual share v of the price. [-]
    period : Period p of the discount rate. [s]

    Returns
    -------
    rate : Share of the price per second. [1/s]
    """
    rate, left, length = array(discount_rate), array(residual_share), array(period)
    shrunk = power(1.0 + rate, -array(life) / length)
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
    quoted_cost_rate: Numeric = 0.0,
) -> Array:
    r"""Cost of one second of useful work of an owned accelerator, with the cost of capital.

    .. math:: c = \frac{1}{u} \left(C a + F a_F + \frac{C m + s}{p} + q\right) + P_s\,l\,\mathrm{PUE}\,p_e

    Source: L. A. Barroso et al., "The Datacenter as a Computer", 2018, chapter 6,
    doi:10.2200/S00874ED3V01Y201809CAC046.

    (100 x 0.2 + 50 x 0.1 + 100 x 0.05 + 5) / 0.5 for capital and upkeep, 10 x 1.2 x 0.5 for energy:

    >>> float(owned_cost_rate(100.0, 0.2, 50.0, 0.1, 0.05, 5.0, 10.0, 1.2, 0.5, 0.5, 1.0, 1.0))
    76.0

    Parameters
    ----------
    capex : Price C of one accelerator with its share of server and network. [USD]
    recovery_rate : Share a to earn per second, :func:`capital_recovery_rate`. [1/s]
    facility : Share F of one accelerator in rack, power, cooling and building. [USD]
    facility_recovery_rate : Share a_F to earn per second. [1/s]
    maintenance_share : Repairs and spares m of one period as a share of C. [-]
    staff_cost : Staff, insurance and rent s of one accelerator for one period. [USD]
    server_power : Power of one accelerator with its share of the server at full load. [W]
    power_usage_effectiveness : Power into the building over power into the servers. [-]
    energy_price : Price of electric energy. [USD/J]
    utilization : Used share u of the time, above 0. [-]
    load_share : Mean load l while it works. [-]
    period : Period p of maintenance and staff. [s]
    quoted_cost_rate : Other lines q of a quote, e.g. support, per second of paid time. [USD/s]

    Returns
    -------
    cost_rate : Cost per second of work. [USD/s]
    """
    price = array(capex)
    capital = price * array(recovery_rate) + array(facility) * array(facility_recovery_rate)
    running = (price * array(maintenance_share) + array(staff_cost)) / array(period)
    energy = array(server_power) * array(power_usage_effectiveness) * array(energy_price) * array(load_share)
    return np.asarray((capital + running + array(quoted_cost_rate)) / array(utilization) + energy)


def sale_price(unit_cost: Numeric, margin_share: Numeric) -> Array:
    r"""Price with a gross margin.

    .. math:: p = \frac{c}{1 - m}

    By definition of a gross margin.

    >>> float(sale_price(3000.0, 0.7))  # 3000 USD is 30 % of the price
    10000.0

    Parameters
    ----------
    unit_cost : Cost c of making one. [USD]
    margin_share : Gross margin m as a share of the price, below 1. [-]

    Returns
    -------
    price : Price. [USD]
    """
    return np.asarray(array(unit_cost) / (1.0 - array(margin_share)))


def carbon_of_energy(energy: Numeric, carbon_intensity: Numeric) -> Array:
    r"""CO2 equivalent of an amount of electric energy.

    .. math:: m = E\,i

    Source: U. Gupta et al., "ACT: designing sustainable computer systems", ISCA 2022, doi:10.1145/3470496.3527408.

    >>> float(carbon_of_energy(3600.0, 0.001))  # 3600 J at 1 g/J
    3.6

    Parameters
    ----------
    energy : Energy E from the grid. [J]
    carbon_intensity : Carbon i of the grid per energy. [kg/J]

    Returns
    -------
    carbon : Mass of CO2 equivalent. [kg]
    """
    return np.asarray(array(energy) * array(carbon_intensity))


_DAY = 24.0 * HOUR


def daily_mean(by_hour: Sequence[Array], start: Numeric, duration: Numeric) -> Array:
    """Mean of a daily profile over a time, relative to the mean of a day; 1 for an unknown start."""
    values, begin = np.stack([array(hour) for hour in by_hour], axis=-1), array(start) / _DAY
    length = array(duration) / _DAY
    parts = values.shape[-1]
    # Integral of the profile up to each hour [day].
    whole = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=-1) / parts], axis=-1)

    def integral(time: Array) -> Array:
        days = np.floor(time)
        within = finite((time - days) * parts)
        part = np.minimum(np.floor(within), parts - 1.0).astype(np.int64)
        rows = np.arange(len(values))
        so_far = whole[rows, part] + (within - part) * values[rows, part] / parts
        return np.asarray(days * whole[rows, -1] + so_far)

    mean = (integral(begin + length) - integral(begin)) / (length * whole[:, -1])
    return np.where(np.isnan(begin), 1.0 + 0.0 * length, mean)


def die_carbon(
    die_area: Numeric,
    die_yield: Numeric,
    energy_per_area: Numeric,
    carbon_intensity: Numeric,
    gas_per_area: Numeric,
    material_per_area: Numeric,
) -> Array:
    r"""Carbon of making a good die.

    .. math:: m = \frac{A\,(e\,i + g + r)}{Y}

    Source: U. Gupta et al., "ACT: designing sustainable computer systems", ISCA 2022, doi:10.1145/3470496.3527408.

    100 mm2 x (2 x 0.01 + 0.01 + 0.02) kg/mm2, every other die good:

    >>> float(die_carbon(100.0, 0.5, 2.0, 0.01, 0.01, 0.02))
    10.0

    Parameters
    ----------
    die_area : Area A of the die. [mm2]
    die_yield : Share Y of good dies. [-]
    energy_per_area : Energy e of the fab per area. [J/mm2]
    carbon_intensity : Carbon i of the fab's energy. [kg/J]
    gas_per_area : Gases g of the process per area. [kg/mm2]
    material_per_area : Carbon r of the raw materials per area. [kg/mm2]

    Returns
    -------
    carbon : Mass of CO2 equivalent. [kg]
    """
    per_area = array(energy_per_area) * array(carbon_intensity) + array(gas_per_area) + array(material_per_area)
    return np.asarray(array(die_area) * per_area / array(die_yield))


def present_value(amount: Numeric, discount_rate: Numeric, time: Numeric, period: Numeric = YEAR) -> Array:
    r"""Value today of an amount that is paid later.

    .. math:: P = A\,(1 + r)^{-t/p}

    By definition of the discount rate.

    >>> float(present_value(121.0, 0.1, 2.0, 1.0))  # 121 USD after two periods at 10 %
    100.0

    Parameters
    ----------
    amount : Amount A that is paid at the time t. [USD]
    discount_rate : Cost of capital r of one period, WACC. [-]
    time : Time t until the payment. [s]
    period : Period p of the discount rate. [s]

    Returns
    -------
    value : Present value. [USD]
    """
    return np.asarray(array(amount) * power(1.0 + array(discount_rate), -array(time) / array(period)))


def compounded_price(price: Numeric, change: Numeric, time: Numeric, period: Numeric = YEAR) -> Array:
    r"""Price after a time in which each period changes it by the same share: list prices, and used machines.

    .. math:: p(t) = p_0\,(1 + c)^{t/p}

    By definition of compound change.

    >>> float(compounded_price(100.0, -0.1, 2.0, 1.0))  # A tenth less in each of two periods
    81.0

    Parameters
    ----------
    price : Price p_0 at the start. [USD]
    change : Change c of one period, above -1; a used machine that keeps two thirds of its value: -1/3. [-]
    time : Time t since the start. [s]
    period : Period p of the change. [s]

    Returns
    -------
    price : Price at the time. [USD]
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

    Without a discount rate it falls in a straight line. An owner who sells at this value has paid exactly the annuity
    until then. Source: L. A. Barroso et al., "The Datacenter as a Computer", 2018, chapter 6,
    doi:10.2200/S00874ED3V01Y201809CAC046.

    210 USD over two periods at 10 % earn 121 USD in each; after the first one 210 x 1.1 - 121 remain:

    >>> float(annuity_book_value(210.0, 0.1, 2.0, 1.0, 0.0, 1.0))
    110.0

    Parameters
    ----------
    price : Purchase price C. [USD]
    discount_rate : Cost of capital r of one period, WACC. [-]
    life : Time T of use. [s]
    age : Time t since the purchase; beyond the life the residual value stays. [s]
    residual_share : Share v of the price that is left at the end of the life. [-]
    period : Period p of the discount rate. [s]

    Returns
    -------
    value : Book value. [USD]
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

    >>> float(straight_line_depreciation(100.0, 4.0, 2.0, 1.0))  # The third of the four years of 100 USD
    25.0

    Parameters
    ----------
    price : Purchase price C. [USD]
    life : Depreciation time T. [s]
    age : Age t at the start of the span. [s]
    duration : Length d of the span. [s]
    residual_share : Share v of the price that is left at the end of the life. [-]

    Returns
    -------
    depreciation : Depreciation in the span. [USD]
    """
    time, start = array(life), array(age)
    span = np.minimum(start + array(duration), time) - np.minimum(start, time)
    return np.asarray(array(price) * (1.0 - array(residual_share)) * span / time)


INPUT, OUTPUT = "cost_per_million_input_tokens", "cost_per_million_output_tokens"
ALL_IN = {"training": "cost_per_million_tokens", "inference": "cost_per_million_output_tokens_all_in"}
"""Result with all cost of a plan over its tokens, trained or generated."""


class Terms(NamedTuple):
    """Cost and power of one accelerator of each plan, (rows,)."""

    cost_rate: Array  # Cost of a second; NaN: it has no price [USD/s]
    power: Array  # Power on the basis of the energy [W]
    carbon_intensity: Array  # CO2 equivalent of that energy [kg/J]
    accelerator_share: Array  # Share of the power drawn by the accelerator itself at its limit [-]
    energy_price: Array  # What the owner pays for that energy; 0 where the rent covers it [USD/J]

    def take(self, rows: np.ndarray | slice) -> Terms:
        """Selected rows."""
        return Terms(*(values[rows] for values in self))

    def with_rows(self, rows: np.ndarray, other: Terms) -> Terms:
        """A copy with some rows replaced."""
        terms = Terms(*(values.copy() for values in self))
        for values, changed in zip(terms, other, strict=True):
            values[rows] = changed
        return terms


def pool_mean(decode: Numeric, prefill: Numeric, prefill_share: Numeric) -> Array:
    r"""Mean over the accelerators of two pools, for a cost or a power.

    .. math:: x = x_d + s\,(x_p - x_d)

    A weighted mean; this work.

    4 B200 at 2.34 USD/h beside 8 A100 at 1.89 USD/h that prefill, USD/h of all twelve:

    >>> float(12 * pool_mean(2.34, 1.89, 8 / 12))
    24.48

    Parameters
    ----------
    decode : Value of an accelerator of the pool that decodes, e.g. a cost per second. [-]
    prefill : Value of an accelerator of the pool that prefills. [-]
    prefill_share : Share s of the accelerators, or of their time, that prefills. [-]

    Returns
    -------
    mean : The common value to the last bit if both are equal; NaN if a value with a share is NaN. [-]
    """
    first, second, share = array(decode), array(prefill), array(prefill_share)
    mean = np.where(share == 0.0, first, first + share * (second - first))
    return np.asarray(np.where(first == second, first + 0.0 * share, mean))


def cost_per_token(cost_rate: Numeric, num_accelerators: Numeric, token_rate: Numeric) -> Array:
    r"""Cost of one token.

    .. math:: c_t = \frac{c\,n}{r}

    By definition.

    8 accelerators at 0.05 cents per second make 2000 tokens per second:

    >>> float(cost_per_token(0.0005, 8.0, 2000.0))
    2e-06

    Parameters
    ----------
    cost_rate : Cost c of one accelerator, :func:`accelerator_cost_rate`. [USD/s]
    num_accelerators : Accelerators n that work on the tokens. [-]
    token_rate : Tokens r per second of all of them, above 0. [token/s]

    Returns
    -------
    cost : Cost of a token. [USD/token]
    """
    return np.asarray(array(cost_rate) * array(num_accelerators) / array(token_rate))


def energy_per_token(power: Numeric, num_accelerators: Numeric, token_rate: Numeric) -> Array:
    r"""Energy of one token.

    .. math:: e_t = \frac{P\,n}{r}

    By definition.

    >>> float(energy_per_token(1000.0, 8.0, 4000.0))  # 8 kW over 4000 tokens per second
    2.0

    Parameters
    ----------
    power : Power P of one accelerator, from the grid. [W]
    num_accelerators : Accelerators n that work on the tokens. [-]
    token_rate : Tokens r per second of all of them, above 0. [token/s]

    Returns
    -------
    energy : Energy of a token. [J/token]
    """
    return np.asarray(array(power) * array(num_accelerators) / array(token_rate))


def run_cost(cost_rate: Numeric, num_accelerators: Numeric, busy_time: Numeric) -> Array:
    r"""Cost of a step, a training run or a day of service.

    .. math:: c = r\,n\,t

    By definition.

    >>> float(run_cost(0.001, 100.0, 3600.0))  # 100 accelerators for an hour at 0.1 cents per second
    360.0

    Parameters
    ----------
    cost_rate : Cost r of one accelerator. [USD/s]
    num_accelerators : Accelerators n that work on it. [-]
    busy_time : Paid time t. [s]

    Returns
    -------
    cost : Cost of the run. [USD]
    """
    return np.asarray(array(cost_rate) * array(num_accelerators) * array(busy_time))


def mean_terms(decode: Terms, prefill: Terms, prefill_share: Array) -> Terms:
    """Terms of the mean accelerator of two pools; carbon is weighted by power."""
    power = pool_mean(decode.power, prefill.power, prefill_share)
    weight = np.where(power > 0.0, prefill_share * prefill.power / power, prefill_share)
    return Terms(
        pool_mean(decode.cost_rate, prefill.cost_rate, prefill_share),
        power,
        pool_mean(decode.carbon_intensity, prefill.carbon_intensity, weight),
        pool_mean(decode.accelerator_share, prefill.accelerator_share, weight),
        pool_mean(decode.energy_price, prefill.energy_price, weight),
    )


def drawn_terms(terms: Terms, accelerator_power: Array, power_limit: Array) -> Terms:
    """Terms of accelerators at their mean power: the energy bill follows the load, the capital does not."""
    saved = terms.power * (1.0 - mean_load(accelerator_power, power_limit, terms.accelerator_share))
    return terms._replace(power=terms.power - saved, cost_rate=terms.cost_rate - terms.energy_price * saved)


def token_costs(terms: Terms, num_accelerators: Array, token_rate: Array, all_in: str) -> dict[str, Array]:
    """Cost, energy and carbon of the tokens of plans."""
    energy = energy_per_token(terms.power, num_accelerators, token_rate)
    return {
        all_in: cost_per_token(terms.cost_rate, num_accelerators, token_rate),
        "tokens_per_dollar": token_rate / (terms.cost_rate * num_accelerators),
        "energy_per_token": energy,
        "grid_power": terms.power * num_accelerators,
        "tokens_per_second_per_megawatt": token_rate / (terms.power * num_accelerators),
        "carbon_per_million_tokens": carbon_of_energy(energy, terms.carbon_intensity),
    }


def split_costs(
    decode: Terms,
    prefill: Terms,
    prefill_share: Array,
    num_accelerators: Array,
    output_rate: Array,
    prompt_length: Array,
    output_length: Array,
) -> dict[str, Array]:
    """Cost of prompt and of output tokens: each pays for its share of the accelerators."""
    input_rate = output_rate * prompt_length / output_length
    return {
        INPUT: cost_per_token(prefill.cost_rate * prefill_share, num_accelerators, input_rate),
        OUTPUT: cost_per_token(decode.cost_rate * (1.0 - prefill_share), num_accelerators, output_rate),
    }


def break_even_cost_rate(cost_rate: Numeric, cost: Numeric, other_cost: Numeric) -> Array:
    r"""Cost of a second at which an accelerator makes tokens as cheaply as another accelerator.

    .. math:: c^* = c\,\frac{k_2}{k_1}

    By definition.

    A token costs half as much, so that a second may cost twice as much:

    >>> float(break_even_cost_rate(3.0, 1.0, 2.0))
    6.0

    Parameters
    ----------
    cost_rate : Cost c of a second of the accelerator now. [USD/s]
    cost : Cost k1 of a token on it now. [USD]
    other_cost : Cost k2 of a token on the other accelerator. [USD]

    Returns
    -------
    cost_rate : Cost of a second at which both cost the same. [USD/s]
    """
    return np.asarray(array(cost_rate) * array(other_cost) / array(cost))


def break_even_price(price: Numeric, cost_rate: Numeric, free_cost_rate: Numeric, wanted_rate: Numeric) -> Array:
    r"""Purchase price at which a second of an owned accelerator has a target cost.

    .. math:: C^* = C\,\frac{c^* - c_0}{c - c_0}

    The cost is linear in the price: :func:`xlperf.equations.cost.tco.accelerator_cost_rate`. Source: L. A. Barroso et
    al., "The Datacenter as a Computer", 2018, chapter 6, doi:10.2200/S00874ED3V01Y201809CAC046.

    A quarter of the 4 USD is energy; 7 USD leave twice as much for the purchase:

    >>> float(break_even_price(30_000.0, 4.0, 1.0, 7.0))
    60000.0

    Parameters
    ----------
    price : Any purchase price C above 0. [USD]
    cost_rate : Cost c of a second at that price. [USD/s]
    free_cost_rate : Cost c0 of a second at a price of 0, its energy. [USD/s]
    wanted_rate : Target cost c* of a second. [USD/s]

    Returns
    -------
    price : Purchase price; NaN if the energy alone costs more. [USD]
    """
    scaled = array(price) * (array(wanted_rate) - array(free_cost_rate)) / (array(cost_rate) - array(free_cost_rate))
    return np.asarray(np.where(scaled >= 0.0, scaled, np.nan))


def break_even_load(
    cost_rate: Numeric, copy_size: Numeric, server_size: Numeric, copy_load: Numeric, load_price: Numeric
) -> Array:
    r"""Least load that owned accelerators serve as cheaply as a price per unit of load.

    .. math:: u^* = \min\left\{u : c\,g\left\lceil\frac{n}{g}\left\lceil\frac{u}{L}\right\rceil\right\rceil \le a\,u
        \right\}

    By definition, in whole copies and servers; after g copies the servers are full again.

    A server of 8 at 0.1 cents a second each holds two copies of 100 requests; 0.005 cents a second for a request in
    flight pay for it from 160 requests on:

    >>> float(break_even_load(0.001, 4.0, 8.0, 100.0, 0.00005))
    160.0

    Parameters
    ----------
    cost_rate : Cost c of one accelerator. [USD/s]
    copy_size : Accelerators n of one copy of the model. [-]
    server_size : Accelerators g per server. [-]
    copy_load : Largest load L of one copy: requests in flight. [-]
    load_price : Price a of a unit of load elsewhere. [USD/s]

    Returns
    -------
    load : Requests in flight; infinite if no load pays. [-]
    """
    cost, size, group, most, price = (
        array(values) for values in np.broadcast_arrays(cost_rate, copy_size, server_size, copy_load, load_price)
    )
    load = np.where(np.isnan(cost + size + group + most + price), np.nan, np.inf)
    for copies in range(1, int(np.nanmax(group, initial=1.0)) + 1):
        paid = cost * group * ceil_div(copies * size, group)
        least = np.maximum(paid / price, (copies - 1.0) * most)
        load = np.where(np.isinf(load) & (paid <= copies * most * price), least, load)
    return np.asarray(load)


def owning_regret(
    num_owned: Numeric, num_accelerators: Numeric, owned_cost_rate: Numeric, rented_cost_rate: Numeric
) -> Array:
    r"""Cost beyond that of the cheaper way to have the accelerators that turn out needed; the missing ones are rented.

    .. math:: r = c_o\,n + c_r \max(N - n, 0) - \min(c_o, c_r)\,N

    In the mean it is least where the need is at most n with a probability of :math:`1 - c_o / c_r` (the newsvendor).
    Source: K. J. Arrow, T. Harris and J. Marschak, "Optimal inventory policy", Econometrica 19(3), 1951,
    doi:10.2307/1906813.

    Ten are owned at 1 USD/s each and 12 needed, two of them rented at 1.5 USD/s:

    >>> float(owning_regret(10.0, 12.0, 1.0, 1.5))
    1.0

    Parameters
    ----------
    num_owned : Accelerators n that are owned. [-]
    num_accelerators : Accelerators N that turn out needed. [-]
    owned_cost_rate : Cost co of a second of one that is owned. [USD/s]
    rented_cost_rate : Cost cr of a second of one that is rented. [USD/s]

    Returns
    -------
    regret : Cost of a second beyond the least. [USD/s]
    """
    owned, needed, own, rent = (
        array(values) for values in (num_owned, num_accelerators, owned_cost_rate, rented_cost_rate)
    )
    return np.asarray(own * owned + rent * np.maximum(needed - owned, 0.0) - np.minimum(own, rent) * needed)
