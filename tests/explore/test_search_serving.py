"""Searches that compute memory first, that choose machines, counts and prices together, and stages of copies."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import csv_rows
from search_plans import SERVE, TRAIN, plan

from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.engine import evaluate
from xlperf.engine.tables import fitting
from xlperf.explore.candidates import candidates, with_mapping
from xlperf.explore.fleet_plans import crossed
from xlperf.explore.forms import answer_of
from xlperf.explore.objectives import limit_of
from xlperf.explore.search import search
from xlperf.explore.serve import serving_ways


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


@pytest.mark.parametrize(
    ("model", "accelerator", "users", "speed", "sizes", "words"),
    [  # more than a server of fast links has room for; and cards without fast links, whose prompts fill the stages
        ("Meta-Llama-3.1-405B", "A100-SXM4-80GB", 300.0, 5.0, (4.0, 8.0, 16.0), "vLLM in one pool (TP8 x PP2)"),
        ("Meta-Llama-3.1-70B", "L40S", 2000.0, 20.0, (2.0, 4.0, 8.0), "vLLM in one pool"),
    ],
)
def test_the_stages_of_a_copy_are_what_brute_force_finds(
    catalog: Catalog, model: str, accelerator: str, users: float, speed: float, sizes: tuple[float, ...], words: str
) -> None:
    """No copy of a grid with 1, 2 and 4 stages needs fewer accelerators, and the stated answer is answered alike."""
    asked = {"model": model, "accelerator": accelerator, "users": users, "speed per user": speed, "software": "vllm",
             "prompt length": 2000.0, "output length": 500.0, "ttft target": 8000.0, "precision": "bf16"}  # fmt: skip

    def form(**more: Any) -> Any:
        every = asked | {name.replace("_", " "): value for name, value in more.items()}
        return table_from_rows("serve", list(every), [list(every.values())])

    rows = [
        {"tensor parallel": size, "pipeline parallel": stages, "num accelerators": size * stages, "prefill tokens": 512}
        for size, stages in itertools.product(sizes, (1.0, 2.0, 4.0))
    ]
    shared = {name: asked[name] for name in ("model", "accelerator", "prompt length", "output length", "precision")}
    shared |= {"software": "vllm", "mode": "continuous"}
    plans = table_from_rows("inference", [*shared, *rows[0]], [[*shared.values(), *row.values()] for row in rows])
    loads = np.unique(np.round(np.geomspace(8.0, users, 60)))
    tried = crossed(plans, "concurrency", loads.tolist())
    results = evaluate(tried, catalog, results=("fits", "tpot", "ttft"))
    good = (results.number("fits") == 1.0) & (results.number("tpot") <= 1.0 / speed) & (results.number("ttft") <= 8.0)
    most = np.where(good, tried.number("concurrency"), 1e-9).reshape(len(plans), -1).max(axis=1)
    least = np.ceil(np.ceil(users / most) * plans.number("num_accelerators") / 8.0) * 8.0
    assert (least.argmin() % 3 > 0) == ("PP" in words)
    answer = answer_of(form(mode="continuous"), catalog)
    assert answer["accelerators"] <= least.min() and words in answer["answer"]
    stated = {name: answer[name] for name in ("tensor_parallel", "pipeline_parallel", "concurrency")}
    again = answer_of(form(mode="continuous", num_accelerators=answer["copy_size"], **stated), catalog)
    assert again["accelerators"] == answer["accelerators"] and answer["tpot"] <= again["tpot"] <= 1.0 / speed
    free, flat = (serving_ways(form(**more), catalog) for more in ({}, {"pipeline_parallel": 1.0}))
    assert free[0].accelerators <= flat[0].accelerators
    assert {float(way.plan.number("pipeline_parallel")[0]) for way in flat} == {1.0}
