"""Columns as people read them: in the units of their headers, with four digits; and the columns that a view shows.

Commands import this module before they run: it imports numpy only where it computes.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

from xlperf.base.errors import printable
from xlperf.base.resources import rows
from xlperf.catalog.schema import EVERY_TABLE, PLAN_TABLES, Column, own_column, unit_of

if TYPE_CHECKING:
    import numpy as np

    from xlperf.catalog.table import Table

Part = tuple[Column, "np.ndarray"]
"""A column and its values in the unit used inside."""
DIGITS, _WHOLE = 4, 10_000.0
FLAGS = ("flag", "result-flag")


def parts(*tables: Table) -> list[Part]:
    """Columns of tables of equal length side by side, with their schema; a table's own ones after the others."""
    columns: list[Part] = []
    for table in tables:
        columns += [(table.schema.by_name[name], values) for name, values in table.columns.items()]
        columns += [(own_column(header, values.dtype == object), values) for header, values in table.own.items()]
    return columns


def shown(column: Column, values: np.ndarray) -> np.ndarray:
    """Values in the unit of the column; entries of a sheet as typed, 15 rather than 15.000000000000002."""
    import numpy as np

    factor = unit_of(column).factor
    if column.is_text or factor == 1.0:
        return values
    scaled = values / factor
    if column.table in EVERY_TABLE or column.table in PLAN_TABLES:
        entered = np.array([float(f"{value:.15g}") for value in scaled.tolist()])
        scaled = np.where(entered * factor == values, entered, scaled)
    return scaled


def values_of(column: Column, values: np.ndarray) -> list[str | float | bool | None]:
    """Values for JSON, in the unit of the column: whole numbers without a point, None if blank or not finite.

    >>> import numpy as np
    >>> from xlperf.catalog.schema import column
    >>> values_of(column("training_results", "fits"), np.array([1.0, 0.0, float("nan")]))
    [True, False, None]
    """
    if column.is_text:
        return [str(value) or None for value in values.tolist()]
    if column.kind in FLAGS:
        return [bool(value) if value == value else None for value in values.tolist()]
    return [_number(value) if math.isfinite(value) else None for value in shown(column, values).tolist()]


def _number(value: float) -> int | float:
    """A number as JSON has it: every whole number that a float holds exactly is an integer."""
    return int(value) if value.is_integer() and abs(value) < 2.0**53 else value


def cells(column: Column, values: np.ndarray) -> list[str]:
    """Values as people read them: numbers with four digits, flags as yes and no; "" if blank."""
    inside = shown(column, values).tolist()
    if column.is_text:
        return [printable(str(value)) for value in inside]
    if column.kind in FLAGS:
        return [{1.0: "yes", 0.0: "no"}.get(value, "") for value in inside]
    return [rounded(value) for value in inside]


@cache
def viewed_columns(table: str) -> tuple[str, ...]:
    """Columns that a terminal shows of a table, in their order: rows of ``catalog/shown.csv``."""
    return tuple(row["column"] for row in rows("catalog/shown.csv") if row["table"] == table)


def rounded(value: float) -> str:
    """Four significant digits, whole numbers in full.

    >>> [rounded(value) for value in (1234567.0, 0.0123456, 12.3456, float("nan"))]
    ['1,234,567', '0.01235', '12.35', '']
    """
    if math.isnan(value):
        return ""
    if math.isinf(value) or value == 0.0:
        return f"{value:g}"
    if abs(value) >= _WHOLE or value.is_integer():
        return f"{value:,.0f}"
    decimals = DIGITS - 1 - int(f"{value:.16e}".partition("e")[2])
    return f"{value:.{decimals}f}" if decimals <= DIGITS + 4 else f"{value:.{DIGITS - 1}e}"
