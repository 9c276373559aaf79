"""Published rows become plans, predictions are set beside measurements, and tolerances decide."""

from __future__ import annotations

import csv
import io
import math
import time
from pathlib import Path

import numpy as np
import pytest

from xlperf.catalog.catalog import Catalog
from xlperf.errors import InputError
from xlperf.explore.baseline import against_constant_mfu
from xlperf.explore.measurements import Record, compare, hardware_share, metrics_of, predicted, relative_error
from xlperf.explore.published import Published, published_columns, published_rows, read_published
from xlperf.explore.published_inference import inference_plans
from xlperf.explore.published_training import precision_choice, recipe_choice, training_plans
from xlperf.explore.validate import (
    CSV_COLUMNS,
    MARKERS,
    Tolerance,
    ValidationReport,
    records_of,
    summary,
    validate,
)
from xlperf.resources import workbook

DATA = Path(__file__).parent / "data"
TRAINING, INFERENCE = DATA / "training_published.csv", DATA / "inference_published.csv"


@pytest.fixture(scope="module")
def training() -> Published:
    return read_published(TRAINING)[0]


@pytest.fixture(scope="module")
def shipped() -> Published:
    return next(rows for rows in read_published(workbook("validation.xlsx")) if rows.kind == "training")


@pytest.fixture(scope="module")
def inference() -> Published:
    return read_published(INFERENCE)[0]


@pytest.fixture(scope="module")
def report(catalog: Catalog) -> ValidationReport:
    return validate([TRAINING, INFERENCE], catalog)


def one(published: Published, row_id: str) -> Published:
    return published.take([published.text["row_id"].index(row_id)])


def edited(published: Published, row_id: str, **values: str) -> Published:
    """One row with some cells changed."""
    row = published.text["row_id"].index(row_id)
    header = list(published.text)
    cells = [values.get(name, published.text[name][row]) for name in header]
    return published_rows(header, [cells], lambda row, column: f"row {row} {column}")


def plan_of(published: Published, catalog: Catalog) -> dict[str, object]:
    plans = training_plans(published, catalog).plans
    return {name: plans[name][0] for name in plans.columns}


def without_models(catalog: Catalog, *starts: str) -> Catalog:
    models = catalog.tables["models"]
    keep = [row for row, name in enumerate(models["model"]) if not name.startswith(starts)]
    return catalog.with_tables([models.take(keep)])


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
        ("", ["x.csv: is empty; a header row with row_id, model, gpu, n_gpus ... is meant"]),
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
        ("row_id,model,gpu,n_gpus\na,b,c,8,9\n", ["x.csv [line 2]: has 5 values, the header has 4"]),
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


def test_recipes_of_training_are_told_apart() -> None:
    words = ["amp_bf16", "FP8-CS (FP8-MX)", "FP8_MX", "fp8 rowwise", "fp8 tensorwise", "fp8_block", "NVFP4", "secret"]
    found = ["bf16", "fp8-current", "mxfp8", "fp8-block", "fp8-current", "fp8-block", "fp4", ""]
    assert [recipe_choice(word) for word in words] == found


def test_what_a_source_means_by_fp8(shipped: Published, catalog: Catalog) -> None:
    bridge = training_plans(one(shipped, "T00153"), catalog)
    assert bridge.plans["precision"][0] == "fp8-current" and "fp8 taken as fp8-current (" in bridge.notes[0]
    assert bridge.plans["quantized_copies"][0] == "primary"
    deepseek = training_plans(one(shipped, "T02763"), catalog)
    assert (deepseek.plans["precision"][0], deepseek.plans["quantized_copies"][0]) == ("fp8-block", "")
    assert deepseek.plans["recompute_modules"][0] == "norm latent activation"
    assert (deepseek.plans["moment_precision"][0], deepseek.plans["activation_storage"][0]) == ("bf16", "fp8")
    older = training_plans(one(shipped, "T00465"), catalog)
    assert (older.plans["precision"][0], older.plans["quantized_copies"][0]) == ("fp8", "primary")


def test_llm_foundry_adds_gradients_in_16_bits_where_its_precision_is_bf16(
    shipped: Published, catalog: Catalog
) -> None:
    """MP Mode of its tables: PURE for bf16, DEFAULT (FP32 reductions) for amp_bf16; its loss is a fused kernel."""
    pure, mixed = (training_plans(one(shipped, row), catalog).plans for row in ("T00817", "T00694"))
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


def test_korthikanti_2022_table_4_time_of_one_layer(shipped: Published, catalog: Catalog) -> None:
    """Forward and backward of one layer: the five variants, each within 12 %."""
    rows = [f"T000{number}" for number in range(39, 44)]
    plans = [training_plans(one(shipped, row), catalog) for row in rows]
    records = [compare(plan, predicted(plan))[0] for plan in plans]
    assert [record.quantity for record in records] == ["layer time"] * 5
    assert max(record.relative_error for record in records) < 0.12
    none, split, full, selective, both = (record.predicted for record in records)
    assert split < none < selective < full and split < both < selective


def test_fine_tuning_of_all_weights_is_training_on_packed_sequences(shipped: Published, catalog: Catalog) -> None:
    plans = training_plans(one(shipped, "T00464"), catalog)
    assert len(plans.plans) == 1 and "packed to the full length" in plans.notes[0]


def test_fine_tuning_of_adapters(shipped: Published, catalog: Catalog) -> None:
    nemo = training_plans(one(shipped, "T00466"), catalog)
    assert (nemo.plans["adapter_rank"][0], nemo.plans["adapter_modules"][0]) == (16.0, "qkv")
    assert "rank of the adapters not stated: 16 (" in nemo.notes[0]
    automodel = training_plans(one(shipped, "T02777"), catalog)
    assert (automodel.plans["adapter_rank"][0], automodel.plans["adapter_modules"][0]) == (16.0, "")


def test_a_rounded_global_batch_becomes_whole_where_only_a_rate_is_printed(
    shipped: Published, catalog: Catalog
) -> None:
    plans = training_plans(one(shipped, "T02761"), catalog)  # 124 replicas of 8 sequences, printed as 1024
    assert plans.plans["global_batch_size"][0] == 992.0
    assert "global batch 1024 is no whole number of micro-batches: 992" in plans.notes[0]
    timed = training_plans(edited(shipped, "T02761", iter_time_s="60"), catalog)
    assert timed.plans["global_batch_size"][0] == 1024.0
    far = training_plans(edited(shipped, "T02761", gbs="1400"), catalog)
    assert far.plans["global_batch_size"][0] == 1400.0


def test_interleave_without_stages_is_left_out_and_said(shipped: Published, catalog: Catalog) -> None:
    plans = training_plans(one(shipped, "T00611"), catalog)
    assert plans.plans["virtual_pipeline"][0] == 1.0
    assert "interleave 12 of a pipeline of one stage left out" in plans.notes[0]


def test_what_a_paper_says_of_its_run_is_taken(shipped: Published, catalog: Catalog) -> None:
    deepseek = plan_of(one(shipped, "T02763"), catalog)
    assert (deepseek["pipeline_schedule"], deepseek["dispatch_precision"]) == ("dualpipe", "fp8")
    assert (deepseek["attention"], deepseek["recompute_modules"]) == ("flash", "norm latent activation")
    assert (deepseek["expert_overlap"], deepseek["dispatch_nodes"]) == (1.0, 4.0)
    palm = plan_of(one(shipped, "T02756"), catalog)
    assert (palm["zero_stage"], palm["zero_group_size"], palm["micro_batch_size"]) == (3.0, 256.0, 4.0)
    assert palm["attention"] == "standard"


def test_every_training_row_of_a_modelled_architecture_is_predicted(shipped: Published, catalog: Catalog) -> None:
    """Rows that state a mapping: all but hybrid and sparse models, models of no catalog row, and times to converge."""
    allowed = ("hybrid attention", "sparse attention", "linear attention", "is not in the catalog", "time to train")
    missing = {
        record.row_id: record.reason
        for record in records_of([shipped], catalog)
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


# --- errors --------------------------------------------------------------------------------------------------------


def test_one_primary_metric_a_row_and_memory_apart(training: Published, inference: Published) -> None:
    row = training.text["row_id"].index("T00855")
    assert metrics_of(training, row) == [
        ("tokens_per_s_per_gpu", "step time", True),
        ("peak_mem_gb", "memory", True),
    ]
    row = inference.text["row_id"].index("I00077")
    assert metrics_of(inference, row) == [
        ("tpot_ms", "time per token", True),
        ("tokens_per_s", "time per token", False),
        ("ttft_ms", "time to first token", True),
    ]


def test_rates_are_compared_as_times() -> None:
    assert relative_error("iter_time_s", 1.2, 1.0) == pytest.approx(0.2)
    assert relative_error("tokens_per_s", 80.0, 100.0) == pytest.approx(0.25)
    assert relative_error("peak_mem_gb", 50.0, 100.0) == pytest.approx(0.5)
    assert math.isnan(relative_error("iter_time_s", math.nan, 1.0))


def test_narayanan_counts_recomputation(training: Published, catalog: Catalog) -> None:
    share = hardware_share(training_plans(one(training, "T00056"), catalog))
    s, h, layers, vocab = 2048, 12288, 96, 51200
    full = 96 * (1 + s / (6 * h) + vocab / (16 * layers * h))
    model = 72 * (1 + s / (6 * h) + vocab / (12 * layers * h))
    assert share.tolist() == pytest.approx([full / model])
    assert hardware_share(training_plans(one(training, "T00084"), catalog)).tolist() == [1.0]


def test_rates_and_times_of_one_row_agree(training: Published, catalog: Catalog) -> None:
    """The same run given as a time, as tokens/s and as TFLOP/s has the same error."""
    row = edited(training, "T00084", tflops_per_gpu="", tokens_per_s_per_gpu="")
    (by_time,) = records_of([row], catalog)
    tokens = float(128 * 8192 / (64 * row.number["iter_time_s"][0]))
    (by_rate,) = records_of([edited(training, "T00084", iter_time_s="", tokens_per_s_per_gpu=repr(tokens))], catalog)
    assert (by_time.metric, by_rate.metric) == ("iter_time_s", "tokens_per_s_per_gpu")
    assert by_time.relative_error == pytest.approx(by_rate.relative_error, rel=1e-9)
    assert by_time.in_band == by_rate.in_band
    assert by_rate.low / by_rate.predicted == pytest.approx(by_time.predicted / by_time.high)


def test_share_of_activation_memory(training: Published, catalog: Catalog) -> None:
    (baseline,) = records_of([one(training, "T00019")], catalog)
    assert (baseline.metric, baseline.predicted) == ("peak_mem_gb", 100.0)
    (split,) = records_of([one(training, "T00020")], catalog)
    assert split.predicted == pytest.approx(66.84, rel=0.04)  # arXiv:2205.05198, Figure 7


def test_statistics_of_a_summary() -> None:
    def record(error: float) -> Record:
        return Record("r", "s", "g", "a", "iter_time_s", 1.0, 1.0 + error, error, "", "training", "step time", True)

    found = summary(("g",), [record(0.1), record(0.3), record(0.2), record(math.nan)])
    assert (found.count, found.coverage) == (4, 0.75)
    assert [found.mean, found.median, found.p90, found.max] == pytest.approx([0.2, 0.2, 0.28, 0.3])
    assert math.isnan(found.in_band) and math.isnan(summary((), [record(math.nan)]).mean)


def test_csv_has_a_line_per_row_and_metric(report: ValidationReport) -> None:
    lines = list(csv.reader(io.StringIO(report.csv_text())))
    assert tuple(lines[0]) == CSV_COLUMNS
    assert len(lines) - 1 == len(report.records)
    metrics = {*published_columns()["training"], *published_columns()["inference"]}
    for cells in lines[1:]:
        line = dict(zip(CSV_COLUMNS, cells, strict=True))
        assert line["metric"] in metrics
        assert (line["predicted"] == "") == (line["relative_error"] == "")
        if line["predicted"] == "":
            assert line["reason"]
        else:
            error = relative_error(line["metric"], float(line["predicted"]), float(line["measured"]))
            assert float(line["relative_error"]) == pytest.approx(error, rel=2e-3, abs=2e-5)


def test_every_row_of_the_files_is_in_the_report(
    report: ValidationReport, training: Published, inference: Published
) -> None:
    named = {record.row_id for record in report.records}
    assert named == {*training.text["row_id"], *inference.text["row_id"]}


def test_papers_are_within_the_bars_of_the_project(report: ValidationReport) -> None:
    chosen = [r for r in report.records if r.group == "papers" and r.primary]
    steps = summary((), [record for record in chosen if record.quantity == "step time"])
    assert (steps.count, steps.coverage) == (11, 1.0)
    assert steps.mean <= 0.06 and steps.max <= 0.12
    latencies = summary((), [record for record in chosen if record.metric == "latency_s"])
    assert (latencies.count, latencies.coverage) == (22, 1.0)
    assert latencies.mean <= 0.12


def test_tolerances_decide_the_exit_code(report: ValidationReport) -> None:
    strict = ValidationReport(report.records, (Tolerance("papers", "iter_time_s", "max", 1e-6),))
    assert strict.exit_code == 1
    assert strict.missed()[0].startswith("papers, iter_time_s: max ")
    assert strict.missed()[0].endswith(" %, tolerance 0.0 % (11 rows)")
    loose = ValidationReport(
        report.records,
        (
            Tolerance("papers", "step time", "max", 9.0),
            Tolerance("papers", "", "coverage", 1.0),
            Tolerance("nobody", "step time", "max", 0.0),
        ),
    )
    assert loose.exit_code == 0
    assert ValidationReport(report.records, (Tolerance("moe", "step_time", "coverage", 1.1),)).exit_code == 1


def test_tolerances_of_a_workbook_are_checked(tmp_path: Path, catalog: Catalog) -> None:
    from openpyxl import Workbook

    book = Workbook()
    sheet = book.worksheets[0]
    sheet.title = "tolerances"
    sheet.append(["group", "metric", "statistic", "bound"])
    sheet.append(["papers", "", "worst", 0.1])
    sheet.append(["papers", "", "mean", "little"])
    rows = book.create_sheet("training")
    rows.append(["row_id", "model", "gpu", "n_gpus"])
    rows.append(["a", "b", "c", 8])
    path = tmp_path / "mine.xlsx"
    book.save(path)
    with pytest.raises(InputError) as raised:
        validate([path], catalog)
    assert str(raised.value).splitlines() == [
        "mine.xlsx [tolerances!C2]: statistic must be one of count, coverage, mean, median, p90, max, in_band, "
        'got "worst"',
        'mine.xlsx [tolerances!D3]: bound must be a number, got "little"',
    ]


def test_readme_table(report: ValidationReport) -> None:
    lines = report.readme_table().splitlines()
    assert (lines[0], lines[-1]) == MARKERS
    assert lines[3].startswith("| training: papers | step time | 11 | 100.0 % |")
    assert all(line.count("|") == lines[1].count("|") for line in lines[1:-1])


def test_file_without_any_plan_is_a_report_of_reasons(training: Published, catalog: Catalog) -> None:
    (record,) = records_of([one(training, "T02798")], catalog)
    assert not record.covered and record.reason.startswith("time to train depends on")


def test_refusals_are_listed_by_source(report: ValidationReport) -> None:
    assert ("mlperf_train_v4.0", "time to train depends on how many steps converge", 1) in report.refusals()
    titles = [title for title, _, _ in report.tables()]
    assert titles == ["By group", "By source", "By accelerator", "By metric", "Not predicted"]


def test_unknown_generation_is_refused(catalog: Catalog) -> None:
    with pytest.raises(
        InputError, match='--leave-out: unknown generation or software "blackwel"; did you mean blackwell'
    ):
        validate(None, catalog, leave_out="blackwel")


def test_shipped_rows_meet_their_tolerances_quickly(catalog: Catalog) -> None:
    start = time.perf_counter()
    shipped = validate(None, catalog)
    assert time.perf_counter() - start < 10.0
    assert workbook("validation.xlsx").exists()
    assert len({record.row_id for record in shipped.records}) > 4000
    assert shipped.tolerances and shipped.missed() == []


def test_predictions_beat_one_constant_mfu(catalog: Catalog, training: Published) -> None:
    found = {one.key: one for one in against_constant_mfu([training], catalog)}
    assert "papers" not in found
    assert all(one.count > 0 and one.constant_mfu >= 0.0 for one in found.values())
    assert found["nanotron"].behind < -0.2, "bad mappings are what a constant cannot know"


def test_the_baseline_is_exact_for_one_row(catalog: Catalog, training: Published) -> None:
    row = next(at for at, group in enumerate(training.text["group"]) if group == "dense-megatron")
    (alone,) = against_constant_mfu([training.take([row])], catalog, "source_id")
    assert alone.key == training.text["source_id"][row]
    assert alone.constant_mfu == pytest.approx(0.0, abs=1e-12)
    assert alone.behind == pytest.approx(alone.predicted, abs=1e-12)
