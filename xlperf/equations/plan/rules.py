"""Rules that make a plan legal, and the words for those that are broken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import some


class Rule(NamedTuple):
    """A rule of legality: where it is broken, and the sentence that says so; ``{}`` takes the row's values."""

    broken: np.ndarray
    sentence: str
    values: tuple[np.ndarray, ...] = ()


def broken_rules(rules: Sequence[Rule], num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Join the sentences of the broken rules of each row.

    Parameters
    ----------
    rules : sequence of Rule
        In the order in which they are said.
    num_rows : int
        Rows of the table.

    Returns
    -------
    tuple of np.ndarray
        Whether any rule is broken (bool), and the sentences joined by "; " (object array of str).
    """
    illegal = np.zeros(num_rows, dtype=bool)
    sentences = np.full(num_rows, "", dtype=object)
    for rule in rules:
        if not (rule.broken.item() if num_rows == 1 else some(rule.broken)):
            continue
        rows = np.flatnonzero(rule.broken)
        illegal[rows] = True
        before = sentences[rows].tolist()
        sentences[rows] = [
            f"{one}; {more}" if one else more for one, more in zip(before, _said(rule, rows), strict=True)
        ]
    return illegal, sentences


def _said(rule: Rule, rows: np.ndarray) -> list[str]:
    """The sentence of a rule for some rows; equal values are put into words once."""
    if not rule.values:
        return [rule.sentence.format()] * len(rows)
    columns = [_in_words(column[rows].tolist()) for column in rule.values]
    parts = rule.sentence.split("{}")
    if len(parts) == 2 and len(columns) == 1:
        return [f"{parts[0]}{word}{parts[1]}" for word in columns[0]]
    if len(parts) == 3 and len(columns) == 2:
        first, middle, last = parts
        return [f"{first}{one}{middle}{other}{last}" for one, other in zip(*columns, strict=True)]
    return [rule.sentence.format(*words) for words in zip(*columns, strict=True)]


def _in_words(values: list[object]) -> list[str]:
    """Values of a column as a sentence says them; equal ones are put into words once."""
    known = {value: _plain(value) for value in set(values)}
    return [known[value] for value in values]


def _plain(value: object) -> str:
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else f"{value:g}"
    return str(value)
