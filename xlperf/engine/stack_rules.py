"""Stack rules applied to plan records: which plans a training stack or engine does not start."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

import numpy as np

from xlperf.base.arrays import Array, array, is_repeated, mapped, some
from xlperf.catalog.schema import column
from xlperf.catalog.table import Words
from xlperf.engine.join import choice_codes
from xlperf.equations.model.model import Model
from xlperf.equations.plan.records import PlanColumns, Remark, Rule, broken_rules
from xlperf.interop.software import NUMBERS, STACKS, Condition, Quantity, StackRule, quantity, stack_of_software
from xlperf.interop.software import stack_rules as rules_of_stack

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
    """Rules of a stack (:data:`xlperf.interop.software.STACKS`) as rules of plans: a mask and a sentence each.

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
