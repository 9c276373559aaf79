"""The sheet ``functions``: every worksheet function, what it returns, how it is called, and an example that works."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from openpyxl.utils import get_column_letter
from openpyxl.worksheet.table import Table as NativeTable

from xlperf.addin.functions import Argument, Function, example_ranges, functions
from xlperf.workbook.style import column_widths, page_setup, put, title

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.worksheet.worksheet import Worksheet

TOP = 5
_RANGES = 7
"""Column where the ranges stand that the examples read. [-]"""
_WORDS = (
    "From the same list that the function wizards show. An example is a text: copy it into a blank cell of this sheet. "
    "Where it says block, mark the cells below and to the right too and enter it with Ctrl+Shift+Enter; Excel spills. "
    "Where your program parts arguments with semicolons, write ; for the comma."
)


def functions_sheet(workbook: Workbook) -> Worksheet:
    """Add the sheet ``functions``, made from the registry."""
    sheet: Worksheet = workbook.create_sheet("functions")
    title(sheet, "Functions", "What cells can ask: arguments, units, and an example that works.")
    put(sheet["A3"], _WORDS, "xlperf note")
    sheet.merge_cells("A3:E3")
    sheet.row_dimensions[3].height = 26
    places, below = _ranges(sheet)
    rows = [
        (one.name, one.doc, one.call, f"={one.example(places)}", "block" if one.spills else "cell")
        for one in functions().values()
    ]
    end = _table(sheet, TOP, ("function", "what it returns [unit]", "call", "example", "returns"), rows, "functions")
    meanings = [(one.name, one.doc.rstrip("."), _known_in(one), "yes" if one.optional else "") for one in _arguments()]
    first = max(end, below) + 3
    put(sheet.cell(first - 1, 1), "Arguments", "xlperf heading")
    end = _table(sheet, first, ("argument", "what it is", "of", "may be left out"), meanings, "arguments")
    column_widths(sheet, 38, 74, 52, 58, 10, 3, 24, 20, 8, 22, 14)
    sheet.freeze_panes = f"B{TOP + 1}"
    page_setup(sheet, TOP, area=f"A{TOP}:E{end - 1}", key_columns="A:A")
    return sheet


def _table(sheet: Worksheet, top: int, headers: tuple[str, ...], rows: Sequence[tuple[str, ...]], name: str) -> int:
    """Write a native table with wrapped text; the row below it."""
    for column, words in enumerate(headers, start=1):
        put(sheet.cell(top, column), words, "xlperf header")
    for number, row in enumerate(rows, start=top + 1):
        for column, words in enumerate(row, start=1):
            put(sheet.cell(number, column), words, "xlperf key" if column == 1 else "xlperf reason", wrapped=True)
        lines = max(-(-len(words) // width) for words, width in zip(row[1:4], (80, 56, 62), strict=False))
        sheet.row_dimensions[number].height = 4.0 + 12.5 * lines
    area = f"A{top}:{get_column_letter(len(headers))}{top + len(rows)}"
    sheet.add_table(NativeTable(displayName=f"reference_{name}", ref=area))
    return top + len(rows) + 1


def _ranges(sheet: Worksheet) -> tuple[dict[str, str], int]:
    """Write the ranges of the examples: where each of them is, and the row below them."""
    places, row = {}, TOP
    for name, cells in example_ranges().items():
        put(sheet.cell(row, _RANGES), f"Example: {name}", "xlperf heading")
        for number, values in enumerate(cells, start=row + 1):
            for column, value in enumerate(values, start=_RANGES):
                put(sheet.cell(number, column), value, "xlperf input" if column > _RANGES else "xlperf key")
        last = get_column_letter(_RANGES + max(map(len, cells)) - 1)
        places[name] = f"{get_column_letter(_RANGES)}{row + 1}:{last}{row + len(cells)}"
        row += len(cells) + 2
    return places, row


def _arguments() -> list[Argument]:
    """Arguments of all functions, each meaning once."""
    return list({(one.name, one.doc): one for each in functions().values() for one in each.arguments}.values())


def _known_in(argument: Argument) -> str:
    """Functions that an argument belongs to, in words."""
    found: list[Function] = [one for one in functions().values() if argument in one.arguments]
    return "many functions" if len(found) > 5 else ", ".join(one.name for one in found)
