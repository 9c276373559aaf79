"""Workbooks and tables as people and other programs make them: what is read, and what is refused in words."""

from __future__ import annotations

import io
import pickle
import re
import tracemalloc
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from conftest import Outcome, csv_rows
from workbook_samples import edited, refused, sheets, write

import xlperf
from xlperf.addin.worker import Session
from xlperf.base.errors import InputError
from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.cells import parse_header, plan_kind
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.read import plan_blocks, read_plans
from xlperf.catalog.table import Table
from xlperf.engine import evaluate

Command = Callable[..., Outcome]
HEADER = ["name", "model", "accelerator", "num accelerators", "prompt length", "output length", "concurrency"]
PLAN = ["a", "Llama3-70B", "H100-SXM-80GB", 8, 1000, 100, 16]


def made(path: Path, rows: Sequence[Sequence[object]], sheet: str = "inference") -> Path:
    """A workbook of one sheet."""
    book = openpyxl.Workbook()
    book.worksheets[0].title = sheet
    for row in rows:
        book.worksheets[0].append(list(row))
    book.save(path)
    return path


def stored(path: Path, *values: str) -> Path:
    """A workbook whose formulas =1/2 have these values stored, as XlsxWriter and spreadsheet programs do."""
    rows = [[*PLAN[:-1], 16 + number, "=1/2"] for number in range(len(values))]
    left = iter(values)
    return edited(
        made(path, [[*HEADER, "shared prefix"], *rows]),
        "xl/worksheets/sheet1.xml",
        lambda text: re.sub(r"(</f>)<v ?/?>(?:</v>)?", lambda match: f"{match[1]}<v>{next(left)}</v>", text),
    )


def test_a_zero_that_stands_for_formulas_nobody_computed_is_refused_by_cell(tmp_path: Path, command: Command) -> None:
    """XlsxWriter stores 0 for a formula and asks for a calculation on load (its manual, "Formula Results")."""
    path = stored(tmp_path / "x.xlsx", "0", "0")
    assert refused(read_plans, path).splitlines()[0] == (
        "x.xlsx [inference!H2]: shared prefix is a formula whose value nobody has computed (the file holds 0 for "
        "all); open and save it once in Excel or LibreOffice, or enter a value"
    )
    assert command("evaluate", path).code == 2


@pytest.mark.parametrize("values", [("0.5", "0.5"), ("0", "0.5")])
def test_values_that_were_computed_are_taken(tmp_path: Path, values: tuple[str, ...]) -> None:
    (plans,) = read_plans(stored(tmp_path / "x.xlsx", *values))
    assert plans["shared_prefix"].tolist() == [float(value) for value in values]


def test_zeros_of_a_program_that_calculates_are_taken(tmp_path: Path) -> None:
    """LibreOffice asks for no calculation on load; Excel stores the order of its calculation."""
    path = edited(
        stored(tmp_path / "x.xlsx", "0", "0"), "xl/workbook.xml", lambda text: re.sub("<calcPr.*?/>", "", text)
    )
    assert read_plans(path)[0]["shared_prefix"].tolist() == [0.0, 0.0]
    chain = '<Relationship Id="rId99" Type="http://x/relationships/calcChain" Target="calcChain.xml"/></Relationships>'
    path = stored(tmp_path / "y.xlsx", "0", "0")
    edited(path, "xl/_rels/workbook.xml.rels", lambda text: text.replace("</Relationships>", chain))
    assert read_plans(path)[0]["shared_prefix"].tolist() == [0.0, 0.0]


def test_only_plans_that_use_an_orphan_row_fail_and_the_cell_is_named(tmp_path: Path, command: Command) -> None:
    """A renamed accelerator that a price row still named left every answer of Serve and all 93 plans at #VALUE!."""
    content = sheets()
    content["prices"][1][0] = "H200"
    content["accelerators"][2][6] = "DGX-A10"
    path = write(tmp_path / "own.xlsx", content)
    catalog = load_catalog(path)
    network, price = catalog.orphans.faults
    assert str(price).startswith('own.xlsx [prices!A2]: unknown accelerator "H200"')
    assert str(network).startswith('own.xlsx [accelerators!G3]: unknown network "DGX-A10"')
    plans = "model,accelerator,num accelerators\nllama-2-7b,H100,8\n"
    (tmp_path / "plans.csv").write_text(plans, encoding="utf-8")
    done = command("evaluate", tmp_path / "plans.csv", "--catalog", path, "-o", tmp_path / "out.csv")
    assert done.code == 0
    assert done.err.splitlines()[:2] == [f"note: left out: {network}", f"note: left out: {price}"]
    (tmp_path / "plans.csv").write_text(plans + "llama-2-7b,A100,8\n", encoding="utf-8")
    done = command("evaluate", tmp_path / "plans.csv", "--catalog", path)
    assert done.code == 2
    assert f'plans.csv [line 3, accelerator]: accelerator "A100" cannot be used: {network}\n' in done.err
    done = command("check", path)
    assert done.code == 2
    assert f"{price}\n" in done.err and f"{network}\n" in done.err


def test_cells_of_other_plans_compute_beside_an_orphan_row() -> None:
    session = Session()
    tables = []
    for kind in ("accelerators", "networks", "prices"):
        header, *rows = sheets()[kind]
        tables.append([header, *([float(c) if isinstance(c, int) else c for c in row] for row in rows)])
    tables[2][1][0] = "H200"
    tables[0][2][6] = "DGX-A10"
    ((handle,),) = session.call("XLPERF_CATALOG", tables)

    def cell(function: str, accelerator: str) -> object:
        card = [["model", "Llama3-8B"], ["accelerator", accelerator], ["num accelerators", 8.0]]
        return session.call(function, [card, handle])[0][0]

    assert isinstance(cell("XLPERF_STEP_TIME", "H100"), float)
    said = str(cell("XLPERF_CHECK", "A100"))
    assert said.startswith('training, accelerator: accelerator "A100" cannot be used: accelerators "A100", default net')
    assert 'unknown network "DGX-A10"' in said
    tables[2][1][0] = "H2000"
    ((said,),) = session.call("XLPERF_CHECK", [tables[2][:2]])
    assert said.startswith('prices row 1, price: unknown accelerator "H2000"')
    assert session.call("XLPERF_CHECK", [tables[1]]) == [["ok"]]


def test_what_refers_to_a_row_that_is_left_out_is_left_out_with_it() -> None:
    """A device of an unknown memory, its accelerator and their price are one fault, that of the device."""
    catalog = load_catalog()
    devices = catalog.tables["devices"]
    accelerators = catalog.tables["accelerators"]
    row = int(np.flatnonzero(accelerators["device"] != "")[0])
    named = np.where(devices["device"] == accelerators["device"][row], "HBM9", devices["memory"])
    changed = replace(devices, columns={**devices.columns, "memory": named})
    result = catalog.with_tables([changed, accelerators, catalog.tables["prices"]])
    assert [fault.problem for fault in result.orphans.faults] == ['unknown memory "HBM9"']
    name = accelerators["accelerator"][row]
    asked = Table("training", {"accelerator": np.array([name], dtype=object)})
    with pytest.raises(InputError, match=re.escape(f'accelerator "{name}" cannot be used: xlperf.xlsx [devices!D')):
        result.rows("accelerators", asked["accelerator"], asked, "accelerator")
    with pytest.raises(InputError, match='unknown memory "HBM9"'):
        pickle.loads(pickle.dumps(result)).rows("accelerators", asked["accelerator"], asked, "accelerator")


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".xlsx"])
def test_a_header_alone_has_no_plans(tmp_path: Path, command: Command, ending: str) -> None:
    """A CSV file with the header ``dimension order`` and no rows ended in a traceback."""
    header = ["name", "model", "accelerator", "num accelerators", "dimension order"]
    path = tmp_path / f"plans{ending}"
    if ending == ".xlsx":
        made(path, [header], "training")
    elif ending == ".parquet":
        pyarrow.parquet.write_table(pa.table({name: pa.array([], pa.string()) for name in header}), path)
    else:
        path.write_text(",".join(header) + "\n", encoding="utf-8")
    for output in ("-", tmp_path / "out.csv", tmp_path / "out.parquet", tmp_path / "out.xlsx"):
        done = command("evaluate", path, "-o", output)
        assert (done.code, done.err) == (2, f"plans{ending}: has no plans; fill at least one row\n")
    assert len(xlperf.evaluate(pd.DataFrame(columns=header))) == 0


class _Endless(io.RawIOBase):
    """A stream whose line never ends."""

    def __init__(self) -> None:
        super().__init__()
        self.given = 0

    def read(self, size: int = -1) -> bytes:
        assert 0 < size < 2**26
        self.given += size
        assert self.given < 2**26, "more of an endless line is read than a line may hold"
        return b"x" * size


@pytest.mark.parametrize("read", [read_plans, lambda path: list(plan_blocks(path, 100))])
def test_an_endless_line_is_not_read_to_its_end(read: Callable[[str], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=_Endless()))
    assert refused(read, "-") == (
        "standard input [line 1]: is longer than 4,194,304 characters; a header row and rows of values are meant"
    )


def test_a_header_of_ten_thousand_unknown_columns_takes_little_memory() -> None:
    """It took 616 MB: every column had its own list of known names."""
    header = [*HEADER, *(f"prompt lenght {number}" for number in range(10_000))]
    tracemalloc.start()
    try:
        parse_header("inference", header)
        assert tracemalloc.get_traced_memory()[1] < 32 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("kind", "header", "columns"),
    [
        (
            "inference",
            ["Plan", "Model", "GPU", "# GPUs", "TP", "ISL", "OSL", "Concurrency", "Quantization", "QPS", "engine"],
            "name model accelerator num_accelerators tensor_parallel prompt_length output_length concurrency precision "
            "request_rate software",
        ),
        (
            "training",
            "Model,GPU type,num_gpus,TP,PP,VPP,EP,DP,CP,SP,ETP,MBS,GBS,seq len".split(","),
            "model accelerator num_accelerators tensor_parallel pipeline_parallel virtual_pipeline expert_parallel "
            "data_parallel context_parallel sequence_parallel expert_tensor_parallel micro_batch_size "
            "global_batch_size sequence_length",
        ),
        (
            "inference",
            ["model", "GPU", "GPUs", "input length (tokens)", "output len (k tokens)", "batch (requests)", "kv dtype"],
            "model accelerator num_accelerators prompt_length output_length batch_size kv_precision",
        ),
        (
            "inference",
            ["Model", "GPU", "Qty", "ISL", "OSL", "conc", "spec tokens", "gpu mem util", "max num seqs"],
            "model accelerator num_accelerators prompt_length output_length concurrency draft_tokens memory_fraction "
            "max_running_batch",
        ),
    ],
)
def test_headers_of_the_trade_are_columns(kind: str, header: list[str], columns: str) -> None:
    """Case S06: the headers GPU, TP, ISL and OSL of a table of a benchmark."""
    assert plan_kind(header) == kind
    result = parse_header(kind, header)
    assert ([one.column.name for one in result.fields], result.faults, result.own) == (columns.split(), (), ())


@pytest.mark.parametrize(
    ("kind", "name", "hint"),
    [
        ("inference", "DP", "did you mean data parallel attention; replicas of the whole model follow"),
        ("inference", "dp_size", "did you mean data parallel attention; replicas of the whole model follow"),
        ("inference", "seq len", "did you mean prompt length, output length?"),
        ("training", "batch size", "did you mean global batch size, micro batch size?"),
        ("training", "tensor paralel", "did you mean tensor parallel"),
        ("inference", "prompt lenght", "did you mean prompt length"),
        ("inference", "modle", "did you mean"),
        ("training", "Parallelism", "did you mean tensor parallel, pipeline parallel"),
    ],
)
def test_a_header_that_may_mean_several_or_is_nearly_known_is_refused(kind: str, name: str, hint: str) -> None:
    (fault,) = (one for one in parse_header(kind, [*HEADER[:4], name]).faults if one.position >= 0)
    assert fault.problem == f'unknown column "{name}"'
    assert fault.hint is not None and fault.hint().startswith(hint)


def test_a_header_of_two_columns_is_refused_unless_both_are_there() -> None:
    """A column TP/PP of a table was passed through, and its plans computed with one rank each."""
    for kind, name, parts in (("training", "TP / PP", ["TP", "PP"]), ("inference", "ISL/OSL", ["ISL", "OSL"])):
        problems = [one.problem for one in parse_header(kind, [*HEADER[:4], name]).faults]
        assert any(problem.startswith(f'unknown column "{name}"; give ') for problem in problems)
        both = parse_header(kind, [*HEADER[:4], name, *parts])
        assert both.own == (4,) and not any(name in one.problem for one in both.faults)


def test_units_of_counts_are_those_of_what_is_counted() -> None:
    """Case S11: prompt length (tokens); a global batch in tokens is none in sequences."""
    header = ["prompt length (tokens)", "output length (k tokens)", "num accelerators (GPUs)", "concurrency (requests)"]
    fields = parse_header("inference", header).fields
    assert [field.factor for field in fields] == [1.0, 1000.0, 1.0, 1.0]
    (fault,) = (one for one in parse_header("training", ["global batch size (tokens)"]).faults if one.position == 0)
    assert fault.problem == "unknown unit (tokens) of global batch size; known: -, %, k, M, G, T"


OWN = ["Owner", "model", "accelerator", "num accelerators", "tensor parallel", "cost center"]


@pytest.mark.parametrize("ending", [".csv", ".xlsx", ".parquet"])
def test_columns_of_ones_own_pass_through_and_are_said_once(tmp_path: Path, command: Command, ending: str) -> None:
    rows = [["ann", "Llama3-70B", "H100-SXM-80GB", 64, 8, "0042"], ["=1+1", "Llama3-70B", "H100-SXM-80GB", 64, 8, ""]]
    source = tmp_path / "plans.csv"
    source.write_text("\n".join([",".join(OWN), *(",".join(map(str, row)) for row in rows)]), encoding="utf-8")
    note = "note: columns that are not read: Owner, cost center\n"
    for step in range(2):  # a file of results is a file of plans again
        output = tmp_path / f"out{step}{ending}"
        done = command("evaluate", source, "-o", output)
        assert done.code == 0 and done.err.count(note) == 1
        source = output
    shown = csv_rows(command("evaluate", source, "-o", "-").out)
    assert [(row["owner"], row["cost_center"]) for row in shown] == [("ann", "0042"), ("'=1+1", "")]
    assert [float(row["step_time"]) > 0 for row in shown] == [True, True]
    assert command("explain", source).err.startswith(note)
    done = command("evaluate", source, "--vary", "owner=a,b")
    assert done.code == 2 and 'unknown column "owner"' in done.err
    card = [[name, value] for name, value in zip(OWN, [*rows[0][:3], 64.0, 8.0, "x"], strict=True)]
    assert Session().call("XLPERF_CHECK", [card])[0][0].endswith('not read: "Owner", "cost center"')
    assert isinstance(Session().call("XLPERF_STEP_TIME", [card])[0][0], float)


CARD = [["model", "Llama3-70B"], ["accelerator", "H100-SXM-80GB"], ["num accelerators", 64.0]]
CARD += [["tensor parallel", 8.0], ["pipeline parallel", 4.0]]
STEP_TIME = 2.50921  # case K01: what a cell computes of this card, whose Megatron overlaps gradients alone


@pytest.mark.parametrize(
    "rows",
    [
        CARD,
        [[name, None, value] for name, value in CARD],
        [[name, value, unit] for (name, value), unit in zip(CARD, ["", "", "GPUs", "", "stages"], strict=True)],
        [[name, unit, value] for (name, value), unit in zip(CARD, [None, None, "GPUs", None, None], strict=True)],
        [["parameter", "value", "note"], *([*row, "as in the paper" if row[1] == 8.0 else None] for row in CARD)],
        [["our plan", None], [None, None], *CARD],
    ],
)
def test_a_card_is_a_plan_in_cells_and_in_files(rows: list[list[object]], tmp_path: Path) -> None:
    """Cases S20 and K01: the card of the README as a file; a blank, unit or note column between name and value."""
    width = len(rows[0])
    if width > 2 or rows == CARD:
        assert Session().call("XLPERF_STEP_TIME", [rows])[0][0] == pytest.approx(STEP_TIME, rel=1e-5)
        assert Session().call("XLPERF_CHECK", [rows]) == [["ok"]]
    texts = [
        ["" if cell is None else f"{cell:g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows
    ]
    (tmp_path / "card.csv").write_text("\n".join(map(",".join, texts)), encoding="utf-8")
    made(tmp_path / "card.xlsx", rows, "training")
    for name in ("card.csv", "card.xlsx"):
        (plans,) = read_plans(tmp_path / name)
        assert evaluate(plans, load_catalog())["step_time"][0] == pytest.approx(STEP_TIME, rel=1e-5)
    (block,) = plan_blocks(tmp_path / "card.csv", 100)
    assert block.table()[0]["num_accelerators"].tolist() == [64.0]


def test_units_beside_the_values_of_a_card_count_and_faults_name_the_cell(tmp_path: Path) -> None:
    rows = [[name, value, None] for name, value in CARD] + [["power limit", 0.5, "kW"], ["sequence length", 4, "k"]]
    (plans,) = read_plans(made(tmp_path / "card.xlsx", rows, "training"))
    assert (plans["power_limit"].tolist(), plans["sequence_length"].tolist()) == ([500.0], [4000.0])
    rows[2][1] = 2.5
    path = made(tmp_path / "card.xlsx", rows, "training")
    assert refused(read_plans, path) == (
        "card.xlsx [training!B3]: num accelerators must be a whole number of at least 1, got 2.5"
    )


def test_two_columns_of_values_are_two_plans() -> None:
    rows = [[*row, row[1]] for row in CARD]
    rows[2][2] = 128.0
    (first,), (second,) = Session().call("XLPERF_STEP_TIME", [rows])
    assert first == pytest.approx(STEP_TIME, rel=1e-5) and second != first


def test_a_plan_of_the_other_kind_is_said_where_the_function_is_asked(capfd: pytest.CaptureFixture[str]) -> None:
    """Case K13: a serving plan in XLPERF_STEP_TIME was #VALUE! without a word anywhere."""
    session = Session()
    serving = [*CARD, ["prompt length", 100.0], ["output length", 10.0]]
    words = "step time is no result of inference plans, and this is one, as it has a prompt length"
    for _ in range(3):
        assert session.call("XLPERF_STEP_TIME", [serving])[0][0].message == words
    assert session.call("XLPERF_CHECK", [serving])[0][0].endswith(f"XLPERF_STEP_TIME: {words}")
    assert capfd.readouterr().err == f"XLPERF_STEP_TIME: {words}\n"  # the log of the worker
    assert "a range of another workbook" in session.call("XLPERF_STEP_TIME", [[[None, None]]])[0][0].message


def test_a_merged_cell_gives_its_value_to_all_its_rows_and_columns(tmp_path: Path) -> None:
    """Case S12: a model merged over five rows was missing in four."""
    rows = [HEADER, *([f"plan {number}", *PLAN[1:]] for number in range(6))]
    path = made(tmp_path / "plans.xlsx", rows)
    book = openpyxl.load_workbook(path)
    for area in ("B2:B6", "C2:C20000", "F3:G4"):
        book["inference"].merge_cells(area)
    book.save(path)
    (plans,) = read_plans(path)
    assert plans["model"].tolist() == ["Llama3-70B"] * 6
    assert plans["accelerator"].tolist() == ["H100-SXM-80GB"] * 6
    assert plans["concurrency"].tolist() == [16.0, 100.0, 100.0, 16.0, 16.0, 16.0]


def test_a_second_table_below_the_first_is_named(tmp_path: Path) -> None:
    """Case S21."""
    path = made(tmp_path / "plans.xlsx", [HEADER, PLAN, [], ["second study"], HEADER, PLAN])
    assert refused(read_plans, path) == (
        "plans.xlsx [inference!A5]: a second table begins with this header row; put it on a sheet of its own, or "
        "remove its header"
    )


def ods(path: Path, rows: str) -> Path:
    """An OpenDocument spreadsheet of one sheet, inference, with these rows as XML."""
    names = "".join(
        f' xmlns:{one}="urn:oasis:names:tc:opendocument:xmlns:{one}:1.0"' for one in ("office", "table", "text")
    )
    body = f'<table:table table:name="inference">{rows}</table:table>'
    content = (
        f"<office:document-content{names}><office:body><office:spreadsheet>{body}</office:spreadsheet></office:body>"
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as package:
        package.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        package.writestr("content.xml", f"{content}</office:document-content>")
    return path


def ods_row(cells: Sequence[object], more: str = "") -> str:
    """A row of an OpenDocument sheet."""
    written = [
        f'<table:table-cell office:value-type="float" office:value="{cell}"><text:p>{cell}</text:p></table:table-cell>'
        if isinstance(cell, (int, float))
        else f'<table:table-cell office:value-type="string"><text:p>{cell}</text:p></table:table-cell>'
        if cell is not None
        else "<table:table-cell/>"
        for cell in cells
    ]
    return f"<table:table-row{more}>{''.join(written)}</table:table-row>"


def test_ods_is_read(tmp_path: Path, command: Command) -> None:
    """Case S14: repeated rows, merged cells, comments, formulas with and without a value, errors."""
    note = "<office:annotation><text:p>ask Ann</text:p></office:annotation>"
    merged = ods_row(PLAN).replace("<table:table-cell ", '<table:table-cell table:number-rows-spanned="2" ', 2)
    commented = ods_row(PLAN).replace("<text:p>Llama3-70B", f"{note}<text:p>Llama3<text:s/>70B")
    blank = ods_row([None] * 7, ' table:number-rows-repeated="1048000"')
    rows = [ods_row(HEADER), ods_row(PLAN, ' table:number-rows-repeated="3"'), commented, merged]
    path = ods(tmp_path / "plans.ods", "".join([*rows, ods_row([None, None, *PLAN[2:]]), blank]))
    (plans,) = read_plans(path)
    assert plans["model"].tolist() == ["Llama3-70B"] * 3 + ["Llama3 70B"] + ["Llama3-70B"] * 2
    assert plans["num_accelerators"].tolist() == [8.0] * 6
    assert command("check", path).code == 0
    assert command("evaluate", path, "-o", tmp_path / "out.csv").code == 0
    formula = '<table:table-cell table:formula="of:=1/2"/>'
    error = (
        '<table:table-cell table:formula="of:=NA()" office:value-type="string"><text:p>#N/A</text:p></table:table-cell>'
    )
    for cell, words in ((formula, "is a formula without a saved value"), (error, "got the error #N/A")):
        row = ods_row(PLAN[:-1]).replace("</table:table-row>", f"{cell}</table:table-row>")
        assert words in refused(read_plans, ods(tmp_path / "plans.ods", ods_row(HEADER) + row))


@pytest.mark.parametrize(
    "rows",
    [
        ods_row(PLAN, ' table:number-rows-repeated="1048576"'),
        ods_row(PLAN).replace("<table:table-cell ", '<table:table-cell table:number-columns-repeated="1000000" ', 1),
        ods_row(PLAN).replace(
            "<table:table-cell ", '<table:table-cell table:number-columns-repeated="99999999999" ', 1
        ),
        ods_row(PLAN, ' table:number-rows-repeated="1000"').replace(
            "<table:table-cell ", '<table:table-cell table:number-columns-repeated="16000" ', 1
        ),
    ],
)
def test_an_ods_of_cells_without_end_is_refused(tmp_path: Path, rows: str) -> None:
    path = ods(tmp_path / "bomb.ods", ods_row(HEADER) + rows)
    assert refused(read_plans, path).startswith("bomb.ods")


def test_other_files_of_spreadsheet_programs_are_refused_by_name(tmp_path: Path, command: Command) -> None:
    for ending in (".xls", ".xlsb", ".numbers"):
        (tmp_path / f"plans{ending}").write_bytes(b"\xd0\xcf\x11\xe0")
        for name in ("evaluate", "check", "explain"):
            done = command(name, tmp_path / f"plans{ending}")
            assert done.code == 2
            assert f"({ending}); open it there and save it as .xlsx\n" in done.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0,9", 'must be a number from 0 to 1, got "0,9", which has a decimal comma; write 0.9'),
        ("1.024,5", 'got "1.024,5", which has a decimal comma; write 1024.5'),
        ("1,024", 'got "1,024", which has a decimal comma or a thousands separator; write 1.024 or 1024'),
        ("1,024,000.5", 'got "1,024,000.5", which has thousands separators; write 1024000.5'),
        ("0.9k", 'got "0.9k"; write 900 or 922'),
    ],
)
def test_a_decimal_comma_is_named(text: str, words: str) -> None:
    """Case S05: numbers as a German spreadsheet writes them."""
    header = [*HEADER, "memory fraction"]
    with pytest.raises(InputError, match=re.escape(words)):
        table_from_rows("inference", header, [[*PLAN, text]])


def test_a_whole_number_with_a_thousands_point_is_not_a_small_one(tmp_path: Path) -> None:
    """In a CSV file 2.000 is two or two thousand tokens."""
    path = tmp_path / "plans.csv"
    row = ["2.000" if cell == 1000 else str(cell) for cell in PLAN]
    path.write_text(f"{';'.join(HEADER)}\n{';'.join(row)}\n", encoding="utf-8")
    assert refused(read_plans, path).endswith('got "2.000"; write 2000 or 2')


def test_plans_that_are_all_illegal_are_said_and_the_answer_is_no(tmp_path: Path, command: Command) -> None:
    rows = [[*PLAN[:3], 8, 1000, 100, 16], [*PLAN[:3], 7, 1000, 100, 16]]
    for legal, used in ((1, rows), (0, rows[1:])):
        path = made(tmp_path / "plans.xlsx", [[*HEADER, "tensor parallel"], *([*row, 8] for row in used)])
        for output in ("-", tmp_path / "o.xlsx"):
            done = command("evaluate", path, "-o", output)
            assert done.code == (0 if legal else 1)
            assert f"{legal} of {len(used)} plans legal: " in done.err
            assert "which do not divide the 7 accelerators of the plan" in done.err
