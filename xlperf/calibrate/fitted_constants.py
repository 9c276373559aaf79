"""Rows of the calibration sheet that a fit makes, and the fit set that each one names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from xlperf.base.units import factor
from xlperf.catalog.calibration import ANY, declared_constants
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table

DIGITS = 3


@dataclass(frozen=True, slots=True)
class FittedConstant:
    """One row of the calibration sheet; ``value`` in the unit that ``constants.csv`` declares.

    ``error`` is the median absolute relative error of rows that the constant was not fitted on, where there are any.
    """

    family: str
    generation: str
    precision: str
    software: str
    constant: str
    value: float
    fit_set: str
    num_rows: int
    error: float
    date: str
    source: str
    year: float = math.nan
    kind: str = "measured"
    notes: str = ""

    @property
    def calibration(self) -> str:
        """Name of the row."""
        return "/".join((self.family, self.generation, self.precision, self.software, self.constant))

    @property
    def unit(self) -> str:
        """Unit of the value."""
        return declared_constants()[self.family][self.constant].unit


def without_repeats(rows: Sequence[FittedConstant]) -> list[FittedConstant]:
    """Rows of which the last of those with the same key stays, at the place of the first."""
    return list({row.calibration: row for row in rows}.values())


def calibration_table(rows: Sequence[FittedConstant]) -> Table:
    """Fitted constants as a calibration table.

    ``rows``: in the order of the sheet.
    """
    columns: dict[str, np.ndarray] = {}
    known = {field.name for field in fields(FittedConstant)} | {"calibration", "unit"}
    for column in table_schema("calibration").columns:
        if column.name in known:
            values = [getattr(row, column.name) for row in rows]
            columns[column.name] = np.array(values, dtype=object if column.is_text else np.float64)
    return Table("calibration", columns, lambda row, column: f"fit [{rows[row].calibration}, {column}]")


def joined_tables(first: Table, second: Table) -> Table:
    """Two calibration tables as one; a row of the second replaces one of the first with the same key."""
    keys = ("family", "generation", "precision", "software", "constant")

    def key_of(table: Table) -> list[tuple[str, ...]]:
        parts = [[str(text).casefold() for text in table.text(name, ANY)] for name in keys]
        return list(zip(*parts, strict=True))

    new = set(key_of(second))
    kept = first.take([row for row, key in enumerate(key_of(first)) if key not in new])
    names = [column for column in table_schema("calibration").columns if column.name in kept or column.name in second]
    columns = {}
    for column in names:
        read = Table.text if column.is_text else Table.number
        columns[column.name] = np.concatenate([read(kept, column.name), read(second, column.name)])

    def place(row: int, column: str) -> str:
        return kept.place(row, column) if row < len(kept) else second.place(row - len(kept), column)

    return Table("calibration", columns, place)


def inside_value(family: str, constant: str, value: float) -> float:
    """Value in the unit used inside."""
    return value * factor(declared_constants()[family][constant].unit)


def rounded(value: float) -> float:
    """Value with three significant digits, so that a fit writes what it means.

    >>> rounded(0.000123456), rounded(1.2345), rounded(0.0)
    (0.000123, 1.23, 0.0)
    """
    if value == 0.0 or not math.isfinite(value):
        return value
    return round(value, DIGITS - 1 - math.floor(math.log10(abs(value))))


def fit_set(chosen: Iterable[str], rows: Sequence[str]) -> str:
    """Row names of a fit set, runs of neighbouring rows of the table as ``first-last``.

    >>> fit_set(["a", "b", "c", "e"], ["a", "b", "c", "d", "e"])
    'a-c e'
    """
    wanted = set(chosen)
    runs: list[list[str]] = []
    before = False
    for name in rows:
        if name in wanted:
            if before:
                runs[-1][1:] = [name]
            else:
                runs.append([name])
        before = name in wanted
    return " ".join("-".join(run) for run in runs)
