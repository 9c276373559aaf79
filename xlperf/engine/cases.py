"""Low, base and high case of the cost sheets: columns that have a value for each."""

from __future__ import annotations

import numpy as np

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
