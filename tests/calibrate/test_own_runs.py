"""Runs of one's own: predictions near them move, bands narrow, others stay; the rest of a configuration improves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import Outcome, csv_rows
from shipped import shipped_measured

from xlperf.addin.worker import Session
from xlperf.base.errors import InputError
from xlperf.calibrate.bands import bands_left_out
from xlperf.calibrate.cross_validation import cross_validated
from xlperf.calibrate.own_runs import effects, gains, own_runs
from xlperf.calibrate.published_errors import plans_to_fit
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.read import read_plans
from xlperf.catalog.table import Table
from xlperf.engine import evaluate, explain
from xlperf.engine.own_runs import REACH, SHARED, plan_distances, shrunk_residual
from xlperf.workbook import build
from xlperf.workbook.build import workbook_package

Command = Callable[..., Outcome]
HEADER = "name,model,accelerator,num accelerators,tensor parallel,global batch size,measured step time (s)\n"
SERVING = """name,model,accelerator,num accelerators,tensor parallel,prompt length,output length,concurrency,mode,\
software,measured tpot (ms),measured ttft (ms)
a,Llama3-70B,H100-SXM-80GB,8,4,1024,256,32,{mode},vllm,{tpot},{ttft}
"""


def training(tmp_path: Path, *rows: str) -> list[Table]:
    path = tmp_path / "runs.csv"
    path.write_text(HEADER + "".join(f"{row}\n" for row in rows))
    return read_plans(path)


def own(tables: list[Table]) -> Catalog:
    return load_catalog().with_tables([own_runs(tables, load_catalog())])


def test_predictions_move_towards_a_run_and_bands_narrow(tmp_path: Path) -> None:
    plans = training(tmp_path, "a,Llama3-70B,H100-SXM-80GB,64,8,128,9.2", "b,Llama3-70B,H100-SXM-80GB,128,8,256,")
    known, other = load_catalog(), training(tmp_path, "c,GPT3-175B,H100-SXM-80GB,64,8,128,")[0]
    before, after = (evaluate(plans[0], each) for each in (known, own(plans)))
    ratio = after["step_time"] / before["step_time"]
    measured = 9.2 / before["step_time"][0]
    assert 1.0 < ratio[1] < ratio[0] < measured  # the farther plan moves less
    widths = [np.log(each["step_time_high"] / each["step_time_low"]) for each in (before, after)]
    assert (widths[1] < widths[0]).all() and widths[1][0] < widths[1][1]
    parts = [name for name in after.columns if name.startswith("time_")]
    assert sum(after[name][0] for name in parts) == pytest.approx(after["step_time"][0])
    assert after["tokens_per_second"][0] * after["step_time"][0] == pytest.approx(
        before["tokens_per_second"][0] * before["step_time"][0]
    )
    assert "by 1 measured in my_cluster" in after["reason"][0]
    operators = explain(plans[0], own(plans))
    assert operators.number("exposed_time").sum() == pytest.approx(after["step_time"][0], rel=1e-9)
    before, after = evaluate(other, known), evaluate(other, own(plans))
    for name, values in before.columns.items():  # another model stays as it is, bit for bit
        assert np.array_equal(after[name], values, equal_nan=values.dtype != object)


@pytest.mark.parametrize("mode", ["static", "continuous", "disaggregated"])
def test_serving_moves_too(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(SERVING.format(mode=mode, tpot="", ttft=""))
    table = read_plans(path)[0]
    before = evaluate(table, load_catalog())
    path.write_text(SERVING.format(mode=mode, tpot=1.1e3 * before["tpot"][0], ttft=""))
    assert 1.02 < evaluate(table, own(read_plans(path)))["tpot"][0] / before["tpot"][0] < 1.1
    path.write_text(SERVING.format(mode=mode, tpot="", ttft=0.8e3 * before["ttft"][0]))
    assert 0.75 < evaluate(table, own(read_plans(path)))["ttft"][0] / before["ttft"][0] < 0.99


def test_a_run_as_predicted_moves_nothing_but_the_band(tmp_path: Path) -> None:
    plans = training(tmp_path, "a,Llama3-70B,H100-SXM-80GB,64,8,128,")
    time = float(evaluate(plans[0], load_catalog())["step_time"][0])
    plans = [replace(plans[0], columns={**plans[0].columns, "measured_step_time": np.array([time])})]
    after = evaluate(plans[0], own(plans))
    assert after["step_time"][0] == pytest.approx(time, rel=1e-12)
    assert after["step_time_high"][0] < evaluate(plans[0], load_catalog())["step_time_high"][0]


def test_laws_of_the_shrinkage() -> None:
    def moved(distance: float, ratio: float, noise: float, runs: int = 1) -> tuple[float, float]:
        between = np.zeros((runs, runs))
        far, log, spread = np.full((1, runs), distance), np.full(runs, np.log(ratio)), np.full(runs, noise)
        scale, width = shrunk_residual(far, between, log, spread, 0.2)
        return float(scale[0]), float(width[0])

    assert moved(0.0, 1.1, 0.0)[0] == pytest.approx(SHARED * np.log(1.1))
    assert moved(0.0, 1.1, 0.1)[0] < moved(0.0, 1.1, 0.0)[0]  # noise shrinks
    assert moved(REACH, 1.1, 0.0)[0] == pytest.approx(np.exp(-1.0) * moved(0.0, 1.1, 0.0)[0])  # so does distance
    assert moved(0.0, 1.1, 0.0)[0] < moved(0.0, 1.1, 0.0, runs=5)[0] < np.log(1.1)  # more runs say more
    assert moved(0.0, 3.0, 0.0)[0] == pytest.approx(SHARED * 0.2)  # an outlier counts as the end of the band
    assert moved(1e9, 1.1, 0.0) == (pytest.approx(0.0, abs=1e-12), 1.0)
    assert moved(0.0, 1.1, 0.0, runs=5)[1] < moved(0.0, 1.1, 0.0)[1] < 1.0
    numbers, choices = np.array([[8.0, np.nan], [16.0, 2.0]]), np.array([["bf16"], ["fp8"]])
    assert plan_distances(numbers, numbers, choices, choices).tolist() == [[0.0, 2.0], [2.0, 0.0]]


@pytest.mark.parametrize(("kind", "group", "least"), [("training", "dense-blackwell", 8), ("inference", "static", 5)])
@pytest.mark.slow
def test_one_row_of_each_configuration_helps_its_others(kind: str, group: str, least: int) -> None:
    """With models left out of the fit (the command shows all groups): the tail draws in, the middle stays."""
    published, catalog = getattr(shipped_measured(), kind), load_catalog()
    rows = published.take([row for row, name in enumerate(published.text["group"]) if name == group])
    errors = bands_left_out(cross_validated(rows, catalog).errors)
    result = gains(errors, plans_to_fit(rows, catalog).plans)[0]
    assert result.configurations >= least
    assert result.after[0] < result.before[0] + 0.005 and result.after[1] < 1.02 * result.before[1]


def test_the_command(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the front sheets of a workbook take a minute to answer: it is written with formulas alone
    monkeypatch.setattr(build, "workbook_package", lambda tables, _values: workbook_package(tables, False))
    training(tmp_path, "a,Llama3-70B,H100-SXM-80GB,64,8,128,9.2")
    path, book = tmp_path / "runs.csv", tmp_path / "mine.xlsx"
    shown = command("calibrate", "--mine", path)
    assert shown.code == 0 and "8.616 " in shown.out and "8.92 " in shown.out and "80 % band now" in shown.out
    assert command("calibrate", "--mine", path, "-o", book).code == 0
    rows = csv_rows(command("evaluate", path, "--catalog", book).out)
    assert "by 1 measured in my_cluster" in rows[0]["reason"]
    assert command("check", book).code == 0
    again = tmp_path / "rows.csv"
    assert command("calibrate", "--mine", path, "--catalog", book, "-o", again).code == 0
    assert [row["my_run"] for row in csv_rows(again.read_text())] == ["a"]  # the same name replaces the row


def test_what_cannot_be_a_run_gets_a_line(command: Command, tmp_path: Path) -> None:
    for row, words in (
        ("a,Llama3-70B,H100-SXM-80GB,64,8,128,8400", "another unit?"),
        ("a,Llama3-70B,H100-SXM-80GB,64,3,128,8.4", "has no step time"),
        ("a,Llama3-70B,H100-SXM-80GB,64,8,128,", "needs plans with a column of measured times"),
    ):
        training(tmp_path, row)
        outcome = command("calibrate", "--mine", tmp_path / "runs.csv")
        assert outcome.code == 2 and words in outcome.err and outcome.err.count("\n") == 1
    with pytest.raises(InputError, match="needs plans"):
        own_runs([], load_catalog())


def test_effects_name_what_moved(tmp_path: Path) -> None:
    plans = training(tmp_path, "a,Llama3-70B,H100-SXM-80GB,64,8,128,9.2")
    (one,) = effects(plans, load_catalog(), own_runs(plans, load_catalog()))
    assert one.measured == pytest.approx(9.2) and one.before[0] < one.after[0] < one.measured
    assert one.after[2] / one.after[1] < one.before[2] / one.before[1]


def test_one_row_of_cells_moves_a_formula() -> None:
    session = Session()
    plan = [
        ["model", "accelerator", "num accelerators", "tensor parallel", "global batch size"],
        ["Llama3-70B", "H100-SXM-80GB", 64.0, 8.0, 128.0],
    ]
    run = [
        ["my run", "plans", "model", "accelerator", "software", "num accelerators", "tensor parallel", "time ratio"],
        ["a", "training", "Llama3-70B", "H100-SXM-80GB", "megatron", 64.0, 8.0, 1.08],
    ]
    handle = session.call("XLPERF_CATALOG", [run])
    before, after = (session.call("XLPERF_STEP_TIME", given)[0][0] for given in ([plan], [plan, handle]))
    assert 1.0 < after / before < 1.08
