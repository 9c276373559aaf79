"""Evaluate and validate agree to the last bit: published rows as plans, their blanks left blank in a CSV file."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from xlperf.base.resources import workbook
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.read import read_plans
from xlperf.catalog.schema import table_schema, unit_of
from xlperf.engine import evaluate
from xlperf.measurements.comparison import predicted
from xlperf.measurements.inference import inference_plans
from xlperf.measurements.published import KINDS, PublishedPlans, read_published
from xlperf.measurements.training import training_plans

RUNS = 200
COMPARED = {"training": ("step_time", "memory", "mfu"), "inference": ("tpot", "ttft", "latency", "memory")}
MADE = {"training": training_plans, "inference": inference_plans}


@pytest.fixture(scope="module", params=KINDS)
def chosen(request: pytest.FixtureRequest, catalog: Catalog) -> PublishedPlans:
    """200 runs from one end of the rows to the other, of models that the catalog has."""
    published = next(rows for rows in read_published(workbook("validation.xlsx")) if rows.kind == request.param)
    every: PublishedPlans = MADE[request.param](published, catalog)
    known = {str(name).casefold() for name in catalog.tables["models"].text("model").tolist()}
    rows = [row for row, name in enumerate(every.plans.text("model").tolist()) if name.casefold() in known]
    rows = [rows[place] for place in np.linspace(0, len(rows) - 1, RUNS).astype(int).tolist()]
    assert len(set(rows)) == RUNS
    runs = sorted({int(every.index[row]) for row in rows})
    return MADE[request.param](published.take(runs), catalog)


def _written(plans: PublishedPlans, path: Path) -> None:
    """The plans as a user would write them: units of the schema, blanks blank."""
    table = plans.plans
    columns = [column for column in table_schema(table.kind).columns if column.name in table]

    def cell(name: str, row: int) -> str:
        column, value = next(one for one in columns if one.name == name), table[name][row]
        if column.is_text:
            return str(value)
        if math.isnan(value):
            return ""
        return ("no", "yes")[int(value)] if column.kind == "flag" else repr(float(value / unit_of(column).factor))

    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([column.name.replace("_", " ") for column in columns])
        writer.writerows([[cell(column.name, row) for column in columns] for row in range(len(table))])


def test_evaluate_and_validate_agree_to_the_last_bit(chosen: PublishedPlans, tmp_path: Path, catalog: Catalog) -> None:
    _written(chosen, tmp_path / "plans.csv")
    kind = chosen.plans.kind
    (plans,) = read_plans(tmp_path / "plans.csv")
    validated, evaluated = predicted(chosen), evaluate(plans, catalog)
    assert len(evaluated) == len(chosen.plans) >= RUNS
    blank = [name for name, values in chosen.plans.columns.items() if values.dtype == object and (values == "").any()]
    assert {"training": "cross_entropy", "inference": "kv_precision"}[kind] in blank, (
        "defaults of the software are used"
    )
    for name in COMPARED[kind]:
        assert [repr(value) for value in validated[name].tolist()] == [
            repr(value) for value in evaluated[name].tolist()
        ]
        assert np.isfinite(evaluated[name]).mean() > 0.95
