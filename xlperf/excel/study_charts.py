"""Charts of a study's sheet: bars, columns, lines and points over the columns of its table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from openpyxl.chart import BarChart, LineChart, ScatterChart
from openpyxl.chart.data_source import AxDataSource, NumDataSource
from openpyxl.chart.marker import Marker
from openpyxl.chart.series import SeriesLabel, XYSeries
from openpyxl.chart.shapes import GraphicalProperties
from openpyxl.drawing.line import LineProperties

from xlperf.excel.charts import Cells, _axis, _frame, _plot, _series, colour
from xlperf.excel.formats import fitted_format

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
        drawn: Any = BarChart()
        drawn.type = "bar" if chart.kind == "bars" else "col"
        _frame(drawn, chart.title, *SIZE)
        for place, name in enumerate(chart.y):
            series = _series(header(name), cells(chart.x), cells(name))
            shade = colour(name, place) if name.startswith(("time_", "memory_")) else _PALETTE[place % len(_PALETTE)]
            series.graphicalProperties = GraphicalProperties(solidFill=shade, ln=LineProperties(noFill=True))
            series.invertIfNegative = False
            drawn.series.append(series)
        drawn.grouping = "stacked" if chart.stacked else "clustered"
        drawn.overlap = 100 if chart.stacked else -5
        drawn.gapWidth = 45
        longest = max((len(str(value)) for value in cells(chart.x).values), default=0)
        if chart.kind == "bars":
            _axis(drawn.x_axis, "", size=8)
            drawn.x_axis.scaling.orientation = "maxMin"
            _axis(drawn.y_axis, chart.y_title, number, lines=True)
            drawn.y_axis.crosses = "max"
            drawn.y_axis.tickLblPos = "nextTo"
            _plot(drawn, min(0.14 * longest + 0.7, 0.5 * SIZE[0]), 1.2, 0.6, 2.6)
        else:
            steep = longest * len(cells(chart.x).values) > 90
            _axis(drawn.x_axis, chart.x_title, degrees=-45 if steep else 0, size=8)
            _axis(drawn.y_axis, chart.y_title, number, lines=True)
            _plot(drawn, 2.2, 1.2, 0.6, (min(0.1 * longest, 4.0) if steep else 0.4) + 2.6)
        if chart.log_y:
            drawn.y_axis.scaling.logBase = 10
        return drawn
    values = cells(chart.x).values
    if chart.kind == "lines" and any(isinstance(value, str) for value in values):
        drawn = LineChart()
        _frame(drawn, chart.title, *SIZE)
        for place, name in enumerate(chart.y):
            series = _series(header(name), cells(chart.x), cells(name))
            _drawn(series, _PALETTE[place % len(_PALETTE)], _MARKERS[place % len(_MARKERS)], True)
            drawn.series.append(series)
        longest = max((len(str(value)) for value in values), default=0)
        steep = longest * len(values) > 90
        _axis(drawn.x_axis, chart.x_title, degrees=-45 if steep else 0, size=8)
        _axis(drawn.y_axis, chart.y_title, number, lines=True)
        _plot(drawn, 2.2, 1.2, 0.6, (min(0.1 * longest, 4.0) if steep else 0.4) + 2.6)
        if chart.log_y:
            drawn.y_axis.scaling.logBase = 10
        return drawn
    drawn = ScatterChart()
    drawn.style = None
    drawn.scatterStyle = "lineMarker"
    _frame(drawn, chart.title, *SIZE)
    for place, name in enumerate(chart.y):
        points = XYSeries(
            idx=0,
            order=0,
            tx=SeriesLabel(strRef=header(name).texts()),
            xVal=AxDataSource(numRef=cells(chart.x).numbers()),
            yVal=NumDataSource(numRef=cells(name).numbers()),
        )
        _drawn(points, _PALETTE[place % len(_PALETTE)], _MARKERS[place % len(_MARKERS)], chart.kind == "lines")
        drawn.series.append(points)
    _axis(drawn.x_axis, chart.x_title, "General" if chart.log_x else None, lines=True)
    _axis(drawn.y_axis, chart.y_title, number, lines=True)
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
    _plot(drawn, 2.2, 1.2, 0.6, 3.0)
    return drawn


def _drawn(series: Any, shade: str, symbol: str, line: bool) -> None:
    fill = GraphicalProperties(solidFill=shade, ln=LineProperties(solidFill="FFFFFF", w=3175))
    shape: Any = symbol
    if symbol in ("x", "plus", "star"):
        fill = GraphicalProperties(noFill=True, ln=LineProperties(solidFill=shade, w=12700))
    series.marker = Marker(symbol=shape, size=6, spPr=fill)
    stroke = LineProperties(solidFill=shade, w=22225) if line else LineProperties(noFill=True)
    series.graphicalProperties = GraphicalProperties(ln=stroke)
    series.smooth = False
