"""Network tiers: how a group of ranks spreads over the tiers of a machine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xlperf.base.arrays import Array, Numeric, array


@dataclass(frozen=True, eq=False)
class Network:
    """Tiers of networks, innermost first; shape (rows, tiers), short ones padded with copies of their last tier.

    Attributes
    ----------
    size : Array
        Accelerators that one group of the tier connects, counted from the inside. [-]
    link_bandwidth : Array
        Bandwidth of one accelerator into the tier, one direction, oversubscription included. [B/s]
    latency : Array
        Time of one hop for an empty message. [s]
    links_per_peer : Array
        Links to each peer; NaN but for fully connected tiers. [-]
    in_network_reduction : Array
        1 where the switches add up all-reduces, else 0. [-]
    topology : np.ndarray
        Codes of the topologies, positions in the schema's choices. [-]
    first_length : Array
        Places along the first axis of a ring, torus or mesh, which the rank order follows first; accelerators of a
        router of a dragonfly. [-]
    second_length : Array
        Places along the second axis; routers of a group of a dragonfly. [-]
    third_length : Array
        Places along the third axis; groups of a dragonfly. [-]
    num_rings : Array
        Axes, from the first on, whose ends are joined. [-]
    num_links : Array
        Links that the bandwidth of one accelerator is divided over: to each peer of a fully connected tier, to the
        neighbours along the axes; global links of a router of a dragonfly; else 1. [-]
    """

    size: Array
    link_bandwidth: Array
    latency: Array
    links_per_peer: Array
    in_network_reduction: Array
    topology: np.ndarray
    first_length: Array
    second_length: Array
    third_length: Array
    num_rings: Array
    num_links: Array


def members_by_tier(group_size: Numeric, stride: Numeric, network: Network) -> Array:
    r"""Members that a strided group joins at each tier; their product over the tiers is the group size.

    .. math:: c_t = \min\left(\max\left(\frac{s_t}{d}, c_{t-1}\right), n\right), \qquad n_t = \frac{c_t}{c_{t-1}}

    Parameters
    ----------
    group_size : numeric
        Ranks of the group, (rows, operators). [-]
    stride : numeric
        Distance of neighbouring ranks of the group, (rows, operators). [-]
    network : Network
        Tiers, (rows, tiers); the outermost takes what is left.

    Returns
    -------
    members : numeric
        Ranks, or groups of the tier below, that each tier joins, (tiers, rows, operators). [-]

    References
    ----------
    .. [1] E. Chan et al., "Collective communication on architectures that support simultaneous communication over
       multiple links", PPoPP 2006, doi:10.1145/1122971.1122975.
    """
    group, distance = array(group_size), array(stride)
    before = np.ones(np.broadcast(group, distance, network.size[:, :1]).shape)
    last = network.size.shape[1] - 1
    parts = []
    for tier in range(last + 1):
        fits = np.maximum(network.size[:, tier : tier + 1] / distance, before)
        reach = np.maximum(group, before) if tier == last else np.minimum(fits, group)
        parts.append(reach / before)
        before = reach
    return np.asarray(parts)
