"""Charts and platforms that start engines, limits of their context, and runs of reinforcement learning."""

from __future__ import annotations

import pytest

from xlperf.base.errors import InputError
from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.table import Table
from xlperf.interop.launch import read_launch
from xlperf.interop.launch_shell import Endless, Shell

GIVEN = {"accelerator": "H100-SXM-80GB", "prompt length": "1000", "output length": "200"}

RAY = """kind: RayService
spec:
  serveConfigV2: |
    applications:
    - import_path: ray.serve.llm:build_openai_app
      args:
        llm_configs:
        - model_loading_config: {model_id: mine, model_source: Qwen/Qwen2.5-32B-Instruct}
          accelerator_type: A100
          engine_kwargs: {tensor_parallel_size: 4, max_model_len: 8192, enforce_eager: true}
          deployment_config: {autoscaling_config: {min_replicas: 2, max_replicas: 4}}
  rayClusterConfig: {headGroupSpec: {template: {spec: {containers: [{image: "rayproject/ray-llm:2.46.0"}]}}}}
"""
RAY_POOLS = """applications:
- import_path: ray.serve.llm:build_pd_openai_app
  args:
    prefill_config:
      model_loading_config: {model_id: meta-llama/Llama-3.1-8B-Instruct}
      deployment_config: {autoscaling_config: {min_replicas: 2}}
    decode_config:
      model_loading_config: {model_id: meta-llama/Llama-3.1-8B-Instruct}
      engine_kwargs: {tensor_parallel_size: 2}
      deployment_config: {num_replicas: 6}
"""
RUNTIME = """kind: VLLMRuntime
spec:
  model: {modelURL: meta-llama/Llama-3.1-8B-Instruct, maxModelLen: 4096, dtype: bfloat16, maxNumSeqs: 32}
  vllmConfig: {tensorParallelSize: 2, gpuMemoryUtilization: "0.8", v1: true, port: 8000, env: [{name: A, value: b}]}
  deploymentConfig: {replicas: 3, image: {name: "lmcache/vllm-openai:2025-05-27-v1"}}
"""
TRUSS = """base_image: {image: "vllm/vllm-openai:v0.10.0"}
docker_server:
  start_command: sh -c "TOKEN=$(cat /t) vllm serve /app/model_cache/own --max-model-len 32000 --tensor-parallel-size 4"
model_cache: [{repo_id: Qwen/Qwen3-32B, volume_folder: own}]
resources: {accelerator: "H100:4", use_gpu: true}
"""
TRUSS_ENGINE = """resources: {accelerator: "B200:4"}
model_cache: [{repo_id: Qwen/Qwen3-235B-A22B-Instruct-2507-FP8}]
trt_llm:
  build: {checkpoint_repository: {repo: an/empty-model}}
  runtime:
    max_batch_size: 64
    max_seq_len: 32768
    tensor_parallel_size: 4
    patch_kwargs: {moe_expert_parallel_size: 4, kv_cache_config: {dtype: fp8, free_gpu_memory_fraction: 0.8}}
"""
ROLES = """spec:
  replicas: 2
  template:
    spec:
      roles:
      - {name: prefill, replicas: 2, template: {spec: {containers: [{image: "a/vllm-openai:v0.10.0", command: [sh, -c],
          args: ["vllm serve --model /models/Qwen3-8B"]}]}}}
      - {name: decode, replicas: 1, template: {spec: {containers: [{image: "a/vllm-openai:v0.10.0", command: [sh, -c],
          args: ["vllm serve --model /models/Qwen3-8B"]}]}}}
"""
BROKEN_BESIDE = """apiVersion: apps/v1
kind: Deployment
spec: {template: {spec: {containers: [{image: "vllm/vllm-openai:v0.10.0", args: [--model=Qwen/Qwen3-8B,
  --tensor-parallel-size=8, --max-model-len=262144]}]}}}
---
data: {{ .Values.data }}: [
"""
SLICE = """kind: LeaderWorkerSet
spec:
  replicas: 2
  leaderWorkerTemplate: {leaderTemplate: {spec: {
    nodeSelector: {cloud.google.com/gke-tpu-accelerator: tpu-v5-lite-podslice, cloud.google.com/gke-tpu-topology: 4x4},
    containers: [{image: "vllm/vllm-tpu:latest", command: [sh, -c],
      args: ["vllm serve meta-llama/Llama-3.3-70B-Instruct --tensor-parallel-size=16"]}]}}}
"""
FILE_BEFORE = """spec:
  containers:
  - image: a/tensorrt-llm:1.1.0
    command: [/bin/bash, -c]
    args:
    - |
      cat <<'EOF' > /tmp/config.yaml
      kv_cache_config:
        free_gpu_memory_fraction: 0.85
      max_num_tokens: 8192
      max_batch_size: 16
      trust_remote_code: true
      EOF
      trtllm-serve serve /models/Qwen3-8B --extra_llm_api_options /tmp/config.yaml
"""
KSERVE = """kind: LLMInferenceService
spec:
  model: {uri: "pvc://weights", name: deepseek-ai/DeepSeek-R1}
  replicas: 1
  parallelism: {data: 16, dataLocal: 8, expert: true, tensor: 1}
  template: {containers: [{name: main, env: [{name: VLLM_ADDITIONAL_ARGS, value: "--max-model-len 8192"}]}]}
  worker: {containers: [{name: main}]}
"""
KSERVE_POOLS = """kind: LLMInferenceService
spec:
  model: {uri: "hf://Qwen/Qwen2.5-7B-Instruct", name: mine}
  replicas: 1
  template: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: "1"}}}]}
  prefill: {replicas: 2, template: {containers: [{name: main, args: [--max-num-batched-tokens, "4096"]}]}}
"""
SKY = """resources: {accelerators: "H200:8"}
num_nodes: 2
envs: {MODEL: deepseek-ai/DeepSeek-R1, LENGTH: 4096}
service: {replicas: 2}
run: |
  python -m sglang.launch_server --model-path $MODEL --tp $((SKYPILOT_NUM_NODES * SKYPILOT_NUM_GPUS_PER_NODE)) \\
    --nnodes ${SKYPILOT_NUM_NODES} --context-length $LENGTH
"""
SERVER_ROLES = """trtllm-serve serve Qwen/Qwen3-8B --server_role CONTEXT --tp_size 2
trtllm-serve serve Qwen/Qwen3-8B --server_role GENERATION --tp_size 4
"""


@pytest.fixture(scope="module")
def models() -> Table:
    return load_catalog().tables["models"]


def columns_of(text: str, models: Table, given: dict[str, str]) -> dict[str, str]:
    plan = read_launch(text, "file", given=given, models=models).plan
    cells = {name: plan[name][0] for name in plan.schema.by_name if name in plan}
    return {name: one if isinstance(one, str) else f"{one:g}" for name, one in cells.items()}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        # ray-project/kuberay ray-operator/config/samples/vllm/ray-service.vllm.yaml: the least copies of a model
        (RAY, "model=Qwen2.5-32B num_accelerators=8 tensor_parallel=4 max_context=8192 graphs=0 software=vllm"),
        # ray-project/ray doc/source/serve/doc_code/pd_dissagregation/nixl_example.yaml
        (RAY_POOLS, "num_accelerators=14 prefill_accelerators=2 tensor_parallel=2 mode=disaggregated"),
        # vllm-project/production-stack operator/config/samples/production-stack_v1alpha1_vllmruntime.yaml
        (RUNTIME, "num_accelerators=6 tensor_parallel=2 max_running_batch=32 max_context=4096 memory_fraction=0.8"),
        # basetenlabs/truss-examples cogito and qwen: the command of a server, options of TensorRT-LLM
        (TRUSS, "model=Qwen3-32B num_accelerators=4 tensor_parallel=4 max_context=32000 software_release=0.10.0"),
        (TRUSS_ENGINE, "model=Qwen3-235B-A22B-Instruct-2507-FP8 num_accelerators=4 expert_parallel=4 kv_precision=fp8 "
                       "max_running_batch=64 max_context=32768 memory_fraction=0.8"),
        # vllm-project/aibrix samples/disaggregation/vllm/replica.yaml: copies of a set times those of its roles
        (ROLES, "model=Qwen3-8B num_accelerators=6 prefill_accelerators=4 mode=disaggregated"),
        # GoogleCloudPlatform/kubernetes-engine-samples vllm-llama4-scout-17b-16e.yaml: a document that is no YAML
        (BROKEN_BESIDE, "num_accelerators=8 tensor_parallel=8 max_context=262144"),
        # kubernetes-sigs/lws docs/examples/vllm/TPU/lws.yaml: two copies on slices of sixteen
        (SLICE, "accelerator=TPUv5e num_accelerators=32 tensor_parallel=16"),
        # vllm-project/aibrix samples/quickstart/tensorrt: a file written before the server, its subcommand and roles
        (FILE_BEFORE, "model=Qwen3-8B memory_fraction=0.85 prefill_tokens=8192 max_running_batch=16"),
        (SERVER_ROLES, "model=Qwen3-8B num_accelerators=6 tensor_parallel=4 prefill_accelerators=2"),
        # kserve/kserve docs/samples/llmisvc/dp-ep and single-node-gpu: ranks of an engine, pools with their copies
        (KSERVE, "model=DeepSeek-R1 num_accelerators=16 expert_parallel=16 data_parallel_attention=16 "
                 "max_context=8192"),
        (KSERVE_POOLS, "model=Qwen2.5-7B num_accelerators=3 prefill_accelerators=2 prefill_tokens=4096"),
        # skypilot-org/skypilot llm/deepseek-r1/deepseek-r1.yaml: accelerators of a node, nodes and copies
        (SKY, "model=DeepSeek-R1 accelerator=H200 num_accelerators=32 tensor_parallel=16 max_context=4096"),
        # limits of the context: of SGLang, of vLLM with a suffix, and one that the engine chooses
        ("sglang serve --model-path Qwen/Qwen3-8B --context-length 4096", "max_context=4096"),
        ("vllm serve Qwen/Qwen3-8B --max-model-len 16k", "max_context=16000"),
        ("vllm serve Qwen/Qwen3-8B --max-model-len auto", "model=Qwen3-8B"),
    ],
)  # fmt: skip
def test_what_a_platform_starts(models: Table, text: str, wanted: str) -> None:
    given = {name: value for name, value in GIVEN.items() if name != "accelerator" or "ccelerator" not in text}
    if "gke-tpu" in text:
        given.pop("accelerator", None)
    plan = columns_of(text, models, given)
    assert {pair.partition("=")[0]: plan.get(pair.partition("=")[0]) for pair in wanted.split()} == dict(
        pair.split("=") for pair in wanted.split()
    )
    assert "max_context" in wanted or "max_context" not in plan


def test_an_unknown_limit_of_the_context_is_said(models: Table) -> None:
    launch = read_launch("vllm serve Qwen/Qwen3-8B --max-model-len $LEN", "file", given=GIVEN, models=models)
    assert "max_context" not in launch.plan
    assert any("$LEN is not known" in note for note in launch.notes)


SCRIPT = """ENV=$1
MBS=${2:-1}
if [ $ENV = dsw ]; then
  NNODES=1; GPUS=8
fi
torchrun --nproc_per_node $GPUS --nnodes $NNODES pretrain_gpt.py --tensor-model-parallel-size ${10} --bf16 \\
  --micro-batch-size $MBS --global-batch-size 16 --seq-length 2048
"""


def test_arguments_of_a_script_are_given_by_their_place(models: Table) -> None:
    """Case: alibaba/Pai-Megatron-Patch examples take model, degrees and precision as arguments."""
    given = {"accelerator": "H100-SXM-80GB", "model": "Llama2-7B"}
    with pytest.raises(InputError, match=r"\$\{10\}.*arguments of the script with --set 1="):
        read_launch(SCRIPT, "run.sh", given=given, models=models)
    plan = columns_of(SCRIPT, models, {**given, "1": "dsw", "10": "2"})
    assert (plan["num_accelerators"], plan["tensor_parallel"], plan["micro_batch_size"]) == ("8", "2", "1")


ASSIGNED = """if [ $NODES -le 4 ]; then : "${TENSOR_PARALLEL:=4}"; fi
: "${SEQ_LENGTH:=4096}"
: ${MICRO_BATCH_SIZE:=2}
torchrun --nproc_per_node 8 --nnodes $NODES pretrain_gpt.py --tensor-model-parallel-size $TENSOR_PARALLEL --bf16 \\
  --micro-batch-size $MICRO_BATCH_SIZE --global-batch-size 16 --seq-length $SEQ_LENGTH
"""


def test_defaults_that_a_script_assigns_to_its_variables(models: Table) -> None:
    """Case: awsome-distributed-training 3.test_cases/megatron assigns defaults with the null command."""
    plan = columns_of(ASSIGNED, models, {"accelerator": "H100-SXM-80GB", "model": "Llama2-7B", "NODES": "2"})
    values = [plan[name] for name in ("num_accelerators", "tensor_parallel", "micro_batch_size", "sequence_length")]
    assert values == ["16", "4", "2", "4096"]


CALLED = """serve() {
  local tp=$1 name=$2
  vllm serve $name --tensor-parallel-size $tp --max-num-seqs ${3:-64}
}
function main
{
  if [ -n "$SMALL" ]; then serve 2 Qwen/Qwen3-8B; else
    serve 4 Qwen/Qwen3-32B 128
  fi
}
main "$@"
"""
NESTED = """ssh host bash -lc 'nohup /opt/venv/bin/vllm serve \\
  Qwen/Qwen3-32B --tensor-parallel-size 4 --max-num-seqs 128 > /tmp/log 2>&1'
"""


@pytest.mark.parametrize("text", [CALLED, NESTED])
def test_functions_run_where_they_are_called(models: Table, text: str) -> None:
    """Cases: a function of a benchmark script with its model and degree, and a program by its path inside quotes."""
    plan = columns_of(text, models, GIVEN)
    assert [plan[name] for name in ("model", "tensor_parallel", "max_running_batch")] == ["Qwen3-32B", "4", "128"]


def test_functions_that_call_each_other_without_end_are_bounded() -> None:
    deep = "".join(f"f{n}() {{\n{f'f{n + 1}{chr(10)}' * 10}}}\n" for n in range(30))
    with pytest.raises(Endless, match="its functions run more than"):
        list(Shell({}).commands(f"{deep}f30() {{\n:\n}}\nf0\n"))
    assert len(list(Shell({}).commands("f() {\nf\n}\nf\n"))) == 1


VERL = """python3 -m verl.trainer.main_ppo data.train_batch_size=512 data.max_prompt_length=1024 \\
  data.max_response_length=2048 actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.rollout.n=5 \\
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.tensor_model_parallel_size=2 \\
  actor_rollout_ref.actor.ppo_mini_batch_size=256 trainer.n_gpus_per_node=8 trainer.nnodes=2
"""
OPENRLHF = """python3 -m openrlhf.cli.train_ppo_ray --actor.num_nodes 1 --actor.num_gpus_per_node 4 \\
  --vllm.num_engines 2 --vllm.tensor_parallel_size 2 {} --rollout.batch_size 128 \\
  --rollout.n_samples_per_prompt 8 --train.batch_size 1024 --actor.model_name_or_path Qwen/Qwen3-4B-Thinking-2507
"""
NEMO = """grpo: {num_prompts_per_step: 64, num_generations_per_prompt: 32}
policy:
  model_name: Qwen/Qwen3-32B
  dtensor_cfg: {enabled: false, tensor_parallel_size: 8}
  megatron_cfg: {enabled: true, tensor_model_parallel_size: 4, pipeline_model_parallel_size: 2}
cluster: {gpus_per_node: 8, num_nodes: 4}
"""


@pytest.mark.parametrize(
    ("text", "question"),
    [
        # verl examples/grpo_trainer: a mini-batch counts prompts
        (VERL, "--model Qwen3-8B --prompts-per-step 512 --samples-per-prompt 5 --prompt-length 1024 "
               "--longest-output 2048 --rollout-software vllm --rollout-tensor-parallel 2 --train-batch 1280 "
               "--num-accelerators 16 --output-length 1024"),
        # OpenRLHF examples/scripts/train_reinforce_baseline_hybrid_engine.sh, and the same on accelerators of their own
        (OPENRLHF.format("--train.colocate_all"), "--num-accelerators 4 --rollout-accelerators 0"),
        (OPENRLHF.format(""), "--num-accelerators 8 --rollout-accelerators 4 --prompts-per-step 128"),
        # NVIDIA-NeMo/RL examples/configs/recipes/llm/performance: a backend that is off does not count
        (NEMO, "--model Qwen3-32B --prompts-per-step 64 --tensor-parallel 4 --num-accelerators 32"),
    ],
)  # fmt: skip
def test_a_run_of_reinforcement_learning_names_its_question(models: Table, text: str, question: str) -> None:
    with pytest.raises(InputError) as caught:
        read_launch(text, "file", given=GIVEN, models=models)
    words = str(caught.value).partition("ask xlperf rl ")[2].partition(", with")[0].split()
    asked = dict(zip(words[::2], words[1::2], strict=True))
    wanted = question.split()
    assert dict(zip(wanted[::2], wanted[1::2], strict=True)).items() <= asked.items()


CUSTOM = "model_name: llama3.1-70b\nremat_policy: custom\nper_device_batch_size: 1\nici_fsdp_parallelism: -1\n"


@pytest.mark.parametrize(
    ("kept", "wanted"),
    [
        # MaxText configs/base.yml: without a word every tensor is recomputed but the layer's input
        ("", "recompute=full recompute_modules= offload_activations="),
        ("decoder_layer_input: offload", "recompute=full offload_activations=1"),
        # AI-Hypercomputer/tpu-recipes training: projections wait in the host's memory, or stay
        ("decoder_layer_input: offload\nquery_proj: offload\nkey_proj: offload\nvalue_proj: offload",
         "recompute=selective recompute_modules=core_attention+attention_output+mlp+norm+activation "
         "offload_activations=1"),
        ("context: device\nqkv_proj: device\nout_proj: device\nmlpwo: device",
         "recompute=selective recompute_modules=mlp+norm+activation"),
    ],
)  # fmt: skip
def test_tensors_that_maxtext_keeps(models: Table, kept: str, wanted: str) -> None:
    plan = columns_of(CUSTOM + kept, models, {"accelerator": "TPUv6e", "num accelerators": "64"})
    pairs = dict(pair.split("=") for pair in wanted.split())
    assert {name: plan.get(name, "").replace(" ", "+") for name in pairs} == pairs


def test_tensors_in_several_places_are_not_read(models: Table) -> None:
    text = f"{CUSTOM}context: device\nqkv_proj: offload\n"
    with pytest.raises(InputError, match="remat_policy: custom"):
        read_launch(text, "file", given={"accelerator": "TPUv6e", "num accelerators": "64"}, models=models)
