"""Parts of sheets: openpyxl writes all but the cells, for each of which it would make a tree of elements."""

from __future__ import annotations

import io
from math import isfinite
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape, quoteattr

from openpyxl.cell import _writer as cell_writer
from openpyxl.comments.comment_sheet import CommentRecord
from openpyxl.utils import get_column_letter
from openpyxl.worksheet._writer import WorksheetWriter
from openpyxl.xml import functions as xml

if TYPE_CHECKING:
    from openpyxl.worksheet.worksheet import Worksheet

_NO_ROWS = b"<sheetData></sheetData>"


def sheet_part(sheet: Worksheet) -> tuple[bytes, Any]:
    """The part of a sheet, with all digits of its numbers; and its relations to other parts.

    Raises ValueError when openpyxl writes a sheet without rows in another way than the one known here.
    """
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
        parts = ["<row", *(f" {name}={_quoted(value)}" for name, value in attributes.items()), ">"]
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


def _quoted(value: str) -> str:
    return quoteattr(value, {'"': "&quot;"})


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
