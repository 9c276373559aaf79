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
from xlperf.explore.found import Search
from xlperf.explore.objectives import Limit
from xlperf.explore.search import search
from xlperf.explore.vary import Varied, changed_catalog

PRECISION = 1e-3
"""Relative width of what is left between a value that reaches the target and one that does not. [-]"""


@dataclass(frozen=True)
class Solution:
    """The answer to an inverse question.

    Attributes
    ----------
    value : float
        Least (or largest) value that reaches the targets, in the unit used inside; NaN where none does.
    best : Search
        The best plan with that value; where none reaches the targets the one that comes nearest.
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
    **bounds: Unpack[Bounds],
) -> Solution:
    """The least value of a column of a plan with which a plan fits and keeps its targets.

    All values are tried, with everything that ``auto`` stands for, and nothing is taken to rise or fall; but for
    numbers of accelerators that ``auto`` stands for where those are too many, as :func:`xlperf.explore.search.search`
    says.

    Parameters
    ----------
    plan : Table
        One training or inference plan.
    catalog : Catalog
        What it refers to.
    name : str
        A number column.
    values : array, optional
        Values to try, in the unit used inside; None: those of ``auto``, which the cell has to say.
    targets : sequence of Limit
        What results must keep beside the plan's own targets.
    largest : bool, default False
        Whether the largest value is sought.
    objective : str
        What decides among plans of that value.
    progress : callable, optional
        Called with the number of plans of each block that is done.
    processes : int, default 1
        Processes that share a large search; the answer is the same. [-]
    **bounds : Bounds
        Most candidates of a plan, and most accelerators tried for ``auto``.

    Returns
    -------
    Solution
        Exact for the values that were tried.

    Raises
    ------
    InputError
        As :func:`xlperf.explore.search.search`.
    """
    stated = None if values is None else {name: values}
    lead = name, largest
    found = search(plan, catalog, objective, targets, stated, 1, progress, lead, processes, **bounds)
    value = float(found.plans.number(name)[0]) if found.found else float("nan")
    return Solution(value, found)


def solve_catalog(
    plan: Table,
    catalog: Catalog,
    varied: Varied,
    targets: Sequence[Limit],
    largest: bool = False,
    objective: str = "",
    progress: Progress | None = None,
    processes: int = 1,
    **bounds: Unpack[Bounds],
) -> Solution:
    """The least number in a catalog sheet with which a plan fits and keeps its targets.

    Stated values are tried from the least on. Between two ends the logarithm is halved: what reaches the targets is
    taken to reach them with more of it (with less of it where the largest is sought).

    Parameters
    ----------
    plan : Table
        One training or inference plan.
    catalog : Catalog
        What it refers to.
    varied : Varied
        The column, with values or the ends between which to look.
    targets : sequence of Limit
        What results must keep beside the plan's own targets.
    largest : bool, default False
        Whether the largest value is sought.
    objective : str
        What decides among plans.
    progress : callable, optional
        Called with the number of plans of each block that is done.
    processes : int, default 1
        Processes that share a large search; the answer is the same. [-]
    **bounds : Bounds
        Most candidates of a plan, and most accelerators tried for ``auto``.

    Returns
    -------
    Solution
        Within :data:`PRECISION`, on the side that reaches the targets.

    Raises
    ------
    InputError
        As :func:`xlperf.explore.search.search` and :func:`xlperf.explore.vary.changed_catalog`.
    """

    def best_at(value: float) -> Search:
        own = changed_catalog(catalog, plan, [(varied, value)])
        return search(plan, own, objective, targets, progress=progress, processes=processes, **bounds)

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
    while abs(log(easy / hard)) > PRECISION:
        middle = float(np.sqrt(easy * hard))
        found = best_at(middle)
        if found.found:
            easy, reached = middle, found
        else:
            hard = middle
    return Solution(easy, reached)
