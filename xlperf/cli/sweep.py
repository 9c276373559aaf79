"""``xlperf sweep`` and ``xlperf solve``: plans over a grid, and the least of something that reaches a target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from xlperf.base.errors import Fault, InputError
from xlperf.cli.common import catalog_option, examples, most_options, output_option, progress, say, wrote
from xlperf.cli.files import Command, InputFile

if TYPE_CHECKING:
    from xlperf.catalog.table import Table
    from xlperf.cli.results import Part
    from xlperf.explore.solve import Solution
    from xlperf.explore.sweep import Varied

_VARY = (
    "Values to try for a column of the plans, with commas between, 1..64 for all whole numbers between, or auto; or of "
    "a catalog sheet for the rows that the plans name: 'accelerators.memory bandwidth=2,4,8' or factors, "
    "'networks.link bandwidth=x1,x2'."
)


@click.command(
    cls=Command,
    short_help="Compute plans over a grid of values of their columns and of the catalog's.",
    epilog=examples(
        "xlperf sweep plans.csv --vary 'tensor parallel=1,2,4,8' --vary precision=bf16,fp8 -o grid.csv",
        "xlperf sweep study.xlsx --sheet inference --vary 'accelerators.memory bandwidth=2,4,8' -o grid.xlsx",
        "xlperf sweep plans.csv --vary 'networks.link bandwidth=x0.5,x1,x2' --vary 'global batch size=256,512'",
    ),
)
@click.argument("plans", type=InputFile())
@click.option("--vary", multiple=True, required=True, metavar="COLUMN=VALUES", help=f"{_VARY} May be repeated.")
@click.option("--row", type=click.IntRange(min=1), help="Which plan, counted from 1; default: all.")
@click.option("--name", help="Which plan, by its name.")
@click.option("--sheet", metavar="NAME", help="Sheet of the workbook: training or inference.")
@output_option
@most_options
@catalog_option
def sweep(
    plans: str,
    vary: tuple[str, ...],
    row: int | None,
    name: str | None,
    sheet: str | None,
    output: str | None,
    most: int,
    most_accelerators: int,
    catalog: str | None,
) -> None:
    """Compute every plan of PLANS with every combination of the values.

    The plans keep their order; the last column of --vary changes fastest, those of the catalog change last. Cells that
    say auto are chosen anew for each combination, as xlperf search does.
    """
    import numpy as np

    from xlperf.cli.plans import catalog_for, vary_line
    from xlperf.cli.results import parts
    from xlperf.explore.candidates import with_auto
    from xlperf.explore.search import SHOWN
    from xlperf.explore.sweep import read_variation
    from xlperf.explore.sweep import sweep as swept

    table = _plans(plans, row, name, sheet)
    asked = read_variation(table.kind, [vary_line(text) for text in vary], "--vary")
    table = with_auto(table, asked.auto, "--vary")
    for one in asked.varied:
        if one.ends:
            raise InputError(Fault("--vary", f"{one.column.name}: a sweep needs values, not two ends"))
    known = catalog_for(catalog, plans, [table])
    with progress(0, "plans computed") as done:
        found = swept(table, known, asked.values, asked.varied, most, done, most_accelerators)
    whole = [*parts(found.plans), *found.varied, *parts(found.results)]
    named = {"name", *asked.values, *table.auto}
    shown = [part for part in parts(found.plans) if part[0].name in named] + list(found.varied)
    shown += [part for part in parts(found.results) if part[0].name in SHOWN[table.kind]]
    blank = found.results.number("fits") != 1.0
    shown += [
        (column, np.where(blank, values, "")) for column, values in parts(found.results) if column.name == "reason"
    ]
    _show(whole, shown, output, "sweep")


@click.command(
    cls=Command,
    short_help="Find the fewest accelerators, or the least of a number, that reach a target.",
    epilog=examples(
        "xlperf solve plans.csv --vary 'num accelerators=1..64' --target 'tpot<=20'",
        "xlperf solve plans.csv --vary 'num accelerators=auto' --with-auto 'tensor parallel' --target 'step time<=10'",
        "xlperf solve plans.csv --vary 'accelerators.memory bandwidth=1..16' --target 'tpot<=20'",
        "xlperf solve plans.csv --vary 'prompt length=1000,4000,16000' --largest --target 'ttft<=500'",
    ),
)
@click.argument("plans", type=InputFile())
@click.option(
    "--vary",
    required=True,
    metavar="COLUMN=VALUES",
    help=f"{_VARY} Of a catalog sheet also two ends, 1..16 or x0.5..x8, between which the answer is found.",
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="'RESULT<=NUMBER'",
    help="What a plan must reach (<=, >=, < or >), in the unit of the result or with one. May be repeated; a plan's "
    "own ttft target and tpot target count too. Fitting in memory always does.",
)
@click.option("--largest", is_flag=True, help="Find the largest value that reaches the target instead of the least.")
@click.option("--with-auto", "autos", multiple=True, metavar="COLUMN", help="Columns to choose with it, as if auto.")
@click.option("--objective", metavar="RESULT", default="", help="What decides among plans of the same value.")
@click.option("--row", type=click.IntRange(min=1), help="Which plan, counted from 1; default: all.")
@click.option("--name", help="Which plan, by its name.")
@click.option("--sheet", metavar="NAME", help="Sheet of the workbook: training or inference.")
@output_option
@most_options
@catalog_option
def solve(
    plans: str,
    vary: str,
    targets: tuple[str, ...],
    largest: bool,
    autos: tuple[str, ...],
    objective: str,
    row: int | None,
    name: str | None,
    sheet: str | None,
    output: str | None,
    most: int,
    most_accelerators: int,
    catalog: str | None,
) -> None:
    """Find for each of PLANS the least value of one column with which it fits and reaches the targets.

    All values of a column of plans are tried, with everything that cells with auto stand for. Between the two ends of
    a catalog number the answer is found within a thousandth; more of it is taken to help.

    Exit code 1 where no value reaches the targets; the line says what comes nearest.
    """
    import numpy as np

    from xlperf.cli.plans import catalog_for, vary_line
    from xlperf.explore.candidates import searched_column, with_auto
    from xlperf.explore.objectives import limits_of
    from xlperf.explore.solve import solve_catalog, solve_plan
    from xlperf.explore.sweep import read_variation

    table = _plans(plans, row, name, sheet)
    asked = read_variation(table.kind, [vary_line(vary)], "--vary")
    if not targets and not any(target in table for target in ("ttft_target", "tpot_target")):
        raise click.UsageError("give --target, as --target 'tpot<=20', or a ttft target or tpot target in the plans")
    bounds = limits_of(table.kind, targets, "--target")
    table = with_auto(table, [*autos, *asked.auto], "--with-auto" if autos else "--vary")
    known = catalog_for(catalog, plans, [table])
    varied = asked.varied[0] if asked.varied else None
    column = "" if varied else next(iter(asked.values), "") or searched_column(table.kind, asked.auto[0], "--vary")
    if column and table.schema.by_name[column].kind != "number":
        raise InputError(Fault("--vary", f"{column.replace('_', ' ')} is no number: there is no least of it"))
    found: list[tuple[str, Solution]] = []
    with progress(0, "plans tried") as done:
        for index in range(len(table)):
            one = table.take([index])
            label = str(one.text("name")[0]) or one.place(0, "name")
            if varied is not None:
                answer = solve_catalog(one, known, varied, bounds, largest, objective, most, done, most_accelerators)
            else:
                values = asked.values.get(column)
                answer = solve_plan(
                    one, known, column, values, bounds, largest, objective, most, done, most_accelerators
                )
            found.append((label, answer))
    for label, answer in found:
        say(f"{label}: {_told(answer, column, varied, largest)}", err=True)
    good = [answer for _, answer in found if answer.found]
    if good:
        from xlperf.cli.results import parts
        from xlperf.explore.search import SHOWN, stacked

        chosen, reached = stacked([a.best.plans for a in good]), stacked([a.best.results for a in good])
        extra: list[Part] = [(varied.column, np.array([a.value for a in good]))] if varied is not None else []
        named = {"name", column, *good[0].best.searched}
        results = {limit.column.name for limit in good[0].best.limits} | set(SHOWN[table.kind])
        shown = [part for part in parts(chosen) if part[0].name in named] + extra
        shown += [part for part in parts(reached) if part[0].name in results]
        _show([*parts(chosen), *extra, *parts(reached)], shown, output, table.kind)
    if len(good) < len(found):
        raise click.exceptions.Exit(1)


def _told(answer: Solution, column: str, varied: Varied | None, largest: bool) -> str:
    best = answer.best
    if not answer.found:
        return best.words
    value = varied.words(answer.value) if varied is not None else f"{column.replace('_', ' ')} {answer.value:g}"
    keep = f" with {best.kept_words}" if best.limits else ""
    others = best.chosen(without=column)
    tried = [others, best.counts.words if best.counts is not None else "", best.note]
    return "; ".join(filter(None, [f"{value} is the {'largest' if largest else 'least'}{keep}", *tried]))


def _plans(plans: str, row: int | None, name: str | None, sheet: str | None) -> Table:
    """The plans of one kind that are meant."""
    from xlperf.catalog.read import read_plans
    from xlperf.cli.plans import picked

    if row is not None and name is not None:
        raise click.UsageError("give --row or --name, not both")
    tables = read_plans(plans, sheet=sheet)
    if row is not None or name is not None:
        table, index = picked(tables, plans, row, name)
        return table.take([index])
    if len(tables) > 1:
        raise InputError(Fault(plans, f"holds both kinds of plans: give --sheet {tables[0].kind}"))
    return tables[0]


def _show(whole: list[Part], shown: list[Part], output: str | None, sheet: str) -> None:
    """A table for the terminal, or all columns to a file."""
    from xlperf.cli.results import write_blocks, write_columns
    from xlperf.cli.terminal import text_table

    if output is None:
        say(*text_table(shown))
    elif Path(output).suffix.lower() == ".xlsx":
        write_columns(output, [(sheet, whole)])
    else:
        write_blocks(output, [whole])
    if output is not None:
        wrote(output, len(whole[0][1]), "plan")
