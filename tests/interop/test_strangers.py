"""Files of strangers, each with its kind: wrappers, recipes in Python, slices of TPUs, and what a setting means."""

from __future__ import annotations

import pytest
from interop.test_config_stacks import GIVEN, agrees, columns

from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog
from xlperf.interop.launch import read_launch

PRIMUS = """work_group: ${{PRIMUS_TEAM:amd}}
modules:
  pre_trainer:
    framework: {}
    config: pre_trainer.yaml
    model: {}.yaml
    overrides:{}
"""
NEMO_RECIPE = """from nemo.collections import llm
from nemo.collections.llm.recipes import nemotron4_340b


def recipe(profile_start_step: int = 0) -> run.Partial:
  pretrain = nemotron4_340b.pretrain_recipe(performance_mode=True)
  num_nodes = 64
  num_gpus_per_node = 4
  mbs = 2
  gbs = 256
  tp_size = 4
  pp_size = 8
  vp_size = 6
  ep_size = 1
  compute_dtype = "fp8"
  fp8_recipe = "cs"
  use_mcore_fsdp = False
  pretrain = set_primary_perf_configs(pretrain, "pre_train", num_nodes=num_nodes, ep_size=ep_size)
"""
CASE = """MODEL_ARGS:
  --num-layers: 24
  --hidden-size: 1024
  --num-attention-heads: 16
  --seq-length: 512
  --micro-batch-size: 4
  --tensor-model-parallel-size: 2
"""
FACTORY = "model_name_or_path: meta-llama/Llama-3.1-8B\nfinetuning_type: lora\nbf16: true\n"
BRIDGE = """from megatron.bridge.perf_recipes.gpt_oss.common import gpt_oss_120b_pretrain_config


def gpt_oss_120b_pretrain_64gpu_b200_bf16_config():
    cfg = gpt_oss_120b_pretrain_config()
    cfg.model.expert_model_parallel_size = 64
    cfg.train.global_batch_size = 512
    cfg.train.micro_batch_size = 2
    return cfg


def gpt_oss_120b_pretrain_64gpu_b200_fp8mx_config():
    cfg = gpt_oss_120b_pretrain_config()
    cfg.mixed_precision = _perf_precision("fp8_mx")
    cfg.model.expert_model_parallel_size = 8
    cfg.train.global_batch_size = 1280
    cfg.train.micro_batch_size = 4
    cfg.model.recompute_modules = ["layernorm", "moe_act"]
    cfg.model.recompute_granularity = "selective"
    return cfg
"""
SLICE = """XLA_FLAGS=" --xla_tpu_use_single_sparse_core_for_all_gather_offload=true "
MAXTEXT_ARGS="model_name=llama3.1-405b per_device_batch_size=3 ici_fsdp_parallelism=-1 remat_policy=custom \\
max_target_length=8192 opt_type=adamw"
xpk workload create --device-type=tpu7x-4x8x8 --num-slices=1 \\
  --command "python3 -m MaxText.train MaxText/configs/base.yml ${MAXTEXT_ARGS}"
"""


@pytest.mark.parametrize(
    ("text", "given", "wanted"),
    [
        # AMD-AGI/Primus examples/torchtitan/configs/MI355X/gpt_oss_20B-BF16-pretrain.yaml: 8 a rank, EP8, compiled
        (PRIMUS.format("torchtitan", "gpt_oss_20b", """
        training: {local_batch_size: 8}
        parallelism: {data_parallel_shard_degree: -1, expert_parallel_degree: 8}
        activation_checkpoint: {mode: none}"""), GIVEN,
         "model=gpt-oss-20b; micro_batch_size=8; global_batch_size=2048; expert_parallel=8; sequence_length=2048; "
         "zero_stage=3; compiled=1; recompute=none; software=torchtitan"),
        # AMD-AGI/Primus examples/maxtext/configs/MI355X/llama3_70B-fp8-pretrain.yaml: 10 of 8,192 a device, FP8
        (PRIMUS.format("maxtext", "llama3_70B", """
        ici_fsdp_parallelism: 8
        dcn_data_parallelism: -1
        max_target_length: 8192
        per_device_batch_size: 10
        quantization: fp8"""), GIVEN,
         "model=Meta-Llama-3.1-70B; micro_batch_size=10; global_batch_size=2560; sequence_length=8192; "
         "zero_group_size=8; recompute=full; precision=fp8; master_weights=none; software=maxtext"),
        # AI-Hypercomputer/gpu-recipes a4x nemotron4_340b nemo2509: TP4 PP8 VP6, 2 of 256, FP8 in current scaling
        (NEMO_RECIPE, {"accelerator": "GB200"},
         "model=Nemotron-4-340B; num_accelerators=256; tensor_parallel=4; pipeline_parallel=8; virtual_pipeline=6; "
         "micro_batch_size=2; global_batch_size=256; precision=fp8-current; sequence_parallel=1; zero_stage=1"),
        # AMD-AGI/Primus examples/torchtitan/configs/MI300X/llama3.1_70B-FP8-pretrain.yaml: the model's file has float8
        (PRIMUS.format("torchtitan", "llama3.1_70B-fp8", """
        training: {local_batch_size: 6, seq_len: 8192}
        activation_checkpoint: {mode: full}"""), GIVEN,
         "model=Meta-Llama-3.1-70B; precision=fp8-current; micro_batch_size=6; recompute=full"),
        # NVIDIA-NeMo/Megatron-Bridge perf_recipes/gpt_oss/b200/gpt_oss.py: one of several, by its name and its body
        (BRIDGE, {"recipe": "gpt_oss_120b_pretrain_64gpu_b200_fp8mx_config"},
         "model=gpt-oss-120b; accelerator=b200; num_accelerators=64; expert_parallel=8; global_batch_size=1280; "
         "micro_batch_size=4; precision=mxfp8; recompute=selective"),
        # yanring/Megatron-MoE-ModelZoo best_practice/qwen3/run_30b.sh: nothing of an earlier start remains
        ("""export MODEL=Qwen3-30B-A3B SEQ_LEN=4096 MBS=1
VPP=1 PP=2 TP=1 EP=8 NNODES=4 bash ./sbatch_benchmarking.sh --recompute-granularity full --recompute-method uniform
PP=1 TP=1 EP=8 MBS=4 bash ./sbatch_benchmarking.sh --moe-router-force-load-balancing
""", GIVEN, "model=Qwen3-30B-A3B; pipeline_parallel=1; micro_batch_size=4; recompute=; virtual_pipeline="),
        # NVIDIA/NeMo-Framework-Launcher conf/peft/baichuan2/squad.yaml: adapters by the scheme, of their own width
        ("trainer: {devices: 8, num_nodes: 1, precision: bf16}\nmodel:\n  global_batch_size: 64\n  peft: {peft_scheme: "
         "lora, adapter_tuning: {adapter_dim: 64}, lora_tuning: {adapter_dim: 32}}\n",
         {"model": "Llama2-7B", "accelerator": "H100-SXM-80GB"}, "adapter_rank=32; num_accelerators=8"),
        # AI-Hypercomputer/tpu-recipes ironwood llama3.1-405b: 3 a device, two devices a chip, 256 chips
        (SLICE, {"recompute": "full"},
         "model=Meta-Llama-3.1-405B; accelerator=TPUv7x (Ironwood); num_accelerators=256; micro_batch_size=6; "
         "global_batch_size=1536; sequence_length=8192; zero_stage=3; recompute=full; software=maxtext"),
        # AMD-AGI/Primus examples/maxtext/configs/MI300X/qwen3_30B_A3B-bf16-pretrain.yaml: experts over the node's eight
        (PRIMUS.format("maxtext", "qwen3_30B_A3B", """
        dcn_data_parallelism: -1
        ici_fsdp_parallelism: 1
        ici_expert_parallelism: -1
        per_device_batch_size: 2
        capacity_factor: 1"""), GIVEN,
         "model=Qwen3-30B-A3B; expert_parallel=8; zero_stage=0; global_batch_size=512; expert_capacity=1"),
        # of a slice of TPUs all chips
        ("model_name: mixtral-8x7b\nici_expert_parallelism: -1\nici_fsdp_parallelism: 4\nper_device_batch_size: 1\n",
         {"accelerator": "TPUv5p", "num accelerators": "32"}, "expert_parallel=8; zero_stage=3; global_batch_size=32"),
        # NVIDIA-NeMo/Megatron-Bridge perf_recipes/llama/r100/llama3.py: a scope of graphs that are off
        (BRIDGE.replace("cfg.train.micro_batch_size = 2", """cfg.train.micro_batch_size = 2
    cfg.model.cuda_graph_impl = "none"
    cfg.model.cuda_graph_scope = ["full_iteration"]
    cfg.tokenizer.tensor_model_parallel_size = cfg.model.tensor_model_parallel_size"""),
         {"recipe": "gpt_oss_120b_pretrain_64gpu_b200_bf16_config"},
         "micro_batch_size=2; graphs=none; expert_parallel=64; tensor_parallel="),
        # NVIDIA-NeMo/Megatron-Bridge examples/models/glm/glm_45v/slurm_peft.sh: adapters by the mode, or by the recipe
        ("python scripts/training/run_recipe.py --recipe qwen3_8b_sft_config --mode lora -tp 2 -mb 1 -gb 32", GIVEN,
         "model=Qwen3-8B; tensor_parallel=2; global_batch_size=32; adapter_rank=32"),
        ("python scripts/training/run_recipe.py --recipe qwen3_8b_peft_config train.global_batch_size=32", GIVEN,
         "model=Qwen3-8B; global_batch_size=32; adapter_rank=32"),
        # LlamaFactory issue 3499: accelerators by the launcher of DeepSpeed
        ("deepspeed --num_gpus 3 src/train_bash.py --deepspeed ds_z3_config.json --stage sft --do_train --fp16 "
         "--model_name_or_path /hub/Meta-Llama-3-8B-Instruct --finetuning_type lora --lora_target q_proj,v_proj "
         "--cutoff_len 1024 --per_device_train_batch_size 1 --gradient_accumulation_steps 2",
         {"accelerator": "A100-SXM-80GB"},
         "num_accelerators=3; zero_stage=3; global_batch_size=6; precision=fp16; adapter_modules=qkv"),
        # NVIDIA-NeMo/Automodel llm_benchmark/deepseek/deepseek_v3_torch.yaml: 2 layers a stage are 7 stages a rank
        ("model:\n  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_config\n  config:\n"
         "    pretrained_model_name_or_path: deepseek-ai/DeepSeek-V3\nstep_scheduler:\n  global_batch_size: 512\n"
         "  local_batch_size: 4\ndistributed:\n  strategy: fsdp2\n  pp_size: 4\n  ep_size: 64\n  pipeline:\n"
         "    pp_schedule: interleaved1f1b\n    pp_microbatch_size: 1\n    layers_per_stage: 2\n"
         "    round_virtual_stages_to_pp_multiple: down\n", GIVEN,
         "model=DeepSeek-V3; pipeline_parallel=4; virtual_pipeline=7; micro_batch_size=1; expert_parallel=64"),
        # modelscope/ms-swift examples/models/llama4/mcore.sh: what is exported before and answered after says nothing
        ("megatron export --model /old --tensor_model_parallel_size 4\n"
         "NPROC_PER_NODE=4 megatron sft --model Qwen/Qwen3-8B --tensor_model_parallel_size 2 --micro_batch_size 4 "
         "--max_length 2048\nswift infer --model megatron_output/checkpoint-xxx --infer_backend vllm --max_length 9",
         {"accelerator": "H100"},
         "model=Qwen3-8B; num_accelerators=4; tensor_parallel=2; micro_batch_size=4; sequence_length=2048"),
    ],
    ids=["torchtitan in Primus", "maxtext in Primus", "nemo in python", "float8 in Primus", "bridge in python",
         "several starts", "adapters of NeMo", "slice", "an axis of the rest", "an axis of a slice", "graphs off",
         "mode lora", "recipe of adapters", "launcher of DeepSpeed", "layers of a stage", "programs beside training"],
)  # fmt: skip
def test_files_of_strangers_are_read(catalog: Catalog, text: str, given: dict[str, str], wanted: str) -> None:
    agrees(catalog, text, "file", wanted, given)


@pytest.mark.parametrize(
    ("text", "title"),
    [
        # evidence of a stack counts before that of an engine inside it
        ("python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.gpu_memory_utilization=0.7", "verl"),
        ("torchrun --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer data.micro_batch_size_per_gpu=4", "verl"),
        ("defaults: ./base.yaml\npolicy:\n  megatron_cfg:\n    pipeline_model_parallel_size: 4\n  generation:\n"
         "    vllm_cfg:\n      tensor_parallel_size: 8\ncluster:\n  num_nodes: 32\n", "NeMo RL"),
        ("from olmo_core.config import DType\nGLOBAL_BATCH_SIZE = 1024\n", "OLMo-core"),
        ("from torchtitan.trainer import Trainer\nconfig.training.steps = 10\n", "a registry of torchtitan"),
        ("model: Qwen/Qwen3.5-35B-A3B\ndist_config:\n  name: fsdp2\ntrain_dataset: d.yaml\nmicro_batch_size: 1\n",
         "LLaMA-Factory v1"),
        ("torchrun pretrain_bert.py --num-layers 24 --tensor-model-parallel-size 8 --micro-batch-size 4",
         "BERT or T5 of Megatron-LM"),
        ("python pretrain_ict.py --num-layers 12 --hidden-size 768 --num-attention-heads 12 --micro-batch-size 32",
         "BERT or T5 of Megatron-LM"),
        # Megatron-LM tests/functional_tests/test_cases: bert_mcore.yaml by its data, bert_release
        (CASE + "  --data-path: ${DATA_PATH}/the_pile/my-bert_00_text_sentence\n", "BERT or T5 of Megatron-LM"),
        (CASE + "  --bert-no-binary-head: true\n", "BERT or T5 of Megatron-LM"),
        ("megatron export --model Qwen/Qwen3-30B-A3B --to_hf true --tensor_model_parallel_size 2", "a program of Meg"),
        ("torchrun train_fsdp2.py qwen3.yaml --training.per_device_train_batch_size 2", "MindSpeed-LLM with FSDP2"),
        ("training_config:\n  actor_rollout_ref:\n    rollout:\n      log_prob_micro_batch_size: 16\n", "verl"),
        ("from nemo.collections import llm\n\n\n@run.cli.factory(target=pretrain, name=NAME)\ndef pretrain_recipe():\n"
         "    return run.Partial(pretrain, trainer=trainer(tensor_parallelism=4))\n", "a module of NeMo 2 recipes"),
        ("model:\n  img_h: 224\n  micro_batch_size: 8\n  num_layers: 12\n", "a vision model of NeMo"),
        # inclusionAI/AReaL examples/math, alibaba/ROLL examples/dpo_examples, PrimeIntellect-ai/prime-rl examples,
        # ByteDance-Seed/VeOmni configs/text, ServiceNow/Fast-LLM examples, sgl-project/SpecForge examples/configs
        ("actor:\n  backend: megatron:d4p1t1\n  mb_spec:\n    max_tokens_per_mb: 4096\n"
         "sglang:\n  mem_fraction_static: 0.8\n", "AReaL"),
        ("actor_train:\n  strategy_args:\n    strategy_config:\n      tensor_model_parallel_size: 1\n", "ROLL"),
        ("seq_len = 131072\n[trainer.model]\ncp = 4\n[orchestrator]\nbatch_size = 256\n"
         "[inference.vllm]\nmax_num_seqs = 256\n", "prime-rl"),
        ("train:\n  accelerator:\n    ep_size: 1\n    fsdp_config:\n      fsdp_mode: fsdp2\n"
         "  global_batch_size: 8\n  micro_batch_size: 1\nmodel:\n  model_path: Qwen3-30B-A3B\n", "VeOmni"),
        ("model:\n  base_model:\n    hidden_size: 4096\n  multi_stage:\n    zero_stage: 2\n", "Fast-LLM"),
        ("model:\n  draft_model_config: a.json\ntraining:\n  tp_size: 1\n  batch_size: 1\n", "SpecForge"),
        ("parallel:\n  fsdp_modules: [model.layers]\n  recompute: true\n", "MindSpeed-LLM with FSDP2"),
        # modelscope/ms-swift examples/train/multi-node/deepspeed, awsome-distributed-training picotron and NeuronX
        ("deepspeed --hostfile=host.txt swift/cli/sft.py --model Qwen/Qwen2.5-7B-Instruct --lora_rank 8",
         "ms-swift without Megatron"),
        ("torchrun --nproc_per_node=8 /picotron/train.py --config conf/llama-1B-tp2/config.json", "Picotron"),
        ("torchrun --nproc_per_node=32 train.py --tensor_parallel_size=32 --kv_replicator=4 --use_zero_1",
         "NeuronX Distributed"),
        # a rate of learning excludes a server, whatever else the file is like
        ("training:\n  tp_size: 1\n  batch_size: 1\n  learning_rate: 0.0001\n", "a training run of a stack"),
    ],
)  # fmt: skip
def test_files_of_strangers_are_refused_by_name(catalog: Catalog, text: str, title: str) -> None:
    said = (
        f"conf: (?:looks like {title}.*: not read; read are NeMo Automodel|trains by reinforcement learning .{title})"
    )
    with pytest.raises(InputError, match=said):
        columns(catalog, text, "conf", {**GIVEN, "model": "Llama-3-8B"})


def test_a_case_of_gpt_is_no_encoder(catalog: Catalog) -> None:
    agrees(catalog, CASE + "  --data-path: my-gpt3_00_text_document\n", "file", "model=GPT3-Medium; micro_batch_size=4")


GPT = """torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 \\
--num-attention-heads 32 --group-query-attention --num-query-groups 8 --swiglu --seq-length 8192 --bf16 """
SLIME = """source "scripts/models/qwen3-4B.sh"
python3 train.py ${MODEL_ARGS[@]} ${EVAL_ARGS[@]} --hf-checkpoint $BASE/Qwen3-4B/ --load $1 --bf16 --model-name qwen3 \\
--rollout-batch-size 128 --n-samples-per-prompt 8 --num-steps-per-rollout 4 --tensor-model-parallel-size 2
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        # Megatron-LM sbatch_mfsdp_deepseek_v3.sh: a strategy before and behind the switch that it goes beyond
        (GPT + "--data-parallel-sharding-strategy optim_grads_params --use-distributed-optimizer", "zero_stage=3"),
        (GPT + "--use-distributed-optimizer --data-parallel-sharding-strategy optim_grads", "zero_stage=2"),
        (GPT + "--optimizer-offload-fraction 0.5 --optimizer-cpu-offload", "offload_optimizer=0.5"),
        # Primus MI325X/grok1-FP8-pretrain.yaml, MI300X/mixtral_8x22B: layers of each chunk of a stage, and none of them
        (GPT + "--recompute-granularity full --recompute-method block --recompute-num-layers 2 "
         "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4",
         "recompute=full; virtual_pipeline=2; recompute_layers=4"),
        (GPT + "--recompute-granularity full --recompute-method block --recompute-num-layers 0", "recompute=none"),
        # slime run-moonlight-16B-A3B.sh, run-kimi-k2-Instruct.sh, retool_qwen3_4b_sft.sh
        (SLIME, "global_batch_size=256; model=Qwen3-4B"),
        # Primus MI355X/llama2_70B-BF16-sft-packed-mlperf_aligned.yaml: a post-trainer with LoRA
        ("modules:\n  post_trainer:\n    framework: megatron\n    model: ${PRIMUS_MODEL:llama2_70B}.yaml\n"
         "    overrides:\n      micro_batch_size: 1\n      tensor_model_parallel_size: 8\n      lora:\n"
         "        enabled: true\n        dim: 16\n", "model=Llama2-70B; adapter_rank=16; tensor_parallel=8"),
        # torchtitan benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md: a file that torchtitan ships
        ("torchrun --nnodes 4 --nproc_per_node 8 torchtitan/train.py --job.config-file torchtitan/models/llama3/"
         "train_configs/llama3_8b.toml --training.local_batch_size=2 --training.compile",
         "model=Meta-Llama-3.1-8B; sequence_length=8192; micro_batch_size=2; recompute=selective"),
        # torchtitan README of 2026: its registry instead of files
        ("NGPU=8 MODULE=llama3 CONFIG=llama3_70b ./run_train.sh --training.seq_len 4096",
         "model=Meta-Llama-3.1-70B; sequence_length=4096; micro_batch_size=8; tensor_parallel=8; recompute=full"),
        # MindSpeed-LLM pretrain_qwen3_14b_4K_ptd.sh, swiss-ai submit-llama3-70b.sh: words of forks of Megatron-LM
        (GPT + "--tensor-model-parallel-size 2 --sequence-parallel --use-ascend-coc --context-parallel-size 2 "
         "--context-parallel-algo ulysses_cp_algo --main-grads-dtype bf16",
         "tensor_overlap=all; context_method=ulysses; gradient_precision=bf16"),
        # NeMo-Framework-Launcher training/llama/llama3_1_70b.yaml, gpu-recipes mixtral-8x7b-256gpus-a4-fp8.yaml: the
        # name of the run settles equal dimensions; fp8 counts beside the 16 bits of the trainer, wherever they stand
        ("run:\n  name: llama3_1_70b\nmodel:\n  fp8: true\n  num_layers: 80\n  hidden_size: 8192\n"
         "  ffn_hidden_size: 28672\n  num_attention_heads: 64\n  num_query_groups: 8\n  encoder_seq_length: 8192\n"
         "  micro_batch_size: 1\n  data:\n    seq_length: ${training.model.encoder_seq_length}\ntrainer:\n"
         "  precision: bf16\n", "model=Meta-Llama-3.1-70B; precision=fp8; sequence_length=8192"),
        # slime run-qwen3-235B-A22B.sh: 16,384 tokens a rank are 8 sequences of 4,096 on two ranks of context
        (SLIME + "--global-batch-size 256 --context-parallel-size 2 --use-dynamic-batch-size "
         "--max-tokens-per-gpu 16384",
         "micro_batch_size=4; global_batch_size=256; sequence_length=4096"),
        # axolotl qwen3_30ba3b_ep_fsdp_fft_4gpu.yaml: ranks of experts times those that shard
        ("base_model: Qwen/Qwen3-30B-A3B\nexpert_parallel_size: 2\ndp_shard_size: 2\nsequence_len: 2048\n"
         "micro_batch_size: 1\nbf16: true\n",
         "expert_parallel=2; zero_stage=3; num_accelerators=4; global_batch_size=4"),
        # axolotl llama3-8b-fsdp2-alst.yaml: digits in groups
        ("base_model: meta-llama/Llama-3.1-8B\nsequence_len: 500_000\nmicro_batch_size: 1\nbf16: true\n",
         "sequence_length=500000"),
        # Automodel customizer_llama_3_2_1b_full_sft_chat.yaml: a template of many lines among the settings
        ("distributed:\n  _target_: nemo_automodel.components.distributed.fsdp2.FSDP2Manager\n  dp_size: 8\n"
         "model:\n  pretrained_model_name_or_path: meta-llama/Llama-3.2-1B\nstep_scheduler:\n"
         "  global_batch_size: 16\n  local_batch_size: 1\ndataset:\n  chat_template: \"{{- bos }}\\n\\\n"
         + "    \\ {%- if a['b'] == \\\"c\\\" %} d\\\n" * 30 + "    \\ e\"\n  seq_length: 2048\n",
         "model=Llama-3.2-1B; global_batch_size=16; sequence_length=2048; num_accelerators=8"),
        # FlagScale examples/llama3/conf/train/8b.yaml: arguments of Megatron-LM by what they are for
        ("system:\n  tensor_model_parallel_size: 4\n  use_distributed_optimizer: true\n  precision:\n    bf16: true\n"
         "    accumulate_allreduce_grads_in_fp32: true\nmodel:\n  num_layers: 32\n  hidden_size: 4096\n"
         "  num_attention_heads: 32\n  num_query_groups: 8\n  ffn_hidden_size: 14336\n  seq_length: 4096\n"
         "  swiglu: true\n  micro_batch_size: 1\n  global_batch_size: 2048\ndata:\n  tokenizer:\n"
         "    vocab_size: 128256\n", "tensor_parallel=4; zero_stage=1; precision=bf16; gradient_precision=fp32; "
         "sequence_length=4096; global_batch_size=2048"),
        # MaxText end_to_end/gpu/a3/test_llama2_7b.sh: a program that decodes stands behind the training
        ("python3 MaxText/llama_or_mistral_ckpt.py --model-size llama2-7b\npython3 MaxText/train.py base.yml "
         "model_name=llama2-7b ici_fsdp_parallelism=8 per_device_batch_size=4 max_target_length=4096\n"
         "python3 -m MaxText.decode base.yml model_name=llama2-7b per_device_batch_size=1 max_target_length=16\n",
         "sequence_length=4096; micro_batch_size=4; num_accelerators=8"),
        # Primus glm5-FP8-pretrain.yaml: a depth of zero switches the prediction of more tokens off
        (GPT + "--mtp-num-layers 0", "train_mtp=0"),
        (CASE + "  --mtp-num-layers: null\n", "train_mtp=0"),
        # MindSpeed-LLM: layers of every stage, of which the first and the last may differ
        (GPT + "--pipeline-model-parallel-size 4 --num-layer-list 7,9,9,7",
         "first_stage_layers=7; last_stage_layers=7"),
        (GPT + "--pipeline-model-parallel-size 2 --num-layer-list 20 12",
         "first_stage_layers=20; last_stage_layers=12"),
        (GPT + "--pipeline-model-parallel-size 4 --num-layer-list 8,8,8,8", "first_stage_layers=; last_stage_layers="),
        # LLaMA-Factory: a batch beside tokens of an earlier run
        (FACTORY + "do_train: true\ntokenized_path: saves/sft\nper_device_train_batch_size: 2\n",
         "micro_batch_size=2"),
    ],
)  # fmt: skip
def test_settings_of_strangers(catalog: Catalog, text: str, wanted: str) -> None:
    agrees(catalog, text, "file", wanted, {"accelerator": "H100"} if "num_accelerators" in wanted else None)


@pytest.mark.parametrize(
    ("tpu", "topology", "wanted"),
    [
        ("tpu7x", "4x4x4", "accelerator=TPUv7x (Ironwood); num_accelerators=64; micro_batch_size=6"),
        ("tpu-v6e-slice", "16x16", "accelerator=TPUv6e; num_accelerators=256; micro_batch_size=3"),
        ("tpu-v5-lite-podslice", "4x8", "accelerator=TPUv5e; num_accelerators=32; micro_batch_size=3"),
    ],
)
def test_a_slice_by_the_labels_of_its_nodes(catalog: Catalog, tpu: str, topology: str, wanted: str) -> None:
    """AI-Hypercomputer/tpu-recipes k8s_manifest.yaml: nodeSelector of GKE."""
    text = f"""spec:
  nodeSelector:
    cloud.google.com/gke-tpu-accelerator: {tpu}
    cloud.google.com/gke-tpu-topology: {topology}
  containers:
    - image: maxtext
      command: [bash, -c, "python3 -m MaxText.train base.yml model_name=llama3.1-8b per_device_batch_size=3"]
"""
    agrees(catalog, text, "file", wanted, {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # Megatron-Bridge perf_recipes/gpt_oss/b200/gpt_oss.py and recipes/gemma/gemma2.py
        (BRIDGE.replace("b200_bf16", "b200").replace("_fp8mx_config", "").replace("= 512", "= gbs"),
         r"train.global_batch_size=\$\{gbs\}: give them with --set gbs="),
        (BRIDGE, r"defines 2 recipes \(.*fp8mx_config\): give one with --set recipe="),
        ("from megatron.bridge.recipes.gemma.h100.gemma2 import gemma2_2b_pretrain_2gpu_h100_bf16_config as a\n"
         "from megatron.bridge.recipes.gemma.h100.gemma2 import gemma2_9b_pretrain_8gpu_h100_bf16_config as b\n",
         "states no setting of a training run"),
        # gpu-recipes llama3_70b nemo2507 launcher.sh: nodes alone; tpu-recipes gpt3-175b-v6e-256.sh: a name alone
        ("python ${LAUNCH} --factory 'recipe()' trainer.num_nodes=$NNODES trainer.devices=8", "no setting of a train"),
        ("python3 benchmarks/benchmark_runner.py --model_name=gpt_3_175b --num_slices=1", "has no flag of|no setting"),
        # MaxText end_to_end scripts that decode alone
        ("python3 -m MaxText.decode base.yml model_name=llama2-7b ici_tensor_parallelism=4",
         "states no setting of a training run: MaxText.decode does not train"),
        # MindSpeed-LLM pretrain_gemma2_27b_ptd.sh, with stages between the ends that differ, or of other stages
        (GPT + "--pipeline-model-parallel-size 4 --num-layer-list 7,8,9,8", "not read: num_layer_list: 7,8,9,8"),
        (GPT + "--pipeline-model-parallel-size 8 --num-layer-list 7,8,8,9", "not read: num_layer_list: 7,8,8,9"),
        (GPT + "--swap-attention --recompute-activation-function", "--swap-attention .*--recompute-act"),
        # Megatron-DeepSpeed run_bf16.sh: its arguments are Megatron-LM's, though it writes a configuration of DeepSpeed
        ('cat <<EOT > ds.json\n{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 0}}\nEOT\n'
         + GPT + "--tensor-model-parallel-size 2 --deepspeed --deepspeed_config ds.json", "of megatron that .*--deeps"),
        # LLaMA-Factory llama3_oft_sft.yaml, llama3_lora_predict.yaml, qwen3moe_lora_sft_kt.yaml, qoft
        (FACTORY.replace("lora", "oft"), "not read: finetuning_type: oft"),
        (FACTORY + "do_predict: true\n", "it predicts and does not train"),
        # LLaMA-Factory llama3_preprocess.yaml
        (FACTORY + "do_train: true\ntokenized_path: saves/sft\n", "it prepares data and does not train"),
        (FACTORY + "do_train: false\n", "do_train: false: it does not train"),
        (FACTORY + "use_kt: true\nmixture_of_depths: convert\n", "use_kt: true .*mixture_of_depths: convert"),
        (FACTORY.replace("8B", "8B-Instruct-AWQ-INT4"), "LoRA of quantized weights"),
        # axolotl gptq-lora.yml, loftq.yml, diffusion/sft-1b.yaml
        ("base_model: Qwen/Qwen3-30B-A3B\nadapter: lora\nmicro_batch_size: 1\nlora_target_parameters:\n"
         "  - mlp.experts.down_proj\n", "lora_target_parameters: mlp.experts.down_proj"),
        ("base_model: meta-llama/Llama-3.1-8B\nadapter: lora\nmicro_batch_size: 1\ngptq: true\npeft:\n"
         "  loftq_config:\n    loftq_bits: 4\ndiffusion:\n  eps: 1\n", "gptq: true .*loftq_bits: 4 .*diffusion"),
        # Primus deepseek_v3-FP8-pretrain.yaml
        ("modules:\n  pre_trainer:\n    framework: megatron\n    model: deepseek_v3.yaml\n    overrides:\n"
         "      micro_batch_size: 1\n      expert_model_parallel_size: 8\n      multi_latent_attention: false\n",
         "not read: multi_latent_attention"),
    ],
)  # fmt: skip
def test_what_states_no_run_or_several_is_refused(catalog: Catalog, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        columns(catalog, text, "file", GIVEN | {"model": "Llama-3-8B", "NNODES": "4"})


def test_a_script_without_a_flag_names_the_file_to_read(catalog: Catalog) -> None:
    with pytest.raises(InputError, match=r"names examples/yaml/megatron/sft\.yaml: read that file"):
        columns(catalog, "NPROC_PER_NODE=4 megatron sft \\\n    examples/yaml/megatron/sft.yaml", "file")


def test_a_refused_setting_is_settled_by_the_column_that_it_means(catalog: Catalog) -> None:
    """The remedy of the message: Megatron-MoE-ModelZoo run_deepseek_v3_gb200.sh offloads states of the optimizer."""
    text = GPT + "--offload-optimizer-states"
    with pytest.raises(InputError, match=r"--offload-optimizer-states.*give what they mean with --set"):
        columns(catalog, text, "file")
    agrees(catalog, text, "file", "offload_optimizer=1", GIVEN | {"offload optimizer": "1"})


def test_a_configuration_of_deepspeed_leaves_open_what_the_trainer_fills_in(catalog: Catalog) -> None:
    """LLaMA-Factory examples/deepspeed/ds_z2_config.json."""
    text = """{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2},
"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}"""
    given = GIVEN | {"model": "Llama-3-8B"}
    agrees(catalog, text, "file", "zero_stage=2; precision=; micro_batch_size=2", given)


@pytest.mark.parametrize(
    "words", ["--attention-head-type multiquery", "--enable-hetero", "--img-h 336 --multiple-of 256"]
)
def test_what_makes_another_model_is_refused(catalog: Catalog, words: str) -> None:
    """bigcode-project pretrain_bigcode_7b.slurm, FlagScale aquila hetero.yaml, llava1_5 7b.yaml."""
    text = GPT.replace("--group-query-attention --num-query-groups 8", words)
    with pytest.raises(InputError, match=f"not read: {words.partition(' --')[0]}"):
        columns(catalog, text, "file")


@pytest.mark.parametrize(
    ("text", "note"),
    [
        # AI-Hypercomputer/gpu-recipes a4 mixtral-8x7b-1024gpus-a4-fp8.yaml: its launcher has the nodes
        ("trainer:\n  devices: 8\nmodel:\n  micro_batch_size: 1\n  global_batch_size: 1024\n"
         "  tensor_model_parallel_size: 1\n  encoder_seq_length: 4096\n",
         "nodes are not stated, here one of 8 accelerators"),
        # AI-Hypercomputer/gpu-recipes a4 qwen3_235b_a22b 256gpus-bf16: degrees that the recipe has are not the file's
        ("python scripts/performance/run_script.py --model_family_name qwen --model_recipe_name qwen3_235b_a22b "
         "--num_gpus 256 --global_batch_size 4096 --seq_length 4096 --pipeline_model_parallel_size 8 "
         "--expert_model_parallel_size 8",
         "the recipe decides, here xlperf's defaults: micro batch size, tensor parallel, context parallel, recompute, "
         "virtual pipeline"),
    ],
)  # fmt: skip
def test_what_another_file_decides_is_said(catalog: Catalog, text: str, note: str) -> None:
    given = {"accelerator": "H100-SXM-80GB", "model": "Qwen3-235B-A22B"}
    assert note in read_launch(text, "file", given=given, models=catalog.tables["models"]).notes
