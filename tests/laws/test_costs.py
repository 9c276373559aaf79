"""Laws of cost: one plan has one cost and one energy per token, whoever asks; parts add up; each pool is itself."""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report_samples
from conftest import Outcome

from xlperf.addin.functions import STAND_INS
from xlperf.addin.worker import Session
from xlperf.base.units import HOUR, YEAR, factor
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.schema import results_of, table_schema, unit_of
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.devices import device_cost_parts, evaluate_designs, evaluate_devices
from xlperf.engine.ownership import ACCELERATOR_PARTS, HOUR_PARTS, cost_bridge, evaluate_ownership
from xlperf.equations.cost.tco import Terms, mean_terms
from xlperf.explore.objectives import SHORT
from xlperf.explore.search import search
from xlperf.explore.sweep import Sweep, points, sweep
from xlperf.workbook.data_sheets import table_of
from xlperf.workbook.package import data_rows
from xlperf.workbook.report.book import report_workbook

Command = Callable[..., Outcome]
ALL_IN = {"training": "cost_per_million_tokens", "inference": "cost_per_million_output_tokens_all_in"}
PER_TOKEN = {
    kind: (ALL_IN[kind], "energy_per_token", "tokens_per_dollar", "tokens_per_second_per_megawatt",
           "accelerator_hour_cost", "carbon_per_million_tokens", *more)
    for kind, more in (("training", ("step_cost", "run_cost")),
                       ("inference", ("cost_per_million_input_tokens", "cost_per_million_output_tokens")))
}  # fmt: skip
PRICED = ("A100-SXM4-80GB", "H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB", "MI300X", "MI355X", "GH200-144GB")
OWNED = ("H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB", "MI300X")
MIXED = {"model": "Meta-Llama-3.1-70B", "accelerator": "B200-SXM-180GB", "num_accelerators": 12, "software": "vllm",
         "tensor_parallel": 4, "prompt_length": 1024, "output_length": 256, "mode": "disaggregated",
         "concurrency": 32, "prefill_accelerator": "A100-SXM4-80GB", "prefill_accelerators": 8,
         "prefill_tensor_parallel": 8}  # fmt: skip


def _training(random: np.random.Generator) -> dict[str, Any]:
    tensor, pipeline = int(random.choice([1, 2, 4, 8])), int(random.choice([1, 2, 4]))
    return {
        "model": str(random.choice(["Llama3-8B", "Meta-Llama-3.1-70B", "Mixtral-8x7B-v0.1"])),
        "accelerator": str(random.choice(PRICED)), "tensor_parallel": tensor, "pipeline_parallel": pipeline,
        "num_accelerators": tensor * pipeline * int(random.choice([1, 2, 8])), "recompute": "full",
        "training_tokens": float(random.choice([0.1, 1.0])),
    }  # fmt: skip


def _serving(random: np.random.Generator) -> dict[str, Any]:
    tensor = int(random.choice([2, 4, 8]))
    mode = str(random.choice(["static", "continuous", "disaggregated"]))
    plan = {
        "model": str(random.choice(["Llama3-8B", "Meta-Llama-3.1-70B"])), "accelerator": str(random.choice(PRICED)),
        "tensor_parallel": tensor, "software": str(random.choice(["vllm", "sglang", "tensorrt-llm"])),
        "prompt_length": int(random.choice([128, 1024, 8000])), "output_length": int(random.choice([2, 64, 1000])),
        "num_accelerators": tensor * int(random.choice([1, 2, 4])), "mode": mode,
    }  # fmt: skip
    if mode == "static":
        return {**plan, "batch_size": int(random.choice([1, 16, 64]))}
    plan["concurrency"] = int(random.choice([1, 16, 64]))
    if mode == "disaggregated":
        prefill = tensor * int(random.choice([1, 2]))
        plan |= {"num_accelerators": prefill + plan["num_accelerators"], "prefill_accelerators": prefill}
        if random.random() < 0.7:
            plan["prefill_accelerator"] = str(random.choice(PRICED))
    return plan


@cache
def catalog() -> Catalog:
    return load_catalog()


@cache
def plans(kind: str, count: int = 90) -> Table:
    random = np.random.default_rng(11)
    make = _training if kind == "training" else _serving
    rows = [{**make(random), "name": f"plan {number}"} for number in range(count)]
    return table_of(kind, rows)


@cache
def results(kind: str) -> Table:
    result = evaluate(plans(kind), catalog())
    assert np.isfinite(result[ALL_IN[kind]]).sum() > 0.7 * len(result), result["reason"].tolist()
    return result


def _price(name: str, column: str) -> float:
    """A cell of the sheet prices, the schema's default where it is blank."""
    prices = catalog().tables["prices"]
    row = [str(price).casefold() for price in prices["price"].tolist()].index(name.casefold())
    return float(prices.filled(column)[row])


def _limit(name: str) -> float:
    """Power that an accelerator itself draws at the most."""
    accelerators = catalog().tables["accelerators"]
    return float(accelerators["thermal_design_power"][accelerators["accelerator"].tolist().index(name)])


def _hour(name: str, drawn: float) -> tuple[float, float]:
    """Cost of a second and power from the grid, by hand from its own row of prices and the accelerator's power."""
    power, limit = _price(name, "server_power"), _limit(name)
    power = 1.8 * limit if np.isnan(power) else power
    assert power >= limit
    rent, capex = _price(name, "rental_price"), _price(name, "capex")
    hardware = capex / _price(name, "utilization") * (1 / _price(name, "life") + _price(name, "opex_share") / YEAR)
    grid = _price(name, "power_usage_effectiveness") * (power - limit + drawn)
    return (hardware + grid * _price(name, "energy_price") if np.isnan(rent) else rent), grid


def _pools(kind: str, row: int) -> list[tuple[str, float, float]]:
    """Accelerators of each pool of a plan, how many, and the power that one draws."""
    table, result = plans(kind), results(kind)
    name, count = str(table["accelerator"][row]), float(table["num_accelerators"][row])
    if kind == "training" or table["mode"][row] != "disaggregated":
        return [(name, count, float(result["accelerator_power"][row]))]
    prefill, other = float(table["prefill_accelerators"][row]), str(table["prefill_accelerator"][row]) or name
    powers = [float(result[f"{phase}_power"][row]) for phase in ("decode", "prefill")]
    return [(name, count - prefill, powers[0]), (other, prefill, powers[1])]


@pytest.mark.parametrize("kind", ["training", "inference"])
def test_a_token_pays_every_accelerator_at_its_own_price_and_power(kind: str) -> None:
    """Cost and energy by hand: the sum over pools of count times hour, over the tokens of an hour. Servers draw what
    they draw at full load, but for accelerators: these draw by their work, no more than their limit.
    """
    result, mixed = results(kind), 0
    for row in np.flatnonzero(np.isfinite(result[ALL_IN[kind]])).tolist():
        pools = _pools(kind, row)
        mixed += len({name for name, *_ in pools}) > 1
        cost, power = (sum(count * _hour(name, each)[place] for name, count, each in pools) for place in (0, 1))
        rate, whole = result["tokens_per_second"][row], sum(count for _, count, _ in pools)
        drawn = result["accelerator_power"][row] * whole
        assert drawn == pytest.approx(sum(count * each for _, count, each in pools), rel=1e-12), row
        assert all(0.05 < each / _limit(name) <= 1.0 for name, _, each in pools), row
        assert result[ALL_IN[kind]][row] == pytest.approx(cost / rate, rel=1e-12), row
        assert result["energy_per_token"][row] == pytest.approx(power / rate, rel=1e-12), row
        assert result["accelerator_energy_per_token"][row] == pytest.approx(drawn / rate, rel=1e-12), row
        assert result["accelerator_hour_cost"][row] * whole == pytest.approx(cost, rel=1e-12), row
    assert kind == "training" or mixed >= 8


def test_carbon_of_two_pools_is_that_of_the_energy_of_each() -> None:
    def terms(*values: float) -> Terms:
        return Terms(*(np.array([value]) for value in values))

    mean = mean_terms(terms(1.0, 2000.0, 0.4, 0.7, 0.01), terms(2.0, 500.0, 0.1, 0.9, 0.02), np.array([0.25]))
    assert mean.power[0] == pytest.approx(0.75 * 2000 + 0.25 * 500)
    assert (mean.power * mean.carbon_intensity)[0] == pytest.approx(0.75 * 2000 * 0.4 + 0.25 * 500 * 0.1)
    assert (mean.power * mean.accelerator_share)[0] == pytest.approx(0.75 * 2000 * 0.7 + 0.25 * 500 * 0.9)
    assert (mean.power * mean.energy_price)[0] == pytest.approx(0.75 * 2000 * 0.01 + 0.25 * 500 * 0.02)
    same = terms(1.7, 1594.0, 0.1, 0.8, 0.01)
    for share in (0.0, 0.3, 1.0 / 3.0, 1.0):
        assert mean_terms(same, same, np.array([share])) == same


def test_eight_a100_beside_four_b200() -> None:
    result = evaluate(table_of("inference", [MIXED]), catalog())
    rent = 8 * _price("A100-SXM4-80GB", "rental_price") + 4 * _price("B200-SXM-180GB", "rental_price")
    assert rent * HOUR == pytest.approx(24.48)
    assert result["accelerator_hour_cost"][0] * 12 == pytest.approx(rent, rel=1e-14)
    assert result["cost_basis"][0] == "rent"


@pytest.mark.parametrize("kind", ["training", "inference"])
def test_parts_of_the_cost_add_up(kind: str) -> None:
    """Input and output make the all-in cost; rates per dollar and per megawatt are its inverse and the energy's."""
    result, table = results(kind), plans(kind)
    good = np.isfinite(result[ALL_IN[kind]])
    np.testing.assert_allclose((result[ALL_IN[kind]] * result["tokens_per_dollar"])[good], 1.0, rtol=1e-12)
    per_watt = result["energy_per_token"] * result["tokens_per_second_per_megawatt"]
    np.testing.assert_allclose(per_watt[good], 1.0, rtol=1e-12)
    if kind == "inference":
        paid = result["cost_per_million_input_tokens"] * table["prompt_length"] / table["output_length"]
        paid = paid + result["cost_per_million_output_tokens"]
        np.testing.assert_allclose(paid[good], result[ALL_IN[kind]][good], rtol=1e-12)
    else:
        steps = result["step_cost"] / (result["tokens_per_second"] * result["step_time"])
        np.testing.assert_allclose(steps[good], result[ALL_IN[kind]][good], rtol=1e-12)


@pytest.mark.parametrize("kind", ["training", "inference"])
def test_one_plan_has_one_cost_in_any_company(kind: str) -> None:
    """Alone, in reverse and in the table: the same bits."""
    table, result = plans(kind), results(kind)
    back = np.arange(len(table))[::-1]
    reverse = evaluate(table.take(back), catalog())
    for name in PER_TOKEN[kind]:
        np.testing.assert_array_equal(reverse[name][back], result[name], err_msg=name)
    for row in range(0, len(table), 9):
        alone = evaluate(table.take([row]), catalog())
        for name in PER_TOKEN[kind]:
            np.testing.assert_array_equal(alone[name], result[name][[row]], err_msg=name)


def _shown(kind: str, name: str) -> np.ndarray:
    """Results as cells show them."""
    return np.asarray(results(kind)[name] / unit_of(results_of(kind).by_name[name]).factor)


@pytest.mark.parametrize("kind", ["training", "inference"])
def test_files_and_functions_show_the_cost_of_evaluate(kind: str, command: Command, tmp_path: Path) -> None:
    """Command to CSV and worksheet functions, to the last bit; the short name of either kind is the all-in cost."""
    table = plans(kind)
    columns = [column for column in table.schema.columns if column.name in table]
    header, rows = [column.name for column in columns], data_rows(table, columns)
    source = tmp_path / "plans.csv"
    with source.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    done = command("evaluate", source, "-o", "-")
    assert done.code == 0, done.err
    block = list(csv.reader(io.StringIO(done.out)))
    place = {name.split(" (")[0].replace(" ", "_"): at for at, name in enumerate(block[0])}
    session = Session()
    for name in PER_TOKEN[kind]:
        expected = _shown(kind, name)
        read = np.array([float(line[place[name]] or "nan") for line in block[1:]])
        np.testing.assert_array_equal(read, expected, err_msg=name)
        cells = session.call(f"XLPERF_{name.upper()}", [[header, *rows]])
        numbers = np.array([cell if isinstance(cell, float) else np.nan for (cell,) in cells])
        np.testing.assert_array_equal(numbers, expected, err_msg=name)
    assert STAND_INS["inference", ALL_IN["training"]] == ALL_IN["inference"]
    assert {kind: SHORT["cost"][kind] for kind in ALL_IN} == ALL_IN
    cells = session.call("XLPERF_COST_PER_MILLION_TOKENS", [[header, *rows]])
    numbers = np.array([cell if isinstance(cell, float) else np.nan for (cell,) in cells])
    np.testing.assert_array_equal(numbers, _shown(kind, ALL_IN[kind]))


def test_search_sweep_and_frontier_show_the_cost_of_evaluate() -> None:
    plan = {**MIXED, "name": "searched"}
    del plan["concurrency"]
    values = {"concurrency": np.array([4.0, 16.0, 64.0])}
    table = table_of("inference", [plan])
    result = search(table, catalog(), "cost", values=values, top=3)
    every = sweep(Sweep(table, catalog(), values))
    edge = points(table, catalog(), values)
    assert result.objective.column.name == ALL_IN["inference"]
    for taken, shown in ((result.plans, result.results), (every.plans, every.results), (edge.plans, edge.results)):
        assert len(taken) == 3
        again = evaluate(taken, catalog())
        for name in PER_TOKEN["inference"]:
            np.testing.assert_array_equal(shown[name], again[name], err_msg=name)
    costs = result.results[ALL_IN["inference"]]
    assert costs.tolist() == sorted(every.results[ALL_IN["inference"]].tolist())
    assert costs[0] < costs[-1]


def test_cheapest_by_search_counts_the_pool_that_prefills() -> None:
    """Accelerators that prefill cost money: the objective is all cost, not that of the pool that decodes."""
    plan = {**MIXED, "prefill_accelerator": "", "num_accelerators": 64, "prefill_tensor_parallel": 4}
    table = table_of("inference", [plan])
    sizes = np.arange(4.0, 64.0, 4.0)
    every = sweep(Sweep(table, catalog(), {"prefill_accelerators": sizes})).results
    result = search(table, catalog(), "cost", values={"prefill_accelerators": sizes})
    fits = every["fits"] == 1.0
    assert result.results[ALL_IN["inference"]][0] == every[ALL_IN["inference"]][fits].min()


def test_a_missing_price_is_no_number_and_says_why() -> None:
    """An accelerator without a price takes nobody else's; all that is not a cost stays."""
    rows = [
        {**MIXED, "model": "Llama3-8B", "prefill_accelerator": "H100-NVL-94GB"},
        {**MIXED, "model": "Llama3-8B", "accelerator": "H100-NVL-94GB", "prefill_accelerator": "B200-SXM-180GB"},
        {**MIXED, "model": "Llama3-8B", "accelerator": "H100-NVL-94GB", "prefill_accelerator": ""},
    ]
    table = table_of("inference", rows)
    result = evaluate(table, catalog())
    for name in (ALL_IN["inference"], "accelerator_hour_cost", "tokens_per_dollar"):
        assert np.isnan(result[name]).all(), name
    assert (result["cost_basis"] == "").all()
    words = "no cost: the sheet prices has neither a rental price nor a capex for {}accelerator H100-NVL-94GB"
    for row, pool in enumerate(("prefill ", "", "")):
        assert result["reason"][row].split("; ").count(words.format(pool)) == 1
        assert result["reason"][row].count("no cost") == 1
    assert np.isnan(result["cost_per_million_input_tokens"]).tolist() == [True, False, True]
    assert np.isnan(result["cost_per_million_output_tokens"]).tolist() == [False, True, True]
    prices = catalog().tables["prices"]
    one = table_of("prices", [{"price": "H100-NVL-94GB", "rental_price": 1.0, "year": 2025}])
    columns = {name: np.concatenate([values, one[name]]) for name, values in prices.columns.items()}
    priced = evaluate(table, catalog().with_tables([Table("prices", columns)]))
    assert np.isfinite(priced[ALL_IN["inference"]]).all()
    for name in ("ttft", "tpot", "tokens_per_second", "memory", "fits"):
        np.testing.assert_array_equal(priced[name], result[name], err_msg=name)
    owned = evaluate_ownership(table, catalog())
    assert np.isnan(owned["hour_cost"]).all()
    assert all("H100-NVL-94GB" in reason for reason in owned["reason"])
    trained = {"model": "Llama3-8B", "accelerator": "H100-NVL-94GB", "num_accelerators": 8, "tensor_parallel": 8}
    alone = evaluate(table_of("training", [trained]), catalog())
    assert np.isnan(alone["cost_per_million_tokens"][0]) and words.format("") in alone["reason"][0]


def test_the_pool_that_prefills_has_to_hold_the_model() -> None:
    small = {**MIXED, "prefill_accelerator": "L40S", "prefill_tensor_parallel": 2}
    result = evaluate(table_of("inference", [small, {**small, "prefill_tensor_parallel": 8}]), catalog())
    assert result["fits"].tolist() == [0.0, 1.0]
    assert "prefill pool: one prompt needs" in result["reason"][0]
    assert np.isfinite(result["tpot"]).all()


def test_no_two_results_of_one_name_differ() -> None:
    """Results of plans and of their owner that share a name share the number: else the name says whose it is."""
    for kind in ("training", "inference"):
        shared = {column.name for column in results_of(kind).columns}
        shared &= {column.name for column in table_schema("ownership").columns}
        assert shared == {"reason"}


def _owned_plans() -> Table:
    random, rows = np.random.default_rng(5), []
    for number in range(24):
        plan = {**_serving(random), "name": f"owned {number}", "accelerator": str(random.choice(OWNED))}
        if "prefill_accelerator" in plan:
            plan["prefill_accelerator"] = str(random.choice(OWNED))
        rows.append(plan)
    return table_of("inference", rows)


def test_an_owner_pays_each_pool_in_its_own_server() -> None:
    table = _owned_plans()
    owned, result = evaluate_ownership(table, catalog()), evaluate(table, catalog())
    good = np.isfinite(owned["hour_cost"])
    assert good.sum() > 12
    np.testing.assert_allclose(sum(owned[name] for name in HOUR_PARTS)[good], owned["hour_cost"][good], rtol=1e-12)
    known = np.isfinite(owned["hour_dies"])
    made = sum(owned[name] for name in ACCELERATOR_PARTS)
    np.testing.assert_allclose(made[known], owned["hour_accelerator"][known], rtol=1e-12)
    all_in = owned["owned_cost_per_million_output_tokens_all_in"]
    paid = owned["owned_cost_per_million_input_tokens"] * table["prompt_length"] / table["output_length"]
    np.testing.assert_allclose((paid + owned["owned_cost_per_million_output_tokens"])[good], all_in[good], rtol=1e-12)
    whole = owned["hour_cost"] * table["num_accelerators"]
    np.testing.assert_allclose((whole / result["tokens_per_second"])[good], all_in[good], rtol=1e-12)
    names = [str(name) for name in owned["server"]]
    unlike = [row for row, name in enumerate(names) if " + " in name and good[row]]
    assert unlike
    for row in unlike:
        prefill, count = table["prefill_accelerators"][row], table["num_accelerators"][row]
        halves = []
        for column, phase in (("accelerator", "decode"), ("prefill_accelerator", "prefill")):
            alone = {name: values[[row]] for name, values in table.columns.items()}
            alone["accelerator"] = table[column][[row]]
            alone["prefill_accelerator"] = np.array([""], dtype=object)
            same = Table("inference", alone)
            powers = {f"{each}_power": result[f"{phase}_power"][[row]] for each in ("decode", "prefill")}
            drawn = replace(evaluate(same, catalog()), columns={**evaluate(same, catalog()).columns, **powers})
            halves.append(evaluate_ownership(same, catalog(), results=drawn)["hour_cost"][0])
        mean = ((count - prefill) * halves[0] + prefill * halves[1]) / count
        assert owned["hour_cost"][row] == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize("kind", ["training", "inference"])
@pytest.mark.parametrize("case", ["low", "base", "high"])
def test_the_bridge_walks_from_the_sheet_prices_to_the_owner(kind: str, case: str) -> None:
    """It starts at the cost of evaluate and ends at that of the owner, to the last bit; its lines add up."""
    table = plans(kind) if kind == "training" else _owned_plans()
    result, owned = evaluate(table, catalog()), evaluate_ownership(table, catalog(), case=case)
    bridge = cost_bridge(table, catalog(), case=case)
    names = table["name"].tolist()
    seen = set()
    for name in dict.fromkeys(bridge["plan"].tolist()):
        rows, row = np.flatnonzero(bridge["plan"] == name), names.index(name)
        assert bridge["cost"][rows[0]] == result[ALL_IN[kind]][row]
        assert bridge["energy"][rows[0]] == result["energy_per_token"][row]
        assert bridge["cost"][rows[-1]] == owned[f"owned_{ALL_IN[kind]}"][row]
        assert bridge["energy"][rows[-1]] == owned["owned_energy_per_token"][row]
        for change, total in (("cost_change", "cost"), ("energy_change", "energy")):
            added = np.cumsum(bridge[change][rows[:-1]])
            np.testing.assert_allclose(added, bridge[total][rows[:-1]], rtol=1e-12)
            assert added[-1] == pytest.approx(bridge[total][rows[-1]], rel=1e-12)
        seen.update(bridge["line"][rows].tolist())
    both = np.isfinite(result[ALL_IN[kind]]) & np.isfinite(owned["hour_cost"])
    assert len(dict.fromkeys(bridge["plan"].tolist())) == both.sum() > 5
    within = "owner, sheet servers, within one server: no network"
    assert {"rented, sheet prices", within, "power of server and network"} <= seen


def test_a_report_shows_one_cost_for_a_plan() -> None:
    """The sheets of plans, the owner's cost by part and the bridge between both, to the last bit."""
    tables = [plans("training").take(range(20)), _owned_plans()]
    result = [evaluate(table, catalog()) for table in tables]
    book = report_workbook(catalog(), tables, result, date=datetime.date(2026, 11, 22))
    for table, shown in zip(tables, result, strict=True):
        kind, declared = table.kind, results_of(table.kind).by_name
        cells = report_samples.records(book[kind], kind)
        for name in PER_TOKEN[kind]:
            values = shown[name] / unit_of(declared[name]).factor
            read = [row[declared[name].header] for row in cells]
            assert [value if value is not None else None for value in read] == [
                None if np.isnan(value) else value for value in values.tolist()
            ], name
        owned = evaluate_ownership(table, catalog())
        ends: dict[str, list[float]] = {}
        for row in report_samples.records(book["cost bridge"], f"cost_bridge_{kind}"):
            ends.setdefault(row["plan"], []).append(row["cost (USD/Mtoken)"])
        total = table_schema("ownership").by_name[f"owned_{ALL_IN[kind]}"]
        parts = report_samples.records(book["token cost"], f"token_cost_{kind}")
        by_part = {row["plan"].split(" \N{MIDDLE DOT} ")[0]: row[total.header] for row in parts}
        for row, name in enumerate(table["name"].tolist()):
            paid = owned[total.name][row] / factor("USD/Mtoken")
            assert np.isnan(paid) == (name not in by_part)
            if name in ends:
                assert ends[name][0] == cells[row][declared[ALL_IN[kind]].header]
                assert ends[name][-1] == by_part[name] == paid
        assert ends


def test_servers_of_unlike_accelerators_have_unlike_prices() -> None:
    """A figure that a source prints for two accelerators together is the price of neither, with its server."""
    servers = catalog().tables["servers"]
    whole = servers["accelerator_price"] + servers["server_price"] / servers["num_accelerators"]
    prices: dict[float, set[str]] = {}
    for name, price in zip(servers["accelerator"].tolist(), whole.tolist(), strict=True):
        prices.setdefault(price, set()).add(str(name))
    assert {price: names for price, names in prices.items() if len(names) > 1} == {}


def test_a_chip_costs_the_same_wherever_it_is_asked() -> None:
    """As a design, as a device, as its parts and as the accelerator of an owned plan; so does its carbon."""
    tables = catalog().tables
    designs, devices = tables["chiplets"], tables["devices"]
    by_design, by_device = evaluate_designs(designs, catalog()), evaluate_devices(devices, catalog())
    of_device = {str(name): row for row, name in enumerate(designs.text("device").tolist()) if name}
    assert len(of_device) == len(designs)
    for row, name in enumerate(devices["device"].tolist()):
        parts = device_cost_parts(devices.take([row]), catalog())
        assert parts is not None, name
        for column in ("unit_cost", "embodied_carbon"):
            assert by_device[column][row] == parts[column][0], (name, column)
            if name in of_device:
                assert by_design[column][of_device[name]] == by_device[column][row], (name, column)
        price = by_device["capex"][row] / devices.filled("system_price_ratio")[row]
        assert price == pytest.approx(parts["sale_price"][0], rel=0.2), name  # links are beside the module


def test_a_derived_accelerator_needs_no_server_row() -> None:
    accelerators = catalog().tables["accelerators"]
    names = [str(name) for name in accelerators["accelerator"][accelerators.text("device") != ""]]
    rows = [{"model": "Llama3-8B", "accelerator": name, "num_accelerators": 8, "tensor_parallel": 8} for name in names]
    table = table_of("training", [{**row, "name": row["accelerator"]} for row in rows])
    owned, result = evaluate_ownership(table, catalog()), evaluate(table, catalog())
    assert owned["server"].tolist() == owned["design"].tolist() == [f"{name} by its device" for name in names]
    assert (owned["owned_cost_per_million_tokens"] > 0.0).all()
    np.testing.assert_allclose(owned["hour_cost"], sum(owned[name] for name in HOUR_PARTS), rtol=1e-12)
    np.testing.assert_allclose(owned["hour_accelerator"], sum(owned[name] for name in ACCELERATOR_PARTS), rtol=1e-12)
    used = 5.0 * YEAR * result["tokens_per_second"] / 8.0  # tokens of an accelerator's life by the default of servers
    carbon = owned["embodied_carbon"] / 8.0
    np.testing.assert_allclose(owned["owned_embodied_carbon_per_million_tokens"], carbon / used, rtol=1e-12)


def test_carbon_of_making_is_that_of_its_parts_and_of_the_life() -> None:
    """Dies, memory and package; an accelerator that states its own carbon has that."""
    designs = catalog().tables["chiplets"]
    made = evaluate_designs(designs, catalog())
    parts = sum(made[name] for name in ("die_carbon", "stacked_memory_carbon", "package_carbon"))
    np.testing.assert_allclose(made["embodied_carbon"], parts, rtol=1e-12)
    assert 80.0 < made["embodied_carbon"][designs["chiplet"].tolist().index("H100 SXM")] < 164.0  # of an HGX, an eighth
    owned, result = evaluate_ownership(plans("training"), catalog()), results("training")
    known = np.isfinite(owned["embodied_carbon"])
    assert known.sum() > 10
    operational = owned["owned_carbon_per_million_tokens"][known]
    assert (owned["owned_embodied_carbon_per_million_tokens"][known] < operational).all()
    accelerators = catalog().tables["accelerators"]
    stated = replace(
        accelerators, columns={**accelerators.columns, "embodied_carbon": np.full(len(accelerators), 164.0)}
    )
    more = evaluate_ownership(plans("training"), catalog().with_tables([stated]), results=result)
    count = plans("training").number("num_accelerators")
    bought = np.isfinite(more["hour_cost"])
    np.testing.assert_allclose(more["embodied_carbon"][bought], 164.0 * count[bought], rtol=1e-12)
