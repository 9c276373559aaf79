"""``xlperf search``: the best of all plans that ``auto`` and stated values stand for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from xlperf.base.errors import Fault, InputError
from xlperf.cli.common import catalog_option, examples, most_options, progress, say, wrote
from xlperf.cli.files import RESULTS, Command, InputFile

if TYPE_CHECKING:
    import numpy as np

    from xlperf.catalog.table import Table
    from xlperf.explore.search import Search

TOP = 10


@click.command(
    cls=Command,
    short_help="Find the best of all plans that cells with auto stand for.",
    epilog=examples(
        "xlperf search plans.csv -o best.csv                    best 10 plans for each row with auto",
        "xlperf search study.xlsx --name mine --mapping         the whole mapping of one plan",
        "xlperf search plans.csv --vary 'tensor parallel=auto' --vary 'micro batch size=1,2,4'",
        "xlperf search plans.csv --objective cost --limit 'memory<=70' --top 3",
        "xlperf search plans.csv --vary accelerator=H100-SXM-80GB,H200-SXM-141GB --all -o all.parquet",
    ),
)
@click.argument("plans", type=InputFile())
@click.option(
    "-o",
    "--output",
    metavar="RESULTS",
    type=RESULTS,
    help="Write .xlsx, .csv or .parquet, or - for CSV on standard output, instead of showing a table.",
)
@click.option(
    "--objective",
    metavar="RESULT",
    default="",
    help="Result to make best: any in numbers, or cost, energy, throughput, or num accelerators for the fewest. "
    "Default: see above.",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="'RESULT<=NUMBER'",
    help="What a plan must keep (<=, >=, < or >), in the unit of the result or with one: 'ttft<=0.5 s'. May be "
    "repeated.",
)
@click.option(
    "--vary",
    multiple=True,
    metavar="COLUMN=VALUES",
    help="Values to try for a column of the plans, with commas between, or auto; takes the place of what the plans "
    "have. May be repeated.",
)
@click.option(
    "--mapping",
    is_flag=True,
    help="Choose the whole mapping, as if auto stood wherever the plan leaves it blank: parallel degrees, and micro "
    "batch, virtual pipeline, ZeRO stage, sequence parallel and recompute, or the load.",
)
@click.option("--top", type=click.IntRange(min=1), default=TOP, show_default=True, help="Plans to show for each row.")
@click.option("--all", "every", is_flag=True, help="Every plan that fits and keeps the limits, the best first.")
@click.option("--row", type=click.IntRange(min=1), help="Which plan, counted from 1; default: all with auto.")
@click.option("--name", help="Which plan, by its name.")
@click.option("--sheet", metavar="NAME", help="Sheet of the workbook; default: training and inference.")
@most_options
@catalog_option
def search(
    plans: str,
    output: str | None,
    objective: str,
    limits: tuple[str, ...],
    vary: tuple[str, ...],
    mapping: bool,
    top: int,
    every: bool,
    row: int | None,
    name: str | None,
    sheet: str | None,
    most: int,
    most_accelerators: int,
    catalog: str | None,
) -> None:
    """Evaluate every plan that a row of PLANS with auto stands for, and show the best.

    auto may stand in parallel degrees, micro batch, schedule, recompute, ZeRO stage, sequence parallel, precision,
    number of accelerators; of inference also in batch size or concurrency, mode and the pools. It stands for what the
    rules of plans allow: degrees that divide heads, layers, experts and accelerators. Of accelerators it stands for
    powers of two, parts of a server or pod and whole ones up to --most-accelerators; where these make many plans they
    are tried in steps, then all between the neighbours of the best, and the line says so.

    A plan must be legal, fit in memory, and keep its ttft target and tpot target and the limits. Best is the least
    step time (training), or the most tokens per second and accelerator where batches or numbers of accelerators
    differ. Of inference it is the most output tokens per second and accelerator where there are targets or the load
    is open, else the least latency. Of equal plans the one with less memory comes first, then the smaller degrees.

    Exit code 1 where nothing fits and keeps the limits; the line says what comes nearest.
    """
    from xlperf.catalog.read import read_plans
    from xlperf.cli.plans import catalog_for, picked, varied
    from xlperf.explore.candidates import with_mapping
    from xlperf.explore.objectives import limits_of
    from xlperf.explore.search import search as best

    if row is not None and name is not None:
        raise click.UsageError("give --row or --name, not both")
    tables = read_plans(plans, sheet=sheet)
    if row is not None or name is not None:
        table, index = picked(tables, plans, row, name)
        tables = [table.take([index])]
    wanted = [varied(table, vary) for table in tables]
    if mapping:
        wanted = [(with_mapping(table, values), values) for table, values in wanted]
    rows = [(table.take([index]), values) for table, values in wanted for index in _searched(table, values)]
    if not rows:
        raise InputError(
            Fault(plans, "no cell says auto: write it where a value is to be chosen, or give --mapping or --vary")
        )
    kinds = list(dict.fromkeys(one.kind for one, _ in rows))
    if len(kinds) > 1 and output is not None and Path(output).suffix.lower() != ".xlsx":
        raise InputError(Fault(plans, f"holds both kinds of plans: give --sheet {kinds[0]}, or an .xlsx output"))
    bounds = {kind: limits_of(kind, limits, "--limit") for kind in kinds}
    known = catalog_for(catalog, plans, [one for one, _ in rows])
    answers = []
    with progress(0, "plans tried") as done:
        for one, values in rows:
            kept = None if every else top
            answers.append(best(one, known, objective, bounds[one.kind], values, kept, most, done, most_accelerators))
    for (one, _), answer in zip(rows, answers, strict=True):
        say(f"{_named(one)}: {answer.words}", err=True)
    found = [answer for answer in answers if answer.found]
    if found:
        _write(found, kinds, output)
    if len(found) < len(answers):
        raise click.exceptions.Exit(1)


def _searched(table: Table, values: dict[str, np.ndarray]) -> list[int]:
    """Rows that there is something to choose in."""
    import numpy as np

    if values:
        return list(range(len(table)))
    masks = [np.asarray(mask) for mask in table.auto.values()]
    rows: list[int] = np.flatnonzero(np.logical_or.reduce(masks)).tolist() if masks else []
    return rows


def _named(one: Table) -> str:
    return str(one.text("name")[0]) or one.place(0, "name")


def _write(found: list[Search], kinds: list[str], output: str | None) -> None:
    from xlperf.cli.results import parts, write_blocks, write_workbook
    from xlperf.cli.terminal import text_table
    from xlperf.explore.auto import with_notes
    from xlperf.explore.search import SHOWN, stacked

    sheets = []
    for kind in kinds:
        own = [answer for answer in found if answer.plans.kind == kind]
        if own:
            noted = [with_notes(a.results, {0: a.words}) for a in own]
            sheets.append((kind, own, stacked([a.plans for a in own]), stacked(noted)))
    if output is None:
        for kind, own, plans, results in sheets:
            names = {"name", *own[0].searched}
            objective, limits = own[0].objective.column.name, [limit.column.name for limit in own[0].limits]
            shown = dict.fromkeys([objective, *limits, *SHOWN[kind]])
            wanted = [part for part in parts(plans) if part[0].name in names]
            known = {column.name: (column, values) for column, values in parts(results)}
            say(*text_table([*wanted, *(known[name] for name in shown)]))
    elif Path(output).suffix.lower() == ".xlsx":
        write_workbook(output, [(kind, [plans, results]) for kind, _, plans, results in sheets])
    else:
        write_blocks(output, [parts(plans, results) for _, _, plans, results in sheets])
    if output is not None:
        wrote(output, sum(len(plans) for _, _, plans, _ in sheets), "plan")
