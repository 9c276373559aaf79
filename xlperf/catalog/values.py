"""Values of cells: spreadsheet errors, unsaved formulas, blanks, and how a message shows a value."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from xlperf.base.errors import printable

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_EPOCH_1900, _EPOCH_1904 = datetime.datetime(1899, 12, 30), datetime.datetime(1904, 1, 1)


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


class DateNumber(float):
    """A number that its cell shows as a date: a number where one is meant, and the date where a text is.

    >>> cell = DateNumber(46023.0)
    >>> cell + 1.0, cell.text
    (46024.0, '2026-01-01')
    """

    __slots__ = ("date_1904",)
    date_1904: bool

    def __new__(cls, serial: float, date_1904: bool = False) -> DateNumber:
        """From the number, in days, and the date system of the workbook."""
        self = super().__new__(cls, serial)
        self.date_1904 = date_1904
        return self

    @property
    def text(self) -> str:
        """The date as text; the number where there is no such date."""
        try:
            return date_text(_date_of(float(self), self.date_1904))
        except (OverflowError, ValueError):
            return f"{float(self):.15g}"


def date_text(date: datetime.date | datetime.time) -> str:
    """A date as text, with the time of day unless it is midnight."""
    if not isinstance(date, datetime.datetime):
        return date.isoformat()
    return date.date().isoformat() if date.time() == datetime.time() else date.isoformat(sep=" ")


def _date_of(serial: float, date_1904: bool) -> datetime.datetime:
    if date_1904:
        return _EPOCH_1904 + datetime.timedelta(days=serial)
    # Excel has a 29 February 1900, so that its days before it come one later than those of our calendar
    return _EPOCH_1900 + datetime.timedelta(days=serial + (1.0 if 1.0 <= serial < 60.0 else 0.0))


def serial_number(date: datetime.datetime, date_1904: bool = False) -> float:
    """The number behind a date in a cell. [days]

    >>> serial_number(datetime.datetime(2026, 1, 1, 12)), serial_number(datetime.datetime(1900, 1, 1))
    (46023.5, 1.0)
    >>> serial_number(datetime.datetime(2026, 1, 1), date_1904=True)
    44561.0
    """
    naive = date.replace(tzinfo=None)
    if date_1904:
        return in_days(naive - _EPOCH_1904)
    days = in_days(naive - _EPOCH_1900)
    return days - 1.0 if 1.0 < days < 61.0 else days


def in_days(time: datetime.timedelta) -> float:
    """A time in days, without the noise of its rounding to microseconds."""
    return round(time / datetime.timedelta(days=1), 10)


def as_number(value: object) -> object:
    """A value that stands for a number, as a float: an amount of money, a date, a time; others as they are.

    Spreadsheet programs hand over what a cell shows: an amount in a currency as a decimal number, a number in a date
    format as a date.

    >>> from decimal import Decimal
    >>> as_number(Decimal("2.49")), as_number(datetime.timedelta(hours=36)), as_number("2.49"), as_number(True)
    (2.49, 1.5, '2.49', True)
    """
    if isinstance(value, (float, str)) or value is None:
        return value
    if isinstance(value, (np.datetime64, np.timedelta64)):
        value = value.astype(f"{value.dtype.kind}8[us]").item()
    if isinstance(value, (Decimal, np.integer, np.floating)):
        return float(value)
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, datetime.datetime):
        return serial_number(value) if value == value else None  # pandas has a date that is none
    if isinstance(value, datetime.date):
        return serial_number(datetime.datetime(value.year, value.month, value.day))
    if isinstance(value, datetime.time):
        midnight = datetime.timedelta(hours=value.hour, minutes=value.minute, seconds=value.second)
        return in_days(midnight + datetime.timedelta(microseconds=value.microsecond))
    if isinstance(value, datetime.timedelta):
        return in_days(value) if value == value else None
    return value


def as_text(value: object) -> str | None:
    """A value where a text is meant: texts, numbers and dates; None for others.

    >>> as_text("A100"), as_text(8.0), as_text(datetime.date(2026, 1, 1)), as_text(True)
    ('A100', '8', '2026-01-01', None)
    """
    if isinstance(value, str):
        return value
    if isinstance(value, DateNumber):
        return value.text
    if isinstance(value, (datetime.date, datetime.time)):
        return date_text(value)
    number = as_number(value)
    if isinstance(number, (int, float)) and not isinstance(number, bool):
        with suppress(OverflowError):
            return f"{float(number):.15g}"
    return None


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
    if isinstance(value, DateNumber):
        return f"the date {value.text}"
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
