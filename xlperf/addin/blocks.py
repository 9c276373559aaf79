"""Arguments of worksheet functions: cells to plans and tables, and errors that a cell can show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xlperf.addin.functions import STAND_INS
from xlperf.addin.handles import Block
from xlperf.base.errors import Fault, InputError, nearest, printable
from xlperf.catalog.cells import as_number, is_blank, parse_header, plan_kind
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import Column, results_of, split_header, table_schema

if TYPE_CHECKING:
    from xlperf.catalog.table import Place, Table

MOST_FAULTS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class CellError:
    """A cell that cannot be shown: the error code of the spreadsheet, and why in words."""

    code: str
    message: str


class FunctionError(Exception):
    """A worksheet function cannot be computed at all; carries what its cell shows."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.error = CellError(code, printable(message))


@dataclass(frozen=True, slots=True)
class Plans:
    """Plans as a host sent them: kind, header cells, one tuple of cells per plan.

    ``flags`` says where TRUE and FALSE stand: Python takes them for equal to 1 and 0, the reader of tables does not.
    """

    kind: str
    header: tuple[Any, ...]
    rows: tuple[tuple[Any, ...], ...]
    flags: tuple[tuple[int, int], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        flags = [
            (number, place)
            for number, row in enumerate(self.rows)
            for place, cell in enumerate(row)
            if cell is True or cell is False
        ]
        object.__setattr__(self, "flags", tuple(flags))


def words_of(error: InputError, hints: bool = True) -> str:
    """Faults as one text for a cell: the first ones and how many more; with the names that may be meant or without."""
    lines = [str(fault) if hints else fault.brief for fault in error.faults[:MOST_FAULTS_SHOWN]]
    more = len(error.faults) - len(lines)
    return "; ".join(lines) + (f"; and {more} more" if more else "")


# --- cells to tables -------------------------------------------------------------------------------------------------


def block_of(argument: Any) -> Block:
    """An argument as rows of cells of one width, blank rows at its end left out; empty where it is blank."""
    if not isinstance(argument, (list, tuple)):
        return [] if is_blank(argument) else [[_plain(argument)]]
    rows = [[_plain(cell) for cell in row] if isinstance(row, (list, tuple)) else [_plain(row)] for row in argument]
    while rows and all(is_blank(cell) for cell in rows[-1]):
        rows.pop()
    width = max(map(len, rows), default=0)
    return [row if len(row) == width else row + [None] * (width - len(row)) for row in rows]


def _plain(cell: Any) -> Any:
    """One form of what hosts send differently: blanks are None, numbers floats; so equal tables have equal handles."""
    if isinstance(cell, (float, bool)) or cell is None:
        return cell
    cell = as_number(cell)
    if isinstance(cell, (float, bool)) or cell is None:
        return cell
    if isinstance(cell, int):
        with suppress(OverflowError):
            return float(cell)
        return math.inf if cell > 0 else -math.inf
    text = cell if isinstance(cell, str) else str(cell)
    return text if text.strip() else None


def read_block(plan: Any, header: Any) -> Plans:
    """Plans of a card, of a table with its header row, or of rows whose header is given.

    Parameters
    ----------
    plan : cells
        Two columns (name, value), or rows with or without their header row.
    header : cells
        Header row; blank if the plan has it.

    Returns
    -------
    Plans
        At least one row.
    """
    block, headers = block_of(plan), block_of(header)
    if headers and headers != [[0]]:  # an empty cell arrives as 0 in LibreOffice
        if len(headers) > 1:
            raise FunctionError("#VALUE!", f"header must be one row, got {len(headers)}")
        names, rows = headers[0], block or [[None] * len(headers[0])]
        if len(rows[0]) != len(names):
            raise FunctionError("#VALUE!", f"the plan has {len(rows[0])} columns, its header {len(names)}")
    elif not block:
        raise FunctionError("#VALUE!", "the plan is empty")
    elif len(block[0]) == 2:
        card = [row for row in block if not all(is_blank(cell) for cell in row)]
        names, rows = [row[0] for row in card], [[row[1] for row in card]]
    else:
        names, rows = block[0], block[1:]
        if not rows:
            raise FunctionError("#VALUE!", "there is no plan below the header row; give header if it stands elsewhere")
    return Plans(plan_kind(names), tuple(names), tuple(tuple(row) for row in rows))


def position_of(plans: Plans, name: str) -> int:
    """Which cell of each plan is a column."""
    fields = parse_header(plans.kind, plans.header).fields
    return next(one.position for one in fields if one.column.name == name)


def named_place(
    kind: str, header: Sequence[Any], rows: Sequence[Sequence[Any]], offset: int = 0, single: bool = False
) -> Place:
    """Where a value stands, in words: the name of the row if it has one."""
    keys = [split_header(cell)[0] if isinstance(cell, str) else "" for cell in header]
    key = table_schema(kind).key.name
    position = keys.index(key) if key in keys else None

    def place(row: int, column: str) -> str:
        words = column.replace("_", " ")
        if row < 0:
            return f"{kind} header{', ' + words if words else ''}"
        name = rows[row][position] if position is not None and position < len(rows[row]) else None
        if isinstance(name, str) and name.strip() and column != key:
            where = f'{kind} "{name.strip()}"'
        else:
            where = kind if single else f"{kind} row {offset + row + 1}"
        return f"{where}{', ' + words if words else ''}"

    return place


def read_table(kind: str, header: Sequence[Any], rows: Sequence[Sequence[Any]]) -> Table:
    """A catalog table from cells; faults name the row by its key."""
    return table_from_rows(kind, header, rows, named_place(kind, header, rows))


def read_plans_of(plans: Plans, first: int = 0, last: int | None = None) -> Table:
    """Some plans as a table; faults name the plan."""
    rows = plans.rows[first:last]
    place = named_place(plans.kind, plans.header, rows, first, single=len(plans.rows) == 1)
    return table_from_rows(plans.kind, plans.header, rows, place, skip_empty=False)


def chosen_columns(plans: Plans, results: Any) -> list[Column]:
    """Columns that ``results`` asks for: every result, or those that are named (columns of the plan may be too)."""
    sheet = results_of(plans.kind)
    cells = [cell for row in block_of(results) for cell in row if not is_blank(cell) and cell != 0]
    names = [part for cell in cells for part in str(cell).split(",") if part.strip()]
    if not names:
        return list(sheet.columns)
    given = {one.column.name: one.column for one in parse_header(plans.kind, plans.header).fields}
    columns, unknown = [], []
    for text in names:
        name = split_header(text)[0]
        column = sheet.by_name.get(STAND_INS.get((plans.kind, name), name)) or given.get(name)
        if column is None:
            hint = nearest(name, [*sheet.by_name, *given]).replace("_", " ")
            unknown.append(Fault("results", f'unknown result "{text.strip()}"; {hint}'))
        else:
            columns.append(column)
    if unknown:
        raise InputError(unknown)
    return columns
