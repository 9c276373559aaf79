"""Kernels of a stack's own: attention, element-wise work and products slower than measured alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from xlperf.base.arrays import Array
from xlperf.calibrate.fit_training import (
    FAMILY,
    FEWEST_ROWS,
    WORTH_IT,
    FitRows,
    Key,
    Values,
    excess_of,
    fold_of,
    lowest,
    misfit_of,
)
from xlperf.calibrate.fitted_constants import FittedConstant, rounded
from xlperf.catalog.calibration import ANY, declared_constants

KernelKey = tuple[str, str, str, str]
"""Family, constant, generation and precision."""
KernelValues = Mapping[KernelKey, float]

WIDE, NARROW = "bf16", "fp8"
_KNOBS = (
    (("attention", "compute_efficiency", WIDE), ("attention_backward", "compute_efficiency", WIDE)),
    (("vector", "memory_efficiency", ANY),),
    (("gemm", "compute_efficiency", WIDE),),
)
_NARROW_KNOB = (("gemm", "compute_efficiency", NARROW),)
_MANY_ROWS = 40
_ENOUGH_ROWS = 200
_LEAST = 0.1
_START = 0.8
_EVALUATIONS = 60
_FIRST_STEP = 0.15


def kernel_constants(software: str, values: Values, kernels: KernelValues) -> list[FittedConstant]:
    """Constants of a stack and of its kernels as rows of the calibration sheet.

    Parameters
    ----------
    software : str
        Name of the stack.
    values : mapping
        (constant, generation) -> value of the family ``training_software``.
    kernels : mapping
        (family, constant, generation, precision) -> value.
    """
    keys = [(FAMILY, name, kind, ANY, value) for (name, kind), value in values.items()]
    keys += [(*key, value) for key, value in kernels.items()]
    return [
        FittedConstant(family, kind, precision, software, name, value, "", 0, math.nan, "", "")
        for family, name, kind, precision, value in keys
    ]


class _Search:
    """A point of the search: the stack's constants, then a factor per knob and generation."""

    def __init__(
        self, rows: FitRows, software: str, keys: Sequence[Key], generations: Sequence[str], narrow: Sequence[str]
    ) -> None:
        self._software, self._keys = software, list(keys)
        self._knobs = [(kind, knob) for kind in generations for knob in _KNOBS]
        self._knobs += [(kind, _NARROW_KNOB) for kind in narrow]
        calibration = rows.plans.catalog.calibration
        self._measured: dict[KernelKey, float] = {}
        for kind, knob in self._knobs:
            for family, name, precision in knob:
                key = (np.array([kind]), np.array([precision]), np.array([software]))
                value = float(calibration.constants(family, *key)[0][name][0, 0])
                self._measured[family, name, kind, precision] = value
        declared = declared_constants()[FAMILY]
        factors = np.ones(len(self._knobs))
        self.low = np.array([*(declared[name].low for name, _ in self._keys), *(_LEAST * factors)])
        self.top = np.array([*(min(declared[name].high, 2.0) for name, _ in self._keys), *factors])
        shares = [declared[name].low == 0.0 for name, _ in self._keys]
        self.top[: len(shares)] = np.where(shares, np.minimum(self.top[: len(shares)], 1.0), self.top[: len(shares)])

    def start(self, values: Values) -> Array:
        return np.array([*(values[key] for key in self._keys), *(_START for _ in self._knobs)])

    def point(self, values: Values, kernels: KernelValues) -> Array:
        named = [(family, name, kind, precision) for kind, ((family, name, precision), *_) in self._knobs]
        factors = [kernels[key] / self._measured[key] for key in named]
        return np.array([*(values[key] for key in self._keys), *factors])

    def values(self, point: Array) -> tuple[dict[Key, float], dict[KernelKey, float]]:
        count = len(self._keys)
        values = {key: rounded(value) for key, value in zip(self._keys, point[:count].tolist(), strict=True)}
        kernels = {}
        for (kind, knob), factor in zip(self._knobs, point[count:].tolist(), strict=True):
            for family, name, precision in knob:
                key = (family, name, kind, precision)
                kernels[key] = rounded(factor * self._measured[key])
        return values, kernels

    def residuals(self, rows: FitRows, point: Array) -> Array:
        return excess_of(rows, kernel_constants(self._software, *self.values(point)))

    def best(self, rows: FitRows, start: Array, evaluations: int, step: float) -> Array:
        seen: dict[tuple[float, ...], float] = {}

        def cost(point: Array) -> float:
            key = tuple(point.tolist())
            if key not in seen:
                seen[key] = misfit_of(rows, self.residuals(rows, point))
            return seen[key]

        return lowest(cost, start, self.low, self.top, evaluations * len(start), step)


def _generations(rows: FitRows) -> list[str]:
    return [kind for kind in sorted(set(rows.generation)) if rows.generation.count(kind) >= _MANY_ROWS]


def _narrow(rows: FitRows, generations: Sequence[str]) -> list[str]:
    """Generations with enough runs in FP8 of any kind."""
    narrow = [NARROW in precision for precision in rows.plans.plans.filled("precision").tolist()]
    kinds = [kind for kind, yes in zip(rows.generation, narrow, strict=True) if yes]
    return [kind for kind in generations if kinds.count(kind) >= FEWEST_ROWS]


def fit_kernels_of_stack(
    rows: FitRows, software: str, values: Values
) -> tuple[dict[Key, float], dict[KernelKey, float]]:
    """Fit how much slower than the measured kernels a stack's own are, where that pays.

    A generation with forty rows or more gets a factor for the attention, one for the element-wise kernels, one for
    the products in 16 bits, which long runs throttle, and with eight runs in FP8 one for those. They are kept, with
    the constants of the stack fitted anew beside them, where the misfit falls by a tenth; a slowdown of all kernels by
    generation then gives way.

    Parameters
    ----------
    rows : FitRows
        Rows of that software.
    software : str
        Its name.
    values : mapping
        Its constants so far, (constant, generation) -> value.

    Returns
    -------
    tuple of dict
        The constants of the stack, and (family, constant, generation, precision) -> value of its kernels; none where
        they do not pay.
    """
    generations = _generations(rows)
    before = dict(values)
    if not generations:
        return before, {}
    keys = [key for key in values if key[1] == ANY]
    search = _Search(rows, software, keys, generations, _narrow(rows, generations))
    point = search.start(values)
    some = rows.take(range(0, len(rows.row_ids), -(-len(rows.row_ids) // _ENOUGH_ROWS)))
    point = search.best(some, point, _EVALUATIONS, _FIRST_STEP)
    old = misfit_of(rows, excess_of(rows, kernel_constants(software, values, {})))
    if misfit_of(rows, search.residuals(rows, point)) >= (1.0 - WORTH_IT) * old:
        return before, {}
    return search.values(point)


def held_out_with_kernels(rows: FitRows, software: str, values: Values, kernels: KernelValues) -> Array:
    """Log ratio of every row under constants that were fitted without its family; NaN where too few rows are left.

    Parameters
    ----------
    rows : FitRows
        Rows of that software.
    software : str
        Its name.
    values, kernels : mapping
        What :func:`fit_kernels_of_stack` found on all rows: the search starts there.
    """
    generations = sorted({kind for _, _, kind, _ in kernels})
    narrow = sorted({kind for family, _, kind, precision in kernels if (family, precision) == ("gemm", NARROW)})
    search = _Search(rows, software, list(values), generations, narrow)
    begin = search.point(values, kernels)
    folds = np.array([fold_of(family) for family in rows.family])
    found = np.full(len(rows.row_ids), math.nan)
    for fold in sorted(set(folds.tolist())):
        inside, outside = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
        if len(outside) < FEWEST_ROWS:
            continue
        without = search.best(rows.take(outside.tolist()), begin, _EVALUATIONS // 2, _FIRST_STEP / 2)
        found[inside] = search.residuals(rows.take(inside.tolist()), without)
    return found
