"""The worksheet functions as xlwings functions: for Excel on Windows (``xlperf install excel``) and xlwings Lite.

They are built from the registry at import; an error is the text of its code, ``#N/A``. The add-in also passes the
addresses of a plan and its header, so that rows of the table are evaluated together (:mod:`xlperf.addin.host`).
"""

from __future__ import annotations

import datetime
import decimal
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import xlwings as xw
from xlwings import conversion

from xlperf import __version__
from xlperf.addin.cells import CellError
from xlperf.addin.client import stale_words
from xlperf.addin.functions import PLACES, Function, functions, result_functions
from xlperf.addin.host import MOST_ROWS, Neighbours, by_own_function
from xlperf.addin.worker import Session
from xlperf.base.resources import workbook
from xlperf.catalog.cells import in_days

_CELLS = {"ndim": 2, "err_to_str": True}  # how xlwings hands cells over: rows of them, errors as the text of their code
_IS_EXCEL = xw.func.__module__ == "xlwings.udfs"  # whether this is xlwings' part for Excel on Windows, not xlwings Lite
_DATE_1900, _DATE_1904 = datetime.datetime(1899, 12, 30), datetime.datetime(1904, 1, 1)


@cache
def session() -> Session:
    """The one session of this process."""
    return Session()


@cache
def _neighbours() -> Neighbours:
    return Neighbours(session(), excel_tables)


def application() -> Any:
    """The Excel that calls."""
    return xw.Book.caller().app.api


def excel_tables(places: tuple[str, str], header: tuple[Any, ...]) -> Iterator[list[tuple[Any, ...] | None]]:
    """Rows of the table around a plan, below its header, from both addresses: ``[book.xlsx]plans!$A$5:$L$5``."""
    (sheet, first, row, last), (other, left, top, right) = map(_parts, places)
    if (sheet, first, last) != (other, left, right) or row <= top:
        return
    excel = application()
    plan = excel.Range(places[0])
    used = plan.ListObject.Range if plan.ListObject is not None else plan.Worksheet.UsedRange
    begin, end = max(top + 1, row - MOST_ROWS), min(max(used.Row + used.Rows.Count - 1, row), row + MOST_ROWS)
    read: Any = conversion.read
    cells = read(None, excel.Range(f"{sheet}!${left}${begin}:${right}${end}").Value2, dict(_CELLS))
    yield [tuple(line) if any(cell is not None for cell in line) else None for line in cells]


def _parts(address: str) -> tuple[str, str, int, str]:
    """Sheet, first column, row and last column of the address of cells in one row.

    >>> _parts("'[my book.xlsx]plans'!$A$5:$L$5")
    ("'[my book.xlsx]plans'", 'A', 5, 'L')
    """
    sheet, _, cells = address.rpartition("!")
    first, _, last = cells.partition(":")
    (_, left, row), (_, right, bottom) = first.split("$"), (last or first).split("$")
    if row != bottom:
        raise ValueError(f"{address} is more than a row")
    return sheet, left, int(row), right


def shown(cell: Any) -> Any:
    """A cell as Excel gets it: errors as the text of their code.

    >>> shown(CellError("#N/A", "3 does not divide 8")), shown(1.5)
    ('#N/A', 1.5)
    """
    return cell.code if isinstance(cell, CellError) else cell


def numbers(argument: Any) -> Any:
    """An argument with the number behind each cell in a date or currency format.

    Dates count from 30 December 1899 in any workbook, as all dates between programs on Windows do.

    >>> numbers([[decimal.Decimal("8"), datetime.datetime(1900, 1, 7), "a"]])
    [[8.0, 8.0, 'a']]
    """
    if not isinstance(argument, list):
        return argument
    kinds = {type(cell) for row in argument for cell in row}
    if not any(issubclass(kind, (decimal.Decimal, datetime.datetime)) for kind in kinds):
        return argument
    dated = any(issubclass(kind, datetime.datetime) for kind in kinds)
    start = _DATE_1904 if dated and counts_from_1904() else _DATE_1900
    return [[_number(cell, start) for cell in row] for row in argument]


def _number(cell: Any, start: datetime.datetime) -> Any:
    if isinstance(cell, decimal.Decimal):
        return float(cell)
    return in_days(cell.replace(tzinfo=None) - start) if isinstance(cell, datetime.datetime) else cell


def counts_from_1904() -> bool:
    """Whether the active workbook counts days from 1904, as old Macs do."""
    try:
        excel: Any = xw.apps.active
        return excel.api.ActiveWorkbook.Date1904 is True
    except Exception:  # no Excel, no workbook: whatever COM raises
        return False


def excel_function(function: Function) -> Callable[..., Any]:
    """A function of the registry as xlwings wants it: its name, its arguments by name, its texts."""
    count, takes_places = len(function.arguments), _IS_EXCEL and function.is_per_plan

    def call(*arguments: Any) -> Any:
        given, places = arguments, arguments[count:]
        if takes_places and len(places) <= len(PLACES) and all(isinstance(one, str | None) for one in places):
            given = arguments[:count]
        cells = [numbers(argument) for argument in given]
        known = len(given) < len(arguments) and None not in places
        name, cells = by_own_function(function.name, cells, result_functions())
        answer = _neighbours().call(places, name, cells) if known else session().call(name, cells)
        rows = [[shown(cell) for cell in row] for row in answer]
        if function.says_faults and _stale:
            rows[0][0] = f"{rows[0][0]}; {_stale[0]}"
        return rows[0][0] if len(rows) == 1 and len(rows[0]) == 1 else rows

    call.__name__ = call.__qualname__ = function.name
    call.__doc__ = function.doc
    call.__annotations__ = {}
    made: Any = call
    made.__signature__ = inspect.Signature(
        [
            inspect.Parameter(argument.name, inspect.Parameter.VAR_POSITIONAL)
            if argument.repeated
            else inspect.Parameter(
                argument.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=None if argument.optional else inspect.Parameter.empty,
            )
            for argument in function.arguments
        ]
        + [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None) for name in PLACES]
        * takes_places
    )
    for argument in function.arguments:
        made = xw.arg(argument.name, doc=argument.doc, **_CELLS)(made)
    for name in PLACES * takes_places:
        made = xw.arg(name)(made)
    # last, because xlwings' arg sets the category back
    named: Callable[..., Any] = xw.func(category=function.category)(made)
    return named


_stale: list[str] = []  # the sentence on an add-in file of another version, once the add-in has asked


def addin_task(task: str, given: str) -> str:
    """What the add-in asks for itself: ``version``, ``update``, ``guide`` or ``report``; words, or a path to open."""
    if task in ("version", "update"):
        words = stale_words(given, __version__, "excel")
        _stale[:] = [words] if words else []
        update = f'To update, close Excel and run: "{sys.executable}" -m xlperf install excel --update'
        own = words or "the add-in is its own"
        return words if task == "version" else f"xlperf {__version__} computes; {own}\n\n{update}"
    if task == "guide":
        return str(workbook())
    report = str(Path(given).with_name(f"{Path(given).stem} report.xlsx"))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "xlperf", "report", given, "-o", report],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )
    return report if done.returncode in (0, 1) and Path(report).is_file() else done.stderr.strip()[-900:]


if _IS_EXCEL:
    addin_task = xw.func(addin_task)

globals().update({name: excel_function(function) for name, function in functions().items()})
__all__ = ["excel_function", "session", "shown", *functions()]
