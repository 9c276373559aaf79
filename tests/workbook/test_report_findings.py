"""What a report says of plans: findings, answers, and tables and charts of odd plans."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import report_samples as samples

from xlperf.base.errors import InputError, XlperfError
from xlperf.catalog.table import Table
from xlperf.workbook.report.book import report_workbook
from xlperf.workbook.report.data import Plans, Report
from xlperf.workbook.report.limits import curves
from xlperf.workbook.report.summary import decisions, findings


@pytest.mark.parametrize("kind", ["training", "inference"])
def test_decisions_name_the_best_plans_that_fit_of_each_model_and_by_how_much(kind: str) -> None:
    plans, results = getattr(samples, kind)()
    group = Plans(plans, results, samples.catalog())
    made = decisions(group)
    cost = {"training": "cost_per_million_tokens", "inference": "cost_per_million_output_tokens_all_in"}[kind]
    assert len(made) > 2
    for decision in made:
        rows = np.array(decision.rows)
        assert len({group.models[row] for row in rows}) == 1 and (results["fits"][rows] == 1).all()
        cheap, fast = decision.choices
        assert fast is not None and (cheap is not None) == bool(np.isfinite(group.number(cost)[rows]).any())
        first, second, *_ = [*np.sort(group.number(cost)[rows]), np.nan]
        if cheap is not None:
            assert cheap.amount == group.number(cost)[cheap.row] == first
        if cheap is not None and np.isfinite(second):
            assert cheap.ahead == pytest.approx(1.0 - first / second)
        if kind == "training":
            rate = group.number("tokens_per_second")[rows]
            assert fast.amount == rate.max()
        else:
            patient = rows[group.number("ttft")[rows] <= 10_000.0]
            assert fast.amount == group.number("tpot")[patient if len(patient) else rows].min()


def test_the_first_screen_shows_the_decisions_row_by_row() -> None:
    groups = tuple(Plans(*made, samples.catalog()) for made in (samples.training(), samples.inference()))
    book = report_workbook(samples.catalog(), [group.plans for group in groups], [group.results for group in groups],
                           date=samples.DAY, explain=samples.explain, limits=samples.limits)  # fmt: skip
    sheet = book["summary"]
    shown = {}
    for cells in sheet.iter_rows(min_row=4, max_row=40, max_col=11, values_only=True):
        if isinstance(cells[8], float):
            shown[cells[0], cells[5]] = cells
    for group in groups:
        for decision in decisions(group):
            cheap, fast = decision.choices
            assert fast is not None
            cells = shown.pop((decision.model, group.names[fast.row]))
            assert cells[8] == fast.amount
            if cheap is None:
                assert cells[1:5] == (None, None, None, None)
                continue
            assert cells[2] == cheap.amount and (cells[4] or "") == cheap.sure(decision.trust(cheap))
            assert cells[1] == group.names[cheap.row]
            assert cells[3] == (cheap.ahead if np.isfinite(cheap.ahead) else None)


def test_bands_that_overlap_are_close_and_bands_apart_are_clear() -> None:
    plans, results = (table.take([0, 1]) for table in samples.training(4))
    columns = {**results.columns, "fits": np.ones(2)}
    plans = Table(plans.kind, {**plans.columns, "model": np.array(["GPT-3 175B"] * 2, dtype=object)})
    for name in ("tokens_per_second", "cost_per_million_tokens"):
        columns[name] = np.array([1.0, 2.0])
        for width, clear in ((0.1, True), (0.5, False)):
            columns |= {f"{name}_low": columns[name] * (1 - width), f"{name}_high": columns[name] * (1 + width)}
            (decision,) = decisions(Plans(plans, Table(results.kind, columns)))
            choice = decision.choices[name == "tokens_per_second"]
            assert choice is not None and choice.clear is clear and choice.band == pytest.approx(width)


def test_a_plan_whose_other_pool_does_not_fit_is_not_less_than_too_large() -> None:
    plans, results = samples.training(6)
    reasons = results["reason"].copy()
    reasons[1] = "the expert pool needs 99 of 80 GiB; more"
    fits, need = results["fits"].copy(), results["memory_reserved"].copy()
    fits[1], need[1] = 0.0, 1.0
    changed = Table(results.kind, {**results.columns, "fits": fits, "memory_reserved": need, "reason": reasons})
    said = findings_of((plans, changed))["Does not fit"]
    assert f"{plans['name'][1]} (the expert pool needs 99 of 80 GiB)" in said and "-" not in said.split("(", 1)[1]


def findings_of(*groups: tuple[Table, Table]) -> dict[str, str]:
    made = tuple(Plans(plans, results) for plans, results in groups)
    report = Report(samples.catalog(), made, (), samples.DAY, "", "0")
    result: dict[str, str] = {}
    for finding in findings(report):
        result.setdefault(finding.tag, finding.words)
    return result


def test_findings_name_scarce_memory_and_wide_bands() -> None:
    plans, results = samples.training()
    said = findings_of((plans, results))
    good = results["fits"] == 1
    names = Plans(plans, results).names
    spare = np.where(good, results["memory_capacity"] - results["memory_reserved"], np.inf)
    assert said["Least memory left, training"].startswith(names[int(spare.argmin())])
    width = (results["step_time_high"] - results["step_time_low"]) / results["step_time"]
    assert said["Least sure, training"].startswith(names[int(np.nanargmax(np.where(good, width, np.nan)))])


def test_findings_never_praise_a_plan_that_does_not_fit() -> None:
    plans, results = samples.training(6)
    columns = dict(results.columns)
    columns["fits"] = np.array([0.0, 1.0, 1.0, 1.0, np.nan, np.nan])
    columns["tokens_per_second"] = np.array([9e3, 3e3, 2e3, 1e3, np.nan, np.nan])
    changed = Table(results.kind, columns)
    assert all(0 not in decision.rows for decision in decisions(Plans(plans, changed)))
    said = findings_of((plans, changed))
    assert any("3,000 tokens per second" in words for words in said.values())
    assert "1 training plan does not fit" in said["Does not fit"]


def test_findings_say_by_how_much_plans_do_not_fit_and_why_plans_are_refused() -> None:
    plans, results = samples.training()
    said = findings_of((plans, results))
    need, have = results["memory_reserved"], results["memory_capacity"]
    over = np.nanmax(np.where(results["fits"] == 0, (need - have) / have, np.nan))
    assert f"{100 * over:.1f} % too much" in said["Does not fit"]
    assert said["Refused"].startswith("2 training plans are refused")
    assert "does not divide the 7 query groups" in said["Refused"]


def test_every_answer_is_given_once_and_names_its_plan() -> None:
    groups = tuple(Plans(*made) for made in (samples.training(), samples.inference()))
    result = findings(Report(samples.catalog(), groups, (), samples.DAY, "", "0"))
    tags = [finding.tag for finding in result if finding.tag not in ("Does not fit", "Refused")]
    assert len(tags) == len(set(tags))
    names = {name for group in groups for name in group.names}
    answers = [finding.words for finding in result if finding.tag.startswith(("Training ", "Serving "))]
    assert answers and all(
        any(words.startswith((f"cheapest {name}", f"fastest {name}")) for name in names) for words in answers
    )


def test_findings_change_with_the_numbers() -> None:
    plans, results = samples.inference()
    columns = dict(results.columns)
    columns["tpot"] = columns["tpot"].copy()
    columns["tpot"][7] = 1e-6
    said = findings_of((plans, Table(results.kind, columns)))
    assert any(f"fastest {plans['name'][7]}, " in words for words in said.values())


def test_the_fastest_answer_is_one_that_a_user_waits_for() -> None:
    """A plan with a first token after 200 s is not the fastest; unless all are as slow."""
    plans, results = samples.inference()
    slow = {**results.columns, "tpot": results["tpot"].copy(), "ttft": results["ttft"].copy()}
    slow["tpot"][7], slow["ttft"][7] = 1e-6, 200.0
    fastest = f"fastest {plans['name'][7]}, "
    assert not any(fastest in words for words in findings_of((plans, Table(results.kind, slow))).values())
    slow["ttft"] = np.full(len(plans), 200.0)
    assert any(fastest in words for words in findings_of((plans, Table(results.kind, slow))).values())


def test_time_that_no_part_explains_is_shown() -> None:
    plans, results = samples.training(8)
    columns = dict(results.columns)
    columns["time_data_parallel"] = np.zeros(8)
    made = samples.made_of(plans, Table(results.kind, columns))
    rows = samples.records(made["step time"], "step_time_training")
    assert all(isinstance(row["other (%)"], float) and row["other (%)"] > 0 for row in rows)
    assert "data parallel (%)" not in rows[0]


def test_limits_begin_with_plans_that_have_targets() -> None:
    plans, results = samples.inference()
    late = int(np.flatnonzero(results.number("fits") == 1.0)[-1])
    targets = np.where(np.arange(len(plans)) == late, 0.02, np.nan)
    asked = Table("inference", {**plans.columns, "tpot_target": targets})
    drawn = curves(Plans(asked, results), samples.catalog(), samples.limits)
    assert drawn[0].name == asked.text("name")[late]
    assert len(drawn) <= 8
    assert curves(None, samples.catalog(), samples.limits) == []


def test_many_plans_go_to_several_charts_and_nothing_is_dropped_silently() -> None:
    plans, results = samples.training(130)
    made = samples.made_of(plans, results)
    sheet = made["step time"]
    assert len(sheet._charts) == 2 * 4
    assert len(samples.records(sheet, "step_time_training")) == 96
    assert "34 plans not shown" in samples.words(sheet)
    assert len(samples.records(made["training"])) == 130


def test_one_kind_of_plan_alone(tmp_path: Path) -> None:
    plans, results = samples.inference(3)
    made = samples.made_of(plans, results)
    assert "training" not in made.sheetnames
    assert "step time" not in made.sheetnames
    assert "inference time" in made.sheetnames


def test_all_plans_refused() -> None:
    plans, results = samples.training(2)
    made = samples.made_of(plans, results)
    assert not {"step time", "memory", "roofline", "limits"} & set(made.sheetnames)
    assert len(samples.records(made["reasons"])) == 2
    assert "2 training plans are refused" in samples.words(made["summary"])


def test_no_plans_is_one_line() -> None:
    with pytest.raises(InputError) as caught:
        report_workbook(samples.catalog(), [], [], date=samples.DAY, explain=samples.explain, limits=samples.limits)
    assert str(caught.value) == "samples.xlsx: holds no plans; fill the sheets training or inference"


def test_results_of_other_plans_are_refused() -> None:
    plans, _ = samples.training(4)
    _, results = samples.inference(4)
    with pytest.raises(XlperfError):
        samples.made_of(plans, results)


def test_capacity_of_far_too_large_plans_does_not_flatten_the_chart() -> None:
    plans, results = samples.training(6)
    columns = dict(results.columns)
    columns["memory_weights"] = columns["memory_weights"] * 500
    made = samples.made_of(plans, Table(results.kind, columns))
    chart = made["memory"]._charts[0]
    assert chart.y_axis.scaling.max == pytest.approx(160.0)
    assert "cut off" in chart.title.tx.rich.p[0].r[0].t


def test_nothing_fits() -> None:
    plans, results = samples.training(6)
    columns = {**results.columns, "fits": np.where(np.isnan(results["fits"]), np.nan, 0.0)}
    made = samples.made_of(plans, Table(results.kind, columns))
    text = samples.words(made["summary"])
    assert "4 training plans do not fit in memory" in text
    assert "cheapest plan" not in text
    assert "best_training" not in made["summary"].tables


def test_results_with_few_columns() -> None:
    plans, results = samples.inference(5)
    few = Table(results.kind, {name: results[name] for name in ("ttft", "tpot", "fits", "reason")})
    made = samples.made_of(plans, few)
    assert not {"inference time", "memory"} & set(made.sheetnames)
    assert [name for name in samples.records(made["inference"])[0] if "ms" in name] == ["ttft (ms)", "tpot (ms)"]
