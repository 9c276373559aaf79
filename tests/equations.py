"""Public equations found by import, what their docstrings promise, and random arguments drawn from that promise."""

from __future__ import annotations

import csv
import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from types import ModuleType
from typing import Any

import numpy as np

from xlperf.base.arrays import Columns
from xlperf.catalog.schema import table_schema, unit_of
from xlperf.equations.plan.records import PlanColumns

RECORDS = {"TrainingPlan": "training", "InferencePlan": "inference"}  # records made from the schema, and their sheets
COUNTED = {"FLOP", "token", "request"}  # numbers of things: an equation may count them out of sizes
ATOMS = {"B", "s", "FLOP", "W", "J", "USD", "mm2", "mm", "Hz", "token", "request", "kg", "V"}
ROWS, OPERATORS, TIERS = 24, 3, 3
WORDS = ("str", "Words")
_ALL_CONSTANTS = ("Constants", "Mapping[str, Mapping[str, Array]]")
_ON_A_CHIP = {
    "mm2": (1.3, 2.3), "J/B": (-12, -11), "J/FLOP": (-13, -11), "W/mm2": (-3, -2), "W": (2, 4), "B/s": (9, 11),
    "FLOP": (5, 6), "mm": (0.3, 1.5), "B/s/mm": (10, 11), "Hz": (8, 9)
}  # fmt: skip
"""Powers of ten of what sheets of chips hold: several dies on a wafer, power that budgets allow."""
_ENTRY = re.compile(r"^\*{0,2}(?P<names>\w+(?:, \w+)*)(?: : (?P<type>.+))?$")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A documented parameter, attribute or return value."""

    name: str
    type: str
    text: str

    @property
    def unit(self) -> str | None:
        found = re.findall(r"\[([^\[\]]*)\]", re.sub(r"\[\d+\]_", "", self.text))
        return found[-1].strip() if found else None

    @property
    def is_flag(self) -> bool:
        return bool(re.search(r"\b1(:| where| with| for| if)|\b0 (with|where|otherwise)|1 for", self.text))

    @property
    def nan_has_a_meaning(self) -> bool:
        return "NaN" in self.text


def section(documentation: str, title: str) -> list[Entry]:
    """Entries of a numpydoc section."""
    found = re.search(rf"^{title}\n-+\n(.*?)(?=^\S[^\n]*\n-+\n|\Z)", documentation, re.DOTALL | re.MULTILINE)
    entries: list[Entry] = []
    text = re.split(r"\n\n(?! )", found[1].strip("\n"))[0] if found else ""  # an example may follow
    for line in text.splitlines():
        if line and not line.startswith(" "):
            head = _ENTRY.match(line)
            names, kind = (head["names"], head["type"] or "") if head else ("", line)
            entries += [Entry(name, kind, "") for name in names.split(", ")]
        elif line.strip() and entries:
            last = entries[-1]
            entries[-1] = dataclasses.replace(last, text=f"{last.text} {line.strip()}".strip())
    return entries


def modules() -> Iterator[ModuleType]:
    """Modules that hold equations."""
    top = importlib.import_module("xlperf.equations")
    for info in pkgutil.walk_packages(top.__path__, f"{top.__name__}."):
        yield importlib.import_module(info.name)


@cache
def functions() -> dict[str, Callable[..., Any]]:
    """Every public function of the equation rooms by its full name."""
    found = {}
    for module in modules():
        for name, value in vars(module).items():
            if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_"):
                found[f"{module.__name__.removeprefix('xlperf.equations.')}.{name}"] = value
    return found


def documentation(function: Any) -> str:
    return inspect.getdoc(function) or ""


def parameters(function: Callable[..., Any]) -> dict[str, str]:
    """Parameters of the signature and their annotations."""
    return {
        name: ("*" if value.kind is value.VAR_POSITIONAL else "") + str(value.annotation)
        for name, value in inspect.signature(function).parameters.items()
    }


def is_array(annotation: str) -> bool:
    return annotation in ("Numeric", "Array", "float", "npt.ArrayLike")


def is_equation(function: Callable[..., Any]) -> bool:
    """Whether all parameters are arrays or numbers."""
    return all(is_array(annotation) for annotation in parameters(function).values())


def exponents(unit: str) -> dict[str, int]:
    """Powers of the atoms of a unit.

    >>> exponents("token/s/W")
    {'token': 1, 's': -1, 'W': -1}
    >>> exponents("USD/(B/s)")
    {'USD': 1, 'B': -1, 's': 1}
    """
    powers: dict[str, int] = {}
    unit, _, rate = unit.partition("/(")
    if rate:
        powers = {atom: -power for atom, power in exponents(rate.rstrip(")")).items()}
        return {**exponents(unit), **powers}
    for position, atom in enumerate(unit.split("/")):
        if atom in ("-", "1", ""):
            continue
        if atom not in ATOMS:
            raise ValueError(f"[{unit}] is not made of the units used inside ({', '.join(sorted(ATOMS))})")
        powers[atom] = powers.get(atom, 0) + (1 if position == 0 else -1)
    return powers


def yardstick(unit: str, sticks: Mapping[str, float]) -> float:
    """Factor by which a value grows when its dimensions are measured with other yardsticks; W is J/s, mm2 is mm mm."""
    factor = 1.0
    for atom, power in exponents(unit).items():
        parts = {"W": ("J", "1/s"), "mm2": ("mm", "mm"), "Hz": ("1/s",)}.get(atom, (atom,))
        for part in parts:
            stick = 1.0 / sticks.get(part[2:], 1.0) if part.startswith("1/") else sticks.get(part, 1.0)
            factor *= stick**power
    return factor


def dimensions(unit: str) -> set[str]:
    """Yardsticks that a unit depends on."""
    found = set()
    for atom in exponents(unit):
        found |= {"W": {"J", "s"}, "mm2": {"mm"}, "Hz": {"s"}}.get(atom, {atom})
    return found


@dataclasses.dataclass
class Leaf:
    """One array among the arguments: where it stands, its unit, and its values."""

    path: tuple[str, ...]
    entry: Entry
    unit: str
    values: np.ndarray
    words: tuple[str, ...] = ()  # what the values count, where the column holds words

    @property
    def direct(self) -> bool:
        return len(self.path) == 1


class DrawnColumns(dict[str, Leaf]):
    """Leaves of the columns of a sheet."""


class CannotDraw(Exception):
    """The promise of the docstring is not enough to draw arguments."""


def _random(random: np.random.Generator, entry: Entry, unit: str, shape: tuple[int, ...]) -> np.ndarray:
    if unit != "-":
        low, high = {"B": (0, 9), "s": (-6, 1), "FLOP": (0, 12), "mm": (0, 2), "mm2": (1, 3), "1/mm2": (-4, -2)}.get(
            unit, (0, 12)
        )
        return 10.0 ** random.uniform(low, high, shape)
    text = entry.text
    if entry.is_flag:
        return random.integers(0, 2, shape).astype(float)
    span = re.search(r"\b0 to (\d)\b|\b0 none, 1 \w+, (\d)", text)
    if span:
        return random.integers(0, int(span[1] or span[2]) + 1, shape).astype(float)
    if re.search(r"efficiency|share|utilization|yield|fraction", entry.name):
        return random.uniform(0.05, 1.0, shape)
    return random.integers(1, 200, shape).astype(float)


def _shape(text: str, default: tuple[int, ...]) -> tuple[int, ...]:
    found = re.search(r"\(rows,(?: (\w+))?\)", text)
    if not found:
        return default
    return {None: (ROWS,), "1": (ROWS, 1), "tiers": (ROWS, TIERS)}.get(found[1], (ROWS, OPERATORS))


def _bundle(annotation: str) -> type | None:
    for module in modules():
        found = vars(module).get(annotation)
        if inspect.isclass(found) and (
            dataclasses.is_dataclass(found) or hasattr(found, "_fields") or annotation in RECORDS
        ):
            return found
    return None


def made_of(kind: type) -> dict[str, Any]:
    """Annotations of the fields that a bundle is made of; what follows from them is none."""
    given = {field.name: field.init for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else {}
    return {name: annotation for name, annotation in kind.__annotations__.items() if given.get(name, True)}


def bundle_fields(kind: type) -> dict[str, tuple[str, Entry]]:
    """Fields of a bundle of arrays: annotation and documentation; the class's unit where a field has none."""
    text = documentation(kind)
    attributes = {entry.name: entry for entry in section(text, "Attributes")}
    whole = Entry("", "", text.split("Attributes\n")[0])
    kinds = {name: getattr(kind, "__forward_arg__", str(kind)) for name, kind in made_of(kind).items()}
    return {name: (kind, attributes.get(name, dataclasses.replace(whole, name=name))) for name, kind in kinds.items()}


@cache
def families() -> dict[str, list[Entry]]:
    """Calibration constants by family."""
    found: dict[str, list[Entry]] = {}
    with (files("xlperf.catalog") / "constants.csv").open(encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            entry = Entry(row["constant"], f"{row['low']} {row['high']}", f"[{row['unit']}]")
            found.setdefault(row["family"], []).append(entry)
    return found


def _family(name: str, choice: str | None) -> str:
    if choice in families():
        return str(choice)
    words = set(name.split("_"))
    fitting = [family for family in families() if set(family.split("_")) <= words]
    if not fitting:
        raise CannotDraw(f"{name}: no family of calibration constants is named in the function's name")
    return max(fitting, key=lambda family: len(family.split("_")))


def choices(entry: Entry) -> list[str]:
    """Choices that a docstring lists: ``{"ring", "tree"}``."""
    return re.findall(r"['\"]([\w\-]+)['\"]", entry.type)


def draw(function: Callable[..., Any], random: np.random.Generator, choice: str | None = None) -> dict[str, Any]:
    """Random arguments: each a :class:`Leaf`, a str, or a dict or bundle of leaves."""
    documented = {entry.name: entry for entry in section(documentation(function), "Parameters")}
    bundles = {name: _bundle(annotation) for name, annotation in parameters(function).items()}
    wide = any(kind is not None and kind.__name__ in ("Device", "Network") for kind in bundles.values())
    default = (ROWS, OPERATORS) if wide else (ROWS,)
    drawn: dict[str, Any] = {}
    for name, annotation in parameters(function).items():
        entry = documented.get(name)
        if entry is None:
            raise CannotDraw(f"{name} is not documented")
        kind = bundles[name]
        if is_array(annotation):
            shape = _shape(entry.type + entry.text, default)
            drawn[name] = Leaf((name,), entry, entry.unit or "-", _random(random, entry, entry.unit or "-", shape))
        elif annotation in WORDS and choices(entry):
            drawn[name] = choice or choices(entry)[0]
        elif annotation == "Mapping[str, Array]":
            own = (
                ("serving_software", "serving_memory") if name == "software" else (_family(function.__name__, choice),)
            )
            drawn[name] = {k: v for family in own for k, v in _draw_constants((name,), family, random).items()}
        elif annotation in _ALL_CONSTANTS:
            drawn[name] = _draw_all_constants((name,), random)
        elif annotation == "bool":
            drawn[name] = True  # a structure that is there
        elif annotation == "str" and name == "name":
            drawn[name] = "operator"
        elif annotation == "tuple[int, ...]":
            drawn[name] = inspect.signature(function).parameters[name].default
        elif annotation == "Columns":
            drawn[name] = _draw_columns(name, entry, random)
        elif kind is not None:
            drawn[name] = _draw_bundle(name, kind, random)
        else:
            raise CannotDraw(f"{name} is of type {annotation}")
    return drawn


def _sheet(entry: Entry) -> str:
    """The sheet that a docstring names: sheet ``devices``."""
    found = re.search(r"sheet ``(\w+)``", entry.text)
    if found is None:
        raise CannotDraw(f"{entry.name} names no sheet")
    return found[1]


def _draw_columns(name: str, entry: Entry, random: np.random.Generator) -> DrawnColumns:
    """Every number and choice of a sheet, near its default or within its bounds; yields near 1."""
    drawn = DrawnColumns()
    for column in table_schema(_sheet(entry)).columns:
        if column.kind in ("number", "result"):
            unit, default = unit_of(column).dimension, float(column.default or 0.0) * unit_of(column).factor
            values = _random(random, Entry(column.name, "", ""), unit, (ROWS,))
            if unit in _ON_A_CHIP:
                values = 10.0 ** random.uniform(*_ON_A_CHIP[unit], ROWS)
            elif unit == "-":
                values = random.integers(1, 9, ROWS).astype(float)
            if default > 0.0 and not column.name.startswith("num_"):
                values = default * random.uniform(0.8, 1.25, ROWS)
            if column.bounds.startswith("0.."):
                values = random.uniform(0.9 if "yield" in column.name else 0.05, 0.95, ROWS)
            if column.name.endswith("_needed"):  # out of as many as there are
                values = np.ceil(drawn[column.name.removesuffix("_needed")].values * random.uniform(0.5, 1.0, ROWS))
            if "blank:" in column.meaning:
                values = np.where(random.random(ROWS) < 0.2, np.nan, values)
            drawn[column.name] = Leaf((name, column.name), entry, unit, values)
        elif column.kind == "choice":
            codes = random.integers(0, len(column.choices), ROWS).astype(float)
            drawn[column.name] = Leaf((name, column.name), entry, "-", codes, tuple(column.choices))
    return drawn


def _draw_constants(path: tuple[str, ...], family: str, random: np.random.Generator) -> dict[str, Leaf]:
    return {
        constant.name: Leaf(
            (*path, constant.name),
            constant,
            constant.unit or "-",
            random.uniform(*map(float, constant.type.split()), (ROWS, 1)),
        )
        for constant in families()[family]
    }


def _draw_all_constants(path: tuple[str, ...], random: np.random.Generator) -> dict[str, dict[str, Leaf]]:
    drawn = {family: _draw_constants((*path, family), family, random) for family in families()}
    return {**drawn, "gemm_wide": drawn["gemm"]}


def _draw_record(name: str, kind: type[PlanColumns], random: np.random.Generator) -> PlanColumns:
    """A plan with every number, flag and choice of its sheet, and the columns that its class adds."""
    columns: dict[str, Any] = {}
    for column in table_schema(RECORDS[kind.__name__]).columns:
        if column.kind not in ("number", "flag", "choice"):
            continue
        symbol = {"-": "-", "h": "s", "min": "s", "ms": "s", "request/s": "request/s", "GB/s": "B/s", "T": "token"}.get(
            column.unit or "-", "-"
        )
        entry = Entry(column.name, "", "1 where so" if column.kind == "flag" else "")
        values = _random(random, entry, symbol, (ROWS,))
        if column.kind == "choice":
            values = random.integers(0, len(column.choices), ROWS).astype(float)
        columns[column.name] = Leaf((name, column.name), entry, symbol, values)
    for entry in section(documentation(kind), "Attributes"):
        unit = entry.unit or "-"
        columns[entry.name] = Leaf((name, entry.name), entry, unit, _random(random, entry, unit, (ROWS,)))
    return kind(columns)


def _draw_bundle(name: str, kind: type, random: np.random.Generator) -> Any:
    if issubclass(kind, PlanColumns):
        return _draw_record(name, kind, random)
    text = documentation(kind)
    default = _shape(text, (ROWS, 1))
    fields: dict[str, Any] = {}
    for field, (annotation, entry) in bundle_fields(kind).items():
        if annotation.startswith("tuple[str"):
            fields[field] = tuple(f"operator {number}" for number in range(OPERATORS))
            continue
        if annotation == "bool":
            fields[field] = True  # a structure that is there
            continue
        if annotation == "Columns":
            fields[field] = _draw_columns(f"{name}.{field}", entry, random)
            continue
        inner = _bundle(annotation)
        if inner is not None:
            fields[field] = _draw_bundle(f"{name}.{field}", inner, random)
            continue
        if annotation in _ALL_CONSTANTS:
            fields[field] = _draw_all_constants((name, field), random)
            continue
        if annotation == "Mapping[str, Array]":
            own = ("serving_software", "serving_memory", "serving_load", "serving_host")
            fields[field] = {k: v for family in own for k, v in _draw_constants((name, field), family, random).items()}
            continue
        if annotation == "np.ndarray | None":  # what need not be known is left out
            continue
        if not is_array(annotation) and annotation != "np.ndarray":
            raise CannotDraw(f"{name}.{field} is of type {annotation}")
        unit = entry.unit or "-"
        values = _random(random, entry, unit, default)
        if field == "size":
            values = np.cumprod(random.integers(2, 9, default), axis=-1).astype(float)
        if annotation == "np.ndarray":
            values = np.zeros(default, dtype=int)
        fields[field] = Leaf((name, field), entry, unit, values)
    return kind(**fields)


def leaves(value: Any) -> Iterator[Leaf]:
    """All leaves of drawn arguments."""
    if isinstance(value, Leaf):
        yield value
    elif isinstance(value, Mapping | PlanColumns):
        for part in (vars(value)["_columns"] if isinstance(value, PlanColumns) else value).values():
            yield from leaves(part)
    elif hasattr(value, "_fields") or dataclasses.is_dataclass(value):
        for field in made_of(type(value)):
            yield from leaves(getattr(value, field))


def filled(value: Any, change: Callable[[Leaf], Any]) -> Any:
    """Drawn arguments with each leaf replaced by an array."""
    if isinstance(value, Leaf):
        changed = change(value)
        return np.array(value.words, dtype=object)[np.asarray(changed, dtype=int)] if value.words else changed
    if isinstance(value, DrawnColumns):
        return Columns({name: filled(part, change) for name, part in value.items()}.__getitem__)
    if isinstance(value, Mapping):
        return {name: filled(part, change) for name, part in value.items()}
    if isinstance(value, PlanColumns):
        columns = filled(vars(value)["_columns"], change)
        texts = [column for column in table_schema(RECORDS[type(value).__name__]).columns if column.kind == "text"]
        rows = np.shape(next(iter(columns.values())))
        return type(value)({**columns, **{text.name: np.full(rows, text.default, dtype=object) for text in texts}})
    if hasattr(value, "_fields") or dataclasses.is_dataclass(value):
        return type(value)(**{field: filled(getattr(value, field), change) for field in made_of(type(value))})
    return value


def outcomes(function: Callable[..., Any], result: Any) -> list[tuple[str, str, np.ndarray]]:
    """Arrays of a result with name and unit; the axis of the rows first."""
    entries = section(documentation(function), "Returns")
    if hasattr(result, "_fields") or dataclasses.is_dataclass(result) or isinstance(result, dict):
        found = list(_parts(result, entries))
    elif isinstance(result, tuple):
        if any(isinstance(part, Mapping | PlanColumns) for part in result):
            raise CannotDraw("results are records of columns")
        entries = entries * len(result) if len(entries) == 1 else entries
        assert len(entries) == len(result), f"{function.__name__}: {len(result)} results, {len(entries)} documented"
        found = [(entry.name, entry, part) for entry, part in zip(entries, result, strict=True)]
    elif isinstance(result, (np.ndarray, float)):
        found = [(entries[0].name or "result", entries[0], result)]
    else:
        found = []
    if not found:
        raise CannotDraw(f"result is of type {type(result).__name__}, without arrays of known units")
    return [(name, entry.unit or "-", _rows_first(entry, np.asarray(values))) for name, entry, values in found]


def _parts(result: Any, entries: list[Entry]) -> Iterator[tuple[str, Entry, Any]]:
    """Arrays in a bundle or a dict of result columns, where their unit is documented or in the schema."""
    if isinstance(result, dict):
        named = [_sheet(entry) for entry in entries if "sheet ``" in entry.text]
        columns = {
            name: column
            for kind in named or ("training_results", "inference_results")
            for name, column in table_schema(kind).by_name.items()
            if not column.is_text
        }
        for name, values in result.items():
            if name in columns:
                yield name, Entry(name, "", f"[{unit_of(columns[name]).dimension}]"), values
        return
    for name, (annotation, entry) in bundle_fields(type(result)).items():
        values = getattr(result, name)
        if is_array(annotation) and entry.unit is not None:
            yield name, entry, values
        elif isinstance(values, dict) or hasattr(values, "_fields"):
            yield from _parts(values, [entry])


def _rows_first(entry: Entry, values: np.ndarray) -> np.ndarray:
    before = re.search(r"\(((?:\w+, )+)rows", entry.type + entry.text)
    return np.moveaxis(values, before[1].count(","), 0) if before else values


@cache
def undrawn() -> dict[str, str]:
    """Functions that cannot be called with what their docstring promises, and why."""
    found = {}
    for name, function in functions().items():
        entries = section(documentation(function), "Parameters")
        listed = [word for entry in entries for word in choices(entry)] or [None]
        try:
            drawn = draw(function, np.random.default_rng(7), listed[0])
            arguments = filled(drawn, lambda leaf: leaf.values)
            with np.errstate(all="ignore"):
                outcomes(function, function(**arguments))
        except CannotDraw as problem:
            found[name] = str(problem)
        except (ValueError, IndexError, KeyError) as problem:
            if is_equation(function):
                raise
            found[name] = f"arguments that do not fit together: {problem}"
    return found
