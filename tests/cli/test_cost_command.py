"""``xlperf cost`` and the sheets of the cost half: files in and out, one line for each bad cell, workbooks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pytest
from conftest import Outcome, csv_rows
from cost_samples import COST_ROWS, DESIGN, NODE
from shipped import few_rows, plain_workbook

from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.check import check
from xlperf.catalog.read import read_designs
from xlperf.catalog.schema import COST_TABLES, results_of, table_schema, unit_of
from xlperf.engine.devices import evaluate_designs
from xlperf.engine.ownership import evaluate_servers
from xlperf.workbook.build import build, workbook_package
from xlperf.workbook.data_sheets import sheet_columns, table_of

Command = Callable[..., Outcome]
HEADER = "chiplet,package,node,num dies,module area (mm2),link area share,volume"
GOOD = "one,organic,5 nm,2,400,0.1,1000000"
NO_PLANS: dict[str, list[Any]] = {"training": [], "inference": []}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workbook with the four sheets of cost."""
    path = tmp_path_factory.mktemp("study") / "study.xlsx"
    path.write_bytes(workbook_package({**few_rows(), **NO_PLANS, **COST_ROWS}))
    return path


def _write(path: Path, *rows: str, header: str = HEADER) -> Path:
    path.write_text("\n".join([header, *rows, ""]), encoding="utf-8")
    return path


def test_designs_to_csv(command: Command, study: Path, tmp_path: Path) -> None:
    designs = _write(tmp_path / "designs.csv", GOOD, "two,organic,5 nm,1,800,,1000000")
    done = command("cost", designs, "-o", tmp_path / "results.csv", "--catalog", study)
    assert (done.code, done.err.strip()) == (0, f"{tmp_path / 'results.csv'}: 2 designs")
    rows = csv_rows((tmp_path / "results.csv").read_text(encoding="utf-8"))
    given = ["chiplet", "package", "node", "num_dies", "module_area", "link_area_share", "volume"]
    assert list(rows[0]) == [*given, *(column.name for column in results_of("chiplets").columns)]
    table = read_designs(designs)
    results = evaluate_designs(table, load_catalog(study))
    for column in results_of("chiplets").columns:
        if not column.is_text:
            shown = [float(row[column.name] or "nan") for row in rows]
            np.testing.assert_array_equal(shown, results[column.name] / unit_of(column).factor)
    assert float(rows[0]["die_area"]) == pytest.approx(440.0)
    streamed = command("cost", designs, "--catalog", study)
    assert streamed.out == (tmp_path / "results.csv").read_text(encoding="utf-8")


def test_cases_change_the_cost(command: Command, tmp_path: Path) -> None:
    rows = [{**NODE, "wafer_price_low": 10_000, "defect_density_high": 0.3}]
    other = tmp_path / "other.xlsx"
    plain_workbook(other, {**COST_ROWS, "process_nodes": rows})
    designs = _write(tmp_path / "designs.csv", GOOD)

    def module(*options: str) -> float:
        done = command("cost", designs, "--catalog", other, *options)
        assert done.code == 0, done.err
        return float(csv_rows(done.out)[0]["module_cost"])

    assert module("--case", "low") < module() < module("--case", "high")


def test_a_workbook_is_its_own_catalog(command: Command, study: Path, tmp_path: Path) -> None:
    done = command("cost", study, "-o", tmp_path / "results.xlsx")
    assert done.code == 0, done.err
    sheet = openpyxl.load_workbook(tmp_path / "results.xlsx")["chiplets"]
    header = [cell.value for cell in sheet[1]]
    assert "module cost (USD)" in header
    value = sheet.cell(2, header.index("module cost (USD)") + 1).value
    catalog = load_catalog(study)
    assert value == pytest.approx(evaluate_designs(catalog.tables["chiplets"], catalog)["module_cost"][0])


def test_servers(command: Command, tmp_path: Path) -> None:
    header = "server,accelerator price (USD),server price (USD),server power (kW),discount rate"
    path = _write(tmp_path / "servers.csv", "HGX,25000,45000,10.2,0.08", header=header)
    done = command("cost", path)
    assert done.code == 0, done.err
    row = csv_rows(done.out)[0]
    expected = evaluate_servers(read_designs(path))["cost_rate"][0] * 3600.0
    assert float(row["cost_rate"]) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("a,organic,5 nm,2,-400,,1", 'module area must be a number above 0 (mm2), got "-400"'),
        ("a,organic,5 nm,2,0,,1", "module area must be a number above 0 (mm2)"),
        ("a,organic,5 nm,2,,,1", "module area is missing; it must be a number above 0 (mm2)"),
        ("a,organic,5 nm,1,900,,1", "is larger than the reticle of 26 x 33 mm; split it, or give its node a stitch"),
        ("a,organic,6 nm,2,400,,1", 'unknown node "6 nm"; did you mean 5 nm'),
        ("a,organik,5 nm,2,400,,1", 'unknown package "organik"; did you mean organic'),
        ("a,organic,5 nm,2,400,,0", "volume must be a number above 0"),
        ("a,organic,5 nm,zwei,400,,1", "num dies must be a whole number of at least 1"),
    ],
)
def test_bad_cells_are_one_line_each(command: Command, study: Path, tmp_path: Path, row: str, words: str) -> None:
    designs = _write(tmp_path / "designs.csv", GOOD, row)
    done = command("cost", designs, "--catalog", study, "-o", tmp_path / "results.csv")
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert line.startswith("designs.csv [")
    assert words in line
    assert "3" in line.split("]")[0], "the line of the file is named"
    assert not (tmp_path / "results.csv").exists()


@pytest.mark.parametrize(
    ("kind", "column", "value", "words"),
    [
        ("packages", "bonding_yield", 1.2, "bonding yield must be a number from 0 to 1"),
        ("packages", "structure", "glue", "structure must be one of"),
        ("process_nodes", "defect_density", -1, "defect density must be a number of at least 0 (1/cm2)"),
        ("process_nodes", "yield_model", "hope", "yield model must be one of"),
        ("chiplets", "test_coverage", 2, "test coverage must be a number from 0 to 1"),
        ("chiplets", "num_base_dies", 2, "base area must be given where there are base dies"),
        ("chiplets", "memory_stacks", 2, "stack capacity must be given where there are stacks of memory"),
        ("chiplets", "link_bandwidth", 100, 'package "organic" has no die-to-die link'),
    ],
)
def test_bad_rows_of_sheets(kind: str, column: str, value: object, words: str) -> None:
    from xlperf.base.errors import InputError

    rows = {name: [{**own[0], **({column: value} if name == kind else {})}] for name, own in COST_ROWS.items()}
    with pytest.raises(InputError) as raised:
        tables = [table_of(name, own) for name, own in rows.items() if name != "servers"]
        catalog = load_catalog().with_tables(tables)
        evaluate_designs(catalog.tables["chiplets"], catalog)
    assert words in str(raised.value)


def test_files_that_hold_no_designs(command: Command, tmp_path: Path) -> None:
    path = _write(tmp_path / "plans.csv", "a,b,8", header="name,accelerator,num accelerators")
    done = command("cost", path)
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert 'needs a column "chiplet" or "server"' in done.err
    done = command("cost", tmp_path / "none.csv")
    assert (done.code, len(done.err.splitlines())) == (2, 1)


def test_a_workbook_with_cost_sheets_is_built_from_its_rows(study: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.xlsx"
    again.write_bytes(study.read_bytes())
    build(again)
    assert again.read_bytes() == study.read_bytes()
    book: Any = openpyxl.load_workbook(study)
    for kind in COST_TABLES:
        assert list(book[kind].tables) == [kind]
        header = [cell.value for cell in book[kind][4]]
        assert header == [column.header for column in sheet_columns(kind)]
        names = f"{table_schema(kind).key.name}_names"
        assert names in book.defined_names
        listed = {rule.formula1 for rule in book[kind].data_validations.dataValidation}
        choices = [f"{kind}_{c.name}_choices" for c in table_schema(kind).columns if c.kind == "choice"]
        assert set(choices) <= listed
        assert set(choices) <= set(book.defined_names)
    assert {"node_names", "package_names"} <= {
        rule.formula1 for rule in book["chiplets"].data_validations.dataValidation
    }


def test_older_workbooks_without_these_sheets_still_load(tmp_path: Path, study: Path) -> None:
    path = tmp_path / "older.xlsx"
    own = {kind: table for kind, table in few_rows().items() if kind not in COST_TABLES}
    plain_workbook(path, own)
    assert set(COST_TABLES) <= set(load_catalog(path).tables)
    findings = check(study)
    assert findings.counts["chiplets"] == 1
    catalog = load_catalog(study)
    edited = catalog.with_tables([table_of("chiplets", [{**DESIGN, "module_area": 401}])])
    assert catalog.with_tables([]).fingerprint == catalog.fingerprint != edited.fingerprint
