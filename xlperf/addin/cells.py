"""Cells to plans and results to cells; each plan is evaluated once, together with plans that are likely to be next."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xlperf.addin.functions import STAND_INS, Function
from xlperf.base.errors import Fault, InputError, nearest, printable, raise_faults
from xlperf.catalog.cards import find_card
from xlperf.catalog.cells import Header, as_number, is_blank, parse_header, plan_kind
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import FORMS, PLAN_TABLES, Column, results_of, split_header, table_schema, unit_of

if TYPE_CHECKING:
    from xlperf.catalog.table import Place, Table

MOST_FAULTS_SHOWN = 5
MOST_CACHED_ROWS = 20_000
MOST_COMPANIONS = 2_000
MOST_GROUPS = 16
_KINDS_OF_FAULT = 3  # evaluations of plans together: with the faults of cells dropped, then of names, then none is left
MOST_HINTS = 50  # faulty plans of one call that list the names that may be meant; each search takes milliseconds

Block = list[list[Any]]
Asked = frozenset[str] | None  # results that cells ask for; None for all
Evaluate = Callable[["Table", Asked], "Table"]


@dataclass(frozen=True, slots=True)
class CellError:
    """A cell that cannot be shown: the error code of the spreadsheet, and why in words."""

    code: str
    message: str


class FunctionError(Exception):
    """A worksheet function cannot be computed at all; carries the error of its cell."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.error = CellError(code, printable(message))


@dataclass(frozen=True, slots=True)
class Plans:
    """Plans from a host: kind, header cells, a tuple of cells per plan; ``flags`` tells TRUE from 1."""

    kind: str
    header: tuple[Any, ...]
    rows: tuple[tuple[Any, ...], ...]
    flags: tuple[tuple[int, int], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        places = ((row, column) for row, cells in enumerate(self.rows) for column in range(len(cells)))
        flags = tuple((row, column) for row, column in places if isinstance(self.rows[row][column], bool))
        object.__setattr__(self, "flags", flags)


def words_of(error: InputError, hints: bool = True) -> str:
    """Faults as one text for a cell: the first ones, with or without hints, and the number of further ones."""
    faults = error.gathered()
    lines = [str(fault) if hints else fault.brief for fault in faults[:MOST_FAULTS_SHOWN]]
    more = len(faults) - len(lines)
    return "; ".join(lines) + (f"; and {more} more" if more else "")


# --- cells to tables -------------------------------------------------------------------------------------------------


def block_of(argument: Any) -> Block:
    """An argument as rows of cells of one width, without blank rows at the end; empty if it is blank."""
    if not isinstance(argument, (list, tuple)):
        return [] if is_blank(argument) else [[_plain(argument)]]
    rows = [[_plain(cell) for cell in row] if isinstance(row, (list, tuple)) else [_plain(row)] for row in argument]
    while rows and all(is_blank(cell) for cell in rows[-1]):
        rows.pop()
    width = max(map(len, rows), default=0)
    return [row if len(row) == width else row + [None] * (width - len(row)) for row in rows]


def given_block(argument: Any) -> Block:
    """An argument as rows of cells; empty if it is blank, or an empty cell, which arrives from LibreOffice as 0."""
    block = block_of(argument)
    return [] if block == [[0]] else block


def _plain(cell: Any) -> Any:
    """Cells in one form for all hosts: blanks are None, numbers floats, so that equal tables have equal handles."""
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


def is_auto(cell: object) -> bool:
    """Whether a cell has the word auto."""
    return isinstance(cell, str) and cell.strip().casefold() == "auto"


def read_block(plan: Any, header: Any, kind: str = "") -> Plans:
    """Plans of a card, of a table with its header row, or of rows with a separate header."""
    block, headers = block_of(plan), given_block(header)
    if headers:
        if len(headers) > 1:
            raise FunctionError("#VALUE!", f"header must be one row, got {len(headers)}")
        names, rows = headers[0], block or [[None] * len(headers[0])]
        if len(rows[0]) != len(names):
            raise FunctionError("#VALUE!", f"the plan has {len(rows[0])} columns, its header {len(names)}")
    elif not block:
        problem = "the plan is empty; a range of another workbook is read only while that workbook is open"
        raise FunctionError("#VALUE!", problem)
    elif len(block[0]) == 2:
        # a form has headings between its rows; what it leaves blank is as if it were not there
        card = [row for row in block if not (is_blank(row[1]) if kind in FORMS else all(map(is_blank, row)))]
        names, rows = [row[0] for row in card], [[row[1] for row in card]]
    elif (plan_card := find_card(block, (kind,) if kind else PLAN_TABLES)) is not None:
        names, rows = list(plan_card.names), plan_card.plans
    else:
        names, rows = block[0], block[1:]
        if not rows:
            raise FunctionError("#VALUE!", "there is no plan below the header row; give header if it stands elsewhere")
    return Plans(kind or plan_kind(names), tuple(names), tuple(tuple(row) for row in rows))


def position_of(plans: Plans, name: str) -> int:
    """Which cell of each plan is a column."""
    fields = parse_header(plans.kind, plans.header).fields
    return next(one.position for one in fields if one.column.name == name)


def named_place(
    kind: str, header: Sequence[Any], rows: Sequence[Sequence[Any]], offset: int = 0, single: bool = False
) -> Place:
    """The place of a value in words: the name of the row if it has one."""
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


def chosen_columns(plans: Plans, names: Sequence[str]) -> list[Column]:
    """Columns with these names, of the results or of the plans themselves; every result without names."""
    sheet = results_of(plans.kind)
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
    raise_faults(unknown)
    return columns


# --- tables to cells -------------------------------------------------------------------------------------------------


def shown_column(table: Table, name: str) -> list[Any]:
    """Cells of one result column in the unit of the schema; NaN is the error ``#N/A`` with the row's reason."""
    column = table.schema.by_name[name]
    reasons = table.columns.get("reason")
    values = table.columns.get(name)
    if values is None:
        return [CellError("#N/A", f"{column.name.replace('_', ' ')} is not computed")] * len(table)
    if column.is_text:
        return [str(value) for value in values]
    if column.kind != "result-flag":
        values = values / unit_of(column).factor
    cells: list[Any] = values.tolist()
    for row, value in enumerate(cells):
        if value != value:
            cells[row] = CellError("#N/A", str(reasons[row]) if reasons is not None else "")
        elif column.kind == "result-flag":
            cells[row] = bool(value)
    return cells


class ShownTable(dict[str, list[Any]]):
    """Columns of a table of results as cells, made by :func:`shown_column` when they are first asked for."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def __missing__(self, name: str) -> list[Any]:
        cells = self[name] = shown_column(self.table, name)
        return cells


@dataclass
class Outcome:
    """Results of plans, row by row."""

    plans: Plans
    rows: list[tuple[int, int] | CellError | None]  # None for a blank plan, an error, or a table and a row of it
    tables: list[ShownTable] = field(default_factory=list)
    asked: Asked = None

    def has(self, results: Asked) -> bool:
        """Whether these results have been computed, or there are none."""
        computed = (set(shown.table.columns) for shown in self.tables)
        return self.asked is None or (results is not None and all(results <= names for names in computed))

    def column(self, name: str) -> list[Any]:
        """Cells of one result, one per plan."""
        return [
            self.tables[row[0]][name][row[1]] if isinstance(row, tuple) else "" if row is None else row
            for row in self.rows
        ]

    def cells(self, function: Function) -> Sequence[Any]:
        """Cells of a function of plans, one per plan."""
        asked = asked_of(function, self.plans.kind)
        return self.words() if asked is None else self.column(*asked)

    def words(self) -> list[str]:
        """Reason or assumptions of each plan in a text: ok if there are none."""
        return [
            cell.message if isinstance(cell, CellError) else "" if row is None else cell or "ok"
            for cell, row in zip(self.column("reason"), self.rows, strict=True)
        ]


def asked_of(function: Function, kind: str) -> Asked:
    """Results that a function needs from plans of a kind; all for XLPERF_CHECK."""
    if function.answer == "check":
        return None
    result = STAND_INS.get((kind, function.result), function.result)
    if result not in results_of(kind).by_name:
        why = "it has a prompt length" if kind == "inference" else "it has no prompt length"
        words = f"{result.replace('_', ' ')} is no result of {kind} plans, and this is one, as {why}"
        raise FunctionError("#VALUE!", words if kind in PLAN_TABLES else words.partition(",")[0])
    return frozenset((result,))


def _filled(plans: Plans, header: Header) -> list[int]:
    """Rows in which an input is given."""
    inputs = [one.position for one in header.fields]
    given = (any(at < len(cells) and not is_blank(cells[at]) for at in inputs) for cells in plans.rows)
    return [row for row, is_given in enumerate(given) if is_given]


def solved(plans: Plans, evaluate: Evaluate, asked: Asked = None) -> Outcome:
    """Results of plans, one entry per plan; a malformed plan is an error in its own row alone."""
    header = parse_header(plans.kind, plans.header)
    filled = _filled(plans, header)
    outcome = Outcome(plans, [None] * len(plans.rows), asked=asked)
    if header.faults:
        table_from_rows(plans.kind, plans.header, [], named_place(plans.kind, plans.header, []))  # raises them
    dense = plans
    if len(filled) < len(plans.rows):
        dense = Plans(plans.kind, plans.header, tuple(plans.rows[number] for number in filled))
    faulty: list[int] = []

    def solve(first: int, last: int) -> None:
        try:
            results = evaluate(read_plans_of(dense, first, last), asked)
        except InputError as error:
            if last - first == 1:
                faulty.append(first)
                outcome.rows[filled[first]] = CellError("#VALUE!", words_of(error, len(faulty) <= MOST_HINTS))
                return
            middle = (first + last) // 2
            solve(first, middle)
            solve(middle, last)
            return
        outcome.tables.append(ShownTable(results))
        for row in range(last - first):
            outcome.rows[filled[first + row]] = (len(outcome.tables) - 1, row)

    if filled:
        solve(0, len(filled))
    return outcome


class Outcomes:
    """Bounded least-recently-used cache of the results of plans, by catalog. After an edit of the catalog the first
    plan brings along the earlier single plans under its header: a thousand rows together need little more time than
    one. If cells ask for different results of plans under one header, all results are computed: a plan is evaluated
    twice at most.
    """

    def __init__(self) -> None:
        self._cached: OrderedDict[tuple[str, Plans], Outcome] = OrderedDict()
        self._num_rows = 0
        self._companions: OrderedDict[tuple[Any, ...], OrderedDict[Plans, None]] = OrderedDict()
        self._asked: dict[tuple[Any, ...], Asked] = {}

    def of(self, catalog: str, plans: Plans, evaluate: Evaluate, results: Asked = None) -> Outcome:
        """Outcome of plans under the catalog of a handle ("" for the installed one), from memory if possible."""
        key = (catalog, plans)
        if not self._has(key, results):
            asked = self._asked_together(plans, results)
            if len(plans.rows) == 1:
                self._evaluate_companions(catalog, plans, evaluate, asked)
            if not self._has(key, results):
                self._store(key, solved(plans, evaluate, asked))
        self._cached.move_to_end(key)
        return self._cached[key]

    def _has(self, key: tuple[str, Plans], results: Asked) -> bool:
        return key in self._cached and self._cached[key].has(results)

    def _asked_together(self, plans: Plans, results: Asked) -> Asked:
        """Results to compute for plans: all once cells asked for different ones under their header."""
        group = (plans.kind, plans.header)
        if self._asked.setdefault(group, results) != results:
            self._asked[group] = None
        return self._asked[group]

    def together(self, catalog: str, plans: Plans, evaluate: Evaluate, results: Asked = None) -> list[Outcome | None]:
        """Outcomes of plans as if each had been asked for by itself, evaluated at once; None if blank or faulty."""
        header, asked = parse_header(plans.kind, plans.header), self._asked_together(plans, results)
        singles = [Plans(plans.kind, plans.header, (cells,)) for cells in plans.rows]
        known = [(catalog, one) for one in singles]
        outcomes = [self._cached[key] if self._has(key, results) else None for key in known]
        left = [] if header.faults else [number for number in _filled(plans, header) if outcomes[number] is None]
        for _ in range(_KINDS_OF_FAULT):
            if not left:
                break
            rows = [plans.rows[number] for number in left]
            try:
                table = table_from_rows(plans.kind, plans.header, rows, lambda row, _: str(row), skip_empty=False)
                evaluated = ShownTable(evaluate(table, asked))
            except InputError as error:
                faulty = {int(fault.place) for fault in error.faults if fault.place.isdigit()}
                left = [number for row, number in enumerate(left) if faulty and row not in faulty]
                continue
            for row, number in enumerate(left):
                outcomes[number] = outcome = Outcome(singles[number], [(0, row)], [evaluated], asked)
                self._store(known[number], outcome)
            break
        return [one if one is not None and isinstance(one.rows[0], tuple) else None for one in outcomes]

    def _evaluate_companions(self, catalog: str, plans: Plans, evaluate: Evaluate, asked: Asked) -> None:
        group = self._companions.setdefault((plans.kind, plans.header), OrderedDict())
        self._companions.move_to_end((plans.kind, plans.header))
        if plans in group and any(not self._has((catalog, one), asked) for one in group if one != plans):
            others = Plans(plans.kind, plans.header, tuple(one.rows[0] for one in group))
            self.together(catalog, others, evaluate, asked)
        group[plans] = None
        group.move_to_end(plans)
        _trim(group, MOST_COMPANIONS)
        _trim(self._companions, MOST_GROUPS)

    def _store(self, key: tuple[str, Plans], outcome: Outcome) -> None:
        self._num_rows += len(outcome.rows) - len(self._cached[key].rows if key in self._cached else ())
        self._cached[key] = outcome
        while self._num_rows > MOST_CACHED_ROWS and len(self._cached) > 1:
            _, dropped = self._cached.popitem(last=False)
            self._num_rows -= len(dropped.rows)


def _trim(entries: OrderedDict[Any, Any], most: int) -> None:
    while len(entries) > most:
        entries.popitem(last=False)
