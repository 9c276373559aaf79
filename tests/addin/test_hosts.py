"""Every host that evaluates here gives the same answer to the same call, to the last bit: ``host_calls.py``."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from functools import cache

import openpyxl
import pandas as pd
import pytest
from host_calls import ERRORS, NA, ODD, SAYS, calls, example, expected, plain
from libreoffice_office import Office
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.formula import ArrayFormula
from places import SUPPORT

import xlperf
from xlperf.addin.functions import functions
from xlperf.addin.libreoffice import install
from xlperf.addin.worker import Session
from xlperf.cli.app import run
from xlperf.workbook.front.question import functions_sheet
from xlperf.workbook.style import add_styles

SEARCHED = ("XLPERF_DAY", "XLPERF_FLEET", "XLPERF_RL", "XLPERF_SESSIONS")
"""Functions whose example takes a second or more: LibreOffice answers them in test_libreoffice_workbook.py."""
BLOCKS = [call for call in calls() if call.startswith("all of")]


@pytest.fixture(scope="module")
def answers():
    return expected()


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
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


@cache
def answered_example(name):
    """What the example of a function gives."""
    return plain(Session().call(*example(name)))


@pytest.mark.parametrize("name", functions())
def test_every_function_has_an_example_that_works(name):
    cells = [cell for row in answered_example(name) for cell in row]
    assert cells
    assert not [cell for cell in cells if isinstance(cell, str) and cell.startswith("#")]


def test_the_reference_sheet_shows_the_examples(tmp_path):
    """Each example of the sheet reads the cells that stand beside it."""
    book = openpyxl.Workbook()
    add_styles(book)
    sheet = functions_sheet(book)
    shown = {sheet.cell(row, 1).value: row for row in range(6, 6 + len(functions()))}
    assert list(shown) == list(functions())
    for name, row in shown.items():
        text = sheet.cell(row, 4).value
        places = re.findall(r"[A-Z]+[0-9]+:[A-Z]+[0-9]+", text)
        read = [[[cell.value for cell in line] for line in sheet[place]] for place in places]
        assert read == [one for one in example(name)[1] if isinstance(one, list)], name


def test_the_table_holds_every_shape_of_answer(answers):
    shapes = {(len(rows) > 1, len(rows[0]) > 1) for rows in answers.values()}
    assert shapes == {(False, False), (True, False), (False, True), (True, True)}
    kinds = {type(cell) for rows in answers.values() for row in rows for cell in row}
    assert kinds == {float, str}
    assert {"#N/A", "#VALUE!"} <= {cell for rows in answers.values() for row in rows for cell in row}


@pytest.mark.parametrize("call", BLOCKS)
def test_pandas(answers, call):
    header, *rows = answers[call]
    result = xlperf.evaluate(frame_of(call))[header]
    assert plain(cells(result.astype(object).values.tolist())) == [["" if c == "#N/A" else c for c in r] for r in rows]


@pytest.mark.parametrize("call", BLOCKS)
def test_command_line(answers, call, tmp_path):
    frame_of(call).to_csv(tmp_path / "plans.csv", index=False)
    assert run(["evaluate", str(tmp_path / "plans.csv"), "-o", str(tmp_path / "results.csv")]) == 0
    with (tmp_path / "results.csv").open(encoding="utf-8-sig", newline="") as stream:
        result = list(csv.DictReader(stream))
    header, *rows = answers[call]
    for row, line in zip(rows, result, strict=True):
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
        [sys.executable, str(SUPPORT / "xlwings_windows.py")],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)["returned"]
    assert {call: plain(rows) for call, rows in zip(calls(), result, strict=True)} == answers


def test_libreoffice(driven, answers, tmp_path):
    short = [name for name in functions() if name not in SEARCHED]
    wanted = answers | {name: answered_example(name) for name in short}
    given = calls() | {name: example(name) for name in short}
    book = openpyxl.Workbook()
    for number, (call, (name, arguments)) in enumerate(given.items()):
        put_call(book.create_sheet(f"c{number}"), name, arguments, area_of(wanted[call]))
    odd = odd_sheet(book)
    book.save(tmp_path / "calls.xlsx")
    office = Office(tmp_path)
    install(office.options)
    office.start()
    try:
        office.open(tmp_path / "calls.xlsx")
        office("recalculate")
        result = {call: plain(office.values(f"c{n}", area_of(rows))) for n, (call, rows) in enumerate(wanted.items())}
        shown = [row[0] for row in office.values("odd", f"T1:T{len(odd)}")]
    finally:
        office.end()
    for call, rows in result.items():
        if "error cell" in call:  # LibreOffice hands no range with an error to any add-in
            assert {cell for row in rows for cell in row} == {"Err:504"}, call
        else:
            assert rows == wanted[call], call
    errors = {*ERRORS, "Err:504", "Err:509", "Err:511"}  # the last two: too many and too few arguments
    words = [call for call, cell in zip(odd, shown, strict=True) if isinstance(cell, str) and cell not in errors]
    assert [call for call in words if not call.startswith(SAYS)] == []
    assert not any("Traceback" in str(cell) or "internal" in str(cell) for cell in shown)
    numbers = [call for call, cell in zip(odd, shown, strict=True) if not isinstance(cell, str)]
    assert [call for call in numbers if not call.endswith(": flag")] == []  # TRUE is 1 there


def area_of(rows):
    return f"A101:{get_column_letter(len(rows[0]))}{100 + len(rows)}"


def put(sheet, row, column, value):
    cell = sheet.cell(row, column, "=NA()" if value == NA else value)
    cell.data_type = "f" if value == NA else "s" if isinstance(value, str) else "n"


def put_call(sheet, name, arguments, area):
    """Write the arguments of a call from A1 on, and the call as an array formula below them."""
    column, given = 1, []
    for argument in arguments:
        rows = argument if isinstance(argument, list) else [[argument]]
        for row, values in enumerate(rows, 1):
            for place, value in enumerate(values):
                put(sheet, row, column + place, value)
        end = f"{get_column_letter(column + len(rows[0]) - 1)}{len(rows)}"
        given.append("" if argument is None else f"{get_column_letter(column)}1:{end}")
        column += len(rows[0])
    sheet["A101"] = ArrayFormula(area, f"={name}({','.join(given)})")


def odd_sheet(book):
    """Every function with odd arguments, one call in a row; what each call is."""
    sheet, places = book.create_sheet("odd"), {}
    for what, value in ODD.items():
        rows, top = value if isinstance(value, list) else [[value]], 6 * len(places) + 1
        for row, values in enumerate(rows, top):
            for column, cell in enumerate(values, 1):
                put(sheet, row, column, cell)
        places[what] = f"$A${top}:${get_column_letter(len(rows[0]))}${top + len(rows) - 1}"
    odd = []
    for name, function in functions().items():
        count = len(function.arguments)
        given = {what: [place] * count for what, place in places.items()}
        for what, arguments in {**given, "too few": [], "too many": ["5"] * (count + 2)}.items():
            odd.append(f"{name}: {what}")
            sheet.cell(len(odd), 20, f"={name}({','.join(arguments)})")
    return odd
