"""How many accelerators of a fleet or a run to own at the band of its time, and the worth of a measured run."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, divide, log
from xlperf.catalog.table import Table
from xlperf.engine.learning import ends_after_a_run
from xlperf.equations.cost.tco import owning_regret
from xlperf.explore.money import FleetSize, Hours
from xlperf.explore.objectives import TABLES, Answer, band_factor
from xlperf.explore.vary import normal_scores

OWNING = "owning"
UNREAD = {"tpot": (0.48, 0.9), "step_time": (0.43, 0.75)}
"""Median and spread of times of runs that no fit had read (633 per token, 454 per step), in standard scores of bands
without their publisher: the median one is above the prediction, and 80 % are below a score of 1.24 and 1.06. [-]
"""
SURE = 0.8  # probability with which a fleet should be large enough, or a run end in time [-]
_NEEDS, _RUNS, _AFTER = (np.linspace(0.5 / count, 1.0 - 0.5 / count, count) for count in (199, 19, 39))
"""Equally likely needs, outcomes of a measured run, and needs after one, as probabilities. [-]"""
_ROWS = (0.1, 0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)  # probabilities that the numbers of the table are enough [-]


def unread_score(probability: float | Array, name: str = "tpot") -> Array:
    """Standard score of a band that a run which no fit has read stays below with a probability. [-]

    >>> unread_score(np.array([0.5, 0.8])).round(2).tolist()
    [0.48, 1.24]
    """
    median, spread = UNREAD[name]
    return median + spread * normal_scores(np.asarray(probability))


def owning_answer(size: FleetSize, hours: Hours, plan: Table, results: Table, month: float) -> Answer:
    """The number to own, its regret, and what a run of the plan would take off it; with the table by number owned."""

    def needs(factors: Array) -> Array:
        return np.array([sum(size.whole(further / size.longer)[1]) for further in factors.tolist()])

    owned = _owned(needs, hours, plan, results, "tpot")
    return {
        TABLES: {OWNING: Table("serve_owning", owned.table("monthly_cost", "monthly_regret", month))},
        "accelerators_to_own": owned.number,
        "monthly_regret": month * owned.least,
        "run_worth": month * owned.saved,
    }


def owned_run(count: float, unit: float, time: float, date: float, hours: Hours, plan: Table, results: Table) -> Answer:
    """The same of a training run that ends at a date [s] if the missing accelerators are rented, and the time
    that the run keeps with a probability of 80 %. ``count`` accelerators take the predicted ``time`` [s], which falls
    as their number grows in steps of ``unit``.
    """

    def needs(factors: Array) -> Array:
        return np.ceil(count * time / date * factors / unit * (1.0 - 1e-9)) * unit

    owned = _owned(needs, hours, plan, results, "step_time")
    return {
        TABLES: {OWNING: Table("train_owning", owned.table("run_cost", "run_regret", date))},
        "accelerators_to_own": owned.number,
        "run_regret": date * owned.least,
        "run_worth": date * owned.saved,
        "run_time_sure": time * float(band_factor(results, "step_time", unread_score(SURE, "step_time"))[0]),
    }


class _Owned(NamedTuple):
    """Numbers of accelerators to own for needs that are not known when they are bought."""

    needs: Array  # equally likely needs [-]
    hours: Hours
    number: float  # the number of the least mean regret [-]
    least: float  # its regret [USD/s]
    saved: float  # regret that a measured run takes off [USD/s]

    def table(self, cost: str, regret: str, seconds: float) -> dict[str, Array]:
        """Cost and regret of some numbers over a time [s], under their names."""
        shown = np.array([self.number, *np.quantile(self.needs, _ROWS, method="inverted_cdf")])
        chosen = np.unique(shown[~np.isnan(shown)])
        hours, further = self.hours, self.needs - chosen[:, None]
        lost = owning_regret(chosen[:, None], self.needs, hours.owned, hours.rented).mean(axis=1)
        rented = np.maximum(further, 0.0).mean(axis=1)
        return {
            "owned": chosen,
            "enough_share": (further <= 0.0).mean(axis=1),
            "idle": np.maximum(-further, 0.0).mean(axis=1),
            "rented": rented,
            cost: seconds * (hours.owned * chosen + hours.rented * rented),
            regret: seconds * lost,
        }


def _owned(needs_of: Callable[[Array], Array], hours: Hours, plan: Table, results: Table, name: str) -> _Owned:
    """The number to own if the accelerators that are needed follow from factors on a predicted time."""
    needs = needs_of(band_factor(results, name, unread_score(_NEEDS, name)))
    least, number = _least(needs, hours)
    # A run fixes the middle, which nobody knows before it, and narrows the band around it.
    logs = np.stack([log(results.number(f"{name}_{end}") / results.number(name)) for end in ("low", "high")])
    narrow = float(divide(ends_after_a_run(plan, results.columns, name, logs), logs).mean())
    median, spread = UNREAD[name]
    middles = median + np.sqrt(np.maximum(spread**2 - narrow**2, 0.0)) * normal_scores(_RUNS)
    scores = middles[:, None] + narrow * normal_scores(_AFTER)
    after = [_least(needs_of(band_factor(results, name, one)), hours)[0] for one in scores]
    return _Owned(needs, hours, number, least, max(least - float(np.mean(after)), 0.0))


def _least(needs: Array, hours: Hours) -> tuple[float, float]:
    """Least mean regret [USD/s] and the number to own that has it; NaN if owning or renting has no known cost."""
    numbers = np.unique([0.0, *needs])
    regret = owning_regret(numbers[:, None], needs, hours.owned, hours.rented).mean(axis=1)
    best = int(np.argmin(regret))
    return float(regret[best]), float(numbers[best]) if regret[best] == regret[best] else np.nan
