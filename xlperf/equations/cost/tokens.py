"""Cost, energy and carbon of tokens, one definition for plans at the sheet ``prices`` and plans of an owner.

The energy of a token is that of all accelerators over the tokens trained or generated; prompts are paid by the tokens
that follow.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array
from xlperf.equations.cost.tco import carbon_of_energy, mean_load

INPUT, OUTPUT = "cost_per_million_input_tokens", "cost_per_million_output_tokens"
ALL_IN = {"training": "cost_per_million_tokens", "inference": "cost_per_million_output_tokens_all_in"}
"""Result that holds all cost of a plan over its tokens, trained or generated."""


class Terms(NamedTuple):
    """What one accelerator of each plan costs and draws, (rows,)."""

    cost_rate: Array  # Cost of a second; NaN: it has no price [USD/s]
    power: Array  # Power on the basis of the energy [W]
    carbon_intensity: Array  # CO2 equivalent of that energy [kg/J]
    accelerator_share: Array  # Share of that power which the accelerator itself draws at its limit [-]
    energy_price: Array  # What the owner pays for that energy; 0 where the rent covers it [USD/J]

    def take(self, rows: np.ndarray | slice) -> Terms:
        """Those of some of the rows."""
        return Terms(*(values[rows] for values in self))

    def with_rows(self, rows: np.ndarray, other: Terms) -> Terms:
        """The same with some of the rows replaced."""
        found = Terms(*(values.copy() for values in self))
        for values, changed in zip(found, other, strict=True):
            values[rows] = changed
        return found


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

    By definition.

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

    By definition.

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

    By definition.

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


def run_cost(cost_rate: Numeric, num_accelerators: Numeric, busy_time: Numeric) -> Array:
    r"""Cost of a step, a training run or a day of service.

    .. math:: c = r\,n\,t

    By definition.

    Parameters
    ----------
    cost_rate : numeric
        Cost r of one accelerator. [USD/s]
    num_accelerators : numeric
        Accelerators n that work on it. [-]
    busy_time : numeric
        Time t that they are paid for. [s]

    Returns
    -------
    cost : numeric
        Cost of the run. [USD]

    Examples
    --------
    100 accelerators for an hour at 0.1 cents per second:

    >>> float(run_cost(0.001, 100.0, 3600.0))
    360.0
    """
    return np.asarray(array(cost_rate) * array(num_accelerators) * array(busy_time))


def rate_per_cost(token_rate: Numeric, num_accelerators: Numeric, cost_rate: Numeric) -> Array:
    r"""Tokens per US dollar, the inverse of the cost per token.

    .. math:: r_c = \frac{r}{c\,n}

    By definition.

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
    r"""Terms of accelerators at the power that their work draws; the rest of the server is at full load.

    .. math:: c = c_f - p_e\,(P_f - P), \quad P = P_f\,l

    with the load l of :func:`xlperf.equations.cost.tco.mean_load`: the energy bill follows the work, the capital not.
    By definition.
    """
    saved = terms.power * (1.0 - mean_load(accelerator_power, power_limit, terms.accelerator_share))
    return terms._replace(power=terms.power - saved, cost_rate=terms.cost_rate - terms.energy_price * saved)


def token_costs(terms: Terms, num_accelerators: Array, token_rate: Array, all_in: str) -> dict[str, Array]:
    """Cost, energy and carbon of the tokens of plans."""
    energy = energy_per_token(terms.power, num_accelerators, token_rate)
    return {
        all_in: cost_per_token(terms.cost_rate, num_accelerators, token_rate),
        "tokens_per_dollar": rate_per_cost(token_rate, num_accelerators, terms.cost_rate),
        "energy_per_token": energy,
        "grid_power": terms.power * num_accelerators,
        "tokens_per_second_per_megawatt": token_rate_per_power(token_rate, num_accelerators, terms.power),
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
    """Cost of prompt and of output tokens: each pays the accelerators while they work for it."""
    input_rate = output_rate * prompt_length / output_length
    return {
        INPUT: cost_per_token(prefill.cost_rate * prefill_share, num_accelerators, input_rate),
        OUTPUT: cost_per_token(decode.cost_rate * (1.0 - prefill_share), num_accelerators, output_rate),
    }


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
    .. [1] L. A. Barroso et al., "The Datacenter as a Computer", 2018, chapter 6, doi:10.2200/S00874ED3V01Y201809CAC046.

    Examples
    --------
    A quarter of the 4 USD is energy; 7 USD leave twice as much for the purchase:

    >>> float(break_even_price(30_000.0, 4.0, 1.0, 7.0))
    60000.0
    """
    found = array(price) * (array(wanted_rate) - array(free_cost_rate)) / (array(cost_rate) - array(free_cost_rate))
    return np.asarray(np.where(found >= 0.0, found, np.nan))
