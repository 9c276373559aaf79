"""Inverse questions: the least of something that reaches a target, fewest accelerators or smallest bandwidth."""

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
"""Relative width of what is left between a value that reaches the target and one that does not. [-]"""


@dataclass(frozen=True)
class Solution:
    """The answer to an inverse question.

    - ``value``: least (or largest) value that reaches the targets, in the unit used inside; NaN if none does.
    - ``best``: the best plan with that value; if none reaches the targets the one that comes nearest.
    """

    value: float
    best: Search

    @property
    def found(self) -> bool:
        """Whether any value reaches the targets."""
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
    """The least value of a column of a plan with which a plan fits and keeps its targets.

    All values are tried, with everything that ``auto`` stands for, and nothing is taken to rise or fall; but for
    numbers of accelerators that ``auto`` stands for where those are too many, as :func:`xlperf.explore.search.search`
    says.

    - ``plan``: one training or inference plan.
    - ``catalog``: what it refers to.
    - ``name``: a number column.
    - ``values``: values to try, in the unit used inside; None: those of ``auto``, which the cell has to say.
    - ``targets``: what results must keep beside the plan's own targets.
    - ``largest``: whether the largest value is sought.
    - ``objective``: what decides among plans of that value.
    - ``progress``: called with the number of plans of each block that is done.
    - ``processes``: processes that share a large search; the answer is the same [-].
    - ``probability``: with which the own targets of the plan are kept, by the bands of the calibration [-].
    - ``**bounds``: most candidates of a plan, and most accelerators tried for ``auto``.

    The answer is exact for the values that were tried. Raises InputError as :func:`xlperf.explore.search.search`.
    """
    if values is not None and name in TARGETS.values():  # each plan keeps its own
        varied = Varied(plan.kind, name, values, False)
        return solve_number(
            plan, catalog, varied, targets, largest, objective, progress, processes, probability, **bounds
        )
    stated = None if values is None else {name: values}
    fewest = is_number_of_accelerators(objective)
    kept = [*targets, *own_targets(plan, probability)]
    first = "" if fewest else objective
    result = search(plan, catalog, first, kept, stated, 1, progress, (name, largest), processes, **bounds)
    value = float(result.plans.number(name)[0]) if result.found else float("nan")
    if fewest and result.found:
        stated = {name: np.array([value])}
        result = search(plan, catalog, objective, kept, stated, 1, progress, None, processes, **bounds)
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
    """The least number of a plan or in a catalog sheet with which the plan fits and keeps its targets.

    Stated values are tried from the least on. Between two ends the logarithm is halved: what reaches the targets is
    taken to reach them with more of it (with less of it if the largest is sought).

    ``varied``: the column, with values or the ends between which to look; counts are whole. The others are those of
    :func:`solve_plan`. Returns what is exact for counts, else within :data:`PRECISION`, on the side that reaches the
    targets. Raises InputError as :func:`solve_plan` and :func:`xlperf.explore.changed_catalogs.changed_catalog`.
    """

    def best_at(value: float) -> Search:
        own, known = with_value(plan, catalog, varied, value)
        kept = [*targets, *own_targets(own, probability)]
        return search(own, known, objective, kept, progress=progress, processes=processes, **bounds)

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
