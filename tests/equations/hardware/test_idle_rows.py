"""Tiles of a few rows: what the matrix units compute beside them, which machines of little arithmetic feel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ideal_machine import constants, device

from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.engine import evaluate
from xlperf.equations.hardware.gemm import gemm_time

ALONE = {
    "model": "Qwen3-14B", "accelerator": "H20-96GB", "num_accelerators": 1, "tensor_parallel": 1, "software": "sglang",
    "prompt_length": 1, "output_length": 64, "precision": "bf16", "batch_size": 1, "mode": "static",
}  # fmt: skip


BEFORE = {"software_release": "0.4.6.post1"}


def steps(*changes: dict[str, Any]) -> list[float]:
    """Time per token of the plan with each of the changes. [s]"""
    rows = [{**ALONE, **change} for change in changes]
    names = list(dict.fromkeys(name for each in rows for name in each))
    cells = [[each.get(name) for name in names] for each in rows]
    result = evaluate(table_from_rows("inference", names, cells, lambda _, column: column), load_catalog())
    assert np.isfinite(result.number("tpot")).all(), result.text("reason").tolist()
    return result.number("tpot").tolist()


def test_one_row_takes_the_arithmetic_of_the_shortest_tile() -> None:
    rows = np.array([[1.0, 8.0, 16.0, 33.0, 64.0, 65.0, 128.0]])
    shape = (rows, 8192.0, 8192.0, 1.0, 2.0, 2.0)
    short, tall = (
        gemm_time(device(), constants("gemm", launch_time=0.0, least_tile_rows=least), *shape, stack="serving")[0]
        for least in (16.0, 64.0)
    )
    assert (tall >= 2.0 * 64.0 * 8192.0 * 8192.0 / device().peak_flop_rate[0, 0] * (1.0 - 1e-12)).all()
    assert (tall >= short * (1.0 - 1e-12)).all(), "fewer tiles to choose among are no faster"
    assert (tall[4:] == short[4:]).all(), "taller products have the same tiles"
    training = gemm_time(device(), constants("gemm", launch_time=0.0, least_tile_rows=64.0), *shape)[0]
    assert (training == gemm_time(device(), constants("gemm", launch_time=0.0), *shape)[0]).all()


def test_a_machine_of_little_arithmetic_computes_idle_rows_and_a_balanced_one_hides_them() -> None:
    """64 rows are 64 FLOP a byte of weights in 16 bits: more than H20 has (37), less than H100 (295). Newer libraries
    have tiles of a few rows.
    """
    few, many, balanced, more, newest = steps(
        BEFORE, {**BEFORE, "batch_size": 32},
        *({**BEFORE, "accelerator": "H100-SXM-80GB", "batch_size": b} for b in (1, 32)), {},
    )  # fmt: skip
    idle = 2.0 * 64.0 * 13.2e9 / 148e12
    assert idle < few < many < 1.4 * few, "32 sequences share the tile of one"
    assert balanced < 0.6 * few and balanced < more
    assert newest < 0.7 * few, "as long as its bytes take"


def test_experts_and_weights_that_are_unpacked_have_short_tiles() -> None:
    mixture = {"model": "Qwen3-30B-A3B"}
    unpacked = {"precision": "int4", "activation_precision": "bf16"}
    dense, experts, narrow = steps(*({**BEFORE, **each} for each in ({}, mixture, unpacked)))
    assert experts < 0.6 * dense, "3.3 billion weights of 14.8, and launches"
    assert narrow < 0.5 * dense, "a quarter of the bytes by few rows, not the arithmetic of 64"


@pytest.mark.parametrize("engine, rows", [("sglang", 128), ("vllm", 64)])
def test_rows_of_a_tile_of_attention(engine: str, rows: int) -> None:
    """A long cache is computed by whole tiles: slower on H20 the taller they are, read at the same rate on H100."""
    long = {"prompt_length": 30000, "software": engine}
    tiles = [{**long, "attention_tile_rows": tile} for tile in (None, 1, 16, 64, 128)]
    default, one, short, tall, taller = steps(*tiles)
    assert one == short < tall < taller
    assert default == {64: tall, 128: taller}[rows]
    assert len(set(steps(*({**each, "accelerator": "H100-SXM-80GB"} for each in tiles)))) == 1


FIRST_KERNELS = {
    "model": "Llama2-70B", "accelerator": "H100-SXM-80GB", "num_accelerators": 4, "tensor_parallel": 4,
    "software": "tensorrt-llm-0", "precision": "fp8", "kv_precision": "fp8", "batch_size": 64,
}  # fmt: skip
PUBLISHED = ((128, 128, 3317.0), (128, 2048, 2616.0), (2048, 128, 843.0), (2048, 2048, 1583.0))
"""Prompt, output and tokens per second of TensorRT-LLM 0.5 [performance.md, October 2023]."""


def test_kernels_that_do_not_share_keys_as_published() -> None:
    """One rate, which was taken from these runs, holds for all four loads."""
    loads = [{**FIRST_KERNELS, "prompt_length": prompt, "output_length": output} for prompt, output, _ in PUBLISHED]
    names = list({**ALONE, **FIRST_KERNELS})
    cells = [[{**ALONE, **load}[name] for name in names] for load in loads]
    result = evaluate(table_from_rows("inference", names, cells, lambda _, column: column), load_catalog())
    seconds = result.number("ttft") + result.number("tpot") * np.array([output - 1.0 for _, output, _ in PUBLISHED])
    rates = 64.0 * np.array([output for _, output, _ in PUBLISHED]) / seconds
    np.testing.assert_allclose(rates, [rate for *_, rate in PUBLISHED], rtol=0.12)


def test_only_shared_keys_gain_from_a_kernel_that_shares_them() -> None:
    long = {**FIRST_KERNELS, "prompt_length": 2048, "output_length": 2048}
    first, tiled, later = steps(long, {**long, "attention_tile_rows": 16}, {**long, "software": "tensorrt-llm"})
    assert first > 1.5 * tiled, "eight heads of queries read what one reads"
    assert later < first
    single = {**long, "model": "Llama2-7B", "num_accelerators": 1, "tensor_parallel": 1, "batch_size": 16}
    first, tiled = steps(single, {**single, "attention_tile_rows": 1})
    assert first == tiled, "a head of keys for each head of queries"
