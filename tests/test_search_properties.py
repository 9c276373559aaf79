"""The search against every combination of values, on random small spaces: nothing better is missed."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.cells import table_from_rows
from xlperf.evaluate import evaluate
from xlperf.explore.search import search

COUNTS = st.sampled_from([1, 2, 4, 6, 8])
EIGHT = [float(number) for number in range(1, 9)]
BATCHES = [float(number) for number in range(1, 13)]
TRAINING: dict[str, list[Any]] = {
    "tensor_parallel": EIGHT,
    "pipeline_parallel": EIGHT,
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
POOLED = {
    **INFERENCE,
    "prefill_tensor_parallel": EIGHT,
    "prefill_pipeline_parallel": EIGHT,
    "prefill_accelerators": EIGHT,
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
    found = search(asked, catalog, objective)
    every = table_from_rows(kind, header, [[*fixed.values(), *values] for values in product(*domains.values())])
    results = evaluate(every, catalog)
    good = (results["fits"] == 1.0) & ~np.isnan(results[objective])
    assert found.found == bool(good.any())
    if found.found:
        assert found.results[objective][0] == results[objective][good].min()
        assert found.num_legal <= int((~np.isnan(results["memory"])).sum())
        assert evaluate(found.plans, catalog)[objective].tolist() == found.results[objective].tolist()


@settings(max_examples=60)
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


@settings(max_examples=60)
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
