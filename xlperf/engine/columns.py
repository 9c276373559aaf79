"""Sheets as the records that equations take: columns by name, plans with their defaults and choices as codes."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np

from xlperf.base.arrays import Columns
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table, default_value
from xlperf.equations.plan.columns import PlanColumns

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


Record = TypeVar("Record", bound=PlanColumns)


@cache
def choice_codes(kind: str, column: str) -> dict[str, float]:
    """Position of each word among the choices of a column; for a blank that of the default, NaN without one.

    >>> choice_codes("training", "optimizer")
    {'adam': 0.0, 'sgd': 1.0, '': 0.0}
    """
    declared = table_schema(kind).by_name[column]
    codes = {word: float(position) for position, word in enumerate(declared.choices)}
    return {**codes, "": codes.get(declared.default, float("nan"))}


class _Declared(NamedTuple):
    """A column of plans: its default as equations take it, of what type, the codes of a choice, what names a row."""

    name: str
    default: Any
    dtype: type
    codes: dict[str, float] | None
    names_row: bool


@cache
def _declared(kind: str) -> tuple[_Declared, ...]:
    found = []
    for column in table_schema(kind).columns:
        codes = choice_codes(kind, column.name) if column.kind == "choice" else None
        default = default_value(kind, column.name) if codes is None else codes[""]
        default = np.nan if default != default else default  # one NaN, which a dict finds again
        dtype = object if isinstance(default, str) else float
        found.append(_Declared(column.name, default, dtype, codes, column.kind == "reference"))
    return tuple(found)


def plan_columns(plans: Table, record: type[Record]) -> Record:
    """A table of plans as a record: numbers and flags with the schema's defaults, choices as codes.

    Parameters
    ----------
    plans : Table
        Plans as read.
    record : type
        What to make: a subclass of :class:`PlanColumns`.

    Returns
    -------
    PlanColumns
        A column for each number, flag, choice and text of the schema, (rows,); NaN or "" where one is blank and has no
        default. What the sheet itself says in words is in :meth:`PlanColumns.words`.
    """
    columns: dict[str, np.ndarray] = {}
    words: dict[str, np.ndarray] = {}
    absent: dict[float | str, np.ndarray] = {}
    stated = plans.columns
    for name, default, dtype, codes, names_row in _declared(plans.kind):
        if name not in stated:
            if default not in absent:  # columns with one default share an array: equations never write into it
                absent[default] = np.full(len(plans), default, dtype=dtype)
            if not names_row:
                columns[name] = absent[default]
            continue
        if codes is not None:
            words[name] = stated[name]
            columns[name] = np.array(list(map(codes.__getitem__, stated[name].tolist())), dtype=np.float64)
        elif dtype is float:
            columns[name] = plans.number(name, default)
        else:
            words[name] = stated[name]
            if not names_row:
                columns[name] = plans.text(name, default)
    return record(columns, words, stated.keys())
