"""Public formulas found by import, the promises of their docstrings, and random arguments drawn from them."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

COUNTED = {"FLOP", "token", "request"}  # numbers of things: an equation may count them out of sizes
ATOMS = {"B", "s", "FLOP", "W", "J", "USD", "mm2", "mm", "Hz", "token", "request", "kg", "V", "K"}
ROWS, OPERATORS, TIERS = 24, 3, 3
_ENTRY = re.compile(r"^\*{0,2}(?P<names>\w+(?:, \w+)*) : (?P<text>.+)$")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A documented parameter, attribute or return value."""

    name: str
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
    """Entries of a numpydoc section; names of one line share its text."""
    found = re.search(rf"^{title}\n-+\n(.*?)(?=^\S[^\n]*\n-+\n|\Z)", documentation, re.DOTALL | re.MULTILINE)
    entries: list[Entry] = []
    text = re.split(r"\n\n(?! )", found[1].strip("\n"))[0] if found else ""  # an example may follow
    for line in text.splitlines():
        if line and not line.startswith(" "):
            head = _ENTRY.match(line)
            names, first = (head["names"], head["text"]) if head else ("", line)
            group = [Entry(name, first) for name in names.split(", ")]
            entries, size = [*entries, *group], len(group)
        elif line.strip() and entries:
            text = f"{entries[-1].text} {line.strip()}".strip()
            entries = [*entries[:-size], *(dataclasses.replace(entry, text=text) for entry in entries[-size:])]
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


def is_formula(function: Callable[..., Any]) -> bool:
    """Whether all parameters are arrays or numbers, and all results arrays."""
    results = re.findall(r"\w+", str(inspect.signature(function).return_annotation))
    arrays = all(is_array(annotation) for annotation in parameters(function).values())
    return arrays and set(results) <= {"Array", "tuple"}


@cache
def formulas() -> dict[str, Callable[..., Any]]:
    """Every public function of arrays alone by its full name: the contract holds for these."""
    return {name: function for name, function in functions().items() if is_formula(function)}


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
    """One array among the arguments: its documentation, unit and values."""

    entry: Entry
    unit: str
    values: np.ndarray


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


def draw(function: Callable[..., Any], random: np.random.Generator) -> dict[str, Leaf]:
    """Random arguments of a formula."""
    drawn: dict[str, Leaf] = {}
    for entry in section(documentation(function), "Parameters"):
        unit = entry.unit or "-"
        values = _random(random, entry, unit, _shape(entry.text, (ROWS,)))
        drawn[entry.name] = Leaf(entry, unit, values)
    return drawn


def outcomes(function: Callable[..., Any], result: Any) -> list[tuple[str, str, np.ndarray]]:
    """Arrays of a result with name and unit; the axis of the rows first."""
    entries = section(documentation(function), "Returns")
    results = result if isinstance(result, tuple) else (result,)
    entries = entries * len(results) if len(entries) == 1 else entries
    assert len(entries) == len(results), f"{function.__name__}: {len(results)} results, {len(entries)} documented"
    return [
        (entry.name or "result", entry.unit or "-", _rows_first(entry, np.asarray(values)))
        for entry, values in zip(entries, results, strict=True)
    ]


def _rows_first(entry: Entry, values: np.ndarray) -> np.ndarray:
    before = re.search(r"\(((?:\w+, )+)rows", entry.text)
    return np.moveaxis(values, before[1].count(","), 0) if before else values
