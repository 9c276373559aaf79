"""Fixed costs of serving engines from published latencies, and the bands of the time per token.

Times are linear in the costs of a layer, of a request and of a pass of the prefill, so their coefficients come from
predictions with one cost at a time; the costs with the least sum of absolute relative errors are then a linear
program, which outliers do not pull.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from xlperf.arrays import Array
from xlperf.catalog.calibration import ANY, declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.evaluate import evaluate
from xlperf.explore.fit_rows import FittedConstant, calibration_table, fit_set, joined_tables, rounded
from xlperf.explore.fit_stacks import HIGH_SHARE, LOW_SHARE
from xlperf.explore.fit_training import FEWEST_ROWS, NEVER_FITTED, fold_of
from xlperf.explore.measurements import FIRST_TOKEN, TIME_PER_TOKEN, Record, compare
from xlperf.explore.published import Published, PublishedPlans
from xlperf.explore.published_inference import inference_plans
from xlperf.units import factor

FAMILY, BAND = "serving_software", "serving_band"
COSTS = ("layer_overhead_time", "prefill_overhead_time", "request_overhead_time")
FEWEST_OF_GENERATION = 16
"""Rows that an engine on one generation needs for costs of its own."""
BUILT_ON = {"nim": "tensorrt-llm"}
"""Servers whose rows also tell about the engine that they are built on."""

_STEP = 1e-4
_APART = 0.05
_RATES = ("tokens_per_s", "tokens_per_s_per_gpu")
SOURCE = "published rows of the sheet inference in validation.xlsx"
_HELD_OUT = "error: rows held out by model, accelerator and mapping"
_MIDDLE = "median of the engines; error: each engine by the others"


@dataclass(frozen=True)
class ServingRows:
    """Published times beside what they are made of, one entry per row and quantity.

    Attributes
    ----------
    row_ids, software, generation, family : np.ndarray
        Published row, engine, accelerator generation, and what is held out together (model, accelerator, mapping).
    first_token : np.ndarray
        Whether the time is that to the first token, else it is per output token or end to end.
    shared : np.ndarray
        Whether several ranks share each matrix.
    times : Array
        Measured; 1 / rate for rates. [s]
    base : Array
        Predicted without fixed costs. [s]
    slopes : Array
        Seconds per second of each of :data:`COSTS`, (entries, 3). [-]
    """

    row_ids: np.ndarray
    software: np.ndarray
    generation: np.ndarray
    family: np.ndarray
    first_token: np.ndarray
    shared: np.ndarray
    times: Array
    base: Array
    slopes: Array

    def __len__(self) -> int:
        return len(self.times)

    def take(self, chosen: np.ndarray) -> ServingRows:
        """Some entries: positions, or a mask."""
        return ServingRows(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))

    @property
    def num_rows(self) -> int:
        """Published rows that the entries come from."""
        return len(set(self.row_ids.tolist()))


def _with_costs(catalog: Catalog, costs: Sequence[float]) -> Catalog:
    """The catalog with the same three costs for every engine."""
    table = catalog.tables["calibration"]
    others = table.take(np.flatnonzero((table.text("family") != FAMILY) | ~np.isin(table.text("constant"), COSTS)))
    same = [
        FittedConstant(FAMILY, ANY, ANY, ANY, name, float(cost), "", 0, math.nan, "", "")
        for name, cost in zip(COSTS, costs, strict=True)
    ]
    return catalog.with_tables([joined_tables(others, calibration_table(same))])


def _predictions(published: Published, catalog: Catalog, costs: Sequence[float]) -> tuple[list[Record], PublishedPlans]:
    plans = inference_plans(published, _with_costs(catalog, costs))
    return compare(plans, evaluate(plans.plans, plans.catalog)), plans


def time_of(record: Record, value: float) -> float:
    """A value of the record's metric as a time. [s]"""
    unit = {"ttft_ms": "ms", "tpot_ms": "ms"}.get(record.metric, "s")
    return 1.0 / value if record.metric in _RATES else value * factor(unit)


def serving_rows(published: Published, catalog: Catalog) -> ServingRows:
    """Published rows that fixed costs can be fitted on, beside what their times are made of.

    Parameters
    ----------
    published : Published
        Inference rows; those of the papers and those without a prediction are left out.
    catalog : Catalog
        With the calibration of the kernels.

    Returns
    -------
    ServingRows
        Primary times per token and times to the first token.
    """
    published = published.take([row for row, group in enumerate(published.text["group"]) if group != NEVER_FITTED])
    base, plans = _predictions(published, catalog, (0.0, 0.0, 0.0))
    steps = [_predictions(published, catalog, row)[0] for row in np.eye(len(COSTS)) * _STEP]
    chosen = [
        index
        for index, record in enumerate(base)
        if record.primary and record.covered and record.quantity in (TIME_PER_TOKEN, FIRST_TOKEN)
    ]
    plan_of = {name: row for row, name in enumerate(plans.plans.text("name").tolist())}
    of_plan = np.array([plan_of[base[index].row_id] for index in chosen], dtype=np.int64)
    accelerators = catalog.rows("accelerators", plans.plans.text("accelerator"), plans.plans, "accelerator")[of_plan]
    predicted = np.array([time_of(base[index], base[index].predicted) for index in chosen])
    moved = [[time_of(base[index], step[index].predicted) for step in steps] for index in chosen]
    keys = [plans.plans.text(name)[of_plan].tolist() for name in ("model", "accelerator")]
    mapping = plans.plans.number("tensor_parallel")[of_plan].tolist()
    return ServingRows(
        row_ids=np.array([base[index].row_id for index in chosen], dtype=object),
        software=plans.plans.text("software")[of_plan],
        generation=catalog.tables["accelerators"].text("generation")[accelerators],
        family=np.array([f"{a}/{b}/{tp:g}" for a, b, tp in zip(*keys, mapping, strict=True)], dtype=object),
        first_token=np.array([base[index].quantity == FIRST_TOKEN for index in chosen], dtype=bool),
        shared=np.array([tensor > 1.0 for tensor in mapping], dtype=bool),
        times=np.array([time_of(base[index], base[index].measured) for index in chosen]),
        base=predicted,
        slopes=(np.array(moved).reshape(len(chosen), len(COSTS)) - predicted[:, None]) / _STEP,
    )


def separable_costs(slopes: Array) -> list[int]:
    """Costs that rows tell apart; of two that go together the earlier stays.

    Parameters
    ----------
    slopes : Array
        Seconds per second of each cost over the measured time, (entries, 3). [-]

    Returns
    -------
    list of int
        Positions in :data:`COSTS`.
    """
    chosen: list[int] = []
    for index in range(len(COSTS)):
        column, kept = slopes[:, index], slopes[:, chosen]
        left = column - kept @ np.linalg.lstsq(kept, column, rcond=None)[0] if chosen else column
        if np.linalg.norm(left) > _APART * np.linalg.norm(column) > 0.0:
            chosen.append(index)
    return chosen


def default_costs() -> dict[str, float]:
    """Declared defaults of the costs by name. [s]"""
    return {name: declared_constants()[FAMILY][name].default for name in COSTS}


def fitted_costs(rows: ServingRows) -> dict[str, float]:
    """Costs with the least sum of absolute relative errors.

    Parameters
    ----------
    rows : ServingRows
        At least one entry.

    Returns
    -------
    dict of str to float
        The costs that the rows tell apart, by name; the others are held at their defaults. [s]
    """
    from scipy.optimize import linprog
    from scipy.sparse import bmat, csr_matrix, identity

    relative = rows.slopes / rows.times[:, None]
    fitted = separable_costs(relative)
    fixed = [index for index in range(len(COSTS)) if index not in fitted]
    held = np.array([default_costs()[COSTS[index]] for index in fixed])
    rest = (rows.times - rows.base) / rows.times - relative[:, fixed] @ held
    matrix, errors = csr_matrix(relative[:, fitted] * _STEP), identity(len(rows))
    highest = [(0.0, declared_constants()[FAMILY][COSTS[index]].high / _STEP) for index in fitted]
    solution = linprog(
        np.concatenate([np.zeros(len(fitted)), np.ones(len(rows))]),
        A_ub=bmat([[matrix, -errors], [-matrix, -errors]], format="csr"),
        b_ub=np.concatenate([rest, -rest]),
        bounds=highest + [(0.0, None)] * len(rows),
        method="highs-ds",
    )
    found = zip(fitted, solution.x.tolist(), strict=False)
    return {COSTS[index]: rounded(float(value) * _STEP) for index, value in found}


def ratios(rows: ServingRows, costs: Mapping[str, float]) -> Array:
    """Predicted over measured times.

    Parameters
    ----------
    rows : ServingRows
        Measured times and what they are made of.
    costs : mapping of str to float
        Costs by name; those that are missing have their defaults. [s]

    Returns
    -------
    Array
        One per entry. [-]
    """
    values = {**default_costs(), **costs}
    return np.asarray((rows.base + rows.slopes @ np.array([values[name] for name in COSTS])) / rows.times)


def held_out_ratios(rows: ServingRows) -> Array:
    """Predicted over measured times under costs that were fitted without the family of the row; NaN with too few."""
    folds = np.array([fold_of(family) for family in rows.family.tolist()], dtype=np.int64)
    found = np.full(len(rows), math.nan)
    for fold in sorted(set(folds.tolist())):
        others = rows.take(folds != fold)
        if others.num_rows >= FEWEST_ROWS:
            found[folds == fold] = ratios(rows.take(folds == fold), fitted_costs(others))
    return found


def engine_rows(rows: ServingRows, software: str) -> np.ndarray:
    """Mask of the rows that tell about an engine."""
    servers = [server for server, engine in BUILT_ON.items() if engine == software]
    return np.asarray(np.isin(rows.software, [software, *servers]))


def _median_error(residuals: Array) -> float:
    known = residuals[~np.isnan(residuals)]
    return float(np.median(np.abs(known - 1.0))) if len(known) else math.nan


class _Engine:
    """The fit of one engine: on all generations, and on those that are predicted better with costs of their own."""

    def __init__(self, rows: ServingRows, software: str, hold_out: bool = True) -> None:
        self.software = software
        self.mask = engine_rows(rows, software)
        own = rows.take(self.mask)
        self.costs = fitted_costs(own)
        self.residuals = np.full(len(rows), math.nan)
        self.residuals[self.mask] = held_out_ratios(own) if hold_out else ratios(own, self.costs)
        self.generations: list[tuple[str, np.ndarray, dict[str, float], Array]] = []
        better = self.residuals.copy()
        for generation in sorted(set(own.generation.tolist())):
            mask = self.mask & (rows.generation == generation)
            some = rows.take(mask)
            if some.num_rows < FEWEST_OF_GENERATION:
                continue
            held_out = held_out_ratios(some) if hold_out else ratios(some, fitted_costs(some))
            if _median_error(held_out) < _median_error(self.residuals[mask]):
                better[mask] = held_out
                self.generations.append((generation, mask, fitted_costs(some), held_out))
        self.best_residuals = better


def fit_costs(published: Published, catalog: Catalog, date: str, hold_out: bool = True) -> list[FittedConstant]:
    """Fit the fixed costs of every serving engine, then the bands of the time per token.

    Rows of ``group`` papers are never used. An engine with fewer than eight rows gets no costs of its own; engines
    without any get the median of those that have.

    Parameters
    ----------
    published : Published
        Inference rows.
    catalog : Catalog
        Catalog whose calibration has the kernel constants.
    date : str
        Date that the rows carry.
    hold_out : bool, default True
        Judge by rows held out; else by the rows of the fit.

    Returns
    -------
    list of FittedConstant
        Families ``serving_software`` and ``serving_band``, in a fixed order.
    """
    rows = serving_rows(published, catalog)
    order = published.text["row_id"]
    names = sorted(set(rows.software.tolist()))
    enough = [name for name in names if rows.take(engine_rows(rows, name)).num_rows >= FEWEST_ROWS]
    engines = [_Engine(rows, name, hold_out) for name in enough]
    if not engines:
        return []
    residuals = np.full(len(rows), math.nan)
    found: list[FittedConstant] = []
    for engine in engines:
        own = rows.software == engine.software
        residuals[own] = engine.best_residuals[own]
        parts = [(ANY, engine.mask, engine.costs, engine.residuals[engine.mask]), *engine.generations]
        for generation, mask, costs, errors in parts:
            found += _cost_rows(engine.software, generation, costs, rows.take(mask), errors, order, date, _HELD_OUT)
    all_costs = {engine.software: {**default_costs(), **engine.costs} for engine in engines}
    others = _leave_one_out(rows, all_costs)
    found += _cost_rows(ANY, ANY, _middle(all_costs), rows, others, order, date, _MIDDLE)
    return found + _bands(rows, residuals, others, order, date)


def _middle(engines: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {name: rounded(float(np.median([costs[name] for costs in engines.values()]))) for name in COSTS}


def _leave_one_out(rows: ServingRows, engines: Mapping[str, Mapping[str, float]]) -> Array:
    """Predicted over measured times of each engine under the median of those that its rows have no part in."""
    found = np.full(len(rows), math.nan)
    for software in sorted(set(rows.software.tolist())):
        mine = {software, BUILT_ON.get(software, software)}
        others = {name: costs for name, costs in engines.items() if name not in mine}
        chosen = rows.software == software
        found[chosen] = ratios(rows.take(chosen), _middle(others) if others else default_costs())
    return found


def _cost_rows(
    software: str,
    generation: str,
    fitted: Mapping[str, float],
    rows: ServingRows,
    residuals: Array,
    order: Sequence[str],
    date: str,
    notes: str,
) -> list[FittedConstant]:
    """One row of the sheet for each cost; one that the rows cannot tell apart is written down at its default."""
    return [
        FittedConstant(
            FAMILY,
            generation,
            ANY,
            software,
            name,
            fitted.get(name, default),
            fit_set(rows.row_ids.tolist(), order) if name in fitted else "",
            rows.num_rows if name in fitted else 0,
            rounded(_median_error(residuals)),
            date,
            SOURCE,
            kind="measured" if name in fitted else "assumption",
            notes=notes if name in fitted else "the rows cannot tell this cost from the others: declared default",
        )
        for name, default in default_costs().items()
    ]


def _bands(rows: ServingRows, residuals: Array, others: Array, order: Sequence[str], date: str) -> list[FittedConstant]:
    """80 % bands of measured over predicted time per token: by engine and generation, by engine, then all."""
    pairs = sorted(set(zip(rows.software.tolist(), rows.generation.tolist(), strict=True)))
    groups = [(pair, (rows.software == pair[0]) & (rows.generation == pair[1]), residuals) for pair in pairs]
    groups += [((name, ANY), rows.software == name, residuals) for name in sorted({pair[0] for pair in pairs})]
    groups.append(((ANY, ANY), np.full(len(rows), True), others))
    found = []
    for (software, generation), mask, values in groups:
        chosen = mask & ~rows.first_token & ~np.isnan(values)
        if rows.take(chosen).num_rows < FEWEST_ROWS:
            continue
        measured = 1.0 / values[chosen]
        for name, share in (("step_low", LOW_SHARE), ("step_high", HIGH_SHARE)):
            constant = declared_constants()[BAND][name]
            value = min(max(float(np.quantile(measured, share)), constant.low), constant.high)
            found.append(
                FittedConstant(
                    BAND,
                    generation,
                    ANY,
                    software,
                    name,
                    rounded(value),
                    fit_set(rows.row_ids[chosen].tolist(), order),
                    rows.take(chosen).num_rows,
                    rounded(float(np.median(np.abs(values[chosen] - 1.0)))),
                    date,
                    SOURCE,
                    notes="from residuals of rows held out" if software != ANY else "each engine by the others",
                )
            )
    return found
