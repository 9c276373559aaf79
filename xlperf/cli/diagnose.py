"""``xlperf diagnose``: why a run is slower or faster than its plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from xlperf.cli.options import (
    RESULTS,
    Chosen,
    Command,
    InputFile,
    OutputFile,
    bounds_options,
    catalog_for,
    catalog_option,
    chosen_options,
    examples,
    read_one,
    without_auto,
)
from xlperf.cli.output import asked_of, deliver, is_json, is_workbook, parts, progress, say, write_sheets, wrote

if TYPE_CHECKING:
    from xlperf.catalog.catalog import Catalog
    from xlperf.catalog.table import Table
    from xlperf.explore.candidates import Bounds
    from xlperf.explore.causes import Change


@click.command(
    cls=Command,
    short_help="Rank what would explain that a run is slower or faster than its plan.",
    epilog=examples(
        "xlperf diagnose study.xlsx --name 'Llama-3 70B, 64 H100, bf16' --measured 'step time=20 s'",
        "xlperf diagnose plans.csv --measured 'step time=38' --measured 'memory=61 GiB'",
        "xlperf diagnose plans.csv --measured 'step time=38' --before 'step time=31'",
        "xlperf diagnose plans.csv --log train.log --log-before yesterday.log",
        "xlperf diagnose plans.csv --log train.log --profile trace.json",
        "xlperf diagnose plans.csv --measured 'tpot=25 ms' --measured 'ttft=900 ms' -o why.xlsx",
        "xlperf diagnose plans.csv --log train.log -o better.csv",
    ),
)
@click.argument("plans", type=InputFile())
@click.option(
    "--measured",
    "measured",
    multiple=True,
    metavar="'RESULT=NUMBER'",
    help="What was measured, in the unit of the result or with one: step time, ttft, tpot, tokens per second, memory, "
    "time optimizer ... May be repeated: each narrows the causes down. Remainder and waterfall are of the first "
    "outside its band. Without it: the columns of the plan that are so named, measured step time (s) ...",
)
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=InputFile(),
    metavar="FILE",
    help="Take what was measured from a training log (Megatron-LM with its timers, NeMo, torchtitan, nanotron, "
    "MaxText) or a benchmark result (vLLM, SGLang, TensorRT-LLM, genai-perf, InferenceX; text or JSON): medians of "
    "steps without the warm-up; power from nvidia-smi --query-gpu=timestamp,power.draw --format=csv. May be repeated.",
)
@click.option(
    "--log-before",
    "logs_before",
    multiple=True,
    type=InputFile(),
    metavar="FILE",
    help="The same of a run before something changed.",
)
@click.option(
    "--profile",
    type=InputFile(),
    metavar="FILE",
    help="A Chrome or Kineto trace of one accelerator, or its times by class of kernels (CSV, JSON: class and ms a "
    "step): shown beside what is predicted, and used as measured.",
)
@click.option("--profile-before", type=InputFile(), metavar="FILE", help="The same of a run before something changed.")
@click.option(
    "--profile-steps",
    type=click.IntRange(min=1),
    help="Steps that the traces cover; default: their ProfilerStep annotations.",
)
@click.option(
    "--before",
    "before",
    multiple=True,
    metavar="'RESULT=NUMBER'",
    help="The same of a run before something changed: predictions are scaled to it, and their band is narrower.",
)
@click.option(
    "--top", type=click.IntRange(min=1), default=8, show_default=True, help="Number of explanations at the most."
)
@click.option(
    "--mine",
    "kept",
    metavar="RUNS.csv",
    type=OutputFile(".csv"),
    help="Write the plan as it was found to run, with what was measured, as a row for xlperf calibrate --mine: what "
    "remains then moves the predictions of plans like it.",
)
@click.option("--all", "every", is_flag=True, help="Rank causes even where all that was measured is inside the band.")
@chosen_options("the first")
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    type=RESULTS,
    help="Write the better plan of the remedy, or the plan itself if none is better, as a row of .csv or .parquet (- "
    "for CSV on standard output); or the explanations as .json, or as .xlsx with a waterfall and the better plan.",
)
@bounds_options
@catalog_option
def diagnose(
    plans: str,
    measured: tuple[str, ...],
    logs: tuple[str, ...],
    logs_before: tuple[str, ...],
    profile: str | None,
    profile_before: str | None,
    profile_steps: int | None,
    before: tuple[str, ...],
    top: int,
    kept: str | None,
    every: bool,
    chosen: Chosen,
    output: str | None,
    bounds: Bounds,
    catalog: str | None,
) -> None:
    """Rank the changes of one plan of PLANS, one or two at a time, that would explain what was measured.

    Tried are, among others, recomputation, sequence parallelism, interleaving, overlap, precision, graphs, attention
    kernels, slow links and accelerators, power caps, host and data loading, imbalance of experts; of serving engines
    also batch, prefix cache, KV cache and speculative decoding. Each has its predicted value, its probability and what
    to look at or set. A measurement inside the 80 % band of the prediction needs no explanation, unless an end of the
    band lies more than 1.5 times away from the prediction: such a band explains nothing.

    The probability is how common a cause is, times how well it fits within the band. How common: of a setting, a tenth
    of its share of 115 public launch scripts; of faults and fall-backs, which nobody counts in public, 3 % each. With a
    run before the change the band is that of a ratio of two runs: repeatability where a change alters nothing, and a
    quarter of what it alters. The likeliest comes first, unless it leaves 5 % or more of the first measurement and one
    of the next two, at least a third as likely, adds a cause to it and leaves less.

    A cause that is not in the list competes with all of them: probabilities add up to less than 1 where none fits well.
    A log whose settings, model or FLOP per token contradict the plan is reported. Causes that the arguments of the log
    exclude are not tried.

    The last lines are a remedy: the best mapping of the same model on the same accelerators, with the same batch or
    load and precision, that the stack starts, and settings that were off. Its gain is the ratio of two predictions;
    flags that change are listed.

    Exit code 1 if nothing that is tried comes near the measurement: the first explanation leaves it outside its band.
    """
    from xlperf.explore.diagnose import diagnose as diagnosed
    from xlperf.explore.diagnose import measured_of, read_measured
    from xlperf.explore.remedy import remedy

    plan = read_one(plans, chosen)
    known = catalog_for(catalog, plans, [plan])
    plan = without_auto(plan, known, bounds)
    measured += _logged(logs)
    before += _logged(logs_before)
    remarks, excluded = _stated(logs, plan, known)
    if profile is not None:
        measured += _profiled(profile, profile_steps, plan, known)
    if profile_before is not None:
        before += _profiled(profile_before, profile_steps, plan, None)
    readings = read_measured(plan.kind, measured, before) or measured_of(plan)
    if not readings:
        raise click.UsageError("give --measured 'step time=38', or a column measured step time in the plan")
    with progress(0, "variants of the plan") as done:
        found = diagnosed(plan, known, readings, top, done, every, excluded)
        cure = remedy(plan, known, readings if found.near else ())
    say(*remarks, err=True)
    for reading in found.readings:
        say(reading.words, err=output is not None)
    if kept is not None:
        from xlperf.explore.diagnose import as_it_ran

        ran = as_it_ran(plan, found)
        write_sheets(kept, [(plan.kind, parts(ran))])
        wrote(kept, 1, "run")
    if output is not None and is_workbook(output):
        from xlperf.workbook.report.result_front import write_diagnosis

        write_diagnosis(output, found, *asked_of(), cure.lines, cure.plan)
        wrote(output, len(found.explanations), "explanation")
    elif output is not None and not is_json(output):
        deliver(output, cure.plan.kind, parts(cure.plan, cure.results), "plan")
    elif output is not None or len(found.explanations):
        whole = parts(found.explanations)
        deliver(output, "diagnosis", whole, "explanation", [part for part in whole if part[0].name not in _AT_LENGTH])
    if output is None:
        for rank, advice in enumerate(found.explanations["advice"].tolist(), 1):
            say(f"{rank}: {advice}")
        say(*(words for words in (found.unexplained, found.telling) if words))
    say(*cure.lines, err=output is not None)
    if not found.near:
        rest = f": the first leaves {found.remainder:+.1%}" if len(found.explanations) else ""
        say(f"{NOTHING_NEAR}{rest}", err=True)
        raise click.exceptions.Exit(1)


NOTHING_NEAR = "no change that is tried comes near what was measured"


def _logged(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Results of logs as --measured takes them."""
    if not paths:
        return ()
    from xlperf.interop.logs import read_log

    values = [value for path in paths for value in read_log(path).results]
    say(*(value.words for value in values), err=True)
    return tuple(value.text for value in values)


def _stated(paths: tuple[str, ...], plan: Table, catalog: Catalog) -> tuple[list[str], frozenset[Change]]:
    """How logs contradict a plan and which causes they exclude, in lines, and the changes that they exclude."""
    if not paths:
        return [], frozenset()
    from xlperf.explore.causes import changes
    from xlperf.explore.log_facts import contradictions, ruled_out, too_slow
    from xlperf.interop.logs import read_log, read_logged

    lines: list[str] = []
    excluded: set[Change] = set()
    for path in paths:
        name, log, logged = Path(path).name, read_log(path), read_logged(path)
        lines += contradictions(plan, catalog, name, log, logged)
        out = ruled_out(plan.kind, logged) | too_slow(plan, catalog, log)
        left = {change.cause for change in changes(plan.kind) if change not in out}
        causes = [cause for cause in dict.fromkeys(change.cause for change in changes(plan.kind)) if cause not in left]
        lines += [f"{name}: excludes {', '.join(causes)}"] if causes else []
        excluded |= out
    return lines, frozenset(excluded)


def _profiled(path: str, steps: int | None, plan: Table, catalog: Catalog | None) -> tuple[str, ...]:
    """What a profile says, as --measured takes it; with a catalog also beside what is predicted, class by class."""
    from xlperf.explore.causes import by_class, measured_texts
    from xlperf.interop.logs import read_profile

    found = read_profile(path, steps)
    if catalog is not None:
        for line in by_class(plan, catalog, found):
            say(line, err=True)
    return tuple(measured_texts(plan.kind, found))


_AT_LENGTH = ("advice", "change")
