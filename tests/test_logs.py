"""Logs: medians without the warm-up, any length, and one line for what is none."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import run_logs
from conftest import Outcome

from xlperf.base.errors import InputError
from xlperf.base.resources import workbook
from xlperf.base.units import UNITS
from xlperf.catalog.logs import blocks, read_log, read_profile
from xlperf.explore.causes import measured_texts

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


def test_memory_does_not_grow_with_the_log_and_each_byte_is_read_once(tmp_path: Path) -> None:
    """The time of 100 MB is in tests/benchmarks."""
    peaks = []
    for count in (20_000, 80_000):
        path = megatron(tmp_path / "large.log", count)
        tracemalloc.start()
        assert read_log(path)[0].value == 20_601.0
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert sum(len(block) for block in blocks(path)) == path.stat().st_size
    assert peaks[1] < peaks[0] + 3 * 8 * 60_000 + 1e6  # the numbers kept, not the text
    assert peaks[1] < 16e6


def trace(path: Path, order: str = "cat first") -> Path:
    """Two steps: products of 3 ms, of which messages overlap 1 ms and stick out 2 ms; attention of 1 ms."""
    events, start = [], 0.0
    for step in range(2):
        events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": start, "dur": 6000})
        for name, at, length in (
            ("nvjet_tst_128x256_NNT", 0.0, 3000.0),
            ("ncclDevKernel_ReduceScatter_Sum_bf16", 2000.0, 3000.0),
            ("flash_fwd_kernel<Flash_fwd_kernel_traits>", 5000.0, 1000.0),
        ):
            own = {"cat": "kernel", "name": name} if order == "cat first" else {"name": name, "cat": "kernel"}
            events.append(
                {"ph": "X", **own, "pid": 0, "tid": 7, "ts": start + at, "dur": length, "args": {"stream": 7}}
            )
        start += 10_000.0
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}, indent=None if order else 2))
    return path


@pytest.mark.parametrize("order", ["cat first", "name first"])
def test_a_trace_by_class_of_kernels(tmp_path: Path, order: str) -> None:
    found = read_profile(trace(tmp_path / "trace.json", order))
    assert found.steps == 2 and found.exposed == pytest.approx(2e-3) and found.computed == pytest.approx(4e-3)
    assert found.times == pytest.approx({"matrix": 3e-3, "communication": 3e-3, "attention": 1e-3})
    texts = dict(text.split("=") for text in measured_texts("training", found))
    assert [float(value.removesuffix(" s")) for value in texts.values()] == pytest.approx([4e-3, 2e-3])


def test_a_profile_beside_the_prediction(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "profile.csv"
    path.write_text("class,time (ms)\nmatrix,11000\nattention,1700\nvector,620\ncommunication,5200\nexposed,2300\n")
    asked = ("diagnose", workbook(), "--name", "Llama-3 70B, 64 H100, bf16", "--profile", path, "--all")
    outcome = command(*asked, "--measured", "step time=15.7")
    assert outcome.code == 0
    lines = {line.split()[0]: line.split()[1:] for line in outcome.err.splitlines() if line.startswith(("m", "a", "v"))}
    assert float(lines["matrix"][0]) == 11_000.0 and 0.9 < float(lines["matrix"][2]) < 1.1
    assert "time forward ... time optimizer" in outcome.out


BROKEN = (b"", b"{}", b"[1, 2", b"\xff" * 99, b'{"traceEvents": [{"cat": "kernel", "name": "', b'{"matrix": "fast"}')


@pytest.mark.parametrize("content", [*BROKEN, b'{"cat": "kernel", "name": "g", "ts": 1, "dur": 2}'])
def test_what_is_no_profile_gets_a_line(command: Command, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(InputError):
        read_profile(path)
    outcome = command("diagnose", workbook(), "--profile", path)
    assert outcome.code == 2 and outcome.err.count("\n") == 1


VALUES = {"tpot": 0.012, "ttft": 0.25, "tokens_per_second": 800.0, "tokens_per_second_per_accelerator": 100.0}
VALUES |= {"step_time": 2.0, "memory": 3e10, "memory_reserved": 4e10, "memory_weights": 15e9}
VALUES |= {"accelerator_power": 600.0}


@pytest.mark.parametrize("write", [*run_logs.TRAINING.values(), *run_logs.SERVING.values(), run_logs.nvidia_smi])
def test_logs_of_every_stack(tmp_path: Path, write: Callable[..., str]) -> None:
    parts = dict.fromkeys((*run_logs.PASSES, *run_logs.COMPUTED, *run_logs.EXCHANGED), 0.2)
    path = tmp_path / "log"
    path.write_text(write({**parts, **VALUES}, np.random.default_rng(0), 0.0))
    values = read_log(path)
    assert values
    for one in values:
        names = [name.replace(" ", "_") for name in one.result.split(" + ")]
        wanted = sum({**parts, **VALUES}[name] for name in names)
        assert one.value * UNITS[one.unit].factor == pytest.approx(wanted, rel=0.02), one
    assert {len(value.text.split("=")) for value in values} == {2}


@pytest.mark.parametrize("content", [b"", b"\x00\xff" * 70_000, b"elapsed time per iteration (ms): 1.2.3", b"tps: ,,"])
def test_what_is_no_log_gets_a_line(command: Command, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "noise.log"
    path.write_bytes(content)
    with pytest.raises(InputError, match="has no step time"):
        read_log(path)
    assert command("diagnose", workbook(), "--log", path).err.count("\n") == 1
