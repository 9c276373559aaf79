"""Forms and their answers as tables: machines to serve a model, a training run, and a custom chip."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from xlperf.base import resources
from xlperf.catalog.catalog import Catalog, part_of
from xlperf.catalog.cells import number_of
from xlperf.catalog.formats import states_format
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.questions import questions
from xlperf.catalog.schema import FORMS, first_words, results_of, table_schema
from xlperf.catalog.table import Place, Table, nowhere
from xlperf.explore.chips import BESIDE, chip_answers
from xlperf.explore.fleet_answer import fleet_answer
from xlperf.explore.objectives import PLAN, TABLES, Answer
from xlperf.explore.quote import quote_answer
from xlperf.explore.search import stacked
from xlperf.explore.serve import NOTHING, best_way, other_machines, serve_answer, serving_ways, way_answers
from xlperf.explore.sessions import sessions_answer
from xlperf.explore.spares import spares_answer
from xlperf.explore.train import train_answer

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
    """Answers of forms, from a cache that holds while the referenced catalog rows are unchanged.

    Chips that are not in the cache are evaluated together.
    """
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
    columns: dict[str, np.ndarray] = {}
    for column in schema.columns:
        blank: Any = "" if column.is_text else np.nan
        results = [answer.get(column.name, blank) for answer in answers]
        columns[column.name] = np.array(results, dtype=object if column.is_text else np.float64)
    return Table(schema.name, columns, forms.place)


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
