"""Throughput against interactivity: grids, loads, what nothing beats, targets; as function and as command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from work import calls

from xlperf.addin.cells import CellError
from xlperf.addin.worker import Session
from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import results_of
from xlperf.catalog.table import Table
from xlperf.cli.app import run
from xlperf.engine import evaluate
from xlperf.explore.space import grid
from xlperf.explore.sweep import SHOWN, frontier, loads, points, unbeaten
from xlperf.explore.vary import read_values

CARD: dict[str, Any] = {
    "name": "a", "model": "Meta-Llama-3.1-70B", "accelerator": "H200-SXM-141GB", "num accelerators": 8,
    "tensor parallel": 8, "prompt length": 1000, "output length": 500, "mode": "continuous",
}  # fmt: skip
USER, ACCELERATOR = "tokens_per_second_per_user", "tokens_per_second_per_accelerator"


def plans(*rows: dict[str, Any]) -> Table:
    full = [{**CARD, **row} for row in rows]
    header = list(dict.fromkeys(name for row in full for name in row))
    return table_from_rows("inference", header, [[row.get(name, "") for name in header] for row in full])


def values(**lines: list[Any]) -> dict[str, np.ndarray]:
    return read_values("inference", list(lines.items()))


def test_grid_has_every_combination_in_order() -> None:
    result = grid(plans({"name": "a"}, {"name": "b"}), values(tensor_parallel=[1, 2], precision=["fp8", "bf16", "fp4"]))
    assert result.text("name").tolist() == ["a"] * 6 + ["b"] * 6
    assert result.number("tensor_parallel").tolist() == [1, 1, 1, 2, 2, 2] * 2
    assert result.text("precision").tolist() == ["fp8", "bf16", "fp4"] * 4
    assert len(grid(plans({}), {})) == 1
    with pytest.raises(InputError, match="the grid has 1,210,000 plans, more than 1,000,000"):
        many = list(range(1, 1101))
        grid(plans({}), values(concurrency=many, prompt_length=many))


def test_a_grid_with_too_many_loads_is_refused(catalog: Catalog) -> None:
    with pytest.raises(InputError, match=r"the grid has 2\d plans with its loads, more than 20"):
        points(plans({}), catalog, most=20)


def test_progress_counts_every_point(catalog: Catalog) -> None:
    done: list[int] = []
    points(plans({}), catalog, values(concurrency=[1, 2, 4]), progress=done.append)
    assert sum(done) == 3


def test_values_are_read_in_the_unit_of_their_header() -> None:
    result = read_values("inference", [("tpot target (s)", [0.02, None, 0.02]), ("tensor parallel", ["4"])])
    assert result["tpot_target"].tolist() == [0.02]
    assert read_values("inference", [("tpot target", [20])])["tpot_target"].tolist() == [0.02]
    assert result["tensor_parallel"].tolist() == [4.0]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (("tensr parallel", [1]), 'unknown column "tensr parallel"; did you mean tensor parallel'),
        (("tensor parallel", [2.5]), "tensor parallel must be a whole number of at least 1, got 2.5"),
        (("precision", ["fp9"]), "precision must be one of fp32, fp16"),
        (("tensor parallel", ["auto"]), "tensor parallel is auto: write values"),
        (("tensor parallel", [None]), "tensor parallel has no values to try"),
        (("tpot", [1]), 'unknown column "tpot"; did you mean tpot target'),
    ],
)
def test_bad_values_are_said(line: tuple[str, list[Any]], words: str) -> None:
    with pytest.raises(InputError) as caught:
        read_values("inference", [line, ("prompt length", ["x"])], "vary")
    lines = caught.value.lines()
    assert len(lines) == 2
    assert lines[0].startswith(f"vary: {words}")


def test_loads_go_from_one_request_to_full_memory(catalog: Catalog) -> None:
    rows = plans({"tensor parallel": 2, "name": "b"}, {}, {"model": "Meta-Llama-3.1-405B", "tensor parallel": 1})
    table = loads(rows, catalog, 10)
    assert sorted(set(table.text("name"))) == ["a", "b"], "the third does not fit with one request"
    most = evaluate(rows, catalog).number("max_batch_size")
    for name, replicas, room in (("b", 4, most[0]), ("a", 1, most[1])):
        mine = table.number("concurrency")[table.text("name") == name]
        assert mine[0] == replicas
        assert mine[-1] == replicas * room
        assert len(mine) == 10
    assert (evaluate(table, catalog).number("fits") == 1.0).all()


def test_points_that_nothing_beats() -> None:
    """By hand: (2, 9) beats (1, 9) and (2, 8); (3, 5) and (4, 1) stand; (4, 1) twice is one."""
    user = np.array([1.0, 2.0, 2.0, 3.0, 4.0, 4.0])
    accelerator = np.array([9.0, 8.0, 9.0, 5.0, 1.0, 1.0])
    result = unbeaten(Table("inference_results", {USER: user, ACCELERATOR: accelerator}))
    assert result.tolist() == [2, 3, 4]
    assert unbeaten(Table("inference_results", {USER: user[:0], ACCELERATOR: user[:0]})).tolist() == []


GRID = values(tensor_parallel=[1, 2, 4, 8], precision=["bf16", "fp8"], mode=["static", "continuous", "disaggregated"])


def test_frontier_is_the_upper_hull_of_its_points(catalog: Catalog) -> None:
    every, best = points(plans({}), catalog, GRID), frontier(plans({}), catalog, GRID)
    user, accelerator = best.results.number(USER), best.results.number(ACCELERATOR)
    assert len(user) > 10
    assert (np.diff(user) > 0.0).all()
    assert (np.diff(accelerator) < 0.0).all()
    for x, y in zip(every.results.number(USER), every.results.number(ACCELERATOR), strict=True):
        assert ((user >= x) & (accelerator >= y)).any(), "a point of the grid stands above the frontier"
    assert accelerator[0] == every.results.number(ACCELERATOR).max()
    assert user[-1] == every.results.number(USER).max()


def test_only_plans_that_do_the_same_compete(catalog: Catalog) -> None:
    """A small model beats a large one at everything but the task; so do short prompts."""
    rows = [{}, {"model": "Meta-Llama-3.1-8B", "name": "small"}, {"prompt length": 100, "name": "short"}]
    result = frontier(plans(*rows), catalog, values(concurrency=[1, 16]))
    assert result.plans.text("name").tolist() == ["a", "a", "small", "small", "short", "short"]
    alone = frontier(plans({}), catalog, values(concurrency=[1, 16]))
    assert result.results.number(USER)[:2].tolist() == alone.results.number(USER).tolist()
    block = call([[*CARD], *([{**CARD, **row}[name] for name in CARD] for row in rows)], [["concurrency", 1, 16]])
    assert block[0][:5] == ["name", "model", "prompt length", "concurrency", "tokens per second per user (token/s)"]


def test_points_are_those_of_evaluate(catalog: Catalog) -> None:
    best = frontier(plans({}), catalog, GRID)
    alone = evaluate(best.plans, catalog)
    for name, column in alone.columns.items():
        assert column.tolist() == best.results[name].tolist() or np.isnan(column).all(), name


def test_targets_bound_the_frontier(catalog: Catalog) -> None:
    """The first point is the largest throughput under the targets, as the plan's own result says."""
    row = {"tpot target": 20, "ttft target": 1000}
    best = frontier(plans(row), catalog)
    assert (best.results.number("tpot") <= 20e-3).all()
    assert (best.results.number("ttft") <= 1.0).all()
    asked = evaluate(plans({**row, "concurrency": 1}), catalog)
    assert best.results.number("tokens_per_second")[0] == pytest.approx(
        asked.number("tokens_per_second_at_targets")[0], rel=1e-9
    )
    assert best.plans.number("concurrency")[0] == asked.number("batch_at_targets")[0]
    pools = {**row, "mode": "disaggregated", "tensor parallel": 4}
    assert (frontier(plans(pools), catalog).results.number("tpot") <= 20e-3).all()
    assert len(frontier(plans({"tpot target": 0.1}), catalog).plans) == 0


def test_a_load_of_the_grid_takes_the_place_of_the_plan_s(catalog: Catalog) -> None:
    result = points(plans({"batch size": 7}), catalog, values(concurrency=[1, 2, 4]))
    assert result.plans.number("concurrency").tolist() == [1.0, 2.0, 4.0]
    assert np.isnan(result.plans.number("batch_size")).all()
    rated = points(plans({"concurrency": 7}), catalog, values(request_rate=[0.5, 1.0, 1e6]))
    assert rated.plans.number("request_rate").tolist() == [0.5, 1.0], "a rate that cannot be kept up is no point"
    static = points(plans({"mode": "static"}), catalog, values(batch_size=[1, 8]))
    assert static.results.number("running_batch").tolist() == [1.0, 8.0]


def test_two_thousand_points_of_a_model_of_70_billion(catalog: Catalog) -> None:
    grid_ = {**values(tensor_parallel=[1, 2, 4, 8], precision=["bf16", "fp8"], mode=["continuous", "disaggregated"])}
    table = plans({"num accelerators": 16})
    count, result = calls(lambda: frontier(table, catalog, grid_, 240))
    assert len(points(table, catalog, grid_, 240).plans) > 1500
    assert len(result.plans) > 40
    assert count < 500_000  # 70,000: points are evaluated together


def test_training_plans_have_no_frontier(catalog: Catalog) -> None:
    header = ["model", "accelerator", "num accelerators"]
    table = table_from_rows("training", header, [["Meta-Llama-3.1-70B", "H200-SXM-141GB", 8]])
    with pytest.raises(InputError, match="these are training plans; a frontier needs inference plans"):
        frontier(table, catalog)


# As a worksheet function


def call(*arguments: Any) -> list[list[Any]]:
    return Session().call("XLPERF_FRONTIER", list(arguments))


def test_function_spills_the_frontier(catalog: Catalog) -> None:
    card = [list(line) for line in CARD.items()]
    vary = [["tensor parallel", 4, 8, None], ["precision", "fp8", "bf16", "int4"], [None, None, None, None]]
    block = call(card, vary)
    wide = {"tensor_parallel": [4, 8], "precision": ["fp8", "bf16", "int4"]}
    best = frontier(plans({}), catalog, values(**wide))
    assert block[0][:3] == ["tensor parallel", "precision", "concurrency"]
    assert block[0][3] == "tokens per second per user (token/s)"
    assert len(block) == len(best.plans) + 1
    assert [row[3] for row in block[1:]] == best.results.number(USER).tolist()
    assert [row[1] for row in block[1:]] == best.plans.text("precision").tolist()
    chosen = call(card, vary, "precision, latency, ttft")
    assert chosen[0] == ["precision", "latency (s)", "ttft (ms)"]
    assert len(call(card)[0]) == 1 + len(SHOWN)


@pytest.mark.parametrize(
    ("vary", "code", "words"),
    [
        ([["tensor", 4]], "#VALUE!", "vary: unknown column"),
        ([["tpot target", 0.01]], "#N/A", "no plan at no load"),
        ([["accelerator", "H2000"]], "#VALUE!", 'unknown accelerator "H2000"'),
    ],
)
def test_function_says_what_is_wrong(vary: list[list[Any]], code: str, words: str) -> None:
    ((result,),) = call([list(line) for line in CARD.items()], vary)
    assert isinstance(result, CellError)
    assert result.code == code
    assert words in result.message


def test_function_takes_inference_plans() -> None:
    ((result,),) = call([["model", "Meta-Llama-3.1-70B"], ["accelerator", "H200-SXM-141GB"], ["num accelerators", 8]])
    assert isinstance(result, CellError)
    assert "XLPERF_FRONTIER takes inference plans" in result.message


# As a command


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "plans.csv"
    path.write_text(",".join(CARD) + "\n" + ",".join(str(value) for value in CARD.values()) + "\n", encoding="utf-8")
    return path


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = run([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_command_shows_and_writes(catalog: Catalog, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = command(capsys, "search", "--frontier", file, "--vary", "tensor parallel=4,8", "--points", 5)
    assert (code, err) == (0, "")
    best = frontier(plans({}), catalog, values(tensor_parallel=[4, 8]), 5)
    assert len(out.splitlines()) == len(best.plans) + 3
    target = file.with_name("points.csv")
    assert command(capsys, "search", "--frontier", file, "--vary", "concurrency=1,8", "--all", "-o", target)[0] == 0
    header, *rows = (line.split(",") for line in target.read_text(encoding="utf-8").splitlines())
    assert [row[header.index("concurrency")] for row in rows] == ["1", "8"]
    assert results_of("inference").by_name[USER].header in header


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--vary", "tpot target=0.1"], 1, "no plan at no load is legal, fits in memory and keeps the targets\n"),
        (["--vary", "tensor parallel"], 2, "xlperf search --frontier: --vary takes COLUMN=VALUES"),
        (["--vary", "tensor parallel=x"], 2, "--vary: tensor parallel must be a whole number of at least 1"),
        (["--sheet", "training"], 2, "plans.csv: has no sheets"),
        (["-o", "points.txt"], 2, "points.txt: the output must end in .xlsx, .csv, .parquet or .json"),
    ],
)
def test_command_says_what_is_wrong(
    file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    result, _, err = command(capsys, "search", "--frontier", file, *arguments)
    assert result == code
    assert words in err
    assert len(err.splitlines()) == 1
