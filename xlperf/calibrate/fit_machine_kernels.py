"""Constants of kernels and collectives on accelerators with few measurements: partial pooling by vendor line.

NVIDIA machines have sweeps of shapes and separate groups (:mod:`xlperf.calibrate.fit_kernels`). Other machines may have
a handful of rows. They are fitted by line of generations (cdna of cdna3 and cdna4): a generation is pooled towards its
line, a line towards the constants for any machine. ``machine_kernels.csv`` lists the fitted constants and the strength
of the pooling.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from xlperf.base import resources
from xlperf.base.arrays import Array
from xlperf.base.units import factor
from xlperf.calibrate.fit_kernels import best_products, fitted_weights
from xlperf.calibrate.fitter import FEWEST_ROWS, FittedConstant, Parameter, Problem, Solution, rounded, solve
from xlperf.catalog.calibration import ANY, Calibration, declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.measurements.kernels import KernelRows, Row, machine_lines, measurements, predicted_time, take_rows

SOURCE = "rows of the sheet kernels in validation.xlsx, pooled"
_OF_LINES = 0.3
"""Pooling weight of a line towards any machine, over the weight of a generation towards its line. [-]"""
_LONG = 200.0
_HALF = "pulled half the way to what long products reach on machines that were measured"
_STEP = 3e-2
"""Finite-difference step: wide enough to smooth over the kinks of wave quantisation. [-]"""
_POWER, _RATE = "energy_per_flop", ("gemm", "compute_efficiency")
_SHARES = ("compute_efficiency", "memory_efficiency", "bandwidth_efficiency")
_AT_MOST = {
    "compute_efficiency": "what tiles read from the cache and the power limit keep products below the peak",
    "serial_share": "operands are loaded before they are multiplied, not meanwhile",
    "memory_efficiency": "what streaming reaches on MI300X and MI355X; smaller operands came from the cache",
    "low_latency_efficiency": "the whole link",
    "bandwidth_efficiency": "the whole link",
    "outer_efficiency": "the whole adapter",
}
"""Remarks on constants at their upper bound."""
_VARIED = {"energy_per_flop": (1.0, 0.3, 0.05), "launch_time": (1.0, 10.0, 100.0)}
_LAUNCH_SHARE = 0.25
_LARGE = 16.0
_FEW = 20
"""Groups with fewer rows hold none out."""
_CROWDING = 0.5
"""Exponent of the crowding weight: a source of n rows weighs as much as the root of n, which limits long tables. [-]"""


@dataclass(frozen=True)
class _Group:
    """Measurements of a kernel family on the machines of a line, in one precision."""

    family: str
    precision: str
    line: str
    rows: KernelRows

    @property
    def generations(self) -> list[str]:
        """Generations with rows; empty for a line with a single name."""
        return sorted(set(self.rows.generation) - {self.line})

    def own(self, parameter: Parameter) -> np.ndarray:
        """Mask of the rows of a parameter's generation or line."""
        return np.array([parameter.generation in (self.line, kind) for kind in self.rows.generation])


def fit_machine_kernels(rows: Sequence[Row], catalog: Catalog, date: str) -> list[FittedConstant]:
    """Fit kernels and collectives of machines by line and generation, pooled towards the constants of ``catalog``."""
    results: list[FittedConstant] = []
    for group in _groups(rows, catalog):
        parameters, base = _parameters(group, catalog.calibration)
        solution = solve(_problem(group, parameters, base), parameters, _starts(parameters))
        results += _sheet_rows(group, parameters, solution, date)
    if results:
        results += _not_limited([*machine_lines(catalog).values()], date)
    results += _attention_of_others(catalog, results, date)
    swept = {(one.precision, one.generation) for one in results if (one.family, one.constant) == _RATE}
    return results + products_of_others(rows, catalog, swept, date)


def _starts(parameters: Sequence[Parameter]) -> list[Array]:
    """Starting points of the search: slow message starts; GEMMs that power hardly limits."""
    first = np.array([one.first for one in parameters])
    names = [one.constant for one in parameters]
    chosen, shares = next(((name, shares) for name, shares in _VARIED.items() if name in names), ("", (1.0,)))
    varied = np.array([name == chosen for name in names])
    return [np.where(varied, first * share, first) for share in shares]


def _groups(rows: Sequence[Row], catalog: Catalog) -> list[_Group]:
    lines = machine_lines(catalog)
    fitted = {(row["family"], row["precision"]) for row in resources.rows("calibrate/machine_kernels.csv")}
    members: dict[tuple[str, str, str], list[int]] = {}
    families = measurements(rows, catalog).families
    for family, own in families.items():
        starts = _starts_across_nodes(own)
        for at, (generation, precision) in enumerate(zip(own.generation, own.precision, strict=True)):
            key = precision if (family, precision) in fitted else ANY
            if generation in lines and (family, key) in fitted and not starts[at]:
                members.setdefault((family, key, lines[generation]), []).append(at)
    return [_Group(*key, take_rows(families[key[0]], index, catalog)) for key, index in sorted(members.items())]


def _starts_across_nodes(rows: KernelRows) -> np.ndarray:
    """Collectives between nodes with messages so small that the network latency dominates."""
    if "message_size" not in rows.arguments:
        return np.full(len(rows), False)
    outside = rows.arguments["group_size"] > rows.machine.network.size[:, 0]
    return np.asarray(outside & (rows.arguments["message_size"] < _LARGE * factor("MiB")))


def _parameters(group: _Group, calibration: Calibration) -> tuple[list[Parameter], dict[str, float]]:
    """Parameters of a line and of its generations, and the base constants for any machine."""
    key = (np.array([part], dtype=object) for part in (ANY, group.precision, ANY))
    shared, _ = calibration.constants(group.family, *key)
    base = {name: float(values[0, 0]) for name, values in shared.items()}
    results: list[Parameter] = []
    for row in resources.rows("calibrate/machine_kernels.csv"):
        if (row["family"], row["precision"]) != (group.family, group.precision):
            continue
        name = row["constant"]
        if row["base"]:
            base[name] = float(row["base"])
            continue
        if group.line not in (row["lines"] or group.line).split():
            base[name] = 0.0 if name == _POWER else base[name]
            continue
        declared, pull = declared_constants()[group.family][name], float(row["pull"])
        general = Parameter(
            group.family,
            name,
            group.line,
            group.precision,
            start=_inside(
                base[name] or 0.1 * (declared.default or declared.high),
                declared.low,
                float(row["high"] or declared.high),
            ),
            centre=_inside(base[name], declared.low, float(row["high"] or declared.high)),
            low=_LAUNCH_SHARE * base[name] if name == "launch_time" else math.nan,
            high=float(row["high"] or (1.0 if name in _SHARES else math.nan)),
            pull=pull,
        )
        parent = len(results)
        results.append(replace(general, pull=_OF_LINES * pull))
        kinds = group.generations if row["level"] != "line" else []
        results += [replace(general, generation=kind, parent=parent) for kind in kinds]
    return results, base


def as_measured(rows: KernelRows, constants: Mapping[str, Array], catalog: Catalog) -> Mapping[str, Array]:
    """Constants of measured kernels, adjusted to the benchmark settings in ``machine_kernels.csv``: benchmarks of
    machines by line quantised their inputs before the timed section, which no stack can.
    """
    lines, result = machine_lines(catalog), dict(constants)
    stated = [
        row for row in resources.rows("calibrate/machine_kernels.csv") if row["family"] == rows.family and row["base"]
    ]
    by_line = np.array([generation in lines for generation in rows.generation], dtype=bool)
    for row in stated:
        mine = by_line & np.array([row["precision"] in (ANY, one) for one in rows.precision], dtype=bool)
        result[row["constant"]] = np.where(mine[:, None], float(row["base"]), result[row["constant"]])
    return result


def _inside(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _problem(group: _Group, parameters: Sequence[Parameter], base: Mapping[str, float]) -> Problem:
    rows, users = group.rows, np.array([group.own(one) for one in parameters])

    def residuals(trials: Array) -> Array:
        return np.array([np.log(_times(group, parameters, users, values, base) / rows.time) for values in trials])

    return Problem(residuals, fitted_weights(rows, _FEW, _CROWDING), users, step=_STEP)


def _times(
    group: _Group, parameters: Sequence[Parameter], users: np.ndarray, values: Array, base: Mapping[str, float]
) -> Array:
    """Time of every measurement under trial values of its generation's parameters, else its line's. [s]"""
    constants = {name: np.full((len(group.rows), 1), value) for name, value in base.items()}
    for one, own, value in zip(parameters, users, values.tolist(), strict=True):  # the general ones come first
        constants[one.constant] = np.where(own[:, None], value, constants[one.constant])
    return np.asarray(predicted_time(group.rows, constants))[:, 0]


def _sheet_rows(group: _Group, parameters: Sequence[Parameter], solution: Solution, date: str) -> list[FittedConstant]:
    """Calibration rows of lines, and of generations that differ from their line."""
    rows, result = group.rows, []
    held = rows.held_back & (len(rows) > _FEW)
    for one, value, identified in zip(parameters, solution.values.tolist(), solution.identified.tolist(), strict=True):
        if not identified:
            continue
        own = group.own(one)
        sources = " ".join(sorted({source for source, mine in zip(rows.source_id, own, strict=True) if mine}))
        errors = np.abs(np.expm1(solution.residuals[own & held if (own & held).any() else own]))
        number, inside = int((own & ~held).sum()), rounded(value / factor(one.declared.unit))
        about = (f"{sources}: {number} of {int(own.sum())} rows", number, rounded(float(np.median(errors))), date)
        result.append(FittedConstant(*one.key, inside, *about, SOURCE, notes=_remark(one, value)))
    return result


def _remark(one: Parameter, value: float) -> str:
    """Note on a constant: the pooling target, and the meaning of a bound that it reaches."""
    words = f"pooled towards {'its line' if one.parent >= 0 else 'what holds for any machine'}"
    if one.constant in _AT_MOST and value >= 0.999 * one.bounds[1]:
        words += f"; at its bound: {_AT_MOST[one.constant]}"
    return words


def _not_limited(lines: Sequence[str], date: str) -> list[FittedConstant]:
    """GEMM rows of lines with an unknown power limit: throttling is part of their fitted rate, in every precision."""
    known = " ".join(
        row["lines"] for row in resources.rows("calibrate/machine_kernels.csv") if row["constant"] == _POWER
    ).split()
    words = "power limits are estimates: in the rate, which was measured under them"
    none = FittedConstant("gemm", "", ANY, ANY, _POWER, 0.0, date=date, source=SOURCE).assumed(words)
    return [replace(none, generation=line) for line in sorted(set(lines) - set(known))]


def _attention_of_others(catalog: Catalog, constants: Sequence[FittedConstant], date: str) -> list[FittedConstant]:
    """Attention of lines without measurements: as on any machine, except for estimated power limits."""
    measured = {one.generation for one in constants if one.family == "attention"}
    others = set(machine_lines(catalog).values()) - measured if constants else set()
    words = "power limits are estimates: no clock is derived from them"
    none = FittedConstant("attention", "", ANY, ANY, _POWER, 0.0, date=date, source=SOURCE).assumed(words)
    return [replace(none, generation=line) for line in sorted(others)]


def products_of_others(
    rows: Sequence[Row], catalog: Catalog, swept: Collection[tuple[str, str]], date: str
) -> list[FittedConstant]:
    """GEMM efficiency of machines without a sweep of shapes: the geometric mean of the best published rate, if there is
    one, and the long-GEMM efficiency of measured machines.
    """
    lines, shares = machine_lines(catalog), _reached(rows, catalog)
    usual = {
        precision: math.exp(float(np.mean(np.log([share for (_, of), share in shares.items() if of == precision]))))
        for precision in {of for _, of in shares}
    }
    best = [
        replace(one, value=rounded(math.sqrt(one.value * usual[one.precision])), notes=f"{one.notes}; {_HALF}")
        if one.constant == "compute_efficiency"
        else one
        for one in best_products(rows, catalog, set(), date)
        if one.precision in usual and one.generation in lines and (one.precision, lines[one.generation]) not in swept
    ]
    others = set(lines.values()) - {of for _, of in swept} - {lines[one.generation] for one in best}
    if "bf16" not in usual:
        return best
    mean = FittedConstant("gemm", "", "bf16", ANY, _RATE[1], rounded(usual["bf16"]), date=date, source=SOURCE)
    mean = mean.assumed("not measured: mean of the machines that were")
    return [*best, *(replace(mean, generation=line) for line in sorted(others))]


def _reached(rows: Sequence[Row], catalog: Catalog) -> dict[tuple[str, str], float]:
    """Median share of the peak that long GEMMs reach, by generation (NVIDIA) or line (other vendors) and precision."""
    lines, products = machine_lines(catalog), measurements(rows, catalog).families.get("gemm")
    if products is None:
        return {}
    given, device = products.arguments, products.machine.device
    flop = 2.0 * given["batch"] * given["m"] * given["n"] * given["k"]
    share = flop / (products.time * device.peak_flop_rate[:, 0])
    long = products.time > _LONG * factor("us")
    groups: dict[tuple[str, str], list[float]] = {}
    for at in np.flatnonzero(long).tolist():
        kind = products.generation[at]
        groups.setdefault((lines.get(kind, kind), products.precision[at]), []).append(float(share[at]))
    return {group: float(np.median(values)) for group, values in groups.items() if len(values) >= FEWEST_ROWS}
