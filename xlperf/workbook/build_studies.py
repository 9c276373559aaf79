"""``python -m xlperf.workbook.build_studies``: the workbooks of the studies, from the CSV files of xlperf.studies."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from xlperf.studies import NAMES, study
from xlperf.studies.inputs import SHEET, study_workbook
from xlperf.studies.outcome import Study, setting_text
from xlperf.workbook.build import table_of
from xlperf.workbook.save import replace_file, workbook_bytes
from xlperf.workbook.style import add_styles, data_rows, page_setup, put, title, write_table

_TOP = 4


def study_package(study: Study) -> bytes:
    """The workbook of a study: its question, its settings, its plans and the rows that it adds to the catalog.

    Parameters
    ----------
    study : Study

    Returns
    -------
    bytes
        An .xlsx file; the same study gives the same bytes.
    """
    from openpyxl import Workbook

    book = Workbook()
    book.remove(book.worksheets[0])
    add_styles(book)
    sheet = book.create_sheet(SHEET)
    title(sheet, study.title, study.question)
    for letter, width in zip("ABCD", (34, 44, 12, 100), strict=True):
        sheet.column_dimensions[letter].width = width
    for column, words in enumerate(("setting", "value", "unit", "meaning"), start=1):
        put(sheet.cell(_TOP, column), words, "xlperf header")
    for row, setting in enumerate(study.settings, start=_TOP + 1):
        entries = (setting.name.replace("_", " "), setting_text(setting.default), setting.unit, setting.meaning)
        for column, (value, look) in enumerate(
            zip(entries, ("xlperf key", "xlperf input", "xlperf text", "xlperf text"), strict=True), start=1
        ):
            put(sheet.cell(row, column), value, look, "General" if column == 2 else None)
    page_setup(sheet)
    for kind, rows in study.rows().items():
        table = table_of(kind, rows)
        used = [
            column
            for column in table.schema.columns
            if column.name in table and any(row.get(column.name) is not None for row in rows)
        ]
        sheet = book.create_sheet(kind)
        title(sheet, kind.replace("_", " ").capitalize(), f"Of the study {study.name}; columns may be added.")
        write_table(sheet, used, data_rows(table, used), f"A{_TOP}", kind)
        page_setup(sheet, _TOP)
    book.properties.creator = "xlperf"
    book.properties.title = study.title
    return workbook_bytes(book)


def write_study(path: str | Path, study: Study) -> None:
    """Write the workbook of a study; a file that exists is replaced whole.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    replace_file(path, study_package(study))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the workbooks of the studies named, or of all."""
    for name in list(sys.argv[1:] if arguments is None else arguments) or NAMES:
        target = study_workbook(name)
        target.parent.mkdir(exist_ok=True)
        write_study(target, study(name))
        sys.stdout.write(f"{target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
