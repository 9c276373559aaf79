"""Plots of text below tables on a terminal, where plotext is installed: points by series, and stacked bars.

Without a terminal or without plotext (``pip install 'xlperf[plot]'``) nothing is drawn: the table says the same.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from xlperf.cli.output import say

_MARKERS = "xo*+#@%&"
_MOST_SERIES = len(_MARKERS)
_WIDTHS = 50, 110
"""Narrowest and widest plot. [columns]"""
_HEIGHT = 18
"""Rows of a plot of points. [-]"""
Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]


def plotter() -> Any:
    """The library that draws, with a clean figure as wide as the terminal; None where nothing is to be drawn."""
    if not sys.stdout.isatty():
        return None
    try:
        import plotext
    except ModuleNotFoundError:
        return None
    drawing: Any = plotext
    drawing.clear_figure()
    drawing.theme("clear")
    return drawing


def _width() -> int:
    return min(max(shutil.get_terminal_size().columns - 2, _WIDTHS[0]), _WIDTHS[1])


def show_points(title: str, x_title: str, y_title: str, series: Series) -> None:
    """Draw points by series, each with a marker of its own.

    ``series``: values along and up, by the name of the series.
    """
    drawing = plotter()
    if drawing is None or not any(len(x) > 1 for x, _ in series.values()):
        return
    drawn = list(series.items())[:_MOST_SERIES]
    drawing.plotsize(_width(), _HEIGHT)
    for (_, (x, y)), marker in zip(drawn, _MARKERS, strict=False):
        drawing.scatter(list(x), list(y), marker=marker)
    named = ", ".join(f"{marker} {name}" for (name, _), marker in zip(drawn, _MARKERS, strict=False) if name)
    drawing.title(f"{title}: {y_title} over {x_title}")
    _say(drawing)
    more = f" (of {len(series)})" if len(series) > len(drawn) else ""
    say(*([f"{named}{more}"] if len(drawn) > 1 else []))


def show_stacked(title: str, names: Sequence[str], parts: Mapping[str, Sequence[float]]) -> None:
    """Draw a bar for each name, the first on top, made of its parts.

    ``parts``: amounts by part, one for each name.
    """
    drawing = plotter()
    if drawing is None or not names:
        return
    drawing.plotsize(_width(), 3 * len(names) + 5)
    backwards = [list(reversed(list(values))) for values in parts.values()]
    letters = [name[0] for name in parts]
    drawing.stacked_bar(list(reversed(list(names))), backwards, orientation="h", width=0.5, marker=letters)
    drawing.title(f"{title}: {', '.join(f'{letter} = {name}' for letter, name in zip(letters, parts, strict=True))}")
    _say(drawing)


def _say(drawing: Any) -> None:
    """Print what was drawn, without codes that colour it."""
    say("", *str(drawing.uncolorize(drawing.build())).rstrip("\n").split("\n"))
