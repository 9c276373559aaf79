"""Input that nobody means to give, or means ill: work stays small, terminals and spreadsheets are safe."""

from __future__ import annotations

import ast
import csv
import os
import random
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Outcome
from places import DATA, ROOT
from work import calls
from workbook_samples import HEADER, PLAN, csv_of, refused, set_cell, sheets, write

from xlperf.addin.cells import CellError
from xlperf.addin.worker import Session, answer
from xlperf.base.errors import Fault, InputError, printable
from xlperf.catalog.cells import number_of
from xlperf.catalog.csv_files import as_written, harmless
from xlperf.catalog.parse import table_from_columns, table_from_rows
from xlperf.catalog.read import read_plans
from xlperf.catalog.spellings import Spellings
from xlperf.explore.objectives import limit_of

Command = Callable[..., Outcome]
CARD = [["model", "Llama3-70B"], ["accelerator", "H100-SXM-80GB"], ["num accelerators", 64]]


# --- work ----------------------------------------------------------------------------------------------------------

MOST = 12.0
"""Calls of ten times the rows, over those of the rows: below 10 with what every command does once, 100 if squared."""


def test_suggestions_are_computed_for_faults_that_are_shown(tmp_path: Path, command: Command, monkeypatch: Any) -> None:
    asked: list[str] = []
    begun_by = Spellings.begun_by

    def counted(names: Spellings, text: str) -> list[str]:
        asked.append(text)
        return begun_by(names, text)

    monkeypatch.setattr(Spellings, "begun_by", counted)
    rows = [f"p{i},Llama3-70B-instruct-v{i},H100-SXM-80GB-x{i},8" for i in range(2000)]
    done = command("evaluate", csv_of(tmp_path / "plans.csv", *rows))
    assert done.code == 2
    assert len(done.err.splitlines()) == 51
    assert "did you mean" in done.err.splitlines()[49]
    assert done.err.endswith("... and 3,950 more faults\n")
    assert len(asked) == 50


@pytest.mark.parametrize(
    "rows",
    [
        lambda number: [f"p{i},Llama3-70B-v{i},H100-SXM-80GB-x{i},8" for i in range(number)],
        lambda number: [f"p{i},Llama3-70B,H100-SXM-80GB,x{i}" for i in range(number)],
        lambda number: [f"p{i},,,\ud7ff" for i in range(number)],
    ],
)
def test_work_of_a_bad_file_grows_with_its_rows(
    rows: Callable[[int], list[str]], tmp_path: Path, command: Command
) -> None:
    def refusal(number: int) -> int:
        path = csv_of(tmp_path / "bad.csv", *rows(number))
        count, done = calls(lambda: command("evaluate", path))
        assert done.code == 2
        return count

    refusal(100)  # what the first command of a process loads
    assert refusal(2000) < MOST * refusal(200)


def test_a_header_of_thousands_of_unknown_columns(tmp_path: Path, command: Command) -> None:
    def refusal(number: int) -> int:
        header = HEADER + "".join(f",tensr paralel {i}" for i in range(number))
        path = csv_of(tmp_path / "wide.csv", PLAN + "," * number, header=header)
        count, done = calls(lambda: command("evaluate", path))
        assert done.code == 2
        assert "did you mean tensor parallel" in done.err
        return count

    refusal(100)
    assert refusal(4000) < MOST * refusal(400)
    header = ",".join(f"c{i}" for i in range(20_000))
    done = command("evaluate", csv_of(tmp_path / "wide.csv", header=header))
    assert (done.code, done.err) == (2, "wide.csv [line 1]: has 20,000 columns; 16,384 are the most\n")


def test_ten_thousand_bad_cells_of_an_equation() -> None:
    def refusal(number: int) -> int:
        cells = [[f"x{i}"] for i in range(number)]
        count, column = calls(lambda: Session().call("XLPERF_DIE_YIELD", [cells, 0.1]))
        assert [cell.message for (cell,) in column[:: number // 3]] == [
            f'area must be a number above 0 (mm2), got "x{i}"' for i in range(0, number, number // 3)
        ]
        return count

    refusal(100)
    assert refusal(10_000) < MOST * refusal(1000)


def test_a_thousand_unknown_models_in_one_call() -> None:
    def refusal(number: int) -> int:
        rows = [[f"p{i}", f"Llama3-70B-instruct-v{i}", "H100-SXM-80GB", 64] for i in range(number)]
        count, column = calls(lambda: Session().call("XLPERF_STEP_TIME", [[HEADER.split(","), *rows]]))
        assert "did you mean" in column[0][0].message
        name = f"Llama3-70B-instruct-v{number - 1}"
        assert column[-1][0].message == f'training "p{number - 1}", model: unknown model "{name}"'
        return count

    refusal(100)
    assert refusal(1000) < MOST * refusal(100)


def test_measurements_that_are_no_numbers() -> None:
    from xlperf.catalog.catalog import load_catalog
    from xlperf.measurements.kernels import measurements

    with (DATA / "kernels.csv").open(encoding="utf-8", newline="") as stream:
        row = next(row for row in csv.DictReader(stream) if row["kind"] == "gemm")
    for text in ("1_000", "nan", "x"):
        with pytest.raises(
            InputError, match=f'row "{row["row_id"]}" of the sheet kernels: m must be a number, got "{text}"'
        ):
            measurements([{**row, "m": text}], load_catalog())


# --- what the worker takes -----------------------------------------------------------------------------------------


def words(result: Sequence[Sequence[Any]]) -> str:
    """What the first cell of an answer says."""
    cell = result[0][0]
    return cell.message if isinstance(cell, CellError) else str(cell)


def test_cells_of_any_shape_are_cells() -> None:
    session = Session()
    value = session.call("XLPERF_STEP_TIME", [CARD])
    assert session.call("XLPERF_STEP_TIME", [[*CARD, ["recompute"]]]) == value
    assert words(session.call("XLPERF_STEP_TIME", [[CARD[0], ["accelerator"], CARD[2]]])) == (
        "training, accelerator: accelerator is missing"
    )
    for empty in ([], [[]], [[], []], [None], ""):
        assert words(session.call("XLPERF_STEP_TIME", [empty])).startswith("the plan is empty; ")
    ragged = [[row[0] for row in CARD], ["Llama3-70B", "H100-SXM-80GB"], [row[1] for row in CARD]]
    assert session.call("XLPERF_STEP_TIME", [ragged])[1] == value[0]
    assert "num accelerators is missing" in words(session.call("XLPERF_STEP_TIME", [ragged]))


def test_integers_of_hundreds_of_digits() -> None:
    session = Session()
    for digits in (400, 5000):
        line = b'{"function": "XLPERF_DIE_COST", "arguments": [1%s, 500]}' % (b"0" * digits)
        assert b"internal error" not in answer(session, line)
    card = [*CARD[:2], ["num accelerators", 10**400]]
    assert words(session.call("XLPERF_STEP_TIME", [card])).endswith("must be a whole number of at least 1, got inf")


def test_half_a_character_is_refused_wherever_it_comes_from(tmp_path: Path, command: Command) -> None:
    line = 'training, model: model must be text, got "a\\ud800", which holds half a character'
    assert words(Session().call("XLPERF_STEP_TIME", [[["model", "a\ud800"], *CARD[1:]]])) == line
    header = ["model", "accelerator", "num accelerators", "name"]
    problem = refused(lambda kind: table_from_rows(kind, header, [["a", "b", 8, "\udfff"]]), "training")
    assert problem == 'row 1, name: name must be text, got "\\udfff", which holds half a character'
    path = write(tmp_path / "xlperf.xlsx", sheets())
    _in_training(path, "A2", '<c r="A2" t="inlineStr"><is><t>_xD83D_ and _xD83D__xDE00_</t></is></c>')
    assert command("check", path).err == (
        'xlperf.xlsx [training!A2]: name must be text, got "\\ud83d and \U0001f600", which holds half a character\n'
    )
    done = command("explain", csv_of(tmp_path / "plans.csv", PLAN), "--name", "a\udcff")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert 'no plan is named "a\\udcff"' in done.err


def test_values_that_are_several_are_no_value() -> None:
    columns = {
        "model": np.array(["a"], dtype=object),
        "accelerator": np.array(["b"], dtype=object),
        "num accelerators": np.array([8.0]),
    }
    for value, shown in (([1, 2], "[1, 2]"), ({"a": 1}, "{'a': 1}"), ((1, [2]), "(1, [2])")):
        one = np.empty(1, dtype=object)
        one[0] = value
        problem = refused(lambda kind, one=one: table_from_columns(kind, {**columns, "precision": one}), "training")
        assert problem.endswith(f'got several values, "{shown}"')


# --- numbers -------------------------------------------------------------------------------------------------------

NO_NUMBERS = ["1_000", "\u0661\u0662", "\uff18", "NaN", "nan", "inf", "-Infinity", "0x10", "1,5", "8 GPUs", "1e", "--1"]
NUMBERS = ["8", "+8", "8.", "8.0", "0.8e1", "80e-1", " 8 "]


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_one_syntax_of_numbers_for_workbook_and_csv(text: str, tmp_path: Path, command: Command) -> None:
    assert not np.isfinite(number_of(text))
    header = f"{HEADER},tensor parallel"
    quoted = f'"{text}"'
    done = command("evaluate", csv_of(tmp_path / "plans.csv", f"{PLAN},{quoted}", header=header))
    comma = ", which has a decimal comma; write 1.5" if text == "1,5" else ""
    line = f'tensor parallel: tensor parallel must be a whole number of at least 1, got "{text}"{comma}\n'
    assert (done.code, done.err) == (2, "plans.csv [line 2, " + line.replace("parallel:", "parallel]:", 1))
    for content in ("<v>{}</v>", "<is><t>{}</t></is>"):
        path = write(tmp_path / "xlperf.xlsx", sheets(), tables=False)
        kind = "n" if "<v>" in content else "inlineStr"
        _in_training(path, "E2", f'<c r="E2" t="{kind}">{content.format(text)}</c>')
        done = command("evaluate", path)
        assert done.code == 2
        assert done.err.startswith("xlperf.xlsx [training!E2]: tensor parallel must be a whole number of at least 1")
        assert f'"{text}"' in done.err
    problem = refused(lambda given: limit_of("inference", given), f"ttft<={text}")
    assert any(words in problem for words in ("must be as", "is no number", "cannot be in"))


@pytest.mark.parametrize("text", NUMBERS)
def test_numbers_as_they_are_written(text: str, tmp_path: Path) -> None:
    assert number_of(text) == 8.0
    path = csv_of(tmp_path / "plans.csv", f"{PLAN},{text}", header=f"{HEADER},tensor parallel")
    assert read_plans(path)[0]["tensor_parallel"].tolist() == [8.0]


def _in_training(path: Path, cell: str, new: str) -> None:
    """Replace a cell of the sheet training."""
    _in_part(path, "xl/worksheets/sheet6.xml", rf'<c r="{cell}"[^>]*>.*?</c>', new)


def _in_part(path: Path, part: str, pattern: str, new: str) -> None:
    """Replace the first place of a pattern in a part of a workbook."""
    with zipfile.ZipFile(path) as package:
        parts = {name: package.read(name) for name in package.namelist()}
    text = parts[part].decode("utf-8")
    assert re.search(pattern, text, re.DOTALL)
    parts[part] = re.sub(pattern, lambda _: new, text, count=1, flags=re.DOTALL).encode("utf-8")
    with zipfile.ZipFile(path, "w") as package:
        for name, content in parts.items():
            package.writestr(name, content)


def test_index_of_a_shared_string_is_no_negative_number(tmp_path: Path, command: Command) -> None:
    path = write(tmp_path / "xlperf.xlsx", sheets())
    _in_training(path, "A2", '<c r="A2" t="s"><v>-1</v></c>')
    assert "is damaged (xl/worksheets/sheet6.xml)" in command("check", path).err


@pytest.mark.parametrize("encoding", ["utf-7", "cp037", "shift_jis", "none-such", "rot13"])
def test_encodings_that_the_parser_does_not_take(encoding: str, tmp_path: Path, command: Command) -> None:
    path = write(tmp_path / "xlperf.xlsx", sheets())
    declared = f'<?xml version="1.0" encoding="{encoding}"?><workbook'
    _in_part(path, "xl/workbook.xml", r"<workbook\b", declared)
    for words in (["check"], ["check", "--text"]):
        done = command(*words, path)
        assert done.code == 2
        assert done.err.startswith("xlperf.xlsx: is damaged (xl/workbook.xml)")


# --- what reaches a terminal ---------------------------------------------------------------------------------------

EVIL = "a\x1b[2J\x9b31m\x85b\u2028c\u202ed\ufeff\nx"
SAFE = "a\\x1b[2J\\x9b31m\\x85b\\u2028c\\u202ed\\ufeff\\nx"


def test_text_of_messages_cannot_steer_a_terminal() -> None:
    assert printable(EVIL) == SAFE
    assert str(Fault(EVIL, EVIL)) == f"{SAFE}: {SAFE}"
    assert printable("\u00e9 \u4e2d \U0001f469\u200d\U0001f680") == "\u00e9 \u4e2d \U0001f469\u200d\U0001f680"


def test_names_formulas_and_notes_cannot_steer_a_terminal(tmp_path: Path, command: Command) -> None:
    path = write(tmp_path / "xlperf.xlsx", set_cell(sheets(), "training!A2", "x"), tables=False)
    evil = "a&#x9b;31m&#x85;b&#x2028;c&#x202e;d&#10;x"
    _in_training(path, "G2", f'<c r="G2"><f>"{evil}"</f></c>')
    _in_training(path, "D2", f'<c r="D2"><f>"{evil}"</f></c>')
    _in_part(path, "xl/workbook.xml", r'name="calibration"', f'name="{evil}"')
    _in_part(
        path,
        "xl/worksheets/sheet1.xml",
        r'<c r="A2"[^>]*>.*?</c>',
        f'<c r="A2" t="inlineStr"><is><t>{evil}</t></is></c>',
    )
    for arguments in (
        ["check", "--text", path],
        ["check", path],
        ["evaluate", path],
        ["explain", path],
        ["evaluate", path, "--vary", "a=1"],
    ):
        done = command(*arguments)
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\ufeff]", done.out + done.err)
    lines = command("check", "--text", path).out.splitlines()
    assert "# a\\x9b31m\\x85b\\u2028c\\u202ed\\nx" in lines
    assert any('="a\\x9b31m\\x85b\\u2028c\\u202ed\\nx"' in line for line in lines)


def test_names_of_plans_in_tables_and_messages(tmp_path: Path, command: Command) -> None:
    evil = '"a\x1b[2J\x9b31m\nb"'
    path = csv_of(tmp_path / "plans.csv", PLAN.replace("first", evil) + ",8", header=f"{HEADER},tensor parallel")
    done = command("evaluate", path, "--vary", "tensor parallel=3,8")
    assert done.code == 0
    assert len(done.out.splitlines()) == 5
    assert "a\\x1b[2J\\x9b31m\\nb" in done.out
    done = command("search", path, "--vary", "num accelerators=64", "--target", "step time<=1e9")
    assert done.err.startswith("a\\x1b[2J\\x9b31m\\nb: num accelerators 64 is the least")


def test_commands_print_through_one_function() -> None:
    folder = ROOT / "xlperf"
    for path in folder.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        printing = (
            []
            if not re.search(r"echo|print", text)
            else [
                node.lineno
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.Call) and ast.unparse(node.func) in ("click.echo", "click.secho", "print")
            ]
        )
        allowed = {"output.py": 1, "app.py": 1}  # say itself, and the help that click writes
        assert len(printing) <= (allowed.get(path.name, 0) if path.parent.name == "cli" else 0), path


@pytest.mark.parametrize(
    "variables",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1"},
        {"LC_ALL": "C"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
def test_standard_output_that_is_not_utf8(variables: dict[str, str], tmp_path: Path) -> None:
    name = "\u00e9\u2026\u4e2d"
    path = csv_of(tmp_path / "plans.csv", PLAN.replace("first", name) + ",8", header=f"{HEADER},tensor parallel")

    def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        given = [sys.executable, "-m", "xlperf", arguments[0], str(path), *arguments[1:]]
        return subprocess.run(given, capture_output=True, env={**os.environ, **variables}, timeout=1100, check=False)

    done = run("evaluate")
    assert (done.returncode, done.stderr) == (0, b"")
    assert f"\n{name},Llama3-70B,".encode() in done.stdout  # data are UTF-8, as files are
    if len(variables) > 1:
        done = run("evaluate", "--vary", "tensor parallel=4,8")
        assert (done.returncode, done.stderr) == (0, b"")
        assert len(done.stdout.splitlines()) == 5
    if len(variables) > 1 or "ascii" in variables.values():
        done = run("explain", "--name", "none")
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


# --- CSV that a spreadsheet opens ------------------------------------------------------------------------------------

SEPARATORS = [",", ";", "\t", "|", "\n", "\r", "\r\n", "\x0b", "\x0c", "\x85", "\u2028"]
FORMULAS = ["=1+1", "@SUM(A1)", "+1+1", "-1+1", "--1", "\uff1d1", "\t=1", "=cmd|' /C calc'!A0", '"=1"', '""=1']


@pytest.mark.parametrize("separator", SEPARATORS)
@pytest.mark.parametrize("formula", FORMULAS)
def test_no_part_of_a_text_in_csv_is_a_formula(separator: str, formula: str) -> None:
    for text in (
        formula,
        f"x{separator}{formula}",
        f"x{separator}{separator}{formula}{separator}y",
        f"{separator}{formula}",
    ):
        written = harmless(text)
        assert as_written(written) == text
        for part in re.split(f"[{''.join(SEPARATORS)}]", written):
            assert not re.match(r'[ "]*[=@\uff1d\uff20]', part)
            assert re.fullmatch(r"[+-]?[0-9.]*", part) or part[:1] not in "+-"


def test_marks_of_any_text_are_taken_away_again() -> None:
    rng = random.Random(11)
    letters = "=@+-;,\t|\n\r'\" 1ax.eE\uff1d\x85\u2028"
    for _ in range(20_000):
        text = "".join(rng.choice(letters) for _ in range(rng.randrange(9)))
        assert as_written(harmless(text)) == text


@pytest.mark.parametrize("text", ["-2", "x;-2;y", "+1.5e3", "a-b", "a, -b", "Llama-3 70B, 64 H100", "a@b", "x|-5|-6"])
def test_texts_and_signed_numbers_stay_as_they_are(text: str) -> None:
    assert harmless(text) == text


def test_a_name_with_a_formula_in_it_comes_back(tmp_path: Path, command: Command) -> None:
    path = csv_of(tmp_path / "plans.csv", PLAN.replace("first", "x;=1+1"))
    written = command("evaluate", path).out.splitlines()[1]
    assert written.startswith("x;'=1+1,")
    assert command("evaluate", path, "-o", tmp_path / "out.csv").code == 0
    assert read_plans(tmp_path / "out.csv")[0]["name"].tolist() == ["x;=1+1"]
