"""The registry as classic xlwings functions: xlwings' own Windows code, with pywin32 replaced, calls them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from host_calls import odd_calls, odd_faults, plain
from places import SUPPORT

from xlperf.addin.cells import shown_column
from xlperf.addin.functions import PLACES, functions
from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.engine import evaluate

HEADER = ["name", "model", "accelerator", "num accelerators", "tensor parallel", "data parallel"]
NA = -2146826246
"""What COM passes for a cell that holds #N/A."""


@pytest.fixture(scope="module")
def row():
    tables = load_catalog().tables
    accelerator = next(name for name in tables["accelerators"]["accelerator"] if "H100" in name)
    model = next(name for name in tables["models"]["model"] if "8B" in name)
    return ["first", model, accelerator, 8.0, 8.0, 1.0]


@pytest.fixture(scope="module")
def excel(row, tmp_path_factory):
    """What xlwings makes of the functions, and what a few calls return."""
    illegal = ["illegal", *row[1:3], 8.0, 3.0, 1.0]
    card = [list(pair) for pair in zip(HEADER, row, strict=True)]
    formatted = [[name, {"currency": "8"} if name == "num accelerators" else value] for name, value in card]
    formatted = [[name, {"date": "1900-01-07"} if name == "tensor parallel" else value] for name, value in formatted]
    network = [["network", "tier", "size", "link bandwidth (GB/s)", "latency (us)"], ["N", 1.0, 8.0, 100.0, 1.0]]
    calls = {
        "table": ["XLPERF_STEP_TIME", [[HEADER, row, illegal], None, None]],
        "card": ["XLPERF_STEP_TIME", [card, None, None]],
        "row": ["XLPERF_FITS", [[row], "", [HEADER]]],
        "illegal": ["XLPERF_MFU", [[HEADER, illegal], None, None]],
        "error cell": ["XLPERF_MFU", [[HEADER, [*row[:3], NA, *row[4:]]], None, None]],
        "range": ["XLPERF_STEP_TIME", [{"range": [*card, [None, None]]}, None, {"range": [[None]]}]],
        "formats": ["XLPERF_STEP_TIME", [{"range": formatted}, {"empty": ""}, {"empty": ""}]],
        "values": ["XLPERF_STEP_TIME", [formatted, {"empty": ""}, {"empty": ""}]],
        "cells": ["XLPERF_DIE_YIELD", [{"range": [[{"currency": "814"}]]}, {"range": [[0.1]]}, None, None, None, None]],
        "numbers": ["XLPERF_DIE_YIELD", [814.0, 0.1, None, None, None, None]],
        "too few": ["XLPERF_STEP_TIME", []],
        "too many": ["XLPERF_STEP_TIME", [card, None, None, None, None, 1.0]],  # after the places of plan and header
        "error argument": ["XLPERF_STEP_TIME", [NA, None, None]],
        "two tables": ["XLPERF_CATALOG", [{"range": network}, network]],
        "no table": ["XLPERF_CATALOG", []],
        "no number": ["XLPERF_DIE_YIELD", ["wide", 0.1, None, None, None, None]],
        "text number": ["XLPERF_DIE_YIELD", ["814", 0.1, None, None, None, None]],
        "check": ["XLPERF_CHECK", [[HEADER, illegal], None, None]],
        "block": ["XLPERF_TRAINING", [[HEADER, row], "name,step time,mfu", None, None]],
        "catalog": ["XLPERF_CATALOG", [network]],
        "no catalog": ["XLPERF_CATALOG", [[[1.0, 2.0, 3.0]]]],
        "version": ["addin_task", ["version", "0.0.1"]],
        "check of another version": ["XLPERF_CHECK", [card, None, None]],
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "xlwings_windows.py")],
        input=json.dumps(list(calls.values())),
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))},
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return {**answer, "returned": dict(zip(calls, answer["returned"], strict=True))}


def test_every_function_of_the_registry_is_one_of_xlwings(excel):
    assert list(excel["about"]) == ["addin_task", *functions()]
    for name, function in functions().items():
        about = excel["about"][name]
        assert about["name"] == name
        assert about["doc"] == function.doc
        assert about["category"] == function.category
        assert about["volatile"] is False
        expected = [[one.name, one.doc, one.optional, one.repeated] for one in function.arguments]
        assert about["arguments"][: len(expected)] == expected
        assert [one[0] for one in about["arguments"][len(expected) :]] == list(PLACES) * function.is_per_plan


def test_the_vba_that_xlwings_writes_has_every_function(excel):
    for name, function in functions().items():
        (line,) = [line for line in excel["wrapper"].splitlines() if line.startswith(f"Function {name}(")]
        for argument in function.arguments:
            assert argument.name in line
    assert "ParamArray table()" in excel["wrapper"]


def test_calls_return_what_the_engine_computes(excel, row):
    illegal = ["illegal", *row[1:3], 8, 3, 1]
    results = evaluate(table_from_rows("training", HEADER, [row, illegal]), load_catalog())
    time = shown_column(results, "step_time")[0]
    reason = results["reason"][1]
    returned = excel["returned"]
    assert returned["table"] == [[time], ["#N/A"]]
    assert returned["card"] == [[time]]
    assert returned["row"] == [[shown_column(results, "fits")[0]]]
    assert returned["illegal"] == [["#N/A"]]
    assert returned["check"] == [[reason]]
    assert returned["block"] == [["name", "step time (s)", "mfu"], ["first", time, shown_column(results, "mfu")[0]]]


def test_errors_are_codes(excel):
    """The add-in's VBA makes error values of them; XLPERF_CHECK says them in words."""
    returned = excel["returned"]
    for call in (
        "error cell",
        "no catalog",
        "too few",
        "too many",
        "error argument",
        "no table",
        "no number",
        "text number",
    ):
        assert returned[call] in ([["#VALUE!"]], [["#N/A"]]), call
    assert returned["catalog"][0][0].startswith("xlperf:")
    assert returned["two tables"] == [["#VALUE!"]]


def test_an_add_in_of_another_version_is_named(excel):
    ((words,),) = excel["returned"]["version"]
    assert words.startswith("The add-in is of xlperf 0.0.1 ") and words.endswith(": run xlperf install excel")
    assert excel["returned"]["check of another version"][0][0].endswith(f"; {words}")


def test_ranges_are_read_whatever_their_format(excel):
    """Currency cells come as Decimal, dates as datetime, from ranges and as values: both are numbers."""
    returned = excel["returned"]
    assert returned["range"] == returned["formats"] == returned["values"] == returned["card"]
    assert returned["cells"] == returned["numbers"]
    assert returned["numbers"][0][0] > 0


@pytest.mark.parametrize("in_table", [True, False], ids=["in a table of Excel", "on a sheet"])
def test_plans_of_a_table_are_evaluated_together(row, in_table, tmp_path):
    """Rows that are blank or faulty, and an error cell, among them."""
    rows = [[f"plan {number}", *row[1:3], 8.0 * (number + 1), 8.0, number + 1.0] for number in range(200)]
    rows[70][1], rows[90][5], rows[130] = "no such model", "#N/A", [{"empty": ""}] * 6
    table = {
        "rows": [HEADER, *rows],
        "in_table": in_table,
        "catalog": None,
        "functions": ["XLPERF_STEP_TIME", "XLPERF_MFU", "XLPERF"],
    }
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "xlwings_windows.py")],
        input=json.dumps(table),
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    result = [block[0][0] for block in answer["returned"]]
    sound = [number for number in range(200) if number not in (70, 90, 130)]
    results = evaluate(table_from_rows("training", HEADER, [rows[number] for number in sound]), load_catalog())
    for first, name in ((0, "step_time"), (200, "mfu"), (400, "memory")):
        assert [result[first + number] for number in sound] == shown_column(results, name)
        assert [result[first + number] for number in (70, 90)] == ["#VALUE!"] * 2
        assert result[first + 130] in (None, "")
    assert len(answer["evaluated"]) < 30, "evaluations of 600 cells"
    assert answer["reads"] <= 4


def test_no_argument_leads_to_a_traceback(tmp_path, monkeypatch):
    """Every function with odd arguments of every kind, too few and too many of them: what the engine answers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    odd = odd_calls()
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "xlwings_windows.py")],
        input=json.dumps([[name, [com_cells(one) for one in arguments]] for name, arguments in odd.values()]),
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (
        odd_faults({call: plain(rows) for call, rows in zip(odd, json.loads(done.stdout)["returned"], strict=True)})
        == []
    )


def com_cells(argument):
    """An argument with its empty cells as the stand-in of COM reads them."""
    if not isinstance(argument, list):
        return argument
    return [[{"empty": ""} if cell is None else cell for cell in row] for row in argument]


def test_nothing_is_imported_that_is_not_free_to_use(excel):
    assert excel["not_free"] == []


def test_on_other_systems_the_module_is_plain_python(row, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    from xlperf.addin import xlwings_functions

    results = evaluate(table_from_rows("training", HEADER, [row]), load_catalog())
    assert xlwings_functions.XLPERF_MFU([HEADER, row]) == shown_column(results, "mfu")[0]
