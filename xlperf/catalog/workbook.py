"""The reader of workbooks: where the rows of each kind stand on its sheet, and the tables that they make."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from xlperf.base.errors import Fault, InputError, nearest
from xlperf.catalog.cells import is_blank, parse_rows
from xlperf.catalog.schema import CATALOG_TABLES, EVERY_TABLE, PLAN_TABLES, results_of, split_header, table_schema
from xlperf.catalog.sheets import Cells, Formulas, ListObject, Workbook, column_letters
from xlperf.catalog.table import Table
from xlperf.catalog.values import SparseRow

__all__ = [
    "Block",
    "Formulas",
    "Workbook",
    "column_letters",
    "find_block",
    "missing_sheet",
    "raise_faults",
    "read_block",
    "read_catalog_tables",
    "read_plan_tables",
    "unread_sheets",
]

MOST_ROWS = 200_000
"""Rows that are read of one sheet. [-]"""
_FOR_READERS = frozenset({"start", "tco", "checks", "study"})  # sheets that xlperf writes and does not read


@dataclass(frozen=True)
class Block:
    """A header row and the rows below it on a sheet, still as cell values."""

    book: str
    sheet: str
    header: list[object]
    rows: list[SparseRow]
    header_row: int
    row_numbers: list[int]
    columns: list[int]
    beyond: int | None = None
    table: ListObject | None = None

    def locate(self, row: int, position: int) -> str:
        """Cell of a row and position: ``xlperf.xlsx [accelerators!F7]``; the sheet alone for the whole header."""
        if position < 0 and row < 0:
            return f"{self.book} [{self.sheet}]"
        letters = column_letters(self.columns[max(position, 0)])
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
    if kind in EVERY_TABLE:
        start = row.get(first)
        return isinstance(start, str) and split_header(start)[0] == schema.key.name
    known = [name for name in names if name in schema.by_name or name in results_of(kind).by_name]
    return len(known) >= 2 and 2 * len(known) >= len(names)


def _table_block(book: str, sheet: str, cells: Cells, table: ListObject) -> Block:
    span = range(table.first_column, table.last_column + 1)
    last = table.last_row - table.totals
    numbers = [row for row in sorted(cells) if table.first_row < row <= last and any(c in span for c in cells[row])]
    beyond = table.last_row + 1
    below = any(column in span and not is_blank(value) for column, value in cells.get(beyond, {}).items())
    return _block(book, sheet, cells, table.first_row, numbers, span, beyond if below else None, table)


def _free_block(book: str, sheet: str, cells: Cells, header_row: int, first: int) -> Block:
    last = first
    while not is_blank(cells[header_row].get(last + 1)):
        last += 1
    numbers = [row for row in sorted(cells) if row > header_row]
    return _block(book, sheet, cells, header_row, numbers, range(first, last + 1))


def _block(
    book: str,
    sheet: str,
    cells: Cells,
    header_row: int,
    numbers: list[int],
    span: range,
    beyond: int | None = None,
    table: ListObject | None = None,
) -> Block:
    """Rows below a header, in the columns of a span that hold anything: the memory is that of the cells there are."""
    if len(numbers) > MOST_ROWS:
        problem = f"holds {len(numbers):,} rows; xlperf reads {MOST_ROWS:,} of a sheet, more from CSV or Parquet"
        raise InputError(Fault(f"{book} [{sheet}]", problem))
    top = cells.get(header_row, {})
    used = set(top).union(*(cells[row] for row in numbers))
    columns = sorted(column for column in used if column in span) or [span.start]
    position = {column: place for place, column in enumerate(columns)}
    rows = [SparseRow(cells[row], columns, position) for row in numbers]
    header = [top.get(column) for column in columns]
    return Block(book, sheet, header, rows, header_row, numbers, columns, beyond, table)


def read_block(kind: str, block: Block) -> tuple[Table, list[Fault]]:
    """A block as a table, with every fault."""
    table, faults = parse_rows(kind, block.header, block.rows, block.locate)
    if block.beyond is not None and block.table is not None:
        place = f"{block.book} [{block.sheet}!{column_letters(block.table.first_column)}{block.beyond}]"
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
        for kind in EVERY_TABLE:
            sheet = book.sheet(kind)
            if sheet is None:
                if required and kind in CATALOG_TABLES:
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
        needed = f'whose first header is "{key}"' if kind in EVERY_TABLE else "with the columns of plans"
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


def unread_sheets(book: Workbook) -> list[Fault]:
    """Sheets that are not read but seem to be meant: their table, or nearly their name, is that of a missing sheet.

    >>> from xlperf.base.resources import workbook
    >>> with Workbook(workbook()) as shipped:
    ...     unread_sheets(shipped)
    []
    """
    import difflib

    missing = [kind for kind in (*EVERY_TABLE, *PLAN_TABLES) if book.sheet(kind) is None]
    faults = []
    for sheet in book.sheets:
        name = sheet.strip().casefold()
        if name in EVERY_TABLE or name in PLAN_TABLES or name in _FOR_READERS:
            continue
        meant = [table.name.casefold() for table in book.tables(sheet) if table.name.casefold() in missing]
        meant += difflib.get_close_matches(name, missing, n=1, cutoff=0.75)
        if meant:
            problem = f"the sheet is not read; if {meant[0]} is meant, give it that name"
            faults.append(Fault(f"{book.name} [{sheet}]", problem))
    return faults


def raise_faults(faults: Sequence[Fault]) -> None:
    """Raise all faults at once, if there are any."""
    if faults:
        raise InputError(faults)
