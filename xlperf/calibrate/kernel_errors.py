"""Errors of kernel equations on shapes that no constant was fitted on, by operation, accelerator and precision."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.units import factor
from xlperf.calibrate.fit_kernels import KernelFit, Key
from xlperf.calibrate.kernel_measurements import KernelRows, Row, measurements, predicted_time
from xlperf.catalog.catalog import Catalog

LONG = 50.0
"""Products that take less are not counted: their time is that of the launch. [us]"""
BARS = {
    "matrix product over 50 us": 0.05,
    "flash attention": 0.08,
    "attention, both passes": 0.08,
    "all-reduce": 0.08,
    "all-gather": 0.08,
    "reduce-scatter": 0.08,
    "all-to-all": 0.08,
}
"""Median error that an operation is held to."""
WIDER = {("matrix product over 50 us", "B200-SXM-180GB", "fp8"): 0.08}
_OPERATIONS = {
    "gemm": "matrix product over 50 us",
    "attention": "flash attention",
    "attention_backward": "attention, both passes",
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "attention_decode": "attention, decoding",
}
_BY_SIZE = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True)
class KernelError:
    """Errors of some measurements that were held back: |predicted time / measured time - 1|, as fractions.

    ``accelerator`` and ``precision`` are blank for all; ``bar`` is the median that is asked for, NaN for none.
    """

    operation: str
    accelerator: str
    precision: str
    count: int
    median: float
    p90: float
    bar: float

    @property
    def missed(self) -> bool:
        """Whether the median is above what is asked for."""
        return self.median > self.bar


def kernel_errors(rows: Sequence[Row], catalog: Catalog) -> list[KernelError]:
    """Errors of the shapes that were held back from the fit.

    Parameters
    ----------
    rows : sequence of mapping
        Columns of the sheet ``kernels`` of ``validation.xlsx``.
    catalog : Catalog
        With the calibration that is judged.

    Returns
    -------
    list of KernelError
        Each operation as a whole, then by accelerator and precision.
    """
    found = measurements(rows, catalog).families
    whole, parts = [], []
    for family, operation in _OPERATIONS.items():
        if family not in found:
            continue
        held = found[family]
        chosen = held.held_back & ((held.time > LONG * factor("us")) | (family != "gemm"))
        sizes = np.abs(calibrated_time(held, catalog) / held.time - 1.0)
        if not chosen.any():
            continue
        whole.append(_error(operation, "", "", sizes[chosen]))
        names = np.array(held.accelerator, dtype=object)
        precision = np.array(["" if family in _BY_SIZE else one for one in held.precision], dtype=object)
        for key in sorted(set(zip(names[chosen].tolist(), precision[chosen].tolist(), strict=True))):
            mine = chosen & (names == key[0]) & (precision == key[1])
            parts.append(_error(operation, *key, sizes[mine]))
    return whole + parts


def _error(operation: str, accelerator: str, precision: str, sizes: Array) -> KernelError:
    bar = WIDER.get((operation, accelerator, precision), BARS.get(operation, np.nan))
    median, p90 = float(np.median(sizes)), float(np.quantile(sizes, 0.9))
    return KernelError(operation, accelerator, precision, len(sizes), median, p90, bar)


def calibrated_time(rows: KernelRows, catalog: Catalog) -> Array:
    """Time of measurements of one family by the constants of a catalog. [s]

    Parameters
    ----------
    rows : KernelRows
        Measurements.
    catalog : Catalog
        With the calibration.
    """

    def constants(family: str) -> Mapping[str, Array]:
        keys = (np.array(names, dtype=object) for names in (rows.generation, rows.precision, rows.software))
        return catalog.calibration.constants(family, *keys)[0]

    forward = constants("attention") if rows.family == "attention_backward" else None
    return predicted_time(rows, constants(rows.family), forward)[:, 0]


def summary(fits: Mapping[Key, KernelFit]) -> list[dict[str, object]]:
    """Errors of every group: rows, rows held back, median and 90th percentile of both, all and the long ones.

    Parameters
    ----------
    fits : mapping
        As :func:`fitted_groups` returns.
    """
    found: list[dict[str, object]] = []
    for (family, generation, precision, software), fit in fits.items():
        error, held, long = np.abs(fit.error), fit.rows.held_back, fit.rows.time > LONG * factor("us")
        line: dict[str, object] = {
            "family": family,
            "generation": generation,
            "precision": precision,
            "software": software,
            "rows": len(error),
            "held_back": int(held.sum()),
        }
        for name, chosen in (("held_back", held), ("held_back_long", held & long), ("fitted", ~held)):
            line[f"{name}_median"] = float(np.median(error[chosen])) if chosen.any() else math.nan
            line[f"{name}_p90"] = float(np.quantile(error[chosen], 0.9)) if chosen.any() else math.nan
        found.append(line)
    return found
