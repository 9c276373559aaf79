"""A small workbook to start from: one plan of each kind, and what it and the front sheets refer to."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import PLAN_TABLES
from xlperf.catalog.table import Table
from xlperf.workbook import serve_sheet
from xlperf.workbook.front import CARDS

MODELS = ("DeepSeek-V3", *(str(dict(card)["model"]) for card in CARDS.values()))
"""Models of the forms and cards on the front sheets."""


def example_tables(tables: Mapping[str, Table]) -> dict[str, Table]:
    """One plan of each kind with the rows that they and the front sheets need; technology and calibration whole.

    ``tables``: every sheet of the shipped workbook. Returns training: dense, with experts, mapped by search. Serving:
    each mode, and mapped by search. One design, one server.
    """
    catalog = Catalog.from_tables([table for kind, table in tables.items() if kind not in PLAN_TABLES], "examples")
    chosen = {kind: _first_of_each(tables[kind], _kinds(tables[kind], catalog)) for kind in PLAN_TABLES}
    models, accelerators, networks = set(MODELS), set(serve_sheet.OTHERS), set()
    for plans in chosen.values():
        models |= set(catalog.tables["models"].text("model")[catalog.rows("models", plans["model"], plans, "model")])
        for column in ("accelerator", "prefill_accelerator"):
            accelerators |= set(plans.text(column))
        networks |= set(plans.text("network"))
    kept = _named(tables["accelerators"], "accelerator", accelerators)
    networks |= set(kept.text("default_network"))
    found = {
        **tables,
        **chosen,
        "models": _named(tables["models"], "model", models),
        "accelerators": kept,
        "networks": _named(tables["networks"], "network", networks),
        "prices": _named(tables["prices"], "price", accelerators),
    }
    for kind in ("chiplets", "servers"):
        if kind in tables:
            found[kind] = _named(tables[kind], "accelerator", accelerators).take(np.array([0]))
    return found


def _named(table: Table, column: str, names: set[str]) -> Table:
    """Rows whose name is one of some."""
    known = {name.casefold() for name in names if name}
    return table.take(np.flatnonzero([str(name).casefold() in known for name in table.text(column)]))


def _kinds(plans: Table, catalog: Catalog) -> list[str]:
    """What kind of plan each row is an example of."""
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
