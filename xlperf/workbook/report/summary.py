"""The first sheet of a report: its subject, its findings in words, and links to the other sheets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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


_LETTERS = (25, 50, 22, 13, 13, 13, 13, 13, 16, 10)
_LAST = len(_LETTERS)
_ACROSS = round(1.1 * sum(_LETTERS[1:]))  # letters are narrower than digits in the mean
_TONES = {"good": style.GOOD_INK, "plain": style.NAVY, "warning": style.WARN_INK, "bad": style.BAD_INK}
_TOP_ROWS = 20
_BARS = 15
_CHART_WIDTH = 15.1
_TABLES = {
    "training": ("tokens_per_second_per_accelerator", "step_time mfu memory_reserved cost_per_million_tokens"),
    "inference": ("tokens_per_second_per_accelerator", "ttft tpot memory cost_per_million_output_tokens_all_in"),
}
SHEETS = {row["sheet"]: row["contents"] for row in resources.rows("workbook/report_sheets.csv")[1:]}
"""Sheets of a report behind the summary, and their contents."""


def summary_sheet(sheet: Worksheet, report: Report) -> None:
    """Fill the first sheet."""
    column_widths(sheet, *_LETTERS)
    row = heading(sheet, 4, "Answers")
    row = finding_rows(sheet, findings(report), row, _LAST, _ACROSS) + 1
    charts = row
    shown = [(group, pairs) for group in report.groups if len(pairs := _pairs(group))]
    if report.found:  # a study has charts of its own, and no table of the best of a grid
        shown = [(group, pairs) for group, pairs in shown if len(pairs) <= _TOP_ROWS]
    height = max((max(5.0, 3.2 + 0.29 * min(len(pairs), _BARS)) for _, pairs in shown), default=0.0)
    drawn = bool(shown) and not report.found
    row += chart_rows(height) if drawn else -1
    even_rows(sheet, charts, row)
    blocks = [(1, charts - 1), (charts, row - 1)]
    for place, (group, pairs) in enumerate(shown):
        top = heading(sheet, row + 1, f"{group.kind.capitalize()}: best plan of each model on each accelerator")
        table, below = _top(sheet, group, pairs, top)
        if drawn:
            _chart(table, group, len(pairs), charts, place, height)
        blocks.append((row, below - 1))
        row = below
    keep_together(sheet, blocks, sum(_LETTERS) * CM_PER_LETTER, 3)
    _links(sheet, heading(sheet, row + 1, "Sheets of this report"))
    sheet.freeze_panes = "A4"
    page_setup(sheet, area=f"A1:{get_column_letter(_LAST)}{row}")  # links are of no use on paper
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


def _chart(table: Drawn, group: Plans, count: int, row: int, place: int, height: float) -> None:
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
        put(sheet.cell(down, _LAST + 2), f"{short(str(plan), 44)}{shown}", "xlperf note", None, False)
    which = f"{bars} of {count} best plans" if bars < count else "best plans"
    subject = "cost of a token" if name == cost else name.replace("_", " ")
    words = f"{_WORK[group.kind].capitalize()}: {subject}, {which}"
    values = [float(value) for value in amounts if isinstance(value, int | float)]
    labels, size = Cells(sheet, _LAST + 2, header + 1, header + bars), (_CHART_WIDTH, height)
    parts = [table.part(name, BLUE, rows)]
    chart: Any = horizontal_bars(words, labels, parts, unit, axis_number(values), size, stacked=False)
    if values and min(values) > 0.0 and max(values) > 30.0 * min(values):
        log_axis(chart.y_axis, values)
    place_chart(sheet, chart, row, place * (_CHART_WIDTH + 0.6))


def findings(report: Report) -> list[Finding]:
    """Findings for the top of the report."""
    results: list[Finding] = []
    training, inference = report.group("training"), report.group("inference")
    if training is not None:
        results.extend(_training(training))
    if inference is not None:
        results.extend(_inference(inference))
    for group in () if report.found else report.groups:  # grids of studies have such plans on purpose
        results.extend(_too_large(group))
        results.extend(_refused(group))
    return results


def best(group: Plans, name: str, rows: np.ndarray, *, lowest: bool = False) -> int | None:
    """Row with the highest or lowest value of a result among some rows; None if none has one."""
    values = group.number(name)[rows]
    if not np.isfinite(values).any():
        return None
    return int(rows[np.nanargmin(values) if lowest else np.nanargmax(values)])


def _say(group: Plans, name: str, row: int) -> str:
    return number_words(float(group.number(name)[row]))


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


def _winner(
    group: Plans, rows: np.ndarray, tag: str, name: str, words: str, lowest: bool = False, late: bool = False
) -> Iterator[Finding]:
    """The plan with the best value of a result; in ``words`` names of results stand for their numbers."""
    row = best(group, name, rows, lowest=lowest)
    if row is None:
        return
    said = words.format_map({name: _say(group, name, row) for name in re.findall(r"{(\w+)}", words)})
    priced = str(group.results.text("cost_basis")[row]) if lowest else ""
    basis = f" ({priced})" if priced else ""
    yield Finding(tag, f"{_plan(group, row)}: {said}{basis}{_late(group, row) if late else ''}.", "good")


def _training(group: Plans) -> Iterator[Finding]:
    rows, rate, cost = group.where(GOOD), *_RATED["training"]
    fastest = best(group, rate, rows)
    if fastest is not None:
        share = percent_words(group.number("mfu")[fastest])
        words = f"{{{rate}}} tokens per second and accelerator, {share} of the dense peak; a step takes {{step_time}} s"
        yield from _winner(group, rows, "Fastest training", rate, words)
    yield from _winner(group, rows, "Cheapest training", cost, f"{{{cost}}} USD per million tokens", lowest=True)
    yield from _tightest(group, rows)
    yield from _doubtful(group, rows, "step_time")
    yield from _alike(group, rows)
    yield from _losses(group)


def _inference(group: Plans) -> Iterator[Finding]:
    rows, rate, cost = group.where(GOOD), *_RATED["inference"]
    prompt = rows[group.number("ttft")[rows] <= _PATIENCE]
    quickest = best(group, "tpot", prompt if len(prompt) else rows, lowest=True)
    if quickest is not None:
        words = (
            f"{_plan(group, quickest)}: a token every {_say(group, 'tpot', quickest)} ms, "
            f"the first after {_say(group, 'ttft', quickest)} ms"
        )
        none = f"; no plan gives its first token within {_PATIENCE / 1000:.0f} s"
        yield Finding("Fastest answers", f"{words}{'' if len(prompt) else none}.", "good" if len(prompt) else "warning")
    words = f"{{{rate}}} tokens per second and accelerator at {{tpot}} ms per token"
    yield from _winner(group, rows, "Highest throughput", rate, words, late=True)
    words = f"{{{cost}}} USD per million output tokens, prompts included"
    yield from _winner(group, rows, "Cheapest serving", cost, words, lowest=True, late=True)
    yield from _tightest(group, rows)
    yield from _doubtful(group, rows, "tpot")
    yield from _alike(group, rows, "prompt_length", "output_length")


_RATED = {kind: (rate, others.split()[-1]) for kind, (rate, others) in _TABLES.items()}
"""Rate and cost by which plans of a kind are compared."""
_PATIENCE = 10_000.0
"""Time that a user waits for a first token; an answer that takes longer says so. [ms]"""
_WORK = {"training": "training", "inference": "serving"}
_UNITS = {"training": "USD per million tokens", "inference": "USD per million output tokens, prompts included"}


def _late(group: Plans, row: int) -> str:
    """Words on a first token that comes late; "" if it does not."""
    late = group.number("ttft")[row] > _PATIENCE
    return f"; the first token only after {number_words(group.number('ttft')[row] / 1000.0)} s" if late else ""


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
        yield Finding(f"Tightest {_WORK[group.kind]}", words, "warning")


def _alike(group: Plans, rows: np.ndarray, *same: str) -> Iterator[Finding]:
    """The fastest and the slowest accelerator for one model: plans of as many accelerators, and as long requests."""
    rate, cost = (group.number(name) for name in _RATED[group.kind])
    sizes = [group.plans.number(name) for name in ("num_accelerators", *same)]
    by_name: dict[tuple[Any, ...], dict[str, int]] = {}
    for row in rows[np.isfinite(rate[rows])].tolist():
        own = by_name.setdefault((group.models[row], *(float(size[row]) for size in sizes)), {})
        known = own.get(group.accelerators[row])
        if known is None or rate[row] > rate[known]:
            own[group.accelerators[row]] = row
    alike = [list(own.values()) for own in by_name.values() if len(own) > 1]
    if not alike:
        return
    one = max(alike, key=lambda own: (len(own), sizes[0][own[0]]))
    fast, slow = (pick(one, key=lambda row: rate[row]) for pick in (max, min))
    words = f"{_plan(group, fast)}: {rate[fast] / rate[slow]:.1f} times as fast as {_plan(group, slow)}"
    if np.isfinite([cost[fast], cost[slow]]).all() and cost[slow] > 0.0:
        words += f", at {cost[fast] / cost[slow]:.2f} times its cost of a token"
    yield Finding(f"Like with like, {_WORK[group.kind]}", f"{words}.")


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
        f"{number_words(middle[at])} {unit} may be {number_words(low[at])} to {number_words(high[at])} (80 % band)"
    )
    yield Finding(
        f"Doubtful {_WORK[group.kind]}", f"{words}{f'; extrapolated: {families}' if families else ''}.", "warning"
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
    yield Finding("Where time is lost", words)


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
