"""Quality of choices: measured alternatives ranked by prediction, and the regret against the best measured one.

A group holds runs that answer the same question in different ways: the mappings of one model on equal accelerators
and batch, the mappings or engines that serve one load, or deployments compared by throughput under a TPOT limit.
The regret of a group is the measured slowdown of the plan ranked first against the best plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from xlperf.calibrate.published_errors import plans_of, seen_rows
from xlperf.calibrate.readings import with_bands
from xlperf.catalog.calibration import declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.explore.objectives import most_robust
from xlperf.measurements.comparison import RATES, STEP_TIME, Record, compare, predicted
from xlperf.measurements.published import Published

SMALLEST_GROUP = 3
"""Least number of alternatives in a group. [-]"""
NEAR = 0.05
"""Regret up to which a choice counts as right. [-]"""
LIMIT_QUANTILES = (0.25, 0.5, 0.75)
"""TPOT limits of a group of deployments: quantiles of its measured TPOT. [-]"""
TOLERATED = 0.02
"""Excess over a limit that counts as measurement noise. [-]"""
_SIZES = ((16.0, "up to 16"), (64.0, "17 to 64"), (math.inf, "above 64"))
_MAPPING = ("source_id", "group", "software", "model", "gpu", "n_gpus", "gbs", "seq_len", "precision")
_LOAD = ("source_id", "model", "gpu", "n_gpus", "concurrency", "isl", "osl", "precision", "mode")
_QUESTION = ("source_id", "model", "gpu", "isl", "osl", "precision")


@dataclass(frozen=True)
class Alternative:
    """A measured run: its configuration and its times, in the unit of the published row.

    ``fits`` is whether the plan fits in memory by prediction: a search proposes no other plan.
    """

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
    """The plan that the model chooses in a group, and its measured cost.

    ``regret`` is the measured time of the chosen run over the best run's, less 1 (throughput: best over chosen, less
    1); ``tau`` is Kendall's rank correlation, NaN if there is a limit; ``broken`` is whether the chosen run exceeds the
    limit as measured.
    """

    kind: str
    size: str
    question: str
    alternatives: int
    chosen: str
    best: str
    regret: float
    tau: float
    limit: float = math.nan
    broken: bool = False


def alternatives_of(
    published: Sequence[Published], catalog: Catalog, progress: Callable[[int], None] | None = None
) -> dict[str, list[Alternative]]:
    """Predicted runs by kind: step times of ``training``, TPOT of ``inference``.

    Bands omit the widening for unknown sources. Rows without a prediction and rows of unseen groups are left out.
    ``progress`` receives the number of rows of each finished block.
    """
    by_name: dict[str, list[Alternative]] = {"training": [], "inference": []}
    catalog = _of_read_sources(catalog)
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


def _of_read_sources(catalog: Catalog) -> Catalog:
    """Catalog whose bands are not widened for an unknown source."""
    return with_bands(catalog, {name: 0.0 for name in declared_constants()["band"] if name.endswith("_source")})


def _alternative(rows: Published, row: int, record: Record, fits: bool) -> Alternative:
    values = (record.measured, record.predicted, record.high)
    if record.metric in RATES:
        values = (1.0 / record.measured, 1.0 / record.predicted, 1.0 / record.low)
    names = {*_MAPPING, *_LOAD} & set(rows.text)
    return Alternative(
        record.row_id,
        *values,
        size=float(rows.number["n_gpus"][row]),
        load=float(rows.number["concurrency"][row]) if rows.kind == "inference" else math.nan,
        engine=rows.text["framework" if rows.kind == "inference" else "software"][row].split(" ")[0],
        fields={name: rows.text[name][row].casefold() for name in names},
        fits=fits,
    )


def choices(alternatives: Mapping[str, Sequence[Alternative]]) -> list[Choice]:
    """Choices in every group of alternatives: training mappings, serving mappings, engines, throughput under a TPOT
    limit.
    """
    training = [one for one in alternatives["training"] if one.fields["gbs"] and one.fields["seq_len"]]
    inference = [one for one in alternatives["inference"] if one.load > 0.0]
    chosen = [_fastest(f"mapping: {group[0].fields['group']}", group) for group in _groups(training, _MAPPING)]
    by_engine = (*_LOAD, "")
    chosen += [_fastest("mapping: serving", group) for group in _groups(inference, by_engine)]
    engines = [_best_of_each_engine(group) for group in _groups(inference, _LOAD)]
    chosen += [_fastest("engine: serving", group) for group in engines if len(group) > 1]
    for group in _groups(inference, _QUESTION):
        limits = np.quantile([one.measured for one in group], LIMIT_QUANTILES)
        chosen += [one for limit in limits.tolist() for one in _under_limit(group, limit)]
    return chosen


def _groups(alternatives: Iterable[Alternative], keys: Sequence[str]) -> list[list[Alternative]]:
    """Alternatives grouped by equal fields; a key "" means the engine."""
    groups: dict[tuple[str, ...], list[Alternative]] = {}
    for one in alternatives:
        key = tuple(one.fields.get(name, "") if name else one.engine.casefold() for name in keys)
        groups.setdefault(key, []).append(one)
    return [group for group in groups.values() if len(group) >= SMALLEST_GROUP]


def _best_of_each_engine(group: Sequence[Alternative]) -> list[Alternative]:
    """The mapping of each engine with the fastest prediction."""
    best: dict[str, Alternative] = {}
    for one in sorted(group, key=lambda one: one.predicted):
        best.setdefault(one.engine.casefold(), one)
    return list(best.values())


def _fastest(kind: str, group: Sequence[Alternative]) -> Choice:
    chosen = _chosen(group)
    best = min(group, key=lambda one: one.measured)
    return Choice(
        kind,
        _size(group),
        _question(group),
        len(group),
        chosen.row_id,
        best.row_id,
        chosen.measured / best.measured - 1.0,
        kendall_tau([one.measured for one in group], [one.predicted for one in group]),
    )


def _chosen(group: Sequence[Alternative]) -> Alternative:
    """The fastest predicted run that fits; among runs within its band, the run with the lowest upper end."""
    own = [one for one in group if one.fits] or group
    return own[most_robust(*(np.array([getattr(one, name) for one in own]) for name in ("predicted", "high")))]


def _under_limit(group: Sequence[Alternative], limit: float) -> list[Choice]:
    """Highest throughput under a limit: by the prediction, and by the upper end of the band."""
    kept = [one for one in group if one.measured <= limit]
    best = max(kept, key=lambda one: one.rate(one.measured))
    results = []
    for kind in ("estimate", "band"):
        allowed = [one for one in group if (one.predicted if kind == "estimate" else one.high) <= limit]
        if not allowed:
            continue
        chosen = max(allowed, key=lambda one: one.rate(one.predicted))
        regret = max(best.rate(best.measured) / chosen.rate(chosen.measured) - 1.0, 0.0)
        broken = chosen.measured > limit * (1.0 + TOLERATED)
        words = f"throughput under TPOT, {kind}"
        results.append(
            Choice(words, _size(group), _question(group), len(group), chosen.row_id, best.row_id, regret, math.nan,
                   limit, broken)
        )  # fmt: skip
    return results


def _size(group: Sequence[Alternative]) -> str:
    largest = max(one.size for one in group)
    return next(words for bound, words in _SIZES if largest <= bound)


def _question(group: Sequence[Alternative]) -> str:
    fields = group[0].fields
    same = [name for name in fields if len({one.fields[name] for one in group}) == 1 and fields[name]]
    return ", ".join(f"{name} {fields[name]}" for name in sorted(same) if name not in ("source_id", "group"))


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float:
    """Kendall's rank correlation tau-b of two rankings: 1 for the same order, -1 for the reverse.

    >>> kendall_tau([1.0, 2.0, 3.0], [10.0, 30.0, 20.0])
    0.33
    """
    one, two = np.array(first), np.array(second)
    upper = np.triu_indices(len(one), 1)
    signs = [np.sign(values[:, None] - values[None, :])[upper] for values in (one, two)]
    pairs = math.sqrt(float(np.sum(signs[0] != 0.0)) * float(np.sum(signs[1] != 0.0)))
    return float(np.sum(signs[0] * signs[1])) / pairs if pairs else math.nan


def choice_table(result: Sequence[Choice]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows of text by kind and size of choice: right choices, regret, rank correlation, limits broken."""
    header = ("choice", "accelerators", "groups", "within 5 %", "regret median", "regret p90", "tau", "limit broken")
    rows = []
    for kind in dict.fromkeys(one.kind for one in result):
        of_kind = [one for one in result if one.kind == kind]
        sizes = [words for _, words in _SIZES if any(one.size == words for one in of_kind)]
        for size in ["all", *sizes] if len(sizes) > 1 else ["all"]:
            rows.append(_line(kind, size, [one for one in of_kind if size in ("all", one.size)]))
    return header, rows


def _line(kind: str, size: str, result: Sequence[Choice]) -> tuple[str, ...]:
    kept = np.array([one.regret for one in result if not one.broken])
    taus = np.array([one.tau for one in result if not math.isnan(one.tau)])
    limited = [one for one in result if not math.isnan(one.limit)]
    right = np.mean([one.regret <= NEAR and not one.broken for one in result])
    shown = [f"{100.0 * np.quantile(kept, share):.1f} %" if len(kept) else "-" for share in (0.5, 0.9)]
    tau = f"{np.median(taus):.2f}" if len(taus) else "-"
    broken = f"{100.0 * np.mean([one.broken for one in limited]):.0f} %" if limited else "-"
    return (kind, size, f"{len(result)}", f"{100.0 * right:.0f} %", *shown, tau, broken)


def choice_lines(result: Sequence[Choice]) -> list[tuple[str, ...]]:
    """A line for each choice, for a CSV file; the first is the header."""
    words = "choice accelerators question alternatives chosen best regret tau limit broken"
    lines: list[tuple[str, ...]] = [tuple(words.split())]
    for one in result:
        numbers = ["" if math.isnan(value) else f"{value:.6g}" for value in (one.regret, one.tau, one.limit)]
        lines.append(
            (one.kind, one.size, one.question, f"{one.alternatives}", one.chosen, one.best, *numbers,
             "yes" if one.broken else "no")
        )  # fmt: skip
    return lines
