"""Errors of published rows that the constants of their software were not fitted on: models, generations, software.

Models are left out one by one, all with layers of one shape together: the constants that their rows use are fitted
again without them, and they are predicted. Kernels keep their constants: they were fitted on measurements of kernels
alone. A refit is cheap because the response of every row to every constant is sampled once
(:mod:`xlperf.calibrate.fit_published`); the rows left out are then predicted in full. Which constants a software has is
not chosen again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from xlperf.base.arrays import Array
from xlperf.calibrate.fit import (
    SOURCES,
    Measured,
    accelerators_of,
    as_parameters,
    belongs_to,
    of_source,
    read_measured,
    software_of,
    training_constants,
)
from xlperf.calibrate.fit_kernels import fit_kernels
from xlperf.calibrate.fit_machines import accelerators_by_line, machine_constants
from xlperf.calibrate.fit_published import TURNS, Responses, responses_of, without_reference
from xlperf.calibrate.fit_unmeasured import (
    and_constants,
    kernels_of_other_generations,
    of_other_precisions,
    of_other_software,
    slowdowns_of_other_generations,
)
from xlperf.calibrate.fitter import FEWEST_ROWS, SPREADS, calibration_table, joined_tables, solve
from xlperf.calibrate.published_errors import (
    QUANTITIES,
    Errors,
    aligned,
    changed,
    errors_of,
    log_errors,
    may_be_fitted,
    plans_to_fit,
    taken,
)
from xlperf.catalog.calibration import ANY
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.measurements.comparison import MEMORY
from xlperf.measurements.published import Published, PublishedPlans

Step = Callable[[str], None]
Groups = Callable[[PublishedPlans, Errors], Mapping[str, Sequence[np.ndarray]]]


@dataclass(frozen=True)
class CrossValidation:
    """Errors of published rows, and of the rows that use each constant: calibration row -> median, rows."""

    errors: Errors
    of_constant: Mapping[int, tuple[float, int]]


def cross_validated(
    published: Published, catalog: Catalog, step: Step | None = None, quantities: Sequence[str] = QUANTITIES
) -> CrossValidation:
    """Errors of published rows with and without their model in the fit.

    ``published``: rows that the constants of the catalog were fitted on; those of the papers are left out. ``catalog``:
    with the calibration that was fitted on all of them. ``step``: called with a word before each evaluation of all
    rows. ``quantities``: what is compared: times, or memory. In the order of the rows; the same rows give the same
    errors.
    """
    say = step if step is not None else _nothing
    plans = plans_to_fit(published, catalog)
    entries = errors_of(plans, quantities)
    if not len(entries):
        return CrossValidation(entries, {})
    responses, rows = _responses(plans, entries, say)
    errors = replace(entries, by_models=_left_out(plans, entries, responses, rows, [entries.model], say))
    sizes = np.abs(np.expm1(errors.by_models))
    of_constant = {
        row: (float(np.nanmedian(sizes[users])), errors.num_rows(users))
        for row, users in zip(rows, responses.users, strict=True)
        if not np.isnan(sizes[users]).all()
    }
    return CrossValidation(errors, of_constant)


def left_out_together(
    plans: PublishedPlans, quantities: Sequence[str], groups_of: Groups
) -> tuple[Errors, dict[str, Array]]:
    """Errors of published rows with all rows left out of the fit that are like them in any of some groupings.

    ``plans``: rows of one kind as plans. ``quantities``: what is compared. ``groups_of``: groupings by name, each with
    one or more names for every entry. Returns the entries, and their errors by the name of the grouping.
    """
    entries = errors_of(plans, quantities)
    responses, rows = _responses(plans, entries, _nothing)
    chosen = groups_of(plans, entries)
    return entries, {
        name: _left_out(plans, entries, responses, rows, groups, _nothing) for name, groups in chosen.items()
    }


def refitted(published: Published, catalog: Catalog, unknown: bool = False) -> Catalog:
    """The catalog with the constants of software fitted again to published rows, together and in turns as in a fit.

    ``published``: rows to fit; those of the papers are left out. ``catalog``: with constants to start from; those that
    fewer than eight rows inform about stay as they are. ``unknown``: those of a software go instead: other rows than
    these made them.
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
    """Responses to the constants that were fitted on published rows of a kind, and where those stand in the sheet."""
    parameters, rows = as_parameters(plans.catalog.tables["calibration"], entries.kind, MEMORY in entries.quantity)
    return responses_of(plans, entries, parameters, say), rows


def _left_out(
    plans: PublishedPlans,
    entries: Errors,
    responses: Responses,
    rows: Sequence[int],
    groups: Sequence[np.ndarray],
    say: Step,
) -> Array:
    """Errors of the rows that are alike in all groups, under constants fitted without what is like them in any."""
    result = np.full(len(entries), math.nan)
    table, fitted = plans.catalog.tables["calibration"], may_be_fitted(plans, entries)
    folds = list(zip(*(group.tolist() for group in groups), strict=True))
    for fold in sorted(set(folds)):
        say("folds")
        own = np.logical_and.reduce([group == name for group, name in zip(groups, fold, strict=True)])
        alike = np.logical_or.reduce([group == name for group, name in zip(groups, fold, strict=True)])
        values, gone = _refitted(entries, responses, rows, fitted & ~alike, alike)
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
    """Values of the constants by row of the sheet fitted to some entries, and those that these are too few for.

    If a few entries are left out, only the constants that one of them uses are fitted again, from where they are.
    ``held``: keys of constants that keep their value; rows of the sheet move where others go.
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
    problem = responses.of(rows).problem(entries.take(rows), np.full(len(rows), True))
    values = solve(problem, parameters, spreads=spreads).values
    gone = [row for one, row, is_few in zip(parameters, places, few, strict=True) if is_few and one.software != ANY]
    return dict(zip(places, values.tolist(), strict=True)), gone


# --- a generation or a software left out ---------------------------------------------------------------------------


def rows_of(published: Published, catalog: Catalog, name: str) -> Published:
    """Rows of an accelerator, a generation of accelerators, a software or a source.

    ``published``: rows of one kind. ``catalog``: which accelerator is of which generation. ``name``: accelerator,
    generation, software as plans call it, or source_id; case does not matter.
    """
    own = accelerators_of(name, catalog)
    if own:
        return published.take([row for row, gpu in enumerate(published.text["gpu"]) if gpu.casefold() in own])
    used = software_of(published, catalog)
    if name.casefold() in used:
        return published.take([row for row, software in enumerate(used) if software == name.casefold()])
    return published.take([row for row, source in enumerate(published.text["source_id"]) if of_source(source, name)])


def left_out(catalog: Catalog, name: str, path: str | Path | None = None) -> Catalog:
    """The catalog with a calibration that has seen no measurement of some accelerators, of a software or of a source.

    Kernels are fitted again without accelerators; of machines by line, all that their lines take. Of the software's
    constants those of what is left out go, and those that a source leaves too few rows for, with the bands of their
    software; the others are fitted again without its rows; software that is unknown has what holds for all, its
    slowdown the median of those known.

    ``catalog``: with the calibration that was fitted on everything. ``name``: accelerator, generation of accelerators,
    software as plans call it, or source_id of published rows. ``path``: workbook of measurements; default: the shipped
    ``validation.xlsx``. Raises InputError when there is no such accelerator or generation, no run used that software
    and none is of that source.
    """
    measured, wanted = read_measured(path), name.casefold()
    kept, own = measured.without(name, catalog), accelerators_of(name, catalog)
    gone = own or _machines_of(measured, catalog, name)
    if gone and gone <= accelerators_by_line(catalog):
        shared, constants = machine_constants(kept, catalog, "")
        return and_constants(shared, constants)
    table = catalog.tables["calibration"]
    kernels = not_published(table)
    if own:
        stated = [row for row in kernels if table.text("kind")[row] == "datasheet"]
        documented = table.take([row for row in stated if _beside_measured(table, row, kept, catalog)])
        base = joined_tables(documented, calibration_table(fit_kernels(kept.kernels, catalog, "")))
    else:
        base = table.take(kernels)
    others = [row for row in range(len(table)) if row not in set(kernels)]
    remaining = [row for row in others if not _concerns(table, row, wanted, not own)]
    known = catalog.with_tables([joined_tables(base, table.take(remaining))])
    for before, rows in ((measured.training, kept.training), (measured.inference, kept.inference)):
        if own or len(rows) < len(before):
            known = refitted(rows, known, unknown=True)
    known = of_what_was_not_measured(known, kept.training)
    return known.with_tables([_bands_of_others(known.tables["calibration"], kept, catalog)])


def _machines_of(measured: Measured, catalog: Catalog, name: str) -> set[str]:
    """Accelerators, casefolded, of the published rows of a name; all of a source, as of a software."""
    sheets = [rows_of(rows, catalog, name) for rows in (measured.training, measured.inference)]
    return {gpu.casefold() for rows in sheets for gpu in rows.text["gpu"]}


def _bands_of_others(table: Table, kept: Measured, catalog: Catalog) -> Table:
    """The calibration without bands of a software of which fewer than eight rows remain."""
    used = Counter(software for rows in (kept.training, kept.inference) for software in software_of(rows, catalog))
    pairs = zip(table.text("family").tolist(), table.text("software", ANY).tolist(), strict=True)
    rows = [
        row
        for row, (family, software) in enumerate(pairs)
        if not str(family).endswith("_band") or software == ANY or used[str(software).casefold()] >= FEWEST_ROWS
    ]
    return table.take(rows)


def _beside_measured(table: Table, row: int, kept: Measured, catalog: Catalog) -> bool:
    """Whether what a documented constant of products is a ratio to remains: measured products of its generation.

    What products of gradients take over the same forward is no ratio to what was measured: both are predicted.
    """
    family, generation = table.text("family")[row], str(table.text("generation", ANY)[row])
    if table.text("constant")[row] == "gradient_slowdown":
        return True
    if family != "gemm" and (family != "serving_experts" or generation == ANY):
        return True
    own = accelerators_of(generation, catalog)
    return any(str(one["gpu"]).casefold() in own for one in kept.kernels)


def not_published(table: Table) -> list[int]:
    """Rows of a calibration sheet that do not come from published runs: kernels and documented settings."""
    source = table.text("source")
    return [row for row in range(len(table)) if not str(source[row]).startswith(tuple(SOURCES.values()))]


def _concerns(table: Table, row: int, name: str, software: bool) -> bool:
    if software:
        return belongs_to(str(table.text("software", ANY)[row]).casefold(), name)
    return str(table.text("generation", ANY)[row]).casefold() == name


def of_what_was_not_measured(catalog: Catalog, published: Published) -> Catalog:
    """The catalog with what a fit has for machines, software and precisions that nobody measured.

    ``catalog``: with constants of what was. ``published``: training rows that remain.
    """
    known = training_constants(catalog.tables["calibration"], "")
    result = kernels_of_other_generations(known) + slowdowns_of_other_generations(known)
    result += of_other_precisions(training_constants(catalog.tables["calibration"], "", "inference"))
    with_kernels = and_constants(catalog, result)
    known = [one for one in known if one.software != ANY]
    return and_constants(with_kernels, of_other_software(published, with_kernels, known))
