"""Every kind of file that is no workbook, no CSV or no Parquet has its exact line, and the command exits with 2."""

from __future__ import annotations

import contextlib
import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pandas
import pytest
from conftest import Outcome
from workbook_samples import refused, sheets, write

from xlperf.base.errors import InputError
from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.csv_files import read_csv
from xlperf.catalog.read import read_plans
from xlperf.catalog.xlsx_package import Package

Command = Callable[..., Outcome]


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
    (_zipped({"content.xml": b"<x/>"}), "is an OpenDocument file; save it as .xlsx, or give it its ending, .ods"),
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
    for words in (["check"], ["check", "--text"]):
        outcome = command(*words, path)
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
    assert refused(load_catalog, path) == "study.xlsx: is encrypted; save it without a password"


def test_workbook_that_unpacks_to_three_gigabytes(tmp_path: Path, command: Command) -> None:
    path = _bomb(tmp_path / "bomb.xlsx", 300 * 2**20)
    outcome = command("check", "--text", path)
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
    assert refused(load_catalog, path) == f"bomb.xlsx: is damaged (xl/workbook.xml); {DAMAGED}"


def test_bytes_are_counted_over_all_parts(tmp_path: Path) -> None:
    path = _bomb(tmp_path / "bomb.xlsx", 2 * 2**20)
    with Package(path, total_limit=3 * 2**20) as package:
        assert sum(map(len, package.chunks("xl/workbook.xml"))) > 2**20
        assert "unpacks to more than" in refused(lambda part: list(package.chunks(part)), "xl/workbook.xml")


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
    assert refused(load_catalog, path) == f"study.xlsx: is damaged ({part}); {DAMAGED}"


def test_shared_string_that_is_not_there(tmp_path: Path) -> None:
    path = write(tmp_path / "study.xlsx", sheets())
    parts = _parts(path)
    sheet = parts["xl/worksheets/sheet1.xml"]
    inline = b't="inlineStr"><is><t>hopper</t></is>'
    assert inline in sheet
    parts["xl/worksheets/sheet1.xml"] = sheet.replace(inline, b't="s"><v>7</v>')
    path.write_bytes(_zipped(parts))
    assert refused(load_catalog, path) == f"study.xlsx: is damaged (xl/worksheets/sheet1.xml); {DAMAGED}"


def test_entities_are_refused_in_every_part(tmp_path: Path) -> None:
    path = write(tmp_path / "study.xlsx", sheets())
    intact = _parts(path)
    for part in ("_rels/.rels", "xl/workbook.xml", "xl/worksheets/sheet1.xml", "xl/styles.xml", "xl/tables/table1.xml"):
        bomb = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><x>&b;</x>'
        path.write_bytes(_zipped({**intact, part: bomb}))
        assert refused(load_catalog, path) == (
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
        'plans.csv [line 4, num accelerators]: num accelerators must be a whole number of at least 1, got "8,5", '
        "which has a decimal comma; write 8.5",
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
    assert refused(read_plans, path) == message
    outcome = command("evaluate", path)
    assert (outcome.code, outcome.out, outcome.err) == (2, "", message + "\n")


def test_thousands_of_faults_are_shown_in_fifty_lines(tmp_path: Path, command: Command) -> None:
    path = tmp_path / "plans.csv"
    path.write_text(HEADER + "".join(f"a,b,none {number},1\n" for number in range(1300)))
    assert len(refused(read_plans, path).splitlines()) == 1300
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
    message += "; of a log or launch file: xlperf launch --read plans.json -o plans.csv"
    assert refused(read_plans, path) == message
    assert refused(read_plans, tmp_path / "none.csv") == f"{tmp_path / 'none.csv'}: there is no such file"
    assert refused(read_plans, tmp_path / "none.json") == f"{tmp_path / 'none.json'}: there is no such file"
    (tmp_path / "folder.csv").mkdir()
    assert refused(read_plans, tmp_path / "folder.csv") == "folder.csv: is a folder; a CSV file is meant"
    with_sheet = refused(lambda path: read_plans(path, sheet="x"), tmp_path / "a.csv")
    assert with_sheet == "a.csv: has no sheets; leave the sheet out"


def test_bad_parquet(tmp_path: Path) -> None:
    path = tmp_path / "plans.parquet"
    path.write_bytes(b"nothing")
    assert refused(read_plans, path).startswith("plans.parquet: is no Parquet file: ")


def test_damaged_descriptions_of_parquet_columns(tmp_path: Path) -> None:
    """Texts whose type became a number in the footer (Arrow 26 ends the process when asked for such a column)."""
    good = io.BytesIO()
    pandas.DataFrame({"name": ["a", "b"], "model": ["Llama2-7B", "x"]}).to_parquet(good)
    content, path = good.getvalue(), tmp_path / "plans.parquet"
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    places = [place for place in range(footer, len(content) - 8) if content[place] == 12]
    assert places
    for place in places:
        path.write_bytes(content[:place] + b"\x08" + content[place + 1 :])
        with contextlib.suppress(InputError):
            read_plans(path)


def test_long_lines_of_csv_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "plans.csv"
    path.write_text(HEADER + "a" * 200_000 + ",b,8,1\n")
    assert refused(read_csv, path) == "plans.csv [line 2]: is no CSV: field larger than field limit (131072)"
