"""Logs and profiles of runs as the stacks write them, made from results of the engine with noise."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import numpy as np

Values = Mapping[str, float]
MS, GIB = 1e3, 2.0**30
WARM_UP = 3
ITERATIONS = 40
COMPUTED = ("time_forward", "time_backward", "time_recompute", "time_optimizer")
EXCHANGED = (
    "time_tensor_parallel",
    "time_context_parallel",
    "time_expert_parallel",
    "time_pipeline_communication",
    "time_data_parallel",
)
PASSES = (*COMPUTED[:3], *EXCHANGED[:4], "time_pipeline_bubble", "time_overhead")
CLASSES = {"matrix": "time_matrix", "attention": "time_attention", "vector": "time_vector",
           "communication": "time_communication"}  # fmt: skip


def _noisy(values: Values, rng: np.random.Generator, noise: float) -> Callable[[float], float]:
    """A measurement: one error for the run, as clocks and neighbours differ between two days."""
    return lambda value: float(value * np.exp(rng.normal(0.0, noise)))


def _iterations(rng: np.random.Generator) -> np.ndarray:
    """Step times over that of the run, the warm-up first."""
    return np.concatenate([np.full(WARM_UP, 6.0), np.exp(rng.normal(0.0, 0.02, ITERATIONS))])


def megatron(values: Values, rng: np.random.Generator, noise: float = 0.01) -> str:
    run, lines = _noisy(values, rng, noise), []
    step, optimizer = run(values["step_time"]), run(values["time_optimizer"])
    passes, grads = run(sum(values[name] for name in PASSES)), run(values["time_data_parallel"])
    power = run(values["accelerator_power"])
    for number, factor in enumerate(_iterations(rng), 1):
        lines.append(
            f" [2026-11-20 10:0{number % 10}:00] iteration {number:8d}/ 5000 | consumed samples: {number * 128:12d} | "
            f"elapsed time per iteration (ms): {MS * step * factor:.1f} | power per GPU (W/GPU): {power:.1f} | "
            "learning rate: 1.0E-05 | global batch size:   128 | lm loss: 9.1E+00 |"
        )
        lines.append("(min, max) time across ranks (ms):")
        for name, time in (("forward-backward", passes), ("all-grads-sync", grads), ("optimizer", optimizer)):
            lines.append(f"    {name + ' ':.<48}: ({0.98 * MS * time * factor:.2f}, {MS * time * factor:.2f})")
    memory = run(values["memory"]) / 2**20
    lines.append(f"[Rank 0] (after 2 iterations) memory (MB) | allocated: 9.1 | max allocated: {memory:.2f} |")
    return "\n".join(lines)


def nemo(values: Values, rng: np.random.Generator, noise: float = 0.01) -> str:
    step = _noisy(values, rng, noise)(values["step_time"])
    return "\n".join(
        f"Training epoch 0, iteration {number}/999 | lr: 4.5e-07 | global_batch_size: 128 | global_step: {number} | "
        f"reduced_train_loss: 11.03 | train_step_timing in s: {step * factor:.3f} | consumed_samples: {number * 128}"
        for number, factor in enumerate(_iterations(rng))
    )


def torchtitan(values: Values, rng: np.random.Generator, noise: float = 0.01) -> str:
    run = _noisy(values, rng, noise)
    rate, memory = run(values["tokens_per_second_per_accelerator"]), run(values["memory_reserved"]) / GIB
    return "\n".join(
        f"[titan] - INFO - \x1b[31mstep: {number:2}  \x1b[32mloss: 8.2  \x1b[36mmemory: {memory:5.2f}GiB(61.2%)  "
        f"\x1b[34mtps: {round(rate / factor):,}  \x1b[35mmfu: 40.1%\x1b[39m"
        for number, factor in enumerate(_iterations(rng))
    )


def human_format(number: float) -> str:
    """Three digits and the suffix of thousands, as nanotron writes numbers."""
    number = float(f"{number:.3g}")
    magnitude = 0
    while abs(number) >= 1000.0:
        magnitude, number = magnitude + 1, number / 1000.0
    return f"{number:f}".rstrip("0").rstrip(".") + ("", "K", "M", "B", "T")[magnitude]


def nanotron(values: Values, rng: np.random.Generator, noise: float = 0.01) -> str:
    run = _noisy(values, rng, noise)
    rate, step = run(values["tokens_per_second_per_accelerator"]), run(values["step_time"])
    return "\n".join(
        f"[INFO|DP=0|PP=0|TP=0]: iteration: {number} / 1000 | consumed_tokens: 8M | "
        f"time_per_iteration_ms: {human_format(MS * step * factor)} | tokens_per_sec: 1M | "
        f"tokens_per_sec_per_gpu: {human_format(rate / factor)} | global_batch_size: 512 | lm_loss: 10.5"
        for number, factor in enumerate(_iterations(rng))
    )


def training_profile(values: Values, rng: np.random.Generator, noise: float = 0.01) -> str:
    run = _noisy(values, rng, noise)
    computed, exchanged = (sum(values[name] for name in names) for names in (COMPUTED, EXCHANGED))
    return json.dumps({"matrix": MS * run(computed), "exposed": MS * run(exchanged)})


def vllm(values: Values, rng: np.random.Generator, noise: float = 0.01) -> str:
    run = _noisy(values, rng, noise)
    return (
        f"INFO Model loading took {run(values['memory_weights']) / GIB:.4f} GiB and 31.2 seconds\n"
        f"============ Serving Benchmark Result ============\n"
        f"Output token throughput (tok/s):         {run(values['tokens_per_second']):.2f}\n"
        f"Median TTFT (ms):                        {MS * run(values['ttft_median']):.3f}\n"
        f"Median TPOT (ms):                        {MS * run(values['tpot_median']):.4f}\n"
    )


def sglang(values: Values, rng: np.random.Generator, noise: float = 0.01) -> str:
    loaded = "Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=60.1 GB, mem usage="
    text = vllm(values, rng, noise).split("\n", 1)[1]
    return f"{loaded}{_noisy(values, rng, noise)(values['memory_weights']) / GIB:.4f} GB.\n{text}"


def vllm_json(values: Values, rng: np.random.Generator, noise: float = 0.01) -> str:
    run = _noisy(values, rng, noise)
    return json.dumps(
        {
            "backend": "vllm",
            "median_ttft_ms": 9e9,
            "mean_ttft_ms": MS * run(values["ttft"]),
            "median_tpot_ms": MS * run(values["tpot_median"]),
            "output_throughput": run(values["tokens_per_second"]),
        }
    )


def trtllm(values: Values, rng: np.random.Generator, noise: float = 0.01) -> str:
    run = _noisy(values, rng, noise)
    return (
        f"Total Output Throughput (tokens/sec):             {run(values['tokens_per_second']):.4f}\n"
        f"[TPOT] AVERAGE: {MS * run(values['tpot']):.4f}\n[TPOT] P50    : {MS * run(values['tpot_median']):.4f}\n"
        f"[TTFT] AVERAGE: {MS * run(values['ttft']):.4f}\n[TTFT] P50    : {MS * run(values['ttft_median']):.4f}\n"
    )


def genai_perf(values: Values, rng: np.random.Generator, noise: float = 0.01) -> str:
    run = _noisy(values, rng, noise)
    return json.dumps(
        {
            "output_token_throughput": {"unit": "tokens/sec", "avg": run(values["tokens_per_second"])},
            "time_to_first_token": {"unit": "ms", "avg": MS * run(values["ttft"]), "p50": 1.0, "p99": 9e9},
            "inter_token_latency": {"unit": "ms", "avg": MS * run(values["tpot"]), "p50": 1.0},
        },
        indent=2,
    )


def inferencex(values: Values, rng: np.random.Generator, noise: float = 0.01) -> str:
    run = _noisy(values, rng, noise)
    return json.dumps(
        {
            "hw": "h200",
            "median_ttft": run(values["ttft_median"]),
            "median_tpot": run(values["tpot_median"]),
            "output_tput_per_gpu": run(values["tokens_per_second_per_accelerator"]),
        }
    )


def serving_profile(values: Values, rng: np.random.Generator, noise: float = 0.01) -> str:
    run = _noisy(values, rng, noise)
    return json.dumps({name: MS * run(values[result]) for name, result in CLASSES.items()})


TRAINING = {"megatron": megatron, "nemo": nemo, "torchtitan": torchtitan, "nanotron": nanotron}
SERVING = {"vllm": vllm, "vllm json": vllm_json, "sglang": sglang, "tensorrt-llm": trtllm, "genai-perf": genai_perf,
           "inferencex": inferencex}  # fmt: skip
PROFILES = {"training": training_profile, "inference": serving_profile}


def nvidia_smi(values: Values, rng: np.random.Generator, noise: float = 0.01) -> str:
    power = _noisy(values, rng, noise)(values["accelerator_power"])
    lines = [f"2026/11/20 10:00:0{number % 10}, {power * np.exp(rng.normal(0.0, 0.03)):.2f} W" for number in range(50)]
    return "\n".join(["timestamp, power.draw [W]", *lines])
