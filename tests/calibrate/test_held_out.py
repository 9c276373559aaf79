"""Errors of rows that were left out of the fit: nothing leaks, known constants come back, bands hold what they say."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from click.testing import CliRunner
from fit_samples import sample_coarsely
from made_up_runs import errors_of, measured, runs, shipped, with_constants
from published_samples import edited
from published_samples import one as row_of
from shipped import shipped_kernels

from xlperf.base.errors import InputError
from xlperf.calibrate.accuracy import KernelError, cross_validation_table, kernel_errors, kernel_table
from xlperf.calibrate.fit import (
    cross_validated,
    left_out_together,
    not_published,
    of_what_was_not_measured,
    refitted,
    rows_of,
)
from xlperf.calibrate.fit_machines import MACHINE_SOURCE as OF_MACHINES
from xlperf.calibrate.fit_published import as_parameters, training_constants, trial_values, without_reference
from xlperf.calibrate.fitter import Parameter, calibration_table
from xlperf.calibrate.published_errors import Errors, accelerators_of, belongs_to, plans_to_fit, software_of
from xlperf.calibrate.published_errors import errors_of as published_entries
from xlperf.catalog.calibration import ANY, declared_constants
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.cli.app import cli
from xlperf.equations.plan.records import PRECISIONS
from xlperf.measurements.comparison import STEP_TIME, TIME_PER_TOKEN
from xlperf.measurements.inference import inference_plans, prefill_utilization
from xlperf.measurements.published import PublishedPlans


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    sample_coarsely(monkeypatch)


@cache
def known() -> Catalog:
    """Constants of which every turn of made-up runs knows the answer."""
    return with_constants(kernel_slowdown=1.3, layer_overhead_time=4e-4)


@cache
def plain_errors() -> Errors:
    return cross_validated(runs(known(), 40), known()).errors


# --- nothing leaks -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("coarse")
@pytest.mark.slow
def test_what_is_left_out_beside_the_model_does_not_move_the_prediction() -> None:
    """A row of another model that is three times as long, in the same half of the rows: with the halves left out it
    tells nothing, with models alone it does; and with models alone the errors are those of the cross-validation.
    """

    def models(_: PublishedPlans, entries: Errors) -> np.ndarray:
        return entries.model

    def halves(_: PublishedPlans, entries: Errors) -> np.ndarray:
        return np.array([int(name.removeprefix("R")) % 2 for name in entries.row_ids.tolist()])

    def errors(stretched: dict[int, float]) -> tuple[Errors, list[np.ndarray]]:
        plans = plans_to_fit(runs(known(), 40, stretched=stretched), known())
        pairs = [left_out_together(plans, (STEP_TIME,), names) for names in (models, halves)]
        return pairs[0][0], [logs for _, logs in pairs]

    entries, plain = errors({})
    _, spoiled = errors(dict.fromkeys(range(8, 24, 2), 3.0))
    at = entries.row_ids.tolist().index("R6")
    assert "R8" in entries.row_ids and entries.model[at] != entries.model[entries.row_ids.tolist().index("R8")]
    assert plain[0] == pytest.approx(plain_errors().by_models, abs=1e-12)
    assert spoiled[1][at] == pytest.approx(plain[1][at], abs=1e-9)
    assert abs(spoiled[0][at] - plain[0][at]) > 1e-6


@pytest.mark.usefixtures("coarse")
def test_the_measured_time_of_a_row_does_not_move_its_own_prediction() -> None:
    """A row that was three times as long is mispredicted by a factor of three more, to the last digit."""
    plain = plain_errors()
    spoiled = cross_validated(runs(known(), 40, stretched={6: 3.0}), known()).errors
    at = plain.row_ids.tolist().index("R6")
    assert spoiled.by_models[at] == pytest.approx(plain.by_models[at] - math.log(3.0), abs=1e-9)
    same = plain.model == plain.model[at]
    assert 8 < same.sum() < 30, "nor those of other rows of its model"
    assert np.delete(spoiled.by_models[same], 2) == pytest.approx(np.delete(plain.by_models[same], 2), abs=1e-9)


@pytest.mark.slow
def test_models_whose_layers_have_one_shape_are_left_out_together() -> None:
    plans = plans_to_fit(measured().inference, shipped())
    errors = published_entries(plans)
    models = [str(name) for name in plans.plans.text("model")[errors.plan]]
    shape = dict(zip(models, errors.model.tolist(), strict=True))
    assert shape["DeepSeek-R1"] == shape["DeepSeek-V3"] != shape["Kimi-K2.5"]
    assert len(set(shape.values())) > 12


@pytest.mark.usefixtures("coarse")
def test_the_same_rows_give_the_same_errors() -> None:
    known = with_constants(kernel_slowdown=1.2)
    first, second = (cross_validated(runs(known), known).errors for _ in range(2))
    assert first.by_models.tolist() == second.by_models.tolist()


# --- refits --------------------------------------------------------------------------------------------------------


def test_constants_that_made_the_runs_come_back_from_another_model() -> None:
    truth, start = with_constants(kernel_slowdown=1.45), with_constants(kernel_slowdown=1.15)
    errors = cross_validated(runs(truth, 40), start).errors
    assert np.median(np.abs(errors.fitted)) > 0.1, "the constants in use are wrong"
    assert np.median(np.abs(errors.by_models)) < 0.02


@pytest.mark.usefixtures("coarse")
@pytest.mark.slow
def test_a_refit_of_all_constants_together_finds_them() -> None:
    truth = with_constants(kernel_slowdown=1.4, layer_overhead_time=1e-3, tensor_parallel_overlap=0.3)
    start = with_constants(kernel_slowdown=1.1, layer_overhead_time=5e-4, tensor_parallel_overlap=0.6)
    published = runs(truth)
    twice = refitted(published, refitted(published, start))
    sizes = [np.abs(published_entries(plans_to_fit(published, catalog)).fitted).mean() for catalog in (start, twice)]
    assert sizes[1] < 0.2 * sizes[0]
    assert sizes[1] < 0.02


@pytest.mark.usefixtures("coarse")
@pytest.mark.slow
def test_the_generation_that_stands_for_the_reference_keeps_its_value_in_every_turn() -> None:
    """Rows of the sheet move where constants of other software go: the host of Blackwell came out 2.8 times slower.

    With few of the constants of engines.
    """
    whole, rows = load_catalog(), measured().inference
    table = whole.tables["calibration"]
    fitted = {row for row in as_parameters(table, "inference")[1] if table.text("family")[row] != "serving_host"}
    fitted -= {row for row in fitted if table.text("software")[row] == "nim"}
    fitted -= {row for row in fitted if table.text("constant")[row] == "layer_overhead_time"}
    catalog = whole.with_tables([table.take([row for row in range(len(table)) if row not in fitted])])
    gpus = rows.text["gpu"]
    blackwell = [row for row, gpu in enumerate(gpus) if gpu.startswith("B200") and rows.text["group"][row] == "serving"]
    ampere = [row for row, gpu in enumerate(gpus) if gpu.startswith("A100") and rows.text["group"][row] == "static"]
    result = refitted(rows.take(sorted([*blackwell[::24], *ampere])), catalog).tables["calibration"]
    own = result.text("constant") == "host_slowdown"
    values = dict(zip(result.text("generation")[own].tolist(), result.number("value")[own].tolist(), strict=True))
    assert values["blackwell"] == 1.0 and values["ampere"] != 1.2
    first, last = (
        sheet.text("constant").tolist().index("host_slowdown") for sheet in (catalog.tables["calibration"], result)
    )
    assert last < first, "constants of other software are gone, from rows before"


def test_unknown_software_takes_what_a_fit_says_of_it() -> None:
    names = ("family", "generation", "precision", "software", "constant")

    def values(of: Catalog) -> dict[tuple[str, ...], float]:
        table = of.tables["calibration"]
        return dict(zip(zip(*(table.text(name) for name in names), strict=True), table.number("value"), strict=True))

    before, slowdown = values(shipped()), ("training_software", ANY, ANY, ANY, "kernel_slowdown")
    again = values(of_what_was_not_measured(shipped(), measured().training))
    assert before.items() <= again.items(), "but for rows near a more general level, which the sheet leaves out"
    table = shipped().tables["calibration"]
    others = table.take([row for row in range(len(table)) if table.text("software")[row] != "torchtitan"])
    kept = measured().without("torchtitan", shipped()).training
    after = values(of_what_was_not_measured(shipped().with_tables([others]), kept))
    assert {key for key, value in after.items() if value != again[key]} == {slowdown}, "no shared value is a mean"
    assert after[slowdown] < again[slowdown], "the slowest stack is gone"


def test_without_its_reference_a_factor_is_held_on_the_machines_of_most_rows() -> None:
    """A slowdown of hosts and the times it multiplies are known up to a factor."""
    parameters = [Parameter("serving_host", "host_slowdown", kind) for kind in ("ampere", "blackwell")]
    entries = replace(errors_of(np.zeros(8)), kind="inference")
    assert without_reference("inference", parameters, entries) == [], "Hopper is the reference and is there"
    others = replace(entries, generation=np.array(["ampere"] * 3 + ["blackwell"] * 5, dtype=object))
    assert without_reference("inference", parameters, others) == [1]
    assert without_reference("training", parameters, others) == []


def test_a_machine_is_left_out_alone() -> None:
    """MI300X goes with its kernels; MI325X of the same generation stays, and constants of all other machines."""
    kept = measured().without("mi300x", shipped())
    assert not {"MI300X"} & {*kept.inference.text["gpu"], *(str(row["gpu"]) for row in kept.kernels)}
    assert len(kept.training) == len(measured().training)
    assert "MI325X" in kept.training.text["gpu"]
    rows = rows_of(measured().inference, shipped(), "MI300X")
    assert len(rows) + len(kept.inference) == len(measured().inference)
    assert accelerators_of("cdna3", shipped()) > accelerators_of("MI300X", shipped()) == {"mi300x"}


def test_too_few_rows_leave_a_software_without_constants() -> None:
    known = with_constants(kernel_slowdown=1.9)
    published = runs(known, number=7)
    errors = cross_validated(published, known).errors
    assert np.abs(errors.fitted).max() == pytest.approx(0.0, abs=1e-9)
    assert np.median(errors.by_models) < -0.2, "the default of unknown software is faster"


def test_rows_of_papers_take_no_part() -> None:
    for rows in (measured().training, measured().inference):
        plans = plans_to_fit(rows, shipped())
        assert "papers" not in set(plans.published.text["group"])
        assert "papers" in set(rows.text["group"])


def test_trial_values_stay_within_what_is_declared() -> None:
    for family in ("training_software", "experts", "serving_software", "serving_load"):
        for name, declared in declared_constants()[family].items():
            for value in (declared.low, declared.default, declared.high):
                points = trial_values(family, name, value)
                assert (np.diff(points) >= 0.0).all()
                assert declared.low <= points[0] and points[-1] <= declared.high
                assert points[0] <= value <= points[-1] or value == declared.high


def test_a_row_that_would_beat_the_peak_is_refused_with_the_reason() -> None:
    """Prompts of 15,000 tokens, 416 in flight, on two accelerators: three times their peak, so there were more.

    Its batch of 13 says how many: 32 engines of two.
    """
    rows = measured().inference
    plans = inference_plans(rows, shipped())
    said = [str(reason) for reason in plans.reasons if "times the peak" in str(reason)]
    begin = "its own figures need {} times the peak".format
    assert [reason.startswith(begin(1.2)) for reason in said] == [True]
    many = next(
        row_of(rows, name) for name in ("I01443", "I01444") if row_of(rows, name).text["concurrency"][0] == "416"
    )
    assert inference_plans(many, shipped()).plans["num_accelerators"].tolist() == [64.0]
    stated = edited(many, many.text["row_id"][0], notes="")
    assert inference_plans(stated, shipped()).reasons[0].startswith(begin(3.0))
    kept = plans.published.number["isl"][plans.index]
    share = prefill_utilization(plans)
    assert not (share > 1.0).any()
    known = np.flatnonzero(~np.isnan(share + plans.published.number["concurrency"][plans.index]))
    assert len(known) > 1000
    at = int(known[0])
    row = plans.index[at]
    figures = {name: float(rows.number[name][row]) for name in ("concurrency", "ttft_ms", "tpot_ms", "osl")}
    rate = figures["concurrency"] / ((figures["ttft_ms"] + (figures["osl"] - 1.0) * figures["tpot_ms"]) / 1e3)
    models, accelerators = plans.catalog.tables["models"], plans.catalog.tables["accelerators"]
    model = models.text("model").tolist().index(plans.plans.text("model")[at])
    gpu = accelerators.text("accelerator").tolist().index(plans.plans.text("accelerator")[at])
    peak = accelerators.number(f"peak_flop_rate_{PRECISIONS[plans.plans.filled('precision')[at]].peak}")[gpu]
    active = models.number("stated_active_parameters")[model]
    size = models.number("stated_parameters")[model] if np.isnan(active) else active
    by_hand = 2.0 * size * kept[at] * rate / (peak * plans.plans.number("num_accelerators")[at])
    assert share[at] == pytest.approx(by_hand, rel=1e-9)


# --- left out ------------------------------------------------------------------------------------------------------


def test_a_software_goes_with_its_variants_and_what_is_built_on_it() -> None:
    kept = measured().without("tensorrt-llm", shipped())
    left = set(software_of(kept.inference, shipped()))
    gone = set(software_of(measured().inference, shipped())) - left
    assert gone == {"tensorrt-llm", "tensorrt-llm-0", "nim"}
    assert len(kept.training) == len(measured().training) and kept.kernels == measured().kernels
    assert not belongs_to("vllm", "vll")


def test_rows_of_a_software_and_of_a_generation() -> None:
    some = rows_of(measured().inference, shipped(), "vLLM")
    assert set(software_of(some, shipped())) == {"vllm"}
    blackwell = rows_of(measured().training, shipped(), "Blackwell")
    assert len(blackwell) > 100 and all("B" in gpu for gpu in blackwell.text["gpu"])


def test_published_constants_are_told_from_kernels() -> None:
    table = shipped().tables["calibration"]
    kernels = set(not_published(table))
    of_machines = [str(source).startswith(OF_MACHINES) for source in table.text("source").tolist()]
    for row, family in enumerate(table.text("family").tolist()):
        if family in ("band", "training_software", "serving_software"):
            assert (row in kernels) == of_machines[row], "those of machines by line are fitted apart"
        if family in ("gemm", "all_gather") and table.text("software", ANY)[row] == ANY:
            assert row in kernels


def test_constants_of_training_stacks_are_read_back_as_they_were_fitted() -> None:
    result = training_constants(shipped().tables["calibration"])
    assert {one.family for one in result} >= {"training_software", "experts"}
    assert all(one.num_rows > 0 and one.fit_set for one in result)
    table = calibration_table(result)
    again = training_constants(table)
    assert repr(again) == repr(result)


# --- kernels -------------------------------------------------------------------------------------------------------


@cache
def kernels() -> list[KernelError]:
    return kernel_errors(shipped_kernels(), shipped())


def test_kernels_held_back_are_within_what_is_asked_for() -> None:
    whole = [one for one in kernels() if not one.accelerator]
    assert {one.operation for one in whole} >= {"matrix product over 50 us", "flash attention", "all-reduce"}
    assert [one for one in whole if one.missed] == []
    assert all(one.count > 10 for one in whole)


def test_errors_by_accelerator_add_up_to_the_whole() -> None:
    for one in kernels():
        if not one.accelerator:
            parts = [other.count for other in kernels() if other.operation == one.operation and other.accelerator]
            assert sum(parts) == one.count


# --- tables and the command ----------------------------------------------------------------------------------------


def test_tables_as_text() -> None:
    logs = np.log([1.1, 1.2, 0.9, 1.0])
    errors = replace(errors_of(logs), low=np.full(4, 0.88), high=np.full(4, 1.2))
    header, lines = cross_validation_table([errors])
    assert len(header) == len(lines[0])
    assert lines[0][:6] == ("training: dense", STEP_TIME, "4", "2", "10.0 %", "20.0 %")
    assert lines[0][-2:] == ("75 %", "1.20")
    assert TIME_PER_TOKEN not in lines[0]
    one = KernelError("all-reduce", "", "", 30, 0.04, 0.2, 0.08)
    assert kernel_table([one])[1] == [("all-reduce", "all", "", "30", "4.0 %", "20.0 %", "8 %")]
    assert not one.missed and replace(one, median=0.09).missed


def test_the_command_shows_kernels() -> None:
    done = CliRunner().invoke(cli, ["validate", "--kernels"])
    assert done.exit_code == 0, done.output
    assert "matrix product over 50 us" in done.output and "H100-SXM-80GB" in done.output


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        InputError, match='unknown generation, accelerator, software or source "vlm"; did you mean vllm'
    ):
        measured().without("vlm", shipped())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kernels", "--cross-validate"], "no other option"),
        (["--kernels", "--leave-out", "vllm"], "no other option"),
        (["--own", "--choice"], "--own goes with"),
        (["--cross-validate", "-o", "x.csv"], "--cross-validate prints a table"),
        (["--kernels", "x.csv"], "--kernels takes the shipped"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(cli, ["validate", *arguments])
    assert done.exit_code == 2
    assert words in done.output
