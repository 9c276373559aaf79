"""Prefill of a batch: linear in the prompts at most, and no slower for what is in the cache already.

What bends these laws is the quantisation of products into tiles and waves, and the number of passes that stages of a
pipeline have to share: a little, and for few plans. A pass that outgrows the graphs of an engine waits for launches:
they hold on either side of that, all kernels launched one by one or all replayed in pieces.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from serving_plans import columns_of

import xlperf
from xlperf.base.arrays import Array
from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.parse import table_from_columns, table_from_rows
from xlperf.catalog.table import nowhere
from xlperf.engine import evaluate

pytestmark = pytest.mark.slow

NUMBER = 400
BATCHES = (1, 4, 16, 64, 256, 1024)
STATIC = ("prefill_accelerator", "prefill_accelerators", "prefill_tensor_parallel", "request_rate", "concurrency",
          "run_requests", "polling_steps", "gathering_steps", "prefill_first", "prompt_variation", "output_variation",
          "ttft_target", "tpot_target")  # fmt: skip


@cache
def columns() -> dict[str, np.ndarray]:
    drawn = {name: values for name, values in columns_of(NUMBER, seed=5).items() if name not in STATIC}
    return {**drawn, "mode": np.full(NUMBER, "static", dtype=object)}


@cache
def prefill_time(batch: float, graph_tokens: float | None = None, **changed: float) -> Array:
    """Times of the plans as drawn, or with graphs of passes of up to so many tokens where there are any."""
    given = {name: np.full(NUMBER, value) for name, value in {"batch_size": float(batch), **changed}.items()}
    if graph_tokens is not None:
        given["graph_tokens"] = np.where(columns()["graphs"] == "no", np.nan, graph_tokens)
    plans = table_from_columns("inference", {**columns(), **given}, nowhere)
    return evaluate(plans, load_catalog(), results=["prefill_time"])["prefill_time"]


@pytest.mark.parametrize("graph_tokens", [0.0, 65536.0])
def test_prefill_is_linear_in_the_batch_at_most(graph_tokens: float) -> None:
    times = [prefill_time(batch, graph_tokens) for batch in BATCHES]
    for before, after, small, large in zip(times[:-1], times[1:], BATCHES[:-1], BATCHES[1:], strict=True):
        growth = after / before / (large / small)
        legal = ~np.isnan(growth)
        assert legal.sum() > 0.8 * NUMBER
        assert growth[legal].max() < 1.25  # experts whose rows just outgrow a tile of 128
        assert np.mean(growth[legal] > 1.02) < 0.03
        assert (after >= before * (1.0 - 1e-12))[legal].all()


def test_a_pass_is_replayed_or_launched_as_a_whole() -> None:
    """Each prefill takes one of two times, the small ones that of graphs, and more prompts never take less."""
    before, replayed = np.zeros(NUMBER), np.full(NUMBER, True)
    for batch in BATCHES:
        shipped, launched, pieces = (prefill_time(batch, tokens) for tokens in (None, 0.0, 65536.0))
        legal = ~np.isnan(shipped)
        assert ((shipped == launched) | ((shipped == pieces) & replayed))[legal].all() and (pieces <= launched)[
            legal
        ].all()
        assert (shipped >= before * (1.0 - 1e-12))[legal].all()
        before, replayed = np.where(legal, shipped, before), replayed & ((shipped == pieces) | ~legal)


@pytest.mark.parametrize("batch", [1, 16, 256])
def test_hits_in_the_cache_never_slow_a_prefill(batch: int) -> None:
    none = prefill_time(batch, shared_prefix=0.0)
    legal = ~np.isnan(none)
    for rate, most in ((0.02, 1.1), (0.1, 1.005), (0.5, 1.005), (0.9, 1.0), (1.0, 1.0)):
        assert (prefill_time(batch, shared_prefix=rate) / none)[legal].max() <= most


@pytest.mark.parametrize(
    "plan",
    [
        {"model": "Meta-Llama-3.1-70B", "accelerator": "H100-SXM-80GB", "num accelerators": 16, "tensor parallel": 8,
         "context parallel": 2, "prompt length": 16000},
        {"model": "DeepSeek-V3", "accelerator": "H200-SXM-141GB", "num accelerators": 8, "tensor parallel": 8,
         "prompt length": 8000, "shared prefix": 0.5, "precision": "fp8"},
        {"model": "Qwen2.5-72B", "accelerator": "H100-SXM-80GB", "num accelerators": 8, "tensor parallel": 4,
         "pipeline parallel": 2, "prompt length": 30000},
    ],
)  # fmt: skip
def test_a_saturated_prefill_is_proportional_to_the_batch(plan: dict[str, object]) -> None:
    rows = [{**plan, "output length": 100, "batch size": batch} for batch in (8, 16, 64, 256)]
    table = table_from_rows("inference", list(rows[0]), [list(row.values()) for row in rows])
    times = evaluate(table, load_catalog())["prefill_time"]
    assert times / times[0] == pytest.approx([1.0, 2.0, 8.0, 32.0], rel=0.08)


def test_a_shared_prefix_says_what_it_is_and_has_its_earlier_name() -> None:
    plan = {"model": "Llama3-70B", "accelerator": "H100-SXM-80GB", "num accelerators": 4, "tensor parallel": 4,
            "prompt length": 1000, "output length": 100, "mode": "continuous", "concurrency": 8}  # fmt: skip
    named, earlier, none = (
        xlperf.evaluate({**plan, **more}) for more in ({"shared prefix": 0.5}, {"prefix hit rate": 0.5}, {})
    )
    assert named["ttft (ms)"][0] == earlier["ttft (ms)"][0] < none["ttft (ms)"][0]
    note = "50 % of each prompt is a prefix that all requests share"
    assert note in named["reason"][0] and note in earlier["reason"][0] and "prefix" not in none["reason"][0]
