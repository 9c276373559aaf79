"""A catalog with devices, and devices made from a few cells."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import TECHNOLOGY_TABLES
from xlperf.catalog.table import Table
from xlperf.workbook.data_sheets import table_of


@cache
def catalog() -> Catalog:
    """The shipped catalog."""
    return load_catalog()


def technology_tables() -> dict[str, Table]:
    """Sheets of technology, and the accelerators and process nodes that go with them."""
    return {kind: catalog().tables[kind] for kind in (*TECHNOLOGY_TABLES, "accelerators", "process_nodes")}


def devices(*rows: Mapping[str, Any]) -> Table:
    """Devices of 800 mm2 at 5 nm with HBM3 and NVLink 4 but for the cells given, in the units of the sheet."""
    plain = {"technology": "5 nm", "core": "Hopper SM", "memory": "HBM3", "link": "NVLink 4", "die_area": 800.0}
    return table_of("devices", [{"device": f"device {n}", **plain, **row} for n, row in enumerate(rows, start=1)])


def training(*accelerators: str, **cells: Any) -> Table:
    """GPT-3 175B on 64 of each of some accelerators."""
    given = {"num_accelerators": 64, "tensor_parallel": 8, "pipeline_parallel": 8, "global_batch_size": 64, **cells}
    header = ["model", "accelerator", *given]
    return table_from_rows("training", header, [["GPT-3-175B", name, *given.values()] for name in accelerators])


def without_technology(tables: Mapping[str, Table]) -> dict[str, Table]:
    """Tables of a workbook without the sheets of technology and the accelerators that follow from them."""
    stated = np.flatnonzero(tables["accelerators"].text("device") == "")
    kept = {kind: table for kind, table in tables.items() if kind not in TECHNOLOGY_TABLES}
    return {**kept, "accelerators": tables["accelerators"].take(stated)}


def product(name: str) -> Table:
    """One row of the shipped sheet devices."""
    table = technology_tables()["devices"]
    return table.take([table["device"].tolist().index(name)])
