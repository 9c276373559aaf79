"""GEMM and attention constants shared by all accelerators: the fallback of unmeasured machines.

One fit over the measured kernels of all generations. Machines differ only in their rates, capacities, node and power
limit; GEMM precisions differ in the energy of an operation and the cost of conversion, attention libraries in their
rate, tile start-up and launch time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from xlperf.base.arrays import Array
from xlperf.calibrate.fitter import FittedConstant, Parameter, Problem, declared_values, rounded, solve
from xlperf.catalog.calibration import ANY
from xlperf.catalog.catalog import Catalog
from xlperf.equations.hardware.power import PRODUCT_ENERGY, REFERENCE_ENERGY
from xlperf.measurements.kernels import (
    DEEPGEMM,
    FLASH_2,
    FP8_BLOCK,
    TENSORRT,
    Constants,
    KernelRows,
    predicted_time,
    take_rows,
)

Key = tuple[str, str]
"""Precision and software. [-]"""
Values = Mapping[Key, dict[str, Array]]

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
"""Start value of the fit: energy of a GEMM operation at 5 nm with random operands. [J/FLOP]"""
_PER_HALVING = 0.6
"""Start value of the fit: energy ratio of an operation at half the bits. [-]"""
_PULL = 0.3
_EVERY = 3
_FIXED = {"compute_efficiency": 0.93, "boost_time": 1e-4}
_STEP = 1e-6
_GENERATIONS = ("ampere", "ada", "hopper", "blackwell")
"""Generations with sweeps of shapes in libraries that their vendor tuned. [-]"""
_ODD = {("ada", FP8_BLOCK)}
"""Generations and precisions whose library reaches less than half of the usual rate. [-]"""
_BLOCKS = (
    "github.com/deepseek-ai/DeepGEMM README: unaligned block sizes fill the multiprocessors; blocks of 64 rows or more"
)
_WARP_GROUPS = (
    "PTX ISA, wgmma.mma_async: shapes m64nNk16; cuBLAS in vLLM's documentation, Profiling vLLM: tilesize64x64x64; "
    "DeepGEMM pull request 192: 32 rows at 1.86 TB/s on H20, with operands swapped 3.1"
)
LIBRARY_TILES = {
    ("ada", FP8_BLOCK, ANY, "largest_tile_rows"): (
        32.0,
        "github.com/NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels/cutlass_kernels/fp8_blockscale_gemm/"
        "fp8_blockscale_gemm_kernel.cuh, gemm_dispatch_sm89: only 32 x 128 x 128",
    ),
    ("hopper", FP8_BLOCK, DEEPGEMM, "any_tile_columns"): (1.0, _BLOCKS),
    ("hopper", ANY, ANY, "least_tile_rows"): (64.0, _WARP_GROUPS),
}
"""Tile sets of libraries that differ from the default, by generation, precision, software and constant, and the source.
[-]
"""


def tiles_of(generation: str, precision: str, software: str) -> dict[str, float]:
    """Constants of :data:`LIBRARY_TILES` for kernels of a generation, precision and software."""
    key = generation, precision, software
    return {
        name: value
        for (*own, name), (value, _) in LIBRARY_TILES.items()
        if all(one in (ANY, of) for one, of in zip(own, key, strict=True))
    }


_ATTENTION = {
    "compute_efficiency": 0.6,
    "energy_per_flop": 0.9 * PRODUCT_ENERGY,
    "softmax_flop": 10.0,
    "imbalance": 0.5,
    "tile_time": 6e-6,
    "memory_efficiency": 0.8,
    "serial_share": 0.1,
    "launch_time": 1.3e-5,
}
"""Start values and pooling targets of the attention fit: kernels of the engine with the most rows."""
_OF_LIBRARIES = {
    ANY: {"compute_efficiency": 0.7, "tile_time": 3e-6, "launch_time": 8e-6},
    FLASH_2: {"compute_efficiency": 0.5},
}
"""Start values and pooling targets of the constants specific to other libraries."""


def shared_products(rows: KernelRows, weights: Array, catalog: Catalog, date: str) -> list[FittedConstant]:
    """GEMM constants for any generation, by precision, fitted on the rows of all generations. Formats without
    measurements repeat the step from 16 bits to FP8.
    """
    odd = [key in _ODD for key in zip(rows.generation, rows.precision, strict=True)]
    usual = _usual(rows) & np.array([word == ANY for word in rows.software]) & ~np.array(odd)
    fit = _Fit(rows, usual, weights, catalog, [(precision, ANY) for precision in rows.precision])
    values = fit.solved(_product_parameters({precision for precision, _ in fit.keys}), _with_formats)
    if (FP8_BLOCK, ANY) in values:  # takes inputs that are quantised already
        common = values[ANY, ANY]
        plain = {name: common[name] for name in ("compute_efficiency", "launch_time")}
        values[FP8_BLOCK, DEEPGEMM] = {**plain, "input_traffic": np.zeros(1)}
    return fit.sheet_rows(values, date)


def shared_attention(rows: KernelRows, weights: Array, catalog: Catalog, date: str) -> list[FittedConstant]:
    """Flash-attention constants for any generation and precision, by library, fitted on all forward rows. The engine's
    constants apply to all libraries if the rows contain no other.
    """
    fit = _Fit(rows, _usual(rows), weights, catalog, [(ANY, word) for word in rows.software])
    return fit.sheet_rows(fit.solved(_attention_parameters({software for _, software in fit.keys}), dict), date)


def library_tiles(date: str) -> list[FittedConstant]:
    """Calibration rows of libraries with other tile sets than the default: read from their code, not fitted."""
    words = "the tiles that the library is built with; not fitted"
    return [
        FittedConstant("gemm", *key, value, date=date, source=source, kind="datasheet", notes=words)
        for key, (value, source) in LIBRARY_TILES.items()
    ]


class _Fit:
    """Measured kernels of one family, the mask of fitted rows, and the precision and software of each."""

    def __init__(
        self, rows: KernelRows, usual: np.ndarray, weights: Array, catalog: Catalog, keys: Sequence[Key]
    ) -> None:
        self.rows, self.usual, self._all = rows, usual, keys
        weights = np.where(usual, weights, 0.0)
        self.index = np.flatnonzero(weights > 0.0)[::_EVERY]
        self.weights = weights[self.index]
        self.fitted = take_rows(rows, self.index.tolist(), catalog)
        self.keys = [keys[row] for row in self.index.tolist()]
        self.median = math.nan

    def solved(
        self, parameters: Sequence[Parameter], completed: Callable[[dict[Key, dict[str, Array]]], Values]
    ) -> dict[Key, dict[str, Array]]:
        """Fitted constants by precision and software, including constants that ``completed`` derives."""

        def constants(trials: Array, keys: Sequence[Key]) -> Constants:
            return _by_row(self.rows.family, completed(_by_key(parameters, trials)), keys)

        def residuals(trials: Array) -> Array:
            time = predicted_time(self.fitted, constants(trials.T[:, None, :], self.keys))
            return np.asarray(np.log(time / self.fitted.time[:, None]).T)

        result = solve(Problem(residuals, self.weights, step=_STEP), parameters)
        values = result.values[:, None, None]
        time = predicted_time(self.rows, constants(values, self._all))[:, 0]
        held = self.usual & self.rows.held_back
        self.median = float(np.median(np.abs(time / self.rows.time - 1.0)[held])) if held.any() else math.nan
        return dict(completed(_by_key(parameters, values)))

    def sheet_rows(self, values: Values, date: str) -> list[FittedConstant]:
        """Rows of the calibration sheet, of generation any."""
        machines = len(set(self.rows.accelerator))
        kernels = {"gemm": "products"}.get(self.rows.family, "kernels of attention")
        fitted = f"{len(self.index)} of {len(self.rows)} {kernels} of {machines} accelerators"
        notes = "shared by all generations, for those without measurements; error: median of rows held back"
        about = (fitted, len(self.index), rounded(self.median), date, "rows of the sheet kernels in validation.xlsx")
        row = FittedConstant(self.rows.family, ANY, ANY, ANY, "", 0.0, *about, notes=notes)
        return [
            replace(row, precision=precision, software=software, constant=name, value=rounded(float(value.item())))
            for (precision, software), constants in values.items()
            for name, value in constants.items()
        ]


def _usual(rows: KernelRows) -> np.ndarray:
    return np.array([generation in _GENERATIONS for generation in rows.generation])


def _parameter(family: str, name: str, centre: float, precision: str = ANY, software: str = ANY) -> Parameter:
    """A parameter for any generation."""
    high = 1.0 if name in ("compute_efficiency", "memory_efficiency") else math.nan
    fixed = family == "gemm" and precision == ANY and name in _FIXED
    return Parameter(family, name, ANY, precision, software, centre, math.nan, high, -1, centre, _PULL, fixed)


def _product_parameters(known: set[str]) -> list[Parameter]:
    centre = declared_values("gemm") | {"energy_per_flop": _USUAL_ENERGY} | _FIXED
    results = [_parameter("gemm", name, centre[name]) for name in _COMMON]
    narrow = {"energy_per_flop": _PER_HALVING * _USUAL_ENERGY, "launch_time": 1e-5, "input_traffic": 10.0}
    for precision in ("fp8", FP8_BLOCK, "fp4"):
        if precision in known:
            names = _NARROW[1:] if precision == FP8_BLOCK and "fp8" in known else _NARROW
            centres = narrow | {"energy_per_flop": _PER_HALVING ** (2 if precision == "fp4" else 1) * _USUAL_ENERGY}
            results += [_parameter("gemm", name, centres[name], precision) for name in names]
    if FP8_BLOCK in known:
        results.append(_parameter("gemm", "compute_efficiency", 0.8, FP8_BLOCK))
    return results


def _attention_parameters(known: set[str]) -> list[Parameter]:
    others = {library: own for library, own in _OF_LIBRARIES.items() if library in known}
    alone = ANY not in others
    common = _ATTENTION | others.pop(ANY, {})
    engine = {} if alone or TENSORRT not in known else {name: _ATTENTION[name] for name in _OF_LIBRARIES[ANY]}
    results = [_parameter("attention", name, centre) for name, centre in common.items()]
    for library, own in {**others, TENSORRT: engine}.items():
        results += [_parameter("attention", name, centre, ANY, library) for name, centre in own.items()]
    return results


def _by_key(parameters: Sequence[Parameter], values: Array) -> dict[Key, dict[str, Array]]:
    """Trial values (parameters, 1, trials) by precision and software, and constant."""
    by_name: dict[Key, dict[str, Array]] = {}
    for one, value in zip(parameters, values, strict=True):
        by_name.setdefault((one.precision, one.software), {})[one.constant] = np.asarray(value)
    return by_name


def _with_formats(result: dict[Key, dict[str, Array]]) -> dict[Key, dict[str, Array]]:
    """Constants with FP4 added if it was not measured: FP8's conversion, and its energy step applied once more."""
    narrow = result.get(("fp8", ANY))
    if narrow is not None:
        energy = narrow["energy_per_flop"]
        result.setdefault(
            ("fp4", ANY), {**narrow, "energy_per_flop": energy * energy / result[ANY, ANY]["energy_per_flop"]}
        )
        result.get((FP8_BLOCK, ANY), {}).setdefault("energy_per_flop", energy)
    return result


def _by_row(family: str, values: Values, keys: Sequence[Key]) -> Constants:
    """Constants of each row, (rows, 1) or (rows, trials); its precision and software override the general ones."""
    by_name = {name: np.array([[value]]) for name, value in declared_values(family).items()}
    for key, own in values.items():
        mine = np.array([key in ((ANY, ANY), of) for of in keys])[:, None]
        by_name |= {name: np.where(mine, value, by_name[name]) for name, value in own.items()}
    return by_name
