"""Parts that run inside LibreOffice beside the glue: cell values, rows of tables, function names of saved workbooks.

LibreOffice 7.4 writes add-in functions to .xlsx files as ``XLPERF.STEP_TIME(``, which Excel does not know (25.2 no
longer does). :func:`make_portable` writes ``XLPERF_STEP_TIME(`` again, in formulas only: text in cells and text inside
a formula is unchanged. Standard library only: a copy runs inside LibreOffice's own Python.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import zipfile
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

# not on Windows
fcntl = import_module("fcntl") if find_spec("fcntl") else None

if TYPE_CHECKING:
    Row = tuple[Any, ...]

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
    """Rewrite a saved .xlsx file in place if it has dotted function names; other parts keep their bytes.

    The file is replaced as a whole and keeps its modification time, by which LibreOffice detects changes by others.
    Returns whether it was rewritten.
    """
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
