"""First tokens far later than predicted: bursts, places, prefill chunks and prefixes explain them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Outcome

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.explore.causes import changes
from xlperf.explore.diagnose import Diagnosis, diagnose, read_measured

Command = Callable[..., Outcome]
PLAN: dict[str, object] = {
    "name": "a", "model": "Meta-Llama-3.1-8B", "accelerator": "H100-SXM-80GB", "num_accelerators": 1,
    "software": "vllm", "software_release": "0.12.0", "prompt_length": 1024, "output_length": 256, "precision": "bf16",
    "mode": "continuous", "concurrency": 64,
}  # fmt: skip


def served(**more: object) -> Table:
    row = {**PLAN, **more}
    return table_from_rows("inference", [*row], [[*row.values()]])


def explained(catalog: Catalog, plan: Table, ran: Table) -> Diagnosis:
    """Diagnosis of a plan by the first token and the time per token of how it ran."""
    results = evaluate(ran, catalog)
    texts = [f"{name}={float(results.number(name)[0])} s" for name in ("ttft", "tpot")]
    return diagnose(plan, catalog, read_measured("inference", texts))


@pytest.mark.parametrize(
    ("cause", "planned", "ran"),
    [
        ("all requests sent at once", {}, {"run_requests": 128}),
        ("requests in bursts", {"concurrency": "", "request_rate": 14}, {"arrival_variation": 4}),
        ("waiting for a place", {}, {"max_running_batch": 38}),
        ("smaller prefill chunks", {}, {"prefill_tokens": 128}),
        ("prefix cache not hit", {"shared_prefix": 0.9, "prompt_length": 8192}, {"shared_prefix": 0}),
    ],
)
def test_what_delayed_the_first_token_is_among_the_first_two(
    catalog: Catalog, cause: str, planned: dict[str, object], ran: dict[str, object]
) -> None:
    """The run differs from its plan by one thing: it is among the first two causes, and explains most of the gap."""
    plan = served(**planned)
    result = explained(catalog, plan, served(**{**planned, **ran}))
    assert not result.readings[0].inside, result.readings[0].words
    causes = result.explanations["cause"].tolist()
    assert cause in causes[:2], causes
    gap = result.readings[0].measured.value / result.readings[0].predicted - 1.0
    assert abs(result.explanations["remainder"][causes.index(cause)]) < 0.3 * abs(gap)


def test_a_first_token_ten_times_late_has_causes_that_explain_it(command: Command, tmp_path: Path) -> None:
    """2 s beside 0.1 s. Before, no candidate came near: the first left six times the prediction."""
    plans, log = tmp_path / "plans.csv", tmp_path / "bench.json"
    plans.write_text(",".join(name.replace("_", " ") for name in PLAN) + "\n" + ",".join(map(str, PLAN.values())))
    log.write_text(json.dumps({"backend": "vllm", "median_ttft_ms": 2000.0, "median_tpot_ms": 17.5}))
    outcome = command("diagnose", plans, "--log", log, "-o", tmp_path / "why.json")
    assert outcome.code == 0 and "contradicts" not in outcome.err
    assert "measured ttft median" in outcome.err and "; predicted ttft median" in outcome.err  # not with the mean
    rows = json.loads((tmp_path / "why.json").read_text())
    assert {"waiting for a place", "smaller prefill chunks"} <= {row["cause"] for row in rows[:3]}
    assert sum(row["probability"] for row in rows) > 0.8


@pytest.mark.parametrize(
    "report",
    [
        "Backend:                                 sglang    \nMedian TTFT (ms):    110.0\n",
        json.dumps({"backend": "sglang", "median_ttft_ms": 110.0}),
    ],
    ids=["text", "JSON"],
)
def test_a_report_of_another_engine_is_said_to_be(command: Command, tmp_path: Path, report: str) -> None:
    plans, log = tmp_path / "plans.csv", tmp_path / "bench.log"
    log.write_text(report)
    for software, contradicts in (("vllm", True), ("sglang", False)):
        row = {**PLAN, "software": software, "software_release": ""}
        plans.write_text(",".join(name.replace("_", " ") for name in row) + "\n" + ",".join(map(str, row.values())))
        outcome = command("diagnose", plans, "--log", log)
        words = "bench.log: contradicts the plan: it is of SGLang, the plan is for vLLM"
        assert (words in outcome.err) == contradicts


def test_numbers_relative_to_the_requests_in_flight_follow_the_plan() -> None:
    change = next(one for one in changes("inference") if one.columns == ("run_requests",) and one.value == "flight2")
    assert change.words == "run requests 2 x those in flight"
    assert change.made_on("inference", {"concurrency": np.array([3.0, 64.0])})["run_requests"].tolist() == [6.0, 128.0]
    assert np.isnan(change.made_on("inference", {"prompt_length": np.array([1.0])})["run_requests"]).all()
