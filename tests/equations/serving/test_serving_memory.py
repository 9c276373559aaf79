"""Memory that serving engines take: shares of all of it or of what weights leave, and prefixes that are held once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from xlperf.base.arrays import Array
from xlperf.calibrate.fitter import FittedConstant, calibration_table, joined_tables
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.equations.serving.memory import _cache_budget, _sampling_peak, usable_memory
from xlperf.workbook.data_sheets import table_of

GIB = 2.0**30
ONE_H100 = {"model": "Meta-Llama-3.1-70B", "accelerator": "H100-SXM-80GB", "num accelerators": 1, "precision": "fp8",
            "prompt length": 99, "output length": 1}  # fmt: skip
LOADED = {"mode": "continuous", "batch size": 1, "concurrency": 1}
TOKEN = 80 * 2 * 8 * 128
"""Elements that a token of Llama 3.1 70B leaves in the cache. [-]"""


def evaluated(catalog: Catalog, *rows: dict[str, Any]) -> Table:
    header = list(dict.fromkeys(name for row in rows for name in row))
    return evaluate(
        table_from_rows("inference", header, [[row.get(name, "") for name in header] for row in rows]), catalog
    )


def results(*rows: dict[str, Any], **everywhere: Any) -> Table:
    return evaluated(load_catalog(), *({**row, **everywhere} for row in rows))


def places(*rows: dict[str, Any], **everywhere: Any) -> Array:
    return results(*rows, **everywhere).number("max_batch_size")


def test_a_share_of_all_memory_and_of_what_weights_leave() -> None:
    weights = np.array([0.0, 90.0, 120.0])
    assert _cache_budget(100.0, 96.0, weights, 0.5, 0.0).tolist() == [50.0, -40.0, -70.0]
    assert _cache_budget(100.0, 96.0, weights, 0.5, 1.0).tolist() == [48.0, 3.0, -12.0]
    # Activations inside the share, beside it, and beyond what the accelerator has.
    assert usable_memory(100.0, 4.0, 60.0, 10.0, 20.0, [1.0, 0.0, 0.0]).tolist() == [80.0, 90.0, 90.0]
    assert usable_memory(100.0, 4.0, 60.0, 30.0, 20.0, 0.0).tolist() == 96.0


def test_vllm_on_one_h100_has_room_for_about_9500_tokens_of_70b_in_fp8() -> None:
    """70.6 GB of weights in 0.9 of 79.1 GiB; 1.7 GiB to choose 1,024 tokens, 0.4 beside; the rest is 160 KiB a token.

    With 256 requests the prefill takes more, 1.6 GiB. Its own cache of 16 bits has room for half as many. Releases from
    0.20 on take graphs off as well.
    """
    engine = {**ONE_H100, **LOADED, "software": "vllm", "software release": "0.19.1"}
    assert places(engine)[0] * 100 == pytest.approx(9_500 / 2, rel=0.05)
    plan = {**engine, "kv precision": "fp8"}
    tokens, fewer = places(plan, {**plan, "max running batch": 256}) * 100
    assert tokens == pytest.approx(9_500, rel=0.05)
    assert fewer == pytest.approx(11_000, rel=0.05)


def test_engines_by_hand() -> None:
    """With activations too small to matter: 71.2, 79.6 and 78.6 GiB, and weights of 67.7; 0.6 of NIM's one rank."""
    result = results(
        *({**ONE_H100, "software": name, "prefill tokens": 128} for name in ("vllm", "sglang", "nim", "turbomind"))
    )
    weights, activations = result.number("memory_weights")[0], result.number("memory_activations")
    capacity = result.number("memory_capacity")[0]
    vllm = max(activations[0], 128 * (8192 * 2.0 + 128_256 * 14.0)) + 2.95e8 + 7e8
    shown, free = capacity - 0.5 * GIB, capacity - 1.0 * GIB - weights
    # SGLang's share is of what contexts of one rank leave.
    outside = (1.0 + 0.125 + 128 * 1.5 / 1024.0) * GIB
    by_hand = [
        0.92 * shown - weights - vllm,
        (1.0 - outside / shown) * (shown - 3.2e8) - weights,
        0.9 * (free - 6.19e8 - activations[2]),
        0.8 * free,
    ]
    tokens = TOKEN * np.array([2.0, 2.0, 1.0, 1.0])  # vLLM and SGLang keep a cache of 16 bits
    np.testing.assert_array_equal(result.number("max_batch_size"), np.floor(np.array(by_hand) / (100 * tokens)))


def test_a_plan_may_give_the_share() -> None:
    defaults = (("vllm", 0.92), ("tensorrt-llm", 0.9))
    given = places(*({**ONE_H100, "software": name, "memory fraction": share} for name, share in defaults))
    blank = places(*({**ONE_H100, "software": name} for name in ("vllm", "tensorrt-llm")))
    np.testing.assert_array_equal(given, blank)
    shares = [places({**ONE_H100, "software": "vllm"}, **{"memory fraction": share})[0] for share in (0.8, 0.9, 0.95)]
    assert shares[0] == 0.0 < shares[1] < shares[2]
    # SGLang keeps 13.3 GiB for activations unless told otherwise: these weights do not fit beside them.
    assert places({**ONE_H100, "software": "sglang"})[0] == 0.0
    assert places({**ONE_H100, "software": "sglang"}, **{"memory fraction": 0.95})[0] > 0.0


@pytest.mark.parametrize("software", ["vllm", "sglang", "tensorrt-llm", "nim", "turbomind", "lmdeploy", "another"])
@pytest.mark.parametrize("prompt", [500, 20_000])
def test_the_largest_batch_fits_and_one_more_does_not(software: str, prompt: int) -> None:
    plan = {**ONE_H100, "software": software, "num accelerators": 4, "tensor parallel": 2, "pipeline parallel": 2,
            "prompt length": prompt, "output length": 200}  # fmt: skip
    most = places(plan)[0]
    assert most >= 1.0
    result = results({**plan, "batch size": most}, {**plan, "batch size": most + 1})
    assert result.number("fits").tolist() == [1.0, 0.0]
    assert "the engine may use" in str(result.text("reason")[1])
    loaded = results({**plan, "mode": "continuous", "concurrency": 10 * most})
    # Engines that admit by the blocks in use count half of the 200 tokens still to come.
    assert loaded.number("running_batch")[0] <= most * (prompt + 200) / (prompt + 100)
    assert loaded.number("fits")[0] == 1.0


def test_a_larger_share_never_has_less_room() -> None:
    for software in ("vllm", "sglang", "tensorrt-llm", "turbomind"):
        plan = {**ONE_H100, "software": software, "accelerator": "H200-SXM-141GB", "mode": "continuous",
                "concurrency": 5000, "output length": 500}  # fmt: skip
        result = results(*({**plan, "memory fraction": share} for share in (0.6, 0.7, 0.8, 0.9, 1.0)))
        assert (np.diff(result.number("max_batch_size")) > 0.0).all()
        rates = result.number("tokens_per_second")
        # Steps of more requests cost the host more, so that the last of the gain may be lost again.
        assert (np.diff(rates) > -3e-3 * rates[1:]).all() and rates[-1] > rates[0]


def test_an_older_calibration_sheet_may_have_the_share_under_its_old_family() -> None:
    catalog = load_catalog()
    row = {"calibration": "own", "family": "serving_software", "software": "our-engine", "constant": "memory_fraction",
           "value": 0.5, "unit": "-"}  # fmt: skip
    own = catalog.with_tables([table_of("calibration", [row])])
    plan = table_from_rows("inference", [*ONE_H100, "software"], [[*ONE_H100.values(), "our-engine"]])
    assert 0.0 < evaluate(plan, own)["max_batch_size"][0] < 0.6 * evaluate(plan, catalog)["max_batch_size"][0]


SHARED = {"model": "Meta-Llama-3.1-70B", "accelerator": "H200-SXM-141GB", "num accelerators": 8, "tensor parallel": 8,
          "prompt length": 10_000, "output length": 1000, "batch size": 20, "kv precision": "bf16"}  # fmt: skip


def test_a_prefix_that_requests_share_is_held_once() -> None:
    result = results(SHARED, {**SHARED, "shared prefix": 0.75})
    cache, token = result.number("memory_kv_cache"), 2.0 * TOKEN / 8
    assert cache.tolist() == [20 * 11_000 * token, (20 * (2500 + 1000) + 7500) * token]
    # Attention reads the prefix for every request all the same.
    assert result.number("time_attention")[0] == result.number("time_attention")[1]
    free = result.number("max_batch_size") * np.array([11_000, 3500])
    assert free[0] - 7500 == pytest.approx(free[1], abs=11_000)


def test_each_copy_of_the_attention_layers_holds_the_prefix() -> None:
    plan = {**SHARED, "model": "DeepSeek-V3", "precision": "fp8", "shared prefix": 0.5}
    token = 61 * 576 * 2.0
    for copies in (1, 8):
        cache = results({**plan, "data parallel attention": copies}).number("memory_kv_cache")[0]
        assert cache == (math.ceil(20 / copies) * (5000 + 1000) + 5000) * token


def test_hits_leave_more_room_and_never_less_throughput() -> None:
    plan = {**SHARED, "batch size": "", "mode": "continuous", "concurrency": 3000}
    result = results(*({**plan, "shared prefix": rate} for rate in (0.0, 0.2, 0.5, 0.9)))
    assert (np.diff(result.number("max_batch_size")) > 0.0).all()
    assert (np.diff(result.number("tokens_per_second")) > 0.0).all()


def test_pools_send_what_the_decoding_pool_does_not_hold() -> None:
    plan = {**SHARED, "batch size": "", "mode": "disaggregated", "num accelerators": 16, "concurrency": 1,
            "output length": 500, "prompt length": 30_000}  # fmt: skip
    result = results(*({**plan, "shared prefix": rate} for rate in (0.0, 0.5, 0.9)))
    waits = result.number("ttft") - result.number("prefill_time")
    assert waits[0] > waits[1] > waits[2] > 0.0


def test_a_prefill_pool_has_to_hold_its_weights_and_a_prompt() -> None:
    plan = {**SHARED, "batch size": "", "precision": "bf16", "mode": "disaggregated", "num accelerators": 9,
            "concurrency": 8, "prefill accelerators": 1, "prefill tensor parallel": 1}  # fmt: skip
    result = results({**plan, "prefill accelerator": "H100-SXM-80GB"}, {**plan, "prefill accelerator": "MI300X"})
    assert result.number("fits").tolist() == [0.0, 1.0]
    assert "prefill pool: one prompt needs" in str(result.text("reason")[0])
    assert np.isfinite(result.number("ttft")).all()


def test_an_engine_may_keep_the_whole_history_of_layers_with_a_window() -> None:
    """18 of the 36 layers of gpt-oss attend to 128 tokens; vLLM drops what they no longer see."""
    row = {"model": "gpt-oss-120b", "accelerator": "B200-SXM-180GB", "num_accelerators": 1, "precision": "fp4",
           "prompt_length": 1000, "output_length": 9000, "memory_fraction": 0.9}  # fmt: skip
    window, whole = (load_catalog().with_tables([_history(value)]) for value in (0.0, 1.0))
    kept = [evaluate(table_of("inference", [row]), one).number("max_batch_size")[0] for one in (window, whole)]
    assert kept[0] / kept[1] == pytest.approx(10_000 / (0.5 * 10_000 + 0.5 * 128), rel=0.02)
    reasons = [str(evaluate(table_of("inference", [row]), load_catalog().with_tables([_history(value)]))["reason"][0])
               for value in (0.0, 1.0)]  # fmt: skip
    assert "whole history" not in reasons[0]
    assert "keeps the whole history in layers with a window of 128 tokens, 2 times the cache" in reasons[1]


def test_the_ranks_of_tensorrt_llm_hold_memory_of_one_accelerator() -> None:
    """Every rank keeps 590 MiB (issue 3058): the more ranks, the less of what weights leave is for the cache."""
    plan = {**ONE_H100, **LOADED, "software": "tensorrt-llm", "accelerator": "B200-SXM-180GB", "precision": "bf16"}
    rows = [{**plan, "num accelerators": ranks, "tensor parallel": ranks} for ranks in (1, 2, 4, 8)]
    catalog = load_catalog()
    key = ("serving_memory", "any", "any", "tensorrt-llm")
    words = (np.array([word], dtype=object) for word in key[1:])
    assert catalog.calibration.constants(key[0], *words)[0]["runtime_per_rank"].tolist() == [[6.19e8]]
    header = list(rows[0])
    plans = table_from_rows("inference", header, [[row[name] for name in header] for row in rows])
    none = calibration_table([FittedConstant(*key, "runtime_per_rank", 0.0, "", 0, math.nan, "", "")])
    without = catalog.with_tables([joined_tables(catalog.tables["calibration"], none)])
    more = evaluate(plans, without).number("max_batch_size") - places(*rows)
    assert (more * 100.0 * TOKEN * 2.0).tolist() == pytest.approx(
        (0.9 * 6.19e8 * np.array([1.0, 4.0, 16.0, 64.0])).tolist(), rel=0.1
    )


def test_an_engine_that_admits_by_the_blocks_in_use_runs_more_requests() -> None:
    """Prompts of 100 tokens, outputs of 3,900: 2,050 in the cache on average, 4,000 at the end.

    In a burst all are at their end at once, and one that keeps room for all of an answer lets no more in than fit.
    """
    plan = {"model": "Meta-Llama-3.1-70B", "accelerator": "H200-SXM-141GB", "num accelerators": 1, "precision": "fp8",
            "prompt length": 100, "output length": 3900, "mode": "continuous", "concurrency": 4000}  # fmt: skip
    engines = [{"software": name} for name in ("vllm", "sglang", "tensorrt-llm")]
    result = results(
        *engines, {"software": "vllm", "run requests": 4000}, {"software": "vllm", "run requests": 40000}, **plan
    )
    whole, running = result.number("max_batch_size"), result.number("running_batch")
    # Of a cycle, requests spend a part in their prefill: a few less run than there is room for.
    assert (running / whole).round(1).tolist() == [2.0, 1.8, 1.0, 1.0, 1.8]
    assert result.number("fits").tolist() == [1.0] * 5, "the cache is full, no more"


HYBRID = {"model": "Qwen3.5-27B", "accelerator": "H200-SXM-141GB", "num accelerators": 1, "precision": "fp8",
          "kv precision": "bf16", "prompt length": 8192, "output length": 1024, "software": "sglang",
          "memory fraction": 0.8}  # fmt: skip
STATES = 48 * (48 * 128 * 128 * 4.0 + 3 * 10_240 * 2.0)
"""States of a sequence of Qwen3.5 27B. [B]"""


def _split(slots: float) -> Catalog:
    """SGLang with 0.9 / 1.9 of the cache's memory for states, so many slots of them for each running request."""
    one = [
        FittedConstant("serving_memory", "any", "any", "sglang", name, value, "", 0, math.nan, "", "")
        for name, value in (("state_share", 0.9 / 1.9), ("state_slots", slots))
    ]
    catalog = load_catalog()
    return catalog.with_tables([joined_tables(catalog.tables["calibration"], calibration_table(one))])


def test_an_engine_that_splits_its_memory_runs_what_its_slots_of_states_hold() -> None:
    """47 % of 0.8 of 140.5 GiB less the weights, over 5 x 154 MB: 54 requests, not the 110 of one pool."""
    rows = [HYBRID, {**HYBRID, "state slots": 3}, {**HYBRID, "state slots": 1}]
    rows += [{**HYBRID, "state slots": 1, "max running batch": 500, "mode": "continuous", "concurrency": 500}]
    result = evaluated(_split(5.0), *rows)
    weights, capacity = result.number("memory_weights")[0], result.number("memory_capacity")[0]
    budget = 0.8 * (capacity - 0.5 * GIB - 3.2e8) - weights
    keys = 16 * 2 * 4 * 256 * 9216 * 2.0
    of_states = 0.9 / 1.9 * budget / STATES
    by_hand = [of_states / 5, min(of_states / 3, budget / 1.9 / keys), budget / 1.9 / keys, budget / (keys + STATES)]
    np.testing.assert_array_equal(result.number("max_batch_size"), np.floor(by_hand))
    assert by_hand[0] < 60.0 < by_hand[2] < by_hand[3], "without a prefix cache states are counted, keys have the rest"
    most = result.number("max_batch_size")[0]
    fits = evaluated(_split(5.0), {**HYBRID, "batch size": most}, {**HYBRID, "batch size": most + 1}).number("fits")
    assert fits.tolist() == [1.0, 0.0]


def test_slots_of_states_say_nothing_of_models_without_them() -> None:
    plain = {**HYBRID, "model": "Qwen3-32B"}
    result = [evaluated(catalog, plain).number("max_batch_size")[0] for catalog in (load_catalog(), _split(5.0))]
    assert result[0] == result[1] > 0.0


def test_pools_send_one_state_of_a_prompt_whatever_the_slots() -> None:
    pools = {**HYBRID, "mode": "disaggregated", "num accelerators": 2, "prefill accelerators": 1, "concurrency": 1}
    pools |= {"prompt length": 512, "transfer bandwidth": 5}
    times = [evaluated(_split(slots), pools).number("ttft")[0] for slots in (1.0, 5.0)]
    assert times[0] == times[1] > (STATES + 16 * 2 * 4 * 256 * 512 * 2.0) / 5e9


def _history(value: float) -> Table:
    key = ("serving_memory", "any", "any", "tensorrt-llm", "whole_history")
    return calibration_table([FittedConstant(*key, value, "", 0, math.nan, "", "")])


def test_attention_that_a_checkpoint_leaves_in_16_bits() -> None:
    """Meta's FP8 of Llama 3.1 405B quantises feed-forward layers alone: 126 x 570 M weights of 2 bytes, not 1."""
    plan = {"model": "Meta-Llama-3.1-405B", "accelerator": "H200-SXM-141GB", "num accelerators": 8}
    plan |= {"tensor parallel": 8, "prompt length": 1024, "output length": 64, "batch size": 8, "kv precision": "bf16"}
    cells = [{"precision": "fp8"}, {"precision": "fp8", "wide attention": "yes"}, {"precision": "bf16"}]
    cells += [{"precision": "bf16", "wide attention": "yes"}]
    result = results(*cells, **plan)
    narrow, mixed, wide, same = result.number("memory_weights").tolist()
    attention = 126 * (2 * 16384 * 16384 + 2 * 16384 * 8 * 128) / 8
    assert mixed - narrow == pytest.approx(attention, rel=0.01)
    assert wide == same
    for name in ("tpot", "time_matrix", "prefill_time", "energy_per_token"):
        narrow, mixed, wide, same = result.number(name).tolist()
        assert narrow < mixed < wide == same, name
    moe = {"model": "Qwen3-235B-A22B", "accelerator": "H200-SXM-141GB", "num accelerators": 4, "tensor parallel": 4}
    moe |= {"prompt length": 1024, "output length": 64, "batch size": 8, "precision": "fp8", "kv precision": "bf16"}
    result = results({}, {"wide attention": "yes"}, **moe)
    before, after = result.number("memory_weights").tolist()
    assert after - before == pytest.approx(94 * (2 * 4096 * 64 * 128 + 2 * 4096 * 4 * 128) / 4, rel=0.02)


LOGS = [
    # weights, room for the cache [GiB], width, vocabulary, libraries [GiB]
    pytest.param(14.99, 51.38, 4096, 128_256, 0.13, id="Llama 3.1 8B"),
    pytest.param(33.88, 32.00, 8192, 128_256, 0.55, id="Llama 3.3 70B on two"),
    pytest.param(67.72, -1.44, 8192, 128_256, 0.13, id="Llama 3.3 70B on one: no room"),
    pytest.param(1.12, 64.45, 1024, 151_936, 0.13, id="Qwen3 0.6B"),
    pytest.param(13.47, 50.28, 2880, 201_088, 0.13, id="gpt-oss-20b"),
]
"""Starts of vLLM 0.11 on H100 of 79.18 GiB, of which it takes 0.9 [llm-d-benchmark, config_explorer, 2025]."""


@pytest.mark.parametrize(("weights", "room", "hidden_size", "vocab_size", "libraries"), LOGS)
def test_what_vllm_measures_at_its_start(
    weights: float, room: float, hidden_size: int, vocab_size: int, libraries: float
) -> None:
    """Choosing tokens for 1,024 requests by a sort takes more than the prefill, and goes with the vocabulary."""
    hidden = 8192 * hidden_size * 2.0
    taken = _sampling_peak(hidden, hidden, 1024.0, vocab_size, 38.3)
    assert 0.9 * 79.18 - weights - libraries - float(taken) / GIB == pytest.approx(room, abs=0.25)


def test_the_most_requests_of_vllm_take_room_from_its_cache() -> None:
    plan = {**ONE_H100, "model": "Meta-Llama-3.1-8B", "precision": "bf16", **LOADED}
    few, many, unsaid = places(
        *({**plan, "max running batch": most} for most in (1024, 4096, "")), software="vllm", **{"prefill tokens": 8192}
    )
    lost = (few - many) * 100 * 32 * 2 * 8 * 128 * 2
    assert lost == pytest.approx(3072 * 128_256 * 14, rel=0.02)
    assert unsaid == few
    # An engine that does not measure has the same room whatever it would run together.
    few, many = places(*({**plan, "max running batch": most} for most in (1024, 4096)), software="sglang")
    assert few == many


def test_vllm_of_2024_keeps_buffers_that_are_added_up_in_the_switch() -> None:
    """Llama 3.1 405B in 16 bits on eight H200: 17,595 blocks of 16 tokens in vLLM 0.6.3 [vLLM issue 9699].

    302 MB for each rank and two communicators from three ranks on; beside that the logits are sorted.
    """
    plan = {**ONE_H100, **LOADED, "model": "Meta-Llama-3.1-405B", "precision": "bf16", "accelerator": "H200-SXM-141GB",
            "num accelerators": 8, "tensor parallel": 8, "max running batch": 1024, "prefill tokens": 1024}  # fmt: skip
    early, late = places(
        {**plan, "software": "vllm-0.6"}, {**plan, "software": "vllm", "software release": "0.19.1"}
    ) * 100  # fmt: skip
    assert early == pytest.approx(17_595 * 16, rel=0.2)
    token = 126 * 2 * 8 * 128 * 2 / 8
    assert (late - early) * token == pytest.approx(8 * 6.04e8 + 1024 * 128_256 * (38.3 - 14.0), rel=0.02)
    # Two ranks have none, nor have accelerators without such a switch.
    small = {**plan, "model": "Meta-Llama-3.1-8B", "num accelerators": 2, "tensor parallel": 2}
    ampere = {**small, "accelerator": "A100-SXM4-80GB", "num accelerators": 4, "tensor parallel": 4}
    for alike in (small, ampere):
        early, late = (
            places({**alike, "software": "vllm-0.6"}, {**alike, "software": "vllm", "software release": "0.19.1"}) * 100
        )
        held = 32 * 2 * 8 * 128 * 2 / alike["tensor parallel"]
        assert (late - early) * held == pytest.approx(1024 * 128_256 * (38.3 - 14.0), rel=0.02)


def test_tokens_that_the_cache_holds_are_a_result() -> None:
    """TensorRT-LLM issue 1400: 132,608 tokens of 524,288 B on one H100; and a part of a request where none fits."""
    stated = {"model": "Llama2-7B", "accelerator": "H100-SXM-80GB", "num accelerators": 1, "precision": "fp16"}
    long = {**stated, "prompt length": 300_000, "output length": 1}
    result = results({**stated, "prompt length": 15, "output length": 1}, long)
    concurrency, tokens = result.number("max_concurrency"), result.number("kv_cache_tokens")
    np.testing.assert_array_equal(np.floor(concurrency), result.number("max_batch_size"))
    assert 0.0 < concurrency[1] < 1.0
    assert tokens[0] == pytest.approx(16.0 * concurrency[0]) and tokens[0] == pytest.approx(tokens[1], rel=0.02)
