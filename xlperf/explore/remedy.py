"""Diagnoses as people ask for them, and the remedy: the best mapping that the software starts, and its flags."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from xlperf.base.errors import InputError, OptionError
from xlperf.base.units import percent
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import MEASURED, brief, mean_of, table_schema, unit_of
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.software import with_software_defaults
from xlperf.engine.tables import Progress
from xlperf.equations.plan.dimensions import REPLICA
from xlperf.explore.causes import (
    Change,
    by_class,
    changes,
    contradictions,
    measured_texts,
    ruled_out,
    too_slow,
    with_exact_names,
)
from xlperf.explore.diagnose import Diagnosis, Measured, diagnose, measured_of, ratio_band, read_measured
from xlperf.explore.mappings import MINIMISED, SWITCHES, shape_of, switched
from xlperf.explore.objectives import GOOD, LARGER, Search, short_name
from xlperf.explore.search import search
from xlperf.explore.space import TooMany
from xlperf.explore.train import FOLLOWING, SEARCHED, best_mapping
from xlperf.interop.launch import launch_lines
from xlperf.interop.launch_stacks import stacks
from xlperf.interop.logs import LogValue, read_log, read_logged, read_profile
from xlperf.interop.software import STACKS, stack_of_software

LEAST = 0.03  # least relative speedup of a remedy [-]
NEARLY_FULL = 0.95  # share of the memory from which a remedy says how much it may need [-]
DEPENDENT = {
    "training": (
        *FOLLOWING, "sequence_parallel", "data_parallel", "expert_tensor_parallel", "first_stage_layers",
        "last_stage_layers", "recompute_group", "zero_group_size",
    ),
    "inference": ("context_method",),
}  # fmt: skip
"""Columns that belong to a mapping: another one has its defaults."""
SERVING = (
    "tensor_parallel", "pipeline_parallel", "expert_parallel", "data_parallel_attention", "expert_dispatch",
    "two_batch_overlap",
)  # fmt: skip
POOLS = ("prefill_accelerators", "prefill_tensor_parallel", "prefill_expert_parallel",
         "prefill_data_parallel_attention")  # fmt: skip
POOLED = "disaggregated"
_ARGUMENT = re.compile(r"-|[\w.+]{1,200}(?:=|: )")
"""An argument among the lines of a launch script: ``--flag``, ``key=value`` or ``key: value``."""
MOST = 400_000  # most mappings of a serving plan: a few seconds of work [-]


@dataclass(frozen=True)
class Remedy:
    """The best mapping beside the one that ran."""

    plan: Table  # the better plan; the plan itself if none is better
    results: Table
    before: Table  # results of the plan that ran
    better: bool  # whether the mapping is faster by more than :data:`LEAST`
    lines: tuple[str, ...]  # changes, gain, launch line of the difference


def remedy(plan: Table, catalog: Catalog, measured: Sequence[Measured] = ()) -> Remedy:
    """The fastest mapping of one plan without ``auto`` on its accelerators, for the same model, batch or load, and
    precision. The gain is the ratio of two predictions, applied to the measured results of the run: errors that both
    mappings share cancel.
    """
    names = with_exact_names(plan, catalog)
    columns = {name: values for name, values in names.items() if not name.startswith(MEASURED)}
    plan = replace(plan, columns=columns, auto={})
    before = evaluate(plan, catalog)
    try:
        result = _best(plan, catalog)
    except TooMany:
        words = "remedy: this plan has too many mappings to try them all; xlperf search tries some"
        return Remedy(plan, before, before, False, (words,))
    name = MINIMISED[plan.kind]
    if result.kind == GOOD:
        result = switched(result, catalog, SWITCHES[plan.kind])
    old, new = (float(results.number(name)[0]) for results in (before, result.results))
    count, accelerator = float(plan.number("num_accelerators")[0]), short_name(plan.text("accelerator")[0])
    machine = f"these {count:,.0f} {accelerator}" if count > 1.0 else f"this {accelerator}"
    starts = f" that {STACKS[stack].title} starts" if (stack := stack_of(plan)) else ""
    if result.kind != GOOD or not old > new * (1.0 + LEAST):
        tried = f"of {result.num_tried:,} tried"
        slower = f"no mapping{starts} is more than {100.0 * LEAST:g} % faster on {machine}, {tried}"
        why = f"none of {result.num_tried:,} mappings{starts} fits" if result.kind != GOOD else slower
        return Remedy(plan, before, before, False, (f"remedy: {why}",))
    better = _as_stated(result.plans.take([0]), plan)
    results = evaluate(better, catalog)
    low, high = ratio_band(name, old / new)
    band = f"(80 % band {low:.2f} to {high:.2f})"
    lines = (
        f"remedy: {', '.join(_changes(plan, better, catalog))}: {old / new:.2f} times as fast on {machine} {band}",
        f"remedy: {', '.join(_gains(before, results, measured))}; {_memory(before, results)}"
        f" ({results.text('trust')[0].lower()})",
        *_difference(plan, better, catalog, stack),
        *_copies(plan, better),
    )
    return Remedy(better, results, before, True, lines)


def stack_of(plan: Table) -> str:
    """Software with known rules and flags that a plan names, or ""."""
    return stack_of_software(str(plan.filled("software")[0]))


def _best(plan: Table, catalog: Catalog) -> Search:
    if plan.kind == "training":
        return best_mapping(_opened(plan, SEARCHED), catalog)
    pooled = str(plan.filled("mode")[0]) == POOLED
    names = (*SERVING, *(POOLS if pooled else ()))
    return search(_opened(plan, names), catalog, MINIMISED[plan.kind], most=MOST)


def _opened(plan: Table, names: Sequence[str]) -> Table:
    """A plan with ``auto`` in the mapping columns and without their dependent columns."""
    known = plan.schema.by_name
    columns = {name: values for name, values in plan.columns.items() if name not in DEPENDENT[plan.kind]}
    columns |= {name: known[name].array(["" if known[name].is_text else np.nan]) for name in names}
    return replace(plan, columns=columns, auto={name: np.ones(1, dtype=bool) for name in names}).in_order()


def _as_stated(plan: Table, like: Table) -> Table:
    """A plan without stated defaults that another plan leaves blank; columns without effect as in the other plan."""
    known = plan.schema.by_name
    blank = Table(plan.kind, {name: plan[name] for name in plan.columns if known[name].required})

    def needless(name: str) -> bool:
        if known[name].required or not _blank(like, name):
            return False
        stated, default = plan.filled(name)[0], blank.filled(name)[0]
        return bool(stated == default or (stated != stated and default != default))

    columns = {name: values for name, values in plan.columns.items() if not needless(name)}
    if "sequence_parallel" in like and not plan.filled("tensor_parallel")[0] > 1.0:
        columns["sequence_parallel"] = like["sequence_parallel"]
    return replace(plan, columns=columns).in_order()


def _blank(plan: Table, name: str) -> bool:
    return name not in plan or bool(plan[name][0] == "" or plan[name][0] != plan[name][0])


def _changes(plan: Table, better: Table, catalog: Catalog) -> Iterator[str]:
    """``tensor parallel 8 -> 2`` for every column that differs; of a blank one the default of the software."""
    run = [
        with_software_defaults(table, catalog, catalog.rows("models", table.text("model"), table, "model"))
        for table in (plan, better)
    ]
    for column in table_schema(plan.kind).columns:
        stated = [not _blank(table, column.name) for table in (plan, better)]
        if not any(stated) or (column.name == "pipeline_schedule" and better.filled("pipeline_parallel")[0] == 1.0):
            continue
        old, new = (_shown(table, column.name) for table in run)
        words = column.name.replace("_", " ")
        if old != new and column.name in FOLLOWING:
            yield from [f"{words} {new}"] if stated[1] else []
        elif old != new:
            yield f"{words} {old} -> {new or 'blank'}" if old else f"{words} {new}"


def _shown(plan: Table, name: str) -> str:
    """A value of a plan, or its default, as a cell has it; "" if it has none."""
    column, value = plan.schema.by_name[name], plan.filled(name)[0]
    if column.is_text:
        return str(value)
    if column.kind == "flag":
        return "yes" if value else "no"
    return f"{float(value) / unit_of(column).factor:.6g}" if value == value else ""


def _gains(before: Table, after: Table, measured: Sequence[Measured]) -> Iterator[str]:
    """Predictions of both plans, and the measurement scaled by the same gain."""
    kind = before.kind.removesuffix("_results")
    whole = [
        reading
        for reading in measured
        if not reading.others and not reading.column.name.startswith(("time_", "memory"))
    ]
    names = [
        reading.column.name
        for reading in whole
        if mean_of(reading.column.name) in ("ttft", "tpot", "step_time", *LARGER)
    ]
    for name in dict.fromkeys(names or [MINIMISED[kind]]):
        column = before.schema.by_name[name]
        factor = unit_of(column).factor
        old, new = (float(results.number(name)[0]) for results in (before, after))
        words = f"{column.words} {brief(old / factor)} -> {column.amount(new)} predicted"
        value = next((reading.value for reading in whole if reading.column.name == name), float("nan")) / factor
        gained = f", {brief(value)} measured -> {brief(value * new / old)}" if old > 0.0 else ""
        yield words + (gained if value == value else "")


def _memory(before: Table, after: Table) -> str:
    name = "memory_reserved" if "memory_reserved" in before else "memory"
    old, new = (float(results.number(name)[0]) / 2.0**30 for results in (before, after))
    change = f"{old:.4g} -> " if abs(new / old - 1.0) > 1e-3 else ""
    capacity, high = (float(after.number(each)[0]) / 2.0**30 for each in ("memory_capacity", "memory_high"))
    tight = f", nearly full: the 80 % band ends at {high:.4g} GiB" if new > NEARLY_FULL * capacity < high else ""
    return f"{name.replace('_', ' ')} {change}{new:.4g} of {capacity:.4g} GiB{tight}"


def _difference(plan: Table, better: Table, catalog: Catalog, stack: str) -> Iterator[str]:
    """The launch line of the difference: flags that are new or have another argument, and flags to remove."""
    if stack not in stacks():
        return
    try:
        new = _arguments(better, catalog, stack)
        old = _arguments(plan, catalog, stack)
    except InputError as error:
        yield f"remedy: {error.faults[0]}"
        return
    changed = [line for line in new if line not in old]
    flags = {line.partition(" ")[0].partition("=")[0] for line in new}
    gone = [name for line in old if (name := line.partition(" ")[0].partition("=")[0]) not in flags]
    words = " ".join(changed) + (f"; without {' '.join(gone)}" if gone else "")
    if words:
        yield f"{stack}: {words.removeprefix('; ')}"


def _copies(plan: Table, better: Table) -> Iterator[str]:
    """The number of separately started copies of a serving plan that share the load, if it changes."""
    if plan.kind != "inference" or str(plan.filled("mode")[0]) == POOLED:
        return
    old, new = (
        table.number("num_accelerators")[0] / np.prod([table.filled(each.size)[0] for each in REPLICA])
        for table in (plan, better)
    )
    if old != new:
        yield f"remedy: {new:,.0f} cop{'y serves' if new == 1.0 else 'ies share'} the load in place of {old:,.0f}"


def _arguments(plan: Table, catalog: Catalog, stack: str) -> list[str]:
    """Arguments that start a plan; only the arguments of its columns if a start would break a rule about its flags."""
    try:
        lines = launch_lines(plan, stack, shape_of(plan, catalog))
    except InputError:
        lines = launch_lines(plan, stack)
    results = [line.strip().removesuffix("\\").strip() for line in lines]
    return [line for line in results if _ARGUMENT.match(line)]


NOTHING_NEAR = "no change that is tried comes near what was measured"


_SAMPLES, _STEP = "samples per second", "step time"


def _of_batch(value: LogValue, batch: float) -> LogValue:
    """Samples per second as the step time of a global batch; other values as they are."""
    if value.result != _SAMPLES:
        return value
    time, low, high = (batch / rate for rate in (value.value, value.high, value.low))
    return value._replace(result=_STEP, unit="s", value=time, low=low, high=high)


class Evidence(NamedTuple):
    """Measurements of a run, from numbers, logs and profiles."""

    measured: Sequence[str] = ()
    logs: Sequence[str] = ()
    profile: str | None = None

    def texts(self, plan: Table, steps: int | None, note: Callable[[str], None]) -> list[str]:
        """The measured results, as ``--measured`` takes them; ``note`` gets a line for each one from a log."""
        values = [value for path in self.logs for value in read_log(path).results]
        for value in values:
            note(value.words)
        batch = plan.value("global_batch_size") if plan.kind == "training" else 0.0
        timed = any(value.result == _STEP for value in values) or not batch > 0.0
        values = [_of_batch(value, batch) for value in values if not (timed and value.result == _SAMPLES)]
        profiled = measured_texts(plan.kind, read_profile(self.profile, steps)) if self.profile is not None else []
        return [*self.measured, *(value.text for value in values), *profiled]


class Diagnosed(NamedTuple):
    """Explanations of a run and the remedy."""

    diagnosis: Diagnosis
    cure: Remedy
    notes: list[str]  # contradictions between logs and the plan; times of kernels

    @property
    def nothing_near(self) -> str:
        """That no explanation is near the measurements; "" if one is."""
        if self.diagnosis.near:
            return ""
        rest = (
            f": the first leaves {percent(self.diagnosis.remainder, signed=True)}"
            if len(self.diagnosis.explanations)
            else ""
        )
        return f"{NOTHING_NEAR}{rest}"

    @property
    def lines(self) -> list[str]:
        """Advice for each explanation, then the unexplained measurements, and the one that decides."""
        advice = self.diagnosis.explanations.text("advice").tolist()
        more = (self.diagnosis.unexplained, self.diagnosis.telling)
        return [*(f"{rank}: {words}" for rank, words in enumerate(advice, 1)), *filter(None, more)]


def asked_diagnosis(
    plan: Table,
    catalog: Catalog,
    run: Evidence,
    before: Evidence,
    steps: int | None,
    top: int,
    every: bool,
    done: Progress,
    note: Callable[[str], None],
) -> Diagnosed:
    """Explain a run of one plan without ``auto``; ``note`` gets lines on the files at once."""
    texts, texts_before = (one.texts(plan, steps, note) for one in (run, before))
    notes, excluded = _stated(run.logs, plan, catalog)
    for line in by_class(plan, catalog, read_profile(run.profile, steps)) if run.profile is not None else ():
        note(line)
    readings = read_measured(plan.kind, texts, texts_before) or measured_of(plan)
    if not readings:
        raise OptionError("give --measured 'step time=38', or a column measured step time in the plan")
    diagnosis = diagnose(plan, catalog, readings, top, done, every, excluded)
    return Diagnosed(diagnosis, remedy(plan, catalog, readings if diagnosis.near else ()), notes)


def _stated(paths: Sequence[str], plan: Table, catalog: Catalog) -> tuple[list[str], frozenset[Change]]:
    """How logs contradict a plan and which causes they exclude, in lines, and the changes that they exclude."""
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
