"""Devices: four products from their budgets, what must hold for any device, and the way from a cell to a plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pytest
from device_samples import catalog, devices, technology_tables, training
from hypothesis import given
from hypothesis import strategies as st

from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.plans import table_from_rows
from xlperf.catalog.schema import TECHNOLOGY_TABLES, results_of, table_schema, unit_of
from xlperf.catalog.table import Table
from xlperf.errors import InputError
from xlperf.evaluate import evaluate
from xlperf.evaluate.designs import evaluate_designs
from xlperf.evaluate.devices import accelerators_of, evaluate_devices
from xlperf.excel.build import read_tables, table_of, write_workbook
from xlperf.excel.handles import CatalogStore
from xlperf.excel.session import Session
from xlperf.excel.style import data_rows
from xlperf.explore.reverse_check import TOLERANCE, device_faults, reverse_check
from xlperf.hardware.floorplan import core_count, outer_perimeter, stack_count
from xlperf.hardware.power import clock_share, switching_power, voltage_share
from xlperf.resources import workbook

NODES = ("12 nm", "10 nm", "7 nm", "5 nm", "4 nm", "3 nm", "2 nm", "1.4 nm", "1 nm")

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
}  # fmt: skip


def _product(name: str) -> Table:
    table = technology_tables()["devices"]
    return table.take([table["device"].tolist().index(name)])


def _shown(results: Table, column: str) -> float:
    """Value in the schema's unit; the GB of memory of datasheets are GiB."""
    return float(results[column][0]) / unit_of(results_of("devices").by_name[column]).factor


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_follow_from_node_area_and_edge(name: str) -> None:
    """One set of constants: memory, links, SRAM and power within 20 %; matrix rates as stated."""
    results = evaluate_devices(_product(name), catalog())
    assert results["reason"][0] == ""
    for column, stated in PRODUCTS[name].items():
        tolerance = 0.001 if column.startswith("peak") else 0.20
        assert _shown(results, column) == pytest.approx(stated, rel=tolerance), column


def test_no_constant_is_of_one_product() -> None:
    """Products differ in what was built (areas, nodes, cores, layers of memory) and in nothing that is fitted."""
    built = {
        "device", "technology", "core", "memory", "link", "num_dies", "die_area", "base_technology", "num_base_dies",
        "base_area", "num_cores", "stack_height", "package", "compared_with", "source", "year", "kind", "notes",
    }  # fmt: skip
    for name in PRODUCTS:
        row = _product(name)
        for column in row.schema.columns:
            if column.name not in built and column.name in row:
                value = row[column.name][0]
                assert value == "" or value != value, (name, column.name)
    for name in ("energy_ratio", "shared_memory_bytes_per_clock", "cache_bytes_per_clock"):
        assert np.isnan(technology_tables()["cores"].number(name)).all()
    links = technology_tables()["links"]
    copper = np.array([not name.startswith(("UCIe", "Co-")) for name in links["link"].tolist()])
    rule = (links["shoreline_bandwidth"] / np.sqrt(links["lane_rate"]))[copper]
    np.testing.assert_allclose(rule, rule[0], rtol=2e-4)
    nodes = technology_tables()["technology"]
    assert len(set(nodes["static_power"].tolist())) == 1
    assert np.isnan(nodes.number("sram_cell_share")).all()


def test_cores_are_the_same_share_of_the_dies_of_their_product() -> None:
    """Areas of cores are 0.6 of a die over the cores made, or all of a compute die above base dies."""
    cores = technology_tables()["cores"]
    area = dict(zip(cores["core"].tolist(), cores["core_area"].tolist(), strict=True))
    for core, total, made in (("Ampere SM", 0.6 * 826, 128), ("Hopper SM", 0.6 * 814, 144),
                              ("Blackwell SM", 0.6 * 1600, 160), ("CDNA 3 CU", 920, 320)):  # fmt: skip
        assert area[core] == pytest.approx(total / made, rel=0.002)


# --- what must hold for any device


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
    assert results["limited_by"].tolist() == ["memory by perimeter", "memory by power; clock by the power budget"]
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
    assert core_count(500.0, 3.9, 0.9) == 115.0
    share = clock_share(50.0, 100.0, 0.6)
    assert switching_power(share, 100.0, voltage_share(share, 0.6)) == pytest.approx(50.0)
    assert clock_share(200.0, 100.0, 0.6) == 1.0 and clock_share(-1.0, 100.0, 0.6) == 0.0


def test_half_the_clock_takes_less_than_half_the_power() -> None:
    assert float(clock_share(50.0, 100.0, 0.66)) > 0.5 * 1.2


# --- from a cell to a plan

DERIVED = "3 nm HBM4 (derived)"


def test_a_derived_accelerator_is_a_row_like_any_other() -> None:
    plans = training(DERIVED, "B200-SXM-180GB", precision="fp8")
    results = evaluate(plans, catalog())
    assert (results["reason"] != "").all() and "names" not in "".join(results["reason"])
    assert results["step_time"][0] < results["step_time"][1]
    device = evaluate_devices(_product("3 nm HBM4"), catalog())
    assert results["memory_capacity"][0] == device["memory_capacity"][0]
    table = accelerators_of(catalog()).table
    row = table["accelerator"].tolist().index(DERIVED)
    assert table["link_bandwidth"][row] == device["link_bandwidth"][0]
    assert table["die_area"][row] == 1600.0 and table["memory_type"][row] == "HBM4"
    other = table["accelerator"].tolist().index("B200-SXM-180GB")
    assert table["memory_bandwidth"][other] == catalog().tables["accelerators"]["memory_bandwidth"][other]


def test_blocks_that_mix_derived_and_stated_accelerators_have_the_bits_of_single_plans() -> None:
    names = [DERIVED, "B200-SXM-180GB", "2 nm HBM4e (derived)", "H100-SXM-80GB"]
    together = evaluate(training(*names), catalog())
    for row, name in enumerate(names):
        alone = evaluate(training(name), catalog())
        assert alone["step_time"].tobytes() == together["step_time"][[row]].tobytes()
        assert alone["time_tensor_parallel"].tobytes() == together["time_tensor_parallel"][[row]].tobytes()


def test_stated_accelerators_are_as_without_devices() -> None:
    plans = training("B200-SXM-180GB", "H100-SXM-80GB")
    before, after = evaluate(plans, load_catalog()), evaluate(plans, catalog())
    for name, values in before.columns.items():
        assert values.tolist() == after[name].tolist() or np.array_equal(values, after[name], equal_nan=True)


def _with(kind: str, name: str, **cells: float) -> Catalog:
    """The catalog with some cells of one row changed, in the units used inside."""
    table = technology_tables()[kind]
    at = table[table.schema.key.name] == name
    assert at.sum() == 1
    columns = dict(table.columns)
    for column, value in cells.items():
        columns[column] = np.where(at, value, table.number(column))
    return catalog().with_tables([Table(kind, columns)])


@pytest.mark.parametrize(
    ("kind", "name", "cells", "column", "rises"),
    [
        ("technology", "3 nm", {"flop_energy": 1e-12}, "step_time", True),
        ("technology", "3 nm", {"logic_density": 400e6}, "step_time", False),
        ("memories", "HBM4", {"pin_rate": 0.5e9}, "step_time", True),
        ("links", "NVLink 5", {"shoreline_bandwidth": 5e9}, "time_tensor_parallel", True),
        ("memories", "HBM4", {"stack_price": 3000.0}, "cost_per_million_tokens", True),
        ("devices", "3 nm HBM4", {"margin_share": 0.5}, "cost_per_million_tokens", False),
        ("devices", "3 nm HBM4", {"power_budget": 900.0}, "energy_per_token", False),
    ],
)
def test_a_changed_cell_changes_the_plan(
    kind: str, name: str, cells: dict[str, float], column: str, rises: bool
) -> None:
    plans = training(DERIVED, "B200-SXM-180GB")
    before, after = evaluate(plans, catalog()), evaluate(plans, _with(kind, name, **cells))
    assert (after[column][0] > before[column][0]) == rises and after[column][0] != before[column][0]
    assert after[column][1] == before[column][1]


def test_a_device_that_cannot_be_built_makes_its_plans_illegal() -> None:
    results = evaluate(training(DERIVED, "B200-SXM-180GB"), _with("devices", "3 nm HBM4", power_budget=100.0))
    assert np.isnan(results["step_time"][0]) and np.isfinite(results["step_time"][1])
    assert "device 3 nm HBM4: the power budget leaves nothing for the cores" in results["reason"][0]


def test_cost_is_that_of_the_chiplet_design() -> None:
    """The unit cost of H100 from its budgets is that of the same dies, stacks and spares as a row of chiplets."""
    row = {
        "chiplet": "same", "package": "CoWoS-S", "node": "5 nm", "module_area": 814.0, "num_units": 144,
        "num_units_needed": 132, "perfect_area_share": 0.25, "memory_stacks": 5, "stack_capacity": 16,
        "memory_price": 15.0, "board_cost": 350.0, "margin_share": 0.8, "volume": 1e6,
    }  # fmt: skip
    expected = evaluate_designs(table_of("chiplets", [row]), catalog())
    results = evaluate_devices(_product("H100 from budgets"), catalog())
    assert results["unit_cost"][0] == pytest.approx(expected["unit_cost"][0], rel=1e-12)
    assert results["capex"][0] == pytest.approx(2.0 * expected["sale_price"][0] + 0.4 * 487.5, rel=1e-3)


def test_dies_over_the_reticle_and_unpriced_nodes_have_no_cost() -> None:
    rows = ({"die_area": 1200.0, "package": "CoWoS-S"}, {"package": "CoWoS-S"}, {})
    results = evaluate_devices(devices(*rows), catalog())
    assert "larger than the reticle" in results["reason"][0] and np.isnan(results["unit_cost"][0])
    assert np.isfinite(results["peak_flop_rate_bf16"][0])
    assert np.isfinite(results["unit_cost"][1]) and np.isnan(results["unit_cost"][2])


# --- workbook, command, cells


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study") / "study.xlsx"
    write_workbook(path, {**read_tables(workbook()), **technology_tables()}, values=False)
    return path


def test_sheets_of_technology_are_built_and_read_back(study: Path) -> None:
    book = openpyxl.load_workbook(study)
    assert set(TECHNOLOGY_TABLES) <= set(book.sheetnames)
    for kind in TECHNOLOGY_TABLES:
        native = book[kind].tables[kind]
        assert [cell.value for cell in book[kind][4]][: len(native.tableColumns)] == [
            column.header for column in table_schema(kind).columns
        ]
        assert book[kind].freeze_panes == "B5"
    assert "technology[[#All]]" in str(book["start"]["C13"].value)
    assert "device_names" in book.defined_names and "technology_names" in book.defined_names
    again = load_catalog(study)
    for kind in TECHNOLOGY_TABLES:
        for column in table_schema(kind).columns:
            if not column.is_text:
                own, read = technology_tables()[kind].number(column.name), again.tables[kind].number(column.name)
                np.testing.assert_allclose(read, own, rtol=1e-12)


def test_an_edited_cell_of_the_workbook_moves_the_result(
    study: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    plans = tmp_path / "plans.csv"
    header = "model,accelerator,num_accelerators,tensor_parallel,pipeline_parallel,global_batch_size"
    plans.write_text(f"{header}\nGPT-3-175B,{DERIVED},64,8,8,64\n", encoding="utf-8")
    book = openpyxl.load_workbook(study)
    sheet = book["technology"]
    headers = [cell.value for cell in sheet[4]]
    row = next(row for row in range(5, 30) if sheet.cell(row, 1).value == "3 nm")
    sheet.cell(row, headers.index("flop energy (pJ/FLOP)") + 1).value = 1.5
    edited = tmp_path / "edited.xlsx"
    book.save(edited)
    first, second = (command("evaluate", plans, "--catalog", path) for path in (study, edited))
    assert first.code == second.code == 0
    names = first.out.splitlines()[0].split(",")
    before, after = (float(done.out.splitlines()[1].split(",")[names.index("step_time")]) for done in (first, second))
    assert after > 1.05 * before


def test_a_cell_of_technology_in_a_host_moves_the_result(tmp_path: Path) -> None:
    session = Session(CatalogStore(tmp_path))
    blocks = []
    for kind in (*TECHNOLOGY_TABLES, "accelerators", "process_nodes"):
        table = technology_tables()[kind]
        columns = table_schema(kind).columns
        blocks.append([[column.header for column in columns], *map(list, data_rows(table, columns))])
    plan = [["model", "GPT-3-175B"], ["accelerator", DERIVED], ["num accelerators", 64], ["tensor parallel", 8],
            ["pipeline parallel", 8], ["global batch size", 64]]  # fmt: skip
    first = session.call("XLPERF_CATALOG", blocks)[0][0]
    before = session.call("XLPERF_STEP_TIME", [plan, first])[0][0]
    place = blocks[0][0].index("flop energy (pJ/FLOP)")
    for row in blocks[0][1:]:
        row[place] *= 3.0
    second = session.call("XLPERF_CATALOG", blocks)[0][0]
    after = session.call("XLPERF_STEP_TIME", [plan, second])[0][0]
    assert first != second and isinstance(before, float) and after > before


def test_device_command(study: Path, tmp_path: Path, command: Callable[..., Any]) -> None:
    shown = command("device", study)
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert len(lines) == 1 + len(technology_tables()["devices"])
    names = lines[0].split(",")
    assert len(names) == len(set(names)) and {"memory_bandwidth", "thermal_design_power", "reason"} <= set(names)
    done = command("device", study, "-o", tmp_path / "out.xlsx")
    assert done.code == 0 and openpyxl.load_workbook(tmp_path / "out.xlsx")["devices"].max_row == len(lines)
    rows = tmp_path / "devices.csv"
    rows.write_text("device,technology,core,memory,die area\none,7 nm,Ampere SM,HBM9,826\n", encoding="utf-8")
    refused = command("device", rows, "--catalog", study)
    assert refused.code == 2 and 'unknown memory "HBM9"' in refused.err and "line 2" in refused.err


def test_bad_cells_are_refused_with_their_place(command: Callable[..., Any], tmp_path: Path) -> None:
    rows = tmp_path / "devices.csv"
    rows.write_text(
        "device,technology,core,memory,die area,compute share\none,7 nm,Ampere SM,HBM3,-5,1.2\n", encoding="utf-8"
    )
    done = command("device", rows)
    assert done.code == 2
    assert "die area must be a number above 0 (mm2), got" in done.err
    assert "compute share must be a number from 0 to 1, got" in done.err


def test_an_accelerator_needs_its_numbers_or_a_device() -> None:
    plain = {"accelerator": "mine", "generation": "hopper", "peak_flop_rate_bf16": 900.0, "memory_capacity": 80.0}
    with pytest.raises(InputError, match="memory bandwidth is missing; it must be a number above 0"):
        table_of("accelerators", [plain])
    with pytest.raises(InputError, match="unknown device"):
        catalog().with_tables([table_of("accelerators", [{**plain, "device": "none such"}])])
    table = table_of("accelerators", [{**plain, "device": "H100 from budgets"}])
    derived = accelerators_of(catalog().with_tables([table])).table
    assert derived["peak_flop_rate_bf16"][0] == 900e12  # what the row states stands
    assert derived["memory_bandwidth"][0] == pytest.approx(3.35e12, rel=0.2)


@pytest.mark.parametrize("kind", ["technology", "memories", "links", "cores", "devices", "process_nodes", "packages"])
def test_a_table_of_ones_own_leaves_other_plans_alone(kind: str) -> None:
    """Devices that refer to rows now gone say so; plans on stated accelerators are as before."""
    table = catalog().tables[kind]
    key = table.schema.key.name
    renamed = Table(kind, {**table.columns, key: np.array([f"my {n}" for n in table[key]], dtype=object)})
    if kind == "technology":
        core = catalog().tables["cores"]
        own = core.take([0])
        tables = [renamed, Table("cores", {**own.columns, "technology": np.array(["my 7 nm"], dtype=object)})]
    else:
        tables = [renamed]
    changed = catalog().with_tables(tables)
    plans = training("B200-SXM-180GB", DERIVED)
    before, after = evaluate(plans, catalog()), evaluate(plans, changed)
    assert after["step_time"][0] == before["step_time"][0]
    if kind in ("process_nodes", "packages"):
        assert after["step_time"][1] == before["step_time"][1]
        assert np.isnan(after["cost_per_million_tokens"][1])
    else:
        assert np.isnan(after["step_time"][1]) and "catalog" in after["reason"][1]


COMPARED = {
    "A100 from budgets": "A100-SXM4-80GB",
    "H100 from budgets": "H100-SXM-80GB",
    "B200 from budgets": "B200-SXM-180GB",
    "MI300X from budgets": "MI300X",
}


def _compared() -> Table:
    table = technology_tables()["devices"]
    names = np.array([COMPARED.get(name, "") for name in table["device"].tolist()], dtype=object)
    return Table("devices", {**table.columns, "compared_with": names})


def test_products_come_near_the_rows_of_the_sheet_accelerators() -> None:
    found = reverse_check(_compared(), catalog())
    assert set(found["accelerator"].tolist()) == set(COMPARED.values())
    assert len(found["device"]) >= 4 * 7
    peak = np.array([quantity.startswith("peak") for quantity in found["quantity"].tolist()])
    assert (np.abs(found["difference"][peak]) < 0.001).all()
    assert (np.abs(found["difference"]) <= TOLERANCE).all()
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
    done = command("device", good, "--compare")
    assert done.code == 0
    assert done.out.splitlines()[0] == "device,accelerator,quantity,derived,stated,difference"
    assert any(line.startswith("mine,A100-SXM4-80GB,thermal design power (W),") for line in done.out.splitlines())
    assert command("device", bad, "--compare").code == 1


def test_device_function_in_a_cell(tmp_path: Path) -> None:
    session = Session(CatalogStore(tmp_path))
    card = [["device", "mine"], ["technology", "7 nm"], ["core", "Ampere SM"], ["memory", "HBM2e"],
            ["link", "NVLink 3"], ["die area", 826.0], ["num cores", 108.0]]  # fmt: skip
    expected = evaluate_devices(_product("A100 from budgets"), catalog())
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
    "B200 from budgets": ("blackwell", "DGX-B200"),
    "MI300X from budgets": ("cdna3", "MI300X-platform"),
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


def test_catalogs_that_differ_elsewhere_share_what_is_derived() -> None:
    fresh = catalog().with_tables([])
    derived = accelerators_of(fresh)
    assert accelerators_of(fresh.with_tables([catalog().tables["calibration"].take([0])])) is derived
    assert accelerators_of(_with("technology", "3 nm", flop_energy=1e-12)) is not derived


def test_a_report_shows_derived_accelerators(tmp_path: Path, command: Callable[..., Any]) -> None:
    study, report = tmp_path / "study.xlsx", tmp_path / "report.xlsx"
    plans = training(DERIVED, "B200-SXM-180GB", name="plan")
    tables = {kind: table for kind, table in read_tables(workbook()).items() if kind != "inference"}
    write_workbook(study, {**tables, "training": plans}, values=True)
    done = command("report", study, "-o", report)
    assert done.code == 0, done.err
    book = openpyxl.load_workbook(report)
    sheet = book["accelerators"]
    cells = {str(row[0].value): row for row in sheet.iter_rows() if row[0].value}
    headers = next(row for row in sheet.iter_rows() if row[0].value == "accelerator")
    place = [cell.value for cell in headers].index("memory bandwidth (TB/s)")
    assert cells[DERIVED][place].value == pytest.approx(
        evaluate_devices(_product("3 nm HBM4"), catalog())["memory_bandwidth"][0] / 1e12
    )
    roof = " ".join(str(cell.value) for row in book["roofline"].iter_rows() for cell in row if cell.value)
    assert DERIVED in roof and "nan" not in roof.lower()


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
