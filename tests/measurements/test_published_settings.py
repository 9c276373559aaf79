"""Settings of published runs: stated in a row, by the documents of its software, or by the script that ran it."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from published_samples import edited, one, plan_of

from xlperf.catalog.catalog import Catalog
from xlperf.measurements.inference import inference_plans
from xlperf.measurements.published import Published
from xlperf.measurements.training import training_plans


def test_settings_that_a_source_states_are_columns_of_the_plan(inference: Published, catalog: Catalog) -> None:
    """I00078 has several requests in flight on SGLang: what it states wins over what its engine or benchmark does."""
    assert inference_plans(one(inference, "I00078"), catalog).plans["run_requests"][0] != 77.0
    said = "run_requests=77; output variation=0.5; graphs=no; graph tokens=64"
    stated = inference_plans(edited(inference, "I00078", settings=said), catalog).plans
    result = [stated[name][0] for name in ("run_requests", "output_variation", "graphs", "graph_tokens")]
    assert result == [77.0, 0.5, 0.0, 64.0]
    alone = inference_plans(edited(inference, "I00077", settings="run_requests=77; graphs=no"), catalog).plans
    assert np.isnan(alone["run_requests"][0]) and alone["graphs"][0] == 0.0, "a static batch is no run"
    served = inference_plans(edited(inference, "I00077", settings="max running batch=32"), catalog).plans
    assert (served["mode"][0], served["concurrency"][0], served["max_running_batch"][0]) == ("continuous", 1.0, 32.0)
    for wrong, words in (("speed=3", "is no column of a plan"), ("graphs=maybe", "needs a number")):
        refused = inference_plans(edited(inference, "I00078", settings=wrong), catalog)
        assert words in refused.reasons[0]


def test_settings_of_a_training_row_win_over_its_columns(training: Published, catalog: Catalog) -> None:
    """T00855 is torchtitan in BF16 with selective recomputation, whose modules its software chooses."""
    row = "T00855"
    before = training_plans(one(training, row), catalog).plans
    assert (before["recompute"][0], before["recompute_modules"][0]) == ("selective", "")
    said = "master_weights=none; moment precision=bf16; recompute=full; data_overlap=no; offload optimizer=0.5"
    plans = training_plans(edited(training, row, settings=said), catalog).plans
    names = ("master_weights", "moment_precision", "recompute", "recompute_modules", "data_overlap")
    assert [plans[name][0] for name in names] == ["none", "bf16", "full", "", 0.0]
    assert plans["offload_optimizer"][0] == 0.5 and plans["cross_entropy"][0] == before["cross_entropy"][0]
    mapped = training_plans(edited(training, row, tp="", settings="tensor parallel=1; precision=fp8"), catalog).plans
    assert (mapped["tensor_parallel"][0], mapped["precision"][0]) == (1.0, "fp8")
    exact = training_plans(edited(training, row, settings="recompute_modules=core_attention mlp"), catalog).plans
    assert exact["recompute_modules"][0] == "core_attention mlp"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("speed=3", "is no column of a plan"),
        ("run_requests=3", "is no column of a plan"),
        ("compiled=maybe", "needs a number"),
        ("master_weights=bf16", "is none of fp32, remainder, none"),
        ("compiled=yes; compiled=no", "gives a column twice"),
    ],
)
def test_settings_of_a_training_row_that_say_nothing_are_refused(
    wrong: str, words: str, training: Published, catalog: Catalog
) -> None:
    refused = training_plans(edited(training, "T00855", settings=wrong), catalog)
    assert words in refused.reasons[0] and len(refused.plans) == 0


AGGREGATED = {
    "source_id": "aic_silicon", "framework": "trtllm", "model": "DeepSeek-V3", "model_name": "", "n_gpus": "8",
    "gpu": "H200-SXM-141GB", "precision": "fp8", "group": "serving", "mode": "serving agg", "tp": "8", "ep": "1",
    "dp_attn": "1", "isl": "8192", "osl": "1024", "concurrency": "64", "batch": "64",
}  # fmt: skip


def test_a_release_is_read_from_the_name_of_the_engine(inference: Published, catalog: Catalog) -> None:
    for framework, release in (("SGLang 0.5.9 (ROCm)", "0.5.9"), ("vLLM (June 2026)", "")):
        plans = inference_plans(edited(inference, "I00078", framework=framework), catalog).plans
        assert plans["software_release"][0] == release


def test_what_a_row_leaves_out_stays_blank(training: Published, inference: Published, catalog: Catalog) -> None:
    """Whoever predicts the plan fills it with what its software does, as for a plan of a user."""
    plan = plan_of(edited(training, "T00855", recompute="", mbs=""), catalog)
    names = ("recompute", "recompute_modules", "cross_entropy", "tensor_overlap", "attention", "graphs")
    assert [plan[name] for name in names] == [""] * len(names)
    assert np.isnan([plan["micro_batch_size"], plan["expert_capacity"]]).all()
    served = inference_plans(edited(inference, "I00078", kv_precision=""), catalog).plans
    assert served["kv_precision"][0] == "" and np.isnan(served["graph_tokens"][0])


def test_a_prompt_that_only_settings_state_is_taken(inference: Published, catalog: Catalog) -> None:
    said = "prompt_length=300; draft tokens=2"
    plans = inference_plans(edited(inference, "I00078", isl="", settings=said), catalog).plans
    assert (plans["prompt_length"][0], plans["draft_tokens"][0]) == (300.0, 2.0)


def test_a_doubtful_row_is_no_plan(inference: Published, catalog: Catalog) -> None:
    said = "doubtful: two of its figures contradict each other"
    assert inference_plans(edited(inference, "I00078", quality=said), catalog).reasons.tolist() == [said]
    assert inference_plans(edited(inference, "I00078", quality="corrected"), catalog).reasons.tolist() == [""]


def test_a_batch_beside_the_requests_tells_the_copies(inference: Published, catalog: Catalog) -> None:
    """Batch times copies of attention times engines is what is in flight: copies in a mixture's ranks, else engines."""
    inferred = "n_gpus inferred from parallel sizes"
    cells = {**AGGREGATED, "concurrency": "448", "batch": "56", "ep": "8", "dp_attn": "", "notes": inferred}
    mixture = inference_plans(edited(inference, "I00078", **cells), catalog).plans
    assert (mixture["data_parallel_attention"][0], mixture["num_accelerators"][0]) == (8.0, 8.0)
    dense = {**cells, "model": "Llama3.1-70B", "ep": "1", "dp_attn": "1", "tp": "2", "n_gpus": "2"}
    engines = inference_plans(edited(inference, "I00078", **dense), catalog).plans
    assert (engines["data_parallel_attention"][0], engines["num_accelerators"][0]) == (1.0, 16.0)
    alone = inference_plans(edited(inference, "I00078", **{**dense, "notes": "", "ttft_ms": ""}), catalog).plans
    assert alone["num_accelerators"][0] == 2.0, "a stated number of accelerators is not corrected"


def test_a_bandwidth_measured_with_a_run_changes_no_prediction(training: Published, catalog: Catalog) -> None:
    """A planner does not have it: the network's condition follows from nothing but the release of the software."""
    rows = [at for at, source in enumerate(training.text["source_id"]) if source == "ultrascale_playbook"]
    runs = training.take(rows)
    notes = [re.sub(r"AR/AG/RS [0-9./]+ GB/s", "AR/AG/RS 9.9/9.9/9.9 GB/s", text) for text in runs.text["notes"]]
    assert rows and notes != runs.text["notes"]
    notes = [re.sub(r"nodes [0-9.]+", "nodes 3.0", text) for text in notes]
    other = replace(runs, text={**runs.text, "notes": notes})
    for column in ("software", "network"):
        first, second = (training_plans(some, catalog).plans.text(column).tolist() for some in (runs, other))
        assert first == second


@pytest.mark.parametrize(("framework", "times"), [("SGLang 0.5.9", 10.0), ("NIM 1.8", np.nan)])
def test_a_run_without_a_stated_number_of_requests_has_ten_times_those_in_flight(
    inference: Published, catalog: Catalog, framework: str, times: float
) -> None:
    """NIM's runs are windows of a steady state [genai-perf --measurement-interval]."""
    plans = inference_plans(edited(inference, "I00078", settings="", framework=framework), catalog)
    requests = plans.plans["concurrency"][0]
    np.testing.assert_equal(plans.plans["run_requests"][0], times * requests)
    assert ("requests of the run not stated: 10 times" in plans.notes[0]) == (times > 0.0)
