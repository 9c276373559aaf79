"""Native tables from the schema, workbooks saved as the same bytes each time, and rows as CSV files."""

from __future__ import annotations

import csv
import io
import math
import os
import re
import zipfile
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape, quoteattr

from openpyxl.cell import _writer as cell_writer
from openpyxl.comments import Comment
from openpyxl.comments.comment_sheet import CommentRecord
from openpyxl.drawing.spreadsheet_drawing import SpreadsheetDrawing
from openpyxl.utils import get_column_letter
from openpyxl.utils.cell import column_index_from_string, coordinate_from_string
from openpyxl.worksheet._writer import WorksheetWriter
from openpyxl.worksheet.table import Table as ListObject
from openpyxl.worksheet.table import TableStyleInfo
from openpyxl.writer.excel import ExcelWriter
from openpyxl.xml import functions as xml

from xlperf.addin.cells import CellError
from xlperf.base import resources
from xlperf.base.errors import Fault, InputError, raise_faults
from xlperf.base.files import replaced
from xlperf.catalog.read import read_catalog_tables, read_plans
from xlperf.catalog.schema import PLAN_TABLES, Column, table_schema, unit_of
from xlperf.catalog.table import Table
from xlperf.workbook.style import aligned_format, fitted_format, put, shown_width, without_signed_zeros

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.cell import Cell
    from openpyxl.worksheet.worksheet import Worksheet


_NO_ROWS = b"<sheetData></sheetData>"
_QUOTE = {'"': "&quot;"}


def sheet_part(sheet: Worksheet) -> tuple[bytes, Any]:
    """The part of a sheet, with all digits of its numbers; and its relations to other parts."""
    stream = io.BytesIO()
    writer: Any = _SheetWriter(sheet, stream)
    writer.write()
    head, found, tail = stream.getvalue().partition(_NO_ROWS)
    if not found:
        raise ValueError(f"openpyxl has written no {_NO_ROWS.decode()}")
    return b"".join((head, b"<sheetData>", *writer.lines, b"</sheetData>", tail)), writer._rels


class _SheetWriter(WorksheetWriter):
    """Writer of a sheet that keeps the text of its rows, in ``lines``, apart from its other elements."""

    lines: list[bytes]

    def write_rows(self) -> None:
        """Make the rows, which may have comments and links that later elements refer to."""
        inside: Any = self
        written = inside.xf.send(True)
        with written.element("sheetData"):
            self.lines = _rows(inside)
        inside.xf.send(None)


def _rows(writer: Any) -> list[bytes]:
    """Text of each row of a sheet, as openpyxl writes it but for the digits of numbers."""
    sheet = writer.ws
    styles = sheet.parent._cell_styles
    known: dict[bytes, str] = {}  # attribute of a style that a cell has had before, by the bytes of its array
    lines = []
    for number, cells in writer.rows():
        attributes = {"r": f"{number}", **dict(sheet.row_dimensions.get(number, {}))}
        parts = ["<row", *(f" {name}={quoteattr(value, _QUOTE)}" for name, value in attributes.items()), ">"]
        for cell in cells:
            if cell._comment is not None:
                sheet._comments.append(CommentRecord.from_cell(cell))
            look = cell._style
            key = look.tobytes() if look is not None else b""
            style = known.get(key)
            if style is None:
                style = known[key] = f' s="{styles.add(look)}"' if look is not None and any(look) else ""
            if cell._value is None and not style and not cell._comment:
                continue
            parts.append(_cell(sheet, cell, style))
        parts.append("</row>")
        lines.append("".join(parts).encode("utf-8", "xmlcharrefreplace"))
    return lines


def _cell(sheet: Any, cell: Any, style: str) -> str:
    """Element of a cell: as openpyxl writes it, and through it where the cell holds more than a value or a formula."""
    made = _plain(cell._value, cell.data_type)
    if made is None:
        whole, written = _Kept(), vars(xml)["tostring"]
        cell_writer.etree_write_cell(whole, sheet, cell, cell.has_style)
        return str(written(whole.element, encoding="unicode"))
    if cell.hyperlink:
        sheet._hyperlinks.append(cell.hyperlink)
    return f'<c r="{get_column_letter(cell.column)}{cell.row}"{style}{made}'


def _plain(value: Any, kind: str) -> str | None:
    """A number, flag, text or formula after the place and the style of its cell; None for what is none of them."""
    if value is None:
        return " />" if kind == "f" else f' t="{"inlineStr" if kind == "s" else kind}" />'
    if kind in ("n", "b") and isinstance(value, float | int) and isfinite(value):
        digits = repr(float(value)) if isinstance(value, float) else f"{value:.16g}"
        return f' t="{kind}"><v>{digits}</v></c>'
    if kind == "s" and type(value) is str and value:
        kept = ' xml:space="preserve"' if value.strip() not in ("", value) else ""
        return f' t="inlineStr"><is><t{kept}>{escape(value)}</t></is></c>'
    if kind == "f" and type(value) is str and len(value) > 1:
        return f"><f>{escape(value[1:])}</f><v /></c>"
    return None


class _Kept:
    """What openpyxl writes an element to."""

    element: Any = None

    def write(self, element: Any) -> None:
        self.element = element


EPOCH = datetime(2000, 1, 1)
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)
_CORE = "docProps/core.xml"
_MODIFIED = re.compile(rb"(<dcterms:modified[^>]*>)[^<]*(</dcterms:modified>)")


def workbook_bytes(workbook: Workbook, date: datetime = EPOCH) -> bytes:
    """The .xlsx package of a workbook: its dates are fixed, so equal input gives equal bytes."""
    workbook.properties.created = date
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:  # compressed once, below
        _InMemory(workbook, archive).save()
    stamp = date.strftime("%Y-%m-%dT%H:%M:%SZ").encode()

    def dated(part: str, data: bytes) -> bytes:
        return _MODIFIED.sub(rb"\g<1>" + stamp + rb"\g<2>", data) if part == _CORE else data

    return _zipped(raw.getvalue(), dated)


def _zipped(package: bytes, changed: Callable[[str, bytes], bytes]) -> bytes:
    """The parts of a package, changed, in a package whose bytes depend on them alone."""
    packed = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(package)) as source,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as target,
    ):
        for part in source.namelist():
            info = zipfile.ZipInfo(part, _ZIP_DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            info.create_system = 3
            target.writestr(info, changed(part, source.read(part)))
    return packed.getvalue()


class _InMemory(ExcelWriter):
    """Writer of workbooks without the temporary files of openpyxl's own, which a killed command would leave behind."""

    def write_worksheet(self, ws: Any) -> None:
        """Write the part of one sheet."""
        ws._drawing = SpreadsheetDrawing()
        ws._drawing.charts, ws._drawing.images = ws._charts, ws._images
        part, ws._rels = sheet_part(ws)
        archive: zipfile.ZipFile = vars(self)["_archive"]
        archive.writestr(ws.path[1:], part)
        self.manifest.append(ws)


def replace_file(path: str | Path, data: bytes) -> None:
    """Write a file so that a reader, or a run that is killed, only ever sees the old one or the new one whole."""
    shown = str(path)
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise InputError(Fault(shown, "is a folder; give a file name such as report.xlsx"))
    if not target.parent.is_dir():
        raise InputError(Fault(shown, f'there is no folder "{Path(path).parent}"; make it first'))
    try:
        with replaced(path) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        cause = (error.strerror or str(error)).lower()
        remedy = "close it where it is open, or choose another folder"
        raise InputError(Fault(shown, f"cannot be written ({cause}); {remedy}")) from None


def save_workbook(workbook: Workbook, path: str | Path, date: datetime = EPOCH) -> None:
    """Save a workbook: reproducible bytes, replaced whole or not at all."""
    replace_file(path, workbook_bytes(workbook, date))


_FORMULA_CELL = re.compile(r'<c r="([A-Z]+[0-9]+)"([^>]*)><f>(.*?)</f><v\s*(?:/>|></v>)</c>', re.DOTALL)


@dataclass
class Formulas:
    """Formulas that were written to a workbook and the values that they have.

    ``values``: by sheet and cell: a number, text, flag or CellError; None if the value is not known.
    """

    values: dict[str, dict[str, Any]] = field(default_factory=dict)

    def put(self, cell: Cell, formula: str, value: Any, style: str = "xlperf computed", number: str = "") -> None:
        """Write a formula to a cell and remember its value."""
        put(cell, None, style, number or None)
        inside: Any = cell
        inside.value = formula
        inside.data_type = "f"
        if value is not None:
            self.values.setdefault(cell.parent.title, {})[cell.coordinate] = value


def packed(workbook: Workbook, formulas: Formulas) -> bytes:
    """The package of a workbook with the values of its formulas; the same content gives the same bytes."""
    # Without this Excel calculates all on opening, and shows #NAME? where the add-in is not installed.
    workbook.calculation.fullCalcOnLoad = False
    workbook.calculation.calcId = 191029
    parts = {
        f"xl/worksheets/sheet{number}.xml": formulas.values[title]
        for number, title in enumerate(workbook.sheetnames, start=1)
        if formulas.values.get(title)
    }

    def valued(part: str, data: bytes) -> bytes:
        return with_values(data.decode(), parts[part]).encode() if part in parts else data

    return _zipped(workbook_bytes(workbook), valued)


def with_values(part: str, values: Mapping[str, Any]) -> str:
    """The text of a sheet's part with values beside its formulas.

    >>> with_values('<c r="B2" s="3"><f>1+1</f><v /></c>', {"B2": 2.0})
    '<c r="B2" s="3"><f>1+1</f><v>2</v></c>'
    """
    left = dict(values)

    def filled(match: re.Match[str]) -> str:
        cell, attributes, formula = match.groups()
        if cell not in left:
            return match[0]
        kind, text = _stored(left.pop(cell))
        return f'<c r="{cell}"{attributes}{kind}><f>{formula}</f><v>{text}</v></c>'

    result = _FORMULA_CELL.sub(filled, part)
    if left:
        raise ValueError(f"no formula in {', '.join(left)}")
    return result


def _stored(value: Any) -> tuple[str, str]:
    """Type and text of a value. A flag is a number: LibreOffice calculates formulas again that hold a boolean."""
    if isinstance(value, CellError):
        return ' t="e"', escape(value.code)
    if isinstance(value, str):
        return ' t="str"', escape(value)
    number = float(value)
    return "", str(int(number)) if number.is_integer() and abs(number) < 2**53 else repr(number)


_WIDEST = {"reason": 140, "trust_reason": 110, "notes": 60, "source": 60, "fit_set": 90, "calibration": 60}


def cell_value(column: Column, value: Any) -> float | bool | str | None:
    """A value of a table (unit used inside) as a cell shows it (unit of the column).

    Flags of plans are yes and no, computed flags TRUE and FALSE, NaN and "" blank.

    >>> from xlperf.catalog.schema import column
    >>> cell_value(column("accelerators", "memory_bandwidth"), 3.35e12)
    3.35
    """
    if column.is_text:
        return str(value) if value is not None and str(value) != "" else None
    number = float(value)
    if not math.isfinite(number):
        return None
    if column.kind == "flag":
        return "yes" if number else "no"
    if column.kind == "result-flag":
        return bool(number)
    shown = number / unit_of(column).factor
    if column.is_result:
        return shown
    shown = float(f"{shown:.15g}")
    return int(shown) if shown.is_integer() and abs(shown) < 2**53 else shown


def data_rows(table: Table, columns: Sequence[Column]) -> list[list[float | bool | str | None]]:
    """Rows of a table as cells show them; missing columns are blank, and the word ``auto`` remains."""
    series: list[list[float | bool | str | None]] = []
    for column in columns:
        if column.name not in table:
            series.append([None] * len(table))
            continue
        values = [cell_value(column, value) for value in table[column.name].tolist()]
        if column.name in table.auto:
            values = ["auto" if auto else value for auto, value in zip(table.auto[column.name], values, strict=True)]
        series.append(values)
    return [list(row) for row in zip(*series, strict=True)] if series else []


def column_width(column: Column, shown: Iterable[Any] = (), most: float = 34) -> float:
    """Width of a column in characters: its longest header word, or its longest value; text wraps beyond ``most``."""
    words = column.header.split()
    width = 1.1 * max(len(word) for word in words) + 4.5  # bold, beside the button of the filter
    width = max(width, math.ceil(len(column.header) / 3) + 3.0)
    # a capital takes the width of 1.3 small letters
    text = [len(value) + 0.3 * sum(map(str.isupper, value)) for value in shown if isinstance(value, str)]
    if text:
        width = max(
            width, min(max(text) * (1.15 if column.kind == "name" or column.name == "name" else 1.05) + 3.0, most)
        )
    return max(width, 9.0)


def table_name(sheet_title: str) -> str:
    """A legal name of a native table: no spaces, not a cell address.

    >>> table_name("step time")
    'step_time'
    >>> table_name("H100")
    'H100_'
    """
    name = re.sub(r"\W", "_", sheet_title)
    if not re.match(r"[A-Za-z_]", name):
        name = f"_{name}"
    if re.fullmatch(r"[A-Za-z]{1,3}\d{1,7}|[Rr]\d*[Cc]\d*|[RrCc]", name):
        name = f"{name}_"
    return name[:200]


def write_table(
    sheet: Worksheet,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Any]],
    top_left: str = "A4",
    name: str | None = None,
    *,
    freeze: int | None = 1,
    widths: bool = True,
    fitted: bool = False,
    one_line: Container[str] = (),
) -> str:
    """Write a native table with units in its headers and meanings in the header comments; returns its range.

    ``rows`` are values as cells show them (:func:`data_rows`); none makes a blank row, as Excel needs. ``name`` is the
    table's, "" writes none; ``freeze``: columns frozen beside the header. ``fitted``: whether values decide the
    decimals of results (:func:`fitted_format`). Text of columns in ``one_line`` makes no row taller. No word of a
    header is broken: programs break a word that is wider than its column.
    """
    letter, top = coordinate_from_string(top_left)
    left = column_index_from_string(letter)
    deepest = 1
    across: list[float] = []
    for offset, column in enumerate(columns):
        cell = put(
            sheet.cell(top, left + offset),
            column.header,
            "xlperf header result" if column.is_result else "xlperf header",
        )
        cell.comment = _comment(column)
        own = get_column_letter(left + offset)
        known = not widths or own in sheet.column_dimensions  # as another table on the sheet has it
        width = max(sheet.column_dimensions[own].width * known, 1.1 * max(map(len, column.header.split())) + 3.0)
        if widths:
            shown = [row[offset] for row in rows]
            width = max(width, column_width(column, shown, _WIDEST.get(column.name, 48 if offset else 64)))
            width = max(width, shown_width(aligned_format(column, shown), shown))
        sheet.column_dimensions[own].width = width
        across.append(width)
        deepest = max(deepest, lines_of(column.header, across[-1] - 3.0))
    sheet.row_dimensions[top].height = 13.5 * deepest + 8
    formats, format_of = [], fitted_format if fitted else aligned_format
    for i, column in enumerate(columns):
        shown = [row[i] for row in rows]
        formats.append(without_signed_zeros(format_of(column, shown), shown))
    styles = [_style(column, offset) for offset, column in enumerate(columns)]
    for down, row in enumerate(rows or [[None] * len(columns)], start=top + 1):
        tallest = 1
        for offset, (column, value) in enumerate(zip(columns, row, strict=True)):
            wrapped = None
            if isinstance(value, str):
                lines = lines_of(value, across[offset] * (1.15 if column.name == "reason" else 1.1) - 2.0)
                lines = 1 if column.name in one_line else lines
                tallest, wrapped = max(tallest, lines), lines > 1
            put(sheet.cell(down, left + offset), value, styles[offset], formats[offset], wrapped)
        if tallest > 1:
            sheet.row_dimensions[down].height = min(13.0 * tallest + 3, 400.0)
    bottom = top + max(len(rows), 1)
    area = f"{letter}{top}:{get_column_letter(left + len(columns) - 1)}{bottom}"
    if name != "":
        native = ListObject(displayName=name or table_name(sheet.title), ref=area)
        native.tableStyleInfo = TableStyleInfo(name="TableStyleLight1", showRowStripes=False)
        sheet.add_table(native)
    if freeze is not None:
        sheet.freeze_panes = f"{get_column_letter(left + freeze)}{top + 1}"
    return area


def _style(column: Column, offset: int) -> str:
    if column.name == "reason":
        return "xlperf reason"
    if offset == 0:
        return "xlperf key"
    return "xlperf computed" if column.is_result else "xlperf input"


def lines_of(text: str, across: float) -> int:
    """Lines of a text in a column that wraps at words, or inside words too long for a line."""
    across = max(across, 1.0)
    lines, room = 1, across
    for word in text.split():
        if len(word) > room and room < across:
            lines, room = lines + 1, across
        while len(word) > across:
            lines, word = lines + 1, word[int(across) :]
        room -= len(word) + 1
    return lines


def _comment(column: Column) -> Comment:
    parts = [f"{column.meaning}."]
    if column.unit not in ("", "-"):
        parts.append(f"Unit: {column.unit}.")
    if column.required:
        parts.append("Mandatory.")
    if column.default:
        parts.append(f"Default: {column.default}.")
    if column.choices:
        parts.append(f"One of: {', '.join(column.choices)}.")
    text = "\n".join(parts)
    lines = sum(math.ceil(len(part) / 38) for part in parts)
    return Comment(text, "xlperf", width=270, height=24 + 17 * lines)


Cells = list[list[Any]]
_WORDS = {"TRUE": True, "FALSE": False}


def rows_folder(workbook: str) -> Path:
    """Folder with the rows of a shipped workbook, in a checkout: ``workbooks/rows/xlperf``."""
    return resources.workbook("xlperf.xlsx").parent / "rows" / Path(workbook).stem


def cell_text(value: Any) -> str:
    """A cell as text that reads back the same: whole numbers without a point, blank for None.

    >>> cell_text(8.0), cell_text(0.1), cell_text(True), cell_text(None)
    ('8', '0.1', 'TRUE', '')
    """
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    return "" if value is None else str(value)


def text_cell(text: str, is_text: bool = False) -> Any:
    """A cell from its text; ``is_text``: numbers and flags are text too.

    >>> text_cell("8"), text_cell("8", is_text=True), text_cell("TRUE"), text_cell("")
    (8.0, '8', True, None)
    """
    if not text:
        return None
    if is_text:
        return text
    if text in _WORDS:
        return _WORDS[text]
    try:
        number = float(text)
    except ValueError:
        return text
    return number if cell_text(number) == text else text


def write_cells(path: Path, cells: Cells) -> None:
    """Write a header and rows to a CSV file, which is replaced whole."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([map(cell_text, row) for row in cells])
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, stream.getvalue().encode())


def read_cells(path: Path, text_columns: Mapping[str, bool]) -> Cells:
    """Header and rows of a CSV file of cells; ``text_columns``: by column whether its cells are text."""
    header, *rows = csv.reader(path.read_text(encoding="utf-8").splitlines(keepends=True))
    faults = [
        Fault(f"{path.name} [row {number}]", f"has {len(row)} cells for {len(header)} columns")
        for number, row in enumerate(rows, start=2)
        if len(row) != len(header)
    ]
    raise_faults(faults)
    are_text = [text_columns.get(name, False) for name in header]
    return [list(header), *([text_cell(cell, word) for cell, word in zip(row, are_text, strict=True)] for row in rows)]


def write_tables(folder: Path, tables: Mapping[str, Table]) -> list[Path]:
    """Write the inputs of each table to ``<kind>.csv``, without columns that are blank in every row.

    A table without rows has no file if it had none.
    """
    paths = []
    for kind, table in tables.items():
        if not len(table) and not (folder / f"{kind}.csv").exists():
            continue
        columns = [column for column in table_schema(kind).columns if not column.is_result]
        rows = data_rows(table, columns)
        filled = [at for at in range(len(columns)) if not rows or any(row[at] is not None for row in rows)]
        header = [columns[at].header for at in filled]
        write_cells(folder / f"{kind}.csv", [header, *([row[at] for at in filled] for row in rows)])
        paths.append(folder / f"{kind}.csv")
    return paths


def read_rows(folder: Path) -> dict[str, Table]:
    """Tables of a folder of CSV files by kind, plans among them."""
    catalog = sorted(path for path in folder.glob("*.csv") if path.stem not in PLAN_TABLES)
    tables: dict[str, Table] = {}
    faults: list[Fault] = []
    for path in catalog:
        read, more = read_catalog_tables(path, required=False)
        tables |= {table.kind: table for table in read}
        faults += more
    raise_faults(faults)
    for kind in PLAN_TABLES:
        tables |= {table.kind: table for table in read_plans(folder / f"{kind}.csv", kind=kind)}
    return tables
