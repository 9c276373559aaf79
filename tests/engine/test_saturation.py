"""Bands of the first token widen near saturation, where a little less memory or speed makes requests wait."""

from __future__ import annotations

from typing import Any

import numpy as np

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate

SERVED = {"model": "Meta-Llama-3.1-70B", "accelerator": "H100-SXM-80GB", "software": "vllm", "precision": "fp8",
          "prompt_length": 4000, "output_length": 500}  # fmt: skip
ONE = {**SERVED, "num_accelerators": 2, "tensor_parallel": 2, "mode": "continuous"}
POOLS = {**SERVED, "num_accelerators": 8, "tensor_parallel": 2, "mode": "disaggregated", "prefill_accelerators": 2}


def of_loads(catalog: Catalog, plan: dict[str, Any], *loads: float) -> Table:
    rows = [[*plan.values(), load] for load in loads]
    return evaluate(table_from_rows("inference", [*plan, "concurrency"], rows), catalog)


def widths(result: Table) -> np.ndarray:
    return np.asarray(result.number("ttft_high") / result.number("ttft"))


def test_the_band_of_one_pool_is_wide_where_places_are_about_as_many_as_requests(catalog: Catalog) -> None:
    plan = {**ONE, "output_length": 4000}
    loads = np.arange(4.0, 80.0, 2.0)
    result = of_loads(catalog, plan, *loads)
    wide, waiting = widths(result), result.number("queue_time") > 0.0
    assert not waiting[0] and waiting[-1]
    last = int(np.argmax(waiting)) - 1  # the largest load without a wait
    assert wide[last] > 2.0 * wide[0] and wide[last] > 2.0 * wide[-1]
    assert (result.number("ttft_low") < result.number("ttft")).all()


def test_the_band_of_separate_pools_is_wide_where_one_of_them_is_full(catalog: Catalog) -> None:
    wide = widths(of_loads(catalog, POOLS, *2.0 ** np.arange(10)))
    assert wide.max() > 1.3 * wide[0] and wide[-1] < wide.max()


def test_open_arrivals_and_static_batches_have_the_calibrated_band(catalog: Catalog) -> None:
    row = {**SERVED, "num_accelerators": 2, "tensor_parallel": 2, "mode": "static", "batch_size": 4}
    result = evaluate(table_from_rows("inference", list(row), [list(row.values())]), catalog)
    assert result.number("ttft_low")[0] < result.number("ttft")[0] < result.number("ttft_high")[0]
    assert widths(result)[0] < 3.0


def test_requests_of_separate_pools_pass_two_engines(catalog: Catalog) -> None:
    """Llama 3 8B with one prefill and one decode instance of vLLM 0.11.2, eight H800 each: first tokens of single
    requests after 46.1, 59.9, 85.3, 212 and 750 ms [Mooncake documentation, vLLM with RDMA, prompts of 128 to 32,768].
    """
    plan = {"model": "Meta-Llama-3.1-8B", "accelerator": "H800-SXM-80GB", "num_accelerators": 16, "tensor_parallel": 8,
            "prefill_accelerators": 8, "mode": "disaggregated", "software": "vllm", "software_release": "0.11.2",
            "precision": "bf16", "output_length": 128, "concurrency": 1}  # fmt: skip
    measured = {128: 46.09, 512: 59.91, 2048: 85.31, 8192: 212.05, 32_768: 749.62}
    rows = [[*plan.values(), prompt] for prompt in measured]
    result = evaluate(table_from_rows("inference", [*plan, "prompt_length"], rows), catalog)
    errors = result.number("ttft") * 1e3 / np.array(list(measured.values())) - 1.0
    assert np.abs(errors).max() < 0.25 and np.median(np.abs(errors)) < 0.15
