"""Efficiencies of published runs: predictions keep the limits, and the shipped quantiles are today's."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from xlperf import load_catalog
from xlperf.base.arrays import Array
from xlperf.catalog.table import Table
from xlperf.measurements import comparison
from xlperf.measurements.comparison import FILE, published_efficiencies, quantiles
from xlperf.measurements.published import PublishedPlans


def test_quantiles_are_those_of_the_published_rows_and_no_prediction_is_beyond_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After new rows or constants: ``python -m xlperf.measurements.comparison``."""
    shares: dict[str, Array] = {}
    measured = comparison._measured

    def recorded(plans: PublishedPlans, results: Table, predicted: Array) -> Array:
        shares[plans.published.kind] = predicted
        return measured(plans, results, predicted)

    monkeypatch.setattr(comparison, "_measured", recorded)
    with FILE.open(encoding="utf-8") as file:
        shipped = list(csv.reader(file))
    fresh = quantiles(published_efficiencies(load_catalog()))
    assert shipped[0] == fresh[0]
    numbers = [np.array([[float(cell) for cell in row[1:]] for row in rows[2:]]) for rows in (shipped, fresh)]
    np.testing.assert_allclose(numbers[0][5:-5], numbers[1][5:-5], atol=0.03)
    assert np.nanmax(shares["inference"]) < 1.0 and np.isfinite(shares["inference"]).mean() > 0.8
