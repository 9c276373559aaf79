"""Workbooks and reports of studies: settings, plans, tables, findings and charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openpyxl.chart import LineChart
from openpyxl.chart.marker import Marker
from openpyxl.chart.shapes import GraphicalProperties
from openpyxl.drawing.line import LineProperties
from openpyxl.formatting.rule import ColorScaleRule
from openpyxl.styles import Alignment
from openpyxl.utils import column_index_from_string, get_column_letter
from openpyxl.utils.cell import coordinate_from_string

from xlperf.base.arrays import added
from xlperf.studies import NAMES, study
from xlperf.studies.inputs import SHEET, study_workbook
from xlperf.studies.outcome import Finding, Study, setting_text
from xlperf.workbook import style
from xlperf.workbook.axes import axis_number, draw_axis, log_axis
from xlperf.workbook.build import table_of
from xlperf.workbook.charts import (
    SERIES,
    Cells,
    bar_chart,
    bar_series,
    colour,
    draw_horizontal_axes,
    frame,
    label_series,
    legend_height,
    longest,
    place_plot,
    point_series,
    scatter_chart,
)
from xlperf.workbook.package import data_rows, replace_file, table_name, workbook_bytes, write_table
from xlperf.workbook.report_breakdown import first_rows
from xlperf.workbook.report_summary import finding_rows, wide_text
from xlperf.workbook.style import (
    add_styles,
    chart_rows,
    column_widths,
    heading,
    link,
    page_setup,
    put,
    title,
)

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.worksheet.worksheet import Worksheet

    from xlperf.studies.outcome import Chart, Inputs, Outcome, Study, StudySheet


_TOP = 4


def study_package(study: Study) -> bytes:
    """The workbook of a study: its question, its settings, its plans and the rows that it adds to the catalog."""
    from openpyxl import Workbook

    book = Workbook()
    book.remove(book.worksheets[0])
    add_styles(book)
    sheet = book.create_sheet(SHEET)
    title(sheet, study.title, study.question)
    column_widths(sheet, 34, 44, 12, 100)
    for column, words in enumerate(("setting", "value", "unit", "meaning"), start=1):
        put(sheet.cell(_TOP, column), words, "xlperf header")
    for row, setting in enumerate(study.settings, start=_TOP + 1):
        entries = (setting.name.replace("_", " "), setting_text(setting.default), setting.unit, setting.meaning)
        for column, (value, look) in enumerate(
            zip(entries, ("xlperf key", "xlperf input", "xlperf text", "xlperf text"), strict=True), start=1
        ):
            put(sheet.cell(row, column), value, look, "General" if column == 2 else None)
    page_setup(sheet)
    for kind, rows in study.rows().items():
        table = table_of(kind, rows)
        used = [
            column
            for column in table.schema.columns
            if column.name in table and any(row.get(column.name) is not None for row in rows)
        ]
        sheet = book.create_sheet(kind)
        title(sheet, kind.replace("_", " ").capitalize(), f"Of the study {study.name}; columns may be added.")
        write_table(sheet, used, data_rows(table, used), f"A{_TOP}", kind)
        page_setup(sheet, _TOP)
    book.properties.creator = "xlperf"
    book.properties.title = study.title
    return workbook_bytes(book)


def write_study(path: str | Path, study: Study) -> None:
    """Write the workbook of a study; a file that exists is replaced whole.

    Raises InputError when the file cannot be written.
    """
    replace_file(path, study_package(study))


def build_studies(*names: str) -> list[Path]:
    """Write the shipped workbooks of the studies named, or of all."""
    targets = [study_workbook(name) for name in names or NAMES]
    for target in targets:
        target.parent.mkdir(exist_ok=True)
        write_study(target, study(target.stem))
    return targets


_TOP = 4


def study_sheets(workbook: Workbook, study: Study, inputs: Inputs, outcome: Outcome) -> None:
    """Add the sheets of a study behind the summary."""
    _study_sheet(workbook.create_sheet("study", 1), study, inputs, outcome)
    for place, source in enumerate(outcome.sheets, start=2):
        _table_sheet(workbook.create_sheet(source.name, place), source)


def _study_sheet(sheet: Worksheet, study: Study, inputs: Inputs, outcome: Outcome) -> None:
    colour: Any = sheet.sheet_properties
    colour.tabColor = style.TEAL
    title(sheet, study.title, study.question)
    link(sheet["A3"], "summary", "to the summary")
    column_widths(sheet, 30, 52, 12, 90)
    row = heading(sheet, _TOP, "In short")
    row = finding_rows(sheet, outcome.short, row, 4, 150)
    row = finding_rows(sheet, [Finding("What to do", study.advice)], row, 4, 150)
    if rest := outcome.findings[len(outcome.short) :]:
        row = heading(sheet, row + 1, "Findings")
        row = finding_rows(sheet, rest, row, 4, 150)
    row = heading(sheet, row + 1, "Published")
    row = wide_text(sheet, row, 1, 4, study.published, 160) + 1
    if study.settings:
        row = heading(sheet, row, "Settings")
        for column, words in enumerate(("setting", "value", "unit", "meaning"), start=1):
            put(sheet.cell(row, column), words, "xlperf header")
        for setting in study.settings:
            row += 1
            value = setting_text(inputs.settings[setting.name])
            put(sheet.cell(row, 1), setting.name.replace("_", " "), "xlperf key")
            put(sheet.cell(row, 2), value, "xlperf input", "General")
            put(sheet.cell(row, 3), setting.unit if setting.unit != "-" else None, "xlperf text")
            put(sheet.cell(row, 4), setting.meaning, "xlperf text")
            if isinstance(value, str) and len(value) > 46:
                sheet.cell(row, 2).alignment = Alignment(vertical="top", horizontal="left", indent=1, wrap_text=True)
                sheet.row_dimensions[row].height = 13.5 * -(-len(value) // 42) + 4
        row += 2
    row = heading(sheet, row, "Sheets of this study")
    for source in outcome.sheets:
        link(sheet.cell(row, 1), source.name, source.name)
        row = wide_text(sheet, row, 2, 4, source.heading, 125)
    words = f"To run it again with other numbers: xlperf new STUDY.xlsx --study {study.name}, edit, then "
    words += f"xlperf report STUDY.xlsx --study {study.name} -o REPORT.xlsx."
    put(sheet.cell(row + 1, 1), words, "xlperf note")
    sheet.merge_cells(start_row=row + 1, start_column=1, end_row=row + 1, end_column=4)
    page_setup(sheet, pages_high=1)


def _table_sheet(sheet: Worksheet, source: StudySheet) -> None:
    colour: Any = sheet.sheet_properties
    colour.tabColor = style.TEAL
    title(sheet, source.name[:1].upper() + source.name[1:], source.heading)
    link(sheet["A3"], "study", "to the study")
    deep = -(-len(source.charts) // 2)
    each = chart_rows(SIZE[1])
    top = _TOP + deep * each
    rows = [[None if isinstance(v, float) and not math.isfinite(v) else v for v in row] for row in source.rows]
    area = write_table(sheet, source.columns, rows, f"A{top}", table_name(f"study {source.name}"), fitted=True)
    key = sheet.column_dimensions["A"]
    key.width = max(key.width, 14.0)
    sheet.freeze_panes = f"A{_TOP}" if deep else f"B{top + 1}"  # no line across charts
    if source.shaded:
        _shade(sheet, source, source.shaded, top)
    left = _anchor(sheet, SIZE[0])
    for place, chart in enumerate(source.charts):
        down, across = divmod(place, 2)
        drawn = study_chart(chart, source, sheet, top)
        sheet.add_chart(drawn, f"{'A' if across == 0 else left}{_TOP + down * each}")
    short = bool(deep) and len(rows) <= _ONE_PAGE
    page_setup(sheet, None if short else top, area=None if deep else _below(sheet, area, source), pages_high=int(short))
    if not deep:
        first_rows(sheet)


def _below(sheet: Worksheet, area: str, source: StudySheet) -> str:
    """What is printed of a sheet without charts: its table, and its heading where that is wider."""
    last, row = coordinate_from_string(area.partition(":")[2])
    right = _anchor(sheet, min(_CM_PER_LETTER * len(source.heading), SIZE[0] * 1.5))
    widest = max(column_index_from_string(last), column_index_from_string(right) - 1)
    return f"A1:{get_column_letter(widest)}{row}"


def _shade(sheet: Worksheet, source: StudySheet, names: Sequence[str], top: int) -> None:
    every = [column.name for column in source.columns]
    columns = sorted(every.index(name) + 1 for name in names)
    first, last = get_column_letter(columns[0]), get_column_letter(columns[-1])
    make: Any = ColorScaleRule
    rule = make(
        start_type="min",
        start_color="FFF7FAFC",
        mid_type="percentile",
        mid_value=50,
        mid_color="FFB9D3EE",
        end_type="max",
        end_color="FF7FB2E5",
    )
    sheet.conditional_formatting.add(f"{first}{top + 1}:{last}{top + len(source.rows)}", rule)


def _anchor(sheet: Worksheet, width: float) -> str:
    """Letter of the first column that starts right of a chart at column A of a width. [cm]"""
    across, column = 0.0, 1
    while across < width + 0.5:
        across += (sheet.column_dimensions[get_column_letter(column)].width or 9.0) * 0.19
        column += 1
    return get_column_letter(column)


_PALETTE = SERIES
_MARKERS = ("circle", "square", "diamond", "triangle", "x", "plus", "star", "dash", "circle", "square")
SIZE = (22.0, 11.0)
_ONE_PAGE = 40  # rows below charts that go onto their page
_CM_PER_LETTER = 0.19
"""Of a heading. [cm]"""


def study_chart(chart: Chart, source: StudySheet, sheet: Worksheet, top: int) -> Any:
    """A native chart of some columns of a table."""
    names = [column.name for column in source.columns]
    first, last = chart.rows or (0, len(source.rows))

    def cells(name: str) -> Cells:
        return Cells(sheet, names.index(name) + 1, top + 1 + first, top + last)

    def header(name: str) -> Cells:
        return Cells(sheet, names.index(name) + 1, top, top)

    drawn_values = [value for name in chart.y for value in source.values(name)]
    number = axis_number(_reached(source, chart, drawn_values))
    if chart.kind in ("bars", "columns"):
        grouping, overlap = ("stacked", 100) if chart.stacked else ("clustered", -5)
        drawn = bar_chart(chart.title, "bar" if chart.kind == "bars" else "col", SIZE, grouping, overlap)
        for place, name in enumerate(chart.y):
            shade = colour(name, place) if name.startswith(("time_", "memory_")) else _PALETTE[place % len(_PALETTE)]
            drawn.series.append(bar_series(header(name), cells(chart.x), cells(name), shade))
        if chart.kind == "bars":
            draw_horizontal_axes(drawn, chart.y_title, number)
            place_plot(
                drawn, min(0.14 * longest(cells(chart.x)) + 0.7, 0.5 * SIZE[0]), 1.2, 0.6, 1.7 + legend_height(drawn)
            )
        else:
            _draw_labelled_axes(drawn, chart, cells(chart.x), number)
        _finished(drawn, chart, drawn_values)
        return drawn
    values = cells(chart.x).values
    if chart.kind == "lines" and any(isinstance(value, str) for value in values):
        drawn = LineChart()
        frame(drawn, chart.title, *SIZE)
        for place, name in enumerate(chart.y):
            series = label_series(header(name), cells(chart.x), cells(name))
            _drawn(series, _PALETTE[place % len(_PALETTE)], _MARKERS[place % len(_MARKERS)], True)
            drawn.series.append(series)
        _draw_labelled_axes(drawn, chart, cells(chart.x), number)
        _finished(drawn, chart, drawn_values)
        return drawn
    drawn = scatter_chart(chart.title, SIZE)
    for place, name in enumerate(chart.y):
        points = point_series(header(name), cells(chart.x), cells(name))
        _drawn(points, _PALETTE[place % len(_PALETTE)], _MARKERS[place % len(_MARKERS)], chart.kind == "lines")
        drawn.series.append(points)
    draw_axis(drawn.x_axis, chart.x_title, axis_number(values), lines=True)
    draw_axis(drawn.y_axis, chart.y_title, number, lines=True)
    if chart.log_x:
        log_axis(drawn.x_axis, values)
    drawn.x_axis.crosses = "min"
    drawn.y_axis.crosses = "min"
    _finished(drawn, chart, [value for name in chart.y for value in cells(name).values])
    place_plot(drawn, 2.2, 1.2, 0.6, 1.7 + (legend_height(drawn) if drawn.legend else 0.0))
    return drawn


def _reached(source: StudySheet, chart: Chart, values: Sequence[Any]) -> Sequence[Any]:
    """Values that an axis has to reach: sums where bars are stacked."""
    if not chart.stacked:
        return values
    columns = [source.values(name) for name in chart.y]
    return [added(v for v in row if isinstance(v, int | float)) for row in zip(*columns, strict=True)]


def _finished(drawn: Any, chart: Chart, values: Sequence[Any]) -> None:
    """A logarithmic value axis where one is asked for, and no legend for a single series, which the title names."""
    if chart.log_y:
        log_axis(drawn.y_axis, values)
    if len(chart.y) == 1:
        drawn.legend = None


def _draw_labelled_axes(drawn: Any, chart: Chart, labels: Cells, number: str) -> None:
    """Axes of columns or lines over labels, which are turned where they would not stand side by side."""
    letters = longest(labels)
    steep = letters * len(labels.values) > 90
    draw_axis(drawn.x_axis, chart.x_title, degrees=-45 if steep else 0, size=8)
    draw_axis(drawn.y_axis, chart.y_title, number, lines=True)
    place_plot(drawn, 2.2, 1.2, 0.6, (min(0.1 * letters, 4.0) if steep else 0.4) + 1.4 + legend_height(drawn))


def _drawn(series: Any, shade: str, symbol: str, line: bool) -> None:
    fill = GraphicalProperties(solidFill=shade, ln=LineProperties(solidFill="FFFFFF", w=3175))
    shape: Any = symbol
    if symbol in ("x", "plus", "star"):
        fill = GraphicalProperties(noFill=True, ln=LineProperties(solidFill=shade, w=12700))
    series.marker = Marker(symbol=shape, size=6, spPr=fill)
    stroke = LineProperties(solidFill=shade, w=22225) if line else LineProperties(noFill=True)
    series.graphicalProperties = GraphicalProperties(ln=stroke)
    series.smooth = False
