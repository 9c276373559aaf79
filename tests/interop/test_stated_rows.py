"""Rows of models that a log, a launch script or the arguments of a training stack state."""

from __future__ import annotations

import re

import pytest

from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.engine.catalog_arrays import catalog_models
from xlperf.equations.model.operators import parameter_count
from xlperf.interop.hugging_face import model_row
from xlperf.interop.stated_rows import stated_model

_GPT = {
    "add_bias_linear": True, "ffn_hidden_size": 4096, "group_query_attention": False, "hidden_size": 1024,
    "kv_channels": 64, "kv_lora_rank": 32, "max_position_embeddings": 1024, "moe_router_topk": 2,
    "multi_latent_attention": False, "normalization": "LayerNorm", "num_attention_heads": 16, "num_experts": None,
    "num_layers": 24, "num_query_groups": 1, "position_embedding_type": "learned_absolute", "swiglu": False,
    "tensor_model_parallel_size": 1, "untie_embeddings_and_output_weights": False, "vocab_size": None,
}  # fmt: skip
_SMALL = (
    "pretrain_gpt.py --disable-bias-linear --max-position-embeddings 2048 --position-embedding-type rope --num-layers"
    " 24 --hidden-size 512 --num-attention-heads 4 --group-query-attention --num-query-groups 1 --ffn-hidden-size 1792"
    " --swiglu --normalization RMSNorm --untie-embeddings-and-output-weights --vocab-size 128256"
)
_LATENT = (
    "pretrain_gpt.py --moe-layer-freq '([0]*1+[1]*46)' --num-experts 64 --moe-shared-expert-intermediate-size 1536"
    " --moe-router-topk 4 --moe-ffn-hidden-size 1536 --num-layers 47 --hidden-size 2048 --ffn-hidden-size 10240"
    " --num-attention-heads 20 --disable-bias-linear --add-qkv-bias --swiglu --untie-embeddings-and-output-weights"
    " --position-embedding-type rope --no-position-embedding --normalization RMSNorm --qk-layernorm"
    " --multi-latent-attention --q-lora-rank 768 --kv-lora-rank 512 --qk-head-dim 192 --v-head-dim 256"
    " --qk-pos-emb-head-dim 64 --vocab-size 154880"
)
_TITAN = (
    "[titan] INFO - Building a b with TransformerModelArgs(dim=4096, n_layers=6, n_heads=32, n_kv_heads=None, "
    "vocab_size=32000, multiple_of=256, ffn_dim_multiplier=None, norm_eps=1e-05, max_seq_len=4096)\n"
    "[titan] INFO - Model a b size: 1,476,448,256 total parameters\n"
)
_MAXTEXT = {
    "attention_type": "global", "base_emb_dim": 8192, "base_mlp_dim": 28672, "base_num_decoder_layers": 80,
    "base_num_kv_heads": 8, "base_num_query_heads": 64, "decoder_block": "llama2", "head_dim": 128,
    "ici_fsdp_parallelism": 8, "logits_via_embedding": False, "num_experts": 1, "vocab_size": 32000,
}  # fmt: skip
_DEEPSEEK = """base_emb_dim: 7168
base_num_query_heads: 128
base_num_kv_heads: 128
base_mlp_dim: 18432
base_moe_mlp_dim: 2048
base_num_decoder_layers: 61
first_num_dense_layers: 3
vocab_size: 129280
num_experts: 256
num_experts_per_tok: 8
shared_experts: 1
decoder_block: "deepseek"
attention_type: "mla"
q_lora_rank: 1536
kv_lora_rank: 512
qk_nope_head_dim: 128
qk_rope_head_dim: 64
v_head_dim: 128
"""
_GEMMA = """base_num_decoder_layers: 23
base_emb_dim: 4608
base_num_query_heads: 32
base_num_kv_heads: 16
base_mlp_dim: 36864
head_dim: 128
vocab_size: 256128
decoder_block: "gemma2"
logits_via_embedding: True
sliding_window_size: 4096
"""


def _dumped(arguments: dict[str, object], rest: str) -> str:
    lines = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in arguments.items()]
    return "\n".join([*lines, rest])


_STATED = {
    "GPT-2 345M": (
        _dumped(_GPT, " > padded vocab (size: 50257) with 47 dummy tokens (new size: 50304)\n > number of parameters on"
                " (tensor, pipeline) model parallel rank (0, 0): 354871296\n"), 354_871_296, 0.0),
    "64 experts": (f"{_SMALL} --num-experts 64 --moe-router-topk 1", 4.3750e9, 2e-4),
    "dense of these": (_SMALL, 0.2132e9, 3e-4),
    "64 experts, nothing of MindSpeed": (
        f"{_SMALL} --num-experts 64 --moe-router-topk 1 --first-k-dense-replace -1 --moe-layer-freq -1",
        4.3750e9, 2e-4),
    "GPT 70B": (
        "pretrain_gpt.py --tensor-model-parallel-size 4 --num-layers 80 --num-attention-heads 64 --hidden-size 8192"
        " --max-position-embeddings 4096 --vocab-size 32000", 64.69e9, 1e-3),
    "GLM-4.7-Flash": (_LATENT, 29.94e9, 1e-3),
    "Ling-mini-2.0 of MindSpeed": (
        "pretrain_gpt.py --num-layers 20 --hidden-size 2048 --ffn-hidden-size 5120 --num-attention-heads 16"
        " --group-query-attention --num-query-groups 4 --qk-layernorm --moe-layer-freq 1 --num-experts 256"
        " --first-k-dense-replace 1 --n-shared-experts 1 --moe-ffn-hidden-size 512 --moe-router-topk 8"
        " --max-position-embeddings 65536 --padded-vocab-size 157184 --swiglu --disable-bias-linear"
        " --normalization RMSNorm --position-embedding-type rope --untie-embeddings-and-output-weights",
        16.256e9, 1e-4),
    "torchtitan": (_TITAN, 1_476_448_256, 0.0),
    "MaxText, latent attention": (_DEEPSEEK, 671.03e9, 1e-3),
    "MaxText, with an indexer": (
        f"{_DEEPSEEK}use_indexer: true\nindexer_n_heads: 64\nindexer_head_dim: 128\nindexer_topk: 2048\n",
        671.88e9, 1e-3),
    "MaxText, pairs of layers": (_GEMMA, 27.227e9, 1e-3),
    "tokenizer": (
        "pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --max-position-embeddings 1024"
        " --tokenizer-type GPT2BPETokenizer", 354_871_296, 0.0),
    "MaxText": ("\n".join(f"Config param {name}: {value}" for name, value in _MAXTEXT.items()), 68_976_648_192, 0.0),
}  # fmt: skip
"""Public logs and scripts, cut to their dimensions, with the parameters that the log or the checkpoint states."""


def test_a_count_of_a_log_without_digits_is_none() -> None:
    assert stated_model(_TITAN.replace("1,476,448,256", ","), "train.log").counted is None


@pytest.mark.parametrize("name", _STATED)
def test_a_log_or_a_script_states_a_model_with_the_parameters_that_its_run_printed(name: str) -> None:
    text, parameters, error = _STATED[name]
    stated = stated_model(text, "train.log")
    row = model_row(stated.config, "own", "train.log", None, stated.choices)
    models, reasons = catalog_models(
        Catalog.from_tables([table_from_rows("models", list(row.row), [list(row.row.values())])], "")
    )
    assert (row.refused, reasons[0]) == ("", "")
    assert float(parameter_count(models)[0]) == pytest.approx(parameters, rel=error, abs=0.5)
    assert stated.counted in (None, parameters)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (_SMALL.replace(" --vocab-size 128256", ""), "does not state vocab_size"),
        (f"{_SMALL} --num-experts $EXPERTS", "num_experts $EXPERTS, a variable without a value"),
        (f"{_SMALL} --window-size 128,0", "window_size 128,0 (layers with a sliding window)"),
        (f"{_SMALL} --normalization Other", "states normalization Other"),
        # Ascend/MindSpeed-LLM examples/mcore
        (f"{_SMALL} --full-attention-interval 4", "full_attention_interval 4 (layers of linear attention)"),
        (f"{_SMALL} --noop-layers 94,95", "noop_layers 94,95 (layers that do nothing)"),
        ("vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 2", "is of vllm, whose arguments state no model"),
    ],
)
def test_arguments_that_no_row_expresses_are_refused_by_name(text: str, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        stated_model(text, "train.sh")
