"""Header cells: which column each one names, in which unit, and what is wrong with it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import NamedTuple

from xlperf.base.errors import Fault, Hint, InputError, nearest
from xlperf.base.units import UNITS
from xlperf.catalog.schema import (
    EVERY_TABLE,
    PLAN_TABLES,
    Column,
    schema,
    split_header,
    table_schema,
    unit_of,
)
from xlperf.catalog.values import BadValue, is_blank, shown

_COUNTS = re.compile(
    r"(num_\w+|\w+_(size|length|layers|rank|parallel|pipeline|stage|step)|size|tier|top_k|year|concurrency"
    r"|links_per_peer|sliding_window)$"
)


_FORMER_RESULTS = set(
    "carbon_per_million_tokens cost_per_million_tokens cost_per_million_input_tokens cost_per_million_output_tokens "
    "energy_per_token run_carbon run_cost step_cost tokens_per_dollar tokens_per_second_per_megawatt".split()
)
"""What version 0.1 of ``xlperf cost`` called the owner's results: files that it wrote are still plans."""


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
        return self.column.may_be_auto

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


class HeaderFault(NamedTuple):
    """What is wrong with a header cell, or with the whole header (position -1); ``other`` is the cell it repeats."""

    position: int
    problem: str
    other: int = -1
    hint: Hint | None = None


@dataclass(frozen=True)
class Header:
    """The columns that a row of header cells names, and what is wrong with it."""

    kind: str
    fields: tuple[Field, ...]
    unnamed: tuple[int, ...]
    faults: tuple[HeaderFault, ...]


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


def known_units(dimension: str) -> list[str]:
    """Unit symbols of one dimension, the plain spelling of each.

    >>> known_units("request/s")
    ['request/s']
    """
    return [symbol for symbol, unit in UNITS.items() if unit.dimension == dimension and symbol not in ("1", "µs")]


def table_kind(header: Sequence[object]) -> str:
    """Which kind of sheet a header row belongs to: the first header names it.

    A plan is of kind ``inference`` if it has a prompt length, else ``training``.

    Raises
    ------
    InputError
        When no kind has such a first header.
    """
    names = [split_header(cell)[0] for cell in header if isinstance(cell, str) and cell.strip()]
    for kind in EVERY_TABLE:
        if names and names[0] == table_schema(kind).key.name:
            return kind
    if {"model", "accelerator"} & set(names):
        return plan_kind(header)
    first = shown(next((cell for cell in header if not is_blank(cell)), ""))
    keys = ", ".join(table_schema(kind).key.name for kind in EVERY_TABLE)
    raise InputError(
        Fault("", f"the first header must name the kind of table ({keys}, or name for plans), got {first}")
    )


def plan_kind(header: Sequence[object]) -> str:
    """Kind of a table of plans: ``inference`` if it has a ``prompt_length`` column, else ``training``.

    Columns that only inference has say so too, so that the prompt length is what is missed, and not they.

    >>> plan_kind(["model", "accelerator", "prompt length (-)"]), plan_kind(["model", "batch size"])
    ('inference', 'inference')
    """
    names = {split_header(cell)[0] for cell in header if isinstance(cell, str)}
    training, inference = (set(table_schema(kind).by_name) for kind in PLAN_TABLES)
    meant = "prompt_length" in names or (names & (inference - training) and not names & (training - inference))
    return "inference" if meant else "training"


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
        Result columns beside the inputs have no field; unknown ones are faults.
    """
    return _parse_header(kind, tuple(cell if isinstance(cell, (str, float, int)) else _header(cell) for cell in header))


def _header(cell: object) -> object:
    return None if cell is None else shown(cell)


@lru_cache(maxsize=512)
def _parse_header(kind: str, header: tuple[object, ...]) -> Header:
    sheet = table_schema(kind)
    ignored = _result_names(kind)
    if any(isinstance(cell, str) and split_header(cell)[0] in ignored for cell in header):
        ignored |= _varied_names(kind)
    fields: list[Field] = []
    faults: list[HeaderFault] = []
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
                known = tuple(word.replace("_", " ") for word in (*sheet.by_name, *sorted(ignored)))
                hint = partial(nearest, name.replace("_", " "), known)
                faults.append(HeaderFault(position, f"unknown column {shown(text)}", hint=hint))
            continue
        if name in first:
            faults.append(HeaderFault(position, f"duplicate column {shown(text)}", first[name]))
            continue
        first[name] = position
        try:
            fields.append(_field(position, column, symbol))
        except BadValue as bad:
            faults.append(HeaderFault(position, str(bad)))
    for column in sheet.columns:
        needed = column.required or (column.instead and column.instead not in first)
        if needed and column.name not in first:
            faults.append(HeaderFault(-1, f'the column "{column.header}" is missing'))
    return Header(kind, tuple(fields), tuple(unnamed), tuple(faults))


@lru_cache(maxsize=64)
def _result_names(kind: str) -> frozenset[str]:
    """Columns that commands write beside the rows of a kind: left out where rows are read."""
    tables = [f"{kind}_results", *(["ownership"] if kind in PLAN_TABLES else [])]
    names = {column.name for table in tables if table in schema() for column in schema()[table].columns}
    return frozenset(names | (_FORMER_RESULTS if kind in PLAN_TABLES else set()))


@lru_cache(maxsize=64)
def _varied_names(kind: str) -> frozenset[str]:
    """Columns of the catalog as a sweep writes them beside plans and results: ``accelerators.memory_bandwidth``."""
    tables = EVERY_TABLE if kind in PLAN_TABLES else ()
    return frozenset(f"{table}.{column.name}" for table in tables for column in table_schema(table).columns)


def _field(position: int, column: Column, symbol: str | None) -> Field:
    words = column.name.replace("_", " ")
    if column.kind != "number":
        if symbol:
            raise BadValue(f"{words} has no unit, the header says ({shown(symbol)[1:-1]})")
        return Field(position, column, "", 1.0)
    default = unit_of(column)
    low, high, exclusive = column.limits
    bounds = (low * default.factor, high * default.factor, exclusive, is_count(column))
    if not symbol:
        return Field(position, column, column.unit, default.factor, *bounds)
    found = UNITS.get(symbol.replace("²", "2"))
    known = ", ".join(known_units(default.dimension))
    if found is None:
        raise BadValue(f"unknown unit ({shown(symbol)[1:-1]}) of {words}; known: {known}")
    if found.dimension != default.dimension:
        raise BadValue(f"{words} cannot be in {symbol}; known: {known}")
    return Field(position, column, symbol, found.factor, *bounds)
