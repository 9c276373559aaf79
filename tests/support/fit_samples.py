"""Measurements that differ in the last digits alone, as logarithms and sums do between processors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from xlperf.calibrate import fit_published
from xlperf.calibrate.fitter import FittedConstant
from xlperf.catalog.calibration import declared_constants

TIMES = ("latency_us", "tflops", "gbps_busbw", "gbps_algbw")
_LAST_DIGITS = 1e-13


def with_other_last_digits(rows: Sequence[Mapping[str, object]], seed: int = 1) -> list[dict[str, object]]:
    """Rows of the sheet ``kernels`` with times and rates that differ by about 1e-13 of themselves."""
    random = np.random.default_rng(seed)

    def other(name: str, cell: object) -> object:
        if name not in TIMES or not str(cell).strip():
            return cell
        return repr(float(str(cell)) * (1.0 + _LAST_DIGITS * random.standard_normal()))

    return [{name: other(name, cell) for name, cell in row.items()} for row in rows]


def differing(first: Sequence[FittedConstant], second: Sequence[FittedConstant]) -> dict[str, tuple[float, float]]:
    """Constants of two fits that differ by more than 1 %, or than 1 % of a tenth of their usual size."""
    values = {one.calibration: one.value for one in first}, {one.calibration: one.value for one in second}
    names = {**values[0], **values[1]}
    pairs = {name: (values[0].get(name, np.nan), values[1].get(name, np.nan)) for name in names}
    sizes = {one.calibration: declared_constants()[one.family][one.constant].default for one in (*first, *second)}
    same = {name: 0.0101 * max(abs(a), 0.1 * sizes[name]) for name, (a, _) in pairs.items()}
    return {name: (a, b) for name, (a, b) in pairs.items() if not abs(a - b) <= same[name]}


def sample_coarsely(patch: pytest.MonkeyPatch) -> None:
    """Fits sample each constant of published rows at three values instead of five, between the same ends."""
    patch.setattr(fit_published, "_FACTORS", (0.5, 1.0, 2.0))
    patch.setattr(fit_published, "_STEPS", (-0.4, 0.0, 0.4))
