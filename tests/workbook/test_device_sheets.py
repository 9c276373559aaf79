"""From a cell of the sheets of technology to a plan: rows, workbook, command, function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pytest
from device_samples import catalog, devices, product, technology_tables, training
from shipped import plain_workbook

from xlperf.addin.handles import CatalogStore
from xlperf.addin.worker import Session
from xlperf.base.errors import InputError
from xlperf.base.resources import workbook
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.schema import TECHNOLOGY_TABLES, table_schema
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.devices import accelerators_of, evaluate_designs, evaluate_devices
from xlperf.workbook.data_sheets import table_of
from xlperf.workbook.front.start import CATALOG_CELL
from xlperf.workbook.package import data_rows

# --- from a cell to a plan

DERIVED = "3 nm HBM4 (derived)"


def test_a_derived_accelerator_is_a_row_like_any_other() -> None:
    plans = training(DERIVED, "B200-SXM-180GB", precision="fp8")
    results = evaluate(plans, catalog())
    assert (results["reason"] != "").all() and "names" not in "".join(results["reason"])
    assert results["step_time"][0] < results["step_time"][1]
    device = evaluate_devices(product("3 nm HBM4"), catalog())
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
        "chiplet": "same", "package": "CoWoS-S 2023", "node": "5 nm", "module_area": 814.0, "die_width": 26.0,
        "num_units": 144, "num_units_needed": 132, "perfect_area_share": 0.42, "memory_stacks": 5, "num_dummy_dies": 1,
        "stack_capacity": 16, "memory_price": 13.75, "board_cost": 480.0, "margin_share": 0.881, "volume": 1.5e6,
    }  # fmt: skip
    expected = evaluate_designs(table_of("chiplets", [row]), catalog())
    results = evaluate_devices(product("H100 from budgets"), catalog())
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
def study() -> Path:
    """A workbook with sheets of technology: the shipped one, which test_workbook.py compares with its rows."""
    return workbook()


def test_sheets_of_technology_are_built_and_read_back(study: Path) -> None:
    book = openpyxl.load_workbook(study)
    assert set(TECHNOLOGY_TABLES) <= set(book.sheetnames)
    for kind in TECHNOLOGY_TABLES:
        native = book[kind].tables[kind]
        assert [cell.value for cell in book[kind][4]][: len(native.tableColumns)] == [
            column.header for column in table_schema(kind).columns
        ]
        assert book[kind].freeze_panes == "B5"
    assert "technology[[#All]]" in str(book["start"][CATALOG_CELL].value)
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
    before, after = (
        float(done.out.splitlines()[1].split(",")[names.index("step time (s)")]) for done in (first, second)
    )
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
    shown = command("chip", "--devices", study)
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert len(lines) == 1 + len(technology_tables()["devices"])
    names = lines[0].split(",")
    assert len(names) == len(set(names)) and {"memory bandwidth (TB/s)", "thermal design power (W)", "reason"} <= set(
        names
    )
    done = command("chip", "--devices", study, "-o", tmp_path / "out.xlsx")
    assert done.code == 0 and openpyxl.load_workbook(tmp_path / "out.xlsx")["devices"].max_row == len(lines)
    rows = tmp_path / "devices.csv"
    rows.write_text("device,technology,core,memory,die area\none,7 nm,Ampere SM,HBM9,826\n", encoding="utf-8")
    refused = command("chip", "--devices", rows, "--catalog", study)
    assert refused.code == 2 and 'unknown memory "HBM9"' in refused.err and "line 2" in refused.err


def test_bad_cells_are_refused_with_their_place(command: Callable[..., Any], tmp_path: Path) -> None:
    rows = tmp_path / "devices.csv"
    rows.write_text(
        "device,technology,core,memory,die area,compute share\none,7 nm,Ampere SM,HBM3,-5,1.2\n", encoding="utf-8"
    )
    done = command("chip", "--devices", rows)
    assert done.code == 2
    assert "die area must be a number above 0 (mm2), got" in done.err
    assert "compute share must be a number from 0 to 1, got" in done.err


def test_an_accelerator_needs_its_numbers_or_a_device() -> None:
    plain = {"accelerator": "mine", "generation": "hopper", "peak_flop_rate_bf16": 900.0, "memory_capacity": 80.0}
    with pytest.raises(InputError, match="memory bandwidth is missing; it must be a number above 0"):
        table_of("accelerators", [plain])
    own = catalog().with_tables([table_of("accelerators", [{**plain, "device": "none such"}])])
    with pytest.raises(InputError, match="unknown device"):
        own.rows("accelerators", np.array(["mine"], dtype=object), own.tables["models"], "model")
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


def test_catalogs_that_differ_elsewhere_share_what_is_derived() -> None:
    fresh = catalog().with_tables([])
    derived = accelerators_of(fresh)
    assert accelerators_of(fresh.with_tables([catalog().tables["calibration"].take([0])])) is derived
    assert accelerators_of(_with("technology", "3 nm", flop_energy=1e-12)) is not derived


def test_a_report_shows_derived_accelerators(tmp_path: Path, command: Callable[..., Any]) -> None:
    study, report = tmp_path / "study.xlsx", tmp_path / "report.xlsx"
    plans = training(DERIVED, "B200-SXM-180GB", name="plan")
    plain_workbook(study, {"training": plans})
    done = command("report", study, "-o", report)
    assert done.code == 0, done.err
    book = openpyxl.load_workbook(report)
    sheet = book["accelerators"]
    cells = {str(row[0].value): row for row in sheet.iter_rows() if row[0].value}
    headers = next(row for row in sheet.iter_rows() if row[0].value == "accelerator")
    place = [cell.value for cell in headers].index("memory bandwidth (TB/s)")
    assert cells[DERIVED][place].value == pytest.approx(
        evaluate_devices(product("3 nm HBM4"), catalog())["memory_bandwidth"][0] / 1e12
    )
    roof = " ".join(str(cell.value) for row in book["roofline"].iter_rows() for cell in row if cell.value)
    assert DERIVED in roof and "nan" not in roof.lower()
