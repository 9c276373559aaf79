"""The front sheets: three questions, each a form with its answer, and the sheet ``calculation`` behind them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from openpyxl.styles import Font

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.workbook.live import Live
from xlperf.workbook.package import Formulas
from xlperf.workbook.question_look import FACE, GREY, SHEETS
from xlperf.workbook.serve_sheet import OTHERS, serve_sheet

if TYPE_CHECKING:
    from openpyxl import Workbook

CALCULATION = "calculation"


def question_sheets(
    workbook: Workbook, tables: Mapping[str, Table], catalog: Catalog | None, formulas: Formulas
) -> None:
    """Add the front sheets, first in the workbook, and the sheet ``calculation``, last so far.

    Parameters
    ----------
    workbook : Workbook
        Changed in place; the name ``catalog`` and the names of drop-downs stand in it.
    tables : mapping
        Sheets of the workbook by kind.
    catalog : Catalog, optional
        For the values beside the formulas; none: formulas alone.
    formulas : Formulas
        Where the values are kept.
    """
    live = Live(formulas, catalog)
    data = workbook.create_sheet(CALCULATION)
    known = set(tables["accelerators"].text("accelerator").tolist())
    others = [name for name in OTHERS if name in known]
    serve_sheet(workbook.create_sheet(SHEETS[0], 0), data, live, others)
    data.sheet_properties.tabColor = GREY
    for row in data.iter_rows():
        for cell in row:
            cell.font = Font(name=FACE, size=9)
            if cell.number_format == "General" and (cell.data_type == "f" or isinstance(cell.value, float)):
                cell.number_format = "#,##0.####"
    for letter, width in (("A", 34), ("B", 26), ("D", 20), ("E", 16)):
        data.column_dimensions[letter].width = width
