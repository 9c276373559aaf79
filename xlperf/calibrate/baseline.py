"""The baseline that a model of the step has to beat: one constant MFU per accelerator and precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xlperf.calibrate.comparison import RATES, STEP_TIME, compare, predicted
from xlperf.calibrate.published import Published
from xlperf.calibrate.published_training import training_plans
from xlperf.catalog.catalog import Catalog

NEVER_COMPARED = "papers"


@dataclass(frozen=True)
class Compared:
    """Median absolute relative errors of the step time of some rows, as fractions: predicted, and by constant MFU."""

    key: str
    count: int
    predicted: float
    constant_mfu: float

    @property
    def behind(self) -> float:
        """By how much the prediction is worse than the baseline; negative where it is better."""
        return self.predicted - self.constant_mfu


def against_constant_mfu(published: Sequence[Published], catalog: Catalog, by: str = "group") -> list[Compared]:
    """Predictions beside those of one constant MFU per accelerator and precision, fitted on the very rows.

    The constant of a group (or source), accelerator and precision is the median of the MFU that the rows reached, by
    the count of operations that predictions use; it is given every row that it is judged by. Rows of ``group`` papers
    are left out, as in fits.

    Parameters
    ----------
    published : sequence of Published
        Rows as read; those of training are compared.
    catalog : Catalog
        Models, accelerators, networks and calibration.
    by : {"group", "source_id"}, default "group"
        What rows are put together.

    Returns
    -------
    list of Compared
        One per group or source with a prediction, in alphabetical order.
    """
    found: dict[str, dict[tuple[str, str], list[tuple[float, float]]]] = {}
    for rows in published:
        if rows.kind != "training":
            continue
        rows = rows.take([row for row, group in enumerate(rows.text["group"]) if group.casefold() != NEVER_COMPARED])
        plans = training_plans(rows, catalog)
        results = predicted(plans)
        mfu = dict(zip(plans.index.tolist(), results.number("mfu").tolist(), strict=True))
        precision = dict(zip(plans.index.tolist(), plans.plans.filled("precision").tolist(), strict=True))
        at = {name: row for row, name in enumerate(rows.text["row_id"])}
        for record in compare(plans, results):
            if not record.covered or record.quantity != STEP_TIME:
                continue
            row = at[record.row_id]
            ratio = record.measured / record.predicted if record.metric in RATES else record.predicted / record.measured
            key = (rows.text["gpu"][row].casefold(), str(precision[row]))
            found.setdefault(rows.text[by][row], {}).setdefault(key, []).append((ratio, mfu[row] * ratio))
    compared = []
    for name, kinds in sorted(found.items()):
        errors, baseline = [], []
        for pairs in kinds.values():
            constant = float(np.median([reached for _, reached in pairs]))
            errors += [abs(ratio - 1.0) for ratio, _ in pairs]
            baseline += [abs(reached / constant - 1.0) if constant > 0.0 else math.nan for _, reached in pairs]
        compared.append(Compared(name, len(errors), float(np.median(errors)), float(np.median(baseline))))
    return compared
