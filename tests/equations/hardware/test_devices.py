"""What must hold for any device that is derived from a node, areas, a power and shares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_samples import catalog, devices, technology_tables
from hypothesis import given
from hypothesis import strategies as st

from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.table import Table
from xlperf.engine.devices import evaluate_devices
from xlperf.equations.hardware.power import clock_share, outer_perimeter, stack_count, voltage_share

NODES = ("12 nm", "10 nm", "7 nm", "5 nm", "4 nm", "3 nm", "2 nm", "1.4 nm", "1 nm")


def _nodes(**cells: Any) -> Table:
    return evaluate_devices(devices(*({"technology": node, **cells} for node in NODES)), catalog())


@pytest.mark.parametrize("budget", [None, 300.0, 700.0, 1500.0])
@pytest.mark.parametrize("core", ["Ampere SM", "Hopper SM", "Blackwell SM", "CDNA 3 CU", "Wide SM"])
def test_a_smaller_node_is_never_slower_at_equal_area_and_power(core: str, budget: float | None) -> None:
    results = _nodes(core=core, power_budget=budget)
    rate = results["peak_flop_rate_bf16"]
    assert np.isfinite(rate[2:]).all()
    assert (np.diff(rate[np.isfinite(rate)]) >= 0.0).all()
    assert (np.diff(results["l2_capacity"]) >= 0.0).all()
    if budget is not None:
        assert (results["thermal_design_power"][np.isfinite(rate)] <= budget * (1.0 + 1e-9)).all()


def test_the_same_silicon_is_never_cheaper_to_make_on_a_smaller_node() -> None:
    """Wafers, design and masks, and the carbon of the fab; two nodes had no design cost and no energy at all."""
    shipped = load_catalog()
    names = [name for name in NODES if name not in ("5 nm", "4 nm")]  # another yield of the same wafers
    cells = {"package": "CoWoS-L", "memory": "HBM3e", "num_dies": 2, "die_area": 800, "core": "Blackwell SM"}
    made = evaluate_devices(devices(*({**cells, "technology": node} for node in names)), shipped)
    for column in ("unit_cost", "embodied_carbon"):
        assert (np.diff(made[column]) > 0.0).all(), column
    nodes = shipped.tables["process_nodes"]
    for column in ("clustering", "nre_module_per_area", "nre_chip_per_area", "nre_chip_fixed", "mask_set_price",
                   "fab_energy", "fab_gas_carbon", "fab_material_carbon", "sort_time"):  # fmt: skip
        assert (nodes.number(column) > 0.0).all(), column


@given(
    area=st.floats(200.0, 840.0),
    more=st.floats(1.0, 1.5),
    compute=st.floats(0.2, 0.75),
    cache=st.floats(0.0, 1.0),
    memory=st.floats(0.2, 0.6),
    links=st.floats(0.05, 0.35),
    node=st.sampled_from(NODES[2:]),
    budget=st.one_of(st.none(), st.floats(300.0, 2000.0)),
)
def test_shares_add_up_and_more_budget_is_never_less(
    area: float, more: float, compute: float, cache: float, memory: float, links: float, node: str, budget: float | None
) -> None:
    cells = {
        "technology": node, "die_area": area, "compute_share": compute, "cache_share": cache, "power_budget": budget,
        "memory_shoreline_share": memory, "link_shoreline_share": links,
    }  # fmt: skip
    grown = {**cells, "die_area": area * more}
    powered = {**cells, "power_budget": None if budget is None else budget * more}
    results = evaluate_devices(devices(cells, grown, powered), catalog())
    parts = [results[f"area_share_{name}"] for name in ("compute", "cache", "memory", "links", "other")]
    built = results["reason"] == ""
    np.testing.assert_allclose(sum(parts)[built], 1.0, rtol=1e-12)
    assert all((part[built] >= -1e-12).all() for part in parts)
    power = [results[f"power_{name}"] for name in ("compute", "static", "memory", "links")]
    np.testing.assert_allclose(sum(power)[built], results["thermal_design_power"][built], rtol=1e-12)
    if built[:2].all():
        for column in ("memory_stacks", "link_bandwidth", "num_multiprocessors"):
            assert results[column][1] >= results[column][0]
    if built[[0, 2]].all():
        assert results["memory_bandwidth"][2] >= results["memory_bandwidth"][0]
        if results["memory_stacks"][2] == results["memory_stacks"][0]:
            assert results["peak_flop_rate_bf16"][2] >= results["peak_flop_rate_bf16"][0] * (1.0 - 1e-12)
    if budget is not None and built[0]:
        assert results["thermal_design_power"][0] <= budget * (1.0 + 1e-9)


def test_one_device_is_the_same_alone_and_among_others() -> None:
    table = technology_tables()["devices"]
    together = evaluate_devices(table, catalog())
    for row in range(len(table)):
        alone = evaluate_devices(table.take([row]), catalog())
        for name, values in together.columns.items():
            assert alone[name].tobytes() == values[[row]].tobytes() if values.dtype != object else True, name
            assert alone[name].tolist() == values[[row]].tolist() or values.dtype != object


def test_memory_is_limited_by_edge_or_by_power() -> None:
    results = evaluate_devices(devices({}, {"power_budget": 160.0, "technology": "1 nm"}), catalog())
    assert results["limited_by"].tolist() == [
        "memory by the edge of the dies",
        "memory by power; clock by the power budget",
    ]
    assert results["memory_stacks"].tolist() == [5.0, 2.0]
    assert results["thermal_design_power"][1] == pytest.approx(160.0)


def test_several_dies_share_an_outer_edge_and_pay_for_their_links() -> None:
    alone, pair, linked = (
        {"die_area": 800.0},
        {"die_area": 400.0, "num_dies": 2},
        {"die_area": 400.0, "num_dies": 2, "die_link": "UCIe advanced"},
    )
    results = evaluate_devices(devices(alone, pair, linked), catalog())
    assert results["outer_perimeter"][0] == results["outer_perimeter"][1]
    assert results["memory_stacks"].tolist() == [5.0, 5.0, 5.0]
    crossing = results["memory_bandwidth"][2] / 2.0
    assert results["power_links"][2] - results["power_links"][1] == pytest.approx(crossing * 8 * 0.3e-12)
    assert results["area_share_links"][2] > results["area_share_links"][1]


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"memory_shoreline_share": 0.8, "link_shoreline_share": 0.3}, "more than the perimeter"),
        ({"compute_share": 0.95}, "do not fit beside the cores"),
        ({"num_cores": 400}, "the cores do not fit"),
        ({"die_area": 2.0, "compute_share": 0.5}, "not one core"),
        ({"power_budget": 60.0}, "leaves nothing for the cores"),
        ({"memory_shoreline_share": 0.05}, "not one stack of memory"),
        ({"link_shoreline_share": 0.0}, "not one lane"),
        ({"num_base_dies": 2}, "base dies need a base area"),
        ({"die_area": 100.0, "num_dies": 2, "die_link": "PCIe 4", "die_link_bandwidth": 9.0}, "need more edge"),
    ],
)
def test_what_cannot_be_built_says_why(cells: dict[str, Any], words: str) -> None:
    results = evaluate_devices(devices(cells, {}), catalog())
    assert words in results["reason"][0]
    assert np.isnan(results["peak_flop_rate_bf16"][0]) and np.isnan(results["thermal_design_power"][0])
    assert results["reason"][1] == "" and np.isfinite(results["peak_flop_rate_bf16"][1])


def test_hand_counts() -> None:
    assert outer_perimeter(26.0 * 33.0, 33.0 / 26.0) == pytest.approx(2 * (26 + 33))
    assert stack_count(118.0, 0.5, 11.0, np.inf, 0.4, 30.0) == 5.0
    assert stack_count(118.0, 0.5, 11.0, 225.0, 0.4, 30.0) == 3.0
    share = clock_share(50.0, 100.0, 0.6)
    assert share * 100.0 * voltage_share(share, 0.6) ** 2 == pytest.approx(50.0)
    assert clock_share(200.0, 100.0, 0.6) == 1.0 and clock_share(-1.0, 100.0, 0.6) == 0.0


def test_half_the_clock_takes_less_than_half_the_power() -> None:
    assert float(clock_share(50.0, 100.0, 0.66)) > 0.5 * 1.2


def test_cache_is_not_free() -> None:
    """A share for cache that grows alone takes wires and control that the cores need: refused, with the way out."""
    shares = np.linspace(0.05, 0.8, 16)
    results = evaluate_devices(devices(*({"cache_share": share} for share in shares)), catalog())
    built = np.isfinite(results["l2_capacity"])
    assert built[:3].all() and not built[-3:].any()
    other = results["area_share_other"]
    assert (other[built] >= 0.1).all()
    said = np.array(["wires and control have" in reason for reason in results["reason"].tolist()])
    np.testing.assert_array_equal(said[built], other[built] < 0.2)
    assert all("takes a smaller compute share" in reason for reason in results["reason"][~built].tolist())
    paid = evaluate_devices(devices({"cache_share": 0.6, "compute_share": 0.4}), catalog())
    assert paid["l2_capacity"][0] > 1.5 * results["l2_capacity"][built][-1]
    assert paid["peak_flop_rate_bf16"][0] < 0.75 * results["peak_flop_rate_bf16"][0]


@pytest.mark.parametrize(
    ("entries", "code", "words"),
    [
        (("--num-dies", "1", "--die-area", "2000"), 1, "a compute die of 2,000 mm² is larger than the reticle"),
        (("--num-dies", "4", "--die-area", "400"), 0, "of a B200, 1.0× per dollar of its price: $"),
        (("--num-dies", "4", "--margin-share", "0.5"), 0, "at a margin of 50 %, against $47,409 on the sheet prices"),
    ],
)
def test_a_chip_has_a_price_or_a_reason(command: Any, entries: tuple[str, ...], code: int, words: str) -> None:
    outcome = command("chip", "--technology", "3nm", *entries)
    assert outcome.code == code and words in outcome.out and "nan" not in outcome.out


def test_findings_do_not_claim_what_predictions_cannot_tell_apart() -> None:
    """Costs within 5 % win together, as search says of plans."""
    from xlperf.studies.cost import _serving_findings

    costs = np.array([[1.0, 1.02, 1.3], [np.inf, 2.0, 3.0], [np.inf, np.inf, np.inf]])
    words = [str(one) for one in _serving_findings([50.0, 20.0, 5.0], ["GB200", "B200", "H200"], costs, {})]
    assert any("GB200 or B200, 1 USD" in text and "next H200" in text for text in words)
    assert any("B200, 2 USD" in text and "GB200" not in text for text in words)
    assert any("No machine keeps" in text for text in words)
