"""The fleets that serve a demand: the answer of a form is what brute force over ``evaluate`` finds on stated grids."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.explore.fleets import ONE, TWO, crossed, with_columns
from xlperf.explore.forms import answer_of
from xlperf.explore.serve import serving_ways

Asked = dict[str, Any]
Row = dict[str, Any]
DEGREES = ("tensor_parallel", "data_parallel_attention", "expert_parallel")
SERVER = 8.0


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def form_of(asked: Asked) -> Table:
    return table_from_rows("serve", [name.replace("_", " ") for name in asked], [list(asked.values())])


def plans_of(asked: Asked, rows: list[Row]) -> Table:
    """Inference plans of a question; a blank where a row lacks a column."""
    shared = {name: asked[name] for name in ("model", "accelerator", "prompt_length", "output_length")}
    every = [shared | row for row in rows]
    columns = {}
    for column in table_schema("inference").columns:
        if any(column.name in row for row in every):
            kind: Any = object if column.is_text else np.float64
            blank = "" if column.is_text else np.nan
            columns[column.name] = np.array([row.get(column.name, blank) for row in every], dtype=kind)
    return Table("inference", columns)


def kept(results: Table, asked: Asked) -> np.ndarray:
    good = (results.number("fits") == 1.0) & (results.number("tpot") <= (1.0 + 1e-9) / asked["speed_per_user"])
    return np.asarray(good & (results.number("ttft") <= 1e-3 * asked["ttft_target"] * (1.0 + 1e-9)))


def largest_loads(plans: Table, asked: Asked, catalog: Catalog) -> np.ndarray:
    """Largest number of requests in flight that keeps the targets, by halving, to a part in 500; 0: none does."""
    low, high = np.zeros(len(plans)), np.full(len(plans), 65536.0)
    while (rows := np.flatnonzero(high - low > np.maximum(1.0, low / 500.0))).size:
        middle = np.floor(np.sqrt(np.maximum(low, 1.0) * high))[rows]
        middle = np.clip(middle, low[rows] + 1.0, high[rows] - 1.0)
        good = kept(evaluate(with_columns(plans.take(rows), concurrency=middle), catalog), asked)
        low[rows], high[rows] = np.where(good, middle, low[rows]), np.where(good, high[rows], middle)
    return low


def brute_force(asked: Asked, rows: list[Row], catalog: Catalog) -> tuple[float, Row]:
    """Fewest accelerators in whole servers of copies of any of some plans, each at its largest load."""
    plans = plans_of(asked, rows)
    loads = largest_loads(plans, asked, catalog)
    with np.errstate(divide="ignore"):
        used = np.ceil(asked["users"] / loads) * plans.number("num_accelerators")
    best = int(np.argmin(used))
    return float(np.ceil(used[best] / SERVER) * SERVER), rows[best]


def grid(engines: list[str], sizes: list[float], options: list[Row]) -> list[Row]:
    """Copies with one pool: attention replicas and expert groups of a copy's size or a half of it."""
    rows = []
    for engine, size, option in itertools.product(engines, sizes, options):
        for replicas, experts in itertools.product(*[sorted({1.0, size / 2.0, size} - {0.5})] * 2):
            degrees = dict(zip(DEGREES, (size, replicas, experts), strict=True))
            rows.append({"software": engine, "mode": ONE, "num_accelerators": size} | degrees | option)
    return rows


def pooled(engines: list[str], sizes: list[float], options: list[Row], most: float) -> list[Row]:
    """Two pools of up to so many accelerators in whole servers, whose replicas spread attention over all ranks."""
    rows = []
    for engine, size, other, option in itertools.product(engines, sizes, sizes, options):
        for total in np.arange(2.0 * SERVER, most + 1.0, SERVER):
            for prefill in np.arange(other, total, other):
                if (total - prefill) % size == 0.0 and 0.3 <= prefill / total <= 0.8:
                    ours = {name: size for name in DEGREES} | {f"prefill_{name}": other for name in DEGREES}
                    whole = {"num_accelerators": float(total), "prefill_accelerators": float(prefill)}
                    rows.append({"software": engine, "mode": TWO} | ours | whole | option)
    return rows


def dense(rows: list[Row]) -> list[Row]:
    """Rows of a model without experts: their groups are left out."""
    return [
        {name: 1.0 if name.endswith(("expert_parallel", "attention")) else value for name, value in row.items()}
        for row in rows
    ]


NODES = {"expert_dispatch": "nodes"}
LONG = {"prefill_tokens": 16384.0}
CASES = [
    (
        {"model": "DeepSeek-V3", "accelerator": "H200-SXM-141GB", "users": 10_000.0, "speed_per_user": 20.0},
        [*grid(["sglang", "vllm"], [8.0, 16.0], [{}, LONG]), *grid(["sglang"], [16.0, 32.0], [NODES, NODES | LONG])],
        pooled(["sglang"], [8.0, 16.0], [{}], 48.0),
        "fp8",
    ),
    (
        {"model": "Qwen3-235B-A22B", "accelerator": "H100-SXM-80GB", "users": 10_000.0, "speed_per_user": 30.0},
        grid(["sglang", "vllm", "tensorrt-llm"], [4.0, 8.0], [{}]),
        pooled(["sglang", "tensorrt-llm"], [4.0, 8.0], [{}], 32.0),
        "fp8",
    ),
    (
        {"model": "Meta-Llama-3.1-70B", "accelerator": "MI300X", "users": 2_000.0, "speed_per_user": 25.0},
        dense(grid(["sglang", "vllm"], [1.0, 2.0, 4.0, 8.0], [{}, LONG])),
        dense(pooled(["sglang", "vllm"], [1.0, 2.0, 4.0], [{}], 24.0)),
        "fp8",
    ),
]


@pytest.mark.parametrize(("asked", "one", "two", "precision"), CASES, ids=lambda case: str(case)[:0])
def test_the_answer_is_what_brute_force_finds(
    catalog: Catalog, asked: Asked, one: list[Row], two: list[Row], precision: str
) -> None:
    """No plan of the grids needs fewer accelerators, and the engine says that the plan of the answer serves all."""
    asked = asked | {"prompt_length": 2000.0, "output_length": 500.0, "ttft_target": 2000.0}
    ways = serving_ways(form_of(asked), catalog)
    for mode, rows in ((ONE, one), (TWO, two)):
        least, row = brute_force(asked, [row | {"precision": precision} for row in rows], catalog)
        best = next(way for way in ways if way.plan["mode"][0] == mode)
        assert best.accelerators <= 1.01 * least, row
    for way in ways:
        results = evaluate(way.plan, catalog)
        assert kept(results, asked).all()
        copies = way.used / way.plan.number("num_accelerators")[0]
        assert copies * way.plan.number("concurrency")[0] >= asked["users"]
    assert [way.accelerators for way in ways] == sorted(way.accelerators for way in ways)
