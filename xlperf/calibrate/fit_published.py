"""Constants of training stacks, allocators and serving engines, fitted to published rows.

``fitted_families.csv`` says which constants a fit has and from which level each is pooled: ``any > software`` is one
value for all software and one for each software with enough rows, pooled towards the first. What a training stack
needs of its family is chosen from its rows. Kernels keep the constants of their own measurements.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from xlperf.calibrate.comparison import MEMORY, STEP_TIME
from xlperf.calibrate.fitted_constants import FittedConstant, fit_set, rounded
from xlperf.calibrate.fitter import FEWEST_ROWS, Parameter, Solution, most_telling, pooled_parameters, solve
from xlperf.calibrate.published import Published, PublishedPlans, package_rows
from xlperf.calibrate.published_errors import (
    Errors,
    errors_of,
    may_be_fitted,
    plans_to_fit,
    published_problem,
    row_of_sheet,
    stored_precision,
    taken,
    users_of,
)
from xlperf.catalog.calibration import ANY, declared_constants
from xlperf.catalog.catalog import Catalog

STACK, EXPERTS, ALLOCATOR = "training_software", "experts", "training_memory"
MOST_CONSTANTS = 4
"""Constants of a training stack beside its kernels."""
FEWEST_MEMORY_ROWS = 30
WORTH_IT = 0.1
"""Share of the misfit that constants of a special case must save."""
_MANY_ROWS = 40
_BY_RANK = ("rank_overhead_time", "shard_overhead_time")
_KERNELS = (
    ("attention", "compute_efficiency", "bf16"),
    ("attention_backward", "compute_efficiency", "bf16"),
    ("vector", "memory_efficiency", ANY),
    ("gemm", "compute_efficiency", "bf16"),
)
_NARROW = ("gemm", "compute_efficiency", "fp8")
_SLOWEST, _SLOWER = 0.1, 0.8
_SOURCE = "published rows of the sheet {} in validation.xlsx"
_UNIDENTIFIED = "unidentifiable parameter; held fixed at the value of all software, or at the declared default"


def fit_training(
    published: Published, catalog: Catalog, date: str, known: Sequence[FittedConstant] = ()
) -> list[FittedConstant]:
    """Fit the constants of every training stack, of kernels of its own and of its experts, all together.

    Rows of ``group`` papers are never used. A stack with fewer than eight rows gets no constants of its own. Which
    it has is chosen on dense models where there are eight such rows, so that what experts cost beyond the model of
    them does not end up in the stack.

    Parameters
    ----------
    published : Published
        Training rows.
    catalog : Catalog
        Catalog whose calibration has the kernel constants.
    date : str
        Date that the rows carry.
    known : sequence of FittedConstant, optional
        Constants to keep: their values are fitted anew, from where they are; which there are is not chosen again.

    Returns
    -------
    list of FittedConstant
        In a fixed order, without their error on rows left out.
    """
    plans = plans_to_fit(published, catalog)
    entries = errors_of(plans, (STEP_TIME,))
    if entries.num_rows(np.full(len(entries), True)) < FEWEST_ROWS:
        return []
    if known:
        parameters, _ = pooled_parameters([_as_parameter(one) for one in known], range(len(known)))
    else:
        parameters = [one for name in _named(entries.software) for one in stack_parameters(plans, entries, name)]
        parameters = _offset(parameters, family_parameters("training", plans, entries, entries.band == "mixture"))
    chosen = np.full(len(entries), True)
    solution = solve(published_problem(plans, entries, parameters, chosen), parameters)
    if not known:
        kept = _worth_it(plans, entries, parameters, solution)
        if len(kept) < len(parameters):
            parameters = _selected(_started(parameters, solution), kept)
            solution = solve(published_problem(plans, entries, parameters, chosen), parameters)
    found = _sheet_rows(plans, entries, parameters, solution, published, date)
    return found + kernels_of_other_generations(found)


def fit_memory(published: Published, catalog: Catalog, date: str) -> list[FittedConstant]:
    r"""Fit what the allocator of a stack holds, for every stack with enough rows that print reserved memory.

    .. math:: R = (M + a A) (1 + s) + b

    with the allocated memory M and the activations A of the layers as predicted.

    Parameters
    ----------
    published : Published
        Training rows.
    catalog : Catalog
        Accelerators and models; documented constants in its calibration are kept.
    date : str
        Date that the rows carry.

    Returns
    -------
    list of FittedConstant
        Activation share a, allocator share s and base b of each stack.
    """
    kinds = published.text["mem_kind"]
    rows = np.flatnonzero(published.number["peak_mem_gb"] > 0.0).tolist()
    printed = published.take([row for row in rows if "reserved" in kinds[row].casefold()])
    plans = plans_to_fit(printed, catalog)
    entries = errors_of(plans, (MEMORY,))
    found: list[FittedConstant] = []
    for name in _named(entries.software):
        own = entries.software == name
        if entries.num_rows(own) < FEWEST_MEMORY_ROWS:
            continue
        some, errors = taken(plans, entries, own)
        every = np.full(len(errors), True)
        parameters = [replace(one, pull=0.0) for one in family_parameters("memory", some, errors, every)]
        solution = solve(published_problem(some, errors, parameters, every), parameters)
        error = float(np.median(np.abs(np.expm1(solution.residuals))))
        found += [
            replace(one, error=rounded(error))
            for one in _sheet_rows(some, errors, parameters, solution, published, date)
        ]
    return found


def fit_serving(published: Published, catalog: Catalog, date: str) -> list[FittedConstant]:
    """Fit what serving engines take beyond kernels, all constants together.

    Parameters
    ----------
    published : Published
        Inference rows; those of ``group`` papers and of what is only predicted are not used.
    catalog : Catalog
        Catalog whose calibration has the kernel constants.
    date : str
        Date that the rows carry.

    Returns
    -------
    list of FittedConstant
        In a fixed order, without their error on rows left out.
    """
    plans = plans_to_fit(published, catalog)
    entries = errors_of(plans)
    if not len(entries) or entries.num_rows(may_be_fitted(plans, entries)) < FEWEST_ROWS:
        return []
    plans, entries = taken(plans, entries, may_be_fitted(plans, entries))
    every = np.full(len(entries), True)
    parameters = family_parameters("inference", plans, entries, every)
    solution = solve(published_problem(plans, entries, parameters, every), parameters)
    return _sheet_rows(plans, entries, parameters, solution, published, date)


# --- which parameters there are ------------------------------------------------------------------------------------


def family_parameters(fit: str, plans: PublishedPlans, entries: Errors, chosen: np.ndarray) -> list[Parameter]:
    """Parameters of a fit by ``fitted_families.csv``: one for each group of eight rows or more, from the general on.

    Parameters
    ----------
    fit : str
        training, memory or inference.
    plans : PublishedPlans
        Rows as plans.
    entries : Errors
        Their errors.
    chosen : np.ndarray
        Entries whose groups count.
    """
    columns = {
        "software": entries.software,
        "generation": entries.generation,
        "precision": np.array(stored_precision(plans), dtype=object)[entries.plan],
    }
    parameters: list[Parameter] = []
    for row in package_rows("fitted_families.csv"):
        if row["fit"] != fit or entries.num_rows(chosen) < FEWEST_ROWS:
            continue
        known: dict[tuple[tuple[str, str], ...], int] = {}
        for level in row["levels"].split(" > "):
            keys = [] if level == ANY else level.split()
            groups = list(zip(*(columns[name][chosen].tolist() for name in keys), strict=True)) if keys else [()]
            for group in sorted(set(groups)):
                named = tuple(zip(keys, group, strict=True))
                mask = chosen & np.logical_and.reduce([columns[name] == value for name, value in named] or [chosen])
                if entries.num_rows(mask) < FEWEST_ROWS or _same_rows(keys, named, columns, chosen):
                    continue
                parent = next((known[named[:cut]] for cut in range(len(named), -1, -1) if named[:cut] in known), -1)
                known[named] = len(parameters)
                parameters.append(
                    Parameter(
                        row["family"],
                        row["constant"],
                        **dict(named),
                        start=float(row["start"] or math.nan),
                        parent=parent,
                        fixed=bool(row["held_at"]) and named[0][1] == _reference(row["held_at"], groups),
                    )
                )
    return parameters


def _same_rows(
    keys: Sequence[str], named: Sequence[tuple[str, str]], columns: dict[str, np.ndarray], chosen: np.ndarray
) -> bool:
    """Whether a group of a software and generation is all that there is of the software."""
    if keys != ["software", "generation"]:
        return False
    return len(set(columns["generation"][chosen & (columns["software"] == named[0][1])].tolist())) < 2


def _reference(wanted: str, groups: Sequence[tuple[str, ...]]) -> str:
    """Group that stays at the default: the one that is named, else that of most entries."""
    names = sorted(group[0] for group in groups)
    return wanted if wanted in names else Counter(names).most_common(1)[0][0]


def stack_parameters(plans: PublishedPlans, entries: Errors, software: str) -> list[Parameter]:
    """The constants that the rows of a training stack call for, from where a first fit found them.

    All constants of the family are fitted, the slowdown of the kernels also by generation where there are eight rows
    of one beside as many of others, the host time per rank where there are forty rows; the four that save most are
    kept. A stack with forty rows on a generation gets kernels of its own there where they save a tenth of the misfit;
    a slowdown of all kernels by generation then gives way.

    Parameters
    ----------
    plans : PublishedPlans
        Training rows as plans.
    entries : Errors
        Their errors.
    software : str
        The stack.

    Returns
    -------
    list of Parameter
        None for fewer than eight rows.
    """
    own = entries.software == software
    dense = own & (entries.band != "mixture")
    own = dense if entries.num_rows(dense) >= FEWEST_ROWS else own
    count = entries.num_rows(own)
    if count < FEWEST_ROWS:
        return []
    plans, entries = taken(plans, entries, own)
    every = np.full(len(entries), True)
    names = [name for name in declared_constants()[STACK] if count >= _MANY_ROWS or name not in _BY_RANK]
    parameters = [Parameter(STACK, name, software=software) for name in names]
    general, kinds = names.index("kernel_slowdown"), Counter(entries.generation.tolist())
    parameters += [
        replace(parameters[general], generation=kind, parent=general)
        for kind in sorted(kinds)
        if kinds[kind] >= FEWEST_ROWS and count - kinds[kind] >= FEWEST_ROWS
    ]
    solution = solve(published_problem(plans, entries, parameters, every), parameters)
    parameters = _selected(_started(parameters, solution), most_telling(parameters, solution, MOST_CONSTANTS + 1))
    choices = [parameters]
    if len(parameters) > MOST_CONSTANTS:
        kept = range(len(parameters))
        choices = [_selected(parameters, [at for at in kept if at != gone]) for gone in kept]
    solutions = [solve(published_problem(plans, entries, choice, every), choice) for choice in choices]
    best = min(range(len(choices)), key=lambda at: solutions[at].cost)
    parameters, solution = choices[best], solutions[best]
    kernels = _kernel_parameters(plans, entries, software)
    if not kernels:
        return _started(parameters, solution)
    general_ones = [at for at, one in enumerate(parameters) if one.generation == ANY]
    slower = _offset(_selected(_started(parameters, solution), general_ones), kernels)
    found = solve(published_problem(plans, entries, slower, every), slower)
    if found.cost < (1.0 - WORTH_IT) * solution.cost:
        return _started(slower, found)
    return _started(parameters, solution)


def _kernel_parameters(plans: PublishedPlans, entries: Errors, software: str) -> list[Parameter]:
    """Efficiencies of the kernels of a stack, none above what was measured, on generations with forty rows."""
    narrow = np.array(["fp8" in str(name) for name in plans.plans.filled("precision")], dtype=bool)[entries.plan]
    found = []
    for kind in sorted(set(entries.generation.tolist())):
        own = entries.generation == kind
        if entries.num_rows(own) < _MANY_ROWS:
            continue
        wanted = [*_KERNELS, *([_NARROW] if entries.num_rows(own & narrow) >= FEWEST_ROWS else [])]
        for family, name, precision in wanted:
            key = (np.array([part], dtype=object) for part in (kind, precision, software))
            measured = float(plans.catalog.calibration.constants(family, *key)[0][name][0, 0])
            found.append(
                Parameter(
                    family,
                    name,
                    kind,
                    precision,
                    software,
                    start=_SLOWER * measured,
                    low=_SLOWEST * measured,
                    high=measured,
                    centre=measured,
                )
            )
    return found


def _worth_it(plans: PublishedPlans, entries: Errors, parameters: Sequence[Parameter], solution: Solution) -> list[int]:
    """Parameters without those of experts of a software or generation that save less than a tenth of its misfit."""
    users = users_of(plans, entries, parameters)
    misfit = entries.weights(np.full(len(entries), True)) * np.nan_to_num(np.abs(solution.residuals))
    groups: dict[tuple[str, str], list[int]] = {}
    for at, one in enumerate(parameters):
        if one.family == EXPERTS and one.software != ANY:
            groups.setdefault((one.software, one.generation), []).append(at)
    gone = set()
    for index in groups.values():
        own = np.logical_or.reduce(users[index])
        if solution.gain[index].sum() < WORTH_IT * solution.in_cost(misfit[own].sum()):
            gone.update(index)
    return [at for at in range(len(parameters)) if at not in gone]


def _selected(parameters: Sequence[Parameter], kept: Sequence[int]) -> list[Parameter]:
    """Some parameters; the children of one that goes are pooled towards its parent."""
    place = {at: new for new, at in enumerate(kept)}

    def parent(at: int) -> int:
        while at >= 0 and at not in place:
            at = parameters[at].parent
        return place.get(at, -1)

    return [replace(parameters[at], parent=parent(parameters[at].parent)) for at in kept]


def _started(parameters: Sequence[Parameter], solution: Solution) -> list[Parameter]:
    """Parameters that start from where they were found."""
    return [replace(one, start=float(value)) for one, value in zip(parameters, solution.values, strict=True)]


def _offset(first: Sequence[Parameter], second: Sequence[Parameter]) -> list[Parameter]:
    """Two lists of parameters as one."""
    return [
        *first,
        *(replace(one, parent=one.parent + len(first)) if one.parent >= 0 else one for one in second),
    ]


def _as_parameter(one: FittedConstant) -> Parameter:
    return Parameter(one.family, one.constant, one.generation, one.precision, one.software, start=one.value)


def _named(software: np.ndarray) -> list[str]:
    return sorted(set(software.tolist()))


# --- rows of the sheet ---------------------------------------------------------------------------------------------


def _sheet_rows(
    plans: PublishedPlans,
    entries: Errors,
    parameters: Sequence[Parameter],
    solution: Solution,
    published: Published,
    date: str,
) -> list[FittedConstant]:
    """Parameters as rows of the calibration sheet, with the published rows that they were fitted on."""
    users = users_of(plans, entries, parameters)
    found = []
    for at, one in enumerate(parameters):
        mask = users[at] | np.logical_or.reduce([users[other] for other in _special(parameters, at)] or [users[at]])
        identified = bool(solution.identified[at])
        named = set(entries.row_ids[mask].tolist()) if identified else set()
        found.append(
            replace(
                row_of_sheet(one, rounded(float(solution.values[at]))),
                fit_set=fit_set(named, published.text["row_id"]),
                num_rows=len(named),
                date=date,
                source=_SOURCE.format(published.kind),
                kind="measured" if identified else "assumption",
                notes="" if identified else _UNIDENTIFIED,
            )
        )
    return found


def _special(parameters: Sequence[Parameter], general: int) -> list[int]:
    """Parameters that are pooled towards one, directly or not."""
    found = [at for at, one in enumerate(parameters) if one.parent == general]
    return found + [below for at in found for below in _special(parameters, at)]


def kernels_of_other_generations(rows: Sequence[FittedConstant]) -> list[FittedConstant]:
    """Mean of the efficiencies of a stack's kernels, for generations that none of its rows were measured on."""
    groups: dict[tuple[str, str, str, str], list[FittedConstant]] = {}
    for row in rows:
        if row.family not in (STACK, EXPERTS) and row.generation != ANY:
            groups.setdefault((row.family, row.precision, row.software, row.constant), []).append(row)
    return [
        replace(
            some[0],
            generation=ANY,
            value=rounded(sum(one.value for one in some) / len(some)),
            fit_set=" ".join(one.fit_set for one in some if one.fit_set),
            num_rows=sum(one.num_rows for one in some),
            notes="mean of the generations that were fitted",
        )
        for some in groups.values()
    ]
