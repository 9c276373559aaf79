"""``xlperf diagnose``: why a run is slower or faster than its plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from xlperf.cli.command import Chosen, command
from xlperf.cli.options import catalog_for, read_one, without_auto
from xlperf.cli.output import asked_of, deliver, is_json, is_workbook, parts, progress, say, write_sheets, wrote

if TYPE_CHECKING:
    from xlperf.catalog.catalog import Catalog
    from xlperf.catalog.table import Table
    from xlperf.explore.candidates import Bounds
    from xlperf.explore.causes import Change


@command()
def diagnose(
    plans: str, measured: tuple[str, ...], logs: tuple[str, ...], logs_before: tuple[str, ...], profile: str | None,
    profile_before: str | None, profile_steps: int | None, before: tuple[str, ...], top: int, mine: str | None,
    every: bool, chosen: Chosen, output: str | None, bounds: Bounds, catalog: str | None,
) -> None:  # fmt: skip
    """Rank the changes of one plan of PLANS, one or two at a time, that would explain a measurement.

    The candidates include recomputation, sequence parallelism, interleaving, overlap, precision, graphs, attention
    kernels, slow links and accelerators, power caps, host and data loading, imbalance of experts; for serving engines
    also batch, prefix cache, KV cache and speculative decoding. Each has its predicted value, its probability and
    advice. A measurement inside the 80 % band of the prediction needs no explanation, unless an end of the band lies
    more than 1.5 times away from the prediction: such a band explains nothing.

    The probability is the prior of a cause times its likelihood within the band. Prior: for a setting, a tenth of its
    share of 115 public launch scripts; for faults and fall-backs, which nobody counts in public, 3 % each. With a run
    before the change the band describes the ratio of two runs: repeatability if a change alters nothing, and a quarter
    of the change otherwise. The likeliest comes first, unless it leaves 5 % or more of the first measurement and one of
    the next two, at least a third as likely, adds a cause to it and leaves less.

    An unlisted cause competes with all candidates: probabilities add up to less than 1 if none fits well. A log whose
    settings, model or FLOP per token contradict the plan is reported. Causes that the arguments of the log exclude are
    not tried.

    The last lines are a remedy: the best mapping of the same model on the same accelerators, with the same batch or
    load and precision, that the stack starts, and settings that were off. Its gain is the ratio of two predictions;
    changed flags are listed.

    Exit code 1 if no candidate comes near the measurement: the first explanation leaves it outside its band.
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
        diagnosis = diagnosed(plan, known, readings, top, done, every, excluded)
        cure = remedy(plan, known, readings if diagnosis.near else ())
    say(*remarks, err=True)
    for reading in diagnosis.readings:
        say(reading.words, err=output is not None)
    if mine is not None:
        from xlperf.explore.diagnose import as_it_ran

        ran = as_it_ran(plan, diagnosis)
        write_sheets(mine, [(plan.kind, parts(ran))])
        wrote(mine, 1, "run")
    if output is not None and is_workbook(output):
        from xlperf.workbook.report.result_front import write_diagnosis

        write_diagnosis(output, diagnosis, *asked_of(), cure.lines, cure.plan)
        wrote(output, len(diagnosis.explanations), "explanation")
    elif output is not None and not is_json(output):
        deliver(output, cure.plan.kind, parts(cure.plan, cure.results), "plan")
    elif output is not None or len(diagnosis.explanations):
        whole = parts(diagnosis.explanations)
        deliver(output, "diagnosis", whole, "explanation", [part for part in whole if part[0].name not in _AT_LENGTH])
    if output is None:
        for rank, advice in enumerate(diagnosis.explanations["advice"].tolist(), 1):
            say(f"{rank}: {advice}")
        say(*(words for words in (diagnosis.unexplained, diagnosis.telling) if words))
    say(*cure.lines, err=output is not None)
    if not diagnosis.near:
        rest = f": the first leaves {diagnosis.remainder:+.1%}" if len(diagnosis.explanations) else ""
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
    from xlperf.explore.causes import changes, contradictions, ruled_out, too_slow
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
    """Results of a profile for --measured; with a catalog, print them beside the prediction by kernel class."""
    from xlperf.explore.causes import by_class, measured_texts
    from xlperf.interop.logs import read_profile

    profile = read_profile(path, steps)
    if catalog is not None:
        for line in by_class(plan, catalog, profile):
            say(line, err=True)
    return tuple(measured_texts(plan.kind, profile))


_AT_LENGTH = ("advice", "change")
