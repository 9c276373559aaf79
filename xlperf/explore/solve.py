"""Inverse questions: the least value that satisfies the targets, the largest load, and the worth of more.

The cost of a token at a stated request rate is the cost of an hour over the tokens that arrive in it. The worth of a
machine shows at the largest rate at which a plan satisfies its targets and limits, or at its capacity without any.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Unpack

import numpy as np

from xlperf.base.arrays import Array, log, power
from xlperf.base.errors import Fault, InputError
from xlperf.base.units import YEAR
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import table_schema, unit_of
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.catalog_arrays import catalog_arrays
from xlperf.engine.join import POOLS, pool_rows
from xlperf.engine.prices import hours_used
from xlperf.engine.software import peak_names
from xlperf.equations.cost.tco import break_even_cost_rate
from xlperf.equations.hardware.derived_device import PEAKS
from xlperf.explore.candidates import MOST_CANDIDATES, Candidates, candidate_parts, candidates
from xlperf.explore.changed_catalogs import changed_catalog, sheet_rows, with_value
from xlperf.explore.mappings import MOST_ACCELERATORS
from xlperf.explore.objectives import COUNT, TARGETS, Limit, Objective, Search, is_number_of_accelerators, objective_of
from xlperf.explore.search import Effort, own_targets, ranked, search, without_targets
from xlperf.explore.space import TooMany
from xlperf.explore.vary import Varied, read_variation
from xlperf.explore.workers import worked

PRECISION = 1e-3  # relative width of the final bracket between a feasible and an infeasible value [-]


@dataclass(frozen=True)
class Solution:
    """The answer to an inverse question."""

    value: float  # least (or largest) value that satisfies the targets, in the internal unit; NaN if none does
    best: Search  # the best plan with this value; the nearest plan if no value satisfies the targets

    @property
    def found(self) -> bool:
        """Whether any value satisfies the targets."""
        return self.best.found


def solve_plan(
    plan: Table, catalog: Catalog, name: str, values: np.ndarray | None, targets: Sequence[Limit],
    largest: bool = False, objective: str = "", probability: float = 0.5, **effort: Unpack[Effort],
) -> Solution:  # fmt: skip
    """The least (``largest``: the largest) value of a plan column with which a plan fits and satisfies its targets.

    An exhaustive search over ``values`` (None: the values of ``auto``) and all choices for ``auto``, without an
    assumption of monotonicity; only too many numbers of accelerators are thinned as in
    :func:`xlperf.explore.search.search`. ``probability``: of meeting the plan's own targets, by their bands.
    """
    if values is not None and name in TARGETS.values():  # each plan keeps its own
        varied = Varied(plan.kind, name, values, False)
        return solve_number(plan, catalog, varied, targets, largest, objective, probability, **effort)
    stated = None if values is None else {name: values}
    fewest = is_number_of_accelerators(objective)
    limits = [*targets, *own_targets(plan, probability)]
    result = search(plan, catalog, "" if fewest else objective, limits, stated, lead=(name, largest), **effort)
    value = result.plans.stated(name) if result.found else float("nan")
    if fewest and result.found:
        result = search(plan, catalog, objective, limits, {name: np.array([value])}, **effort)
    return Solution(value, result)


def solve_number(
    plan: Table, catalog: Catalog, varied: Varied, targets: Sequence[Limit], largest: bool = False,
    objective: str = "", probability: float = 0.5, **effort: Unpack[Effort],
) -> Solution:  # fmt: skip
    """The least number in a plan or a catalog sheet with which the plan fits and satisfies its targets.

    Stated values are tried in ascending order. Between two ends, bisection of the logarithm finds the number, on the
    assumption that more of it (less if ``largest``) never hurts: exact for counts, else within :data:`PRECISION`, on
    the feasible side.
    """

    def best_at(value: float) -> Search:
        changed_plan, known = with_value(plan, catalog, varied, value)
        return search(changed_plan, known, objective, [*targets, *own_targets(changed_plan, probability)], **effort)

    if not varied.ends:
        for value in sorted(varied.values.tolist(), reverse=largest):
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
    plan: Table, catalog: Catalog, objective: str, limits: Sequence[Limit] = (), **effort: Unpack[Effort]
) -> Search:
    """The best candidate of a plan as of :func:`search`, with open loads at their largest."""
    goal = objective_of(plan.kind, objective)
    loaded = _best_loaded(plan, catalog, goal, limits, **effort) if is_open(plan) else None
    return loaded or search(plan, catalog, objective, limits, **effort)


def at_largest_rates(plans: Table, catalog: Catalog, limits: Sequence[Limit] = ()) -> Table:
    """Plans with a request rate at the largest one at which each satisfies its own targets and the limits."""
    if not is_open(plans):
        return plans
    rates = plans.number("request_rate").copy()
    for row in np.flatnonzero(~np.isnan(rates)).tolist():
        plan = plans.take([row])
        result = _largest(plan, catalog, (*limits, *own_targets(plan)), _capacity(plan, catalog) * FULL)[0]
        rates[row] = result if result == result else rates[row]
    return _with_rate(plans, rates)


def _best_loaded(
    plan: Table, catalog: Catalog, objective: Objective, limits: Sequence[Limit], **effort: Unpack[Effort]
) -> Search | None:
    """The best candidate at its largest rate; None if no candidate satisfies its targets and limits at any rate."""
    targets = (*limits, *own_targets(plan))
    progress = effort.get("progress") or (lambda number: None)
    best: Search | None = None
    counts: Array | None = None
    tried = legal = 0
    while True:
        round_best: Search | None = None
        for part in _parts(plan, catalog, counts, limits, **effort):
            tried += len(part.plans)
            progress(len(part.plans))
            number, row = _best_row(part.plans, catalog, objective, targets)
            legal += number
            if row is not None:
                of_part = ranked(Candidates(row, part.searched, part.counts), catalog, objective, targets)
                round_best = of_part if round_best is None or _loss(of_part) < _loss(round_best) else round_best
        if round_best is None:
            break
        better = best is None or _loss(round_best) < _loss(best)
        best = replace(round_best if better or best is None else best, counts=round_best.counts)
        counts = None if round_best.counts is None else round_best.counts.between(round_best.plans[COUNT][:1])
        if counts is None or not len(counts):
            break
    return best and replace(best, num_tried=tried, num_legal=legal, num_fit=legal, num_good=legal)


def _parts(
    plan: Table, catalog: Catalog, counts: Array | None, limits: Sequence[Limit], **effort: Unpack[Effort]
) -> Iterator[Candidates]:
    """The candidates of a plan, in one block or in parts."""
    largest = effort.get("most_accelerators", MOST_ACCELERATORS)
    most = effort.get("most", MOST_CANDIDATES)
    try:
        yield candidates(plan, catalog, None, counts, most=most, most_accelerators=largest, limits=limits)
    except TooMany:
        if "most" in effort:
            raise
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
    least = np.inf
    best: Table | None = None
    for start in range(0, len(order), CHUNK):
        rows = order[start : start + CHUNK]
        if best is not None and not min(bounds[row] for row in rows.tolist()) < least:
            break
        rates = _largest(quiet.take(rows), catalog, limits, most[rows] * FULL)
        feasible = ~np.isnan(rates)
        if feasible.any():
            loss = objective.loss(evaluate(_with_rate(quiet.take(rows[feasible]), rates[feasible]), catalog))
            first = int(np.argmin(np.nan_to_num(loss, nan=np.inf)))
            if loss[first] < least or (best is None and loss[first] == loss[first]):
                least = float(loss[first])
                best = _with_rate(plans.take(rows[feasible][[first]]), rates[feasible][[first]])
    return len(usable), best


def _capacity(plans: Table, catalog: Catalog) -> Array:
    """Largest request rate that each plan can serve; NaN if it is illegal or does not fit. [request/s]"""
    idle = evaluate(_with_rate(plans, np.full(len(plans), IDLE)), catalog, results=("fits", "max_request_rate"))
    return np.where(idle.number("fits") == 1.0, idle.number("max_request_rate"), np.nan)


def _largest(plans: Table, catalog: Catalog, limits: Sequence[Limit], most: Array) -> Array:
    """Largest request rates up to ``most`` within the limits, by bracketing; NaN if no rate is feasible. [request/s]"""
    values = np.where(_keeps(plans, catalog, limits, most[:, None])[:, 0], most, np.nan)
    rows = np.flatnonzero(np.isnan(values) & (most > 0.0)) if limits else np.zeros(0, dtype=np.int64)
    # The rate lies between the largest that keeps the limits and the next that breaks them
    low, high = np.zeros(len(most)), most.copy()
    steps = power(LEAST, 1.0 - np.arange(RATES) / RATES)
    while len(rows):
        tried = low[rows, None] + (high - low)[rows, None] * steps
        keeps = _keeps(plans.take(rows), catalog, limits, tried)
        # Last of the tried rates that keeps the limits, and the one after it: the next bracket
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


STEP = 1.01  # default factor of the change [-]
AREA = "die_area"
USED = "utilization"
LONG = 3.0  # total time of the searches from which on processes share them: as long as the processes take to start [s]
ROUNDING = 1e-12  # relative difference of equal costs through the rounding of sums [-]
SMALL = 0.1  # relative size of a small change, for which the last unit is evaluated as well [-]
_WITH_AREA = (*(f"peak_flop_rate_{name}" for name in PEAKS), "l2_capacity", "l2_bandwidth")
RATE = "tokens_per_second_per_accelerator"
MONTH = YEAR / 12.0  # [s]


Step = tuple[int, float, float]  # number of a change, present and new value
Change = Varied | Limit
"""A number of the plans or of a catalog sheet with its new value, or a limit to loosen by :data:`STEP`."""


def usual_changes(plan: Table, catalog: Catalog, limits: Sequence[Limit] = ()) -> list[Change]:
    """One per cent more of the stated inputs that dominate most plans, and of every limit.

    Memory bandwidth, memory, peak rate, area of the compute dies (with rates and cache in proportion) and power of the
    accelerators, bandwidth of their links, the share of the paid hours in use, and the plan's targets and power limit.
    For derived accelerators: area and power of the device, rate and capacity of its memory, and the links. One per cent
    less of a number that is at its bound.
    """
    (peak,) = peak_names(plan, catalog)
    row = catalog.rows("accelerators", plan.text("accelerator"), plan, "accelerator")
    if catalog.tables["accelerators"].text("device")[row][0]:
        names = [("devices", name) for name in (AREA, "power_budget")]
        names += [("memories", name) for name in ("pin_rate", "layer_capacity")]
    else:
        columns = ("memory_bandwidth", "memory_capacity", peak, AREA, "thermal_design_power")
        names = [("accelerators", name) for name in columns]
    names += [("networks", "link_bandwidth"), (plan.kind, USED), (plan.kind, "power_limit")]
    if plan.kind == "inference":
        names += [(plan.kind, name) for name in TARGETS.values()]
    changes = [Varied(sheet, name, np.array([STEP]), True) for sheet, name in names]
    return [*(change for change in changes if _is_stated(plan, catalog, change)), *limits]


def _is_stated(plan: Table, catalog: Catalog, change: Varied) -> bool:
    try:
        return not np.isnan(_stated(plan, catalog, change)).any()
    except InputError:  # an accelerator that follows from no such row
        return False


def read_changes(kind: str, lines: Sequence[tuple[str, Sequence[str]]], place: str) -> list[Varied]:
    """Changes of numbers of plans or sheets, from lines of a column and its values; InputError for other lines."""
    asked = read_variation(kind, lines, place)
    known = table_schema(kind).by_name
    texts = [name for name in asked.values if known[name].kind != "number"]
    if asked.auto or texts or any(varied.shape or varied.column.kind != "number" for varied in asked.varied):
        raise InputError(Fault(place, "what a change is worth takes numbers, as 'accelerators.memory bandwidth=x1.1'"))
    return [*(Varied(kind, name, values, False) for name, values in asked.values.items()), *asked.varied]


def worth(
    plan: Table, catalog: Catalog, changes: Sequence[Change], limits: Sequence[Limit] = (), **effort: Unpack[Effort]
) -> Table:
    """``worth`` of more of each number per accelerator and month, with the best plan before and after: a row for each
    change, blank if no plan fits and satisfies the limits.

    The worth is the added cost of an accelerator at which a token costs as much as before, over the change. It is
    exactly 0 if the best plan does not use more. Cells with ``auto`` are chosen anew. For a small change the last unit
    is evaluated as well: if a plan only just fits, one unit less requires another plan.
    """
    cost = objective_of(plan.kind, "cost").column.name
    start = monotonic()
    before = best_plan(plan, catalog, cost, limits, **effort)
    asked: list[Step] = []
    less: list[Step] = []  # one unit less, of small changes
    for number, change in enumerate(changes):
        first = change.bound if isinstance(change, Limit) else _first(plan, catalog, change)
        for second in _values(change, first):
            asked.append((number, first, second))
            other = 2.0 * first - second
            small = abs(second - first) <= SMALL * abs(first)
            less += [(number, first, other)] if small and _is_possible(change, other) else []
    tasks = [*asked, *less]
    shared = effort.get("processes", 1) if (monotonic() - start) * len(tasks) > LONG else 1
    alone: Effort = {**effort, "progress": None, "processes": 1}
    by_task: dict[Step, Search] = {}
    progress = effort.get("progress") or (lambda number: None)
    searches = worked(partial(_best_with, plan, catalog, limits, cost, changes, alone), tasks, shared)
    for task, best in zip(tasks, searches, strict=True):
        by_task[task] = best
        progress(best.num_tried)
    lines = []
    for number, first, second in asked:
        three = before, by_task[number, first, second], by_task.get((number, first, 2.0 * first - second))
        lines.append(_line(plan, changes[number], (first, second), cost, three))
    return Table.of_lines("worth", lines)


def _best_with(
    plan: Table, catalog: Catalog, limits: Sequence[Limit], objective: str, changes: Sequence[Change], effort: Effort,
    step: Step,
) -> Search:  # fmt: skip
    """The best plan with one change."""
    number, first, second = step
    other, known, changed_limits = changed(plan, catalog, limits, changes[number], first, second)
    return best_plan(other, known, objective, changed_limits, **effort)


def _values(change: Change, first: float) -> list[float]:
    if isinstance(change, Limit):
        return [first * (STEP if change.sign in ("<", "<=") else 2.0 - STEP)]
    values = [first * value if change.factors else value for value in change.values.tolist()]
    others = [2.0 * first - value for value in values]
    return [
        other if change.factors and not _is_possible(change, value) and _is_possible(change, other) else value
        for value, other in zip(values, others, strict=True)
    ]


def _is_possible(change: Change, value: float) -> bool:
    """Whether a number of a plan or a sheet is within its bounds."""
    if isinstance(change, Limit):
        return True
    (low, high, exclusive), inside = change.declared.limits, value / unit_of(change.declared).factor
    return low <= inside <= high and not (exclusive and inside == low)


def break_even(
    plan: Table, others: Sequence[str], catalog: Catalog, limits: Sequence[Limit] = (), **effort: Unpack[Effort]
) -> Table:
    """``break_even``: the hourly cost at which other accelerators, each with its default network, make tokens as
    cheaply as a plan's own, with ``auto`` cells chosen for each; blank if no plan fits and satisfies the limits.

    The cost of a token is the cost of an hour over the tokens of an hour: the best plan does not depend on the price,
    which may be unknown.
    """
    cost = objective_of(plan.kind, "cost").column.name
    here = _cost(best_plan(plan, catalog, cost, limits, **effort), cost)
    lines: list[dict[str, object]] = []
    for other in others:
        swapped = {"accelerator": np.array([other], dtype=object), "network": np.array([""], dtype=object)}
        rival = plan.with_columns(swapped)
        there = best_plan(rival, catalog, cost, limits, **effort)
        hour = float(there.results["accelerator_hour_cost"][0])
        if hour == hour:
            even = break_even_cost_rate(hour, _cost(there, cost), here)
        else:  # without a price the token rate decides, at one dollar a second
            there = best_plan(rival, catalog, RATE, limits, **effort)
            even = break_even_cost_rate(1.0, 1.0 / _cost(there, RATE), here)
        lines.append({
            "plan": plan.stated_word("name") or plan.place(0, "name"), "accelerator": str(plan["accelerator"][0]),
            "against": other, "cost": here, "cost_against": _cost(there, cost), "hour_cost_against": hour,
            "break_even_hour_cost": float(even), "chosen": there.chosen_words if there.found else there.words,
        })  # fmt: skip
    return Table.of_lines("break_even", lines)


def _line(
    plan: Table, change: Change, values: tuple[float, float], cost: str, result: tuple[Search, Search, Search | None]
) -> dict[str, object]:
    declared = change.column if isinstance(change, Limit) else change.declared
    unit = unit_of(declared).factor
    first, second = (value / unit for value in values)  # of several network tiers the innermost
    before, after, less = result
    now, then = _cost(before, cost), _cost(after, cost)
    alike = 10.0 * EXACT if is_open(plan) else ROUNDING
    # A limit is loosened; of another number one more unit counts, whichever way it changes.
    step = abs(second - first) if isinstance(change, Limit) else second - first
    last = np.nan if less is None or not less.found else _gain(less, _cost(less, cost), now, alike) / step
    more = _gain(after, now, then, alike) / step
    saved = 0.0 if more == 0.0 else (now - then) / step
    same = before.chosen_words == after.chosen_words
    return {
        "plan": plan.stated_word("name") or plan.place(0, "name"), "input": declared.header,
        "sheet": "limit" if isinstance(change, Limit) else change.sheet, "value_before": first, "value_after": second,
        "cost_before": now, "cost_after": then, "worth": more + 0.0,
        "worth_of_last": abs(last) if last == 0.0 else last, "token_worth": saved,
        "chosen": after.words if not after.found else "the same plan" if same else after.chosen_words,
    }  # fmt: skip


def _cost(searched: Search, name: str) -> float:
    """A result of the best plan; NaN if none is feasible."""
    return float(searched.results[name][0]) if searched.found else np.nan


def _gain(cheaper: Search, dear: float, cheap: float, alike: float) -> float:
    """Added monthly cost of an accelerator at which a token costs as before; 0 if costs differ by rounding. [USD]"""
    gain = dear / cheap - 1.0
    return float(cheaper.results["accelerator_hour_cost"][0]) * MONTH * (0.0 if abs(gain) < alike else gain)


def _stated(plan: Table, catalog: Catalog, change: Varied) -> np.ndarray:
    if (change.sheet, change.name) == (plan.kind, USED):
        return _hours_used(plan, catalog)
    if change.sheet == plan.kind:
        return plan.number(change.name)
    return np.asarray(catalog.tables[change.sheet].number(change.stored)[sheet_rows(catalog, plan, change)])


def _hours_used(plan: Table, catalog: Catalog) -> np.ndarray:
    """Share of the paid hours in which the accelerators of a plan work; NaN if those of its pools differ."""
    rows = catalog.rows("accelerators", plan.text("accelerator"), plan, "accelerator")
    pools = [rows, *(pool_rows(plan, catalog, rows, pool=pool) for pool in POOLS)]
    arrays = catalog_arrays(catalog, np.concatenate(pools))
    used, *others = (hours_used(plan, catalog, arrays, pool) for pool in pools)
    return np.where(np.logical_and.reduce([other == used for other in others]), used, np.nan)


def _first(plan: Table, catalog: Catalog, change: Varied) -> float:
    """The present number; InputError if it is blank."""
    result = float(_stated(plan, catalog, change)[0])
    if np.isnan(result):
        name = change.declared.name.replace("_", " ")
        problem = f"{name} of the sheet {change.sheet} is blank: there is no number to change"
        raise InputError(Fault(plan.place(0, change.name if change.sheet == plan.kind else "accelerator"), problem))
    return result


def changed(
    plan: Table, catalog: Catalog, limits: Sequence[Limit], change: Change, first: float, value: float
) -> tuple[Table, Catalog, Sequence[Limit]]:
    """The plan, the catalog and the limits with another number."""
    if isinstance(change, Limit):
        return plan, catalog, [limit._replace(bound=value) if limit == change else limit for limit in limits]
    if change.sheet == plan.kind:
        return *with_value(plan, catalog, replace(change, factors=False), value), limits
    ratio = value / first
    if (change.sheet, change.name) != ("accelerators", AREA):
        return *with_value(plan, catalog, change, ratio if change.factors else value), limits
    table = catalog.tables["accelerators"]
    rows = sheet_rows(catalog, plan, change)
    names = [name for name in (AREA, *_WITH_AREA) if not np.isnan(table.number(name)[rows]).any()]
    changes = [(Varied("accelerators", name, np.array([ratio]), True), ratio) for name in names]
    return plan, changed_catalog(catalog, plan, changes), limits
