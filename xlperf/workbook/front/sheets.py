"""The front sheets: three questions, each a form with its answer and numbers; and a small workbook to start from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from openpyxl.styles import Font

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import PLAN_TABLES, results_of, table_schema
from xlperf.catalog.table import CASES, Table
from xlperf.explore.forms import OTHERS
from xlperf.workbook.data_sheets import BLANK_ROWS, SCENARIO_CELL, column_reference
from xlperf.workbook.front.chip import SOLD, chip_sheet
from xlperf.workbook.front.compare import compare_sheet
from xlperf.workbook.front.formulas import Live
from xlperf.workbook.front.layout import GREY, NUMBERS, SHEETS, foot
from xlperf.workbook.front.serve_train import serve_sheet, train_sheet
from xlperf.workbook.front.start import CARDS
from xlperf.workbook.package import Formulas, data_rows
from xlperf.workbook.style import FONT, page_setup

if TYPE_CHECKING:
    from openpyxl import Workbook


def live_cells(
    tables: Mapping[str, Table],
    catalog: Catalog | None,
    formulas: Formulas,
    results: Mapping[str, Mapping[str, list[Any]]],
) -> Live:
    """Evaluator of the formulas of front sheets and cards, over the plans and the checks of a workbook.

    ``tables``: sheets of the workbook by kind. ``catalog``: for the values beside the formulas; None writes formulas
    alone. ``formulas``: collects values, with the checks already there. ``results``: cells of live results, by kind and
    name.
    """
    live = Live(formulas, catalog)
    live.values |= {("checks", cell): value for cell, value in formulas.values.get("checks", {}).items()}
    live.values["start", SCENARIO_CELL] = CASES[1]
    for kind in PLAN_TABLES:
        columns = table_schema(kind).columns
        rows = [*data_rows(tables[kind], columns), *([None] * len(columns) for _ in range(BLANK_ROWS))]
        cells = zip(*rows, strict=True)
        live.columns |= {column_reference(column): list(own) for column, own in zip(columns, cells, strict=True)}
    owner = table_schema("servers").by_name["accelerator"]
    servers = data_rows(tables["servers"], [owner]) if "servers" in tables else []
    live.columns[column_reference(owner)] = [row[0] for row in servers] + [None] * BLANK_ROWS
    for name, own in results.get("servers", {}).items():
        live.columns[column_reference(results_of("servers").by_name[name])] = list(own)
    return live


def question_sheets(workbook: Workbook, tables: Mapping[str, Table], live: Live) -> None:
    """Add the front sheets, first in the workbook, and the sheets that hold their numbers, last so far.

    ``workbook``: changed in place; it has the name ``catalog`` and the names of drop-downs. ``tables``: sheets of the
    workbook by kind. ``live``: writes formulas with their values.
    """
    known = set(tables["accelerators"].text("accelerator").tolist())
    others = [name for name in OTHERS if name in known]
    numbers = [workbook.create_sheet(name) for name in NUMBERS]
    fronts = [workbook.create_sheet(name, place) for place, name in enumerate(SHEETS)]
    serve_sheet(fronts[0], numbers[0], live, others)
    train_sheet(fronts[1], numbers[1], live)
    chip_sheet(fronts[2], numbers[2], live, [name for name in SOLD if name in known])
    compare_sheet(fronts[3], numbers[3], live)
    for front, data in zip(fronts, numbers, strict=True):
        foot(front, data.title, live)
    for data in numbers:
        numbers_look(data)


_DIGITS = "[<1]0.0###;[<100]0.0##;#,##0"


def numbers_look(data: Any) -> None:
    """The look of a sheet that holds numbers of front sheets or cards."""
    data.sheet_properties.tabColor = GREY
    for row in data.iter_rows():
        for cell in row:
            cell.font = Font(name=FONT, size=9)
            if cell.number_format == "General" and (cell.data_type == "f" or isinstance(cell.value, float)):
                cell.number_format = _DIGITS
    wide = {"A": 34, "B": 26, "D": 20}
    longest: dict[str, int] = {}
    for cell in (cell for row in data.iter_rows() for cell in row if cell.value is not None):
        words = cell.value if cell.data_type == "s" else ""
        longest[cell.column_letter] = max(longest.get(cell.column_letter, 0), len(str(words)))
    for letters, most in longest.items():
        data.column_dimensions[letters].width = max(wide.get(letters, 16), min(most, 34))
    page_setup(data, pages_high=1)


MODELS = ("DeepSeek-V3", *(str(dict(card)["model"]) for card in CARDS.values()))
"""Models of the forms and cards on the front sheets."""


def example_tables(tables: Mapping[str, Table]) -> dict[str, Table]:
    """One plan of each kind with the rows that they and the front sheets need; technology and calibration whole.

    ``tables``: every sheet of the shipped workbook. Returns training: dense, with experts, mapped by search. Serving:
    each mode, and mapped by search. One design, one server.
    """
    catalog = Catalog.from_tables([table for kind, table in tables.items() if kind not in PLAN_TABLES], "examples")
    chosen = {kind: _first_of_each(tables[kind], _kinds(tables[kind], catalog)) for kind in PLAN_TABLES}
    models, accelerators, networks = set(MODELS), set(OTHERS), set()
    for plans in chosen.values():
        models |= set(catalog.tables["models"].text("model")[catalog.rows("models", plans["model"], plans, "model")])
        for column in ("accelerator", "prefill_accelerator", "expert_accelerator"):
            accelerators |= set(plans.text(column))
        networks |= set(plans.text("network"))
    kept = _rows_named(tables["accelerators"], "accelerator", accelerators)
    networks |= set(kept.text("default_network"))
    by_name = {
        **tables,
        **chosen,
        "models": _rows_named(tables["models"], "model", models),
        "accelerators": kept,
        "networks": _rows_named(tables["networks"], "network", networks),
        "prices": _rows_named(tables["prices"], "price", accelerators),
    }
    if "api_prices" in tables:
        by_name["api_prices"] = _rows_named(tables["api_prices"], "model", models)
    for kind in ("chiplets", "servers"):
        if kind in tables:
            by_name[kind] = _rows_named(tables[kind], "accelerator", accelerators).take(np.array([0]))
    return by_name


def _rows_named(table: Table, column: str, names: set[str]) -> Table:
    """Rows whose name is one of some."""
    known = {name.casefold() for name in names if name}
    return table.take(np.flatnonzero([str(name).casefold() in known for name in table.text(column)]))


def _kinds(plans: Table, catalog: Catalog) -> list[str]:
    """Kind of plan that each row is an example of."""
    searched = np.zeros(len(plans), dtype=bool)
    for rows in plans.auto.values():
        searched |= rows
    if plans.kind == "training":
        rows = catalog.rows("models", plans["model"], plans, "model")
        experts = catalog.tables["models"].number("num_experts", 0.0)[rows] > 0
        kinds = np.where(experts, "experts", "dense").astype(object)
    else:
        kinds = plans.filled("mode").astype(object)
    kinds[searched] = "searched"
    return [str(kind) for kind in kinds]


def _first_of_each(plans: Table, kinds: list[str]) -> Table:
    first: Callable[[str], int] = kinds.index
    return plans.take(np.array(sorted(map(first, dict.fromkeys(kinds)))))
