"""Serving: what decoding must read, hand counts, parts that add up, limits, legality."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from inference_samples import BANDWIDTH, GIB, LLAMA_7B, LLAMA_13B, LLAMA_70B, MODELS, results, serve, varied

from xlperf.catalog.table import Table
from xlperf.engine.join import plan_columns
from xlperf.equations.plan.records import broken_rules, remarks_of_rows
from xlperf.equations.plan.serving_plan import REQUEST_RULES, SERVING_RULES, WARNINGS, InferencePlan
from xlperf.equations.serving.continuous import serving_results
from xlperf.equations.serving.memory import largest_batch
from xlperf.equations.serving.phases import BOUNDS, serving_work


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("precision", "size"), [("fp16", 2.0), ("fp8", 1.0), ("int4", 0.5625)])
@pytest.mark.parametrize("tensor_parallel", [1, 8])
def test_one_sequence_is_never_decoded_faster_than_its_bytes_are_read(
    model: tuple[int, ...], precision: str, size: float, tensor_parallel: int
) -> None:
    layers, hidden, heads, groups, head_size, ffn, vocabulary = model
    matrices = layers * (2 * hidden * head_size * (heads + groups) + 3 * hidden * ffn)
    cache = 2 * layers * groups * head_size * 200 * (1.0 if precision == "fp8" else 2.0)
    weights = (matrices * size + vocabulary * hidden * 2.0) / tensor_parallel
    result = results({"model": model, "precision": precision, "tensor_parallel": tensor_parallel})
    assert result["tpot"][0] > (weights + cache / tensor_parallel) / BANDWIDTH
    assert result["ttft"][0] > weights / BANDWIDTH


@pytest.mark.parametrize(
    ("model", "tensor_parallel", "kv_precision", "kilobytes_per_token"),
    [
        (LLAMA_7B, 1, "fp16", 512.0),
        (LLAMA_13B, 1, "fp16", 800.0),
        (LLAMA_70B, 1, "fp16", 320.0),
        (LLAMA_70B, 8, "fp16", 40.0),
        (LLAMA_70B, 16, "fp16", 40.0),
        (LLAMA_70B, 1, "fp8", 160.0),
        (LLAMA_70B, 1, "fp4", 90.0),
    ],
)
def test_cache_against_a_hand_count(
    model: tuple[int, ...], tensor_parallel: int, kv_precision: str, kilobytes_per_token: float
) -> None:
    """2 x layers x heads x head size x bytes; heads are not split finer than one, FP4 carries a scale per 16."""
    plan = {"model": model, "tensor_parallel": tensor_parallel, "kv_precision": kv_precision, "batch_size": 3}
    result = results({**plan, "prompt_length": 1000, "output_length": 24})
    assert result["memory_kv_cache"][0] == 3 * 1024 * 1024 * kilobytes_per_token


def test_weights_against_published_parameters() -> None:
    """Llama 2: 6.74, 13.02 and 68.98 billion parameters of two bytes; FP4 half a byte and a scale, tables 16 bits."""
    result = results(*({"model": model} for model in MODELS))
    np.testing.assert_allclose(result["memory_weights"] / 2e9, [6.74, 13.02, 68.98], rtol=1e-3)
    narrow = results({"precision": "fp4"})["memory_weights"][0]
    tables = 2 * 32000 * 4096 * 2.0
    layers = result["memory_weights"][0] - tables
    assert narrow == pytest.approx(layers / 2.0 * 0.5625 + tables, rel=1e-3)


@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 1), (8, 1), (2, 4), (8, 2)])
def test_shards_hold_the_model_together(tensor: int, pipeline: int) -> None:
    whole = results({"model": LLAMA_70B})
    shard = results({"model": LLAMA_70B, "tensor_parallel": tensor, "pipeline_parallel": pipeline})
    for part in ("memory_weights", "memory_kv_cache"):
        assert shard[part][0] * tensor * pipeline >= whole[part][0] * (1.0 - 1e-12)
        assert shard[part][0] * tensor * pipeline < 1.2 * whole[part][0]


def test_latency_is_first_token_and_the_steps_after_it() -> None:
    plans = varied(200)
    result = results(*plans)
    steps = np.array([plan["output_length"] for plan in plans]) - 1.0
    several = steps > 0
    np.testing.assert_allclose(result["latency"], result["ttft"] + np.where(several, steps * result["tpot"], 0.0))
    np.testing.assert_allclose(result["decode_time"][several], (steps * result["tpot"])[several])
    parts = sum(result[f"time_{part}"] for part in ("matrix", "attention", "vector", "communication", "overhead"))
    np.testing.assert_allclose(parts[several], result["tpot"][several], rtol=1e-12)
    np.testing.assert_allclose(result["tpot_itl"] * (steps + 1.0), result["latency"])


def test_operators_add_up_to_the_phases() -> None:
    deployment = serve(varied(50))
    result, work = serving_results(deployment), serving_work(deployment)
    for side, phase in enumerate(("prefill_time", "time")):
        layers, passes, transfers = (values[:, side] for values in (work.layers, work.passes, work.transfers))
        gemms, vectors = work.gemms.time[:, side], (work.vectors.time * work.vectors.calls)[:, side]
        messages = work.messages.time[:, side]
        layer = gemms[:, :4].sum(axis=1) + vectors[:, :3].sum(axis=1) + work.attention.time[:, side, 0]
        layer += 2.0 * messages[:, 0] + deployment.software["layer_overhead_time"][:, 0]
        once = gemms[:, 4] + vectors[:, 3:].sum(axis=1) + messages[:, :2].sum(axis=1)
        once += work.pass_overhead[:, side]
        total = layers * layer + passes * once + transfers * messages[:, 2]
        several = deployment.plan.output_length > 1.0 if side else np.full(50, True)
        np.testing.assert_allclose(total[several], result["tpot" if side else phase][several], rtol=1e-12)


def test_throughput_rises_with_the_batch_then_saturates() -> None:
    batches = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096]
    result = results(*({"batch_size": batch, "prompt_length": 1000, "output_length": 1000} for batch in batches))
    rate = result["tokens_per_second"]
    assert (np.diff(rate) > 0).all()
    assert rate[3] > 5.0 * rate[0], "eight sequences share the weights"
    assert rate[-1] < 1.2 * rate[-3], "the cache of each sequence has to be read for itself"
    assert (np.diff(result["tpot"]) > 0).all()
    assert (np.diff(result["ttft"]) > 0).all()


def test_context_grows_the_step_by_its_share() -> None:
    """Decoding attention over the mean of growing contexts: twice the tokens of the middle, whatever the length."""
    short, long = (results({"prompt_length": 1, "output_length": n, "batch_size": 64}) for n in (2, 2002))
    assert short["time_matrix"][0] == long["time_matrix"][0]
    work = serving_work(serve([{"prompt_length": 1, "output_length": n, "batch_size": 64} for n in (2, 3, 4, 2002)]))
    flop = work.attention_flop[:, 1, 0]
    np.testing.assert_allclose(2.0 * flop / flop[0], [2.0, 2.5, 3.0, 1002.0])
    assert long["time_attention"][0] > short["time_attention"][0]


def test_mean_over_the_steps_is_that_of_every_step() -> None:
    steps = [results({"prompt_length": 100 + n, "output_length": 2, "batch_size": 200})["tpot"][0] for n in range(50)]
    assert results({"prompt_length": 100, "output_length": 51, "batch_size": 200})["tpot"][0] == pytest.approx(
        np.mean(steps), rel=2e-3
    )


def test_better_hardware_is_never_slower() -> None:
    plans = varied(100)
    base = serve(plans)
    slow = serving_results(base)
    for field in ("memory_bandwidth", "peak_flop_rate", "vector_flop_rate"):
        better = dataclasses.replace(base.device, **{field: 2.0 * getattr(base.device, field)})
        fast = serving_results(dataclasses.replace(base, device=better))
        assert (fast["latency"] <= slow["latency"] * (1.0 + 1e-12)).all(), field
    link = dataclasses.replace(base.network, link_bandwidth=2.0 * base.network.link_bandwidth)
    fast = serving_results(dataclasses.replace(base, network=link))
    assert (fast["latency"] <= slow["latency"] * (1.0 + 1e-12)).all()


def test_one_rank_does_not_communicate() -> None:
    assert results({})["time_communication"][0] == 0.0
    both = results({}, {"tensor_parallel": 8})["time_communication"]
    assert both[0] == 0.0 < both[1]


# Pipeline


def test_pipeline_of_one_sequence_is_a_walk_through_the_stages() -> None:
    """A single sequence meets every layer once, whatever the number of stages; only transfers are added."""
    flat, piped = results({"model": LLAMA_70B}, {"model": LLAMA_70B, "pipeline_parallel": 4})["tpot"]
    assert flat < piped < flat * 1.01


def test_replicas_serve_side_by_side() -> None:
    """16 accelerators in stages of 2, 4 deep, are two copies: twice the tokens, and each as fast as one alone."""
    cells = {"tensor_parallel": 2, "pipeline_parallel": 4, "batch_size": 8}
    plan = serve([{**cells, "num_accelerators": count} for count in (8, 16)]).plan
    assert plan.replica_ranks.tolist() == [8.0, 8.0] and plan.num_replicas.tolist() == [1.0, 2.0]
    result = results({**cells, "num_accelerators": 8}, {**cells, "num_accelerators": 16})
    assert result["tokens_per_second"][1] == 2.0 * result["tokens_per_second"][0]
    assert result["ttft"][1] == result["ttft"][0] and result["tpot"][1] == result["tpot"][0]


def test_pipeline_turns_its_micro_batches() -> None:
    """With a sequence or more per stage the stages work side by side on quarters of the batch."""
    plan = {"model": LLAMA_70B, "batch_size": 64, "prompt_length": 1000}
    one, four = (results({**plan, "pipeline_parallel": stages}) for stages in (1, 4))
    work = serving_work(serve([{**plan, "pipeline_parallel": 4}]))
    assert work.layers[0, 1] == 80.0
    assert work.passes[0, 1] == 4.0
    assert work.transfers[0, 1] == 4.0
    assert four["ttft"][0] < 0.5 * one["ttft"][0], "prefills of micro-batches follow each other"
    assert four["memory_weights"][0] < 0.3 * one["memory_weights"][0]


def test_uneven_stages_wait_for_the_fullest() -> None:
    uneven = serving_work(serve([{"model": LLAMA_70B, "pipeline_parallel": 3, "batch_size": 30}]))
    assert uneven.layers[0, 1] == 3 * 27.0


# Batches


def test_concurrency_is_shared_by_the_replicas() -> None:
    result = results(
        {"num_accelerators": 8, "tensor_parallel": 2, "concurrency": 64},
        {"num_accelerators": 8, "tensor_parallel": 2, "batch_size": 16},
        {"num_accelerators": 2, "tensor_parallel": 2, "batch_size": 16},
        {"num_accelerators": 8, "tensor_parallel": 2, "concurrency": 61},
    )
    assert result["latency"][0] == result["latency"][1] == result["latency"][2] == result["latency"][3]
    assert result["tokens_per_second"][0] == result["tokens_per_second"][1] == 4.0 * result["tokens_per_second"][2]
    np.testing.assert_allclose(result["tokens_per_second"][3], result["tokens_per_second"][0] * 61 / 64)
    per_accelerator = result["tokens_per_second_per_accelerator"]
    assert per_accelerator[0] * 8 == result["tokens_per_second"][0]


@pytest.mark.parametrize("pipeline", [1, 3, 4])
@pytest.mark.parametrize("prompt", [50, 3000, 20_000])
def test_largest_batch_fits_and_one_more_does_not(pipeline: int, prompt: int) -> None:
    plan = {"model": LLAMA_13B, "pipeline_parallel": pipeline, "prompt_length": prompt}
    most = results(plan)["max_batch_size"][0]
    assert most >= 1.0
    result = results({**plan, "batch_size": most}, {**plan, "batch_size": most + 1})
    assert result["fits"].tolist() == [1.0, 0.0]
    assert result["max_batch_size"].tolist() == [most, most]


def test_no_batch_fits_beside_weights_that_do_not() -> None:
    result = results({"model": LLAMA_70B})
    assert result["max_batch_size"][0] == 0.0
    assert result["fits"][0] == 0.0
    assert np.isfinite(result["latency"][0]), "a plan that is too large keeps its numbers"


def test_largest_batch_by_trial() -> None:
    random = np.random.default_rng(5)
    free, cache, work = random.uniform(0, 500, 60), random.uniform(1, 9, 60), random.uniform(1, 30, 60)
    most, stages = random.integers(1, 6, 60).astype(float), random.integers(1, 5, 60).astype(float)
    batch = np.arange(0.0, 600.0)[:, None]
    memory = batch * cache + np.minimum(np.ceil(batch / stages), most) * work
    tried = np.where(memory <= free, batch, 0.0).max(axis=0)
    np.testing.assert_array_equal(largest_batch(free, cache, work, most, stages), tried)


def test_long_prefills_run_in_passes() -> None:
    work = serving_work(serve([{"prompt_length": 1000, "batch_size": 8}, {"prompt_length": 1000, "batch_size": 80}]))
    assert work.passes[:, 0].tolist() == [1.0, 10.0]
    assert work.shapes.m[:, 0].tolist() == [8000.0, 8000.0]
    assert work.shapes.m[1, 4] == 8.0, "logits for the last token of each sequence only"
    few, full, more = results(*({"batch_size": batch} for batch in (20, 400, 4000)))["memory_activations"]
    assert few < full == more, "a pass takes so many tokens and no more"


# Bounds


def test_what_a_step_waits_for() -> None:
    software = dict.fromkeys(("layer_overhead_time", "prefill_overhead_time", "request_overhead_time"), 0.0)
    free = {"num_accelerators": 1, "model": LLAMA_13B}
    code = results(free, {**free, "batch_size": 8000, "prompt_length": 1, "output_length": 2}, **software)["bound"]
    assert [BOUNDS[int(value)] for value in code] == ["memory", "compute"]
    slow = results(free, layer_overhead_time=1e-2)["bound"]
    assert BOUNDS[int(slow[0])] == "overhead"
    far = results({**free, "tensor_parallel": 40, "num_accelerators": 40, "batch_size": 64}, **software)["bound"]
    assert BOUNDS[int(far[0])] == "network"


# One row and many


def test_one_row_is_the_same_alone_and_among_a_thousand() -> None:
    plans = varied(1000)
    together = results(*plans)
    for row in (0, 17, 512, 999):
        alone = results(plans[row])
        for name, values in together.items():
            assert values.shape == (1000,), name
            assert values[row].tobytes() == alone[name][0].tobytes(), f"{name}: {values[row]} {alone[name][0]}"


def test_nan_stays_in_its_row() -> None:
    clean = results({}, {}, {})
    spoiled = serve([{}, {}, {}], GIB)
    model = spoiled.model
    hidden = model.hidden_size.copy()
    hidden[1] = math.nan
    result = serving_results(dataclasses.replace(spoiled, model=dataclasses.replace(model, hidden_size=hidden)))
    for name, values in result.items():
        assert (values[[0, 2]] == clean[name][[0, 2]]).all() or np.isnan(clean[name]).all(), name
    for name in ("ttft", "tpot", "latency", "tokens_per_second", "memory", "max_batch_size", "fits", "bound"):
        assert np.isnan(result[name][1]), name


def test_precision_that_the_device_lacks_is_nan() -> None:
    deployment = serve([{}, {}])
    device = dataclasses.replace(deployment.device, peak_flop_rate=np.array([[math.nan], [1e15]]))
    result = serving_results(dataclasses.replace(deployment, device=device))
    assert np.isnan([result["latency"][0], result["bound"][0]]).all()
    assert np.isfinite([result["latency"][1], result["bound"][1]]).all()


def test_one_output_token_has_no_step() -> None:
    result = results({"output_length": 1})
    assert result["latency"][0] == result["ttft"][0]
    assert np.isnan(result["tpot"][0])
    assert np.isnan(result["bound"][0])
    assert result["prefill_share"][0] == 1.0


# Legality


def broken(**plan: Any) -> str:
    deployment = serve([plan])
    return str(remarks_of_rows(broken_rules(SERVING_RULES, deployment.plan, deployment.model), 1)[1][0])


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        ({}, ""),
        ({"model": LLAMA_70B, "tensor_parallel": 16}, ""),
        ({"tensor_parallel": 3}, "tensor parallel 3 does not divide the 32 attention heads"),
        (
            {"tensor_parallel": 2, "num_accelerators": 3},
            "tensor 2 x pipeline 1 x context 1 parallel is 2 ranks, which do not divide",
        ),
        ({"pipeline_parallel": 64}, "pipeline parallel 64 needs more layers than the model's 32"),
        ({"batch_size": 2.5}, "batch size must be a whole number, is 2.5"),
        ({"batch_size": 4, "concurrency": 9}, "batch size 4 does not agree with concurrency 9 on 1 replicas"),
        ({"batch_size": 9, "concurrency": 9}, ""),
        (
            {"model": (2, 1536, 24, 6, 64, 4096, 100), "tensor_parallel": 4},
            "tensor parallel 4 and the 6 key and value heads do not divide one another",
        ),
        (
            {"model": (2, 1536, 24, 6, 64, 4095, 100), "tensor_parallel": 2},
            "does not divide the feed-forward width 4095",
        ),
    ],
)
def test_rules(plan: dict[str, Any], sentence: str) -> None:
    said = broken(**plan)
    assert sentence in said if sentence else said == ""


def test_what_is_not_modelled_is_said() -> None:
    columns = {
        "mode": np.array(["static", "static", "continuous", "continuous"], dtype=object),
        "request_rate": np.array([math.nan, 2.0, 2.0, 2.0]),
        "concurrency": np.array([math.nan, math.nan, math.nan, 8.0]),
        "precision": np.full(4, "bf16", dtype=object),
    }
    stated = plan_columns(Table("inference", columns), InferencePlan)
    rules = broken_rules(REQUEST_RULES, stated, serve([{}] * 4).model)
    illegal, said = remarks_of_rows(rules, 4)
    assert illegal.tolist() == [False, True, False, True]
    assert said[0] == said[2] == ""
    assert said[1].startswith('request rate 2 needs mode continuous or disaggregated, not "static"')
    assert said[3].startswith("request rate 2 beside a batch size or concurrency")


def test_context_beyond_the_model_is_a_warning() -> None:
    served = serve([{"prompt_length": 4000}, {"prompt_length": 3000}, {"output_length": 1}])
    plan = served.plan.replaced(max_sequence_length=np.array([4096.0, 4096.0, math.nan]))
    said = remarks_of_rows(broken_rules(WARNINGS, plan, served.model), 3)[1]
    assert said.tolist() == [
        "prompt and output are 4200 tokens, beyond the model's longest context of 4096",
        "",
        "one output token: there is no tpot",
    ]
