"""Readings: published runs of sources that no fit has read, each predicted once before anything was changed.

The sheet ``first_predictions`` of ``validation.xlsx`` has a line per row and metric, written once, with the commit that
predicted it. The first predictions are an unbiased test of what a new user sees; today's predictions of the same rows
are biased if a later change responded to them. Bands are fitted on the first predictions
(:mod:`xlperf.calibrate.bands`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.resources import workbook
from xlperf.calibrate.baselines import Baselines
from xlperf.calibrate.fitter import FittedConstant, calibration_table, joined_tables
from xlperf.calibrate.published_errors import UNSEEN, Errors, errors_of, plans_of
from xlperf.catalog.calibration import ANY, declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.measurements.comparison import FIRST_TOKEN, MEMORY, RATES, STEP_TIME, TIME_PER_TOKEN, metrics_of, predicted
from xlperf.measurements.kernels import machine_lines
from xlperf.measurements.published import POWER, Published, PublishedPlans, sheet_rows

SHEET = "first_predictions"
NAMES = {STEP_TIME: "step", TIME_PER_TOKEN: "token", FIRST_TOKEN: "first", MEMORY: "memory"}
"""Constants of the band of each quantity."""
_ORDER = ("first", "second", "third", "fourth", "fifth", "sixth")


@dataclass(frozen=True)
class First:
    """First prediction of a published value: value and ends of its 80 % band in its unit, NaN if it was refused."""

    predicted: float
    low: float
    high: float
    group: str


@dataclass(frozen=True)
class Readings:
    """Primary values of the readings, one entry each.

    - ``first``, ``today``, ``few``: log of predicted over measured time or size, as first predicted, as predicted
      today, and by the baseline of a few constants (NaN without one) [-].
    - ``experts``, ``unread``, ``distance``: kind of the model, and the plan's distance from published runs.
    - ``quantity``, ``source``, ``reading``, ``line``, ``software``, ``row_ids``: what was measured, publisher, reading
      (first to sixth), line of accelerators, software, published row.
    """

    row_ids: np.ndarray
    quantity: np.ndarray
    source: np.ndarray
    reading: np.ndarray
    line: np.ndarray
    software: np.ndarray
    first: Array
    today: Array
    few: Array
    experts: np.ndarray
    unread: Array
    distance: Array

    def __len__(self) -> int:
        return len(self.row_ids)

    def take(self, chosen: np.ndarray) -> Readings:
        """Subset of the entries: positions, or a mask."""
        return Readings(*(getattr(self, one.name)[chosen] for one in fields(self)))

    def weights(self) -> Array:
        """Weight of each entry: a source of n values of a quantity weighs as much as the root of n. [-]"""
        _, at, count = np.unique(self.source.astype(str), return_inverse=True, return_counts=True)
        return np.asarray(1.0 / np.sqrt(count[at]))


def first_predictions(path: Path | None = None) -> dict[tuple[str, str, str], First]:
    """First predictions by (kind, row, metric), from the sheet of a workbook; default: the shipped one."""
    sheet = sheet_rows(path or workbook("validation.xlsx"), SHEET, "row_id")
    result: dict[tuple[str, str, str], First] = {}
    header, lines, _ = sheet if sheet is not None else ([], [], None)
    for line in lines:
        row = dict(zip(header, line, strict=True))
        value, low, high = (float(row[name]) if row[name] else math.nan for name in ("predicted", "low", "high"))
        result[row["kind"], row["row_id"], row["metric"]] = First(value, low, high, row["group"])
    return result


def readings_of(published: Sequence[Published], catalog: Catalog) -> Readings:
    """Values of the readings with their first predictions; rows refused then or today are left out."""
    known, baselines = first_predictions(), Baselines(published, catalog)
    parts = [_readings(rows, catalog, known, baselines) for rows in published if rows.kind != POWER]
    return Readings(*(np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(Readings)))


def _readings(
    published: Published, catalog: Catalog, known: dict[tuple[str, str, str], First], baselines: Baselines
) -> Readings:
    kind, names = published.kind, {row for kind, row, _ in known if kind == published.kind}
    rows = published.take([row for row, name in enumerate(published.text["row_id"]) if name in names])
    plans = plans_of(rows, catalog)
    errors = errors_of(plans, tuple(NAMES))
    row_of = {name: row for row, name in enumerate(rows.text["row_id"])}
    firsts, kept = [], []
    for at, (name, quantity) in enumerate(zip(errors.row_ids.tolist(), errors.quantity.tolist(), strict=True)):
        metric = next(one for one, of, primary in metrics_of(rows, row_of[name]) if primary and of == quantity)
        first = known.get((kind, name, metric))
        if first is not None and not math.isnan(first.predicted):
            ratio = math.log(first.predicted / rows.number[metric][row_of[name]])
            firsts.append((-ratio if metric in RATES else ratio, first.group))
            kept.append(at)
    errors, few = errors.take(np.array(kept, dtype=np.int64)), np.zeros(0)
    if kept:
        few = errors.fitted + baselines.changes(plans, predicted(plans), errors)
    unread, distance = distances(plans) if kept else (np.zeros(0), np.zeros(0))
    return Readings(
        row_ids=errors.row_ids,
        quantity=errors.quantity,
        source=np.array([rows.text["source_id"][row_of[name]] for name in errors.row_ids.tolist()], dtype=object),
        reading=np.array([_reading(group) for _, group in firsts], dtype=object),
        line=by_line(errors, catalog),
        software=errors.software,
        first=np.array([log for log, _ in firsts], dtype=np.float64),
        today=errors.fitted,
        few=few,
        experts=errors.experts,
        unread=unread[errors.plan],
        distance=distance[errors.plan],
    )


def by_line(errors: Errors, catalog: Catalog) -> np.ndarray:
    """Vendor line of the accelerator of each entry; "nvidia" for machines that have none."""
    lines = machine_lines(catalog)
    return np.array([lines.get(kind, "nvidia") for kind in errors.generation.tolist()], dtype=object)


def _reading(group: str) -> str:
    word = group.casefold().removeprefix(UNSEEN).split("-")[0]
    return word if word in _ORDER else _ORDER[0]


def distances(plans: PublishedPlans) -> tuple[Array, Array]:
    """Whether the software of each plan has no published run of its model on its accelerator, and its distance.

    Both are read off bands with one constant of 1 and all others 0.
    """
    return _probed(plans, "source"), _probed(plans, "far")


def _probed(plans: PublishedPlans, part: str) -> Array:
    ends = [f"{name}_{part}" for name in NAMES.values()]
    probe = with_bands(
        plans.catalog, {name: float(name in ends or name.endswith("_mixture")) for name in declared_constants()["band"]}
    )
    results = predicted(replace(plans, catalog=probe))
    names = [name for name in ("step_time", "tpot", "ttft") if name in results]
    widths = [np.log(results.number(f"{name}_high") / results.number(name)) for name in names]
    width = widths[0] if len(widths) == 1 else np.where(np.isnan(widths[0]), widths[1], widths[0])
    return np.asarray(np.nan_to_num(width), dtype=np.float64)


def with_bands(catalog: Catalog, values: dict[str, float]) -> Catalog:
    """Catalog with other constants of bands."""
    rows = [
        FittedConstant("band", ANY, ANY, ANY, name, value, "", 0, math.nan, "", "") for name, value in values.items()
    ]
    return catalog.with_tables([joined_tables(catalog.tables["calibration"], calibration_table(rows))])
