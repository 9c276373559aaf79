"""Published measurements as they are printed: rows of a CSV file, or of the sheets of ``validation.xlsx``.

``published_columns.csv`` beside this module names the columns. What a row becomes is said in
:mod:`xlperf.calibrate.published_training` and :mod:`xlperf.calibrate.published_inference`.
"""

from __future__ import annotations

import csv
import difflib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.cells import DateNumber, ErrorValue, Unsaved, is_blank, number_of, shown
from xlperf.catalog.csv_files import read_csv
from xlperf.catalog.table import Place, Table, column_letters
from xlperf.catalog.xlsx import Workbook

KINDS = ("training", "inference")
POWER = "power"
"""Kind of the rows of measured power: a sheet of its own, for nothing but times is fitted on the others."""
MOST_VALUES = 10_000_000
"""Cells, blank ones among them, of a sheet of published rows. [-]"""
_REQUIRED = ("row_id", "model", "gpu", "n_gpus")
_YES = {"true": 1.0, "yes": 1.0, "1": 1.0, "1.0": 1.0, "false": 0.0, "no": 0.0, "0": 0.0, "0.0": 0.0}


@cache
def published_columns() -> dict[str, dict[str, str]]:
    """Columns of published rows: kind of sheet -> column -> text, number or flag.

    >>> published_columns()["training"]["iter_time_s"]
    'number'
    """
    columns: dict[str, dict[str, str]] = {kind: {} for kind in (*KINDS, POWER)}
    for row in package_rows("published_columns.csv"):
        columns[row["table"]][row["column"]] = row["kind"]
    return columns


def package_rows(name: str) -> list[dict[str, str]]:
    """Rows of a data table that lies beside this module."""
    lines = files("xlperf.calibrate").joinpath(name).read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(lines))


@dataclass(frozen=True)
class Published:
    """Published rows of one kind, column by column.

    Attributes
    ----------
    kind : str
        ``training`` or ``inference``.
    text : mapping of str to list of str
        Every column of the kind as text, "" where blank.
    number : mapping of str to array
        Number and flag columns as float64, NaN where blank.
    place : callable
        ``place(row, column)`` says where a value stands.
    """

    kind: str
    text: Mapping[str, list[str]]
    number: Mapping[str, Array]
    place: Place = field(compare=False)

    def __len__(self) -> int:
        return len(self.text["row_id"])

    def take(self, rows: Sequence[int] | np.ndarray) -> Published:
        """Some rows, in the order given."""
        index = np.asarray(rows, dtype=np.int64)
        place = self.place
        return Published(
            self.kind,
            {name: [values[row] for row in index] for name, values in self.text.items()},
            {name: values[index] for name, values in self.number.items()},
            lambda row, column: place(int(index[row]), column),
        )


@dataclass(frozen=True)
class PublishedPlans:
    """Published rows turned into plans.

    Attributes
    ----------
    published : Published
        The rows.
    plans : Table
        Plans of the rows that state enough; their models may be names that only ``catalog`` knows.
    index : np.ndarray
        Row of ``published`` of each plan. [-]
    reference : np.ndarray
        Plan that a ratio is to be taken with, -1 for none. [-]
    reasons : np.ndarray
        Why a row is not a plan, "" where it is; one per row of ``published``.
    notes : np.ndarray
        What was assumed; one per row of ``published``.
    catalog : Catalog
        The given catalog with models of the printed shapes added.
    """

    published: Published
    plans: Table
    index: np.ndarray
    reference: np.ndarray
    reasons: np.ndarray
    notes: np.ndarray
    catalog: Catalog


def read_published(path: str | Path) -> list[Published]:
    """Read published rows from a CSV file, or from the sheets ``training`` and ``inference`` of a workbook.

    ``path``: file with the columns of ``published_columns.csv``; missing columns are blank, others are ignored unless
    they look like a misspelt one. Returns one per kind found. Raises InputError with every fault: unreadable file,
    missing columns, values that are no numbers.
    """
    path = Path(path)
    if path.suffix.lower() in (".xlsx", ".xlsm"):
        return _from_workbook(path)
    return [_from_csv(path)]


def _from_csv(path: Path) -> Published:
    if path.suffix.lower() == ".parquet":
        raise InputError(Fault(path.name, "published rows are read from a workbook (.xlsx) or CSV, got a Parquet file"))
    file = read_csv(path)
    header = [name.strip() for name in file.header]
    texts = [
        [str(distinct[code]) for code in codes.tolist()] for codes, distinct in file.columns if distinct is not None
    ]

    def place(row: int, column: str) -> str:
        line = int(file.locate.lines[row]) if row >= 0 else 0
        return f"{path.name} [line {line}, {column}]" if row >= 0 else f"{path.name} [header]"

    return published_rows(header, list(zip(*texts, strict=True)), place)


def _from_workbook(path: Path) -> list[Published]:
    found = []
    for kind in KINDS:
        sheet = sheet_rows(path, kind, "row_id")
        if sheet is not None:
            header, rows, place = sheet
            found.append(published_rows(header, rows, place))
    if not found:
        raise InputError(Fault(path.name, "has neither a sheet training nor a sheet inference with a column row_id"))
    return found


def read_power(path: str | Path) -> list[Published]:
    """Rows of measured power of a workbook: of its sheet ``power``; none where it has no such sheet, or of a CSV file.

    ``path``: workbook. Raises InputError with every fault.
    """
    path = Path(path)
    sheet = sheet_rows(path, POWER, "row_id") if path.suffix.lower() in (".xlsx", ".xlsm") else None
    return [] if sheet is None else [published_rows(*sheet)]


def sheet_rows(path: Path, name: str, first: str) -> tuple[list[str], list[list[str]], Place] | None:
    """Header and rows of a sheet as text.

    ``name``: sheet. ``first``: header of the column that every table of this sort has; the row that holds it is the
    header. Returns header, rows, and ``place(row, column)``; nothing when there is no such sheet or header. Raises
    InputError when the workbook cannot be read, or a value is an error or an unsaved formula.
    """
    with Workbook(path) as book:
        sheet = book.sheet(name)
        cells = book.cells(sheet) if sheet is not None else {}
        top = next((row for row in sorted(cells) if first in cells[row].values()), None)
        if top is None or sheet is None:
            return None
        columns = {str(value).strip(): column for column, value in cells[top].items() if not is_blank(value)}
        numbers = [row for row in sorted(cells) if row > top]
        if len(numbers) * len(columns) > MOST_VALUES:
            problem = f"holds {len(numbers):,} rows of {len(columns):,} columns; {MOST_VALUES:,} values are the most"
            raise InputError(Fault(f"{book.name} [{sheet}]", problem))
        where = f"{book.name} [{sheet}!"

        def place(row: int, column: str) -> str:
            letters = column_letters(columns.get(column, min(columns.values())))
            return f"{where}{letters}{numbers[row] if row >= 0 else top}]"

        faults = [
            Fault(place(row, name), f"{name} is {shown(cells[number][column])}; enter a value")
            for row, number in enumerate(numbers)
            for name, column in columns.items()
            if isinstance(cells[number].get(column), (ErrorValue, Unsaved))
        ]
        if faults:
            raise InputError(faults)
        rows = [[_plain(cells[number].get(column)) for column in columns.values()] for number in numbers]
    return list(columns), rows, place


def _plain(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, DateNumber):
        return value.text
    if isinstance(value, float):
        return f"{value:.15g}" if value.is_integer() else repr(value)
    return str(value)


def published_rows(header: Sequence[str], rows: Sequence[Sequence[str]], place: Place) -> Published:
    """Check a header and its rows.

    ``header``: column names. ``rows``: values as text, as many as the header has. ``place``: ``place(row, column)``
    says where a value stands; row -1 is the header. Returns the rows: of measured power if there is a column
    ``avg_power_w_per_gpu``, else inference if there is a column ``isl``. Raises InputError with every fault found.
    """
    kind = POWER if "avg_power_w_per_gpu" in header else "inference" if "isl" in header else "training"
    columns = published_columns()[kind]
    position = {name: number for number, name in enumerate(header)}
    faults = _header_faults(header, columns, place)
    if faults:
        raise InputError(faults)
    text = {
        name: [row[position[name]].strip() for row in rows] if name in position else [""] * len(rows)
        for name in columns
    }
    number: dict[str, Array] = {}
    for name, sort in columns.items():
        if sort != "text":
            number[name] = _numbers(text[name], name, sort, place, faults)
    seen: dict[str, int] = {}
    for row, row_id in enumerate(text["row_id"]):
        if not row_id:
            faults.append(Fault(place(row, "row_id"), "row_id is blank; each published row needs a name"))
        elif row_id in seen:
            faults.append(Fault(place(row, "row_id"), f'"{row_id}" is the name of an earlier row too'))
        seen[row_id] = row
    if faults:
        raise InputError(faults)
    return Published(kind, text, number, place)


def _header_faults(header: Sequence[str], columns: Mapping[str, str], place: Place) -> list[Fault]:
    where = place(-1, "row_id")
    faults = [Fault(where, f"has no column {name}") for name in _REQUIRED if name not in header]
    missing = [name for name in columns if name not in header]
    for name in header:
        if name and name not in columns:
            close = difflib.get_close_matches(name, missing, n=1, cutoff=0.8)
            if close:
                faults.append(Fault(where, f'has a column "{name}"; did you mean {close[0]}?'))
    for name in sorted(name for name, number in Counter(header).items() if name and number > 1):
        faults.append(Fault(where, f'has the column "{name}" more than once'))
    return faults


def _numbers(values: Sequence[str], name: str, sort: str, place: Place, faults: list[Fault]) -> Array:
    parsed = np.full(len(values), np.nan)
    for row, value in enumerate(values):
        if not value:
            continue
        try:
            parsed[row] = _YES[value.casefold()] if sort == "flag" else number_of(value)
        except KeyError:
            wanted = "True or False" if sort == "flag" else "a number"
            faults.append(Fault(place(row, name), f'{name} must be {wanted}, got "{value[:60]}"'))
            continue
        if not math.isfinite(parsed[row]):
            faults.append(Fault(place(row, name), f'{name} must be a number, got "{value[:60]}"'))
    return parsed
