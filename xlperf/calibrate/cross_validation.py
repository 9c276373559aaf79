"""Errors of published rows that the constants of their software were not fitted on: models, generations, software.

Models are left out one by one, all with layers of one shape together: the constants that their rows use are fitted
again without them, and they are predicted. Kernels keep their constants: they were fitted on measurements of kernels
alone. A refit is cheap because the response of every row to every constant is sampled once, one constant at a time,
and taken to be additive in the logarithm of the time; the rows left out are then predicted in full. Which constants a
software has is not chosen again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from xlperf.base.arrays import Array
from xlperf.calibrate.comparison import MEMORY
from xlperf.calibrate.fit import SOURCES, as_parameters, belongs_to, read_measured, software_of
from xlperf.calibrate.fit_kernels import fit_kernels
from xlperf.calibrate.fitted_constants import calibration_table, joined_tables
from xlperf.calibrate.fitter import FEWEST_ROWS, SPREADS, Parameter, Problem, solve
from xlperf.calibrate.published import Published, PublishedPlans
from xlperf.calibrate.published_errors import (
    QUANTITIES,
    Errors,
    aligned,
    changed,
    colours_of,
    errors_of,
    log_errors,
    may_be_fitted,
    plans_to_fit,
    published_problem,
    taken,
    users_of,
)
from xlperf.catalog.calibration import ANY, SOFTWARE_FAMILIES, declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table

_FACTORS = (0.5, 0.75, 1.0, 1.35, 2.0)
_STEPS = (-0.4, -0.2, 0.0, 0.2, 0.4)

Step = Callable[[str], None]


@dataclass(frozen=True)
class CrossValidation:
    """Errors of published rows, and of the rows that use each constant: calibration row -> median, rows."""

    errors: Errors
    of_constant: Mapping[int, tuple[float, int]]


@dataclass(frozen=True)
class _Responses:
    """Constants that were fitted on published rows, and how the errors of rows answer to them.

    ``row`` is where each stands in the calibration sheet, ``group`` which entries look it up, ``users`` which of
    them answer to it; ``change`` is the change of
    their errors at each of ``points``, (constants, points, entries).
    """

    parameters: list[Parameter]
    row: list[int]
    group: np.ndarray
    users: np.ndarray
    points: Array
    change: Array

    def of(self, entries: np.ndarray) -> _Responses:
        """The responses of some of the entries."""
        return replace(
            self, group=self.group[:, entries], users=self.users[:, entries], change=self.change[:, :, entries]
        )

    def problem(self, entries: Errors, chosen: np.ndarray) -> Problem:
        """The sum of the responses as residuals of some entries."""
        which = [np.flatnonzero(users) for users in self.users]
        changes = [change[:, users] for change, users in zip(self.change, which, strict=True)]

        def residuals(trials: Array) -> Array:
            found = np.repeat(entries.fitted[None, :], len(trials), axis=0)
            for values, errors in zip(trials, found, strict=True):
                for value, points, users, change in zip(values, self.points, which, changes, strict=True):
                    below = min(max(int(np.searchsorted(points, value, side="right")) - 1, 0), len(points) - 2)
                    width = points[below + 1] - points[below]
                    share = (value - points[below]) / width if width > 0.0 else 0.0
                    errors[users] += (1.0 - share) * change[below] + share * change[below + 1]
            return found

        return Problem(residuals, entries.weights(chosen), self.users, colours_of(self.parameters))


def cross_validated(
    published: Published, catalog: Catalog, step: Step | None = None, quantities: Sequence[str] = QUANTITIES
) -> CrossValidation:
    """Errors of published rows with and without their model in the fit.

    Parameters
    ----------
    published : Published
        Rows that the constants of the catalog were fitted on; those of the papers are left out.
    catalog : Catalog
        With the calibration that was fitted on all of them.
    step : callable, optional
        Called with a word before each evaluation of all rows.
    quantities : sequence of str
        What is compared: times, or memory.

    Returns
    -------
    CrossValidation
        In the order of the rows; the same rows give the same errors.
    """
    say = step if step is not None else _nothing
    plans = plans_to_fit(published, catalog)
    entries = errors_of(plans, quantities)
    if not len(entries):
        return CrossValidation(entries, {})
    responses = _responses(plans, entries, say)
    errors = replace(entries, by_models=_left_out(plans, entries, responses, entries.model, say))
    sizes = np.abs(np.expm1(errors.by_models))
    of_constant = {
        row: (float(np.nanmedian(sizes[users])), errors.num_rows(users))
        for row, users in zip(responses.row, responses.users, strict=True)
        if not np.isnan(sizes[users]).all()
    }
    return CrossValidation(errors, of_constant)


def refitted(published: Published, catalog: Catalog) -> Catalog:
    """The catalog with the constants of software fitted again to some published rows, all together.

    Parameters
    ----------
    published : Published
        Rows to fit; those of the papers are left out.
    catalog : Catalog
        With constants to start from; those that fewer than eight rows inform about stay as they are.
    """
    plans = plans_to_fit(published, catalog)
    entries = errors_of(plans)
    if not len(entries):
        return catalog
    values, _ = _refitted(entries, _responses(plans, entries, _nothing), np.full(len(entries), True))
    return catalog.with_tables([changed(catalog.tables["calibration"], values)])


def _nothing(_: str) -> None:
    return None


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


def _responses(plans: PublishedPlans, entries: Errors, say: Step) -> _Responses:
    """Constants that were fitted on published rows of this kind, with the response of the rows that use them."""
    table = plans.catalog.tables["calibration"]
    parameters, rows = as_parameters(table, entries.kind, MEMORY in entries.quantity)
    points = np.array([trial_values(one.family, one.constant, one.first) for one in parameters]).reshape(-1, 5)
    parameters = [
        replace(one, low=float(low), high=float(high))
        for one, low, high in zip(parameters, points[:, 0], points[:, -1], strict=True)
    ]
    colours, users = colours_of(parameters), users_of(plans, entries, parameters)
    problem = published_problem(plans, entries, parameters, np.full(len(entries), True))
    change = np.zeros((*points.shape, len(entries)))
    for colour in dict.fromkeys(colours.tolist()):
        group = np.flatnonzero(colours == colour)
        for point in range(points.shape[1]):
            say(f"{parameters[group[0]].family} {parameters[group[0]].constant}")
            trial = np.array([one.first for one in parameters])
            trial[group] = points[group, point]
            change[group, point] = np.nan_to_num(problem.residuals(trial[None, :])[0] - entries.fitted) * users[group]
    return _Responses(parameters, rows, users, users & (np.abs(change).max(axis=1) > 0.0), points, change)


def _left_out(plans: PublishedPlans, entries: Errors, responses: _Responses, folds: np.ndarray, say: Step) -> Array:
    """Errors of the rows of each fold under constants that were fitted without it."""
    found = np.full(len(entries), math.nan)
    table, fitted = plans.catalog.tables["calibration"], may_be_fitted(plans, entries)
    for fold in sorted(set(folds.tolist())):
        say("folds")
        own = folds == fold
        values, gone = _refitted(entries, responses, fitted & ~own, own)
        kept = np.setdiff1d(np.arange(len(table)), gone)
        some, errors = taken(plans, entries, own)
        catalog = some.catalog.with_tables([changed(table, values).take(kept)])
        found[own] = aligned(log_errors(replace(some, catalog=catalog), set(entries.quantity.tolist()))[0], errors)
    return found


def _refitted(
    entries: Errors, responses: _Responses, chosen: np.ndarray, left_out: np.ndarray | None = None
) -> tuple[dict[int, float], list[int]]:
    """Values of the constants by row of the sheet fitted to some entries, and those that these are too few for.

    Where a few entries are left out, only the constants that one of them uses are fitted again, from where they are.
    """
    few = [entries.num_rows(group & chosen) < FEWEST_ROWS for group in responses.group]
    spreads: Sequence[float] = SPREADS
    concerned = np.full(len(responses.parameters), True)
    if left_out is not None:
        spreads, concerned = SPREADS[-1:], (responses.users & left_out).any(axis=1)
        chosen = chosen & responses.users[concerned].any(axis=0)
    parameters = [
        replace(one, fixed=is_few or not used, start=min(max(one.first, one.low), one.high))
        for one, is_few, used in zip(responses.parameters, few, concerned.tolist(), strict=True)
    ]
    rows = np.flatnonzero(chosen)
    problem = responses.of(rows).problem(entries.take(rows), np.full(len(rows), True))
    values = solve(problem, parameters, spreads=spreads).values
    gone = [
        row for one, row, is_few in zip(parameters, responses.row, few, strict=True) if is_few and one.software != ANY
    ]
    return dict(zip(responses.row, values.tolist(), strict=True)), gone


# --- a generation or a software left out ---------------------------------------------------------------------------


def rows_of(published: Published, catalog: Catalog, name: str) -> Published:
    """Rows of a generation of accelerators or of a software.

    Parameters
    ----------
    published : Published
        Rows of one kind.
    catalog : Catalog
        Which accelerator is of which generation.
    name : str
        Generation, or software as plans call it; case does not matter.
    """
    wanted = name.casefold()
    if wanted in generations(catalog):
        table = catalog.tables["accelerators"]
        own = {
            chip.casefold()
            for chip, kind in zip(table.text("accelerator").tolist(), table.text("generation").tolist(), strict=True)
            if kind.casefold() == wanted
        }
        return published.take([row for row, gpu in enumerate(published.text["gpu"]) if gpu.casefold() in own])
    used = software_of(published, catalog)
    return published.take([row for row, software in enumerate(used) if software == wanted])


def generations(catalog: Catalog) -> set[str]:
    """Generations of the accelerators of a catalog, casefolded."""
    return {str(kind).casefold() for kind in catalog.tables["accelerators"].text("generation")}


def left_out(catalog: Catalog, name: str, path: str | Path | None = None) -> Catalog:
    """The catalog with a calibration that has seen no measurement of a generation or of a software.

    Kernels are fitted again without a generation. Of the software's constants those of what is left out go, the
    others are fitted again without its rows; software that is unknown has the median of what is known.

    Parameters
    ----------
    catalog : Catalog
        With the calibration that was fitted on everything.
    name : str
        Generation of accelerators, or software as plans call it.
    path : path-like, optional
        Workbook of measurements; default: the shipped ``validation.xlsx``.

    Raises
    ------
    InputError
        When no accelerator is of that generation and no run used that software.
    """
    kept = read_measured(path).without(name, catalog)
    wanted = name.casefold()
    software = wanted not in generations(catalog)
    table = catalog.tables["calibration"]
    kernels = not_published(table)
    if not software:
        documented = table.take([row for row in kernels if table.text("kind")[row] == "datasheet"])
        base = joined_tables(documented, calibration_table(fit_kernels(kept.kernels, catalog, "")))
    else:
        base = table.take(kernels)
    others = [row for row in range(len(table)) if row not in set(kernels)]
    remaining = [row for row in others if not _concerns(table, row, wanted, software)]
    known = catalog.with_tables([joined_tables(base, table.take(remaining))])
    for rows in (kept.training, kept.inference):
        known = refitted(rows, known)
    return known.with_tables([_with_medians(known.tables["calibration"])])


def not_published(table: Table) -> list[int]:
    """Rows of a calibration sheet that do not come from published runs: kernels and documented settings."""
    source = table.text("source")
    return [row for row in range(len(table)) if not str(source[row]).startswith(tuple(SOURCES.values()))]


def _concerns(table: Table, row: int, name: str, software: bool) -> bool:
    if software:
        return belongs_to(str(table.text("software", ANY)[row]).casefold(), name)
    return str(table.text("generation", ANY)[row]).casefold() == name


def _with_medians(table: Table) -> Table:
    """What holds for any software, as the median of the software that has constants of its own."""
    value = np.array(table["value"], dtype=np.float64)
    texts: dict[str, Sequence[str]] = {
        name: [str(text).casefold() for text in table.text(name, ANY)]
        for name in ("family", "constant", "generation", "software")
    }
    published = set(range(len(table))) - set(not_published(table))
    for row in sorted(published):
        if texts["family"][row] not in SOFTWARE_FAMILIES or texts["software"][row] != ANY:
            continue
        same = [
            other
            for other in published
            if texts["software"][other] != ANY
            and all(texts[name][other] == texts[name][row] for name in ("family", "constant", "generation"))
        ]
        if same:
            value[row] = np.median(value[same])
    return Table("calibration", {**table.columns, "value": value}, table.place)
