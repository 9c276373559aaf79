"""The calibration sheet follows from measurements alone, under the rules of what may be fitted."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from fit_samples import sample_coarsely
from hypothesis import given
from hypothesis import strategies as st
from places import DATA
from published_samples import rows_of_fit_set
from shipped import shipped_measured

from xlperf.base import resources
from xlperf.base.errors import InputError
from xlperf.base.units import UNITS
from xlperf.calibrate.fit import fit_all, rows_of, with_errors
from xlperf.calibrate.fit_machines import MACHINE_SOURCE as OF_MACHINES
from xlperf.calibrate.fit_machines import kernels_of_other_generations, of_other_precisions, of_other_software
from xlperf.calibrate.fit_published import (
    MOST_CONSTANTS,
    MOST_OF_SOFTWARE,
    SOURCES,
    as_parameters,
    family_parameters,
    fit_training,
    least_value,
)
from xlperf.calibrate.fitter import (
    FEWEST_ROWS,
    FittedConstant,
    Parameter,
    Problem,
    calibration_table,
    fit_set,
    joined_tables,
    most_telling,
    rounded,
    solve,
)
from xlperf.calibrate.published_errors import Measured, errors_of, plans_to_fit
from xlperf.catalog.calibration import declared_constants, generation_line
from xlperf.catalog.catalog import Catalog
from xlperf.engine import evaluate
from xlperf.measurements.comparison import STEP_TIME
from xlperf.measurements.kernels import machine_lines
from xlperf.measurements.published import Published, published_columns, published_rows, read_published
from xlperf.measurements.training import training_plans

TRAINING, INFERENCE = DATA / "training_published.csv", DATA / "inference_published.csv"
KERNELS = ("gemm", "attention", "attention_backward", "attention_decode", "vector")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point")


@pytest.fixture(scope="module", autouse=True)
def coarse() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        sample_coarsely(patch)
        yield


@pytest.fixture(scope="module")
def measured() -> Measured:
    return shipped_measured()


def runs(catalog: Catalog, software: str, truth: dict[str, float], group: str = "dense-megatron") -> Published:
    """Runs of Llama 3.1 70B on H100 whose measured time is what the engine says under some constants; no host waits."""
    header = list(published_columns()["training"])
    rows = []
    for number in range(20):
        tensor, stages, micro = (1, 2, 4, 8)[number % 4], (1, 2)[number % 2], (2, 4)[number // 10]
        plan = {
            "row_id": f"R{number}",
            "source_id": f"source {number % 5}",
            "group": group,
            "metric_kind": "throughput",
            "software": software,
            "model": "Meta-Llama-3.1-70B",
            "gpu": "H100-SXM-80GB",
            "n_gpus": 64,
            "tp": tensor,
            "pp": stages,
            "vp": 1,
            "gbs": 256,
            "mbs": micro,
            "seq_len": 4096,
            "recompute": "none",
            "precision": "bf16",
            "sp": "True",
            "zero_stage": 1,
            "iter_time_s": 1.0,
        }
        rows.append([str(plan.get(name, "")) for name in header])
    first = published_rows(header, rows, lambda row, column: f"row {row} {column}")
    table = catalog.tables["calibration"]
    constants = [_constant(software, name, value) for name, value in truth.items()]
    known = catalog.with_tables([joined_tables(table, calibration_table(constants))])
    plans = training_plans(first, known)
    times = evaluate(plans.plans, plans.catalog).number("step_time")
    assert len(times) == 20 and np.isfinite(times).all()
    column = header.index("iter_time_s")
    for row, time in zip(rows, times.tolist(), strict=True):
        row[column] = repr(time)
    return published_rows(header, rows, lambda row, column: f"row {row} {column}")


def _constant(software: str, name: str, value: float) -> FittedConstant:
    return FittedConstant("training_software", "any", "any", software, name, value, "", 0, math.nan, "", "")


def _errors(published: Published, catalog: Catalog, rows: list[FittedConstant]) -> np.ndarray:
    """Logarithms of predicted over measured times under constants."""
    table = joined_tables(catalog.tables["calibration"], calibration_table(rows))
    return errors_of(plans_to_fit(published, catalog.with_tables([table])), (STEP_TIME,)).fitted


# --- the rules, on the sheet that is shipped -----------------------------------------------------------------------


def test_no_row_of_the_papers_is_in_a_fit(catalog: Catalog, measured: Measured) -> None:
    table = catalog.tables["calibration"]
    known = {"training": measured.training, "inference": measured.inference}
    named = 0
    for family, text in zip(table.text("family"), table.text("fit_set"), strict=True):
        if not family.startswith(("training_", "serving_")):
            continue
        published = known["training" if family.startswith("training") else "inference"]
        papers = {name for name, group in zip(published.text["row_id"], published.text["group"], strict=True)
                  if group == "papers"}  # fmt: skip
        rows = rows_of_fit_set(text, published.text["row_id"])
        named += len(rows)
        assert not papers & set(rows)
    assert named > 1000, "the shipped sheet says on which published rows it was fitted"


def test_fit_sets_count_their_rows(catalog: Catalog, measured: Measured) -> None:
    """Those of machines beyond NVIDIA name rows of both sheets; no run of rows goes from one sheet into the other."""
    table = catalog.tables["calibration"]
    training, inference = measured.training.text["row_id"], measured.inference.text["row_id"]
    both = 0
    for row, source in enumerate(table.text("source").tolist()):
        if source.startswith((*SOURCES.values(), OF_MACHINES)):
            named = [rows_of_fit_set(table["fit_set"][row], sheet) for sheet in (training, inference)]
            assert sum(map(len, named)) == table["num_rows"][row], table.place(row, "fit_set")
            both += all(named)
    assert both > 0


def test_few_constants(catalog: Catalog) -> None:
    """Of a software on accelerators of NVIDIA, and on each line of other machines; no copies, no assumptions."""
    table = catalog.tables["calibration"]
    lines = set(machine_lines(catalog).values()) - {"ascend"}  # no published run was fitted
    by_kernel, by_software = defaultdict(set), defaultdict(set)
    copied = {
        (table.text("family")[row], table.text("generation")[row], table.text("constant")[row], table["value"][row])
        for row in range(len(table))
        if table["num_rows"][row] > 0
    }
    for row in range(len(table)):
        family, generation, precision, software, constant = (
            table.text(name)[row] for name in ("family", "generation", "precision", "software", "constant")
        )
        if family in KERNELS + COLLECTIVES:
            if table.text("kind")[row] == "datasheet":  # a documented ratio to what was fitted
                continue
            by_kernel[family, generation, precision, software].add(constant)
        elif family in ("training_software", "serving_software"):
            same = (family, generation, constant, table["value"][row]) in copied
            if table["num_rows"][row] == 0 and (same or table.text("kind")[row] == "assumption"):
                continue
            line = generation_line(generation) if generation_line(generation) in lines else "any"
            by_software[family, line, software].add((generation, constant))
    assert max(len(constants) for constants in by_kernel.values()) <= 8
    assert {line for _, line, _ in by_software} == {"any", *lines}
    shared = {key: constants for key, constants in by_software.items() if key[2] == "any"}
    own = [constants for key, constants in by_software.items() if key not in shared]
    assert max(map(len, own)) <= MOST_OF_SOFTWARE == 4
    assert max(map(len, shared.values())) <= MOST_OF_SOFTWARE + 1, "what the constants of software are pooled towards"


def test_every_row_says_where_it_comes_from(catalog: Catalog) -> None:
    table = catalog.tables["calibration"]
    assert len(table) > 100
    assert all(table.text("source")) and all(table.text("kind"))


# --- the machinery -------------------------------------------------------------------------------------------------


def test_the_fitter_finds_a_line_among_outliers_and_names_what_is_unidentifiable() -> None:
    """Slope and offset come back although every ninth row is off by half; a parameter without an effect is held."""
    at = np.linspace(0.0, 1.0, 60)
    wanted = 0.3 * at + 0.1 + np.where(np.arange(60) % 9 == 0, 0.5, 0.0)
    names = ("tensor_parallel_overlap", "data_parallel_overlap", "overlap_tax")
    parameters = [Parameter("training_software", name) for name in names]

    def residuals(trials: np.ndarray) -> np.ndarray:
        return trials[:, :1] * at + trials[:, 1:2] - wanted

    result = solve(Problem(residuals, np.ones(60), step=1e-6), parameters)
    assert result.values[:2] == pytest.approx([0.3, 0.1], abs=0.005)
    assert result.identified.tolist() == [True, True, False]
    assert result.values[2] == parameters[2].declared.default
    assert most_telling(parameters, result, 1) == [1], "the offset is farther from its default"
    again = solve(Problem(residuals, np.ones(60), step=1e-6), parameters)
    assert again.values.tolist() == result.values.tolist()


def test_a_special_parameter_is_pooled_towards_its_parent() -> None:
    """Three rows of a software count against the pooling; without rows it is the value of all software."""
    parent = Parameter("training_software", "tensor_parallel_overlap")
    children = [
        Parameter("training_software", "tensor_parallel_overlap", software=name, parent=0, pull=0.03) for name in "ab"
    ]
    wanted = np.array([0.2] * 40 + [0.6] * 40)

    def residuals(trials: np.ndarray) -> np.ndarray:
        return np.repeat(trials[:, :2], 40, axis=1) - wanted

    result = solve(Problem(residuals, np.ones(80), step=1e-6), [parent, *children])
    assert result.values[:2] == pytest.approx([0.2, 0.6], abs=0.02)
    assert result.identified.tolist() == [True, True, False] and result.values[2] == result.values[0]


def test_a_fit_finds_the_constants_that_made_the_runs(catalog: Catalog) -> None:
    truth = {"kernel_slowdown": 1.35, "tensor_parallel_overlap": 0.4}
    published = runs(catalog, "somestack", truth)
    rows = fit_training(published, catalog, "2026-01-01")
    result = {row.constant: row.value for row in rows}
    assert result["kernel_slowdown"] == pytest.approx(1.35, rel=0.03)
    assert result["tensor_parallel_overlap"] == pytest.approx(0.4, abs=0.12)
    assert np.abs(_errors(published, catalog, rows)).max() < 0.04


_OWN = ("attention", "attention_backward", "vector", "gemm")


def test_slow_attention_of_a_stack_makes_its_runs_longer_and_only_named_stacks_have_their_own(catalog: Catalog) -> None:
    published = runs(catalog, "somestack", {"kernel_slowdown": 1.1})
    slow = [
        FittedConstant(family, "hopper", "bf16", "somestack", "compute_efficiency", value, "", 0, math.nan, "", "")
        for family, value in (("attention", 0.3), ("attention_backward", 0.26))
    ]
    shift = np.expm1(_errors(published, catalog, [_constant("somestack", "kernel_slowdown", 1.1), *slow]))
    assert (shift > 0.0).all(), "slower kernels make every run longer"
    plans = plans_to_fit(published, catalog)
    entries = errors_of(plans, (STEP_TIME,))
    for software, families in (("somestack", {"training_software"}), ("torch-fsdp", {"training_software", *_OWN})):
        named = replace(entries, software=np.full(len(entries), software, dtype=object))
        result = family_parameters("training", plans, named)
        assert {one.family for one in result} == families
        assert all(one.high == one.target for one in result if one.family in _OWN), "no kernel is faster than alone"


def test_kernels_of_a_stack_hold_on_generations_that_nothing_is_measured_on(catalog: Catalog) -> None:
    kernels = FittedConstant(
        "gemm", "hopper", "bf16", "somestack", "compute_efficiency", 0.7, "R0-R19", 20, math.nan, "", ""
    )
    result = [kernels, *kernels_of_other_generations([kernels])]
    assert {row.generation: row.value for row in result} == {"hopper": 0.7, "any": 0.7}
    known = catalog.with_tables([joined_tables(catalog.tables["calibration"], calibration_table(result))])
    for kind in ("hopper", "rubin"):
        keys = (np.array([name], dtype=object) for name in (kind, "bf16", "somestack"))
        assert known.calibration.constants("gemm", *keys)[0]["compute_efficiency"][0, 0] == 0.7


def _together(parts: Sequence[Published]) -> Published:
    """Rows of several tables as one, each named by its table too."""
    header = list(parts[0].text)
    rows = []
    for number, one in enumerate(parts):
        for row in zip(*(one.text[name] for name in header), strict=True):
            rows.append(
                [f"{number} {word}" if name == "row_id" else word for name, word in zip(header, row, strict=True)]
            )
    return published_rows(header, rows, lambda row, column: f"row {row} {column}")


def test_software_that_nobody_measured_is_as_slow_as_stacks_are_on_the_mean(catalog: Catalog) -> None:
    """Each stack counts once; a sweep of bad mappings and a slow machine stay apart; what was fitted of all stays."""
    slowdowns = {"a": 1.0, "b": 1.21, "nanotron": 1.9, "c-simumax": 1.8}
    tables = [runs(catalog, name, {"kernel_slowdown": value}) for name, value in slowdowns.items()]
    result = [_constant(name, "kernel_slowdown", value) for name, value in slowdowns.items()]
    [mean] = of_other_software(_together([tables[0], *tables]), catalog, result)
    assert (mean.software, mean.generation, mean.num_rows, mean.kind) == ("any", "any", 0, "assumption")
    assert mean.value == pytest.approx(1.1, abs=0.015), "the rows of a are there twice, and a counts once"
    [slower] = of_other_software(_together(tables[1:]), catalog, result[1:])
    assert slower.value == pytest.approx(1.21, abs=0.015)
    assert of_other_software(_together(tables), catalog, [*result, mean]) == []


def test_experts_in_a_precision_that_nobody_measured_are_padded_as_in_the_others() -> None:
    """Those of 16 bits are not; one measured precision alone tells nothing of others."""
    result = [
        FittedConstant("serving_experts", "any", name, "any", "product_slowdown", value, name, 9, 0.0, "", "")
        for name, value in (("fp4", 2.0), ("fp8", 4.5), ("bf16", 1.0))
    ]
    others = {one.precision: one.value for one in of_other_precisions(result)}
    assert others == {"int8": 3.0, "int4": 3.0}, "the geometric mean of those below 16 bits"
    assert of_other_precisions(result[1:]) == []


def test_a_refit_keeps_the_bounds_of_a_fit(catalog: Catalog) -> None:
    assert least_value("training", "experts", "product_slowdown") == 1.0
    assert math.isnan(least_value("inference", "serving_experts", "product_slowdown"))
    parameters, _ = as_parameters(catalog.tables["calibration"], "training")
    bounds = {one.bounds[0] for one in parameters if (one.family, one.constant) == ("experts", "product_slowdown")}
    assert bounds <= {1.0}


def test_rows_of_papers_are_not_read_by_a_fit(catalog: Catalog) -> None:
    published = runs(catalog, "somestack", {"kernel_slowdown": 1.35}, group="papers")
    assert len(errors_of(plans_to_fit(published, catalog))) == 0
    assert fit_training(published, catalog, "2026-01-01") == []


@pytest.fixture(scope="module")
def of_stack(catalog: Catalog) -> tuple[Published, list[FittedConstant]]:
    """Runs of a stack that is slower than declared, and what a fit makes of them."""
    published = runs(catalog, "somestack", {"kernel_slowdown": 1.2})
    return published, fit_training(published, catalog, "2026-01-01")


def test_same_rows_same_sheet(catalog: Catalog, of_stack: tuple[Published, list[FittedConstant]]) -> None:
    published, first = of_stack
    second = fit_training(published, catalog, "2026-01-01")
    assert repr(first) == repr(second) and first
    told = [one for one in first if one.kind == "measured"]
    assert told and all(one.date == "2026-01-01" and one.fit_set == "R0-R19" and one.num_rows == 20 for one in told)


def test_a_fit_does_not_look_at_the_sheet_that_is_stored(
    catalog: Catalog, measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every part of the fit starts from declared values: a fit of what a fit made gives the same bits."""
    table = catalog.tables["calibration"]
    few = table.take(range(0, len(table), 3))  # other constants, and others than a fit chooses
    seen: dict[str, list[list[tuple[str, ...]]]] = {}
    for name in ("fit_kernels", "fit_memory", "fit_training", "fit_serving"):

        def taken(rows: object, known: Catalog, *_: object, name: str = name) -> list[FittedConstant]:
            given = known.tables["calibration"]
            cells = (map(str, given.columns[column].tolist()) for column in ("calibration", "value"))
            seen.setdefault(name, []).append(list(zip(*cells, strict=True)))
            return [_constant(name, "kernel_slowdown", 1.5)]

        monkeypatch.setattr(f"xlperf.calibrate.fit.{name}", taken)
    first, second = (fit_all(measured, catalog.with_tables([sheet]), "", str) for sheet in (table, few))
    assert repr(first) == repr(second) and len(seen) == 4
    assert all(once == again and len(once) < 160 for once, again in seen.values())  # documented ones alone


def test_too_few_rows_make_no_constants(catalog: Catalog) -> None:
    published = runs(catalog, "somestack", {"kernel_slowdown": 1.2}).take(range(FEWEST_ROWS - 1))
    assert fit_training(published, catalog, "") == []


def test_fitted_rows_are_a_calibration_sheet(
    catalog: Catalog, of_stack: tuple[Published, list[FittedConstant]]
) -> None:
    published, rows = of_stack
    result = with_errors(calibration_table(rows), [published], catalog)
    assert 0 < result.text("family").tolist().count("training_software") <= MOST_CONSTANTS["training"]
    fitted = catalog.with_tables([result])
    constants, far = fitted.calibration.constants(
        "training_software", *(np.array([name], dtype=object) for name in ("hopper", "bf16", "somestack"))
    )
    assert constants["kernel_slowdown"][0, 0] == pytest.approx(1.2, rel=0.03)
    assert not far[0]


def test_joined_tables_replace_rows_of_the_same_key(catalog: Catalog) -> None:
    table = calibration_table([_constant("a", "kernel_slowdown", 1.1), _constant("b", "kernel_slowdown", 1.2)])
    both = joined_tables(table, calibration_table([_constant("A", "kernel_slowdown", 1.3)]))
    assert both["value"].tolist() == [1.2, 1.3]


@given(st.sets(st.integers(0, 30)))
def test_fit_set_names_its_rows(chosen: set[int]) -> None:
    rows = [f"T-{number:03d}" for number in range(31)]
    names = [rows[number] for number in sorted(chosen)]
    assert rows_of_fit_set(fit_set(names, rows), rows) == names


def test_values_have_three_digits() -> None:
    assert [rounded(value) for value in (1.23456, 0.00098765, 12345.0)] == [1.23, 0.000988, 12300.0]


def test_leaving_a_generation_out(catalog: Catalog) -> None:
    (training,), (inference,) = read_published(TRAINING), read_published(INFERENCE)
    kernels = [{"gpu": "B200-SXM-180GB"}, {"gpu": "h100-sxm-80gb"}]
    kept = Measured(kernels, training, inference).without("Blackwell", catalog)
    gone = {"B200-SXM-180GB", "GB200-NVL72", "GB300-NVL72", "B300-SXM"}
    assert kept.kernels == [{"gpu": "h100-sxm-80gb"}]
    for before, after in ((training, kept.training), (inference, kept.inference)):
        assert set(after.text["gpu"]) == set(before.text["gpu"]) - gone
    with pytest.raises(
        InputError,
        match='--leave-out: unknown generation, accelerator, software or source "blckwell"; did you mean blackwell',
    ):
        kept.without("blckwell", catalog)


def test_leaving_a_source_out(catalog: Catalog) -> None:
    """A name takes the source_id that it is, and those that it begins up to a mark between words."""
    (training,), (inference,) = read_published(TRAINING), read_published(INFERENCE)
    everything = Measured([{"gpu": "h100-sxm-80gb"}], training, inference)
    kept = everything.without("LLM_Foundry", catalog)
    assert set(training.text["source_id"]) - set(kept.training.text["source_id"]) == {"llm_foundry"}
    assert len(kept.inference) == len(inference) and kept.kernels == everything.kernels
    paper = everything.without("korthikanti2022", catalog)
    gone = set(training.text["source_id"]) - set(paper.training.text["source_id"])
    assert gone == {"korthikanti2022", "korthikanti2022_layer", "korthikanti2022_mem"}
    assert set(rows_of(training, catalog, "llm_foundry").text["source_id"]) == {"llm_foundry"}
    with pytest.raises(InputError, match='or source "llm_foundri"; did you mean llm_foundry'):
        everything.without("llm_foundri", catalog)


_CHOSEN = re.compile(r"published (times|steps)|left out|times per token")
"""Words of a constant that published runs were looked at for."""


def test_documented_settings_are_declared() -> None:
    """No constant that was chosen on published runs is called a datasheet."""
    for row in resources.rows("catalog/documented_constants.csv"):
        one = declared_constants()[row["family"]][row["constant"]]
        assert one.low <= float(row["value"]) * UNITS[one.unit].factor <= one.high
        assert row["source"] and row["kind"] in ("datasheet", "measured", "chosen", "assumption")
        if _CHOSEN.search(row["source"] + row["notes"]):
            assert row["kind"] == "chosen", row
