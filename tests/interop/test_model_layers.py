"""Configurations with layers of unlike kinds: parameters of their cards, and plans of each that evaluate."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from places import DATA

from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.engine import evaluate
from xlperf.engine.catalog_arrays import catalog_models
from xlperf.equations.model.operators import parameter_count
from xlperf.interop.hugging_face import ModelRow, model_row

PUBLIC: list[dict[str, Any]] = json.loads((DATA / "hugging_face_layers.json").read_text(encoding="utf-8"))
CONFIGS = {entry["model"]: entry["config"] for entry in PUBLIC}


def _read(name: str, **changes: object) -> ModelRow:
    return model_row({**CONFIGS[name], **changes}, name, "x")


@cache
def _shipped() -> Catalog:
    return load_catalog()


def _catalog(row: dict[str, object]) -> Catalog:
    models = table_from_rows("models", list(row), [list(row.values())])
    return Catalog.from_tables([models, *(table for kind, table in _shipped().tables.items() if kind != "models")], "")


@pytest.mark.parametrize("entry", PUBLIC, ids=lambda entry: entry["model"])
def test_parameters_are_those_of_the_card(entry: dict[str, Any]) -> None:
    """Total within 0.5 %; active ones within 3.5 % of a rounded number of billions."""
    result = model_row(entry["config"], entry["model"], entry["source"])
    models, reasons = catalog_models(_catalog(result.row))
    assert (result.refused, reasons[0], result.unread) == ("", "", [])
    if entry["parameters"]:
        assert float(parameter_count(models)[0]) == pytest.approx(entry["parameters"], rel=0.005)
    if entry["active"]:
        active = float(parameter_count(models, experts_per_token=True)[0])
        assert active == pytest.approx(entry["active"], rel=0.035)


def test_the_kinds_of_layers_are_all_there() -> None:
    words = " ".join(str(_read(name).row.get("attention_pattern")) for name in CONFIGS)
    kinds = (
        "Kimi delta",
        "Mamba-1",
        "Mamba-2",
        "full + Mamba-2",
        "lightning",
        "RWKV-7",
        "convolution",
        "none",
        "sliding",
    )
    assert all(kind in words for kind in kinds)
    assert len([entry for entry in PUBLIC if entry["parameters"]]) >= 30


@pytest.mark.parametrize("entry", PUBLIC, ids=lambda entry: entry["model"])
def test_a_served_and_a_trained_plan_have_results(entry: dict[str, Any]) -> None:
    """Ranks hold caches and states, and together the weights of the model."""
    row = model_row(entry["config"], entry["model"], "x").row
    catalog, experts = _catalog(row), row.get("num_experts")
    common = {"model": entry["model"], "accelerator": "H200-SXM-141GB", "precision": "bf16"}
    served = {**common, "num_accelerators": 2, "tensor_parallel": 2, "prompt_length": 900, "output_length": 100,
              "batch_size": 4, "software": "home-made"}  # fmt: skip
    trained = {**common, "num_accelerators": 16, "pipeline_parallel": 2, "sequence_length": 2048,
               "expert_parallel": 8 if experts else 1, "recompute": "selective"}  # fmt: skip
    for kind, plan, results in (
        ("inference", served, ("ttft", "tpot", "memory_kv_cache", "memory_weights")),
        ("training", trained, ("step_time", "mfu", "memory_activations", "memory_weights")),
    ):
        table = evaluate(table_from_rows(kind, list(plan), [list(plan.values())]), catalog)
        for name in results:
            assert table[name][0] > 0.0, (kind, name, table["reason"][0])
        if kind == "inference":
            total = float(parameter_count(catalog_models(catalog)[0])[0])
            held = 2.0 * table["memory_weights"][0] / 2.0
            assert 0.98 * total < held < 1.15 * total, "but for copies of heads and tables that ranks do not share"


def test_states_and_keys_are_what_the_layers_hold() -> None:
    """MiMo-V2: 9 layers with 4, 39 with 8 heads of 192 + 128; Falcon-Mamba: 8,192 x 16 states, 3 x 8,192 inputs."""

    def cache(name: str, context: int) -> float:
        row = _read(name).row
        plan = {"model": name, "accelerator": "H200-SXM-141GB", "num_accelerators": 1, "prompt_length": context - 100,
                "output_length": 100, "batch_size": 1, "software": "home-made", "precision": "bf16",
                "kv_precision": "bf16"}  # fmt: skip
        table = evaluate(table_from_rows("inference", list(plan), [list(plan.values())]), _catalog(row))
        return float(table["memory_kv_cache"][0])

    near, far = cache("MiMo-V2-Flash", 2000), cache("MiMo-V2-Flash", 4000)
    assert far - near == pytest.approx(2000 * 9 * 4 * (192 + 128) * 2, rel=1e-9)
    assert near - (far - near) == pytest.approx(128 * 39 * 8 * (192 + 128) * 2, rel=1e-9)
    assert cache("falcon-mamba-7b", 2000) == pytest.approx(64 * (8192 * 16 * 4 + 3 * 8192 * 2), rel=1e-9)
    shared = cache("gemma-4-E4B", 4000) - cache("gemma-4-E4B", 2000)
    assert shared == pytest.approx(2000 * 4 * 2 * 2 * 512 * 2, rel=1e-9), "4 of 7 layers have keys of their own"


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("Kimi-Linear-48B-A3B", {"linear_attn_config": {"num_heads": 32}}, "Kimi delta attention without"),
        ("MiMo-V2-Flash", {"hybrid_layer_pattern": [0, 1]}, "hybrid_layer_pattern"),
        ("granite-4.0-h-small", {"layer_types": ["mamba"] * 39 + ["hashing"]}, "layers of the kinds hashing"),
        ("LFM2-8B-A1B", {"layer_types": ["conv"] * 3}, "layers without a kind"),
        ("MiniMax-Text-01", {"attn_type_list": [1, 0, 0]}, "lightning attention that no list names"),
        (
            "Llama-3_3-Nemotron-Super-49B-v1",
            {"block_configs": [{"attention": {"replace_with_linear": True}, "ffn": {"ffn_mult": 2.625}}] * 80},
            "replace_with_linear",
        ),
        (
            "Llama-3_3-Nemotron-Super-49B-v1",
            {
                "block_configs": [
                    {"attention": {"n_heads_in_group": 8 * (1 + at % 2)}, "ffn": {"ffn_mult": 5.25}} for at in range(80)
                ]
            },
            "unlike numbers of key and value heads",
        ),
    ],
)
def test_what_no_column_holds_is_refused_by_name(name: str, changes: dict[str, object], reason: str) -> None:
    result = _read(name, **changes)
    assert reason in result.refused
    assert catalog_models(_catalog(result.row))[1][0] != ""


def test_a_list_in_no_known_form_is_one_line() -> None:
    for name, changes in (
        ("Llama-3_3-Nemotron-Super-49B-v1", {"block_configs": ["a"] * 80}),
        ("Kimi-K3", {"text_config": {**CONFIGS["Kimi-K3"]["text_config"], "linear_attn_config": [1]}}),
    ):
        with pytest.raises(InputError, match="lists its layers in a form that is not known"):
            _read(name, **changes)


def test_a_pattern_that_does_not_fit_is_a_reason() -> None:
    row = _read("MiMo-V2-Flash").row
    for changes, words in (
        ({"attention_pattern": "8 full : 39 sliding 128"}, "48 layers, which are not those of its pattern"),
        ({"attention_pattern": "9 full : 20 sliding 128 : 19 sliding 64"}, "several kinds"),
        ({"attention_pattern": "9 full : 39 hashing"}, "not known"),
        ({"attention_pattern": "9 full : 39 Mamba-2"}, "without their heads"),
        ({"ffn_pattern": "1 dense : 46 experts"}, "not those of its ffn pattern"),
        (
            {"ffn_pattern": "48 experts", "num_experts": None, "top_k": None},
            "lists layers with experts and states none",
        ),
        ({"attention_pattern": "48 none"}, "no layer with attention or a state"),
        ({"shared_kv_layers": 48}, "no layer with keys and values of its own"),
    ):
        assert words in catalog_models(_catalog({**row, **changes}))[1][0]
