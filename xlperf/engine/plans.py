"""Plans as the records that equations take: every column of the sheet, by its schema alone."""

from __future__ import annotations

from functools import cache
from typing import TypeVar

import numpy as np

from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table
from xlperf.equations.plan.columns import PlanColumns

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
    for column in plans.schema.columns:
        name = column.name
        if column.kind in ("number", "flag", "text"):
            columns[name] = plans.filled(name)
        elif column.kind == "choice":
            codes = choice_codes(plans.kind, name)
            if name in plans:
                columns[name] = np.array(list(map(codes.__getitem__, plans[name].tolist())), dtype=np.float64)
            else:
                columns[name] = np.full(len(plans), codes[""])
        if column.is_text and name in plans:
            words[name] = plans[name]
    return record(columns, words, plans.columns.keys())
