"""Outcomes of the shipped studies, computed once, and cells of their sheets."""

from __future__ import annotations

from xlperf.studies import study
from xlperf.studies.outcome import Outcome, StudySheet, read_inputs

_OUTCOMES: dict[str, Outcome] = {}


def outcome(name: str) -> Outcome:
    if name not in _OUTCOMES:
        _OUTCOMES[name] = study(name).analyse(read_inputs(study(name)))
    return _OUTCOMES[name]


def sheet(name: str, wanted: str) -> StudySheet:
    return next(made for made in outcome(name).sheets if made.name == wanted)


def cell(result: StudySheet, key: object, column: str) -> float:
    names = [entry.name for entry in result.columns]
    row = next(row for row in result.rows if row[0] == key)
    value = row[names.index(column)]
    assert isinstance(value, float | int), (key, column, value)
    return float(value)
