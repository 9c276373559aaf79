"""What engines add to kernels: hosts, launches, finite runs, what stays wide; and settings of published runs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from xlperf.calibrate.fitter import FittedConstant, calibration_table, joined_tables
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_columns
from xlperf.catalog.table import Table
from xlperf.engine import evaluate, explain
from xlperf.engine.join import named_rows
from xlperf.engine.software import with_software_defaults
from xlperf.equations.serving.queueing import Service, run_rate
from xlperf.measurements.inference import inference_plans
from xlperf.measurements.published import Published, published_rows

BASE = {
    "model": "Meta-Llama-3.1-70B", "accelerator": "H100-SXM-80GB", "num_accelerators": 8, "tensor_parallel": 8,
    "prompt_length": 1000, "output_length": 1000, "precision": "fp8",
}  # fmt: skip
GPT_OSS = {"model": "gpt-oss-120b", "num_accelerators": 1, "tensor_parallel": 1, "accelerator": "B200-SXM-180GB"}


def plans(*rows: dict[str, Any]) -> Table:
    full = [{**BASE, **row} for row in rows]
    names = sorted({name for row in full for name in row})
    columns = {name: np.array([row.get(name, "") for row in full], dtype=object) for name in names}
    return table_from_columns("inference", columns, lambda row, column: f"row {row} {column}")


def changed(catalog: Catalog, family: str, name: str, value: float, generation: str = "hopper") -> Catalog:
    """The catalog with one constant changed, for every software that could stand before it."""
    software = sorted({*catalog.tables["calibration"].text("software").tolist(), "any", "tensorrt-llm"})
    rows = [FittedConstant(family, generation, "any", one, name, value, "", 0, math.nan, "", "") for one in software]
    return catalog.with_tables([joined_tables(catalog.tables["calibration"], calibration_table(rows))])


def one(catalog: Catalog, result: str, **row: Any) -> float:
    outcome = evaluate(plans(row), catalog)
    assert outcome.text("reason")[0] == "" or not math.isnan(outcome.number(result)[0]), outcome.text("reason")[0]
    return float(outcome.number(result)[0])


def test_each_request_adds_its_time_on_the_host_to_every_step(catalog: Catalog) -> None:
    in_turn = changed(catalog, "serving_load", "overlapped_host", 0.0)
    slow, quick = (changed(in_turn, "serving_software", "token_overhead_time", value) for value in (1e-4, 0.0))
    host = catalog.calibration.constants("serving_host", *(np.array([w], dtype=object) for w in ("hopper", "fp8", "x")))
    beside = float(host[0]["host_slowdown"][0, 0])
    for batch in (1, 7, 64):
        added = one(slow, "tpot", batch_size=batch) - one(quick, "tpot", batch_size=batch)
        assert added == pytest.approx(beside * batch * 1e-4, rel=1e-9)


@pytest.mark.parametrize("stages", [1, 2])
def test_a_host_that_prepares_the_next_step_meanwhile_is_waited_for_only_where_it_is_slower(
    catalog: Catalog, stages: int
) -> None:
    beside = changed(changed(catalog, "serving_load", "overlapped_host", 1.0), "serving_host", "host_slowdown", 1.0)
    row = {"tensor_parallel": 8 // stages, "pipeline_parallel": stages}
    quick, hidden, slow = (
        one(changed(beside, "serving_software", "token_overhead_time", value), "tpot", batch_size=256, **row)
        for value in (0.0, 1e-5, 1e-3)
    )
    assert 256 * 1e-5 < quick == hidden < 0.1
    assert slow == pytest.approx(256 * 1e-3, rel=0.02)


def test_a_prefill_waits_for_the_launches_of_its_kernels_and_a_step_does_not(catalog: Catalog) -> None:
    """80 layers of 12 kernels, 1 ms each: 4 products, attention, 2 norms, rotation, activation, 2 all-reduces."""
    slow = changed(
        changed(catalog, "serving_host", "host_slowdown", 1.0), "serving_software", "kernel_overhead_time", 1e-3
    )
    quick = changed(catalog, "serving_software", "kernel_overhead_time", 0.0)
    assert one(slow, "prefill_time", batch_size=1) == pytest.approx(80 * 11 * 1e-3, rel=0.05)
    assert one(slow, "prefill_time", batch_size=1) >= 80 * 11 * 1e-3
    assert one(slow, "tpot", batch_size=1) == pytest.approx(one(quick, "tpot", batch_size=1), rel=1e-12)


def test_launches_of_a_prefill_have_hosts_of_their_own(catalog: Catalog) -> None:
    heavy = changed(catalog, "serving_software", "kernel_overhead_time", 1e-3)
    fast, slow = (changed(heavy, "serving_host", "launch_slowdown", value) for value in (0.5, 1.0))
    assert one(slow, "prefill_time", batch_size=1) == pytest.approx(
        2.0 * one(fast, "prefill_time", batch_size=1), rel=0.1
    )
    assert one(slow, "tpot", batch_size=1) == one(fast, "tpot", batch_size=1)


def test_latent_attention_launches_small_kernels_beside_those_that_are_counted(catalog: Catalog) -> None:
    """61 layers, 10 kernels more in each, 1 ms a kernel."""
    row = {"model": "DeepSeek-V3", "accelerator": "H200-SXM-141GB", "prompt_length": 100, "batch_size": 1}
    heavy = changed(
        changed(catalog, "serving_software", "kernel_overhead_time", 1e-3), "serving_host", "launch_slowdown", 1.0
    )
    few, more = (changed(heavy, "attention_latent", "prefill_kernels", value) for value in (0.0, 10.0))
    assert one(more, "prefill_time", **row) - one(few, "prefill_time", **row) == pytest.approx(61 * 10 * 1e-3, rel=1e-6)
    assert one(more, "tpot", **row) == one(few, "tpot", **row)


def test_a_router_with_favourites_reads_fewer_experts_with_many_tokens(catalog: Catalog) -> None:
    even, uneven = (changed(catalog, "serving_experts", "favoured_share", value, "blackwell") for value in (1.0, 0.5))
    alone, many = (
        [one(each, "tpot", **GPT_OSS, precision="fp4", batch_size=batch) for each in (even, uneven)]
        for batch in (1, 64)
    )
    assert alone[0] == pytest.approx(alone[1], rel=1e-12), "a token has its experts in any case"
    assert many[1] < many[0]
    assert many[1] > 0.5 * many[0]


def test_hosts_of_a_generation_are_slow_for_all_engines(catalog: Catalog) -> None:
    fast, slow = (changed(catalog, "serving_host", "host_slowdown", value) for value in (1.0, 2.0))
    for software in ("vllm", "sglang", "tensorrt-llm"):
        times = [one(each, "time_overhead", batch_size=4, software=software) for each in (fast, slow)]
        assert times[1] == pytest.approx(2.0 * times[0], rel=1e-9)


def test_attention_beside_experts_in_4_bits_stays_in_16(catalog: Catalog) -> None:
    """gpt-oss-120b by hand: experts at 4.5 bits a weight, attention, router and tables at 16."""
    hidden, layers, experts, head, vocabulary = 2880, 36, 128, 64, 201088
    attention = hidden * (64 + 2 * 8) * head + 64 * head * hidden
    wide = 2.0 * (layers * (attention + hidden * experts) + 2 * vocabulary * hidden)
    narrow = 0.5625 * layers * experts * 3 * hidden * hidden
    assert one(catalog, "memory_weights", **GPT_OSS, precision="fp4") == pytest.approx(wide + narrow, rel=0.01)
    table = explain(plans({**GPT_OSS, "precision": "fp4", "batch_size": 1}), catalog)
    row = (table.text("phase") == "decode") & (table.text("operator") == "qkv")
    assert table.number("traffic")[row][0] == pytest.approx(2.0 * hidden * (64 + 16) * head, rel=0.01)


def test_weights_of_a_dense_model_are_narrow_throughout(catalog: Catalog) -> None:
    table = explain(plans({"precision": "fp4", "accelerator": "B200-SXM-180GB", "batch_size": 1}), catalog)
    row = (table.text("phase") == "decode") & (table.text("operator") == "qkv")
    assert table.number("traffic")[row][0] == pytest.approx(0.5625 * 8192 * (8192 + 2048) / 8, rel=0.01)


def service(steps: float, base: float, slope: float, prefill: float) -> Service:
    return Service(*(np.array([value]) for value in (prefill, prefill, base, slope, steps, 0.0)))


@pytest.mark.parametrize(("requests", "seconds"), [(8, 8 * 0.1 + 10 * 2.6), (12, 12 * 0.1 + 10 * (2.6 + 1.8))])
def test_a_run_by_hand(requests: float, seconds: float) -> None:
    """A step takes 1 s and 0.2 s for each request; 8 run together for 10 steps, then the 4 that are left."""
    of_engine, eight, cycle = service(10.0, 1.0, 0.2, 0.1), np.array([8.0]), np.array([26.8])
    result = run_rate(of_engine, eight, np.array([requests]), np.array([5.0]), cycle)
    assert result[0] == pytest.approx(requests / seconds)
    waited = run_rate(of_engine, eight, np.array([requests]), np.array([5.0]), cycle + 0.5)
    assert waited[0] == pytest.approx(requests / (seconds + 0.5 * math.ceil(requests / 8.0))), "half a second a wave"
    assert run_rate(of_engine, eight, np.array([math.nan]), np.array([5.0]), cycle)[0] == 5.0


def test_a_run_without_end_is_the_steady_state(catalog: Catalog) -> None:
    row = {"mode": "continuous", "concurrency": 64}
    steady = one(catalog, "tokens_per_second", **row)
    assert one(catalog, "tokens_per_second", **row, run_requests=64000) == pytest.approx(steady, rel=0.02)
    odd = one(catalog, "tokens_per_second", **row, run_requests=65)
    assert odd < 0.75 * steady, "one request more than a batch takes a wave of its own"
    refused = evaluate(plans({"batch_size": 4, "run_requests": 8}), catalog)
    assert "run requests needs mode continuous" in refused.text("reason")[0]


def test_prompts_come_one_by_one_where_outputs_differ_in_length(catalog: Catalog) -> None:
    """Each pass of a prefill without graphs stops all that decode, and fewer prompts share it."""
    bunched = changed(catalog, "serving_load", "waiting_share", 0.1)
    row = {"mode": "continuous", "concurrency": 64, "run_requests": 6400, "software": "sglang", "prefill_first": 1}
    row["graph_tokens"] = 0
    equal, wide = (one(bunched, "tpot", **row, output_variation=spread) for spread in (0.0, 0.577))
    assert wide > 1.1 * equal
    alone = changed(catalog, "serving_load", "waiting_share", 0.0)
    assert one(alone, "tpot", **row, output_variation=0.577) == pytest.approx(wide, rel=1e-12)


def test_an_exchange_takes_multiprocessors_from_a_prefill_but_not_from_a_step(catalog: Catalog) -> None:
    row = {
        "model": "DeepSeek-V3", "num_accelerators": 32, "tensor_parallel": 32, "expert_parallel": 32,
        "data_parallel_attention": 32, "batch_size": 256, "two_batch_overlap": "yes", "expert_dispatch": "nodes",
    }  # fmt: skip
    free, taken = (changed(catalog, "serving_experts", "exchange_share", value) for value in (0.0, 0.5))
    assert one(taken, "prefill_time", **row) > 1.01 * one(free, "prefill_time", **row)
    assert one(taken, "tpot", **row) == one(free, "tpot", **row)


# Settings of published runs

COLUMNS = [
    "row_id",
    "source_id",
    "source",
    "group",
    "model",
    "gpu",
    "n_gpus",
    "tp",
    "ep",
    "dp_attn",
    "mode",
    "concurrency",
]
COLUMNS += ["isl", "osl", "precision", "framework", "notes", "settings", "tpot_ms", "tokens_per_s"]
COLUMNS += ["tokens_per_s_kind", "batch"]


def published(**values: str) -> Published:
    row = {
        "row_id": "r", "source_id": "aic_silicon", "group": "serving", "model": "DeepSeek-R1", "gpu": "B200-SXM-180GB",
        "n_gpus": "8", "tp": "8", "ep": "1", "dp_attn": "1", "mode": "serving agg", "concurrency": "64", "isl": "1024",
        "osl": "1024", "precision": "fp4", "framework": "trtllm 1.2.0rc6.post2", "tpot_ms": "9",
        "notes": "source_file=2026-04-06.csv; image=x:1.2.0rc6.post2; ",
    }  # fmt: skip
    row |= values
    return published_rows(COLUMNS, [[row.get(name, "") for name in COLUMNS]], lambda row, column: f"row {row}")


def plan_of(catalog: Catalog, **values: str) -> tuple[Table, str]:
    result = inference_plans(published(**values), catalog)
    assert len(result.plans) == 1, result.reasons
    return result.plans, str(result.notes[0])


def filled(catalog: Catalog, **values: str) -> Table:
    """The plan of a row with what its engine does by default."""
    table, _ = plan_of(catalog, **values)
    return with_software_defaults(table, catalog, named_rows(table, catalog).models)


@pytest.mark.parametrize(
    ("framework", "gpu", "cache"),
    [("vllm 0.18.0", "H200-SXM-141GB", "bf16"), ("sglang 0.5.9", "H100-SXM-80GB", "bf16"),
     ("vllm 0.18.0", "B200-SXM-180GB", "bf16"), ("trtllm 1.0", "H200-SXM-141GB", "")],
)  # fmt: skip
def test_caches_are_as_engines_keep_them(catalog: Catalog, framework: str, gpu: str, cache: str) -> None:
    """16 bits in vLLM and SGLang unless they are asked for less; TensorRT-LLM's blank is the schema's FP8."""
    table = filled(catalog, framework=framework, gpu=gpu, precision="fp8")
    assert table.text("kv_precision")[0] == cache


def test_releases_of_vllm_before_its_second_engine_are_one_of_their_own(catalog: Catalog) -> None:
    said = {"framework": "vLLM 0.6.3", "gpu": "H100-SXM-80GB", "precision": "fp8"}
    table = filled(catalog, **said)
    assert (table.text("software")[0], table.text("kv_precision")[0]) == ("vllm-0.6", "bf16")
    assert plan_of(catalog, **{**said, "framework": "vLLM 0.6 (AMD's build for ROCm)"})[0].text("software")[0] == "vllm"


def test_sglang_kept_a_prefix_cache_without_buffers_until_0_5_12(catalog: Catalog) -> None:
    """What a row states counts first, as --disable-radix-cache; later releases have the slots of the engine."""
    said = {"model": "Qwen3.5-397B-A17B", "mode": "serving", "concurrency": "1024"}
    for release, slots in (("0.5.4", math.nan), ("0.5.8", 3.0), ("0.5.12", 3.0), ("0.5.15", math.nan)):
        table = filled(catalog, **said, framework=f"SGLang {release}")
        np.testing.assert_array_equal(table.number("state_slots"), [slots])
    assert filled(catalog, **said, framework="SGLang 0.5.8", settings="state_slots=1").number("state_slots")[0] == 1.0


def test_early_inference_of_hugging_face_launches_kernel_by_kernel(catalog: Catalog) -> None:
    row = {"source_id": "another", "mode": "serving", "gpu": "A100-SXM4-80GB", "precision": "bf16"}
    graphs = [filled(catalog, **row, framework=release).number("graphs")[0] for release in ("TGI 1.0.3", "TGI 2.0")]
    assert graphs[0] == 0.0 and math.isnan(graphs[1])


def test_states_that_a_prefix_cache_holds_without_buffers_are_scheduled_in_turn(catalog: Catalog) -> None:
    """Then the host adds its time for each request to a step; without states, slots mean nothing."""
    each = changed(catalog, "serving_software", "token_overhead_time", 1e-5)
    row = {"mode": "continuous", "concurrency": 64, "software": "sglang"}
    hybrid = {**row, "model": "qwen3-next-80B-A3B", "tensor_parallel": 2, "num_accelerators": 2}
    alone, in_turn, ahead = (one(each, "decode_time", **hybrid, state_slots=slots) for slots in (1, 3, 5))
    assert in_turn - ahead == pytest.approx(999 * 64 * 1e-5, rel=2e-3) and alone == pytest.approx(ahead, rel=1e-3)
    assert one(each, "decode_time", **row, state_slots=3) == one(each, "decode_time", **row, state_slots=5)


@pytest.mark.parametrize(
    ("values", "limits"),
    [({}, (256.0, 2048.0)), ({"gpu": "H100-SXM-80GB"}, (math.nan, math.nan)), ({"gpu": "L40S"}, (256.0, 2048.0)),
     ({"framework": "vLLM 0.8.5"}, (math.nan, math.nan)), ({"settings": "max_running_batch=1024"}, (1024.0, 2048.0))],
)  # fmt: skip
def test_limits_of_vllm_follow_the_device(
    catalog: Catalog, values: dict[str, str], limits: tuple[float, float]
) -> None:
    """The API server since 0.9: 256 sequences and 2048 tokens on A100 and on devices below 70 GiB."""
    row = {"source_id": "another", "framework": "vLLM 0.11.0", "gpu": "A100-SXM4-80GB", "mode": "serving", "notes": ""}
    table = filled(catalog, **{**row, "model": "Qwen3-32B", "precision": "bf16", "concurrency": "1000", **values})
    result = tuple(float(table.number(name)[0]) for name in ("max_running_batch", "prefill_tokens"))
    np.testing.assert_array_equal(result, limits)


def test_vllm_of_2024_adds_up_by_the_collective_library_on_amd(catalog: Catalog) -> None:
    """Each of two a layer takes tens of microseconds longer; elsewhere only the host does, by 1.2 ms a step."""
    amd = {"accelerator": "MI300X", "batch_size": 1, "precision": "bf16"}
    early, late = (one(catalog, "tpot", **amd, software=name) for name in ("vllm-0.6", "vllm"))
    assert 2 * 80 * 10e-6 < early - late - 1.2e-3 < 2 * 80 * 60e-6
    single = {**amd, "num_accelerators": 1, "tensor_parallel": 1}
    early, late = (one(catalog, "tpot", **single, software=name) for name in ("vllm-0.6", "vllm"))
    assert early == pytest.approx(late + 1.2e-3, rel=0.01)
    early, late = (one(catalog, "tpot", batch_size=1, software=name) for name in ("vllm-0.6", "vllm"))
    assert early == pytest.approx(late + 1.2e-3, rel=0.01)


DEEPSEEK = {"model": "DeepSeek-V3", "num_accelerators": 8, "tensor_parallel": 8, "software": "sglang", "batch": 1}


@pytest.mark.parametrize(("accelerator", "most"), [("H200-SXM-141GB", 2048), ("B200-SXM-180GB", 0)])
def test_sglang_replays_short_prefills_of_dense_latent_attention_only(
    catalog: Catalog, accelerator: str, most: int
) -> None:
    """What SGLang documents: 2,048 tokens; none on Blackwell. A stated limit counts, other models are not concerned."""

    def time(prompt: int, **more: Any) -> float:
        return one(catalog, "prefill_time", **DEEPSEEK, accelerator=accelerator, prompt_length=prompt, **more)

    for prompt in (1, 2048, 2049):
        limits = time(prompt, graph_tokens=0), time(prompt, graph_tokens=8192)
        assert limits[1] < limits[0] if prompt == 1 or not most else limits[1] <= limits[0]  # long ones hide launches
        assert time(prompt) == pytest.approx(limits[1 if prompt <= most else 0])
    for other in ({"model": "Meta-Llama-3.1-70B"}, {"software": "vllm"}):
        row = {**DEEPSEEK, "accelerator": accelerator, "prompt_length": 500, **other}
        shipped, stated = (one(catalog, "prefill_time", **row, **more) for more in ({}, {"graph_tokens": 8192}))
        assert shipped == pytest.approx(stated)
