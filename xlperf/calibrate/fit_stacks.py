"""Constants of training stacks, of their kernels and experts, and the bands of the step time, from published rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from xlperf.base.arrays import Array
from xlperf.calibrate.fit_stack_kernels import (
    KernelValues,
    fit_kernels_of_stack,
    held_out_with_kernels,
    kernel_constants,
)
from xlperf.calibrate.fit_training import (
    FAMILY,
    FEWEST_ROWS,
    FOLDS,
    WORTH_IT,
    FitRows,
    Values,
    excess,
    excess_of,
    fit_rows_of,
    fit_software,
    fitted_values,
    held_out_excess,
    misfit_of,
    weights_of,
)
from xlperf.calibrate.fitted_constants import FittedConstant, calibration_table, fit_set, joined_tables, rounded
from xlperf.calibrate.published import Published
from xlperf.catalog.calibration import ANY, declared_constants
from xlperf.catalog.catalog import Catalog

EXPERTS, BAND = "experts", "training_band"
OF_STACK = ("product_slowdown", "layer_overhead_time", "launch_time")
LOW_SHARE, HIGH_SHARE = 0.1, 0.9
_SOURCE = "published rows of the sheet training in validation.xlsx"


def fit_training(published: Published, catalog: Catalog, date: str) -> list[FittedConstant]:
    """Fit the constants of every training stack, what experts cost in it, then the bands.

    Rows of ``group`` papers are never used. A stack with fewer than eight rows gets no constants of its own. Its
    constants are fitted on dense models where there are eight such rows, so that what experts cost beyond the model
    of them does not end up in the stack; then those of its experts on the models that have them. The bands are those
    of all rows, each as it is predicted without its family.

    Parameters
    ----------
    published : Published
        Training rows.
    catalog : Catalog
        Catalog whose calibration has the kernel constants.
    date : str
        Date that the rows carry.

    Returns
    -------
    list of FittedConstant
        Families ``training_software``, ``experts`` and ``training_band``, in a fixed order.
    """
    rows = fit_rows_of(published, catalog)
    order = published.text["row_id"]
    constants: list[FittedConstant] = []
    residuals, fitted = np.array(rows.excess), np.array(rows.excess)
    stacks: dict[str, Values] = {}
    for software in sorted(set(rows.software)):
        index = [row for row, name in enumerate(rows.software) if name == software]
        dense = [row for row in index if rows.dense[row]]
        base = _base(software, stacks) if len(dense) < FEWEST_ROWS else ""
        if len(index) < FEWEST_ROWS:
            continue
        chosen = dense if len(dense) >= FEWEST_ROWS else index
        own = rows.take(chosen)
        values = stacks[base] if base else fit_software(own, software)
        kernels: KernelValues = {}
        if not base:
            values, kernels = fit_kernels_of_stack(own, software, values)
        stacks[software] = values
        residuals[index] = excess_of(rows.take(index), kernel_constants(software, values, kernels))
        fitted[index] = residuals[index]
        if not base:
            held_out = (
                held_out_with_kernels(own, software, values, kernels)
                if kernels
                else held_out_excess(own, software, values)
            )
            residuals[chosen] = np.where(np.isnan(held_out), residuals[chosen], held_out)
        constants += _rows_of(FAMILY, software, values, own, residuals[chosen], order, date)
        constants += _kernel_rows(software, kernels, own, residuals[chosen], order, date)
    known = catalog.with_tables([joined_tables(catalog.tables["calibration"], calibration_table(constants))])
    return constants + _mixtures(published, known, residuals, fitted, date)


def _base(software: str, stacks: Mapping[str, Values]) -> str:
    """The fitted stack that another one is a variant of, by its name; "" for none."""
    return max((name for name in stacks if software.startswith(f"{name}-")), key=len, default="")


def _mixtures(
    published: Published, catalog: Catalog, residuals: Array, fitted: Array, date: str
) -> list[FittedConstant]:
    """Constants of experts from the general to the special, each where it pays; then the bands.

    First those of all stacks and generations; then a stack with eight rows gets its own of what its kernels and its
    host do, pulled to the general ones, where the misfit falls by a tenth; a generation with eight rows of it likewise.
    """
    rows, order = fit_rows_of(published, catalog), published.text["row_id"]
    constants: list[FittedConstant] = []
    every = [row for row in range(len(rows.row_ids)) if not rows.dense[row]]
    found: dict[tuple[str, str], dict[str, float]] = {}
    for software, generation in _levels(rows, every):
        index = [
            row for row in every if software in (ANY, rows.software[row]) and generation in (ANY, rows.generation[row])
        ]
        if len(index) < FEWEST_ROWS:
            continue
        parent = found.get((software, ANY), found.get((ANY, ANY)))
        own = rows.take(index)
        if parent is None:
            keys = [(name, generation) for name in declared_constants()[EXPERTS]]
            values = fitted_values(own, software, keys, family=EXPERTS)
        else:
            before = {(name, generation): parent[name] for name in OF_STACK}
            values = fitted_values(own, software, list(before), before, EXPERTS, before)
            old = misfit_of(own, excess(own, before, software, EXPERTS))
            if misfit_of(own, excess(own, values, software, EXPERTS)) > (1.0 - WORTH_IT) * old:
                continue
        found[software, generation] = {name: value for (name, _), value in values.items()}
        held_out = held_out_excess(own, software, values, EXPERTS)
        fitted[index] = excess(own, values, software, EXPERTS)
        residuals[index] = np.where(np.isnan(held_out), fitted[index], held_out)
        constants += _rows_of(EXPERTS, software, values, own, held_out, order, date)
        if parent is None:
            known = joined_tables(catalog.tables["calibration"], calibration_table(constants))
            rows = fit_rows_of(published, catalog.with_tables([known]))
    return constants + _bands(rows, residuals, fitted, order, date)


def _levels(rows: FitRows, every: Sequence[int]) -> list[tuple[str, str]]:
    """Software and generation of the levels of a fit, from the general to the special."""
    stacks = sorted({rows.software[row] for row in every})
    pairs = sorted({(rows.software[row], rows.generation[row]) for row in every})
    mixed = {stack for stack in stacks if sum(pair[0] == stack for pair in pairs) > 1}
    return [(ANY, ANY), *((stack, ANY) for stack in stacks), *(pair for pair in pairs if pair[0] in mixed)]


def _kernel_rows(
    software: str, kernels: KernelValues, rows: FitRows, held_out: Array, order: Sequence[str], date: str
) -> list[FittedConstant]:
    """Constants of a stack's kernels by generation, and their mean for generations that nothing is measured on."""
    shared: dict[tuple[str, str, str, str], list[float]] = {}
    for (family, name, _, precision), value in kernels.items():
        shared.setdefault((family, name, ANY, precision), []).append(value)
    mean = {key: rounded(sum(values) / len(values)) for key, values in shared.items()}
    fitted = {kind for _, _, kind, _ in kernels}
    found = []
    for constant in kernel_constants(software, {}, {**kernels, **mean}):
        kinds = fitted if constant.generation == ANY else {constant.generation}
        index = [row for row, kind in enumerate(rows.generation) if kind in kinds]
        error = float(np.median(np.abs(np.expm1(held_out[index]))))
        named = fit_set([rows.row_ids[row] for row in index], order)
        notes = f"kernels of the stack itself; error: rows held out by family, {FOLDS} folds"
        found.append(
            replace(
                constant,
                fit_set=named,
                num_rows=len(index),
                error=rounded(error),
                date=date,
                source=_SOURCE,
                notes=notes,
            )
        )
    return found


def _rows_of(
    family: str, software: str, values: Values, rows: FitRows, held_out: Array, order: Sequence[str], date: str
) -> list[FittedConstant]:
    known = held_out[~np.isnan(held_out)]
    error = float(np.median(np.abs(np.expm1(known)))) if len(known) else math.nan
    return [
        FittedConstant(
            family,
            kind,
            ANY,
            software,
            name,
            value,
            fit_set(rows.row_ids, order),
            len(rows.row_ids),
            rounded(error),
            date,
            _SOURCE,
            notes=f"error: rows held out by family, {FOLDS} folds",
        )
        for (name, kind), value in values.items()
    ]


def _bands(rows: FitRows, residuals: Array, fitted: Array, order: Sequence[str], date: str) -> list[FittedConstant]:
    """80 % bands of measured over predicted time, by generation and software, then wider; dense models and mixtures.

    Each row counts twice: as it is predicted without its family, and with it; new runs of known families lie between.
    """
    declared = declared_constants()[BAND]
    groups: dict[tuple[bool, str, str], list[int]] = {}
    for row, (generation, software) in enumerate(zip(rows.generation, rows.software, strict=True)):
        for key in ((generation, software), (generation, ANY), (ANY, ANY)):
            groups.setdefault((not rows.dense[row], *key), []).append(row)
    found = []
    for (mixture, generation, software), index in sorted(groups.items()):
        if len(index) < FEWEST_ROWS:
            continue
        both = np.concatenate([residuals[index], fitted[index]])
        weights = weights_of([rows.family[row] for row in (*index, *index)]) if software == ANY else None
        names = ("mixture_low", "mixture_high") if mixture else ("step_low", "step_high")
        for name, share in zip(names, (LOW_SHARE, HIGH_SHARE), strict=True):
            value = min(max(_quantile(np.exp(-both), share, weights), declared[name].low), declared[name].high)
            found.append(
                FittedConstant(
                    BAND,
                    generation,
                    ANY,
                    software,
                    name,
                    rounded(value),
                    fit_set([rows.row_ids[row] for row in index], order),
                    len(index),
                    rounded(float(np.median(np.abs(np.expm1(residuals[index]))))),
                    date,
                    _SOURCE,
                    notes="from residuals of rows with and without their family in the fit",
                )
            )
    return found


def _quantile(values: Array, share: float, weights: Array | None) -> float:
    if weights is None:
        return float(np.quantile(values, share))
    ranked = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[ranked])
    return float(values[ranked][min(int(np.searchsorted(reached, share)), len(values) - 1)])
