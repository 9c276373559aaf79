"""Launch lines: a plan becomes arguments and comes back the same; unknown flags are listed; bad text gets a line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import Outcome, csv_rows

from xlperf.base.errors import InputError
from xlperf.base.resources import rows, workbook
from xlperf.catalog.launch import flags, launch_lines, read_launch, stacks
from xlperf.catalog.read import read_plans
from xlperf.catalog.schema import table_schema

Command = Callable[..., Outcome]
REST = "# xlperf: model = Llama3-70B\n# xlperf: accelerator = H100-SXM-80GB\n# xlperf: num accelerators = 64\n"


@pytest.mark.parametrize("stack", stacks())
def test_shipped_plans_come_back_the_same(stack: str) -> None:
    kind = flags(stack)[0].kind
    table = next(table for table in read_plans(workbook()) if table.kind == kind)
    for row in range(len(table)):
        one = table.take([row])
        found, unknown = read_launch("\n".join(launch_lines(one, stack)), "lines")
        assert not unknown
        for name in table.schema.by_name:
            if name in one:
                mine = found[name][0] if name in found else ("" if one[name].dtype == object else np.nan)
                assert mine == one[name][0] or (mine != mine and one[name][0] != one[name][0]), name
        assert {name for name, mask in one.auto.items() if mask[0]} == set(found.auto)


def test_flags_are_of_columns_and_values_that_there_are() -> None:
    for row in rows("catalog/launch_flags.csv"):
        column = table_schema(row["kind"]).by_name[row["column"]]
        assert row["version"] and (row["value"] or not row["argument"])
        if row["value"] and column.entries:
            assert row["value"] in column.entries


def test_a_script_is_read() -> None:
    script = REST + "torchrun --nproc-per-node 8 pretrain_gpt.py \\\n  --tensor-model-parallel-size 8 --bf16 \\\n"
    script += "  --recompute-granularity full --seq-length=8192 --sequence-parallel --lr 1e-4\n"
    plan, unknown = read_launch(script, "train.sh")
    assert plan.kind == "training"
    said = {name: plan[name][0] for name in ("tensor_parallel", "sequence_length", "recompute", "sequence_parallel")}
    assert said == {"tensor_parallel": 8.0, "sequence_length": 8192.0, "recompute": "full", "sequence_parallel": 1.0}
    assert unknown == ["--nproc-per-node 8", "--lr 1e-4"]


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
    script.write_text(printed.out + "--lr 1e-4\n")
    back = command("plan", script)
    assert back.code == 0 and csv_rows(back.out)[0]["model"]
    assert back.err == "note: train.sh: not read: --lr 1e-4\n"
    script.write_bytes(b"\xff\xfe\x00--tp")
    assert command("plan", script).err.count("\n") == 1


def test_every_stack_can_be_named(command: Command) -> None:
    shown = command("launch", "--help").out
    assert f"[{'|'.join(stacks())}]" in shown
