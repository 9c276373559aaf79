"""The report workbook: plans, results, parts of time and memory, assumptions, and what of each sheet is printed."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openpyxl import Workbook, load_workbook
from openpyxl.formatting.rule import FormulaRule
from openpyxl.styles import Font, PatternFill
from openpyxl.utils import get_column_letter
from openpyxl.workbook.defined_name import DefinedName

import xlperf
from xlperf.base import resources
from xlperf.base.errors import Fault, InputError
from xlperf.catalog.schema import CATALOG_TABLES
from xlperf.catalog.table import Table
from xlperf.workbook import style
from xlperf.workbook.data_sheets import DATA_SHEETS, fold
from xlperf.workbook.package import data_rows, save_workbook, write_table
from xlperf.workbook.report import data
from xlperf.workbook.report.cost import accelerator_cost_sheet, bridge_sheet, token_cost_sheet
from xlperf.workbook.report.limits import (
    Explain,
    Limits,
    curves,
    leading_plans,
    limits_sheet,
    memory_sheet,
    roofline_sheet,
    time_sheet,
)
from xlperf.workbook.report.result_charts import add_front
from xlperf.workbook.report.summary import findings, summary_sheet
from xlperf.workbook.style import CM_PER_LETTER, add_styles, chart_rows, new_book, page_setup, put, width_of

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.worksheet.worksheet import Worksheet

    from xlperf.catalog.catalog import Catalog
    from xlperf.explore.diagnose import Diagnosis
    from xlperf.studies.outcome import Finding


_TOP = 4


def write_report(
    path: str | Path,
    catalog: Catalog,
    plans: Sequence[Table],
    results: Sequence[Table],
    *,
    date: datetime.date,
    **options: Any,
) -> None:
    """Write a report workbook with the options of :func:`report_workbook`; the same arguments give the same bytes."""
    workbook = report_workbook(catalog, plans, results, date=date, **options)
    save_workbook(workbook, path, datetime.datetime(date.year, date.month, date.day))


def answers(catalog: Catalog, plans: Sequence[Table], results: Sequence[Table]) -> list[Finding]:
    """Answers of a report's summary: fastest, cheapest, tightest, doubtful, each with its plan."""
    groups = tuple(data.Plans(plan, result, catalog) for plan, result in zip(plans, results, strict=True) if len(plan))
    return findings(data.Report(catalog, groups, (), datetime.date.min, "", xlperf.__version__))


def report_workbook(
    catalog: Catalog,
    plans: Sequence[Table],
    results: Sequence[Table],
    *,
    date: datetime.date,
    study: str = "",
    explain: Explain | None = None,
    limits: Limits | None = None,
    findings: Sequence[Finding] = (),
) -> Workbook:
    """A report in memory: ``results`` has a table for each of the plans."""
    groups = tuple(data.Plans(plan, result, catalog) for plan, result in zip(plans, results, strict=True) if len(plan))
    if not groups and not findings:
        raise InputError(Fault(catalog.origin, "holds no plans; fill the sheets training or inference"))
    operators = () if findings else _operators(catalog, groups, explain)
    report = data.Report(catalog, groups, operators, date, study, xlperf.__version__, tuple(findings))
    workbook = load_workbook(resources.template("report.xlsx"))
    add_styles(workbook)
    _properties(workbook, report)
    filled: dict[str, _Fill | None] = {group.kind: partial(_plan_sheet, group=group) for group in groups}
    filled["assumptions"] = partial(data.assumptions_sheet, report=report)
    if not findings:
        filled |= _result_sheets(report, limits)
        filled["reasons"] = partial(data.reasons_sheet, groups=groups)
    for kind in CATALOG_TABLES:
        filled[kind] = (
            partial(data.catalog_sheet, report=report, kind=kind) if len(data.used_rows(report, kind)) else None
        )
    for name in workbook.sheetnames:
        fill = filled.get(name)
        if name == "summary":
            continue
        if fill is None:
            workbook.remove(workbook[name])
        else:
            fill(workbook[name])
    if not findings:  # a study has a first sheet of its own
        summary_sheet(workbook["summary"], report)
    workbook.defined_names[data.REPORT_NAME] = DefinedName(data.REPORT_NAME, attr_text="summary!$A$2")
    set_paper(workbook, brief=bool(findings))
    workbook.active = 0
    return workbook


def _operators(
    catalog: Catalog, groups: Sequence[data.Plans], explain: Explain | None
) -> tuple[tuple[data.Plans, int, Table], ...]:
    if explain is None:
        from xlperf.engine import explain as explained

        explain = explained
    return tuple((group, row, explain(group.plans, catalog, row)) for group in groups for row in leading_plans(group))


def _properties(workbook: Workbook, report: data.Report) -> None:
    sheet = workbook["summary"]
    name = f"xlperf report: {report.study}" if report.study else "xlperf report"
    shown = f"Plans of the study: {report.study}" if report.found else name
    kinds: Counter[str] = Counter()
    for group in report.groups:
        kinds[group.kind] += len(group)
    counts = " and ".join(data.plural(count, f"{kind} plan") for kind, count in kinds.items())
    style.title(
        sheet,
        shown,
        f"{counts}  \N{MIDDLE DOT}  {report.date.isoformat()}  \N{MIDDLE DOT}  catalog {report.catalog.origin} "
        f"({report.catalog.fingerprint})  \N{MIDDLE DOT}  xlperf {report.version}",
    )
    properties = workbook.properties
    properties.title = name
    properties.subject = "Performance, memory and cost of language models"
    properties.creator = f"xlperf {report.version}"
    properties.lastModifiedBy = properties.creator
    properties.keywords = f"catalog {report.catalog.fingerprint}"


_Fill = Callable[["Worksheet"], None]  # fills a sheet of the template


def _result_sheets(report: data.Report, limits: Limits | None) -> dict[str, _Fill | None]:
    """Sheets of time, memory, limits and cost; None for sheets without content."""
    filled: dict[str, _Fill | None] = {}
    for name, time in (("training", "step time"), ("inference", "inference time")):
        group = report.group(name)
        timed = group is not None and len(group.where(data.GOOD, data.TOO_LARGE)) and group.time_parts()
        filled[time] = partial(time_sheet, group=group) if timed and group is not None else None
    memory = [group for group in report.groups if group.memory_parts()]
    drawn = curves(report.group("inference"), report.catalog, limits)
    groups, designs = data.owned_groups(report), data.used_designs(report)
    return filled | {
        "limits": partial(limits_sheet, drawn=drawn) if drawn else None,
        "memory": partial(memory_sheet, groups=memory) if memory else None,
        "roofline": partial(roofline_sheet, report=report) if report.operators else None,
        "token cost": partial(token_cost_sheet, groups=groups) if groups else None,
        "cost bridge": partial(bridge_sheet, catalog=report.catalog, groups=groups) if groups else None,
        "accelerator cost": partial(accelerator_cost_sheet, report=report, designs=designs) if len(designs) else None,
    }


def _plan_sheet(sheet: Worksheet, group: data.Plans) -> None:
    """Every used plan column, folded except the most important ones, then every result."""
    inputs = group.inputs
    if group.plans.schema.key not in inputs:
        inputs = [group.plans.schema.key, *inputs]
    in_sight = [column for name in DATA_SHEETS[group.kind].in_sight for column in inputs if column.name == name]
    inputs = [*(column for column in inputs if column not in in_sight), *in_sight]
    first = DATA_SHEETS[group.kind].results
    outputs = sorted(
        (column for column in group.outputs if column.name != "reason"),
        key=lambda column: first.index(column.name) if column.name in first else len(first),
    )
    reason = [column for column in group.outputs if column.name == "reason"]
    rows = [
        [*plan, *result]
        for plan, result in zip(
            data_rows(group.plans, inputs), data_rows(group.results, [*outputs, *reason]), strict=True
        )
    ]
    for row, name in zip(rows, group.names, strict=True):
        row[0] = name
    columns = [*inputs, *outputs, *reason]
    folded = [column.name for column in inputs[1 : len(inputs) - len(in_sight)]]
    one_line = [*folded, "trust_reason"]
    area = write_table(sheet, columns, rows, f"A{_TOP}", group.kind, fitted=True, one_line=one_line)
    letters = {column.name: get_column_letter(i) for i, column in enumerate(columns, start=1)}
    fold(sheet, columns, [column.name for column in in_sight])
    sheet.sheet_view.zoomScale = 90
    body = area.replace(f"A{_TOP}:", f"A{_TOP + 1}:")
    computed = letters[group.outputs[0].name]
    if "fits" in letters:
        fits = f"${letters['fits']}{_TOP + 1}"
        _shade(sheet, body, f"AND(ISLOGICAL({fits}),NOT({fits}))", style.WARN_FILL, style.WARN_INK)
    _shade(sheet, body, f"ISBLANK(${computed}{_TOP + 1})", style.BAD_FILL, style.BAD_INK)
    shown_columns = [sheet.column_dimensions[letter] for letter in letters.values()]
    wide = sum(column.width for column in shown_columns if not column.hidden)
    pages = max(1, round(wide / 175))
    page_setup(sheet, _TOP, area=area, pages_wide=pages, key_columns="A:A", heading=f"{group.kind.capitalize()} plans")


def _shade(sheet: Worksheet, area: str, formula: str, fill: str, ink: str) -> None:
    shade: Any = PatternFill(bgColor=f"FF{fill}", fill_type="solid")
    make: Any = FormulaRule
    sheet.conditional_formatting.add(area, make(formula=[formula], fill=shade, font=Font(color=f"FF{ink}")))


def write_diagnosis(
    path: str, diagnosis: Diagnosis, command: str, asked: Mapping[str, str], remedy: Sequence[str], plan: Table
) -> None:
    """Write the sheets ``diagnosis`` and ``waterfall``, a plan, and the question with both charts in front."""
    book = new_book()
    sheet = book.create_sheet("diagnosis")
    said = [
        *(one.words for one in diagnosis.readings),
        *(words for words in (diagnosis.unexplained, diagnosis.telling) if words),
    ]
    top = len(said) + 2
    for number, words in enumerate(said, 1):
        put(sheet.cell(number, 1), words, wrapped=False)
    tables = {}
    for table, name, first in ((diagnosis.steps, "waterfall", 1), (diagnosis.explanations, "diagnosis", top)):
        if not len(table):
            continue
        columns = table.schema.columns
        tables[name] = columns, data_rows(table, columns)
        at = sheet if name == "diagnosis" else book.create_sheet(name)
        write_table(at, columns, tables[name][1], f"A{first}", table.kind, fitted=True)
        if name == "waterfall":
            for row in at.iter_rows(min_row=2, min_col=3):
                for cell in row:
                    cell.number_format = "#,##0.00##"
    if len(diagnosis.explanations):
        said.append(f"Most likely: {diagnosis.explanations['cause'][0]} ({diagnosis.explanations['advice'][0]}).")
    stated = tuple(plan.schema.by_name[name] for name in plan.columns)
    write_table(book.create_sheet(plan.kind), stated, data_rows(plan, stated), "A1", plan.kind, fitted=True)
    add_front(book, command, asked, tables, said=[*said, *remedy])
    save_workbook(book, path)


_PLAN_SHEETS = {"training": "step_time", "inference": "ttft"}
"""Sheets of plans and the first column of their results: the plans themselves are named in column A."""
_CHART_SHEETS = ("step time", "inference time", "limits", "memory", "roofline", "token cost", "accelerator cost")
"""Sheets whose charts are printed, not the tables that these are drawn from."""
_ALL_PLANS = ("step time", "inference time", "memory")  # sheets with charts of all plans, twenty or so each
_LONG = {"cost bridge": 45, "reasons": 30, "assumptions": 40, "calibration": 40, "models": 24, "networks": 40}
"""Sheets of which so many rows are printed. [-]"""
_WIDEST = 220.0  # letters of a page of a table across [-]
_PLANS_WIDE = 280.0  # letters of a page of results of plans across [-]
_MOST_PLANS = 60  # plans whose results are printed [-]
_MOST_ROWS = 130  # rows of a study's table that are printed, about three pages [-]
_EMU_PER_CM = 360000
_PAGE_SHAPE = 0.75  # height over width of a page, with a little more, which shrinks the print by as much
_NOTE = "further rows and columns: in the workbook"


def set_paper(workbook: Workbook, brief: bool = False) -> None:
    """Limit the printed part of each sheet, so that a report of a hundred plans stays a document of thirty pages."""
    for sheet in workbook.worksheets:
        if sheet.title in _PLAN_SHEETS:
            _print_results(sheet, _PLAN_SHEETS[sheet.title], 1 if brief else 2)
        elif sheet.title in _CHART_SHEETS:
            _print_charts(sheet, brief and sheet.title in _ALL_PLANS)
        elif sheet.title in _LONG or sheet.title in ("accelerators", "prices"):
            _first_page(sheet, _LONG.get(sheet.title, 40))


def _print_results(sheet: Worksheet, first: str, pages: int) -> None:
    """The first results of plans on some pages, beside their names: as many columns as can be read."""
    table = next(iter(sheet.tables.values()), None)
    if table is None:
        return
    header = int(str(sheet.print_title_rows).rpartition("$")[2])
    names = {str(sheet.cell(header, column).value).split(" (")[0]: column for column in range(1, sheet.max_column + 1)}
    start = names.get(first.replace("_", " "))
    last = names.get("reason", sheet.max_column + 1) - 1
    if start is None or last <= start:
        return
    end, letters = start, _width(sheet, 1) + _width(sheet, start)
    while end < last and letters + _width(sheet, end + 1) <= _PLANS_WIDE:
        end += 1
        letters += _width(sheet, end)
    bottom = min(header + _MOST_PLANS // 2 * pages, sheet.max_row, _last_row(sheet, header, letters, pages))
    sheet.print_area = f"{get_column_letter(start)}{header}:{get_column_letter(end)}{bottom}"
    pages = 1 if bottom <= _last_row(sheet, header, letters) else pages
    sheet.page_setup.fitToWidth, sheet.page_setup.fitToHeight = 1, pages
    _note(sheet)


def first_rows(sheet: Worksheet) -> None:
    """Print of a long table of a study the first rows, on as many pages as they take."""
    if sheet.max_row <= _MOST_ROWS:
        return
    area = str(sheet.print_area).rpartition("!")[2].replace("$", "")
    sheet.print_area = area.rstrip("0123456789") + str(_MOST_ROWS)
    _note(sheet)


def _print_charts(sheet: Worksheet, only_first: bool) -> None:
    """Charts alone, with the title of the sheet above the first."""
    inside: Any = sheet
    if not inside._charts:
        return
    spans = sorted(
        (row, row + chart_rows(chart.height) - 1, left + chart.width)
        for chart in inside._charts
        for row, left in [_corner(sheet, chart.anchor)]
    )
    if only_first:
        spans = [span for span in spans if span[0] == spans[0][0]]
    blocks: list[list[int]] = []
    for first, last, _ in spans:
        if blocks and first <= blocks[-1][1] + 2:
            blocks[-1][1] = max(blocks[-1][1], last)
        else:
            blocks.append([first, last])
    blocks[0][0] = 1
    right = _column_at(sheet, max(end for _, _, end in spans))
    sheet.print_area = ",".join(f"A{first}:{right}{last}" for first, last in blocks)
    _repeat_nothing(sheet)
    _note(sheet)


def _corner(sheet: Worksheet, anchor: Any) -> tuple[int, float]:
    """Row of a chart, at column A if it is anchored at a cell, and its distance from the left [cm]."""
    if isinstance(anchor, str):
        return int(anchor.lstrip("A")), 0.0
    corner = anchor._from
    return corner.row + 1, CM_PER_LETTER * width_of(sheet, 1, corner.col) + corner.colOff / _EMU_PER_CM


def _width(sheet: Worksheet, number: int) -> float:
    return width_of(sheet, number, number)


def _column_at(sheet: Worksheet, distance: float) -> str:
    """The column that a distance from the left edge falls into [cm]."""
    column, reached = 0, 0.0
    while reached < distance and column < 200:
        column += 1
        reached += _width(sheet, column) * CM_PER_LETTER
    return get_column_letter(max(column, 1))


def _first_page(sheet: Worksheet, rows: int) -> None:
    """The first rows of a table, and as many columns as a page takes."""
    letters, columns = 0.0, 0
    while columns < sheet.max_column and (columns == 0 or letters + _width(sheet, columns + 1) <= _WIDEST):
        columns += 1
        letters += _width(sheet, columns)
    inside: Any = sheet
    first = 4 if inside.oddHeader.left.text else 1  # a heading in the margin stands for the title of the sheet
    last = min(rows, sheet.max_row, _last_row(sheet, first, letters))
    sheet.print_area = f"A{first}:{get_column_letter(columns)}{last}"
    _repeat_nothing(sheet)
    sheet.page_setup.fitToWidth = sheet.page_setup.fitToHeight = 1
    _note(sheet)


def _last_row(sheet: Worksheet, first: int, letters: float, pages: int = 1) -> int:
    """Last row of pages that are filled from side to side: more rows would make all of them smaller."""
    row, room = first, pages * _PAGE_SHAPE * letters * CM_PER_LETTER * 72.0 / 2.54
    last = sheet.max_row  # openpyxl looks through all cells
    while row < last and room > 0.0:
        room -= sheet.row_dimensions[row].height or 15.0
        row += 1
    return row


def _repeat_nothing(sheet: Worksheet) -> None:
    """Clear the print titles of a sheet, which openpyxl sets and does not unset."""
    inside: Any = sheet
    inside._print_rows = inside._print_cols = None


def _note(sheet: Worksheet) -> None:
    footer: Any = sheet.oddFooter
    footer.left.text = f"&8xlperf \N{MIDDLE DOT} {_NOTE}"
