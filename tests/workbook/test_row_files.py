"""Rows of the shipped workbooks as CSV files in git: they equal the workbooks, and edits go both ways."""

from __future__ import annotations

from pathlib import Path

import pytest
from shipped import plain_workbook, shipped_parts, shipped_tables

from xlperf.base.errors import InputError
from xlperf.base.resources import workbook
from xlperf.workbook import build, package


def _same_files(written: Path, stored: Path) -> None:
    assert sorted(path.name for path in written.iterdir()) == sorted(path.name for path in stored.iterdir())
    for path in written.iterdir():
        assert path.read_bytes() == (stored / path.name).read_bytes(), (
            f"{path.name} differs from the workbook: python -m xlperf.workbook.build builds the workbook from it, "
            "--rows takes edits of the workbook back"
        )


def test_rows_in_text_are_the_rows_of_the_workbook(tmp_path: Path) -> None:
    package.write_tables(tmp_path, build.read_tables(workbook()))
    _same_files(tmp_path, package.rows_folder("xlperf.xlsx"))


def test_rows_in_text_are_the_rows_of_the_validation_workbook() -> None:
    in_text = build.rows_in_text()
    in_workbook = shipped_parts()
    assert {sheet: cells[0] for sheet, cells in in_text.items()} == {
        sheet: cells[0] for sheet, cells in in_workbook.items()
    }
    for sheet, cells in in_text.items():
        for number, (row, shipped) in enumerate(zip(cells, in_workbook[sheet], strict=True), start=1):
            assert row == shipped, f"{sheet}.csv row {number}"


def test_an_edit_of_the_workbook_goes_into_the_text_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "rows_folder", lambda name: tmp_path / Path(name).stem)
    tables = shipped_tables()
    names = tables["accelerators"]["accelerator"].copy()
    names[0] = "Renamed, with a comma"
    edited = {**tables, "accelerators": tables["accelerators"].with_columns({"accelerator": names})}
    build.write_rows(plain_workbook(tmp_path / "edited.xlsx", edited))
    assert package.read_rows(tmp_path / "xlperf")["accelerators"]["accelerator"][0] == "Renamed, with a comma"
    before = (workbook().parent / "rows" / "xlperf" / "models.csv").read_bytes()
    assert (tmp_path / "xlperf" / "models.csv").read_bytes() == before


def test_a_row_with_too_few_cells_is_named(tmp_path: Path) -> None:
    path = tmp_path / "power.csv"
    path.write_text("row_id,watts\na,1\nb\n")
    with pytest.raises(InputError, match=r"power\.csv \[row 3\]: has 1 cells for 2 columns"):
        package.read_cells(path, {})
