r"""80 % bands of predictions, and the error of each constant, from rows whose model was left out of the fit.

The half-width of a band is a quantile of :math:`|\ln(t_{predicted} / t_{measured})|` of rows of models left out,
in which every configuration (software, model, accelerator) counts once. That of a special group is pooled towards that
of the group above it: all of a quantity, its kind, the kind by software, by software and generation of accelerators:

.. math:: h = h_{own}^{K / (K + 8)} h_{above}^{8 / (K + 8)}

with K configurations. What that covers is checked with models left out once more, and mended by a factor for each kind.
The ends are the prediction over and times :math:`e^h`. Machines beyond NVIDIA have bands of their own and a table of
errors with each source left out.
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
"""Share of the configurations of models left out that lies in a band. [-]"""
POOLING = 8.0
"""Configurations that weigh as much as the group above. [-]"""
_NARROWEST = 0.005
"""Half-width below which printed digits say nothing. [-]"""
_LEAST_SCALE = 0.05
"""Scale below which a check of widths says nothing. [-]"""
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

    ``errors``: of published rows of one kind, models left out. ``order``: names of all rows, in the order of their
    table. ``date``: date that the rows carry. In a fixed order: the lower and the upper end of each band; a band for
    eight rows or more.
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
    """Family of the calibration sheet that a band stands in.

    >>> family_of_band("mixture", "training"), family_of_band("first_pooled", "inference")
    ('training_band', 'capacity_band')
    """
    return BAND_FAMILIES[band.removeprefix("first_")] if kind == "inference" else TRAINING_BAND


class _Groups:
    """Errors of models left out by group, sorted by size, so that bands from some of these models follow at once."""

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
        """Value that the share of the configurations of a group does not exceed, and how many they are.

        With K configurations the share is raised by half a configuration: the quantile of few is known badly. Times to
        the first token spread within a configuration, with its load, as much as between them: these are not few.
        """
        rows, weight = self.parts[group]
        chosen = kept[rows]
        count = round(float(weight[chosen].sum()))
        raised = 0.0 if group[0] == FIRST_TOKEN else 0.5
        share = min(SHARE * (1.0 + raised / max(count, 1)), 1.0)
        return weighted_quantile(values[rows][chosen], weight[chosen], share), count

    def widths(self, kept: np.ndarray) -> dict[Group, float]:
        """Half-widths pooled towards the group above, from some of the rows."""
        by_name: dict[Group, float] = {}
        for group, (rows, _) in self.parts.items():
            if kept[rows].any():
                width, count = self.quantile(group, self.size, kept)
                width, own = max(width, _NARROWEST), count / (count + POOLING)
                by_name[group] = width**own * by_name.get(group[:-1], width) ** (1.0 - own)
        return by_name

    def checked(self, kept: np.ndarray) -> dict[Group, float]:
        """The same, scaled by band so that the share of the models left out of the widths in turn lies within them."""
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
    """Half-width of the band of every group of rows, pooled towards the group above it.

    ``errors``: models left out; rows without a prediction do not count. By the values of the first of :data:`LEVELS`.
    """
    groups = _Groups(errors)
    return groups.widths(np.full(len(groups.size), True))


def checked_widths(errors: Errors) -> dict[Group, float]:
    """The same after a check on models left out once more (normalised conformal prediction).

    Pooled quantiles of few configurations need not cover the wanted share. Each model is left out of them in turn; all
    widths of a band are then scaled by the quantile of error over width, drawn to 1 if there are few models.

    ``errors``: models left out.

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
    """Errors with bands made from other models alone, as for a model that nobody has measured.

    ``errors``: of published rows of one kind, models left out.
    """
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
    """Calibration sheet with constants of accelerators beyond NVIDIA refitted; all others unchanged.

    ``measured``: rows to fit on. ``catalog``: with the calibration whose other constants are kept. ``date``: date that
    the rows carry.
    """
    shared, done = machine_constants(measured, catalog, date)
    known, sheets = and_constants(shared, done), (measured.training, measured.inference)
    for rows, errors in zip(sheets, errors_left_out(measured.machines, known, measured.kernels), strict=True):
        done += bands_of_machines(errors, rows.text["row_id"], catalog, date)
    return joined_tables(shared.tables["calibration"], calibration_table(done))


def by_line(errors: Errors, catalog: Catalog) -> Errors:
    """Errors whose group of machines is the line, whatever the software.

    ``errors``: of rows on such machines.
    """
    lines = machine_lines(catalog)
    line = np.array([lines.get(kind, kind) for kind in errors.generation.tolist()], dtype=object)
    return replace(errors, generation=line, software=np.full(len(errors), ANY, dtype=object))


def bands_of_machines(errors: Errors, order: Sequence[str], catalog: Catalog, date: str) -> list[FittedConstant]:
    """Bands of each line of machines, pooled towards those of all such machines.

    ``errors``: sources left out. ``order``: names of all rows, in the order of their table. ``date``: date that the
    rows carry. Returns lower and upper ends; a line without rows of its own has the band of all such machines.
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
    """A line for each line of machines, kind of rows and quantity, with half of the sources left out at a time; rows
    that were read later have lines of their own.

    ``errors``: as :func:`xlperf.calibrate.fit_machines.errors_left_out` has them. ``measured``: the rows.
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
