"""Owned servers: price, building, power, network, and the cost of an accelerator-hour by part."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np

from xlperf.base.arrays import Array, Columns, Numeric, array, ceil_div, finite
from xlperf.base.units import YEAR
from xlperf.equations.cost import tco

MONTHS = 12.0  # of a year [-]


class DrawnPower(NamedTuple):
    """Power of the accelerators of plans, (rows,)."""

    mean: Array  # Mean over the work; NaN: unknown [W]
    provided: Array  # Provisioned limit, as the plan lowers it [W]
    limit: Array  # Datasheet limit, part of the server power at full load [W]

    @classmethod
    def unknown(cls, count: int) -> DrawnPower:
        """Servers without a plan."""
        return cls(*np.full((3, count), np.nan))


class OwnerTerms(NamedTuple):
    """Arguments of :func:`owned_cost_rate` for an accelerator in a server, (rows,)."""

    capex: Array  # Price with its share of server, network and storage [USD]
    recovery_rate: Array  # Share of capex to earn per second [1/s]
    facility: Array  # Its share of rack, power, cooling and building [USD]
    facility_recovery_rate: Array  # Share of the facility to earn per second [1/s]
    maintenance_share: Array  # Repairs and spares of one period as a share of capex [-]
    staff_cost: Array  # Staff, insurance and rent for one period [USD]
    server_power: Array  # Power with its share of server and network at full load [W]
    power_usage_effectiveness: Array  # Power into the building over power into the servers [-]
    energy_price: Array  # Price of electric energy [USD/J]
    utilization: Array  # Used share of the time [-]
    load_share: Array  # Mean power while it works over the power at full load [-]
    period: Array  # Period of maintenance and staff [s]
    quoted_cost_rate: Array  # Support, rented storage and set-up per second of paid time [USD/s]

    @property
    def grid_power(self) -> Array:
        """Power from the grid at full load. [W]"""
        return np.asarray(self.server_power * self.power_usage_effectiveness)


def owner_terms(server: Columns, network: Numeric, drawn: DrawnPower) -> OwnerTerms:
    """Costs of buying, housing and running an accelerator: provided power sizes the facility, mean power the bill."""
    group, discount, used = server.num_accelerators, server.discount_rate, server.utilization
    # Price with the share of the server and of the network [USD]; power with the share of the server [W].
    bought = server.accelerator_price + server.server_price / group + array(network)
    power = server.server_power / group + server.network_power - finite(drawn.limit - drawn.provided)
    load = tco.mean_load(drawn.mean, drawn.provided, np.minimum(drawn.provided / power, 1.0), server.load_share)
    rack = server.rack_cost / group
    return OwnerTerms(
        capex=bought * (1.0 + server.storage_share),
        recovery_rate=tco.capital_recovery_rate(discount, server.life, server.residual_share),
        facility=power * server.power_usage_effectiveness * server.building_price + rack,
        facility_recovery_rate=tco.capital_recovery_rate(discount, server.building_life),
        maintenance_share=server.maintenance_share,
        staff_cost=server.staff_cost,
        server_power=power,
        power_usage_effectiveness=server.power_usage_effectiveness,
        energy_price=server.energy_price,
        utilization=np.where(used > 0.0, used, np.nan) * (1.0 - server.downtime_share),
        load_share=load,
        period=np.full_like(power, YEAR),
        quoted_cost_rate=sum(quote_lines(server, bought * (1.0 + server.storage_share)).values(), np.zeros_like(power)),
    )


def quote_lines(server: Columns, capex: Array) -> dict[str, Array]:
    """Cost of a second of paid time of an accelerator for lines of a quote that are no part of its price. [USD/s]

    Set-up is paid once, with the cost of capital over the life, and nothing of it is left then.
    """
    return {
        "support_cost": capex * server.support_share / YEAR,
        "rented_storage_cost": server.rented_storage * server.storage_price * MONTHS / YEAR,
        "setup_cost": server.setup_price * tco.capital_recovery_rate(server.discount_rate, server.life),
    }


def straight_line_terms(price: Columns, unknown: OwnerTerms, drawn: DrawnPower) -> OwnerTerms:
    """Terms of an owner by the sheet ``prices``: straight-line depreciation, without building and staff.

    .. math:: a = 1 / T
    """
    nothing = np.zeros_like(unknown.capex)
    stated = OwnerTerms(
        capex=price.capex,
        recovery_rate=1.0 / price.life,
        facility=nothing,
        facility_recovery_rate=nothing,
        maintenance_share=price.opex_share,
        staff_cost=nothing,
        server_power=price.server_power,
        power_usage_effectiveness=price.power_usage_effectiveness,
        energy_price=price.energy_price,
        utilization=price.utilization,
        load_share=tco.mean_load(drawn.mean, drawn.limit, np.minimum(drawn.limit / price.server_power, 1.0)),
        period=unknown.period,
        quoted_cost_rate=nothing,
    )
    return OwnerTerms(*(np.where(np.isnan(value), other, value) for value, other in zip(stated, unknown, strict=True)))


def server_hour(server: Columns, network: Numeric, drawn: DrawnPower) -> dict[str, Array]:
    """Cost of an hour of an accelerator in a server, by part; the parts add up to :func:`owned_cost_rate`."""
    terms = owner_terms(server, network, drawn)
    total = tco.owned_cost_rate(*terms)
    # Parts for a second of used time: energy, capital of servers and building, quoted lines, and lost time.
    energy = terms.server_power * terms.power_usage_effectiveness * terms.energy_price * terms.load_share
    used = terms.utilization / (1.0 - server.downtime_share)
    housed = terms.facility * terms.facility_recovery_rate
    capital = (terms.capex * terms.recovery_rate + housed) / used
    earned = terms.recovery_rate / used
    quoted = {name: rate / used for name, rate in quote_lines(server, terms.capex).items()}
    down = (total - energy) * server.downtime_share
    stored = terms.capex * server.storage_share / (1.0 + server.storage_share)
    return {
        "network_cost": array(network),
        "capex": terms.capex,
        "facility": terms.facility,
        "accelerator_cost": server.accelerator_price * earned,
        "server_cost": server.server_price / server.num_accelerators * earned,
        "network_capital_cost": array(network) * earned,
        "storage_cost": stored * earned,
        "facility_cost": housed / used,
        "capital_cost": capital,
        "running_cost": total - capital - energy - sum(quoted.values()) - down,
        **quoted,
        "downtime_cost": down,
        "energy_cost": energy,
        "cost_rate": total,
        "carbon_rate": tco.carbon_of_energy(terms.grid_power * terms.load_share, server.carbon_intensity),
    }


Words: TypeAlias = "str | np.ndarray"  # one word for all rows, or one per row
_WITHOUT_SWITCHES = ("ring", "torus", "mesh", "fully-connected")
_MOST_LEVELS = 8  # of the smallest switches: more than any data centre has


class NetworkParts(NamedTuple):
    """Parts of a network, (rows,)."""

    switches: Array  # Switches [-]
    cables: Array  # Links, from end points and between switches [-]
    transceivers: Array  # Two per link [-]


def network_parts(
    topology: Words, num_endpoints: Numeric, num_ports: Numeric, oversubscription: Numeric, num_axes: Numeric = 3.0
) -> NetworkParts:
    r"""Switches, cables and transceivers of a network, counted from its topology. A folded Clos network has n links at
    the bottom and n/o at each level above, half as many switches per link at the top, and the fewest levels L with
    :math:`2 (k/2)^L \ge n` (k: ports). Heuristic, this work, after the fat tree.
    """
    names, points = np.asarray(topology), array(num_endpoints)
    ports, over = array(num_ports), array(oversubscription)
    # Levels of switches of a folded Clos network.
    half = np.maximum(ports / 2.0, 2.0)
    capacity, levels = 2.0 * half, np.ones(np.broadcast(points, ports).shape)
    for _ in range(_MOST_LEVELS):
        levels = np.where(points > capacity, levels + 1.0, levels)
        capacity = capacity * half
    # Switches and cables of one switch or several levels, and links without switches.
    single, upward = points <= ports, points / over
    between = np.maximum(levels - 2.0, 0.0) * ceil_div(2.0 * upward, ports)
    several = ceil_div(points + upward, ports) + between + ceil_div(upward, ports)
    missing = np.isnan(points + ports + over)
    switches = np.where(missing, np.nan, np.where(single, 1.0, several))
    cables = np.where(missing, np.nan, np.where(single, points, points + (levels - 1.0) * upward))
    per_point = np.where(names == "fully-connected", (points - 1.0) / 2.0, np.where(names == "ring", 1.0, num_axes))
    links = np.where(points > 1.0, points * per_point, 0.0 * points)
    direct = np.isin(names, _WITHOUT_SWITCHES)
    cables = np.where(direct, links, cables)
    return NetworkParts(np.where(direct, 0.0 * points, switches), cables, 2.0 * cables)


class ServerNetwork(NamedTuple):
    """A network of servers, (rows,)."""

    parts: NetworkParts  # Switches, cables and transceivers; none without end points [-]
    cost: Array  # Price of all of them with adapters [USD]


def server_network(
    server: Columns, topology: Words, num_endpoints: Numeric, oversubscription: Numeric, num_axes: Numeric = 3.0
) -> ServerNetwork:
    """Parts of a network with the switches of a server's row, and their cost with adapters."""
    points = array(num_endpoints)
    counted = network_parts(topology, points, server.switch_ports, oversubscription, num_axes)
    parts = NetworkParts(*(np.where(points > 0.0, part, 0.0 * points) for part in counted))
    passive = parts.switches * server.switch_price + parts.cables * server.cable_price
    active = parts.transceivers * server.transceiver_price + points * server.adapter_price
    return ServerNetwork(parts, passive + active)


def accelerators_for_power(
    power_budget: Numeric, server_power: Numeric, power_usage_effectiveness: Numeric, group_size: Numeric = 1.0
) -> Array:
    r"""Accelerators within a grid power budget, in whole servers.

    .. math:: n = g \left\lfloor\frac{P}{g\,P_s\,\mathrm{PUE}}\right\rfloor

    Heuristic, this work: the grid feeds whole servers at full load.

    Servers of 8 draw 10 kW each, so that 105 kW feed ten servers:

    >>> float(accelerators_for_power(105000.0, 1000.0, 1.25, 8.0))
    80.0

    Parameters
    ----------
    power_budget : Power P from the grid. [W]
    server_power : Power of one accelerator with its share of the server. [W]
    power_usage_effectiveness : Power into the building over power into the servers. [-]
    group_size : Accelerators g per server. [-]

    Returns
    -------
    num_accelerators : Accelerators. [-]
    """
    group = array(group_size)
    each = array(server_power) * array(power_usage_effectiveness) * group
    return np.asarray(group * np.floor(array(power_budget) / each))


def server_costs(server: Columns) -> dict[str, Array]:
    """Cost per accelerator-hour in a cluster of such servers, and of a planned number of accelerators or grid power."""
    pool = _cluster(server, DrawnPower.unknown(len(server.cluster_size)))
    parts, hour, terms = pool.parts, pool.hour(), pool.terms()
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
        "capex_planned": planned * (terms.capex + terms.facility + server.setup_price),
        "cost_planned": planned * hour["cost_rate"] * terms.utilization * YEAR,
    }


class OwnedPool(NamedTuple):
    """Accelerators of plans, or of one of their pools, with their servers, (rows,)."""

    server: Columns  # Rows of the sheet ``servers``; NaN: none has the accelerator
    parts: NetworkParts  # Switches, cables and transceivers outside the servers
    network: Array  # Their price with adapters, share of one accelerator [USD]
    drawn: DrawnPower  # Power of the accelerators by their work

    def terms(self) -> OwnerTerms:
        """Costs of buying, housing and running an accelerator."""
        return owner_terms(self.server, self.network, self.drawn)

    def hour(self) -> dict[str, Array]:
        """Cost of an hour of an accelerator by part."""
        return server_hour(self.server, self.network, self.drawn)


def _cluster(server: Columns, drawn: DrawnPower) -> OwnedPool:
    """Servers with the network of their own row."""
    endpoints = server.cluster_size * server.links_per_accelerator
    parts, price = server_network(server, server.topology, endpoints, server.oversubscription)
    return OwnedPool(server, parts, price / server.cluster_size, drawn)


def server_terms(server: Columns, power_limit: Array) -> tco.Terms:
    """Cost and power of an accelerator at its power limit, in the cluster of its server's row."""
    pool = _cluster(server, DrawnPower(power_limit, power_limit, power_limit))
    full = working_terms(pool)
    grid = power_limit * server.power_usage_effectiveness
    return full._replace(accelerator_share=np.minimum(grid / full.power, 1.0))


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


def working_terms(pool: OwnedPool) -> tco.Terms:
    """Cost and mean power of an accelerator in its working hours."""
    terms, hour = pool.terms(), pool.hour()
    power = terms.grid_power * terms.load_share
    return tco.Terms(hour["cost_rate"], power, pool.server.carbon_intensity, 0.0 * power, terms.energy_price)


def owned_hour(
    decode: OwnedPool, prefill: OwnedPool, prefill_share: Numeric, num_accelerators: Numeric, token_rate: Numeric
) -> dict[str, Array]:
    """Cost of an hour of the mean accelerator of a plan by part, and totals of the plan: the sheet ``ownership``."""
    # Weighted means over both pools; rates while idle count in the paid hours.
    pools, count = (decode, prefill), array(num_accelerators)
    hours, terms = [pool.hour() for pool in pools], [pool.terms() for pool in pools]

    def mean(name: str) -> Array:
        return tco.pool_mean(hours[0][name], hours[1][name], prefill_share)

    grid = tco.pool_mean(terms[0].grid_power, terms[1].grid_power, prefill_share)
    paid = [hour["cost_rate"] * pool.utilization for hour, pool in zip(hours, terms, strict=True)]
    switches, cables, transceivers = (
        tco.pool_mean(one, other, prefill_share) for one, other in zip(decode.parts, prefill.parts, strict=True)
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
        "hour_support": mean("support_cost"),
        "hour_rented_storage": mean("rented_storage_cost"),
        "hour_setup": mean("setup_cost"),
        "hour_downtime": mean("downtime_cost"),
        "hour_energy": mean("energy_cost"),
        "hour_cost": mean("cost_rate"),
        "tokens_per_second_per_provisioned_megawatt": array(token_rate) / (grid * count),
        "yearly_cost": tco.pool_mean(paid[0], paid[1], prefill_share) * count * YEAR,
    }


def accelerator_hour(design: Columns, pool: OwnedPool) -> dict[str, Array]:
    """The accelerator's part of an hour, divided over dies, memory, package, board, one-time costs and margin."""
    price = pool.server.accelerator_price
    hour = pool.hour()["accelerator_cost"]
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
    """Embodied carbon of the accelerators and servers of a plan, of its tokens and of its run."""
    made: list[Array] = []
    rates: list[Array] = []
    for pool, carbon in ((decode, decode_carbon), (prefill, prefill_carbon)):
        server = pool.server
        made.append(carbon + finite(server.embodied_carbon) / server.num_accelerators)
        rates.append(made[-1] / (server.life * pool.terms().utilization))
    rate = tco.pool_mean(rates[0], rates[1], prefill_share) * num_accelerators
    return {
        "embodied_carbon": tco.pool_mean(made[0], made[1], prefill_share) * num_accelerators,
        "owned_embodied_carbon_per_million_tokens": rate / token_rate,
        "owned_run_embodied_carbon": rate * run_time,
    }
