"""Sweeps over plans and catalog, and inverse questions: fewest accelerators, least bandwidth."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import csv_rows
from openpyxl import load_workbook

from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.explore.candidates import with_mapping
from xlperf.explore.changed_catalogs import changed_catalog
from xlperf.explore.objectives import limits_of
from xlperf.explore.search import search
from xlperf.explore.solve import PRECISION, solve_number, solve_plan
from xlperf.explore.sweep import Sweep, sweep
from xlperf.explore.vary import read_variation

H100 = "H100-SXM-80GB"
TRAIN: dict[str, Any] = {
    "name": "a", "model": "Meta-Llama-3.1-8B", "accelerator": H100, "num accelerators": 8, "global batch size": 96,
    "tensor parallel": 2,
}  # fmt: skip
SERVE: dict[str, Any] = {
    "name": "s", "model": "Meta-Llama-3.1-70B", "accelerator": "H200-SXM-141GB", "num accelerators": 8,
    "prompt length": 2000, "output length": 200, "tensor parallel": "auto", "concurrency": 16, "mode": "continuous",
}  # fmt: skip
Command = Callable[..., Any]


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def table(*rows: dict[str, Any]) -> Table:
    kind = "inference" if "prompt length" in rows[0] else "training"
    return table_from_rows(kind, list(rows[0]), [list(row.values()) for row in rows])


def plan_file(path: Path, row: dict[str, Any]) -> Path:
    """A plan table of one row as a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([row.keys(), row.values()])
    return path


def varied(kind: str, *lines: str) -> Any:
    pairs = [line.partition("=") for line in lines]
    return read_variation(kind, [(name, values.split(",")) for name, _, values in pairs], "--vary")


def targets(kind: str, *texts: str) -> Any:
    return limits_of(kind, texts, "--target")


# --- lines


def test_lines_name_columns_of_plans_and_of_sheets() -> None:
    result = varied(
        "training", "tensor parallel=1,2", "micro batch size=1..4", "recompute=auto",
        "accelerators.memory bandwidth (GB/s)=2000,4000", "networks.latency=x0.5,x2",
    )  # fmt: skip
    assert result.values["tensor_parallel"].tolist() == [1.0, 2.0]
    assert result.values["micro_batch_size"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert result.auto == ("recompute",)
    bandwidth, latency = result.varied
    assert (bandwidth.sheet, bandwidth.name, bandwidth.factors, bandwidth.ends) == (
        "accelerators", "memory_bandwidth", False, False,
    )  # fmt: skip
    assert bandwidth.values.tolist() == [2e12, 4e12]
    assert bandwidth.words(4e12) == "accelerators memory bandwidth 4 TB/s"
    assert latency.values.tolist() == [0.5, 2.0]
    assert latency.words(2.0) == "networks latency x2"
    assert (latency.column.name, latency.column.unit) == ("networks.latency", "-")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tensr parallel=1", '--vary: unknown column "tensr parallel"; did you mean tensor parallel'),
        ("tensor parallel=4..2", "--vary: tensor parallel: a range is of whole numbers, the smaller first, as 1..64"),
        ("tensor parallel=1..9000000", "--vary: tensor parallel: a range has 1,000,000 numbers at the most"),
        ("precision=bf16..fp8", "--vary: precision: a range is of whole numbers"),
        ("accelerators.memory=1", '--vary: unknown column "memory"; did you mean'),
        ("accelerators.memory bandwidth=-1", "--vary: memory bandwidth must be a number above 0 (TB/s)"),
        ("accelerators.memory bandwidth=x2,3", "--vary: accelerators.memory bandwidth: give factors (x2) or values"),
        ("accelerators.memory bandwidth=xx", "--vary: accelerators.memory bandwidth: a factor is a number above 0"),
        ("accelerators.memory bandwidth=4..2", "--vary: accelerators.memory bandwidth: a range has two ends above 0"),
        ("accelerators.vendor=a", "--vary: accelerators.vendor changes no result"),
        ("accelerator.memory bandwidth=1", '--vary: "accelerator" is none of the sheets accelerators, networks'),
    ],
)
def test_lines_that_are_none(line: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        varied("training", line)
    assert str(caught.value).startswith(words)


# --- sweeps


def test_a_sweep_evaluates_as_edited_sheets_do(catalog: Catalog) -> None:
    plans = table(TRAIN, {**TRAIN, "name": "b", "tensor parallel": 4})
    asked = varied("training", "global batch size=96,192", "accelerators.memory bandwidth=2,3.35")
    result = sweep(Sweep(plans, catalog, asked.values, asked.varied))
    assert len(result.plans) == len(result.results) == 8
    assert result.plans["name"].tolist() == ["a", "a", "b", "b"] * 2
    assert result.plans["global_batch_size"].tolist() == [96.0, 192.0] * 4
    ((column, values),) = result.varied
    assert column.header == "accelerators.memory bandwidth (TB/s)"
    assert values.tolist() == [2e12] * 4 + [3.35e12] * 4
    edited = catalog.tables["accelerators"]
    row = [name.casefold() for name in edited["accelerator"]].index(H100.casefold())
    numbers = edited["memory_bandwidth"].copy()
    numbers[row] = 2e12
    other = catalog.with_tables([Table("accelerators", {**edited.columns, "memory_bandwidth": numbers})])
    alone = evaluate(result.plans.take(slice(0, 4)), other)["step_time"]
    assert result.results["step_time"].tolist()[:4] == alone.tolist()
    assert (result.results["step_time"][:4] > result.results["step_time"][4:]).all()
    assert (
        result.results["step_time"].tolist()[4:]
        == evaluate(result.plans.take(slice(4, 8)), catalog)["step_time"].tolist()
    )


def test_factors_change_all_tiers_of_the_network_and_only_that(catalog: Catalog) -> None:
    asked = varied("training", "networks.link bandwidth=x0.5")
    plans = table(TRAIN)
    changed = changed_catalog(catalog, plans, [(asked.varied[0], 0.5)])
    before, after = (one.tables["networks"] for one in (catalog, changed))
    ratio = after["link_bandwidth"] / before["link_bandwidth"]
    own = catalog.networks[int(catalog.default_networks[catalog.known_rows("accelerators", np.array([H100]))[0]])]
    assert ((ratio == 0.5) == (before["network"] == own)).all()
    assert (ratio[before["network"] != own] == 1.0).all()
    prices = varied("training", "prices.rental price=x2").varied[0]
    dearer = evaluate(plans, changed_catalog(catalog, plans, [(prices, 2.0)]))["cost_per_million_tokens"][0]
    assert dearer == pytest.approx(2.0 * evaluate(plans, catalog)["cost_per_million_tokens"][0], rel=1e-12)


def test_auto_is_chosen_anew_at_each_point(catalog: Catalog) -> None:
    plans = table({**TRAIN, "model": "Meta-Llama-3.1-70B", "num accelerators": 64, "tensor parallel": "auto",
                   "global batch size": 64})  # fmt: skip
    asked = varied("training", "accelerators.memory capacity=x1,x3")
    result = sweep(Sweep(plans, catalog, asked.values, asked.varied))
    for row, factor in enumerate((1.0, 3.0)):
        own = changed_catalog(catalog, plans, [(asked.varied[0], factor)])
        best = search(plans, own)
        assert result.plans["tensor_parallel"][row] == best.plans["tensor_parallel"][0]
        assert result.results["step_time"][row] == best.results["step_time"][0]
    assert result.plans["tensor_parallel"][0] > result.plans["tensor_parallel"][1]


def test_both_accelerators_of_separate_pools_are_changed(catalog: Catalog) -> None:
    row = {**SERVE, "tensor parallel": 8, "num accelerators": 16, "mode": "disaggregated",
           "prefill accelerators": 8, "prefill accelerator": H100}  # fmt: skip
    result = sweep(Sweep(table(row), catalog, {}, varied("inference", "accelerators.memory bandwidth=x1,x2").varied))
    assert result.results["tpot"][1] < result.results["tpot"][0]
    assert result.results["prefill_time"][1] < result.results["prefill_time"][0]
    changed = changed_catalog(catalog, table(row), [(found_varied, 2.0) for found_varied in
                              varied("inference", "accelerators.memory bandwidth=x2").varied])  # fmt: skip
    names = catalog.tables["accelerators"].text("accelerator").tolist()
    ratio = changed.tables["accelerators"]["memory_bandwidth"] / catalog.tables["accelerators"]["memory_bandwidth"]
    assert {name for name, value in zip(names, ratio.tolist(), strict=True) if value == 2.0} == {
        "H100-SXM-80GB", "H200-SXM-141GB"
    }  # fmt: skip


def test_numbers_that_cannot_be_changed_are_refused(catalog: Catalog) -> None:
    bandwidth = varied("training", "accelerators.memory bandwidth=x2").varied[0]
    derived = catalog.tables["accelerators"]
    name = next(n for n, device in zip(derived["accelerator"], derived.text("device"), strict=True) if device)
    with pytest.raises(InputError, match="follows from a device: vary devices, technology, cores, memories or links"):
        changed_catalog(catalog, table({**TRAIN, "accelerator": name}), [(bandwidth, 2.0)])
    experts = varied("training", "models.num experts=x2").varied[0]
    with pytest.raises(InputError, match=r"models\.num experts is blank there: give values, not factors"):
        changed_catalog(catalog, table(TRAIN), [(experts, 2.0)])
    many = varied("training", "global batch size=1..1000000", "networks.latency=x1,x2")
    with pytest.raises(InputError, match="the sweep has 2,000,000 plans, more than 1,000,000 here"):
        sweep(Sweep(table(TRAIN), catalog, many.values, many.varied))


# --- inverse questions


@pytest.mark.parametrize("largest", [False, True])
def test_fewest_accelerators_are_those_of_brute_force(catalog: Catalog, largest: bool) -> None:
    plan = table({**TRAIN, "tensor parallel": "auto", "num accelerators": 1})
    counts = np.arange(1.0, 33.0)
    bounds = targets("training", "step time <= 2 s", "mfu >= 30 %")
    result = solve_plan(plan, catalog, "num_accelerators", counts, bounds, largest)
    good = []
    for count in counts:
        best = search(table({**TRAIN, "tensor parallel": "auto", "num accelerators": count}), catalog, limits=bounds)
        if best.found:
            good.append((count, best))
    assert 1 < len(good) < 32
    value, best = good[-1] if largest else good[0]
    assert result.value == value
    assert result.best.results["step_time"][0] == best.results["step_time"][0]
    assert result.best.plans["tensor_parallel"][0] == best.plans["tensor_parallel"][0]
    assert evaluate(result.best.plans, catalog)["step_time"][0] == result.best.results["step_time"][0]


def test_least_bandwidth_reaches_the_target_and_less_does_not(catalog: Catalog) -> None:
    plan = table(SERVE)
    (bandwidth,) = varied("inference", "accelerators.memory bandwidth=1..32").varied
    bounds = targets("inference", "tpot <= 15")
    result = solve_number(plan, catalog, bandwidth, bounds)
    assert result.found
    assert result.best.results["tpot"][0] <= 0.015
    less = changed_catalog(catalog, plan, [(bandwidth, result.value * (1.0 - 2.0 * PRECISION))])
    assert not search(plan, less, limits=bounds).found
    assert result.value > 4.8e12, "more than an H200 has"
    easy = solve_number(plan, catalog, bandwidth, targets("inference", "tpot <= 1 s"))
    assert easy.value == 1e12
    none = solve_number(plan, catalog, bandwidth, targets("inference", "tpot <= 1"))
    assert not none.found
    assert np.isnan(none.value)
    assert none.best.words.startswith("none keeps tpot <= 1 ms: ")
    (stated,) = varied("inference", "accelerators.memory bandwidth=2,8,16,32").varied
    assert solve_number(plan, catalog, stated, bounds).value == min(v for v in stated.values if v >= result.value)


def test_largest_prompt_within_the_target(catalog: Catalog) -> None:
    values = np.array([500.0, 2000.0, 8000.0, 32000.0])
    result = solve_plan(table(SERVE), catalog, "prompt_length", values, targets("inference", "ttft<=1.5 s"), True)
    times = [search(table({**SERVE, "prompt length": value}), catalog, "ttft").results["ttft"][0] for value in values]
    assert result.value == max(value for value, time in zip(values, times, strict=True) if time <= 1.5)
    assert result.value < values[-1]


# --- commands


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "train.csv", tmp_path / "serve.csv"
    for path, row in zip(paths, (TRAIN, SERVE), strict=True):
        with path.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([row.keys(), row.values()])
    return paths


def test_sweep_writes_every_point(files: tuple[Path, Path], tmp_path: Path, command: Command) -> None:
    lines = ("--vary", "tensor parallel=1,2,4", "--vary", "accelerators.memory bandwidth=2,4")
    done = command("evaluate", files[0], *lines, "-o", "-")
    rows = csv_rows(done.out)
    assert (done.code, len(rows)) == (0, 6)
    assert [row["accelerators.memory_bandwidth"] for row in rows] == ["2"] * 3 + ["4"] * 3
    book = tmp_path / "grid.xlsx"
    assert command("evaluate", files[0], *lines, "-o", book).code == 0
    cells = list(load_workbook(book)["sweep"].iter_rows(values_only=True))
    at, time = (cells[0].index(header) for header in ("accelerators.memory bandwidth (TB/s)", "step time (s)"))
    assert [row[at] for row in cells[1:]] == [2, 2, 2, 4, 4, 4]
    assert [row[time] for row in cells[1:]] == [float(row["step_time"]) for row in rows]
    shown = command("evaluate", files[0], *lines).out.splitlines()
    assert shown[0].split("  ")[0] == "name"
    assert "accelerators.memory bandwidth" in shown[0]
    assert len(shown) == 9


def test_solve_says_the_answer(files: tuple[Path, Path], command: Command) -> None:
    done = command("search", files[1], "--vary", "num accelerators=1..16", "--target", "tpot<=20", "-o", "-")
    rows = csv_rows(done.out)
    assert done.code == 0
    assert done.err.startswith(
        f"s: num accelerators {rows[0]['num_accelerators']} is the least with tpot <= 20 ms; tensor"
    )
    assert float(rows[0]["tpot"]) <= 20
    auto = command("search", files[0], "--vary", "num accelerators=auto", "--with-auto", "tensor parallel",
                   "--target", "step time<=1")  # fmt: skip
    assert auto.code == 0
    assert " is the least with step time <= 1 s; tensor parallel " in auto.err
    number = command("search", files[1], "--vary", "accelerators.memory bandwidth=x1..x4", "--target", "tpot<=15")
    assert "s: accelerators memory bandwidth x" in number.err
    assert "accelerators.memory bandwidth" in number.out
    none = command("search", files[1], "--vary", "num accelerators=1..16", "--target", "tpot<=1")
    assert (none.code, none.out) == (1, "")
    assert "s: none keeps tpot <= 1 ms: " in none.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("evaluate", "--vary", "accelerators.memory bandwidth=1..2"), "give values, not two ends"),
        (("evaluate", "--vary", "tensor parallel"), '--vary takes COLUMN=VALUES, got "tensor parallel"'),
        (("search", "--least", "--vary", "num accelerators=1..4"), "give --target, as --target 'tpot<=20'"),
        (("search", "--vary", "precision=bf16,fp8", "--target", "mfu>=1"), "precision is no number: there is no least"),
        (
            ("search", "--vary", "num accelerators=1..4", "--target", "tpot<=1"),
            '"tpot" is no result in numbers of train',
        ),
        (
            ("search", "--vary", "num accelerators=1..4", "--vary", "tensor parallel=2", "--target", "mfu>=1"),
            "--target takes one --vary; give columns to choose with it as --with-auto",
        ),
        (("search", "--vary", "networks.latency=x1..x2"), "networks.latency: a search needs values, not a range"),
        (
            ("search", "--vary", "num accelerators=1..4", "--target", "mfu>=1", "--with-auto", "name"),
            '"name" cannot be',
        ),
    ],
)
def test_questions_that_are_refused(
    files: tuple[Path, Path], command: Command, words: tuple[str, ...], message: str
) -> None:
    done = command(words[0], files[0], *words[1:])
    assert done.code == 2
    assert message in done.err


@pytest.mark.slow
def test_processes_share_a_large_question_and_the_answer_is_the_same(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = with_mapping(table({**TRAIN, "tensor parallel": ""}))
    counts, limits = np.array([8.0, 16.0, 32.0]), targets("training", "step time <= 4")
    whole = solve_plan(plan, catalog, "num_accelerators", counts, limits)
    for name in ("candidates.PART", "search.MOST_CANDIDATES"):
        monkeypatch.setattr(f"xlperf.explore.{name}", whole.best.num_tried // 6)
    for processes in (1, 2):
        result = solve_plan(plan, catalog, "num_accelerators", counts, limits, processes=processes)
        assert result.value == whole.value
        assert result.best.chosen_words == whole.best.chosen_words
        assert result.best.results["step_time"].tolist() == whole.best.results["step_time"].tolist()
