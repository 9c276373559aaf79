"""Rows of published runs become plans: what files may hold, what a row says and what follows from its software."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from published_samples import INFERENCE, TRAINING, edited, one, plan_of, without_models

from xlperf.base.errors import InputError
from xlperf.calibrate.validate import records_of, validate
from xlperf.catalog.catalog import Catalog
from xlperf.measurements.comparison import compare, predicted
from xlperf.measurements.inference import inference_plans
from xlperf.measurements.published import Published, published_columns, read_published
from xlperf.measurements.training import precision_choice, recipe_choice, training_plans

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
    result = ["bf16", "fp8-current", "mxfp8", "fp8-block", "fp8-current", "fp8-block", "fp4", ""]
    assert [recipe_choice(word) for word in words] == result


def test_what_a_source_means_by_fp8(shipped_training: Published, catalog: Catalog) -> None:
    bridge = training_plans(one(shipped_training, "T00153"), catalog)
    assert bridge.plans["precision"][0] == "fp8-current" and bridge.plans["quantized_copies"][0] == ""
    deepseek = training_plans(one(shipped_training, "T02763"), catalog)
    assert (deepseek.plans["precision"][0], deepseek.plans["quantized_copies"][0]) == ("fp8-block", "")
    assert deepseek.plans["recompute_modules"][0] == "norm latent activation"
    assert (deepseek.plans["moment_precision"][0], deepseek.plans["activation_storage"][0]) == ("bf16", "fp8")
    older = training_plans(one(shipped_training, "T00465"), catalog)
    assert (older.plans["precision"][0], older.plans["quantized_copies"][0]) == ("fp8", "")


def test_llm_foundry_adds_gradients_in_16_bits_where_its_precision_is_bf16(
    shipped_training: Published, catalog: Catalog
) -> None:
    """MP Mode of its tables: PURE for bf16, DEFAULT (FP32 reductions) for amp_bf16; its loss is a fused kernel."""
    pure, mixed = (training_plans(one(shipped_training, row), catalog).plans for row in ("T00817", "T00694"))
    assert (pure["gradient_precision"][0], mixed["gradient_precision"][0]) == ("bf16", "")
    assert pure["cross_entropy"][0] == mixed["cross_entropy"][0] == "fused"


def test_unstated_choices_stay_blank_and_are_said(training: Published, catalog: Catalog) -> None:
    """The release of T00353 has FP8 with current scaling, which its settings state; a blank needs some precision."""
    plans = training_plans(one(training, "T00353"), catalog)
    assert (plans.plans["precision"][0], plans.plans["recompute"][0]) == ("fp8-current", "")
    assert plans.notes[0].startswith("not stated, as the software does by default: recompute")
    refused = training_plans(edited(training, "T00353", settings=""), catalog)
    assert refused.reasons[0] == "precision is not stated" and len(refused.plans) == 0


def test_sharding_spellings(training: Published, catalog: Catalog) -> None:
    assert plan_of(one(training, "T00405"), catalog)["zero_stage"] == 3.0  # data_sharding fsdp
    assert plan_of(one(training, "T02753"), catalog)["zero_stage"] == 1.0  # its paper: weights stay gathered
    assert plan_of(one(training, "T00054"), catalog)["zero_stage"] == 0.0
    assert np.isnan(float(str(plan_of(one(training, "T00084"), catalog)["zero_stage"]))), "as its software does"


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


@pytest.mark.parametrize(("row_id", "width", "tied"), [("T00930", 8192, 1.0), ("T01444", 8192, 0.0)])
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


@pytest.mark.parametrize(("row_id", "reason"), [("T02798", "time to train depends on how many steps converge")])
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
    assert "rank of the adapters not stated: 16" in nemo.notes[0]
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
    assert (deepseek["attention"], deepseek["recompute_modules"]) == ("", "norm latent activation")
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
