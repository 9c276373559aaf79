"""Columns of a sweep without effect on the requested results, detected by a large change.

A result that does not respond to the values of a column may have another bottleneck. A result that does not respond to
a thousandfold change both ways, on rows from the whole sweep, does not depend on the column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import InputError
from xlperf.catalog.schema import Column, table_schema, unit_of
from xlperf.catalog.table import Table
from xlperf.explore.auto import has_auto, resolve
from xlperf.explore.owned import names_of_owners
from xlperf.explore.sweep import Sweep
from xlperf.explore.vary import CALIBRATION, Varied

_ROWS = 64
"""Trial rows of a sweep, from end to end. [-]"""
_AUTO_ROWS = 2
"""Trial rows whose mappings are chosen anew. [-]"""
_FAR = 1e3
"""Factor of the change beyond the values of a number, both ways. [-]"""
Changes = list[tuple[Varied, Array]]


def unmoved_words(wanted: Sweep, names: Sequence[str]) -> list[str]:
    """A line for each column of a sweep that has no effect on some results.

    ``names``: the requested results; all of them if empty. Columns that name rows of sheets, and results that no row
    has, are not judged.
    """
    rows = np.unique(np.linspace(0, len(wanted) - 1, _ROWS).astype(np.int64))
    auto = has_auto(wanted.plans)
    inputs: list[str | Varied] = [*wanted.values, *wanted.varied]
    lines = []
    for varied in inputs:
        try:
            if _moves(wanted, varied, rows, names, not auto) or (
                auto and _moves(wanted, varied, rows[:: max(len(rows) // _AUTO_ROWS, 1)], names, True)
            ):
                continue
            owned = [f"owned_{name}" for name in names if f"owned_{name}" in names_of_owners(wanted.plans.kind)]
            moved = bool(owned) and _moves(replace(wanted, owned=True), varied, rows, owned, not auto)
        except InputError:  # too large a change: the sweep itself reports the fault
            continue
        shown = " or ".join(name.replace("_", " ") for name in names) or "any result"
        instead = f"; {' or '.join(name.replace('_', ' ') for name in owned)} moves with it" if moved else ""
        label = varied if isinstance(varied, str) else varied.column.name
        words = f"{label.replace('_', ' ')} cannot move {shown} of these plans: it has no part in it"
        lines.append(f"{words}{_basis(wanted, rows, names)}{instead}")
    return lines


def _basis(wanted: Sweep, rows: np.ndarray, names: Sequence[str]) -> str:
    """Kind of payment of the plans of a sweep, if a cost is among the results; "" if mixed or unknown."""
    if not any("cost" in name and not name.startswith("owned_") for name in names) or has_auto(wanted.plans):
        return ""
    bases = set(wanted.evaluated(*wanted.rows(rows[:1])).results["cost_basis"].tolist())
    return f" (cost basis: {bases.pop()})" if len(bases) == 1 and "" not in bases else ""


def _moves(wanted: Sweep, varied: str | Varied, rows: np.ndarray, names: Sequence[str], whole: bool) -> bool:
    """Whether any of some results responds to a column, or is in no row; ``whole``: ``auto`` cells are chosen anew."""
    table, changes = wanted.rows(rows)
    if not whole:
        table = resolve(table.take([0]), wanted.catalog, **wanted.bounds).plans
        changes = [(varied, values[:1]) for varied, values in changes]
    before = wanted.evaluated(table, changes).results
    asked = [name for name in names or before.columns if name in before and before[name].dtype != object]
    first = {name: before.number(name) for name in asked}
    if not any(np.isfinite(values).any() for values in first.values()):
        return True
    probes = list(_probes(wanted, varied))
    for value in probes:
        after = wanted.evaluated(*_changed(table, changes, varied, value)).results
        if any(not np.array_equal(values, after.number(name), equal_nan=True) for name, values in first.items()):
            return True
    return not probes


def _changed(table: Table, changes: Changes, varied: str | Varied, value: float | str) -> tuple[Table, Changes]:
    """Rows of a sweep with one value of a column in all of them."""
    if not isinstance(varied, str) and varied.sheet != table.kind:
        changed = [
            (v, np.full(len(table), value, dtype=values.dtype) if v is varied else values) for v, values in changes
        ]
        return table, changed
    name = varied if isinstance(varied, str) else varied.name
    dtype = object if isinstance(value, str) else np.float64
    columns = {**table.columns, name: np.full(len(table), value, dtype=dtype)}
    auto = {other: mask for other, mask in table.auto.items() if other != name}
    order = [column.name for column in table.schema.columns if column.name in columns]
    return replace(table, columns={other: columns[other] for other in order}, auto=auto), changes


def _probes(wanted: Sweep, varied: str | Varied) -> Iterator[float | str]:
    """Values far beyond the values of a column; all its choices; none for names of rows of sheets and free text."""
    values = wanted.values[varied] if isinstance(varied, str) else varied.values
    column = table_schema(wanted.plans.kind).by_name[varied] if isinstance(varied, str) else varied.declared
    if column.kind in ("choice", "flag"):
        yield from column.choices or (0.0, 1.0)
    elif column.kind == "number":
        free = not isinstance(varied, str) and (varied.factors or varied.sheet == CALIBRATION)
        yield from _far(column, np.asarray(values, dtype=np.float64), free)


def _far(column: Column, values: Array, free: bool) -> Iterator[float]:
    """The ends of values, and numbers far beyond both, within the bounds of a column unless ``free``."""
    low, high, excluded = (0.0, float("inf"), True) if free else column.limits
    unit = unit_of(column).factor
    least, most = float(values.min()), float(values.max())
    below = max(least / _FAR, low * unit)
    yield from (least, most)
    if not (excluded and below == low * unit):
        yield below
    yield min(max(most, unit * 1e-3) * _FAR, high * unit)
