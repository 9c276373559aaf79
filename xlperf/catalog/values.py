"""Values of cells: spreadsheet errors, unsaved formulas, blanks, and how a message shows a value."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


class BadValue(ValueError):
    """A value that will not do; the text says why."""


@dataclass(frozen=True, slots=True)
class ErrorValue:
    """A cell that holds a spreadsheet error such as ``#N/A``."""

    text: str


@dataclass(frozen=True, slots=True)
class Unsaved:
    """A cell that holds a formula whose value the file does not have."""

    formula: str


class SparseRow(Sequence[object]):
    """Cells of a row of a sheet by position, without a place for those that are blank.

    Parameters
    ----------
    cells : mapping of int to object
        Values by column of the sheet.
    columns : sequence of int
        Column of each position.
    position : mapping of int to int
        Position of each column.
    """

    __slots__ = ("_cells", "_columns", "_position")

    def __init__(self, cells: Mapping[int, object], columns: Sequence[int], position: Mapping[int, int]) -> None:
        self._cells, self._columns, self._position = cells, columns, position

    def __len__(self) -> int:
        return len(self._columns)

    def __getitem__(self, position: Any) -> Any:
        return self._cells.get(self._columns[position])

    def filled(self, positions: frozenset[int]) -> list[int]:
        """Those of some positions that hold anything, in their order."""
        if not positions:
            return []
        known = (self._position.get(column) for column in self._cells)
        return sorted(place for place in known if place in positions)


def is_blank(value: object) -> bool:
    """Whether a cell holds nothing: None, NaN, or text without a visible character."""
    if value is None:
        return True
    if isinstance(value, str):
        return not value.strip()
    return isinstance(value, float) and value != value


def shown(value: object) -> str:
    """A value as a message shows it.

    >>> shown("n/a"), shown(2.5), shown(True)
    ('"n/a"', '2.5', 'TRUE')
    """
    if isinstance(value, str):
        text = " ".join(value.split())
        return f'"{text[:57]}..."' if len(text) > 60 else f'"{text}"'
    if isinstance(value, (bool, np.bool_)):
        return "TRUE" if value else "FALSE"
    if isinstance(value, ErrorValue):
        return f"the error {value.text}"
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        return f"the date {value.date().isoformat()}"
    if isinstance(value, (datetime.date, datetime.time)):
        return f"the date {value.isoformat()}"
    if isinstance(value, (float, np.number)) or (isinstance(value, int) and abs(value) < 10**300):
        return f"{float(value):.15g}"
    return f'"{str(value)[:60]}"'
