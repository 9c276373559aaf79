"""Constants of what a stack's allocator holds, from published rows that print reserved memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.units import factor
from xlperf.calibrate.comparison import predicted
from xlperf.calibrate.fitted_constants import FittedConstant, calibration_table, fit_set, joined_tables, rounded
from xlperf.calibrate.published import Published
from xlperf.calibrate.published_training import training_plans
from xlperf.catalog.calibration import ANY, declared_constants
from xlperf.catalog.catalog import Catalog

FAMILY = "training_memory"
NEVER_FITTED = "papers"
FEWEST_ROWS = 30
_ROUNDS = 4
_WEIGHTINGS = 12
_FLOOR = 0.02
_MOST = {"activation_share": 2.0, "allocator_share": 0.5, "allocator_base": 4.0 * factor("GiB")}
_SCALE = {"activation_share": 1.0, "allocator_share": 0.4, "allocator_base": factor("GiB")}
_STEPS = (0.2, 0.1, 0.1, 0.05)
_CONSTANTS = ("activation_share", "allocator_share", "allocator_base")
_START = (0.5, 0.1, 0.0)
_SOURCE = "published rows of the sheet training in validation.xlsx"


def fit_memory(published: Published, catalog: Catalog, date: str) -> list[FittedConstant]:
    r"""Fit what the allocator of a stack holds, for every stack with enough rows that print reserved memory.

    .. math:: R = (M + a A) (1 + s) + b

    with the allocated memory M and the activations A of the layers as predicted: the mean of absolute relative errors
    is made small by weighted least squares, the fullest stage is looked for again with the values found, and steps
    to either side are taken where they help.

    Parameters
    ----------
    published : Published
        Training rows.
    catalog : Catalog
        Accelerators and models; documented constants in its calibration are kept.
    date : str
        Date that the rows carry.

    Returns
    -------
    list of FittedConstant
        Activation share a, allocator share s and base b of each stack.
    """
    kinds, groups = published.text["mem_kind"], published.text["group"]
    chosen = [
        row
        for row in np.flatnonzero(published.number["peak_mem_gb"] > 0.0).tolist()
        if "reserved" in kinds[row].casefold() and groups[row] != NEVER_FITTED
    ]
    if not chosen:
        return []
    plans = training_plans(published.take(chosen), catalog)
    software = [str(name) for name in plans.plans.text("software").tolist()]
    names = [published.text["row_id"][chosen[row]] for row in plans.index.tolist()]
    measured = plans.published.number["peak_mem_gb"][plans.index] * factor("GiB")
    found: list[FittedConstant] = []
    for stack in sorted(set(software)):
        rows = [row for row, name in enumerate(software) if name == stack]
        if len(rows) >= FEWEST_ROWS:
            some = plans.published.take(plans.index[rows])
            ids = [names[row] for row in rows]
            found += _fit_stack(some, measured[rows], stack, catalog, date, ids, published.text["row_id"])
    return found


def _fit_stack(
    published: Published,
    measured: Array,
    stack: str,
    catalog: Catalog,
    date: str,
    ids: list[str],
    all_ids: Sequence[str],
) -> list[FittedConstant]:
    def terms_of(values: dict[str, float]) -> Array:
        rows = _rows(values, stack, date, ids, all_ids, np.nan)
        known = joined_tables(catalog.tables["calibration"], calibration_table(rows))
        results = predicted(training_plans(published, catalog.with_tables([known])))
        layers = results.number("memory_layer_activations")
        kept, plain = layers / (1.0 + values["activation_share"]), results.number("memory") - layers
        good = np.isfinite(plain)
        return np.asarray(np.stack([plain, kept, np.ones_like(plain)], axis=-1)[good] / measured[good, None])

    def misses_of(values: dict[str, float], terms: Array) -> Array:
        return np.asarray(np.abs(terms @ np.array(_weights(values)) - 1.0))

    values = dict(zip(_CONSTANTS, _START, strict=True))
    best, misses = values, np.full(1, np.inf)
    for _ in range(_ROUNDS):
        terms = terms_of(values)
        found = misses_of(values, terms)
        if found.mean() < misses.mean():
            best, misses = values, found
        values = _bounded(dict(zip(_CONSTANTS, _solved(terms), strict=True)))
    for step in _STEPS:
        for name in _CONSTANTS:
            for sign in (1.0, -1.0):
                values = _bounded({**best, name: best[name] + sign * step * _SCALE[name]})
                found = misses_of(values, terms_of(values))
                if found.mean() < misses.mean():
                    best, misses = values, found
    return _rows(best, stack, date, ids, all_ids, float(np.median(misses)))


def _solved(terms: Array) -> tuple[float, float, float]:
    share, more, base = _least_absolute(terms)
    return more / share - 1.0, share - 1.0, base


def _bounded(values: dict[str, float]) -> dict[str, float]:
    return {name: rounded(min(max(value, 0.0), _MOST[name])) for name, value in values.items()}


def _weights(values: dict[str, float]) -> tuple[float, float, float]:
    share = 1.0 + values["allocator_share"]
    return share, share * (1.0 + values["activation_share"]), values["allocator_base"]


def _least_absolute(terms: Array) -> tuple[float, float, float]:
    """Coefficients, none below 0, whose sum comes nearest to 1 by the mean of absolute deviations."""
    scale = np.abs(terms).mean(axis=0)
    scaled = terms / scale
    weights = np.ones(len(terms))
    answer = np.zeros(3)
    for _ in range(_WEIGHTINGS):
        active = [0, 1, 2]
        while active:
            part = scaled[:, active] * weights[:, None]
            solved = np.linalg.lstsq(part, weights, rcond=None)[0]
            if (solved >= 0.0).all():
                break
            active.remove(active[int(np.argmin(solved))])
        answer = np.zeros(3)
        answer[active] = solved
        weights = 1.0 / np.sqrt(np.maximum(np.abs(scaled @ answer - 1.0), _FLOOR))
    first, second, third = (answer / scale).tolist()
    return first, second, third


def _rows(
    values: dict[str, float], stack: str, date: str, ids: list[str], all_ids: Sequence[str], error: float
) -> list[FittedConstant]:
    assert set(values) <= set(declared_constants()[FAMILY])
    return [
        FittedConstant(
            family=FAMILY,
            generation=ANY,
            precision=ANY,
            software=stack,
            constant=name,
            value=value,
            fit_set=fit_set(ids, all_ids),
            num_rows=len(ids),
            error=error,
            date=date,
            source=_SOURCE,
        )
        for name, value in values.items()
    ]
