"""Tables for a terminal: aligned columns, four significant digits, the unit below the name."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from xlperf.base.errors import printable

if TYPE_CHECKING:
    from xlperf.cli.results import Part

DIGITS = 4


def text_table(block: list[Part]) -> list[str]:
    """Columns as lines of text: words to the left, numbers to the right; columns without any value are left out.

    Parameters
    ----------
    block : list of (Column, array)
        Columns of one length, in the units used inside.

    Returns
    -------
    list of str
        Lines without trailing blanks.
    """
    from xlperf.cli.results import shown

    columns: list[list[str]] = []
    for column, values in block:
        inside = shown(column, values).tolist()
        cells = [printable(str(value)) for value in inside] if column.is_text else [rounded(value) for value in inside]
        if not any(cells):
            continue
        head = [column.name.replace("_", " "), column.unit if column.unit not in ("", "-") else ""]
        width = max(map(len, head + cells))
        lines = [*head, "-" * width, *cells]
        columns.append([line.ljust(width) if column.is_text else line.rjust(width) for line in lines])
    lines = ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]
    return [line for number, line in enumerate(lines) if line or number != 1]


def rounded(value: float) -> str:
    """Four significant digits, whole numbers in full.

    >>> [rounded(value) for value in (1234567.0, 0.0123456, 12.3456, float("nan"))]
    ['1,234,567', '0.01235', '12.35', '']
    """
    if math.isnan(value):
        return ""
    if math.isinf(value) or value == 0.0:
        return f"{value:g}"
    if abs(value) >= 10**DIGITS or value.is_integer():
        return f"{value:,.0f}"
    decimals = DIGITS - 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{decimals}f}" if decimals <= DIGITS + 4 else f"{value:.{DIGITS - 1}e}"
