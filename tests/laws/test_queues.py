"""What more load does to served plans, whatever the plan: laws of queues over a few hundred random ones.

Laws that are broken on purpose:

- A run of a fixed number of requests (``run requests``) starts with a burst and ends with a smaller wave: not tested.
- Gathering steps hold a prompt back until each attention replica has one; more load shortens that wait: not tested.
- Two-batch overlap begins at two requests for each attention replica, and shortens a step there: not tested.
- A prefill pass with more prompts may pad more tiles than one with fewer, and so take more per prompt: such plans
  may lose as much throughput as the pass does.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.explore.sweep import points

pytestmark = pytest.mark.slow

NUM_PLANS = 150
CLOSED, OPEN = 31, 34  # seeds of the plans with a number in flight and of those with a rate
COUNTS = [2**power for power in range(13)]
LOADS = [0.01, 0.03, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.99]
MODELS = ["Meta-Llama-3.1-8B", "Llama2-70B", "Qwen2.5-72B", "DeepSeek-V3", "Qwen3-30B-A3B", "gpt-oss-120b",
          "Mixtral-8x7B-v0.1", "Gemma-3-27B"]  # fmt: skip
MIXTURES = {"DeepSeek-V3": 8, "Qwen3-30B-A3B": 8, "gpt-oss-120b": 8, "Mixtral-8x7B-v0.1": 8}
ACCELERATORS = ["H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB", "A100-SXM4-80GB", "MI355X"]
MODES = pytest.mark.parametrize("mode", ["continuous", "disaggregated"])
ROUNDING = 1e-9


def drawn(mode: str, seed: int) -> list[dict[str, Any]]:
    """Random plans without a load."""
    random = np.random.default_rng(seed)
    plans = []
    for _ in range(NUM_PLANS):
        model, accelerator = str(random.choice(MODELS)), str(random.choice(ACCELERATORS))
        tensor, replicas = int(2 ** random.integers(0, 4)), int(2 ** random.integers(0, 3))
        tensor = 8 if model == "DeepSeek-V3" else tensor
        stages, context = int(random.choice([1, 1, 1, 2, 4])), int(random.choice([1, 1, 1, 2]))
        experts = tensor if model in MIXTURES and random.random() < 0.5 else 1
        copies = tensor if experts == tensor and random.random() < 0.5 else 1
        ranks, prefillers = tensor * stages * context, int(2 ** random.integers(0, 2))
        precisions = ["bf16", "int4"] if accelerator.startswith("A100") else ["bf16", "fp8", "int4"]
        plans.append(
            {
                "model": model,
                "accelerator": accelerator,
                "num_accelerators": ranks * (replicas + prefillers * (mode == "disaggregated")),
                "prefill_accelerators": ranks * prefillers if mode == "disaggregated" else "",
                "software": str(random.choice(["vllm", "sglang", "tensorrt-llm", "nim"])),
                "tensor_parallel": tensor,
                "pipeline_parallel": stages,
                "context_parallel": context,
                "expert_parallel": experts,
                "data_parallel_attention": copies,
                "prompt_length": int(random.choice([128, 500, 1000, 2000, 4000, 8000, 16000])),
                "output_length": int(random.choice([16, 64, 250, 500, 1000, 2000])),
                "precision": str(random.choice(precisions)),
                "mode": mode,
                "concurrency": "",
                "request_rate": "",
            }
        )
    return plans


def table(plans: list[dict[str, Any]]) -> Table:
    header = list(plans[0])
    rows = [[plan[name] for name in header] for plan in plans]
    return table_from_rows("inference", header, rows, lambda row, column: f"row {row} {column}")


def results(catalog: Catalog, plans: list[dict[str, Any]], loads: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Numbers (plans, loads) of plans that are legal and fit at every load."""
    result = evaluate(table([{**plan, **load} for plan in plans for load in loads]), catalog)
    names = ("ttft", "tpot", "latency", "tokens_per_second", "queue_time", "max_request_rate", "fits", "prefill_time")
    numbers = {name: result.number(name).reshape(len(plans), -1) for name in names}
    good = (numbers["fits"][:, 0] == 1.0) & ~np.isnan(numbers["ttft"]).any(axis=1)
    assert good.sum() > 0.8 * len(plans), result.text("reason")[: len(loads)]
    return {name: values[good] for name, values in numbers.items()} | {"rows": np.flatnonzero(good)}


@cache
def closed(catalog: Catalog, mode: str) -> dict[str, np.ndarray]:
    return results(catalog, drawn(mode, CLOSED), [{"concurrency": count} for count in COUNTS])


@cache
def arriving(catalog: Catalog, mode: str) -> tuple[dict[str, np.ndarray], np.ndarray, list[dict[str, Any]]]:
    """Numbers at shares of the largest rate of each plan, those rates, and the plans."""
    plans = drawn(mode, OPEN)
    alone = evaluate(table([{**plan, "concurrency": 4096} for plan in plans]), catalog)
    most = alone.number("max_request_rate")
    kept = np.flatnonzero((alone.number("fits") == 1.0) & ~np.isnan(most))
    plans, most = [plans[row] for row in kept], most[kept]
    rows = [{**plan, "request_rate": rate * share} for plan, rate in zip(plans, most, strict=True) for share in LOADS]
    result = evaluate(table(rows), catalog)
    names = ("ttft", "tpot", "latency", "max_request_rate", "running_batch", "tokens_per_second")
    return {name: result.number(name).reshape(len(plans), -1) for name in names}, most, plans


def least_ratio(values: np.ndarray) -> float:
    """Least ratio of a value to that at the load before."""
    return float(np.min(values[:, 1:] / values[:, :-1]))


@MODES
def test_twice_the_requests_never_lower_throughput_nor_the_times_of_a_request(catalog: Catalog, mode: str) -> None:
    result = closed(catalog, mode)
    assert least_ratio(result["tokens_per_second"]) > 0.99
    for name in ("ttft", "tpot"):
        assert least_ratio(result[name]) > 1.0 - ROUNDING, name


@MODES
def test_twice_the_requests_never_more_than_double_throughput(catalog: Catalog, mode: str) -> None:
    rate = closed(catalog, mode)["tokens_per_second"]
    assert (rate[:, 1:] <= 2.0 * rate[:, :-1] * 1.01).all()


@MODES
def test_requests_in_flight_are_the_rate_times_the_latency(catalog: Catalog, mode: str) -> None:
    result, plans = closed(catalog, mode), drawn(mode, CLOSED)
    outputs = np.array([plans[row]["output_length"] for row in result["rows"]])
    in_flight = result["latency"] * result["tokens_per_second"] / outputs[:, None]
    np.testing.assert_allclose(in_flight, np.broadcast_to(COUNTS, in_flight.shape), rtol=1e-9)


@MODES
def test_every_rate_below_the_largest_is_served_and_none_above(catalog: Catalog, mode: str) -> None:
    result, most, plans = arriving(catalog, mode)
    assert not np.isnan(result["ttft"]).any()
    np.testing.assert_allclose(
        result["max_request_rate"], np.broadcast_to(most[:, None], result["ttft"].shape), rtol=2e-2
    )
    beyond = evaluate(
        table([{**plan, "request_rate": 1.03 * rate} for plan, rate in zip(plans, most, strict=True)]), catalog
    )
    assert np.isnan(beyond.number("ttft")).all()
    named = [float(reason.split("at most ")[1].split(" requests/s")[0]) for reason in beyond.text("reason").tolist()]
    again = evaluate(table([{**plan, "request_rate": rate} for plan, rate in zip(plans, named, strict=True)]), catalog)
    assert not np.isnan(again.number("ttft")).any(), "the rate that the message names is served"


@MODES
def test_a_higher_rate_never_shortens_the_times_of_a_request(catalog: Catalog, mode: str) -> None:
    result, _, _ = arriving(catalog, mode)
    for name in ("ttft", "tpot"):
        assert least_ratio(result[name]) > 1.0 - ROUNDING, name


@MODES
def test_requests_that_arrive_are_as_many_as_in_a_closed_loop(catalog: Catalog, mode: str) -> None:
    """With the mean number in flight of an open loop a closed one serves about its rate, and at high load no less.

    Arrivals vary more than a constant number in flight: queues are longer at the same rate. In a closed loop a part of
    the requests comes in bursts, which wait longer, and are batched.
    """
    result, most, plans = arriving(catalog, mode)
    rate = most[:, None] * np.array(LOADS)
    in_flight = result["latency"] * rate
    counts = np.maximum(np.round(in_flight), 1.0)
    rows = [{**plan, "concurrency": count} for plan, own in zip(plans, counts, strict=True) for count in own.tolist()]
    tokens = evaluate(table(rows), catalog).number("tokens_per_second").reshape(rate.shape)
    outputs = np.array([plan["output_length"] for plan in plans])[:, None]
    ratio = (tokens / outputs / rate)[in_flight > 8.0]
    assert np.median(ratio) == pytest.approx(1.0, abs=0.05)
    assert np.quantile(ratio, 0.02) > 0.7
    assert np.quantile(ratio, 0.98) < 1.6


def test_a_state_between_two_batches_is_not_passed_over(catalog: Catalog) -> None:
    """From one batch to the next ones, and not beyond them: near its largest rate a pool has the batch of that rate.

    A search that went half an octave past a batch never looked between two neighbours, and ended with a quarter of the
    time per token at 900 requests per second that it had at 890.
    """
    plan = {
        "model": "gpt-oss-120b", "accelerator": "H200-SXM-141GB", "num_accelerators": 16, "software": "turbomind",
        "tensor_parallel": 8, "data_parallel_attention": 4, "expert_dispatch": "ranks", "two_batch_overlap": "yes",
        "prompt_length": 128, "output_length": 15, "precision": "int4", "activation_precision": "fp32",
        "kv_precision": "bf16", "memory_fraction": 0.95, "mode": "disaggregated", "shared_prefix": 1,
        "prefill_tensor_parallel": 4, "prefill_pipeline_parallel": 2, "prefill_accelerators": 8,
        "prefill_expert_parallel": 4, "prefill_data_parallel_attention": 4, "sorted_sampling": "yes",
    }  # fmt: skip
    most = float(evaluate(table([{**plan, "request_rate": 1}]), catalog)["max_request_rate"][0])
    rates = most * np.array([0.5, 0.7, 0.8, 0.85, 0.88, 0.89, 0.9, 0.91, 0.92, 0.94, 0.95])
    result = evaluate(table([{**plan, "request_rate": rate} for rate in rates.tolist()]), catalog)
    assert (np.diff(result["tpot"]) > 0.0).all()
    counts = np.round(result["latency"] * rates).tolist()
    closed = evaluate(table([{**plan, "concurrency": count} for count in counts]), catalog)
    np.testing.assert_allclose(closed["tokens_per_second"] / 15.0, rates, rtol=0.08)


def test_a_pool_that_serves_many_serves_few(catalog: Catalog) -> None:
    """Eight of 16 prefill: at 8 in flight its first token came later than at 256, and 20 requests/s were refused."""
    plan = {"model": "Meta-Llama-3.1-8B", "accelerator": "H200-SXM-141GB", "num_accelerators": 16,
            "prefill_accelerators": 8, "software": "sglang", "tensor_parallel": 8, "prompt_length": 128,
            "output_length": 64, "precision": "fp8", "mode": "disaggregated", "concurrency": "",
            "request_rate": ""}  # fmt: skip
    counts = [8, 16, 32, 64, 128, 256]
    result = evaluate(table([{**plan, "concurrency": count} for count in counts]), catalog)
    assert (np.diff(result.number("ttft")) > 0.0).all()
    assert (np.diff(result.number("tokens_per_second") / counts) < 0.0).all()
    most = result.number("max_request_rate")[0]
    served = evaluate(table([{**plan, "request_rate": rate} for rate in (5.0, 20.0, 122.0, 0.99 * most)]), catalog)
    reasons = served.text("reason").tolist()
    assert reasons[:3] == result.text("reason").tolist()[:1] * 3
    assert reasons[3].startswith("arrivals are 99 % of the largest request rate")


@MODES
def test_the_first_token_is_all_where_there_is_one(catalog: Catalog, mode: str) -> None:
    plan = {"model": "Llama2-70B", "accelerator": "H200-SXM-141GB", "num_accelerators": 16, "software": "vllm",
            "tensor_parallel": 8, "prompt_length": 1000, "output_length": 1, "precision": "fp8",
            "mode": mode}  # fmt: skip
    result = evaluate(table([{**plan, "concurrency": count} for count in (1, 7, 64, 5000)]), catalog)
    np.testing.assert_allclose(result.number("ttft"), result.number("latency"), rtol=1e-12)


@MODES
def test_a_run_of_requests_that_arrive_has_their_rate(catalog: Catalog, mode: str) -> None:
    plan = {"model": "Llama2-70B", "accelerator": "H200-SXM-141GB", "num_accelerators": 16, "software": "vllm",
            "tensor_parallel": 8, "prompt_length": 1000, "output_length": 500, "precision": "fp8", "mode": mode,
            "run_requests": 200}  # fmt: skip
    result = evaluate(table([{**plan, "request_rate": rate} for rate in (0.1, 2.0)]), catalog)
    np.testing.assert_allclose(result.number("tokens_per_second"), [50.0, 1000.0], rtol=1e-12)


@MODES
def test_a_frontier_never_goes_back(catalog: Catalog, mode: str) -> None:
    """Of a 70B model: more in flight give accelerators more tokens per second, and each user fewer."""
    for model in ("Llama2-70B", "Meta-Llama-3-70B"):
        for accelerator, output in (("H100-SXM-80GB", 1000), ("H200-SXM-141GB", 500), ("B200-SXM-180GB", 256)):
            plan = {"model": model, "accelerator": accelerator, "num_accelerators": 16, "tensor_parallel": 8,
                    "prompt_length": 1000, "output_length": output, "precision": "fp8", "mode": mode}  # fmt: skip
            results = points(table([plan]), catalog, num_points=60).results
            assert (np.diff(results.number("tokens_per_second_per_accelerator")) > 0.0).all()
            assert (np.diff(results.number("tokens_per_second_per_user")) < 0.0).all()


def test_a_cache_that_fills_up_takes_no_throughput(catalog: Catalog) -> None:
    """Room for 69 requests: the step is slower per request with 69 than with 64, whose products fill whole tiles."""
    plan = {"model": "Qwen2.5-72B", "accelerator": "H100-SXM-80GB", "num_accelerators": 2, "software": "sglang",
            "tensor_parallel": 1, "context_parallel": 2, "prompt_length": 1000, "output_length": 2000,
            "precision": "int4", "mode": "continuous"}  # fmt: skip
    result = evaluate(table([{**plan, "concurrency": count} for count in (64, 66, 68, 80, 128)]), catalog)
    rate = result.number("tokens_per_second")
    assert (rate[1:] > 0.99 * rate[0]).all()
