"""Worksheet functions of cost: equations over cells and ranges, designs as cards and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cost_samples import DESIGN, NODE, PACKAGE

from xlperf.addin.cells import CellError
from xlperf.addin.functions import functions
from xlperf.addin.handles import CatalogStore
from xlperf.addin.worker import Session
from xlperf.base.units import YEAR, factor
from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.schema import grouped, table_schema
from xlperf.engine.devices import evaluate_designs
from xlperf.engine.ownership import evaluate_servers
from xlperf.equations.cost.dies import (
    critical_defects,
    die_yield,
    dies_by_rule,
    dies_per_wafer,
    negative_binomial_yield,
    raw_die_cost,
)
from xlperf.equations.cost.tco import capital_recovery_rate, owned_cost_rate
from xlperf.workbook.data_sheets import table_of
from xlperf.workbook.package import data_rows


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(CatalogStore(tmp_path / "catalogs"))


def _table(kind: str, *rows: dict[str, Any]) -> list[list[Any]]:
    names = list(rows[0])
    return [
        [table_schema(kind).by_name[name].header for name in names],
        *([row[name] for name in names] for row in rows),
    ]


def _one(block: Any) -> Any:
    ((cell,),) = block
    return cell


def test_the_functions_that_the_design_names() -> None:
    named = "DIES_PER_WAFER DIE_YIELD DIE_COST PACKAGE_COST ACCELERATOR_COST HOUR_COST"
    assert {f"XLPERF_{name}" for name in named.split()} <= set(functions())


def test_equations_of_cells(session: Session) -> None:
    assert _one(session.call("XLPERF_DIES_PER_WAFER", [26, 31])) == float(dies_per_wafer(26.0, 31.0, 300.0, 3.0, 0.1))
    placed = _one(session.call("XLPERF_DIES_PER_WAFER", [26, 31, None, 2, 0.1, "Placed"]))
    assert placed == float(dies_by_rule("placed", 26.0, 31.0, 300.0, 2.0, 0.1))
    defects = critical_defects(814.0, 0.11 * factor("1/cm2"))
    assert _one(session.call("XLPERF_DIE_YIELD", [814, 0.11])) == float(negative_binomial_yield(defects, 10.0))
    assert _one(session.call("XLPERF_DIE_YIELD", [814, 0.11, "poisson"])) == float(die_yield("poisson", defects))
    assert _one(session.call("XLPERF_DIE_COST", [17_000, 62])) == float(raw_die_cost(17_000.0, 62.0))
    assert _one(session.call("XLPERF_DIE_COST", [17_000, 62, 0.5, 3])) == pytest.approx((17_000 / 62 + 3) / 0.5)
    expected = owned_cost_rate(40_000.0, capital_recovery_rate(0.08, 5 * YEAR), 0.0, 0.0, 0.03, 0.0, 1300.0, 1.25,
                               0.0826 * factor("USD/kWh"), 1.0) * 3600.0  # fmt: skip
    assert _one(session.call("XLPERF_HOUR_COST", [40_000, 5, None, 1300])) == pytest.approx(float(expected), rel=1e-14)


def test_a_column_against_a_row_is_a_table(session: Session) -> None:
    areas, densities = [[100.0], [400.0], [800.0]], [[0.05, 0.2]]
    block = session.call("XLPERF_DIE_YIELD", [areas, densities])
    expected = negative_binomial_yield(critical_defects(areas, np.array(densities) * factor("1/cm2")), 10.0)
    assert block == expected.tolist()


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("DIES_PER_WAFER", [-3, 10], "width must be a number above 0 (mm), got -3"),
        ("DIES_PER_WAFER", [10], "height must be given: a number above 0 (mm)"),
        ("DIES_PER_WAFER", [10, "x"], 'height must be a number above 0 (mm), got "x"'),
        ("DIES_PER_WAFER", [10, 10, 300, 3, 0.1, "plased"], 'got "plased"; did you mean placed?'),
        ("DIE_YIELD", [100, 0.1, "murphi"], "did you mean murphy?"),
        ("DIE_COST", [17_000, 62, 1.1], "passed must be a number above 0 up to 1, got 1.1"),
        ("HOUR_COST", [40_000, 0], "life must be a number above 0 (year), got 0"),
        ("DIE_COST", [[[1], [2]], [[1], [2], [3]]], "ranges of 2 x 1, 3 x 1 cells do not go together"),
    ],
)
def test_bad_cells_of_equations(session: Session, name: str, arguments: list[Any], words: str) -> None:
    cell = _one([session.call(f"XLPERF_{name}", arguments)[0][:1]])
    assert isinstance(cell, CellError)
    assert cell.code == "#VALUE!"
    assert words in cell.message


def test_a_bad_cell_spoils_its_own_result_only(session: Session) -> None:
    block = session.call("XLPERF_DIE_COST", [[[100.0], [-1.0], [300.0]], 10])
    assert (block[0], block[2]) == ([10.0], [30.0])
    assert isinstance(block[1][0], CellError)


def test_designs_of_cells_are_designs_of_the_engine(session: Session) -> None:
    nodes, packages = _table("process_nodes", NODE), _table("packages", PACKAGE)
    handle = _one(session.call("XLPERF_CATALOG", [nodes, packages]))
    rows = [DESIGN, {**DESIGN, "chiplet": "two", "module_area": 600}]
    tables = [table_of("process_nodes", [NODE]), table_of("packages", [PACKAGE])]
    results = evaluate_designs(table_of("chiplets", rows), load_catalog().with_tables(tables))
    cells = _table("chiplets", *rows)
    assert session.call("XLPERF_PACKAGE_COST", [cells, None, handle]) == [[v] for v in results["module_cost"].tolist()]
    assert session.call("XLPERF_PACKAGE_COST", [cells, "die yield", handle]) == [[v] for v in results["die_yield"]]
    assert session.call("XLPERF_ACCELERATOR_COST", [cells, handle]) == [[v] for v in results["unit_cost"].tolist()]
    card = [[name, value] for name, value in zip(cells[0], cells[1], strict=True)]
    assert _one(session.call("XLPERF_ACCELERATOR_COST", [card, handle])) == results["unit_cost"][0]
    assert _one(session.call("XLPERF_ACCELERATOR_COST", [[cells[1]], handle, [cells[0]]])) == results["unit_cost"][0]
    wrong = _one(session.call("XLPERF_PACKAGE_COST", [card, "die yeld", handle]))
    assert "did you mean die yield" in wrong.message
    large = [cells[0], [*cells[1][:4], 900.0, *cells[1][5:]]]
    assert "larger than the reticle" in _one(session.call("XLPERF_PACKAGE_COST", [large, None, handle])).message


def test_servers_of_cells_are_servers_of_the_engine(session: Session) -> None:
    shipped = load_catalog().tables["servers"].take([0, 1])
    columns = shipped.schema.columns
    cells = [[column.header for column in columns], *data_rows(shipped, columns)]
    results, hour = evaluate_servers(shipped), factor("USD/h")
    assert [row[0] for row in session.call("XLPERF_SERVER_COST", [cells])] == pytest.approx(
        (results["cost_rate"] / hour).tolist(), rel=1e-14
    )
    assert session.call("XLPERF_SERVER_COST", [cells, "capex"]) == [[v] for v in results["capex"].tolist()]
    parts = [_one(session.call("XLPERF_SERVER_COST", [cells[:2], part])) for part in grouped("servers_results", "hour")]
    assert sum(parts) == pytest.approx(results["cost_rate"][0] / hour, rel=1e-12)
    card = [[name, value] for name, value in zip(cells[0], cells[1], strict=True)]
    card[cells[0].index(shipped.schema.by_name["life"].header)][1] = 0
    assert "life" in _one(session.call("XLPERF_SERVER_COST", [card])).message
    assert "capex" in _one(session.call("XLPERF_SERVER_COST", [cells, "capx"])).message


def test_an_edit_of_a_node_changes_the_handle_and_the_cost(session: Session) -> None:
    packages, card = _table("packages", PACKAGE), [[name, value] for name, value in DESIGN.items()]
    costs = {}
    for price in (10_000, 20_000):
        nodes = _table("process_nodes", {**NODE, "wafer_price": price})
        handle = _one(session.call("XLPERF_CATALOG", [nodes, packages]))
        costs[handle] = _one(session.call("XLPERF_PACKAGE_COST", [card, None, handle]))
    assert len(costs) == 2
    low, high = costs.values()
    assert low < high
