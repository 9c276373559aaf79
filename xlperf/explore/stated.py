"""Plans that a command hands on: they state what differs from the defaults, so that no later command repeats these."""

from __future__ import annotations

import numpy as np

from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table


def without_defaults(plans: Table) -> Table:
    """Plans with a blank in place of every value that is the default of its column in the schema.

    ``plans``: training or inference plans. Recompute modules that say ``none`` are blank too.
    """
    columns = dict(plans.columns)
    for column in table_schema(plans.kind).columns:
        if column.default in ("", None) or column.name not in columns or column.name == "software":
            continue
        values = columns[column.name]
        if values.dtype == object:
            blank = np.array([str(value) in (column.default, "none") for value in values.tolist()], dtype=bool)
            blank = blank if column.name == "recompute_modules" else values.astype(str) == column.default
            columns[column.name] = np.where(blank, "", values).astype(object)
        elif column.unit == "-" and column.default.replace(".", "", 1).isdigit():
            columns[column.name] = np.where(values == float(column.default), np.nan, values)
    return Table(plans.kind, columns, plans.place)
