"""What serving engines take beyond kernels, as rows of the calibration sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from xlperf.calibrate.fit_descent import Fitted, fit_values, told_groups
from xlperf.calibrate.fit_engines import Group, Kind, ServingRows, middle, plain_constant, serving_rows
from xlperf.calibrate.fit_training import FEWEST_ROWS
from xlperf.calibrate.fitted_constants import FittedConstant, fit_set, rounded
from xlperf.calibrate.published import Published
from xlperf.catalog.calibration import ANY
from xlperf.catalog.catalog import Catalog

FAMILY = "serving_software"
SOURCE = "published rows of the sheet inference in validation.xlsx"

KINDS = (
    Kind(FAMILY, "layer_overhead_time", ("software",), 5e-6),
    Kind(FAMILY, "token_overhead_time", ("software",), 3e-6),
    Kind(FAMILY, "kernel_overhead_time", ("software",), 5e-6, start=5e-5),
    Kind("serving_load", "waiting_share", ("software",), 0.02, start=0.02),
    Kind(FAMILY, "prefill_overhead_time", (), 1e-3),
    Kind("serving_host", "host_slowdown", ("generation",), 0.05, reference="hopper", shared=False),
    Kind("serving_host", "launch_slowdown", ("generation",), 0.05, reference="hopper", shared=False),
    Kind("serving_experts", "memory_slowdown", ("generation", "precision"), 0.05, shared=False),
    Kind("serving_experts", "product_slowdown", ("generation", "precision"), 0.05, shared=False),
    Kind("serving_experts", "layer_overhead_time", ("generation",), 5e-6),
    Kind("serving_experts", "favoured_share", (), 0.05, start=0.8),
    Kind("serving_attention", "memory_slowdown", ("generation",), 0.05, shared=False),
    Kind("engine_all_reduce", "launch_time", ("generation",), 1e-6),
    Kind("engine_all_reduce", "bandwidth_efficiency", (), 0.05),
    Kind("attention_latent", "memory_efficiency", ("generation",), 0.05),
    Kind("attention_latent", "compute_efficiency", ("generation",), 0.02),
    Kind("attention_latent", "prefill_kernels", (), 1.0),
)
"""Constants of serving; four of an engine's own, the others of a generation, or of all."""

_MIDDLE = "median of the others"
_UNTOLD = "the rows do not tell this constant: median of the others, or the declared default"


def fit_serving(published: Published, catalog: Catalog, date: str) -> list[FittedConstant]:
    """Fit what engines take beyond kernels, all constants at once.

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
        Constants of :data:`KINDS` in a fixed order, without their error on rows held out.
    """
    rows = serving_rows(published, catalog)
    if rows.num_rows(np.full(len(rows), True)) < FEWEST_ROWS:
        return []
    fitted = fit_values(rows, catalog, KINDS)
    order = published.text["row_id"]
    found = []
    for index, group, value, told in told_groups(KINDS, fitted):
        if _enough(rows, KINDS[index], group):
            mask = _of_group(rows, KINDS[index], group)
            found.append(_row(rows, KINDS[index], group, value, mask, order, date, told))
    for index, kind in enumerate(KINDS):
        if kind.keys and kind.shared:
            found.append(_shared_row(rows, kind, index, fitted, order, date))
    return found


def _of_group(rows: ServingRows, kind: Kind, group: Group) -> np.ndarray:
    return np.array([each == group for each in rows.groups(kind)], dtype=bool)


def _enough(rows: ServingRows, kind: Kind, group: Group) -> bool:
    return rows.num_rows(_of_group(rows, kind, group)) >= FEWEST_ROWS


def _row(
    rows: ServingRows, kind: Kind, group: Group, value: float, mask: np.ndarray,
    order: Sequence[str], date: str, told: bool,
) -> FittedConstant:  # fmt: skip
    return replace(
        plain_constant(kind, group, value),
        fit_set=fit_set(rows.row_ids[mask].tolist(), order) if told else "",
        num_rows=rows.num_rows(mask) if told else 0,
        date=date,
        source=SOURCE,
        kind="measured" if told else "assumption",
        notes="" if told else _UNTOLD,
    )


def _shared_row(
    rows: ServingRows, kind: Kind, index: int, fitted: Fitted, order: Sequence[str], date: str
) -> FittedConstant:
    told = {group: value for group, value in fitted.values[index].items() if (index, group) not in fitted.held}
    value = rounded(middle(told)) if told else kind.default
    every = np.full(len(rows), bool(told))
    row = _row(rows, kind, (ANY,) * len(kind.keys), value, every, order, date, bool(told))
    return replace(row, notes=_MIDDLE if told else _UNTOLD)
