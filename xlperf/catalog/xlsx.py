"""Sheets of workbooks as cell values: numbers, text, dates, errors, unsaved formulas.

Reads the packages that Excel, LibreOffice and openpyxl write (.xlsx, .xlsm), of which it parses requested sheets only,
and OpenDocument spreadsheets (.ods).
"""

from __future__ import annotations

import datetime
import os
import re
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from xlperf.base.errors import Fault, InputError
from xlperf.catalog.cells import DateNumber, ErrorValue, Unsaved, number_of, serial_number
from xlperf.catalog.table import column_letters
from xlperf.catalog.xlsx_package import Package

Cells = dict[int, dict[int, object]]
"""Values by row and column, both counted from 1; blank cells are absent, and rows of nothing else."""

Area = tuple[int, int, int, int]  # first row, first column, last row and last column of cells that are merged

MAX_ROWS, MAX_COLUMNS = 1_048_576, 16_384
_DATE_FORMATS = frozenset([*range(14, 23), *range(27, 37), 45, 46, 47, *range(50, 59)])
_NOT_FORMAT = re.compile(r'"[^"]*"|\\.|_.|\*.|\[(?!h+\]|m+\]|s+\])[^\]]*\]', re.IGNORECASE)
_REFERENCE = re.compile(r"\$?([A-Z]{1,3})\$?([0-9]{1,7}):\$?([A-Z]{1,3})\$?([0-9]{1,7})")
_ESCAPE = re.compile(r"_x([0-9A-Fa-f]{4})_")


@lru_cache(maxsize=4096)
def column_number(letters: str) -> int:
    """Number of a column, counted from 1: 28 of AB."""
    number = 0
    for letter in letters:
        number = number * 26 + ord(letter) - 64
    return number


@dataclass(frozen=True)
class ListObject:
    """An Excel table on a sheet: its name and the rows and columns that it covers, header and totals included."""

    name: str
    first_row: int
    first_column: int
    last_row: int
    last_column: int
    totals: int

    @property
    def reference(self) -> str:
        """``A1:C9``."""
        first = f"{column_letters(self.first_column)}{self.first_row}"
        return f"{first}:{column_letters(self.last_column)}{self.last_row}"


@dataclass(frozen=True)
class Formulas:
    """Formulas of a sheet by (row, column); shared ones refer to the cell that holds the text."""

    text: dict[tuple[int, int], str] = field(default_factory=dict)
    arrays: dict[tuple[int, int], str] = field(default_factory=dict)
    shared: dict[tuple[int, int], str] = field(default_factory=dict)


class Workbook:
    """An .xlsx or .xlsm workbook as sheets of cell values; InputError in one line if it cannot be read."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.package = Package(path)
        self.name = self.package.name
        self.date_1904 = False
        self._calculated_on_load = False
        self._merges: dict[str, list[Area]] = {}
        self._parts: dict[str, str] = {}
        relations = self.package.relations("")
        main = next((target for kind, target in relations.values() if kind == "officeDocument"), "xl/workbook.xml")
        if not self.package.has(main):
            self.package.close()
            raise self.package.damaged(main)
        self.main = main
        self._relations = self.package.relations(main)
        self.package.parse(main, self._workbook_element)

    def _workbook_element(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "workbookPr":
            self.date_1904 = attributes.get("date1904") in ("1", "true")
        elif tag == "calcPr":
            self._calculated_on_load = attributes.get("fullCalcOnLoad") in ("1", "true")
        elif tag == "sheet":
            relation = next((value for name, value in attributes.items() if name.rpartition(":")[2] == "id"), "")
            kind, target = self._relations.get(relation, ("", ""))
            if kind == "worksheet" and self.package.has(target):
                self._parts[attributes.get("name", "")] = target

    def __enter__(self) -> Workbook:
        return self

    def __exit__(self, *_: object) -> None:
        self.package.close()

    @property
    def sheets(self) -> list[str]:
        """Names of the worksheets in their order."""
        return list(self._parts)

    def sheet(self, name: str) -> str | None:
        """The sheet of a name as the workbook spells it; names are compared without case."""
        wanted = name.strip().casefold()
        return next((sheet for sheet in self._parts if sheet.strip().casefold() == wanted), None)

    def part(self, sheet: str) -> str:
        """Part of the package that holds a sheet."""
        return self._parts[sheet]

    def tables(self, sheet: str) -> list[ListObject]:
        """Excel tables of a sheet."""
        results: list[ListObject] = []

        def start(tag: str, attributes: dict[str, str]) -> None:
            if tag == "table":
                corners = _REFERENCE.fullmatch(attributes.get("ref", ""))
                if corners is None:
                    raise self.package.damaged(target)
                left, top, right, bottom = corners.groups()
                if column_number(right) > MAX_COLUMNS or int(bottom) > MAX_ROWS:
                    raise self.package.damaged(target)
                name = attributes.get("displayName") or attributes.get("name", "")
                totals = int(attributes.get("totalsRowCount", "0") or 0)
                place = (int(top), column_number(left), int(bottom), column_number(right))
                results.append(ListObject(name, *place, totals))

        for kind, target in self.package.relations(self._parts[sheet]).values():
            if kind == "table" and self.package.has(target):
                try:
                    self.package.parse(target, start)
                except ValueError:
                    raise self.package.damaged(target) from None
        return results

    @cached_property
    def _strings(self) -> list[str]:
        target = next((target for kind, target in self._relations.values() if kind == "sharedStrings"), "")
        if not self.package.has(target):
            return []
        strings: list[str] = []
        pieces: list[str] = []
        inside: list[str] = []  # the open elements

        def start(tag: str, _: dict[str, str]) -> None:
            inside.append(tag)

        def end(tag: str) -> None:
            inside.pop()
            if tag == "si":
                strings.append(_unescaped("".join(pieces)))
                pieces.clear()

        def text(words: str) -> None:
            if inside[-1] == "t" and "rPh" not in inside:  # no phonetic reading
                pieces.append(words)

        self.package.parse(target, start, end, text)
        return strings

    @cached_property
    def _date_styles(self) -> frozenset[str]:
        """Numbers of the cell styles that show dates."""
        target = next((target for kind, target in self._relations.values() if kind == "styles"), "")
        if not self.package.has(target):
            return frozenset()
        formats: dict[str, str] = {}
        styles: dict[str, list[str]] = {}  # numbers of formats by the last list of styles
        lists = [""]

        def start(tag: str, attributes: dict[str, str]) -> None:
            if tag == "numFmt":
                formats[attributes.get("numFmtId", "")] = attributes.get("formatCode", "")
            elif tag in ("cellXfs", "cellStyleXfs", "dxfs"):
                lists.append(tag)
            elif tag == "xf":
                styles.setdefault(lists[-1], []).append(attributes.get("numFmtId", "0"))

        def is_date(number: str) -> bool:
            code = formats.get(number)
            return number.isdigit() and int(number) in _DATE_FORMATS if code is None else is_date_format(code)

        self.package.parse(target, start)
        return frozenset(str(style) for style, number in enumerate(styles.get("cellXfs", [])) if is_date(number))

    def cells(self, sheet: str, formulas: Formulas | None = None) -> Cells:
        """Values of a sheet: numbers, dates, text, booleans, ErrorValue and Unsaved; fills ``formulas``."""
        part = self._parts[sheet]
        reader = _SheetReader(self, formulas)
        try:
            self.package.parse(part, reader.start, reader.end, reader.text)
        except (ValueError, KeyError, IndexError, TypeError):
            raise self.package.damaged(part) from None
        self._merges[sheet] = reader.merges
        # Libraries such as XlsxWriter store a 0 for each formula and ask for a calculation on load; a program that
        # calculates stores the order of its calculation, or asks for none.
        if self._calculated_on_load and all(kind != "calcChain" for kind, _ in self._relations.values()):
            reader.mark_uncomputed()
        return reader.rows

    def merges(self, sheet: str) -> list[Area]:
        """Merged cells of a sheet whose cells were read."""
        return self._merges.get(sheet, [])

    def shared_string(self, text: str) -> str:
        """Text of a shared string."""
        if not (text.isascii() and text.isdigit()):
            raise ValueError(text)
        return self._strings[int(text)]

    def number(self, text: str, style: str) -> object:
        """A number, and whether its style shows it as a date; text that is no number stays text, for its column."""
        value = number_of(text)
        if value != value:
            return text
        if style not in self._date_styles:
            return value
        return DateNumber(value, self.date_1904)


def is_date_format(code: str) -> bool:
    """Whether a number format shows a date or a time.

    >>> is_date_format("yyyy-mm-dd"), is_date_format('0.0 "days"'), is_date_format("[Red]0.00")
    (True, False, False)
    """
    return bool(re.search(r"[dmyhs]", _NOT_FORMAT.sub("", code.split(";")[0]), re.IGNORECASE)) and code != "General"


def _unescaped(text: str) -> str:
    """Text with the characters that XML cannot hold, which the format writes as ``_x000D_``; pairs of halves joined."""
    if "_x" not in text:
        return text
    plain = _ESCAPE.sub(lambda result: chr(int(result[1], 16)), text)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


class _SheetReader:
    """Handlers that gather the cells of one sheet."""

    def __init__(self, book: Workbook, formulas: Formulas | None) -> None:
        self.rows: Cells = {}
        self._book = book
        self._formulas = formulas
        self._row = 0
        self._column = 0
        self._cells: dict[int, object] | None = None
        self._type = "n"
        self._style = ""
        self._formula: dict[str, str] | None = None
        self._value: list[str] = []
        self._formula_text: list[str] = []
        self._into: list[str] | None = None
        self._phonetic = False
        self._zeros: list[tuple[int, int, str]] = []
        self.merges: list[Area] = []
        self._computed = False

    def mark_uncomputed(self) -> None:
        """Take formulas for uncomputed if each of the sheet holds 0 or nothing."""
        for row, column, formula in () if self._computed else self._zeros:
            self.rows.setdefault(row, {})[column] = Unsaved(formula, is_zero=True)

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "c":
            reference = attributes.get("r")
            if reference is not None:
                self._column = column_number(reference.rstrip("0123456789"))
            else:
                self._column += 1
            if not 0 < self._column <= MAX_COLUMNS:
                raise ValueError(reference)
            self._type = attributes.get("t", "n")
            self._style = attributes.get("s", "0")
            self._formula = None
            self._value = []
        elif tag in ("v", "t"):
            self._into = None if self._phonetic else self._value
        elif tag == "f":
            self._formula = attributes
            self._formula_text = self._into = []
        elif tag == "row":
            self._row = int(attributes.get("r", self._row + 1))
            if not 0 < self._row <= MAX_ROWS:
                raise ValueError(tag)
            self._column = 0
            self._cells = self.rows.get(self._row)
        elif tag == "rPh":
            self._phonetic = True
        elif tag == "mergeCell" and (corners := _REFERENCE.fullmatch(attributes.get("ref", ""))):
            left, top, right, bottom = corners.groups()
            self.merges.append((int(top), column_number(left), int(bottom), column_number(right)))

    def text(self, text: str) -> None:
        if self._into is not None:
            self._into.append(text)

    def end(self, tag: str) -> None:
        if tag in ("v", "t", "f"):
            self._into = None
        elif tag == "c":
            value = self._finished()
            if value is not None:
                if self._cells is None:
                    self._cells = self.rows[self._row] = {}
                self._cells[self._column] = value
        elif tag == "rPh":
            self._phonetic = False

    def _finished(self) -> object:
        text = "".join(self._value)
        if self._formula is not None:
            if self._formulas is not None:
                self._keep_formula(self._formula)
            if not text and self._type != "str":
                return Unsaved("".join(self._formula_text))
            if number_of(text or "0") == 0.0 and self._type in ("n", "str", "b"):
                self._zeros.append((self._row, self._column, "".join(self._formula_text)))
            else:
                self._computed = True
        kind = self._type
        if kind == "n":
            return self._book.number(text, self._style) if text else None
        if kind == "s":
            return self._book.shared_string(text) if text else None
        if kind in ("str", "inlineStr"):
            return _unescaped(text)
        if kind == "b":
            return text.strip() in ("1", "true")
        if kind == "e":
            return ErrorValue(text)
        if kind == "d":
            system = self._book.date_1904
            return DateNumber(serial_number(datetime.datetime.fromisoformat(text), system), system)
        raise ValueError(kind)

    def _keep_formula(self, attributes: dict[str, str]) -> None:
        assert self._formulas is not None
        text, key = "".join(self._formula_text), (self._row, self._column)
        kind = attributes.get("t")
        if kind == "shared":
            self._formulas.shared[key] = attributes.get("si", "")
        if kind == "array":
            self._formulas.arrays[key] = text
        if text and kind != "array":
            self._formulas.text[key] = text


MOST_CELLS = 4_000_000  # cells that the sheets of a file may hold together, repeated ones counted each time
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
        value = _ods_value(attributes, "".join(self._text))
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


def _ods_value(attributes: dict[str, str], text: str) -> object:
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
