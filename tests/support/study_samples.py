"""Outcomes of the shipped studies, computed once, and cells of their sheets."""

from __future__ import annotations

from xlperf.studies import study
from xlperf.studies.inputs import read_inputs
from xlperf.studies.outcome import Outcome, StudySheet

_OUTCOMES: dict[str, Outcome] = {}


def outcome(name: str) -> Outcome:
    if name not in _OUTCOMES:
        _OUTCOMES[name] = study(name).analyse(read_inputs(study(name)))
    return _OUTCOMES[name]


def sheet(name: str, wanted: str) -> StudySheet:
    return next(found for found in outcome(name).sheets if found.name == wanted)


def cell(found: StudySheet, key: object, column: str) -> float:
    names = [entry.name for entry in found.columns]
    row = next(row for row in found.rows if row[0] == key)
    value = row[names.index(column)]
    assert isinstance(value, float | int), (key, column, value)
    return float(value)
