"""Constants of training stacks, allocators and serving engines, fitted to published rows.

``fitted_families.csv`` lists the constants of each fit and their pooling: ``any > software`` is one value for all
software, and one for each software with enough rows. Backward elimination drops constants that save next to nothing;
the rest are refitted in a few turns. A fit searches on sums of sampled responses of each row to each constant, additive
in the logarithm of the time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase

import numpy as np

from xlperf.base import resources
from xlperf.base.arrays import Array
from xlperf.calibrate import fitter, published_errors
from xlperf.calibrate.fit_machines import SLOWDOWN, kernels_of_other_generations, of_other_precisions, of_other_software
from xlperf.catalog.calibration import ANY, declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.measurements.comparison import LAYER_TIME, MEMORY, STEP_TIME
from xlperf.measurements.published import Published, PublishedPlans

_FACTORS = (0.5, 0.75, 1.0, 1.35, 2.0)
_STEPS = (-0.4, -0.2, 0.0, 0.2, 0.4)


@dataclass(frozen=True)
class Responses:
    """Sampled response of the errors of published rows to each constant."""

    parameters: list[fitter.Parameter]
    group: np.ndarray  # mask of the entries that look a constant up, (constants, entries)
    users: np.ndarray  # mask of the entries whose error responds to it, (constants, entries)
    points: Array  # sampled values, (constants, points)
    change: Array  # change of the errors at each point, (constants, points, entries) [-]
    now: Array  # errors at the first values, (entries,) [-]

    def of(self, entries: np.ndarray) -> Responses:
        """The responses of some of the entries."""
        group, users = self.group[:, entries], self.users[:, entries]
        return replace(self, group=group, users=users, change=self.change[:, :, entries], now=self.now[entries])

    def problem(self, entries: published_errors.Errors) -> fitter.Problem:
        """Least-squares problem of the entries, with residuals from the sum of the responses."""
        which = [np.flatnonzero(users) for users in self.users]
        changes = [change[:, users] for change, users in zip(self.change, which, strict=True)]

        def residuals(trials: Array) -> Array:
            result = np.repeat(self.now[None, :], len(trials), axis=0)
            for values, errors in zip(trials, result, strict=True):
                for value, points, users, change in zip(values, self.points, which, changes, strict=True):
                    below = min(max(int(np.searchsorted(points, value, side="right")) - 1, 0), len(points) - 2)
                    width = points[below + 1] - points[below]
                    share = (value - points[below]) / width if width > 0.0 else 0.0
                    errors[users] += (1.0 - share) * change[below] + share * change[below + 1]
            return result

        return fitter.Problem(residuals, entries.weights, self.users, published_errors.colours_of(self.parameters))


def trial_values(family: str, name: str, value: float) -> Array:
    """Ascending sample values of a constant around its current value, within its declared bounds."""
    declared = declared_constants()[family][name]
    if declared.low == 0.0 and declared.high <= 1.0 and not name.endswith("_time"):
        points = [value + step for step in _STEPS]
    elif value == 0.0:
        unit = declared.default or 0.1 * declared.high
        points = [0.0, *(unit * factor for factor in _FACTORS[:-1])]
    else:
        points = [value * factor for factor in _FACTORS]
    return np.asarray(np.clip(np.array(points), declared.low, declared.high))


def responses_of(
    plans: PublishedPlans,
    entries: published_errors.Errors,
    parameters: Sequence[fitter.Parameter],
    say: Callable[[str], None] | None = None,
) -> Responses:
    """Sample the errors of published rows around the first values of the parameters, whose search the samples bound."""
    tried = [np.clip(trial_values(each.family, each.constant, each.first), *each.bounds) for each in parameters]
    points = np.array(tried).reshape(-1, len(_FACTORS))
    ends = zip(parameters, points[:, 0].tolist(), points[:, -1].tolist(), strict=True)
    trials = [replace(parameter, low=low, high=high) for parameter, low, high in ends]
    colours, users = published_errors.colours_of(parameters), published_errors.users_of(plans, entries, parameters)
    problem = published_errors.published_problem(plans, entries, parameters)
    first = np.array([parameter.first for parameter in parameters])
    now = problem.residuals(first[None, :])[0]
    change = np.zeros((*points.shape, len(entries)))
    for colour in dict.fromkeys(colours.tolist()):
        group = np.flatnonzero(colours == colour)
        for point in range(points.shape[1]):
            if say is not None:
                say(f"{parameters[group[0]].family} {parameters[group[0]].constant}")
            trial = np.array(first)
            trial[group] = points[group, point]
            change[group, point] = np.nan_to_num(problem.residuals(np.stack([first, trial]))[1] - now) * users[group]
    return Responses(trials, users, users & (np.abs(change).max(axis=1) > 0.0), points, change, now)


MOST_CONSTANTS = {"training": 39, "inference": 52}  # most constants in a fit of the times of published rows
OF_SOFTWARE, MOST_OF_SOFTWARE = ("training_software", "serving_software"), 4
"""Families of constants of a single software, and the largest number per software."""
FEWEST_POOLED = 3
"""Number of software-specific constants from which their general constant stays even if it saves nothing: new software
uses it. [-]
"""
FEWEST_MEMORY_ROWS = 30
TURNS = 3  # sampling rounds around the current solution; a constant moves by at most a factor of two in one [-]
_MANY_ROWS = 24
_SLOWEST, _SLOWER, _MEASURED = 0.1, 0.8, "measured"
_SOURCE = "published rows of the sheet {} in validation.xlsx"
_AT_BOUND, _NEARLY = 1e-6, 0.999
_OF_OTHERS = "mean of those of software, for software without one of its own"
_UNIDENTIFIED = "unidentifiable parameter; held fixed at the value of all software, or at the declared default"


def fit_training(published: Published, catalog: Catalog, date: str) -> list[fitter.FittedConstant]:
    """Fit the constants of every training stack jointly to step times and times of single layers."""
    result = _fit_times(published, catalog, date, (STEP_TIME, LAYER_TIME))
    result += kernels_of_other_generations(result)
    return result + of_other_software(published, fitter.and_constants(catalog, result), result)


def _fit_times(
    published: Published, catalog: Catalog, date: str, quantities: Sequence[str] = published_errors.QUANTITIES
) -> list[fitter.FittedConstant]:
    """Fit the constants of row times jointly, with backward elimination."""
    plans = published_errors.plans_to_fit(published, catalog)
    entries = published_errors.errors_of(plans, quantities)
    if not len(entries) or entries.num_rows(published_errors.may_be_fitted(plans, entries)) < fitter.FEWEST_ROWS:
        return []
    plans, entries = published_errors.taken(plans, entries, published_errors.may_be_fitted(plans, entries))
    parameters = family_parameters(published.kind, plans, entries)
    thinned = published_errors.taken(plans, entries, _thinned(entries))
    parameters, solution = _solved(*thinned, parameters, fitter.SPREADS)
    groups = [parameter.software if parameter.family in OF_SOFTWARE else "" for parameter in parameters]
    general = [at for at, parameter in enumerate(parameters) if parameter.generation == ANY]
    slowdowns = [at for at in general if parameters[at].key[::4] == SLOWDOWN]
    most = MOST_CONSTANTS[published.kind]
    telling = fitter.most_telling(parameters, solution, most, groups, MOST_OF_SOFTWARE, slowdowns)
    pooled = Counter(parameters[at].parent for at in telling)
    shared = [at for at, number in pooled.items() if at >= 0 and number >= FEWEST_POOLED]
    parameters = _selected(_started(parameters, solution), sorted({*telling, *slowdowns, *shared}))
    parameters, solution = _solved(plans, entries, parameters, fitter.SPREADS[-1:])
    return _sheet_rows(plans, entries, parameters, solution, published, date)


def _solved(
    plans: PublishedPlans,
    entries: published_errors.Errors,
    parameters: Sequence[fitter.Parameter],
    spreads: Sequence[float],
) -> tuple[list[fitter.Parameter], fitter.Solution]:
    """The fitted parameters, with responses sampled again around each solution."""
    result = list(parameters)
    for turn in range(TURNS):
        responses = responses_of(plans, entries, result)
        some = spreads if not turn else spreads[-1:]
        solution = fitter.solve(responses.problem(entries), responses.parameters, spreads=some)
        result = _started(result, solution)
    return result, solution


def _thinned(entries: published_errors.Errors) -> np.ndarray:
    """Every third entry of large groups: enough to select constants, and for a start."""
    names = list(zip(entries.software.tolist(), entries.family.tolist(), entries.quantity.tolist(), strict=True))
    sizes, seen = Counter(names), Counter[tuple[str, str, str]]()
    kept = []
    for name in names:
        kept.append(sizes[name] < _MANY_ROWS or seen[name] % 3 == 0)
        seen[name] += 1
    return np.array(kept, dtype=bool)


def fit_memory(published: Published, catalog: Catalog, date: str) -> list[fitter.FittedConstant]:
    r"""Fit the reserved memory of a stack's allocator, for stacks with enough rows that state reserved memory.

    .. math:: R = (M + a A) (1 + s) + b

    with the allocated memory M and the activations A of the layers as predicted. Returns activation share a, allocator
    share s and base b of each stack; documented constants in the calibration stay.
    """
    kinds = published.text["mem_kind"]
    rows = np.flatnonzero(published.number["peak_mem_gb"] > 0.0).tolist()
    printed = published.take([row for row in rows if "reserved" in kinds[row].casefold()])
    plans = published_errors.plans_to_fit(printed, catalog)
    entries = published_errors.errors_of(plans, (MEMORY,))
    results: list[fitter.FittedConstant] = []
    for name in sorted(set(entries.software.tolist())):
        of_software = entries.software == name
        if entries.num_rows(of_software) < FEWEST_MEMORY_ROWS:
            continue
        own_plans, errors = published_errors.taken(plans, entries, of_software)
        parameters = [replace(parameter, pull=0.0) for parameter in family_parameters("memory", own_plans, errors)]
        solution = fitter.solve(published_errors.published_problem(own_plans, errors, parameters), parameters)
        error = float(np.median(np.abs(np.expm1(solution.residuals))))
        constants = _sheet_rows(own_plans, errors, parameters, solution, published, date)
        results += [replace(constant, error=fitter.rounded(error)) for constant in constants]
    return results


def fit_serving(published: Published, catalog: Catalog, date: str) -> list[fitter.FittedConstant]:
    """Fit the overheads of serving engines beyond kernels, all constants jointly."""
    result = _fit_times(published, catalog, date)
    return result + of_other_precisions(result)


# --- which parameters there are ------------------------------------------------------------------------------------


def _families(fit: str = "", key: tuple[str, ...] = ()) -> list[dict[str, str]]:
    """Rows of ``fitted_families.csv``, of one fit or of one family and constant if these are given."""
    rows = resources.rows("calibrate/fitted_families.csv")
    return [row for row in rows if fit in ("", row["fit"]) and key in ((), (row["family"], row["constant"]))]


def family_parameters(fit: str, plans: PublishedPlans, entries: published_errors.Errors) -> list[fitter.Parameter]:
    """Parameters of a fit by ``fitted_families.csv``: one for each group of eight rows or more, general ones first."""
    columns = {
        "software": entries.software,
        "generation": entries.generation,
        "precision": np.array(published_errors.stored_precision(plans), dtype=object)[entries.plan],
    }
    parameters: list[fitter.Parameter] = []
    for row in _families(fit):
        in_family = _named_software(entries.software, row["software"])
        in_family &= entries.experts | (row["rows"] == "")
        if entries.num_rows(in_family) < fitter.FEWEST_ROWS:
            continue
        parameter_of: dict[tuple[tuple[str, str], ...], int] = {}
        for level in row["levels"].split(" > "):
            keys = [] if level == ANY else level.split()
            groups = list(zip(*(columns[name][in_family].tolist() for name in keys), strict=True)) if keys else [()]
            for group in sorted(set(groups)):
                named = tuple(zip(keys, group, strict=True))
                mask = np.logical_and.reduce([in_family, *(columns[name] == value for name, value in named)])
                few = entries.num_rows(mask) < fitter.FEWEST_ROWS
                if few or (parameter_of and _same_rows(keys, named, columns, in_family)):
                    continue
                general = (named[:cut] for cut in range(len(named), -1, -1))
                parent = next((parameter_of[name] for name in general if name in parameter_of), -1)
                parameter_of[named] = len(parameters)
                reference = bool(row["held_at"]) and bool(named) and named[0][1] == _reference(row["held_at"], groups)
                parameter = fitter.Parameter(
                    row["family"],
                    row["constant"],
                    **{"precision": row["precision"] or ANY, **dict(named)},
                    start=float(row["start"] or math.nan),
                    low=float(row["low"] or math.nan),
                    parent=parent,
                    fixed=reference and row["held_at"] != _MEASURED,
                )
                parameters.append(_below_measured(parameter, plans) if row["held_at"] == _MEASURED else parameter)
    return parameters


def least_value(fit: str, family: str, constant: str) -> float:
    """Lower bound of a constant in a fit if it differs from the declared one; NaN otherwise.

    >>> least_value("training", "experts", "product_slowdown")
    1.0
    """
    named = _families(fit, (family, constant))
    return max((float(row["low"]) for row in named if row["low"]), default=math.nan)


def without_reference(fit: str, parameters: Sequence[fitter.Parameter], entries: published_errors.Errors) -> list[int]:
    """Positions of parameters to fix at 1, as no row has the reference machines: the generation with the most rows."""
    rows = entries.generation.tolist()
    results = []
    for row in _families(fit):
        if row["held_at"] in ("", _MEASURED, *rows):
            continue
        constant = row["family"], row["constant"]
        of_constant = [at for at, parameter in enumerate(parameters) if parameter.key[::4] == constant]
        sizes = [(rows.count(parameters[at].generation), -at) for at in of_constant]
        results += [-max(sizes)[1]] if sizes else []
    return results


def _named_software(software: np.ndarray, patterns: str) -> np.ndarray:
    """Mask of the entries whose software matches the patterns and none with a leading !; blank matches all."""
    others = [pattern[1:] for pattern in patterns.split() if pattern.startswith("!")]
    wanted = [pattern for pattern in patterns.split() if not pattern.startswith("!")] or ["*"]

    def named(name: str, some: Sequence[str]) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in some)

    return np.array([named(name, wanted) and not named(name, others) for name in software.tolist()], dtype=bool)


def _below_measured(parameter: fitter.Parameter, plans: PublishedPlans) -> fitter.Parameter:
    """Kernel efficiency of a stack, at most the measured efficiency of the kernel alone."""
    key = (np.array([part], dtype=object) for part in (parameter.generation, parameter.precision, parameter.software))
    measured = float(plans.catalog.calibration.constants(parameter.family, *key)[0][parameter.constant][0, 0])
    return replace(parameter, start=_SLOWER * measured, low=_SLOWEST * measured, high=measured, centre=measured)


def _same_rows(
    keys: Sequence[str], named: Sequence[tuple[str, str]], columns: dict[str, np.ndarray], chosen: np.ndarray
) -> bool:
    """Whether a group of a software and generation holds all rows of the software."""
    if keys != ["software", "generation"]:
        return False
    return len(set(columns["generation"][chosen & (columns["software"] == named[0][1])].tolist())) < 2


def _reference(wanted: str, groups: Sequence[tuple[str, ...]]) -> str:
    """Reference group, fixed at the default: the named one, else the largest."""
    names = sorted(group[0] for group in groups)
    return wanted if wanted in names else Counter(names).most_common(1)[0][0]


def _selected(parameters: Sequence[fitter.Parameter], kept: Sequence[int]) -> list[fitter.Parameter]:
    """Subset of the parameters; children of a dropped parameter are pooled towards its parent."""
    place = {at: new for new, at in enumerate(kept)}

    def parent(at: int) -> int:
        while at >= 0 and at not in place:
            at = parameters[at].parent
        return place.get(at, -1)

    return [replace(parameters[at], parent=parent(parameters[at].parent)) for at in kept]


def _started(parameters: Sequence[fitter.Parameter], solution: fitter.Solution) -> list[fitter.Parameter]:
    """Parameters that start from a previous solution."""
    return [replace(each, start=float(value)) for each, value in zip(parameters, solution.values, strict=True)]


# --- rows of the sheet ---------------------------------------------------------------------------------------------


def _sheet_rows(
    plans: PublishedPlans,
    entries: published_errors.Errors,
    parameters: Sequence[fitter.Parameter],
    solution: fitter.Solution,
    published: Published,
    date: str,
) -> list[fitter.FittedConstant]:
    """Parameters as rows of the calibration sheet, with the published rows that they were fitted on."""
    users = published_errors.users_of(plans, entries, parameters)
    results = []
    for at, parameter in enumerate(parameters):
        mask = users[at] | np.logical_or.reduce([users[other] for other in _special(parameters, at)] or [users[at]])
        identified = bool(solution.identified[at])
        named = set(entries.row_ids[mask].tolist()) if identified else set()
        results.append(
            fitter.FittedConstant(
                *parameter.key,
                fitter.rounded(float(solution.values[at])),
                fit_set=fitter.fit_set(named, published.text["row_id"]),
                num_rows=len(named),
                date=date,
                source=_SOURCE.format(published.kind),
                kind="measured" if identified else "assumption",
                notes=_note(
                    parameter, float(solution.values[at]), bool((users[at] & _fitted_on(parameter, entries)).any())
                )
                if identified
                else _UNIDENTIFIED,
            )
        )
    return results


def _fitted_on(parameter: fitter.Parameter, entries: published_errors.Errors) -> np.ndarray:
    """Mask of the entries whose software a constant is fitted on; other software only uses it."""
    named = [_named_software(entries.software, row["software"]) for row in _families(key=parameter.key[::4])]
    return np.asarray(np.logical_or.reduce(named))


def _note(parameter: fitter.Parameter, value: float, taken_itself: bool) -> str:
    """Note on a constant that no row uses directly or that is at a bound; otherwise ""."""
    if not taken_itself:
        return _OF_OTHERS
    low, high = parameter.bounds
    place = "at_low" if value <= low + _AT_BOUND * (high - low) else "at_high" if value >= high * _NEARLY else ""
    return f"at its bound: {_families(key=parameter.key[::4])[0][place]}" if place else ""


def _special(parameters: Sequence[fitter.Parameter], general: int) -> list[int]:
    """Descendants of a parameter in the pooling tree."""
    results = [at for at, parameter in enumerate(parameters) if parameter.parent == general]
    return results + [below for at in results for below in _special(parameters, at)]


SOURCES = {"training": "published rows of the sheet training", "inference": "published rows of the sheet inference"}
"""Prefix of the source of a constant fitted on published rows, by kind."""


def _published_rows(table: Table, kind: str, memory: bool = False) -> list[int]:
    """Rows of a calibration sheet that were fitted on published runs of a kind, to their times or to their memory."""
    source, family, count = table.text("source"), table.text("family"), table.number("num_rows")
    return [
        row
        for row in range(len(table))
        if str(source[row]).startswith(SOURCES[kind])
        and count[row] > 0.0
        and str(family[row]).endswith("_memory") == memory
    ]


def training_constants(table: Table, kind: str = "training") -> list[fitter.FittedConstant]:
    """Constants of a calibration sheet that were fitted on published runs of a kind, excluding memory."""
    names = [column.name for column in fields(fitter.FittedConstant) if column.name != "date"]
    numbers = ("value", "num_rows", "error", "year")
    published = table.take(_published_rows(table, kind))
    columns = {name: (published.number(name) if name in numbers else published.text(name)).tolist() for name in names}
    columns["num_rows"] = list(map(int, columns["num_rows"]))
    return [
        fitter.FittedConstant(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)
    ]


def as_parameters(table: Table, kind: str, memory: bool = False) -> tuple[list[fitter.Parameter], list[int]]:
    """Constants fitted on published rows of a kind, as parameters for a refit, and their rows in the sheet."""
    rows = _published_rows(table, kind, memory)
    names = ("family", "constant", "generation", "precision", "software")
    text = {name: [str(word).casefold() for word in table.text(name, ANY)] for name in names}
    value = table.number("value")
    return fitter.pooled_parameters(
        [
            fitter.Parameter(
                family=text["family"][row],
                constant=text["constant"][row],
                generation=text["generation"][row],
                precision=text["precision"][row],
                software=text["software"][row],
                start=float(value[row]),
                low=least_value("memory" if memory else kind, text["family"][row], text["constant"][row]),
            )
            for row in rows
        ],
        rows,
    )
