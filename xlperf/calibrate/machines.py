"""Machines beyond NVIDIA: their part of the calibration fitted anew, their bands, and the table of sources left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from xlperf.base.arrays import Array
from xlperf.calibrate.bands import family_of_band, half_widths
from xlperf.calibrate.fit import Measured, and_constants
from xlperf.calibrate.fit_machines import SOURCE, errors_left_out, machine_constants
from xlperf.calibrate.fitted_constants import (
    FittedConstant,
    calibration_table,
    fit_set,
    joined_tables,
    rounded,
)
from xlperf.calibrate.fitter import FEWEST_ROWS
from xlperf.calibrate.kernel_measurements import machine_lines
from xlperf.calibrate.published_errors import Errors
from xlperf.catalog.calibration import ANY, declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table

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
    widths, found = half_widths(own), []
    for quantity, band in sorted({(group[0], group[1]) for group in widths if len(group) > 1}):
        for line in sorted(set(machine_lines(catalog).values())):
            group = (quantity, band, ANY, line)
            width = widths.get(group, widths[quantity, band])
            mine = (own.quantity == quantity) & (own.band == band) & (own.generation == line)
            named = set(own.row_ids[mine].tolist())
            family = family_of_band(band, errors.kind)
            for end, value in (("low", math.exp(-width)), ("high", math.exp(width))):
                declared = declared_constants()[family][f"{band}_{end}"]
                found.append(
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
    return found


def machines_table(
    errors: Sequence[Errors], measured: Measured, catalog: Catalog
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """A line for each line of machines, kind of rows and quantity, with half of the sources left out at a time.

    ``errors``: as :func:`xlperf.calibrate.fit_machines.errors_left_out` has them. ``measured``: the rows.
    """
    lines: list[tuple[str, ...]] = []
    source = {
        name: of
        for rows in measured.machines
        for name, of in zip(rows.text["row_id"], rows.text["source_id"], strict=True)
    }
    for kind in errors:
        own = by_line(kind, catalog)
        for quantity in sorted(set(own.quantity.tolist())):
            names = sorted(set(own.generation[own.quantity == quantity].tolist()))
            for name in (*names, "all") if len(names) > 1 else names:
                some = own.take((own.quantity == quantity) & ((own.generation == name) | (name == "all")))
                logs = some.by_models
                width = np.log(some.high)
                lines.append(
                    (
                        name, kind.kind, quantity, f"{len(some)}",
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
