"""One plan in any form is one plan: cells, a card, CSV, Parquet and a workbook give the same bits."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from laws.random_plans import MODES, kind_of, legal_rows, table_of
from laws.samples import hold, shipped
from openpyxl import Workbook
from work import examples

from xlperf.addin.cells import CellError
from xlperf.addin.worker import Session
from xlperf.catalog.read import read_plans
from xlperf.catalog.schema import results_of, table_schema, unit_of
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.workbook.package import save_workbook

pytestmark = pytest.mark.slow

KINDS = ("training", "inference")
Block = list[list[Any]]


@cache
def rows_of(kind: str) -> tuple[dict[str, Any], ...]:
    """Plans of all modes of a kind."""
    return tuple(row for mode in MODES if kind_of(mode) == kind for row in legal_rows(mode, examples(8)))


@cache
def expected(kind: str) -> Table:
    """Results of the plans as cells."""
    return evaluate(table_of(kind, rows_of(kind)), shipped())


def block_of(kind: str) -> Block:
    """Header with units as sheets have it, and a row for each plan."""
    columns = table_schema(kind).columns
    rows = rows_of(kind)
    return [[column.header for column in columns], *([row.get(column.name) for column in columns] for row in rows)]


def as_csv(path: Path, block: Block) -> Path:
    with path.with_suffix(".csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([["" if cell is None else cell for cell in row] for row in block])
    return path.with_suffix(".csv")


def as_parquet(path: Path, block: Block) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {}
    for name, *cells in zip(*block, strict=True):
        words = any(isinstance(cell, str) for cell in cells)
        columns[name] = pa.array(
            [None if cell is None else cell if words else float(cell) for cell in cells],
            pa.string() if words else pa.float64(),
        )
    pq.write_table(pa.table(columns), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def as_workbook(path: Path, block: Block) -> Path:
    workbook = Workbook()
    sheet = workbook.active
    assert sheet is not None
    sheet.title = "inference" if any("prompt length" in str(name) for name in block[0]) else "training"
    for row in block:
        sheet.append(row)
    save_workbook(workbook, path.with_suffix(".xlsx"))  # openpyxl alone drops the last digit of some numbers
    return path.with_suffix(".xlsx")


@pytest.mark.parametrize("form", [as_csv, as_parquet, as_workbook])
@pytest.mark.parametrize("kind", KINDS)
def test_any_file_gives_the_same_bits(kind: str, form: Callable[[Path, Block], Path], tmp_path: Path) -> None:
    """The same plans to the last bit, of which there is one result."""
    (plans,) = read_plans(form(tmp_path / "plans", block_of(kind)))
    cells = table_of(kind, rows_of(kind))
    assert (plans.kind, plans.columns.keys()) == (kind, cells.columns.keys())
    assert not any(mask.any() for mask in plans.auto.values()) and not plans.own
    for name, values in cells.columns.items():
        same = values == plans[name]
        if values.dtype == np.float64:
            same |= np.isnan(values) & np.isnan(plans[name])
        hold(f"{name} from {form.__name__[3:]}", same, plans, cells=values, file=plans[name])


@pytest.fixture(scope="module")
def session() -> Session:
    return Session()


def cells_of(kind: str, name: str) -> list[Any]:
    """What cells show of a result: numbers in the unit of the sheet, blank for NaN, flags."""
    column = results_of(kind).by_name[name]
    values = expected(kind)[name]
    if column.is_text:
        return values.tolist()
    shown = (values / unit_of(column).factor).tolist()
    return ["" if value != value else bool(value) if column.kind == "result-flag" else value for value in shown]


@pytest.mark.parametrize("kind", KINDS)
def test_a_spill_gives_the_same_bits(kind: str, session: Session) -> None:
    """XLPERF_TRAINING and XLPERF_INFERENCE for a whole table."""
    names = [column.name for column in results_of(kind).columns if not column.is_text]
    block = session.call(f"XLPERF_{kind.upper()}", [block_of(kind), [[name] for name in names]])
    result = block[-len(rows_of(kind)) :]
    for at, name in enumerate(names):
        assert [_number(row[at]) for row in result] == cells_of(kind, name), name


def _number(cell: Any) -> Any:
    """What a cell shows; nothing where it shows why there is no number."""
    return "" if isinstance(cell, CellError) and cell.code == "#N/A" else cell


@pytest.mark.parametrize("kind", KINDS)
def test_a_cell_of_a_card_gives_the_same_bits(kind: str, session: Session) -> None:
    """One plan as two columns of names and values."""
    names = ("step_time", "cost_per_million_tokens") if kind == "training" else ("ttft", "tpot", "energy_per_token")
    header, *rows = block_of(kind)
    for number in range(0, len(rows), 5):
        card = _card(header, rows[number])
        for name in names:
            ((result,),) = session.call(f"XLPERF_{name.upper()}", [card])
            assert _number(result) == cells_of(kind, name)[number], card


def _card(header: Sequence[Any], row: Sequence[Any]) -> Block:
    return [[name, cell] for name, cell in zip(header, row, strict=True) if cell is not None]


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_writes_the_same_numbers(kind: str, tmp_path: Path, command: Callable[..., Any]) -> None:
    """``xlperf evaluate``: what it writes reads back as the same numbers."""
    plans, out = as_csv(tmp_path / "plans", block_of(kind)), tmp_path / "results.csv"
    assert command("evaluate", plans, "-o", out).code == 0
    with out.open(newline="") as stream:
        header, *rows = csv.reader(stream)
    places = {name.split(" (")[0].replace(" ", "_"): at for at, name in enumerate(header)}
    for name in expected(kind).columns:
        column = results_of(kind).by_name[name]
        if column.is_text or column.kind == "result-flag":
            continue
        written = ["" if not row[places[name]] else float(row[places[name]]) for row in rows]
        assert written == cells_of(kind, name), name
