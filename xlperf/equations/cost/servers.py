r"""Servers that are owned: price, building, power, the network between them, and an accelerator's hour by part."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np

from xlperf.base.arrays import Array, Columns, Numeric, array, ceil_div
from xlperf.base.units import YEAR
from xlperf.equations.cost.tco import (
    building_power,
    capital_recovery_rate,
    carbon_of_energy,
    energy_cost_rate,
    mean_load,
    owned_cost_rate,
)


def facility_cost(
    server_power: Numeric, power_usage_effectiveness: Numeric, building_price: Numeric, rack_cost: Numeric = 0.0
) -> Array:
    r"""Rack, power, cooling and building that one accelerator takes up.

    .. math:: c = P_s\,\mathrm{PUE}\,p + r

    Parameters
    ----------
    server_power : numeric
        Power of one accelerator with its share of the server. [W]
    power_usage_effectiveness : numeric
        Power into the building over power into the servers. [-]
    building_price : numeric
        Building with power and cooling per power that it takes from the grid. [USD/W]
    rack_cost : numeric, default 0.0
        Rack and power strips, share of one accelerator. [USD]

    Returns
    -------
    cost : numeric
        Share of one accelerator. [USD]

    References
    ----------
    .. [1] L. A. Barroso et al., "The Datacenter as a Computer", 2018, chapter 6, doi:10.2200/S00874ED3V01Y201809CAC046.

    Examples
    --------
    1000 W x 1.2 x 10 USD/W + 500 USD:

    >>> float(facility_cost(1000.0, 1.2, 10.0, 500.0))
    12500.0
    """
    power = array(server_power) * array(power_usage_effectiveness)
    return np.asarray(power * array(building_price) + array(rack_cost))


def accelerator_capex(
    accelerator_price: Numeric, server_price: Numeric, num_accelerators: Numeric, network_price: Numeric
) -> Array:
    r"""Price of one accelerator with its share of the server and of the network.

    .. math:: C = p_a + \frac{p_s}{n} + p_n

    Parameters
    ----------
    accelerator_price : numeric
        Price pa of one accelerator. [USD]
    server_price : numeric
        Price ps of a server without accelerators and without network. [USD]
    num_accelerators : numeric
        Accelerators n of a server. [-]
    network_price : numeric
        Share pn of one accelerator in the network. [USD]

    Returns
    -------
    capex : numeric
        Capital cost of one accelerator, without the building. [USD]

    References
    ----------
    .. [1] L. A. Barroso et al., "The Datacenter as a Computer", 2018, chapter 6, doi:10.2200/S00874ED3V01Y201809CAC046.

    Examples
    --------
    30000 + 80000 / 8 + 5000:

    >>> float(accelerator_capex(30000.0, 80000.0, 8.0, 5000.0))
    45000.0
    """
    return np.asarray(array(accelerator_price) + array(server_price) / array(num_accelerators) + array(network_price))


class DrawnPower(NamedTuple):
    """Power of the accelerators of plans, (rows,)."""

    mean: Array  # By their work; NaN: not known [W]
    provided: Array  # Limit of an accelerator as the plan lowers it: what is provisioned for it [W]
    limit: Array  # Limit by the sheet accelerators, part of the power of its server at full load [W]

    @classmethod
    def unknown(cls, count: int) -> DrawnPower:
        """That of servers without a plan."""
        return cls(*np.full((3, count), np.nan))


class OwnerTerms(NamedTuple):
    """Arguments of :func:`owned_cost_rate` for an accelerator in a server, (rows,)."""

    capex: Array  # Price with its share of server, network and storage [USD]
    recovery_rate: Array  # Share of it that a second has to earn [1/s]
    facility: Array  # Its share of rack, power, cooling and building [USD]
    facility_recovery_rate: Array  # Share of it that a second has to earn [1/s]
    maintenance_share: Array  # Repairs and spares of one period as a share of capex [-]
    staff_cost: Array  # Staff, insurance and rent for one period [USD]
    server_power: Array  # Power with its share of server and network at full load [W]
    power_usage_effectiveness: Array  # Power into the building over power into the servers [-]
    energy_price: Array  # Price of electric energy [USD/J]
    utilization: Array  # Share of the time that is used [-]
    load_share: Array  # Mean power while it works over the power at full load [-]

    @property
    def grid_power(self) -> Array:
        """Power from the grid at full load. [W]"""
        return building_power(self.server_power, self.power_usage_effectiveness)


def owner_terms(server: Columns, network: Numeric, drawn: DrawnPower, period: Numeric = YEAR) -> OwnerTerms:
    r"""What an accelerator in a server costs to buy, to house and to run.

    .. math:: C = \left(p_a + \frac{p_s}{n} + p_n\right) (1 + \sigma)

    Where a plan's power is known, its mean makes the energy bill and its limit what is provisioned.
    """
    group, discount, used = server.num_accelerators, server.discount_rate, server.utilization
    bought = accelerator_capex(server.accelerator_price, server.server_price, group, network)
    power = server.server_power / group + server.network_power - np.nan_to_num(drawn.limit - drawn.provided)
    load = mean_load(drawn.mean, drawn.provided, np.minimum(drawn.provided / power, 1.0), server.load_share)
    rack = server.rack_cost / group
    return OwnerTerms(
        capex=bought * (1.0 + server.storage_share),
        recovery_rate=capital_recovery_rate(discount, server.life, server.residual_share, period),
        facility=facility_cost(power, server.power_usage_effectiveness, server.building_price, rack),
        facility_recovery_rate=capital_recovery_rate(discount, server.building_life, period=period),
        maintenance_share=server.maintenance_share,
        staff_cost=server.staff_cost,
        server_power=power,
        power_usage_effectiveness=server.power_usage_effectiveness,
        energy_price=server.energy_price,
        utilization=np.where(used > 0.0, used, np.nan),
        load_share=load,
    )


def straight_line_terms(price: Columns, unknown: OwnerTerms, drawn: DrawnPower) -> OwnerTerms:
    """Terms of an owner by a list of prices: straight-line depreciation, building and staff not counted.

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
        load_share=mean_load(drawn.mean, drawn.limit, np.minimum(drawn.limit / price.server_power, 1.0)),
    )
    return OwnerTerms(*(np.where(np.isnan(own), other, own) for own, other in zip(stated, unknown, strict=True)))


def server_hour(server: Columns, network: Numeric, drawn: DrawnPower, period: Numeric = YEAR) -> dict[str, Array]:
    r"""Cost of the hour of an accelerator in a server, by part.

    Capital is earned over the hours that are used; :math:`c` adds up from accelerator, server, network, storage,
    facility, running and energy cost.

    .. math:: c = \frac{1}{u} \left(C a + F a_F + \frac{C m + s}{p}\right) + P_s\,l\,\mathrm{PUE}\,p_e
    """
    terms = owner_terms(server, network, drawn, period)
    total = owned_cost_rate(*terms, period=period)
    energy = energy_cost_rate(terms.server_power, terms.power_usage_effectiveness, terms.energy_price)
    energy = energy * terms.load_share
    housed = terms.facility * terms.facility_recovery_rate
    capital = (terms.capex * terms.recovery_rate + housed) / terms.utilization
    earned = terms.recovery_rate / terms.utilization
    stored = terms.capex * server.storage_share / (1.0 + server.storage_share)
    return {
        "network_cost": array(network),
        "capex": terms.capex,
        "facility": terms.facility,
        "accelerator_cost": server.accelerator_price * earned,
        "server_cost": server.server_price / server.num_accelerators * earned,
        "network_capital_cost": array(network) * earned,
        "storage_cost": stored * earned,
        "facility_cost": housed / terms.utilization,
        "capital_cost": capital,
        "running_cost": total - capital - energy,
        "energy_cost": energy,
        "cost_rate": total,
        "carbon_rate": carbon_of_energy(terms.grid_power * terms.load_share, server.carbon_intensity),
    }


Words: TypeAlias = "str | np.ndarray"
"""One word for all rows, or one a row."""
_WITHOUT_SWITCHES = ("ring", "torus", "mesh", "fully-connected")
_MOST_LEVELS = 8  # of the smallest switches: more than any data centre has


class NetworkParts(NamedTuple):
    """What a network is made of, (rows,)."""

    switches: Array  # Switches [-]
    cables: Array  # Links, from end points and between switches [-]
    transceivers: Array  # Transceivers of the links between switches and of those of the end points, two each [-]


def network_parts(
    topology: Words, num_endpoints: Numeric, num_ports: Numeric, oversubscription: Numeric, num_axes: Numeric = 3.0
) -> NetworkParts:
    r"""Switches, cables and transceivers of a network, counted from its topology.

    A folded Clos network of L levels of switches with k ports has, for n end points, n links at the bottom and n/o
    at each level above; its top level has half as many switches per link. The lowest L with
    :math:`2 (k/2)^L \ge n` is taken.

    .. math:: s = \left\lceil\frac{n(1 + 1/o)}{k}\right\rceil + (L - 2)\left\lceil\frac{2n}{ok}\right\rceil
        + \left\lceil\frac{n}{ok}\right\rceil

    Heuristic, this work, after the fat tree [1]_: oversubscription thins out every level above the first.
    """
    names, points = np.asarray(topology), array(num_endpoints)
    ports, over = array(num_ports), array(oversubscription)
    half = np.maximum(ports / 2.0, 2.0)
    capacity, levels = 2.0 * half, np.ones(np.broadcast(points, ports).shape)
    for _ in range(_MOST_LEVELS):
        levels = np.where(points > capacity, levels + 1.0, levels)
        capacity = capacity * half
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


def network_cost(
    switches: Numeric,
    cables: Numeric,
    transceivers: Numeric,
    adapters: Numeric,
    switch_price: Numeric,
    cable_price: Numeric,
    transceiver_price: Numeric,
    adapter_price: Numeric,
) -> Array:
    r"""Cost of the parts of a network.

    .. math:: c = s\,p_s + l\,p_l + t\,p_t + a\,p_a

    Parameters
    ----------
    switches : numeric
        Switches s. [-]
    cables : numeric
        Cables l. [-]
    transceivers : numeric
        Transceivers t. [-]
    adapters : numeric
        Adapters a of the end points. [-]
    switch_price : numeric
        Price of one switch. [USD]
    cable_price : numeric
        Price of one cable. [USD]
    transceiver_price : numeric
        Price of one transceiver. [USD]
    adapter_price : numeric
        Price of one adapter. [USD]

    Returns
    -------
    cost : numeric
        Cost of the network. [USD]

    References
    ----------
    .. [1] L. A. Barroso et al., "The Datacenter as a Computer", 2018, chapter 3, doi:10.2200/S00874ED3V01Y201809CAC046.

    Examples
    --------
    2 x 1000 + 10 x 50 + 20 x 100 + 8 x 500:

    >>> float(network_cost(2.0, 10.0, 20.0, 8.0, 1000.0, 50.0, 100.0, 500.0))
    8500.0
    """
    passive = array(switches) * array(switch_price) + array(cables) * array(cable_price)
    active = array(transceivers) * array(transceiver_price) + array(adapters) * array(adapter_price)
    return np.asarray(passive + active)


class ServerNetwork(NamedTuple):
    """A network of servers, (rows,)."""

    parts: NetworkParts  # Switches, cables and transceivers; none without end points [-]
    cost: Array  # Price of all of them with adapters [USD]


def server_network(
    server: Columns, topology: Words, num_endpoints: Numeric, oversubscription: Numeric, num_axes: Numeric = 3.0
) -> ServerNetwork:
    """Parts of a network at the ports of its server's switches, and what they cost with adapters."""
    points = array(num_endpoints)
    counted = network_parts(topology, points, server.switch_ports, oversubscription, num_axes)
    parts = NetworkParts(*(np.where(points > 0.0, part, 0.0 * points) for part in counted))
    prices = (server.switch_price, server.cable_price, server.transceiver_price, server.adapter_price)
    return ServerNetwork(parts, network_cost(*parts, points, *prices))
