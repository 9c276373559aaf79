r"""The fitter: constants of the calibration sheet as parameters of one robust, pooled least-squares problem.

With the residuals :math:`r_i = \ln(t_{predicted} / t_{measured})`

.. math:: \min_u \sum_i w_i\,\rho(r_i) + \sum_j p_j^2 (u_j - u_{parent(j)})^2

where :math:`\rho` is the soft L1 loss, constant beyond a cap, and the second sum pools each parameter towards a more
general one or its declared default. ``u`` is the logarithm of a positive parameter, else its value over a usual size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import Any

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.units import factor
from xlperf.catalog.calibration import ANY, Constant, declared_constants
from xlperf.catalog.cards import beside
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table

CAP = 0.7  # cap of the loss: residual beyond which it is constant [-]
SPREADS = (0.2, 0.02)  # residuals at which the loss turns linear: first wide for a safe start, then narrow [-]
PULL = 0.01  # pooling weight: one usual size away from its parent costs as much as a row that is 1 % off [-]
FEWEST_ROWS = 8  # least number of published rows for a separate parameter of a group [-]
_MOST_EVALUATIONS = 80
_STEP = 0.05
_INSIDE = 0.1
_NEGLIGIBLE = 1e-3
_WORTH_A_CONSTANT = 1e-6  # share of the cost that a constant must save to survive backward elimination [-]


@dataclass(frozen=True)
class Parameter:
    """A constant to be fitted: a row of the calibration sheet, its bounds and its pooling target, in SI units."""

    family: str
    constant: str
    generation: str = ANY
    precision: str = ANY
    software: str = ANY
    start: float = math.nan
    low: float = math.nan
    high: float = math.nan
    parent: int = -1  # position of the more general parameter that it is pooled towards; -1: ``centre``
    centre: float = math.nan
    pull: float = PULL  # weight of the pooling [-]
    fixed: bool = False  # keeps ``start``

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """Key of the row of the sheet."""
        return self.family, self.generation, self.precision, self.software, self.constant

    @property
    def declared(self) -> Constant:
        """Unit, default and bounds."""
        return declared_constants()[self.family][self.constant]

    @property
    def bounds(self) -> tuple[float, float]:
        """Bounds of the parameter: its own, else the declared ones."""
        declared = self.declared
        low = declared.low if math.isnan(self.low) else self.low
        return low, declared.high if math.isnan(self.high) else self.high

    @property
    def first(self) -> float:
        """Start value of the search."""
        return self.declared.default if math.isnan(self.start) else self.start

    @property
    def target(self) -> float:
        """Pooling target of a parameter without a parent."""
        return self.declared.default if math.isnan(self.centre) else self.centre

    @property
    def size(self) -> float:
        """Usual size of a linear parameter; 0 for a parameter fitted in its logarithm."""
        if self.declared.low > 0.0:
            return 0.0
        return abs(self.declared.default) or self.declared.high / 10.0


@dataclass(frozen=True)
class Problem:
    """Residuals as a function of the parameters."""

    residuals: Callable[[Array], Array]  # of trial values (trials, parameters): (trials, rows); NaN without prediction
    weights: Array  # of each row; rows of weight 0 are not fitted [-]
    users: np.ndarray | None = None  # which rows depend on which parameter, (parameters, rows); None: all on all
    colours: np.ndarray | None = None  # parameters of one colour share no row: finite differences perturb them together
    step: float = _STEP  # of the finite differences, in usual sizes or in the logarithm [-]


@dataclass(frozen=True)
class Solution:
    """Result of a fit; unidentifiable parameters are fixed at their pooling target."""

    values: Array  # of each parameter, in SI units
    residuals: Array  # of each row at these values; NaN without a prediction [-]
    identified: np.ndarray  # whether the rows inform a parameter more than the pooling does
    information: Array  # Hessian of the cost in the free unknowns, 0 elsewhere, (parameters, parameters) [-]
    offsets: Array  # of the unknowns from their pooling targets [-]
    cost: float  # weighted sum of the loss of the rows [-]


class _Scaled:
    """Free parameters, scaled to unknowns of the optimiser."""

    def __init__(self, problem: Problem, parameters: Sequence[Parameter], held: np.ndarray) -> None:
        self.problem, self.parameters = problem, parameters
        self.size: Array = np.array([parameter.size for parameter in parameters])
        self.log: np.ndarray = self.size == 0.0
        self.free = np.flatnonzero(~held)
        declared = [(parameter.declared.low, parameter.declared.high) for parameter in parameters]
        own = [parameter.bounds for parameter in parameters]  # a value held at its parent may lie beyond the samples
        bounds = np.array([a if away else b for a, b, away in zip(declared, own, held, strict=True)]).reshape(-1, 2)
        self.low, self.high = self.unknowns(bounds[:, 0]), self.unknowns(bounds[:, 1])
        self.bounds = bounds
        self.target = self.unknowns(np.array([parameter.target for parameter in parameters]))
        self.from_parent, pull = _from_parents(parameters), np.array([parameter.pull for parameter in parameters])
        self.roots = np.where([parameter.parent < 0 for parameter in parameters], self.target, 0.0)
        self.pooled, self.centre = pull[:, None] * self.from_parent, pull * self.roots
        colours = problem.colours if problem.colours is not None else np.arange(len(parameters))
        self.groups = [self.free[colours[self.free] == colour] for colour in sorted(set(colours[self.free].tolist()))]

    def unknowns(self, values: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.where(
                self.log, np.log(np.where(self.log, values, 1.0)), values / np.where(self.log, 1.0, self.size)
            )

    def values(self, unknowns: Array) -> Array:
        result = np.where(self.log, np.exp(np.where(self.log, unknowns, 0.0)), unknowns * self.size)
        return np.asarray(np.clip(result, self.bounds[:, 0], self.bounds[:, 1]))

    def at_parents(self, unknowns: Array, held: np.ndarray) -> Array:
        """Unknowns, with unidentifiable ones set to their pooling target."""
        values = np.array(unknowns)
        for row, parameter in enumerate(self.parameters):  # parents come before their children
            if held[row] and not parameter.fixed:
                values[row] = values[parameter.parent] if parameter.parent >= 0 else self.target[row]
        return np.clip(values, self.low, self.high)

    def offsets(self, unknowns: Array) -> Array:
        """Offsets of the unknowns from their pooling targets."""
        return np.asarray(self.from_parent @ unknowns - self.roots)

    def complete(self, point: Array, base: Array) -> Array:
        values: Array = np.array(base)
        values[self.free] = point
        return values

    def data(self, unknowns: Array) -> Array:
        return np.asarray(self.problem.residuals(self.values(unknowns)[None, :])[0])

    def slopes(self, unknowns: Array, residuals: Array) -> Array:
        """Jacobian of the residuals in the free unknowns, (rows, free), by forward differences per colour."""
        step = np.minimum(self.problem.step, 0.5 * (self.high - self.low))  # small constants lie between near bounds
        steps = np.where(unknowns + step > self.high, -step, np.where(step > 0.0, step, self.problem.step))
        trials = np.repeat(unknowns[None, :], len(self.groups), axis=0)
        for trial, group in zip(trials, self.groups, strict=True):
            trial[group] += steps[group]
        changes = np.nan_to_num(self.problem.residuals(self.values(trials)) - residuals)
        values = np.zeros((len(residuals), len(unknowns)))
        for change, group in zip(changes, self.groups, strict=True):
            for column in group.tolist():
                users = self.problem.users[column] if self.problem.users is not None else 1.0
                values[:, column] = change * users / steps[column]
        return values[:, self.free]


def pooled_parameters(parameters: Sequence[Parameter], rows: Sequence[int]) -> tuple[list[Parameter], list[int]]:
    """Parameters of calibration rows for partial pooling: general ones first, as parents of specific ones."""
    order = sorted(range(len(parameters)), key=lambda at: sum(part != ANY for part in parameters[at].key[1:4]))
    results = [parameters[at] for at in order]
    place = {parameter.key: at for at, parameter in enumerate(results)}

    def parent(parameter: Parameter) -> int:
        general = [replace(parameter, generation=ANY), replace(parameter, generation=ANY, software=ANY)]
        return next((place[wide.key] for wide in general if wide.key in place and wide.key != parameter.key), -1)

    return [replace(parameter, parent=parent(parameter)) for parameter in results], [rows[at] for at in order]


def loss(residuals: Array, spread: float) -> tuple[Array, Array]:
    """Soft L1 loss of residuals, constant beyond the cap, and its derivative by the squared scaled residual."""
    scaled = np.minimum(np.abs(residuals), CAP) / spread
    root = np.sqrt(1.0 + scaled**2)
    return 2.0 * (root - 1.0), np.where(np.abs(residuals) < CAP, 1.0 / root, 0.0)


def _weighted_loss(weights: Array, spread: float, pooled: int) -> Callable[[Array], Array]:
    """Loss function for ``least_squares``: rows with their weights, then the pooling terms."""

    def rho(squares: Array) -> Array:
        values = np.stack([squares, np.ones_like(squares), np.zeros_like(squares)])
        rows = squares[: len(squares) - pooled]
        value, first = loss(np.sqrt(rows) * spread, spread)
        values[:, : len(rows)] = weights * np.stack([value, first, -0.5 * first**3])
        return values

    return rho


def _optimised(scaled: _Scaled, start: Array, spread: float) -> Array:
    """Unknowns at the local minimum of the cost near a start."""
    from scipy.optimize import least_squares  # slow to import

    pooled = scaled.pooled[scaled.free]
    seen: dict[bytes, Array] = {}

    def data(point: Array) -> Array:
        key = point.tobytes()
        if key not in seen:
            seen.clear()
            seen[key] = scaled.data(scaled.complete(point, start))
        return seen[key]

    def residual(point: Array) -> Array:
        pull = pooled @ scaled.complete(point, start) - scaled.centre[scaled.free]
        return np.concatenate([np.nan_to_num(data(point), nan=CAP), pull])

    def jacobian(point: Array) -> Array:
        return np.concatenate([scaled.slopes(scaled.complete(point, start), data(point)), pooled[:, scaled.free]])

    coarse = scaled.problem.step > 1e-4  # an evaluation is a run of the engine; else of one equation
    low, high = scaled.low[scaled.free], scaled.high[scaled.free]
    inside = np.minimum(_INSIDE, _INSIDE * (high - low))
    result = least_squares(
        residual,
        np.clip(start[scaled.free], low + inside, high - inside),  # steps from a bound would be tiny
        jac=jacobian,
        bounds=(low, high),
        loss=_weighted_loss(scaled.problem.weights, spread, len(pooled)),
        f_scale=spread,
        x_scale="jac",
        ftol=1e-7 if coarse else 1e-13,
        xtol=1e-8 if coarse else 1e-13,
        gtol=1e-8 if coarse else 1e-13,
        max_nfev=_MOST_EVALUATIONS if coarse else 200,
    )
    return scaled.complete(result.x, start)


def solve(
    problem: Problem, parameters: Sequence[Parameter], starts: Sequence[Array] = (), spreads: Sequence[float] = SPREADS
) -> Solution:
    """Fit parameters to the rows of a problem; the best of several ``starts`` wins. ``spreads`` are the residuals at
    which the loss turns linear, one search after the other; the last alone suffices from a good start.
    """
    fixed = np.array([parameter.fixed for parameter in parameters], dtype=bool)
    scaled = _Scaled(problem, parameters, fixed)
    best, least = np.zeros(0), math.inf
    for start in starts or [np.array([parameter.first for parameter in parameters])]:
        point = np.clip(scaled.unknowns(start), scaled.low, scaled.high)
        for spread in spreads if len(scaled.free) else ():
            point = _optimised(scaled, point, spread)
        result = _cost(problem, scaled.data(point))
        if result < least or not len(best):
            best, least = point, result
    held = fixed | ~_identified(scaled, best)
    if (held & ~fixed).any():
        scaled = _Scaled(problem, parameters, held)
        best = scaled.at_parents(best, held)
        if len(scaled.free):
            best = _optimised(scaled, best, SPREADS[-1])
        best = scaled.at_parents(best, held)
    information = _information(scaled, best)
    values = scaled.values(best)
    values = np.where((scaled.low == 0.0) & ~scaled.log & (best < _NEGLIGIBLE), 0.0, values)
    residuals = problem.residuals(values[None, :])[0]
    return Solution(values, residuals, ~held, information, scaled.offsets(best), _cost(problem, residuals))


def most_telling(
    parameters: Sequence[Parameter],
    solution: Solution,
    most: int,
    groups: Sequence[str] = (),
    of_group: int = 0,
    always: Collection[int] = (),
) -> list[int]:
    """Backward elimination by the Wald statistic: positions of at most ``most`` parameters, and ``of_group`` per group
    ("" is no group), that reduce the cost most. Dropped ones equal their pooling target; ``always`` lists positions
    that stay.
    """
    links = np.linalg.inv(_from_parents(parameters))  # each unknown is the sum of its own and its ancestors' offsets
    matrix, offsets = links.T @ solution.information @ links, np.array(solution.offsets)
    kept = [at for at in range(len(parameters)) if matrix[at, at] > 0.0]
    while any(at not in always for at in kept):
        gain = _gain(matrix[np.ix_(kept, kept)], offsets[kept])
        gain = np.where([at in always for at in kept], math.inf, gain)
        least = int(np.argmin(gain))
        if len(kept) <= most and gain[least] > _WORTH_A_CONSTANT * solution.cost:
            sizes = Counter(groups[at] for at in kept if groups and groups[at])
            crowded = [
                place for place, at in enumerate(kept) if groups and sizes[groups[at]] > of_group and at not in always
            ]
            if not crowded:
                break
            least = min(crowded, key=lambda place: float(gain[place]))
        inverse = np.linalg.pinv(matrix[np.ix_(kept, kept)])
        offsets[kept] -= inverse[:, least] / max(inverse[least, least], 1e-30) * offsets[kept[least]]
        kept.pop(least)
    return kept


def _from_parents(parameters: Sequence[Parameter]) -> Array:
    """Matrix from unknowns to their differences from their parents."""
    result = np.eye(len(parameters))
    children = [row for row, parameter in enumerate(parameters) if parameter.parent >= 0]
    result[children, [parameters[row].parent for row in children]] = -1.0
    return result


def _gain(information: Array, offsets: Array) -> Array:
    """Cost reduction by each offset, with the other offsets refitted (Wald statistic)."""
    variance = np.diag(np.linalg.pinv(information)) if len(offsets) else offsets
    return np.where(variance > 0.0, 0.5 * offsets**2 / np.where(variance > 0.0, variance, 1.0), 0.0)


def _cost(problem: Problem, residuals: Array) -> float:
    return float(problem.weights @ loss(np.nan_to_num(residuals, nan=CAP), SPREADS[-1])[0]) * SPREADS[-1] / 2.0


def _information(scaled: _Scaled, unknowns: Array) -> Array:
    """Hessian of the cost in the unknowns, by iteratively reweighted least squares (IRLS); 0 if held."""
    values = np.zeros((len(unknowns), len(unknowns)))
    if len(scaled.free):
        residuals = scaled.data(unknowns)
        weights = scaled.problem.weights * loss(np.nan_to_num(residuals, nan=CAP), SPREADS[-1])[1]
        slopes = scaled.slopes(unknowns, residuals) * np.sqrt(weights)[:, None]
        pooled = scaled.pooled[np.ix_(scaled.free, scaled.free)]
        values[np.ix_(scaled.free, scaled.free)] = slopes.T @ slopes + pooled.T @ pooled
    return values


def _identified(scaled: _Scaled, unknowns: Array) -> np.ndarray:
    """Whether the rows, for a parent those of its children too, inform each parameter more than the pooling does."""
    values, free = np.zeros(len(unknowns), dtype=bool), scaled.free
    if len(free):
        variance = np.diag(np.linalg.pinv(_information(scaled, unknowns)[np.ix_(free, free)]))
        pull = np.array([scaled.parameters[row].pull for row in free.tolist()])
        values[free] = (pull == 0.0) | (pull**2 * variance < 0.5)
    for row in reversed(range(len(unknowns))):  # children come after their parents
        if values[row] and scaled.parameters[row].parent >= 0:
            values[scaled.parameters[row].parent] = True
    return values


@dataclass(frozen=True, slots=True)
class FittedConstant:
    """A row of the calibration sheet; ``value`` in the declared unit, ``error`` the median of held-out rows."""

    family: str
    generation: str
    precision: str
    software: str
    constant: str
    value: float
    fit_set: str = ""
    num_rows: int = 0
    error: float = math.nan
    date: str = ""
    source: str = ""
    year: float = math.nan
    kind: str = "measured"
    notes: str = ""

    @property
    def calibration(self) -> str:
        """Name of the row."""
        return "/".join((self.family, self.generation, self.precision, self.software, self.constant))

    @property
    def unit(self) -> str:
        """Unit of the value."""
        return declared_constants()[self.family][self.constant].unit

    def assumed(self, notes: str, **changes: Any) -> FittedConstant:
        """The row with changes, as an assumption that no measurement of its own supports."""
        return replace(self, **{"error": math.nan, "kind": "assumption", "notes": notes, **changes})

    def unmeasured(self, notes: str, **changes: Any) -> FittedConstant:
        """As :meth:`assumed`, without a fit set."""
        return self.assumed(notes, **{"fit_set": "", "num_rows": 0, **changes})


def without_repeats(rows: Sequence[FittedConstant]) -> list[FittedConstant]:
    """Rows without repeated keys: the last row of a key, at the place of the first."""
    return list({row.calibration: row for row in rows}.values())


def calibration_table(rows: Sequence[FittedConstant]) -> Table:
    """Fitted constants as a calibration table, in their order."""
    columns: dict[str, np.ndarray] = {}
    of_constants = {field.name for field in fields(FittedConstant)} | {"calibration", "unit"}
    for column in table_schema("calibration").columns:
        if column.name in of_constants:
            values = [getattr(row, column.name) for row in rows]
            columns[column.name] = np.array(values, dtype=object if column.is_text else np.float64)
    return Table("calibration", columns, lambda row, column: f"fit [{rows[row].calibration}, {column}]")


def joined_tables(first: Table, second: Table) -> Table:
    """Two calibration tables as one; a row of the second replaces one of the first with the same key."""
    return beside(first, [second], ("family", "generation", "precision", "software", "constant"), ANY)


def and_constants(catalog: Catalog, constants: Sequence[FittedConstant]) -> Catalog:
    """Catalog whose calibration has more constants; they replace rows with the same key."""
    return catalog.with_tables([joined_tables(catalog.tables["calibration"], calibration_table(constants))])


def declared_values(family: str) -> dict[str, float]:
    """Declared defaults of the constants of a family, in SI units."""
    return {name: constant.default * factor(constant.unit) for name, constant in declared_constants()[family].items()}


def rounded(value: float) -> float:
    """Value with three significant digits, the precision of a fit.

    >>> rounded(0.000123456), rounded(1.2345), rounded(0.0)
    (0.000123, 1.23, 0.0)
    """
    return float(f"{value:.3g}")


def fit_set(chosen: Iterable[str], rows: Sequence[str]) -> str:
    """Row names of a fit set, runs of neighbouring rows of the table as ``first-last``.

    >>> fit_set(["a", "b", "c", "e"], ["a", "b", "c", "d", "e"])
    'a-c e'
    """
    runs = [list(run) for inside, run in groupby(rows, set(chosen).__contains__) if inside]
    return " ".join("-".join(dict.fromkeys((run[0], run[-1]))) for run in runs)
