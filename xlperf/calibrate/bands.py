r"""80 % bands of predictions, and the error of each constant, from rows whose model was left out of the fit.

The half-width of a band is a quantile of :math:`|\ln(t_{predicted} / t_{measured})|` of rows of models left out,
in which every configuration (software, model, accelerator) counts once. That of a special group is pooled towards that
of the group above it: all of a quantity, its kind, the kind by software, by software and generation of accelerators:

.. math:: h = \frac{K h_{own} + 8 h_{above}}{K + 8}

with K configurations. The ends are the prediction over and times :math:`e^h`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from xlperf.calibrate.comparison import MEMORY
from xlperf.calibrate.cross_validation import CrossValidation, Step, cross_validated
from xlperf.calibrate.fit import fit_all, read_measured
from xlperf.calibrate.fitted_constants import FittedConstant, calibration_table, fit_set, rounded
from xlperf.calibrate.fitter import FEWEST_ROWS
from xlperf.calibrate.published import Published
from xlperf.calibrate.published_errors import QUANTITIES, Errors, configuration_weights, weighted_quantile
from xlperf.catalog.calibration import ANY, declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.equations.serving.results import BAND_FAMILIES

SHARE = 0.8
"""Share of the configurations of models left out that lies in a band. [-]"""
POOLING = 8.0
"""Configurations that weigh as much as the group above. [-]"""
TRAINING_BAND = "training_band"
_HELD_OUT = "error: median of rows whose model was left out, kernels as they are"
_KEYS = ("quantity", "band", "software", "generation")
Group = tuple[str, ...]
"""Values of the first of the columns quantity, band, software and generation: from the general to the special."""


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
        for quantities in (QUANTITIES, (MEMORY,)):
            found = cross_validated(rows, known, quantities=quantities)
            checked = _with_errors(checked, found)
            bands += fit_bands(found.errors, rows.text["row_id"], date)
    return checked + bands


def _with_errors(constants: Sequence[FittedConstant], found: CrossValidation) -> list[FittedConstant]:
    checked = list(constants)
    for row, (error, _) in found.of_constant.items():
        checked[row] = replace(checked[row], error=rounded(error), notes=_HELD_OUT)
    return checked


def fit_bands(errors: Errors, order: Sequence[str], date: str) -> list[FittedConstant]:
    """Bands of measured over predicted values by kind of run, by software, and by software and generation.

    Parameters
    ----------
    errors : Errors
        Of published rows of one kind, models left out.
    order : sequence of str
        Names of all rows, in the order of their table.
    date : str
        Date that the rows carry.

    Returns
    -------
    list of FittedConstant
        In a fixed order: the lower and the upper end of each band; a band for eight rows or more.
    """
    source = f"published rows of the sheet {errors.kind} in validation.xlsx"
    found = []
    for group, width in sorted(half_widths(errors).items()):
        if len(group) < 2:
            continue
        band, software, generation = (*group[1:], ANY, ANY)[:3]
        some = errors.take(_members(errors, group))
        named = set(some.row_ids.tolist())
        if len(named) < FEWEST_ROWS:
            continue
        family = family_of_band(band, errors.kind)
        for end, value in (("low", math.exp(-width)), ("high", math.exp(width))):
            name = f"{band}_{end}"
            found.append(
                FittedConstant(
                    family,
                    generation,
                    ANY,
                    software,
                    name,
                    _bounded(family, name, value),
                    fit_set(named, order),
                    len(named),
                    rounded(float(np.median(np.abs(np.expm1(some.by_models))))),
                    date,
                    source,
                    notes=f"models left out of the fit; {len(set(some.configuration.tolist()))} configurations",
                )
            )
    return found


def family_of_band(band: str, kind: str) -> str:
    """Family of the calibration sheet that a band stands in.

    >>> family_of_band("mixture", "training"), family_of_band("first_pooled", "inference")
    ('training_band', 'capacity_band')
    """
    return BAND_FAMILIES[band.removeprefix("first_")] if kind == "inference" else TRAINING_BAND


def half_widths(errors: Errors) -> dict[Group, float]:
    """Half-width of the band of every group of rows, pooled towards the group above it.

    Parameters
    ----------
    errors : Errors
        Models left out; rows without a prediction do not count.

    Returns
    -------
    dict of tuple to float
        By the first values of quantity, band, software and generation. [-]
    """
    known = errors.take(~np.isnan(errors.by_models))
    columns = [getattr(known, name).tolist() for name in _KEYS]
    widths: dict[Group, float] = {}
    rows: Counter[Group] = Counter()
    for depth in range(1, len(_KEYS) + 1):
        groups = list(zip(*columns[:depth], strict=True))
        sizes = Counter(groups)
        for group in sorted(sizes):
            if depth == len(_KEYS) and sizes[group] == rows[group[:-1]]:
                continue  # a software of one generation
            width, count = _quantile(known.take(np.array([one == group for one in groups], dtype=bool)))
            above = widths.get(group[:-1], width)
            widths[group] = (count * width + POOLING * above) / (count + POOLING)
        rows += sizes
    return widths


def bands_left_out(errors: Errors) -> Errors:
    """The errors beside bands that were made from other models alone: what a model that nobody measured would see.

    Parameters
    ----------
    errors : Errors
        Of published rows of one kind, models left out.
    """
    width = np.full(len(errors), math.nan)
    columns = [getattr(errors, name).tolist() for name in _KEYS]
    groups = list(zip(*columns, strict=True))
    for model in sorted(set(errors.model.tolist())):
        own = errors.model == model
        widths = half_widths(errors.take(~own))
        for row in np.flatnonzero(own).tolist():
            nearest = (groups[row][:depth] for depth in range(len(_KEYS), 0, -1))
            width[row] = next((widths[group] for group in nearest if group in widths), math.nan)
    return replace(errors, low=np.exp(-width), high=np.exp(width))


def _members(errors: Errors, group: Group) -> np.ndarray:
    """Mask of the entries of a group that have a prediction."""
    found = ~np.isnan(errors.by_models)
    for name, value in zip(_KEYS, group, strict=False):
        found = found & (getattr(errors, name) == value)
    return np.asarray(found)


def _quantile(errors: Errors) -> tuple[float, int]:
    """Size of error that the share of the configurations does not exceed, each counting once, and how many they are.

    With K configurations the share is raised by half a configuration: the quantile of few is known badly.
    """
    weight = configuration_weights(errors)
    count = round(float(weight.sum()))
    return weighted_quantile(np.abs(errors.by_models), weight, min(SHARE * (count + 0.5) / count, 1.0)), count


def _bounded(family: str, name: str, value: float) -> float:
    declared = declared_constants()[family][name]
    return min(max(rounded(value), declared.low), declared.high)
