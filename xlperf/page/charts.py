"""Charts as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from xlperf.catalog.schema import rounded
from xlperf.page.tables import text

_WIDTH, _BAR, _LABELS, _WORDS = 640, 24, 190, 90
"""Width of a chart, height of a bar, widths of the labels and of the words behind a bar. [pixel]"""
_HEIGHT, _MARGIN = 260, 52


class Bar(NamedTuple):
    """A bar of a chart; ``low`` and ``high`` are the ends of its band, NaN without one."""

    label: str
    value: float
    words: str
    low: float = float("nan")
    high: float = float("nan")


def bars(title: str, drawn: Sequence[Bar]) -> str:
    """Bars below each other from zero, each with its words, and with its band as a line."""
    most = max((max(bar.value, bar.high if bar.high == bar.high else 0.0) for bar in drawn), default=0.0)
    if not most > 0.0:
        return ""
    scale = (_WIDTH - _LABELS - _WORDS) / most
    lines = []
    for place, bar in enumerate(drawn):
        top = place * _BAR
        end = _LABELS + scale * bar.value
        lines.append(f'<text x="{_LABELS - 8}" y="{top + 16}" text-anchor="end">{text(bar.label)}</text>')
        lines.append(f'<rect x="{_LABELS}" y="{top + 3}" width="{end - _LABELS:.1f}" height="{_BAR - 6}"/>')
        if bar.low == bar.low:
            ends = [_LABELS + scale * value for value in (bar.low, bar.high)]
            lines.append(f'<path d="M{ends[0]:.1f} {top + 12}H{ends[1]:.1f}"/>')
            end = max(end, ends[1])
        lines.append(f'<text x="{end + 6:.1f}" y="{top + 16}">{text(bar.words)}</text>')
    return _svg(title, _BAR * len(drawn), lines)


def curve(
    title: str, points: Sequence[tuple[float, float]], marked: tuple[float, float] | None, names: Sequence[str]
) -> str:
    """A line through points from zero, with a marked point if there is one and the names of the axes."""
    points = [point for point in points if point[0] == point[0] and point[1] == point[1]]
    most = [max(values) for values in zip(*points, *([marked] if marked else []), strict=True)]
    if not all(value > 0.0 for value in most):
        return ""
    width, height = _WIDTH - 2 * _MARGIN, _HEIGHT - 2 * _MARGIN

    def at(point: tuple[float, float]) -> tuple[float, float]:
        return _MARGIN + width * point[0] / most[0], _HEIGHT - _MARGIN - height * point[1] / most[1]

    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, points))
    mark = '<circle cx="{:.1f}" cy="{:.1f}" r="6"/>'.format(*at(marked)) if marked else ""
    bottom, right = _HEIGHT - _MARGIN, _WIDTH - _MARGIN
    lines = [
        f'<path d="M{_MARGIN} {_MARGIN}V{bottom}H{right}"/>',
        f'<polyline points="{drawn}"/>',
        mark,
        f'<text x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 12}" text-anchor="middle">{text(names[0])}</text>',
        f'<text x="{_MARGIN}" y="{_MARGIN - 16}">{text(names[1])}</text>',
        f'<text x="{right}" y="{bottom + 18}" text-anchor="end">{rounded(most[0])}</text>',
        f'<text x="{_MARGIN - 6}" y="{_MARGIN + 4}" text-anchor="end">{rounded(most[1])}</text>',
    ]
    return _svg(title, _HEIGHT, lines)


def _svg(title: str, height: int, lines: Sequence[str]) -> str:
    label = text(title)
    inside = "".join(lines)
    return (
        f'<figure><figcaption>{label}</figcaption><svg role="img" aria-label="{label}" '
        f'viewBox="0 0 {_WIDTH} {height}">{inside}</svg></figure>'
    )
