"""The pages ``... numbers``: every input and result of a front sheet with its unit, its band and its meaning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openpyxl.styles import Alignment

from xlperf.base import resources
from xlperf.catalog.schema import Column, results_of, table_schema
from xlperf.workbook.front.formulas import Live
from xlperf.workbook.package import lines_of
from xlperf.workbook.style import column_widths, home, number_format, page_setup, put, title

if TYPE_CHECKING:
    from openpyxl import Workbook

TOP = 4
"""Row of the headers. [-]"""
COLOUR = "56B4E9"
_HEADERS = ("name", "value", "unit", "80 % band", "what it is")
_SENTENCES = ("answer", "reason")
"""Results that the subtitle shows."""


@dataclass(frozen=True)
class NumberPage:
    """Sheet and title of a page, and the first result of each of its sections, in the order of the results."""

    form: str
    sheet: str
    title: str
    sections: Mapping[str, str]


def number_pages() -> dict[str, NumberPage]:
    """The pages by form.

    >>> number_pages()["chip"].sections["peak_flop_rate_bf16"]
    'Machine'
    """
    pages = {}
    for row in resources.rows("workbook/number_pages.csv"):
        parts = [part.partition(" = ") for part in row["sections: words = first result"].split("; ")]
        sections = {first: words for words, _, first in parts}
        pages[row["form"]] = NumberPage(row["form"], row["sheet"], row["title"], sections)
    return pages


def number_page(
    workbook: Workbook, form: str, front: str, cells: Mapping[str, str], results: Mapping[str, str], live: Live
) -> None:
    """Add the page of a form.

    ``front``: name of its front sheet. ``cells``: references to the entries by column, ``results``: to the results.
    """
    page = number_pages()[form]
    sheet: Any = workbook.create_sheet(page.sheet)
    title(sheet, page.title)
    home(sheet, "E1", front)
    live.styled(sheet["A2"], f'=IFERROR({results["answer"]}&"","")', "xlperf subtitle")
    sheet["A2"].alignment = Alignment(horizontal="left", vertical="top", wrap_text=True)
    sheet.merge_cells("A2:E3")
    sheet.row_dimensions[2].height = sheet.row_dimensions[3].height = 16
    column_widths(sheet, 38, 24, 12, 22, 84)
    for place, words in enumerate(_HEADERS, start=1):
        put(sheet.cell(TOP, place), words, "xlperf header" if place != 2 else "xlperf header result")
    row = _section(sheet, TOP + 1, "Entries")
    for column in table_schema(form).columns:
        if column.name in cells:
            _line(sheet, row, column, live, f'=IF({cells[column.name]}&""="","blank",{cells[column.name]})')
            row += 1
    for words, column, band in _results(page, form):
        if words:
            row = _section(sheet, row, words)
        _line(
            sheet, row, column, live, f'=IFERROR(IF({results[column.name]}&""="","none",{results[column.name]}),"none")'
        )
        if band:
            low, high = (f'TEXT({results[name]},"{_digits(column)}")' for name in band)
            live.styled(sheet[f"D{row}"], f'=IFERROR({low}&" to "&{high},"")', "xlperf computed")
            sheet[f"D{row}"].alignment = Alignment(horizontal="right", vertical="center")
        row += 1
    sheet.freeze_panes = f"A{TOP + 1}"
    sheet.sheet_properties.tabColor = COLOUR
    page_setup(sheet, TOP, area=f"A1:E{row - 1}", landscape=False)


def _results(page: NumberPage, form: str) -> Iterator[tuple[str, Column, tuple[str, ...]]]:
    """Each result that has a line of its own: words of a section that begins, column, names of the ends of its band."""
    columns = [column for column in results_of(form).columns if column.name not in _SENTENCES]
    names = [column.name for column in columns]
    bands: dict[str, tuple[str, str]] = {}
    for place, name in enumerate(names):
        stem = name.removesuffix("_low")
        if stem != name:
            bands[stem if stem in names else names[place - 1]] = (name, f"{stem}_high")
    ends = {name for band in bands.values() for name in band}
    for column in columns:
        if column.name not in ends:
            yield page.sections.get(column.name, ""), column, bands.get(column.name, ())


def _section(sheet: Any, row: int, words: str) -> int:
    put(sheet[f"A{row}"], words, "xlperf heading")
    sheet.row_dimensions[row].height = 22
    return row + 1


def _line(sheet: Any, row: int, column: Column, live: Live, formula: str) -> None:
    put(sheet[f"A{row}"], column.header.partition(" (")[0], "xlperf key")
    shown = live.styled(sheet[f"B{row}"], formula, "xlperf computed", number_format(column))
    sheet[f"B{row}"].alignment = Alignment(horizontal="right", vertical="center", wrap_text=True)
    put(sheet[f"C{row}"], "" if column.unit == "-" else column.unit, "xlperf computed", wrapped=False)
    put(sheet[f"D{row}"], None, "xlperf computed")
    put(sheet[f"E{row}"], column.meaning, "xlperf reason", wrapped=True)
    lines = max(lines_of(column.meaning, 108.0), lines_of(shown, 24.0) if isinstance(shown, str) else 1)
    sheet.row_dimensions[row].height = 4.0 + 11.0 * lines


def _digits(column: Column) -> str:
    """Format for the ends of a band inside a text: no conditions, which LibreOffice does not take there."""
    return "#,##0" if column.unit == "-" else "#,##0.00"
