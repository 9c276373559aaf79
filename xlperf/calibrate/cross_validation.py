"""Cross-validation of the software constants: models, generations, software and sources left out of the fit.

Leave-one-model-out treats all models with layers of one shape together: the constants that their rows use are refitted
without them, and their rows are predicted. Kernels keep their constants, which rest on kernel measurements alone.
A refit is cheap because the response of every row to every constant is sampled once
(:mod:`xlperf.calibrate.fit_published`); left-out rows are then predicted in full. The set of constants of a software
is not selected again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from xlperf.base.arrays import Array
from xlperf.calibrate.fit_kernels import fit_kernels
from xlperf.calibrate.fit_machines import (
    accelerators_by_line,
    kernels_of_other_generations,
    machine_constants,
    of_other_precisions,
    of_other_software,
    slowdowns_of_other_generations,
)
from xlperf.calibrate.fit_published import (
    SOURCES,
    TURNS,
    Responses,
    as_parameters,
    responses_of,
    training_constants,
    without_reference,
)
from xlperf.calibrate.fitter import (
    FEWEST_ROWS,
    SPREADS,
    FittedConstant,
    and_constants,
    calibration_table,
    joined_tables,
    solve,
)
from xlperf.calibrate.published_errors import (
    QUANTITIES,
    Errors,
    Measured,
    accelerators_of,
    aligned,
    belongs_to,
    changed,
    errors_of,
    log_errors,
    may_be_fitted,
    of_source,
    plans_to_fit,
    read_measured,
    software_of,
    taken,
)
from xlperf.catalog.calibration import ANY, declared_constants, documented_rows
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.measurements.comparison import MEMORY
from xlperf.measurements.published import Published, PublishedPlans

Step = Callable[[str], None]


@dataclass(frozen=True)
class CrossValidation:
    """Errors of published rows, and of the rows that use each constant: calibration row -> median, rows."""

    errors: Errors
    of_constant: Mapping[int, tuple[float, int]]


def cross_validated(
    published: Published, catalog: Catalog, step: Step | None = None, quantities: Sequence[str] = QUANTITIES
) -> CrossValidation:
    """Errors of published times or memory with and without their model in the fit, in row order; rows of ``group``
    papers are excluded.
    """
    say = step if step is not None else _nothing
    plans = plans_to_fit(published, catalog)
    entries = errors_of(plans, quantities)
    if not len(entries):
        return CrossValidation(entries, {})
    responses, rows = _responses(plans, entries, say)
    errors = replace(entries, by_models=_left_out(plans, entries, responses, rows, entries.model, say))
    sizes = np.abs(np.expm1(errors.by_models))
    of_constant = {
        row: (float(np.nanmedian(sizes[users])), errors.num_rows(users))
        for row, users in zip(rows, responses.users, strict=True)
        if not np.isnan(sizes[users]).all()
    }
    return CrossValidation(errors, of_constant)


def left_out_together(
    plans: PublishedPlans, quantities: Sequence[str], names: Callable[[PublishedPlans, Errors], np.ndarray]
) -> tuple[Errors, Array]:
    """Published rows, and their errors if all rows whose entries have the same of ``names`` are left out of the fit."""
    entries = errors_of(plans, quantities)
    responses, rows = _responses(plans, entries, _nothing)
    return entries, _left_out(plans, entries, responses, rows, names(plans, entries), _nothing)


def refitted(published: Published, catalog: Catalog, unknown: bool = False) -> Catalog:
    """Catalog with the software constants refitted to published rows as in the original fit. A constant that fewer than
    eight rows inform keeps its value, or is dropped if it belongs to the software ``unknown``.
    """
    plans = plans_to_fit(published, catalog)
    entries = errors_of(plans)
    if not len(entries):
        return catalog
    every, table = np.full(len(entries), True), catalog.tables["calibration"]
    held: set[tuple[str, ...]] = set()
    if unknown:
        parameters, places = as_parameters(table, entries.kind)
        reference = without_reference(entries.kind, parameters, entries)
        held = {parameters[at].key for at in reference}
        table = changed(table, {places[at]: parameters[at].declared.default for at in reference})
    for _ in range(TURNS):
        tried = replace(plans, catalog=plans.catalog.with_tables([table]))
        entries = errors_of(tried)
        values, gone = _refitted(entries, *_responses(tried, entries, _nothing), every, held=held)
        table = changed(table, values)
        table = table.take(np.setdiff1d(np.arange(len(table)), gone if unknown else []))
    return catalog.with_tables([table])


def _nothing(_: str) -> None:
    return None


def _responses(plans: PublishedPlans, entries: Errors, say: Step) -> tuple[Responses, list[int]]:
    """Responses to the constants fitted on published rows of a kind, and positions of the constants in the sheet."""
    parameters, rows = as_parameters(plans.catalog.tables["calibration"], entries.kind, MEMORY in entries.quantity)
    return responses_of(plans, entries, parameters, say), rows


def _left_out(
    plans: PublishedPlans, entries: Errors, responses: Responses, rows: Sequence[int], groups: np.ndarray, say: Step
) -> Array:
    """Errors of each entry under constants fitted without the entries of its group."""
    result = np.full(len(entries), math.nan)
    table, fitted = plans.catalog.tables["calibration"], may_be_fitted(plans, entries)
    for name in sorted(set(groups.tolist())):
        say("folds")
        own = groups == name
        values, gone = _refitted(entries, responses, rows, fitted & ~own, own)
        kept = np.setdiff1d(np.arange(len(table)), gone)
        some, errors = taken(plans, entries, own)
        catalog = some.catalog.with_tables([changed(table, values).take(kept)])
        result[own] = aligned(log_errors(replace(some, catalog=catalog), set(entries.quantity.tolist()))[0], errors)
    return result


def _refitted(
    entries: Errors,
    responses: Responses,
    places: Sequence[int],
    chosen: np.ndarray,
    left_out: np.ndarray | None = None,
    held: Collection[tuple[str, ...]] = (),
) -> tuple[dict[int, float], list[int]]:
    """Constants refitted to some entries, by row of the sheet, and the constants for which the entries are too few. If
    few entries are left out, only the constants that they use move, from their current values.
    """
    few = [entries.num_rows(group & chosen) < FEWEST_ROWS for group in responses.group]
    spreads: Sequence[float] = SPREADS
    concerned = np.full(len(responses.parameters), True)
    if left_out is not None:
        spreads, concerned = SPREADS[-1:], (responses.users & left_out).any(axis=1)
        chosen = chosen & responses.users[concerned].any(axis=0)
    parameters = [
        replace(one, fixed=is_few or not used or one.key in held, start=min(max(one.first, one.low), one.high))
        for one, is_few, used in zip(responses.parameters, few, concerned.tolist(), strict=True)
    ]
    rows = np.flatnonzero(chosen)
    problem = responses.of(rows).problem(entries.take(rows))
    values = solve(problem, parameters, spreads=spreads).values
    gone = [row for one, row, is_few in zip(parameters, places, few, strict=True) if is_few and one.software != ANY]
    return dict(zip(places, values.tolist(), strict=True)), gone


# --- a generation or a software left out ---------------------------------------------------------------------------


def rows_of(published: Published, catalog: Catalog, name: str) -> Published:
    """Rows of an accelerator, a generation, a software or a source; case does not matter."""
    own = accelerators_of(name, catalog)
    if own:
        return published.take([row for row, gpu in enumerate(published.text["gpu"]) if gpu.casefold() in own])
    used = software_of(published, catalog)
    if name.casefold() in used:
        return published.take([row for row, software in enumerate(used) if software == name.casefold()])
    return published.take([row for row, source in enumerate(published.text["source_id"]) if of_source(source, name)])


def left_out(catalog: Catalog, name: str, path: str | Path | None = None) -> Catalog:
    """Catalog refitted without any measurement of an accelerator, a generation, a software or a source. Kernels are
    refitted without the accelerators; software constants of the left-out name are dropped, and the remaining ones are
    refitted. Raises InputError for an unknown name.
    """
    measured, wanted = read_measured(path), name.casefold()
    kept, own = measured.without(name, catalog), accelerators_of(name, catalog)
    gone = own or _machines_of(measured, catalog, name)
    if gone and gone <= accelerators_by_line(catalog):
        shared, constants = machine_constants(kept, catalog, "")
        return and_constants(shared, constants)
    table = catalog.tables["calibration"]
    kernels = not_published(table)
    base = table.take(kernels)
    if own:
        base = calibration_table([*fit_kernels(kept.kernels, catalog, ""), *lost_ratios(kept, catalog)])
    others = [row for row in range(len(table)) if row not in set(kernels)]
    remaining = [row for row in others if not _concerns(table, row, wanted, not own)]
    known = catalog.with_tables([joined_tables(base, table.take(remaining))])
    for before, rows in ((measured.training, kept.training), (measured.inference, kept.inference)):
        if own or len(rows) < len(before):
            known = refitted(rows, known, unknown=True)
    return of_what_was_not_measured(known, kept.training)


def _machines_of(measured: Measured, catalog: Catalog, name: str) -> set[str]:
    """Accelerators, casefolded, in the published rows of a name; every accelerator of a source or software."""
    sheets = [rows_of(rows, catalog, name) for rows in (measured.training, measured.inference)]
    return {gpu.casefold() for rows in sheets for gpu in rows.text["gpu"]}


def lost_ratios(kept: Measured, catalog: Catalog) -> list[FittedConstant]:
    """Declared defaults of documented ratios to measured products of a generation of which no kernel is left. The ratio
    of gradient products to the forward product stays: both times are predicted.
    """
    measured = {str(row["gpu"]).casefold() for row in kept.kernels}
    return [
        FittedConstant(family, *key, name, declared_constants()[family][name].default)
        for (family, name), rows in documented_rows().items()
        for key in rows
        if family in ("gemm", "serving_experts") and name != "gradient_slowdown" and key[0] != ANY
        if not accelerators_of(key[0], catalog) & measured
    ]


def not_published(table: Table) -> list[int]:
    """Rows of a calibration sheet that come neither from published runs nor from readings: kernels."""
    rows = enumerate(zip(table.text("source").tolist(), table.text("family").tolist(), strict=True))
    return [at for at, (source, family) in rows if not source.startswith(tuple(SOURCES.values())) and family != "band"]


def _concerns(table: Table, row: int, name: str, software: bool) -> bool:
    if software:
        return belongs_to(str(table.text("software", ANY)[row]).casefold(), name)
    return str(table.text("generation", ANY)[row]).casefold() == name


def of_what_was_not_measured(catalog: Catalog, published: Published) -> Catalog:
    """Catalog with fallback constants for unmeasured machines, software and precisions."""
    known = training_constants(catalog.tables["calibration"], "")
    result = kernels_of_other_generations(known) + slowdowns_of_other_generations(known)
    result += of_other_precisions(training_constants(catalog.tables["calibration"], "", "inference"))
    with_kernels = and_constants(catalog, result)
    known = [one for one in known if one.software != ANY]
    return and_constants(with_kernels, of_other_software(published, with_kernels, known))
