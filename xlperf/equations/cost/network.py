"""Network of a cluster: switches, cables and transceivers, counted from its topology, and their price."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np

from xlperf.base.arrays import Array, Columns, Numeric, array, ceil_div

Words: TypeAlias = "str | np.ndarray"
"""One word for all rows, or one a row."""
_WITHOUT_SWITCHES = ("ring", "torus", "mesh", "fully-connected")
_MOST_LEVELS = 8  # of the smallest switches: more than any data centre has


class NetworkParts(NamedTuple):
    """What a network is made of, (rows,).

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


class ServerNetwork(NamedTuple):
    """A network of servers, (rows,).

    Attributes
    ----------
    parts : NetworkParts
        Switches, cables and transceivers; none without end points. [-]
    cost : Array
        Price of all of them with adapters. [USD]
    """

    parts: NetworkParts
    cost: Array


def server_network(
    server: Columns, topology: Words, num_endpoints: Numeric, oversubscription: Numeric, num_axes: Numeric = 3.0
) -> ServerNetwork:
    """Parts of a network at the ports of its server's switches, and what they cost with adapters.

    Parameters
    ----------
    server : Columns
        Rows of the sheet ``servers``.
    topology : {"fat-tree", "switch", "rail", "dragonfly", "fully-connected", "ring", "torus", "mesh"}
        As in :func:`network_parts`.
    num_endpoints : numeric
        Links into the network. [-]
    oversubscription : numeric
        Bandwidth into the network over that through its core; no meaning without switches, may be NaN there. [-]
    num_axes : numeric, default 3.0
        Axes of a mesh or torus; no meaning otherwise, may be NaN there. [-]

    Returns
    -------
    ServerNetwork

    References
    ----------
    .. [1] L. A. Barroso, U. Hölzle and P. Ranganathan, "The Datacenter as a Computer", 3rd ed., 2018, chapter 3,
       doi:10.2200/S00874ED3V01Y201809CAC046.

    Examples
    --------
    32 links at one switch of 64 ports for 10,000 USD, each a cable of 100 USD and two transceivers of 500 USD:

    >>> from types import SimpleNamespace
    >>> server = SimpleNamespace(switch_ports=64.0, switch_price=10000.0, cable_price=100.0)
    >>> server.transceiver_price, server.adapter_price = 500.0, 0.0
    >>> float(server_network(server, "fat-tree", 32.0, 1.0).cost)
    45200.0
    """
    points = array(num_endpoints)
    counted = network_parts(topology, points, server.switch_ports, oversubscription, num_axes)
    parts = NetworkParts(*(np.where(points > 0.0, part, 0.0 * points) for part in counted))
    prices = (server.switch_price, server.cable_price, server.transceiver_price, server.adapter_price)
    return ServerNetwork(parts, network_cost(*parts, points, *prices))
