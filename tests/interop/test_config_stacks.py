"""Configurations of training stacks: read by the stack that recognises them, or refused; nothing vanishes silently."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Outcome, csv_rows

from xlperf.base.errors import InputError
from xlperf.base.resources import stack_rows
from xlperf.catalog.calibration import documented_rows
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import table_schema
from xlperf.interop.launch import read_launch
from xlperf.interop.launch_stacks import flags, kind_of, read_stacks, software_of, stacks

Command = Callable[..., Outcome]
GIVEN = {"accelerator": "H100-SXM-80GB", "num accelerators": "256"}


def columns(catalog: Catalog, text: str, name: str, given: dict[str, str] | None = None, **how: object) -> dict:
    """Columns of the plan that a text means, numbers as text."""
    result = read_launch(text, name, "", GIVEN if given is None else given, catalog.tables["models"], **how)  # type: ignore[arg-type]
    plan = result.plan
    values = {column: plan[column][0] for column in plan.schema.by_name if column in plan}
    return {column: value if isinstance(value, str) else f"{value:g}" for column, value in values.items()}


def agrees(catalog: Catalog, text: str, name: str, wanted: str, given: dict[str, str] | None = None) -> None:
    result = columns(catalog, text, name, given)
    for part in wanted.split("; "):
        column, _, value = part.partition("=")
        assert result.get(column, "") == value, (name, column, result.get(column), value)


# --- tables -----------------------------------------------------------------------------------------------------------


def test_flags_are_of_columns_and_values_that_there_are() -> None:
    for row in stack_rows("settings"):
        assert row["version"]
        if row["column"][:1] in ("", "@"):
            continue
        column = table_schema(row["kind"]).by_name[row["column"]]
        assert row["value"] or not row["argument"]
        if row["value"] and column.entries:
            assert row["value"] in column.entries, row


def test_stacks_of_the_table_are_read_or_refused(catalog: Catalog) -> None:
    software = set(catalog.tables["calibration"].text("software").tolist())
    software |= {key[2] for keys in documented_rows().values() for key in keys}
    for row in stack_rows("evidence"):
        assert row["source"] and row["evidence"] and row["title"]
        if row["read"] == "yes" and row["stack"] != "serving":
            assert flags(row["stack"])
    for stack in set(read_stacks()) - set(stacks()):
        assert software_of(stack)[0] in software
    names = set(catalog.tables["models"].text("model").tolist())
    assert {row["model"] for row in stack_rows("models")} - {""} <= names


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("parallelism.expert_parallel_size: 4", "moves"), ("--tp 8", "moves"), ("dp_shard: 16", "moves"),
        ("train.micro_batch_size: 2", "moves"), ("grad_acc_steps: 16", "moves"), ("data.seq_len: 8192", "moves"),
        ("load_in_4bit: true", "moves"), ("remat_policy=custom", "moves"), ("gradient_checkpointing: true", "moves"),
        ("fsdp_config.offload_params: true", "moves"), ("model.n_layers: 8", "moves"), ("lora_r: 16", "moves"),
        ("optimizer: muon", "moves"), ("rl: dpo", "moves"), ("perf_matrix.h100.tp: 2", "moves"),
        ("--reuse-fp32-param", "moves"), ("--moe-alltoall-overlap-comm", "moves"), ("--moe-fb-overlap", "moves"),
        ("fsdp_type: full_shard", "moves"), ("model.dtype: float32", "moves"),
        ("expert_parallel_size: 1", "harmless"), ("load_in_4bit: false", "harmless"), ("rl: null", "harmless"),
        ("eval_batch_size: 8", "harmless"), ("learning_rate: 3e-4", "harmless"), ("wandb.project: x", "harmless"),
        ("output_dir: /x", "harmless"), ("seed: 1", "harmless"), ("save_steps: 500", "harmless"),
        ("tokenizer.pretrained_model_name_or_path: x", "harmless"), ("nvtx: false", "harmless"),
        ("my_kernel: fast", ""),
    ],
)  # fmt: skip
def test_which_settings_move_a_result(words: str, kind: str) -> None:
    assert kind_of(words) == kind


# --- files that were taken for another stack's ------------------------------------------------------------------------

AUTOMODEL = """
recipe: BenchmarkingRecipeForNextTokenPrediction
seed: 1234
benchmark: {peak_tflops: 989, num_nodes: 8}
step_scheduler:
  global_batch_size: 512
  local_batch_size: 2
distributed:
  strategy: fsdp2
  tp_size: 1
  ep_size: 64
  activation_checkpointing: true
  moe:
    reshard_after_forward: false
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_config
  config:
    pretrained_model_name_or_path: nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16
  backend:
    dispatcher: deepep
peft:
  _target_: nemo_automodel.components._peft.lora.PeftConfig
  exclude_modules: ["*.out_proj"]
  dim: 32
dataset:
  seq_len: 4096
optimizer:
  _target_: torch.optim.Adam
  betas: [0.9, 0.999]
"""
NANOTRON = """
checkpoints:
  checkpoint_interval: 1000
data_stages:
- data:
    dataset:
      dataset_folder:
      - /a
    num_loading_workers: 1
  name: stable
general:
  project: qwen_moe
model:
  dtype: bfloat16
  model_config:
    hidden_size: 256
    num_hidden_layers: 12
    num_attention_heads: 4
    moe_config: null
optimizer:
  accumulate_grad_in_fp32: true
  optimizer_factory:
    name: adamW
  zero_stage: 0
parallelism:
  context_parallel_size: 1
  dp: 2
  expert_parallel_size: 1
  pp: 2
  pp_engine: 1f1b
  recompute_layer: false
  tp: 4
  tp_linear_async_communication: true
  tp_mode: REDUCE_SCATTER
tokens:
  batch_accumulation_per_replica: 8
  micro_batch_size: 3
  sequence_length: 4096
"""
MAXTEXT = """
base_config: "base.yml"
model_name: llama3.1-405b
hardware: gpu
dcn_fsdp_parallelism: 32
ici_fsdp_parallelism: 8
per_device_batch_size: 2
max_target_length: 8192
enable_checkpointing: false
quantization: fp8
attention: cudnn_flash_te
remat_policy: full
dataset_type: synthetic
"""
LLAMA_FACTORY = """
### model
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
### method
stage: sft
do_train: true
finetuning_type: full
deepspeed: examples/deepspeed/ds_z3_config.json  # choices: [ds_z0_config.json, ds_z2_config.json]
### dataset
dataset: identity,alpaca_en_demo
template: llama3
cutoff_len: 2048
output_dir: saves/llama3-8b/full/sft
### train
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
learning_rate: 1.0e-5
bf16: true
"""
AXOLOTL = """
base_model: meta-llama/Meta-Llama-3-8B
load_in_4bit: false
datasets:
  - path: tatsu-lab/alpaca
    type: alpaca
sequence_len: 8192
wandb_project:
gradient_accumulation_steps: 8
micro_batch_size: 1
optimizer: paged_adamw_8bit
bf16: auto
fp16:
gradient_checkpointing: true
gradient_checkpointing_kwargs:
  use_reentrant: false
flash_attention: true
deepspeed:
fsdp:
special_tokens:
  pad_token: <|end_of_text|>
"""
DEEPSPEED = """{
  "train_batch_size": 1024, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true},
  "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true}, "overlap_comm": true},
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}, "activation_checkpointing": {"cpu_checkpointing": false}
}"""
BRIDGE = r"""
worker_command=$(cat <<- EOM
  python run.py \
    --model_recipe_name qwen3_235b_a22b --gpu gb200 --gpus_per_node 4 --num_gpus 64 --seq_length 4096 \
    --compute_dtype bf16 --global_batch_size 1024 --tensor_model_parallel_size 1 \
    --pipeline_model_parallel_size 8 --expert_model_parallel_size 8 \
    --virtual_pipeline_model_parallel_size 3 --micro_batch_size 1
EOM
)
echo "$worker_command" > worker_command.sh
torchrun --nproc-per-node="4" --nnodes="16" --no-python bash worker_command.sh
"""
WORKLOAD = r"""
kind: WorkloadRun
spec:
  numNodes: 16
  config:
    inline:
      train.sh: |
        #!/bin/bash
        exec torchrun --nnodes $PET_NNODES --nproc-per-node $PET_NPROC_PER_NODE \
          ${BRIDGE_PATH}/scripts/performance/run_script.py -a dummy -p dummy -m deepseek -s v3 \
          -c bf16 -g gb300 -ng 64 -gn 4 -ms 50 -mb 1 -pp 1 -ep 64 \
          model.virtual_pipeline_model_parallel_size=null logger.log_throughput=true
"""
RECIPE = """
from megatron.bridge.recipes.llama import llama3_8b_pretrain_config
def main():
    cfg = llama3_8b_pretrain_config(tensor_model_parallel_size=2, seq_length=8192)
    cfg.model.context_parallel_size = 2  # long sequences
    cfg.train.global_batch_size = 128
    cfg.train.micro_batch_size = 1
    cfg.checkpoint.save = "/x"
"""
TITAN = """
[model]
name = "llama4"
flavor = "17bx128e"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
tensor_parallel_degree = 8
pipeline_parallel_degree = 4
expert_tensor_parallel_degree = 8
[activation_checkpoint]
mode = "full"
[quantize.linear.float8]
filter_fqns = ["output", "router.gate"]
"""


@pytest.mark.parametrize(
    ("text", "given", "wanted"),
    [
        # NVIDIA-NeMo/Automodel examples/benchmark/configs: EP 64, micro batch 2, LoRA, on 8 nodes of 8
        (AUTOMODEL, {"accelerator": "H100-SXM-80GB"},
         "model=NVIDIA-Nemotron-3-Super-120B-A12B-FP8; num_accelerators=64; expert_parallel=64; micro_batch_size=2; "
         "global_batch_size=512; sequence_length=4096; adapter_rank=32; recompute=full; zero_stage=3; "
         "reshard_after_forward=0; token_dispatch=once; software=torch-fsdp"),
        # huggingface/nanotron examples/config_qwen_with_moe.yaml, other degrees: 2 x 4 x 2 accelerators, 3 x 8 x 2
        (NANOTRON, {"accelerator": "H100-SXM-80GB", "model": "Qwen3-30B-A3B"},
         "num_accelerators=16; tensor_parallel=4; pipeline_parallel=2; context_parallel=1; micro_batch_size=3; "
         "global_batch_size=48; sequence_length=4096; zero_stage=0; sequence_parallel=1; tensor_overlap=all; "
         "gradient_precision=fp32; recompute=none; software=nanotron"),
        # AI-Hypercomputer/gpu-recipes a3ultra llama3-1-405b-256gpus-a3u-fp8.yaml: FSDP 256, 2 x 8192, FP8, full remat
        (MAXTEXT, {"accelerator": "H200-SXM-141GB"},
         "model=Meta-Llama-3.1-405B; num_accelerators=256; zero_stage=3; micro_batch_size=2; global_batch_size=512; "
         "sequence_length=8192; precision=fp8; recompute=full; tensor_parallel=1; software=maxtext"),
        # hiyouga/LLaMA-Factory examples/train_full/llama3_full_sft.yaml: ZeRO-3, micro batch 1, accumulation 2, 2048
        (LLAMA_FACTORY, GIVEN,
         "model=Meta-Llama-3.1-8B; zero_stage=3; micro_batch_size=1; global_batch_size=512; sequence_length=2048; "
         "precision=bf16; recompute=full; software=llama-factory"),
        # axolotl-ai-cloud/axolotl examples/llama-3/fft-8b.yaml: no sharding, moments of 8 bits
        (AXOLOTL, GIVEN,
         "model=Meta-Llama-3.1-8B; zero_stage=0; micro_batch_size=1; global_batch_size=2048; sequence_length=8192; "
         "moment_precision=fp8; recompute=full; attention=flash-2; software=axolotl"),
        # DeepSpeed configuration JSON
        (DEEPSPEED, {**GIVEN, "model": "Llama-3-8B"},
         "zero_stage=2; offload_optimizer=1; micro_batch_size=2; global_batch_size=1024; precision=bf16; "
         "software=deepspeed"),
        # AI-Hypercomputer/gpu-recipes a4x launcher.sh: TP1 PP8 EP8 VP3, 1 of 1024, 4096, BF16 on 64 GB200
        (BRIDGE, {},
         "model=Qwen3-235B-A22B; accelerator=gb200; num_accelerators=64; tensor_parallel=1; pipeline_parallel=8; "
         "virtual_pipeline=3; expert_parallel=8; micro_batch_size=1; global_batch_size=1024; sequence_length=4096; "
         "precision=bf16; software=nemo-bridge"),
        # WorkloadRun of a guide to Megatron-Bridge: DeepSeek-V3 by -m deepseek -s v3, GB300, 64, EP64
        (WORKLOAD, {},
         "model=DeepSeek-V3; accelerator=gb300; num_accelerators=64; expert_parallel=64; pipeline_parallel=1; "
         "micro_batch_size=1; precision=bf16; software=nemo-bridge"),
        (RECIPE, GIVEN,
         "model=Meta-Llama-3.1-8B; tensor_parallel=2; context_parallel=2; global_batch_size=128; "
         "sequence_length=8192; software=nemo-bridge"),
        # pytorch/torchtitan models/llama4/train_configs/llama4_17bx128e.toml
        (TITAN, GIVEN,
         "model=Llama-4-Maverick-17B-128E-Instruct; tensor_parallel=8; pipeline_parallel=4; expert_tensor_parallel=8; "
         "recompute=full; sequence_length=8192; software=torchtitan"),
    ],
    ids=["automodel", "nanotron", "maxtext", "llama-factory", "axolotl", "deepspeed", "bridge", "bridge in yaml",
         "bridge in python", "torchtitan"],
)  # fmt: skip
def test_public_files_are_read(catalog: Catalog, text: str, given: dict[str, str], wanted: str) -> None:
    agrees(catalog, text, "file", wanted, given)


@pytest.mark.parametrize(
    ("text", "title"),
    [
        # facebookresearch/lingua README
        ("dump_dir: /x\noptim:\n  lr: 3e-4\ndistributed:\n  fsdp_type: full_shard\nmodel:\n  dim: 1024\n", "lingua"),
        ("model:\n  _component_: torchtune.models.llama3.llama3_8b\nbatch_size: 2\n", "torchtune"),
        ("checkpoint_dir: x\ntrain:\n  global_batch_size: 512\n  micro_batch_size: 4\n", "LitGPT"),
        ('{\n "pipe_parallel_size": 1,\n "model_parallel_size": 2,\n "num_layers": 12\n}', "GPT-NeoX"),
        ("global_train_batch_size: 12\ndevice_train_microbatch_size: 12\nfsdp_config:\n  x: 1\n", "LLM Foundry"),
        ("model_name_or_path: x\nper_device_train_batch_size: 2\nbf16: true\n", "TRL"),
        ("distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\n", "Accelerate"),
    ],
)  # fmt: skip
def test_files_of_known_stacks_that_are_not_read_are_refused_by_name(catalog: Catalog, text: str, title: str) -> None:
    with pytest.raises(
        InputError, match=f"conf: looks like {title}.*: not read; read are NeMo Automodel, nanotron"
    ) as caught:
        columns(catalog, text, "conf", {**GIVEN, "model": "Llama-3-8B"})
    assert len(caught.value.lines()) == 1


@pytest.mark.parametrize(
    "text",
    [
        "trainer_x:\n  tp: 4\n  pp: 2\nbf16: true\n",
        '{"tp": 4, "hidden": 5}',
        "[run]\nseed = 1\n",
        "import torch\ncfg.model.a = 1\n",
    ],
)
def test_configurations_that_no_stack_recognises_are_refused(catalog: Catalog, text: str) -> None:
    with pytest.raises(InputError, match=r"is a configuration \((yaml|json|toml|python)\) that no stack recognises"):
        columns(catalog, text, "conf", {**GIVEN, "model": "Llama-3-8B"})


def test_a_line_of_torchrun_alone_is_no_plan(catalog: Catalog) -> None:
    with pytest.raises(InputError, match="has no flag of"):
        columns(catalog, "torchrun --nproc-per-node 8 --nnodes 2 train.py", "run.sh", {**GIVEN, "model": "Llama-3-8B"})


# --- what is not read -------------------------------------------------------------------------------------------------


def test_a_setting_that_moves_the_result_is_an_error_unless_partial(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "sft.yaml"
    file.write_text(LLAMA_FACTORY + "quantization_bit: 4\nuse_something: fast\nplot_loss: true\n")
    given = ["--set", "accelerator=H100-SXM-80GB", "--set", "num accelerators=8"]
    outcome = command("launch", "--read", file, *given)
    assert outcome.code == 2 and not outcome.out and outcome.err.count("\n") == 1
    assert "sft.yaml: has settings of llama-factory that move a result and are not read" in outcome.err
    assert "quantization_bit: 4 (line 19)" in outcome.err and "plot_loss" not in outcome.err
    outcome = command("launch", "--read", file, *given, "--partial")
    assert outcome.code == 0 and csv_rows(outcome.out)[0]["zero_stage"] == "3"
    assert "note: sft.yaml: moves a result, not read: quantization_bit: 4" in outcome.err
    assert "note: sft.yaml: not read: use_something: fast" in outcome.err


@pytest.mark.parametrize(
    ("text", "change", "unread"),
    [
        (AXOLOTL, ("load_in_4bit: false", "load_in_4bit: true"), "load_in_4bit: true"),
        (AXOLOTL, ("fsdp:", "fsdp: full_shard\nfsdp_config:\n  fsdp_offload_params: true"), "offload of parameters"),
        (AXOLOTL, ("paged_adamw_8bit", "muon"), "optimizer: muon"),
        (MAXTEXT, ("remat_policy: full", "remat_policy: mine"), "remat_policy: mine"),
        (MAXTEXT, ("quantization: fp8", "quantization: intmp"), "quantization: intmp"),
        (NANOTRON, ("tp: 4", "tp: 4\n  my_shard_parallel_size: 8"), "my_shard_parallel_size"),
        (AUTOMODEL, ("tp_size: 1", "tp_size: 1\n  cpu_offload: true"), "offload_policy: true"),
        (DEEPSPEED, ('"cpu", "pin', '"cpu"}, "offload_param": {"device": "cpu", "pin'), "offload_param.device: cpu"),
        (LLAMA_FACTORY, ("stage: sft", "stage: dpo"), "stage: dpo"),
        (LLAMA_FACTORY, ("ds_z3_config", "ds_z3_offload_config"), "weights are offloaded"),
        (LLAMA_FACTORY, ("finetuning_type: full", "finetuning_type: freeze"), "finetuning_type: freeze"),
        (WORKLOAD, ("-mb 1", "-mb 1 --activation_offload_layers 3"), "activation_offload_layers: 3"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_said(catalog: Catalog, text: str, change: tuple[str, str], unread: str) -> None:
    assert change[0] in text
    given = {**GIVEN, "model": "Llama-3-8B"}
    with pytest.raises(InputError) as caught:
        columns(catalog, text.replace(*change, 1), "conf", given)
    assert unread in str(caught.value) and "--partial" in str(caught.value)
    result = read_launch(text.replace(*change, 1), "conf", given=given, partial=True)
    assert any(unread in words for words in result.unread)


def test_settings_of_a_feature_that_is_off_are_silent() -> None:
    text = "trainer:\n  devices: 8\nmodel:\n  micro_batch_size: 1\n  my_offload: False\n  my_offload_layers: 4\n"
    result = read_launch(text, "conf", given={**GIVEN, "model": "Llama-3-8B"})
    assert not result.unread and not result.unknown
    with pytest.raises(InputError, match=r"my_offload: True .*my_offload_layers: 4"):
        read_launch(text.replace("False", "True"), "conf", given={**GIVEN, "model": "Llama-3-8B"})


# --- files that refer to others, overrides, sizes ---------------------------------------------------------------------


def test_a_deepspeed_configuration_beside_the_file_decides(catalog: Catalog, tmp_path: Path) -> None:
    given = {**GIVEN, "model": "Llama-3-8B"}
    text = LLAMA_FACTORY.replace("examples/deepspeed/ds_z3_config.json", "mine.json")
    with pytest.raises(InputError, match=r"deepspeed: mine\.json"):
        columns(catalog, text, "conf", given, beside=tmp_path)
    (tmp_path / "mine.json").write_text(DEEPSPEED)
    result = columns(catalog, text, "conf", given, beside=tmp_path)
    assert (result["zero_stage"], result["offload_optimizer"], result["micro_batch_size"]) == ("2", "1", "1")
    inner = tmp_path / "inner"
    inner.mkdir()
    with pytest.raises(InputError, match=r"deepspeed: \.\./mine\.json"):
        columns(catalog, text.replace("mine.json", "../mine.json"), "conf", given, beside=inner)


@pytest.mark.parametrize(
    ("axes", "wanted"),
    [
        ("ici_fsdp_parallelism=-1 ici_tensor_parallelism=4", "tensor_parallel=4; zero_stage=3; micro_batch_size=8"),
        ("dcn_data_parallelism=4 ici_fsdp_parallelism=64", "zero_stage=3; zero_group_size=64; global_batch_size=512"),
        ("ici_data_parallelism=256 ici_fsdp_parallelism=1", "zero_stage=0; global_batch_size=512"),
        ("ici_expert_parallelism=8 ici_fsdp_parallelism=32", "expert_parallel=8; zero_stage=3; micro_batch_size=2"),
        ("ici_context_parallelism=2 ici_fsdp_parallelism=128", "context_parallel=2; micro_batch_size=4"),
        ("dcn_pipeline_parallelism=4 ici_fsdp_parallelism=64", "pipeline_parallel=4; micro_batch_size=2"),
    ],
)
def test_meshes_of_maxtext(catalog: Catalog, axes: str, wanted: str) -> None:
    line = f"python3 -m MaxText.train base.yml model_name=llama3.1-70b per_device_batch_size=2 {axes}"
    agrees(catalog, line, "run.sh", wanted)


@pytest.mark.parametrize(
    ("family", "flavour", "model"),
    [
        ("llama3", "8B", "Meta-Llama-3.1-8B"), ("llama3", "405B", "Meta-Llama-3.1-405B"),
        ("llama4", "17bx16e", "Llama-4-Scout-17B-16E-Instruct"), ("deepseek_v3", "671B", "DeepSeek-V3"),
        ("deepseek_v3", "236B", "DeepSeek-V2"), ("qwen3", "0.6B", "Qwen3-0.6B"), ("qwen3", "30B-A3B", "Qwen3-30B-A3B"),
        ("gpt_oss", "120b", "gpt-oss-120b"), ("deepseek_v3", "16B", ""), ("llama3", "debugmodel", ""),
    ],
)  # fmt: skip
def test_flavours_of_torchtitan(catalog: Catalog, family: str, flavour: str, model: str) -> None:
    text = f'[model]\nname = "{family}"\nflavor = "{flavour}"\n[training]\nlocal_batch_size = 1\n'
    if model:
        assert columns(catalog, text, "t.toml")["model"] == model
        return
    with pytest.raises(InputError, match=f't.toml: its model "{family} {flavour}" is none of the catalog'):
        columns(catalog, text, "t.toml")
    assert columns(catalog, text, "t.toml", {**GIVEN, "model": "Llama-3-8B"})["model"] == "Llama-3-8B"


@pytest.mark.parametrize(
    ("recipe", "model"),
    [
        ("llama31_405b", "Meta-Llama-3.1-405B"), ("llama3_70b", "Meta-Llama-3.1-70B"), ("deepseek_v3", "DeepSeek-V3"),
        ("qwen3_30b_a3b", "Qwen3-30B-A3B"), ("gpt_oss_120b", "gpt-oss-120b"), ("kimi_k2", "Kimi-K2-Instruct"),
        ("nemotronh_56b", "Nemotron-H-56B-Base-8K"), ("llama3_8b_pretrain_config", "Meta-Llama-3.1-8B"),
    ],
)  # fmt: skip
def test_recipes_of_megatron_bridge(catalog: Catalog, recipe: str, model: str) -> None:
    assert columns(catalog, f"python run.py --model_recipe_name {recipe} -tp 2", "run.sh")["model"] == model


def test_accelerators_of_the_file_and_of_the_user_are_told_apart(catalog: Catalog) -> None:
    result = read_launch(NANOTRON, "conf", given={**GIVEN, "model": "Qwen3-30B-A3B"})
    assert result.plan["global_batch_size"][0] == 3 * 8 * 256 / 8
    assert "the file states 16 accelerators, --set 256: replicas and batch follow --set" in result.notes


@pytest.mark.parametrize(
    "text",
    ["- " * 99_999, "a:\n" * 9000, "".join(" " * depth + "a:\n" for depth in range(900)),
     "a: ${b}\nb: " + "${a}" * 99_999,
     '{"a":' * 9000, "import a\n" + "cfg." + "a." * 99_999 + "=1", "x: {" + "b: 1, " * 33_333 + "}", "k: \"" * 9999],
)  # fmt: skip
def test_hostile_configurations_get_a_line(catalog: Catalog, text: str) -> None:
    with pytest.raises(InputError) as caught:
        columns(catalog, text, "noise", {**GIVEN, "model": "Llama-3-8B"})
    assert len(caught.value.lines()) == 1


def test_every_stack_can_be_named(command: Command) -> None:
    words = " ".join(command("launch", "--read", "--help").out.split())
    assert f"One of {', '.join(read_stacks())}." in words
