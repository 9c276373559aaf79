"""The release of an engine keys the calibration: published runs of old releases, by the newest name and a release."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.engine import evaluate

COMMON = {"num_accelerators": 8, "tensor_parallel": 8, "precision": "fp8", "mode": "continuous"}


def of_releases(catalog: Catalog, plan: Mapping[str, Any], *releases: str) -> list[dict[str, float]]:
    rows = [[*{**COMMON, **plan, "software_release": release}.values()] for release in releases]
    result = evaluate(table_from_rows("inference", [*COMMON, *plan, "software_release"], rows), catalog)
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


def test_a_measured_release_by_name_and_by_number_is_the_same(catalog: Catalog) -> None:
    plan = {"model": "Meta-Llama-3.1-8B", "accelerator": "H100-SXM-80GB", "prompt_length": 500, "output_length": 100,
            "concurrency": 16}  # fmt: skip
    named = of_releases(catalog, {**plan, "software": "vllm-0.6"}, "")
    assert of_releases(catalog, {**plan, "software": "vllm"}, "0.6.6.post1") == named
