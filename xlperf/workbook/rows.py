"""Rows of the shipped workbooks as text in git: one CSV file per sheet under ``workbooks/rows``.

``python -m xlperf.workbook.build`` builds the workbooks from these files, and ``--rows`` writes the files anew from a
workbook that was edited. A pull request shows the cells that change.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xlperf.base import resources
from xlperf.base.errors import Fault, InputError
from xlperf.catalog.read import read_catalog_tables, read_plans
from xlperf.catalog.schema import PLAN_TABLES, table_schema
from xlperf.catalog.table import Table
from xlperf.workbook.package import data_rows, replace_file

Cells = list[list[Any]]
_WORDS = {"TRUE": True, "FALSE": False}


def rows_folder(workbook: str) -> Path:
    """Folder with the rows of a shipped workbook, in a checkout: ``workbooks/rows/xlperf``."""
    return resources.workbook("xlperf.xlsx").parent / "rows" / Path(workbook).stem


def cell_text(value: Any) -> str:
    """A cell as text that reads back the same: whole numbers without a point, blank for None.

    >>> cell_text(8.0), cell_text(0.1), cell_text(True), cell_text(None)
    ('8', '0.1', 'TRUE', '')
    """
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    return "" if value is None else str(value)


def text_cell(text: str, is_text: bool = False) -> Any:
    """A cell from its text; ``is_text``: numbers and flags are text too.

    >>> text_cell("8"), text_cell("8", is_text=True), text_cell("TRUE"), text_cell("")
    (8.0, '8', True, None)
    """
    if not text:
        return None
    if is_text:
        return text
    if text in _WORDS:
        return _WORDS[text]
    try:
        number = float(text)
    except ValueError:
        return text
    return number if cell_text(number) == text else text


def write_cells(path: Path, cells: Cells) -> None:
    """Write a header and rows to a CSV file, which is replaced whole."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([map(cell_text, row) for row in cells])
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, stream.getvalue().encode())


def read_cells(path: Path, text_columns: Mapping[str, bool]) -> Cells:
    """Header and rows of a CSV file of cells; ``text_columns``: by column whether its cells are text.

    Raises InputError with every row that has not a cell for each column.
    """
    header, *rows = csv.reader(path.read_text(encoding="utf-8").splitlines(keepends=True))
    faults = [
        Fault(f"{path.name} [row {number}]", f"has {len(row)} cells for {len(header)} columns")
        for number, row in enumerate(rows, start=2)
        if len(row) != len(header)
    ]
    if faults:
        raise InputError(faults)
    are_text = [text_columns.get(name, False) for name in header]
    return [list(header), *([text_cell(cell, word) for cell, word in zip(row, are_text, strict=True)] for row in rows)]


def write_tables(folder: Path, tables: Mapping[str, Table]) -> list[Path]:
    """Write the inputs of each table to ``<kind>.csv``, without columns that are blank in every row."""
    paths = []
    for kind, table in tables.items():
        columns = [column for column in table_schema(kind).columns if not column.is_result]
        rows = data_rows(table, columns)
        filled = [at for at in range(len(columns)) if any(row[at] is not None for row in rows)]
        header = [columns[at].header for at in filled]
        write_cells(folder / f"{kind}.csv", [header, *([row[at] for at in filled] for row in rows)])
        paths.append(folder / f"{kind}.csv")
    return paths


def read_tables(folder: Path) -> dict[str, Table]:
    """Tables of a folder of CSV files by kind, plans among them.

    Raises InputError with every fault of every file.
    """
    catalog = sorted(path for path in folder.glob("*.csv") if path.stem not in PLAN_TABLES)
    tables: dict[str, Table] = {}
    faults: list[Fault] = []
    for path in catalog:
        read, more = read_catalog_tables(path, required=False)
        tables |= {table.kind: table for table in read}
        faults += more
    if faults:
        raise InputError(faults)
    for kind in PLAN_TABLES:
        tables |= {table.kind: table for table in read_plans(folder / f"{kind}.csv", kind=kind)}
    return tables
