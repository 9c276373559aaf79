"""Batches calls: plans that a spreadsheet asks for one by one are computed together with the rows beside them.

A message to the worker costs more time than a plan in a batch. At the second new plan within a second, the other rows
under the same header go along in one message, and their answers are cached under the cells of each row: a row that is
read too early or never asked for costs time, and a cell shows the result of its own arguments. With another catalog,
after an edit of the hardware, the rows that cells asked for under the previous one go along at once.

The host provides the rows: :class:`xlperf.addin.libreoffice_host.CalcTables`,
:func:`xlperf.addin.xlwings_functions.excel_tables`. Standard library only: a copy runs inside LibreOffice's own Python.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Protocol

    Row = tuple[Any, ...]
    Key = tuple[str, Any, Row]

    class Computer(Protocol):
        """The worker behind a client, or a session in this process."""

        @property
        def process_id(self) -> int | None:
            """Process id of the computer."""

        def call(self, function: str, arguments: list[Any]) -> list[list[Any]]:
            """Block of values that a function returns."""

        def call_with_others(
            self, function: str, arguments: list[Any], others: list[Any]
        ) -> tuple[list[list[Any]], list[Any]]:
            """The same, and a cell for each of other plans; None for one to ask for alone."""


MOST_ROWS = 10_000  # in one message
FIRST_ROWS = 1000  # in the first message about a column of cells; the next ones have more
MOST_KEPT = 50_000
BURST = 1.0  # new plans that are further apart are single edits [s]
MOST_PATIENCE = 4096


class Neighbours:
    """Cells of plans by function, catalog and header, computed before they are asked for; ``tables`` gives the rows
    below each place of a header in a document, None for blank or unreadable ones.
    """

    def __init__(self, client: Computer, tables: Callable[[Any, Row], Iterable[list[Row | None]]]) -> None:
        self._client = client
        self._tables = tables
        self._worker: int | None = None
        self._known: OrderedDict[Key, dict[Row, list[Any]]] = OrderedDict()  # cell, and whether it was asked for
        self._latest: dict[tuple[str, Row], Key] = {}  # by function and header
        self._num_known = 0
        self._num_new, self._patience, self._last_new = 0, 2, 0.0

    def call(self, document: Any, function: str, arguments: list[Any]) -> list[list[Any]]:
        """Block of values of a function of plan, catalog and header, for a calling spreadsheet, the addresses of its
        cells, or an unknown one.
        """
        plan, catalog, header = [*arguments, None, None][:3]
        catalog = _single(catalog)
        if document is None or isinstance(catalog, list) or not (_is_row(plan) and _is_row(header)):
            return self._client.call(function, arguments)
        if self._worker != self._client.process_id:  # another worker may be another version
            self._worker = self._client.process_id
            self._known.clear()
            self._latest.clear()
            self._num_known = 0
        row, key = tuple(plan[0]), (function, catalog, tuple(header[0]))
        cells = self._known.get(key, {})
        if row in cells and cells[row][0] is not None:
            self._known.move_to_end(key)
            cells[row][1] = True
            return [[cells[row][0]]]
        if row in cells or len(row) != len(key[2]) or _is_blank(row):
            return self._single_answer(key, row, self._client.call(function, arguments))
        others = self._asked_before(key, row)
        if not others and self._is_burst():
            others = self._new_rows(document, key[2], row, cells)
            self._num_new, self._patience = 0, 2 if len(others) > 1 else min(2 * self._patience, MOST_PATIENCE)
        if not others:
            return self._single_answer(key, row, self._client.call(function, arguments))
        rows, answers = self._client.call_with_others(function, arguments, others)
        self._store(key, others, answers)
        return self._single_answer(key, row, rows)

    def _asked_before(self, key: Key, row: Row) -> list[Row]:
        """Rows asked for with the previous catalog, if this one is among them."""
        latest = self._latest.get((key[0], key[2]), key)
        before = self._known.get(latest, {})
        if latest == key or row not in before:
            return []
        known = self._known.get(key, {})
        asked = [one for one, cell in before.items() if cell[1] and one not in known and one != row]
        return [row, *asked[: MOST_ROWS - 1]] if asked else []

    def _is_burst(self) -> bool:
        """Whether new plans arrive so fast that more are to be expected."""
        now = time.monotonic()
        if now - self._last_new > BURST:
            self._num_new, self._patience = 0, 2
        self._last_new = now
        self._num_new += 1
        return self._num_new >= self._patience

    def _single_answer(self, key: Key, row: Row, answer: list[list[Any]]) -> list[list[Any]]:
        """The answer for a single row, cached."""
        self._store(key, [row], [answer[0][0]])
        self._known[key][row][1] = True
        self._latest[key[0], key[2]] = key
        return answer

    def _store(self, key: Key, rows: list[Row], answers: list[Any]) -> None:
        cells = self._known.setdefault(key, {})
        self._known.move_to_end(key)
        before = len(cells)
        cells.update((row, [answers[place], False]) for place, row in enumerate(rows[: len(answers)]))
        self._num_known += len(cells) - before
        if self._num_known > MOST_KEPT:
            self._drop()

    def _drop(self) -> None:
        """Evict cells down to the bound: cells never asked for first, then the least recently used."""
        for key in [*self._known][:-1]:
            cells = self._known[key]
            self._known[key] = {row: cell for row, cell in cells.items() if cell[1]}
            self._num_known -= len(cells) - len(self._known[key])
            if self._num_known <= MOST_KEPT:
                return
        while self._num_known > MOST_KEPT and len(self._known) > 1:
            self._num_known -= len(self._known.popitem(last=False)[1])

    def _new_rows(self, document: Any, header: Row, row: Row, cells: dict[Row, Any]) -> list[Row]:
        """Unknown rows of the table with this row, the ones below it first; none if no table has it."""
        try:
            for rows in self._tables(document, header):
                if row in rows:
                    place = rows.index(row)
                    unknown = dict.fromkeys(one for one in rows[place:] + rows[:place] if one and one not in cells)
                    return list(unknown)[: min(max(FIRST_ROWS, 4 * len(cells)), MOST_ROWS)]
        except Exception:  # a document that cannot be read is one without neighbours
            return []
        return []


def by_own_function(function: str, arguments: list[Any], results: Container[str]) -> tuple[str, list[Any]]:
    """A call of XLPERF for one result as the call of the function of that result, which is computed together with its
    neighbours; any other call as it is. ``results``: names of the functions of one result.

    >>> by_own_function("XLPERF", [[["a"]], "step time", None, [["model"]]], {"XLPERF_STEP_TIME"})
    ('XLPERF_STEP_TIME', [[['a']], None, [['model']]])
    """
    if function == "XLPERF" and 2 <= len(arguments) <= 4 and isinstance(_single(arguments[1]), str):
        own = f"XLPERF_{re.sub('[ _-]+', '_', _single(arguments[1]).strip()).upper()}"
        if own in results:
            return own, [arguments[0], *arguments[2:]]
    return function, arguments


def _single(argument: Any) -> Any:
    """The value of a range of one cell; any other argument as it is."""
    return argument[0][0] if isinstance(argument, list) and [len(row) for row in argument] == [1] else argument


def _is_row(argument: Any) -> bool:
    return isinstance(argument, list) and len(argument) == 1 and len(argument[0]) > 2


def _is_blank(row: Row) -> bool:
    return all(cell == "" or cell is None for cell in row)
