"""Launch files that people published: values for other scripts, wrappers, models, precisions, and what is refused."""

from __future__ import annotations

import pytest

from xlperf.base.errors import InputError
from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.table import Table
from xlperf.interop.launch import Launch, read_launch

H100 = {"accelerator": "H100-SXM-80GB", "num accelerators": "64"}
SERVING = {"accelerator": "H100-SXM-80GB", "prompt length": "1000", "output length": "200"}


@pytest.fixture(scope="module")
def models() -> Table:
    return load_catalog().tables["models"]


def read(text: str, models: Table, partial: bool = False, **given: str) -> Launch:
    base = SERVING if "serve" in text or "launch_server" in text else H100
    return read_launch(text, "file", given={**base, **given}, models=models, partial=partial)


def said(result: Launch, *names: str) -> list[object]:
    return [result.plan[name][0] if name in result.plan else None for name in names]


DEGREES = ("tensor_parallel", "pipeline_parallel", "virtual_pipeline", "expert_parallel")

ZOO = """export MODEL=${MODEL:-Qwen3-235B-A22B}
export MBS=1
export SEQ_LEN=4096
export PR=${PR:-"bf16"}
DISPATCHER=deepep A2A_OVERLAP=1 TP=2 PP=8 VPP=4 EP=32 NNODES=32 GBS=2048 bash ./sbatch_benchmarking.sh \\
    --recompute-granularity selective --recompute-modules moe_act layernorm
"""


def test_values_for_another_script_are_read(models: Table) -> None:
    """B84: Megatron-MoE-ModelZoo run_h100_235b.sh: TP2 PP8 VP4 EP32, micro batch 1 of 2,048, 4,096 tokens, BF16."""
    result = read(ZOO, models)
    assert said(result, *DEGREES) == [2.0, 8.0, 4.0, 32.0]
    assert said(result, "micro_batch_size", "global_batch_size", "sequence_length") == [1.0, 2048.0, 4096.0]
    assert said(result, "precision", "zero_stage", "model") == ["bf16", 1.0, "Qwen3-235B-A22B"]
    assert any("Megatron-MoE-ModelZoo" in note for note in result.notes)


@pytest.mark.parametrize("form", ["{} bash other.sh", "env {} ./other.sh", "export {}\nsbatch other.slurm"])
def test_values_for_an_unknown_script_are_read(models: Table, form: str) -> None:
    """Without its flags in sight nothing is taken from Megatron-LM's switches: no FP32, no ZeRO 0."""
    result = read(form.format("TP=2 PP=8 EP=32"), models, model="Qwen3-235B-A22B")
    assert said(result, *DEGREES) == [2.0, 8.0, None, 32.0]
    assert said(result, "precision", "zero_stage") == [None, None]
    assert any("what other.s" in note for note in result.notes)


def test_values_for_another_script_that_are_not_known_are_refused(models: Table) -> None:
    text = "TP=2 FROBNICATE=7 NCCL_DEBUG=INFO OUTPUT_DIR=/data bash other.sh 8 4096"
    with pytest.raises(InputError, match=r"not read: other.sh 8 4096; FROBNICATE=7: give"):
        read(text, models, model="Llama3-70B")
    result = read(text, models, partial=True, model="Llama3-70B")
    assert said(result, "tensor_parallel") == [2.0] and len(result.unread) == 2
    with pytest.raises(InputError, match=r"it starts run_mcore.sh: read that file"):
        read("bash run_mcore.sh dsw 8B 1 256 1e-5 4096 bf16 4 2", models, model="Qwen3-8B")


def test_settings_that_move_a_result_are_refused_by_name(models: Table) -> None:
    """A cache that ranks share has no column; a log interval only gets a note."""
    line = "vllm serve meta-llama/Llama-3.1-8B-Instruct -dcp 4 --prefill-context-parallel-size 2 --new-log-colour red"
    with pytest.raises(InputError, match=r"not read: -dcp 4; --prefill-context-parallel-size 2: .*--partial"):
        read(line, models)
    result = read(line, models, partial=True)
    assert result.unread == ["-dcp 4", "--prefill-context-parallel-size 2"] and result.unknown == [
        "--new-log-colour red"
    ]


def test_variables_without_a_value_are_named(models: Table) -> None:
    line = "torchrun pretrain_gpt.py --bf16 --tensor-model-parallel-size $TP --nnodes $NNODES ${EXTRA_ARGS[@]}"
    with pytest.raises(InputError, match=r"without a value: --tensor-model-parallel-size \$TP: .*--set TP="):
        read(line, models, model="Llama3-70B")  # the number of accelerators is given, so that of nodes is not asked for
    assert said(read(line, models, model="Llama3-70B", TP="4"), "tensor_parallel") == [4.0]
    with pytest.raises(InputError, match=r"\$\{EXTRA_ARGS\[@\]\}"):
        read(f"source args.sh\n{line}", models, model="Llama3-70B", TP="4")


PRIMUS = """modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: ${PRIMUS_MODEL:qwen3_30B_A3B}.yaml
    overrides:
      micro_batch_size: 2
      global_batch_size: ${oc.env:GBS,256}
      seq_length: ${PRIMUS_SEQ_LENGTH:4096}
      max_position_embeddings: ${.seq_length}
      expert_model_parallel_size: ${PRIMUS_EP:8}
      pipeline_model_parallel_size: ${PRIMUS_PP:1}
      overlap_grad_reduce: true
"""


def test_primus(models: Table) -> None:
    """B85: qwen3_30B_A3B-BF16-pretrain.yaml: EP8, 4,096 tokens, BF16; defaults stand in the file."""
    result = read(PRIMUS, models)
    assert said(result, "expert_parallel", "sequence_length", "global_batch_size") == [8.0, 4096.0, 256.0]
    assert said(result, "precision", "zero_stage", "model") == ["bf16", 1.0, "Qwen3-30B-A3B"]
    assert said(read(PRIMUS, models, PRIMUS_EP="4"), "expert_parallel") == [4.0]


def test_ms_swift(models: Table) -> None:
    """B87: qwen3_moe.sh: BF16, 8,192 tokens, distributed optimizer; the model is the one that it loads."""
    text = "NNODES=$WORLD_SIZE \\\nNODE_RANK=$RANK \\\nmegatron sft \\\n  --load Qwen3-30B-A3B-Base-mcore \\\n"
    text += "  --pipeline_model_parallel_size 2 --expert_model_parallel_size 8 --packing true --max_length 8192"
    result = read(text, models)
    assert said(result, "precision", "zero_stage", "sequence_length") == ["bf16", 1.0, 8192.0]
    assert said(result, "model", "recompute", "micro_batch_size") == ["Qwen3-30B-A3B", "selective", 1.0]
    assert said(result, "software") == ["megatron-swift"]
    assert any(note.startswith("defaults of ms-swift: ") for note in result.notes)


def test_slime(models: Table) -> None:
    text = "source models/qwen3-4B.sh\nray job submit --address=http://127.0.0.1:8265 -- python3 train.py \\\n"
    text += "  --actor-num-nodes 2 --actor-num-gpus-per-node 8 ${MODEL_ARGS[@]} --hf-checkpoint /models/Qwen3-4B \\\n"
    text += "  --tensor-model-parallel-size 2 --rollout-batch-size 32 --sglang-ep-size 8"
    result = read_launch(text, "file", given={"accelerator": "H100-SXM-80GB"}, models=models)
    assert said(result, "precision", "zero_stage", "model", "num_accelerators") == ["bf16", 1.0, "Qwen3-4B", 16.0]


def test_torchtitan_by_run_train(models: Table) -> None:
    """B91: PR 1875; NGPU is the number of accelerators, CONFIG_FILE names the model."""
    text = "NGPU=8 CONFIG_FILE=/data/${USER}/torchtitan/llama3_70b.toml ./run_train.sh --training.seq_len=8192"
    text += " --parallelism.tensor_parallel_degree=4"
    result = read_launch(text, "file", given={"accelerator": "H100-SXM-80GB"}, models=models)
    assert said(result, "num_accelerators", "model", "tensor_parallel") == [8.0, "Meta-Llama-3.1-70B", 4.0]
    assert said(result, "zero_stage", "software") == [3.0, "torchtitan"]


def test_flags_in_a_here_document(models: Table) -> None:
    """B50: gpu-recipes a4x: TP1 PP8 VP3 EP8, micro batch 1 of 1,024, 4,096 tokens, BF16 on 64."""
    text = """worker_command=$(cat <<- EOM
  python run.py --model_recipe_name qwen3_235b_a22b --gpus_per_node 4 --num_gpus 64 --seq_length 4096 \\
    --compute_dtype bf16 --global_batch_size 1024 --tensor_model_parallel_size $TP --pipeline_model_parallel_size 8 \\
    --expert_model_parallel_size 8 --virtual_pipeline_model_parallel_size 3 --micro_batch_size 1
EOM
)
echo "$worker_command" > worker_command.sh
torchrun --nproc-per-node="4" --nnodes="16" --no-python bash worker_command.sh
"""
    result = read_launch("TP=1\n" + text, "file", given={"accelerator": "GB200"}, models=models)
    assert said(result, *DEGREES) == [1.0, 8.0, 3.0, 8.0]
    assert said(result, "micro_batch_size", "global_batch_size", "num_accelerators") == [1.0, 1024.0, 64.0]
    assert said(result, "precision", "model") == ["bf16", "Qwen3-235B-A22B"]


def test_a_model_of_two_flags(models: Table) -> None:
    """B93: -m deepseek -s v3, in a script inside YAML; -m of Python names a module."""
    text = "spec:\n  train.sh: |\n    torchrun run_script.py -m deepseek -s v3 -c bf16 -g gb300 -ng 64 -mb 1 -ep 64\n"
    result = read_launch(text, "file", models=models)
    assert said(result, "model", "expert_parallel", "num_accelerators") == ["DeepSeek-V3", 64.0, 64.0]
    plan = read("python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 16", models).plan
    assert (plan["model"][0], plan["software"][0]) == ("DeepSeek-R1", "sglang")


@pytest.mark.parametrize("name", ["moonshotai/Moonlight-99B-A3B", "deepseek-ai/DeepSeek-R1-Distill-Llama-99B"])
def test_a_model_that_the_catalog_lacks_is_named(models: Table, name: str) -> None:
    """B88: ms-swift deepseek_v3.sh; a longer name is no model whose name it begins with."""
    for line in (f"megatron sft --model {name} --tensor_model_parallel_size 2", f"vllm serve {name}"):
        with pytest.raises(InputError, match=f"names {name}, which the catalog lacks: add its row"):
            read(line, models)


DIMENSIONS = "--num-layers {} --hidden-size {} --num-attention-heads {} --tensor-model-parallel-size 8 "


def test_a_model_agrees_with_all_dimensions(models: Table) -> None:
    """B94: fixstars/mdk: 6.44 billion parameters: gated, so 10,880 wide; no GPT-7.1B, which is 16,384 wide."""
    line = DIMENSIONS.format(30, 4096, 32)
    with pytest.raises(InputError, match=r"ffn hidden size 10880; the nearest, GPT-7.1B, has gated mlp 0, ffn hidden"):
        read(line + "--swiglu", models)
    assert said(read(line, models), "model") == ["GPT-7.1B"]  # ungated and four times as wide without its flags
    line = DIMENSIONS.format(80, 8192, 64) + "--num-query-groups 8 --ffn-hidden-size 28672 --swiglu --vocab-size "
    assert said(read(f"{line} 128256", models), "model") == ["Meta-Llama-3.1-70B"]
    assert said(read(f"{line} 32000", models), "model") == ["Llama2-70B"]
    with pytest.raises(InputError, match="vocab size 64000"):
        read(f"{line} 64000", models)
    with pytest.raises(InputError, match=r"names Qwen3-8B.*, but states num layers 30 and not 36"):
        read(f"{DIMENSIONS.format(30, 4096, 32)} --load Qwen3-8B-mcore --model Qwen3-8B", models)


LOG = """  bf16 ............................................ True
  ffn_hidden_size ................................. 28672
  group_query_attention ........................... True
  hidden_size ..................................... 8192
  num_attention_heads ............................. 64
  num_layers ...................................... 80
  num_query_groups ................................ 8
  padded_vocab_size ............................... {}
  swiglu .......................................... True
  tensor_model_parallel_size ...................... 8
"""


@pytest.mark.parametrize(("vocabulary", "model"), [(129024, "Meta-Llama-3.1-70B"), (32768, "Llama2-70B")])
def test_a_log_of_llama_3_is_no_llama_2(models: Table, vocabulary: int, model: str) -> None:
    """Vocabularies of 128,256 and 32,000, padded to multiples of 128 times 8 ranks."""
    assert said(read(LOG.format(vocabulary), models), "model") == [model]


@pytest.mark.parametrize(
    ("line", "stored", "cache"),
    [
        # C01: vLLM issue 21348: 8.11 GiB hold 178,880 tokens, 48,128 B each: a cache of 16 bits beside FP8 weights
        ("vllm serve /models/Qwen3-235B-A22B-FP8", "fp8-block", "bf16"),
        ("vllm serve /models/Qwen3-235B-A22B-FP8 --kv-cache-dtype auto", "fp8-block", "bf16"),
        ("vllm serve /models/Qwen3-235B-A22B-FP8 --kv-cache-dtype fp8", "fp8-block", "fp8"),
        ("sglang.launch_server --model-path Qwen/Qwen3-235B-A22B-FP8 --tp 4", "fp8-block", "bf16"),
        # C22: --dtype is of the activations of quantised checkpoints
        ("vllm serve Qwen/Qwen2.5-72B-Instruct-AWQ --quantization awq --dtype half", "int4-128", "fp16"),
        ("vllm serve Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4 --dtype bfloat16", "int4-128", "bf16"),
        ("vllm serve Qwen/Qwen2.5-72B-Instruct --dtype half", "", "fp16"),
        # C23: W8A8 of this publisher is INT8, unless its name says FP8
        ("vllm serve RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w8a8", "int8", "bf16"),
        ("vllm serve RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8-dynamic", "fp8-tensor", "bf16"),
        ("vllm serve RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w8a16", "int8-128", "bf16"),
        # vLLM takes the cache that a checkpoint of ModelOpt states since 0.13 [vllm pull request 29980]
        ("vllm serve nvidia/Llama-3.3-70B-Instruct-NVFP4 --quantization modelopt", "fp4", "fp8"),
        # the checkpoint of 16 bits that the NVFP4 row was made of [58.9 GiB in start-up logs of vLLM 0.18]
        ("vllm serve google/gemma-4-31B-it", "", "bf16"),
        ("vllm serve nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8 --kv-cache-dtype fp8", "fp8-tensor", "fp8"),
        # checkpoints that are not published in 16 bits
        ("vllm serve openai/gpt-oss-120b", "mxfp4", "bf16"),
        ("vllm serve deepseek-ai/DeepSeek-V3-0324", "fp8-block", "bf16"),
        ("vllm serve moonshotai/Kimi-K2-Instruct", "fp8-block", "bf16"),
        ("vllm serve unsloth/DeepSeek-V3-BF16", "", "bf16"),
    ],
)
def test_precisions_of_checkpoints(models: Table, line: str, stored: str, cache: str) -> None:
    result = read(f"{line} --max-running-requests 8" if "sglang" in line else f"{line} -tp 8", models)
    precision, kept = said(result, "precision", "kv_precision")
    assert kept == cache
    assert precision == "auto" if stored else precision in ("bf16", "fp16")
    assert not stored or any(note.startswith(f"precision {stored} of the checkpoint: ") for note in result.notes)
    assert not stored or result.plan["model"][0] in line or "DeepSeek-V3-0324" in line


@pytest.mark.parametrize(
    ("line", "precision"),
    [
        ("vllm serve Qwen/Qwen2.5-72B-Instruct --quantization fp8", "fp8"),
        ("vllm serve Qwen/Qwen2.5-72B-Instruct --quantization gptq_marlin", "int4-128"),
        ("vllm serve Qwen/Qwen2.5-72B-Instruct --quantization modelopt", "fp8"),
        ("sglang.launch_server --model-path Qwen/Qwen2.5-72B-Instruct --quantization bitsandbytes", "int4-64"),
    ],
)
def test_a_method_beside_a_name_without_a_format(models: Table, line: str, precision: str) -> None:
    assert said(read(f"{line} --tp-size 8" if "sglang" in line else f"{line} -tp 8", models), "model", "precision") == [
        "Qwen2.5-72B", precision,
    ]  # fmt: skip


def test_a_precision_that_is_assumed_is_said(models: Table) -> None:
    assert (
        "precision bf16 is assumed: the name Qwen/Qwen3-8B states no format"
        in read("vllm serve Qwen/Qwen3-8B", models).notes
    )


SGLANG = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 16 "


def test_deepep_of_sglang_spreads_the_experts(models: Table) -> None:
    """SGLang server_args.py: with DeepEP the expert parallel size is that of tensor parallelism."""
    for flag in ("--moe-a2a-backend deepep", "--enable-deepep-moe", "--enable-ep-moe"):
        assert said(read(SGLANG + flag, models), "tensor_parallel", "expert_parallel") == [16.0, 16.0]


def test_drafts_without_a_number_are_asked_for(models: Table) -> None:
    """SGLang chooses steps by model if the line has none; n-grams are looked up and cost no layers."""
    with pytest.raises(InputError, match=r"--speculative-algorithm EAGLE: drafts as many tokens as SGLang likes"):
        read(SGLANG + "--speculative-algorithm EAGLE", models)
    text = SGLANG + "--speculative-algorithm NGRAM --speculative-num-draft-tokens 16"
    assert said(read(text, models), "draft_tokens", "draft_layers") == [15.0, 0.0]
    line = (
        """vllm serve Qwen/Qwen2.5-7B-Instruct --speculative-config '{"method":"ngram","num_speculative_tokens":5}'"""
    )
    assert said(read(line, models), "draft_tokens", "draft_layers") == [5.0, 0.0]


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("text-generation-launcher --model-id meta-llama/Meta-Llama-3-70B-Instruct --num-shard 8", "Text Generation"),
        ("lmdeploy serve api_server internlm/internlm2_5-20b-chat --tp 2", "LMDeploy"),
        ("./llama-server -m Qwen3-235B-A22B-Q4_K_M.gguf -ngl 99 -c 32768", "llama.cpp"),
    ],
)
def test_engines_that_are_not_read_are_refused_by_name(models: Table, line: str, title: str) -> None:
    """The first was one GPU of vLLM for eight of TGI."""
    with pytest.raises(InputError, match=rf"looks like {title}.*: not read"):
        read_launch(line, "file", given=SERVING, models=models)


@pytest.mark.parametrize(
    ("start", "rest"), [("vllm serve", "-tp 4"), ("python -m sglang.launch_server --model-path", "--tp 4")]
)
def test_offload_of_weights_is_read_in_bytes(models: Table, start: str, rest: str) -> None:
    result = read(f"{start} meta-llama/Llama-3.1-70B-Instruct {rest} --cpu-offload-gb 10", models)
    assert said(result, "host_weights") == [10.0 * 2**30]


def test_a_script_that_writes_yaml_is_a_script(models: Table) -> None:
    """TensorRT-LLM deployment guides: extra options in a here-document, longer than the command."""
    text = """cat > /tmp/extra.yml << EOF
enable_attention_dp: true
kv_cache_config:
  dtype: fp8
  free_gpu_memory_fraction: 0.8
speculative_config:
  decoding_type: MTP
  num_nextn_predict_layers: 1
EOF
mpirun -n 1 trtllm-serve deepseek-ai/DeepSeek-R1 --tp_size 8 --ep_size 8 --extra_llm_api_options /tmp/extra.yml
"""
    result = read_launch(text, "file", given=SERVING, models=models)
    columns = ("data_parallel_attention", "expert_parallel", "memory_fraction", "draft_tokens", "kv_precision")
    assert said(result, *columns) == [8.0, 8.0, 0.8, 1.0, "fp8"]


def test_start_up_logs_of_vllm_state_passes_and_memory(models: Table) -> None:
    """Lines of vLLM 0.22 beside its configuration, and the arguments that 0.7 prints."""
    late = """INFO [scheduler.py:239] Chunked prefill is enabled with max_num_batched_tokens=2048.
INFO [core.py:112] Initializing a V1 LLM engine (v0.22.0) with config: model='Qwen/Qwen2.5-7B-Instruct', seed=0
INFO [gpu_worker.py:481] CUDA graph memory profiling is enabled. The current --gpu-memory-utilization=0.9500 is equal to
"""
    columns = ("prefill_tokens", "memory_fraction", "software_release")
    assert said(read_launch(late, "log", given=SERVING, models=models), *columns) == [2048.0, 0.95, "0.22.0"]
    early = """INFO api_server.py:713] vLLM API server version 0.7.3
INFO api_server.py:714] args: Namespace(model='meta-llama/Llama-3.1-8B-Instruct', dtype='auto', \
quantization=None, gpu_memory_utilization=0.85, tensor_parallel_size=2)
"""
    columns = ("tensor_parallel", "memory_fraction", "software_release")
    assert said(read_launch(early, "log", given=SERVING, models=models), *columns) == [2.0, 0.85, "0.7.3"]


@pytest.mark.parametrize(
    "step", ["srun --container-image nemo:25.04", "srun -N 64 --ntasks-per-node 8", "srun torchrun --nproc_per_node=8"]
)
def test_a_step_of_slurm_has_the_nodes_of_its_directives(step: str, models: Table) -> None:
    text = f"""#!/bin/bash
#SBATCH --nodes=64
#SBATCH --gpus-per-node=8
{step} pretrain_gpt.py --tensor-model-parallel-size 8 --num-layers 80 --hidden-size 8192 --num-attention-heads 64 --bf16
"""
    given = {"accelerator": "H100-SXM-80GB", "model": "Meta-Llama-3.1-70B"}
    result = read_launch(text, "file", given=given, models=models, partial=True)
    assert said(result, "num_accelerators", "tensor_parallel") == [512.0, 8.0]


@pytest.mark.parametrize(
    ("line", "software"),
    [
        ("python3 -m sglang.launch_server --model Qwen/Qwen3-8B --port 30000 --host 0.0.0.0", "sglang"),
        ("python -m sglang.launch_server --model Qwen/Qwen3-8B", "sglang"),
        ("python -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-8B", "vllm"),
    ],
)
def test_the_command_names_the_engine(line: str, software: str, models: Table) -> None:
    """Two flags that all engines share made SGLang vLLM, and one flag a training stack."""
    result = read_launch(line, "file", given=SERVING, models=models)
    assert said(result, "software", "num_accelerators") == [software, 1.0]


@pytest.mark.parametrize(
    ("line", "load"),
    [  # a limit of the engine is no static batch: vllm issue 51041 refuses one request where 32 have no room
        ("vllm serve Qwen/Qwen3-8B --max-num-seqs 32", "concurrency=32"),
        ("python3 -m sglang.launch_server --model Qwen/Qwen3-8B --max-running-requests 48", "concurrency=48"),
        ("trtllm-serve Qwen/Qwen3-8B --max_batch_size 64 --tp_size 2", "concurrency=64"),
        # benchmarks without a rate send all requests at once
        ("vllm bench throughput --model Qwen/Qwen3-8B --input-len 1024 --output-len 512 --num-prompts 500",
         "concurrency=500; run_requests=500"),
        ("vllm serve Qwen/Qwen3-8B --max-num-seqs 128\nvllm bench serve --model Qwen/Qwen3-8B --random-input-len 1024 "
         "--random-output-len 128 --num-prompts 200 --request-rate inf",
         "concurrency=200; run_requests=200; max_running_batch=128"),
        # batches of one step
        ("python -m sglang.bench_one_batch --model-path Qwen/Qwen3-8B --batch 32 --input-len 256 --output-len 32",
         "batch_size=32; concurrency=None"),
        ("vllm bench latency --model Qwen/Qwen3-8B --input-len 1024 --output-len 128 --batch-size 8 --num-iters 10",
         "batch_size=8; concurrency=None"),
    ],
)  # fmt: skip
def test_loads_of_servers_and_benchmarks(models: Table, line: str, load: str) -> None:
    given = {"accelerator": "H100-SXM-80GB", "prompt_length": "1000", "output_length": "100"}
    result = read_launch(line, "file", given=given, models=models)
    for pair in load.split("; "):
        name, value = pair.split("=")
        assert said(result, name) == ([float(value)] if value != "None" else [None]), pair


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        # Ray Serve documentation, serve_qwq_32b.py: the source of the weights is the model
        (
            'llm_config = LLMConfig(\n  model_loading_config=dict(\n    model_id="my-qwq",\n'
            '    model_source="Qwen/QwQ-32B",\n  ),\n  engine_kwargs=dict(\n    tensor_parallel_size=4, '
            "max_num_seqs=32\n  ),\n)\n",
            "Qwen2.5-32B 4.0 32.0 None",
        ),
        # vllm issue 6689: ModelScope's folders have ___ for a point
        (
            "vllm serve Meta-Llama-3___1-405B-Instruct-AWQ-INT4 -tp 8",
            "Meta-Llama-3.1-405B-Instruct-AWQ-INT4 8.0 None auto",
        ),
        # QwenLM issue 1536: an abbreviated flag; a limit of requests counts beside the load that follows from it
        ("vllm serve Qwen/Qwen3-14B-AWQ --max-num-seq 30", "Qwen3-14B-AWQ None 30.0 auto"),
        # InferenceX speedbench scripts: as many prompts as there are
        ("vllm serve Qwen/Qwen3-8B\nvllm bench serve --num-prompts -1", "Qwen3-8B None None None"),
        # InferenceX minimax-m3 recipes
        ("vllm serve MiniMaxAI/MiniMax-M3-MXFP8 -tp 4", "MiniMax-M3-MXFP8 4.0 None auto"),
    ],
)
def test_what_servers_are_started_with(text: str, stated: str, models: Table) -> None:
    result = read_launch(text, "file", given=SERVING, models=models)
    names = ("model", "tensor_parallel", "max_running_batch", "precision")
    assert " ".join(map(str, said(result, *names))) == stated


def test_variables_of_a_benchmark_that_are_off_state_nothing(models: Table) -> None:
    """InferenceX gives DP_ATTENTION=false to every script; gptoss_fp4_b200_trt.sh writes its options by a variable."""
    text = (
        'CONFIG="gptoss.yml"\ncat > $CONFIG << EOF\nenable_attention_dp: false\nkv_cache_config:\n    dtype: fp8\nEOF\n'
    )
    text += "trtllm-serve openai/gpt-oss-120b --tp_size 4 --extra_llm_api_options=$CONFIG"
    result = read_launch(text, "file", given={**SERVING, "DP_ATTENTION": "false"}, models=models)
    assert said(result, "tensor_parallel", "kv_precision", "data_parallel_attention") == [4.0, "fp8", None]


def test_a_variable_named_as_a_column_is_a_variable(models: Table) -> None:
    """InferenceX dsv4_fp4_b300_vllm_mtp.sh: its checkpoint is in MXFP4, by whatever way its name comes."""
    text = 'export MODEL_PATH="$MODEL"\nvllm serve "$MODEL_PATH" --tensor-parallel-size 8'
    for given in ({"MODEL": "deepseek-ai/DeepSeek-V4-Pro"}, {"model": "deepseek-ai/DeepSeek-V4-Pro", "MODEL": "x"}):
        result = read_launch(text, "file", given={**SERVING, **given}, models=models)
        assert said(result, "precision") == ["auto"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python3 -m atom.entrypoints.openai_server --model amd/GLM-5.1-MXFP4 -tp 8", "looks like ATOM"),
        ("llama_model_loader: loaded meta data\nllm_load_print_meta: model type = 70B", r"looks like llama\.cpp"),
        ("export VLLM_PP_LAYER_PARTITION=15,15,15,19\nvllm serve Qwen/Qwen3-8B -pp 4", "VLLM_PP_LAYER_PARTITION=15"),
    ],
)
def test_servers_that_are_not_read_are_named(text: str, words: str, models: Table) -> None:
    with pytest.raises(InputError, match=words):
        read_launch(text, "file", given=SERVING, models=models)


def test_a_job_of_kubeflow_has_the_pods_of_its_master_and_workers(models: Table) -> None:
    """Kubeflow training operator: each pod of a PyTorchJob starts the same program."""
    pod = """template: {spec: {containers: [{name: pytorch, image: "nvcr.io/nvidia/nemo:25.04", command: [torchrun],
      args: ["--nproc_per_node=8", pretrain_gpt.py, "--bf16", "--micro-batch-size=1", "--global-batch-size=256"]}]}}"""
    text = f"kind: PyTorchJob\nspec:\n  pytorchReplicaSpecs:\n    Master:\n      replicas: 1\n      {pod}\n"
    text += f"    Worker:\n      replicas: 15\n      {pod}\n"
    given = {"model": "Llama3-8B", "accelerator": "H100-SXM-80GB"}
    assert said(read_launch(text, "job.yaml", given=given, models=models), "num_accelerators") == [128.0]


def test_stages_of_a_rank_of_torchtitan(models: Table) -> None:
    """torchtitan 0.2 distributed/pipeline_parallel.py: two stages for each rank unless their layers are stated."""
    text = "torchrun -m torchtitan.train --model.name llama3 --model.flavor 405B --training.local_batch_size 16"
    text += " --parallelism.pipeline_parallel_degree 8 --parallelism.pipeline_parallel_schedule Interleaved1F1B"
    assert said(read(text, models), "virtual_pipeline") == [2.0]
    assert said(read(f"{text} --parallelism.pipeline_parallel_layers_per_stage 4", models), "virtual_pipeline") == [4.0]


def test_what_a_file_leaves_to_a_recipe_or_another_configuration_is_said(models: Table) -> None:
    nemo = "nemo llm pretrain --factory llama3_70b trainer.strategy.tensor_model_parallel_size=4"
    assert any("recipe that --factory names decides" in note for note in read(nemo, models).notes)
    trainer = "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\ndo_train: true\nfinetuning_type: full\n"
    trainer += "per_device_train_batch_size: 1\nbf16: true\ntemplate: qwen3\ncutoff_len: 4096\n"
    assert any(note.startswith("zero stage 0") for note in read(trainer, models).notes)


def test_lengths_of_a_result_are_its_tokens_over_its_requests(models: Table) -> None:
    """vLLM benchmark_serving --save-result."""
    text = (
        '{"backend": "vllm", "model_id": "meta-llama/Llama-3.1-8B-Instruct", "max_concurrency": 32, "completed": 320, '
    )
    text += '"total_input_tokens": 320000, "total_output_tokens": 64000, "mean_ttft_ms": 152.1, "mean_tpot_ms": 12.91}'
    result = read_launch(text, "result.json", given={"accelerator": "H100-SXM-80GB"}, models=models)
    assert said(result, "prompt_length", "output_length", "concurrency") == [1000.0, 200.0, 32.0]
