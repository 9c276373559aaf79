"""Inverse questions: the least value of a quantity that satisfies the targets, such as accelerators or bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from xlperf.base.arrays import log
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.tables import Progress
from xlperf.explore.candidates import Bounds
from xlperf.explore.changed_catalogs import with_value
from xlperf.explore.objectives import TARGETS, Limit, is_number_of_accelerators
from xlperf.explore.search import own_targets, search
from xlperf.explore.search_results import Search
from xlperf.explore.vary import Varied

PRECISION = 1e-3
"""Relative width of the final bracket between a feasible and an infeasible value. [-]"""


@dataclass(frozen=True)
class Solution:
    """The answer to an inverse question.

    - ``value``: least (or largest) value that satisfies the targets, in the internal unit; NaN if none does.
    - ``best``: the best plan with this value; the nearest plan if no value satisfies the targets.
    """

    value: float
    best: Search

    @property
    def found(self) -> bool:
        """Whether any value satisfies the targets."""
        return self.best.found


def solve_plan(
    plan: Table,
    catalog: Catalog,
    name: str,
    values: np.ndarray | None,
    targets: Sequence[Limit],
    largest: bool = False,
    objective: str = "",
    progress: Progress | None = None,
    processes: int = 1,
    probability: float = 0.5,
    **bounds: Unpack[Bounds],
) -> Solution:
    """The least value of a plan column with which a plan fits and satisfies its targets.

    An exhaustive search over all values and all choices for ``auto``, without an assumption of monotonicity; only too
    many numbers of accelerators are thinned as in :func:`xlperf.explore.search.search`.

    - ``plan``: one training or inference plan.
    - ``name``: a number column.
    - ``values``: values to try, in the internal unit; None: the values of ``auto``, which the cell must contain.
    - ``targets``: limits on results beside the plan's own targets.
    - ``largest``: find the largest value instead.
    - ``objective``: decides among plans of this value.
    - ``progress``: called with the number of plans of each finished block.
    - ``processes``: processes that share a large search; the answer is the same [-].
    - ``probability``: of meeting the plan's own targets, by the bands of the calibration [-].
    - ``**bounds``: most candidates of a plan, and most accelerators tried for ``auto``.

    The answer is exact for the trial values. Raises InputError as :func:`xlperf.explore.search.search`.
    """
    if values is not None and name in TARGETS.values():  # each plan keeps its own
        varied = Varied(plan.kind, name, values, False)
        return solve_number(
            plan, catalog, varied, targets, largest, objective, progress, processes, probability, **bounds
        )
    stated = None if values is None else {name: values}
    fewest = is_number_of_accelerators(objective)
    limits = [*targets, *own_targets(plan, probability)]
    first = "" if fewest else objective
    result = search(plan, catalog, first, limits, stated, 1, progress, (name, largest), processes, **bounds)
    value = float(result.plans.number(name)[0]) if result.found else float("nan")
    if fewest and result.found:
        stated = {name: np.array([value])}
        result = search(plan, catalog, objective, limits, stated, 1, progress, None, processes, **bounds)
    return Solution(value, result)


def solve_number(
    plan: Table,
    catalog: Catalog,
    varied: Varied,
    targets: Sequence[Limit],
    largest: bool = False,
    objective: str = "",
    progress: Progress | None = None,
    processes: int = 1,
    probability: float = 0.5,
    **bounds: Unpack[Bounds],
) -> Solution:
    """The least number in a plan or a catalog sheet with which the plan fits and satisfies its targets.

    Stated values are tried in ascending order. Between two ends, bisection of the logarithm finds the number, on the
    assumption that more of it (less if ``largest``) never hurts.

    ``varied``: the column, with values or the two ends; counts are whole. The other parameters are the same as for
    :func:`solve_plan`. The result is exact for counts, else within :data:`PRECISION`, on the feasible side. Raises
    InputError as :func:`solve_plan` and :func:`xlperf.explore.changed_catalogs.changed_catalog`.
    """

    def best_at(value: float) -> Search:
        changed_plan, known = with_value(plan, catalog, varied, value)
        limits = [*targets, *own_targets(changed_plan, probability)]
        return search(changed_plan, known, objective, limits, progress=progress, processes=processes, **bounds)

    if not varied.ends:
        order = sorted(varied.values.tolist(), reverse=largest)
        for value in order:
            reached = best_at(value)
            if reached.found:
                return Solution(value, reached)
        return Solution(float("nan"), reached)
    low, high = float(varied.values.min()), float(varied.values.max())
    hard, easy = (high, low) if largest else (low, high)
    at_hard = best_at(hard)
    if at_hard.found:
        return Solution(hard, at_hard)
    reached = best_at(easy)
    if not reached.found:
        return Solution(float("nan"), reached)
    while abs(easy - hard) > 1.0 if varied.is_whole else abs(log(easy / hard)) > PRECISION:
        middle = float(np.sqrt(easy * hard))
        if varied.is_whole:
            middle = min(max(float(np.floor(middle)), min(easy, hard) + 1.0), max(easy, hard) - 1.0)
        result = best_at(middle)
        if result.found:
            easy, reached = middle, result
        else:
            hard = middle
    return Solution(easy, reached)
