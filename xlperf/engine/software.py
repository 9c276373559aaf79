"""Blank columns of plans filled with what their software does by default at its release."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import cache
from operator import attrgetter
from typing import Any

import numpy as np

from xlperf.base.arrays import Array, array, is_repeated, mapped, repeated, some
from xlperf.base.errors import Fault, InputError
from xlperf.base.units import UNITS
from xlperf.catalog.calibration import declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.cells import shown
from xlperf.catalog.schema import Column, column, unit_of
from xlperf.catalog.table import Table, Words
from xlperf.engine.join import choice_codes
from xlperf.equations.model.model import Model
from xlperf.equations.plan.records import PlanColumns, Remark, Rule, broken_rules
from xlperf.interop.software import STATED, Default, software_defaults
from xlperf.interop.stack_rules import NUMBERS, STACKS, Condition, Quantity, StackRule, quantity, stack_of_software
from xlperf.interop.stack_rules import stack_rules as rules_of_stack

Mask = np.ndarray
_Plan = Any
_SIGNS: dict[str, Callable[[Array, Array], Mask]] = {
    "=": np.equal, "!=": np.not_equal, ">": np.greater, "<": np.less,
    "multiple_of": lambda value, operand: _whole(value / operand),
    "multiple_or_divisor": lambda value, operand: _whole(value / operand) | _whole(operand / value),
    "at_most": np.less_equal, "at_least": np.greater_equal,
    "in_equal_pieces": lambda value, pieces: np.ceil(value / np.ceil(value / pieces)) == pieces,
}  # fmt: skip
_OPERATORS: dict[str, Callable[[Array, Array], Array]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide,
}  # fmt: skip


def _whole(values: Array) -> Mask:
    return np.asarray(values == np.floor(values))


@cache
def _read(name: str) -> Callable[[_Plan, Model], Any]:
    """Function that reads a number, a column of plans, or one of their models."""
    if name.replace(".", "", 1).isdigit():
        number = np.asarray(float(name))
        return lambda plan, model: number
    of_model = attrgetter(name.removeprefix("model."))
    return (lambda plan, model: of_model(model)) if name.startswith("model.") else lambda plan, model: of_model(plan)


def _evaluated(subject: Quantity, plan: _Plan, model: Model) -> Array:
    """A quantity of plans, evaluated from left to right, (rows,)."""
    result = array(_read(subject[0][1])(plan, model))
    for sign, name in subject[1:]:
        result = _OPERATORS[sign](result, array(_read(name)(plan, model)))
    return result


def _codes(kind: str, name: str, words: str) -> list[float]:
    codes = choice_codes(kind, name)
    return [codes[word] for word in words.split()]


@cache
def _operand(kind: str, condition: Condition) -> Quantity:
    """Right side of a condition; a word of a choice as its code."""
    name = condition.subject[0][1]
    chosen = condition.sign in ("=", "!=") and not name.startswith("model.") and column(kind, name).kind == "choice"
    return (("+", str(_codes(kind, name, condition.other)[0])),) if chosen else quantity(condition.other)


def _meets(kind: str, condition: Condition, plan: _Plan, model: Model) -> Mask:
    """Plans that meet a condition, which several rules may share."""
    known: dict[Condition, Mask] = plan.conditions
    met = known.get(condition)
    if met is None:
        operand = _evaluated(_operand(kind, condition), plan, model)
        met = known[condition] = _SIGNS[condition.sign](_evaluated(condition.subject, plan, model), operand)
    return met


def _has_words(name: str, words: str, plan: _Plan) -> Mask:
    """Whether a text column has any of some words."""
    wanted, stated = frozenset(words.split()), plan.words(name)
    texts = stated[:1].tolist() if is_repeated(stated) else set(stated.tolist())
    known = {text: bool(wanted & frozenset(str(text).split())) for text in texts}
    return mapped(known.__getitem__, stated, np.bool_)


def _breaks(kind: str, rule: StackRule, plan: _Plan, model: Model, whole: bool) -> Mask:
    """Plans that break a rule, (rows,); ``whole`` reads every column even if the conditions exclude all plans."""
    concerned: Mask = np.asarray(True)
    for condition in rule.when:
        concerned = concerned & _meets(kind, condition, plan, model)
        if not (whole or some(concerned)):
            return np.asarray(concerned)
    name = rule.subject[0][1]
    if rule.rule == "blank":
        return np.asarray(concerned & np.isfinite(_evaluated(rule.subject, plan, model)))
    if rule.rule in NUMBERS:
        value, operand = _evaluated(rule.subject, plan, model), _evaluated(quantity(rule.operand), plan, model)
        known = np.isfinite(value) & np.isfinite(operand)
        return np.asarray(concerned & known & ~_SIGNS[rule.rule](value, operand))
    declared = column(kind, name)
    if declared.kind == "text":
        among, unknown = _has_words(name, rule.operand, plan), plan.words(name) == ""
    else:
        numbers = declared.kind == "number"
        listed = [float(word) for word in rule.operand.split()] if numbers else _codes(kind, name, rule.operand)
        value = getattr(plan, name)
        among, unknown = np.isin(value, listed), np.isnan(value)
    return np.asarray(concerned & ~unknown & (among if rule.rule == "none_of" else ~among))


@cache
def rules_of(kind: str, stack: str, whole: bool = False) -> tuple[Rule[Any], ...]:
    """Rules of a stack (:data:`xlperf.interop.stack_rules.STACKS`) as rules of plans: a mask and a sentence each.

    ``whole``: rules read every column that they name, as spaces of plans with open columns need.
    """

    def of(rule: StackRule) -> Rule[Any]:
        sentence = f"{STACKS[stack].title} refuses this: {rule.says}"

        def broken(plan: Any, model: Model) -> Mask:
            if not whole:  # inside :func:`refusals`
                return _breaks(kind, rule, plan, model, whole)
            with np.errstate(all="ignore"):
                return _breaks(kind, rule, plan, model, whole)

        return Rule(broken, sentence)

    return tuple(map(of, rules_of_stack(kind, stack)))


def refusals(kind: str, plan: PlanColumns, model: Model, software: Words, illegal: np.ndarray) -> list[Remark]:
    """Legal plans that their stack or engine does not start, and why."""
    remarks: list[Remark] = []
    for code, name in enumerate(software.words):
        stack = stack_of_software(str(name))
        if stack and (of_stack := (software.codes == code) & ~illegal).any():
            with np.errstate(all="ignore"):
                broken = broken_rules(rules_of(kind, stack), plan, model)
            remarks += [Remark(each.rows & of_stack, each.sentence, each.values) for each in broken]
    return remarks


RELEASE = "software_release"
REPLICA = "replica"
"""Default of a micro batch: the whole batch of a replica."""
_FLAGS = {"yes": 1.0, "no": 0.0}
_LAYERS, _GENERATION = "layers", "generation"


class _Plans:
    """Plans whose blanks are being filled, of which some columns are still searched."""

    def __init__(self, plans: Table, catalog: Catalog, models: np.ndarray, searched: frozenset[str]) -> None:
        self.table = plans
        self._catalog, self._models, self._searched = catalog, models, searched

    def fill(self, default: Default, rows: np.ndarray) -> None:
        """Fill blanks of some rows with the settings of a default whose conditions hold."""
        settings = {name: value for name, value in default.settings.items() if name not in self._searched}
        if not settings or not self._searched.isdisjoint(default.conditions):
            return
        rows = self.holding(default, rows)
        for name, value in settings.items() if rows.any() else ():
            column = self.table.schema.by_name[name]
            values, blank = self._stated(column)
            filled = rows & blank
            if filled.any():
                given = self._replica_batch() if value == REPLICA else _value(column, value)
                self.table = self.table.with_columns({name: np.where(filled, given, values)})

    def holding(self, default: Default, rows: np.ndarray) -> np.ndarray:
        """Rows, of some, in which all conditions of a default hold."""
        for name, words in default.conditions.items():
            if rows.any():
                rows = rows & self._holds(name, words)
        return rows

    def _stated(self, column: Column) -> tuple[np.ndarray, np.ndarray]:
        """A column, and where it is blank."""
        if column.is_text:
            words = self.table.text(column.name)
            return words, np.asarray(words == "", dtype=bool)
        numbers = self.table.number(column.name)
        return numbers, np.isnan(numbers)

    def _holds(self, name: str, words: tuple[str, ...]) -> np.ndarray:
        """Rows in which a condition on a column, the kind of layers, or the machine's generation holds."""
        if name == _LAYERS:
            mixture = self._catalog.tables["models"].number("num_experts")[self._models] > 0.0
            return np.asarray(mixture == ("mixture" in words))
        if name == _GENERATION:
            rows = self._catalog.rows("accelerators", self.table.text("accelerator"), self.table, "accelerator")
            return _any_of(self._catalog.tables["accelerators"].text("generation")[rows], words)
        column = self.table.schema.by_name[name]
        if words in ((), (STATED,)):
            blank = self._stated(column)[1]
            return ~blank if words else blank
        return _any_of(self.table.filled(name), [_value(column, word) for word in words])

    def _replica_batch(self) -> Array:
        """Sequences of a replica and step; 1 if the batch is blank. [-]"""
        degrees = [self.table.filled(f"{name}_parallel") for name in ("tensor", "pipeline", "context")]
        stated, ranks = self.table.number("data_parallel"), degrees[0] * degrees[1] * degrees[2]
        replicas = np.where(np.isnan(stated), self.table.number("num_accelerators") / ranks, stated)
        batch = self.table.number("global_batch_size") / replicas
        return np.where(np.isnan(batch), 1.0, batch)


def _any_of(values: np.ndarray, words: Collection[float | str]) -> np.ndarray:
    return np.asarray(np.logical_or.reduce([np.asarray(values == word, dtype=bool) for word in words]))


def _value(column: Column, word: str) -> float | str:
    if column.is_text:
        return word
    return _FLAGS[word] if word in _FLAGS else float(word) * unit_of(column).factor


def _by_release(plans: Table) -> Iterator[tuple[np.ndarray, str, str]]:
    """Rows of each software and release of plans."""
    names = plans.filled("software")
    releases = plans.text(RELEASE) if RELEASE in plans else repeated("", len(names), object)
    if is_repeated(names) and is_repeated(releases):
        yield np.ones(len(names), dtype=bool), str(names[0]), str(releases[0])
        return
    codes: dict[tuple[str, str], int] = {}
    pairs = zip(names.tolist(), releases.tolist(), strict=True)
    of_row = np.array([codes.setdefault(pair, len(codes)) for pair in pairs])
    for (name, release), code in codes.items():
        yield of_row == code, name, release


def with_software_defaults(plans: Table, catalog: Catalog, models: np.ndarray, searched: Collection[str] = ()) -> Table:
    """Plans with blanks filled by ``software_defaults.csv``; other blanks have the schema's default.

    ``models``: rows of the plans in the sheet models; ``searched``: columns that a search leaves open. InputError for a
    release that cannot be compared.
    """
    result, faults = _Plans(plans, catalog, models, frozenset(searched)), []
    for rows, name, release in _by_release(plans):
        try:
            defaults = software_defaults(plans.kind, name, release)
        except ValueError:
            problem = f"software release must be a number such as 0.5.10 or 25.04, got {shown(release)}"
            faults += [Fault(plans.place(int(row), RELEASE), problem) for row in np.flatnonzero(rows)]
            continue
        for default in defaults:
            result.fill(default, rows)
    if faults:
        raise InputError(faults)
    return result.table


def memory_constants(plans: Table, catalog: Catalog, models: np.ndarray) -> dict[str, Array]:
    """Constants of the family serving_memory that hold at the releases of plans, NaN elsewhere, (rows, 1)."""
    filled, constants = _Plans(plans, catalog, models, frozenset()), declared_constants()["serving_memory"]
    result: dict[str, Array] = {}
    for rows, name, release in _by_release(plans):
        for default in software_defaults("memory", name, release):
            held = filled.holding(default, rows)
            for constant, value in default.settings.items():
                factor = UNITS[constants[constant].unit].factor
                column = result.setdefault(constant, np.full((len(plans), 1), np.nan))
                column[held & np.isnan(column[:, 0])] = float(value) * factor
    return result
