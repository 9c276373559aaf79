"""The demand of a form served in other ways: with its fixed entries open, and on other accelerators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np

from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog, part_of
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.tables import together
from xlperf.explore.fleet_plans import DEGREES, way_words
from xlperf.explore.fleet_pools import STATE
from xlperf.explore.objectives import Answer, short_name
from xlperf.explore.search import stacked
from xlperf.explore.serve import fills_a_copy, search_of, serving_ways, stated_entries, way_answers
from xlperf.explore.space import with_columns
from xlperf.explore.workers import in_halves

OTHERS = ("H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB", "GB200-NVL72", "MI300X", "MI355X")
"""Accelerators to compare an answer with, if the catalog has them."""
_SET = ("software", "mode", "num_accelerators", *DEGREES, "concurrency")
"""Entries of a form that fix how it serves a model."""


def best_way(form: Table, answer_of: Callable[[Table], Answer]) -> Answer:
    """The best way to serve the demand of a form with its fixed entries open, for comparison with the fixed way.

    ``answer_of``: gives the answer of a form, as :func:`serve_answer` does.
    """
    is_set = any(name in form and form[name][0] != "" and form[name][0] == form[name][0] for name in _SET)
    if not is_set or fills_a_copy(form):
        return {}
    columns = {name: values for name, values in form.columns.items() if name not in (*_SET, "way")}
    fixed = answer_of(form).get("accelerators", np.nan)
    answer = answer_of(replace(form, columns=columns))
    best = answer.get("accelerators", np.nan)
    if best != best:
        return {}
    takes = f"he best way takes {best:,.0f} accelerators with {way_words(answer['software'], answer['mode'], answer)}"
    words = f"As you set it: {fixed:,.0f}; t{takes}" if fixed == fixed else f"T{takes}"
    words = "No other way takes fewer accelerators than yours" if fixed <= best else words
    return {"best_way": words, "best_accelerators": best}


def other_machines(form: Table, names: Sequence[str], catalog: Catalog) -> Answer:
    """Accelerators that would serve a demand that the form's own cannot, as ``best_way``."""
    result, named = [], str(form.text("accelerator")[0])
    form = with_columns(form, users=1.0) if fills_a_copy(form) else form
    columns = {name: values for name, values in form.columns.items() if name not in _SET}
    for name in names:
        asked = with_columns(replace(form, columns=columns), accelerator=name, prefill_accelerator="")
        search = search_of(asked, catalog)
        if name != named and search.demand.kept(evaluate(search.single_users(), catalog, results=STATE)).any():
            result.append(short_name(name))
    would = f"{', '.join(result)} would serve this" if result else f"None of {', '.join(map(short_name, names))} would"
    return {"best_way": would}


def others_of(catalog: Catalog) -> list[str]:
    """Accelerators of a catalog to compare an answer with."""
    known = set(catalog.tables["accelerators"].text("accelerator").tolist())
    return [name for name in OTHERS if name in known]


_known: WeakKeyDictionary[Catalog, dict[object, Table]] = WeakKeyDictionary()
"""Cached comparisons, by the part of the catalog that they need."""


def on_other_accelerators(form: Table, catalog: Catalog) -> Table:
    """The cheapest way to serve the demand of a form on each other accelerator, mapped anew; the cheapest first."""
    columns = {name: values for name, values in form.columns.items() if name not in (*_SET, "way", "hour_price")}
    asked = replace(form, columns=columns)
    names = [] if fills_a_copy(form) else others_of(catalog)
    forms = [with_columns(asked, accelerator=name) for name in names]
    if not forms:
        return Table("serve_others", {})
    part = part_of(catalog, stacked([form, *forms]))
    cached = _known.setdefault(part, {})
    key = stated_entries(form, ("way",))
    if key not in cached:
        others = [other for other in forms if other["accelerator"][0] != form["accelerator"][0]]
        # The form itself is searched beside the others, so that its answer is known as well.
        _, *lines = in_halves(_cheapest_each, [form, *others], part)
        known = [line for line in lines if line]
        schema = [column.name for column in table_schema("serve_others").columns]
        ordered = sorted(known, key=lambda line: float(line["fleet_cost_per_million_output_tokens"]))
        cached[key] = Table.of_lines("serve_others", [{name: line[name] for name in schema} for line in ordered])
    return cached[key]


def _cheapest_each(forms: Sequence[Table], catalog: Catalog) -> list[Answer]:
    return together([partial(_cheapest, form, catalog) for form in forms])


def _cheapest(form: Table, catalog: Catalog) -> Answer:
    """Answer with the cheapest way to serve the demand of a form; empty if none does, or a row of the catalog is at
    fault, which the question about this accelerator names.
    """
    try:
        answers = way_answers(form, serving_ways(form, catalog)[:1], catalog)
    except InputError:
        return {}
    return answers[0] | {"accelerator": str(form["accelerator"][0])} if answers else {}
