"""Operators of a plan: whole times beside exposed ones, which add up to the step, the first token and each token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from work import examples

from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate, explain

H100, H200 = "H100-SXM-80GB", "H200-SXM-141GB"
DEGREE = st.sampled_from([1, 2, 4])


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def plan(kind: str, row: dict[str, Any]) -> Table:
    return table_from_rows(kind, list(row), [list(row.values())])


def assert_sound(operators: Table) -> None:
    total, exposed = operators.number("total_time"), operators.number("exposed_time")
    assert (total == operators.number("calls") * operators.number("time")).all()
    alike = operators.text("phase") != "communication"  # of two messages of one kind either may be hidden
    alike &= operators.text("bound") != "network"
    assert exposed[alike].tolist() == total[alike].tolist(), "kernels and waiting are exposed whole"
    assert (exposed[operators.text("phase") != "waiting"] >= 0.0).all()


@settings(max_examples=examples(20))
@given(
    st.sampled_from(["Meta-Llama-3.1-8B", "Mixtral-8x7B", "GPT3-13B", "DeepSeek-V3", "Gemma-3-27B"]),
    st.fixed_dictionaries(
        {
            "tensor_parallel": DEGREE,
            "pipeline_parallel": DEGREE,
            "virtual_pipeline": st.sampled_from([1, 1, 2]),
            "context_parallel": DEGREE,
            "expert_parallel": DEGREE,
            "context_method": st.sampled_from(["ring", "all-gather"]),
            "zero_stage": st.sampled_from([0, 1, 3]),
            "sequence_parallel": st.sampled_from(["yes", "no"]),
            "recompute": st.sampled_from(["none", "selective", "full"]),
            "precision": st.sampled_from(["bf16", "fp8"]),
            "expert_overlap": st.sampled_from(["yes", "no"]),
            "pipeline_schedule": st.sampled_from(["1f1b", "1f1b", "zero-bubble", "dualpipe"]),
        }
    ),
)
def test_exposed_times_of_a_step_add_up(catalog: Catalog, model: str, degrees: dict[str, Any]) -> None:
    row = {
        "model": model, "accelerator": H100, "num_accelerators": 64, "global_batch_size": 512,
        "sequence_length": 4096, **degrees,
    }  # fmt: skip
    table = plan("training", row)
    step, operators = evaluate(table, catalog), explain(table, catalog)
    assert (len(operators) == 0) == bool(np.isnan(step["step_time"][0]))
    if not len(operators):
        return
    assert_sound(operators)
    exposed = operators.number("exposed_time")
    assert exposed.sum() == pytest.approx(step["step_time"][0], rel=1e-9)
    sent = operators.text("phase") == "communication"
    kinds = ("tensor_parallel", "context_parallel", "expert_parallel", "pipeline_communication", "data_parallel")
    seen = sum(float(step[f"time_{kind}"][0]) for kind in kinds)
    assert exposed[sent].sum() == pytest.approx(seen, rel=1e-9)


@pytest.mark.parametrize("model", ["Meta-Llama-3.1-8B", "Mixtral-8x7B", "DeepSeek-V3"])
@pytest.mark.parametrize("split", ["yes", "no"])
@pytest.mark.parametrize("again", ["full", "selective"])
def test_calls_of_collectives_are_those_that_a_step_waits_for(
    catalog: Catalog, model: str, split: str, again: str
) -> None:
    """Where nothing hides them, calls times the time of one are the results of the step."""
    row = {
        "model": model, "accelerator": H100, "num_accelerators": 64, "tensor_parallel": 4, "context_parallel": 2,
        "expert_parallel": 1 if "Llama" in model or split == "no" else 4, "sequence_parallel": split,
        "tensor_overlap": "none", "context_method": "all-gather", "expert_overlap": "no", "recompute": again,
        **({"recompute_modules": "mlp" if "Llama" in model else "moe"} if again == "selective" else {}),
    }  # fmt: skip
    table = plan("training", row)
    step, operators = evaluate(table, catalog), explain(table, catalog)
    assert len(operators)
    names, total = operators.text("operator"), operators.number("total_time")
    for word, result in (("tensor-parallel", "tensor"), ("expert exchange", "expert"), ("context", "context")):
        sent = np.array([str(name).startswith(word) for name in names])
        assert total[sent].sum() == pytest.approx(step[f"time_{result}_parallel"][0], rel=1e-9), word


@settings(max_examples=examples(20))
@given(
    st.sampled_from(["Meta-Llama-3.1-8B", "Mixtral-8x7B", "DeepSeek-V3", "Qwen3-30B-A3B"]),
    st.sampled_from(["static", "continuous", "disaggregated"]),
    st.fixed_dictionaries(
        {
            "tensor_parallel": st.sampled_from([1, 2, 8]),
            "pipeline_parallel": st.sampled_from([1, 2]),
            "context_parallel": st.sampled_from([1, 2]),
            "expert_parallel": st.sampled_from([1, 2, 8]),
            "data_parallel_attention": st.sampled_from([1, 2, 8]),
            "two_batch_overlap": st.sampled_from(["yes", "no"]),
            "prompt_length": st.sampled_from([128, 2000, 12000]),
            "output_length": st.sampled_from([1, 2, 300]),
            "concurrency": st.sampled_from([1, 16, 200]),
            "precision": st.sampled_from(["bf16", "fp8"]),
        }
    ),
)
def test_exposed_times_of_a_request_add_up(catalog: Catalog, model: str, mode: str, row: dict[str, Any]) -> None:
    table = plan("inference", {"model": model, "accelerator": H200, "num_accelerators": 32, "mode": mode, **row})
    served, operators = evaluate(table, catalog), explain(table, catalog)
    assert (len(operators) == 0) == bool(np.isnan(served["latency"][0]))
    if not len(operators):
        return
    assert_sound(operators)
    phase, exposed, name = operators.text("phase"), operators.number("exposed_time"), operators.text("operator")
    waits = {word: exposed[(phase == "waiting") & np.char.startswith(name.astype(str), word)].sum()
             for word in ("before the first", "between steps")}  # fmt: skip
    assert (phase == "waiting").sum() == 0 or mode != "static", "a static batch waits for nothing else"
    for side, result, word in (("prefill", "ttft", "before the first"), ("decode", "tpot", "between steps")):
        if not np.isnan(served[result][0]):
            outcome = exposed[phase == side].sum() + waits[word]
            assert outcome == pytest.approx(served[result][0], rel=1e-8)
    # what is hidden is there, and longer than what is seen
    assert (operators.number("total_time") >= exposed - 1e-12 * np.abs(exposed)).all()


def test_a_pass_at_the_limit_of_its_graphs_is_explained_as_it_is_computed(catalog: Catalog) -> None:
    """512 tokens are replayed by vLLM, 513 launched one by one, whether or not requests are decoded beside them."""
    row = {"model": "Llama3-70B", "accelerator": H100, "num_accelerators": 4, "tensor_parallel": 4,
           "output_length": 512, "concurrency": 16, "mode": "continuous", "software": "vllm"}  # fmt: skip
    whole, listed = [], []
    for length in (512, 513):
        plans = plan("inference", {**row, "prompt_length": length})
        operators = explain(plans, catalog)
        whole.append(evaluate(plans, catalog)["prefill_time"][0])
        listed.append(operators["exposed_time"][operators.text("phase") == "prefill"].sum())
    assert whole[1] > 1.1 * whole[0]
    assert listed[1] - listed[0] == pytest.approx(whole[1] - whole[0], rel=1e-3)
