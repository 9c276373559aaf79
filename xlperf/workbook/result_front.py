"""What a workbook of results shows when it is opened: what was asked, a chart of the answer, and where the rows are.

It is the last sheet and the one in front; the rows keep the first sheets, with their header in the first row, as
programs read them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xlperf.workbook.charts import BLUE, LOG_NUMBER, Cells, Part, Points, curves, horizontal_bars
from xlperf.workbook.style import (
    chart_rows,
    column_widths,
    even_rows,
    heading,
    link,
    page_setup,
    place_chart,
    put,
    title,
)

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.worksheet.worksheet import Worksheet

    from xlperf.catalog.schema import Column

ASKED = "asked"
_MOST_BARS = 36
_HEADLINES = (
    "step_time", "tpot", "time", "total_time", "high_change",
    "unit_cost", "hour_cost", "cost", "cost_per_million_tokens",
    "cost_per_million_output_tokens_all_in", "peak_flop_rate_bf16", "tokens_per_second",
)  # fmt: skip
"""Results that a chart shows, the first that a table has."""
_LABELS = ("name", "plan", "operator", "input", "line", "device", "chiplet", "server", "operation")
_SPEED, _THROUGHPUT = "tokens_per_second_per_user", "tokens_per_second_per_accelerator"
_WIDTH = 26.0


def add_front(
    workbook: Workbook, command: str, asked: Mapping[str, str], tables: Mapping[str, Sequence[Column]]
) -> None:
    """Add the sheet that says what was asked and draws the answer; it is in front when the workbook is opened.

    Parameters
    ----------
    workbook : Workbook
        With the tables of results, each with its header in the first row.
    command : str
        What was run, such as ``xlperf frontier``.
    asked : mapping
        What it was given, by name.
    tables : mapping
        Columns of each sheet of results.
    """
    front: Any = workbook.create_sheet(ASKED)
    title(front, command, "What was asked, and the answer in a chart; all rows are in the sheets named below.")
    column_widths(front, 26, 90)
    row = heading(front, 4, "Asked")
    for name, value in asked.items():
        put(front.cell(row, 1), name.replace("_", " "), "xlperf key")
        put(front.cell(row, 2), value, "xlperf text")
        row += 1
    row = heading(front, row + 1, "Rows")
    for name in tables:
        link(front.cell(row, 1), name, name)
        put(front.cell(row, 2), f"{workbook[name].max_row - 1:,} rows", "xlperf text")
        row += 1
    row += 1
    for name, columns in tables.items():
        chart = _chart(workbook[name], columns)
        if chart is not None:
            even_rows(front, row, row + chart_rows(chart.height))
            place_chart(front, chart, row)
            row += chart_rows(chart.height) + 1
    page_setup(front, pages_high=1)
    workbook.active = len(workbook.sheetnames) - 1
    for sheet in workbook.worksheets:  # one sheet is selected, or typing would go into several at once
        view: Any = sheet.sheet_view
        view.tabSelected = sheet.title == ASKED


def _chart(sheet: Worksheet, columns: Sequence[Column]) -> Any:
    """Throughput against speed per user where rows have both, else bars of the first known result; None without."""
    place = {column.name: number for number, column in enumerate(columns, start=1)}
    last = sheet.max_row
    if {_SPEED, _THROUGHPUT} <= set(place) and sheet.title == "frontier" and last > 3:
        header = Cells(sheet, place[_THROUGHPUT], 1, 1)
        x, y = (Cells(sheet, place[name], 2, last) for name in (_SPEED, _THROUGHPUT))
        points = Points(header, x, y, BLUE, "circle")
        drawn: Any = curves(
            "Throughput against speed per user", [points], x_title="speed per user (token/s)",
            y_title="throughput of an accelerator (token/s)", x_number=LOG_NUMBER,
            y_number=LOG_NUMBER, size=(_WIDTH, 12.0),
        )  # fmt: skip
        drawn.legend = None
        return drawn
    value = next((name for name in _HEADLINES if name in place and _filled(sheet, place[name])), "")
    texts = [name for name in (*_LABELS, *(c.name for c in columns if c.is_text)) if name in place]
    label = next((name for name in texts if _filled(sheet, place[name])), "")
    if not value or not label:
        return None
    bars = min(last, _MOST_BARS + 1)
    column = next(column for column in columns if column.name == value)
    words = column.name.replace("_", " ").capitalize()
    drawn = horizontal_bars(
        words if bars == last else f"{words}, the first {bars - 1} of {last - 1:,} rows",
        Cells(sheet, place[label], 2, bars),
        [Part(Cells(sheet, place[value], 1, 1), Cells(sheet, place[value], 2, bars), BLUE)],
        axis_title=column.header,
        number=LOG_NUMBER,
        stacked=False,
        size=(_WIDTH, max(5.0, 3.4 + 0.5 * (bars - 1))),
    )
    drawn.legend = None
    if any(number < 0.0 for number in _numbers(sheet, place[value], bars)):
        axis: Any = drawn.y_axis
        axis.scaling.min = None
    return drawn


def _numbers(sheet: Worksheet, column: int, last: int) -> list[float]:
    """Numbers of a column below its header."""
    return [float(v) for v in Cells(sheet, column, 2, last).values if isinstance(v, int | float)]


def _filled(sheet: Worksheet, column: int) -> bool:
    return any(value not in (None, "") for value in Cells(sheet, column, 2, min(sheet.max_row, _MOST_BARS + 1)).values)
