"""Tables of results as HTML, with every text escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from xlperf.base.errors import printable
from xlperf.catalog.schema import Part, cells
from xlperf.explore.answers import Shown

MOST_ROWS = 30
"""Rows that are shown of a table. [-]"""


def text(words: str) -> str:
    """A text for HTML: markup is escaped, and characters that hide text are written out."""
    return escape(printable(words))


def row(words: Sequence[str], numbers: Sequence[bool], tag: str = "td") -> str:
    """A row of cells; numbers have a class of their own."""
    marks = [' class="number"' if number else "" for number in numbers]
    inside = [f"<{tag}{mark}>{text(word)}</{tag}>" for word, mark in zip(words, marks, strict=True)]
    return f"<tr>{''.join(inside)}</tr>"


def card(results: Sequence[Shown]) -> str:
    """Results below each other, with their bands."""
    lines = [(one.header, one.words, one.band and f"80 %: {one.band}") for one in results]
    return f"<table>{''.join(row(line, (False, True, False)) for line in lines)}</table>"


def table(block: Sequence[Part]) -> str:
    """Columns with any value, below their names and units."""
    filled = [(column, words) for column, values in block if any(words := cells(column, values[:MOST_ROWS]))]
    if not filled:
        return ""
    numbers = [not column.is_text for column, _ in filled]
    units = [column.unit if column.unit not in ("", "-") else "" for column, _ in filled]
    head = row([column.words for column, _ in filled], numbers, "th")
    head += row(units, numbers, "th") if any(units) else ""
    lines = [row(words, numbers) for words in zip(*(words for _, words in filled), strict=True)]
    count = len(block[0][1])
    more = f"<p>{count - MOST_ROWS:,} more rows</p>" if count > MOST_ROWS else ""
    return f"<table><thead>{head}</thead><tbody>{''.join(lines)}</tbody></table>{more}"
