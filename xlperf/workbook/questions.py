"""The front sheets: three questions, each a form with its answer, and the sheets with their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from openpyxl.styles import Font

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import PLAN_TABLES, results_of, table_schema
from xlperf.catalog.table import CASES, Table
from xlperf.workbook.chip_sheet import OTHERS as SOLD
from xlperf.workbook.chip_sheet import chip_sheet
from xlperf.workbook.compare_sheet import compare_sheet
from xlperf.workbook.data_sheets import BLANK_ROWS, SCENARIO_CELL, column_reference
from xlperf.workbook.live import Live
from xlperf.workbook.package import Formulas
from xlperf.workbook.question_look import FACE, GREY, NUMBERS, SHEETS, foot
from xlperf.workbook.serve_sheet import OTHERS, serve_sheet
from xlperf.workbook.style import page_setup
from xlperf.workbook.tables import data_rows
from xlperf.workbook.train_sheet import train_sheet

if TYPE_CHECKING:
    from openpyxl import Workbook


def live_cells(
    tables: Mapping[str, Table],
    catalog: Catalog | None,
    formulas: Formulas,
    results: Mapping[str, Mapping[str, list[Any]]],
) -> Live:
    """What computes the formulas of front sheets and cards, over the plans and the checks of a workbook.

    ``tables``: sheets of the workbook by kind. ``catalog``: for the values beside the formulas; none: formulas alone.
    ``formulas``: where the values are kept; the checks stand there. ``results``: cells of live results, by kind and
    name.
    """
    live = Live(formulas, catalog)
    live.values |= {("checks", cell): value for cell, value in formulas.values.get("checks", {}).items()}
    live.values["start", SCENARIO_CELL] = CASES[1]
    for kind in PLAN_TABLES:
        columns = table_schema(kind).columns
        rows = [*data_rows(tables[kind], columns), *([None] * len(columns) for _ in range(BLANK_ROWS))]
        cells = zip(*rows, strict=True)
        live.columns |= {column_reference(column): list(own) for column, own in zip(columns, cells, strict=True)}
    owner = table_schema("servers").by_name["accelerator"]
    servers = data_rows(tables["servers"], [owner]) if "servers" in tables else []
    live.columns[column_reference(owner)] = [row[0] for row in servers] + [None] * BLANK_ROWS
    for name, own in results.get("servers", {}).items():
        live.columns[column_reference(results_of("servers").by_name[name])] = list(own)
    return live


def question_sheets(workbook: Workbook, tables: Mapping[str, Table], live: Live) -> None:
    """Add the front sheets, first in the workbook, and the sheets that hold their numbers, last so far.

    ``workbook``: changed in place; the name ``catalog`` and the names of drop-downs stand in it. ``tables``: sheets of
    the workbook by kind. ``live``: writes formulas with their values.
    """
    known = set(tables["accelerators"].text("accelerator").tolist())
    others = [name for name in OTHERS if name in known]
    numbers = [workbook.create_sheet(name) for name in NUMBERS]
    fronts = [workbook.create_sheet(name, place) for place, name in enumerate(SHEETS)]
    serve_sheet(fronts[0], numbers[0], live, others)
    train_sheet(fronts[1], numbers[1], live)
    chip_sheet(fronts[2], numbers[2], live, [name for name in SOLD if name in known])
    compare_sheet(fronts[3], numbers[3], live)
    for front, data in zip(fronts, numbers, strict=True):
        foot(front, data.title, live)
    for data in numbers:
        numbers_look(data)


def numbers_look(data: Any) -> None:
    """The look of a sheet that holds numbers of front sheets or cards."""
    data.sheet_properties.tabColor = GREY
    for row in data.iter_rows():
        for cell in row:
            cell.font = Font(name=FACE, size=9)
            if cell.number_format == "General" and (cell.data_type == "f" or isinstance(cell.value, float)):
                cell.number_format = "#,##0.####"
    wide = {"A": 34, "B": 26, "D": 20}
    for letters in {cell.column_letter for row in data.iter_rows() for cell in row if cell.value is not None}:
        data.column_dimensions[letters].width = wide.get(letters, 16)
    page_setup(data, pages_high=1)
