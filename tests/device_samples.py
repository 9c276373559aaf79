"""A catalog with devices, and devices made from a few cells."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.cells import parse_coded
from xlperf.catalog.csvfile import read_csv
from xlperf.catalog.plans import table_from_rows
from xlperf.catalog.schema import TECHNOLOGY_TABLES
from xlperf.catalog.table import Table
from xlperf.excel.build import table_of

DATA = Path(__file__).parent / "data" / "technology"


def _read(kind: str) -> Table:
    file = read_csv(DATA / f"{kind}.csv")
    table, faults = parse_coded(kind, file.header, file.columns, file.locate)
    assert faults == []
    return table


def joined(first: Table, second: Table) -> Table:
    """Rows of two tables of one kind, one below the other."""
    columns = {}
    for column in first.schema.columns:
        pair = [t.text(column.name) if column.is_text else t.number(column.name) for t in (first, second)]
        columns[column.name] = np.concatenate(pair)
    return Table(first.kind, columns)


@cache
def technology_tables() -> dict[str, Table]:
    """Sheets of technology, and the shipped accelerators and process nodes with the rows that go with them."""
    shipped = load_catalog().tables
    tables = {kind: _read(kind) for kind in TECHNOLOGY_TABLES}
    for kind in ("accelerators", "process_nodes"):
        own, key = _read(kind), shipped[kind].schema.key.name
        known = {str(name) for name in shipped[kind][key].tolist()}
        new = [row for row, name in enumerate(own[key].tolist()) if name not in known]
        tables[kind] = joined(shipped[kind], own.take(new))
    return tables


@cache
def catalog() -> Catalog:
    """The shipped catalog with the sheets of technology."""
    return load_catalog().with_tables(list(technology_tables().values()))


def devices(*rows: Mapping[str, Any]) -> Table:
    """Devices of 800 mm2 at 5 nm with HBM3 and NVLink 4 but for the cells given, in the units of the sheet."""
    plain = {"technology": "5 nm", "core": "Hopper SM", "memory": "HBM3", "link": "NVLink 4", "die_area": 800.0}
    return table_of("devices", [{"device": f"device {n}", **plain, **row} for n, row in enumerate(rows, start=1)])


def training(*accelerators: str, **cells: Any) -> Table:
    """GPT-3 175B on 64 of each of some accelerators."""
    given = {"num_accelerators": 64, "tensor_parallel": 8, "pipeline_parallel": 8, "global_batch_size": 64, **cells}
    header = ["model", "accelerator", *given]
    return table_from_rows("training", header, [["GPT-3-175B", name, *given.values()] for name in accelerators])
