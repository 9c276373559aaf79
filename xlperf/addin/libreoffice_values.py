"""Cell values between LibreOffice and the worker. Standard library only: a copy runs inside LibreOffice's Python."""

from __future__ import annotations

import struct
from typing import Any

ERROR_CODES = {"#NUM!": 503, "#VALUE!": 519, "#REF!": 524, "#NAME?": 525, "#DIV/0!": 532, "#N/A": 32767}
_QUIET_NAN = 0x7FF8000000000000


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
