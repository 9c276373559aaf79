"""Collectives: identities of the equations, groups over tiers, bounds that nothing beats, the same in any company."""

from __future__ import annotations

import dataclasses
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlperf.base import resources
from xlperf.base.arrays import Array
from xlperf.catalog.calibration import declared_constants
from xlperf.equations.network.collectives import (
    OPERATIONS,
    collective_time,
    members_by_tier,
    ring_all_reduce_time,
    ring_reduce_scatter_time,
    ring_traffic,
    tree_all_reduce_time,
)
from xlperf.equations.network.topologies import Network, tree_depth
from xlperf.equations.serving.messages import engine_all_reduce_time

INNER, OUTER = 4.5e11, 5.0e10
IDEAL = {
    "launch_time": 0.0,
    "step_factor": 0.0,
    "low_latency_efficiency": 1.0,
    "bulk_factor": 1.0,
    "middle_share": 1.0,
    "bandwidth_efficiency": 1.0,
    "group_penalty": 0.0,
    "outer_efficiency": 1.0,
    "in_network_efficiency": 1.0,
    "outer_low_latency_efficiency": 1.0,
    "outer_bulk_time": 0.0,
}


def network(rows: int = 1, size: tuple[float, ...] = (8.0, 65536.0), in_network: float = 0.0) -> Network:
    tiers = len(size)
    bandwidths = [INNER, OUTER, OUTER / 2.0][:tiers]
    latencies = [1.5e-6, 5.0e-6, 8.0e-6][:tiers]

    def filled(values: object) -> Array:
        return np.broadcast_to(np.asarray(values, dtype=float), (rows, tiers)).copy()

    return Network(
        filled(size),
        filled(bandwidths),
        filled(latencies),
        filled(np.nan),
        filled([in_network] + [0.0] * (tiers - 1)),
        np.zeros((rows, tiers), dtype=np.int64),
        *(filled(value) for value in (1.0, 1.0, 1.0, 0.0, 1.0)),
    )


def silent(net: Network) -> Network:
    return dataclasses.replace(net, latency=0.0 * net.latency)


def constants(operation: str, rows: int = 1, **changed: float) -> dict[str, Array]:
    declared = declared_constants()[operation]
    values = {name: one.default for name, one in declared.items()}
    values |= {name: value for name, value in changed.items() if name in declared}
    return {name: np.full((rows, 1), value) for name, value in values.items()}


def timed(operation: str, size: object, group: object, stride: object = 1.0, **options: object) -> Array:
    net = options.pop("net", network())
    assert isinstance(net, Network)
    changed = {name: float(str(value)) for name, value in options.items()}
    sizes, groups, strides = (np.atleast_2d(np.asarray(value, dtype=float)) for value in (size, group, stride))
    return collective_time(operation, sizes, groups, strides, net, constants(operation, len(net.size), **changed))


@given(st.floats(1.0, 1e12), st.integers(1, 5000), st.floats(1e6, 1e13), st.floats(0.0, 1.0))
def test_ring_all_reduce_is_a_reduce_scatter_and_an_all_gather(
    size: float, group: int, bandwidth: float, latency: float
) -> None:
    both = ring_reduce_scatter_time(size, group, bandwidth, latency) * 2.0  # the all-gather takes as long
    assert ring_all_reduce_time(size, group, bandwidth, latency) == both
    assert ring_all_reduce_time(size, 1, bandwidth, latency) == 0.0
    assert tree_all_reduce_time(size, 1, bandwidth, latency) == 0.0


def test_all_reduce_of_ten_ranks_by_hand() -> None:
    # 18 steps of 1 us, and 2 x 9/10 of 1 GB over 100 GB/s.
    assert ring_all_reduce_time(1e9, 10, 1e11, 1e-6) == pytest.approx(18e-6 + 0.018)
    # 2 x 4 levels of 1 us, and twice 1 GB over 100 GB/s.
    assert tree_all_reduce_time(1e9, 10, 1e11, 1e-6) == pytest.approx(8e-6 + 0.020)


def test_depth_of_trees_is_exact() -> None:
    ranks = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 8.0, 9.0, 1024.0, 1025.0])
    assert tree_depth(ranks).tolist() == [0.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 10.0, 11.0]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_group_of_one_costs_nothing(operation: str) -> None:
    assert timed(operation, [1e9, 1.0], 1.0).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_unknown_size_or_group_has_an_unknown_time(operation: str) -> None:
    times = timed(operation, [np.nan, 1e6, 1e6], [8.0, np.nan, 8.0])
    assert np.isnan(times).tolist() == [[True, True, False]]


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(ValueError, match="operation must be one of all_reduce, all_gather"):
        timed_constants = constants("all_reduce")
        collective_time("broadcast", 1.0, 8.0, 1.0, network(), timed_constants)


def test_members_spread_over_tiers() -> None:
    net = network(size=(8.0, 64.0, 4096.0))
    groups = np.array([[4.0, 8.0, 64.0, 512.0, 16.0, 8.0, 8.0]])
    strides = np.array([[1.0, 1.0, 1.0, 1.0, 4.0, 8.0, 64.0]])
    members = members_by_tier(groups, strides, net)
    assert members[:, 0].T.tolist() == [
        [4.0, 1.0, 1.0],
        [8.0, 1.0, 1.0],
        [8.0, 8.0, 1.0],
        [8.0, 8.0, 8.0],
        [2.0, 8.0, 1.0],
        [1.0, 8.0, 1.0],
        [1.0, 1.0, 8.0],
    ]
    assert members.prod(axis=0).tolist() == groups.tolist()


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter"])
def test_one_tier_is_a_ring_at_the_bandwidth(operation: str) -> None:
    equation = {
        "all_reduce": ring_all_reduce_time,
        "all_gather": ring_reduce_scatter_time,
        "reduce_scatter": ring_reduce_scatter_time,
    }[operation]
    for net in (network(), network(size=(8.0,))):
        time = timed(operation, 1e9, 8.0, net=net, **IDEAL).item()
        assert time == pytest.approx(float(equation(1e9, 8.0, INNER)), rel=1e-12)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_unused_tiers_do_not_matter(operation: str) -> None:
    sizes, groups = np.geomspace(1.0, 1e10, 6), 4.0
    one = timed(operation, sizes, groups, net=network(size=(8.0,)))
    two = timed(operation, sizes, groups, net=network(size=(8.0, 65536.0)))
    three = timed(operation, sizes, groups, net=network(size=(8.0, 64.0, 65536.0)))
    assert one.tobytes() == two.tobytes() == three.tobytes()


def test_padding_with_copies_of_the_last_tier_does_not_matter() -> None:
    short = network(size=(8.0, 4096.0))
    padded = Network(*(np.concatenate([values, values[:, 1:]], axis=1) for values in dataclasses.astuple(short)))
    for operation in OPERATIONS:
        sizes, groups, strides = np.geomspace(1.0, 1e10, 4), np.array([2.0, 8.0, 64.0, 64.0]), [1.0, 1.0, 1.0, 8.0]
        before, after = (timed(operation, sizes, groups, strides, net=net) for net in (short, padded))
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("group", [2.0, 8.0, 32.0, 512.0])
def test_more_bandwidth_or_a_smaller_message_is_never_slower(operation: str, group: float) -> None:
    sizes = np.geomspace(1.0, 1e11, 40)
    net = network(in_network=1.0)
    faster = dataclasses.replace(net, link_bandwidth=net.link_bandwidth * 1.5)
    base = timed(operation, sizes, group, net=net)
    assert (timed(operation, sizes, group, net=faster) <= base).all()
    assert (np.diff(base) >= 0).all()
    assert (timed(operation, sizes, group, net=silent(net)) <= base).all()


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_nothing_beats_the_injection_bound(operation: str) -> None:
    # What a machine of 8 must send to the other machines through its 8 adapters.
    size, group, inside = 1e10, 64.0, 8.0
    time = timed(operation, size, group, **IDEAL).item()
    machines = group / inside
    bound = {
        "all_reduce": 2.0 * (machines - 1.0) / machines * size / inside / OUTER,
        "all_gather": (machines - 1.0) / machines * size / inside / OUTER,
        "reduce_scatter": (machines - 1.0) / machines * size / inside / OUTER,
        "all_to_all": (group - inside) / group * size / OUTER,
    }[operation]
    assert bound <= time <= 1.5 * bound


def test_a_group_over_machines_uses_the_adapters_of_all_its_members() -> None:
    alone = timed("all_reduce", 1e10, 8.0, 8.0, **IDEAL).item()  # 8 machines, one member each
    together = timed("all_reduce", 1e10, 64.0, 1.0, **IDEAL).item()  # 8 machines, 8 members each
    assert together < 0.2 * alone
    assert alone == pytest.approx(float(ring_all_reduce_time(1e10, 8.0, OUTER)), rel=1e-3)


def test_between_machines_the_faster_protocol_carries_a_message() -> None:
    protocols = IDEAL | {"outer_low_latency_efficiency": 0.1, "outer_bulk_time": 1e-4}
    small, large = timed("all_reduce", [1e3, 1e9], 2.0, 8.0, **protocols)[0]
    assert small == pytest.approx(2.0 * 5e-6 + 1e3 / (0.1 * OUTER), rel=1e-9)  # the low latency, a tenth of the rate
    assert large == pytest.approx(2.0 * (5e-6 + 1e-4) + 1e9 / OUTER, rel=1e-9)
    times = timed("all_reduce", np.geomspace(1e2, 1e10, 50), 16.0, **protocols)[0]
    assert np.all(np.diff(times) > 0.0)


def test_messages_between_two_machines_take_what_nccl_tests_shows() -> None:
    # NVIDIA/nccl-tests issue 309, 16 H100 on 2 machines: 8 KiB, 256 KiB, 1 MiB and 16 MiB
    measured = np.array([32.1e-6, 48.7e-6, 71.9e-6, 185e-6])
    documented = {
        row["constant"]: float(row["value"])
        for row in resources.rows("catalog/documented_constants.csv")
        if (row["family"], row["generation"]) == ("all_reduce", "hopper")
    }
    times = timed("all_reduce", np.array([2.0**13, 2.0**18, 2.0**20, 2.0**24]), 16.0, **documented)[0]
    assert np.all(np.abs(times / measured - 1.0) < 0.35)


def test_tensor_parallel_over_the_slow_tier_hurts() -> None:
    one_adapter = network()
    one_adapter = dataclasses.replace(one_adapter, link_bandwidth=one_adapter.link_bandwidth * [1.0, 0.125])
    times = [timed("all_reduce", 1e8, group, net=one_adapter).item() for group in (2.0, 4.0, 8.0, 16.0, 32.0)]
    assert times[3] > 5.0 * times[2]
    assert all(later > earlier for earlier, later in pairwise(times[2:]))


def test_reduction_in_the_switches_helps_large_groups_only_where_it_is() -> None:
    large = np.array([1e6, 1e8, 1e10])
    with_it, without = (timed("all_reduce", large, 8.0, net=network(in_network=flag), **IDEAL) for flag in (1.0, 0.0))
    np.testing.assert_allclose(with_it / without, (1.0 + 1.0 / 8.0) / (2.0 * 7.0 / 8.0), rtol=1e-9)
    for operation in ("all_gather", "reduce_scatter", "all_to_all"):
        same = [timed(operation, large, 8.0, net=network(in_network=flag)).tobytes() for flag in (1.0, 0.0)]
        assert same[0] == same[1]


def test_low_latency_protocol_serves_small_and_high_bandwidth_large_messages() -> None:
    given = {"launch_time": 1e-5, "step_factor": 0.0, "low_latency_efficiency": 0.2, "bulk_factor": 3.0}
    given |= {"bandwidth_efficiency": 0.8, "group_penalty": 0.0}
    small, large = timed("all_gather", [8.0, 1e9], 2.0, **given)[0]
    assert small == pytest.approx(1e-5 + 4.0 / (0.2 * INNER))
    assert large == pytest.approx(3e-5 + 5e8 / (0.8 * INNER))


def test_point_to_point_crosses_the_outermost_tier_of_the_group() -> None:
    given = {"launch_time": 0.0, "bandwidth_efficiency": 1.0, "outer_efficiency": 1.0}
    inside, outside = (timed("point_to_point", 1e9, 2.0, stride, **given).item() for stride in (4.0, 8.0))
    assert inside == pytest.approx(1.5e-6 + 1e9 / INNER)
    assert outside == pytest.approx(5e-6 + 1e9 / OUTER)


def test_small_all_to_alls_take_as_long_as_one_peer_s_piece() -> None:
    """Each peer has a channel of its own in the low-latency protocol; larger messages share the link."""
    held = IDEAL | {"launch_time": 1e-5, "low_latency_efficiency": 0.01, "bulk_factor": 3.0, "middle_share": 0.5}
    piece = 8192.0
    times = [timed("all_to_all", group * piece, group, **held).item() for group in (2.0, 4.0, 8.0)]
    assert times == pytest.approx([1e-5 + piece / (0.01 * INNER)] * 3)
    middle, bulk = 4e6, 1e9
    assert timed("all_to_all", middle, 8.0, **held).item() == pytest.approx(2e-5 + 0.875 * middle / (0.5 * INNER))
    assert timed("all_to_all", bulk, 8.0, **held).item() == pytest.approx(3e-5 + 0.875 * bulk / INNER)


def test_all_to_all_sends_to_all_tiers_at_once() -> None:
    quiet = silent(network())
    inside = timed("all_to_all", 1e9, 8.0, net=quiet, **IDEAL).item()
    assert inside == pytest.approx(float(ring_traffic(1e9, 8.0)) / INNER)
    outside = timed("all_to_all", 1e9, 16.0, net=quiet, **IDEAL).item()
    assert outside == pytest.approx(0.5e9 / OUTER)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_one_row_is_the_same_among_a_thousand(operation: str) -> None:
    random = np.random.default_rng(5)
    net = network(1000, size=(8.0, 64.0, 4096.0), in_network=1.0)
    net = dataclasses.replace(net, link_bandwidth=net.link_bandwidth * random.uniform(0.1, 3.0, (1000, 3)))
    size = 2.0 ** random.uniform(0.0, 34.0, (1000, 5))
    group, stride = (2.0 ** random.integers(0, 7, (1000, 5)) for _ in range(2))
    many = collective_time(operation, size, group, stride, net, constants(operation, 1000))
    for row in (0, 123, 999):
        one = slice(row, row + 1)
        alone_net = Network(*(values[one] for values in dataclasses.astuple(net)))
        alone = collective_time(operation, size[one], group[one], stride[one], alone_net, constants(operation))
        assert alone.tobytes() == many[one].tobytes()


def test_engines_have_no_kernels_of_their_own_for_more_than_two_cards_in_slots() -> None:
    slots = network()
    slots = dataclasses.replace(slots, link_bandwidth=np.array([[3.1e10, 2.5e10]]))
    kernels = {"all_reduce": constants("all_reduce"), "engine_all_reduce": constants("engine_all_reduce")}
    for group, net, alike in ((2.0, slots, False), (4.0, slots, True), (4.0, network(), False)):
        size, ranks = np.array([[1e4]]), np.array([[group]])
        engine = engine_all_reduce_time(size, ranks, 1.0, net, kernels).item()
        library = collective_time("all_reduce", size, ranks, 1.0, net, kernels["all_reduce"]).item()
        assert (engine == library) == alike and engine <= library


def test_engines_wait_for_the_host_between_machines_alone() -> None:
    constants_of = {name: constants(name) for name in ("all_reduce", "engine_all_reduce")}
    waiting = {**constants_of["engine_all_reduce"], "outer_time": np.array([[1e-3]])}
    net = network()
    for group, size in product((1.0, 2.0, float(net.size[0, 0]), 2.0 * float(net.size[0, 0])), (1e4, 1e9)):
        before, after = (
            engine_all_reduce_time(np.array([[size]]), np.array([[group]]), 1.0, net, {**constants_of, **each}).item()
            for each in ({}, {"engine_all_reduce": waiting})
        )
        assert after == (max(before, 1e-3) if group > net.size[0, 0] else before)
