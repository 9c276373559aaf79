"""Logs: medians without the warm-up, any length, and one line for what is none."""

from __future__ import annotations

import json
import re
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import run_logs
from conftest import Outcome

from xlperf.base.errors import InputError
from xlperf.base.resources import stack_rows, workbook
from xlperf.base.units import UNITS
from xlperf.explore.causes import measured_texts
from xlperf.interop.launch_text import log_lines
from xlperf.interop.logs import blocks, read_log, read_profile

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
    step, memory = read_log(log).results
    assert (step.value, step.unit, step.used, step.left_out) == (20_601.0, "ms", 90, 10)
    assert (memory.result, memory.value, memory.unit) == ("memory", 25_600.0, "MiB")
    outcome = command("diagnose", workbook(), "--name", "Llama-3 70B, 64 H100, bf16", "--log", log)
    assert outcome.code == 0 and outcome.out.startswith("measured step time 20.6 s; predicted")
    assert "10 of warm-up left out" in outcome.err and "full recomputation" in outcome.out


def test_benchmark_results(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"median_ttft_ms": 120.5, "median_tpot_ms": 8.25, "output_throughput": 812.0}))
    assert [value.text for value in read_log(path).results] == [
        "ttft median=120.5 ms",
        "tpot median=8.25 ms",
        "tokens per second=812 token/s",
    ]
    path.write_text("Median TTFT (ms):      99.5\nMedian TPOT (ms):  7.5\nOutput token throughput (tok/s):  1000.25\n")
    assert [value.value for value in read_log(path).results] == [99.5, 7.5, 1000.25]


def test_memory_does_not_grow_with_the_log_and_each_byte_is_read_once(tmp_path: Path) -> None:
    """The time of 100 MB is in tests/benchmarks."""
    peaks = []
    for count in (20_000, 40_000):
        path = megatron(tmp_path / "large.log", count)
        tracemalloc.start()
        assert read_log(path).results[0].value == 20_601.0
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert sum(len(block) for block in blocks(path)) == path.stat().st_size
    text = path.stat().st_size / 2  # of the lines that the second log has more
    assert peaks[1] < peaks[0] + 3 * 8 * 20_000 + text / 2  # the numbers, not the text
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
    result = read_profile(trace(tmp_path / "trace.json", order))
    assert result.steps == 2 and result.exposed == pytest.approx(2e-3) and result.computed == pytest.approx(4e-3)
    assert result.times == pytest.approx({"matrix": 3e-3, "communication": 3e-3, "attention": 1e-3})
    texts = dict(text.split("=") for text in measured_texts("training", result))
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
VALUES |= {"tpot_median": 0.011, "ttft_median": 0.2}


@pytest.mark.parametrize("write", [*run_logs.TRAINING.values(), *run_logs.SERVING.values(), run_logs.nvidia_smi])
def test_logs_of_every_stack(tmp_path: Path, write: Callable[..., str]) -> None:
    parts = dict.fromkeys((*run_logs.PASSES, *run_logs.COMPUTED, *run_logs.EXCHANGED), 0.2)
    path = tmp_path / "log"
    path.write_text(write({**parts, **VALUES}, np.random.default_rng(0), 0.0))
    values = read_log(path).results
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


def test_a_log_that_ends_out_of_memory_gets_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "failed.log"
    path.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB. GPU 3 has 79.10 GiB\n")
    with pytest.raises(InputError, match=r"ends out of memory without a measured step or request: xlperf evaluate"):
        read_log(path)


# --- numbers as each stack writes them, warm-up by step, and logs that contradict the plan ---------------------------

NEMO = (
    "Training epoch 0, iteration {0}/999 | global_batch_size: 32 | global_step: {0} | train_step_timing in s: {1} | "
    "tokens_per_sec_per_gpu: {2} | consumed_samples: 16896\n"
)


@pytest.mark.parametrize(
    ("text", "result", "value"),
    [
        # NeMo 2.0 writes rates in scientific notation and nanotron as human_format (public logs)
        (NEMO.format(527, 2.389, "6.859e+03") * 2, "tokens per second per accelerator", 6859.0),
        ("iteration: 8 / 50 | tokens_per_sec_per_gpu: 11.4K | x\n", "tokens per second per accelerator", 11_400.0),
        ("iteration: 8 / 50 | tokens_per_sec_per_gpu: 1.02M | x\n", "tokens per second per accelerator", 1.02e6),
        ("iteration: 8 / 50 | time_per_iteration_ms: 4.15K | x\n", "step time", 4150.0),
        ("step:  3  loss: 8.2  memory: 33.21GiB(34.9%)  tps: 5,615  mfu: 4%\n", "memory reserved", 33.21),
        ("Step Time : 12.78s GPU utilization: 528.1TFLOP/s/GPU\n", "step time", 12.78),
        ("step: 10  loss: 12.1  memory: 81.67GiB(85.93%)  wps: 5,380  mfu: 22%\n", "memory reserved", 81.67),
        ("Epoch 0: 1% | train_step_timing in s=5.300, consumed_samples=10240\n", "step time", 5.3),
        # the mean before the median, the median before another quantile
        ("Mean TPOT (ms):  12.05\nMedian TPOT (ms):  11.5\nP99 TPOT (ms):  30.1\n", "tpot", 12.05),
        ("Median TTFT (ms):  110.5\nP99 TTFT (ms):  900.5\n", "ttft median", 110.5),
        ("P99 TTFT (ms):  900.5\n", "ttft ninety ninth", 900.5),
        ("completed step: 17, seconds: 12.345, TFLOP/s/device: 415.2, Tokens/s/device: 663.6\n", "step time", 12.345),
        ("elapsed time per iteration (ms): 1.52E+04 |\n", "step time", 15_200.0),
        # Megatron-DeepSpeed, Primus (now and in the mean), FMS FSDP, InternEvo, OLMo-core, torchtune, axolotl, NeMo 2
        ("elapsed time per iteration (s): 13.21 | TFLOPs: 149.1 |\n", "step time", 13.21),
        ("elapsed time per iteration (ms): 21480.1/21479.0 | hip mem usage/free/total/usage_ratio: 161.20GiB/30.79GiB/"
         "191.98GiB/83.96% | tokens per GPU (tokens/s/GPU): 1144.1/1143.9 |\n", "memory reserved", 161.2),
        ("current step time: 1.71\ncurrent token per gpu per sec: 9610\n", "step time", 1.71),
        ("step=5,tgs (tokens/gpu/second)=4251.3,lr=9.1e-07\n", "tokens per second per accelerator", 4251.3),
        ("    throughput/device/TPS=6,710\n", "tokens per second per accelerator", 6710.0),
        # InternLM/xtuner docs/en/get_started, Ascend/MindSpeed-LLM fsdp2_quick_start
        ("[INFO] Step 2/13 time: 0.05 reserved_memory: 8.79 GB tgs: 76934.8 e2e_tgs: 11936.3\n",
         "tokens per second per accelerator", 76_934.8),
        ("Step 2/13 max_memory: 7.06 GB reserved_memory: 8.79 GB grad_norm: 9.420\n", "memory reserved", 8.79),
        ("max_memory_allocated(GB): 19.07 | max_memory_reserved(GB): 22.43 \n", "memory reserved", 22.43),
        ("Step 5 | tokens_per_second_per_gpu:2345.1 peak_memory_alloc:41.2\n", "memory", 41.2),
        ("{'memory/max_allocated (GiB)': 41.2, 'tokens_per_second_per_gpu': 2345.5}\n",
         "tokens per second per accelerator", 2345.5),
        ("max_memory_allocated: 59011712000 | train_step_timing in s: 13.97\n", "memory", 59011712000.0),
        ("MemAllocated=14.2GB, MaxMemAllocated=61.3GB\n", "memory", 61.3),
        # NeMo Automodel PR 3473, Megatron-DeepSpeed issue 199, axolotl issue 3196
        ("step 9 | epoch 0 | loss 0.6974 | mem 24.90 GiB | tps 11278.56(1409.82/gpu) | num_label_tokens 21541\n",
         "tokens per second per accelerator", 1409.82),
        ("steps: 2 loss: 12.6157 iter time (s): 2.673 samples/sec: 95.775\n", "step time", 2.673),
        ("{'loss': 4.75, 'memory/max_mem_allocated(gib)': 25.45, 'epoch': 1.0}\n", "memory", 25.45),
        # the Trainer writes steps per second where they are short
        ("  5%|#    | 25/500 [01:23<12:34,  1.25it/s]\n", "step time", 0.8),
        ("{'train_runtime': 1234.5, 'train_steps_per_second': 0.405}\n", "step time", 1.0 / 0.405),
        # a bar of the Trainer, behind one that loads checkpoints
        ("Loading checkpoint shards: 100%|##| 4/4 [00:05<00:00, 1.43s/it]\r"
         " 63%|###   | 200/315 [38:06<21:54, 11.43s/it]\n", "step time", 11.43),
        ("{'loss': 0.5, 'train_speed(s/it)': 9.62}\n", "step time", 9.62),
        ("[2025-07-01 10:00:00 TP0] Decode batch. #running-req: 32, #token: 40960, cuda graph: True, "
         "gen throughput (token/s): 1720.5, #queue-req: 0\n", "tokens per second", 1720.5),
        ("INFO 06-01 10:00:00 [loggers.py:116] Engine 000: Avg prompt throughput: 3300.2 tokens/s, Avg generation "
         "throughput: 1650.1 tokens/s, Running: 32 reqs\nINFO 06-01 10:00:10 [loggers.py:116] Engine 000: Avg prompt "
         "throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s\n", "tokens per second", 1650.1),
        # vllm PR 30738 and SGLang with data-parallel attention: rates of replicas add up
        ("Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 6962.0 tokens/s\n"
         "Engine 001: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 6950.0 tokens/s\n",
         "tokens per second", 13_912.0),
        ("[2025-07-01 10:00:00 DP0 TP0] Decode batch. #running-req: 32, gen throughput (token/s): 900.5\n"
         "[2025-07-01 10:00:00 DP1 TP4] Decode batch. #running-req: 32, gen throughput (token/s): 905.0\n",
         "tokens per second", 1805.5),
        # starts of vLLM: vllm PR 12569, gateway-api-inference-extension PR 550, vllm issue 51041; of SGLang
        ("Loading model weights took 67.7229 GB\n", "memory weights", 67.7229),
        ("model weights take 12.55GiB; non_torch_memory takes 0.16GiB\n", "memory weights", 12.55),
        ("GPU KV cache size: 215,401 tokens\n", "kv cache tokens", 215_401.0),
        ("max_total_num_tokens=178880, chunked_prefill_size=8192\n", "kv cache tokens", 178_880.0),
        ("step: 100, seconds: 14.245, TFLOP/s/device: 464.261\n", "step time", 14.245),
        # vllm bench throughput and latency, sglang.bench_one_batch after its warm-up, LLM Foundry
        ("Throughput: 9.64 requests/s, 10050 total tokens/s, 5025.15 output tokens/s\n", "tokens per second", 5025.15),
        ("Avg latency: 1.2345 seconds\n", "latency", 1.2345),
        ("Prefill. latency: 0.31 s, throughput: 3300.1 token/s\nPrefill. latency: 0.0369 s, throughput: 27758.7 token\n"
         "Decode.  median latency: 0.00652 s, median throughput: 153.32 token/s\n", "ttft", 0.0369),
        ("Decode.  median latency: 0.00652 s, median throughput: 153.32 token/s\n", "tpot", 0.00652),
        ("\t Train throughput/device/tokens_per_sec: 4123.5\n", "tokens per second per accelerator", 4123.5),
        # tables of genai-perf (README) and AIPerf (TensorRT-LLM PR 11708), whose long names take two lines
        ("│  Time To First Token (ms) │ 16.26 │ 12.39 │\n", "ttft", 16.26),
        ("│  Time to First Token (ms) │  1,655.27 │  339.27 │\n", "ttft", 1655.27),
        ("│  Inter Token Latency (ms) │     15.72 │   10.43 │\n", "tpot", 15.72),
        ("│ Output Token Throughput Per User │ 64.25 │\n│ Output Token Throughput │  1,012.1 │\n│ (tokens/sec) │\n",
         "tokens per second", 1012.1),
        # DeepSpeedExamples issue 381
        ("global_step=10, RunningAvgSamplesPerSec=4.54, CurrSamplesPerSec=4.584, MemAllocated=31.36GB\n",
         "samples per second", 4.584),
    ],
)  # fmt: skip
def test_numbers_as_stacks_write_them(tmp_path: Path, text: str, result: str, value: float) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    assert {one.result: one.value for one in read_log(path).results}[result] == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    [
        # AI-Hypercomputer/tpu-recipes Llama3.1-405B-PyTorch: 0.003 steps per second may be 290 to 400 s
        "{'train_runtime': 3240.2466, 'train_samples_per_second': 1.58, 'train_steps_per_second': 0.003}\n",
        # one of several engines that share a load
        "Engine 003: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 6962.0 tokens/s\n",
        # caches of engines, each of which has whole requests or a share of the experts' replica
        "(EngineCore_DP0 pid=1) INFO GPU KV cache size: 302,400 tokens\n"
        "(EngineCore_DP1 pid=2) INFO GPU KV cache size: 302,400 tokens\n",
        "[2025-07-01 08:05:00 DP0 TP0] max_total_num_tokens=1000, x\n"
        "[2025-07-01 08:05:00 DP1 TP4] max_total_num_tokens=1001, x\n",
    ],
)
def test_a_part_or_one_digit_of_a_rate_is_no_result(tmp_path: Path, text: str) -> None:
    (tmp_path / "log").write_text(text)
    said = "of 1 replicas of 4: their sum takes all" if "Engine 003" in text else "has no step time"
    with pytest.raises(InputError, match=said):
        read_log(tmp_path / "log")


def test_of_several_reports_the_last_one_counts(tmp_path: Path) -> None:
    """vllm-project/recipes GLM/GLM-V.md: a load by its rate above one by its concurrency, in either order."""
    report = "============ Serving Benchmark Result ============\nSuccessful requests: 100\n{}\n" + "=" * 50 + "\n"
    rate = report.format("Request rate configured (RPS): 20.00\nTotal input tokens: 9000\nMean TTFT (ms): 1678.96")
    alone = report.format("Maximum request concurrency: 1\nTotal input tokens: 18000\nMean TPOT (ms): 8.51")
    path = tmp_path / "log"
    for text, results, settings in (
        (rate + alone, {"tpot": 8.51}, {"max_concurrency": "1", "isl": "180"}),
        (alone + rate, {"ttft": 1678.96}, {"isl": "90"}),
    ):
        path.write_text(text)
        log = read_log(path)
        assert {one.result: one.value for one in log.results} == results
        assert [one.source for one in log.results] == ["vLLM and SGLang (last of 2 reports)"]
        assert log_lines(text).settings == settings


def test_warm_up_is_counted_in_steps(tmp_path: Path) -> None:
    """Four ranks of torchtitan (PR 1884): the four lines of step 1 are one step, and 5,615 token/s are left."""
    line = "[rank{}]:[titan] - INFO - step: {:2}  loss: 10.2  memory: 44.84GiB(47.19%)  tps: {:,}  mfu: 32.88%\n"
    path = tmp_path / "log"
    path.write_text("".join(line.format(rank, step, tps) for step, tps in ((1, 86), (10, 5615)) for rank in range(4)))
    rate = next(one for one in read_log(path).results if one.result.startswith("tokens"))
    assert (rate.value, rate.used, rate.left_out) == (5615.0, 1, 1)
    path.write_text("".join(NEMO.format(n, t, "1e3") for n, t in ((527, 2.389), (528, 2.443), (529, 2.127))))
    step = read_log(path).results[0]
    assert (step.value, step.left_out) == (2.389, 0)  # the middle of a run has no warm-up


PLANS = (
    "name,model,accelerator,num accelerators,global batch size,micro batch size,sequence length,software\n"
    "a,Llama3-8B,H100,8,128,1,8192,nemo\n"
)


def test_a_log_of_another_run_is_reported(command: Command, tmp_path: Path) -> None:
    """A batch of 32 beside a plan of 128, and TFLOP/s that stand for half the FLOP per token of the plan."""
    plans, log = tmp_path / "plans.csv", tmp_path / "nemo.log"
    plans.write_text(PLANS)
    log.write_text("".join(NEMO.format(number, 2.4, "1.37e+04") for number in range(500, 510)))
    outcome = command("diagnose", plans, "--log", log)
    assert "nemo.log: contradicts the plan: its global batch size is 32, that of the plan 128" in outcome.err
    log.write_text(
        "iteration 5/ 9 | elapsed time per iteration (ms): 12700.0 | throughput per GPU (TFLOP/s/GPU): 270.1 |\n"
    )
    assert "GFLOP per token" in command("diagnose", plans, "--log", log).err
    log.write_text(log.read_text().replace("270.1", "520.1"))
    assert "contradicts" not in command("diagnose", plans, "--log", log).err


def test_reading_is_linear_in_the_length_of_a_line(tmp_path: Path) -> None:
    """Every pattern on its own worst text: its literal beginning over and over, and long runs after it."""
    from xlperf.interop.logs import _EVENT, _NUMBER

    def worst(pattern: re.Pattern[bytes], stem: bytes, size: int) -> float:
        texts = [stem * (size // max(len(stem), 1)), *(stem + each * size for each in (b"1", b" ", b".", b",", b"x"))]
        texts.append((stem + b"1,") * (size // (len(stem) + 2)))
        slowest = 0.0
        for text in texts:
            start = time.process_time()  # of C: nothing counts the steps of a pattern
            for _ in pattern.finditer(text):
                pass
            slowest = max(slowest, time.process_time() - start)
        return slowest

    texts = [row["pattern"] for table in ("log_patterns", "log_settings") for row in stack_rows(table)]
    patterns = [(re.compile(text.replace("{number}", _NUMBER).encode()), text) for text in texts]
    stems = [(pattern, re.sub(r"\\s\*|\\b|\(\?m\)|\^", "", text.split("{number}")[0])) for pattern, text in patterns]
    cases = [(pattern, re.sub(r"\\(.)", r"\1", re.split(r"\(\?:|\[\^|\\\.\+", stem)[0])) for pattern, stem in stems]
    cases += [
        (_EVENT, '"cat":"kernel","name":"a","ts":1'),
        (_EVENT, '"cat":"kernel","name":"a\\"'),
        (_EVENT, '"name":"'),
    ]
    for pattern, stem in cases:
        assert worst(pattern, stem.encode(), 1 << 17) < 5.0, pattern.pattern  # a tenth; far more if it were quadratic
