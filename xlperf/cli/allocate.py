"""``xlperf optimise``: the shares of a device that serve a plan best."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from xlperf.cli.common import catalog_option, examples, progress, say
from xlperf.cli.files import Command, InputFile, OutputFile

if TYPE_CHECKING:
    from xlperf.explore.allocate import Allocation

_OBJECTIVES = ("step-time", "latency", "ttft", "tpot", "cost", "energy")
_SHARES = ("compute_share", "cache_share", "memory_shoreline_share", "link_shoreline_share")
_SHOWN = (
    "num_multiprocessors",
    "sustained_clock_rate",
    "peak_flop_rate_bf16",
    "l2_capacity",
    "memory_stacks",
    "memory_capacity",
    "memory_bandwidth",
    "link_bandwidth",
    "thermal_design_power",
)


@click.command(
    cls=Command,
    short_help="Find the shares of a device that make time, cost or energy of a plan smallest.",
    epilog=examples(
        "xlperf optimise plans.csv --objective step-time          plans.csv: a plan on '2 nm HBM4e (derived)'",
        "xlperf optimise plans.csv --row 2 --objective cost --catalog study.xlsx -o best.xlsx",
    ),
)
@click.argument("plans", type=InputFile())
@click.option("--row", type=click.IntRange(min=1), help="Which plan, counted from 1; default: the first.")
@click.option("--name", help="Which plan, by its name.")
@click.option("--sheet", metavar="NAME", help="Sheet of the workbook: training or inference.")
@click.option(
    "--objective",
    type=click.Choice(_OBJECTIVES),
    default=None,
    help="What to make smallest: step-time, cost or energy of training (default: step-time); latency, ttft, tpot, "
    "cost or energy of inference (default: latency). Cost and energy are per token.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Seed: the same one, the same result."
)
@click.option(
    "--generations", type=click.IntRange(min=1), default=16, show_default=True, help="Generations of the search."
)
@click.option(
    "-o",
    "--output",
    metavar="OUT.xlsx",
    type=OutputFile(".xlsx"),
    help="Write the device, what it becomes, its plan and results.",
)
@catalog_option
def optimise(
    plans: str,
    row: int | None,
    name: str | None,
    sheet: str | None,
    objective: str | None,
    seed: int,
    generations: int,
    output: str | None,
    catalog: str | None,
) -> None:
    """Share the area and the edge of a device out so that one plan of PLANS runs best under its budgets.

    The row of the plan's accelerator must name a row of the sheet devices in its column device. Free are the shares
    for cores, cache, memory and links; node, areas, power budget, core, memory and link technology stay. Each
    candidate is judged by its best plan of a grid: all splits of the accelerators into tensor, pipeline and expert
    parallel, with micro batches and recomputation (training) or batch sizes where the plan leaves them blank
    (inference). The search is differential evolution (pip install scipy) and never ends worse than the shares as given.
    """
    from xlperf.catalog.read import read_plans
    from xlperf.cli.plans import catalog_for, picked
    from xlperf.cli.results import write_workbook
    from xlperf.explore.allocate import OBJECTIVES, optimal_allocation

    if row is not None and name is not None:
        raise click.UsageError("give --row or --name, not both")
    table, index = picked(read_plans(plans, sheet=sheet), plans, row, name)
    plan = table.take([index])
    known = catalog_for(catalog, plans, [plan])
    goal = objective or next(iter(OBJECTIVES[plan.kind]))
    with progress(generations, f"{generations} generations") as done:
        found = optimal_allocation(plan, known, goal, seed, generations=generations, progress=done)
    say(*_told(found, goal, plan.kind))
    if output is not None:
        sheets = [("devices", [found.device, found.derived]), (plan.kind, [found.plan, found.outcome])]
        write_workbook(output, sheets)
        say(f"{output}: the device and its plan", err=True)


def _told(found: Allocation, goal: str, kind: str) -> list[str]:
    """The result in lines: objective, shares, machine, plan."""
    from xlperf.catalog.schema import results_of, unit_of
    from xlperf.explore.allocate import OBJECTIVES

    column = results_of(kind).by_name[OBJECTIVES[kind][goal]]
    scale = unit_of(column).factor
    before = f"{found.start / scale:.4g}" if found.start == found.start else "none"
    lines = [
        f"{column.header}: {found.value / scale:.4g} (as given: {before}); {found.num_evaluations:,} plans evaluated"
    ]
    lines += [f"  {name.replace('_', ' ')}: {found.device.filled(name)[0]:.3f}" for name in _SHARES]
    for name in _SHOWN:
        own = results_of("devices").by_name[name]
        lines.append(f"  {own.header}: {found.derived[name][0] / unit_of(own).factor:.4g}")
    lines.append(f"  limited by: {found.derived['limited_by'][0]}")
    chosen = {
        name: found.plan[name][0]
        for name in (
            "tensor_parallel",
            "pipeline_parallel",
            "expert_parallel",
            "virtual_pipeline",
            "micro_batch_size",
            "batch_size",
            "recompute",
        )
        if name in found.plan
    }
    words = (
        f"{name.replace('_', ' ')} {value if isinstance(value, str) else format(value, 'g')}"
        for name, value in chosen.items()
    )
    lines.append(f"  best plan: {', '.join(words)}")
    return lines
