"""Rows of the sheet ``own_runs``: plans with what was measured of them, of either kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from xlperf.base.errors import Fault
from xlperf.catalog.cells import shown
from xlperf.catalog.schema import OWN_RUNS, Column, table_schema
from xlperf.catalog.table import Table

_FLAGS = {"yes": 1.0, "true": 1.0, "1": 1.0, "no": 0.0, "false": 0.0, "0": 0.0}


def as_runs(plans: Table) -> Table:
    """Plans with measured columns as rows of the sheet."""
    key, known = table_schema(OWN_RUNS).key.name, table_schema(OWN_RUNS).by_name
    names = [str(name) or f"run {row + 1}" for row, name in enumerate(plans.text("name").tolist())]
    columns: dict[str, np.ndarray] = {key: np.array(names, dtype=object)}
    for name, values in plans.columns.items():
        if name in known and values.dtype != object and known[name].is_text:
            words = {1.0: "yes", 0.0: "no"}
            columns[name] = np.array([words.get(value, "") for value in values.tolist()], dtype=object)
        elif name in known:
            columns[name] = values
    count = len(plans)
    columns |= {"source": np.full(count, "measured columns of plans", dtype=object)}
    return Table(OWN_RUNS, columns, partial(_renamed, plans, {key: "name"}))


def _renamed(table: Table, names: Mapping[str, str], row: int, column: str) -> str:
    """Place of a value in a table that calls some columns otherwise."""
    return table.place(row, names.get(column, column))


def joined(tables: Sequence[Table]) -> Table:
    """Rows of several tables of own runs; places name their sources."""
    known = table_schema(OWN_RUNS)
    columns = {}
    for name, column in known.by_name.items():
        if column in known.columns or any(name in table for table in tables):
            read = Table.text if column.is_text else Table.number
            columns[name] = np.concatenate([read(table, name) for table in tables])
    return Table(OWN_RUNS, columns, partial(_place, tables))


def beside(before: Table, added: Sequence[Table]) -> Table:
    """Own runs with more of them; a new run replaces one of the same name."""
    key = table_schema(OWN_RUNS).key.name
    names = {str(name).casefold() for table in added for name in table.text(key)}
    kept = [row for row, name in enumerate(before.text(key).tolist()) if str(name).casefold() not in names]
    return joined([before.take(np.array(kept, dtype=np.int64)), *added])


def _place(tables: Sequence[Table], row: int, column: str) -> str:
    """Place of a value in joined tables."""
    for table in tables:
        if row < len(table):
            return table.place(row, column)
        row -= len(table)
    return tables[-1].place(-1, column)


def run_plans(runs: Table, faults: list[Fault]) -> list[Table]:
    """Measured runs as tables of plans with measured columns, training first; ``faults`` gets bad cells."""
    serves = ~np.isnan(runs.number("prompt_length"))
    tables = []
    for kind, rows in (("training", np.flatnonzero(~serves)), ("inference", np.flatnonzero(serves))):
        if len(rows):
            tables.append(_plans_of(kind, runs.take(rows), faults))
    return tables


def _plans_of(kind: str, runs: Table, faults: list[Fault]) -> Table:
    """Runs of one kind as plans."""
    known, key = table_schema(kind).by_name, runs.schema.key.name
    columns: dict[str, np.ndarray] = {"name": runs.text(key)}
    for name, values in runs.columns.items():
        filled = values != "" if values.dtype == object else ~np.isnan(values)
        column = known.get(name)
        if name in (key, "source", "year") or not filled.any():
            continue
        if column is None:
            other = "serving" if kind == "training" else "training"
            words = f"belongs to a run of {other}; a run with a prompt length is one of serving"
            row = int(np.flatnonzero(filled)[0])
            faults.append(Fault(runs.place(row, name), f"{name.replace('_', ' ')} {words}"))
            continue
        columns[name] = _as_in(column, values, partial(_cell, runs, name), faults)
    return Table(kind, columns, partial(_renamed, runs, {"name": key}))


def _cell(runs: Table, column: str, row: int) -> str:
    return runs.place(row, column)


def _as_in(column: Column, values: np.ndarray, place: Callable[[int], str], faults: list[Fault]) -> np.ndarray:
    """Values of a column of runs as a column of plans has them: their choices and flags may differ by kind."""
    if values.dtype != object or column.kind in ("text", "reference", "name"):
        return values
    words = [str(value).strip().casefold() for value in values.tolist()]
    allowed = list(_FLAGS) if column.kind == "flag" else [choice.casefold() for choice in column.choices]
    for row, word in enumerate(words):
        if word and word not in allowed:
            options = "yes or no" if column.kind == "flag" else f"one of {', '.join(column.choices)}"
            faults.append(Fault(place(row), f"{column.words} must be {options}, got {shown(values[row])}"))
    if column.kind == "flag":
        return np.array([_FLAGS.get(word, math.nan) for word in words])
    exact = {choice.casefold(): choice for choice in column.choices}
    return np.array([exact.get(word, "") for word in words], dtype=object)
