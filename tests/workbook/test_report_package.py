"""The report as a file: its parts, tables and charts, its bytes, how it is replaced, and that LibreOffice opens it."""

from __future__ import annotations

import contextlib
import datetime
import io
import math
import os
import re
import signal
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import readme
import report_samples as samples
from openpyxl import Workbook, load_workbook
from openpyxl.comments import Comment
from openpyxl.worksheet._writer import WorksheetWriter
from openpyxl.worksheet.formula import ArrayFormula
from places import SUPPORT

from xlperf.base import resources
from xlperf.base.errors import InputError
from xlperf.catalog.schema import column, schema, table_schema
from xlperf.catalog.table import Table
from xlperf.cli import run
from xlperf.workbook.build import build_template
from xlperf.workbook.package import data_rows, sheet_part, workbook_bytes, write_table
from xlperf.workbook.style import add_styles, fitted_format, number_format, put

CHART = "{http://schemas.openxmlformats.org/drawingml/2006/chart}"
DRAWING = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
ERRORS = ("#NAME?", "#VALUE!", "#REF!", "#DIV/0!", "#NUM!", "#N/A", "#NULL!", "Err:5")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("report") / "report.xlsx"
    samples.write(made, "a study")
    return made


@pytest.fixture(scope="module")
def book(path: Path) -> Workbook:
    return load_workbook(path)


@pytest.fixture(scope="module")
def parts(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as package:
        return {name: package.read(name) for name in package.namelist()}


def test_every_text_stays_text() -> None:
    workbook = Workbook()
    add_styles(workbook)
    sheet = workbook.worksheets[0]
    for text in ("=1+1", "+1", "-1", "@SUM(A1)", "#N/A", "2026-01-01", "a\x00b"):
        cell = put(sheet["A1"], text)
        assert cell.data_type == "s"
        assert cell.value == text.replace("\x00", "\N{REPLACEMENT CHARACTER}")


def test_every_table_has_frozen_headers_print_titles_and_header_comments(book: Workbook) -> None:
    for sheet in book:
        assert sheet.freeze_panes, sheet.title
        assert sheet.print_title_rows or sheet.print_area, sheet.title  # charts or a first page alone repeat nothing
        assert sheet.page_setup.orientation == "landscape"
        assert sheet.page_setup.fitToWidth >= 1
        assert sheet.sheet_properties.pageSetUpPr.fitToPage
        assert "&P" in sheet.oddFooter.right.text
        for table in sheet.tables.values():
            assert all(cell.comment is not None for cell in sheet[table.ref][0]), (sheet.title, table.name)


def test_tables_are_legal(parts: dict[str, bytes]) -> None:
    names: list[str] = []
    for name, data in parts.items():
        if not name.startswith("xl/tables/"):
            continue
        root = ElementTree.fromstring(data)
        names.append(root.attrib["displayName"])
        headers = [entry.attrib["name"] for entry in root.iter(f"{MAIN}tableColumn")]
        assert len({header.casefold() for header in headers}) == len(headers), name
        assert re.fullmatch(r"[A-Za-z_\\][\w.\\]*", names[-1])
        assert not re.fullmatch(r"[A-Za-z]{1,3}\d+|[RrCc]", names[-1])
    assert len({name.casefold() for name in names}) == len(names) >= 14


def test_tables_of_a_sheet_do_not_overlap(book: Workbook) -> None:
    for sheet in book:
        seen: set[str] = set()
        for table in sheet.tables.values():
            cells = {cell.coordinate for row in sheet[table.ref] for cell in row}
            assert not cells & seen
            seen |= cells


def test_every_chart_series_carries_its_points_and_they_are_those_of_the_cells(
    parts: dict[str, bytes], book: Workbook
) -> None:
    charts = {name: ElementTree.fromstring(data) for name, data in parts.items() if name.startswith("xl/charts/chart")}
    assert len(charts) == 2 + 2 + 2 + 1 + 2 + 1
    for name, root in charts.items():
        deleted = [entry.attrib["val"] for entry in root.iter(f"{CHART}delete")]
        assert "0" in deleted, name
        assert root.find(f".//{CHART}title//{CHART}overlay").attrib["val"] == "0"
        assert not root.findall(f".//{CHART}externalData")
        for series in root.iter(f"{CHART}ser"):
            for tag in ("tx", "val" if series.find(f"{CHART}val") is not None else "yVal"):
                assert series.find(f"{CHART}{tag}") is not None
            for kind in ("numRef", "strRef"):
                for reference in series.iter(f"{CHART}{kind}"):
                    check_cache(reference, book, kind.replace("Ref", "Cache"))


def check_cache(reference: ElementTree.Element, book: Workbook, kind: str) -> None:
    title, area = re.fullmatch(r"'?([^'!]+)'?!(.+)", reference.findtext(f"{CHART}f", "")).groups()
    result = book[title][area.replace("$", "")]
    cells = [row[0] for row in result] if isinstance(result, tuple) else [result]
    cache = reference.find(f"{CHART}{kind}")
    assert cache is not None
    assert cache.find(f"{CHART}ptCount").attrib["val"] == str(len(cells))
    points = {int(p.attrib["idx"]): p.findtext(f"{CHART}v") for p in cache.iter(f"{CHART}pt")}
    assert points
    for place, cell in enumerate(cells):
        if cell.value is None:
            assert place not in points
        elif kind == "numCache":
            assert float(points[place]) == pytest.approx(cell.value, rel=1e-15)
        else:
            assert points[place] == str(cell.value)


def test_capacity_is_a_frame_around_the_bars_of_memory(parts: dict[str, bytes]) -> None:
    """Hollow, of the same direction, and on axes of its own that are as long as those of the bars and not shown."""
    framed = [
        root
        for root in (ElementTree.fromstring(data) for name, data in parts.items() if name.startswith("xl/charts/chart"))
        if len(root.findall(f".//{CHART}barChart")) == 2
    ]
    assert len(framed) == 2
    for root in framed:
        bars, frame = root.findall(f".//{CHART}barChart")
        name = frame.findtext(f"./{CHART}ser/{CHART}tx/{CHART}v")
        assert name == "memory capacity" and frame.find(f"./{CHART}ser/{CHART}spPr/{DRAWING}noFill") is not None
        axes = {axis.find(f"{CHART}axId").attrib["val"]: axis for axis in root.findall(f".//{CHART}valAx")}
        own, other = (next(axes[e.attrib["val"]] for e in one.findall(f"{CHART}axId") if e.attrib["val"] in axes)
                      for one in (bars, frame))  # fmt: skip
        ends = [[axis.find(f"{CHART}scaling/{CHART}{end}").attrib["val"] for end in ("min", "max")]
                for axis in (own, other)]  # fmt: skip
        assert ends[0] == ends[1] and own is not other
        assert other.find(f"{CHART}delete").attrib["val"] == "1"
        for one in (bars, frame):
            assert one.find(f"{CHART}barDir").attrib["val"] == "bar"


def test_same_input_gives_the_same_bytes(path: Path, tmp_path: Path) -> None:
    program = "import sys, pathlib, report_samples; report_samples.write(pathlib.Path(sys.argv[1]), 'a study')"
    again = tmp_path / "again.xlsx"
    environment = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": str(SUPPORT), "TZ": "Asia/Tokyo"}
    subprocess.run([sys.executable, "-c", program, str(again)], env=environment, check=True, timeout=1100)
    assert again.read_bytes() == path.read_bytes()


def test_document_properties_are_those_of_the_report(book: Workbook) -> None:
    properties = book.properties
    assert properties.title == "xlperf report: a study"
    assert properties.created == properties.modified == datetime.datetime(2026, 11, 21)
    assert samples.catalog().fingerprint in properties.keywords


def test_template_is_what_its_command_builds(tmp_path: Path) -> None:
    build_template(tmp_path / "report.xlsx")
    assert (tmp_path / "report.xlsx").read_bytes() == resources.template("report.xlsx").read_bytes()


def test_a_run_that_is_killed_half_way_leaves_the_old_file_whole(path: Path, tmp_path: Path) -> None:
    before = path.read_bytes()
    old = tmp_path / "report.xlsx"
    old.write_bytes(before)
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "import report_samples\n"
        "def cut(self, data):\n"
        "    with self.open('wb') as stream:\n"
        "        stream.write(data[: len(data) // 2])\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "Path.write_bytes = cut\n"
        "report_samples.write(Path(sys.argv[1]), 'new')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    done = subprocess.run([sys.executable, "-c", program, str(old)], env=environment, check=False, timeout=1100)
    assert done.returncode == -signal.SIGKILL
    assert old.read_bytes() == before
    samples.write(old, "new")
    assert load_workbook(old).properties.title == "xlperf report: new"


def test_a_run_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "report.xlsx"
    old.write_bytes(b"old")

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError) as caught:
        samples.write(old)
    assert str(caught.value) == (
        f"{old}: cannot be written (no space left on device); close it where it is open, or choose another folder"
    )
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.xlsx"]
    assert old.read_bytes() == b"old"


def test_paths_that_cannot_be_written_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        samples.write(tmp_path)
    assert str(caught.value) == f"{tmp_path}: is a folder; give a file name such as report.xlsx"
    lost = tmp_path / "nowhere" / "report.xlsx"
    with pytest.raises(InputError) as caught:
        samples.write(lost)
    assert str(caught.value) == f'{lost}: there is no folder "{lost.parent}"; make it first'


def test_a_folder_that_may_not_be_written_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(*_: object) -> Path:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("xlperf.base.files._new_part", refused)
    with pytest.raises(InputError) as caught:
        samples.write(tmp_path / "report.xlsx")
    assert "cannot be written (permission denied)" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_column_of_the_schema_has_a_number_format_that_excel_reads() -> None:
    for table in schema().values():
        for entry in table.columns:
            code = number_format(entry)
            assert code
            if entry.kind in ("number", "result"):
                assert code == "General" or "0" in code
            assert code.count(";") <= 2
            assert fitted_format(entry, [0.0, 0.0123, 4.5]).count(";") <= 2


def test_data_rows_turn_units_flags_blanks_and_auto() -> None:
    plans = Table(
        "training",
        {
            "model": np.array(["a", ""], dtype=object),
            "sequence_parallel": np.array([1.0, np.nan]),
            "tensor_parallel": np.array([8.0, np.nan]),
        },
        auto={"tensor_parallel": np.array([False, True])},
    )
    columns = [column("training", name) for name in ("model", "sequence_parallel", "tensor_parallel", "optimizer")]
    assert data_rows(plans, columns) == [["a", "yes", 8, None], [None, None, "auto", None]]


def _odd_cells() -> Any:
    """A sheet with all kinds of values, formulas and looks of cells."""
    book = Workbook()
    add_styles(book)
    sheet: Any = book.worksheets[0]
    texts = (
        "a < b & \"c\" > 'd'",
        " spaces ",
        "two\nlines",
        "\N{MULTIPLICATION SIGN}\N{GRINNING FACE}",
        "",
        "=1+1",
        " ",
    )
    odd = (
        *texts,
        0.5,
        -1e-7,
        3,
        0,
        True,
        False,
        None,
        math.nan,
        "#N/A",
        datetime.date(2026, 11, 29),
        datetime.timedelta(hours=36),
    )
    for row, value in enumerate(odd, start=1):
        sheet.cell(row, 1, value)
        put(sheet.cell(row, 3), value if isinstance(value, str | float | int) else None, "xlperf key")
    sheet["E1"] = ArrayFormula("E1:E2", "=A8:A9*2")
    sheet["E3"] = '=IF(A8<1,"a","b")'
    sheet["E4"] = "="
    sheet["E5"], sheet["E6"] = "a link", 7
    sheet["E5"].hyperlink = sheet["E6"].hyperlink = "https://example.com/?a=1&b=2"
    sheet["G1"].comment = Comment("a comment", "xlperf")
    sheet.row_dimensions[40].height = 20.5
    return sheet


def test_cells_are_written_as_openpyxl_writes_them() -> None:
    own, known = _odd_cells(), _odd_cells()
    stream = io.BytesIO()
    writer: Any = WorksheetWriter(known, stream)
    writer.write()
    part, relations = sheet_part(own)
    assert part == stream.getvalue()
    assert [one.Target for one in relations] == [one.Target for one in writer._rels] and len(own._comments) == 1
    assert own.parent._cell_styles == known.parent._cell_styles


def test_numbers_have_all_their_digits() -> None:
    sheet: Any = Workbook().worksheets[0]
    sheet["A1"], sheet["A2"] = 0.1 + 0.2, 1.0
    sheet["A2"].hyperlink = "https://example.com"
    assert re.findall(rb"<v>(.*?)</v>", sheet_part(sheet)[0]) == [b"0.30000000000000004", b"1.0"]


def test_an_empty_table_is_still_a_table() -> None:
    workbook = load_workbook(resources.template("report.xlsx"))
    area = write_table(workbook["prices"], table_schema("prices").columns, [], "A4")
    assert area.startswith("A4:") and area.endswith("5")
    again = load_workbook(io.BytesIO(workbook_bytes(workbook)))
    assert again["prices"].tables["prices"].ref == area


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """Folder, output and messages of the command without arguments: the report of all plans."""
    folder, out, err = tmp_path_factory.mktemp("printed"), io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert run(["report"]) == 0
    return folder, out.getvalue(), err.getvalue()


def test_a_report_is_made_of_the_shipped_workbook(complete: tuple[Path, str, str]) -> None:
    folder, out, err = complete
    answers = [line.partition(": ")[0] for line in out.splitlines()]
    assert {"Training Meta-Llama-3.1-8B", "Serving Llama2-7B", "Least memory left, serving"} < set(answers)
    assert err.startswith("report.xlsx: ") and err.count("\n") == 1
    assert len(load_workbook(folder / "report.xlsx", read_only=True).sheetnames) >= 5
    assert [path.name for path in folder.iterdir() if path.is_file()] == ["report.xlsx"]


@pytest.fixture(scope="module")
def printed(complete: tuple[Path, str, str], converted: Callable[..., Path]) -> Path:
    """The report of all plans and the shipped workbook as LibreOffice prints them."""
    return converted(complete[0], "pdf", complete[0] / "report.xlsx", resources.workbook("xlperf.xlsx"))


@pytest.mark.slow
def test_a_report_of_all_plans_prints_on_thirty_pages_and_the_workbook_on_ninety(printed: Path) -> None:
    for name, most in (("report", 30), ("xlperf", 90)):
        pages = len(re.findall(rb"/Type\s*/Page(?!s)", (printed / f"{name}.pdf").read_bytes()))
        assert 0 < pages <= most, name


@pytest.mark.slow
def test_a_picture_of_the_readme_is_the_page_of_the_workbook(printed: Path) -> None:
    """Fonts of another machine move letters, not fields: eighths of a picture have the same mean color."""
    name = "compare"
    page = readme.drawn(printed / "xlperf.pdf", name)
    height, width, _ = page.shape
    shipped = (readme.ROOT / "workbooks" / f"{name}.png").read_bytes()
    wide, high = struct.unpack(">II", shipped[16:24])
    assert readme.png(page)[:16] == shipped[:16]
    assert (width, height) == pytest.approx((wide, high), rel=0.05)
    blocks = np.array([[part.mean() for part in np.array_split(band, 8, axis=1)] for band in np.array_split(page, 8)])
    assert blocks.min() < 235.0 and blocks.max() > 240.0, "a form, tiles and a chart on white"


def test_report_opens_in_libreoffice_without_an_error_cell(
    path: Path, converted: Callable[..., Path], tmp_path: Path
) -> None:
    ours = load_workbook(path, data_only=True)
    theirs = load_workbook(converted(tmp_path, "xlsx", path) / "report.xlsx", data_only=True, read_only=True)
    assert theirs.sheetnames == ours.sheetnames
    for sheet in ours:
        for left, right in zip(
            sheet.iter_rows(values_only=True), theirs[sheet.title].iter_rows(values_only=True), strict=False
        ):
            for a, b in zip(left, right, strict=False):
                assert not (isinstance(b, str) and b.startswith(ERRORS)), (sheet.title, b)
                if isinstance(a, bool):  # LibreOffice keeps a flag that is shown as yes or no as a number
                    assert bool(b) is a
                elif isinstance(a, str) or a is None:
                    assert (a or None) == (b or None)
                else:
                    assert b == pytest.approx(a, rel=1e-12)
