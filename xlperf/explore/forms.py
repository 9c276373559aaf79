"""What forms and their answers share: plans with ``auto``, answers as tables, words, and how far published runs are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from xlperf.base.units import MILLION
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.part import part_of
from xlperf.catalog.schema import results_of, table_schema
from xlperf.catalog.table import Table
from xlperf.engine.trust import RANGES
from xlperf.engine.trust import trust as trust_of

Answer = dict[str, Any]
"""Results of one form by column, in the units used inside; what is missing is NaN or ""."""
BESIDE = "B200-SXM-180GB"
"""Accelerator that a chip is compared with."""
_known: WeakKeyDictionary[Catalog, dict[object, Answer]] = WeakKeyDictionary()


@cache
def _solvers() -> Mapping[str, Callable[[Table, Catalog], Answer]]:
    from xlperf.explore.chip import chip_answer
    from xlperf.explore.serve import serve_answer
    from xlperf.explore.train import train_answer

    return {"serve": serve_answer, "train": train_answer, "chip": chip_answer}


def evaluate_forms(forms: Table, catalog: Catalog) -> Table:
    """Answers of forms, each found by a search.

    ``forms``: rows of a kind of :data:`xlperf.catalog.schema.FORMS`; what is blank or ``auto`` of a mapping is
    searched. Returns the results of the kind, row by row; where there is no answer, numbers are NaN and ``reason`` says
    why. Raises InputError where a name is unknown or a form lacks what its question needs.
    """
    return answers_table(forms, [answer_of(forms.take([row]), catalog) for row in range(len(forms))])


def answer_of(form: Table, catalog: Catalog) -> Answer:
    """Answer of one form, from a cache as long as the rows of the catalog that it names stay what they are.

    ``form``: one row.
    """
    is_built = form.kind == "chip" and not form.text("accelerator")[0]
    part = part_of(catalog, form, (BESIDE,) if is_built else ())
    given = ((name, str(values[0])) for name, values in sorted(form.columns.items()))
    key = form.kind, tuple((name, value) for name, value in given if value not in ("", "nan"))
    cached = _known.setdefault(part, {})
    if key not in cached:
        cached[key] = _solvers()[form.kind](form, part)
    return dict(cached[key])


def answers_table(forms: Table, answers: Sequence[Answer]) -> Table:
    """Answers as the table of results of their kind."""
    schema = results_of(forms.kind)
    columns: dict[str, np.ndarray] = {}
    for column in schema.columns:
        blank: Any = "" if column.is_text else np.nan
        found = [answer.get(column.name, blank) for answer in answers]
        columns[column.name] = np.array(found, dtype=object if column.is_text else np.float64)
    return Table(schema.name, columns, forms.place)


def one_plan(kind: str, columns: Mapping[str, Any], searched: Collection[str], form: Table) -> Table:
    """A plan whose columns that may be searched say ``auto`` where the form leaves them blank.

    ``columns``: columns of the plan. ``searched``: those that a search may choose. ``form``: where the values stand.
    Returns one row.
    """
    order = table_schema(kind).by_name
    blank = {
        name: np.array([value[0] == "" if order[name].is_text else np.isnan(value[0])])
        for name, value in columns.items()
        if name in searched
    }
    given = {name: columns[name] for name in order if name in columns}
    return Table(kind, given, form.place, {name: mask for name, mask in blank.items() if mask.any()})


def slower(results: Table, name: str, catalog: Catalog) -> float:
    """How much longer a time is than expected at the end of its 80 % band that belongs to the case of a catalog.

    ``results``: of one plan. ``name``: a time that has a band: ``step_time``, ``tpot``. ``catalog``: whose case is
    ``low`` (fast and cheap), ``base`` (as expected: 1) or ``high`` (slow and dear).
    """
    if catalog.case == "base":
        return 1.0
    return float(results.number(f"{name}_{catalog.case}")[0] / results.number(name)[0])


def short_name(accelerator: str) -> str:
    """Name of an accelerator without its memory and form: ``H200``.

    >>> short_name("H200-SXM-141GB"), short_name("My chip")
    ('H200', 'My chip')
    """
    return str(accelerator).split("-")[0]


def dollars(amount: float) -> str:
    """An amount of money in words.

    >>> dollars(0.476), dollars(12345.0), dollars(2.5e6), dollars(3.1e9)
    ('$0.48', '$12.3 k', '$2.50 M', '$3.10 bn')
    """
    for factor, word in ((1000.0 * MILLION, " bn"), (MILLION, " M")):
        if amount >= factor:
            return f"${amount / factor:,.2f}{word}"
    return f"${amount / 1e3:,.1f} k" if amount >= 1e4 else f"${amount:,.2f}" if amount < 100 else f"${amount:,.0f}"


def price_words(given: float, basis: str) -> str:
    """Where the price of an hour is from: given, or the sheet prices.

    >>> price_words(float("nan"), "rent")
    'rent of the sheet prices'
    """
    if given == given:
        return "as given"
    return {"rent": "rent of the sheet prices", "own": "owned, by the sheet prices"}.get(basis, "no price known")


def trust(kind: str, plan: Table, catalog: Catalog) -> Answer:
    """How near published runs stand to a plan that has no results: a badge, and the runs with their median error.

    ``catalog``: whose model has aliases. Returns ``trust`` and ``trust_reason``, as in the results of plans: by model
    and accelerator alone.
    """
    models = catalog.rows("models", plan.text("model"), plan, "model")
    accelerators = catalog.rows("accelerators", plan.text("accelerator"), plan, "accelerator")
    known = trust_of(kind, catalog, models, accelerators, np.full((len(RANGES), 1), np.nan))
    return {name: str(known[name][0]) for name in ("trust", "trust_reason")}
