"""Networks of tiers: the hops and the busiest link of each topology.

On a fully connected tier each link serves one peer: a group of two in a machine of eight has a seventh of the
bandwidth. On a dragonfly each router has ``first_length`` accelerators and ``num_links`` global links,
``second_length`` routers make a group, ``third_length`` groups the machine; every link has the bandwidth of one
accelerator. Routes are minimal or Valiant (by a random third router or group), whichever carries more.
:mod:`xlperf.equations.network.torus` has rings, meshes and tori.

A load is the time of the busiest link times the bandwidth of one accelerator, all its links together, per byte of the
message. All ranks of the machine are active: interleaved groups share links.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array
from xlperf.equations.network.torus import torus_distances, torus_exchange_load, torus_gather_load, torus_steps

SWITCH, FAT_TREE, FULLY_CONNECTED, RING, TORUS, MESH, DRAGONFLY, RAIL = range(8)
AXES = (RING, TORUS, MESH)
_PHASED = np.array([code in (*AXES, DRAGONFLY) for code in range(RAIL + 1)])


@dataclass(frozen=True, eq=False)
class Network:
    """Tiers of networks, innermost first; shape (rows, tiers), short ones padded with copies of their last tier."""

    size: Array  # Accelerators in one group of the tier [-]
    link_bandwidth: Array  # Per accelerator, one direction, with oversubscription [B/s]
    latency: Array  # Time of one hop for an empty message [s]
    links_per_peer: Array  # Links to each peer of a fully connected tier, else NaN [-]
    in_network_reduction: Array  # 1: the switches reduce all-reduces, else 0 [-]
    topology: np.ndarray  # Topology codes, positions in the schema's choices [-]
    first_length: Array  # Places along the first axis; accelerators of a dragonfly router [-]
    second_length: Array  # Places along the second axis; routers of a dragonfly group [-]
    third_length: Array  # Places along the third axis; groups of a dragonfly [-]
    num_rings: Array  # Closed axes, from the first on [-]
    num_links: Array  # Links that share an accelerator's bandwidth; global links of a dragonfly router; else 1 [-]


def direct_load(group_size: Numeric, num_links: Numeric) -> Array:
    r"""Link load of a collective on a fully connected tier: every member sends to all peers at once.

    .. math:: l = \frac{L}{n} \quad (n > 1)

    Parameters
    ----------
    group_size : numeric
        Members of the group. [-]
    num_links : numeric
        Peers L in the machine, which share the bandwidth of one accelerator. [-]

    Returns
    -------
    load : numeric
        Load per byte of the whole message; 0 for a group of one. [-]

    References
    ----------
    .. [1] R. Thakur et al., Int. J. High Perform. Comput. Appl. 19(1), 2005, doi:10.1177/1094342005051521.

    Examples
    --------
    Two of eight accelerators use one of seven links, for half of the message:

    >>> float(direct_load(2.0, 7.0))
    3.5
    """
    ranks = array(group_size)
    return np.asarray(array(num_links) / ranks * np.where(ranks == 1.0, 0.0, 1.0))


def _parallel_links(num_links: Array, second_length: Array, third_length: Array) -> Array:
    """Global links between two groups."""
    return np.asarray(num_links * second_length / np.maximum(third_length - 1.0, 1.0))


def _within(group_size: Array, distance: Array, reach: Array) -> Array:
    """Members of a strided group within a span of ranks."""
    return np.asarray(np.minimum(np.maximum(reach / distance, 1.0), group_size))


def dragonfly_hops(group_size: Numeric, distance: Numeric, first_length: Numeric, second_length: Numeric) -> Array:
    r"""Hops between the two most distant members of a group on a dragonfly.

    .. math:: h = 1 \ \text{(one router)}, \quad 2 \ \text{(one group)}, \quad 4 \ \text{(two groups)}

    Parameters
    ----------
    group_size, distance : numeric
        Members n of the group; ranks from one member to the next. [-]
    first_length, second_length : numeric
        Accelerators of one router, routers of one group. [-]

    Returns
    -------
    hops : numeric
        Hops. [-]

    References
    ----------
    .. [1] J. Kim et al., "Technology-driven, highly-scalable dragonfly topology", ISCA 2008, doi:10.1109/ISCA.2008.19.

    Examples
    --------
    64 ranks, 4 to a router and 32 to a group, span two groups:

    >>> float(dragonfly_hops(64.0, 1.0, 4.0, 8.0))
    4.0
    """
    ranks, apart, router = array(group_size), array(distance), array(first_length)
    group = router * array(second_length)
    beyond = np.where(ranks > _within(ranks, apart, router), 1.0, 0.0)
    outside = np.where(ranks > _within(ranks, apart, group), 2.0, 0.0)
    return np.asarray(1.0 + beyond + outside + 0.0 * (ranks + apart + group))


def _dragonfly_neighbour_load(
    group_size: Numeric,
    distance: Numeric,
    first_length: Numeric,
    second_length: Numeric,
    third_length: Numeric,
    num_links: Numeric,
) -> Array:
    """Link load of a dragonfly, per byte of a rank, when every rank sends to the next member of its group.

    The ranks that leave a router (a group) load the links between the two on the minimal route, and all links twice on
    the Valiant route (heuristic, this work, after doi:10.1109/ISCA.2008.19).

    32 ranks of a group send to the next group: 32 messages on one link, or each message twice on 32 links:

    >>> float(_dragonfly_neighbour_load(4.0, 32.0, 4.0, 8.0, 33.0, 4.0))
    2.0
    """
    ranks, apart = array(group_size), array(distance)
    router, routers, groups = array(first_length), array(second_length), array(third_length)
    group, links = router * routers, array(num_links)
    # Messages that leave a router, then a group; the better of minimal and Valiant routes.
    flows = np.where(ranks > _within(ranks, apart, router), np.minimum(apart, router), 0.0)
    local = np.minimum(flows, 2.0 * flows / np.maximum(routers - 1.0, 1.0))
    flows = np.where(ranks > _within(ranks, apart, group), np.minimum(apart, group), 0.0)
    far = np.minimum(flows / _parallel_links(links, routers, groups), 2.0 * flows / (links * routers))
    return np.asarray(np.maximum(np.maximum(local, far), 1.0) + 0.0 * (ranks + apart + group + groups + links))


def _dragonfly_exchange_load(
    group_size: Numeric,
    distance: Numeric,
    first_length: Numeric,
    second_length: Numeric,
    third_length: Numeric,
    num_links: Numeric,
) -> Array:
    """Link load of an all-to-all on a dragonfly, per byte of a member: the busiest of all its links.

    Heuristic, this work, after the minimal and Valiant routes of doi:10.1109/ISCA.2008.19. Four accelerators of one
    router send three quarters of their messages:

    >>> float(_dragonfly_exchange_load(4.0, 1.0, 4.0, 8.0, 33.0, 4.0))
    0.75
    """
    ranks, apart = array(group_size), array(distance)
    router, routers, groups = array(first_length), array(second_length), array(third_length)
    # Members on one router and in one dragonfly group, and the routers and groups that the collective spans.
    on_router = _within(ranks, apart, router)
    in_group = _within(ranks, apart, router * routers)
    spanned = np.minimum(np.maximum(in_group * apart / router, 1.0), routers)
    near = router * (in_group - on_router) / ranks / np.maximum(spanned - 1.0, 1.0)
    outside, links = (ranks - in_group) / ranks, array(num_links)
    others = np.maximum(ranks / in_group - 1.0, 1.0)
    shortest = router * routers * outside / (others * _parallel_links(links, routers, groups))
    far = np.minimum(shortest, 2.0 * outside * router / links)
    local = near + 2.0 * router * outside / routers
    load = np.maximum(np.maximum((ranks - 1.0) / ranks, local), far)
    return np.asarray(load + 0.0 * (apart + router + routers + groups + links))


class TierShape(NamedTuple):
    """Hops and slowdown of one tier for one collective operation, (rows, operators)."""

    steps: Array  # Sequential hops of one reduce-scatter, all-gather, all-to-all or transfer [-]
    slowdown: Array  # Time of the busiest link over the time of a link to a switch [-]
    by_phases: np.ndarray  # No ring of all ranks runs through the tier: larger groups go tier by tier
    rails: np.ndarray  # Ranks of another rail are reached by way of a neighbour inside


def tier_shape(operation: str, members: Array, stride: Array, network: Network, tier: int) -> TierShape:
    """Hops and slowdown of one tier relative to a switch."""
    inner = network.size[:, tier - 1 : tier] if tier else np.ones_like(network.size[:, :1])
    distance = np.maximum(array(stride) / inner, 1.0) + 0.0 * members
    steps = np.ones_like(distance) if operation in ("all_to_all", "point_to_point") else members - 1.0
    if operation == "all_to_all" and tier == 0:
        steps = members - 1.0
    steps, slowdown = steps.copy(), np.ones_like(distance)
    codes = network.topology[:, tier]
    used = codes
    if operation != "point_to_point":  # groups within the tier below do not cross it
        used = np.where((members == 1.0).all(axis=-1), SWITCH, codes)
    for code in sorted(set(used.tolist())):
        rows = np.flatnonzero(used == code)
        if code == FULLY_CONNECTED:
            shape = _direct(operation, members[rows], network.num_links[rows, tier, None])
        elif code in AXES:
            shape = _along_axes(operation, members[rows], distance[rows], network, rows, tier)
        elif code == DRAGONFLY:
            apart = np.maximum(array(stride), inner) + 0.0 * members
            shape = _dragonfly(operation, members[rows], apart[rows], network, rows, tier)
        else:
            continue
        steps[rows], slowdown[rows] = shape
    several = members > 1.0
    return TierShape(steps, slowdown, _PHASED[codes][:, None] & several, (codes == RAIL)[:, None] & several)


def _relative(load: Array, members: Array) -> Array:
    """Load relative to a switch, where each rank sends (n - 1) / n of the message."""
    share = (members - 1.0) / members
    return np.asarray(np.where(members > 1.0, load / np.where(members > 1.0, share, 1.0), 1.0 + 0.0 * load))


def _direct(operation: str, members: Array, num_links: Array) -> tuple[Array, Array]:
    steps = np.where(members > 1.0, 1.0, 0.0)
    if operation == "point_to_point":
        return steps, num_links + 0.0 * members
    return steps, _relative(direct_load(members, num_links), members)


def _along_axes(
    operation: str, members: Array, distance: Array, network: Network, rows: np.ndarray, tier: int
) -> tuple[Array, Array]:
    columns = network.first_length, network.second_length, network.third_length, network.num_rings, network.num_links
    first, second, third, rings, links = (values[rows, tier, None] for values in columns)
    if operation == "point_to_point":
        steps, longest = torus_distances(distance, first, second, third, rings)
        return steps, longest * links
    steps = torus_steps(members, distance, first, second, third, rings)
    equation = torus_exchange_load if operation == "all_to_all" else torus_gather_load
    return steps, _relative(equation(members, distance, first, second, third, rings, links), members)


def _dragonfly(
    operation: str, members: Array, distance: Array, network: Network, rows: np.ndarray, tier: int
) -> tuple[Array, Array]:
    columns = network.first_length, network.second_length, network.third_length, network.num_links
    first, second, third, links = (values[rows, tier, None] for values in columns)
    hops = dragonfly_hops(members, distance, first, second)
    if operation == "all_to_all":
        return hops, _relative(_dragonfly_exchange_load(members, distance, first, second, third, links), members)
    load = _dragonfly_neighbour_load(members, distance, first, second, third, links)
    return (hops if operation == "point_to_point" else (members - 1.0) * hops), load


def tree_depth(group_size: Numeric) -> Array:
    r"""Levels of a binary tree over the ranks.

    .. math:: d = \lceil \log_2 n \rceil

    Parameters
    ----------
    group_size : numeric
        Number of ranks. [-]

    Returns
    -------
    depth : numeric
        0 for one rank. [-]

    References
    ----------
    .. [1] R. Rabenseifner, ICCS 2004, doi:10.1007/978-3-540-24685-5_1.

    2, 4 and then 8 ranks:

    >>> float(tree_depth(5.0))
    3.0
    """
    below = np.ceil(array(group_size)) - 1.0
    depth = np.frexp(np.maximum(below, 0.0))[1].astype(np.float64)  # frexp is exact; log2 need not be
    return np.asarray(np.where(np.isnan(below), np.nan, depth))
