"""Rows of published runs become plans: what files may hold, what a row says and what follows from its software."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from published_samples import INFERENCE, TRAINING, edited, one, plan_of, without_models

from xlperf.base.errors import InputError
from xlperf.calibrate.comparison import compare, predicted
from xlperf.calibrate.published import Published, published_columns, read_published
from xlperf.calibrate.published_inference import inference_plans
from xlperf.calibrate.published_training import precision_choice, recipe_choice, training_plans
from xlperf.calibrate.validate import (
    records_of,
    validate,
)
from xlperf.catalog.catalog import Catalog

# --- reading -------------------------------------------------------------------------------------------------------


def test_columns_are_those_of_the_files() -> None:
    for path, kind in ((TRAINING, "training"), (INFERENCE, "inference")):
        header = path.read_text(encoding="utf-8").splitlines()[0].split(",")
        assert sorted(header) == sorted(published_columns()[kind])


def test_workbook_gives_the_rows_of_the_csv(tmp_path: Path, training: Published, inference: Published) -> None:
    from openpyxl import Workbook

    book = Workbook()
    book.remove(book.worksheets[0])
    for published in (training, inference):
        sheet = book.create_sheet(published.kind)
        sheet.append(["a title"])
        sheet.append(list(published.text))
        for row in range(len(published)):
            cells = []
            for name, values in published.text.items():
                number = published.number.get(name)
                sort = published_columns()[published.kind][name]
                if sort == "flag" and values[row]:
                    cells.append(values[row] == "True")
                else:
                    cells.append(float(values[row]) if sort == "number" and values[row] else values[row] or None)
                assert number is None or len(number) == len(published)
            sheet.append(cells)
    path = tmp_path / "published.xlsx"
    book.save(path)
    for read, given in zip(read_published(path), (training, inference), strict=True):
        assert read.kind == given.kind and read.text["row_id"] == given.text["row_id"]
        for name, values in given.number.items():
            np.testing.assert_allclose(read.number[name], values, rtol=1e-14)
    assert read_published(path)[0].place(0, "tp") == "published.xlsx [training!U3]"


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", ["x.csv: is empty; a header row and rows of values are meant"]),
        ("row_id,model,gpu\na,b,c\n", ["x.csv [header]: has no column n_gpus"]),
        (
            "row_id,model,gpu,n_gpus,iter_time\na,b,c,8,1\n",
            ['x.csv [header]: has a column "iter_time"; did you mean iter_time_s?'],
        ),
        (
            "row_id,model,gpu,n_gpus,tp,sp\na,b,c,8,two,maybe\n\nb,b,c,inf,,\n",
            [
                'x.csv [line 4, n_gpus]: n_gpus must be a number, got "inf"',
                'x.csv [line 2, tp]: tp must be a number, got "two"',
                'x.csv [line 2, sp]: sp must be True or False, got "maybe"',
            ],
        ),
        ("row_id,model,gpu,n_gpus\na,b,c,8,9\n", ["x.csv [line 2]: has 5 values, the header has 4 columns"]),
        (
            "row_id,model,gpu,n_gpus\na,b,c,8\na,b,c,8\n,b,c,8\n",
            [
                'x.csv [line 3, row_id]: "a" is the name of an earlier row too',
                "x.csv [line 4, row_id]: row_id is blank; each published row needs a name",
            ],
        ),
    ],
)
def test_faults_of_a_file_name_line_and_column(tmp_path: Path, text: str, faults: list[str]) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as raised:
        read_published(path)
    assert str(raised.value).splitlines() == faults


def test_extra_columns_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("row_id,model,gpu,n_gpus,split\na,b,c,8,dev\n", encoding="utf-8")
    assert len(read_published(path)[0]) == 1


def test_the_same_row_in_two_files_is_refused(tmp_path: Path, catalog: Catalog) -> None:
    copy = tmp_path / "copy.csv"
    copy.write_bytes(TRAINING.read_bytes())
    with pytest.raises(InputError, match=r'copy.csv \[line 2, row_id\]: "T00001" is read twice; the first is at'):
        validate([TRAINING, copy], catalog)


# --- plans ---------------------------------------------------------------------------------------------------------


def test_row_of_a_paper_as_a_plan(training: Published, catalog: Catalog) -> None:
    plan = plan_of(one(training, "T00004"), catalog)
    assert (plan["model"], plan["accelerator"], plan["software"]) == ("GPT3-175B", "A100-SXM4-80GB", "megatron")
    assert (plan["tensor_parallel"], plan["pipeline_parallel"], plan["virtual_pipeline"]) == (8.0, 8.0, 3.0)
    assert (plan["recompute"], plan["attention"], plan["precision"]) == ("selective", "standard", "fp16")
    assert (plan["sequence_parallel"], plan["zero_stage"], plan["data_parallel"]) == (1.0, 0.0, 1.0)


def test_spellings_of_precision() -> None:
    words = ["amp_bf16", "BF16", "FP8-CS (FP8-MX)", "MXFP8", "fp8 rowwise", "NVFP4", "int8 weights", "secret"]
    assert [precision_choice(word) for word in words] == ["bf16", "bf16", "fp8", "fp8", "fp8", "fp4", "int8", ""]


def test_recipes_of_training_are_distinguishing_columns() -> None:
    words = ["amp_bf16", "FP8-CS (FP8-MX)", "FP8_MX", "fp8 rowwise", "fp8 tensorwise", "fp8_block", "NVFP4", "secret"]
    found = ["bf16", "fp8-current", "mxfp8", "fp8-block", "fp8-current", "fp8-block", "fp4", ""]
    assert [recipe_choice(word) for word in words] == found


def test_what_a_source_means_by_fp8(shipped_training: Published, catalog: Catalog) -> None:
    bridge = training_plans(one(shipped_training, "T00153"), catalog)
    assert bridge.plans["precision"][0] == "fp8-current" and "fp8 taken as fp8-current (" in bridge.notes[0]
    assert bridge.plans["quantized_copies"][0] == "primary"
    deepseek = training_plans(one(shipped_training, "T02763"), catalog)
    assert (deepseek.plans["precision"][0], deepseek.plans["quantized_copies"][0]) == ("fp8-block", "")
    assert deepseek.plans["recompute_modules"][0] == "norm latent activation"
    assert (deepseek.plans["moment_precision"][0], deepseek.plans["activation_storage"][0]) == ("bf16", "fp8")
    older = training_plans(one(shipped_training, "T00465"), catalog)
    assert (older.plans["precision"][0], older.plans["quantized_copies"][0]) == ("fp8", "primary")


def test_llm_foundry_adds_gradients_in_16_bits_where_its_precision_is_bf16(
    shipped_training: Published, catalog: Catalog
) -> None:
    """MP Mode of its tables: PURE for bf16, DEFAULT (FP32 reductions) for amp_bf16; its loss is a fused kernel."""
    pure, mixed = (training_plans(one(shipped_training, row), catalog).plans for row in ("T00817", "T00694"))
    assert (pure["gradient_precision"][0], mixed["gradient_precision"][0]) == ("bf16", "")
    assert pure["cross_entropy"][0] == mixed["cross_entropy"][0] == "fused"


def test_unstated_choices_are_the_softwares_default_and_said(training: Published, catalog: Catalog) -> None:
    plans = training_plans(one(training, "T00353"), catalog)
    assert plans.plans["precision"][0] == "fp8-current"
    assert plans.plans["recompute"][0] == "none"
    assert plans.notes[0].startswith("precision not stated: fp8 (")
    assert "recompute not stated: none (NeMo" in plans.notes[0]
    assert training_plans(one(training, "T00004"), catalog).notes[0] == "standard attention"


def test_sharding_spellings(training: Published, catalog: Catalog) -> None:
    assert plan_of(one(training, "T00405"), catalog)["zero_stage"] == 3.0  # data_sharding fsdp
    assert plan_of(one(training, "T02753"), catalog)["zero_stage"] == 1.0  # its paper: weights stay gathered
    assert plan_of(one(training, "T00054"), catalog)["zero_stage"] == 0.0
    assert plan_of(one(training, "T00084"), catalog)["zero_stage"] == 1.0


def test_printed_shape_takes_the_place_of_the_models(training: Published, catalog: Catalog) -> None:
    plans = training_plans(edited(training, "T00084", layers="40", seq_len="200000"), catalog)
    name = plans.plans["model"][0]
    models = plans.catalog.tables["models"]
    row = list(models["model"]).index(name)
    assert name == "Meta-Llama-3.1-70B as published 2"
    assert (models["num_layers"][row], models["hidden_size"][row], models["ffn_hidden_size"][row]) == (40, 8192, 28672)
    assert models["max_sequence_length"][row] == 200000
    assert len(catalog.tables["models"]) == len(models) - 1


def test_layer_reduced_model_is_cut_from_the_full_one(training: Published, catalog: Catalog) -> None:
    plans = training_plans(one(training, "T00886"), without_models(catalog, "Llama3-70B-l12"))
    models = plans.catalog.tables["models"]
    row = list(models["model"]).index(plans.plans["model"][0])
    assert plans.plans["model"][0].startswith("Meta-Llama-3.1-70B as published")
    assert (models["num_layers"][row], models["gated_mlp"][row]) == (12, 1)


@pytest.mark.parametrize(
    ("row_id", "width", "tied"),
    [("T00930", 8192, 1.0), ("T01444", 8192, 0.0)],
)
def test_width_that_is_not_printed_follows_from_the_parameters(
    training: Published, catalog: Catalog, row_id: str, width: float, tied: float
) -> None:
    plans = training_plans(one(training, row_id), without_models(catalog, "Llama-like"))
    models = plans.catalog.tables["models"]
    row = list(models["model"]).index(plans.plans["model"][0])
    assert (models["ffn_hidden_size"][row], models["tied_embeddings"][row]) == (width, tied)
    assert "from the stated parameters" in plans.notes[0]


def test_mixture_of_experts_is_never_made_up_as_dense(training: Published, catalog: Catalog) -> None:
    plans = training_plans(one(training, "T00412"), without_models(catalog, "Grok-1"))
    assert plans.reasons[0] == 'model "Grok-1-proxy" is not in the catalog'
    assert len(plans.plans) == 0


def test_modules_that_a_source_recomputes_are_named(training: Published, catalog: Catalog) -> None:
    plan = training_plans(one(training, "T02763"), catalog).plans
    assert (plan["recompute"][0], plan["recompute_modules"][0]) == ("selective", "norm latent activation")


@pytest.mark.parametrize(
    ("row_id", "reason"),
    [
        ("T02798", "time to train depends on how many steps converge"),
    ],
)
def test_rows_that_are_no_plans_say_why(training: Published, catalog: Catalog, row_id: str, reason: str) -> None:
    plans = training_plans(one(training, row_id), catalog)
    assert plans.reasons[0] == reason and len(plans.plans) == 0


def test_korthikanti_2022_table_4_time_of_one_layer(shipped_training: Published, catalog: Catalog) -> None:
    """Forward and backward of one layer: the five variants, each within 12 %."""
    rows = [f"T000{number}" for number in range(39, 44)]
    plans = [training_plans(one(shipped_training, row), catalog) for row in rows]
    records = [compare(plan, predicted(plan))[0] for plan in plans]
    assert [record.quantity for record in records] == ["layer time"] * 5
    assert max(record.relative_error for record in records) < 0.12
    none, split, full, selective, both = (record.predicted for record in records)
    assert split < none < selective < full and split < both < selective


def test_fine_tuning_of_all_weights_is_training_on_packed_sequences(
    shipped_training: Published, catalog: Catalog
) -> None:
    plans = training_plans(one(shipped_training, "T00464"), catalog)
    assert len(plans.plans) == 1 and "packed to the full length" in plans.notes[0]


def test_fine_tuning_of_adapters(shipped_training: Published, catalog: Catalog) -> None:
    nemo = training_plans(one(shipped_training, "T00466"), catalog)
    assert (nemo.plans["adapter_rank"][0], nemo.plans["adapter_modules"][0]) == (16.0, "qkv")
    assert "rank of the adapters not stated: 16 (" in nemo.notes[0]
    automodel = training_plans(one(shipped_training, "T02777"), catalog)
    assert (automodel.plans["adapter_rank"][0], automodel.plans["adapter_modules"][0]) == (16.0, "")


def test_a_rounded_global_batch_becomes_whole_where_only_a_rate_is_printed(
    shipped_training: Published, catalog: Catalog
) -> None:
    plans = training_plans(one(shipped_training, "T02761"), catalog)  # 124 replicas of 8 sequences, printed as 1024
    assert plans.plans["global_batch_size"][0] == 992.0
    assert "global batch 1024 is no whole number of micro-batches: 992" in plans.notes[0]
    timed = training_plans(edited(shipped_training, "T02761", iter_time_s="60"), catalog)
    assert timed.plans["global_batch_size"][0] == 1024.0
    far = training_plans(edited(shipped_training, "T02761", gbs="1400"), catalog)
    assert far.plans["global_batch_size"][0] == 1400.0


def test_interleave_without_stages_is_left_out_and_said(shipped_training: Published, catalog: Catalog) -> None:
    plans = training_plans(one(shipped_training, "T00611"), catalog)
    assert plans.plans["virtual_pipeline"][0] == 1.0
    assert "interleave 12 of a pipeline of one stage left out" in plans.notes[0]


def test_what_a_paper_says_of_its_run_is_taken(shipped_training: Published, catalog: Catalog) -> None:
    deepseek = plan_of(one(shipped_training, "T02763"), catalog)
    assert (deepseek["pipeline_schedule"], deepseek["dispatch_precision"]) == ("dualpipe", "fp8")
    assert (deepseek["attention"], deepseek["recompute_modules"]) == ("flash", "norm latent activation")
    assert (deepseek["expert_overlap"], deepseek["dispatch_nodes"]) == (1.0, 4.0)
    palm = plan_of(one(shipped_training, "T02756"), catalog)
    assert (palm["zero_stage"], palm["zero_group_size"], palm["micro_batch_size"]) == (3.0, 256.0, 4.0)
    assert palm["attention"] == "standard"


def test_every_training_row_of_a_modelled_architecture_is_predicted(
    shipped_training: Published, catalog: Catalog
) -> None:
    """Rows that state a mapping: all but times to converge."""
    allowed = ("time to train",)
    missing = {
        record.row_id: record.reason
        for record in records_of([shipped_training], catalog)
        if not record.covered and not any(word in record.reason for word in allowed)
    }
    assert missing == {}


def test_mapping_must_be_stated_or_follow(training: Published, catalog: Catalog) -> None:
    nothing = training_plans(edited(training, "T00084", pp="", dp=""), catalog)
    assert nothing.reasons[0] == "the mapping is not stated: pipeline parallel"
    follows = training_plans(edited(training, "T00084", pp=""), catalog)
    assert follows.plans["pipeline_parallel"][0] == 8.0
    unknown = training_plans(edited(training, "T00084", gpu="abacus"), catalog)
    assert unknown.reasons[0] == 'accelerator "abacus" is not in the catalog'


def test_inference_rows(inference: Published, catalog: Catalog) -> None:
    plans = inference_plans(inference, catalog)
    by_name = {name: row for row, name in enumerate(plans.plans["name"])}
    paper = by_name["I00001"]
    assert plans.plans["software"][paper] == "nemo" and plans.plans["mode"][paper] == "static"
    assert (plans.plans["prompt_length"][paper], plans.plans["batch_size"][paper]) == (200.0, 1.0)
    alone = by_name["I00077"]
    assert (plans.plans["mode"][alone], plans.plans["batch_size"][alone]) == ("static", 1.0)
    assert "one request in flight: a static batch of 1" in plans.notes[plans.index[alone]]
    crowd = by_name["I00078"]
    assert plans.plans["mode"][crowd] == "continuous"
    assert plans.plans["concurrency"][crowd] == inference.number["concurrency"][plans.index[crowd]]
    reasons = dict(zip(inference.text["row_id"], plans.reasons, strict=True))
    most = by_name["I00195"]
    assert plans.plans["mode"][most] == "continuous", "maximum throughput: the cache says how many requests run"
    assert "batch not stated" in plans.notes[plans.index[most]]
    assert reasons["I05294"] == "the mapping is not stated"


def test_a_row_that_prints_the_batch_of_a_replica_tells_the_requests_in_flight(
    inference: Published, catalog: Catalog
) -> None:
    """Aggregated and disaggregated rows print both; without the one the other gives the same plan."""
    blank = np.full(len(inference), np.nan)
    without = replace(inference, number={**inference.number, "concurrency": blank})
    stated, derived = inference_plans(inference, catalog), inference_plans(without, catalog)
    at = {name: row for row, name in enumerate(derived.plans["name"])}
    before = {name: row for row, name in enumerate(stated.plans["name"])}
    pooled = at["I00824"]
    assert derived.plans["concurrency"][pooled] == stated.plans["concurrency"][before["I00824"]] == 1024.0
    assert "concurrency not stated: 1024" in derived.notes[derived.index[pooled]]
    same = [name for name in at if stated.plans["mode"][before[name]] == "continuous"]
    plain = [name for name in same if "concurrency not stated" in derived.notes[derived.index[at[name]]]]
    assert plain and all(
        derived.plans["concurrency"][at[name]] == stated.plans["concurrency"][before[name]] for name in plain
    )
    reasons = dict(zip(inference.text["row_id"], derived.reasons, strict=True))
    assert reasons["I00078"] == "neither the concurrency nor the batch is stated"


def test_settings_that_a_source_states_are_columns_of_the_plan(inference: Published, catalog: Catalog) -> None:
    """I00078 has several requests in flight on SGLang: what it states wins over what its engine or benchmark does."""
    assert inference_plans(one(inference, "I00078"), catalog).plans["run_requests"][0] != 77.0
    said = "run_requests=77; output variation=0.5; graphs=no; graph tokens=64"
    stated = inference_plans(edited(inference, "I00078", settings=said), catalog).plans
    found = [stated[name][0] for name in ("run_requests", "output_variation", "graphs", "graph_tokens")]
    assert found == [77.0, 0.5, 0.0, 64.0]
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
        found = plans["prefill_tokens"] - plans["prompt_length"]
        assert np.array_equal(found, [more], equal_nan=True)


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
