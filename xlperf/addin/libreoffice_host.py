"""What runs inside LibreOffice beside the glue: cell values for the worker, and the function names of saved workbooks.

LibreOffice 7.4 writes add-in functions to .xlsx files as ``XLPERF.STEP_TIME(``, which Excel does not know (25.2 no
longer does). :func:`make_portable` writes ``XLPERF_STEP_TIME(`` again, in formulas only: text in cells and text inside
a formula stays as it is.
Standard library only: a copy runs inside LibreOffice's own Python.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import zipfile
from collections.abc import Iterable
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

ERROR_CODES = {"#NUM!": 503, "#VALUE!": 519, "#REF!": 524, "#NAME?": 525, "#DIV/0!": 532, "#N/A": 32767}
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


def portable_formulas(part: bytes, names: Iterable[str]) -> bytes:
    """A part of a workbook with add-in functions written as ``XLPERF_NAME``.

    Parameters
    ----------
    part : bytes
        XML.
    names : iterable of str
        Functions: ``XLPERF_STEP_TIME`` ...

    Returns
    -------
    bytes
        The same part where it has no dotted names.

    >>> portable_formulas(b'<f>XLPERF.MFU(A1,"XLPERF.MFU(")</f><t>XLPERF.MFU(</t>', ["XLPERF_MFU"])
    b'<f>XLPERF_MFU(A1,"XLPERF.MFU(")</f><t>XLPERF.MFU(</t>'
    """
    methods = "|".join(sorted((re.escape(name.partition("_")[2]) for name in names), key=len, reverse=True))
    # texts and quoted sheet names come first, so that what stands inside them is passed over
    pattern = re.compile(
        rf"&quot;.*?&quot;|\"[^\"]*\"|'[^']*'|(?<![\w.])XLPERF\.(?P<method>{methods})(?=\()".encode(),
        re.DOTALL | re.IGNORECASE,
    )

    def renamed(match: re.Match[bytes]) -> bytes:
        method = match["method"]
        return match[0] if method is None else b"XLPERF_" + method.upper()

    return _FORMULA.sub(lambda match: match[1] + pattern.sub(renamed, match["text"]), part)


def make_portable(path: str, names: Iterable[str]) -> bool:
    """Rewrite a saved .xlsx file in place where it has dotted function names; other parts keep their bytes.

    The file is replaced whole and keeps its modification time, by which LibreOffice tells whether somebody else
    changed it.

    Parameters
    ----------
    path : str
        The workbook.
    names : iterable of str
        Functions: ``XLPERF_STEP_TIME`` ...

    Returns
    -------
    bool
        Whether it was rewritten.
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
