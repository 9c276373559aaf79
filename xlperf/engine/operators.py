"""Rows of operators as a table."""

from __future__ import annotations

import numpy as np

from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table

Row = dict[str, object]


def operators_table(rows: list[Row]) -> Table:
    """Rows of operators as a table of kind ``operators``.

    Parameters
    ----------
    rows : list of dict
        Column name -> value in the units used inside; missing numbers are NaN.

    Returns
    -------
    Table
        One row per operator.
    """
    columns: dict[str, np.ndarray] = {}
    for column in table_schema("operators").columns:
        if column.is_text:
            columns[column.name] = np.array([str(row.get(column.name, "")) for row in rows], dtype=object)
        else:
            columns[column.name] = np.array([row.get(column.name, np.nan) for row in rows], dtype=np.float64)
    return Table("operators", columns)


def operator_row(
    phase: str, name: str, family: str, calls: float, time: float, exposed: float | None = None, **numbers: float
) -> Row:
    """One operator; total time, exposed time and arithmetic intensity follow from the rest.

    Parameters
    ----------
    phase, name, family : str
        Where it runs, what it is, which calibration times it.
    calls : float
        Times per step or phase. [-]
    time : float
        Time of one call in full. [s]
    exposed : float, optional
        Part of one call that nothing hides; all of it where it is not given. [s]
    **numbers : float
        Other number columns of ``operators``, in the units used inside.

    Returns
    -------
    dict
        A row for :func:`operators_table`.
    """
    row: Row = {"phase": phase, "operator": name, "family": family, "calls": calls, "time": time}
    row.update(numbers)
    row["total_time"] = calls * time
    row["exposed_time"] = calls * (time if exposed is None else exposed)
    traffic = numbers.get("traffic", np.nan)
    row["arithmetic_intensity"] = numbers.get("flop", np.nan) / traffic if traffic > 0 else np.nan
    return row
