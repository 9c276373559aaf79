"""Answers to the questions, for a terminal, a page and a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parts import Part, parts, rounded, viewed_columns
from xlperf.catalog.schema import column, first_words, results_of, shown_columns, unit_of
from xlperf.catalog.table import Table
from xlperf.engine.tables import Progress
from xlperf.explore.chip_table import RATE, chip_worth, frontier_of
from xlperf.explore.chips import chip_row
from xlperf.explore.forms import (
    answers_of,
    answers_table,
    evaluate_forms,
    form_of,
    plan_of,
    tables_of,
    ways_of,
    without_defaults,
)  # fmt: skip
from xlperf.explore.objectives import Limit
from xlperf.explore.search import stacked

_WITHOUT = {"request_rate": "users", "deadline": "num_accelerators"}
"""Entries that ask for what another one else states: the other one has no default beside them."""
ACCELERATORS = "accelerators"
"""Result of a fleet or a run that has an answer."""
_NOUNS = {"chip_results": "chip", "serve_results": "fleet", "train_results": "run"}
_SHARES = (
    "memory_used", "head_room", "mfu", "goodput", "effective_share", "elastic_share", "wait_share", "spare_share",
    "limit_share", "efficiency", "percentile",
)  # fmt: skip
"""Results without a unit that are said in per cent."""
_BANDS = {"fleet_cost_per_million_output_tokens": "cost"}
"""How the ends of the 80 % band of a result are named, where not as the result."""


class Shown(NamedTuple):
    """A result of an answer as people read it."""

    name: str
    header: str
    words: str
    band: str = ""


class Answered(NamedTuple):
    """A question and its answer."""

    form: Mapping[str, str]  # entries, with the defaults that were used
    table: Table
    results: Table
    nested: Mapping[str, Table] = {}  # tables beside the answer: ways to serve, worth of more, row of a chip
    plans: Table | None = None  # plans of the ways to serve, or the plan of a run
    missed: Sequence[str] = ()  # limits that the answer misses

    @property
    def kind(self) -> str:
        """The question."""
        return self.table.kind

    @property
    def answer(self) -> dict[str, Any]:
        """Results by name."""
        return {name: values[0] for name, values in self.results.columns.items()}

    @property
    def words(self) -> str:
        """The answer in a sentence."""
        return str(self.results["answer"][0])

    @property
    def refused(self) -> bool:
        """Whether there is no answer."""
        return self.words.startswith("No ")

    @property
    def whole(self) -> list[Part]:
        """Entries of the form and results."""
        return [part for part in parts(self.table) if part[0].name not in self.results] + parts(self.results)

    @property
    def plan(self) -> Table | None:
        """The plan of the answer, in columns without defaults."""
        if self.plans is None or not len(self.plans):
            return None
        way = float(np.nan_to_num(self.answer.get("way", 1.0), nan=1.0))
        return without_defaults(self.plans.take([int(way) - 1]))

    def says(self, name: str) -> bool:
        """Whether the answer has a text."""
        return self.answer.get(name, "") not in ("", "none")

    @property
    def card(self) -> list[Shown]:
        """The results that are shown first, with their 80 % bands."""
        lines, answer = [], self.answer
        for declared in map(results_of(self.kind).by_name.__getitem__, shown_columns(f"{self.kind}_results", "answer")):
            value = answer[declared.name]
            if declared.is_text or value != value:
                lines += [Shown(declared.name, declared.header, str(value))] * (
                    declared.is_text and self.says(declared.name)
                )
                continue
            factor, name = unit_of(declared).factor, _BANDS.get(declared.name, declared.name)
            ends = [answer.get(f"{name}_{end}", float("nan")) / factor for end in ("low", "high")]
            band = f"{rounded(ends[0])} to {rounded(ends[1])}" if ends[0] == ends[0] else ""
            words = f"{rounded(100.0 * value)} %" if declared.name in _SHARES else rounded(value / factor)
            lines.append(Shown(declared.name, declared.header, words, band))
        return lines

    @property
    def beside(self) -> list[str]:
        """Sentences beside the answer: the best way, prices of APIs."""
        return [f"{self.answer[name]}".rstrip(".") + "." for name in ("best_way", "api_answer") if self.says(name)]

    @property
    def notes(self) -> list[str]:
        """Notes below an answer: its trust, the defaults used, and the question."""
        answer = self.answer
        sure = f"{answer['trust']}: {answer['trust_reason']}" if answer.get("trust") else ""
        asked = ", ".join(
            f"{name.replace('_', ' ')} {value}" for name, value in self.form.items() if value not in ("", "auto")
        )
        basis = str(answer.get("price_basis", ""))
        taken = "; ".join(filter(None, [answer.get("defaults_used", ""), basis and f"price: {basis}"]))
        lines = (("", sure), ("assumptions: ", taken), ("asked: ", asked))
        return [f"{words}{text}" for words, text in lines if text]


def asked_form(kind: str, given: Mapping[str, str | None]) -> tuple[dict[str, str], Table]:
    """Entries of a form, the given ones with the others' defaults, and the form."""
    values = {name: words for name, words in given.items() if words is not None}
    dropped = {other for name, other in _WITHOUT.items() if name in values}
    form = {name: value for name, value in first_words(kind).items() if name not in dropped} | values
    return form, form_of(kind, form, lambda _, entry: f"--{entry.replace('_', '-')}")


def answered(kind: str, given: Mapping[str, str | None], catalog: Catalog, limits: Sequence[Limit] = ()) -> Answered:
    """The answer to a question."""
    form, table = asked_form(kind, given)
    if kind == "chip":
        return _chip(form, table, catalog, limits)
    results = evaluate_forms(table, catalog)
    missed = [words for limit in limits if (words := _missed(limit, results))]
    if kind != "serve":
        return Answered(form, table, results, tables_of(table, catalog), plan_of(table, catalog), missed)
    plans, ways = ways_of(table, catalog)
    return Answered(form, table, results, {"ways": ways}, plans, missed)


def _chip(form: Mapping[str, str], table: Table, catalog: Catalog, limits: Sequence[Limit]) -> Answered:
    answer = answers_of(table, catalog)[0]
    results = answers_table(table, [answer])
    missed = [words for limit in limits if (words := _missed(limit, results))]
    refused = str(answer["answer"]).startswith("No ")
    priced = not refused and answer["capex"] == answer["capex"]
    nested = {"worth": chip_worth(table, answer, catalog)} if priced else {}
    nested |= {} if refused else {"accelerator": chip_row(table, catalog)[0]}
    return Answered(form, table, results, nested, missed=missed)


def nested_parts(answer: Answered) -> dict[str, list[Part]]:
    """Tables beside an answer; of ways to serve the columns that a terminal shows."""
    tables = {name: parts(table) for name, table in answer.nested.items()}
    if "ways" in tables:
        known = {part[0].name: part for part in tables["ways"]}
        tables["ways"] = [known[name] for name in viewed_columns("ways") if name in known]
    return tables


def _missed(limit: Limit, results: Table) -> str:
    """By how much an answer misses a limit, in words; "" if it keeps it or has no answer."""
    value = float(limit.sure(results)[0])
    if value != value or limit.kept(results)[0]:
        return ""
    factor, unit = unit_of(limit.column).factor, limit.column.unit if limit.column.unit != "-" else ""
    beyond = rounded(abs(value - limit.bound) / factor)
    side = "more" if value > limit.bound else "less"
    words = f"{limit.column.name.replace('_', ' ')} is {rounded(value / factor)} {unit}".rstrip()
    return f"Limit missed: {words}, {beyond} {side} than {rounded(limit.bound / factor)}."


class Chips(NamedTuple):
    """A table of answers; without one that keeps the limits only lines that say so."""

    whole: list[Part]
    shown: list[Part]
    words: str
    valid: bool  # whether any row has an answer and keeps the limits
    none: Sequence[str] = ()


def varied_answers(
    forms: Table, names: Sequence[str], limits: Sequence[Limit], catalog: Catalog, done: Progress
) -> Chips:
    """Answers of forms that keep the limits; of chips with a mark on each that no other beats."""
    results, chips = stacked(list(_blocks(forms, catalog, done))), forms.kind == "chip"
    entries = [_entry(part, results) for part in parts(forms) if part[0].name in names]
    answer = results.number(RATE if chips else ACCELERATORS)
    valid = np.logical_and.reduce([~np.isnan(answer), *(limit.kept(results) for limit in limits)])
    if limits and not valid.any():
        return Chips([], [], "", False, _none_keeps(entries, results, limits))
    rows = np.flatnonzero(valid) if limits else np.arange(len(forms))
    results = results.take(rows)
    entries = [(one, values[rows]) for one, values in entries]
    marked: list[Part] = [(column("chip_variants", "frontier"), frontier_of(results))] if chips else []
    given = [part for part in parts(forms.take(rows)) if part[0].name not in (*names, *results.columns)]
    reached = [part for part in parts(results) if part[0].name not in names]
    by_name = {part[0].name: part for part in reached}
    view = "table" if chips else "tile"
    shown = [by_name[name] for name in shown_columns(f"{forms.kind}_results", view) if name in by_name]
    reason = [part for part in reached if part[0].name == "reason"]
    words = f"{int(valid.sum()):,} of {len(forms):,} have an answer" + " and keep the limits" * bool(limits)
    if chips:
        best = int(np.nansum(marked[0][1]))
        words = f"{best:,} of {len(rows):,} chips are beaten by no other in tokens/s and cost of a unit"
    return Chips([*entries, *given, *reached, *marked], [*entries, *shown, *marked, *reason], words, bool(valid.any()))


def _blocks(forms: Table, catalog: Catalog, done: Progress) -> Iterator[Table]:
    size = 100 if forms.kind == "chip" else 1
    for start in range(0, len(forms), size):
        block = evaluate_forms(forms.take(slice(start, start + size)), catalog)
        done(len(block))
        yield block


def _entry(part: Part, results: Table) -> Part:
    """A varied entry, with the chosen value for ``auto``."""
    declared, values = part
    if declared.name not in results:
        return part
    chosen = results.number(declared.name)
    return declared, np.where(np.isnan(chosen), values, chosen)


def _none_keeps(entries: Sequence[Part], results: Table, limits: Sequence[Limit]) -> list[str]:
    """Lines that say which row comes nearest to the limits, and by how much it misses them."""
    beyond = np.nan_to_num(np.array([limit.excess(results) for limit in limits]), nan=np.inf).max(axis=0)
    words = f"No {_NOUNS[results.kind]} of {len(results):,} keeps {' and '.join(limit.words for limit in limits)}."
    row = int(np.argmin(beyond))
    if not np.isfinite(beyond[row]):
        return [words, f"None has an answer; the first: {results['reason'][0]}."]
    nearest = ", ".join(
        f"{one.name.replace('_', ' ')} "
        f"{values[row] if one.is_text else f'{rounded(values[row] / unit_of(one).factor)} {one.unit}'.rstrip(' -')}"
        for one, values in entries
    )
    missed = [_missed(limit, results.take([row])) for limit in limits]
    return [words, f"Nearest: {nearest}. {' '.join(filter(None, missed))}"]
