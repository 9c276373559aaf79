"""Minimal plans of the shared cases: drafts beyond the output, queue time of separate pools, memory under polls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from xlperf import load_catalog
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate

PEAKS = tuple(f"peak_flop_rate_{name}" for name in ("fp32", "tf32", "bf16", "fp8", "int8", "fp4"))
# faults/minimal_plans.csv, rows 3 and 4: with 1.5 times the peak TPOT rose by 12.7 %, with twice the links by 8.2 %.
DRAFTED = {"model": "GPT3-XL", "accelerator": "Rubin (VR200)", "num_accelerators": 8, "prompt_length": 100,
           "output_length": 2, "batch_size": 512, "draft_tokens": 3}  # fmt: skip
# Row 8: a queue time of 7e-7 ms beside a TTFT of 23.6 s and a prefill of 98 ms.
POOLS = {"model": "Meta-Llama-3.1-8B", "accelerator": "H100-SXM-80GB", "num_accelerators": 2, "prompt_length": 4000,
         "output_length": 100, "mode": "disaggregated", "prefill_accelerators": 1}  # fmt: skip


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def results(catalog: Catalog, *rows: Mapping[str, Any]) -> Table:
    header = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[row.get(name, "") for name in header] for row in rows]
    return evaluate(table_from_rows("inference", header, cells, lambda row, column: f"row {row} {column}"), catalog)


def better(catalog: Catalog, kind: str, columns: tuple[str, ...], factor: float) -> Catalog:
    table = catalog.tables[kind]
    new = {name: factor * np.asarray(table[name]) for name in columns}
    return catalog.with_tables([replace(table, columns={**table.columns, **new})])


def test_no_step_drafts_more_than_is_left_of_the_output(catalog: Catalog) -> None:
    plain, *drafted = (results(catalog, {**DRAFTED, "draft_tokens": each})["tpot"][0] for each in (0, 1, 3, 8))
    assert drafted == [plain] * 3, "the second of two tokens has no draft"
    three = [results(catalog, {**DRAFTED, "output_length": 4, "draft_tokens": each})["tpot"][0] for each in (2, 3, 8)]
    assert len(set(three)) == 1, "after the first of four tokens a step has two beside its own"


@pytest.mark.parametrize("tensor", [1, 4])
@pytest.mark.parametrize("output", [2, 5, 10, 200])
def test_faster_units_never_lengthen_a_drafted_step(catalog: Catalog, tensor: int, output: int) -> None:
    rows = [{**DRAFTED, "tensor_parallel": tensor, "output_length": output, "draft_tokens": n} for n in (0, 1, 3, 8)]
    before = results(catalog, *rows)["tpot"]
    for kind, columns, factor in (("accelerators", PEAKS, 1.5), ("networks", ("link_bandwidth",), 2.0)):
        after = results(better(catalog, kind, columns, factor), *rows)["tpot"]
        assert (after <= before * (1.0 + 1e-9)).all(), columns


def test_queue_time_of_separate_pools_is_what_the_first_token_waits(catalog: Catalog) -> None:
    result = results(catalog, *({**POOLS, "concurrency": number} for number in (1, 2, 16, 256)))
    rest = result["ttft"] - result["queue_time"]
    assert result["queue_time"][0] == 0.0
    assert (np.diff(result["queue_time"]) > 0.0).all()
    assert (rest >= result["prefill_time"]).all() and (rest < 0.4).all(), "prefill, way of the cache and of the answer"
    assert result["queue_time"][3] > 0.95 * result["ttft"][3] > 20.0
    assert "lengthens TTFT" in result.text("reason")[3] and result.text("reason")[0] == ""


def test_more_memory_never_lowers_throughput_where_the_scheduler_polls_seldom(catalog: Catalog) -> None:
    """81 requests of 28 steps, ten between polls: with room for 105 in place of 37 throughput fell by 9 %.

    Requests that wait for a poll are in no decode batch. What may still lower it a little is that a queue for places
    hides the wait for the poll.
    """
    plan = {"model": "GPT-462B", "accelerator": "A100-SXM4-80GB", "network": "DGX-H100", "num_accelerators": 32,
            "software": "nim", "tensor_parallel": 8, "pipeline_parallel": 4, "prompt_length": 16384,
            "output_length": 85, "concurrency": 81, "precision": "int4", "activation_precision": "int8",
            "wide_attention": "yes", "attention_tile_rows": 128, "kv_offload": 0.8, "mode": "continuous",
            "draft_tokens": 3, "output_variation": 2, "polling_steps": 10}  # fmt: skip
    before = results(catalog, plan)
    assert before["queue_time"][0] > 0.0
    for factor in (1.2, 1.5):  # beyond, the host has no room for the part of the cache that is there
        after = results(better(catalog, "accelerators", ("memory_capacity",), factor), plan)
        assert after["tokens_per_second"][0] > 0.985 * before["tokens_per_second"][0]
