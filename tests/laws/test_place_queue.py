"""Open load waits for a place: the law of 60 random loads against simulations, and what the wait does to results."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from typing import Any

import numpy as np
import place_simulator
import pytest
from laws.samples import shipped

from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.equations.serving.queueing import erlang_c, place_wait, tail_decay, wait_correction

CLOSE = 0.15
LEAST_MEAN, LEAST_TAIL = 1e-3, 0.1
"""Waits, as shares of the hold time, below which the error counts as a share of these: few requests wait. [-]"""
SIXTY = 60
# Issue 36, A11: "Llama3-70B, two copies of TP4 H100, max running batch 16, 5 requests/s of 5.407: queue time 0, p99
# TTFT 242 ms; a simulation with xlperf's own hold time (Poisson) gives a mean wait of 1.23 s and 7.5 s at p99".
CASE = {
    "model": "Llama3-70B", "accelerator": "H100-SXM-80GB", "num_accelerators": 8, "tensor_parallel": 4,
    "software": "vllm", "prompt_length": 1024, "output_length": 256, "mode": "continuous", "max_running_batch": 16,
}  # fmt: skip


def results(*rows: Mapping[str, Any]) -> Table:
    header = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[row.get(name, "") for name in header] for row in rows]
    return evaluate(table_from_rows("inference", header, cells, lambda row, column: f"row {row} {column}"), shipped())


def drawn() -> list[dict[str, Any]]:
    """Sixty random plans with next to no load: copies with few and with many places, as many as the plan allows."""
    random = np.random.default_rng(1123)
    plans = []
    for _ in range(SIXTY + 20):
        tensor = int(random.choice([1, 2, 4, 8]))
        plans.append(
            {
                "model": str(random.choice(["Meta-Llama-3.1-8B", "Llama2-13B", "Qwen3-30B-A3B", "Gemma-3-27B"])),
                "accelerator": str(random.choice(["H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB"])),
                "num_accelerators": tensor * int(random.choice([1, 2, 4])),
                "tensor_parallel": tensor,
                "software": str(random.choice(["vllm", "sglang", "tensorrt-llm"])),
                "prompt_length": int(random.choice([128, 1000, 4000])),
                "output_length": int(random.choice([64, 250, 1000])),
                "mode": "continuous",
                "max_running_batch": int(np.exp(random.uniform(0.0, np.log(256.0)))),
                "request_rate": 1e-3,
            }
        )
    room = results(*plans)["max_batch_size"].tolist()
    plans = [plan for plan, most in zip(plans, room, strict=True) if plan["max_running_batch"] <= most]
    return plans[:SIXTY]


def near(result: np.ndarray, seen: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Error as a share of what is simulated, or of the least wait that counts."""
    return np.asarray(np.abs(result - seen) / np.maximum(seen, least))


def test_sixty_random_loads_wait_as_a_simulation_of_their_places_does() -> None:
    """30 to 98 % of the largest rate: requests of Poisson arrivals, each in its place for the plan's own hold time."""
    plans, random = drawn(), np.random.default_rng(98)
    most, shares = results(*plans)["max_request_rate"], random.uniform(0.3, 0.98, SIXTY)
    copies = np.array([plan["num_accelerators"] / plan["tensor_parallel"] for plan in plans])
    result = results(*({**plan, "request_rate": r} for plan, r in zip(plans, (most * shares).tolist(), strict=True)))
    places = np.array([float(plan["max_running_batch"]) for plan in plans])
    hold = result["running_batch"] * copies / (most * shares)
    seen = np.empty((SIXTY, 2))
    for row, (count, load) in enumerate(zip(places.tolist(), (result["running_batch"] / places).tolist(), strict=True)):
        waits = place_simulator.equal_holds(int(count), load, 400_000 if load < 0.85 else 3_000_000, row)
        seen[row] = hold[row] * waits.mean(), hold[row] * np.quantile(waits, 0.99)
    assert (near(result["queue_time"], seen[:, 0], LEAST_MEAN * hold) < CLOSE).all()
    # The first token takes its prefill and waits for other prefills as well.
    rest = result["ttft"] - result["queue_time"]
    queued = seen[:, 1] > 3.0 * rest
    assert queued.sum() > 15
    np.testing.assert_allclose(result["ttft_ninety_ninth"][queued], (seen[:, 1] + rest)[queued], rtol=CLOSE)
    wait = place_wait(places, result["running_batch"] / places, hold, 1.0, 0.0)
    assert (near(wait.quantile(0.99), seen[:, 1], LEAST_TAIL * hold) < CLOSE).all()


def test_sixty_random_loads_whose_outputs_vary() -> None:
    """``place_simulator.py`` made the table; outputs all alike, spread evenly or exponential."""
    with place_simulator.TABLE.open() as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    table = {name: np.array([row[name] for row in rows]) for name in place_simulator.HEADER}
    assert [tuple(row[name] for name in place_simulator.HEADER[:3]) for row in rows] == place_simulator.sixty_loads()
    wait = place_wait(table["places"], table["load"], 1.0, 1.0, table["output_variation"])
    assert (near(wait.mean, table["mean"], np.full(SIXTY, LEAST_MEAN)) < CLOSE).all()
    assert (near(wait.quantile(0.99), table["ninety_ninth"], np.full(SIXTY, LEAST_TAIL)) < CLOSE).all()
    assert (near(wait.probability, table["share_waiting"], np.full(SIXTY, 0.02)) < CLOSE).all()


def test_the_case_of_two_copies_with_sixteen_places() -> None:
    """At the issue's share of the largest rate, to which a wait near it is far more sensitive than to the hold time."""
    most = results({**CASE, "request_rate": 1.0})["max_request_rate"][0]
    assert most == pytest.approx(5.407, rel=0.05)
    result = results(*({**CASE, "request_rate": rate / 5.407 * most} for rate in (1.0, 5.0, 5.3)))
    assert result["queue_time"][1] == pytest.approx(1.23, rel=CLOSE)
    assert result["ttft_ninety_ninth"][1] == pytest.approx(7.5 + 0.242, rel=CLOSE)
    hold, load = 2.0 * result["running_batch"][1] / (5.0 / 5.407 * most), result["running_batch"][1] / 16.0
    waits = place_simulator.equal_holds(16, load, 1_000_000, 5)
    assert result["queue_time"][1] == pytest.approx(hold * waits.mean(), rel=CLOSE)
    assert result["queue_time"][0] < 1e-6
    assert result["latency"][1] == pytest.approx(result["ttft"][1] + 255.0 * result["tpot"][1], rel=1e-9)
    assert "92." in result.text("reason")[1] and "waits" in result.text("reason")[1]
    assert result["ttft_ninety_ninth"][2] > 3.0 * result["ttft_ninety_ninth"][1], "no target of p99 is kept at 98 %"


def test_arrivals_are_an_input() -> None:
    rows = [{**CASE, "request_rate": 5.0, "arrival_variation": each} for each in (0.0, 0.5, 1.0, 2.0)]
    result = results(*rows, {**CASE, "request_rate": 5.0}, {**CASE, "concurrency": 8, "arrival_variation": 2.0})
    wait, first, token = (result[name] for name in ("queue_time", "ttft_ninety_ninth", "tpot_ninety_ninth"))
    assert wait[0] == 0.0, "evenly spaced requests of one length find a place"
    for values in (wait, first, token):
        assert (np.diff(values[:4]) > 0.0).all()
    assert wait[2] == wait[4] and first[2] == first[4], "Poisson arrivals by default"
    assert "arrival variation needs a request rate" in result.text("reason")[5]
    varied = results(*({**CASE, "request_rate": 5.0, "output_variation": each} for each in (0.0, 0.5, 1.0)))
    assert varied["queue_time"][2] > 1.6 * varied["queue_time"][0] > 1.0


def test_no_wait_but_for_prefills_where_one_token_is_all() -> None:
    result = results({**CASE, "output_length": 1, "request_rate": 5.0})
    assert result["queue_time"][0] == 0.0 < result["ttft"][0]


def test_separate_pools_wait_for_a_place_to_decode() -> None:
    pools = {**CASE, "mode": "disaggregated", "num_accelerators": 16, "prefill_accelerators": 8}
    most = results({**pools, "request_rate": 1.0})["max_request_rate"][0]
    result = results(*({**pools, "request_rate": share * most} for share in (0.3, 0.9, 0.97)))
    assert result["queue_time"][0] < 0.1 < result["queue_time"][1] < 0.5 * result["queue_time"][2]
    hold, load = 2.0 * result["running_batch"][1] / (0.9 * most), result["running_batch"][1] / 16.0
    waits = place_simulator.equal_holds(16, load, 1_000_000, 5)
    assert result["queue_time"][1] == pytest.approx(hold * waits.mean(), rel=CLOSE)


def test_queue_of_places_in_limits_with_a_known_answer() -> None:
    """Erlang's C by its recursion; M/M/c; constant arrivals and hold times; more than there is room for."""
    for servers in (1, 2, 7, 40, 300):
        for load in (0.3, 0.7, 0.95):
            blocked = 1.0
            for number in range(1, servers + 1):
                blocked = load * servers * blocked / (number + load * servers * blocked)
            exact = blocked / (1.0 - load * (1.0 - blocked))
            assert erlang_c(servers, load) == pytest.approx(exact, rel=0.015, abs=1e-9)
    exponential = place_wait(8.0, 0.8, 2.0, 1.0, 1.0)
    assert exponential.mean == pytest.approx(float(erlang_c(8.0, 0.8)) * 2.0 / (8.0 * 0.2), rel=1e-9)
    assert exponential.decay == pytest.approx(8.0 * 0.2 / 2.0, rel=1e-9)
    tail = exponential.probability * np.exp(-exponential.decay * exponential.quantile(0.99))
    assert tail == pytest.approx(0.01, rel=1e-9)
    assert place_wait(8.0, 0.99, 2.0, 0.0, 0.0).mean == 0.0
    assert place_wait(8.0, 1.2, 2.0, 1.0, 0.0).mean == np.inf
    assert np.isnan(place_wait(8.0, np.nan, 2.0, 1.0, 0.0).mean)
    assert wait_correction(1.0, 0.5, 1.0, 0.0) == pytest.approx(1.0)
    for load in (0.05, 0.3, 0.9, 0.999):
        for serving in (0.0, 0.4, 1.0, 3.0):
            for arriving in (0.2, 1.0, 4.0):
                root = float(tail_decay(load, arriving, serving))
                square, other = max(serving**2, 1e-6), arriving**2
                right = (1.0 - np.exp(-square * np.log1p(root * other / load) / other)) / square
                assert root == pytest.approx(right, rel=1e-6), (load, serving, arriving)


def test_a_mean_wait_is_the_mean_of_its_quantiles() -> None:
    shares = 1.0 - ((np.arange(1500) + 0.5) / 1500) ** 3  # with the last ones close together
    weights = 3.0 * (1.0 - shares) ** (2.0 / 3.0) / 1500
    for places, load, varied in ((1.0, 0.5, 0.0), (16.0, 0.9, 0.0), (64.0, 0.8, 0.3), (8.0, 0.7, 1.0)):
        wait = place_wait(places, load, 3.0, 1.0, varied)
        mean = np.dot(weights, [float(wait.quantile(share)) for share in shares.tolist()])
        assert mean == pytest.approx(float(wait.mean), rel=5e-3)
