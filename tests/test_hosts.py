"""Every host that evaluates here gives the same answer to the same call, to the last bit: ``host_calls.py``."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import openpyxl
import pandas as pd
import pytest
from host_calls import calls, expected, plain
from libreoffice_office import Office, python_with_uno
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.formula import ArrayFormula

import xlperf
from xlperf.addin.libreoffice import install
from xlperf.cli.app import run

BLOCKS = [call for call in calls() if call.startswith("all of")]


@pytest.fixture(scope="module")
def answers():
    return expected()


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def frame_of(call):
    """The plans of a call as a DataFrame."""
    rows = calls()[call][1][0]
    if len(rows[0]) == 2:  # a card
        return pd.DataFrame([dict(rows)])
    return pd.DataFrame(rows[1:], columns=rows[0])


def cells(values):
    """Results of a DataFrame or a CSV as a host shows them."""
    return [["" if pd.isna(value) else value for value in row] for row in values]


def test_the_table_holds_every_shape_of_answer(answers):
    shapes = {(len(rows) > 1, len(rows[0]) > 1) for rows in answers.values()}
    assert shapes == {(False, False), (True, False), (False, True), (True, True)}
    kinds = {type(cell) for rows in answers.values() for row in rows for cell in row}
    assert kinds == {float, str}
    assert {"#N/A", "#VALUE!"} <= {cell for rows in answers.values() for row in rows for cell in row}


@pytest.mark.parametrize("call", BLOCKS)
def test_pandas(answers, call):
    header, *rows = answers[call]
    found = xlperf.evaluate(frame_of(call))[header]
    assert plain(cells(found.astype(object).values.tolist())) == [["" if c == "#N/A" else c for c in r] for r in rows]


@pytest.mark.parametrize("call", BLOCKS)
def test_command_line(answers, call, tmp_path):
    frame_of(call).to_csv(tmp_path / "plans.csv", index=False)
    assert run(["evaluate", str(tmp_path / "plans.csv"), "-o", str(tmp_path / "results.csv")]) == 0
    with (tmp_path / "results.csv").open(encoding="utf-8-sig", newline="") as stream:
        found = list(csv.DictReader(stream))
    header, *rows = answers[call]
    for row, line in zip(rows, found, strict=True):
        for name, cell in zip(header, row, strict=True):
            if isinstance(cell, str):
                assert line[name] == ("" if cell == "#N/A" else cell)
            else:
                assert {"TRUE": 1.0, "FALSE": 0.0}.get(line[name].upper()) == cell or float(line[name]) == cell


def test_xlwings(answers):
    """xlwings' own Windows code, arguments as Ranges of Excel."""

    def given(argument):
        return argument if argument is None else {"range": argument if isinstance(argument, list) else [[argument]]}

    lines = [[name, [given(argument) for argument in arguments]] for name, arguments in calls().values()]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("xlwings_windows.py"))],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["returned"]
    assert {call: plain(rows) for call, rows in zip(calls(), found, strict=True)} == answers


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or shutil.which("soffice") is None or python_with_uno() is None,
    reason="LibreOffice with uno is not installed",
)
def test_libreoffice(answers, tmp_path):
    book = openpyxl.Workbook()
    for number, (call, (name, arguments)) in enumerate(calls().items()):
        sheet = book.create_sheet(f"c{number}")
        column, given = 1, []
        for argument in arguments:
            rows = argument if isinstance(argument, list) else [[argument]]
            for row, values in enumerate(rows, 1):
                for place, value in enumerate(values):
                    sheet.cell(row, column + place, value).data_type = "s" if isinstance(value, str) else "n"
            end = f"{get_column_letter(column + len(rows[0]) - 1)}{len(rows)}"
            given.append("" if argument is None else f"{get_column_letter(column)}1:{end}")
            column += len(rows[0])
        area = f"A101:{get_column_letter(len(answers[call][0]))}{100 + len(answers[call])}"
        sheet["A101"] = ArrayFormula(area, f"={name}({','.join(given)})")
    book.save(tmp_path / "calls.xlsx")
    office = Office(tmp_path)
    install(office.options)
    office.start()
    try:
        office.open(tmp_path / "calls.xlsx")
        office("recalculate")
        found = {}
        for number, (call, rows) in enumerate(answers.items()):
            area = f"A101:{get_column_letter(len(rows[0]))}{100 + len(rows)}"
            found[call] = plain(office.values(f"c{number}", area))
    finally:
        office.end()
    assert found == answers
