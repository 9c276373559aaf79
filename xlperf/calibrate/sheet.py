"""The calibration sheet made anew: kernels, training stacks and serving engines, other machines, bands.

Each fit builds on the previous one: stacks and engines are fitted on top of the kernels. The same rows give the same
sheet. Rows of ``group`` papers and of unseen groups are in no fit.

Rows that equal a more general level are left out. A constant is looked up from the nearest key to the farthest:
generation, precision and software, then without each of them, the line of the generation, any generation, the parent
family, the documented value and the declared default (:class:`xlperf.catalog.calibration.Calibration`). A row that
changes no look-up by more than :data:`TOLERANCE` says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from xlperf.base import resources
from xlperf.base.arrays import Array
from xlperf.calibrate.cross_validation import Step, cross_validated
from xlperf.calibrate.fit_kernels import fit_kernels
from xlperf.calibrate.fit_machines import machine_constants
from xlperf.calibrate.fit_published import fit_memory, fit_serving, fit_training
from xlperf.calibrate.fitter import (
    FittedConstant,
    and_constants,
    calibration_table,
    joined_tables,
    rounded,
    without_repeats,
)
from xlperf.calibrate.published_errors import QUANTITIES, Measured, plans_of
from xlperf.calibrate.readings import fitted_bands, readings_of
from xlperf.catalog.calibration import (
    ANY,
    SOFTWARE_FAMILIES,
    Calibration,
    declared_constants,
    generation_line,
    parent_families,
)
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.measurements.comparison import MEMORY, predicted
from xlperf.measurements.published import Published, PublishedPlans

_HELD_OUT = "error: median of rows whose model was left out, kernels as they are"


def fit_all(measured: Measured, catalog: Catalog, date: str, step: Step) -> list[FittedConstant]:
    """Fit every constant of the calibration sheet: kernels, training stacks, serving engines; the calibration of
    ``catalog`` is not used.
    """

    def with_only(constants: Sequence[FittedConstant]) -> Catalog:
        return catalog.with_tables([calibration_table(constants)])

    step("kernels")
    done = fit_kernels(measured.kernels, with_only([]), date)
    step("memory")
    memory = fit_memory(measured.training, with_only(done), date)
    step("training")  # a step may wait for an allocator without room
    done += fit_training(measured.training, with_only([*done, *memory]), date) + memory
    step("serving")
    done += fit_serving(measured.inference, with_only(done), date)
    return without_repeats(done)


def fitted_calibration(catalog: Catalog, date: str, measured: Measured, step: Step) -> Table:
    """Refit the calibration sheet, with cross-validation errors, without bands."""
    table = calibration_table(fit_all(measured, catalog, date, step))
    step("errors")
    return with_errors(table, (measured.training, measured.inference), catalog)


def with_errors(table: Table, published: Sequence[Published], catalog: Catalog) -> Table:
    """Calibration sheet with the leave-one-model-out error of each constant fitted on published rows."""
    known = catalog.with_tables([table])
    error, notes = np.array(table.number("error")), np.array(table.text("notes"), dtype=object)
    for rows in published:
        for quantities in (QUANTITIES, (MEMORY,)):
            for row, (size, _) in cross_validated(rows, known, quantities=quantities).of_constant.items():
                error[row] = rounded(size)
                words = [word for word in str(notes[row]).split("; ") if word and word != _HELD_OUT]
                notes[row] = "; ".join([*words, _HELD_OUT])
    return Table("calibration", {**table.columns, "error": error, "notes": notes}, table.place)


def refitted_machines(measured: Measured, catalog: Catalog, date: str) -> Catalog:
    """Catalog with constants of accelerators beyond NVIDIA refitted; all other constants are unchanged."""
    shared, done = machine_constants(measured, catalog, date)
    return and_constants(shared, done)


def refitted_bands(published: Sequence[Published], catalog: Catalog, date: str) -> Table:
    """Calibration sheet with bands fitted anew on the readings, without rows that equal a more general level."""
    bands = fitted_bands(readings_of(published, catalog), date)
    table = without_equal_levels(catalog.tables["calibration"], catalog)
    table = without_weak_rows(table, catalog, published)
    return joined_tables(table, calibration_table(bands))


# --- levels --------------------------------------------------------------------------------------------------------


TOLERANCE = 0.006
"""Largest relative change of a constant in any look-up. [-]"""
NEAR = 0.15
"""Logarithm of a constant over that of a more general level up to which a row may be weak. [-]"""
MOST_MOVED = 0.005
"""Largest change of the logarithm of a prediction without weak rows. [-]"""
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
    kept, chips = set(range(len(keys))), {str(one).casefold() for one in catalog.tables["accelerators"]["generation"]}
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
        if family not in parent_families() and generation != ANY and names.isdisjoint({one[2] for one in others}):
            return True
        if family in SOFTWARE_FAMILIES and software != ANY and all(one[4] != software for one in others):
            return True
    return False


def _moves(table: Table, keys: Sequence[Key], gone: set[int], kept: set[int], chips: Collection[str]) -> bool:
    """Whether a look-up changes without the rows: in their family, and in those that it is the parent of."""
    family = keys[min(gone)][0]
    children = [child for child, (parent, _) in parent_families().items() if parent == family]
    for each in (family, *children):
        near = {each, parent_families().get(each, ("", {}))[0]}
        rows = [row for row in sorted(kept) if keys[row][0] in near]
        names = list(declared_constants()[each]) if each in parent_families() else [keys[min(gone)][1]]
        names = [name for name in names if name in declared_constants()[each]]
        contexts = sorted({key for row in gone for key in _contexts(each, keys[row], [keys[at] for at in rows], chips)})
        before, after = (
            Calibration(table.take(some)).values_of(each, names, contexts)
            for some in (rows, [row for row in rows if row not in gone])
        )
        if (np.abs(after - before) > TOLERANCE * np.abs(before)).any():
            return True
    return False


def _contexts(family: str, key: Key, known: Sequence[Key], chips: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Keys of look-ups in a family that a row may answer."""
    generation = key[2]
    machines = {one for one in chips if generation in (ANY, one, generation_line(one))} | {generation}
    formats = _WIDE.get(family) or {one[3] for one in known} | {"bf16", "fp8", "fp8_block", "fp4", "mxfp8"}
    own = {one[4] for one in known if one[0] == family}
    stacks = own | {row["software"] for row in resources.stack_rows("kernels")} | {_UNKNOWN}
    named = machines | ({_UNKNOWN} if generation == ANY else set())
    return product(named, formats, stacks)


def without_weak_rows(table: Table, catalog: Catalog, published: Sequence[Published]) -> Table:
    """Calibration without rows within :data:`NEAR` of a more general level, the nearest first, as long as all
    predictions of published rows stay within :data:`MOST_MOVED`.
    """
    columns = [table.text(name, ANY).tolist() for name in ("generation", "precision", "software")]
    keys = list(zip(*columns, strict=True))
    names, plans = list(zip(table.text("family"), table.text("constant"), strict=True)), []
    gaps = [(_gap(table, row, names[row], keys[row]), row) for row in range(len(table)) if keys[row] != (ANY, ANY, ANY)]
    for rows in published:
        plans.append(plans_of(rows, catalog))
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
