"""Values of cells: spreadsheet errors, unsaved formulas, blanks, and how a message shows a value."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xlperf.errors import printable

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


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


@dataclass(frozen=True, slots=True)
class Group:
    """Several values in the place of one: a list, a map, a record."""

    text: str


def is_blank(value: object) -> bool:
    """Whether a cell holds nothing: None, NaN, or text without a visible character."""
    if value is None:
        return True
    if isinstance(value, str):
        return not value.strip()
    return isinstance(value, float) and value != value


def number_of(text: str) -> float:
    """A number from its text: digits 0 to 9, a decimal point, an exponent; NaN for any other text.

    Python's own reading takes more: ``1_000``, digits of other scripts, ``nan``, ``Infinity``.

    >>> number_of(" -1.5e3 "), number_of("1_000"), number_of("inf")
    (-1500.0, nan, nan)
    """
    text = text.strip()
    return float(text) if _NUMBER.fullmatch(text) else math.nan


def shown(value: object) -> str:
    """A value as a message shows it.

    >>> shown("n/a"), shown(2.5), shown(True)
    ('"n/a"', '2.5', 'TRUE')
    """
    if isinstance(value, str):
        text = " ".join(value.split())
        return printable(f'"{text[:57]}..."' if len(text) > 60 else f'"{text}"')
    if isinstance(value, (bool, np.bool_)):
        return "TRUE" if value else "FALSE"
    if isinstance(value, ErrorValue):
        return printable(f"the error {value.text[:60]}")
    if isinstance(value, Group):
        return f"several values, {shown(value.text)}"
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        return f"the date {value.date().isoformat()}"
    if isinstance(value, (datetime.date, datetime.time)):
        return f"the date {value.isoformat()}"
    if isinstance(value, (float, np.number)) or (isinstance(value, int) and abs(value) < 10**300):
        return f"{float(value):.15g}"
    return printable(f'"{_plain(value)}"')


def _plain(value: object) -> str:
    """The start of a value as text; an integer of thousands of digits has none in Python."""
    try:
        text = str(value)
    except ValueError:
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def factorise(values: Sequence[object]) -> tuple[np.ndarray, list[object]]:
    """Codes of values, and the distinct values that they index, in the order of their first appearance."""
    seen: dict[object, int] = {}
    try:
        codes = [seen.setdefault(value, len(seen)) for value in values]
    except TypeError:  # a list, a map: a column of a Parquet file or a data frame may hold them
        seen.clear()
        codes = [seen.setdefault(_hashable(value), len(seen)) for value in values]
    return np.array(codes, dtype=np.int64), list(seen)


def _hashable(value: object) -> object:
    try:
        hash(value)
    except TypeError:
        return Group(str(value))
    return value
