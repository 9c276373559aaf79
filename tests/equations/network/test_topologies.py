"""Topologies: every algorithm against a simulator of links, bounds that nothing beats, identities, tiers of them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from equations.network.test_collectives import IDEAL, constants
from hypothesis import given
from hypothesis import strategies as st
from network_simulator import (
    Dragonfly,
    Torus,
    direct_on_links,
    exchange_on_torus,
    gather_on_torus,
    reversed_in_time,
    ring_on_switch,
    simulate,
    sums,
)

from xlperf.base.arrays import Array
from xlperf.catalog.schema import table_schema
from xlperf.equations.network import topologies as topology
from xlperf.equations.network.collectives import OPERATIONS, Call, collective_time, collective_times
from xlperf.equations.network.topologies import (
    DRAGONFLY,
    FAT_TREE,
    FULLY_CONNECTED,
    MESH,
    RAIL,
    RING,
    SWITCH,
    TORUS,
    Network,
    _direct,
    _dragonfly_exchange_load,
    _dragonfly_neighbour_load,
    dragonfly_hops,
    torus_distances,
    torus_exchange_load,
    torus_gather_load,
    torus_steps,
)
from xlperf.equations.serving.messages import quick_all_reduce_time

BANDWIDTH, LATENCY, SIZE = 6.0e10, 1.0e-6, 2.4e6


def tiers(
    *shapes: tuple[int, float, Sequence[float], int], bandwidth: Sequence[float] = (BANDWIDTH, BANDWIDTH / 8.0)
) -> Network:
    """Tiers of (topology, size, lengths, rings), innermost first."""
    rows = []
    inner = 1.0
    for index, (code, size, lengths, rings) in enumerate(shapes):
        links = 1.0
        if code == FULLY_CONNECTED:
            links = size / inner - 1.0
        elif code in topology.ON_AXES:
            links = 2.0 * len(lengths)
        elif code == DRAGONFLY:
            links = lengths[0]
        padded = [*lengths, 1.0, 1.0, 1.0][:3]
        rows.append([size, bandwidth[index], LATENCY * (index + 1), np.nan, 0.0, code, *padded, rings, links])
        inner = size
    values = [np.array([column], dtype=float) for column in zip(*rows, strict=True)]
    values[5] = values[5].astype(np.int64)
    return Network(*values)


def torus(*lengths: int, rings: int | None = None) -> Network:
    code = MESH if rings == 0 else TORUS
    return tiers((code, float(np.prod(lengths)), lengths, len(lengths) if rings is None else rings))


def ideal(operation: str, rows: int = 1) -> dict[str, Array]:
    return constants(operation, rows, **{**IDEAL, "step_factor": 1.0})


def timed(operation: str, net: Network, group: float, stride: float = 1.0, size: float = SIZE) -> float:
    one = [np.array([[value]]) for value in (size, group, stride)]
    return float(collective_time(operation, *one, net, ideal(operation)).item())


def groups_of(machine: Torus, group: int, stride: int) -> list[list[int]]:
    """All groups of ranks ``stride`` apart that fill the machine."""
    block = group * stride
    return [
        [base + offset + stride * member for member in range(group)]
        for base in range(0, machine.size, block)
        for offset in range(stride)
    ]


# Lengths, rings, group, stride; and by how much simulated links may be slower: they wait for the first chunk of a part.
ON_TORUS = [
    ((8,), 1, 8, 1, 0.0),
    ((5,), 1, 5, 1, 0.0),
    ((2,), 1, 2, 1, 0.0),
    ((8,), 0, 8, 1, 0.0),
    ((8,), 1, 4, 1, 0.0),  # a contiguous part of a ring is a line
    ((8,), 1, 4, 2, 0.0),  # every other rank of a ring: a ring over two links each, shared by two groups
    ((8,), 1, 2, 4, 0.0),
    ((4, 4), 2, 16, 1, 0.0),
    ((4, 4), 2, 4, 4, 0.0),  # strided lines: the columns
    ((4, 4), 2, 8, 1, 0.0),  # a contiguous block of two rows: rings along them, a line across
    ((4, 4), 2, 8, 2, 0.08),
    ((3, 3), 0, 9, 1, 0.0),
    ((4, 3), 2, 12, 1, 0.0),
    ((8, 4), 2, 32, 1, 0.0),
    ((4, 2), 0, 8, 1, 0.0),
    ((4, 4, 4), 3, 64, 1, 0.0),
    ((2, 2, 2), 3, 8, 1, 0.0),
    ((4, 4, 2), 0, 32, 1, 0.0),
    ((4, 4, 4), 3, 16, 4, 0.0),  # strided planes
    ((4, 4, 4), 3, 4, 16, 0.0),
]


@pytest.mark.parametrize(("lengths", "rings", "group", "stride", "slack"), ON_TORUS)
def test_gathering_on_axes_takes_what_links_take(
    lengths: tuple[int, ...], rings: int, group: int, stride: int, slack: float
) -> None:
    machine = Torus(lengths, rings)
    groups = groups_of(machine, group, stride)
    messages = gather_on_torus(machine, groups, SIZE)
    backwards = reversed_in_time(messages)
    owned = {(message.chunk[0], message.chunk) for message in messages}
    chunks = {chunk for _, chunk in owned}
    wanted = {(rank, chunk) for ranks in groups for rank in ranks for chunk in chunks if chunk[0] in ranks}
    for ranks in groups:
        assert all(addends == set(ranks) for chunk, addends in sums(backwards).items() if chunk[0] in ranks)

    def links(latency: float, share: float = 1.0) -> tuple[float, float]:
        """Simulated all-gather and reduce-scatter."""
        rate = BANDWIDTH / (2.0 * len(lengths)) / share
        gathered, held = simulate(messages, owned, lambda _: rate, latency)
        assert held == wanted
        return gathered, simulate(backwards, (), lambda _: rate, latency)[0]

    net = torus(*lengths, rings=rings)
    silent = dataclasses.replace(net, latency=0.0 * net.latency)
    sending, hopping = timed("all_gather", silent, group, stride), timed("all_gather", net, group, stride, 1e-6)
    for simulated in links(0.0):
        assert sending * (1.0 - 1e-9) <= simulated <= (1.0 + slack) * sending * (1.0 + 1e-9)
    for simulated in links(LATENCY, share=1e-9):  # so much bandwidth that hops are all
        assert simulated == pytest.approx(hopping, rel=1e-6)
    time = timed("all_gather", net, group, stride)
    for simulated in links(LATENCY):  # while one chunk is on its way the link sends another
        assert max(sending, hopping) * (1.0 - 1e-9) <= simulated <= (1.0 + slack) * time * (1.0 + 1e-9)
    assert timed("reduce_scatter", net, group, stride) == time
    assert timed("all_reduce", net, group, stride) == pytest.approx(2.0 * time, rel=1e-12)


@pytest.mark.parametrize(
    ("lengths", "rings", "slack"),
    [
        ((8,), 1, 0.05),
        ((16,), 1, 0.05),
        ((16, 2), 2, 0.05),
        ((5,), 1, 0.05),
        ((2,), 1, 0.01),
        ((8,), 0, 0.1),
        ((4, 4), 2, 0.2),
        ((6, 3), 2, 0.2),
        ((4, 4), 0, 0.2),
        ((3, 3, 3), 3, 0.25),
        ((4, 2, 2), 3, 0.2),
    ],
)
def test_exchange_on_axes_takes_what_the_most_crowded_link_takes(
    lengths: tuple[int, ...], rings: int, slack: float
) -> None:
    machine = Torus(lengths, rings)
    everyone = [list(range(machine.size))]
    messages = exchange_on_torus(machine, everyone, SIZE, pieces=4)
    link = BANDWIDTH / (2.0 * len(lengths))
    simulated, held = simulate(messages, {(one.source, one.chunk) for one in messages}, lambda _: link, 0.0)
    assert {(one.target, one.chunk) for one in messages} <= held
    net = torus(*lengths, rings=rings)
    net = dataclasses.replace(net, latency=0.0 * net.latency)
    time = timed("all_to_all", net, machine.size)
    assert time * (1.0 - 1e-9) <= simulated <= (1.0 + slack) * time


def test_exchange_on_a_wrapped_ring_of_sixteen() -> None:
    """Issue 36, D32: 1 GiB each, both directions of 45 GB/s: n S / (8 B) = 47.7 ms at full rate."""
    ring = tiers((RING, 16.0, (16,), 1), bandwidth=(90e9,))
    ring = dataclasses.replace(ring, num_links=np.array([[2.0]]), latency=0.0 * ring.latency)
    assert timed("all_to_all", ring, 16, size=2.0**30) == pytest.approx(16 * 2.0**30 / (8 * 45e9), rel=1e-12)


@pytest.mark.parametrize("group", [2, 3, 8])
def test_fully_connected_ranks_send_over_the_link_of_each_peer(group: int) -> None:
    machine = 8
    messages = direct_on_links(list(range(group)), SIZE)
    link = BANDWIDTH / (machine - 1.0)
    simulated, held = simulate(messages, {(rank, (rank,)) for rank in range(group)}, lambda _: link, LATENCY)
    assert len(held) == group * group
    net = tiers((FULLY_CONNECTED, machine, (), 0))
    for operation in ("all_gather", "reduce_scatter", "all_to_all"):
        assert timed(operation, net, group) == pytest.approx(simulated, rel=1e-12)
    assert timed("all_reduce", net, group) == pytest.approx(2.0 * simulated, rel=1e-12)
    assert timed("point_to_point", net, group) == pytest.approx(LATENCY + SIZE / link, rel=1e-12)


@pytest.mark.parametrize("group", [2, 7, 16])
def test_ring_on_a_switch(group: int) -> None:
    messages = ring_on_switch(group, SIZE)
    simulated, held = simulate(messages, {(rank, (rank,)) for rank in range(group)}, lambda _: BANDWIDTH, LATENCY)
    assert len(held) == group * group
    for code in (SWITCH, FAT_TREE, RAIL):
        net = tiers((code, 16.0, (), 0))
        assert timed("all_gather", net, group) == pytest.approx(simulated, rel=1e-9)
        assert timed("all_reduce", net, group) == pytest.approx(2.0 * simulated, rel=1e-9)


@pytest.mark.parametrize("shape", [(2, 4, 9), (1, 3, 4), (2, 2, 5)])
def test_exchange_on_a_dragonfly_takes_what_its_most_crowded_link_takes(shape: tuple[int, int, int]) -> None:
    messages = Dragonfly(*shape).exchange(SIZE)
    carried: Counter[object] = Counter()
    for message in messages:
        for link in (link for stage in message.stages for link in stage):
            carried[link] += message.size
    time = float(_dragonfly_exchange_load(np.prod(shape), 1.0, *shape, shape[0])) * SIZE / BANDWIDTH
    assert max(carried.values()) / BANDWIDTH == pytest.approx(time, rel=1e-9)
    simulated, held = simulate(messages, {(one.source, one.chunk) for one in messages}, lambda _: BANDWIDTH, 0.0)
    assert {(one.target, one.chunk) for one in messages} <= held
    assert time * (1.0 - 1e-9) <= simulated <= 1.7 * time  # in random order messages wait for each other


def test_neighbours_on_a_dragonfly_share_the_links_between_routers_and_groups() -> None:
    # 4 accelerators, 8 routers, 33 groups: one link between groups.
    loads = _dragonfly_neighbour_load([8.0, 8.0, 4.0, 1056.0, 33.0, 8.0], [1.0, 4.0, 1.0, 1.0, 32.0, 2.0], 4, 8, 33, 4)
    # A ring of neighbours is alone on every link; four ranks of a router send to the next one, by all 7 others;
    # 32 ranks of a group send to the next group, by all others: twice the global links.
    assert loads.tolist() == [1.0, pytest.approx(8.0 / 7.0), 1.0, 1.0, 2.0, 1.0]
    # With a quarter of the global links, all that a group sends over them takes four times as long.
    tapered = _dragonfly_neighbour_load(33.0, 32.0, 4, 8, 33, 1)
    assert float(tapered) == 8.0
    assert float(_dragonfly_exchange_load(1056.0, 1.0, 4, 8, 33, 1)) == pytest.approx(4.0 * 32.0 / 33.0)
    assert dragonfly_hops([4.0, 8.0, 64.0, 33.0], [1.0, 1.0, 1.0, 32.0], 4, 8).tolist() == [1.0, 2.0, 4.0, 4.0]


def test_a_torus_by_hand() -> None:
    # 4 x 4 x 4 of six links: 16 neighbours are a plane of two rings of 4, four of its six links: 15/16 x 6/4 of a byte.
    assert float(torus_gather_load(16, 1, 4, 4, 4, 3, 6)) == pytest.approx(15.0 / 16.0 * 6.0 / 4.0)
    assert float(torus_gather_load(64, 1, 4, 4, 4, 3, 6)) == pytest.approx(63.0 / 64.0)
    assert float(torus_steps(64, 1, 4, 4, 4, 3)) == 6.0
    # A ring of 16: 16/8 of a byte over the links, of which one way is half of one accelerator's.
    assert float(torus_exchange_load(16, 1, 16, 1, 1, 1, 2)) == 16.0 / 8.0 * 2.0
    # On lines all that crosses the middle goes over one link.
    assert float(torus_exchange_load(16, 1, 16, 1, 1, 0, 2)) == 16.0 / 4.0 * 2.0
    # Rank 0 to rank 4 + 4 * (3 + 4 * 2): a ring step back on the second axis, two on the third, half each way.
    steps, longest = torus_distances(4.0 * (3.0 + 4.0 * 2.0), 4, 4, 4, 3)
    assert (float(steps), float(longest)) == (3.0, 1.0)


def test_codes_are_those_of_the_sheet() -> None:
    choices = table_schema("networks").by_name["topology"].choices
    named = {name.replace("-", "_").upper(): code for code, name in enumerate(choices)}
    assert {name: getattr(topology, name) for name in named} == named


LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=3)


@given(LENGTHS, st.booleans())
def test_nothing_on_axes_beats_injection_and_bisection(lengths: list[int], wrapped: bool) -> None:
    net = torus(*lengths, rings=len(lengths) if wrapped else 0)
    net = dataclasses.replace(net, latency=0.0 * net.latency)
    size = int(np.prod(lengths))
    if size == 1:
        return
    injection = (size - 1.0) / size * SIZE / BANDWIDTH
    link = BANDWIDTH / (2.0 * len(lengths))
    # A corner of a mesh has one link per axis; a machine falls in two halves at its longest axis.
    longest = max(lengths)
    corner = (size - 1.0) / size * SIZE / (link * sum((2.0 if wrapped else 1.0) for length in lengths if length > 1))
    near, far = longest // 2 * size / longest, (longest - longest // 2) * size / longest
    cut = size / longest * (2.0 if wrapped else 1.0) * link
    for operation, rounds in (("all_gather", 1.0), ("reduce_scatter", 1.0), ("all_reduce", 2.0)):
        time = timed(operation, net, size)
        assert time >= rounds * max(injection, corner) * (1.0 - 1e-9)
    exchange = timed("all_to_all", net, size)
    assert exchange >= max(injection, near * far * SIZE / size / cut) * (1.0 - 1e-9)


@given(st.integers(2, 8), st.integers(2, 64))
def test_nothing_fully_connected_beats_the_links_to_the_peers(group: int, machine: int) -> None:
    machine = max(group, machine)
    steps, slowdown = _direct("all_gather", np.array(float(group)), np.array(machine - 1.0))
    assert steps == 1.0 and slowdown >= 1.0 - 1e-12
    assert float(slowdown) == pytest.approx((machine - 1.0) / (group - 1.0))


@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 9), st.integers(0, 4))
def test_nothing_on_a_dragonfly_beats_injection_and_its_global_links(p: int, a: int, g: int, turn: int) -> None:
    g = min(g, a * p + 1)
    size = float(p * a * g)
    load = float(_dragonfly_exchange_load(size, 1.0, p, a, g, p))
    assert load >= (size - 1.0) / size * (1.0 - 1e-12)
    if g > 1:  # all that leaves a group, over all its global links
        assert load >= (g - 1.0) / g * (1.0 - 1e-12)
    assert float(_dragonfly_neighbour_load(size, 2.0**turn, p, a, g, p)) >= 1.0


SHAPES = [
    tiers((RING, 16.0, (16.0,), 1)),
    tiers((TORUS, 16.0, (4.0, 4.0), 2)),
    tiers((MESH, 16.0, (4.0, 4.0), 0)),
    tiers((FULLY_CONNECTED, 16.0, (), 0)),
    tiers((DRAGONFLY, 16.0, (2.0, 2.0, 4.0), 0)),
    tiers((RAIL, 16.0, (), 0)),
    tiers((TORUS, 16.0, (4.0, 4.0), 2), (FAT_TREE, 256.0, (), 0)),
    tiers((FULLY_CONNECTED, 4.0, (), 0), (TORUS, 64.0, (4.0, 4.0), 2)),
    tiers((SWITCH, 4.0, (), 0), (DRAGONFLY, 64.0, (4.0, 4.0, 4.0), 0)),
    tiers((SWITCH, 4.0, (), 0), (RAIL, 64.0, (), 0)),
    tiers((SWITCH, 4.0, (), 0), (FULLY_CONNECTED, 32.0, (), 0)),
]
EVERY_SHAPE = pytest.mark.parametrize("net", SHAPES)


@EVERY_SHAPE
@pytest.mark.parametrize("operation", OPERATIONS)
def test_more_bandwidth_or_less_to_send_is_never_slower_and_one_rank_costs_nothing(
    operation: str, net: Network
) -> None:
    faster = dataclasses.replace(net, link_bandwidth=1.5 * net.link_bandwidth)
    assert timed(operation, net, 1.0) == 0.0
    for group, stride in ((2.0, 1.0), (8.0, 1.0), (4.0, 4.0), (16.0, 1.0)):
        times = [timed(operation, net, group, stride, size) for size in (1.0, 1e4, 1e6, 1e9)]
        assert times == sorted(times)
        assert timed(operation, faster, group, stride) <= timed(operation, net, group, stride)
        assert times[-1] >= 0.5 * (1.0 if operation == "point_to_point" else (group - 1.0) / group) * 1e9 / BANDWIDTH


@EVERY_SHAPE
@pytest.mark.parametrize("operation", OPERATIONS)
def test_unused_outer_tiers_do_not_matter(operation: str, net: Network) -> None:
    first = Network(*(values[:, :1] for values in dataclasses.astuple(net)))
    inside = float(first.size.item())
    for group in (2.0, inside):
        assert timed(operation, net, group) == timed(operation, first, group)


def test_a_hierarchy_goes_tier_by_tier() -> None:
    # A torus of 16 machines of 4: reduce-scatter inside, then on a quarter over the torus.
    net = tiers((SWITCH, 4.0, (), 0), (TORUS, 64.0, (4.0, 4.0), 2))
    inside = 3.0 * LATENCY + 0.75 * SIZE / BANDWIDTH
    outside = 4.0 * 2.0 * LATENCY + 15.0 / 16.0 * SIZE / 4.0 / (BANDWIDTH / 8.0)
    for operation, rounds in (("all_gather", 1.0), ("reduce_scatter", 1.0), ("all_reduce", 2.0)):
        assert timed(operation, net, 64.0) == pytest.approx(rounds * (inside + outside), rel=1e-12)


@EVERY_SHAPE
def test_all_reduce_is_never_slower_than_its_two_halves(net: Network) -> None:
    for group, stride in ((2.0, 1.0), (8.0, 1.0), (4.0, 4.0), (16.0, 1.0)):
        for size in (1e3, 1e6, 1e9):
            halves = timed("reduce_scatter", net, group, stride, size) + timed("all_gather", net, group, stride, size)
            whole = timed("all_reduce", net, group, stride, size)
            assert whole <= halves * (1.0 + 1e-12)
            if net.size.shape[1] == 1:
                assert whole == pytest.approx(halves, rel=1e-12)


@EVERY_SHAPE
def test_kernels_of_engines_send_over_the_links_that_there_are(net: Network) -> None:
    """Two GPUs of eight MI300X: 47.7 GB/s of bus bandwidth over their one link of 64 (4 GiB, ml-engineering)."""
    full = {"bandwidth_efficiency": np.ones((1, 1)), "launch_time": np.zeros((1, 1))}
    silent = dataclasses.replace(net, latency=0.0 * net.latency)
    for group in {2.0, net.size[0, 0] / 2.0, net.size[0, 0]}:
        engine = quick_all_reduce_time(SIZE, [[group]], silent, full).item()
        assert engine == pytest.approx(2.0 * timed("all_gather", silent, group), rel=1e-12)


def test_all_to_all_on_a_torus_grows_with_its_longest_ring() -> None:
    times = [timed("all_to_all", torus(*lengths), 64.0, size=1e9) for lengths in ((4, 4, 4), (8, 4, 2), (16, 2, 2))]
    assert times[1] == pytest.approx(2.0 * times[0], rel=1e-3)
    assert times[2] == pytest.approx(4.0 * times[0], rel=1e-3)
    assert timed("all_to_all", torus(4, 4, 4, rings=0), 64.0, size=1e9) == pytest.approx(2.0 * times[0], rel=1e-3)


def test_a_pair_on_a_mesh_of_eight_has_one_link() -> None:
    net = tiers((FULLY_CONNECTED, 8.0, (), 0))
    assert timed("all_gather", net, 2.0, size=1e9) == pytest.approx(0.5e9 / (BANDWIDTH / 7.0), rel=1e-3)
    assert timed("all_gather", net, 8.0, size=1e9) == pytest.approx(0.875e9 / BANDWIDTH, rel=1e-3)


def test_neighbours_in_a_block_are_faster_than_ranks_far_apart() -> None:
    net = torus(16, 16)
    block, strided = timed("all_gather", net, 4.0, 1.0), timed("all_gather", net, 4.0, 4.0)
    assert strided == pytest.approx(2.0 * timed("all_gather", torus(4, 4), 4.0, 1.0) * 2.0, rel=0.3)
    assert strided > block


def test_rails_lead_to_the_same_place_in_other_machines() -> None:
    rails = tiers((SWITCH, 4.0, (), 0), (RAIL, 64.0, (), 0), bandwidth=(BANDWIDTH, BANDWIDTH))
    switch = tiers((SWITCH, 4.0, (), 0), (FAT_TREE, 64.0, (), 0), bandwidth=(BANDWIDTH, BANDWIDTH))
    for operation in OPERATIONS:
        assert timed(operation, rails, 16.0, 4.0) == timed(operation, switch, 16.0, 4.0)
    # 60 of 64 parts leave; three quarters of them are handed on inside, beside the 3 parts for the neighbours.
    through = (3.0 + 0.75 * 60.0) / 64.0 * 1e9 / BANDWIDTH
    assert timed("all_to_all", rails, 64.0, size=1e9) == pytest.approx(
        max(through, 60.0 / 64.0 * 1e9 / BANDWIDTH), rel=1e-3
    )
    assert timed("point_to_point", rails, 8.0, 3.0) == pytest.approx(3.0 * LATENCY + SIZE / BANDWIDTH)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_rows_of_all_topologies_together_are_the_rows_alone(operation: str) -> None:
    two = [net for net in SHAPES if net.size.shape[1] == 2]
    two += [tiers((SWITCH, 8.0, (), 0), (FAT_TREE, 512.0, (), 0))]
    random = np.random.default_rng(3)
    size = 2.0 ** random.uniform(3.0, 33.0, (len(two), 4))
    group, stride = (2.0 ** random.integers(0, 5, (len(two), 4)) for _ in range(2))
    together = Network(*(np.concatenate(values) for values in zip(*map(dataclasses.astuple, two), strict=True)))
    many = collective_time(operation, size, group, stride, together, ideal(operation, len(two)))
    assert np.isfinite(many).all()
    for row, net in enumerate(two):
        one = slice(row, row + 1)
        alone = collective_time(operation, size[one], group[one], stride[one], net, ideal(operation))
        assert alone.tobytes() == many[one].tobytes()


def test_calls_beside_each_other_take_the_time_of_each_alone() -> None:
    random = np.random.default_rng(4)
    kernels = {operation: {**ideal(operation), "launch_time": np.array([[1e-6 * at]])}
               for at, operation in enumerate(OPERATIONS)}  # fmt: skip
    for net in SHAPES:
        calls = {
            f"{operation} {at}": Call(operation, *(2.0 ** random.integers(0, most, (1, 2)) for most in (30, 5, 4)))
            for operation in OPERATIONS
            for at in range(3)
        }
        for name, time in collective_times(calls, net, kernels).items():
            call = calls[name]
            alone = [collective_time(*(call[0], *(values[:, [at]] for values in call[1:])), net, kernels[call[0]])
                     for at in (0, 1)]  # fmt: skip
            assert np.concatenate(alone, axis=1).tobytes() == time.tobytes(), (name, net.topology)
