"""The form Train: the whole mapping is chosen, it starts, and it is the best of what the engine models."""

from __future__ import annotations

import math
import re
from itertools import product
from typing import Any

import numpy as np
import pytest

from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.explore.forms import evaluate_forms, form_of
from xlperf.explore.mappings import refused_reasons, shape_of
from xlperf.explore.objectives import PLAN, TABLES, band_factor, one_plan
from xlperf.explore.train import SEARCHED, best_mapping, train_answer, ways
from xlperf.explore.uncertainty import unread_score
from xlperf.interop.launch import launch_lines

DAY = 86_400.0
DENSE = {"model": "Meta-Llama-3.1-70B", "accelerator": "H100-SXM-80GB", "num_accelerators": "256",
         "training_tokens": "2", "sequence_length": "8192", "global_batch_size": "1024"}  # fmt: skip
MIXTURE = {**DENSE, "model": "DeepSeek-V3", "num_accelerators": "2048", "training_tokens": "14.8"}
SMALL = {**DENSE, "model": "Meta-Llama-3.1-8B", "num_accelerators": "16", "global_batch_size": "32"}


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def answered(catalog: Catalog, words: dict[str, str], **more: str) -> dict[str, Any]:
    form = form_of("train", {**words, **more})
    return {name: values[0] for name, values in evaluate_forms(form, catalog).columns.items()}


def open_plan(words: dict[str, str], software: str = "megatron", **fixed: Any) -> Table:
    """A plan as the form has it: every column that is searched open."""
    numbers = {
        name: np.array([float(words[name])]) for name in ("num_accelerators", "sequence_length", "global_batch_size")
    }
    columns: dict[str, Any] = {name: np.array([words[name]], dtype=object) for name in ("model", "accelerator")}
    columns |= numbers | {"software": np.array([software], dtype=object), "precision": np.array(["bf16"], dtype=object)}
    blank = {name: "" if name in ("recompute", "pipeline_schedule") else np.nan for name in SEARCHED}
    columns |= {name: np.array([value], dtype=object if isinstance(value, str) else np.float64)
                for name, value in {**blank, **fixed}.items()}  # fmt: skip
    form = form_of("train", words)
    return one_plan("training", columns, SEARCHED, form)


def test_the_first_answer_starts_and_is_no_slower(catalog: Catalog) -> None:
    """70B on 256 H100: 75.39 days with virtual pipeline 14 of 20 layers, which Megatron-Core refuses."""
    result = answered(catalog, DENSE)
    assert result["run_time"] <= 1.002 * 75.3875 * DAY
    stages = 80.0 / result["pipeline_parallel"]
    assert stages % result["virtual_pipeline"] == 0.0


def test_a_mixture_is_mapped_as_a_whole(catalog: Catalog) -> None:
    """DeepSeek-V3 on 2,048 H100: 116 days with full recomputation and 30 GiB free."""
    result = answered(catalog, MIXTURE)
    assert result["run_time"] <= 100.0 * DAY
    assert result["recompute"] != "full" and result["memory_free"] < 15.0 * 2.0**30


@pytest.mark.parametrize("words", [DENSE, MIXTURE, SMALL])
def test_the_mapping_starts_and_is_launched(catalog: Catalog, words: dict[str, str]) -> None:
    plan = best_mapping(open_plan(words), catalog).plans
    assert refused_reasons(plan, catalog) == [""]
    assert any("--seq-length 8192" in line for line in launch_lines(plan, "megatron", shape_of(plan, catalog)))


def test_the_answer_is_that_of_brute_force(catalog: Catalog) -> None:
    """Every degree, schedule and way to save memory of 8B on 16 H100, evaluated one by one."""
    plan = open_plan(SMALL)
    result = best_mapping(plan, catalog)
    degrees = [1.0, 2.0, 4.0, 8.0, 16.0]
    rows = [
        {"model": SMALL["model"], "accelerator": SMALL["accelerator"], "num accelerators": 16, "sequence length": 8192,
         "global batch size": 32, "tensor parallel": tensor, "pipeline parallel": stages, "virtual pipeline": chunks,
         "context parallel": context, "micro batch size": micro, "recompute": way.recompute,
         "recompute modules": way.modules or None, "recompute layers": layers(way.share, stages),
         "zero stage": None if np.isnan(way.zero) else way.zero}
        for tensor, stages, context in product(degrees, degrees, degrees)
        if tensor * stages * context <= 16.0
        for chunks in ((1, 2, 4, 8, 16) if stages > 1.0 else (1,))
        for micro in (1, 2, 4)
        for way in ways(plan, catalog)
        if np.isnan(way.share) or chunks == 1
    ]  # fmt: skip
    table = table_from_rows("training", list(rows[0]), [list(row.values()) for row in rows], lambda _, column: column)
    results = evaluate(table, catalog)
    good = (results.number("fits") == 1.0) & [not why for why in refused_reasons(table, catalog)]
    assert good.sum() > 1000
    assert result.results.number("step_time")[0] <= results.number("step_time")[good].min() * (1.0 + 1e-12)


def layers(share: float, stages: float) -> float | None:
    return None if np.isnan(share) else float(np.ceil(share * 32.0 / stages))


def test_what_a_form_states_is_kept(catalog: Catalog) -> None:
    stated = {"tensor_parallel": "8", "recompute": "full", "zero_stage": "1", "context_parallel": "1"}
    result = answered(catalog, DENSE, **stated)
    assert [result[name] for name in stated] == [8.0, "full", 1.0, 1.0]
    assert result["run_time"] >= answered(catalog, DENSE)["run_time"]


def test_precision_is_chosen_if_it_is_auto(catalog: Catalog) -> None:
    wide, chosen = (answered(catalog, SMALL, precision=word) for word in ("bf16", "auto"))
    assert (wide["precision"], chosen["precision"]) == ("bf16", "fp8-current") and chosen["run_time"] < wide["run_time"]
    old = answered(catalog, {**SMALL, "accelerator": "A100-SXM4-80GB"}, precision="auto")
    assert old["precision"] == "bf16"


def test_settings_of_the_stack_are_switched_on_said_and_launched(catalog: Catalog) -> None:
    """CUDA graphs exclude recomputation: the mixture without it has them, and stating its mapping gives its answer."""
    words = {**SMALL, "model": "Qwen3-30B-A3B", "num_accelerators": "64"}
    form = form_of("train", words)
    answer = train_answer(form, catalog)
    plan = answer[PLAN]
    assert "fused cross entropy, CUDA graphs of the layers" in answer["defaults_used"]
    lines = "".join(launch_lines(plan, "megatron", shape_of(plan, catalog)))
    assert "--cross-entropy-loss-fusion" in lines and "--cuda-graph-impl" in lines
    stated = {name: each if isinstance(each := answer[name], str) else f"{each:g}" for name in SEARCHED}
    again = train_answer(form_of("train", words | stated), catalog)
    assert [again[name] for name in ("answer", "defaults_used")] == [
        answer[name] for name in ("answer", "defaults_used")
    ]
    assert "graphs" not in train_answer(form_of("train", words | {"recompute": "full"}), catalog)["defaults_used"]


def test_stating_the_mapping_of_a_large_dense_model_gives_its_answer(catalog: Catalog) -> None:
    """Selective recomputation is of the modules that make it fit, stated or not."""
    answer = answered(catalog, DENSE)
    assert (answer["recompute"], answer["recompute_modules"] == "") == ("selective", False)
    stated = {name: each if isinstance(each := answer[name], str) else f"{each:g}" for name in SEARCHED}
    again = answered(catalog, DENSE, **stated)
    assert [again[name] for name in ("answer", "recompute_modules")] == [
        answer[name] for name in ("answer", "recompute_modules")
    ]


def test_the_optimizer_goes_to_the_host_where_nothing_else_fits(catalog: Catalog) -> None:
    assert answered(catalog, DENSE)["offload_optimizer"] == 0.0
    tight = answered(catalog, {**DENSE, "num_accelerators": "8"})
    assert tight["offload_optimizer"] == 1.0 and tight["memory_free"] > 0.0


def test_another_stack_has_its_own_schedules(catalog: Catalog) -> None:
    """torchtitan shards weights with the optimizer and knows zero-bubble schedules; Megatron-Core does not."""
    result = best_mapping(open_plan(SMALL, "torchtitan"), catalog).plans
    assert result.number("zero_stage")[0] in (2.0, 3.0) and refused_reasons(result, catalog) == [""]


def test_a_deadline_is_met_in_whole_servers(catalog: Catalog) -> None:
    """No fewer servers do, whether or not their accelerators make equal stages."""
    words = {name: text for name, text in DENSE.items() if name != "num_accelerators"} | {"training_tokens": "1"}
    result = answered(catalog, words, deadline="30")
    assert result["run_time"] <= 30.0 * DAY and result["accelerators"] % 8.0 == 0.0
    for fewer in (8.0, 16.0):
        one = answered(catalog, words, num_accelerators=f"{result['accelerators'] - fewer:g}")
        assert not one["run_time"] <= 30.0 * DAY
    again = answered(catalog, words, deadline="30", num_accelerators=f"{result['accelerators']:g}")
    assert again["answer"] == result["answer"]  # stating the answer gives the answer


def test_a_stated_mapping_that_the_stack_refuses_is_the_best_of_its_kind_and_says_why(catalog: Catalog) -> None:
    """Virtual pipeline 14 of 20 layers a stage: legal for the engine, and no reason for full recomputation."""
    stated = answered(catalog, DENSE, pipeline_parallel="4", virtual_pipeline="14")
    assert stated["run_time"] <= 1.01 * answered(catalog, DENSE)["run_time"]
    assert "Megatron-Core refuses this: virtual pipeline 14 does not divide" in stated["answer"]
    assert "refuses" not in answered(catalog, DENSE)["answer"]


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"num_accelerators": "2"}, r"each of 2 H100 needs [\d.]+ GiB of [\d.]+ GiB; more accelerators may do"),
        ({"tensor_parallel": "3"}, r"data parallel must be a whole number, is 85.*; tensor parallel left open may do"),
    ],
)
def test_a_run_without_a_mapping_says_why_and_what_may_do(catalog: Catalog, stated: dict[str, str], words: str) -> None:
    assert re.search(words, answered(catalog, DENSE, **stated)["answer"])


def test_a_deadline_beyond_reach_is_refused_with_the_largest_run(catalog: Catalog) -> None:
    words = {name: text for name, text in DENSE.items() if name != "num_accelerators"}
    assert answered(catalog, words, deadline="0.001")["answer"].startswith("No answer: 16,384 H100 still take 2 days")


def test_owning_for_a_run_is_a_newsvendor_in_whole_replicas_and_servers(catalog: Catalog) -> None:
    """Without a deadline the predicted time is the date: brute force over 199 equally likely times of the run."""
    answer = train_answer(form_of("train", SMALL), catalog)
    plan, own, rent = answer[PLAN], answer["owned_hour_cost"], answer["rented_hour_cost"]
    results = evaluate(plan, catalog)
    scores = unread_score((np.arange(199) + 0.5) / 199.0, "step_time")
    factors = [float(band_factor(results, "step_time", np.array([score]))[0]) for score in scores.tolist()]
    needs = [8.0 * math.ceil(16.0 * factor / 8.0 - 1e-9) for factor in factors]
    regret = {
        owned: np.mean([own * owned + rent * max(need - owned, 0.0) - min(own, rent) * need for need in needs])
        * answer["run_time"]
        for owned in sorted({0.0, *needs})
    }
    best = min(regret, key=lambda owned: regret[owned])
    assert answer["accelerators_to_own"] == best and answer["run_regret"] == pytest.approx(regret[best])
    table = answer[TABLES]["owning"]
    shown = (table.number(name) for name in ("owned", "run_regret", "enough_share"))
    for owned, lost, enough in zip(*shown, strict=True):
        assert lost == pytest.approx(regret[owned])
        assert enough == pytest.approx(np.mean([need <= owned for need in needs]))
    assert 0.0 <= answer["run_worth"] <= answer["run_regret"]
    assert answer["run_time_sure"] == pytest.approx(answer["run_time"] * np.quantile(factors, 0.8), rel=0.01)
    late = train_answer(form_of("train", SMALL | {"deadline": f"{2.0 * answer['run_time'] / DAY}"}), catalog)
    assert late["accelerators_to_own"] <= best and late["answer"] == answer["answer"]
