"""Workbooks and tables as people and other programs make them: what is read, and what is refused in words."""

from __future__ import annotations

import io
import pickle
import re
import tracemalloc
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from conftest import Outcome
from workbook_samples import refused, sheets, write

import xlperf
from xlperf.addin.worker import Session
from xlperf.base.errors import InputError
from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.cells import parse_header
from xlperf.catalog.read import plan_blocks, read_plans
from xlperf.catalog.table import Table

Command = Callable[..., Outcome]
HEADER = ["name", "model", "accelerator", "num accelerators", "prompt length", "output length", "concurrency"]
PLAN = ["a", "Llama3-70B", "H100-SXM-80GB", 8, 1000, 100, 16]


def made(path: Path, rows: Sequence[Sequence[object]], sheet: str = "inference") -> Path:
    """A workbook of one sheet."""
    book = openpyxl.Workbook()
    book.worksheets[0].title = sheet
    for row in rows:
        book.worksheets[0].append(list(row))
    book.save(path)
    return path


def edited(path: Path, part: str, edit: Callable[[str], str]) -> Path:
    """A package with one of its parts changed."""
    with zipfile.ZipFile(path) as package:
        parts = {name: package.read(name) for name in package.namelist()}
    parts[part] = edit(parts[part].decode()).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as package:
        for name, content in parts.items():
            package.writestr(name, content)
    return path


def stored(path: Path, *values: str) -> Path:
    """A workbook whose formulas =1/2 have these values stored, as XlsxWriter and spreadsheet programs do."""
    rows = [[*PLAN[:-1], 16 + number, "=1/2"] for number in range(len(values))]
    left = iter(values)
    return edited(
        made(path, [[*HEADER, "prefix hit rate"], *rows]),
        "xl/worksheets/sheet1.xml",
        lambda text: re.sub(r"(</f>)<v ?/?>(?:</v>)?", lambda found: f"{found[1]}<v>{next(left)}</v>", text),
    )


def test_a_zero_that_stands_for_formulas_nobody_computed_is_refused_by_cell(tmp_path: Path, command: Command) -> None:
    """XlsxWriter stores 0 for a formula and asks for a calculation on load (its manual, "Formula Results")."""
    path = stored(tmp_path / "x.xlsx", "0", "0")
    assert refused(read_plans, path).splitlines()[0] == (
        "x.xlsx [inference!H2]: prefix hit rate is a formula whose value nobody has computed (the file holds 0 for "
        "all); open and save it once in Excel or LibreOffice, or enter a value"
    )
    assert command("evaluate", path).code == 2


@pytest.mark.parametrize("values", [("0.5", "0.5"), ("0", "0.5")])
def test_values_that_were_computed_are_taken(tmp_path: Path, values: tuple[str, ...]) -> None:
    (plans,) = read_plans(stored(tmp_path / "x.xlsx", *values))
    assert plans["prefix_hit_rate"].tolist() == [float(value) for value in values]


def test_zeros_of_a_program_that_calculates_are_taken(tmp_path: Path) -> None:
    """LibreOffice asks for no calculation on load; Excel stores the order of its calculation."""
    path = edited(
        stored(tmp_path / "x.xlsx", "0", "0"), "xl/workbook.xml", lambda text: re.sub("<calcPr.*?/>", "", text)
    )
    assert read_plans(path)[0]["prefix_hit_rate"].tolist() == [0.0, 0.0]
    chain = '<Relationship Id="rId99" Type="http://x/relationships/calcChain" Target="calcChain.xml"/></Relationships>'
    path = stored(tmp_path / "y.xlsx", "0", "0")
    edited(path, "xl/_rels/workbook.xml.rels", lambda text: text.replace("</Relationships>", chain))
    assert read_plans(path)[0]["prefix_hit_rate"].tolist() == [0.0, 0.0]


def test_only_plans_that_use_an_orphan_row_fail_and_the_cell_is_named(tmp_path: Path, command: Command) -> None:
    """A renamed accelerator that a price row still named left every answer of Serve and all 93 plans at #VALUE!."""
    content = sheets()
    content["prices"][1][0] = "H200"
    content["accelerators"][2][6] = "DGX-A10"
    path = write(tmp_path / "own.xlsx", content)
    catalog = load_catalog(path)
    network, price = catalog.orphans.faults
    assert str(price).startswith('own.xlsx [prices!A2]: unknown accelerator "H200"')
    assert str(network).startswith('own.xlsx [accelerators!G3]: unknown network "DGX-A10"')
    plans = "model,accelerator,num accelerators\nllama-2-7b,H100,8\n"
    (tmp_path / "plans.csv").write_text(plans, encoding="utf-8")
    found = command("evaluate", tmp_path / "plans.csv", "--catalog", path, "-o", tmp_path / "out.csv")
    assert found.code == 0
    assert found.err.splitlines()[:2] == [f"note: left out: {network}", f"note: left out: {price}"]
    (tmp_path / "plans.csv").write_text(plans + "llama-2-7b,A100,8\n", encoding="utf-8")
    found = command("evaluate", tmp_path / "plans.csv", "--catalog", path)
    assert found.code == 2
    assert f'plans.csv [line 3, accelerator]: accelerator "A100" cannot be used: {network}\n' in found.err
    found = command("check", path)
    assert found.code == 2
    assert f"{price}\n" in found.err and f"{network}\n" in found.err


def test_cells_of_other_plans_compute_beside_an_orphan_row() -> None:
    session = Session()
    tables = []
    for kind in ("accelerators", "networks", "prices"):
        header, *rows = sheets()[kind]
        tables.append([header, *([float(c) if isinstance(c, int) else c for c in row] for row in rows)])
    tables[2][1][0] = "H200"
    tables[0][2][6] = "DGX-A10"
    ((handle,),) = session.call("XLPERF_CATALOG", tables)

    def cell(function: str, accelerator: str) -> object:
        card = [["model", "Llama3-8B"], ["accelerator", accelerator], ["num accelerators", 8.0]]
        return session.call(function, [card, handle])[0][0]

    assert isinstance(cell("XLPERF_STEP_TIME", "H100"), float)
    said = str(cell("XLPERF_CHECK", "A100"))
    assert said.startswith('training, accelerator: accelerator "A100" cannot be used: accelerators "A100", default net')
    assert 'unknown network "DGX-A10"' in said
    tables[2][1][0] = "H2000"
    ((said,),) = session.call("XLPERF_CHECK", [tables[2][:2]])
    assert said.startswith('prices row 1, price: unknown accelerator "H2000"')
    assert session.call("XLPERF_CHECK", [tables[1]]) == [["ok"]]


def test_what_refers_to_a_row_that_is_left_out_is_left_out_with_it() -> None:
    """A device of an unknown memory, its accelerator and their price are one fault, that of the device."""
    catalog = load_catalog()
    devices = catalog.tables["devices"]
    accelerators = catalog.tables["accelerators"]
    row = int(np.flatnonzero(accelerators["device"] != "")[0])
    named = np.where(devices["device"] == accelerators["device"][row], "HBM9", devices["memory"])
    changed = replace(devices, columns={**devices.columns, "memory": named})
    found = catalog.with_tables([changed, accelerators, catalog.tables["prices"]])
    assert [fault.problem for fault in found.orphans.faults] == ['unknown memory "HBM9"']
    name = accelerators["accelerator"][row]
    asked = Table("training", {"accelerator": np.array([name], dtype=object)})
    with pytest.raises(InputError, match=re.escape(f'accelerator "{name}" cannot be used: xlperf.xlsx [devices!D')):
        found.rows("accelerators", asked["accelerator"], asked, "accelerator")
    with pytest.raises(InputError, match='unknown memory "HBM9"'):
        pickle.loads(pickle.dumps(found)).rows("accelerators", asked["accelerator"], asked, "accelerator")


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".xlsx"])
def test_a_header_alone_has_no_plans(tmp_path: Path, command: Command, ending: str) -> None:
    """A CSV file with the header ``dimension order`` and no rows ended in a traceback."""
    header = ["name", "model", "accelerator", "num accelerators", "dimension order"]
    path = tmp_path / f"plans{ending}"
    if ending == ".xlsx":
        made(path, [header], "training")
    elif ending == ".parquet":
        pyarrow.parquet.write_table(pa.table({name: pa.array([], pa.string()) for name in header}), path)
    else:
        path.write_text(",".join(header) + "\n", encoding="utf-8")
    for output in ("-", tmp_path / "out.csv", tmp_path / "out.parquet", tmp_path / "out.xlsx"):
        found = command("evaluate", path, "-o", output)
        assert (found.code, found.err) == (2, f"plans{ending}: has no plans; fill at least one row\n")
    assert len(xlperf.evaluate(pd.DataFrame(columns=header))) == 0


class _Endless(io.RawIOBase):
    """A stream whose line never ends."""

    def __init__(self) -> None:
        super().__init__()
        self.given = 0

    def read(self, size: int = -1) -> bytes:
        assert 0 < size < 2**26
        self.given += size
        assert self.given < 2**26, "more of an endless line is read than a line may hold"
        return b"x" * size


@pytest.mark.parametrize("read", [read_plans, lambda path: list(plan_blocks(path, 100))])
def test_an_endless_line_is_not_read_to_its_end(read: Callable[[str], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=_Endless()))
    assert refused(read, "-") == (
        "standard input [line 1]: is longer than 4,194,304 characters; a header row and rows of values are meant"
    )


def test_a_header_of_ten_thousand_unknown_columns_takes_little_memory() -> None:
    """It took 616 MB: every column had its own list of known names."""
    header = [*HEADER, *(f"prompt lenght {number}" for number in range(10_000))]
    tracemalloc.start()
    try:
        parse_header("inference", header)
        assert tracemalloc.get_traced_memory()[1] < 32 * 2**20
    finally:
        tracemalloc.stop()
