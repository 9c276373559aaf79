"""Studies of hardware: chiplets, technology nodes, memories."""

from __future__ import annotations

import math

import numpy as np
from study_samples import cell, outcome, sheet

from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.table import Table
from xlperf.studies.outcome import peak_rates


def test_dividing_a_die_pays_the_more_the_larger_it_is_and_the_younger_its_node() -> None:
    """The order of findings of Feng and Ma 2022; cost of a unit for each square millimetre that computes."""
    result = sheet("chiplets", "map")

    def gain(node: str, area: int) -> float:
        key = f"{node}, {area} mm2, CoWoS-S"
        counts = [f"{n}_dies" for n in (2, 4, 8)]
        return cell(result, key, "1_die") / min(cell(result, key, name) for name in counts)

    assert gain("5 nm", 200) < gain("5 nm", 400) < gain("5 nm", 800)
    assert gain("7 nm", 800) < gain("5 nm", 800) < gain("3 nm", 800)


def test_findings_of_chiplets_name_the_count_of_the_cheapest_compute() -> None:
    """The dies that a finding names are those of the least cost of its rows on the map; few lines say it."""
    result, made = sheet("chiplets", "map"), outcome("chiplets").findings
    said = {finding.tag: finding.words for finding in made}
    assert made[0].tag == "In short"
    assert len(made) <= 5
    names = [entry.name for entry in result.columns]
    best: dict[tuple[str, str], set[int]] = {}
    for row in result.rows:
        node, area, _ = str(row[0]).split(", ")
        priced = {name: float(value) for name, value in zip(names, row, strict=True)
                  if name.endswith(("_die", "_dies")) and value is not None and value == value}  # fmt: skip
        best.setdefault((node, area), set()).add(int(min(priced, key=lambda name: priced[name]).split("_")[0]))
    for (node, area), counts in best.items():
        assert f"{' to '.join(map(str, sorted({min(counts), max(counts)})))} at {area}" in said[node]


def test_too_many_dies_cost_more_than_they_save() -> None:
    result = sheet("chiplets", "map")
    for node in ("7 nm", "5 nm", "3 nm"):
        key = f"{node}, 200 mm2, CoWoS-S"
        assert cell(result, key, "16_dies") > cell(result, key, "1_die")


def test_identical_dies_are_designed_once() -> None:
    """A unit is cheaper the more are made; halves of a die of one design also save design cost at a small volume."""
    result = sheet("chiplets", "volume")
    costs = [[float(value or 0) for value in row] for row in result.rows]
    for i in range(1, len(result.columns)):
        assert [row[i] for row in costs] == sorted((row[i] for row in costs), reverse=True)
    assert costs[0][2] < costs[0][1]
    assert costs[0][1] - costs[0][2] > costs[-1][1] - costs[-1][2]


def test_a_die_over_the_exposure_field_is_left_out() -> None:
    designs = sheet("chiplets", "designs")
    assert not [row for row in designs.rows if float(row[2] or 0) == 1600 and row[4] == 1]
    assert [row for row in designs.rows if float(row[2] or 0) == 1600 and row[4] == 2]


def test_smaller_nodes_help_until_memory_and_network_hold_them_back() -> None:
    """The knee of the nodes: at the last memory and network every node helps, with the first ones the last do not."""
    by_memory, by_network = sheet("technology-nodes", "nodes by memory"), sheet("technology-nodes", "nodes by network")
    nodes = [str(row[0]) for row in by_memory.rows]
    assert nodes == ["12 nm", "10 nm", "7 nm", "5 nm", "3 nm", "2 nm", "1.4 nm", "1 nm"]
    for entry in (by_memory, by_network):
        for column in entry.columns[1:]:
            times = [cell(entry, node, column.name) for node in nodes]
            assert times == sorted(times, reverse=True), column.name
    first, last = (cell(by_memory, "3 nm", name) / cell(by_memory, "1 nm", name) for name in ("HBM2", "HBM4e"))
    assert first < 1.2 < last


def test_faster_memory_and_network_help_small_nodes_most() -> None:
    result = sheet("technology-nodes", "nodes by memory")
    gain = {node: cell(result, node, "HBM2") / cell(result, node, "HBM3e") for node in ("12 nm", "5 nm", "1 nm")}
    assert gain["12 nm"] < gain["5 nm"] < gain["1 nm"]
    net = sheet("technology-nodes", "nodes by network")
    wired = {n: cell(net, n, "generation 1") / cell(net, n, "generation 5") for n in ("12 nm", "5 nm", "1 nm")}
    assert wired["12 nm"] < wired["5 nm"] < wired["1 nm"]


NODES = ["12 nm", "10 nm", "7 nm", "5 nm", "3 nm", "2 nm", "1.4 nm", "1 nm"]


def test_the_best_shares_of_cores_cache_and_edge_lie_inside() -> None:
    """On six of the eight nodes at least; cache is worth area, and more of it costs cores."""
    result = sheet("technology-nodes", "shares")
    assert [str(row[0]) for row in result.rows] == NODES
    assert result.values("best_between_the_ends").count("yes") >= 6
    for node in NODES:
        assert cell(result, node, "longer_with_least_cache") > 0.3, "next to no cache is slower"
        assert cell(result, node, "longer_with_most_cache") > 30.0
        assert cell(result, node, "longer_with_least_memory_edge") > 10.0
    assert cell(result, "1 nm", "last_level_cache") > 3.0 * cell(result, "12 nm", "last_level_cache")


def test_every_node_says_what_the_next_unit_buys() -> None:
    """Area limits down to 7 nm, power from 5 nm on, each node with its own energy of a FLOP.

    A watt costs its owner a building and energy: 5 % of 1,200 W are some 550 USD over their life, and a dollar buys
    power where that limits. With Megatron-Bridge, which "nemo" without a release now means, 5 % more power at 1 nm gain
    1.44 %; with the stack of NeMo 2 it was 1.56 %.
    """
    result = sheet("technology-nodes", "next unit")
    gain = {(str(row[1]), str(row[2])): float(row[3] or 0) for row in result.rows}
    paid = {(str(row[1]), str(row[2])): float(row[5] or 0) for row in result.rows}
    assert len(gain) == len(NODES) * 5
    for node in NODES:
        own = {thing: value for (at, thing), value in gain.items() if at == node}
        assert max(own, key=lambda thing: own[thing]) == ("die area" if node in NODES[:3] else "power"), node
        dollars = {thing: value for (at, thing), value in paid.items() if at == node}
        best = max((thing for thing in dollars if own[thing] > 0.5), key=lambda thing: dollars[thing])
        assert best == BUY[node][3], node
    watts = {node: 100.0 * gain[node, "power"] / paid[node, "power"] for node in NODES[3:]}
    assert all(400.0 < cost < 600.0 for cost in watts.values())
    assert all(gain[node, "die area"] > 0.5 for node in NODES)
    assert all(gain[node, "power"] > 1.4 for node in NODES[3:])


BUY = dict.fromkeys(NODES[:3], ("die area", "cores", "nothing", "die area")) | dict.fromkeys(
    NODES[3:], ("power", "cores", "clock", "power")
)
"""What limits each node, and what the next square millimetre, watt and dollar should buy."""


def test_each_node_names_its_limit_and_what_area_power_and_money_should_buy() -> None:
    """Area alone to cores gains more than alone to cache, whose worth comes near only at 1 nm."""
    result = sheet("technology-nodes", "what to buy")
    names = [column.name for column in result.columns]
    answers = [names.index(name) for name in ("limited_by", "next_mm2", "next_watt", "next_dollar")]
    assert {str(row[0]): tuple(str(row[place]) for place in answers) for row in result.rows} == BUY
    for node in NODES:
        assert cell(result, node, "gain_cores") > cell(result, node, "gain_cache") > 0.0, node
    worth = {node: cell(result, node, "gain_cache") / cell(result, node, "gain_cores") for node in NODES}
    assert worth["1 nm"] > 3.0 * worth["12 nm"]
    said = " ".join(one.words for one in outcome("technology-nodes").findings if one.tag == "Next unit")
    assert all(f"{node}:" in said for node in ("12 nm to 7 nm", "5 nm to 1 nm"))
    assert said.count("the next mm2 should buy cores") == 2
    assert said.count("the next dollar power") == 1 and said.count("the next dollar die area") == 1


def test_every_device_of_the_grid_keeps_its_power_budget() -> None:
    result = sheet("technology-nodes", "devices")
    names = [column.name for column in result.columns]
    assert len(result.rows) == 8 * 6 * 5 * 10
    power = [float(row[names.index("thermal_design_power")] or math.nan) for row in result.rows]
    assert max(value for value in power if value == value) <= 1200 * (1 + 1e-9)


def test_faster_memory_never_slows_a_token_and_then_stops_helping() -> None:
    gain = sheet("dram", "gain")
    names = [column.name for column in gain.columns]
    for name in names[1:]:
        values = [float(row[names.index(name)] or 0) for row in gain.rows]
        assert values == sorted(values)
    last = gain.rows[-1]
    assert float(last[names.index("13B, batch 1")] or 0) < 0.2 * float(last[names.index("memory_bandwidth_ratio")] or 0)
    one, eight = (float(last[names.index(name)] or 0) for name in ("13B, batch 1", "70B on 8, batch 1"))
    assert eight < one, "what the network takes is not shortened by memory"


def test_no_token_comes_sooner_than_its_bytes() -> None:
    result = sheet("dram", "memories")
    for row in result.rows:
        if row[1] == "13B, batch 1":
            floor = 2 * 12.85e9 / (float(row[3] or 0) * 1e12) * 1e3
            assert float(row[6] or 0) > floor


def test_peaks_in_a_study_are_those_of_the_precision_that_products_run_in() -> None:
    """Formats of FP8 share its peak, FP16 that of BF16."""
    precisions, catalog = ["mxfp8", "fp8", "fp16", "bf16"], load_catalog()
    names = np.full(len(precisions), "B200-SXM-180GB", dtype=object)
    plans = Table("training", {"accelerator": names, "precision": np.array(precisions, dtype=object)})
    row = catalog.rows("accelerators", plans["accelerator"], plans, "accelerator")[0]
    fp8, bf16 = (catalog.tables["accelerators"][f"peak_flop_rate_{name}"][row] for name in ("fp8", "bf16"))
    assert peak_rates(plans, catalog).tolist() == [fp8, fp8, bf16, bf16]
