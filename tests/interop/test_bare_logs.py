"""Logs that hold steps and no arguments: what they do not say has no default of their stack, and is asked for."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Outcome

from xlperf.base.errors import InputError
from xlperf.catalog.table import Table
from xlperf.interop.launch import read_launch
from xlperf.interop.logs import read_log

Run = Callable[..., Outcome]

MEGATRON = "".join(
    f" iteration {step:>8}/ 500 | elapsed time per iteration (ms): {time} | global batch size:  1024 |\n"
    for step, time in ((10, 15210.6), (20, 14351.0), (30, 14197.6), (40, 14099.7))
)
TITAN = "".join(
    f"[rank{rank}]:[titan] INFO - step: {step}  memory: 44.84GiB(47.19%)  tps: {rate}  tflops: 325.20\n"
    for step, rate in ((1, 86), (10, 5615), (20, 5620))
    for rank in range(2)
)
GIVEN = {"model": "Meta-Llama-3.1-8B", "accelerator": "H100-SXM-80GB", "num accelerators": "16"}


@pytest.mark.parametrize(("text", "software"), [(MEGATRON, ""), (TITAN, "torchtitan")])
def test_a_log_without_arguments_has_no_defaults_of_its_stack(text: str, software: str) -> None:
    launched = read_launch(text, "run.log", given=GIVEN)
    assert {"precision", "zero_stage", "recompute", "tensor_parallel"}.isdisjoint(launched.plan.columns)
    assert str(launched.plan.text("software")[0]) == software
    assert any("without arguments" in note for note in launched.notes)
    with pytest.raises(InputError, match=re.escape("--set 'model=...' --set 'accelerator=...' --set 'num acc")):
        read_launch(text, "run.log")


def test_from_a_log_to_a_better_launch_line_in_two_commands(command: Run, tmp_path: Path) -> None:
    log, better = tmp_path / "train.log", tmp_path / "better.csv"
    log.write_text(MEGATRON)
    refused = command("evaluate", log)
    assert refused.code == 2 and "xlperf launch --read train.log -o plans.csv" in refused.err
    sets = [word for name, value in GIVEN.items() for word in ("--set", f"{name}={value}")]
    done = command("diagnose", log, *sets, "-o", better)
    assert done.code in (0, 1) and "measured step time 14.2 s" in done.out and "remedy: " in done.out
    assert f"xlperf launch {better}" in done.err
    launched = command("launch", better)
    assert launched.code == 0 and "torchrun" in launched.out


STARTED = """[rank0]:[titan] INFO - CUDA capacity: NVIDIA H100 with 95.00GiB memory
[rank0]:[titan] INFO - Model llama3 8B size: 8,030,261,248 total parameters
[rank0]:[titan] INFO - Applied selective activation checkpointing to the model
{}[rank0]:[titan] INFO - Applied FSDP to the model
[rank0]:[titan] INFO - step: 10  loss: 8.4  memory: 47.32GiB(49.81%)  tps: 4,382  tflops: 253.76  mfu: 25.66%
"""


@pytest.mark.parametrize(
    ("line", "compiled"),
    [("", 0.0), ("[rank0]:[titan] INFO - Compiling each TransformerBlock with torch.compile\n", 1.0)],
)
def test_the_start_of_a_torchtitan_log_names_its_accelerator_and_whether_it_is_compiled(
    line: str, compiled: float
) -> None:
    plan = read_launch(STARTED.format(line), "run.log", given={"num accelerators": "8"}).plan
    assert plan.text("accelerator")[0] == "H100" and plan.filled("compiled")[0] == compiled


def test_the_remedy_of_a_log_starts_what_it_predicts_and_names_what_ran(command: Run, tmp_path: Path) -> None:
    """torchtitan shards weights unless told otherwise, and has no choice of modules to recompute."""
    log, better = tmp_path / "run.log", tmp_path / "better.csv"
    log.write_text(STARTED.format(""))
    done = command("diagnose", log, "--set", "num accelerators=8", "--set", "global batch size=8", "-o", better)
    assert "compiled no -> yes" in done.out and "zero stage 1 ->" not in done.out
    stated = csv.DictReader(io.StringIO(better.read_text()))
    assert not any(row.get("recompute modules") for row in stated)
    assert "--compile.enable" in command("launch", better).out


MIXTURE = "--num-layers 32 --hidden-size 4096 --num-experts 8 --expert-model-parallel-size 4 --bf16"


def test_megatron_splits_experts_as_other_layers_and_overlaps_nothing_unless_told() -> None:
    def read(words: str) -> Table:
        given = {"model": "Mixtral-8x7B", "accelerator": "H100-SXM-80GB"}
        text = f"torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py {MIXTURE} --global-batch-size 128 {words}"
        return read_launch(text, "train.sh", given=given).plan

    plain = read("--tensor-model-parallel-size 4")
    assert plain.filled("expert_tensor_parallel")[0] == 4.0 and plain.filled("data_overlap")[0] == 0.0
    told = read("--tensor-model-parallel-size 4 --expert-tensor-parallel-size 1 --overlap-grad-reduce")
    assert told.filled("expert_tensor_parallel")[0] == 1.0 and told.filled("data_overlap")[0] == 1.0


PASTED = """WORLD + RUNTIME INFORMATION
TP Size:                8
EP Size:                None
Max Runtime Batch Size: 256
KV Memory Percentage:   90.00%
Average Input Length (tokens):  8192.0000
Total Output Throughput (tokens/sec): 15999.06
"""
JETSTREAM = """Output token throughput: 1412.49 tokens/s
Mean TTFT: 114960.78 ms
Median TTFT: 115488.55 ms
P99 TTFT: 243659.12 ms
Mean TPOT: 4429.77 ms
"""


def test_a_report_that_lost_its_frame_is_of_its_engine() -> None:
    """TensorRT-LLM pull request 9459: a comment keeps the words of a heading and not the sign before them."""
    given = {"model": "Qwen3-8B", "accelerator": "H100-SXM-80GB", "output length": "1"}
    plan = read_launch(PASTED, "run.log", given=given).plan
    stated = ("tensor_parallel", "num_accelerators", "max_running_batch", "prompt_length", "memory_fraction")
    assert [plan[name][0] for name in stated] == [8.0, 8.0, 256.0, 8192.0, 0.9]
    assert "expert_parallel" not in plan


def test_the_client_of_jetstream_is_read(tmp_path: Path) -> None:
    """AI-Hypercomputer/JetStream pull request 83."""
    (tmp_path / "run.log").write_text(JETSTREAM)
    words = [one.words for one in read_log(str(tmp_path / "run.log")).results]
    assert words == [
        "JetStream: ttft 114961 ms",
        "JetStream: tpot 4429.77 ms",
        "JetStream: tokens per second 1412.49 token/s",
    ]


def test_the_limit_of_the_context_of_a_start_is_read() -> None:
    """vllm issue 36861: its configuration states the limit that it came to."""
    text = "Initializing a V1 LLM engine (v0.16.0) with config: model='Qwen/Qwen3-32B', max_seq_len=160000, seed=0\n"
    given = {"accelerator": "H100-SXM-80GB", "prompt length": "9", "output length": "1"}
    assert read_launch(text, "run.log", given=given).plan["max_context"][0] == 160_000.0


def test_a_change_that_leaves_no_room_for_a_cache_divides_by_nothing(command: Run, tmp_path: Path) -> None:
    """vllm PR 13596: the start of a server alone, beside a plan whose other sharding has no memory for a cache."""
    (tmp_path / "start.log").write_text(
        "kv_cache_utils.py:524] GPU KV cache size: 2,042,016 tokens\n", encoding="utf-8"
    )
    header = "model,accelerator,num accelerators,tensor parallel,prompt length,output length,concurrency,software"
    (tmp_path / "plan.csv").write_text(
        f"{header}\nMiniMax-M2.5,H200-SXM-141GB,4,4,1062,8192,16,vllm\n", encoding="utf-8"
    )
    done = command("diagnose", str(tmp_path / "plan.csv"), "--log", str(tmp_path / "start.log"))
    assert "vLLM: kv cache tokens 2,042,016\n" in done.err and "Warning" not in done.err
