"""Documented settings of published runs: which line of the table fits a row, and lines that are refused."""

from __future__ import annotations

import pytest

from xlperf.base import resources
from xlperf.base.errors import InputError
from xlperf.catalog.schema import table_schema
from xlperf.measurements import rules as published_rules
from xlperf.measurements.published import KINDS, published_columns
from xlperf.measurements.rules import FILE, default_of, read_rules

ANY = dict.fromkeys(("software", "source_id", "source", "model", "gpu", "notes"), "*")
LINE = {"table": "inference", **ANY, "row": "", "settings": "graph_tokens=1", "reference": "a script"}
WORDS = {"fsdp", "half", "per_replica", "tensor", "auto", "yes", "no"}
"""Values that are worked out from the row."""


def found(monkeypatch: pytest.MonkeyPatch, lines: list[dict[str, str]], setting: str, **row: str) -> str:
    rules = read_rules([LINE | line for line in lines])
    monkeypatch.setattr(published_rules, "_rules", lambda: rules)
    text = dict.fromkeys((*published_columns()["inference"], "software"), "")
    return default_of("inference", text | row, setting)[0]


def test_the_first_line_that_fits_and_has_the_setting_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        {"model": "a*|b?", "gpu": "x*", "settings": "graph_tokens=5; memory_fraction=0.8"},
        {"model": "A1", "settings": "graph_tokens=; polling_steps=3"},
        {"settings": "graph_tokens=7; polling_steps=4"},
    ]
    assert found(monkeypatch, lines, "graph_tokens", model="a1", gpu="X9") == "5"
    assert found(monkeypatch, lines, "polling_steps", model="a1", gpu="X9") == "3"
    assert found(monkeypatch, lines, "graph_tokens", model="a1", gpu="y") == ""  # left open, whatever comes below
    assert found(monkeypatch, lines, "graph_tokens", model="B2", gpu="x") == "5"
    assert found(monkeypatch, lines, "graph_tokens", model="b22", gpu="x") == "7"
    assert found(monkeypatch, lines, "memory_fraction", model="c", gpu="x") == ""


@pytest.mark.parametrize(
    ("row", "fits"),
    [
        ({"isl": "1024", "concurrency": "64"}, True),
        ({"isl": "1024", "concurrency": "65"}, False),
        ({"isl": "1024", "concurrency": ""}, False),
        ({"isl": "8192", "concurrency": "32"}, False),
        ({"isl": "8192", "concurrency": "1000"}, True),
        ({"isl": "2048", "tp": "8", "precision": "FP8"}, True),
        ({"isl": "2048", "tp": "8", "precision": "fp4"}, False),
        ({"isl": "2048", "tp": "4", "precision": "fp8"}, False),
    ],
)
def test_conditions_on_the_columns_of_a_row(monkeypatch: pytest.MonkeyPatch, row: dict[str, str], fits: bool) -> None:
    line = {"row": "isl=1024; concurrency=16..64 | isl=8192; concurrency=33.. | precision=fp8; tp=8"}
    assert found(monkeypatch, [line], "graph_tokens", **row) == ("1" if fits else "")


def test_a_number_in_a_pattern_is_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    line = {"notes": "*limit {n} requests*", "settings": "max_running_batch={n}"}
    assert found(monkeypatch, [line], "max_running_batch", notes="a run, limit 48 requests") == "48"
    assert found(monkeypatch, [line], "max_running_batch", notes="a run, limit of 48 requests") == ""


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"table": "serving"}, 'table is "serving"'),
        ({"reference": ""}, "reference is blank"),
        ({"gpu": ""}, "gpu is blank"),
        ({"settings": "graph_tokens"}, '"graph_tokens" is no list of name=value'),
        ({"settings": "graph_tokens=1;"}, "is no list of name=value"),
        ({"settings": "graph_tokens=1; graph_tokens=2"}, "gives a setting twice"),
        ({"settings": "graph_token=1"}, 'setting "graph_token" is no column of a plan'),
        ({"row": "isl"}, '"isl" is no list of name=value'),
        ({"row": "prompt=1024"}, 'row names "prompt", which is no column of inference rows'),
        ({"row": "isl=long"}, 'row wants isl to be "long"; enter a number or a range'),
        ({"row": "isl=.."}, 'row wants isl to be ".."'),
        ({"column": "isl"}, "has the columns table, software"),
    ],
)
def test_a_malformed_line_is_refused_with_its_place(line: dict[str, str], problem: str) -> None:
    with pytest.raises(InputError) as refused:
        read_rules([LINE, LINE | line])
    assert f"{FILE} [line 3]: " in str(refused.value) and problem in str(refused.value)


def test_every_setting_is_one_that_plans_know() -> None:
    """A choice of the schema, a number, or a word that is worked out from the row."""
    assert len(resources.rows(f"measurements/{FILE}")) < 280
    seen = set()
    for kind in KINDS:
        columns = {column.name: column for column in table_schema(kind).columns}
        for setting, rules in read_rules(resources.rows(f"measurements/{FILE}"))[kind].items():
            for rule in rules:
                value, column = rule.settings[setting], columns.get(setting.partition(" of ")[0])
                if column is not None and column.choices and value not in WORDS:
                    assert value in column.choices, (setting, value)
                    seen.add(setting)
                modules = rule.settings.get("recompute_modules")
                assert not modules or rule.settings.get("recompute") != "none", rule
    assert {"graphs", "recompute", "token_dispatch"} <= seen
