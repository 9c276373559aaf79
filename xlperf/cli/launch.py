"""``xlperf launch`` and ``xlperf plan``: from a plan to the arguments of a stack, and back."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from xlperf.base.errors import Fault, InputError
from xlperf.cli.options import Chosen, Command, InputFile, chosen_options, examples, read_one, results_option
from xlperf.cli.output import STANDARD, deliver, parts, say

_STACKS = click.Choice(["megatron", "nemo", "torchtitan", "vllm", "sglang", "trtllm"])


@click.command(
    cls=Command,
    short_help="Print the arguments that start a plan in a training or serving stack.",
    epilog=examples(
        "xlperf launch study.xlsx --name 'Llama-3 70B, 64 H100, bf16' --for megatron",
        "xlperf launch plans.csv --row 2 --for vllm > serve.sh",
    ),
)
@click.argument("plans", type=InputFile())
@click.option("--for", "stack", type=_STACKS, required=True, help="Whose arguments.")
@chosen_options("the first")
def launch(plans: str, stack: str, chosen: Chosen) -> None:
    """Print the arguments of one plan of PLANS for a stack, one per line.

    The first line names the version that the flags are of. What the stack has no flag for stands in comment lines, so
    that xlperf plan reads the same plan back.
    """
    from xlperf.catalog.launch import launch_lines

    say(*launch_lines(read_one(plans, chosen), stack))


@click.command(
    cls=Command,
    short_help="Read the plan of a launch line or script.",
    epilog=examples(
        "xlperf plan serve.sh",
        "xlperf plan train.sh --for megatron -o plans.csv",
        "xlperf launch plans.csv --for megatron | xlperf plan - | xlperf evaluate -",
    ),
)
@click.argument("file", type=InputFile())
@click.option("--for", "stack", type=_STACKS, help="Whose arguments; default: the stack that most flags are of.")
@results_option
def plan(file: str, stack: str | None, output: str) -> None:
    """Read the arguments in FILE, or - for standard input, as a plan; flags that are not known are listed.

    What a launch line does not say is asked for by name: add it as a line such as "# xlperf: accelerator = ...".
    """
    from xlperf.catalog.launch import read_launch

    try:
        text = sys.stdin.read() if file == STANDARD else Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(Fault(file, "is no text in UTF-8")) from None
    name = "standard input" if file == STANDARD else Path(file).name
    table, unknown = read_launch(text, name, stack or "")
    for flag in unknown:
        say(f"note: {name}: not read: {flag}", err=True)
    deliver(output, table.kind, parts(table), "plan")
