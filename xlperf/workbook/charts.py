"""Native charts and their axes; points are also cached, so that viewers show them before any recalculation.

``words`` is the title of a chart, ``size`` its width and height [cm], ``number`` the number format of its values,
``axis_title`` their name with the unit, ``most`` the end of their axis. Drawing functions change their chart in place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openpyxl.chart import BarChart, LineChart, ScatterChart
from openpyxl.chart.data_source import AxDataSource, NumData, NumDataSource, NumRef, NumVal, StrData, StrRef, StrVal
from openpyxl.chart.label import DataLabel, DataLabelList
from openpyxl.chart.layout import Layout, ManualLayout
from openpyxl.chart.marker import DataPoint, Marker
from openpyxl.chart.series import Series, SeriesLabel, XYSeries
from openpyxl.chart.shapes import GraphicalProperties
from openpyxl.drawing.spreadsheet_drawing import AnchorMarker, TwoCellAnchor
from openpyxl.utils import get_column_letter, quote_sheetname, range_boundaries

from xlperf.base import resources
from xlperf.base.arrays import added
from xlperf.base.units import UNITS
from xlperf.workbook.axes import area, axis_end, draw_axis, line, log_axis, space_ticks, text, title
from xlperf.workbook.style import INK, NAVY, RULE

if TYPE_CHECKING:
    from openpyxl.worksheet.worksheet import Worksheet


BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW = (
    "0072B2", "E69F00", "009E73", "D55E00", "CC79A7", "56B4E9", "F0E442",
)  # fmt: skip
DARK = "44515E"
SERIES = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, DARK, "6B5B00", "7A4B8C", "8D99A6")
"""Colours of series for colour-blind readers too (Okabe and Ito, jfly.uni-koeln.de/color, 2008), then four more."""


@dataclass(frozen=True)
class Cells:
    """Cells of one column that a chart refers to, and their cached values: of ``known`` where they are formulas."""

    sheet: Worksheet
    column: int
    first: int
    last: int
    known: Mapping[tuple[str, str], Any] | None = None  # value by title of the sheet and coordinate

    @property
    def address(self) -> str:
        """``'step time'!$B$5:$B$20``."""
        letter = get_column_letter(self.column)
        start = f"${letter}${self.first}"
        cells = start if self.first == self.last else f"{start}:${letter}${self.last}"
        return f"{quote_sheetname(self.sheet.title)}!{cells}"

    @property
    def values(self) -> list[Any]:
        """Values of the cells."""
        cells = [self.sheet.cell(row, self.column) for row in range(self.first, self.last + 1)]
        known = self.known
        if known is None:
            return [cell.value for cell in cells]
        return [known.get((self.sheet.title, cell.coordinate)) for cell in cells]

    def texts(self) -> StrRef:
        """A reference with its text cached."""
        values = self.values
        points = [StrVal(idx=i, v=str(value)) for i, value in enumerate(values) if value is not None]
        return StrRef(f=self.address, strCache=StrData(ptCount=len(values), pt=points))

    def name(self) -> SeriesLabel:
        """The name of a series, without the unit of its header: the axis has it."""
        reference = self.texts()
        if self.known is not None:
            reference.f = self.address.replace("$", "")
            return SeriesLabel(strRef=reference)
        words, _, unit = str(self.values[0]).rpartition(" (")
        if not words and unit in ("mfu", "hfu"):
            return SeriesLabel(v=unit.upper())
        return SeriesLabel(v=words) if unit[:-1] in UNITS and unit.endswith(")") else SeriesLabel(strRef=reference)

    def numbers(self) -> NumRef:
        """A reference with its numbers cached."""
        values = self.values
        points = [
            NumVal(idx=i, v=repr(float(value)))
            for i, value in enumerate(values)
            if isinstance(value, int | float) and not isinstance(value, bool)
        ]
        code = self.sheet.cell(self.first, self.column).number_format if self.known is None else "General"
        return NumRef(f=self.address, numCache=NumData(formatCode=code, ptCount=len(values), pt=points))


def frame(chart: Any, words: str, size: tuple[float, float]) -> None:
    """Give a chart its size, its title at the top left, its legend below and a thin frame."""
    width, height = size
    chart.width, chart.height = width, height
    fits = (width - 0.6) / (0.0195 * max(len(words), 1))  # points at which the title is as wide as the chart
    chart.title = title(words, min(12.0, max(round(fits), 8.0)), NAVY, True, 0.012, 0.25 / height)
    chart.legend.position = "b"
    chart.legend.overlay = False
    chart.legend.txPr = text(9)
    chart.roundedCorners = False
    chart.display_blanks = "gap"
    chart.graphical_properties = area("FFFFFF", line(RULE, 0.5))
    chart.plot_area.graphicalProperties = area()


def place_plot(chart: Any, left: float, top: float, right: float, bottom: float) -> None:
    """Place the area inside the axes."""
    width, height = chart.width, chart.height
    within = left / width, top / height, (width - left - right) / width, (height - top - bottom) / height
    chart.layout = _layout(within, "inner")


Shares = tuple[float, float, float, float]
"""Left, top, width and height as shares of a chart."""


def _layout(shares: Shares, target: Any = None) -> Layout:
    x, y, w, h = shares
    return Layout(ManualLayout(layoutTarget=target, xMode="edge", yMode="edge", x=x, y=y, w=w, h=h))


def place_over(chart: Any, sheet: Any, cells: str, plot: Shares, legend: Shares | str = "") -> None:
    """Put a chart without a title and a frame over cells; ``legend``: its side or its place, or none."""
    edges: Any = range_boundaries(cells)
    first, top, last, bottom = edges
    chart.anchor = TwoCellAnchor(editAs="oneCell")
    chart.anchor._from = AnchorMarker(col=first - 1, row=top - 1, rowOff=40000)
    chart.anchor.to = AnchorMarker(col=last, row=bottom)
    chart.title, chart.roundedCorners, chart.display_blanks = None, False, "gap"
    chart.graphical_properties = area("", line())
    chart.plot_area.graphicalProperties = area("", line())
    if not legend:
        chart.legend = None
    else:
        side = isinstance(legend, str)
        chart.legend.txPr, chart.legend.overlay = text(), not side
        chart.legend.position = legend if side else "r"
        chart.legend.layout = None if isinstance(legend, str) else _layout(legend)
    chart.layout = _layout(plot, "inner")
    sheet.add_chart(chart)


def legend_height(chart: Any) -> float:
    """Height of the legend below a chart [cm], from the lines that its names fill.

    A chart of one series has no legend, since its title names the series.
    """
    every = [series for own in chart._charts for series in own.series]
    if len(every) == 1:
        chart.legend = None
        return 0.0
    names = [series_name(series) for series in every if series.tx is not None]
    lines = math.ceil(sum(0.165 * len(name) + 1.1 for name in names) / (0.92 * chart.width)) if names else 0
    return 0.35 + 0.45 * max(lines, 1)


def series_name(series: Any) -> str:
    """The name of a series, as it is or as its cell has it."""
    return str(series.tx.v or series.tx.strRef.strCache.pt[0].v)


def label_series(header: Cells, labels: Cells, values: Cells) -> Any:
    """Values over labels, for bars and lines."""
    along, up = AxDataSource(strRef=labels.texts()), NumDataSource(numRef=values.numbers())
    return Series(idx=0, order=0, tx=header.name(), cat=along, val=up)


def bar_series(header: Cells, labels: Cells, values: Cells, look: GraphicalProperties) -> Any:
    """Bars of one look, whatever their sign."""
    series = label_series(header, labels, values)
    series.graphicalProperties, series.invertIfNegative = look, False
    return series


def bar_chart(
    words: str, kind: str, size: tuple[float, float] | None, grouping: str, overlap: int, gap: int = 45
) -> Any:
    """A bar chart without series: ``kind`` is bar (horizontal) or col; no frame without a size."""
    chart: Any = BarChart()
    chart.type = kind
    if size is not None:
        frame(chart, words, size)
    chart.grouping, chart.overlap, chart.gapWidth = grouping, overlap, gap
    return chart


def label_values(series: Any, position: str, ink: str = INK, bold: bool = False) -> None:
    """Show values at bars and points, in the format of their cells."""
    series.dLbls = DataLabelList(
        showVal=True,
        showSerName=False,
        showCatName=False,
        showLegendKey=False,
        showPercent=False,
        showLeaderLines=False,
        dLblPos=position,
        txPr=text(9, ink, bold),
    )


def draw_horizontal_axes(chart: Any, axis_title: str, number: str) -> None:
    """Axes of horizontal bars: the first label on top, values below."""
    draw_axis(chart.x_axis, "", size=8)
    chart.x_axis.scaling.orientation = "maxMin"
    draw_axis(chart.y_axis, axis_title, number, lines=True)
    chart.y_axis.crosses = "max"
    chart.y_axis.tickLblPos = "nextTo"


def longest(labels: Cells) -> int:
    """Characters of the longest label."""
    return max((len(str(value)) for value in labels.values), default=0)


_COLOURS = {row["part"]: row["colour"] for row in resources.rows("workbook/colours.csv")}
"""One colour per part, the same in every chart of every report."""
_SPARE = ("6F4E7C", "9DD866", "CA472F", "0B84A5", "F6C85F", "FFA056", "8DDDD0", "5E6B78")


def colour(part: str, position: int = 0) -> str:
    """Colour of a part: fixed for known parts, from a spare palette for new ones.

    >>> colour("time_forward")
    '0072B2'
    """
    return _COLOURS.get(part, _SPARE[position % len(_SPARE)])


@dataclass(frozen=True)
class Part:
    """One series of a bar chart: the cell of its name, its values and its colour."""

    header: Cells
    values: Cells
    colour: str

    def bars(self, labels: Cells) -> Any:
        """The bars of this part over labels."""
        return bar_series(self.header, labels, self.values, area(self.colour, line()))


def _beside(labels: Cells, size: tuple[float, float]) -> float:
    """Width that labels of horizontal bars take; half of the chart stays for the bars, or 5 cm of a wide one. [cm]"""
    return min(0.14 * longest(labels) + 0.7, max(0.5 * size[0], size[0] - 5.0))


Size = tuple[float, float]
"""Width and height of a chart. [cm]"""


def horizontal_bars(
    words: str,
    labels: Cells,
    parts: Sequence[Part],
    axis_title: str,
    number: str,
    size: Size,
    *,
    percent: bool = False,
    stacked: bool = True,
    show_labels: bool = True,
    least: float | None = 0.0,
    most: float | None = None,
    is_linear: bool = True,
) -> Any:
    """Horizontal bars, one per label, the first on top; ``least``, ``most``: ends of their axis.

    Bars beside each other have their names at their ends where those fit: LibreOffice turns the order of their legend.
    """
    grouping = ("percentStacked" if percent else "stacked") if stacked else "clustered"
    chart = bar_chart(words, "bar", size, grouping, 100 if stacked else -5)
    chart.series += [part.bars(labels) for part in parts]
    draw_horizontal_axes(chart, axis_title, number)
    chart.x_axis.delete = not show_labels
    chart.y_axis.scaling.min, chart.y_axis.scaling.max = least, most
    left = _beside(labels, size) if show_labels else 0.6
    if is_linear and not stacked and len(parts) > 1 and _name_at_ends(chart, parts, size[0] - left - 0.6, most):
        chart.legend = None
        place_plot(chart, left, 1.2, 0.6, 1.7)
    else:
        _place_bars(chart, left)
    return chart


def _name_at_ends(chart: Any, parts: Sequence[Part], wide: float, most: float | None) -> bool:
    """Write the names of bars at the ends of the first ones beside which there is room; whether there are such."""
    known = [[v if isinstance(v, int | float) else 0.0 for v in part.values.values] for part in parts]
    groups = list(zip(*known, strict=True))
    end = most or axis_end(1.05 * max(map(max, groups), default=0.0))  # programs leave a twentieth of an axis free
    needed = 0.16 * max(len(series_name(series)) for series in chart.series) + 0.4
    each = (chart.height - 2.9) / (len(groups) * (len(parts) + 0.45))
    fits = (at for at, own in enumerate(groups) if min(own) > 0.0 and (1.0 - max(own) / end) * wide > needed)
    at = next(fits, None)
    if at is None or each < _NAME_HIGH or min(map(min, groups)) < 0.0:
        return False
    shown = {"showSerName": True, "showVal": False, "showCatName": False, "showLegendKey": False, "showPercent": False}
    for series in chart.series:
        name = DataLabel(idx=at, dLblPos="outEnd", txPr=text(8), **shown)
        series.dLbls = DataLabelList(dLbl=[name], **{**shown, "showSerName": False})
    return True


_NAME_HIGH = 0.28
"""Height of a bar that its name at its end needs. [cm]"""


def _place_bars(chart: Any, left: float) -> None:
    """Place the plot of horizontal bars; the legend of a chart higher than a window goes above the bars."""
    high = legend_height(chart)
    if not high or chart.height <= _WINDOW:
        place_plot(chart, left, 1.2, 0.6, 1.7 + high)
        return
    chart.legend.position = "t"
    edge = 0.3 / chart.width
    chart.legend.layout = _layout((edge, 0.95 / chart.height, 1.0 - 2 * edge, high / chart.height))
    place_plot(chart, left, 1.1 + high, 0.6, 1.7)


_WINDOW = 10.0
"""Height of a chart that a window shows whole below the head of its sheet. [cm]"""


def bars_in_a_limit(
    words: str,
    labels: Cells,
    parts: Sequence[Part],
    limit: Part,
    axis_title: str,
    number: str,
    size: Size,
    most: float | None = None,
) -> Any:
    """Stacked horizontal bars, each inside a frame as long as its limit: used memory, and its capacity.

    The frames have hidden axes of their own, of the same length as the axes of the bars.
    """
    if most is None:
        columns = zip(*(part.values.values for part in parts), strict=True)
        needed = [added(value or 0.0 for value in row) for row in columns]
        most = axis_end(max([*needed, *(value or 0.0 for value in limit.values.values)], default=0.0))
    chart = horizontal_bars(words, labels, parts, axis_title, number, size, most=most)
    frames = bar_chart("", "bar", size, "clustered", 100)
    frames.series.append(bar_series(limit.header, labels, limit.values, area("", line(limit.colour, 1.25))))
    draw_horizontal_axes(frames, "", number)
    frames.y_axis.majorGridlines = None
    frames.y_axis.scaling.min, frames.y_axis.scaling.max = 0, most
    for axis, own, other in ((frames.x_axis, 500, 600), (frames.y_axis, 600, 500)):
        axis.axId, axis.crossAx, axis.delete = own, other, True
    chart += frames
    _place_bars(chart, _beside(labels, size))
    return chart


@dataclass(frozen=True)
class Points:
    """One series of a scatter or line chart: markers, none of which are drawn if "none", and a line through them."""

    header: Cells
    x: Cells
    y: Cells
    colour: str
    marker: str = "circle"
    size: int = 7
    edge: float = 0.25  # white edge of a marker [pt]; 0: in its colour
    strokes: bool = False  # a marker of strokes alone: x, plus, star
    width: float = 0.0  # line [pt]; 0: none
    dash: str | None = None

    def draw(self, over_labels: bool = False) -> Any:
        """The series, over numbers or over labels."""
        if over_labels:
            series = label_series(self.header, self.x, self.y)
        else:
            x, y = AxDataSource(numRef=self.x.numbers()), NumDataSource(numRef=self.y.numbers())
            series = XYSeries(idx=0, order=0, tx=self.header.name(), xVal=x, yVal=y)
        symbol: Any = self.marker
        if symbol == "none":
            series.marker = Marker(symbol=symbol)
        elif self.strokes:
            series.marker = Marker(symbol=symbol, size=self.size, spPr=area("", line(self.colour, 1.0)))
        else:
            edge = line("FFFFFF", self.edge) if self.edge else line(self.colour)
            series.marker = Marker(symbol=symbol, size=self.size, spPr=area(self.colour, edge))
        stroke = line(self.colour, self.width, self.dash) if self.width else line()
        series.graphicalProperties = GraphicalProperties(ln=stroke)
        series.smooth = False
        return series


def curve(header: Cells, x: Cells, y: Cells, colour: str, dash: str = "solid") -> Points:
    """A line with small markers at its points."""
    return Points(header, x, y, colour, size=4, edge=0.0, width=1.5, dash=dash)


def spots(header: Cells, x: Cells, y: Cells, colour: str, marker: str) -> Points:
    """Large markers without a line."""
    return Points(header, x, y, colour, marker, size=11, edge=0.0)


def place_beside_legend(chart: Any, points: Sequence[Points]) -> None:
    """Put the legend to the right of a scatter chart; below it if its longest name would take a fifth of it."""
    letters = max((len(str(entry.header.values[0])) for entry in points), default=10)
    needed = 0.17 * letters + 2.0
    if needed <= 0.2 * chart.width:
        chart.legend.position = "r"
        place_plot(chart, 2.4, 1.2, needed, 1.9)
    else:
        place_plot(chart, 2.4, 1.2, 0.8, 1.7 + legend_height(chart))


def scatter_chart(points: Sequence[Points], words: str = "", size: tuple[float, float] | None = None) -> Any:
    """Points over numbers, without axes; no frame without a size."""
    chart: Any = ScatterChart()
    chart.style = None
    chart.scatterStyle = "lineMarker"
    if size is not None:
        frame(chart, words, size)
    chart.series += [entry.draw() for entry in points]
    return chart


def curve_chart(
    words: str,
    points: Sequence[Points],
    x_title: str,
    y_title: str,
    size: Size,
    *,
    x_number: str | None = None,
    y_number: str | None = None,
    log: str = "",
    x_range: tuple[float, float] | None = None,
) -> Any:
    """Lines and points over a continuous axis, the legend beside or below them; ``log``: axes that are logarithmic."""
    chart = scatter_chart(points, words, size)
    for axis, named, number, column in ((chart.x_axis, x_title, x_number, "x"), (chart.y_axis, y_title, y_number, "y")):
        draw_axis(axis, f"{named}, logarithmic axis" if column in log else named, number, lines=True)
        if column in log:
            log_axis(axis, [value for entry in points for value in getattr(entry, column).values])
        axis.crosses = "min"
    if x_range is not None:
        chart.x_axis.scaling.min, chart.x_axis.scaling.max = x_range
    place_beside_legend(chart, points)
    return chart


def over_labels(
    words: str,
    series: Sequence[Part] | Sequence[Points],
    labels: Cells,
    x_title: str,
    y_title: str,
    number: str,
    stacked: bool,
    size: Size,
) -> Any:
    """Columns or lines over labels, which are turned if they do not fit beside each other."""
    if all(isinstance(entry, Part) for entry in series):
        grouping, overlap = ("stacked", 100) if stacked else ("clustered", -5)
        chart = bar_chart(words, "col", size, grouping, overlap)
    else:
        chart = LineChart()
        frame(chart, words, size)
    for entry in series:
        chart.series.append(entry.bars(labels) if isinstance(entry, Part) else entry.draw(over_labels=True))
    letters = longest(labels)
    steep = letters * len(labels.values) > 90
    draw_axis(chart.x_axis, x_title, degrees=-45 if steep else 0, size=8)
    draw_axis(chart.y_axis, y_title, number, lines=True)
    place_plot(chart, 2.2, 1.2, 0.6, (min(0.1 * letters, 4.0) if steep else 0.4) + 1.4 + legend_height(chart))
    return chart


LOW, HIGH = GREEN, VERMILION


def waterfall(
    words: str,
    labels: Cells,
    below: tuple[Cells, Cells],
    amounts: tuple[Cells, Cells],
    colours: Sequence[str],
    axis_title: str,
    size: Size,
) -> Any:
    """A waterfall chart, the first step on top: each part begins at the end of the parts before it, totals at zero."""
    chart = bar_chart(words, "bar", size, "stacked", 100, gap=35)
    chart.legend = None
    shown = bar_series(amounts[0], labels, amounts[1], GraphicalProperties(ln=line()))
    for index, colour in enumerate(colours):
        shown.dPt.append(DataPoint(idx=index, invertIfNegative=False, spPr=area(colour, line())))
    chart.series += [bar_series(below[0], labels, below[1], area("", line())), shown]
    left, steps = _beside(labels, size), zip(below[1].values, amounts[1].values, strict=True)
    draw_horizontal_axes(chart, axis_title, "#,##0")
    space_ticks(chart.y_axis, [added(part or 0.0 for part in step) for step in steps], size[0] - left - 0.6)
    place_plot(chart, left, 1.2, 0.6, 1.7)
    return chart


def tornado(
    words: str, labels: Cells, low: tuple[Cells, Cells], high: tuple[Cells, Cells], axis_title: str, size: Size
) -> Any:
    """A tornado chart: bars to both sides of the base result, the largest on top."""
    chart = bar_chart(words, "bar", size, "clustered", 100)
    chart.series += [Part(*low, LOW).bars(labels), Part(*high, HIGH).bars(labels)]
    draw_horizontal_axes(chart, axis_title, "#,##0")
    left = min(0.15 * longest(labels) + 0.6, 0.5 * size[0])
    space_ticks(chart.y_axis, [*low[1].values, *high[1].values], size[0] - left - 0.5)
    place_plot(chart, left, 1.2, 0.5, 2.3)
    return chart
