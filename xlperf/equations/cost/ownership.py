r"""Plans that are owned: accelerators bought in whole servers, the hour of the mean accelerator, what it is made of."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Columns, Numeric, array, ceil_div
from xlperf.base.units import YEAR
from xlperf.equations.cost.servers import (
    DrawnPower,
    NetworkParts,
    OwnerTerms,
    Words,
    owner_terms,
    server_hour,
    server_network,
)
from xlperf.equations.cost.tco import building_power
from xlperf.equations.cost.tokens import Terms, pool_mean, token_rate_per_power


def accelerators_for_power(
    power_budget: Numeric, server_power: Numeric, power_usage_effectiveness: Numeric, group_size: Numeric = 1.0
) -> Array:
    r"""Accelerators that a power budget feeds, in whole servers.

    .. math:: n = g \left\lfloor\frac{P}{g\,P_s\,\mathrm{PUE}}\right\rfloor

    Heuristic, this work: the grid feeds whole servers at full load.

    Parameters
    ----------
    power_budget : numeric
        Power P from the grid. [W]
    server_power : numeric
        Power of one accelerator with its share of the server. [W]
    power_usage_effectiveness : numeric
        Power into the building over power into the servers. [-]
    group_size : numeric, default 1.0
        Accelerators g that are bought together. [-]

    Returns
    -------
    num_accelerators : numeric
        Accelerators. [-]

    Examples
    --------
    Servers of 8 draw 10 kW each: 105 kW feed ten of them:

    >>> float(accelerators_for_power(105000.0, 1000.0, 1.25, 8.0))
    80.0
    """
    group = array(group_size)
    each = array(server_power) * array(power_usage_effectiveness) * group
    return np.asarray(group * np.floor(array(power_budget) / each))


def server_costs(server: Columns, period: Numeric = YEAR) -> dict[str, Array]:
    """Cost per accelerator-hour in a cluster of such servers, and what a planned number or power of them takes.

    Where a number of accelerators and a power are fixed, what the power feeds bounds the number.
    """
    pool = _cluster(server, DrawnPower.unknown(len(server.cluster_size)))
    parts, hour, terms = pool.parts, pool.hour(period), pool.terms(period)
    asked, group = server.fixed_accelerators, server.num_accelerators
    fed = accelerators_for_power(server.fixed_power, terms.server_power, terms.power_usage_effectiveness, group)
    planned = np.where(np.isnan(asked), fed, np.where(np.isnan(fed), asked, np.minimum(asked, fed)))
    return {
        "network_switches": parts.switches,
        "network_cables": parts.cables,
        "network_transceivers": parts.transceivers,
        **hour,
        "accelerators_planned": planned,
        "power_planned": planned * terms.grid_power,
        "capex_planned": planned * (terms.capex + terms.facility),
        "cost_planned": planned * hour["cost_rate"] * terms.utilization * array(period),
    }


class OwnedPool(NamedTuple):
    """Accelerators of plans, or of one of their pools, in the servers they are bought in, (rows,)."""

    server: Columns  # Rows of the sheet ``servers``; NaN where none has the accelerator
    parts: NetworkParts  # Switches, cables and transceivers outside the servers
    network: Array  # Their price with adapters, share of one accelerator [USD]
    drawn: DrawnPower  # Power of the accelerators by their work

    def terms(self, period: Numeric = YEAR) -> OwnerTerms:
        """What an accelerator costs to buy, to house and to run."""
        return owner_terms(self.server, self.network, self.drawn, period)

    def hour(self, period: Numeric = YEAR) -> dict[str, Array]:
        """The hour of an accelerator by part."""
        return server_hour(self.server, self.network, self.drawn, period)


def _cluster(server: Columns, drawn: DrawnPower) -> OwnedPool:
    """Servers joined by the network of their own row."""
    endpoints = server.cluster_size * server.links_per_accelerator
    parts, price = server_network(server, server.topology, endpoints, server.oversubscription)
    return OwnedPool(server, parts, price / server.cluster_size, drawn)


def server_terms(server: Columns, power_limit: Array, period: Numeric = YEAR) -> Terms:
    """What an accelerator at its power limit costs and draws in the cluster that the row of its server describes."""
    pool = _cluster(server, DrawnPower(power_limit, power_limit, power_limit))
    full = working_terms(pool, period)
    own = building_power(power_limit, server.power_usage_effectiveness)
    return full._replace(accelerator_share=np.minimum(own / full.power, 1.0))


def owned_pool(
    server: Columns,
    topology: Words,
    num_endpoints: Numeric,
    oversubscription: Numeric,
    num_axes: Numeric,
    num_accelerators: Numeric,
    drawn: DrawnPower,
) -> OwnedPool:
    """Servers of a pool and the network that joins them."""
    parts, price = server_network(server, topology, num_endpoints, oversubscription, num_axes)
    return OwnedPool(server, parts, price / array(num_accelerators), drawn)


def working_terms(pool: OwnedPool, period: Numeric = YEAR) -> Terms:
    """What an accelerator costs, and draws on the mean of its working hours."""
    terms, hour = pool.terms(period), pool.hour(period)
    power = terms.grid_power * terms.load_share
    return Terms(hour["cost_rate"], power, pool.server.carbon_intensity, 0.0 * power, terms.energy_price)


def accelerators_bought(
    num_accelerators: Numeric, num_prefill: Numeric, decode_server_size: Numeric, prefill_server_size: Numeric
) -> Array:
    r"""Accelerators of a plan in whole servers, those of a pool that has others in servers of its own.

    .. math:: N = g_d \left\lceil\frac{n - n_p}{g_d}\right\rceil + g_p \left\lceil\frac{n_p}{g_p}\right\rceil

    By definition.

    Parameters
    ----------
    num_accelerators : numeric
        Accelerators n of the plan. [-]
    num_prefill : numeric
        Those np that prefill in servers of their own. [-]
    decode_server_size : numeric
        Accelerators gd of one server. [-]
    prefill_server_size : numeric
        Accelerators gp of one server of those that prefill. [-]

    Returns
    -------
    num_bought : numeric
        Accelerators, used or not. [-]

    Examples
    --------
    20 accelerators, 6 of which prefill: two servers of 8 and two of 4.

    >>> float(accelerators_bought(20, 6, 8, 4))
    24.0
    """
    apart, first, second = array(num_prefill), array(decode_server_size), array(prefill_server_size)
    own = np.where(apart > 0.0, second * ceil_div(apart, second), 0.0 * apart)
    return np.asarray(first * ceil_div(array(num_accelerators) - apart, first) + own)


def owned_hour(
    decode: OwnedPool,
    prefill: OwnedPool,
    prefill_share: Numeric,
    num_accelerators: Numeric,
    token_rate: Numeric,
    period: Numeric = YEAR,
) -> dict[str, Array]:
    """The hour of the mean accelerator of a plan, by part, and what all of them take."""
    pools, count = (decode, prefill), array(num_accelerators)
    hours, terms = [pool.hour(period) for pool in pools], [pool.terms(period) for pool in pools]

    def mean(name: str) -> Array:
        return pool_mean(hours[0][name], hours[1][name], prefill_share)

    grid = pool_mean(terms[0].grid_power, terms[1].grid_power, prefill_share)
    paid = [hour["cost_rate"] * each.utilization for hour, each in zip(hours, terms, strict=True)]
    switches, cables, transceivers = (
        pool_mean(one, other, prefill_share) for one, other in zip(decode.parts, prefill.parts, strict=True)
    )
    return {
        "network_switches": switches,
        "network_cables": cables,
        "network_transceivers": transceivers,
        "network_cost": mean("network_cost"),
        "capex": count * mean("capex"),
        "facility": count * mean("facility"),
        "power": count * grid,
        "hour_accelerator": mean("accelerator_cost"),
        "hour_server": mean("server_cost"),
        "hour_network": mean("network_capital_cost"),
        "hour_storage": mean("storage_cost"),
        "hour_facility": mean("facility_cost"),
        "hour_running": mean("running_cost"),
        "hour_energy": mean("energy_cost"),
        "hour_cost": mean("cost_rate"),
        "tokens_per_second_per_provisioned_megawatt": token_rate_per_power(token_rate, count, grid),
        "yearly_cost": pool_mean(paid[0], paid[1], prefill_share) * count * array(period),
    }


def accelerator_hour(design: Columns, pool: OwnedPool, period: Numeric = YEAR) -> dict[str, Array]:
    r"""The accelerator's part of an hour by what the accelerator is made of; the rest of its price is margin.

    .. math:: h_i = \frac{c_i}{p} h
    """
    price = pool.server.accelerator_price
    hour = pool.hour(period)["accelerator_cost"]
    made = {
        "hour_dies": design.raw_dies + design.die_defects + design.wasted_dies,
        "hour_memory": design.memory + design.wasted_memory,
        "hour_package": design.raw_package + design.package_defects,
        "hour_board": design.test + design.board_cost,
        "hour_one_time": design.nre_per_unit,
    }
    made["hour_margin"] = price - sum(made.values())
    return {name: part * hour / price for name, part in made.items()}


def embodied_costs(
    decode: OwnedPool,
    prefill: OwnedPool,
    decode_carbon: Array,
    prefill_carbon: Array,
    prefill_share: Array,
    num_accelerators: Array,
    token_rate: Array,
    run_time: Array,
) -> dict[str, Array]:
    r"""Carbon of making the accelerators of a plan with their servers, of its tokens and of its run.

    .. math:: m_t = \frac{n}{r}\,\frac{m_a + m_s / g}{u\,T}
    """
    made: list[Array] = []
    rates: list[Array] = []
    for pool, carbon in ((decode, decode_carbon), (prefill, prefill_carbon)):
        server = pool.server
        made.append(carbon + np.nan_to_num(server.embodied_carbon) / server.num_accelerators)
        rates.append(made[-1] / (server.life * pool.terms().utilization))
    rate = pool_mean(rates[0], rates[1], prefill_share) * num_accelerators
    return {
        "embodied_carbon": pool_mean(made[0], made[1], prefill_share) * num_accelerators,
        "owned_embodied_carbon_per_million_tokens": rate / token_rate,
        "owned_run_embodied_carbon": rate * run_time,
    }
