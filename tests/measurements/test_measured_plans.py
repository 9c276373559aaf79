"""Measured values in plan tables: kept, set beside predictions, summed up, explained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import openpyxl
import pytest
from conftest import Outcome, csv_rows

import xlperf
from xlperf.catalog.schema import PLAN_TABLES, results_of, table_schema

Command = Callable[..., Outcome]
TRAINING = """name,model,accelerator,num accelerators,tensor parallel,measured step time (ms),measured memory (GiB),\
measured mfu
one,Llama3-70B,H100-SXM-80GB,64,8,3000,61,
two,Llama3-70B,H100-SXM-80GB,64,8,,,0.4
three,Llama3-70B,H100-SXM-80GB,64,3,3000,,
four,Llama3-70B,H100-SXM-80GB,64,4,,,
"""
SERVING = """name,model,accelerator,num accelerators,tensor parallel,prompt length,output length,measured ttft (ms),\
measured tpot (ms),measured tokens per second (token/s)
one,Llama-3.1-8B-Instruct,H100-SXM-80GB,1,1,1024,128,50,8,100
"""


@pytest.fixture
def plans(tmp_path: Path) -> Path:
    path = tmp_path / "plans.csv"
    path.write_text(TRAINING)
    return path


def test_measured_values_are_kept_beside_predictions(command: Command, plans: Path, tmp_path: Path) -> None:
    first = command("evaluate", plans)
    rows = csv_rows(first.out)
    assert [row["measured_step_time"] for row in rows] == ["3", "", "3", ""]
    assert float(rows[0]["error_step_time"]) == pytest.approx(float(rows[0]["step_time"]) / 3.0 - 1.0)
    assert float(rows[1]["error_mfu"]) == pytest.approx(float(rows[1]["mfu"]) / 0.4 - 1.0)
    assert rows[1]["error_step_time"] == rows[2]["error_step_time"] == ""
    header = first.out.splitlines()[0].split(",")
    assert header.index("error step time") == header.index("step time (s)") + 1
    results = tmp_path / "results.csv"
    results.write_text(first.out)
    assert command("evaluate", results).out == first.out


def test_measured_values_are_in_reports(command: Command, plans: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.xlsx"
    assert command("report", plans, "-o", report).code == 0
    cells = {str(cell.value) for row in openpyxl.load_workbook(report)["training"].iter_rows() for cell in row}
    assert {"measured step time (s)", "error step time", "measured memory (GiB)"} <= cells


def test_validate_takes_plans(command: Command, plans: Path) -> None:
    outcome = command("validate", plans, "-o", "-")
    rows = csv_rows(outcome.out)
    assert outcome.code == 0
    assert [(row["row_id"], row["metric"]) for row in rows] == [
        ("one", "step time (s)"), ("one", "memory (GiB)"), ("two", "mfu"), ("three", "step time (s)")
    ]  # fmt: skip
    assert float(rows[0]["relative_error"]) == pytest.approx(abs(float(rows[0]["predicted"]) / 3.0 - 1.0), rel=1e-4)
    rate = abs(0.4 / float(rows[2]["predicted"]) - 1.0)
    assert float(rows[2]["relative_error"]) == pytest.approx(rate, rel=1e-4)
    assert rows[3]["predicted"] == "" and "tensor parallel" in rows[3]["reason"]
    shown = command("validate", plans).out
    assert "own training" in shown and "memory" in shown


def test_validate_takes_plans_in_a_workbook(command: Command, plans: Path, tmp_path: Path) -> None:
    book, sheet = openpyxl.Workbook(), None
    sheet = book.active
    sheet.title = "inference"
    for line in SERVING.strip().split("\n"):
        sheet.append([float(cell) if cell.isdigit() else cell for cell in line.split(",")])
    path = tmp_path / "plans.xlsx"
    book.save(path)
    rows = csv_rows(command("validate", path, plans, "-o", "-").out)
    assert {row["group"] for row in rows} == {"own inference", "own training"}
    assert {row["metric"] for row in rows} >= {"ttft (ms)", "tpot (ms)", "tokens per second (token/s)"}


def test_diagnose_reads_what_the_plan_says(command: Command, plans: Path) -> None:
    outcome = command("diagnose", plans)
    assert outcome.code == 0
    assert outcome.out.startswith("measured step time 3 s; predicted")
    assert "measured memory 61 GiB" in outcome.out
    assert "give --measured" in command("diagnose", plans, "--name", "four").err


def test_measured_values_have_bounds_and_units(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "plans.csv"
    for value, header, words in (
        ("-3", "measured step time (s)", "must be a number above 0 (s)"),
        ("3", "measured step time (GiB)", "GiB"),
        ("3", "measured stp time (s)", 'unknown column "measured stp time (s)"'),
    ):
        path.write_text(f"model,accelerator,num accelerators,{header}\nLlama3-70B,H100-SXM-80GB,64,{value}\n")
        outcome = command("evaluate", path)
        assert outcome.code == 2 and words in outcome.err and outcome.err.count("\n") == 1


def test_frames_show_errors() -> None:
    plan = {"model": "Llama3-70B", "accelerator": "H100-SXM-80GB", "num accelerators": 64, "tensor parallel": 8}
    result = xlperf.evaluate([{**plan, "measured step time (s)": 3.0}])
    assert result["error step time"].iloc[0] == pytest.approx(result["step time (s)"].iloc[0] / 3.0 - 1.0)


@pytest.mark.parametrize("kind", PLAN_TABLES)
def test_every_result_in_numbers_can_be_measured(kind: str) -> None:
    numbers = {one.name for one in results_of(kind).columns if one.kind == "result" and not one.name.endswith("_low")}
    measured = {one.name.removeprefix("measured_") for one in table_schema(kind).measured}
    assert measured == {name for name in numbers if not name.endswith("_high")}
