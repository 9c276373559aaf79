"""Searches that compute memory before the rest, and that choose machines, counts and prices together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import csv_rows
from search_plans import SERVE, TRAIN, plan

from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.engine import evaluate
from xlperf.engine.tables import fitting
from xlperf.explore.candidates import candidates, with_mapping
from xlperf.explore.objectives import limit_of
from xlperf.explore.search import search


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


@pytest.mark.parametrize("mode", ["static", "continuous", "disaggregated"])
def test_memory_first_says_of_serving_plans_what_their_results_say(catalog: Catalog, mode: str) -> None:
    """Plans left out do not fit, legality and largest batches are those of the results: a search loses nothing."""
    row = {**SERVE, "model": "DeepSeek-V3", "num accelerators": 32, "mode": mode, "precision": "fp8"}
    more = ["prefill tensor parallel", "prefill accelerators"] if mode == "disaggregated" else []
    tried = candidates(plan(row, "tensor parallel", "pipeline parallel", "expert parallel", *more), catalog).plans
    for batch in (1.0, 64.0, 4096.0):
        own = replace(tried, columns={**tried.columns, "concurrency": np.full(len(tried), batch)})
        whole, memory = evaluate(own, catalog), fitting(own, catalog)
        assert memory is not None
        np.testing.assert_array_equal(memory["max_batch_size"], whole["max_batch_size"])
        np.testing.assert_array_equal(np.isnan(memory["fits"]), np.isnan(whole["fits"]))
        assert not (whole["fits"][memory["fits"] == 0.0] == 1.0).any()
        if mode == "static":
            np.testing.assert_array_equal(memory["fits"], whole["fits"])
        assert (memory["fits"] == 0.0).any() and (memory["fits"] == 1.0).any()
    rated = replace(own, columns={**own.columns, "request_rate": np.ones(len(own))})
    assert fitting(rated, catalog) is None


@pytest.mark.parametrize("concurrency", [16, 100_000, "auto"])
@pytest.mark.parametrize("memory", ["ttft<=2 s", "ttft<=1 ms"])
def test_memory_first_changes_no_answer_of_a_serving_search(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, concurrency: Any, memory: str
) -> None:
    row = {**SERVE, "model": "Meta-Llama-3.1-70B", "mode": "static", "concurrency": concurrency}
    asked = with_mapping(plan(row))
    answers = []
    for first in (1, 10**9):
        monkeypatch.setattr("xlperf.explore.search.MEMORY_FIRST", first)
        answers.append(search(asked, catalog, "throughput", [limit_of("inference", memory)], top=20))
    one, other = answers
    assert (one.kind, one.num_tried, one.num_legal, one.num_fit) == (
        other.kind, other.num_tried, other.num_legal, other.num_fit
    )  # fmt: skip
    for name, values in one.results.columns.items():
        np.testing.assert_array_equal(values, other.results[name], name)


def test_the_cheapest_cluster_within_some_days_is_that_of_brute_force(
    catalog: Catalog, tmp_path: Path, command: Any
) -> None:
    """Machines, counts and prices together, with a limit in words."""
    path = tmp_path / "plans.csv"
    path.write_text(
        "name,model,accelerator,num accelerators,global batch size,training tokens,tensor parallel\n"
        "t,Meta-Llama-3.1-8B,H100-SXM-80GB,auto,256,0.1,auto\n"
    )
    machines = ("H100-SXM-80GB", "A100-SXM4-80GB")
    asked = (
        "search", path, "--vary", f"accelerator={','.join(machines)}", "--vary", "prices.rental price=x0.5,x2",
        "--objective", "run cost", "--most-accelerators", 32, "--top", 1, "-o", "-",
    )  # fmt: skip
    done = command(*asked, "--limit", "run time at most 30 days")
    rows = csv_rows(done.out)
    assert [row["prices.rental_price"] for row in rows] == ["0.5", "2"]
    every = candidates(
        plan({**TRAIN, "global batch size": 256, "training tokens": 0.1}, "num accelerators", "tensor parallel"),
        catalog,
        {"accelerator": np.array(machines, dtype=object)},
        most_accelerators=32,
    ).plans
    results = evaluate(every, catalog)
    kept = (results["fits"] == 1.0) & (results["run_time"] <= 30 * 86400.0)
    assert 0 < kept.sum() < (results["fits"] == 1.0).sum()
    least = results["run_cost"][kept].min()
    assert [float(row["run_cost"]) for row in rows] == pytest.approx([0.5 * least, 2.0 * least])
    assert "with run time <= 30 day" in done.err and done.err.startswith("t, prices rental price x0.5: least run cost")
    none = command(*asked, "--limit", "run time within 1 hour")
    assert none.code == 1 and "none keeps run time <= 0.0416667 day" in none.err
    odd = command(*asked, "--vary", "networks.link bandwidth=x0.5..x1")
    assert odd.code == 2 and "a search needs values, not a range" in odd.err
