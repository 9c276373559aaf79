"""Parts of hosts that need the standard library alone: batches of calls, cells, rows and saved files of LibreOffice.

:class:`Neighbours` batches calls, since a message to the worker costs more than a plan: at the second new plan within a
second, or with another catalog, the other rows under its header go along and their answers are cached. LibreOffice 7.4
writes ``XLPERF.STEP_TIME(`` to .xlsx files, which Excel does not know; :func:`make_portable` renames it in formulas.

A copy of this file runs inside LibreOffice's own Python.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import time
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
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
        """Block of values of a function of plan, catalog and header, for a document or the places of its cells."""
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
        if row in cells or len(row) != len(key[2]) or all(cell in ("", None) for cell in row):
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


# not on Windows
fcntl = import_module("fcntl") if find_spec("fcntl") else None


ERROR_CODES = {"#NUM!": 503, "#VALUE!": 519, "#REF!": 524, "#NAME?": 525, "#DIV/0!": 532, "#N/A": 32767}
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
_QUIET_NAN = 0x7FF8000000000000
_PARTS = re.compile(r"xl/(workbook\.xml|(worksheets|tables|charts)/[^/]+\.xml)")
_FORMULA = re.compile(
    rb"(<(?P<tag>(?:\w+:)?(?:f|formula|formula1|formula2|definedName|calculatedColumnFormula))(?:\s[^<>]*)?(?<!/)>)"
    rb"(?P<text>[^<]*)(?=</(?P=tag)>)"
)


# --- cell values


def error_value(code: str) -> float:
    """The number that LibreOffice shows as an error: a NaN that carries LibreOffice's error code.

    >>> error_value("#N/A") == error_value("#N/A")
    False
    """
    bits = _QUIET_NAN | ERROR_CODES.get(code, ERROR_CODES["#VALUE!"])
    number: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return number


def argument(value: Any) -> Any:
    """An argument as the worker takes it: None, a number, a text, or rows of them.

    >>> argument((("a", 1.0), ("", None)))
    [['a', 1.0], ['', None]]
    """
    if isinstance(value, (tuple, list)):
        return [[_cell(cell) for cell in row] if isinstance(row, (tuple, list)) else [_cell(row)] for row in value]
    return _cell(value)


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, (float, str, bool, int)):
        return value
    return None  # "void" and what else a cell cannot hold


def result(rows: list[list[Any]]) -> tuple[tuple[Any, ...], ...]:
    """A block of the worker as LibreOffice takes it: numbers and texts, errors as numbers that carry their code.

    >>> result([["a", 1, True, None]])
    (('a', 1.0, 1.0, ''),)
    """
    return tuple(tuple(_shown(cell) for cell in row) for row in rows)


def _shown(cell: Any) -> Any:
    if isinstance(cell, float):
        return cell
    if isinstance(cell, str):
        return cell
    if isinstance(cell, dict):
        return error_value(str(cell.get("error")))
    return "" if cell is None else float(cell)


# --- saved workbooks


def method_of(name: str) -> str:
    """Method of a function in the type library.

    >>> method_of("XLPERF_STEP_TIME"), method_of("XLPERF")
    ('STEP_TIME', 'XLPERF')
    """
    return name.partition("_")[2] or name


def portable_name(called: str) -> str:
    """Name of a function in every program, from the one that LibreOffice writes.

    >>> portable_name("xlperf.step_time("), portable_name("XLPERF.XLPERF(")
    ('XLPERF_STEP_TIME(', 'XLPERF(')
    """
    return called.upper().replace(".", "_").replace("XLPERF_XLPERF", "XLPERF")


def portable_formulas(part: bytes, names: Iterable[str]) -> bytes:
    """XML of a workbook part with add-in functions written as ``XLPERF_NAME``.

    >>> portable_formulas(b'<f>XLPERF.MFU(A1,"XLPERF.MFU(")</f><t>XLPERF.MFU(</t>', ["XLPERF_MFU"])
    b'<f>XLPERF_MFU(A1,"XLPERF.MFU(")</f><t>XLPERF.MFU(</t>'
    >>> portable_formulas(b"<f>XLPERF.XLPERF(A1)</f>", ["XLPERF"])
    b'<f>XLPERF(A1)</f>'
    """
    methods = "|".join(sorted((re.escape(method_of(name)) for name in names), key=len, reverse=True))
    # texts and quoted sheet names come first, so that what stands inside them is passed over
    pattern = re.compile(
        rf"&quot;.*?&quot;|\"[^\"]*\"|'[^']*'|(?<![\w.])XLPERF\.(?P<method>{methods})(?=\()".encode(),
        re.DOTALL | re.IGNORECASE,
    )

    def renamed(match: re.Match[bytes]) -> bytes:
        method = match["method"]
        return match[0] if method is None else portable_name(match[0].decode()).encode()

    return _FORMULA.sub(lambda match: match[1] + pattern.sub(renamed, match["text"]), part)


def make_portable(path: str, names: Iterable[str]) -> bool:
    """Rewrite a saved .xlsx file if it has dotted function names, with its old modification time; whether it had."""
    functions = list(names)
    path = os.path.realpath(path)
    changed: dict[str, bytes] = {}
    with zipfile.ZipFile(path) as source:
        for info in source.infolist():
            if _PARTS.fullmatch(info.filename):
                part = source.read(info)
                if b"XLPERF." in part.upper():
                    portable = portable_formulas(part, functions)
                    if portable != part:
                        changed[info.filename] = portable
        if not changed:
            return False
        status = os.stat(path)
        # name and lock as in xlperf.base.files: a later command that writes here removes what a killed office has left
        temporary = os.path.join(os.path.dirname(path), f".xlperf-{os.urandom(8).hex()}.part.tmp")
        with open(temporary, "xb") as held:
            if fcntl is not None:
                with contextlib.suppress(OSError):
                    fcntl.flock(held, fcntl.LOCK_EX)
            try:
                with zipfile.ZipFile(temporary, "w") as target:
                    for info in source.infolist():
                        data = changed.get(info.filename)
                        target.writestr(info, source.read(info) if data is None else data, info.compress_type)
                if hasattr(os, "chown"):
                    with contextlib.suppress(OSError):
                        os.chown(temporary, status.st_uid, status.st_gid)
                os.chmod(temporary, status.st_mode & 0o7777)
                os.utime(temporary, ns=(status.st_atime_ns, status.st_mtime_ns))
                if fcntl is None:
                    held.close()  # Windows gives no new name to an open file
                os.replace(temporary, path)
            except BaseException:
                held.close()
                os.unlink(temporary)
                raise
    return True


# --- rows of tables


class CalcTables:
    """Rows of a spreadsheet below a header row.

    Reading a cell computes it if it is out of date, and a cell that depends on the current one becomes an error and
    stays one. So rows with formulas are read only if none of their precedents calls our functions (:func:`is_safe`).
    """

    def __init__(self) -> None:
        self._places: dict[tuple[str, Row], tuple[str, int, int]] = {}

    def __call__(self, document: Any, header: Row) -> Iterator[list[Row | None]]:
        """Rows below each header row with these texts, the one that was used last first."""
        name, left, top = self._places.get((document.RuntimeUID, header), ("", 0, 0))
        if name and document.Sheets.hasByName(name):
            for table in _cells_below(document.Sheets.getByName(name), header, left, top):
                yield read_rows(*table)
        text = next((cell for cell in header if isinstance(cell, str) and cell), None)
        if text is None:
            return
        for sheet in document.Sheets:
            search = sheet.createSearchDescriptor()
            search.SearchString, search.SearchWords, search.SearchType = text, True, 0  # in formulas: computes nothing
            matches = sheet.findAll(search)
            for place in matches.getRangeAddresses() if matches is not None else ():
                for top in range(place.StartRow, place.EndRow + 1):
                    for column in range(place.StartColumn, place.EndColumn + 1):
                        left = column - header.index(text)
                        for table in _cells_below(sheet, header, left, top):
                            self._places[document.RuntimeUID, header] = (sheet.Name, left, top)
                            yield read_rows(*table)


def _cells_below(sheet: Any, header: Row, left: int, top: int) -> Iterator[tuple[Any, Any]]:
    """Sheet and used cells below a header row of plain texts at this place."""
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
    return [None if row is None or None in row or all(cell == "" for cell in row) else row for row in rows]


def is_safe(formulas: Any) -> bool:
    """Whether formulas and their precedents use only cells of their own sheet and plain functions.

    ``queryPrecedents`` of LibreOffice 7.4 stays on one sheet, so any reference elsewhere (another sheet, a name, a
    structured reference, INDIRECT) is unsafe.
    """
    plain: dict[str, bool] = {}  # by shape: a column of ten thousand formulas has one
    addresses = formulas.getRangeAddressesAsString()
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
        before, addresses = addresses, formulas.getRangeAddressesAsString()
        if addresses == before:
            return True
    return False


def is_plain(formula: str) -> bool:
    """Whether a formula has nothing but cells of its own sheet, numbers, texts and functions of their values.

    >>> is_plain("=IF($A2>0;B2*1.5;ROUND(C2;0))"), is_plain("=Sheet1.A2"), is_plain("=XLPERF.MFU(A2:F2)")
    (True, False, False)
    """
    return _TOKENS.fullmatch(formula) is not None
