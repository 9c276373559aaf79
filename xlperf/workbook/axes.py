"""Axes, lines and texts of native charts: round steps, logarithmic ends, fonts and number formats."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from openpyxl.chart.layout import Layout, ManualLayout
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

from xlperf.base.units import MILLION
from xlperf.workbook.style import FONT, INK, MUTED

LOG_NUMBER = '[>=1000000]#,##0.0,," M";[<1]0.0####;#,##0'
"""Format of numbers along a logarithmic axis."""
_WIDE_RANGE = 300.0
"""Highest over lowest value from which on a logarithmic axis is labelled at powers of ten, else at doublings. [-]"""
_STEPS_ACROSS = 6
"""Labels of a linear axis, about. [-]"""


def line(colour_: str = "", width: float | None = None, dash: Any = None) -> LineProperties:
    """A line of a width in points; none without a colour."""
    if not colour_:
        return LineProperties(noFill=True)
    return LineProperties(solidFill=colour_, w=None if width is None else round(width * 12700), prstDash=dash)


def area(fill: str = "", edge: LineProperties | None = None) -> GraphicalProperties:
    """An area of a colour, or without one, and its edge."""
    return GraphicalProperties(solidFill=fill, ln=edge) if fill else GraphicalProperties(noFill=True, ln=edge)


def characters(size: float, colour_: str, bold: bool) -> CharacterProperties:
    """A font of text in a chart. [pt]"""
    return CharacterProperties(sz=round(size * 90), b=bold, solidFill=colour_, latin=Font(typeface=FONT))


def text(size: float = 9, colour_: str = INK, bold: bool = False, degrees: float = 0) -> RichText:
    """How labels are written. [pt]"""
    body = RichTextProperties(rot=round(degrees * 60000), vert="horz")
    look = ParagraphProperties(defRPr=characters(size, colour_, bold))
    return RichText(bodyPr=body, p=[Paragraph(pPr=look, endParaRPr=CharacterProperties())])


def title(words: str, size: float, colour_: str, bold: bool, x: float | None = None, y: float | None = None) -> Title:
    """The title of a chart or an axis; at a place of its own as a share of the chart if one is given."""
    run = RegularTextRun(rPr=characters(size, colour_, bold), t=words)
    paragraph = Paragraph(pPr=ParagraphProperties(defRPr=characters(size, colour_, bold)), r=[run])
    made = Title(tx=Text(rich=RichText(bodyPr=RichTextProperties(), p=[paragraph])), overlay=False)
    if x is not None and y is not None:
        made.layout = Layout(manualLayout=ManualLayout(xMode="edge", yMode="edge", x=x, y=y))
    return made


def draw_axis(
    axis: Any,
    words: str = "",
    number: str | None = None,
    lines: bool = False,
    *,
    degrees: float = 0,
    size: float = 9,
    ink: str = INK,
    rule: tuple[str, float] = ("9AA5B1", 0.5),
    low: bool = True,
) -> None:
    """Show an axis: its title, its labels in a size and colour, its rule and its grid lines."""
    axis.delete = False
    axis.txPr = text(size, ink, degrees=degrees)
    axis.title = title(words, 9, MUTED, False) if words else None
    axis.majorTickMark = axis.minorTickMark = "none"
    axis.tickLblPos = "low" if low else None
    axis.graphicalProperties = GraphicalProperties(ln=line(*rule))
    if number is not None:
        axis.number_format = number
        axis.numFmt.sourceLinked = False
    if lines:
        axis.majorGridlines.spPr = GraphicalProperties(ln=line("E6EAEE", 0.5))
    else:
        axis.majorGridlines = None


def axis_number(values: Iterable[Any]) -> str:
    """Format of the numbers along a linear axis: as many decimals as its steps have, and no more.

    >>> axis_number([0.0, 1.4]), axis_number([35.0, 812.0]), axis_number([2.5e9])
    ('0.0', '#,##0', '#,##0,," M"')
    """
    known = [float(v) for v in values if isinstance(v, int | float) and math.isfinite(v)]
    low, high = min([0.0, *known]), max([0.0, *known])
    if high - low <= 0.0:
        return "#,##0"
    if max(high, -low) >= 1_000_000:
        decimals = max(0, -math.floor(math.log10((high - low) / _STEPS_ACROSS / MILLION)))
        return f'#,##0{"." + "0" * decimals if decimals else ""},," M"'
    decimals = max(0, -math.floor(math.log10((high - low) / _STEPS_ACROSS)))
    return f"0.{'0' * min(decimals, 6)}" if decimals else "#,##0"


def axis_end(value: float) -> float:
    """End of a linear axis from 0 that reaches a value: a whole number, ten at the most, of round steps.

    >>> axis_end(174.0), axis_end(80.0), axis_end(0.0)
    (180.0, 80.0, 1.0)
    """
    if not value > 0.0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    step = next(each * power for each in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0) if value <= 10.0 * each * power)
    return step * math.ceil(value / step - 1e-9)


_STEP_WIDTH = 1.4
"""Width of a step of an axis that its labels need. [cm]"""


def space_ticks(axis: Any, values: Iterable[Any], width: float) -> None:
    """Label an axis of a width [cm] at round steps, as many as fit beside each other, each with the same decimals."""
    known = [0.0, *(float(v) for v in values if isinstance(v, int | float) and math.isfinite(v))]
    if not (high := max(known)) > (low := min(known)):
        return
    least = (high - low) / max(math.floor(width / _STEP_WIDTH), 1)
    power = 10.0 ** math.floor(math.log10(least))
    step = next(each * power for each in (1.0, 2.0, 5.0, 10.0) if each * power >= least * (1.0 - 1e-9))
    axis.majorUnit = step
    axis.scaling.min, axis.scaling.max = (step * end for end in (math.floor(low / step), math.ceil(high / step)))
    axis.number_format = axis_number([_STEPS_ACROSS * step * (1.0 + 1e-9)])


def log_ends(values: Sequence[float]) -> tuple[float, float]:
    """Ends of a logarithmic axis: 1, 2 or 5 times a power of ten, close around the values above 0.

    >>> log_ends([23.0, 480.0]), log_ends([0.0, 3.0, 1000.0])
    ((20.0, 500.0), (2.0, 1000.0))
    """
    known = [value for value in values if value > 0.0]
    low, high = (min(known), max(known)) if known else (1.0, 10.0)
    steps = [float(f"{each}e{power}") for power in range(-15, 22) for each in (1, 2, 5)]
    return max(step for step in steps if step <= low), min(step for step in steps if step >= high and step > low)


def log_axis(axis: Any, values: Iterable[Any]) -> None:
    """Make an axis logarithmic: close around its values, labelled at doublings, over a wide range at powers of ten."""
    known = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool) and v > 0.0]
    if not known:
        return
    low, high = log_ends(known)
    doubled = max(known) / low <= _WIDE_RANGE
    if doubled:
        high = low * 2.0 ** math.ceil(math.log2(max(known) / low) - 1e-9)
        high = high if high > low else 2.0 * low
    axis.scaling.logBase = 2 if doubled else 10
    axis.majorUnit = 2 if doubled else 10
    axis.scaling.min, axis.scaling.max = low, high
    decimals = max(0, -math.floor(math.log10(low) + 1e-9)) if doubled and high < 1_000_000 else 0
    axis.number_format = f"0.{'0' * decimals}" if decimals else LOG_NUMBER
