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

    Parameters
    ----------
    server : Columns
        Rows of the sheet ``servers``.
    period : numeric, default one year
        Period that discount rate, maintenance, staff and the planned cost are for. [s]

    Returns
    -------
    dict of str to Array
        Columns of the sheet ``servers_results``.

    References
    ----------
    .. [1] L. A. Barroso, U. Hölzle and P. Ranganathan, "The Datacenter as a Computer", 3rd ed., 2018, chapter 6,
       doi:10.2200/S00874ED3V01Y201809CAC046.

    Examples
    --------
    Servers of 8 accelerators of $25,000 that are written off in five years and draw 10 kW, 12 kW with their cooling:
    1.2 MW feed 100 of them.

    >>> from ideal_machine import columns
    >>> server = columns(num_accelerators=8.0, accelerator_price=25e3, server_power=10e3, power_usage_effectiveness=1.2,
    ...     life=5 * YEAR, building_life=20 * YEAR, utilization=1.0, load_share=1.0, fixed_power=1.2e6,
    ...     fixed_accelerators=np.nan, cluster_size=8.0, links_per_accelerator=1.0, topology="fat-tree",
    ...     switch_ports=64.0, oversubscription=1.0)
    >>> found = server_costs(server)
    >>> [float(found[name][0]) for name in ("accelerators_planned", "capex_planned", "cost_planned")]
    [800.0, 20000000.0, 4000000.0]
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
    """Accelerators of plans, or of one of their pools, in the servers they are bought in, (rows,).

    Attributes
    ----------
    server : Columns
        Rows of the sheet ``servers``; NaN where none has the accelerator.
    parts : NetworkParts
        Switches, cables and transceivers outside the servers.
    network : Array
        Their price with adapters, share of one accelerator. [USD]
    drawn : DrawnPower
        Power of the accelerators by their work.
    """

    server: Columns
    parts: NetworkParts
    network: Array
    drawn: DrawnPower

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
    """What an accelerator at its power limit costs and draws in the cluster that the row of its server describes.

    Parameters
    ----------
    server : Columns
        Rows of the sheet ``servers``.
    power_limit : Array
        Limit of the accelerator, (rows,). [W]
    period : numeric, default one year
        Period that discount rate, maintenance and staff are for. [s]

    Returns
    -------
    Terms
        (rows,).

    Examples
    --------
    Servers of eight accelerators at 1,000 W each, of which the accelerator draws 700 W at its limit: 0.7 of the power.

    >>> from types import SimpleNamespace
    >>> sizes = {"num_accelerators": 8.0, "accelerator_price": 30000.0, "server_price": 80000.0, "server_power": 8000.0}
    >>> sizes |= {"life": 4 * YEAR, "building_life": 10 * YEAR, "power_usage_effectiveness": 1.25, "utilization": 0.5}
    >>> network = {"cluster_size": 8.0, "links_per_accelerator": 1.0, "switch_ports": 64.0, "oversubscription": 1.0}
    >>> none = "storage_share discount_rate residual_share maintenance_share network_power rack_cost staff_cost"
    >>> none += " energy_price building_price carbon_intensity"
    >>> none += " switch_price cable_price transceiver_price adapter_price"
    >>> server = SimpleNamespace(**sizes, **network, **dict.fromkeys(none.split(), 0.0))
    >>> server.load_share, server.topology = 1.0, "switch"
    >>> server_terms(server, np.array([700.0])).accelerator_share.tolist()
    [0.7]
    """
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
    """Servers of a pool and the network that joins them.

    Parameters
    ----------
    server : Columns
        Rows of the sheet ``servers``.
    topology : {"fat-tree", "switch", "rail", "dragonfly", "fully-connected", "ring", "torus", "mesh"}
        As in :func:`xlperf.equations.cost.servers.network_parts`.
    num_endpoints : numeric
        Links into the network; 0 within one server. [-]
    oversubscription : numeric
        Bandwidth into the network over that through its core; no meaning without switches, may be NaN there. [-]
    num_axes : numeric
        Axes of a mesh or torus; no meaning otherwise, may be NaN there. [-]
    num_accelerators : numeric
        Accelerators that share the network. [-]
    drawn : DrawnPower
        Power of the accelerators by their work.

    Returns
    -------
    OwnedPool

    References
    ----------
    .. [1] L. A. Barroso, U. Hölzle and P. Ranganathan, "The Datacenter as a Computer", 3rd ed., 2018, chapter 3,
       doi:10.2200/S00874ED3V01Y201809CAC046.

    Examples
    --------
    A switch of 64 ports for 10,000 USD is shared by 32 accelerators.

    >>> from types import SimpleNamespace
    >>> server = SimpleNamespace(switch_ports=64.0, switch_price=10000.0, cable_price=0.0, transceiver_price=0.0)
    >>> server.adapter_price = 0.0
    >>> float(owned_pool(server, "fat-tree", 32.0, 1.0, np.nan, 32.0, DrawnPower.unknown(1)).network)
    312.5
    """
    parts, price = server_network(server, topology, num_endpoints, oversubscription, num_axes)
    return OwnedPool(server, parts, price / array(num_accelerators), drawn)


def working_terms(pool: OwnedPool, period: Numeric = YEAR) -> Terms:
    """What an accelerator costs, and draws on the mean of its working hours.

    Parameters
    ----------
    pool : OwnedPool
        In the servers that it is bought in.
    period : numeric, default one year
        Period that discount rate, maintenance and staff are for. [s]

    Returns
    -------
    Terms

    Examples
    --------
    1,000 W at full load, half of it on average:

    >>> from types import SimpleNamespace
    >>> terms = SimpleNamespace(grid_power=1000.0, load_share=0.5, energy_price=0.0)
    >>> pool = SimpleNamespace(terms=lambda period: terms, hour=lambda period: {"cost_rate": 2.0})
    >>> pool.server = SimpleNamespace(carbon_intensity=0.0)
    >>> working_terms(pool).power
    500.0
    """
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
    r"""The hour of the mean accelerator of a plan, by part, and what all of them take.

    Parameters
    ----------
    decode : OwnedPool
        Accelerators that decode, or all of them.
    prefill : OwnedPool
        Those that prefill, the same but for mixed pools.
    prefill_share : numeric
        Share of the accelerators' time, or of the accelerators, that prefills. [-]
    num_accelerators : numeric
        All accelerators of the plan. [-]
    token_rate : numeric
        Tokens trained or generated by all of them. [token/s]
    period : numeric, default one year
        Period that discount rate, maintenance, staff and the yearly cost are for. [s]

    Returns
    -------
    dict of str to Array
        Columns of the sheet ``ownership``.

    References
    ----------
    .. [1] L. A. Barroso, U. Hölzle and P. Ranganathan, "The Datacenter as a Computer", 3rd ed., 2018, chapter 6,
       doi:10.2200/S00874ED3V01Y201809CAC046.

    Examples
    --------
    8 accelerators of $40,000, a quarter of which prefill and cost twice as much, at $0.001 a second:

    >>> from types import SimpleNamespace
    >>> parts = "accelerator_cost server_cost network_capital_cost storage_cost facility_cost running_cost energy_cost"
    >>> def pool(price):
    ...     hour = {name: np.ones(1) for name in f"network_cost facility {parts}".split()}
    ...     hour |= {"capex": np.array([price]), "cost_rate": np.array([price / 4e7])}
    ...     terms = SimpleNamespace(grid_power=np.array([1000.0]), utilization=1.0)
    ...     return SimpleNamespace(hour=lambda period: hour, terms=lambda period: terms, parts=np.zeros((3, 1)))
    >>> found = owned_hour(pool(40e3), pool(80e3), 0.25, 8, 100.0)
    >>> [float(found[name][0]) for name in ("capex", "hour_cost", "power")]
    [400000.0, 0.00125, 8000.0]
    """
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

    Parameters
    ----------
    design : Columns
        Rows of the sheet ``chiplets_results``; NaN where none is made for the accelerator.
    pool : OwnedPool
        In the servers that it is bought in.
    period : numeric, default one year
        Period that the discount rate is for. [s]

    Returns
    -------
    dict of str to Array
        Columns of the sheet ``ownership``.

    References
    ----------
    .. [1] Y. Feng and K. Ma, "Chiplet Actuary: a quantitative cost model and multi-chiplet architecture exploration",
       DAC 2022, doi:10.1145/3489517.3530428.

    Examples
    --------
    Dies for 200 USD and memory for 300 USD of an accelerator sold for 1,000 USD, at 2 USD an hour:

    >>> from types import SimpleNamespace
    >>> names = "wasted_dies wasted_memory raw_package package_defects test board_cost nre_per_unit".split()
    >>> design = SimpleNamespace(**dict.fromkeys(names, 0.0), raw_dies=150.0, die_defects=50.0, memory=300.0)
    >>> pool = SimpleNamespace(hour=lambda period: {"accelerator_cost": 2.0})
    >>> pool.server = SimpleNamespace(accelerator_price=1000.0)
    >>> found = accelerator_hour(design, pool)
    >>> found["hour_dies"], found["hour_memory"], found["hour_margin"]
    (0.4, 0.6, 1.0)
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

    Parameters
    ----------
    decode : OwnedPool
        Accelerators that decode, or all of them; a blank carbon of a server is not counted.
    prefill : OwnedPool
        Those that prefill, the same but for mixed pools.
    decode_carbon : Array
        Carbon m_a of making an accelerator that decodes, (rows,). [kg]
    prefill_carbon : Array
        Carbon of making one that prefills, (rows,). [kg]
    prefill_share : Array
        Share of the accelerators' time, or of the accelerators, that prefills, (rows,). [-]
    num_accelerators : Array
        All accelerators n of a plan, (rows,). [-]
    token_rate : Array
        Tokens r trained or generated by all of them, (rows,). [token/s]
    run_time : Array
        Time of a whole training run; NaN: none, (rows,). [s]

    Returns
    -------
    dict of str to Array
        Columns of the sheet ``ownership``.

    References
    ----------
    .. [1] U. Gupta et al., "ACT: designing sustainable computer systems with an architectural carbon modeling tool",
       ISCA 2022, doi:10.1145/3470496.3527408.

    Examples
    --------
    100 kg for an accelerator and 800 kg / 8 for its server, over 50 s of use; two accelerators make 4 tokens a second.

    >>> from types import SimpleNamespace
    >>> pool = SimpleNamespace(terms=lambda: SimpleNamespace(utilization=0.5))
    >>> pool.server = SimpleNamespace(embodied_carbon=800.0, num_accelerators=8.0, life=100.0)
    >>> found = embodied_costs(pool, pool, 100.0, 100.0, 0.0, 2.0, 4.0, 10.0)
    >>> float(found["embodied_carbon"]), float(found["owned_embodied_carbon_per_million_tokens"])
    (400.0, 2.0)
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
