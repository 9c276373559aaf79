"""Network tiers: how a group of ranks spreads over the tiers of a machine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xlperf.arrays import Array


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
