"""Cells: values (numbers, dates, errors, blanks), and the column and unit that a header cell names."""

from __future__ import annotations

import datetime
import difflib
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from xlperf.base.errors import Fault, Hint, InputError, nearest, printable
from xlperf.base.units import UNITS, Unit
from xlperf.catalog.schema import (
    AMBIGUOUS,
    EVERY_TABLE,
    PER_CENT,
    PLAN_TABLES,
    Column,
    canonical,
    counted_nouns,
    known_units,
    plan_names,
    schema,
    split_header,
    squeezed,
    table_schema,
    trade_names,
    unit_of,
)

_RECENT = re.compile(r"(?:199|20\d)\d-.*")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_EPOCH_1900, _EPOCH_1904 = datetime.datetime(1899, 12, 30), datetime.datetime(1904, 1, 1)


_ALIKE = 0.85  # similarity of two headers, by difflib, above which one is read as a misspelling of the other
MOST_OWN = 100  # columns of the user's own that a table of plans may have
_RATES = dict.fromkeys(("requests/s", "req/s", "reqs/s", "rps", "qps", "queries/s"), UNITS["request/s"])


class BadValue(ValueError):
    """A cell value that is refused; the text says why."""


@dataclass(frozen=True, slots=True)
class ErrorValue:
    """A cell that holds a spreadsheet error such as ``#N/A``."""

    text: str


@dataclass(frozen=True, slots=True)
class Unsaved:
    """A cell that holds a formula whose value the file does not have, or has as a 0 that nobody computed."""

    formula: str
    is_zero: bool = False


class SparseRow(Sequence[object]):
    """Cells of a row of a sheet by position; blank ones need no memory."""

    __slots__ = ("_cells", "_columns", "_position")

    def __init__(self, cells: Mapping[int, object], columns: Sequence[int], position: Mapping[int, int]) -> None:
        self._cells, self._columns, self._position = cells, columns, position

    def __len__(self) -> int:
        return len(self._columns)

    def __getitem__(self, position: Any) -> Any:
        return self._cells.get(self._columns[position])

    def filled(self, positions: frozenset[int]) -> list[int]:
        """Filled positions among the given ones, in their order."""
        if not positions:
            return []
        known = (self._position.get(column) for column in self._cells)
        return sorted(place for place in known if place in positions)


class DateNumber(float):
    """A number that its cell shows as a date: a number if one is meant, and the date if a text is.

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
        """The date as text; the number if there is no such date."""
        # Excel has a 29 February 1900, so that its days before it come one later than those of our calendar
        days = float(self) + (1.0 if 1.0 <= self < 60.0 and not self.date_1904 else 0.0)
        try:
            return date_text((_EPOCH_1904 if self.date_1904 else _EPOCH_1900) + datetime.timedelta(days=days))
        except (OverflowError, ValueError):
            return f"{float(self):.15g}"


def date_text(date: datetime.date | datetime.time) -> str:
    """A date as text, with the time of day unless it is midnight."""
    if not isinstance(date, datetime.datetime):
        return date.isoformat()
    return date.date().isoformat() if date.time() == datetime.time() else date.isoformat(sep=" ")


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
    """An amount of money, a date or a time of a shown cell as a float; other values unchanged.

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


def is_recent(value: object) -> bool:
    """Whether a cell shows a day from 1990 to 2099: a date that was typed, or made of 4/8, and no number in a date
    format.

    >>> is_recent(DateNumber(46023.0)), is_recent(DateNumber(8.0)), is_recent(datetime.date(2026, 1, 1))
    (True, False, True)
    """
    if isinstance(value, DateNumber):
        return _RECENT.fullmatch(value.text) is not None
    return isinstance(value, datetime.date) and 1990 <= value.year < 2100


def as_text(value: object) -> str | None:
    """A value if a text is meant: texts, numbers and dates; None for others.

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
    """A list, map or record in the place of one value."""

    text: str


def is_blank(value: object) -> bool:
    """Whether a cell holds nothing: None, NaN, or text without a visible character."""
    if value is None:
        return True
    if isinstance(value, str):
        return not value.strip()
    return isinstance(value, float) and value != value


def number_of(text: str) -> float:
    """A number from its ASCII digits, decimal point and exponent; NaN for other text.

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


def cell_text(value: object) -> str:
    """A value as text, an error as its word and a formula without a value as its formula."""
    if isinstance(value, Unsaved):
        return f"={value.formula}"
    if isinstance(value, ErrorValue):
        return value.text
    text = as_text(value)
    return text if text is not None else shown(value)


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


_FORMER_RESULTS = frozenset(
    "carbon_per_million_tokens cost_per_million_tokens cost_per_million_input_tokens cost_per_million_output_tokens "
    "energy_per_token run_carbon run_cost step_cost tokens_per_dollar tokens_per_second_per_megawatt".split()
)
"""Owner's results under the names of ``xlperf cost`` in version 0.1: its files are still plans."""


_OF_OUTPUT = frozenset(("fits", "trust", "step_time", "tokens_per_second"))
"""Results some of which every file that a command writes has."""


@dataclass(frozen=True, slots=True)
class Field:
    """The column that one header cell names, and the factor from its unit to the unit used inside."""

    position: int
    column: Column
    symbol: str
    factor: float
    low: float = -math.inf
    high: float = math.inf
    exclusive: bool = False
    whole: bool = False

    @property
    def words(self) -> str:
        """Name of the column as a person writes it."""
        return self.column.words

    def expected(self, inside: float) -> str:
        """Valid numbers in the unit used inside, in words."""
        words = self.expects
        if self.column.has_ceiling and inside > self.high:
            words = f"at most {self.high / self.factor:g}{f' ({self.symbol})' if self.symbol not in ('', '-') else ''}"
        if self.column.name in PER_CENT and self.high <= 1.0 < inside <= 100.0:
            words += f" (write {inside / 100.0:.10g} for {inside:.10g} %)"
        return words

    @property
    def expects(self) -> str:
        """Valid values, in words."""
        column = self.column
        if column.kind == "number":
            if self.symbol != column.unit:
                bounds = _scaled(column, unit_of(column).factor / self.factor) if column.bounds else ""
                column = replace(column, unit=self.symbol, bounds=bounds)
            words = column.bounds_text
            return words.replace("a number", "a whole number", 1) if self.whole else words
        one_of = f"one of {', '.join(column.choices)}"
        return {"flag": "yes or no", "choice": one_of}.get(column.kind, "text")


class HeaderFault(NamedTuple):
    """A fault of a header cell, or of the whole header (position -1); ``other`` is the cell it repeats."""

    position: int
    problem: str
    other: int = -1
    hint: Hint | None = None


@dataclass(frozen=True)
class Header:
    """The columns that a row of header cells names, its faults, and the positions of the user's own columns."""

    kind: str
    fields: tuple[Field, ...]
    unnamed: tuple[int, ...]  # without a name, or of the other kind of plans: their cells must be blank
    faults: tuple[HeaderFault, ...]
    own: tuple[int, ...] = ()


def _scaled(column: Column, scale: float) -> str:
    """Bounds of a column in a unit of another scale."""
    (low, high, _), sign = column.limits, "".join(re.findall("^[>=]+", column.bounds))
    return f"{sign}{low * scale:g}{f'..{high * scale:g}' if '..' in column.bounds else ''}"


def table_kind(header: Sequence[object]) -> str:
    """Kind of table that the first header names, of plans by :func:`plan_kind`; InputError if it names none."""
    kind = catalog_kind(header)
    if kind:
        return kind
    if {"model", "accelerator"} & plan_names(header):
        return plan_kind(header)
    first = shown(next((cell for cell in header if not is_blank(cell)), ""))
    keys = ", ".join(table_schema(kind).key.name for kind in EVERY_TABLE)
    problem = f"the first header must name the kind of table ({keys}, or name for plans), got {first}"
    raise InputError(Fault("", problem))


def catalog_kind(header: Sequence[object]) -> str:
    """Catalog table whose key the first header names; "" if it names none."""
    first = next((split_header(cell)[0] for cell in header if isinstance(cell, str) and cell.strip()), "")
    return next((kind for kind in EVERY_TABLE if first == table_schema(kind).key.name), "")


def plan_kind(header: Sequence[object]) -> str:
    """Kind of a table of plans: ``inference`` with a prompt length or other columns of inference alone, else
    ``training``.

    >>> plan_kind(["model", "accelerator", "prompt length (-)"]), plan_kind(["model", "batch size"])
    ('inference', 'inference')
    """
    names = plan_names(header)
    training, inference = (set(table_schema(kind).by_name) for kind in PLAN_TABLES)
    meant = "prompt_length" in names or (names & (inference - training) and not names & (training - inference))
    return "inference" if meant else "training"


def parse_header(kind: str, header: Sequence[object]) -> Header:
    """Columns, units and faults of a header row; result columns have no field, unknown ones are faults."""
    plain = (cell if cell is None or isinstance(cell, (str, float, int)) else shown(cell) for cell in header)
    return _parse_header(kind, tuple(plain))


@lru_cache(maxsize=512)
def _parse_header(kind: str, header: tuple[object, ...]) -> Header:
    sheet = table_schema(kind)
    ignored = _result_names(kind)
    names = {split_header(cell)[0] for cell in header if isinstance(cell, str)}
    result = not ignored.isdisjoint(names)
    if _OF_OUTPUT.isdisjoint(names):  # a table of the user's own, where "max concurrency" is a load
        ignored = frozenset(name for name in ignored if canonical(kind, name) not in sheet.by_name.keys() - {name})
    if result:
        ignored |= _varied_names(kind)
    fields: list[Field] = []
    faults: list[HeaderFault] = []
    unnamed: list[int] = []
    own: list[int] = []
    first: dict[str, int] = {}
    joined: dict[int, list[str]] = {}
    known = tuple(word.replace("_", " ") for word in (*sheet.by_name, *sorted(ignored)))
    for position, cell in enumerate(header):
        if is_blank(cell):
            unnamed.append(position)
            continue
        text = cell if isinstance(cell, str) else shown(cell)
        name, symbol = split_header(text)
        column = sheet.by_name.get(name if name in ignored else canonical(kind, name))
        if column is None:
            if name in ignored or (result and name.startswith("calibration.")):
                continue
            if len(own) + len(faults) > MOST_OWN:
                own.append(position)
                continue
            if is_own_column(kind, name):
                same = next((other for other in own if str(header[other]).split() == text.split()), -1)
                if same >= 0:
                    faults.append(HeaderFault(position, f"duplicate column {shown(text)}", same))
                joined[position] = _joined(kind, name)
                own.append(position)
                continue
            if other_plans(kind, name):
                unnamed.append(position)
                continue
            hint = partial(_meant, kind, name, known)
            faults.append(HeaderFault(position, f"unknown column {shown(text)}", hint=hint))
            continue
        name = column.name
        if name in first:
            faults.append(HeaderFault(position, f"duplicate column {shown(text)}", first[name]))
            continue
        first[name] = position
        try:
            fields.append(_field(position, column, symbol))
        except BadValue as bad:
            faults.append(HeaderFault(position, str(bad)))
    for position, parts in joined.items():
        if any(part not in first for part in parts):
            remedy = f"give {' and '.join(sheet.by_name[part].words for part in parts)} a column each"
            faults.append(HeaderFault(position, f"unknown column {shown(header[position])}; {remedy}"))
    for column in sheet.columns:
        needed = column.required or (column.instead and column.instead not in first)
        if needed and column.name not in first:
            faults.append(HeaderFault(-1, f'the column "{column.header}" is missing'))
    if len(own) + len(faults) > MOST_OWN:
        number = len(own) + len(faults)
        problem = f"has {number:,} columns that xlperf does not know; {MOST_OWN:,} are the most that it keeps"
        faults.append(HeaderFault(-1, problem))
    return Header(kind, tuple(fields), tuple(unnamed), tuple(faults), tuple(own))


@lru_cache(maxsize=4096)
def is_own_column(kind: str, name: str) -> bool:
    """Whether a header of plans is a column of the user's own: unknown, also in other tables, and not nearly a known
    word.

    >>> is_own_column("training", "owner"), is_own_column("training", "tensor_paralel")
    (True, False)
    """
    word = squeezed(name)
    if kind not in PLAN_TABLES or word in AMBIGUOUS[kind] or not word or name.partition(".")[0] in EVERY_TABLE:
        return False
    known = _known_words(kind)
    letters = sorted(word)
    if word in known or any(len(one) == len(word) and sorted(one) == letters for one in known):
        return False
    return not difflib.get_close_matches(word, known, n=1, cutoff=_ALIKE)


def _joined(kind: str, name: str) -> list[str]:
    """Columns of plans that a header names together; none of any other header.

    >>> _joined("inference", "isl/osl"), _joined("inference", "cost/month")
    (['prompt_length', 'output_length'], [])
    """
    parts = [canonical(kind, part.strip("_")) for part in re.split(r"[/+,&|]|_x_", name)]
    return parts if len(parts) > 1 and all(part in table_schema(kind).by_name for part in parts) else []


@cache
def _known_words(kind: str) -> frozenset[str]:
    """Headers of plans and of the results of a kind, squeezed."""
    names = [*_result_names(kind)]
    for each in PLAN_TABLES:
        names += [*table_schema(each).by_name, *trade_names(each)]
    return frozenset(map(squeezed, names))


def other_plans(kind: str, name: str) -> str:
    """The other kind of plans that has a column of this name, which may stand blank in plans of a kind; "" if none.

    >>> other_plans("inference", "gbs"), other_plans("training", "gbs"), other_plans("inference", "seq_len")
    ('training', '', '')
    """
    if kind not in PLAN_TABLES or squeezed(name) in AMBIGUOUS.get(kind, {}):
        return ""
    others = (each for each in PLAN_TABLES if each != kind)
    return next((each for each in others if canonical(each, name) in table_schema(each).by_name), "")


def _meant(kind: str, name: str, known: tuple[str, ...]) -> str:
    """Which columns a header that is refused may mean."""
    if squeezed(name) in AMBIGUOUS.get(kind, {}):
        return f"did you mean {AMBIGUOUS[kind][squeezed(name)]}?"
    return nearest(name.replace("_", " "), known)


@lru_cache(maxsize=64)
def _result_names(kind: str) -> frozenset[str]:
    """Columns that commands write beside the rows of a kind: left out if rows are read."""
    tables = [f"{kind}_results", *(["ownership"] if kind in PLAN_TABLES else [])]
    names = (name for table in tables if table in schema() for name in schema()[table].by_name)
    return frozenset(names) | (_FORMER_RESULTS if kind in PLAN_TABLES else frozenset())


@lru_cache(maxsize=64)
def _varied_names(kind: str) -> frozenset[str]:
    """Columns that searches and sweeps write beside plans and results: ``accelerators.memory_bandwidth``, ``mean``."""
    tables = (*EVERY_TABLE, kind) if kind in PLAN_TABLES else ()
    varied = (f"{table}.{column.name}" for table in tables for column in table_schema(table).columns)
    said = (name for table in ("uncertainty", "found") for name in table_schema(table).by_name)
    return frozenset((*varied, *said) if tables else ())


def _counted(column: Column, symbol: str) -> Unit | None:
    """The unit of a count whose header names the counted noun, perhaps in thousands: (tokens), (k tokens)."""
    *scale, noun = symbol.casefold().split()
    if unit_of(column).dimension != "-" or noun not in counted_nouns(column) or len(scale) > 1:
        return None
    if not scale:
        return UNITS["-"]
    return next((UNITS[one] for one in ("k", "M", "G", "T") if one.casefold() == scale[0]), None)


def _field(position: int, column: Column, symbol: str | None) -> Field:
    words = column.words
    if column.kind != "number":
        if symbol:
            raise BadValue(f"{words} has no unit, the header says ({shown(symbol)[1:-1]})")
        return Field(position, column, "", 1.0)
    default = unit_of(column)
    low, high, exclusive = column.limits
    bounds = (low * default.factor, high * default.factor, exclusive, column.is_whole)
    if not symbol:
        return Field(position, column, column.unit, default.factor, *bounds)
    result = UNITS.get(symbol.replace("²", "2")) or _counted(column, symbol) or _RATES.get(symbol.casefold())
    known = ", ".join(known_units(default.dimension))
    if result is None:
        raise BadValue(f"unknown unit ({shown(symbol)[1:-1]}) of {words}; known: {known}")
    if result.dimension != default.dimension:
        raise BadValue(f"{words} cannot be in {symbol}; known: {known}")
    return Field(position, column, symbol, result.factor, *bounds)
