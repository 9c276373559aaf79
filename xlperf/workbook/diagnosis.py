"""A diagnosis as a workbook: ranked explanations, and a waterfall from the prediction to the measurement."""

from __future__ import annotations

from openpyxl import Workbook

from xlperf.explore.diagnose import Diagnosis
from xlperf.workbook.charts import Cells, waterfall
from xlperf.workbook.package import save_workbook
from xlperf.workbook.style import add_styles, place_chart, put
from xlperf.workbook.tables import data_rows, write_table

_BELOW = "below"
_TOTAL, _SLOWER, _FASTER, _REST = "1B3A57", "C0392B", "2E9E8F", "8D99A6"


def write_diagnosis(path: str, found: Diagnosis) -> None:
    """Write the sheets ``diagnosis`` and ``waterfall``.

    Parameters
    ----------
    path : str
        Workbook; replaced whole.
    found : Diagnosis
        What was measured and what would explain it.
    """
    book = Workbook()
    book.remove(book.worksheets[0])
    add_styles(book)
    sheet = book.create_sheet("diagnosis")
    said = [*(one.words for one in found.readings), *(words for words in (found.unexplained, found.telling) if words)]
    top = len(said) + 2
    for number, words in enumerate(said, 1):
        put(sheet.cell(number, 1), words)
    table = found.explanations
    write_table(sheet, table.schema.columns, data_rows(table, table.schema.columns), f"A{top}", "diagnosis")
    if len(found.steps):
        _waterfall_sheet(book, found)
    save_workbook(book, path)


def _waterfall_sheet(book: Workbook, found: Diagnosis) -> None:
    """Steps as a table, with where each bar starts, and their chart."""
    sheet = book.create_sheet("waterfall")
    steps = found.steps
    columns = steps.schema.columns
    rows = data_rows(steps, columns)
    words, difference, value = (steps[name].tolist() for name in ("step", "difference", "value"))
    last = len(words) - 1
    write_table(sheet, columns, rows, "A1", "diagnosis_steps", fitted=True)
    left = len(columns) + 2
    for offset, name in enumerate((_BELOW, "height")):
        put(sheet.cell(1, left + offset), name, "xlperf header result")
    for row, (change, end) in enumerate(zip(difference, value, strict=True)):
        whole = row in (0, last)
        put(sheet.cell(row + 2, left), 0.0 if whole else min(end, end - change))
        put(sheet.cell(row + 2, left + 1), end if whole else abs(change))
    colours = [
        _TOTAL if row in (0, last) else _REST if row == last - 1 else _SLOWER if change > 0.0 else _FASTER
        for row, change in enumerate(difference)
    ]
    at = [one.name for one in columns].index("step") + 1
    cells = [(Cells(sheet, n, 1, 1), Cells(sheet, n, 2, last + 2)) for n in (at, left, left + 1)]
    chart = waterfall(
        "From the prediction to the measurement",
        cells[0][1],
        cells[1],
        cells[2],
        colours,
        axis_title=str(steps["result"][0]),
        number="General",
        size=(18.0, 11.0),
    )
    place_chart(sheet, chart, last + 5, 0.0)
