"""Containers of Kubernetes and Docker Compose, releases of images, and files of settings that a server names."""

from __future__ import annotations

from pathlib import Path

import pytest

from xlperf.base.errors import InputError
from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.table import Table
from xlperf.interop.launch import Launch, read_launch
from xlperf.interop.launch_containers import containers_of

GIVEN = {"accelerator": "H100-SXM-80GB", "prompt length": "1000", "output length": "200"}

DEPLOYMENT = """apiVersion: apps/v1
kind: Deployment
metadata: {name: vllm}
spec:
  template:
    spec:
      nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.11.0
        args: ["--model=Qwen/Qwen3-30B-A3B", "--tensor-parallel-size=2", "--enable-expert-parallel"]
        resources: {limits: {nvidia.com/gpu: 2}}
"""
LEADER = """kind: LeaderWorkerSet
spec:
  leaderWorkerTemplate:
    leaderTemplate:
      spec:
        containers:
          - name: leader
            image: lmsysorg/sglang:v0.5.3-cu129
            env: [{name: MODEL, value: deepseek-ai/DeepSeek-V3}]
            command: [python3, -m, sglang.launch_server, --model-path, $MODEL, --tp, "16", --nnodes, "2"]
"""
COMPOSE = """services:
  proxy: {image: "nginx:1.27"}
  vllm:
    image: vllm/vllm-openai:v0.9.2
    environment: [HF_TOKEN=abc]
    command: >
      --model meta-llama/Llama-3.1-8B-Instruct
      --max-num-seqs 64 --tensor-parallel-size 2
"""
SHELL = """spec:
  containers:
  - image: "nvcr.io/nvidia/tensorrt-llm/release:1.1.0"
    command: ["/bin/bash", "-c"]
    args:
    - |
      export TP=8
      trtllm-serve nvidia/Llama-3.3-70B-Instruct-FP8 --tp_size $TP --max_num_tokens 4096
"""


@pytest.fixture(scope="module")
def models() -> Table:
    return load_catalog().tables["models"]


def read(text: str, models: Table, beside: Path | None = None, **given: str) -> Launch:
    return read_launch(text, "file", given={**GIVEN, **given}, models=models, beside=beside)


@pytest.mark.parametrize(
    ("text", "software", "release", "model", "tensor"),
    [
        (DEPLOYMENT, "vllm", "0.11.0", "Qwen3-30B-A3B", 2.0),
        (LEADER, "sglang", "0.5.3", "DeepSeek-V3", 16.0),
        (COMPOSE, "vllm", "0.9.2", "Meta-Llama-3.1-8B", 2.0),
        (SHELL, "", "1.1.0", "Llama-3.3-70B-Instruct-FP8", 8.0),
    ],
)
def test_containers_are_read(text: str, software: str, release: str, model: str, tensor: float, models: Table) -> None:
    plan = read(text, models).plan
    stated = [str(plan[name][0]) if name in plan else "" for name in ("software", "software_release", "model")]
    assert stated == [software, release, model]
    assert plan["tensor_parallel"][0] == tensor


DYNAMO = """kind: ConfigMap
data:
  decode.yaml: |
    tensor_parallel_size: 32
    moe_expert_parallel_size: 32
    enable_attention_dp: true
    kv_cache_config:
      dtype: fp8
---
kind: DynamoGraphDeployment
spec:
  services:
    prefill:
      replicas: 2
      extraPodSpec:
        mainContainer:
          image: nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:0.8.1
          command: [/bin/sh, -c]
          args: ["python3 -m dynamo.trtllm --model-path /models/deepseek-r1-fp4 --tensor-parallel-size 4"]
    decode:
      multinode: {nodeCount: 8}
      extraPodSpec:
        mainContainer:
          image: nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:0.8.1
          command: [/bin/sh, -c]
          args: ["python3 -m dynamo.trtllm --model-path /models/deepseek-r1-fp4 --extra-engine-args /c/decode.yaml"]
"""
WORKERS = """services:
  decode:
    image: x/ai-dynamo/vllm-runtime:1.0.0
    command: python3 -m dynamo.vllm --model deepseek-ai/DeepSeek-R1 --data-parallel-size 16 --enable-expert-parallel
  prefill:
    image: x/ai-dynamo/vllm-runtime:1.0.0
    command: python3 -m dynamo.vllm --model deepseek-ai/DeepSeek-R1 --is-prefill-worker --tensor-parallel-size 8
"""
CHART = """modelArtifacts:
  uri: "hf://openai/gpt-oss-120b"
decode:
  parallelism: {tensor: 4}
  nodeSelector: {gpu.nvidia.com/model: H200}
  containers:
    - image: ghcr.io/llm-d/llm-d-cuda-dev:v0.3.0
      modelCommand: vllmServe
      args: ["--max-model-len", "4096"]
prefill:
  replicas: 2
  containers:
    - args: ["--max-num-batched-tokens", "4096"]
"""
RECIPE = """model: {path: deepseek-v4-pro, precision: fp4}
resources: {gpu_type: b300, prefill_workers: 1, gpus_per_prefill: 4, decode_workers: 2, gpus_per_decode: 8}
backend:
  type: sglang
  sglang_config:
    prefill:
      model-path: /model/
      served-model-name: deepseek-ai/DeepSeek-V4-Pro
      tensor-parallel-size: 4
      data-parallel-size: 4
      expert-parallel-size: 4
      enable-dp-attention: true
      disaggregation-mode: prefill
      chunked-prefill-size: 32768
    decode:
      served-model-name: deepseek-ai/DeepSeek-V4-Pro
      tensor-parallel-size: 8
      disaggregation-mode: decode
benchmark: {isl: 8192, osl: 1024, concurrencies: "256"}
"""
SERVERS = """model: deepseek-ai/DeepSeek-R1
port: 8000
context_servers: {num_instances: 2, tensor_parallel_size: 8, max_num_tokens: 8192, urls: [localhost:8001]}
generation_servers: {num_instances: 1, tensor_parallel_size: 16, max_num_tokens: 128, urls: [localhost:8002]}
"""
COPIES = LEADER.replace("spec:\n", "spec:\n  replicas: 3\n", 1)


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        # ai-dynamo/dynamo recipes/deepseek-r1: trtllm/disagg/wide_ep/gb200 and vllm/disagg/deploy_hopper_16gpu.yaml
        (DYNAMO, "40 8 disaggregated 32 4 None"),
        (WORKERS, "24 8 disaggregated 16 8 None"),
        # llm-d guides/pd-disaggregation/ms-pd/values.yaml: four H200 decode, two of one prefill
        (CHART, "6 2 disaggregated 4 1 4096.0"),
        # InferenceX multi_node/srt-slurm-recipes/sglang/deepseek-v4/8k1k/disagg-b300-1p1d-dep4-dep8.yaml
        (RECIPE, "20 4 disaggregated 8 4 8192.0"),
        # TensorRT-LLM docs, trtllm-serve disaggregated -c disagg_config.yaml
        (SERVERS, "32 16 disaggregated 16 8 8192.0"),
        # kubernetes-sigs/lws docs/examples/vllm/GPU/lws.yaml: copies of a group of pods
        (COPIES, "48 None continuous 16 None None"),
    ],
)
def test_pools_and_copies_of_a_manifest_are_counted(text: str, stated: str, models: Table) -> None:
    plan = read(text, models, concurrency="64").plan
    names = ("num_accelerators", "prefill_accelerators", "mode", "tensor_parallel", "prefill_tensor_parallel",
             "prefill_tokens")  # fmt: skip
    said = [plan[name][0] if name in plan else None for name in names]
    assert " ".join(f"{one:g}" if isinstance(one, float) and one < 100 else str(one) for one in said) == stated
    assert "software_release" not in plan or text is COPIES  # the tag of Dynamo's image is Dynamo's


def test_pools_of_a_script_are_told_apart_and_one_alone_is_refused(models: Table) -> None:
    line = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-235B-A22B --tp {} --disaggregation-mode {}\n"
    plan = read(line.format(4, "prefill") + line.format(8, "decode"), models, concurrency="64").plan
    assert [plan[name][0] for name in ("num_accelerators", "prefill_accelerators")] == [12.0, 4.0]
    with pytest.raises(InputError, match="--disaggregation-mode decode"):
        read(line.format(8, "decode"), models)
    with pytest.raises(InputError, match="--is-prefill-worker"):
        read("python3 -m dynamo.vllm --model Qwen/Qwen3-8B --is-prefill-worker", models)


def test_the_label_of_a_node_names_the_accelerator(models: Table) -> None:
    text = DEPLOYMENT
    lengths = {name: value for name, value in GIVEN.items() if name != "accelerator"}
    assert read_launch(text, "file", given=lengths, models=models).plan["accelerator"][0] == "NVIDIA-H100-80GB-HBM3"
    assert read(text, models).plan["accelerator"][0] == "H100-SXM-80GB"  # what is given counts


def test_a_plan_without_containers_is_read_as_before() -> None:
    assert containers_of("model:\n  name: llama3\nimage: x\n") is None
    assert containers_of("args: [" + "[" * 5000) is None


def test_aliases_are_filled_in_and_do_not_multiply() -> None:
    lines = ["a0: &a0 {image: vllm/vllm-openai, args: [--model, a/b]}", "a1: {<<: *a0, name: x}"]
    result = containers_of("\n".join(lines))
    assert result is not None and result[0].count("--model a/b") == 2
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 3)}]" for n in range(1, 30)]
    assert containers_of("\n".join(lines)) is None
    merged = ["a0: &a0 {image: x, args: [y]}"]
    merged += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 30)]
    assert containers_of("\n".join(merged)) is None
    assert containers_of("a: &a {image: x, args: [*a]}") is None


def test_the_release_of_an_image_of_another_engine_does_not_count(models: Table) -> None:
    text = "docker run redis/redis:v7.2.1\ndocker run vllm/vllm-openai:v0.10.2 --model Qwen/Qwen3-8B"
    assert read(text, models).plan["software_release"][0] == "0.10.2"
    assert "software_release" not in read("vllm serve Qwen/Qwen3-8B", models).plan


SERVED = "trtllm-serve nvidia/DeepSeek-R1-FP4 --tp_size 8 --max_num_tokens 8192 --extra_llm_api_options {}"
OPTIONS = """enable_attention_dp: true
speculative_config: {decoding_type: MTP, num_nextn_predict_layers: 3}
kv_cache_config: {dtype: fp8}
"""


def test_the_file_of_options_is_read(tmp_path: Path, models: Table) -> None:
    (tmp_path / "extra.yaml").write_text(OPTIONS)
    plan = read(SERVED.format("/config/extra.yaml"), models, tmp_path).plan
    stated = [plan[name][0] for name in ("data_parallel_attention", "draft_tokens", "kv_precision")]
    assert stated == [8.0, 3.0, "fp8"]
    (tmp_path / "serve.yaml").write_text("tensor-parallel-size: 4\nmax-num-batched-tokens: 2048\n")
    plan = read("vllm serve Qwen/Qwen3-8B --config serve.yaml --max-num-batched-tokens 4096", models, tmp_path).plan
    assert [plan["tensor_parallel"][0], plan["prefill_tokens"][0]] == [4.0, 4096.0]  # the line counts before the file


def test_a_file_of_options_that_is_not_there_is_named(tmp_path: Path, models: Table) -> None:
    with pytest.raises(InputError, match=r"extra\.yaml, which is not beside it"):
        read(SERVED.format("extra.yaml"), models, tmp_path)
    script = f"cat > extra.yaml << EOF\n{OPTIONS}EOF\n{SERVED.format('extra.yaml')}"
    assert read(script, models).plan["draft_tokens"][0] == 3.0


def test_a_file_of_options_that_is_no_text_is_named(tmp_path: Path, models: Table) -> None:
    (tmp_path / "extra.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"extra\.yaml, which is no text that can be read"):
        read(SERVED.format("extra.yaml"), models, tmp_path)


def test_a_server_without_a_load_is_noted(models: Table) -> None:
    notes = read("vllm serve Qwen/Qwen3-8B", models).notes
    assert any("no load is stated" in note for note in notes)
    assert not any("no load" in note for note in read("vllm serve Qwen/Qwen3-8B", models, concurrency="8").notes)


TITAN = "srun torchrun --nnodes {} --nproc_per_node 8 train.py --job.config_file ./configs/llama3_70b.toml"
TOML = """[model]
name = "llama3"
flavor = "70B"
[training]
local_batch_size = 4
[parallelism]
tensor_parallel_degree = 8
[activation_checkpoint]
mode = "full"
"""


def test_the_configuration_of_a_training_script_is_read(tmp_path: Path, models: Table) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "llama3_70b.toml").write_text(TOML)
    result = read(TITAN.format(2) + " --training.local_batch_size 2", models, tmp_path)
    stated = [result.plan[name][0] for name in ("num_accelerators", "tensor_parallel", "micro_batch_size", "recompute")]
    assert stated == [16.0, 8.0, 2.0, "full"]
    alone = read(TITAN.format(2), models)
    assert alone.notes[0].startswith("llama3_70b is taken as torchtitan 0.2 models/llama3/train_configs has it")
    other = read(TITAN.format(2).replace("llama3_70b", "llama3_70b_ours"), models, model="Llama3-70B")
    assert other.notes[0].startswith("what llama3_70b_ours.toml sets is not read")


@pytest.mark.parametrize("line", ["#SBATCH --nodes=4", "#SBATCH -N 4", "#SBATCH --nodes 4"])
def test_directives_of_slurm_are_its_variables(line: str, models: Table) -> None:
    text = f"#!/bin/bash\n{line}\n#SBATCH --gres=gpu:8\n{TITAN.format('$SLURM_NNODES')}"
    plan = read(text.replace("_node 8", "_node $SLURM_GPUS_ON_NODE"), models).plan
    assert plan["num_accelerators"][0] == 32.0


def test_a_cluster_of_ray_is_no_server(models: Table) -> None:
    lines = [
        "#SBATCH --nodes=4",
        "#SBATCH --gpus-per-node=4",
        'srun -w "$head" ray start --head --num-gpus 4 --block &',
    ]
    lines.append("vllm serve Qwen/Qwen3-8B -tp $SLURM_GPUS_PER_NODE -pp $SLURM_JOB_NUM_NODES")
    assert read("\n".join(lines), models).plan["num_accelerators"][0] == 16.0


def test_an_unknown_number_of_nodes_is_asked_for(models: Table) -> None:
    with pytest.raises(InputError, match=r"--set SLURM_NNODES="):
        read(TITAN.format("$SLURM_NNODES"), models)
    assert read(TITAN.format("$SLURM_NNODES"), models, SLURM_NNODES="2").plan["num_accelerators"][0] == 16.0
    counted = {**GIVEN, "num accelerators": "64"}
    assert (
        read_launch(TITAN.format("$SLURM_NNODES"), "file", given=counted, models=models).plan["num_accelerators"][0]
        == 64.0
    )


def test_the_arguments_that_an_engine_logs_are_read(models: Table) -> None:
    """vLLM 0.11 EngineCore prints model='...' right behind the words that introduce its configuration."""
    text = (
        "INFO [core.py:58] Initializing a V1 LLM engine (v0.11.0) with config: "
        "model='meta-llama/Llama-3.1-8B-Instruct', "
        "speculative_config=None, tokenizer='meta-llama/Llama-3.1-8B-Instruct', dtype=torch.bfloat16, "
        "max_seq_len=131072, tensor_parallel_size=2, pipeline_parallel_size=1, enforce_eager=False, "
        "kv_cache_dtype=auto, device_config=cuda\n"
    )
    plan = read(text, models).plan
    stated = [plan[name][0] for name in ("model", "software_release", "tensor_parallel")]
    assert stated == ["Meta-Llama-3.1-8B", "0.11.0", 2.0]
