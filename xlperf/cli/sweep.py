"""Commands that vary inputs: ``sweep`` (grids and samples), ``uncertainty``, ``worth`` of a change, ``diagnose``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from xlperf.base.errors import Fault, InputError
from xlperf.cli.command import Chosen, Machines, Sheets, command
from xlperf.cli.options import TOP, catalog_for, read_one, read_one_kind, vary_line, without_auto
from xlperf.cli.output import (
    STANDARD,
    WORKBOOK_ROWS,
    Front,
    asked_of,
    deliver,
    is_json,
    is_workbook,
    parts,
    progress,
    say,
    text_table,
    write_sheets,
    wrote,
)

if TYPE_CHECKING:
    from xlperf.catalog.catalog import Catalog
    from xlperf.catalog.table import Table
    from xlperf.explore.candidates import Bounds
    from xlperf.explore.causes import Change
    from xlperf.explore.search_results import Search
    from xlperf.explore.sweep import Best, Sweep, Swept
    from xlperf.explore.uncertainty import Robust


@command()
def sweep(
    plans: str, vary: tuple[str, ...], samples: int | None, sampling: str, seed: int, wanted: tuple[str, ...],
    objective: str | None, limits: tuple[str, ...], top: int | None, machines: Machines, chosen: Chosen,
    output: str | None, bounds: Bounds, catalog: Sheets,
) -> None:  # fmt: skip
    """Compute plans over a grid of values of their columns and of the catalog's."""
    from xlperf.cli.blocks import Blocks, write_sweep
    from xlperf.explore.candidates import with_auto
    from xlperf.explore.objectives import default_objective, limits_of, objective_of
    from xlperf.explore.search_results import are_owned
    from xlperf.explore.sweep import Best, Sweep, best_rows, unmoved_words
    from xlperf.explore.vary import Sampling, read_variation

    table = read_one_kind(plans, chosen)
    asked = read_variation(table.kind, [vary_line(text) for text in vary], "--vary")
    table = with_auto(table, asked.auto, "--vary")
    for one in asked.varied:
        if one.shape and samples is None:
            raise InputError(Fault("--vary", f"{one.column.name}: give values, not two ends, or --samples"))
    known = catalog_for(catalog, plans, [table])
    drawn = Sampling(samples, sampling, seed) if samples is not None else None
    named = {"name", *asked.values, *table.auto, *(one.column.name for one in asked.varied)}
    named |= {one.name for one in asked.varied if one.sheet == table.kind}
    results = _named_results(table.kind, wanted)
    goal = objective_of(table.kind, objective, "--objective", owned=True) if objective else None
    goal = goal or default_objective(table, [*named])
    required = tuple(limits_of(table.kind, limits, "--limit", owned=True))
    asked_for = dict.fromkeys(
        [*([goal.column.name] if objective else []), *(one.column.name for one in required), *results]
    )
    owned = are_owned(table.kind, asked_for)
    whole = Sweep(table, known, asked.values, asked.varied, drawn, bounds, owned)
    say(*unmoved_words(whole, [*asked_for]), err=True)
    if top is not None or objective is not None or limits:
        best = Best(whole, goal, required, top or TOP)
        with progress(len(whole), f"{len(whole):,} {table.kind} plans") as done:
            rows = best_rows(best, machines.processes, machines.scheduler, done)
        words = _best_words(best, rows)
        say(words, err=True)
        if not len(rows.plans):
            raise click.exceptions.Exit(1)
        asked_for = dict.fromkeys([goal.column.name, *asked_for])
        _deliver_sweep(rows, output, named, tuple(asked_for), Front([goal.column.name], [words]), bool(results))
        return
    if output is None or is_workbook(output) or is_json(output):
        _show_sweep(whole, output, named, results)
        return
    suffix = ".csv" if output == STANDARD else Path(output).suffix.lower()
    blocks = Blocks(whole, (*sorted(named), *results) if results else (), suffix)
    write_sweep(output, blocks, machines.processes, machines.scheduler)
    wrote(output, len(whole), "plan")


def _named_results(kind: str, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Columns of results that a user names: numbers, fits, or reason."""
    from xlperf.catalog.schema import results_of, split_header
    from xlperf.explore.objectives import objective_of

    names = [(split_header(text)[0], text) for text in wanted]
    known = results_of(kind).by_name
    return tuple(
        name if name in known else objective_of(kind, text, "--result", owned=True).column.name for name, text in names
    )


def _show_sweep(whole: Sweep, output: str | None, named: set[str], results: tuple[str, ...]) -> None:
    """Compute a sweep in memory and show it, or write it to a workbook."""
    from xlperf.explore.space import MOST_PLANS
    from xlperf.explore.sweep import sweep as swept

    with progress(len(whole), "plans computed") as done:
        rows = swept(whole, done, WORKBOOK_ROWS if output is not None else MOST_PLANS)
    _deliver_sweep(rows, output, named, results, Front(results), bool(results))


def _deliver_sweep(
    rows: Swept, output: str | None, named: set[str], results: tuple[str, ...], front: Front, only: bool
) -> None:
    """Show rows of a sweep, or write them with everything, or with ``only`` the results that are named."""
    import numpy as np

    from xlperf.explore.search import SHOWN

    kind = rows.plans.kind
    key = [part for part in parts(rows.plans) if part[0].name in named] + rows.varied
    wanted = results if only else (*results, *SHOWN[kind])
    chosen = [part for part in parts(rows.results) if part[0].name in wanted]
    blank = rows.results.number("fits") != 1.0
    reason = [
        (column, np.where(blank, values, "")) for column, values in parts(rows.results) if column.name == "reason"
    ]
    table = [*key, *chosen] if only else [*parts(rows.plans), *rows.varied, *parts(rows.results)]
    deliver(output, "sweep", table, "plan", [*key, *chosen, *reason], front=front)


def _best_words(best: Best, rows: Swept) -> str:
    """How many plans remain of how many."""
    limits = f" with {' and '.join(limit.words for limit in best.limits)}" if best.limits else ""
    if not len(rows.plans):
        return f"none of {len(best.sweep):,} plans fits{limits}"
    return f"{best.objective.words}: the best {len(rows.plans):,} that fit{limits}; {len(best.sweep):,} plans computed"


@command()
def uncertainty(
    plans: str, result: str, vary: tuple[str, ...], band: bool, ranges: bool, draws: int, seed: int,
    limits: tuple[str, ...], sobol: int, processes: int, chosen: Chosen, output: str | None, catalog: Sheets,
) -> None:  # fmt: skip
    """Say how sure a result is, which plan is likely better, and which input decides."""
    from xlperf.explore.objectives import limits_of, objective_of
    from xlperf.explore.search_results import are_owned
    from xlperf.explore.sweep import Sweep
    from xlperf.explore.uncertainty import Uncertainty, sheet_ranges
    from xlperf.explore.vary import LATIN_HYPERCUBE, Sampling, read_variation

    table = read_one_kind(plans, chosen)
    asked = read_variation(table.kind, [vary_line(text) for text in vary], "--vary")
    if asked.auto:
        raise InputError(Fault("--vary", f"{asked.auto[0]} is auto: write a range, or auto in the plans"))
    required = limits_of(table.kind, limits, "--limit", owned=True)
    wanted = objective_of(table.kind, result, "--result", owned=True)
    owned = are_owned(table.kind, [wanted.column.name, *(limit.column.name for limit in required)])
    if sobol & (sobol - 1):
        raise click.UsageError(f"--sobol takes a power of two, as 1024, got {sobol}")
    known = catalog_for(catalog, plans, [table])
    table = without_auto(table, known, {})
    varied = (*asked.varied, *(sheet_ranges(table, known, asked.varied) if ranges else ()))
    if not varied and not asked.values and not band:
        raise click.UsageError("nothing is uncertain: give --vary, as --vary 'prices.rental price=x0.7..x1.5'")
    sampling = Sampling(draws, LATIN_HYPERCUBE, seed)
    whole = Sweep(table, known, asked.values, varied, sampling, owned=owned)
    study = Uncertainty(whole, result, band, processes, tuple(required))
    summary, effects = parts(study.summary()), parts(study.effects(sobol))
    if output is None:
        say(*text_table(summary), "", *text_table(effects))
    elif is_workbook(output):
        write_sheets(output, [("uncertainty", summary), ("inputs", effects)])
    else:
        write_sheets(output, [("uncertainty", summary)])
    if output is not None:
        wrote(output, len(table), "plan")


@command()
def worth(
    plans: str, vary: tuple[str, ...], limits: tuple[str, ...], mapping: bool, against: tuple[str, ...],
    processes: int, chosen: Chosen, output: str | None, bounds: Bounds, catalog: Sheets,
) -> None:  # fmt: skip
    """Say what one more TB/s, GiB, TFLOP/s, mm2, W, GB/s, MW or ms of target is worth per accelerator."""
    from xlperf.explore.candidates import with_mapping
    from xlperf.explore.objectives import limits_of
    from xlperf.explore.search import stacked
    from xlperf.explore.worth import break_even, read_changes, usual_changes
    from xlperf.explore.worth import worth as worth_of

    table = read_one_kind(plans, chosen)
    if against and vary:
        raise click.UsageError("give --vary or --against, not both")
    changes = read_changes(table.kind, [vary_line(text) for text in vary], "--vary")
    required = limits_of(table.kind, limits, "--limit")
    known = catalog_for(catalog, plans, [table])
    tables = []
    with progress(0, "plans tried") as done:
        for index in range(len(table)):
            plan = table.take([index])
            plan = with_mapping(plan) if mapping else plan
            if against:
                tables.append(break_even(plan, against, known, required, done, processes, **bounds))
            else:
                wanted = changes or usual_changes(plan, known, required)
                tables.append(worth_of(plan, known, wanted, required, done, processes, **bounds))
    deliver(output, "worth", parts(stacked(tables)), "accelerator" if against else "change")


class Doubts(NamedTuple):
    """How plans are ordered under uncertainty: by which measure, with which uncertain inputs, in how many draws."""

    measure: str | None
    uncertain: tuple[str, ...]
    draws: int
    seed: int

    def ordered(self, search: Search, catalog: Catalog, top: int | None, processes: int) -> Robust:
        """The plans of a search in robust order if it is asked for."""
        from xlperf.explore.uncertainty import Robust, robust
        from xlperf.explore.vary import read_variation

        if self.measure is None or not search.found:
            return Robust(search, [], search.words)
        asked = read_variation(search.plans.kind, [vary_line(text) for text in self.uncertain], "--uncertain")
        if asked.auto or asked.values:
            name = (*asked.auto, *asked.values)[0].replace("_", " ")
            raise InputError(Fault("--uncertain", f"{name}: write a range, as x0.8..x1.2"))
        choice = robust(search, catalog, self.measure, asked.varied, self.draws, self.seed, top, processes)
        return choice._replace(words=f"{choice.words}; {search.words}")


def doubts(robust: str | None, uncertain: tuple[str, ...], draws: int, seed: int) -> Doubts:
    """The options of a robust choice in one."""
    if uncertain and robust is None:
        raise click.UsageError("--uncertain goes with --robust average, p90 or regret")
    return Doubts(robust, uncertain, draws, seed)


@command()
def diagnose(
    plans: str, measured: tuple[str, ...], logs: tuple[str, ...], logs_before: tuple[str, ...], profile: str | None,
    profile_before: str | None, profile_steps: int | None, before: tuple[str, ...], top: int, mine: str | None,
    every: bool, chosen: Chosen, output: str | None, bounds: Bounds, catalog: str | None,
) -> None:  # fmt: skip
    """Rank what would explain that a run is slower or faster than its plan."""
    from xlperf.explore.diagnose import diagnose as diagnosed
    from xlperf.explore.diagnose import measured_of, read_measured
    from xlperf.explore.remedy import remedy

    plan = read_one(plans, chosen)
    files = tuple(text for text in measured if "=" not in text and Path(text).suffix)
    measured = tuple(text for text in measured if text not in files)
    known = catalog_for(Sheets(catalog, files), plans, [plan])
    plan = without_auto(plan, known, bounds)
    measured += _logged(logs)
    before += _logged(logs_before)
    remarks, excluded = _stated(logs, plan, known)
    if profile is not None:
        measured += _profiled(profile, profile_steps, plan, known)
    if profile_before is not None:
        before += _profiled(profile_before, profile_steps, plan, None)
    readings = read_measured(plan.kind, measured, before) or measured_of(plan)
    if not readings:
        raise click.UsageError("give --measured 'step time=38', or a column measured step time in the plan")
    with progress(0, "variants of the plan") as done:
        diagnosis = diagnosed(plan, known, readings, top, done, every, excluded)
        cure = remedy(plan, known, readings if diagnosis.near else ())
    say(*remarks, err=True)
    for reading in diagnosis.readings:
        say(reading.words, err=output is not None)
    if mine is not None:
        from xlperf.explore.diagnose import as_it_ran

        ran = as_it_ran(plan, diagnosis)
        write_sheets(mine, [(plan.kind, parts(ran))])
        wrote(mine, 1, "run")
    if output is not None and is_workbook(output):
        from xlperf.workbook.report.book import write_diagnosis

        write_diagnosis(output, diagnosis, *asked_of(), cure.lines, cure.plan)
        wrote(output, len(diagnosis.explanations), "explanation")
    elif output is not None and not is_json(output):
        deliver(output, cure.plan.kind, parts(cure.plan, cure.results), "plan")
    elif output is not None or len(diagnosis.explanations):
        whole = parts(diagnosis.explanations)
        deliver(output, "diagnosis", whole, "explanation", [part for part in whole if part[0].name not in _AT_LENGTH])
    if output is None:
        for rank, advice in enumerate(diagnosis.explanations["advice"].tolist(), 1):
            say(f"{rank}: {advice}")
        say(*(words for words in (diagnosis.unexplained, diagnosis.telling) if words))
    say(*cure.lines, err=output is not None)
    if not diagnosis.near:
        rest = f": the first leaves {diagnosis.remainder:+.1%}" if len(diagnosis.explanations) else ""
        say(f"{NOTHING_NEAR}{rest}", err=True)
        raise click.exceptions.Exit(1)


NOTHING_NEAR = "no change that is tried comes near what was measured"


def _logged(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Results of logs as --measured takes them."""
    if not paths:
        return ()
    from xlperf.interop.logs import read_log

    values = [value for path in paths for value in read_log(path).results]
    say(*(value.words for value in values), err=True)
    return tuple(value.text for value in values)


def _stated(paths: tuple[str, ...], plan: Table, catalog: Catalog) -> tuple[list[str], frozenset[Change]]:
    """How logs contradict a plan and which causes they exclude, in lines, and the changes that they exclude."""
    if not paths:
        return [], frozenset()
    from xlperf.explore.causes import changes, contradictions, ruled_out, too_slow
    from xlperf.interop.logs import read_log, read_logged

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


def _profiled(path: str, steps: int | None, plan: Table, catalog: Catalog | None) -> tuple[str, ...]:
    """Results of a profile for --measured; with a catalog, print them beside the prediction by kernel class."""
    from xlperf.explore.causes import by_class, measured_texts
    from xlperf.interop.logs import read_profile

    profile = read_profile(path, steps)
    if catalog is not None:
        for line in by_class(plan, catalog, profile):
            say(line, err=True)
    return tuple(measured_texts(plan.kind, profile))


_AT_LENGTH = ("advice", "change")
