"""Rules that make a plan legal, and the words for those that are broken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


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
        if not (rule.broken.item() if num_rows == 1 else rule.broken.any()):
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
    known: dict[tuple[object, ...], str] = {}
    words = []
    for values in zip(*(column[rows].tolist() for column in rule.values), strict=True):
        found = known.get(values)
        if found is None:
            found = known[values] = rule.sentence.format(*map(_plain, values))
        words.append(found)
    return words


def _plain(value: object) -> str:
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else f"{value:g}"
    return str(value)
