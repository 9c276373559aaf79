"""Plans in other shapes than a table of them: cards, and the measured runs of the sheet ``own_runs``.

A card has a name and a value in each row, perhaps with a blank column, units or notes beside them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from xlperf.base.errors import Fault
from xlperf.base.units import UNITS
from xlperf.catalog.cells import BadValue, factorise, is_blank, parse_header, shown
from xlperf.catalog.csv_files import CsvFile, CsvLines
from xlperf.catalog.parse import FLAG_WORDS, convert
from xlperf.catalog.schema import OWN_RUNS, Column, canonical, split_header, squeezed, table_schema
from xlperf.catalog.table import Coded, Locate, Table, column_letters, stacked

MOST_ROWS, MOST_COLUMNS = 1_000, 64  # rows and columns of a card, headings and notes included
_TITLES = frozenset({"parameter", "setting", "property", "key", "item", "field", "input", "quantity", "column"})
"""Headings of a column of names."""


class Card(NamedTuple):
    """A card of one or more plans."""

    names: list[str]  # headers, with the unit beside a value
    rows: list[int]  # row of each name, among the given rows
    plans: list[list[object]]  # values of each plan, by name
    columns: list[int]  # column of the names, then the column of the values of each plan


def find_card(rows: Sequence[Sequence[object]], kinds: Sequence[str], from_text: bool = False) -> Card | None:
    """The card in rows of cells; None for a table with a header row and for anything else. Among several columns beside
    the names it has the one whose cells suit the names, or all, a plan each, if several suit in every row.
    """
    width = max(map(len, rows), default=0)
    if not 2 <= len(rows) <= MOST_ROWS or not 2 <= width <= MOST_COLUMNS:
        return None
    cells: list[list[Any]] = [[*row, *[None] * (width - len(row))] for row in rows]
    first = next((column for column in range(width) if any(not is_blank(row[column]) for row in cells)), 0)
    known = {at: kind for at, row in enumerate(cells) if (kind := _kind_of(row[first], kinds))}
    if len(known) < 2:
        return None
    for row in cells[: min(known) + 1]:  # a header has several known names; not the name of a plan that is one too
        is_name = sum(not is_blank(cell) for cell in row[first:]) == 2 and canonical_text(row[first]) == "name"
        if not is_name and sum(bool(_kind_of(cell, kinds)) for cell in row) > 1:
            return None
    scores = {
        column: sum(_fits(row[first], known[at], row[column], from_text) for at, row in enumerate(cells) if at in known)
        for column in range(first + 1, width)
    }
    best = max(scores.values(), default=0)
    if best < 2:
        return None
    filled = sum(not all(map(is_blank, cells[at][first + 1 :])) for at in known)
    columns = [column for column, score in scores.items() if score == best]
    fields = [field for at, kind in known.items() for field in parse_header(kind, [cells[at][first]]).fields]
    # with a column of numbers a note beside a value cannot be a value itself
    has_number = any(field.column.kind == "number" for field in fields)
    columns = columns if best == filled and has_number else columns[:1]
    results = [
        at
        for at, row in enumerate(cells)
        if isinstance(row[first], str) and row[first].strip() and any(not is_blank(row[column]) for column in columns)
    ]
    results = [at for at in results if squeezed(cells[at][first]) not in _TITLES]
    names = [_with_unit(cells[at], first, columns, known.get(at, "")) for at in results]
    plans = [[cells[at][column] for at in results] for column in columns]
    return Card(names, results, plans, [first, *columns])


def canonical_text(cell: object) -> str:
    """Name of the column that a cell names, of whatever table."""
    return split_header(cell)[0] if isinstance(cell, str) else ""


def _kind_of(cell: object, kinds: Sequence[str]) -> str:
    """The first kind that has a column of a name; "" if none has."""
    name = canonical_text(cell)
    return next((kind for kind in kinds if canonical(kind, name) in table_schema(kind).by_name), "") if name else ""


def _fits(name: Any, kind: str, value: object, from_text: bool) -> bool:
    """Whether a cell can be the value of a column."""
    if is_blank(value):
        return False
    fields = parse_header(kind, [name]).fields
    try:
        return not fields or convert(fields[0], value, from_text) != ""
    except BadValue:
        return False


def _with_unit(row: Sequence[Any], first: int, columns: Sequence[int], kind: str) -> str:
    """A name with the unit in the cell beside its value."""
    name = str(row[first])
    if not kind or split_header(name)[1] is not None:
        return name
    for at, cell in enumerate(row):
        symbol = cell.strip().strip("()[]") if isinstance(cell, str) and at != first and at not in columns else ""
        if symbol and (symbol in UNITS or len(symbol.split()) <= 2):
            header = f"{name} ({symbol})"
            if not any(fault.position == 0 for fault in parse_header(kind, [header]).faults):
                return header
    return name


def card_cell(book: str, sheet: str, rows: list[int], columns: list[int], row: int, position: int) -> str:
    """Cell of a value of a card, whose plans are columns, or of a name; the sheet alone for the whole card."""
    cell = "" if position < 0 else f"!{column_letters(columns[row + 1])}{rows[position]}"
    return f"{book} [{sheet}{cell}]"


def _card_line(name: str, lines: list[int], names: list[str], _row: int, position: int) -> str:
    words = "" if position < 0 else split_header(names[position])[0].replace("_", " ")
    return name if position < 0 else f"{name} [line {lines[position]}, {words}]"


def card_of_csv(csv_file: CsvFile, kinds: Sequence[str]) -> tuple[list[str], list[Coded], Locate] | None:
    """Header, columns and places of the plans of a CSV file that is a card; None for any other."""
    places: CsvLines = csv_file.locate
    if len(places.lines) >= MOST_ROWS or not 2 <= len(csv_file.header) <= MOST_COLUMNS:
        return None
    cells = [np.array(distinct or [""], dtype=object)[codes].tolist() for codes, distinct in csv_file.columns]
    rows: list[Sequence[object]] = [list(csv_file.header), *zip(*cells, strict=True)]
    card = find_card(rows, kinds, from_text=True)
    if card is None:
        return None
    lines = [places.header_line, *places.lines.tolist()]
    columns: list[Coded] = [factorise(list(values)) for values in zip(*card.plans, strict=True)]
    return card.names, columns, partial(_card_line, places.name, [lines[at] for at in card.rows], card.names)


def as_runs(plans: Table) -> Table:
    """Plans with measured columns as rows of the sheet."""
    key, known = table_schema(OWN_RUNS).key.name, table_schema(OWN_RUNS).by_name
    names = [str(name) or f"run {row + 1}" for row, name in enumerate(plans.text("name").tolist())]
    columns: dict[str, np.ndarray] = {key: np.array(names, dtype=object)}
    for name, values in plans.columns.items():
        if name in known and values.dtype != object and known[name].is_text:
            words = {1.0: "yes", 0.0: "no"}
            columns[name] = np.array([words.get(value, "") for value in values.tolist()], dtype=object)
        elif name in known:
            columns[name] = values
    columns["source"] = np.full(len(plans), "measured columns of plans", dtype=object)
    return Table(OWN_RUNS, columns, partial(_renamed, plans, {key: "name"}))


def _renamed(table: Table, names: Mapping[str, str], row: int, column: str) -> str:
    """Place of a value in a table that calls some columns otherwise."""
    return table.place(row, names.get(column, column))


def beside(before: Table, added: Sequence[Table], keys: Sequence[str] = (), blank: str = "") -> Table:
    """A table with more rows; a new row replaces one of the same name, or of the same ``keys``, case aside."""
    names = keys or (before.schema.key.name,)

    def keys_of(table: Table) -> list[tuple[str, ...]]:
        return list(zip(*([str(word).casefold() for word in table.text(name, blank)] for name in names), strict=True))

    new = {key for table in added for key in keys_of(table)}
    kept = [row for row, key in enumerate(keys_of(before)) if key not in new]
    return stacked([before.take(np.array(kept, dtype=np.int64)), *added])


def run_plans(runs: Table, faults: list[Fault]) -> list[Table]:
    """Measured runs as tables of plans with measured columns, training first; ``faults`` gets bad cells."""
    serves = ~np.isnan(runs.number("prompt_length"))
    tables = []
    for kind, rows in (("training", np.flatnonzero(~serves)), ("inference", np.flatnonzero(serves))):
        if len(rows):
            tables.append(_plans_of(kind, runs.take(rows), faults))
    return tables


def _plans_of(kind: str, runs: Table, faults: list[Fault]) -> Table:
    """Runs of one kind as plans."""
    known, key = table_schema(kind).by_name, runs.schema.key.name
    columns: dict[str, np.ndarray] = {"name": runs.text(key)}
    for name, values in runs.columns.items():
        filled = values != "" if values.dtype == object else ~np.isnan(values)
        column = known.get(name)
        if name in (key, "source", "year") or not filled.any():
            continue
        if column is None:
            other = "serving" if kind == "training" else "training"
            words = f"belongs to a run of {other}; a run with a prompt length is one of serving"
            row = int(np.flatnonzero(filled)[0])
            faults.append(Fault(runs.place(row, name), f"{name.replace('_', ' ')} {words}"))
            continue
        columns[name] = _as_in(column, values, runs, faults)
    return Table(kind, columns, partial(_renamed, runs, {"name": key}))


def _as_in(column: Column, values: np.ndarray, runs: Table, faults: list[Fault]) -> np.ndarray:
    """Values of a column of runs as a column of plans has them: their choices and flags may differ by kind."""
    if values.dtype != object or column.kind in ("text", "reference", "name"):
        return values
    words = [str(value).strip().casefold() for value in values.tolist()]
    allowed = list(FLAG_WORDS) if column.kind == "flag" else [choice.casefold() for choice in column.choices]
    for row, word in enumerate(words):
        if word and word not in allowed:
            options = "yes or no" if column.kind == "flag" else f"one of {', '.join(column.choices)}"
            problem = f"{column.words} must be {options}, got {shown(values[row])}"
            faults.append(Fault(runs.place(row, column.name), problem))
    if column.kind == "flag":
        return np.array([FLAG_WORDS.get(word, math.nan) for word in words])
    exact = {choice.casefold(): choice for choice in column.choices}
    return np.array([exact.get(word, "") for word in words], dtype=object)
