"""One grammar of what varies, what is asked and what is limited: it means the same in every command and cell."""

from __future__ import annotations

import builtins
import json
import math
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Outcome, csv_rows
from explore.test_solve import H100, SERVE, TRAIN, plan_file, table, targets, varied

from xlperf.addin.worker import Session
from xlperf.base.arrays import added
from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import MARK, Table
from xlperf.cli import blocks
from xlperf.engine import evaluate, explain
from xlperf.explore.candidates import candidates, with_mapping
from xlperf.explore.changed_catalogs import changed_catalog, with_value
from xlperf.explore.forms import evaluate_forms
from xlperf.explore.objectives import objective_of
from xlperf.explore.search import search
from xlperf.explore.sweep import Sweep, sweep
from xlperf.explore.vary import SHEETS

Command = Callable[..., Outcome]
DERIVED = {**TRAIN, "accelerator": "3 nm HBM4 (derived)", "network": "NVL72-GB200"}
POOLS = {**SERVE, "tensor parallel": 8, "num accelerators": 16, "mode": "disaggregated", "prefill accelerators": 8,
         "prefill accelerator": H100, "prefill network": ""}  # fmt: skip


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return plan_file(tmp_path / "small.csv", TRAIN)


# --- what varies

COLUMNS = (
    ("accelerators.memory bandwidth=x0.5,x1", TRAIN),
    ("accelerators.default network=HGX-H100,HGX-A100", TRAIN),
    ("networks.topology=switch,ring", TRAIN),
    ("networks.in network reduction=yes,no", TRAIN),
    ("models.gated mlp=no,yes", TRAIN),
    ("prices.rental price=1,2", TRAIN),
    ("servers.energy price=x1,x3", TRAIN),
    ("chiplets.margin share=x0.9,x1", TRAIN),
    ("packages.carrier count=one,two", TRAIN),
    ("process nodes.yield model=poisson,murphy", TRAIN),
    ("calibration.gemm.launch_time=x1,x3", TRAIN),
    ("devices.memory=HBM3E,HBM4", DERIVED),
    ("cores.clock rate=x0.8,x1", DERIVED),
    ("technology.flop energy=x0.5,x1", DERIVED),
    ("memories.pin rate=x0.5,x1", DERIVED),
    ("links.energy=x1,x9", DERIVED),
)


def _line(line: str, catalog: Catalog) -> str:
    """The line with words that the sheet has, where it is of words."""
    column, _, values = line.partition("=")
    if column == "accelerators.default network":
        return f"{column}={','.join(catalog.networks[:2])}"
    if column == "packages.carrier count":
        return f"{column}={','.join(dict.fromkeys(catalog.tables['packages'].text('carrier_count').tolist()))}"
    return f"{column}={values}"


@pytest.mark.parametrize(("line", "row"), COLUMNS, ids=[line.partition("=")[0] for line, _ in COLUMNS])
def test_a_column_of_every_sheet_is_swept_as_the_edited_sheet_says(
    catalog: Catalog, line: str, row: dict[str, Any]
) -> None:
    plans = table(row)
    (one,) = varied("training", _line(line, catalog)).varied
    result = sweep(Sweep(plans, catalog, {}, (one,)))
    for place, value in enumerate(one.values.tolist()):
        edited = changed_catalog(catalog, plans, [(one, value)])
        for name, values in evaluate(plans, edited).columns.items():
            same = result.results[name][place : place + 1]
            if values.dtype != object:
                assert np.array_equal(same, values, equal_nan=True), name
    assert result.varied[0][1].tolist() == one.values.tolist()


def test_a_column_of_each_sheet_is_tried() -> None:
    assert {line.partition(".")[0].replace(" ", "_") for line, _ in COLUMNS} | {"packages"} == set(SHEETS)


def test_rows_of_other_sheets_are_named_as_they_are_known(catalog: Catalog) -> None:
    (memory,) = varied("training", "devices.memory=HBM9").varied
    with pytest.raises(InputError, match='unknown memory "HBM9"; did you mean'):
        changed_catalog(catalog, table(DERIVED), [(memory, "HBM9")])
    for line in ("accelerators.source=a", "prices.price=a", "devices.device=a", "models.notes=a"):
        with pytest.raises(InputError, match="changes no result: vary a number, a choice or a reference"):
            varied("training", line)


def test_factors_multiply_columns_of_plans_and_blanks_are_refused(
    catalog: Catalog, small: Path, command: Command
) -> None:
    rows = csv_rows(command("evaluate", small, "--vary", "global batch size=x1,x2", "-o", "-").out)
    assert [row["global_batch_size"] for row in rows] == ["96", "192"]
    plan = table(TRAIN)
    doubled = evaluate(table({**TRAIN, "global batch size": 192}), catalog)["step_time"][0]
    assert rows[1]["step_time"] == repr(float(doubled)).removesuffix(".0")
    refused = command("evaluate", small, "--vary", "power limit=x0.8,x1", "-o", "-")
    assert (refused.code, "power limit is blank there: give values, not factors" in refused.err) == (2, True)
    (batch,) = varied("training", "global batch size=x2").varied
    assert with_value(plan, catalog, batch, 2.0)[0]["global_batch_size"].tolist() == [192.0]


def test_counts_are_drawn_whole(catalog: Catalog) -> None:
    (layers, size) = varied("training", "models.num layers=10..40", "networks.size=normal:8:2").varied
    shares = np.linspace(0.01, 0.99, 50)
    for one in (layers, size):
        drawn = one.drawn(shares)
        assert (drawn == np.round(drawn)).all() and len(set(drawn.tolist())) > 3


def test_no_mark_of_a_copied_row_is_left_in_what_is_written(catalog: Catalog) -> None:
    network = str(catalog.networks[0])
    plans = table(POOLS, {**POOLS, "prefill network": network})
    result = sweep(Sweep(plans, catalog, {}, varied("inference", "networks.link bandwidth=x0.5,x1").varied))
    for words in (*result.plans.columns.values(), *result.results.columns.values()):
        assert words.dtype != object or not any(MARK in text for text in words.tolist())
    assert result.plans.text("prefill_network").tolist() == ["", network] * 2


def test_the_other_pool_of_a_mode_that_is_searched_is_changed_too(catalog: Catalog) -> None:
    plan = table({**POOLS, "mode": "auto"})
    (bandwidth,) = varied("inference", "accelerators.memory bandwidth=x2").varied
    edited = changed_catalog(catalog, plan, [(bandwidth, 2.0)]).tables["accelerators"]
    ratio = edited["memory_bandwidth"] / catalog.tables["accelerators"]["memory_bandwidth"]
    assert set(edited.text("accelerator")[ratio == 2.0].tolist()) == {H100, "H200-SXM-141GB"}


# --- what is asked and limited


def test_each_target_is_searched_by_itself(catalog: Catalog, tmp_path: Path, command: Command) -> None:
    plans = plan_file(tmp_path / "served.csv", {**SERVE, "concurrency": "auto"})
    done = command("search", plans, "--vary", "tpot target=15,30", "--top", 1, "-o", "-")
    rows = csv_rows(done.out)
    assert [row["tpot_target"] for row in rows] == ["15", "30"]
    for row, line in zip(rows, done.err.splitlines(), strict=False):
        bound = float(row["tpot_target"])
        alone = search(table({**SERVE, "concurrency": "auto", "tpot target": bound}), catalog)
        assert (
            float(row["tpot"]) == pytest.approx(alone.results["tpot"][0] * 1e3, rel=1e-12)
            and f"tpot target {bound:g} ms" in line
        )
    with pytest.raises(InputError, match="tpot target is no choice of a search"):
        search(table(SERVE), catalog, values={"tpot_target": np.array([0.01, 0.02])})


def test_the_fewest_accelerators_are_an_objective_of_a_frontier(catalog: Catalog) -> None:
    plan = with_mapping(table({**TRAIN, "tensor parallel": "", "num accelerators": "auto"}))
    for first, other in (("num accelerators", "step time"), ("step time", "num accelerators")):
        result = search(plan, catalog, first, top=1, rivals=[other], most_accelerators=16)
        every = candidates(plan, catalog, most_accelerators=16)
        results = evaluate(every.plans, catalog)
        good = results["fits"] == 1.0
        counts, times = every.plans["num_accelerators"][good], results["step_time"][good]
        own = dict(zip(result.plans["num_accelerators"].tolist(), result.results["step_time"].tolist(), strict=True))
        assert len(own) == len(result.plans) > 2
        least = {count: times[counts <= count].min() for count in np.unique(counts).tolist()}
        assert all(own[count] <= least[count] for count in own)
        assert {
            count for count in least if least[count] < min([least[c] for c in least if c < count], default=np.inf)
        } == set(own)


def test_numbers_that_are_tried_in_steps_are_all_tried_next_to_each_plan_of_a_frontier(catalog: Catalog) -> None:
    plan = with_mapping(table({**TRAIN, "tensor parallel": "", "num accelerators": "auto", "global batch size": 512}))
    result = search(plan, catalog, "step time", rivals=["num accelerators"], most_accelerators=64, most=200_000)
    assert result.counts is not None and len(result.counts.between(result.plans["num_accelerators"])) == 0


def test_objectives_and_limits_that_are_refused_in_a_line(small: Path, command: Command) -> None:
    for options, words in (
        (("--objective", "cost", "--objective", "cost per million tokens"), "--objective: the same result twice"),
        (("--objective", "spede"), '--objective: "spede" is no result'),
        (
            ("--limit", "num accelerators<=4"),
            "--limit: num accelerators is a column of plans, no result: say with --vary or",
        ),
    ):
        done = command("search", small, "--mapping", *options)
        assert (done.code, len(done.err.splitlines())) == (2, 1) and words in done.err


def test_a_search_says_what_limits_each_plan_and_is_read_again(small: Path, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "best.csv"
    options = ("--vary", "tensor parallel=1,2,4", "--vary", "prices.rental price=1,2", "--limit", "step time<=20")
    assert command("search", small, *options, "-o", out).code == 0
    rows = csv_rows(out.read_text())
    assert all("compute " in row["limited_by"] and "step time at " in row["limited_by"] for row in rows)
    again = command("evaluate", out, "-o", "-")  # columns of the search are left out
    assert (again.code, len(csv_rows(again.out))) == (0, len(rows))
    told = json.loads(command("search", small, *options, "--json").out)
    assert len(told) == len(rows) and told[0]["limited_by"].startswith("compute ")


def test_the_best_rows_of_a_sweep_are_those_of_all_rows(
    small: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (
        "--vary",
        "tensor parallel=1,2,4,8",
        "--vary",
        "micro batch size=1,2,3,4",
        "--vary",
        "accelerators.memory bandwidth=2,3",
    )
    rows = [row for row in csv_rows(command("evaluate", small, *lines, "-o", "-").out) if row["fits"] == "TRUE"]
    rows = sorted((row for row in rows if float(row["memory"]) <= 60), key=lambda row: float(row["step_time"]))
    monkeypatch.setattr("xlperf.explore.sweep.BLOCK", 5)
    asked = ("--objective", "step time", "--limit", "memory<=60", "--top", 4, "--processes", 1)
    done = command("evaluate", small, *lines, *asked, "-o", "-")
    best = csv_rows(done.out)
    assert [row["step_time"] for row in best] == [row["step_time"] for row in rows[:4]]
    assert done.err.startswith("least step time: the best 4 that fit with memory <= 60 GiB; 32 plans computed")
    book = tmp_path / "best.xlsx"
    assert command("evaluate", small, *lines, "--top", 3, "-o", book).code == 0
    none = command("evaluate", small, *lines, "--limit", "step time<=1 ms", "-o", "-")
    assert (none.code, none.out) == (1, "")


# --- long sweeps


@pytest.mark.parametrize("moment", ["joining", "removing"])
def test_a_sweep_killed_as_it_joins_or_removes_its_blocks_ends_the_same(
    small: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    monkeypatch.setattr("xlperf.explore.sweep.BLOCK", 4)
    lines = ("--vary", "global batch size=96,192,384", "--vary", "micro batch size=1,2,4,8", "-o")
    whole, output = tmp_path / "whole.csv", tmp_path / "grid.csv"
    assert command("evaluate", small, *lines, whole).code == 0

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        if moment == "joining":
            broken.setattr(blocks, "_without_header", killed)
        else:
            unlink = Path.unlink
            broken.setattr(
                Path, "unlink", lambda path, **k: killed() if path.name == "00000001.csv" else unlink(path, **k)
            )
        assert command("evaluate", small, *lines, output).code != 0
    folder = Path(f"{output}.parts")
    assert (folder / "sweep.json").is_file() and output.exists() == (moment == "removing")
    scratch = tmp_path / "xlperf-0123456789abcdef.scratch"  # of a kill -9; one process computes what is left
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert command("evaluate", small, *lines, output).code == 0
    assert output.read_bytes() == whole.read_bytes() and not folder.exists() and not scratch.exists()
    shutil.rmtree(folder, ignore_errors=True)


# --- sums


def test_sums_of_numbers_are_those_of_every_python(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 3.12 on the sum of floats is compensated: no result may depend on it."""
    assert added([0.1] * 10) == 0.9999999999999999 != math.fsum([0.1] * 10)
    forms = [
        (
            "train",
            {
                "model": "Llama3-70B",
                "accelerator": H100,
                "num accelerators": 64,
                "training tokens (T)": 2,
                "sequence length": 4096,
                "global batch size": 512,
            },
        ),
        (
            "chip",
            {"model": "Llama3-70B", "technology": "3nm", "memory": "HBM4", "prompt length": 2000, "output length": 200},
        ),
    ]

    def found() -> list[list[Any]]:
        from xlperf.catalog.parse import table_from_rows

        told: list[Table] = [
            explain(table({**TRAIN, "num accelerators": 16, "pipeline parallel": 2}), catalog),
            explain(table(POOLS), catalog),
        ]
        told += [evaluate(table(TRAIN, {**TRAIN, "num accelerators": 512}), catalog)]
        told += [
            evaluate_forms(table_from_rows(kind, list(form), [list(form.values())]), catalog) for kind, form in forms
        ]
        return [values.tolist() for one in told for values in one.columns.values()]

    plain = sum

    def compensated(values: Iterable[Any], start: Any = 0) -> Any:
        terms = list(values)
        exact = terms and all(type(term) is float for term in terms) and type(start) in (int, float)
        return math.fsum([start, *terms]) if exact else plain(terms, start)

    def in_order(values: Iterable[Any], start: Any = 0) -> Any:
        for term in values:
            start = start + term
        return start

    answers = []
    for own in (compensated, in_order):
        monkeypatch.setattr(builtins, "sum", own)
        answers.append(repr(found()))
    assert answers[0] == answers[1]


# --- cells


def test_cells_take_ranges_as_the_command_does() -> None:
    card = [[name, value] for name, value in {**SERVE, "tensor parallel": 8, "concurrency": ""}.items()]
    shown = [
        Session().call("XLPERF_FRONTIER", [card, [["concurrency", *values]]]) for values in ([1, 2, 3, 4], ["1..4"])
    ]
    assert shown[0] == shown[1] and len(shown[0]) == 5
    ((refused,),) = Session().call("XLPERF_FRONTIER", [card, [["networks.latency", "x1", "x2"]]])
    assert "write values of a column of the plans" in refused.message


def test_objectives_are_those_of_results() -> None:
    assert objective_of("training", "cost").is_result


def test_a_search_of_cells_has_limits_several_objectives_and_what_varies(catalog: Catalog) -> None:
    card = [[name, value] for name, value in {**TRAIN, "tensor parallel": "auto", "micro batch size": ""}.items()]
    vary = [["micro batch size", "1..4"]]
    block = Session().call("XLPERF_SEARCH", [card, 3.0, None, None, None, [["memory<=60"], ["mfu at least 0.2"]], vary])
    values = {"micro_batch_size": np.arange(1.0, 5.0)}
    best = search(
        table({**TRAIN, "tensor parallel": "auto"}),
        catalog,
        "",
        targets("training", "memory<=60", "mfu>=0.2"),
        values,
        3,
    )
    place = block[0].index("step time (s)")
    assert [row[place] for row in block[1:]] == best.results["step_time"].tolist()
    assert block[0][-1] == "limited by" and all("of its limit" in row[-1] for row in block[1:])
    both = Session().call("XLPERF_SEARCH", [card, None, "step time, memory", None, None, None, vary])
    frontier = search(
        table({**TRAIN, "tensor parallel": "auto"}), catalog, "step time", values=values, rivals=["memory"]
    )
    assert len(both) == 1 + len(frontier.plans) and len(both) > 2
    ((refused,),) = Session().call("XLPERF_SEARCH", [card, None, None, None, None, "memry<=60"])
    assert 'limits: "memry" is no result' in refused.message


def test_shadow_prices_and_draws_of_cells_keep_limits(catalog: Catalog) -> None:
    cells = [list(TRAIN), list(TRAIN.values())]
    block = Session().call("XLPERF_SHADOW_PRICE", [cells, None, None, None, "step time<=30"])
    assert block[-1][1:3] == ["step time (s)", "limit"]
    assert block[-1][list(block[0]).index("worth (USD)")] == 0.0  # there is slack
    step = float(evaluate(table(TRAIN), catalog)["step_time"][0])
    shares = [
        Session().call("XLPERF_MONTE_CARLO", [cells, "cost", None, None, None, limit])[1]
        for limit in (None, f"step time<={step} s")
    ]
    place = ["plan", "result", "median inputs", "mean", "p5", "p50", "p95", "probability fits"].index(
        "probability fits"
    )
    assert shares[0][place] == 1.0 and 0.4 < shares[1][place] < 0.6
