"""``xlperf launch`` and ``xlperf plan``: from a plan to the arguments of a stack, and back."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from xlperf.base.errors import Fault, InputError
from xlperf.cli.options import (
    Chosen,
    Command,
    InputFile,
    catalog_of,
    catalog_option,
    chosen_options,
    examples,
    read_one,
    results_option,
)
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

    Flags were compared with the sources of Megatron-Core 0.7 to 0.15, NeMo 1.23 to 2.3, Megatron-Bridge 0.2 to 0.5,
    torchtitan 0.1 and 0.2, vLLM 0.8, 0.11 and 0.20, SGLang 0.5.1 and 0.5.9, and trtllm-bench 1.0 (not trtllm-serve).
    """
    from xlperf.catalog.launch import launch_lines

    say(*launch_lines(read_one(plans, chosen), stack))


@click.command(
    cls=Command,
    short_help="Read the plan of a launch line, script, YAML or TOML file, or log.",
    epilog=examples(
        "xlperf plan serve.sh --set accelerator=H200-SXM-141GB --set TP=8",
        "xlperf plan train.sh --for megatron -o plans.csv",
        "xlperf plan train.log --set accelerator=H100-SXM-80GB",
        "xlperf plan train_config.toml --set accelerator=H100-SXM-80GB --set 'num accelerators=64'",
        "xlperf launch plans.csv --for megatron | xlperf plan - | xlperf evaluate -",
    ),
)
@click.argument("file", type=InputFile())
@click.option("--for", "stack", type=_STACKS, help="Whose arguments; default: the stack that most flags are of.")
@click.option(
    "--set",
    "given",
    multiple=True,
    metavar="'NAME=VALUE'",
    help="A column of the plan that FILE does not say, or a variable of its script. May be repeated.",
)
@results_option
@catalog_option
def plan(file: str, stack: str | None, given: tuple[str, ...], output: str, catalog: str | None) -> None:
    """Read the arguments in FILE, or - for standard input, as a plan.

    A log of Megatron-LM, vLLM or SGLang that lists its arguments, and the JSON of trtllm-bench or InferenceX, will do.
    Variables and arrays of a shell script are filled in where their values stand in it; nothing is executed. A
    model is found by its name or its dimensions. Flags that are not known are listed; what FILE does not say is asked
    for by name: give it with --set, or as a line such as "# xlperf: accelerator = ...".
    """
    from xlperf.catalog.launch import MOST_TEXT, read_launch

    wrong = [text for text in given if not text.partition("=")[2]]
    if wrong:
        raise click.UsageError(f'--set must be as accelerator=H100-SXM-80GB, got "{wrong[0]}"')
    try:
        with sys.stdin if file == STANDARD else Path(file).open(encoding="utf-8") as stream:
            text = stream.read(MOST_TEXT + 1)
    except UnicodeDecodeError:
        raise InputError(Fault(file, "is no text in UTF-8")) from None
    name = "standard input" if file == STANDARD else Path(file).name
    stated = {key.strip(): value.strip() for key, _, value in (one.partition("=") for one in given)}
    found = read_launch(text, name, stack or "", stated, catalog_of(catalog, None).tables["models"])
    for words, flags in (("not read", found.unknown), ("variables not known; give them with --set", found.open)):
        if flags:
            say(f"note: {name}: {words}: {'; '.join(dict.fromkeys(flags))}", err=True)
    deliver(output, found.plan.kind, parts(found.plan), "plan")
