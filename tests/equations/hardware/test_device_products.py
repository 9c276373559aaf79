"""Derived devices beside real ones: those that constants were chosen by, those that none was, and plans on both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_samples import catalog, devices, product, technology_tables, training

from xlperf.addin.handles import CatalogStore
from xlperf.addin.worker import Session
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import results_of, unit_of
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.devices import evaluate_devices
from xlperf.explore.allocate import TOLERANCE, device_faults, reverse_check
from xlperf.workbook.data_sheets import table_of

# Datasheets: NVIDIA whitepapers of Ampere, Hopper, Blackwell; AMD CDNA 3 whitepaper and MI300X datasheet. SRAM is the
# last-level cache with L1, shared memory and registers of the units that are switched on.
PRODUCTS: dict[str, dict[str, float]] = {
    "A100 from budgets": {
        "memory_bandwidth": 2.039, "memory_capacity": 80.0, "link_bandwidth": 300.0, "l2_capacity": 40.0,
        "sram_capacity": 40.0 + 108 * (192 + 256) / 1024, "thermal_design_power": 400.0, "peak_flop_rate_bf16": 312.0,
        "peak_flop_rate_tf32": 156.0, "peak_flop_rate_int8": 624.0,
    },
    "H100 from budgets": {
        "memory_bandwidth": 3.35, "memory_capacity": 80.0, "link_bandwidth": 450.0, "l2_capacity": 50.0,
        "sram_capacity": 50.0 + 132 * (256 + 256) / 1024, "thermal_design_power": 700.0, "peak_flop_rate_bf16": 989.4,
        "peak_flop_rate_tf32": 494.7, "peak_flop_rate_fp8": 1978.9, "peak_flop_rate_int8": 1978.9,
    },
    "H200 from budgets": {
        "memory_bandwidth": 4.8, "memory_capacity": 141.0, "link_bandwidth": 450.0, "l2_capacity": 50.0,
        "sram_capacity": 50.0 + 132 * (256 + 256) / 1024, "thermal_design_power": 700.0, "peak_flop_rate_bf16": 989.4,
    },
    "B200 from budgets": {
        "memory_bandwidth": 8.0, "memory_capacity": 192.0, "link_bandwidth": 900.0, "l2_capacity": 126.0,
        "sram_capacity": 126.0 + 148 * (256 + 256) / 1024, "thermal_design_power": 1000.0,
        "peak_flop_rate_bf16": 2250.0, "peak_flop_rate_tf32": 1125.0, "peak_flop_rate_fp8": 4500.0,
        "peak_flop_rate_fp4": 9000.0,
    },
    "MI300X from budgets": {
        "memory_bandwidth": 5.3, "memory_capacity": 192.0, "link_bandwidth": 448.0, "l2_capacity": 256.0,
        "sram_capacity": 256.0 + 304 * (96 + 512) / 1024, "thermal_design_power": 750.0,
        "peak_flop_rate_bf16": 1307.4, "peak_flop_rate_tf32": 653.7, "peak_flop_rate_fp8": 2614.9,
    },
    "MI355X from budgets": {
        "memory_bandwidth": 8.0, "memory_capacity": 288.0, "link_bandwidth": 537.6, "l2_capacity": 256.0,
        "sram_capacity": 256.0 + 256 * (192 + 512) / 1024, "thermal_design_power": 1400.0,
        "peak_flop_rate_bf16": 2516.6, "peak_flop_rate_fp8": 5033.2, "peak_flop_rate_fp4": 10066.3,
    },
}  # fmt: skip


def _shown(results: Table, column: str) -> float:
    """Value in the schema's unit; the GB of memory of datasheets are GiB."""
    return float(results[column][0]) / unit_of(results_of("devices").by_name[column]).factor


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_follow_from_node_area_and_edge(name: str) -> None:
    """One set of constants: memory, links, SRAM and power within 20 %; matrix rates as stated."""
    results = evaluate_devices(product(name), catalog())
    assert results["reason"][0] == ""
    for column, stated in PRODUCTS[name].items():
        tolerance = 0.001 if column.startswith("peak") else 0.20
        assert _shown(results, column) == pytest.approx(stated, rel=tolerance), column


def test_a_clock_above_that_of_the_core_takes_a_higher_voltage() -> None:
    """MI355X is the die of MI350X, 2.4 over 2.2 GHz: power rises faster than the rate, with a budget it cannot."""
    row = product("MI355X from budgets")

    def built(clock: float, budget: float = np.nan) -> Table:
        given = {"clock_rate": np.array([clock]), "power_budget": np.array([budget])}
        return evaluate_devices(Table("devices", {**row.columns, **given}), catalog())

    def rise(low: Table, high: Table) -> float:
        power, rate = (high[name][0] / low[name][0] for name in ("power_compute", "peak_flop_rate_bf16"))
        return float(np.log(power) / np.log(rate))

    slow, own, fast, capped = built(2.0e9), built(2.2e9), built(2.4e9), built(2.4e9, 1000.0)
    assert 1.3 < rise(slow, own) < rise(own, fast) < 3.0
    assert own["thermal_design_power"][0] == pytest.approx(1000.0, rel=0.10), "MI350X: air-cooled, 1,000 W"
    assert slow["energy_per_flop"][0] < own["energy_per_flop"][0] < fast["energy_per_flop"][0]
    assert capped["thermal_design_power"][0] == pytest.approx(1000.0)
    rates = [each["peak_flop_rate_bf16"][0] for each in (own, capped, fast)]
    assert 0.9 * rates[0] < rates[1] < rates[2]
    assert "clock by the power budget" in str(capped["limited_by"][0])
    assert "clock" not in str(fast["limited_by"][0])


def test_no_constant_is_of_one_product() -> None:
    """Products differ in what was built (areas, nodes, cores, layers of memory) and in nothing that is fitted."""
    built = {
        "device", "technology", "core", "memory", "link", "num_dies", "die_area", "base_technology", "num_base_dies",
        "base_area", "aspect_ratio", "num_cores", "clock_rate", "stack_height", "package", "compared_with", "source",
        "year", "kind", "notes",
    }  # fmt: skip
    for name in PRODUCTS:
        row = product(name)
        for column in row.schema.columns:
            if column.name not in built and column.name in row:
                value = row[column.name][0]
                assert value == "" or value != value, (name, column.name)
    for name in ("energy_ratio", "shared_memory_bytes_per_clock", "cache_bytes_per_clock"):
        assert np.isnan(technology_tables()["cores"].number(name)).all()
    links = technology_tables()["links"]
    copper = np.array([not name.startswith(("UCIe", "Co-")) for name in links["link"].tolist()])
    # Lanes of a rate share the edge by one rule; the same lanes at a faster clock keep theirs.
    design = np.where(links["link"] == "Infinity Fabric 4 at 38.4 Gbit/s", 32e9 / 8.0, links["lane_rate"])
    rule = (links["shoreline_bandwidth"] / links["lane_rate"] * np.sqrt(design))[copper]
    np.testing.assert_allclose(rule, rule[0], rtol=2e-4)
    nodes = technology_tables()["technology"]
    assert len(set(nodes["static_power"].tolist())) == 1
    assert np.isnan(nodes.number("sram_cell_share")).all()


def test_cores_are_the_same_share_of_the_dies_of_their_product() -> None:
    """Areas of cores are 0.6 of a die over the cores made, or all of a compute die above base dies."""
    cores = technology_tables()["cores"]
    area = dict(zip(cores["core"].tolist(), cores["core_area"].tolist(), strict=True))
    made = {"Ampere SM": (0.6 * 826, 128), "Hopper SM": (0.6 * 814, 144), "Blackwell SM": (0.6 * 1600, 160),
            "CDNA 3 CU": (920, 320), "CDNA 4 CU": (920, 288)}  # fmt: skip
    for core, (total, number) in made.items():
        assert area[core] == pytest.approx(total / number, rel=0.002)


COMPARED = {
    "A100 from budgets": "A100-SXM4-80GB",
    "H100 from budgets": "H100-SXM-80GB",
    "H200 from budgets": "H200-SXM-141GB",
    "B200 from budgets": "B200-SXM-180GB",
    "MI300X from budgets": "MI300X",
    "MI355X from budgets": "MI355X",
}


def _compared() -> Table:
    table = technology_tables()["devices"]
    names = np.array([COMPARED.get(name, "") for name in table["device"].tolist()], dtype=object)
    return Table("devices", {**table.columns, "compared_with": names})


def test_products_come_near_the_rows_of_the_sheet_accelerators() -> None:
    result = reverse_check(_compared(), catalog())
    assert set(result["accelerator"].tolist()) == set(COMPARED.values())
    assert len(result["device"]) >= 6 * 7
    peak = np.array([quantity.startswith("peak") for quantity in result["quantity"].tolist()])
    printed = np.where(result["accelerator"] == "MI355X", 0.007, 0.001)  # that of AMD's sheet has two digits
    assert (np.abs(result["difference"]) < printed)[peak].all()
    assert (np.abs(result["difference"]) <= TOLERANCE).all()
    assert device_faults(catalog().with_tables([_compared()])) == []


def test_a_device_far_from_its_product_fails_the_check() -> None:
    table = _compared()
    row = table["device"].tolist().index("H100 from budgets")
    area = table["die_area"].copy()
    area[row] = 500.0
    faults = device_faults(catalog().with_tables([Table("devices", {**table.columns, "die_area": area})]))
    assert any("H100 from budgets cannot be built: the cores do not fit" in str(fault) for fault in faults)
    power = table.number("memory_rate_share").copy()
    power[row] = 0.5
    faults = device_faults(catalog().with_tables([Table("devices", {**table.columns, "memory_rate_share": power})]))
    assert faults[0].problem.startswith("memory bandwidth (TB/s) of device H100 from budgets is")
    assert "H100-SXM-80GB has 3.35" in faults[0].problem


def test_compare_command(tmp_path: Path, command: Callable[..., Any]) -> None:
    header = "device,technology,core,memory,link,die area,num cores,compared with"
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text(f"{header}\nmine,7 nm,Ampere SM,HBM2e,NVLink 3,826,108,A100-SXM4-80GB\n", encoding="utf-8")
    bad.write_text(f"{header}\nmine,7 nm,Ampere SM,HBM3,NVLink 3,826,108,A100-SXM4-80GB\n", encoding="utf-8")
    done = command("chip", "--devices", good, "--compare")
    assert done.code == 0
    assert done.out.splitlines()[0] == "device,accelerator,quantity,derived,stated,difference (%)"
    assert any(line.startswith("mine,A100-SXM4-80GB,thermal design power (W),") for line in done.out.splitlines())
    assert command("chip", "--devices", bad, "--compare").code == 1


def test_device_function_in_a_cell(tmp_path: Path) -> None:
    session = Session(CatalogStore(tmp_path))
    card = [["device", "mine"], ["technology", "7 nm"], ["core", "Ampere SM"], ["memory", "HBM2e"],
            ["link", "NVLink 3"], ["die area", 826.0], ["num cores", 108.0]]  # fmt: skip
    expected = evaluate_devices(product("A100 from budgets"), catalog())
    for quantity in (
        "memory bandwidth",
        "thermal design power",
        "peak flop rate bf16 (TFLOP/s)",
        "num multiprocessors",
    ):
        name = quantity.split(" (")[0].replace(" ", "_")
        assert session.call("XLPERF_DEVICE", [card, quantity])[0][0] == pytest.approx(_shown(expected, name))
    for wrong, words in ((None, "quantity is missing"), ("memory bandwith", "did you mean memory bandwidth")):
        assert words in session.call("XLPERF_DEVICE", [card, wrong])[0][0].message
    table = [["device", "technology", "core", "memory", "die area"], ["a", "7 nm", "Ampere SM", "HBM2e", 826.0],
             ["b", "5 nm", "Hopper SM", "HBM3", 5.0]]  # fmt: skip
    cells = session.call("XLPERF_DEVICE", [table, "memory stacks"])
    assert cells[0][0] == 5.0 and cells[1][0].code == "#N/A" and "not one" in cells[1][0].message


NETWORKS = {
    "A100 from budgets": ("ampere", "DGX-A100"),
    "H100 from budgets": ("hopper", "DGX-H100"),
    "H200 from budgets": ("hopper", "DGX-H100"),
    "B200 from budgets": ("blackwell", "DGX-B200"),
    "MI300X from budgets": ("cdna3", "MI300X-platform"),
    "MI355X from budgets": ("cdna4", "MI355X-platform"),
}


@pytest.mark.parametrize("name", COMPARED)
def test_plans_on_a_derived_product_are_near_those_on_its_datasheet(name: str) -> None:
    """What is within 20 % part by part is within 10 % in a plan."""
    generation, network = NETWORKS[name]
    row = {"accelerator": "derived", "generation": generation, "default_network": network, "device": name}
    stated = catalog().tables["accelerators"]
    both = stated.take([stated["accelerator"].tolist().index(COMPARED[name])])
    own = table_of("accelerators", [row])
    columns = {
        c.name: np.concatenate([t.text(c.name) if c.is_text else t.number(c.name) for t in (both, own)])
        for c in stated.schema.columns
    }
    known = catalog().with_tables([Table("accelerators", columns)])
    trained = evaluate(training(COMPARED[name], "derived", recompute="selective"), known)["step_time"]
    assert trained[1] == pytest.approx(trained[0], rel=0.10)
    header = ["model", "accelerator", "num accelerators", "tensor parallel", "prompt length", "output length"]
    rows = [["Meta-Llama-3.1-70B", accelerator, 4, 4, 1024, 256] for accelerator in (COMPARED[name], "derived")]
    served = evaluate(table_from_rows("inference", header, rows), known)
    for column in ("ttft", "tpot"):
        assert served[column][1] == pytest.approx(served[column][0], rel=0.10)


HOPPER = {"technology": "5 nm", "core": "Hopper SM", "die_area": 814, "num_cores": 132, "link": "NVLink 4"}
BLACKWELL = {"technology": "4 nm", "core": "Blackwell SM", "die_area": 800, "num_dies": 2, "num_cores": 148}
CDNA = {
    "technology": "5 nm", "core": "CDNA 3 CU", "num_dies": 8, "die_area": 115, "base_technology": "7 nm",
    "num_base_dies": 4, "base_area": 370, "num_cores": 304, "link": "Infinity Fabric 4",
}  # fmt: skip


@pytest.mark.parametrize(
    ("cells", "stated"),
    [
        # H200 SXM (six stacks where the edge is given five), B300 SXM, MI325X: TB/s, GiB, GB/s, W
        ({**HOPPER, "memory": "HBM3e"}, (4.8, None, 450.0, 700.0)),
        ({**BLACKWELL, "memory": "HBM3e", "stack_height": 12, "link": "NVLink 5"}, (8.0, 288.0, 900.0, 1100.0)),
        ({**CDNA, "memory": "HBM3e", "stack_height": 12}, (6.0, 256.0, 448.0, 1000.0)),
        # MI355X: links of a generation that is not among them, matrix units twice as wide
        (
            {
                **CDNA,
                "technology": "3 nm",
                "num_base_dies": 2,
                "base_area": 740,
                "num_cores": 256,
                "memory": "HBM3e",
                "stack_height": 12,
            },
            (8.0, 288.0),
        ),
        # A100 40 GB; MI250X, whose units are not among the cores
        ({"technology": "7 nm", "core": "Ampere SM", "die_area": 826, "memory": "HBM2"}, (1.555, 40.0)),
        ({"technology": "7 nm", "core": "Ampere SM", "die_area": 724, "num_dies": 2, "memory": "HBM2e"}, (3.28, 128.0)),
    ],
)
def test_products_that_no_constant_was_chosen_by(cells: dict[str, Any], stated: tuple[float | None, ...]) -> None:
    results = evaluate_devices(devices(cells), catalog())
    names = ("memory_bandwidth", "memory_capacity", "link_bandwidth", "thermal_design_power")
    for name, value in zip(names, stated, strict=False):
        assert value is None or _shown(results, name) == pytest.approx(value, rel=0.20), name
