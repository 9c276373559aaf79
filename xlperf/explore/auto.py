"""Plans with ``auto`` turned into plans without: every such cell gets the value that a search chooses."""

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
from xlperf.explore.search import search
from xlperf.explore.search_results import ILLEGAL, Search


class Resolved(NamedTuple):
    """Plans without ``auto``.

    - ``plans``: the same rows, places as before.
    - ``notes``: what was chosen in the rows that had an ``auto``, or why nothing could be.
    """

    plans: Table
    notes: dict[int, str]


def has_auto(plans: Table) -> bool:
    """Whether any cell says ``auto``."""
    return any(mask.any() for mask in plans.auto.values())


def resolve(
    plans: Table,
    catalog: Catalog,
    progress: Progress | None = None,
    **bounds: Unpack[Bounds],
) -> Resolved:
    """Put the best value in the place of every ``auto``.

    Each row is searched by itself as :func:`xlperf.explore.search.search` does without an objective; rows that are
    the same but for their names are searched once. If no plan fits, the one that needs least memory stands, where
    none keeps its targets the one that comes nearest, if none is legal the plan with its defaults.

    ``progress``: called with 1 for each row that had an ``auto`` and is done. ``**bounds``: most candidates of a plan,
    and most accelerators tried for ``auto``. Returns plans that :func:`xlperf.engine.evaluate` takes. Raises InputError
    as :func:`xlperf.explore.candidates.candidates`, with the faults of all rows.
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
        one = plans.take([row])
        try:
            result = _best(one, catalog, **bounds)
        except InputError as error:
            faults += error.faults
            continue
        notes[row] = _note(result)
        for name in result.searched:
            values = result.plans.columns.get(name)
            if values is not None:
                columns[name] = _with(columns[name], row, values[0])
        if progress is not None:
            progress(1)
    if faults:
        raise InputError(faults)
    return Resolved(replace(plans, columns=columns, auto={}), notes)


def _with(column: np.ndarray, row: int, value: object) -> np.ndarray:
    changed = column.copy()
    changed[row] = value
    return changed


_CACHE_SIZE = 1024
_known: WeakKeyDictionary[Catalog, OrderedDict[object, Search]] = WeakKeyDictionary()


def _best(one: Table, catalog: Catalog, **bounds: Unpack[Bounds]) -> Search:
    """The search of a plan, from a cache by the part of the catalog that it names; names of plans do not matter."""
    part = part_of(catalog, one)
    values = tuple((name, str(column[0])) for name, column in one.columns.items() if name != "name")
    key = one.kind, values, tuple(name for name, mask in one.auto.items() if mask[0]), tuple(sorted(bounds.items()))
    cached = _known.setdefault(part, OrderedDict())
    if key not in cached:
        cached[key] = search(one, part, **bounds)
    cached.move_to_end(key)
    while len(cached) > _CACHE_SIZE:
        cached.popitem(last=False)
    return cached[key]


def _note(searched: Search) -> str:
    if searched.kind == ILLEGAL:
        return f"auto: {searched.words}"
    return f"auto: {searched.chosen_words}: {searched.words}"


def evaluate_resolved(
    plans: Table,
    catalog: Catalog,
    progress: Progress | None = None,
    **bounds: Unpack[Bounds],
) -> tuple[Table, Table]:
    """Plans with every ``auto`` chosen, and their results; the reasons say what was chosen among how many.

    ``progress``: called with the number of rows of each block that is done. ``**bounds``: most candidates of a plan,
    and most accelerators tried for ``auto``. Returns plans and results, row by row. Raises InputError as
    :func:`resolve` and :func:`xlperf.engine.evaluate`.
    """
    resolved = resolve(plans, catalog, **bounds)
    results = evaluate(resolved.plans, catalog, progress)
    return resolved.plans, with_notes(results, resolved.notes)


def with_notes(results: Table, notes: Mapping[int, str]) -> Table:
    """Results whose reasons also say what was chosen.

    ``results``: of plans. ``notes``: as :class:`Resolved` has them. Returns the note first, then what was said before.
    """
    if not notes:
        return results
    reason = results["reason"].copy()
    for row, note in notes.items():
        reason[row] = f"{note}; {reason[row]}" if reason[row] else note
    return replace(results, columns={**results.columns, "reason": reason})
