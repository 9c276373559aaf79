"""Messages of commands and functions: said once, in words that help, with what was written or left out."""

from __future__ import annotations

import decimal
import os
import re
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from conftest import Outcome
from places import ROOT
from workbook_samples import HEADER, PLAN, csv_of, refused, sheets, write

from xlperf.base.errors import Fault, InputError, nearest
from xlperf.catalog.cells import plan_kind
from xlperf.catalog.parse import table_from_rows
from xlperf.cli.app import cli
from xlperf.explore.objectives import limit_of, tightest

Command = Callable[..., Outcome]


def test_help_of_the_bare_command_is_printed_once(command: Command) -> None:
    done = command()
    assert (done.code, done.err) == (0, "")
    assert done.out.count("Usage:") == 1
    assert "\x08" not in done.out
    assert done.out.splitlines()[-1].lstrip().startswith("Exit codes:")


def test_an_engine_may_not_use_more_than_there_is(tmp_path: Path, command: Command) -> None:
    header = f"{HEADER},prompt length,output length,batch size"
    done = command(
        "evaluate", csv_of(tmp_path / "plans.csv", "a,DeepSeek-V3,H100-SXM-80GB,2,1000,100,1", header=header)
    )
    needs, may, of = (float(number) for number in re.findall(r"([\d.]+) GiB", done.out)[:3])
    assert "the engine may use" in done.out
    assert needs > of >= may


def test_a_plan_of_a_model_of_ones_own_names_the_table_beside_it(tmp_path: Path, command: Command) -> None:
    """A plan that diagnose wrote with --catalog models.csv was said to have an unknown model."""
    plan = csv_of(tmp_path / "better.csv", "a,own-7B,H100-SXM-80GB,8,8", header=f"{HEADER},tensor parallel")
    done = command("launch", plan)
    assert done.code == 2 and "own-7B" in done.err and "--catalog" not in done.err
    header = "model,num layers,hidden size,num attention heads,ffn hidden size,vocab size,max sequence length,source"
    models = csv_of(tmp_path / "models.csv", "own-7B,32,4096,32,16384,32000,4096,a test", header=header)
    done = command("launch", plan)
    assert done.code == 2 and f"add --catalog {models}" in done.err
    assert command("launch", plan, "--catalog", models).code == 0


def test_a_limit_that_plan_and_option_state_is_named_once(tmp_path: Path, command: Command) -> None:
    header = f"{HEADER},prompt length,output length,batch size,ttft target (ms)"
    path = csv_of(tmp_path / "plans.csv", "a,Llama3-70B,H100-SXM-80GB,8,1000,100,4,500", header=header)
    vary = ("--vary", "num accelerators=8", "--with-auto", "tensor parallel")
    done = command("search", path, *vary, "--target", "ttft<=500")
    assert done.err.count("ttft <= 500 ms") == 1
    done = command("search", path, *vary, "--target", "ttft<=400")
    assert "ttft <= 400 ms" in done.err and "500" not in done.err
    limits = [limit_of("inference", text) for text in ("ttft<=500", "ttft<500", "ttft>=1", "tpot<=20", "ttft<=0.6 s")]
    assert [limit.words for limit in tightest(limits)] == ["ttft < 500 ms", "ttft >= 1 ms", "tpot <= 20 ms"]


def test_the_largest_value_is_found_where_the_other_end_misses_the_target(tmp_path: Path, command: Command) -> None:
    path = csv_of(tmp_path / "plans.csv", f"{PLAN},8", header=f"{HEADER},tensor parallel")
    vary = ("--vary", "accelerators.memory bandwidth=x0.25..x8", "--target", "step time<=3")
    done = command("search", path, *vary, "--largest")
    assert (done.code, done.err) == (
        0,
        "first: accelerators memory bandwidth x8 is the largest with step time <= 3 s\n",
    )
    assert command("search", path, *vary).code == 0


def test_columns_of_inference_alone_make_a_plan_one_of_inference(tmp_path: Path, command: Command) -> None:
    done = command("evaluate", csv_of(tmp_path / "plans.csv", f"{PLAN},4", header=f"{HEADER},batch size"))
    assert done.code == 2
    assert done.err.splitlines()[0] == 'plans.csv [line 1]: the column "prompt length" is missing'
    assert "unknown column" not in done.err
    assert plan_kind(["model", "accelerator"]) == "training"
    assert plan_kind(["model", "batch size", "micro batch size"]) == "training"


def test_a_sweep_says_why_a_row_is_blank(tmp_path: Path, command: Command) -> None:
    path = csv_of(tmp_path / "plans.csv", PLAN)
    lines = command("evaluate", path, "--vary", "tensor parallel=3,8").out.splitlines()
    assert lines[0].rstrip().endswith("reason")
    assert "tensor parallel 3 does not divide the 64 attention heads" in lines[3]
    assert "divide" not in lines[4]
    assert "reason" not in command("evaluate", path, "--vary", "tensor parallel=8").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["evaluate", "--vary", "tensor parallel=4,8"], "2 plans"),
        (["explain"], "operators"),
        (["search", "--vary", "tensor parallel=8"], "1 plan"),
        (["search", "--vary", "num accelerators=64", "--target", "step time<=100"], "1 plan"),
        (["evaluate"], "1 training plan"),
    ],
)
@pytest.mark.parametrize("ending", [".csv", ".xlsx"])
def test_a_command_says_what_it_wrote(
    arguments: list[str], said: str, ending: str, tmp_path: Path, command: Command
) -> None:
    path = csv_of(tmp_path / "plans.csv", f"{PLAN},8", header=f"{HEADER},tensor parallel")
    output = tmp_path / f"out{ending}"
    done = command(arguments[0], path, *arguments[1:], "-o", output)
    assert (done.code, done.out) == (0, "")
    last = done.err.splitlines()[-1]
    assert last.startswith(f"{output}: ") and last.endswith(said)


def test_published_rows_in_parquet_are_refused_in_a_line(tmp_path: Path, command: Command) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1" + os.urandom(50) + b"PAR1")
    done = command("validate", path)
    assert (done.code, done.err) == (
        2,
        "rows.parquet: published rows are read from a workbook (.xlsx) or CSV, got a Parquet file\n",
    )


def test_a_report_uses_shipped_servers_of_known_accelerators_only(tmp_path: Path, command: Command) -> None:
    done = command("report", write(tmp_path / "own.xlsx", sheets()), "-o", tmp_path / "report.xlsx")
    said = f"{tmp_path / 'report.xlsx'}: 1 of 2 plans legal: network DGX-A100 connects 8 accelerators at most"
    assert (done.code, done.err) == (0, f"{said}, the plan has 64\n")


def test_all_faults_are_in_the_error_and_hints_for_those_that_are_shown() -> None:
    asked: list[int] = []
    error = InputError([Fault(f"p{i}", f"unknown {i}", lambda i=i: asked.append(i) or "known: x") for i in range(120)])
    assert len(str(error).splitlines()) == 120
    assert len(asked) == 50
    assert str(error).splitlines()[0] == "p0: unknown 0; known: x"
    assert error.lines()[-1] == "... and 70 more faults"


def test_a_fault_that_many_rows_share_is_one_line_with_a_count(tmp_path: Path, command: Command) -> None:
    """7,320 plans of one unknown model printed as many lines; three or fewer are listed one by one."""
    header = "model,accelerator,num accelerators\n"
    for count, lines in ((3, 3), (4, 1), (7320, 1)):
        (tmp_path / "plans.csv").write_text(header + "Foo,H100-SXM-80GB,8\n" * count, encoding="utf-8")
        for name in ("evaluate", "check"):
            done = command(name, tmp_path / "plans.csv")
            assert done.code == 2
            assert len(done.err.splitlines()) == lines
    assert done.err.startswith(
        'plans.csv [line 2, model] and 7,319 more, the last at plans.csv [line 7321, model]: unknown model "Foo"'
    )


def test_currency_and_huge_values_do_not_break_messages() -> None:
    header = ["model", "accelerator", "num accelerators"]
    for value in (decimal.Decimal("1e999999"), 10**5000, b"\xff", object):
        problem = refused(lambda kind, value=value: table_from_rows(kind, header, [["a", "b", value]]), "training")
        assert problem.startswith("row 1, num accelerators: num accelerators must be") and len(problem) < 300


def test_the_help_of_each_command_ends_with_a_page_of_the_guide() -> None:
    for name, task in cli.tasks().items():
        help_ = task.get_help(click.Context(task))
        topic = help_.rstrip().rpartition("Guide: xlperf guide ")[2]
        assert (ROOT / "xlperf" / "guide" / f"{topic}.md").is_file(), name


def test_nearest_names_are_the_shortest_and_reach_names_before_brackets() -> None:
    assert nearest("5090", ["NVIDIA GeForce RTX 5090", "RTX 5090", "MI300X"]).startswith("did you mean RTX 5090, ")
    assert nearest("Rubn", ["Trn1", "Rubin (VR200)", "B200"]).startswith("did you mean Rubin (VR200)")
    assert nearest("Lama3-70B", ["Llama3-70B-l12", "Llama-3-70B", "Llama3-70B"]).startswith("did you mean Llama")
