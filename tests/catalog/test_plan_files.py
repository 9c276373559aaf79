"""Plans from CSV, Parquet, standard input and cells are the same tables."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import openpyxl
import pyarrow as pa
import pytest
from pyarrow import parquet
from work import calls

from xlperf.addin.cells import read_block, read_plans_of
from xlperf.base.errors import InputError
from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.cells import plan_kind, table_kind
from xlperf.catalog.parse import table_from_columns, table_from_rows
from xlperf.catalog.read import read_plans
from xlperf.catalog.table import Table
from xlperf.engine import evaluate

PLAN_HEADER = ["model", "accelerator", "num accelerators", "tensor parallel", "sequence parallel", "precision"]


# --- plans from text and cells ---------------------------------------------------------------------------------------

CSV = """Model,accelerator,num_accelerators,tensor parallel,Sequence Parallel,precision,mfu
gpt-3,A100,1024,8,yes,BF16,0.4
"llama-2-7b",H100,8,auto,,Auto,
"""


def test_plans_of_a_csv_file(tmp_path: Path) -> None:
    path = tmp_path / "plans.csv"
    path.write_text(CSV)
    (plans,) = read_plans(path)
    assert list(plans.columns) == [header.replace(" ", "_") for header in PLAN_HEADER]
    assert plans["num_accelerators"].tolist() == [1024, 8]
    assert plans["precision"].tolist() == ["bf16", ""]
    assert {name: mask.tolist() for name, mask in plans.auto.items()} == {
        "tensor_parallel": [False, True],
        "precision": [False, True],
    }
    assert np.isnan(plans["tensor_parallel"][1])
    assert plans.place(1, "precision") == "plans.csv [line 3, precision]"


@pytest.mark.parametrize(
    "content",
    [
        CSV.encode("utf-8-sig"),
        CSV.encode("utf-16"),
        CSV.replace(",", ";").encode(),
        CSV.replace(",", "\t").encode(),
        CSV.replace("\n", "\r\n").encode(),
        CSV.replace("\n", "\n\n,,,,,,\n").encode(),
        CSV.replace(",\n", "\n").encode(),
    ],
)
def test_csv_as_other_programs_write_it(content: bytes, tmp_path: Path) -> None:
    expected, path = tmp_path / "expected.csv", tmp_path / "plans.csv"
    expected.write_text(CSV)
    path.write_bytes(content)
    _same(read_plans(path)[0], read_plans(expected)[0])


def test_plans_on_standard_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "plans.csv"
    path.write_text(CSV)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(CSV.encode())))
    (plans,) = read_plans("-")
    _same(plans, read_plans(path)[0])
    assert plans.place(0, "precision") == "standard input [line 2, precision]"


def test_plans_of_a_parquet_file(tmp_path: Path) -> None:
    columns = {"model": ["a", "b"], "accelerator": ["x", None], "num_accelerators": [8, 16], "step_time": [1.0, 2.0]}
    path = tmp_path / "plans.parquet"
    parquet.write_table(pa.table(columns), path)
    with pytest.raises(InputError, match=r"plans.parquet \[row 2, column accelerator\]: accelerator is missing"):
        read_plans(path)
    parquet.write_table(pa.table({**columns, "accelerator": ["x", "y"]}), path)
    (plans,) = read_plans(path)
    assert plans["num_accelerators"].tolist() == [8, 16]
    assert plans["accelerator"].tolist() == ["x", "y"]


def test_cells_columns_and_cards_give_the_same_table(tmp_path: Path) -> None:
    row = ["gpt-3", "A100", 1024, 8, True, "BF16"]
    from_rows = table_from_rows("training", PLAN_HEADER, [row])
    card = [list(pair) for pair in zip(PLAN_HEADER, row, strict=True)]
    _same(from_rows, read_plans_of(read_block(card, None)))
    columns = {name: np.array([value]) for name, value in zip(PLAN_HEADER, row, strict=True)}
    _same(from_rows, table_from_columns("training", columns))
    path = tmp_path / "plans.csv"
    path.write_text("\n".join(CSV.splitlines()[:2]))
    _same(from_rows, read_plans(path)[0])


def test_blank_rows_are_left_out_or_kept(tmp_path: Path) -> None:
    rows = [["a", "b", 1, None, None, ""], [None, "", "  ", None, None, float("nan")], ["c", "d", 2, None, None, None]]
    table = table_from_rows("training", PLAN_HEADER, rows)
    assert table["model"].tolist() == ["a", "c"]
    assert table.place(1, "model") == "row 3, model"
    with pytest.raises(InputError, match="row 2, model: model is missing"):
        table_from_rows("training", PLAN_HEADER, rows, skip_empty=False)


def test_rows_of_units_and_of_totals_are_left_out() -> None:
    header = ["model", "accelerator", "num accelerators", "prompt length", "output length", "TTFT limit (s)"]
    plans = [["a", "b", 1, 1000, 100, 1], ["c", "d", 2, 1000, 100, 1]]
    units, totals = [None, "-", "#", "tokens", "tokens", "s"], ["Total", None, 3, 2000, 200, None]
    table = table_from_rows("inference", header, [units, *plans, totals])
    assert table["model"].tolist() == ["a", "c"]
    assert table.place(1, "model") == "row 3, model"
    with pytest.raises(InputError, match="row 1, TTFT limit"):
        table_from_rows("inference", header, [[*units[:-1], "ms"], *plans])
    with pytest.raises(InputError, match="row 3, prompt length"):
        table_from_rows("inference", header, [*plans, units])


SERVED = ["model", "accelerator", "num accelerators", "prompt length", "output length", "concurrency"]
ROWS = [["a", "b", 8, 1000, 100, 16], ["c", "d", 16, 2000, 100, 32]]
GROUPS = ["Model", "", "Hardware", "Workload", "", ""]  # a row of groups of columns, the first as a column is called
UNITS = ["(text)", "(text)", "(GPUs)", "[tokens]", "(tokens)", "(req)"]
EMPTY = [""] * len(SERVED)


@pytest.mark.parametrize(
    "rows",
    [
        [GROUPS, SERVED, *ROWS],
        [["Capacity plan"], ["of the third quarter"], EMPTY, GROUPS, SERVED, *ROWS],
        [SERVED, UNITS, ROWS[0], ["Subtotal:", "", 8, "", "", 16], ROWS[1], EMPTY, ["Grand total", "", 24, "", "", 48]],
        [["Site", *SERVED], ["x", *ROWS[0]], ["y", *ROWS[1]], ["Total", "", "", 24, "", "", 48]],
        [SERVED, *ROWS, EMPTY, ["Assumptions:"], ["prices of 2026"], EMPTY, ["checked by a colleague"]],
    ],
)
@pytest.mark.parametrize("form", ["xlsx", ",", "|", ", padded"])
def test_titles_groups_units_totals_and_notes_are_no_plans(rows: list[list[object]], form: str, tmp_path: Path) -> None:
    if form == "xlsx":
        path, book = tmp_path / "plans.xlsx", openpyxl.Workbook()
        book.worksheets[0].title = "inference"
        for row in rows:
            book.worksheets[0].append([cell if cell != "" else None for cell in row])
        book.save(path)
    else:
        path, width = tmp_path / "plans.csv", len(SERVED) + 1 if "padded" in form else 0
        lines = [[*map(str, row), *[""] * (width - len(row))] for row in rows]
        path.write_text("\n".join(form[0].join(line) for line in [["# exported"], *lines]), encoding="utf-8")
    (plans,) = read_plans(path)
    assert [plans[name].tolist() for name in ("model", "concurrency")] == [["a", "c"], [16, 32]]
    line, column = next((at, row.index("c")) for at, row in enumerate(rows, 1 + (form != "xlsx")) if "c" in row)
    assert plans.place(1, "model") in (
        f"plans.xlsx [inference!{'AB'[column]}{line}]",
        f"plans.csv [line {line}, model]",
    )


def test_a_plan_without_its_numbers_is_no_note(tmp_path: Path) -> None:
    """A row of one value counts if plans follow, or if no row is free before it."""
    path = tmp_path / "plans.csv"
    header, (first, last) = ",".join(SERVED), [",".join(map(str, row)) for row in ROWS]
    for rows, line in (([first, "", "c", last], 4), ([first, last, "c"], 4)):
        path.write_text("\n".join([header, *rows]), encoding="utf-8")
        with pytest.raises(InputError, match=rf"line {line}, accelerator\]: accelerator is missing"):
            read_plans(path)


def test_columns_of_numbers_are_checked_at_once() -> None:
    columns = {
        "model": np.array(["a"] * 4, dtype=object),
        "accelerator": np.array(["b"] * 4, dtype=object),
        "num accelerators": np.array([8, np.nan, np.inf, 0.5]),
        "sequence parallel": np.array([True, False, True, False]),
        "tensor parallel": np.array([1, 2, 3, 4]),
    }
    with pytest.raises(InputError) as caught:
        table_from_columns("training", columns)
    expects = "a whole number of at least 1"
    assert str(caught.value).splitlines() == [
        f"row 2, num accelerators: num accelerators is missing; it must be {expects}",
        f"row 3, num accelerators: num accelerators must be {expects}, got inf",
        f"row 4, num accelerators: num accelerators must be {expects}, got 0.5",
    ]
    columns["num accelerators"] = np.array([8, 8, 8, 8])
    table = table_from_columns("training", columns)
    assert table["sequence_parallel"].tolist() == [1, 0, 1, 0]
    assert table["tensor_parallel"].tolist() == [1, 2, 3, 4]


def test_kind_of_a_header() -> None:
    assert plan_kind(["model", "Prompt Length (-)"]) == "inference"
    assert table_kind([None, "Network", "tier"]) == "networks"
    assert table_kind(["name", "model", "prompt_length"]) == "inference"
    with pytest.raises(InputError, match="the first header must name the kind of table"):
        table_kind(["colour", "size"])


NUM_PLANS = 20_000


def test_twenty_thousand_plans_of_csv_take_few_calls_each(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    header = "name,model,accelerator,num_accelerators,tensor_parallel,pipeline_parallel,global_batch_size,precision"
    counts = random.integers(1, 2000, (NUM_PLANS, 4)).tolist()
    path = tmp_path / "plans.csv"
    path.write_text(
        "\n".join([header, *(f"plan {row},gpt-3,A100,{a},{b},{c},{d},bf16" for row, (a, b, c, d) in enumerate(counts))])
    )
    count, (plans,) = calls(lambda: read_plans(path))
    assert count < 80 * NUM_PLANS  # 35 to 45: columns are read whole
    assert len(plans) == NUM_PLANS
    assert plans["global_batch_size"].tolist() == [float(row[3]) for row in counts]
    assert plans["name"][NUM_PLANS - 1] == f"plan {NUM_PLANS - 1}"


def _same(one: Table, other: Table) -> None:
    assert one.kind == other.kind
    assert list(one.columns) == list(other.columns)
    for name in one.columns:
        assert one[name].dtype == other[name].dtype
        np.testing.assert_array_equal(one[name], other[name])
    assert {name: mask.tolist() for name, mask in one.auto.items()} == {
        name: mask.tolist() for name, mask in other.auto.items()
    }


def test_the_only_sheet_of_plans_is_read_whatever_its_name(tmp_path: Path) -> None:
    """Excel names a new sheet Sheet1; headers with a mean, a target, a question mark."""
    header = [
        "Model",
        "GPU",
        "GPUs",
        "Avg prompt len",
        "Mean output tokens",
        "Concurrency",
        "Target TTFT (ms)",
        "Fits?",
    ]
    path, book = tmp_path / "plan.xlsx", openpyxl.Workbook()
    book.worksheets[0].title = "Sheet1"
    for row in (header, ["Llama3-70B", "H100", 8, 1000, 100, 16, 500, "yes"]):
        book.worksheets[0].append(row)
    book.save(path)
    (table,) = read_plans(path)
    assert table.kind == "inference"
    assert [table.number(name)[0] for name in ("prompt_length", "output_length", "ttft_target")] == [1000, 100, 0.5]
    book.create_sheet("Notes").append(["of the capacity study"])
    book.save(path)
    assert len(read_plans(path)[0]) == 1
    for row in (header[:5], ["Llama3-70B", "H100", 8, 1000, 100]):
        book["Notes"].append(row)
    book.save(path)
    with pytest.raises(InputError, match='there is no sheet "training" or "inference"; known: Sheet1, Notes'):
        read_plans(path)


def test_shares_in_percent_and_other_spellings_of_choices_are_read(tmp_path: Path) -> None:
    """Exports of a sheet in percent; dtypes of PyTorch; --kv-cache-dtype of engines; a rate of requests, no mode."""
    path = tmp_path / "plans.csv"
    path.write_text(
        "model,GPU,GPUs,ISL,OSL,precision,kv cache dtype,memory fraction,QPS,TP\n"
        "Llama3-70B,H100-SXM-80GB,8,1000,100,bfloat16,fp8_e4m3,90%,0.5,8\n"
        "Llama3-70B,H100-SXM-80GB,8,1000,100,FP8 (E4M3),half,92.5 %,0.5,8\n"
    )
    (table,) = read_plans(path)
    assert table.text("precision").tolist() == ["bf16", "fp8"]
    assert table.text("kv_precision").tolist() == ["fp8", "fp16"]
    assert table.number("memory_fraction").tolist() == [0.9, 0.925]
    assert np.isfinite(evaluate(table, load_catalog()).number("tpot")).all()
    path.write_text("model,accelerator,num accelerators\nLlama3-70B,H100-SXM-80GB,50%\n")
    with pytest.raises(InputError, match='must be a whole number of at least 1, got "50%"'):
        read_plans(path)


def test_columns_of_the_other_kind_of_plans_may_stand_blank(tmp_path: Path) -> None:
    """One header of a cluster's plans serves both kinds; a value that would count for nothing is refused as before."""
    header = "name,model,GPU,GPUs,TP,PP,EP,MBS,GBS,ISL,OSL,concurrency"
    plans, serving = tmp_path / "plans.csv", "a,Llama3-8B,H100,8,1,1,1,{},,1000,200,64"
    plans.write_text(f"{header}\n{serving.format('')}\n")
    assert evaluate(read_plans(plans)[0], load_catalog()).number("tpot")[0] > 0.0
    plans.write_text(f"{header}\n{serving.format('2')}\n")
    refused = 'unknown column "MBS"; it is a column of training plans'
    with pytest.raises(InputError, match=refused):
        read_plans(plans)
    with pytest.raises(InputError, match=refused):
        table_from_rows("inference", header.split(","), [serving.format("2").split(",")])
