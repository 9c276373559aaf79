"""Sheets of cost in a report: waterfalls, tornado, cost of a token; numbers are the engine's."""

from __future__ import annotations

import datetime
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import report_samples as samples
from cost_samples import DESIGN, NODE, PACKAGE, SERVER
from openpyxl import Workbook, load_workbook

from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_columns
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.devices import evaluate_designs
from xlperf.engine.ownership import evaluate_ownership, evaluate_servers
from xlperf.workbook.data_sheets import table_of
from xlperf.workbook.report.book import report_workbook, write_report

H100 = "H100-SXM-80GB"
SHEETS = ["token cost", "cost bridge", "accelerator cost"]
NODES = [{**NODE, "wafer_price_low": 13_000, "wafer_price_high": 20_000, "nre_chip_fixed": 90e6,
          "nre_chip_per_area": 542_000, "nre_module_per_area": 903_000}]  # fmt: skip
PACKAGES = [
    {**PACKAGE, "bonding_yield": 0.99, "nre_fixed": 3e5},
    {**PACKAGE, "package": "flip chip", "structure": "soc"},
]
MADE = [{**DESIGN, "chiplet": "part", "accelerator": H100, "num_dies": 1, "package": "flip chip", "memory_stacks": 5,
         "stack_capacity": 16, "memory_price": 15, "memory_price_low": 8, "memory_price_high": 18, "board_cost": 480,
         "margin_share": 0.8}]  # fmt: skip
SERVERS = [{**SERVER, "accelerator": H100}]
PLANS = {"name": ["small", "large", "other"], "model": ["Meta-Llama-3.1-70B"] * 3,
         "accelerator": [H100, H100, "MI300X"], "num accelerators": [8.0, 1024.0, 64.0],
         "tensor parallel": [8.0] * 3}  # fmt: skip
SERVED = {"name": ["served"], "model": ["Meta-Llama-3.1-70B"], "accelerator": [H100], "num accelerators": [8.0],
          "tensor parallel": [8.0], "prompt length": [1000.0], "output length": [500.0],
          "batch size": [16.0]}  # fmt: skip
CHART = "{http://schemas.openxmlformats.org/drawingml/2006/chart}"


def _plans(kind: str, columns: dict[str, list[object]]) -> Table:
    return table_from_columns(kind, {name: np.array(values) for name, values in columns.items()})


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    rows = {"process_nodes": NODES, "packages": PACKAGES, "chiplets": MADE, "servers": SERVERS}
    return load_catalog().with_tables([table_of(kind, own) for kind, own in rows.items()])


@pytest.fixture(scope="module")
def path(catalog: Catalog, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("report") / "report.xlsx"
    plans = [_plans("training", PLANS), _plans("inference", SERVED)]
    results = [evaluate(table, catalog) for table in plans]
    write_report(made, catalog, plans, results, date=datetime.date(2026, 11, 21))
    return made


@pytest.fixture(scope="module")
def book(path: Path) -> Workbook:
    return load_workbook(path)


def _rows(book: Workbook, sheet: str, table: str) -> list[dict[str, Any]]:
    return samples.records(book[sheet], table)


def test_sheets_and_charts(path: Path, book: Workbook) -> None:
    assert [name for name in book.sheetnames if name in SHEETS] == SHEETS
    counts = {name: len(book[name]._charts) for name in SHEETS}
    assert counts == {"token cost": 2, "cost bridge": 2, "accelerator cost": 3}
    with zipfile.ZipFile(path) as package:
        charts = [name for name in package.namelist() if name.startswith("xl/charts/chart")]
        for name in charts:
            for cache in ElementTree.fromstring(package.read(name)).iter(f"{CHART}numCache"):
                assert cache.find(f"{CHART}pt") is not None, f"{name} shows a series without points"


def test_drawn_lines_of_the_bridge_lead_from_rent_to_owner(book: Workbook) -> None:
    steps, bridge = _rows(book, "cost bridge", "bridge_steps"), _rows(book, "cost bridge", "cost_bridge_training")
    drawn = [row for row in steps if row["plan"] == bridge[0]["plan"]]
    lines = [row for row in bridge if row["plan"] == bridge[0]["plan"]]
    assert drawn[0]["amount (USD/Mtoken)"] == pytest.approx(lines[0]["cost (USD/Mtoken)"], rel=1e-12)
    assert drawn[-1]["amount (USD/Mtoken)"] == pytest.approx(lines[-1]["cost (USD/Mtoken)"], rel=1e-12)
    ends = [row["stands on (USD/Mtoken)"] + row["amount (USD/Mtoken)"] for row in drawn]
    for row, before in zip(drawn[1:-1], ends[:-2], strict=True):
        assert before >= row["stands on (USD/Mtoken)"] - 1e-12, row["part"]


def test_waterfall_from_the_wafer_to_the_price(book: Workbook, catalog: Catalog) -> None:
    made = evaluate_designs(catalog.tables["chiplets"], catalog)
    rows = _rows(book, "accelerator cost", "price_steps")
    shown = {row["part"].split(" \N{MIDDLE DOT} ")[0]: row for row in rows}
    for part, name in (("raw dies", "raw_dies"), ("stacked memory", "memory"),
                       ("bill of materials", "bill_of_materials"),
                       ("unit cost", "unit_cost"), ("price", "sale_price")):  # fmt: skip
        assert shown[part]["amount (USD)"] == pytest.approx(float(made[name][0]), rel=1e-12), part
    level = 0.0
    for row in rows:
        if row["stands on (USD)"]:
            assert row["stands on (USD)"] == pytest.approx(level, rel=1e-12)
            level += row["amount (USD)"]
        else:
            assert row["amount (USD)"] == pytest.approx(level, rel=1e-12) or level == 0.0
            level = row["amount (USD)"]
    assert level == pytest.approx(float(made["sale_price"][0]), rel=1e-12)


def test_waterfall_from_the_price_to_the_hour(book: Workbook, catalog: Catalog) -> None:
    hours = evaluate_servers(catalog.tables["servers"])
    rows = _rows(book, "accelerator cost", "hour_steps")
    parts = {row["part"].split(" \N{MIDDLE DOT} ")[0]: row["amount (USD/h)"] for row in rows}
    assert parts["hour, all costs"] == pytest.approx(float(hours["cost_rate"][0]) * 3600.0, rel=1e-12)
    assert parts["manufacturing"] + parts["gross margin"] == pytest.approx(parts["accelerator"], rel=1e-12)
    assert parts["energy"] == pytest.approx(float(hours["energy_cost"][0]) * 3600.0, rel=1e-12)


def test_tornado_has_the_largest_first(book: Workbook) -> None:
    rows = _rows(book, "accelerator cost", "tornado")
    assert [row["input"] for row in rows] == ["memory price (USD/GB)", "wafer price (USD)"]
    for row in rows:
        assert row["low value adds (USD)"] == pytest.approx(row["with low (USD)"] - row["base (USD)"])
        assert row["low value adds (USD)"] < 0.0 < row["high value adds (USD)"]


def test_cost_of_a_token_by_part(book: Workbook, catalog: Catalog) -> None:
    """Parts add up to the total, the total is the engine's; a plan without a server is named as left out."""
    owned = evaluate_ownership(_plans("training", PLANS), catalog)
    rows = _rows(book, "token cost", "token_cost_training")
    assert [row["plan"].split(" \N{MIDDLE DOT} ")[0] for row in rows] == ["small", "large"]
    for place, row in enumerate(rows):
        total = row.pop("owned cost per million tokens (USD/Mtoken)")
        assert total == pytest.approx(float(owned["owned_cost_per_million_tokens"][place]) * 1e6, rel=1e-12)
        assert sum(value for name, value in row.items() if name != "plan") == pytest.approx(total, rel=1e-12)
    assert rows[0]["network (USD/Mtoken)"] == 0.0
    assert rows[1]["network (USD/Mtoken)"] > 0.0
    notes = [cell.value for (cell,) in book["token cost"].iter_rows(max_col=1) if isinstance(cell.value, str)]
    assert any(note.startswith("1 plan not shown") for note in notes)
    worth = _rows(book, "token cost", "token_cost_inference_worth")
    assert worth[0]["owned tokens per dollar (Mtoken/USD)"] > 0.0


def test_reports_without_rows_of_cost_have_no_sheets_of_cost(catalog: Catalog) -> None:
    plans = _plans("training", PLANS)
    for without, left in (("servers", SHEETS[2:]), ("chiplets", SHEETS[:2]), ("packages", [])):
        tables = [table_of(without, [])]
        if without == "packages":
            tables += [table_of("chiplets", []), table_of("servers", [])]
        own = catalog.with_tables(tables)
        book = report_workbook(own, [plans], [evaluate(plans, own)], date=datetime.date(2026, 11, 21))
        assert [name for name in book.sheetnames if name in SHEETS] == left
