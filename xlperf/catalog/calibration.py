"""Measured efficiencies: which row of the calibration sheet holds for a generation, precision and software."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from xlperf.base import resources
from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, Hint, InputError, nearest
from xlperf.base.units import UNITS
from xlperf.catalog.cells import shown
from xlperf.catalog.table import Keys, Table, coded_words, combined_keys

ANY = "any"
SOFTWARE_FAMILIES = (
    "training_software", "training_memory", "training_calls", "serving_software", "serving_memory", "serving_load",
    "engine_all_reduce", "band",
)  # fmt: skip
_PRECISIONS = {
    "fp16": "bf16", "fp8-block": "fp8_block", "fp8-tensor": "fp8", "mxfp4": "fp4", "int4-128": "int4",
    "int4-64": "int4", "int8-128": "int8",
}  # fmt: skip
_MOVED = {("serving_software", "memory_fraction"): "serving_memory"}  # in another family of older sheets
_GONE = frozenset("training_band serving_band capacity_band slow_machines slow_messages power_low power_high".split())
"""Families and constants of older sheets that no equation reads any more."""
_BROADER = {"mxfp8": "fp8", "fp8_block": "fp8"}  # fallback precisions of constants without a row of their own
_ENERGY = "energy_per_flop"
COMPILED, EAGER = "torchtitan", "torch-fsdp"  # PyTorch FSDP with torch.compile and without it
FLASHATTENTION_2 = "flashattention-2"  # library with kernels of its own on Hopper, elsewhere those of any software
_RELEASES = {
    "vllm-0.6": "vllm", "vllm-0.8": "vllm", "sglang-0.4": "sglang", "sglang-0.5": "sglang",
    "tensorrt-llm-0.17": "tensorrt-llm",
}  # fmt: skip
"""Unmeasured releases; constants and bands of the measured releases replace theirs."""
_SAME_MEMORY = {"vllm-0": "vllm"}  # releases with other kernels and the same accounting of memory
_FLASH = ("attention", "attention_backward")  # families in which constants of a library hold for stacks that call it
_FUSED = ("vector",)  # families in which such stacks differ: a compiler makes one kernel of many

Found = tuple[dict[str, Array], np.ndarray]
"""Constants of a family by name, (rows, 1), and whether nothing was measured that is like a row, (rows,)."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A calibration constant as ``constants.csv`` declares it; default, low and high in the unit used inside."""

    family: str
    name: str
    unit: str
    default: float
    low: float
    high: float
    meaning: str


@cache
def declared_constants() -> dict[str, dict[str, Constant]]:
    """Every constant that equations use: family -> name -> declaration."""
    families: dict[str, dict[str, Constant]] = {}
    for row in resources.rows("catalog/constants.csv"):
        factor = UNITS[row["unit"]].factor
        default, low, high = (float(row[part]) * factor for part in ("default", "low", "high"))
        constant = Constant(row["family"], row["constant"], row["unit"], default, low, high, row["meaning"])
        families.setdefault(constant.family, {})[constant.name] = constant
    return families


@cache
def documented_rows() -> CalibrationRows:
    """Documented constants of stacks, engines and libraries, which rows of a sheet replace; row -1 of the sheet."""
    rows: CalibrationRows = {}
    for row in resources.rows("catalog/documented_constants.csv"):
        constant = declared_constants()[row["family"]][row["constant"]]
        key = row["generation"], row["precision"], row["software"]
        value = float(row["value"]) * UNITS[constant.unit].factor
        rows.setdefault((constant.family, constant.name), {})[key] = (-1, value)
    return rows


@cache
def parent_families() -> dict[str, tuple[str, dict[str, float]]]:
    """Family whose constants of a machine hold for another family, and their ratios by constant."""
    parents: dict[str, tuple[str, dict[str, float]]] = {}
    for row in resources.rows("catalog/parent_families.csv"):
        ratios = parents.setdefault(row["family"], (row["parent"], {}))[1]
        if row["constant"]:
            ratios[row["constant"]] = float(row["ratio"])
    return parents


def calibration_keys(generation: Sequence[str], precision: Sequence[str], software: Sequence[str]) -> Keys:
    """Distinct keys of rows, (rows,); upper and lower case are alike, fp16 is bf16."""
    return combined_keys(*(coded_words(values) for values in (generation, precision, software)))


def same_kernels(software: str) -> str:
    """Stack whose products and attention a stack calls, or of which it is a release: itself if they are its own."""
    return _stack_kernels("kernels").get(software, _RELEASES.get(software, software))


def gathers_sequences(software: str) -> bool:
    """Whether ranks gather and scatter sequences as the second dimension of tensors (DTensor of PyTorch)."""
    return _stack_kernels("gathers").get(software.strip().casefold(), "") == "dtensor"


@cache
def _stack_kernels(column: str) -> dict[str, str]:
    """A column of ``kernels.csv`` by software: whose ``kernels`` it calls, the library of its ``attention``."""
    return {row["software"]: row[column] for row in resources.stack_rows("kernels") if row[column]}


def is_release(software: str) -> bool:
    """Whether a name denotes releases of an engine with other, measured releases."""
    return software.casefold() in _RELEASES


def _key(value: str) -> str:
    return value.strip().casefold() or ANY


def _keys(generation: str, precision: str, software: str) -> tuple[str, str, str]:
    return _key(generation), precision_key(precision), _key(software)


def precision_key(value: str) -> str:
    """Name of a stored format in the calibration sheet: FP16 takes the constants of BF16.

    >>> precision_key("FP16"), precision_key("fp8-block"), precision_key("fp8-tensor")
    ('bf16', 'fp8_block', 'fp8')
    """
    key = _key(value)
    return _PRECISIONS.get(key, key)


def shared_precision(value: str) -> str:
    """Precision that keys constants fitted on published runs: the FP8 formats share them, as ratios to their own GEMMs.

    >>> shared_precision("fp8-block"), shared_precision("int4")
    ('fp8', 'int4')
    """
    key = precision_key(value)
    return _BROADER.get(key, key)


class _Single(dict[tuple[str, str, str, str], Found]):
    """Constants of a family for one key, (1, 1), looked up once; ``together`` as one array (constants, 1, 1)."""

    def __init__(self, values: Callable[[str, tuple[str, str, str]], tuple[tuple[float, ...], bool]]) -> None:
        super().__init__()
        self._values = values
        self.together: dict[tuple[str, str, str, str], Array] = {}

    def __missing__(self, key: tuple[str, str, str, str]) -> Found:
        family, generation, precision, software = key
        values, far = self._values(family, (generation, precision, software))
        names = declared_constants()[family]
        together = self.together[key] = np.array(values, dtype=np.float64).reshape(len(names), 1, 1)
        together.setflags(write=False)
        result = self[key] = (dict(zip(names, together, strict=True)), np.array([far]))
        result[1].setflags(write=False)
        return result


class Calibration:
    """Constants of kernel families, collectives and software; InputError for unknown ones and bad values."""

    def __init__(self, table: Table) -> None:
        rows, faults = calibration_rows(table)
        if faults:
            raise InputError([Fault(table.place(row, column), problem, hint) for row, column, problem, hint in faults])
        self._rows = {**rows, **{at: {**known, **rows.get(at, {})} for at, known in documented_rows().items()}}
        self._generations: dict[str, set[str]] = {}
        self._softwares: dict[str, set[str]] = {}
        self._machines: dict[str, set[str]] = {family: set() for family in parent_families()}
        measured = {family for family, _ in rows}
        for (family, name), result in self._rows.items():
            if family in self._machines:
                self._machines[family].update(key[0] for key in result if key[2] == ANY)
            if family not in measured:
                continue
            if name != _ENERGY:  # whether a power limit binds says nothing of how well a kernel is known
                self._generations.setdefault(family, set()).update(key[0] for key in result)
            self._softwares.setdefault(family, set()).update(key[2] for key in result)
        for family, (parent, _) in parent_families().items():  # machines of the parent are measured for its children
            if family in self._generations:
                self._generations[family] |= self._generations.get(parent, set())
        self._cache: dict[tuple[str, str, str, str], tuple[tuple[float, ...], bool]] = {}
        self.single = _Single(self._values)

    def knows_software(self, family: str, name: str) -> bool:
        """Whether a family has rows for a training stack or serving engine itself, on whatever machine."""
        return _key(name) in self._softwares.get(family, set())

    def constants(self, family: str, generation: np.ndarray, precision: np.ndarray, software: np.ndarray) -> Found:
        """Constants of a family, (rows, 1), and the rows that nothing measured is like.

        The key is looked up with any software, any precision and both, then by the line of the generation (cdna of
        cdna3), any generation, and the declared default; a family without a row on a machine asks its parent family.
        """
        return self.constants_of(family, calibration_keys(generation.tolist(), precision.tolist(), software.tolist()))

    def constants_of(self, family: str, keys: Keys) -> Found:
        """As :meth:`constants`, for keys that were made once with :func:`calibration_keys`."""
        if len(keys.codes) == 1:
            return self.single[(family, *keys.distinct[0])]
        if len(keys.distinct) == 1:
            key, number = (family, *keys.distinct[0]), len(keys.codes)
            columns, far = self.single[key]
            together = np.broadcast_to(self.single.together[key], (len(columns), number, 1))
            return dict(zip(columns, together, strict=True)), np.broadcast_to(far, (number,))
        names = tuple(declared_constants()[family])
        results = [self._values(family, key) for key in keys.distinct]
        values = np.array([row for row, _ in results], dtype=np.float64).reshape(len(results), len(names))
        extrapolated = np.array([far for _, far in results], dtype=bool)
        spread = np.ascontiguousarray(values.T)[:, keys.codes, None]
        columns = dict(zip(names, spread, strict=True))
        return columns, extrapolated[keys.codes]

    def is_measured(self, family: str) -> bool:
        """Whether the sheet has any constant of a family; else all are documented or the declared defaults."""
        return bool(self._generations.get(family))

    def used(self, family: str, generation: str, precision: str, software: str) -> dict[str, int]:
        """Which row of the calibration table each constant of a family comes from; -1 for the declared default."""
        candidates = _candidates(family, *_keys(generation, precision, software))
        return {name: self._lookup(family, name, candidates)[0] for name in declared_constants()[family]}

    def values_of(self, family: str, names: Sequence[str], keys: Sequence[tuple[str, str, str]]) -> Array:
        """Some constants of a family under keys of generation, precision and software, (keys, names)."""
        candidates = [_candidates(family, *_keys(*key)) for key in keys]
        values = [[self._lookup(family, name, known)[1] for name in names] for known in candidates]
        return np.array(values).reshape(len(keys), len(names))

    def _values(self, family: str, key: tuple[str, str, str]) -> tuple[tuple[float, ...], bool]:
        cached = self._cache.get((family, *key))
        if cached is None:
            stated, key = key, _keys(*key)
            candidates = _candidates(family, *key)
            values = tuple([self._lookup(family, name, candidates)[1] for name in declared_constants()[family]])
            if family in SOFTWARE_FAMILIES:
                own, measured = {key[2]}, self._softwares.get(family, set())
            else:
                own, measured = {key[0], generation_line(key[0])}, self._generations.get(family, set())
            far = own.isdisjoint(measured) and bool(measured)
            cached = self._cache[(family, *stated)] = (values, far)
        return cached

    def _lookup(self, family: str, name: str, candidates: Sequence[tuple[str, str, str]]) -> tuple[int, float]:
        levels = [candidates]
        if family in parent_families():
            levels = [[one for one in candidates if (one[0] == ANY) == of_any] for of_any in (False, True)]
        for level in levels:
            for source, ratio in ((family, 1.0), *self._parent(family, name, level)):
                result = self._rows.get((source, name), {})
                for candidate in level:
                    if candidate in result:
                        row, value = result[candidate]
                        return row, ratio * value
        return -1, declared_constants()[family][name].default

    def _parent(self, family: str, name: str, level: Sequence[tuple[str, str, str]]) -> Sequence[tuple[str, float]]:
        """Parent of a family and its ratio, unless the family has constants of the same machine for any software."""
        if family not in parent_families() or not self._machines[family].isdisjoint({one[0] for one in level}):
            return ()
        parent, ratios = parent_families()[family]
        return ((parent, ratios.get(name, 1.0)),)


def _candidates(family: str, generation: str, precision: str, software: str) -> list[tuple[str, str, str]]:
    """Keys from the nearest to the farthest; a kind of FP8 falls back to FP8 before it leaves the generation."""
    own = _fall_backs(family, generation, precision, software)
    broader = _BROADER.get(precision)
    if broader is None or family in SOFTWARE_FAMILIES:
        return own
    results = [key for key in own if key[:2] == (generation, precision)]
    for key in _fall_backs(family, generation, broader, software):
        if key[1] == broader and key[0] != generation:
            results.append((key[0], precision, key[2]))
        results.append(key)
    return results


def generation_line(generation: str) -> str:
    """Line of generations: the name without the number at its end, ``cdna`` of ``cdna3``."""
    return generation.rstrip("0123456789") or generation


def _fall_backs(family: str, generation: str, precision: str, software: str) -> list[tuple[str, str, str]]:
    line = generation_line(generation)
    machines = (generation,) if line == generation else (generation, line)
    called = same_kernels(_SAME_MEMORY.get(software, software) if family == "serving_memory" else software)
    alike = (called,) if called != software and family not in _FUSED else ()
    if family in SOFTWARE_FAMILIES:
        own = [(machine, ANY, software) for machine in (*machines, ANY)]
        others = [(machine, ANY, name) for name in alike for machine in (*machines, ANY)]
        return [*own, *others, *((machine, ANY, ANY) for machine in (*machines, ANY))]
    libraries = _stack_kernels("attention") if family in _FLASH else {}
    library = libraries.get(software) or libraries.get(called)
    names = (software, *alike, library) if library else (software, *alike)
    levels = (precision, ANY)
    own = [(machine, level, name) for machine in machines for level in levels for name in (*names, ANY)]
    elsewhere = [(ANY, level, name) for level in levels for name in names]
    return [*own, *elsewhere, (ANY, precision, ANY), (ANY, ANY, ANY)]


CalibrationRows = dict[tuple[str, str], dict[tuple[str, str, str], tuple[int, float]]]


def calibration_rows(table: Table) -> tuple[CalibrationRows, list[tuple[int, str, str, Hint | None]]]:
    """Rows by (family, constant) and key, values in the units used inside; and faults: (row, column, problem, hint)."""
    declared = declared_constants()
    columns = [table.text(name).tolist() for name in ("family", "constant", "unit")]
    keys = [table.text(name, ANY).tolist() for name in ("generation", "precision", "software")]
    values = table.number("value").tolist()
    rows: CalibrationRows = {}
    faults: list[tuple[int, str, str, Hint | None]] = []
    for row, (family, name, symbol) in enumerate(zip(*columns, strict=True)):
        family, name, value = _key(family), _key(name), values[row]
        family = _MOVED.get((family, name), family)
        if family not in declared:
            if family != ANY and family not in _GONE:
                hint = partial(nearest, family, tuple(declared))
                faults.append((row, "family", f"unknown family {shown(family)}", hint))
            continue
        if name not in declared[family]:
            if name != ANY and name not in _GONE:
                hint = partial(nearest, name, tuple(declared[family]))
                faults.append((row, "constant", f'unknown constant {shown(name)} of family "{family}"', hint))
            continue
        constant = declared[family][name]
        unit = UNITS.get(symbol or constant.unit)
        if unit is None or unit.dimension != UNITS[constant.unit].dimension:
            known = [other.symbol for other in UNITS.values() if other.dimension == UNITS[constant.unit].dimension]
            problem = f"unit of {family} {name} cannot be {shown(symbol)}; known: {', '.join(known)}"
            faults.append((row, "unit", problem, None))
            continue
        inside = value * unit.factor
        if not constant.low <= inside <= constant.high and value == value:
            low, high = constant.low / unit.factor, constant.high / unit.factor
            problem = f"{family} {name} must be a number from {low:g} to {high:g} ({unit.symbol}), got {value:g}"
            faults.append((row, "value", problem, None))
            continue
        key = (_key(keys[0][row]), precision_key(keys[1][row]), _key(keys[2][row]))
        rows.setdefault((family, name), {})[key] = (row, inside)
    return rows, faults
