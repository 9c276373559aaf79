"""The search against every combination of values, on random small spaces: nothing better is missed."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from work import examples

from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.engine import evaluate
from xlperf.equations.plan.records import Rule
from xlperf.explore.candidates import KINDS, candidates
from xlperf.explore.mappings import Counts, server_sizes, sold_counts, thinned
from xlperf.explore.objectives import limits_of
from xlperf.explore.search import search
from xlperf.explore.solve import solve_plan
from xlperf.explore.space import divisors

COUNTS = st.sampled_from([1, 2, 4, 6, 8])
EIGHT = [float(number) for number in range(1, 9)]
BATCHES = [float(number) for number in range(1, 13)]
TRAINING: dict[str, list[Any]] = {
    "tensor_parallel": EIGHT,
    "pipeline_parallel": EIGHT,
    "virtual_pipeline": [float(number) for number in range(1, 24)],
    "context_parallel": EIGHT,
    "data_parallel": EIGHT,
    "expert_parallel": EIGHT,
    "expert_tensor_parallel": EIGHT,
    "micro_batch_size": BATCHES,
    "recompute": ["none", "selective", "full"],
    "zero_stage": [0, 1, 2, 3],
    "sequence_parallel": ["yes", "no"],
    "pipeline_schedule": ["1f1b", "interleaved", "gpipe", "zero-bubble", "dualpipe"],
    "context_method": ["ring", "all-gather", "ulysses"],
}
INFERENCE: dict[str, list[Any]] = {
    "tensor_parallel": EIGHT,
    "pipeline_parallel": EIGHT,
    "context_parallel": EIGHT,
    "expert_parallel": EIGHT,
    "data_parallel_attention": EIGHT,
    "context_method": ["ring", "all-gather"],
    "expert_dispatch": ["ranks", "nodes"],
    "two_batch_overlap": ["yes", "no"],
}
NUMBER = examples(12)
"""Random spaces of each law; more: ``XLPERF_LAWS=500``."""
POOLED = {
    **INFERENCE,
    "prefill_tensor_parallel": EIGHT,
    "prefill_pipeline_parallel": EIGHT,
    "prefill_accelerators": EIGHT,
}
SOLD = {  # powers of two, parts of a server and whole ones
    "H200-SXM-141GB": [1, 2, 4, 8, 16, 24, 32, 40],
    "GB200-NVL72": [1, 2, 3, 4, 6, 8, 9, 12, 16, 18, 24, 32, 36, 64, 72],
}


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def assert_nothing_is_missed(
    catalog: Catalog, kind: str, base: dict[str, Any], domains: dict[str, list[Any]], objective: str
) -> None:
    """The search finds what evaluating all combinations finds, legal or not."""
    fixed = {name: value for name, value in base.items() if name not in domains and value is not None}
    header = [*fixed, *domains]
    asked = table_from_rows(kind, header, [[*fixed.values(), *("auto" for _ in domains)]])
    result = search(asked, catalog, objective)
    every = table_from_rows(kind, header, [[*fixed.values(), *values] for values in product(*domains.values())])
    results = evaluate(every, catalog)
    good = (results["fits"] == 1.0) & ~np.isnan(results[objective])
    assert result.found == bool(good.any())
    if result.found:
        assert result.results[objective][0] == results[objective][good].min()
        assert result.num_legal <= int((~np.isnan(results["memory"])).sum())
        assert evaluate(result.plans, catalog)[objective].tolist() == result.results[objective].tolist()


@settings(max_examples=NUMBER)
@given(
    st.sampled_from(["Meta-Llama-3.1-8B", "Mixtral-8x7B", "GPT3-13B"]),
    COUNTS,
    st.sampled_from([4, 12]),
    st.sampled_from([1024, 6144]),
    st.sampled_from([None, 1, 2]),
    st.sampled_from([None, "interleaved", "dualpipe"]),
    st.sets(st.sampled_from(sorted(TRAINING)), min_size=1, max_size=3),
)
def test_no_training_plan_is_missed(
    catalog: Catalog,
    model: str,
    count: int,
    batch: int,
    length: int,
    replicas: int | None,
    schedule: str | None,
    names: set[str],
) -> None:
    base = {
        "model": model, "accelerator": "H200-SXM-141GB", "num_accelerators": count, "global_batch_size": batch,
        "sequence_length": length, "data_parallel": replicas, "pipeline_schedule": schedule,
    }  # fmt: skip
    domains = {name: TRAINING[name] for name in sorted(names)}
    assert_nothing_is_missed(catalog, "training", base, domains, "step_time")


@settings(max_examples=NUMBER)
@given(
    st.sampled_from(["Meta-Llama-3.1-8B", "Mixtral-8x7B", "Qwen3-30B-A3B"]),
    COUNTS,
    st.sampled_from([64, 1000]),
    st.sampled_from([1, 12]),
    st.sampled_from(["static", "continuous", "disaggregated"]),
    st.data(),
)
def test_no_inference_plan_is_missed(
    catalog: Catalog, model: str, count: int, prompt: int, concurrency: int, mode: str, data: st.DataObject
) -> None:
    base = {
        "model": model, "accelerator": "H200-SXM-141GB", "num_accelerators": count, "prompt_length": prompt,
        "output_length": 100, "concurrency": concurrency, "mode": mode,
    }  # fmt: skip
    known = POOLED if mode == "disaggregated" else INFERENCE
    names = data.draw(st.sets(st.sampled_from(sorted(known)), min_size=1, max_size=3))
    assert_nothing_is_missed(catalog, "inference", base, {name: known[name] for name in sorted(names)}, "latency")


def counted(catalog: Catalog, kind: str, base: dict[str, Any], degrees: list[str], limit: str) -> None:
    """Search, solve and every number of accelerators by hand give one answer."""
    counts = SOLD[base["accelerator"]]
    fixed = {name: value for name, value in base.items() if value is not None and name not in degrees}
    header = ["num_accelerators", *fixed, *degrees]
    asked = table_from_rows(kind, header, [["auto", *fixed.values(), *("auto" for _ in degrees)]])
    bounds = limits_of(kind, [limit])
    options = {"limits": bounds, "most_accelerators": counts[-1]}
    result = search(asked, catalog, top=None, **options)
    fewest = search(asked, catalog, "num accelerators", **options)
    solved = solve_plan(asked, catalog, "num_accelerators", None, bounds, most_accelerators=counts[-1])
    values = [divisors(*map(float, counts))] * len(degrees)
    every = table_from_rows(
        kind, header, [[count, *fixed.values(), *rest] for count in counts for rest in product(*values)]
    )
    results = evaluate(every, catalog)
    loss = result.objective.loss(results)
    good = (results["fits"] == 1.0) & bounds[0].kept(results) & ~np.isnan(loss)
    assert result.found == fewest.found == solved.found == bool(good.any())
    assert result.counts is not None
    assert result.counts.sold.tolist() == counts
    if result.found:
        least = every["num_accelerators"][good].min()
        assert solved.value == fewest.plans["num_accelerators"][0] == least == result.plans["num_accelerators"].min()
        assert result.objective.loss(result.results)[0] == loss[good].min()
        assert f"{len(counts)} numbers of accelerators from 1 to {counts[-1]} tried" in result.words


@settings(max_examples=NUMBER)
@given(
    st.sampled_from(["Meta-Llama-3.1-8B", "Mixtral-8x7B", "DeepSeek-V3"]),
    st.sampled_from(sorted(SOLD)),
    st.sampled_from([1, 200, 3000, 20000]),
    st.sampled_from(["static", "continuous", "disaggregated"]),
    st.sampled_from(["tpot<=10", "tpot<=30", "tpot<=100", "ttft<=2000"]),
    st.sampled_from(["tensor_parallel", "expert_parallel", "data_parallel_attention"]),
)
def test_fewest_accelerators_of_a_service_are_those_of_brute_force(
    catalog: Catalog, model: str, accelerator: str, users: int, mode: str, limit: str, other: str
) -> None:
    base = {
        "model": model, "accelerator": accelerator, "prompt_length": 1000, "output_length": 100, "concurrency": users,
        "mode": mode, "precision": "fp8", "data_parallel_attention": 1,
    }  # fmt: skip
    counted(catalog, "inference", base, sorted({other, "tensor_parallel"}), limit)


@settings(max_examples=NUMBER)
@given(
    st.sampled_from(["Meta-Llama-3.1-8B", "Mixtral-8x7B", "GPT3-13B"]),
    st.sampled_from(sorted(SOLD)),
    st.sampled_from([48, 72, 128]),
    st.sampled_from(["step time<=2", "step time<=8", "step time<=40"]),
    st.sets(st.sampled_from(["tensor_parallel", "pipeline_parallel", "expert_parallel"]), max_size=2),
)
def test_fewest_accelerators_of_a_training_are_those_of_brute_force(
    catalog: Catalog, model: str, accelerator: str, batch: int, limit: str, degrees: set[str]
) -> None:
    base = {
        "model": model, "accelerator": accelerator, "global_batch_size": batch, "sequence_length": 4096,
        "recompute": "full", "tensor_parallel": 2, "pipeline_parallel": None, "zero_stage": 1,
    }  # fmt: skip
    counted(catalog, "training", base, sorted(degrees), limit)


@pytest.mark.parametrize("users", [10_000, 50_000])
def test_large_loads_have_the_fewest_whole_servers(catalog: Catalog, users: int) -> None:
    row = {
        "model": "DeepSeek-V3", "accelerator": "H200-SXM-141GB", "num_accelerators": "auto", "tensor_parallel": 8,
        "expert_parallel": 8, "data_parallel_attention": 8, "precision": "fp8", "prompt_length": 2000,
        "output_length": 500, "concurrency": users, "mode": "continuous",
    }  # fmt: skip
    asked = table_from_rows("inference", list(row), [list(row.values())])
    bounds = limits_of("inference", ["tpot<=70"])
    whole = search(asked, catalog, "num accelerators", bounds)
    assert whole.found
    servers = np.arange(8.0, 16_385.0, 8.0)
    every = table_from_rows(
        "inference", list(row), [[*list(row.values())[:2], n, *list(row.values())[3:]] for n in servers]
    )
    good = bounds[0].kept(evaluate(every, catalog))
    assert whole.plans["num_accelerators"][0] == servers[good][0]
    assert "all 2,051 numbers of accelerators from 1 to 16,384 tried" in whole.words
    # in steps, then next to the best: the same
    steps = search(asked, catalog, "num accelerators", bounds, most=2_000)
    assert steps.plans["num_accelerators"][0] == servers[good][0]
    assert steps.num_tried < 300
    assert "of 2,051 numbers of accelerators from 1 to 16,384 tried, all next to the best" in steps.words
    few = search(asked, catalog, "num accelerators", bounds, most_accelerators=64)
    assert not few.found
    assert "from 1 to 64 tried" in few.words


def test_numbers_that_machines_are_sold_in(catalog: Catalog) -> None:
    assert sold_counts(8.0, np.inf, 40.0).tolist() == SOLD["H200-SXM-141GB"]
    assert sold_counts(72.0, np.inf, 72.0).tolist() == SOLD["GB200-NVL72"]
    names = ["TPUv4", "TPUv5e", "H100-SXM-80GB", "H100-PCIe-80GB"]
    rows = [["GPT3-13B", name, 8, "GH200-NVL32" if "PCIe" in name else ""] for name in names]
    table = table_from_rows("training", ["model", "accelerator", "num_accelerators", "network"], rows)
    units, totals = server_sizes(table, catalog)
    assert units.tolist() == [64.0, 256.0, 8.0, 32.0]
    assert totals.tolist() == [4096.0, 65536.0, 65536.0, 65536.0]  # slices of v5e meet in the data-centre network
    sold = sold_counts(8.0, np.inf, 16_384.0)
    for step in (1.02, 1.1, 1.5, 2.0):
        tried = thinned(sold, step)
        assert {2.0**power for power in range(15)} <= set(tried.tolist()) <= set(sold.tolist())
        result = Counts(sold, tried, 8.0)
        for count in tried.tolist():  # next to each there is nothing else once it is tried
            near = result.also(result.between(count))
            assert len(near.between(count)) == 0


def test_candidates_keep_the_rules_of_the_engine_by_themselves(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = ["model", "accelerator", "num_accelerators", "global_batch_size", "zero_stage", *sorted(TRAINING)[:6]]
    header = list(dict.fromkeys([*header, "pipeline_parallel", "tensor_parallel", "micro_batch_size"]))
    fixed = {"model": "Mixtral-8x7B", "accelerator": "H200-SXM-141GB", "num_accelerators": 8, "global_batch_size": 12}
    plan = table_from_rows("training", header, [[{**fixed, "zero_stage": 2}.get(name, "auto") for name in header]])
    tried = candidates(plan, catalog).plans
    assert not np.isnan(evaluate(tried, catalog)["memory"]).any()
    refused = Rule[Any](lambda plan, _: plan.tensor_parallel == 2.0, "a rule that the engine got today")
    cross, rules = KINDS["training"]
    monkeypatch.setitem(KINDS, "training", (cross, [*rules, (rules[0][0], refused)]))
    fewer = candidates(plan, catalog).plans
    assert len(fewer) == int((tried["tensor_parallel"] != 2.0).sum()) < len(tried)
