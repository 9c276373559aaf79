"""What any serving must keep: floors of bytes and arithmetic, limits with known answers, and options that matter."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from xlperf.calibrate.fitter import FittedConstant, calibration_table, joined_tables
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate, explain

ARCHITECTURES = ("Meta-Llama-3.1-70B", "DeepSeek-V3", "gpt-oss-120b", "Qwen3-30B-A3B", "Llama-4-Scout-17B-16E-Instruct")
EVERY = pytest.mark.parametrize("model", ARCHITECTURES)
QUANTILES = ("median", "ninetieth", "ninety_ninth")


def plans(*rows: dict[str, Any]) -> Table:
    base = {"model": "Meta-Llama-3.1-70B", "accelerator": "H200-SXM-141GB", "num_accelerators": 8,
            "tensor_parallel": 8, "prompt_length": 1000, "output_length": 500}  # fmt: skip
    full = [{**base, **row} for row in rows]
    header = list(dict.fromkeys(name for row in full for name in row))
    cells = [[row.get(name, "") for name in header] for row in full]
    return table_from_rows("inference", header, cells, lambda row, column: f"row {row} {column}")


def results(catalog: Catalog, *rows: dict[str, Any]) -> Table:
    return evaluate(plans(*rows), catalog)


def rising(values: np.ndarray, by: float = 0.0) -> bool:
    return bool((np.diff(values) > by * np.abs(values[:-1]) - 1e-12).all())


# Floors


@EVERY
@pytest.mark.parametrize(("precision", "size", "peak"), [("bf16", 2.0, 989e12), ("fp8", 1.0, 1979e12)])
def test_no_phase_beats_its_operators_at_the_datasheet(
    catalog: Catalog, model: str, precision: str, size: float, peak: float
) -> None:
    """Prefill takes at least its FLOP at the dense peak, a step at least its bytes at the peak bandwidth."""
    row = {"model": model, "precision": precision, "kv_precision": precision, "batch_size": 1}
    result, operators = results(catalog, row), explain(plans(row), catalog)
    prefill = operators.text("phase") == "prefill"
    flop = np.nansum((operators.number("flop") * operators.number("calls"))[prefill])
    assert result.number("ttft")[0] > flop / peak
    local = np.isin(operators.text("family"), ("gemm", "attention_decode", "attention_latent"))
    moved = np.nansum((operators.number("traffic") * operators.number("calls"))[~prefill & local])
    assert result.number("tpot")[0] > moved / 4.8e12
    # What a step moves is at least the weights that one token uses and its cache.
    held = result.number("memory_weights")[0]
    if "B-A" not in model and "oss" not in model and "DeepSeek" not in model and "E-" not in model:
        assert moved > 0.9 * held
    assert moved > result.number("memory_kv_cache")[0] * (1000 + 250) / 1500 * 0.9 or "oss" in model or "E-" in model


@EVERY
def test_more_of_anything_takes_longer(catalog: Catalog, model: str) -> None:
    for column, values in (
        ("prompt_length", (100, 1000, 10_000, 100_000)),
        ("output_length", (2, 50, 500, 5000)),
        ("batch_size", (1, 2, 16, 64)),
    ):
        result = results(catalog, *({"model": model, column: value} for value in values))
        # A short prompt waits for the host that launches its kernels: hardly longer ones take hardly longer.
        assert rising(result.number("latency"), 0.0001), column
        assert rising(result.number("memory")), column


@pytest.mark.parametrize("mode", ["static", "continuous", "disaggregated"])
def test_twice_the_replicas_serve_twice_the_requests_at_the_same_speed(catalog: Catalog, mode: str) -> None:
    row = {"mode": mode, "tensor_parallel": 4, "num_accelerators": 16, "concurrency": 64}
    more = {**row, "num_accelerators": 32, "concurrency": 128}
    result = results(catalog, row, more)
    assert result.number("tpot")[0] == pytest.approx(result.number("tpot")[1], rel=1e-3)
    rate = result.number("tokens_per_second")
    assert rate[1] / rate[0] == pytest.approx(2.0, rel=0.02)
    assert result.number("memory")[0] == result.number("memory")[1]


def test_cost_and_energy_of_a_request_are_those_of_its_time(catalog: Catalog) -> None:
    """Input and output tokens of a static batch together pay for all accelerators while it lasts."""
    result = results(catalog, {"batch_size": 16}, {"batch_size": 16, "output_length": 5000})
    paid = result.number("cost_per_million_input_tokens") * 1000 + result.number(
        "cost_per_million_output_tokens"
    ) * np.array([500.0, 5000.0])
    hour = paid * 16 / result.number("latency")
    assert hour[0] == pytest.approx(hour[1], rel=1e-9)
    power = result.number("energy_per_token") * result.number("tokens_per_second")
    assert power == pytest.approx(result.number("grid_power"), rel=1e-9)
    assert power[1] < power[0]  # the longer output decodes for longer, which draws less than prompts
    assert result.number("tokens_per_second_per_megawatt") * power == pytest.approx(result.number("tokens_per_second"))


# Load


def test_quantiles_are_ordered_in_every_mode(catalog: Catalog) -> None:
    random = np.random.default_rng(5)
    rows = []
    for _ in range(150):
        mode = str(random.choice(["static", "continuous", "disaggregated"]))
        row: dict[str, Any] = {"mode": mode, "model": str(random.choice(ARCHITECTURES)), "num_accelerators": 16,
                               "prompt_length": int(random.integers(10, 20_000)),
                               "output_length": int(random.integers(2, 3000)), "precision": "fp8"}  # fmt: skip
        if mode == "continuous" and random.random() < 0.5:
            row["request_rate"] = float(random.choice([0.001, 0.01, 0.1]))
        else:
            row["concurrency"] = int(random.integers(1, 200))
        if mode != "static":
            row |= {"prompt_variation": float(random.uniform(0, 2)), "output_variation": float(random.uniform(0, 2))}
        rows.append(row)
    result = results(catalog, *rows)
    legal = ~np.isnan(result.number("latency"))
    assert legal.sum() > 120
    for name in ("ttft", "tpot"):
        values = [result.number(f"{name}_{word}")[legal] for word in QUANTILES]
        assert (values[0] > 0.0).all()
        assert (values[0] <= values[1] + 1e-15).all(), name
        assert (values[1] <= values[2] + 1e-15).all(), name


def test_a_rare_request_is_served_alone(catalog: Catalog) -> None:
    """Far below capacity nobody waits: first token and time per token of a single request."""
    rare = results(catalog, {"mode": "continuous", "request_rate": 1e-4})
    alone = results(catalog, {"mode": "continuous", "concurrency": 1})
    assert rare.number("ttft")[0] == pytest.approx(alone.number("ttft")[0], rel=0.02)
    assert rare.number("tpot")[0] == pytest.approx(alone.number("tpot")[0], rel=0.05)
    assert rare.number("running_batch")[0] == pytest.approx(1e-4 * rare.number("decode_time")[0], rel=0.05)


def test_waits_grow_without_bound_towards_the_largest_rate(catalog: Catalog) -> None:
    row = {"mode": "continuous", "prompt_length": 4000}
    most = results(catalog, {**row, "request_rate": 1.0}).number("max_request_rate")[0]
    shares = (0.3, 0.6, 0.9, 0.99)
    result = results(catalog, *({**row, "request_rate": most * share} for share in shares))
    assert rising(result.number("ttft_ninety_ninth"), 0.01)
    assert rising(result.number("latency"), 0.05)
    beyond = results(catalog, {**row, "request_rate": 2.0 * most})
    assert "is more than the deployment can serve" in beyond.text("reason")[0]
    np.testing.assert_allclose(
        result.number("tokens_per_second"), [500 * most * share for share in shares], err_msg="what comes is served"
    )


@pytest.mark.parametrize("mode", ["continuous", "disaggregated"])
@pytest.mark.parametrize("model", ["Meta-Llama-3.1-70B", "DeepSeek-V3"])
def test_the_largest_rate_is_a_limit_of_the_deployment_and_not_of_the_load(
    catalog: Catalog, mode: str, model: str
) -> None:
    row = {"mode": mode, "model": model, "precision": "fp8", "num_accelerators": 16}
    counts = [1, 4, 16, 64, 256, 1024, 4096, 16_384]
    result = results(catalog, *({**row, "concurrency": count} for count in counts))
    most = result.number("max_request_rate")
    np.testing.assert_allclose(most, most[0], rtol=0.05)
    rates = result.number("tokens_per_second") / 500.0
    assert (rates <= most * (1 + 1e-12)).all()
    assert rates.max() > 0.85 * most[0], "enough requests reach it"


def test_a_full_cache_caps_the_running_batch(catalog: Catalog) -> None:
    row = {"mode": "continuous", "model": "Meta-Llama-3.1-405B", "precision": "fp8", "prompt_length": 20_000}
    result = results(catalog, *({**row, "concurrency": count} for count in (1, 8, 64, 512)))
    room = result.number("max_batch_size")[0]
    assert room < 512
    assert (result.number("running_batch") <= room).all()
    assert result.number("queue_time")[-1] > 0.0
    assert result.number("queue_time")[0] == 0.0


# Options change what they should, and only that


@EVERY
def test_a_prefix_in_the_cache_shortens_the_first_token_and_is_held_once(catalog: Catalog, model: str) -> None:
    rows = ({"model": model, "prompt_length": 8000, "batch_size": 4, "shared_prefix": hit} for hit in (0, 0.5, 0.9, 1))
    result = results(catalog, *rows)
    assert rising(-result.number("ttft"))
    assert rising(-result.number("memory_kv_cache"))
    for name in ("tpot", "memory_weights"):
        assert len(set(result.number(name).tolist())) == 1, name


def test_smaller_chunks_take_longer_and_less_memory(catalog: Catalog) -> None:
    rows = (
        {"prompt_length": 30_000, "batch_size": 2, "prefill_tokens": tokens} for tokens in (60_000, 8192, 2048, 512)
    )
    result = results(catalog, *rows)
    assert rising(result.number("ttft"))
    assert rising(-result.number("memory_activations"))
    assert len(set(result.number("tpot").tolist())) == 1


@pytest.mark.parametrize("batch", [1, 32])
def test_speculation_helps_as_much_as_it_is_accepted(catalog: Catalog, batch: int) -> None:
    plain = results(catalog, {"batch_size": batch}).number("tpot")[0]
    rates = (0.0, 0.3, 0.6, 0.9, 1.0)
    rows = ({"batch_size": batch, "draft_tokens": 3, "acceptance_rate": rate} for rate in rates)
    tpot = results(catalog, *rows).number("tpot")
    assert rising(-tpot, 0.01)
    assert tpot[0] > plain
    assert tpot[-1] > plain / 4.0, "four tokens of a step cannot cost less than a quarter of it"
    deep = results(catalog, {"batch_size": batch, "draft_tokens": 3, "acceptance_rate": 0.6, "draft_layers": 20})
    assert deep.number("tpot")[0] > tpot[2], "a larger draft model costs more"


def test_drafts_of_a_look_up_take_no_pass(catalog: Catalog) -> None:
    """N-grams of the prompt: a step of six tokens of which none is accepted lasts as long as one of six tokens."""
    looked_up = {"batch_size": 1, "draft_tokens": 5, "acceptance_rate": 0.0, "draft_layers": 0}
    plain, drafted, layered = results(
        catalog, {"batch_size": 1}, looked_up, {**looked_up, "draft_layers": 1}
    ).number("tpot")  # fmt: skip
    assert plain < drafted < 1.05 * plain < layered


def test_drafts_of_an_engine_take_time_of_their_own(catalog: Catalog) -> None:
    """C32: 1.36 times as fast with 2 drafted tokens, 1.89 a step, and 1.29 with 4, 2.08 a step [vllm PR 16035]."""
    base = {"model": "Meta-Llama-3.1-8B", "num_accelerators": 1, "tensor_parallel": 1, "software": "vllm",
            "prompt_length": 75, "output_length": 200, "concurrency": 1, "mode": "continuous"}  # fmt: skip
    drafted = ((2, 0.568), (4, 0.5416))
    rows = ({**base, "draft_tokens": tokens, "acceptance_rate": rate} for tokens, rate in drafted)
    plain, two, four = results(catalog, base, *rows).number("tpot")
    assert plain / two == pytest.approx(1.36, rel=0.06)
    assert plain / four == pytest.approx(1.29, rel=0.07)


@pytest.mark.parametrize(
    ("model", "accelerator", "software", "lengths", "measured"),
    [  # one request on eight accelerators [ms]
        ("GLM-5.1", "MI300X", "sglang", (500, 500), 28.4),  # SGLang pull request 30812
        ("GLM-5.1", "MI300X", "vllm", (180_000, 4000), 32.7),  # vLLM pull request 39168
        ("DeepSeek-V3.2", "H20-96GB", "vllm", (2048, 1024), 33.0),  # C28: vLLM issue 30832
    ],
)
def test_an_index_takes_small_kernels(
    catalog: Catalog, model: str, accelerator: str, software: str, lengths: tuple[int, int], measured: float
) -> None:
    plan = {"model": model, "accelerator": accelerator, "num_accelerators": 8, "tensor_parallel": 8, "concurrency": 1,
            "software": software, "mode": "continuous", "precision": "fp8"}  # fmt: skip
    result = results(catalog, {**plan, "prompt_length": lengths[0], "output_length": lengths[1]})
    assert 0.66 * measured < 1e3 * result.number("tpot")[0] < 1.15 * measured
    assert 1e3 * result.number("tpot_low")[0] < measured < 1e3 * result.number("tpot_high")[0]


def test_no_draft_is_no_speculation(catalog: Catalog) -> None:
    result = results(catalog, {"batch_size": 4}, {"batch_size": 4, "draft_tokens": 0, "acceptance_rate": 0.9})
    assert result.number("tpot")[0] == result.number("tpot")[1]


def test_each_pool_is_its_own_accelerator(catalog: Catalog) -> None:
    """A B200 prefills faster; the decoding pool does not notice but for the time that its requests are elsewhere."""
    row = {"mode": "disaggregated", "num_accelerators": 16, "concurrency": 8, "prefill_accelerators": 8}
    long = {**row, "prompt_length": 16_000}
    same, newer = results(catalog, long, {**long, "prefill_accelerator": "B200-SXM-180GB"}).columns["prefill_time"]
    assert newer < 0.85 * same
    result = results(catalog, row, {**row, "prefill_accelerator": "B200-SXM-180GB"})
    for name in ("memory", "memory_capacity", "max_batch_size"):
        assert result.number(name)[0] == result.number(name)[1], name
    assert result.number("tpot")[1] == pytest.approx(result.number("tpot")[0], rel=0.1)


def test_caches_travel_at_the_speed_of_the_network(catalog: Catalog) -> None:
    """Keys and values of 100,000 tokens: 80 layers x 2 x 1 head x 128 x 2 bytes on each of 8 ranks."""
    row = {"mode": "disaggregated", "num_accelerators": 16, "concurrency": 1, "prompt_length": 100_000}
    networks = catalog.tables["networks"]
    slow = Table("networks", {
        **networks.columns,
        "link_bandwidth": np.where(networks.number("tier") > 1.0, 1e9, networks.number("link_bandwidth")),
    })  # fmt: skip
    fast, slower = (evaluate(plans(row), one).number("ttft")[0] for one in (catalog, catalog.with_tables([slow])))
    assert 1e9 * (slower - fast) == pytest.approx(80 * 2 * 128 * 2.0 * 100_000, rel=0.35)


def test_unequal_pools_serve_what_the_smaller_one_can(catalog: Catalog) -> None:
    row = {"mode": "disaggregated", "num_accelerators": 32, "concurrency": 400, "tensor_parallel": 4,
           "prompt_length": 8000, "output_length": 200}  # fmt: skip
    rate = results(catalog, *({**row, "prefill_accelerators": count} for count in (4, 8, 16, 24, 28)))
    tokens = rate.number("tokens_per_second")
    best = int(np.argmax(tokens))
    assert best > 0
    assert rising(tokens[: best + 1])
    assert rising(-tokens[best:])


def test_switches_that_add_up_spare_the_links(catalog: Catalog) -> None:
    networks = catalog.tables["networks"]
    adding = Table("networks", {**networks.columns, "in_network_reduction": np.ones(len(networks))})
    plain = Table("networks", {**networks.columns, "in_network_reduction": np.zeros(len(networks))})
    row = plans({"batch_size": 512, "prompt_length": 8000})
    with_, without = (
        evaluate(row, catalog.with_tables([table])).number("time_communication")[0] for table in (adding, plain)
    )
    assert with_ <= without
    prefill = [evaluate(row, catalog.with_tables([table])).number("ttft")[0] for table in (adding, plain)]
    assert prefill[0] < prefill[1]


def test_windows_stop_growing(catalog: Catalog) -> None:
    """Half of the layers of gpt-oss see 128 tokens: beyond them only the other half reads more."""
    rows = ({"model": "gpt-oss-120b", "prompt_length": length, "output_length": 2, "batch_size": 64}
            for length in (10_000, 20_000, 40_000))  # fmt: skip
    tables = [explain(plans(row), catalog) for row in rows]
    seen = {}
    for name in ("attention", "local attention"):
        picked = [(table.text("phase") == "decode") & (table.text("operator") == name) for table in tables]
        seen[name] = [table.number("traffic")[mask][0] for table, mask in zip(tables, picked, strict=True)]
    assert seen["local attention"][0] == seen["local attention"][2]
    assert seen["attention"][2] == pytest.approx(4.0 * seen["attention"][0], rel=1e-3)


def test_latent_cache_is_small(catalog: Catalog) -> None:
    """DeepSeek-V3: 70,272 bytes a token in 16 bits; its 128 heads expanded would be 61 x 128 x (192 + 128) x 2."""
    result = results(catalog, {"model": "DeepSeek-V3", "precision": "fp8", "kv_precision": "bf16", "batch_size": 1})
    per_token = result.number("memory_kv_cache")[0] / 1500
    assert per_token == 61 * 576 * 2.0 == 70_272.0
    assert per_token < 61 * 128 * (192 + 128) * 2.0 / 70.0


def test_a_step_reads_more_experts_with_more_tokens_up_to_all(catalog: Catalog) -> None:
    tables = [
        explain(plans({"model": "Qwen3-30B-A3B", "tensor_parallel": 1, "num_accelerators": 1, "batch_size": batch,
                       "prompt_length": 100, "output_length": 100}), catalog)
        for batch in (1, 8, 64, 4096)
    ]  # fmt: skip
    picked = [(table.text("phase") == "decode") & (table.text("operator") == "experts up") for table in tables]
    experts = np.array([table.number("batch")[mask][0] for table, mask in zip(tables, picked, strict=True)])
    assert experts[0] == pytest.approx(8.0)
    assert rising(experts)
    assert experts[-1] == pytest.approx(128.0, rel=1e-3)


# The bound of each product, as the paper has it


@pytest.mark.parametrize(
    "accelerator", ["A100-SXM4-80GB", "H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB", "MI300X"]
)
@pytest.mark.parametrize("model", ["Llama2-7B", "Llama2-13B", *ARCHITECTURES])
def test_large_products_of_one_sequence_are_bound_by_memory(catalog: Catalog, accelerator: str, model: str) -> None:
    """Small ones take longer than their bytes: a faster memory would not help them.

    A large one reaches nine tenths of what the memory streams in products: 92 % of its peak on H100, 81 % on MI300X.
    """
    row = {"model": model, "accelerator": accelerator, "tensor_parallel": 1, "num_accelerators": 1, "batch_size": 1}
    table = explain(plans(row), catalog)
    products = (table.text("phase") == "decode") & (table.text("family") == "gemm")
    assert products.sum() >= 5
    machines = catalog.tables["accelerators"]
    at = machines["accelerator"].tolist().index(accelerator)
    words = (np.array([word], dtype=object) for word in (machines["generation"][at], "bf16", "any"))
    streams = float(catalog.calibration.constants("gemm", *words)[0]["memory_efficiency"][0, 0])
    reached = table.number("traffic") / (machines["memory_bandwidth"][at] * table.number("time"))
    near = products & (reached > 0.9 * streams)
    assert near.any()
    assert set(table.text("bound")[near].tolist()) == {"memory"}


@pytest.mark.parametrize(
    ("accelerator", "bounds"),
    [("A100-SXM4-80GB", {"compute"}), ("H100-SXM-80GB", {"memory"}), ("H200-SXM-141GB", {"compute"}),
     ("B200-SXM-180GB", {"memory"})],
)  # fmt: skip
def test_prefill_of_200_tokens_is_bound_by_arithmetic_on_a100_and_by_memory_on_b200(
    catalog: Catalog, accelerator: str, bounds: set[str]
) -> None:
    """The paper's prompts: products of Llama 2 13B do 180 to 190 FLOP per byte, the ridges are 153, 295, 206 and 281.

    Tiles pad 200 rows to 256, which moves the ridge; on H100, whose libraries have tiles of a few rows, to 208.
    """
    row = {"model": "Llama2-13B", "accelerator": accelerator, "tensor_parallel": 1, "num_accelerators": 1,
           "prompt_length": 200, "output_length": 200, "batch_size": 1, "precision": "fp16"}  # fmt: skip
    table = explain(plans(row), catalog)
    products = (table.text("phase") == "prefill") & (table.text("family") == "gemm") & (table.number("m") == 200)
    assert products.sum() == 4
    intensity = table.number("arithmetic_intensity")[products]
    for m, n, k, result in zip(*(table.number(name)[products] for name in "mnk"), intensity, strict=True):
        assert result == pytest.approx(2 * m * n * k / (2.0 * (m * k + n * k + m * n)))
    assert set(table.text("bound")[products].tolist()) == bounds


@EVERY
def test_long_prompts_are_bound_by_arithmetic(catalog: Catalog, model: str) -> None:
    row = {"model": model, "tensor_parallel": 1, "num_accelerators": 1, "prompt_length": 8192, "batch_size": 1}
    table = explain(plans(row), catalog)
    names = [name for name in table.text("operator").tolist() if name in ("qkv", "mlp up", "query expansion")]
    assert names or math.isnan(results(catalog, row).number("latency")[0])
    for name in set(names):
        picked = (table.text("operator") == name) & (table.text("phase") == "prefill")
        assert table.text("bound")[picked].tolist() == ["compute"], name


@EVERY
@pytest.mark.parametrize("accelerator", ["A100-SXM4-80GB", "B200-SXM-180GB", "MI300X", "TPUv5p", "Gaudi3"])
def test_operators_of_any_model_on_any_accelerator(catalog: Catalog, model: str, accelerator: str) -> None:
    table = plans({"model": model, "accelerator": accelerator, "batch_size": 8})
    operators, outcome = explain(table, catalog), evaluate(table, catalog)
    phase = operators.text("phase")
    for name, result in (("prefill", "ttft"), ("decode", "tpot")):
        assert operators.number("exposed_time")[phase == name].sum() == pytest.approx(
            outcome.number(result)[0], rel=1e-9
        )
    assert set(operators.text("bound").tolist()) <= {"compute", "memory", "network", "overhead"}
    attended = operators.text("family") == "attention"
    assert attended.any()


# Time outside the loop of the engine


def with_latency(catalog: Catalog, each: float = 0.03, token: float = 1e-5, crowd: float = 1e-3) -> Catalog:
    """The catalog with an engine "late" whose requests spend time outside its loop, and an "other" without."""
    calibration = catalog.tables["calibration"]
    values = {"request_latency_time": each, "token_latency_time": token, "crowd_latency_time": crowd}
    late = [
        FittedConstant("serving_software", "any", "any", software, name, each, "", 0, math.nan, "2026-01-01", "a test")
        for name, value in values.items()
        for software, each in (("late", value), ("other", 0.0))
    ]
    return catalog.with_tables([joined_tables(calibration, calibration_table(late))])


@pytest.mark.parametrize("mode", ["static", "continuous", "disaggregated"])
def test_time_outside_the_engine_delays_the_first_token_and_no_step(catalog: Catalog, mode: str) -> None:
    """Of requests in flight together it takes less from the rate: others are prefilled and decoded meanwhile."""
    row = {"mode": mode, "tensor_parallel": 4, "concurrency": 8, "batch_size": "" if mode != "static" else 4}
    row = {**row, "concurrency": ""} if mode == "static" else row
    late = with_latency(catalog)
    before, after = (results(late, {**row, "software": name}) for name in ("other", "late"))
    in_flight = {"static": 1.0, "continuous": 4.0, "disaggregated": 8.0}[mode]
    engines = 2.0 if mode == "disaggregated" else 1.0
    spent = engines * (0.03 + 1e-5 * 1000) + 1e-3 * (in_flight - 1.0)
    for name in ("ttft", "ttft_median", "ttft_ninetieth", "ttft_ninety_ninth"):
        change = after.number(name)[0] - before.number(name)[0]
        near = 1e-9 if mode == "static" else 2e-3 if mode == "continuous" else 1e-2
        assert change == pytest.approx(spent, abs=near), name
    longer = after.number("latency")[0] - before.number("latency")[0]
    assert longer == pytest.approx(spent, abs=1e-9) if mode == "static" else 0.0 < longer < spent
    steady = ("prefill_time", "memory") if mode != "static" else ("prefill_time", "memory", "tpot", "decode_time")
    for name in steady:
        assert after.number(name)[0] == before.number(name)[0], name
    if mode != "static":
        assert 0.98 * before.number("tpot")[0] < after.number("tpot")[0] < before.number("tpot")[0]
    # Little's law: with the same requests in flight a later answer is a lower rate.
    closed = [entry.number("tokens_per_second")[0] * entry.number("latency")[0] for entry in (before, after)]
    assert closed[1] == pytest.approx(closed[0], rel=1e-9)


def test_a_target_of_the_first_token_counts_the_time_outside_the_engine(catalog: Catalog) -> None:
    late = with_latency(catalog)
    row = {"mode": "continuous", "tensor_parallel": 8, "concurrency": 16, "ttft_target": 400.0, "software": "late"}
    result = results(late, row)
    most = result.number("batch_at_targets")[0]
    assert most >= 1.0
    at, beyond = (results(late, {**row, "concurrency": number}) for number in (most, most + 1.0))
    assert at.number("ttft")[0] <= 0.4 < beyond.number("ttft")[0]
    rate = result.number("tokens_per_second_at_targets")[0]
    assert at.number("tokens_per_second")[0] == pytest.approx(rate, rel=1e-6)
    assert most < results(late, {**row, "software": "other"}).number("batch_at_targets")[0]


def test_a_full_engine_hides_the_time_outside_of_it(catalog: Catalog) -> None:
    """Requests that wait for a place would wait as long: neither their latency nor the rate changes."""
    row = {"mode": "continuous", "tensor_parallel": 8, "concurrency": 20_000}
    late = with_latency(catalog, crowd=0.0)
    before, after = (results(late, {**row, "software": name}) for name in ("other", "late"))
    assert before.number("queue_time")[0] > 0.04
    for name in ("ttft", "latency", "tokens_per_second"):
        assert after.number(name)[0] == pytest.approx(before.number(name)[0], rel=1e-12), name
    assert after.number("queue_time")[0] == pytest.approx(before.number("queue_time")[0] - 0.04)
