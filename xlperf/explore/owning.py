"""How many accelerators of a fleet to own at the band of its time per token, and the worth of a measured run."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, exp, log
from xlperf.catalog.table import Table
from xlperf.engine.learning import ends_after_a_run
from xlperf.equations.cost.regret import owning_regret
from xlperf.explore.money import FleetSize, Hours
from xlperf.explore.objectives import TABLES, Answer, band_factor
from xlperf.explore.vary import normal_scores

OWNING = "owning"
UNREAD_MEDIAN, UNREAD_SPREAD = 0.48, 0.9
"""Times per token of 633 runs that no fit had read, in standard scores of bands without their publisher: the median one
is above the prediction, and 80 % are below a score of 1.24. [-]"""
_NEEDS: Array = np.linspace(0.5 / 199.0, 1.0 - 0.5 / 199.0, 199)  # equally likely needs, as probabilities [-]
_ROWS = (0.1, 0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)  # probabilities that the numbers of the table are enough [-]


def unread_score(probability: float | Array) -> Array:
    """Standard score of a band that a run which no fit has read stays below with a probability. [-]

    >>> unread_score(np.array([0.5, 0.8])).round(2).tolist()
    [0.48, 1.24]
    """
    return UNREAD_MEDIAN + UNREAD_SPREAD * normal_scores(np.asarray(probability))


def owning_answer(size: FleetSize, hours: Hours, plan: Table, results: Table, month: float) -> Answer:
    """The number to own, its regret, and what a run of the plan would take off it; with the table by number owned."""
    factors = band_factor(results, "tpot", unread_score(_NEEDS))
    needs = _needs(size, factors)
    least, number = _least(needs, hours)
    # A run fixes the middle and narrows the band around it.
    logs = np.stack([log(results.number(f"tpot_{end}") / results.number("tpot")) for end in ("low", "high")])
    ends = dict(zip(("tpot_low", "tpot_high"), exp(ends_after_a_run(plan, results.columns, "tpot", logs)), strict=True))
    tpot = results.number("tpot")
    after = Table(results.kind, {"tpot": tpot, **{name: tpot * factor for name, factor in ends.items()}})
    measured = band_factor(after, "tpot", normal_scores(_NEEDS)) * band_factor(results, "tpot", UNREAD_MEDIAN)
    left, _ = _least(_needs(size, measured), hours)
    shown = np.array([number, *np.quantile(needs, _ROWS, method="inverted_cdf")])
    chosen = np.unique(shown[~np.isnan(shown)])
    regret = owning_regret(chosen[:, None], needs, hours.owned, hours.rented).mean(axis=1)
    rented = np.maximum(needs - chosen[:, None], 0.0).mean(axis=1)
    table = {
        "owned": chosen, "enough_share": (needs <= chosen[:, None]).mean(axis=1),
        "idle": np.maximum(chosen[:, None] - needs, 0.0).mean(axis=1), "rented": rented,
        "monthly_cost": month * (hours.owned * chosen + hours.rented * rented), "monthly_regret": month * regret,
    }  # fmt: skip
    return {
        TABLES: {OWNING: Table("serve_owning", table)}, "accelerators_to_own": number,
        "monthly_regret": month * least, "run_worth": month * max(least - left, 0.0),
    }  # fmt: skip


def _needs(size: FleetSize, factors: Array) -> Array:
    """Accelerators in whole servers that copies need which take some factors as long. [-]"""
    return np.array([sum(size.whole(further / size.longer)[1]) for further in factors.tolist()])


def _least(needs: Array, hours: Hours) -> tuple[float, float]:
    """Least mean regret [USD/s] and the number to own that has it; NaN if owning or renting has no known cost."""
    numbers = np.unique([0.0, *needs])
    regret = owning_regret(numbers[:, None], needs, hours.owned, hours.rented).mean(axis=1)
    best = int(np.argmin(regret))
    return float(regret[best]), float(numbers[best]) if regret[best] == regret[best] else np.nan
