"""Rules of the stacks that plans name, applied to records of plans: which plans a stack does not start."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.schema import column
from xlperf.catalog.table import Words
from xlperf.engine.join import choice_codes
from xlperf.equations.model.model import Model
from xlperf.equations.plan.records import PlanColumns, Remark, Rule, broken_rules
from xlperf.interop.stack_rules import NUMBERS, TITLES, Condition, Quantity, StackRule, quantity, stack_of_software
from xlperf.interop.stack_rules import stack_rules as rules_of_stack

Mask = np.ndarray
_Plan = Any
_SIGNS: dict[str, Callable[[Array, Array], Mask]] = {
    "=": np.equal, "!=": np.not_equal, ">": np.greater, "<": np.less,
    "multiple_of": lambda one, other: ~_fraction(one / other),
    "multiple_or_divisor": lambda one, other: ~(_fraction(one / other) & _fraction(other / one)),
    "at_most": np.less_equal, "at_least": np.greater_equal,
    "in_equal_pieces": lambda one, other: np.ceil(one / np.ceil(one / other)) == other,
}  # fmt: skip


def _fraction(values: Array) -> Mask:
    return np.asarray(values != np.floor(values))


def _value(name: str, plan: _Plan, model: Model) -> Array:
    if name.replace(".", "", 1).isdigit():
        return np.asarray(float(name))
    own = name.removeprefix("model.")
    return np.asarray(getattr(plan if own == name else model, own), dtype=np.float64)


def _evaluated(subject: Quantity, plan: _Plan, model: Model) -> Array:
    """A quantity of plans, from left to right, (rows,)."""
    found = np.asarray(0.0)
    for sign, name in subject.terms:
        value = _value(name, plan, model)
        found = found + value if sign == "+" else found - value if sign == "-" else (
            found * value if sign == "*" else found / value)  # fmt: skip
    return np.asarray(found)


def _codes(kind: str, name: str, words: str) -> list[float]:
    codes = choice_codes(kind, name)
    return [codes[word] for word in words.split()]


def _meets(kind: str, condition: Condition, plan: _Plan, model: Model) -> Mask:
    name = condition.subject.terms[0][1]
    chosen = condition.sign in ("=", "!=") and not name.startswith("model.") and column(kind, name).kind == "choice"
    if chosen:
        other = np.asarray(_codes(kind, name, condition.other)[0])
    else:
        other = _evaluated(quantity(condition.other), plan, model)
    return np.asarray(_SIGNS[condition.sign](_evaluated(condition.subject, plan, model), other))


def _has_words(name: str, words: str, plan: _Plan) -> Mask:
    """Where a column of text has any of some words; columns of one word are words themselves."""
    wanted = frozenset(words.split())
    stated = plan.words(name)
    known = {text: bool(wanted & frozenset(str(text).split())) for text in set(stated.tolist())}
    return np.asarray([known[text] for text in stated.tolist()], dtype=bool)


def _breaks(kind: str, rule: StackRule, plan: _Plan, model: Model, whole: bool) -> Mask:
    """Where plans break a rule, (rows,).

    ``whole``: whether every column of the rule is read, also if its conditions already exclude all plans.
    """
    concerned = np.ones(len(plan), dtype=bool)
    for condition in rule.when:
        concerned = concerned & _meets(kind, condition, plan, model)
        if not (whole or concerned.any()):
            return np.asarray(concerned)
    name = rule.subject.terms[0][1]
    if rule.rule == "blank":
        return np.asarray(concerned & np.isfinite(_evaluated(rule.subject, plan, model)))
    if rule.rule in NUMBERS:
        one, other = _evaluated(rule.subject, plan, model), _evaluated(quantity(rule.operand), plan, model)
        known = np.isfinite(one) & np.isfinite(other)
        return np.asarray(concerned & known & ~_SIGNS[rule.rule](one, other))
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
    """Rules of a stack as rules of plans: where a plan breaks each, and the sentence.

    ``kind``: of plans. ``stack``: of :data:`xlperf.interop.stack_rules.TITLES`; another has none. ``whole``: whether
    they read every column that they name, as spaces of plans with open columns need it.
    """

    def of(rule: StackRule) -> Rule[Any]:
        sentence = f"{TITLES[stack]} refuses this: {rule.says}"

        def broken(plan: Any, model: Model) -> Mask:
            with np.errstate(all="ignore"):
                return _breaks(kind, rule, plan, model, whole)

        return Rule(broken, sentence)

    return tuple(map(of, rules_of_stack(kind, stack)))


def refusals(kind: str, plan: PlanColumns, model: Model, software: Words, illegal: np.ndarray) -> list[Remark]:
    """Which legal plans the stack that they name, or have by default, does not start, and why.

    ``plan``, ``model``: records of plans and their models. ``software``: of each plan. ``illegal``: plans of which
    nothing more is said.
    """
    found: list[Remark] = []
    for code, name in enumerate(software.words):
        stack = stack_of_software(str(name))
        if stack and (own := (software.codes == code) & ~illegal).any():
            broken = broken_rules(rules_of(kind, stack), plan, model)
            found += [Remark(each.rows & own, each.sentence, each.values) for each in broken]
    return found
