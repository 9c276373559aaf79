"""Launch lines: a plan becomes arguments and comes back the same; unknown flags are listed; bad text gets a line."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import Outcome, csv_rows
from places import DATA

from xlperf.base.errors import InputError
from xlperf.base.resources import stack_rows, workbook
from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.read import read_plans
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table
from xlperf.interop.launch import Launch, flags, launch_lines, read_launch, stacks
from xlperf.interop.launch_stacks import verdict
from xlperf.interop.launch_text import Setting

Command = Callable[..., Outcome]
REST = "# xlperf: model = Llama3-70B\n# xlperf: accelerator = H100-SXM-80GB\n# xlperf: num accelerators = 64\n"


@pytest.mark.parametrize("stack", stacks())
def test_shipped_plans_come_back_the_same(stack: str) -> None:
    kind = flags(stack)[0].kind
    table = next(table for table in read_plans(workbook()) if table.kind == kind)
    for row in range(len(table)):
        one = table.take([row])
        result, unknown, *_ = read_launch("\n".join(launch_lines(one, stack)), "lines")
        assert not unknown
        for name in table.schema.by_name:
            if name in one:
                mine = result[name][0] if name in result else ("" if one[name].dtype == object else np.nan)
                assert mine == one[name][0] or (mine != mine and one[name][0] != one[name][0]), name
        assert {name for name, mask in one.auto.items() if mask[0]} == set(result.auto)


def test_flags_are_of_columns_and_values_that_there_are() -> None:
    for row in stack_rows("flags"):
        assert row["version"]
        if row["column"][:1] in ("", "@"):
            continue
        column = table_schema(row["kind"]).by_name[row["column"]]
        assert row["value"] or not row["argument"]
        if row["value"] and column.entries:
            assert row["value"] in column.entries
    for row in stack_rows("defaults"):
        assert row["column"] in table_schema(flags(row["stack"])[0].kind).by_name and row["source"]


# --- public scripts: their argument lists, as facts, in the forms in which launch files come --------------------------

SERVING = {"prompt length": "1024", "output length": "1024"}


def as_script(words: list[str]) -> str:
    """Arguments in an array, every other number in a variable."""
    lines, options = ["#!/bin/bash", "# launches"], []
    for place, word in enumerate(words):
        if word.isdigit() and place % 2:
            lines.append(f"export V{place}=${{V{place}:-{word}}}")
            options.append(f"${{V{place}}}")
        else:
            options.append(shlex.quote(word))
    return "\n".join([*lines, "ARGS=(", *(f"    {one}" for one in options), ")", 'torchrun run.py "${ARGS[@]}" 2>&1'])


def as_yaml(words: list[str]) -> str:
    """Dotted names as keys, nested by their first part."""
    result, parents = ["# settings"], set()
    for word in sorted(words):
        name, _, value = word.partition("=")
        head, dot, rest = name.partition(".")
        if dot and head not in parents:
            parents.add(head)
            result.append(f"{head}:")
        result.append(f'  {rest}: "{value}"' if dot else f'{name}: "{value}"  # {name}')
    return "\n".join(result)


def read_public(row: dict[str, str], form: int) -> tuple[Launch, dict[str, str]]:
    words = shlex.split(row["arguments"])
    dotted = all("=" in word and not word.startswith("-") for word in words)
    text = as_yaml(words) if dotted and form else as_script(words) if form == 1 and not dotted else row["arguments"]
    written = [word for word in words if word.endswith((".yml", ".yaml")) and not dotted]
    text += "".join(f"\n: > {name}" for name in written)  # the settings of these files are among the arguments
    given = {"model": "Qwen3-8B", "accelerator": "H200-SXM-141GB"}
    given |= SERVING if flags(row["stack"])[0].kind == "inference" else {"num_accelerators": "64"}
    if "num_accelerators=" in row["plan"]:
        given.pop("num_accelerators", None)
    return read_launch(text, row["path"], "", given), given


def test_public_scripts() -> None:
    """95 % of launch files are read right, all come back identical, and no flag is lost without a word."""
    scripts = csv_rows((DATA / "launch_scripts.csv").read_text())
    assert len(scripts) >= 100
    right = 0
    for place, row in enumerate(scripts):
        result, _ = read_public(row, place % 2)
        plan = result.plan
        wanted = dict(part.split("=") for part in row["plan"].split())
        said = {name: plan[name][0] if name in plan else None for name in wanted}
        right += plan.kind == flags(row["stack"])[0].kind and all(
            said[name] == value or (isinstance(said[name], float) and f"{said[name]:g}" == value)
            for name, value in wanted.items()
        )
        back = read_launch("\n".join(launch_lines(plan, row["stack"])), "lines")
        assert not back.unknown
        for name in plan.schema.by_name:
            values = [one[name][0] if name in one else "" for one in (plan, back.plan)]
            values = ["" if value != value else value for value in values]
            assert values[0] == values[1], (row["path"], name)
        known = {flag.flag.strip("-=").replace("_", "-").casefold() for flag in flags(row["stack"])}
        listed = " ".join(result.unknown).replace("_", "-").casefold()
        for word in shlex.split(row["arguments"]):
            name = word.partition("=")[0].strip("-").replace("_", "-").casefold()
            if word.startswith("--") and name not in known and "." not in name:
                assert name in listed or verdict(Setting(name, ("2",))) == "harmless", (row["path"], word)
    assert right >= 0.95 * len(scripts)


SCRIPT = """#!/usr/bin/env bash
TP=${TP:-4}; NODES=2   # two
BATCH=$((NODES * 8 * 4))
if [[ "$TP" -ge 8 && "$MODE" != "fast" ]]; then PP=2
elif [ "$TP" == "4" ]; then
  PP=4
else
  PP=1
fi
case $PP in
  4|8) SEQ=8192 ;;
  *) SEQ=2048 ;;
esac
ARGS=(
  --tensor-model-parallel-size $TP
  # --sequence-parallel
  "--pipeline-model-parallel-size ${PP}"
)
ARGS+=(--seq-length "$SEQ")
EXTRA="--bf16 --global-batch-size ${BATCH}"
for dtype in bf16 fp16; do echo $dtype; done
OMP_NUM_THREADS=1 torchrun --nproc_per_node 8 --nnodes=$NODES pretrain_gpt.py ${ARGS[@]} $EXTRA \\
    --micro-batch-size $MICRO > $(date +%s).log 2>&1 &
"""


def test_scripts_are_filled_in_and_not_executed() -> None:
    given = {"model": "Llama3-70B", "accelerator": "H100-SXM-80GB"}
    with pytest.raises(InputError, match=r"without a value: --micro-batch-size \$MICRO: give them with --set MICRO="):
        read_launch(SCRIPT, "train.sh", given=given)
    result = read_launch(SCRIPT, "train.sh", given=given, partial=True)
    names = ("tensor_parallel", "pipeline_parallel", "sequence_length", "global_batch_size", "num_accelerators")
    assert [result.plan[name][0] for name in names] == [4.0, 4.0, 8192.0, 64.0, 16.0]
    assert result.open == ["--micro-batch-size $MICRO"] and not result.unknown
    assert result.plan["precision"][0] == "bf16" and result.plan["sequence_parallel"][0] == 0.0
    other = read_launch(SCRIPT, "train.sh", given={**given, "TP": "8", "MICRO": "2"})
    names = ("tensor_parallel", "pipeline_parallel", "sequence_length", "micro_batch_size")
    assert [other.plan[name][0] for name in names] == [8.0, 2.0, 2048.0, 2.0]


def test_other_forms() -> None:
    given = {"accelerator": "H100-SXM-80GB", "num accelerators": "16"}
    toml = (
        '[model]\nname = "llama3"\nflavor = "70B"\nconverters = ["float8"]\n[parallelism]\ntensor_parallel_degree = 8\n'
    )
    plan = read_launch(toml + "[training]\nlocal_batch_size = 2\n", "70b.toml", given=given, models=models()).plan
    assert plan["model"][0] == "Meta-Llama-3.1-70B" and plan["software"][0] == "torchtitan"
    assert [plan[name][0] for name in ("tensor_parallel", "micro_batch_size", "global_batch_size")] == [8.0, 2.0, 4.0]
    assert (plan["precision"][0], plan["recompute"][0], plan["zero_stage"][0]) == ("fp8-current", "selective", 3.0)
    text = "cat > extra.yml << EOF\nenable_attention_dp: true\nkv_cache_config:\n  dtype: fp8\nEOF\n"
    text += "trtllm-serve nvidia/DeepSeek-R1-0528-FP4 --tp_size 8 --ep_size 8 --extra_llm_api_options extra.yml"
    plan = read_launch(text, "serve.sh", given={"accelerator": "B200-SXM-180GB", **SERVING}, models=models()).plan
    formats = plan["model"][0], plan["precision"][0], plan["kv_precision"][0]
    assert formats == ("DeepSeek-R1-0528-FP4", "auto", "fp8")
    names = ("tensor_parallel", "data_parallel_attention", "expert_parallel", "num_accelerators")
    assert [plan[name][0] for name in names] == [8.0, 8.0, 8.0, 8.0]


def models() -> Table:
    return load_catalog().tables["models"]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("vllm serve m --tensor-parallel-size 2 --data-parallel-size 4 --enable-expert-parallel", [8, 4, 8, 8]),
        ("vllm serve m --tensor-parallel-size 2 --data-parallel-size 4", [2, 1, 1, 8]),
        ("sglang.launch_server --model m --tp 8 --dp 8 --ep 8 --enable-dp-attention", [8, 8, 8, 8]),
        ("sglang.launch_server --model m --tp 4 --dp 2", [4, 1, 1, 8]),
    ],
)
def test_replicas_of_engines_are_told_from_replicas_of_attention(line: str, wanted: list[float]) -> None:
    plan = read_launch(line, "line", given={"model": "DeepSeek-R1", "accelerator": "H200-SXM-141GB", **SERVING}).plan
    names = ("tensor_parallel", "data_parallel_attention", "expert_parallel", "num_accelerators")
    assert [plan[name][0] if name in plan and plan[name][0] == plan[name][0] else 1.0 for name in names] == wanted


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("vllm serve m --cuda-graph-sizes 1 2 1024", 1024),
        ('vllm serve m --compilation-config \'{"cudagraph_mode": "FULL_DECODE_ONLY"}\'', 0),
        ("vllm serve m --compilation-config.cudagraph_mode=PIECEWISE --max-cudagraph-capture-size 256", 256),
        ("sglang.launch_server --model m --disable-piecewise-cuda-graph", 0),
        ("sglang.launch_server --model m --piecewise-cuda-graph-tokens 16 512 2048", 2048),
        ("sglang.launch_server --model m --cuda-graph-max-bs-prefill 4096", 4096),
        ("torch_compile_config:\n  enable_piecewise_cuda_graph: true\nmoe_config:\n  backend: CUTLASS", 3072),
        ("torch_compile_config:\n  capture_num_tokens: [8, 64]\n  enable_piecewise_cuda_graph: true", 64),
        ("torch_compile_config:\n  enable_piecewise_cuda_graph: false", 0),
    ],
)
def test_graphs_of_passes_are_read(line: str, wanted: float) -> None:
    """Where engines list the sizes that they capture, the largest says up to where a pass is replayed."""
    given = {"model": "Llama3-70B", "accelerator": "H100-SXM-80GB", "num accelerators": "8", **SERVING}
    assert read_launch(line, "line", given=given).plan["graph_tokens"][0] == wanted


@pytest.mark.parametrize(("stack", "software"), [("vllm", "vllm"), ("sglang", "sglang"), ("trtllm", "tensorrt-llm")])
def test_graphs_of_passes_are_written(stack: str, software: str) -> None:
    for most in (0.0, 512.0, 4000.0):
        row = {"model": "Llama3-70B", "accelerator": "H100-SXM-80GB", "num_accelerators": 8.0, "software": software,
               "prompt_length": 1000.0, "output_length": 100.0, "graph_tokens": most}  # fmt: skip
        plan = table_from_rows("inference", list(row), [list(row.values())], lambda _, column: column)
        lines = launch_lines(plan, stack)
        assert not any("graph_tokens" in line for line in lines)
        assert read_launch("\n".join(lines), "lines").plan["graph_tokens"][0] == most


def test_torchtitan_compiles_where_it_is_asked_to() -> None:
    """Its default is not to; a plan says so in a column that is written back as a flag."""
    given = {"model": "Meta-Llama-3.1-8B", "accelerator": "H100-SXM-80GB", "num_accelerators": "8"}
    line = "torchrun run_train.py --training.local_batch_size 1"
    for switch, wanted in (("", 0.0), (" --training.compile", 1.0), (" --compile.enable", 1.0)):
        plan = read_launch(line + switch, "line", given=given).plan
        assert (plan["compiled"][0], plan["software"][0]) == (wanted, "torchtitan")
        lines = launch_lines(plan, "torchtitan")
        assert any(".compile" in one or "compile.enable" in one for one in lines) == bool(wanted)
        assert read_launch("\n".join(lines), "lines").plan["compiled"][0] == wanted
    toml = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\n[compile]\nenable = true\n'
    assert read_launch(toml, "8b.toml", given=given, models=models()).plan["compiled"][0] == 1.0


def test_a_model_is_found_by_its_dimensions() -> None:
    line = "--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 --num-query-groups 8 "
    line += "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 5"
    given = {"accelerator": "H100-SXM-80GB", "num_accelerators": "64"}
    plan = read_launch(line, "line", given=given, models=models()).plan
    assert plan["model"][0] in ("Llama2-70B", "Meta-Llama-3.1-70B") and plan["virtual_pipeline"][0] == 4.0
    # without its flags Megatron-LM does neither of these
    assert (plan["zero_stage"][0], plan["precision"][0], plan["sequence_parallel"][0]) == (0.0, "fp32", 0.0)


@pytest.mark.parametrize(
    "text",
    ["a=$a$a\n" * 1000 + "--tensor-model-parallel-size $a", "((((" * 10_000, '"' * 99_999, "x=${a:-" * 5000,
     "if [ " * 5000, "k: {" * 9000, "a: |\n" * 3000, "$((9*9*9" * 3000, "[t]\n" + "a." * 5000 + "b = 1", "- " * 9000],
)  # fmt: skip
def test_hostile_launch_files_get_a_line(text: str) -> None:
    start = time.process_time()
    with pytest.raises(InputError) as caught:
        read_launch(text, "noise", given={"model": "Llama3-70B"})
    assert len(caught.value.lines()) == 1 and time.process_time() - start < 5.0


def test_a_script_is_read() -> None:
    script = REST + "torchrun --nproc-per-node 8 pretrain_gpt.py \\\n  --tensor-model-parallel-size 8 --bf16 \\\n"
    script += "  --recompute-granularity full --seq-length=8192 --sequence-parallel --lr 1e-4 --my-flag 3\n"
    plan, unknown, *_ = read_launch(script, "train.sh")
    assert plan.kind == "training"
    said = {name: plan[name][0] for name in ("tensor_parallel", "sequence_length", "recompute", "sequence_parallel")}
    assert said == {"tensor_parallel": 8.0, "sequence_length": 8192.0, "recompute": "full", "sequence_parallel": 1.0}
    assert unknown == ["--my-flag 3"]


def test_all_that_is_lacking_is_said_at_once() -> None:
    """A variable, an unknown model and the accelerator: each was told after the one before was given."""
    text = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 31 --hidden-size 4100 "
    text += "--tensor-model-parallel-size 8 --num-attention-heads 32 --seq-length $LEN"
    with pytest.raises(InputError) as caught:
        read_launch(text, "train.sh", models=load_catalog().tables["models"])
    words = str(caught.value)
    assert "no model of the catalog has num layers 31" in words
    assert "does not say" in words and "accelerator" in words and "LEN" in words


def test_what_is_lacking_or_wrong_gets_a_line() -> None:
    with pytest.raises(InputError, match="does not say accelerator, num accelerators"):
        read_launch("# xlperf: model = Llama3-70B\n--tensor-model-parallel-size 8", "train.sh")
    with pytest.raises(InputError, match="has no flag of"):
        read_launch("\x00 nothing ' here", "noise")
    with pytest.raises(InputError, match="more than"):
        read_launch("x" * 2_000_000, "large")
    with pytest.raises(InputError, match="tensor parallel must be"):
        read_launch(REST + "--tensor-model-parallel-size eight", "train.sh")
    plan = next(table for table in read_plans(workbook()) if table.kind == "inference")
    with pytest.raises(InputError, match="megatron runs training plans; for inference plans: vllm"):
        launch_lines(replace(plan.take([0]), auto={}), "megatron")


def test_commands(command: Command, tmp_path: Path) -> None:
    printed = command("launch", workbook(), "--row", "1", "--for", "megatron")
    assert printed.code == 0 and printed.out.startswith("# xlperf: megatron Megatron-Core")
    script = tmp_path / "train.sh"
    script.write_text(printed.out + "--my-flag 3\n")
    back = command("launch", "--read", script)
    assert back.code == 0 and csv_rows(back.out)[0]["model"]
    assert back.err == "note: train.sh: not read: --my-flag 3\n"
    script.write_bytes(b"\xff\xfe\x00--tp")
    assert command("launch", "--read", script).err.count("\n") == 1


def test_every_stack_can_be_named(command: Command) -> None:
    shown = command("launch", "--help").out
    assert f"[{'|'.join(stacks())}]" in shown


DUMP = """------------------------ arguments ------------------------
  attention_backend ............................... AttnBackend.auto
  bf16 ............................................ True
  exp_avg_dtype ................................... torch.float32
  fp8 ............................................. None
  fp8_recipe ...................................... delayed
  global_batch_size ............................... 128
  group_query_attention ........................... False
  moe_router_topk ................................. 2
  num_experts ..................................... None
  num_query_groups ................................ 1
  pipeline_model_parallel_size .................... 4
  sequence_parallel ............................... True
  tensor_model_parallel_size ...................... 8
  use_distributed_optimizer ....................... True
  virtual_pipeline_model_parallel_size ............ 5
  world_size ...................................... 64
"""
SGLANG = "server_args=ServerArgs(model_path='deepseek-ai/DeepSeek-R1', tp_size=8, dp_size=8, enable_dp_attention=True)"
VLLM = "INFO non-default args: {'model': 'x', 'tensor_parallel_size': 8, 'enable_expert_parallel': True}"


def test_logs_say_their_arguments(command: Command, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(DUMP + "iteration 1 | elapsed time per iteration (ms): 8.0\n" * 40_000)  # more than is looked at
    outcome = command("launch", "--read", log, "--set", "accelerator=H100-SXM-80GB", "--set", "model=Llama3-70B")
    row = csv_rows(outcome.out)[0]
    assert outcome.code == 0 and not outcome.err
    names = ("num_accelerators", "tensor_parallel", "pipeline_parallel", "virtual_pipeline", "zero_stage", "precision")
    assert [row[name] for name in names] == ["64", "8", "4", "5", "1", "bf16"]
    given = {"accelerator": "H200-SXM-141GB", **SERVING}
    plan = read_launch(SGLANG, "log", given=given, models=models()).plan
    assert (plan["model"][0], plan["data_parallel_attention"][0]) == ("DeepSeek-R1", 8.0)
    plan = read_launch(VLLM, "log", given={**given, "model": "DeepSeek-R1"}).plan
    assert (plan["expert_parallel"][0], plan["software"][0]) == (8.0, "vllm")


def test_results_say_their_plan() -> None:
    stated = {"hw": "H200-SXM-141GB", "conc": 64, "isl": 1024, "osl": 1024, "tp": 8, "ep": 8, "dp_attention": "true"}
    text = json.dumps({**stated, "model": "deepseek-ai/DeepSeek-R1-0528", "precision": "fp8", "median_ttft": 0.3})
    plan = read_launch(text, "agg.json", "sglang", models=models()).plan
    names = ("prompt_length", "concurrency", "tensor_parallel", "expert_parallel", "num_accelerators")
    assert [plan[name][0] for name in names] == [1024.0, 64.0, 8.0, 8.0, 8.0]
    assert (plan["model"][0], plan["precision"][0], plan["accelerator"][0]) == ("DeepSeek-R1", "fp8", stated["hw"])


@pytest.mark.parametrize(
    ("line", "gradients"),
    [("--fp16", "bf16"), ("--bf16", None), ("--fp16 --accumulate-allreduce-grads-in-fp32", "fp32")],
)
def test_gradients_beside_fp8_are_those_of_the_precision_below_it(line: str, gradients: str | None) -> None:
    """fixstars/mdk run_7B.sh: 41.4 GiB between steps. Megatron-LM sets FP32 gradients beside --bf16 alone."""
    given = {"model": "Llama3-8B", "accelerator": "H100-SXM-80GB", "num_accelerators": "16"}
    plan = read_launch(f"{line} --fp8-format hybrid", "line", given=given).plan
    assert plan["precision"][0] == "fp8"
    assert (plan["gradient_precision"][0] if "gradient_precision" in plan else None) == gradients


def test_an_fp8_plan_says_the_format_and_the_recipe() -> None:
    line = "--bf16 --fp8-format hybrid --fp8-recipe tensorwise --tensor-model-parallel-size 8"
    given = {"model": "Llama3-70B", "accelerator": "H100-SXM-80GB", "num_accelerators": "64"}
    plan = read_launch(line, "line", given=given).plan
    assert plan["precision"][0] == "fp8-current"
    assert {"--bf16", "--fp8-format hybrid", "--fp8-recipe tensorwise"} <= set(launch_lines(plan, "megatron"))
