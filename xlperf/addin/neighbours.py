"""Plans that a spreadsheet asks for one by one, computed together: the rows beside a new one come along.

A message to the worker takes longer than a plan in a batch. At the second new plan within a second, the other rows
under the same header go along in one message, and the answers are kept here under the cells of each row: a row that is
read too early or never asked for costs time, and a cell shows what its own arguments say. With another catalog, after
an edit of the hardware, the rows that cells asked for under the one before go along at once.

Reading a cell computes it if it is out of date, and one that depends on the cell that is being computed becomes an
error and stays one. So rows with formulas are read only if all that they depend on is known to call nothing of ours
(:func:`is_safe`); the others are asked for one by one.
Standard library only: a copy runs inside LibreOffice's own Python.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xlperf.addin.client import Client

    Row = tuple[Any, ...]
    Key = tuple[str, Any, Row]

MOST_ROWS = 10_000  # in one message
MOST_KEPT = 50_000
BURST = 1.0  # new plans that are further apart are single edits [s]
MOST_PATIENCE = 4096
MOST_LEVELS = 8  # of formulas that depend on formulas
FORMULA = 16  # com.sun.star.sheet.CellFlags
_DIGITS = re.compile(r"\d+")
_FUNCTIONS = (
    "ABS AND AVERAGE CEILING CHOOSE CONCATENATE COUNT COUNTA EVEN EXP FALSE FLOOR IF IFERROR IFNA INDEX INT ISBLANK"
    " ISNUMBER LEFT LEN LN LOG LOG10 LOWER MATCH MAX MID MIN MOD NOT ODD OR POWER PRODUCT QUOTIENT RIGHT ROUND"
    " ROUNDDOWN ROUNDUP ROW SQRT SUM SUMPRODUCT TEXT TRIM TRUE TRUNC UPPER VALUE VLOOKUP"
)
_TOKENS = re.compile(
    r'(?:"(?:[^"]|"")*"'  # a text
    r"|\$?[A-Z]{1,3}\$?\d{1,7}(?![\w.(!])"  # a cell of the same sheet
    r"|\d+(?:\.\d+)?(?:E[+-]?\d+)?(?![\w.])"
    r"|[-+*/^&=<>();:{}|%\s]"
    rf"|(?:{_FUNCTIONS.replace(' ', '|')})\()*"
)


class Neighbours:
    """Cells of plans by function, catalog and header, computed before they are asked for.

    Parameters
    ----------
    client : Client
        What asks the worker.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._worker: int | None = None
        self._known: OrderedDict[Key, dict[Row, list[Any]]] = OrderedDict()  # cell, and whether it was asked for
        self._latest: dict[tuple[str, Row], Key] = {}  # by function and header
        self._num_known = 0
        self._places: dict[tuple[str, Row], tuple[str, int, int]] = {}
        self._num_new, self._patience, self._last_new = 0, 2, 0.0

    def call(self, document: Any, function: str, arguments: list[Any]) -> list[list[Any]]:
        """Block of values that a function of plan, catalog and header returns.

        Parameters
        ----------
        document : object
            The spreadsheet that calls, or None.
        function : str
            Its name: ``XLPERF_STEP_TIME``.
        arguments : list
            As :meth:`Client.call` has them.

        Returns
        -------
        list of list
            Rows of values.
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
            return self._kept_alone(key, row, self._client.call(function, arguments))
        others = self._asked_before(key, row)
        if not others and self._is_burst():
            others = self._new_rows(document, key[2], row, cells)
            self._num_new, self._patience = 0, 2 if len(others) > 1 else min(2 * self._patience, MOST_PATIENCE)
        if not others:
            return self._kept_alone(key, row, self._client.call(function, arguments))
        rows, answers = self._client.call_with_others(function, arguments, others)
        self._keep(key, others, answers)
        return self._kept_alone(key, row, rows)

    def _asked_before(self, key: Key, row: Row) -> list[Row]:
        """Rows that cells asked a function for under the latest other catalog, if this one is among them."""
        latest = self._latest.get((key[0], key[2]), key)
        before = self._known.get(latest, {})
        if latest == key or row not in before:
            return []
        known = self._known.get(key, {})
        asked = [one for one, cell in before.items() if cell[1] and one not in known and one != row]
        return [row, *asked[: MOST_ROWS - 1]] if asked else []

    def _is_burst(self) -> bool:
        """Whether so many new plans came one after the other that more are to be expected."""
        now = time.monotonic()
        if now - self._last_new > BURST:
            self._num_new, self._patience = 0, 2
        self._last_new = now
        self._num_new += 1
        return self._num_new >= self._patience

    def _kept_alone(self, key: Key, row: Row, answer: list[list[Any]]) -> list[list[Any]]:
        """The answer of a row that was asked for, kept."""
        self._keep(key, [row], [answer[0][0]])
        self._known[key][row][1] = True
        self._latest[key[0], key[2]] = key
        return answer

    def _keep(self, key: Key, rows: list[Row], answers: list[Any]) -> None:
        cells = self._known.setdefault(key, {})
        self._known.move_to_end(key)
        before = len(cells)
        cells.update((row, [answer, False]) for row, answer in zip(rows, answers))  # noqa: B905 - Python 3.8 of LibreOffice
        self._num_known += len(cells) - before
        if self._num_known > MOST_KEPT:
            self._drop()

    def _drop(self) -> None:
        """Forget cells until few enough are left, the last used at the end: first those that were never asked for."""
        for key in [*self._known][:-1]:
            cells = self._known[key]
            self._known[key] = {row: cell for row, cell in cells.items() if cell[1]}
            self._num_known -= len(cells) - len(self._known[key])
            if self._num_known <= MOST_KEPT:
                return
        while self._num_known > MOST_KEPT and len(self._known) > 1:
            self._num_known -= len(self._known.popitem(last=False)[1])

    def _new_rows(self, document: Any, header: Row, row: Row, cells: dict[Row, Any]) -> list[Row]:
        """A row and those under its header that are not known, the ones below it first; none if it is not found."""
        try:
            for sheet, area in self._tables(document, header):
                rows = read_rows(sheet, area)
                if row in rows:
                    place = rows.index(row)
                    found = dict.fromkeys(one for one in rows[place:] + rows[:place] if one and one not in cells)
                    return list(found)[:MOST_ROWS]
        except Exception:  # a document that cannot be read is one without neighbours
            return []
        return []

    def _tables(self, document: Any, header: Row) -> Iterator[tuple[Any, Any]]:
        """Sheet and cells below each header row with these texts, the one that was used last first."""
        name, left, top = self._places.get((document.RuntimeUID, header), ("", 0, 0))
        if name and document.Sheets.hasByName(name):
            yield from _cells_below(document.Sheets.getByName(name), header, left, top)
        text = next((cell for cell in header if isinstance(cell, str) and cell), None)
        if text is None:
            return
        for sheet in document.Sheets:
            search = sheet.createSearchDescriptor()
            search.SearchString, search.SearchWords, search.SearchType = text, True, 0  # in formulas: computes nothing
            found = sheet.findAll(search)
            for place in found.getRangeAddresses() if found is not None else ():
                for top in range(place.StartRow, place.EndRow + 1):
                    for column in range(place.StartColumn, place.EndColumn + 1):
                        left = column - header.index(text)
                        for table in _cells_below(sheet, header, left, top):
                            self._places[document.RuntimeUID, header] = (sheet.Name, left, top)
                            yield table


def _single(argument: Any) -> Any:
    """The value of a range of one cell; any other argument as it is."""
    return argument[0][0] if isinstance(argument, list) and [len(row) for row in argument] == [1] else argument


def _is_row(argument: Any) -> bool:
    return isinstance(argument, list) and len(argument) == 1 and len(argument[0]) > 2


def _is_blank(row: Row) -> bool:
    """Whether no cell of a row holds anything: it is no plan, and a search for those beside it reads every sheet."""
    return all(cell == "" or cell is None for cell in row)


def _cells_below(sheet: Any, header: Row, left: int, top: int) -> Iterator[tuple[Any, Any]]:
    """Sheet and used cells below a header row, if it stands there as plain texts."""
    if left < 0:
        return
    right = left + len(header) - 1
    names = sheet.getCellRangeByPosition(left, top, right, top)
    if names.queryContentCells(FORMULA).getCount() or names.getDataArray()[0] != header:
        return
    cursor = sheet.createCursor()
    cursor.gotoEndOfUsedArea(False)
    bottom = cursor.getRangeAddress().EndRow
    if bottom > top:
        yield sheet, sheet.getCellRangeByPosition(left, top + 1, right, bottom)


def read_rows(sheet: Any, area: Any) -> list[Row | None]:
    """Rows of an area; None for one that is blank, has an error, or may not be read now."""
    formulas = area.queryContentCells(FORMULA)
    address = area.getRangeAddress()
    barred: set[int] = set()
    if formulas.getCount() and not is_safe(formulas):
        for one in formulas.getRangeAddresses():
            barred.update(range(one.StartRow, one.EndRow + 1))
    rows: list[Row | None] = []
    first = address.StartRow
    for last in [*sorted(barred), address.EndRow + 1]:  # stretches between the rows that are not read
        if last > first:
            stretch = sheet.getCellRangeByPosition(address.StartColumn, first, address.EndColumn, last - 1)
            rows += stretch.getDataArray()
        if last <= address.EndRow:
            rows.append(None)
        first = last + 1
    return [None if row is None or None in row or _is_blank(row) else row for row in rows]


def is_safe(formulas: Any) -> bool:
    """Whether formulas, and those that they depend on, have nothing but cells of their own sheet and plain functions.

    ``queryPrecedents`` of LibreOffice 7.4 stays on one sheet, so whatever leads elsewhere (another sheet, a name, a
    structured reference, INDIRECT) is not safe.
    """
    plain: dict[str, bool] = {}  # by shape: a column of ten thousand formulas has one
    found = formulas.getRangeAddressesAsString()
    for _ in range(MOST_LEVELS):
        for area in formulas:
            for line in area.getFormulaArray():
                for formula in line:
                    shape = _DIGITS.sub("1", formula)
                    if shape not in plain:
                        plain[shape] = is_plain(formula)
                    if not plain[shape]:
                        return False
        formulas = formulas.queryPrecedents(False).queryContentCells(FORMULA)  # they themselves are among them
        before, found = found, formulas.getRangeAddressesAsString()
        if found == before:
            return True
    return False


def is_plain(formula: str) -> bool:
    """Whether a formula has nothing but cells of its own sheet, numbers, texts and functions of their values.

    >>> is_plain("=IF($A2>0;B2*1.5;ROUND(C2;0))"), is_plain("=Sheet1.A2"), is_plain("=XLPERF.MFU(A2:F2)")
    (True, False, False)
    """
    return _TOKENS.fullmatch(formula) is not None
