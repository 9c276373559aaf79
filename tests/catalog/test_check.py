"""A workbook as text, and what a check of it says."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Outcome, show
from excel_samples import write_as_excel
from openpyxl import load_workbook
from workbook_samples import set_cell, sheets, without_column, write

from xlperf.catalog.check import check


@pytest.fixture
def workbook(tmp_path: Path) -> Path:
    return write(tmp_path / "xlperf.xlsx", sheets())


# --- show and check --------------------------------------------------------------------------------------------------


def test_workbook_as_text(tmp_path: Path) -> None:
    content = {"networks": sheets()["networks"], "notes": [["a\tb\nc\\d", None, 0.1, True], [None], ["=SUM(1,2)"]]}
    assert show(write(tmp_path / "study.xlsx", content, tables=False)) == (
        "# networks\n"
        "network\ttier\tsize\tlink bandwidth (GB/s)\tlatency (us)\ttopology\tsource\tyear\n"
        "DGX-H100\t1\t8\t450\t1\tswitch\tdatasheet\t2022\n"
        "DGX-H100\t2\t1024\t50\t5\tfat-tree\tdatasheet\t2022\n"
        "DGX-A100\t1\t8\t300\t1\tswitch\tdatasheet\t2020\n"
        "# notes\n"
        "a\\tb\\nc\\\\d\t\t0.1\tTRUE\n"
        "=SUM(1,2)\n"
    )


def test_formulas_are_shown_as_formulas(tmp_path: Path) -> None:
    assert show(write_as_excel(tmp_path / "excel.xlsx", 2)).splitlines() == [
        "# Training\ttable Training_1 B3:I7",
        "\tname",
        "\tname\tmodel\taccelerator\tnum accelerators\ttensor parallel\tsequence parallel\tglobal batch size\t"
        "step time (s)",
        '\ttwo\\nlines\tllama-2-7b \t="H"&100\t=2*4\t=E4/4\tTRUE\t16\t=1/0',
        '\t=IF(1,"","")\tgpt-3\tA100\t16\t=E6/4\tFALSE\t1911-03-19\t{=SUM(E4:E6)}',
        "\t\t0",
    ]


def test_one_changed_cell_changes_one_line_of_the_text(workbook: Path, tmp_path: Path) -> None:
    before = show(workbook)
    after = show(write(tmp_path / "xlperf.xlsx", set_cell(sheets(), "accelerators!E2", 3.9)))
    changed = [pair for pair in zip(before.splitlines(), after.splitlines(), strict=True) if pair[0] != pair[1]]
    assert [pair[1].split("\t")[4] for pair in changed] == ["3.9"]


def test_text_of_a_workbook_does_not_depend_on_the_program(workbook: Path, tmp_path: Path) -> None:
    book = load_workbook(workbook)
    book["models"].column_dimensions["A"].width = 40
    book.save(tmp_path / "again.xlsx")
    assert show(tmp_path / "again.xlsx") == show(workbook)


def test_check_says_what_is_doubtful(tmp_path: Path) -> None:
    content = sheets()
    set_cell(content, "accelerators!I2", None)
    set_cell(content, "accelerators!J3", None)
    set_cell(content, "accelerators!G3", None)
    set_cell(content, "networks!D3", 900)
    set_cell(content, "networks!C3", 1001)
    set_cell(content, "models!E3", 97)
    set_cell(content, "prices!C2", 2019)
    content["training"].append(["A", *content["training"][1][1:]])
    content["Inferences"] = [["x"], [1]]
    result = check(write(tmp_path / "study.xlsx", content), today=datetime.date(2026, 1, 1))
    assert result.ok
    assert result.counts == {
        "accelerators": 2, "networks": 3, "models": 2, "prices": 2, "calibration": 2, "training": 3,
    }  # fmt: skip
    assert result.lines() == [
        "study.xlsx [Inferences]: doubtful: the sheet is not read; if inference is meant, give it that name",
        'study.xlsx [accelerators!I2]: doubtful: "H100" has no source',
        'study.xlsx [accelerators!J3]: doubtful: "A100" has no year',
        'study.xlsx [prices!C2]: doubtful: the price of "H100" is of 2019, more than 3 years ago',
        'study.xlsx [accelerators!G3]: doubtful: "A100" has no default network: every plan on several of '
        "them must name one",
        'study.xlsx [networks!D3]: doubtful: tier 2 of "DGX-H100" is faster than the tier inside it',
        'study.xlsx [networks!C3]: doubtful: size of tier 2 of "DGX-H100" is no multiple of the tier inside it',
        'study.xlsx [models!A3]: doubtful: hidden size of "gpt-3" is no multiple of its attention heads; give the head '
        "size",
        'study.xlsx [training!A4]: doubtful: another plan is named "A", at study.xlsx [training!A2]',
        "study.xlsx [training!A4]: doubtful: the plan is the same as that at study.xlsx [training!A2]",
        "study.xlsx: 2 accelerators, 3 networks, 2 models, 2 prices, 2 calibration, 3 training; 0 failed, 10 doubtful",
    ]


def test_check_of_rates_and_prices(tmp_path: Path) -> None:
    content = without_column(sheets(), "prices", "source")
    content["prices"][2:] = []
    for row, extra in zip(
        content["accelerators"], (["peak flop rate fp8", "l2 bandwidth"], [900, 3], [1, 5]), strict=True
    ):
        row += extra
    content["accelerators"][2][10] = None
    for row, extra in zip(content["models"], ("num query groups", 5, 96), strict=True):
        row.append(extra)
    lines = check(write(tmp_path / "study.xlsx", content), today=datetime.date(2026, 1, 1)).lines()
    assert lines[:-1] == [
        'study.xlsx [prices!A2]: doubtful: "H100" has no source',
        'study.xlsx [accelerators!K2]: doubtful: "H100" is faster in bf16 than in fp8',
        'study.xlsx [accelerators!L2]: doubtful: the L2 of "H100" is slower than its memory',
        'study.xlsx [accelerators!A3]: doubtful: "A100" has no price: plans on it have no cost',
        'study.xlsx [models!K2]: doubtful: attention heads of "llama-2-7b" are no multiple of its query groups',
    ]


def test_check_says_once_what_many_rows_lack(tmp_path: Path) -> None:
    content = without_column(sheets(), "models", "source")
    content["models"] += [[f"model {row}", None, *content["models"][1][2:]] for row in range(40)]
    lines = check(write(tmp_path / "study.xlsx", content), today=datetime.date(2026, 1, 1)).lines()
    assert lines[:-1] == ['study.xlsx [models!A2]: doubtful: "llama-2-7b" and 41 more have no source']


def test_check_runs_the_tests_that_need_equations(workbook: Path, command: Callable[..., Outcome]) -> None:
    from xlperf.base.errors import Fault

    result = check(workbook, [lambda catalog: [Fault(catalog.origin, "a model is not what it says")]])
    assert not result.ok
    assert result.lines()[0] == "xlperf.xlsx: a model is not what it says"
    outcome = command("check", workbook)
    assert (outcome.code, outcome.err) == (0, "")


def test_a_row_left_further_below_a_table_is_told_of(tmp_path: Path) -> None:
    path = write(tmp_path / "study.xlsx", sheets())
    book = load_workbook(path)
    last = book["prices"].max_row
    book["prices"].cell(last + 4, 1, "H100")
    book["prices"].cell(last + 4, 2, 30_000)
    book["prices"].cell(last + 7, 1, "Prices without tax.")  # a remark, not a row
    book.save(path)
    outside = [str(fault) for fault in check(path).warnings if "is not read" in fault.problem]
    assert outside == [
        f'study.xlsx [prices!A{last + 4}]: the row stands below the table "prices" (A1:D{last}) and is not read; '
        "move it into a blank row of the table, or extend the table"
    ]


# --- doubts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "value", "line"),
    [
        ("accelerators!E2", 1e-6, "[accelerators!E2]: memory bandwidth 1e-06 TB/s is "),
        ("prices!B2", 1e40, "[prices!B2]: capex 1e+40 USD is "),
        ("networks!C3", 5e11, "[networks!C3]: size 500000000000 is "),
        ("training!D2", 1e12, "[training!D2]: num accelerators 1000000000000 is "),
    ],
)
def test_numbers_far_beyond_all_others_are_doubted(cell: str, value: float, line: str, tmp_path: Path) -> None:
    def far(content: Any) -> list[str]:
        result = check(write(tmp_path / "xlperf.xlsx", content), today=datetime.date(2025, 1, 1))
        return [str(fault) for fault in result.warnings if "of all other rows" in fault.problem]

    assert far(sheets()) == []
    (said,) = far(set_cell(sheets(), cell, value))
    assert line in said
    assert said.endswith("check its zeros and its unit")
    assert ("above the largest" in said) is (value > 1.0)


def test_the_shipped_workbook_has_no_far_numbers() -> None:
    from xlperf.base.resources import workbook

    assert not [fault for fault in check(workbook()).warnings if "of all other rows" in fault.problem]
