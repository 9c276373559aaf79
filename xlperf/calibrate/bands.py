r"""80 % bands of predictions, and the error of each constant, from rows whose model was left out of the fit.

The half-width of a band is a quantile of :math:`|\ln(t_{predicted} / t_{measured})|` of rows of models left out,
in which every configuration (software, model, accelerator) counts once. That of a special group is pooled towards that
of the group above it: all of a quantity, its kind, the kind by software, by software and generation of accelerators:

.. math:: h = h_{own}^{K / (K + 8)} h_{above}^{8 / (K + 8)}

with K configurations. The ends are the prediction over and times :math:`e^h`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from xlperf.calibrate.comparison import FIRST_TOKEN, MEMORY
from xlperf.calibrate.cross_validation import Step, cross_validated
from xlperf.calibrate.fit import fit_all, read_measured
from xlperf.calibrate.fit_machines import SOURCE as OF_MACHINES
from xlperf.calibrate.fitted_constants import FittedConstant, calibration_table, fit_set, joined_tables, rounded
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
_NARROWEST = 0.005
"""Half-width below which printed digits say nothing. [-]"""
TRAINING_BAND = "training_band"
_HELD_OUT = "error: median of rows whose model was left out, kernels as they are"
LEVELS = ("quantity", "band", "software", "generation")
"""Columns of errors that groups are made by, from the general to the special."""
Group = tuple[str, ...]
"""Values of the first of these columns."""


def fitted_calibration(
    catalog: Catalog,
    date: str,
    path: str | Path | None = None,
    step: Step | None = None,
    values_only: bool = False,
) -> Table:
    """The calibration sheet fitted anew, with errors by cross-validation and bands.

    ``catalog``: accelerators, networks and models. ``date``: date that the rows carry. ``path``: workbook of
    measurements; default: the shipped ``validation.xlsx``. ``step``: called with the name of each fit before it starts.
    ``values_only``: as for :func:`xlperf.calibrate.fit.fit_all`.
    """
    measured = read_measured(path)
    done = fit_all(measured, catalog, date, step, values_only)
    if step is not None:
        step("bands")
    return with_checks(calibration_table(done), (measured.training, measured.inference), catalog, date)[0]


def with_checks(
    table: Table, published: Sequence[Published], catalog: Catalog, date: str
) -> tuple[Table, list[Errors]]:
    """A calibration sheet with the error of its constants on rows of models left out, and with bands from these.

    ``table``: calibration sheet; bands in it are dropped, but for those of machines that are fitted by line.
    ``published``: rows that constants of software were fitted on. ``catalog``: accelerators, networks and models; its
    calibration is not used. ``date``: date that the bands carry. Returns the sheet, its constants in their order and
    then the bands; and the errors that these are made from.
    """
    names = zip(table.text("family").tolist(), table.text("source").tolist(), strict=True)
    kept = [not str(family).endswith("_band") or str(source).startswith(OF_MACHINES) for family, source in names]
    table = table.take(np.flatnonzero(kept).tolist())
    known = catalog.with_tables([table])
    error, notes = np.array(table.number("error")), np.array(table.text("notes"), dtype=object)
    bands: list[FittedConstant] = []
    found: list[Errors] = []
    for rows in published:
        for quantities in (QUANTITIES, (MEMORY,)):
            checked = cross_validated(rows, known, quantities=quantities)
            found.append(checked.errors)
            bands += fit_bands(checked.errors, rows.text["row_id"], date)
            for row, (size, _) in checked.of_constant.items():
                error[row] = rounded(size)
                notes[row] = "; ".join([*(word for word in str(notes[row]).split("; ") if word and word != _HELD_OUT),
                                        _HELD_OUT])  # fmt: skip
    whole = Table("calibration", {**table.columns, "error": error, "notes": notes}, table.place)
    return joined_tables(whole, calibration_table(bands)), found


def fit_bands(errors: Errors, order: Sequence[str], date: str) -> list[FittedConstant]:
    """Bands of measured over predicted values by kind of run, by software, and by software and generation.

    ``errors``: of published rows of one kind, models left out. ``order``: names of all rows, in the order of their
    table. ``date``: date that the rows carry. In a fixed order: the lower and the upper end of each band; a band for
    eight rows or more.
    """
    source = f"published rows of the sheet {errors.kind} in validation.xlsx"
    found = []
    for group, width in sorted(half_widths(errors).items()):
        if len(group) < 2:
            continue
        named_by = dict(zip(LEVELS, group, strict=False))
        software, generation = (named_by.get(name, ANY) for name in ("software", "generation"))
        band, some = group[1], errors.take(_members(errors, named_by))
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

    ``errors``: models left out; rows without a prediction do not count. By the values of the first of :data:`LEVELS`.
    """
    known = errors.take(~np.isnan(errors.by_models))
    columns = [getattr(known, name).tolist() for name in LEVELS]
    widths: dict[Group, float] = {}
    for depth in range(1, len(LEVELS) + 1):
        groups = list(zip(*columns[:depth], strict=True))
        for group in sorted(set(groups)):
            width, count = _quantile(known.take(np.array([one == group for one in groups], dtype=bool)))
            width, own = max(width, _NARROWEST), count / (count + POOLING)
            widths[group] = width**own * widths.get(group[:-1], width) ** (1.0 - own)
    return widths


def bands_left_out(errors: Errors) -> Errors:
    """The errors beside bands that were made from other models alone: what a model that nobody measured would see.

    ``errors``: of published rows of one kind, models left out.
    """
    width = np.full(len(errors), math.nan)
    columns = [getattr(errors, name).tolist() for name in LEVELS]
    groups = list(zip(*columns, strict=True))
    for model in sorted(set(errors.model.tolist())):
        own = errors.model == model
        widths = half_widths(errors.take(~own))
        for row in np.flatnonzero(own).tolist():
            nearest = (groups[row][:depth] for depth in range(len(LEVELS), 0, -1))
            width[row] = next((widths[group] for group in nearest if group in widths), math.nan)
    return replace(errors, low=np.exp(-width), high=np.exp(width))


def _members(errors: Errors, group: Mapping[str, str]) -> np.ndarray:
    """Mask of the entries of a group that have a prediction."""
    found = ~np.isnan(errors.by_models)
    for name, value in group.items():
        found = found & (getattr(errors, name) == value)
    return np.asarray(found)


def _quantile(errors: Errors) -> tuple[float, int]:
    """Size of error that the share of the configurations does not exceed, each counting once, and how many they are.

    With K configurations the share is raised by half a configuration: the quantile of few is known badly. Times to the
    first token spread within a configuration, with its load, as much as between them: of these the rows are not few.
    """
    weight = configuration_weights(errors)
    count = round(float(weight.sum()))
    raised = 0.0 if set(errors.quantity.tolist()) == {FIRST_TOKEN} else 0.5
    return weighted_quantile(np.abs(errors.by_models), weight, min(SHARE * (1.0 + raised / count), 1.0)), count


def _bounded(family: str, name: str, value: float) -> float:
    declared = declared_constants()[family][name]
    return min(max(rounded(value), declared.low), declared.high)
