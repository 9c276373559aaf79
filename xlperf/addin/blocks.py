"""Blocks that a button writes at the cursor: labels, default values, and formulas that read them.

``blocks.csv`` beside this module has the rows of each block. The ribbon of Excel and the task pane of the Office add-in
write the same cells; a formula refers to its plan by the distance in rows and columns (R1C1), so that a block works
at any cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import groupby

from xlperf.base.resources import rows

_RANGES = ("plan", "measured")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a block: two cells, or a formula whose block of results starts in the first one."""

    kind: str  # ``title``, ``input``, ``result`` or ``block``
    label: str
    value: str | float = ""  # of a result or block the formula, its ranges as R1C1


@cache
def blocks() -> dict[str, tuple[Row, ...]]:
    """Rows of each block by name.

    >>> blocks()["serve"][7]
    Row(kind='input', label='ttft target (ms)', value=2000.0)
    """
    known = {}
    for name, group in groupby(rows("addin/blocks.csv"), lambda row: row["block"]):
        written: list[Row] = []
        lines: dict[str, list[int]] = {}
        for row in group:
            kind, label, text = row["row"], row["label"], row["value"]
            if kind in _RANGES:
                lines.setdefault(kind, []).append(len(written))
                written.append(Row("input", label, float(text) if text.replace(".", "").isdigit() else text))
            elif kind == "block":
                written += [Row("title", label), Row(kind, "", _formula(text, lines, len(written) + 1, 0))]
            else:
                written.append(Row(kind, label, _formula(text, lines, len(written), 1) if text else ""))
        known[name] = tuple(written)
    return known


def _formula(text: str, lines: dict[str, list[int]], row: int, column: int) -> str:
    """A formula in a row and column of a block, with the ranges of the block in the place of their names."""
    left, right = (f"C[{shift}]" if shift else "C" for shift in (-column, 1 - column))
    places = {name: f"R[{each[0] - row}]{left}:R[{each[-1] - row}]{right}" for name, each in lines.items()}
    return f"={text.format_map(places)}"
