"""Robust choice: which of the best plans are best on average, at the 90th percentile, or by least regret."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import Column, table_schema, unit_of
from xlperf.explore.found import Search
from xlperf.explore.samples import LATIN_HYPERCUBE, Sampling
from xlperf.explore.sweep import Sweep
from xlperf.explore.uncertainty import Uncertainty
from xlperf.explore.vary import Varied

MEASURES = ("average", "p90", "regret")
"""What makes a plan best under uncertainty: mean, 90th percentile, or least mean regret."""
MOST_DRAWN = 5_000
"""Plans of a search that are drawn at the most, the best by the prediction. [-]"""
DRAWS = 1_000
"""Draws of each plan by default. [-]"""
APART = 0.8
"""Probability with which a plan has to be better than another for the two to be told apart. [-]"""
SHOWN = ("mean", "p90", "mean_regret", "probability_fits", "probability_best", "probability_beats_first")
_SURE = 0.9


class Robust(NamedTuple):
    """Plans in robust order.

    Attributes
    ----------
    found : Search
        With the plans in that order.
    columns : list of (Column, Array)
        What the draws say of each plan, in the unit of the objective.
    words : str
        What was chosen how, and how many of the first five cannot be told apart.
    """

    found: Search
    columns: list[tuple[Column, Array]]
    words: str


def robust(
    found: Search,
    catalog: Catalog,
    measure: str,
    varied: Sequence[Varied] = (),
    draws: int = DRAWS,
    seed: int = 0,
    top: int | None = None,
    processes: int = 1,
) -> Robust:
    """Order the plans of a search by what they are under uncertainty, all drawn with the same inputs.

    Plans that do not fit in a tenth of the draws or more come last; draws in which a plan does not fit are left out.

    Parameters
    ----------
    found : Search
        Its plans, the best by the prediction first.
    catalog : Catalog
        What they refer to.
    measure : str
        One of :data:`MEASURES`.
    varied : sequence of Varied
        Uncertain numbers of the plans and of catalog sheets, beside the bands of the calibration.
    draws, seed : int
        How many, and of which random numbers. [-]
    top : int, optional
        Plans to keep.
    processes : int, default 1
        Processes that evaluate the draws. [-]

    Returns
    -------
    Robust
        At most :data:`MOST_DRAWN` plans.
    """
    plans = found.plans.take(slice(MOST_DRAWN))
    name, larger = found.objective.column.name, found.objective.larger
    sampling = Sampling(draws, LATIN_HYPERCUBE, seed)
    values, fits = Uncertainty(Sweep(plans, catalog, {}, tuple(varied), sampling), name, True, processes).draws()
    usable = np.where(fits == 1.0, values, np.nan)
    loss = np.where(np.isnan(usable), np.inf, -usable if larger else usable)
    best = loss.min(axis=0)
    with np.errstate(all="ignore"):
        regret = np.where(np.isfinite(loss), np.abs(loss - best) / np.abs(best), np.nan)
    probable = (fits == 1.0).mean(axis=1)
    p90 = np.sort(loss, axis=1)[:, min(int(np.ceil(_SURE * draws)), draws) - 1]
    measures = {"average": _mean(np.where(np.isfinite(loss), loss, np.nan)), "p90": p90, "regret": _mean(regret)}
    score = np.where(probable >= _SURE, measures[measure], np.inf)
    order = np.lexsort((np.arange(len(score)), np.nan_to_num(score, nan=np.inf)))[:top]
    first = loss[order[0]]
    better = (loss[order] < first).mean(axis=1)
    winners = loss == best
    table = {
        "mean": _mean(usable),
        "p90": np.where(np.isfinite(p90), -p90 if larger else p90, np.nan),
        "mean_regret": measures["regret"],
        "probability_fits": probable,
        "probability_best": (winners / np.maximum(winners.sum(axis=0), 1)).mean(axis=1),
    }
    declared = table_schema("uncertainty").by_name
    unit = found.objective.column
    columns = [
        (replace(declared[key], unit=unit.unit) if key in ("mean", "p90") else declared[key], values[order])
        for key, values in table.items()
    ]
    factor = unit_of(unit).factor
    columns = [(one, values * factor if one.name in ("mean", "p90") else values) for one, values in columns]
    columns.append((declared["probability_beats_first"], better))
    chosen = found.taken(order)
    how = {"average": "best on average", "p90": "best at the 90th percentile", "regret": "least regret"}[measure]
    words = f"{how} of the first {len(plans):,} in {draws:,} draws"
    ahead = (first < loss[order[1:5]]).mean(axis=1)
    alike = int(np.argmax(np.append(ahead >= APART, True))) + 1
    if alike > 1:
        words += f"; the first {alike} cannot be told apart: the first leads in less than {APART:.0%} of draws"
    return Robust(chosen, columns, words)


def _mean(values: Array) -> Array:
    """Mean of the numbers of each row; NaN where there is none."""
    known = ~np.isnan(values)
    with np.errstate(all="ignore"):
        return np.asarray(np.where(known, values, 0.0).sum(axis=1) / known.sum(axis=1))
