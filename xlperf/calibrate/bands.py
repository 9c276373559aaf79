r"""80 % bands by one rule, fitted on the first predictions of publishers that no fit has read.

The half-width of a band, in the logarithm of the prediction, is

.. math:: h = m\,\sqrt{b^2 + u\,s^2 + (d f)^2}

with four constants a quantity (step time, time per token, time to first token, memory of training): b where the
software has published runs of the model on the accelerator, s added where it has none (u = 1), f for each unit of
distance d, and the factor m of models with experts (:func:`xlperf.equations.plan.records.half_width`). They minimise
the pinball loss of the size of the errors at 80 %; a publisher of n values weighs as much as the root of n. The rule is
judged on publishers left out: the constants are fitted without a tenth of them at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from xlperf.base.arrays import Array
from xlperf.calibrate.cross_validation import Step, cross_validated
from xlperf.calibrate.fit import Measured, fit_all
from xlperf.calibrate.fit_machines import machine_constants
from xlperf.calibrate.fit_unmeasured import and_constants
from xlperf.calibrate.fitter import FittedConstant, calibration_table, joined_tables, rounded
from xlperf.calibrate.levels import without_equal_levels, without_weak_rows
from xlperf.calibrate.published_errors import QUANTITIES
from xlperf.calibrate.readings import NAMES, Readings, readings_of
from xlperf.catalog.calibration import ANY, declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.equations.plan.records import half_width
from xlperf.measurements.comparison import MEMORY
from xlperf.measurements.published import Published

SHARE = 0.8
"""Nominal coverage of a band. [-]"""
FOLDS = 10
"""Number of parts of the publishers that are left out one by one. [-]"""
PARTS = ("", "_source", "_far", "_mixture")
SOURCE = "first predictions of the sheets training and inference in validation.xlsx"
_RIDGE = 1e-4
"""Weight of the squared logarithm of a constant over its declared default, where few values tell it. [-]"""
_HELD_OUT = "error: median of rows whose model was left out, kernels as they are"


def fitted_calibration(catalog: Catalog, date: str, measured: Measured, step: Step, values_only: bool) -> Table:
    """Refit the calibration sheet, with cross-validation errors, without bands.

    ``step`` receives the name of each fit before it starts; ``values_only`` is passed to
    :func:`xlperf.calibrate.fit.fit_all`.
    """
    done = fit_all(measured, catalog, date, step, values_only)
    step("errors")
    sheets = measured.training, measured.inference
    return with_errors(calibration_table(done), sheets, catalog)


def with_errors(table: Table, published: Sequence[Published], catalog: Catalog) -> Table:
    """Calibration sheet with the leave-one-model-out error of each constant fitted on published rows."""
    known = catalog.with_tables([table])
    error, notes = np.array(table.number("error")), np.array(table.text("notes"), dtype=object)
    for rows in published:
        for quantities in (QUANTITIES, (MEMORY,)):
            for row, (size, _) in cross_validated(rows, known, quantities=quantities).of_constant.items():
                error[row] = rounded(size)
                words = [word for word in str(notes[row]).split("; ") if word and word != _HELD_OUT]
                notes[row] = "; ".join([*words, _HELD_OUT])
    return Table("calibration", {**table.columns, "error": error, "notes": notes}, table.place)


def refitted_machines(measured: Measured, catalog: Catalog, date: str) -> Catalog:
    """Catalog with constants of accelerators beyond NVIDIA refitted; all other constants are unchanged."""
    shared, done = machine_constants(measured, catalog, date)
    return and_constants(shared, done)


def refitted_bands(published: Sequence[Published], catalog: Catalog, date: str) -> Table:
    """Calibration sheet with bands fitted anew on the readings, without rows that equal a more general level."""
    bands = fitted_bands(readings_of(published, catalog), date)
    table = without_equal_levels(catalog.tables["calibration"], catalog)
    table = without_weak_rows(table, catalog, published)
    return joined_tables(table, calibration_table(bands))


def fitted_bands(readings: Readings, date: str) -> list[FittedConstant]:
    """Constants of the bands of every quantity with values."""
    results = []
    for quantity, name in NAMES.items():
        own = readings.take(readings.quantity == quantity)
        if not len(own):
            continue
        inside = np.abs(own.first) <= widths_left_out(own, name)
        words = f"{100.0 * inside.mean():.0f} % of the values of publishers left out lie in the band"
        results += [
            FittedConstant(
                "band",
                ANY,
                ANY,
                ANY,
                f"{name}{part}",
                value,
                f"{len(set(own.source.tolist()))} publishers",
                len(set(own.row_ids.tolist())),
                rounded(float(np.median(np.abs(np.expm1(own.first))))),
                date,
                SOURCE,
                notes=words,
            )
            for part, value in zip(PARTS, _fitted(own, name).tolist(), strict=True)
        ]
    return results


def widths_left_out(readings: Readings, name: str) -> Array:
    """Half-width of the band of each value of one quantity, fitted without its publisher."""
    sources = sorted(set(readings.source.tolist()))
    fold_of = {source: at % FOLDS for at, source in enumerate(sources)}
    fold = np.array([fold_of[source] for source in readings.source.tolist()])
    result = np.full(len(readings), math.nan)
    for one in sorted(set(fold.tolist())):
        own = fold == one
        if not own.all():
            result[own] = _widths(_fitted(readings.take(~own), name), readings.take(own))
    return result


def _widths(values: Array, readings: Readings) -> Array:
    base, source, far, mixture = values
    wide = half_width(base, readings.unread, source, readings.distance, far)
    return np.where(readings.experts, mixture, 1.0) * wide


def _fitted(readings: Readings, name: str) -> Array:
    """Constants of a quantity in the order of :data:`PARTS`: least pinball loss, by the Nelder-Mead method."""
    from scipy.optimize import minimize

    declared = [declared_constants()["band"][f"{name}{part}"] for part in PARTS]
    start = np.log([one.default for one in declared])
    low, high = np.log([max(one.low, 0.005) for one in declared]), np.log([one.high for one in declared])
    size, weights = np.abs(readings.first), readings.weights()
    weights = weights / weights.sum()

    def loss(logs: Array) -> float:
        over = size - _widths(np.exp(np.clip(logs, low, high)), readings)
        pinball = np.where(over > 0.0, SHARE * over, (SHARE - 1.0) * over)
        return float((weights * pinball).sum() + _RIDGE * ((logs - start) ** 2).sum())

    options = {"maxiter": 2000, "xatol": 1e-3, "fatol": 1e-7}
    found = minimize(loss, start, method="Nelder-Mead", options=options).x
    return np.array([rounded(value) for value in np.exp(np.clip(found, low, high)).tolist()])
