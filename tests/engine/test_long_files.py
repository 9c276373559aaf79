"""Files of any length: blocks of them hold what the whole holds, and are computed by several processes."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import Outcome

from xlperf.base.errors import InputError
from xlperf.catalog import csv_files as blocks_module
from xlperf.catalog.csv_files import CsvFile, csv_blocks, read_csv
from xlperf.catalog.read import plan_blocks, read_plans
from xlperf.catalog.schema import column
from xlperf.catalog.table import Table
from xlperf.cli import blocks
from xlperf.cli.output import Legal
from xlperf.cli.table_files import ARROW_ROWS, csv_rows, texts
from xlperf.explore.search import stacked

HEADER = "name,model,accelerator,num accelerators,tensor parallel,network"
PLAIN = "plan {},Llama3-70B,H100-SXM-80GB,{},8,"
ODD = {
    "quoted": '"a, b {}",Llama3-70B,"H100-SXM-80GB",{},8,"says ""no"""',
    "broken line": '"two\nlines {}",Llama3-70B,H100-SXM-80GB,{},8,',
    "blank": "\n,,,,,\nplan {},Llama3-70B,H100-SXM-80GB,{},8,",
    "short": "plan {},Llama3-70B,H100-SXM-80GB,{}",
    "apostrophe": "'=plan {},Llama3-70B,H100-SXM-80GB,{},8,'@x",
    "quotation mark within": '5" plan {},Llama3-70B,H100-SXM-80GB,{},8,6"',
    "half a quotation mark": '5" plan {},Llama3-70B,H100-SXM-80GB,{},8,',
    "letters": "Plän \u2028 {},Llama3-70B,H100-SXM-80GB,{},8,中",
}


def _cells(result: CsvFile) -> list[list[object]]:
    texts = [[distinct[code] for code in codes.tolist()] for codes, distinct in result.columns if distinct is not None]
    return [list(row) for row in zip(*texts, strict=True)]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("separator", [",", ";"])
def test_blocks_hold_what_the_whole_file_holds(
    odd: str, end: str, separator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks_module, "_FIRST", 2_000)
    monkeypatch.setattr(blocks_module, "_LEAST", 700)
    lines = [(ODD[odd] if 150 <= row < 160 else PLAIN).format(row, 8 * (row % 5 + 1)) for row in range(300)]
    path = tmp_path / "plans.csv"
    path.write_bytes(end.join([HEADER, *lines]).replace(",", separator).encode("utf-8"))
    whole = read_csv(path)
    result = list(csv_blocks(path, lambda header: set(range(len(header))), 10))
    assert len(result) > 5
    assert [row for block in result for row in _cells(block)] == _cells(whole)
    assert [int(line) for block in result for line in block.locate.lines] == whole.locate.lines.tolist()


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_plans_in_blocks_are_the_plans(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "_FIRST", 2_000)
    monkeypatch.setattr(blocks_module, "_LEAST", 700)
    path = tmp_path / f"plans.{ending}"
    text = "\n".join([HEADER, *(PLAIN.format(row, 8 * (row % 5 + 1)) for row in range(300))])
    frame = pd.read_csv(io.StringIO(text))
    frame.to_csv(path, index=False) if ending == "csv" else frame.to_parquet(path, index=False)
    (whole,) = read_plans(path)
    tables: list[Table] = []
    for block in plan_blocks(path, 40):
        table, faults = block.table()
        assert not faults
        assert table.place(0, "model") == whole.place(sum(map(len, tables)), "model")
        tables.append(table)
    assert len(tables) > 5
    joined = stacked(tables)
    for name, values in whole.columns.items():
        assert joined[name].tolist() == values.tolist() or np.isnan(values).all(), name


def test_rows_longer_than_the_header_are_all_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "_FIRST", 2_000)
    path = tmp_path / "plans.csv"
    lines = [PLAIN.format(row, 8) + ("x,y" if row in (70, 250) else "") for row in range(300)]
    path.write_text("\n".join([HEADER, *lines]))
    with pytest.raises(InputError) as refused:
        list(csv_blocks(path, lambda header: {0, 1}, 10))
    assert [fault.place for fault in refused.value.faults] == ["plans.csv [line 72]", "plans.csv [line 252]"]


def test_arrow_writes_the_text_that_python_writes() -> None:
    random = np.random.default_rng(7)
    size = ARROW_ROWS + 2_000
    numbers = 10.0 ** random.uniform(-320.0, 300.0, size) * random.choice([-1.0, 1.0], size)
    numbers[: size // 2] = 10.0 ** random.uniform(-6.0, 18.0, size // 2)
    numbers[:9] = 0.0, -0.0, np.nan, np.inf, -np.inf, 1e16, 1e10, 1e-4, 5e-324
    words = np.array(['a,"b"', "=1+1", "", "two\nlines", "x;@y", "-", "é\r", "plain"], dtype=object)
    block = [
        (column("training_results", "step_time"), numbers),
        (column("training_results", "reason"), words[random.integers(0, len(words), size)]),
        (column("training_results", "fits"), random.choice([0.0, 1.0, np.nan], size)),
        (column("training", "sequence_parallel"), random.choice([0.0, 1.0, np.nan], size)),
        (column("training_results", "mfu"), np.full(size, np.nan)),
    ]
    stream = io.StringIO(newline="")
    csv.writer(stream, lineterminator="\n").writerows(zip(*(texts(*part) for part in block), strict=True))
    assert csv_rows(block).decode() == stream.getvalue()


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_processes_do_not_change_a_file(ending: str, tmp_path: Path, catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "_FIRST", 20_000)
    monkeypatch.setattr(blocks_module, "_LEAST", 7_000)
    monkeypatch.setattr(blocks, "ROWS", 300)
    plans = tmp_path / "plans.csv"
    plans.write_text("\n".join([HEADER, *(PLAIN.format(row, 8 * (row % 5 + 1)) for row in range(3_000))]))
    for processes in (1, 2):
        output = str(tmp_path / f"{processes}.{ending}")
        assert blocks.write_evaluated(str(plans), output, catalog, {}, processes) == (
            Legal(3_000, 3_000, ""),
            "training",
        )
    assert (tmp_path / f"1.{ending}").read_bytes() == (tmp_path / f"2.{ending}").read_bytes()


def test_every_fault_of_a_long_file_is_said(tmp_path: Path, command: Callable[..., Outcome]) -> None:
    lines = [PLAIN.format(row, 8) for row in range(60_000)]
    lines[10], lines[59_990] = PLAIN.format(10, "many"), PLAIN.format(59_990, -8)
    path = tmp_path / "plans.csv"
    path.write_text("\n".join([HEADER, *lines]))
    done = command("evaluate", path, "-o", tmp_path / "out.parquet")
    assert done.code == 2
    assert [line.split("]")[0] for line in done.err.splitlines()] == [
        "plans.csv [line 12, num accelerators",
        "plans.csv [line 59992, num accelerators",
    ]
    assert not (tmp_path / "out.parquet").exists()
