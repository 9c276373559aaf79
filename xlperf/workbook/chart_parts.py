"""What native charts are made of: cells with cached points, frames, axes and series in one look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openpyxl.chart import BarChart, ScatterChart
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

from xlperf.workbook.style import FONT, INK, MUTED, NAVY, RULE

if TYPE_CHECKING:
    from openpyxl.worksheet.worksheet import Worksheet


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


def frame(chart: Any, words: str, width: float, height: float) -> None:
    """Give a chart its size, its title at the top left, its legend below and a thin frame.

    Parameters
    ----------
    chart : openpyxl chart
        Changed in place.
    words : str
        Title.
    width, height : float
        Size. [cm]
    """
    chart.width, chart.height = width, height
    chart.title = _title(words, 12, NAVY, True, 0.012, 0.25 / height)
    chart.legend.position = "b"
    chart.legend.overlay = False
    chart.legend.txPr = _text(9)
    chart.roundedCorners = False
    chart.display_blanks = "gap"
    chart.graphical_properties = GraphicalProperties(solidFill="FFFFFF", ln=LineProperties(solidFill=RULE, w=6350))
    chart.plot_area.graphicalProperties = GraphicalProperties(noFill=True)


def place_plot(chart: Any, left: float, top: float, right: float, bottom: float) -> None:
    """Place the area inside the axes.

    Parameters
    ----------
    chart : openpyxl chart
        Changed in place; its size must be known.
    left, top, right, bottom : float
        Margins between the area and the frame. [cm]
    """
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


def draw_axis(
    axis: Any, words: str, number: str | None = None, lines: bool = False, degrees: float = 0, size: float = 9
) -> None:
    """Show an axis in the look of all charts.

    Parameters
    ----------
    axis : openpyxl axis
        Changed in place.
    words : str
        Title, with the unit; "" for none.
    number : str, optional
        Number format; without one that of the cells.
    lines : bool, default False
        Whether lines of the grid stand at its ticks.
    degrees : float, default 0
        Turn of the labels. [degree]
    size : float, default 9
        Height of the labels. [point]
    """
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


def label_series(header: Cells, labels: Cells, values: Cells) -> Series:
    """Values over labels, for bars and lines.

    Parameters
    ----------
    header : Cells
        Cell of the name.
    labels, values : Cells
        One each per bar or point.
    """
    return Series(
        idx=0,
        order=0,
        tx=SeriesLabel(strRef=header.texts()),
        cat=AxDataSource(strRef=labels.texts()),
        val=NumDataSource(numRef=values.numbers()),
    )


def bar_series(header: Cells, labels: Cells, values: Cells, colour: str) -> Series:
    """Bars of one colour, whatever their sign; parameters as :func:`label_series`."""
    series = label_series(header, labels, values)
    series.graphicalProperties = GraphicalProperties(solidFill=colour, ln=LineProperties(noFill=True))
    series.invertIfNegative = False
    return series


def point_series(header: Cells, x: Cells, y: Cells) -> XYSeries:
    """Values over numbers.

    Parameters
    ----------
    header : Cells
        Cell of the name.
    x, y : Cells
        One each per point.
    """
    return XYSeries(
        idx=0,
        order=0,
        tx=SeriesLabel(strRef=header.texts()),
        xVal=AxDataSource(numRef=x.numbers()),
        yVal=NumDataSource(numRef=y.numbers()),
    )


def bar_chart(words: str, kind: str, size: tuple[float, float], grouping: str, overlap: int, gap: int = 45) -> Any:
    """A chart of bars without any yet.

    Parameters
    ----------
    words : str
        Title.
    kind : str
        ``bar`` for bars that lie, the first on top, ``col`` for columns.
    size : tuple of float
        Width and height. [cm]
    grouping : str
        ``clustered``, ``stacked`` or ``percentStacked``.
    overlap : int
        How far the bars of one label lie over each other. [%]
    gap : int, default 45
        Space between labels, of the width of a bar. [%]
    """
    chart: Any = BarChart()
    chart.type = kind
    frame(chart, words, *size)
    chart.grouping, chart.overlap, chart.gapWidth = grouping, overlap, gap
    return chart


def scatter_chart(words: str, size: tuple[float, float]) -> Any:
    """A chart of points without any yet; parameters as :func:`bar_chart`."""
    chart: Any = ScatterChart()
    chart.style = None
    chart.scatterStyle = "lineMarker"
    frame(chart, words, *size)
    return chart


def draw_lying_axes(chart: Any, axis_title: str, number: str) -> None:
    """Axes of bars that lie: the first label on top, values below.

    Parameters
    ----------
    chart : openpyxl.chart.BarChart
        Changed in place.
    axis_title : str
        What the values are, with the unit.
    number : str
        Number format of the values.
    """
    draw_axis(chart.x_axis, "", size=8)
    chart.x_axis.scaling.orientation = "maxMin"
    draw_axis(chart.y_axis, axis_title, number, lines=True)
    chart.y_axis.crosses = "max"
    chart.y_axis.tickLblPos = "nextTo"


def longest(labels: Cells) -> int:
    """Characters of the longest label."""
    return max((len(str(value)) for value in labels.values), default=0)
