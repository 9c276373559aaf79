"""What serving files leave to the engine by its release, charts and options of servers, and what is refused by name."""

from __future__ import annotations

import pytest

from xlperf.base.errors import InputError
from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.table import Table
from xlperf.interop.launch import read_launch

SERVING = {"accelerator": "H100-SXM-80GB", "prompt length": "1000", "output length": "200"}


@pytest.fixture(scope="module")
def models() -> Table:
    return load_catalog().tables["models"]


@pytest.mark.parametrize(
    ("line", "release", "tokens"),
    [
        # vllm issue 10517: the longest request in one pass up to 32,768 tokens, longer ones in chunks
        ("--max-model-len 29000", "0.6.4", "29000"),
        ("--max-model-len 35000", "0.6.4", "512"),
        ("", "0.7.3", "2048"),  # 131,072 tokens of the model
        ("--max-model-len 8192 --enable-chunked-prefill", "0.6.3", "512"),
        ("--max-model-len 1024", "0.5.0", "2048"),
        ("--max-model-len 29000", "0.9.2", ""),
    ],
)
def test_passes_of_the_first_engine_of_vllm(models: Table, line: str, release: str, tokens: str) -> None:
    text = f"vllm serve meta-llama/Llama-3.1-8B-Instruct {line}"
    given = {"accelerator": "RTX 3090", "prompt length": "1000", "output length": "1", "software release": release}
    plan = read_launch(text, "line", given=given, models=models).plan
    assert ("prefill_tokens" in plan and f"{plan['prefill_tokens'][0]:.0f}") == (tokens or False)


CHART = """servingEngineSpec:
  modelSpec:
  - name: "llama3"
    repository: "{}/vllm-openai"
    tag: "v0.10.1"
    modelURL: "meta-llama/Llama-3.1-70B-Instruct"
    replicaCount: 2
    requestGPU: 4
    vllmConfig:
      enableChunkedPrefill: true
      enablePrefixCaching: false
      maxModelLen: 32768
      maxNumSeqs: 128
      dtype: "bfloat16"
      tensorParallelSize: 4
      gpuMemoryUtilization: 0.92
      extraArgs: ["--kv-cache-dtype", "fp8"]
    nodeSelectorTerms:
      - matchExpressions:
        - {{key: nvidia.com/gpu.product, operator: "In", values: ["NVIDIA-H100-80GB-HBM3"]}}
"""
LEADER = """kind: ConfigMap
data: {model_id: meta-llama/Meta-Llama-3.1-405B-Instruct, tensor_parallel_size: "8"}
---
kind: LeaderWorkerSet
spec:
  containers:
  - image: vllm/vllm-openai:v0.8.0
    command: [sh, -c, "bash multi-node-serving.sh leader; python3 -m vllm.entrypoints.openai.api_server
      --model $(MODEL_ID) --tensor-parallel-size $(TP) --pipeline_parallel_size $(PP)"]
    env:
    - {name: MODEL_ID, valueFrom: {configMapKeyRef: {name: x, key: model_id}}}
    - {name: TP, valueFrom: {configMapKeyRef: {name: x, key: tensor_parallel_size}}}
    - {name: PP, value: "2"}
"""
DISAGGREGATED = """servingEngineSpec:
  modelSpec:
  - name: first
    modelURL: "Qwen/Qwen3-8B"
    replicaCount: 2
    vllmConfig: {tensorParallelSize: 2}
    lmcacheConfig: {enabled: true, kvRole: "kv_producer"}
  - name: then
    modelURL: "Qwen/Qwen3-8B"
    replicaCount: 2
    vllmConfig: {tensorParallelSize: 1}
    lmcacheConfig: {enabled: true, kvRole: "kv_consumer"}
"""
PROPERTIES = """option.model_id=meta-llama/Llama-3.1-8B-Instruct
option.tensor_parallel_degree=2
option.rolling_batch=vllm
option.max_rolling_batch_size=64
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        # vllm-project/production-stack helm/values.yaml: options of vLLM in camel case, a server for each model
        (CHART.format("vllm"), {"tensor_parallel": 4, "num_accelerators": 8, "memory_fraction": 0.92,
                                "max_running_batch": 128, "kv_precision": "fp8", "software_release": "0.10.1",
                                "accelerator": "NVIDIA-H100-80GB-HBM3", "model": "Meta-Llama-3.1-70B"}),
        (CHART.format("lmcache"), {"software_release": ""}),  # the tag is of LMCache
        # vllm-project/production-stack tutorials/16-disagg-prefill: an engine for each pool, said by its LMCache
        (DISAGGREGATED, {"mode": "disaggregated", "num_accelerators": 6, "prefill_accelerators": 4,
                         "prefill_tensor_parallel": 2, "tensor_parallel": 1}),
        # vLLM examples/online_serving/disaggregated_prefill.sh: said by the role of each server
        ("vllm serve Qwen/Qwen3-8B -tp 2 --kv-transfer-config '{\"kv_role\": \"kv_producer\"}' &\n"
         "vllm serve Qwen/Qwen3-8B --kv-transfer-config '{\"kv_role\": \"kv_consumer\"}'\n",
         {"mode": "disaggregated", "num_accelerators": 3, "prefill_accelerators": 2, "tensor_parallel": ""}),
        ("vllm serve Qwen/Qwen3-8B -tp 2 --kv-transfer-config '{\"kv_role\": \"kv_both\"}'\n",
         {"mode": "", "num_accelerators": 2}),
        # DJL LMI, serving.properties: degrees were dropped
        (PROPERTIES, {"tensor_parallel": 2, "num_accelerators": 2, "max_running_batch": 64}),
        ("vllm serve meta-llama/Llama-3.1-8B-Instruct --enable-lora --max-loras 4 --max-lora-rank 32",
         {"adapters": 4, "resident_adapters": 4, "adapter_rank": 32}),
        ("vllm serve meta-llama/Llama-3.1-8B-Instruct --enable-lora", {"adapters": 1, "adapter_rank": 16}),
        ("vllm serve Qwen/Qwen3.5-397B-A17B-FP8 -tp 8 --language-model-only", {"images": 0}),
        # flagos-ai/FlagScale examples/qwen2_5/conf/serve/7b.yaml
        ("- serve_id: vllm_model\n  engine: vllm\n  engine_args:\n    model: /models/Qwen2.5-7B-Instruct\n"
         "    tensor_parallel_size: 1\n    max_num_seqs: 256\n", {"model": "Qwen2.5-7B", "max_running_batch": 256}),
        # kubernetes-sigs/wg-serving PR 29: variables as Kubernetes writes them, of a ConfigMap too
        (LEADER, {"model": "Meta-Llama-3.1-405B", "tensor_parallel": 8, "num_accelerators": 16}),
        # vLLM since 0.8.5 takes counts with a suffix: powers of 10, and of 2 if it is large
        ("vllm serve Qwen/Qwen3-32B -tp 4 --max-num-batched-tokens 16k", {"prefill_tokens": 16_000}),
        ("vllm serve Qwen/Qwen3-32B -tp 4 --max-num-batched-tokens=8K", {"prefill_tokens": 8192}),
        # vLLM --config: JSON as a word of YAML
        ("model: Qwen/Qwen3-32B\ntensor-parallel-size: 4\nmax-num-seqs: 64\n"
         "speculative-config: '{\"method\": \"eagle3\", \"num_speculative_tokens\": 3}'\n",
         {"tensor_parallel": 4, "draft_tokens": 3}),
        # SemiAnalysisAI/InferenceX minimaxm3_fp4_b200_mtp.sh: JSON with a variable of the machine and a comma too many
        ('vllm serve Qwen/Qwen3-32B --speculative-config "{\\"model\\": \\"$M\\", \\"num_speculative_tokens\\": 3,}"',
         {"draft_tokens": 3}),
        # vllm issue 51041 and the readme of its image: a checkpoint of the host under a path of the container
        ("docker run --gpus all -v /hdd2/models/Qwen3-32B-FP8:/model:ro vllm/vllm-openai:v0.11.0 --model /model -tp 2",
         {"model": "Qwen3-32B-FP8", "tensor_parallel": 2}),
        ("services:\n  vllm:\n    image: vllm/vllm-openai:v0.26.0\n    volumes:\n      - /hdd2/models:/models\n"
         "    command: >\n      --model /models/Qwen3-32B-FP8 --tensor-parallel-size 4\n",
         {"model": "Qwen3-32B-FP8", "tensor_parallel": 4}),
    ],
)  # fmt: skip
def test_charts_and_options_of_servers(models: Table, text: str, wanted: dict[str, str | float]) -> None:
    given = {"prompt length": "1000", "output length": "200"}
    given |= {} if "gpu.product" in text else {"accelerator": "H100"}
    plan = read_launch(text, "file", given=given, models=models).plan
    said_by = {name: plan[name][0] if name in plan else "" for name in wanted}
    assert said_by == wanted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # options of one server were taken for those of the other
        ("vllm serve Qwen/Qwen3-32B -tp 8 --kv-cache-dtype fp8\nvllm serve openai/gpt-oss-20b\n",
         "starts servers of Qwen/Qwen3-32B; openai/gpt-oss-20b: keep the lines of one of them"),
        ("vllm serve deepseek-ai/DeepSeek-R1 -tp 8 -dcp 8", "-dcp 8"),
        ("vllm serve Qwen/Qwen3-32B --max-num-batched-tokens many", 'must be a number of at least 1, got "many"'),
        ("docker run -e NIM_TENSOR_PARALLEL_SIZE=4 nvcr.io/nim/meta/llama-3.1-70b-instruct:1.8.4",
         "looks like NVIDIA NIM: not read"),
        ("docker run ghcr.io/ggml-org/llama.cpp:server-cuda -hf unsloth/Qwen3-30B-A3B-GGUF:Q4_K_M -c 4096",
         "looks like llama.cpp: not read"),
        # modelscope/ms-swift examples/infer/vllm/dp_tp.sh: its options of vLLM have names of their own
        ("swift infer --model Qwen/Qwen3-32B --infer_backend vllm --vllm_tensor_parallel_size 2",
         "looks like ms-swift without Megatron (swift sft, infer, deploy): not read"),
        # aws-samples/awsome-distributed-training optimum-neuron 6.inference.sh: a model is no server
        ("srun python3 run_inference.py --model_id meta-llama/Meta-Llama-3-8B-Instruct", "states no setting"),
        ('vllm serve Qwen/Qwen3-32B --speculative-config "{\\"num_speculative_tokens\\": ${STEPS[${TP}:1]:-3}}"',
         "variables without a value: --speculative-config.num_speculative_tokens: $STEPS"),
    ],
)  # fmt: skip
def test_servers_of_several_models_and_of_stacks_without_a_reader(models: Table, text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        read_launch(text, "file", given=SERVING, models=models)
    assert words in str(caught.value)


def test_the_client_of_a_benchmark_is_no_server(models: Table) -> None:
    """AI-Hypercomputer/tpu-recipes Qwen3.5-397B: the server stands in another file. Lengths of a report are means."""
    text = "vllm bench serve --model Qwen/Qwen3-32B --max-concurrency 64 --random-input-len 1024 --random-output-len 9"
    launched = read_launch(text, "file", given={"accelerator": "H100"}, models=models)
    assert any(note.startswith("states no server") for note in launched.notes)
    text = "python3 -m sglang.bench_serving --backend sglang --model Qwen/Qwen3-32B --random-input 9 --random-output 9"
    assert read_launch(text, "file", given={"accelerator": "H100"}, models=models).plan["software"][0] == "sglang"
    report = (
        "\n== Serving Benchmark Result ==\nSuccessful requests: 3\nTotal input tokens: 8\nTotal generated tokens: 4\n"
    )
    launched = read_launch(f"vllm serve Qwen/Qwen3-32B\n{report}", "file", given={"accelerator": "H100"}, models=models)
    assert [launched.plan[name][0] for name in ("prompt_length", "output_length")] == [3.0, 1.0]
    assert not any(note.startswith("states no server") for note in launched.notes)
