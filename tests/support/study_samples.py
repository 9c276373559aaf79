"""Outcomes of the shipped studies, computed once, and cells of their sheets."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from xlperf.studies import study
from xlperf.studies.outcome import Outcome, StudySheet, read_inputs

FEWER: dict[str, dict[str, tuple[float | str, ...]]] = {
    "buy-or-wait": {"request_rates": (100.0,)},
    "quotes": {"claimed_value": (24525.0, 200000.0)},
    "day-of-a-service": {"start_time": (10.0, 240.0)},
    "rl-modes": {"output_lengths": (1000.0, 16000.0)},
    "host-memory": {"models": ("Meta-Llama-3.1-70B",), "think_times": (10.0, 600.0)},
}
"""Settings of studies that are slow, with some of their cases, each of which is an answer by itself."""


@cache
def outcome(name: str) -> Outcome:
    """What a study finds on its shipped inputs, or on some of their cases."""
    inputs = read_inputs(study(name))
    return study(name).analyse(replace(inputs, settings={**inputs.settings, **FEWER.get(name, {})}))


def sheet(name: str, wanted: str) -> StudySheet:
    return next(made for made in outcome(name).sheets if made.name == wanted)


def cell(result: StudySheet, key: object, column: str) -> float:
    names = [entry.name for entry in result.columns]
    row = next(row for row in result.rows if row[0] == key)
    value = row[names.index(column)]
    assert isinstance(value, float | int), (key, column, value)
    return float(value)
