"""Workbooks and tables as people and other programs make them: what is read, and what is refused in words."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import openpyxl
import pytest
from conftest import Outcome
from workbook_samples import refused

from xlperf.catalog.read import read_plans

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
