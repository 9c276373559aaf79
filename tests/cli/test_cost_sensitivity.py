"""Low, base and high case of the cost sheets, and the table that says which input decides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Outcome, csv_rows
from cost_samples import COST_ROWS, DESIGN, NODE, PACKAGE, SERVER
from shipped import plain_workbook

from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.table import uncertain_columns
from xlperf.engine.devices import evaluate_designs
from xlperf.engine.ownership import evaluate_servers
from xlperf.explore.allocate import cost_sensitivity
from xlperf.workbook.data_sheets import table_of

Command = Callable[..., Outcome]
NODES = [{**NODE, "wafer_price_low": 15_000, "wafer_price_high": 20_000, "defect_density_high": 0.2}]
PACKAGES = [{**PACKAGE, "bonding_yield": 0.98, "bonding_yield_low": 0.999, "bonding_yield_high": 0.9}]
MEMORY = {"memory_stacks": 4, "stack_capacity": 16, "memory_price": 12, "memory_price_low": 8, "memory_price_high": 15}
DESIGNS = [{**DESIGN, **MEMORY}, {**DESIGN, "chiplet": "two", "num_dies": 1}]
SERVERS = [{**SERVER, "accelerator_price_low": 20_000, "accelerator_price_high": 30_000, "life_low": 6, "life_high": 4}]


@pytest.fixture
def catalog() -> Catalog:
    rows = {"process_nodes": NODES, "packages": PACKAGES, "chiplets": DESIGNS, "servers": SERVERS}
    return load_catalog().with_tables([table_of(kind, own) for kind, own in rows.items()])


def test_each_case_takes_every_value_of_its_own(catalog: Catalog) -> None:
    designs = catalog.tables["chiplets"]
    low = [{**NODE, "wafer_price": 15_000}], [{**PACKAGE, "bonding_yield": 0.999}], [{**DESIGNS[0], "memory_price": 8}]
    plain = load_catalog().with_tables([table_of("process_nodes", low[0]), table_of("packages", low[1])])
    expected = evaluate_designs(table_of("chiplets", low[2]), plain)["module_cost"][0]
    result = {case: evaluate_designs(designs, catalog, case)["module_cost"][0] for case in ("low", "base", "high")}
    assert result["low"] == expected
    assert result["low"] < result["base"] < result["high"]
    hours = {case: evaluate_servers(catalog.tables["servers"], case)["cost_rate"][0] for case in result}
    assert hours["low"] < hours["base"] < hours["high"]
    own = {**SERVER, "accelerator_price": 30_000, "life": 4}
    assert hours["high"] == evaluate_servers(table_of("servers", [own]))["cost_rate"][0]


def test_tornado_of_designs(catalog: Catalog) -> None:
    """An input moves alone; the largest swing stands first; a design without memory has no price of memory."""
    designs = catalog.tables["chiplets"]
    table = cost_sensitivity(designs, catalog, "module cost")
    rows = [dict(zip(table.columns, row, strict=True)) for row in zip(*table.columns.values(), strict=True)]
    first = [row for row in rows if row["subject"] == "one"]
    assert {row["input"] for row in first} == {
        "wafer price (USD)", "defect density (1/cm2)", "bonding yield", "memory price (USD/GB)"
    }  # fmt: skip
    assert "memory price (USD/GB)" not in {row["input"] for row in rows if row["subject"] == "two"}
    swings = [row["swing"] for row in first]
    assert swings == sorted(swings, reverse=True)
    assert [row["rank"] for row in first] == [1.0, 2.0, 3.0, 4.0]
    base = float(evaluate_designs(designs, catalog)["module_cost"][0])
    memory = next(row for row in first if row["input"].startswith("memory"))
    assert (memory["value_low"], memory["value_base"], memory["value_high"]) == (8.0, 12.0, 15.0)
    cheap = table_of("chiplets", [{**DESIGNS[0], "memory_price": 8}])
    assert memory["result_low"] == evaluate_designs(cheap, catalog)["module_cost"][0]
    assert memory["result_base"] == base
    defects = next(row for row in first if row["input"].startswith("defect"))
    assert defects["result_low"] == base, "no low value: the base one"
    assert defects["result_high"] > base


def test_tornado_of_servers(catalog: Catalog) -> None:
    table = cost_sensitivity(catalog.tables["servers"], catalog)
    assert table["result"].tolist() == ["cost rate (USD/h)"] * 2
    assert table["input"].tolist() == ["life (year)", "accelerator price (USD)"]
    assert (table["result_low"] < table["result_base"]).all()
    assert (table["result_high"] > table["result_base"]).all()


def test_an_unknown_result_is_told(catalog: Catalog) -> None:
    with pytest.raises(InputError, match=r'"unit csot" is no result of chiplets; did you mean unit cost'):
        cost_sensitivity(catalog.tables["chiplets"], catalog, "unit csot")


def test_tornado_command(command: Command, tmp_path: Path) -> None:
    study = tmp_path / "study.xlsx"
    own = {"process_nodes": NODES, "packages": PACKAGES, "chiplets": DESIGNS, "servers": SERVERS}
    plain_workbook(study, {**COST_ROWS, **own})
    done = command("cost", study, "--tornado", "unit cost")
    assert done.code == 0, done.err
    rows = csv_rows(done.out)
    assert {row["result"] for row in rows} == {"unit cost (USD)"}
    done = command("cost", study, "--sheet", "servers", "--tornado", "", "-o", tmp_path / "hour.xlsx")
    assert (done.code, done.err.strip()) == (0, f"{tmp_path / 'hour.xlsx'}: 1 server")
    done = command("cost", study, "--tornado", "", "--case", "low")
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    high = command("cost", study, "--sheet", "servers", "--case", "high")
    assert float(csv_rows(high.out)[0]["cost_rate"]) > 0.0


def test_shipped_ranges_hold_their_base_values() -> None:
    """Low is the cheap side and high the dear side of every shipped number that has a range."""
    tables = load_catalog().tables
    dear_when_large = {"bonding_yield": -1.0, "life": -1.0}
    for kind in ("process_nodes", "packages", "chiplets", "servers"):
        table = tables[kind]
        for column in uncertain_columns(table):
            sign = dear_when_large.get(column, 1.0)
            low, base, high = (sign * table.filled(name) for name in (f"{column}_low", column, f"{column}_high"))
            assert not (low > base).any(), (kind, column)
            assert not (high < base).any(), (kind, column)
            assert np.isfinite(base[~np.isnan(low)]).all()
