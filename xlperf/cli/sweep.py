"""Command ``sweep``: every plan of a grid or of samples, in blocks, or the best of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

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
    read_one_kind,
    vary_line,
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
    wrote,
)

if TYPE_CHECKING:
    from xlperf.explore.candidates import Bounds
    from xlperf.explore.sweep import Best, Sweep, Swept


@click.command(
    cls=Command,
    short_help="Compute plans over a grid of values of their columns and of the catalog's.",
    epilog=examples(
        "xlperf sweep plans.csv --vary 'tensor parallel=1,2,4,8' --vary precision=bf16,fp8 -o grid.csv",
        "xlperf sweep study.xlsx --sheet inference --vary 'accelerators.memory bandwidth=2,4,8' -o grid.xlsx",
        "xlperf sweep plans.csv --vary 'networks.link bandwidth=x0.5,x1,x2' --vary 'global batch size=256,512'",
        "xlperf sweep plans.csv --vary 'accelerators.memory bandwidth=2..16' --samples 10000000 "
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
    from xlperf.explore.sweep import Best, Sweep, best_rows
    from xlperf.explore.vary import Sampling, read_variation
    from xlperf.explore.workers import all_processes

    table = read_one_kind(plans, chosen)
    asked = read_variation(table.kind, [vary_line(text) for text in vary], "--vary")
    table = with_auto(table, asked.auto, "--vary")
    for one in asked.varied:
        if one.shape and samples is None:
            raise InputError(Fault("--vary", f"{one.column.name}: a sweep needs values, not two ends, or --samples"))
    known = catalog_for(catalog, plans, [table])
    drawn = Sampling(samples, sampling, seed) if samples is not None else None
    whole = Sweep(table, known, asked.values, asked.varied, drawn, bounds)
    named = {"name", *asked.values, *table.auto, *(one.column.name for one in asked.varied)}
    named |= {one.name for one in asked.varied if one.sheet == table.kind}
    results = _named_results(table.kind, wanted)
    if top is not None or objective is not None or limits:
        goal = objective_of(table.kind, objective, "--objective") if objective else default_objective(table, [*named])
        best = Best(whole, goal, tuple(limits_of(table.kind, limits, "--limit")), top or TOP)
        with progress(len(whole), f"{len(whole):,} {table.kind} plans") as done:
            found = best_rows(best, machines.processes or all_processes(), machines.scheduler, done)
        said = _best_words(best, found)
        say(said, err=True)
        if not len(found.plans):
            raise click.exceptions.Exit(1)
        asked_for = dict.fromkeys([goal.column.name, *(limit.column.name for limit in best.limits), *results])
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
    return tuple(name if name in known else objective_of(kind, text, "--result").column.name for name, text in names)


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
