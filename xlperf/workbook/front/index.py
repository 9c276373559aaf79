"""The order and colours of the sheets, and their list on the sheet ``start``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from openpyxl.styles import Alignment

from xlperf.catalog.table import Table
from xlperf.workbook.data_sheets import DATA_SHEETS
from xlperf.workbook.front.formulas import Live
from xlperf.workbook.sheet_list import SheetGroup, index_tops, sheet_groups
from xlperf.workbook.style import NAVY, link, put
from xlperf.workbook.tco import TITLE

if TYPE_CHECKING:
    from openpyxl import Workbook


def arrange(workbook: Workbook, tables: Mapping[str, Table], live: Live) -> None:
    """Order, colour and list the sheets by group; hide the sheets that only hold numbers of charts and cards.

    ``workbook``: changed in place, it has all its sheets. ``tables``: sheets by kind. ``live``: writes the answers.
    """
    book: Any = workbook
    start = book["start"]
    start.sheet_properties.tabColor = NAVY
    order, below = [start], index_tops()
    for group in sheet_groups():
        present = [name for name in group.sheets if name in book.sheetnames]
        if present:
            order += [book[name] for name in present]
            _listed(start, group, present, below[group.place], tables, live)
            below[group.place] += len(present) + 1
    hidden = [sheet for sheet in book.worksheets if sheet not in order]
    for sheet in hidden:
        sheet.sheet_state = "hidden"
    book._sheets = [*order, *hidden]
    book.active = 0
    for sheet in book.worksheets:
        sheet.sheet_view.tabSelected = sheet is start


def _listed(
    start: Any, group: SheetGroup, names: Sequence[str], top: int, tables: Mapping[str, Table], live: Live
) -> None:
    """List the sheets of a group below its heading: each with its question and answer, or with its number of rows."""
    titles = {kind: DATA_SHEETS[kind].title for kind in tables} | {"tco": TITLE, "checks": "Checks"}
    first, second = ("E", "F") if group.place == "right" else ("B", "C")
    put(start[f"{first}{top}"], group.words, "xlperf heading")
    for row, name in enumerate(names, start=top + 1):
        start.parent[name].sheet_properties.tabColor = group.colour
        link(start[f"{first}{row}"], name, titles.get(name, name.capitalize()))
        beside = start[f"{second}{row}"]
        if group.place == "top":
            put(beside, group.questions[group.sheets.index(name)], "xlperf text", wrapped=True)
            live.styled(start[f"D{row}"], f"='{name}'!F5&\"\"", "xlperf note")
            start[f"D{row}"].alignment = Alignment(horizontal="left", vertical="center", indent=1, wrap_text=True)
            start.merge_cells(f"D{row}:G{row}")
            start.row_dimensions[row].height = 26
        elif name in tables:
            put(beside, f"{len(tables[name])} rows", "xlperf note", wrapped=False)
