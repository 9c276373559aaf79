"""Weighted least squares on all constants of serving engines at once.

Each kind of constant (the overhead of a layer, say) has one value for each of its groups (engines, generations,
precisions); a row depends on one group of each kind, so that all groups of a kind are moved together to see what they
do. The sum of absolute logarithms of predicted over measured time is brought down, which outliers do not pull.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from xlperf.base.arrays import Array
from xlperf.calibrate.fit_engines import Group, Kind, ServingRows, Values, middle, plain_constants
from xlperf.calibrate.fit_training import FEWEST_ROWS
from xlperf.calibrate.fitted_constants import rounded
from xlperf.catalog.catalog import Catalog

_FARTHEST = math.log(3.0)
_NEAREST = 0.05
_APART = 0.05
_ITERATIONS = 14
_TRIALS = 4
_GAIN = 3e-4
_SWEEPS = 40
_WORTH_IT = 1e-3
_FIRST = 8.0
_LONGER, _SHORTER = 1.5, 0.4


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


def _costs(rows: ServingRows, errors: Array) -> Array:
    return np.asarray(rows.weights * np.minimum(np.nan_to_num(np.abs(errors), nan=_FARTHEST), _FARTHEST))


def _cost(rows: ServingRows, errors: Array) -> float:
    return float(np.sum(_costs(rows, errors)))


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
            {group: _start(kind) for group in sorted(set(groups))}
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

    def polished(self, values: Values, held: frozenset[tuple[int, Group]]) -> Values:
        """Values after a search along each constant, one kind after the other.

        An entry depends on one group of each kind: all groups are moved at once, and each keeps the move if it helps
        its own entries. A move that helps is made longer the next time, one that does not is made shorter.
        """
        costs = _costs(self.rows, self.errors(values))
        members = [
            {group: np.array([each == group for each in groups]) for group in of if (index, group) not in held}
            for index, (groups, of) in enumerate(zip(self.groups, values, strict=True))
        ]
        moves = [
            {group: max(_FIRST * self._step(kind, 0.0), _FIRST * _NEAREST * of[group]) for group in of}
            for kind, of in zip(self.kinds, values, strict=True)
        ]
        for _ in range(_SWEEPS):
            before = float(np.sum(costs))
            for index, kind in enumerate(self.kinds):
                low, high = kind.bounds
                waiting = set(members[index])
                for way in (1.0, -1.0):
                    if not waiting:
                        continue
                    tried = {
                        group: min(max(values[index][group] + way * moves[index][group], low), high)
                        for group in waiting
                    }
                    of = {**values[index], **tried}
                    new = tuple(of if other == index else each for other, each in enumerate(values))
                    found = _costs(self.rows, self.errors(new))
                    better = {
                        group: value
                        for group, value in tried.items()
                        if np.sum(found[members[index][group]])
                        < (1.0 - _WORTH_IT) * np.sum(costs[members[index][group]])
                    }
                    for group in better:
                        moves[index][group] *= way * _LONGER
                        costs = np.where(members[index][group], found, costs)
                    of = {**values[index], **better}
                    values = tuple(of if other == index else each for other, each in enumerate(values))
                    waiting -= set(better)
                for group in waiting:
                    moves[index][group] *= _SHORTER
            if before - float(np.sum(costs)) < _GAIN * before:
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


def _start(kind: Kind) -> float:
    return kind.default if math.isnan(kind.start) else kind.start


def reference_of(kind: Kind, groups: Sequence[Group]) -> Group | None:
    """Group whose value stays at the default: the one that is named, else that of most entries."""
    if not kind.reference or not groups:
        return None
    named = (kind.reference,)
    return named if named in groups else Counter(sorted(groups)).most_common(1)[0][0]


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
    references = [reference_of(kind, each) for kind, each in zip(kinds, groups, strict=True)]
    kept: dict[str, list[int]] = {}
    found = set()
    for column, (index, group) in enumerate(parameters):
        kind = kinds[index]
        mask = np.array([each == group for each in groups[index]])
        size = np.linalg.norm(weighted[:, column])
        if group == references[index] or rows.num_rows(mask) < FEWEST_ROWS or size == 0.0:
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
    values = descent.polished(_at_median(kinds, values, held), held)
    values = tuple({group: rounded(value) for group, value in of_group.items()} for of_group in values)
    errors = descent.errors(values)
    return Fitted(values, errors, descent.slopes(values, errors), descent.parameters, held)


def _at_median(kinds: Sequence[Kind], values: Values, held: frozenset[tuple[int, Group]]) -> Values:
    found = []
    for index, kind in enumerate(kinds):
        told = {group: value for group, value in values[index].items() if (index, group) not in held}
        found.append(
            {
                group: middle(told) if (index, group) in held and told and kind.shared else value
                for group, value in values[index].items()
            }
        )
    return tuple(found)


def told_groups(kinds: Sequence[Kind], fitted: Fitted) -> Iterator[tuple[int, Group, float, bool]]:
    """Kind, group, value of every constant, and whether the rows tell it."""
    for index, of_group in enumerate(fitted.values[: len(kinds)]):
        for group, value in of_group.items():
            yield index, group, value, (index, group) not in fitted.held
