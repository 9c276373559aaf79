"""Quality of choices: measured alternatives ranked by prediction, and pairs of runs that differ in one thing.

A group holds runs that answer one question in different ways; its regret is the slowdown, as measured, of the run
ranked first. A pair is two runs of one publisher that differ in the engine alone, or in one pool against two; rows of
``published_pairs.csv`` are in no fit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from xlperf.base import resources
from xlperf.base.units import factor, percent
from xlperf.calibrate.published_errors import UNSEEN, plans_of, seen_rows
from xlperf.calibrate.readings import with_bands
from xlperf.catalog.calibration import declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.engine.tables import Progress
from xlperf.engine.trust import model_traits
from xlperf.explore.objectives import most_robust
from xlperf.measurements.comparison import RATES, STEP_TIME, Record, compare, predicted
from xlperf.measurements.inference import engine_of
from xlperf.measurements.published import Published, published_rows

SMALLEST_GROUP = 3  # least number of alternatives in a group [-]
NEAR = 0.05  # regret up to which a choice counts as right [-]
LIMIT_QUANTILES = (0.25, 0.5, 0.75)  # TPOT limits of a group of deployments: quantiles of its measured TPOT [-]
TOLERATED = 0.02  # excess over a limit that counts as measurement noise [-]
_SIZES = ((16.0, "up to 16"), (64.0, "17 to 64"), (math.inf, "above 64"))
_MAPPING = ("source_id", "group", "software", "model", "gpu", "n_gpus", "gbs", "seq_len", "precision")
_LOAD = ("source_id", "model", "gpu", "n_gpus", "concurrency", "isl", "osl", "precision", "mode")
_QUESTION = ("source_id", "model", "gpu", "isl", "osl", "precision")


@dataclass(frozen=True)
class Alternative:
    """A measured run: its configuration, and its times in the unit of the published row."""

    row_id: str
    measured: float
    predicted: float
    high: float
    size: float
    load: float
    engine: str
    fields: Mapping[str, str]
    fits: bool = True

    def rate(self, time: float) -> float:
        """Requests in flight over time and accelerators: proportional to the throughput per accelerator."""
        return self.load / (time * self.size)


@dataclass(frozen=True)
class Choice:
    """The plan chosen in a group: ``regret`` over the best run, Kendall's ``tau``, and whether it breaks the limit."""

    kind: str
    size: str
    alternatives: int
    chosen: str
    best: str
    regret: float
    tau: float
    limit: float = math.nan
    broken: bool = False


def alternatives_of(
    published: Sequence[Published], catalog: Catalog, progress: Progress | None = None
) -> dict[str, list[Alternative]]:
    """Predicted runs by kind, without unseen groups; bands omit the widening for unknown sources."""
    by_name: dict[str, list[Alternative]] = {"training": [], "inference": []}
    catalog = with_bands(catalog, {name: 0.0 for name in declared_constants()["band"] if name.endswith("_source")})
    for rows in published:
        rows = seen_rows(rows)
        plans = plans_of(rows, catalog)
        place = {row_id: number for number, row_id in enumerate(rows.text["row_id"])}
        results = predicted(plans, progress)
        fits = dict(zip(plans.index.tolist(), (results.number("fits") > 0.0).tolist(), strict=True))
        for record in compare(plans, results):
            wanted = record.quantity == STEP_TIME if rows.kind == "training" else record.metric == "tpot_ms"
            if wanted and record.covered:
                row = place[record.row_id]
                by_name[rows.kind].append(_alternative(rows, row, record, fits[row]))
    return by_name


def _as_times(record: Record) -> tuple[float, float, float]:
    """Measured time, predicted time and upper end of its band."""
    if record.metric in RATES:
        return 1.0 / record.measured, 1.0 / record.predicted, 1.0 / record.low
    return record.measured, record.predicted, record.high


def _alternative(rows: Published, row: int, record: Record, fits: bool) -> Alternative:
    names = {*_MAPPING, *_LOAD} & set(rows.text)
    return Alternative(
        record.row_id, *_as_times(record), size=float(rows.number["n_gpus"][row]),
        load=float(rows.number["concurrency"][row]) if rows.kind == "inference" else math.nan,
        engine=rows.text["framework" if rows.kind == "inference" else "software"][row].split(" ")[0],
        fields={name: rows.text[name][row].casefold() for name in names}, fits=fits,
    )  # fmt: skip


def choices(alternatives: Mapping[str, Sequence[Alternative]]) -> list[Choice]:
    """Choices in every group: training and serving mappings, engines, throughput under a TPOT limit."""
    training = [run for run in alternatives["training"] if run.fields["gbs"] and run.fields["seq_len"]]
    inference = [run for run in alternatives["inference"] if run.load > 0.0]
    chosen = [_fastest(f"mapping: {group[0].fields['group']}", group) for group in _groups(training, _MAPPING)]
    by_engine = (*_LOAD, "")
    chosen += [_fastest("mapping: serving", group) for group in _groups(inference, by_engine)]
    engines = [_best_of_each_engine(group) for group in _groups(inference, _LOAD)]
    chosen += [_fastest("engine: serving", group) for group in engines if len(group) > 1]
    for group in _groups(inference, _QUESTION):
        limits = np.quantile([run.measured for run in group], LIMIT_QUANTILES)
        chosen += [choice for limit in limits.tolist() for choice in _under_limit(group, limit)]
    return chosen


def _groups(alternatives: Iterable[Alternative], keys: Sequence[str]) -> list[list[Alternative]]:
    """Alternatives grouped by equal fields; a key "" means the engine."""
    groups: dict[tuple[str, ...], list[Alternative]] = {}
    for run in alternatives:
        key = tuple(run.fields.get(name, "") if name else run.engine.casefold() for name in keys)
        groups.setdefault(key, []).append(run)
    return [group for group in groups.values() if len(group) >= SMALLEST_GROUP]


def _best_of_each_engine(group: Sequence[Alternative]) -> list[Alternative]:
    """The mapping of each engine with the fastest prediction."""
    best: dict[str, Alternative] = {}
    for run in sorted(group, key=lambda run: run.predicted):
        best.setdefault(run.engine.casefold(), run)
    return list(best.values())


def _fastest(kind: str, group: Sequence[Alternative]) -> Choice:
    """The fastest predicted run that fits; among runs within its band, the run with the lowest upper end."""
    fitting = [run for run in group if run.fits] or group
    predicted_times, high = (np.array([getattr(run, name) for run in fitting]) for name in ("predicted", "high"))
    chosen, best = fitting[most_robust(predicted_times, high)], min(group, key=lambda run: run.measured)
    tau = kendall_tau([run.measured for run in group], [run.predicted for run in group])
    return _choice(kind, group, chosen, best, chosen.measured / best.measured - 1.0, tau)


def _choice(
    kind: str, group: Sequence[Alternative], chosen: Alternative, best: Alternative, regret: float, tau: float,
    limit: float = math.nan, broken: bool = False,
) -> Choice:  # fmt: skip
    largest = max(run.size for run in group)
    size = next(words for bound, words in _SIZES if largest <= bound)
    return Choice(kind, size, len(group), chosen.row_id, best.row_id, regret, tau, limit, broken)


def _under_limit(group: Sequence[Alternative], limit: float) -> list[Choice]:
    """Highest throughput under a limit: by the prediction, and by the upper end of the band."""
    best = max((run for run in group if run.measured <= limit), key=lambda run: run.rate(run.measured))
    results = []
    for kind in ("estimate", "band"):
        allowed = [run for run in group if (run.predicted if kind == "estimate" else run.high) <= limit]
        if not allowed:
            continue
        chosen = max(allowed, key=lambda run: run.rate(run.predicted))
        regret = max(best.rate(best.measured) / chosen.rate(chosen.measured) - 1.0, 0.0)
        broken = chosen.measured > limit * (1.0 + TOLERATED)
        results.append(_choice(f"throughput under TPOT, {kind}", group, chosen, best, regret, math.nan, limit, broken))
    return results


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float:
    """Kendall's rank correlation tau-b of two rankings: 1 for the same order, -1 for the reverse.

    >>> kendall_tau([1.0, 2.0, 3.0], [10.0, 30.0, 20.0])
    0.33
    """
    from scipy.stats import kendalltau  # slow to import

    return float(kendalltau(first, second).statistic)


def choice_table(result: Sequence[Choice]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows of text by kind and size of choice: right choices, regret, rank correlation, limits broken."""
    header = ("choice", "accelerators", "groups", "within 5 %", "regret median", "regret p90", "tau", "limit broken")
    rows = []
    for kind in dict.fromkeys(choice.kind for choice in result):
        of_kind = [choice for choice in result if choice.kind == kind]
        sizes = [words for _, words in _SIZES if any(choice.size == words for choice in of_kind)]
        for size in ["all", *sizes] if len(sizes) > 1 else ["all"]:
            rows.append(_line(kind, size, [choice for choice in of_kind if size in ("all", choice.size)]))
    return header, rows


def _line(kind: str, size: str, result: Sequence[Choice]) -> tuple[str, ...]:
    regrets = np.array([choice.regret for choice in result if not choice.broken])
    taus = np.array([choice.tau for choice in result if not math.isnan(choice.tau)])
    limited = [choice for choice in result if not math.isnan(choice.limit)]
    right = np.mean([choice.regret <= NEAR and not choice.broken for choice in result])
    shown = [percent(float(np.quantile(regrets, share))) if len(regrets) else "-" for share in (0.5, 0.9)]
    tau = f"{np.median(taus):.2f}" if len(taus) else "-"
    broken = percent(float(np.mean([choice.broken for choice in limited])), 0) if limited else "-"
    return (kind, size, f"{len(result)}", percent(float(right), 0), *shown, tau, broken)


DIFFERENT = 0.1  # least difference of two runs at which one of them counts as faster [-]
RATE, TOKEN = "throughput", "time per token"
ENGINES, POOLS, REPEATS = "engines", "one pool or two", "nothing (a run repeated)"
_FILE = "published_pairs.csv"
_LENGTH, _OUTPUT, _IN_FLIGHT = 0.05, 0.1, 0.1
"""Largest relative differences of prompts, outputs and requests in flight per accelerator that count as equal. [-]"""
_RELEASE = re.compile(r"-[0-9].*")  # suffix of an engine's early release: two releases of an engine are no pair
_COPY = 0.006  # largest logarithm of a ratio of times of one run, printed with three digits and with more [-]
_DEGREES = ("tp", "pp", "ep", "dp_attn")
_FEWEST = 10  # least number of pairs of two engines for a separate line [-]
_EVERY, _ALIKE, _NEW = "all", "each publisher once", "in no fit"
_LAYERS = {"dense models": False, "models with experts": True}


@dataclass(frozen=True)
class Run:
    """A published run, to be compared with another one."""

    row_id: str
    source: str
    engine: str
    separate: bool  # whether prefill and decode have pools of their own
    same: tuple[str, ...]  # settings that both runs of a pair share: work, accelerator, precision
    mapping: tuple[str, ...]  # printed parallel degrees
    accelerators: float
    load: float  # requests in flight [-]
    prompt: float
    output: float
    times: dict[str, tuple[float, float]]  # measured and predicted time by metric [s]
    new: bool  # whether no fit has read it
    release: str = ""  # printed name of the engine with its release
    mixture: bool = False  # whether the model has experts

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


def runs_of(published: Sequence[Published], catalog: Catalog, progress: Progress | None = None) -> list[Run]:
    """Serving runs with a prediction; training rows are skipped."""
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
                values.setdefault(place[record.row_id], {})[record.metric] = _as_times(record)[:2]
        results += [_run_of(rows, row, work[row], row in mixtures, times) for row, times in values.items()]
    return results


def _run_of(rows: Published, row: int, work: str, mixture: bool, values: dict[str, tuple[float, float]]) -> Run:
    text, number = rows.text, {name: float(column[row]) for name, column in rows.number.items()}
    load = number["batch"] if math.isnan(number["concurrency"]) else number["concurrency"]
    return Run(
        row_id=text["row_id"][row], source=text["source_id"][row],
        engine=_RELEASE.sub("", engine_of(text["framework"][row])), separate="disagg" in text["mode"][row].casefold(),
        same=(work, text["gpu"][row].casefold(), text["precision"][row].casefold()),
        mapping=tuple(text[name][row] for name in _DEGREES), accelerators=number["n_gpus"], load=load,
        prompt=number["isl"], output=number["osl"], times=_times(values, load, number["n_gpus"], number["osl"]),
        new=not text["group"][row] or text["group"][row].casefold().startswith(UNSEEN),
        release=text["framework"][row].casefold().strip(), mixture=mixture,
    )  # fmt: skip


def _times(
    values: dict[str, tuple[float, float]], load: float, accelerators: float, output: float
) -> dict[str, tuple[float, float]]:
    """Measured and predicted times [s]: per token after the first, and per output token including queueing, which is
    the number of requests in flight over the throughput (Little's law) or follows from the latency or from TTFT and
    TPOT.
    """
    first, token = values.get("ttft_ms"), values.get("tpot_ms")
    scale = {"tokens_per_s": load, "tokens_per_s_per_gpu": load / accelerators, "latency_s": 1.0 / output}
    result = next((name for name in scale if name in values), None)
    times = {}
    if result is not None:
        times[RATE] = scale[result] * np.array(values[result])
    elif first is not None and token is not None and output > 1.0:
        times[RATE] = factor("ms") * (np.array(first) + (output - 1.0) * np.array(token)) / output
    if token is not None:
        times[TOKEN] = factor("ms") * np.array(token)
    return {name: (float(pair[0]), float(pair[1])) for name, pair in times.items()}


def repeated(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs by setting: a group shares the publication, the release, the mapping, the lengths and the load."""
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        setting = run.accelerators, run.load, run.prompt, run.output
        name = (run.source, *run.same, run.engine, run.release, run.separate, run.mapping, *setting)
        groups.setdefault(name, []).append(run)
    return list(groups.values())


def repeats_of(runs: Sequence[Run]) -> list[Pair]:
    """Pairs of repeated runs; times within :data:`_COPY` are one run, printed in several tables."""
    each = [pair for group in repeated(runs) for pair in combinations(group, 2)]
    pairs = [Pair(run, other, REPEATS, _ratios(run, other)) for run, other in each]
    return [pair for pair in pairs if any(abs(math.log(ratio[0])) > _COPY for ratio in pair.ratios.values())]


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
    return {name: (time[0] / other[0], time[1] / other[1]) for name, (time, other) in both.items()}


def pairs_of(runs: Sequence[Run]) -> list[Pair]:
    """Pairs of two engines with one mapping, or of one pool against two; repeated runs count once, by their mean."""
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
        return POOLS if first.engine == second.engine and _near(*loads, _IN_FLIGHT) else ""
    same_machine = first.accelerators == second.accelerators and first.load == second.load
    if first.engine == second.engine or not same_machine:
        return ""
    return ENGINES if first.separate or first.mapping == second.mapping else ""


def _near(first: float, second: float, within: float) -> bool:
    """Whether two positive numbers differ by no more than a share; False for NaN."""
    return max(first, second) <= (1.0 + within) * min(first, second)


def pair_table(pairs: Sequence[Pair]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows by publisher: error of the predicted ratios, and share of the pairs with the right sign."""
    header = ("differ in", "publisher", "number", "pairs", "median error", "p90", "10 % apart", "faster one named")
    rows = []
    for kind in (ENGINES, POOLS, REPEATS):
        of_kind = [pair for pair in pairs if pair.kind == kind]
        publishers = sorted({pair.first.publisher for pair in of_kind})
        by_publisher = {name: [pair for pair in of_kind if pair.first.publisher == name] for name in publishers}
        for name in (RATE, TOKEN):
            scores = [(publisher, Score.of(of_one, name)) for publisher, of_one in by_publisher.items()]
            rows.append((kind, _EVERY, name, *Score.of(of_kind, name).words()))
            if len(publishers) > 1:
                rows.append((kind, _ALIKE, name, *alike([score for _, score in scores]).words()))
            new = Score.of([pair for pair in of_kind if pair.new], name)
            rows += [(kind, _NEW, name, *new.words())] if new.count else []
            for words, mixture in _LAYERS.items() if kind == ENGINES else ():
                score = Score.of([pair for pair in of_kind if pair.first.mixture == mixture], name)
                rows.append((kind, words, name, *score.words()))
            rows += [(kind, publisher, name, *score.words()) for publisher, score in scores if score.count]
            for engines in sorted({pair.engines for pair in of_kind} if kind == ENGINES else ()):
                score = Score.of([pair for pair in of_kind if pair.engines == engines], name)
                rows += [(" or ".join(engines), _EVERY, name, *score.words())] if score.count >= _FEWEST else []
    return header, [row for row in rows if row[3] != "0"]


@dataclass(frozen=True)
class Score:
    """Accuracy of predicted ratios; ``named`` is the share of the pairs ``apart`` whose faster run is predicted."""

    count: int
    median: float
    p90: float
    apart: int
    named: float

    @classmethod
    def of(cls, pairs: Sequence[Pair], name: str) -> Score:
        """Score of pairs in a metric, :data:`RATE` or :data:`TOKEN`; pairs without it are skipped."""
        logs = np.log(np.array([pair.ratios[name] for pair in pairs if name in pair.ratios]).reshape(-1, 2))
        if not len(logs):
            return cls(0, math.nan, math.nan, 0, math.nan)
        errors = np.exp(np.abs(logs[:, 1] - logs[:, 0])) - 1.0
        apart = logs[np.abs(logs[:, 0]) >= math.log(1.0 + DIFFERENT)]
        named = float(np.mean(apart[:, 0] * apart[:, 1] > 0.0)) if len(apart) else math.nan
        median, p90 = np.quantile(errors, (0.5, 0.9)).tolist()
        return cls(len(logs), median, p90, len(apart), named)

    def words(self) -> tuple[str, ...]:
        """Cells of a table: pairs, median error, p90, pairs that differ, share of these that are right."""
        return f"{self.count}", percent(self.median), percent(self.p90), f"{self.apart}", percent(self.named, 0)


def alike(scores: Sequence[Score]) -> Score:
    """Score over publishers with equal weights: medians of the errors, and the mean of the shares."""
    with_pairs = [score for score in scores if score.count]
    shares = [score.named for score in with_pairs if not math.isnan(score.named)]
    return Score(
        len(with_pairs), float(np.median([score.median for score in with_pairs])),
        float(np.median([score.p90 for score in with_pairs])), len(shares),
        float(np.mean(shares)) if shares else math.nan,
    )  # fmt: skip
