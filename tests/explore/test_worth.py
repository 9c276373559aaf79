"""What more of a number is worth: equal cost per token, re-planned, and nothing where there is slack."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import shadow
from conftest import csv_rows
from explore.test_solve import H100, SERVE, TRAIN, table, targets, varied
from work import examples

from xlperf.addin.worker import Session
from xlperf.catalog.catalog import Catalog
from xlperf.engine import evaluate
from xlperf.explore.candidates import with_mapping
from xlperf.explore.changed_catalogs import changed_catalog, sheet_rows
from xlperf.explore.search import search
from xlperf.explore.solve import MONTH, STEP, best_plan, break_even, changed, usual_changes, worth
from xlperf.explore.vary import Varied

COST = "cost_per_million_output_tokens_all_in"
RENT = "prices.rental price=x1"
SERVED = {**SERVE, "ttft target": 400, "tpot target": 12, "concurrency": "auto"}
SCENARIOS = [
    {**TRAIN, "accelerator": accelerator, "tensor parallel": tensor, "global batch size": batch}
    for accelerator, tensor, batch in ((H100, 2, 64), ("H200-SXM-141GB", 8, 256), ("B200-SXM-180GB", "auto", 64))
]
"""Three machines, each at a width of its own."""


def _dearer(catalog: Catalog, plan: Any, by: float) -> Catalog:
    """The catalog with a rental price that is higher by so much [USD/s]."""
    price = varied(plan.kind, RENT).varied[0]
    rows = catalog.price_rows[catalog.known_rows("accelerators", plan.text("accelerator"))]
    value = float(catalog.tables["prices"]["rental_price"][rows[0]]) + by
    return changed_catalog(catalog, plan, [(Varied(price.sheet, price.name, np.array([value]), False), value)])


@pytest.mark.parametrize(
    "row", [*SCENARIOS, SERVED], ids=lambda row: f"{row['accelerator'][:4]}-{row['tensor parallel']}"
)
def test_at_the_price_that_it_is_worth_a_token_costs_as_before(catalog: Catalog, row: dict[str, Any]) -> None:
    plan = table(row)
    changes = usual_changes(plan, catalog)
    result = worth(plan, catalog, changes)
    assert len(result) == (9 if plan.kind == "inference" else 7)
    assert (result["worth"] > 0.0).any()
    cost = "cost_per_million_tokens" if plan.kind == "training" else "cost_per_million_output_tokens_all_in"
    before = search(plan, catalog, "cost").results[cost][0]
    for number, one in enumerate(changes):
        if one.sheet == plan.kind:
            continue
        gain = result["worth"][number] * (result["value_after"][number] - result["value_before"][number])
        first, second = np.array([1.0, STEP]) * sheet_number(catalog, plan, one)
        own = _dearer(changed(plan, catalog, (), one, first, second)[1], plan, gain / MONTH)
        assert search(plan, own, "cost").results[cost][0] == pytest.approx(before, rel=1e-9)


def test_what_the_best_plan_does_not_use_is_worth_exactly_nothing(catalog: Catalog) -> None:
    plan = table(TRAIN)
    asked = varied("training", "accelerators.memory capacity=x1.01,x2", "networks.link bandwidth=x1.01").varied
    roomy = worth(plan, catalog, asked[:1])
    assert roomy["worth"].tolist() == [0.0, 0.0]
    assert roomy["chosen"].tolist() == ["the same plan"] * 2
    alone = table({**TRAIN, "num accelerators": 1, "tensor parallel": 1, "model": "Qwen3-0.6B"})
    assert worth(alone, catalog, asked[1:])["worth"].tolist() == [0.0]


def test_memory_is_worth_something_where_another_plan_then_fits(catalog: Catalog) -> None:
    plan = with_mapping(table({**TRAIN, "tensor parallel": "", "model": "Meta-Llama-3.1-70B", "num accelerators": 32}))
    more = varied("training", "accelerators.memory capacity=x1.01,x2").varied
    result = worth(plan, catalog, more)
    assert result["worth"][0] >= 0.0
    assert result["worth"][1] > 0.0
    assert result["chosen"][1] != "the same plan"
    fixed = worth(
        table({**TRAIN, "tensor parallel": 8}), catalog, varied("training", "accelerators.memory capacity=x2").varied
    )
    assert fixed["worth"].tolist() == [0.0]


def sheet_number(catalog: Catalog, plan: Any, one: Any) -> float:
    """The number that a change starts from, of a network that of its innermost tier."""
    return float(catalog.tables[one.sheet].number(one.name)[sheet_rows(catalog, plan, one)][0])


def test_area_has_rates_and_cache_in_proportion_and_power_has_a_worth(catalog: Catalog) -> None:
    plan = table({**TRAIN, "tensor parallel": 2})
    result = worth(plan, catalog, usual_changes(plan, catalog))
    by_name = dict(zip(result["input"].tolist(), result["worth"].tolist(), strict=True))
    assert by_name["die area (mm2)"] > 0.0
    assert by_name["thermal design power (W)"] >= 0.0


@pytest.mark.slow
def test_a_limit_is_worth_nothing_where_there_is_slack_and_something_where_it_binds(catalog: Catalog) -> None:
    plan = with_mapping(table({**TRAIN, "tensor parallel": "", "num accelerators": "auto"}))
    free = search(plan, catalog, "cost", most_accelerators=32)
    power = float(free.results["grid_power"][0])
    for factor, binds in ((1.5, False), (0.6, True)):
        limits = targets("training", f"grid power <= {factor * power / 1e6} MW")
        changes = usual_changes(plan, catalog, limits)
        result = worth(plan, catalog, changes[-1:], limits, most_accelerators=32)
        assert result["sheet"].tolist() == ["limit"] and result["input"].tolist() == ["grid power (MW)"]
        assert (result["worth"] >= 0.0).all()
        if not binds:
            assert result["worth"].tolist() == [0.0] and result["worth_of_last"].tolist() == [0.0]


def test_where_a_plan_only_just_fits_the_last_unit_is_worth_more_than_the_next(catalog: Catalog) -> None:
    plan = table({**TRAIN, "micro batch size": "auto", "recompute": "auto"})
    memory = varied("training", "accelerators.memory capacity=x1.01").varied
    best = search(plan, catalog, "cost").results
    share = float(best["memory_reserved"][0] / best["memory_capacity"][0])
    tight = changed_catalog(catalog, plan, [(memory[0], share * 1.002)])
    result = worth(plan, tight, memory)
    assert result["worth"].tolist() == [0.0]
    assert result["worth_of_last"][0] > 0.0


def test_no_worth_where_nothing_keeps_the_limits(catalog: Catalog) -> None:
    plan = table(TRAIN)
    result = worth(plan, catalog, usual_changes(plan, catalog)[:1], targets("training", "step time <= 1 ms"))
    assert np.isnan(result["worth"]).all()
    assert result["chosen"][0].startswith("none keeps step time <= 0.001 s")


def test_the_command_shows_worth_by_unit(tmp_path: Path, command: Callable[..., Any]) -> None:
    plans = tmp_path / "plans.csv"
    with plans.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([TRAIN.keys(), TRAIN.values()])
    shown = command("worth", plans)
    assert (shown.code, shown.err) == (0, "")
    assert "memory bandwidth (TB/s)" in shown.out
    rows = csv_rows(command("worth", plans, "--vary", "accelerators.memory bandwidth=3.5,4", "-o", "-").out)
    assert [(row["plan"], float(row["value_after"])) for row in rows] == [("a", 3.5), ("a", 4.0)]
    assert float(rows[0]["worth"]) > float(rows[1]["worth"]) > 0.0  # ever less of it is used
    bad = command("worth", plans, "--vary", "precision=bf16")
    assert (bad.code, "--vary: what a change is worth takes numbers" in bad.err) == (2, True)


def test_the_worksheet_function_spills_what_more_is_worth(catalog: Catalog) -> None:
    cells = [list(TRAIN), list(TRAIN.values())]
    block = Session().call("XLPERF_SHADOW_PRICE", [cells])
    plan = table(TRAIN)
    own = worth(plan, catalog, usual_changes(plan, catalog))
    place = list(block[0]).index("worth (USD)")
    assert [row[place] for row in block[1:]] == own["worth"].tolist()
    per_token = list(block[0]).index("token worth (USD/Mtoken)")
    shown = [row[per_token] / float(value) for row, value in zip(block[1:], own["token_worth"], strict=True) if value]
    assert len(shown) > 3 and shown == pytest.approx([1e6] * len(shown), rel=1e-12)
    assert "utilization" in [row[list(block[0]).index("input")] for row in block[1:]]
    asked = Session().call("XLPERF_SHADOW_PRICE", [cells, [["accelerators.memory bandwidth", "x1.1", "x1.2"]]])
    assert len(asked) == 3 and asked[1][place] >= asked[2][place] > 0.0
    wrong = Session().call("XLPERF_SHADOW_PRICE", [cells, [["accelerators.memory bandwidth", "x1..x2"]]])
    assert "takes numbers" in str(wrong[0][0])


@pytest.mark.parametrize("make", [shadow.training, shadow.serving])
@pytest.mark.slow
def test_worth_is_the_difference_of_optima_over_all_plans(catalog: Catalog, make: Any) -> None:
    """The optima before and after by trying every plan, without the search; half the change where no plan changes."""
    for _, (more, last) in zip(range(examples(2)), shadow.checks(catalog, make, seed=5), strict=False):
        assert more.worth == pytest.approx(more.difference, rel=0.05)
        assert last.worth == pytest.approx(last.difference, rel=0.05)
        if more.same_plan:
            assert more.worth == pytest.approx(more.half, rel=0.07)


def test_at_its_break_even_price_another_accelerator_makes_tokens_as_cheaply(
    catalog: Catalog, tmp_path: Path, command: Callable[..., Any]
) -> None:
    plan = table({**TRAIN, "tensor parallel": "auto"})
    result = break_even(plan, ["B200-SXM-180GB", str(plan["accelerator"][0])], catalog)
    assert result["break_even_hour_cost"][1] == pytest.approx(result["hour_cost_against"][1], rel=1e-12)
    other = table({**TRAIN, "tensor parallel": "auto", "accelerator": "B200-SXM-180GB"})
    rows = catalog.price_rows[catalog.known_rows("accelerators", other.text("accelerator"))]
    priced = catalog.tables["prices"]["rental_price"][rows[0]]
    share = result["break_even_hour_cost"][0] / result["hour_cost_against"][0]
    value = float(priced * share)
    price = Varied("prices", "rental_price", np.array([value]), False)
    dearer = changed_catalog(catalog, other, [(price, value)])
    cost = search(other, dearer, "cost").results["cost_per_million_tokens"][0]
    assert cost == pytest.approx(search(plan, catalog, "cost").results["cost_per_million_tokens"][0], rel=1e-9)
    path = tmp_path / "plans.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([TRAIN.keys(), TRAIN.values()])
    rows_shown = csv_rows(command("worth", path, "--against", "B200-SXM-180GB", "-o", "-").out)
    assert [row["against"] for row in rows_shown] == ["B200-SXM-180GB"]
    both = command("worth", path, "--against", "B200-SXM-180GB", "--vary", "prices.rental price=x2")
    assert (both.code, "not both" in both.err) == (2, True)


OPEN = {**SERVE, "concurrency": "", "request rate": 0.5, "num accelerators": 8, "tensor parallel": 4,
        "mode": "continuous"}  # fmt: skip
LOADS = {
    "places": {"max running batch": 16},
    "ttft": {"ttft target": 250, "tpot target": 30},
    "tpot": {"ttft target": 1000, "tpot target": 15},
    "pools": {"mode": "disaggregated", "prefill accelerators": 4, "tpot target": 15},
}


def _least_cost(plan: Any, catalog: Catalog) -> tuple[float, float]:
    """Least cost of a token over all request rates that keep the targets, by trying rates; cost of an hour."""
    low, high = 0.0, 1e3

    def at(rates: np.ndarray, *names: str) -> Any:
        many = plan.take(np.zeros(len(rates), dtype=int))
        many = replace(many, columns={**many.columns, "request_rate": np.maximum(rates, 1e-6)})
        return evaluate(many, catalog, results=names)

    while high - low > 1e-8 * high:
        rates = np.linspace(low, high, 200)
        results = at(rates, "ttft", "tpot", "fits")
        kept = results.number("fits") == 1.0
        for name in ("ttft", "tpot"):
            target = plan.number(f"{name}_target")[0]
            kept &= np.isnan(target) | (results[name] <= target)
        last = int(np.flatnonzero(kept)[-1])
        low, high = rates[last], rates[min(last + 1, len(rates) - 1)]
    results = at(np.array([low]), COST, "accelerator_hour_cost")
    return float(results[COST][0]), float(results["accelerator_hour_cost"][0])


@pytest.mark.parametrize(
    "load", [load if load == "ttft" else pytest.param(load, marks=pytest.mark.slow) for load in LOADS]
)
def test_worth_under_an_open_load_is_the_difference_of_costs_at_the_largest_rates(catalog: Catalog, load: str) -> None:
    """Issue Cases 13: it was 0 for every lever, as at a stated rate a token costs the same on every machine."""
    plan = table({**OPEN, **LOADS[load]})
    levers = ["memory_bandwidth", "tpot_target"]
    levers += ["thermal_design_power", "ttft_target"] if load in ("places", "ttft") else []
    known = [one for one in usual_changes(plan, catalog) if one.name in levers]
    result = worth(plan, catalog, known)
    before, hour = _least_cost(plan, catalog)
    assert result["cost_before"] == pytest.approx(before, rel=1e-6)
    assert (result["worth"] > 0.0).sum() >= 2
    for number, one in enumerate(known):
        first = sheet_number(catalog, plan, one) if one.sheet != plan.kind else float(plan.number(one.name)[0])
        for value, name in ((STEP, "worth"), (2.0 - STEP, "worth_of_last")):
            own, there, _ = changed(plan, catalog, (), one, first, value * first)
            after, _ = _least_cost(own, there)
            dear, cheap = (before, after) if value > 1.0 else (after, before)
            unit = abs(result["value_after"][number] - result["value_before"][number])
            gain = hour * MONTH * (dear / cheap - 1.0) / unit
            assert result[name][number] == pytest.approx(gain, rel=0.01, abs=1e-6 * hour * MONTH / unit), (
                one.name,
                name,
            )


def _difference(catalog: Catalog, row: dict[str, Any], name: str, step: float) -> float:
    """Fall of the least cost per unit of an input that changes by a factor, without the search."""
    costs = [_least_cost(table({**row, name: row[name] * each}), catalog)[0] for each in (1.0, step)]
    return (costs[0] - costs[1]) / (row[name] * (step - 1.0))


@pytest.mark.parametrize("load", ["ttft", "tpot"])
def test_a_millisecond_of_a_target_has_the_price_of_finite_differences(catalog: Catalog, load: str) -> None:
    """What a looser target takes off the cost of a million tokens at the largest load that keeps it."""
    row = {**OPEN, **LOADS[load]}
    plan = table(row)
    known = [one for one in usual_changes(plan, catalog) if one.name.endswith("target")]
    result = worth(plan, catalog, known)
    prices = dict(zip([one.name for one in known], result["token_worth"].tolist(), strict=True))
    name = f"{load}_target"
    other = {"ttft": "tpot_target", "tpot": "ttft_target"}[load]
    assert prices[name] > 0.0 and prices[other] == 0.0
    per_unit = _difference(catalog, row, name.replace("_", " "), STEP)
    assert prices[name] == pytest.approx(per_unit, rel=0.01)


IDLE_ROWS: dict[str, dict[str, Any]] = {
    "rent": {}, "stated rent": {"hour price": 3.0}, "owner by prices": {"accelerator": "GB300-NVL72"},
    "owner by servers": {"accelerator": "GB300-NVL72"},
}  # fmt: skip


def _priced(catalog: Catalog, case: str, plan: Any) -> Catalog:
    """A catalog in which the accelerator of a plan is paid for as a case says; by servers four fifths are used."""
    if case != "owner by servers":
        return catalog
    return changed_catalog(catalog, plan, [(Varied("servers", "utilization", np.array([0.8]), False), 0.8)])


@pytest.mark.parametrize(("case", "used"), [(case, ("", 0.6)[number % 2]) for number, case in enumerate(IDLE_ROWS)])
def test_idle_hours_have_the_price_of_finite_differences(catalog: Catalog, case: str, used: Any) -> None:
    """Rented hours that nobody uses are paid as an owner's are."""
    row = {**OPEN, "max running batch": 16, **IDLE_ROWS[case], "utilization": used}
    plan = table(row)
    catalog = _priced(catalog, case, plan)
    (lever,) = (one for one in usual_changes(plan, catalog) if one.name == "utilization")
    result = worth(plan, catalog, [lever])
    value = float(result["value_before"][0])
    assert value == (used or (0.8 if "servers" in case else 1.0))
    stated = {**row, "utilization": value}
    step = STEP if value < 1.0 else 2.0 - STEP  # there are no more hours than all
    assert result["token_worth"][0] == pytest.approx(_difference(catalog, stated, "utilization", step), rel=0.01)
    slope = _difference(catalog, stated, "utilization", 1.0 - 1e-4)
    assert result["token_worth"][0] == pytest.approx(slope, rel=0.011)  # of 1 / u, over one per cent
    assert result["worth"][0] > 0.0


def test_a_blank_share_of_the_hours_is_all_of_a_rent_and_the_share_of_the_sheet_of_an_owner(catalog: Catalog) -> None:
    for case, other in IDLE_ROWS.items():
        row = {**OPEN, "max running batch": 16, **other}
        known, usual = _priced(catalog, case, table(row)), 0.8 if "servers" in case else 1.0
        blank, whole, half = (evaluate(table({**row, **used}), known) for used in (
            {}, {"utilization": usual}, {"utilization": usual / 2.0}))  # fmt: skip
        assert blank[COST][0] == whole[COST][0], case  # to the last bit
        free = evaluate(table({**row, "energy price": 0.0}), known)[COST][0]  # a rent includes energy
        assert half[COST][0] - whole[COST][0] == pytest.approx(free, rel=1e-9), case
        for name in ("ttft", "tpot", "energy_per_token", "tokens_per_second"):
            assert half[name][0] == whole[name][0], (case, name)


def test_worth_under_an_open_load_does_not_depend_on_the_stated_rate(catalog: Catalog) -> None:
    changes = varied("inference", "accelerators.memory bandwidth=x1.01").varied
    rows = [{**OPEN, **LOADS["places"], "request rate": rate} for rate in (0.1, 5.0, 500.0)]
    result = [worth(table(row), catalog, changes) for row in rows]
    assert result[0]["worth"][0] > 0.0
    assert all(one["worth"][0] == result[0]["worth"][0] for one in result)


def test_the_mapping_that_costs_least_at_its_largest_rate_is_chosen(catalog: Catalog) -> None:
    plan = table({**OPEN, "tensor parallel": "auto", **LOADS["tpot"]})
    result = best_plan(plan, catalog, "cost")
    costs = []
    for tensor in (1, 2, 4, 8):
        one = best_plan(table({**OPEN, "tensor parallel": tensor, **LOADS["tpot"]}), catalog, "cost")
        costs.append(one.results[COST][0] if one.found else np.inf)
    assert result.num_tried == 4 and result.results[COST][0] == pytest.approx(min(costs), rel=1e-8)
    none = best_plan(table({**OPEN, "ttft target": 0.001}), catalog, "cost")
    assert not none.found and none.words.startswith("none keeps ttft <= 0.001 ms")


def test_the_break_even_price_under_an_open_load_is_that_of_the_work_done(catalog: Catalog) -> None:
    """Issue Cases 13: B200's break-even price was the rent of the H100, whatever it serves."""
    row = {**OPEN, "ttft target": 500, "tpot target": 20}
    result = break_even(table(row), ["B200-SXM-180GB", row["accelerator"]], catalog)
    rents = [_least_cost(table({**row, **other}), catalog) for other in ({"accelerator": "B200-SXM-180GB"}, {})]
    even = rents[0][1] * rents[1][0] / rents[0][0]
    assert result["break_even_hour_cost"][0] == pytest.approx(even, rel=1e-6)
    assert result["break_even_hour_cost"][0] > 1.1 * rents[1][1]
    assert result["break_even_hour_cost"][1] == pytest.approx(result["hour_cost_against"][1], rel=1e-9)


def test_processes_share_searches_and_the_answer_is_the_same(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xlperf.explore.solve.LONG", 0.0)
    plan = table({**TRAIN, "tensor parallel": "auto", "micro batch size": "auto"})
    limits = targets("training", "step time <= 20 s")
    changes = usual_changes(plan, catalog, limits)
    one, two = (worth(plan, catalog, changes, limits, processes=processes) for processes in (1, 2))
    for name in one.columns:
        assert [repr(value) for value in one[name].tolist()] == [repr(value) for value in two[name].tolist()]
