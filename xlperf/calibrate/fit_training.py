"""How constants of a training stack are found from published rows that no paper is quoted by."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError
from xlperf.calibrate.comparison import RATES, STEP_TIME, compare, predicted
from xlperf.calibrate.fitted_constants import FittedConstant, calibration_table, joined_tables, rounded
from xlperf.calibrate.published import Published, PublishedPlans
from xlperf.calibrate.published_training import training_plans
from xlperf.catalog.calibration import ANY, Constant, declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.engine import evaluate

FAMILY = "training_software"
NEVER_FITTED = "papers"
FOLDS = 5
FEWEST_ROWS = 8
MOST_CONSTANTS = 4
_CAP = 0.7
_STIFFNESS = 0.004
_ROUNDS = 2
_POLISH = 50
_STEP = 0.06
_MANY_ROWS = 40
_NEGLIGIBLE = 0.004
WORTH_IT = 0.1
_BY_GENERATION = "kernel_slowdown"
_BY_RANK = ("rank_overhead_time", "shard_overhead_time")

Key = tuple[str, str]
"""A constant and the generation that it is for."""
Values = Mapping[Key, float]


@dataclass(frozen=True)
class FitRows:
    """Published rows that can be fitted: their plans, and the log of predicted over measured time so far.

    ``family`` groups rows that are held out together; ``dense`` tells models without experts.
    """

    plans: PublishedPlans
    row_ids: list[str]
    software: list[str]
    generation: list[str]
    family: list[str]
    dense: list[bool]
    step_time: Array
    excess: Array

    def take(self, rows: Sequence[int]) -> FitRows:
        """Some rows."""
        index = np.asarray(rows, dtype=np.int64)
        plans = self.plans
        return FitRows(
            plans=replace(
                plans,
                plans=plans.plans.take(index),
                index=plans.index[index],
                reference=plans.reference[index],
            ),
            row_ids=[self.row_ids[row] for row in rows],
            software=[self.software[row] for row in rows],
            generation=[self.generation[row] for row in rows],
            family=[self.family[row] for row in rows],
            dense=[self.dense[row] for row in rows],
            step_time=self.step_time[index],
            excess=self.excess[index],
        )


def fit_rows_of(published: Published, catalog: Catalog) -> FitRows:
    """Rows with a predicted and a measured step time, those of ``group`` papers left out.

    Parameters
    ----------
    published : Published
        Training rows.
    catalog : Catalog
        What they refer to, with the kernel constants that the step is built on.
    """
    chosen = [row for row, group in enumerate(published.text["group"]) if group.casefold() != NEVER_FITTED]
    published = published.take(chosen)
    plans = training_plans(published, catalog)
    results = predicted(plans)
    excess_of = {}
    for record in compare(plans, results):
        if record.covered and record.quantity == STEP_TIME:
            ratio = record.predicted / record.measured
            excess_of[record.row_id] = math.log(1.0 / ratio if record.metric in RATES else ratio)
    names = [published.text["row_id"][row] for row in plans.index.tolist()]
    keep = [plan for plan, name in enumerate(names) if name in excess_of]
    accelerators = plans.catalog.tables["accelerators"]
    at = plans.catalog.rows("accelerators", plans.plans.text("accelerator"), plans.plans, "accelerator")
    generation = [str(value).casefold() for value in accelerators.text("generation")[at]]
    software = [str(value).casefold() for value in plans.plans.filled("software")]
    family = [
        f"{published.text['source_id'][row]}/{published.text['model'][row].casefold()}" for row in plans.index.tolist()
    ]
    models = plans.catalog.tables["models"]
    at = plans.catalog.rows("models", plans.plans.text("model"), plans.plans, "model")
    everything = FitRows(
        plans,
        names,
        software,
        generation,
        family,
        np.isnan(models.number("num_experts")[at]).tolist(),
        results.number("step_time"),
        np.array([excess_of.get(name, math.nan) for name in names]),
    )
    return everything.take(keep)


def excess(rows: FitRows, values: Values, software: str, family: str = FAMILY) -> Array:
    """Log of predicted over measured time under trial constants of one software."""
    return excess_of(rows, [_constant(software, *key, value, family) for key, value in values.items()])


def excess_of(rows: FitRows, trial: Sequence[FittedConstant]) -> Array:
    """Log of predicted over measured time under trial constants of any family."""
    table = joined_tables(rows.plans.catalog.tables["calibration"], calibration_table(trial))
    results = evaluate(rows.plans.plans, rows.plans.catalog.with_tables([table]))
    return np.asarray(rows.excess + np.log(results.number("step_time") / rows.step_time))


def _constant(software: str, name: str, generation: str, value: float, family: str) -> FittedConstant:
    return FittedConstant(family, generation, ANY, software, name, value, "", 0, math.nan, "", "")


def weights_of(family: Sequence[str]) -> Array:
    """A family of n rows counts like the root of n."""
    sizes = {name: family.count(name) for name in set(family)}
    weights = np.array([1.0 / math.sqrt(sizes[name]) for name in family])
    return np.asarray(weights / weights.sum())


def _grid(name: str, low: float, high: float) -> list[float]:
    """Trial values of a constant over its whole range."""
    if name.endswith("_time"):
        return [0.0, *(float(value) for value in np.geomspace(high / 300.0, high, 9))]
    return [float(value) for value in np.linspace(low, high, 9)]


def chosen_constants(rows: FitRows, software: str) -> list[Key]:
    """Constants of the family that the rows of a software depend on: at most four, the most telling first.

    A constant counts by the mean change of the log of the step time between the ends of its range.

    Parameters
    ----------
    rows : FitRows
        Rows of that software.
    software : str
        Its name.

    Returns
    -------
    list of tuple
        (constant, any), in the order of the declaration. Host time per rank is left to :func:`fit_software`.
    """
    declared = declared_constants()[FAMILY]
    defaults = {(name, ANY): constant.default for name, constant in declared.items()}
    weights = weights_of(rows.family)
    change = {}
    for name, constant in declared.items():
        if name in _BY_RANK:
            continue
        ends = [excess(rows, {**defaults, (name, ANY): end}, software) for end in (constant.low, _top(constant))]
        change[name] = float(np.sum(weights * np.abs(ends[1] - ends[0])))
    ranked = sorted((name for name in change if change[name] > _NEGLIGIBLE), key=lambda name: -change[name])
    kept = ranked[:MOST_CONSTANTS]
    return [(name, ANY) for name in declared if name in kept]


def _top(constant: Constant) -> float:
    """Highest value that a search tries."""
    return constant.high


def fitted_values(
    rows: FitRows,
    software: str,
    keys: Sequence[Key],
    start: Values | None = None,
    family: str = FAMILY,
    centre: Values | None = None,
) -> dict[Key, float]:
    """Constants of one software that bring predictions nearest to the measurements.

    The mean absolute log ratio is brought down on a grid, one constant after the other, then by a simplex; it is
    capped so that runs that failed in some way of their own do not pull. A weak spring holds constants that the rows
    do not determine near their default.

    Parameters
    ----------
    rows : FitRows
        Rows of that software.
    software : str
        Its name.
    keys : sequence of tuple
        (constant, generation) to fit; the others stay at their defaults.
    start : mapping, optional
        Values to start from without the grid; default: the declared ones.
    family : str, default training_software
        Family that declares the constants.
    centre : mapping, optional
        Values that the spring pulls to; default: the declared ones.

    Returns
    -------
    dict
        (constant, generation) -> value, in the declared unit.

    Raises
    ------
    InputError
        When scipy is not installed.
    """
    declared = declared_constants()[family]
    rest = {key: declared[key[0]].default if centre is None else centre[key] for key in keys}
    seen: dict[tuple[float, ...], float] = {}

    def cost(values: Values) -> float:
        point = tuple(values[key] for key in keys)
        if point not in seen:
            spring = sum(
                ((values[name, kind] - rest[name, kind]) / (_top(declared[name]) - declared[name].low)) ** 2
                for name, kind in keys
            )
            seen[point] = misfit(rows, values, software, family) + _STIFFNESS * spring
        return seen[point]

    best = {(name, kind): declared[name].default for name, kind in keys} if start is None else dict(start)
    for _ in range(_ROUNDS if start is None else 0):
        for name, kind in keys:
            for value in _grid(name, declared[name].low, _top(declared[name])):
                candidate = {**best, (name, kind): value}
                if cost(candidate) < cost(best):
                    best = candidate
    evaluations = (_POLISH if start is None else _POLISH // 2) * len(keys)
    point = lowest(
        lambda values: cost(dict(zip(keys, values.tolist(), strict=True))),
        np.array([best[key] for key in keys]),
        np.array([declared[name].low for name, _ in keys]),
        np.array([_top(declared[name]) for name, _ in keys]),
        evaluations,
    )
    return {key: rounded(value) for key, value in zip(keys, point.tolist(), strict=True)}


def lowest(
    cost: Callable[[Array], float], start: Array, low: Array, top: Array, evaluations: int, step: float = _STEP
) -> Array:
    """The lowest cost that a simplex search finds from a start, within bounds.

    Parameters
    ----------
    cost : callable
        Of a point.
    start, low, top : Array
        Point to start from, and the bounds of each coordinate.
    evaluations : int
        Most evaluations of the cost.
    step : float, default 0.06
        Size of the first simplex over the width of the bounds.

    Raises
    ------
    InputError
        When scipy is not installed.
    """
    try:
        from scipy.optimize import minimize
    except ImportError:
        raise InputError(Fault("calibrate", "a fit needs scipy: pip install scipy")) from None
    width = np.maximum(step * (top - low), 0.0)
    corners = start + np.diag(np.where(start + width > top, -width, width))
    found = minimize(
        lambda point: cost(np.clip(point, low, top)),
        start,
        method="Nelder-Mead",
        options={"initial_simplex": np.vstack([start, corners]), "maxfev": evaluations, "xatol": 1e-9},
    )
    best = np.clip(found.x, low, top)
    return best if cost(best) < cost(start) else start


def misfit(rows: FitRows, values: Values, software: str, family: str = FAMILY) -> float:
    """Mean absolute log ratio of predicted over measured time, capped per row, families weighed by their root."""
    return misfit_of(rows, excess(rows, values, software, family))


def misfit_of(rows: FitRows, residuals: Array) -> float:
    """The same of residuals that are known."""
    return float(np.sum(weights_of(rows.family) * np.minimum(np.abs(residuals), _CAP)))


def fit_software(rows: FitRows, software: str) -> dict[Key, float]:
    """Constants of one software; the slowdown of the kernels by generation where that pays.

    A generation with eight rows or more, beside as many of others, gets its own kernel slowdown where the misfit
    falls by a tenth; the least telling constant gives way, so that four remain.

    Parameters
    ----------
    rows : FitRows
        Rows of that software.
    software : str
        Its name.

    Returns
    -------
    dict
        (constant, generation) -> value, in the declared unit.
    """
    keys = chosen_constants(rows, software)
    best = fitted_values(rows, software, keys)
    best = _with_ranks(rows, software, best)
    counts = {kind: rows.generation.count(kind) for kind in sorted(set(rows.generation))}
    for kind, count in counts.items():
        if count < FEWEST_ROWS or len(rows.row_ids) - count < FEWEST_ROWS or (_BY_GENERATION, ANY) not in best:
            continue
        base = best
        options = [key for key in base if key != (_BY_GENERATION, ANY) and key[1] == ANY]
        dropped = [options] if len(base) < MOST_CONSTANTS else [[o for o in options if o != out] for out in options]
        for kept in dropped:
            others = [key for key in base if key not in options]
            wanted = [*kept, *others, (_BY_GENERATION, kind)]
            begin = {key: base.get(key, base[_BY_GENERATION, ANY]) for key in wanted}
            trial = fitted_values(rows, software, wanted, begin)
            if misfit(rows, trial, software) < (1.0 - WORTH_IT) * misfit(rows, best, software):
                best = trial
    order = list(declared_constants()[FAMILY])
    return dict(sorted(best.items(), key=lambda item: (order.index(item[0][0]), item[0][1] != ANY, item[0][1])))


def _with_ranks(rows: FitRows, software: str, best: dict[Key, float]) -> dict[Key, float]:
    """The constants with host time per rank in place of one of them, where forty rows say it pays."""
    if len(rows.row_ids) < _MANY_ROWS:
        return best
    for name in (one for one in _BY_RANK if _felt(rows, software, one)):
        now, found = misfit(rows, best, software), best
        options = [key for key in best if key[0] not in (_BY_GENERATION, "layer_overhead_time", *_BY_RANK)]
        for out in [None] if len(best) < MOST_CONSTANTS else options:
            keys = [(name, ANY), *(key for key in best if key != out)]
            trial = fitted_values(rows, software, keys)
            if misfit(rows, trial, software) < min((1.0 - WORTH_IT) * now, misfit(rows, found, software)):
                found = trial
        best = found
    return best


def _felt(rows: FitRows, software: str, name: str) -> bool:
    """Whether eight rows answer to a constant at all."""
    change = excess(rows, {(name, ANY): declared_constants()[FAMILY][name].high}, software) - rows.excess
    return int(np.sum(np.abs(change) > _NEGLIGIBLE)) >= FEWEST_ROWS


def fold_of(family: str) -> int:
    """Fold of a family of rows, the same on every machine.

    >>> fold_of("llm_foundry/mpt-7b") in range(FOLDS)
    True
    """
    return int(hashlib.sha256(family.encode()).hexdigest()[:8], 16) % FOLDS


def held_out_excess(rows: FitRows, software: str, values: Values, family: str = FAMILY) -> Array:
    """Log ratio of every row under constants that were fitted without its family."""
    folds = np.array([fold_of(family) for family in rows.family])
    found = np.full(len(rows.row_ids), math.nan)
    for fold in sorted(set(folds.tolist())):
        inside, outside = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
        if len(outside) < FEWEST_ROWS:
            continue
        without = fitted_values(rows.take(outside.tolist()), software, list(values), values, family)
        found[inside] = excess(rows.take(inside.tolist()), without, software, family)
    return found
