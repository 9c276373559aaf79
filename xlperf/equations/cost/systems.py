r"""From a module to a data centre: margin, server, network counted from its topology, rack, building; carbon."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, ceil_div, divide

__all__ = [
    "NetworkParts",
    "accelerator_capex",
    "accelerators_for_power",
    "carbon_of_energy",
    "crossover_volume",
    "die_carbon",
    "facility_cost",
    "network_cost",
    "network_parts",
    "sale_price",
    "system_price",
]


class NetworkParts(NamedTuple):
    """What a network is made of.

    Attributes
    ----------
    switches : numeric
        Switches. [-]
    cables : numeric
        Links, from end points and between switches. [-]
    transceivers : numeric
        Transceivers of the links between switches and of those of the end points, two each. [-]
    """

    switches: Array
    cables: Array
    transceivers: Array


def sale_price(unit_cost: Numeric, margin_share: Numeric) -> Array:
    r"""Price that leaves a gross margin.

    .. math:: p = \frac{c}{1 - m}

    The definition of a gross margin, solved for the price.

    Parameters
    ----------
    unit_cost : numeric
        Cost c of making one. [USD]
    margin_share : numeric
        Gross margin m as a share of the price, below 1. [-]

    Returns
    -------
    price : numeric
        Price. [USD]

    Examples
    --------
    3000 USD is 30 % of the price:

    >>> float(sale_price(3000.0, 0.7))
    10000.0
    """
    return np.asarray(array(unit_cost) / (1.0 - array(margin_share)))


def system_price(accelerator_price: Numeric, system_price_ratio: Numeric, link_cost: Numeric = 0.0) -> Array:
    r"""Purchase price of an accelerator with its share of server and network, where no list of parts is known.

    .. math:: C = p_a\,r + c_l

    Parameters
    ----------
    accelerator_price : numeric
        Price pa of the accelerator alone. [USD]
    system_price_ratio : numeric
        Price r with the share of server and network over that of the accelerator. [-]
    link_cost : numeric, default 0.0
        Cables or optics cl of its links. [USD]

    Returns
    -------
    price : numeric
        Capital cost of one accelerator, without the building. [USD]

    References
    ----------
    .. [1] B. Cottier et al., "The rising costs of training frontier AI models", 2024, arXiv:2405.21015, appendix A.

    Examples
    --------
    >>> float(system_price(30_000.0, 2.0, 500.0))
    60500.0
    """
    return np.asarray(array(accelerator_price) * array(system_price_ratio) + array(link_cost))


def crossover_volume(
    unit_cost: Numeric, one_time_cost: Numeric, other_unit_cost: Numeric, other_one_time_cost: Numeric
) -> Array:
    r"""Volume at which two designs cost the same: one cheaper to make, the other cheaper to design.

    .. math:: V = \frac{C_2 - C_1}{c_1 - c_2}

    Parameters
    ----------
    unit_cost : numeric
        Cost c1 of making one of the first design. [USD]
    one_time_cost : numeric
        One-time cost C1 of the first design. [USD]
    other_unit_cost : numeric
        Cost c2 of making one of the other. [USD]
    other_one_time_cost : numeric
        One-time cost C2 of the other. [USD]

    Returns
    -------
    volume : numeric
        Units; NaN where one design is cheaper at every volume. [-]

    References
    ----------
    .. [1] Y. Feng and K. Ma, "Chiplet Actuary: a quantitative cost model and multi-chiplet architecture exploration",
       DAC 2022, doi:10.1145/3489517.3530428.

    Examples
    --------
    40,000 USD more for the design, 40 USD less for each unit:

    >>> float(crossover_volume(100.0, 50000.0, 60.0, 90000.0))
    1000.0
    """
    volume = divide(
        array(other_one_time_cost) - array(one_time_cost), array(unit_cost) - array(other_unit_cost), where_zero=np.nan
    )
    return np.asarray(np.where(volume > 0.0, volume, np.nan))


def network_parts(
    topology: str, num_endpoints: Numeric, num_ports: Numeric, oversubscription: Numeric, num_axes: Numeric = 3.0
) -> NetworkParts:
    r"""Switches, cables and transceivers of a network, counted from its topology.

    A folded Clos network of L levels of switches with k ports has, for n end points, n links at the bottom and n/o
    at each level above; its top level has half as many switches per link. The lowest L with
    :math:`2 (k/2)^L \ge n` is taken.

    .. math:: s = \left\lceil\frac{n(1 + 1/o)}{k}\right\rceil + (L - 2)\left\lceil\frac{2n}{ok}\right\rceil
        + \left\lceil\frac{n}{ok}\right\rceil

    Heuristic, this work, after the fat tree [1]_: oversubscription thins out every level above the first.

    Parameters
    ----------
    topology : {"fat-tree", "switch", "rail", "dragonfly", "fully-connected", "ring", "torus", "mesh"}
        A ring has 1, a mesh or torus a link per axis and end point, a fully connected group n - 1 over 2; without
        switches.
        The others are counted as folded Clos networks.
    num_endpoints : numeric
        End points n, accelerators times links of each into this network. [-]
    num_ports : numeric
        Ports k of one switch; no meaning without switches, may be NaN there. [-]
    oversubscription : numeric
        Bandwidth o into the network over that through its core; no meaning without switches, may be NaN there. [-]
    num_axes : numeric, default 3.0
        Axes of a mesh or torus; no meaning otherwise, may be NaN there. [-]

    Returns
    -------
    NetworkParts

    References
    ----------
    .. [1] M. Al-Fares, A. Loukissas and A. Vahdat, "A scalable, commodity data center network architecture",
       SIGCOMM 2008, doi:10.1145/1402958.1402967.
    """
    points = array(num_endpoints)
    direct = {"ring": array(1.0), "torus": array(num_axes), "mesh": array(num_axes)}
    if topology in direct or topology == "fully-connected":
        per_point = (points - 1.0) / 2.0 if topology == "fully-connected" else direct[topology]
        links = np.where(points > 1.0, points * per_point, 0.0 * points)
        return NetworkParts(np.asarray(0.0 * points), np.asarray(links), np.asarray(2.0 * links))
    ports, over = array(num_ports), array(oversubscription)
    half = np.maximum(ports / 2.0, 2.0)
    capacity, levels = 2.0 * half, np.ones(np.broadcast(points, ports).shape)
    for _ in range(8):  # 8 levels of the smallest switches join more than any data centre has
        levels = np.where(points > capacity, levels + 1.0, levels)
        capacity = capacity * half
    single = points <= ports
    upward = points / over
    bottom = ceil_div(points + upward, ports)
    between = np.maximum(levels - 2.0, 0.0) * ceil_div(2.0 * upward, ports)
    several = bottom + between + ceil_div(upward, ports)
    missing = np.isnan(points + ports + over)
    switches = np.where(missing, np.nan, np.where(single, 1.0, several))
    cables = np.where(missing, np.nan, np.where(single, points, points + (levels - 1.0) * upward))
    return NetworkParts(np.asarray(switches), np.asarray(cables), np.asarray(2.0 * cables))


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
    .. [1] L. A. Barroso, U. Hölzle and P. Ranganathan, "The Datacenter as a Computer", 3rd ed., 2018, chapter 3,
       doi:10.2200/S00874ED3V01Y201809CAC046.

    Examples
    --------
    2 x 1000 + 10 x 50 + 20 x 100 + 8 x 500:

    >>> float(network_cost(2.0, 10.0, 20.0, 8.0, 1000.0, 50.0, 100.0, 500.0))
    8500.0
    """
    passive = array(switches) * array(switch_price) + array(cables) * array(cable_price)
    active = array(transceivers) * array(transceiver_price) + array(adapters) * array(adapter_price)
    return np.asarray(passive + active)


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
    .. [1] L. A. Barroso, U. Hölzle and P. Ranganathan, "The Datacenter as a Computer", 3rd ed., 2018, chapter 6,
       doi:10.2200/S00874ED3V01Y201809CAC046.

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
    .. [1] L. A. Barroso, U. Hölzle and P. Ranganathan, "The Datacenter as a Computer", 3rd ed., 2018, chapter 6,
       doi:10.2200/S00874ED3V01Y201809CAC046.

    Examples
    --------
    30000 + 80000 / 8 + 5000:

    >>> float(accelerator_capex(30000.0, 80000.0, 8.0, 5000.0))
    45000.0
    """
    return np.asarray(array(accelerator_price) + array(server_price) / array(num_accelerators) + array(network_price))


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


def carbon_of_energy(energy: Numeric, carbon_intensity: Numeric) -> Array:
    r"""Carbon dioxide, with what is equivalent to it, of an amount of electric energy.

    .. math:: m = E\,i

    Parameters
    ----------
    energy : numeric
        Energy E from the grid. [J]
    carbon_intensity : numeric
        Carbon i of the grid per energy. [kg/J]

    Returns
    -------
    carbon : numeric
        Mass of CO2 equivalent. [kg]

    References
    ----------
    .. [1] U. Gupta et al., "ACT: designing sustainable computer systems with an architectural carbon modeling tool",
       ISCA 2022, doi:10.1145/3470496.3527408.

    Examples
    --------
    3600 J at 1 g/J:

    >>> float(carbon_of_energy(3600.0, 0.001))
    3.6
    """
    return np.asarray(array(energy) * array(carbon_intensity))


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

    Parameters
    ----------
    die_area : numeric
        Area A of the die. [mm2]
    die_yield : numeric
        Share Y of good dies. [-]
    energy_per_area : numeric
        Energy e of the fab per area. [J/mm2]
    carbon_intensity : numeric
        Carbon i of the fab's energy. [kg/J]
    gas_per_area : numeric
        Gases g of the process per area. [kg/mm2]
    material_per_area : numeric
        Carbon r of the raw materials per area. [kg/mm2]

    Returns
    -------
    carbon : numeric
        Mass of CO2 equivalent. [kg]

    References
    ----------
    .. [1] U. Gupta et al., "ACT: designing sustainable computer systems with an architectural carbon modeling tool",
       ISCA 2022, doi:10.1145/3470496.3527408.

    Examples
    --------
    100 mm2 x (2 x 0.01 + 0.01 + 0.02) kg/mm2, every other die good:

    >>> float(die_carbon(100.0, 0.5, 2.0, 0.01, 0.01, 0.02))
    10.0
    """
    per_area = array(energy_per_area) * array(carbon_intensity) + array(gas_per_area) + array(material_per_area)
    return np.asarray(array(die_area) * per_area / array(die_yield))
