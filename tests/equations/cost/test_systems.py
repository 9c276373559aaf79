"""From the module to the accelerator-hour: networks, finance, published prices and training costs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cost_samples import SERVER, figures, numbers
from places import DATA

from xlperf.base.units import HOUR, YEAR, factor
from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.table import Table
from xlperf.engine.devices import evaluate_designs
from xlperf.engine.ownership import evaluate_servers
from xlperf.equations.cost.servers import accelerators_for_power, network_parts
from xlperf.equations.cost.tco import (
    accelerator_cost_rate,
    capital_recovery_rate,
    cost_per_token,
    owned_cost_rate,
    run_cost,
    sale_price,
)
from xlperf.workbook.data_sheets import table_of

HOURLY = factor("USD/h")


def test_fat_trees_are_counted() -> None:
    """One switch for 64, 3 x 32 switches of 64 ports for 2,048, five eighths of a port count cubed for three levels."""
    points = np.array([1.0, 64.0, 65.0, 2048.0, 65536.0])
    parts = network_parts("fat-tree", points, 64.0, 1.0)
    assert parts.switches.tolist() == [1.0, 1.0, 3.0 + 2.0, 64.0 + 32.0, 5.0 * 64.0**2 / 4.0]
    assert parts.cables.tolist() == [1.0, 64.0, 130.0, 4096.0, 3.0 * 65536.0]
    assert (parts.transceivers == 2.0 * parts.cables).all()
    thin = network_parts("fat-tree", 2048.0, 64.0, 3.0)
    assert thin.switches < 96.0
    assert thin.cables == pytest.approx(2048.0 * 4.0 / 3.0)


def test_networks_without_switches() -> None:
    assert [float(part) for part in network_parts("ring", 8.0, math.nan, math.nan)] == [0.0, 8.0, 16.0]
    assert float(network_parts("fully-connected", 8.0, math.nan, math.nan).cables) == 28.0
    assert float(network_parts("torus", 64.0, math.nan, math.nan).cables) == 192.0
    assert float(network_parts("torus", 256.0, math.nan, math.nan, 2.0).cables) == 512.0


def test_capital_recovery() -> None:
    """8 percent over 5 years are 0.2505 a year; without interest it is a straight line; what is left is not paid."""
    assert capital_recovery_rate(0.08, 5 * YEAR) * YEAR == pytest.approx(0.250456, abs=1e-6)
    assert capital_recovery_rate(0.0, 4 * YEAR) == pytest.approx(1.0 / (4 * YEAR), rel=1e-15)
    assert capital_recovery_rate(1e-9, 4 * YEAR) == pytest.approx(1.0 / (4 * YEAR), rel=1e-6)
    assert capital_recovery_rate(0.1, 4 * YEAR, 1.0) * YEAR == pytest.approx(0.1, rel=1e-12)


def test_an_owned_hour_without_interest_is_the_older_equation() -> None:
    older = accelerator_cost_rate(math.nan, 40_000, 4 * YEAR, 0.8, 1275, 1.25, 0.08 * factor("USD/kWh"), 0.05)
    newer = owned_cost_rate(
        40_000, capital_recovery_rate(0.0, 4 * YEAR), 0.0, 0.0, 0.05, 0.0, 1275, 1.25, 0.08 * factor("USD/kWh"), 0.8
    )
    assert newer == pytest.approx(float(older), rel=1e-14)


def test_published_example_of_an_owned_hour() -> None:
    """HGX H100 with 19 percent for the network, 4 years, 80 percent used, WACC 10 percent: 1.86 USD per hour."""
    rate = owned_cost_rate(31_119.5 / 0.81, capital_recovery_rate(0.1, 4 * YEAR), 0.0, 0.0, 0.0, 0.0, 1275, 1.25,
                           0.08 * factor("USD/kWh"), 0.8)  # fmt: skip
    assert rate / HOURLY == pytest.approx(1.86, abs=0.005)


def test_price_leaves_the_margin() -> None:
    assert 1.0 - 3_320.0 / sale_price(3_320.0, 0.8814) == pytest.approx(0.8814)


def test_training_costs_of_epoch() -> None:
    """Nine training runs: loss of value, server, interconnect and energy, to 1e-6."""
    rows = {name: numbers(texts) for name, texts in figures(DATA / "epoch_training_costs.csv").items() if name not in
            ("model", "hardware")}  # fmt: skip
    assert len(rows["chip_hours"]) == 9
    fall = 0.14 / YEAR
    hardware = run_cost(rows["value_at_start"] * fall * np.log(10.0), rows["chip_hours"], HOUR)
    np.testing.assert_allclose(hardware, rows["chip_cost"] + rows["server_extra"], rtol=1e-6)
    network = hardware * 0.19 / 0.81
    np.testing.assert_allclose(network, rows["interconnect"], rtol=1e-6)
    power = rows["tdp_w"] * rows["chip_to_server_power"] * rows["duty"]
    rate = power * rows["pue"] * rows["usd_per_kwh"] * factor("USD/kWh")
    energy = run_cost(rate, rows["chip_hours"], HOUR)
    np.testing.assert_allclose(energy, rows["energy"], rtol=1e-6)
    np.testing.assert_allclose(hardware + network + energy, rows["total_nominal"], rtol=1e-6)


def test_deepseek_from_stated_rates() -> None:
    """226.75 nodes of 8 at 2 USD: 87,072 USD a day; 545 percent over 562,027; 2.788 M hours: 5.576 MUSD, table 1."""
    day = 24.0 * HOUR
    rate = 2.0 * HOURLY
    daily = float(run_cost(rate, 226.75 * 8.0, day))
    assert daily == pytest.approx(87_072.0, rel=1e-9)
    income = (342e9 * 0.14 + (608e9 - 342e9) * 0.55 + 168e9 * 2.19) / 1e6
    assert income == pytest.approx(562_027.0, rel=0.01)
    assert income / daily - 1.0 == pytest.approx(5.45, rel=0.01)
    per_token = cost_per_token(rate, 226.75 * 8.0, 168e9 / day) / factor("USD/Mtoken")
    assert per_token == pytest.approx(0.518, rel=0.01)
    for hours, cost in ((2.664e6, 5.328e6), (0.119e6, 0.238e6), (0.005e6, 0.01e6), (2.788e6, 5.576e6)):
        assert run_cost(rate, hours, HOUR) == pytest.approx(cost, rel=1e-9)


def test_parts_of_an_hour_add_up() -> None:
    results = evaluate_servers(table_of("servers", [SERVER, {**SERVER, "server": "b", "utilization": 0.5}]))
    parts = results["capital_cost"] + results["running_cost"] + results["energy_cost"]
    np.testing.assert_allclose(parts, results["cost_rate"], rtol=1e-14)
    assert results["capital_cost"][1] == pytest.approx(2.0 * results["capital_cost"][0])
    assert results["energy_cost"][1] == results["energy_cost"][0]
    assert results["network_switches"].tolist() == [48.0, 48.0]


def test_both_views_of_a_planner() -> None:
    """A fixed number of accelerators, and a fixed number of megawatts in whole servers."""
    rows = [
        {**SERVER, "fixed_accelerators": 4096},
        {**SERVER, "server": "b", "fixed_power": 10},
        {**SERVER, "server": "c"},
    ]
    results = evaluate_servers(table_of("servers", rows))
    each = 10_200.0 / 8.0 * 1.25
    assert results["accelerators_planned"][:2].tolist() == [4096.0, math.floor(10e6 / each / 8) * 8.0]
    assert results["power_planned"][1] <= 10e6 < results["power_planned"][1] + 8 * each
    assert results["capex_planned"][0] == pytest.approx(4096.0 * float(results["capex"][0] + results["facility"][0]))
    assert np.isnan(results["capex_planned"][2])
    assert accelerators_for_power(1e6, 1e3, 1.0, 72.0) == 936.0


# Published all-in prices of an accelerator-hour, hyperscaler and neocloud [USD/h] (InferenceX)
HOURS = {
    "H100": (1.30, 1.69),
    "H200": (1.41, 1.74),
    "HGX B200": (1.95, 2.34),
    "GB200": (2.21, 2.75),
    "MI300X": (1.12, 1.40),
    "MI355X": (1.48, 1.90),
}
BILLS = {"H100 SXM": (2_900, 3_700), "B200": (5_700, 7_300), "MI300X": (4_500, 6_000)}


SHIPPED = load_catalog().tables  # a workbook without these sheets has nothing to compare


@pytest.mark.parametrize("bills", [BILLS] if len(SHIPPED["chiplets"]) else [])
def test_bills_of_materials_within_published_ranges(bills: dict[str, tuple[float, float]]) -> None:
    """Reached from wafer, memory and package rows; a part costs the median of its quotes of the product's year."""
    catalog = load_catalog()
    designs = catalog.tables["chiplets"]
    result = dict(zip(designs["chiplet"], evaluate_designs(designs, catalog)["bill_of_materials"], strict=True))
    for name, (low, high) in bills.items():
        assert low <= result[name] <= high, f"{name}: {result[name]:.0f} USD"
    shares = {}
    for column in ("memory_price", "module_area", "board_cost"):
        cheaper = {**designs.columns, column: designs[column] * 0.9}
        changed = evaluate_designs(type(designs)("chiplets", cheaper), catalog)["bill_of_materials"]
        shares[column] = float(np.mean(1.0 - changed / np.array(list(result.values()))))
    assert max(shares, key=lambda column: shares[column]) == "memory_price"


@pytest.mark.parametrize("designs", [SHIPPED["chiplets"]] if len(SHIPPED["chiplets"]) else [])
def test_the_year_of_the_carrier_wafer_decides_the_bill_of_an_h100(designs: Table) -> None:
    """With the quote of 2025 instead of that of 2023 its bill falls below the published range."""
    packages = np.where(designs["chiplet"] == "H100 SXM", "CoWoS-S", designs["package"])
    today = evaluate_designs(type(designs)("chiplets", {**designs.columns, "package": packages}), load_catalog())
    (bill,) = today["bill_of_materials"][designs["chiplet"] == "H100 SXM"]
    assert 2_600 < bill < BILLS["H100 SXM"][0]


@pytest.mark.parametrize("shipped", [SHIPPED] if "memory_price_low" in SHIPPED["chiplets"] else [])
def test_no_number_is_set_for_one_product(shipped: dict[str, Table]) -> None:
    """Designs share boards, those of one memory its price; packages of CoWoS their wafer; servers of one owner their
    finance; H100 and H200 a price."""
    designs, servers, packages = shipped["chiplets"], shipped["servers"], shipped["packages"]
    assert len(set(designs["board_cost"].tolist())) == 1
    memory = {"H100 SXM": "HBM3", "MI300X": "HBM3", "B200": "HBM3E"}
    prices = {(memory[name], price) for name, price in zip(designs["chiplet"], designs["memory_price"], strict=True)}
    assert len(prices) == 2
    cowos = ["CoWoS" in name for name in packages["package"].tolist()]
    assert sum(cowos) == 4
    for column in ("carrier_area_ratio", "substrate_price", "bonding_yield", "attach_yield"):
        assert len(set(packages.filled(column)[cowos].tolist())) == 1, column
    years = dict(zip(packages["year"][cowos].tolist(), packages["carrier_wafer_price"][cowos].tolist(), strict=True))
    assert years == {2023: 20_200, 2024: 16_100, 2025: 12_000}
    for year, price in zip(packages["year"][cowos], packages["carrier_wafer_price"][cowos], strict=True):
        assert years[year] == price
    owners = [name.split(", ")[1] for name in servers["server"].tolist()]
    shared = ("discount_rate", "power_usage_effectiveness", "building_price", "life", "energy_price", "switch_price",
              "transceiver_price", "utilization", "load_share", "maintenance_share", "staff_cost")  # fmt: skip
    for owner in set(owners):
        rows = [row for row, own in enumerate(owners) if own == owner]
        for column in shared:
            assert len(set(servers.filled(column)[rows].tolist())) == 1, (owner, column)


@pytest.mark.parametrize("hours", [HOURS] if len(SHIPPED["servers"]) else [])
def test_published_prices_of_an_accelerator_hour(hours: dict[str, tuple[float, float]]) -> None:
    """Six accelerators, two kinds of owners: within 20 percent."""
    servers = load_catalog().tables["servers"]
    result = dict(zip(servers["server"], evaluate_servers(servers)["cost_rate"] / HOURLY, strict=True))
    for accelerator, published in hours.items():
        for owner, price in zip(("hyperscaler", "neocloud"), published, strict=True):
            (name,) = [name for name in result if accelerator in name and owner in name]
            assert abs(result[name] / price - 1.0) < 0.20, f"{name}: {result[name]:.2f}, published {price}"
