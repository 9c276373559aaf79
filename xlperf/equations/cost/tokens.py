"""Cost, energy and carbon of tokens, one definition for plans at the sheet ``prices`` and plans of an owner.

All accelerators' energy is divided by the tokens trained or generated, so that output tokens pay for their prompts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div
from xlperf.equations.cost.tco import carbon_of_energy, mean_load

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
    power : Power P of one accelerator, e.g. :func:`building_power`. [W]
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
