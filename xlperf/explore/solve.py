"""Inverse questions: the least value of a quantity that satisfies the targets, and the largest load of a plan.

The cost of a token at a stated request rate is the cost of an hour over the tokens that arrive in it. The worth of a
machine shows at the largest rate at which a plan satisfies its targets and limits, or at its capacity without any.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np

from xlperf.base.arrays import Array, log, power
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.tables import Progress
from xlperf.explore.candidates import Bounds, Candidates, candidate_parts, candidates
from xlperf.explore.changed_catalogs import with_value
from xlperf.explore.mappings import MOST_ACCELERATORS
from xlperf.explore.objectives import COUNT, TARGETS, Limit, Objective, Search, is_number_of_accelerators, objective_of
from xlperf.explore.search import own_targets, ranked, search, without_targets
from xlperf.explore.space import TooMany
from xlperf.explore.vary import Varied

PRECISION = 1e-3  # relative width of the final bracket between a feasible and an infeasible value [-]


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


IDLE = 1e-9  # request rate of a plan without load [request/s]
FULL = 1.0 - 1e-9
"""Share of the capacity that counts as full: at the capacity itself the queue grows without bound. [-]"""
RATES = 64  # request rates of a plan in one evaluation [-]
LEAST = 1e-4  # smallest trial rate, as a share of the capacity [-]
EXACT = 1e-9  # relative error of the largest rate [-]
CHUNK = 4  # candidates in one search for the largest rates [-]


def is_open(plan: Table) -> bool:
    """Whether a plan has an open load: requests that arrive at a given rate."""
    return plan.kind == "inference" and not bool(np.isnan(plan.number("request_rate")).all())


def best_plan(
    plan: Table,
    catalog: Catalog,
    objective: str,
    limits: Sequence[Limit] = (),
    progress: Progress | None = None,
    processes: int = 1,
    **bounds: Unpack[Bounds],
) -> Search:
    """The best candidate of a plan: as :func:`xlperf.explore.search.search`, with open loads at their largest.

    Candidates whose capacity is below the stated request rate come after all that can serve it.
    """
    if is_open(plan):
        result = _best_loaded(plan, catalog, objective_of(plan.kind, objective), limits, progress, **bounds)
        if result is not None:
            return result
    return search(plan, catalog, objective, limits, progress=progress, processes=processes, **bounds)


def at_largest_rates(plans: Table, catalog: Catalog, limits: Sequence[Limit] = ()) -> Table:
    """Plans at the largest request rate at which each satisfies its own targets and the limits."""
    if not is_open(plans):
        return plans
    rates = plans.number("request_rate").copy()
    for row in np.flatnonzero(~np.isnan(rates)).tolist():
        plan = plans.take(np.array([row]))
        most = _capacity(plan, catalog) * FULL
        result = _largest(plan, catalog, (*limits, *own_targets(plan)), most)[0]
        rates[row] = result if result == result else rates[row]
    return _with_rate(plans, rates)


def _best_loaded(
    plan: Table,
    catalog: Catalog,
    objective: Objective,
    limits: Sequence[Limit],
    progress: Progress | None,
    **bounds: Unpack[Bounds],
) -> Search | None:
    """The best candidate at its largest rate; None if no candidate satisfies its targets and limits at any rate."""
    targets = (*limits, *own_targets(plan))
    best: Search | None = None
    counts: Array | None = None
    tried = legal = 0
    while True:
        round_best: Search | None = None
        for part in _parts(plan, catalog, counts, limits, **bounds):
            tried += len(part.plans)
            if progress is not None:
                progress(len(part.plans))
            number, row = _best_row(part.plans, catalog, objective, targets)
            legal += number
            if row is not None:
                found_ = ranked(Candidates(row, part.searched, part.counts), catalog, objective, targets)
                round_best = found_ if round_best is None or _loss(found_) < _loss(round_best) else round_best
        if round_best is None:
            break
        best = (
            round_best if best is None or _loss(round_best) < _loss(best) else replace(best, counts=round_best.counts)
        )
        counts = None if round_best.counts is None else round_best.counts.between(round_best.plans[COUNT][:1])
        if counts is None or not len(counts):
            break
    return best and replace(best, num_tried=tried, num_legal=legal, num_fit=legal, num_good=legal)


def _parts(
    plan: Table, catalog: Catalog, counts: Array | None, limits: Sequence[Limit], **bounds: Unpack[Bounds]
) -> Iterator[Candidates]:
    """The candidates of a plan, in one block or in parts."""
    try:
        yield candidates(plan, catalog, None, counts, limits=limits, **bounds)
    except TooMany:
        if "most" in bounds:
            raise
        largest = bounds.get("most_accelerators", MOST_ACCELERATORS)
        yield from candidate_parts(plan, catalog, None, counts, most_accelerators=largest, limits=limits)


def _loss(searched: Search) -> float:
    return float(searched.objective.loss(searched.results)[0])


def _best_row(
    plans: Table, catalog: Catalog, objective: Objective, limits: Sequence[Limit]
) -> tuple[int, Table | None]:
    """The number of candidates that are legal and fit, and the best of them at its largest rate.

    A branch-and-bound search: no rate gives a candidate a better objective than its capacity, so the objective at
    capacity orders the candidates and ends the search.
    """
    quiet = without_targets(plans, {objective.column.name, *(limit.column.name for limit in limits)})
    most = _capacity(quiet, catalog)
    usable = np.flatnonzero(most > 0.0)
    if not len(usable):
        return 0, None
    bound = objective.loss(evaluate(_with_rate(quiet.take(usable), most[usable] * FULL), catalog))
    too_small = most[usable] < plans.number("request_rate")[usable]
    order = usable[np.lexsort((bound, too_small))]
    bounds = dict(zip(usable.tolist(), bound.tolist(), strict=True))
    best: tuple[float, Table] | None = None
    for start in range(0, len(order), CHUNK):
        rows = order[start : start + CHUNK]
        if best is not None and not min(bounds[row] for row in rows.tolist()) < best[0]:
            break
        rates = _largest(quiet.take(rows), catalog, limits, most[rows] * FULL)
        feasible = ~np.isnan(rates)
        if feasible.any():
            loaded = _with_rate(plans.take(rows[feasible]), rates[feasible])
            loss = objective.loss(evaluate(_with_rate(quiet.take(rows[feasible]), rates[feasible]), catalog))
            first = int(np.argmin(np.nan_to_num(loss, nan=np.inf)))
            if loss[first] == loss[first] and (best is None or loss[first] < best[0]):
                best = float(loss[first]), loaded.take(np.array([first]))
    return len(usable), None if best is None else best[1]


def _capacity(plans: Table, catalog: Catalog) -> Array:
    """Largest request rate that each plan can serve; NaN if it is illegal or does not fit. [request/s]"""
    idle = evaluate(_with_rate(plans, np.full(len(plans), IDLE)), catalog, results=("fits", "max_request_rate"))
    return np.where(idle.number("fits") == 1.0, idle.number("max_request_rate"), np.nan)


def _largest(plans: Table, catalog: Catalog, limits: Sequence[Limit], most: Array) -> Array:
    """Largest request rates up to ``most`` within the limits, by bracketing; NaN if no rate is feasible. [request/s]"""
    values = np.where(_keeps(plans, catalog, limits, most[:, None])[:, 0], most, np.nan)
    rows = np.flatnonzero(np.isnan(values) & (most > 0.0)) if limits else np.zeros(0, dtype=np.int64)
    low, high = np.zeros(len(most)), most.copy()
    steps = power(LEAST, 1.0 - np.arange(RATES) / RATES)
    while len(rows):
        tried = low[rows, None] + (high - low)[rows, None] * steps
        keeps = _keeps(plans.take(rows), catalog, limits, tried)
        last = np.where(keeps.any(axis=1), RATES - 1 - np.argmax(keeps[:, ::-1], axis=1), -1)
        after = np.append(tried, high[rows, None], axis=1)[np.arange(len(rows)), last + 1]
        reached = last >= 0
        low[rows[reached]] = tried[reached, last[reached]]
        values[rows[reached]] = low[rows[reached]]
        high[rows] = after
        known = ~np.isnan(values[rows])  # at no rate of the first round: at none
        rows = rows[known & (high[rows] - low[rows] > EXACT * high[rows])]
        steps = np.arange(1.0, RATES + 1.0) / (RATES + 1.0)
    return values


def _keeps(plans: Table, catalog: Catalog, limits: Sequence[Limit], rates: Array) -> np.ndarray:
    """Whether plans are legal, fit and satisfy limits at request rates. (rows, rates)"""
    index = np.repeat(np.arange(len(plans)), rates.shape[1])
    banded = any(limit.probability != Limit._field_defaults["probability"] for limit in limits)
    needed = None if banded else ("fits", *(limit.column.name for limit in limits))
    results = evaluate(_with_rate(plans.take(index), rates.reshape(-1)), catalog, results=needed)
    keeps = results.number("fits") == 1.0
    for limit in limits:
        keeps = keeps & limit.kept(results)
    return np.asarray(keeps.reshape(rates.shape))


def _with_rate(plans: Table, rates: Array) -> Table:
    return replace(plans, columns={**plans.columns, "request_rate": rates})
