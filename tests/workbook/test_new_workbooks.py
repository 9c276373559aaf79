"""Workbooks to start from (all, examples, empty), and the workbook of published measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openpyxl
import pytest
from shipped import shipped_parts

from xlperf.base.errors import InputError
from xlperf.base.resources import workbook
from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.schema import PLAN_TABLES, table_schema
from xlperf.workbook.build import (
    KINDS,
    PARTS,
    PREDICTED,
    main,
    new_workbook,
    read_parts,
    read_tables,
    validation_package,
)
from xlperf.workbook.data_sheets import header_row, plan_formula, sheet_groups
from xlperf.workbook.front.layout import SHEETS
from xlperf.workbook.front.plan_card import NUMBERS as CARD_NUMBERS
from xlperf.workbook.front.start import example_tables
from xlperf.workbook.package import data_rows

MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


def test_a_new_workbook_is_the_shipped_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.xlsx"
    new_workbook(path)
    assert load_catalog(path).fingerprint == load_catalog().fingerprint
    assert len(read_tables(path)["training"]) == len(read_tables(workbook())["training"])


def test_a_workbook_of_examples_is_small_and_all_of_it_answers(tmp_path: Path) -> None:
    path = tmp_path / "small.xlsx"
    new_workbook(path, "examples")
    result = read_tables(path)
    shipped = example_tables(read_tables(workbook()))
    for kind, table in shipped.items():
        stated = [column.name for column in table_schema(kind).columns if column.name in table]
        again = [column.name for column in table_schema(kind).columns if column.name in result[kind]]
        assert data_rows(result[kind], [table_schema(kind).by_name[name] for name in again]) == data_rows(
            table, [table_schema(kind).by_name[name] for name in stated]
        ), f"templates/study.xlsx is old in {kind}: python -m xlperf.workbook.build"
    sizes = {kind: len(table) for kind, table in result.items()}
    assert (sizes["training"], sizes["inference"], sizes["chiplets"], sizes["servers"]) == (3, 4, 1, 4)
    assert sizes["models"] <= 8 and sizes["accelerators"] <= 10 and sizes["prices"] <= sizes["accelerators"]
    book = openpyxl.load_workbook(path, data_only=True)
    assert book.sheetnames[: 1 + len(SHEETS)] == ["start", *SHEETS]
    for name in SHEETS:
        assert book[name]["F5"].value and not book[name]["F5"].value.startswith("No answer")
    for kind in PLAN_TABLES:
        at = [cell.value for cell in book[kind][header_row(kind)]].index("fits") + 1
        top = header_row(kind)
        assert [book[kind].cell(top + 1 + row, at).value for row in range(sizes[kind])] == [True] * sizes[kind]


def test_an_empty_workbook_has_all_headers_and_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "empty.xlsx"
    new_workbook(path, "empty")
    result = read_tables(path)
    assert {kind: len(table) for kind, table in result.items() if kind != "calibration"} == dict.fromkeys(
        ["training", "inference", "accelerators", "networks", "models", "prices", "own_runs"], 0
    )
    book = openpyxl.load_workbook(path)
    listed = [name for group in sheet_groups() for name in group.sheets if name in book.sheetnames]
    assert book.sheetnames == ["start", *listed, CARD_NUMBERS]
    assert set(listed) == {*KINDS, "own_runs", "tco", "checks", "functions"}
    native = {column.name: column for column in book["training"].tables["training"].tableColumns}
    assert native["step time (s)"].calculatedColumnFormula.text == plan_formula("training", "step_time")


@pytest.fixture(scope="module")
def published() -> dict[str, list[list[Any]]]:
    return shipped_parts()


def test_validation_holds_the_published_rows(published: dict[str, list[list[Any]]]) -> None:
    from xlperf.measurements.published import published_columns

    for kind, papers in (("training", 11), ("inference", 22)):
        header = published[kind][0]
        assert header == list(published_columns()[kind])
        group = header.index("group")
        assert sum(row[group] == "papers" for row in published[kind][1:]) == papers
        names = [row[0] for row in published[kind][1:]]
        assert len(set(names)) == len(names)
    assert len(published["training"]) - 1 >= 1373
    assert len(published["inference"]) - 1 >= 2952
    assert len(published["kernels"]) - 1 >= 18440
    assert published["tolerances"][0][:4] == ["group", "metric", "statistic", "bound"]


def test_validation_gives_the_same_bytes(published: dict[str, list[list[Any]]], tmp_path: Path) -> None:
    few = {sheet: rows[:40] for sheet, rows in published.items()}
    data = validation_package(few)
    path = tmp_path / "few.xlsx"
    path.write_bytes(data)
    assert main(["--validation", str(path)]) == 0
    once = path.read_bytes()
    assert main(["--validation", str(path)]) == 0
    assert path.read_bytes() == once
    book = openpyxl.load_workbook(path)
    assert book.sheetnames == ["start", *(part.sheet for part in PARTS), "predictions"]
    for part in (*PARTS, PREDICTED):
        assert list(book[part.sheet].tables) == [part.table]
    sheet = book["predictions"]
    header = [cell.value for cell in sheet[4]]
    first = dict(zip(header, [cell.value for cell in sheet[5]], strict=True))
    assert first["row_id"] == "T00001"
    assert first["relative_error"] == pytest.approx(abs(first["predicted"] / first["measured"] - 1))


def test_validation_faults_name_the_sheet(tmp_path: Path) -> None:
    path = tmp_path / "odd.xlsx"
    book = openpyxl.Workbook()
    book.active.title = "training"
    book.save(path)
    with pytest.raises(InputError, match="row_id"):
        read_parts(path)


def test_a_column_of_published_rows_that_a_workbook_lacks_is_written_into_it(
    published: dict[str, list[list[Any]]], tmp_path: Path
) -> None:
    """Settings of training rows, which the first sheets did not have; those that a sheet has are kept."""
    path = tmp_path / "few.xlsx"
    few = {sheet: rows[:5] for sheet, rows in published.items()}
    at = few["training"][0].index("settings")
    few["training"] = [[*row[:at], *row[at + 1 :]] for row in few["training"]]
    path.write_bytes(validation_package(few))
    again = read_parts(path)["training"]
    assert again[0][-1] == "settings" and all(row[-1] is None for row in again[1:])
    again[1][-1] = "compiled=yes"
    path.write_bytes(validation_package({**few, "training": again}))
    assert [row[-1] for row in read_parts(path)["training"]] == ["settings", "compiled=yes", None, None, None]
