"""Numbers that can be read but lie far beyond all others of their column: a slip of units or of zeros."""

from __future__ import annotations

import numpy as np

from xlperf.base.errors import Fault
from xlperf.catalog.schema import EVERY_TABLE, Column, unit_of
from xlperf.catalog.table import Table
from xlperf.catalog.values import shown

FAR = 1000.0
"""Times beyond the largest, or below the smallest, of the known values from which a value is doubted. [-]"""
LEAST_KNOWN = 3
"""Values of other rows without which nothing can be said. [-]"""


def far_values(table: Table, known: Table) -> list[Fault]:
    """Numbers a thousand times beyond every other row of their kind, in either direction.

    Parameters
    ----------
    table : Table
        Rows of a catalog sheet, or plans. The values of calibration constants have bounds of their own.
    known : Table
        Rows of that kind that are known to be right; one of the same name is the same row before an edit, and not
        among the others.

    Returns
    -------
    list of Fault
        One per cell.
    """
    if table.kind == "calibration":
        return []
    columns = [column for column in table.schema.columns if column.kind == "number" and column.name in table]
    return [fault for column in columns for fault in _far(table, known, column)]


def _far(table: Table, known: Table, column: Column) -> list[Fault]:
    references = known.number(column.name)
    stated = np.flatnonzero(references > 0.0)
    if len(stated) < LEAST_KNOWN:
        return []
    values, keys = table.number(column.name), _keys(table)
    low, high = (_end(references[stated], _keys(known)[stated], keys, sign) for sign in (1.0, -1.0))
    faults = []
    for row in np.flatnonzero((values > FAR * high) | ((values > 0.0) & (values < low / FAR))).tolist():
        above = values[row] > high[row]
        end, side, word = (high[row], "above", "largest") if above else (low[row], "below", "smallest")
        times = max(values[row] / end, end / values[row])
        unit = f" {column.unit}" if column.unit not in ("", "-") else ""
        scale = unit_of(column).factor
        faults.append(
            Fault(
                table.place(row, column.name),
                f"{column.name.replace('_', ' ')} {shown(values[row] / scale)}{unit} is {times:.3g} times {side} the "
                f"{word} of all other rows, {shown(end / scale)}{unit}; check its zeros and its unit",
            )
        )
    return faults


def _keys(table: Table) -> np.ndarray:
    """What tells a row from the others: its name, of a network its tier too; of plans nothing does."""
    if table.kind not in EVERY_TABLE:
        return np.full(len(table), "", dtype=object)
    names = table.text(table.schema.key.name).tolist()
    tiers = table.number("tier").tolist() if "tier" in table else [""] * len(table)
    return np.array([f"{name.casefold()}\n{tier}" for name, tier in zip(names, tiers, strict=True)], dtype=object)


def _end(values: np.ndarray, names: np.ndarray, keys: np.ndarray, sign: float) -> np.ndarray:
    """Smallest of values (largest where the sign is negative) of other names than each key; NaN where there is none."""
    first = int(np.argmin(sign * values))
    others = values[names != names[first]] if names[first] else values
    second = sign * np.min(sign * others) if len(others) else np.nan
    return np.where((keys == names[first]) & (keys != ""), second, values[first])
