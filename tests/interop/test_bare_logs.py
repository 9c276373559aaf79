"""Logs that hold steps and no arguments: what they do not say has no default of their stack, and is asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Outcome

from xlperf.base.errors import InputError
from xlperf.interop.launch import read_launch

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
