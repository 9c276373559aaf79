"""Models with Mamba-2 layers, whose layers are mixers or feed-forward layers: weights, states and work by hand."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest

from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate, explain
from xlperf.engine.catalog_arrays import catalog_models
from xlperf.equations.model.linear_attention import STATE_SPACE_CHUNK, state_space_scan_flop, state_space_scan_traffic
from xlperf.equations.model.operators import parameter_count

NANO = "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"
DENSE = "Nemotron-H-56B-Base-8K"
# Mixers, attention, feed-forward layers; heads, state; shared experts (published configurations).
HYBRIDS = {NANO: (23, 6, 23, 64.0, 128.0, 2.0), DENSE: (54, 10, 54, 256.0, 256.0, math.nan)}


@cache
def catalog_with(bare: int = 0) -> Catalog:
    """The shipped catalog with those models as their configurations have them, and so many more feed-forward layers."""
    shipped = load_catalog()
    table = shipped.tables["models"]
    columns = {**table.columns, "attention_pattern": np.array(table.text("attention_pattern"), dtype=object)}
    names = table.text("model").tolist()
    for name, (mixers, full, feed_forward, heads, state, shared) in HYBRIDS.items():
        row = names.index(name)
        columns["attention_pattern"][row] = f"{mixers} Mamba-2 : {full} full : {feed_forward + bare} feed-forward"
        numbers = {"linear_num_key_heads": 8.0, "linear_num_value_heads": heads, "linear_key_head_size": state,
                   "linear_value_head_size": 64.0, "linear_convolution_size": 4.0,
                   "num_shared_experts": shared}  # fmt: skip
        for column, value in numbers.items():
            known = columns.get(column, np.full(len(table), math.nan))
            columns[column] = np.array(known)
            columns[column][row] = value
    return shipped.with_tables([Table("models", columns, table.place)])


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return catalog_with()


def plans(*rows: dict[str, Any]) -> Table:
    base = {"model": NANO, "accelerator": "H100-SXM-80GB", "num_accelerators": 1, "tensor_parallel": 1,
            "prompt_length": 1024, "output_length": 256, "precision": "bf16", "software": "vllm"}  # fmt: skip
    full = [{**base, **row} for row in rows]
    header = list(dict.fromkeys(name for row in full for name in row))
    cells = [[row.get(name, "") for name in header] for row in full]
    return table_from_rows("inference", header, cells, lambda row, column: f"row {row} {column}")


def operators(catalog: Catalog, **row: Any) -> dict[tuple[str, str], dict[str, float]]:
    table = explain(plans(row), catalog)
    numbers = ("calls", "flop", "traffic", "time")
    keys = zip(table.text("phase").tolist(), table.text("operator").tolist(), strict=True)
    return {key: {name: float(table.number(name)[row]) for name in numbers} for row, key in enumerate(keys)}


def test_parameters_tensor_by_tensor(catalog: Catalog) -> None:
    """NVIDIA states 31.6 billion, 3.6 billion of a token with embeddings, 3.2 without; and 56 billion."""
    models, reasons = catalog_models(catalog)
    names = catalog.tables["models"].text("model").tolist()
    every, active = parameter_count(models), parameter_count(models, experts_per_token=True)
    hidden, inner, groups = 2688, 64 * 64, 8 * 128
    channels = inner + 2 * groups
    mixer = hidden * (2 * inner + 2 * groups + 64) + channels * 4 + channels + 3 * 64 + inner + inner * hidden
    attention = 2 * hidden * 32 * 128 + 2 * hidden * 2 * 128
    expert = 2 * hidden * 1856
    tables = 2 * 131072 * hidden + hidden
    outside = 23 * mixer + 6 * attention + 52 * hidden + tables + 23 * 128 * hidden
    row = names.index(NANO)
    assert reasons[row] == ""
    assert every[row] == outside + 23 * (128 + 2) * expert
    assert active[row] == outside + 23 * (6 + 2) * expert
    assert every[row] / 1e9 == pytest.approx(31.6, abs=0.05)
    assert active[row] / 1e9 == pytest.approx(3.6, abs=0.05)
    assert (active[row] - 131072 * hidden) / 1e9 == pytest.approx(3.2, abs=0.05)
    assert every[names.index(DENSE)] / 1e9 == pytest.approx(56.0, rel=0.01)


@pytest.mark.parametrize("tensor", [1, 4])
def test_cache_and_weights_by_hand(catalog: Catalog, tensor: int) -> None:
    """Keys of 6 layers, states of 23; weights of a rank, all experts shared by all."""
    row = {"tensor_parallel": tensor, "num_accelerators": tensor, "batch_size": 3}
    result = evaluate(plans(row), catalog)
    keys = 6 * 2 * math.ceil(2 / tensor) * 128 * 1280 * 2.0
    states = 23 * (64 * 64 * 128 * 4.0 + 3 * (64 * 64 + 2 * 8 * 128) * 2.0) / tensor
    assert result.number("memory_kv_cache")[0] == pytest.approx(3 * (keys + states), rel=1e-13)
    models, _ = catalog_models(catalog)
    total = 2.0 * parameter_count(models)[catalog.tables["models"].text("model").tolist().index(NANO)]
    split = result.number("memory_weights")[0]
    # Norms and routers are on every rank; two groups of keys and values on each of two ranks.
    assert 0.99999 * total / tensor < split < 1.02 * total / tensor
    if tensor == 1:
        assert split == pytest.approx(total, rel=1e-5)


def test_each_layer_is_one_block(catalog: Catalog) -> None:
    """52 norms, 23 mixers, 6 attentions, 23 feed-forward layers; one all-reduce a layer and one for the embedding."""
    result = operators(catalog, tensor_parallel=2, num_accelerators=2, batch_size=4)
    calls = {name: each["calls"] for (phase, name), each in result.items() if phase == "decode"}
    assert calls["norms and residual"] == 52
    assert calls["linear attention input"] == calls["linear attention"] == calls["gated norm"] == 23
    assert calls["qkv"] == pytest.approx(6)
    assert calls["attention"] == pytest.approx(6)
    assert calls["experts up"] == calls["router"] == 23
    assert calls["all-reduce"] == 53
    assert not {"mlp up", "activation", "linear attention gates"} & set(calls)


def test_products_of_a_prefill_are_two_flop_a_weight_and_token(catalog: Catalog) -> None:
    """Of the dense one: all weights but embedding and logits."""
    row = {"model": DENSE, "tensor_parallel": 8, "num_accelerators": 8, "prompt_length": 2048, "output_length": 2}
    result = operators(catalog, **row)
    products = ("qkv", "attention output", "linear attention input", "linear attention output", "mlp up", "mlp down")
    flop = sum(result["prefill", name]["calls"] * result["prefill", name]["flop"] for name in products)
    hidden, inner, groups = 8192, 256 * 64, 8 * 256
    mixer = hidden * (2 * inner + 2 * groups + 256) + inner * hidden
    weights = 54 * mixer + 10 * hidden * 128 * (2 * 64 + 2 * 8) + 54 * 2 * hidden * 32768
    assert 8 * flop == pytest.approx(2.0 * weights * 2048, rel=1e-12)


def test_scan_of_one_chunk_by_counting() -> None:
    """One group of 4 heads of 64 with a state of 128, 128 tokens: scores once, outputs and states of each head."""
    tokens, heads, state, size = 128, 4, 128, 64
    scores, outputs = tokens * tokens * state, tokens * tokens * size
    states = 2 * tokens * state * size
    assert state_space_scan_flop(tokens, heads, 1.0, state, size) == 2 * (scores + heads * (outputs + states))
    narrow = tokens * (3 * heads * size + 4 * state)
    words = 4 * heads * state * size + 2 * tokens * tokens
    assert state_space_scan_traffic(tokens, 0.0, heads, 1.0, state, size, 2.0, 4.0) == 2 * narrow + 4 * words
    assert tokens == STATE_SPACE_CHUNK


def test_decoding_takes_no_less_than_what_it_reads(catalog: Catalog) -> None:
    """States are read and written, weights read: of the experts at least those of one token."""
    for batch in (1, 64):
        row = {"model": DENSE, "tensor_parallel": 4, "num_accelerators": 4, "batch_size": batch}
        result = evaluate(plans(row), catalog)
        moved = result.number("memory_weights")[0] - 2 * 131072 * 8192 * 2 / 4 + result.number("memory_kv_cache")[0]
        assert result.number("tpot")[0] > moved / 3.35e12
        assert result.number("tpot")[0] < 3.0 * moved / 3.35e12


def test_mixed_blocks_give_the_bits_of_single_rows(catalog: Catalog) -> None:
    rows = [
        {"model": NANO, "batch_size": 4},
        {"model": DENSE, "tensor_parallel": 8, "num_accelerators": 8, "batch_size": 4},
        {"model": "Llama3-8B", "batch_size": 4},
        {"model": "Qwen3-30B-A3B", "mode": "continuous", "concurrency": 16},
        {"model": NANO, "mode": "continuous", "concurrency": 32},
    ]
    together = evaluate(plans(*rows), catalog)
    for index, row in enumerate(rows):
        alone = evaluate(plans(row), catalog)
        assert alone.number("tpot")[0] > 0.0
        for name, values in alone.columns.items():
            assert values[0] == together[name][index] or values[0] != values[0], (row, name)


def test_layers_that_do_not_add_up_are_refused(catalog: Catalog) -> None:
    wrong = evaluate(plans({"batch_size": 1}), catalog_with(1))
    assert 'has 52 layers, which are not those of its pattern ("23 Mamba-2' in wrong.text("reason")[0]


def test_experts_behind_projections_have_the_weights_of_their_latent_space(catalog: Catalog) -> None:
    """512 experts of 2 x 1,024 x 2,688 and two projections of 4,096 x 1,024 in each of 40 layers."""
    name = "NVIDIA-Nemotron-3-Super-120B-A12B-FP8"
    row = {"model": name, "batch_size": 1, "num_accelerators": 8, "tensor_parallel": 8, "expert_parallel": 8}
    result = explain(plans(row), catalog)
    names, numbers = result.text("operator").tolist(), {key: result.number(key) for key in ("m", "n", "k", "calls")}
    at = names.index("expert compression")
    assert [numbers[key][at] for key in ("n", "k", "calls")] == [1024.0, 4096.0, 40.0]
    up = names.index("experts up")
    assert [numbers[key][up] for key in ("n", "k", "calls")] == [2688.0, 1024.0, 40.0]
