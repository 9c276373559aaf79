"""Native charts whose points are also cached, so that viewers show them before anything is recalculated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openpyxl.chart import BarChart, LineChart, ScatterChart
from openpyxl.chart.data_source import (
    AxDataSource,
    NumData,
    NumDataSource,
    NumRef,
    NumVal,
    StrData,
    StrRef,
    StrVal,
)
from openpyxl.chart.layout import Layout, ManualLayout
from openpyxl.chart.marker import Marker
from openpyxl.chart.series import Series, SeriesLabel, XYSeries
from openpyxl.chart.shapes import GraphicalProperties
from openpyxl.chart.text import RichText, Text
from openpyxl.chart.title import Title
from openpyxl.drawing.line import LineProperties
from openpyxl.drawing.text import (
    CharacterProperties,
    Font,
    Paragraph,
    ParagraphProperties,
    RegularTextRun,
    RichTextProperties,
)
from openpyxl.utils import get_column_letter, quote_sheetname

from xlperf.excel.style import FONT, INK, MUTED, NAVY, RULE

if TYPE_CHECKING:
    from openpyxl.worksheet.worksheet import Worksheet

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
class Cells:
    """A run of cells in one column of a sheet: what a chart refers to, and the values that it caches."""

    sheet: Worksheet
    column: int
    first: int
    last: int

    @property
    def address(self) -> str:
        """``'step time'!$B$5:$B$20``."""
        letter = get_column_letter(self.column)
        start = f"${letter}${self.first}"
        area = start if self.first == self.last else f"{start}:${letter}${self.last}"
        return f"{quote_sheetname(self.sheet.title)}!{area}"

    @property
    def values(self) -> list[Any]:
        """What the cells hold."""
        return [self.sheet.cell(row, self.column).value for row in range(self.first, self.last + 1)]

    def texts(self) -> StrRef:
        """A reference with its text cached."""
        values = self.values
        points = [StrVal(idx=i, v=str(value)) for i, value in enumerate(values) if value is not None]
        return StrRef(f=self.address, strCache=StrData(ptCount=len(values), pt=points))

    def numbers(self) -> NumRef:
        """A reference with its numbers cached."""
        values = self.values
        points = [
            NumVal(idx=i, v=repr(float(value)))
            for i, value in enumerate(values)
            if isinstance(value, int | float) and not isinstance(value, bool)
        ]
        code = self.sheet.cell(self.first, self.column).number_format
        return NumRef(f=self.address, numCache=NumData(formatCode=code, ptCount=len(values), pt=points))


def _characters(size: float, colour_: str, bold: bool) -> CharacterProperties:
    return CharacterProperties(sz=round(size * 100), b=bold, solidFill=colour_, latin=Font(typeface=FONT))


def _text(size: float = 9, colour_: str = INK, bold: bool = False, degrees: float = 0) -> RichText:
    body = RichTextProperties(rot=round(degrees * 60000), vert="horz")
    paragraph = Paragraph(
        pPr=ParagraphProperties(defRPr=_characters(size, colour_, bold)), endParaRPr=CharacterProperties()
    )
    return RichText(bodyPr=body, p=[paragraph])


def _title(words: str, size: float, colour_: str, bold: bool, x: float | None = None, y: float | None = None) -> Title:
    run = RegularTextRun(rPr=_characters(size, colour_, bold), t=words)
    paragraph = Paragraph(pPr=ParagraphProperties(defRPr=_characters(size, colour_, bold)), r=[run])
    title = Title(tx=Text(rich=RichText(bodyPr=RichTextProperties(), p=[paragraph])), overlay=False)
    if x is not None and y is not None:
        title.layout = Layout(manualLayout=ManualLayout(xMode="edge", yMode="edge", x=x, y=y))
    return title


def _frame(chart: Any, words: str, width: float, height: float) -> None:
    chart.width, chart.height = width, height
    chart.title = _title(words, 12, NAVY, True, 0.012, 0.25 / height)
    chart.legend.position = "b"
    chart.legend.overlay = False
    chart.legend.txPr = _text(9)
    chart.roundedCorners = False
    chart.display_blanks = "gap"
    chart.graphical_properties = GraphicalProperties(solidFill="FFFFFF", ln=LineProperties(solidFill=RULE, w=6350))
    chart.plot_area.graphicalProperties = GraphicalProperties(noFill=True)


def _plot(chart: Any, left: float, top: float, right: float, bottom: float) -> None:
    """Place the inner plot area: margins in cm."""
    width, height = chart.width, chart.height
    chart.layout = Layout(
        manualLayout=ManualLayout(
            layoutTarget="inner",
            xMode="edge",
            yMode="edge",
            x=left / width,
            y=top / height,
            w=(width - left - right) / width,
            h=(height - top - bottom) / height,
        )
    )


def _axis(
    axis: Any, words: str, number: str | None = None, lines: bool = False, degrees: float = 0, size: float = 9
) -> None:
    axis.delete = False
    axis.txPr = _text(size, degrees=degrees)
    axis.title = _title(words, 9, MUTED, False) if words else None
    axis.majorTickMark = "none"
    axis.minorTickMark = "none"
    axis.tickLblPos = "low"
    axis.graphicalProperties = GraphicalProperties(ln=LineProperties(solidFill="9AA5B1", w=6350))
    if number is not None:
        axis.number_format = number
        axis.numFmt.sourceLinked = False
    if lines:
        axis.majorGridlines.spPr = GraphicalProperties(ln=LineProperties(solidFill="E6EAEE", w=6350))
    else:
        axis.majorGridlines = None


def _series(header: Cells, labels: Cells, values: Cells) -> Series:
    return Series(
        idx=0,
        order=0,
        tx=SeriesLabel(strRef=header.texts()),
        cat=AxDataSource(strRef=labels.texts()),
        val=NumDataSource(numRef=values.numbers()),
    )


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
    chart = BarChart()
    chart.type = "bar"
    _frame(chart, words, *size)
    for part in parts:
        series = _series(part.header, labels, part.values)
        series.graphicalProperties = GraphicalProperties(solidFill=part.colour, ln=LineProperties(noFill=True))
        series.invertIfNegative = False
        chart.series.append(series)
    if stacked:
        chart.grouping = "percentStacked" if percent else "stacked"
        chart.overlap = 100
    else:
        chart.grouping = "clustered"
        chart.overlap = -5
    chart.gapWidth = 45
    _axis(chart.x_axis, "", size=8)
    chart.x_axis.scaling.orientation = "maxMin"
    chart.x_axis.delete = not show_labels
    _axis(chart.y_axis, axis_title, number, lines=True)
    chart.y_axis.crosses = "max"
    chart.y_axis.tickLblPos = "nextTo"
    chart.y_axis.scaling.min = 0
    if most is not None:
        chart.y_axis.scaling.max = most
    longest = max((len(str(value)) for value in labels.values), default=0)
    left = min(0.14 * longest + 0.7, 0.5 * size[0]) if show_labels else 0.6
    _plot(chart, left, 1.2, 0.6, 2.4)
    return chart


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
    chart = BarChart()
    chart.type = "col"
    _frame(chart, words, *size)
    for part in parts:
        series = _series(part.header, labels, part.values)
        series.graphicalProperties = GraphicalProperties(solidFill=part.colour, ln=LineProperties(noFill=True))
        series.invertIfNegative = False
        chart.series.append(series)
    chart.grouping = "stacked"
    chart.overlap = 100
    chart.gapWidth = 45
    _axis(chart.x_axis, "", degrees=-60, size=8)
    _axis(chart.y_axis, axis_title, number, lines=True)
    chart.y_axis.scaling.min = 0
    if most is not None:
        chart.y_axis.scaling.max = most
    above: Any = LineChart()
    series = _series(line.header, labels, line.values)
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
    combined: Any = chart
    combined += above
    longest = max((len(str(value)) for value in labels.values), default=0)
    _plot(combined, max(2.0, 0.07 * longest), 1.2, 0.6, min(0.115 * longest, 0.5 * size[1]) + 1.7)
    return chart


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
    chart: Any = ScatterChart()
    chart.style = None
    chart.scatterStyle = "lineMarker"
    _frame(chart, words, *size)
    for entry in points:
        series = XYSeries(
            idx=0,
            order=0,
            tx=SeriesLabel(strRef=entry.header.texts()),
            xVal=AxDataSource(numRef=entry.x.numbers()),
            yVal=NumDataSource(numRef=entry.y.numbers()),
        )
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
        _axis(axis, title, "[<1]0.0##;#,##0", lines=True)
        axis.scaling.logBase = 10
        axis.scaling.min, axis.scaling.max = low, high
    chart.x_axis.crosses = "min"
    chart.y_axis.crosses = "min"
    chart.legend.position = "r"
    longest = max((len(str(entry.header.values[0])) for entry in points), default=10)
    _plot(chart, 2.4, 1.2, min(0.17 * longest + 2.0, 0.35 * size[0]), 1.9)
    scatter: ScatterChart = chart
    return scatter
