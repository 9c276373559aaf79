"""Serving plans on a device of round numbers, and what the equations make of them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.calibration import declared_constants
from xlperf.catalog.table import Table
from xlperf.engine.join import plan_columns
from xlperf.equations.hardware.roofline import Device
from xlperf.equations.model.model import Architecture, Model
from xlperf.equations.network.topologies import Network
from xlperf.equations.plan.serving_plan import InferencePlan, with_defaults
from xlperf.equations.serving.continuous import serving_results
from xlperf.equations.serving.deployment import Deployment

LLAMA_7B = (32, 4096, 32, 32, 128, 11008, 32000)
LLAMA_13B = (40, 5120, 40, 40, 128, 13824, 32000)
LLAMA_70B = (80, 8192, 64, 8, 128, 28672, 32000)
_SHAPES = (
    "num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "head_size", "ffn_hidden_size",
    "vocab_size",
)  # fmt: skip
MODELS = (LLAMA_7B, LLAMA_13B, LLAMA_70B)
FAMILIES = (
    "gemm", "attention", "attention_decode", "attention_latent", "vector", "all_reduce", "engine_all_reduce",
    "all_gather", "reduce_scatter", "all_to_all", "point_to_point", "serving_experts",
)  # fmt: skip
PEAKS = {"fp32": 1.0e14, "bf16": 1.0e15, "fp8": 2.0e15, "int8": 2.0e15, "fp4": 4.0e15}
BANDWIDTH = 3.0e12
GIB = 2.0**30


def constants(family: str, rows: int, **changed: float) -> dict[str, Array]:
    declared = declared_constants()[family]
    return {name: np.full((rows, 1), changed.get(name, constant.default)) for name, constant in declared.items()}


def serve(plans: list[dict[str, Any]], reserved: float = 0.0, **software: float) -> Deployment:
    """Plans on a device of round numbers, every plan a row."""
    rows = len(plans)
    filled = [
        {
            "model": LLAMA_7B,
            "num_accelerators": plan.get("tensor_parallel", 1) * plan.get("pipeline_parallel", 1),
            "tensor_parallel": 1,
            "pipeline_parallel": 1,
            "prompt_length": 200,
            "output_length": 200,
            "batch_size": math.nan,
            "concurrency": math.nan,
            "precision": "bf16",
            "kv_precision": "",
            **plan,
        }
        for plan in plans
    ]

    columns = {}
    for name in [name for name in filled[0] if name != "model"]:
        values = [plan[name] for plan in filled]
        columns[name] = np.array(values, dtype=object if isinstance(values[0], str) else np.float64)
    shapes = np.array([plan["model"] for plan in filled], dtype=np.float64).T
    ones = np.ones(rows)
    model = Model(**dict(zip(_SHAPES, shapes, strict=True)), gated_mlp=ones, rotary=ones, num_dense_layers=shapes[0])
    matrix = {"fp16": "bf16", "int4": "bf16"}
    peak = np.array([PEAKS[matrix.get(plan["precision"], plan["precision"])] for plan in filled])[:, None]
    full = np.ones((rows, 1))
    device = Device(
        peak_flop_rate=np.concatenate([peak, PEAKS["bf16"] + 0.0 * peak, PEAKS["bf16"] + 0.0 * peak], axis=-1),
        vector_flop_rate=6.0e13 * full,
        memory_bandwidth=BANDWIDTH * full,
        memory_capacity=80.0 * GIB * full,
        l2_bandwidth=1.0e13 * full,
        num_multiprocessors=132.0 * full,
    )
    columns_of = {one.name: getattr(device, one.name) * full for one in dataclasses.fields(Device)}
    device = Device(**columns_of)
    tiers = np.ones((rows, 2))
    network = Network(
        size=tiers * [8.0, 1e5],
        link_bandwidth=tiers * [4.5e11, 5.0e10],
        latency=tiers * [1e-6, 3e-6],
        listed=tiers * math.nan,
        in_network_reduction=0.0 * tiers,
        topology=np.zeros((rows, 2), dtype=np.int64),
        first_length=tiers,
        second_length=tiers,
        third_length=tiers,
        num_rings=0.0 * tiers,
        num_links=tiers,
    )
    plan = with_defaults(plan_columns(Table("inference", columns), InferencePlan))
    return Deployment(
        model=model,
        device=device,
        network=network,
        plan=plan,
        kernels={**{family: constants(family, rows) for family in FAMILIES}, "gemm_wide": constants("gemm", rows)},
        software={
            **constants("serving_software", rows, **software),
            **constants("serving_memory", rows, **software),
            **constants("serving_load", rows, **software),
            **constants("serving_host", rows, **software),
        },
        reserved_memory=np.full(rows, reserved),
        architecture=Architecture(False, False, False),
    )


def results(*plans: dict[str, Any], **software: float) -> dict[str, Array]:
    return serving_results(serve(list(plans), GIB, **software))


def varied(count: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(11)
    return [
        {
            "model": MODELS[random.integers(3)],
            "tensor_parallel": int(2 ** random.integers(0, 4)),
            "pipeline_parallel": int(2 ** random.integers(0, 3)),
            "prompt_length": int(random.integers(1, 20_000)),
            "output_length": int(random.integers(1, 3_000)),
            "batch_size": int(random.integers(1, 300)),
            "precision": str(random.choice(["bf16", "fp8", "fp4", "int4"])),
        }
        for _ in range(count)
    ]


# Physics
