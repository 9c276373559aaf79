"""Constants of kernel families and collectives, fitted to kernel measurements by group.

A share of the shapes, chosen by a hash, is held out and gives the error; other constants are derived or assumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from xlperf.base.arrays import Array
from xlperf.calibrate import pooled_kernels
from xlperf.calibrate.fitter import FEWEST_ROWS, FittedConstant, Parameter, Problem, declared_values, rounded, solve
from xlperf.catalog.calibration import ANY, declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.equations.hardware.attention import softmax_time
from xlperf.equations.hardware.roofline import clock_limited_time
from xlperf.measurements import kernels

Key = tuple[str, str, str, str]  # family, generation, precision and software
Scalar = TypeVar("Scalar", float, Array)

_STARTS = (1.0, 0.5, 1.5)
_NARROW = (0.2, 0.05)
_LAUNCH_SHARE = 0.25
_START, _STEP = 0.1, 1e-6
_PULL = 1e-3  # weight of the prior at the start: one usual size away costs as much as a row 0.1 % off [-]
_PRODUCTS, _PRODUCTS_BACKWARD = 2.0, 5.0
_USUAL_RATIO = 0.85
_USUAL_RATE = 0.8
_REFERENCES = ("hopper", "blackwell", "ampere", "ada")
_EARLY_BYTES = 2.0  # bytes per conversion of an input to FP8: an early release over later releases [-]
_COLLECTIVES = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")
_GEMM = ("compute_efficiency", "wave_time", "cache_share", "memory_efficiency", "serial_share", "launch_time")
_FLASH = ("compute_efficiency", "imbalance", "tile_time", "memory_efficiency", "launch_time")
_FLASH_FAMILIES = ("attention", "attention_backward")
_BOTH = ("compute_efficiency", "softmax_flop", "tile_time")  # constants that runs of both passes of attention inform
_SHARES = ("compute_efficiency", "memory_efficiency")
_STARTING = ("launch_time", "step_factor", "bulk_factor")
_INNER = (*_STARTING, "low_latency_efficiency", "bandwidth_efficiency", "group_penalty")


@dataclass(frozen=True)
class KernelFit:
    """Fit of one group: its constants in SI units, and relative errors of all its rows."""

    key: Key
    values: dict[str, float]
    base: Mapping[str, float]
    rows: kernels.KernelRows
    error: Array

    @property
    def held_back_error(self) -> float:
        """Median absolute error of the held-out rows."""
        held = self.rows.held_back
        return float(np.median(np.abs(self.error[held]))) if held.any() else math.nan

    @property
    def constants(self) -> dict[str, float]:
        """Constants of the equation for these rows: fitted ones override the base."""
        return {**self.base, **self.values}


def fit_kernels(rows: Sequence[kernels.Row], catalog: Catalog, date: str) -> list[FittedConstant]:
    """Fit the constants of all kernel families; the calibration of ``catalog`` is not used."""
    result = kernels.measurements(rows, catalog)
    products = result.families.get("gemm")
    shared = (
        []
        if products is None
        else pooled_kernels.shared_products(products, pooled_kernels.fitted_weights(products), catalog, date)
    )
    fits = fitted_groups(result, catalog, shared)
    constants = [constant for fit in fits.values() for constant in _fitted(fit, date)]
    constants += _early_conversion(constants)
    fitted = {row.generation for row in constants if row.family == "gemm"}
    constants += pooled_kernels.best_products(rows, catalog, fitted, date)
    constants += _fall_backs(constants)
    constants += shared + pooled_kernels.library_tiles(date)
    if "attention" in result.families:
        attention = result.families["attention"]
        of_attention = pooled_kernels.shared_attention(
            attention, pooled_kernels.fitted_weights(attention), catalog, date
        )
        constants += of_attention + _shared_backward(of_attention, _backward_ratio(fits))
    order = {family: number for number, family in enumerate(declared_constants())}
    return sorted(constants, key=lambda row: (order[row.family], row.generation, row.precision, row.software))


def fitted_groups(
    result: kernels.Measurements, catalog: Catalog, shared: Sequence[FittedConstant] = ()
) -> dict[Key, KernelFit]:
    """Fit every group of measurements that is large enough; ``shared`` has GEMM constants that a group does not fit."""
    groups = _groups(result, catalog)
    fits: dict[Key, KernelFit] = {}
    for key in sorted(groups, key=_fit_order):
        if key[0] == "attention_backward":
            found_fits = _fit_backward(key, groups[key], fits)
        else:
            names, base = _choice(key, groups[key], fits, shared)
            found_fits = [_fit(key, groups[key], names, base)]
        fits.update((fit.key, fit) for fit in found_fits)
    return fits


def _groups(result: kernels.Measurements, catalog: Catalog) -> dict[Key, kernels.KernelRows]:
    members: dict[Key, list[int]] = {}
    apart = kernels.machine_lines(catalog)
    for family, rows in result.families.items():
        for row, (generation, precision, software) in enumerate(
            zip(rows.generation, rows.precision, rows.software, strict=True)
        ):
            if generation in apart:
                continue  # fitted by line, with pooling
            key_precision = ANY if family in (*_COLLECTIVES, "vector", "attention_decode") else precision
            members.setdefault((family, generation, key_precision, software), []).append(row)
    groups = {}
    for (family, generation, precision, software), index in members.items():
        # An engine's kernels apply to all software if no others are measured.
        alone = software == kernels.TENSORRT and (family, generation, precision, ANY) not in members
        alone = alone and (family, generation, precision, kernels.FLASH_2) not in members
        if (
            family == "attention"
            and alone
            and ("attention_backward", generation, precision, kernels.FLASH_2) in members
        ):
            alone = False
        key = (family, generation, precision, ANY if alone else software)
        if len(index) >= FEWEST_ROWS:
            groups[key] = kernels.take_rows(result.families[family], index, catalog)
    return groups


def _fit_order(key: Key) -> tuple[object, ...]:
    """Order of the fits: all software, FlashAttention-2, engines; Hopper first, which has both passes separately."""
    family, generation, precision, software = key
    rank = {ANY: 0, kernels.FLASH_2: 2 if family == "attention_backward" else 1}.get(software, 3)
    return (rank, generation != "hopper", family, generation, precision, software)


def _choice(
    key: Key, rows: kernels.KernelRows, fits: Mapping[Key, KernelFit], shared: Sequence[FittedConstant]
) -> tuple[tuple[str, ...], dict[str, float]]:
    """Constants that a group fits, and its base of constants from the calibration look-up order."""
    family, generation, precision, software = key
    base = declared_values(family)
    for wider in (ANY, "fp8" if precision == kernels.FP8_BLOCK else precision, precision):
        same_kernel = [row for row in shared if (row.family, row.precision, row.software) == (family, wider, ANY)]
        base |= {row.constant: row.value for row in same_kernel}
    if precision == kernels.FP8_BLOCK and (family, generation, "fp8", ANY) in fits:
        base |= fits[family, generation, "fp8", ANY].values
    if software != ANY and (family, generation, precision, ANY) in fits:
        base |= fits[family, generation, precision, ANY].constants
    if family == "gemm":
        base |= pooled_kernels.tiles_of(generation, precision, software)
    powers = np.unique(rows.machine.device.thermal_design_power)
    if family == "gemm":
        if software == kernels.DEEPGEMM:
            energy = ("energy_per_flop",) if len(powers) > 1 else ()  # one machine: collinear with the efficiency
            return ("compute_efficiency", *energy, "launch_time", "input_traffic"), base
        if software == kernels.TENSORRT_1_2:
            return ("launch_time", "input_traffic"), base
        if precision == "bf16":
            return (*_GEMM, "energy_per_flop", "boost_time"), base
        if len(powers) > 1:
            return (*_GEMM, "input_traffic", "energy_per_flop"), base
        if precision == kernels.FP8_BLOCK:
            return (*_GEMM, "input_traffic"), base
        slowing = ("input_traffic", "energy_per_flop", "boost_time")
        return (*(name for name in _GEMM if name != "wave_time"), *slowing), base
    if family in _FLASH_FAMILIES:
        if software == kernels.FLASH_2:
            return ("compute_efficiency", "tile_time"), base
        if software != ANY:
            return ("compute_efficiency", "memory_efficiency", "serial_share", "launch_time"), base
        # heads of several widths tell softmax from products, several power limits the energy
        if len(np.unique(rows.arguments["head_size"])) > 1:
            return (*_FLASH, "softmax_flop", "serial_share"), base
        return (*_FLASH, *(("energy_per_flop",) if len(powers) > 1 else ())), base
    if family in ("attention_decode", "vector"):
        return ("memory_efficiency", "launch_time"), base
    if family == "all_to_all":
        return (*_INNER, "middle_share"), base
    adds_up = family == "all_reduce" and bool((rows.machine.network.in_network_reduction[:, 0] == 1.0).any())
    return (*_INNER, *(("in_network_efficiency",) if adds_up else ())), base


def _columns(values: Mapping[str, float]) -> dict[str, Array]:
    return {name: np.array([[value]]) for name, value in values.items()}


def _fit(
    key: Key,
    rows: kernels.KernelRows,
    names: Sequence[str],
    base: Mapping[str, float],
    forward: kernels.Constants | None = None,
) -> KernelFit:
    def time_of(constants: kernels.Constants) -> Array:
        return kernels.predicted_time(rows, {**_columns(base), **constants}, forward)

    values = _solved(key[0], rows, names, base, time_of)
    return KernelFit(key, values, base, rows, time_of(_columns(values))[:, 0] / rows.time - 1.0)


def _solved(
    family: str,
    rows: kernels.KernelRows,
    names: Sequence[str],
    base: Mapping[str, float],
    time_of: Callable[[kernels.Constants], Array],
) -> dict[str, float]:
    """Least-squares fit of a group's constants; all trials of an optimiser step are one call of the equation.

    Launch times are positive and efficiencies at most 1. A weak prior at the start of the search fixes parameters that
    few rows leave unidentifiable: otherwise rounding, which differs between processors, would decide.
    """
    declared = declared_constants()[family]
    start = {name: base[name] or (abs(declared[name].default) or declared[name].high / 10.0) * _START for name in names}
    if "energy_per_flop" in names:
        start["energy_per_flop"] = _drawn(rows)
    parameters = [
        Parameter(
            family,
            name,
            start=start[name],
            low=max(declared[name].low, _LAUNCH_SHARE * start[name]) if name == "launch_time" else math.nan,
            high=1.0 if name in _SHARES else math.nan,
            centre=start[name],
            pull=_PULL,
        )
        for name in names
    ]

    def residuals(trials: Array) -> Array:
        time = time_of({name: trials[None, :, at] for at, name in enumerate(names)})
        return np.log(time / rows.time[:, None]).T

    problem = Problem(residuals, pooled_kernels.fitted_weights(rows), step=_STEP)
    result = solve(problem, parameters, _starts(names, np.array(list(start.values()))))
    return {name: rounded(value) for name, value in zip(names, result.values.tolist(), strict=True)}


def _drawn(rows: kernels.KernelRows) -> float:
    """Energy per FLOP at which throttling lowers long GEMMs to the usual fraction of peak. [J/FLOP]"""
    rate = rows.machine.device.rate()
    at_peak = rate.arithmetic_power / (rate.peak_flop_rate * rate.energy_ratio)
    return float(np.median(at_peak)) / _USUAL_RATE**3


def _starts(names: Sequence[str], start: Array) -> list[Array]:
    """Starting points of the search: all constants smaller or larger; a narrow low-latency protocol."""
    points = [start * share for share in _STARTS]
    if "low_latency_efficiency" in names:
        narrow = np.array([name == "low_latency_efficiency" for name in names])
        points += [np.where(narrow, start * share, start) for share in _NARROW]
    return points


def _fit_backward(key: Key, rows: kernels.KernelRows, fits: Mapping[Key, KernelFit]) -> list[KernelFit]:
    """Fit the backward pass from runs of both passes; the forward pass is measured alone, or shares its efficiency."""
    family, generation, precision, software = key
    base = declared_values(family)
    forward = fits.get(("attention", generation, precision, software))
    if forward is not None:
        shared = fits.get(("attention", generation, precision, ANY), forward).constants
        base |= {name: shared[name] for name in ("imbalance", "memory_efficiency", "serial_share", "softmax_flop")}
        return [_fit(key, rows, _BOTH, base, _columns(forward.constants))]
    shared = declared_values("attention")
    measured = next(
        (fit for other, fit in fits.items() if other[0] == "attention" and other[3] == kernels.FLASH_2), None
    )
    shared |= measured.constants if measured else {}
    return _fit_both(key, rows, shared, base, _backward_ratio(fits))


def _fit_both(
    key: Key, rows: kernels.KernelRows, forward: Mapping[str, float], backward: Mapping[str, float], ratio: float
) -> list[KernelFit]:
    """Fit runs of both passes with one efficiency, the backward pass's a fixed share of the forward pass's."""

    def time_of(constants: kernels.Constants) -> Array:
        second = {**_columns(backward), **backward_constants(constants, ratio)}
        return kernels.predicted_time(rows, second, {**_columns(forward), **constants})

    first = _solved("attention", rows, _BOTH, declared_values("attention"), time_of)
    second = {name: rounded(value) for name, value in backward_constants(first, ratio).items()}
    time = kernels.predicted_time(rows, _columns({**backward, **second}), _columns({**forward, **first}))
    error = time[:, 0] / rows.time - 1.0
    _, generation, precision, _ = key
    return [
        KernelFit(("attention", generation, precision, ANY), {**forward, **first}, forward, rows, error),
        KernelFit(("attention_backward", generation, precision, ANY), {**backward, **second}, backward, rows, error),
    ]


def backward_constants(forward: Mapping[str, Scalar], ratio: float) -> dict[str, Scalar]:
    """Attention constants for both passes: 2.5 times the forward pass, divided by the ratio of efficiencies."""
    scale = {
        "compute_efficiency": ratio,
        "energy_per_flop": 1.0 / ratio,
        "softmax_flop": _PRODUCTS_BACKWARD / _PRODUCTS / ratio,
        "tile_time": _PRODUCTS_BACKWARD / _PRODUCTS,
    }
    return {name: value * scale.get(name, 1.0) for name, value in forward.items()}


def _backward_ratio(fits: Mapping[Key, KernelFit]) -> float:
    """Ratio of backward to forward efficiency, if both are measured separately."""
    ratios = []
    for (family, generation, precision, software), fit in fits.items():
        first = fits.get(("attention", generation, precision, software))
        if family == "attention_backward" and first is not None and "compute_efficiency" in first.values:
            ratios.append(_pair_rate(fit, _PRODUCTS_BACKWARD) / _pair_rate(first, _PRODUCTS))
    return min(float(np.median(ratios)), 1.0) if ratios else _USUAL_RATIO


def _pair_rate(fit: KernelFit, products: float) -> float:
    """Fraction of peak reached by flash attention on long sequences with heads of 128, softmax included."""
    device = fit.rows.machine.device
    peak, rates = device.peak_flop_rate[0, 0], (device.vector_flop_rate[0, 0], device.exponential_rate[0, 0])
    flop = 2.0 * products * 128.0
    energy = fit.constants["energy_per_flop"] * device.energy_ratio[0, 0] * flop
    burst = flop / (fit.constants["compute_efficiency"] * peak)
    limited = clock_limited_time(burst, energy, device.rate().arithmetic_power[0, 0])
    time = limited + softmax_time(fit.constants["softmax_flop"], *rates)
    return float(flop / (time * peak))


def _fitted(fit: KernelFit, date: str) -> list[FittedConstant]:
    number, sources = int((~fit.rows.held_back).sum()), " ".join(sorted(set(fit.rows.source_id)))
    words = f"{sources}: {number} of {len(fit.rows)} rows, the others by hash of their shape held back"
    median = rounded(fit.held_back_error)
    notes = "error: median of the rows held back"
    row = FittedConstant(*fit.key, "", 0.0, words, number, median, date, pooled_kernels.SOURCE, notes=notes)
    results = [replace(row, constant=name, value=value) for name, value in fit.values.items()]
    if fit.key[0] in _FLASH_FAMILIES and fit.key[3] == ANY:
        # All constants, so that fallbacks of unmeasured generations never mix with constants fitted here.
        row = row.assumed("not fitted, held while fitting", error=median)
        results += [replace(row, constant=name, value=fit.base[name]) for name in fit.base if name not in fit.values]
    if fit.key[0] == "vector":
        # The runs were launched one by one from Python: their fixed time is the host's, not the kernel's.
        return [constant for constant in results if constant.constant != "launch_time"]
    return results


def _early_conversion(constants: Sequence[FittedConstant]) -> list[FittedConstant]:
    """FP8 conversion by a release that moved twice the bytes, on generations without measurements of it."""
    by_name = {row.calibration: row for row in constants if (row.family, row.constant) == ("gemm", "input_traffic")}
    return [
        row.assumed("twice what its later releases move", software=kernels.TENSORRT_1_2, value=_EARLY_BYTES * row.value)
        for row in by_name.values()
        if (row.precision, row.software) == ("fp8", ANY)
        and row.calibration.replace(f"/{ANY}/", f"/{kernels.TENSORRT_1_2}/") not in by_name
    ]


def _shared_backward(forward: Sequence[FittedConstant], ratio: float) -> list[FittedConstant]:
    """Backward pass of unmeasured generations: the shared forward efficiency times the measured ratio."""
    shared = [row for row in forward if row.software == ANY]
    note = f"forward pass of any generation, efficiency times {ratio:.2f} as where both passes were measured"
    values = backward_constants({row.constant: row.value for row in shared}, ratio)
    return [row.assumed(note, family="attention_backward", value=rounded(values[row.constant])) for row in shared]


def _fall_backs(constants: Sequence[FittedConstant]) -> list[FittedConstant]:
    """Fallback constants of unmeasured generations: all constants of one measured generation."""
    groups: dict[tuple[str, str], dict[str, list[FittedConstant]]] = {}
    for row in constants:
        if row.software == ANY and row.generation in _REFERENCES and row.family not in ("gemm", *_FLASH_FAMILIES):
            precision = ANY if row.precision in ("bf16", ANY) else row.precision
            groups.setdefault((row.family, precision), {}).setdefault(row.generation, []).append(row)
    results = []
    for (_, precision), of_precision in groups.items():
        reference = next(generation for generation in _REFERENCES if generation in of_precision)
        note = f"as {reference}, for generations without measurements of their own"
        results += [row.unmeasured(note, generation=ANY, precision=precision) for row in of_precision[reference]]
    return results
