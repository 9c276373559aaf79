"""Predictions are set beside measurements, and tolerances decide."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import pytest
from published_samples import INFERENCE, TRAINING, edited, one
from shipped import shipped_measured

from xlperf.base.errors import InputError
from xlperf.base.resources import rows, workbook
from xlperf.calibrate.validate import CSV_COLUMNS, Tolerance, ValidationReport, records_of, summary, validate
from xlperf.catalog.catalog import Catalog
from xlperf.measurements.comparison import Record, hardware_share, metrics_of, relative_error
from xlperf.measurements.published import Published, published_columns
from xlperf.measurements.training import training_plans


@pytest.fixture(scope="module")
def report(catalog: Catalog) -> ValidationReport:
    return validate([TRAINING, INFERENCE], catalog)


def test_one_primary_metric_a_row_and_memory_apart(training: Published, inference: Published) -> None:
    row = training.text["row_id"].index("T00855")
    assert metrics_of(training, row) == [("tokens_per_s_per_gpu", "step time", True), ("peak_mem_gb", "memory", True)]
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

    result = summary(("g",), [record(0.1), record(0.3), record(0.2), record(math.nan)])
    assert (result.count, result.coverage) == (4, 0.75)
    assert [result.mean, result.median, result.p90, result.max] == pytest.approx([0.2, 0.2, 0.28, 0.3])
    assert math.isnan(result.in_band) and math.isnan(summary((), [record(math.nan)]).mean)


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


def test_file_without_any_plan_is_a_report_of_reasons(training: Published, catalog: Catalog) -> None:
    (record,) = records_of([one(training, "T02798")], catalog)
    assert not record.covered and record.reason.startswith("time to train depends on")


def test_refusals_are_listed_by_source(report: ValidationReport) -> None:
    assert ("mlperf_train_v4.0", "time to train depends on how many steps converge", 1) in report.refusals()
    titles = [title for title, _, _ in report.tables()]
    assert titles == ["By group", "By source", "By accelerator", "By metric", "Not predicted"]


def test_a_terminal_names_groups_in_words(report: ValidationReport) -> None:
    """No key of a group of the shipped measurements is shown, and no two groups have one name."""
    words = {row["group"]: row["words"] for row in rows("calibrate/group_words.csv")}
    tables = Path(__file__).parents[2] / "workbooks" / "rows" / "validation"
    for name in ("training.csv", "inference.csv"):
        with (tables / name).open(encoding="utf-8", newline="") as file:
            assert {row["group"] for row in csv.DictReader(file)} <= words.keys()
    assert len(set(words.values())) == len(words)
    shown = [line[0] for line in report.tables()[0][2]]
    assert shown == sorted(shown) and set(shown) <= set(words.values())


def test_unknown_generation_is_refused(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xlperf.calibrate.published_errors.read_measured", lambda *_: shipped_measured())
    with pytest.raises(
        InputError,
        match='--leave-out: unknown generation, accelerator, software or source "blackwel"; did you mean blackwell',
    ):
        validate([TRAINING], catalog, leave_out="blackwel")


def test_shipped_rows_meet_their_tolerances(catalog: Catalog) -> None:
    shipped = validate(None, catalog)
    assert workbook("validation.xlsx").exists()
    assert len({record.row_id for record in shipped.records}) > 4000
    assert shipped.tolerances and shipped.missed() == []
