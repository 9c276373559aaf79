"""Runs of a source and its other rows: constants of :mod:`xlperf.engine.learning`, and their accuracy.

A published source stands for a user: its rows are predicted without any of them in the fit, in readings as they first
were, some serve as own runs, and the others measure the gain. Machines that are fitted by vendor line take no part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from xlperf.base import resources
from xlperf.base.arrays import Array
from xlperf.base.units import percent
from xlperf.calibrate.fit import left_out_together
from xlperf.calibrate.fitter import rounded
from xlperf.calibrate.published_errors import (
    OTHER_MACHINES,
    QUANTITIES,
    RESULTS,
    Errors,
    errors_of,
    plans_of,
    plans_to_fit,
)
from xlperf.calibrate.readings import FirstPredictions, first_errors, first_predictions
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.csv_files import csv_text
from xlperf.catalog.table import Table, copied_name
from xlperf.engine import evaluate, learning
from xlperf.engine.join import software_words
from xlperf.measurements.comparison import MEMORY, power_plans, power_records
from xlperf.measurements.published import POWER, Published, PublishedPlans

NUMBERS_OF_RUNS = (1, 3, 10)  # numbers of rows of a source that serve as own runs [-]
DRAWS = 8  # draws of several rows of a source [-]
MOST_ROWS = 24  # largest number of rows of a source, spread evenly, that take part [-]
_IN_FIT = 12  # largest number of rows of a source in a fit [-]
_SHARE = 0.8
_FEWEST = 3  # least number of sources that set the band after a number of runs [-]
POWER_QUANTITY = "accelerator_power"


@dataclass(frozen=True)
class Source:
    """Rows of a published source with one quantity, predicted without the source in the fit."""

    name: str
    quantity: str
    places: learning.Places
    ratios: Array  # log of measured over predicted value, (rows,)
    half_width: Array  # of the 80 % band of the prediction, (rows,)

    def take(self, rows: np.ndarray) -> Source:
        """Select rows."""
        return Source(self.name, self.quantity, self.places.take(rows), self.ratios[rows], self.half_width[rows])

    def spread_out(self, most: int) -> Source:
        """At most so many rows, spread evenly."""
        count = len(self.ratios)
        return self if count <= most else self.take(np.linspace(0, count - 1, most).astype(np.int64))

    @cached_property
    def draws(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Rows that serve as runs, and the other rows, by number of runs, (draws, rows)."""
        count, generator = len(self.ratios), np.random.default_rng(len(self.ratios))
        result = {}
        for number in NUMBERS_OF_RUNS:
            if count <= number:
                continue
            runs = np.arange(count)[:, None]
            if number > 1:
                runs = np.stack([np.sort(generator.choice(count, number, replace=False)) for _ in range(DRAWS)])
            others = np.stack([np.setdiff1d(np.arange(count), row) for row in runs])
            result[number] = runs, others
        return result


def places_of(plans: Table, quantity: str, catalog: Catalog) -> learning.Places:
    """Plans of one source as the process of a quantity sees them."""
    software = software_words(plans)
    words = [software.words[code].casefold() for code in software.codes.tolist()]
    texts = (plans.text(column) for column in ("model", "accelerator"))
    columns = [[copied_name(str(name)).casefold() for name in names] for names in texts]
    codes = [np.unique(np.array(names, dtype=str), return_inverse=True)[1] for names in (*columns, words)]
    parts = learning.shares_of(quantity, evaluate(plans, catalog).columns)
    return learning.Places(np.stack(codes, axis=-1), *learning.settings_of(plans), parts)


def sources_left_out(published: Sequence[Published], catalog: Catalog, step: Callable[[str], None]) -> list[Source]:
    """Sources with two rows of a quantity or more, predicted without the source in the fit."""
    known, watts = first_predictions(), [rows for rows in published if rows.kind == POWER]
    result = sources_as_they_are(watts, catalog)
    for rows in [rows for rows in published if rows.kind != POWER]:
        for quantities in (QUANTITIES, (MEMORY,)) if rows.kind == "training" else (QUANTITIES,):
            plans = plans_to_fit(rows, catalog)
            result += _grouped(plans, *left_out_together(plans, quantities, _names))
            step(rows.kind)
            planned = {plans.published.text["row_id"][row] for row in plans.index.tolist()}
            by_line = [group.casefold().startswith(OTHER_MACHINES) for group in rows.text["group"]]
            free = [row for row, name in enumerate(rows.text["row_id"]) if name not in planned and not by_line[row]]
            result += sources_as_they_are([rows.take(free)], catalog, quantities, known)
    return result


def sources_as_they_are(
    published: Sequence[Published],
    catalog: Catalog,
    quantities: Sequence[str] = (*QUANTITIES, MEMORY),
    known: FirstPredictions | None = None,
) -> list[Source]:
    """Sources with two rows of a quantity or more that no fit has seen, as first predicted if ``known`` has them."""
    result: list[Source] = []
    for rows in published:
        if rows.kind == POWER:
            result += _of_power(rows, catalog)
            continue
        plans = plans_of(rows, catalog)
        errors = errors_of(plans, quantities)
        firsts = np.array([log for log, _ in first_errors(rows, errors, known or {})])
        result += _grouped(plans, errors, np.where(np.isnan(firsts), errors.fitted, firsts))
    return result


def _names(plans: PublishedPlans, errors: Errors) -> np.ndarray:
    return np.asarray(np.array(plans.published.text["source_id"], dtype=object)[plans.index[errors.plan]])


def _grouped(plans: PublishedPlans, errors: Errors, logs: Array) -> Iterator[Source]:
    """Sources of some rows by quantity; ``logs``: predicted over measured value."""
    names, wide = _names(plans, errors), np.maximum(-np.log(errors.low), np.log(errors.high))
    ratios = -logs
    for quantity, name in sorted(set(zip(errors.quantity.tolist(), names.tolist(), strict=True))):
        rows = np.flatnonzero((errors.quantity == quantity) & (names == name) & ~np.isnan(ratios))
        if len(rows) > 1:
            places = places_of(plans.plans.take(errors.plan[rows]), RESULTS[quantity], plans.catalog)
            yield Source(name, RESULTS[quantity], places, ratios[rows], wide[rows]).spread_out(MOST_ROWS)


def _of_power(rows: Published, catalog: Catalog) -> Iterator[Source]:
    """Sources of measured watts."""
    known = [each for each in power_records(rows, catalog) if each.quantity == "power" and each.covered]
    records = {record.row_id: record for record in known}
    plans = power_plans(rows, catalog)
    ids, names = plans.published.text["row_id"], plans.published.text["source_id"]
    rows_of: dict[str, list[int]] = {}
    for plan, row in enumerate(plans.index.tolist()):
        if ids[row] in records:
            rows_of.setdefault(names[row], []).append(plan)
    for name, of_source in sorted(rows_of.items()):
        if len(of_source) > 1:
            measured = [records[ids[plans.index[plan]]] for plan in of_source]
            ratios = np.log([record.measured / record.predicted for record in measured])
            places = places_of(plans.plans.take(of_source), POWER_QUANTITY, plans.catalog)
            yield Source(name, POWER_QUANTITY, places, ratios, np.full(len(of_source), math.nan)).spread_out(MOST_ROWS)


# --- fit -------------------------------------------------------------------------------------------------------------


def _log_densities(source: Source, effects: learning.Effects, number: int) -> Array:
    """Log density of the other rows under the process with some rows as runs, (draws, others)."""
    from scipy.special import gammaln

    runs, others = source.draws[number]
    whole = effects.variance * learning.covariance(source.places, source.places, effects)
    noise, freedom = effects.variance * effects.noise, effects.freedom + number
    lower = np.linalg.cholesky(whole[runs[:, :, None], runs[:, None, :]] + noise * np.eye(number))
    residual = np.linalg.solve(lower, source.ratios[runs][..., None])
    reduced = np.linalg.solve(lower, whole[runs[:, :, None], others[:, None, :]])
    squares = (residual * residual).sum((-1, -2))
    spread = np.diag(whole)[others] + noise - (reduced * reduced).sum(-2)
    spread = spread * ((effects.freedom + squares) / freedom)[:, None]
    error = source.ratios[others] - (reduced * residual).sum(-2)
    known = gammaln(0.5 * (freedom + 1.0)) - gammaln(0.5 * freedom) - 0.5 * np.log(freedom * np.pi * spread)
    return np.asarray(known - 0.5 * (freedom + 1.0) * np.log1p(error * error / (freedom * spread)))


def _loss(sources: Sequence[Source], effects: learning.Effects) -> float:
    """Mean negative log density of other rows, each source and number of runs alike; one run counts twice."""
    terms = [
        (2.0 if number == 1 else 1.0, -float(_log_densities(source, effects, number).mean()))
        for source in sources
        for number in source.draws
    ]
    return sum(weight * value for weight, value in terms) / sum(weight for weight, _ in terms)


def _effects(shared: Array, own: Array) -> learning.Effects:
    """Constants from the logarithms of their shares, reaches and own values."""
    shares, reaches = np.exp(shared[: len(learning.EFFECTS)]), np.exp(shared[len(learning.EFFECTS) :])
    variance, noise, freedom, *parts = np.exp(own).tolist()
    of_effects, lengths = tuple((shares / shares.sum()).tolist()), tuple(reaches.tolist())
    of_parts = tuple(part / variance for part in parts)
    return learning.Effects(of_effects, lengths, of_parts, variance, noise, freedom, width=1.0, growth=0.0)


_OWN_BOUNDS = ((-10.0, 2.0), (-5.0, 1.0), (math.log(1.5), math.log(60.0)))  # logarithms of variance, noise, freedom
_PART, _PART_BOUNDS = -4.0, (-9.0, 0.0)  # first value and bounds of the logarithm of the variance of a part
_SHARED_BOUNDS = (*((-6.0, 3.0),) * len(learning.EFFECTS), *((0.0, 4.5),) * len(learning.REACHES))
_RIDGE = 1e-3  # weight of the squared logarithms of shares: shares that the sources do not tell apart stay equal [-]
_TURNS = 3


def fitted_effects(sources: Sequence[Source], step: Callable[[str], None]) -> dict[str, learning.Effects]:
    """Constants by quantity: maximum likelihood of rows of sources left out, given one, three and ten others. Power, of
    which there are few sources, takes shares and reaches from the other quantities.
    """
    from scipy.optimize import minimize

    by_name: dict[str, list[Source]] = {}
    for source in sources:
        by_name.setdefault(source.quantity, []).append(source.spread_out(_IN_FIT))
    shared = np.array([0.0] * len(learning.EFFECTS) + [2.0] * len(learning.REACHES))
    parts = {name: [_PART] * len(learning.PARTS.get(name, ())) for name in by_name}
    starts = {name: np.array([-3.5, -2.0, 1.2, *own]) for name, own in parts.items()}
    informative = [name for name in by_name if name != POWER_QUANTITY]

    def of_all(values: Array) -> float:
        ridge = _RIDGE * float((values[: len(learning.EFFECTS)] ** 2).sum())
        return sum(_loss(by_name[name], _effects(values, starts[name])) for name in informative) + ridge

    for turn in range(_TURNS + 1):
        for name in starts if turn == _TURNS else informative:
            step(name)
            options = {"maxiter": 2 if turn == _TURNS else 1, "ftol": 1e-3}
            starts[name] = minimize(
                lambda values, name=name, fixed=shared: _loss(by_name[name], _effects(fixed, values)),
                starts[name],
                method="Powell",
                options=options,
                bounds=(*_OWN_BOUNDS, *[_PART_BOUNDS] * (len(starts[name]) - len(_OWN_BOUNDS))),
            ).x
        if turn < _TURNS:
            options = {"maxiter": 1, "ftol": 1e-3}
            shared = minimize(of_all, shared, method="Powell", bounds=_SHARED_BOUNDS, options=options).x
    every = {name: [source for source in sources if source.quantity == name] for name in by_name}
    return {name: _with_band(every[name], _effects(shared, starts[name])) for name in by_name}


def _with_band(sources: Sequence[Source], effects: learning.Effects) -> learning.Effects:
    """Width and growth of the band that holds 80 % of the other rows after one, three and ten runs. Where ten runs of a
    source are too rare to measure, the band does not narrow by growth.
    """
    widths = []
    for number in NUMBERS_OF_RUNS:
        outcomes = [_outcome(source, effects, number) for source in sources if number in source.draws]
        if len(outcomes) < _FEWEST:
            continue
        low, high = 0.2, 8.0
        for _ in range(20):
            middle = math.sqrt(low * high)
            inside = float(np.mean([outcome.inside(middle) for outcome in outcomes]))
            low, high = (middle, high) if inside < _SHARE else (low, middle)
        widths.append((math.log(number), math.log(high)))
    at, logs = np.array(widths).T
    growth = float(np.polyfit(at, logs, 1)[0]) if len(at) > 1 else 0.0
    growth = growth if len(at) == len(NUMBERS_OF_RUNS) else max(growth, 0.0)
    return effects._replace(width=math.exp(float(logs.mean() - growth * at.mean())), growth=growth)


def effects_csv(effects: dict[str, learning.Effects]) -> str:
    """Text of ``own_runs.csv`` with fitted constants; quantities without sources keep theirs."""
    values: dict[tuple[str, str], float] = {}
    for quantity, constants in effects.items():
        values |= {(learning.ANY, name): share for name, share in zip(learning.EFFECTS, constants.shares, strict=True)}
        values |= {(learning.ANY, name): reach for name, reach in zip(learning.REACHES, constants.reaches, strict=True)}
        values |= {(quantity, name): getattr(constants, name) for name in learning.OWN}
        parts = learning.PARTS.get(quantity, ())
        values |= {(quantity, name): part for name, part in zip(parts, constants.parts, strict=True)}
    rows = resources.rows(learning.TABLE)
    for row in rows:
        key = row["quantity"], row["constant"]
        row["value"] = f"{rounded(values[key])}" if key in values else row["value"]
    return csv_text([list(rows[0]), *(row.values() for row in rows)])


# --- accuracy --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """Other rows of a source after some runs, (values,)."""

    before: Array  # errors without runs [-]
    after: Array  # errors with them [-]
    whole: Array  # errors with their mean ratio applied whole [-]
    gap: Array  # log of measured over corrected value [-]
    half_width: Array  # of the band at width 1; it grows as the width to the power of 1 less ``unknown`` [-]
    unknown: Array
    cover: Array  # half-width that runs of equal settings give at least [-]
    alike: Array  # 1 where a run has the model, accelerator and software of the row, else 0

    @property
    def errors(self) -> tuple[Array, Array, Array]:
        """Errors without runs, with them, and with their mean ratio applied whole."""
        return self.before, self.after, self.whole

    def inside(self, width: float) -> float:
        """Share of the rows within the band."""
        wide = np.maximum(self.half_width * width ** (1.0 - self.unknown), self.cover)
        return float((np.abs(self.gap) <= wide).mean())


def _outcome(source: Source, effects: learning.Effects, number: int) -> Outcome:
    """Other rows of a source, with each draw of its rows as runs."""
    runs, others = source.draws[number]
    plain, parts = effects._replace(width=1.0), []
    for some, rest in zip(runs, others, strict=True):
        process = learning.Process(plain, source.places.take(some), source.ratios[some])
        learned = process.learned(source.places.take(rest))
        ratio, known = source.ratios[rest], source.half_width[rest]
        wide = learning.band(learned, np.where(np.isnan(known), learned.first, known))
        moved = (np.zeros(len(rest)), learned.mean, np.full(len(rest), source.ratios[some].mean()))
        errors = [np.abs(np.expm1(mean - ratio)) for mean in moved]
        names = source.places.names
        alike = (names[rest][:, None] == names[some][None]).all(-1).any(-1)
        unknown = np.where(np.isnan(known), 0.0, learned.unknown)
        parts.append([*errors, ratio - learned.mean, wide, unknown, learned.cover, alike.astype(np.float64)])
    return Outcome(*np.concatenate(parts, axis=1))


@dataclass(frozen=True)
class Accuracy:
    """Median errors of other rows of left-out sources after some runs, and the share in the 80 % band. [-]

    A median is over the sources' medians; ``alike``: of the rows with model, accelerator and software of a run, without
    runs and with them; ``rows`` are medians over all pairs of runs and other rows.
    """

    quantity: str
    runs: int
    sources: int
    medians: tuple[float, ...]
    inside: float
    alike: tuple[float, ...]
    rows: tuple[float, ...]


def accuracies(sources: Sequence[Source]) -> list[Accuracy]:
    """Accuracy by quantity and number of runs."""
    result = []
    for quantity in sorted({source.quantity for source in sources}):
        for number in NUMBERS_OF_RUNS:
            with_number = [source for source in sources if source.quantity == quantity and number in source.draws]
            if not with_number:
                continue
            outcomes = [_outcome(source, learning.effects_of(quantity), number) for source in with_number]
            columns = list(zip(*(outcome.errors for outcome in outcomes), strict=True))
            medians = tuple(_middle(column) for column in columns)
            alike = tuple(
                _middle([errors[outcome.alike > 0.0] for outcome, errors in zip(outcomes, column, strict=True)])
                for column in columns[:2]
            )
            pairs = tuple(float(np.median(np.concatenate(column))) for column in columns)
            inside = float(np.mean([outcome.inside(learning.effects_of(quantity).width) for outcome in outcomes]))
            result.append(Accuracy(quantity, number, len(with_number), medians, inside, alike, pairs))
    return result


def _middle(sources: Sequence[Array]) -> float:
    """Median over the medians of the sources that have values; NaN if none has."""
    medians = [float(np.median(errors)) for errors in sources if len(errors)]
    return float(np.median(medians)) if medians else math.nan


def accuracy_table(result: Sequence[Accuracy]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and lines of a table of accuracies."""
    header = (
        "quantity",
        "own runs",
        "sources",
        "median error",
        "with them",
        "their ratio whole",
        "in the 80 % band",
        "same model, machine, software",
        "with them",
        "by pair: median error",
        "with them",
        "their ratio whole",
    )
    return header, [
        (
            learning.QUANTITIES[accuracy.quantity],
            f"{accuracy.runs}",
            f"{accuracy.sources}",
            *map(percent, accuracy.medians),
            percent(accuracy.inside, 0),
            *map(percent, accuracy.alike),
            *map(percent, accuracy.rows),
        )
        for accuracy in result
    ]
