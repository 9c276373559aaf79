"""Money, power, carbon and API prices: one number under one name, limits of power, owners beside renters."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import Outcome, csv_rows

from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.ownership import cost_bridge, evaluate_ownership
from xlperf.explore.changed_catalogs import changed_catalog
from xlperf.explore.fleet_plans import ONE
from xlperf.explore.forms import answer_of, answers_of, answers_table, form_of, plan_of, ways_of
from xlperf.explore.money import fastest_fed
from xlperf.explore.search import search
from xlperf.explore.serve import serving_ways
from xlperf.explore.vary import read_variation

Command = Callable[..., Outcome]
MW = 1e6
SERVED = {"model": "Meta-Llama-3.1-8B", "accelerator": "H100-SXM-80GB", "users": "2000", "prompt_length": "2000",
          "output_length": "500", "speed_per_user": "30", "ttft_target": "2000", "software": "vllm",
          "mode": "continuous", "num_accelerators": "1"}  # fmt: skip
TRAINED = {"model": "Meta-Llama-3.1-8B", "accelerator": "H100-SXM-80GB", "num_accelerators": "16",
           "training_tokens": "0.1", "sequence_length": "8192", "global_batch_size": "64", "tensor_parallel": "1",
           "pipeline_parallel": "1", "zero_stage": "1"}  # fmt: skip
STATED = {"energy_price": "0.2", "power_usage_effectiveness": "1.4", "carbon_intensity": "50"}


def answered(kind: str, catalog: Catalog, words: dict[str, str], **more: str) -> dict[str, Any]:
    """An answer without its comparison to the best way, which takes longer."""
    form = form_of(kind, {**words, **more})
    result = answers_table(form, answers_of(form, catalog))
    return {name: values[0] for name, values in result.columns.items()}


@pytest.mark.parametrize("stated", [{}, STATED, {"hour_price": "5", "payment": "both"}, {"payment": "own", **STATED}])
@pytest.mark.parametrize("kind", ["serve", "train"])
def test_one_name_is_one_number(kind: str, stated: dict[str, str], catalog: Catalog) -> None:
    """The plan that an answer hands on has the costs, the energy and the carbon of the answer under the same names."""
    words = {**(SERVED if kind == "serve" else TRAINED), **stated}
    form, answer = form_of(kind, words), answered(kind, catalog, words)
    plan = ways_of(form, catalog)[0] if kind == "serve" else plan_of(form, catalog)
    assert plan is not None and len(plan) == 1
    results = evaluate(plan, catalog)
    owned = evaluate_ownership(plan, catalog, results=results)
    about = ("cost", "energy", "carbon", "owned_", "run_")
    for table, least in ((results, 4), (owned, 1)):
        shared = [name for name in table.columns if name in answer and name.startswith(about)]
        assert len(shared) >= least, shared
        for name in shared:
            if table[name].dtype != object:
                np.testing.assert_allclose(answer[name], table[name][0], rtol=1e-12, err_msg=name)
    assert answer["rented_hour_cost"] == results["accelerator_hour_cost"][0]
    assert answer["owned_hour_cost"] == owned["hour_cost"][0]
    paid = "owned_hour_cost" if stated.get("payment") == "own" else "rented_hour_cost"
    assert answer["hour_price"] == answer[paid]
    costs = ("monthly_cost", "fleet_cost_per_million_output_tokens") if kind == "serve" else ("run_cost",)
    for name in costs:
        for own in ("rented", "owned"):
            ratio = answer[f"{own}_hour_cost"] / answer["hour_price"]
            as_paid = answer[name if kind == "serve" else f"paid_{name}"]
            assert answer[f"{own}_{name}"] == pytest.approx(as_paid * ratio, rel=1e-12)


def plans_of(**more: Any) -> Table:
    row = {"model": "Meta-Llama-3.1-8B", "accelerator": "H100-SXM-80GB", "num accelerators": 8, "prompt length": 1000,
           "output length": 500, "concurrency": 64, **more}  # fmt: skip
    return table_from_rows("inference", list(row), [list(row.values())])


@pytest.mark.parametrize("accelerator", ["H100-SXM-80GB", "GB300-NVL72", "GB200-NVL72"])
def test_prices_of_a_plan_are_those_of_edited_sheets(accelerator: str, catalog: Catalog) -> None:
    """Rented, owned by the sheet prices, and by the sheet servers where that has no price."""
    known = catalog
    if accelerator == "GB200-NVL72":
        prices = catalog.tables["prices"]
        rows = [row for row, name in enumerate(prices.text("price")) if name != accelerator]
        known = catalog.with_tables([prices.take(rows)])
    sheets = [sheet for sheet in ("prices", "servers")
              if accelerator in known.tables[sheet].text("price" if sheet == "prices" else "accelerator")]  # fmt: skip
    lines = {"energy price": "0.3", "power usage effectiveness": "1.5", "carbon intensity": "0.1"}
    asked = [(f"{sheet}.{name}", [value]) for sheet in sheets for name, value in lines.items()]
    varied = read_variation("inference", asked, "vary").varied
    given = {**lines, "carbon intensity": "100"}
    stated = plans_of(accelerator=accelerator, **{name: float(value) for name, value in given.items()})
    plain = plans_of(accelerator=accelerator)
    changes = [(one, float(one.values[0])) for one in varied if one.sheet == sheets[0]]
    edited = changed_catalog(known, plain, changes)
    ours, theirs = evaluate(stated, known), evaluate(plain, edited)
    names = ("cost_per_million_output_tokens", "energy_per_token", "carbon_per_million_tokens", "grid_power")
    for name in names:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-12, err_msg=name)
    assert ours["energy_per_token"][0] > evaluate(plain, known)["energy_per_token"][0]
    bridge = cost_bridge(stated, known)
    if len(bridge):
        assert bridge["cost"][0] == pytest.approx(ours["cost_per_million_output_tokens_all_in"][0], rel=1e-12)


def test_an_hour_price_is_a_rent(catalog: Catalog) -> None:
    result = evaluate(plans_of(accelerator="GB300-NVL72", **{"hour price": 7.2}), catalog)
    assert result["accelerator_hour_cost"][0] == pytest.approx(7.2 / 3600.0) and result["cost_basis"][0] == "rent"
    with pytest.raises(InputError, match="hour price is a rent"):
        answered("train", catalog, TRAINED, payment="own", hour_price="2")


def test_who_has_no_owner_is_not_given_one(catalog: Catalog) -> None:
    result = answered("train", catalog, TRAINED, accelerator="GH200-144GB", payment="own")
    assert np.isnan(result["paid_run_cost"]) and "no row of servers has accelerator GH200-144GB" in result["answer"]
    assert " for $" not in result["answer"]


@pytest.mark.slow
def test_what_fits_in_a_power_limit_fits_and_no_more(catalog: Catalog) -> None:
    """The most users within a limit are served within it; those of one copy more are refused, with the number."""
    limit = 0.1
    most = answered("serve", catalog, {**SERVED, "users": "auto"}, facility_power_limit=str(limit))
    assert 0.5 * limit * MW < most["power"] <= limit * MW and most["users_in_power"] == most["users"]
    same = answered("serve", catalog, {**SERVED, "users": str(most["users"])}, facility_power_limit=str(limit))
    assert same["power"] <= limit * MW
    more = str(most["users"] + most["server_size"] * most["concurrency"])
    beyond = answered("serve", catalog, {**SERVED, "users": more}, facility_power_limit=str(limit))
    free = answered("serve", catalog, {**SERVED, "users": more})
    assert beyond["answer"].startswith("No answer: ") and free["power"] > limit * MW
    assert f"{free['power'] / (limit * MW):.3g} times the facility power limit of 0.1 MW" in beyond["answer"]
    assert f"{most['users']:,.0f} users in flight" in beyond["answer"] and "another accelerator" in beyond["answer"]
    assert beyond["users_in_power"] == most["users"]
    none = answered("serve", catalog, {**SERVED, "users": "auto"}, facility_power_limit="0.001")
    assert "no copy fits in it" in none["answer"]


@pytest.mark.parametrize(
    ("model", "accelerator", "speed"),
    [("DeepSeek-V3", "H200-SXM-141GB", "20"), pytest.param("DeepSeek-R1", "B200", "30", marks=pytest.mark.slow)],
)
def test_a_power_limit_feeds_as_many_users_as_any_number_of_them_that_fits(
    catalog: Catalog, model: str, accelerator: str, speed: str
) -> None:
    """Copies of a fleet beyond the limit do not hide smaller ones: 45,000 users drew 0.9 MW where 34,491 were fed, and
    28,000 users 0.96 MW where 23,532 were.
    """
    limit = "1"
    words = {**SERVED, "model": model, "accelerator": accelerator, "speed_per_user": speed}
    words |= {"software": "sglang", "mode": "auto", "num_accelerators": "auto"}
    most = answered("serve", catalog, {**words, "users": "auto"}, facility_power_limit=limit)
    assert most["power"] <= float(limit) * MW * 1.001
    more = answered("serve", catalog, {**words, "users": str(1.1 * most["users"])})
    assert more["power"] > 0.97 * float(limit) * MW


def test_a_run_within_a_power_limit(catalog: Catalog) -> None:
    free = answered("train", catalog, TRAINED, num_accelerators="64")
    limit = free["power"] / MW / 2.0
    refused = answered("train", catalog, TRAINED, num_accelerators="64", facility_power_limit=str(limit))
    fed = answered("train", catalog, TRAINED, num_accelerators="auto", facility_power_limit=str(limit))
    assert refused["answer"].startswith("No answer: 64 H100 draw") and "2 times the facility" in refused["answer"]
    assert fed["power"] <= limit * MW and refused["accelerators_in_power"] == fed["accelerators"]
    assert refused["run_time_in_power"] == fed["run_time"] > free["run_time"]
    with pytest.raises(InputError, match="num accelerators, a deadline or a facility power limit"):
        answered("train", catalog, {**TRAINED, "num_accelerators": "auto"})


def test_the_most_that_a_limit_feeds_is_the_largest_number_that_keeps_it(catalog: Catalog) -> None:
    class Found:
        kind = 0

        def __init__(self, count: float) -> None:
            self.count, self.results = count, self

        def number(self, name: str) -> np.ndarray:
            return np.array([1.0 / self.count if name == "run_time" else self.count * (1000.0 + 200.0 / self.count)])

    every = np.arange(8.0, 2048.0, 8.0)
    for limit, counts in itertools.product((9e3, 1e5, 1e6, 1e7), (every, every[::5])):
        best = fastest_fed(limit, every, counts, Found)  # type: ignore[arg-type]
        assert best.count == every[every * 1000.0 + 200.0 <= limit].max()  # type: ignore[attr-defined]


def test_from_the_break_even_load_on_own_accelerators_cost_no_more(catalog: Catalog) -> None:
    result = answered("serve", catalog, SERVED, payment="own")
    users = result["break_even_users"]
    assert result["api_provider"] == "Groq" and result["api_price"] == "Meta-Llama-3.1-8B, Groq"
    assert "cheaper than Groq's API" in result["api_answer"]
    price = 0.08 + 0.05 * 4.0  # four prompt tokens for one that is generated
    assert result["api_cost_per_million_output_tokens_all_in"] * MW == pytest.approx(price)
    for share, cheaper in ((1.001, True), (0.999, False)):
        copies = np.ceil(share * users / result["concurrency"])
        size = result["server_size"] * np.ceil(copies * result["copy_size"] / result["server_size"])
        tokens = share * users * result["curve_throughput_6"] * result["copy_size"] / result["concurrency"]  # if full
        assert (size * result["hour_price"] <= tokens * price / MW) == cheaper
    assert "cheaper" in answered("serve", catalog, SERVED, hour_price="0.1")["api_answer"]
    assert "At no load" in answered("serve", catalog, SERVED, hour_price="50")["api_answer"]
    assert answered("serve", catalog, SERVED, model="Llama3-8B")["api_provider"] == "Groq"  # by an alias


def test_nothing_is_said_of_a_model_that_no_api_sells(catalog: Catalog) -> None:
    none = answered("serve", catalog, {**SERVED, "model": "Qwen3-8B"})
    assert none["api_answer"] == "" and np.isnan(none["break_even_users"])


def test_every_offer_says_where_and_when_it_was_read(catalog: Catalog) -> None:
    table = catalog.tables["api_prices"]
    assert len(table) >= 15 and len(set(table.text("api_price"))) == len(table)
    assert all(source.startswith("https://") for source in table.text("source"))
    assert [date[:4] for date in table["date"]] == [f"{year:.0f}" for year in table["year"]]
    catalog.rows("models", table.text("model"), table, "model")


def test_the_least_owned_cost_is_the_least_of_what_ownership_says(catalog: Catalog) -> None:
    plan = plans_of()
    loads = np.array([8.0, 32.0, 128.0, 256.0])
    result = search(plan, catalog, "owned cost", values={"concurrency": loads}, top=None)
    each = [evaluate_ownership(plans_of(concurrency=load), catalog) for load in loads.tolist()]
    owned = [one["owned_cost_per_million_output_tokens_all_in"][0] for one in each]
    assert result.plans["concurrency"].tolist() == loads[np.argsort(owned)].tolist()
    shown = result.results["owned_cost_per_million_output_tokens_all_in"]
    np.testing.assert_allclose(shown, np.sort(owned), rtol=1e-12)


def test_owners_are_swept_and_limited_and_what_cannot_move_is_said(command: Command, tmp_path: Any) -> None:
    plans = tmp_path / "plans.csv"
    plans.write_text("name,model,accelerator,num accelerators,prompt length,output length,concurrency\n"
                     "a,Meta-Llama-3.1-8B,H100-SXM-80GB,1,1000,500,16\n", encoding="utf-8")  # fmt: skip
    swept = ("evaluate", plans, "--vary", "energy price=0.05,0.5", "-o", "-", "--result")
    rent = command(*swept, "cost")
    rows = csv_rows(rent.out)
    assert len({row["cost_per_million_output_tokens_all_in"] for row in rows}) == 1
    assert "energy price cannot move cost per million output tokens all in" in rent.err
    assert "cost basis: rent" in rent.err and "owned cost per million output tokens all in moves with it" in rent.err
    owned = command(*swept, "owned cost")
    costs = [float(row["owned_cost_per_million_output_tokens_all_in"]) for row in csv_rows(owned.out)]
    assert costs[1] > costs[0] and "cannot move" not in owned.err
    bandwidth = (
        "evaluate",
        plans,
        "--vary",
        "accelerators.memory bandwidth=x1,x4",
        "--result",
        "owned cost",
        "-o",
        "-",
    )
    faster = csv_rows(command(*bandwidth).out)
    assert float(faster[1]["owned_cost_per_million_output_tokens_all_in"]) < costs[0]
    bound = 0.5 * (costs[0] + costs[1])
    kept = command("evaluate", plans, "--vary", "energy price=0.05,0.5", "--limit", f"owned cost<={bound}", "-o", "-")
    assert [row["energy_price"] for row in csv_rows(kept.out)] == ["0.05"]
    unread = command("evaluate", plans, "--vary", "accelerators.host bandwidth=x1,x2", "--result", "tpot", "-o", "-")
    assert "accelerators.host bandwidth cannot move tpot" in unread.err
    read = command("evaluate", plans, "--vary", "accelerators.memory bandwidth=x1,x2", "--result", "tpot", "-o", "-")
    assert "cannot move" not in read.err


@pytest.mark.parametrize(
    ("model", "accelerator", "users", "speed", "most", "most_in_one"),
    [
        ("DeepSeek-V3", "H200-SXM-141GB", 10_000, 20, 216.0, 312.0),
        ("Qwen3-235B-A22B", "H100-SXM-80GB", 10_000, 30, 480.0, 480.0),
        ("Meta-Llama-3.1-70B", "A100-SXM4-80GB", 3_000, 10, 120.0, 136.0),  # stages: weights in fewer copies
    ],
)
def test_users_need_no_more_than_the_best_known_way(
    catalog: Catalog, model: str, accelerator: str, users: int, speed: int, most: float, most_in_one: float
) -> None:
    """Fleets that a brute force over the engine found once, as bars for the headline and for one pool."""
    asked = {"model": model, "accelerator": accelerator, "users": f"{users}", "prompt_length": "2000",
             "output_length": "500", "speed_per_user": f"{speed}", "ttft_target": "2000"}  # fmt: skip
    ways = serving_ways(form_of("serve", asked), catalog)
    assert ways[0].accelerators <= most
    assert min(way.accelerators for way in ways if way.way[1] == ONE) <= most_in_one


@pytest.mark.parametrize("demand", [{"users": "10"}, {"users": "700"}, {"users": "", "request_rate": "3"}])
def test_an_answer_is_of_the_load_of_the_question(catalog: Catalog, demand: dict[str, str]) -> None:
    """Copies share the requests in flight: their plans have as many, and the answer what they take then."""
    form = form_of("serve", {**SERVED, "software": "", "mode": "", "num_accelerators": "", **demand})
    plans, answers = ways_of(form, catalog)
    results, copies = evaluate(plans, catalog), answers.number("copies")
    shares, served = plans.number("concurrency"), answers.number("tokens_per_second")
    assert (shares >= answers.number("users") / copies * (1.0 - 1e-9)).all()
    assert (shares <= np.ceil(serving_users(form, catalog) / copies)).all()
    np.testing.assert_allclose(served, answers.number("users") / shares * results.number("tokens_per_second"))
    if not demand["users"]:
        np.testing.assert_allclose(served, 3.0 * float(plans.number("output_length")[0]))
    assert (results.number("ttft") <= 2.0 * (1.0 + 1e-9)).all()
    # At one bill the first way says why another makes more tokens.
    first = answers.number("accelerators") == answers.number("accelerators")[0]
    cheaper = served[first].max() * 0.95 >= served[0]
    assert ("At the same bill" in answer_of(form, catalog)["answer"]) == cheaper


def serving_users(form: Table, catalog: Catalog) -> np.ndarray:
    """Requests in flight of each way with copies that are full."""
    return np.array([way.users for way in serving_ways(form, catalog)])


def test_a_demand_beyond_the_power_names_the_most_users_that_it_feeds(catalog: Catalog) -> None:
    """The copy that draws least at 10,000 users fed 4,518 users; a copy chosen for the limit feeds 6,823."""
    asked = {"model": "DeepSeek-V3", "accelerator": "H200-SXM-141GB", "speed_per_user": "20", "prompt_length": "2000",
             "output_length": "500", "facility_power_limit": "0.15"}  # fmt: skip
    refused, filled = (answer_of(form_of("serve", asked | more), catalog) for more in ({"users": "10000"}, {}))
    assert refused["users_in_power"] == filled["users"]
    assert (
        f"{filled['users']:,.0f} users in flight on {filled['accelerators']:,.0f} H200 fit in it" in refused["reason"]
    )
