"""Forms and their answers as tables, one or many; tables of chips and the worth of their budgets."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from xlperf.base import resources
from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError
from xlperf.base.units import UNITS
from xlperf.catalog.catalog import Catalog, part_of
from xlperf.catalog.cells import number_of, parse_header
from xlperf.catalog.formats import states_format
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.questions import questions
from xlperf.catalog.schema import FORMS, auto_columns, first_words, results_of, table_schema
from xlperf.catalog.table import Place, Table, nowhere
from xlperf.explore.chips import BESIDE, chip_answers
from xlperf.explore.fleet_answer import fleet_answer
from xlperf.explore.fleet_plans import with_columns
from xlperf.explore.objectives import PLAN, TABLES, Answer
from xlperf.explore.quote import quote_answer
from xlperf.explore.search import stacked
from xlperf.explore.serve import NOTHING, best_way, other_machines, serve_answer, serving_ways, way_answers
from xlperf.explore.sessions import sessions_answer
from xlperf.explore.space import grid
from xlperf.explore.spares import spares_answer
from xlperf.explore.train import train_answer
from xlperf.explore.vary import read_variation

_known: WeakKeyDictionary[Catalog, dict[object, Answer]] = WeakKeyDictionary()


OTHERS = ("H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB", "GB200-NVL72", "MI300X", "MI355X")
"""Accelerators to compare an answer with, if the catalog has them."""


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
    known = catalog.tables["accelerators"].text("accelerator")
    beside = [{"accelerator": name} for name in OTHERS if name in known]
    changes = {
        "serve": beside,
        "chip": beside[:4],
        "train": [{"num_accelerators": count} for count in counts.split(",")[1:6]],
    }
    for kind in FORMS:
        first = first_words(kind)
        yield from (form_of(kind, first | changed) for changed in ({}, *changes.get(kind, ())))


def evaluate_forms(forms: Table, catalog: Catalog) -> Table:
    """Answers of forms, each from a search."""
    rows = [forms.take([row]) for row in range(len(forms))]
    beside = [_beside(form, catalog) for form in rows]
    return answers_table(
        forms, [answer | more for answer, more in zip(answers_of(forms, catalog), beside, strict=True)]
    )


def _beside(form: Table, catalog: Catalog) -> Answer:
    """The comparison of an answer: the best way to serve beside the form's own, or other machines that would serve."""
    if form.kind != "serve":
        return {}
    form, _ = _with_exact_names(form, catalog)
    part = part_of(catalog, form)
    best = {"best_way": NOTHING} | best_way(form, part)
    limited = bool(np.isfinite(form.number("facility_power_limit")[0]))
    if limited or len(best) > 1 or serving_ways(form, part):
        return best
    names = [name for name in OTHERS if name in catalog.tables["accelerators"].text("accelerator")]
    return other_machines(form, names, catalog)


def answer_of(form: Table, catalog: Catalog) -> Answer:
    """Answer of one form: one row."""
    return answers_of(form, catalog)[0]


def answers_of(forms: Table, catalog: Catalog) -> list[Answer]:
    """Answers of forms, from a cache that holds while the referenced catalog rows are unchanged."""
    exact = [_with_exact_names(forms.take([row]), catalog) for row in range(len(forms))]
    places = []
    for form, _ in exact:
        is_built = form.kind == "chip" and not form.text("accelerator")[0]
        # A form whose sheets name accelerators may need any row of the catalog.
        part = catalog if _names_accelerators(form.kind) else part_of(catalog, form, (BESIDE,) if is_built else ())
        given = ((name, str(values[0])) for name, values in sorted(form.columns.items()))
        open_ = tuple(sorted(name for name, mask in form.auto.items() if mask[0]))
        key = form.kind, open_, _stamp(form), tuple((name, value) for name, value in given if value not in ("", "nan"))
        places.append((_known.setdefault(part, {}), key, form, part))
    lacking = [place for place in places if place[1] not in place[0]]
    if lacking and forms.kind == "chip":
        for (cached, key, *_), answer in zip(
            lacking, _chips([form for _, _, form, _ in lacking], catalog), strict=True
        ):
            cached[key] = answer
    for cached, key, form, part in lacking:
        if key not in cached:
            cached[key] = _SOLVERS[form.kind](form, part)
    answers = []
    for (cached, key, *_), (_, notes) in zip(places, exact, strict=True):
        answer = dict(cached[key])
        answers.append(answer | {"answer": " ".join([str(answer["answer"]), *notes])} if notes else answer)
    return answers


def _names_accelerators(kind: str) -> bool:
    """Whether a question reads a sheet whose rows name accelerators."""
    read = (table_schema(name).columns for name in questions()[kind].reads)
    return any(column.reference == "accelerators" for columns in read for column in columns)


def _stamp(form: Table) -> int:
    """When the trace that a form names was written; 0 without one."""
    path = str(form.text("trace")[0]) if "trace" in form.schema.by_name else ""
    return os.stat(path).st_mtime_ns if path and os.path.exists(path) else 0


def _chips(forms: Sequence[Table], catalog: Catalog) -> list[Answer]:
    return chip_answers(forms, part_of(catalog, stacked(forms), (BESIDE,)))


def ways_of(form: Table, catalog: Catalog) -> tuple[Table, Table]:
    """All ways to serve the demand of a form: evaluated plans of their copies, and their answers."""
    form, _ = _with_exact_names(form, catalog)
    part = part_of(catalog, form)
    fleets = serving_ways(form, part)
    plans = stacked([fleet.plan for fleet in fleets]) if fleets else Table("inference", {})
    return plans, answers_table(form, way_answers(form, fleets, part))


def plan_of(form: Table, catalog: Catalog) -> Table | None:
    """The evaluated plan of a form's answer; None if it has none."""
    plan = answer_of(form, catalog).get(PLAN)
    return plan if isinstance(plan, Table) else None


def tables_of(form: Table, catalog: Catalog) -> dict[str, Table]:
    """The tables beside a form's answer, by the names that its question declares; empty without an answer."""
    known, question = answer_of(form, catalog).get(TABLES, {}), questions()[form.kind]
    return {name: known.get(name, Table(question.table(name), {})) for name in question.tables}


def _with_exact_names(form: Table, catalog: Catalog) -> tuple[Table, list[str]]:
    """A form with the catalog's spelling of names, and a sentence for each changed name."""
    columns, notes = dict(form.columns), []
    for column in form.schema.columns:
        if column.kind != "reference" or column.name not in form:
            continue
        catalog.rows(column.reference, form[column.name], form, column.name)
        name = str(form[column.name][0])
        exact = catalog.taken(column.reference).get(name)
        if exact is not None:
            if column.reference != "models" or not states_format(form[column.name][:1])[0]:
                columns[column.name] = np.array([exact], dtype=object)
            notes.append(f"{column.name.replace('_', ' ').capitalize()} {name} taken as {exact}.")
    return replace(form, columns=columns), notes


def answers_table(forms: Table, answers: Sequence[Answer]) -> Table:
    """Answers as the table of results of their kind."""
    schema = results_of(forms.kind)
    blank = {column.name: "" if column.is_text else np.nan for column in schema.columns}
    return replace(Table.of_lines(schema.name, [blank | answer for answer in answers]), place=forms.place)


_SOLVERS = {"serve": serve_answer, "train": train_answer, "sessions": sessions_answer, "fleet": fleet_answer,
            "spares": spares_answer, "quote": quote_answer}  # fmt: skip
"""What answers a form of a kind with the part of the catalog that it names: results, :data:`PLAN`, :data:`TABLES`."""


_WORDS = ("recompute", "pipeline_schedule", "mode")  # columns of words whose default an answer always states


def without_defaults(plans: Table) -> Table:
    """Plans with blanks for the counts and words that equal the default of their column."""
    columns = dict(plans.columns)
    for column in table_schema(plans.kind).columns:
        values, default = columns.get(column.name), column.default
        if values is None:
            continue
        if column.name in _WORDS or column.name == "recompute_modules":
            default = "none" if column.name == "recompute_modules" else default
            columns[column.name] = np.where(values.astype(str) == default, "", values).astype(object)
        elif column.kind == "number" and column.unit == "-" and default:
            columns[column.name] = np.where(values == float(default), np.nan, values)
    return Table(plans.kind, columns, plans.place)


MOST_CHIPS = 2_000  # largest number of chips in one table [-]
ALIKE = 1e-4  # relative difference within which rates and costs of chips count as equal [-]
RATE, COST, PRICE = "tokens_per_second_per_accelerator", "unit_cost", "capex"
AREA_STEP, POWER_STEP, CACHE_STEP = 0.05, 0.05, 0.25
"""Finite-difference steps of die area, power and cache, over the chip's own. [-]"""


AXES: dict[str, tuple[str, ...]] = {
    "technology": ("4 nm", "3 nm", "2 nm"), "memory_stacks": ("4", "6"), "cache": ("32", "128", "320"),
    "num_dies": ("1", "2"),
}  # fmt: skip
"""Varied entries in the table of the front sheet, with their first values."""


def varied_chips(form: Table, lines: Sequence[tuple[str, Sequence[str]]], place: str) -> tuple[Table, list[str]]:
    """A form with every combination of values of some entries, the last one fastest, and the varied entries.

    ``lines``: header of an entry, and its values: numbers, factors as ``x2``, ``auto`` and names. InputError, at
    ``place``, has every fault.
    """
    columns: dict[str, np.ndarray] = {}
    faults: list[Fault] = []
    for header, words in lines:
        try:
            name, values = _read(form, header, [word.strip() for word in words], place)
            if name in columns:
                raise InputError(Fault(place, f"{name.replace('_', ' ')} is given twice"))
            columns[name] = values
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(faults)
    number = prod(map(len, columns.values()))
    if number > MOST_CHIPS:
        raise InputError(Fault(place, f"these are {number:,} chips; a table has {MOST_CHIPS:,} at the most"))
    forms, known = grid(form, columns), table_schema("chip").by_name
    auto = {name: forms[name] == "" if known[name].is_text else np.isnan(forms[name]) for name in columns}
    return replace(forms, auto={**forms.auto, **auto}), [*columns]


def first_chips() -> Iterator[Table]:
    """Forms of the table of chips in the shipped workbook, in blocks."""
    lines = [(name.replace("_", " "), values) for name, values in AXES.items()]
    forms, _ = varied_chips(form_of("chip", first_words("chip")), lines, "")
    return (forms.take(slice(start, start + 6)) for start in range(0, len(forms), 6))


def _read(form: Table, header: str, words: Sequence[str], place: str) -> tuple[str, np.ndarray]:
    """An entry and its values, blank for ``auto``."""
    stated = [word for word in words if word.casefold() != "auto"]
    values: list[float | str] = []
    if not stated:
        field = next(iter(parse_header("chip", [header]).fields), None)
        if field is None:
            read_variation("chip", [(header, ["1"])], place)  # says which entries there are
            raise InputError(Fault(place, f"unknown entry {header}"))
        name = field.column.name
    else:
        asked = read_variation("chip", [(header, stated)], place)
        for variation in asked.varied:
            if variation.sheet != "chip" or variation.shape:
                problem = "write values of an entry of the chip, as cache=64,128; xlperf evaluate varies the sheets"
                raise InputError(Fault(place, f"{variation.column.name}: {problem}"))
        if asked.varied:
            name = asked.varied[0].name
            first = float(form.filled(name)[0])
            if np.isnan(first):
                raise InputError(Fault(place, f"{name.replace('_', ' ')} is auto: write values, no factors"))
            values = (first * asked.varied[0].values).tolist()
        else:
            name, numbers = next(iter(asked.values.items()))
            values = numbers.tolist()
    column = table_schema("chip").by_name[name]
    if len(stated) < len(words):
        if name not in auto_columns("chip"):
            raise InputError(Fault(place, f"{name.replace('_', ' ')} cannot be auto: write values"))
        values.insert([word.casefold() for word in words].index("auto"), "" if column.is_text else np.nan)
    return name, column.array(values)


def frontier_of(results: Table) -> Array:
    """Pareto frontier of tokens per second against unit cost: 1 on it, 0 dominated, NaN without an answer."""
    rate, cost = results.number(RATE), results.number(COST)
    more, less = 1.0 + ALIKE, 1.0 - ALIKE
    better = (rate[None, :] > more * rate[:, None]) & (cost[None, :] <= more * cost[:, None])
    cheaper = (rate[None, :] >= less * rate[:, None]) & (cost[None, :] < less * cost[:, None])
    beaten = (better | cheaper).any(axis=1)
    return np.where(np.isnan(rate + cost), np.nan, np.where(beaten, 0.0, 1.0))


class _Step(NamedTuple):
    """A change of one entry: its words, unit and number of units; the column, its value before, and the change."""

    words: str
    unit: str
    size: float
    column: str
    before: float
    change: float


def chip_worth(form: Table, answer: Answer, catalog: Catalog) -> Table:
    """Worth of the next mm2, stack, W and MB of cache: added tokens at equal tokens per dollar of the price.

    Finite differences of the form's answer: every other choice stays, and the area and cost budgets are lifted. If more
    has no room, the result is the worth of the last unit.
    """
    fixed = {name: answer[name] for name in ("num_dies", "die_area", "cache", "memory_stacks")}
    fixed |= {"area_budget": np.nan, "cost_budget": np.nan}
    limit = float(form.number("power_budget")[0])
    limit = limit if limit == limit else float(answer["thermal_design_power"])
    dies, area, cache = (float(answer[name]) for name in ("num_dies", "die_area", "cache"))
    steps = (
        _Step("silicon", "mm2", AREA_STEP * dies * area, "die_area", area, AREA_STEP * area),
        _Step("memory", "stack", 1.0, "memory_stacks", float(answer["memory_stacks"]), 1.0),
        _Step("power", "W", POWER_STEP * limit, "power_budget", limit, POWER_STEP * limit),
        _Step("cache", "MB", CACHE_STEP * cache / UNITS["MB"].factor, "cache", cache, CACHE_STEP * cache),
    )
    changes: list[dict[str, float]] = [{}]
    for step in steps:
        changes += [{step.column: step.before + step.change}, {step.column: step.before - step.change}]
    stated = {step.column: form.number(step.column)[0] for step in steps} | fixed
    columns = {name: [change.get(name, value) for change in changes] for name, value in stated.items()}
    base, *others = answers_of(with_columns(form.take([0] * len(changes)), **columns), catalog)
    lines = [
        _line(step, base, *pair) for step, pair in zip(steps, zip(others[::2], others[1::2], strict=True), strict=True)
    ]
    return Table.of_lines("chip_worth", lines)


def _line(step: _Step, base: Answer, more: Answer, less: Answer) -> dict[str, object]:
    """Tokens and price of one more unit, or of the last unit if more has no room."""

    def rate(answer: Answer) -> float:
        return float(answer.get(RATE, np.nan))

    up = rate(more) == rate(more)
    changed, sign = (more, 1.0) if up else (less, -1.0)
    added = sign * (rate(changed) - rate(base)) / step.size
    price = sign * (float(changed.get(PRICE, np.nan)) - float(base[PRICE])) / step.size
    price = price if abs(price * step.size) > ALIKE * float(base[PRICE]) else 0.0
    worth = added / rate(base) * float(base[PRICE])
    return {
        "change": step.words, "step": sign * step.size, "unit": step.unit, "rate": added, "worth": worth,
        "price": price, "verdict": verdict_of(worth, price, up),
    }  # fmt: skip


def verdict_of(worth: float, price: float, has_room: bool) -> str:
    """Whether one more unit pays, in words.

    >>> verdict_of(12.0, 3.0, True), verdict_of(-2.0, 0.0, True), verdict_of(1.0, 3.0, False)
    ('pays', 'less of it pays', 'does not pay; more has no room')
    """
    if worth != worth:
        return "no room for more or less"
    words = (
        "pays" if worth > price else "no use" if worth == 0.0 else "less of it pays" if worth < 0.0 else "does not pay"
    )
    return words if has_room else f"{words}; more has no room"
