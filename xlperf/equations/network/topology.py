"""What the topology of a tier makes of an operation: hops one after the other, and how much slower than a switch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, array
from xlperf.equations.network.direct import direct_load
from xlperf.equations.network.dragonfly import dragonfly_exchange_load, dragonfly_hops, dragonfly_neighbour_load
from xlperf.equations.network.tiers import Network
from xlperf.equations.network.torus import torus_distances, torus_exchange_load, torus_gather_load, torus_steps

SWITCH, FAT_TREE, FULLY_CONNECTED, RING, TORUS, MESH, DRAGONFLY, RAIL = range(8)
AXES = (RING, TORUS, MESH)
_PHASED = np.array([code in (*AXES, DRAGONFLY) for code in range(RAIL + 1)])


class TierShape(NamedTuple):
    """A tier as one operation meets it, (rows, operators).

    ``steps`` are hops one after the other in one reduce-scatter, all-gather, all-to-all or transfer; ``slowdown`` is
    the time of its busiest link over that of the link of an accelerator to a switch; ``by_phases`` where groups that
    span other tiers too go tier by tier, because no ring of all ranks runs through this one; ``rails`` where
    neighbours of another place in their machine are reached by way of a neighbour inside.
    """

    steps: Array
    slowdown: Array
    by_phases: np.ndarray
    rails: np.ndarray


def tier_shape(operation: str, members: Array, stride: Array, network: Network, tier: int) -> TierShape:
    """Hops and slowdown of one tier.

    Parameters
    ----------
    operation : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point"}
        What is done.
    members : Array
        Ranks, or groups of the tier below, that the group joins in this tier, (rows, operators). [-]
    stride : Array
        Distance of neighbouring ranks of the group, (rows, operators). [-]
    network : Network
        Tiers, (rows, tiers).
    tier : int
        Which of them, 0 the innermost.

    Returns
    -------
    TierShape
        Those of a switch where the tier is one, (rows, operators). [-]
    """
    inner = network.size[:, tier - 1 : tier] if tier else np.ones_like(network.size[:, :1])
    distance = np.maximum(array(stride) / inner, 1.0) + 0.0 * members
    steps = np.ones_like(distance) if operation in ("all_to_all", "point_to_point") else members - 1.0
    if operation == "all_to_all" and tier == 0:
        steps = members - 1.0
    steps, slowdown = steps.copy(), np.ones_like(distance)
    codes = network.topology[:, tier]
    used = codes
    if operation != "point_to_point":  # a group that does not go through the tier meets nothing in it
        used = np.where((members == 1.0).all(axis=-1), SWITCH, codes)
    for code in sorted(set(used.tolist())):
        rows = np.flatnonzero(used == code)
        if code == FULLY_CONNECTED:
            found = _direct(operation, members[rows], network.num_links[rows, tier, None])
        elif code in AXES:
            found = _along_axes(operation, members[rows], distance[rows], network, rows, tier)
        elif code == DRAGONFLY:
            apart = np.maximum(array(stride), inner) + 0.0 * members
            found = _dragonfly(operation, members[rows], apart[rows], network, rows, tier)
        else:
            continue
        steps[rows], slowdown[rows] = found
    several = members > 1.0
    return TierShape(steps, slowdown, _PHASED[codes][:, None] & several, (codes == RAIL)[:, None] & several)


def _relative(load: Array, members: Array) -> Array:
    """Load over that of a switch, on which each rank sends (n - 1) / n of the message."""
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
    first, second, third, rings, links = (
        values[rows, tier, None]
        for values in (
            network.first_length,
            network.second_length,
            network.third_length,
            network.num_rings,
            network.num_links,
        )
    )
    if operation == "point_to_point":
        steps, longest = torus_distances(distance, first, second, third, rings)
        return steps, longest * links
    steps = torus_steps(members, distance, first, second, third, rings)
    equation = torus_exchange_load if operation == "all_to_all" else torus_gather_load
    return steps, _relative(equation(members, distance, first, second, third, rings, links), members)


def _dragonfly(
    operation: str, members: Array, distance: Array, network: Network, rows: np.ndarray, tier: int
) -> tuple[Array, Array]:
    first, second, third, links = (
        values[rows, tier, None]
        for values in (network.first_length, network.second_length, network.third_length, network.num_links)
    )
    hops = dragonfly_hops(members, distance, first, second)
    if operation == "all_to_all":
        return hops, _relative(dragonfly_exchange_load(members, distance, first, second, third, links), members)
    load = dragonfly_neighbour_load(members, distance, first, second, third, links)
    return (hops if operation == "point_to_point" else (members - 1.0) * hops), load
