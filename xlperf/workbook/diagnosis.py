"""A diagnosis as a workbook: ranked explanations, and a waterfall from the prediction to the measurement."""

from __future__ import annotations

from collections.abc import Mapping

from openpyxl import Workbook

from xlperf.explore.diagnose import Diagnosis
from xlperf.workbook.package import save_workbook
from xlperf.workbook.result_front import add_front
from xlperf.workbook.style import add_styles, put
from xlperf.workbook.tables import data_rows, write_table


def write_diagnosis(path: str, found: Diagnosis, command: str, asked: Mapping[str, str]) -> None:
    """Write the sheets ``diagnosis`` and ``waterfall``, and what was asked with both charts in front.

    ``path``: workbook; replaced whole. ``found``: what was measured and what would explain it. ``command``: what was
    run. ``asked``: what it was given, by name.
    """
    book = Workbook()
    book.remove(book.worksheets[0])
    add_styles(book)
    sheet = book.create_sheet("diagnosis")
    said = [*(one.words for one in found.readings), *(words for words in (found.unexplained, found.telling) if words)]
    top = len(said) + 2
    for number, words in enumerate(said, 1):
        put(sheet.cell(number, 1), words, wrapped=False)
    tables = {}
    for table, name, first in ((found.steps, "waterfall", 1), (found.explanations, "diagnosis", top)):
        if not len(table):
            continue
        columns = table.schema.columns
        tables[name] = columns, data_rows(table, columns)
        at = sheet if name == "diagnosis" else book.create_sheet(name)
        write_table(at, columns, tables[name][1], f"A{first}", table.kind, fitted=name == "waterfall")
        if name == "waterfall":
            for row in at.iter_rows(min_row=2, min_col=3):
                for cell in row:
                    cell.number_format = "#,##0.00##"
    if len(found.explanations):
        said.append(f"Most likely: {found.explanations['cause'][0]}. {found.explanations['advice'][0]}")
    add_front(book, command, asked, tables, said=said)
    save_workbook(book, path)
