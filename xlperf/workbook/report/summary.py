"""The first sheet of a report: its subject, its findings in words, and links to the other sheets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from openpyxl.styles import Alignment, Font
from openpyxl.utils import get_column_letter

from xlperf.base import resources
from xlperf.catalog.schema import Column
from xlperf.studies.outcome import Finding
from xlperf.workbook import style
from xlperf.workbook.axes import axis_number, log_axis
from xlperf.workbook.charts import BLUE, Cells, horizontal_bars
from xlperf.workbook.package import lines_of
from xlperf.workbook.report import data
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
    width_of,
)

if TYPE_CHECKING:
    from openpyxl.worksheet.worksheet import Worksheet


PATIENCE = 10_000.0
"""Time that a user waits for a first token; a faster plan whose first token takes longer is not chosen. [ms]"""
WORK = {"training": "Training", "inference": "Serving"}


@dataclass(frozen=True)
class Goal:
    """A result that plans are compared by, and the words on it.

    - ``band``: result whose ``_low`` and ``_high`` give the relative 80 % band.
    - ``than``: what a difference of 10 % is called.
    """

    name: str
    lowest: bool
    unit: str
    band: str
    than: str


_GOALS: dict[str, list[Goal]] = {kind: [] for kind in WORK}
for _row in resources.rows("workbook/report_goals.csv"):
    _GOALS[_row["sheet"]].append(Goal(_row["name"], bool(_row["lowest"]), _row["unit"], _row["band"], _row["than"]))
_ALIKE = {"training": ("sequence_length",), "inference": ("prompt_length", "output_length")}
"""Inputs that plans of one decision have in common, besides the model."""


@dataclass(frozen=True)
class Choice:
    """The best plan for a goal: its row and its amount; against the next plan, if there is one.

    - ``ahead``: how much cheaper, or how much faster, than the next plan. [-]
    - ``band``: larger half-width of the 80 % band, relative to the amount; NaN if unknown. [-]
    - ``clear``: whether the 80 % bands of both plans are apart; None without a next plan or a band.
    """

    row: int
    amount: float
    next_row: int | None
    ahead: float
    band: float
    clear: bool | None

    def sure(self, trust: str) -> str:
        """How sure the choice is, in a few words."""
        band = f"\N{PLUS-MINUS SIGN}{100 * self.band:.0f} %" if np.isfinite(self.band) else ""
        verdict = {True: "clear", False: "close", None: "" if self.next_row is not None else "only plan"}[self.clear]
        return ", ".join(word for word in (band, verdict, trust) if word)


@dataclass(frozen=True)
class Decision:
    """A model and what its plans have in common, with the cheapest and the fastest plan; None if not computed."""

    group: data.Plans
    model: str
    rows: tuple[int, ...]
    choices: tuple[Choice | None, Choice | None]

    def trust(self, choice: Choice) -> str:
        """Evidence for the chosen plan: measured, interpolated or extrapolated."""
        return str(self.group.results.text("trust")[choice.row]).partition(" ")[0].rstrip(":,;").lower()


def decisions(group: data.Plans) -> list[Decision]:
    """The models with a choice between plans that fit, in the order of the plans; every model if none has a choice."""
    same = [np.nan_to_num(group.plans.number(name), nan=-1.0) for name in _ALIKE[group.kind]]
    by_model: dict[tuple[str, tuple[float, ...]], list[int]] = {}
    for row in group.where(data.GOOD).tolist():
        by_model.setdefault((group.models[row], tuple(float(values[row]) for values in same)), []).append(row)
    if any(len(rows) > 1 for rows in by_model.values()):
        by_model = {key: rows for key, rows in by_model.items() if len(rows) > 1}
    models = [model for model, _ in by_model]
    results = []
    for (model, lengths), rows in sorted(by_model.items(), key=lambda item: models.index(item[0][0])):
        told = "/".join(f"{length:g}" for length in lengths if length >= 0.0)
        called = f"{model}, {told}" if models.count(model) > 1 and told else model
        cheap, fast = _GOALS[group.kind]
        prompt = [row for row in rows if group.number("ttft")[row] <= PATIENCE] if group.kind == "inference" else rows
        choices = _choice(group, cheap, rows), _choice(group, fast, prompt or rows)
        if choices != (None, None):
            results.append(Decision(group, called, tuple(rows), choices))
    return results


def _choice(group: data.Plans, goal: Goal, rows: Sequence[int]) -> Choice | None:
    """The best of some plans for a goal; the first of equal ones."""
    amounts = group.number(goal.name)
    known = [row for row in rows if np.isfinite(amounts[row])]
    if not known:
        return None
    ranked = sorted(known, key=lambda row: amounts[row] if goal.lowest else -amounts[row])
    best, following = ranked[0], ranked[1] if ranked[1:] else None
    middle, *ends = (group.number(f"{goal.band}{end}") for end in ("", "_low", "_high"))
    with np.errstate(invalid="ignore", divide="ignore"):
        low, high = (amounts * end / middle for end in ends)
    band = max(1.0 - low[best] / amounts[best], high[best] / amounts[best] - 1.0) if amounts[best] else np.nan
    if following is None:
        return Choice(best, float(amounts[best]), None, np.nan, float(band), None)
    one, other = float(amounts[best]), float(amounts[following])
    with np.errstate(invalid="ignore", divide="ignore"):
        faster = other / one if goal.lowest else one / other  # a ratio of speeds
    ahead = 1.0 - one / other if goal.than == "cheaper" else faster - 1.0
    near = (high[best], low[following]) if goal.lowest else (high[following], low[best])
    clear = bool(near[0] < near[1]) if np.isfinite(near).all() else None
    return Choice(best, one, following, ahead, float(band), clear)


def decision_findings(group: data.Plans) -> list[Finding]:
    """The decisions of a group in words, one finding for each model."""
    results = []
    for decision in decisions(group):
        said = []
        for word, goal, choice in zip(("cheapest", "fastest"), _GOALS[group.kind], decision.choices, strict=True):
            if choice is None:
                continue
            words = f"{word} {group.names[choice.row]}, {data.number_words(choice.amount)} {goal.unit}"
            if choice.next_row is not None:
                words += f", {100 * choice.ahead:.0f} % {goal.than} than {group.names[choice.next_row]}"
            if sure := choice.sure(decision.trust(choice)):
                words += f" ({sure})"
            said.append(words)
        results.append(Finding(f"{WORK[group.kind]} {decision.model}", f"{'; '.join(said)}.", "good"))
    return results


_SURE = "80 % band; close: it overlaps that of the next plan; evidence"
_WRAPPED = {0: 28, 1: 41, 4: 27, 5: 39, 8: 27}
"""Cells of a decision that wrap, and their letters in a line."""
_SPANS = ((1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 8), (9, 9), (10, 10), (11, 11))
"""First and last column of the cells of a decision."""


def decision_rows(sheet: Worksheet, group: data.Plans, row: int) -> int:
    """Write the decisions of a group as a table; the row below it."""
    made = decisions(group)
    if not made:
        return row
    fits = len(group.where(data.GOOD))
    lengths = ", prompt/output tokens" if group.kind == "inference" and any("/" in one.model for one in made) else ""
    words = f"{WORK[group.kind]}: the cheapest and the fastest plan of each model{lengths}"
    row = heading(sheet, row, f"{words} ({fits} of {len(group)} plans fit)")
    bases = list(dict.fromkeys([str(group.results.text("cost_basis")[row]) for one in made for row in one.rows]))
    basis = f" ({bases[0]})" if len(bases) == 1 and bases[0] else ""
    cheap, fast = _GOALS[group.kind]
    heads = ("model", "cheapest plan", cheap.unit + basis, "cheaper than the next", _SURE,
             "fastest plan", fast.unit, "faster than the next", _SURE)  # fmt: skip
    _cells(sheet, row, heads, "xlperf header")
    sheet.row_dimensions[row].height = _head_height(heads)
    amounts = [[choice.amount for one in made if (choice := one.choices[which])] for which in (0, 1)]
    codes = {2: _format(amounts[0]), 6: _format(amounts[1])}
    for decision in made:
        row += 1
        cells: list[Any] = [decision.model]
        for choice in decision.choices:
            if choice is None:
                cells += [None, None, None, None]
                continue
            ahead = choice.ahead if np.isfinite(choice.ahead) else None
            cells += [group.names[choice.row], choice.amount, ahead, choice.sure(decision.trust(choice))]
        _cells(sheet, row, cells, "xlperf text", codes)
        lines = max(-(-len(str(cells[place] or "")) // letters) for place, letters in _WRAPPED.items())
        sheet.row_dimensions[row].height = 2.0 + 13.0 * max(lines, 1)
    return row + 2


def _head_height(heads: Sequence[str]) -> float:
    """Height of a row of headers, the longest of which wraps in its columns. [pt]"""
    across = [sum(_LETTERS[first - 1 : last]) for first, last in _SPANS]
    return 6.0 + 11.0 * max(lines_of(words, 1.1 * width) for words, width in zip(heads, across, strict=True))


def _cells(
    sheet: Worksheet, row: int, values: Sequence[Any], look: str, codes: Mapping[int, str] = MappingProxyType({})
) -> None:
    """Write the cells of a decision; ``codes``: number formats of its amounts."""
    for place, (value, (first, last)) in enumerate(zip(values, _SPANS, strict=True)):
        number = codes.get(place, "0 %")
        cell: Any = put(sheet.cell(row, first), value, look, number if isinstance(value, float) else None)
        if last > first:
            sheet.merge_cells(start_row=row, start_column=first, end_row=row, end_column=last)
        if look == "xlperf text":
            side = "right" if isinstance(value, float) else "left"
            cell.alignment = Alignment(vertical="center", horizontal=side, wrap_text=True, indent=int(side == "left"))
            close = place in (4, 8) and "close" in str(value)
            ink = style.WARN_INK if close else style.NAVY if place == 0 else style.INK
            cell.font = Font(name=style.FONT, size=9, bold=place == 0, color=ink)


def _format(amounts: Sequence[float]) -> str:
    """Format of a column of amounts: the decimals that three figures of the smallest take, three at the most."""
    known = [amount for amount in amounts if amount > 0.0]
    decimals = min(max(0, 2 - int(np.floor(np.log10(min(known))))), 3) if known else 0
    return f"#,##0.{'0' * decimals}" if decimals else "#,##0"


_LETTERS = (28, 38, 13, 9, 25, 12, 12, 12, 12, 9, 25)
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


def summary_sheet(sheet: Worksheet, report: data.Report) -> None:
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
    heights = [max(5.0, 3.0 + 0.33 * min(len(pairs), _BARS)) for _, pairs in shown]
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
        tall = 13.5 * lines_of(finding.tag, width_of(sheet, 1, 1)) + 4
        sheet.row_dimensions[row - 1].height = max(sheet.row_dimensions[row - 1].height, tall)
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


def _pairs(group: data.Plans) -> list[int]:
    """Row of the best plan of each model and accelerator that fits, in the order of the models."""
    order = list(dict.fromkeys(group.models))
    pairs: dict[tuple[str, str], list[int]] = {}
    for row in group.where(data.GOOD).tolist():
        pairs.setdefault((group.models[row], group.accelerators[row]), []).append(row)
    ranked = sorted(pairs, key=lambda pair: order.index(pair[0]))
    results = [best(group, _TABLES[group.kind][0], np.array(pairs[pair])) for pair in ranked]
    return [row for row in results if row is not None]


def _top(sheet: Worksheet, group: data.Plans, pairs: Sequence[int], row: int) -> tuple[data.Drawn, int]:
    """The best plan of each model and accelerator, in the order of the plans; the table and the row below it."""
    rate, others = _TABLES[group.kind]
    results: list[Column] = [
        group.results.schema.by_name[name]
        for name in (rate, *others.split())
        if name in group.results.schema.by_name and name in group.results
    ]
    columns = [*data.report_columns("best", rate=rate.replace("_", " ")), *results]
    rows: list[Sequence[Any]] = []
    for top in pairs[:_TOP_ROWS]:
        values = [float(group.number(column.name)[top]) for column in results]
        count = int(group.plans.number("num_accelerators", 1.0)[top])
        rows.append([group.models[top], group.names[top], group.accelerators[top], count, *values])
    table = data.drawn_table(sheet, columns, rows, row, f"best_{group.kind}")
    sheet.row_dimensions[row].height = 54
    row += len(rows) + 1
    if len(pairs) > _TOP_ROWS:
        put(sheet.cell(row, 1), f"{data.plural(len(pairs) - _TOP_ROWS, 'more pair')}: see {group.kind}.", "xlperf note")
        row += 1
    return table, row


def _chart(table: data.Drawn, group: data.Plans, count: int, row: int, height: float) -> None:
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
        shown = f" \N{MIDDLE DOT} {data.number_words(amount)}" if isinstance(amount, float) else ""
        put(sheet.cell(down, _LAST + 2), f"{data.short(str(plan), 80)}{shown}", "xlperf note", None, False)
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


def findings(report: data.Report) -> list[Finding]:
    """Answers of a report: a decision for each model, then what else to know."""
    return [finding for group in report.groups for finding in decision_findings(group)] + other_findings(report)


def other_findings(report: data.Report) -> list[Finding]:
    """Refused and too large plans, scarce memory, uncertain plans, and where the step time goes."""
    results: list[Finding] = []
    for group in report.groups:
        results.extend(_refused(group))
        results.extend(_too_large(group))
    for group in report.groups:
        rows = group.where(data.GOOD)
        results.extend(_tightest(group, rows))
        results.extend(_doubtful(group, rows, _TIME[group.kind]))
        if group.kind == "training":
            results.extend(_losses(group))
    return results


def best(group: data.Plans, name: str, rows: np.ndarray) -> int | None:
    """Row with the highest value of a result among some rows; None if none has one."""
    values = group.number(name)[rows]
    return int(rows[np.nanargmax(values)]) if np.isfinite(values).any() else None


def _plan(group: data.Plans, row: int) -> str:
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


def _tightest(group: data.Plans, rows: np.ndarray) -> Iterator[Finding]:
    """The plan that fits with the least memory to spare."""
    need, have = needs(group)
    spare = (have - need)[rows]
    if np.isfinite(spare).any():
        row = int(rows[int(np.nanargmin(spare))])
        words = (
            f"{_plan(group, row)}: {data.number_words(need[row])} of {data.number_words(have[row])} GiB, "
            f"{100 * float(1.0 - need[row] / have[row]):.1f} % to spare."
        )
        yield Finding(f"Least memory left, {_LATER[group.kind]}", words, "warning")


def _doubtful(group: data.Plans, rows: np.ndarray, name: str) -> Iterator[Finding]:
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
    extrapolated = ",".join(_FAMILIES.findall(str(group.results.text("reason")[row]))).split(",")
    families = data.listed(list(dict.fromkeys([family.strip() for family in extrapolated if family])))
    unit = group.results.schema.by_name[name].unit
    called = name.replace("_", " ").replace("tpot", "time per output token")
    ends = [data.number_words(end[at]) for end in (middle, low, high)]
    words = f"{_plan(group, row)}: {called} of {ends[0]} {unit}, 80 % band {ends[1]} to {ends[2]}"
    yield Finding(
        f"Least sure, {_LATER[group.kind]}", f"{words}{f'; extrapolated: {families}' if families else ''}.", "warning"
    )


_FAMILIES = re.compile(r"extrapolated: ([^;]*)")


def _losses(group: data.Plans) -> Iterator[Finding]:
    rows = group.where(data.GOOD, data.TOO_LARGE)
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
        f"In the median plan {100 * float(np.median(lost)):.1f} % of the step is not forward or backward work. "
        f"The largest part of it is {part}: {100 * float(np.nanmean(share)):.1f} % of the step "
        f"on average, {100 * float(np.nanmax(share)):.1f} % in {_plan(group, at)}."
    )
    yield Finding("Where training time goes", words)


def _too_large(group: data.Plans) -> Iterator[Finding]:
    rows = group.where(data.TOO_LARGE)
    if not len(rows):
        return
    need, have = needs(group)
    over, reasons = need - have, group.results.text("reason")
    order = rows[np.argsort(-np.nan_to_num(over[rows]), kind="stable")]
    said = []
    for row in order:
        if over[row] > 0.0:
            share = f"{100 * (over[row] / have[row]):.1f} %"
            each = f"{data.number_words(need[row])} GiB of {data.number_words(have[row])} GiB, {share} too much"
            said.append(f"{group.names[row]} ({each})")
        else:  # another pool of the plan, or a budget
            said.append(f"{group.names[row]} ({reasons[row].partition(';')[0] or 'no reason given'})")
    verb = "does" if len(rows) == 1 else "do"
    words = f"{data.plural(len(rows), f'{group.kind} plan')} {verb} not fit in memory: {data.listed(said)}."
    yield Finding("Does not fit", words, "warning")


def needs(group: data.Plans) -> tuple[np.ndarray, np.ndarray]:
    """Memory that plans need, with reserves if they are computed, and memory that there is. [GiB]"""
    need = group.number("memory_reserved")
    return np.where(np.isnan(need), group.number("memory"), need), group.number("memory_capacity")


def _refused(group: data.Plans) -> Iterator[Finding]:
    rows = group.where(data.REFUSED)
    if not len(rows):
        return
    reasons = group.results.text("reason")
    said = [f"{group.names[row]} ({str(reasons[row]).rstrip('.') or 'no reason given'})" for row in rows]
    verb = "is" if len(rows) == 1 else "are"
    words = f"{data.plural(len(rows), f'{group.kind} plan')} {verb} refused: {data.listed(said)}."
    yield Finding("Refused", words, "bad")
