"""A list of layers: equal layers are today's model, and the order of kinds moves nothing."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate

SERVED: list[dict[str, Any]] = [
    {"num_accelerators": 8, "tensor_parallel": 4, "prompt_length": 3000, "output_length": 300, "concurrency": 24,
     "software": "vllm"},
    {"num_accelerators": 8, "tensor_parallel": 8, "prompt_length": 300, "output_length": 30, "concurrency": 4,
     "software": "sglang"},
]  # fmt: skip
TRAINED: list[dict[str, Any]] = [
    {"num_accelerators": 64, "tensor_parallel": 4, "pipeline_parallel": 2, "sequence_length": 8192,
     "global_batch_size": 128, "recompute": recompute, "precision": precision}
    for recompute in ("none", "selective", "full")
    for precision in ("bf16", "fp8")
]  # fmt: skip


@cache
def _shipped() -> Catalog:
    return load_catalog()


def _row(name: str) -> dict[str, Any]:
    """A shipped model as cells by column, under a name of its own."""
    models = _shipped().tables["models"]
    at = models["model"].tolist().index(name)
    row: dict[str, Any] = {}
    for column in models.schema.columns:
        value = models[column.name][at] if column.name in models else ""
        if column.name not in ("aliases", "stated_parameters", "stated_active_parameters") and value == value:
            row[column.name] = ("yes" if value else "no") if column.kind == "flag" else value
    return {**{column: value for column, value in row.items() if value != ""}, "model": "Probe"}


def _results(row: dict[str, Any]) -> list[Table]:
    models = table_from_rows("models", list(row), [list(row.values())])
    others = (table for kind, table in _shipped().tables.items() if kind != "models")
    catalog = Catalog.from_tables([models, *others], "")
    results = []
    for kind, plans in (("inference", SERVED), ("training", TRAINED)):
        header = ["model", "accelerator", *plans[0]]
        cells = [["Probe", "H100-SXM-80GB", *plan.values()] for plan in plans]
        results.append(evaluate(table_from_rows(kind, header, cells), catalog))
    return results


def _same(row: dict[str, Any], changes: dict[str, Any]) -> None:
    """Every result without its band, which knows the model's nearest measured run by its pattern."""
    for before, after in zip(_results(row), _results({**row, **changes}), strict=True):
        assert np.isfinite(before.columns["energy_per_token"]).all()
        for name, values in before.columns.items():
            if values.dtype == np.float64 and not name.endswith(("_low", "_high")):
                np.testing.assert_allclose(after[name], values, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("Meta-Llama-3.1-8B", {"attention_pattern": "32 full", "ffn_pattern": "32 dense 14336"}),
        ("Meta-Llama-3.1-8B", {"attention_pattern": "20 full : 12 full", "ffn_pattern": "20 dense 14336 : 12 dense"}),
        ("Meta-Llama-3.1-8B", {"local_num_attention_heads": 32}),
        ("Mistral-7B-v0.1", {"local_num_query_groups": 8}),
        ("gpt-oss-120b", {"local_head_size": 64, "ffn_pattern": "36 experts"}),
        ("Mixtral-8x7B-v0.1", {"attention_pattern": "32 full", "ffn_pattern": "32 experts"}),
        ("DeepSeek-V3", {"attention_pattern": "61 full"}),
        ("Qwen3.5-27B", {"attention_pattern": "48 linear (gated delta net) : 16 full"}),
        (
            "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
            {"attention_pattern": "23 Mamba-2 : 6 full : 23 none", "ffn_pattern": "23 experts : 29 none"},
        ),
    ],
)
def test_equal_layers_in_a_list_are_the_model_without_a_list(name: str, changes: dict[str, Any]) -> None:
    _same(_row(name), changes)


def test_the_order_of_kinds_moves_nothing() -> None:
    shapes = {
        "local_num_query_groups": 4,
        "local_head_size": 64,
        "ffn_pattern": "20 dense 9000 : 8 none : 4 dense 5000",
    }
    row = {**_row("Meta-Llama-3.1-8B"), **shapes, "attention_pattern": "6 full : 22 sliding 512 : 4 none"}
    turned = {
        "attention_pattern": "4 none : 22 sliding 512 : 6 full",
        "ffn_pattern": "4 dense 5000 : 20 dense 9000 : 8 none",
    }
    _same(row, turned)


def test_unlike_layers_lie_between_models_of_either_kind() -> None:
    """Half of the layers without attention, or half as wide: between all of the layers with it and none."""
    row = _row("Meta-Llama-3.1-8B")
    whole, half, none = (
        _results({**row, "attention_pattern": pattern})
        for pattern in ("32 full", "16 full : 16 none", "1 full : 31 none")
    )
    for kind, names in enumerate((("ttft", "tpot", "memory_kv_cache", "memory_weights"), ("step_time", "memory"))):
        for name in names:
            assert (none[kind][name] < half[kind][name]).all() and (half[kind][name] < whole[kind][name]).all(), name
    kept = half[0]["memory_kv_cache"] / whole[0]["memory_kv_cache"]
    assert kept == pytest.approx(0.5, rel=1e-9)
