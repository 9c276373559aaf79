"""Dies and packages: public cost tools reproduced, limits with known answers, identities."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cost_samples import ACTUARY_NODES, REFERENCE, actuary_catalog, actuary_designs, figures, numbers
from places import DATA
from work import calls

from xlperf.base.errors import InputError
from xlperf.base.units import factor
from xlperf.catalog.table import Table
from xlperf.engine.devices import evaluate_designs
from xlperf.equations.cost.dies import (
    Module,
    critical_defects,
    die_yield,
    dies_by_rule,
    dies_per_wafer,
    good_die_cost,
    harvested_yield,
    module_cost,
    negative_binomial_yield,
    raw_die_cost,
    reticle_utilization,
)


def _sources(name: str, published: str) -> list[pytest.param]:
    """The sample that the tests carry, and all rows where the folder beside the project has them."""
    whole = REFERENCE / published
    every = [pytest.param(whole, id="all")] if whole.exists() else []
    return [pytest.param(DATA / name, id="sample"), *every]


def _same(result: np.ndarray, expected: np.ndarray, tolerance: float, what: str) -> None:
    known = ~np.isnan(expected)
    assert known.any(), what
    np.testing.assert_allclose(result[known], expected[known], rtol=tolerance, err_msg=what)


@pytest.mark.parametrize("path", _sources("chiplet_actuary.csv", "chiplet_actuary_reference.csv"))
def test_systems_of_chiplet_actuary(path: Path) -> None:
    """Every part of every system of Chiplet Actuary, its slips repeated, to 1e-9."""
    rows = figures(path)
    assert len(rows["case"]) == (2376 if path.parent != DATA else 65)
    catalog = actuary_catalog(slips=True)
    same = {
        "die_area": "die_area_mm2",
        "dies_per_wafer": "gross_dies_per_wafer",
        "die_yield": "die_yield",
        "raw_die_cost": "raw_die_cost_each",
        "good_die_cost": "good_die_cost_each",
        "substrate_area": "substrate_area_mm2",
        "carrier_area": "interposer_area_mm2",
        "carrier_yield": "interposer_yield",
        "raw_dies": "RE_raw_dies",
        "die_defects": "RE_die_defects",
        "raw_package": "RE_raw_package",
        "package_defects": "RE_package_defects",
        "wasted_dies": "RE_wasted_KGD",
        "module_cost": "RE_total",
        "nre_module": "NRE_module",
        "nre_chip": "NRE_chip",
        "nre_package": "NRE_package",
    }
    for volume in (500_000, 2_000_000, 10_000_000):
        results = evaluate_designs(actuary_designs(rows, volume, slips=True), catalog)
        for ours, theirs in {**same, "unit_cost": f"unit_total_at_{volume}"}.items():
            _same(results[ours], numbers(rows[theirs]), 1e-9, theirs)
        total = results["nre_module"] + results["nre_chip"] + results["nre_package"]
        _same(total, numbers(rows["NRE_total"]), 1e-9, "NRE_total")


@pytest.mark.parametrize("path", _sources("chiplet_actuary_dies.csv", "chiplet_actuary_die_reference.csv"))
def test_dies_of_chiplet_actuary(path: Path) -> None:
    rows = {name: numbers(texts) for name, texts in figures(path).items()}
    side = np.sqrt(rows["die_area_mm2"])
    dies = dies_per_wafer(side, side, 300.0, 5.0, 0.2)
    defects = critical_defects(rows["die_area_mm2"], rows["defect_density_per_cm2"] * factor("1/cm2"))
    good = negative_binomial_yield(defects, rows["critical_level"])
    raw = raw_die_cost(rows["wafer_cost_usd"], dies)
    _same(dies, rows["gross_dies_per_wafer"], 1e-9, "dies per wafer")
    _same(good, rows["die_yield"], 1e-9, "yield")
    _same(raw, rows["raw_die_cost"], 1e-9, "raw die")
    _same(good_die_cost(raw, 0.0, good), rows["good_die_cost"], 1e-9, "good die")
    assert set(rows["node_nm"]) <= set(ACTUARY_NODES)


@pytest.mark.parametrize("path", _sources("catch_dies.csv", "catch_reference.csv"))
def test_dies_of_catch(path: Path) -> None:
    """CATCH's yield and raw cost of a die to 1e-12, given its count; a grid of whole dies counts within 1.5 percent."""
    rows = {name: numbers(texts) for name, texts in figures(path).items() if name not in _TEXTS}
    area = rows["die_area_mm2_first"]
    defects = critical_defects(area, rows["defect_density_per_mm2"], rows["critical_area_ratio"])
    _same(negative_binomial_yield(defects, rows["clustering"]), rows["die_true_yield_first"], 1e-12, "yield")
    used = reticle_utilization(area, 26.0 * 33.0)
    _same(used, rows["reticle_utilization"], 1e-12, "reticle")
    wafer = rows["layer_cost_per_mm2"] * np.pi * 150.0**2 * (1.0 + rows["litho_percent"] * (1.0 / used - 1.0))
    raw = raw_die_cost(wafer, rows["gross_dies_per_wafer"])
    _same(raw, rows["raw_die_cost_first"], 1e-12, "raw die")
    side = np.sqrt(area)
    placed = dies_by_rule("placed", side, side, 300.0, 0.1, 0.13)
    _same(placed, rows["gross_dies_per_wafer"], 0.015, "dies on a grid")


_TEXTS = ("case", "model", "sweep", "node_layer", "packaging", "note")


@pytest.mark.parametrize("path", _sources("llmcompass_dies.csv", "llmcompass_area_cost_reference.csv"))
def test_dies_of_llmcompass(path: Path) -> None:
    """LLMCompass publishes raw dies: no scribe, no rim, no yield."""
    rows = {name: numbers(texts) for name, texts in figures(path).items() if name not in ("config", "name")}
    side = np.sqrt(rows["total_area_mm2"])
    dies = dies_per_wafer(side, side, 300.0)
    _same(dies, rows["gross_dies"], 1e-9, "dies")
    _same(raw_die_cost(rows["wafer_7nm"], dies), rows["die_cost_no_yield"], 0.01, "raw die")
    good = die_yield("negative-binomial", critical_defects(rows["total_area_mm2"], 0.15 * 0.01), 3.0, np.nan)
    _same(good, rows["ttmcas_yield_alpha3"], 1e-9, "yield")
    _same(good_die_cost(raw_die_cost(rows["wafer_7nm"], dies), 0.0, good), rows["die_cost_with_yield"], 0.01, "good")


@pytest.mark.parametrize(
    ("model", "alpha", "expected"),
    [
        ("poisson", np.nan, 0.3679),
        ("murphy", np.nan, 0.3996),
        ("rectangular", np.nan, 0.4323),
        ("seeds", np.nan, 0.5000),
        ("moore", np.nan, 0.3679),
        ("negative-binomial", 2.0, 0.4444),
        ("negative-binomial", 3.0, 0.4219),
        ("negative-binomial", 10.0, 0.3855),
    ],
)
def test_yield_of_one_defect_a_die(model: str, alpha: float, expected: float) -> None:
    assert die_yield(model, 1.0, alpha, np.nan) == pytest.approx(expected, abs=5e-5)
    assert die_yield(model, 0.0, alpha, np.nan) == 1.0
    assert np.isnan(die_yield(model, np.nan, alpha, np.nan))
    falling = die_yield(model, np.linspace(0.0, 5.0, 50), alpha, np.nan)
    assert (np.diff(falling) < 0.0).all()


def test_limits_of_yield_models() -> None:
    defects = np.array([0.01, 0.3, 2.0])
    np.testing.assert_allclose(negative_binomial_yield(defects, 1e9), die_yield("poisson", defects), rtol=1e-6)
    np.testing.assert_allclose(negative_binomial_yield(defects, 1.0), 1.0 / (1.0 + defects), rtol=1e-15)
    np.testing.assert_allclose(die_yield("bose-einstein", defects, np.nan, 1.0), 1.0 / (1.0 + defects), rtol=1e-15)
    assert die_yield("moore", 4.0) == pytest.approx(np.exp(-2.0))


def test_harvest_of_partial_good_dies() -> None:
    """132 of 144 units: far more dies are sold than are perfect; all of 144 is the plain product."""
    unit = die_yield("poisson", 0.6 / 144.0)
    assert harvested_yield(unit, 144.0, 144.0) == pytest.approx(np.exp(-0.6), rel=1e-12)
    assert harvested_yield(unit, 144.0, 132.0) > 0.999999
    assert harvested_yield(0.9, 2.0, 1.0) == pytest.approx(0.81 + 2 * 0.9 * 0.1, rel=1e-14)
    assert harvested_yield(0.9, 3.0, 0.0) == pytest.approx(1.0, rel=1e-14)
    assert harvested_yield(0.9, 2.0, 3.0) == 0.0


def test_whole_dies_on_a_wafer() -> None:
    """The square that a circle holds, and the ordering of formulas: placed dies are fewer than area over area."""
    assert dies_by_rule("placed", 10.0, 10.0, 10.0 * np.sqrt(2.0) * 1.0001) == 1.0
    assert dies_by_rule("placed", 10.0, 10.0, 10.0 * np.sqrt(2.0) * 0.9999) == 0.0
    assert dies_by_rule("placed", 1.0, 1.0, np.sqrt(8.0) * 1.0001) == 4.0
    width, height = np.array([5.0, 10.0, 26.0]), np.array([8.0, 10.0, 33.0])
    placed = dies_by_rule("placed", width, height, 300.0, 3.0, 0.1)
    assert (placed < dies_by_rule("area", width, height, 300.0, 3.0, 0.1)).all()
    np.testing.assert_allclose(placed, dies_per_wafer(width, height, 300.0, 3.0, 0.1), rtol=0.15)
    np.testing.assert_allclose(dies_by_rule("exponential", width, height, 300.0, 3.0, 0.1), placed, rtol=0.20)
    assert placed[2] in range(55, 66)  # an H100-size die: 60 to 64, never the 86 of area over area
    assert (placed == np.floor(placed)).all()
    assert dies_per_wafer(400.0, 400.0, 300.0) == 0.0


def test_reticle() -> None:
    assert reticle_utilization(429.0, 858.0) == 1.0


def test_parts_of_a_module_add_up_and_memory_is_scrapped_with_it() -> None:
    arguments = {"raw_dies": 300.0, "die_defects": 100.0, "sort_test": 5.0, "memory": 1200.0, "carrier": 400.0,
                 "substrate": 50.0, "final_test": 10.0, "carrier_yield": 0.8, "bonding_yield": 0.9,
                 "attach_yield": 0.95, "stack_yield": 0.98, "final_yield": 0.97}  # fmt: skip
    last, first = (module_cost(Module(chips_first, **arguments)) for chips_first in (0.0, 1.0))
    for module in (last, first):
        assert sum(map(float, module[:-1])) == pytest.approx(float(module.total), rel=1e-14)
    assert last.wasted_memory == pytest.approx(1200.0 * (1.0 / (0.9 * 0.95 * 0.97) - 1.0))
    assert first.wasted_memory == pytest.approx(1200.0 * (1.0 / (0.8 * 0.95 * 0.97) - 1.0))
    perfect = {name: 1.0 if name.endswith("yield") else value for name, value in arguments.items()}
    module = module_cost(Module(0.0, **perfect))
    assert float(module.wasted_dies + module.wasted_memory + module.package_defects) == 0.0
    assert float(module.total) == 300.0 + 100.0 + 5.0 + 1200.0 + 400.0 + 50.0 + 10.0


def test_the_slips_of_the_public_tool_cost_what_is_known() -> None:
    """5 nm, 800 mm2, 8 identical: micro-bumps counted right cost 594.35 -> 606.08 USD, fan-out 439.25 -> 448.39."""
    rows = {"case": ["a", "b"], "packaging": ["SI", "FO_chip_last"], "node_nm": ["5", "5"], "n_chiplets": ["8", "8"],
            "chiplet_mode": ["identical"] * 2, "total_module_area_mm2": ["800"] * 2,
            "d2d_area_fraction": ["0.1"] * 2}  # fmt: skip
    wrong = evaluate_designs(actuary_designs(rows, 1e6, slips=True), actuary_catalog(slips=True))
    right = evaluate_designs(actuary_designs(rows, 1e6), actuary_catalog())
    np.testing.assert_allclose(wrong["module_cost"][0], 594.35, atol=0.01)
    np.testing.assert_allclose(right["module_cost"][0], 606.08, atol=0.01)
    assert right["module_cost"][1] > wrong["module_cost"][1]
    assert (right["nre_package"] > wrong["nre_package"]).all()


def test_one_design_is_the_same_alone_and_among_others() -> None:
    rows = figures(DATA / "chiplet_actuary.csv")
    designs, catalog = actuary_designs(rows, 1e6), actuary_catalog()
    together = evaluate_designs(designs, catalog)
    for row in range(0, len(designs), 9):
        alone = evaluate_designs(designs.take([row]), catalog)
        for name, values in alone.columns.items():
            same = together[name][row : row + 1]
            assert values.tolist() == same.tolist() or (np.isnan(values[0]) and np.isnan(same[0])), name


def test_a_hundred_thousand_designs_take_few_calls() -> None:
    count = 100_000
    random = np.random.default_rng(5)
    dies = random.integers(1, 9, count).astype(float)
    packages = np.array(["OS", "FO_chip_first", "FO_chip_last", "SI"], dtype=object)
    nodes = np.array([f"{node} nm" for node in ACTUARY_NODES], dtype=object)
    designs = Table(
        "chiplets",
        {
            "chiplet": np.full(count, "", dtype=object),
            "package": packages[random.integers(0, 4, count)],
            "node": nodes[random.integers(0, len(nodes), count)],
            "num_dies": dies,
            "module_area": random.uniform(50.0, 800.0, count) / dies,
            "link_area_share": np.full(count, 0.1),
            "volume": np.full(count, 1e6),
        },
    )
    catalog = actuary_catalog()
    made, results = calls(lambda: evaluate_designs(designs, catalog))
    assert np.isfinite(results["unit_cost"]).all()
    assert made < count  # a seventh of it: designs are computed together


def test_a_die_that_does_not_fit_has_a_reason() -> None:
    rows = {"case": ["a", "b"], "packaging": ["OS", "SI"], "node_nm": ["5", "5"], "n_chiplets": ["1", "1"],
            "chiplet_mode": ["identical"] * 2, "total_module_area_mm2": ["90000", "45000"],
            "d2d_area_fraction": ["0", "0"]}  # fmt: skip
    results = evaluate_designs(actuary_designs(rows, 1e6), actuary_catalog())
    assert np.isnan(results["unit_cost"]).all()
    assert all("fit" in reason for reason in results["reason"])


def test_unknown_names_are_told() -> None:
    rows = {"case": ["a"], "packaging": ["SJ"], "node_nm": ["5"], "n_chiplets": ["1"], "chiplet_mode": ["identical"],
            "total_module_area_mm2": ["100"], "d2d_area_fraction": ["0"]}  # fmt: skip
    with pytest.raises(InputError, match=r'row 1, package: unknown package "SJ"; did you mean SI'):
        evaluate_designs(actuary_designs(rows, 1e6), actuary_catalog())
