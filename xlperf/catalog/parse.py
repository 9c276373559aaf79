"""Cell values to columns: headers with units, numbers, flags, choices, blanks, and every fault with its place.

Rows of cells (a sheet, a range that a spreadsheet host sends) and columns of text (a CSV file) go through the same
rules: :func:`table_from_rows` and :func:`table_from_columns`. All faults are collected and raised once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from xlperf.base import resources
from xlperf.base.errors import Fault, Hint, raise_faults
from xlperf.base.units import UNITS
from xlperf.catalog import schema
from xlperf.catalog.cells import (
    BadValue,
    ErrorValue,
    Field,
    Header,
    SparseRow,
    Unsaved,
    as_number,
    as_text,
    cell_text,
    factorise,
    is_blank,
    is_recent,
    number_of,
    other_plans,
    parse_header,
    shown,
)
from xlperf.catalog.table import (
    TOTALS,
    Coded,
    Locate,
    NamedCells,
    Place,
    Table,
    is_aside,
    key_faults,
    label_of,
    nowhere,
    rows_aside,
    word_of,
)

Parsed = tuple[Table, list[Fault]]  # a table, and every fault of its source
_ERRORS = re.compile(r"#(N/A|REF!|VALUE!|DIV/0!|NAME\?|NUM!|NULL!|SPILL!|CALC!|GETTING_DATA|FIELD!|BLOCKED!)|Err:\d+")
_BARE = re.compile(r"[A-Za-z0-9_.]+(?: [A-Za-z0-9_.]+)*")  # a text that is a name as it stands
_HALVES = re.compile("[\ud800-\udfff]")  # of a pair of surrogates: no file and no other program takes one alone
_COMMA = re.compile(r"[+-]?[0-9][0-9.' \u00a0]*(,[0-9]+)+(\.[0-9]+)?")  # of decimals, or between thousands
_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)\s?%")
_KILO = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)\s?[kK]")
_THOUSANDS = re.compile(r"[1-9][0-9]{0,2}(?:\.[0-9]{3})+")  # 2.000, which is two or two thousand
_MOST_COUNTED = 2.0**50
_LARGEST, _SMALLEST = 2.0**200, 2.0**-200  # products of a few such numbers are still numbers
FLAG_WORDS = {"yes": 1.0, "true": 1.0, "1": 1.0, "no": 0.0, "false": 0.0, "0": 0.0}


def convert(field: Field, value: object, from_text: bool = False) -> float | str | None:
    """One cell value as the table holds it; None for the word ``auto``, BadValue with the problem in words."""
    kind = field.column.kind
    if isinstance(value, str):
        value = value.strip()
        if value[:1] in "#E" and _ERRORS.fullmatch(value):
            value = ErrorValue(value)
    if isinstance(value, Unsaved):
        computed = "whose value nobody has computed (the file holds 0 for all)"
        problem = computed if value.is_zero else "without a saved value"
        remedy = "open and save it once in Excel or LibreOffice, or enter a value"
        raise BadValue(f"{field.words} is a formula {problem}; {remedy}")
    if is_blank(value):
        if field.column.required:
            remedy = f"; it must be {field.expects}" if kind in ("number", "flag", "choice") else ""
            raise BadValue(f"{field.words} is missing{remedy}")
        return float("nan") if kind in ("number", "flag") else ""
    if isinstance(value, str) and value.casefold() == "auto":
        if field.column.may_be_auto:
            return None
        if value.casefold() in field.column.choices:
            return "auto"
        if field.column.table in schema.PLAN_TABLES and kind in ("number", "flag", "choice"):
            raise BadValue(f"{field.words} cannot be auto: no search chooses it, write a value")
    if kind == "number":
        return _number(field, value, from_text)
    if kind == "flag":
        return _flag(field, value)
    return _choice(field, value) if kind == "choice" else _text(field, value)


def _number(field: Field, value: object, from_text: bool) -> float:
    number = math.nan
    if is_recent(value):
        raise BadValue(f"{field.words} must be {field.expects}, got {shown(value)}; format the cell as a number")
    value = as_number(value)
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        with suppress(OverflowError):
            number = float(value)
    elif isinstance(value, str):
        number = number_of(value)
        percent = _PERCENT.fullmatch(value.strip())
        if percent and field.high == 1.0 and field.factor == 1.0:
            number, from_text = float(percent[1]) / 100.0, True
        measured = _with_unit(field, value)
        if math.isfinite(measured):
            number, from_text = measured, True
        if not from_text and math.isfinite(number):
            point = ", without a thousands separator" if _THOUSANDS.fullmatch(value.strip()) else ""
            text = f"got the text {shown(value)}; enter it as a number{point}"
            raise BadValue(f"{field.words} must be {field.expects}, {text}")
    if not math.isfinite(number):
        remedy = _comma_words(value) if isinstance(value, str) else ""
        raise BadValue(f"{field.words} must be {field.expects}, got {shown(value)}{remedy}")
    if from_text and field.whole and isinstance(value, str) and _THOUSANDS.fullmatch(value.strip()):
        plain = value.strip().replace(".", "")
        raise BadValue(f"{field.words} must be {field.expects}, got {shown(value)}; write {plain} or {number:.0f}")
    inside = number * field.factor
    result = shown(value if from_text else number)
    if not _within(field, inside):
        raise BadValue(f"{field.words} must be {field.expected(inside)}, got {result}")
    if _beyond(field, inside):
        raise BadValue(f"{field.words} must be {field.expects}, got {result}, beyond what can be computed with")
    return inside


def _with_unit(field: Field, text: str) -> float:
    """A number with a unit of the column's dimension, as 600 kW of MW, in the unit of the header; NaN for others."""
    stated, own = _AMOUNT.fullmatch(text.strip()), schema.unit_of(field.column)
    given = UNITS.get(stated[2] or "") if stated else None
    if stated is None or given is None or own.symbol == "-" or given.dimension != own.dimension:
        return math.nan
    return float(f"{number_of(stated[1].replace(',', '')) * given.factor / field.factor:.15g}")


def _comma_words(text: str) -> str:
    """Advice for a number with a decimal comma, with commas between thousands, or with a k; else nothing.

    >>> print(_comma_words("0,9"), _comma_words("1,024,000"), _comma_words("8k"))
    , which has a decimal comma; write 0.9 , which has thousands separators; write 1024000 ; write 8000 or 8192
    """
    thousands = _KILO.fullmatch(text.strip())
    if thousands:
        return f"; write {float(thousands[1]) * 1000:.0f} or {float(thousands[1]) * 1024:.0f}"
    match = _COMMA.fullmatch(text.strip())
    if match is None:
        return ""
    digits = re.sub(r"[' \u00a0]", "", text.strip())
    whole, decimals = digits.replace(",", ""), digits.replace(".", "").replace(",", ".")
    if digits.count(",") > 1 or match[2]:
        return f", which has thousands separators; write {whole}"
    if "." not in digits and len(digits.partition(",")[2]) == 3 and not digits.startswith("0"):
        return f", which has a decimal comma or a thousands separator; write {decimals} or {whole}"
    return f", which has a decimal comma; write {decimals}"


def _within(field: Field, inside: Any) -> Any:
    """Whether a value in the unit used inside, or each of an array, is within the bounds, and whole if it must be."""
    within = (inside >= field.low) & (inside <= field.high) & ((not field.exclusive) | (inside != field.low))
    return within & ((not field.whole) | (inside == np.floor(inside)))


def _beyond(field: Field, inside: Any) -> Any:
    """Whether a value, or each of an array, is so large, or so near to a 0 that is refused, that no number follows."""
    size = abs(inside)
    return (size > (_MOST_COUNTED if field.whole else _LARGEST)) | (field.exclusive & (size < _SMALLEST))


def _flag(field: Field, value: object) -> float:
    value = as_number(value)
    if isinstance(value, (bool, int, float, np.bool_, np.number)) and value in (0, 1):
        return float(value)
    if isinstance(value, str) and value.casefold() in FLAG_WORDS:
        return FLAG_WORDS[value.casefold()]
    raise BadValue(f"{field.words} must be yes or no, got {shown(value)}")


def _choice(field: Field, value: object) -> str:
    if isinstance(value, str):
        spelled = re.sub(r"[\s_\-()]+", "-", value.casefold()).strip("-")
        spelled = schema.choice_aliases().get(spelled, spelled) if spelled not in field.column.choices else spelled
        for choice in field.column.choices:
            if choice.casefold() == spelled:
                return choice
    raise BadValue(f"{field.words} must be {field.expects}, got {shown(value)}")


def _text(field: Field, value: object) -> str:
    if isinstance(value, str) and _HALVES.search(value):
        raise BadValue(f"{field.words} must be text, got {shown(value)}, which holds half a character")
    text = as_text(value)
    if text is None:
        raise BadValue(f"{field.words} must be text, got {shown(value)}")
    return text


class _Collector:
    """Faults with the row and position that order them."""

    def __init__(self, locate: Locate) -> None:
        self.locate = locate
        self._found: dict[tuple[int, int], list[tuple[str, Hint | None]]] = {}

    def add(self, row: int, position: int, problem: str, hint: Hint | None = None) -> None:
        self._found.setdefault((row, position), []).append((problem, hint))

    def has(self, row: int, position: int) -> bool:
        return (row, position) in self._found

    def header(self, parsed: Header) -> None:
        for position, problem, other, hint in parsed.faults:
            clause = f"; the first is at {self.locate(-1, other)}" if other >= 0 else ""
            self.add(-1, position, problem + clause, hint)

    def unnamed(self, kind: str, cell: object, row: int, position: int, value: object) -> None:
        """Note a value below a blank header, or below one of the other kind of plans."""
        if is_blank(cell):
            self.add(row, position, f"a value without a header, got {shown(value)}")
        elif not self.has(-1, position):
            other = other_plans(kind, schema.split_header(cell)[0])
            words = f"it is a column of {other} plans, these are {kind} plans"
            self.add(-1, position, f"unknown column {shown(cell)}", lambda: words)

    def faults(self) -> list[Fault]:
        return [Fault(self.locate(*place), *words) for place in sorted(self._found) for words in self._found[place]]


def parse_rows(
    kind: str, header: Sequence[object], rows: Sequence[Sequence[object]], locate: Locate, skip_empty: bool = True
) -> Parsed:
    """Rows of cells, of which short ones are blank at the end, as a table with every fault; a faulty value is blank
    there. ``skip_empty`` leaves out rows that are blank in every input column, a row of units below the header and rows
    of totals; places still name the original rows.
    """
    parsed = parse_header(kind, header)
    collector = _Collector(locate)
    collector.header(parsed)
    fields, unnamed = parsed.fields, frozenset(parsed.unnamed)
    label = label_of(parsed)
    kept: list[int] = []
    for row, cells in enumerate(rows):
        width = len(cells)
        filled = (cells[field.position] for field in fields if field.position < width)
        first = next((value for value in filled if not is_blank(value)), None)
        named = cells[label] if 0 <= label < width else None
        odd = kind in schema.PLAN_TABLES and (row == 0 or word_of(first) in TOTALS or word_of(named) in TOTALS)
        if skip_empty and (first is None or (odd and is_aside(fields, cells, row == 0, named))):
            continue
        for position in parsed.unnamed if not isinstance(cells, SparseRow) else cells.filled(unnamed):
            if position < width and not is_blank(cells[position]):
                collector.unnamed(parsed.kind, header[position], row, position, cells[position])
        kept.append(row)

    def values_at(at: int) -> list[object]:
        return [rows[row][at] if at < len(rows[row]) else None for row in kept]

    def coded_at(at: int) -> Coded:
        """Codes of equal values of one type, as 1, 1.0 and TRUE differ."""
        values = values_at(at)
        pairs = [
            (value.__class__, value if isinstance(value, (str, float, int)) else n) for n, value in enumerate(values)
        ]
        codes = factorise(pairs)[0]
        return codes, [values[first] for first in np.unique(codes, return_index=True)[1].tolist()]

    return _table(parsed, header, coded_at, lambda at: _own(values_at(at)), kept, collector, from_text=False)


def _with_named_software(columns: dict[str, np.ndarray]) -> None:
    """Software of plans in the spelling of its stack; a release beside its name counts unless another is stated."""
    names = columns["software"]
    known = {name: schema.spelled_software(name) for name in set(names.tolist())}
    if all(both == (name, "") for name, both in known.items()):
        return
    columns["software"], releases = (np.array([known[name][at] for name in names], dtype=object) for at in (0, 1))
    stated = columns.get("software_release", np.full(len(names), "", dtype=object))
    if releases.any():
        columns["software_release"] = np.where(stated == "", releases, stated)


def _table(
    parsed: Header, header: Sequence[object], coded_at: Callable[[int], Coded], own_at: Callable[[int], np.ndarray],
    rows: Sequence[int], collector: _Collector, from_text: bool,
) -> Parsed:  # fmt: skip
    """A table of the columns at the positions of a header, and of the user's own columns, with every fault."""
    columns: dict[str, np.ndarray] = {}
    auto: dict[str, np.ndarray] = {}
    for field in parsed.fields:
        values, distinct = coded_at(field.position)
        if distinct is None:
            columns[field.column.name] = _numbers(field, values, collector)
            continue
        columns[field.column.name], mask = _expand(field, values, distinct, collector, None if from_text else rows)
        if mask is not None:
            auto[field.column.name] = mask
    if parsed.kind in schema.PLAN_TABLES and "software" in columns:
        _with_named_software(columns)
    positions = {field.column.name: field.position for field in parsed.fields}
    stated = {at: header[at] for at in parsed.own}
    own = {" ".join(text.split()) if isinstance(text, str) else shown(text): own_at(at) for at, text in stated.items()}
    table = Table(parsed.kind, columns, NamedCells(collector.locate, rows, positions), auto, own)
    for field in parsed.fields:
        # Blank cells whose substitute, the column `instead`, is blank too.
        other, values = field.column.instead, columns[field.column.name]
        blank = values == "" if field.column.is_text else np.isnan(values)
        for row in np.flatnonzero(blank & (table.text(other) == "")).tolist() if other else ():
            if not collector.has(rows[row], field.position):
                collector.add(rows[row], field.position, f"{field.words} is missing; it must be {field.expects}")
    if parsed.kind in schema.EVERY_TABLE:
        for row, column, problem in key_faults(table):
            collector.add(rows[row], positions.get(column, -1), problem)
    return table, collector.faults()


def _own(values: Sequence[object]) -> np.ndarray:
    """A column of the user's own as it is: numbers if all of its cells are, else texts."""
    numbers = [value for value in map(as_number, values) if not is_blank(value)]
    if numbers and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in numbers):
        results = [as_number(value) for value in values]
        return np.array([math.nan if is_blank(value) else value for value in results], dtype=np.float64)
    return np.array(["" if is_blank(value) else cell_text(value) for value in values], dtype=object)


def _kept_place(locate: Locate, rows: np.ndarray, row: int, position: int) -> str:
    return locate(int(rows[row]) if row >= 0 else row, position)


def parse_coded(kind: str, header: Sequence[object], columns: Sequence[Coded], locate: Locate) -> Parsed:
    """Columns given as codes into distinct values, or as numbers, as a table, with every fault."""
    parsed = parse_header(kind, header)
    if asides := rows_aside(parsed, columns):
        rows_kept = np.setdiff1d(np.arange(len(columns[0][0])), asides)
        columns = [(values[rows_kept], distinct) for values, distinct in columns]
        locate = partial(_kept_place, locate, rows_kept)
    collector = _Collector(locate)
    collector.header(parsed)
    for position in parsed.unnamed:
        values, distinct = columns[position]
        if distinct is None:
            codes = np.flatnonzero(~np.isnan(values))[:1]  # a number in every row says no more than one
            results = [(int(row), values[row].item()) for row in codes]
        else:
            rows = dict(zip(*(part.tolist() for part in np.unique(values, return_index=True)), strict=True))
            results = [(rows[code], value) for code, value in enumerate(distinct) if code in rows]
        for row, value in results:
            if not is_blank(value):
                collector.unnamed(kind, header[position], row, position, value)

    def own_at(at: int) -> np.ndarray:
        values, distinct = columns[at]
        if distinct is None:
            return values.astype(np.float64)
        texts = ["" if is_blank(value) else cell_text(value) for value in distinct]
        return np.array([*texts, ""], dtype=object)[values]

    every = range(len(columns[0][0]) if columns else 0)
    return _table(parsed, header, columns.__getitem__, own_at, every, collector, from_text=True)


def _expand(
    field: Field, codes: np.ndarray, distinct: Sequence[object], collector: _Collector,
    rows: Sequence[int] | None = None,
) -> tuple[np.ndarray, np.ndarray | None]:  # fmt: skip
    """Values of a column and which are ``auto``, each distinct one converted once; without ``rows`` of a text file."""
    blank: float | str = "" if field.column.is_text else float("nan")
    results: list[float | str] = []
    autos: list[int] = []
    problems: dict[int, str] = {}
    plain = field.column.kind in ("name", "text") and not field.column.may_be_auto
    for code, value in enumerate(distinct):
        if plain and type(value) is str and _BARE.fullmatch(value):
            results.append(value)
            continue
        try:
            result = convert(field, value, from_text=rows is None)
        except BadValue as bad:
            problems[code] = str(bad)
            result = blank
        if result is None:
            autos.append(code)
            result = blank
        results.append(result)
    if problems:
        faulty = np.flatnonzero(np.isin(codes, list(problems)))
        for row, code in zip(faulty.tolist(), codes[faulty].tolist(), strict=True):
            collector.add(row if rows is None else rows[row], field.position, problems[code])
    values = field.column.array(results)
    return values[codes] if results else values, np.isin(codes, autos) if autos else None


def _numbers(field: Field, values: np.ndarray, collector: _Collector) -> np.ndarray:
    """Numbers of a number or flag column; anything else goes through its distinct values."""
    if field.column.kind != "number" or values.dtype == np.bool_:
        distinct, codes = np.unique(values, return_inverse=True)
        return _expand(field, codes.reshape(-1), distinct.tolist(), collector)[0]
    numbers = values.astype(np.float64)
    inside = numbers * field.factor
    fine = np.isfinite(inside) & _within(field, inside)
    if not field.column.required:
        fine |= np.isnan(numbers)
    for row in np.flatnonzero(~fine).tolist():
        if np.isnan(numbers[row]):
            collector.add(row, field.position, f"{field.words} is missing; it must be {field.expects}")
        else:
            expected = field.expected(inside[row])
            collector.add(row, field.position, f"{field.words} must be {expected}, got {shown(numbers[row])}")
    for row in np.flatnonzero(fine & _beyond(field, inside)).tolist():
        problem = f"must be {field.expects}, got {shown(numbers[row])}, beyond what can be computed with"
        collector.add(row, field.position, f"{field.words} {problem}")
    return np.where(fine, inside, np.nan)


def _coded(values: np.ndarray) -> Coded:
    if values.dtype.kind in "fiub":
        return values, None
    if values.dtype.kind in "mM":
        values = values.astype(f"{values.dtype.kind}8[us]")
    return factorise(values.tolist())


def table_from_rows(
    kind: str, header: Sequence[object], rows: Sequence[Sequence[object]], place: Place = nowhere,
    skip_empty: bool = True,
) -> Table:  # fmt: skip
    """Rows of cells as a table in the units used inside, without result columns; InputError has every fault. Without
    ``skip_empty`` blank rows are faults if a column is required.

    >>> table_from_rows("training", ["model", "accelerator", "num accelerators"], [["a", "b", 8]])["num_accelerators"]
    array([8.])
    """
    table, faults = parse_rows(kind, header, rows, _by_name(header, place, kind), skip_empty)
    raise_faults(faults)
    return table


def table_from_columns(kind: str, columns: Mapping[str, np.ndarray], place: Place = nowhere) -> Table:
    """Columns by header, of numbers, booleans or text, as by :func:`table_from_rows`, fast for many rows."""
    header = list(columns)
    coded = [_coded(np.asarray(values)) for values in columns.values()]
    table, faults = parse_coded(kind, header, coded, _by_name(header, place, kind))
    raise_faults(faults)
    return table


def _by_name(header: Sequence[object], place: Place, kind: str) -> Locate:
    """Places by position, from places by name: the canonical name if the schema has the column."""
    known = schema.table_schema(kind).by_name
    texts = ["" if cell is None else str(cell) for cell in header]
    names = [schema.split_header(text)[0] for text in texts]
    columns = [name if name in known else text for name, text in zip(names, texts, strict=True)]
    return partial(_named_place, place, columns)


def _named_place(place: Place, columns: Sequence[str], row: int, position: int) -> str:
    return place(row, columns[position] if 0 <= position < len(columns) else "")


def amount_of(declared: schema.Column, text: str) -> float:
    """A number in the unit of an entry, from a text with that unit, another one of its kind or none; NaN for others.

    >>> from xlperf.catalog.schema import column
    >>> [amount_of(column("train", "training_tokens"), words) for words in ("15", "15 T")]
    [15.0, 15.0]
    >>> [amount_of(column("serve", "users"), words) for words in ("10k", "10,000", "10 kg")]
    [10000.0, 10000.0, nan]
    """
    stated = _AMOUNT.fullmatch(text.strip())
    if stated is None:
        return number_of(text)
    number, symbol = number_of(stated[1].replace(",", "")), stated[2]
    own, given = schema.unit_of(declared), UNITS.get(symbol)
    if given is None or given.dimension != own.dimension:
        return number if not symbol else float("nan")
    return float(f"{number * given.factor / own.factor:.15g}")


def plain_number(declared: schema.Column, text: str) -> str:
    """The text of an entry without a unit or parted thousands."""
    number = amount_of(declared, text) if declared.kind == "number" else float("nan")
    return text if number != number or number == number_of(text) else f"{number:.15g}"


_AMOUNT = re.compile(r"([-+]?(?:\d{1,3}(?:,\d{3})+|\d*)(?:\.\d*)?(?:[eE][-+]?\d+)?)\s*([A-Za-z][\w/]*)?")
"""A number, with thousands parted by commas or not, and a unit."""


_THOUSAND, _YEARS = 1000.0, ("first_year", "owned_since")  # [-]; entries that are no amounts


def entry_words(declared: schema.Column, value: str) -> str:
    """An entry in words: its name and its value, a number with its unit.

    >>> from xlperf.catalog.schema import column
    >>> entry_words(column("serve", "ttft_target"), "2000"), entry_words(column("serve", "model"), "GPT")
    ('ttft target 2,000 ms', 'model GPT')
    """
    number = number_of(value) if declared.kind == "number" else float("nan")
    if number != number:
        return f"{declared.words} {value}"
    if number >= _THOUSAND and number.is_integer() and declared.name not in _YEARS:
        value = f"{number:,.0f}"
    return f"{declared.words} {value} {declared.unit if declared.unit != '-' else ''}".rstrip()


def asked_words(kind: str, form: Mapping[str, str]) -> str:
    """The stated entries of a form, without those that have no effect beside the others (``silent_entries.csv``)."""
    known = schema.table_schema(kind).by_name
    silent = {
        name for row in resources.rows("catalog/silent_entries.csv")
        if row["form"] == kind and form.get(row["entry"], "") == row["value"] for name in row["without effect"].split()
    }  # fmt: skip
    said = {name: value for name, value in form.items() if value not in ("", "auto") and name not in silent}
    return ", ".join(entry_words(known[name], value) for name, value in said.items())
