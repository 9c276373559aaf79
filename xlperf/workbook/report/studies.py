"""Workbooks and reports of studies: settings, plans, tables, findings and charts."""

from __future__ import annotations

import datetime
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from openpyxl.styles import Alignment
from openpyxl.utils import get_column_letter

from xlperf.base.arrays import added
from xlperf.studies import NAMES, study
from xlperf.studies.outcome import SHEET, Finding, SettingValue, Study, runs, setting_text, study_workbook
from xlperf.workbook import style
from xlperf.workbook.axes import axis_number, draw_axis, log_axis
from xlperf.workbook.charts import (
    SERIES,
    Cells,
    Points,
    colour,
    horizontal_bars,
    legend_height,
    over_labels,
    place_plot,
    scatter_chart,
)
from xlperf.workbook.data_sheets import table_of
from xlperf.workbook.package import data_rows, replace_file, save_workbook, table_name, workbook_bytes, write_table
from xlperf.workbook.report.book import first_rows, report_workbook
from xlperf.workbook.report.data import REPORT_NAME, Drawn, drawn_table, listed
from xlperf.workbook.report.summary import SHEETS, finding_rows, wide_text
from xlperf.workbook.style import (
    CM_PER_LETTER,
    chart_rows,
    colour_scale,
    column_widths,
    even_rows,
    fitted_format,
    heading,
    height_of,
    keep_together,
    link,
    new_book,
    open_on,
    page_setup,
    place_chart,
    put,
    shrunk,
    tab,
    title,
    width_of,
)

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.worksheet.worksheet import Worksheet

    from xlperf.studies.outcome import Chart, Inputs, Outcome, Study, StudySheet


_TOP = 4


def study_package(study: Study) -> bytes:
    """The workbook of a study: its question, its settings, its plans and the rows that it adds to the catalog."""
    book = new_book(study.title)
    sheet = book.create_sheet(SHEET)
    title(sheet, study.title, study.question)
    column_widths(sheet, *_LETTERS)
    what = "settings, plans and rows" if study.settings else "plans and rows (this study has no settings)"
    put(sheet["A3"], f"Change {what}, then: xlperf report FILE --study {study.name} -o report.xlsx", "xlperf note")
    sheet["A3"].alignment = Alignment(horizontal="left", wrap_text=False)
    if study.settings:
        _settings(sheet, study, {setting.name: setting.default for setting in study.settings}, _TOP)
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
    return workbook_bytes(book)


def write_study(path: str | Path, study: Study) -> None:
    """Write the workbook of a study; a file that exists is replaced whole."""
    replace_file(path, study_package(study))


def build_studies(*names: str) -> list[Path]:
    """Write the shipped workbooks of the studies named, or of all."""
    targets = [study_workbook(name) for name in names or NAMES]
    for target in targets:
        target.parent.mkdir(exist_ok=True)
        write_study(target, study(target.stem))
    return targets


def write_study_report(
    path: str | Path, study: Study, inputs: Inputs, outcome: Outcome, *, date: datetime.date
) -> None:
    """Write the report of a study: its question, tables and charts, then the sheets of every report."""
    plans, results = ([each[i] for each in outcome.plans] for i in (0, 1))
    workbook = report_workbook(outcome.catalog, plans, results, date=date, study=study.title, findings=outcome.findings)
    study_sheets(workbook, study, inputs, outcome)
    save_workbook(workbook, path, datetime.datetime(date.year, date.month, date.day))


_Drawn = tuple["Chart", "StudySheet", Drawn]
"""A chart, and its table in the study and on a sheet."""


def study_sheets(workbook: Workbook, study: Study, inputs: Inputs, outcome: Outcome) -> None:
    """Add the sheets of a study before the sheets of every report; the workbook opens on the first."""
    front = workbook.create_sheet("study", 0)
    ordered = sorted(outcome.sheets, key=lambda source: not source.charts)  # tables without a chart have to give way
    behind = [name for name in _BEHIND if name in workbook.sheetnames]
    shown = [*(source.name for source in ordered), *behind][: MOST_TABS - 1]
    drawn: list[_Drawn] = []
    machines = _colours_of_machines(outcome)
    for place, source in enumerate(outcome.sheets, start=1):
        table = _table_sheet(workbook.create_sheet(source.name, place), source, machines)
        drawn += [(chart, source, table) for chart in source.charts]
    firsts = [one for i, one in enumerate(drawn) if i == 0 or one[2] is not drawn[i - 1][2]]
    lead = (firsts if len(firsts) > 1 else drawn)[:_LEAD]
    high = max((_height(chart, source) for chart, source, _ in lead), default=0.0)
    size = _LEAD_SIZE[0], min(max(_LEAD_SIZE[1], high), _MOST_HIGH)
    charts = [study_chart(*_named(one, lead), size, machines) for one in lead]
    _study_sheet(front, study, inputs, outcome, shown, charts)
    workbook.remove(workbook["summary"])
    named = workbook.defined_names
    if REPORT_NAME in named:
        named[REPORT_NAME].attr_text = "study!$A$2"
    for sheet in workbook.worksheets[1:]:
        link(sheet["A3"], "study", "to the study")
        if sheet.title not in shown:
            sheet.sheet_state = "hidden"
    open_on(workbook, front)


def _colours_of_machines(outcome: Outcome) -> dict[str, str]:
    """A colour for each accelerator that a chart of a study names, the same in all of them."""
    known = set(outcome.catalog.tables["accelerators"].text("accelerator").tolist())
    series = [
        str(name)
        for source in outcome.sheets
        for chart in source.charts
        for name in (source.values(chart.by) if chart.by else chart.y)
    ]
    return dict(zip([name for name in dict.fromkeys(series) if name in known], SERIES, strict=False))


def _named(one: _Drawn, lead: Sequence[_Drawn]) -> _Drawn:
    """A chart with the name of its sheet in its title, for another sheet, beside charts of other sheets."""
    chart, source, table = one
    alone = len(source.charts) < 2 and [other.title for other, _, _ in lead].count(chart.title) == 1
    known = source.name.casefold() in chart.title.casefold() or alone
    words = f"{sheet_title(source.name)}: {chart.title[:1].lower()}{chart.title[1:]}"
    return (chart if known else replace(chart, title=words)), source, table


def sheet_title(name: str) -> str:
    """Title of a sheet of a study.

    >>> sheet_title("rl modes"), sheet_title("rent")
    ('RL modes', 'Rent')
    """
    words = " ".join("RL" if word == "rl" else word for word in name.split())
    return words[:1].upper() + words[1:]


MOST_TABS = 8
"""Visible sheets of a study's report at the most: its first sheet, its tables, and as many of the next. [-]"""
_BEHIND = ("assumptions", "training", "inference")
"""Sheets that are shown behind the tables of a study if there is room; all others are hidden."""
_LEAD, _LEAD_SIZE = 2, (14.8, 8.0)
"""Charts on the first sheet, and their width and height. [-, cm]"""
_OF_TEXT = 1.1
"""Letters of a text in the width of a digit, in the mean. [-]"""
_LETTERS = (34, 48, 12, 90)
"""Widths of the columns of the first sheet."""


def _study_sheet(
    sheet: Worksheet, study: Study, inputs: Inputs, outcome: Outcome, shown: Sequence[str], lead: Sequence[Any]
) -> None:
    """Question, finding, recommendation and the first charts; then the other findings, settings and sheets."""
    tab(sheet, style.TEAL)
    inside: Any = sheet
    title(sheet, study.title, str(inside.parent["summary"]["A2"].value or ""))
    column_widths(sheet, *_LETTERS)
    across, last = round(_OF_TEXT * sum(_LETTERS[1:])), len(_LETTERS)
    blocks = [(1, 2)]

    def began(first: int, end: int, whole: bool = True) -> int:
        blocks.append((first, end - 1 if whole else min(first + 2, end - 1)))
        return end + 1

    row = finding_rows(sheet, [Finding("Question", study.question), *outcome.short], 3, last, across)
    row = began(3, finding_rows(sheet, [Finding("What to do", study.advised(outcome.facts))], row, last, across))
    if lead:
        end = row + chart_rows(lead[0].height)
        even_rows(sheet, row, end)
        for place, chart in enumerate(lead):
            place_chart(sheet, chart, row, place * (_LEAD_SIZE[0] + _GAP))
        row = began(row, end)
    if rest := outcome.findings[len(outcome.short) :]:
        row = began(row, finding_rows(sheet, rest, heading(sheet, row, "Findings"), last, across), False)
    row = began(row, wide_text(sheet, heading(sheet, row, "Published"), 1, last, study.published, sum(_LETTERS)))
    if study.settings:
        row = began(row, _settings(sheet, study, inputs.settings, heading(sheet, row, "Settings")))
    printed = f"A1:{get_column_letter(last)}{row - 1}"  # links are of no use on paper
    row = heading(sheet, row, "Sheets of this study")
    for source in outcome.sheets:
        if source.name in shown:
            link(sheet.cell(row, 1), source.name, source.name)
            row = wide_text(sheet, row, 2, last, source.heading, across)
    for name in [name for name in shown if name in SHEETS]:
        link(sheet.cell(row, 1), name, name)
        row = wide_text(sheet, row, 2, last, SHEETS[name], across)
    hidden = listed(
        [made.title for made in inside.parent.worksheets if made.title not in ("study", "summary", *shown)], 12
    )
    row = wide_text(sheet, row, 2, last, f"Hidden sheets: {hidden}.", across) if hidden else row
    words = f"To run it again with other numbers: xlperf new STUDY.xlsx --study {study.name}, edit, then "
    words += f"xlperf report STUDY.xlsx --study {study.name} -o REPORT.xlsx."
    put(sheet.cell(row + 1, 1), words, "xlperf note")
    sheet.merge_cells(start_row=row + 1, start_column=1, end_row=row + 1, end_column=last)
    wide = sum(_LETTERS) * CM_PER_LETTER
    short = shrunk(wide, height_of(sheet, 1, blocks[-1][1])) >= _SMALLEST_TEXT
    if not short:
        keep_together(sheet, blocks, wide)
    sheet.freeze_panes = "A3"
    page_setup(sheet, area=printed, pages_high=int(short))


def _settings(sheet: Worksheet, study: Study, values: Mapping[str, SettingValue], row: int) -> int:
    """The settings of a study, from ``values``; the row below them."""
    for column, words in enumerate(("setting", "value", "unit", "meaning"), start=1):
        put(sheet.cell(row, column), words, "xlperf header")
    for setting in study.settings:
        row += 1
        value = setting_text(values[setting.name])
        put(sheet.cell(row, 1), setting.name.replace("_", " "), "xlperf key")
        put(sheet.cell(row, 2), value, "xlperf input", "General")
        put(sheet.cell(row, 3), setting.unit if setting.unit != "-" else None, "xlperf text")
        put(sheet.cell(row, 4), setting.meaning, "xlperf text")
        long = isinstance(value, str) and len(value) > _LETTERS[1] - 4
        sheet.cell(row, 2).alignment = Alignment(vertical="top", horizontal="left", indent=1, wrap_text=long)
        for column in (1, 3, 4):
            sheet.cell(row, column).alignment = Alignment(vertical="top", wrap_text=column == 4)
        if long:
            sheet.row_dimensions[row].height = 13.5 * -(-len(str(value)) // (_LETTERS[1] - 8)) + 4
    return row + 1


def _table_sheet(sheet: Worksheet, source: StudySheet, machines: Mapping[str, str]) -> Drawn:
    """Charts with their table below."""
    tab(sheet, style.TEAL)
    title(sheet, sheet_title(source.name), source.heading)
    link(sheet["A3"], "study", "to the study")
    deep = -(-len(source.charts) // 2)
    size = _size(source)
    each = chart_rows(size[1])
    top = _TOP + deep * each
    rows = [[None if isinstance(v, float) and not math.isfinite(v) else v for v in row] for row in source.rows]
    table = drawn_table(sheet, source.columns, rows, top, table_name(f"study {source.name}"), widths=True)
    key = sheet.column_dimensions["A"]
    key.width = max(key.width, 14.0)
    sheet.freeze_panes = f"A{_TOP}" if deep else f"B{top + 1}"  # no line across charts
    if source.shaded:
        _shade(sheet, source, source.shaded, top)
    for place, chart in enumerate(source.charts):
        down, across = divmod(place, 2)
        place_chart(
            sheet, study_chart(chart, source, table, size, machines), _TOP + down * each, across * (size[0] + _GAP)
        )
    if not deep:  # printed: the table, and its heading if that is wider
        right = _columns_across(sheet, min(_OF_HEADING * len(source.heading), SIZE[0] * 1.5))
        widest = get_column_letter(max(len(source.columns), right))
        page_setup(sheet, top, area=f"A1:{widest}{table.last}")
        first_rows(sheet)
        return table
    beside = size[0] + _GAP if source.charts[1:] else 0.0
    wide = max(CM_PER_LETTER * width_of(sheet, 1, len(source.columns)), beside + size[0])
    short = shrunk(wide, height_of(sheet, 1, top + len(rows))) >= _SMALLEST
    page_setup(sheet, None if short else top, pages_high=int(short))
    if not short:
        charts = [(_TOP + place * each, _TOP + (place + 1) * each - 1) for place in range(deep)]
        keep_together(sheet, [(1, 3), *charts, (top, top + min(len(rows), _FIRST_ROWS))], wide)
    return table


def _shade(sheet: Worksheet, source: StudySheet, names: Sequence[str], top: int) -> None:
    every = [column.name for column in source.columns]
    columns = sorted(every.index(name) + 1 for name in names)
    first, last = get_column_letter(columns[0]), get_column_letter(columns[-1])
    area = f"{first}{top + 1}:{last}{top + len(source.rows)}"
    colour_scale(sheet, area)
    code = fitted_format(source.columns[columns[0] - 1], [value for name in names for value in source.values(name)])
    for row in sheet[area]:
        for cell in row:
            cell.number_format = code


def _columns_across(sheet: Worksheet, width: float) -> int:
    """Columns from A on that something of a width covers. [cm]"""
    across, column = 0.0, 0
    while across < width + 0.5:
        column += 1
        across += (sheet.column_dimensions[get_column_letter(column)].width or 9.0) * 0.19
    return column


_MARKERS = ("circle", "square", "diamond", "triangle", "x", "plus", "star", "dash", "circle", "square")
SIZE = (22.0, 11.0)
_PAIR, _GAP = (15.8, 9.5), 0.6
"""Size of charts in pairs, which fit beside each other in a window and on a page, and the gap between them. [cm]"""
_MOST_HIGH = 16.0
"""Height of a chart at the most. [cm]"""
_BARS = 0.34
"""Height of the label of a bar. [cm]"""
_SMALLEST_TEXT = 0.68
"""How much smaller than life the first sheet of a study is printed on one page; smaller, it takes several. [-]"""
_SMALLEST = 0.55
"""How much smaller than life charts with their table are printed on one page; smaller, they take several. [-]"""
_FIRST_ROWS = 12
"""Rows of a table below its headers on one page. [-]"""
_OF_HEADING = 0.19
"""Width of a letter of a heading. [cm]"""


def _size(source: StudySheet) -> tuple[float, float]:
    """Width and height of the charts of a sheet: as high as their labels need."""
    width, height = _PAIR if source.charts[1:] else SIZE
    needed = [_height(chart, source) for chart in source.charts]
    return width, min(max(height, *needed), _MOST_HIGH) if needed else height


def _height(chart: Chart, source: StudySheet) -> float:
    """Height of a chart that its labels need; 0 for charts without a label for each row. [cm]"""
    first, last = chart.rows or (0, len(source.rows))
    each = 1.0 if chart.stacked else max(1.0, 0.4 * len(chart.y))
    return 4.2 + _BARS * (last - first) * each if chart.kind == "bars" else 0.0


def study_chart(
    chart: Chart,
    source: StudySheet,
    table: Drawn,
    size: tuple[float, float] = SIZE,
    machines: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """A native chart of some columns of a table; ``machines``: colours of series that keep theirs in all charts."""
    rows = chart.rows or (0, len(source.rows))
    shades = _shades(chart.y, machines)
    every = [name for name in chart.y if any(source.values(name)[slice(*rows)])]  # no legend for what is nothing
    if every and len(every) < len(chart.y):
        chart = replace(chart, y=every)
    along, drawn_values = table.cells(chart.x, rows), [value for name in chart.y for value in source.values(name)]
    number = axis_number(_reached(source, chart, drawn_values))
    x_title, y_title = (
        f"{words}, logarithmic axis" if is_log else words
        for words, is_log in ((chart.x_title, chart.log_x), (chart.y_title, chart.log_y))
    )
    parts = [table.part(name, shades[name], rows) for name in chart.y]

    def marked(position: int, named: Cells, x: Cells, y: Cells, shade: str) -> Points:
        """A series in its colour, with the marker of its position."""
        marker, width = _MARKERS[position % len(_MARKERS)], 1.75 if chart.kind == "lines" else 0.0
        strokes = marker in ("x", "plus", "star")
        return Points(named, x, y, shade, marker, size=6, strokes=strokes, width=width)

    points = [marked(place, part.header, along, part.values, part.colour) for place, part in enumerate(parts)]
    if chart.kind == "bars":
        look = {"stacked": chart.stacked, "is_linear": not chart.log_y}
        drawn = horizontal_bars(chart.title, along, parts, y_title, number, size, least=None, **look)
    elif chart.kind == "columns" or (chart.kind == "lines" and any(isinstance(value, str) for value in along.values)):
        series = parts if chart.kind == "columns" else points
        drawn = over_labels(chart.title, series, along, x_title, y_title, number, chart.stacked, size)
    else:
        if chart.by:
            spans, names = runs(source.values(chart.by)), source.values(chart.by)
            shades = _shades(dict.fromkeys(str(names[start]) for start, _ in spans), machines)
            points = [
                marked(
                    place,
                    table.cells(chart.by, (span[0], span[0] + 1)),
                    table.cells(chart.x, span),
                    table.cells(chart.y[0], span),
                    shades[str(names[span[0]])],
                )
                for place, span in enumerate(spans)
            ]
        drawn = scatter_chart(points, chart.title, size)
        draw_axis(drawn.x_axis, x_title, axis_number(along.values), lines=True)
        draw_axis(drawn.y_axis, y_title, number, lines=True)
        if chart.log_x:
            log_axis(drawn.x_axis, along.values)
        drawn.x_axis.crosses = drawn.y_axis.crosses = "min"
        drawn_values = [value for part in parts for value in part.values.values]
        place_plot(drawn, 2.2, 1.2, 0.6, 1.7 + legend_height(drawn))
    if chart.log_y:
        log_axis(drawn.y_axis, drawn_values)
    return drawn


def _shades(names: Collection[str], machines: Mapping[str, str]) -> dict[str, str]:
    """Colours of series: fixed for parts of time, memory and machines, free colours for other series."""
    taken = set(machines.values()) if any(name in machines for name in names) else set()
    free = [shade for shade in SERIES if shade not in taken] or list(SERIES)
    own = {
        name: machines.get(name) or (colour(name, place) if name.startswith(("time_", "memory_")) else "")
        for place, name in enumerate(names)
    }
    others = [name for name, shade in own.items() if not shade]
    return own | {name: free[place % len(free)] for place, name in enumerate(others)}


def _reached(source: StudySheet, chart: Chart, values: Sequence[Any]) -> Sequence[Any]:
    """Values that an axis has to reach: sums of stacked bars."""
    if not chart.stacked:
        return values
    columns = [source.values(name) for name in chart.y]
    return [added(v for v in row if isinstance(v, int | float)) for row in zip(*columns, strict=True)]
