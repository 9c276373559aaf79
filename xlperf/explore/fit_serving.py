"""What serving engines take beyond kernels: their costs, their all-reduces, waits under load, layers of experts.

Each is fitted with the others held: costs by :mod:`xlperf.explore.fit_engines`, the rest on grids of values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from xlperf.catalog.calibration import ANY
from xlperf.catalog.catalog import Catalog
from xlperf.evaluate import evaluate
from xlperf.explore.fit_engines import (
    FAMILY,
    SOURCE,
    engine_rows,
    fit_costs,
    fitted_costs,
    ratios,
    serving_rows,
    time_of,
)
from xlperf.explore.fit_rows import FittedConstant, calibration_table, fit_set, joined_tables, rounded
from xlperf.explore.fit_training import FEWEST_ROWS, NEVER_FITTED
from xlperf.explore.measurements import FIRST_TOKEN, TIME_PER_TOKEN, compare
from xlperf.explore.published import Published
from xlperf.explore.published_inference import inference_plans

LOAD, EXPERTS, REDUCE = "serving_load", "serving_experts", "engine_all_reduce"

_SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
_STARTS = (2e-6, 3e-6, 4e-6, 6e-6, 9e-6, 1.4e-5, 1e-4)
_SLOWDOWNS = (0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3, 1.6, 2.0, 2.5)
_OVERHEADS = (0.0, 1e-5, 2e-5, 4e-5, 7e-5, 1.2e-4)
_FARTHEST = math.log(3.0)
_ROUNDS = 2


class _Residual(NamedTuple):
    """One published time: its row, engine and generation, what it is, and log of predicted over measured."""

    row_id: str
    software: str
    generation: str
    first_token: bool
    mixed: bool
    error: float


def _residual_errors(published: Published, catalog: Catalog) -> list[_Residual]:
    plans = inference_plans(published, catalog)
    records = compare(plans, evaluate(plans.plans, plans.catalog))
    plan_of = {name: row for row, name in enumerate(plans.plans.text("name").tolist())}
    accelerators = catalog.rows("accelerators", plans.plans.text("accelerator"), plans.plans, "accelerator")
    models = plans.catalog.rows("models", plans.plans.text("model"), plans.plans, "model")
    generation = catalog.tables["accelerators"].text("generation")[accelerators]
    mixed = plans.catalog.tables["models"].number("num_experts", 0.0)[models] > 0.0
    software = plans.plans.text("software")
    loaded = plans.plans.text("mode") != "static"
    found = []
    for record in records:
        if not (record.primary and record.covered and record.group != NEVER_FITTED):
            continue
        if record.quantity not in (TIME_PER_TOKEN, FIRST_TOKEN):
            continue
        row = plan_of[record.row_id]
        first = record.quantity == FIRST_TOKEN
        if first and not loaded[row]:
            continue
        error = math.log(time_of(record, record.predicted) / time_of(record, record.measured))
        found.append(_Residual(record.row_id, str(software[row]), str(generation[row]), first, bool(mixed[row]), error))
    return found


def _spread(errors: Sequence[float]) -> float:
    """Mean size of errors, the largest ones cut off at a factor of three."""
    return float(np.mean([min(abs(error), _FARTHEST) for error in errors]))


def _held(constants: Sequence[FittedConstant], catalog: Catalog) -> Catalog:
    """The catalog with other constants in place of its own of the same family and names."""
    table = catalog.tables["calibration"]
    names = {(row.family, row.constant) for row in constants}
    pairs = list(zip(table.text("family").tolist(), table.text("constant").tolist(), strict=True))
    others = table.take(np.flatnonzero([pair not in names for pair in pairs]))
    return catalog.with_tables([joined_tables(others, calibration_table(list(constants)))])


def _plain(family: str, generation: str, software: str, name: str, value: float) -> FittedConstant:
    return FittedConstant(family, generation, ANY, software, name, value, "", 0, math.nan, "", "")


def fit_waiting(published: Published, catalog: Catalog) -> dict[str, tuple[float, float, set[str]]]:
    """Share of the requests in flight whose prefills a new request waits for, by engine.

    Parameters
    ----------
    published : Published
        Inference rows.
    catalog : Catalog
        With the costs of the engines.

    Returns
    -------
    dict of str to (float, float, set of str)
        Engine -> share, mean error of the logarithm of the time to the first token, rows; "any" is all of them.
    """
    errors: dict[tuple[str, float], list[float]] = {}
    used: dict[str, set[str]] = {}
    for share in _SHARES:
        tried = _held([_plain(LOAD, ANY, ANY, "waiting_share", share)], catalog)
        for residual in _residual_errors(published, tried):
            if residual.first_token:
                for name in (residual.software, ANY):
                    errors.setdefault((name, share), []).append(residual.error)
                    used.setdefault(name, set()).add(residual.row_id)
    found = {}
    for software in sorted({name for name, _ in errors}):
        sizes = [(_spread(errors[software, share]), share) for share in _SHARES]
        if len(used[software]) >= FEWEST_ROWS:
            found[software] = (min(sizes)[1], min(sizes)[0], used[software])
    return found


def fit_experts(published: Published, catalog: Catalog) -> dict[str, tuple[float, float, float, set[str]]]:
    """What layers of experts take beyond plain products, by generation of accelerators.

    Parameters
    ----------
    published : Published
        Inference rows.
    catalog : Catalog
        With the costs of the engines.

    Returns
    -------
    dict of str to (float, float, float, set of str)
        Generation -> slowdown of the products, time of a layer, mean error of the logarithm, rows; "any" is all.
    """
    errors: dict[tuple[str, float, float], list[float]] = {}
    used: dict[str, set[str]] = {}
    for slowdown, overhead in itertools.product(_SLOWDOWNS, _OVERHEADS):
        tried = _held(
            [
                _plain(EXPERTS, ANY, ANY, "product_slowdown", slowdown),
                _plain(EXPERTS, ANY, ANY, "layer_overhead_time", overhead),
            ],
            catalog,
        )
        for residual in _residual_errors(published, tried):
            if residual.mixed and not residual.first_token:
                for key in (residual.generation, ANY):
                    errors.setdefault((key, slowdown, overhead), []).append(residual.error)
                    used.setdefault(key, set()).add(residual.row_id)
    found = {}
    for generation in sorted({name for name, _, _ in errors}):
        sizes = [
            (_spread(errors[generation, slowdown, overhead]), slowdown, overhead)
            for slowdown, overhead in itertools.product(_SLOWDOWNS, _OVERHEADS)
        ]
        error, slowdown, overhead = min(sizes)
        if len(used[generation]) >= FEWEST_ROWS:
            found[generation] = (slowdown, overhead, error, used[generation])
    return found


def fit_reduces(published: Published, catalog: Catalog) -> dict[str, tuple[float, float, set[str]]]:
    """Start of the all-reduce kernels of engines; the latest is that of an engine without such kernels.

    Parameters
    ----------
    published : Published
        Inference rows.
    catalog : Catalog
        With the other constants.

    Returns
    -------
    dict of str to (float, float, set of str)
        Engine -> start in seconds, mean error of the logarithm of times per token, rows.
    """
    tried: dict[tuple[str, float], tuple[float, float]] = {}
    used: dict[str, set[str]] = {}
    for start in _STARTS:
        held = _held([_plain(REDUCE, ANY, ANY, "launch_time", start)], catalog)
        rows = serving_rows(published, held)
        rows = rows.take(~rows.first_token & rows.shared)
        for software in sorted(set(rows.software.tolist())):
            some = rows.take(engine_rows(rows, software))
            if some.num_rows < FEWEST_ROWS:
                continue
            errors: list[float] = []
            for generation in sorted(set(some.generation.tolist())):
                part = some.take(some.generation == generation)
                errors += np.log(ratios(part, fitted_costs(part))).tolist()
            tried[software, start] = (_spread(errors), start)
            used[software] = set(some.row_ids.tolist())
    found = {}
    for software in sorted({name for name, _ in tried}):
        error, start = min(tried[software, start] for start in _STARTS)
        found[software] = (start, error, used[software])
    return found


def _reduce_rows(published: Published, catalog: Catalog, date: str) -> list[FittedConstant]:
    found, order = [], published.text["row_id"]
    for software, (start, error, rows) in fit_reduces(published, catalog).items():
        found.append(
            FittedConstant(
                REDUCE, ANY, ANY, software, "launch_time", start, fit_set(rows, order), len(rows), rounded(error),
                date, SOURCE,
                notes="error: mean size of the logarithm of predicted over measured time per token",
            )
        )  # fmt: skip
    return found


def _load_rows(published: Published, catalog: Catalog, date: str) -> list[FittedConstant]:
    found, order = [], published.text["row_id"]
    for software, (share, error, rows) in fit_waiting(published, catalog).items():
        found.append(
            FittedConstant(
                LOAD, ANY, ANY, software, "waiting_share", share, fit_set(rows, order), len(rows), rounded(error),
                date, SOURCE,
                notes="error: mean size of the logarithm of predicted over measured time to the first token",
            )
        )  # fmt: skip
    return found


def _expert_rows(published: Published, catalog: Catalog, date: str) -> list[FittedConstant]:
    found, order = [], published.text["row_id"]
    for generation, (slowdown, overhead, error, rows) in fit_experts(published, catalog).items():
        for name, value in (("product_slowdown", slowdown), ("layer_overhead_time", overhead)):
            found.append(
                FittedConstant(
                    EXPERTS, generation, ANY, ANY, name, value, fit_set(rows, order), len(rows), rounded(error),
                date, SOURCE,
                    notes="error: mean size of the logarithm of predicted over measured time per token of mixtures",
                )
            )  # fmt: skip
    return found


def fit_serving(published: Published, catalog: Catalog, date: str) -> list[FittedConstant]:
    """Fit what engines take beyond kernels: fixed costs, waits under load, layers of experts; then the bands.

    Costs, waits and experts are fitted in turn, each with the others held.

    Parameters
    ----------
    published : Published
        Inference rows; those of ``group`` papers are never used.
    catalog : Catalog
        Catalog whose calibration has the kernel constants.
    date : str
        Date that the rows carry.

    Returns
    -------
    list of FittedConstant
        Families ``serving_software``, ``serving_band``, ``serving_load`` and ``serving_experts``, in a fixed order.
    """
    reduces = _reduce_rows(published, catalog, date)
    others: list[FittedConstant] = list(reduces)
    for _ in range(_ROUNDS):
        costs = fit_costs(published, _held(others, catalog) if others else catalog, date, hold_out=False)
        if not costs:
            return []
        held = _held([*others, *(row for row in costs if row.family == FAMILY)], catalog)
        others = reduces + _load_rows(published, held, date)
        others += _expert_rows(published, _held(others, held) if others else held, date)
    return [*fit_costs(published, _held(others, catalog) if others else catalog, date), *others]
