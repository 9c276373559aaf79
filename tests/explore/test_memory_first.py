"""Memory from the smallest micro batch up, then the best bounds: equal to the evaluation of every plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_plans import TRAIN, plan
from work import examples

from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.tables import fitting
from xlperf.engine.training import BOUNDED
from xlperf.explore import search as search_module
from xlperf.explore.candidates import Bounds, by_bounds, by_kernels, candidates, codes_of, fits_of
from xlperf.explore.objectives import limits_of, objective_of
from xlperf.explore.search import search

AUTO = ("tensor parallel", "pipeline parallel", "context parallel", "virtual pipeline", "micro batch size",
        "pipeline schedule", "recompute", "zero stage", "sequence parallel")  # fmt: skip
SPACES = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["Llama3-70B", "Mixtral-8x7B", "GPT3-13B", "Qwen3-30B-A3B"]),
        "accelerator": st.sampled_from(["A100-SXM4-80GB", "H200-SXM-141GB", "TPUv5p"]),
        "num accelerators": st.sampled_from([8, 16, 32]),
        "global batch size": st.sampled_from([16, 24, 64]),
        "sequence length": st.sampled_from([2048, 8192]),
        "software": st.sampled_from(["megatron", "torchtitan", "torch-fsdp", "maxtext"]),
        "gradient accumulation": st.sampled_from(["", "whole"]),
        "offload optimizer": st.sampled_from([0, 0, 1]),
    }
)
PASSES: list[dict[str, Any]] = [
    {},
    {"precision": "fp8", "accelerator": "H200-SXM-141GB"},
    {"precision": "fp8", "accelerator": "H200-SXM-141GB", "reshard after forward": "yes", "quantized copies": "kept"},
    {"gradient accumulation": "separate"},
    {"offload activations": 0.5},
    {"expert overlap": "yes", "model": "Mixtral-8x7B"},
    {"recompute modules": "mlp norm core_attention"},
    {"recompute layers": 2},
    {"attention": "standard"},
    {"adapter rank": 16, "model": "Llama3-70B"},
    {"graphs": "step"},
    {"power limit": 300},
]
"""Settings by which passes depend on recomputation or on gradients."""
MOST: Bounds = {"most": 200_000, "most_accelerators": 64}


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


@settings(max_examples=examples(12))
@given(SPACES, st.sets(st.sampled_from(sorted({*AUTO} - {"micro batch size"})), min_size=2, max_size=6))
def test_micro_batches_beyond_the_first_stage_that_does_not_fit_do_not_fit(
    catalog: Catalog, base: dict[str, Any], names: set[str]
) -> None:
    """No plan is lost or added, its memory is the same, and memory of first and last stage only rises."""
    plans = candidates(plan(base, *sorted({*names, "micro batch size"})), catalog, **MOST).plans
    whole = fitting(plans, catalog)
    assert whole is not None
    fits, reserved = fits_of(plans, catalog)
    assert ((fits == 1.0) == (whole["fits"] == 1.0)).all()
    assert (reserved[fits == 1.0] == whole["memory_reserved"][fits == 1.0]).all()
    group = codes_of(plans, [name for name in plans.columns if name != "micro_batch_size"])
    order = np.lexsort((plans["micro_batch_size"], group))
    alike = (group[order[1:]] == group[order[:-1]]) & (np.append(group[order[2:]], -1) == group[order[1:]])
    ends = np.fmax(whole["memory_first_stage"], whole["memory_last_stage"])[order]
    assert not (ends[1:] < ends[:-1] * (1.0 - 1e-12))[alike].any()


@settings(max_examples=examples(16))
@given(
    SPACES,
    st.sampled_from([1, 3, None]),
    st.sampled_from(["", "mfu", "throughput", "hfu", "cost", "memory"]),
    st.sampled_from(["", "memory<=60", "mfu>=0.3"]),
)
def test_search_returns_what_it_returns_without_memory_and_bounds_first(
    catalog: Catalog, base: dict[str, Any], top: int | None, objective: str, limit: str
) -> None:
    """The same plans in the same order, ties included, with the same results and counts."""
    asked, limits = plan(base, *AUTO[:1], *AUTO[4:8]), limits_of("training", [limit] if limit else [])
    found = {}
    for first, few in ((1, 16), (10**9, 10**9)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(search_module, "MEMORY_FIRST", first)
            patch.setattr(search_module, "FIRST", few)
            found[first] = search(asked, catalog, objective, limits, top=top, **MOST)
    fast, slow = found.values()
    assert (fast.num_tried, fast.num_legal, fast.num_fit, fast.num_good) == (
        slow.num_tried, slow.num_legal, slow.num_fit, slow.num_good,
    )  # fmt: skip
    assert fast.plans.columns.keys() == slow.plans.columns.keys()
    for one, other in ((fast.plans, slow.plans), (fast.results, slow.results)):
        for name in other.columns:
            assert np.array_equal(one[name], other[name], equal_nan=other[name].dtype != object), name


@settings(max_examples=examples(16))
@given(SPACES, st.sampled_from([*PASSES]), st.sets(st.sampled_from(AUTO), min_size=2, max_size=5))
def test_no_result_is_better_than_its_bound(
    catalog: Catalog, base: dict[str, Any], more: dict[str, Any], names: set[str]
) -> None:
    """Nor are results of plans whose kernels, waits or transfers depend on recomputation or on the stage of ZeRO."""
    plans = candidates(plan({**base, **more}, *sorted({*names, "recompute", "zero stage"})), catalog, **MOST).plans
    every, results = np.arange(len(plans)), evaluate(plans, catalog)
    for name in BOUNDED:
        objective = objective_of("training", name)
        rows, least = by_bounds(plans, catalog, every, objective)
        assert least is not None
        assert sorted(rows.tolist()) == every.tolist()
        assert not (objective.loss(results)[rows] < least).any(), name
    assert by_bounds(plans, catalog, every, objective_of("training", "hfu"))[1] is None


def test_plans_that_their_bounds_exclude_are_not_evaluated(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[int] = []
    of_plans = search_module.numbers

    def counted(plans: Table, *more: Any) -> Table | None:
        evaluated.append(len(plans))
        return of_plans(plans, *more)

    for name, value in (("MEMORY_FIRST", 1), ("FIRST", 64), ("numbers", counted)):
        monkeypatch.setattr(search_module, name, value)
    asked = plan(TRAIN, *AUTO)
    result = search(asked, catalog, **MOST)
    assert sum(evaluated) < 0.5 * result.num_fit


def test_order_of_evaluation_changes_no_result(catalog: Catalog) -> None:
    plans = candidates(plan(TRAIN, *AUTO), catalog, **MOST).plans
    rows = np.arange(0, len(plans), 7)
    order = by_kernels(plans, rows)
    assert sorted(order.tolist()) == rows.tolist()
    left, right = evaluate(plans.take(rows), catalog), evaluate(plans.take(order), catalog)
    assert np.array_equal(left["step_time"][np.searchsorted(rows, order)], right["step_time"], equal_nan=True)
