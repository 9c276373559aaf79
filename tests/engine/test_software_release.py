"""The release of an engine keys the calibration: published runs of old releases, by the newest name and a release."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.engine import evaluate

COMMON = {"num_accelerators": 8, "tensor_parallel": 8, "precision": "fp8", "mode": "continuous"}


def of_releases(catalog: Catalog, plan: Mapping[str, Any], *releases: str) -> list[dict[str, float]]:
    rows = [{**COMMON, **plan, "software_release": release} for release in releases]
    table = table_from_rows("inference", [*rows[0]], [[*row.values()] for row in rows])
    result = evaluate(table, catalog)
    names = ("tpot", "tpot_low", "tpot_high", "tokens_per_second")
    return [{name: float(result.number(name)[row]) for name in names} for row in range(len(rows))]


def test_sglang_of_early_2025_decodes_latent_attention_slowly(catalog: Catalog) -> None:
    """DeepSeek-V3 on eight H200: 30 to 35 token/s for one request, 98 predicted for the newest [sglang issue 3196]."""
    plan = {"model": "DeepSeek-V3", "accelerator": "H200-SXM-141GB", "software": "sglang", "prompt_length": 1000,
            "output_length": 500, "concurrency": 1}  # fmt: skip
    early, late = of_releases(catalog, plan, "0.4.2", "")
    assert 30.0 <= early["tokens_per_second"] <= 35.0
    assert late["tokens_per_second"] > 80.0


def test_vllm_until_half_a_year_2024_waits_for_its_server(catalog: Catalog) -> None:
    """Llama 3.1 405B in FP8 on eight H100, 32 requests of 128 + 512 tokens: 335 token/s [vllm issue 8244]."""
    plan = {"model": "Meta-Llama-3.1-405B", "accelerator": "H100-SXM-80GB", "software": "vllm", "prompt_length": 128,
            "output_length": 512, "concurrency": 32, "run_requests": 32, "wide_attention": "yes"}  # fmt: skip
    early, late = of_releases(catalog, plan, "0.5.5", "")
    assert early["tokens_per_second"] == pytest.approx(335.0, rel=0.1)
    assert early["tpot_low"] < 1e-3 * 95.0 < early["tpot_high"]
    assert late["tokens_per_second"] > 2.0 * early["tokens_per_second"]


def test_few_rows_fill_short_tiles_of_newer_libraries(catalog: Catalog) -> None:
    """One request in 16 bits on an H20, which has much bandwidth for its arithmetic: Qwen3-8B by SGLang 0.4.6 takes
    12.2 ms a token [QwenLM/Qwen3 speed benchmark], 27B of the newest 17.1 [bytedance-iaas/sglang pull request 753].
    """
    plan = {"accelerator": "H20-96GB", "software": "sglang", "prompt_length": 1000, "output_length": 200,
            "num_accelerators": 1, "tensor_parallel": 1, "precision": "bf16", "concurrency": 1}  # fmt: skip
    (early,) = of_releases(catalog, {**plan, "model": "Qwen3-8B"}, "0.4.6.post1")
    assert early["tpot"] == pytest.approx(12.2e-3, rel=0.1)
    (late,) = of_releases(catalog, {**plan, "model": "Qwen3.5-27B"}, "")
    assert late["tpot"] == pytest.approx(17.1e-3, rel=0.15)


def test_a_measured_release_by_name_and_by_number_is_the_same(catalog: Catalog) -> None:
    plan = {"model": "Meta-Llama-3.1-8B", "accelerator": "H100-SXM-80GB", "prompt_length": 500, "output_length": 100,
            "concurrency": 16}  # fmt: skip
    named = of_releases(catalog, {**plan, "software": "vllm-0.6"}, "")
    assert of_releases(catalog, {**plan, "software": "vllm"}, "0.6.6.post1") == named


def test_engines_of_early_2025_ran_deepseek_slowly_whichever_it_was(catalog: Catalog) -> None:
    """DeepSeek-V3 on 16 H100, one request: vLLM 0.7 30 token/s [SGLang issue 3656], TensorRT-LLM 0.17 23 [its issue
    2786]. Later releases of vLLM still wait between the two machines, as SGLang of July 2025 does (43 token/s).
    """
    plan = {"model": "DeepSeek-V3", "accelerator": "H100-SXM-80GB", "num_accelerators": 16, "tensor_parallel": 16,
            "prompt_length": 512, "output_length": 512, "concurrency": 1}  # fmt: skip
    for engine, release, measured, gain in (("vllm", "0.7.2", 30.0, 1.15), ("tensorrt-llm", "0.17.0", 22.7, 1.5)):
        early, late = of_releases(catalog, {**plan, "software": engine}, release, "")
        assert early["tokens_per_second"] == pytest.approx(measured, rel=0.25)
        assert late["tokens_per_second"] > gain * early["tokens_per_second"]


def test_layers_of_experts_scaled_by_blocks_take_longest_in_tensorrt_llm_on_hopper(catalog: Catalog) -> None:
    """DeepSeek-V3 on eight H200, 4 requests: 10.3 ms a token with SGLang 0.5.9, 13.8 with TensorRT-LLM 1.1 (InferenceX
    of November 2025 and March 2026).
    """
    plan = {"model": "DeepSeek-V3", "accelerator": "H200-SXM-141GB", "prompt_length": 922, "output_length": 922,
            "concurrency": 4}  # fmt: skip
    (sglang,) = of_releases(catalog, {**plan, "software": "sglang"}, "0.5.9")
    (tensorrt,) = of_releases(catalog, {**plan, "software": "tensorrt-llm"}, "1.1.0")
    assert sglang["tpot"] == pytest.approx(10.3e-3, rel=0.1) and tensorrt["tpot"] == pytest.approx(13.8e-3, rel=0.1)


def test_flashattention_3_of_sglang_came_in_2025(catalog: Catalog) -> None:
    """Llama 3.1 8B on an H200, prompts of 32,000: releases before 0.4.5.post1 prefill with FlashAttention-2."""
    plan = {"model": "Meta-Llama-3.1-8B", "accelerator": "H200-SXM-141GB", "software": "sglang", "num_accelerators": 1,
            "tensor_parallel": 1, "prompt_length": 32000, "output_length": 100, "concurrency": 50}  # fmt: skip
    early, late = of_releases(catalog, plan, "0.4.4", "0.4.9")
    assert late["tokens_per_second"] > 1.1 * early["tokens_per_second"]


def test_all_reduces_between_machines_wait_for_the_host(catalog: Catalog) -> None:
    """DeepSeek-R1 on 16 H100 of two machines. SGLang 0.5.8, prompts of 1,024: 17.0, 20.3 and 29.8 ms a token for 1, 8
    and 32 requests [aiconfigurator 095f58a5]. July 2025, one request of 2,048 + 128 tokens: 23.3 ms, and 31.2 ms (C31)
    in another table [tt-inference-server issue 356].
    """
    plan = {"model": "DeepSeek-R1", "accelerator": "H100-SXM-80GB", "num_accelerators": 16, "tensor_parallel": 16,
            "prompt_length": 2048, "output_length": 128, "concurrency": 1}  # fmt: skip
    (newest,), (vllm,) = (of_releases(catalog, {**plan, "software": name}, "") for name in ("sglang", "vllm"))
    (early,) = of_releases(catalog, {**plan, "software": "sglang"}, "0.4.8")
    assert early["tpot"] == pytest.approx(0.0233, rel=0.05)
    assert max(newest["tpot_low"], vllm["tpot_low"]) < 0.0312 < min(newest["tpot_high"], vllm["tpot_high"])
    for requests, measured in ((1, 0.0170), (8, 0.0203), (32, 0.0298)):
        load = {"prompt_length": 1024, "output_length": 8192, "concurrency": requests, "software": "sglang"}
        (served,) = of_releases(catalog, {**plan, **load}, "0.5.8")
        assert served["tpot"] == pytest.approx(measured, rel=0.12)


def test_nemo_without_a_release_is_its_newest_stack(catalog: Catalog) -> None:
    """B99: Qwen3-30B-A3B on 16 H100, EP2, micro batches of 8, full recomputation: 14.44 s in the mean of 3,000 steps
    [Megatron-Bridge issue 949]. Experts of NeMo 2 were measured with 1 to 8 a rank.
    """
    plan = {"model": "Qwen3-30B-A3B", "accelerator": "H100-SXM-80GB", "num_accelerators": 16, "pipeline_parallel": 2,
            "virtual_pipeline": 2, "expert_parallel": 2, "micro_batch_size": 8, "global_batch_size": 512,
            "sequence_length": 4096, "recompute": "full", "cross_entropy": "fused"}  # fmt: skip
    named = (("nemo", ""), ("nemo-bridge", ""), ("nemo", "25.09"), ("nemo", "25.04"))
    rows = [{**plan, "software": software, "software_release": release} for software, release in named]
    result = evaluate(table_from_rows("training", [*rows[0]], [[*row.values()] for row in rows]), catalog)
    times = result.number("step_time").tolist()
    assert times[0] == times[1] == times[2] != times[3]
    assert times[0] == pytest.approx(14.44, rel=0.15)
    assert result.number("step_time_low")[0] < 14.44 < result.number("step_time_high")[0]


STEP = ("time_matrix", "time_attention", "time_vector", "time_communication", "time_overhead")


@pytest.mark.parametrize(
    ("case", "release", "before"),
    [
        ({"model": "DeepSeek-V3", "accelerator": "H200-SXM-141GB", "software": "sglang", "prompt_length": 1000,
          "output_length": 500, "concurrency": 1}, "0.4.4", "sglang before 0.4.5.post1"),
        ({"model": "Meta-Llama-3.1-405B", "accelerator": "H100-SXM-80GB", "software": "vllm", "prompt_length": 128,
          "output_length": 512, "concurrency": 32, "run_requests": 32, "wide_attention": "yes"}, "0.5.5",
         "vllm before 0.6"),
    ],
    ids=["C29", "C37"],
)  # fmt: skip
def test_a_plan_without_a_release_says_how_fast_an_earlier_one_was(
    catalog: Catalog, case: Mapping[str, Any], release: str, before: str
) -> None:
    """Shared cases C29 and C37: right for their release, and not for the newest, which a plan without one means."""
    rows = [{**COMMON, **case, "software_release": each} for each in ("", release)]
    result = evaluate(table_from_rows("inference", [*rows[0]], [[*row.values()] for row in rows]), catalog)
    now, then = (1e3 * sum(float(result.number(name)[row]) for name in STEP) for row in (0, 1))
    unstated, stated = result.text("reason").tolist()
    assert unstated.count("no release is stated, so the newest is meant") == 1
    said = re.search(rf"{re.escape(before)} takes ([\d.]+) ms for a decode step, not ([\d.]+)", unstated)
    assert said is not None
    assert [float(number) for number in said.groups()] == [pytest.approx(value, rel=0.01) for value in (then, now)]
    assert "release" not in stated


@pytest.mark.parametrize(
    ("model", "accelerator", "named"),
    [
        ("DeepSeek-V3", "H200-SXM-141GB", True),
        ("DeepSeek-V3", "B200-SXM-180GB", False),
        ("Meta-Llama-3.1-70B", "H200-SXM-141GB", False),
    ],
)
def test_only_a_recent_release_that_runs_on_the_accelerator_and_differs_by_a_tenth_is_named(
    catalog: Catalog, model: str, accelerator: str, named: bool
) -> None:
    """TensorRT-LLM before 0.18 ran DeepSeek-V3 slowly and not on Blackwell; 0.8, for large batches, is of 2024."""
    row = {**COMMON, "model": model, "accelerator": accelerator, "software": "tensorrt-llm",
           "prompt_length": 1024, "output_length": 1024, "concurrency": 128}  # fmt: skip
    reason = evaluate(table_from_rows("inference", [*row], [[*row.values()]]), catalog).text("reason")[0]
    assert ("tensorrt-llm before 0.18 takes" in reason) == named
    assert "before 0.8" not in reason
