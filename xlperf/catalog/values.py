"""Values of cells: spreadsheet errors, unsaved formulas, blanks, and how a message shows a value."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

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
