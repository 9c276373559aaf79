"""The command line: results in every format, exit codes, one line per fault, files replaced whole."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import openpyxl
import pyarrow as pa
import pyarrow.parquet
import pytest
from conftest import Outcome, csv_rows
from shipped import with_cells

from xlperf import load_catalog, read_plans
from xlperf.base.resources import table, workbook
from xlperf.catalog import csv_files
from xlperf.catalog.schema import FORMS, results_of, table_schema, unit_of
from xlperf.cli.app import cli
from xlperf.cli.output import json_key
from xlperf.engine import evaluate

Command = Callable[..., Outcome]
MODEL = "Meta-Llama-3.1-8B"  # the plans name it by an alias
HEADER = "name,model,accelerator,num accelerators,tensor parallel,global batch size,precision"
ROWS = (
    "one,Llama3-8B,H100-SXM-80GB,64,1,64,bf16",
    "two,Llama3-8B,H100-SXM-80GB,16,8,64,bf16",
    "too large,Llama3-70B,H100-SXM-80GB,8,1,64,bf16",
    "illegal,Llama3-8B,H100-SXM-80GB,8,3,64,bf16",
)


@pytest.fixture
def plans(tmp_path: Path) -> Path:
    path = tmp_path / "plans.csv"
    path.write_text("\n".join([HEADER, *ROWS, ""]), encoding="utf-8")
    return path


def _rows(text: str) -> list[dict[str, str]]:
    return csv_rows(text)


@pytest.mark.parametrize("name", sorted(cli.tasks()))
def test_help_teaches_by_example(command: Command, name: str) -> None:
    shown = command(*name.split(), "--help")
    assert shown.code == 0
    assert f"\n    xlperf {name.partition(' --')[0]} " in shown.out.split("Examples:")[1] + " "
    wide = [line for line in shown.out.splitlines() if len(line) > 80]
    assert [line for line in wide if not line.startswith("    xlperf ") or "   " in line.strip()] == []


@pytest.mark.parametrize("name", list(cli.tasks()))
def test_examples_of_the_help_have_options_that_exist(command: Command, name: str) -> None:
    shown = command(*name.split(), "--help").out.split("Examples:")[1]
    for line in re.findall(r"^ +xlperf (.*?)(?: {2,}.*)?$", shown, re.MULTILINE):
        for part in line.partition(" > ")[0].split(" | "):
            given = shlex.split(part.removeprefix("xlperf "))
            own, result, words = cli.resolve_command(click.Context(cli), given)
            assert result is not None and own in cli.tasks(), line
            context = click.Context(result, info_name=own)
            _, left, _ = result.make_parser(context).parse_args(words)
            assert left == [], line


RENAMED = {
    "sweep": "evaluate --vary", "solve": "search --target", "frontier": "search --frontier",
    "optimise": "search --shares", "device": "chip --devices", "time": "explain --operation", "plan": "launch --read",
    "model": "add model", "accelerator": "add accelerator", "show": "check --text", "functions": "install --list",
}  # fmt: skip


@pytest.mark.parametrize("old", RENAMED)
def test_old_names_are_hidden_and_name_the_new_command(command: Command, old: str) -> None:
    """Same options and output as the task; one line on standard error says how it is called now."""
    assert not re.search(rf"^  {old} ", command("--help").out, re.MULTILINE)
    shown, new = command(old, "--help"), command(*RENAMED[old].split(), "--help")
    assert shown.err == f"xlperf {old} is now `xlperf {RENAMED[old]}`: the old name goes in the next release\n"
    spelled = "".join(shown.out.replace(f"xlperf {old} [", f"xlperf {RENAMED[old]} [").split())
    assert spelled == "".join(new.out.split()) and new.err == ""


def test_an_old_name_does_what_the_new_command_does(command: Command, plans: Path) -> None:
    asked = ("--vary", "tensor parallel=1,2", "--result", "step time", "--row", 1)
    old, new = command("sweep", plans, *asked), command("evaluate", plans, *asked)
    assert old.out == new.out and old.code == new.code == 0
    assert old.err.splitlines()[0].startswith("xlperf sweep is now `xlperf evaluate --vary`")
    assert old.err.splitlines()[1:] == new.err.splitlines()


def test_named_results_need_no_variation(command: Command, plans: Path) -> None:
    named = command("evaluate", plans, "--result", "step time", "--row", 1, "-o", "-")
    whole = command("evaluate", plans, "-o", "-")
    assert named.code == 0, named.err
    (row,) = csv_rows(named.out)
    assert row == {name: csv_rows(whole.out)[0][name] for name in row} and len(row) == 2


def test_options_of_another_task_are_named_with_it(command: Command, plans: Path) -> None:
    assert "--samples goes with xlperf evaluate --vary" in command("evaluate", plans, "--samples", 3).err
    assert "--points goes with xlperf search --frontier" in command("search", plans, "--points", 3).err


def test_help_lists_the_questions_and_seventeen_commands_by_section(command: Command) -> None:
    shown = command("--help").out
    sections = re.findall(r"^(Ask|Plans|Judge|Hardware|Files|Setup):\n((?:  .*\n)+)", shown, re.MULTILINE)
    names = [name for _, lines in sections for name in re.findall(r"^  (\w+)", lines, re.MULTILINE)]
    assert len(sections) == 6 and names == list(cli.commands) and len(names) == len(FORMS) + 17
    assert "--frontier" in command("search", "--help").out


def test_csv_holds_plans_first_and_every_bit_of_the_results(command: Command, plans: Path, tmp_path: Path) -> None:
    output = tmp_path / "results.csv"
    done = command("evaluate", plans, "-o", output)
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith(f"{output}: 3 of 4 plans legal: ")
    text = output.read_text(encoding="utf-8")
    rows = _rows(text)
    assert text.splitlines()[0].split(",") == [
        *HEADER.split(","), *(column.header for column in results_of("training").columns)
    ]  # fmt: skip
    (table,) = read_plans(plans)
    results = evaluate(table, load_catalog())
    for column in results_of("training").columns:
        if column.is_text:
            assert [row[column.name] for row in rows] == results[column.name].tolist()
        elif column.kind == "result":
            read = np.array([float(row[column.name] or "nan") for row in rows])
            assert read.tobytes() == (results[column.name] / unit_of(column).factor).tobytes(), column.name
    assert [row["fits"] for row in rows] == ["TRUE", "TRUE", "FALSE", ""]
    assert rows[0]["num_accelerators"] == "64"
    assert rows[3]["step_time"] == ""
    assert "tensor parallel" in rows[3]["reason"]


def test_parquet_and_workbook_hold_what_csv_holds(command: Command, plans: Path, tmp_path: Path) -> None:
    text = command("evaluate", plans).out
    assert command("evaluate", plans, "-o", tmp_path / "results.parquet").code == 0
    assert command("evaluate", plans, "-o", tmp_path / "results.xlsx").code == 0
    rows = _rows(text)
    parquet = pa.parquet.read_table(tmp_path / "results.parquet")
    assert parquet.column_names == text.splitlines()[0].split(",")
    assert pa.types.is_dictionary(parquet.schema.field("model").type)
    assert parquet.schema.field("memory (GiB)").metadata == {b"unit": b"GiB"}
    assert parquet.column("fits").to_pylist() == [True, True, False, None]
    assert parquet.column("step time (s)").to_pylist() == [
        float(row["step_time"]) if row["step_time"] else None for row in rows
    ]
    sheet = openpyxl.load_workbook(tmp_path / "results.xlsx")["training"]
    header, *cells = sheet.iter_rows(values_only=True)
    expected = [table_schema("training").by_name[name] for name in list(rows[0])[:7]]
    assert list(header) == [column.header for column in [*expected, *results_of("training").columns]]
    at = header.index("memory (GiB)")
    assert [row[at] for row in cells] == [float(row["memory"]) if row["memory"] else None for row in rows]
    again = command("evaluate", tmp_path / "results.xlsx")
    assert again.out == text, "results are plans again: their result columns are left out"


def test_card_of_the_guide_is_a_plan_that_fits(command: Command, tmp_path: Path) -> None:
    page = table("guide/sheets.md").read_text(encoding="utf-8")
    card = re.findall(r"^\| \d \| (.*) \| (.*) \|$", page, re.MULTILINE)
    path = tmp_path / "card.csv"
    names, values = zip(*([word.strip() for word in words] for words in card), strict=True)
    path.write_text(f"{','.join(names)}\n{','.join(values)}\n", encoding="utf-8")
    (row,) = _rows(command("evaluate", path).out)
    assert names[0] == "model"
    assert row["fits"] == "TRUE"
    assert float(row["step_time"]) > 0


def test_standard_streams(process: Command, plans: Path, tmp_path: Path) -> None:
    piped = process("evaluate", "-", "-o", "-", stdin=plans.read_text(encoding="utf-8"))
    assert (piped.code, piped.err[:21]) == (0, "3 of 4 plans legal: d")
    assert piped.out == process("evaluate", plans).out
    assert [path.name for path in tmp_path.iterdir()] == ["plans.csv"]


def test_json_holds_what_csv_holds(command: Command, plans: Path, tmp_path: Path) -> None:
    printed = command("evaluate", plans, "--json")
    assert (printed.code, printed.err[:21]) == (0, "3 of 4 plans legal: d")
    rows = json.loads(printed.out)
    with io.StringIO(command("evaluate", plans).out, newline="") as stream:
        for row, line in zip(rows, csv.DictReader(stream), strict=True):
            assert list(row) == [json_key(header) for header in line]
            for name, value, text in zip(row, row.values(), line.values(), strict=True):
                if isinstance(value, bool) or value is None:
                    assert text.upper() == {True: "TRUE", False: "FALSE", None: ""}[value], name
                else:
                    assert value == (text if isinstance(value, str) else float(text)), name
                    assert isinstance(value, int) == (isinstance(value, int | float) and float(text).is_integer()), name
    assert command("evaluate", plans, "-o", tmp_path / "results.json").code == 0
    assert (tmp_path / "results.json").read_text(encoding="utf-8") == printed.out
    operators = json.loads(command("explain", plans, "--json").out)
    assert sum(one["share"] for one in operators) == pytest.approx(1.0)
    times = [one["exposed_time_ms"] for one in operators]
    assert times == sorted(times, reverse=True)


def test_a_terminal_shows_a_table(plans: Path) -> None:
    main, terminal = pty.openpty()
    command = [sys.executable, "-m", "xlperf", "evaluate", str(plans), "--wide"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=terminal, stderr=subprocess.PIPE, check=False)
    os.close(terminal)
    shown = os.read(main, 100_000).decode()
    os.close(main)
    assert done.returncode == 0
    header = shown.splitlines()[0].split("  ")
    assert {"name", "step time", "fits", "trust"} <= {word.strip() for word in header}
    assert shown.count("\n") > 6


def test_blocks_do_not_show(command: Command, plans: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = command("evaluate", plans).out
    monkeypatch.setattr(csv_files, "_FIRST", 220)
    assert command("evaluate", plans).out == whole
    assert command("evaluate", plans, "-o", tmp_path / "blocks.parquet").code == 0
    assert pa.parquet.ParquetFile(tmp_path / "blocks.parquet").num_row_groups == 2
    assert pa.parquet.read_table(tmp_path / "blocks.parquet").column("name").to_pylist()[3] == "illegal"


def cells_of(kind: str, column: str) -> dict[str, float]:
    """Numbers of a column of a sheet of the shipped workbook, in its unit, by their cells."""
    table, known = load_catalog().tables[kind], table_schema(kind).by_name[column]
    places = [re.search(r"!([A-Z]+[0-9]+)\]", table.place(row, column)) for row in range(len(table))]
    values = table.number(column) / unit_of(known).factor
    return {place[1]: value for place, value in zip(places, values.tolist(), strict=True) if place and value == value}


def test_plans_use_the_catalog_of_their_own_workbook(command: Command, plans: Path, tmp_path: Path) -> None:
    halves = {cell: value / 2.0 for cell, value in cells_of("accelerators", "peak_flop_rate_bf16").items()}
    assert len(halves) > 20
    slower = with_cells(tmp_path / "slower.xlsx", "accelerators", halves)
    fast = _rows(command("evaluate", plans).out)
    slow = _rows(command("evaluate", plans, "--catalog", slower).out)
    assert float(slow[0]["time_forward"]) > 1.3 * float(fast[0]["time_forward"])


def test_explain_lists_operators(command: Command, plans: Path, tmp_path: Path) -> None:
    shown = command("explain", plans, "--name", "TWO")
    assert shown.code == 0
    header = shown.out.splitlines()[0].split()
    assert header[:3] == ["phase", "operator", "family"]
    assert "tensor-parallel" in shown.out
    assert "tensor-parallel" not in command("explain", plans, "--row", 1).out
    assert command("explain", plans, "--row", 2, "-o", tmp_path / "operators.csv").code == 0
    rows = _rows((tmp_path / "operators.csv").read_text(encoding="utf-8"))
    assert list(rows[0]) == [column.name for column in table_schema("operators").columns]
    assert len(rows) == shown.out.splitlines().index("") - 3


def test_check_says_no_where_a_model_is_not_what_its_row_states(command: Command, tmp_path: Path) -> None:
    assert command("check").code == 0
    models = load_catalog().tables["models"]
    place = models.place(models["model"].tolist().index(MODEL), "stated_parameters")
    cell = place.partition("!")[2].partition("]")[0]
    wrong = with_cells(tmp_path / "wrong.xlsx", "models", {cell: 9.25})
    done = command("check", wrong)
    assert (done.code, done.err) == (1, "")
    expected = (
        f"wrong.xlsx [models!{cell}]: {MODEL} has 8.03 billion parameters by its shape, 9.25 are stated (-13.2 %)"
    )
    assert done.out.splitlines()[0] == expected


def test_new_workbook_is_computed_as_it_is(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "my study.xlsx"
    made = command("new", path)
    assert (made.code, made.out) == (0, f"{path}: edit it, then: xlperf report '{path}' -o report.xlsx\n")
    own, shipped = (
        {row["name"]: row["step_time"] for row in csv_rows(command("evaluate", book, "--sheet", "training").out)}
        for book in (path, workbook())
    )
    assert len(own) == 3 and own.items() <= shipped.items(), "one plan of each kind"
    refused = command("new", path)
    assert (refused.code, refused.err) == (2, f"{path}: exists; give another name, or --force to replace it\n")
    assert command("new", path, "--force", "--empty").code == 0
    assert command("evaluate", path).err == "my study.xlsx: has no plans; fill at least one row\n"
    assert command("new", path, "--force", "--all").code == 0
    assert len(csv_rows(command("evaluate", path, "--sheet", "training").out)) == len(shipped)
    both = command("new", path, "--force", "--all", "--empty")
    assert (both.code, "give one of --all, --empty, --examples and --study" in both.err) == (2, True)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped training rows of the papers, as a CSV file."""
    rows = openpyxl.load_workbook(workbook("validation.xlsx"), read_only=True)["training"].iter_rows(values_only=True)
    table = [row for row in rows if any(cell is not None for cell in row)]
    top = next(number for number, row in enumerate(table) if "row_id" in row)
    width = sum(cell is not None for cell in table[top])
    group = table[top].index("group")
    path = tmp_path_factory.mktemp("published") / "published.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        kept = [row[:width] for row in table[top + 1 :] if row[group] == "papers"]
        csv.writer(stream).writerows([table[top][:width], *kept])
    return path


def test_validate_compares_published_rows(command: Command, published: Path, tmp_path: Path) -> None:
    output = tmp_path / "errors.csv"
    done = command("validate", published, "-o", output)
    assert done.out.startswith("By group\n")
    assert done.code == (1 if "missed: " in done.err else 0)
    rows = _rows(output.read_text(encoding="utf-8"))
    columns = "row_id,source_id,group,accelerator,metric,measured,predicted,relative_error,reason"
    assert list(rows[0]) == columns.split(",")
    assert len({row["row_id"] for row in rows}) == 11
    times = [row for row in rows if row["metric"] == "iter_time_s" and row["predicted"]]
    for row in times:
        error = abs(float(row["predicted"]) / float(row["measured"]) - 1)
        assert float(row["relative_error"]) == pytest.approx(error, abs=1e-4)
    assert command("validate", published, "-o", "-").out == output.read_text(encoding="utf-8")


def test_validate_says_no_where_a_tolerance_is_missed(command: Command, published: Path, tmp_path: Path) -> None:
    with published.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        for column in ("iter_time_s", "tflops_per_gpu", "mfu", "tokens_per_s_per_gpu", "tokens_per_s"):
            if row.get(column):
                row[column] = str(float(row[column]) * 3)
    path = tmp_path / "tripled.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    done = command("validate", path)
    assert done.code == 1
    assert done.err.startswith("missed: papers, ")


def test_validate_writes_tables_of_shipped_rows_alone(command: Command, published: Path, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("before\n", encoding="utf-8")
    refused = command("validate", "--readme", readme)
    assert refused.code == 2
    assert refused.err.startswith(f"{readme}: has no lines <!-- expected: begin --> and <!-- expected: end --> or ")
    refused = command("validate", published, "--readme", readme)
    assert refused.code == 2 and "--readme takes the shipped measurements" in refused.err


def test_calibrate_shows_the_constants_in_use(command: Command, tmp_path: Path) -> None:
    shown = command("calibrate")
    constants = load_catalog().tables["calibration"]
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.splitlines()[0].split()[:3] == ["for", "constant", "value"]
    assert len(shown.out.splitlines()) == len(constants) + 2
    assert command("calibrate", "-o", tmp_path / "constants.csv").err.endswith(f": {len(constants):,} constants\n")
    rows = _rows((tmp_path / "constants.csv").read_text(encoding="utf-8"))
    assert [float(row["value"]) for row in rows] == constants["value"].tolist()
    own = tmp_path / "own.csv"
    own.write_text("calibration,family,constant,value\ngemm/any/launch,gemm,launch_time,6e-6\n", encoding="utf-8")
    few = command("calibrate", "--catalog", own)
    assert few.code == 0 and "launch time" in few.out, "columns that a sheet leaves out are left out"
    refused = command("calibrate", "--date", "2026-01-01")
    assert (refused.code, refused.err.count("\n")) == (2, 1)


def test_show_prints_a_workbook(command: Command) -> None:
    shown = command("check", "--text", workbook())
    assert shown.code == 0
    assert "# accelerators\ttable accelerators" in shown.out


BAD = [
    (["evaluate"], "xlperf evaluate: missing argument 'PLANS'; see \"xlperf evaluate --help\""),
    (["evaluate", "gone.csv"], "gone.csv: there is no such file"),
    (["evaluate", "plans.csv", "--fast"], None),
    (
        ["evaluate", "plans.csv", "-o", "out.txt"],
        'out.txt: the output must end in .xlsx, .csv, .parquet or .json, got ".txt"',
    ),
    (
        ["evaluate", "plans.csv", "-o", "out"],
        "out: the output must end in .xlsx, .csv, .parquet or .json, got no ending",
    ),
    (["evaluate", "plans.csv", "-o", "no/out.csv"], 'no/out.csv: there is no folder "no"; make it first'),
    (["evaluate", "plans.csv", "-o", "plans.csv"], "plans.csv: is the input; give the output another name"),
    (
        ["evaluate", "plans.csv", "-o", "folder"],
        "folder: is a folder; give a file name that ends in .xlsx, .csv, .parquet or .json",
    ),
    (["report", "plans.csv", "-o", "out.csv"], 'out.csv: the output must end in .xlsx or .html, got ".csv"'),
    (["explain", "plans.csv", "--row", "5"], "plans.csv: --row 5 is beyond the last of 4 training plans"),
    (["explain", "plans.csv", "--name", "on"], 'plans.csv: no plan is named "on"; did you mean one?'),
    (
        ["explain", "plans.csv", "--name", "one", "--row", "1"],
        'xlperf explain: give --row or --name, not both; see "xlperf explain --help"',
    ),
    (
        ["evaluate", "plans.csv", "--json", "-o", "out.csv"],
        'xlperf evaluate: give -o or --json, not both; see "xlperf evaluate --help"',
    ),
    (["plot"], None),
]


@pytest.mark.parametrize(("arguments", "line"), BAD)
def test_bad_arguments_are_one_line(
    command: Command, plans: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], line: str | None
) -> None:
    monkeypatch.chdir(plans.parent)
    (plans.parent / "folder").mkdir()
    before = plans.read_bytes()
    done = command(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert line is None or done.err == line + "\n"
    assert plans.read_bytes() == before
    assert sorted(path.name for path in plans.parent.iterdir()) == ["folder", "plans.csv"]


def test_two_kinds_need_a_workbook_or_a_choice(command: Command) -> None:
    done = command("evaluate", workbook())
    assert done.code == 2
    assert done.err.startswith(f"{workbook()}: holds ")
    assert done.err.endswith("standard output takes one kind: give --sheet training, or an .xlsx output\n")
    assert command("evaluate", workbook(), "--sheet", "inference").code == 0


def test_every_unknown_name_is_said_at_once(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_files, "_FIRST", 180)
    path = tmp_path / "plans.csv"
    path.write_text(f"{HEADER}\n{ROWS[0]}\na,Llama3-8,H100-SXM-80GB,8,1,64,bf16\nb,Llama3-8B,H100-SXN,8,1,64,bf16\n")
    done = command("evaluate", path, "-o", tmp_path / "out.csv")
    assert done.code == 2
    first, second = done.err.splitlines()
    assert first.startswith('plans.csv [line 3, model]: unknown model "Llama3-8"; did you mean Llama3-8B')
    assert second.startswith('plans.csv [line 4, accelerator]: unknown accelerator "H100-SXN"; did you mean ')
    assert "H100-SXM-80GB" in second
    assert not (tmp_path / "out.csv").exists()


def test_explain_ends_with_the_limits_of_each_phase(command: Command, tmp_path: Path) -> None:
    plans = tmp_path / "plans.csv"
    header = "model,accelerator,num accelerators,tensor parallel,prompt length,output length,concurrency,mode\n"
    plans.write_text(f"{header}Llama3-70B,H200-SXM-141GB,4,4,2000,500,64,continuous\n", encoding="utf-8")
    (result,) = json.loads(command("evaluate", plans, "--json").out)
    *_, first, token = command("explain", plans).out.splitlines()
    for line, words, name in ((first, "time to first token", "ttft_ms"), (token, "time per output token", "tpot_ms")):
        told = re.fullmatch(rf"{words} ([\d.,]+) ms: (.*)", line)
        assert told is not None and float(told[1]) == pytest.approx(result[name], rel=1e-3)
        assert sum(map(float, re.findall(r"(\d+) %", told[2]))) == pytest.approx(100.0, abs=3.0)
        assert {"memory", "overhead", "waiting"} <= set(re.findall(r"[a-z]+", told[2]))
