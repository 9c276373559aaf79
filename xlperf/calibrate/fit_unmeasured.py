"""Constants for unmeasured software, accelerator generations and precisions.

Software without separate constants uses the values for all software, and a kernel slowdown from leave-one-stack-out
predictions of the measured stacks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np

from xlperf.base.arrays import Array, added
from xlperf.calibrate.fitter import FittedConstant, calibration_table, joined_tables, rounded
from xlperf.calibrate.published_errors import (
    aligned,
    errors_of,
    log_errors,
    may_be_fitted,
    plans_to_fit,
    taken,
    weighted_quantile,
)
from xlperf.catalog.calibration import ANY, same_kernels
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.software import with_software_defaults
from xlperf.measurements.comparison import STEP_TIME
from xlperf.measurements.published import Published, PublishedPlans

STACK, EXPERTS = "training_software", "experts"
SLOWDOWN = STACK, "kernel_slowdown"
"""Constant that unmeasured software needs beside the constants of all software."""
_APART = ("nanotron*", "*-simumax")
"""Software excluded from the slowdown of unmeasured software: a sweep of good and bad mappings, in which the slowdown
also absorbs network effects, and runs on one slow machine.
"""
_UNMEASURED = "software that nobody measured"
_TRIED = (1.0, 1.1, 1.25, 1.5, 2.0)
_NEEDED = (
    "mean of what measured software needs beside the constants of all software, for software without one of its own"
)
_QUANTISED = ("fp8", "int8", "fp4", "int4")
"""Storage precisions of expert weights below 16 bits."""
_OF_PRECISIONS = "mean of the other precisions below 16 bits"


def of_other_precisions(rows: Sequence[FittedConstant]) -> list[FittedConstant]:
    """Expert constants of unmeasured precisions below 16 bits, copied from measured ones.

    Padding and scales slow grouped GEMMs of few tokens in all these precisions alike; 16-bit GEMMs have neither.
    """
    groups: dict[str, list[FittedConstant]] = {}
    for row in rows:
        if row.family == "serving_experts" and (row.generation, row.software) == (ANY, ANY):
            groups.setdefault(row.constant, []).append(row)
    results = []
    for some in groups.values():
        own = [row for row in some if row.precision in _QUANTISED]
        if len(own) < 2 or any(row.precision == ANY for row in some):
            continue
        value = rounded(math.exp(added(math.log(row.value) for row in own) / len(own)))
        missing = [name for name in _QUANTISED if name not in {row.precision for row in own}]
        results += [
            replace(
                own[0], precision=name, value=value, fit_set="", num_rows=0, kind="assumption", notes=_OF_PRECISIONS
            )
            for name in missing
        ]
    return results


def kernels_of_other_generations(rows: Sequence[FittedConstant]) -> list[FittedConstant]:
    """Mean kernel efficiencies of a stack, for generations without rows of it."""
    groups: dict[tuple[str, str, str, str], list[FittedConstant]] = {}
    for row in rows:
        if row.family not in (STACK, EXPERTS) and row.generation != ANY:
            groups.setdefault((row.family, row.precision, row.software, row.constant), []).append(row)
    return [
        replace(
            some[0],
            generation=ANY,
            value=rounded(added(one.value for one in some) / len(some)),
            fit_set=" ".join(one.fit_set for one in some if one.fit_set),
            num_rows=sum(one.num_rows for one in some),
            notes="mean of the generations that were fitted",
        )
        for some in groups.values()
    ]


def slowdowns_of_other_generations(rows: Sequence[FittedConstant]) -> list[FittedConstant]:
    """Slowdown of software on generations without rows of it, if its slowdown depends on the generation.

    Slowdowns vary between generations about as much as between software: the geometric mean of the software's slowdown
    on other generations and the median over all software.
    """
    own: dict[str, dict[str, FittedConstant]] = {}
    for row in rows:
        if (row.family, row.constant) == SLOWDOWN and not _apart(row.software):
            own.setdefault(row.software, {})[row.generation] = row
    logs = {
        name: math.log(some[ANY].value)
        if ANY in some
        else added(math.log(one.value) for one in some.values()) / len(some)
        for name, some in own.items()
    }
    middle = float(np.median(list(logs.values()))) if logs else 0.0
    return [
        replace(
            next(iter(some.values())),
            generation=ANY,
            value=rounded(math.exp(0.5 * (logs[name] + middle))),
            fit_set=" ".join(one.fit_set for one in some.values() if one.fit_set),
            num_rows=sum(one.num_rows for one in some.values()),
            notes="half way between other generations and the median of software",
        )
        for name, some in own.items()
        if ANY not in some
    ]


def _apart(software: str) -> bool:
    return software == ANY or any(fnmatchcase(software, one) for one in _APART)


def and_constants(catalog: Catalog, constants: Sequence[FittedConstant]) -> Catalog:
    """Catalog whose calibration has more constants; they replace rows with the same key."""
    return catalog.with_tables([joined_tables(catalog.tables["calibration"], calibration_table(constants))])


def of_other_software(published: Published, catalog: Catalog, rows: Sequence[FittedConstant]) -> list[FittedConstant]:
    """Kernel slowdown of unmeasured software: the value without bias on the mean over measured stacks.

    Each stack with a slowdown (or with the kernels of such a stack) is predicted as unmeasured, with the constants of
    all software. At the returned slowdown the mean over stacks of their median log errors is zero; each model and
    accelerator counts once, and so does each stack, since the next one is a new stack. Empty if a slowdown of all
    software was fitted.
    """
    known = [row for row in rows if (row.family, row.constant) == SLOWDOWN]
    stacks = {row.software for row in known if not _apart(row.software)}
    if not stacks or any(row.software == ANY for row in known):
        return []
    plans = plans_to_fit(published, catalog)
    entries = errors_of(plans, (STEP_TIME,))
    alike = [same_kernels(name) in stacks for name in entries.software.tolist()]
    own = np.array(alike, dtype=bool) & may_be_fitted(plans, entries)
    plans, entries = taken(plans, entries, own)
    means = []
    for slowdown in _TRIED:
        result = _of_software(known[0], slowdown)
        errors, _ = log_errors(
            replace(_without_name(plans), catalog=and_constants(plans.catalog, [result])), (STEP_TIME,)
        )
        medians = _medians(entries.software, entries.family, aligned(errors, entries))
        means.append(added(medians) / len(medians))
    value = rounded(math.exp(float(np.interp(0.0, means, [math.log(slowdown) for slowdown in _TRIED]))))
    return [_of_software(known[0], value)]


def _of_software(like: FittedConstant, value: float) -> FittedConstant:
    return replace(
        like, generation=ANY, software=ANY, value=value, fit_set="", num_rows=0, kind="assumption", notes=_NEEDED
    )


def _without_name(plans: PublishedPlans) -> PublishedPlans:
    """Plans, with what their software does by default, of software that has no constants of its own."""
    models = plans.catalog.rows("models", plans.plans.text("model"), plans.plans, "model")
    table = with_software_defaults(plans.plans, plans.catalog, models)
    columns = {**table.columns, "software": np.full(len(table), _UNMEASURED, dtype=object)}
    return replace(plans, plans=Table(table.kind, columns, table.place, table.auto))


def _medians(software: np.ndarray, family: np.ndarray, errors: Array) -> list[float]:
    """Median error of each software; a model on an accelerator counts once."""
    results = []
    for name in sorted(set(software.tolist())):
        own = software == name
        count = Counter(family[own].tolist())
        results.append(
            weighted_quantile(errors[own], np.array([1.0 / count[one] for one in family[own].tolist()]), 0.5)
        )
    return results
