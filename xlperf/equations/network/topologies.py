"""Collectives on rings, meshes and tori: load of the busiest link and sequential hops.

A torus has up to three axes; ranks are numbered along the first, the second, then the third. A group of ranks
``distance`` apart fills the axes in this order. Members ``hop`` apart on an axis send over ``hop`` links, which the
``hop`` interleaved groups share, all active at once. An axis is a ring if the group spans it, else a line.

A load is the time of the busiest link times the bandwidth of one accelerator, all its links together, per byte of the
message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import isqrt, prod
from operator import eq, le
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array
from xlperf.equations.network.link_lists import listed_shape

AXES = 3


def _products(whole: int, count: int, rising: bool, least: int = 1) -> Iterator[tuple[int, ...]]:
    """Factorisations of a whole number into ``count`` factors of at least ``least``, perhaps in rising order only."""
    if count == 1:
        if whole >= least:
            yield (whole,)
        return
    last = isqrt(whole)
    if rising and count > 2:  # the first of three or more is at most their root
        last = max((factor for factor in range(1, last + 1) if prod((factor,) * count) <= whole), default=0)
    small = [factor for factor in range(least if rising else 1, last + 1) if whole % factor == 0]
    for factor in small if rising else sorted({*small, *(whole // factor for factor in small)}):
        if factor >= least:
            for others in _products(whole // factor, count - 1, rising, factor if rising else 1):
                yield (factor, *others)


@lru_cache(maxsize=4096)
def torus_block(
    places: int, axes: int, machine: tuple[int, ...] = (), rings: bool = False, cube: int = 1
) -> tuple[tuple[int, ...], int]:
    """Axis lengths and number of closed axes of the most cubic block of a torus or mesh with so many accelerators."""
    limits = machine or (places,) * axes
    if machine and places == prod(machine):
        return machine, axes if rings else 0
    # Without a machine the axes are alike, so that rising order is enough.
    blocks = _products(places, axes, rising=not machine)
    if machine:
        blocks = (lengths for lengths in blocks if all(map(le, lengths, machine)))

    def rank(lengths: tuple[int, ...]) -> tuple[int, int]:
        """Shortest sum of axes first, then most closed axes of the machine."""
        return sum(lengths), -sum(map(eq, lengths, machine))

    best = min(blocks, key=rank if machine else sum, default=None)
    if best is None:
        return machine, axes if rings else 0
    whole = rings and all(length % cube == 0 for length in best)
    closed = [whole and (not machine or length == limit) for length, limit in zip(best, limits, strict=True)]
    order = sorted(range(axes), key=lambda axis: (not closed[axis], best[axis]))
    return tuple(best[axis] for axis in order), sum(closed)


def _axes(
    group_size: Numeric, distance: Numeric, lengths: tuple[Numeric, ...], num_rings: Numeric
) -> list[tuple[Array, Array, np.ndarray]]:
    """Members of a group on each axis, links between neighbours, and a mask of closed rings."""
    group, apart, rings = array(group_size), array(distance), array(num_rings)
    before, inner = np.ones_like(group), array(1.0)
    axes = []
    for axis, length in enumerate(lengths):
        outer = inner * array(length)
        reach = np.maximum(outer / apart, before)
        reach = np.maximum(group, before) if axis == len(lengths) - 1 else np.minimum(reach, np.maximum(group, before))
        members = reach / before
        hop = np.maximum(apart / inner, 1.0)
        closed = (rings > axis) & (members * hop >= array(length)) & (members > 1.0)
        axes.append((np.asarray(members), np.where(members > 1.0, hop, 1.0), np.asarray(closed)))
        before, inner = reach, outer
    return axes


def _known(values: Array, *arguments: Numeric) -> Array:
    """The values, NaN if an argument is NaN."""
    for argument in arguments:
        values = values + 0.0 * array(argument)
    return np.asarray(values)


def torus_steps(
    group_size: Numeric,
    distance: Numeric,
    first_length: Numeric,
    second_length: Numeric,
    third_length: Numeric,
    num_rings: Numeric,
) -> Array:
    r"""Sequential hops of a collective on a torus, mesh or ring, between its two most distant members.

    .. math:: h = \sum_i h_i \lfloor n_i / 2 \rfloor \ \text{(ring)}, \qquad h_i (n_i - 1) \ \text{(line)}

    Source: E. Chan et al., "Collective communication", Concurrency Comput. 19(13), 2007, doi:10.1002/cpe.1206.

    A ring of four on each of two axes, two hops half-way round each:

    >>> float(torus_steps(16.0, 1.0, 4.0, 4.0, 1.0, 2.0))
    4.0

    Parameters
    ----------
    group_size, distance : Members of the group; ranks from one member to the next. [-]
    first_length, second_length, third_length : Places along each axis. [-]
    num_rings : Closed axes, from the first on. [-]

    Returns
    -------
    steps : Hops of a reduce-scatter, an all-gather or an all-to-all. [-]
    """
    lengths = (first_length, second_length, third_length)
    steps = array(0.0)
    for members, hop, closed in _axes(group_size, distance, lengths, num_rings):
        steps = steps + hop * np.where(closed, np.floor(members / 2.0), members - 1.0)
    return _known(steps, group_size, distance, *lengths, num_rings)


def torus_gather_load(
    group_size: Numeric,
    distance: Numeric,
    first_length: Numeric,
    second_length: Numeric,
    third_length: Numeric,
    num_rings: Numeric,
    num_links: Numeric,
) -> Array:
    r"""Link load of an all-gather or reduce-scatter on a torus, mesh or ring.

    The multiport bucket algorithm: parts of the buffer go along the axes in different orders, both ways round each
    ring. Parts are so large that the axes are busy alike where that is possible: of any axes, the share of the buffer
    that remains if they come last must pass over their links.

    .. math:: l = \max_{S \ne \emptyset} \frac{\prod_{i \notin S} \frac{1}{n_i} - \prod_i \frac{1}{n_i}}\
              {\sum_{i \in S} 1 / w_i}, \qquad w_i = h_i \frac{L}{2\ \text{(ring) or}\ 1\ \text{(line)}}

    Source: N. Jain and Y. Sabharwal, "Optimal bucket algorithms ...", ICS 2010, doi:10.1145/1810085.1810093.

    A ring of four with two links each: three quarters of the message, half each way, on half the bandwidth; rings of
    eight and four, all four links of an accelerator busy with 31 of 32 parts:

    >>> float(torus_gather_load(4.0, 1.0, 4.0, 1.0, 1.0, 1.0, 2.0))
    0.75
    >>> float(torus_gather_load(32.0, 1.0, 8.0, 4.0, 1.0, 2.0, 4.0))
    0.96875

    Parameters
    ----------
    group_size, distance : Members of the group; ranks from one member to the next. [-]
    first_length, second_length, third_length : Places along each axis. [-]
    num_rings : Closed axes, from the first on. [-]
    num_links : Links L that share the bandwidth of one accelerator. [-]

    Returns
    -------
    load : Time at the bandwidth of one accelerator per byte of the whole message; 0 for a group of one. [-]
    """
    lengths = (first_length, second_length, third_length)
    axes = _axes(group_size, distance, lengths, num_rings)
    # How fast an axis passes data on, relative to the accelerator: 1 / w.
    rates = [np.where(closed, 2.0, 1.0) / (hop * array(num_links)) for _, hop, closed in axes]
    members = [axis[0] for axis in axes]
    load = array(0.0)
    for number in range(1, AXES + 1):
        for last in combinations(range(AXES), number):
            remaining = 1.0 / prod(members[axis] for axis in range(AXES) if axis not in last)
            load = np.maximum(load, (remaining - 1.0 / prod(members)) / sum(rates[axis] for axis in last))
    return _known(load, group_size, distance, *lengths, num_rings, num_links)


def torus_exchange_load(
    group_size: Numeric,
    distance: Numeric,
    first_length: Numeric,
    second_length: Numeric,
    third_length: Numeric,
    num_rings: Numeric,
    num_links: Numeric,
) -> Array:
    r"""Link load of an all-to-all on the busiest axis of a torus, mesh or ring.

    Messages follow the axes in order, the shorter way round a ring, both ways at half a round.

    .. math:: l = L \max_i h_i \frac{\lfloor n_i^2 / 4 \rfloor}{2 n_i} \ \text{(ring)}, \qquad
              L \max_i h_i \frac{\lfloor n_i^2 / 4 \rfloor}{n_i} \ \text{(line)}

    Source: W. J. Dally and B. Towles, "Principles and Practices of Interconnection Networks", 2004, chapter 5.

    A ring of four with two links each: 2 x 4 / (2 x 4):

    >>> float(torus_exchange_load(4.0, 1.0, 4.0, 1.0, 1.0, 1.0, 2.0))
    1.0

    Parameters
    ----------
    group_size, distance : Members of the group; ranks from one member to the next. [-]
    first_length, second_length, third_length : Places along each axis. [-]
    num_rings : Closed axes, from the first on. [-]
    num_links : Links L that share the bandwidth of one accelerator. [-]

    Returns
    -------
    load : Time at the bandwidth of one accelerator per byte that one member sends, itself included. [-]
    """
    lengths = (first_length, second_length, third_length)
    load = array(0.0)
    for members, hop, closed in _axes(group_size, distance, lengths, num_rings):
        crossing = np.floor(members * members / 4.0) / members * np.where(closed, 0.5, 1.0)
        load = np.maximum(load, crossing * hop)
    return _known(load * array(num_links), group_size, distance, *lengths, num_rings)


def torus_distances(
    distance: Numeric, first_length: Numeric, second_length: Numeric, third_length: Numeric, num_rings: Numeric
) -> tuple[Array, Array]:
    r"""Hops between two ranks of a torus, mesh or ring: in total, and messages on the busiest link.

    .. math:: h_i = \min(d_i, k_i - d_i) \ \text{(ring)}, \qquad d_i \ \text{(line)}, \qquad
              d = d_1 + k_1 (d_2 + k_2 d_3)

    Source: W. J. Dally and B. Towles, "Principles and Practices of Interconnection Networks", 2004, chapter 5.

    Half of the messages go each way at half a round. Rank 5 of a torus of 4 x 4 is one hop away on each axis:

    >>> tuple(map(float, torus_distances(5.0, 4.0, 4.0, 1.0, 2.0)))
    (2.0, 1.0)

    Parameters
    ----------
    distance : Ranks from one to the other. [-]
    first_length, second_length, third_length : Places along each axis. [-]
    num_rings : Closed axes, from the first on. [-]

    Returns
    -------
    steps : Hops along all axes, at least 1. [-]
    longest : Messages on a link of the longest axis if all ranks send so far, at least 1. [-]
    """
    lengths = (first_length, second_length, third_length)
    left, rings = np.floor(array(distance)), array(num_rings)
    steps, longest = array(0.0), array(1.0)
    for axis, length in enumerate(lengths):
        places = array(length)
        away = left - np.floor(left / places) * places
        closed = rings > axis
        hops = np.where(closed, np.minimum(away, places - away), away)
        left = np.floor(left / places)
        steps, longest = steps + hops, np.maximum(longest, np.where(closed & (2.0 * hops == places), 0.5, 1.0) * hops)
    arguments = (distance, *lengths, num_rings)
    return _known(np.maximum(steps, 1.0), *arguments), _known(longest, *arguments)


SWITCH, FAT_TREE, FULLY_CONNECTED, RING, TORUS, MESH, DRAGONFLY, RAIL, LINKS = range(9)
ON_AXES = (RING, TORUS, MESH)
_UNKNOWN = np.nan, np.nan, False
_PHASED = np.array([code in (*ON_AXES, DRAGONFLY) for code in range(LINKS + 1)])


@dataclass(frozen=True, eq=False)
class Network:
    """Tiers of networks, innermost first; shape (rows, tiers), short ones padded with copies of their last tier."""

    size: Array  # Accelerators in one group of the tier [-]
    link_bandwidth: Array  # Per accelerator, one direction, with oversubscription [B/s]
    latency: Array  # Time of one hop for an empty message [s]
    listed: Array  # Number of the list of links of the tier, else NaN [-]
    in_network_reduction: Array  # 1: the switches reduce all-reduces, else 0 [-]
    topology: np.ndarray  # Topology codes, positions in the schema's choices [-]
    first_length: Array  # Places along the first axis; accelerators of a dragonfly router [-]
    second_length: Array  # Places along the second axis; routers of a dragonfly group [-]
    third_length: Array  # Places along the third axis; groups of a dragonfly [-]
    num_rings: Array  # Closed axes, from the first on [-]
    num_links: Array  # Links that share an accelerator's bandwidth; global links of a dragonfly router; else 1 [-]


def _parallel_links(num_links: Array, second_length: Array, third_length: Array) -> Array:
    """Global links between two groups."""
    return np.asarray(num_links * second_length / np.maximum(third_length - 1.0, 1.0))


def _within(group_size: Array, distance: Array, reach: Array) -> Array:
    """Members of a strided group within a span of ranks."""
    return np.asarray(np.minimum(np.maximum(reach / distance, 1.0), group_size))


def dragonfly_hops(group_size: Numeric, distance: Numeric, first_length: Numeric, second_length: Numeric) -> Array:
    r"""Hops between the two most distant members of a group on a dragonfly.

    .. math:: h = 1 \ \text{(one router)}, \quad 2 \ \text{(one group)}, \quad 4 \ \text{(two groups)}

    Source: J. Kim et al., "Technology-driven, highly-scalable dragonfly topology", ISCA 2008, doi:10.1109/ISCA.2008.19.

    >>> float(dragonfly_hops(64.0, 1.0, 4.0, 8.0))  # 64 ranks, 4 to a router and 32 to a group, span two groups
    4.0

    Parameters
    ----------
    group_size, distance : Members n of the group; ranks from one member to the next. [-]
    first_length, second_length : Accelerators of one router, routers of one group. [-]

    Returns
    -------
    hops : Hops. [-]
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
    the Valiant route (heuristic, this work, after doi:10.1109/ISCA.2008.19). 32 ranks of a group send to the next
    group: 32 messages on one link, or each message twice on 32 links:

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
    used, phased = codes, _PHASED[codes][:, None]
    if operation != "point_to_point":  # groups within the tier below do not cross it
        used = np.where((members == 1.0).all(axis=-1), SWITCH, codes)
    for code in sorted(set(used.tolist())):
        rows = (used == code).nonzero()[0]
        if code == FULLY_CONNECTED:
            shape = _direct(operation, members[rows], network.num_links[rows, tier, None])
        elif code in ON_AXES:
            shape = _along_axes(operation, members[rows], distance[rows], network, rows, tier)
        elif code == DRAGONFLY:
            apart = np.maximum(array(stride), inner) + 0.0 * members
            shape = _dragonfly(operation, members[rows], apart[rows], network, rows, tier)
        elif code == LINKS:
            lists = network.listed[rows, tier, None]
            shape, by_phases = _listed(operation, members[rows], distance[rows], lists)
            phased = phased & np.ones_like(distance, dtype=bool)
            phased[rows] = by_phases
        else:
            continue
        steps[rows], slowdown[rows] = shape
    several = members > 1.0
    return TierShape(steps, slowdown, phased & several, (codes == RAIL)[:, None] & several)


def _relative(load: Array, members: Array) -> Array:
    """Load relative to a switch, where each rank sends (n - 1) / n of the message."""
    share = (members - 1.0) / members
    return np.asarray(np.where(members > 1.0, load / np.where(members > 1.0, share, 1.0), 1.0 + 0.0 * load))


def _direct(operation: str, members: Array, num_links: Array) -> tuple[Array, Array]:
    """Hops and slowdown of a fully connected tier: every member sends to all peers at once, over a link to each (R.
    Thakur et al., Int. J. High Perform. Comput. Appl. 19(1), 2005, doi:10.1177/1094342005051521).
    """
    steps = np.where(members > 1.0, 1.0, 0.0)
    if operation == "point_to_point":
        return steps, num_links + 0.0 * members
    load = num_links / members * np.where(members == 1.0, 0.0, 1.0)
    return steps, _relative(load, members)


def _listed(operation: str, members: Array, distance: Array, number: Array) -> tuple[tuple[Array, Array], np.ndarray]:
    """Hops and slowdown, and whether larger groups go tier by tier, of each distinct group once; NaN if not known."""
    asked = np.stack(np.broadcast_arrays(members, distance, number)).reshape(3, -1)
    distinct, which = np.unique(asked, axis=1, return_inverse=True)
    shapes = [
        listed_shape(lists, operation, int(group), int(apart)) if group >= 0.0 and lists >= 0.0 else _UNKNOWN
        for group, apart, lists in distinct.T.tolist()
    ]
    steps, slowdown, phased = (np.array(part)[which].reshape(members.shape) for part in zip(*shapes, strict=True))
    return (steps, slowdown), phased


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

    Source: R. Rabenseifner, ICCS 2004, doi:10.1007/978-3-540-24685-5_1.

    >>> float(tree_depth(5.0))  # 2, 4 and then 8 ranks
    3.0

    Parameters
    ----------
    group_size : Number of ranks. [-]

    Returns
    -------
    depth : 0 for one rank. [-]
    """
    below = np.ceil(array(group_size)) - 1.0
    depth = np.frexp(np.maximum(below, 0.0))[1].astype(np.float64)  # frexp is exact; log2 need not be
    return np.asarray(np.where(np.isnan(below), np.nan, depth))
