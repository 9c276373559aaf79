"""Efficiencies of published runs: predictions keep the limits, and the shipped quantiles are today's."""

from __future__ import annotations

import csv

import numpy as np

from xlperf import load_catalog
from xlperf.base.resources import workbook
from xlperf.explore.quote import output_limits
from xlperf.measurements.comparison import FILE, predicted, published_efficiencies, quantiles
from xlperf.measurements.inference import inference_plans
from xlperf.measurements.published import read_published


def test_no_prediction_of_a_published_run_is_beyond_its_limit() -> None:
    _, inference = read_published(workbook("validation.xlsx"))
    plans = inference_plans(inference, load_catalog())
    results = predicted(plans)
    flight = results.number("tokens_per_second") * results.number("tpot")
    limits, _ = output_limits(plans.plans, flight, plans.catalog)
    share = results.number("tokens_per_second") / limits
    assert np.nanmax(share) < 1.0 and np.isfinite(share).mean() > 0.8


def test_the_file_of_quantiles_is_that_of_the_published_rows() -> None:
    """After new rows or constants: ``python -m xlperf.measurements.comparison``."""
    with FILE.open(encoding="utf-8") as file:
        shipped = list(csv.reader(file))
    fresh = quantiles(published_efficiencies(load_catalog()))
    assert shipped[0] == fresh[0]
    numbers = [np.array([[float(cell) for cell in row[1:]] for row in rows[2:]]) for rows in (shipped, fresh)]
    np.testing.assert_allclose(numbers[0][5:-5], numbers[1][5:-5], atol=0.03)
