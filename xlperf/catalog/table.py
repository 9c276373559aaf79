"""A table in memory: columns in the units used inside, places of values, keys, names and aliases."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Columns, is_repeated, mapped, repeated, taken
from xlperf.catalog.cells import Field, Header, is_blank, shown
from xlperf.catalog.schema import PLAN_TABLES, TableSchema, counted_nouns, table_schema, unit_of

CASES = ("low", "base", "high")  # cases of prices: a sheet may give a column twice more, with these endings

Place = Callable[[int, str], str]  # ``place(row, column)``: cell of a value, for messages; row -1 is the header
Locate = Callable[[int, int], str]  # ``locate(row, position)``: cell; row -1: the header, position -1: the whole row


@lru_cache(maxsize=4096)
def column_letters(number: int) -> str:
    """Letters of a column of a sheet: AB of 28."""
    letters = ""
    while number > 0:
        number, rest = divmod(number - 1, 26)
        letters = chr(65 + rest) + letters
    return letters


@dataclass(frozen=True)
class SheetCells:
    """Cells of rows on a sheet, by row and position: ``xlperf.xlsx [accelerators!F7]``."""

    book: str
    sheet: str
    header_row: int
    rows: Sequence[int]
    columns: Sequence[int]

    def __call__(self, row: int, position: int) -> str:
        """The cell; the sheet alone for the whole header."""
        if position < 0 and row < 0:
            return f"{self.book} [{self.sheet}]"
        letters = column_letters(self.columns[max(position, 0)])
        return f"{self.book} [{self.sheet}!{letters}{self.rows[row] if row >= 0 else self.header_row}]"


@dataclass(frozen=True)
class NamedCells:
    """Cells of a table by column name: the source's row of each of its rows, and the position of each column."""

    locate: Locate
    rows: Sequence[int]
    positions: Mapping[str, int]

    def __call__(self, row: int, column: str) -> str:
        """Place of the value in the source."""
        return self.locate(self.rows[row] if row >= 0 else -1, self.positions.get(column, -1))


def place_of_row(place: Place, rows: np.ndarray, row: int, column: str) -> str:
    """Place of a value in a table of selected rows: its place in the original table."""
    return place(int(rows[row]) if row >= 0 else -1, column)


def nowhere(row: int, column: str) -> str:
    """Place of a value whose source has no name: row and column in words; row -1 is the header."""
    line = "header" if row < 0 else f"row {row + 1}"
    words = " ".join(column.replace("_", " ").split())[:60]
    return f"{line}, {words}" if words else line


@cache
def default_value(kind: str, column: str) -> str | float:
    """Default of a column in the unit used inside; NaN or "" if it has none."""
    declared = table_schema(kind).by_name[column]
    if declared.is_text:
        return declared.default
    if declared.kind == "flag":
        return {"yes": 1.0, "no": 0.0}.get(declared.default, float("nan"))
    return float(declared.default or "nan") * unit_of(declared).factor


@dataclass(frozen=True, eq=False)  # itself a key of caches: catalogs share the tables that an edit leaves
class Table:
    """Rows of one kind of sheet, column by column; columns that the source lacks are absent."""

    kind: str  # name of the sheet in the schema
    columns: Mapping[str, np.ndarray]  # float64 (NaN if blank; flags 0 or 1) or object arrays of str ("" if blank)
    place: Place = nowhere
    # Masks of values that are the word auto, which are blank in columns
    auto: Mapping[str, np.ndarray] = field(default_factory=dict)
    # Unknown columns of plans by header, text or float64, which pass through to the results
    own: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        for values in self.columns.values():
            return len(values)
        return 0

    def __getitem__(self, column: str) -> np.ndarray:
        return self.columns[column]

    def __contains__(self, column: object) -> bool:
        return column in self.columns

    @property
    def schema(self) -> TableSchema:
        """Schema of the kind."""
        return table_schema(self.kind)

    def in_case(self, case: str) -> Table:
        """The table in a case: ``low`` has the values of columns ``..._low``, ``high`` of ``..._high``."""
        columns = dict(self.columns)
        for name in self.columns:
            own = name.removesuffix(f"_{case}")
            if own != name and own in self.schema.by_name:
                given = self.columns[name]
                columns[own] = np.where(np.isnan(given), self.number(own), given)
        return Table(self.kind, columns, self.place, self.auto, self.own)

    def number(self, column: str, default: float = float("nan")) -> np.ndarray:
        """A number column with blanks replaced, or the default if the table lacks the column."""
        values = self.columns.get(column)
        if values is None:
            return repeated(default, len(self))
        if default != default:
            return values
        if is_repeated(values):
            return repeated(default, len(self)) if values[0] != values[0] else values
        blank = np.isnan(values)
        return np.where(blank, default, values) if np.count_nonzero(blank) else values

    def text(self, column: str, default: str = "") -> np.ndarray:
        """A text column with blanks replaced, or the default if the table lacks the column."""
        values = self.columns.get(column)
        if values is None:
            return repeated(default, len(self), object)
        if is_repeated(values):
            return values if values[0] else repeated(default, len(self), object)
        return np.where(values == "", default, values).astype(object) if default else values

    def filled(self, column: str) -> np.ndarray:
        """A column with the schema's default (in the unit used inside) if it is blank or absent."""
        default = default_value(self.kind, column)
        return self.text(column, default) if isinstance(default, str) else self.number(column, default)

    def codes(self, column: str, numbers: Mapping[str, int]) -> np.ndarray:
        """Codes of the words of a text column; blank cells have the code of the schema's default."""
        blank = str(default_value(self.kind, column))
        values = self.columns.get(column)
        if values is None:
            return repeated(numbers[blank], len(self), np.int64)
        known = {**numbers, "": numbers[blank]} if blank in numbers else numbers
        return mapped(known.__getitem__, values, np.int64)

    @staticmethod
    def of_lines(kind: str, lines: Sequence[Mapping[str, object]]) -> Table:
        """A table from its rows, each with a value in the unit used inside for every column of the kind."""
        columns = table_schema(kind).columns
        return Table(kind, {c.name: c.array([line[c.name] for line in lines]) for c in columns})

    def with_columns(self, columns: Mapping[str, np.ndarray]) -> Table:
        """The table with some columns replaced, or added at the end; they are no longer ``auto``."""
        auto = {name: mask for name, mask in self.auto.items() if name not in columns}
        return replace(self, columns={**self.columns, **columns}, auto=auto)

    def stated(self, name: str) -> float:
        """Number of the first row; NaN if it is blank."""
        return float(self.number(name)[0])

    def value(self, name: str) -> float:
        """Number of the first row, with the default for a blank; NaN without one."""
        return float(self.filled(name)[0])

    def stated_word(self, name: str) -> str:
        """Text of the first row; "" if it is blank."""
        return str(self.text(name)[0])

    def word(self, name: str) -> str:
        """Text of the first row, with the default for a blank."""
        return str(self.filled(name)[0])

    def in_order(self) -> Table:
        """The table with its columns in the order of the schema."""
        known = self.schema.by_name
        return replace(self, columns={name: self.columns[name] for name in known if name in self.columns})

    def take(self, rows: np.ndarray | slice | Sequence[int]) -> Table:
        """Some rows, in the order given; places still name the original rows."""
        index = np.arange(len(self))[rows]
        chosen = rows if isinstance(rows, slice) else index
        return Table(
            self.kind,
            {name: taken(values, chosen) for name, values in self.columns.items()},
            partial(place_of_row, self.place, index),
            {name: values[index] for name, values in self.auto.items()},
            {name: values[index] for name, values in self.own.items()},
        )


def stacked(tables: Sequence[Table]) -> Table:
    """Rows of several tables of one kind, one below the other; places name their sources."""
    columns, present = {}, set().union(*(table.columns for table in tables))
    for name, column in tables[0].schema.by_name.items():
        if name in present:
            read = Table.text if column.is_text else Table.number
            columns[name] = np.concatenate([read(table, name) for table in tables])
    return Table(tables[0].kind, columns, partial(_stacked_place, [(len(table), table.place) for table in tables]))


def _stacked_place(parts: Sequence[tuple[int, Place]], row: int, column: str) -> str:
    for length, place in parts:
        if row < length:
            return place(row, column)
        row -= length
    return parts[-1][1](-1, column)


class Words(NamedTuple):
    """A column of words as codes into its distinct values: ``words[codes[row]]``."""

    codes: np.ndarray
    words: Sequence[str]

    def take(self, rows: np.ndarray) -> Words:
        """Words of some of the rows."""
        return Words(self.codes[rows], self.words)


@dataclass(frozen=True, slots=True)
class Keys:
    """Distinct (generation, precision, software) of many rows: ``distinct[codes[row]]``."""

    codes: np.ndarray
    distinct: tuple[tuple[str, str, str], ...]


def coded_words(values: Sequence[str]) -> Words:
    """Codes and distinct values of a column of words."""
    seen = {value: code for code, value in enumerate(dict.fromkeys(values))}
    return Words(np.array(list(map(seen.__getitem__, values)), dtype=np.int64), tuple(seen))


def combined_keys(generation: Words, precision: Words, software: Words) -> Keys:
    """Distinct combinations of three columns of words: generation, precision and software of plans."""
    parts = (generation, precision, software)
    if len(generation.codes) == 1:
        first, second, third = (part.words[part.codes[0]] for part in parts)
        return Keys(np.zeros(1, dtype=np.int64), ((first, second, third),))
    pairs = generation.codes * len(precision.words) + precision.codes
    index = pairs * len(software.words) + software.codes
    present = np.zeros(math.prod(len(part.words) for part in parts), dtype=bool)
    present[index] = True
    values = np.flatnonzero(present)
    place = np.zeros(len(present), dtype=np.int64)
    place[values] = np.arange(len(values))
    distinct = []
    for code in values.tolist():
        pair, third = divmod(code, len(software.words))
        first, second = divmod(pair, len(precision.words))
        distinct.append((generation.words[first], precision.words[second], software.words[third]))
    return Keys(place[index], tuple(distinct))


def key_faults(table: Table) -> list[tuple[int, str, str]]:
    """Faults of keys: (row, column, problem). A network row has name and tier, a calibration row name and scope."""
    key = table.schema.key.name
    if key not in table:
        return []
    if table.kind == "networks":
        return list(_tier_faults(table))
    faults = list(_duplicates(table, [key], key))
    if table.kind == "models":
        faults += _alias_faults(table)
    if table.kind == "calibration" and not faults:
        faults += _duplicates(table, ["family", "generation", "precision", "software", "constant"], "constant")
    return faults


def _duplicates(table: Table, columns: list[str], shown_at: str) -> Iterator[tuple[int, str, str]]:
    words = shown_at.replace("_", " ")
    default = "any" if len(columns) > 1 else ""
    parts = [[str(value).casefold() for value in table.text(column, default)] for column in columns]
    first: dict[tuple[str, ...], int] = {}
    for row, key in enumerate(zip(*parts, strict=True)):
        if not key[-1]:
            continue
        if key in first:
            name = shown(table[shown_at][row] if len(columns) == 1 else "/".join(key))
            where = table.place(first[key], shown_at)
            yield (row, shown_at, f"duplicate {words} {name}; the first is at {where}")
        first.setdefault(key, row)


def _alias_faults(table: Table) -> Iterator[tuple[int, str, str]]:
    owner = {str(name).casefold(): row for row, name in enumerate(table["model"].tolist()) if name}
    for row, word in aliases(table):
        other = owner.setdefault(word.casefold(), row)
        if other != row:
            yield (row, "aliases", f"alias {shown(word)} already means model {shown(table['model'][other])}")


def _tier_faults(table: Table) -> Iterator[tuple[int, str, str]]:
    tiers, sizes = table.number("tier"), table.number("size")
    groups: dict[str, list[int]] = {}
    for row, name in enumerate(table["network"].tolist()):
        if name and not np.isnan(tiers[row]):
            groups.setdefault(str(name).casefold(), []).append(row)
    for rows in groups.values():
        rows.sort(key=lambda row: float(tiers[row]))
        name = shown(table["network"][rows[0]])
        for inner, outer in pairwise(rows):
            if tiers[outer] == tiers[inner]:
                where = table.place(min(inner, outer), "tier")
                problem = f"duplicate tier {tiers[outer]:g} of network {name}; the first is at {where}"
                yield (max(inner, outer), "tier", problem)
            elif sizes[outer] <= sizes[inner]:
                problem = f"size of tier {tiers[outer]:g} of network {name} must be above the {sizes[inner]:g} of"
                yield (outer, "size", f"{problem} tier {tiers[inner]:g}, got {sizes[outer]:g}")
        present = sorted({int(tiers[row]) for row in rows})
        missing = [tier for tier in range(1, present[-1]) if tier not in present]
        if missing:
            listed = ", ".join(str(tier) for tier in missing)
            yield (rows[0], "tier", f"network {name} lacks tier {listed}; tiers count from 1 without gaps")


def values_in_case(table: Table, name: str, case: str) -> np.ndarray:
    """Values of a column in a case (``low``, ``high``) if given, else of the column; blanks have the default."""
    values: np.ndarray = table.filled(name)
    other = f"{name}_{case}"
    if case == "base" or other not in table.schema.by_name or not len(values):
        return values
    given = table.filled(other)
    return np.where(np.isnan(given), values, given)


def columns_of(table: Table, rows: np.ndarray | None = None, case: str = "base") -> Columns:
    """Columns of a table in the units used inside at ``rows``, by default all; NaN or "" for row -1."""
    if rows is None:
        return Columns(lambda name: values_in_case(table, name, case))
    missing = rows < 0
    number = np.count_nonzero(missing)

    def read(name: str) -> np.ndarray:
        values = values_in_case(table, name, case)
        nothing = "" if table.schema.by_name[name].is_text else np.nan
        if number == len(rows):
            return np.full(len(rows), nothing, dtype=values.dtype)
        result: np.ndarray = values[rows]
        if number:
            result[missing] = nothing
        return result

    return Columns(read)


def uncertain_columns(table: Table) -> list[str]:
    """Columns of a table that have a low or a high value in at least one row, in the order of the schema."""
    known = table.schema.by_name
    return [
        name
        for name in known
        if any(other in known and (~np.isnan(table.filled(other))).any() for other in (f"{name}_low", f"{name}_high"))
    ]


MARK = "\x1f"  # separator between a name and the number of a copy of its row, if a sweep gives plans rows of their own


def name_taken(name: str, own: str, spellings: str) -> str:
    """Why a new row cannot have a name beside a row with the name ``own`` and aliases ``spellings``; "" if it can.

    >>> name_taken("llama 8b", "Llama3-8B", "L8;Llama 8B")
    '"llama 8b" is another spelling of "Llama3-8B"; give the new row another name'
    """
    if own.strip().casefold() == name.casefold():
        return f'"{own}" is there already; give the new row another name'
    if name.casefold() in (word.strip() for word in spellings.casefold().split(";")):
        return f'"{name}" is another spelling of "{own}"; give the new row another name'
    return ""


def aliases(table: Table) -> list[tuple[int, str]]:
    """Other spellings of the names of a table: (row, spelling); none if it has no such column."""
    return [
        (row, word.strip())
        for row, text in enumerate(table.text("aliases").tolist() if "aliases" in table.schema.by_name else ())
        for word in str(text).split(";")
        if word.strip()
    ]


def copied_name(name: str) -> str:
    """Name of the row that a copy was made of; any other name as it is."""
    return name.partition(MARK)[0]


# --- rows of tables of plans that hold no plan: units below the header, totals, and notes below the table

Coded = tuple[np.ndarray, Sequence[object] | None]
"""A column as codes into its distinct values, or as numbers (and no distinct values)."""

TOTALS = frozenset(("grand total", *"total totals sum subtotal average mean gesamt summe mittelwert".split()))
_UNITS_ROW = frozenset(("-", "#", "unit", "units", "text"))


def word_of(value: object) -> str:
    """A text without its colon; of another value what messages show, as Python writes out no number of any length."""
    return value.strip().rstrip(":").casefold() if isinstance(value, str) else shown(value)


def label_of(parsed: Header) -> int:
    """Position of a column of the user's own before those of plans, such as a site; -1 without one."""
    first = min((field.position for field in parsed.fields), default=0)
    return next((position for position in parsed.own if position < first), -1)


def is_aside(fields: Sequence[Field], cells: Sequence[object], first: bool, label: object = None) -> bool:
    """Whether a row of a sheet of plans holds no plan: totals in place of a model, or beside its blank cell, or, below
    the header, units that its columns have anyway.
    """
    stated = [(field, cells[field.position]) for field in fields if field.position < len(cells)]
    words = [(field, word_of(value)) for field, value in stated if not is_blank(value)]
    by_name = {field.column.name: word for field, word in words}
    word = by_name.get("model", by_name.get("name", word_of(label)))
    if "accelerator" not in by_name and word in TOTALS:
        return True
    return first and all(
        word.strip("()[]") in _UNITS_ROW | {field.symbol.casefold()} | counted_nouns(field.column)
        for field, word in words
    )


def rows_aside(parsed: Header, columns: Sequence[Coded]) -> list[int]:
    """Rows of a file of plans that hold totals, or units below the header."""
    if parsed.kind not in PLAN_TABLES or not parsed.fields or not len(columns[0][0]):
        return []
    candidates, label = {0}, label_of(parsed)
    names = [field.position for field in parsed.fields if field.column.name in ("name", "model")]
    for position in (*names, *(each for each in (label,) if each >= 0)):
        codes, distinct = columns[position]
        if distinct is not None:
            totals = [code for code, value in enumerate(distinct) if word_of(value) in TOTALS]
            candidates |= {*np.flatnonzero(np.isin(codes, totals)).tolist()} if totals else set()

    def cells(row: int) -> list[object]:
        return [values[row].item() if distinct is None else distinct[values[row]] for values, distinct in columns]

    def is_one(row: int) -> bool:
        values = cells(row)
        return is_aside(parsed.fields, values, row == 0, values[label] if label >= 0 else None)

    return [row for row in sorted(candidates) if is_one(row)]


def end_of_plans(filled: np.ndarray, gap: np.ndarray) -> int:
    """Rows of a table without the notes below it: rows of one value at the end, from a blank row on.

    >>> end_of_plans(np.array([8, 0, 8, 0, 1, 1]), np.array([False, True, False, True, False, False]))
    3
    """
    after = int(np.flatnonzero(filled > 1).max(initial=-1)) + 1
    ends = np.flatnonzero(gap[after:])
    return after + int(ends[0]) if after and len(ends) else len(filled)
