"""The engine in a running process: plans per second and core, one plan, the frontier of a model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from benchmarks.plans import plans_of
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_columns
from xlperf.catalog.table import nowhere
from xlperf.engine import evaluate
from xlperf.explore.sweep import points, unbeaten

FRONTIER_MODEL, FRONTIER_ACCELERATOR = "Meta-Llama-3.1-70B", "H100-SXM-80GB"


class Rate(NamedTuple):
    """Plans per second of one core, the best and the median of the repeats, and the share of legal plans."""

    best: float
    median: float
    legal: float


def processor_seconds(action: Callable[[], object]) -> float:
    """Processor time of the process in an action. [s]"""
    start = time.process_time()
    action()
    return time.process_time() - start


def rate(catalog: Catalog, mode: str, num_plans: int, repeats: int) -> Rate:
    """Plans per second and core of tables whose plans were never seen: each repeat has a seed of its own."""
    evaluate(plans_of(catalog, 300, mode, seed=1), catalog)
    rates, legal = [], []
    for repeat in range(repeats):
        plans = plans_of(catalog, num_plans, mode, seed=2026 + repeat)
        start = time.process_time()
        results = evaluate(plans, catalog)
        rates.append(num_plans / (time.process_time() - start))
        times = results["step_time" if mode == "training" else "latency"]
        legal.append(float(np.mean(~np.isnan(times))))
    return Rate(max(rates), statistics.median(rates), statistics.mean(legal))


def one_plan(catalog: Catalog, mode: str, num_plans: int = 200) -> tuple[float, float]:
    """Median of the processor time, and least wall-clock time, of plans evaluated one by one, each another one. [s]"""
    plans = plans_of(catalog, num_plans, mode, seed=5)
    processor, wall = [], []
    for row in range(num_plans):
        plan = plans.take([row])
        start = time.perf_counter()
        processor.append(processor_seconds(lambda one=plan: evaluate(one, catalog)))
        wall.append(time.perf_counter() - start)
    return statistics.median(processor), min(wall)


def frontier_points(catalog: Catalog, repeats: int) -> tuple[int, int, float]:
    """Points of a 70B model under load, those that nothing beats, and the least wall-clock time to find them. [s]"""
    columns = {
        "model": np.array([FRONTIER_MODEL], dtype=object),
        "accelerator": np.array([FRONTIER_ACCELERATOR], dtype=object),
        "num_accelerators": np.array([8.0]),
        "mode": np.array(["continuous"], dtype=object),
        "output_length": np.array([500.0]),
    }
    requests = np.round(np.geomspace(8.0, 8.0 * 256.0, 50))
    values = {
        "tensor_parallel": np.array([2.0, 4.0, 8.0, 1.0]),
        "precision": np.array(["bf16", "fp8"], dtype=object),
        "prompt_length": np.array([512.0, 1024.0, 2048.0, 4096.0, 8192.0]),
    }
    times = []
    for turn in range(repeats):
        plan = table_from_columns("inference", {**columns, "prompt_length": np.array([1024.0])}, nowhere)
        grid = {**values, "concurrency": requests + 8.0 * turn}
        start = time.perf_counter()
        every = points(plan, catalog, grid)
        best = unbeaten(every.results)
        times.append(time.perf_counter() - start)
    return int(np.prod([len(column) for column in grid.values()])), len(best), min(times)
