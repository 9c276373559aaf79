"""Charts of a study for a page to send: the charts of its sheets, drawn as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from xlperf.catalog.schema import Column, alike
from xlperf.page.answer import svg, text, ticks
from xlperf.studies.outcome import Chart, StudySheet

_WIDTH, _WIDEST, _RIGHT, _BAR, _HEIGHT, _LETTER = 640.0, 350.0, 80.0, 16.0, 260.0, 7.2
"""Width of a chart, of its labels at the most and of the words behind a bar, height of a bar and of a plot, width of a
letter. [pixel]"""
_MARGIN = 56.0
_COLOURS = "#0072b2 #e69f00 #009e73 #d55e00 #cc79a7 #56b4e9 #44515e #6b5b00 #7a4b8c #8d99a6".split()
"""Colours for colour-blind readers (Okabe and Ito), then four more."""
Curve = tuple[str, list[tuple[float, float]]]  # Name and points of a series


def study_charts(sheet: StudySheet) -> str:
    """The charts of a sheet below each other."""
    return "".join(_drawn(chart, sheet) for chart in sheet.charts)


def _drawn(chart: Chart, sheet: StudySheet) -> str:
    by_name = {column.name: column for column in sheet.columns}
    rows = slice(*chart.rows) if chart.rows else slice(None)
    along, columns = sheet.values(chart.x)[rows], [by_name[name] for name in chart.y]
    values = [sheet.numbers(column.name)[rows].tolist() for column in columns]
    if chart.kind in ("bars", "columns") or any(isinstance(value, str) for value in along):
        return _bars(chart, [str(value) for value in along], columns, values)
    across = [float(value) if isinstance(value, int | float) else math.nan for value in along]
    if chart.by:
        points = zip(sheet.values(chart.by)[rows], across, values[0], strict=True)
        curves = [(str(name), [(x, y) for _, x, y in own]) for name, own in groupby(points, key=lambda one: one[0])]
    else:
        curves = [(one.words, list(zip(across, own, strict=True))) for one, own in zip(columns, values, strict=True)]
    return _curves(chart, curves)


def _named(names: Sequence[str], top: float) -> tuple[list[str], float]:
    """Names of series in their colours, and the place below them; none for a single one."""
    lines: list[str] = []
    x, y = 8.0, top + 12.0
    for number, name in enumerate(names if len(names) > 1 else ()):
        wide = _LETTER * len(name) + 26.0
        if x > 8.0 and x + wide > _WIDTH:
            x, y = 8.0, y + 16.0
        colour = _COLOURS[number % len(_COLOURS)]
        lines.append(f'<rect x="{x:.1f}" y="{y - 9:.1f}" width="10" height="10" style="fill:{colour}"/>')
        lines.append(f'<text x="{x + 14:.1f}" y="{y:.1f}">{text(name)}</text>')
        x += wide
    return lines, y + 10.0 if lines else top


def _bars(chart: Chart, labels: Sequence[str], columns: Sequence[Column], values: Sequence[Sequence[float]]) -> str:
    """Bars over labels: the series stacked, or below each other; on an axis of their own if they are logarithmic."""
    kept = [at for at, own in enumerate(values) if any(value == value and value != 0.0 for value in own)]
    shown = [values[at] for at in kept]
    known = [value for own in shown for value in own if value == value]
    if not known:
        return ""
    sums = [sum(value for value in row if value == value) for row in zip(*shown, strict=True)]
    low, high = (min(known), max(known)) if not chart.stacked else (0.0, max(sums))
    axis = _axis([low, high], chart.log_y)
    lines, top = _named([columns[at].words for at in kept], 0.0)
    words = [alike(own) for own in ([sums] if chart.stacked else shown)]
    each = 1 if chart.stacked else len(shown)

    left = min(_LETTER * max(map(len, labels)) + 12.0, _WIDEST)

    def place(value: float) -> float:
        return left + (_WIDTH - left - _RIGHT) * axis.share(value)

    most = int((left - 8.0) / _LETTER)
    for row, label in enumerate(labels):
        said = label if len(label) <= most else f"{label[: most - 1]}\N{HORIZONTAL ELLIPSIS}"
        middle = top + _BAR * each / 2.0 + 4.0
        lines.append(f'<text x="{left - 6:.0f}" y="{middle:.1f}" text-anchor="end">{text(said)}</text>')
        start = 0.0
        for number, own in enumerate(shown):
            value = own[row]
            if value == value:
                ends = (place(start), place(start + value)) if chart.stacked else (place(axis.least), place(value))
                y = top + (0.0 if chart.stacked else _BAR * number) + 1.0
                colour = _COLOURS[number % len(_COLOURS)]
                lines.append(
                    f'<rect x="{min(ends):.1f}" y="{y:.1f}" width="{abs(ends[1] - ends[0]):.1f}" '
                    f'height="{_BAR - 3:.0f}" style="fill:{colour}"/>'
                )
                start += value if chart.stacked else 0.0
            if value == value and not chart.stacked:
                lines.append(f'<text x="{max(ends) + 5:.1f}" y="{y + 11:.1f}">{words[number][row]}</text>')
        if chart.stacked:
            lines.append(f'<text x="{place(start) + 5:.1f}" y="{top + 12:.1f}">{words[0][row]}</text>')
        top += _BAR * each + 5.0
    title = f"{chart.title}: {chart.y_title}" if chart.y_title else chart.title
    return svg(title + ", logarithmic axis" * chart.log_y, round(top + 4.0), lines)


class _Axis(NamedTuple):
    """An axis: the value at its beginning, the share of its length at a value, and its labelled values."""

    least: float
    share: Callable[[float], float]
    labels: list[float]


def _axis(values: Sequence[float], log: bool) -> _Axis:
    """An axis from 0, below it if values are, or at powers of ten of values above 0."""
    if log:
        powers = [math.log10(value) for value in values if value > 0.0]
        first, last = math.floor(min(powers)), math.ceil(max(powers) + 1e-9)
        powers_across = max(last - first, 1)
        places = range(first, first + powers_across + 1, max(1, powers_across // 5))
        start = 10.0**first
        labels = [10.0**at for at in places]
        return _Axis(start, lambda value: math.log10(max(value, start) / start) / powers_across, labels)
    above, below = max(0.0, *values), -min(0.0, *values)
    steps = ticks(max(above, below) or 1.0)
    count = math.ceil(below / steps[1] - 1e-9)
    labels = [-steps[1] * at for at in range(count, 0, -1)] + [step for step in steps if step - steps[1] < above]
    least, span = labels[0], labels[-1] - labels[0]
    return _Axis(0.0, lambda value: (value - least) / span, labels)


def _curves(chart: Chart, curves: Sequence[Curve]) -> str:
    """Lines or points over numbers, each series in its colour."""

    def within(point: tuple[float, float]) -> bool:
        logged = zip(point, (chart.log_x, chart.log_y), strict=True)
        return all(math.isfinite(value) and (value > 0.0 or not log) for value, log in logged)

    kept = [(name, [point for point in points if within(point)]) for name, points in curves]
    kept = [(name, points) for name, points in kept if points]
    if not kept:
        return ""
    xs, ys = zip(*(point for _, points in kept for point in points), strict=True)
    across, up = _axis(xs, chart.log_x), _axis(ys, chart.log_y)
    lines, top = _named([name for name, _ in kept], 0.0)
    top += 24.0
    bottom, right = top + _HEIGHT - _MARGIN, _WIDTH - 24.0

    def at(point: tuple[float, float]) -> tuple[float, float]:
        x, y = across.share(point[0]), up.share(point[1])
        return _MARGIN + (right - _MARGIN) * x, bottom - (bottom - top) * y

    lines.append(f'<path d="M{_MARGIN:.0f} {top:.1f}V{bottom:.1f}H{right:.1f}"/>')
    for number, (_, points) in enumerate(kept):
        colour, places = _COLOURS[number % len(_COLOURS)], [at(point) for point in points]
        if chart.kind == "lines":
            drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            lines.append(f'<polyline points="{drawn}" style="stroke:{colour}"/>')
        lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" style="fill:{colour}"/>' for x, y in places]
    lines += _labels(across, up, at, bottom)
    lines.append(f'<text x="{_WIDTH / 2:.0f}" y="{bottom + 36:.1f}" text-anchor="middle">{text(chart.x_title)}</text>')
    lines.append(f'<text x="8" y="{top - 10:.1f}">{text(chart.y_title)}</text>')
    return svg(chart.title, round(bottom + 44.0), lines)


def _labels(
    across: _Axis, up: _Axis, at: Callable[[tuple[float, float]], tuple[float, float]], bottom: float
) -> Iterator[str]:
    """Numbers along both axes."""
    for value in across.labels:
        x, _ = at((value, up.labels[0]))
        yield f'<text x="{x:.1f}" y="{bottom + 16:.1f}" text-anchor="middle">{value:,.10g}</text>'
    for value in up.labels:
        _, y = at((across.labels[0], value))
        yield f'<text x="{_MARGIN - 6:.0f}" y="{y + 4:.1f}" text-anchor="end">{value:,.10g}</text>'
