"""The sheets of designs and servers: live results with the right values beside them, which readers leave out."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pytest
from conftest import Outcome
from cost_samples import DESIGN, NODE, SERVER
from shipped import few_rows, shipped_book

from xlperf.addin.cells import CellError
from xlperf.addin.handles import CatalogStore
from xlperf.addin.worker import Session
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.schema import PLAN_TABLES, grouped, results_of, table_schema, unit_of
from xlperf.catalog.table import Table
from xlperf.engine.devices import evaluate_designs
from xlperf.engine.ownership import evaluate_servers
from xlperf.workbook.build import read_tables, workbook_package
from xlperf.workbook.data_sheets import LIVE_RESULTS, PLANNED, plan_formula, sheet_columns, table_of
from xlperf.workbook.package import data_rows

KINDS = ("chiplets", "servers")
OWN = {**DESIGN, "package": "Organic MCM"}
ROWS = {
    "chiplets": [OWN, {**OWN, "chiplet": "wrong", "module_area": 900}],
    "servers": [SERVER, {**SERVER, "server": "fed", "fixed_power": 10}],
}


@pytest.fixture(scope="module")
def tables() -> dict[str, Table]:
    return {**few_rows(), **{kind: table_of(kind, rows) for kind, rows in ROWS.items()}}


@pytest.fixture(scope="module")
def built(tables: dict[str, Table]) -> bytes:
    return workbook_package(tables)


def _errors(book: Any) -> set[tuple[str, str]]:
    return {(s.title, cell.coordinate) for s in book for row in s.iter_rows() for cell in row if cell.data_type == "e"}


def _last_row(book: Any, kind: str) -> int:
    """Last row of the table of a sheet; charts stand below it."""
    edges: Any = openpyxl.utils.range_boundaries(book[kind].tables[kind].ref)
    return int(edges[3])


def _cells(book: Any, kind: str) -> list[dict[str, Any]]:
    header, *rows = book[kind].iter_rows(min_row=4, max_row=_last_row(book, kind), values_only=True)
    return [dict(zip(header, row, strict=True)) for row in rows if row[0]]  # blank rows belong to the table too


def _header(kind: str, name: str) -> str:
    return results_of(kind).by_name[name].header


@cache
def _values(built: bytes) -> Any:
    return openpyxl.load_workbook(io.BytesIO(built), data_only=True)


def test_results_are_formulas_of_their_row_with_the_values_of_the_engine(
    tables: dict[str, Table], built: bytes
) -> None:
    book, values = openpyxl.load_workbook(io.BytesIO(built)), _values(built)
    catalog = Catalog.from_tables([table for kind, table in tables.items() if kind not in PLAN_TABLES], "test")
    good = evaluate_designs(tables["chiplets"].take([0]), catalog)
    result = {"chiplets": good, "servers": evaluate_servers(tables["servers"])}
    for kind in KINDS:
        native = {column.name: column for column in book[kind].tables[kind].tableColumns}
        assert list(native) == [column.header for column in sheet_columns(kind)]
        shown = _cells(values, kind)
        for name in LIVE_RESULTS[kind]:
            header = _header(kind, name)
            assert native[header].calculatedColumnFormula.text == plan_formula(kind, name)
            assert {row[header] for row in _cells(book, kind)} == {f"={plan_formula(kind, name)}"}
            for row in range(len(result[kind])):
                wanted = result[kind][name][row] if name != "reason" else ""
                if isinstance(wanted, str):
                    assert shown[row][header] == (wanted or "ok")
                elif math.isnan(wanted):
                    assert name.endswith(PLANNED)
                    assert shown[row][header] in (None, "")
                else:
                    assert shown[row][header] == wanted / unit_of(results_of(kind).by_name[name]).factor
    wrong = _cells(values, "chiplets")[1]
    assert wrong[_header("chiplets", "unit_cost")] == "#VALUE!"
    assert "larger than the reticle" in wrong["reason"]
    fed = _cells(values, "servers")[1]
    assert fed[_header("servers", "accelerators_planned")] > 0
    assert fed[_header("servers", "power_planned")] <= 10.0


def test_parts_add_up_in_the_cells(built: bytes) -> None:
    """Dies, package, memory, test and losses are the module; with the board the bill; seven parts are an hour."""
    values = _values(built)
    design = _cells(values, "chiplets")[0]
    names = LIVE_RESULTS["chiplets"]
    module = design["module cost (USD)"]
    parts = names[names.index("raw_dies") : names.index("module_cost")]
    assert sum(design[_header("chiplets", name)] for name in parts) == pytest.approx(module, rel=1e-12)
    assert design["bill of materials (USD)"] == pytest.approx(module + (design["board cost (USD)"] or 0.0), rel=1e-12)
    server = _cells(values, "servers")[0]
    assert set(grouped("servers_results", "hour")) < set(LIVE_RESULTS["servers"])
    hour = sum(server[_header("servers", name)] for name in grouped("servers_results", "hour"))
    assert hour == pytest.approx(server["cost rate (USD/h)"], rel=1e-12)


def test_readers_leave_results_out(tables: dict[str, Table], built: bytes, tmp_path: Path, command: Any) -> None:
    path = tmp_path / "study.xlsx"
    path.write_bytes(built)
    again = read_tables(path)
    for kind in KINDS:
        columns = table_schema(kind).columns
        assert data_rows(again[kind], columns) == data_rows(tables[kind], columns)
    good = tmp_path / "designs.csv"
    good.write_text("chiplet,package,node,module area (mm2),board cost (USD)\nA,CoWoS-S,5 nm,400,30\n")
    first: Outcome = command("cost", good, "-o", tmp_path / "out.csv")
    second: Outcome = command("cost", tmp_path / "out.csv", "-o", tmp_path / "again.csv")
    assert (first.code, second.code) == (0, 0), second.err
    assert (tmp_path / "again.csv").read_text() == (tmp_path / "out.csv").read_text()
    header = (tmp_path / "out.csv").read_text().splitlines()[0].split(",")
    assert len(header) == len(set(header))
    assert "board cost (USD)" in header
    good.write_text("chiplet,package,node,module area (mm2),unit price\nA,CoWoS-S,5 nm,400,1\n")
    refused: Outcome = command("cost", good)
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert "unknown column" in refused.err


def test_a_cell_gives_what_stands_beside_it(tables: dict[str, Table], built: bytes, tmp_path: Path) -> None:
    session = Session(CatalogStore(tmp_path / "catalogs"))
    blocks = []
    for kind in ("process_nodes", "packages"):
        columns = table_schema(kind).columns
        blocks.append([[column.header for column in columns], *data_rows(tables[kind], columns)])
    ((handle,),) = session.call("XLPERF_CATALOG", blocks)
    values = _values(built)
    for kind, function in (("chiplets", "XLPERF_PACKAGE_COST"), ("servers", "XLPERF_SERVER_COST")):
        columns = table_schema(kind).columns
        header = [[column.header for column in columns]]
        for row, shown in zip(data_rows(tables[kind], columns), _cells(values, kind), strict=True):
            for name in LIVE_RESULTS[kind]:
                if not name.endswith(PLANNED):
                    ((cell,),) = session.call(function, [[row], name.replace("_", " "), handle, header])
                    wanted = shown[_header(kind, name)]
                    if isinstance(cell, CellError):
                        assert cell.code == wanted
                    else:
                        assert cell == wanted, name


def test_rows_of_the_cost_sheets_show_their_texts_whole() -> None:
    book = shipped_book()
    for kind in ("process_nodes", "packages", *KINDS):
        sheet = book[kind]
        widths = {at: own.width for at, own in sheet.column_dimensions.items() if not own.hidden}
        for row in sheet.iter_rows(min_row=5, max_row=_last_row(book, kind)):
            texts = [cell for cell in row if cell.data_type == "s"]
            long = [cell for cell in texts if len(cell.value) > widths.get(cell.column_letter, 999.0)]
            assert all(cell.alignment.wrap_text for cell in long)


def test_libreoffice_without_the_functions_shows_the_values(
    built: bytes, converted: Callable[..., Path], tmp_path: Path
) -> None:
    path = tmp_path / "study.xlsx"
    path.write_bytes(built)
    (tmp_path / "empty.xlsx").write_bytes(workbook_package({}, values=False, examples=False))
    converted(tmp_path, "xlsx", path, tmp_path / "empty.xlsx")
    ours, results = _values(built), tmp_path / "out"
    theirs, shown = (openpyxl.load_workbook(results / f"{name}.xlsx", data_only=True) for name in ("study", "empty"))
    for kind, name in (("chiplets", "unit_cost"), ("servers", "cost_rate")):
        header = _header(kind, name)
        assert _cells(theirs, kind)[0][header] == pytest.approx(_cells(ours, kind)[0][header], rel=1e-12)
    # Blank rows show nothing, not the name of a function that is not there; without a plan the cards have no bars.
    assert _errors(theirs) <= _errors(ours)
    errors = {(sheet, cell) for sheet, cell in _errors(shown) if sheet != "calc plans"}
    assert errors <= _errors(openpyxl.load_workbook(tmp_path / "empty.xlsx", data_only=True))


def test_a_dummy_die_is_one_bond_more() -> None:
    """Five stacks and a dummy beside one die: seven bonds of 0.99 and an area of six stacks."""
    package = {"package": "silicon", "structure": "silicon-interposer", "carrier_wafer_price": 10_000,
               "bonding_yield": 0.99, "attach_yield": 0.98}  # fmt: skip
    design = {"chiplet": "with", "package": "silicon", "node": "5 nm", "module_area": 800, "die_width": 26,
              "memory_stacks": 5, "stack_capacity": 16, "memory_price": 10, "num_dummy_dies": 1}  # fmt: skip
    rows = [design, {**design, "chiplet": "without", "num_dummy_dies": None}]
    catalog = load_catalog().with_tables([table_of("process_nodes", [NODE]), table_of("packages", [package])])
    result = evaluate_designs(table_of("chiplets", rows), catalog)
    assert result["carrier_area"].tolist() == [800.0 + 6 * 110.0, 800.0 + 5 * 110.0]
    np.testing.assert_allclose(result["wasted_memory"], [800.0 * (0.99**-n / 0.98 - 1.0) for n in (7, 6)], rtol=1e-12)


def test_large_carriers_are_counted_nearer_to_whole_ones() -> None:
    """28 to 29 interposers of an H100 (1,843 mm2) are published, and whole squares on a grid are 28."""
    package = {"package": "silicon", "structure": "silicon-interposer", "carrier_wafer_price": 12_000,
               "carrier_area_ratio": 1.25, "carrier_count": "exponential"}  # fmt: skip
    design = {"chiplet": "H", "package": "silicon", "node": "5 nm", "module_area": 814, "die_width": 26,
              "memory_stacks": 6, "stack_capacity": 16, "memory_price": 0}  # fmt: skip

    def carriers(count: str) -> float:
        own = {**package, "carrier_count": count, "substrate_price": 0}
        catalog = load_catalog().with_tables([table_of("process_nodes", [NODE]), table_of("packages", [own])])
        return 12_000.0 / float(evaluate_designs(table_of("chiplets", [design]), catalog)["raw_package"][0])

    pitch = (math.sqrt(1842.5) + 0.1) ** 2
    by_hand = math.pi * 147.0**2 / pitch * math.exp(-math.sqrt(pitch) / 147.0)
    assert carriers("exponential") == pytest.approx(by_hand, rel=1e-12)
    assert carriers("exponential") == pytest.approx(28.5, rel=0.05)
    assert carriers("formula") < 22.0
