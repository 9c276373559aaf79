"""Launch lines start: they keep the rules of their stack, say the shape of the model, and come back the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Outcome

from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.explore.mappings import refused_reasons, shape_of
from xlperf.interop.launch import launch_lines, read_launch
from xlperf.interop.software import broken_line

Command = Callable[..., Outcome]
DENSE = {"model": "Meta-Llama-3.1-70B", "accelerator": "H100-SXM-80GB", "num accelerators": 64, "tensor parallel": 4,
         "pipeline parallel": 4, "global batch size": 1024}  # fmt: skip
STACKS = ("megatron", "nemo", "torchtitan", "vllm", "sglang", "trtllm")
MODELS = ("Meta-Llama-3.1-8B", "Meta-Llama-3.1-70B", "Meta-Llama-3.1-405B", "Mixtral-8x7B-v0.1", "DeepSeek-V3",
          "Qwen3-235B-A22B", "gpt-oss-120b", "Qwen2.5-72B", "GPT3-175B", "Llama-4-Scout-17B-16E-Instruct")  # fmt: skip
DEGREES = [1, 1, 2, 4, 8, 16]
TRAINING: dict[str, list[Any]] = {
    "model": list(MODELS), "accelerator": ["H100-SXM-80GB", "B200-SXM-180GB"], "num accelerators": [8, 64, 256, 96],
    "tensor parallel": DEGREES, "pipeline parallel": DEGREES, "virtual pipeline": [None, None, 2, 3, 4, 5],
    "context parallel": [None, None, None, 2, 4], "expert parallel": [None, None, 2, 8], "zero stage": [0, 1, 1, 2, 3],
    "sequence parallel": [None, "yes", "no"], "tensor overlap": [None, "all", "none"],
    "global batch size": [None, 256, 768, 1024], "micro batch size": [None, 1, 2], "sequence length": [None, 8192],
    "precision": [None, "bf16", "fp16", "fp8", "fp8-current", "mxfp8", "fp4", "int8"],
    "recompute": [None, "none", "selective", "full"],
    "recompute modules": [None, None, "core_attention", "norm mlp", "activation"],
    "recompute layers": [None, None, 1, 4], "offload optimizer": [None, None, 0.5, 1], "graphs": [None, None, "layers"],
    "moment precision": [None, None, "bf16"], "pipeline schedule": [None, None, "1f1b", "interleaved", "zero-bubble"],
    "first stage layers": [None, None, None, 3], "compiled": [None, "yes", "no"],
    "token dispatch": [None, "once", "copies"], "expert overlap": [None, None, "yes"], "data overlap": [None, "no"],
}  # fmt: skip
INFERENCE: dict[str, list[Any]] = {
    "model": list(MODELS), "accelerator": ["H100-SXM-80GB", "B200-SXM-180GB"], "num accelerators": [1, 8, 16, 32],
    "tensor parallel": DEGREES, "pipeline parallel": [None, None, 2], "data parallel attention": [None, 2, 8, 16],
    "expert parallel": [None, 2, 8, 16], "prompt length": [1000, 8000], "output length": [200, 1000],
    "concurrency": [16, 64, 512], "precision": [None, "bf16", "fp8", "fp4", "int4", "fp8-block"],
    "kv precision": [None, "fp8", "bf16", "int8"], "two batch overlap": [None, None, "yes"],
    "graphs": [None, "no"], "prefill tokens": [None, 4096], "max running batch": [None, 64], "mode": ["continuous"],
    "draft tokens": [None, None, 3], "redundant experts": [None, None, 32],
}  # fmt: skip


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def random_plans(kind: str, number: int, seed: int) -> Table:
    """Plans with random columns, most of which break a rule of most stacks."""
    choices = np.random.default_rng(seed)
    columns = TRAINING if kind == "training" else INFERENCE

    def drawn(values: list[Any]) -> Any:
        blank = values[0] is None and choices.random() < 0.75
        return None if blank else values[choices.integers(len(values))]

    rows = [[drawn(values) for values in columns.values()] for _ in range(number)]
    return table_from_rows(kind, list(columns), rows, lambda row, column: f"{column} {row}")


def one(row: dict[str, Any]) -> Table:
    kind = "inference" if "prompt length" in row else "training"
    return table_from_rows(kind, list(row), [list(row.values())], lambda _, column: column)


def arguments(lines: list[str]) -> list[str]:
    """Arguments of the commands, one per line."""
    return [line.removesuffix(" \\").strip() for line in lines if not line.startswith(("#", "export", "cat", "EOF"))]


@pytest.mark.parametrize("stack", STACKS)
def test_lines_of_random_plans_break_no_rule(catalog: Catalog, stack: str) -> None:
    """600 plans that a stack starts or that launch refuses: no line of one breaks a rule, and each comes back."""
    kind = "inference" if stack in ("vllm", "sglang", "trtllm") else "training"
    drawn = random_plans(kind, 1500, STACKS.index(stack))
    results = evaluate(drawn, catalog, results=["memory"])
    drawn = drawn.take(np.flatnonzero(~np.isnan(results.number("memory"))))
    why = refused_reasons(drawn, catalog, stack)
    started = np.flatnonzero([not one for one in why])
    assert len(started) >= 600 / len(STACKS), Counter(one.split(":")[1][:40] for one in why if one).most_common(5)
    for row in started[: 600 // len(STACKS) + 1].tolist():
        plan = drawn.take([row])
        lines = launch_lines(plan, stack, shape_of(plan, catalog))
        assert not broken_line(stack, arguments(lines)), lines
        back = read_launch("\n".join(lines), "lines")
        assert not back.unknown and not back.unread and not refused_reasons(back.plan, catalog, stack)[0]
        for name in plan.schema.by_name:
            values = [one[name][0] if name in one else "" for one in (plan, back.plan)]
            values = ["" if value != value else value for value in values]
            assert values[0] == values[1] or name == "software", (name, values, lines)


def test_a_repository_that_a_plan_names_is_the_one_that_starts(catalog: Catalog) -> None:
    plan = one({"model": "meta-llama/Llama-3.1-70B-Instruct", "accelerator": "H100-SXM-80GB", "num accelerators": 4,
                "tensor parallel": 4, "prompt length": 1000, "output length": 200})  # fmt: skip
    lines = launch_lines(plan, "vllm", shape_of(plan, catalog))
    assert "vllm serve meta-llama/Llama-3.1-70B-Instruct" in arguments(lines)
    assert "--model meta-llama/Llama-3.1-70B-Instruct" in arguments(lines)
    assert not any("no repository" in line for line in lines) and any("yours may be longer" in line for line in lines)


def test_a_line_says_the_shape_of_the_model(catalog: Catalog) -> None:
    plan = one({**DENSE, "model": "DeepSeek-V3", "pipeline parallel": 16, "virtual pipeline": 2, "recompute": "full"})
    lines = arguments(launch_lines(plan, "megatron", shape_of(plan, catalog)))
    assert {"--num-layers 61", "--hidden-size 7168", "--num-attention-heads 128", "--vocab-size 129280", "--swiglu",
            "--multi-latent-attention", "--kv-lora-rank 512", "--num-experts 256", "--moe-router-topk 8",
            "--moe-ffn-hidden-size 2048", "--moe-layer-freq '([0]*3+[1]*58)'", "--seq-length 4096",
            "--micro-batch-size 1", "--recompute-method uniform", "--recompute-num-layers 1"} <= set(lines)  # fmt: skip
    layout = next(line for line in lines if line.startswith("--pipeline-model-parallel-layout"))
    assert layout.count("|") == 31 and layout.count("t") - "--pipeline-model-parallel-layout".count("t") == 61
    assert "torchrun --nnodes 8 --nproc_per_node 8 pretrain_gpt.py" in lines


@pytest.mark.parametrize(
    ("stack", "served", "measured"),
    [
        ("vllm", "vllm serve openai/gpt-oss-120b", "vllm bench serve --dataset-name random"),
        ("sglang", "python3 -m sglang.launch_server", "python3 -m sglang.bench_serving --backend sglang"),
        ("trtllm", "trtllm-serve openai/gpt-oss-120b", "python3 -m tensorrt_llm.serve.scripts.benchmark_serving"),
    ],
)
def test_serving_and_measuring_are_commands_of_their_own(
    catalog: Catalog, stack: str, served: str, measured: str
) -> None:
    plan = one({"model": "gpt-oss-120b", "accelerator": "H100-SXM-80GB", "num accelerators": 2, "tensor parallel": 2,
                "precision": "fp4", "prompt length": 1000, "output length": 500, "concurrency": 32})  # fmt: skip
    text = "\n".join(launch_lines(plan, stack, shape_of(plan, catalog)))
    server, client = text[: text.index(measured)], text[text.index(measured) :]
    assert served in server and "--random-input-len" not in server and "quantization" not in server  # MXFP4 is its own
    assert {"--model openai/gpt-oss-120b", "--max-concurrency 32"} <= set(arguments(client.splitlines()))


SERVED = {"accelerator": "H100-SXM-80GB", "num accelerators": 16, "tensor parallel": 16, "prompt length": 10000,
          "output length": 500, "concurrency": 32}  # fmt: skip


@pytest.mark.parametrize(
    ("stack", "change", "wanted", "unwanted"),
    [
        ("vllm", {"model": "DeepSeek-V3", "draft tokens": 1, "precision": "fp8"},
         {"--speculative-config.method mtp", "--distributed-executor-backend ray"}, "stored in"),
        ("vllm", {"model": "Meta-Llama-3.1-70B", "draft tokens": 3, "data parallel attention": 8},
         {"--speculative-config.model $DRAFT_MODEL", "--data-parallel-backend ray", "--data-parallel-size-local 4"},
         "executor"),
        ("vllm", {"model": "DeepSeek-V3", "expert parallel": 16, "redundant experts": 32, "precision": "bf16"},
         {"--enable-eplb", "--eplb-config.num_redundant_experts 32",
          "# deepseek-ai/DeepSeek-V3 is stored in fp8: give a checkpoint in bf16"}, "quantization"),
        ("vllm", {"model": "GPT3-175B"},
         {"# GPT3-175B is in no repository that is known here: give the path of its checkpoint"}, "stored in"),
        ("sglang", {"model": "Meta-Llama-3.1-70B", "draft tokens": 3},
         {"--speculative-algorithm EAGLE", "--speculative-eagle-topk 1", "--speculative-num-draft-tokens 4",
          "--speculative-draft-model-path $DRAFT_MODEL", "--nnodes 2"}, "stored in"),
        ("trtllm", {"model": "DeepSeek-V3", "draft tokens": 3, "kv precision": "fp8", "graphs": "no"},
         {"kv_cache_config:", "dtype: fp8", "decoding_type: MTP", "num_nextn_predict_layers: 3",
          "enable_chunked_prefill: true", "cuda_graph_config: null", "trtllm-serve deepseek-ai/DeepSeek-V3",
          "srun -N 2 --ntasks-per-node 8 --mpi=pmix trtllm-llmapi-launch"}, "DRAFT_MODEL"),
        ("trtllm", {"model": "Meta-Llama-3.1-70B", "draft tokens": 3, "kv precision": "bf16", "precision": "fp8"},
         {"decoding_type: Draft_Target", "max_draft_len: 3", "speculative_model_dir: $DRAFT_MODEL",
          "# meta-llama/Llama-3.1-70B is stored in bf16: give a checkpoint in fp8"}, "dtype: "),
        ("torchtitan", {**DENSE, "model": "Mixtral-8x7B-v0.1"},
         {"--model.name $MODEL_NAME", "--model.flavor $MODEL_FLAVOR"}, "debugmodel"),
        ("torchtitan", {**DENSE, "model": "Qwen3-32B"}, {"--model.name qwen3", "--model.flavor 32B"}, "$"),
        ("nemo", {**DENSE, "model": "Grok-1"}, {"nemo llm pretrain --factory $RECIPE"}, "recipe of yours"),
    ],
)  # fmt: skip
def test_a_start_has_all_that_its_stack_demands(
    catalog: Catalog, stack: str, change: dict[str, Any], wanted: set[str], unwanted: str
) -> None:
    """vLLM 0.20, SGLang 0.5, TensorRT-LLM 1.2 and torchtitan 0.2.2: without these another plan starts, or none."""
    plan = one(change if "global batch size" in change else {**SERVED, **change})
    lines = [line.removesuffix(" \\").strip() for line in launch_lines(plan, stack, shape_of(plan, catalog))]
    assert wanted <= set(lines), wanted - set(lines)
    assert unwanted not in "\n".join(lines)


def test_overlap_is_not_asked_for_without_sequence_parallel(catalog: Catalog) -> None:
    """Megatron-LM asserts sequence parallel beside --tp-comm-overlap, and has none on one tensor-parallel rank."""
    asked = {"tensor overlap": "all"}
    cases = (
        ({}, False),
        (asked, True),
        ({**asked, "tensor parallel": 1}, False),
        ({**asked, "sequence parallel": "no"}, False),
    )
    for change, wanted in cases:
        plan = one({**DENSE, **change})
        assert ("--tp-comm-overlap" in launch_lines(plan, "megatron")) == wanted


def test_what_a_stack_refuses_is_not_launched(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "plans.csv"
    row = {**DENSE, "virtual pipeline": 14}
    file.write_text(f"{','.join(row)}\n{','.join(map(str, row.values()))}\n")
    done = command("launch", file, "--for", "megatron")
    assert done.code == 2 and not done.out and done.err.count("\n") == 1
    assert "plans.csv [line 2, model]: Megatron-Core refuses this: virtual pipeline 14 does not divide" in done.err
    assert command("launch", file, "--for", "vllm").code == 2
    file.write_text(file.read_text().replace(",14", ",auto"))
    assert "--num-virtual-stages-per-pipeline-rank" in command("launch", file, "--for", "megatron").out
