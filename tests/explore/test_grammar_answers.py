"""The grammar of what varies, is asked and is limited where it decides: draws, inverse questions, worth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Outcome, csv_rows
from explore.test_solve import SERVE, TRAIN, plan_file, table, targets, varied

from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.explore.candidates import with_mapping
from xlperf.explore.changed_catalogs import changed_catalog, with_value
from xlperf.explore.search import search
from xlperf.explore.solve import PRECISION, break_even, solve_number, solve_plan, usual_changes, worth
from xlperf.explore.sweep import Sweep
from xlperf.explore.vary import Varied

Command = Callable[..., Outcome]
DERIVED = {**TRAIN, "accelerator": "3 nm HBM4 (derived)", "network": "NVL72-GB200"}


# --- draws


def test_draws_are_those_computed_one_by_one(catalog: Catalog) -> None:
    """Each draw as an edited sheet, without bands."""
    from xlperf.explore.uncertainty import Uncertainty
    from xlperf.explore.vary import LATIN_HYPERCUBE, Sampling, uniforms

    plan = with_mapping(table({**TRAIN, "tensor parallel": ""}))
    result = search(plan, catalog, top=12)
    uncertain = varied("training", "networks.link bandwidth=x0.1..x1", "accelerators.memory bandwidth=x0.2..x1").varied
    sampling = Sampling(20, LATIN_HYPERCUBE, 3)
    study = Uncertainty(Sweep(result.plans, catalog, {}, uncertain, sampling), "step time", banded=False)
    drawn, _ = study.draws
    shares = [uniforms(sampling, place, np.arange(20)) for place in range(2)]
    for draw in range(20):
        point = [(one, float(one.drawn(share[[draw]])[0])) for one, share in zip(uncertain, shares, strict=True)]
        edited = evaluate(result.plans, changed_catalog(catalog, result.plans, point))
        assert edited["step_time"].tolist() == drawn[:, draw].tolist()


# --- inverse questions


def test_the_largest_request_rate_is_found_between_two_ends(catalog: Catalog, tmp_path: Path, command: Command) -> None:
    plan = table({**SERVE, "tensor parallel": 8, "concurrency": "", "request rate": 1})
    bounds = targets("inference", "ttft<=800 ms")
    (rate,) = varied("inference", "request rate=0.5..20").varied
    result = solve_number(plan, catalog, rate, bounds, largest=True)
    assert 0.5 < result.value < 20.0
    for factor, reached in ((1.0, True), (1.0 + 2.0 * PRECISION, False)):
        own, _ = with_value(plan, catalog, rate, result.value * factor)
        assert bool((evaluate(own, catalog)["ttft"] <= 0.8)[0]) == reached
    row = {**SERVE, "tensor parallel": 8, "concurrency": "", "request rate": 1}
    done = command(
        "search",
        plan_file(tmp_path / "s.csv", row),
        "--vary",
        "request rate=0.5..20",
        "--largest",
        "--limit",
        "ttft<=800",
        "-o",
        "-",
    )
    assert float(csv_rows(done.out)[0]["request_rate"]) == pytest.approx(result.value)
    assert done.err.startswith(f"s: request rate {result.value:.4g} request/s is the largest with ttft <= 800 ms")


def test_counts_of_sheets_are_solved_whole_and_targets_by_themselves(catalog: Catalog) -> None:
    plan = table({**SERVE, "tensor parallel": 8})
    (layers,) = varied("inference", "models.num layers=20..200").varied
    bounds = targets("inference", "tpot<=12")
    result = solve_number(plan, catalog, layers, bounds, largest=True)
    assert result.value == round(result.value)
    for more, reached in ((0.0, True), (1.0, False)):
        known = changed_catalog(catalog, plan, [(layers, result.value + more)])
        assert bool((evaluate(plan, known)["tpot"] <= 0.012)[0]) == reached
    open_load = table({**SERVE, "tensor parallel": 8, "concurrency": "auto"})
    asked = np.array([0.008, 0.012, 0.02, 0.03])
    rate = targets("inference", "tokens per second per accelerator>=100")
    least = solve_plan(open_load, catalog, "tpot_target", asked, rate)
    alone = [
        search(
            table({**SERVE, "tensor parallel": 8, "concurrency": "auto", "tpot target": 1e3 * value}),
            catalog,
            limits=rate,
        ).found
        for value in asked.tolist()
    ]
    assert alone == sorted(alone) and least.value == asked[alone.index(True)]


def test_the_fewest_accelerators_may_decide_among_plans_of_one_value(catalog: Catalog) -> None:
    plan = with_mapping(table({**TRAIN, "tensor parallel": "", "num accelerators": "auto"}))
    values, bounds = np.array([1.0, 2.0, 4.0]), targets("training", "step time<=40")
    result = solve_plan(
        plan, catalog, "micro_batch_size", values, bounds, objective="num accelerators", most_accelerators=16
    )
    assert result.value == 1.0
    fewest = search(
        plan, catalog, "num accelerators", bounds, {"micro_batch_size": np.array([1.0])}, most_accelerators=16
    )
    assert result.best.plans["num_accelerators"][0] == fewest.plans["num_accelerators"][0]


# --- worth


def test_constants_and_targets_have_a_worth_and_blanks_are_refused(catalog: Catalog) -> None:
    plan = table({**SERVE, "tensor parallel": 8, "concurrency": "auto", "tpot target": 12})
    changes = varied("inference", "tpot target=x1.1", "calibration.gemm.launch_time=x0.99").varied
    result = worth(plan, catalog, changes)
    assert result["value_before"][0] == pytest.approx(12.0) and result["worth"][0] > 0.0
    assert result["input"].tolist()[1].startswith("gemm.launch time")
    with pytest.raises(InputError, match="power limit of the sheet inference is blank: there is no number to change"):
        worth(
            plan,
            catalog,
            varied("inference", "power limit=500").values
            and [Varied("inference", "power_limit", np.array([500.0]), False)],
        )


def test_a_derived_machine_has_a_worth_of_its_memory(catalog: Catalog) -> None:
    plan = table(DERIVED)
    names = {(one.sheet, one.name) for one in usual_changes(plan, catalog) if isinstance(one, Varied)}
    assert {("memories", "pin_rate"), ("memories", "layer_capacity"), ("devices", "die_area")} <= names
    result = worth(plan, catalog, usual_changes(plan, catalog))
    rows = dict(zip(result["input"].tolist(), result["worth_of_last"].tolist(), strict=True))
    assert rows["pin rate (Gbit/s)"] > 0.0 and rows["layer capacity (GiB)"] == 0.0


def test_an_accelerator_without_a_price_has_a_break_even_price(catalog: Catalog) -> None:
    plan = table({**TRAIN, "tensor parallel": "auto"})
    bought = set(catalog.tables["servers"].text("accelerator").tolist())
    machines = catalog.tables["accelerators"]
    other = next(
        str(name)
        for row, name in enumerate(machines["accelerator"])
        if name not in bought
        and catalog.price_rows[row] >= 0
        and not machines.text("device")[row]
        and not np.isnan(break_even(plan, [str(name)], catalog)["break_even_hour_cost"][0])
    )
    known = break_even(plan, [other], catalog)
    prices = catalog.tables["prices"]
    blank = np.where(
        np.arange(len(prices)) == catalog.price_rows[catalog.known_rows("accelerators", np.array([other]))[0]],
        np.nan,
        1.0,
    )
    columns = {name: prices[name] * blank for name in ("rental_price", "capex")}
    unpriced = catalog.with_tables([Table("prices", {**prices.columns, **columns}, prices.place)])
    result = break_even(plan, [other], unpriced)
    assert np.isnan(result["hour_cost_against"][0])
    assert result["break_even_hour_cost"][0] == pytest.approx(known["break_even_hour_cost"][0], rel=1e-9)
