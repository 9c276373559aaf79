"""Rows of sheets that other sheets name, in the low, base or high case of the columns that have one."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Columns
from xlperf.catalog.table import Table

CASES = ("low", "base", "high")


def values_in_case(table: Table, name: str, case: str) -> np.ndarray:
    """Values of a column in one of the cases, blanks as the schema has them.

    Parameters
    ----------
    table : Table
        A table of a cost sheet.
    name : str
        Column.
    case : str
        ``low`` or ``high``: the values of the column of that case where they are given; ``base``: the column's own.

    Returns
    -------
    np.ndarray
        In the units used inside, one per row.
    """
    values: np.ndarray = table.filled(name)
    other = f"{name}_{case}"
    if case == "base" or other not in table.schema.by_name or not len(values):
        return values
    given = table.filled(other)
    return np.where(np.isnan(given), values, given)


def columns_of(table: Table, rows: np.ndarray | None = None, case: str = "base") -> Columns:
    """Columns of a table for the equations.

    Parameters
    ----------
    table : Table
        Any sheet.
    rows : array of int, optional
        Row of each result; NaN or "" where it is -1. All rows in their order where it is not given.
    case : str, default "base"
        As :func:`values_in_case`.

    Returns
    -------
    Columns
        In the units used inside.
    """
    if rows is None:
        return Columns(lambda name: values_in_case(table, name, case))
    missing = rows < 0
    number = np.count_nonzero(missing)

    def read(name: str) -> np.ndarray:
        values = values_in_case(table, name, case)
        nothing = "" if table.schema.by_name[name].is_text else np.nan
        if number == len(rows):
            return np.full(len(rows), nothing, dtype=values.dtype)
        found: np.ndarray = values[rows]
        if number:
            found[missing] = nothing
        return found

    return Columns(read)


def uncertain_columns(table: Table) -> list[str]:
    """Columns of a table that have a low or a high value in at least one row.

    Parameters
    ----------
    table : Table
        A table of a cost sheet.

    Returns
    -------
    list of str
        In the order of the schema.
    """
    known = table.schema.by_name
    return [
        name
        for name in known
        if any(other in known and (~np.isnan(table.filled(other))).any() for other in (f"{name}_low", f"{name}_high"))
    ]
