"""What of a report goes on paper: answers and charts whole, of long tables their first page; the rest is to click."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openpyxl.utils import get_column_letter

from xlperf.workbook.style import chart_rows, page_setup

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.worksheet.worksheet import Worksheet

_PLAN_SHEETS = {"training": "step_time", "inference": "ttft"}
"""Sheets of plans and the first column of their results: the plans themselves are named in column A."""
_CHARTS = ("step time", "inference time", "limits", "memory", "roofline", "token cost", "accelerator cost")
"""Sheets whose charts are printed, not the tables that these are drawn from."""
_ALL_PLANS = ("step time", "inference time", "memory")
"""Sheets with charts of all plans, twenty or so each."""
_LONG = {"cost bridge": 45, "reasons": 30, "assumptions": 40, "calibration": 40, "models": 24, "networks": 40}
"""Sheets of which so many rows are printed. [-]"""
_WIDEST = 220.0
"""Letters of a page of a table across. [-]"""
_PLANS_WIDE = 280.0
"""Letters of a page of results of plans across. [-]"""
_MOST_PLANS = 60
"""Plans whose results are printed. [-]"""
_MOST_ROWS = 130
"""Rows of a study's table that are printed, about three pages. [-]"""
_CM_PER_LETTER = 0.172
"""Of the narrowest fonts that a program puts in the place of the workbook's: no chart is cut. [cm]"""
_EMU_PER_CM = 360000
_NOTE = "further rows and columns: in the workbook"


def set_paper(workbook: Workbook, brief: bool = False) -> None:
    """Limit what each sheet prints, so that a report of a hundred plans stays a document of thirty pages.

    Parameters
    ----------
    workbook : Workbook
        Report, changed in place.
    brief : bool
        Whether only the first results and the first charts of all plans are printed: a study of hundreds of plans
        says in sheets of its own what it finds.
    """
    for sheet in workbook.worksheets:
        if sheet.title in _PLAN_SHEETS:
            _results(sheet, _PLAN_SHEETS[sheet.title], 1 if brief else 2)
        elif sheet.title in _CHARTS:
            _charts(sheet, brief and sheet.title in _ALL_PLANS)
        elif sheet.title in _LONG or sheet.title in ("accelerators", "prices"):
            _first_page(sheet, _LONG.get(sheet.title, 40))
        elif sheet.title == "chiplets or one die":
            sheet.row_breaks.brk = []
            page_setup(sheet, pages_high=1 if brief else 2)


def _results(sheet: Worksheet, first: str, pages: int) -> None:
    """The first results of plans on some pages, beside their names: as many columns as can be read."""
    table = next(iter(sheet.tables.values()), None)
    if table is None:
        return
    header = int(str(sheet.print_title_rows).rpartition("$")[2])
    names = {str(sheet.cell(header, column).value).split(" (")[0]: column for column in range(1, sheet.max_column + 1)}
    start = names.get(first.replace("_", " "))
    last = names.get("reason", sheet.max_column + 1) - 1
    if start is None or last <= start:
        return
    end, letters = start, _width(sheet, 1) + _width(sheet, start)
    while end < last and letters + _width(sheet, end + 1) <= _PLANS_WIDE:
        end += 1
        letters += _width(sheet, end)
    bottom = min(header + _MOST_PLANS // 2 * pages, sheet.max_row)
    sheet.print_area = f"{get_column_letter(start)}{header}:{get_column_letter(end)}{bottom}"
    sheet.page_setup.fitToWidth, sheet.page_setup.fitToHeight = 1, pages
    _note(sheet)


def first_rows(sheet: Worksheet) -> None:
    """Print of a long table of a study the first rows, on as many pages as they take.

    Parameters
    ----------
    sheet : Worksheet
        Sheet of a study with its print area.
    """
    if sheet.max_row <= _MOST_ROWS:
        return
    area = str(sheet.print_area).rpartition("!")[2].replace("$", "")
    sheet.print_area = area.rstrip("0123456789") + str(_MOST_ROWS)
    _note(sheet)


def _charts(sheet: Worksheet, only_first: bool) -> None:
    """Charts alone, with the title of the sheet above the first."""
    inside: Any = sheet
    if not inside._charts:
        return
    spans = sorted(
        (row, row + chart_rows(chart.height) - 1, left + chart.width)
        for chart in inside._charts
        for row, left in [_corner(chart.anchor)]
    )
    if only_first:
        spans = [span for span in spans if span[0] == spans[0][0]]
    blocks: list[list[int]] = []
    for first, last, _ in spans:
        if blocks and first <= blocks[-1][1] + 2:
            blocks[-1][1] = max(blocks[-1][1], last)
        else:
            blocks.append([first, last])
    blocks[0][0] = 1
    right = _column_at(sheet, max(end for _, _, end in spans))
    sheet.print_area = ",".join(f"A{first}:{right}{last}" for first, last in blocks)
    _repeat_nothing(sheet)
    _note(sheet)


def _corner(anchor: Any) -> tuple[int, float]:
    """Row of a chart that stands in column A, and its distance from the left edge [cm]."""
    if isinstance(anchor, str):
        return int(anchor.lstrip("A")), 0.0
    corner = anchor._from
    return corner.row + 1, corner.colOff / _EMU_PER_CM


def _width(sheet: Worksheet, number: int) -> float:
    letter = get_column_letter(number)
    return float(sheet.column_dimensions[letter].width) if letter in sheet.column_dimensions else 8.43


def _column_at(sheet: Worksheet, distance: float) -> str:
    """The column that a distance from the left edge falls into [cm]."""
    column, reached = 0, 0.0
    while reached < distance and column < 200:
        column += 1
        reached += _width(sheet, column) * _CM_PER_LETTER
    return get_column_letter(max(column, 1))


def _first_page(sheet: Worksheet, rows: int) -> None:
    """The first rows of a table, and as many columns as a page takes."""
    letters, columns = 0.0, 0
    while columns < sheet.max_column and (columns == 0 or letters + _width(sheet, columns + 1) <= _WIDEST):
        columns += 1
        letters += _width(sheet, columns)
    inside: Any = sheet
    first = 4 if inside.oddHeader.left.text else 1  # a heading in the margin stands for the title of the sheet
    sheet.print_area = f"A{first}:{get_column_letter(columns)}{min(rows, sheet.max_row)}"
    _repeat_nothing(sheet)
    sheet.page_setup.fitToWidth = sheet.page_setup.fitToHeight = 1
    _note(sheet)


def _repeat_nothing(sheet: Worksheet) -> None:
    """Take back the rows and columns that every page repeats, which openpyxl sets and does not unset."""
    inside: Any = sheet
    inside._print_rows = inside._print_cols = None


def _note(sheet: Worksheet) -> None:
    footer: Any = sheet.oddFooter
    footer.left.text = f"&8xlperf \N{MIDDLE DOT} {_NOTE}"
