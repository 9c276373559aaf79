"""The first sheet of a report: what was computed, its findings in words, and links to the other sheets."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from openpyxl.styles import Alignment, Font
from openpyxl.worksheet.pagebreak import Break

from xlperf.base import resources
from xlperf.catalog.schema import Column
from xlperf.studies.outcome import Finding
from xlperf.workbook import style
from xlperf.workbook.report_data import (
    GOOD,
    REFUSED,
    TOO_LARGE,
    Plans,
    Report,
    distinct,
    extra_column,
    listed,
    number_words,
    percent_words,
    plural,
)
from xlperf.workbook.style import column_widths, heading, link, page_setup, put
from xlperf.workbook.tables import write_table

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
SHEETS = {row["sheet"]: row["contents"] for row in resources.rows("workbook/report_sheets.csv")[1:]}
"""Sheets of a report behind the summary, and what they show."""


def summary_sheet(sheet: Worksheet, report: Report) -> None:
    """Fill the first sheet."""
    column_widths(sheet, 25, 50, 22, 13, 13, 13, 13, 13, 13, 13)
    row = _tiles(sheet, report, 4) + 1
    for words, found in (("Findings of the study", report.found), ("Key findings", findings(report))):
        if not found:
            continue
        row = heading(sheet, row, words)
        row = finding_rows(sheet, found, row, _LAST, _ACROSS) + 1
    row -= 1
    sheet.row_breaks.append(Break(id=row - 1))
    for group in report.groups:
        if len(group.where(GOOD)):
            row = heading(sheet, row + 1, f"{group.kind.capitalize()}: best plan of each model on each accelerator")
            row = _top(sheet, group, row)
    _links(sheet, heading(sheet, row + 1, "Sheets of this report"))
    sheet.freeze_panes = "A4"
    page_setup(sheet)
    sheet.print_title_rows = "1:3"


def finding_rows(sheet: Worksheet, found: Sequence[Finding], row: int, last: int, across: int) -> int:
    """A finding in each row, up to the last column, so many characters in a line; the row below them."""
    for finding in found:
        tag: Any = put(sheet.cell(row, 1), finding.tag, "xlperf text")
        tag.font = Font(name=style.FONT, size=10, bold=True, color=_TONES[finding.tone])
        row = wide_text(sheet, row, 2, last, finding.words, across)
    return row


def wide_text(sheet: Worksheet, row: int, first: int, last: int, words: str, across: int) -> int:
    """Words over merged columns, so many characters in a line; the row below them."""
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
        put(sheet.cell(line, column + 1), SHEETS[name], "xlperf text")
        if column == 3:
            sheet.merge_cells(start_row=line, start_column=4, end_row=line, end_column=_LAST)


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


_MOST_MODELS = 4


def findings(report: Report) -> list[Finding]:
    """What a reader should know first."""
    found: list[Finding] = []
    training, inference = report.group("training"), report.group("inference")
    if training is not None:
        found.extend(_training(training))
    if inference is not None:
        found.extend(_inference(inference))
    found.extend(_extrapolated(report))
    for group in report.groups:
        found.extend(_too_large(group))
        found.extend(_refused(group))
    return found


def best(group: Plans, name: str, rows: np.ndarray, *, lowest: bool = False) -> int | None:
    """Row with the highest or lowest value of a result among some rows; None where none has one."""
    values = group.number(name)[rows]
    if not np.isfinite(values).any():
        return None
    return int(rows[np.nanargmin(values) if lowest else np.nanargmax(values)])


def _say(group: Plans, name: str, row: int) -> str:
    return number_words(float(group.number(name)[row]))


def _plan(group: Plans, row: int) -> str:
    """A plan in words: its name, and model and machine where the name does not say them."""
    name = group.names[row]
    model, accelerator = group.models[row], group.accelerators[row]
    count = group.plans.number("num_accelerators", 1.0)[row]
    said = _tokens(name)
    if said & _tokens(model) and said & _tokens(accelerator):
        return name
    return f"{name} ({model} on {count:,.0f} \N{MULTIPLICATION SIGN} {accelerator})"


def _tokens(text: str) -> set[str]:
    return {word for word in re.split(r"[^0-9a-z]+", text.casefold()) if len(word) > 1}


def _training(group: Plans) -> Iterator[Finding]:
    rows = group.where(GOOD)
    fastest = best(group, "tokens_per_second", rows)
    if fastest is not None:
        words = (
            f"{_plan(group, fastest)} trains {_say(group, 'tokens_per_second', fastest)} tokens per second: "
            f"a step takes {_say(group, 'step_time', fastest)} s."
        )
        yield Finding("Fastest training", words, "good")
    efficient = best(group, "mfu", rows)
    if efficient is not None:
        mfu = group.number("mfu")
        middle = percent_words(float(np.nanmedian(mfu[rows])))
        words = f"{_plan(group, efficient)} reaches {percent_words(mfu[efficient])} of the dense peak; "
        yield Finding("Best MFU", f"{words}the median of all that fit is {middle}.", "good")
    cheapest = best(group, "cost_per_million_tokens", rows, lowest=True)
    if cheapest is not None:
        words = (
            f"{_plan(group, cheapest)} trains a million tokens for "
            f"{_say(group, 'cost_per_million_tokens', cheapest)} USD{_basis(group, cheapest)}."
        )
        yield Finding("Cheapest training", words, "good")
    yield from _against(group, "tokens_per_second_per_accelerator", "cost_per_million_tokens", "trains")
    yield from _losses(group)
    yield from _band(group, "step_time", "step time")


def _inference(group: Plans) -> Iterator[Finding]:
    rows = group.where(GOOD)
    quickest = best(group, "tpot", rows, lowest=True)
    if quickest is not None:
        words = (
            f"{_plan(group, quickest)} gives a token every {_say(group, 'tpot', quickest)} ms, "
            f"the first after {_say(group, 'ttft', quickest)} ms."
        )
        yield Finding("Fastest answers", words, "good")
    busiest = best(group, "tokens_per_second_per_accelerator", rows)
    if busiest is not None:
        words = (
            f"{_plan(group, busiest)} gives {_say(group, 'tokens_per_second_per_accelerator', busiest)} tokens per "
            f"second and accelerator at {_say(group, 'tpot', busiest)} ms per token."
        )
        yield Finding("Highest throughput", words, "good")
    cheapest = best(group, "cost_per_million_output_tokens_all_in", rows, lowest=True)
    if cheapest is not None:
        words = (
            f"{_plan(group, cheapest)} serves a million output tokens, prompts included, for "
            f"{_say(group, 'cost_per_million_output_tokens_all_in', cheapest)} USD{_basis(group, cheapest)}."
        )
        yield Finding("Cheapest serving", words, "good")
    yield from _against(group, "tokens_per_second_per_accelerator", "cost_per_million_output_tokens_all_in", "serves")
    bounds = [str(bound) for bound in group.results.text("bound")[group.where(GOOD, TOO_LARGE)] if bound]
    if bounds:
        counts = sorted(((bounds.count(bound), bound) for bound in distinct(bounds)), key=lambda pair: -pair[0])
        words = listed([f"{bound} in {plural(count, 'plan')}" for count, bound in counts])
        yield Finding("Decode limit", f"A decode step is limited by {words}.")
    yield from _band(group, "tpot", "time per output token")


def _basis(group: Plans, row: int) -> str:
    """How the plan is priced: `` (rent)``."""
    words = str(group.results.text("cost_basis")[row])
    return f" ({words})" if words else ""


def _against(group: Plans, rate: str, cost: str, verb: str) -> Iterator[Finding]:
    """For each model: the best plan on one accelerator against the best on the accelerator it is most planned for."""
    rows = group.where(GOOD)
    models, accelerators = group.models, group.accelerators
    precisions = group.plans.text("precision", group.plans.schema.by_name["precision"].default)
    values = group.number(rate)
    made = 0
    for model in distinct([models[row] for row in rows]):
        tops: list[int] = []
        for accelerator in distinct([accelerators[row] for row in rows if models[row] == model]):
            members = np.array([r for r in rows if models[r] == model and accelerators[r] == accelerator])
            top = best(group, rate, members)
            if top is not None:
                tops.append(top)
        if len(tops) < 2 or made == _MOST_MODELS:
            continue
        tops.sort(key=lambda row: -values[row])
        first, last = tops[0], tops[-1]
        if not values[last] > 0:
            continue
        words = (
            f"{model}: one {accelerators[first]} {verb} {number_words(values[first] / values[last])} times as fast as "
            f"one {accelerators[last]}"
        )
        kinds = [str(precisions[row]) for row in (first, last)]
        if kinds[0] != kinds[1]:
            words += f" ({kinds[0]} against {kinds[1]})"
        price = group.number(cost)[first] / group.number(cost)[last]
        if np.isfinite(price):
            words += f"; a token costs {percent_words(abs(price - 1))} {'less' if price < 1 else 'more'}"
        made += 1
        yield Finding("Best against best", f"{words}.")


def _extrapolated(report: Report) -> Iterator[Finding]:
    total = sum(len(group) for group in report.groups)
    reasons = [str(reason) for group in report.groups for reason in group.results.text("reason")]
    found = [reason for reason in reasons if "extrapolated" in reason]
    if not found:
        return
    counts: Counter[str] = Counter()
    for reason in found:
        for families in re.findall(r"extrapolated: ([^;]*)", reason):
            counts.update(family.strip() for family in families.split(","))
    said = [f"{family} ({count:,})" for family, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))]
    verb = "rests" if len(found) == 1 else "rest"
    words = (
        f"{len(found):,} of {plural(total, 'plan')} {verb} in part on efficiencies of other generations or on defaults"
    )
    yield Finding("Extrapolated", f"{words}{': ' if said else ''}{listed(said, 6)}.", "warning")


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
    words = (
        f"In the median plan {percent_words(float(np.median(lost)))} of the step is not forward or backward work. "
        f"The largest part of it is {_part_words(worst.name)}: {percent_words(float(np.nanmean(share)))} of the step "
        f"on average, {percent_words(float(np.nanmax(share)))} in {_plan(group, at)}."
    )
    yield Finding("Where time is lost", words)


def _part_words(name: str) -> str:
    words = name.removeprefix("time_").replace("_", " ")
    return f"{words} communication" if words.endswith("parallel") else words


def _band(group: Plans, name: str, words: str) -> Iterator[Finding]:
    rows = group.where(GOOD, TOO_LARGE)
    middle = group.number(name)[rows]
    with np.errstate(invalid="ignore", divide="ignore"):
        low = group.number(f"{name}_low")[rows] / middle - 1
        high = group.number(f"{name}_high")[rows] / middle - 1
    if np.isfinite(low).any() and np.isfinite(high).any():
        below, above = percent_words(abs(float(np.nanmedian(low)))), percent_words(float(np.nanmedian(high)))
        text = (
            f"In the median plan the 80 % band of the {words} reaches {below} below and {above} above the number shown."
        )
        yield Finding("How sure", text)


def _too_large(group: Plans) -> Iterator[Finding]:
    rows = group.where(TOO_LARGE)
    if not len(rows):
        return
    need, have = needs(group)
    over = need - have
    order = rows[np.argsort(-np.nan_to_num(over[rows]), kind="stable")]
    said = []
    for row in order:
        if np.isfinite(over[row]):
            share = percent_words(over[row] / have[row])
            each = f"{number_words(need[row])} GiB of {number_words(have[row])} GiB, {share} too much"
            said.append(f"{group.names[row]} ({each})")
        else:
            said.append(group.names[row])
    verb = "does" if len(rows) == 1 else "do"
    words = f"{plural(len(rows), f'{group.kind} plan')} {verb} not fit in memory: {listed(said)}."
    yield Finding("Does not fit", words, "warning")


def needs(group: Plans) -> tuple[np.ndarray, np.ndarray]:
    """Memory that plans need, with reserves where they are computed, and memory that there is. [GiB]"""
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
