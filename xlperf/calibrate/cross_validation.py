"""Errors of published rows that the constants of their software were not fitted on.

Rows are put into folds; for each fold the constants that were fitted on published rows are fitted again without it,
and its rows are predicted. Kernels keep their constants: they were fitted on measurements of kernels alone.

A refit is cheap because the response of every row to every constant is sampled once, one constant at a time, and
taken to be additive in the logarithm of the time; the rows of a fold are then predicted in full. Which constants a
software has was found on all rows, and is not chosen again.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from xlperf.base.arrays import Array
from xlperf.calibrate.comparison import (
    FIRST_TOKEN,
    RATES,
    STEP_TIME,
    TIME_PER_TOKEN,
    compare,
    predicted,
)
from xlperf.calibrate.published import Published, PublishedPlans
from xlperf.calibrate.published_inference import inference_plans
from xlperf.calibrate.published_training import training_plans
from xlperf.catalog.calibration import ANY, declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.equations.serving.bands import band_of_mode, full_cache

NEVER_FITTED = "papers"
FOLDS = 5
FEWEST_ROWS = 8
SOURCES = {
    "training": "published rows of the sheet training",
    "inference": "published rows of the sheet inference",
}
"""How the source of a constant begins that was fitted on published rows of a kind."""
QUANTITIES = (STEP_TIME, TIME_PER_TOKEN, FIRST_TOKEN)
_BANDS = {"training": ("step_time", "step_time_low", "step_time_high"), "inference": ("tpot", "tpot_low", "tpot_high")}
_FACTORS = (0.5, 0.75, 1.0, 1.35, 2.0)
_STEPS = (-0.4, -0.2, 0.0, 0.2, 0.4)
_CAP = 0.7
_GRID = 21
_SWEEPS = 8
_WORTH_IT = 1e-3

Step = Callable[[str], None]


@dataclass(frozen=True)
class Errors:
    """Deviations of published values, one entry per value that a row is quoted by.

    Attributes
    ----------
    kind : str
        training or inference.
    row_ids, group, quantity, software, generation, family : np.ndarray
        Published row, what it belongs to, and which configuration it repeats: (model, accelerator).
    plan : np.ndarray
        Position of its plan. [-]
    fitted, by_rows, by_families : Array
        Logarithm of predicted over measured time: with all rows in the fit; with a fifth of the rows left out, its
        own among them; with a fifth of the configurations left out. [-]
    band : np.ndarray
        Which band holds for the plan: the constants of the calibration without ``_low`` and ``_high``.
    low, high : Array
        Ends of that band over the prediction, as times; NaN where there is none. [-]
    """

    kind: str
    row_ids: np.ndarray
    group: np.ndarray
    quantity: np.ndarray
    software: np.ndarray
    generation: np.ndarray
    family: np.ndarray
    plan: np.ndarray
    fitted: Array
    by_rows: Array
    by_families: Array
    band: np.ndarray
    low: Array
    high: Array

    def __len__(self) -> int:
        return len(self.row_ids)

    def take(self, chosen: np.ndarray) -> Errors:
        """Some entries: positions, or a mask."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return Errors(**{name: value[chosen] if name != "kind" else value for name, value in values.items()})

    def covered(self, errors: Array) -> Array:
        """1 where the measured time lies in the band under these errors, 0 where not, NaN without a band."""
        ratio = np.exp(-errors)
        inside = ((self.low <= ratio) & (ratio <= self.high)).astype(np.float64)
        return np.where(np.isnan(self.low + self.high + errors), math.nan, inside)


@dataclass(frozen=True)
class CrossValidation:
    """Errors of published rows, and of the rows that use each constant: calibration row -> median, rows."""

    errors: Errors
    of_constant: Mapping[int, tuple[float, int]]


@dataclass(frozen=True)
class _Knob:
    """One row of the calibration sheet, the values that are tried and who answers to it."""

    row: int
    points: Array
    users: np.ndarray
    response: Array

    def shifts(self, values: Array) -> Array:
        """Change of the log of the time of each user at each value, (users, values)."""
        return np.stack([np.interp(values, self.points, one) for one in self.response])


def fold_of(name: str, folds: int = FOLDS) -> int:
    """Fold of a name, the same on every machine.

    >>> fold_of("gpt3-175b/h100-sxm-80gb") in range(FOLDS)
    True
    """
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) % folds


def plans_to_fit(published: Published, catalog: Catalog) -> PublishedPlans:
    """Published rows as plans, those of the papers left out."""
    kept = [row for row, group in enumerate(published.text["group"]) if group.casefold() != NEVER_FITTED]
    rows = published.take(kept)
    return training_plans(rows, catalog) if rows.kind == "training" else inference_plans(rows, catalog)


def cross_validated(published: Published, catalog: Catalog, step: Step | None = None) -> CrossValidation:
    """Errors of published rows with and without the row and its configuration in the fit.

    Parameters
    ----------
    published : Published
        Rows that the constants of the catalog were fitted on; those of the papers are left out.
    catalog : Catalog
        With the calibration that was fitted on all of them.
    step : callable, optional
        Called with a word before each evaluation of all rows.

    Returns
    -------
    CrossValidation
        In the order of the rows; the same rows give the same errors.
    """
    say = step if step is not None else _nothing
    plans = plans_to_fit(published, catalog)
    entries = _entries(plans)
    if not len(entries):
        return CrossValidation(entries, {})
    knobs = _knobs(plans, entries, say)
    families = np.array([fold_of(name) for name in entries.family.tolist()], dtype=np.int64)
    rows = np.array([fold_of(name) for name in entries.row_ids.tolist()], dtype=np.int64)
    errors = replace(
        entries,
        by_rows=_left_out(plans, entries, knobs, rows, say),
        by_families=_left_out(plans, entries, knobs, families, say),
    )
    sizes = np.abs(np.expm1(errors.by_families))
    of_constant = {
        knob.row: (float(np.nanmedian(sizes[knob.users])), len(set(errors.row_ids[knob.users].tolist())))
        for knob in knobs
        if not np.isnan(sizes[knob.users]).all()
    }
    return CrossValidation(errors, of_constant)


def refitted(published: Published, catalog: Catalog) -> Catalog:
    """The catalog with the constants of software fitted again to some published rows, all together.

    Parameters
    ----------
    published : Published
        Rows to fit; those of the papers are left out.
    catalog : Catalog
        With constants to start from; those that fewer than eight rows tell about stay as they are.
    """
    plans = plans_to_fit(published, catalog)
    entries = _entries(plans)
    if not len(entries):
        return catalog
    values, _ = _refitted(
        catalog.tables["calibration"], entries, _knobs(plans, entries, _nothing), np.full(len(entries), True)
    )
    return catalog.with_tables([_changed(catalog.tables["calibration"], values)])


def _nothing(_: str) -> None:
    return None


def _log_errors(plans: PublishedPlans) -> tuple[dict[tuple[str, str], float], Table]:
    """Logarithm of predicted over measured time by (row, quantity), and the results."""
    results = predicted(plans)
    found = {}
    for record in compare(plans, results):
        if record.primary and record.covered and record.quantity in QUANTITIES:
            ratio = record.predicted / record.measured
            found[record.row_id, record.quantity] = math.log(1.0 / ratio if record.metric in RATES else ratio)
    return found, results


def _entries(plans: PublishedPlans) -> Errors:
    errors, results = _log_errors(plans)
    text, catalog = plans.published.text, plans.catalog
    of_plan = {text["row_id"][row]: plan for plan, row in reversed(list(enumerate(plans.index.tolist())))}
    keys = list(errors)
    plan = np.array([of_plan[name] for name, _ in keys], dtype=np.int64)
    row = plans.index[plan] if len(plan) else plan
    accelerators = catalog.rows("accelerators", plans.plans.text("accelerator"), plans.plans, "accelerator")
    generation = np.array([str(kind).casefold() for kind in catalog.tables["accelerators"].text("generation")])
    models = [str(name).casefold() for name in plans.plans.text("model")]
    gpus = [str(name).casefold() for name in plans.plans.text("accelerator")]
    middle, low, high = (results.number(name) for name in _BANDS[plans.published.kind]) if keys else [np.zeros(0)] * 3
    banded = np.array([quantity != FIRST_TOKEN for _, quantity in keys], dtype=bool)
    fitted = np.array([errors[key] for key in keys])
    return Errors(
        kind=plans.published.kind,
        row_ids=np.array([name for name, _ in keys], dtype=object),
        group=np.array([text["group"][at] for at in row.tolist()], dtype=object),
        quantity=np.array([quantity for _, quantity in keys], dtype=object),
        software=np.array([str(name).casefold() for name in plans.plans.filled("software")[plan]], dtype=object),
        generation=generation[accelerators][plan],
        family=np.array([f"{models[at]}/{gpus[at]}" for at in plan.tolist()], dtype=object),
        plan=plan,
        fitted=fitted,
        by_rows=fitted,
        by_families=fitted,
        band=np.array(_bands(plans, results), dtype=object)[plan] if keys else np.zeros(0, dtype=object),
        low=np.where(banded, (low / middle)[plan], math.nan),
        high=np.where(banded, (high / middle)[plan], math.nan),
    )


def _bands(plans: PublishedPlans, results: Table) -> list[str]:
    """Which band holds for each plan."""
    table, catalog = plans.plans, plans.catalog
    if plans.published.kind == "training":
        models = catalog.rows("models", table.text("model"), table, "model")
        dense = np.isnan(catalog.tables["models"].number("num_experts")[models])
        return ["step" if one else "mixture" for one in dense.tolist()]
    modes = [str(mode) for mode in table.filled("mode")]
    full = full_cache(results.number("running_batch"), results.number("max_batch_size"))
    return [band_of_mode(mode, bool(one)) for mode, one in zip(modes, full.tolist(), strict=True)]


def _aligned(errors: Mapping[tuple[str, str], float], entries: Errors) -> Array:
    pairs = zip(entries.row_ids.tolist(), entries.quantity.tolist(), strict=True)
    return np.array([errors.get(pair, math.nan) for pair in pairs])


def _replaced(plans: PublishedPlans, values: Mapping[int, float], gone: Sequence[int] = ()) -> PublishedPlans:
    """The plans with other values in some rows of the calibration sheet, and without others."""
    changed = _changed(plans.catalog.tables["calibration"], values)
    kept = np.array([row for row in range(len(changed)) if row not in set(gone)], dtype=np.int64)
    return replace(plans, catalog=plans.catalog.with_tables([changed.take(kept)]))


def _changed(table: Table, values: Mapping[int, float]) -> Table:
    column = np.array(table["value"], dtype=np.float64)
    for row, value in values.items():
        column[row] = value
    return Table("calibration", {**table.columns, "value": column}, table.place)


def trial_values(family: str, name: str, value: float) -> Array:
    """Values that the response of rows to a constant is sampled at, its own in the middle.

    Parameters
    ----------
    family, name : str
        The constant.
    value : float
        What was fitted, in the declared unit.

    Returns
    -------
    Array
        Within the declared bounds, rising.
    """
    declared = declared_constants()[family][name]
    if declared.low == 0.0 and declared.high <= 1.0 and not name.endswith("_time"):
        points = [value + step for step in _STEPS]
    elif value == 0.0:
        unit = declared.default or 0.1 * declared.high
        points = [0.0, *(unit * factor for factor in _FACTORS[:4])]
    else:
        points = [value * factor for factor in _FACTORS]
    return np.asarray(np.clip(np.array(points), declared.low, declared.high))


def _knobs(plans: PublishedPlans, entries: Errors, say: Step) -> list[_Knob]:
    """Constants that were fitted on published rows of this kind, with the response of the rows that use them."""
    table, calibration = plans.catalog.tables["calibration"], plans.catalog.calibration
    source, count = table.text("source"), table.number("num_rows")
    begins = SOURCES[entries.kind]
    fitted = {
        row
        for row in range(len(table))
        if str(source[row]).startswith(begins) and count[row] > 0.0 and not str(table["family"][row]).endswith("_band")
    }
    groups: dict[tuple[str, str], list[int]] = {}
    for row in sorted(fitted):
        groups.setdefault((str(table["family"][row]), str(table["constant"][row])), []).append(row)
    precision = [str(name) for name in plans.plans.filled("precision")]
    keys = list(
        zip(entries.generation.tolist(), [precision[at] for at in entries.plan], entries.software.tolist(), strict=True)
    )
    knobs = []
    for (family, name), rows in groups.items():
        row_of = {key: _used(calibration.used, family, name, key, fitted) for key in set(keys)}
        users = np.array([row_of[key] for key in keys], dtype=np.int64)
        if not (users >= 0).any():
            continue
        points = {row: trial_values(family, name, float(table["value"][row])) for row in rows}
        samples = []
        for point in range(len(_FACTORS)):
            say(f"{family} {name}")
            errors, _ = _log_errors(_replaced(plans, {row: float(points[row][point]) for row in rows}))
            samples.append(_aligned(errors, entries) - entries.fitted)
        response = np.nan_to_num(np.stack(samples, axis=-1))
        for row in rows:
            mine = np.flatnonzero((users == row) & (np.abs(response).max(axis=-1) > 0.0))
            if len(mine):
                knobs.append(_Knob(row, points[row], mine, response[mine]))
    return knobs


def _used(
    used: Callable[[str, str, str, str], dict[str, int]],
    family: str,
    name: str,
    key: tuple[str, str, str],
    fitted: set[int],
) -> int:
    """Row of the calibration that a plan takes a constant from, where it was fitted on published rows; else -1."""
    generation, precision, software = key
    for tried in (precision, "bf16", ANY):
        row = used(family, generation, tried, software)[name]
        if row in fitted:
            return row
    return -1


def _left_out(plans: PublishedPlans, entries: Errors, knobs: Sequence[_Knob], folds: np.ndarray, say: Step) -> Array:
    """Errors of the rows of each fold under constants that were fitted without it."""
    found = np.full(len(entries), math.nan)
    for fold in sorted(set(folds.tolist())):
        say("folds")
        values, gone = _refitted(plans.catalog.tables["calibration"], entries, knobs, folds != fold)
        errors, _ = _log_errors(_replaced(plans, values, gone))
        found = np.where(folds == fold, _aligned(errors, entries), found)
    return found


def _refitted(
    table: Table, entries: Errors, knobs: Sequence[_Knob], inside: np.ndarray
) -> tuple[dict[int, float], list[int]]:
    """Values of the constants that suit some rows best, and those that these are too few for.

    The weighted sum of absolute errors, capped, is brought down one constant at a time, from the values of all rows
    and from the declared defaults; a configuration of n rows counts like the root of n.
    """
    weights = _weights(entries, inside)
    software = table.text("software", ANY)
    free, gone = [], []
    for knob in knobs:
        if len(set(entries.row_ids[knob.users[inside[knob.users]]].tolist())) >= FEWEST_ROWS:
            free.append(knob)
        elif software[knob.row] != ANY:
            gone.append(knob.row)
    grids = [
        np.unique(np.concatenate([np.linspace(knob.points[0], knob.points[-1], _GRID), knob.points])) for knob in free
    ]
    best: tuple[float, list[int]] = (math.inf, [])
    shifts = [knob.shifts(grid) for knob, grid in zip(free, grids, strict=True)]
    for start in _starts(table, free, grids):
        best = min(best, _descent(entries.fitted, weights, free, shifts, start))
    grids = [_finer(grid, at) for grid, at in zip(grids, best[1], strict=True)]
    shifts = [knob.shifts(grid) for knob, grid in zip(free, grids, strict=True)]
    _, chosen = _descent(entries.fitted, weights, free, shifts, [_GRID // 2] * len(free))
    return {knob.row: float(grid[at]) for knob, grid, at in zip(free, grids, chosen, strict=True)}, gone


def _finer(grid: Array, at: int) -> Array:
    """Values between the neighbours of one of a grid, itself in the middle."""
    below, above = grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)]
    half = _GRID // 2 + 1
    return np.concatenate([np.linspace(below, grid[at], half), np.linspace(grid[at], above, half)[1:]])


def _weights(entries: Errors, inside: np.ndarray) -> Array:
    names = entries.family.tolist()
    sizes: dict[str, int] = {}
    for name, kept in zip(names, inside.tolist(), strict=True):
        sizes[name] = sizes.get(name, 0) + kept
    return np.where(inside, [1.0 / math.sqrt(max(sizes[name], 1)) for name in names], 0.0)


def _starts(table: Table, knobs: Sequence[_Knob], grids: Sequence[Array]) -> list[list[int]]:
    values = [float(table["value"][knob.row]) for knob in knobs]
    defaults = []
    for knob in knobs:
        declared = declared_constants()[str(table["family"][knob.row])][str(table["constant"][knob.row])]
        defaults.append(declared.default)
    return [
        [int(np.argmin(np.abs(grid - value))) for grid, value in zip(grids, start, strict=True)]
        for start in (values, defaults)
    ]


def _descent(
    errors: Array, weights: Array, knobs: Sequence[_Knob], shifts: Sequence[Array], start: Sequence[int]
) -> tuple[float, list[int]]:
    chosen = list(start)
    total = np.array(errors)
    for knob, shift, at in zip(knobs, shifts, chosen, strict=True):
        np.add.at(total, knob.users, shift[:, at])
    for _ in range(_SWEEPS):
        moved = False
        for number, (knob, shift) in enumerate(zip(knobs, shifts, strict=True)):
            rest = total[knob.users] - shift[:, chosen[number]]
            costs = weights[knob.users] @ np.minimum(np.abs(rest[:, None] + shift), _CAP)
            at = int(np.argmin(costs))
            if costs[at] < costs[chosen[number]] * (1.0 - _WORTH_IT):
                total[knob.users] = rest + shift[:, at]
                chosen[number], moved = at, True
        if not moved:
            break
    return float(weights @ np.minimum(np.abs(total), _CAP)), chosen
