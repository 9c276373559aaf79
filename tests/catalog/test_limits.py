"""Memory and time of files that hold more than they seem to: bounded by the cells there are and by stated limits."""

from __future__ import annotations

import random
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Outcome
from forked_commands import ForkedCommands

MIB = 2**20
TYPES = (
    '<?xml version="1.0"?><Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="xml" ContentType="application/xml"/></Types>'
)
RELATIONS = '<?xml version="1.0"?><Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
MAIN = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
HEADER = ("model", "accelerator", "num accelerators")

COMMANDS = ForkedCommands()
measured = COMMANDS.measured


@pytest.fixture(scope="module", autouse=True)
def ended() -> Iterator[None]:
    """The process that forks for each command ends with this module."""
    yield
    COMMANDS.end()


def cell(reference: str, value: str | float) -> str:
    if isinstance(value, str):
        return f'<c r="{reference}" t="inlineStr"><is><t>{value}</t></is></c>'
    return f'<c r="{reference}"><v>{value}</v></c>'


def row(number: int, cells: str) -> str:
    return f'<row r="{number}">{cells}</row>'


def top(number: int = 1) -> str:
    return row(number, "".join(cell(f"{'ABC'[place]}{number}", name) for place, name in enumerate(HEADER)))


def workbook(path: Path, rows: Iterator[bytes], reference: str = "", text: str = "", level: int = 4) -> Path:
    """A workbook with one sheet ``training`` whose rows come as bytes, and a table over a reference."""
    table = bool(reference)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as package:
        package.writestr("[Content_Types].xml", TYPES)
        main = f'<Relationship Id="r1" Type="{OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>'
        package.writestr("_rels/.rels", RELATIONS + main)
        book = f'<workbook {MAIN} xmlns:r="{OFFICE}"><sheets><sheet name="training" sheetId="1" r:id="r1"/></sheets>'
        package.writestr("xl/workbook.xml", book + "</workbook>")
        sheet = f'<Relationship Id="r1" Type="{OFFICE}/worksheet" Target="worksheets/sheet1.xml"/>'
        words = f'<Relationship Id="r2" Type="{OFFICE}/sharedStrings" Target="sharedStrings.xml"/></Relationships>'
        package.writestr("xl/_rels/workbook.xml.rels", RELATIONS + sheet + words)
        if table:
            related = f'<Relationship Id="r1" Type="{OFFICE}/table" Target="../tables/table1.xml"/></Relationships>'
            package.writestr("xl/worksheets/_rels/sheet1.xml.rels", RELATIONS + related)
            package.writestr("xl/tables/table1.xml", f'<table {MAIN} name="training" ref="{reference}"/>')
        if text:
            with package.open("xl/sharedStrings.xml", "w", force_zip64=True) as part:
                part.write(b"<sst>")
                for _ in range(200):
                    part.write(text.encode())
        with package.open("xl/worksheets/sheet1.xml", "w", force_zip64=True) as part:
            part.write(f"<worksheet {MAIN}><sheetData>".encode())
            for piece in rows:
                part.write(piece)
            part.write(b"</sheetData></worksheet>")
    return path


def plans(number: int) -> Iterator[bytes]:
    yield top().encode()
    for n in range(2, number + 2):
        yield row(n, cell(f"A{n}", "Llama3-70B") + cell(f"B{n}", "H100-SXM-80GB") + cell(f"C{n}", 64)).encode()


def shared() -> Iterator[bytes]:
    yield top().encode() + b'<row r="2"><c r="A2" t="s"><v>0</v></c></row>'


def repeated(piece: bytes, number: int) -> Iterator[bytes]:
    yield top().encode() + b'<row r="2">'
    block = piece * 10_000
    for _ in range(number // 10_000):
        yield block
    yield b"</row>"


def scattered(number: int) -> Iterator[bytes]:
    """Cells with values of their own: nothing that packs well."""
    chance = random.Random(3)
    block = b"".join(b"<c><v>%d</v></c>" % chance.getrandbits(40) for _ in range(20_000))
    yield top().encode() + b'<row r="2">'
    for _ in range(number // 20_000):  # far longer than what the packer looks back
        yield block
    yield b"</row>"


def far(number: int) -> Iterator[bytes]:
    """A row has one cell, each in a column of its own."""
    from xlperf.catalog.table import column_letters

    yield top().encode()
    for n in range(2, number + 2):
        yield row(n, cell(f"{column_letters(n % 16_000 + 4)}{n}", 1.0)).encode()


REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "table beyond the last column": (
        lambda path: workbook(path, plans(20_000), "A1:ZZZZZZZ9"),
        "bad.xlsx: is damaged (xl/tables/table1.xml); open it in Excel or LibreOffice and save it again\n",
    ),
    "table beyond the last column but one letter": (
        lambda path: workbook(path, plans(20), "A1:XFE1048576"),
        "bad.xlsx: is damaged (xl/tables/table1.xml); open it in Excel or LibreOffice and save it again\n",
    ),
    "17 million empty cells": (
        lambda path: workbook(path, repeated(b"<c/>", 17_000_000)),
        "bad.xlsx: its part xl/worksheets/sheet1.xml unpacks to more than 100 times its size; "
        "xlperf does not open it\n",
    ),
    "17 million cells": (
        lambda path: workbook(path, repeated(b"<c><v>1</v></c>", 17_000_000)),
        "bad.xlsx: its part xl/worksheets/sheet1.xml unpacks to more than 100 times its size; "
        "xlperf does not open it\n",
    ),
    "shared strings": (
        lambda path: workbook(path, shared(), text="<si><t>x</t></si>" * 20_000),
        "bad.xlsx: its part xl/sharedStrings.xml unpacks to more than 100 times its size; xlperf does not open it\n",
    ),
    "one string": (
        lambda path: workbook(path, shared(), text="<si><t>" + "x" * 1_000_000),
        "bad.xlsx: its part xl/sharedStrings.xml unpacks to more than 100 times its size; xlperf does not open it\n",
    ),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_is_beyond_the_limits_is_refused_quickly(name: str, tmp_path: Path) -> None:
    make, words = REFUSED[name]
    path = tmp_path / "bad.xlsx"
    make(path)
    assert path.stat().st_size < 2 * MIB
    code, said, seconds, size = measured("evaluate", path)
    assert (code, said) == (2, words)
    assert seconds < 5.0 and size < 300.0, f"{seconds:.2f} s, {size:.0f} MiB"


@pytest.mark.slow
def test_many_cells_that_do_not_pack_are_refused_too(tmp_path: Path) -> None:
    """A part below the ratio: its elements are counted before one is read."""
    path = workbook(tmp_path / "bad.xlsx", scattered(7_200_000), level=1)
    code, said, seconds, size = measured("evaluate", path)
    assert code == 2 and "holds more than 14,000,000 elements; split the sheet" in said
    assert seconds < 5.0 and size < 300.0, f"{seconds:.2f} s, {size:.0f} MiB"


@pytest.mark.parametrize("reference", ["A1:XFD1048576", "A1:XFD5001", ""])
def test_a_table_over_the_whole_sheet_costs_what_its_cells_do(reference: str, tmp_path: Path) -> None:
    path = workbook(tmp_path / "plans.xlsx", plans(5_000), reference)
    code, said, seconds, size = measured("evaluate", path, "-o", tmp_path / "out.csv")
    assert (code, said) == (0, f"{tmp_path}/out.csv: 5,000 training plans\n")
    assert size < 300.0 and seconds < 10.0, f"{seconds:.2f} s, {size:.0f} MiB"


def test_cells_far_apart_cost_what_they_are(tmp_path: Path) -> None:
    """20,000 rows with a cell each in another column are no table of 20,000 times 16,000 cells."""
    path = workbook(tmp_path / "far.xlsx", far(20_000), "A1:XFD1048576")
    code, said, seconds, size = measured("evaluate", path)
    assert code == 2 and said.count("\n") <= 51
    assert size < 300.0 and seconds < 10.0, f"{seconds:.2f} s, {size:.0f} MiB"


@pytest.mark.parametrize("name", ["check --text", "check", "validate", "report", "cost"])
def test_other_commands_keep_to_the_cells_there_are(name: str, tmp_path: Path) -> None:
    """No reader makes a sheet dense, whatever it is read for."""
    path = workbook(tmp_path / "far.xlsx", far(4_000), "A1:XFD1048576")
    code, _, seconds, size = measured(*name.split(), path, *(["-o", tmp_path / "out.xlsx"] if name == "report" else []))
    assert code == (0 if name in ("check --text", "check") else 2)
    assert size < 300.0 and seconds < 20.0, f"{seconds:.2f} s, {size:.0f} MiB"


def test_published_rows_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    def rows() -> Iterator[bytes]:
        yield row(1, "".join(f'<c t="inlineStr"><is><t>{name}</t></is></c>' for name in columns)).encode()
        for n in range(2, 2_002):
            yield row(n, cell(f"A{n}", "x")).encode()

    columns = ["row_id", "model", "gpu", "n_gpus", *(f"other {number}" for number in range(6_000))]
    code, said, seconds, size = measured("validate", workbook(tmp_path / "bad.xlsx", rows()))
    assert (code, said) == (
        2, "bad.xlsx [training]: holds 2,000 rows of 6,004 columns; 10,000,000 values are the most\n"
    )  # fmt: skip
    assert seconds < 5.0 and size < 300.0, f"{seconds:.2f} s, {size:.0f} MiB"


def test_rows_beyond_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from xlperf.base.errors import InputError
    from xlperf.catalog import read as reader
    from xlperf.catalog.read import read_plans

    monkeypatch.setattr(reader, "MOST_ROWS", 100)
    assert len(read_plans(workbook(tmp_path / "good.xlsx", plans(100)))[0]) == 100
    with pytest.raises(InputError, match=r"bad.xlsx \[training\]: holds 101 rows; xlperf reads 100 of a sheet, more"):
        read_plans(workbook(tmp_path / "bad.xlsx", plans(101)))


def test_a_list_of_parts_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.xlsx"
    with zipfile.ZipFile(path, "w") as package:
        for number in range(12_000):
            package.writestr(zipfile.ZipInfo(f"p{number}"), b"")
    code, said, seconds, size = measured("evaluate", path)
    assert (code, said) == (2, "bad.xlsx: holds more than 10,000 parts; xlperf does not open it\n")
    assert seconds < 5.0 and size < 300.0, f"{seconds:.2f} s, {size:.0f} MiB"


@pytest.mark.slow
def test_what_commands_write_is_within_the_limits(tmp_path: Path) -> None:
    """The largest workbook that is written, 50,000 rows all alike, can be read again: it packs best."""
    from openpyxl import Workbook

    from xlperf.catalog.xlsx_package import LARGE_PART, MOST_TIMES
    from xlperf.workbook.package import save_workbook

    book = Workbook()
    sheet = book.active
    assert sheet is not None
    for _ in range(8_000):
        sheet.append(["Llama3-70B", "H100-SXM-80GB", *([0.1234567890123] * 60)])
    save_workbook(book, tmp_path / "alike.xlsx")
    with zipfile.ZipFile(tmp_path / "alike.xlsx") as package:
        (info,) = [info for info in package.infolist() if "sheet1.xml" in info.filename]
    assert info.file_size > LARGE_PART and info.file_size < MOST_TIMES / 2 * info.compress_size


# --- CSV -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda: b"x" * 30_000_000, "[line 1]: is longer than 4,194,304 characters"),
        (lambda: b"model,accelerator\n" + b"a," * 15_000_000, "[line 2]: is longer than 4,194,304 characters"),
        (
            lambda: b",".join(b"c%d" % number for number in range(400_000)),
            "[line 1]: has 400,000 columns; 16,384 are the most",
        ),
        (lambda: b"a\rb\r" + b"c" * 30_000_000, "[line 3]: is longer than 4,194,304 characters"),
    ],
    ids=["one line", "many values", "many columns", "carriage returns"],
)
def test_lines_and_columns_of_csv_files_are_bounded(content: Callable[[], bytes], words: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content())
    code, said, seconds, size = measured("evaluate", path)
    assert code == 2 and said.startswith(f"bad.csv {words}") and said.count("\n") == 1
    assert seconds < 5.0 and size < 300.0, f"{seconds:.2f} s, {size:.0f} MiB"


def test_lines_below_the_limit_are_read(tmp_path: Path) -> None:
    from xlperf.catalog.csv_files import LINE_LIMIT, read_csv

    path = tmp_path / "long.csv"
    long = "y" * 100_000
    path.write_text("a,b\n" + "".join(f"{long},{number}\n" for number in range(3 * LINE_LIMIT // len(long))))
    assert len(read_csv(path).locate.lines) == 3 * LINE_LIMIT // len(long)


@pytest.fixture
def pa() -> Any:
    """Arrow with its Parquet."""
    import pyarrow
    import pyarrow.parquet

    return pyarrow


# --- Parquet -------------------------------------------------------------------------------------------------------


def test_rows_that_a_parquet_file_repeats_are_bounded(pa: Any, tmp_path: Path) -> None:
    """A run of a million equal values is a few bytes."""
    rows = 30_000_000
    values = pa.DictionaryArray.from_arrays(
        pa.Array.from_buffers(pa.int8(), rows, [None, pa.py_buffer(bytes(rows))]), pa.array(["Llama3-70B"])
    )
    table = pa.table(dict.fromkeys(["model", "accelerator", "num accelerators"], values))
    pa.parquet.write_table(table, tmp_path / "bad.parquet", compression="zstd")
    assert (tmp_path / "bad.parquet").stat().st_size < MIB
    code, said, seconds, size = measured("evaluate", tmp_path / "bad.parquet")
    assert code == 2
    assert said == (
        "bad.parquet: holds 30,000,000 rows of 3 columns of plans; 64,000,000 values are the most: split it\n"
    )
    assert seconds < 5.0 and size < 300.0, f"{seconds:.2f} s, {size:.0f} MiB"


def test_a_long_text_that_a_parquet_file_repeats_is_held_once(pa: Any, tmp_path: Path) -> None:
    rows = 100_000
    names = pa.DictionaryArray.from_arrays(pa.array([0] * rows, type=pa.int32()), pa.array(["n" * 100_000]))
    plain = {"model": ["Llama3-70B"] * rows, "accelerator": ["H100-SXM-80GB"] * rows, "num accelerators": [64] * rows}
    pa.parquet.write_table(pa.table({**plain, "name": names}), tmp_path / "long.parquet")
    from xlperf.catalog.read import read_plans

    (table,) = read_plans(tmp_path / "long.parquet")
    assert len(table) == rows and table["name"][0] is table["name"][-1]


def test_a_footer_without_end_is_refused(pa: Any, tmp_path: Path) -> None:
    path = tmp_path / "bad.parquet"
    path.write_bytes(b"PAR1" + bytes(64) + struct.pack("<I", 2**31 - 1) + b"PAR1")
    code, said, _, size = measured("evaluate", path)
    assert (code, size < 300.0) == (2, True)
    assert said == "bad.parquet: describes its columns in more than 16 MiB; xlperf does not open it\n"


@pytest.mark.parametrize("kind", ["list", "map", "struct", "binary", "dictionary of lists"])
def test_columns_that_hold_no_single_values_are_refused(
    kind: str, pa: Any, tmp_path: Path, command: Callable[..., Outcome]
) -> None:
    odd = {
        "list": pa.array([[1.0], None]),
        "map": pa.array([[("a", 1)], []], type=pa.map_(pa.string(), pa.int64())),
        "struct": pa.array([{"a": 1}, {"a": 2}]),
        "binary": pa.array([b"a", b"b"]),
        "dictionary of lists": pa.array([[[1]], [[2]]]),
    }[kind]
    plain = {"model": ["a", "b"], "accelerator": ["a", "b"], "num accelerators": [1, 2]}
    pa.parquet.write_table(pa.table({**plain, "tensor parallel": odd}), tmp_path / "odd.parquet")
    done = command("evaluate", tmp_path / "odd.parquet")
    assert done.code == 2 and done.err.count("\n") == 1
    assert done.err.startswith("odd.parquet [column tensor parallel]: holds ")
    assert "a cell of a plan is one value" in done.err
