"""Commands that vary inputs: ``sweep`` (grids and samples), ``uncertainty`` of results, ``worth`` of a change."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from xlperf.base.errors import Fault, InputError
from xlperf.cli.options import (
    TOP,
    VARY,
    Chosen,
    Command,
    InputFile,
    Machines,
    bounds_options,
    catalog_for,
    catalog_option,
    chosen_options,
    examples,
    machines_options,
    output_option,
    processes_option,
    read_one_kind,
    vary_line,
    without_auto,
)
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


@click.command(
    cls=Command,
    short_help="Compute plans over a grid of values of their columns and of the catalog's.",
    epilog=examples(
        "xlperf evaluate plans.csv --vary 'tensor parallel=1,2,4,8' --vary precision=bf16,fp8 -o grid.csv",
        "xlperf evaluate study.xlsx --sheet inference --vary 'accelerators.memory bandwidth=2,4,8' -o grid.xlsx",
        "xlperf evaluate plans.csv --vary 'networks.link bandwidth=x0.5,x1,x2' --vary 'global batch size=256,512'",
        "xlperf evaluate plans.csv --vary 'accelerators.memory bandwidth=2..16' --samples 10000000 "
        "--result cost -o samples.parquet",
    ),
)
@click.argument("plans", type=InputFile())
@click.option("--vary", multiple=True, required=True, metavar="COLUMN=VALUES", help=f"{VARY} May be repeated.")
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    help="Draw so many samples for each plan instead of all combinations; a range is then drawn from evenly.",
)
@click.option(
    "--sampling",
    type=click.Choice(["random", "latin-hypercube"]),
    default="latin-hypercube",
    show_default=True,
    help="How --samples are drawn.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of --samples.")
@click.option(
    "--result",
    "wanted",
    multiple=True,
    metavar="RESULT",
    help="Results to write, beside the name and what varies; may be repeated. Default: all, and every column of PLANS.",
)
@click.option("--objective", metavar="RESULT", help="Keep only the best plans: as of xlperf search.")
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="'RESULT<=NUMBER'",
    help="Keep only the best plans of those that keep it, as of xlperf search. May be repeated.",
)
@click.option(
    "--top", type=click.IntRange(min=1), help="Keep only so many of the best plans; with --objective or --limit 10."
)
@machines_options
@chosen_options("all")
@output_option
@bounds_options
@catalog_option
def sweep(
    plans: str,
    vary: tuple[str, ...],
    samples: int | None,
    sampling: str,
    seed: int,
    wanted: tuple[str, ...],
    objective: str | None,
    limits: tuple[str, ...],
    top: int | None,
    machines: Machines,
    chosen: Chosen,
    output: str | None,
    bounds: Bounds,
    catalog: str | None,
) -> None:
    """Compute every plan of PLANS with every combination of the values, or with samples of them.

    The plans keep their order; the last column of --vary changes fastest, those of the catalog change last. Cells that
    say auto are chosen anew for each combination, as xlperf search does.

    A sweep to .csv or .parquet may have any number of plans: they are computed in blocks by all cores. Blocks that are
    done stand in a folder beside the output, RESULTS.parts, until all are: after a kill or a crash the same command
    goes on with those that are missing, and the file is the same as without.

    With --scheduler the workers of a Dask cluster compute the blocks: pip install 'xlperf[cluster]' on every machine,
    the same version; dask scheduler on one; dask worker tcp://HOST:8786 --nworkers -1 --nthreads 1 on each, or from
    Slurm, Kubernetes or a cloud with dask-jobqueue and its like. Files are read and written by the machine that the
    command runs on; what a worker that dies had begun is computed by another, and the bytes are those of one process.
    One machine writes about 350,000 plans a second with all results; name those that you want with --result.

    With --top, --objective or --limit only the best plans are kept, of those that fit and keep the limits: of a sweep
    of any length, also in a workbook with its charts. Exit code 1 where none does.
    """
    from xlperf.cli.blocks import Blocks, write_sweep
    from xlperf.explore.candidates import with_auto
    from xlperf.explore.objectives import default_objective, limits_of, objective_of
    from xlperf.explore.owned import are_owned
    from xlperf.explore.sweep import Best, Sweep, best_rows
    from xlperf.explore.unmoved import unmoved_words
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
    kept = tuple(limits_of(table.kind, limits, "--limit", owned=True))
    asked_for = dict.fromkeys(
        [*([goal.column.name] if objective else []), *(one.column.name for one in kept), *results]
    )
    owned = are_owned(table.kind, asked_for)
    whole = Sweep(table, known, asked.values, asked.varied, drawn, bounds, owned)
    say(*unmoved_words(whole, [*asked_for]), err=True)
    if top is not None or objective is not None or limits:
        best = Best(whole, goal, kept, top or TOP)
        with progress(len(whole), f"{len(whole):,} {table.kind} plans") as done:
            found = best_rows(best, machines.processes or all_processes(), machines.scheduler, done)
        said = _best_words(best, found)
        say(said, err=True)
        if not len(found.plans):
            raise click.exceptions.Exit(1)
        asked_for = dict.fromkeys([goal.column.name, *asked_for])
        _deliver_sweep(found, output, named, tuple(asked_for), Front([goal.column.name], [said]), bool(results))
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
        found = swept(whole, done, WORKBOOK_ROWS if output is not None else MOST_PLANS)
    _deliver_sweep(found, output, named, results, Front(results), bool(results))


def _deliver_sweep(
    found: Swept, output: str | None, named: set[str], results: tuple[str, ...], front: Front, only: bool
) -> None:
    """Show rows of a sweep, or write them with everything, or with ``only`` the results that are named."""
    import numpy as np

    from xlperf.explore.search import SHOWN

    kind = found.plans.kind
    key = [part for part in parts(found.plans) if part[0].name in named] + found.varied
    wanted = results if only else (*results, *SHOWN[kind])
    chosen = [part for part in parts(found.results) if part[0].name in wanted]
    blank = found.results.number("fits") != 1.0
    reason = [
        (column, np.where(blank, values, "")) for column, values in parts(found.results) if column.name == "reason"
    ]
    table = [*key, *chosen] if only else [*parts(found.plans), *found.varied, *parts(found.results)]
    deliver(output, "sweep", table, "plan", [*key, *chosen, *reason], front=front)


def _best_words(best: Best, found: Swept) -> str:
    """What was kept of how many."""
    kept = f" with {' and '.join(limit.words for limit in best.limits)}" if best.limits else ""
    if not len(found.plans):
        return f"none of {len(best.sweep):,} plans fits{kept}"
    return f"{best.objective.words}: the best {len(found.plans):,} that fit{kept}; {len(best.sweep):,} plans computed"


@click.command(
    cls=Command,
    short_help="Say how sure a result is, which plan is likely better, and which input decides.",
    epilog=examples(
        "xlperf uncertainty plans.csv --result cost --vary 'prices.rental price=x0.7..x1..x1.5'",
        "xlperf uncertainty plans.csv --result 'step time' --vary 'networks.link bandwidth=normal:x1:0.1' --sobol 1024",
        "xlperf uncertainty plans.csv --result tpot --no-band --vary 'accelerators.memory bandwidth=3..3.5' -o u.xlsx",
    ),
)
@click.argument("plans", type=InputFile())
@click.option("--result", required=True, metavar="RESULT", help="Any in numbers, or cost, energy or throughput.")
@click.option(
    "--vary",
    multiple=True,
    metavar="COLUMN=RANGE",
    help="An uncertain number of the plans, or of a catalog sheet for the rows that they name: 2..4 even, 2..3..4 "
    "least, likeliest and largest, normal:3:0.2 mean and standard deviation, lognormal:3:0.1 median and standard "
    "deviation of the logarithm; x before numbers makes them factors: x0.8..x1..x1.3, normal:x1:0.1. Values with "
    "commas between are equally likely. May be repeated.",
)
@click.option(
    "--band/--no-band", default=True, show_default=True, help="Draw times within the calibration's 80 % band."
)
@click.option(
    "--ranges/--no-ranges",
    default=True,
    show_default=True,
    help="Draw the numbers of catalog rows that have a low and a high value, unless --vary has them.",
)
@click.option("--draws", type=click.IntRange(min=1), default=10_000, show_default=True, help="Draws of each plan.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the draws.")
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="'RESULT<=NUMBER'",
    help="As of xlperf search: a plan counts as one that fits in the draws in which it keeps it. May be repeated.",
)
@click.option(
    "--sobol",
    type=click.IntRange(min=0),
    default=0,
    help="Base samples, a power of two, of the Sobol indices of each input (needs scipy); 0: none.",
)
@processes_option
@chosen_options("all")
@output_option
@catalog_option
def uncertainty(
    plans: str,
    result: str,
    vary: tuple[str, ...],
    band: bool,
    ranges: bool,
    draws: int,
    seed: int,
    limits: tuple[str, ...],
    sobol: int,
    processes: int | None,
    chosen: Chosen,
    output: str | None,
    catalog: str | None,
) -> None:
    """Draw the uncertain inputs of PLANS and show the 5th, 50th and 95th percentile of a result.

    All plans are drawn with the same inputs: the table says in which share of the draws each fits in memory and keeps
    every --limit, is the best of all, and is better than the first. Results vary within their bands of the calibration
    as well, in part together for plans of one model, software and machine. A second table says what each input does by
    itself, from its 5th to its 95th percentile, and by how much a choice between the plans gets better where it is
    measured first.

    The same seed gives the same numbers. A .xlsx output has both tables, .csv and .parquet the first. Cells that say
    auto are chosen once, for the inputs as they are in the sheets.
    """
    from xlperf.explore.objectives import limits_of, objective_of
    from xlperf.explore.owned import are_owned
    from xlperf.explore.sweep import Sweep
    from xlperf.explore.uncertainty import Uncertainty, sheet_ranges
    from xlperf.explore.vary import LATIN_HYPERCUBE, Sampling, read_variation
    from xlperf.explore.workers import all_processes

    table = read_one_kind(plans, chosen)
    asked = read_variation(table.kind, [vary_line(text) for text in vary], "--vary")
    if asked.auto:
        raise InputError(Fault("--vary", f"{asked.auto[0]} is auto: write a range, or auto in the plans"))
    kept = limits_of(table.kind, limits, "--limit", owned=True)
    wanted = objective_of(table.kind, result, "--result", owned=True)
    owned = are_owned(table.kind, [wanted.column.name, *(limit.column.name for limit in kept)])
    if sobol & (sobol - 1):
        raise click.UsageError(f"--sobol takes a power of two, as 1024, got {sobol}")
    known = catalog_for(catalog, plans, [table])
    table = without_auto(table, known, {})
    varied = (*asked.varied, *(sheet_ranges(table, known, asked.varied) if ranges else ()))
    if not varied and not asked.values and not band:
        raise click.UsageError("nothing is uncertain: give --vary, as --vary 'prices.rental price=x0.7..x1.5'")
    sampling = Sampling(draws, LATIN_HYPERCUBE, seed)
    whole = Sweep(table, known, asked.values, varied, sampling, owned=owned)
    study = Uncertainty(whole, result, band, processes or all_processes(), tuple(kept))
    summary, effects = parts(study.summary()), parts(study.effects(sobol))
    if output is None:
        say(*text_table(summary), "", *text_table(effects))
    elif is_workbook(output):
        write_sheets(output, [("uncertainty", summary), ("inputs", effects)])
    else:
        write_sheets(output, [("uncertainty", summary)])
    if output is not None:
        wrote(output, len(table), "plan")


@click.command(
    cls=Command,
    short_help="Say what one more TB/s, GiB, TFLOP/s, mm2, W, GB/s, MW or ms of target is worth per accelerator.",
    epilog=examples(
        "xlperf worth plans.csv                                 one per cent more of each, one plan after the other",
        "xlperf worth plans.csv --mapping --name 'my plan'      with the mapping chosen anew",
        "xlperf worth plans.csv --mapping --against B200-SXM-180GB      its break-even price per hour",
        "xlperf worth plans.csv --vary 'accelerators.memory capacity=x1.25,x1.5,x2' --limit 'ttft<=500'",
        "xlperf worth plans.csv --mapping --limit 'grid power<=0.5'      and what one more MW is worth",
    ),
)
@click.argument("plans", type=InputFile())
@click.option(
    "--vary",
    multiple=True,
    metavar="COLUMN=VALUES",
    help="A number of the plans or of a catalog sheet and what it changes to, as 'accelerators.memory bandwidth=x1.1'. "
    "May be repeated. Default: 1 % more memory bandwidth, memory, peak rate, die area, power, link bandwidth, targets, "
    "and of every --limit.",
)
@click.option("--limit", "limits", multiple=True, metavar="'RESULT<=NUMBER'", help="As of xlperf search.")
@click.option("--mapping", is_flag=True, help="Choose the whole mapping anew, as xlperf search does.")
@click.option(
    "--against",
    multiple=True,
    metavar="ACCELERATOR",
    help="Show instead at which cost of an hour this accelerator makes tokens as cheaply as the plan's, each with "
    "its best plan. May be repeated.",
)
@processes_option
@chosen_options("all")
@output_option
@bounds_options
@catalog_option
def worth(
    plans: str,
    vary: tuple[str, ...],
    limits: tuple[str, ...],
    mapping: bool,
    against: tuple[str, ...],
    processes: int | None,
    chosen: Chosen,
    output: str | None,
    bounds: Bounds,
    catalog: str | None,
) -> None:
    """Show what more of a number is worth for each of PLANS, in USD per unit, accelerator and month.

    With more of it a token costs less; the accelerator may then cost so much more that a token costs as before. Cells
    that say auto are chosen anew before and after, for the least cost per token. 0 is exact: the best plan does not use
    more of it. Beside it stands what the last unit is worth, which one less would lose: more where a plan only just
    fits. More die area has rates and cache in proportion. Blank: no plan fits and keeps the limits.

    A plan with a request rate is judged at the largest rate that keeps its targets and limits, or at its capacity.
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
    kept = limits_of(table.kind, limits, "--limit")
    known = catalog_for(catalog, plans, [table])
    found, cores = [], processes or all_processes()
    with progress(0, "plans tried") as done:
        for index in range(len(table)):
            one = table.take([index])
            one = with_mapping(one) if mapping else one
            if against:
                found.append(break_even(one, against, known, kept, done, cores, **bounds))
            else:
                wanted = changes or usual_changes(one, known, kept)
                found.append(worth_of(one, known, wanted, kept, done, cores, **bounds))
    deliver(output, "worth", parts(stacked(found)), "accelerator" if against else "change")


class Doubts(NamedTuple):
    """How plans are ordered under uncertainty: by which measure, with which uncertain inputs, in how many draws."""

    measure: str | None
    uncertain: tuple[str, ...]
    draws: int
    seed: int

    def ordered(self, found: Search, catalog: Catalog, top: int | None, processes: int) -> Robust:
        """The plans of a search in robust order where that is asked for."""
        from xlperf.explore.uncertainty import Robust, robust
        from xlperf.explore.vary import read_variation

        if self.measure is None or not found.found:
            return Robust(found, [], found.words)
        asked = read_variation(found.plans.kind, [vary_line(text) for text in self.uncertain], "--uncertain")
        if asked.auto or asked.values:
            name = (*asked.auto, *asked.values)[0].replace("_", " ")
            raise InputError(Fault("--uncertain", f"{name}: write a range, as x0.8..x1.2"))
        one = robust(found, catalog, self.measure, asked.varied, self.draws, self.seed, top, processes)
        return one._replace(words=f"{one.words}; {found.words}")


def doubts_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a robust choice, as its argument ``doubts``."""

    @wraps(command)
    def called(robust: str | None, uncertain: tuple[str, ...], draws: int, seed: int, **given: Any) -> Any:
        if uncertain and robust is None:
            raise click.UsageError("--uncertain goes with --robust average, p90 or regret")
        return command(doubts=Doubts(robust, uncertain, draws, seed), **given)

    called = click.option("--seed", type=click.IntRange(min=0), default=0, help="Of the draws of --robust.")(called)
    called = click.option(
        "--draws", type=click.IntRange(min=10), default=1_000, show_default=True, help="Draws of each plan of --robust."
    )(called)
    called = click.option(
        "--uncertain",
        multiple=True,
        metavar="COLUMN=RANGE",
        help="Uncertain number of the plans or of a catalog sheet, as of xlperf uncertainty, drawn for --robust beside "
        "the bands of the calibration. May be repeated.",
    )(called)
    return click.option(
        "--robust",
        type=click.Choice(["average", "p90", "regret"]),
        help="Order the 5,000 best plans by what they are in draws of uncertain inputs and of the calibration's bands: "
        "on average, in nine draws of ten, or by least regret.",
    )(called)


def probability_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--probability``."""
    return click.option(
        "--probability",
        type=click.FloatRange(0.5, 1.0, max_open=True),
        default=0.5,
        help="With which probability the bounds are kept, by the bands of the calibration: 0.9. Default: by the "
        "prediction.",
    )(command)
