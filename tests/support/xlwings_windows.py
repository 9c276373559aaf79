"""Runs xlwings' own Windows code without Windows: pywin32 is a stand-in, the functions of xlperf are real.

Reads JSON from standard input (calls: name and arguments; null is a missing one, ``{"range": rows}`` a Range of Excel),
writes JSON: what xlwings knows about each function, the VBA that it would write into a workbook, and what each call
returned. Of a table of plans (rows, functions) it writes what the cells beside it show, and how many plans each
evaluation had. ``test_xlwings.py`` starts it in a process of its own, because the stand-ins stay in ``sys.modules``.
"""

from __future__ import annotations

import ctypes
import datetime
import decimal
import io
import json
import re
import sys
from unittest.mock import MagicMock

MISSING = -2147352572
"""What COM passes for an argument that is left out."""

NOT_AVAILABLE = -2146826246
"""What COM passes for a cell that holds #N/A."""


def stand_in(name, **attributes):
    module = MagicMock(name=name)
    module.__spec__ = None
    for key, value in attributes.items():
        setattr(module, key, value)
    sys.modules[name] = module


def windows_xlwings():
    """Import xlwings as it is on Windows."""

    class ComError(Exception):
        pass

    class Time(datetime.datetime):
        pass

    ctypes.oledll = ctypes.windll = MagicMock(name="dll")
    ctypes.PyDLL = MagicMock(name="PyDLL")
    stand_in("pythoncom", __file__="pythoncom.dll")
    stand_in("pywintypes", com_error=ComError, TimeType=Time)
    names = "win32api win32con win32gui win32process win32timezone winerror win32com win32com.gen_py win32com.universal"
    client = "win32com.client win32com.client.dynamic"
    server = "server server.util server.policy server.dispatcher server.localserver"
    for name in [*names.split(), *client.split(), *(f"win32com.{part}" for part in server.split())]:
        stand_in(name)
    stand_in("xlwings._win32patch")
    sys.modules["win32com.client"].CDispatch = type("CDispatch", (), {})

    import xlwings
    import xlwings._xlwindows
    from xlwings.main import Engine

    xlwings.engines.add(Engine(impl=xlwings._xlwindows.engine))
    stand_in("xlwings.com_server", loop=None)
    import xlwings.udfs as udfs

    xlwings._xlwindows.is_range_instance = lambda value: isinstance(value, ComRange)
    xlwings.func, xlwings.arg, xlwings.ret = udfs.xlfunc, udfs.xlarg, udfs.xlret
    return udfs


class ComRange:
    """What xlwings reads of a Range of Excel: ``Value`` has Currency cells as Decimal and dates as datetime."""

    def __init__(self, rows):
        self.Value = cell(rows[0][0]) if len(rows) == len(rows[0]) == 1 else com(rows)
        self.Rows, self.Columns = (type("Count", (), {"Count": count})() for count in (len(rows), len(rows[0])))
        self.Row = self.Column = 1

    def __getattr__(self, name):
        return MagicMock(name=name)


SHEET = "'[my book.xlsx]plans'"


class Sheet:
    """An Excel with one sheet: its cells from A1 on; a table around them, or none."""

    reads = 0

    def __init__(self, rows, table):
        self.rows = [[cell(value) for value in row] for row in rows]
        self.UsedRange = Place(self, 1, 1, len(rows), len(rows[0]))
        self.table = type("ListObject", (), {"Range": self.UsedRange})() if table else None

    def Range(self, address):
        sheet, left, top, right, bottom = re.fullmatch(r"(.+)!\$([A-Z])\$(\d+):\$([A-Z])\$(\d+)", address).groups()
        assert sheet == SHEET
        first, last = (ord(letter) - ord("A") + 1 for letter in (left, right))
        return Place(self, int(top), first, int(bottom) - int(top) + 1, last - first + 1)


class Place:
    """A Range of Excel: where it stands on its sheet."""

    def __init__(self, sheet, row, column, rows=1, columns=1):
        self.Worksheet, self.Row, self.Column, self.ListObject = sheet, row, column, getattr(sheet, "table", None)
        self.Rows, self.Columns = (type("Count", (), {"Count": count})() for count in (rows, columns))

    @property
    def Value2(self):
        Sheet.reads += 1
        rows = self.Worksheet.rows[self.Row - 1 : self.Row - 1 + self.Rows.Count]
        return tuple(tuple(row[self.Column - 1 : self.Column - 1 + self.Columns.Count]) for row in rows)


def calls_of_a_table(module, table):
    """Calls of functions on each row of a table below its header, as cells make them, and where they stand."""
    sheet, (names, *rows) = Sheet(table["rows"], table["in_table"]), table["rows"]
    module.application = lambda: sheet
    for name in table["functions"]:
        for number, row in enumerate(rows, 2):
            last = chr(ord("A") + len(row) - 1)
            places = (f"{SHEET}!$A${line}:${last}${line}" for line in (number, 1))
            result = ("memory",) * (name == "XLPERF")
            yield name, (com([row]), *result, com(table["catalog"]), com([names]), *places)


def cell(value):
    """A cell as COM passes it."""
    if value == "#N/A":
        return NOT_AVAILABLE
    if not isinstance(value, dict):
        return value
    ((kind, text),) = value.items()
    return {"currency": decimal.Decimal, "date": datetime.datetime.fromisoformat, "empty": lambda _: None}[kind](text)


def com(value):
    """An argument as COM passes it: rows are tuples."""
    if value is None:
        return MISSING
    if isinstance(value, dict) and "range" in value:
        return ComRange(value["range"])
    return tuple(tuple(map(cell, row)) for row in value) if isinstance(value, list) else cell(value)


def counted():
    """Plans of each evaluation from now on."""
    from xlperf.addin.worker import Engine

    evaluate, found = Engine.evaluate, []

    def evaluation(self, rows, *arguments):
        found.append(len(rows))
        return evaluate(self, rows, *arguments)

    Engine.evaluate = evaluation
    return found


def main():
    udfs = windows_xlwings()
    before = set(sys.modules)  # xlwings itself looks for a licence
    from xlperf.addin import xlwings_functions as module

    about = {
        name: {
            "name": made.__xlfunc__["name"],
            "doc": made.__xlfunc__["ret"]["doc"],
            "category": made.__xlfunc__["category"],
            "volatile": made.__xlfunc__["volatile"],
            "arguments": [
                [one["name"], one["doc"], "optional" in one, one["vararg"]] for one in made.__xlfunc__["args"]
            ],
        }
        for name, made in vars(module).items()
        if hasattr(made, "__xlfunc__")
    }
    wrapper = io.StringIO()
    udfs.generate_vba_wrapper(module.__name__, module, wrapper, type("Book", (), {"Name": "xlperf.xlam"})())
    udfs.udf_modules[module.__name__] = {"module": module, "filename": module.__file__, "filetime": None}
    asked = json.load(sys.stdin)
    if isinstance(asked, dict):
        evaluated = counted()
        calls = calls_of_a_table(module, asked)
    else:
        calls = ((name, tuple(com(value) for value in arguments)) for name, arguments in asked)
    returned = [udfs.call_udf(module.__name__, name, arguments) for name, arguments in calls]
    if isinstance(asked, dict):
        json.dump({"returned": returned, "evaluated": evaluated, "reads": Sheet.reads}, sys.stdout)
        return
    loaded = sorted(name for name in set(sys.modules) - before if name.startswith(("xlwings.pro", "xlwings.server")))
    json.dump({"about": about, "wrapper": wrapper.getvalue(), "returned": returned, "not_free": loaded}, sys.stdout)


if __name__ == "__main__":
    main()
