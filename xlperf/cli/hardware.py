"""Commands on hardware: ``device`` (derived accelerators), ``optimise`` (their shares) and ``time`` (one kernel)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from xlperf.base.errors import Fault, InputError
from xlperf.catalog.schema import table_schema
from xlperf.cli.options import (
    Chosen,
    Command,
    InputFile,
    OutputFile,
    catalog_for,
    catalog_of,
    catalog_option,
    chosen_options,
    examples,
    output_option,
    read_one,
    results_option,
)
from xlperf.cli.output import deliver, is_workbook, parts, progress, say, text_table, write_sheets, wrote

if TYPE_CHECKING:
    import numpy as np

    from xlperf.explore.allocate import Allocation

BLOCK = 16_384
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
OPERATIONS = table_schema("operations").by_name["operation"].choices
_TEXTS = {
    "network": "Network; default: that of the accelerator.",
    "stack": "inference or training: whose kernels are used.  [default: inference]",
    "software": "Engine or training stack that keys the calibration.",
    "precision": "As in plans.  [default: bf16]",
    "kv-precision": "Of the cache; default: as in plans.",
}
_NUMBERS = {
    "size": "Buffer of a rank in the sense of nccl-tests, or bytes that a kernel moves: '64 MiB'; MB without a unit.",
    "group": "Ranks in the collective.",
    "stride": "Distance of neighbouring ranks.  [default: 1]",
    "num-accelerators": "Accelerators of the job.  [default: group x stride]",
    "m": "Rows of the output of a GEMM.",
    "n": "Columns of the output of a GEMM.",
    "k": "Inner dimension of a GEMM.",
    "batch": "GEMMs in one call, or sequences.  [default: 1]",
    "num-attention-heads": "Query heads per rank.",
    "num-query-groups": "Key-value heads per rank.  [default: as query heads]",
    "head-size": "Elements per head.  [default: 128]",
    "query-length": "Query tokens per sequence.",
    "key-length": "Key-value tokens per sequence.  [default: query length]",
    "causal": "yes or no.  [default: yes]",
}
_SIZE = re.compile(r"\s*([-+.\d]+(?:[eE][-+]?\d+)?)\s*(?![eE][-+]?\d+\s*$)([A-Za-z]\S*)\s*")


@click.command(
    cls=Command,
    short_help="Derive accelerators from a logic node, budgets and shares.",
    epilog=examples(
        "xlperf device study.xlsx",
        "xlperf device study.xlsx --compare",
        "xlperf device devices.csv -o results.xlsx --catalog study.xlsx",
    ),
)
@click.argument("devices", type=InputFile())
@results_option
@click.option(
    "--compare",
    is_flag=True,
    help="Compare the devices that name an accelerator in the column compared with to what that states; exit code 1 "
    "where one differs by more than 20 %.",
)
@catalog_option
def device(devices: str, output: str | None, compare: bool, catalog: str | None) -> int:
    """Derive every row of DEVICES, a CSV or Parquet file, a workbook, or - for CSV on standard input.

    Rows have the columns of the sheet devices: node, core, memory and link technology; area, perimeter and power
    budgets; shares. Results are peak rates, on-chip and main memory, links, power by part, area by part, and the cost
    where a package is named. A device that cannot be built has blank results and a reason. A row of accelerators that
    names the device in its column device takes these numbers, and plans run on it.
    """
    import numpy as np

    from xlperf.catalog.read import read_designs
    from xlperf.engine.devices import evaluate_devices

    table = read_designs(devices, kinds=("devices",))
    known = catalog_of(catalog, devices)
    if compare:
        from xlperf.explore.device_check import TOLERANCE, reverse_check

        found = reverse_check(table, known)
        deliver(output, found.kind, parts(found), "device")
        far = ~(np.abs(found["difference"]) <= TOLERANCE)
        return 1 if far.any() else 0
    block = len(table) if output is None or is_workbook(output) else BLOCK
    pieces = []
    with progress(len(table), f"{len(table):,} devices") as done:
        for start in range(0, len(table), block):
            rows = table.take(slice(start, start + block))
            pieces.append((table.kind, parts(rows, evaluate_devices(rows, known))))
            done(len(rows))
    if output is None:
        say(*text_table(pieces[0][1]))
        return 0
    write_sheets(output, pieces)
    wrote(output, len(table), "device")
    return 0


@click.command(
    cls=Command,
    short_help="Find the shares of a device that make time, cost or energy of a plan smallest.",
    epilog=examples(
        "xlperf optimise plans.csv --objective step-time          plans.csv: a plan on '2 nm HBM4e (derived)'",
        "xlperf optimise plans.csv --row 2 --objective cost --catalog study.xlsx -o best.xlsx",
    ),
)
@click.argument("plans", type=InputFile())
@chosen_options("the first")
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
    chosen: Chosen,
    objective: str | None,
    seed: int,
    generations: int,
    output: str | None,
    catalog: str | None,
) -> None:
    """Divide the die area and edge of a device so that one plan of PLANS runs best within its budgets.

    The row of the plan's accelerator must name a row of the sheet devices in its column device. Free are the shares
    for cores, cache, memory and links; node, areas, power budget, core, memory and link technology stay. Each
    candidate is judged by its best plan of a grid: all splits of the accelerators into tensor, pipeline and expert
    parallel, with micro batches and recomputation (training) or batch sizes where the plan leaves them blank
    (inference). The search is differential evolution (pip install scipy) and never ends worse than the shares as given.
    """
    from xlperf.explore.allocate import OBJECTIVES, optimal_allocation

    plan = read_one(plans, chosen)
    known = catalog_for(catalog, plans, [plan])
    goal = objective or next(iter(OBJECTIVES[plan.kind]))
    with progress(generations, f"{generations} generations") as done:
        found = optimal_allocation(plan, known, goal, seed, generations=generations, progress=done)
    say(*_summary(found, goal, plan.kind))
    if output is not None:
        sheets = [("devices", parts(found.device, found.derived)), (plan.kind, parts(found.plan, found.outcome))]
        write_sheets(output, sheets)
        say(f"{output}: the device and its plan", err=True)


def _summary(found: Allocation, goal: str, kind: str) -> list[str]:
    """The result in lines: objective, shares, device, plan."""
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


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, text in reversed((_TEXTS | _NUMBERS).items()):
        flags = ("-" + name,) if len(name) == 1 else ("--" + name,)
        command = click.option(*flags, metavar="VALUES" if name in _NUMBERS else name.upper(), help=text)(command)
    return command


@click.command(
    "time",
    cls=Command,
    short_help="Time one collective or kernel by itself, as plans do.",
    epilog=examples(
        "xlperf time all-reduce --accelerator H100-SXM-80GB --group 8 --size '1 MiB,64 MiB,1 GiB'",
        "xlperf time all-to-all --accelerator H100-SXM-80GB --group 64 --size 32 --network DGX-H100-rails",
        "xlperf time gemm --accelerator B200-SXM-180GB -m 8192 -n 8192 -k 8192 --precision fp8",
        "xlperf time prefill-attention --accelerator H200-SXM-141GB --num-attention-heads 64 --query-length 8192",
        "xlperf time decode-attention --accelerator H200-SXM-141GB --num-attention-heads 64 --num-query-groups 8 "
        "--key-length 4096 --batch 64",
    ),
)
@click.argument("operation", type=click.Choice(OPERATIONS))
@click.option("--accelerator", required=True, metavar="NAME", help="Accelerator of the catalog; may be several.")
@_options
@output_option
@catalog_option
def time(operation: str, accelerator: str, output: str | None, catalog: str | None, **given: str | None) -> None:
    """Time OPERATION by itself with the code and the calibration of plans: the number that xlperf explain shows.

    Several values with commas between make a line for each combination. Time is that of one call with nothing beside
    it; a kernel is launched ahead, as a running stack does. Bound is what, if doubled, would help most. The last
    column says whether the constants were measured on this generation or are extrapolated.

    Exit code 1, with the reason, where the accelerator or the network cannot do it.
    """
    import numpy as np

    from xlperf.catalog.table import Table
    from xlperf.engine.operations import evaluate_operations
    from xlperf.explore.space import grid
    from xlperf.explore.vary import read_values

    known = catalog_of(catalog, None)
    stated = {name.replace("_", "-"): value for name, value in given.items() if value is not None}
    values: dict[str, np.ndarray] = {}
    for name, text in {"accelerator": accelerator, **stated}.items():
        values |= read_values("operations", [_line(name, text)], _option(name), from_text=True)
    base = Table("operations", {"operation": np.array([operation], dtype=object)}, lambda _row, column: _option(column))
    table = grid(base, values)
    results = evaluate_operations(table, known)
    for row, reason in enumerate(results.text("reason").tolist()):
        if reason:
            say(f"{operation} on {table.text('accelerator')[row]}: {reason}", err=True)
    shown = [part for part in parts(table, results) if part[0].name != "reason" and not _blank(part[1])]
    deliver(output, "operations", parts(table, results), "operation", shown)
    if any(results.text("reason").tolist()):
        raise click.exceptions.Exit(1)


def _option(column: str) -> str:
    name = column.replace("_", "-")
    return {"operation": "xlperf time"}.get(name, f"-{name}" if len(name) == 1 else f"--{name}")


def _blank(values: np.ndarray) -> bool:
    return all(value == "" or value != value for value in values.tolist())


def _line(name: str, text: str) -> tuple[str, list[str]]:
    """A header and the values of an option; sizes with a unit in bytes."""
    from xlperf.base.units import UNITS

    words = text.split(",")
    found = [_SIZE.fullmatch(word) for word in words]
    if name != "size" or not any(found):
        return name, words
    sizes = []
    for word, part in zip(words, found, strict=True):
        unit = UNITS.get(part[2]) if part else UNITS["MB"]
        if unit is None or unit.dimension != "B":
            raise InputError(Fault("--size", f'cannot be in "{part[2] if part else word}"; write bytes, as 64 MiB'))
        try:
            sizes.append(repr(float(part[1] if part else word) * unit.factor))
        except ValueError:
            raise InputError(Fault("--size", f'must be a number of bytes, as 64 MiB, got "{word.strip()}"')) from None
    return f"{name} (B)", sizes
