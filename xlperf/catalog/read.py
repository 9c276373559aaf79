"""Tables from files and ranges: catalog and plan sheets of workbooks, plans as CSV or Parquet, cards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np

from xlperf.base.errors import Fault, InputError, nearest, raise_faults
from xlperf.base.units import UNITS
from xlperf.catalog import schema
from xlperf.catalog.cards import MOST_ROWS as MOST_CARD_ROWS
from xlperf.catalog.cards import card_cell, card_of_csv, find_card
from xlperf.catalog.cells import SparseRow, catalog_kind, is_blank, parse_header, plan_kind
from xlperf.catalog.csv_files import STANDARD, csv_blocks, read_csv
from xlperf.catalog.parquet_files import parquet_blocks, parquet_place
from xlperf.catalog.parse import Parsed, parse_coded, parse_rows
from xlperf.catalog.table import Coded, Locate, SheetCells, Table, column_letters, end_of_plans
from xlperf.catalog.xlsx import Cells, ListObject, Workbook, open_workbook

PLANS = "plans"  # rows that are meant if a file of plans is read
MOST_MERGED = 1_000_000  # cells that the merged cells of a sheet may cover, in rows that hold anything
MOST_ROWS = 200_000  # rows that are read of one sheet
_TABLE_FILES = (".csv", ".tsv", ".parquet")
WORKBOOKS = (".xlsx", ".xlsm", ".ods")  # endings of workbooks that are read
_SAVED_OTHERWISE = {
    ".xls": "an old Excel workbook (.xls)",
    ".xlsb": "a binary Excel workbook (.xlsb)",
    ".numbers": "a Numbers document (.numbers)",
    ".xlt": "an old Excel template (.xlt)",
    ".fods": "a flat OpenDocument file (.fods)",
}
"""Suffixes of unread spreadsheet files, and their formats."""
_TEXT_FILES = (".csv", ".txt", ".tsv")
_FOR_READERS = frozenset(
    ("start", "tco", "checks", "functions", "study", *(q.sheet.casefold() for q in schema.questions().values()))
)
"""Sheets that xlperf writes and does not read."""


_NEEDED = ("model", "accelerator", "num_accelerators")


@dataclass(frozen=True)
class Block:
    """A header row and the rows below it on a sheet, still as cell values."""

    header: list[object]
    rows: list[SparseRow]
    locate: SheetCells
    beyond: int | None = None
    table: ListObject | None = None


def find_block(book: Workbook, sheet: str, kind: str) -> Block | None:
    """The data of a sheet: the Excel table of the kind's name, else the first header row that names the kind."""
    cells = book.cells(sheet)
    tables = book.tables(sheet)
    chosen = [table for table in tables if table.name.casefold() == kind]
    chosen += [table for table in tables if _matches(kind, cells.get(table.first_row, {}), table.first_column)]
    if chosen:
        table = chosen[0]
        span, last = range(table.first_column, table.last_column + 1), table.last_row - table.totals
        numbers = [row for row in sorted(cells) if table.first_row < row <= last and any(c in span for c in cells[row])]
        beyond = table.last_row + 1
        below = any(column in span and not is_blank(value) for column, value in cells.get(beyond, {}).items())
        return _block(book, sheet, cells, table.first_row, numbers, span, beyond if below else None, table)
    rows = sorted(cells)
    for row, following in zip(rows, [*rows[1:], 0], strict=True):
        present = [column for column in sorted(cells[row]) if not is_blank(cells[row][column])]
        if present and _matches(kind, cells[row], present[0]):
            if kind in schema.PLAN_TABLES and _named(kind, cells.get(following, {})) > _named(kind, cells[row]):
                continue  # a row of groups above the header
            end = next(column for column in count(present[0]) if is_blank(cells[row].get(column + 1)))
            span, numbers = range(present[0], end + 1), [number for number in rows if number > row]
            numbers = _without_notes(cells, span, numbers) if kind in schema.PLAN_TABLES else numbers
            return _block(book, sheet, cells, row, numbers, span)
    return None


def _named(kind: str, row: dict[int, object]) -> int:
    """Columns of a kind that the cells of a row name."""
    names = {schema.canonical(kind, schema.split_header(value)[0]) for value in row.values() if isinstance(value, str)}
    return len(names & schema.table_schema(kind).by_name.keys())


def _without_notes(cells: Cells, span: range, numbers: list[int]) -> list[int]:
    """Rows of plans without notes below them."""
    filled = np.array([sum(not is_blank(cells[row].get(column)) for column in span) for row in numbers])
    gap = (filled == 0) | (np.diff(numbers, prepend=numbers[:1]) > 1)
    return numbers[: end_of_plans(filled, gap)]


def _matches(kind: str, row: dict[int, object], first: int) -> bool:
    """Whether a row of cells is the header of a kind: its key comes first, or most are columns of the kind."""
    written = [value for column, value in row.items() if isinstance(value, str) and column >= first]
    names = [schema.canonical(kind, schema.split_header(value)[0]) for value in written]
    table = schema.table_schema(kind)
    if kind in schema.EVERY_TABLE:
        start = row.get(first)
        return isinstance(start, str) and schema.split_header(start)[0] == table.key.name
    known = [name for name in names if name in table.by_name or name in schema.results_of(kind).by_name]
    return len(known) >= 2 and (len(known) > 3 or 2 * len(known) >= len(names))


def _block(
    book: Workbook,
    sheet: str,
    cells: Cells,
    header_row: int,
    numbers: list[int],
    span: range,
    beyond: int | None = None,
    table: ListObject | None = None,
) -> Block:
    """Rows below a header, in the filled columns of a span; memory grows with the filled cells."""
    if len(numbers) > MOST_ROWS:
        problem = f"holds {len(numbers):,} rows; xlperf reads {MOST_ROWS:,} of a sheet, more from CSV or Parquet"
        raise InputError(Fault(f"{book.name} [{sheet}]", problem))
    top = cells.get(header_row, {})
    cells = _with_merged(book, sheet, cells, header_row)
    used = set(top).union(*(cells[row] for row in numbers))
    columns = sorted(column for column in used if column in span) or [span.start]
    position = {column: place for place, column in enumerate(columns)}
    rows = [SparseRow(cells[row], columns, position) for row in numbers]
    header = [top.get(column) for column in columns]
    return Block(header, rows, SheetCells(book.name, sheet, header_row, numbers, columns), beyond, table)


def _with_merged(book: Workbook, sheet: str, cells: Cells, header_row: int) -> Cells:
    """Cells with the value of each merged cell below a header in all that it covers of rows that hold anything."""
    filled, number = dict(cells), 0
    for top, left, bottom, right in book.merges(sheet):
        value = cells.get(top, {}).get(left)
        if top <= header_row or is_blank(value):
            continue
        for row in (row for row in range(top, min(bottom, max(cells)) + 1) if row in cells):
            number += right - left + 1
            if number > MOST_MERGED:
                problem = f"merges more than {MOST_MERGED:,} cells; undo the merge"
                raise InputError(Fault(f"{book.name} [{sheet}]", problem))
            blank = {column: value for column in range(left, right + 1) if is_blank(cells[row].get(column))}
            filled[row] = {**filled[row], **blank}
    return filled


def read_block(kind: str, block: Block) -> Parsed:
    """A block as a table, with every fault; a second header row below the first is the only one, if there is one."""
    if kind in schema.PLAN_TABLES:
        block = _with_units(kind, block)
        named = frozenset(position for position, cell in enumerate(block.header) if isinstance(cell, str))
        for number, row in enumerate(block.rows):
            if _repeats(block.header, row, named):
                rest = "a second table begins with this header row; put it on a sheet of its own, or remove its header"
                return Table(kind, {}), [Fault(block.locate(number, 0), rest)]
    table, faults = parse_rows(kind, block.header, block.rows, block.locate)
    if block.beyond is not None and block.table is not None:
        book, sheet, first = block.locate.book, block.locate.sheet, column_letters(block.table.first_column)
        place = f"{book} [{sheet}!{first}{block.beyond}]"
        problem = f'row just below the table "{block.table.name}" ({block.table.reference}) is not part of it'
        faults.append(Fault(place, f"{problem}; extend the table over it, or leave a row free"))
    return table, faults


def _with_units(kind: str, block: Block) -> Block:
    """A block whose first row states units, with the units in its header; other blocks as they are."""
    header, stated = list(block.header), 0
    for at, cell in enumerate(block.rows[0] if block.rows else ()):
        if is_blank(cell):
            continue
        unit, name = str(cell).strip("()[] "), str(header[at])
        column = schema.table_schema(kind).by_name.get(schema.canonical(kind, schema.split_header(name)[0]))
        nouns = schema.counted_nouns(column) if column is not None else ()
        if unit not in UNITS and unit.casefold() not in nouns:
            return block
        if schema.split_header(name)[1] is None and unit != "-":
            header[at] = f"{name} ({unit})"
        stated += 1
    if stated < 2:
        return block
    return replace(block, header=header, rows=block.rows[1:], locate=replace(block.locate, rows=block.locate.rows[1:]))


def _repeats(header: Sequence[object], row: SparseRow, named: frozenset[int]) -> bool:
    """Whether a row repeats the header, in at least two columns and most of its filled cells."""
    filled = [position for position in row.filled(named) if not is_blank(row[position])]
    same = sum(
        isinstance(row[at], str) and schema.split_header(row[at])[0] == schema.split_header(str(header[at]))[0]
        for at in filled
    )
    return same >= 2 and 2 * same >= len(filled)


def read_catalog_tables(path: str | os.PathLike[str], required: bool) -> tuple[list[Table], list[Fault]]:
    """Catalog sheets of a workbook, or tables of files or a folder, with faults; ``required``: all sheets."""
    tables: list[Table] = []
    faults: list[Fault] = []
    if is_table_file(path):
        return _read_table_files(Path(path))
    with open_workbook(path) as book:
        for kind in schema.EVERY_TABLE:
            sheet = book.sheet(kind)
            if sheet is None:
                if required and kind in schema.CATALOG_TABLES:
                    faults.append(Fault(book.name, missing_sheet(book, kind)))
                continue
            _read_sheet(book, sheet, kind, tables, faults)
    return tables, faults


def is_table_file(path: str | os.PathLike[str]) -> bool:
    """Whether a catalog is a table as CSV or Parquet, or a folder of them, rather than a workbook."""
    return Path(path).is_dir() or Path(path).suffix.casefold() in _TABLE_FILES


def _read_table_files(path: Path) -> tuple[list[Table], list[Fault]]:
    """Catalog tables of a file or of a folder; the first header of each names its kind."""
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix.casefold() in _TABLE_FILES)
    if not files:
        raise InputError(Fault(str(path), "holds no .csv or .parquet table"))
    tables: dict[str, Table] = {}
    faults: list[Fault] = []
    for file in files:
        table, result = _read_rows(file, None, _catalog_kind, "catalog rows")
        if table.kind in tables:
            faults.append(Fault(file.name, f"is a second table of {table.kind}; put them into one"))
        tables.setdefault(table.kind, table)
        faults += result
    return list(tables.values()), faults


def _catalog_kind(name: str, header: Sequence[object]) -> str:
    kind = catalog_kind(header)
    if not kind:
        first = next(
            (schema.split_header(cell)[0] for cell in header if isinstance(cell, str) and cell.strip()), "nothing"
        )
        keys = ", ".join(schema.table_schema(kind).key.name for kind in schema.EVERY_TABLE)
        raise InputError(Fault(name, f"the first header must name the kind of table ({keys}), got {first}"))
    return kind


def read_plan_tables(
    path: str | os.PathLike[str], sheet: str | None = None, kind: str | None = None
) -> tuple[list[Table], list[Fault]]:
    """Plan sheets of a workbook, ``sheet`` alone, or its only sheet, with faults; names or columns say the kind."""
    tables: list[Table] = []
    faults: list[Fault] = []
    with open_workbook(path) as book:
        wanted = [sheet] if sheet is not None else [name for name in schema.PLAN_TABLES if kind in (None, name)]
        results = [(name, book.sheet(name)) for name in wanted]
        if sheet is None and not any(spelled for _, spelled in results):
            alone = [name for name in book.sheets if len(book.sheets) == 1 or _holds_plans(book, name)]
            if len(alone) == 1:  # whatever its name
                results = [(name, name) for name in alone]
        if not any(spelled for _, spelled in results):
            words = sheet if sheet is not None else '" or "'.join(wanted)
            faults.append(Fault(book.name, missing_sheet(book, words)))
        for name, spelled in results:
            if spelled is None:
                continue
            meant = kind or name.strip().casefold()
            if meant not in schema.PLAN_TABLES:
                block = find_block(book, spelled, "inference")
                meant = "inference" if block and "prompt_length" in schema.plan_names(block.header) else "training"
            _read_sheet(book, spelled, meant, tables, faults)
    return tables, faults


def _holds_plans(book: Workbook, sheet: str) -> bool:
    """Whether a sheet that is no table of the catalog has a header of plans, or a card of one."""
    if sheet.strip().casefold() in schema.EVERY_TABLE:
        return False
    blocks = (find_block(book, sheet, kind) for kind in schema.PLAN_TABLES)
    named = (schema.plan_names(block.header) for block in blocks if block is not None)
    return any({"model", "accelerator"} <= set(names) for names in named) or _sheet_card(book, sheet) is not None


def _read_sheet(book: Workbook, sheet: str, kind: str, tables: list[Table], faults: list[Fault]) -> None:
    card = _sheet_card(book, sheet) if kind in schema.PLAN_TABLES else None
    if card is not None:
        tables.append(card[0])
        faults += card[1]
        return
    block = find_block(book, sheet, kind)
    if block is None:
        needed = f'whose first header is "{schema.table_schema(kind).key.name}"'
        if kind in schema.PLAN_TABLES:
            columns = ", ".join(schema.table_schema(kind).by_name[name].header for name in _NEEDED)
            needed = f"of plans, with headers such as {columns}"
        faults.append(Fault(f"{book.name} [{sheet}]", f"the sheet has no table {needed}"))
        return
    table, result = read_block(kind, block)
    tables.append(table)
    faults += result


def _sheet_card(book: Workbook, sheet: str) -> Parsed | None:
    """The plans of a sheet that holds a card, a name and a value in each row."""
    cells = book.cells(sheet) if not book.tables(sheet) else {}
    if not 2 <= len(cells) <= MOST_CARD_ROWS:
        return None
    numbers = sorted(cells)
    columns = sorted(set().union(*(cells[number] for number in numbers)))
    filled = _with_merged(book, sheet, cells, 0)
    card = find_card([[filled[number].get(column) for column in columns] for number in numbers], schema.PLAN_TABLES)
    if card is None:
        return None
    rows, values = [numbers[at] for at in card.rows], [columns[at] for at in card.columns]
    places = partial(card_cell, book.name, sheet, rows, values)
    return parse_rows(plan_kind(card.names), card.names, card.plans, places)


def missing_sheet(book: Workbook, name: str) -> str:
    """Message for a sheet that a workbook lacks."""
    if not book.sheets:
        return f'there is no sheet "{name}"; the workbook has no worksheets'
    return f'there is no sheet "{name}"; {nearest(name, book.sheets)}'


def unread_sheets(book: Workbook) -> Iterator[Fault]:
    """Unread sheets that seem to be meant: their table, or nearly their name, is a missing sheet's."""
    import difflib

    missing = [kind for kind in (*schema.EVERY_TABLE, *schema.PLAN_TABLES) if book.sheet(kind) is None]
    for sheet in book.sheets:
        name = sheet.strip().casefold()
        if name in schema.EVERY_TABLE or name in schema.PLAN_TABLES or name in _FOR_READERS:
            continue
        meant = [table.name.casefold() for table in book.tables(sheet) if table.name.casefold() in missing]
        meant += difflib.get_close_matches(name, missing, n=1, cutoff=0.75)
        if meant:
            problem = f"the sheet is not read; if {meant[0]} is meant, give it that name"
            yield Fault(f"{book.name} [{sheet}]", problem)


def rows_outside(book: Workbook) -> Iterator[Fault]:
    """Unread rows further below the table of a sheet, with a name and more in its columns."""
    for kind in (*schema.EVERY_TABLE, *schema.PLAN_TABLES):
        sheet = book.sheet(kind)
        block = find_block(book, sheet, kind) if sheet is not None else None
        if sheet is None or block is None or block.table is None:
            continue
        table, cells = block.table, book.cells(sheet)
        span = range(table.first_column, table.last_column + 1)
        for row in sorted(row for row in cells if row > table.last_row + 1):
            filled = [column for column in span if not is_blank(cells[row].get(column))]
            if len(filled) > 1 and filled[0] == table.first_column:
                place = f"{book.name} [{sheet}!{column_letters(table.first_column)}{row}]"
                problem = f'the row stands below the table "{table.name}" ({table.reference}) and is not read'
                yield Fault(place, f"{problem}; move it into a blank row of the table, or extend the table")


DESIGN_TABLES = ("chiplets", "servers")
KindOf = Callable[[str, Sequence[object]], str]  # ``kind_of(name, header)``: the table that a header belongs to


def read_plans(path: str | os.PathLike[str], sheet: str | None = None, kind: str | None = None) -> list[Table]:
    """Plans of a workbook, CSV or Parquet file, or of standard input (``-``): a table for each kind with rows."""
    if is_workbook(path):
        tables, faults = read_plan_tables(path, sheet, kind)
    else:
        table, faults = _read_rows(path, sheet, lambda _, header: kind or plan_kind(header), PLANS)
        tables = [table]
    raise_faults(faults)
    filled = [table for table in tables if len(table)]
    if not filled:
        raise InputError(Fault(_name(path), "has no plans; fill at least one row"))
    return filled


class PlanRows(NamedTuple):
    """Rows of plans in a file, not yet checked, with columns as (codes, distinct values)."""

    kind: str
    header: Sequence[object]
    columns: list[Coded]
    locate: Locate

    def table(self) -> Parsed:
        """The rows as a table, with every fault."""
        return parse_coded(self.kind, self.header, self.columns, self.locate)


def plan_blocks(path: str | os.PathLike[str], rows: int) -> Iterator[PlanRows]:
    """Plans of a CSV or Parquet file, or of CSV on standard input, in one block at least, of which one is in memory."""
    name, ending = _name(path), Path(path).suffix.casefold()

    def wanted(header: Sequence[object]) -> set[int]:
        return _wanted(plan_kind(header), header)

    if ending == ".parquet":
        for block in parquet_blocks(Path(path), wanted, rows):
            place = partial(parquet_place, name, block.header, block.first)
            yield PlanRows(plan_kind(block.header), block.header, block.columns, place)
        return
    if str(path) != STANDARD and ending not in _TEXT_FILES:
        _read_rows(path, None, lambda _, header: plan_kind(header), PLANS)  # says what is wrong
    for number, result in enumerate(csv_blocks(path, wanted, rows)):
        card = card_of_csv(result, schema.PLAN_TABLES) if number == 0 else None
        read = result if card is None else card
        yield PlanRows(plan_kind(read[0]), *read)


def read_designs(path: str | os.PathLike[str], sheet: str | None = None, kinds: Sequence[str] = DESIGN_TABLES) -> Table:
    """Rows of one kind that have a cost, or of a catalog sheet among ``kinds``; by default chiplets, else servers."""
    if not is_workbook(path):
        table, faults = _read_rows(path, sheet, partial(_design_kind, kinds=kinds), "designs")
    elif sheet in schema.PLAN_TABLES:
        return read_plans(path, sheet, sheet)[0]
    else:
        result, faults = read_catalog_tables(path, required=False)
        wanted = kinds if sheet is None else (sheet,)
        filled = (table for table in result if table.kind in wanted and len(table))
        tables = sorted(filled, key=lambda table: table.kind)
        if not tables:
            raise_faults(faults)
            raise InputError(Fault(_name(path), f"has no rows in a sheet named {' or '.join(wanted)}"))
        table = tables[0]
    raise_faults(faults)
    if not len(table):
        raise InputError(Fault(_name(path), "has no designs; fill at least one row"))
    return table


def _name(path: str | os.PathLike[str]) -> str:
    return "standard input" if str(path) == STANDARD else Path(path).name


def is_workbook(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a workbook rather than a CSV or Parquet file."""
    return str(path) != STANDARD and Path(path).suffix.casefold() in WORKBOOKS


def _read_rows(path: str | os.PathLike[str], sheet: str | None, kind_of: KindOf, meant: str) -> Parsed:
    """Rows of a CSV or Parquet file, or of CSV on standard input, with every fault."""
    name, ending = _name(path), Path(path).suffix.casefold()
    if sheet is not None:
        raise InputError(Fault(name, "has no sheets; leave the sheet out"))
    if str(path) == STANDARD or ending in _TEXT_FILES:
        read = read_csv(path)
        card = card_of_csv(read, schema.PLAN_TABLES) if meant == PLANS else None
        header, columns, locate = read if card is None else card
        return parse_coded(kind_of(name, header), header, columns, locate)
    if ending == ".parquet":
        names, coded, _ = next(parquet_blocks(Path(path), lambda header: _wanted(kind_of(name, header), header), None))
        return parse_coded(kind_of(name, names), names, coded, partial(parquet_place, name, names, 0))
    if Path(path).is_dir():
        raise InputError(Fault(str(path), f"is a folder; a file of {meant} is meant"))
    if not Path(path).exists():
        raise InputError(Fault(str(path), "there is no such file"))
    if ending in _SAVED_OTHERWISE:
        raise InputError(Fault(name, f"is {_SAVED_OTHERWISE[ending]}; open it there and save it as .xlsx"))
    remedy = f"; of a log or launch file: xlperf launch --read {name} -o plans.csv" if meant == PLANS else ""
    remedy += f"; of a log's own run: xlperf diagnose --log {name} --mine runs.csv" if ending == ".log" else ""
    problem = f'{meant} must be a workbook (.xlsx), .csv or .parquet, got the ending "{ending}"{remedy}'
    raise InputError(Fault(name, problem))


def _wanted(kind: str, header: Sequence[object]) -> set[int]:
    """Columns of a file that are read: of the schema, of the user's own, and without a name, which are faults."""
    parsed = parse_header(kind, header)
    return {field.position for field in parsed.fields} | set(parsed.unnamed) | set(parsed.own)


def _design_kind(name: str, header: Sequence[object], kinds: Sequence[str]) -> str:
    names = [schema.split_header(cell)[0] for cell in header if isinstance(cell, str)]
    costed = tuple(kinds) == DESIGN_TABLES
    if costed and "model" in schema.plan_names(header):  # plans, also with the server of an earlier run
        return plan_kind(header)
    for kind in kinds:
        if schema.table_schema(kind).key.name in names:
            return kind
    keys = " or ".join(f'"{schema.table_schema(kind).key.name}"' for kind in kinds)
    words = f"needs a column {keys} with the names of the {'designs' if costed else kinds[0]}"
    if costed:
        words += ', or "model" for plans'
    raise InputError(Fault(name, f"{words}, got {', '.join(names[:6])}"))
