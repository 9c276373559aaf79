"""What spreadsheets make of cells, and how people name columns and engines."""

from __future__ import annotations

import datetime
from pathlib import Path

import openpyxl
import pytest

from xlperf.base.errors import InputError
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.read import read_plans

HEADER = ["name", "model", "accelerator", "num accelerators", "prompt length", "output length", "concurrency"]
PLAN = ["a", "Llama3-70B", "H100-SXM-80GB", 8, 1000, 100, 16]


def test_a_date_is_no_number_of_a_plan(tmp_path: Path) -> None:
    """Spreadsheets make a date of 4/8; a count in a date format stays a count."""
    for value, words in ((datetime.date(2026, 8, 4), "got the date 2026-08-04"), (datetime.date(1900, 1, 8), "")):
        book, path = openpyxl.Workbook(), tmp_path / "dates.xlsx"
        book.worksheets[0].title = "inference"
        for row in (HEADER, [*PLAN[:3], value, *PLAN[4:]]):
            book.worksheets[0].append(row)
        book.save(path)
        if words:
            with pytest.raises(InputError, match=rf"\[inference!D2\]: num accelerators .*{words}"):
                read_plans(path)
        else:
            assert read_plans(path)[0]["num_accelerators"].tolist() == [8.0]


@pytest.mark.parametrize("title", ["# my plans", "Capacity plan,,,,,,", "Plan;;;;;;\n"])
def test_a_title_above_a_text_table_is_left_out(title: str, tmp_path: Path) -> None:
    separator = ";" if ";" in title else ","
    rows = [separator.join(map(str, row)) for row in (HEADER, PLAN)]
    (tmp_path / "plans.csv").write_text("\n".join([title, *rows, ""]), encoding="utf-8")
    (table,) = read_plans(tmp_path / "plans.csv")
    assert table["concurrency"].tolist() == [16.0] and table.place(0, "model").startswith("plans.csv [line")


def test_names_of_engines_as_people_write_them() -> None:
    header = ["model", "GPU", "GPUs", "ISL [tokens]", "OSL (tok)", "Max concurrency", "Framework", "TTFT (ms)"]
    rows = [
        ["Llama3-8B", "H100", 1, 1000, 200, 64, name, 50]
        for name in ("vLLM v0.8.5", "TRT-LLM", "sglang", "vllm-0.6", "home-made 2")
    ]
    table = table_from_rows("inference", header, rows)
    assert table["software"].tolist() == ["vllm", "tensorrt-llm", "sglang", "vllm-0.6", "home-made 2"]
    assert table["software_release"].tolist() == ["0.8.5", "", "", "", ""]
    assert table["concurrency"].tolist() == [64.0] * 5 and table["prompt_length"].tolist() == [1000.0] * 5
    assert "concurrency" not in table_from_rows("inference", [*header, "fits"], [[*row, "yes"] for row in rows])


@pytest.mark.parametrize(
    "units", [["", "", "-", "GPUs", "tokens", "tokens", "ms"], [None, "", "", "", "tok", "tok", "[s]"]]
)
def test_a_row_of_units_below_the_header_belongs_to_the_header(units: list[str | None], tmp_path: Path) -> None:
    book, path = openpyxl.Workbook(), tmp_path / "units.xlsx"
    book.worksheets[0].title = "inference"
    target = 2000 if units[-1] == "ms" else 2
    for row in ([*HEADER[:-1], "TTFT target"], units, [*PLAN[:-1], target], ["b", *PLAN[1:-1], "x"]):
        book.worksheets[0].append(row)
    book.save(path)
    with pytest.raises(InputError, match=r"\[inference!G4\]: ttft target") as refused:
        read_plans(path)
    assert str(refused.value).count("\n") == 0
    book.worksheets[0].delete_rows(4)
    book.save(path)
    (table,) = read_plans(path)
    assert table["ttft_target"].tolist() == [2.0] and table["prompt_length"].tolist() == [1000.0]
