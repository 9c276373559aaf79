"""Native charts whose points are also cached, so that viewers show them before anything is recalculated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openpyxl.chart import BarChart, LineChart, ScatterChart
from openpyxl.chart.marker import Marker
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

if TYPE_CHECKING:
    pass

# One colour per part, the same in every chart of every report.
COLOURS = {
    "time_forward": "2F6DB5",
    "time_backward": "7FB2E5",
    "time_recompute": "B9A7E0",
    "time_tensor_parallel": "E08A2E",
    "time_context_parallel": "C9B037",
    "time_expert_parallel": "8C6BB1",
    "time_pipeline_communication": "C98BB9",
    "time_pipeline_bubble": "C0392B",
    "time_data_parallel": "2E9E8F",
    "time_optimizer": "5B8C3A",
    "time_overhead": "8D99A6",
    "time_matrix": "2F6DB5",
    "time_attention": "7FB2E5",
    "time_vector": "5B8C3A",
    "time_communication": "E08A2E",
    "prefill_time": "E08A2E",
    "decode_time": "2F6DB5",
    "memory_weights": "2F6DB5",
    "memory_gradients": "7FB2E5",
    "memory_optimizer": "5B8C3A",
    "memory_activations": "E08A2E",
    "memory_kv_cache": "2E9E8F",
    "memory_reserve": "B8C1CA",
    "memory_capacity": "A61B1B",
    "mfu": "2F6DB5",
    "hfu": "B9A7E0",
    "other": "D8DEE4",
}
_SPARE = ("6F4E7C", "9DD866", "CA472F", "0B84A5", "F6C85F", "FFA056", "8DDDD0", "5E6B78")


def colour(part: str, position: int = 0) -> str:
    """Colour of a part: fixed for those that we know, from a spare palette for new ones.

    >>> colour("time_forward")
    '2F6DB5'
    """
    return COLOURS.get(part, _SPARE[position % len(_SPARE)])


@dataclass(frozen=True)
class Part:
    """One series of a bar chart: the cell of its name, its values and its colour."""

    header: Cells
    values: Cells
    colour: str


def horizontal_bars(
    words: str,
    labels: Cells,
    parts: Sequence[Part],
    *,
    axis_title: str,
    number: str,
    percent: bool = False,
    stacked: bool = True,
    show_labels: bool = True,
    size: tuple[float, float] = (20.0, 12.0),
    most: float | None = None,
) -> BarChart:
    """Horizontal bars, one per label, the first on top.

    Parameters
    ----------
    words : str
        Title.
    labels : Cells
        One text per bar.
    parts : sequence of Part
        Series, first at the axis.
    axis_title : str
        What the values are, with the unit.
    number : str
        Number format of the value axis.
    percent : bool
        Whether every bar is drawn as a whole of 100 %.
    stacked : bool
        Whether parts follow each other, or stand side by side.
    show_labels : bool
        Whether the labels are drawn; off for a chart beside one with the same labels.
    size : tuple of float
        Width and height. [cm]
    most : float, optional
        End of the value axis. [-]

    Returns
    -------
    openpyxl.chart.BarChart
        To be added to a sheet.
    """
    grouping = ("percentStacked" if percent else "stacked") if stacked else "clustered"
    chart = bar_chart(words, "bar", size, grouping, 100 if stacked else -5)
    chart.series += [bar_series(part.header, labels, part.values, part.colour) for part in parts]
    draw_lying_axes(chart, axis_title, number)
    chart.x_axis.delete = not show_labels
    chart.y_axis.scaling.min = 0
    if most is not None:
        chart.y_axis.scaling.max = most
    left = min(0.14 * longest(labels) + 0.7, 0.5 * size[0]) if show_labels else 0.6
    place_plot(chart, left, 1.2, 0.6, 2.4)
    bars: BarChart = chart
    return bars


def columns_with_line(
    words: str,
    labels: Cells,
    parts: Sequence[Part],
    line: Part,
    *,
    axis_title: str,
    number: str,
    size: tuple[float, float] = (30.0, 15.0),
    most: float | None = None,
) -> BarChart:
    """Stacked columns with a line series over them, a dash at each column: what is needed, and what there is.

    Parameters
    ----------
    words : str
        Title.
    labels : Cells
        One text per column.
    parts : sequence of Part
        Series, first at the axis.
    line : Part
        The line series.
    axis_title : str
        What the values are, with the unit.
    number : str
        Number format of the value axis.
    size : tuple of float
        Width and height. [cm]
    most : float, optional
        End of the value axis. [-]

    Returns
    -------
    openpyxl.chart.BarChart
        To be added to a sheet.
    """
    chart = bar_chart(words, "col", size, "stacked", 100)
    chart.series += [bar_series(part.header, labels, part.values, part.colour) for part in parts]
    draw_axis(chart.x_axis, "", degrees=-60, size=8)
    draw_axis(chart.y_axis, axis_title, number, lines=True)
    chart.y_axis.scaling.min = 0
    if most is not None:
        chart.y_axis.scaling.max = most
    above: Any = LineChart()
    series = label_series(line.header, labels, line.values)
    series.graphicalProperties = GraphicalProperties(ln=LineProperties(noFill=True))
    apart = (size[0] - 3.2) / max(len(labels.values), 1) / 2.54 * 72
    series.marker = Marker(
        symbol="dash",
        size=round(min(max(0.55 * apart, 5), 40)),
        spPr=GraphicalProperties(solidFill=line.colour, ln=LineProperties(solidFill=line.colour)),
    )
    series.smooth = False
    above.series.append(series)
    above.y_axis.axId = chart.y_axis.axId
    above.x_axis.axId = chart.x_axis.axId
    chart += above
    most_letters = longest(labels)
    place_plot(chart, max(2.0, 0.07 * most_letters), 1.2, 0.6, min(0.115 * most_letters, 0.5 * size[1]) + 1.7)
    columns: BarChart = chart
    return columns


@dataclass(frozen=True)
class Points:
    """One series of a scatter chart: markers, joined by a line or not; only a line where ``marker`` is empty."""

    header: Cells
    x: Cells
    y: Cells
    colour: str
    marker: str = "circle"
    dash: str = "solid"
    joined: bool = False


def place_beside_legend(chart: Any, points: Sequence[Points]) -> None:
    """Put the legend to the right of a scatter chart and give its longest name the space that it needs.

    Parameters
    ----------
    chart : openpyxl.chart.ScatterChart
        Changed in place.
    points : sequence of Points
        Its series.
    """
    chart.legend.position = "r"
    letters = max((len(str(entry.header.values[0])) for entry in points), default=10)
    place_plot(chart, 2.4, 1.2, min(0.17 * letters + 2.0, 0.35 * chart.width), 1.9)


def log_scatter(
    words: str,
    points: Sequence[Points],
    *,
    x_title: str,
    y_title: str,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    size: tuple[float, float] = (30.0, 16.0),
) -> ScatterChart:
    """A scatter chart with two logarithmic axes.

    Parameters
    ----------
    words : str
        Title.
    points : sequence of Points
        Series.
    x_title, y_title : str
        What the axes are, with units.
    x_range, y_range : tuple of float
        Ends of the axes, powers of ten. [-]
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
        if entry.marker:
            fill = GraphicalProperties(solidFill=entry.colour, ln=LineProperties(solidFill="FFFFFF", w=3175))
            shape: Any = entry.marker
            series.marker = Marker(symbol=shape, size=7, spPr=fill)
            joint = LineProperties(solidFill=entry.colour, w=15875) if entry.joined else LineProperties(noFill=True)
            series.graphicalProperties = GraphicalProperties(ln=joint)
        else:
            series.marker = Marker(symbol="none")
            dash: Any = entry.dash
            line = LineProperties(solidFill=entry.colour, w=22225, prstDash=dash)
            series.graphicalProperties = GraphicalProperties(ln=line)
        series.smooth = False
        chart.series.append(series)
    for axis, title, (low, high) in ((chart.x_axis, x_title, x_range), (chart.y_axis, y_title, y_range)):
        draw_axis(axis, title, "[<1]0.0##;#,##0", lines=True)
        axis.scaling.logBase = 10
        axis.scaling.min, axis.scaling.max = low, high
    chart.x_axis.crosses = "min"
    chart.y_axis.crosses = "min"
    place_beside_legend(chart, points)
    scatter: ScatterChart = chart
    return scatter
