"""The worksheet functions as xlwings functions: for Excel on Windows (``xlperf install excel``) and xlwings Lite.

They are built from the registry when the module is imported, so there is nothing here to keep in step with it. The
Python process of xlwings computes them itself. An error is the text of its code, ``#N/A``, which the add-in and
xlwings Lite show as the error value; XLPERF_CHECK says it in words.
"""

from __future__ import annotations

import datetime
import decimal
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import xlwings as xw

from xlperf.addin.cells import CellError
from xlperf.addin.functions import Function, functions
from xlperf.addin.session import Session
from xlperf.catalog.cells import in_days

_DATE_1900, _DATE_1904 = datetime.datetime(1899, 12, 30), datetime.datetime(1904, 1, 1)


@cache
def session() -> Session:
    """The one session of this process."""
    return Session()


def shown(cell: Any) -> Any:
    """A cell as Excel gets it: errors as the text of their code.

    >>> shown(CellError("#N/A", "3 does not divide 8")), shown(1.5)
    ('#N/A', 1.5)
    """
    return cell.code if isinstance(cell, CellError) else cell


def numbers(argument: Any) -> Any:
    """An argument with the number behind each cell in a date or currency format, which Excel hands over otherwise.

    Dates count from 30 December 1899 whatever the workbook counts from, as all dates between programs on Windows do.

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
    """Whether the workbook that Excel shows counts days from 1904, as those of old Macs do."""
    try:
        excel: Any = xw.apps.active
        return excel.api.ActiveWorkbook.Date1904 is True
    except Exception:  # no Excel, no workbook: whatever COM raises
        return False


def excel_function(function: Function) -> Callable[..., Any]:
    """A function of the registry as xlwings wants it: its name, its arguments by name, its texts.

    Parameters
    ----------
    function : Function
        From the registry.

    Returns
    -------
    callable
        Cells in, a value or rows of values out.
    """

    def call(*arguments: Any) -> Any:
        cells = [numbers(argument) for argument in arguments]
        rows = [[shown(cell) for cell in row] for row in session().call(function.name, cells)]
        return rows[0][0] if len(rows) == 1 and len(rows[0]) == 1 else rows

    call.__name__ = call.__qualname__ = function.name
    call.__doc__ = function.doc
    call.__annotations__ = {}
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
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
    )
    made: Callable[..., Any] = call
    for argument in function.arguments:
        made = xw.arg(argument.name, ndim=2, err_to_str=True, doc=argument.doc)(made)
    # last, because xlwings' arg sets the category back
    return xw.func(category=function.category)(made)


globals().update({name: excel_function(function) for name, function in functions().items()})
__all__ = ["excel_function", "session", "shown", *functions()]
