"""The training plan behind an answer of the form Train, as a row that every command takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table
from xlperf.explore.train import FOLLOWING, SEARCHED


def plan_of_run(form: Table, answer: Mapping[str, Any]) -> Table:
    """One training plan: what the form states, and the mapping that the answer chose, without the schema's defaults.

    ``form``: one row of the kind ``train``. ``answer``: its results by column, in base units. Returns no rows
    if there is no answer.
    """
    known = table_schema("training").by_name
    columns: dict[str, Any] = {name: values for name, values in form.columns.items() if name in known}
    columns["num_accelerators"] = np.array([answer["accelerators"]])
    for name in (*SEARCHED, *FOLLOWING, "precision"):
        value = answer[name]
        text = known[name].kind in ("choice", "text")
        if name == "recompute_modules" and answer["recompute"] != "selective":
            continue
        if known[name].default not in ("", None) and str(known[name].default) == (str(value) if text else f"{value:g}"):
            continue
        columns[name] = np.array([str(value)], dtype=object) if text else np.array([float(value)])
    plan = Table("training", columns, form.place)
    return plan.take(np.arange(int(answer["step_time"] == answer["step_time"])))
