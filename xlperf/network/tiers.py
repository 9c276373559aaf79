"""Network tiers: how a group of ranks spreads over the tiers of a machine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xlperf.arrays import Array, Numeric, array


@dataclass(frozen=True)
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
    """

    size: Array
    link_bandwidth: Array
    latency: Array
    links_per_peer: Array
    in_network_reduction: Array
    topology: np.ndarray


def members_by_tier(group_size: Numeric, stride: Numeric, network: Network) -> Array:
    r"""Members that a strided group joins at each tier: the product over the tiers is the group size.

    .. math:: c_t = \min(\max(s_t / d, 1), n), \qquad n_t = c_t / c_{t-1}

    Parameters
    ----------
    group_size : numeric
        Ranks of the group; broadcasts to (rows, operations). [-]
    stride : numeric
        Distance of neighbouring ranks of the group. [-]
    network : Network
        Tiers, shape (rows, tiers); the outermost takes what is left.

    Returns
    -------
    members : numeric
        Shape (tiers, rows, operations). [-]
    """
    group, distance = np.broadcast_arrays(array(group_size), array(stride))
    before = np.ones_like(group)
    parts = []
    tiers = network.size.shape[1]
    for tier in range(tiers):
        reach = group if tier == tiers - 1 else np.clip(network.size[:, tier : tier + 1] / distance, 1.0, group)
        reach = np.maximum(reach, before)
        parts.append(reach / before)
        before = reach
    return np.asarray(parts)
