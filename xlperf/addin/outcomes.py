"""Results of plans as cells: each plan is evaluated once, and those that will be asked for next with it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xlperf.addin.blocks import CellError, Plans, named_place, read_plans_of, words_of
from xlperf.base.errors import InputError
from xlperf.catalog.cells import is_blank, parse_header
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import unit_of

if TYPE_CHECKING:
    from xlperf.catalog.table import Table

MOST_ROWS_KEPT = 20_000
MOST_COMPANIONS = 2_000
MOST_GROUPS = 16
MOST_HINTS = 50
"""Faulty plans of one call whose cells list the names that may be meant; to find them takes milliseconds each."""

Evaluate = Callable[["Table"], "Table"]


class ShownTable:
    """A table of results whose columns become cells when they are first asked for."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._cells: dict[str, list[Any]] = {}

    def cells(self, name: str) -> list[Any]:
        """Cells of one column in the unit of the schema; NaN is the error ``#N/A`` with the row's reason."""
        if name not in self._cells:
            self._cells[name] = shown_column(self._table, name)
        return self._cells[name]


@dataclass
class Outcome:
    """Results of plans, row by row: where they stand, or why there are none.

    ``rows`` has, per plan, None for a blank one, an error, or which table of ``tables`` and which row of it.
    """

    plans: Plans
    rows: list[tuple[int, int] | CellError | None]
    tables: list[ShownTable] = field(default_factory=list)

    def column(self, name: str) -> list[Any]:
        """Cells of one result, one per plan."""
        return [
            self.tables[row[0]].cells(name)[row[1]] if isinstance(row, tuple) else "" if row is None else row
            for row in self.rows
        ]


def shown_column(table: Table, name: str) -> list[Any]:
    """Cells of one result column in the unit of the schema; NaN is the error ``#N/A`` with the row's reason.

    Parameters
    ----------
    table : Table
        Results, in the units used inside.
    name : str
        Column.

    Returns
    -------
    list
        Numbers, texts, True and False, :class:`CellError`.
    """
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


def solved(plans: Plans, evaluate: Callable[[Table], Table]) -> Outcome:
    """Results of plans; a malformed plan is an error in its own row and leaves the others alone.

    Parameters
    ----------
    plans : Plans
        What the host sent.
    evaluate : callable
        Table of plans -> table of results; may raise InputError.

    Returns
    -------
    Outcome
        One entry per plan.
    """
    header = parse_header(plans.kind, plans.header)
    inputs = [one.position for one in header.fields]
    filled = [
        number
        for number, cells in enumerate(plans.rows)
        if not all(position >= len(cells) or is_blank(cells[position]) for position in inputs)
    ]
    outcome = Outcome(plans, [None] * len(plans.rows))
    if header.faults:
        table_from_rows(plans.kind, plans.header, [], named_place(plans.kind, plans.header, []))  # raises them
    dense = (
        plans
        if len(filled) == len(plans.rows)
        else Plans(plans.kind, plans.header, tuple(plans.rows[n] for n in filled))
    )

    faulty: list[int] = []

    def solve(first: int, last: int) -> None:
        try:
            results = evaluate(read_plans_of(dense, first, last))
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
    """Outcomes of recent plans, by catalog; bounded, what was used least recently goes first.

    A host asks cell by cell. When a catalog is edited, it asks for every plan again, one after the other; the first of
    them brings its companions along, the single plans under the same header that were asked for before: a thousand
    rows together take little longer than one, and give the same numbers to the last bit.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, Plans], Outcome] = OrderedDict()
        self._rows_kept = 0
        self._companions: OrderedDict[tuple[Any, ...], OrderedDict[Plans, None]] = OrderedDict()

    def of(self, catalog: str, plans: Plans, evaluate: Evaluate) -> Outcome:
        """Outcome of plans under a catalog.

        Parameters
        ----------
        catalog : str
            Handle; "" for the installed catalog.
        plans : Plans
            What the host sent.
        evaluate : callable
            Table of plans -> table of results.

        Returns
        -------
        Outcome
            From memory where it is there.

        Raises
        ------
        InputError
            Where the header is malformed.
        """
        key = (catalog, plans)
        if key not in self._kept and len(plans.rows) == 1:
            self._evaluate_companions(catalog, plans, evaluate)
        if key not in self._kept:
            self._keep(key, solved(plans, evaluate))
        self._kept.move_to_end(key)
        return self._kept[key]

    def _evaluate_companions(self, catalog: str, plans: Plans, evaluate: Evaluate) -> None:
        group = self._companions.setdefault((plans.kind, plans.header), OrderedDict())
        self._companions.move_to_end((plans.kind, plans.header))
        if plans in group:
            missing = [one for one in group if (catalog, one) not in self._kept]
            together = solved(Plans(plans.kind, plans.header, tuple(one.rows[0] for one in missing)), evaluate)
            for one, row in zip(missing, together.rows, strict=True):
                if isinstance(row, tuple):  # a faulty one is evaluated alone, so that its message names it alone
                    self._keep((catalog, one), Outcome(one, [row], together.tables))
        group[plans] = None
        group.move_to_end(plans)
        _trim(group, MOST_COMPANIONS)
        _trim(self._companions, MOST_GROUPS)

    def _keep(self, key: tuple[str, Plans], outcome: Outcome) -> None:
        self._kept[key] = outcome
        self._rows_kept += len(outcome.rows)
        while self._rows_kept > MOST_ROWS_KEPT and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._rows_kept -= len(dropped.rows)


def _trim(kept: OrderedDict[Any, Any], most: int) -> None:
    while len(kept) > most:
        kept.popitem(last=False)
