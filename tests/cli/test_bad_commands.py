"""What a command is given and cannot use, or uses in part, is said: names, sheets, catalogs, streams, formulas."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openpyxl
import pytest
from conftest import Outcome
from workbook_samples import set_cell, sheets, write

import xlperf
from xlperf.addin.worker import Session, answer, serve
from xlperf.base.errors import Fault, InputError, nearest
from xlperf.base.resources import workbook
from xlperf.catalog.parse import table_from_columns, table_from_rows
from xlperf.catalog.read import read_plans
from xlperf.cli.app import cli
from xlperf.cli.table_files import shown

Command = Callable[..., Outcome]
PLANS = "name,model,accelerator,num accelerators,tensor parallel\n"
PLAN = "first,Llama3-70B,H100-SXM-80GB,64,8\n"


@pytest.fixture
def plans(tmp_path: Path) -> Path:
    path = tmp_path / "plans.csv"
    path.write_text(PLANS + PLAN)
    return path


# --- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("H100", "did you mean H100-SXM-80GB, H100-PCIe-80GB, DGX-H100?"),
        ("sxm 80gb", "did you mean H100-SXM-80GB?"),
        ("h10", "did you mean H100-SXM-80GB, H100-PCIe-80GB, DGX-H100?"),
        ("DGX H10O", "did you mean DGX-H100?"),
        ("", "known: H100-SXM-80GB, H100-PCIe-80GB, DGX-H100, A30"),
        ("S", "known: H100-SXM-80GB, H100-PCIe-80GB, DGX-H100, A30"),
    ],
)
def test_names_that_start_alike_come_before_those_spelled_alike(name: str, hint: str) -> None:
    assert nearest(name, ["H100-SXM-80GB", "H100-PCIe-80GB", "DGX-H100", "A30"]) == hint


def test_names_with_commas_are_distinguishing_columns() -> None:
    assert nearest("on 8", ["GPT, on 8 A100", "Llama, on 64"]) == 'did you mean "GPT, on 8 A100"?'


def test_a_name_of_two_plans_is_not_one_of_them(plans: Path, command: Command) -> None:
    plans.write_text(PLANS + PLAN + "second,Llama3-70B,H100-SXM-80GB,64,4\n" + PLAN.replace("first", "FIRST"))
    found = command("explain", plans, "--name", "first")
    assert found.code == 2
    assert found.err == (
        f'{plans}: 2 plans are named "first", at plans.csv [line 2, name] and plans.csv [line 4, name]; '
        "give --sheet and --row\n"
    )
    assert command("explain", plans, "--name", "second").code == 0


def test_an_explanation_of_a_plan_that_cannot_be_is_its_reason(plans: Path, command: Command) -> None:
    plans.write_text(PLANS + PLAN.replace(",8\n", ",7\n"))
    found = command("explain", plans)
    assert (found.code, found.out) == (1, "")
    assert found.err.startswith("plans.csv [line 2, name]: ") and "tensor" in found.err
    assert len(found.err.splitlines()) == 1


def test_owners_that_no_server_has(plans: Path, command: Command) -> None:
    found = command("cost", plans, "--owner", "neoclod")
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith('--owner: no server has "neoclod" in its name; ')
    assert command("cost", plans, "--owner", "Neocloud").code == 0


def test_a_tornado_of_another_sheet_names_it(command: Command) -> None:
    found = command("cost", workbook(), "--tornado", "cost rate")
    assert (found.code, found.err) == (
        2,
        '--tornado: "cost rate" is no result of chiplets; it is one of the sheet servers\n',
    )


def test_a_command_that_is_none(command: Command) -> None:
    shown = command("explane").err
    assert shown == "xlperf: no such command 'explane'. Did you mean 'explain'? see \"xlperf --help\"\n"
    alike = "no such option --power; did you mean --power-usage-effectiveness or --facility-power-limit?"
    assert alike in command("serve", "--power", "1").err
    assert command("evaluate", "plans.csv", "-o", "").err == "--output: is blank; give a file name\n"
    column = "no such option --accelerator; write --set 'accelerator=...'"
    assert column in command("launch", "--read", "train.sh", "--accelerator", "H100").err


@pytest.mark.parametrize("number", ["0", "-1", "nan", "inf", "1e300", "x"])
def test_numbers_of_options_are_finite_and_in_their_range(command: Command, tmp_path: Path, number: str) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "llama", "num_hidden_layers": 2}')
    shown = command("add", "model", config, "--parameters", number)
    assert (shown.code, shown.out) == (2, "") and shown.err.count("\n") == 1 and "--parameters" in shown.err
    shown = command("search", config, "--target", "fits", "--probability", number)
    assert shown.code == 2 and "--probability" in shown.err


def test_options_of_a_form_have_the_names_that_its_sheet_takes(command: Command) -> None:
    asked = ["--users", "100", "--model", "Llama3-8B", "--json"]
    names = ["--software", "vllm", "--prompt-length", "900", "--speed-per-user", "20"]
    answer = command("serve", *asked, *names)
    assert answer.code == 0
    assert command("serve", *asked, "--engine", "vllm", "--isl=900", "--interactivity", "20").out == answer.out
    assert "unexpected extra arguments (--isl 2)" in command("serve", "--", "--isl", "2").err


@pytest.mark.parametrize(
    ("asked", "option"),
    [
        ("serve --isl", "--prompt-length"), ("serve --pue", "--power-usage-effectiveness"),
        ("rl --gpus", "--num-accelerators"),
        ("serve --people", "--users"), ("day --rps", "--request-rate"), ("fleet --electricity-price", "--energy-price"),
        ("train --tp", "--tensor-parallel"), ("sessions --gpu", "--accelerator"), ("chip --osl", "--output-length"),
    ],
)  # fmt: skip
def test_an_option_as_the_trade_calls_it_is_the_one_of_its_name_here(asked: str, option: str) -> None:
    task = cli.tasks()[asked.split()[0]]
    assert task.make_context("xlperf", [asked.split()[1], "1"]).params[option[2:].replace("-", "_")]
    name, _, word = asked.partition(" --")
    with pytest.raises(xlperf.InputError, match=f"did you mean {option[2:].replace('-', '_')}"):
        getattr(xlperf, name)(**{word.replace("-", "_"): 1})


# --- sheets that are not read --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("accelerators", "hardware of 2026", True),  # known by the table on it
        ("accelerators", "Accelerator", True),
        ("training", "my training", True),
        ("training", " Training ", False),
        ("start", "accelerators (old)", False),
    ],
)
def test_a_renamed_sheet_is_named_wherever_it_is_left_out(
    old: str, new: str, said: bool, tmp_path: Path, command: Command
) -> None:
    path = tmp_path / "study.xlsx"
    plan = {"name": "a", "model": "Llama3-8B", "accelerator": "H100-SXM-80GB", "num accelerators": 8}
    served = {**plan, "prompt length": 1000, "output length": 100}
    content = {"accelerators": sheets()["accelerators"]}
    content["accelerators"][1][0] = plan["accelerator"]
    content |= {kind: [list(row), list(row.values())] for kind, row in (("training", plan), ("inference", served))}
    book = openpyxl.load_workbook(write(path, {"start": [["notes"], ["of mine"]], **content}))
    book[old].title = new
    book.save(path)
    line = f"study.xlsx [{new}]: the sheet is not read; if {old} is meant, give it that name\n"
    found = command("evaluate", path, "--sheet", "inference", "-o", tmp_path / "out.csv")
    written = f"{tmp_path / 'out.csv'}: 1 inference plan\n"
    assert (found.code, found.out, found.err) == (0, "", (f"note: {line}" if said else "") + written)
    assert (line.replace("the sheet", "doubtful: the sheet").strip() in command("check", path).out) is said


def test_a_new_workbook_has_no_sheet_that_seems_forgotten(tmp_path: Path, command: Command) -> None:
    command("new", tmp_path / "mine.xlsx", "--empty")
    assert "is not read" not in command("check", tmp_path / "mine.xlsx").out


def test_a_catalog_without_any_sheet_of_a_catalog(tmp_path: Path, plans: Path, command: Command) -> None:
    content = {name: rows for name, rows in sheets().items() if name == "training"}
    other = write(tmp_path / "other.xlsx", {**content, "Sheet1": [["a", "b"], [1, 2]]})
    for name in ("evaluate", "explain", "cost"):
        found = command(name, plans, "--catalog", other)
        assert (found.code, found.out) == (2, "")
        assert found.err.startswith("other.xlsx: has no sheet of a catalog: accelerators, networks, models, prices, ")


# --- numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [2.0**51, 1e300, 9007199254740993])
def test_counts_that_are_no_longer_exact_are_refused(value: float) -> None:
    words = "beyond what can be computed with"
    header = ["model", "accelerator", "num accelerators"]
    with pytest.raises(InputError, match=words):
        table_from_rows("training", header, [["a", "b", value]])
    with pytest.raises(InputError, match=words):
        table_from_columns(
            "training", {**dict.fromkeys(header, np.array(["a"])), "num accelerators": np.array([value])}
        )
    assert table_from_rows("training", header, [["a", "b", 2.0**50]])["num_accelerators"][0] == 2.0**50


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1e200, "must be at most 250 (TB/s), got 1e+200"),
        (1e-200, "must be a number above 0 (TB/s), got 1e-200, beyond what can be computed with"),
    ],
)
def test_sizes_from_which_no_time_follows_are_refused(
    value: float, words: str, tmp_path: Path, command: Command
) -> None:
    found = command("check", write(tmp_path / "xlperf.xlsx", set_cell(sheets(), "accelerators!E2", value)))
    assert found.err == f"xlperf.xlsx [accelerators!E2]: memory bandwidth {words}\n"


def test_numbers_come_back_as_they_were_entered(command: Command, tmp_path: Path) -> None:
    """15 USD/GB is 1.5e-8 USD/B inside, which is 15.000000000000002 when it is multiplied out."""
    entered = [15.0, 8.3, 0.1 + 0.2, 1.0 / 3.0, 141.0]
    rows = [[f"chip {n}", "CoWoS-S", "5 nm", 800, price] for n, price in enumerate(entered)]
    table = table_from_rows("chiplets", ["chiplet", "package", "node", "module area", "memory price"], rows)
    assert table["memory_price"][0] / 1e-9 != 15.0
    back = shown(table.schema.by_name["memory_price"], table["memory_price"])
    assert back[[0, 1, 4]].tolist() == [15.0, 8.3, 141.0]
    np.testing.assert_array_equal(back * 1e-9, table["memory_price"])


# --- CSV -----------------------------------------------------------------------------------------------------------

FORMULAS = ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "'=1", "-x", "=", "+"]
NONE = ["-", "-2", "+2.5e3", "plain", "'quoted'", "a=b"]


def test_no_text_of_a_csv_file_is_a_formula_and_all_come_back(tmp_path: Path, command: Command) -> None:
    path, again = tmp_path / "plans.csv", tmp_path / "again.csv"
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["name", "model", "accelerator", "num accelerators"])
        writer.writerows([name, "Llama3-70B", "H100-SXM-80GB", 64] for name in FORMULAS + NONE)
    names = read_plans(path)[0]["name"].tolist()
    assert command("evaluate", path, "-o", again).code == 0
    with again.open(newline="") as stream:
        cells = [row[0] for row in csv.reader(stream)][1:]
    assert [cell[:1] for cell in cells] == ["'"] * (len(FORMULAS) - 1) + ["+"] + [name[:1] for name in NONE]
    assert read_plans(again)[0]["name"].tolist() == names
    assert {"=cmd|' /C calc'!A0", "-2+3", "=1", "plain", "'quoted'"} <= set(names)


def test_no_text_of_a_workbook_is_a_formula(tmp_path: Path, command: Command) -> None:
    path = tmp_path / "plans.csv"
    path.write_text(PLANS + PLAN.replace("first", "=1+1") + PLAN.replace("first", "@SUM(A1)"))
    for name in ("evaluate", "cost", "report"):
        assert command(name, path, "-o", tmp_path / f"{name}.xlsx").code == 0
        book = openpyxl.load_workbook(tmp_path / f"{name}.xlsx")
        cells = [cell for sheet in book for row in sheet.iter_rows() for cell in row]
        assert any(cell.value == "=1+1" for cell in cells)
        assert all(cell.data_type == "s" for cell in cells if cell.value in ("=1+1", "@SUM(A1)"))


@pytest.mark.parametrize("separator", [";", ",", "\t", "|"])
def test_the_separator_that_a_file_states_is_taken(separator: str, tmp_path: Path) -> None:
    path = tmp_path / "plans.csv"
    text = (PLANS + PLAN).replace(",", separator)
    path.write_text(f"sep={separator}\r\n{text}", newline="")
    (table,) = read_plans(path)
    assert table["model"].tolist() == ["Llama3-70B"] and table.place(0, "model") == "plans.csv [line 3, model]"


# --- streams and the worker ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("closed", "code", "said"),
    [("<&-", 2, "standard input: is empty; a header row and rows of values are meant\n"), (">&-", 2, "")],
)
def test_a_closed_stream_is_no_traceback(closed: str, code: int, said: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m xlperf evaluate - {closed}"],
        cwd=tmp_path, input=b"", capture_output=True, timeout=1100, check=False,
    )  # fmt: skip
    assert done.returncode == code
    assert "Traceback" not in done.stderr.decode()
    assert done.stderr.decode().startswith(said)


@pytest.mark.parametrize("line", [b"", b"\xff", b"{}", b"[" * 100_000, b'{"function": 1, "arguments": []}', b"null"])
def test_a_line_that_is_no_request_is_answered(line: bytes) -> None:
    assert b'"error":"#VALUE!"' in answer(Session(), line + b"\n")
    assert io.BytesIO(answer(Session(), line)).readline().endswith(b"\n")


def test_a_request_that_is_too_long_is_answered_and_the_next_one_too() -> None:
    short = b'{"function": "XLPERF_NONE", "arguments": []}\n'
    answers = io.BytesIO()
    serve(Session(), io.BytesIO(short + b"x" * 1000 + b"\n" + short + b"y" * 300), answers, longest=100)
    lines = answers.getvalue().splitlines()
    assert [b"give it fewer rows" in line for line in lines] == [False, False, True, False, True]
    assert b"unknown function XLPERF_NONE" in lines[1] and lines[1] == lines[3]


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path, plans: Path, command: Command) -> None:
    plans.write_text(PLANS + PLAN.replace("Llama3-70B", "a\x1b]0;title\x07"))
    assert "a\\x1b]0;title\\x07" in command("evaluate", plans).err
    book = openpyxl.Workbook()
    book.active.append(["_x001B_[2J"])
    book.save(tmp_path / "book.xlsx")
    assert command("check", "--text", tmp_path / "book.xlsx").out == "# Sheet\n\\x1b[2J\n"
    serving = "name,model,accelerator,num accelerators,prompt length,output length\n"
    plans.write_text(serving + "".join(f"{n}\x1b[1m,Llama3-8B,H100-SXM-80GB,1,128,128\n" for n in range(2)))
    found = command("search", "--frontier", plans, "--points", "2", "--all")
    assert "\x1b" not in found.out and "0\\x1b[1m" in found.out


def test_the_same_fault_is_said_once() -> None:
    error = InputError([Fault("a", "x"), Fault("b", "x"), Fault("a", "x")])
    assert str(error) == "a: x\nb: x" and error.lines() == ["a: x", "b: x"]
