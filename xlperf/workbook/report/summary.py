"""The first sheet of a report: its subject, its findings in words, and links to the other sheets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from openpyxl.styles import Alignment, Font
from openpyxl.utils import get_column_letter

from xlperf.base import resources
from xlperf.catalog.schema import Column
from xlperf.studies.outcome import Finding
from xlperf.workbook import style
from xlperf.workbook.charts import BLUE, Cells, axis_number, horizontal_bars, log_axis
from xlperf.workbook.report.data import (
    GOOD,
    REFUSED,
    TOO_LARGE,
    Drawn,
    Plans,
    Report,
    distinct,
    drawn_table,
    listed,
    number_words,
    percent_words,
    plural,
    report_columns,
    short,
)
from xlperf.workbook.report.decisions import WORK, decision_findings, decision_rows
from xlperf.workbook.style import (
    CM_PER_LETTER,
    chart_rows,
    column_widths,
    even_rows,
    heading,
    keep_together,
    link,
    page_setup,
    place_chart,
    put,
)

if TYPE_CHECKING:
    from openpyxl.worksheet.worksheet import Worksheet

    from xlperf.studies.outcome import Finding


_LETTERS = (21, 38, 13, 9, 25, 12, 12, 12, 12, 9, 25)
_LAST = len(_LETTERS)
_ACROSS = round(1.1 * sum(_LETTERS[1:]))  # letters are narrower than digits in the mean
_TONES = {"good": style.GOOD_INK, "plain": style.NAVY, "warning": style.WARN_INK, "bad": style.BAD_INK}
_TOP_ROWS = 20
_BARS = 15
_CHART_WIDTH = 30.0
_TABLES = {
    "training": ("tokens_per_second_per_accelerator", "step_time mfu memory_reserved cost_per_million_tokens"),
    "inference": ("tokens_per_second_per_accelerator", "ttft tpot memory cost_per_million_output_tokens_all_in"),
}
SHEETS = {row["sheet"]: row["contents"] for row in resources.rows("workbook/report_sheets.csv")[1:]}
"""Sheets of a report behind the summary, and their contents."""


def summary_sheet(sheet: Worksheet, report: Report) -> None:
    """Fill the first sheet."""
    column_widths(sheet, *_LETTERS)
    row, blocks = 4, []
    for group in report.groups:
        first, row = row, decision_rows(sheet, group, row)
        blocks.append((1 if first == 4 else first, row - 1))
    other = row
    row = finding_rows(sheet, other_findings(report), heading(sheet, row, "What else to know"), _LAST, _ACROSS) + 1
    blocks.append((other, row - 1))
    shown = [(group, pairs) for group in report.groups if len(pairs := _pairs(group))]
    heights = [max(5.0, 3.2 + 0.36 * min(len(pairs), _BARS)) for _, pairs in shown]
    charts = [row + sum(map(chart_rows, heights[:place])) for place in range(len(shown) + 1)]
    even_rows(sheet, row, charts[-1])
    blocks += [(first, end - 1) for first, end in pairwise(charts)]
    row = printed = charts[-1]
    for (group, pairs), chart, height in zip(shown, charts, heights, strict=False):
        title = f"{WORK[group.kind]}: best plan of each model on each accelerator"
        table, below = _top(sheet, group, pairs, heading(sheet, row + 1, title))
        _chart(table, group, len(pairs), chart, height)
        row = below
    keep_together(sheet, blocks, sum(_LETTERS) * CM_PER_LETTER, 3)
    _links(sheet, heading(sheet, row + 1, "Sheets of this report"))
    sheet.freeze_panes = "A4"
    # the plans are printed from their own sheets, and links are of no use on paper
    page_setup(sheet, area=f"A1:{get_column_letter(_LAST)}{printed - 1}")
    sheet.print_title_rows = "1:3"


def finding_rows(sheet: Worksheet, result: Sequence[Finding], row: int, last: int, across: int) -> int:
    """A finding in each row, up to the last column, so many characters in a line; the row below them."""
    for finding in result:
        tag: Any = put(sheet.cell(row, 1), finding.tag, "xlperf text")
        tag.font = Font(name=style.FONT, size=10, bold=True, color=_TONES[finding.tone])
        row = wide_text(sheet, row, 2, last, finding.words, across)
    return row


def wide_text(sheet: Worksheet, row: int, first: int, last: int, words: str, across: int) -> int:
    """Write wrapped text over merged columns; returns the row below it."""
    put(sheet.cell(row, first), words, "xlperf text")
    sheet.merge_cells(start_row=row, start_column=first, end_row=row, end_column=last)
    sheet.row_dimensions[row].height = 13.5 * -(-len(words) // across) + 4
    return row + 1


def _links(sheet: Worksheet, row: int) -> None:
    """Links to the other sheets, in two columns."""
    inside: Any = sheet
    names = [name for name in inside.parent.sheetnames if name in SHEETS]
    half = -(-len(names) // 2)
    for i, name in enumerate(names):
        line, column = (row + i, 1) if i < half else (row + i - half, 3)
        link(sheet.cell(line, column), name, name)
        sheet.cell(line, column).alignment = Alignment(vertical="top")
        put(sheet.cell(line, column + 1), SHEETS[name], "xlperf text")
        if column == 1:
            sheet.row_dimensions[line].height = 13.5 * -(-len(SHEETS[name]) // 54) + 4
        if column == 3:
            sheet.merge_cells(start_row=line, start_column=4, end_row=line, end_column=_LAST)


def _pairs(group: Plans) -> list[int]:
    """Row of the best plan of each model and accelerator that fits, in the order of the models."""
    order = distinct(group.models)
    pairs: dict[tuple[str, str], list[int]] = {}
    for row in group.where(GOOD).tolist():
        pairs.setdefault((group.models[row], group.accelerators[row]), []).append(row)
    ranked = sorted(pairs, key=lambda pair: order.index(pair[0]))
    results = [best(group, _TABLES[group.kind][0], np.array(pairs[pair])) for pair in ranked]
    return [row for row in results if row is not None]


def _top(sheet: Worksheet, group: Plans, pairs: Sequence[int], row: int) -> tuple[Drawn, int]:
    """The best plan of each model and accelerator, in the order of the plans; the table and the row below it."""
    rate, others = _TABLES[group.kind]
    results: list[Column] = [
        group.results.schema.by_name[name]
        for name in (rate, *others.split())
        if name in group.results.schema.by_name and name in group.results
    ]
    columns = [*report_columns("best", rate=rate.replace("_", " ")), *results]
    rows: list[Sequence[Any]] = []
    for top in pairs[:_TOP_ROWS]:
        values = [float(group.number(column.name)[top]) for column in results]
        count = int(group.plans.number("num_accelerators", 1.0)[top])
        rows.append([group.models[top], group.names[top], group.accelerators[top], count, *values])
    table = drawn_table(sheet, columns, rows, row, f"best_{group.kind}")
    sheet.row_dimensions[row].height = 54
    row += len(rows) + 1
    if len(pairs) > _TOP_ROWS:
        put(sheet.cell(row, 1), f"{plural(len(pairs) - _TOP_ROWS, 'more pair')}: see {group.kind}.", "xlperf note")
        row += 1
    return table, row


def _chart(table: Drawn, group: Plans, count: int, row: int, height: float) -> None:
    """Cost of the best plans, model by model, drawn from their table; throughput if there is no cost."""
    sheet, header, bars = table.sheet, table.top, min(count, _BARS)
    rows = 0, bars
    rate, cost = _RATED[group.kind]
    name = cost if cost in table.names and any(table.cells(cost, rows).values) else rate
    unit = _UNITS[group.kind] if name == cost else "token/s"
    put(sheet.cell(header, _LAST + 2), "label in the chart", "xlperf note")
    plans, amounts = table.cells("best_plan", rows).values, table.cells(name, rows).values
    for down, (plan, amount) in enumerate(zip(plans, amounts, strict=True), start=header + 1):
        # amounts beside bars of a logarithmic axis would cover names
        shown = f" \N{MIDDLE DOT} {number_words(amount)}" if isinstance(amount, float) else ""
        put(sheet.cell(down, _LAST + 2), f"{short(str(plan), 80)}{shown}", "xlperf note", None, False)
    which = f"{bars} of {count} best plans" if bars < count else "best plans"
    subject = "cost of a token" if name == cost else name.replace("_", " ")
    words = f"{WORK[group.kind]}: {subject}, {which}"
    values = [float(value) for value in amounts if isinstance(value, int | float)]
    labels, size = Cells(sheet, _LAST + 2, header + 1, header + bars), (_CHART_WIDTH, height)
    parts = [table.part(name, BLUE, rows)]
    wide = bool(values) and min(values) > 0.0 and max(values) > 30.0 * min(values)
    unit += ", logarithmic axis" if wide else ""
    chart: Any = horizontal_bars(words, labels, parts, unit, axis_number(values), size, stacked=False)
    if wide:
        log_axis(chart.y_axis, values)
    place_chart(sheet, chart, row)


def findings(report: Report) -> list[Finding]:
    """Answers of a report: a decision for each model, then what else to know."""
    return [finding for group in report.groups for finding in decision_findings(group)] + other_findings(report)


def other_findings(report: Report) -> list[Finding]:
    """Refused and too large plans, scarce memory, uncertain plans, and where the step time goes."""
    results: list[Finding] = []
    for group in report.groups:
        results.extend(_refused(group))
        results.extend(_too_large(group))
    for group in report.groups:
        rows = group.where(GOOD)
        results.extend(_tightest(group, rows))
        results.extend(_doubtful(group, rows, _TIME[group.kind]))
        if group.kind == "training":
            results.extend(_losses(group))
    return results


def best(group: Plans, name: str, rows: np.ndarray, *, lowest: bool = False) -> int | None:
    """Row with the highest or lowest value of a result among some rows; None if none has one."""
    values = group.number(name)[rows]
    if not np.isfinite(values).any():
        return None
    return int(rows[np.nanargmin(values) if lowest else np.nanargmax(values)])


def _plan(group: Plans, row: int) -> str:
    """A plan in words: its name, and model and machine if the name does not say them."""
    name = group.names[row]
    model, accelerator = group.models[row], group.accelerators[row]
    count = group.plans.number("num_accelerators", 1.0)[row]
    said = _tokens(name)
    if said & _tokens(model) and said & _tokens(accelerator):
        return name
    return f"{name} ({model} on {count:,.0f} \N{MULTIPLICATION SIGN} {accelerator})"


def _tokens(text: str) -> set[str]:
    return {word for word in re.split(r"[^0-9a-z]+", text.casefold()) if len(word) > 1}


_RATED = {kind: (rate, others.split()[-1]) for kind, (rate, others) in _TABLES.items()}
"""Rate and cost by which plans of a kind are compared."""
_TIME = {"training": "step_time", "inference": "tpot"}
_LATER = {"training": "training", "inference": "serving"}
_UNITS = {"training": "USD per million tokens", "inference": "USD per million output tokens, prompts included"}


def _tightest(group: Plans, rows: np.ndarray) -> Iterator[Finding]:
    """The plan that fits with the least memory to spare."""
    need, have = needs(group)
    spare = (have - need)[rows]
    if np.isfinite(spare).any():
        row = int(rows[int(np.nanargmin(spare))])
        words = (
            f"{_plan(group, row)}: {number_words(need[row])} of {number_words(have[row])} GiB, "
            f"{percent_words(float(1.0 - need[row] / have[row]))} to spare."
        )
        yield Finding(f"Least memory left, {_LATER[group.kind]}", words, "warning")


def _doubtful(group: Plans, rows: np.ndarray, name: str) -> Iterator[Finding]:
    """The plan with the widest band, and its extrapolated parts."""
    if not {f"{name}_low", f"{name}_high"} <= set(group.results.columns):
        return
    low, middle, high = (group.number(column)[rows] for column in (f"{name}_low", name, f"{name}_high"))
    with np.errstate(invalid="ignore", divide="ignore"):
        width = (high - low) / middle
    if not np.isfinite(width).any():
        return
    at = int(np.nanargmax(width))
    row = int(rows[at])
    families = listed(distinct([f.strip() for f in ",".join(_FAMILIES.findall(_reason(group, row))).split(",") if f]))
    unit = group.results.schema.by_name[name].unit
    words = (
        f"{_plan(group, row)}: {name.replace('_', ' ').replace('tpot', 'time per output token')} of "
        f"{number_words(middle[at])} {unit}, 80 % band {number_words(low[at])} to {number_words(high[at])}"
    )
    yield Finding(
        f"Least sure, {_LATER[group.kind]}", f"{words}{f'; extrapolated: {families}' if families else ''}.", "warning"
    )


_FAMILIES = re.compile(r"extrapolated: ([^;]*)")


def _reason(group: Plans, row: int) -> str:
    return str(group.results.text("reason")[row])


def _losses(group: Plans) -> Iterator[Finding]:
    rows = group.where(GOOD, TOO_LARGE)
    work = ("time_forward", "time_backward")
    parts = [part for part in group.time_parts() if part.name not in work]
    total = group.number("step_time")[rows]
    if not parts or not len(rows):
        return
    shares = {part.name: group.number(part.name)[rows] / total for part in parts}
    worst = max(parts, key=lambda part: float(np.nanmean(shares[part.name])))
    share = shares[worst.name]
    at = int(rows[int(np.nanargmax(share))])
    lost = np.nansum(list(shares.values()), axis=0)
    part = worst.name.removeprefix("time_").replace("_", " ")
    part = f"{part} communication" if part.endswith("parallel") else part
    words = (
        f"In the median plan {percent_words(float(np.median(lost)))} of the step is not forward or backward work. "
        f"The largest part of it is {part}: {percent_words(float(np.nanmean(share)))} of the step "
        f"on average, {percent_words(float(np.nanmax(share)))} in {_plan(group, at)}."
    )
    yield Finding("Where training time goes", words)


def _too_large(group: Plans) -> Iterator[Finding]:
    rows = group.where(TOO_LARGE)
    if not len(rows):
        return
    need, have = needs(group)
    over = need - have
    order = rows[np.argsort(-np.nan_to_num(over[rows]), kind="stable")]
    said = []
    for row in order:
        if over[row] > 0.0:
            share = percent_words(over[row] / have[row])
            each = f"{number_words(need[row])} GiB of {number_words(have[row])} GiB, {share} too much"
            said.append(f"{group.names[row]} ({each})")
        else:  # another pool of the plan, or a budget
            said.append(f"{group.names[row]} ({_reason(group, row).partition(';')[0] or 'no reason given'})")
    verb = "does" if len(rows) == 1 else "do"
    words = f"{plural(len(rows), f'{group.kind} plan')} {verb} not fit in memory: {listed(said)}."
    yield Finding("Does not fit", words, "warning")


def needs(group: Plans) -> tuple[np.ndarray, np.ndarray]:
    """Memory that plans need, with reserves if they are computed, and memory that there is. [GiB]"""
    need = group.number("memory_reserved")
    return np.where(np.isnan(need), group.number("memory"), need), group.number("memory_capacity")


def _refused(group: Plans) -> Iterator[Finding]:
    rows = group.where(REFUSED)
    if not len(rows):
        return
    reasons = group.results.text("reason")
    said = [f"{group.names[row]} ({str(reasons[row]).rstrip('.') or 'no reason given'})" for row in rows]
    verb = "is" if len(rows) == 1 else "are"
    words = f"{plural(len(rows), f'{group.kind} plan')} {verb} refused: {listed(said)}."
    yield Finding("Refused", words, "bad")
