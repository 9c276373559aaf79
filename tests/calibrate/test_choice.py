"""Choices among measured alternatives: regret, rank correlation, limits broken."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from shipped import shipped_published

from xlperf.calibrate.choice import Alternative, alternatives_of, choice_table, choices, kendall_tau
from xlperf.catalog.catalog import Catalog
from xlperf.cli import run
from xlperf.explore.objectives import most_robust, num_alike

_FIELDS = {
    "source_id": "lab", "group": "dense", "software": "megatron", "model": "7b", "gpu": "h100", "n_gpus": "8",
    "gbs": "64", "seq_len": "4096", "precision": "bf16",
}  # fmt: skip
_LOAD = {
    "source_id": "lab", "model": "7b", "gpu": "h100", "n_gpus": "8", "concurrency": "", "isl": "1000", "osl": "100",
    "precision": "bf16", "mode": "serving",
}  # fmt: skip


def _run(row_id: str, measured: float, predicted: float, load: float = math.nan, engine: str = "vllm") -> Alternative:
    fields = _FIELDS if math.isnan(load) else {**_LOAD, "concurrency": f"{load:g}"}
    return Alternative(row_id, measured, predicted, 1.2 * predicted, 8.0, load, engine, fields)


def test_regret_is_what_the_chosen_run_took_longer() -> None:
    runs = [_run("a", 10.0, 9.0), _run("b", 11.0, 8.5), _run("c", 20.0, 21.0)]
    (result,) = choices({"training": runs, "inference": []})
    assert (result.chosen, result.best) == ("b", "a")
    assert result.regret == pytest.approx(0.1)
    assert result.tau == pytest.approx(1.0 / 3.0)


def test_no_plan_is_chosen_that_does_not_fit_where_one_does() -> None:
    runs = [_run("a", 10.0, 9.0), replace(_run("b", 11.0, 8.5), fits=False), _run("c", 20.0, 21.0)]
    assert choices({"training": runs, "inference": []})[0].chosen == "a"
    assert choices({"training": [replace(one, fits=False) for one in runs], "inference": []})[0].chosen == "b"


def test_two_runs_are_no_group() -> None:
    assert choices({"training": [_run("a", 1.0, 2.0), _run("b", 2.0, 1.0)], "inference": []}) == []


def test_a_limit_is_broken_where_the_chosen_run_was_measured_above_it() -> None:
    # loads 1, 2, 4 at 10, 20 and 40 ms; the model believes that 4 fit below the median limit of 20 ms
    runs = [_run("one", 10.0, 10.0, 1.0), _run("two", 20.0, 15.0, 2.0), _run("four", 40.0, 19.0, 4.0)]
    result = [one for one in choices({"training": [], "inference": runs}) if one.limit == pytest.approx(20.0)]
    by_kind = {one.kind.split(", ")[1]: one for one in result}
    assert by_kind["estimate"].chosen == "four" and by_kind["estimate"].broken
    assert by_kind["band"].chosen == "two" and not by_kind["band"].broken


def test_engines_compete_with_the_mapping_that_each_is_predicted_to_be_best_with() -> None:
    runs = [
        _run("v1", 12.0, 10.0, 8.0, "vllm"),
        _run("v2", 11.0, 14.0, 8.0, "vllm"),
        _run("s1", 13.0, 11.0, 8.0, "sglang"),
    ]
    (engine,) = [one for one in choices({"training": [], "inference": runs}) if one.kind == "engine: serving"]
    assert (engine.chosen, engine.best, engine.alternatives) == ("v1", "v1", 2)


def test_tau_of_ties_and_of_one() -> None:
    assert kendall_tau([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == -1.0
    assert math.isnan(kendall_tau([1.0, 1.0], [1.0, 2.0]))


@pytest.fixture(scope="module")
def alternatives(catalog: Catalog) -> dict[str, list[Alternative]]:
    """Those of the shipped rows, which take long to predict."""
    return alternatives_of(shipped_published(), catalog)


def test_shipped_rows_are_chosen_well(alternatives: dict[str, list[Alternative]]) -> None:
    result = choices(alternatives)
    header, lines = choice_table(result)
    assert all(len(line) == len(header) for line in lines)
    small = [one for one in result if one.kind == "mapping: nanotron" and one.size == "up to 16"]
    assert sum(one.regret <= 0.05 for one in small) >= 0.75 * len(small)


def test_the_command_shows_the_table_alone(
    alternatives: dict[str, list[Alternative]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("xlperf.calibrate.choice.alternatives_of", lambda *_: alternatives)
    monkeypatch.setattr("xlperf.cli.published._published", lambda _: shipped_published())
    assert run(["validate", "--choice"]) == 0
    assert "mapping: nanotron" in capsys.readouterr().out
    assert run(["validate", "--choice", "--leave-out", "vllm"]) == 2
    assert run(["validate", "--choice", "-o", "choices.csv"]) == 2


def test_plans_that_cannot_be_told_apart_are_said_and_the_narrowest_band_wins() -> None:
    """Within 5 % of the first; the least upper end among them, not the least mean."""
    values = np.array([1.0, 1.02, 1.04, 1.2, 1.0])
    assert num_alike(values) == 3
    assert num_alike(values[:2]) == 2 and num_alike(values[[0, 3]]) == 1
    assert most_robust(values, np.array([2.0, 1.5, 1.3, 1.21, 2.0])) == 2
    assert most_robust(values[[3, 0]], np.array([1.21, 2.0])) == 1, "not one that is far behind"
