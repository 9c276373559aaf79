"""Commands that vary inputs: ``sweep`` (grids and samples), ``uncertainty`` of results, ``worth`` of a change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from xlperf.base.errors import Fault, InputError
from xlperf.cli.command import Chosen, Machines, command
from xlperf.cli.options import TOP, catalog_for, read_one_kind, vary_line, without_auto
from xlperf.cli.output import (
    STANDARD,
    WORKBOOK_ROWS,
    Front,
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
    from xlperf.explore.candidates import Bounds
    from xlperf.explore.search_results import Search
    from xlperf.explore.sweep import Best, Sweep, Swept
    from xlperf.explore.uncertainty import Robust


@command()
def sweep(
    plans: str, vary: tuple[str, ...], samples: int | None, sampling: str, seed: int, wanted: tuple[str, ...],
    objective: str | None, limits: tuple[str, ...], top: int | None, machines: Machines, chosen: Chosen,
    output: str | None, bounds: Bounds, catalog: str | None,
) -> None:  # fmt: skip
    """Compute every plan of PLANS with every combination of the values, or with samples of them.

    The plans keep their order; the last plan column of --vary changes fastest, catalog columns change last. auto is
    chosen anew for each combination, as xlperf search does.

    A sweep to .csv or .parquet may have any number of plans: all cores compute them in blocks. A folder beside the
    output, RESULTS.parts, holds the finished blocks until the end: after a kill or a crash the same command computes
    the missing ones, and the file is the same as without.

    With --scheduler the workers of a Dask cluster compute the blocks: pip install 'xlperf[cluster]' on every machine,
    the same version; dask scheduler on one; dask worker tcp://HOST:8786 --nworkers -1 --nthreads 1 on each, or from
    Slurm, Kubernetes or a cloud with dask-jobqueue and its like. The machine of the command reads and writes files;
    another worker repeats the block of a dead one, and the bytes equal a run in one process. One machine writes about
    350,000 plans a second with all results; name the ones that you want with --result.

    With --top, --objective or --limit only the best plans that fit and satisfy the limits remain: of a sweep of any
    length, also in a workbook with its charts. Exit code 1 if none does. Without -o the table is shown.
    """
    from xlperf.cli.blocks import Blocks, write_sweep
    from xlperf.explore.candidates import with_auto
    from xlperf.explore.objectives import default_objective, limits_of, objective_of
    from xlperf.explore.search_results import are_owned
    from xlperf.explore.sweep import Best, Sweep, best_rows, unmoved_words
    from xlperf.explore.vary import Sampling, read_variation
    from xlperf.explore.workers import all_processes

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
            rows = best_rows(best, machines.processes or all_processes(), machines.scheduler, done)
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
    write_sweep(output, blocks, machines.processes or all_processes(), machines.scheduler)
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
    limits: tuple[str, ...], sobol: int, processes: int | None, chosen: Chosen, output: str | None, catalog: str | None,
) -> None:  # fmt: skip
    """Draw the uncertain inputs of PLANS and show the 5th, 50th and 95th percentile of a result.

    All plans have the same draws of inputs: the table gives the share of the draws in which each fits in memory and
    satisfies every --limit, is the best of all, and is better than the first. Results vary within their bands of the
    calibration as well, in part together for plans of one model, software and machine. A second table shows the effect
    of each input by itself, from its 5th to its 95th percentile, and the gain in the choice between the plans from
    measuring it first.

    The same seed gives the same numbers. A .xlsx output has both tables, .csv and .parquet the first. auto is chosen
    once, for the inputs of the sheets.
    """
    from xlperf.explore.objectives import limits_of, objective_of
    from xlperf.explore.search_results import are_owned
    from xlperf.explore.sweep import Sweep
    from xlperf.explore.uncertainty import Uncertainty, sheet_ranges
    from xlperf.explore.vary import LATIN_HYPERCUBE, Sampling, read_variation
    from xlperf.explore.workers import all_processes

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
    study = Uncertainty(whole, result, band, processes or all_processes(), tuple(required))
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
    processes: int | None, chosen: Chosen, output: str | None, bounds: Bounds, catalog: str | None,
) -> None:  # fmt: skip
    """Show the worth of more of a number for each of PLANS, in USD per unit, accelerator and month.

    With more of it a token costs less; the accelerator may then cost so much more that a token costs as before. auto is
    chosen anew before and after, for the least cost per token. 0 is exact: the best plan does not use more of it. The
    worth of the last unit, the loss with one less, is beside it: more if a plan only just fits. More die area has rates
    and cache in proportion. Blank: no plan fits and satisfies the limits.

    A plan with a request rate is judged at the largest rate within its targets and limits, or at its capacity.
    """
    from xlperf.explore.candidates import with_mapping
    from xlperf.explore.objectives import limits_of
    from xlperf.explore.search import stacked
    from xlperf.explore.workers import all_processes
    from xlperf.explore.worth import break_even, read_changes, usual_changes
    from xlperf.explore.worth import worth as worth_of

    table = read_one_kind(plans, chosen)
    if against and vary:
        raise click.UsageError("give --vary or --against, not both")
    changes = read_changes(table.kind, [vary_line(text) for text in vary], "--vary")
    required = limits_of(table.kind, limits, "--limit")
    known = catalog_for(catalog, plans, [table])
    tables, cores = [], processes or all_processes()
    with progress(0, "plans tried") as done:
        for index in range(len(table)):
            plan = table.take([index])
            plan = with_mapping(plan) if mapping else plan
            if against:
                tables.append(break_even(plan, against, known, required, done, cores, **bounds))
            else:
                wanted = changes or usual_changes(plan, known, required)
                tables.append(worth_of(plan, known, wanted, required, done, cores, **bounds))
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
