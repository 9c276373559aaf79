"""Commands that choose plans: ``search`` (the best) and ``solve`` (the least that suffices)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

import click

from xlperf.base.errors import Fault, InputError
from xlperf.cli.options import (
    TOP,
    VARY,
    Chosen,
    Command,
    InputFile,
    bounds_options,
    catalog_for,
    catalog_option,
    chosen_options,
    examples,
    output_option,
    plan_name,
    processes_option,
    read_chosen,
    read_one_kind,
    varied,
    vary_line,
)
from xlperf.cli.output import (
    Front,
    deliver,
    is_workbook,
    parts,
    progress,
    say,
    text_table,
    write_sheets,
    wrote,
)
from xlperf.cli.sweep import Doubts, doubts_options, probability_option

if TYPE_CHECKING:
    import numpy as np

    from xlperf.catalog.catalog import Catalog
    from xlperf.catalog.table import Table
    from xlperf.cli.table_files import Part
    from xlperf.explore.candidates import Bounds
    from xlperf.explore.objectives import Limit
    from xlperf.explore.solve import Solution
    from xlperf.explore.uncertainty import Robust
    from xlperf.explore.vary import Varied


@click.command(
    cls=Command,
    short_help="Find the best of all plans that cells with auto stand for.",
    epilog=examples(
        "xlperf search plans.csv -o best.csv                    best 10 plans for each row with auto",
        "xlperf search study.xlsx --name mine --mapping         the whole mapping of one plan",
        "xlperf search plans.csv --vary 'tensor parallel=auto' --vary 'micro batch size=1,2,4'",
        "xlperf search plans.csv --objective cost --limit 'memory<=70' --top 3",
        "xlperf search plans.csv --mapping --objective 'step time' --objective memory     what nothing beats in both",
        "xlperf search plans.csv --mapping --robust regret --uncertain 'networks.link bandwidth=x0.7..x1'",
        "xlperf search plans.csv --vary accelerator=H100-SXM-80GB,H200-SXM-141GB --all -o all.parquet",
        "xlperf search plans.csv --mapping --vary 'num accelerators=auto' --objective 'run cost' "
        "--limit 'run time within 30 days'      cheapest cluster that trains this in 30 days",
        "xlperf search plans.csv --mapping --vary 'num accelerators=auto' --objective 'num accelerators' "
        "--probability 0.9      fewest that keep the targets with 90 % probability",
    ),
)
@click.argument("plans", type=InputFile())
@click.option(
    "--objective",
    "objectives",
    metavar="RESULT",
    multiple=True,
    help="Result to make best: any in numbers, or cost, owned cost, energy, throughput, or num accelerators for the "
    "fewest. "
    "Two or three of them: every plan that no other beats in all. Default: see above.",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="'RESULT<=NUMBER'",
    help="What a plan must keep (<=, >=, < or >, or in words: 'run time within 30 days'), in the unit of the result or "
    "with one: 'ttft<=0.5 s'. May be repeated.",
)
@click.option(
    "--vary",
    multiple=True,
    metavar="COLUMN=VALUES",
    help=f"{VARY} Of a catalog sheet each value is searched by itself. May be repeated.",
)
@click.option(
    "--mapping",
    is_flag=True,
    help="Choose the whole mapping, as if auto stood wherever the plan leaves it blank: parallel degrees, and micro "
    "batch, virtual pipeline, ZeRO stage, sequence parallel and recompute, or the load.",
)
@click.option("--top", type=click.IntRange(min=1), default=TOP, show_default=True, help="Plans to show for each row.")
@click.option("--all", "every", is_flag=True, help="Every plan that fits and keeps the limits, the best first.")
@probability_option
@doubts_options
@processes_option
@chosen_options("all with auto", "training and inference")
@output_option
@bounds_options
@catalog_option
def search(
    plans: str,
    output: str | None,
    objectives: tuple[str, ...],
    limits: tuple[str, ...],
    vary: tuple[str, ...],
    mapping: bool,
    top: int,
    every: bool,
    probability: float,
    doubts: Doubts,
    processes: int | None,
    chosen: Chosen,
    bounds: Bounds,
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
    import numpy as np

    from xlperf.catalog.schema import PLAN_TABLES
    from xlperf.explore.candidates import with_mapping
    from xlperf.explore.objectives import limits_of, rival_of
    from xlperf.explore.search import own_targets
    from xlperf.explore.search import search as best
    from xlperf.explore.uncertainty import MOST_DRAWN
    from xlperf.explore.workers import all_processes

    wanted = [varied(table, vary, of_catalog=True) for table in read_chosen(plans, chosen)]
    if mapping:
        wanted = [(with_mapping(table, values), values, numbers) for table, values, numbers in wanted]
    rows = [
        (table.take([index]), values, point)
        for table, values, numbers in wanted
        for index in _searched(table, values)
        for point in _points(numbers)
    ]
    if not rows:
        raise InputError(
            Fault(plans, "no cell says auto: write it where a value is to be chosen, or give --mapping or --vary")
        )
    kinds = list(dict.fromkeys(one.kind for one, *_ in rows))
    if len(kinds) > 1 and output is not None and not is_workbook(output):
        raise InputError(Fault(plans, f"holds both kinds of plans: give --sheet {kinds[0]}, or an .xlsx output"))
    kept = {kind: limits_of(kind, limits, "--limit", probability, owned=True) for kind in kinds}
    goals = [
        (kind, rival_of(kind, name, "--objective", owned=True).column.name) for kind in kinds for name in objectives
    ]
    if len(set(goals)) < len(goals):
        raise InputError(Fault("--objective", "the same result twice: give each once"))
    known = catalog_for(catalog, plans, [one for one, *_ in rows])

    def kept_of(one: Table) -> list[Limit]:
        return [*kept[one.kind], *own_targets(one, probability)]

    answers = []
    cores = processes or all_processes()
    with progress(0, "plans tried") as done:
        for one, values, point in rows:
            number = None if every else top
            if doubts.measure:
                number = MOST_DRAWN
            plan, own = changed_for(known, one, values, point)
            first, rivals = (objectives or ("",))[0], objectives[1:]
            tried = best(plan, own, first, kept_of(plan), values, number, done, None, cores, rivals, **bounds)
            answer = doubts.ordered(tried, own, None if every or rivals else top, cores)
            here = [
                (v.column, np.array([value] * len(answer.found.plans), dtype=object if v.is_text else np.float64))
                for v, value in point
                if v.sheet not in PLAN_TABLES
            ]
            answers.append(answer._replace(columns=[*here, *answer.columns]))
    labels = [", ".join([plan_name(one), *(number.words(v) for number, v in point)]) for one, _, point in rows]
    said = [f"{label}: {answer.words}" for label, answer in zip(labels, answers, strict=True)]
    for line in said:
        say(line, err=True)
    found = [answer for answer in answers if answer.found.found]
    if found:
        _write(found, kinds, output, said)
    if len(found) < len(answers):
        raise click.exceptions.Exit(1)


def _points(numbers: Sequence[Varied]) -> list[list[tuple[Varied, float | str]]]:
    """Every combination of the values that are searched one by one; one without any where none vary."""
    return [list(zip(numbers, values, strict=True)) for values in product(*(one.values.tolist() for one in numbers))]


def changed_for(
    catalog: Catalog, plan: Table, values: Mapping[str, np.ndarray], point: Sequence[tuple[Varied, float | str]]
) -> tuple[Table, Catalog]:
    """The plan with other targets, and the catalog with other values in the rows that it, or what is tried, names."""
    from xlperf.explore.changed_catalogs import changed_catalog, with_value
    from xlperf.explore.space import grid
    from xlperf.explore.vary import NAMING

    own = [(one, value) for one, value in point if one.sheet == plan.kind]
    named = [(one, value) for one, value in point if one.sheet != plan.kind]
    if named:
        names = {name: column for name, column in values.items() if name in (*NAMING, "mode")}
        catalog = changed_catalog(catalog, grid(plan, names), named)
    for one, value in own:
        plan, _ = with_value(plan, catalog, one, value)
    return plan, catalog


def _searched(table: Table, values: dict[str, np.ndarray]) -> list[int]:
    """Rows that there is something to choose in."""
    import numpy as np

    if values:
        return list(range(len(table)))
    masks = [np.asarray(mask) for mask in table.auto.values()]
    rows: list[int] = np.flatnonzero(np.logical_or.reduce(masks)).tolist() if masks else []
    return rows


def _write(found: list[Robust], kinds: list[str], output: str | None, said: list[str]) -> None:
    import numpy as np

    from xlperf.explore.auto import with_notes
    from xlperf.explore.objectives import TARGETS
    from xlperf.explore.search import SHOWN, stacked
    from xlperf.explore.search_results import LIMITED_BY
    from xlperf.explore.uncertainty import SHOWN as DRAWN

    sheets = []
    for kind in kinds:
        own = [answer for answer in found if answer.found.plans.kind == kind]
        if own:
            noted = stacked([with_notes(one.found.results, {0: one.words}) for one in own])
            drawn = [
                (column, np.concatenate([one.columns[place][1] for one in own]))
                for place, (column, _) in enumerate(own[0].columns)
            ]
            drawn.append((LIMITED_BY, np.concatenate([one.found.limited_by for one in own])))
            sheets.append((kind, own[0].found, stacked([one.found.plans for one in own]), drawn, noted))
    if output is None:
        for kind, first, plans, drawn, results in sheets:
            names = {"name", *first.searched, *(one.column.name for one in first.rivals)}
            names |= {target for target in TARGETS.values() if target in plans and len(set(plans[target].tolist())) > 1}
            asked = [one.column.name for one in (first.objective, *first.rivals)]
            asked += [one.column.name for one in first.limits]
            shown = dict.fromkeys([*asked, *SHOWN[kind]])
            wanted = [part for part in parts(plans) if part[0].name in names]
            known = {column.name: (column, values) for column, values in parts(results)}
            told = [part for part in drawn if part[0].name in DRAWN or "." in part[0].name]
            say(*text_table([*wanted, *told, *(known[name] for name in shown if name in known), drawn[-1]]))
    else:
        write_sheets(
            output,
            [(kind, [*parts(plans), *drawn, *parts(results)]) for kind, _, plans, drawn, results in sheets],
            Front([one.column.name for _, own, *_ in sheets for one in (own.objective, *own.rivals)], said),
        )
        wrote(output, sum(len(plans) for _, _, plans, _, _ in sheets), "plan")


@click.command(
    cls=Command,
    short_help="Find the fewest accelerators, or the least of a number, that reach a target.",
    epilog=examples(
        "xlperf search plans.csv --vary 'num accelerators=1..64' --target 'tpot<=20'",
        "xlperf search plans.csv --vary 'num accelerators=auto' --with-auto 'tensor parallel' --target 'step time<=10'",
        "xlperf search plans.csv --vary 'accelerators.memory bandwidth=1..16' --target 'tpot<=20'",
        "xlperf search plans.csv --vary 'prompt length=1000,4000,16000' --largest --target 'ttft<=500'",
        "xlperf search plans.csv --vary 'request rate=1..100' --largest --limit 'ttft<=500' --limit 'tpot<=20'",
        "xlperf search plans.csv --vary 'num accelerators=1..64' --target 'tpot<=20' --probability 0.9",
    ),
)
@click.argument("plans", type=InputFile())
@click.option(
    "--vary",
    required=True,
    multiple=True,
    metavar="COLUMN=VALUES",
    help=f"{VARY} Of a catalog sheet, or of a number of the plans that is not whole, also two ends, 1..16 or "
    "x0.5..x8, between which the answer is found.",
)
@click.option(
    "--target",
    "--limit",
    "targets",
    multiple=True,
    metavar="'RESULT<=NUMBER'",
    help="What a plan must reach, as of xlperf search. May be repeated; a plan's own ttft target and tpot target count "
    "too. Fitting in memory always does.",
)
@click.option("--mapping", is_flag=True, help="Choose the whole mapping with it, as xlperf search does.")
@click.option(
    "--largest/--least", default=False, help="Find the largest value that reaches the target instead of the least."
)
@click.option("--with-auto", "autos", multiple=True, metavar="COLUMN", help="Columns to choose with it, as if auto.")
@click.option("--objective", metavar="RESULT", default="", help="What decides among plans of the same value.")
@probability_option
@processes_option
@chosen_options("all")
@output_option
@bounds_options
@catalog_option
def solve(
    plans: str,
    vary: tuple[str, ...],
    targets: tuple[str, ...],
    mapping: bool,
    largest: bool,
    autos: tuple[str, ...],
    objective: str,
    probability: float,
    processes: int | None,
    chosen: Chosen,
    output: str | None,
    bounds: Bounds,
    catalog: str | None,
) -> None:
    """Find for each of PLANS the least value of one column with which it fits and reaches the targets.

    All values of a column of plans are tried, with everything that cells with auto stand for. Between the two ends of
    a number of a catalog sheet, or of one of the plans that is not whole, the answer is found within a thousandth; more
    of it is taken to help, with --largest to hurt.

    Exit code 1 where no value reaches the targets; the line says what comes nearest.
    """
    import numpy as np

    from xlperf.explore.candidates import searched_column, with_auto, with_mapping
    from xlperf.explore.objectives import limits_of
    from xlperf.explore.owned import are_owned
    from xlperf.explore.solve import solve_number, solve_plan
    from xlperf.explore.sweep import Sweep
    from xlperf.explore.unmoved import unmoved_words
    from xlperf.explore.vary import read_variation
    from xlperf.explore.workers import all_processes

    if len(vary) > 1:
        raise click.UsageError("--target takes one --vary; give columns to choose with it as --with-auto")
    table = read_one_kind(plans, chosen)
    asked = read_variation(table.kind, [vary_line(vary[0])], "--vary")
    if not targets and not any(target in table for target in ("ttft_target", "tpot_target")):
        raise click.UsageError("give --target, as --target 'tpot<=20', or a ttft target or tpot target in the plans")
    asked_for = limits_of(table.kind, targets, "--target", probability, owned=True)
    table = with_auto(table, [*autos, *asked.auto], "--with-auto" if autos else "--vary")
    table = with_mapping(table, asked.values) if mapping else table
    known = catalog_for(catalog, plans, [table])
    number = asked.varied[0] if asked.varied else None
    if number is not None and number.shape not in ("", "uniform"):
        raise InputError(Fault("--vary", f"{number.column.name}: give values, whole numbers or two ends"))
    column = "" if number else next(iter(asked.values), "") or searched_column(table.kind, asked.auto[0], "--vary")
    declared = number.column if number is not None else table.schema.by_name[column]
    if declared.kind != "number":
        problem = f"{declared.name.replace('_', ' ')} is no number: there is no least of it"
        raise InputError(Fault("--vary", problem))
    found: list[tuple[str, Solution]] = []
    names = [limit.column.name for limit in asked_for]
    if names and not table.auto:
        tried = Sweep(table, known, asked.values, asked.varied, owned=are_owned(table.kind, names))
        say(*unmoved_words(tried, names), err=True)
    cores = processes or all_processes()
    with progress(0, "plans tried") as done:
        for index in range(len(table)):
            one = table.take([index])
            given = (asked_for, largest, objective, done, cores, probability)
            if number is not None:
                answer = solve_number(one, known, number, *given, **bounds)
            else:
                answer = solve_plan(one, known, column, asked.values.get(column), *given, **bounds)
            found.append((plan_name(one), answer))
    said = [f"{label}: {_summary(answer, column, number, largest)}" for label, answer in found]
    say(*said, err=True)
    good = [answer for _, answer in found if answer.found]
    if good:
        from xlperf.explore.search import SHOWN, stacked

        best, reached = stacked([a.best.plans for a in good]), stacked([a.best.results for a in good])
        extra: list[Part] = []
        if number is not None and (number.factors or number.sheet != table.kind):
            extra = [(number.column, np.array([a.value for a in good]))]
        named = {"name", column, number.name if number else "", *good[0].best.searched}
        results = {limit.column.name for limit in good[0].best.limits} | set(SHOWN[table.kind])
        shown = [part for part in parts(best) if part[0].name in named] + extra
        shown += [part for part in parts(reached) if part[0].name in results]
        front = Front([declared.name], said)
        deliver(output, table.kind, [*parts(best), *extra, *parts(reached)], "plan", shown, front=front)
    if len(good) < len(found):
        raise click.exceptions.Exit(1)


def _summary(answer: Solution, column: str, varied: Varied | None, largest: bool) -> str:
    best = answer.best
    if not answer.found:
        return best.words
    value = varied.words(answer.value) if varied is not None else f"{column.replace('_', ' ')} {answer.value:g}"
    keep = f" with {best.kept_words}" if best.limits else ""
    others = best.chosen(without=column)
    tried = [others, best.counts.words if best.counts is not None else "", best.note]
    return "; ".join(filter(None, [f"{value} is the {'largest' if largest else 'least'}{keep}", *tried]))
