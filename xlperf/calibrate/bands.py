"""80 % bands of predictions from rows that were not fitted on, and the error of each constant on such rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from xlperf.base.arrays import Array
from xlperf.calibrate.comparison import FIRST_TOKEN
from xlperf.calibrate.cross_validation import CrossValidation, Step, cross_validated
from xlperf.calibrate.fit import fit_all, read_measured
from xlperf.calibrate.fitted_constants import FittedConstant, calibration_table, fit_set, rounded
from xlperf.calibrate.fitter import FEWEST_ROWS
from xlperf.calibrate.published import Published
from xlperf.calibrate.published_errors import FOLDS, Errors, fold_of
from xlperf.catalog.calibration import ANY, declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.equations.serving.results import BAND_FAMILIES

LOW_SHARE, HIGH_SHARE = 0.1, 0.9
TRAINING_BAND = "training_band"
_HELD_OUT = f"error: median of configurations held out, {FOLDS} folds, kernels as they are"


def fitted_calibration(
    catalog: Catalog,
    date: str,
    path: str | Path | None = None,
    step: Step | None = None,
    values_only: bool = False,
) -> Table:
    """The calibration sheet fitted anew, with errors by cross-validation and bands.

    Parameters
    ----------
    catalog : Catalog
        Accelerators, networks and models.
    date : str
        Date that the rows carry.
    path : path-like, optional
        Workbook of measurements; default: the shipped ``validation.xlsx``.
    step : callable, optional
        Called with the name of each fit before it starts.
    values_only : bool, default False
        As for :func:`xlperf.calibrate.fit.fit_all`.
    """
    measured = read_measured(path)
    done = fit_all(measured, catalog, date, step, values_only)
    if step is not None:
        step("bands")
    return calibration_table(with_checks(done, (measured.training, measured.inference), catalog, date))


def with_checks(
    constants: Sequence[FittedConstant], published: Sequence[Published], catalog: Catalog, date: str
) -> list[FittedConstant]:
    """Constants with their error on rows that were held out, and the bands.

    Parameters
    ----------
    constants : sequence of FittedConstant
        What was fitted; bands among them are dropped.
    published : sequence of Published
        Rows that constants of software were fitted on.
    catalog : Catalog
        Accelerators, networks and models; its calibration is not used.
    date : str
        Date that the bands carry.

    Returns
    -------
    list of FittedConstant
        The constants in their order, then the bands.
    """
    checked = [one for one in constants if not one.family.endswith("_band")]
    known = catalog.with_tables([calibration_table(checked)])
    bands: list[FittedConstant] = []
    for rows in published:
        found = cross_validated(rows, known)
        checked = _with_errors(checked, found)
        bands += fit_bands(found.errors, rows.text["row_id"], date)
    return checked + bands


def _with_errors(constants: Sequence[FittedConstant], found: CrossValidation) -> list[FittedConstant]:
    checked = list(constants)
    for row, (error, _) in found.of_constant.items():
        checked[row] = replace(checked[row], error=rounded(error), notes=_HELD_OUT)
    return checked


def fit_bands(errors: Errors, order: Sequence[str], date: str) -> list[FittedConstant]:
    """Bands of measured over predicted time by software and generation, by software, and for all.

    Each row counts twice: with its own fold of rows left out of the fit, and with its whole configuration left out.
    New runs of known configurations are like the one, those of new configurations like the other.

    Parameters
    ----------
    errors : Errors
        Of published rows of one kind.
    order : sequence of str
        Names of all rows, in the order of their table.
    date : str
        Date that the rows carry.

    Returns
    -------
    list of FittedConstant
        In a fixed order; a band for eight rows or more.
    """
    banded = errors.take(errors.quantity != FIRST_TOKEN)
    groups: dict[tuple[str, str, str], list[int]] = {}
    keys = zip(banded.band.tolist(), banded.generation.tolist(), banded.software.tolist(), strict=True)
    for row, (band, generation, software) in enumerate(keys):
        for key in ((generation, software), (ANY, software), (ANY, ANY)):
            groups.setdefault((band, *key), []).append(row)
    source = f"published rows of the sheet {errors.kind} in validation.xlsx"
    found = []
    for (band, generation, software), index in sorted(groups.items()):
        some = banded.take(np.array(index, dtype=np.int64))
        named = sorted(set(some.row_ids.tolist()))
        if len(named) < FEWEST_ROWS:
            continue
        family = BAND_FAMILIES[band] if errors.kind == "inference" else TRAINING_BAND
        for end, share in (("low", LOW_SHARE), ("high", HIGH_SHARE)):
            name = f"{band}_{end}"
            found.append(
                FittedConstant(
                    family,
                    generation,
                    ANY,
                    software,
                    name,
                    _bounded(family, name, _end(some, share, software == ANY)),
                    fit_set(named, order),
                    len(named),
                    rounded(float(np.nanmedian(np.abs(np.expm1(some.by_families))))),
                    date,
                    source,
                    notes=f"from rows left out of the fit, alone and with their configuration, {FOLDS} folds",
                )
            )
    return found


def bands_left_out(errors: Errors, order: Sequence[str]) -> Errors:
    """The errors beside bands that were fitted without the fold of the row: what new configurations would see.

    Parameters
    ----------
    errors : Errors
        Of published rows of one kind.
    order : sequence of str
        Names of all rows, in the order of their table.
    """
    folds = np.array([fold_of(name) for name in errors.family.tolist()], dtype=np.int64)
    ends = {end: np.full(len(errors), np.nan) for end in ("low", "high")}
    for fold in sorted(set(folds.tolist())):
        bands = fit_bands(errors.take(folds != fold), order, "")
        value = {(one.constant, one.generation, one.software): one.value for one in bands}
        for row in np.flatnonzero((folds == fold) & (errors.quantity != FIRST_TOKEN)).tolist():
            band, generation, software = (
                str(getattr(errors, name)[row]) for name in ("band", "generation", "software")
            )
            family = BAND_FAMILIES[band] if errors.kind == "inference" else TRAINING_BAND
            for end, values in ends.items():
                name = f"{band}_{end}"
                keys = ((name, generation, software), (name, ANY, software), (name, ANY, ANY))
                found = [value[key] for key in keys if key in value]
                values[row] = found[0] if found else declared_constants()[family][name].default
    return replace(errors, low=ends["low"], high=ends["high"])


def _bounded(family: str, name: str, value: float) -> float:
    declared = declared_constants()[family][name]
    return min(max(rounded(value), declared.low), declared.high)


def _end(errors: Errors, share: float, mixed: bool) -> float:
    """End of a band; where software is mixed, every software counts like the root of its rows."""
    ratios = np.exp(-np.concatenate([errors.by_rows, errors.by_families]))
    known = ~np.isnan(ratios)
    if not mixed:
        # This quantile leaves, as expected, the share asked for of new rows beyond it, in small samples too.
        return float(np.quantile(ratios[known], share, method="weibull"))
    names = [*errors.software.tolist(), *errors.software.tolist()]
    sizes: Mapping[str, int] = {name: names.count(name) for name in set(names)}
    weights = np.array([1.0 / np.sqrt(sizes[name]) for name in names])[known]
    return _weighted(ratios[known], share, weights)


def _weighted(values: Array, share: float, weights: Array) -> float:
    ranked = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[ranked]) / weights.sum()
    return float(values[ranked][min(int(np.searchsorted(reached, share)), len(values) - 1)])
