"""The reader of workbooks: values, errors and unsaved formulas of cells, straight from the parts of the package.

Reads what Excel, LibreOffice and openpyxl write. Only the sheets that are asked for are parsed.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from xlperf.catalog.cells import ErrorValue, Unsaved, is_blank, parse_rows
from xlperf.catalog.package import Package
from xlperf.catalog.schema import CATALOG_TABLES, PLAN_TABLES, results_of, split_header, table_schema
from xlperf.catalog.table import Table
from xlperf.errors import Fault, InputError, nearest

Cells = dict[int, dict[int, object]]
"""Values by row and column, both counted from 1; blank cells are absent."""

MAX_ROWS, MAX_COLUMNS = 1_048_576, 16_384
_DATE_FORMATS = frozenset([*range(14, 23), *range(27, 37), 45, 46, 47, *range(50, 59)])
_NOT_FORMAT = re.compile(r'"[^"]*"|\\.|_.|\*.|\[(?!h+\]|m+\]|s+\])[^\]]*\]', re.IGNORECASE)
_ESCAPE = re.compile(r"_x([0-9A-Fa-f]{4})_")


@lru_cache(maxsize=4096)
def column_number(letters: str) -> int:
    """Number of a column, counted from 1.

    >>> column_number("A"), column_number("AB")
    (1, 28)
    """
    number = 0
    for letter in letters:
        number = number * 26 + ord(letter) - 64
    return number


@lru_cache(maxsize=4096)
def column_letters(number: int) -> str:
    """Letters of a column.

    >>> column_letters(28)
    'AB'
    """
    letters = ""
    while number > 0:
        number, rest = divmod(number - 1, 26)
        letters = chr(65 + rest) + letters
    return letters


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
    """A workbook as sheets of cell values.

    Parameters
    ----------
    path : path-like
        An .xlsx or .xlsm file.

    Raises
    ------
    InputError
        In one line, when it cannot be read; see :class:`~xlperf.catalog.package.Package`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.package = Package(path)
        self.name = self.package.name
        self.date_1904 = False
        self._parts: dict[str, str] = {}
        relations = self.package.relations("")
        main = next((target for kind, target in relations.values() if kind == "officeDocument"), "xl/workbook.xml")
        if not self.package.has(main):
            self.package.close()
            raise self.package.damaged(main)
        self._main = main
        self._relations = self.package.relations(main)
        self.package.parse(main, self._workbook_element)

    def _workbook_element(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "workbookPr":
            self.date_1904 = attributes.get("date1904") in ("1", "true")
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

    def tables(self, sheet: str) -> list[ListObject]:
        """Excel tables of a sheet."""
        found: list[ListObject] = []

        def start(tag: str, attributes: dict[str, str]) -> None:
            if tag == "table":
                corners = re.fullmatch(r"\$?([A-Z]+)\$?(\d+):\$?([A-Z]+)\$?(\d+)", attributes.get("ref", ""))
                if corners is None:
                    raise self.package.damaged(target)
                left, top, right, bottom = corners.groups()
                name = attributes.get("displayName") or attributes.get("name", "")
                totals = int(attributes.get("totalsRowCount", "0") or 0)
                place = (int(top), column_number(left), int(bottom), column_number(right))
                found.append(ListObject(name, *place, totals))

        for kind, target in self.package.relations(self._parts[sheet]).values():
            if kind == "table" and self.package.has(target):
                self.package.parse(target, start)
        return found

    @cached_property
    def _strings(self) -> list[str]:
        target = next((target for kind, target in self._relations.values() if kind == "sharedStrings"), "")
        if not self.package.has(target):
            return []
        strings: list[str] = []
        pieces: list[str] = []
        state = {"text": False, "phonetic": False}

        def start(tag: str, _: dict[str, str]) -> None:
            if tag == "si":
                pieces.clear()
            elif tag == "rPh":
                state["phonetic"] = True
            elif tag == "t":
                state["text"] = not state["phonetic"]

        def end(tag: str) -> None:
            if tag == "si":
                strings.append(_unescaped("".join(pieces)))
            elif tag == "rPh":
                state["phonetic"] = False
            elif tag == "t":
                state["text"] = False

        self.package.parse(target, start, end, lambda text: pieces.append(text) if state["text"] else None)
        return strings

    @cached_property
    def _date_styles(self) -> frozenset[str]:
        """Numbers of the cell styles that show dates."""
        target = next((target for kind, target in self._relations.values() if kind == "styles"), "")
        if not self.package.has(target):
            return frozenset()
        dates: set[str] = set()
        formats: dict[str, str] = {}
        cell_formats: list[str] = []
        inside = [False]

        def start(tag: str, attributes: dict[str, str]) -> None:
            if tag == "numFmt":
                formats[attributes.get("numFmtId", "")] = attributes.get("formatCode", "")
            elif tag == "cellXfs":
                inside[0] = True
            elif tag == "xf" and inside[0]:
                cell_formats.append(attributes.get("numFmtId", "0"))

        def end(tag: str) -> None:
            if tag == "cellXfs":
                inside[0] = False

        self.package.parse(target, start, end)
        for style, number in enumerate(cell_formats):
            code = formats.get(number)
            if is_date_format(code) if code is not None else number.isdigit() and int(number) in _DATE_FORMATS:
                dates.add(str(style))
        return frozenset(dates)

    def cells(self, sheet: str, formulas: Formulas | None = None) -> Cells:
        """Values of a sheet: numbers, text, booleans, dates, ErrorValue and Unsaved.

        Parameters
        ----------
        sheet : str
            Name as the workbook spells it.
        formulas : Formulas, optional
            Filled with the formulas of the sheet.
        """
        part = self._parts[sheet]
        reader = _SheetReader(self, formulas)
        try:
            self.package.parse(part, reader.start, reader.end, reader.text)
        except (ValueError, KeyError, IndexError, TypeError):
            raise self.package.damaged(part) from None
        return reader.rows

    def shared_string(self, text: str) -> str:
        """Text of a shared string."""
        return self._strings[int(text)]

    def number(self, text: str, style: str) -> object:
        """A number, or the date that its style shows."""
        value = float(text)
        if style not in self._date_styles:
            return value
        try:
            start = datetime.datetime(1904, 1, 1) if self.date_1904 else datetime.datetime(1899, 12, 30)
            return start + datetime.timedelta(days=value)
        except (OverflowError, ValueError):
            return value


def is_date_format(code: str) -> bool:
    """Whether a number format shows a date or a time.

    >>> is_date_format("yyyy-mm-dd"), is_date_format('0.0 "days"'), is_date_format("[Red]0.00")
    (True, False, False)
    """
    return bool(re.search(r"[dmyhs]", _NOT_FORMAT.sub("", code.split(";")[0]), re.IGNORECASE)) and code != "General"


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text) if "_x" in text else text


class _SheetReader:
    """Handlers that gather the cells of one sheet."""

    def __init__(self, book: Workbook, formulas: Formulas | None) -> None:
        self.rows: Cells = {}
        self._book = book
        self._formulas = formulas
        self._row = 0
        self._column = 0
        self._cells: dict[int, object] = {}
        self._type = "n"
        self._style = ""
        self._formula: dict[str, str] | None = None
        self._value: list[str] = []
        self._formula_text: list[str] = []
        self._into: list[str] | None = None
        self._phonetic = False

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
            self._cells = self.rows.setdefault(self._row, {})
        elif tag == "rPh":
            self._phonetic = True

    def text(self, text: str) -> None:
        if self._into is not None:
            self._into.append(text)

    def end(self, tag: str) -> None:
        if tag in ("v", "t", "f"):
            self._into = None
        elif tag == "c":
            value = self._finished()
            if value is not None:
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
            return datetime.datetime.fromisoformat(text)
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


@dataclass(frozen=True)
class Block:
    """A header row and the rows below it on a sheet, still as cell values."""

    book: str
    sheet: str
    header: list[object]
    rows: list[list[object]]
    header_row: int
    row_numbers: list[int]
    first_column: int
    beyond: int | None = None
    table: ListObject | None = None

    def locate(self, row: int, position: int) -> str:
        """Cell of a row and position: ``xlperf.xlsx [accelerators!F7]``; the sheet alone for the whole header."""
        if position < 0 and row < 0:
            return f"{self.book} [{self.sheet}]"
        letters = column_letters(self.first_column + max(position, 0))
        return f"{self.book} [{self.sheet}!{letters}{self.row_numbers[row] if row >= 0 else self.header_row}]"


def find_block(book: Workbook, sheet: str, kind: str) -> Block | None:
    """The data of a sheet: the Excel table of the kind's name, else the first header row that names the kind."""
    cells = book.cells(sheet)
    tables = book.tables(sheet)
    chosen = [table for table in tables if table.name.casefold() == kind]
    chosen += [table for table in tables if _matches(kind, cells.get(table.first_row, {}), table.first_column)]
    if chosen:
        return _table_block(book.name, sheet, cells, chosen[0])
    for row in sorted(cells):
        present = [column for column in sorted(cells[row]) if not is_blank(cells[row][column])]
        if present and _matches(kind, cells[row], present[0]):
            return _free_block(book.name, sheet, cells, row, present[0])
    return None


def _matches(kind: str, row: dict[int, object], first: int) -> bool:
    """Whether a row of cells is the header of a kind: its key comes first, or most are columns of the kind."""
    names = [split_header(value)[0] for column, value in row.items() if isinstance(value, str) and column >= first]
    schema = table_schema(kind)
    if kind in CATALOG_TABLES:
        start = row.get(first)
        return isinstance(start, str) and split_header(start)[0] == schema.key.name
    known = [name for name in names if name in schema.by_name or name in results_of(kind).by_name]
    return len(known) >= 2 and 2 * len(known) >= len(names)


def _table_block(book: str, sheet: str, cells: Cells, table: ListObject) -> Block:
    columns = range(table.first_column, table.last_column + 1)
    last = table.last_row - table.totals
    numbers = [row for row in sorted(cells) if table.first_row < row <= last]
    header = [cells.get(table.first_row, {}).get(column) for column in columns]
    rows = [[cells[row].get(column) for column in columns] for row in numbers]
    below = cells.get(table.last_row + 1, {})
    beyond = table.last_row + 1 if any(not is_blank(below.get(column)) for column in columns) else None
    return Block(book, sheet, header, rows, table.first_row, numbers, table.first_column, beyond, table)


def _free_block(book: str, sheet: str, cells: Cells, header_row: int, first: int) -> Block:
    last = first
    while not is_blank(cells[header_row].get(last + 1)):
        last += 1
    columns = range(first, last + 1)
    numbers = [row for row in sorted(cells) if row > header_row]
    header = [cells[header_row].get(column) for column in columns]
    rows = [[cells[row].get(column) for column in columns] for row in numbers]
    return Block(book, sheet, header, rows, header_row, numbers, first)


def read_block(kind: str, block: Block) -> tuple[Table, list[Fault]]:
    """A block as a table, with every fault."""
    table, faults = parse_rows(kind, block.header, block.rows, block.locate)
    if block.beyond is not None and block.table is not None:
        place = f"{block.book} [{block.sheet}!{column_letters(block.first_column)}{block.beyond}]"
        problem = f'row just below the table "{block.table.name}" ({block.table.reference}) is not part of it'
        faults.append(Fault(place, f"{problem}; extend the table over it, or leave a row free"))
    return table, faults


def read_catalog_tables(path: str | os.PathLike[str], required: bool) -> tuple[list[Table], list[Fault]]:
    """Catalog sheets of a workbook, with every fault of all of them.

    Parameters
    ----------
    path : path-like
        Workbook.
    required : bool
        Whether a missing sheet is a fault.

    Raises
    ------
    InputError
        When the file itself cannot be read.
    """
    tables: list[Table] = []
    faults: list[Fault] = []
    with Workbook(path) as book:
        for kind in CATALOG_TABLES:
            sheet = book.sheet(kind)
            if sheet is None:
                if required:
                    faults.append(Fault(book.name, missing_sheet(book, kind)))
                continue
            _read_sheet(book, sheet, kind, tables, faults)
    return tables, faults


def read_plan_tables(
    path: str | os.PathLike[str], sheet: str | None = None, kind: str | None = None
) -> tuple[list[Table], list[Fault]]:
    """Plan sheets of a workbook, with every fault of all of them.

    Parameters
    ----------
    path : path-like
        Workbook.
    sheet : str, optional
        The only sheet to read; default: ``training`` and ``inference``, where there are.
    kind : str, optional
        Kind of the plans; default: that of the sheet's name, else of its columns.

    Raises
    ------
    InputError
        When the file itself cannot be read.
    """
    tables: list[Table] = []
    faults: list[Fault] = []
    with Workbook(path) as book:
        wanted = [sheet] if sheet is not None else [name for name in PLAN_TABLES if kind in (None, name)]
        found = [(name, book.sheet(name)) for name in wanted]
        if not any(spelled for _, spelled in found):
            words = sheet if sheet is not None else '" or "'.join(wanted)
            faults.append(Fault(book.name, missing_sheet(book, words)))
        for name, spelled in found:
            if spelled is not None:
                own = kind or (name.strip().casefold() if name.strip().casefold() in PLAN_TABLES else None)
                _read_sheet(book, spelled, own or _plan_kind_of(book, spelled), tables, faults)
    return tables, faults


def _plan_kind_of(book: Workbook, sheet: str) -> str:
    return next((kind for kind in reversed(PLAN_TABLES) if _has_prompt(book, sheet, kind)), PLAN_TABLES[0])


def _has_prompt(book: Workbook, sheet: str, kind: str) -> bool:
    block = find_block(book, sheet, kind)
    names = {split_header(cell)[0] for cell in block.header if isinstance(cell, str)} if block else set()
    return kind == "inference" and "prompt_length" in names


def _read_sheet(book: Workbook, sheet: str, kind: str, tables: list[Table], faults: list[Fault]) -> None:
    block = find_block(book, sheet, kind)
    if block is None:
        key = table_schema(kind).key.name
        needed = f'whose first header is "{key}"' if kind in CATALOG_TABLES else "with the columns of plans"
        faults.append(Fault(f"{book.name} [{sheet}]", f"the sheet has no table {needed}"))
        return
    table, found = read_block(kind, block)
    tables.append(table)
    faults += found


def missing_sheet(book: Workbook, name: str) -> str:
    """Message for a sheet that a workbook lacks."""
    if not book.sheets:
        return f'there is no sheet "{name}"; the workbook has no worksheets'
    return f'there is no sheet "{name}"; {nearest(name, book.sheets)}'


def raise_faults(faults: Sequence[Fault]) -> None:
    """Raise all faults at once, if there are any."""
    if faults:
        raise InputError(faults)
