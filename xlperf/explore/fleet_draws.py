"""Draws of the future of a fleet: purchases of the first year that hold in all of them, and the value of waiting.

The purchases of the first year are decided before the future is known, all later decisions after it: a two-stage
stochastic programme over the draws. HiGHS finds the first purchases, in whole servers, of one programme over all draws
in which later servers may be fractions; each draw then costs its best plan in whole servers with these purchases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from xlperf.base.arrays import Array, exp
from xlperf.explore.fleet_inputs import Future, Horizon, programme_of, steady
from xlperf.explore.fleet_programme import ROUND, Programme, assembled, best_plan
from xlperf.explore.vary import normal_scores

MOST_SECONDS = 30.0
"""Time limit of one programme over all draws. [s]"""
DRAW_GAP = 1e-3
"""Relative optimality gap of programmes over draws. [-]"""


class Commitment(NamedTuple):
    """The best purchases of the first year over all draws: servers of each vintage, and the cost of each draw [USD]"""

    first: Array
    costs: Array

    @property
    def mean(self) -> float:
        """Mean present cost over the draws. [USD]"""
        return float(self.costs.mean())


class Waiting(NamedTuple):
    """Policies for the first year over the same draws; None if a policy cannot serve the demand."""

    best: Commitment | None
    buy_now: Commitment | None
    wait: Commitment | None

    @property
    def value(self) -> float:
        """Mean cost of buying now less that of waiting a year; NaN if one of them cannot serve. [USD]"""
        if self.buy_now is None or self.wait is None:
            return float("nan")
        return self.buy_now.mean - self.wait.mean

    @property
    def wins(self) -> float:
        """Share of the draws in which waiting costs less. [-]"""
        if self.buy_now is None or self.wait is None:
            return float("nan")
        return float((self.wait.costs < self.buy_now.costs).mean())


def futures_of(horizon: Horizon) -> list[Future]:
    """Draws of demand, prices and releases of a form; the first year is known. Without draws: the expected course."""
    form, years = horizon.form, horizon.years
    count, seed = int(form.filled("draws")[0]), int(form.filled("seed")[0])
    random = np.random.default_rng(seed)
    scores = normal_scores(np.clip(random.random((count, 3, years)), ROUND, 1.0 - ROUND))
    late = np.abs(normal_scores(np.clip(random.random((count, len(horizon.offers))), ROUND, 1.0 - ROUND)))
    scores[:, :, 0] = 0.0
    spreads = [float(form.filled(name)[0]) for name in ("demand_spread", "price_spread", "price_spread")]
    walks = [exp(np.cumsum(spread * scores[:, kind], axis=-1)) for kind, spread in enumerate(spreads)]
    delays = late * np.array([offer.spread for offer in horizon.offers])
    if not count:
        return [steady(horizon)]
    return [
        Future(horizon.demand * walks[0][draw], walks[1][draw], walks[2][draw], delays[draw]) for draw in range(count)
    ]


def waiting_of(horizon: Horizon, futures: Sequence[Future]) -> Waiting:
    """Buying at once, waiting a year, and the best purchases of the first year, over draws of the future."""
    programmes = [programme_of(horizon, future) for future in futures]
    bought = np.array([vintage.start == 0 and vintage.there != vintage.there for vintage in programmes[0].vintages])
    free, nothing = np.full(len(bought), np.nan), np.where(bought, 0.0, np.nan)
    if len(programmes) == 1:
        plans = [best_plan(programmes[0], *policy) for policy in ((free, True), (free, False), (nothing, True))]
        return Waiting(*(plan and Commitment(plan.owned[:, 0], np.array([plan.present_cost])) for plan in plans))
    costed: dict[tuple[float, ...], Array] = {}
    both = [committed(programmes, free, False, costed), committed(programmes, nothing, True, costed)]
    every = [policy for policy in (committed(programmes, free, True, costed), *both) if policy is not None]
    return Waiting(min(every, key=lambda policy: policy.mean, default=None), *both)


def committed(
    programmes: Sequence[Programme], first: Array, may_rent: bool, costed: dict[tuple[float, ...], Array]
) -> Commitment | None:
    """The best fleet of the first year that all programmes share; None if one of them cannot be served.

    ``first``: servers of each vintage in its first year, NaN: free. ``may_rent``: whether the first year may be served
    by rented servers. ``costed``: cache of the costs of all draws by the fleet of the first year.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # slow to import
    from scipy.sparse import block_diag, csr_array, vstack

    parts = [assembled(programme, first, may_rent) for programme in programmes]
    width, number = len(parts[0].costs), len(parts)
    columns = np.arange(0, width, programmes[0].years)  # the first year, which is known
    pairs = [(draw, column) for draw in range(1, number) for column in columns.tolist()]
    rows = np.repeat(np.arange(len(pairs)), 2)
    at = np.array([place for draw, column in pairs for place in (column, draw * width + column)], dtype=np.int64)
    same = csr_array((np.tile([1.0, -1.0], len(pairs)), (rows, at)), shape=(len(pairs), number * width))
    matrix: Any = vstack([block_diag([part.matrix for part in parts]), same]).tocsr()
    nothing = np.zeros(len(pairs))
    least, most = (np.concatenate([*(getattr(part, end) for part in parts), nothing]) for end in ("least", "most"))
    integral = np.zeros(number * width)
    integral[columns[:-1]] = 1.0  # all but unmet demand
    costs = np.concatenate([part.costs for part in parts])
    bounds = Bounds(*(np.concatenate([getattr(part, end) for part in parts]) for end in ("lower", "upper")))
    scale = max(float(np.abs(costs).max()), 1.0)
    solved = milp(
        costs / scale, integrality=integral, bounds=bounds, constraints=LinearConstraint(matrix, least, most),
        options={"mip_rel_gap": DRAW_GAP, "time_limit": MOST_SECONDS},
    )  # fmt: skip
    if solved.x is None:
        return None
    started = np.array([vintage.start == 0 for vintage in programmes[0].vintages])
    owned = np.where(started, np.round(solved.x[columns[: len(started)]]), np.nan)
    key = tuple(np.nan_to_num(owned, nan=-1.0).tolist())
    if key not in costed:
        plans = [best_plan(programme, owned, gap=DRAW_GAP) for programme in programmes]
        costed[key] = np.array([np.nan if plan is None else plan.present_cost for plan in plans])
    return Commitment(owned, costed[key]) if np.isfinite(costed[key]).all() else None
