"""Plans that a command hands on: they state what differs from the defaults, so that no later command repeats these."""

from __future__ import annotations

import numpy as np

from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table

_WORDS = ("recompute", "pipeline_schedule", "mode")
"""Columns of words whose default an answer always states."""


def without_defaults(plans: Table) -> Table:
    """Plans with a blank in place of the counts and words that are the default of their column.

    ``plans``: training or inference plans. Recompute modules that are ``none`` are blank too.
    """
    columns = dict(plans.columns)
    for column in table_schema(plans.kind).columns:
        values, default = columns.get(column.name), column.default
        if values is None:
            continue
        if column.name in _WORDS or column.name == "recompute_modules":
            default = "none" if column.name == "recompute_modules" else default
            columns[column.name] = np.where(values.astype(str) == default, "", values).astype(object)
        elif column.kind == "number" and column.unit == "-" and default:
            columns[column.name] = np.where(values == float(default), np.nan, values)
    return Table(plans.kind, columns, plans.place)
