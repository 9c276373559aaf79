"""Published runs by model and accelerator, with what they ran at and how well they are predicted: ``measured.csv``.

The engine judges by these rows how far a plan is from what was measured (:mod:`xlperf.engine.trust`).
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from xlperf.base.arrays import Array
from xlperf.calibrate.comparison import FIRST_TOKEN, MEMORY, predicted
from xlperf.calibrate.fitted_constants import rounded
from xlperf.calibrate.published import Published, PublishedPlans
from xlperf.calibrate.published_errors import Errors, log_errors, plans_of
from xlperf.catalog.catalog import Catalog
from xlperf.engine.trust import RANGES, coordinates, model_traits

_AS_PUBLISHED = " as published"


def measured_csv(published: Sequence[Published], catalog: Catalog, errors: Sequence[Errors]) -> str:
    """Text of ``measured.csv``: a row for each model and accelerator with published runs that are predicted.

    ``published``: rows of every group. ``catalog``: accelerators, models and calibration. ``errors``: of the rows that
    were fitted on, their models left out; the others are predicted as they are.
    """
    left_out = {
        (one.kind, name): error
        for one in errors
        for name, quantity, error in zip(one.row_ids.tolist(), one.quantity.tolist(), one.by_models, strict=True)
        if quantity not in (FIRST_TOKEN, MEMORY)
    }
    ends = [f"{end} {name}" for name in RANGES for end in ("least", "most")]
    header = ["kind", "model", "shape", "active parameters", "accelerator", "generation", "rows", "median error", *ends]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(header)
    for rows in published:
        writer.writerows(_rows_of(plans_of(rows, catalog), left_out))
    return stream.getvalue()


def _rows_of(plans: PublishedPlans, left_out: dict[tuple[str, str], float]) -> list[list[str]]:
    """Rows of one kind, sorted."""
    kind, table, catalog = plans.published.kind, plans.plans, plans.catalog
    if not len(table):
        return []
    known, _ = log_errors(plans)
    times = {name: error for (name, quantity), error in known.items() if quantity != FIRST_TOKEN}
    results = predicted(plans)
    numbers = ("step_time", "tokens_per_second_per_accelerator", "tpot")
    at = coordinates(table, {name: results.number(name) for name in numbers if name in results})
    models = catalog.rows("models", table.text("model"), table, "model")
    chips = catalog.rows("accelerators", table.text("accelerator"), table, "accelerator")
    shapes, active = model_traits(catalog)
    groups: dict[tuple[str, int], list[int]] = {}
    ids = plans.published.text["row_id"]
    for plan, row in enumerate(plans.index.tolist()):
        if ids[row] in times:
            groups.setdefault((shapes[models[plan]], int(chips[plan])), []).append(plan)
    found = []
    for (shape, chip), own in groups.items():
        names = Counter(str(table.text("model")[plan]).split(_AS_PUBLISHED)[0] for plan in own)
        error = [left_out.get((kind, ids[plans.index[plan]]), times[ids[plans.index[plan]]]) for plan in own]
        accelerators = catalog.tables["accelerators"]
        found.append(
            [
                kind,
                max(sorted(names), key=lambda name: names[name]),
                shape,
                f"{float(np.median(active[models[own]])):.4g}",
                str(accelerators.text("accelerator")[chip]),
                str(accelerators.text("generation")[chip]),
                f"{len({ids[plans.index[plan]] for plan in own})}",
                f"{rounded(float(np.nanmedian(np.abs(np.expm1(error)))))}",
                *(_end(values[own], end) for values in at for end in (np.fmin, np.fmax)),
            ]
        )
    return sorted(found)


def _end(values: Array, end: np.ufunc) -> str:
    value = float(end.reduce(values))
    return "" if math.isnan(value) else f"{value:.4g}"
