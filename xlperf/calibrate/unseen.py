"""Rows read after the model was made: first prediction beside today's prediction.

``unseen_first.csv`` has a line per row and metric, written once, with the batch of new rows (``group``) and the commit
that predicted it, before any change with the rows in sight. The first predictions are an unbiased test. Today's errors
are biased if a later change responded to these rows, or if an earlier batch is in the fit of their machines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from xlperf.base import resources
from xlperf.calibrate.published_errors import UNSEEN
from xlperf.measurements.comparison import MEMORY, RATES, Record

HEADER = (
    "rows", "source", "quantity", "number", "first: predicted", "median error", "p90", "bias", "in the 80 % band",
    "today: predicted", "median error", "p90", "bias", "in the 80 % band",
)  # fmt: skip
_EVERY = "all"
_LEDGER = "unseen_first.csv"


@dataclass(frozen=True)
class Prediction:
    """A prediction of a published value in its units: value and ends of the 80 % band; NaN if there is none.

    ``group``: the batch of its row.
    """

    predicted: float
    low: float
    high: float
    group: str = ""


@cache
def first_predictions() -> dict[tuple[str, str, str], Prediction]:
    """First predictions of unseen rows by (kind, row, metric); empty in an installed package, which has no ledger."""
    by_name: dict[tuple[str, str, str], Prediction] = {}
    if not resources.table(f"calibrate/{_LEDGER}").exists():
        return by_name
    for row in resources.rows(f"calibrate/{_LEDGER}"):
        value, low, high = (float(row[name]) if row[name] else math.nan for name in ("predicted", "low", "high"))
        by_name[row["kind"], row["row_id"], row["metric"]] = Prediction(value, low, high, row["group"])
    return by_name


def unseen_table(records: Sequence[Record]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Errors of rows read later by batch, source and quantity, as first predicted and as predicted today.

    Records outside every batch are skipped; a batch of several sources has a separate total line. A row without a first
    prediction counts in today's column alone. Returns header and lines.
    """
    names: dict[tuple[str, str, str], list[Record]] = {}
    for one in records if first_predictions() else ():
        given = first_predictions().get((one.kind, one.row_id, one.metric))
        group = given.group if given is not None and given.group else one.group
        if one.primary and group.casefold().startswith(UNSEEN):
            for source in (_EVERY, one.source_id):
                names.setdefault((f"{one.kind}: {group}", one.quantity, source), []).append(one)
    lines = []
    for (group, quantity, source), own in sorted(names.items(), key=lambda pair: (pair[0][0], pair[0][1], pair[0][2])):
        several = len({one.source_id for one in own}) > 1
        if source == _EVERY and not several:
            continue
        first = [first_predictions().get((one.kind, one.row_id, one.metric)) for one in own]
        today = [Prediction(one.predicted, one.low, one.high) for one in own]
        lines.append((group, source, quantity, f"{len(own)}", *_words(own, first), *_words(own, today)))
    return HEADER, lines


def _words(records: Sequence[Record], predictions: Sequence[Prediction | None]) -> tuple[str, ...]:
    """Cells of a table: number of predictions, median and p90 of the errors, bias, and share in the band."""
    ratios, inside = [], []
    for record, given in zip(records, predictions, strict=True):
        if given is None or math.isnan(given.predicted):
            continue
        rate = record.metric in RATES and record.quantity != MEMORY
        ratios.append(record.measured / given.predicted if rate else given.predicted / record.measured)
        if not math.isnan(given.low + given.high):
            inside.append(given.low <= record.measured <= given.high)
    if not ratios:
        return "0", "-", "-", "-", "-"
    errors = np.abs(np.array(ratios) - 1.0)
    share = f"{100.0 * np.mean(inside):.0f} %" if inside else "-"
    bias = f"{100.0 * (np.median(ratios) - 1.0):+.1f} %"
    return f"{len(ratios)}", *(f"{100.0 * np.quantile(errors, at):.1f} %" for at in (0.5, 0.9)), bias, share
