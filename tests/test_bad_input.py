"""Every kind of bad cell, header, name and file has its exact line, and the command exits with 2."""

from __future__ import annotations

import datetime
import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Outcome
from openpyxl import load_workbook
from workbook_samples import Sheets, set_cell, sheets, without_column, write

from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.cells import ErrorValue, table_from_rows
from xlperf.catalog.csvfile import read_csv
from xlperf.catalog.package import Package
from xlperf.catalog.plans import card_to_table, read_plans
from xlperf.errors import InputError

Command = Callable[..., Outcome]

UNITS_OF_BANDWIDTH = (
    "B/s, kB/s, MB/s, GB/s, TB/s, PB/s, EB/s, KiB/s, MiB/s, GiB/s, TiB/s, bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s, "
    "Pbit/s, Ebit/s"
)
BANDWIDTH = "xlperf.xlsx [accelerators!E2]: memory bandwidth must be a number above 0 (TB/s)"
YEAR = "xlperf.xlsx [accelerators!J2]: year must be a whole number from 1990 to 2100"
CELLS: list[tuple[str, Any, str]] = [
    ("accelerators!E2", "n/a", f'{BANDWIDTH}, got "n/a"'),
    ("accelerators!E2", 0, f"{BANDWIDTH}, got 0"),
    ("accelerators!E2", -3.35, f"{BANDWIDTH}, got -3.35"),
    ("accelerators!E2", True, f"{BANDWIDTH}, got TRUE"),
    ("accelerators!E2", "3.35", f'{BANDWIDTH}, got the text "3.35"; enter it as a number'),
    ("accelerators!E2", "inf", f'{BANDWIDTH}, got "inf"'),
    ("accelerators!E2", datetime.date(2024, 5, 1), f"{BANDWIDTH}, got the date 2024-05-01"),
    ("accelerators!E2", "#N/A", f"{BANDWIDTH}, got the error #N/A"),
    ("accelerators!E2", "#REF!", f"{BANDWIDTH}, got the error #REF!"),
    (
        "accelerators!E2",
        None,
        "xlperf.xlsx [accelerators!E2]: memory bandwidth is missing; it must be a number above 0 (TB/s)",
    ),
    (
        "accelerators!E2",
        "=2*1.7",
        "xlperf.xlsx [accelerators!E2]: memory bandwidth is a formula without a saved value; open and save it once in "
        "Excel or LibreOffice, or enter a value",
    ),
    ("accelerators!B2", None, "xlperf.xlsx [accelerators!B2]: generation is missing"),
    ("accelerators!B2", True, "xlperf.xlsx [accelerators!B2]: generation must be text, got TRUE"),
    ("accelerators!B2", "#NAME?", "xlperf.xlsx [accelerators!B2]: generation must be text, got the error #NAME?"),
    ("accelerators!J2", 2022.5, f"{YEAR}, got 2022.5"),
    ("accelerators!J2", 20, f"{YEAR}, got 20"),
    (
        "accelerators!H2",
        "guess",
        'xlperf.xlsx [accelerators!H2]: kind must be one of datasheet, measured, estimate, assumption, got "guess"',
    ),
    (
        "accelerators!G2",
        "DGX-H10",
        'xlperf.xlsx [accelerators!G2]: unknown network "DGX-H10"; did you mean DGX-H100, DGX-A100?',
    ),
    (
        "accelerators!A3",
        "h100",
        'xlperf.xlsx [accelerators!A3]: duplicate accelerator "h100"; the first is at xlperf.xlsx [accelerators!A2]\n'
        'xlperf.xlsx [prices!A3]: unknown accelerator "A100"; did you mean H100?',
    ),
    (
        "networks!B3",
        1,
        'xlperf.xlsx [networks!B3]: duplicate tier 1 of network "DGX-H100"; the first is at xlperf.xlsx [networks!B2]',
    ),
    (
        "networks!B3",
        3,
        'xlperf.xlsx [networks!B2]: network "DGX-H100" lacks tier 2; tiers count from 1 without gaps',
    ),
    (
        "networks!C3",
        8,
        'xlperf.xlsx [networks!C3]: size of tier 2 of network "DGX-H100" must be above the 8 of tier 1, got 8',
    ),
    ("networks!E2", -1, "xlperf.xlsx [networks!E2]: latency must be a number of at least 0 (us), got -1"),
    (
        "models!B3",
        "llama2-7B",
        'xlperf.xlsx [models!B3]: alias "llama2-7B" already means model "llama-2-7b"',
    ),
    ("models!H2", "maybe", 'xlperf.xlsx [models!H2]: gated mlp must be yes or no, got "maybe"'),
    ("models!H2", 2, "xlperf.xlsx [models!H2]: gated mlp must be yes or no, got 2"),
    ("models!C2", "auto", 'xlperf.xlsx [models!C2]: num layers must be a whole number of at least 1, got "auto"'),
    ("prices!A2", "H200", 'xlperf.xlsx [prices!A2]: unknown accelerator "H200"; did you mean H100, A100?'),
    ("prices!C2", None, "xlperf.xlsx [prices!C2]: year is missing; it must be a whole number from 1990 to 2100"),
    ("calibration!G2", "fast", 'xlperf.xlsx [calibration!G2]: value must be a number, got "fast"'),
    (
        "calibration!B2",
        "gem",
        'xlperf.xlsx [calibration!B2]: unknown family "gem"; did you mean gemm?',
    ),
    (
        "calibration!H2",
        "GB",
        'xlperf.xlsx [calibration!H2]: unit of gemm launch_time cannot be "GB"; known: s, ms, us, µs, ns, ps, min, h, '
        "day, year",
    ),
    (
        "calibration!G2",
        400,
        "xlperf.xlsx [calibration!G2]: gemm launch_time must be a number from 0 to 50 (us), got 400",
    ),
    ("training!D2", 0, "xlperf.xlsx [training!D2]: num accelerators must be a whole number of at least 1, got 0"),
    ("training!E2", 2.5, "xlperf.xlsx [training!E2]: tensor parallel must be a whole number of at least 1, got 2.5"),
    ("training!B2", None, "xlperf.xlsx [training!B2]: model is missing"),
    ("training!B3", "gpt-4", 'xlperf.xlsx [training!B3]: unknown model "gpt-4"; did you mean gpt-3?'),
    ("training!C3", "H10", 'xlperf.xlsx [training!C3]: unknown accelerator "H10"; did you mean H100, A100?'),
    (
        "training!F2",
        "bf17",
        "xlperf.xlsx [training!F2]: precision must be one of fp32, tf32, fp16, bf16, fp8, fp8-current, fp8-block, "
        'mxfp8, int8, fp4, got "bf17"',
    ),
]
HEADERS: list[tuple[str, Any, str]] = [
    (
        "accelerators!E1",
        "memory bandwith (TB/s)",
        'xlperf.xlsx [accelerators]: the column "memory bandwidth (TB/s)" is missing\n'
        'xlperf.xlsx [accelerators!E1]: unknown column "memory bandwith (TB/s)"; did you mean memory bandwidth, '
        "shared memory bandwidth, memory capacity?",
    ),
    (
        "accelerators!E1",
        "memory bandwidth (TBps)",
        f"xlperf.xlsx [accelerators!E1]: unknown unit (TBps) of memory bandwidth; known: {UNITS_OF_BANDWIDTH}",
    ),
    (
        "accelerators!E1",
        "memory bandwidth (GB)",
        f"xlperf.xlsx [accelerators!E1]: memory bandwidth cannot be in GB; known: {UNITS_OF_BANDWIDTH}",
    ),
    (
        "accelerators!B1",
        "generation (GB)",
        "xlperf.xlsx [accelerators!B1]: generation has no unit, the header says (GB)",
    ),
    (
        "accelerators!I1",
        "Kind",
        'xlperf.xlsx [accelerators!I1]: duplicate column "Kind"; the first is at xlperf.xlsx [accelerators!H1]',
    ),
    (
        "training!E1",
        "tensor paralel",
        'xlperf.xlsx [training!E1]: unknown column "tensor paralel"; did you mean tensor parallel, time tensor '
        "parallel, expert tensor parallel?",
    ),
    (
        "training!G1",
        "ttft (ms)",
        'xlperf.xlsx [training!G1]: unknown column "ttft (ms)"; did you mean fits?',
    ),
]


@pytest.mark.parametrize(("address", "value", "message"), CELLS + HEADERS)
def test_bad_cell_is_named_in_its_exact_line(
    address: str, value: Any, message: str, tmp_path: Path, command: Command
) -> None:
    path = write(tmp_path / "xlperf.xlsx", set_cell(sheets(), address, value))
    outcome = command("check", path)
    assert outcome.err.rstrip("\n") == message
    assert outcome.code == 2
    assert outcome.out == ""


def test_missing_column(tmp_path: Path) -> None:
    path = write(tmp_path / "xlperf.xlsx", without_column(sheets(), "models", "num layers"))
    assert _refused(load_catalog, path) == 'xlperf.xlsx [models]: the column "num layers" is missing'


def test_all_faults_of_all_sheets_come_at_once_in_reading_order(tmp_path: Path, command: Command) -> None:
    content = sheets()
    set_cell(content, "accelerators!E3", "n/a")
    set_cell(content, "accelerators!D2", -1)
    set_cell(content, "accelerators!C3", "x")
    set_cell(content, "prices!A2", "X100")
    set_cell(content, "calibration!B3", "gem")
    set_cell(content, "training!D2", None)
    outcome = command("check", write(tmp_path / "xlperf.xlsx", content))
    assert [line.split(":")[0] for line in outcome.err.splitlines()] == [
        "xlperf.xlsx [accelerators!D2]",
        "xlperf.xlsx [accelerators!C3]",
        "xlperf.xlsx [accelerators!E3]",
        "xlperf.xlsx [prices!A2]",
        "xlperf.xlsx [calibration!B3]",
        "xlperf.xlsx [training!D2]",
    ]
    assert outcome.code == 2


def test_row_below_a_table_is_not_lost_in_silence(tmp_path: Path) -> None:
    path = write(tmp_path / "xlperf.xlsx", sheets())
    book = load_workbook(path)
    book["prices"].append(["H100", 1, 2024])
    book.save(path)
    assert _refused(load_catalog, path) == (
        'xlperf.xlsx [prices!A4]: row just below the table "prices" (A1:D3) is not part of it; extend the table over '
        "it, or leave a row free"
    )


def test_sheet_without_the_table_of_its_kind(tmp_path: Path) -> None:
    content = sheets()
    content["networks"] = [["some", "notes"], [1, 2]]
    path = write(tmp_path / "xlperf.xlsx", content, tables=False)
    assert _refused(load_catalog, path) == (
        'xlperf.xlsx [networks]: the sheet has no table whose first header is "network"'
    )


def test_value_without_a_header(tmp_path: Path) -> None:
    content = sheets()
    set_cell(content, "training!G1", None)
    set_cell(content, "training!G2", 7)
    path = write(tmp_path / "xlperf.xlsx", content)
    assert _refused(read_plans, path).startswith("xlperf.xlsx [training!G2]: a value without a header, got 7")


def test_missing_sheet(tmp_path: Path) -> None:
    path = write(tmp_path / "study.xlsx", {name: rows for name, rows in sheets().items() if name != "training"})
    assert _refused(read_plans, path) == (
        'study.xlsx: there is no sheet "training" or "inference"; known: accelerators, networks, models, '
        "prices, calibration"
    )
    assert _refused(lambda path: read_plans(path, sheet="price"), path) == (
        'study.xlsx: there is no sheet "price"; did you mean prices?'
    )


def test_workbook_without_any_of_the_sheets(tmp_path: Path, command: Command) -> None:
    path = write(tmp_path / "other.xlsx", {"Sheet1": [["a", "b"], [1, 2]]})
    outcome = command("check", path)
    assert (outcome.code, outcome.err) == (
        2,
        "other.xlsx: has none of the sheets that xlperf reads: accelerators, networks, models, prices, calibration, "
        "process_nodes, packages, chiplets, servers, technology, memories, links, cores, devices, "
        "training, inference\n",
    )


def test_plans_without_rows(tmp_path: Path) -> None:
    content = sheets()
    content["training"] = [content["training"][0], [None] * 6 + ["=1+1"]]
    path = write(tmp_path / "study.xlsx", content)
    assert _refused(read_plans, path) == "study.xlsx: has no plans; fill at least one row"


# --- files ---------------------------------------------------------------------------------------------------------

NOT_A_WORKBOOK = "is no .xlsx workbook; open it in Excel or LibreOffice and save it as .xlsx"
DAMAGED = "open it in Excel or LibreOffice and save it again"
DOCUMENT_TYPE = (
    b"""<?xml version="1.0"?><!DOCTYPE w [<!ENTITY x SYSTEM "file:///etc/passwd">]><workbook>&x;</workbook>"""
)


def _ole(name: str) -> bytes:
    return b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504) + name.encode("utf-16-le") + bytes(512)


def _zipped(parts: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as package:
        for name, content in parts.items():
            package.writestr(name, content)
    return stream.getvalue()


def _parts(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as package:
        return {name: package.read(name) for name in package.namelist()}


FILES: list[tuple[bytes, str]] = [
    (b"", "is empty; a workbook (.xlsx) is meant"),
    (b"name,model\na,b\n", NOT_A_WORKBOOK),
    (_ole("Workbook"), "is an old Excel workbook (.xls); save it as .xlsx"),
    (_ole("EncryptedPackage"), "is encrypted; save it without a password"),
    (b"PK\x03\x04 and then nothing", f"is damaged; {DAMAGED}"),
    (_zipped({"a.txt": b"text"}), NOT_A_WORKBOOK),
    (_zipped({"content.xml": b"<x/>"}), "is an OpenDocument file; save it as .xlsx"),
    (_zipped({"xl/workbook.bin": b"x"}), "is a binary workbook (.xlsb); save it as .xlsx"),
    (_zipped({"[Content_Types].xml": b"<x/>"}), f"is damaged (xl/workbook.xml); {DAMAGED}"),
    (
        _zipped({"[Content_Types].xml": b"<x/>", "xl/workbook.xml": b"<workbook><sheets>"}),
        f"is damaged (xl/workbook.xml); {DAMAGED}",
    ),
    (
        _zipped({"[Content_Types].xml": b"<x/>", "xl/workbook.xml": DOCUMENT_TYPE}),
        "its part xl/workbook.xml declares a document type; xlperf does not open such files",
    ),
]


@pytest.mark.parametrize(("content", "message"), FILES)
def test_bad_file_is_refused_in_its_exact_line(content: bytes, message: str, tmp_path: Path, command: Command) -> None:
    path = tmp_path / "study.xlsx"
    path.write_bytes(content)
    for name in ("check", "show"):
        outcome = command(name, path)
        assert (outcome.code, outcome.out, outcome.err) == (2, "", f"study.xlsx: {message}\n")


def test_file_that_is_not_there(tmp_path: Path, command: Command) -> None:
    outcome = command("check", tmp_path / "none.xlsx")
    assert (outcome.code, outcome.err) == (2, f"{tmp_path / 'none.xlsx'}: there is no such file\n")


def test_folder(tmp_path: Path, command: Command) -> None:
    (tmp_path / "study.xlsx").mkdir()
    outcome = command("check", tmp_path / "study.xlsx")
    assert (outcome.code, outcome.err) == (2, "study.xlsx: is a folder; a workbook (.xlsx) is meant\n")


def test_encrypted_parts(tmp_path: Path) -> None:
    path = write(tmp_path / "study.xlsx", sheets())
    content = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.find(signature)
        while at >= 0:
            content[at + offset] |= 1
            at = content.find(signature, at + 4)
    path.write_bytes(bytes(content))
    assert _refused(load_catalog, path) == "study.xlsx: is encrypted; save it without a password"


def test_workbook_that_unpacks_to_three_gigabytes(tmp_path: Path, command: Command) -> None:
    path = _bomb(tmp_path / "bomb.xlsx", 300 * 2**20)
    outcome = command("show", path)
    assert outcome.err == (
        "bomb.xlsx: unpacks to more than 256 MiB in one part or 512 MiB in all; xlperf does not open it\n"
    )
    assert outcome.code == 2


def test_sizes_in_the_headers_of_a_package_are_not_believed(tmp_path: Path) -> None:
    path = _bomb(tmp_path / "bomb.xlsx", 4 * 2**20)
    content = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = content.find(signature)
        while at >= 0:
            if struct.unpack_from("<I", content, at + offset)[0] >= 4 * 2**20:
                struct.pack_into("<I", content, at + offset, 1000)
            at = content.find(signature, at + 4)
    path.write_bytes(bytes(content))
    assert _refused(load_catalog, path) == f"bomb.xlsx: is damaged (xl/workbook.xml); {DAMAGED}"


def test_bytes_are_counted_over_all_parts(tmp_path: Path) -> None:
    path = _bomb(tmp_path / "bomb.xlsx", 2 * 2**20)
    with Package(path, total_limit=3 * 2**20) as package:
        package.read("xl/workbook.xml")
        assert "unpacks to more than" in _refused(package.read, "xl/workbook.xml")


def _bomb(path: Path, size: int) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as package:
        package.writestr("[Content_Types].xml", "<x/>")
        with package.open("xl/workbook.xml", "w", force_zip64=True) as stream:
            for _ in range(size >> 20):
                stream.write(b" " * 2**20)
    return path


@pytest.mark.parametrize(
    ("part", "old", "new"),
    [
        ("xl/worksheets/sheet1.xml", b"<v>989</v>", b"<v>98x9</v>"),
        ("xl/worksheets/sheet1.xml", b'r="C2"', b'r="$$2"'),
        ("xl/worksheets/sheet1.xml", b"</sheetData>", b""),
        ("xl/worksheets/sheet1.xml", b'<row r="2"', b'<row r="9999999"'),
        ("xl/tables/table1.xml", b'ref="A1:J3"', b'ref="somewhere"'),
    ],
)
def test_damaged_part_is_named(part: str, old: bytes, new: bytes, tmp_path: Path) -> None:
    path = write(tmp_path / "study.xlsx", sheets())
    parts = _parts(path)
    assert old in parts[part]
    parts[part] = parts[part].replace(old, new, 2)
    path.write_bytes(_zipped(parts))
    assert _refused(load_catalog, path) == f"study.xlsx: is damaged ({part}); {DAMAGED}"


def test_shared_string_that_is_not_there(tmp_path: Path) -> None:
    path = write(tmp_path / "study.xlsx", sheets())
    parts = _parts(path)
    sheet = parts["xl/worksheets/sheet1.xml"]
    inline = b't="inlineStr"><is><t>hopper</t></is>'
    assert inline in sheet
    parts["xl/worksheets/sheet1.xml"] = sheet.replace(inline, b't="s"><v>7</v>')
    path.write_bytes(_zipped(parts))
    assert _refused(load_catalog, path) == f"study.xlsx: is damaged (xl/worksheets/sheet1.xml); {DAMAGED}"


def test_entities_are_refused_in_every_part(tmp_path: Path) -> None:
    path = write(tmp_path / "study.xlsx", sheets())
    intact = _parts(path)
    for part in ("_rels/.rels", "xl/workbook.xml", "xl/worksheets/sheet1.xml", "xl/styles.xml", "xl/tables/table1.xml"):
        bomb = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><x>&b;</x>'
        path.write_bytes(_zipped({**intact, part: bomb}))
        assert _refused(load_catalog, path) == (
            f"study.xlsx: its part {part} declares a document type; xlperf does not open such files"
        )


# --- CSV -----------------------------------------------------------------------------------------------------------

HEADER = "model,accelerator,num_accelerators,tensor parallel\n"
TEXTS: list[tuple[bytes, str]] = [
    (b"", "plans.csv: is empty; a header row and rows of values are meant"),
    (b"\n\n", "plans.csv: is empty; a header row and rows of values are meant"),
    (b"\xff\xfe\x00", "plans.csv [line 1]: is not UTF-8 text; save it as CSV UTF-8"),
    (HEADER.encode() + b"a,\xff,1,1\n", "plans.csv [line 2]: is not UTF-8 text; save it as CSV UTF-8"),
    (b"a\0b,c\n", "plans.csv: is no text: it holds zero bytes"),
    (b"PK\x03\x04....", "plans.csv: is a workbook or a Parquet file; give it its ending, .xlsx or .parquet"),
    (HEADER.encode() + b"a,b,8,1,9\n", "plans.csv [line 2]: has 5 values, the header has 4 columns"),
    (HEADER.encode(), "plans.csv: has no plans; fill at least one row"),
    (
        b"model,accelerator,num_accelerators,tensor paralel\na,b,8,1\n",
        'plans.csv [line 1, tensor paralel]: unknown column "tensor paralel"; did you mean tensor parallel, time '
        "tensor parallel, expert tensor parallel?",
    ),
    (b"model,accelerator\na,b\n", 'plans.csv [line 1]: the column "num accelerators" is missing'),
    (
        HEADER.encode() + b"a,b,8,2\n\na,b,8,none\n",
        'plans.csv [line 4, tensor parallel]: tensor parallel must be a whole number of at least 1, got "none"',
    ),
    (
        HEADER.encode() + b'"a\nb",b,8,2\na,b,"8,5",1\n',
        'plans.csv [line 4, num accelerators]: num accelerators must be a whole number of at least 1, got "8,5"',
    ),
    (
        HEADER.encode() + b"a,b,,2\n",
        "plans.csv [line 2, num accelerators]: num accelerators is missing; it must be a whole number of at least 1",
    ),
    (
        HEADER.encode() + b"a,b,1_0,2\n",
        'plans.csv [line 2, num accelerators]: num accelerators must be a whole number of at least 1, got "1_0"',
    ),
]


@pytest.mark.parametrize(("content", "message"), TEXTS)
def test_bad_csv_is_refused_in_its_exact_line(content: bytes, message: str, tmp_path: Path, command: Command) -> None:
    path = tmp_path / "plans.csv"
    path.write_bytes(content)
    assert _refused(read_plans, path) == message
    outcome = command("evaluate", path)
    assert (outcome.code, outcome.out, outcome.err) == (2, "", message + "\n")


def test_thousands_of_faults_are_shown_in_fifty_lines(tmp_path: Path, command: Command) -> None:
    path = tmp_path / "plans.csv"
    path.write_text(HEADER + "a,b,none,1\n" * 1300)
    assert len(_refused(read_plans, path).splitlines()) == 1300
    outcome = command("evaluate", path)
    lines = outcome.err.splitlines()
    assert len(lines) == 51
    assert lines[49].startswith("plans.csv [line 51, num accelerators]: ")
    assert lines[50] == "... and 1,250 more faults"
    assert outcome.code == 2


def test_plans_of_an_unknown_ending(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    path.write_text("{}")
    message = 'plans.json: plans must be a workbook (.xlsx), .csv or .parquet, got the ending ".json"'
    assert _refused(read_plans, path) == message
    assert _refused(read_plans, tmp_path / "none.csv") == f"{tmp_path / 'none.csv'}: there is no such file"
    assert _refused(read_plans, tmp_path / "none.json") == f"{tmp_path / 'none.json'}: there is no such file"
    (tmp_path / "folder.csv").mkdir()
    assert _refused(read_plans, tmp_path / "folder.csv") == "folder.csv: is a folder; a CSV file is meant"
    with_sheet = _refused(lambda path: read_plans(path, sheet="x"), tmp_path / "a.csv")
    assert with_sheet == "a.csv: has no sheets; leave the sheet out"


def test_bad_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "plans.parquet"
    path.write_bytes(b"nothing")
    assert _refused(read_plans, path).startswith("plans.parquet: is no Parquet file: ")


def test_long_lines_of_csv_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "plans.csv"
    path.write_text(HEADER + "a" * 200_000 + ",b,8,1\n")
    assert _refused(read_csv, path) == "plans.csv [line 2]: is no CSV: field larger than field limit (131072)"


# --- ranges of cells -----------------------------------------------------------------------------------------------


def test_cells_without_a_place_are_named_by_row_and_column() -> None:
    header = ["model", "accelerator", "num accelerators", "colour"]
    rows = [["a", "b", 8, None], ["a", ErrorValue("#REF!"), -1, None], [None, "b", 10**400, "red"]]
    assert _refused(lambda kind: table_from_rows(kind, header, rows), "training").splitlines() == [
        'header, colour: unknown column "colour"; known: name, model, accelerator, network, num accelerators, '
        "software, tensor parallel, sequence parallel, ...",
        "row 2, accelerator: accelerator must be text, got the error #REF!",
        "row 2, num accelerators: num accelerators must be a whole number of at least 1, got -1",
        "row 3, model: model is missing",
        "row 3, num accelerators: num accelerators must be a whole number of at least 1, got " + f'"1{"0" * 59}"',
    ]


def test_faults_stay_in_their_lines_whatever_the_cells_hold(tmp_path: Path, command: Command) -> None:
    content = sheets()
    for address in ("accelerators!G2", "models!B3", "calibration!B2", "training!B3", "training!G1", "networks!E1"):
        set_cell(content, address, "a\nb\u2028c" + "d" * 500)
    outcome = command("check", write(tmp_path / "xlperf.xlsx", content))
    assert outcome.code == 2
    for line in outcome.err.splitlines():
        assert line.startswith("xlperf.xlsx [") and len(line) < 300


def test_card_names_the_value() -> None:
    card = [["model", "a"], ["accelerator", "b"], ["num accelerators", 8], ["memory", 9], ["recompute", "some"]]
    assert _refused(card_to_table, card) == (
        'row 1, recompute: recompute must be one of none, selective, full, got "some"'
    )


def _refused(action: Callable[..., object], argument: Any) -> str:
    with pytest.raises(InputError) as caught:
        action(argument)
    return str(caught.value)


def test_the_sample_itself_is_fine(tmp_path: Path, command: Command) -> None:
    content: Sheets = sheets()
    outcome = command("check", write(tmp_path / "xlperf.xlsx", content))
    assert (outcome.code, outcome.err) == (0, "")
