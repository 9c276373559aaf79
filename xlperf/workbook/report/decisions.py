"""The cheapest and the fastest plan of each model: by how much, and how sure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from openpyxl.styles import Alignment, Font

from xlperf.studies.outcome import Finding
from xlperf.workbook import style
from xlperf.workbook.report.data import GOOD, Plans, distinct, number_words
from xlperf.workbook.style import heading, put

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


_GOALS = {
    "training": (
        Goal("cost_per_million_tokens", True, "USD per million tokens", "cost_per_million_tokens", "cheaper"),
        Goal("tokens_per_second", False, "tokens per second", "tokens_per_second", "faster"),
    ),
    "inference": (
        Goal("cost_per_million_output_tokens_all_in", True, "USD per million output tokens, prompts included",
             "cost_per_million_output_tokens", "cheaper"),
        Goal("tpot", True, "ms per output token", "tpot", "faster"),
    ),
}  # fmt: skip
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

    group: Plans
    model: str
    rows: tuple[int, ...]
    choices: tuple[Choice | None, Choice | None]

    def trust(self, choice: Choice) -> str:
        """Evidence for the chosen plan: measured, interpolated or extrapolated."""
        return str(self.group.results.text("trust")[choice.row]).partition(" ")[0].rstrip(":,;").lower()


def decisions(group: Plans) -> list[Decision]:
    """The models with a choice between plans that fit, in the order of the plans; every model if none has a choice."""
    same = [np.nan_to_num(group.plans.number(name), nan=-1.0) for name in _ALIKE[group.kind]]
    by_model: dict[tuple[str, tuple[float, ...]], list[int]] = {}
    for row in group.where(GOOD).tolist():
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


def _choice(group: Plans, goal: Goal, rows: Sequence[int]) -> Choice | None:
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


def decision_findings(group: Plans) -> list[Finding]:
    """The decisions of a group in words, one finding for each model."""
    results = []
    for decision in decisions(group):
        said = []
        for word, goal, choice in zip(("cheapest", "fastest"), _GOALS[group.kind], decision.choices, strict=True):
            if choice is None:
                continue
            words = f"{word} {group.names[choice.row]}, {number_words(choice.amount)} {goal.unit}"
            if choice.next_row is not None:
                words += f", {100 * choice.ahead:.0f} % {goal.than} than {group.names[choice.next_row]}"
            if sure := choice.sure(decision.trust(choice)):
                words += f" ({sure})"
            said.append(words)
        results.append(Finding(f"{WORK[group.kind]} {decision.model}", f"{'; '.join(said)}.", "good"))
    return results


_WRAPPED = {0: 21, 1: 41, 4: 27, 5: 39, 8: 27}
"""Cells of a decision that wrap, and their letters in a line."""
_SPANS = ((1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 8), (9, 9), (10, 10), (11, 11))
"""First and last column of the cells of a decision."""


def decision_rows(sheet: Worksheet, group: Plans, row: int) -> int:
    """Write the decisions of a group as a table; the row below it."""
    made = decisions(group)
    if not made:
        return row
    fits = len(group.where(GOOD))
    lengths = ", prompt/output tokens" if group.kind == "inference" and any("/" in one.model for one in made) else ""
    words = f"{WORK[group.kind]}: the cheapest and the fastest plan of each model{lengths}"
    row = heading(sheet, row, f"{words} ({fits} of {len(group)} plans fit)")
    bases = distinct([str(group.results.text("cost_basis")[row]) for one in made for row in one.rows])
    basis = f" ({bases[0]})" if len(bases) == 1 and bases[0] else ""
    cheap, fast = _GOALS[group.kind]
    heads = ("model", "cheapest plan", cheap.unit + basis, "cheaper than the next", "80 % band, how sure",
             "fastest plan", fast.unit, "faster than the next", "80 % band, how sure")  # fmt: skip
    _cells(sheet, row, heads, "xlperf header")
    sheet.row_dimensions[row].height = 38 if len(heads[2]) > 40 else 26
    for decision in made:
        row += 1
        cells: list[Any] = [decision.model]
        for choice in decision.choices:
            if choice is None:
                cells += [None, None, None, None]
                continue
            ahead = choice.ahead if np.isfinite(choice.ahead) else None
            cells += [group.names[choice.row], choice.amount, ahead, choice.sure(decision.trust(choice))]
        _cells(sheet, row, cells, "xlperf text")
        lines = max(-(-len(str(cells[place] or "")) // letters) for place, letters in _WRAPPED.items())
        sheet.row_dimensions[row].height = 2.0 + 13.0 * max(lines, 1)
    return row + 2


def _cells(sheet: Worksheet, row: int, values: Sequence[Any], look: str) -> None:
    for place, (value, (first, last)) in enumerate(zip(values, _SPANS, strict=True)):
        number = "0%" if place in (3, 7) else _format(value)
        cell: Any = put(sheet.cell(row, first), value, look, number if isinstance(value, float) else None)
        if last > first:
            sheet.merge_cells(start_row=row, start_column=first, end_row=row, end_column=last)
        if look == "xlperf text":
            side = "right" if isinstance(value, float) else "left"
            cell.alignment = Alignment(vertical="center", horizontal=side, wrap_text=True, indent=int(side == "left"))
            close = place in (4, 8) and "close" in str(value)
            ink = style.WARN_INK if close else style.NAVY if place == 0 else style.INK
            cell.font = Font(name=style.FONT, size=9, bold=place == 0, color=ink)


def _format(value: Any) -> str:
    """Format of an amount in three figures."""
    if not isinstance(value, float) or not value > 0.0:
        return "General"
    decimals = max(0, 2 - int(np.floor(np.log10(value))))
    return f"#,##0.{'0' * decimals}" if decimals else "#,##0"
