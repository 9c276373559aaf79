"""Whole runs: limits, the best interval, and what Llama 3 reports."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlperf import load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.engine import evaluate
from xlperf.engine.training import RUN_COLUMNS as COLUMNS
from xlperf.equations.training import rates

PLAN: dict[str, object] = {
    "model": "Meta-Llama-3.1-405B",
    "accelerator": "H100-SXM-80GB",
    "num_accelerators": 16384,
    "tensor_parallel": 8,
    "pipeline_parallel": 16,
    "global_batch_size": 2048,
    "sequence_length": 8192,
    "training_tokens": 15.6,
}
times = st.floats(1.0, 1e6)


def results(*plans: dict[str, object]) -> dict[str, np.ndarray]:
    names = list(dict.fromkeys(name for plan in plans for name in plan))
    rows = [[plan.get(name) for name in names] for plan in plans]
    table = table_from_rows("training", names, rows, lambda row, column: f"test row {row + 1}, {column}")
    return dict(evaluate(table, load_catalog()).columns)


def test_llama_3_loses_less_than_a_tenth_to_interruptions() -> None:
    """arXiv:2407.21783, 3.3.4: more than 90 % effective time; 419 unexpected interruptions in 54 days."""
    found = {name: float(values[0]) for name, values in results(PLAN).items() if name in COLUMNS}
    assert 0.90 < found["goodput"] < 0.97
    assert found["run_steps"] == np.ceil(15.6e12 / (2048 * 8192))
    assert found["checkpoint_size"] == pytest.approx(405.85e9 * 14, rel=0.01)
    failures = 50681 * 3600.0 / 16384
    assert failures == pytest.approx(54 * 86400 / 419, rel=1e-4)
    assert found["checkpoint_interval"] == pytest.approx(np.sqrt(2 * found["checkpoint_size"] / 2e12 * failures))


def test_parts_of_a_run_agree_with_the_step() -> None:
    found = results(PLAN)
    train = found["run_steps"] * found["step_time"]
    np.testing.assert_allclose(found["run_time"], train / found["goodput"], rtol=1e-12)
    tokens = found["run_steps"] * 2048 * 8192
    np.testing.assert_allclose(found["run_cost"] * found["goodput"], found["cost_per_million_tokens"] * tokens,
                               rtol=1e-9)  # fmt: skip
    np.testing.assert_allclose(found["run_energy"] * found["goodput"], found["energy_per_token"] * tokens, rtol=1e-9)


def test_a_plan_without_tokens_has_no_run() -> None:
    found = results({**PLAN, "training_tokens": None}, PLAN, {**PLAN, "tensor_parallel": 7})
    for name in COLUMNS:
        assert np.isnan(found[name][[0, 2]]).all() and not np.isnan(found[name][1]), name
    assert repr(results(PLAN)["run_time"][0]) == repr(found["run_time"][1])
    alone = {name: value for name, value in PLAN.items() if name != "training_tokens"}
    assert all(np.isnan(results(alone)[name][0]) for name in COLUMNS)


def test_better_machines_lose_less() -> None:
    found = results(
        PLAN,
        {**PLAN, "accelerator_mtbf": 500000},
        {**PLAN, "checkpoint_bandwidth": 20000},
        {**PLAN, "restart_time": 0},
        {**PLAN, "accelerator_mtbf": 5000},
    )["goodput"]
    assert (found[1:4] > found[0]).all() and found[4] < found[0]


def test_a_failure_domain_interrupts_beside_single_accelerators() -> None:
    """228 racks of 72 that fail every 2,280 h interrupt as often as single accelerators that fail every 163,840 h."""
    alone, racks, twice = ({**PLAN, "accelerator_mtbf": mtbf} for mtbf in (1e9, 1e9, 163840))
    found = results(
        {**PLAN, "failure_domain": 72},
        PLAN,
        {**racks, "failure_domain": 72, "failure_domain_mtbf": 2280},
        {**twice},
        alone,
    )["goodput"]
    assert repr(found[0]) == repr(found[1])
    assert found[2] == pytest.approx(found[3], rel=1e-5) and found[2] < found[4]


@given(times, times, times, st.floats(0.0, 1e5))
def test_the_share_lies_between_nothing_and_all(interval: float, write: float, failures: float, restart: float) -> None:
    assert 0.0 < rates.goodput(interval, write, failures, restart) < 1.0


@given(st.floats(1.0, 100.0), st.floats(1e5, 1e7), st.floats(0.0, 600.0), st.floats(0.2, 5.0))
def test_no_other_interval_is_much_better(write: float, failures: float, restart: float, factor: float) -> None:
    best = rates.checkpoint_interval(write, failures)
    found = rates.goodput([float(best), factor * float(best)], write, failures, restart)
    assert found[1] <= found[0] * (1 + write / failures)


def test_without_failures_nothing_is_lost_but_checkpoints() -> None:
    assert rates.goodput(900.0, 100.0, np.inf, 600.0) == 0.9
    assert rates.goodput(900.0, 0.0, np.inf, 600.0) == 1.0
