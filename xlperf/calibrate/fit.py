"""The calibration sheet fitted: whole, and without some of its measurements.

Each fit builds on the previous one: kernels, training stacks, serving engines, other machines, bands. Rows that change
no look-up (:class:`xlperf.catalog.calibration.Calibration`) by more than :data:`TOLERANCE` are left out.

Cross-validation leaves out models with layers of one shape, generations, software or sources, refits the constants
that their rows use on sampled responses (:mod:`xlperf.calibrate.fit_published`), and predicts these rows in full.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from xlperf.base import resources
from xlperf.base.arrays import Array
from xlperf.calibrate import fit_machines, fitter, published_errors
from xlperf.calibrate.fit_kernels import fit_kernels
from xlperf.calibrate.fit_published import (
    SOURCES,
    TURNS,
    Responses,
    as_parameters,
    fit_memory,
    fit_serving,
    fit_training,
    responses_of,
    training_constants,
    without_reference,
)
from xlperf.calibrate.readings import fitted_bands, readings_of
from xlperf.catalog.calibration import (
    ANY,
    SOFTWARE_FAMILIES,
    Calibration,
    declared_constants,
    documented_rows,
    generation_line,
    parent_families,
)
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.measurements.comparison import MEMORY, predicted
from xlperf.measurements.published import Published, PublishedPlans

_HELD_OUT = "error: median of rows whose model was left out, kernels as they are"


def fit_all(
    measured: published_errors.Measured, catalog: Catalog, date: str, step: Step
) -> list[fitter.FittedConstant]:
    """Fit every constant of the calibration sheet; the calibration of ``catalog`` is not used."""

    def with_only(constants: Sequence[fitter.FittedConstant]) -> Catalog:
        return catalog.with_tables([fitter.calibration_table(constants)])

    step("kernels")
    done = fit_kernels(measured.kernels, with_only([]), date)
    step("memory")
    memory = fit_memory(measured.training, with_only(done), date)
    step("training")  # a step may wait for an allocator without room
    done += fit_training(measured.training, with_only([*done, *memory]), date) + memory
    step("serving")
    done += fit_serving(measured.inference, with_only(done), date)
    return fitter.without_repeats(done)


def fitted_calibration(catalog: Catalog, date: str, measured: published_errors.Measured, step: Step) -> Table:
    """Refit the calibration sheet, with cross-validation errors, without bands."""
    table = fitter.calibration_table(fit_all(measured, catalog, date, step))
    step("errors")
    return with_errors(table, (measured.training, measured.inference), catalog)


def with_errors(table: Table, published: Sequence[Published], catalog: Catalog) -> Table:
    """Calibration sheet with the leave-one-model-out error of each constant fitted on published rows."""
    known = catalog.with_tables([table])
    error, notes = np.array(table.number("error")), np.array(table.text("notes"), dtype=object)
    for rows in published:
        for quantities in (published_errors.QUANTITIES, (MEMORY,)):
            for row, size in cross_validated(rows, known, quantities=quantities).of_constant.items():
                error[row] = fitter.rounded(size)
                words = [word for word in str(notes[row]).split("; ") if word and word != _HELD_OUT]
                notes[row] = "; ".join([*words, _HELD_OUT])
    return Table("calibration", {**table.columns, "error": error, "notes": notes}, table.place)


def refitted_machines(measured: published_errors.Measured, catalog: Catalog, date: str) -> Catalog:
    """Catalog with constants of accelerators beyond NVIDIA refitted; all other constants are unchanged."""
    shared, done = fit_machines.machine_constants(measured, catalog, date)
    return fitter.and_constants(shared, done)


def refitted_bands(published: Sequence[Published], catalog: Catalog, date: str) -> Table:
    """Calibration sheet with bands fitted anew on the readings, without rows that equal a more general level."""
    bands = fitted_bands(readings_of(published, catalog), date)
    table = without_equal_levels(catalog.tables["calibration"], catalog)
    table = without_weak_rows(table, catalog, published)
    return fitter.joined_tables(table, fitter.calibration_table(bands))


# --- levels --------------------------------------------------------------------------------------------------------


TOLERANCE = 0.006  # largest relative change of a constant in any look-up [-]
NEAR = 0.15  # logarithm of a constant over that of a more general level up to which a row may be weak [-]
MOST_MOVED = 0.005  # largest change of the logarithm of a prediction without weak rows [-]
_UNKNOWN = "unknown"
_WIDE = {"attention_backward": {"bf16", "tf32", "fp32"}}  # families that are looked up in these precisions alone
_KEYS = ("family", "constant", "generation", "precision", "software")
Key = tuple[str, ...]


def without_equal_levels(table: Table, catalog: Catalog) -> Table:
    """Calibration without rows that equal a more general level, the most specific first. The last row of a generation
    in a family without a parent stays, and of a stack in a family of software: it marks them as measured.
    """
    columns = [[str(word).casefold() for word in table.text(name, ANY).tolist()] for name in _KEYS]
    keys: list[Key] = list(zip(*columns, strict=True))
    kept = set(range(len(keys)))
    chips = {str(generation).casefold() for generation in catalog.tables["accelerators"]["generation"]}
    number = len(kept) + 1
    while len(kept) < number:  # what a row hides from another may be gone the second time
        number = len(kept)
        for gone in _candidates(keys):
            if gone <= kept and not _marks(keys, gone, kept) and not _moves(table, keys, gone, kept, chips):
                kept -= gone
    return table.take(sorted(kept))


def _candidates(keys: Sequence[Key]) -> Iterator[set[int]]:
    """Rows that may go together, machines of child families first, then single rows from the most specific on."""
    machines: dict[tuple[str, str], set[int]] = {}
    for row, (family, _, generation, _, software) in enumerate(keys):
        if family in parent_families() and software == ANY:
            machines.setdefault((family, generation_line(generation)), set()).add(row)
    yield from machines.values()
    special = [row for row, key in enumerate(keys) if key[2:] != (ANY, ANY, ANY)]
    yield from ({row} for row in sorted(special, key=lambda row: keys[row][2:].count(ANY)))


def _marks(keys: Sequence[Key], gone: Collection[int], kept: Collection[int]) -> bool:
    """Whether no other row of a family without parent names the generation of the rows, or their software."""
    for row in gone:
        family, _, generation, _, software = keys[row]
        others = [keys[other] for other in kept if other not in gone and keys[other][0] == family]
        names = {generation, generation_line(generation)}
        if family not in parent_families() and generation != ANY and names.isdisjoint({other[2] for other in others}):
            return True
        if family in SOFTWARE_FAMILIES and software != ANY and all(other[4] != software for other in others):
            return True
    return False


def _moves(table: Table, keys: Sequence[Key], gone: set[int], kept: set[int], chips: Collection[str]) -> bool:
    """Whether a look-up changes without the rows: in their family, and in families that it is the parent of."""
    family = keys[min(gone)][0]
    children = [child for child, (parent, _) in parent_families().items() if parent == family]
    for of_family in (family, *children):
        near = {of_family, parent_families().get(of_family, ("", {}))[0]}
        rows = [row for row in sorted(kept) if keys[row][0] in near]
        names = list(declared_constants()[of_family]) if of_family in parent_families() else [keys[min(gone)][1]]
        names = [name for name in names if name in declared_constants()[of_family]]
        known = [keys[at] for at in rows]
        contexts = sorted({key for row in gone for key in _contexts(of_family, keys[row], known, chips)})
        remaining = [row for row in rows if row not in gone]
        sheets = [Calibration(table.take(some)) for some in (rows, remaining)]
        before, after = (sheet.values_of(of_family, names, contexts) for sheet in sheets)
        if (np.abs(after - before) > TOLERANCE * np.abs(before)).any():
            return True
    return False


def _contexts(family: str, key: Key, known: Sequence[Key], chips: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Keys of look-ups in a family that a row may answer."""
    generation = key[2]
    machines = {chip for chip in chips if generation in (ANY, chip, generation_line(chip))} | {generation}
    formats = _WIDE.get(family) or {entry[3] for entry in known} | {"bf16", "fp8", "fp8_block", "fp4", "mxfp8"}
    software = {entry[4] for entry in known if entry[0] == family}
    stacks = software | {row["software"] for row in resources.stack_rows("kernels")} | {_UNKNOWN}
    named = machines | ({_UNKNOWN} if generation == ANY else set())
    return product(named, formats, stacks)


def without_weak_rows(table: Table, catalog: Catalog, published: Sequence[Published]) -> Table:
    """Calibration without rows near a more general level, if predictions stay within :data:`MOST_MOVED`."""
    columns = [table.text(name, ANY).tolist() for name in ("generation", "precision", "software")]
    keys = list(zip(*columns, strict=True))
    names = list(zip(table.text("family"), table.text("constant"), strict=True))
    plans = [published_errors.plans_of(rows, catalog) for rows in published]
    gaps = [(_gap(table, row, names[row], keys[row]), row) for row in range(len(table)) if keys[row] != (ANY, ANY, ANY)]
    kept, before = set(range(len(table))), _logs(plans, table)
    marks = [(family, constant, *key) for (family, constant), key in zip(names, keys, strict=True)]
    for gap, row in sorted(gaps):
        if gap > NEAR:
            break
        if not _marks(marks, {row}, kept):
            after = _logs(plans, table.take(sorted(kept - {row})))
            if np.nanmax(np.abs(after - before)) <= MOST_MOVED:
                kept.remove(row)
    return table.take(sorted(kept))


def _gap(table: Table, row: int, names: tuple[str, str], key: tuple[str, str, str]) -> float:
    """Logarithm of a constant over the value of its more general level, without sign; infinite if either is 0."""
    others = table.take([other for other in range(len(table)) if other != row])
    with_it, without = (
        float(Calibration(some).values_of(names[0], [names[1]], [key])[0, 0]) for some in (table, others)
    )
    return abs(math.log(with_it / without)) if with_it > 0.0 and without > 0.0 else math.inf


def _logs(plans: Sequence[PublishedPlans], table: Table) -> Array:
    """Logarithms of the predicted times of published rows under a calibration."""
    parts = []
    for each in plans:
        results = predicted(replace(each, catalog=each.catalog.with_tables([table])))
        parts += [np.log(results.number(name)) for name in ("step_time", "tpot", "ttft") if name in results]
    return np.concatenate(parts)


Step = Callable[[str], None]


@dataclass(frozen=True)
class CrossValidation:
    """Errors of published rows, and of the rows that use each constant: calibration row -> median."""

    errors: published_errors.Errors
    of_constant: Mapping[int, float]


def cross_validated(
    published: Published,
    catalog: Catalog,
    step: Step | None = None,
    quantities: Sequence[str] = published_errors.QUANTITIES,
) -> CrossValidation:
    """Errors of published rows with and without their model in the fit; rows of ``group`` papers are excluded."""
    say = step if step is not None else _nothing
    plans = published_errors.plans_to_fit(published, catalog)
    entries = published_errors.errors_of(plans, quantities)
    if not len(entries):
        return CrossValidation(entries, {})
    responses, rows = _responses(plans, entries, say)
    errors = replace(entries, by_models=_left_out(plans, entries, responses, rows, entries.model, say))
    sizes = np.abs(np.expm1(errors.by_models))
    used = {row: sizes[users] for row, users in zip(rows, responses.users, strict=True)}
    of_constant = {row: float(np.nanmedian(some)) for row, some in used.items() if not np.isnan(some).all()}
    return CrossValidation(errors, of_constant)


def left_out_together(
    plans: PublishedPlans,
    quantities: Sequence[str],
    names: Callable[[PublishedPlans, published_errors.Errors], np.ndarray],
) -> tuple[published_errors.Errors, Array]:
    """Published rows, and their errors if all rows whose entries have the same of ``names`` are left out of the fit."""
    entries = published_errors.errors_of(plans, quantities)
    responses, rows = _responses(plans, entries, _nothing)
    return entries, _left_out(plans, entries, responses, rows, names(plans, entries), _nothing)


def refitted(published: Published, catalog: Catalog) -> Catalog:
    """Catalog with the software constants refitted, without constants that fewer than eight rows inform."""
    plans = published_errors.plans_to_fit(published, catalog)
    entries = published_errors.errors_of(plans)
    if not len(entries):
        return catalog
    every, table = np.full(len(entries), True), catalog.tables["calibration"]
    # multiplicative constants of which no row has the reference are held at their defaults
    parameters, places = as_parameters(table, entries.kind)
    reference = without_reference(entries.kind, parameters, entries)
    fixed = {parameters[at].key for at in reference}
    table = published_errors.changed(table, {places[at]: parameters[at].declared.default for at in reference})
    for _ in range(TURNS):
        tried = replace(plans, catalog=plans.catalog.with_tables([table]))
        entries = published_errors.errors_of(tried)
        values, gone = _refitted(entries, *_responses(tried, entries, _nothing), every, held=fixed)
        table = published_errors.changed(table, values)
        table = table.take(np.setdiff1d(np.arange(len(table)), gone))
    return catalog.with_tables([table])


def _nothing(_: str) -> None:
    return None


def _responses(plans: PublishedPlans, entries: published_errors.Errors, say: Step) -> tuple[Responses, list[int]]:
    """Responses to the constants fitted on published rows of a kind, and positions of the constants in the sheet."""
    parameters, rows = as_parameters(plans.catalog.tables["calibration"], entries.kind, MEMORY in entries.quantity)
    return responses_of(plans, entries, parameters, say), rows


def _left_out(
    plans: PublishedPlans,
    entries: published_errors.Errors,
    responses: Responses,
    rows: Sequence[int],
    groups: np.ndarray,
    say: Step,
) -> Array:
    """Errors of each entry under constants fitted without the entries of its group."""
    result = np.full(len(entries), math.nan)
    table, fitted = plans.catalog.tables["calibration"], published_errors.may_be_fitted(plans, entries)
    for name in sorted(set(groups.tolist())):
        say("folds")
        of_group = groups == name
        values, gone = _refitted(entries, responses, rows, fitted & ~of_group, of_group)
        remaining = np.setdiff1d(np.arange(len(table)), gone)
        subset, errors = published_errors.taken(plans, entries, of_group)
        catalog = subset.catalog.with_tables([published_errors.changed(table, values).take(remaining)])
        errors_by_row, _ = published_errors.log_errors(replace(subset, catalog=catalog), set(entries.quantity.tolist()))
        result[of_group] = published_errors.aligned(errors_by_row, errors)
    return result


def _refitted(
    entries: published_errors.Errors,
    responses: Responses,
    places: Sequence[int],
    chosen: np.ndarray,
    left_out: np.ndarray | None = None,
    held: Collection[tuple[str, ...]] = (),
) -> tuple[dict[int, float], list[int]]:
    """Constants refitted to some entries, by row of the sheet, and the constants for which the entries are too few. If
    few entries are left out, only the constants that they use move, from their current values.
    """
    few = [entries.num_rows(group & chosen) < fitter.FEWEST_ROWS for group in responses.group]
    spreads: Sequence[float] = fitter.SPREADS
    concerned = np.full(len(responses.parameters), True)
    if left_out is not None:
        spreads, concerned = fitter.SPREADS[-1:], (responses.users & left_out).any(axis=1)
        chosen = chosen & responses.users[concerned].any(axis=0)
    parameters = [
        replace(each, fixed=is_few or not used or each.key in held, start=min(max(each.first, each.low), each.high))
        for each, is_few, used in zip(responses.parameters, few, concerned.tolist(), strict=True)
    ]
    rows = np.flatnonzero(chosen)
    problem = responses.of(rows).problem(entries.take(rows))
    values = fitter.solve(problem, parameters, spreads=spreads).values
    named = zip(parameters, places, few, strict=True)
    gone = [row for parameter, row, is_few in named if is_few and parameter.software != ANY]
    return dict(zip(places, values.tolist(), strict=True)), gone


# --- a generation or a software left out ---------------------------------------------------------------------------


def rows_of(published: Published, catalog: Catalog, name: str) -> Published:
    """Rows of an accelerator, a generation, a software or a source; case does not matter."""
    accelerators = published_errors.accelerators_of(name, catalog)
    if accelerators:
        return published.take([row for row, gpu in enumerate(published.text["gpu"]) if gpu.casefold() in accelerators])
    used = published_errors.software_of(published, catalog)
    if name.casefold() in used:
        return published.take([row for row, software in enumerate(used) if software == name.casefold()])
    return published.take(
        [row for row, source in enumerate(published.text["source_id"]) if published_errors.of_source(source, name)]
    )


def left_out(catalog: Catalog, name: str) -> Catalog:
    """Catalog refitted without any measurement of an accelerator, a generation, a software or a source. Kernels are
    refitted without the accelerators; software constants of the left-out name are dropped, and the remaining ones are
    refitted. Raises InputError for an unknown name.
    """
    measured, wanted = published_errors.read_measured(), name.casefold()
    rest, accelerators = measured.without(name, catalog), published_errors.accelerators_of(name, catalog)
    sheets = [rows_of(rows, catalog, name) for rows in (measured.training, measured.inference)]
    gone = accelerators or {gpu.casefold() for rows in sheets for gpu in rows.text["gpu"]}
    if gone and gone <= fit_machines.accelerators_by_line(catalog):
        shared, constants = fit_machines.machine_constants(rest, catalog, "")
        return fitter.and_constants(shared, constants)
    table = catalog.tables["calibration"]
    kernels = not_published(table)
    base = table.take(kernels)
    if accelerators:
        base = fitter.calibration_table([*fit_kernels(rest.kernels, catalog, ""), *lost_ratios(rest, catalog)])
    others = [row for row in range(len(table)) if row not in set(kernels)]
    remaining = [row for row in others if not _is_of(table, row, wanted, not accelerators)]
    refit = catalog.with_tables([fitter.joined_tables(base, table.take(remaining))])
    for before, rows in ((measured.training, rest.training), (measured.inference, rest.inference)):
        if accelerators or len(rows) < len(before):
            refit = refitted(rows, refit)
    return of_what_was_not_measured(refit, rest.training)


def lost_ratios(kept: published_errors.Measured, catalog: Catalog) -> list[fitter.FittedConstant]:
    """Declared defaults of documented ratios to measured products of a generation of which no kernel is left. The ratio
    of gradient products to the forward product stays: both times are predicted.
    """
    measured = {str(row["gpu"]).casefold() for row in kept.kernels}
    return [
        fitter.FittedConstant(family, *key, name, declared_constants()[family][name].default)
        for (family, name), rows in documented_rows().items()
        for key in rows
        if family in ("gemm", "serving_experts") and name != "gradient_slowdown" and key[0] != ANY
        if not published_errors.accelerators_of(key[0], catalog) & measured
    ]


def not_published(table: Table) -> list[int]:
    """Rows of a calibration sheet that come neither from published runs nor from readings: kernels."""
    rows = enumerate(zip(table.text("source").tolist(), table.text("family").tolist(), strict=True))
    return [at for at, (source, family) in rows if not source.startswith(tuple(SOURCES.values())) and family != "band"]


def _is_of(table: Table, row: int, name: str, software: bool) -> bool:
    if software:
        return published_errors.belongs_to(str(table.text("software", ANY)[row]).casefold(), name)
    return str(table.text("generation", ANY)[row]).casefold() == name


def of_what_was_not_measured(catalog: Catalog, published: Published) -> Catalog:
    """Catalog with fallback constants for unmeasured machines, software and precisions."""
    constants = training_constants(catalog.tables["calibration"])
    result = fit_machines.kernels_of_other_generations(constants)
    result += fit_machines.slowdowns_of_other_generations(constants)
    result += fit_machines.of_other_precisions(training_constants(catalog.tables["calibration"], "inference"))
    with_kernels = fitter.and_constants(catalog, result)
    constants = [row for row in constants if row.software != ANY]
    return fitter.and_constants(with_kernels, fit_machines.of_other_software(published, with_kernels, constants))
