"""The front of a workbook of results: the question, the answer, its chart, and links to the rows.

The front is the last sheet but opens first; rows keep the first sheets, with their header in the first row, for
programs that read them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from openpyxl import Workbook

from xlperf.base.arrays import added
from xlperf.explore.diagnose import Diagnosis
from xlperf.workbook.charts import (
    SERIES,
    Cells,
    Part,
    axis_number,
    bars_in_a_limit,
    colour,
    curve,
    curve_chart,
    horizontal_bars,
    spots,
    tornado,
    waterfall,
)
from xlperf.workbook.package import data_rows, save_workbook, write_table
from xlperf.workbook.report.data import plural
from xlperf.workbook.report.result_charts import Drawing, drawings
from xlperf.workbook.style import (
    NAVY,
    add_styles,
    chart_rows,
    column_widths,
    even_rows,
    fitted_format,
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
    from xlperf.catalog.table import Table
    from xlperf.workbook.report.result_charts import Rows


ASKED = "asked"
_WIDTH = 30.0
_MARKERS = ("circle", "square", "diamond", "triangle")
_MORE, _LESS = "D55E00", "009E73"
_FEW = 10.0
"""Counts up to which an axis is labelled at every one. [-]"""


def add_front(
    workbook: Workbook,
    command: str,
    asked: Mapping[str, str],
    tables: Mapping[str, tuple[Sequence[Column], Rows]],
    wanted: Sequence[str] = (),
    said: Sequence[str] = (),
) -> None:
    """Add the sheet with the question and a chart of the answer; the workbook opens on it.

    - ``workbook``: with the tables of results, each with its header in the first row.
    - ``command``: the command, such as ``xlperf search --frontier``.
    - ``asked``: its arguments, by name.
    - ``tables``: columns and rows of each sheet of results, as cells show them.
    - ``wanted``: columns that the command asked for, such as objectives.
    - ``said``: the command's answer in words; by default the message of the charts.
    """
    front: Any = workbook.create_sheet(ASKED)
    title(front, command, "What was asked, the answer in a chart, and the sheets that hold all rows.")
    column_widths(front, 46, *[15.0] * 9)
    row = heading(front, 4, "Asked")
    for name, value in asked.items():
        put(front.cell(row, 1), name.replace("_", " "), "xlperf key")
        put(front.cell(row, 2), value, "xlperf text", wrapped=False)
        row += 1
    drawn = [drawing for name, (columns, rows) in tables.items() for drawing in drawings(name, columns, rows, wanted)]
    answers = said or [drawing.answer for drawing in drawn if drawing.answer]
    if answers:
        row = heading(front, row + 1, "Answer")
        for words in answers:
            put(front.cell(row, 1), words, "xlperf text", wrapped=False)
            row += 1
    drawn = [drawing for drawing in drawn if len(drawing.labels) * len(drawing.columns) > 1] or drawn[:1]
    row = heading(front, row + 1, "Rows")
    for name, (_, rows) in tables.items():
        link(front.cell(row, 1), name, name)
        put(front.cell(row, 2), plural(len(rows), "row"), "xlperf text", wrapped=False)
        row += 1
    top = row + 1
    below = top + sum(chart_rows(_height(drawing)) + 1 for drawing in drawn)
    even_rows(front, top, below)
    for drawing in drawn:
        chart, below = _drawn(front, drawing, below)
        place_chart(front, chart, top)
        top += chart_rows(chart.height) + 1
    page_setup(front, area=f"A1:J{top}" if drawn else None, pages_high=1)  # what the charts are drawn from is not
    workbook.active = len(workbook.sheetnames) - 1
    for sheet in workbook.worksheets:  # one sheet is selected, or typing would go into several at once
        view: Any = sheet.sheet_view
        view.tabSelected = sheet.title == ASKED


def _height(drawing: Drawing) -> float:
    """Height of a chart. [cm]"""
    look = drawing.kind.look
    if look in ("points", "lines", "waterfall"):
        return 13.0
    lines = len(drawing.labels) * (1 if look in ("stacked", "tornado") else max(1.0, 0.7 * len(drawing.columns)))
    return max(5.5, 3.9 + 0.5 * lines)


def _drawn(sheet: Worksheet, drawing: Drawing, top: int) -> tuple[Any, int]:
    """The chart of a drawing, whose numbers are written from a row on; and the row below them."""
    row = heading(sheet, top + 1, f"Drawn above: {drawing.title}")
    heads = ["", *(column.header for column in drawing.columns)]
    values = [list(numbers) for numbers in drawing.values]
    look = drawing.kind.look
    if look == "waterfall":
        change, level = values
        whole = [i in (0, len(level) - 1) for i in range(len(level))]
        heads = ["", "below", drawing.columns[1].header]
        ends = [(end or 0.0, step or 0.0) for end, step in zip(level, change, strict=True)]
        values = [
            [0.0 if own else min(end, end - step) for own, (end, step) in zip(whole, ends, strict=True)],
            [end if own else abs(step) for own, (end, step) in zip(whole, ends, strict=True)],
        ]
    elif look == "tornado":
        low, base, high = ([value or 0.0 for value in numbers] for numbers in values)
        heads = ["", "low value adds", "high value adds"]
        values = [[x - b for x, b in zip(end, base, strict=True)] for end in (low, high)]
    sheet.row_dimensions[row].height = 42
    for column, words in enumerate(heads, start=1):
        put(sheet.cell(row, column), words, "xlperf header" if column == 1 else "xlperf header result")
    formats = [fitted_format(column, own) for column, own in zip(drawing.columns, values, strict=False)]
    for down, label in enumerate(drawing.labels, start=row + 1):
        put(sheet.cell(down, 1), label, "xlperf key")
        for column, numbers in enumerate(values, start=2):
            put(sheet.cell(down, column), numbers[down - row - 1], "xlperf computed", formats[column - 2])
    last = row + len(drawing.labels)
    return _chart(sheet, drawing, row, values), last + 1


def _chart(sheet: Worksheet, drawing: Drawing, header: int, values: Sequence[Sequence[float | None]]) -> Any:
    """A native chart of the numbers below a row of headers."""
    first, last = header + 1, header + len(drawing.labels)
    labels = Cells(sheet, 1, first, last)
    size = (_WIDTH, _height(drawing))
    look, unit = drawing.kind.look, drawing.columns[-1].header
    cells = [(Cells(sheet, 2 + i, header, header), Cells(sheet, 2 + i, first, last)) for i in range(len(values))]
    known = [value for numbers in values for value in numbers if value is not None]
    if look in ("points", "lines"):
        return _scatter(sheet, drawing, header, size)
    if look == "waterfall":
        change = [value or 0.0 for value in drawing.values[0]]
        ends = (0, len(change) - 1)
        colours = [NAVY if i in ends else _MORE if step > 0.0 else _LESS for i, step in enumerate(change)]
        return waterfall(
            drawing.title, labels, cells[0], cells[1], colours, axis_title=unit, number=axis_number(known), size=size
        )
    if look == "tornado":
        return tornado(
            drawing.title, labels, cells[0], cells[1], axis_title=drawing.columns[1].header,
            number=axis_number(known), size=size,
        )  # fmt: skip
    stacked, limit = look == "stacked", drawing.columns[-1].name == drawing.kind.limit
    parts = [
        Part(head, numbers, colour(column.name, i) if stacked and column.name.startswith("memory_") else SERIES[i % 10])
        for i, ((head, numbers), column) in enumerate(zip(cells, drawing.columns, strict=True))
    ]
    if limit:
        return bars_in_a_limit(
            drawing.title, labels, parts[:-1], parts[-1], axis_title=drawing.columns[-1].unit,
            number=axis_number(known), size=size,
        )  # fmt: skip
    reached = [added(v or 0.0 for v in row) for row in zip(*values, strict=True)] if stacked else known
    chart: Any = horizontal_bars(
        drawing.title, labels, parts, axis_title=unit if len(parts) == 1 else drawing.columns[-1].unit.strip("-"),
        number="0%" if drawing.kind.of_one else axis_number(reached), stacked=stacked, size=size,
        most=1.0 if drawing.kind.of_one and max(reached, default=0.0) <= 1.0 + 1e-9 else None,
    )  # fmt: skip
    if known and max(known) <= _FEW and all(value.is_integer() for value in known):
        chart.y_axis.majorUnit, chart.y_axis.number_format = 1, "#,##0"
    if len(parts) == 1:
        chart.legend = None
    if any(value < 0.0 for value in known):
        chart.y_axis.scaling.min = None
    return chart


def _scatter(sheet: Worksheet, drawing: Drawing, header: int, size: tuple[float, float]) -> Any:
    """Points or lines, a series for each run of rows; its name is right of its first row."""
    runs: list[list[int]] = []
    for i, series in enumerate(drawing.series):
        if runs and drawing.series[runs[-1][0]] == series:
            runs[-1].append(i)
        else:
            runs.append([i])
    points = []
    for place, run in enumerate(runs):
        first, last = header + 1 + run[0], header + 1 + run[-1]
        put(sheet.cell(first, 4), drawing.series[run[0]], "xlperf note")
        name, x, y = Cells(sheet, 4, first, first), Cells(sheet, 2, first, last), Cells(sheet, 3, first, last)
        shade = SERIES[place % len(SERIES)]
        alone = drawing.kind.look == "points"
        points.append(spots(name, x, y, shade, _MARKERS[place % 4]) if alone else curve(name, x, y, shade))
    chart: Any = curve_chart(
        drawing.title, points, x_title=drawing.columns[0].header, y_title=drawing.columns[1].header,
        x_number=axis_number(drawing.values[0]), y_number=axis_number(drawing.values[1]), size=size,
    )  # fmt: skip
    if len(points) == 1:
        chart.legend = None
    return chart


def write_diagnosis(
    path: str, diagnosis: Diagnosis, command: str, asked: Mapping[str, str], remedy: Sequence[str], plan: Table
) -> None:
    """Write the sheets ``diagnosis`` and ``waterfall``, a plan, and the question with both charts in front.

    ``path``: workbook; replaced whole. ``diagnosis``: measurements and their explanations. ``command``, ``asked``: the
    command and its arguments, by name. ``remedy``: in sentences. ``plan``: the better one, on a sheet of plans.
    """
    book = Workbook()
    book.remove(book.worksheets[0])
    add_styles(book)
    sheet = book.create_sheet("diagnosis")
    said = [
        *(one.words for one in diagnosis.readings),
        *(words for words in (diagnosis.unexplained, diagnosis.telling) if words),
    ]
    top = len(said) + 2
    for number, words in enumerate(said, 1):
        put(sheet.cell(number, 1), words, wrapped=False)
    tables = {}
    for table, name, first in ((diagnosis.steps, "waterfall", 1), (diagnosis.explanations, "diagnosis", top)):
        if not len(table):
            continue
        columns = table.schema.columns
        tables[name] = columns, data_rows(table, columns)
        at = sheet if name == "diagnosis" else book.create_sheet(name)
        write_table(at, columns, tables[name][1], f"A{first}", table.kind, fitted=True)
        if name == "waterfall":
            for row in at.iter_rows(min_row=2, min_col=3):
                for cell in row:
                    cell.number_format = "#,##0.00##"
    if len(diagnosis.explanations):
        said.append(f"Most likely: {diagnosis.explanations['cause'][0]} ({diagnosis.explanations['advice'][0]}).")
    stated = tuple(plan.schema.by_name[name] for name in plan.columns)
    write_table(book.create_sheet(plan.kind), stated, data_rows(plan, stated), "A1", plan.kind, fitted=True)
    add_front(book, command, asked, tables, said=[*said, *remedy])
    save_workbook(book, path)
