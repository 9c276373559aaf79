"""Plans and results as DataFrames: ``xlperf.evaluate``, ``xlperf.explain``, ``xlperf.search``."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from host_calls import CARD

import xlperf
from xlperf.base.resources import workbook

PLAN = {"model": "Llama3-70B", "accelerator": "H100-SXM-80GB", "num accelerators": 64, "tensor parallel": 8}
SERVE = {**PLAN, "num accelerators": 8, "prompt length": 1024, "output length": 256, "batch size": 16}


def test_a_frame_gives_what_the_command_gives(command: Any, tmp_path: Path) -> None:
    for plan in (PLAN, SERVE):
        frame = pd.DataFrame([plan, {**plan, "tensor parallel": 4}, {**plan, "tensor parallel": 3}])
        frame.to_csv(tmp_path / "plans.csv", index=False)
        assert command("evaluate", tmp_path / "plans.csv", "-o", tmp_path / "out.csv").code == 0
        with (tmp_path / "out.csv").open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        result = xlperf.evaluate(frame)
        numbers = [name for name in result if result[name].dtype == np.float64]
        assert len(numbers) > 30
        for name in numbers:
            assert [float(row[name] or "nan") for row in rows] == pytest.approx(
                result[name].tolist(), rel=0, nan_ok=True
            )


def test_index_and_kinds_of_columns_are_kept() -> None:
    frame = pd.DataFrame([PLAN] * 3, index=pd.Index(["x", "y", "y"], name="run")).convert_dtypes()
    frame["pipeline parallel"] = pd.array([4, None, 2], dtype="Int64")
    frame["sequence parallel"] = pd.array([True, None, False], dtype="boolean")
    frame["model"] = frame["model"].astype("category")
    result = xlperf.evaluate(frame)
    assert result.index.equals(frame.index)
    assert result["fits"].dtype == "boolean"
    alone = [xlperf.evaluate(frame.iloc[[row]]) for row in range(3)]
    pd.testing.assert_frame_equal(pd.concat(alone), pd.DataFrame(result), check_exact=True)
    assert frame["pipeline parallel"].isna().tolist() == [False, True, False]


def test_one_dict_a_list_and_a_generator_are_plans() -> None:
    one = xlperf.evaluate(PLAN)
    assert len(one) == 1
    pd.testing.assert_frame_equal(xlperf.evaluate([PLAN]), one)
    pd.testing.assert_frame_equal(xlperf.evaluate(plan for plan in [PLAN]), one)
    named = {name.replace(" ", "_"): value for name, value in PLAN.items()}
    pd.testing.assert_frame_equal(xlperf.evaluate(named), one)


def test_auto_is_resolved_and_search_lists_the_best() -> None:
    asked = {**PLAN, "tensor parallel": "auto", "global batch size": 128}
    best = xlperf.search(asked, limits=["memory<=75"], top=3)
    assert best["step time (s)"].is_monotonic_increasing and len(best) <= 3
    assert (best["memory (GiB)"] <= 75).all()
    resolved = xlperf.evaluate(asked)["step time (s)"].item()
    assert resolved == xlperf.search(asked)["step time (s)"].iloc[0]


def test_exposed_times_of_explain_add_up() -> None:
    operators = xlperf.explain(PLAN)
    step = xlperf.evaluate(PLAN)["step time (s)"].item()
    assert operators["exposed time (ms)"].sum() == pytest.approx(1e3 * step, rel=1e-9)


def test_another_catalog_is_a_workbook_or_a_catalog() -> None:
    catalog = xlperf.load_catalog(workbook())
    expected = xlperf.evaluate(PLAN)
    for given in (catalog, workbook(), str(workbook())):
        pd.testing.assert_frame_equal(xlperf.evaluate(PLAN, given), expected)


@pytest.mark.parametrize(
    ("plans", "message"),
    [
        (pd.DataFrame([PLAN | {"model": "nope"}], index=[7]), 'plans.loc[7, "model"]: unknown model "nope"'),
        (pd.DataFrame([[1, 2]], columns=["model", "model"]), 'column "model" stands twice'),
        ([PLAN | {"tensor parallel": [8]}], "tensor parallel"),
    ],
)
def test_bad_cells_are_named(plans: Any, message: str) -> None:
    with pytest.raises(xlperf.InputError) as caught:
        xlperf.evaluate(plans)
    assert message in str(caught.value)


def test_a_row_of_a_frame_is_a_plan() -> None:
    frame = pd.DataFrame([{**dict(CARD), "tensor parallel": degree} for degree in (4, 8)], index=["a", "b"])
    assert xlperf.evaluate(frame.loc["b"]).equals(xlperf.evaluate(frame).loc[["b"]])
    assert len(xlperf.explain(frame.loc["b"]))


def test_one_plan_is_explained() -> None:
    with pytest.raises(xlperf.InputError, match="takes one plan, got 2"):
        xlperf.explain([PLAN, PLAN])


def test_import_costs_no_pandas() -> None:
    code = "import sys, xlperf; dir(xlperf); print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
