"""Forms and their answers, as tables and for a terminal, a page and a notebook; tables of chips."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from xlperf.base import resources
from xlperf.base.errors import Fault, InputError, raise_faults
from xlperf.catalog.catalog import Catalog, part_of
from xlperf.catalog.cells import number_of, parse_header
from xlperf.catalog.parse import asked_words, plain_number, table_from_rows
from xlperf.catalog.schema import (
    FORMS,
    PER_CENT,
    Part,
    auto_columns,
    band_end,
    column,
    first_words,
    parts,
    per_cent,
    questions,
    results_of,
    rounded,
    shown_columns,
    table_schema,
    title_of,
    unit_of,
    viewed_columns,
)
from xlperf.catalog.table import Place, Table, nowhere
from xlperf.engine.tables import Progress, together
from xlperf.explore.chips import BESIDE, RATE, chip_answers, chip_row, chip_worth, frontier_of
from xlperf.explore.day import day_answer
from xlperf.explore.fleet_answer import fleet_answer
from xlperf.explore.money import as_asked
from xlperf.explore.objectives import PLAN, TABLES, Answer, Limit
from xlperf.explore.others import best_way, on_other_accelerators, other_machines, others_of
from xlperf.explore.quote import quote_answer
from xlperf.explore.rl import rl_answer
from xlperf.explore.search import stacked
from xlperf.explore.serve import NOTHING, serve_answer, serving_ways, way_answers
from xlperf.explore.sessions import sessions_answer
from xlperf.explore.space import grid
from xlperf.explore.spares import spares_answer
from xlperf.explore.train import train_answer
from xlperf.explore.vary import read_variation
from xlperf.interop.checkpoints import states_format

_known: WeakKeyDictionary[Catalog, dict[object, Answer]] = WeakKeyDictionary()


def form_of(kind: str, words: Mapping[str, str], place: Place = nowhere) -> Table:
    """A form as a table of one row, from the texts of its entries."""
    known = table_schema(kind).by_name
    cells = [number_of(text) if known[name].kind == "number" else text for name, text in words.items()]
    cells = [text if cell != cell else cell for cell, text in zip(cells, words.values(), strict=True)]
    return table_from_rows(kind, [known[name].header for name in words], [cells], place)


def first_forms(catalog: Catalog) -> Iterator[Table]:
    """Default forms of the shipped workbook and the alternatives shown next to them."""
    counts = next(row["choices"] for row in resources.rows("workbook/forms.csv") if row["column"] == "num_accelerators"
                  and row["form"] == "train")  # fmt: skip
    changes = {
        "chip": [{"accelerator": name} for name in others_of(catalog)[:4]],
        "train": [{"num_accelerators": count} for count in counts.split(",")[1:6]],
    }
    for kind in FORMS:
        first = first_words(kind)
        yield from (form_of(kind, first | changed) for changed in ({}, *changes.get(kind, ())))


def evaluate_forms(forms: Table, catalog: Catalog) -> Table:
    """Answers of forms, each from a search."""
    answers = answers_of(forms, catalog)
    more = [_beside(forms.take([row]), answer, catalog) for row, answer in enumerate(answers)]
    return answers_table(forms, [answer | own for answer, own in zip(answers, more, strict=True)])


def _beside(form: Table, answer: Answer, catalog: Catalog) -> Answer:
    """The comparison of an answer: the best way to serve beside the form's own, or other machines that would serve."""
    if form.kind != "serve":
        return {}
    form, _ = _with_exact_names(form, catalog)
    best = {"best_way": NOTHING} | best_way(form, lambda each: answer_of(each, catalog))
    if np.isfinite(form.stated("facility_power_limit")) or len(best) > 1 or answer.get("num_ways", np.nan) >= 1.0:
        return best
    return other_machines(form, others_of(catalog), catalog)


def answer_of(form: Table, catalog: Catalog) -> Answer:
    """Answer of one form: one row."""
    return answers_of(form, catalog)[0]


def answers_of(forms: Table, catalog: Catalog) -> list[Answer]:
    """Answers of forms, from a cache that holds while the referenced catalog rows are unchanged."""
    exact = [_with_exact_names(forms.take([row]), catalog) for row in range(len(forms))]
    places = []
    for form, _ in exact:
        is_built = form.kind == "chip" and not form.text("accelerator")[0]
        part = catalog if _needs_any_row(form) else part_of(catalog, form, (BESIDE,) if is_built else ())
        given = ((name, str(values[0])) for name, values in sorted(form.columns.items()))
        open_ = tuple(sorted(name for name, mask in form.auto.items() if mask[0]))
        key = form.kind, open_, _stamp(form), tuple((name, value) for name, value in given if value not in ("", "nan"))
        places.append((_known.setdefault(part, {}), key, form, part))
    lacking = [place for place in places if place[1] not in place[0]]
    if lacking and forms.kind == "chip":
        chips = _chips([form for *_, form, _ in lacking], catalog)
        for (cached, key, *_), answer in zip(lacking, chips, strict=True):
            cached[key] = answer
    else:
        serving = [form for *_, form, _ in lacking if form.kind == "serve"]
        joint = part_of(catalog, stacked(serving)) if serving else None  # evaluations can only be joined on one catalog
        distinct = {(id(cached), key): (cached, key, form, joint or part) for cached, key, form, part in lacking}
        together([partial(_solve, *place) for place in distinct.values()])
    answers = []
    for (cached, key, *_), (_, notes) in zip(places, exact, strict=True):
        answer = dict(cached[key])
        answers.append(answer | {"answer": " ".join([str(answer["answer"]), *notes])} if notes else answer)
    return answers


def _solve(cached: dict[object, Answer], key: object, form: Table, catalog: Catalog) -> None:
    cached[key] = _SOLVERS[form.kind](form, catalog)


def _needs_any_row(form: Table) -> bool:
    """Whether a form may need any row of the catalog: it names other models, or its sheets name accelerators."""
    read = (declared for name in questions()[form.kind].reads for declared in table_schema(name).columns)
    names = "other_models" in form and form.word("other_models")
    return bool(names) or any(declared.reference == "accelerators" for declared in read)


def _stamp(form: Table) -> int:
    """When the trace that a form names was written; 0 without one."""
    path = str(form.text("trace")[0]) if "trace" in form.schema.by_name else ""
    return os.stat(path).st_mtime_ns if path and os.path.exists(path) else 0


def _chips(forms: Sequence[Table], catalog: Catalog) -> list[Answer]:
    return chip_answers(forms, part_of(catalog, stacked(forms), (BESIDE,)))


def ways_of(form: Table, catalog: Catalog) -> tuple[Table, Table]:
    """All ways to serve the demand of a form: evaluated plans of their copies, and their answers."""
    form, _ = _with_exact_names(form, catalog)
    fleets = serving_ways(form, part := part_of(catalog, form))
    plans = stacked([way.plan for way in as_asked(form, fleets, part)]) if fleets else Table("inference", {})
    return plans, answers_table(form, way_answers(form, fleets, part))


def plan_of(form: Table, catalog: Catalog) -> Table | None:
    """The evaluated plan of a form's answer; None if it has none."""
    plan = answer_of(form, catalog).get(PLAN)
    return plan if isinstance(plan, Table) else None


def table_of(form: Table, name: str, catalog: Catalog) -> Table:
    """A table beside a form's answer, by a name that its question declares; empty without an answer."""
    if (form.kind, name) == ("serve", "others"):  # searches of its own
        return on_other_accelerators(_with_exact_names(form, catalog)[0], catalog)
    return tables_of(form, catalog)[name]


def tables_of(form: Table, catalog: Catalog) -> dict[str, Table]:
    """The tables that an answer to a form has beside it, by the names that its question declares."""
    answer, question = answer_of(form, catalog), questions()[form.kind]
    known = dict(answer.get(TABLES, {}))
    if form.kind == "serve":
        ways = ways_of(form, catalog)[1]
        known["ways"] = replace(ways, columns={name: ways[name] for name in viewed_columns("ways")})
    elif form.kind == "chip":
        known |= {"accelerator": Table("accelerators", {})} | _beside_chip(form, answer, catalog)
    return {name: known[name] if name in known else Table(question.table(name), {}) for name in question.tables}


def _beside_chip(form: Table, answer: Answer, catalog: Catalog) -> dict[str, Table]:
    """The worth of more of each part of a chip, if its price is known, and its row of accelerators; none if refused."""
    if str(answer["answer"]).startswith("No "):
        return {}
    priced = answer["capex"] == answer["capex"]
    worth = {"worth": chip_worth(form, answer, partial(answers_of, catalog=catalog))} if priced else {}
    return worth | {"accelerator": chip_row(form, catalog)[0]}


def _with_exact_names(form: Table, catalog: Catalog) -> tuple[Table, list[str]]:
    """A form with the catalog's spelling of names, and a sentence for each changed name."""
    columns, notes = dict(form.columns), []
    for declared in form.schema.columns:
        if declared.kind != "reference" or declared.name not in form:
            continue
        catalog.rows(declared.reference, form[declared.name], form, declared.name)
        name = str(form[declared.name][0])
        exact = catalog.taken(declared.reference).get(name)
        if exact is not None:
            if declared.reference != "models" or not states_format(form[declared.name][:1])[0]:
                columns[declared.name] = np.array([exact], dtype=object)
            notes.append(f"{declared.name.replace('_', ' ').capitalize()} {name} taken as {exact}.")
    return replace(form, columns=columns), notes


def answers_table(forms: Table, answers: Sequence[Answer]) -> Table:
    """Answers as the table of results of their kind."""
    schema = results_of(forms.kind)
    blank = {declared.name: "" if declared.is_text else np.nan for declared in schema.columns}
    return replace(Table.of_lines(schema.name, [blank | answer for answer in answers]), place=forms.place)


_SOLVERS = {"serve": serve_answer, "train": train_answer, "sessions": sessions_answer, "fleet": fleet_answer,
            "spares": spares_answer, "quote": quote_answer, "rl": rl_answer, "day": day_answer}  # fmt: skip
"""What answers a form of a kind with the part of the catalog that it names: results, :data:`PLAN`, :data:`TABLES`."""


_WORDS = ("recompute", "pipeline_schedule", "mode")  # columns of words whose default an answer always states


def without_defaults(plans: Table) -> Table:
    """Plans with blanks for the counts and words that equal the default of their column."""
    columns = dict(plans.columns)
    for declared in table_schema(plans.kind).columns:
        values, default = columns.get(declared.name), declared.default
        if values is None:
            continue
        if declared.name in _WORDS or declared.name == "recompute_modules":
            default = "none" if declared.name == "recompute_modules" else default
            columns[declared.name] = np.where(values.astype(str) == default, "", values).astype(object)
        elif declared.kind == "number" and declared.unit == "-" and default:
            columns[declared.name] = np.where(values == float(default), np.nan, values)
    return Table(plans.kind, columns, plans.place)


TOGETHER = 15  # questions that are searched side by side [-]
MOST_CHIPS = 2_000  # largest number of chips in one table [-]


AXES: dict[str, tuple[str, ...]] = {
    "technology": ("4 nm", "3 nm", "2 nm"), "memory_stacks": ("4", "6"), "cache": ("32", "128", "320"),
    "num_dies": ("1", "2"),
}  # fmt: skip
"""Varied entries in the table of the front sheet, with their first values."""


_Lines = Sequence[tuple[str, Sequence[str]]]


def varied_forms(form: Table, lines: _Lines, place: str, catalog: Catalog | None = None) -> tuple[Table, list[str]]:
    """A form with every combination of values of some entries, the last one fastest, and the varied entries.

    ``lines``: header of an entry, and its values: numbers, factors as ``x2``, ``auto`` and names. A factor of an entry
    that is ``auto`` counts from what the answer by ``catalog`` has for it. InputError, at ``place``, has every fault.
    """
    columns: dict[str, np.ndarray] = {}
    faults: list[Fault] = []
    for header, words in lines:
        try:
            name, values = _read(form, header, [word.strip() for word in words], place, catalog)
            if name in columns:
                raise InputError(Fault(place, f"{name.replace('_', ' ')} is given twice"))
            columns[name] = values
        except InputError as error:
            faults += error.faults
    raise_faults(faults)
    if (number := prod(map(len, columns.values()))) > MOST_CHIPS:
        raise InputError(Fault(place, f"these are {number:,} rows; a table has {MOST_CHIPS:,} at the most"))
    forms, known = grid(form, columns), table_schema(form.kind).by_name
    auto = {name: forms[name] == "" if known[name].is_text else np.isnan(forms[name]) for name in columns}
    return replace(forms, auto={**forms.auto, **auto}), [*columns]


def first_chips() -> Iterator[Table]:
    """Forms of the table of chips in the shipped workbook, in blocks."""
    lines = [(name.replace("_", " "), values) for name, values in AXES.items()]
    forms, _ = varied_forms(form_of("chip", first_words("chip")), lines, "")
    return (forms.take(slice(start, start + 6)) for start in range(0, len(forms), 6))


def _read(form: Table, header: str, words: Sequence[str], place: str, known: Catalog | None) -> tuple[str, np.ndarray]:
    """An entry and its values, blank for ``auto``."""
    kind, stated = form.kind, [word for word in words if word.casefold() != "auto"]
    values: list[float | str] = []
    if not stated:
        if (field := next(iter(parse_header(kind, [header]).fields), None)) is None:
            read_variation(kind, [(header, ["1"])], place)  # says which entries there are
            raise InputError(Fault(place, f"unknown entry {header}"))
        name = field.column.name
    else:
        asked = read_variation(kind, [(header, stated)], place)
        for variation in asked.varied:
            if variation.sheet != kind or variation.shape:
                example = {"chip": "cache=64,128", "serve": "users=1000,5000"}.get(kind, "num accelerators=128,256")
                problem = f"write values of an entry of xlperf {kind}, as {example}; xlperf evaluate varies the sheets"
                raise InputError(Fault(place, f"{variation.column.name}: {problem}"))
        if asked.varied:
            name = asked.varied[0].name
            first = float(form.filled(name)[0])
            if np.isnan(first) and known is not None:
                first = float(evaluate_forms(form, known).columns.get(name, [np.nan])[0])
            if np.isnan(first):
                raise InputError(Fault(place, f"{name.replace('_', ' ')} is auto: write values; {_CHOICE}"))
            values = (first * asked.varied[0].values).tolist()
        else:
            name, numbers = next(iter(asked.values.items()))
            values = numbers.tolist()
    declared = table_schema(kind).by_name[name]
    if len(stated) < len(words):
        if name not in auto_columns(kind):
            raise InputError(Fault(place, f"{name.replace('_', ' ')} cannot be auto: write values"))
        values.insert([word.casefold() for word in words].index("auto"), "" if declared.is_text else np.nan)
    return name, declared.array(values)


_CHOICE = "the answer without a variation names what auto stands for"
_WITHOUT = {"request_rate": "users", "facility_power_limit": "users", "num_accelerators": "users",
            "deadline": "num_accelerators", "workload": "copy_size"}  # fmt: skip
"""Entries that ask for what another one else states, or change its sense: the other one has no default beside them."""
ACCELERATORS = "accelerators"
"""Result of a fleet or a run that has an answer."""
_NOUNS = {"chip_results": "chip", "serve_results": "fleet", "train_results": "run"}
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
                if declared.is_text and self.says(declared.name):
                    lines.append(Shown(declared.name, declared.header, title_of(declared, str(value))))
                continue
            factor, name = unit_of(declared).factor, _BANDS.get(declared.name, declared.name)
            ends = [answer.get(f"{name}_{end}", float("nan")) / factor for end in ("low", "high")]
            band = f"{band_end(ends[0])} to {band_end(ends[1])}" if ends[0] < ends[1] else ""
            words = f"{per_cent([value])[0]} %" if declared.name in PER_CENT else rounded(value / factor)
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
        basis = str(answer.get("price_basis", ""))
        taken = "; ".join(filter(None, [answer.get("defaults_used", ""), basis and f"price: {basis}"]))
        lines = (("", sure), ("assumptions: ", taken), ("asked: ", asked_words(self.kind, self.form)))
        return [f"{words}{text}" for words, text in lines if text]


def asked_form(kind: str, given: Mapping[str, str | None]) -> tuple[dict[str, str], Table]:
    """Entries of a form, the given ones with the others' defaults, and the form."""
    known = table_schema(kind).by_name
    values = {name: plain_number(known[name], words) for name, words in given.items() if words is not None}
    dropped = {other for name, other in _WITHOUT.items() if values.get(name, "auto").strip() not in ("", "auto")}
    form = {name: value for name, value in first_words(kind).items() if name not in dropped} | values
    return form, form_of(kind, form, lambda _, entry: f"--{entry.replace('_', '-')}")


def answered(kind: str, given: Mapping[str, str | None], catalog: Catalog, limits: Sequence[Limit] = ()) -> Answered:
    """The answer to a question."""
    form, table = asked_form(kind, given)
    is_chip = kind == "chip"
    results = answers_table(table, answers_of(table, catalog)) if is_chip else evaluate_forms(table, catalog)
    missed = [words for limit in limits if (words := _missed(limit, results))]
    if is_chip:
        return Answered(form, table, results, _beside_chip(table, answer_of(table, catalog), catalog), missed=missed)
    if kind != "serve":
        return Answered(form, table, results, tables_of(table, catalog), plan_of(table, catalog), missed)
    plans, ways = ways_of(table, catalog)
    return Answered(form, table, results, {"ways": ways} | answer_of(table, catalog).get(TABLES, {}), plans, missed)


def nested_parts(answer: Answered) -> dict[str, list[Part]]:
    """Tables beside an answer; of ways to serve the columns that a terminal shows, of years the unit of the demand."""
    tables = {name: parts(table) for name, table in answer.nested.items()}
    if "years" in tables and np.isnan(answer.table.number("users")[0]):
        rates = {"demand": "request/s", "unmet": "request/s"}
        tables["years"] = [(replace(one, unit=rates.get(one.name, one.unit)), own) for one, own in tables["years"]]
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
    words = "" if valid.all() and not limits else words
    if chips:
        best = int(np.nansum(marked[0][1]))
        are = "is" if best == 1 else "are"
        words = f"{best:,} of {len(rows):,} chips {are} beaten by no other in token/s and cost of a unit"
    return Chips([*entries, *given, *reached, *marked], [*entries, *shown, *marked, *reason], words, bool(valid.any()))


def _blocks(forms: Table, catalog: Catalog, done: Progress) -> Iterator[Table]:
    size = 100 if forms.kind == "chip" else TOGETHER
    for start in range(0, len(forms), size):
        block = evaluate_forms(forms.take(slice(start, start + size)), catalog)
        done(len(block))
        yield block


def _entry(part: Part, results: Table) -> Part:
    declared, values = part
    if declared.name not in results:
        return part
    if declared.is_text:
        chosen = results.text(declared.name)
        return declared, np.where(chosen == "", values, chosen)
    numbers = results.number(declared.name)
    return declared, np.where(np.isnan(numbers), values, numbers)


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
