"""Long prompts shared by ranks, outputs of unequal length, precisions of weights and activations: hand counts."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate, explain
from xlperf.equations.plan.records import PRECISIONS

GIB = 2.0**30
LONG = {"prompt_length": 65_536, "output_length": 256, "batch_size": 4}


def plans(*rows: dict[str, Any]) -> Table:
    base = {"model": "Meta-Llama-3.1-70B", "accelerator": "H200-SXM-141GB", "num_accelerators": 8,
            "tensor_parallel": 8, "prompt_length": 1000, "output_length": 500}  # fmt: skip
    full = [{**base, **row} for row in rows]
    header = list(dict.fromkeys(name for row in full for name in row))
    cells = [[row.get(name, "") for name in header] for row in full]
    return table_from_rows("inference", header, cells, lambda row, column: f"row {row} {column}")


def results(catalog: Catalog, *rows: dict[str, Any]) -> Table:
    return evaluate(plans(*rows), catalog)


def split(ranks: int, **more: Any) -> dict[str, Any]:
    return {**LONG, "context_parallel": ranks, "num_accelerators": 8 * ranks, "batch_size": 4, **more}


# Context parallel


@pytest.mark.parametrize(
    ("model", "elements"),
    [
        ("Meta-Llama-3.1-70B", 80 * 2 * 128),  # one of 8 heads on each of 8 ranks
        ("DeepSeek-V3", 61 * 576),  # the compressed vector, the same on every rank
    ],
)
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_ranks_of_a_prompt_share_its_cache(catalog: Catalog, model: str, elements: int, ranks: int) -> None:
    result = results(catalog, split(ranks, model=model))
    tokens = math.ceil((65_536 + 256) / ranks)
    assert result.number("memory_kv_cache")[0] == 4 * elements * tokens * 2.0
    assert result.number("memory_weights")[0] == results(catalog, split(1, model=model)).number("memory_weights")[0]


def test_windows_are_shared_too(catalog: Catalog) -> None:
    """gpt-oss: 18 of 36 layers keep 128 tokens, on each of 4 ranks 32 of them."""
    row = split(4, model="gpt-oss-120b", tensor_parallel=1, num_accelerators=4, software="sglang")
    tokens = 18 * (128 / 4 + (65_536 + 256) / 4)
    assert results(catalog, row).number("memory_kv_cache")[0] == 4 * 2 * 8 * 64 * tokens * 2.0


def test_shared_prompts_do_the_same_work_in_less_time(catalog: Catalog) -> None:
    """Attention and products of all ranks together are those of one; only the expansion of latent keys is repeated."""
    for model, repeated in (("Meta-Llama-3.1-70B", False), ("DeepSeek-V3", True)):
        whole = {"model": model, "prefill_tokens": 65_536}
        tables = [explain(plans(split(ranks, **whole)), catalog) for ranks in (1, 4)]
        work = []
        for table in tables:
            prefill = table.text("phase") == "prefill"
            names, amount = table.text("operator")[prefill], (table.number("flop") * table.number("calls"))[prefill]
            work.append(dict(zip(names.tolist(), amount.tolist(), strict=True)))
        for name, alone in work[0].items():
            if not alone > 0.0 or name in ("logits", "router"):
                continue
            share = work[1][name] * 4.0 / alone
            if repeated and name == "key and value expansion":
                assert share == pytest.approx(4.0), name
            elif name.startswith("experts"):
                assert 0.9 < share < 1.1, name  # the busiest rank has a little more than its share
            else:
                assert share == pytest.approx(1.0, rel=1e-9), name


def test_each_chunk_expands_the_keys_of_its_own_prompts_alone(catalog: Catalog) -> None:
    """Chunks of a prompt in four, half of it in the cache, expand 5, 6, 7 and 8 eighths, whatever its company."""
    for batch in (1, 16):
        row = {**split(1, model="DeepSeek-V3"), "shared_prefix": 0.5, "prefill_tokens": 8192, "batch_size": batch}
        table = explain(plans(row), catalog)
        expands = (table.text("operator") == "key and value expansion") & (table.text("phase") == "prefill")
        flop = (table.number("flop") * table.number("calls"))[expands].sum()
        tokens = batch * 65_536 * (5 + 6 + 7 + 8) / 8
        assert flop == pytest.approx(61 * 2.0 * tokens * 512 * 128 / 8 * (128 + 128), rel=1e-9)


def test_prefill_scales_and_decoding_reads_less(catalog: Catalog) -> None:
    result = results(catalog, *(split(ranks, prompt_length=131_072, batch_size=1) for ranks in (1, 2, 4, 8)))
    ttft, ranks = result.number("ttft"), np.array([1.0, 2.0, 4.0, 8.0])
    efficiency = ttft[0] / (ttft * ranks)
    assert (np.diff(efficiency) < 0.0).all()
    assert efficiency[-1] > 0.8
    attention = result.number("time_attention")
    assert (np.diff(attention) < 0.0).all()
    assert attention[-1] > 0.9 * attention[0] / 8.0
    assert (np.diff(result.number("time_communication")) > 0.0).all()
    assert (np.diff(result.number("max_batch_size")) > 0.0).all()


@pytest.mark.parametrize(("prompt", "measured", "off"), [(1_000_000, 77.0, 0.25), (131_072, 3.8, 0.45)])
def test_million_tokens_as_published(catalog: Catalog, prompt: int, measured: float, off: float) -> None:
    """Llama 3 405B on 128 H100 of 96 GB, a prompt on 16 servers (arXiv:2411.01783): 77 s, and 3.8 s for 128K."""
    row = {"model": "Meta-Llama-3.1-405B", "accelerator": "H100-96GB-HBM2e-500W", "num_accelerators": 128,
           "network": "DGX-H100", "context_parallel": 16, "prompt_length": prompt, "output_length": 1,
           "precision": "fp8", "kv_precision": "bf16", "prefill_tokens": 131_072}  # fmt: skip
    alone = {**row, "num_accelerators": 8, "context_parallel": 1}
    result = results(catalog, row, alone)
    assert result.number("ttft")[0] == pytest.approx(measured, rel=off)
    if prompt == 1_000_000:
        efficiency = result.number("ttft")[1] / (16 * result.number("ttft")[0])
        assert efficiency == pytest.approx(0.93, abs=0.08), "published parallel efficiency"


def test_a_ring_hides_behind_attention(catalog: Catalog) -> None:
    rows = (split(4, context_method=method) for method in ("ring", "all-gather"))
    ring_time, gathered = results(catalog, *rows).number("ttft")
    assert ring_time < gathered


def test_chunks_of_a_shared_prompt(catalog: Catalog) -> None:
    """A pass takes 8192 tokens of each rank: on 4 ranks a prompt of 65536 takes 2 passes instead of 8."""
    for ranks, passes in ((1, 8.0), (4, 2.0)):
        table = explain(plans(split(ranks, batch_size=1)), catalog)
        row = (table.text("phase") == "prefill") & (table.text("operator") == "logits")
        assert table.number("calls")[row].tolist() == [passes]


@pytest.mark.parametrize("model", ["Meta-Llama-3.1-70B", "DeepSeek-V3", "gpt-oss-120b"])
@pytest.mark.parametrize("method", ["ring", "all-gather"])
def test_operators_of_shared_prompts_add_up(catalog: Catalog, model: str, method: str) -> None:
    table = plans(split(2, model=model, context_method=method, prompt_length=3000))
    outcome, operators = evaluate(table, catalog), explain(table, catalog)
    phase = operators.text("phase")
    for name, result in (("prefill", "ttft"), ("decode", "tpot")):
        assert operators.number("exposed_time")[phase == name].sum() == pytest.approx(
            outcome.number(result)[0], rel=1e-9
        )
    assert "partial outputs of attention" in operators.text("operator").tolist()


def test_pools_may_share_prompts_in_one_of_them(catalog: Catalog) -> None:
    row = {**LONG, "batch_size": "", "mode": "disaggregated", "concurrency": 4, "num_accelerators": 24,
           "prefill_accelerators": 16}  # fmt: skip
    result = results(catalog, row, {**row, "prefill_context_parallel": 2})
    assert result.number("prefill_time")[1] < 0.6 * result.number("prefill_time")[0]
    of_one = result.number("memory_kv_cache") / np.ceil(result.number("running_batch"))
    assert of_one[1] == of_one[0]
    refused = results(catalog, {**LONG, "prefill_context_parallel": 2})
    assert "prefill context parallel needs mode disaggregated" in refused.text("reason")[0]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"context_parallel": 3, "num_accelerators": 16}, "tensor 8 x pipeline 1 x context 3 parallel is 24 ranks"),
        ({"context_parallel": 2, "num_accelerators": 16, "prompt_length": 3}, "needs two tokens of the prompt on each"),
        ({"output_variation": 0.5}, "output variation needs mode continuous or disaggregated"),
        ({"activation_precision": "fp8"}, "activation precision fp8 does not go with weights in bf16; use bf16, fp16"),
        ({"precision": "fp8", "activation_precision": "int8"}, "does not go with weights in fp8"),
        ({"precision": "int4", "activation_precision": "fp4"}, "does not go with weights in int4"),
        ({"precision": "fp4"}, "states no peak rate for precision fp4; give activation precision bf16"),
        ({"two_batch_overlap": "yes"}, "two batch overlap needs a mixture of experts and data parallel attention"),
        ({"model": "DeepSeek-V3", "expert_dispatch": "nodes"}, "expert dispatch nodes needs a mixture of experts and"),
    ],
)
def test_refusals(catalog: Catalog, row: dict[str, Any], sentence: str) -> None:
    result = results(catalog, row)
    assert sentence in result.text("reason")[0]
    assert math.isnan(result.number("latency")[0])


def test_products_of_experts_are_those_of_the_busiest_rank(catalog: Catalog) -> None:
    """Mixtral: 1000 tokens choose 2 of 8 experts. Together 250 each; the fullest of 8 ranks has more.

    The mean of the largest of eight normal deviates is 1.4236 (H. L. Harter, Biometrika 48, 1961, table 1); their
    variance is that of chance and that of experts that routers prefer.
    """
    rows = [{"model": "Mixtral-8x7B-v0.1", "batch_size": 1, "expert_parallel": ranks} for ranks in (1, 8)]
    shapes = []
    for row in rows:
        operators = explain(plans(row), catalog)
        at = operators.text("operator").tolist().index("experts up")
        shapes.append([float(operators.number(name)[at]) for name in ("m", "n", "k", "batch")])
    assert shapes[0] == [250.0, 2 * 14336 / 8, 4096.0, 8.0]
    key = (np.array([word]) for word in ("hopper", "bf16", "vllm"))
    share = float(catalog.calibration.constants("serving_experts", *key)[0]["favoured_share"][0, 0])
    visits = np.array([3.0 - 3.0 * share + share**2, (1.0 - share) ** 2])
    spread = np.sqrt(250.0 + 250.0**2 * (share * visits[0] ** 2 + (1.0 - share) * visits[1] ** 2 - 1.0))
    assert shapes[1] == [pytest.approx(250.0 + 1.4236 * spread, rel=1e-3), 2 * 14336, 4096.0, 1.0]


# Exchange with experts

WIDE_EXPERTS = {"model": "DeepSeek-V3", "accelerator": "H800-SXM-80GB", "network": "DGX-H100", "num_accelerators": 32,
                "tensor_parallel": 32, "data_parallel_attention": 32, "expert_parallel": 32, "precision": "fp8",
                "prompt_length": 4096, "output_length": 2}  # fmt: skip


def of_phase(catalog: Catalog, row: dict[str, Any], phase: str, name: str, column: str) -> float:
    table = explain(plans(row), catalog)
    picked = (table.text("phase") == phase) & (table.text("operator") == name)
    values = table.number(column)[picked]
    return float(values[0]) if len(values) else 0.0


def test_tokens_cross_to_a_node_once(catalog: Catalog) -> None:
    """Eight experts on 32 ranks of 4 nodes: 7.2 ranks and 3.6 nodes a token, between nodes links are narrow."""
    row = {**WIDE_EXPERTS, "batch_size": 128}
    ranks, nodes = ({**row, "expert_dispatch": way} for way in ("ranks", "nodes"))
    each, once = (of_phase(catalog, one, "prefill", "exchange with experts", "time") for one in (ranks, nodes))
    reached = 32 * (1 - (31 / 32) ** 8), 4 * (1 - (3 / 4) ** 8)
    assert reached == pytest.approx((7.17, 3.60), abs=0.01)
    assert reached[1] / reached[0] * 0.6 < once / each < 1.0
    inside = {**row, "num_accelerators": 8, "tensor_parallel": 8, "data_parallel_attention": 8, "expert_parallel": 8}
    same = results(catalog, *({**inside, "expert_dispatch": way} for way in ("ranks", "nodes")))
    assert same.number("ttft")[0] == same.number("ttft")[1], "there is nothing to save inside a node"


def test_half_of_a_batch_computes_while_the_other_is_sent(catalog: Catalog) -> None:
    row = {**WIDE_EXPERTS, "batch_size": 128}
    apart, behind = ({**row, "two_batch_overlap": flag} for flag in ("no", "yes"))
    result = results(catalog, apart, behind)
    assert result.number("ttft")[1] < result.number("ttft")[0]
    sent = of_phase(catalog, apart, "prefill", "exchange with experts", "total_time")
    saved = result.number("ttft")[0] - result.number("ttft")[1]
    assert 0.1 * sent < saved < sent, "no more than the exchange can be hidden"
    work = [np.nansum((table.number("flop") * table.number("calls"))[table.text("phase") == "prefill"])
            for table in (explain(plans(one), catalog) for one in (apart, behind))]  # fmt: skip
    assert work[1] == pytest.approx(work[0], rel=0.02), "the same products, in two halves"
    one = {**WIDE_EXPERTS, "batch_size": 32}
    steps = results(catalog, *({**one, "two_batch_overlap": flag} for flag in ("no", "yes"))).number("tpot")
    assert steps[0] == steps[1], "a sequence of each copy cannot be cut in two"
    memory = result.number("memory")
    assert memory[0] == memory[1]


def test_halves_of_a_small_batch_read_the_weights_twice(catalog: Catalog) -> None:
    row = {**WIDE_EXPERTS, "batch_size": 64, "output_length": 500}
    result = results(catalog, *({**row, "two_batch_overlap": flag} for flag in ("no", "yes")))
    assert result.number("time_matrix")[1] > 1.2 * result.number("time_matrix")[0]
    assert result.number("time_communication")[1] < result.number("time_communication")[0]


def test_a_pool_that_sends_no_tokens_takes_no_part(catalog: Catalog) -> None:
    """A prefill pool of plain tensor parallel beside a decoding pool with copies of the attention."""
    row = {**WIDE_EXPERTS, "mode": "disaggregated", "batch_size": "", "concurrency": 512, "num_accelerators": 40,
           "prefill_accelerators": 8, "prefill_tensor_parallel": 8, "prefill_data_parallel_attention": 1,
           "prefill_expert_parallel": 8, "accelerator": "H200-SXM-141GB"}  # fmt: skip
    result = results(catalog, row, {**row, "two_batch_overlap": "yes", "expert_dispatch": "nodes"})
    assert not np.isnan(result.number("latency")).any(), result.text("reason")
    assert result.number("prefill_time")[0] == result.number("prefill_time")[1]
    assert result.number("tpot")[0] != result.number("tpot")[1]
    neither = {**row, "data_parallel_attention": 1, "two_batch_overlap": "yes"}
    assert "two batch overlap needs a mixture of experts" in results(catalog, neither).text("reason")[0]


def test_operators_of_overlapped_batches_add_up(catalog: Catalog) -> None:
    for way in ("ranks", "nodes"):
        table = plans({**WIDE_EXPERTS, "batch_size": 256, "two_batch_overlap": "yes", "expert_dispatch": way})
        outcome, operators = evaluate(table, catalog), explain(table, catalog)
        phase = operators.text("phase")
        for name, result in (("prefill", "ttft"), ("decode", "tpot")):
            assert operators.number("exposed_time")[phase == name].sum() == pytest.approx(
                outcome.number(result)[0], rel=1e-9
            )


# Graphs


def test_without_graphs_short_kernels_wait_for_the_host(catalog: Catalog) -> None:
    """Llama 3.1 8B on H100: published 8.4 ms a step in eager mode and 5.1 ms as a graph."""
    row = {"model": "Meta-Llama-3.1-8B", "accelerator": "H100-SXM-80GB", "num_accelerators": 1, "tensor_parallel": 1,
           "prompt_length": 512, "output_length": 128, "batch_size": 1}  # fmt: skip
    graph, eager = results(catalog, row, {**row, "graphs": "no"}).number("tpot")
    assert graph == pytest.approx(5.1e-3, rel=0.4)
    assert eager == pytest.approx(8.4e-3, rel=0.25)
    large = {**row, "batch_size": 256, "prompt_length": 2000}
    many = results(catalog, large, {**large, "graphs": "no"})
    assert many.number("tpot")[0] == many.number("tpot")[1], "long kernels hide their launches"
    big = {"model": "Meta-Llama-3.1-405B", "precision": "fp8", "batch_size": 64}
    result = results(catalog, big, {**big, "graphs": "no"})
    assert result.number("ttft")[0] == result.number("ttft")[1], "a prefill has no graph anyway"
    table = explain(plans({**row, "graphs": "no"}), catalog)
    decode = table.text("phase") == "decode"
    assert table.number("exposed_time")[decode].sum() == pytest.approx(eager, rel=1e-9)


# Drafting, prefixes, prompts of unequal length


def test_layers_to_draft_with_are_held_too(catalog: Catalog) -> None:
    """One more layer of 80: its weights, and its share of every cache."""
    plain, drafting = ({"batch_size": 4, "draft_tokens": tokens} for tokens in (0, 2))
    result = results(catalog, plain, drafting)
    layer = (2 * 8192 * 128 * (64 + 8) + 3 * 8192 * 28672) / 8 * 2.0
    weights, cache = result.number("memory_weights"), result.number("memory_kv_cache")
    assert weights[1] - weights[0] == pytest.approx(layer, rel=1e-3)
    assert cache[1] == pytest.approx(cache[0] * 81 / 80)
    none = results(catalog, plain, {**plain, "draft_layers": 20})
    assert none.number("memory_weights")[0] == none.number("memory_weights")[1], "nothing is drafted"


def test_keys_of_a_cached_prefix_are_expanded_again(catalog: Catalog) -> None:
    """Latent attention keeps what keys and values are made of: a prefill makes them of the whole prompt."""
    row = {"model": "DeepSeek-V3", "batch_size": 1, "prompt_length": 8000}
    for hit in (0.0, 0.75):
        table = explain(plans({**row, "shared_prefix": hit}), catalog)
        prefill = table.text("phase") == "prefill"
        rows = {name: table.number("m")[prefill & (table.text("operator") == name)][0]
                for name in ("key and value expansion", "query expansion")}  # fmt: skip
        assert rows == {"key and value expansion": 8000.0, "query expansion": 8000.0 * (1 - hit)}


def test_attention_to_prompts_of_unequal_length_is_that_of_their_squares(catalog: Catalog) -> None:
    """Prompts of 5000 and 15000 in turn: mean of the squares is 1.25 times the square of the mean."""
    row = {"mode": "continuous", "concurrency": 4, "prompt_length": 10_000}
    equal, mixed = (of_phase(catalog, {**row, "prompt_variation": variation}, "prefill", "attention", "flop")
                    for variation in (0.0, 0.5))  # fmt: skip
    assert mixed / equal == pytest.approx((5.0**2 + 15.0**2) / 2 / 10.0**2)


# Outputs of unequal length


def test_requests_that_run_are_longer_than_those_that_come() -> None:
    """Outputs of 100 and 300 in turn: at a random step 3 of 4 running requests are long."""
    outputs = np.array([100.0, 300.0])
    mean, variation = outputs.mean(), outputs.std() / outputs.mean()
    met = (outputs * outputs).sum() / outputs.sum()
    assert met == pytest.approx(mean * (1.0 + variation**2))
    assert met == 0.25 * 100.0 + 0.75 * 300.0


def test_spread_of_outputs(catalog: Catalog) -> None:
    row = {"mode": "continuous", "concurrency": 32}
    result = results(catalog, *({**row, "output_variation": variation} for variation in (0.0, 0.5, 1.0)))
    plain = results(catalog, row)
    for name, values in plain.columns.items():
        if values.dtype == np.float64:
            assert values[0].tobytes() == result.number(name)[0].tobytes(), name
    assert result.number("memory_kv_cache").tolist() == [
        pytest.approx(32 * 2 * 80 * 128 * 2.0 * math.ceil(1000 + 500 * (1 + variation**2)))
        for variation in (0.0, 0.5, 1.0)
    ]
    for name in ("tpot", "time_attention", "tpot_ninety_ninth"):
        assert (np.diff(result.number(name)) > 0.0).all(), name
    tail = result.number("tpot_ninety_ninth") - result.number("tpot_median")
    assert (np.diff(tail) > 0.0).all(), "few tokens average the prefills that interrupt them worse"
    assert (np.diff(result.number("max_batch_size")) < 0.0).all()
    in_flight = result.number("latency") * result.number("tokens_per_second") / 500.0
    np.testing.assert_allclose(in_flight, 32.0, rtol=1e-9, err_msg="Little's law")


def test_spread_of_prompts_delays_the_first_token(catalog: Catalog) -> None:
    row = {"mode": "continuous", "request_rate": 2.0}
    result = results(catalog, *({**row, "prompt_variation": variation} for variation in (0.0, 0.5, 1.5)))
    for name in ("ttft", "ttft_ninetieth", "ttft_ninety_ninth"):
        assert (np.diff(result.number(name)) > 0.0).all(), name


# Precisions

WEIGHTS = {"fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5625, "int4": 0.5625}
RATES = {"bf16": "bf16", "fp16": "bf16", "fp8": "fp8", "int8": "int8", "fp4": "fp4"}
PAIRS = [(name, product) for name in WEIGHTS for product in ("", *PRECISIONS[name].products) if product != "fp32"]


@pytest.mark.parametrize(("precision", "activation"), PAIRS)
def test_bytes_and_rates_of_every_pair(catalog: Catalog, precision: str, activation: str) -> None:
    """One product of a decode step against its bytes: weights as stored, inputs as multiplied, outputs of 16 bits."""
    row = {"precision": precision, "activation_precision": activation, "accelerator": "B200-SXM-180GB"}
    table = explain(plans({**row, "batch_size": 16}), catalog)
    picked = (table.text("phase") == "decode") & (table.text("operator") == "mlp up")
    product = activation or {"int4": "bf16"}.get(precision, precision)
    m, n, k = 16, 2 * 28672 / 8, 8192
    assert table.number("flop")[picked][0] == 2 * m * n * k
    assert table.number("traffic")[picked][0] == WEIGHTS[precision] * n * k + WEIGHTS[product] * m * k + 2 * m * n
    result = results(catalog, row)
    matrices = 80 * (2 * 8192 * 128 * (64 + 8) + 3 * 8192 * 28672)
    others = 2.0 * (2 * 128256 * 8192 / 8 + 80 * 2 * 8192)
    assert result.number("memory_weights")[0] == pytest.approx(matrices / 8 * WEIGHTS[precision] + others, rel=1e-4)
    # A large batch is bound by arithmetic: at the rate of the product, whatever the weights are stored in.
    many = {**row, "prompt_length": 8192, "batch_size": 1, "output_length": 2}
    same = {**many, "precision": {"fp16": "bf16"}.get(product, product), "activation_precision": ""}
    mixed, plain = (explain(plans(one), catalog) for one in (many, same))
    times = [one.number("time")[one.text("operator") == "mlp up"][0] for one in (mixed, plain)]
    assert times[0] == pytest.approx(times[1], rel=0.05)


def test_weight_only_quantisation_helps_one_sequence_and_not_many(catalog: Catalog) -> None:
    """Reading weights is what a batch of 1 waits for; the prefill computes in 16 bits as before."""
    rows = [
        {"precision": precision, "activation_precision": "bf16", "kv_precision": "bf16", "batch_size": 1}
        for precision in ("bf16", "fp8", "int4")
    ]
    result = results(catalog, *rows)
    assert (np.diff(result.number("tpot")) < 0.0).all()
    time = result.number("time_matrix")
    assert time[2] < 0.65 * time[0]
    assert result.number("ttft") == pytest.approx(result.number("ttft")[0], rel=0.1)


@pytest.mark.parametrize(("concurrency", "measured"), [(4, 3.68), (8, 4.00)])
def test_fp4_weights_on_hopper_are_widened_as_int4_weights(catalog: Catalog, concurrency: int, measured: float) -> None:
    """gpt-oss-120b in MXFP4 on eight H100 by vLLM (InferenceX issue 828): 3.68 and 4.00 ms per token."""
    row = {
        "model": "gpt-oss-120b", "accelerator": "H100-SXM-80GB", "num_accelerators": 8, "tensor_parallel": 8,
        "software": "vllm", "prompt_length": 1024, "output_length": 8192, "activation_precision": "bf16",
        "mode": "continuous", "concurrency": concurrency, "batch_size": None,
    }  # fmt: skip
    result = results(catalog, {**row, "precision": "fp4"}, {**row, "precision": "int4"})
    times = result.number("tpot")
    assert times[0] == times[1] == pytest.approx(measured / 1e3, rel=0.05)
    on_blackwell = results(
        catalog, *({**row, "accelerator": "B200-SXM-180GB", "precision": p} for p in ("fp4", "int4"))
    )
    assert on_blackwell.number("tpot")[0] != on_blackwell.number("tpot")[1]


@pytest.mark.parametrize(
    ("kv_precision", "size"),
    [("fp32", 4.0), ("fp16", 2.0), ("bf16", 2.0), ("fp8", 1.0), ("int8", 1.0), ("fp4", 0.5625), ("int4", 0.5625)],
)
@pytest.mark.parametrize(
    ("model", "elements"),
    [("Meta-Llama-3.1-70B", 2 * 80 * 128 * 1500), ("DeepSeek-V3", 61 * 576 * 1500),
     ("gpt-oss-120b", 2 * 64 * 18 * (128 + 1500))],
)  # fmt: skip
def test_cache_in_every_precision(catalog: Catalog, model: str, elements: int, kv_precision: str, size: float) -> None:
    row = {"model": model, "kv_precision": kv_precision, "batch_size": 2, "software": "sglang"}
    assert results(catalog, row).number("memory_kv_cache")[0] == 2 * elements * size


def test_cache_follows_the_products(catalog: Catalog) -> None:
    """FP4 weights widened to 16 bits leave the cache in 16 bits; multiplied in FP8 they have it in FP8."""
    pairs = (("fp8", ""), ("fp8", "bf16"), ("int4", ""), ("int4", "fp8"))
    rows = [{"precision": weights, "activation_precision": product} for weights, product in pairs]
    sizes = results(catalog, *rows).number("memory_kv_cache") / (2 * 80 * 128 * 1500)
    assert sizes.tolist() == [1.0, 2.0, 2.0, 1.0]


# Rows alone and together

WIDE = [
    split(2),
    split(4, model="DeepSeek-V3", precision="fp8"),
    split(2, model="gpt-oss-120b", context_method="all-gather"),
    {"mode": "continuous", "concurrency": 64, "output_variation": 0.7, "prompt_variation": 0.4},
    {"mode": "continuous", "request_rate": 1.0, "output_variation": 0.7},
    {"mode": "disaggregated", "concurrency": 32, "num_accelerators": 32, "prefill_context_parallel": 2},
    {"precision": "int4", "activation_precision": "fp8", "batch_size": 8},
    {"batch_size": 8},
    {**WIDE_EXPERTS, "batch_size": 128, "two_batch_overlap": "yes", "expert_dispatch": "nodes"},
    {**WIDE_EXPERTS, "batch_size": 128, "two_batch_overlap": "no", "expert_dispatch": "ranks"},
    {"draft_tokens": 2, "batch_size": 4, "shared_prefix": 0.5},
    {"graphs": "no", "batch_size": 2},
]


def test_rows_alone_and_in_company_are_the_same_to_the_bit(catalog: Catalog) -> None:
    together = results(catalog, *(WIDE * 20))
    for row, plan in enumerate(WIDE):
        alone = results(catalog, plan)
        assert not math.isnan(alone.number("latency")[0]), alone.text("reason")[0]
        for name, values in together.columns.items():
            if values.dtype == np.float64:
                for again in (row, row + len(WIDE) * 19):
                    assert values[again].tobytes() == alone.number(name)[0].tobytes(), name


def test_splitting_a_prompt_of_any_architecture(catalog: Catalog) -> None:
    """More ranks never slow a long prefill down, whatever attends to it."""
    models = ("Meta-Llama-3.1-70B", "DeepSeek-V3", "gpt-oss-120b", "Llama-4-Scout-17B-16E-Instruct")
    for model, method in itertools.product(models, ("ring", "all-gather")):
        rows = [split(ranks, model=model, context_method=method, batch_size=1) for ranks in (1, 2, 4)]
        ttft = results(catalog, *rows).number("ttft")
        assert (np.diff(ttft) < 0.0).all(), (model, method, ttft)
