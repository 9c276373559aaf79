"""The benchmarks run, on few plans: what they print is the one place where speed is claimed from."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from benchmarks import peers, rival
from benchmarks.plans import SERVING_MODES
from places import TESTS

from xlperf import load_catalog

FOLDER = TESTS / "benchmarks"


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    nothing = tmp_path_factory.mktemp("nothing")
    few = ("--plans", "200", "--single", "5", "--designs", "10000", "--repeats", "1")
    options = ("--engine-only", *few, "--calculon", str(nothing))
    done = subprocess.run(
        [sys.executable, str(FOLDER), *options], capture_output=True, text=True, timeout=1100, check=False, cwd=nothing
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("mode", ("training", *SERVING_MODES))
def test_every_mode_has_a_rate_and_the_time_of_one_plan(printed: str, mode: str) -> None:
    rates = re.findall(
        rf"^ +{mode} +([\d,]+) \(([\d,]+)\) plans per second of processor time, ([\d.]+)% legal", printed, re.M
    )
    assert len(rates) == 1
    best, median, legal = (float(text.replace(",", "")) for text in rates[0])
    assert best >= median > 0.0
    assert legal > 85.0
    assert len(re.findall(rf"^ +{mode} +[\d.]+ \([\d.]+\) ms; bar", printed, re.M)) == 1


def test_the_frontier_has_two_thousand_points(printed: str) -> None:
    assert re.search(r"\d+ of 2,000 points under load: [\d.]+ s", printed)


def test_the_half_without_calculon_says_why_it_was_left_out(printed: str) -> None:
    assert re.search(r"^calculon: skipped, because .+ could not be used: No module named 'calculon'$", printed, re.M)


def test_rows_beside_other_tools_are_the_published_ones() -> None:
    steps = peers.rows_of(load_catalog(), peers.TRAINING, "iter_time_s")
    latencies = peers.rows_of(load_catalog(), peers.SERVING, "latency_s")
    assert [row.measured for row in steps] == [1.42, 1.1, 18.13, 13.75, 49.05, 37.83, 94.42, 71.49]
    assert len(latencies) == 22
    assert all(row.predicted > 0.0 for row in (*steps, *latencies))
    assert peers.errors(steps, [row.measured for row in steps]) == (0.0, 0.0, 0.0)
    assert peers.errors(steps, [1.5 * row.measured for row in steps]).worst == pytest.approx(0.5)


def test_other_tools_that_are_not_there_are_said_to_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    peers.show(load_catalog(), None)
    text = capsys.readouterr().out
    assert "calculon: skipped, because no checkout was given" in text
    assert text.count("xlperf  ") == 2
    for name in ("GenZ", "llm-analysis"):
        assert f"{name}: skipped, because it is not installed" in text or f"{name}, as it comes" in text


def test_configurations_of_calculon_are_the_same_plans_here() -> None:
    fields = (
        "num_procs", "tensor_par", "pipeline_par", "data_par", "tensor_par_net", "pipeline_par_net", "data_par_net",
        "batch_size", "microbatch_size", "activation_recompute", "pipeline_interleaving", "optimizer_sharding",
        "tensor_par_comm_type", "tensor_par_overlap",
    )  # fmt: skip
    tried = [
        (64, 8, 4, 2, 0, 1, 1, 64, 4, "attn_only", 12, True, "rs_ag", "ring"),
        (64, 8, 4, 2, 1, 1, 0, 64, 4, "full", 1, False, "p2p_rs_ag", "pipe"),
    ]
    plans = rival.as_plans(rival.Space(tried, fields, 2, 1.0, 0))
    assert plans.text("dimension_order").tolist() == ["tp-cp-ep-dp-pp", "dp-cp-ep-tp-pp"]
    assert plans.text("recompute").tolist() == ["selective", "full"]
    assert plans.text("tensor_overlap").tolist() == ["gradients", "all"]
    assert plans.filled("sequence_parallel").tolist() == [1.0, 0.0]
    assert plans.number("zero_stage").tolist() == [1.0, 0.0]
    assert plans.number("virtual_pipeline").tolist() == [12.0, 1.0]
    here = rival.xlperf_space(load_catalog(), rival.Space(tried, fields, 2, 1.0, 0))
    assert (here.distinct, here.legal) == (2, 2) and 0.0 < here.best <= here.theirs
