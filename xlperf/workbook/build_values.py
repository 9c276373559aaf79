"""Values of the formulas of the workbook, computed as the cells compute them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xlperf.addin.cells import block_of, read_block, solved
from xlperf.addin.handles import content_of, handle_of
from xlperf.addin.session import Engine
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table
from xlperf.workbook.build_front import CARD_RESULTS, CARDS, card, catalog_kinds
from xlperf.workbook.build_sheets import ASKED, LIVE_RESULTS, PLANNED
from xlperf.workbook.style import data_rows

ORIGIN = "xlperf.xlsx"


def live_results(tables: Mapping[str, Table]) -> dict[str, dict[str, list[Any]]]:
    """Cells of the live results of plans, designs and servers, by kind and name.

    Parameters
    ----------
    tables : mapping
        Tables by kind.

    Returns
    -------
    dict
        One entry per row: a number in the schema's unit, text, flag or CellError.
    """
    catalog = _catalog(tables)
    found = {}
    for kind, names in LIVE_RESULTS.items():
        if kind in tables and len(tables[kind]):
            columns = table_schema(kind).columns
            block: list[list[Any]] = [[column.header for column in columns], *data_rows(tables[kind], columns)]
            found[kind] = _cells(block, names, catalog, kind)
    if "servers" in found:
        numbers = [tables["servers"].number(name).tolist() for name in ASKED]
        for row, given in enumerate(zip(*numbers, strict=True)):
            if all(value != value for value in given):
                for name in (own for own in LIVE_RESULTS["servers"] if own.endswith(PLANNED)):
                    found["servers"][name][row] = ""
    return found


def card_results(tables: Mapping[str, Table]) -> dict[str, dict[str, Any]]:
    """Cells of the results of the cards on the front sheet, by kind and name."""
    catalog = _catalog(tables)
    names = {str(name).casefold() for name in tables["models"].text("model")}
    return {
        kind: {name: cells[0] for name, cells in _cells(card(kind), CARD_RESULTS[kind], catalog, kind).items()}
        for kind in CARDS
        if str(dict(CARDS[kind])["model"]).casefold() in names
    }


def catalog_handle(tables: Mapping[str, Table]) -> str:
    """What the catalog cell shows for these tables."""
    blocks = []
    for kind in catalog_kinds(tables):
        columns = table_schema(kind).columns
        blocks.append(block_of([[column.header for column in columns], *data_rows(tables[kind], columns)]))
    return handle_of(content_of(blocks))


def _catalog(tables: Mapping[str, Table]) -> Catalog:
    return Catalog.from_tables([tables[kind] for kind in catalog_kinds(tables)], ORIGIN)


def _cells(block: list[list[Any]], names: tuple[str, ...], catalog: Catalog, kind: str) -> dict[str, list[Any]]:
    outcome = solved(read_block(block, None, kind), lambda rows: Engine().evaluate(rows, catalog))
    return {name: outcome.words() if name == "reason" else outcome.column(name) for name in names}
