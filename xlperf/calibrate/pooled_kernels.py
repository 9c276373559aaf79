"""Constants of kernels pooled over machines: shared by all accelerators, and by line where they have few measurements.

The shared GEMM and attention constants, one fit over all generations, are the fallback of unmeasured machines. Machines
with a handful of rows are fitted by line (cdna of cdna3 and cdna4), a generation pooled towards its line and a line
towards any machine, as ``machine_kernels.csv`` lists.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from xlperf.base import resources
from xlperf.base.arrays import Array
from xlperf.base.units import factor
from xlperf.calibrate.fitter import (
    FEWEST_ROWS,
    FittedConstant,
    Parameter,
    Problem,
    Solution,
    declared_values,
    rounded,
    solve,
)
from xlperf.catalog.calibration import ANY, Calibration, declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.equations.hardware.power import PRODUCT_ENERGY, REFERENCE_ENERGY
from xlperf.measurements import kernels

Key = tuple[str, str]  # precision and software [-]
Values = Mapping[Key, dict[str, Array]]

_COMMON = (
    "compute_efficiency wave_time cache_share energy_per_flop boost_time memory_efficiency serial_share launch_time"
).split()
_NARROW = ("energy_per_flop", "launch_time", "input_traffic")
_USUAL_ENERGY = 2.4 * REFERENCE_ENERGY  # start value: a GEMM operation at 5 nm with random operands [J/FLOP]
_PER_HALVING = 0.6  # start value of the fit: energy ratio of an operation at half the bits [-]
_PULL = 0.3
_EVERY = 3
_FIXED = {"compute_efficiency": 0.93, "boost_time": 1e-4}
_STEP = 1e-6
_TILES = "calibrate/library_tiles.csv"  # tile sets of libraries that differ from the default, and the source
_GENERATIONS = ("ampere", "ada", "hopper", "blackwell")
"""Generations with sweeps of shapes in libraries that their vendor tuned. [-]"""
_ODD = {("ada", kernels.FP8_BLOCK)}  # generation and precision whose library reaches under half of the usual rate


def tiles_of(generation: str, precision: str, software: str) -> dict[str, float]:
    """Constants of ``library_tiles.csv`` for kernels of a generation, precision and software."""
    key = {"generation": generation, "precision": precision, "software": software}
    rows = [row for row in resources.rows(_TILES) if all(row[name] in (ANY, word) for name, word in key.items())]
    return {row["constant"]: float(row["value"]) for row in rows}


_ATTENTION = {
    "compute_efficiency": 0.6, "energy_per_flop": 0.9 * PRODUCT_ENERGY, "softmax_flop": 10.0, "imbalance": 0.5,
    "tile_time": 6e-6, "memory_efficiency": 0.8, "serial_share": 0.1, "launch_time": 1.3e-5,
}  # fmt: skip
"""Start values and pooling targets of the attention fit: kernels of the engine with the most rows."""
_OF_LIBRARIES = {
    ANY: {"compute_efficiency": 0.7, "tile_time": 3e-6, "launch_time": 8e-6},
    kernels.FLASH_2: {"compute_efficiency": 0.5},
}
"""Start values and pooling targets of the constants specific to other libraries."""


def shared_products(rows: kernels.KernelRows, weights: Array, catalog: Catalog, date: str) -> list[FittedConstant]:
    """GEMM constants for any generation, by precision, fitted on the rows of all generations. Formats without
    measurements repeat the step from 16 bits to FP8.
    """
    odd = [key in _ODD for key in zip(rows.generation, rows.precision, strict=True)]
    usual = _usual(rows) & np.array([word == ANY for word in rows.software]) & ~np.array(odd)
    fit = _Fit(rows, usual, weights, catalog, [(precision, ANY) for precision in rows.precision])
    values = fit.solved(_product_parameters({precision for precision, _ in fit.keys}), _with_formats)
    if (kernels.FP8_BLOCK, ANY) in values:  # takes inputs that are quantised already
        common = values[ANY, ANY]
        plain = {name: common[name] for name in ("compute_efficiency", "launch_time")}
        values[kernels.FP8_BLOCK, kernels.DEEPGEMM] = {**plain, "input_traffic": np.zeros(1)}
    return fit.sheet_rows(values, date)


def shared_attention(rows: kernels.KernelRows, weights: Array, catalog: Catalog, date: str) -> list[FittedConstant]:
    """Flash-attention constants for any generation and precision, by library; the engine's for all if it is alone."""
    fit = _Fit(rows, _usual(rows), weights, catalog, [(ANY, word) for word in rows.software])
    return fit.sheet_rows(fit.solved(_attention_parameters({software for _, software in fit.keys}), dict), date)


def library_tiles(date: str) -> list[FittedConstant]:
    """Calibration rows of libraries with other tile sets than the default: read from their code, not fitted."""
    row = FittedConstant("gemm", ANY, ANY, ANY, "", 0.0, date=date, kind="datasheet")
    row = replace(row, notes="the tiles that the library is built with; not fitted")
    return [
        replace(
            row,
            generation=line,
            precision=precision,
            software=software,
            constant=name,
            value=float(value),
            source=source,
        )
        for line, precision, software, name, value, source in resources.cells(_TILES)[1]
    ]


class _Fit:
    """Measured kernels of one family, the mask of fitted rows, and the precision and software of each."""

    def __init__(
        self, rows: kernels.KernelRows, usual: np.ndarray, weights: Array, catalog: Catalog, keys: Sequence[Key]
    ) -> None:
        self.rows, self.usual, self._all = rows, usual, keys
        weights = np.where(usual, weights, 0.0)
        self.index = np.flatnonzero(weights > 0.0)[::_EVERY]
        self.weights = weights[self.index]
        self.fitted = kernels.take_rows(rows, self.index.tolist(), catalog)
        self.keys = [keys[row] for row in self.index.tolist()]
        self.median = math.nan

    def solved(
        self, parameters: Sequence[Parameter], completed: Callable[[dict[Key, dict[str, Array]]], Values]
    ) -> dict[Key, dict[str, Array]]:
        """Fitted constants by precision and software, including constants that ``completed`` derives."""

        def constants(trials: Array, keys: Sequence[Key]) -> kernels.Constants:
            return _by_row(self.rows.family, completed(_by_key(parameters, trials)), keys)

        def residuals(trials: Array) -> Array:
            time = kernels.predicted_time(self.fitted, constants(trials.T[:, None, :], self.keys))
            return np.asarray(np.log(time / self.fitted.time[:, None]).T)

        result = solve(Problem(residuals, self.weights, step=_STEP), parameters)
        values = result.values[:, None, None]
        time = kernels.predicted_time(self.rows, constants(values, self._all))[:, 0]
        held = self.usual & self.rows.held_back
        self.median = float(np.median(np.abs(time / self.rows.time - 1.0)[held])) if held.any() else math.nan
        return dict(completed(_by_key(parameters, values)))

    def sheet_rows(self, values: Values, date: str) -> list[FittedConstant]:
        """Rows of the calibration sheet, of generation any."""
        machines = len(set(self.rows.accelerator))
        kind = {"gemm": "products"}.get(self.rows.family, "kernels of attention")
        fitted = f"{len(self.index)} of {len(self.rows)} {kind} of {machines} accelerators"
        notes = "shared by all generations, for those without measurements; error: median of rows held back"
        about = (fitted, len(self.index), rounded(self.median), date, SOURCE)
        row = FittedConstant(self.rows.family, ANY, ANY, ANY, "", 0.0, *about, notes=notes)
        return [
            replace(row, precision=precision, software=software, constant=name, value=rounded(float(value.item())))
            for (precision, software), constants in values.items()
            for name, value in constants.items()
        ]


def _usual(rows: kernels.KernelRows) -> np.ndarray:
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
    for precision in ("fp8", kernels.FP8_BLOCK, "fp4"):
        if precision in known:
            names = _NARROW[1:] if precision == kernels.FP8_BLOCK and "fp8" in known else _NARROW
            centres = narrow | {"energy_per_flop": _PER_HALVING ** (2 if precision == "fp4" else 1) * _USUAL_ENERGY}
            results += [_parameter("gemm", name, centres[name], precision) for name in names]
    if kernels.FP8_BLOCK in known:
        results.append(_parameter("gemm", "compute_efficiency", 0.8, kernels.FP8_BLOCK))
    return results


def _attention_parameters(known: set[str]) -> list[Parameter]:
    others = {library: starts for library, starts in _OF_LIBRARIES.items() if library in known}
    alone = ANY not in others
    common = _ATTENTION | others.pop(ANY, {})
    engine = {} if alone or kernels.TENSORRT not in known else {name: _ATTENTION[name] for name in _OF_LIBRARIES[ANY]}
    results = [_parameter("attention", name, centre) for name, centre in common.items()]
    for library, starts in {**others, kernels.TENSORRT: engine}.items():
        results += [_parameter("attention", name, centre, ANY, library) for name, centre in starts.items()]
    return results


def _by_key(parameters: Sequence[Parameter], values: Array) -> dict[Key, dict[str, Array]]:
    """Trial values (parameters, 1, trials) by precision and software, and constant."""
    by_name: dict[Key, dict[str, Array]] = {}
    for parameter, value in zip(parameters, values, strict=True):
        by_name.setdefault((parameter.precision, parameter.software), {})[parameter.constant] = np.asarray(value)
    return by_name


def _with_formats(result: dict[Key, dict[str, Array]]) -> dict[Key, dict[str, Array]]:
    """Constants with FP4 added if it was not measured: FP8's conversion, and its energy step applied once more."""
    narrow = result.get(("fp8", ANY))
    if narrow is not None:
        energy = narrow["energy_per_flop"]
        common = result[ANY, ANY]["energy_per_flop"]
        result.setdefault(("fp4", ANY), {**narrow, "energy_per_flop": energy * energy / common})
        result.get((kernels.FP8_BLOCK, ANY), {}).setdefault("energy_per_flop", energy)
    return result


def _by_row(family: str, values: Values, keys: Sequence[Key]) -> kernels.Constants:
    """Constants of each row, (rows, 1) or (rows, trials); its precision and software override the general ones."""
    by_name = {name: np.array([[value]]) for name, value in declared_values(family).items()}
    for key, constants in values.items():
        with_key = np.array([key in ((ANY, ANY), of) for of in keys])[:, None]
        by_name |= {name: np.where(with_key, value, by_name[name]) for name, value in constants.items()}
    return by_name


SOURCE = "rows of the sheet kernels in validation.xlsx"
LONG, _SHORT_WEIGHT = 50.0, 0.5  # time of a long kernel [us], and the weight of a shorter one [-]


def fitted_weights(rows: kernels.KernelRows, fewest: int = 0, crowding: float = 0.25) -> Array:
    """Row weights: lower for short kernels and sources with many rows; 0 if held out of ``fewest`` rows or more."""
    count = {source: rows.source_id.count(source) for source in set(rows.source_id)}
    most = max(count.values())
    share = np.array([(count[source] / most) ** -crowding for source in rows.source_id])
    weights = share * np.where(rows.time > LONG * factor("us"), 1.0, _SHORT_WEIGHT)
    return np.where(rows.held_back & (len(rows) > fewest), 0.0, weights)


def best_products(rows: Iterable[kernels.Row], catalog: Catalog, known: set[str], date: str) -> list[FittedConstant]:
    """GEMM efficiency from the best published rate, for generations without a sweep of shapes."""
    accelerators = catalog.tables["accelerators"]
    names = [str(name).casefold() for name in accelerators.text("accelerator")]
    best: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        name, dtype = str(row.get("gpu") or "").casefold(), str(row.get("dtype") or "")
        if row.get("kind") != "gemm_max" or name not in names or dtype not in ("bf16", "fp8"):
            continue
        at = names.index(name)
        generation = str(accelerators.text("generation")[at])
        peak = float(accelerators.number(f"peak_flop_rate_{dtype}")[at])
        rate = float(str(row.get("tflops") or "nan")) * factor("TFLOP/s")
        if generation not in known and math.isfinite(rate / peak):
            best.setdefault((generation, dtype), []).append(rate / peak)
    results: list[FittedConstant] = []
    for (generation, dtype), shares in sorted(best.items()):
        highest = declared_constants()["gemm"]["compute_efficiency"].high
        value = rounded(min(float(np.median(shares)), highest))
        reached = FittedConstant(
            "gemm",
            generation,
            dtype,
            ANY,
            "compute_efficiency",
            value,
            "ml_engineering_mamf",
            len(shares),
            math.nan,
            date,
            "rows of kind gemm_max of the sheet kernels in validation.xlsx",
            kind="estimate",
            notes="best rate found over shapes, over the peak; median of the accelerators of the generation",
        )
        words = "in the rate, which was measured under the power limit"
        results += [reached, reached.assumed(words, constant="energy_per_flop", value=0.0)]
    return results


POOLED_SOURCE = "rows of the sheet kernels in validation.xlsx, pooled"
_TABLE = "calibrate/machine_kernels.csv"
_OF_LINES = 0.3  # pooling weight of a line towards any machine, over the weight of a generation towards its line [-]
_LONG_PRODUCTS = 200.0
_HALF = "pulled half the way to what long products reach on machines that were measured"
_WIDE_STEP = 3e-2  # finite-difference step: wide enough to smooth over the kinks of wave quantisation [-]
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
_FEW = 20  # groups with fewer rows hold none out
_CROWDING = 0.5
"""Exponent of the crowding weight: a source of n rows weighs as much as the root of n, which limits long tables. [-]"""


@dataclass(frozen=True)
class _Group:
    """Measurements of a kernel family on the machines of a line, in one precision."""

    family: str
    precision: str
    line: str
    rows: kernels.KernelRows

    @property
    def generations(self) -> list[str]:
        """Generations with rows; empty for a line with a single name."""
        return sorted(set(self.rows.generation) - {self.line})

    def own(self, parameter: Parameter) -> np.ndarray:
        """Mask of the rows of a parameter's generation or line."""
        return np.array([parameter.generation in (self.line, kind) for kind in self.rows.generation])


def fit_machine_kernels(rows: Sequence[kernels.Row], catalog: Catalog, date: str) -> list[FittedConstant]:
    """Fit kernels and collectives of machines by line and generation, pooled towards the constants of ``catalog``."""
    results: list[FittedConstant] = []
    for group in _groups(rows, catalog):
        parameters, base = _line_parameters(group, catalog.calibration)
        solution = solve(_problem(group, parameters, base), parameters, _starts(parameters))
        results += _sheet_rows(group, parameters, solution, date)
    lines = set(kernels.machine_lines(catalog).values()) if results else set()
    limited = [row["lines"].split() for row in resources.rows(_TABLE) if row["constant"] == _POWER]
    words = "power limits are estimates: in the rate, which was measured under them"
    results += _unlimited("gemm", lines - {line for some in limited for line in some}, words, date)
    measured = {constant.generation for constant in results if constant.family == "attention"}
    words = "power limits are estimates: no clock is derived from them"
    results += _unlimited("attention", lines - measured, words, date)
    rates = [row for row in results if (row.family, row.constant) == _RATE]
    swept = {(row.precision, row.generation) for row in rates}
    return results + products_of_others(rows, catalog, swept, date)


def _starts(parameters: Sequence[Parameter]) -> list[Array]:
    """Starting points of the search: slow message starts; GEMMs that power hardly limits."""
    first = np.array([parameter.first for parameter in parameters])
    names = [parameter.constant for parameter in parameters]
    chosen, shares = next(((name, shares) for name, shares in _VARIED.items() if name in names), ("", (1.0,)))
    varied = np.array([name == chosen for name in names])
    return [np.where(varied, first * share, first) for share in shares]


def _groups(rows: Sequence[kernels.Row], catalog: Catalog) -> list[_Group]:
    lines = kernels.machine_lines(catalog)
    fitted = {(row["family"], row["precision"]) for row in resources.rows(_TABLE)}
    members: dict[tuple[str, str, str], list[int]] = {}
    families = kernels.measurements(rows, catalog).families
    for family, of_family in families.items():
        starts = _starts_across_nodes(of_family)
        for at, (generation, precision) in enumerate(zip(of_family.generation, of_family.precision, strict=True)):
            key = precision if (family, precision) in fitted else ANY
            if generation in lines and (family, key) in fitted and not starts[at]:
                members.setdefault((family, key, lines[generation]), []).append(at)
    return [_Group(*key, kernels.take_rows(families[key[0]], index, catalog)) for key, index in sorted(members.items())]


def _starts_across_nodes(rows: kernels.KernelRows) -> np.ndarray:
    """Collectives between nodes with messages so small that the network latency dominates."""
    if "message_size" not in rows.arguments:
        return np.full(len(rows), False)
    outside = rows.arguments["group_size"] > rows.machine.network.size[:, 0]
    return np.asarray(outside & (rows.arguments["message_size"] < _LARGE * factor("MiB")))


def _line_parameters(group: _Group, calibration: Calibration) -> tuple[list[Parameter], dict[str, float]]:
    """Parameters of a line and of its generations, and the base constants for any machine."""
    key = (np.array([part], dtype=object) for part in (ANY, group.precision, ANY))
    shared, _ = calibration.constants(group.family, *key)
    base = {name: float(values[0, 0]) for name, values in shared.items()}
    results: list[Parameter] = []
    for row in resources.rows(_TABLE):
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
        high = float(row["high"] or declared.high)
        general = Parameter(
            group.family,
            name,
            group.line,
            group.precision,
            start=min(max(base[name] or 0.1 * (declared.default or declared.high), declared.low), high),
            centre=min(max(base[name], declared.low), high),
            low=_LAUNCH_SHARE * base[name] if name == "launch_time" else math.nan,
            high=float(row["high"] or (1.0 if name in _SHARES else math.nan)),
            pull=pull,
        )
        parent = len(results)
        results.append(replace(general, pull=_OF_LINES * pull))
        kinds = group.generations if row["level"] != "line" else []
        results += [replace(general, generation=kind, parent=parent) for kind in kinds]
    return results, base


def as_measured(rows: kernels.KernelRows, constants: Mapping[str, Array], catalog: Catalog) -> Mapping[str, Array]:
    """Constants of measured kernels, adjusted to the benchmark settings in ``machine_kernels.csv``: benchmarks of
    machines by line quantised their inputs before the timed section, which no stack can.
    """
    lines, result = kernels.machine_lines(catalog), dict(constants)
    stated = [row for row in resources.rows(_TABLE) if row["family"] == rows.family and row["base"]]
    by_line = np.array([generation in lines for generation in rows.generation], dtype=bool)
    for row in stated:
        mask = by_line & np.array([row["precision"] in (ANY, precision) for precision in rows.precision], dtype=bool)
        result[row["constant"]] = np.where(mask[:, None], float(row["base"]), result[row["constant"]])
    return result


def _problem(group: _Group, parameters: Sequence[Parameter], base: Mapping[str, float]) -> Problem:
    rows, users = group.rows, np.array([group.own(parameter) for parameter in parameters])

    def residuals(trials: Array) -> Array:
        return np.array([np.log(_times(group, parameters, users, values, base) / rows.time) for values in trials])

    return Problem(residuals, fitted_weights(rows, _FEW, _CROWDING), users, step=_WIDE_STEP)


def _times(
    group: _Group, parameters: Sequence[Parameter], users: np.ndarray, values: Array, base: Mapping[str, float]
) -> Array:
    """Time of every measurement under trial values of its generation's parameters, else its line's. [s]"""
    constants = {name: np.full((len(group.rows), 1), value) for name, value in base.items()}
    # The general ones come first.
    for parameter, mask, value in zip(parameters, users, values.tolist(), strict=True):
        constants[parameter.constant] = np.where(mask[:, None], value, constants[parameter.constant])
    return np.asarray(kernels.predicted_time(group.rows, constants))[:, 0]


def _sheet_rows(group: _Group, parameters: Sequence[Parameter], solution: Solution, date: str) -> list[FittedConstant]:
    """Calibration rows of lines, and of generations that differ from their line."""
    rows, result = group.rows, []
    held = rows.held_back & (len(rows) > _FEW)
    solved = zip(parameters, solution.values.tolist(), solution.identified.tolist(), strict=True)
    for parameter, value, identified in solved:
        if not identified:
            continue
        users = group.own(parameter)
        sources = " ".join(sorted({source for source, uses in zip(rows.source_id, users, strict=True) if uses}))
        errors = np.abs(np.expm1(solution.residuals[users & held if (users & held).any() else users]))
        number, inside = int((users & ~held).sum()), rounded(value / factor(parameter.declared.unit))
        about = (f"{sources}: {number} of {int(users.sum())} rows", number, rounded(float(np.median(errors))), date)
        reached = _AT_MOST.get(parameter.constant, "") if value >= 0.999 * parameter.bounds[1] else ""
        notes = pooling_words(parameter, reached)
        result.append(FittedConstant(*parameter.key, inside, *about, POOLED_SOURCE, notes=notes))
    return result


def pooling_words(parameter: Parameter, reached: str) -> str:
    """Note on a constant: the pooling target, and the meaning of a bound if it ``reached`` one."""
    words = f"pooled towards {'its line' if parameter.parent >= 0 else 'what holds for any machine'}"
    return f"{words}; at its bound: {reached}" if reached else words


def _unlimited(family: str, lines: Collection[str], words: str, date: str) -> list[FittedConstant]:
    """Rows of lines whose power limit is unknown: no energy per operation, in any precision."""
    none = FittedConstant(family, "", ANY, ANY, _POWER, 0.0, date=date, source=POOLED_SOURCE).assumed(words)
    return [replace(none, generation=line) for line in sorted(lines)]


def products_of_others(
    rows: Sequence[kernels.Row], catalog: Catalog, swept: Collection[tuple[str, str]], date: str
) -> list[FittedConstant]:
    """GEMM efficiency of machines without a sweep: mean of their best published rate and of measured machines."""
    lines, shares = kernels.machine_lines(catalog), _reached(rows, catalog)
    usual = {
        precision: math.exp(float(np.mean(np.log([share for (_, of), share in shares.items() if of == precision]))))
        for precision in {of for _, of in shares}
    }
    best = [
        replace(row, value=rounded(math.sqrt(row.value * usual[row.precision])), notes=f"{row.notes}; {_HALF}")
        if row.constant == "compute_efficiency"
        else row
        for row in best_products(rows, catalog, set(), date)
        if row.precision in usual and row.generation in lines and (row.precision, lines[row.generation]) not in swept
    ]
    others = set(lines.values()) - {of for _, of in swept} - {lines[row.generation] for row in best}
    if "bf16" not in usual:
        return best
    mean = FittedConstant("gemm", "", "bf16", ANY, _RATE[1], rounded(usual["bf16"]), date=date, source=POOLED_SOURCE)
    mean = mean.assumed("not measured: mean of the machines that were")
    return [*best, *(replace(mean, generation=line) for line in sorted(others))]


def _reached(rows: Sequence[kernels.Row], catalog: Catalog) -> dict[tuple[str, str], float]:
    """Median share of the peak that long GEMMs reach, by generation (NVIDIA) or line (other vendors) and precision."""
    lines, products = kernels.machine_lines(catalog), kernels.measurements(rows, catalog).families.get("gemm")
    if products is None:
        return {}
    given, device = products.arguments, products.machine.device
    flop = 2.0 * given["batch"] * given["m"] * given["n"] * given["k"]
    share = flop / (products.time * device.peak_flop_rate[:, 0])
    long = products.time > _LONG_PRODUCTS * factor("us")
    groups: dict[tuple[str, str], list[float]] = {}
    for at in np.flatnonzero(long).tolist():
        kind = products.generation[at]
        groups.setdefault((lines.get(kind, kind), products.precision[at]), []).append(float(share[at]))
    return {group: float(np.median(values)) for group, values in groups.items() if len(values) >= FEWEST_ROWS}
