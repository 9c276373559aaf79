"""Sweeps: every plan with every combination of values of columns of plans and of the catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import Column
from xlperf.catalog.table import Table
from xlperf.engine.tables import Progress
from xlperf.explore.candidates import MOST_CANDIDATES
from xlperf.explore.counts import MOST_ACCELERATORS
from xlperf.explore.grid import MOST_PLANS, grid
from xlperf.explore.resolve import evaluate_resolved
from xlperf.explore.search import stacked
from xlperf.explore.vary import Varied, changed_catalog, combinations


class Sweep(NamedTuple):
    """Plans with their results, and what the catalog had.

    Attributes
    ----------
    plans, results : Table
        The grid of plans for the first combination of catalog values, then for the second ...
    varied : list of (Column, Array)
        Values or factors of the columns of the catalog, one per row.
    """

    plans: Table
    results: Table
    varied: list[tuple[Column, Array]]


def sweep(
    plans: Table,
    catalog: Catalog,
    values: Mapping[str, np.ndarray],
    varied: Sequence[Varied] = (),
    most: int = MOST_CANDIDATES,
    progress: Progress | None = None,
    most_accelerators: float = MOST_ACCELERATORS,
) -> Sweep:
    """Evaluate every plan with every combination of values.

    Parameters
    ----------
    plans : Table
        Training or inference plans; their cells that say ``auto`` are chosen anew for each combination.
    catalog : Catalog
        What they refer to.
    values : mapping of str to array
        Columns of the plans, as :func:`xlperf.explore.grid.read_values` has them.
    varied : sequence of Varied
        Columns of the catalog, changed in the rows that the plans name.
    most : int
        Plans that a row with ``auto`` may stand for; where it is more than a million also those of the sweep.
    progress : callable, optional
        Called with the number of plans of each block that is done.
    most_accelerators : float
        Largest number of accelerators that ``auto`` stands for. [-]

    Returns
    -------
    Sweep
        One row per plan and combination, none left out.

    Raises
    ------
    InputError
        Where there are more than a million, and as :func:`xlperf.explore.resolve.evaluate_resolved`.
    """
    points = combinations(varied)
    largest = max(most, MOST_PLANS)
    table = grid(plans, values, largest)
    if len(points) * len(table) > largest:
        problem = f"the sweep has {len(points) * len(table):,} plans, more than {largest:,} (--most of the commands)"
        raise InputError(Fault("", problem))
    shown, reached = [], []
    for point in points:
        own = changed_catalog(catalog, table, point) if point else catalog
        resolved, results = evaluate_resolved(table, own, most, progress, most_accelerators)
        shown.append(resolved)
        reached.append(results)
    columns = [
        (one.column, np.repeat([point[place][1] for point in points], len(table))) for place, one in enumerate(varied)
    ]
    return Sweep(stacked(shown), stacked(reached), columns)
