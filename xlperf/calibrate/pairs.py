"""Published pairs: two runs of one publisher that differ only in the engine, or in one pool against separate ones.

Both runs share the model, the accelerator, the precision, the lengths and the load. The measured gain of one engine
over another, with everything else equal, is compared with the ratio of the two predictions. Runs come from the
validation workbook and from ``published_pairs.csv``, whose rows were collected for this comparison and are in no fit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from xlperf.base import resources
from xlperf.base.units import factor
from xlperf.calibrate.published_errors import UNSEEN, plans_of
from xlperf.catalog.catalog import Catalog
from xlperf.engine.trust import model_traits
from xlperf.measurements.comparison import RATES, compare, predicted
from xlperf.measurements.published import Published, published_rows
from xlperf.measurements.rules import engine_of

DIFFERENT = 0.1
"""Least difference of two runs at which one of them counts as faster. [-]"""
RATE, TOKEN = "throughput", "time per token"
ENGINES, POOLS, REPEATS = "engines", "one pool or two", "nothing (a run repeated)"
_FILE = "published_pairs.csv"
_LENGTH, _OUTPUT, _LOAD = 0.05, 0.1, 0.1
"""Largest relative differences of prompts, outputs and requests in flight per accelerator that count as equal. [-]"""
_RELEASE = re.compile(r"-[0-9].*")
"""Suffix of an engine's early release: two releases of an engine are no pair."""
_COPY = 0.006
"""Largest logarithm of a ratio of times of one run, printed with three digits and with more. [-]"""
_MAPPING = ("tp", "pp", "ep", "dp_attn")
_FEWEST = 10
"""Least number of pairs of two engines for a separate line. [-]"""
_EVERY, _ALIKE, _NEW = "all", "each publisher once", "in no fit"
_LAYERS = {"dense models": False, "models with experts": True}


@dataclass(frozen=True)
class Run:
    """A published run: the settings that both runs of a pair share, and its times.

    ``times``: measured and predicted time by metric [s]; ``new`` marks a run that is in no fit; ``release`` is the
    printed name of the engine with its release, ``mixture`` whether the model has experts.
    """

    row_id: str
    source: str
    engine: str
    separate: bool
    same: tuple[str, ...]
    mapping: tuple[str, ...]
    accelerators: float
    load: float
    prompt: float
    output: float
    times: dict[str, tuple[float, float]]
    new: bool
    release: str = ""
    mixture: bool = False

    @property
    def publisher(self) -> str:
        """Publisher of the run: the first part of its source_id."""
        return self.source.partition("_")[0]


@dataclass(frozen=True)
class Pair:
    """Two runs and the time of the first over the second: measured and predicted ratio by metric [-]."""

    first: Run
    second: Run
    kind: str
    ratios: dict[str, tuple[float, float]]

    @property
    def new(self) -> bool:
        """Whether both runs are in no fit."""
        return self.first.new and self.second.new

    @property
    def engines(self) -> tuple[str, ...]:
        """Both engines, in the order of their names."""
        return tuple(sorted((self.first.engine, self.second.engine)))


def collected_pairs() -> Published:
    """Published runs of ``published_pairs.csv``."""
    rows = resources.rows(f"calibrate/{_FILE}")
    return published_rows(
        list(rows[0]), [list(row.values()) for row in rows], lambda row, column: f"{_FILE} [line {row + 2}, {column}]"
    )


def runs_of(
    published: Sequence[Published], catalog: Catalog, progress: Callable[[int], None] | None = None
) -> list[Run]:
    """Serving runs with a prediction; training rows are skipped.

    ``progress`` receives the number of rows of each finished block.
    """
    results = []
    for rows in published:
        if rows.kind != "inference":
            continue
        plans = plans_of(rows, catalog)
        shapes = model_traits(plans.catalog)[0]
        models = plans.catalog.rows("models", plans.plans.text("model"), plans.plans, "model")
        shape = [plans.catalog.tables["models"].number(name)[models] for name in ("num_layers", "vocab_size")]
        drafts = plans.plans.filled("draft_tokens")
        works = [
            f"{shapes[at]} x {depth:g}, {vocabulary:g} tokens, {draft:g} drafted"
            for at, depth, vocabulary, draft in zip(models.tolist(), *shape, drafts.tolist(), strict=True)
        ]
        work = dict(zip(plans.index.tolist(), works, strict=True))
        experts = plans.catalog.tables["models"].number("num_experts")[models] > 0.0
        mixtures = {row for row, mixture in zip(plans.index.tolist(), experts.tolist(), strict=True) if mixture}
        place = {row_id: row for row, row_id in enumerate(rows.text["row_id"])}
        values: dict[int, dict[str, tuple[float, float]]] = {}
        for record in compare(plans, predicted(plans, progress)):
            if record.covered:
                pair = (record.measured, record.predicted)
                times = tuple(1.0 / value for value in pair) if record.metric in RATES else pair
                values.setdefault(place[record.row_id], {})[record.metric] = (times[0], times[1])
        results += [_run(rows, row, work[row], row in mixtures, own) for row, own in values.items()]
    return results


def _run(rows: Published, row: int, work: str, mixture: bool, values: dict[str, tuple[float, float]]) -> Run:
    text, number = rows.text, {name: float(column[row]) for name, column in rows.number.items()}
    load = number["batch"] if math.isnan(number["concurrency"]) else number["concurrency"]
    return Run(
        row_id=text["row_id"][row],
        source=text["source_id"][row],
        engine=_RELEASE.sub("", engine_of(text["framework"][row])),
        separate="disagg" in text["mode"][row].casefold(),
        same=(work, text["gpu"][row].casefold(), text["precision"][row].casefold()),
        mapping=tuple(text[name][row] for name in _MAPPING),
        accelerators=number["n_gpus"],
        load=load,
        prompt=number["isl"],
        output=number["osl"],
        times=_times(values, load, number["n_gpus"], number["osl"]),
        new=not text["group"][row] or text["group"][row].casefold().startswith(UNSEEN),
        release=text["framework"][row].casefold().strip(),
        mixture=mixture,
    )


def _times(
    values: dict[str, tuple[float, float]], load: float, accelerators: float, output: float
) -> dict[str, tuple[float, float]]:
    """Measured and predicted times [s]: per token after the first, and per output token including queueing.

    The latter is the number of requests in flight over the throughput (Little's law). An unpublished throughput follows
    from the latency, or from the time to first token and the time per token, at constant requests in flight.
    """
    first, token = values.get("ttft_ms"), values.get("tpot_ms")
    scale = {"tokens_per_s": load, "tokens_per_s_per_gpu": load / accelerators, "latency_s": 1.0 / output}
    result = next((name for name in scale if name in values), None)
    times = {}
    if result is not None:
        times[RATE] = (scale[result] * values[result][0], scale[result] * values[result][1])
    elif first is not None and token is not None and output > 1.0:
        whole = [factor("ms") * (one + (output - 1.0) * each) / output for one, each in zip(first, token, strict=True)]
        times[RATE] = (whole[0], whole[1])
    if token is not None:
        times[TOKEN] = (factor("ms") * token[0], factor("ms") * token[1])
    return times


def repeated(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs by setting: those of a group share the publication, the release, the mapping, the lengths and the load."""
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        setting = run.accelerators, run.load, run.prompt, run.output
        name = (run.source, *run.same, run.engine, run.release, run.separate, run.mapping, *setting)
        groups.setdefault(name, []).append(run)
    return list(groups.values())


def repeats_of(runs: Sequence[Run]) -> list[Pair]:
    """Pairs of repeated runs: one release in one setting, measured twice. Times within :data:`_COPY` are one run that a
    publisher printed in several tables.
    """
    pairs = [
        Pair(one, other, REPEATS, _ratios(one, other))
        for group in repeated(runs)
        for one, other in combinations(group, 2)
    ]
    return [one for one in pairs if any(abs(math.log(ratio[0])) > _COPY for ratio in one.ratios.values())]


def _mean(group: Sequence[Run]) -> Run:
    """Repeated runs as one: the geometric means of their times."""
    if len(group) == 1:
        return group[0]
    times = {}
    for name in group[0].times:
        logs = np.log([run.times[name] for run in group if name in run.times])
        times[name] = tuple(np.exp(logs.mean(axis=0)).tolist())
    return replace(group[0], times=times)


def _ratios(first: Run, second: Run) -> dict[str, tuple[float, float]]:
    """Time of the first run over the second, measured and predicted, in the metrics of both."""
    both = {name: (first.times[name], second.times[name]) for name in first.times if name in second.times}
    return {name: (one[0] / other[0], one[1] / other[1]) for name, (one, other) in both.items()}


def pairs_of(runs: Sequence[Run]) -> list[Pair]:
    """Pairs among runs: two engines with the same mapping, and one pool against separate ones of the same engine.

    Repeated runs count once, with the geometric mean of their times.
    """
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in map(_mean, repeated(runs)):
        groups.setdefault((run.source, *run.same), []).append(run)
    results = []
    for group in groups.values():
        for first, second in combinations(group, 2):
            kind, ratios = _kind(first, second), _ratios(first, second)
            if kind and ratios:
                results.append(Pair(first, second, kind, ratios))
    return results


def _kind(first: Run, second: Run) -> str:
    """The single difference between two runs; "" if they differ in more."""
    same_work = _near(first.prompt, second.prompt, _LENGTH) and _near(first.output, second.output, _OUTPUT)
    if not same_work:
        return ""
    if first.separate != second.separate:
        loads = first.load / first.accelerators, second.load / second.accelerators
        return POOLS if first.engine == second.engine and _near(*loads, _LOAD) else ""
    same_machine = first.accelerators == second.accelerators and first.load == second.load
    if first.engine == second.engine or not same_machine:
        return ""
    return ENGINES if first.separate or first.mapping == second.mapping else ""


def _near(one: float, other: float, within: float) -> bool:
    """Whether two positive numbers differ by no more than a share; False for NaN."""
    return max(one, other) <= (1.0 + within) * min(one, other)


def pair_table(pairs: Sequence[Pair]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows of text by publisher: error of the ratio, and share of pairs with the faster run predicted.

    The error is the predicted over the measured ratio or its inverse, whichever is greater, less 1.
    """
    header = ("differ in", "publisher", "number", "pairs", "median error", "p90", "10 % apart", "faster one named")
    rows = []
    for kind in (ENGINES, POOLS, REPEATS):
        own = [one for one in pairs if one.kind == kind]
        publishers = sorted({one.first.publisher for one in own})
        for name in (RATE, TOKEN):
            lines = [(publisher, [one for one in own if one.first.publisher == publisher]) for publisher in publishers]
            scores = [(publisher, Score.of(of_one, name)) for publisher, of_one in lines]
            rows.append((kind, _EVERY, name, *Score.of(own, name).words()))
            if len(publishers) > 1:
                rows.append((kind, _ALIKE, name, *alike([score for _, score in scores]).words()))
            new = Score.of([one for one in own if one.new], name)
            rows += [(kind, _NEW, name, *new.words())] if new.count else []
            for words, mixture in _LAYERS.items() if kind == ENGINES else ():
                score = Score.of([one for one in own if one.first.mixture == mixture], name)
                rows.append((kind, words, name, *score.words()))
            rows += [(kind, publisher, name, *score.words()) for publisher, score in scores if score.count]
            for both in sorted({one.engines for one in own} if kind == ENGINES else ()):
                score = Score.of([one for one in own if one.engines == both], name)
                rows += [(" or ".join(both), _EVERY, name, *score.words())] if score.count >= _FEWEST else []
    return header, [row for row in rows if row[3] != "0"]


@dataclass(frozen=True)
class Score:
    """Accuracy of predicted ratios: number of pairs, quantiles of the error, pairs that differ and are right.

    ``named`` is the share of differing pairs whose faster run is predicted; NaN if none differ [-].
    """

    count: int
    median: float
    p90: float
    apart: int
    named: float

    @classmethod
    def of(cls, pairs: Sequence[Pair], name: str) -> Score:
        """Score of pairs in a metric, :data:`RATE` or :data:`TOKEN`; pairs without it are skipped."""
        logs = np.log(np.array([one.ratios[name] for one in pairs if name in one.ratios]).reshape(-1, 2))
        if not len(logs):
            return cls(0, math.nan, math.nan, 0, math.nan)
        errors = np.exp(np.abs(logs[:, 1] - logs[:, 0])) - 1.0
        apart = logs[np.abs(logs[:, 0]) >= math.log(1.0 + DIFFERENT)]
        named = float(np.mean(apart[:, 0] * apart[:, 1] > 0.0)) if len(apart) else math.nan
        median, p90 = np.quantile(errors, (0.5, 0.9)).tolist()
        return cls(len(logs), median, p90, len(apart), named)

    def words(self) -> tuple[str, ...]:
        """Cells of a table: pairs, median error, p90, pairs that differ, share of these that are right."""
        shown = ["-" if math.isnan(value) else f"{100.0 * value:.1f} %" for value in (self.median, self.p90)]
        named = "-" if math.isnan(self.named) else f"{100.0 * self.named:.0f} %"
        return (f"{self.count}", *shown, f"{self.apart}", named)


def alike(scores: Sequence[Score]) -> Score:
    """Score over publishers with equal weights: medians of the errors, and the mean of the shares."""
    own = [score for score in scores if score.count]
    shares = [score.named for score in own if not math.isnan(score.named)]
    return Score(
        len(own),
        float(np.median([score.median for score in own])),
        float(np.median([score.p90 for score in own])),
        len(shares),
        float(np.mean(shares)) if shares else math.nan,
    )


def pair_lines(pairs: Sequence[Pair]) -> list[tuple[str, ...]]:
    """A CSV line for each pair and metric, after a header."""
    lines: list[tuple[str, ...]] = [
        ("publisher", "differ in", "first", "second", "first row", "second row", "number", "measured ratio",
         "predicted ratio")
    ]  # fmt: skip
    for one in pairs:
        for name, (measured, estimate) in one.ratios.items():
            names = [f"{run.engine}{' separate pools' * run.separate}" for run in (one.first, one.second)]
            lines.append(
                (one.first.publisher, one.kind, *names, one.first.row_id, one.second.row_id, name,
                 f"{measured:.4g}", f"{estimate:.4g}")
            )  # fmt: skip
    return lines
