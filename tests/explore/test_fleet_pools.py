"""The answer of a form is what brute force over ``evaluate`` finds on stated grids: copies, pools and mappings."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.explore.fleet_plans import ONE, TWO
from xlperf.explore.mappings import started
from xlperf.explore.serve import serving_ways
from xlperf.explore.space import with_columns

Asked = dict[str, Any]
Row = dict[str, Any]
DEGREES = ("tensor_parallel", "data_parallel_attention", "expert_parallel")
SERVER, SLICES = 8.0, ("TPUv6e",)


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def form_of(asked: Asked) -> Table:
    return table_from_rows("serve", [name.replace("_", " ") for name in asked], [list(asked.values())])


def plans_of(asked: Asked, tried: list[Row]) -> Table:
    """Inference plans of a question; a blank where a row lacks a column."""
    shared = {name: asked[name] for name in ("model", "accelerator", "prompt_length", "output_length")}
    every = [shared | row for row in tried]
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
    """Largest number of requests in flight that keeps the targets, by halving, to a part in 500; 0: none does.

    All users are enough: a copy for more is a copy.
    """
    low, high = np.zeros(len(plans)), np.full(len(plans), asked["users"] + 1.0)
    while (left := np.flatnonzero(high - low > np.maximum(1.0, low / 500.0))).size:
        middle = np.floor(np.sqrt(np.maximum(low, 1.0) * high))[left]
        middle = np.clip(middle, low[left] + 1.0, high[left] - 1.0)
        tried = with_columns(plans.take(left), concurrency=middle)
        good = kept(evaluate(tried, catalog, results=("fits", "tpot", "ttft")), asked)
        low[left], high[left] = np.where(good, middle, low[left]), np.where(good, high[left], middle)
    return low


def brute_force(asked: Asked, tried: list[Row], catalog: Catalog) -> dict[str, tuple[float, Row]]:
    """Fewest accelerators in whole servers of copies of any of some plans of each engine, each at its largest load.

    Plans that give far fewer tokens within the targets than the best of their engine are left out.
    """
    first, token = 1e-3 * asked["ttft_target"], 1.0 / asked["speed_per_user"]
    plans = with_columns(plans_of(asked, tried), ttft_target=first, tpot_target=token, concurrency=1.0)
    rates = evaluate(plans, catalog, results=["batch_at_targets", "tokens_per_second_at_targets"])
    each = np.nan_to_num(rates.number("tokens_per_second_at_targets")) / plans.number("num_accelerators")
    result = {}
    for engine in dict.fromkeys(row["software"] for row in tried):
        own = (plans["software"] == engine) & (each > 0.0)
        rows = np.flatnonzero(own & (each >= 0.6 * each[own].max(initial=0.0)))
        if len(rows):
            with np.errstate(divide="ignore"):
                copies = np.ceil(asked["users"] / largest_loads(plans.take(rows), asked, catalog))
            used = copies * plans.number("num_accelerators")[rows]
            best = int(np.argmin(used))
            server = 1.0 if asked["accelerator"] in SLICES else SERVER
            result[engine] = float(np.ceil(used[best] / server) * server), tried[rows[best]]
    return result


def grid(engines: list[str], sizes: list[float], options: list[Row]) -> list[Row]:
    """Copies with one pool: attention replicas and expert groups of a copy's size or a half of it."""
    result = []
    for engine, size, option in itertools.product(engines, sizes, options):
        for replicas, experts in itertools.product(*[sorted({1.0, size / 2.0, size} - {0.5})] * 2):
            degrees = dict(zip(DEGREES, (size, replicas, experts), strict=True))
            result.append({"software": engine, "mode": ONE, "num_accelerators": size} | degrees | option)
    return result


def pooled(engines: list[str], sizes: list[float], options: list[Row], most: float) -> list[Row]:
    """Two pools of up to so many accelerators in whole servers, whose replicas spread attention over all ranks."""
    result = []
    for engine, size, other, option in itertools.product(engines, sizes, sizes, options):
        for total in np.arange(2.0 * SERVER, most + 1.0, SERVER):
            for prefill in np.arange(other, total, other):
                if (total - prefill) % size == 0.0 and 0.3 <= prefill / total <= 0.8:
                    ours = dict.fromkeys(DEGREES, size) | {f"prefill_{name}": other for name in DEGREES}
                    whole = {"num_accelerators": float(total), "prefill_accelerators": float(prefill)}
                    result.append({"software": engine, "mode": TWO} | ours | whole | option)
    return result


def dense(tried: list[Row]) -> list[Row]:
    """Rows of a model without experts: their groups are left out."""
    return [
        {name: 1.0 if name.endswith(("expert_parallel", "attention")) else value for name, value in row.items()}
        for row in tried
    ]


def split(engine: str, total: float, size: float, experts: float, other: float, other_experts: float) -> list[Row]:
    """Two pools of so many accelerators in all, at every share of the prefill pool that leaves whole replicas."""
    shares = [total - size * number for number in range(1, int(total // size) + 1)]
    result = []
    for prefill in shares:
        if prefill >= 0.6 * total and prefill % other == 0.0:
            ours = dict(zip(DEGREES, (size, size if experts > 1.0 else 1.0, experts), strict=True))
            theirs = dict(zip(PREFILL, (other, other if other_experts > 1.0 else 1.0, other_experts), strict=True))
            whole = {"num_accelerators": total, "prefill_accelerators": prefill}
            result.append({"software": engine, "mode": TWO} | ours | theirs | whole)
    return result


PREFILL = tuple(f"prefill_{name}" for name in DEGREES)
NODES = {"expert_dispatch": "nodes"}
LONG = {"prefill_tokens": 16384.0}
LONGEST = {"prefill_tokens": 32768.0}
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
    (  # so fast that a replica runs two or three requests: copies of several replicas share them
        {
            "model": "Qwen3-235B-A22B",
            "accelerator": "B200-SXM-180GB",
            "users": 20_000.0,
            "speed_per_user": 100.0,
            "prompt_length": 500.0,
            "output_length": 800.0,
            "ttft_target": 800.0,
        },
        [row | {"num_accelerators": 64.0} for row in grid(["sglang"], [4.0, 8.0], [{}])],
        [
            row | {"num_accelerators": 66.0, "prefill_accelerators": 2.0} | dict.fromkeys(PREFILL, 2.0)
            for row in pooled(["sglang"], [8.0], [{"data_parallel_attention": 1.0}], 16.0)
        ],
        "fp8",
    ),
    (  # vLLM starts few of the mappings that the first engine does best with
        {
            "model": "Mixtral-8x22B-v0.1",
            "accelerator": "A100-SXM4-80GB",
            "users": 4_000.0,
            "speed_per_user": 25.0,
            "prompt_length": 800.0,
            "output_length": 200.0,
            "ttft_target": 1500.0,
            "mode": ONE,
        },
        [row | {"data_parallel_attention": 4.0, "prefill_tokens": 2048.0} for row in grid(["vllm"], [16.0], [NODES])],
        [],
        "bf16",
    ),
]


CASES += [
    (  # decode replicas of 48, of which two are nearly full: three of 64 would return users sooner than prefill serves
        {
            "model": "Kimi-K2-Instruct",
            "accelerator": "H200-SXM-141GB",
            "users": 20_000.0,
            "speed_per_user": 25.0,
            "prompt_length": 6000.0,
            "ttft_target": 3000.0,
            "mode": TWO,
        },
        [],
        [row | NODES | LONGEST | {"two_batch_overlap": 1.0} for row in split("sglang", 368.0, 48.0, 24.0, 16.0, 16.0)],
        "auto",
    ),
    (  # a prefill pool in eight stages, which no mapping of the first rounds has
        {
            "model": "Nemotron-4-340B",
            "accelerator": "H100-SXM-80GB",
            "users": 700.0,
            "speed_per_user": 20.0,
            "mode": TWO,
        },
        [],
        [
            {"software": "tensorrt-llm", "mode": TWO, "num_accelerators": 64.0, "prefill_accelerators": 32.0}
            | {"tensor_parallel": 8.0, "pipeline_parallel": 4.0, "prefill_tensor_parallel": 2.0}
            | {"prefill_pipeline_parallel": 8.0, "prefill_data_parallel_attention": 2.0}
            | LONGEST
        ],
        "fp8",
    ),
    (  # prompts that wait keep decoding at its speed; slices of a torus
        {"model": "Gemma-2-27B", "accelerator": "TPUv6e", "users": 500.0, "speed_per_user": 25.0, "mode": TWO},
        [],
        [
            {"software": "vllm", "mode": TWO, "num_accelerators": 22.0, "prefill_accelerators": 6.0}
            | {"tensor_parallel": 4.0, "prefill_tensor_parallel": 2.0}
        ],
        "fp8",
    ),
    (  # one server, in which requests wait for the room that long passes take
        {"model": "DeepSeek-V3", "accelerator": "H200-SXM-141GB", "users": 100.0, "speed_per_user": 30.0, "mode": ONE},
        [
            dict(zip(DEGREES, (8.0, 4.0, 8.0), strict=True))
            | NODES
            | LONGEST
            | {"software": "sglang", "mode": ONE, "num_accelerators": 8.0}
        ],
        [],
        "auto",
    ),
    (  # many replicas of both pools, and a copy that small chunks leave room for on four accelerators
        {
            "model": "Meta-Llama-3.1-405B",
            "accelerator": "H200-SXM-141GB",
            "users": 3_000.0,
            "speed_per_user": 15.0,
            "prompt_length": 8000.0,
            "output_length": 1000.0,
            "ttft_target": 4000.0,
        },
        [row | {"prefill_tokens": 512.0} for row in dense(grid(["tensorrt-llm"], [4.0], [{}]))],
        dense([row | LONGEST for row in split("tensorrt-llm", 196.0, 8.0, 1.0, 4.0, 1.0)]),
        "fp8",
    ),
    (  # two deployments of more than a thousand accelerators
        {
            "model": "DeepSeek-R1",
            "accelerator": "MI355X",
            "users": 20_000.0,
            "speed_per_user": 30.0,
            "prompt_length": 32_000.0,
            "output_length": 1000.0,
            "ttft_target": 8000.0,
            "mode": TWO,
        },
        [],
        [
            row | NODES | LONGEST | {"two_batch_overlap": 1.0, "redundant_experts": 64.0}
            for row in split("sglang", 1176.0, 320.0, 320.0, 8.0, 8.0)
        ],
        "auto",
    ),
]


@pytest.mark.parametrize(
    ("asked", "one", "two", "precision"),
    [*(pytest.param(*case, marks=pytest.mark.slow) for case in CASES[:3]), *CASES[3:]],
    ids=lambda case: str(case)[:0],
)
def test_the_answer_is_what_brute_force_finds(
    catalog: Catalog, asked: Asked, one: list[Row], two: list[Row], precision: str
) -> None:
    """No plan of the grids needs fewer accelerators, and the engine says that the plan of the answer serves all."""
    asked = {"prompt_length": 2000.0, "output_length": 500.0, "ttft_target": 2000.0} | asked
    ways = serving_ways(form_of(asked), catalog)
    for mode, tried in ((ONE, one), (TWO, two)):
        for engine, (least, row) in brute_force(
            asked, [{"precision": precision} | row for row in tried], catalog
        ).items():
            best = next(way for way in ways if (way.plan["software"][0], way.plan["mode"][0]) == (engine, mode))
            assert best.accelerators <= 1.01 * least, row
    for way in ways:
        results = evaluate(way.plan, catalog)
        assert kept(results, asked).all()
        copies = way.used / way.plan.number("num_accelerators")[0]
        assert copies * way.plan.number("concurrency")[0] >= asked["users"]
    assert [way.accelerators for way in ways] == sorted(way.accelerators for way in ways)


@pytest.mark.parametrize(
    ("model", "accelerator", "speed", "size"),
    [("Meta-Llama-3.1-405B", "A100-SXM4-80GB", 5.0, 16.0), ("DeepSeek-V3", "H200-SXM-141GB", 20.0, 8.0)],
)
def test_few_users_get_the_fastest_copy_of_as_many_accelerators(
    catalog: Catalog, model: str, accelerator: str, speed: float, size: float
) -> None:
    """Stages or idle attention replicas are never chosen where the same accelerators serve ten users faster."""
    asked: Asked = {"model": model, "accelerator": accelerator, "users": 10.0, "speed_per_user": speed,
                    "prompt_length": 2000.0, "output_length": 500.0, "ttft_target": 2000.0}  # fmt: skip
    best = serving_ways(form_of(asked), catalog)[0]
    assert best.used == size
    way = {name: best.plan[name][0] for name in ("software", "precision", "kv_precision")}
    degrees = [1.0, 2.0, 4.0, 8.0, 16.0]
    rows = [
        way | dict(zip(DEGREES, (size / stages, replicas, experts), strict=True))
        | {"mode": ONE, "num_accelerators": size, "pipeline_parallel": stages, "concurrency": 10.0}
        for stages, replicas, experts in itertools.product((1.0, 2.0, 4.0), degrees, degrees)
        if max(replicas, experts) <= size / stages
    ]  # fmt: skip
    plans = plans_of(asked, rows)
    plans = plans.take(started(plans, catalog))
    results = evaluate(plans, catalog)
    fastest = results.number("tpot")[kept(results, asked)].min()
    shown = evaluate(with_columns(best.plan, concurrency=10.0), catalog)
    assert shown.number("tpot")[0] <= 1.02 * fastest


def test_twice_the_users_take_at_most_twice_the_accelerators(catalog: Catalog) -> None:
    """They took 944 at 20,000 users and 4,352 at 40,000: all pairs near the cheapest had decode replicas of 312."""
    asked = {"model": "DeepSeek-V3", "accelerator": "H200-SXM-141GB", "speed_per_user": 40.0, "software": "sglang",
             "mode": "disaggregated", "prompt_length": 2000.0, "output_length": 500.0}  # fmt: skip
    fleets = [serving_ways(form_of(asked | {"users": users}), catalog)[0] for users in (10_000.0, 20_000.0, 40_000.0)]
    prices = np.array([fleet.price for fleet in fleets])
    assert (prices[1:] <= 2.0 * prices[:-1]).all()
    assert prices[1] <= 720.0
