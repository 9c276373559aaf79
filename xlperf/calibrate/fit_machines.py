"""Constants for accelerators, generations, software and precisions with few published runs, or with none.

Rows of the groups ``other-*`` give the overheads of a vendor line (cdna, tpu, gaudi, trainium), listed in
``machine_software.csv`` and pooled towards any machine. Software without constants of its own takes those of all
software, and a kernel slowdown from leave-one-stack-out predictions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np

from xlperf.base import resources
from xlperf.base.arrays import Array, added
from xlperf.base.units import factor
from xlperf.calibrate import fitter, published_errors
from xlperf.calibrate.pooled_kernels import fit_machine_kernels, pooling_words
from xlperf.catalog.calibration import ANY, SOFTWARE_FAMILIES, declared_constants, same_kernels
from xlperf.catalog.catalog import Catalog
from xlperf.engine.software import with_software_defaults
from xlperf.measurements.comparison import STEP_TIME
from xlperf.measurements.kernels import machine_lines
from xlperf.measurements.published import Published, PublishedPlans

STACK, EXPERTS = "training_software", "experts"
SLOWDOWN = STACK, "kernel_slowdown"  # constant that unmeasured software needs beside the constants of all software
_APART = ("nanotron*", "*-simumax")
"""Software excluded from the slowdown of unmeasured software: a sweep of good and bad mappings, in which the slowdown
also absorbs network effects, and runs on one slow machine.
"""
_UNMEASURED = "software that nobody measured"
_TRIED = (1.0, 1.1, 1.25, 1.5, 2.0)
_NEEDED = (
    "mean of what measured software needs beside the constants of all software, for software without one of its own"
)
_QUANTISED = ("fp8", "int8", "fp4", "int4")  # storage precisions of expert weights below 16 bits


def of_other_precisions(rows: Sequence[fitter.FittedConstant]) -> list[fitter.FittedConstant]:
    """Expert constants of unmeasured precisions below 16 bits: the mean of the measured ones."""
    groups: dict[str, list[fitter.FittedConstant]] = {}
    for row in rows:
        if row.family == "serving_experts" and (row.generation, row.software) == (ANY, ANY):
            groups.setdefault(row.constant, []).append(row)
    results = []
    for of_constant in groups.values():
        quantised = [row for row in of_constant if row.precision in _QUANTISED]
        if len(quantised) < 2 or any(row.precision == ANY for row in of_constant):
            continue
        value = fitter.rounded(math.exp(added(math.log(row.value) for row in quantised) / len(quantised)))
        missing = [name for name in _QUANTISED if name not in {row.precision for row in quantised}]
        results += [
            quantised[0].unmeasured("mean of the other precisions below 16 bits", precision=name, value=value)
            for name in missing
        ]
    return results


def kernels_of_other_generations(rows: Sequence[fitter.FittedConstant]) -> list[fitter.FittedConstant]:
    """Mean kernel efficiencies of a stack, for generations without rows of it."""
    groups: dict[tuple[str, str, str, str], list[fitter.FittedConstant]] = {}
    for row in rows:
        if row.family not in (STACK, EXPERTS) and row.generation != ANY:
            groups.setdefault((row.family, row.precision, row.software, row.constant), []).append(row)
    notes = "mean of the generations that were fitted"
    return [_of_any(some, added(row.value for row in some) / len(some), notes) for some in groups.values()]


def _of_any(some: Sequence[fitter.FittedConstant], value: float, notes: str) -> fitter.FittedConstant:
    """The first of some constants with a value for any generation, fitted on the rows of them all."""
    fitted, number = " ".join(row.fit_set for row in some if row.fit_set), sum(row.num_rows for row in some)
    value = fitter.rounded(value)
    return replace(some[0], generation=ANY, value=value, fit_set=fitted, num_rows=number, notes=notes)


def slowdowns_of_other_generations(rows: Sequence[fitter.FittedConstant]) -> list[fitter.FittedConstant]:
    """Slowdown of software on other generations: the mean of its own slowdown and of the median of all software."""
    by_software: dict[str, dict[str, fitter.FittedConstant]] = {}
    for row in rows:
        if (row.family, row.constant) == SLOWDOWN and not _apart(row.software):
            by_software.setdefault(row.software, {})[row.generation] = row
    logs = {}
    for name, some in by_software.items():
        chosen = [some[ANY]] if ANY in some else list(some.values())
        logs[name] = added(math.log(row.value) for row in chosen) / len(chosen)
    middle = float(np.median(list(logs.values()))) if logs else 0.0
    notes = "half way between other generations and the median of software"
    pooled = {name: list(some.values()) for name, some in by_software.items() if ANY not in some}
    return [_of_any(some, math.exp(0.5 * (logs[name] + middle)), notes) for name, some in pooled.items()]


def _apart(software: str) -> bool:
    return software == ANY or any(fnmatchcase(software, pattern) for pattern in _APART)


def of_other_software(
    published: Published, catalog: Catalog, rows: Sequence[fitter.FittedConstant]
) -> list[fitter.FittedConstant]:
    """Kernel slowdown of unmeasured software: at this value the mean over measured stacks, each predicted with the
    constants of all software, of their median log errors is zero. Empty if a slowdown of all software was fitted.
    """
    slowdowns = [row for row in rows if (row.family, row.constant) == SLOWDOWN]
    stacks = {row.software for row in slowdowns if not _apart(row.software)}
    if not stacks or any(row.software == ANY for row in slowdowns):
        return []

    def needed(slowdown: float) -> fitter.FittedConstant:
        return slowdowns[0].unmeasured(_NEEDED, generation=ANY, software=ANY, value=slowdown)

    plans = published_errors.plans_to_fit(published, catalog)
    entries = published_errors.errors_of(plans, (STEP_TIME,))
    alike = [same_kernels(name) in stacks for name in entries.software.tolist()]
    chosen = np.array(alike, dtype=bool) & published_errors.may_be_fitted(plans, entries)
    plans, entries = published_errors.taken(plans, entries, chosen)
    means = []
    for slowdown in _TRIED:
        result = needed(slowdown)
        tried = replace(_without_name(plans), catalog=fitter.and_constants(plans.catalog, [result]))
        errors, _ = published_errors.log_errors(tried, (STEP_TIME,))
        medians = _medians(entries.software, entries.family, published_errors.aligned(errors, entries))
        means.append(added(medians) / len(medians))
    value = fitter.rounded(math.exp(float(np.interp(0.0, means, [math.log(slowdown) for slowdown in _TRIED]))))
    return [needed(value)]


def _without_name(plans: PublishedPlans) -> PublishedPlans:
    """Plans, with what their software does by default, of software that has no constants of its own."""
    models = plans.catalog.rows("models", plans.plans.text("model"), plans.plans, "model")
    table = with_software_defaults(plans.plans, plans.catalog, models)
    software = np.full(len(table), _UNMEASURED, dtype=object)
    return replace(plans, plans=table.with_columns({"software": software}))


def _medians(software: np.ndarray, family: np.ndarray, errors: Array) -> list[float]:
    """Median error of each software; a model on an accelerator counts once."""
    results = []
    for name in sorted(set(software.tolist())):
        of_software = software == name
        _, at, count = np.unique(family[of_software].astype(str), return_inverse=True, return_counts=True)
        results.append(published_errors.weighted_quantile(errors[of_software], 1.0 / count[at], 0.5))
    return results


MACHINE_SOURCE = "published rows of other machines in validation.xlsx"
"""Prefix of the source of a constant fitted on published rows of machines by line."""


class _Rows(NamedTuple):
    """Published rows of one kind as plans, with their errors and the row order of their sheet."""

    plans: PublishedPlans
    entries: published_errors.Errors
    order: Sequence[str]


def machine_constants(
    measured: published_errors.Measured, catalog: Catalog, date: str
) -> tuple[Catalog, list[fitter.FittedConstant]]:
    """Constants of accelerators fitted by line, kernels included, and the catalog without such constants."""
    table, lines = catalog.tables["calibration"], machine_lines(catalog)
    names = {*lines, *lines.values()}
    generation = table.text("generation", ANY)
    kept = [row for row in range(len(table)) if str(generation[row]).casefold() not in names]
    shared = catalog.with_tables([table.take(kept)])
    done = fit_machine_kernels(measured.kernels, shared, date)
    done += fit_machines((measured.training, measured.inference), fitter.and_constants(shared, done), date)
    return shared, fitter.without_repeats(done)


def accelerators_by_line(catalog: Catalog) -> set[str]:
    """Accelerators, casefolded, of generations that are fitted by line."""
    return {chip for kind in machine_lines(catalog) for chip in published_errors.accelerators_of(kind, catalog)}


def fit_machines(published: Sequence[Published], catalog: Catalog, date: str) -> list[fitter.FittedConstant]:
    """Fit the overheads of stacks and engines on each vendor line, pooled towards the constants of ``catalog``."""
    sheets: list[_Rows] = []
    for published_rows in published:
        if len(of_machines := published_errors.rows_of_machines(published_rows)):
            plans = published_errors.plans_of(of_machines, catalog)
            sheets.append(_Rows(plans, published_errors.errors_of(plans), published_rows.text["row_id"]))
    results: list[fitter.FittedConstant] = []
    for line in sorted(set(machine_lines(catalog).values())):
        masks = [published_errors.vendor_lines(each.entries, catalog) == line for each in sheets]
        rows = [
            _Rows(*published_errors.taken(each.plans, each.entries, mask), each.order)
            for each, mask in zip(sheets, masks, strict=True)
            if mask.any()
        ]
        parameters = _parameters(rows, line, catalog) if rows else []
        if parameters:
            results += _sheet_rows(rows, parameters, fitter.solve(_problem(rows, parameters), parameters), date)
    # Stacks that no row of a line has take the constants of its fitted stack.
    copies = [row.unmeasured(f"as {row.software}", software=ANY) for row in results if row.software != ANY]
    return [*results, *_of_other_lines(results, catalog, date), *copies]


def _parameters(rows: Sequence[_Rows], line: str, catalog: Catalog) -> list[fitter.Parameter]:
    """Parameters of a line and of its generations with enough rows, starting from the current values."""
    results: list[fitter.Parameter] = []
    kinds = {sheet.entries.kind for sheet in rows}
    for row in resources.rows("calibrate/machine_software.csv"):
        if line not in row["lines"].split() or not kinds & set(row["kinds"].split()):
            continue
        stack = _stack(rows, row["family"], row["constant"], catalog)
        now = _current_value(row, line, stack, catalog)
        general = fitter.Parameter(
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
        if row["level"] == "generation":  # generations of a line with enough rows, if the line has several
            count = Counter(kind for sheet in rows for kind in sheet.entries.generation.tolist())
            results += [
                replace(general, generation=kind, parent=parent)
                for kind in sorted(count)
                if fitter.FEWEST_ROWS <= count[kind] < count.total()
            ]
    return results


def _current_value(row: Mapping[str, str], line: str, stack: str, catalog: Catalog) -> float:
    """Current value for a vendor line, or the geometric mean over its generations."""
    table, names = catalog.tables["calibration"], (row["family"], row["constant"])
    of_row = zip(table.text("family").tolist(), table.text("constant").tolist(), strict=True)
    candidates = [at for at, of in enumerate(of_row) if of == names]
    kinds = table.text("generation", ANY)[candidates]
    if row["start"] == "mean" and len(candidates) and (kinds != ANY).all():
        unit = factor(declared_constants()[row["family"]][row["constant"]].unit)
        return math.exp(float(np.mean(np.log(table.number("value")[candidates] * unit))))
    key = [np.array([part], dtype=object) for part in (line, row["precision"], stack)]
    return float(catalog.calibration.constants(row["family"], *key)[0][row["constant"]][0, 0])


def _stack(rows: Sequence[_Rows], family: str, constant: str, catalog: Catalog) -> str:
    """The single software measured on a line, if it has separate constants; otherwise any."""
    kind = "training" if family.startswith("training") else "inference"
    names = {name for sheet in rows if sheet.entries.kind == kind for name in sheet.entries.software.tolist()}
    if family not in SOFTWARE_FAMILIES or len(names) != 1:
        return ANY
    table = catalog.tables["calibration"]
    names_of_keys = ("family", "constant", "generation", "software")
    keys = zip(*(table.text(name, ANY).tolist() for name in names_of_keys), strict=True)
    (name,) = names
    return name if (family, constant, ANY, name) in set(keys) else ANY


def _problem(rows: Sequence[_Rows], parameters: Sequence[fitter.Parameter]) -> fitter.Problem:
    """Training and inference rows as one least-squares problem."""
    problems = [published_errors.published_problem(sheet.plans, sheet.entries, parameters) for sheet in rows]

    def residuals(trials: Array) -> Array:
        return np.concatenate([problem.residuals(trials) for problem in problems], axis=1)

    weights = np.concatenate([problem.weights for problem in problems])
    colours = published_errors.colours_of(parameters)
    return fitter.Problem(residuals, weights, _users(rows, parameters), colours, step=0.05)


def _users(rows: Sequence[_Rows], parameters: Sequence[fitter.Parameter]) -> np.ndarray:
    """Entries that depend on each parameter, (parameters, entries); stack constants: runs of their kind alone."""
    kinds = {"training": ("serving",), "inference": ("training",)}
    results = []
    for sheet in rows:
        others = [parameter.family.startswith(kinds[sheet.entries.kind]) for parameter in parameters]
        results.append(published_errors.users_of(sheet.plans, sheet.entries, parameters) & ~np.array(others)[:, None])
    return np.concatenate(results, axis=1)


def _sheet_rows(
    rows: Sequence[_Rows], parameters: Sequence[fitter.Parameter], solution: fitter.Solution, date: str
) -> list[fitter.FittedConstant]:
    names = [name for sheet in rows for name in sheet.entries.row_ids.tolist()]
    users = _users(rows, parameters)
    results = []
    for at, parameter in enumerate(parameters):
        if not solution.identified[at]:
            continue
        below = [other for other, special in enumerate(parameters) if special.parent == at]
        informing = np.flatnonzero(np.logical_or.reduce([users[at], *(users[other] for other in below)]))
        named = {names[row] for row in informing.tolist()}
        fitted = " ".join(text for text in (fitter.fit_set(named, sheet.order) for sheet in rows) if text)
        error = fitter.rounded(float(np.median(np.abs(np.expm1(solution.residuals[informing])))))
        value, (low, high) = float(solution.values[at]), parameter.bounds
        reached = "nothing beyond the kernels shows" if value <= low else "all of it" if value >= high else ""
        notes = pooling_words(parameter, reached)
        inside = fitter.rounded(value / factor(parameter.declared.unit))
        results.append(
            fitter.FittedConstant(*parameter.key, inside, fitted, len(named), error, date, MACHINE_SOURCE, notes=notes)
        )
    return results


def _of_other_lines(
    constants: Sequence[fitter.FittedConstant], catalog: Catalog, date: str
) -> list[fitter.FittedConstant]:
    """Constants of lines without rows of a kind: the mean of the value for any machine and the fitted lines."""
    more = []
    for row in resources.rows("calibrate/machine_software.csv"):
        if row["unmeasured"] != "mean":
            continue
        lines = row["lines"].split()
        fitted = {
            constant.generation: constant.value
            for constant in constants
            if (constant.family, constant.constant) == (row["family"], row["constant"]) and constant.generation in lines
        }
        for line in (name for name in lines if name not in fitted):
            unit = declared_constants()[row["family"]][row["constant"]].unit
            today = _current_value(row, line, ANY, catalog) / factor(unit)
            mean = math.exp(float(np.mean(np.log([today, *fitted.values()]))))
            key = (row["family"], line, row["precision"], ANY, row["constant"])
            constant = fitter.FittedConstant(*key, fitter.rounded(mean), date=date, source=MACHINE_SOURCE)
            more.append(constant.assumed("not measured: mean of any machine and of the lines that were fitted"))
    return more
