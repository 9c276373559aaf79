"""Seeded tables of mixed plans: every kind of model, accelerator, network and option, most of them legal.

A row draws a model of a kind (dense, mixture of experts, latent attention, windows or chunks), an accelerator with its
network, and degrees that divide what they must. One row in sixteen draws degrees that need not fit together, so that
reasons are written too: the share of legal plans is printed with every figure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_columns
from xlperf.catalog.table import Table, nowhere

SERVING_MODES = ("static", "continuous", "disaggregated", "max-throughput", "under-targets")
_CARELESS = 1.0 / 16.0
_FULL = 4096.0  # more requests than the cache takes: as many run as fit
_KINDS = ("dense", "experts", "latent", "local")
_SHARES = (0.45, 0.25, 0.15, 0.15)
_NETWORKS = {
    "A100-SXM4-80GB": ("", "DGX-A100"),
    "H100-SXM-80GB": ("", "DGX-H100-rails", "HGX-H100-EFA"),
    "H200-SXM-141GB": ("",),
    "B200-SXM-180GB": ("",),
    "GB200-NVL72": ("",),
    "MI300X": ("",),
    "TPUv5p": ("",),
}
_FP8 = ("H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB", "GB200-NVL72", "MI300X")
_MODULES = ("", "", "core_attention mlp", "core_attention norm activation", "mlp moe", "latent", "products")
_ORDERS = ("", "", "", "tp-ep-cp-dp-pp", "tp-cp-ep-pp-dp")
_POWERS = tuple(2.0**power for power in range(11))


def _models(catalog: Catalog) -> dict[str, list[dict[str, float]]]:
    """Models by kind, with the numbers that degrees must divide."""
    models = catalog.tables["models"]
    attention, pattern = models.filled("attention_type"), models.text("attention_pattern")
    names = ("num_layers", "num_attention_heads", "num_query_groups", "ffn_hidden_size", "num_experts",
             "moe_ffn_hidden_size", "max_sequence_length", "sliding_window")  # fmt: skip
    kinds: dict[str, list[dict[str, Any]]] = {kind: [] for kind in _KINDS}
    for row, name in enumerate(models.text("model").tolist()):
        if attention[row] in ("linear", "sparse", "hybrid"):
            continue
        shape: dict[str, Any] = {column: float(models.number(column)[row]) for column in names} | {"model": name}
        local = bool(pattern[row]) or shape["sliding_window"] > 0
        experts = shape["num_experts"] > 0
        kind = "latent" if attention[row] == "MLA" else "local" if local else "experts" if experts else "dense"
        shape["num_experts"] = shape["num_experts"] if experts else 0.0
        shape["gated"] = attention[row] == "MLA"
        kinds[kind].append(shape)
    return kinds


class _Draws:
    """Random numbers of one row, taken one after the other."""

    def __init__(self, numbers: Iterator[float]) -> None:
        self.numbers = numbers

    def of(self, choices: Any) -> Any:
        """One of some values."""
        return choices[int(next(self.numbers) * len(choices))]

    def chance(self, share: float) -> bool:
        """Whether something is the case that a share of the rows has."""
        return next(self.numbers) < share

    def divisor(self, most: float, *sizes: float) -> float:
        """A power of two, up to ``most``, that divides some sizes; the larger ones are likelier."""
        found = [power for power in _POWERS if power <= most and all(size % power == 0.0 for size in sizes)]
        return float(found[int(len(found) * next(self.numbers) ** 0.7)])


def _shape(draws: _Draws, kinds: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    number = next(draws.numbers)
    kind = next(kind for kind, up_to in zip(_KINDS, np.cumsum(_SHARES), strict=True) if number < up_to)
    found: dict[str, Any] = draws.of(kinds[kind])
    return found


def _dividing(shape: dict[str, Any], *names: str) -> list[float]:
    return [shape[name] for name in names if shape[name] == shape[name]]


def _training_row(draws: _Draws, kinds: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    shape = _shape(draws, kinds)
    careless = draws.chance(_CARELESS)
    accelerator = draws.of(tuple(_NETWORKS))
    latent = shape["gated"]
    layers = shape["num_layers"]
    tensor = draws.divisor(8, *_dividing(shape, "num_attention_heads", "num_query_groups", "ffn_hidden_size"))
    tensor = draws.of(_POWERS[:5]) if careless else tensor
    stages = draws.divisor(16.0 if layers >= 16 else 2.0)
    chunks = draws.of([count for count in (1.0, 1.0, 2.0, 3.0) if stages * count <= layers]) if stages > 1 else 1.0
    context = draws.of((1.0, 1.0, 1.0, 2.0, 4.0))
    replicas = draws.of((1.0, 2.0, 4.0, 8.0, 16.0))
    ranks = tensor * context * replicas
    experts, inner = 1.0, 1.0
    if shape["num_experts"]:
        experts = draws.divisor(min(ranks, 64.0), shape["num_experts"], ranks)
        inner = draws.divisor(min(ranks / experts, 2.0), shape["moe_ffn_hidden_size"])
    schedule = "interleaved" if chunks > 1 else draws.of(("", "", "1f1b", "gpipe", "zero-bubble"))
    micro = draws.of((1.0, 1.0, 2.0, 4.0))
    per_replica = stages * draws.of((2.0, 4.0, 8.0, 16.0))
    recompute = draws.of(("none", "selective", "selective", "full"))
    modules = draws.of(_MODULES) if recompute == "selective" else ""
    modules = modules if shape["num_experts"] else modules.replace(" moe", "")
    modules = modules if latent or modules != "latent" else ""
    stage = draws.of((0.0, 1.0, 1.0, 3.0) if stages > 1 else (0.0, 1.0, 2.0, 3.0))
    length = draws.of((2048.0, 4096.0, 8192.0, 16384.0))
    return {
        "model": shape["model"],
        "accelerator": accelerator,
        "network": draws.of(_NETWORKS[accelerator]),
        "num_accelerators": ranks * stages,
        "software": draws.of(("megatron", "megatron", "nemo", "torchtitan")),
        "tensor_parallel": tensor,
        "sequence_parallel": "no" if tensor > 1 and experts == 1.0 and draws.chance(0.2) else "",
        "pipeline_parallel": stages,
        "virtual_pipeline": chunks,
        "pipeline_schedule": schedule,
        "context_parallel": context,
        "context_method": draws.of(("", "ring", "all-gather")),
        "expert_parallel": experts,
        "expert_tensor_parallel": inner,
        "expert_imbalance": draws.of((float("nan"), 1.2)),
        "dispatch_precision": draws.of(("", "fp8")) if experts > 1.0 else "",
        "data_parallel": replicas if draws.chance(0.5) else float("nan"),
        "zero_stage": stage,
        "dimension_order": draws.of(_ORDERS),
        "global_batch_size": replicas * micro * per_replica,
        "micro_batch_size": micro,
        "sequence_length": length,
        "precision": draws.of(("bf16", "bf16", "fp8") if accelerator in _FP8 else ("bf16",)),
        "recompute": recompute,
        "recompute_modules": modules,
        "recompute_layers": 2.0 if recompute != "none" and draws.chance(0.2) else float("nan"),
        "cross_entropy": draws.of(("", "fused", "plain")),
        "attention": "standard" if context == 1.0 and not latent and draws.chance(0.1) else "",
        "training_tokens": draws.of((float("nan"), float("nan"), float("nan"), 2.0)),
    }


def _serving_row(draws: _Draws, kinds: dict[str, list[dict[str, Any]]], mode: str) -> dict[str, Any]:
    shape = _shape(draws, kinds)
    careless = draws.chance(_CARELESS)
    accelerator = draws.of(tuple(_NETWORKS)[:-1])
    tensor = draws.divisor(8, *_dividing(shape, "num_attention_heads", "ffn_hidden_size"))
    tensor = draws.of(_POWERS[:5]) if careless else tensor
    experts, copies = 1.0, 1.0
    if shape["num_experts"]:
        if draws.chance(0.7):
            experts = draws.divisor(tensor, shape["num_experts"], tensor)
        if experts == tensor:
            copies = draws.divisor(tensor, tensor)
    stages = draws.of((1.0, 1.0, 1.0, 2.0, 4.0)) if copies == 1.0 else 1.0
    replicas = draws.of((1.0, 2.0, 4.0))
    narrow = ("bf16", "fp8") if accelerator in _FP8 else ("bf16", "int8")
    row: dict[str, Any] = {
        "model": shape["model"],
        "accelerator": accelerator,
        "network": "",
        "num_accelerators": tensor * stages * replicas,
        "software": draws.of(("tensorrt-llm", "vllm", "sglang")),
        "tensor_parallel": tensor,
        "pipeline_parallel": stages,
        "expert_parallel": experts,
        "data_parallel_attention": copies,
        "prompt_length": draws.of((128.0, 512.0, 1000.0, 2048.0, 8000.0)),
        "output_length": draws.of((16.0, 128.0, 500.0, 1024.0)),
        "batch_size": float("nan"),
        "concurrency": float("nan"),
        "request_rate": float("nan"),
        "precision": draws.of(narrow),
        "kv_precision": draws.of(("", "", narrow[-1])),
        "mode": mode if mode in SERVING_MODES[:3] else "continuous",
        "shared_prefix": draws.of((float("nan"), float("nan"), 0.5)),
        "draft_tokens": draws.of((float("nan"), float("nan"), float("nan"), 2.0)),
        "prompt_variation": float("nan") if mode == "static" else draws.of((float("nan"), 0.3)),
        "prefill_accelerators": float("nan"),
        "ttft_target": float("nan"),
        "tpot_target": float("nan"),
    }
    requests = draws.of((1.0, 4.0, 16.0, 64.0, 256.0))
    if mode == "static":
        row["batch_size"] = requests
    elif mode == "max-throughput":
        row["batch_size"] = _FULL
    elif mode == "under-targets":
        row |= {"ttft_target": draws.of((500.0, 2000.0)), "tpot_target": draws.of((20.0, 50.0, 100.0))}
        row["concurrency"] = requests * replicas
    elif mode == "continuous" and draws.chance(0.3):
        row["request_rate"] = draws.of((0.2, 1.0, 4.0)) * replicas
    else:
        row["concurrency"] = requests * replicas
    if mode == "disaggregated":
        row["num_accelerators"] *= 2.0
        row["prefill_accelerators"] = tensor * stages * replicas
    return row


def columns_of(catalog: Catalog, num_plans: int, mode: str = "training", seed: int = 2026) -> dict[str, np.ndarray]:
    """Columns of seeded plans, in the units of the schema, as they would stand in a CSV file.

    Parameters
    ----------
    catalog : Catalog
        Whose models are drawn from.
    num_plans : int
        How many.
    mode : str
        ``training`` or one of :data:`SERVING_MODES`; the last two are continuous batching with all the requests that
        fit, and a search for the most requests that keep two targets.
    seed : int
        Of the random numbers.
    """
    kinds = _models(catalog)
    draws = _Draws(iter(np.random.default_rng((seed, ("training", *SERVING_MODES).index(mode))).random(num_plans * 40)))
    rows = [
        _training_row(draws, kinds) if mode == "training" else _serving_row(draws, kinds, mode)
        for _ in range(num_plans)
    ]
    found = {"name": np.array([f"plan {number}" for number in range(num_plans)], dtype=object)}
    for name, first in rows[0].items():
        values = [row[name] for row in rows]
        found[name] = np.array(values, dtype=object if isinstance(first, str) else np.float64)
    return found


def plans_of(catalog: Catalog, num_plans: int, mode: str = "training", seed: int = 2026) -> Table:
    """The same as a table of plans."""
    kind = "training" if mode == "training" else "inference"
    return table_from_columns(kind, columns_of(catalog, num_plans, mode, seed), nowhere)
