"""Serving of every architecture and under load: cache by hand, experts that are hit, queues, pools, speculation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate, explain
from xlperf.equations.model.model import Popularity, activated_experts

GIB = 2.0**30


def plans(*rows: dict[str, Any]) -> Table:
    base = {"model": "Llama2-70B", "accelerator": "H200-SXM-141GB", "num_accelerators": 8, "tensor_parallel": 8,
            "prompt_length": 1000, "output_length": 500}  # fmt: skip
    full = [{**base, **row} for row in rows]
    header = list(dict.fromkeys(name for row in full for name in row))
    cells = [[row.get(name, "") for name in header] for row in full]
    return table_from_rows("inference", header, cells, lambda row, column: f"row {row} {column}")


def results(catalog: Catalog, *rows: dict[str, Any]) -> Table:
    return evaluate(plans(*rows), catalog)


@pytest.mark.parametrize(
    ("model", "tensor", "replicas", "elements"),
    [
        # 61 layers x (512 + 64), the same on every rank
        ("DeepSeek-V3", 8, 1, 61 * 576 * 1500),
        ("DeepSeek-V3", 8, 8, 61 * 576 * 1500),
        # 2 x 48 layers x 4 groups over 2 ranks x 128
        ("Qwen3-30B-A3B", 2, 1, 2 * 48 * 2 * 128 * 1500),
        # half of 36 layers see 128 tokens; 8 groups of 64
        ("gpt-oss-120b", 1, 1, 2 * 8 * 64 * 18 * (128 + 1500)),
        # multi-query: one head of 256, the same on every rank of 8
        ("PaLM-540B", 8, 1, 2 * 118 * 256 * 1500),
        # multi-head: 40 heads of 128 over 8 ranks
        ("Llama2-13B", 8, 1, 2 * 40 * 5 * 128 * 1500),
        # of every six of 62 layers one sees all (10, rounded), the others 1024; 16 groups of 128 over 2 ranks
        ("Gemma-3-27B", 2, 1, 2 * 8 * 128 * (52 * 1024 + 10 * 1500)),
        # 36 of 48 layers keep a chunk of 8192, longer than the context
        ("Llama-4-Scout-17B-16E-Instruct", 8, 1, 2 * 48 * 1 * 128 * 1500),
    ],
)
def test_cache_of_every_kind_of_attention_by_hand(
    catalog: Catalog, model: str, tensor: int, replicas: int, elements: int
) -> None:
    row = {"model": model, "tensor_parallel": tensor, "num_accelerators": tensor, "batch_size": 1,
           "data_parallel_attention": replicas, "expert_parallel": replicas, "software": "sglang"}  # fmt: skip
    assert results(catalog, row).number("memory_kv_cache")[0] == elements * 2.0


def test_long_contexts_keep_a_chunk(catalog: Catalog) -> None:
    """36 layers keep 8192 tokens, 12 keep all: 2 x 128 x 1 group a rank."""
    row = {"model": "Llama-4-Scout-17B-16E-Instruct", "prompt_length": 20_000, "output_length": 2_000, "batch_size": 1}
    kept = {"sglang": 36 * 8192 + 12 * 22_000, "tensorrt-llm": 48 * 22_000}  # the second keeps all tokens by default
    for software, tokens in kept.items():
        cache = results(catalog, {**row, "software": software}).number("memory_kv_cache")[0]
        assert cache == 2 * 128 * 2.0 * tokens, software


def test_experts_are_hit_as_by_counting() -> None:
    """Eight experts, two of them a token: expected distinct ones by simulation."""
    random = np.random.default_rng(1)
    tokens = 5
    draws = [len({expert for _ in range(tokens) for expert in random.choice(8, 2, replace=False)}) for _ in range(4000)]
    result = activated_experts(np.array([8.0]), np.array([2.0]), np.array([float(tokens)]))[0]
    assert result == pytest.approx(np.mean(draws), rel=0.01)
    assert activated_experts(np.array([8.0]), np.array([2.0]), np.array([1.0]))[0] == pytest.approx(2.0)
    assert activated_experts(np.array([8.0]), np.array([2.0]), np.array([1e6]))[0] == 8.0


def test_preferred_experts_are_hit_as_by_counting() -> None:
    """32 experts of which half have seven eighths of four visits a token: expected distinct ones by simulation."""
    chances, uneven = np.repeat([4 * 7 / 8 / 16, 4 / 8 / 16], 16), Popularity(np.array([0.5]))
    random = np.random.default_rng(2)
    for tokens in (2, 10, 50):
        visited = (random.random((4000, tokens, 32)) < chances).any(axis=1)
        result = activated_experts(np.array([32.0]), np.array([4.0]), np.array([float(tokens)]), uneven)[0]
        assert result == pytest.approx(visited.sum(axis=1).mean(), rel=0.01)
    few, all_of_them = (np.array([count]) for count in (1.0, 1e6))
    shares = Popularity(np.array([0.3, 0.6, 1.0]), np.array([0.0, 0.25, 0.5]))
    assert activated_experts(np.full(3, 32.0), np.full(3, 4.0), few, shares) == pytest.approx(4.0)
    assert activated_experts(np.full(3, 32.0), np.full(3, 4.0), all_of_them, shares) == pytest.approx(32.0)
    assert activated_experts(np.array([4.0]), np.array([3.0]), few, uneven) == pytest.approx(3.0)


def test_hot_experts_are_hit_as_by_counting() -> None:
    """32 experts, four a token: one that every token visits and three of the others at random."""
    random = np.random.default_rng(3)
    for tokens in (1, 4, 20):
        others = [len({one for _ in range(tokens) for one in random.choice(31, 3, replace=False)}) for _ in range(2000)]
        hot = Popularity(hot_share=np.array([0.25]))
        result = activated_experts(np.array([32.0]), np.array([4.0]), np.array([float(tokens)]), hot)[0]
        assert result == pytest.approx(1.0 + np.mean(others), rel=0.01)


@pytest.mark.parametrize(
    ("model", "active"),
    [("Qwen3-30B-A3B", 2.9e9), ("gpt-oss-120b", 4.5e9), ("DeepSeek-V3", 34e9), ("Mixtral-8x7B-v0.1", 12e9)],
)
def test_one_token_is_never_decoded_faster_than_its_experts_are_read(
    catalog: Catalog, model: str, active: float
) -> None:
    row = {"model": model, "batch_size": 1, "tensor_parallel": 8, "precision": "bf16"}
    result = results(catalog, row)
    assert result.number("tpot")[0] > active * 2.0 / 8.0 / 4.8e12
    assert result.number("memory_weights")[0] > 2.0 * active / 8.0


def test_weights_of_a_mixture_are_those_published(catalog: Catalog) -> None:
    """30.5 and 671 billion parameters; split evenly but for what each rank holds whole."""
    rows = [{"model": "Qwen3-30B-A3B", "tensor_parallel": 1, "num_accelerators": 1, "batch_size": 1},
            {"model": "DeepSeek-V3", "tensor_parallel": 8, "batch_size": 1, "precision": "bf16"}]  # fmt: skip
    weights = results(catalog, *rows).number("memory_weights")
    assert weights[0] / 2e9 == pytest.approx(30.5, rel=0.01)
    assert 8 * weights[1] / 2e9 == pytest.approx(671.0, rel=0.03)


LOADS = [
    {"mode": "continuous", "concurrency": 64},
    {"mode": "continuous", "request_rate": 1.5},
    {"mode": "disaggregated", "concurrency": 32, "num_accelerators": 16},
    {"mode": "continuous", "concurrency": 5000, "model": "DeepSeek-V3", "precision": "fp8", "expert_parallel": 8,
     "data_parallel_attention": 8},
    {"mode": "static", "batch_size": 8, "model": "gpt-oss-20b", "tensor_parallel": 2, "expert_parallel": 2},
    {"mode": "static", "batch_size": 3, "draft_tokens": 3},
]  # fmt: skip


def test_rows_alone_and_in_company_are_the_same_to_the_bit(catalog: Catalog) -> None:
    together = results(catalog, *(LOADS * 40))
    for row, plan in enumerate(LOADS):
        alone = results(catalog, plan)
        assert alone.text("reason")[0] == together.text("reason")[row]
        assert not math.isnan(alone.number("latency")[0]), alone.text("reason")[0]
        for name, values in together.columns.items():
            if values.dtype == np.float64:
                for again in (row, row + len(LOADS) * 39):
                    assert values[again].tobytes() == alone.number(name)[0].tobytes(), name


def test_throughput_rises_with_the_requests_then_saturates(catalog: Catalog) -> None:
    counts = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192]
    result = results(catalog, *({"mode": "continuous", "concurrency": count} for count in counts))
    rate = result.number("tokens_per_second")
    assert (np.diff(rate) > -1e-6 * rate[:-1]).all()
    assert rate[4] > 6.0 * rate[0]
    assert rate[-1] == pytest.approx(rate[-2], rel=1e-3), "the cache is full: more requests only wait"
    assert result.number("queue_time")[-1] > result.number("queue_time")[-2] > 0.0
    in_flight = result.number("latency") * rate / 500.0
    np.testing.assert_allclose(in_flight, counts, rtol=1e-9, err_msg="Little's law")


def test_load_by_rate(catalog: Catalog) -> None:
    rates = [0.1, 1.0, 2.0, 3.0]
    result = results(catalog, *({"mode": "continuous", "request_rate": rate} for rate in rates))
    for name in ("ttft", "tpot", "running_batch"):
        assert (np.diff(result.number(name)) > 0.0).all(), name
    for name in ("ttft", "tpot"):
        quantiles = [result.number(f"{name}_{word}") for word in ("median", "ninetieth", "ninety_ninth")]
        assert (quantiles[0] <= quantiles[1]).all() and (quantiles[1] <= quantiles[2]).all()
    np.testing.assert_allclose(result.number("tokens_per_second"), np.array(rates) * 500.0)
    much = results(catalog, {"mode": "continuous", "request_rate": 1e4})
    assert "more than the deployment can serve" in much.text("reason")[0]


@pytest.mark.parametrize("batch", [1, 16, 256])
def test_speculation_without_acceptance_never_helps(catalog: Catalog, batch: int) -> None:
    plain, useless, useful = results(
        catalog,
        {"batch_size": batch},
        {"batch_size": batch, "draft_tokens": 3, "acceptance_rate": 0},
        {"batch_size": batch, "draft_tokens": 3, "acceptance_rate": 1},
    ).number("tpot")
    assert useless > plain
    assert useful < plain


@pytest.mark.parametrize("model", ["Llama2-70B", "DeepSeek-V3", "gpt-oss-120b"])
def test_a_prompt_in_the_cache_leaves_decoding_as_it_is(catalog: Catalog, model: str) -> None:
    plan = {"model": model, "batch_size": 4, "prompt_length": 20_000}  # long beyond what the host takes for a prefill
    cold, warm = ({**plan, "shared_prefix": hit} for hit in (0, 1))
    result = results(catalog, cold, warm)
    assert result.number("tpot")[0] == result.number("tpot")[1]
    assert result.number("memory_kv_cache")[1] < 0.5 * result.number("memory_kv_cache")[0]
    assert result.number("ttft")[1] < 0.5 * result.number("ttft")[0]


@pytest.mark.parametrize(("first", "each"), [(500, 25), (5000, 40), (200, 12), ("", 20), (300, "")])
def test_targets_are_those_of_plans_with_so_many_requests(catalog: Catalog, first: object, each: object) -> None:
    """The largest number of requests by trying every number, whatever the plan itself has in flight."""
    targets = {"mode": "continuous", "ttft_target": first, "tpot_target": each}
    counts = range(1, 300)
    tried = results(catalog, *({"mode": "continuous", "concurrency": count} for count in counts))
    good = tried.number("ttft") <= (float(str(first)) / 1e3 if first else math.inf)
    good &= tried.number("tpot") <= (float(str(each)) / 1e3 if each else math.inf)
    most = int(np.flatnonzero(good).max())
    for plan in ({"concurrency": 1}, {"concurrency": 300}, {"mode": "static", "batch_size": 1}):
        result = results(catalog, {**targets, **plan})
        assert result.number("batch_at_targets")[0] == most + 1
        assert result.number("tokens_per_second_at_targets")[0] == pytest.approx(
            tried.number("tokens_per_second")[most], rel=1e-9
        )
    assert math.isnan(results(catalog, {"mode": "continuous", "concurrency": 8}).number("batch_at_targets")[0])


def test_pools_by_rate(catalog: Catalog) -> None:
    """What comes is served; as fast as with as many requests in flight as there are on average."""
    row = {"mode": "disaggregated", "num_accelerators": 16, "prefill_accelerators": 8}
    rates = [0.05, 1.0, 4.0, 7.0]
    result = results(catalog, *({**row, "request_rate": rate} for rate in rates))
    np.testing.assert_allclose(result.number("tokens_per_second"), np.array(rates) * 500.0)
    for name in ("ttft", "tpot", "running_batch", "ttft_ninety_ninth"):
        assert (np.diff(result.number(name)) > -1e-12).all(), name
    in_flight = result.number("latency") * rates
    closed = results(catalog, *({**row, "concurrency": round(float(count))} for count in in_flight[1:]))
    assert closed.number("tpot") == pytest.approx(result.number("tpot")[1:], rel=0.05)
    much = results(catalog, {**row, "request_rate": 2.0 * result.number("max_request_rate")[0]})
    assert "more than the deployment can serve" in much.text("reason")[0]
    each = closed.number("tpot_ninety_ninth") - closed.number("tpot_median")
    assert each.tolist() == [0.0] * 3, "prefills of another pool interrupt no step"
    assert (result.number("tpot_ninety_ninth") > result.number("tpot_median"))[1:].all(), "but more may come at once"


def test_a_rate_that_the_cache_has_no_room_for_is_refused(catalog: Catalog) -> None:
    row = {"mode": "continuous", "model": "Meta-Llama-3.1-405B", "precision": "fp8", "prompt_length": 20_000,
           "output_length": 2000}  # fmt: skip
    most = results(catalog, {**row, "request_rate": 0.01}).number("max_request_rate")[0]
    result = results(catalog, {**row, "request_rate": 0.5 * most}, {**row, "request_rate": 1.5 * most})
    assert result.number("running_batch")[0] <= result.number("max_batch_size")[0]
    assert "more than the deployment can serve" in result.text("reason")[1]


def test_targets_that_nothing_keeps(catalog: Catalog) -> None:
    row = {"mode": "continuous", "concurrency": 8, "tpot_target": 1}
    result = results(
        catalog, row, {**row, "mode": "disaggregated", "num_accelerators": 16}, {"batch_size": 4, "tpot_target": 1}
    )
    assert result.number("batch_at_targets").tolist() == [0.0, 0.0, 0.0]
    assert result.number("tokens_per_second_at_targets").tolist() == [0.0, 0.0, 0.0]


def test_targets_of_pools(catalog: Catalog) -> None:
    """As found by trying: between the last number of requests that passes and the next that does not."""
    row = {"mode": "disaggregated", "num_accelerators": 16, "prefill_accelerators": 8}
    result = results(catalog, {**row, "concurrency": 8, "ttft_target": 2000, "tpot_target": 15})
    counts = [int(count) for count in np.unique(np.geomspace(1, 1500, 120).astype(int))]
    tried = results(catalog, *({**row, "concurrency": count} for count in counts))
    good = (tried.number("ttft") <= 2.0) & (tried.number("tpot") <= 15e-3)
    last = int(np.flatnonzero(good).max())
    rates = tried.number("tokens_per_second")
    best = result.number("tokens_per_second_at_targets")[0]
    assert rates[last] * (1 - 1e-9) <= best <= rates[last + 1] * 1.01
    assert result.number("batch_at_targets")[0] >= tried.number("running_batch")[last] * (1 - 1e-9)
    wide, narrow = (results(catalog, {**row, "tpot_target": each}).number("tokens_per_second_at_targets")[0]
                    for each in (40, 10))  # fmt: skip
    assert wide > narrow > 0.0


@pytest.mark.parametrize(
    "row",
    [
        {"mode": "continuous", "concurrency": 64},
        {"mode": "continuous", "request_rate": 1.5},
        {"mode": "disaggregated", "num_accelerators": 16, "concurrency": 64, "prefill_tensor_parallel": 4},
    ],
)
def test_operators_under_load_are_those_of_the_running_batch(catalog: Catalog, row: dict[str, Any]) -> None:
    table = plans(row)
    result, operators = evaluate(table, catalog), explain(table, catalog)
    decode, prefill = (operators.text("phase") == phase for phase in ("decode", "prefill"))
    step = sum(
        result.number(f"time_{part}")[0] for part in ("matrix", "attention", "vector", "communication", "overhead")
    )
    assert operators.number("exposed_time")[decode].sum() == pytest.approx(step, rel=1e-9)
    handled = operators.text("operator") == "request outside the engine"
    assert handled.sum() == 1
    spent = operators.number("exposed_time")[prefill & ~handled].sum()
    assert spent == pytest.approx(result.number("prefill_time")[0], rel=1e-9)
    rows = operators.number("m")[decode & (operators.text("operator") == "qkv")][0]
    assert abs(rows - result.number("running_batch")[0]) <= 0.35 * rows
    if row["mode"] == "disaggregated":
        widths = operators.number("n")[operators.text("operator") == "mlp up"]
        assert widths.tolist() == [2 * 28672 / 4, 2 * 28672 / 8], "each phase is cut as in its pool"


def test_a_user_sees_one_over_the_time_per_token(catalog: Catalog) -> None:
    result = results(catalog, {"batch_size": 4}, {"output_length": 1})
    assert result.number("tokens_per_second_per_user")[0] == 1.0 / result.number("tpot")[0]
    assert math.isnan(result.number("tokens_per_second_per_user")[1])


def test_pools(catalog: Catalog) -> None:
    """Decoding is not interrupted; a slower accelerator in the prefill pool moves only the first token."""
    row = {"mode": "disaggregated", "num_accelerators": 16, "concurrency": 16, "prefill_accelerators": 8}
    other = {**row, "prefill_accelerator": "A100-SXM4-80GB"}
    mixed = {"mode": "continuous", "num_accelerators": 8, "concurrency": 16}
    apart, slower, together = (results(catalog, one) for one in (row, other, mixed))
    assert apart.number("tpot")[0] < together.number("tpot")[0]
    assert slower.number("ttft")[0] > 1.5 * apart.number("ttft")[0]
    assert slower.number("tpot")[0] <= apart.number("tpot")[0]
    refused = results(catalog, {**row, "prefill_accelerators": 16})
    assert "cannot be divided into a prefill pool and a decoding pool" in refused.text("reason")[0]


@pytest.mark.parametrize("model", ["DeepSeek-V3", "gpt-oss-120b", "Qwen3-30B-A3B"])
def test_operators_of_a_mixture_add_up(catalog: Catalog, model: str) -> None:
    row = {"model": model, "batch_size": 64, "data_parallel_attention": 8, "expert_parallel": 8}
    table = plans(row)
    outcome, operators = evaluate(table, catalog), explain(table, catalog)
    phase = operators.text("phase")
    for name, result in (("prefill", "ttft"), ("decode", "tpot")):
        assert operators.number("exposed_time")[phase == name].sum() == pytest.approx(
            outcome.number(result)[0], rel=1e-9
        )
    assert "exchange with experts" in operators.text("operator").tolist()


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"expert_parallel": 2}, "expert parallel 2 needs a mixture of experts"),
        ({"data_parallel_attention": 3}, "data parallel attention 3 does not divide tensor parallel 8"),
        ({"model": "Mixtral-8x7B-v0.1", "expert_parallel": 3, "batch_size": 1}, "does not divide"),
        ({"prefill_accelerators": 4}, "prefill accelerators needs mode disaggregated"),
        ({"prompt_variation": 0.5}, "prompt variation needs mode continuous or disaggregated"),
    ],
)
def test_refusals(catalog: Catalog, row: dict[str, Any], sentence: str) -> None:
    result = results(catalog, row)
    assert sentence in result.text("reason")[0]
    assert math.isnan(result.number("latency")[0])
