"""Six public logs from plan to launch line, what logs rule out and contradict, and the remedy at the end."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import public_logs
import pytest
from conftest import Outcome, csv_rows

from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import brief
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.explore.causes import changes, contradictions, ruled_out
from xlperf.explore.diagnose import read_measured
from xlperf.explore.mappings import refused_reasons, shape_of
from xlperf.explore.remedy import remedy
from xlperf.interop.launch import launch_lines, read_launch
from xlperf.interop.launch_text import log_lines
from xlperf.interop.logs import logged_plan, read_log

Command = Callable[..., Outcome]
SEARCHED = {"training": "micro batch size=auto", "inference": "tensor parallel=auto"}


def plan_of(**columns: str | float) -> Table:
    return table_from_rows("inference" if "prompt_length" in columns else "training", list(columns),
                           [list(columns.values())], lambda _, column: f"plan [{column}]")  # fmt: skip


# --- from log to launch line -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("log", public_logs.LOGS, ids=lambda log: log.stack)
def test_a_public_log_goes_from_plan_to_launch(command: Command, tmp_path: Path, log: public_logs.PublicLog) -> None:
    """Each step takes the file of the step before as it is; the log does not contradict the plan that it states."""
    files = {name: tmp_path / name for name in ("run.log", "plan.csv", "better.csv", "found.csv", "models.csv")}
    files["run.log"].write_text(log.text)
    files["models.csv"].write_text(public_logs.MODELS)
    own = ("--catalog", files["models.csv"]) if log.model == "mdk7b" else ()
    given = [word for one in log.given for word in ("--set", one)]
    assert command("launch", "--read", files["run.log"], *given, "-o", files["plan.csv"], *own).code == 0
    (planned,) = csv_rows(files["plan.csv"].read_text())
    assert planned["model"] == log.model

    outcome = command("diagnose", files["plan.csv"], "--log", files["run.log"], "-o", files["better.csv"], *own)
    assert outcome.code == 0 and "contradicts" not in outcome.err
    assert f"measured {log.measured} " in outcome.out and "\nremedy: " in outcome.out
    kind = "training" if log.stack in ("megatron", "nemo", "torchtitan") else "inference"
    for hint in re.findall("its launch line: xlperf (.+)", outcome.err):  # none without a better plan
        assert command(*shlex.split(hint)).code == 0, "the hint works as it is printed"
    (better,) = csv_rows(files["better.csv"].read_text())
    for name in ("num_accelerators", "precision", "global_batch_size", "concurrency"):
        assert better.get(name) == planned.get(name)

    assert command("search", files["better.csv"], "--vary", SEARCHED[kind], "-o", files["found.csv"], *own).code == 0
    time = "step_time" if kind == "training" else "latency"
    (evaluated,) = csv_rows(command("evaluate", files["plan.csv"], "-o", "-", *own).out)
    assert float(csv_rows(files["found.csv"].read_text())[0][time]) <= float(evaluated[time])
    launched = command("launch", files["found.csv"], "--for", log.stack, *own)
    assert launched.code == 0 and launched.out.startswith(f"# xlperf: {log.stack} ")


def test_a_launch_line_above_the_result_of_its_benchmark_is_a_plan(catalog: Catalog) -> None:
    """vLLM issue 20469 as it is written there: both commands, and the result below."""
    text = "vllm serve Qwen/Qwen3-14B-AWQ --enforce-eager --max-num-seqs 30\n" + public_logs.VLLM.text.split("\n", 3)[3]
    plan = read_launch(text, "issue", given={"accelerator": "A100"}, models=catalog.tables["models"]).plan
    assert [plan[name][0] for name in ("model", "prompt_length", "output_length")] == [
        "Qwen3-14B-AWQ", 16_000.0, 200.0,
    ]  # fmt: skip
    assert plan["graphs"][0] == 0.0 and plan["software"][0] == "vllm"


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        (
            "[titan] Building device mesh with parallelism: pp=2, dp_replicate=1, dp_shard=4, cp=1, tp=2, ep=1, etp=1",
            {"--nproc_per_node": "16", "--parallelism.tensor_parallel_degree": "2"},
        ),
        (
            "[NeMo I] Rank 0 has tensor model parallel group: [0, 1, 2, 3]\n"
            "[NeMo I] All tensor model parallel group ranks: [[0, 1, 2, 3], [4, 5, 6, 7]]",
            {"model.tensor_model_parallel_size=": "4", "trainer.devices=": "8"},
        ),
        (
            "using world size: 64, data-parallel size: 8, context-parallel size: 1, tensor-model-parallel size: 8, "
            "pipeline-model-parallel size: 1\n > padded vocab (size: 50257) with 175 dummy tokens (new total vocab "
            "size: 50432)",
            {"world_size": "64", "--tensor-model-parallel-size": "8", "padded_vocab_size": "50432"},
        ),
        ("#!/bin/bash\npython train.py --tp 8  # TP Size: 8", {}),
    ],
)
def test_what_stacks_print_at_start(text: str, stated: dict[str, str]) -> None:
    result = log_lines(text).settings
    assert {name: result.get(name) for name in stated} == stated and (stated or not result)


# --- causes that a log excludes --------------------------------------------------------------------------------------

DUMP = "using world size: 8\n" + "".join(
    f"  {name} {'.' * 20} {value}\n"
    for name, value in (
        ("attention_backend", "AttnBackend.fused"), ("bf16", "True"), ("cuda_graph_impl", "local"),
        ("cross_entropy_loss_fusion", "True"), ("fp8", "None"), ("recompute_granularity", "None"),
        ("tensor_model_parallel_size", "8"), ("tp_comm_overlap", "True"), ("sequence_parallel", "True"),
        ("use_distributed_optimizer", "True"),
    )
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "out", "left"),
    [
        (
            DUMP,
            "CUDA graphs off|standard attention kernel|tensor-parallel communication not overlapped|full recomputation|"
            "plain cross-entropy kernels|sequence parallelism off|products in FP8",
            "host or data loading|slow accelerators|imbalance of experts",
        ),
        (DUMP.replace("fused", "auto").replace("local", "none"), "CUDA graphs on", "standard attention kernel"),
        (
            public_logs.NEMO.text,
            "interleaving not used|full recomputation|products in FP8|CUDA graphs on",
            "plain cross-entropy kernels|all-to-all of experts not overlapped",
        ),
        (public_logs.TORCHTITAN.text, "no recomputation|selective recomputation", "another sharding stage"),
        (
            "INFO LLM engine (v0.9.1) with config: model='x', enforce_eager=False, enable_prefix_caching=False",
            "CUDA graphs off|prefix cache hit",
            "weights in FP8|less memory for the cache|host, tokenizer or client",
        ),
        (public_logs.SGLANG.text, "CUDA graphs off|prefix cache hit", "KV cache in FP8|batch not reached"),
        (public_logs.TRTLLM.text, "CUDA graphs off", "KV cache in 16 bits|two-batch overlap off"),
    ],
)
def test_a_log_excludes_what_its_arguments_rule_out(text: str, out: str, left: str) -> None:
    logged = logged_plan(text)
    kind = "training" if logged.stack in ("megatron", "nemo", "torchtitan") else "inference"
    tried = {change.cause for change in changes(kind)} - {change.cause for change in ruled_out(kind, logged)}
    for causes in (out, left):
        assert set(causes.split("|")) <= {change.cause for change in changes(kind)}
    assert not set(out.split("|")) & tried and set(left.split("|")) <= tried


def test_causes_that_are_excluded_are_not_offered(command: Command, tmp_path: Path) -> None:
    """A step of 26 % more fits full recomputation, which the log of the run says is off."""
    plans, log = tmp_path / "plans.csv", tmp_path / "train.log"
    plans.write_text("model,accelerator,GPUs,TP,GBS,seq len,software\nLlama3-8B,H100,8,8,128,8192,megatron\n")
    step = evaluate(plan_of(model="Llama3-8B", accelerator="H100", num_accelerators=8, tensor_parallel=8,
                            global_batch_size=128, sequence_length=8192, recompute="full", software="megatron"),
                    load_catalog())["step_time"][0]  # fmt: skip
    iterations = f" iteration 9/ 9 | elapsed time per iteration (ms): {1e3 * step:.1f} |\n"
    for head, offered in (("", True), (DUMP, False)):
        log.write_text(head + iterations)
        outcome = command("diagnose", plans, "--log", log)
        assert ("full recomputation" in outcome.out) == offered and ("excludes" in outcome.err) == bool(head)


# --- logs that contradict the plan -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "text", "words"),
    [
        (
            {"model": "Llama2-70B", "tensor_parallel": 8},
            "  num_layers ........ 80\n  hidden_size ........ 8192\n  num_attention_heads ........ 64\n"
            "  padded_vocab_size ........ 129024\n  tensor_model_parallel_size ........ 8\n",
            "its vocab size 129024 and not 32000: it is no Llama2-70B but Meta-Llama-3.1-70B",
        ),
        ({"model": "Qwen3-8B", "software": "torchtitan", "tensor_parallel": 8, "recompute": "full"},
         public_logs.TORCHTITAN.text, "its model is Qwen3-32B, that of the plan Qwen3-8B"),
        ({"model": "Qwen3-32B", "software": "torchtitan", "tensor_parallel": 8, "global_batch_size": 64,
          "sequence_length": 4096, "micro_batch_size": 16, "num_accelerators": 32},
         public_logs.TORCHTITAN.text, "its recompute is full, by default that of the plan none"),
        ({"model": "Qwen3-32B", "tensor_parallel": 8}, public_logs.TORCHTITAN.text,
         "it is of torchtitan, the plan is for Megatron-Core"),
    ],
)  # fmt: skip
def test_a_log_of_another_run_is_reported(
    catalog: Catalog, tmp_path: Path, plan: dict[str, str | float], text: str, words: str
) -> None:
    path = tmp_path / "run.log"
    path.write_text(text + " iteration 9/ 9 | elapsed time per iteration (ms): 8.0 |\n")
    own = plan_of(**{"accelerator": "H100", "num_accelerators": 64.0, **plan})
    result = contradictions(own, catalog, "run.log", read_log(path), logged_plan(text))
    assert any(line.startswith(f"run.log: contradicts the plan: {words}") for line in result), result


# --- the remedy ------------------------------------------------------------------------------------------------------

SERVED = {"accelerator": "H100", "num_accelerators": 8.0, "tensor_parallel": 8.0, "prompt_length": 1000.0,
          "output_length": 1000.0, "concurrency": 512.0, "mode": "continuous", "precision": "fp8"}  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "measured", "flag"),
    [
        ({"model": "Qwen3-30B-A3B", "software": "vllm", **SERVED}, "tokens per second=9e3", "--enable-expert-parallel"),
        ({"model": "Meta-Llama-3.1-70B", "software": "sglang", **SERVED}, "tpot=60 ms", "--tensor-parallel-size 2"),
        ({"model": "Qwen3-32B", "accelerator": "H100", "num_accelerators": 32.0, "tensor_parallel": 8.0,
          "global_batch_size": 64.0, "recompute": "full", "software": "megatron"}, "step time=9",
         "; without --recompute-method --recompute-num-layers"),
    ],
)  # fmt: skip
def test_a_remedy_is_a_ratio_of_predictions_on_the_same_machine(
    catalog: Catalog, columns: dict[str, str | float], measured: str, flag: str
) -> None:
    """Both plans evaluate to the figures in words, the stack starts the better one, and its flags come back."""
    plan = plan_of(**columns)
    (reading,) = read_measured(plan.kind, [measured])
    result = remedy(plan, catalog, [reading])
    name = reading.column.name
    old, new = (evaluate(one, catalog).number(name)[0] for one in (plan, result.plan))
    assert result.better and (new > old) == reading.objective.larger
    factor = 1e-3 if name == "tpot" else 1.0
    amounts = (brief(reading.value / factor * gain) for gain in (1.0, new / old))
    assert "{} measured -> {}".format(*amounts) in result.lines[1]
    assert not refused_reasons(result.plan, catalog)[0] and result.results["fits"][0] == 1.0
    for same in ("model", "accelerator", "num_accelerators", "concurrency", "global_batch_size", "precision"):
        assert same not in plan or str(result.plan[same][0]).startswith(str(plan[same][0]))
    stack = str(plan["software"][0])
    (line,) = (line for line in result.lines if line.startswith(f"{stack}: "))
    lines = [one.strip(" \\") for one in launch_lines(result.plan, stack, shape_of(result.plan, catalog))]
    assert flag in line and all(f"--{word.split()[0]}" in " ".join(lines) for word in
                                line.partition("; without")[0].split("--")[1:])  # fmt: skip


def test_nothing_better_is_said_and_hands_the_plan_on(catalog: Catalog) -> None:
    plan = plan_of(**{"model": "Qwen3-32B", "software": "vllm", **SERVED, "num_accelerators": 1.0,
                      "tensor_parallel": 1.0, "concurrency": 8.0, "name": "mine"})  # fmt: skip
    result = remedy(plan, catalog)
    assert not result.better and result.plan["name"][0] == "mine"
    assert result.lines == ("remedy: no mapping that vLLM starts is more than 3 % faster on this H100, of 1 tried",)


def test_a_measured_column_is_not_handed_on(catalog: Catalog) -> None:
    """What was measured is of the plan that ran."""
    plan = plan_of(model="Llama3-8B", accelerator="H100", num_accelerators=8, tensor_parallel=8, global_batch_size=64)
    plan = replace(plan, columns={**plan.columns, "measured_step_time": np.array([3.0])})
    assert "measured_step_time" not in remedy(plan, catalog).plan
