"""Plans that are owned: the network of the plan's own topology, the hour by part, energy, carbon, rates per dollar."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Outcome, csv_rows
from cost_samples import DESIGN, NODE, PACKAGE, SERVER
from shipped import few_rows, plain_workbook

from xlperf.base.units import YEAR, factor
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_columns
from xlperf.catalog.schema import grouped, table_schema
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.devices import evaluate_designs
from xlperf.engine.ownership import ACCELERATOR_PARTS, HOUR_PARTS, cost_bridge, evaluate_ownership, evaluate_servers
from xlperf.equations.cost.servers import network_parts
from xlperf.workbook.data_sheets import table_of

Command = Callable[..., Outcome]
H100 = "H100-SXM-80GB"
OWNED = {**SERVER, "accelerator": H100, "switch_ports": 64}
MADE = {**DESIGN, "accelerator": H100, "memory_stacks": 5, "stack_capacity": 16, "memory_price": 15, "board_cost": 400}
PLANS = {"model": ["Meta-Llama-3.1-70B"] * 3, "accelerator": [H100] * 3, "num accelerators": [8.0, 64.0, 1024.0],
         "tensor parallel": [8.0] * 3, "training tokens": [1.0] * 3}  # fmt: skip
SERVED = {"model": ["Meta-Llama-3.1-70B"], "accelerator": [H100], "num accelerators": [8.0], "tensor parallel": [8.0],
          "prompt length": [1000.0], "output length": [500.0], "batch size": [16.0]}  # fmt: skip


def _plans(kind: str, columns: dict[str, list[object]]) -> Table:
    return table_from_columns(kind, {name: np.array(values) for name, values in columns.items()})


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    rows = {"process_nodes": [NODE], "packages": [PACKAGE], "chiplets": [MADE],
            "servers": [OWNED, {**OWNED, "server": "dear", "discount_rate": 0.2}]}  # fmt: skip
    return load_catalog().with_tables([table_of(kind, own) for kind, own in rows.items()])


def test_the_network_is_that_of_the_plan(catalog: Catalog) -> None:
    """None within a server; one switch for 64; two levels for 1,024; rings and tapers as the sheet networks has."""
    owned = evaluate_ownership(_plans("training", PLANS), catalog)
    assert owned["network_switches"].tolist() == [0.0, 1.0, 48.0]
    assert owned["network_cables"].tolist() == [0.0, 64.0, 2048.0]
    assert owned["network_cost"][0] == 0.0
    assert owned["network_cost"][1] == pytest.approx((25_000 + 64 * 100 + 128 * 700) / 64)
    tiers = [
        {"network": "own", "tier": 1, "size": 8, "topology": "switch", "link_bandwidth": 450, "latency": 1},
        {"network": "own", "tier": 2, "size": 4096, "topology": "fat-tree", "link_bandwidth": 50, "latency": 5,
         "oversubscription": 3, "accelerators_per_adapter": 2},
        {"network": "round", "tier": 1, "size": 8, "topology": "switch", "link_bandwidth": 450, "latency": 1},
        {"network": "round", "tier": 2, "size": 1024, "topology": "ring", "link_bandwidth": 50, "latency": 5},
    ]  # fmt: skip
    with_networks = catalog.with_tables([table_of("networks", tiers)])
    plans = _plans("training", {**PLANS, "network": ["own", "round", "own"]})
    result = evaluate_ownership(plans, with_networks)
    assert result["network_cables"].tolist() == [0.0, 64.0, 512.0 * 4.0 / 3.0]
    thin = network_parts("fat-tree", 512.0, 64.0, 3.0)
    assert result["network_switches"].tolist() == [0.0, 0.0, float(thin.switches)]


@pytest.mark.parametrize(("dimensions", "axes"), [("32x32", 2.0), ("3D of 4", 3.0), ("4x16x16", 3.0), ("", 2.0)])
def test_a_torus_has_a_link_per_axis(catalog: Catalog, dimensions: str, axes: float) -> None:
    tier = {"network": "grid", "tier": 1, "size": 1024, "topology": "torus", "dimensions": dimensions,
            "link_bandwidth": 50, "latency": 1}  # fmt: skip
    plans = _plans("training", {**PLANS, "network": ["grid"] * 3})
    result = evaluate_ownership(plans, catalog.with_tables([table_of("networks", [tier])]))
    assert result["network_cables"].tolist() == [0.0, 64.0 * axes, 1024.0 * axes]


def test_parts_of_an_owned_hour_add_up(catalog: Catalog) -> None:
    for kind, columns in (("training", PLANS), ("inference", SERVED)):
        owned = evaluate_ownership(_plans(kind, columns), catalog)
        np.testing.assert_allclose(sum(owned[name] for name in HOUR_PARTS), owned["hour_cost"], rtol=1e-12)
        made = sum(owned[name] for name in ACCELERATOR_PARTS)
        np.testing.assert_allclose(made, owned["hour_accelerator"], rtol=1e-12)
        assert (owned["hour_margin"] > 0.0).all()
        assert owned["design"].tolist() == ["one"] * len(owned)
    made = evaluate_designs(catalog.tables["chiplets"], catalog)
    memory = float(made["memory"][0] + made["wasted_memory"][0])
    assert owned["hour_memory"][0] / owned["hour_accelerator"][0] == pytest.approx(memory / SERVER["accelerator_price"])


QUOTE = {
    "support_share": 0.04,
    "rented_storage": 2,
    "storage_price": 0.023,
    "setup_price": 1500,
    "downtime_share": 0.05,
}
QUOTE_LINES = {"support": "support_share", "rented_storage": "storage_price", "setup": "setup_price",
               "downtime": "downtime_share"}  # fmt: skip


def _quoted(catalog: Catalog, **columns: object) -> Catalog:
    return catalog.with_tables([table_of("servers", [{**OWNED, "utilization": 0.8, "residual_share": 0.2, **columns}])])


@pytest.mark.parametrize("part", QUOTE_LINES)
def test_a_line_of_a_quote_is_a_part_of_its_own(catalog: Catalog, part: str) -> None:
    """Nothing by default, to the last bit; alone it moves its own part and the total, in hours of servers and plans."""
    column = QUOTE_LINES[part]
    own = {column: QUOTE[column], **({"rented_storage": QUOTE["rented_storage"]} if part == "rented_storage" else {})}
    zero = dict.fromkeys(QUOTE, 0)
    for kind, name, evaluated in (
        ("servers_results", "cost_rate", lambda known: evaluate_servers(known.tables["servers"])),
        ("ownership", "hour_cost", lambda known: evaluate_ownership(_plans("training", PLANS), known)),
    ):
        before, blank, after = (evaluated(_quoted(catalog, **given)) for given in ({}, zero, own))
        of_part = f"{part}_cost" if kind == "servers_results" else f"hour_{part}"
        parts = grouped(kind, "hour")
        assert of_part in parts and (before[of_part] == 0.0).all() and (after[of_part] > 0.0).all()
        for other in before.columns:
            np.testing.assert_array_equal(blank[other], before[other], err_msg=other)
            if other in parts and other != of_part:
                np.testing.assert_allclose(after[other], before[other], rtol=1e-12, err_msg=other)
        np.testing.assert_allclose(after[name] - before[name], after[of_part], rtol=1e-9)


def test_lines_of_a_quote_cost_what_they_say(catalog: Catalog) -> None:
    """By hand: two TB at 0.023 USD per GB and month, 4 % a year, set-up over five years, one hour of twenty lost."""
    hour = evaluate_servers(_quoted(catalog, **QUOTE).tables["servers"])
    whole = sum(hour[name] for name in grouped("servers_results", "hour"))
    np.testing.assert_allclose(whole, hour["cost_rate"], rtol=1e-12)
    paid = 0.8 * YEAR
    assert hour["rented_storage_cost"][0] == pytest.approx(2000 * 0.023 * 12 / paid, rel=1e-12)
    assert hour["support_cost"][0] == pytest.approx(0.04 * hour["capex"][0] / paid, rel=1e-12)
    rate, life = 0.08, 5.0  # of the defaults of the sheet
    yearly = 1500 * rate / (1.0 - (1.0 + rate) ** -life)
    assert hour["setup_cost"][0] == pytest.approx(yearly / paid, rel=1e-12)
    up = hour["cost_rate"] - hour["energy_cost"] - hour["downtime_cost"]
    assert hour["downtime_cost"][0] == pytest.approx(float(up[0]) / 19.0, rel=1e-12)
    upkeep = (0.03 * hour["capex"] + OWNED.get("staff_cost", 0.0)) / paid
    assert hour["running_cost"][0] == pytest.approx(float(upkeep[0]), rel=1e-9)
    planned = {"fixed_accelerators": 64, **QUOTE}
    result = evaluate_servers(_quoted(catalog, **planned).tables["servers"])
    spent = 64 * (result["capex"] + result["facility"] + 1500)
    assert result["capex_planned"][0] == pytest.approx(float(spent[0]), rel=1e-12)


def test_the_bridge_ends_at_the_hour_with_the_lines_of_a_quote(catalog: Catalog) -> None:
    known, plans = _quoted(catalog, **QUOTE), _plans("training", PLANS)
    bridge, owned = cost_bridge(plans, known), evaluate_ownership(plans, known)
    assert "support, rented storage, set-up" in bridge["line"].tolist()
    last = [row for row, line in enumerate(bridge["line"].tolist()) if line.startswith("owner, sheet servers")]
    np.testing.assert_array_equal(bridge["cost"][last], owned["owned_cost_per_million_tokens"])


def test_a_plan_states_the_share_of_the_hours_in_use(catalog: Catalog) -> None:
    """Of the owner's server and of the rent alike: half the hours cost twice as much, energy apart."""
    by_plan = evaluate_ownership(_plans("training", {**PLANS, "utilization": [0.5] * 3}), catalog)
    servers = catalog.tables["servers"]
    half = servers.with_columns({"utilization": np.full(len(servers), 0.5)})
    by_sheet = evaluate_ownership(_plans("training", PLANS), catalog.with_tables([half]))
    for name in (*HOUR_PARTS, "hour_cost", "yearly_cost", "owned_embodied_carbon_per_million_tokens"):
        np.testing.assert_array_equal(by_plan[name], by_sheet[name], err_msg=name)


def test_an_owned_hour_is_that_of_the_server(catalog: Catalog) -> None:
    """With as many accelerators as the server's row joins, both count the same network; energy is that of the work."""
    servers = evaluate_servers(catalog.tables["servers"])
    housed = servers["cost_rate"] - servers["energy_cost"]
    owned = evaluate_ownership(_plans("training", PLANS), catalog)
    assert owned["hour_cost"][2] - owned["hour_energy"][2] == pytest.approx(float(housed[0]), rel=1e-12)
    dear = evaluate_ownership(_plans("training", PLANS), catalog, owner="DEAR")
    assert dear["server"].tolist() == ["dear"] * 3
    assert dear["hour_cost"][2] - dear["hour_energy"][2] == pytest.approx(float(housed[1]), rel=1e-12)


def test_the_energy_bill_is_that_of_the_work(catalog: Catalog) -> None:
    """Accelerators at the power that they draw, the rest of the server at its load share; a power limit is provided."""
    plans = _plans("training", {**PLANS, "power limit": [700.0, 500.0, 700.0]})
    owned, result = evaluate_ownership(plans, catalog), evaluate(plans, catalog)
    limit = np.array([700.0, 500.0, 700.0])
    server = 10_200.0 / 8.0 - 700.0
    each = (result["accelerator_power"] + 0.8 * server) * 1.25
    hour = each * 0.0826 * factor("USD/kWh")
    np.testing.assert_allclose(owned["hour_energy"], hour, rtol=1e-12)
    provided = (limit + server) * 1.25 * plans["num_accelerators"]
    np.testing.assert_allclose(owned["power"], provided, rtol=1e-12)
    assert (owned["owned_energy_per_token"] * result["tokens_per_second"] < owned["power"]).all()


def test_tokens_of_an_owner(catalog: Catalog) -> None:
    """As the plan's own results at the owner's hour: per token, per run, per dollar, per joule."""
    plans, served = _plans("training", PLANS), _plans("inference", SERVED)
    owned, results = evaluate_ownership(plans, catalog), evaluate(plans, catalog)
    hour = owned["hour_cost"]
    count = plans["num_accelerators"]
    expected = hour * count / results["tokens_per_second"]
    np.testing.assert_allclose(owned["owned_cost_per_million_tokens"], expected, rtol=1e-14)
    np.testing.assert_allclose(owned["owned_tokens_per_dollar"] * expected, 1.0, rtol=1e-12)
    np.testing.assert_allclose(owned["owned_run_cost"], hour * count * results["run_time"], rtol=1e-14)
    np.testing.assert_allclose(owned["yearly_cost"], hour * count * YEAR, rtol=1e-14)
    grid = owned["power"] / owned["tokens_per_second_per_provisioned_megawatt"]
    np.testing.assert_allclose(owned["power"] / grid, results["tokens_per_second"] / owned["power"], rtol=1e-12)
    drawn = (results["accelerator_power"] - 0.8 * 700.0) * 1.25 * count
    energy = (0.8 * owned["power"] + drawn) / results["tokens_per_second"]
    np.testing.assert_allclose(owned["owned_energy_per_token"], energy, rtol=1e-12)
    np.testing.assert_allclose(owned["owned_carbon_per_million_tokens"], energy * 0.4 * factor("kg/kWh"), rtol=1e-12)
    inference, costs = evaluate(served, catalog), evaluate_ownership(served, catalog)
    paid = costs["owned_cost_per_million_input_tokens"] * 2.0 + costs["owned_cost_per_million_output_tokens"]
    np.testing.assert_allclose(costs["owned_cost_per_million_output_tokens_all_in"], paid, rtol=1e-12)
    share = inference["prefill_share"]
    prompts = inference["tokens_per_second"] * 2.0 * costs["owned_cost_per_million_input_tokens"] / (8.0 * share)
    tokens = inference["tokens_per_second"] * costs["owned_cost_per_million_output_tokens"] / (8.0 * (1.0 - share))
    more = (inference["prefill_power"] - inference["decode_power"]) * 1.25 * 0.0826 * factor("USD/kWh")
    assert more[0] > 0.0
    np.testing.assert_allclose(prompts - tokens, more, rtol=1e-6)


def test_results_per_dollar_and_carbon_of_plans() -> None:
    """Columns of the plan sheets: what a dollar, a megawatt and a kilogram are worth."""
    catalog = load_catalog()
    plans, served = _plans("training", PLANS), _plans("inference", SERVED)
    for table, cost in ((plans, "cost_per_million_tokens"), (served, "")):
        results = evaluate(table, catalog)
        hour = results["accelerator_hour_cost"]
        count = table["num_accelerators"]
        per_dollar = results["tokens_per_second"] / (count * hour)
        np.testing.assert_allclose(results["tokens_per_dollar"], per_dollar, rtol=1e-12)
        if cost:
            np.testing.assert_allclose(results[cost] * results["tokens_per_dollar"], 1.0, rtol=1e-12)
            np.testing.assert_allclose(results["step_cost"], hour * count * results["step_time"], rtol=1e-12)
            np.testing.assert_allclose(
                results["run_carbon"], results["run_energy"] * 0.4 * factor("kg/kWh"), rtol=1e-12
            )
        carbon = results["energy_per_token"] * 0.4 * factor("kg/kWh")
        np.testing.assert_allclose(results["carbon_per_million_tokens"], carbon, rtol=1e-12)
        per_watt = results["tokens_per_second_per_megawatt"]
        np.testing.assert_allclose(per_watt * results["energy_per_token"], 1.0, rtol=1e-12)


def test_plans_without_a_server_or_a_result_say_so(catalog: Catalog) -> None:
    plans = _plans("training", {**PLANS, "accelerator": [H100, "MI300X", H100], "tensor parallel": [8.0, 8.0, 3.0]})
    owned = evaluate_ownership(plans, catalog)
    assert np.isnan(owned["hour_cost"]).tolist() == [False, True, True]
    assert owned["reason"][1] == "no row of servers has accelerator MI300X"
    assert owned["reason"][2] == evaluate(plans, catalog)["reason"][2] != ""
    none = evaluate_ownership(_plans("training", PLANS), load_catalog().with_tables([table_of("servers", [])]))
    assert np.isnan(none["hour_cost"]).all()


def test_cost_command_takes_plans(command: Command, tmp_path: Path) -> None:
    study = tmp_path / "study.xlsx"
    rows = {"process_nodes": [NODE], "packages": [PACKAGE], "chiplets": [MADE], "servers": [OWNED]}
    plain_workbook(study, {"training": few_rows()["training"], **rows})
    plans = tmp_path / "plans.csv"
    plans.write_text(f"model,accelerator,num accelerators,tensor parallel\nMeta-Llama-3.1-70B,{H100},64,8\n", "utf-8")
    done = command("cost", plans, "--catalog", study)
    assert done.code == 0, done.err
    (row,) = csv_rows(done.out)
    given = ["model", "accelerator", "num_accelerators", "tensor_parallel"]
    assert list(row) == [*given, *(column.name for column in table_schema("ownership").columns)]
    assert float(row["hour_cost"]) > 0.0
    assert row["network_switches"] == "1"
    done = command("cost", study, "--sheet", "training", "-o", tmp_path / "owned.xlsx")
    assert done.code == 0, done.err
    done = command("cost", plans, "--catalog", study, "--tornado", "")
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    done = command("cost", plans, "--catalog", study, "--bridge")
    assert done.code == 0, done.err
    lines = csv_rows(done.out)
    assert list(lines[0]) == [column.name for column in table_schema("cost_bridge").columns]
    assert [lines[0]["line"], lines[-1]["line"]] == ["rented, sheet prices", "owner, sheet servers"]
    done = command("cost", study, "--bridge")
    assert (done.code, done.err.strip()) == (2, "--bridge: is for plans, these are designs")
    done = command("cost", study, "--owner", "neocloud")
    assert (done.code, done.err.strip()) == (2, "--owner: is for plans, these are designs")
