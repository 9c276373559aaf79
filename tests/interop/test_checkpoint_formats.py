"""Formats of checkpoints from their quantization_config, as engines read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from xlperf.base.errors import InputError
from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.interop.checkpoints import FORMAT_COLUMNS, formats_of_checkpoint
from xlperf.interop.hugging_face import model_row
from xlperf.interop.hugging_face_files import read_config
from xlperf.interop.quantized_modules import checkpoint_columns

DENSE = {"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
         "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256}  # fmt: skip
MIXTURE = {"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
           "num_attention_heads": 64, "num_key_value_heads": 64, "vocab_size": 163840, "n_routed_experts": 384,
           "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1, "first_k_dense_replace": 1,
           "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
           "v_head_dim": 128}  # fmt: skip
INT4 = {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group", "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
NVFP4 = {"num_bits": 4, "type": "float", "group_size": 16}


def scheme(weights: dict[str, Any], inputs: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    group = {"weights": weights, "input_activations": inputs, "targets": ["Linear"]}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"], **more}


def formats(config: dict[str, Any], narrow: dict[str, Any]) -> dict[str, object]:
    row = model_row({**config, "quantization_config": narrow}, "m", "config.json").row
    return {name: row[name] for name in (*FORMAT_COLUMNS, "wide_layers", "fp8_blocks") if name in row}


DENSE_PARTS, EXPERTS = ("mlp_precision", "attention_precision"), ("expert_precision", "shared_expert_precision")


@pytest.mark.parametrize(
    ("narrow", "stored", "more"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8-block", {"fp8_blocks": "yes"}),
        ({"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}, "fp8-tensor", {}),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": None}, "int4-128", {}),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": True}, "int4-64", {}),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "int8-128", {}),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128}, "int4-128", {}),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4-64", {}),
        # RedHatAI quantized.w8a8, quantized.w8a16, FP8-dynamic and NVFP4A16
        (scheme(INT8, INT8), "int8", {}),
        (scheme(INT8, None), "int8-128", {}),
        (scheme(FP8, FP8), "fp8-tensor", {}),
        (scheme({**FP8, "strategy": "block", "block_structure": "128x128"}, FP8), "fp8-block", {"fp8_blocks": "yes"}),
        (scheme(NVFP4, NVFP4), "fp4", {}),
        (scheme(NVFP4, None), "fp4", {"checkpoint_activations": "bf16"}),
        (scheme({**INT4, "group_size": 128}, FP8), "int4-128", {"checkpoint_activations": "fp8"}),
        # NVIDIA ModelOpt, in config.json
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": {"num_bits": 8, "type": "float"},
          "ignore": ["lm_head"]}, "fp4", {"checkpoint_kv_precision": "fp8"}),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, "fp8-tensor",
         {"checkpoint_kv_precision": "fp8"}),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32},
          "input_tensors": {"dtype": "fp4"}}, "exclude": ["lm_head"]}, "mxfp4", {"checkpoint_activations": "fp4"}),
    ],
)  # fmt: skip
def test_linear_layers_of_one_format(narrow: dict[str, Any], stored: str, more: dict[str, str]) -> None:
    assert formats(DENSE, narrow) == {**dict.fromkeys(DENSE_PARTS, stored), **more}


def test_modules_that_are_left_in_16_bits() -> None:
    """moonshotai/Kimi-K2-Thinking; meta-llama/Llama-3.1-405B-Instruct-FP8, whose list has first and last layers."""
    ignore = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]
    assert formats(MIXTURE, scheme(INT4, None, ignore=ignore)) == {"expert_precision": "int4"}
    left = [f"model.layers.{layer}.mlp.{name}_proj" for layer in (0, 79) for name in ("up", "gate", "down")]
    left += [f"model.layers.{layer}.self_attn.{name}_proj" for layer in range(80) for name in "qkvo"]
    narrow = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": [*left, "lm_head"]}
    assert formats(DENSE, narrow) == {"mlp_precision": "fp8-tensor", "wide_layers": 2}


def test_layers_of_unlike_formats() -> None:
    """ModelOpt's mixed precision names the algorithm of each layer; an output projection counts if it is named."""
    layers = {
        f"model.layers.{layer}.self_attn.{name}_proj": {"quant_algo": "FP8"} for layer in range(80) for name in "qkvo"
    }
    layers |= {f"model.layers.{layer}.mlp.{name}_proj": {"quant_algo": "NVFP4"} for layer in range(80)
               for name in ("gate", "up", "down")}  # fmt: skip
    narrow = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    assert formats(DENSE, narrow) == {"mlp_precision": "fp4", "attention_precision": "fp8-tensor"}
    assert (
        formats(DENSE, {"quant_method": "gptq", "bits": 4, "group_size": 128, "lm_head": True})["head_precision"]
        == "int4-128"
    )


def _mixed(**formats: str) -> dict[str, Any]:
    """ModelOpt's mixed precision: algorithms by names of modules below ``model.language_model.layers``."""
    layers = {f"model.language_model.layers.{layer}.{name.replace('__', '.')}": {"quant_algo": algorithm}
              for layer in range(61) for name, algorithm in formats.items()}  # fmt: skip
    return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}


EXPERTS_NVFP4 = {"expert_precision": "fp4"}
QUARK = {"quant_method": "quark", "exclude": ["lm_head"], "global_quant_config": {
    "weight": {"dtype": "fp4", "group_size": 32}, "input_tensors": {"dtype": "fp4"}}}  # fmt: skip


@pytest.mark.parametrize(
    ("narrow", "stored"),
    [
        # nvidia/DeepSeek-V4-Flash-NVFP4: FP8 of the publisher, experts by name, whose list of ignored modules is theirs
        ({"quant_method": "fp8", "weight_block_size": [128, 128], "ignore": ["*.attn.*", "*.ffn.shared_experts.*"],
          "quantized_layers": _mixed(ffn__experts="NVFP4")["quantized_layers"]},
         {**dict.fromkeys((*EXPERTS, *DENSE_PARTS), "fp8-block"), **EXPERTS_NVFP4}),
        # nvidia/Qwen3.6-35B-A3B-NVFP4: all experts under one name; MTP modules are no layers of the model
        ({**_mixed(linear_attn__in_proj_qkv="FP8", mlp__experts="W4A16_NVFP4",
                   mlp__shared_expert__up_proj="W4A16_NVFP4"), "ignore": ["mtp.layers.0*"]},
         {"attention_precision": "fp8-tensor", **dict.fromkeys(EXPERTS, "fp4")}),
        # nvidia/MiniMax-M3-NVFP4
        (_mixed(block_sparse_moe__experts__0__w1="NVFP4", self_attn__q_proj="MXFP8", mlp__up_proj="MXFP8"),
         {"attention_precision": "fp8-block", "mlp_precision": "fp8-block", **EXPERTS_NVFP4}),
        # GPTQModel and AutoRound: rules for single modules
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"-:.*self_attn.*": {}}},
         {**dict.fromkeys((*EXPERTS, "mlp_precision"), "int4-128")}),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "extra_config": {
            f"model.layers.{layer}.mlp.shared_experts": {"bits": 8} for layer in range(61)}},
         {**dict.fromkeys(("expert_precision", *DENSE_PARTS), "int4-128"), "shared_expert_precision": "int8-128"}),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "llm_int8_skip_modules": ["lm_head", "self_attn"]},
         {**dict.fromkeys((*EXPERTS, "mlp_precision"), "int4-64")}),
        # amd/DeepSeek-R1-MXFP4 with attention in FP8
        ({**QUARK, "layer_quant_config": {"*self_attn*": {"weight": {"dtype": "fp8_e4m3"}}}},
         {**dict.fromkeys((*EXPERTS, "mlp_precision"), "mxfp4"), "attention_precision": "fp8-tensor"}),
        ({"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": {"num_bits": 8}},
         {"checkpoint_kv_precision": "fp8"}),
    ],
)  # fmt: skip
def test_rules_for_single_modules_of_a_mixture(narrow: dict[str, Any], stored: dict[str, str]) -> None:
    result = formats(MIXTURE, narrow)
    assert {name: result[name] for name in result if name not in ("fp8_blocks", "checkpoint_activations")} == stored


def test_parts_have_the_layers_of_their_kind() -> None:
    """nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4: Mamba-2 in FP8, experts in NVFP4, attention left out; every
    second layer of Llama 4 Maverick is dense; vision towers have layers of the same numbers.
    """
    marks = "MEM*E" * 4
    hybrid = {"model_type": "nemotron_h", "hidden_size": 2688, "num_hidden_layers": 20,
              "hybrid_override_pattern": marks, "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
              "intermediate_size": 1856, "moe_intermediate_size": 1856, "n_routed_experts": 128,
              "num_experts_per_tok": 6, "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8,
              "ssm_state_size": 128, "conv_kernel": 4, "vocab_size": 131072}  # fmt: skip
    names = {"M": ("mixer.in_proj", "FP8"), "E": ("mixer.experts.0.up_proj", "NVFP4"), "*": ("mixer.q_proj", "")}
    layers = {f"backbone.layers.{at}.{names[mark][0]}": {"quant_algo": names[mark][1]} for at, mark in enumerate(marks)
              if mark != "*"}  # fmt: skip
    left = [f"backbone.layers.{at}.mixer.q_proj" for at, mark in enumerate(marks) if mark == "*"]
    narrow = {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers, "exclude_modules": left}}
    assert formats(hybrid, narrow) == {"attention_precision": "fp8-tensor", "expert_precision": "fp4"}
    step = {**MIXTURE, "model_type": "llama4_text", "interleave_moe_layer_step": 2, "num_hidden_layers": 48,
            "intermediate_size_mlp": 16384, "attention_chunk_size": 8192}  # fmt: skip
    step = {key: value for key, value in step.items() if not key.startswith(("q_l", "kv_", "qk_", "v_h", "first"))}
    ignore = ["re:.*self_attn", "model.vision_tower.encoder.layers.0.mlp.up_proj"]
    assert formats(step, scheme(FP8, FP8, ignore=ignore)) == {
        **dict.fromkeys((*EXPERTS, "mlp_precision"), "fp8-tensor")
    }


def test_experts_beside_a_dense_block_have_names_of_their_own() -> None:
    """nvidia/Gemma-4-26B-A4B-NVFP4 leaves the dense block of each layer (mlp) in 16 bits, not its experts."""
    gemma = {"model_type": "gemma4_text", "hidden_size": 2816, "intermediate_size": 2112, "num_hidden_layers": 30,
             "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "vocab_size": 262144,
             "sliding_window": 1024, "enable_moe_block": True, "num_experts": 128, "top_k_experts": 8,
             "moe_intermediate_size": 704}  # fmt: skip
    left = [f"model.language_model.layers.{layer}.{part}*" for layer in range(30) for part in ("mlp", "self_attn")]
    narrow = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": left}
    assert formats(gemma, narrow) == EXPERTS_NVFP4
    row = model_row({**gemma, "quantization_config": narrow}, "m", "config.json").row
    stored = formats_of_checkpoint(table_from_rows("models", list(row), [list(row.values())]), 0, "m")
    assert (stored.main, stored.parts["mlp"]) == ("fp4", "bf16")


def test_the_earlier_name_of_the_entry_counts() -> None:
    """compression_config of llm-compressor until 2024 (neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8)."""
    row = model_row({**DENSE, "compression_config": scheme(FP8, FP8)}, "m", "config.json").row
    assert row["attention_precision"] == "fp8-tensor"


def test_a_configuration_of_modelopt_lies_beside(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DENSE))
    stated = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    beside = {"producer": {"name": "modelopt"}, "quantization": stated}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    row = model_row(read_config(tmp_path)[0], "m", "config.json").row
    assert (row["mlp_precision"], row["checkpoint_kv_precision"]) == ("fp8-tensor", "fp8")


@pytest.mark.parametrize(
    ("narrow", "words"),
    [
        ({"quant_method": "aqlm"}, 'quantization method "aqlm" is not known: known are awq, gptq'),
        ({"bits": 4, "group_size": 64}, 'quantization method "not named" is not known'),  # MLX converts embeddings too
        (_mixed(mlp__experts="NF3"), 'quantization algorithm "NF3" is not known: known are NVFP4'),
        (
            {"quant_method": "modelopt", "quant_algo": "NF3"},
            'quantization algorithm "NF3" is not known: known are NVFP4',
        ),
    ],
)
def test_an_unknown_method_is_named_with_what_would_do(narrow: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match="state the precision in plans") as caught:
        model_row({**DENSE, "quantization_config": narrow}, "m", "config.json")
    assert words in str(caught.value) and str(caught.value).startswith("config.json")


def test_shipped_rows_have_the_formats_of_their_public_configurations() -> None:
    """quantization_config of openai/gpt-oss-120b, MiniMaxAI/MiniMax-M2.5, deepseek-ai/DeepSeek-V3.2 and V4."""
    models = load_catalog().tables["models"]
    names = models.text("model").tolist()
    wanted = ("gpt-oss-120b", "MiniMax-M2.5", "DeepSeek-V3.2", "DeepSeek-V4-Flash", "Kimi-K2.5")
    shipped = {name: {each: models.text(each)[names.index(name)] for each in FORMAT_COLUMNS} for name in wanted}
    blocks = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    ignore = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]
    configs = {
        "gpt-oss-120b": ({**DENSE, "model_type": "gpt_oss", "num_local_experts": 128, "num_experts_per_tok": 4},
                         {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}),
        "DeepSeek-V3.2": (MIXTURE, blocks),
        "Kimi-K2.5": (MIXTURE, scheme(INT4, None, ignore=ignore)),
    }  # fmt: skip
    for name, (config, narrow) in configs.items():
        own = formats(config, narrow)
        assert {column: own.get(column, "") for column in FORMAT_COLUMNS} == shipped[name]
    assert (
        shipped["MiniMax-M2.5"]["expert_precision"]
        == shipped["DeepSeek-V4-Flash"]["attention_precision"]
        == "fp8-block"
    )
    assert shipped["DeepSeek-V4-Flash"]["expert_precision"] == "mxfp4"


@pytest.mark.parametrize("pattern", ["([a-z_.0-9]+)+!", ".*" * 9 + "!", "a?" * 30, "(.|x)" * 30 + "!"])
def test_a_pattern_that_may_match_in_too_many_ways_is_refused(pattern: str) -> None:
    """A short file must not hang its reader: each of these tries millions of ways on the name of one module."""
    narrow = {
        "quant_method": "compressed-tensors", "ignore": [f"re:{pattern}"],
        "config_groups": {"group": {"weights": {"num_bits": 8, "type": "float"}, "targets": ["Linear"]}},
    }  # fmt: skip
    with pytest.raises(InputError, match="too many ways"):
        checkpoint_columns(narrow, {"num_layers": 2}, {}, "config.json")
