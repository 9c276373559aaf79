"""Collectives on rings, meshes and tori: how long the busiest link is held, and how many hops follow each other.

A torus has up to three axes; ranks are numbered along the first, then the second, then the third. A group of ranks
``distance`` apart fills the axes in that order. Where its members are neighbours they form a contiguous block; where
they are ``hop`` apart on an axis, each of its messages crosses ``hop`` links, and the ``hop`` groups that lie between
each other share them, all at work at once. An axis is a ring where the group goes all the way round, else a line.

Loads are relative to the bandwidth of one accelerator, all its links together: seconds times that bandwidth, per byte
of the message.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations
from math import isqrt, prod
from operator import eq, le

import numpy as np

from xlperf.base.arrays import Array, Numeric, array

AXES = 3


def _products(whole: int, count: int, rising: bool, least: int = 1) -> Iterator[tuple[int, ...]]:
    """Factorisations of a whole number into ``count`` factors, each at least ``least``, in rising order if asked."""
    if count == 1:
        if whole >= least:
            yield (whole,)
        return
    last = isqrt(whole)
    if rising and count > 2:  # of three or more factors in rising order the first is the smaller
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
    """The most cubic block of a torus or mesh for a number of accelerators."""
    limits = machine or (places,) * axes
    if machine and places == prod(machine):
        return machine, axes if rings else 0
    # Without a machine the axes are alike: those of a block are looked for in rising order only.
    found = _products(places, axes, rising=not machine)
    if machine:
        found = (lengths for lengths in found if all(map(le, lengths, machine)))

    def rank(lengths: tuple[int, ...]) -> tuple[int, int]:
        """The shortest first; of these those that most axes of the machine are closed in."""
        return sum(lengths), -sum(map(eq, lengths, machine))

    best = min(found, key=rank if machine else sum, default=None)
    if best is None:
        return machine, axes if rings else 0
    whole = rings and all(length % cube == 0 for length in best)
    closed = [whole and (not machine or length == limit) for length, limit in zip(best, limits, strict=True)]
    order = sorted(range(axes), key=lambda axis: (not closed[axis], best[axis]))
    return tuple(best[axis] for axis in order), sum(closed)


def _axes(
    group_size: Numeric, distance: Numeric, lengths: tuple[Numeric, ...], num_rings: Numeric
) -> list[tuple[Array, Array, np.ndarray]]:
    """Members, links per hop, and whether the ring is closed, of a group on each axis."""
    group, apart, rings = array(group_size), array(distance), array(num_rings)
    before, inner = np.ones_like(group), array(1.0)
    found = []
    for axis, length in enumerate(lengths):
        outer = inner * array(length)
        reach = np.maximum(outer / apart, before)
        reach = np.maximum(group, before) if axis == len(lengths) - 1 else np.minimum(reach, np.maximum(group, before))
        members = reach / before
        hop = np.maximum(apart / inner, 1.0)
        closed = (rings > axis) & (members * hop >= array(length)) & (members > 1.0)
        found.append((np.asarray(members), np.where(members > 1.0, hop, 1.0), np.asarray(closed)))
        before, inner = reach, outer
    return found


def _known(values: Array, *arguments: Numeric) -> Array:
    """The values, NaN where an argument is."""
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
    r"""Sequential hops of a collective on a torus, mesh or ring: those between the two most distant members.

    .. math:: h = \sum_i h_i \lfloor n_i / 2 \rfloor \ \text{(ring)}, \qquad h_i (n_i - 1) \ \text{(line)}

    Parameters
    ----------
    group_size, distance : numeric
        Members of the group; ranks from one member to the next. [-]
    first_length, second_length, third_length : numeric
        Places along each axis. [-]
    num_rings : numeric
        Axes, from the first on, whose ends are joined. [-]

    Returns
    -------
    steps : numeric
        Hops of a reduce-scatter, an all-gather or an all-to-all. [-]

    References
    ----------
    .. [1] E. Chan et al., "Collective communication", Concurrency Comput. 19(13), 2007, doi:10.1002/cpe.1206.

    Examples
    --------
    A ring of four on each of two axes, two hops half-way round each:

    >>> float(torus_steps(16.0, 1.0, 4.0, 4.0, 1.0, 2.0))
    4.0
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

    Axis after axis, both ways round each ring; the buffer is cut into as many parts as the group has axes, and each
    part begins with another axis, so that all links work at once (the multiport bucket algorithm). On long thin
    blocks one part alone may be faster: the lower load counts.

    .. math:: l = \min\left(\sum_i c_i(1) \prod_{j<i} \frac{1}{n_j},\
              \sum_p \max_q c_{q+p}(1) \frac{1}{k} \prod_{j<p} \frac{1}{n_{q+j}}\right), \qquad
              c_i(V) = \frac{n_i - 1}{n_i} V h_i \frac{L}{2\ \text{(ring) or}\ 1\ \text{(line)}}

    Parameters
    ----------
    group_size, distance : numeric
        Members of the group; ranks from one member to the next. [-]
    first_length, second_length, third_length : numeric
        Places along each axis. [-]
    num_rings : numeric
        Axes, from the first on, whose ends are joined. [-]
    num_links : numeric
        Links that the bandwidth of one accelerator is divided over. [-]

    Returns
    -------
    load : numeric
        Time at the bandwidth of one accelerator per byte of the whole message; 0 for a group of one. [-]

    References
    ----------
    .. [1] N. Jain and Y. Sabharwal, "Optimal bucket algorithms ...", ICS 2010, doi:10.1145/1810085.1810093.

    Examples
    --------
    A ring of four with two links each: three quarters of the message, half each way, on half the bandwidth:

    >>> float(torus_gather_load(4.0, 1.0, 4.0, 1.0, 1.0, 1.0, 2.0))
    0.75
    """
    lengths = (first_length, second_length, third_length)
    axes = _axes(group_size, distance, lengths, num_rings)
    costs = [
        (members - 1.0) / members * hop * array(num_links) / np.where(closed, 2.0, 1.0) for members, hop, closed in axes
    ]
    members = [axis[0] for axis in axes]
    single, held = array(0.0), array(1.0)
    for count, cost in zip(members, costs, strict=True):
        single = single + cost / held
        held = held * count
    best = single
    for parts in range(2, AXES + 1):
        for chosen in combinations(range(AXES), parts):
            active = np.asarray(members[0] == members[0])
            for axis in range(AXES):
                active = active & ((members[axis] > 1.0) == (axis in chosen))
            best = np.where(active, np.minimum(best, _rotated(costs, members, chosen)), best)
    return _known(best, group_size, distance, *lengths, num_rings, num_links)


def _rotated(costs: list[Array], members: list[Array], chosen: tuple[int, ...]) -> Array:
    """Load of the multiport bucket algorithm: one part per axis, each starting on another axis, phases in lockstep."""
    parts = len(chosen)
    load = array(0.0)
    held = [array(float(parts)) for _ in chosen]
    for phase in range(parts):
        slowest = array(0.0)
        for part in range(parts):
            axis = chosen[(part + phase) % parts]
            slowest = np.maximum(slowest, costs[axis] / held[part])
            held[part] = held[part] * members[axis]
        load = load + slowest
    return np.asarray(load)


def torus_exchange_load(
    group_size: Numeric,
    distance: Numeric,
    first_length: Numeric,
    second_length: Numeric,
    third_length: Numeric,
    num_rings: Numeric,
    num_links: Numeric,
) -> Array:
    r"""Link load of an all-to-all on a torus, mesh or ring: that of its busiest axis.

    Each message goes along the axes in order, the shorter way round a ring and both ways at half a round.

    .. math:: l = L \max_i h_i \frac{\lfloor n_i^2 / 4 \rfloor}{2 n_i} \ \text{(ring)}, \qquad
              L \max_i h_i \frac{\lfloor n_i^2 / 4 \rfloor}{n_i} \ \text{(line)}

    Parameters
    ----------
    group_size, distance : numeric
        Members of the group; ranks from one member to the next. [-]
    first_length, second_length, third_length : numeric
        Places along each axis. [-]
    num_rings : numeric
        Axes, from the first on, whose ends are joined. [-]
    num_links : numeric
        Links that the bandwidth of one accelerator is divided over. [-]

    Returns
    -------
    load : numeric
        Time at the bandwidth of one accelerator per byte that one member sends, itself included. [-]

    References
    ----------
    .. [1] W. J. Dally and B. Towles, "Principles and Practices of Interconnection Networks", 2004, chapter 5.

    Examples
    --------
    A ring of four with two links each: 2 x 4 / (2 x 4):

    >>> float(torus_exchange_load(4.0, 1.0, 4.0, 1.0, 1.0, 1.0, 2.0))
    1.0
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
    r"""Hops between two ranks of a torus, mesh or ring: in total, and along the longest axis.

    .. math:: h_i = \min(d_i, k_i - d_i) \ \text{(ring)}, \qquad d_i \ \text{(line)}, \qquad
              d = d_1 + k_1 (d_2 + k_2 d_3)

    Parameters
    ----------
    distance : numeric
        Ranks from one to the other. [-]
    first_length, second_length, third_length : numeric
        Places along each axis. [-]
    num_rings : numeric
        Axes, from the first on, whose ends are joined. [-]

    Returns
    -------
    steps : numeric
        Hops along all axes, at least 1. [-]
    longest : numeric
        Hops along the axis with the most; as many messages share a link when all ranks send so far. [-]

    References
    ----------
    .. [1] W. J. Dally and B. Towles, "Principles and Practices of Interconnection Networks", 2004, chapter 5.

    Examples
    --------
    Rank 5 of a torus of 4 x 4 is one hop away on each axis:

    >>> tuple(map(float, torus_distances(5.0, 4.0, 4.0, 1.0, 2.0)))
    (2.0, 1.0)
    """
    lengths = (first_length, second_length, third_length)
    left, rings = np.floor(array(distance)), array(num_rings)
    steps, longest = array(0.0), array(1.0)
    for axis, length in enumerate(lengths):
        places = array(length)
        away = left - np.floor(left / places) * places
        hops = np.where(rings > axis, np.minimum(away, places - away), away)
        left = np.floor(left / places)
        steps, longest = steps + hops, np.maximum(longest, hops)
    arguments = (distance, *lengths, num_rings)
    return _known(np.maximum(steps, 1.0), *arguments), _known(longest, *arguments)
