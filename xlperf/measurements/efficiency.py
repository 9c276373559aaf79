"""Efficiencies of published runs: measured rates over physical limits, the quantiles that a quote is compared with.

``python -m xlperf.measurements.efficiency`` writes ``explore/published_efficiencies.csv`` anew from the published rows.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np

import xlperf.explore
from xlperf.base.arrays import Array
from xlperf.base.resources import workbook
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.table import Table
from xlperf.explore.limits import output_limits
from xlperf.measurements.comparison import RATES, Record, compare, predicted
from xlperf.measurements.inference import inference_plans
from xlperf.measurements.published import PublishedPlans, read_published
from xlperf.measurements.training import training_plans

FILE = Path(xlperf.explore.__file__).with_name("published_efficiencies.csv")
_QUANTILES = 101


def published_efficiencies(catalog: Catalog) -> Mapping[str, Array]:
    """Measured over limit of published rows, sorted: MFU of training, rate of serving and of a single request."""
    training, inference = read_published(workbook("validation.xlsx"))
    runs, served = training_plans(training, catalog), inference_plans(inference, catalog)
    results, rates = predicted(runs), predicted(served)
    in_flight = np.asarray(rates.number("tokens_per_second") * rates.number("tpot"))  # by Little's law
    limits = output_limits(served.plans, in_flight, served.catalog).rate
    shares = rates.number("tokens_per_second") / limits
    alone = served.plans.filled("batch_size") == 1.0
    measured = _measured(served, rates, shares)
    return {
        "training": _known(_measured(runs, results, results.number("mfu"))),
        "serving": _known(measured[~alone]),
        "user": _known(measured[alone]),
    }


def _known(values: Array) -> Array:
    return np.sort(values[np.isfinite(values) & (values > 0.0)])


def _measured(plans: PublishedPlans, results: Table, shares: Array) -> Array:
    """Shares of plans at the measured rate: predicted ones times measured over predicted rate."""
    first: dict[str, Record] = {}
    for record in compare(plans, results):
        if record.primary and record.metric not in ("peak_mem_gb", "ttft_ms") and record.covered:
            first.setdefault(record.row_id, record)
    names = plans.published.text["row_id"]
    factors = np.full(len(names), np.nan)
    for row, name in enumerate(names):
        of_row = first.get(str(name))
        if of_row is not None:
            ratio = of_row.measured / of_row.predicted
            factors[row] = ratio if of_row.metric in RATES else 1.0 / ratio
    return np.asarray(shares * factors[plans.index])


def quantiles(efficiencies: Mapping[str, Array]) -> list[list[str]]:
    """Rows of the file: the share of the runs below, and the efficiency of each kind."""
    shares = np.linspace(0.0, 1.0, _QUANTILES)
    columns = {kind: np.quantile(values, shares) for kind, values in efficiencies.items()}
    rows = [["share_below", *columns], ["number", *(str(len(values)) for values in efficiencies.values())]]
    return rows + [
        [f"{share:.2f}", *(f"{values[row]:.4f}" for values in columns.values())] for row, share in enumerate(shares)
    ]


if __name__ == "__main__":
    with FILE.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(quantiles(published_efficiencies(load_catalog())))
