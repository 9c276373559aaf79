"""Time of collective operations: alpha-beta equations of algorithms, and the fastest one on a network of tiers.

This module times switched tiers; :mod:`xlperf.equations.network.topologies` has the hops and the slowdown of others.

A message size follows nccl-tests: the buffer of an all-reduce, the gathered total of an all-gather, the input of a
reduce-scatter, all bytes of one rank in an all-to-all (its own included), the message of a point-to-point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, beside, some
from xlperf.equations.network.topologies import FAT_TREE, FULLY_CONNECTED, Network, TierShape, tier_shape, tree_depth


def ring_traffic(message_size: Numeric, group_size: Numeric) -> Array:
    r"""Bytes that each rank sends in a ring reduce-scatter or all-gather, and in a direct all-to-all.

    .. math:: T = \frac{n - 1}{n} S

    Source: P. Patarasuk and X. Yuan, J. Parallel Distrib. Comput. 69(2), 2009, doi:10.1016/j.jpdc.2008.09.002.

    >>> float(ring_traffic(8.0, 4.0))  # Three quarters of 8 B
    6.0

    Parameters
    ----------
    message_size : Bytes of the whole message. [B]
    group_size : Number of ranks. [-]

    Returns
    -------
    traffic : Bytes sent by one rank, as many as it receives. [B]
    """
    ranks = array(group_size)
    return np.asarray((ranks - 1.0) / ranks * array(message_size))


def ring_reduce_scatter_time(
    message_size: Numeric, group_size: Numeric, link_bandwidth: Numeric, hop_latency: Numeric = 0.0
) -> Array:
    r"""Time of a ring reduce-scatter (each rank ends with the sum of one shard), or of the all-gather that inverts it.

    .. math:: t = (n - 1) \alpha + \frac{n - 1}{n} \frac{S}{B}

    Source: P. Patarasuk and X. Yuan, J. Parallel Distrib. Comput. 69(2), 2009, doi:10.1016/j.jpdc.2008.09.002.

    >>> float(ring_reduce_scatter_time(8.0, 4.0, 2.0, 0.5))  # Three steps of 0.5 s, and 6 B at 2 B/s
    4.5

    Parameters
    ----------
    message_size : Bytes of the input of each rank, or of the gathered whole. [B]
    group_size : Number of ranks; with 1 there is no communication. [-]
    link_bandwidth : Bandwidth of one rank's link, one direction. [B/s]
    hop_latency : Latency of one step. [s]

    Returns
    -------
    time : First send to last receive. [s]
    """
    steps = array(group_size) - 1.0
    return np.asarray(steps * array(hop_latency) + ring_traffic(message_size, group_size) / array(link_bandwidth))


def ring_all_reduce_time(
    message_size: Numeric, group_size: Numeric, link_bandwidth: Numeric, hop_latency: Numeric = 0.0
) -> Array:
    r"""Time of a ring all-reduce: a reduce-scatter followed by an all-gather.

    .. math:: t = 2 (n - 1) \alpha + 2 \frac{n - 1}{n} \frac{S}{B}

    Source: P. Patarasuk and X. Yuan, J. Parallel Distrib. Comput. 69(2), 2009, doi:10.1016/j.jpdc.2008.09.002.

    >>> float(ring_all_reduce_time(8.0, 4.0, 2.0, 0.5))  # Six steps of 0.5 s, and 12 B at 2 B/s
    9.0

    Parameters
    ----------
    message_size : Bytes of the buffer that each rank holds. [B]
    group_size : Number of ranks; with 1 there is no communication. [-]
    link_bandwidth : Bandwidth of one rank's link, one direction. [B/s]
    hop_latency : Latency of one step. [s]

    Returns
    -------
    time : First send to last receive. [s]
    """
    return np.asarray(2.0 * ring_reduce_scatter_time(message_size, group_size, link_bandwidth, hop_latency))


def tree_all_reduce_time(
    message_size: Numeric, group_size: Numeric, link_bandwidth: Numeric, hop_latency: Numeric = 0.0
) -> Array:
    r"""Time of a pipelined all-reduce over two complementary binary trees, each carrying half of the message.

    .. math:: t = 2 \lceil \log_2 n \rceil \alpha + 2 \frac{S}{B} \quad (n > 1)

    Source: P. Sanders et al., "Two-tree algorithms", Parallel Comput. 35(12), 2009, doi:10.1016/j.parco.2009.09.001.

    >>> float(tree_all_reduce_time(8.0, 4.0, 2.0, 0.5))  # Two levels up and two down of 0.5 s, and 16 B at 2 B/s
    10.0

    Parameters
    ----------
    message_size : Bytes of the buffer that each rank holds. [B]
    group_size : Number of ranks; with 1 there is no communication. [-]
    link_bandwidth : Bandwidth of one rank's link, one direction. [B/s]
    hop_latency : Latency of one level. [s]

    Returns
    -------
    time : First send to last receive. [s]
    """
    ranks = array(group_size)
    sent = 2.0 * array(message_size) / array(link_bandwidth)
    return np.asarray(2.0 * tree_depth(ranks) * array(hop_latency) + np.where(ranks > 1.0, sent, 0.0 * sent * ranks))


def collective_time(
    operation: str,
    message_size: Numeric,
    group_size: Numeric,
    stride: Numeric,
    network: Network,
    constants: Mapping[str, Array],
) -> Array:
    """Time of one collective operation on a network of tiers, by the fastest algorithm and protocol.

    All-reduce: a ring over all ranks, phases tier by tier, trees between machines, or reduction in the switches;
    all-gather and reduce-scatter: the ring. An all-to-all sends to all tiers at once; a point-to-point crosses the
    outermost tier of its group. All groups of the machine are active and share links. Heuristic, this work.
    """
    if operation not in OPERATIONS:
        raise ValueError(f"operation must be one of {', '.join(OPERATIONS)}, got {operation!r}")
    size, group = array(message_size), array(group_size)
    members = members_by_tier(group, stride, network)
    # Tiers above the innermost that some group spans.
    spanned = [0, *(tier for tier in range(1, len(members)) if some(members[tier] != 1.0))]
    shapes: dict[int, TierShape] = {}
    if some(network.topology > FAT_TREE):
        shapes = {tier: tier_shape(operation, members[tier], array(stride), network, tier) for tier in spanned}
    time = OPERATIONS[operation].time(_Call(size, group, array(stride), members, spanned, network, constants, shapes))
    return np.asarray(np.where(group == 1.0, 0.0 * time, time))


class Call(NamedTuple):
    """One call of a collective operation by each rank."""

    operation: str
    size: Array  # message size, (rows, columns) [B]
    group: Array  # ranks, (rows, 1) or (rows, columns); 1: no communication [-]
    stride: Array  # ranks from one member of the group to the next, as ``group`` [-]


def collective_times(
    calls: Mapping[str, Call], network: Network, kernels: Mapping[str, Mapping[str, Array]]
) -> dict[str, Array]:
    """Time of each call on its own, as :func:`collective_time`; calls of one algorithm are computed side by side."""
    times: dict[str, Array] = {}
    for algorithm in dict.fromkeys(OPERATIONS[call.operation].time for call in calls.values()):
        together = {name: call for name, call in calls.items() if OPERATIONS[call.operation].time is algorithm}
        operations = [call.operation for call in together.values()]
        widths = [call.size.shape[-1] for call in together.values()]
        columns = zip(*(call[1:] for call in together.values()), strict=True)
        size, group, stride = (_across(values, widths) for values in columns)
        constants = kernels[operations[0]]
        if len(set(operations)) > 1:
            families = [kernels[operation] for operation in operations]
            constants = {name: _across([family[name] for family in families], widths) for name in constants}
        time = collective_time(operations[0], size, group, stride, network, constants)
        ends = np.cumsum(widths).tolist()
        times |= {name: time[:, end - width : end] for name, width, end in zip(together, widths, ends, strict=True)}
    return times


def _across(values: Sequence[Array], widths: Sequence[int]) -> Array:
    """Columns of several arrays side by side, each repeated to its width."""
    if len(values) == 1:
        return values[0]
    shapes = zip(values, widths, strict=True)
    return beside(*(each if each.shape[1] == width else each.repeat(width, axis=1) for each, width in shapes))


class _Call(NamedTuple):
    """Arguments of one collective operation on the tiers of a network."""

    size: Array  # Message size [B]
    group: Array  # Ranks [-]
    stride: Array  # Ranks from one member to the next [-]
    members: Array  # Members at each tier, (tiers, rows, operators) [-]
    spanned: list[int]  # Tiers in use
    network: Network
    constants: Mapping[str, Array]
    shapes: dict[int, TierShape]  # By tier; empty if all tiers are switched


def _tier(values: Array, tier: int) -> Array:
    return values[:, tier : tier + 1]


def _inner_bandwidths(
    members: Array, network: Network, constants: Mapping[str, Array], shapes: dict[int, TierShape]
) -> tuple[Array, Array]:
    """Achieved bandwidth of the innermost tier by the low-latency and by the high-bandwidth protocol. [B/s]

    Small groups fill their share of a switch less; the link of a pair of fully connected ranks is filled in any group.
    """
    link, ranks = _tier(network.link_bandwidth, 0), np.maximum(members, 2.0)
    if shapes:
        link = link / shapes[0].slowdown
        direct = (network.topology[:, :1] == FULLY_CONNECTED) & (members > 1.0)
        ranks = np.where(direct, np.maximum(_tier(network.size, 0), ranks), ranks)
    bulk = constants["bandwidth_efficiency"] * (1.0 - constants["group_penalty"] / ranks)
    return constants["low_latency_efficiency"] * link, bulk * link


def _point_to_point_time(call: _Call) -> Array:
    """Time of a transfer over the outermost tier of its group."""
    size, _, stride, members, spanned, network, constants, shapes = call
    inside = 1.0 / (constants["bandwidth_efficiency"] * _tier(network.link_bandwidth, 0))
    latency = _tier(network.latency, 0)
    seconds_per_byte = inside
    if shapes:
        seconds_per_byte = inside * shapes[0].slowdown
        latency = latency * np.maximum(shapes[0].steps, 1.0)
    # The outermost tier that the pair spans takes the place of those inside it.
    for tier in spanned[1:]:
        spans = members[tier] > 1.0
        outer = 1.0 / (constants["outer_efficiency"] * _tier(network.link_bandwidth, tier))
        hop = _tier(network.latency, tier)
        if shapes:
            outer, hop = outer * shapes[tier].slowdown, hop * shapes[tier].steps
            # Ranks on different rails pass a neighbour inside the machine.
            place = stride / _tier(network.size, tier - 1)
            detour = shapes[tier].rails & (place != np.floor(place))
            outer = np.where(detour, np.maximum(outer, inside), outer)
            hop = np.where(detour, hop + _tier(network.latency, 0), hop)
        seconds_per_byte = np.where(spans, outer, seconds_per_byte)
        latency = np.where(spans, hop, latency)
    return np.asarray(constants["launch_time"] + latency + size * seconds_per_byte + 0.0 * members[0])


def _all_to_all_time(call: _Call) -> Array:
    """Time of an all-to-all: the slowest tier, or three protocols inside the machine."""
    size, group, _, members, spanned, network, constants, shapes = call
    low, bulk = _inner_bandwidths(members[0], network, constants, shapes)
    # Bytes to peers inside the machine, and tier by tier the bytes to peers outside.
    inside = size * ((members[0] - 1.0) / group)
    within = members[0]
    outer_latency, outer_time = np.zeros_like(within), np.zeros_like(within)
    for tier in spanned[1:]:
        reached = within * members[tier]
        bandwidth = constants["outer_efficiency"] * _tier(network.link_bandwidth, tier)
        hop = _tier(network.latency, tier)
        outside = size * ((reached - within) / group)
        if shapes:
            bandwidth, hop = bandwidth / shapes[tier].slowdown, hop * shapes[tier].steps
            other_rails = outside * ((members[0] - 1.0) / members[0])
            inside = np.where(shapes[tier].rails, inside + other_rails, inside)
        outer_time = np.maximum(outer_time, outside / bandwidth)
        outer_latency = outer_latency + np.where(reached > within, hop, 0.0)
        within = reached
    # The low-latency, the middle and the high-bandwidth protocol: more start-up time, more bandwidth.
    steps = shapes[0].steps if shapes else members[0] - 1.0
    start = constants["launch_time"] + constants["step_factor"] * steps * _tier(network.latency, 0)
    to_one_peer = size / group / low
    quick = start + np.maximum(np.maximum(to_one_peer, inside / bulk), outer_time)
    halfway = 0.5 * (1.0 + constants["bulk_factor"]) * start
    middle = halfway + np.maximum(inside / (constants["middle_share"] * bulk), outer_time)
    wide = constants["bulk_factor"] * start + np.maximum(inside / bulk, outer_time)
    return np.asarray(np.minimum(np.minimum(quick, middle), wide) + outer_latency)


def _reduction_time(
    call: _Call, ring_time_of: Callable[[Array, Array, Array, Array], Array], reduces: bool = False
) -> Array:
    """Time of a ring over all ranks; an all-reduce may also go tier by tier, by trees or through the switches."""
    size, group, _, members, spanned, network, constants, shapes = call
    rounds = 2.0 if reduces else 1.0
    low, bulk = _inner_bandwidths(members[0], network, constants, shapes)
    # Start-up and bytes per rank in the innermost tier.
    steps = shapes[0].steps if shapes else members[0] - 1.0
    start = constants["launch_time"] + rounds * constants["step_factor"] * steps * _tier(network.latency, 0)
    start_bulk = constants["bulk_factor"] * start
    sent = rounds * ring_traffic(size, group)
    sent_inside = rounds * ring_traffic(size, members[0])
    ring_time = phase_time = tree_time = ring_latency = tree_latency = ring_waits = np.zeros_like(group)
    # Outer tiers: the ring over all ranks, a phase on the shard of a member, trees.
    within = members[0]
    for tier in spanned[1:]:
        count = members[tier]
        spans = count > 1.0
        hop = _tier(network.latency, tier)
        bandwidth = constants["outer_efficiency"] * _tier(network.link_bandwidth, tier)
        if shapes:
            bandwidth = bandwidth / shapes[tier].slowdown
        ring_time = np.maximum(ring_time, np.where(spans, sent / (within * bandwidth), 0.0))
        ring_latency = np.where(spans, rounds * (group - 1.0) * hop, ring_latency)
        # A phase on the piece of a member: a ring, along the axes of a topology, by trees, or in the switches.
        piece = size / within
        if reduces or shapes:
            phase = ring_time_of(piece, count, bandwidth, hop)
            if shapes:
                along = rounds * (shapes[tier].steps * hop + ring_traffic(piece, count) / bandwidth)
                phase = np.where(shapes[tier].by_phases, along, phase)
        if reduces:
            phase_of_machines = _all_reduce_between(piece, count, bandwidth, hop, constants)
            phase = np.where(shapes[tier].by_phases, phase, phase_of_machines) if shapes else phase_of_machines
            in_switch = (_tier(network.in_network_reduction, tier) == 1.0) & spans
            phase = np.where(in_switch, np.minimum(phase, 2.0 * hop + piece / bandwidth), phase)
            ring_waits = ring_waits + rounds * (count - 1.0) * constants["outer_bulk_time"]
            tree_time = np.maximum(tree_time, 2.0 * ring_traffic(piece, count) / bandwidth)
            tree_latency = tree_latency + 2.0 * tree_depth(count) * (hop + constants["outer_bulk_time"])
        if reduces or shapes:
            phase_time = phase_time + phase
        within = within * count
    # The ring by the low-latency or the high-bandwidth protocol, against phases tier by tier.
    quick_ring = ring_time / constants["outer_low_latency_efficiency"] if reduces else ring_time
    slow_start = start_bulk + ring_waits
    time = np.minimum(start + np.maximum(sent / low, quick_ring), slow_start + np.maximum(sent / bulk, ring_time))
    time = time + ring_latency
    if reduces or shapes:
        inside = np.minimum(start + sent_inside / low, start_bulk + sent_inside / bulk)
        by_phases = inside + phase_time
        if shapes:
            several = group > members[0]
            needed = np.any([shape.by_phases for shape in shapes.values()], axis=0) & several
            best = np.minimum(time, by_phases) if reduces else time
            time = np.where(needed, by_phases, best)
        else:
            time = np.minimum(time, by_phases)
    if reduces:  # reduction in the switches of the innermost tier
        link = constants["in_network_efficiency"] * _tier(network.link_bandwidth, 0)
        # SHARP sends the buffer and the shard that the rank requests (doi:10.1109/ISCA45697.2020.00085)
        crossed = (1.0 + 1.0 / members[0]) * size / link
        added = start_bulk + np.maximum(crossed, tree_time) + tree_latency
        in_switch = (_tier(network.in_network_reduction, 0) == 1.0) & (members[0] > 1.0)
        time = np.where(in_switch, np.minimum(time, added), time)
    return np.asarray(time)


def _all_reduce_between(
    piece: Array, machines: Array, bandwidth: Array, hop: Array, constants: Mapping[str, Array]
) -> Array:
    """Time of an all-reduce between machines: ring or tree, by either protocol."""
    quick = constants["outer_low_latency_efficiency"] * bandwidth
    slow = hop + constants["outer_bulk_time"]
    ways = [
        np.minimum(ring_all_reduce_time(piece, machines, rate, step), tree_all_reduce_time(piece, machines, rate, step))
        for rate, step in ((quick, hop), (bandwidth, slow))
    ]
    return np.asarray(np.minimum(*ways))


class Operation(NamedTuple):
    """A collective operation: its time, and its bus factor in the sense of nccl-tests."""

    time: Callable[[_Call], Array]
    bus_factor: Callable[[Array], Array]


def _once(group: Array) -> Array:
    return np.asarray((group - 1.0) / group)


_RING = Operation(partial(_reduction_time, ring_time_of=ring_reduce_scatter_time), _once)
OPERATIONS: dict[str, Operation] = {
    "all_reduce": Operation(
        partial(_reduction_time, ring_time_of=ring_all_reduce_time, reduces=True), lambda n: 2.0 * (n - 1.0) / n
    ),
    "all_gather": _RING,
    "reduce_scatter": _RING,
    "all_to_all": Operation(_all_to_all_time, _once),
    "point_to_point": Operation(_point_to_point_time, lambda n: 1.0 + 0.0 * n),
}
"""Collective operations by name, which is also the family of their calibration constants."""


def members_by_tier(group_size: Numeric, stride: Numeric, network: Network) -> Array:
    """Members at each tier of a strided group of ranks, which fills the innermost tier first. Heuristic, this work."""
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
