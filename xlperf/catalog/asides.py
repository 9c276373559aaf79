"""Rows of tables of plans that hold no plan: units below the header, totals, and notes below the table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xlperf.catalog.cells import Field, Header, is_blank, shown
from xlperf.catalog.schema import PLAN_TABLES, counted_nouns

Coded = tuple[np.ndarray, Sequence[object] | None]
"""A column as codes into its distinct values, or as numbers (and no distinct values)."""

TOTALS = frozenset(("grand total", *"total totals sum subtotal average mean gesamt summe mittelwert".split()))
_UNITS_ROW = frozenset(("-", "#", "unit", "units", "text"))


def word_of(value: object) -> str:
    """A text without its colon; of another value what messages show, as Python writes out no number of any length."""
    return value.strip().rstrip(":").casefold() if isinstance(value, str) else shown(value)


def label_of(parsed: Header) -> int:
    """Position of a column of the user's own before those of plans, such as a site; -1 without one."""
    first = min((field.position for field in parsed.fields), default=0)
    return next((position for position in parsed.own if position < first), -1)


def is_aside(fields: Sequence[Field], cells: Sequence[object], first: bool, label: object = None) -> bool:
    """Whether a row of a sheet of plans holds no plan: totals in place of a model, or beside its blank cell, or, below
    the header, units that its columns have anyway.
    """
    stated = [(field, cells[field.position]) for field in fields if field.position < len(cells)]
    words = [(field, word_of(value)) for field, value in stated if not is_blank(value)]
    by_name = {field.column.name: word for field, word in words}
    word = by_name.get("model", by_name.get("name", word_of(label)))
    if "accelerator" not in by_name and word in TOTALS:
        return True
    return first and all(
        word.strip("()[]") in _UNITS_ROW | {field.symbol.casefold()} | counted_nouns(field.column)
        for field, word in words
    )


def rows_aside(parsed: Header, columns: Sequence[Coded]) -> list[int]:
    """Rows of a file of plans that hold totals, or units below the header."""
    if parsed.kind not in PLAN_TABLES or not parsed.fields or not len(columns[0][0]):
        return []
    candidates, label = {0}, label_of(parsed)
    names = [field.position for field in parsed.fields if field.column.name in ("name", "model")]
    for position in (*names, *(each for each in (label,) if each >= 0)):
        codes, distinct = columns[position]
        if distinct is not None:
            totals = [code for code, value in enumerate(distinct) if word_of(value) in TOTALS]
            candidates |= {*np.flatnonzero(np.isin(codes, totals)).tolist()} if totals else set()

    def cells(row: int) -> list[object]:
        return [values[row].item() if distinct is None else distinct[values[row]] for values, distinct in columns]

    def is_one(row: int) -> bool:
        values = cells(row)
        return is_aside(parsed.fields, values, row == 0, values[label] if label >= 0 else None)

    return [row for row in sorted(candidates) if is_one(row)]


def end_of_plans(filled: np.ndarray, gap: np.ndarray) -> int:
    """Rows of a table without the notes below it: rows of one value at the end, from a blank row on.

    >>> end_of_plans(np.array([8, 0, 8, 0, 1, 1]), np.array([False, True, False, True, False, False]))
    3
    """
    after = int(np.flatnonzero(filled > 1).max(initial=-1)) + 1
    ends = np.flatnonzero(gap[after:])
    return after + int(ends[0]) if after and len(ends) else len(filled)
