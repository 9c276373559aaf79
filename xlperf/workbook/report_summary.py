"""The first sheet of a report: what was computed, what it says, and where the rest is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from openpyxl.styles import Alignment, Font
from openpyxl.worksheet.pagebreak import Break

from xlperf.catalog.schema import Column
from xlperf.workbook import style
from xlperf.workbook.report_breakdown import extra_column
from xlperf.workbook.report_data import GOOD, REFUSED, TOO_LARGE, Plans, Report, distinct, plural
from xlperf.workbook.report_findings import best, findings
from xlperf.workbook.style import link, page_setup, put, write_table

if TYPE_CHECKING:
    from openpyxl.worksheet.worksheet import Worksheet

    from xlperf.studies.outcome import Finding

_LAST = 10
_ACROSS = 138
_TONES = {"good": style.GOOD_INK, "plain": style.NAVY, "warning": style.WARN_INK, "bad": style.BAD_INK}
_TOP_ROWS = 20
_TABLES = {
    "training": ("tokens_per_second_per_accelerator", "step_time mfu memory_reserved cost_per_million_tokens"),
    "inference": ("tokens_per_second_per_accelerator", "ttft tpot memory cost_per_million_output_tokens_all_in"),
}
SHEETS = {
    "training": "Every training plan with every result",
    "step time": "Where the time of a training step goes",
    "inference": "Every inference plan with every result",
    "inference time": "Where the time of a decode step goes",
    "limits": "Largest batch, and throughput against speed per user at every load",
    "memory": "Memory by part against what there is",
    "roofline": "Operators of the best plans against their roofs",
    "token cost": "Cost of a token to an owner by part, from the wafer to the power",
    "cost bridge": "Line by line from cost and energy at the sheet prices to those of an owner",
    "accelerator cost": "From the wafer to the price and the hour of an accelerator",
    "chiplets or one die": "Cost over die area, number of chiplets and volume",
    "reasons": "Why plans are refused or do not fit",
    "assumptions": "Version, catalog, definitions, and every catalog row used with its source",
    "accelerators": "Accelerators used",
    "networks": "Networks used, tier by tier",
    "models": "Models used",
    "prices": "Prices used",
    "calibration": "Calibration constants that the plans can draw on",
}


def summary_sheet(sheet: Worksheet, report: Report) -> None:
    """Fill the first sheet.

    Parameters
    ----------
    sheet : Worksheet
        From the template; changed in place.
    report : Report
        What is reported.
    """
    for letter, width in zip("ABCDEFGHIJ", (25, 50, 22, 13, 13, 13, 13, 13, 13, 13), strict=True):
        sheet.column_dimensions[letter].width = width
    row = _tiles(sheet, report, 4) + 1
    for words, found in (("Findings of the study", report.found), ("Key findings", findings(report))):
        if not found:
            continue
        row = _heading(sheet, row, words)
        row = _findings(sheet, found, row) + 1
    row -= 1
    sheet.row_breaks.append(Break(id=row - 1))
    for group in report.groups:
        if len(group.where(GOOD)):
            row = _heading(sheet, row + 1, f"{group.kind.capitalize()}: best plan of each model on each accelerator")
            row = _top(sheet, group, row)
    _links(sheet, _heading(sheet, row + 1, "Sheets of this report"))
    sheet.freeze_panes = "A4"
    page_setup(sheet)
    sheet.print_title_rows = "1:3"


def _findings(sheet: Worksheet, found: Sequence[Finding], row: int) -> int:
    """A finding in each row; the row below them."""
    for finding in found:
        tag: Any = put(sheet.cell(row, 1), finding.tag, "xlperf text")
        tag.font = Font(name=style.FONT, size=10, bold=True, color=_TONES[finding.tone])
        put(sheet.cell(row, 2), finding.words, "xlperf text")
        sheet.merge_cells(start_row=row, start_column=2, end_row=row, end_column=_LAST)
        sheet.row_dimensions[row].height = 13.5 * -(-len(finding.words) // _ACROSS) + 4
        row += 1
    return row


def _links(sheet: Worksheet, row: int) -> None:
    """Links to the other sheets, in two columns."""
    inside: Any = sheet
    names = [name for name in inside.parent.sheetnames if name in SHEETS]
    half = -(-len(names) // 2)
    for i, name in enumerate(names):
        line, column = (row + i, 1) if i < half else (row + i - half, 3)
        link(sheet.cell(line, column), name, name)
        put(sheet.cell(line, column + 1), SHEETS[name], "xlperf text")
        if column == 3:
            sheet.merge_cells(start_row=line, start_column=4, end_row=line, end_column=_LAST)


def _heading(sheet: Worksheet, row: int, words: str) -> int:
    put(sheet.cell(row, 1), words, "xlperf heading")
    sheet.row_dimensions[row].height = 24
    return row + 1


def _tiles(sheet: Worksheet, report: Report, row: int) -> int:
    """Four large numbers."""
    counts = {state: sum(group.states.count(state) for group in report.groups) for state in (GOOD, TOO_LARGE, REFUSED)}
    total = sum(counts.values())
    tiles = [
        ("plans computed", total, style.NAVY, 1, 1),
        ("fit in memory", counts[GOOD], style.GOOD_INK, 2, 2),
        ("do not fit", counts[TOO_LARGE], style.WARN_INK if counts[TOO_LARGE] else style.MUTED, 3, 4),
        ("refused", counts[REFUSED], style.BAD_INK if counts[REFUSED] else style.MUTED, 5, 6),
        ("models", len(report.used("models")), style.NAVY, 7, 8),
        ("accelerators", len(report.used("accelerators")), style.NAVY, 9, 10),
    ]
    sheet.row_dimensions[row].height = 34
    sheet.row_dimensions[row + 1].height = 17
    for words, count, ink, first, last in tiles:
        for line, value, size, bold, shade in ((row, count, 24, True, ink), (row + 1, words, 10, False, style.MUTED)):
            for column in range(first, last + 1):
                put(sheet.cell(line, column), None, "xlperf key")
            cell: Any = put(sheet.cell(line, first), value, "xlperf key", "#,##0")
            cell.font = Font(name=style.FONT, size=size, bold=bold, color=shade)
            cell.alignment = Alignment(horizontal="center", vertical="center")
            if last > first:
                sheet.merge_cells(start_row=line, start_column=first, end_row=line, end_column=last)
    return row + 2


def _top(sheet: Worksheet, group: Plans, row: int) -> int:
    """The best plan of each model and accelerator, in the order of the plans; the row below the table."""
    rate, others = _TABLES[group.kind]
    results: list[Column] = [
        group.results.schema.by_name[name]
        for name in (rate, *others.split())
        if name in group.results.schema.by_name and name in group.results
    ]
    columns = [
        extra_column("model", "", "Model of the plan", "name"),
        extra_column("best_plan", "", f"Plan with the most {rate.replace('_', ' ')} that fits", "text"),
        extra_column("accelerator", "", "Accelerator that it runs on", "text"),
        extra_column("accelerators", "-", "Accelerators of the plan", "number"),
        *results,
    ]
    good = group.where(GOOD)
    models, accelerators = group.models, group.accelerators
    order = distinct(models)
    pairs = distinct([f"{models[r]}\n{accelerators[r]}" for r in good])
    pairs.sort(key=lambda pair: order.index(pair.split("\n")[0]))
    rows: list[Sequence[Any]] = []
    for pair in pairs[:_TOP_ROWS]:
        top = best(group, rate, np.array([r for r in good if f"{models[r]}\n{accelerators[r]}" == pair]))
        if top is not None:
            values = [float(group.number(column.name)[top]) for column in results]
            count = int(group.plans.number("num_accelerators", 1.0)[top])
            rows.append([models[top], group.names[top], accelerators[top], count, *values])
    write_table(sheet, columns, rows, f"A{row}", f"best_{group.kind}", freeze=None, widths=False, fitted=True)
    sheet.row_dimensions[row].height = 54
    row += len(rows) + 1
    if len(pairs) > _TOP_ROWS:
        put(sheet.cell(row, 1), f"{plural(len(pairs) - _TOP_ROWS, 'more pair')}: see {group.kind}.", "xlperf note")
        row += 1
    return row
