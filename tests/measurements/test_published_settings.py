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


def test_kernels_that_keep_other_activations_or_logits_than_their_stack(training: Published, catalog: Catalog) -> None:
    """torchtitan's selective recomputation keeps no product in NVFP4; Liger takes the loss in parts."""

    def column(name: str, **cells: str) -> object:
        return training_plans(edited(training, "T00855", **cells), catalog).plans[name][0]

    wide, narrow = ({"precision": word} for word in ("bf16", "NVFP4"))
    assert (column("recompute", **wide), column("recompute", **narrow)) == ("selective", "full")
    assert column("recompute", software="megatron", **narrow) == "selective"
    tuned = {"software": "transformers", "recompute": "full"}
    assert column("cross_entropy", notes="FSDP", **tuned) == "plain"
    assert column("cross_entropy", notes="FSDP; Liger kernels", **tuned) == "chunked"


def test_models_of_transformers_run_operation_by_operation_unless_kernels_are_put_in_their_place(
    training: Published, catalog: Catalog
) -> None:
    """TrainingArguments.torch_compile is off; Liger and fms-acceleration bring kernels of norms and activations."""

    def compiled(software: str, notes: str) -> float:
        row = edited(training, "T00855", software=software, recompute="full", notes=notes)
        return float(training_plans(row, catalog).plans.number("compiled")[0])

    assert compiled("transformers", "FSDP") == compiled("deepspeed", "ZeRO 3") == 0.0
    assert compiled("transformers", "FSDP; torch.compile") == 1.0
    for notes in ("FSDP; Liger kernels", "fused operations and kernels"):
        assert np.isnan(compiled("transformers", notes))


def test_megatron_swift_overlaps_what_its_documentation_says(training: Published, catalog: Catalog) -> None:
    """Megatron-Core runs gradients of weights beside communication of the backward pass; the rest is asked for."""
    plan = plan_of(edited(training, "T00855", software="megatron-swift"), catalog)
    assert (plan["tensor_overlap"], plan["data_overlap"]) == ("gradients", 0.0)


def test_settings_of_a_training_row_win_over_documented_defaults(training: Published, catalog: Catalog) -> None:
    """T00855 is torchtitan in BF16 that recomputes every second product: rules that its row is asked before."""
    row = "T00855"
    before = training_plans(one(training, row), catalog).plans
    assert (before["recompute"][0], before["recompute_modules"][0]) == ("selective", "products")
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


@pytest.mark.parametrize("source", ["trtllm_v1.0", "whoever copied the table"])
def test_a_benchmark_that_sets_its_own_limits_is_followed(source: str, inference: Published, catalog: Catalog) -> None:
    """Llama 3.1 8B in FP8 on an H200, 128 tokens in and out: room for more than 4,096 requests, 8,192 tokens a pass.

    The document says which benchmark it was, not who wrote its rows down.
    """
    cells = {"source_id": source, "model": "Llama3.1-8B", "model_name": "", "gpu": "H200-SXM-141GB"}
    size = {"n_gpus": "1", "tp": "1", "isl": "128", "osl": "128"}
    plans = inference_plans(edited(inference, "I00195", **cells, **size), catalog)
    assert plans.plans["run_requests"].tolist() == [30000.0]
    assert plans.plans["concurrency"].tolist() == [4096.0]
    assert plans.plans["prefill_tokens"].tolist() == [8192.0 - 4096.0], "a pass has room for those that decode"
    assert "trtllm-bench" in plans.notes[0]


AGGREGATED = {
    "source_id": "aic_silicon", "framework": "trtllm", "model": "DeepSeek-V3", "model_name": "", "n_gpus": "8",
    "gpu": "H200-SXM-141GB", "precision": "fp8", "group": "serving", "mode": "serving agg", "tp": "8", "ep": "1",
    "dp_attn": "1", "isl": "8192", "osl": "1024", "concurrency": "64", "batch": "64",
}  # fmt: skip


def test_a_script_that_chooses_the_mapping_by_itself_is_believed(inference: Published, catalog: Catalog) -> None:
    """Until 3 November 2025 the recipe put experts, and above 32 prompts of 8,192 attention copies, on all ranks.

    Its passes have tokens for one prompt. Later dumps record what ran, and later passes have more tokens.
    """
    notes = "id dsr1_h200_trtllm_fp8_agg_8192x1024_c{}_cfg83; db-dump/2026-04-27; measured={}T00:00:00.000Z"
    mapping = ("expert_parallel", "data_parallel_attention")
    cases = (64, "2025-11-02", (8.0, 8.0)), (32, "2025-11-02", (8.0, 1.0)), (64, "2026-03-02", (1.0, 1.0))
    for requests, day, wanted in cases:
        cells = {**AGGREGATED, "concurrency": f"{requests}", "batch": f"{requests}"}
        plans = inference_plans(edited(inference, "I00078", **cells, notes=notes.format(requests, day)), catalog).plans
        assert tuple(plans[name][0] for name in mapping) == wanted, (requests, day)
        assert (plans["prefill_tokens"][0] == plans["prompt_length"][0]) == day.startswith("2025")


def test_tokens_of_a_pass_may_be_a_prompt_and_some_more(inference: Published, catalog: Catalog) -> None:
    """What aiconfigurator generates for TensorRT-LLM: its batch, a prompt and 1,500 tokens; other dumps say nothing."""
    cells = {**AGGREGATED, "model": "Llama-3.1-8B-Instruct", "ep": "", "dp_attn": "", "tp": "1", "n_gpus": "1"}
    for notes, more in (("aic-auto-gap-analysis/data/trtllm", 1500.0), ("db-dump", np.nan)):
        plans = inference_plans(edited(inference, "I00078", **cells, notes=notes), catalog).plans
        result = plans["prefill_tokens"] - plans["prompt_length"]
        assert np.array_equal(result, [more], equal_nan=True)


def test_flags_of_a_run_may_make_another_engine_of_its_version(inference: Published, catalog: Catalog) -> None:
    """vLLM schedules ahead since 0.14 by itself; before that where its flag was given, as ML.ENERGY's files have it."""
    for source, engine in (("mlenergy_v3", "vllm"), ("somebody", "vllm-0.8")):
        row = edited(inference, "I00078", framework="vLLM 0.11.1", source_id=source)
        assert inference_plans(row, catalog).plans["software"][0] == engine


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
