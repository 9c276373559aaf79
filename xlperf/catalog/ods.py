"""Sheets of OpenDocument spreadsheets (.ods) as cell values, like :mod:`xlperf.catalog.xlsx` for .xlsx."""

from __future__ import annotations

import datetime
import os

from xlperf.base.errors import Fault, InputError
from xlperf.catalog.cells import DateNumber, ErrorValue, Unsaved, number_of, serial_number
from xlperf.catalog.xlsx import MAX_COLUMNS, MAX_ROWS, Area, Cells, Formulas, ListObject, Workbook
from xlperf.catalog.xlsx_package import Package

MOST_CELLS = 4_000_000
"""Cells that the sheets of a file may hold together, repeated ones counted each time. [-]"""
_CONTENT = "content.xml"
_INLINE = frozenset({"p", "span", "a", "s", "tab", "line-break"})
"""Elements of the text of a cell; within others (comments, drawings) is no text of it."""
_NUMBERS = frozenset({"float", "percentage", "currency"})


def open_workbook(path: str | os.PathLike[str]) -> Workbook:
    """A workbook of either format, by the ending of its name: .ods, or .xlsx and .xlsm."""
    return OdsWorkbook(path) if str(path).casefold().endswith(".ods") else Workbook(path)


class OdsWorkbook(Workbook):
    """An OpenDocument spreadsheet as sheets of cell values; it has no Excel tables."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.package = Package(path, opendocument=True)
        self.name = self.package.name
        self.date_1904 = False
        reader = _ContentReader(self.name)
        try:
            self.package.parse(_CONTENT, reader.start, reader.end, reader.text)
        except (ValueError, OverflowError):
            self.package.close()
            raise self.package.damaged(_CONTENT) from None
        except InputError:
            self.package.close()
            raise
        self._parts = dict.fromkeys(reader.sheets, _CONTENT)
        self._sheets, self._merges, self._formulas = reader.sheets, reader.merges, reader.formulas

    def tables(self, sheet: str) -> list[ListObject]:
        """None: the format has no tables on sheets."""
        return []

    def cells(self, sheet: str, formulas: Formulas | None = None) -> Cells:
        """As :meth:`Workbook.cells`."""
        if formulas is not None:
            formulas.text.update(self._formulas[sheet])
        return self._sheets[sheet]


class _ContentReader:
    """Handlers that gather the cells of all sheets."""

    def __init__(self, name: str) -> None:
        self.sheets: dict[str, Cells] = {}
        self.merges: dict[str, list[Area]] = {}
        self.formulas: dict[str, dict[tuple[int, int], str]] = {}
        self._name = name
        self._sheet = ""
        self._depth = 0  # of tables: one in a cell of another is not read
        self._row, self._column, self._repeated, self._number = 0, 0, 1, 0
        self._cells: dict[int, object] = {}
        self._cell: dict[str, str] | None = None
        self._text: list[str] = []
        self._apart = 0  # elements that are open within a cell and hold no text of it

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "table":
            self._depth += 1
            if self._depth == 1:
                self._sheet = attributes.get("table:name", "")
                self.sheets[self._sheet], self.merges[self._sheet], self.formulas[self._sheet] = {}, [], {}
                self._row = 0
        elif self._depth != 1:
            return
        elif self._cell is not None:
            self._inside(tag, attributes)
        elif tag == "table-row":
            self._repeated = _count(attributes, "table:number-rows-repeated")
            self._cells, self._column = {}, 0
        elif tag in ("table-cell", "covered-table-cell"):
            self._cell, self._text, self._apart = attributes, [], 0

    def _inside(self, tag: str, attributes: dict[str, str]) -> None:
        if self._apart or tag not in _INLINE:
            self._apart += 1
        elif tag == "p" and self._text:
            self._text.append("\n")
        elif tag == "s":
            self._text.append(" " * min(_count(attributes, "text:c"), 1000))
        elif tag in ("tab", "line-break"):
            self._text.append("\t" if tag == "tab" else "\n")

    def text(self, text: str) -> None:
        if self._cell is not None and not self._apart and self._depth == 1:
            self._text.append(text)

    def end(self, tag: str) -> None:
        if tag == "table":
            self._depth -= 1
        elif self._depth != 1:
            return
        elif self._cell is not None and tag in ("table-cell", "covered-table-cell"):
            self._finish_cell(self._cell)
            self._cell = None
        elif self._cell is not None:
            self._apart -= bool(self._apart)
        elif tag == "table-row":
            self._finish_row()

    def _finish_cell(self, attributes: dict[str, str]) -> None:
        repeated, first = _count(attributes, "table:number-columns-repeated"), self._column + 1
        value = _value(attributes, "".join(self._text))
        self._column += repeated
        if value is None or value == "":
            return
        if self._column > MAX_COLUMNS:
            raise ValueError(self._column)
        self._cells.update(dict.fromkeys(range(first, first + repeated), value))
        if formula := attributes.get("table:formula"):
            self.formulas[self._sheet][self._row + 1, first] = formula.partition("=")[2]
        spans = [_count(attributes, f"table:number-{each}-spanned") for each in ("rows", "columns")]
        if max(spans) > 1:
            area = (self._row + 1, first, self._row + spans[0], first + spans[1] - 1)
            self.merges[self._sheet].append(area)

    def _finish_row(self) -> None:
        if self._cells:
            self._number += len(self._cells) * self._repeated
            if self._number > MOST_CELLS or self._row + self._repeated > MAX_ROWS:
                problem = f"holds more than {MOST_CELLS:,} cells; xlperf does not open it"
                raise InputError(Fault(f"{self._name} [{self._sheet}]", problem))
            rows = range(self._row + 1, self._row + self._repeated + 1)
            self.sheets[self._sheet].update(dict.fromkeys(rows, self._cells))
        self._row += self._repeated


def _count(attributes: dict[str, str], name: str) -> int:
    text = attributes.get(name, "1")
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise ValueError(text)
    return max(int(text), 1)


def _value(attributes: dict[str, str], text: str) -> object:
    kind = attributes.get("office:value-type", "")
    if attributes.get("calcext:value-type") == "error":
        return ErrorValue(text or "#VALUE!")
    if kind in _NUMBERS:
        value = number_of(attributes.get("office:value", ""))
        if value != value:
            raise ValueError(kind)
        return value
    if kind == "boolean":
        return attributes.get("office:boolean-value") == "true"
    if kind == "date":
        date = datetime.datetime.fromisoformat(attributes.get("office:date-value", "")[:26])
        return DateNumber(serial_number(date))
    if not kind and "table:formula" in attributes:
        return Unsaved(attributes["table:formula"].partition("=")[2])
    return attributes.get("office:string-value", text) if kind in ("string", "time", "") else text
