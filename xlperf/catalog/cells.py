"""Cell values to columns: headers with units, numbers, flags, choices, blanks, and every fault with its place.

Rows of cells (a sheet, a range that a spreadsheet host sends) and columns of text (a CSV file) go through the same
rules: :func:`table_from_rows` and :func:`table_from_columns`. All faults are collected and raised once.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from xlperf.catalog.keys import key_faults
from xlperf.catalog.schema import (
    CATALOG_TABLES,
    PLAN_TABLES,
    Column,
    TableSchema,
    results_of,
    schema,
    split_header,
    table_schema,
    unit_of,
)
from xlperf.catalog.table import Place, Table, nowhere
from xlperf.errors import Fault, InputError, nearest
from xlperf.units import UNITS

Locate = Callable[[int, int], str]
"""``locate(row, position)`` says where a cell stands; row -1 is the header, position -1 the whole row."""

_ERRORS = re.compile(r"#(N/A|REF!|VALUE!|DIV/0!|NAME\?|NUM!|NULL!|SPILL!|CALC!|GETTING_DATA|FIELD!|BLOCKED!)|Err:\d+")
_COUNTS = re.compile(
    r"(num_\w+|\w+_(size|length|layers|rank|parallel|pipeline|stage|step)|size|tier|top_k|year|concurrency"
    r"|links_per_peer|sliding_window)$"
)
_YES = {"yes": 1.0, "true": 1.0, "1": 1.0, "no": 0.0, "false": 0.0, "0": 0.0}


@dataclass(frozen=True, slots=True)
class ErrorValue:
    """A cell that holds a spreadsheet error such as ``#N/A``."""

    text: str


@dataclass(frozen=True, slots=True)
class Unsaved:
    """A cell that holds a formula whose value the file does not have."""

    formula: str


@dataclass(frozen=True, slots=True)
class Field:
    """What one header cell means: the column, and the factor from its unit to the unit used inside."""

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
        return self.column.name.replace("_", " ")

    @property
    def may_be_auto(self) -> bool:
        """Whether the word ``auto`` may stand in place of a value."""
        return self.column.table in PLAN_TABLES and self.column.kind in ("number", "flag", "choice")

    @property
    def expects(self) -> str:
        """What would do, in words."""
        column = self.column
        if column.kind == "number":
            low, high, _ = column.limits
            if self.symbol != column.unit and column.bounds:
                scale = unit_of(column).factor / self.factor
                column = replace(column, unit=self.symbol, bounds=_scaled(column.bounds, low, high, scale))
            elif self.symbol != column.unit:
                column = replace(column, unit=self.symbol)
            words = column.bounds_text
            return words.replace("a number", "a whole number", 1) if self.whole else words
        if column.kind == "flag":
            return "yes or no"
        if column.kind == "choice":
            return f"one of {', '.join(column.choices)}"
        return "text"


@dataclass(frozen=True)
class Header:
    """The columns that a row of header cells names, and what is wrong with it: (position, problem, other position)."""

    kind: str
    fields: tuple[Field, ...]
    unnamed: tuple[int, ...]
    faults: tuple[tuple[int, str, int], ...]


class _Bad(ValueError):
    """A value that will not do; the text says why."""


def _scaled(bounds: str, low: float, high: float, scale: float) -> str:
    if ".." in bounds:
        return f"{low * scale:g}..{high * scale:g}"
    return re.sub(r"[\d.eE+-]+$", f"{low * scale:g}", bounds)


@lru_cache(maxsize=1024)
def is_count(column: Column) -> bool:
    """Whether the values of a number column are whole: layers, ranks, tokens, years.

    >>> from xlperf.catalog.schema import column
    >>> is_count(column("training", "tensor_parallel")), is_count(column("prices", "life"))
    (True, False)
    """
    return column.kind == "number" and unit_of(column).dimension == "-" and bool(_COUNTS.match(column.name))


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
    if isinstance(value, (int, float, np.number)):
        return f"{float(value):.15g}"
    return f'"{str(value)[:60]}"'


def known_units(dimension: str) -> list[str]:
    """Unit symbols of one dimension, the plain spelling of each.

    >>> known_units("request/s")
    ['request/s']
    """
    return [symbol for symbol, unit in UNITS.items() if unit.dimension == dimension and symbol not in ("1", "µs")]


# --- headers -----------------------------------------------------------------------------------------------------


def table_kind(header: Sequence[object]) -> str:
    """Which kind of sheet a header row belongs to: the first header names it.

    A plan is of kind ``inference`` if it has a prompt length, else ``training``.

    Raises
    ------
    InputError
        When no kind has such a first header.
    """
    names = [split_header(cell)[0] for cell in header if isinstance(cell, str) and cell.strip()]
    for kind in CATALOG_TABLES:
        if names and names[0] == table_schema(kind).key.name:
            return kind
    if {"model", "accelerator"} & set(names):
        return plan_kind(header)
    first = shown(next((cell for cell in header if not is_blank(cell)), ""))
    keys = ", ".join(table_schema(kind).key.name for kind in CATALOG_TABLES)
    raise InputError(
        Fault("", f"the first header must name the kind of table ({keys}, or name for plans), got {first}")
    )


def plan_kind(header: Sequence[object]) -> str:
    """Kind of a table of plans: ``inference`` if it has a ``prompt_length`` column, else ``training``.

    >>> plan_kind(["model", "accelerator", "prompt length (-)"])
    'inference'
    """
    names = {split_header(cell)[0] for cell in header if isinstance(cell, str)}
    return "inference" if "prompt_length" in names else "training"


def parse_header(kind: str, header: Sequence[object]) -> Header:
    """Columns, units and faults of a header row.

    Parameters
    ----------
    kind : str
        Name of the sheet in the schema.
    header : sequence
        Header cells: text, or blank.

    Returns
    -------
    Header
        Result columns inside a plan have no field; unknown ones are faults.
    """
    return _parse_header(kind, tuple(cell if isinstance(cell, (str, float, int)) else _header(cell) for cell in header))


def _header(cell: object) -> object:
    return None if cell is None else shown(cell)


@lru_cache(maxsize=512)
def _parse_header(kind: str, header: tuple[object, ...]) -> Header:
    sheet = table_schema(kind)
    ignored = {column.name for column in results_of(kind).columns} if kind in PLAN_TABLES else set()
    fields: list[Field] = []
    faults: list[tuple[int, str, int]] = []
    unnamed: list[int] = []
    first: dict[str, int] = {}
    for position, cell in enumerate(header):
        if is_blank(cell):
            unnamed.append(position)
            continue
        text = cell if isinstance(cell, str) else shown(cell)
        name, symbol = split_header(text)
        column = sheet.by_name.get(name)
        if column is None:
            if name not in ignored:
                hint = nearest(name, [*sheet.by_name, *sorted(ignored)])
                faults.append((position, f"unknown column {shown(text)}; {hint.replace('_', ' ')}", -1))
            continue
        if name in first:
            faults.append((position, f"duplicate column {shown(text)}", first[name]))
            continue
        first[name] = position
        try:
            fields.append(_field(position, column, symbol))
        except _Bad as bad:
            faults.append((position, str(bad), -1))
    for column in sheet.columns:
        if column.required and column.name not in first:
            faults.append((-1, f'the column "{column.header}" is missing', -1))
    return Header(kind, tuple(fields), tuple(unnamed), tuple(faults))


def _field(position: int, column: Column, symbol: str | None) -> Field:
    words = column.name.replace("_", " ")
    if column.kind != "number":
        if symbol:
            raise _Bad(f"{words} has no unit, the header says ({symbol})")
        return Field(position, column, "", 1.0)
    default = unit_of(column)
    low, high, exclusive = column.limits
    bounds = (low * default.factor, high * default.factor, exclusive, is_count(column))
    if not symbol:
        return Field(position, column, column.unit, default.factor, *bounds)
    found = UNITS.get(symbol.replace("²", "2"))
    known = ", ".join(known_units(default.dimension))
    if found is None:
        raise _Bad(f"unknown unit ({symbol}) of {words}; known: {known}")
    if found.dimension != default.dimension:
        raise _Bad(f"{words} cannot be in {symbol}; known: {known}")
    return Field(position, column, symbol, found.factor, *bounds)


# --- values ------------------------------------------------------------------------------------------------------


def convert(field: Field, value: object, from_text: bool = False) -> float | str | None:
    """One cell value as the table holds it; None means the word ``auto``.

    Parameters
    ----------
    field : Field
        Column and unit.
    value : object
        Cell value.
    from_text : bool, default False
        Whether numbers arrive as text, as in a CSV file.

    Raises
    ------
    ValueError
        With the problem in words.
    """
    kind = field.column.kind
    if isinstance(value, str):
        value = value.strip()
        if value[:1] in "#E" and _ERRORS.fullmatch(value):
            value = ErrorValue(value)
    if isinstance(value, Unsaved):
        raise _Bad(
            f"{field.words} is a formula without a saved value;"
            " open and save it once in Excel or LibreOffice, or enter a value"
        )
    if is_blank(value):
        if field.column.required:
            remedy = f"; it must be {field.expects}" if kind in ("number", "flag", "choice") else ""
            raise _Bad(f"{field.words} is missing{remedy}")
        return float("nan") if kind in ("number", "flag") else ""
    if isinstance(value, str) and field.may_be_auto and value.casefold() == "auto":
        return None
    if kind == "number":
        return _number(field, value, from_text)
    if kind == "flag":
        return _flag(field, value)
    if kind == "choice":
        return _choice(field, value)
    return _text(field, value)


def _number(field: Field, value: object, from_text: bool) -> float:
    number = math.nan
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        with suppress(OverflowError):
            number = float(value)
    elif isinstance(value, str):
        try:
            number = float(value) if "_" not in value else math.nan
        except ValueError:
            number = math.nan
        if not from_text and math.isfinite(number):
            raise _Bad(f"{field.words} must be {field.expects}, got the text {shown(value)}; enter it as a number")
    if not math.isfinite(number):
        raise _Bad(f"{field.words} must be {field.expects}, got {shown(value)}")
    inside = number * field.factor
    if not _within(field, inside):
        raise _Bad(f"{field.words} must be {field.expects}, got {shown(value if from_text else number)}")
    return inside


def _within(field: Field, inside: float) -> bool:
    """Whether a value in the unit used inside keeps the column's bounds, and is whole where it counts things."""
    if inside < field.low or inside > field.high or (field.exclusive and inside == field.low):
        return False
    return not field.whole or inside == math.floor(inside)


def _flag(field: Field, value: object) -> float:
    if isinstance(value, (bool, int, float, np.bool_, np.number)) and value in (0, 1):
        return float(value)
    if isinstance(value, str) and value.casefold() in _YES:
        return _YES[value.casefold()]
    raise _Bad(f"{field.words} must be yes or no, got {shown(value)}")


def _choice(field: Field, value: object) -> str:
    if isinstance(value, str):
        spelled = re.sub(r"[\s_\-]+", "-", value.casefold())
        for choice in field.column.choices:
            if choice.casefold() == spelled:
                return choice
    raise _Bad(f"{field.words} must be {field.expects}, got {shown(value)}")


def _text(field: Field, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
        return f"{float(value):.15g}"
    if isinstance(value, datetime.datetime):
        return value.date().isoformat() if value.time() == datetime.time() else value.isoformat(sep=" ")
    if isinstance(value, datetime.date):
        return value.isoformat()
    raise _Bad(f"{field.words} must be text, got {shown(value)}")


# --- tables ------------------------------------------------------------------------------------------------------


class _Collector:
    """Faults with the row and position that order them."""

    def __init__(self, locate: Locate) -> None:
        self.locate = locate
        self.found: list[tuple[int, int, str]] = []

    def add(self, row: int, position: int, problem: str) -> None:
        self.found.append((row, position, problem))

    def header(self, parsed: Header) -> None:
        for position, problem, other in parsed.faults:
            clause = f"; the first is at {self.locate(-1, other)}" if other >= 0 else ""
            self.add(-1, position, problem + clause)

    def faults(self) -> list[Fault]:
        return [Fault(self.locate(row, position), problem) for row, position, problem in sorted(self.found)]


def parse_rows(
    kind: str, header: Sequence[object], rows: Sequence[Sequence[object]], locate: Locate, skip_empty: bool = True
) -> tuple[Table, list[Fault]]:
    """Rows of cells as a table, with every fault; a faulty value is blank in the table.

    Parameters
    ----------
    kind : str
        Name of the sheet in the schema.
    header : sequence
        Header cells.
    rows : sequence of sequence
        Cells of each row; short rows are blank at the end.
    locate : callable
        ``locate(row, position)``: where a cell stands.
    skip_empty : bool, default True
        Leave rows out that are blank in every input column; places still name the original rows.
    """
    parsed = parse_header(kind, header)
    collector = _Collector(locate)
    collector.header(parsed)
    fields = parsed.fields
    kept: list[int] = []
    data: list[list[float | str]] = [[] for _ in fields]
    autos: dict[int, list[int]] = {}
    for row, cells in enumerate(rows):
        width = len(cells)
        values = [cells[field.position] if field.position < width else None for field in fields]
        if skip_empty and all(is_blank(value) for value in values):
            continue
        for position in parsed.unnamed:
            if position < width and not is_blank(cells[position]):
                collector.add(row, position, f"a value without a header, got {shown(cells[position])}")
        for number, (field, value) in enumerate(zip(fields, values, strict=True)):
            blank: float | str = "" if field.column.is_text else float("nan")
            try:
                result = convert(field, value)
            except _Bad as bad:
                collector.add(row, field.position, str(bad))
                result = blank
            if result is None:
                autos.setdefault(number, []).append(len(kept))
                result = blank
            data[number].append(result)
        kept.append(row)
    columns = {field.column.name: _as_array(field, values) for field, values in zip(fields, data, strict=True)}
    auto = {fields[number].column.name: _mask(len(kept), positions) for number, positions in autos.items()}
    return _finish(kind, fields, columns, auto, kept, collector)


def parse_columns(
    kind: str, header: Sequence[object], columns: Sequence[np.ndarray], locate: Locate
) -> tuple[Table, list[Fault]]:
    """Columns as a table, with every fault; each distinct text is converted once.

    Parameters
    ----------
    kind : str
        Name of the sheet in the schema.
    header : sequence
        Header of each column.
    columns : sequence of array
        Numbers (NaN: blank), booleans, or objects: text as in a CSV file, None.
    locate : callable
        ``locate(row, position)``: where a value stands.
    """
    return parse_coded(kind, header, [_coded(np.asarray(values)) for values in columns], locate)


Coded = tuple[np.ndarray, Sequence[object] | None]
"""A column as codes into its distinct values, or as numbers (and no distinct values)."""


def parse_coded(
    kind: str, header: Sequence[object], columns: Sequence[Coded], locate: Locate
) -> tuple[Table, list[Fault]]:
    """Columns given as codes into distinct values, as :func:`parse_columns`."""
    parsed = parse_header(kind, header)
    collector = _Collector(locate)
    collector.header(parsed)
    for position in parsed.unnamed:
        values, distinct = columns[position]
        for code, value in enumerate(distinct or ()):
            if not is_blank(value):
                row = int(np.flatnonzero(values == code)[0])
                collector.add(row, position, f"a value without a header, got {shown(value)}")
    arrays: dict[str, np.ndarray] = {}
    auto: dict[str, np.ndarray] = {}
    for field in parsed.fields:
        values, distinct = columns[field.position]
        if distinct is None:
            arrays[field.column.name] = _numbers(field, values, collector)
            continue
        arrays[field.column.name], mask = _expand(field, values, distinct, collector)
        if mask is not None:
            auto[field.column.name] = mask
    length = len(columns[0][0]) if columns else 0
    return _finish(kind, parsed.fields, arrays, auto, range(length), collector)


def _expand(
    field: Field, codes: np.ndarray, distinct: Sequence[object], collector: _Collector
) -> tuple[np.ndarray, np.ndarray | None]:
    blank: float | str = "" if field.column.is_text else float("nan")
    results: list[float | str] = []
    autos: list[int] = []
    for code, value in enumerate(distinct):
        try:
            result = convert(field, value, from_text=True)
        except _Bad as bad:
            for row in np.flatnonzero(codes == code).tolist():
                collector.add(row, field.position, str(bad))
            result = blank
        if result is None:
            autos.append(code)
            result = blank
        results.append(result)
    expanded = _as_array(field, results)[codes] if results else _as_array(field, [])
    return expanded, np.isin(codes, autos) if autos else None


def _numbers(field: Field, values: np.ndarray, collector: _Collector) -> np.ndarray:
    """Numbers of a number or flag column; anything else goes through its distinct values."""
    if field.column.kind != "number" or values.dtype == np.bool_:
        distinct, codes = np.unique(values, return_inverse=True)
        return _expand(field, codes.reshape(-1), distinct.tolist(), collector)[0]
    numbers = values.astype(np.float64)
    inside = numbers * field.factor
    fine = np.isfinite(inside) & (inside >= field.low) & (inside <= field.high)
    if field.exclusive:
        fine &= inside != field.low
    if field.whole:
        fine &= inside == np.floor(inside)
    if not field.column.required:
        fine |= np.isnan(numbers)
    for row in np.flatnonzero(~fine).tolist():
        if np.isnan(numbers[row]):
            collector.add(row, field.position, f"{field.words} is missing; it must be {field.expects}")
        else:
            collector.add(row, field.position, f"{field.words} must be {field.expects}, got {shown(numbers[row])}")
    return np.where(fine, inside, np.nan)


def _coded(values: np.ndarray) -> Coded:
    if values.dtype.kind in "fiub":
        return values, None
    return factorise(values.tolist())


def factorise(values: Iterable[object]) -> tuple[np.ndarray, list[object]]:
    """Codes of values, and the distinct values that they index, in the order of their first appearance."""
    seen: dict[object, int] = {}
    codes = [seen.setdefault(value, len(seen)) for value in values]
    return np.array(codes, dtype=np.int64), list(seen)


def _as_array(field: Field, values: Sequence[float | str]) -> np.ndarray:
    return np.array(values, dtype=object if field.column.is_text else np.float64)


def _mask(length: int, positions: Sequence[int]) -> np.ndarray:
    mask = np.zeros(length, dtype=bool)
    mask[list(positions)] = True
    return mask


def _finish(
    kind: str,
    fields: Sequence[Field],
    columns: Mapping[str, np.ndarray],
    auto: Mapping[str, np.ndarray],
    kept: Sequence[int],
    collector: _Collector,
) -> tuple[Table, list[Fault]]:
    positions = {field.column.name: field.position for field in fields}
    locate = collector.locate

    def place(row: int, column: str) -> str:
        return locate(kept[row] if row >= 0 else -1, positions.get(column, -1))

    table = Table(kind, columns, place, auto)
    if kind in CATALOG_TABLES:
        for row, column, problem in key_faults(table):
            collector.add(kept[row], positions.get(column, -1), problem)
    return table, collector.faults()


def table_from_rows(
    kind: str,
    header: Sequence[object],
    rows: Sequence[Sequence[object]],
    place: Place = nowhere,
    skip_empty: bool = True,
) -> Table:
    """Rows of cell values as a table in the units used inside.

    Parameters
    ----------
    kind : str
        Name of the sheet in the schema: ``accelerators``, ``training`` ...
    header : sequence
        Header cells, with or without units in parentheses.
    rows : sequence of sequence
        Cell values of each row: numbers, text, booleans, None.
    place : callable, optional
        ``place(row, column)`` for the messages; row -1 is the header, and ``column`` the canonical name of a known
        column, else the header as it is written, or "" for the whole row.
    skip_empty : bool, default True
        Leave blank rows out; False makes them faults where a column is required.

    Returns
    -------
    Table
        Columns of the header that the schema knows; result columns inside a plan are left out.

    Raises
    ------
    InputError
        With every fault of header and cells.

    >>> table_from_rows("training", ["model", "accelerator", "num accelerators"], [["a", "b", 8]])["num_accelerators"]
    array([8.])
    """
    table, faults = parse_rows(kind, header, rows, _by_name(header, place, kind), skip_empty)
    return _raised(table, faults)


def table_from_columns(kind: str, columns: Mapping[str, np.ndarray], place: Place = nowhere) -> Table:
    """Columns as a table in the units used inside; fast for many rows.

    Parameters
    ----------
    kind : str
        Name of the sheet in the schema.
    columns : mapping of str to array
        By header: numbers (NaN where blank), booleans, or text (numbers may be written as text).
    place : callable, optional
        As in :func:`table_from_rows`.

    Returns
    -------
    Table
        As in :func:`table_from_rows`; rows are never left out.

    Raises
    ------
    InputError
        With every fault of header and values.
    """
    header = list(columns)
    table, faults = parse_columns(kind, header, list(columns.values()), _by_name(header, place, kind))
    return _raised(table, faults)


def _by_name(header: Sequence[object], place: Place, kind: str) -> Locate:
    sheet: TableSchema = schema()[kind]

    def locate(row: int, position: int) -> str:
        cell = header[position] if 0 <= position < len(header) else ""
        text = cell if isinstance(cell, str) else "" if cell is None else str(cell)
        name = split_header(text)[0]
        return place(row, name if name in sheet.by_name else text)

    return locate


def _raised(table: Table, faults: Sequence[Fault]) -> Table:
    if faults:
        raise InputError(faults)
    return table
