"""Training stacks and engines on accelerators with few published runs: partial pooling towards any machine.

Rows of the groups ``other-*`` are fitted separately from NVIDIA rows and on top of their constants: the overheads of a
vendor line (cdna, tpu, gaudi, trainium) beyond them. ``machine_software.csv`` lists the fitted constants. A constant
that the rows do not identify equals its value for any machine. Serving on TPU had no rows when the model was made; it
is fitted on rows read later (group ``other-tpu-later``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from xlperf.base import resources
from xlperf.base.arrays import Array
from xlperf.base.units import factor
from xlperf.calibrate.fit import Measured, accelerators_of
from xlperf.calibrate.fit_machine_kernels import fit_machine_kernels
from xlperf.calibrate.fit_unmeasured import and_constants
from xlperf.calibrate.fitter import (
    FEWEST_ROWS,
    FittedConstant,
    Parameter,
    Problem,
    Solution,
    fit_set,
    rounded,
    solve,
    without_repeats,
)
from xlperf.calibrate.published_errors import (
    Errors,
    colours_of,
    errors_of,
    plans_of,
    published_problem,
    rows_of_machines,
    taken,
    users_of,
)
from xlperf.catalog.calibration import ANY, SOFTWARE_FAMILIES, declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.measurements.kernels import machine_lines
from xlperf.measurements.published import Published, PublishedPlans

SOURCE = "published rows of other machines in validation.xlsx"
"""Prefix of the source of a constant fitted on published rows of machines by line."""


@dataclass(frozen=True)
class _Rows:
    """Published rows of one kind as plans, with their errors, vendor lines and the row order of their sheet."""

    published: Published
    plans: PublishedPlans
    entries: Errors
    line: np.ndarray
    order: Sequence[str]


def machine_constants(measured: Measured, catalog: Catalog, date: str) -> tuple[Catalog, list[FittedConstant]]:
    """Constants of accelerators fitted by line, kernels included, and the catalog without such constants."""
    table, lines = catalog.tables["calibration"], machine_lines(catalog)
    names = {*lines, *lines.values()}
    generation = table.text("generation", ANY)
    kept = [row for row in range(len(table)) if str(generation[row]).casefold() not in names]
    shared = catalog.with_tables([table.take(kept)])
    done = fit_machine_kernels(measured.kernels, shared, date)
    done += fit_machines((measured.training, measured.inference), and_constants(shared, done), date)
    return shared, without_repeats(done)


def accelerators_by_line(catalog: Catalog) -> set[str]:
    """Accelerators, casefolded, of generations that are fitted by line."""
    return {chip for kind in machine_lines(catalog) for chip in accelerators_of(kind, catalog)}


def fit_machines(published: Sequence[Published], catalog: Catalog, date: str) -> list[FittedConstant]:
    """Fit the overheads of stacks and engines on each vendor line, beyond kernels and pooled constants.

    Rows of other machines are ignored, and a line without rows gets no constants. ``catalog`` has the calibration that
    the lines are pooled towards. The same rows give the same constants in the same order.
    """
    rows = [_rows(one, catalog) for one in published if len(rows_of_machines(one))]
    results: list[FittedConstant] = []
    for line in sorted(set(machine_lines(catalog).values())):
        results += _line_constants(rows, line, catalog, date)
    return _completed(results, catalog, date)


def _line_constants(rows: Sequence[_Rows], line: str, catalog: Catalog, date: str) -> list[FittedConstant]:
    own = [_of_line(one, line) for one in rows if (one.line == line).any()]
    parameters = _parameters(own, line, catalog) if own else []
    if not parameters:
        return []
    return _sheet_rows(own, parameters, solve(_problem(own, parameters), parameters), date)


def _completed(constants: Sequence[FittedConstant], catalog: Catalog, date: str) -> list[FittedConstant]:
    """Constants extended to lines without rows and to other stacks on a line."""
    return [*constants, *_of_other_lines(constants, catalog, date), *_of_other_stacks(constants)]


def _of_line(rows: _Rows, line: str) -> _Rows:
    plans, entries = taken(rows.plans, rows.entries, rows.line == line)
    return _Rows(plans.published, plans, entries, rows.line[rows.line == line], rows.order)


def _rows(published: Published, catalog: Catalog) -> _Rows:
    own, lines = rows_of_machines(published), machine_lines(catalog)
    plans = plans_of(own, catalog)
    entries = errors_of(plans)
    line = np.array([lines.get(kind, "") for kind in entries.generation.tolist()], dtype=object)
    return _Rows(own, plans, entries, line, published.text["row_id"])


def _parameters(rows: Sequence[_Rows], line: str, catalog: Catalog) -> list[Parameter]:
    """Parameters of a line and of its generations with enough rows, starting from the current values."""
    results: list[Parameter] = []
    kinds = {one.entries.kind for one in rows}
    for row in resources.rows("calibrate/machine_software.csv"):
        if line not in row["lines"].split() or not kinds & set(row["kinds"].split()):
            continue
        stack = _stack(rows, row["family"], row["constant"], catalog)
        now = _today(row, line, stack, catalog)
        general = Parameter(
            row["family"],
            row["constant"],
            line,
            row["precision"],
            stack,
            start=now,
            centre=now,
            pull=float(row["pull"]),
            low=float(row["low"] or math.nan),
            high=float(row["high"] or math.nan),
        )
        parent = len(results)
        results.append(general)
        special = _generations(rows) if row["level"] == "generation" else []
        results += [replace(general, generation=kind, parent=parent) for kind in special]
    return results


def _today(row: Mapping[str, str], line: str, stack: str, catalog: Catalog) -> float:
    """Current value for a vendor line, or the geometric mean over its generations."""
    table, names = catalog.calibration.table, (row["family"], row["constant"])
    own = [
        at
        for at, of in enumerate(zip(table.text("family").tolist(), table.text("constant").tolist(), strict=True))
        if of == names
    ]
    kinds = table.text("generation", ANY)[own]
    if row["start"] == "mean" and len(own) and (kinds != ANY).all():
        unit = factor(declared_constants()[row["family"]][row["constant"]].unit)
        return math.exp(float(np.mean(np.log(table.number("value")[own] * unit))))
    key = [np.array([part], dtype=object) for part in (line, row["precision"], stack)]
    return float(catalog.calibration.constants(row["family"], *key)[0][row["constant"]][0, 0])


def _stack(rows: Sequence[_Rows], family: str, constant: str, catalog: Catalog) -> str:
    """The single software measured on a line, if it has separate constants; otherwise any."""
    kind = "training" if family.startswith("training") else "inference"
    names = {name for one in rows if one.entries.kind == kind for name in one.entries.software.tolist()}
    if family not in SOFTWARE_FAMILIES or len(names) != 1:
        return ANY
    own = catalog.calibration.table
    keys = zip(
        *(own.text(name, ANY).tolist() for name in ("family", "constant", "generation", "software")), strict=True
    )
    (name,) = names
    return name if (family, constant, ANY, name) in set(keys) else ANY


def _generations(rows: Sequence[_Rows]) -> list[str]:
    """Generations of a line with enough published rows, if the line has several."""
    count = Counter(kind for one in rows for kind in one.entries.generation.tolist())
    return sorted(kind for kind, number in count.items() if FEWEST_ROWS <= number < count.total())


def _problem(rows: Sequence[_Rows], parameters: Sequence[Parameter]) -> Problem:
    """Training and inference rows as one least-squares problem."""
    problems = [published_problem(one.plans, one.entries, parameters, np.full(len(one.entries), True)) for one in rows]

    def residuals(trials: Array) -> Array:
        return np.concatenate([problem.residuals(trials) for problem in problems], axis=1)

    weights = np.concatenate([problem.weights for problem in problems])
    return Problem(residuals, weights, _users(rows, parameters), colours_of(parameters), step=0.05)


def _users(rows: Sequence[_Rows], parameters: Sequence[Parameter]) -> np.ndarray:
    """Entries that depend on each parameter, (parameters, entries); stack constants apply to runs of their kind
    alone.
    """
    kinds = {"training": ("serving",), "inference": ("training",)}
    results = []
    for one in rows:
        others = [parameter.family.startswith(kinds[one.entries.kind]) for parameter in parameters]
        results.append(users_of(one.plans, one.entries, parameters) & ~np.array(others)[:, None])
    return np.concatenate(results, axis=1)


def _sheet_rows(
    rows: Sequence[_Rows], parameters: Sequence[Parameter], solution: Solution, date: str
) -> list[FittedConstant]:
    names = [name for one in rows for name in one.entries.row_ids.tolist()]
    users = _users(rows, parameters)
    results = []
    for at, one in enumerate(parameters):
        if not solution.identified[at]:
            continue
        below = [other for other, special in enumerate(parameters) if special.parent == at]
        own = np.flatnonzero(np.logical_or.reduce([users[at], *(users[other] for other in below)]))
        named = {names[row] for row in own.tolist()}
        results.append(
            FittedConstant(
                one.family,
                one.generation,
                one.precision,
                one.software,
                one.constant,
                rounded(float(solution.values[at]) / factor(one.declared.unit)),
                " ".join(text for text in (fit_set(named, sheet.order) for sheet in rows) if text),
                len(named),
                rounded(float(np.median(np.abs(np.expm1(solution.residuals[own]))))),
                date,
                SOURCE,
                notes=_said(one, float(solution.values[at])),
            )
        )
    return results


def _said(one: Parameter, value: float) -> str:
    """Note on a constant: the pooling target, and the meaning of a bound that it reaches."""
    words = f"pooled towards {'its line' if one.parent >= 0 else 'what holds for any machine'}"
    low, high = one.bounds
    if value <= low or value >= high:
        words += "; at its bound: " + ("nothing beyond the kernels shows" if value <= low else "all of it")
    return words


def _of_other_lines(constants: Sequence[FittedConstant], catalog: Catalog, date: str) -> list[FittedConstant]:
    """Constants of lines without rows of a kind: the mean of the value for any machine and the fitted lines."""
    more = []
    for row in resources.rows("calibrate/machine_software.csv"):
        if row["unmeasured"] != "mean":
            continue
        lines = row["lines"].split()
        known = {
            one.generation: one.value
            for one in constants
            if (one.family, one.constant) == (row["family"], row["constant"]) and one.generation in lines
        }
        for line in (name for name in lines if name not in known):
            today = _today(row, line, ANY, catalog) / factor(declared_constants()[row["family"]][row["constant"]].unit)
            mean = math.exp(float(np.mean(np.log([today, *known.values()]))))
            more.append(
                FittedConstant(
                    row["family"],
                    line,
                    row["precision"],
                    ANY,
                    row["constant"],
                    rounded(mean),
                    "",
                    0,
                    math.nan,
                    date,
                    SOURCE,
                    kind="assumption",
                    notes="not measured: mean of any machine and of the lines that were fitted",
                )
            )
    return more


def _of_other_stacks(constants: Sequence[FittedConstant]) -> list[FittedConstant]:
    """Constants of unmeasured stacks on a line, copied from its fitted stack."""
    return [
        replace(
            one, software=ANY, fit_set="", num_rows=0, error=math.nan, kind="assumption", notes=f"as {one.software}"
        )
        for one in constants
        if one.software != ANY
    ]
