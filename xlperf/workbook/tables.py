"""Native tables: headers with units, comments from the schema, values in the unit of their header."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from openpyxl.comments import Comment
from openpyxl.utils import get_column_letter
from openpyxl.utils.cell import column_index_from_string, coordinate_from_string
from openpyxl.worksheet.table import Table as ListObject
from openpyxl.worksheet.table import TableStyleInfo

from xlperf.catalog.schema import Column, unit_of
from xlperf.catalog.table import Table
from xlperf.workbook.style import fitted_format, number_format, put

if TYPE_CHECKING:
    from openpyxl.worksheet.worksheet import Worksheet

_WIDEST = {"reason": 140, "notes": 60, "source": 60, "fit_set": 90, "calibration": 60}


def cell_value(column: Column, value: Any) -> float | bool | str | None:
    """A value of a table (unit used inside) as a cell shows it (unit of the column).

    Flags of plans are yes and no, computed flags TRUE and FALSE, NaN and "" blank.

    >>> from xlperf.catalog.schema import column
    >>> cell_value(column("accelerators", "memory_bandwidth"), 3.35e12)
    3.35
    """
    if column.is_text:
        return str(value) if value is not None and str(value) != "" else None
    number = float(value)
    if not math.isfinite(number):
        return None
    if column.kind == "flag":
        return "yes" if number else "no"
    if column.kind == "result-flag":
        return bool(number)
    shown = number / unit_of(column).factor
    if column.is_result:
        return shown
    shown = float(f"{shown:.15g}")
    return int(shown) if shown.is_integer() and abs(shown) < 2**53 else shown


def data_rows(table: Table, columns: Sequence[Column]) -> list[list[float | bool | str | None]]:
    """Rows of a table as cells show them; columns that it lacks are blank, the word ``auto`` is kept."""
    series: list[list[float | bool | str | None]] = []
    for column in columns:
        if column.name not in table:
            series.append([None] * len(table))
            continue
        values = [cell_value(column, value) for value in table[column.name].tolist()]
        if column.name in table.auto:
            values = ["auto" if auto else value for auto, value in zip(table.auto[column.name], values, strict=True)]
        series.append(values)
    return [list(row) for row in zip(*series, strict=True)] if series else []


def column_width(column: Column, shown: Iterable[Any] = (), most: float = 34) -> float:
    """Width of a column in characters: its longest header word, or its longest value; text wraps beyond ``most``."""
    words = column.header.split()
    width = 1.1 * max(len(word) for word in words) + 4.5  # bold, beside the button of the filter
    width = max(width, math.ceil(len(column.header) / 3) + 3.0)
    text = [len(value) for value in shown if isinstance(value, str)]
    if text:
        width = max(
            width, min(max(text) * (1.15 if column.kind == "name" or column.name == "name" else 1.05) + 3.0, most)
        )
    return max(width, 9.0)


def table_name(sheet_title: str) -> str:
    """A legal name of a native table: no spaces, not a cell address.

    >>> table_name("step time")
    'step_time'
    >>> table_name("H100")
    'H100_'
    """
    name = re.sub(r"\W", "_", sheet_title)
    if not re.match(r"[A-Za-z_]", name):
        name = f"_{name}"
    if re.fullmatch(r"[A-Za-z]{1,3}\d{1,7}|[Rr]\d*[Cc]\d*|[RrCc]", name):
        name = f"{name}_"
    return name[:200]


def write_table(
    sheet: Worksheet,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Any]],
    top_left: str = "A4",
    name: str | None = None,
    *,
    freeze: int | None = 1,
    widths: bool = True,
    fitted: bool = False,
) -> str:
    """Write a native table whose headers say the unit and whose header comments say the meaning.

    Parameters
    ----------
    sheet : Worksheet
        Changed in place; the workbook must have our styles.
    columns : sequence of Column
        Columns of the schema; inputs and results are told apart by colour.
    rows : sequence of sequence
        Values as cells show them (:func:`data_rows`). A table without rows gets one blank row, as Excel wants.
    top_left : str
        Cell of the first header.
    name : str, optional
        Name of the table, unique in the workbook; the sheet's name when not given; "" writes no native table.
    freeze : int, optional
        Columns that stay in sight beside the header; None freezes nothing.
    widths : bool
        Whether to set column widths.
    fitted : bool
        Whether the decimals of results are chosen by the values (:func:`fitted_format`) or by the unit alone.

    Returns
    -------
    str
        The range that the table covers: ``A4:H20``.
    """
    letter, top = coordinate_from_string(top_left)
    left = column_index_from_string(letter)
    deepest = 1
    across: list[float] = []
    for offset, column in enumerate(columns):
        cell = put(
            sheet.cell(top, left + offset),
            column.header,
            "xlperf header result" if column.is_result else "xlperf header",
        )
        cell.comment = _comment(column)
        if widths:
            width = column_width(column, (row[offset] for row in rows), _WIDEST.get(column.name, 48 if offset else 64))
            sheet.column_dimensions[get_column_letter(left + offset)].width = width
        across.append(sheet.column_dimensions[get_column_letter(left + offset)].width or 9.0)
        deepest = max(deepest, _lines(column.header, across[-1] - 3.0))
    sheet.row_dimensions[top].height = 13.5 * deepest + 8
    if fitted:
        formats = [fitted_format(column, [row[i] for row in rows]) for i, column in enumerate(columns)]
    else:
        formats = [number_format(column) for column in columns]
    for down, row in enumerate(rows or [[None] * len(columns)], start=top + 1):
        tallest = 1
        for offset, (column, value) in enumerate(zip(columns, row, strict=True)):
            wrapped = None
            if isinstance(value, str):
                lines = _lines(value, across[offset] * (1.15 if column.name == "reason" else 1.02) - 2.0)
                tallest, wrapped = max(tallest, lines), lines > 1
            put(sheet.cell(down, left + offset), value, _style(column, offset), formats[offset], wrapped)
        if tallest > 1:
            sheet.row_dimensions[down].height = min(13.0 * tallest + 3, 400.0)
    bottom = top + max(len(rows), 1)
    area = f"{letter}{top}:{get_column_letter(left + len(columns) - 1)}{bottom}"
    if name != "":
        native = ListObject(displayName=name or table_name(sheet.title), ref=area)
        native.tableStyleInfo = TableStyleInfo(name="TableStyleLight1", showRowStripes=False)
        sheet.add_table(native)
    if freeze is not None:
        sheet.freeze_panes = f"{get_column_letter(left + freeze)}{top + 1}"
    return area


def _style(column: Column, offset: int) -> str:
    if column.name == "reason":
        return "xlperf reason"
    if offset == 0:
        return "xlperf key"
    return "xlperf computed" if column.is_result else "xlperf input"


def _lines(text: str, across: float) -> int:
    """Lines that a text takes in a column when it wraps at words, or inside those too long for a line."""
    across = max(across, 1.0)
    lines, room = 1, across
    for word in text.split():
        if len(word) > room and room < across:
            lines, room = lines + 1, across
        while len(word) > across:
            lines, word = lines + 1, word[int(across) :]
        room -= len(word) + 1
    return lines


def _comment(column: Column) -> Comment:
    parts = [f"{column.meaning}."]
    if column.unit not in ("", "-"):
        parts.append(f"Unit: {column.unit}.")
    if column.required:
        parts.append("Mandatory.")
    if column.default:
        parts.append(f"Default: {column.default}.")
    if column.choices:
        parts.append(f"One of: {', '.join(column.choices)}.")
    text = "\n".join(parts)
    lines = sum(math.ceil(len(part) / 38) for part in parts)
    return Comment(text, "xlperf", width=270, height=24 + 17 * lines)
