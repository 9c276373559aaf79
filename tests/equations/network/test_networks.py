"""Networks of plans: the block of a torus that a plan stands on, adapters that are shared, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from xlperf.calibrate.fitter import FittedConstant, calibration_table, joined_tables
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.catalog_arrays import network_of
from xlperf.equations.network.topologies import torus_block

HEADER = [
    "network",
    "tier",
    "size",
    "topology",
    "dimensions",
    "link bandwidth (GB/s)",
    "latency (us)",
    "accelerators per adapter",
]
NODE = ["switch", "", 450, 1.5, 1]


def catalog_of(*rows: list[object]) -> Catalog:
    table = table_from_rows("networks", HEADER, rows, lambda row, column: f"networks!{row}{column}")
    return load_catalog().with_tables([table])


def on(catalog: Catalog, *plans: tuple[str, int]) -> tuple[object, list[str]]:
    """Network arrays, and the reasons why plans are refused."""
    rows = np.array([catalog.networks.index(name) for name, _ in plans])
    network, rules = network_of(catalog, rows, np.array([float(count) for _, count in plans]))
    reasons = []
    for row in range(len(plans)):
        said = [
            remark.sentence.format(*(values[row] for values in remark.values))
            for remark in rules
            if bool(remark.rows[row])
        ]
        reasons.append("; ".join(said))
    return network, reasons


def plan(network: str, accelerators: int = 64, **values: object) -> Table:
    row = {
        "model": "Llama-2-7B",
        "accelerator": "H100-SXM-80GB",
        "network": network,
        "num_accelerators": accelerators,
        "tensor_parallel": 4,
        **values,
    }
    return table_from_rows("training", list(row), [list(row.values())], lambda row, column: f"training!{row}{column}")


@pytest.mark.parametrize(
    ("places", "axes", "machine", "rings", "expected"),
    [
        (64, 3, (), True, ((4, 4, 4), 3)),
        (8960, 3, (), True, ((16, 20, 28), 3)),  # no whole cube: the nearest to it
        (16, 2, (16, 16), True, ((4, 4), 0)),  # part of a machine wired for good: lines
        (128, 2, (16, 16), True, ((16, 8), 1)),  # all round one axis: a ring, and first
        (256, 2, (16, 16), True, ((16, 16), 2)),
        (256, 2, (16, 16), False, ((16, 16), 0)),
        (17, 2, (16, 16), True, ((16, 16), 2)),  # stands on no block: on the whole machine
        (7, 3, (), True, ((1, 1, 7), 3)),
        (8, 1, (), True, ((8,), 1)),
    ],
)
def test_a_plan_stands_on_the_most_cubic_block(
    places: int, axes: int, machine: tuple[int, ...], rings: bool, expected: tuple[tuple[int, ...], int]
) -> None:
    assert torus_block(places, axes, machine, rings) == expected


def test_lengths_rings_and_links_of_tiers() -> None:
    catalog = catalog_of(
        ["wired", 1, 256, "torus", "16x16", 180, 1, 1],
        ["fitted", 1, 4096, "torus", "3D", 270, 1, 1],
        ["cubes", 1, 4096, "torus", "3D of 4", 270, 1, 1],
        ["blank", 1, 64, "mesh", "", 100, 1, 1],
        ["nodes", 1, 8, "fully-connected", "", 448, 1, 1],
        ["nodes", 2, 64, "ring", "", 50, 5, 1],
        ["fly", 1, 8, *NODE],
        ["fly", 2, 1056, "dragonfly", "4x8x33", 50, 2, 1],
    )
    network, reasons = on(catalog, ("wired", 64), ("fitted", 64), ("blank", 64), ("nodes", 64), ("fly", 64))
    cubes, _ = on(catalog, ("cubes", 8), ("cubes", 64), ("cubes", 256))
    assert cubes.first_length[:, 0].tolist() == [2, 4, 4]
    assert cubes.third_length[:, 0].tolist() == [2, 4, 8]
    assert cubes.num_rings[:, 0].tolist() == [0, 3, 3]
    assert reasons == [""] * 5
    lengths = np.stack([network.first_length, network.second_length, network.third_length], axis=-1)
    assert lengths[:4, 0].tolist() == [[8, 8, 1], [4, 4, 4], [8, 8, 1], [1, 1, 1]]
    assert lengths[3:, 1].tolist() == [[8, 1, 1], [4, 8, 33]]
    assert network.num_rings[:, 0].tolist() == [0, 3, 0, 0, 0]
    assert network.num_rings[3, 1] == 1.0
    assert network.num_links[:, 0].tolist() == [4, 6, 4, 7, 1]
    assert network.num_links[3:, 1].tolist() == [2, 4]


def test_shared_adapters_give_each_accelerator_its_share() -> None:
    shared = catalog_of(["pair", 1, 8, *NODE], ["pair", 2, 1024, "fat-tree", "", 50, 5, 2])
    alone = catalog_of(["pair", 1, 8, *NODE], ["pair", 2, 1024, "fat-tree", "", 25, 5, 1])
    times = [evaluate(plan("pair"), catalog)["step_time"] for catalog in (shared, alone)]
    assert np.isfinite(times[0]).all()
    assert times[0].tobytes() == times[1].tobytes()


@pytest.mark.parametrize(
    ("topology", "dimensions", "words"),
    [
        ("torus", "4x4", "network odd: tier 1 has dimensions 4x4, but joins 64"),
        ("torus", "cube", 'network odd: tier 1 has dimensions "cube": write lengths as 4x4x4, or 3D of 4 where cubes'),
        (
            "dragonfly",
            "",
            "network odd: tier 1 is a dragonfly: its dimensions must say accelerators x routers x groups",
        ),
        ("dragonfly", "8x8", "network odd: tier 1 is a dragonfly, which does not have 2 dimensions"),
        ("ring", "8x8", "network odd: tier 1 is a ring, which does not have 2 dimensions"),
    ],
)
def test_dimensions_that_cannot_be_are_a_reason(topology: str, dimensions: str, words: str) -> None:
    catalog = catalog_of(["odd", 1, 64, topology, dimensions, 100, 1, 1])
    results = evaluate(plan("odd"), catalog)
    assert str(results["reason"][0]).startswith(words)
    assert np.isnan(results["step_time"]).all()


def test_machines_that_do_not_fill_a_tier_are_a_reason() -> None:
    catalog = catalog_of(["odd", 1, 8, *NODE], ["odd", 2, 100, "torus", "", 50, 5, 1])
    assert on(catalog, ("odd", 64))[1] == [
        "network odd: tier 2 joins 12.5 machines of the tier inside it, not a whole number"
    ]


def test_every_topology_takes_a_plan_and_a_faster_one_is_not_slower() -> None:
    """The same plan on each topology, alone and together: the same bits, and a switch is the fastest."""
    kinds = ["switch", "fat-tree", "fully-connected", "ring", "torus", "mesh", "dragonfly", "rail"]
    rows = [[kind, 1, 64, kind, "2x4x8" if kind == "dragonfly" else "", 300, 0, 1] for kind in kinds]
    catalog = catalog_of(*rows)
    plans = [plan(kind) for kind in kinds]
    times = np.array([evaluate(one, catalog)["step_time"][0] for one in plans])
    assert np.isfinite(times).all()
    row = {"model": "Llama-2-7B", "accelerator": "H100-SXM-80GB", "num_accelerators": 64, "tensor_parallel": 4}
    together = table_from_rows(
        "training", ["network", *row], [[kind, *row.values()] for kind in kinds], lambda row, column: f"{row}{column}"
    )
    assert evaluate(together, catalog)["step_time"].tobytes() == times.tobytes()
    assert (times >= times[0]).all()
    by_name = dict(zip(kinds, times.tolist(), strict=True))
    assert by_name["fat-tree"] == by_name["rail"] == by_name["switch"]
    assert by_name["mesh"] >= by_name["torus"] > by_name["switch"]


def test_collectives_for_each_tensor_start_more_often() -> None:
    def step_of(tensors: float, **values: object) -> Table:
        exposed = {
            "training_calls": ("tensors_per_layer", tensors),
            "training_software": ("data_parallel_overlap", 0.0),
        }
        constants = [
            FittedConstant(family, "any", "any", "any", *constant, "", 0, math.nan, "", "")
            for family, constant in exposed.items()
        ]
        catalog = load_catalog()
        table = joined_tables(catalog.tables["calibration"], calibration_table(constants))
        one = plan("DGX-H100", 256, tensor_parallel=1, software="some", global_batch_size=256, **values)
        return evaluate(one, catalog.with_tables([table]))

    together, never, apart = (step_of(tensors)["time_data_parallel"][0] for tensors in (0.0, 1.0 / 32.0, 6.0))
    assert together == never
    # Of 192 calls each of gathering and reducing, a ring of 256 ranks takes 255 hops of 5 us.
    assert apart - together == pytest.approx(2.0 * 191.0 * 255.0 * 5e-6, rel=0.15)
    alone = [step_of(tensors, zero_stage=0)["time_data_parallel"][0] for tensors in (0.0, 6.0)]
    assert 0.0 < alone[1] - alone[0] < apart - together  # trees of all-reduces have fewer levels
