"""Constants of matrix products that all accelerators share: the fall-back of machines that were never measured.

One fit over the measured products of all generations. Machines differ in their rates, capacities, node and power limit
alone; precisions differ in the energy of an operation and in what their conversion costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xlperf.base.arrays import Array
from xlperf.calibrate.fitted_constants import FittedConstant, inside_value, rounded
from xlperf.calibrate.fitter import Parameter, Problem, solve
from xlperf.calibrate.kernel_measurements import DEEPGEMM, FP8_BLOCK, Constants, KernelRows, predicted_time, take_rows
from xlperf.catalog.calibration import ANY, declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.equations.hardware.power import REFERENCE_ENERGY

_COMMON = (
    "compute_efficiency",
    "wave_time",
    "cache_share",
    "energy_per_flop",
    "boost_time",
    "memory_efficiency",
    "serial_share",
    "launch_time",
)
_NARROW = ("energy_per_flop", "launch_time", "input_traffic")
_USUAL_ENERGY = 2.4 * REFERENCE_ENERGY
"""Energy of an operation of a product at 5 nm, random operands: what a fit starts from. [J/FLOP]"""
_PER_HALVING = 0.6
"""Energy of an operation of half as many bits over it: what a fit starts from. [-]"""
_PULL = 0.3
_EVERY = 3
_FIXED = {"compute_efficiency": 0.93, "boost_time": 1e-4}
_STEP = 1e-6
_GENERATIONS = ("ampere", "ada", "hopper", "blackwell")
"""Generations with sweeps of shapes in libraries that their maker tuned. [-]"""
_ODD = {("ada", FP8_BLOCK)}
"""Generations and precisions whose library reaches less than half of the usual rate. [-]"""


@dataclass(frozen=True)
class _Shared:
    """A parameter and the precision it is of."""

    parameter: Parameter
    precision: str


def shared_products(rows: KernelRows, weights: Array, catalog: Catalog, date: str) -> list[FittedConstant]:
    """Constants of matrix products for any generation, fitted on the rows of all.

    Parameters
    ----------
    rows : KernelRows
        Measured products; those of one library apart are not fitted.
    weights : Array
        Weight of each row; 0 where it is held back. [-]
    catalog : Catalog
        Accelerators.
    date : str
        Date that the constants carry.

    Returns
    -------
    list of FittedConstant
        Of generation any, by precision; formats without measurements take FP8's steps once more.
    """
    odd = [key in _ODD for key in zip(rows.generation, rows.precision, strict=True)]
    usual = np.array([word == ANY for word in rows.software]) & ~np.array(odd)
    usual &= np.array([generation in _GENERATIONS for generation in rows.generation])
    weights = np.where(usual, weights, 0.0)
    index = np.flatnonzero(weights > 0.0)[::_EVERY]
    fitted = take_rows(rows, index.tolist(), catalog)
    shared = _parameters(set(fitted.precision))

    def residuals(trials: Array) -> Array:
        time = predicted_time(fitted, _constants(shared, trials.T[:, None, :], fitted.precision))
        return np.log(time / fitted.time[:, None]).T

    found = solve(Problem(residuals, weights[index], step=_STEP), [one.parameter for one in shared])
    time = predicted_time(rows, _constants(shared, found.values[:, None, None], rows.precision))[:, 0]
    held = usual & rows.held_back
    median = float(np.median(np.abs(time / rows.time - 1.0)[held])) if held.any() else math.nan
    values = {(precision, ANY): own for precision, own in _by_precision(shared, found.values[:, None, None]).items()}
    if (FP8_BLOCK, ANY) in values:  # takes inputs that are quantised already
        common = values[ANY, ANY]
        plain = {name: common[name] for name in ("compute_efficiency", "launch_time")}
        values[FP8_BLOCK, DEEPGEMM] = {**plain, "input_traffic": np.zeros(1)}
    source = f"{len(index)} of {len(rows)} products of {len(set(rows.accelerator))} accelerators"
    return [
        FittedConstant(
            "gemm",
            ANY,
            precision,
            software,
            name,
            rounded(float(value.item())),
            source,
            len(index),
            rounded(median),
            date,
            "rows of the sheet kernels in validation.xlsx",
            notes="shared by all generations, for those without measurements; error: median of rows held back",
        )
        for (precision, software), constants in values.items()
        for name, value in constants.items()
    ]


def _parameters(known: set[str]) -> list[_Shared]:
    declared = declared_constants()["gemm"]
    energy = {"energy_per_flop": _USUAL_ENERGY}

    def one(name: str, precision: str, centre: float, fixed: bool = False) -> _Shared:
        high = 1.0 if name in ("compute_efficiency", "memory_efficiency") else math.nan
        return _Shared(
            Parameter("gemm", name, "any", precision, "any", centre, math.nan, high, -1, centre, _PULL, fixed),
            precision,
        )

    centre = {name: inside_value("gemm", name, declared[name].default) for name in _COMMON} | energy | _FIXED
    found = [one(name, ANY, centre[name], name in _FIXED) for name in _COMMON]
    narrow = {"energy_per_flop": _PER_HALVING * _USUAL_ENERGY, "launch_time": 1e-5, "input_traffic": 10.0}
    for precision in ("fp8", FP8_BLOCK, "fp4"):
        if precision in known:
            names = _NARROW[1:] if precision == FP8_BLOCK and "fp8" in known else _NARROW
            centres = narrow | {"energy_per_flop": _PER_HALVING ** (2 if precision == "fp4" else 1) * _USUAL_ENERGY}
            found += [one(name, precision, centres[name]) for name in names]
    if FP8_BLOCK in known:
        found.append(one("compute_efficiency", FP8_BLOCK, 0.8))
    return found


def _by_precision(shared: Sequence[_Shared], values: Array) -> dict[str, dict[str, Array]]:
    """Constants by precision; FP4 that was not measured has the conversion of FP8 and its step of energy once more."""
    found: dict[str, dict[str, Array]] = {}
    for one, value in zip(shared, values, strict=True):
        found.setdefault(one.precision, {})[one.parameter.constant] = np.asarray(value)
    if "fp8" in found:
        wide, narrow = found[ANY]["energy_per_flop"], found["fp8"]["energy_per_flop"]
        found.setdefault("fp4", {**found["fp8"], "energy_per_flop": narrow * narrow / wide})
        if FP8_BLOCK in found:
            found[FP8_BLOCK].setdefault("energy_per_flop", narrow)
    return found


def _constants(shared: Sequence[_Shared], values: Array, precisions: Sequence[str]) -> Constants:
    """Constants of each row, (rows, trials), from values (parameters, 1, trials)."""
    defaults = {name: inside_value("gemm", name, one.default) for name, one in declared_constants()["gemm"].items()}
    by_precision = _by_precision(shared, values)
    common = by_precision[ANY]
    count = (len(precisions), values.shape[-1])
    found: dict[str, Array] = {}
    words = np.array(precisions, dtype=object)
    for name, default in defaults.items():
        column = np.broadcast_to(common.get(name, np.array([[default]])), count)
        for precision, own in by_precision.items():
            if precision != ANY and name in own:
                column = np.where((words == precision)[:, None], own[name], column)
        found[name] = column
    return found
