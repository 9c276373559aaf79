"""Commands on what decides: ``uncertainty`` of results and ``worth`` of a change; options of uncertain choices."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from xlperf.base.errors import Fault, InputError
from xlperf.cli.options import (
    Chosen,
    Command,
    InputFile,
    bounds_options,
    catalog_for,
    catalog_option,
    chosen_options,
    examples,
    output_option,
    processes_option,
    read_one_kind,
    vary_line,
    without_auto,
)
from xlperf.cli.output import deliver, is_workbook, parts, progress, say, text_table, write_sheets, wrote

if TYPE_CHECKING:
    from xlperf.catalog.catalog import Catalog
    from xlperf.explore.candidates import Bounds
    from xlperf.explore.search_results import Search
    from xlperf.explore.uncertainty import Robust


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
    from xlperf.explore.objectives import limits_of
    from xlperf.explore.sweep import Sweep
    from xlperf.explore.uncertainty import Uncertainty, sheet_ranges
    from xlperf.explore.vary import LATIN_HYPERCUBE, Sampling, read_variation
    from xlperf.explore.workers import all_processes

    table = read_one_kind(plans, chosen)
    asked = read_variation(table.kind, [vary_line(text) for text in vary], "--vary")
    if asked.auto:
        raise InputError(Fault("--vary", f"{asked.auto[0]} is auto: write a range, or auto in the plans"))
    kept = limits_of(table.kind, limits, "--limit")
    if sobol & (sobol - 1):
        raise click.UsageError(f"--sobol takes a power of two, as 1024, got {sobol}")
    known = catalog_for(catalog, plans, [table])
    table = without_auto(table, known, {})
    varied = (*asked.varied, *(sheet_ranges(table, known, asked.varied) if ranges else ()))
    if not varied and not asked.values and not band:
        raise click.UsageError("nothing is uncertain: give --vary, as --vary 'prices.rental price=x0.7..x1.5'")
    sampling = Sampling(draws, LATIN_HYPERCUBE, seed)
    whole = Sweep(table, known, asked.values, varied, sampling)
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
