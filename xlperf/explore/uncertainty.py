"""Results under uncertainty: seeded draws of uncertain inputs and calibration bands, the input that decides; and how
many accelerators of a fleet or a run to own at the band of its time, and the worth of a measured run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, divide, log
from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.cells import factorise
from xlperf.catalog.schema import Column, table_schema, unit_of
from xlperf.catalog.table import Table, uncertain_columns, values_in_case
from xlperf.engine.learning import ends_after_a_run
from xlperf.engine.software import peak_names
from xlperf.equations.cost.tco import owning_regret
from xlperf.explore import vary
from xlperf.explore.changed_catalogs import blanked_prices, sheet_rows
from xlperf.explore.money import FleetSize, Hours
from xlperf.explore.objectives import TABLES, TIMES, Answer, Limit, band_factor, is_rate, objective_of
from xlperf.explore.sweep import BLOCK, Sweep
from xlperf.explore.vary import normal_scores
from xlperf.explore.workers import worked

BAND = "calibration band"
DRAWS = 10_000  # default draws of each plan [-]
PERCENTILES = (5.0, 50.0, 95.0)
SHARED = {"training": 0.08, "inference": 0.27}
"""Intraclass correlation of prediction errors within a model, accelerator and software, by kind of plan: of the
logarithms of predicted over published step times (1,301 rows) and times per token (2,222 rows). [-]
"""
CLASSES = 20  # classes of an input's values, each with its own best plan [-]
_USABLE = 0.9
_BAND_INPUT, _PLAN_INPUT = 1 << 12, 1 << 13


@dataclass(frozen=True)
class Uncertainty:
    """Draws of one result of plans; all plans share the draws of the inputs, so that they can be compared."""

    sweep: Sweep  # plans, catalog, varied columns, and sampling
    result: str  # a result in numbers, or cost, energy or throughput
    # Whether times also vary within the calibration band, of plans of one model, software and machine in part together
    banded: bool = True
    processes: int = 1  # that evaluate the draws; the numbers are the same [-]
    limits: tuple[Limit, ...] = ()  # on a plan in each usable draw, beside its memory

    @cached_property
    def column(self) -> Column:
        """The column of the result."""
        return objective_of(self.sweep.plans.kind, self.result, "--result", self.sweep.owned).column

    @cached_property
    def sampling(self) -> vary.Sampling:
        """Number, method and seed of the draws."""
        if self.sweep.sampling is None:
            raise ValueError("no sampling")
        return self.sweep.sampling

    @cached_property
    def _groups(self) -> np.ndarray:
        """Model, software and machine of each plan as a number."""
        plans = self.sweep.plans
        names = (plans.text("model"), plans.filled("software"), plans.text("accelerator"))
        return factorise(list(zip(*(values.tolist() for values in names), strict=True)))[0]

    @cached_property
    def inputs(self) -> list[tuple[str, str]]:
        """Varied columns: sheet and header."""
        kind = self.sweep.plans.kind
        names = [(kind, table_schema(kind).by_name[name].header) for name in self.sweep.values]
        names += [(varied.sheet, varied.column.header) for varied in self.sweep.varied]
        return [*names, ("calibration", BAND)] if self.banded else names

    @cached_property
    def draws(self) -> tuple[Array, Array]:
        """The result of each draw of each plan, NaN if it is illegal, and whether it is usable, (plans, draws)."""
        return self._at(self._shares, self._scores if self.banded else None)

    @cached_property
    def _shares(self) -> Array:
        """Quantiles at which each input is drawn, (inputs, draws)."""
        index = np.arange(self.sampling.number)
        shares = [vary.uniforms(self.sampling, place, index) for place in range(self.sweep.num_inputs)]
        return np.array(shares).reshape(-1, len(index))

    @cached_property
    def _scores(self) -> Array:
        """Correlated standard normals, (plans, draws): a shared and an idiosyncratic part."""
        index = np.arange(self.sampling.number)

        def drawn(place: int) -> Array:
            return vary.normal_scores(vary.uniforms(self.sampling, place, index))

        common = {group: drawn(_BAND_INPUT + group) for group in dict.fromkeys(self._groups.tolist())}
        shared = SHARED[self.sweep.plans.kind]
        together, alone = np.sqrt(shared), np.sqrt(1.0 - shared)
        groups = enumerate(self._groups.tolist())
        return np.array([together * common[group] + alone * drawn(_PLAN_INPUT + row) for row, group in groups])

    def _at(self, shares: Array, scores: Array | None) -> tuple[Array, Array]:
        """Result of each plan with inputs at quantiles, (inputs, draws), and bands at scores, (plans, draws)."""
        plans, draws = len(self.sweep.plans), shares.shape[1]
        number = draws if len(shares) else 1  # only the band varies: one evaluation is enough
        size = max(BLOCK // number, 1)
        pieces = [
            (np.arange(first, min(first + size, plans)), np.arange(start, min(start + BLOCK, number)))
            for first in range(0, plans, size)
            for start in range(0, number, BLOCK)
        ]
        places = [np.ix_(rows, np.arange(draws) if number < draws else some) for rows, some in pieces]
        tasks = (
            (rows, shares[:, some], None if scores is None else scores[at])
            for (rows, some), at in zip(pieces, places, strict=True)
        )
        result, fits = np.empty((plans, draws)), np.empty((plans, draws))
        for at, (values, fit) in zip(places, worked(self._piece, tasks, self.processes), strict=True):
            result[at], fits[at] = values, fit
        return result / unit_of(self.column).factor, fits

    def _piece(self, task: tuple[np.ndarray, Array, Array | None]) -> tuple[Array, Array]:
        """As :meth:`_at` for some of the plans, by their rows, and some of the draws."""
        rows, shares, scores = task
        shape = len(rows), shares.shape[1]
        plan, draw = np.repeat(rows, shape[1]), np.tile(np.arange(shape[1]), shape[0])
        results = self.sweep.evaluated(*self.sweep.at(plan, shares[:, draw])).results
        fits = results.number("fits").reshape(shape)
        for limit in self.limits:
            within = limit.keeps(self._banded(results, limit.column.name, shape, scores))
            fits = np.where(np.isnan(fits), fits, fits * within)
        return self._banded(results, self.column.name, shape, scores), fits

    @staticmethod
    def _banded(results: Table, name: str, shape: tuple[int, int], score: Array | None) -> Array:
        """A result whose times lie at a score of their band, (plans, draws)."""
        values = results.number(name).reshape(shape)
        if score is None:
            return values
        scores = -score if is_rate(name) else score
        rows = np.broadcast_to(np.arange(shape[0] * shape[1]).reshape(shape), scores.shape).ravel()
        names = {column for column in results.columns if column.endswith(("_low", "_high"))} | {name, *TIMES.values()}
        needed = replace(results, columns={key: results[key] for key in results.columns if key in names})
        return values * band_factor(needed.take(rows), name, scores.ravel()).reshape(scores.shape)

    def summary(self) -> Table:
        """``uncertainty``: percentiles of the result of each plan, and its probability to be the best."""
        result, fits = self.draws
        usable = self._losses(result, fits)
        best = np.isfinite(usable.min(axis=0)) & (usable == usable.min(axis=0))
        base, _ = self._at(np.full((self.sweep.num_inputs, 1), 0.5), None)
        with np.errstate(all="ignore"):
            known = [row[~np.isnan(row)] for row in result]
            percentiles = [np.percentile(row, PERCENTILES) if len(row) else np.full(3, np.nan) for row in known]
            return Table(
                "uncertainty",
                {
                    "plan": _names(self.sweep.plans),
                    "result": np.full(len(result), self.column.header, dtype=object),
                    "median_inputs": base[:, 0],
                    "mean": np.array([fsum(row) / len(row) if len(row) else np.nan for row in known]),
                    **dict(zip(("p5", "p50", "p95"), np.transpose(percentiles), strict=True)),
                    "probability_fits": (fits == 1.0).mean(axis=1),
                    "probability_best": (best / np.maximum(best.sum(axis=0), 1)).mean(axis=1),
                    "probability_beats_first": (usable < usable[:1]).mean(axis=1),
                },
            )

    def _losses(self, values: Array, fits: Array) -> Array:
        """Losses to be minimised, (plans, draws); infinite if a plan does not fit."""
        larger = objective_of(self.sweep.plans.kind, self.result, owned=self.sweep.owned).larger
        usable = np.where(fits == 1.0, -values if larger else values, np.inf)
        return np.where(np.isnan(usable), np.inf, usable)

    def values_of_measuring(self) -> Array:
        """Expected value of partial perfect information: mean gain of the choice if an input is known, (inputs,).

        The baseline is the plan with the best mean. The draws fall into :data:`CLASSES` classes of an input, and each
        class has its own best plan. The band is measured with the inputs at their medians. Plans that do not fit in a
        tenth of the draws are excluded. After M. Strong and J. E. Oakley, Medical Decision Making 33(6), 2013,
        doi:10.1177/0272989X12465123.
        """
        losses = self._losses(*self.draws)
        usable = losses[np.isfinite(losses).mean(axis=1) > _USABLE]
        count, number = len(self.inputs), losses.shape[1]
        if len(usable) < 2 or number < CLASSES:
            return np.zeros(count)

        def gain(classes: np.ndarray, values: Array) -> float:
            known = np.isfinite(values)
            # Mean loss of each plan in each class of draws; NaN draws do not count
            sums = np.zeros((len(values), classes.max() + 1))
            for row, draws_of_plan in enumerate(values):
                sums[row] = np.bincount(classes[known[row]], draws_of_plan[known[row]], sums.shape[1])
            numbers = np.array([np.bincount(classes[row], minlength=sums.shape[1]) for row in known])
            means = sums / np.maximum(numbers, 1)
            # Gain of the best plan of each class over the plan that is best overall
            chosen = int(np.argmin(sums.sum(axis=1) / numbers.sum(axis=1)))
            return float(np.mean(means[chosen] - means.min(axis=0)))

        result = np.zeros(count)
        for place, shares in enumerate(self._shares):
            result[place] = gain(np.minimum((shares * CLASSES).astype(np.int64), CLASSES - 1), usable)
        if self.banded:
            middle = np.arange(len(losses)), np.full((self.sweep.num_inputs, 1), 0.5), self._scores
            values, fits = self._piece(middle)
            usable_losses = self._losses(values / unit_of(self.column).factor, fits)
            usable_losses = usable_losses[np.isfinite(usable_losses).mean(axis=1) > _USABLE]
            result[-1] = gain(np.arange(number), usable_losses) if len(usable_losses) > 1 else 0.0
        return result

    def effects(self) -> Table:
        """``input_effects``, the largest swing of each plan first: the result with one input at its 5th and 95th
        percentile and all others at their median, and the value of knowing it before the choice of a plan.
        """
        count, plans = len(self.inputs), len(self.sweep.plans)
        # Two draws per input: it alone at its 5th and at its 95th percentile, all others at their medians
        shares = np.full((count, 2 * count), 0.5)
        for place in range(count):
            shares[place, 2 * place : 2 * place + 2] = 0.05, 0.95
        ends, _ = self._inputs_at(shares)
        low, high = ends[:, 0::2], ends[:, 1::2]
        swing = np.abs(high - low)
        # Inputs of each plan by the swing of its result
        order = np.argsort(-swing, axis=1, kind="stable")

        def flat(values: np.ndarray) -> np.ndarray:
            return np.asarray(np.take_along_axis(values, order, axis=1).ravel())

        words = np.array(self.inputs, dtype=object)[order.ravel()]
        return Table(
            "input_effects",
            {
                "plan": np.repeat(_names(self.sweep.plans), count),
                "result": np.full(plans * count, self.column.header, dtype=object),
                "rank": np.tile(np.arange(1.0, count + 1.0), plans),
                "input": words[:, 1],
                "sheet": words[:, 0],
                "result_low": flat(low),
                "result_high": flat(high),
                "swing": flat(swing),
                "value_of_measuring": self.values_of_measuring()[order].ravel(),
            },
        )

    def _inputs_at(self, shares: Array) -> tuple[Array, Array]:
        """The result with all inputs at quantiles, the band last, (plans, draws)."""
        scores = np.broadcast_to(vary.normal_scores(shares[-1]), (len(self.sweep.plans), shares.shape[1]))
        return self._at(shares[: self.sweep.num_inputs], scores if self.banded else None)


def usual_ranges(plans: Table, catalog: Catalog) -> tuple[vary.Varied, ...]:
    """Ranges of -10 to +10 % for the inputs that dominate most plans: rates, memory, links, the rental price."""
    peaks = dict.fromkeys(peak_names(plans, catalog))
    names = [("accelerators", name) for name in ("memory_bandwidth", "memory_capacity")]
    names += [("accelerators", peak) for peak in peaks]
    names += [("networks", "link_bandwidth"), ("prices", "rental_price")]
    return tuple(vary.Varied(sheet, name, np.array([0.9, 1.1]), True, vary.UNIFORM) for sheet, name in names)


def sheet_ranges(plans: Table, catalog: Catalog, without: Sequence[vary.Varied] = ()) -> tuple[vary.Varied, ...]:
    """Triangular factors of numbers with low and high values in the sheets, the widest of the named rows."""
    excluded = {(varied.sheet, varied.name) for varied in without}
    for sheet, names in blanked_prices(catalog, plans, {varied.sheet for varied in without}).items():
        excluded |= {(sheet, name) for name in names}
    named = catalog.rows("accelerators", plans.text("accelerator"), plans, "accelerator")
    derived = (catalog.tables["accelerators"].text("device")[named] != "").any()
    results: list[vary.Varied] = []
    for sheet in vary.SHEETS if derived else (sheet for sheet in vary.SHEETS if sheet not in vary.REACHED):
        table = catalog.tables[sheet]
        for name in uncertain_columns(table):
            if (sheet, name) in excluded:
                continue
            varied = vary.Varied(sheet, name, np.ones(1), True)
            try:
                rows = sheet_rows(catalog, plans, varied)
            except InputError:  # no row of this sheet
                continue
            if (sheet, name) == ("prices", "capex") and not np.isnan(table.number("rental_price")[rows]).any():
                continue  # all are rented
            low, base, high = (values_in_case(table, name, case)[rows] for case in ("low", "base", "high"))
            ends = np.nanmin(low / base, initial=1.0), np.nanmax(high / base, initial=1.0)
            if len(rows) and not np.isnan(base).any() and ends[0] < ends[1]:
                results.append(replace(varied, values=np.array([ends[0], 1.0, ends[1]]), shape=vary.TRIANGULAR))
    return tuple(results)


def _names(plans: Table) -> np.ndarray:
    names = plans.text("name").tolist()
    return np.array([name or f"plan {row}" for row, name in enumerate(names, start=1)], dtype=object)


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
