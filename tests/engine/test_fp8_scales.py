"""FP8 whose scales hold for blocks of 128 x 128 weights, or for a tensor: plans, models, published rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from xlperf.calibrate.fitter import FittedConstant, calibration_table, joined_tables
from xlperf.calibrate.published_errors import stored_precision
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_columns
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.equations.model.model import busiest_rank_load, preference_variance
from xlperf.interop.hugging_face import model_row
from xlperf.measurements.inference import inference_plans
from xlperf.measurements.published import published_rows

DENSE = {"model": "Qwen3-32B", "num_accelerators": 2, "tensor_parallel": 2}
EXPERTS = {"model": "DeepSeek-V3", "num_accelerators": 8, "tensor_parallel": 8, "expert_parallel": 8}
BASE = {"accelerator": "H200-SXM-141GB", "prompt_length": 2048, "output_length": 256, "batch_size": 16}
TIMES = ("ttft", "tpot", "memory", "tokens_per_second")


def plans(*rows: Mapping[str, Any]) -> Table:
    full = [{**BASE, **row} for row in rows]
    names = sorted({name for row in full for name in row})
    columns = {name: np.array([row.get(name, "") for row in full], dtype=object) for name in names}
    return table_from_columns("inference", columns, lambda row, column: f"row {row} {column}")


def published_as(catalog: Catalog, blocks: float, *names: str) -> Catalog:
    """The catalog whose models of these names are published in FP8 with scales of blocks (1) or tensors (0)."""
    models = catalog.tables["models"]
    own = np.isin(models.text("model").astype(str), names)
    known = models.number("fp8_blocks") if "fp8_blocks" in models else np.full(len(models), math.nan)
    return catalog.with_tables(
        [Table("models", {**models.columns, "fp8_blocks": np.where(own, blocks, known)}, models.place)]
    )


def found(catalog: Catalog, name: str, *rows: Mapping[str, Any]) -> list[float]:
    results = evaluate(plans(*rows), catalog)
    assert not np.isnan(results.number("tpot")).any(), results.text("reason").tolist()
    return [float(value) for value in results.number(name)]


@pytest.mark.parametrize("row", [DENSE, EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize("mode", ["static", "continuous", "disaggregated"])
def test_fp8_is_scaled_as_the_published_checkpoint(catalog: Catalog, row: dict[str, Any], mode: str) -> None:
    own = {**row, "mode": mode} if mode == "static" else {**row, "mode": mode, "batch_size": "", "concurrency": 64}
    if mode == "disaggregated":
        own["num_accelerators"] = 2 * row["num_accelerators"]
    three = [{**own, "precision": word} for word in ("fp8", "fp8-block", "fp8-tensor")]
    for kind, same in ((1.0, 1), (0.0, 2)):
        of_kind = published_as(catalog, kind, row["model"])
        for name in TIMES:
            values = found(of_kind, name, *three)
            assert values[0] == values[same], (kind, name)
        assert found(of_kind, "tpot", *three)[1] != found(of_kind, "tpot", *three)[2]


def test_plans_beside_it_keep_their_precision(catalog: Catalog) -> None:
    """Of models that are published in blocks, FP8 alone is theirs; other models have none of it."""
    rows = [{**DENSE, "precision": word} for word in ("bf16", "fp8-tensor")] + [{**EXPERTS, "precision": "fp8-tensor"}]
    before, after = (published_as(catalog, blocks, "Qwen3-32B", "DeepSeek-V3") for blocks in (0.0, 1.0))
    assert found(before, "tpot", *rows) == found(after, "tpot", *rows)
    other = published_as(catalog, 1.0, "DeepSeek-V3")
    assert found(published_as(other, 0.0, "Qwen3-32B"), "tpot", {**DENSE, "precision": "fp8"}) == found(
        published_as(catalog, 0.0, "Qwen3-32B"), "tpot", {**DENSE, "precision": "fp8"}
    )


def test_scales_of_blocks_are_four_bytes_of_sixteen_thousand(catalog: Catalog) -> None:
    """A checkpoint has an FP32 scale for 128 x 128 weights; what else a rank holds is the same."""
    rows = [{**DENSE, "precision": word} for word in ("fp8-block", "fp8-tensor")]
    block, tensor = found(catalog, "memory_weights", *rows)
    wide = found(catalog, "memory_weights", {**DENSE, "precision": "bf16"})[0]
    narrow = wide - tensor  # bytes of the layers' matrices in FP8: half of what 16 bits add to them
    assert block - tensor == pytest.approx(4.0 / 128.0**2 * narrow, rel=1e-6)


def test_each_kind_has_its_kernels(catalog: Catalog) -> None:
    """Products of half the rate in blocks slow a plan in blocks and leave one by tensors as it is."""
    rows = [
        {**DENSE, "precision": word, "batch_size": 1, "prompt_length": 8192} for word in ("fp8-block", "fp8-tensor")
    ]
    names = sorted({*catalog.tables["calibration"].text("software").tolist(), "any", "tensorrt-llm"})
    slow = [
        FittedConstant("gemm", "hopper", "fp8_block", one, "compute_efficiency", 0.4, "", 0, math.nan, "", "")
        for one in names
    ]
    changed = catalog.with_tables([joined_tables(catalog.tables["calibration"], calibration_table(slow))])
    before, after = found(catalog, "ttft", *rows), found(changed, "ttft", *rows)
    assert after[0] > 1.2 * before[0]
    assert after[1] == before[1]


def test_a_configuration_says_how_its_checkpoint_is_scaled() -> None:
    config = {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 2,
        "intermediate_size": 512, "vocab_size": 1000,
    }  # fmt: skip
    block = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    packed = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"strategy": "block"}}}}
    channel = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"strategy": "channel"}}}}
    words = [model_row({**config, "quantization_config": one}, "m", "s").row.get("fp8_blocks") for one in
             (block, packed, channel, {"quant_method": "fp8"}, None)]  # fmt: skip
    assert words == ["yes", "yes", None, None, None]


def test_published_rows_are_scaled_as_their_checkpoints(catalog: Catalog) -> None:
    """NVIDIA's own tables run checkpoints of ModelOpt, as their rows state; others those of the model's publisher."""
    names = "row_id source_id group model gpu n_gpus tp mode batch isl osl precision framework tpot_ms settings"
    lines = (
        "1 nvidia static Qwen3-235B-A22B H200-SXM-141GB 8 8 static 8 100 100 fp8 TensorRT-LLM 9 precision=fp8-tensor",
        "2 someone static Qwen3-235B-A22B H200-SXM-141GB 8 8 static 8 100 100 fp8 vLLM 9 graphs=yes",
        "3 someone static Meta-Llama-3.1-70B H200-SXM-141GB 8 8 static 8 100 100 fp8 vLLM 9 graphs=yes",
    )
    header, rows = names.split(), [line.split() for line in lines]
    printed = published_rows(header, rows, lambda row, column: f"row {row} {column}")
    made = inference_plans(printed, published_as(catalog, 1.0, "Qwen3-235B-A22B"))
    assert made.plans.text("precision").tolist() == ["fp8-tensor", "fp8", "fp8"]
    assert stored_precision(made) == ["fp8", "fp8", "fp8"]


def test_preferred_experts_load_ranks_unevenly_however_many_tokens_there_are() -> None:
    """Experts of 2.19 and 0.36 times the mean of visits, shuffled on 8 ranks: variance and mean of the fullest rank."""
    share, experts, ranks = 0.4, 160, 8
    draw = np.random.default_rng(5)
    visits = np.where(np.arange(experts) < share * experts, 3.0 - 3.0 * share + share**2, (1.0 - share) ** 2)
    assert visits.mean() == pytest.approx(1.0)
    loads = np.array([draw.permutation(visits).reshape(ranks, -1).mean(axis=1) for _ in range(4000)])
    held = np.full(1, experts / ranks)
    variance = preference_variance(np.full(1, float(experts)), np.full(1, 4.0), held, share)
    assert loads.var() == pytest.approx(float(variance[0]), rel=0.03)
    fullest = busiest_rank_load(np.full(1, 1e9), np.full(1, float(ranks)), lasting=variance) / 1e9
    assert loads.max(axis=1).mean() == pytest.approx(float(fullest[0]), rel=0.02)
    assert busiest_rank_load(np.full(1, 1e9), np.full(1, float(ranks)))[0] == pytest.approx(1e9, rel=1e-4)
    assert preference_variance(np.full(1, 8.0), np.full(1, 2.0), np.full(1, 8.0), share).tolist() == [0.0]


def test_activations_of_fp8_are_those_of_the_checkpoint(catalog: Catalog) -> None:
    """Weights in FP8 whose products are FP8 have the times of weights in FP8 alone."""
    known = published_as(catalog, 1.0, "Qwen3-32B")
    for name in ("tpot", "ttft"):
        alone, stated = found(
            known, name, *({**DENSE, "precision": "fp8", "activation_precision": word} for word in ("", "fp8"))
        )
        assert alone == stated
