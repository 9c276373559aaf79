"""The fleets that serve a demand: engines, loads, limits and words of the answer of a form."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest

from xlperf.base.errors import InputError
from xlperf.base.resources import stack_rows
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.equations.serving.vision import encode_pool_size
from xlperf.explore.fleet_plans import ONE, TWO, engines_of
from xlperf.explore.forms import answer_of, evaluate_forms, tables_of, ways_of
from xlperf.explore.objectives import TABLES
from xlperf.explore.serve import serving_ways

Asked = dict[str, Any]
SERVER = 8.0


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def form_of(asked: Asked) -> Table:
    return table_from_rows("serve", [name.replace("_", " ") for name in asked], [list(asked.values())])


def kept(results: Table, asked: Asked) -> np.ndarray:
    good = (results.number("fits") == 1.0) & (results.number("tpot") <= (1.0 + 1e-9) / asked["speed_per_user"])
    return np.asarray(good & (results.number("ttft") <= 1e-3 * asked["ttft_target"] * (1.0 + 1e-9)))


SMALL = {"model": "Meta-Llama-3.1-8B", "accelerator": "H100-SXM-80GB", "users": 400.0, "prompt_length": 1000.0,
         "output_length": 200.0, "speed_per_user": 30.0, "ttft_target": 1000.0}  # fmt: skip


@pytest.fixture(scope="module")
def free(catalog: Catalog) -> list[Any]:
    """Ways of the small demand, every engine among them."""
    return list(serving_ways(form_of(SMALL), catalog))


def test_ways_are_engines_with_one_pool_and_two_and_each_is_an_answer(catalog: Catalog) -> None:
    plans, answers = ways_of(form_of(SMALL), catalog)
    pairs = set(zip(plans["software"].tolist(), plans["mode"].tolist(), strict=True))
    assert pairs == set(itertools.product(("sglang", "vllm", "tensorrt-llm"), (ONE, TWO)))
    assert answers.number("accelerators").tolist() == sorted(answers.number("accelerators").tolist())
    second = answer_of(form_of(SMALL | {"way": 2.0}), catalog)
    for name in ("accelerators", "software", "trust", "tpot", "way"):
        assert second[name] == answers[name][1]
    results = evaluate(plans, catalog)
    for name in ("tpot", "ttft", "tokens_per_second_per_accelerator", "cost_per_million_output_tokens_all_in"):
        assert results.number(name).tolist() == answers.number(name).tolist()
    low, sure, high = (answers.number(f"accelerators_{end}") for end in ("low", "sure", "high"))
    assert (low <= sure).all() and (sure <= high).all() and (answers.number("accelerators") <= sure).all()
    assert (
        tables_of(form_of(SMALL), catalog)["ways"].number("accelerators").tolist() == answers["accelerators"].tolist()
    )
    none = answer_of(form_of(SMALL | {"way": 9.0}), catalog)
    assert none["answer"] == "No answer: way 9 is asked for, and 6 ways are known."


def test_owning_is_a_newsvendor_and_certainty_costs_nothing(catalog: Catalog) -> None:
    answer = answer_of(form_of(SMALL | {"users": 40_000.0, "software": "vllm", "mode": ONE}), catalog)
    own, rent, table = answer["owned_hour_cost"], answer["rented_hour_cost"], answer[TABLES]["owning"]
    numbers, regret = table.number("owned"), table.number("monthly_regret")
    assert (np.diff(numbers) > 0.0).all() and (np.diff(table.number("enough_share")) > 0.0).all()
    assert numbers[np.argmin(regret)] == answer["accelerators_to_own"] and regret.min() == answer["monthly_regret"]
    best = table.number("enough_share")[np.argmin(regret)]
    assert best - 0.15 < 1.0 - own / rent <= best  # the newsvendor's probability, in whole servers
    needed = table.number("rented") - table.number("idle") + numbers
    assert needed == pytest.approx(needed[0])  # in the mean, however many are owned
    month = table.number("monthly_cost") - regret
    assert month == pytest.approx(min(own, rent) * needed[0] * 730.0 * 3600.0)
    assert 0.0 < answer["run_worth"] < answer["monthly_regret"]


def test_images_are_served_as_the_plan_of_the_answer(catalog: Catalog) -> None:
    asked = SMALL | {"model": "Qwen2.5-VL-7B", "software": "vllm", "mode": ONE}
    form = form_of(asked | {"images": 2.0, "image_width": 1280.0, "image_height": 720.0})
    answer, plan = answer_of(form, catalog), ways_of(form, catalog)[0].take([0])
    assert answer["image_tokens_per_request"] == 2 * 1196.0
    assert answer["ttft"] == evaluate(plan, catalog).number("ttft")[0]
    # As many tokens of text need no encoder; without images their size is of no consequence.
    text, alone, none = (
        answer_of(form_of(asked | more), catalog)
        for more in ({"prompt_length": 1000.0 + 2392.0}, {}, {"images": 0.0, "image_width": 64.0})
    )
    assert text["monthly_cost"] <= answer["monthly_cost"] and text["encode_time"] == 0.0 < answer["encode_time"]
    assert none["answer"] == alone["answer"] and none["encode_accelerators"] == 0.0
    # A pool that encodes for all copies is counted and paid for as the accelerators of the copies.
    pooled = answer_of(form_of(asked | {"images": 8.0, "image_width": 1280.0, "encoder_split": "pool"}), catalog)
    least = encode_pool_size(pooled["request_rate"] * pooled["encode_time"])
    assert least <= pooled["encode_accelerators"] <= least * (1.0 + pooled["head_room"]) + 1.0  # copies that are full
    needed = pooled["copies"] * pooled["copy_size"] + pooled["encode_accelerators"]
    assert needed <= pooled["accelerators"] < needed + pooled["server_size"]
    for one in (answer, pooled):
        assert one["users"] == SMALL["users"] <= one["copies"] * one["concurrency"]
    assert pooled["monthly_cost"] == pytest.approx(pooled["accelerators"] * pooled["hour_price"] * 730.0 * 3600.0)
    assert f"{pooled['encode_accelerators']:.0f} encode images" in pooled["answer"]
    assert "has no vision encoder" in answer_of(form_of(SMALL | {"images": 1.0}), catalog)["answer"]


@pytest.mark.parametrize("software", ["vllm", "sglang", "TensorRT-LLM"])
def test_an_engine_that_the_form_names_is_the_only_one(catalog: Catalog, free: list[Any], software: str) -> None:
    own = serving_ways(form_of(SMALL | {"software": software}), catalog)
    assert {way.plan["software"][0] for way in own} == {software.casefold()}
    assert own[0].accelerators >= free[0].accelerators
    fixed = [way for way in free if way.plan["software"][0] == software.casefold()]
    assert [way.accelerators for way in own] == pytest.approx([way.accelerators for way in fixed], rel=0.01)


@pytest.mark.parametrize(
    ("accelerator", "software", "words"),
    [
        ("MI300X", "tensorrt-llm", "TensorRT-LLM does not run on MI300X; engines that do: sglang, vllm; or auto"),
        ("Trainium2", "sglang", "SGLang does not run on Trainium2; engines that do: vllm"),
        ("H100-SXM-80GB", "jetstream", "jetstream does not run on H100-SXM-80GB; engines that do: sglang, vllm"),
        ("Trainium2", "transformers-neuronx", "transformers-neuronx does not run on Trainium2; engines that do: vllm"),
        ("H100-SXM-80GB", "vlllm", 'unknown serving engine "vlllm"; did you mean vllm'),
    ],
)
def test_an_engine_that_does_not_run_there_is_refused_by_name(
    catalog: Catalog, accelerator: str, software: str, words: str
) -> None:
    asked = SMALL | {"accelerator": accelerator, "software": software}
    with pytest.raises(InputError) as result:
        serving_ways(form_of(asked), catalog)
    assert words in str(result.value)


def test_every_accelerator_of_the_catalog_has_an_engine_and_every_row_a_source(catalog: Catalog) -> None:
    known = stack_rows("engine")
    assert all(row["source"] for row in known)
    named = {row["vendor"] for row in known}
    table = catalog.tables["accelerators"]
    assert {vendor.casefold() or "nvidia" for vendor in table.text("vendor").tolist()} <= named
    for name in table.text("accelerator").tolist():
        result = engines_of(form_of(SMALL | {"accelerator": name}), catalog)
        assert result and all(catalog.calibration.knows_software("serving_software", one) for one in result)


def test_people_times_their_active_share_are_in_flight(catalog: Catalog) -> None:
    few = answer_of(form_of(SMALL), catalog)
    many = answer_of(form_of(SMALL | {"users": 4000.0, "active_share": 0.1}), catalog)
    assert many["users"] == few["users"] == 400.0
    assert many["accelerators"] == few["accelerators"]


def test_a_rate_and_the_users_that_it_makes_need_the_same_fleet(catalog: Catalog) -> None:
    """Little's law: of requests that arrive at a rate as many are in flight as the answer says."""
    for mode in (ONE, TWO):
        rated = {name: value for name, value in SMALL.items() if name != "users"} | {
            "request_rate": 100.0,
            "mode": mode,
            "software": "vllm",
        }
        result = answer_of(form_of(rated), catalog)
        again = answer_of(form_of(SMALL | {"users": result["users"], "mode": mode, "software": "vllm"}), catalog)
        assert result["accelerators"] == pytest.approx(again["accelerators"], abs=8.0)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"speed_per_user": 5000.0}, r"token/s at most .* 5,000 token/s are [\d.]+ times as many: ask for less"),
        ({"ttft_target": 1.0}, r"first token within 0\.001 s is [\d.]+ times as soon: ask for less"),
        (
            {"model": "DeepSeek-V3", "accelerator": "H200-SXM-141GB", "speed_per_user": 115.0, "ttft_target": 145.0},
            r"with a first token within 0\.145 s a user gets \d+ token/s",
        ),
        ({"model": "DeepSeek-V3", "num_accelerators": 2.0}, r"needs .* GiB.*; larger copies or weights of fewer bits"),
        ({"concurrency": 60_000.0, "num_accelerators": 1.0}, r"60,000 users of one copy are too many"),
    ],
)
def test_a_demand_that_no_way_meets_says_which_limit_and_by_how_much(
    catalog: Catalog, changed: Asked, words: str
) -> None:
    result = answer_of(form_of(SMALL | changed), catalog)
    assert result["answer"].startswith("No answer: ") and re.search(words, result["answer"]), result["answer"]
    assert "accelerators" not in result


def test_copies_of_a_given_size_and_load_are_kept(catalog: Catalog) -> None:
    for mode in (ONE, TWO):
        asked = SMALL | {"mode": mode, "software": "vllm"}
        sized = answer_of(form_of(asked | {"num_accelerators": 8.0}), catalog)
        assert sized["copy_size"] == 8.0
        loaded = answer_of(form_of(asked | {"concurrency": 50.0}), catalog)
        assert loaded["concurrency"] == 50.0 and loaded["copies"] == 8.0
        free = answer_of(form_of(asked), catalog)
        assert free["accelerators"] <= min(sized["accelerators"], loaded["accelerators"])


def test_what_a_form_sets_is_held_against_the_best_way(catalog: Catalog) -> None:
    """The best way is the answer of the same form with all left open that it sets."""
    many = SMALL | {"users": 20_000.0}
    free = evaluate_forms(form_of(many), catalog)
    own = evaluate_forms(form_of(many | {"software": "vllm", "mode": ONE}), catalog)
    assert free["best_way"][0] == "none" and own["accelerators"][0] > free["accelerators"][0]
    assert own["best_accelerators"][0] == free["accelerators"][0]
    assert own["best_way"][0].startswith(f"As you set it: {own['accelerators'][0]:,.0f}; the best way takes")


def test_no_user_waits_for_prefill_without_a_target_of_the_first_token(catalog: Catalog) -> None:
    """Little's law: at most a hundredth of the requests in flight wait for a pass of the prefill pool or a place."""
    asked = {name: value for name, value in SMALL.items() if name != "ttft_target"} | {"mode": TWO}
    ways = serving_ways(form_of(asked), catalog)
    assert ways
    for way in ways:
        results = evaluate(way.plan, catalog)
        waiting = results.number("tokens_per_second") / 200.0 * results.number("queue_time")
        assert (waiting <= 0.01 * way.plan.number("concurrency")).all()


def test_machines_that_would_meet_a_demand_are_named(catalog: Catalog) -> None:
    fast = {"model": "Meta-Llama-3.1-405B", "accelerator": "A100-SXM4-80GB", "speed_per_user": 60.0}
    none = evaluate_forms(form_of(SMALL | fast), catalog)
    assert none["answer"][0].startswith("No answer: ")
    named = none["best_way"][0].removesuffix(" would serve this").split(", ")
    assert "B200" in named and "A100" not in named
    other = form_of(SMALL | fast | {"accelerator": "B200-SXM-180GB", "mode": ONE, "software": "sglang"})
    assert serving_ways(other, catalog)


def test_a_prefill_pool_may_have_other_accelerators(catalog: Catalog) -> None:
    """Both kinds in whole servers; the engine says of the plan what the answer does; price is that of both."""
    asked = SMALL | {"prefill_accelerator": "H200-SXM-141GB", "mode": TWO, "software": "sglang"}
    (way,) = serving_ways(form_of(asked), catalog)
    assert way.plan["prefill_accelerator"][0] == "H200-SXM-141GB"
    assert kept(evaluate(way.plan, catalog), asked).all()
    result = answer_of(form_of(asked), catalog)
    whole, prefill = (way.plan.number(name)[0] for name in ("num_accelerators", "prefill_accelerators"))
    counts = [float(np.ceil(result["copies"] * part / SERVER - 1e-9) * SERVER) for part in (whole - prefill, prefill)]
    assert result["accelerators"] == sum(counts) == result["servers"] * SERVER
    assert result["answer"].startswith(f"{counts[0]:,.0f} H100 and {counts[1]:,.0f} H200 in ")
    with pytest.raises(InputError, match="SGLang does not run on TPUv5p"):
        serving_ways(form_of(asked | {"prefill_accelerator": "TPUv5p"}), catalog)


def test_the_curve_of_a_way_goes_through_its_answer(catalog: Catalog) -> None:
    result, full = answer_of(form_of(SMALL), catalog), serving_ways(form_of(SMALL), catalog)[0].results
    assert result["curve_speed_6"] == pytest.approx(full["tokens_per_second_per_user"][0], rel=1e-12)
    assert result["curve_throughput_6"] == pytest.approx(full["tokens_per_second_per_accelerator"][0], rel=1e-12)
    speeds, rates = ([result[f"curve_{name}_{n}"] for n in range(1, 9)] for name in ("speed", "throughput"))
    assert speeds == sorted(speeds, reverse=True) and rates == sorted(rates)


def test_the_precision_of_the_cache_is_open_unless_the_form_states_it(catalog: Catalog) -> None:
    """Products in 16 bits and a narrow cache need no more than a wide one; A100 does not compute in FP8."""
    bf16 = SMALL | {"precision": "bf16", "mode": ONE, "software": "vllm"}
    free = answer_of(form_of(bf16), catalog)
    own = {name: answer_of(form_of(bf16 | {"kv_precision": name}), catalog) for name in ("fp8", "bf16")}
    assert free["accelerators"] == min(answer["accelerators"] for answer in own.values())
    assert free["kv_precision"] == "fp8" and free["answer"].endswith("Cache in FP8.")
    assert answer_of(form_of(bf16 | {"accelerator": "A100-SXM4-80GB"}), catalog)["kv_precision"] == "bf16"


def test_a_stated_price_answers_alike_whatever_was_asked_before(catalog: Catalog) -> None:
    """Pools of two kinds of accelerators are ranked by price; a stated price makes both kinds alike."""
    asked = SMALL | {"prefill_accelerator": "H200-SXM-141GB", "mode": TWO, "software": "sglang"}
    stated = asked | {"hour_price": 2.0}
    after = [
        [(way.accelerators, way.price) for way in serving_ways(form_of(form), catalog)] for form in (asked, stated)
    ]
    other = load_catalog()
    before = [[(way.accelerators, way.price) for way in serving_ways(form_of(form), other)] for form in (stated, asked)]
    assert after == before[::-1] and after[0] != after[1]
