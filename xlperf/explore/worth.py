"""What more of something is worth: the best plan with it and without it, at equal cost per token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.base.units import YEAR
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import column, table_schema, unit_of
from xlperf.catalog.table import Table
from xlperf.engine.tables import Progress
from xlperf.equations.plan.precisions import PRECISIONS
from xlperf.explore.candidates import Bounds
from xlperf.explore.found import Search
from xlperf.explore.objectives import Limit, Objective, objective_of
from xlperf.explore.search import search
from xlperf.explore.vary import Varied, changed_catalog, read_variation, sheet_rows

STEP = 1.01
"""Factor of the change whose worth is asked where none is stated. [-]"""
MONTH = YEAR / 12.0
"""[s]"""


def usual_changes(plan: Table, catalog: Catalog) -> list[Varied]:
    """One per cent more memory bandwidth, memory, peak rate, link bandwidth and, where the plan has them, targets.

    Parameters
    ----------
    plan : Table
        One training or inference plan.
    catalog : Catalog
        What it refers to.

    Returns
    -------
    list of Varied
        Those of which the sheets have a number to change.
    """
    peak = f"peak_flop_rate_{PRECISIONS[str(plan.filled('precision')[0])].peak}"
    names = [("accelerators", name) for name in ("memory_bandwidth", "memory_capacity", peak)]
    names.append(("networks", "link_bandwidth"))
    if plan.kind == "inference":
        names += [(plan.kind, name) for name in ("ttft_target", "tpot_target")]
    changes = [Varied(sheet, name, np.array([STEP]), True) for sheet, name in names]
    return [one for one in changes if not np.isnan(_stated(plan, catalog, one)).any()]


def read_changes(kind: str, lines: Sequence[tuple[str, Sequence[str]]], place: str) -> list[Varied]:
    """Numbers of the plans or of catalog sheets and what they change to, from lines of a column and its values.

    Parameters
    ----------
    kind : str
        training or inference.
    lines : sequence of (str, sequence of str)
        As of :func:`xlperf.explore.vary.read_variation`.
    place : str
        Where they stand, for the messages.

    Raises
    ------
    InputError
        Where one is no list of numbers.
    """
    asked = read_variation(kind, lines, place)
    known = table_schema(kind).by_name
    texts = [name for name in asked.values if known[name].kind != "number"]
    if asked.auto or texts or any(one.shape for one in asked.varied):
        raise InputError(Fault(place, "what a change is worth takes numbers, as 'accelerators.memory bandwidth=x1.1'"))
    return [*(Varied(kind, name, values, False) for name, values in asked.values.items()), *asked.varied]


def worth(
    plan: Table,
    catalog: Catalog,
    changes: Sequence[Varied],
    limits: Sequence[Limit] = (),
    progress: Progress | None = None,
    **bounds: Unpack[Bounds],
) -> Table:
    """What more of each number is worth per accelerator and month, with the best plan before and after.

    An accelerator that makes tokens cheaper may cost more until a token costs as much as before: that difference, over
    the change. It is exactly 0 where the best plan does not use more. Cells that say ``auto`` are chosen anew.

    Parameters
    ----------
    plan : Table
        One training or inference plan.
    catalog : Catalog
        What it refers to.
    changes : sequence of Varied
        Numbers of the plan or of catalog sheets, with the factors or values that they change to.
    limits : sequence of Limit
        What the plans must keep, beside their own targets.
    progress : callable, optional
        Called with the number of plans of each block that is done.
    **bounds : Bounds
        Most candidates of a plan, and most accelerators tried for ``auto``.

    Returns
    -------
    Table
        ``worth``: a row for each change, blank where no plan fits and keeps the limits.

    Raises
    ------
    InputError
        As :func:`xlperf.explore.search.search` and :func:`xlperf.explore.vary.changed_catalog`.
    """
    cost = objective_of(plan.kind, "cost")

    def best(own: Table, known: Catalog) -> Search:
        return search(own, known, cost.column.name, limits, progress=progress, **bounds)

    before = best(plan, catalog)
    lines: list[dict[str, object]] = []
    for one in changes:
        for value in one.values.tolist():
            stated = _stated(plan, catalog, one)
            after = best(*_changed(plan, catalog, one, value))
            lines.append(_line(plan, one, value, stated, cost, before, after))
    return _table("worth", lines)


def break_even(
    plan: Table,
    others: Sequence[str],
    catalog: Catalog,
    limits: Sequence[Limit] = (),
    progress: Progress | None = None,
    **bounds: Unpack[Bounds],
) -> Table:
    """At which cost of an hour other accelerators make tokens as cheaply as that of a plan.

    The cost of a token is that of an hour over the tokens of an hour, so the best plan does not depend on the price.

    Parameters
    ----------
    plan : Table
        One training or inference plan; its cells that say ``auto`` are chosen for each accelerator.
    others : sequence of str
        Accelerators, each with its default network.
    catalog : Catalog
        What the plans refer to.
    limits : sequence of Limit
        What they must keep.
    progress : callable, optional
        Called with the number of plans of each block that is done.
    **bounds : Bounds
        Most candidates of a plan, and most accelerators tried for ``auto``.

    Returns
    -------
    Table
        ``break_even``: a row for each accelerator, blank where no plan fits and keeps the limits.

    Raises
    ------
    InputError
        As :func:`xlperf.explore.search.search`.
    """
    cost = objective_of(plan.kind, "cost").column.name

    def best(own: Table) -> Search:
        return search(own, catalog, cost, limits, progress=progress, **bounds)

    def cost_of(found: Search) -> float:
        return float(found.results[cost][0]) if found.found else np.nan

    here = best(plan)
    lines: list[dict[str, object]] = []
    for other in others:
        swapped = {"accelerator": np.array([other], dtype=object), "network": np.array([""], dtype=object)}
        there = best(replace(plan, columns={**plan.columns, **swapped}))
        hour = float(there.results["accelerator_hour_cost"][0])
        lines.append(
            {
                "plan": str(plan.text("name")[0]) or plan.place(0, "name"),
                "accelerator": str(plan["accelerator"][0]),
                "against": other,
                "cost": cost_of(here),
                "cost_against": cost_of(there),
                "hour_cost_against": hour,
                "break_even_hour_cost": hour * cost_of(here) / cost_of(there),
                "chosen": there.chosen_words if there.found else there.words,
            }
        )
    return _table("break_even", lines)


def _table(kind: str, lines: Sequence[dict[str, object]]) -> Table:
    columns = {
        name: np.array([line[name] for line in lines], dtype=object if declared.is_text else np.float64)
        for name, declared in table_schema(kind).by_name.items()
    }
    return Table(kind, columns)


def _line(
    plan: Table, one: Varied, value: float, stated: np.ndarray, cost: Objective, before: Search, after: Search
) -> dict[str, object]:
    declared = column(one.sheet, one.name)
    unit = unit_of(declared).factor
    first = float(stated[0]) / unit  # of a network with several tiers that of the innermost
    second = first * value if one.factors else value / unit
    prices = [float(found.results[cost.column.name][0]) if found.found else np.nan for found in (before, after)]
    extra = float(after.results["accelerator_hour_cost"][0]) * MONTH * (prices[0] / prices[1] - 1.0)
    same = before.chosen_words == after.chosen_words
    return {
        "plan": str(plan.text("name")[0]) or plan.place(0, "name"),
        "input": declared.header,
        "sheet": one.sheet,
        "value_before": first,
        "value_after": second,
        "cost_before": prices[0],
        "cost_after": prices[1],
        "worth": extra / (second - first),
        "chosen": after.words if not after.found else "the same plan" if same else after.chosen_words,
    }


def _stated(plan: Table, catalog: Catalog, one: Varied) -> np.ndarray:
    """What the plan or the rows of a sheet that it names have."""
    if one.sheet == plan.kind:
        return plan.number(one.name)
    return np.asarray(catalog.tables[one.sheet].number(one.name)[sheet_rows(catalog, plan, one)])


def _changed(plan: Table, catalog: Catalog, one: Varied, value: float) -> tuple[Table, Catalog]:
    if one.sheet != plan.kind:
        return plan, changed_catalog(catalog, plan, [(one, value)])
    changed = plan.number(one.name) * value if one.factors else np.full(len(plan), value)
    return replace(plan, columns={**plan.columns, one.name: changed}), catalog
