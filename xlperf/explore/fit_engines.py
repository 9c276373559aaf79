"""Published times of serving engines beside what is predicted of them, and the constants that bring both together.

All constants are fitted at once, on every row that depends on them. Each kind of constant (the overhead of a layer,
say) has one value for each of its groups (engines, generations, precisions); a row depends on one group of each
kind, so that all groups of a kind are moved together to see what they do. The sum of absolute logarithms of predicted
over measured time is brought down by weighted least squares, which outliers do not pull.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from xlperf.arrays import Array
from xlperf.catalog.calibration import ANY, declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.evaluate import evaluate
from xlperf.evaluate.precisions import STORED
from xlperf.explore.fit_rows import FittedConstant, calibration_table, joined_tables, rounded
from xlperf.explore.fit_training import FEWEST_ROWS, NEVER_FITTED, fold_of
from xlperf.explore.measurements import FIRST_TOKEN, TIME_PER_TOKEN, Record, compare
from xlperf.explore.published import Published, PublishedPlans
from xlperf.explore.published_inference import inference_plans
from xlperf.units import factor

NEVER_FITTED_SOURCES = ("deepseek_infersim", "deepseek_infra")
"""Sources that are predicted and never fitted, beside the group of the papers."""
WEIGHT_OF_FIRST = 0.5
"""Weight of a time to the first token beside a time per token."""

_FARTHEST = math.log(3.0)
_NEAREST = 0.05
_APART = 0.05
_ITERATIONS = 14
_TRIALS = 4
_GAIN = 3e-4
_RATES = ("tokens_per_s", "tokens_per_s_per_gpu")

Group = tuple[str, ...]


class Kind(NamedTuple):
    """Constants of one sort, one for each group of rows.

    Attributes
    ----------
    family : str
        Of the calibration sheet.
    constant : str
        Its name.
    keys : tuple of str
        What tells groups apart, of generation, precision and software; none: one value for all rows.
    step : float
        Change by which its effect is measured, in the unit of the constant.
    reference : str
        Group whose value stays at the default; "" for none.
    shared : bool
        Whether groups without rows take the median of the others; else the declared default.
    """

    family: str
    constant: str
    keys: tuple[str, ...]
    step: float
    reference: str = ""
    shared: bool = True

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and largest value."""
        declared = declared_constants()[self.family][self.constant]
        return declared.low, declared.high

    @property
    def default(self) -> float:
        """Declared default."""
        return declared_constants()[self.family][self.constant].default


Values = tuple[dict[Group, float], ...]
"""Value of each group, for each kind."""


def time_of(record: Record, value: float) -> float:
    """A value of the record's metric as a time. [s]"""
    unit = {"ttft_ms": "ms", "tpot_ms": "ms"}.get(record.metric, "s")
    return 1.0 / value if record.metric in _RATES else value * factor(unit)


@dataclass(frozen=True)
class ServingRows:
    """Published times that constants are fitted on, one entry per row and quantity.

    Attributes
    ----------
    plans : PublishedPlans
        The rows as plans.
    entries : Array
        Position among what :func:`xlperf.explore.measurements.compare` gives.
    row_ids, software, generation, precision, family : np.ndarray
        Published row, engine, accelerator generation, precision of the weights, and what is held out together (model,
        accelerator, mapping).
    first_token : np.ndarray
        Whether the time is that to the first token, else it is per output token or end to end.
    times : Array
        Measured; 1 / rate for rates. [s]
    """

    plans: PublishedPlans
    entries: Array
    row_ids: np.ndarray
    software: np.ndarray
    generation: np.ndarray
    precision: np.ndarray
    family: np.ndarray
    first_token: np.ndarray
    times: Array

    def __len__(self) -> int:
        return len(self.times)

    @property
    def weights(self) -> Array:
        """Weight of each entry."""
        return np.where(self.first_token, WEIGHT_OF_FIRST, 1.0)

    def groups(self, kind: Kind) -> list[Group]:
        """Group of each entry."""
        columns = [getattr(self, name).tolist() for name in kind.keys]
        return list(zip(*columns, strict=True)) if columns else [()] * len(self)

    def num_rows(self, mask: np.ndarray) -> int:
        """Published rows that some of the entries come from."""
        return len(set(self.row_ids[mask].tolist()))

    def errors(self, calibration: Sequence[FittedConstant], base: Catalog) -> Array:
        """Logarithm of predicted over measured time of each entry, NaN where there is no prediction."""
        catalog = self.plans.catalog.with_tables([held_table(calibration, base)])
        records = compare(self.plans, evaluate(self.plans.plans, catalog))
        chosen = [records[int(entry)] for entry in self.entries.tolist()]
        predicted = [time_of(record, record.predicted) if record.covered else math.nan for record in chosen]
        return np.asarray(np.log(np.array(predicted) / self.times))


def held_table(constants: Sequence[FittedConstant], catalog: Catalog) -> Table:
    """The calibration of a catalog with other constants in place of its own of the same family and name."""
    table = catalog.tables["calibration"]
    names = {(row.family, row.constant) for row in constants}
    pairs = list(zip(table.text("family").tolist(), table.text("constant").tolist(), strict=True))
    others = table.take(np.flatnonzero([pair not in names for pair in pairs]))
    return joined_tables(others, calibration_table(list(constants)))


def serving_rows(published: Published, catalog: Catalog) -> ServingRows:
    """Published rows that constants can be fitted on.

    Parameters
    ----------
    published : Published
        Inference rows; those of the papers, of :data:`NEVER_FITTED_SOURCES` and without a prediction are left out.
    catalog : Catalog
        With the calibration of the kernels.

    Returns
    -------
    ServingRows
        Primary times per token and times to the first token.
    """
    told = zip(published.text["group"], published.text["source_id"], strict=True)
    kept = [row for row, (group, source) in enumerate(told) if _may_be_fitted(group, source)]
    plans = inference_plans(published.take(kept), catalog)
    records = compare(plans, evaluate(plans.plans, plans.catalog)) if len(plans.plans) else []
    chosen = [
        index
        for index, record in enumerate(records)
        if record.primary and record.covered and record.quantity in (TIME_PER_TOKEN, FIRST_TOKEN)
    ]
    table = plans.plans
    plan_of = {name: row for row, name in enumerate(table.text("name").tolist())}
    of_plan = np.array([plan_of[records[index].row_id] for index in chosen], dtype=np.int64)
    accelerators = catalog.rows("accelerators", table.text("accelerator"), table, "accelerator")[of_plan]
    keys = [table.text(name)[of_plan].tolist() for name in ("model", "accelerator")]
    mapping = table.number("tensor_parallel")[of_plan].tolist()
    stored = [STORED.get(str(name), str(name)) for name in table.filled("precision")[of_plan].tolist()]
    return ServingRows(
        plans=plans,
        entries=np.array(chosen, dtype=np.int64),
        row_ids=np.array([records[index].row_id for index in chosen], dtype=object),
        software=table.text("software")[of_plan],
        generation=catalog.tables["accelerators"].text("generation")[accelerators],
        precision=np.array(stored, dtype=object),
        family=np.array([f"{a}/{b}/{tp:g}" for a, b, tp in zip(*keys, mapping, strict=True)], dtype=object),
        first_token=np.array([records[index].quantity == FIRST_TOKEN for index in chosen], dtype=bool),
        times=np.array([time_of(records[index], records[index].measured) for index in chosen]),
    )


def _may_be_fitted(group: str, source: str) -> bool:
    return group != NEVER_FITTED and source not in NEVER_FITTED_SOURCES


def plain_constants(kinds: Sequence[Kind], values: Values) -> list[FittedConstant]:
    """Constants as rows of the calibration sheet, with what holds where no group does."""
    found = []
    for kind, of_group in zip(kinds, values, strict=True):
        for group, value in of_group.items():
            if group or not kind.keys:
                found.append(plain_constant(kind, group, value))
        if kind.keys and kind.shared and of_group:
            found.append(plain_constant(kind, (ANY,) * len(kind.keys), middle(of_group)))
    return found


def plain_constant(kind: Kind, group: Group, value: float) -> FittedConstant:
    """One row of the calibration sheet without a word on where it comes from."""
    at = dict(zip(kind.keys, group, strict=True))
    generation, precision, software = (at.get(name, ANY) for name in ("generation", "precision", "software"))
    constant = kind.constant
    return FittedConstant(kind.family, generation, precision, software, constant, value, "", 0, math.nan, "", "")


def middle(of_group: Mapping[Group, float]) -> float:
    """Median over the groups."""
    return float(np.median(list(of_group.values()))) if of_group else math.nan


@dataclass(frozen=True)
class Fitted:
    """Constants that were fitted together.

    Attributes
    ----------
    values : Values
        By kind and group.
    errors : Array
        Logarithm of predicted over measured time of each entry under them.
    slopes : Array
        Change of it with each parameter, (entries, parameters).
    parameters : list of (int, Group)
        Kind and group of each parameter.
    held : frozenset of (int, Group)
        Those that the rows do not tell: at the default, or at the median of the others.
    """

    values: Values
    errors: Array
    slopes: Array
    parameters: list[tuple[int, Group]]
    held: frozenset[tuple[int, Group]]


def _cost(rows: ServingRows, errors: Array) -> float:
    return float(np.sum(rows.weights * np.minimum(np.nan_to_num(np.abs(errors), nan=_FARTHEST), _FARTHEST)))


class _Descent:
    """Weighted least squares on the constants of all kinds."""

    def __init__(self, rows: ServingRows, catalog: Catalog, kinds: Sequence[Kind]) -> None:
        self.rows, self.catalog, self.kinds = rows, catalog, kinds
        self.groups = [rows.groups(kind) for kind in kinds]
        self.parameters = [(index, group) for index in range(len(kinds)) for group in sorted(set(self.groups[index]))]

    def errors(self, values: Values) -> Array:
        return self.rows.errors(plain_constants(self.kinds, values), self.catalog)

    def slopes(self, values: Values, errors: Array) -> Array:
        """Change of the errors with a step of each parameter: all groups of a kind are moved at once."""
        columns = np.zeros((len(self.rows), len(self.parameters)))
        position = {parameter: column for column, parameter in enumerate(self.parameters)}
        for index, kind in enumerate(self.kinds):
            step = {group: self._step(kind, value) for group, value in values[index].items()}
            moved = {group: value + step[group] for group, value in values[index].items()}
            tried = tuple(moved if other == index else values[other] for other in range(len(self.kinds)))
            change = np.nan_to_num(self.errors(tried) - errors)
            for row, group in enumerate(self.groups[index]):
                columns[row, position[index, group]] = change[row] / step[group]
        return columns

    def _step(self, kind: Kind, value: float) -> float:
        step = max(kind.step, _NEAREST * abs(value))
        return step if value + step <= kind.bounds[1] else -step

    def started(self) -> Values:
        """Defaults for every group."""
        return tuple(
            dict.fromkeys(sorted(set(groups)), kind.default)
            for kind, groups in zip(self.kinds, self.groups, strict=True)
        )

    def run(self, values: Values, held: frozenset[tuple[int, Group]]) -> Values:
        errors = self.errors(values)
        cost, damping, small = _cost(self.rows, errors), 0.1, 0
        for _ in range(_ITERATIONS):
            slopes = self.slopes(values, errors)
            for _ in range(_TRIALS):
                tried = self._moved(values, self._change(values, slopes, errors, held, damping))
                new = self.errors(tried)
                if _cost(self.rows, new) < cost:
                    break
                damping *= 5.0
            else:
                break
            small = small + 1 if cost - _cost(self.rows, new) < _GAIN * cost else 0
            values, errors, cost, damping = tried, new, _cost(self.rows, new), max(damping / 4.0, 1e-3)
            if small == 2:
                break
        return values

    def _change(
        self, values: Values, slopes: Array, errors: Array, held: frozenset[tuple[int, Group]], damping: float
    ) -> dict[tuple[int, Group], float]:
        from scipy.optimize import lsq_linear

        free = [column for column, parameter in enumerate(self.parameters) if parameter not in held]
        weighted = root_weights(self.rows, errors)
        matrix, wanted = slopes[:, free] * weighted[:, None], -np.nan_to_num(errors) * weighted
        sizes = np.linalg.norm(matrix, axis=0)
        sizes = np.where(sizes > 0.0, sizes, 1.0)
        bounds = []
        for column in free:
            index, group = self.parameters[column]
            low, high = self.kinds[index].bounds
            bounds.append((low - values[index][group], high - values[index][group]))
        lowest, highest = np.array(bounds).T * sizes
        solution = lsq_linear(
            np.concatenate([matrix / sizes, damping * np.eye(len(free))]),
            np.concatenate([wanted, np.zeros(len(free))]),
            bounds=(lowest - 1e-12, highest + 1e-12),
            method="bvls",
        )
        return {self.parameters[column]: float(x) for column, x in zip(free, solution.x / sizes, strict=True)}

    def _moved(self, values: Values, change: Mapping[tuple[int, Group], float]) -> Values:
        moved = []
        for index, kind in enumerate(self.kinds):
            low, high = kind.bounds
            moved.append(
                {
                    group: min(max(value + change.get((index, group), 0.0), low), high)
                    for group, value in values[index].items()
                }
            )
        return tuple(moved)


def root_weights(rows: ServingRows, errors: Array) -> Array:
    """Square roots of the weights with which squares stand for absolute values; far errors hardly count."""
    size = np.abs(np.nan_to_num(errors))
    weights = rows.weights / np.maximum(size, _NEAREST)
    return np.asarray(np.sqrt(np.where(size > _FARTHEST, 0.1 * weights, weights)))


def untold(
    rows: ServingRows, kinds: Sequence[Kind], slopes: Array, parameters: Sequence[tuple[int, Group]], errors: Array
) -> frozenset[tuple[int, Group]]:
    """Parameters that rows do not tell: too few rows, no effect, or of an engine and going with an earlier one.

    Parameters
    ----------
    rows : ServingRows
        Entries.
    kinds : sequence of Kind
        Constants.
    slopes : Array
        Change of the errors with each parameter, (entries, parameters).
    parameters : sequence of (int, Group)
        Kind and group of each.
    errors : Array
        Of the entries.

    Returns
    -------
    frozenset of (int, Group)
        Parameters that are to be held.
    """
    weighted = slopes * root_weights(rows, errors)[:, None]
    groups = [rows.groups(kind) for kind in kinds]
    kept: dict[str, list[int]] = {}
    found = set()
    for column, (index, group) in enumerate(parameters):
        kind = kinds[index]
        mask = np.array([each == group for each in groups[index]])
        size = np.linalg.norm(weighted[:, column])
        if kind.reference in group or rows.num_rows(mask) < FEWEST_ROWS or size == 0.0:
            found.add((index, group))
            continue
        if kind.keys != ("software",):
            continue
        before = kept.setdefault(group[0], [])
        left = weighted[:, column]
        if before:
            others = weighted[:, before]
            left = left - others @ np.linalg.lstsq(others, left, rcond=None)[0]
        if np.linalg.norm(left) > _APART * size:
            before.append(column)
        else:
            found.add((index, group))
    return frozenset(found)


def fit_values(rows: ServingRows, catalog: Catalog, kinds: Sequence[Kind]) -> Fitted:
    """Constants with the least sum of absolute logarithms of predicted over measured times.

    What the rows of an engine do not tell is first held at the declared default, then at the median of the engines
    that tell it.

    Parameters
    ----------
    rows : ServingRows
        At least one entry.
    catalog : Catalog
        With the calibration of the kernels.
    kinds : sequence of Kind
        Constants; of an engine's the earlier go first where two have the same effect.

    Returns
    -------
    Fitted
        Values with three significant digits.
    """
    descent = _Descent(rows, catalog, kinds)
    values = descent.started()
    errors = descent.errors(values)
    held = untold(rows, kinds, descent.slopes(values, errors), descent.parameters, errors)
    values = descent.run(values, held)
    if held:
        values = descent.run(_at_median(kinds, values, held), held)
    values = tuple({group: rounded(value) for group, value in of_group.items()} for of_group in values)
    errors = descent.errors(values)
    return Fitted(values, errors, descent.slopes(values, errors), descent.parameters, held)


def _at_median(kinds: Sequence[Kind], values: Values, held: frozenset[tuple[int, Group]]) -> Values:
    found = []
    for index, kind in enumerate(kinds):
        told = {group: value for group, value in values[index].items() if (index, group) not in held}
        found.append(
            {
                group: middle(told)
                if (index, group) in held and told and kind.shared and kind.reference not in group
                else value
                for group, value in values[index].items()
            }
        )
    return tuple(found)


def held_out_errors(rows: ServingRows, fitted: Fitted) -> Array:
    """Errors of each entry under constants from the other families of rows, to first order around the fit."""
    weighted = root_weights(rows, fitted.errors)
    known = ~np.isnan(fitted.errors)
    free = [column for column, parameter in enumerate(fitted.parameters) if parameter not in fitted.held]
    matrix = np.nan_to_num(fitted.slopes[:, free]) * weighted[:, None]
    sizes = np.linalg.norm(matrix, axis=0)
    matrix = matrix / np.where(sizes > 0.0, sizes, 1.0)
    wanted = np.nan_to_num(fitted.errors) * weighted
    folds = np.array([fold_of(family) for family in rows.family.tolist()], dtype=np.int64)
    found = np.full(len(rows), math.nan)
    for fold in sorted(set(folds.tolist())):
        inside = folds == fold
        others = matrix[~inside & known]
        square = others.T @ others + 1e-3 * np.eye(len(free))
        change = np.linalg.solve(square, others.T @ wanted[~inside & known])
        start = np.linalg.solve(
            matrix[known].T @ matrix[known] + 1e-3 * np.eye(len(free)), matrix[known].T @ wanted[known]
        )
        moved = (matrix[inside] @ (change - start)) / weighted[inside]
        found[inside] = fitted.errors[inside] - moved
    return found


def left_out_errors(rows: ServingRows, kinds: Sequence[Kind], fitted: Fitted, catalog: Catalog) -> Array:
    """Errors of each engine under the medians of the constants of the others."""
    engines = [index for index, kind in enumerate(kinds) if kind.keys == ("software",)]
    found = np.full(len(rows), math.nan)
    for software in sorted(set(rows.software.tolist())):
        values = list(fitted.values)
        for index in engines:
            others = {
                group: value
                for group, value in fitted.values[index].items()
                if group != (software,) and (index, group) not in fitted.held
            }
            if others:
                values[index] = {**fitted.values[index], (software,): middle(others)}
        mask = rows.software == software
        found[mask] = rows.errors(plain_constants(kinds, tuple(values)), catalog)[mask]
    return found


def told_groups(kinds: Sequence[Kind], fitted: Fitted) -> Iterator[tuple[int, Group, float, bool]]:
    """Kind, group, value of every constant, and whether the rows tell it."""
    for index, of_group in enumerate(fitted.values[: len(kinds)]):
        for group, value in of_group.items():
            yield index, group, value, (index, group) not in fitted.held
