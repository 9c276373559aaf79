"""Time of collective operations on a network of tiers: alpha-beta, the fastest algorithm, hierarchical over tiers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from xlperf.arrays import Array, Numeric, array
from xlperf.network.tiers import Network, members_by_tier

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point")


def ring_steps(group_size: Numeric) -> Array:
    """Steps of a ring reduce-scatter or all-gather. [-]"""
    return np.asarray(array(group_size) - 1.0)


def collective_time(
    operation: str,
    message_size: Numeric,
    group_size: Numeric,
    stride: Numeric,
    network: Network,
    constants: Mapping[str, Array],
) -> Array:
    """Time of one collective operation; hierarchical where the group spans tiers."""
    if operation not in OPERATIONS:
        raise ValueError(f"operation must be one of {', '.join(OPERATIONS)}, got {operation!r}")
    size = array(message_size)
    group = array(group_size)
    inner = np.asarray(members_by_tier(group, stride, network))
    time = np.zeros(np.broadcast_shapes(size.shape, inner.shape[1:]))
    remaining = size
    for tier in range(inner.shape[0]):
        count = inner[tier]
        bandwidth = network.link_bandwidth[:, tier : tier + 1]
        hop = network.latency[:, tier : tier + 1]
        efficiency = constants["bandwidth_efficiency" if tier == 0 else "outer_efficiency"]
        share = (count - 1.0) / count
        rounds = 2.0 if operation == "all_reduce" else 1.0
        if operation == "point_to_point":
            busy = remaining / (efficiency * bandwidth)
            time = np.where(count > 1.0, hop + busy, time)
            continue
        steps = np.ceil(np.log2(count))
        part = rounds * (steps * hop + share * remaining / (efficiency * bandwidth))
        time = time + np.where(count > 1.0, part, 0.0 * part)
        if operation != "all_to_all":
            remaining = remaining / count
    return np.asarray(np.where(group > 1.0, constants["launch_time"] + time, 0.0 * time))
