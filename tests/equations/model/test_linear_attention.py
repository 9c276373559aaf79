"""Models with linear attention layers: weights and states by hand, work of scan and step, times beside measured."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate, explain
from xlperf.engine.catalog_arrays import catalog_arrays, catalog_models
from xlperf.equations.hardware.roofline import Device, linear_attention_time, vector_time
from xlperf.equations.model.linear_attention import (
    CHUNK,
    chunk_scan_flop,
    chunk_scan_traffic,
    recurrent_state_size,
    recurrent_step_flop,
    recurrent_step_traffic,
)
from xlperf.equations.model.model import Model
from xlperf.equations.model.operators import mtp_parameters, parameter_count

GIGA = 1e9
# Value heads, parameters as published, those of a token; key heads 16, heads of 128, convolution over 4 tokens.
HYBRIDS = {
    "qwen3-next-80B-A3B": (32.0, 80.0, True),
    "Qwen3.5-122B-A10B": (64.0, 122.0, True),
    "Qwen3.5-27B": (48.0, 27.0, False),
    "Qwen3.5-35B-A3B": (32.0, 35.0, True),
    "Qwen3.5-397B-A17B": (64.0, 397.0, True),
}


def hybrid_models(catalog: Catalog, **other: float) -> Table:
    """The models of the catalog, those above as their configurations have them."""
    table = catalog.tables["models"]
    names = table.text("model").tolist()
    rows = np.array([names.index(name) for name in HYBRIDS])
    heads = np.array([values[0] for values in HYBRIDS.values()])
    mixture = np.array([float(values[2]) for values in HYBRIDS.values()])
    changes = {
        "linear_num_key_heads": 16.0, "linear_num_value_heads": heads, "linear_key_head_size": 128.0,
        "linear_value_head_size": 128.0, "linear_convolution_size": 4.0, "attention_output_gate": 1.0,
        "num_shared_experts": np.where(mixture > 0, 1.0, np.nan), "shared_expert_gate": mixture, "num_mtp_layers": 1.0,
        **other,
    }  # fmt: skip
    columns = dict(table.columns)
    for column, values in changes.items():
        known = table.number(column) if column in table else np.full(len(table), math.nan)
        columns[column] = np.array(known)
        columns[column][rows] = values
    columns["attention_pattern"] = np.array(table.text("attention_pattern"), dtype=object)
    columns["attention_pattern"][rows] = "3 linear (gated delta net) : 1 full"
    return Table("models", columns, table.place)


@cache
def catalog_with(**other: float) -> Catalog:
    shipped = load_catalog()
    return shipped.with_tables([hybrid_models(shipped, **other)])


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return catalog_with()


def plans(*rows: dict[str, Any]) -> Table:
    base = {"model": "Qwen3.5-397B-A17B", "accelerator": "B200-SXM-180GB", "num_accelerators": 8, "tensor_parallel": 8,
            "prompt_length": 1000, "output_length": 500, "precision": "fp8", "software": "vllm"}  # fmt: skip
    full = [{**base, **row} for row in rows]
    header = list(dict.fromkeys(name for row in full for name in row))
    cells = [[row.get(name, "") for name in header] for row in full]
    return table_from_rows("inference", header, cells, lambda row, column: f"row {row} {column}")


def results(catalog: Catalog, *rows: dict[str, Any]) -> Table:
    return evaluate(plans(*rows), catalog)


def operators(catalog: Catalog, **row: Any) -> dict[tuple[str, str], dict[str, float]]:
    """Operators of one plan by phase and name."""
    table = explain(plans(row), catalog)
    numbers = ("calls", "flop", "traffic", "time", "total_time")
    keys = zip(table.text("phase").tolist(), table.text("operator").tolist(), strict=True)
    return {key: {name: float(table.number(name)[row]) for name in numbers} for row, key in enumerate(keys)}


def model_of(catalog: Catalog, name: str) -> Model:
    every, reasons = catalog_models(catalog)
    row = catalog.tables["models"].text("model").tolist().index(name)
    assert reasons[row] == ""
    return Model(**{field.name: getattr(every, field.name)[row : row + 1] for field in fields(Model)})


def test_parameters_of_qwen3_next_tensor_by_tensor(catalog: Catalog) -> None:
    """Shapes of the tensors of the published checkpoint; with its prediction module 81.3 billion are on the hub."""
    hidden, vocabulary, experts, width = 2048, 151936, 512, 512
    keys, values, value_heads, convolution = 16 * 128, 32 * 128, 32, 4
    mixture = experts * 3 * hidden * width + 3 * hidden * width + experts * hidden + hidden
    linear = hidden * (2 * keys + 2 * values) + hidden * 2 * value_heads + (2 * keys + values) * convolution
    linear += 2 * value_heads + 128 + values * hidden
    full = hidden * 2 * 16 * 256 + 2 * hidden * 2 * 256 + 16 * 256 * hidden + 2 * 256
    total = 36 * linear + 12 * full + 48 * (mixture + 2 * hidden) + 2 * vocabulary * hidden + hidden
    model = model_of(catalog, "qwen3-next-80B-A3B")
    assert model.num_linear_layers[0] == 36
    assert parameter_count(model)[0] == total == 79_674_391_296
    assert (total + mtp_parameters(model)[0]) / GIGA == pytest.approx(81.32, abs=0.01)


@pytest.mark.parametrize("name", HYBRIDS)
def test_parameters_are_those_in_the_name(catalog: Catalog, name: str) -> None:
    assert parameter_count(model_of(catalog, name))[0] / GIGA == pytest.approx(HYBRIDS[name][1], rel=0.011)


def test_active_parameters_of_the_largest(catalog: Catalog) -> None:
    """17 billion of a token, embedding apart: 16.3 to 17.3 with input embedding."""
    model = model_of(catalog, "Qwen3.5-397B-A17B")
    active = parameter_count(model, experts_per_token=True)[0]
    assert active - 248320 * 4096 < 17.0 * GIGA < active


def test_products_of_a_prefill_are_two_flop_a_weight_and_token(catalog: Catalog) -> None:
    """All weights that a token meets but the embedding, small ones apart; logits of the last token only."""
    row = {"model": "Qwen3.5-27B", "tensor_parallel": 1, "num_accelerators": 1, "prompt_length": 2048}
    result = operators(catalog, **row)
    matrix = {key: each for key, each in result.items() if key[0] == "prefill" and each["flop"] > 0.0}
    flop = sum(each["calls"] * each["flop"] for key, each in matrix.items() if "attention" != key[1] != "logits")
    flop -= result["prefill", "linear attention"]["calls"] * result["prefill", "linear attention"]["flop"]
    hidden, keys, values = 5120, 16 * 128, 48 * 128
    linear = hidden * (2 * keys + 3 * values) + 2 * hidden * 48
    full = hidden * 256 * (2 * 24 + 2 * 4) + 24 * 256 * hidden
    weights = 48 * linear + 16 * full + 64 * 3 * hidden * 17408
    assert flop == pytest.approx(2.0 * weights * 2048, rel=1e-12)


@pytest.mark.parametrize("tensor", [1, 2, 8])
def test_cache_holds_keys_of_full_layers_and_states_of_the_others(catalog: Catalog, tensor: int) -> None:
    """16 of 64 layers: 4 groups of 256 for 1,500 tokens; the others 48 value heads, 3 inputs of 10,240 channels."""
    row = {"model": "Qwen3.5-27B", "precision": "bf16", "tensor_parallel": tensor, "num_accelerators": tensor}
    keys = 16 * 2 * math.ceil(4 / tensor) * 256 * 1500 * 2.0
    states = 48 * (48 / tensor * 128 * 128 * 4.0 + 3 * (2 * 16 + 48) * 128 / tensor * 2.0)
    for batch in (1, 7):
        result = results(catalog, {**row, "batch_size": batch})
        assert result.number("memory_kv_cache")[0] == pytest.approx(batch * (keys + states), rel=1e-13)


def test_states_limit_the_batch(catalog: Catalog) -> None:
    """With prompts so short that keys hardly count, requests that fit are memory over states."""
    row = {"model": "Qwen3.5-27B", "precision": "bf16", "tensor_parallel": 1, "num_accelerators": 1,
           "prompt_length": 1, "output_length": 1}  # fmt: skip
    result = results(catalog, row)
    left = (result.number("memory_capacity") - result.number("memory_weights"))[0]
    state = 48 * (48 * 128 * 128 * 4.0 + 3 * 10240 * 2.0)
    most = result.number("max_batch_size")[0]
    assert 0.75 * left / state < most < left / state


def test_long_prompts_fill_a_quarter_as_much_as_with_attention_everywhere(catalog: Catalog) -> None:
    row = {"batch_size": 1, "output_length": 1}
    short, long = (results(catalog, {**row, "prompt_length": length}) for length in (10_000, 20_000))
    grown = long.number("memory_kv_cache")[0] - short.number("memory_kv_cache")[0]
    assert grown == 15 * 2 * 1 * 256 * 10_000 * 2.0  # 2 groups on 8 ranks, the engine's cache of 16 bits


def test_a_step_of_decoding_reads_weights_keys_and_states(catalog: Catalog) -> None:
    bandwidth = catalog.tables["accelerators"].number("memory_bandwidth")
    at = catalog.tables["accelerators"].text("accelerator").tolist().index("H100-SXM-80GB")
    row = {"model": "Qwen3.5-27B", "accelerator": "H100-SXM-80GB", "num_accelerators": 2, "tensor_parallel": 2,
           "precision": "bf16"}  # fmt: skip
    for batch in (1, 16, 128):
        result = results(catalog, {**row, "batch_size": batch})
        tables = 2 * 248320 * 5120 / 2  # the input embedding is looked up, not read
        moved = result.number("memory_weights")[0] - tables + 0.6 * result.number("memory_kv_cache")[0]
        assert result.number("tpot")[0] > moved / bandwidth[at]


def test_states_are_read_and_written_once_a_token(catalog: Catalog) -> None:
    result = operators(catalog, batch_size=10)["decode", "linear attention"]
    inputs = 2 * (2 * 128 + 8 * 128) * 2
    assert result["traffic"] == 10 * (2 * 8 * 128 * 128 * 4 + inputs)
    assert result["calls"] == 45
    assert result["flop"] == 7 * 10 * 8 * 128 * 128


def test_drafts_write_a_state_each(catalog: Catalog) -> None:
    row = {"batch_size": 10, "draft_tokens": 3, "acceptance_rate": 0.7}
    result = operators(catalog, **row)["decode", "linear attention"]
    assert result["traffic"] == 10 * ((1 + 4) * 8 * 128 * 128 * 4 + 4 * 2 * (2 + 8) * 128 * 2)
    rows = ({**each, "kv_precision": "fp8"} for each in (row, {"batch_size": 10}))
    more, less = (results(catalog, each).number("memory_kv_cache")[0] for each in rows)
    assert more > 3.0 * less


def test_scan_of_one_chunk_by_counting() -> None:
    """Multiplications of every product of a chunk of 64 tokens, one head of 128."""
    tokens, keys, values = 64, 128, 128
    inside = 3 * tokens * tokens * keys + 2 * tokens * tokens * values  # keys, carried keys, scores; values, outputs
    state = 3 * tokens * keys * values
    triangle = tokens * tokens * tokens / 2
    assert chunk_scan_flop(tokens, 1.0, keys, values) == 2 * (inside + state + triangle)
    words = 2 * tokens * tokens  # FP32, written and read
    narrow = 2 * tokens * tokens + tokens * (7 * keys + 6 * values) + 2 * keys * values
    assert chunk_scan_traffic(tokens, 0.0, 1.0, keys, values, 2.0, 4.0) == 4 * words + 2 * narrow
    assert tokens == CHUNK


@given(
    tokens=st.integers(1, 10**6), heads=st.integers(1, 256), size=st.sampled_from([32, 64, 128, 256]),
    sequences=st.integers(1, 512), drafted=st.integers(0, 8),
)  # fmt: skip
def test_work_of_scan_and_step(tokens: int, heads: int, size: int, sequences: int, drafted: int) -> None:
    shape = (float(heads), float(size), float(size))
    flop = chunk_scan_flop(float(tokens), *shape)
    assert chunk_scan_flop(2.0 * tokens, *shape) == pytest.approx(2.0 * float(flop), rel=1e-14)
    assert flop > recurrent_step_flop(float(tokens), *shape)  # chunks trade arithmetic for speed
    state = recurrent_state_size(*shape, 4.0)
    moved = recurrent_step_traffic(float(sequences), 1.0 + drafted, heads, heads, size, size, 2.0, 4.0)
    assert moved > sequences * (2.0 + drafted) * float(state)
    least = chunk_scan_traffic(float(tokens), float(sequences), *shape, 2.0, 4.0)
    assert least > 2.0 * sequences * float(state) + tokens * heads * 4.0 * size * 2.0


# Kernels of SGLang 0.5.14 for the heads of Qwen3.5-397B on 8, 4 and 1 ranks, microseconds: sequences, tokens, value
# heads, then H100, H200, B200, B300 (github.com/ai-dynamo/aiconfigurator@095f58a, linear_attention/.../gdn_perf).
DEVICES = ("H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB", "B300-SXM")
SCANS = (
    (1, 1024, 8, 66.5, 59.6, 69.7, 66.6),
    (1, 8192, 8, 388.4, 332.8, 324.2, 311.9),
    (8, 1024, 8, 226.6, 140.5, 129.9, 124.5),
    (1, 1024, 16, 72.5, 82.1, 75.2, 73.4),
    (1, 8192, 16, 424.1, 907.7, 433.5, 458.1),
    (8, 1024, 16, 297.8, 425.2, 252.2, 283.2),
    (1, 1024, 64, 183.1, 152.6, 133.1, 149.0),
    (1, 8192, 64, 1331.1, 1309.1, 924.5, 1043.2),
    (8, 1024, 64, 1323.2, 2894.9, 868.7, 988.3),
)
STEPS = (
    (64, 1, 8, 19.5, 16.3, 13.4, 12.7),
    (256, 1, 8, 94.1, 71.5, 49.7, 48.8),
    (64, 1, 16, 49.6, 38.7, 23.6, 22.3),
    (256, 1, 16, 182.9, 144.1, 90.8, 89.8),
    (16, 1, 64, 49.1, 37.9, 23.5, 22.2),
    (64, 1, 64, 182.4, 136.1, 89.5, 88.8),
    (256, 1, 64, 715.4, 600.6, 331.6, 330.8),
)


def device_of(catalog: Catalog, name: str) -> Device:
    at = catalog.tables["accelerators"].text("accelerator").tolist().index(name)
    rows = np.array([at])
    arrays = catalog_arrays(catalog, rows)
    names = [field.name for field in fields(Device) if field.name not in ("peak_flop_rate", "stream_ratio")]
    columns = dict(zip(names, arrays.device[:, rows, None], strict=True))
    return Device(peak_flop_rate=np.array([[1e15]]), **columns)


def constants_of(family: str) -> dict[str, Any]:
    text = np.array(["any"], dtype=object)
    return dict(load_catalog().calibration.constants(family, text, text, text)[0])


def test_scans_beside_measured_ones(catalog: Catalog) -> None:
    errors = []
    for column, name in enumerate(DEVICES):
        for sequences, length, heads, *measured in SCANS:
            tokens = float(sequences * length)
            traffic = chunk_scan_traffic(tokens, float(sequences), heads, 128.0, 128.0, 2.0, 4.0)
            flop = chunk_scan_flop(tokens, heads, 128.0, 128.0)
            time = linear_attention_time(
                device_of(catalog, name), constants_of("linear_attention"), traffic, flop, length / CHUNK
            )
            errors.append(abs(float(time[0, 0]) / (measured[column] * 1e-6) - 1.0))
    assert np.median(errors) < 0.16
    assert np.quantile(errors, 0.9) < 0.6


def test_steps_beside_measured_ones(catalog: Catalog) -> None:
    errors = []
    for column, name in enumerate(DEVICES):
        for sequences, _, heads, *measured in STEPS:
            moved = recurrent_step_traffic(float(sequences), 1.0, heads, heads / 4.0, 128.0, 128.0, 2.0, 4.0)
            work = recurrent_step_flop(float(sequences), heads, 128.0, 128.0)
            constants = {**constants_of("vector"), "launch_time": np.zeros((1, 1))}
            time = vector_time(device_of(catalog, name), constants, moved, work)
            errors.append(abs(float(time[0, 0]) / (measured[column] * 1e-6) - 1.0))
    assert np.median(errors) < 0.1
    assert max(errors) < 0.35


def test_heads_are_shared_by_ranks_but_chunks_are_not(catalog: Catalog) -> None:
    row = {"prompt_length": 8192, "output_length": 1}
    alone, shared = (
        operators(catalog, **row, tensor_parallel=ranks, num_accelerators=8)["prefill", "linear attention"]
        for ranks in (4, 8)
    )
    assert alone["flop"] == 2.0 * shared["flop"]
    assert alone["traffic"] == 2.0 * shared["traffic"]
    assert shared["time"] > 128 * constants_of("linear_attention")["chunk_time"][0, 0]
    assert 1.0 < alone["time"] / shared["time"] < 2.0


def test_the_state_of_a_prompt_is_sent_to_the_other_pool() -> None:
    """However short the prompt: 45 layers, 64 value heads over 8 ranks, each sends its part."""
    row = {"mode": "disaggregated", "num_accelerators": 16, "prefill_accelerators": 8, "concurrency": 1,
           "prompt_length": 2, "output_length": 100}  # fmt: skip
    times = [results(catalog_with(linear_state_size=size), row).number("ttft")[0] for size in (4.0, 4000.0)]
    more = 45 * 8 * 128 * 128 * 3996.0
    link = 50e9  # 400 Gb/s, beyond the eight accelerators of a node
    assert more / link < times[1] - times[0] < 1.3 * more / link


def test_mixed_blocks_give_the_bits_of_single_rows(catalog: Catalog) -> None:
    rows = [
        {"model": "Qwen3.5-27B", "batch_size": 4},
        {"model": "Llama2-70B", "batch_size": 4},
        {"model": "Qwen3.5-397B-A17B", "mode": "continuous", "concurrency": 32},
        {"model": "DeepSeek-V3", "batch_size": 4},
        {"model": "gpt-oss-120b", "batch_size": 4},
        {"model": "qwen3-next-80B-A3B", "mode": "disaggregated", "prefill_accelerators": 8, "num_accelerators": 16,
         "concurrency": 16},
        {"model": "Qwen3.5-122B-A10B", "data_parallel_attention": 8, "expert_parallel": 8, "batch_size": 64},
        {"model": "Qwen3.5-397B-A17B", "precision": "fp4", "batch_size": 3},
        {"model": "Qwen3-30B-A3B", "mode": "continuous", "request_rate": 3},
    ]  # fmt: skip
    together = results(catalog, *(rows * 3))
    for index, row in enumerate(rows):
        alone = results(catalog, row)
        for name, values in alone.columns.items():
            for place in range(index, len(together), len(rows)):
                same = values[0] == together[name][place] or (values[0] != values[0] and name != "reason")
                assert same, (row, name, values[0], together[name][place])
        assert alone.number("tpot")[0] > 0.0


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"context_parallel": 2, "num_accelerators": 16}, "context parallel 2 is not modelled for layers of linear"),
        ({"tensor_parallel": 32, "num_accelerators": 32}, "tensor parallel 32 does not divide the 16 key heads"),
        ({"model": "Qwen3.5-27B", "tensor_parallel": 3, "num_accelerators": 3}, "does not divide the 16 key heads"),
    ],
)
def test_what_is_refused(catalog: Catalog, row: dict[str, Any], sentence: str) -> None:
    result = results(catalog, {"batch_size": 1, **row})
    assert sentence in result.text("reason")[0]
    assert math.isnan(result.number("tpot")[0])


def test_a_row_that_leaves_heads_out_is_refused() -> None:
    result = results(catalog_with(linear_num_key_heads=math.nan), {"batch_size": 1})
    assert (
        "has linear (gated delta net) layers without their heads, head sizes or convolution" in result.text("reason")[0]
    )


def test_without_linear_layers_a_model_keeps_its_numbers(catalog: Catalog) -> None:
    """A hybrid whose linear layers are counted as none has the parameters of plain attention with a gate."""
    model = model_of(catalog, "Qwen3.5-27B")
    plain = replace(model, num_linear_layers=np.zeros(1), attention_gate=np.zeros(1))
    layer = 5120 * 256 * (2 * 24 + 2 * 4) + 2 * 256 + 3 * 5120 * 17408 + 2 * 5120
    assert parameter_count(plain)[0] == 64 * layer + 2 * 248320 * 5120 + 5120


# Rows of SGLang 0.5.9 and 0.5.10 (github.com/ai-dynamo/aiconfigurator@095f58a, silicon_sample.csv): accelerator, ranks,
# of them that experts are dealt out to, precision, prompt, output, requests in flight, milliseconds per token.
SERVED = (
    ("B300-SXM", 8, 1, "bf16", 1024, 1024, 4, 6.44752),
    ("B300-SXM", 8, 1, "bf16", 8192, 1024, 16, 10.83177),
    ("B300-SXM", 8, 1, "bf16", 8192, 1024, 4, 6.69445),
    ("B300-SXM", 8, 1, "bf16", 1024, 1024, 32, 12.72467),
)


def test_served_rows(catalog: Catalog) -> None:
    """With constants of SGLang that were fitted on other models."""
    rows = [
        {"accelerator": accelerator, "num_accelerators": ranks, "tensor_parallel": ranks, "expert_parallel": experts,
         "precision": precision, "prompt_length": 0.9 * prompt, "output_length": 0.9 * output, "mode": "continuous",
         "concurrency": requests}
        for accelerator, ranks, experts, precision, prompt, output, requests, _ in SERVED
    ]  # fmt: skip
    for row in rows:
        row["prompt_length"], row["output_length"] = round(row["prompt_length"]), round(row["output_length"])
    errors = results(catalog, *rows).number("tpot") * 1000.0 / np.array([row[-1] for row in SERVED]) - 1.0
    assert np.abs(errors).max() < 0.3
    assert np.median(np.abs(errors)) < 0.15
