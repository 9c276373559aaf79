"""The functions of ``import xlperf``: each asks as the command of its name, with keywords named like its options.

An option that may be repeated takes one text or a list of texts; ``vary`` also takes a dict of columns and values.
Numbers are in the units of headers. Results are beside their inputs unless ``inputs=False``. Input that a command
refuses with a line raises InputError with the same line.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
import pandas as pd

from xlperf.base.errors import Fault, InputError, nearest
from xlperf.base.files import scratch_folder
from xlperf.catalog.cards import as_runs, beside
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import OWN_RUNS, Part, canonical, first_words, own_column, parts, questions, table_schema
from xlperf.catalog.table import Table
from xlperf.engine.tables import explain as explained
from xlperf.engine.tables import refuse_auto
from xlperf.explore.asked import (
    Choice,
    asked_sweep,
    asked_uncertainty,
    asked_worth,
    found_plans,
    solve_goal,
    solved_plans,
    wanted_plans,
)
from xlperf.explore.candidates import Bounds
from xlperf.explore.forms import answered, asked_form, nested_parts, varied_answers, varied_forms
from xlperf.explore.mappings import MOST_ACCELERATORS
from xlperf.explore.objectives import limits_of
from xlperf.explore.remedy import Evidence, asked_diagnosis
from xlperf.explore.search import SHOWN, evaluate_resolved, resolve
from xlperf.explore.space import MOST_PLANS
from xlperf.explore.sweep import best_rows
from xlperf.explore.sweep import sweep as swept
from xlperf.explore.vary import Sampling
from xlperf.explore.workers import all_processes
from xlperf.interop.launch_files import is_log, launch_of_file
from xlperf.notebook.result import (
    Content,
    GivenCatalog,
    Plans,
    Result,
    Texts,
    Vary,
    catalog_for,
    catalog_of,
    frame_of,
    lines_of,
    one_plan,
    progress,
    table_of,
    text_of,
    texts_of,
    whole_number,
)  # fmt: skip

Entry: TypeAlias = str | float | None  # value of an entry of a form; None for its default
Paths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
_QUESTION = ("catalog", "inputs", "vary", "limit")


def evaluate(
    plans: Plans, catalog: GivenCatalog = None, *, inputs: bool = True, most: int | None = None,
    most_accelerators: int = int(MOST_ACCELERATORS),
) -> Result:  # fmt: skip
    """Results of plans, row for row, with the index of ``plans``.

    Blank cells have defaults, a search chooses ``auto`` cells. The results of an illegal plan are NaN, with the fault
    in ``reason``.

    >>> plan = {"model": "Llama3-70B", "accelerator": "H100-SXM-80GB", "num accelerators": 64, "tensor parallel": 8}
    >>> results = evaluate([plan, {**plan, "tensor parallel": 3}])
    >>> results["reason"].str.contains("tensor parallel").tolist()
    [False, True]
    """
    frame = frame_of(plans)
    table = table_of(frame)
    known, notes = catalog_for(catalog, table)
    with progress(len(table), f"{len(table):,} {table.kind} plans") as done:
        chosen, results = evaluate_resolved(table, known, done, **_bounds(most, most_accelerators))
    block = _main(chosen, ("name", "model", "accelerator", "num_accelerators"))
    block += _main(results, (*SHOWN[table.kind], "fits", "trust"))
    legal = results.number("memory") == results.number("memory")
    block += [(column, np.where(legal, "", values)) for column, values in _main(results, ("reason",))]
    words = f"{int(legal.sum()):,} of {len(table):,} plans legal" if not legal.all() else ""
    content = Content(
        parts(chosen, results), block, words, notes, found=bool(legal.any()), plans=chosen, results=results,
        catalog=known,
    )  # fmt: skip
    return Result.of(content, inputs, frame.index)


def explain(
    plan: Plans, catalog: GivenCatalog = None, *, most: int | None = None,
    most_accelerators: int = int(MOST_ACCELERATORS),
) -> Result:  # fmt: skip
    """Operators of one plan: FLOP, bytes, total and exposed time, and the bottleneck of each; none if it is illegal."""
    table = one_plan(plan, "explain")
    known, notes = catalog_for(catalog, table)
    resolved = resolve(table, known, **_bounds(most, most_accelerators))
    operators = explained(resolved.plans, known)
    notes += resolved.notes.values()
    names = ("phase", "operator", "calls", "flop", "traffic", "time", "exposed_time", "share", "bound")
    content = Content(
        parts(operators), _main(operators, names), notes=notes, found=len(operators) > 0, plans=resolved.plans,
        catalog=known,
    )  # fmt: skip
    return Result.of(content)


def serve(
    *, vary: Vary = (), limit: Texts = (), catalog: GivenCatalog = None, inputs: bool = True, **entries: Entry
) -> Result:
    """The cheapest fleet that serves a model to so many users, and every other way to serve them; with ``vary`` a table
    of fleets.

    >>> serve(model="Llama3-8B", accelerator="H100", users=100).answer
    '... H100 ... serve 100 users at ...'
    """
    return _answers("serve", entries, vary, limit, catalog, inputs)


def train(
    *, vary: Vary = (), limit: Texts = (), catalog: GivenCatalog = None, inputs: bool = True, **entries: Entry
) -> Result:
    """Time and cost of a training run, and its best mapping; with ``vary`` a table of runs."""
    return _answers("train", entries, vary, limit, catalog, inputs)


def chip(
    *, vary: Vary = (), limit: Texts = (), catalog: GivenCatalog = None, inputs: bool = True, **entries: Entry
) -> Result:
    """Cost and worth of an accelerator of your own; with ``vary`` a table of accelerators."""
    return _answers("chip", entries, vary, limit, catalog, inputs)


def sessions(*, catalog: GivenCatalog = None, inputs: bool = True, **entries: Entry) -> Result:
    """How many sessions a copy of a model holds, the hit rates of its cache, and what more memory is worth."""
    return _answer("sessions", entries, catalog, inputs)


def fleet(*, catalog: GivenCatalog = None, inputs: bool = True, **entries: Entry) -> Result:
    """What to buy, rent and sell in each year to serve a demand that grows, its cost, and whether to wait."""
    return _answer("fleet", entries, catalog, inputs)


def spares(*, catalog: GivenCatalog = None, inputs: bool = True, **entries: Entry) -> Result:
    """Spares of a training run or a service: their number, availability, effective training time and cost."""
    return _answer("spares", entries, catalog, inputs)


def quote(*, catalog: GivenCatalog = None, inputs: bool = True, **entries: Entry) -> Result:
    """Whether a vendor's claim is possible, its conditions, and its place among published runs."""
    return _answer("quote", entries, catalog, inputs)


def rl(*, catalog: GivenCatalog = None, inputs: bool = True, **entries: Entry) -> Result:
    """A step of reinforcement learning: its time, the best split of the accelerators, idle shares and cost."""
    return _answer("rl", entries, catalog, inputs)


def day(*, catalog: GivenCatalog = None, inputs: bool = True, **entries: Entry) -> Result:
    """A day of a service: copies by hour, accelerator-hours, cost, energy, and the training beside it."""
    return _answer("day", entries, catalog, inputs)


def sweep(
    plans: Plans, vary: Vary, catalog: GivenCatalog = None, *, samples: int | None = None,
    sampling: Literal["latin-hypercube", "random"] = "latin-hypercube", seed: int = 0, result: Texts = (),
    objective: str | None = None, limit: Texts = (), top: int | None = None, processes: int | None = None,
    scheduler: str | None = None, inputs: bool = True, most: int | None = None,
    most_accelerators: int = int(MOST_ACCELERATORS),
) -> Result:  # fmt: skip
    """Plans with every combination of values of their columns and of the catalog's, or with samples of them.

    ``result``: results to return beside the varied columns; all by default. ``objective``, ``limit``, ``top``: only the
    best plans. ``processes``, ``scheduler``: who computes the best plans.
    """
    table = table_of(frame_of(plans))
    known, notes = catalog_for(catalog, table)
    drawn = Sampling(whole_number("--samples", samples), sampling, seed) if samples is not None else None
    kept = None if top is None else whole_number("--top", top)
    asked = asked_sweep(
        table, known, lines_of(vary), drawn, texts_of("--result", result), objective, texts_of("--limit", limit),
        kept, _bounds(most, most_accelerators),
    )  # fmt: skip
    notes += asked.unmoved
    with progress(len(asked.whole), f"{len(asked.whole):,} {table.kind} plans") as done:
        if asked.best is not None:
            rows = best_rows(asked.best, processes or all_processes(), scheduler, done)
        else:
            rows = swept(asked.whole, done, MOST_PLANS)
    block, shown = asked.blocks(rows)
    content = Content(
        block, shown, asked.words(rows), notes, found=len(rows.plans) > 0, plans=rows.plans, results=rows.results,
        catalog=None if rows.varied else known,
    )  # fmt: skip
    return Result.of(content, inputs)


def search(
    plan: Plans, catalog: GivenCatalog = None, objective: Texts = (), limit: Texts = (), top: int = 10, *,
    limits: Texts = (), vary: Vary = (), mapping: bool = False, all: bool = False, probability: float = 0.5,
    processes: int | None = None, inputs: bool = True, most: int | None = None,
    most_accelerators: int = int(MOST_ACCELERATORS),
) -> Result:  # fmt: skip
    """The best candidates for the ``auto`` cells of plans, the best first.

    ``objective``: a result to optimise, such as ``cost``; two or three for their Pareto set. ``limit``: limits on
    results, such as ``ttft<=500``; ``limits`` is its old name. ``mapping``: choose the whole mapping. ``all``: every
    feasible plan instead of the ``top`` ones.
    """
    table = table_of(frame_of(plan))
    known, notes = catalog_for(catalog, table)
    rows = wanted_plans([table], lines_of(vary), mapping, "plans")
    goals = [] if objective == "" else texts_of("--objective", objective)
    bounds = [*texts_of("--limit", limit), *texts_of("--limit", limits)]
    number = None if all else whole_number("--top", top)
    tried = _bounds(most, most_accelerators)
    choice = Choice(goals, bounds, number, probability, processes or all_processes(), tried)
    with progress(0, "plans tried") as done:
        found = found_plans(rows, known, choice, done)
    content = Content([], [], "\n".join(found.lines), notes, found=found.complete, catalog=known)
    for sheet in found.sheets:
        content.whole, content.shown, content.plans, content.results = (
            sheet.whole, sheet.shown, sheet.plans, sheet.results
        )  # fmt: skip
    content.catalog = None if any(row.point for row in rows) else known
    return Result.of(content, inputs)


def solve(
    plans: Plans, vary: Vary, target: Texts = (), catalog: GivenCatalog = None, *, mapping: bool = False,
    largest: bool = False, with_auto: Texts = (), objective: str = "", probability: float = 0.5,
    processes: int | None = None, inputs: bool = True, most: int | None = None,
    most_accelerators: int = int(MOST_ACCELERATORS),
) -> Result:  # fmt: skip
    """The fewest accelerators, or the least (``largest``: the most) of one number, that reach a target.

    ``target``: limits that a plan must keep, such as ``tpot<=20``. ``with_auto``: columns to choose with it.
    """
    table = table_of(frame_of(plans))
    goal = solve_goal(
        table, lines_of(vary), texts_of("--target", target), texts_of("--with-auto", with_auto), mapping, largest,
        probability,
    )  # fmt: skip
    known, notes = catalog_for(catalog, goal.plans)
    notes += goal.unmoved(known)
    with progress(0, "plans tried") as done:
        workers, tried = processes or all_processes(), _bounds(most, most_accelerators)
        solved = solved_plans(goal, known, objective, workers, tried, done)
    return Result.of(Content(*solved.blocks, "\n".join(solved.lines), notes, found=solved.complete), inputs)


def diagnose(
    plan: Plans | str | os.PathLike[str], measured: Texts | Mapping[str, object] = (),
    catalog: GivenCatalog = None, *, log: Paths = (),
    log_before: Paths = (), profile: str | os.PathLike[str] | None = None,
    profile_before: str | os.PathLike[str] | None = None, profile_steps: int | None = None,
    before: Texts | Mapping[str, object] = (), top: int = 8, all: bool = False,
    set: Texts | Mapping[str, object] = (), most: int | None = None,
    most_accelerators: int = int(MOST_ACCELERATORS),
) -> Result:  # fmt: skip
    """Causes that would explain why a run is slower or faster than its plan, the likeliest first.

    ``plan``: a plan, or the path of a launch file or a log; ``set``: what the file does not say.
    ``measured``: ``"step time=38"`` or ``{"step time": 38}``. ``log``, ``profile``: files of the run;
    ``..._before``: of a run before something changed. The table ``plan`` beside the result is the
    better plan of the remedy.
    """
    remarks: list[str] = []
    if isinstance(plan, str | os.PathLike):
        file = os.fspath(plan)
        launched, remarks = launch_of_file(file, catalog_of(catalog)[0].tables["models"], texts_of("--set", set))
        table, log = launched.plan, file if is_log(file) and not (measured or log or profile) else log
    else:
        table = one_plan(plan, "diagnose")
    known, notes = catalog_for(catalog, table)
    notes += remarks
    resolved = resolve(table, known, **_bounds(most, most_accelerators))
    notes += resolved.notes.values()
    run, earlier = (
        Evidence(texts_of(option, texts), _paths(logs), None if profiled is None else str(profiled))
        for option, texts, logs, profiled in (
            ("--measured", measured, log, profile), ("--before", before, log_before, profile_before)
        )
    )  # fmt: skip
    with progress(0, "variants of the plan") as done:
        found = asked_diagnosis(
            resolved.plans, known, run, earlier, profile_steps, whole_number("--top", top), all, done, notes.append
        )
    block = parts(found.diagnosis.explanations)
    words = "\n".join([*(reading.words for reading in found.diagnosis.readings), *filter(None, [found.nothing_near])])
    content = Content(
        block, [part for part in block if part[0].name not in ("advice", "change")], words,
        [*notes, *found.notes, *found.lines, *found.cure.lines],
        {"steps": parts(found.diagnosis.steps), "plan": parts(found.cure.plan, found.cure.results)},
        found=found.diagnosis.near, plans=resolved.plans, catalog=known,
    )  # fmt: skip
    return Result.of(content)


def uncertainty(
    plans: Plans, result: str, vary: Vary = (), catalog: GivenCatalog = None, *, band: bool = True,
    ranges: bool = True, draws: int = 10_000, seed: int = 0, limit: Texts = (),
    processes: int | None = None,
) -> Result:  # fmt: skip
    """How sure a result is, which plan is likely better, and, in the table ``inputs``, which input decides.

    ``vary``: uncertain numbers, such as ``{"prices.rental price": "x0.7..x1.5"}``.
    """
    table = table_of(frame_of(plans))
    known, notes = catalog_for(catalog, table)

    def resolved(given: Table) -> Table:
        chosen = resolve(given, known)
        notes.extend(chosen.notes.values())
        return chosen.plans

    summary, effects = asked_uncertainty(
        table, known, resolved, result, lines_of(vary), texts_of("--limit", limit), band=band, ranges=ranges,
        draws=whole_number("--draws", draws), seed=seed, processes=processes or all_processes(),
    )  # fmt: skip
    return Result.of(Content(parts(summary), parts(summary), notes=notes, tables={"inputs": parts(effects)}))


def worth(
    plans: Plans, vary: Vary = (), catalog: GivenCatalog = None, *, limit: Texts = (), mapping: bool = False,
    against: Texts = (), processes: int | None = None, most: int | None = None,
    most_accelerators: int = int(MOST_ACCELERATORS),
) -> Result:  # fmt: skip
    """Worth of one more TB/s, GiB, TFLOP/s, mm2, W, GB/s, MW or ms of target, per accelerator.

    ``against``: instead at which cost of an hour other accelerators make tokens as cheaply.
    """
    table = table_of(frame_of(plans))
    known, notes = catalog_for(catalog, table)
    with progress(0, "plans tried") as done:
        result = asked_worth(
            table, known, lines_of(vary), texts_of("--limit", limit), mapping, texts_of("--against", against),
            processes or all_processes(), _bounds(most, most_accelerators), done,
        )  # fmt: skip
    return Result.of(Content(parts(result), parts(result), notes=notes))


def with_own_runs(runs: Plans, catalog: GivenCatalog = None) -> Catalog:
    """A catalog with measured runs of your own beside its own ones: each prediction from it is corrected by them.

    ``runs``: plans with columns such as ``measured step time (s)`` or ``measured tpot (ms)``. InputError has every
    fault of a run.

    >>> import xlperf
    >>> plan = {"model": "Llama3-70B", "accelerator": "H100", "num accelerators": 64, "tensor parallel": 8,
    ...         "pipeline parallel": 4, "global batch size": 128, "micro batch size": 1, "sequence length": 8192}
    >>> before = xlperf.evaluate(plan)["step time (s)"][0]
    >>> own = with_own_runs({"name": "mine", **plan, "measured step time (s)": 1.2 * before})
    >>> bool(xlperf.evaluate(plan, own)["step time (s)"][0] > 1.1 * before)
    True
    """
    table = table_of(frame_of(runs))
    refuse_auto(table)
    known, _ = catalog_of(catalog)
    result = known.with_tables([beside(known.tables[OWN_RUNS], [as_runs(table)])])
    if result.orphans.why.get(OWN_RUNS):
        raise InputError(result.orphans.faults)
    return result


def validate(files: Paths | pd.DataFrame = (), leave_out: str | None = None, catalog: GivenCatalog = None) -> Result:
    """Predictions beside published measurements, a row per published row and metric.

    ``files``: published rows, or plans with measured columns; or such plans as a DataFrame; the shipped measurements
    by default. ``leave_out``: refit the calibration without an accelerator, a generation, a software or a source, and
    predict its rows.
    """
    from xlperf.calibrate.validate import CSV_COLUMNS
    from xlperf.calibrate.validate import validate as validated

    known, notes = catalog_of(catalog)
    with scratch_folder() as folder, progress(0, "published runs") as done:
        if isinstance(files, pd.DataFrame):
            path = folder / "plans.csv"
            files.to_csv(path, index=False)
            files = path
        report = validated(_paths(files) or None, known, leave_out, done)
    numbers = ("measured", "predicted", "relative_error")
    records: list[Part] = []
    for name in CSV_COLUMNS:
        column = own_column(name, name not in numbers)
        records.append((column, column.array([getattr(record, name) for record in report.records])))
    tables = {}
    for title, header, rows in report.tables():
        texts = zip(*rows, strict=True) if rows else [()] * len(header)
        tables[title] = [
            (own_column(name, True), np.array(words, dtype=object)) for name, words in zip(header, texts, strict=True)
        ]
    shown = tables.pop("By group")
    return Result.of(Content(records, shown, "\n".join(report.missed()), notes, tables, found=report.exit_code == 0))


def _answers(
    kind: str, entries: Mapping[str, Entry], vary: Vary, limit: Texts, catalog: GivenCatalog, inputs: bool
) -> Result:
    """The answer to a form, or a table of answers to its variants."""
    limits = texts_of("--limit", limit)
    if not vary:
        return _answer(kind, entries, catalog, inputs, limits)
    _, form = asked_form(kind, _entries(kind, entries))
    known, notes = catalog_of(catalog)
    forms, names = varied_forms(form, lines_of(vary), "--vary", known)
    required = limits_of(kind, limits, "--limit")
    with progress(len(forms), f"{len(forms):,} {'chips' if kind == 'chip' else 'answers'}") as done:
        table = varied_answers(forms, names, required, known, done)
    words = " ".join(table.none) or table.words
    return Result.of(Content(table.whole, table.shown, words, notes, found=table.valid), inputs)


def _answer(
    kind: str, entries: Mapping[str, Entry], catalog: GivenCatalog, inputs: bool, limits: Sequence[str] = ()
) -> Result:
    given = _entries(kind, entries)
    required = limits_of(kind, limits, "--limit") if limits else []
    known, notes = catalog_of(catalog)
    answer = answered(kind, given, known, required)
    content = Content(
        answer.whole, answer.whole, answer.words, [*answer.beside, *answer.missed, *answer.notes, *notes],
        nested_parts(answer), answer.card, found=not answer.refused and not answer.missed, plans=answer.plan,
        catalog=known,
    )  # fmt: skip
    return Result.of(content, inputs)


def _entries(kind: str, entries: Mapping[str, Entry]) -> dict[str, str]:
    """Entries as texts, without entries that are None; InputError for an unknown one."""
    known = first_words(kind)
    for name in entries:
        if name not in known:
            near = partial(nearest, canonical(kind, name), [*known, *_QUESTION])
            raise InputError(Fault(f"{kind}()", f"no entry {name}", near))
    return {name: text_of(value) for name, value in entries.items() if value is not None}


def _bounds(most: int | None, most_accelerators: int) -> Bounds:
    bounds = Bounds(most_accelerators=whole_number("--most-accelerators", most_accelerators))
    return bounds if most is None else Bounds(most=whole_number("--most", most), **bounds)


def _paths(given: Paths) -> list[str]:
    return [os.fspath(given)] if isinstance(given, (str, os.PathLike)) else [os.fspath(path) for path in given]


def _main(table: Table, names: Sequence[str]) -> list[Part]:
    return [part for part in parts(table) if part[0].name in names]


def _declare(function: Callable[..., Result]) -> None:
    """Give a question a keyword for each entry of its form, with its meaning, for help and completion."""
    kind, signature = function.__name__, inspect.signature(function)
    kept = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    words, known = first_words(kind), table_schema(kind).by_name
    entries = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation="Entry") for name in words
    ]
    meanings = (
        f"    {name}: {known[name].meaning}{f' [{known[name].unit}]' if known[name].unit not in ('', '-') else ''};"
        f" default {value or 'blank'}"
        for name, value in words.items()
    )
    vars(function)["__signature__"] = signature.replace(parameters=[*entries, *kept])
    function.__doc__ = "\n".join([function.__doc__ or "", "    Entries:", "", *meanings])


for _kind in questions():
    _declare(globals()[_kind])

__all__ = [
    "chip", "day", "diagnose", "evaluate", "explain", "fleet", "quote", "rl", "search", "serve", "sessions", "solve",
    "spares", "sweep", "train", "uncertainty", "validate", "worth",
]  # fmt: skip
