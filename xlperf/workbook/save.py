"""Saving workbooks: the same content gives the same bytes, and a file is replaced whole or not at all."""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openpyxl.cell import _writer as cell_writer
from openpyxl.drawing.spreadsheet_drawing import SpreadsheetDrawing
from openpyxl.worksheet._writer import WorksheetWriter
from openpyxl.writer.excel import ExcelWriter

from xlperf.base.errors import Fault, InputError
from xlperf.base.files import replaced

if TYPE_CHECKING:
    from openpyxl import Workbook

EPOCH = datetime(2000, 1, 1)
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)
_CORE = "docProps/core.xml"
_MODIFIED = re.compile(rb"(<dcterms:modified[^>]*>)[^<]*(</dcterms:modified>)")


def workbook_bytes(workbook: Workbook, date: datetime = EPOCH) -> bytes:
    """The package of a workbook: dates of its parts and of its properties are fixed, so equal input gives equal bytes.

    Parameters
    ----------
    workbook : openpyxl.Workbook
        What to save.
    date : datetime
        Creation and modification date of the document properties.

    Returns
    -------
    bytes
        An .xlsx file.
    """
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

    Parameters
    ----------
    path : str or Path
        The file; a link is followed. Its folder must exist.
    data : bytes
        The content.

    Raises
    ------
    InputError
        One line that says why the file cannot be written.
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

    Parameters
    ----------
    workbook : openpyxl.Workbook
        What to save.
    path : str or Path
        Where; the folder must exist.
    date : datetime
        Date of the document properties.

    Raises
    ------
    InputError
        One line that says why the file cannot be written.
    """
    replace_file(path, workbook_bytes(workbook, date))
