"""Native charts of cost: waterfalls, tornado bars and curves; their points are cached as those of the other charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openpyxl.chart import BarChart, ScatterChart
from openpyxl.chart.marker import DataPoint, Marker
from openpyxl.chart.shapes import GraphicalProperties
from openpyxl.drawing.line import LineProperties

from xlperf.workbook.chart_parts import (
    Cells,
    bar_chart,
    bar_series,
    draw_axis,
    draw_lying_axes,
    label_series,
    longest,
    place_plot,
    point_series,
    scatter_chart,
)
from xlperf.workbook.charts import Points, place_beside_legend

LOW, HIGH = "2E9E8F", "C0392B"


def waterfall(
    words: str,
    labels: Cells,
    below: tuple[Cells, Cells],
    amounts: tuple[Cells, Cells],
    colours: Sequence[str],
    *,
    axis_title: str,
    number: str,
    size: tuple[float, float],
) -> BarChart:
    """Columns that stand on each other's heads: each part on the sum of those before, totals on the ground.

    Parameters
    ----------
    words : str
        Title.
    labels : Cells
        Names of the parts and totals.
    below : tuple of Cells
        Header and values of what each column stands on; not drawn.
    amounts : tuple of Cells
        Header and values of the columns themselves.
    colours : sequence of str
        One per column.
    axis_title : str
        What the values are, with the unit.
    number : str
        Number format of the axis.
    size : tuple of float
        Width and height. [cm]

    Returns
    -------
    openpyxl.chart.BarChart
        To be added to a sheet.
    """
    chart = bar_chart(words, "col", size, "stacked", 100, gap=35)
    chart.legend = None
    for (header, values), look in (
        (below, GraphicalProperties(noFill=True, ln=LineProperties(noFill=True))),
        (amounts, GraphicalProperties(ln=LineProperties(noFill=True))),
    ):
        shown = label_series(header, labels, values)
        shown.graphicalProperties, shown.invertIfNegative = look, False
        chart.series.append(shown)
    for index, colour in enumerate(colours):
        fill = GraphicalProperties(solidFill=colour, ln=LineProperties(noFill=True))
        shown.dPt.append(DataPoint(idx=index, invertIfNegative=False, spPr=fill))
    draw_axis(chart.x_axis, "", degrees=-60, size=8)
    draw_axis(chart.y_axis, axis_title, number, lines=True)
    place_plot(chart, 2.3, 1.2, 0.4, min(0.125 * longest(labels) + 0.6, 0.5 * size[1]))
    columns: BarChart = chart
    return columns


def tornado(
    words: str,
    labels: Cells,
    low: tuple[Cells, Cells],
    high: tuple[Cells, Cells],
    *,
    axis_title: str,
    number: str,
    size: tuple[float, float],
) -> BarChart:
    """Bars to both sides of the base result, the largest on top.

    Parameters
    ----------
    words : str
        Title.
    labels : Cells
        Names of the inputs.
    low, high : tuple of Cells
        Header and values: what the low and the high value of an input add to the base result.
    axis_title : str
        What the values are, with the unit.
    number : str
        Number format of the axis.
    size : tuple of float
        Width and height. [cm]

    Returns
    -------
    openpyxl.chart.BarChart
        To be added to a sheet.
    """
    chart = bar_chart(words, "bar", size, "clustered", 100)
    for (header, values), colour in ((low, LOW), (high, HIGH)):
        chart.series.append(bar_series(header, labels, values, colour))
    draw_lying_axes(chart, axis_title, number)
    place_plot(chart, min(0.15 * longest(labels) + 0.6, 0.5 * size[0]), 1.2, 0.5, 2.3)
    bars: BarChart = chart
    return bars


def curves(
    words: str,
    points: Sequence[Points],
    *,
    x_title: str,
    y_title: str,
    x_number: str,
    y_number: str,
    x_log: bool = False,
    y_log: bool = False,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    size: tuple[float, float] = (30.0, 14.0),
) -> ScatterChart:
    """Lines over a continuous axis, with small markers at their points; a series without a line has large ones.

    Parameters
    ----------
    words : str
        Title.
    points : sequence of Points
        Series; those with a ``marker`` are drawn as markers alone.
    x_title, y_title : str
        What the axes are, with units.
    x_number, y_number : str
        Number formats of the axes.
    x_log, y_log : bool
        Whether an axis is logarithmic.
    x_range, y_range : tuple of float, optional
        Ends of the axes. [-]
    size : tuple of float
        Width and height. [cm]

    Returns
    -------
    openpyxl.chart.ScatterChart
        To be added to a sheet.
    """
    chart = scatter_chart(words, size)
    for entry in points:
        series = point_series(entry.header, entry.x, entry.y)
        alone = bool(entry.marker)
        fill = GraphicalProperties(solidFill=entry.colour, ln=LineProperties(solidFill=entry.colour))
        shape: Any = entry.marker or "circle"
        series.marker = Marker(symbol=shape, size=11 if alone else 4, spPr=fill)
        dash: Any = entry.dash
        line = LineProperties(noFill=True) if alone else LineProperties(solidFill=entry.colour, w=19050, prstDash=dash)
        series.graphicalProperties = GraphicalProperties(ln=line)
        series.smooth = False
        chart.series.append(series)
    for axis, title, number, log, ends in (
        (chart.x_axis, x_title, x_number, x_log, x_range),
        (chart.y_axis, y_title, y_number, y_log, y_range),
    ):
        draw_axis(axis, title, number, lines=True)
        if log:
            axis.scaling.logBase = 10
        if ends is not None:
            axis.scaling.min, axis.scaling.max = ends
        axis.crosses = "min"
    place_beside_legend(chart, points)
    scatter: ScatterChart = chart
    return scatter
