"""Files that commands write: headers carry units as those of sheets do, and what is written can be read again."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import openpyxl
import pytest
from conftest import Outcome
from published_samples import TRAINING

from xlperf.base.errors import InputError
from xlperf.base.resources import workbook
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.read import read_designs, read_plans
from xlperf.catalog.schema import Column, schema, split_header
from xlperf.catalog.table import Table
from xlperf.engine import evaluate

Run = Callable[..., Outcome]
TRAIN = (
    "name,model,accelerator,num accelerators,tensor parallel,pipeline parallel,global batch size\n"
    "one,Llama3-70B,H100-SXM-80GB,64,8,4,64\ntwo,Llama3-70B,H100-SXM-80GB,64,8,8,64\n"
)
SERVE = (
    "name,model,accelerator,num accelerators,tensor parallel,prompt length,output length,ttft target (s)\n"
    "one,Llama3-70B,H100-SXM-80GB,8,8,1000,100,0.5\ntwo,Llama3-70B,H100-SXM-80GB,8,4,1000,100,2\n"
)
PLAN_COMMANDS = {
    "evaluate": (),
    "search": ("--vary", "tensor parallel=4,8", "--top", "2"),
    "evaluate --vary": ("--vary", "tensor parallel=4,8", "--vary", "accelerators.memory bandwidth=x1,x2"),
    "search --target": ("--vary", "num accelerators=64,128", "--target"),
    "cost": (),
    "search --frontier": ("--frontier", "--vary", "tensor parallel=4,8", "--points", "4"),
}
CASES = [
    (name, kind)
    for name in PLAN_COMMANDS
    for kind in ("training", "inference")
    if (name, kind) != ("search --frontier", "training")
]


@pytest.fixture
def written(tmp_path: Path, command: Run) -> Callable[[str, str, str], Path]:
    """A command on plans of a kind, and its output."""

    def write(name: str, kind: str, ending: str) -> Path:
        plans, out = tmp_path / "plans.csv", tmp_path / f"{name}{ending}"
        plans.write_text(TRAIN if kind == "training" else SERVE)
        options = list(PLAN_COMMANDS[name])
        if name == "search --target":
            options.append("step time<=100" if kind == "training" else "tpot<=100")
        done = command(name.split()[0], plans, *options, "-o", out)
        assert done.code == 0, done.err
        return out

    return write


def known_headers() -> set[str]:
    """Headers of all sheets and results as xlperf writes them."""
    return {column.header for table in schema().values() for column in table.columns}


def varied(header: str) -> bool:
    return header.partition(".")[0] in schema()


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_headers_carry_the_unit_of_the_sheets(name: str, kind: str, written: Callable[..., Path], command: Run) -> None:
    path = written(name, kind, ".csv")
    header = next(csv.reader(path.open(newline="", encoding="utf-8")))
    assert len(header) == len(set(header)) and {one for one in header if not varied(one)} <= known_headers()
    import pyarrow.parquet as parquet

    assert parquet.read_schema(written(name, kind, ".parquet")).names == header
    if name in ("evaluate", "cost"):
        again = command(name, path.parent / "plans.csv").out
        assert again == path.read_text(encoding="utf-8"), "standard output holds what the file does"


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".xlsx"])
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_what_a_command_writes_is_plans_again(
    name: str, kind: str, ending: str, written: Callable[..., Path], catalog: Catalog
) -> None:
    """Results are left out, plans come back: evaluated again they give what stood beside them."""
    path = written(name, kind, ending)
    sheet = {"evaluate --vary": "sweep", "search --frontier": "frontier"}.get(name) if ending == ".xlsx" else None
    (table,) = read_plans(path, sheet=sheet)
    assert table.kind == kind and set(table["name"]) <= {"one", "two"} and len(table)
    if name == "evaluate":
        (expected,) = read_plans(path.parent / "plans.csv")
        again, first = evaluate(table, catalog), evaluate(expected, catalog)
        for column, values in first.columns.items():
            assert again[column].tolist() == values.tolist() or np.array_equal(again[column], values, equal_nan=True)


@pytest.mark.parametrize(("name", "kind"), [case for case in CASES if case[0] in ("evaluate", "cost")])
def test_pandas_reads_what_a_command_writes(name: str, kind: str, written: Callable[..., Path]) -> None:
    import pandas

    path = written(name, kind, ".csv")
    frame = pandas.read_csv(path)
    tables = (f"{kind}_results",) if name == "evaluate" else ("ownership",)
    columns: list[Column] = [column for table in tables for column in schema()[table].columns]
    for column in columns:
        assert column.header in frame, column.header
        if column.kind == "result":
            assert frame[column.header].dtype.kind in "fi", column.header
    for ending, read in ((".parquet", pandas.read_parquet), (".xlsx", pandas.read_excel)):
        other = read(written(name, kind, ending))
        assert list(other.columns) == list(frame.columns)
        for column in columns:
            if column.kind == "result":
                one, two = (np.asarray(data[column.header], dtype=float) for data in (other, frame))
                assert np.array_equal(one, two, equal_nan=True), column.header


@pytest.mark.parametrize("kind", ["training", "inference"])
def test_files_with_the_names_of_before_are_still_read(kind: str, written: Callable[..., Path], tmp_path: Path) -> None:
    """Canonical names without units, for plans and results alike; the unit is that of the sheet."""
    path = written("evaluate", kind, ".csv")
    header, *rows = csv.reader(path.open(newline="", encoding="utf-8"))
    old, (expected,) = tmp_path / "old.csv", read_plans(path)
    with old.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([[split_header(name)[0] for name in header], *rows])
    (table,) = read_plans(old)
    assert list(table.columns) == list(expected.columns)
    for name, values in expected.columns.items():
        assert table[name].tolist() == values.tolist() or np.array_equal(table[name], values, equal_nan=True)


@pytest.mark.parametrize("kind", ["training", "inference"])
def test_what_an_earlier_cost_command_wrote_is_plans(kind: str, tmp_path: Path) -> None:
    """Its columns had other names, and no units."""
    former = "server,capex,run_cost,step_cost,tokens_per_dollar,cost_per_million_input_tokens,energy_per_token"
    header, first, _, *_ = (TRAIN if kind == "training" else SERVE).splitlines()
    path = tmp_path / "old.csv"
    path.write_text(f"{header},{former}\n{first},DGX,5.847,1,1,1,,1\n")
    (table,) = read_plans(path)
    assert table.kind == kind and table["name"].tolist() == ["one"]


def test_a_column_of_the_catalog_in_plans_of_ones_own_is_refused(tmp_path: Path) -> None:
    """Beside results it says what a sweep has varied; without any somebody takes it for a column of plans."""
    path = tmp_path / "plans.csv"
    lines = TRAIN.splitlines()
    path.write_text(f"{lines[0]},accelerators.memory bandwidth (TB/s)\n{lines[1]},4\n")
    with pytest.raises(InputError, match="unknown column"):
        read_plans(path)
    path.write_text(f"{lines[0]},accelerators.memory bandwidth (TB/s),step time (s)\n{lines[1]},4,1\n")
    assert len(read_plans(path)[0]) == 1


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_devices_and_designs_are_read_again(ending: str, tmp_path: Path, command: Run) -> None:
    designs = tmp_path / "designs.csv"
    designs.write_text("chiplet,package,node,num dies,module area (mm2)\none,CoWoS-S,5 nm,2,400\n")
    for name, source, kinds in (("chip --devices", workbook(), ("devices",)), ("cost", designs, ("chiplets",))):
        out = tmp_path / f"{name}{ending}"
        assert command(*name.split(), source, "-o", out).code == 0
        table: Table = read_designs(out, kinds=kinds) if name != "cost" else read_designs(out)
        assert table.kind == kinds[0] and len(table)
        text = command(*name.split(), source).out
        header = next(csv.reader(io.StringIO(text)))
        assert set(header) <= known_headers() and any("(" in one for one in header)


def test_the_header_of_validate_is_fixed(tmp_path: Path, command: Run) -> None:
    """DESIGN: row_id,source_id,group,accelerator,metric,measured,predicted,relative_error,reason."""
    assert command("validate", TRAINING, "-o", tmp_path / "errors.csv").code in (0, 1)
    first = (tmp_path / "errors.csv").read_text(encoding="utf-8").splitlines()[0]
    assert first == "row_id,source_id,group,accelerator,metric,measured,predicted,relative_error,reason"


def test_operators_and_constants_carry_units(tmp_path: Path, command: Run) -> None:
    plans = tmp_path / "plans.csv"
    plans.write_text(TRAIN)
    gemm = ["gemm", "--accelerator", "H100-SXM-80GB", "-m", "8", "-n", "8", "-k", "8"]
    for name, given in (("explain", [plans]), ("calibrate", []), ("explain --operation", gemm)):
        out = tmp_path / f"{name}.csv"
        assert command(*name.split(), *given, "-o", out).code == 0
        header = next(csv.reader(out.open(newline="", encoding="utf-8")))
        assert set(header) <= known_headers() and not any("_" in one for one in header), name


TRAINING_PLANS = (
    "name,model,accelerator,num accelerators,tensor parallel,pipeline parallel,global batch size\n"
    "a,Llama3-8B,H100-SXM-80GB,8,2,1,64\nb,Llama3-8B,H200-SXM-141GB,8,1,1,64\n"
)
SERVING_PLANS = (
    "name,model,accelerator,num accelerators,prompt length,output length,batch size\n"
    "a,Llama3-8B,H100-SXM-80GB,1,1024,128,16\nb,Llama3-8B,H200-SXM-141GB,1,1024,128,16\n"
)
SEARCHED_PLAN = TRAINING_PLANS.split("\nb")[0].replace("8,2,1,64", "8,auto,auto,64") + "\n"
WORKBOOKS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "evaluate": (TRAINING_PLANS, (), "Step time"),
    "explain": (TRAINING_PLANS, ("--name", "b"), "Time of operators"),
    "search --frontier": (SERVING_PLANS, ("--frontier",), "Throughput against speed"),
    "search": (SEARCHED_PLAN, (), "Step time"),
    "search, of two": (SEARCHED_PLAN, ("--objective", "cost", "--objective", "memory"), "Plans that nothing beats"),
    "search --target": (SERVING_PLANS, ("--vary", "batch size=1..8", "--target", "tpot<=40", "--largest"),
                        "Batch size"),
    "evaluate --vary": (TRAINING_PLANS, ("--vary", "accelerators.memory bandwidth=2,4,8", "--result", "mfu"), "MFU"),
    "uncertainty": (TRAINING_PLANS, ("--result", "cost", "--vary", "prices.rental price=x0.7..x1.5", "--draws", "64"),
                    "5th, 50th and 95th percentile"),
    "worth": (SERVING_PLANS, (), "Worth of the change"),
    "worth, against": (SERVING_PLANS, ("--against", "B200-SXM-180GB"), "Price of an hour"),
    "cost": ("", (), "Cost of a unit by part"),
    "cost, of servers": ("", ("--sheet", "servers"), "An hour of one accelerator by part"),
    "cost, of plans": (TRAINING_PLANS, (), "An hour of one accelerator by part"),
    "cost, tornado": ("", ("--tornado", "unit cost"), "Which input decides"),
    "cost, bridge": (TRAINING_PLANS, ("--bridge",), "From the cost at the sheet prices"),
    "chip --devices": ("", ("--devices",), "Cost of a unit"),
    "chip --devices, compared": ("", ("--devices", "--compare"), "Derived over stated"),
    "diagnose": (TRAINING_PLANS, ("--name", "a", "--measured", "step time=38"), "From the prediction"),
    "explain --operation": ("", ("--operation", "all-reduce", "--accelerator", "H100-SXM-80GB", "--group", "8",
                                 "--size", "64 MiB"), "Time of the"),
}  # fmt: skip
"""Commands that write workbooks of results, by the words before the first comma: plans, options, chart."""


@pytest.mark.parametrize("case", WORKBOOKS)
def test_every_workbook_of_results_opens_with_what_was_asked_its_answer_and_a_chart(
    command: Callable[..., Outcome], tmp_path: Path, case: str
) -> None:
    rows, options, words = WORKBOOKS[case]
    name = case.partition(",")[0]
    plans, made = tmp_path / "plans.csv", tmp_path / "made.xlsx"
    plans.write_text(rows, encoding="utf-8")
    given = [] if name == "explain --operation" else [plans if rows else workbook("xlperf.xlsx")]
    assert command(name.split()[0], *given, *options, "-o", made).code in (0, 1)
    book = openpyxl.load_workbook(made)
    assert book.active is not None and book.active.title == "asked"
    text = [str(cell.value) for row in book["asked"].iter_rows() for cell in row if cell.value is not None]
    assert f"xlperf {name}" in text and "Asked" in text
    answer = text[text.index("Answer") + 1]
    assert any(sign.isdigit() for sign in answer), answer
    assert all(str(one) in text for one in given)
    for option, value in pairwise(options):
        if option.startswith("--") and not value.startswith("--"):
            place = text.index(option.strip("-"))
            assert value in text[place + 1].split(", "), f"{option} is not said"
    charts = book["asked"]._charts
    titles = ["".join(run.t for run in chart.title.tx.rich.p[0].r) for chart in charts]
    assert titles and titles[0].startswith(words), titles
    for chart in charts:  # with points that are there, and names for all of them
        for series in chart.series:
            numbers = series.val or series.yVal
            assert numbers.numRef.numCache.pt, titles
            assert series.cat is None or all(label.v for label in series.cat.strRef.strCache.pt)
    for sheet in book.worksheets:  # every number has a format of its own, but counts and years
        if sheet.title == "asked":
            continue
        for column in sheet.iter_cols(min_row=2):
            odd = [c.value for c in column if isinstance(c.value, float) and not c.value.is_integer()]
            assert not odd or all(c.number_format != "General" for c in column if c.value in odd), (case, sheet.title)
            cut = [c.coordinate for c in column if c.value in odd and c.number_format == "#,##0" and abs(c.value) < 20]
            assert not cut, (case, sheet.title, cut, "shown as whole numbers")


def test_a_workbook_of_results_is_a_file_of_plans_again(command: Callable[..., Outcome], tmp_path: Path) -> None:
    plans, made = tmp_path / "plans.csv", tmp_path / "made.xlsx"
    plans.write_text(SERVING_PLANS, encoding="utf-8")
    assert command("evaluate", plans, "-o", made).code == 0
    again = command("evaluate", made)
    assert (again.code, again.err) == (0, "")
