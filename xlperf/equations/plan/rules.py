"""Rules of legality as data, and sentences about plans."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from xlperf.base.arrays import some
from xlperf.equations.model.model import Model
from xlperf.equations.plan.columns import PlanColumns

P = TypeVar("P", bound=PlanColumns)
_PLACE = re.compile(r"\{([\w.]+)\}")


@dataclass(frozen=True)
class Rule(Generic[P]):
    """A rule of legality as data: where a plan breaks it, and the reason.

    ``reason`` names columns in braces, ``{tensor_parallel}`` of the plan, ``{model.num_layers}`` of its model, and
    ``{words.recompute_modules}`` what the sheet says. ``column`` is an optional column that the rule is about: a
    sheet without it cannot break the rule.
    """

    broken: Callable[[P, Model], np.ndarray]
    reason: str
    column: str = ""

    def values(self, plan: P, model: Model) -> tuple[np.ndarray, ...]:
        """The columns that the reason names, (rows,) each."""
        return tuple(_named(name, plan, model) for name in _PLACE.findall(self.reason))


class Remark(NamedTuple):
    """A sentence about some plans: which, and what it says of them; ``{}`` takes the row's values."""

    rows: np.ndarray
    sentence: str
    values: tuple[np.ndarray, ...] = ()

    def take(self, rows: slice) -> Remark:
        """The sentence about some of the plans."""
        return Remark(self.rows[rows], self.sentence, tuple(values[rows] for values in self.values))


def _named(name: str, plan: PlanColumns, model: Model) -> np.ndarray:
    kind, _, column = name.rpartition(".")
    if kind == "words":
        return plan.words(column)
    return np.asarray(getattr(model if kind == "model" else plan, column))


def broken_rules(rules: Sequence[Rule[P]], plan: P, model: Model) -> list[Remark]:
    """The rules that some of the plans break.

    Parameters
    ----------
    rules : sequence of Rule
        In the order in which they are said.
    plan : PlanColumns
        Plans, (rows,).
    model : Model
        Their models, (rows,).

    Returns
    -------
    list of Remark
        Which plans break each of them, and the reason.
    """
    found = []
    for rule in rules:
        if rule.column and not plan.has(rule.column):
            continue
        rows = rule.broken(plan, model)
        if rows.item() if rows.size == 1 else some(rows):
            found.append(Remark(rows, _PLACE.sub("{}", rule.reason), rule.values(plan, model)))
    return found


def remarks_of_rows(remarks: Sequence[Remark], num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Join the sentences about each row.

    Parameters
    ----------
    remarks : sequence of Remark
        In the order in which they are said.
    num_rows : int
        Rows of the table.

    Returns
    -------
    tuple of np.ndarray
        Whether there is any (bool), and the sentences joined by "; " (object array of str).
    """
    remarked = np.zeros(num_rows, dtype=bool)
    sentences = np.full(num_rows, "", dtype=object)
    for remark in remarks:
        if not (remark.rows.item() if num_rows == 1 else some(remark.rows)):
            continue
        rows = np.flatnonzero(remark.rows)
        remarked[rows] = True
        before = sentences[rows].tolist()
        sentences[rows] = [
            f"{one}; {more}" if one else more for one, more in zip(before, _said(remark, rows), strict=True)
        ]
    return remarked, sentences


def _said(remark: Remark, rows: np.ndarray) -> list[str]:
    """The sentence for some rows; equal values are put into words once."""
    if not remark.values:
        return [remark.sentence.format()] * len(rows)
    columns = [_in_words(column[rows].tolist()) for column in remark.values]
    parts = remark.sentence.split("{}")
    if len(parts) == 2 and len(columns) == 1:
        return [f"{parts[0]}{word}{parts[1]}" for word in columns[0]]
    if len(parts) == 3 and len(columns) == 2:
        first, middle, last = parts
        return [f"{first}{one}{middle}{other}{last}" for one, other in zip(*columns, strict=True)]
    return [remark.sentence.format(*words) for words in zip(*columns, strict=True)]


def _in_words(values: list[object]) -> list[str]:
    """Values of a column as a sentence says them; equal ones are put into words once."""
    known = {value: _plain(value) for value in set(values)}
    return [known[value] for value in values]


def _plain(value: object) -> str:
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else f"{value:g}"
    return str(value)
