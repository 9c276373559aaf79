"""Saving workbooks: the same bytes each time, replaced whole, with values beside the formulas."""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from openpyxl.cell import _writer as cell_writer
from openpyxl.drawing.spreadsheet_drawing import SpreadsheetDrawing
from openpyxl.worksheet._writer import WorksheetWriter
from openpyxl.writer.excel import ExcelWriter

from xlperf.addin.cells import CellError
from xlperf.base.errors import Fault, InputError
from xlperf.base.files import replaced
from xlperf.workbook.style import put

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.cell import Cell


EPOCH = datetime(2000, 1, 1)
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)
_CORE = "docProps/core.xml"
_MODIFIED = re.compile(rb"(<dcterms:modified[^>]*>)[^<]*(</dcterms:modified>)")


def workbook_bytes(workbook: Workbook, date: datetime = EPOCH) -> bytes:
    """The .xlsx package of a workbook: its dates are fixed, so equal input gives equal bytes."""
    workbook.properties.created = date
    raw = io.BytesIO()
    with _all_digits(), zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        _InMemory(workbook, archive).save()
    stamp = date.strftime("%Y-%m-%dT%H:%M:%SZ").encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(raw) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as target:
        for part in source.namelist():
            data = source.read(part)
            if part == _CORE:
                data = _MODIFIED.sub(rb"\g<1>" + stamp + rb"\g<2>", data)
            info = zipfile.ZipInfo(part, _ZIP_DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            info.create_system = 3
            target.writestr(info, data)
    return packed.getvalue()


class _InMemory(ExcelWriter):
    """Writer of workbooks without the temporary files of openpyxl's own, which a killed command would leave behind."""

    def write_worksheet(self, ws: Any) -> None:
        """Write the part of one sheet."""
        ws._drawing = SpreadsheetDrawing()
        ws._drawing.charts, ws._drawing.images = ws._charts, ws._images
        part = io.BytesIO()
        writer: Any = WorksheetWriter(ws, part)
        writer.write()
        ws._rels = writer._rels
        archive: zipfile.ZipFile = self._archive  # type: ignore[attr-defined]
        archive.writestr(ws.path[1:], part.getvalue())
        self.manifest.append(ws)


@contextmanager
def _all_digits() -> Iterator[None]:
    """Let openpyxl write floats with all their digits; its own 16 lose the last bit of some."""
    inside: Any = cell_writer
    rounded = inside.safe_string

    def exact(value: Any) -> Any:
        return repr(float(value)) if isinstance(value, float) and isfinite(value) else rounded(value)

    inside.safe_string = exact
    try:
        yield
    finally:
        inside.safe_string = rounded


def replace_file(path: str | Path, data: bytes) -> None:
    """Write a file so that a reader, or a run that is killed, only ever sees the old one or the new one whole.

    Raises InputError: one line that says why the file cannot be written.
    """
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
    """Save a workbook: reproducible bytes, replaced whole or not at all.

    Raises InputError: one line that says why the file cannot be written.
    """
    replace_file(path, workbook_bytes(workbook, date))


_ZIP_DATE = (1980, 1, 1, 0, 0, 0)
_FORMULA_CELL = re.compile(r'<c r="([A-Z]+[0-9]+)"([^>]*)><f>(.*?)</f><v\s*(?:/>|></v>)</c>', re.DOTALL)


@dataclass
class Formulas:
    """Formulas that were written to a workbook and the values that they have.

    Attributes
    ----------
    values : dict
        By sheet and cell: a number, text, flag or CellError; None where the value is not known.
    """

    values: dict[str, dict[str, Any]] = field(default_factory=dict)

    def put(self, cell: Cell, formula: str, value: Any, style: str = "xlperf computed", number: str = "") -> None:
        """Write a formula to a cell and remember its value.

        ``cell``: changed in place. ``formula``: starts with ``=``; structured references as files hold them. ``value``:
        what the formula gives. ``style``: a style of :mod:`xlperf.workbook.style`. ``number``: number format.
        """
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
    data = workbook_bytes(workbook)
    parts = {
        f"xl/worksheets/sheet{number}.xml": formulas.values[title]
        for number, title in enumerate(workbook.sheetnames, start=1)
        if formulas.values.get(title)
    }
    result = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as source,
        zipfile.ZipFile(result, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as target,
    ):
        for name in source.namelist():
            content = source.read(name)
            if name in parts:
                content = with_values(content.decode(), parts[name]).encode()
            info = zipfile.ZipInfo(name, _ZIP_DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            info.create_system = 3
            target.writestr(info, content)
    return result.getvalue()


FLAG_FORMAT = '[=1]"TRUE";[=0]"FALSE";General'


def with_values(part: str, values: Mapping[str, Any]) -> str:
    """The text of a sheet's part with values beside its formulas.

    Raises
    ------
    ValueError
        When a cell that has a value holds no formula.

    >>> with_values('<c r="B2" s="3"><f>1+1</f><v /></c>', {"B2": 2.0})
    '<c r="B2" s="3"><f>1+1</f><v>2</v></c>'
    """
    left = dict(values)

    def filled(found: re.Match[str]) -> str:
        cell, attributes, formula = found.groups()
        if cell not in left:
            return found[0]
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
