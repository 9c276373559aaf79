"""Logs: medians without the warm-up, any length, and one line for what is none."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Outcome

from xlperf.base.errors import InputError
from xlperf.base.resources import workbook
from xlperf.catalog.logs import read_log

Command = Callable[..., Outcome]
LINE = (
    " iteration {:8d}/  500000 | consumed samples: 512 | elapsed time per iteration (ms): {:.1f} | lm loss: 2E+00 |\n"
)


def megatron(path: Path, count: int) -> Path:
    memory = "[Rank 0] (after 2 iterations) memory (MB) | allocated: 100.0 | max allocated: 25600.0 | reserved: 3.0\n"
    with path.open("w") as stream:
        for step in range(count):
            stream.write(LINE.format(step, 90_000.0 if step < 2 else 20_600.0 + step % 3))
        stream.write(memory)
    return path


def test_a_training_log(command: Command, tmp_path: Path) -> None:
    log = megatron(tmp_path / "train.log", 100)
    step, memory = read_log(log)
    assert (step.value, step.unit, step.used, step.left_out) == (20_601.0, "ms", 90, 10)
    assert (memory.result, memory.value, memory.unit) == ("memory", 25_600.0, "MiB")
    outcome = command("diagnose", workbook(), "--name", "Llama-3 70B, 64 H100, bf16", "--log", log)
    assert outcome.code == 0 and outcome.out.startswith("measured step time 20.6 s; predicted")
    assert "10 of warm-up left out" in outcome.err and "full recomputation" in outcome.out


def test_benchmark_results(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"median_ttft_ms": 120.5, "median_tpot_ms": 8.25, "output_throughput": 812.0}))
    assert [value.text for value in read_log(path)] == [
        "ttft=120.5 ms",
        "tpot=8.25 ms",
        "tokens per second=812 token/s",
    ]
    path.write_text("Median TTFT (ms):      99.5\nMedian TPOT (ms):  7.5\nOutput token throughput (tok/s):  1000.25\n")
    assert [value.value for value in read_log(path)] == [99.5, 7.5, 1000.25]


def test_a_log_of_100_mb_is_read_in_seconds_with_flat_memory(tmp_path: Path) -> None:
    path = megatron(tmp_path / "large.log", 9_000)
    once = path.read_bytes()
    with path.open("wb") as stream:
        for _ in range(100_000_000 // len(once) + 1):
            stream.write(once)
    start = time.process_time()
    assert read_log(path)[0].value == 20_601.0
    assert time.process_time() - start < 5.0
    tracemalloc.start()
    read_log(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64e6


@pytest.mark.parametrize("content", [b"", b"\x00\xff" * 70_000, b"elapsed time per iteration (ms): 1.2.3", b"tps: ,,"])
def test_what_is_no_log_gets_a_line(command: Command, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "noise.log"
    path.write_bytes(content)
    with pytest.raises(InputError, match="has no step time"):
        read_log(path)
    assert command("diagnose", workbook(), "--log", path).err.count("\n") == 1
