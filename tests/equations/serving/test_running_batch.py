"""The most requests that an engine runs together: its scheduler's limit, beside the room in memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from xlperf.base.arrays import Array
from xlperf.calibrate.fitter import FittedConstant, calibration_table, joined_tables
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.interop.launch import launch_lines, read_launch

SERVED = {
    "model": "Llama3-70B", "accelerator": "H100-SXM-80GB", "num_accelerators": 8, "tensor_parallel": 4,
    "prompt_length": 1000, "output_length": 500, "precision": "fp8", "concurrency": 100, "mode": "continuous",
}  # fmt: skip
POOLS = {**SERVED, "mode": "disaggregated", "num_accelerators": 16, "prefill_accelerators": 8}


def found(row: dict[str, Any], *changes: dict[str, Any], catalog: Catalog | None = None) -> Table:
    rows = [{**row, **change} for change in changes]
    names = list(dict.fromkeys(name for each in rows for name in each))
    cells = [[each.get(name) for name in names] for each in rows]
    plans = table_from_rows("inference", names, cells, lambda _, column: column)
    return evaluate(plans, catalog or load_catalog())


@pytest.mark.parametrize("row", [SERVED, POOLS])
def test_others_wait(row: dict[str, Any]) -> None:
    """Two replicas of 8 places run 16 of 100 requests; by Little's law all of them are in flight."""
    free, limited, fewer = (found(row, {"max_running_batch": most}) for most in (None, 8, 2))
    assert limited.number("running_batch")[0] <= 8.0 < free.number("running_batch")[0]
    # Of separate pools the wait for other prefills is a part of it, also where all have places.
    free_wait = 1e-12 if row is SERVED else 0.002 * limited.number("queue_time")[0]
    assert free.number("queue_time")[0] < free_wait < limited.number("queue_time")[0]
    rate = limited.number("tokens_per_second") / 500.0
    assert (rate * limited.number("latency"))[0] == pytest.approx(100.0, rel=1e-6)
    served = [each.number("tokens_per_second")[0] for each in (fewer, limited, free)]
    assert served == sorted(served)
    assert limited.number("tpot")[0] < free.number("tpot")[0]


@pytest.mark.parametrize("row", [SERVED, POOLS])
def test_a_limit_beyond_the_memory_says_nothing(row: dict[str, Any]) -> None:
    both = found(row, {}, {"max_running_batch": 1e6})
    for name, values in both.columns.items():
        if values.dtype.kind == "f":
            assert np.array_equal(values[:1], values[1:], equal_nan=True), name


def test_the_largest_rate_is_that_of_the_places() -> None:
    """Half of the largest rate is served at once; nothing beyond what the places take."""
    most: Array = found(SERVED, {"max_running_batch": 8}).number("max_request_rate")
    rates = [{"concurrency": None, "request_rate": share * most[0], "max_running_batch": 8} for share in (0.5, 1.01)]
    served = found(SERVED, *rates)
    assert served.number("running_batch")[0] < 8.0
    assert "more than the deployment can serve" in served.text("reason")[1]


@pytest.mark.parametrize("row", [SERVED, POOLS])
def test_an_engine_compiled_for_one_batch_computes_all_of_it(row: dict[str, Any]) -> None:
    """A few requests of a batch of 32: a step takes nearly what 32 take; an engine that pads nothing takes less."""
    constant = FittedConstant("serving_load", "any", "any", "compiled", "whole_batch", 1.0, "", 0, math.nan, "", "")
    known = load_catalog()
    padding = known.with_tables([joined_tables(known.tables["calibration"], calibration_table([constant]))])
    few = {**row, "software": "compiled", "concurrency": 4}
    changes = {}, {"max_running_batch": 32}, {"max_running_batch": 32, "concurrency": 200}
    free, plain, _ = found(few, *changes, catalog=known).number("decode_time")
    unlimited, padded, full = found(few, *changes, catalog=padding).number("decode_time")
    assert free == unlimited == pytest.approx(plain, rel=1e-12)
    assert 1.05 * free < padded < full


@pytest.mark.parametrize("row", [SERVED, POOLS])
def test_targets_keep_to_it(row: dict[str, Any]) -> None:
    asked = {"tpot_target": 1000.0, "concurrency": None}
    limited = found(row, {**asked, "max_running_batch": 8}).number("batch_at_targets")[0]
    assert limited == 8.0 < found(row, asked).number("batch_at_targets")[0]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"mode": "static", "max_running_batch": 8}, "max running batch needs mode continuous or disaggregated"),
        ({"max_running_batch": 2.5}, "max running batch must be a whole number, is 2.5"),
    ],
)
def test_what_it_cannot_be(change: dict[str, Any], sentence: str) -> None:
    assert sentence in found(SERVED, change).text("reason")[0]


@pytest.mark.parametrize(
    ("stack", "software", "flag"),
    [
        ("vllm", "vllm", "--max-num-seqs 4"),
        ("sglang", "sglang", "--max-running-requests 32"),
        ("trtllm", "tensorrt-llm", "--max_batch_size 4"),
    ],
)
def test_flags_of_the_engines(stack: str, software: str, flag: str) -> None:
    """Limits of vLLM and TensorRT-LLM hold for each replica of the attention layers, that of SGLang for all."""
    row = {"model": "DeepSeek-V3", "accelerator": "H200-SXM-141GB", "num_accelerators": 8.0, "tensor_parallel": 8.0,
           "expert_parallel": 8.0, "data_parallel_attention": 8.0, "software": software, "prompt_length": 1000.0,
           "output_length": 100.0, "concurrency": 100.0, "max_running_batch": 32.0, "mode": "continuous"}  # fmt: skip
    plan = table_from_rows("inference", list(row), [list(row.values())], lambda _, column: column)
    lines = launch_lines(plan, stack)
    assert flag in lines
    assert not any("max_running_batch" in line for line in lines)
    assert read_launch("\n".join(lines), "lines").plan["max_running_batch"][0] == 32.0


@pytest.mark.parametrize(
    ("flag", "slots"),
    [
        ("--disable-radix-cache", 1.0),
        ("--disable-radix-cache --mamba-scheduler-strategy no_buffer", 1.0),
        ("--mamba-scheduler-strategy no_buffer", 3.0),
        ("--mamba-radix-cache-strategy extra_buffer", 5.0),
    ],
)
def test_slots_of_states_that_flags_of_sglang_give(flag: str, slots: float) -> None:
    given = {"model": "Qwen3.5-27B", "accelerator": "H100-SXM-80GB", "prompt length": "100", "output length": "100"}
    read = read_launch(f"python -m sglang.launch_server --model m {flag} --tp 2", "line", given=given).plan
    assert read["state_slots"].tolist() == [slots]
    lines = launch_lines(read, "sglang")
    assert read_launch("\n".join(lines), "lines").plan["state_slots"].tolist() == [slots]


def test_sglang_states_the_precision_of_states() -> None:
    """In half the bytes a request takes less memory and time; a model without states is as before."""
    given = {"model": "Qwen3.5-27B", "accelerator": "H100-SXM-80GB", "prompt length": "100", "output length": "100"}
    line = "python -m sglang.launch_server --model m --mamba-ssm-dtype bfloat16 --tp 2"
    read = read_launch(line, "line", given=given).plan
    assert read["state_precision"].tolist() == ["bf16"] and "bfloat16" in " ".join(launch_lines(read, "sglang"))
    for model, changes in (("Qwen3.5-27B", True), ("Llama3-70B", False)):
        row = {**SERVED, "model": model, "software": "sglang", "precision": "bf16"}
        own, wide, narrow = (found(row, {"state_precision": each}) for each in (None, "fp32", "bf16"))
        for name in ("memory_kv_cache", "tpot"):
            assert own.number(name)[0] == wide.number(name)[0] > 0.0
            assert (narrow.number(name)[0] < own.number(name)[0]) == changes


def test_a_chunk_of_sglang_is_that_of_all_attention_replicas_together() -> None:
    """Its server divides chunked_prefill_size by dp_size where attention is data-parallel."""
    given = {"model": "DeepSeek-V3", "accelerator": "H200-SXM-141GB", "prompt length": "100", "output length": "100"}
    flags = "--tp 8 --dp 8 --chunked-prefill-size 32768"
    for more, tokens in (("--enable-dp-attention", 4096.0), ("", 32768.0)):
        read = read_launch(f"python -m sglang.launch_server --model m {flags} {more}", "line", given=given).plan
        assert read["prefill_tokens"].tolist() == [tokens]
        lines = launch_lines(read, "sglang")
        assert "--chunked-prefill-size 32768" in lines
        assert read_launch("\n".join(lines), "lines").plan["prefill_tokens"].tolist() == [tokens]


def test_a_limit_by_itself_is_the_load() -> None:
    given = {"model": "Llama3-70B", "accelerator": "H100-SXM-80GB", "prompt length": "100", "output length": "100"}
    read = read_launch("vllm serve m --max-num-seqs 16", "line", given=given).plan
    assert read["concurrency"][0] == 16.0 and "batch_size" not in read
    assert read["max_running_batch"][0] == 16.0, "the cache that the engine sizes follows its limit"
    assert read_launch("\n".join(launch_lines(read, "vllm")), "lines").plan["max_running_batch"][0] == 16.0


@pytest.mark.parametrize("row", [SERVED, POOLS, {**SERVED, "mode": "static", "concurrency": None, "batch_size": 4}])
def test_requests_beyond_the_limit_of_the_context_are_illegal(row: dict[str, Any]) -> None:
    """vLLM max_model_len: the server refuses a request whose prompt and output are longer."""
    results = found(row, {}, {"max_context": 1500}, {"max_context": 1499})
    assert results.number("tpot")[0] == results.number("tpot")[1]
    assert math.isnan(results.number("tpot")[2])
    assert "1500 tokens, beyond max context 1499" in results.text("reason")[2]


def test_a_cache_that_holds_less_than_a_context_is_said() -> None:
    """vLLM issue 2418: the longest request has to fit the cache, whatever requests come."""
    results = found(SERVED, {"max_context": 1500}, {"max_context": 10**7})
    says = ["which vLLM does not start with" in words for words in results.text("reason")]
    assert says == [False, True] and results.number("tpot")[0] == results.number("tpot")[1]
