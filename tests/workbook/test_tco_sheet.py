"""The sheet ``tco``: plain formulas give what the engine gives, with and without the choices of a user."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pytest
from shipped import shipped_tables

from xlperf.base.units import YEAR, factor
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.schema import PLAN_TABLES
from xlperf.catalog.table import Table
from xlperf.explore.search import evaluate_resolved
from xlperf.workbook import build
from xlperf.workbook.build import workbook_package
from xlperf.workbook.data_sheets import table_of
from xlperf.workbook.front import start
from xlperf.workbook.plain_formulas import TOP

POOLS = {"model": "Meta-Llama-3.1-70B", "num_accelerators": 12, "software": "vllm", "tensor_parallel": 4,
         "prompt_length": 1024, "output_length": 256, "mode": "disaggregated", "concurrency": 32}  # fmt: skip
UNLIKE = [
    {**POOLS, "name": "A100 beside B200", "accelerator": "B200-SXM-180GB", "prefill_accelerators": 8,
     "prefill_accelerator": "A100-SXM4-80GB", "prefill_tensor_parallel": 8},
    {**POOLS, "name": "half and half", "num_accelerators": 8, "accelerator": "B200-SXM-180GB",
     "prefill_accelerator": "H200-SXM-141GB"},
    {**POOLS, "name": "no price", "accelerator": "B200-SXM-180GB", "prefill_accelerators": 8,
     "prefill_accelerator": "H20-96GB", "prefill_tensor_parallel": 8},
]  # fmt: skip


@cache
def _tables() -> dict[str, Table]:
    """The shipped sheets with every third plan, and plans whose pools have unlike accelerators."""
    tables = dict(shipped_tables())
    tables |= {kind: tables[kind].take(np.arange(0, len(tables[kind]), 3)) for kind in PLAN_TABLES}
    own, more = tables["inference"], table_of("inference", UNLIKE)
    columns = {name: np.concatenate([values, more[name]]) for name, values in own.columns.items()}
    auto = {name: np.concatenate([mask, np.zeros(len(more), dtype=bool)]) for name, mask in own.auto.items()}
    return {**tables, "inference": Table("inference", columns, own.place, auto)}


@pytest.fixture(scope="module")
def built() -> bytes:
    """Without front sheets, whose forms take a minute to answer, and without checks, which take LibreOffice one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start, "question_sheets", lambda *_: None)
        patch.setattr(build, "checks_sheet", lambda *_: None)
        return workbook_package(_tables())


def _expected(catalog: Catalog) -> list[tuple[str, float]]:
    """Name and USD per million tokens of every plan: all output tokens carry what their prompts cost."""
    rows = []
    for kind in PLAN_TABLES:
        plans = _tables()[kind]
        plans, results = evaluate_resolved(plans, catalog)
        if kind == "training":
            cost = results["cost_per_million_tokens"]
        else:
            cost = results["cost_per_million_output_tokens_all_in"]
        rows += list(zip(plans["name"], cost / factor("USD/Mtoken"), strict=True))
    return rows


def _owned(catalog: Catalog, **changed: float) -> Catalog:
    prices = catalog.tables["prices"]
    columns = {**prices.columns, "rental_price": np.full(len(prices), np.nan)}
    columns |= {name: np.full(len(prices), value) for name, value in changed.items()}
    return catalog.with_tables([Table("prices", columns, prices.place)])


def _shown(data: bytes | Path) -> list[tuple[str, Any]]:
    source = io.BytesIO(data) if isinstance(data, bytes) else data
    sheet = openpyxl.load_workbook(source, data_only=True, read_only=True)["tco"]
    return [(row[0], row[14]) for row in sheet.iter_rows(min_row=TOP, values_only=True) if row[1]]


def _agree(shown: list[tuple[str, Any]], expected: list[tuple[str, float]]) -> None:
    assert [name for name, _ in shown] == [name for name, _ in expected]
    for (name, got), (_, wanted) in zip(shown, expected, strict=True):
        if np.isnan(wanted):
            assert got in (None, ""), name
        else:
            assert got == pytest.approx(wanted, rel=1e-9), name


def test_values_beside_the_formulas_are_those_of_the_engine(built: bytes) -> None:
    expected = _expected(load_catalog())
    assert sum(not np.isnan(cost) for _, cost in expected) >= 30
    assert np.isnan([cost for _, cost in expected[-3:]]).tolist() == [False, False, True]
    _agree(_shown(built), expected)


def _bare(built: bytes, bare: Path, chosen: dict[str, str]) -> Path:
    """The sheet without its values, yellow cells filled."""
    book = openpyxl.load_workbook(io.BytesIO(built), read_only=True)
    part = f"xl/worksheets/sheet{book.sheetnames.index('tco') + 1}.xml"
    with zipfile.ZipFile(io.BytesIO(built)) as source, zipfile.ZipFile(bare, "w") as target:
        for name in source.namelist():
            text = source.read(name)
            if name == part:
                sheet = re.sub(r' t="str">(<f>.*?</f>)<v>[^<]*</v>|(</f>)<v>[^<]*</v>',
                               lambda m: f">{m[1]}<v/>" if m[1] else f"{m[2]}<v/>", text.decode())  # fmt: skip
                for cell, value in chosen.items():
                    kind = "" if value.replace(".", "").isdigit() else ' t="inlineStr"'
                    inner = f"<v>{value}</v>" if not kind else f"<is><t>{value}</t></is>"
                    empty = rf'<c r="{cell}"( s="\d+")?[^>]*?/>'
                    sheet, count = re.subn(empty, rf'<c r="{cell}"\1{kind}>{inner}</c>', sheet)
                    assert count == 1, cell
                text = sheet.encode()
            target.writestr(name, text)
    return bare


def test_native_formulas_equal_the_engine_and_follow_the_yellow_cells(
    built: bytes, converted: Callable[..., Path], tmp_path: Path
) -> None:
    """As they are, and owned for 3 years, 70 percent used, 12 cents, a PUE of 1.4: as the engine with such prices.

    One LibreOffice without the add-in calculates both.
    """
    chosen = {"C5": "own", "C6": "3", "C7": "0.7", "C8": "0.12", "C9": "1.4"}
    plain, owned = _bare(built, tmp_path / "plain.xlsx", {}), _bare(built, tmp_path / "owned.xlsx", chosen)
    calculated = converted(tmp_path, "xlsx", plain, owned)
    _agree(_shown(calculated / "plain.xlsx"), _expected(load_catalog()))
    catalog = _owned(load_catalog(), life=3 * YEAR, utilization=0.7, energy_price=0.12 * factor("USD/kWh"),
                     power_usage_effectiveness=1.4)  # fmt: skip
    _agree(_shown(calculated / "owned.xlsx"), _expected(catalog))
