"""Seeded serving plans over every column of the sheet: all modes, kinds of model, machines, engines and precisions."""

from __future__ import annotations

from typing import Any

import numpy as np

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_columns
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table, nowhere

MODES = ("static", "continuous", "disaggregated")
MODELS = (
    "Meta-Llama-3.1-70B", "Meta-Llama-3.1-8B", "Qwen2.5-72B", "GPT3-175B", "PaLM-62B", "Gemma-3-27B",
    "Mixtral-8x7B-v0.1", "Qwen3-235B-A22B", "gpt-oss-120b", "Llama-4-Scout-17B-16E-Instruct",
    "DeepSeek-V3", "DeepSeek-V2", "Kimi-K2-Instruct",
    "qwen3-next-80B-A3B", "Qwen3.5-27B", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
)  # fmt: skip
LINEAR = MODELS[13:]
EXPERTS = (*MODELS[6:14], MODELS[15])
MACHINES = {
    "A100-SXM4-80GB": ("bf16", "int8", "int4"),
    "H100-SXM-80GB": ("bf16", "fp8", "int4"),
    "H200-SXM-141GB": ("bf16", "fp8", "int4"),
    "B200-SXM-180GB": ("fp8", "fp4", "bf16"),
    "GB200-NVL72": ("fp8", "fp4"),
    "MI300X": ("bf16", "fp8"),
    "MI355X": ("fp8", "fp4", "int4"),
    "L40S": ("bf16", "fp8"),
}
_CARELESS = 0.06
_SHAPE = ("name", "model", "mode", "num_accelerators", "prompt_length", "output_length")
_NUMBERS = {
    "zero_stage": (0.0, 1.0, 2.0, 3.0),
    "acceptance_rate": (0.0, 0.5, 1.0),
    "shared_prefix": (0.0, 0.5, 1.0),
    "memory_fraction": (0.5, 0.9),
    "wide_layers": (1.0, 2.0),
}
ENGINES = ("tensorrt-llm", "vllm", "sglang", "nim", "turbomind", "an engine of our own")


def _divisors(random: np.random.Generator, most: int) -> int:
    return int(2 ** random.integers(0, int(np.log2(most)) + 1))


def _row(random: np.random.Generator) -> dict[str, Any]:
    def of(*choices: Any) -> Any:
        return choices[int(random.integers(len(choices)))]

    blank, mode = float("nan"), of(*MODES)
    accelerator = of(*MACHINES)
    model, careless = of(*MODELS), random.random() < _CARELESS
    tensor, stages, context = _divisors(random, 8), of(1, 1, 1, 2, 4), of(1, 1, 1, 2, 4)
    if model in LINEAR and not careless:
        context = 1
    experts = of(1, tensor, _divisors(random, tensor)) if model in EXPERTS or careless else 1
    copies = of(1, tensor, _divisors(random, tensor))
    sends = careless or (model in EXPERTS and copies > 1)
    replicas = of(1, 1, 2, 4)
    asked = of(1, 2, 3, 8, 31, 64, 100, 256, 1000) * replicas
    row: dict[str, Any] = {
        "model": model,
        "accelerator": accelerator,
        "num_accelerators": tensor * stages * context * replicas,
        "software": of(*ENGINES),
        "tensor_parallel": tensor,
        "pipeline_parallel": stages,
        "context_parallel": context,
        "context_method": of("ring", "all-gather"),
        "expert_parallel": experts,
        "data_parallel_attention": copies,
        "graphs": of("", "", "no"),
        "graph_tokens": blank,
        "expert_dispatch": of("", "nodes") if sends else "",
        "two_batch_overlap": of("", "yes") if sends else "",
        "prompt_length": of(max(1, 2 * context), 100, 512, 1000, 2048, 8000, 30000),
        "output_length": of(1, 2, 64, 128, 500, 2000),
        "batch_size": of(1, 3, 16, 64, 200, 1000) if mode == "static" else blank,
        "concurrency": blank if mode == "static" else asked,
        "request_rate": blank,
        "precision": of(*MACHINES[accelerator]),
        "activation_precision": of("", "", "", "bf16"),
        "kv_precision": of("", "", "fp8", "bf16"),
        "mode": mode,
        "prefill_tokens": of(blank, 512, 2048, 16384),
        "shared_prefix": of(blank, 0.3, 0.9, 1.0),
        "draft_tokens": of(blank, blank, 1, 3),
        "acceptance_rate": of(blank, 0.5, 1.0),
        "prompt_variation": blank if mode == "static" else of(blank, 0.5),
        "output_variation": blank if mode == "static" else of(blank, 0.5),
        "run_requests": blank if mode == "static" else of(blank, blank, 10 * asked),
        "polling_steps": of(blank, 4) if mode == "continuous" else blank,
        "gathering_steps": of(blank, 10) if mode == "continuous" and copies > 1 else blank,
        "prefill_first": "",
        "prefill_accelerator": "",
        "prefill_accelerators": blank,
        "prefill_tensor_parallel": blank,
        "ttft_target": of(blank, blank, 500.0, 5000.0),
        "tpot_target": of(blank, blank, 20.0, 100.0),
    }
    row["max_running_batch"] = (
        blank if mode == "static" else (blank, blank, 4, blank, 64)[int(row["prompt_length"]) % 5]
    )
    row["wide_attention"] = ("no", "no", "yes", "no", "no")[int(row["output_length"]) % 5]
    row["attention_tile_rows"] = (blank, blank, 64, blank, 128)[int(row["prompt_length"]) % 5]
    row["state_slots"] = (blank, 1, blank, 3, 5)[int(row["output_length"]) % 5]
    row["state_precision"] = ("", "", "bf16", "fp32")[int(row["prompt_length"]) % 4]
    if row["graphs"] != "no":
        row["graph_tokens"] = (blank, 0, blank, 512, 8192)[int(asked) % 5]  # no draw: all others stay as they are
    if mode == "continuous" and row["run_requests"] == row["run_requests"]:
        row["prefill_first"] = of("", "yes")
    if mode != "static" and random.random() < 0.3:
        row |= {"request_rate": of(0.1, 1.0, 5.0, 40.0), "concurrency": blank, "run_requests": blank}
        row["prefill_first"] = ""
    if mode == "disaggregated":
        row["prefill_accelerators"] = row["num_accelerators"] * of(1, 1, 2)
        row["num_accelerators"] += row["prefill_accelerators"]
        row["prefill_accelerator"] = of("", "", *MACHINES)
        row["prefill_tensor_parallel"] = of(blank, blank, tensor)
    return row


def columns_of(number: int, seed: int = 2026) -> dict[str, np.ndarray]:
    """Columns of seeded plans in the units of the sheet, a part of them illegal or too large for the memory."""
    random = np.random.default_rng(seed)
    rows = [_row(random) for _ in range(number)]
    found = {"name": np.array([f"plan {count}" for count in range(number)], dtype=object)}
    for name, first in rows[0].items():
        text = isinstance(first, str)
        found[name] = np.array([row[name] for row in rows], dtype=object if text else np.float64)
    return found


def spiced(columns: dict[str, np.ndarray], kind: str, catalog: Catalog, seed: int = 2026) -> dict[str, np.ndarray]:
    """The same columns with cells changed at random: any choice, machine, network or small number of the schema."""
    random, found, rows = np.random.default_rng(seed), dict(columns), len(columns["model"])
    for column in table_schema(kind).columns:
        if column.name in _SHAPE or column.kind == "text":
            continue
        values: Any = _NUMBERS.get(column.name, (1.0, 2.0, 4.0, 3.0, 8.0))
        if column.kind == "number":
            low, high, _ = column.limits
            values = tuple(value for value in values if low <= value <= high) or (low, 0.5 * (low + high), high)
        if column.kind == "reference":
            values = catalog.tables[column.reference].text(table_schema(column.reference).key.name).tolist()
        elif column.kind != "number":
            values = ("yes", "no") if column.kind == "flag" else tuple(column.choices)
        text = isinstance(values[0], str)
        own = found.get(column.name, np.full(rows, "" if text else np.nan, dtype=object if text else np.float64)).copy()
        changed = np.flatnonzero(random.random(rows) < (0.05 if text else 0.02))
        own[changed] = np.array(values, dtype=own.dtype)[random.integers(0, len(values), len(changed))]
        found[column.name] = own
    return found


def plans_of(number: int, seed: int = 2026) -> Table:
    """The same as a table of plans."""
    return table_from_columns("inference", columns_of(number, seed), nowhere)
