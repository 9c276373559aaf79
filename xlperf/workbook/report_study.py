"""The sheets of a study in a report: its question and settings, its tables and charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from openpyxl.formatting.rule import ColorScaleRule
from openpyxl.styles import Font
from openpyxl.utils import get_column_letter

from xlperf.studies.outcome import setting_text
from xlperf.workbook import style
from xlperf.workbook.study_charts import SIZE, study_chart
from xlperf.workbook.style import link, page_setup, put, table_name, title, write_table

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.worksheet.worksheet import Worksheet

    from xlperf.studies.outcome import Finding, Inputs, Outcome, Study, StudySheet

_TOP = 4
_ROW = 15.0  # height of a row without one of its own, in points
_TONES = {"good": style.GOOD_INK, "plain": style.NAVY, "warning": style.WARN_INK, "bad": style.BAD_INK}


def study_sheets(workbook: Workbook, study: Study, inputs: Inputs, outcome: Outcome) -> None:
    """Add the sheets of a study behind the summary.

    Parameters
    ----------
    workbook : openpyxl.Workbook
        With our styles and a sheet ``summary``; changed in place.
    study : Study
    inputs : Inputs
        What it started from.
    outcome : Outcome
        What it found.
    """
    _study_sheet(workbook.create_sheet("study", 1), study, inputs, outcome)
    for place, source in enumerate(outcome.sheets, start=2):
        _table_sheet(workbook.create_sheet(source.name, place), source)


def _study_sheet(sheet: Worksheet, study: Study, inputs: Inputs, outcome: Outcome) -> None:
    colour: Any = sheet.sheet_properties
    colour.tabColor = style.TEAL
    title(sheet, study.title, study.question)
    link(sheet["A3"], "summary", "to the summary")
    for letter, width in zip("ABCD", (30, 52, 12, 90), strict=True):
        sheet.column_dimensions[letter].width = width
    row = _heading(sheet, _TOP, "Findings")
    row = finding_rows(sheet, outcome.findings, row, 4, 150)
    row = _heading(sheet, row + 1, "Published")
    put(sheet.cell(row, 1), study.published, "xlperf text")
    sheet.merge_cells(start_row=row, start_column=1, end_row=row, end_column=4)
    sheet.cell(row, 1).alignment = style_wrap()
    sheet.row_dimensions[row].height = 13.5 * -(-len(study.published) // 160) + 4
    row += 2
    if study.settings:
        row = _heading(sheet, row, "Settings")
        for column, words in enumerate(("setting", "value", "unit", "meaning"), start=1):
            put(sheet.cell(row, column), words, "xlperf header")
        for setting in study.settings:
            row += 1
            value = setting_text(inputs.settings[setting.name])
            put(sheet.cell(row, 1), setting.name.replace("_", " "), "xlperf key")
            put(sheet.cell(row, 2), value, "xlperf input", "General")
            put(sheet.cell(row, 3), setting.unit if setting.unit != "-" else None, "xlperf text")
            put(sheet.cell(row, 4), setting.meaning, "xlperf text")
        row += 2
    row = _heading(sheet, row, "Sheets of this study")
    for source in outcome.sheets:
        link(sheet.cell(row, 1), source.name, source.name)
        put(sheet.cell(row, 2), source.heading, "xlperf text")
        sheet.merge_cells(start_row=row, start_column=2, end_row=row, end_column=4)
        sheet.cell(row, 2).alignment = style_wrap()
        sheet.row_dimensions[row].height = 13.5 * -(-len(source.heading) // 125) + 4
        row += 1
    words = f"To run it again with other numbers: xlperf new STUDY.xlsx --study {study.name}, edit, then "
    words += f"xlperf report STUDY.xlsx --study {study.name} -o REPORT.xlsx."
    put(sheet.cell(row + 1, 1), words, "xlperf note")
    sheet.merge_cells(start_row=row + 1, start_column=1, end_row=row + 1, end_column=4)
    page_setup(sheet)


def style_wrap() -> Any:
    """Alignment of words in merged cells."""
    from openpyxl.styles import Alignment

    return Alignment(horizontal="left", vertical="top", wrap_text=True)


def finding_rows(sheet: Worksheet, findings: Sequence[Finding], row: int, last: int, across: int) -> int:
    """Write findings, one in a row; the row below them.

    Parameters
    ----------
    sheet : Worksheet
        Changed in place.
    findings : sequence of Finding
    row : int
        First row.
    last : int
        Last column that the words cover.
    across : int
        Characters that fit in a line.
    """
    for finding in findings:
        tag: Any = put(sheet.cell(row, 1), finding.tag, "xlperf text")
        tag.font = Font(name=style.FONT, size=10, bold=True, color=_TONES[finding.tone])
        put(sheet.cell(row, 2), finding.words, "xlperf text")
        sheet.merge_cells(start_row=row, start_column=2, end_row=row, end_column=last)
        sheet.cell(row, 2).alignment = style_wrap()
        sheet.row_dimensions[row].height = 13.5 * -(-len(finding.words) // across) + 4
        row += 1
    return row


def _heading(sheet: Worksheet, row: int, words: str) -> int:
    put(sheet.cell(row, 1), words, "xlperf heading")
    sheet.row_dimensions[row].height = 24
    return row + 1


def _table_sheet(sheet: Worksheet, source: StudySheet) -> None:
    colour: Any = sheet.sheet_properties
    colour.tabColor = style.TEAL
    title(sheet, source.name.capitalize(), source.heading)
    link(sheet["A3"], "study", "to the study")
    deep = -(-len(source.charts) // 2)
    each = math.ceil(SIZE[1] / 2.54 * 72 / _ROW) + 1
    top = _TOP + deep * each
    rows = [[None if isinstance(v, float) and not math.isfinite(v) else v for v in row] for row in source.rows]
    area = write_table(sheet, source.columns, rows, f"A{top}", table_name(f"study {source.name}"), fitted=True)
    sheet.freeze_panes = f"B{_TOP}" if deep else f"B{top + 1}"
    if source.shaded:
        _shade(sheet, source, source.shaded, top)
    left = _anchor(sheet, SIZE[0])
    for place, chart in enumerate(source.charts):
        down, across = divmod(place, 2)
        drawn = study_chart(chart, source, sheet, top)
        sheet.add_chart(drawn, f"{'A' if across == 0 else left}{_TOP + down * each}")
    page_setup(sheet, None if deep else top, area=None if deep else area)


def _shade(sheet: Worksheet, source: StudySheet, names: Sequence[str], top: int) -> None:
    every = [column.name for column in source.columns]
    columns = sorted(every.index(name) + 1 for name in names)
    first, last = get_column_letter(columns[0]), get_column_letter(columns[-1])
    make: Any = ColorScaleRule
    rule = make(
        start_type="min",
        start_color="FFF7FAFC",
        mid_type="percentile",
        mid_value=50,
        mid_color="FFB9D3EE",
        end_type="max",
        end_color="FF2F6DB5",
    )
    sheet.conditional_formatting.add(f"{first}{top + 1}:{last}{top + len(source.rows)}", rule)


def _anchor(sheet: Worksheet, width: float) -> str:
    """Letter of the first column that starts right of a chart at column A of a width. [cm]"""
    across, column = 0.0, 1
    while across < width + 0.5:
        across += (sheet.column_dimensions[get_column_letter(column)].width or 9.0) * 0.19
        column += 1
    return get_column_letter(column)
