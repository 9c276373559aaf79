"""What serving engines take beyond kernels, as rows of the calibration sheet, and the bands of the time per token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from xlperf.arrays import Array
from xlperf.catalog.calibration import ANY, declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.explore.fit_descent import Fitted, fit_values, held_out_errors, left_out_errors, told_groups
from xlperf.explore.fit_engines import Group, Kind, ServingRows, middle, plain_constant, serving_rows
from xlperf.explore.fit_rows import FittedConstant, fit_set, rounded
from xlperf.explore.fit_stacks import HIGH_SHARE, LOW_SHARE
from xlperf.explore.fit_training import FEWEST_ROWS
from xlperf.explore.published import Published

FAMILY, BAND = "serving_software", "serving_band"
SOURCE = "published rows of the sheet inference in validation.xlsx"

KINDS = (
    Kind(FAMILY, "layer_overhead_time", ("software",), 5e-6),
    Kind(FAMILY, "token_overhead_time", ("software",), 3e-6),
    Kind(FAMILY, "kernel_overhead_time", ("software",), 5e-6, start=5e-5),
    Kind("serving_load", "waiting_share", ("software",), 0.02),
    Kind(FAMILY, "prefill_overhead_time", (), 1e-3),
    Kind("serving_host", "host_slowdown", ("generation",), 0.05, reference="hopper", shared=False),
    Kind("serving_experts", "memory_slowdown", ("generation", "precision"), 0.05, shared=False),
    Kind("serving_experts", "product_slowdown", ("generation", "precision"), 0.05, shared=False),
    Kind("serving_experts", "layer_overhead_time", ("generation",), 5e-6),
    Kind("serving_attention", "memory_slowdown", ("generation",), 0.05, shared=False),
    Kind("engine_all_reduce", "launch_time", ("generation",), 1e-6),
    Kind("engine_all_reduce", "bandwidth_efficiency", (), 0.05),
    Kind("attention_latent", "memory_efficiency", ("generation",), 0.05),
    Kind("attention_latent", "compute_efficiency", ("generation",), 0.02),
)
"""Constants of serving; four of an engine's own, the others of a generation, or of all."""

_HELD_OUT = "error: rows held out by model, accelerator and mapping, to first order around the fit"
_MIDDLE = "median of the others; error: each engine under the medians of the others"
_UNTOLD = "the rows do not tell this constant: median of the others, or the declared default"


def fit_serving(published: Published, catalog: Catalog, date: str) -> list[FittedConstant]:
    """Fit what engines take beyond kernels, all constants at once; then the bands.

    Parameters
    ----------
    published : Published
        Inference rows; those of ``group`` papers and of the sources that are never fitted are not used.
    catalog : Catalog
        Catalog whose calibration has the kernel constants.
    date : str
        Date that the rows carry.

    Returns
    -------
    list of FittedConstant
        Constants of :data:`KINDS` and the family ``serving_band``, in a fixed order.
    """
    rows = serving_rows(published, catalog)
    if rows.num_rows(np.full(len(rows), True)) < FEWEST_ROWS:
        return []
    fitted = fit_values(rows, catalog, KINDS)
    errors = held_out_errors(rows, fitted)
    others = left_out_errors(rows, KINDS, fitted, catalog)
    order = published.text["row_id"]
    found = []
    for index, group, value, told in told_groups(KINDS, fitted):
        if _enough(rows, KINDS[index], group):
            mask = _of_group(rows, KINDS[index], group)
            found.append(_row(rows, KINDS[index], group, value, mask, errors, order, date, told))
    for index, kind in enumerate(KINDS):
        if kind.keys and kind.shared:
            found.append(_shared_row(rows, kind, index, fitted, others, order, date))
    return found + _bands(rows, errors, others, order, date)


def _of_group(rows: ServingRows, kind: Kind, group: Group) -> np.ndarray:
    return np.array([each == group for each in rows.groups(kind)], dtype=bool)


def _enough(rows: ServingRows, kind: Kind, group: Group) -> bool:
    return rows.num_rows(_of_group(rows, kind, group)) >= FEWEST_ROWS


def _median_error(errors: Array) -> float:
    known = errors[~np.isnan(errors)]
    return rounded(float(np.median(np.abs(np.expm1(known))))) if len(known) else math.nan


def _row(
    rows: ServingRows, kind: Kind, group: Group, value: float, mask: np.ndarray, errors: Array,
    order: Sequence[str], date: str, told: bool,
) -> FittedConstant:  # fmt: skip
    return replace(
        plain_constant(kind, group, value),
        fit_set=fit_set(rows.row_ids[mask].tolist(), order) if told else "",
        num_rows=rows.num_rows(mask) if told else 0,
        error=_median_error(errors[mask]),
        date=date,
        source=SOURCE,
        kind="measured" if told else "assumption",
        notes=_HELD_OUT if told else _UNTOLD,
    )


def _shared_row(
    rows: ServingRows, kind: Kind, index: int, fitted: Fitted, others: Array, order: Sequence[str], date: str
) -> FittedConstant:
    told = {group: value for group, value in fitted.values[index].items() if (index, group) not in fitted.held}
    value = rounded(middle(told)) if told else kind.default
    every = np.full(len(rows), bool(told))
    row = _row(rows, kind, (ANY,) * len(kind.keys), value, every, others, order, date, bool(told))
    return replace(row, notes=_MIDDLE if told else _UNTOLD)


def _bands(rows: ServingRows, errors: Array, others: Array, order: Sequence[str], date: str) -> list[FittedConstant]:
    """80 % bands of measured over predicted time per token: by engine and generation, by engine, then all."""
    pairs = sorted(set(zip(rows.software.tolist(), rows.generation.tolist(), strict=True)))
    groups = [(pair, (rows.software == pair[0]) & (rows.generation == pair[1]), errors) for pair in pairs]
    groups += [((name, ANY), rows.software == name, errors) for name in sorted({pair[0] for pair in pairs})]
    groups.append(((ANY, ANY), np.full(len(rows), True), others))
    found = []
    for (software, generation), mask, values in groups:
        chosen = mask & ~rows.first_token & ~np.isnan(values)
        if rows.num_rows(chosen) < FEWEST_ROWS:
            continue
        measured = np.exp(-values[chosen])
        for name, share in (("step_low", LOW_SHARE), ("step_high", HIGH_SHARE)):
            constant = declared_constants()[BAND][name]
            value = min(max(float(np.quantile(measured, share)), constant.low), constant.high)
            found.append(
                FittedConstant(
                    BAND,
                    generation,
                    ANY,
                    software,
                    name,
                    rounded(value),
                    fit_set(rows.row_ids[chosen].tolist(), order),
                    rows.num_rows(chosen),
                    _median_error(values[chosen]),
                    date,
                    SOURCE,
                    notes="from residuals of rows held out" if software != ANY else "each engine by the others",
                )
            )
    return found
