r"""80 % prediction bands and the error of each constant, from leave-one-model-out cross-validation.

The half-width of a band is a quantile of :math:`|\ln(t_{predicted} / t_{measured})|` over rows of left-out models;
every configuration (software, model, accelerator) counts once. A subgroup's half-width is shrunk towards its parent's.
The levels are: all rows of a quantity, its kind, the kind by software, by software and accelerator generation.

.. math:: h = h_{own}^{K / (K + 8)} h_{above}^{8 / (K + 8)}

with K configurations. A second leave-one-model-out pass measures the coverage, and a factor per kind corrects it.
The ends are the prediction over and times :math:`e^h`. Machines beyond NVIDIA have separate bands and an error table
from leave-source-out cross-validation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from xlperf.base.arrays import Array
from xlperf.calibrate.cross_validation import Step, cross_validated
from xlperf.calibrate.fit import Measured, fit_all, read_measured
from xlperf.calibrate.fit_machines import SOURCE, errors_left_out, machine_constants
from xlperf.calibrate.fit_machines import SOURCE as OF_MACHINES
from xlperf.calibrate.fit_unmeasured import and_constants
from xlperf.calibrate.fitter import FEWEST_ROWS, FittedConstant, calibration_table, fit_set, joined_tables, rounded
from xlperf.calibrate.published_errors import QUANTITIES, READ_LATER, Errors, configuration_weights, weighted_quantile
from xlperf.catalog.calibration import ANY, declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.equations.serving.results import BAND_FAMILIES
from xlperf.measurements.comparison import FIRST_TOKEN, MEMORY
from xlperf.measurements.kernels import machine_lines
from xlperf.measurements.published import Published

SHARE = 0.8
"""Nominal coverage of a band: share of left-out configurations inside it. [-]"""
POOLING = 8.0
"""Number of configurations that weighs as much as the parent group. [-]"""
_NARROWEST = 0.005
"""Least half-width: the rounding of published digits. [-]"""
_LEAST_SCALE = 0.05
"""Least correction factor of the half-widths; a smaller one comes from too few rows. [-]"""
TRAINING_BAND = "training_band"
_HELD_OUT = "error: median of rows whose model was left out, kernels as they are"
LEVELS = ("quantity", "band", "software", "generation")
"""Columns of errors that define the groups, from general to specific."""
Group = tuple[str, ...]
"""Values of the first columns of ``LEVELS``."""


def fitted_calibration(
    catalog: Catalog, date: str, path: str | Path | None = None, step: Step | None = None, values_only: bool = False
) -> Table:
    """Refit the calibration sheet, with cross-validation errors and bands.

    ``path`` is the workbook of measurements (default: the shipped ``validation.xlsx``); ``step`` receives the name of
    each fit before it starts; ``values_only`` is passed to :func:`xlperf.calibrate.fit.fit_all`.
    """
    measured = read_measured(path)
    done = fit_all(measured, catalog, date, step, values_only)
    if step is not None:
        step("bands")
    return with_checks(calibration_table(done), (measured.training, measured.inference), catalog, date)[0]


def with_checks(
    table: Table, published: Sequence[Published], catalog: Catalog, date: str
) -> tuple[Table, list[Errors]]:
    """Add leave-one-model-out errors of the constants and bands to a calibration sheet.

    Existing bands are replaced, except for machines fitted by vendor line. Returns the sheet (constants in their order,
    then bands) and the cross-validation errors.
    """
    names = zip(table.text("family").tolist(), table.text("source").tolist(), strict=True)
    kept = [not str(family).endswith("_band") or str(source).startswith(OF_MACHINES) for family, source in names]
    table = table.take(np.flatnonzero(kept).tolist())
    known = catalog.with_tables([table])
    error, notes = np.array(table.number("error")), np.array(table.text("notes"), dtype=object)
    bands: list[FittedConstant] = []
    results: list[Errors] = []
    for rows in published:
        for quantities in (QUANTITIES, (MEMORY,)):
            checked = cross_validated(rows, known, quantities=quantities)
            results.append(checked.errors)
            bands += fit_bands(checked.errors, rows.text["row_id"], date)
            for row, (size, _) in checked.of_constant.items():
                error[row] = rounded(size)
                notes[row] = "; ".join([*(word for word in str(notes[row]).split("; ") if word and word != _HELD_OUT),
                                        _HELD_OUT])  # fmt: skip
    whole = Table("calibration", {**table.columns, "error": error, "notes": notes}, table.place)
    return joined_tables(whole, calibration_table(bands)), results


def fit_bands(errors: Errors, order: Sequence[str], date: str) -> list[FittedConstant]:
    """Bands of measured over predicted values by kind of run, by software, and by software and generation.

    ``errors`` come from leave-one-model-out cross-validation; ``order`` has all row names in table order. A group with
    eight rows or more gets a lower and an upper end.
    """
    source = f"published rows of the sheet {errors.kind} in validation.xlsx"
    results = []
    for group, width in sorted(checked_widths(errors).items()):
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
            results.append(
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
    return results


def family_of_band(band: str, kind: str) -> str:
    """Calibration family of a band.

    >>> family_of_band("mixture", "training"), family_of_band("first_pooled", "inference")
    ('training_band', 'capacity_band')
    """
    return BAND_FAMILIES[band.removeprefix("first_")] if kind == "inference" else TRAINING_BAND


class _Groups:
    """Leave-one-model-out errors by group, sorted by size, so that quantiles over a subset of models are cheap."""

    def __init__(self, errors: Errors) -> None:
        known = errors.take(~np.isnan(errors.by_models))
        columns = [getattr(known, name).tolist() for name in LEVELS]
        self.size, self.model = np.abs(known.by_models), known.model
        self.names: list[Group] = list(zip(*columns, strict=True))
        self.parts: dict[Group, tuple[np.ndarray, np.ndarray]] = {}
        for depth in range(1, len(LEVELS) + 1):
            rows: dict[Group, list[int]] = {}
            for row, name in enumerate(self.names):
                rows.setdefault(name[:depth], []).append(row)
            for group in sorted(rows):
                own = np.array(rows[group], dtype=np.int64)
                own = own[np.argsort(self.size[own], kind="stable")]
                self.parts[group] = own, configuration_weights(known.take(own))

    def quantile(self, group: Group, values: Array, kept: np.ndarray) -> tuple[float, int]:
        """Quantile of a group at the nominal coverage, and its number of configurations.

        With K configurations the level is raised by half a configuration (small-sample correction). Time to first token
        is exempt: it varies within a configuration, with load, as much as between configurations.
        """
        rows, weight = self.parts[group]
        chosen = kept[rows]
        count = round(float(weight[chosen].sum()))
        raised = 0.0 if group[0] == FIRST_TOKEN else 0.5
        share = min(SHARE * (1.0 + raised / max(count, 1)), 1.0)
        return weighted_quantile(values[rows][chosen], weight[chosen], share), count

    def widths(self, kept: np.ndarray) -> dict[Group, float]:
        """Half-widths from a subset of the rows, each shrunk towards its parent group."""
        by_name: dict[Group, float] = {}
        for group, (rows, _) in self.parts.items():
            if kept[rows].any():
                width, count = self.quantile(group, self.size, kept)
                width, own = max(width, _NARROWEST), count / (count + POOLING)
                by_name[group] = width**own * by_name.get(group[:-1], width) ** (1.0 - own)
        return by_name

    def checked(self, kept: np.ndarray) -> dict[Group, float]:
        """Half-widths scaled per band to the nominal coverage, by leaving each model out of them in turn."""
        score = np.full(len(self.size), math.nan)
        for model in sorted(set(self.model[kept].tolist())):
            own = kept & (self.model == model)
            widths = self.widths(kept & ~own)
            for row in np.flatnonzero(own).tolist():
                score[row] = self.size[row] / nearest_width(widths, self.names[row])
        result = self.widths(kept)
        for band in [group for group in result if len(group) == 2]:
            scale, count = self.quantile(band, score, kept & ~np.isnan(score))
            if count:
                scale = max(scale, _LEAST_SCALE) ** (count / (count + POOLING))
                result |= {group: width * scale for group, width in result.items() if group[:2] == band}
        return result


def half_widths(errors: Errors) -> dict[Group, float]:
    """Half-width of the band of every group, shrunk towards its parent, keyed by values of the first of :data:`LEVELS`.

    Rows without a prediction do not count.
    """
    groups = _Groups(errors)
    return groups.widths(np.full(len(groups.size), True))


def checked_widths(errors: Errors) -> dict[Group, float]:
    """Half-widths corrected for coverage by a second leave-one-model-out pass (normalised conformal prediction).

    Pooled quantiles of few configurations may miss the nominal coverage. Each model is left out of the half-widths in
    turn; all half-widths of a band are then scaled by the quantile of error over half-width, shrunk to 1 for few
    models.

    References: J. Lei et al., "Distribution-free predictive inference for regression", J. Am. Stat. Assoc. 113, 2018,
    doi:10.1080/01621459.2017.1307116.
    """
    groups = _Groups(errors)
    return groups.checked(np.full(len(groups.size), True))


def nearest_width(widths: Mapping[Group, float], group: Group) -> float:
    """Half-width of the most specific group that has one; NaN if none has.

    >>> nearest_width({("step time",): 0.2, ("step time", "mixture"): 0.3}, ("step time", "mixture", "nemo"))
    0.3
    """
    names = (group[:depth] for depth in range(len(group), 0, -1))
    return next((widths[name] for name in names if name in widths), math.nan)


def bands_left_out(errors: Errors) -> Errors:
    """Errors with bands made from other models alone, as for an unmeasured model."""
    width = np.full(len(errors), math.nan)
    groups = _Groups(errors)
    columns = [getattr(errors, name).tolist() for name in LEVELS]
    names = list(zip(*columns, strict=True))
    for model in sorted(set(errors.model.tolist())):
        widths = groups.checked(groups.model != model)
        for row in np.flatnonzero(errors.model == model).tolist():
            width[row] = nearest_width(widths, names[row])
    return replace(errors, low=np.exp(-width), high=np.exp(width))


def _members(errors: Errors, group: Mapping[str, str]) -> np.ndarray:
    """Mask of the entries of a group that have a prediction."""
    result = ~np.isnan(errors.by_models)
    for name, value in group.items():
        result = result & (getattr(errors, name) == value)
    return np.asarray(result)


def _bounded(family: str, name: str, value: float) -> float:
    declared = declared_constants()[family][name]
    return min(max(rounded(value), declared.low), declared.high)


_HEADER = (
    "machines", "rows", "quantity", "number", "sources", "median error", "p90", "bias", "in the fit: median", "p90",
    "in the 80 % band", "width of the band",
)  # fmt: skip


def refit_machines(measured: Measured, catalog: Catalog, date: str) -> Table:
    """Calibration sheet with constants of accelerators beyond NVIDIA refitted; all other constants are unchanged."""
    shared, done = machine_constants(measured, catalog, date)
    known, sheets = and_constants(shared, done), (measured.training, measured.inference)
    for rows, errors in zip(sheets, errors_left_out(measured.machines, known, measured.kernels), strict=True):
        done += bands_of_machines(errors, rows.text["row_id"], catalog, date)
    return joined_tables(shared.tables["calibration"], calibration_table(done))


def by_line(errors: Errors, catalog: Catalog) -> Errors:
    """Errors grouped by vendor line, whatever the software."""
    lines = machine_lines(catalog)
    line = np.array([lines.get(kind, kind) for kind in errors.generation.tolist()], dtype=object)
    return replace(errors, generation=line, software=np.full(len(errors), ANY, dtype=object))


def bands_of_machines(errors: Errors, order: Sequence[str], catalog: Catalog, date: str) -> list[FittedConstant]:
    """Lower and upper band ends of each vendor line, shrunk towards the band over all lines.

    ``errors`` come from leave-source-out cross-validation. A line without rows has the band over all lines.
    """
    own = by_line(errors, catalog)
    widths, result = half_widths(own), []
    for quantity, band in sorted({(group[0], group[1]) for group in widths if len(group) > 1}):
        for line in sorted(set(machine_lines(catalog).values())):
            group = (quantity, band, ANY, line)
            width = widths.get(group, widths[quantity, band])
            mine = (own.quantity == quantity) & (own.band == band) & (own.generation == line)
            named = set(own.row_ids[mine].tolist())
            family = family_of_band(band, errors.kind)
            for end, value in (("low", math.exp(-width)), ("high", math.exp(width))):
                declared = declared_constants()[family][f"{band}_{end}"]
                result.append(
                    FittedConstant(
                        family,
                        line,
                        ANY,
                        ANY,
                        f"{band}_{end}",
                        min(max(rounded(value), declared.low), declared.high),
                        fit_set(named, order),
                        len(named),
                        rounded(float(np.median(np.abs(np.expm1(own.by_models[mine]))))) if named else math.nan,
                        date,
                        SOURCE,
                        kind="measured" if len(named) >= FEWEST_ROWS else "assumption",
                        notes="sources left out of the fit, pooled towards all such machines",
                    )
                )
    return result


def machines_table(
    errors: Sequence[Errors], measured: Measured, catalog: Catalog
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Table of errors by vendor line, kind and quantity, with half of the sources left out at a time.

    Rows read after the model was made have separate lines. ``errors`` come from
    :func:`xlperf.calibrate.fit_machines.errors_left_out`.
    """
    lines: list[tuple[str, ...]] = []
    source = {
        name: of
        for rows in measured.machines
        for name, of in zip(rows.text["row_id"], rows.text["source_id"], strict=True)
    }
    for kind in errors:
        every = by_line(kind, catalog)
        later = np.array([group.casefold().endswith(READ_LATER) for group in every.group.tolist()], dtype=bool)
        parts = [(every.take(later == last), kind.kind + ", read later" * last) for last in (False, True)]
        for own, rows, quantity in ((*part, name) for part in parts for name in sorted(set(part[0].quantity.tolist()))):
            names = sorted(set(own.generation[own.quantity == quantity].tolist()))
            for name in (*names, "all") if len(names) > 1 else names:
                some = own.take((own.quantity == quantity) & ((own.generation == name) | (name == "all")))
                logs = some.by_models
                width = np.log(some.high)
                lines.append(
                    (
                        name, rows, quantity, f"{len(some)}",
                        f"{len({source[row] for row in some.row_ids.tolist()})}",
                        *_statistics(logs), f"{100.0 * math.expm1(float(np.median(logs))):+.1f} %",
                        *_statistics(some.fitted), _share(some.covered(logs)),
                        "-" if np.isnan(width).all() else f"{math.exp(float(np.median(width))):.2f}",
                    )
                )  # fmt: skip
    return _HEADER, lines


def _statistics(errors: Array) -> tuple[str, str]:
    sizes = np.abs(np.expm1(errors))
    return f"{100.0 * float(np.median(sizes)):.1f} %", f"{100.0 * float(np.quantile(sizes, 0.9)):.1f} %"


def _share(inside: Array) -> str:
    known = inside[~np.isnan(inside)]
    return f"{100.0 * float(known.mean()):.0f} %" if len(known) else "-"
