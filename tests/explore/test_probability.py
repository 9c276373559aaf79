"""Limits kept with a probability; frontiers of two and three objectives."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from conftest import Outcome

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import results_of
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.explore.candidates import candidates, with_mapping
from xlperf.explore.objectives import (
    DECILE,
    LARGER,
    Search,
    band_factor,
    is_rate,
    limit_of,
    objective_of,
    unbeaten_rows,
)
from xlperf.explore.search import search
from xlperf.explore.solve import solve_plan

TRAIN = ("Meta-Llama-3.1-8B", "H100-SXM-80GB", 8, 32)
HEADER = ("model", "accelerator", "num accelerators", "global batch size")
SERVE = "name,model,accelerator,num accelerators,prompt length,output length,concurrency\n" + (
    "mine,Llama3-70B,H100-SXM-80GB,8,2000,200,64\n"
)


@pytest.fixture(scope="module")
def plan() -> Table:
    return with_mapping(table_from_rows("training", HEADER, [TRAIN]))


@pytest.fixture(scope="module")
def result(plan: Table, catalog: Catalog) -> Search:
    return search(plan, catalog, top=60)


def test_a_limit_with_a_probability_looks_at_the_end_of_the_band(catalog: Catalog, result: Search) -> None:
    results = result.results
    high = limit_of("training", "step time<=1")._replace(probability=0.9, bound=float(results["step_time_high"][3]))
    assert high._replace(bound=high.bound * (1 + 1e-9)).kept(results)[3]
    assert not high._replace(bound=high.bound * (1 - 1e-9)).kept(results)[3]
    assert high._replace(probability=0.5, bound=high.bound * (1 - 1e-9)).kept(results)[3]
    low = limit_of("training", "mfu>=1")._replace(probability=0.9)
    expected = results["mfu"] * results["step_time"] / results["step_time_high"]
    assert low._replace(bound=float(expected[3] * (1 - 1e-9))).kept(results)[3]
    assert not low._replace(bound=float(expected[3] * (1 + 1e-9))).kept(results)[3]
    assert (results["step_time"] * band_factor(results, "step_time", -DECILE)).tolist() == pytest.approx(
        results["step_time_low"].tolist()
    )


def test_what_comes_nearest_is_said_with_its_probability(catalog: Catalog, result: Search) -> None:
    limit = limit_of("training", "step time<=1 ms")._replace(probability=0.9)
    none = search(result.plans.take([0]), catalog, limits=[limit])
    high = none.results["step_time_high"][0]
    assert none.words.endswith(
        f"the nearest has step time {none.results['step_time'][0]:.4g} s ({high:.4g} with 0.9 probability)"
    )


def test_surer_takes_more(catalog: Catalog) -> None:
    header, row = (line.split(",") for line in SERVE.splitlines())
    table = table_from_rows("inference", header, [[*row[:3], *map(float, row[3:])]])
    counts = np.array([2.0, 4.0, 8.0])
    tpot = evaluate(table, catalog)["tpot"][0]
    needed = []
    for probability in (0.5, 0.9, 0.99):
        limit = limit_of("inference", "tpot<=1")._replace(bound=tpot * 1.5, probability=probability)
        answer = solve_plan(table, catalog, "tensor_parallel", counts, [limit])
        needed.append(answer.value if answer.found else np.inf)
    assert needed == sorted(needed)


@pytest.mark.parametrize("names", [("step time", "memory"), ("step time", "memory", "energy")])
def test_the_frontier_is_that_of_brute_force(catalog: Catalog, plan: Table, names: tuple[str, ...]) -> None:
    every = candidates(plan, catalog)
    results = evaluate(every.plans, catalog)
    losses = np.stack([objective_of("training", name).loss(results) for name in names], axis=-1)
    losses = np.unique(losses[results["fits"] == 1.0], axis=0)
    unbeaten = [row for row in losses if not ((losses <= row).all(axis=1) & (losses < row).any(axis=1)).any()]
    best = search(plan, catalog, names[0], top=1, rivals=names[1:])
    kept = np.stack([objective_of("training", name).loss(best.results) for name in names], axis=-1)
    assert {tuple(row) for row in kept.tolist()} == {tuple(row.tolist()) for row in unbeaten}
    assert len(kept) > 2 and f"{len(kept):,} that no other beats" in best.words


def test_unbeaten_rows_of_every_small_table() -> None:
    points = np.array(list(product([0.0, 1.0, 2.0], repeat=2)))
    random = np.random.default_rng(5)
    for _ in range(60):
        losses = points[random.integers(0, len(points), 6)]
        beaten = [
            any(
                (other <= row).all() and ((other < row).any() or place < at)
                for place, other in enumerate(losses)
                if place != at
            )
            for at, row in enumerate(losses)
        ]
        assert unbeaten_rows(losses).tolist() == np.flatnonzero(~np.array(beaten)).tolist()


def test_the_command_says_the_probability(tmp_path: Path, command: Callable[..., Outcome]) -> None:
    path = tmp_path / "plans.csv"
    path.write_text(SERVE)
    sure = command("search", path, "--vary", "tensor parallel=1,2,4,8", "--target", "tpot<=40", "--probability", "0.9")
    assert "with 0.9 probability" in sure.err


@pytest.mark.parametrize("kind", ["training", "inference"])
def test_rates_are_maximised_and_times_are_minimised(kind: str) -> None:
    """The ends of their bands too."""
    for name in (column.name for column in results_of(kind).columns if column.kind == "result"):
        if is_rate(name) or name.startswith(("time_", "ttft", "tpot", "latency", "step_")):
            assert (name in LARGER) == is_rate(name), name
