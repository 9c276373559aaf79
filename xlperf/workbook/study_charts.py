"""Charts of a study's sheet: bars, columns, lines and points over the columns of its table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from openpyxl.chart import LineChart
from openpyxl.chart.marker import Marker
from openpyxl.chart.shapes import GraphicalProperties
from openpyxl.drawing.line import LineProperties

from xlperf.workbook.chart_parts import (
    Cells,
    bar_chart,
    bar_series,
    draw_axis,
    draw_lying_axes,
    frame,
    label_series,
    longest,
    place_plot,
    point_series,
    scatter_chart,
)
from xlperf.workbook.charts import colour
from xlperf.workbook.formats import fitted_format

if TYPE_CHECKING:
    from openpyxl.worksheet.worksheet import Worksheet

    from xlperf.studies.outcome import Chart, StudySheet

_PALETTE = ("2F6DB5", "E08A2E", "2E9E8F", "C0392B", "8C6BB1", "5B8C3A", "C9B037", "6F4E7C", "7FB2E5", "8D99A6")
_MARKERS = ("circle", "square", "diamond", "triangle", "x", "plus", "star", "dash", "circle", "square")
SIZE = (22.0, 11.0)


def study_chart(chart: Chart, source: StudySheet, sheet: Worksheet, top: int) -> Any:
    """A native chart of some columns of a table.

    Parameters
    ----------
    chart : Chart
        What is drawn.
    source : StudySheet
        The table.
    sheet : Worksheet
        Where the table stands, from column A.
    top : int
        Row of its header.

    Returns
    -------
    openpyxl chart
        To be added to a sheet.
    """
    names = [column.name for column in source.columns]
    first, last = chart.rows or (0, len(source.rows))

    def cells(name: str) -> Cells:
        return Cells(sheet, names.index(name) + 1, top + 1 + first, top + last)

    def header(name: str) -> Cells:
        return Cells(sheet, names.index(name) + 1, top, top)

    drawn_values = [value for name in chart.y for value in source.values(name)]
    number = fitted_format(source.columns[names.index(chart.y[0])], drawn_values)
    if chart.kind in ("bars", "columns"):
        grouping, overlap = ("stacked", 100) if chart.stacked else ("clustered", -5)
        drawn = bar_chart(chart.title, "bar" if chart.kind == "bars" else "col", SIZE, grouping, overlap)
        for place, name in enumerate(chart.y):
            shade = colour(name, place) if name.startswith(("time_", "memory_")) else _PALETTE[place % len(_PALETTE)]
            drawn.series.append(bar_series(header(name), cells(chart.x), cells(name), shade))
        if chart.kind == "bars":
            draw_lying_axes(drawn, chart.y_title, number)
            place_plot(drawn, min(0.14 * longest(cells(chart.x)) + 0.7, 0.5 * SIZE[0]), 1.2, 0.6, 2.6)
        else:
            _draw_labelled_axes(drawn, chart, cells(chart.x), number)
        if chart.log_y:
            drawn.y_axis.scaling.logBase = 10
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
        if chart.log_y:
            drawn.y_axis.scaling.logBase = 10
        return drawn
    drawn = scatter_chart(chart.title, SIZE)
    for place, name in enumerate(chart.y):
        points = point_series(header(name), cells(chart.x), cells(name))
        _drawn(points, _PALETTE[place % len(_PALETTE)], _MARKERS[place % len(_MARKERS)], chart.kind == "lines")
        drawn.series.append(points)
    draw_axis(drawn.x_axis, chart.x_title, "General" if chart.log_x else None, lines=True)
    draw_axis(drawn.y_axis, chart.y_title, number, lines=True)
    for axis, log, shown in (
        (drawn.x_axis, chart.log_x, values),
        (drawn.y_axis, chart.log_y, [value for name in chart.y for value in cells(name).values]),
    ):
        numbers = [float(v) for v in shown if isinstance(v, int | float) and v > 0]
        if log and numbers:
            axis.scaling.logBase = 10
            axis.scaling.min = 10.0 ** math.floor(math.log10(min(numbers)))
            axis.scaling.max = 10.0 ** math.ceil(math.log10(max(numbers)) + 1e-9)
    drawn.x_axis.crosses = "min"
    drawn.y_axis.crosses = "min"
    place_plot(drawn, 2.2, 1.2, 0.6, 3.0)
    return drawn


def _draw_labelled_axes(drawn: Any, chart: Chart, labels: Cells, number: str) -> None:
    """Axes of columns or lines over labels, which are turned where they would not stand side by side."""
    letters = longest(labels)
    steep = letters * len(labels.values) > 90
    draw_axis(drawn.x_axis, chart.x_title, degrees=-45 if steep else 0, size=8)
    draw_axis(drawn.y_axis, chart.y_title, number, lines=True)
    place_plot(drawn, 2.2, 1.2, 0.6, (min(0.1 * letters, 4.0) if steep else 0.4) + 2.6)


def _drawn(series: Any, shade: str, symbol: str, line: bool) -> None:
    fill = GraphicalProperties(solidFill=shade, ln=LineProperties(solidFill="FFFFFF", w=3175))
    shape: Any = symbol
    if symbol in ("x", "plus", "star"):
        fill = GraphicalProperties(noFill=True, ln=LineProperties(solidFill=shade, w=12700))
    series.marker = Marker(symbol=shape, size=6, spPr=fill)
    stroke = LineProperties(solidFill=shade, w=22225) if line else LineProperties(noFill=True)
    series.graphicalProperties = GraphicalProperties(ln=stroke)
    series.smooth = False
