"""Formats of checkpoints: precision auto takes the precision of each part of a model, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_columns
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.join import named_rows
from xlperf.engine.software import with_formats
from xlperf.equations.plan.records import PRECISIONS
from xlperf.interop.checkpoints import variant_of_name

H100, A100, B200, H200 = "H100-SXM-80GB", "A100-SXM4-80GB", "B200-SXM-180GB", "H200-SXM-141GB"
BASE = {"software": "vllm", "prompt_length": 1000, "output_length": 200, "mode": "continuous", "concurrency": 1}
TIMES = ("ttft", "tpot", "memory", "memory_weights", "max_batch_size", "energy_per_token")


def plans(*rows: Mapping[str, Any]) -> Table:
    full = [{**BASE, **row} for row in rows]
    names = sorted({name for row in full for name in row})
    columns = {name: np.array([row.get(name, "") for row in full], dtype=object) for name in names}
    return table_from_columns("inference", columns, lambda row, column: f"row {row} {column}")


def served(model: str, accelerator: str, ranks: int = 1, **more: Any) -> dict[str, Any]:
    return {"model": model, "accelerator": accelerator, "num_accelerators": ranks, "tensor_parallel": ranks, **more}


def formats(catalog: Catalog, *rows: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    table = plans(*rows)
    found = with_formats(table, catalog, named_rows(table, catalog))
    names = ("precision", "activation_precision", "kv_precision")
    return list(zip(*(found.text(name).tolist() for name in names), strict=True))


@pytest.mark.parametrize(
    ("row", "gib", "tolerance"),
    [
        # C20: start-up log of HabanaAI vllm-fork issue 809; C04: of vllm PR 12569, two ranks here
        (served("DeepSeek-R1", H200, 8), 79.41, 0.005),
        (served("Meta-Llama-3.1-70B-Instruct-quantized.w8a8", H100, 2), 67.7229 / 2.0, 0.005),
        # C22: a checkpoint of 41.6 GB over two ranks
        (served("Qwen2.5-72B-Instruct-AWQ", A100, 2), 19.4, 0.01),
        # vLLM issue 33155, one H100: 64.38 GiB with Triton kernels; those of Marlin pad the experts
        (served("gpt-oss-120b", H100), 64.38, 0.03),
        # moonshotai/Kimi-K2-Thinking: 594 GB of files (simonwillison.net, 6 November 2025)
        (served("Kimi-K2.5", H200, 8), 594e9 / 8.0 / 2.0**30, 0.03),
    ],
)
def test_weights_are_those_of_the_logs_of_engines(
    catalog: Catalog, row: dict[str, Any], gib: float, tolerance: float
) -> None:
    weights = evaluate(plans(row), catalog).number("memory_weights")[0] / 2.0**30
    assert weights == pytest.approx(gib, rel=tolerance)


@pytest.mark.parametrize("model", ["Meta-Llama-3.1-70B", "Qwen3-30B-A3B", "Mixtral-8x7B-v0.1", "Qwen3.5-27B"])
def test_auto_of_an_unquantised_model_is_bf16_to_the_bit(catalog: Catalog, model: str) -> None:
    """Beside a checkpoint whose parts differ, too: the same batch of arrays."""
    mixed = served("Kimi-K2.5", H200, 8)
    rows = [served(model, H200, 4, precision=word) for word in ("bf16", "auto", "")]
    results = evaluate(plans(*rows, mixed), catalog)
    for name in results.columns:
        values = results[name][:3]
        assert (values == values[0]).all() or all(value != value for value in values), name


@pytest.mark.parametrize(
    ("auto", "stated"),
    [
        (served("DeepSeek-V3", H200, 8), {"precision": "fp8", "kv_precision": "bf16"}),
        (served("Qwen3-235B-A22B-FP8", H100, 4), {"precision": "fp8-block", "kv_precision": "bf16"}),
        (served("DeepSeek-R1-NVFP4", B200, 8, software="tensorrt-llm"), {"precision": "fp4", "kv_precision": "fp8"}),
        (served("Llama-3.3-70B-Instruct-FP8-dynamic", H100, 2), {"precision": "fp8-tensor", "kv_precision": "bf16"}),
    ],
)
def test_auto_of_one_format_is_the_stated_precision_to_the_bit(
    catalog: Catalog, auto: dict[str, Any], stated: dict[str, str]
) -> None:
    results = evaluate(plans(auto, {**auto, **stated}), catalog)
    for name in TIMES:
        assert results.number(name)[0] == results.number(name)[1], name


def test_products_are_those_that_the_machine_computes(catalog: Catalog) -> None:
    """A weight-only format runs on every machine; FP8 and FP4 are widened where there are no units."""
    found = formats(
        catalog,
        *(served("gpt-oss-120b", machine) for machine in (A100, H100, B200)),
        *(served("DeepSeek-V3", machine, 16) for machine in (A100, H100)),
        *(served("Qwen3-32B-NVFP4", machine) for machine in (H100, B200)),
        served("Qwen2.5-72B-Instruct-AWQ", B200),
        served("Meta-Llama-3.1-70B", A100),
    )
    assert [pair[:2] for pair in found] == [
        ("mxfp4", "bf16"), ("mxfp4", "bf16"), ("mxfp4", "fp8"), ("fp8-block", "bf16"), ("fp8-block", ""),
        ("fp4", "bf16"), ("fp4", ""), ("int4-128", "bf16"), ("bf16", ""),
    ]  # fmt: skip
    results = evaluate(plans(served("gpt-oss-120b", A100), served("gpt-oss-120b", H100)), catalog)
    assert (results.number("fits") == 1.0).all() and (results.number("tpot") > 0.0).all()


def test_the_cache_is_as_the_engine_keeps_it(catalog: Catalog) -> None:
    """vLLM and SGLang keep 16 bits unless told; TensorRT-LLM takes kv_cache_quant_algo (NVIDIA's FP8 and NVFP4)."""
    row = served("DeepSeek-R1-NVFP4", B200, 8)
    engines = [{**row, "software": name} for name in ("vllm", "sglang", "tensorrt-llm")]
    own = {**served("DeepSeek-V3", H200, 8), "software": "tensorrt-llm"}  # config.json states none
    told = {**row, "kv_precision": "fp8"}
    assert [found[2] for found in formats(catalog, *engines, own, told)] == ["bf16", "bf16", "fp8", "bf16", "fp8"]


def test_int8_products_need_units_of_their_own(catalog: Catalog) -> None:
    """W8A8 has no weight-only kernels: an accelerator without an INT8 peak is refused, in its row alone."""
    row = served("Meta-Llama-3.1-70B-Instruct-quantized.w8a8", A100, 2)
    peaks = catalog.tables["accelerators"]
    lacking = str(peaks.text("accelerator")[np.flatnonzero(np.isnan(peaks.number("peak_flop_rate_int8")))[0]])
    results = evaluate(plans(row, {**row, "accelerator": lacking, "software": "in-house"}), catalog)
    assert results.number("tpot")[0] > 0.0 and np.isnan(results.number("tpot")[1])
    assert "states no peak rate for precision int8" in results["reason"][1]


def test_parts_of_a_mixed_checkpoint_add_up(catalog: Catalog) -> None:
    """DeepSeek-V4-Pro: MXFP4 experts, the rest in FP8, tables in 16 bits; Llama 3.1 405B: two layers of 16 bits."""
    rows = [served("DeepSeek-V4-Pro", H200, 8, precision=word) for word in ("auto", "mxfp4", "fp8", "bf16")]
    mixed, four, eight, wide = evaluate(plans(*rows), catalog).number("memory_weights")
    assert mixed < four < eight < wide  # mxfp4 alone leaves attention layers in 16 bits
    names = ("Meta-Llama-3.1-405B-Instruct-FP8", "Meta-Llama-3.1-405B")
    stated = {"precision": "fp8-tensor", "wide_attention": 1.0}
    whole, none = evaluate(plans(served(names[0], H100, 8), served(names[1], H100, 8, **stated)), catalog).number(
        "memory_weights"
    )
    assert whole - none == pytest.approx(2.0 * 3.0 * 16384.0 * 53248.0 / 8.0, rel=1e-6)  # two layers, one byte more


@pytest.mark.parametrize("accelerator", [A100, H100, B200])
@pytest.mark.parametrize("model", ["Meta-Llama-3.1-70B", "Mixtral-8x7B-v0.1", "gpt-oss-120b"])
def test_fewer_bits_never_take_more_memory_nor_time(catalog: Catalog, accelerator: str, model: str) -> None:
    """Weights alone in fewer bits, products in 16: not slower than 16-bit weights in decoding one request."""
    words = ("bf16", "int8-128", "int4", "int4-64", "int4-128")
    rows = [served(model, accelerator, 8, precision=word, activation_precision="bf16") for word in words]
    results = evaluate(plans(*rows), catalog)
    assert (np.diff(results.number("memory_weights")) <= 0.0).all()
    assert (results.number("tpot") <= results.number("tpot")[0]).all()


def test_names_state_formats() -> None:
    stored = {
        "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4": "int4-128", "Qwen2.5-7B-Instruct-GPTQ-Int8": "int8-128",
        "neuralmagic/Meta-Llama-3.1-8B-Instruct-quantized.w4a16": "int4-128", "x/m-quantized.w8a16": "int8-128",
        "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8": "int8", "RedHatAI/m-FP8-dynamic": "fp8-tensor",
        "Qwen/Qwen3-8B-FP8": "fp8", "nvidia/Llama-3.3-70B-Instruct-FP4": "fp4", "nvidia/m-NVFP4": "fp4",
        "amd/DeepSeek-R1-MXFP4-Preview": "mxfp4", "unsloth/gpt-oss-20b-BF16": "bf16", "m-bnb-4bit": "int4-64",
        "RedHatAI/m-FP8-block": "fp8-block", "RedHatAI/m-NVFP4A16": "fp4",
    }  # fmt: skip
    for name, format_ in stored.items():
        variant = variant_of_name(name)
        assert variant is not None and variant.layers == format_, name
    for name in ("openai/gpt-oss-120b", "Meta-Llama-3.1-70B", "Qwen3-30B-A3B", "DeepSeek-V3"):
        assert variant_of_name(name) is None


def test_bytes_of_formats() -> None:
    """NVFP4: 4 bits and a scale byte per 16; MXFP4: per 32; AWQ: an FP16 scale and a 4-bit zero point per 128."""
    sizes = {
        name: PRECISIONS[name].served_size for name in ("fp4", "mxfp4", "int4", "int4-128", "int8-128", "fp8-block")
    }
    assert sizes == {"fp4": 9 / 16, "mxfp4": 17 / 32, "int4": 9 / 16, "int4-128": 0.5 + 2.5 / 128,
                     "int8-128": 1.0 + 3.0 / 128, "fp8-block": 1.0 + 4.0 / 128**2}  # fmt: skip


def test_pools_of_unlike_machines_multiply_what_each_computes(catalog: Catalog) -> None:
    """gpt-oss prefilled on H100 in 16 bits and decoded on B200 in FP8: the pools of plans that state it."""
    row = {**served("gpt-oss-120b", B200, 2), "tensor_parallel": 1, "mode": "disaggregated", "concurrency": 4,
           "prefill_accelerators": 1, "prefill_accelerator": H100}  # fmt: skip
    alone = {**served("gpt-oss-120b", H100), "mode": "static", "concurrency": "", "batch_size": 1}
    pooled, whole = (evaluate(plans(each), catalog) for each in (row, alone))
    assert pooled.number("tpot")[0] > 0.0
    assert pooled.number("ttft")[0] >= whole.number("ttft")[0]
