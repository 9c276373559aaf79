"""Sweeps, uncertainty, worth and diagnoses as people ask for them: the commands and the functions for notebooks read
their options here, and take the tables that they show from here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from xlperf.base.errors import Fault, InputError, OptionError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import Part, parts, results_of, split_header
from xlperf.catalog.table import Table
from xlperf.engine.tables import Progress
from xlperf.explore.asked_search import Lines
from xlperf.explore.candidates import Bounds, with_auto, with_mapping
from xlperf.explore.causes import (
    Change,
    by_class,
    changes,
    contradictions,
    measured_texts,
    ruled_out,
    too_slow,
)  # fmt: skip
from xlperf.explore.diagnose import Diagnosis, diagnose, measured_of, read_measured
from xlperf.explore.objectives import Objective, default_objective, limits_of, objective_of
from xlperf.explore.remedy import Remedy, remedy
from xlperf.explore.search import SHOWN, stacked
from xlperf.explore.search_results import are_owned
from xlperf.explore.sweep import Best, Sweep, Swept, unmoved_words
from xlperf.explore.uncertainty import Uncertainty, sheet_ranges
from xlperf.explore.vary import LATIN_HYPERCUBE, Sampling, read_variation
from xlperf.explore.worth import break_even, read_changes, usual_changes, worth
from xlperf.interop.logs import read_log, read_logged, read_profile

TOP = 10
"""Plans of a sweep that an objective or a limit keeps by default. [-]"""
NOTHING_NEAR = "no change that is tried comes near what was measured"


class AskedSweep(NamedTuple):
    """A sweep, the results that are asked for, and which plans remain."""

    whole: Sweep
    best: Best | None  # None: all remain
    named: frozenset[str]  # columns that vary, and the name
    results: tuple[str, ...]  # named by the user; none for all
    asked_for: tuple[str, ...]  # objective, limits, results

    @property
    def unmoved(self) -> list[str]:
        """A line for each column that has no effect."""
        return unmoved_words(self.whole, self.asked_for)

    @property
    def wanted(self) -> tuple[str, ...]:
        """Columns that the user asks for, the objective first."""
        return tuple(dict.fromkeys([*([self.best.objective.column.name] if self.best else []), *self.asked_for]))

    def blocks(self, rows: Swept) -> tuple[list[Part], list[Part]]:
        """All columns of some rows, or the varied columns and the named results; and the columns that decide."""
        key = [part for part in parts(rows.plans) if part[0].name in self.named] + rows.varied
        wanted = self.wanted if self.results else (*self.wanted, *SHOWN[rows.plans.kind])
        chosen = [part for part in parts(rows.results) if part[0].name in wanted]
        blank = rows.results.number("fits") != 1.0
        reason: list[Part] = [
            (column, np.where(blank, values, "")) for column, values in parts(rows.results) if column.name == "reason"
        ]
        whole = [*key, *chosen] if self.results else [*parts(rows.plans), *rows.varied, *parts(rows.results)]
        return whole, [*key, *chosen, *reason]

    def words(self, rows: Swept) -> str:
        """How many plans remain of how many."""
        best = self.best
        if best is None:
            return f"{len(self.whole):,} plans computed"
        limits = f" with {' and '.join(limit.words for limit in best.limits)}" if best.limits else ""
        if not len(rows.plans):
            return f"none of {len(self.whole):,} plans fits{limits}"
        goal = best.objective.words
        return f"{goal}: the best {len(rows.plans):,} that fit{limits}; {len(self.whole):,} plans computed"


def asked_sweep(
    table: Table, catalog: Catalog, vary: Lines, drawn: Sampling | None, wanted: Sequence[str], objective: str | None,
    limits: Sequence[str], top: int | None, bounds: Bounds,
) -> AskedSweep:  # fmt: skip
    """Read a sweep."""
    asked = read_variation(table.kind, vary, "--vary")
    table = with_auto(table, asked.auto, "--vary")
    for one in asked.varied:
        if one.shape and drawn is None:
            raise InputError(Fault("--vary", f"{one.column.name}: give values, not two ends, or --samples"))
    named = {"name", *asked.values, *table.auto, *(one.column.name for one in asked.varied)}
    named |= {one.name for one in asked.varied if one.sheet == table.kind}
    results = _named_results(table.kind, wanted)
    goal: Objective | None = objective_of(table.kind, objective, "--objective", owned=True) if objective else None
    required = tuple(limits_of(table.kind, limits, "--limit", owned=True))
    asked_for = dict.fromkeys([*([goal.column.name] if goal else []), *(one.column.name for one in required), *results])
    whole = Sweep(table, catalog, asked.values, asked.varied, drawn, bounds, are_owned(table.kind, asked_for))
    best = None
    if top is not None or objective is not None or limits:
        best = Best(whole, goal or default_objective(table, [*named]), required, top or TOP)
    return AskedSweep(whole, best, frozenset(named), results, tuple(asked_for))


def _named_results(kind: str, wanted: Sequence[str]) -> tuple[str, ...]:
    """Columns of results that a user names: numbers, fits, or reason."""
    names = [(split_header(text)[0], text) for text in wanted]
    known = results_of(kind).by_name
    return tuple(
        name if name in known else objective_of(kind, text, "--result", owned=True).column.name for name, text in names
    )


def asked_uncertainty(
    table: Table, catalog: Catalog, resolved: Callable[[Table], Table], result: str, vary: Lines, limits: Sequence[str],
    band: bool, ranges: bool, draws: int, seed: int, sobol: int, processes: int,
) -> tuple[Table, Table]:  # fmt: skip
    """How sure a result of plans is, and the effect of each uncertain input.

    ``resolved``: replaces ``auto`` in the plans.
    """
    asked = read_variation(table.kind, vary, "--vary")
    if asked.auto:
        raise InputError(Fault("--vary", f"{asked.auto[0]} is auto: write a range, or auto in the plans"))
    required = limits_of(table.kind, limits, "--limit", owned=True)
    wanted = objective_of(table.kind, result, "--result", owned=True)
    owned = are_owned(table.kind, [wanted.column.name, *(limit.column.name for limit in required)])
    if sobol & (sobol - 1):
        raise OptionError(f"--sobol takes a power of two, as 1024, got {sobol}")
    table = resolved(table)
    varied = (*asked.varied, *(sheet_ranges(table, catalog, asked.varied) if ranges else ()))
    if not varied and not asked.values and not band:
        raise OptionError("nothing is uncertain: give --vary, as --vary 'prices.rental price=x0.7..x1.5'")
    sampling = Sampling(draws, LATIN_HYPERCUBE, seed)
    whole = Sweep(table, catalog, asked.values, varied, sampling, owned=owned)
    study = Uncertainty(whole, result, band, processes, tuple(required))
    return study.summary(), study.effects(sobol)


def asked_worth(
    table: Table, catalog: Catalog, vary: Lines, limits: Sequence[str], mapping: bool, against: Sequence[str],
    processes: int, bounds: Bounds, done: Progress,
) -> Table:  # fmt: skip
    """Worth of changes of each plan, or at which cost of an hour other accelerators are as cheap."""
    if against and vary:
        raise OptionError("give --vary or --against, not both")
    wanted = read_changes(table.kind, vary, "--vary")
    required = limits_of(table.kind, limits, "--limit")
    tables = []
    for index in range(len(table)):
        plan = table.take([index])
        plan = with_mapping(plan) if mapping else plan
        if against:
            tables.append(break_even(plan, against, catalog, required, done, processes, **bounds))
        else:
            asked = wanted or usual_changes(plan, catalog, required)
            tables.append(worth(plan, catalog, asked, required, done, processes, **bounds))
    return stacked(tables)


class Evidence(NamedTuple):
    """Measurements of a run, from numbers, logs and profiles."""

    measured: Sequence[str] = ()
    logs: Sequence[str] = ()
    profile: str | None = None

    def texts(self, kind: str, steps: int | None, note: Callable[[str], None]) -> list[str]:
        """The measured results, as ``--measured`` takes them; ``note`` gets a line for each one from a log."""
        values = [value for path in self.logs for value in read_log(path).results]
        for value in values:
            note(value.words)
        profiled = measured_texts(kind, read_profile(self.profile, steps)) if self.profile is not None else []
        return [*self.measured, *(value.text for value in values), *profiled]


class Diagnosed(NamedTuple):
    """Explanations of a run and the remedy."""

    diagnosis: Diagnosis
    cure: Remedy
    notes: list[str]  # contradictions between logs and the plan; times of kernels

    @property
    def nothing_near(self) -> str:
        """That no explanation is near the measurements; "" if one is."""
        if self.diagnosis.near:
            return ""
        rest = f": the first leaves {self.diagnosis.remainder:+.1%}" if len(self.diagnosis.explanations) else ""
        return f"{NOTHING_NEAR}{rest}"

    @property
    def lines(self) -> list[str]:
        """Advice for each explanation, then the unexplained measurements, and the one that decides."""
        advice = self.diagnosis.explanations.text("advice").tolist()
        more = (self.diagnosis.unexplained, self.diagnosis.telling)
        return [*(f"{rank}: {words}" for rank, words in enumerate(advice, 1)), *filter(None, more)]


def asked_diagnosis(
    plan: Table, catalog: Catalog, run: Evidence, before: Evidence, steps: int | None, top: int, every: bool,
    done: Progress, note: Callable[[str], None],
) -> Diagnosed:  # fmt: skip
    """Explain a run of one plan without ``auto``; ``note`` gets lines on the files at once."""
    texts, texts_before = (one.texts(plan.kind, steps, note) for one in (run, before))
    notes, excluded = _stated(run.logs, plan, catalog)
    for line in by_class(plan, catalog, read_profile(run.profile, steps)) if run.profile is not None else ():
        note(line)
    readings = read_measured(plan.kind, texts, texts_before) or measured_of(plan)
    if not readings:
        raise OptionError("give --measured 'step time=38', or a column measured step time in the plan")
    diagnosis = diagnose(plan, catalog, readings, top, done, every, excluded)
    return Diagnosed(diagnosis, remedy(plan, catalog, readings if diagnosis.near else ()), notes)


def _stated(paths: Sequence[str], plan: Table, catalog: Catalog) -> tuple[list[str], frozenset[Change]]:
    """How logs contradict a plan and which causes they exclude, in lines, and the changes that they exclude."""
    lines: list[str] = []
    excluded: set[Change] = set()
    for path in paths:
        name, log, logged = Path(path).name, read_log(path), read_logged(path)
        lines += contradictions(plan, catalog, name, log, logged)
        out = ruled_out(plan.kind, logged) | too_slow(plan, catalog, log)
        left = {change.cause for change in changes(plan.kind) if change not in out}
        causes = [cause for cause in dict.fromkeys(change.cause for change in changes(plan.kind)) if cause not in left]
        lines += [f"{name}: excludes {', '.join(causes)}"] if causes else []
        excluded |= out
    return lines, frozenset(excluded)
