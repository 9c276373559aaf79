"""Plans without ``auto``: a search chooses the value of every such cell."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, Unpack
from weakref import WeakKeyDictionary

import numpy as np

from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog, part_of
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.tables import Progress
from xlperf.explore.candidates import Bounds, auto_faults
from xlperf.explore.objectives import ILLEGAL, Search
from xlperf.explore.search import search


class Resolved(NamedTuple):
    """Plans without ``auto``, with the same rows and places, and for each searched row a note on the choice."""

    plans: Table
    notes: dict[int, str]


def has_auto(plans: Table) -> bool:
    """Whether any cell is ``auto``."""
    return any(mask.any() for mask in plans.auto.values())


def resolve(plans: Table, catalog: Catalog, progress: Progress | None = None, **bounds: Unpack[Bounds]) -> Resolved:
    """Replace every ``auto`` by the best value.

    :func:`xlperf.explore.search.search` runs on each row without an objective; rows that differ only in name share one
    search. If no plan fits, the plan with the least memory replaces the row; if none satisfies its targets, the nearest
    one; if none is legal, the plan with its defaults.
    """
    if not has_auto(plans):
        return Resolved(plans, {})
    faults = auto_faults(plans)
    if faults:
        raise InputError(faults)
    rows = np.flatnonzero(np.logical_or.reduce(list(plans.auto.values()))).tolist()
    columns = dict(plans.columns)
    notes: dict[int, str] = {}
    for row in rows:
        plan = plans.take([row])
        try:
            result = _best(plan, catalog, **bounds)
        except InputError as error:
            faults += error.faults
            continue
        words = result.words if result.kind == ILLEGAL else f"{result.chosen_words}: {result.words}"
        notes[row] = f"auto: {words}"
        for name in result.searched:
            values = result.plans.columns.get(name)
            if values is not None:
                columns[name] = columns[name].copy()
                columns[name][row] = values[0]
        if progress is not None:
            progress(1)
    if faults:
        raise InputError(faults)
    return Resolved(replace(plans, columns=columns, auto={}), notes)


_CACHE_SIZE = 1024
_known: WeakKeyDictionary[Catalog, OrderedDict[object, Search]] = WeakKeyDictionary()


def _best(plan: Table, catalog: Catalog, **bounds: Unpack[Bounds]) -> Search:
    """Cached search of one plan, by its values except the name and by the catalog rows that it references."""
    part = part_of(catalog, plan)
    values = tuple((name, str(column[0])) for name, column in plan.columns.items() if name != "name")
    key = plan.kind, values, tuple(name for name, mask in plan.auto.items() if mask[0]), tuple(sorted(bounds.items()))
    cached = _known.setdefault(part, OrderedDict())
    if key not in cached:
        cached[key] = search(plan, part, **bounds)
    cached.move_to_end(key)
    while len(cached) > _CACHE_SIZE:
        cached.popitem(last=False)
    return cached[key]


def evaluate_resolved(
    plans: Table, catalog: Catalog, progress: Progress | None = None, **bounds: Unpack[Bounds]
) -> tuple[Table, Table]:
    """Plans with every ``auto`` chosen, and their results, whose reasons state the choice."""
    resolved = resolve(plans, catalog, **bounds)
    results = evaluate(resolved.plans, catalog, progress)
    return resolved.plans, with_notes(results, resolved.notes)


def with_notes(results: Table, notes: Mapping[int, str]) -> Table:
    """Results whose reasons begin with the notes of :class:`Resolved`."""
    if not notes:
        return results
    reason = results["reason"].copy()
    for row, note in notes.items():
        reason[row] = f"{note}; {reason[row]}" if reason[row] else note
    return replace(results, columns={**results.columns, "reason": reason})
