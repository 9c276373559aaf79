"""Diagnosis of a run that is slower or faster than its plan: single changes and pairs that explain the measurements."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from math import fsum
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, exp, expm1, log, total
from xlperf.base.errors import Fault, InputError, raise_faults
from xlperf.base.units import percent
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.cells import number_of
from xlperf.catalog.schema import MEASURED, Column, brief, mean_of, unit_of
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.tables import Progress
from xlperf.explore.causes import NONE, PLAN, Change, Variants
from xlperf.explore.objectives import LARGER, Objective, limit_of, objective_of

BANDED = {"training": "step_time", "inference": "tpot"}
"""Result with its own calibration band, by kind of plan; rates and other whole times share it."""
SPREADS = (("ttft|queue_time|prefill_time", 1.5, 1.05), ("memory", 1.12, 1.02), ("time_|decode_time", 1.25, 1.03))
"""Results without a band: pattern of the name, factor within which 80 % of measurements lie around predictions (sheet
of validation; time_: heuristic, this work), and the factor of repeated measurements (heuristic, this work). [-]
"""
OF_CHANGE, REPEATED = 1.25, 1.02
"""The same factors for other results: a change of the whole time follows from a change of one part. [-]"""
SMALL_PART = 0.01  # share of the whole time below which the size of a part carries no evidence [-]
LARGE = 0.25  # relative likelihood of a change after which a plan exceeds the memory that it fitted in [-]
RIVAL = 1.0 / 3.0  # share of the first explanation's probability from which another explanation is its rival [-]
TELLING = {
    "training": ("memory", "accelerator_power", "time_forward", "time_backward", "time_recompute", "time_optimizer",
                 "time_tensor_parallel", "time_pipeline_communication", "time_expert_parallel", "time_data_parallel",
                 "step_time"),
    "inference": ("memory_weights", "memory_kv_cache", "accelerator_power", "ttft", "time_matrix", "time_attention",
                  "time_communication", "running_batch", "tpot"),
}  # fmt: skip
"""Results that logs, timers and profiles have, by kind of plan."""
REST = 0.05  # share of a measurement that an explanation may leave unexplained [-]
WIDE = 1.5  # ratio of an end of the band to the prediction beyond which the band explains nothing [-]
UNKNOWN, UNKNOWN_WIDTH = 0.03, 4.0
"""Probability of an unlisted cause, as of every fault, and the factor within which 80 % of its effects lie (heuristic,
this work). [-]
"""
_MEASURED = re.compile(r"\s*(.+?)\s*=\s*([-+.\deE]+)\s*(\S*)\s*")


class Measured(NamedTuple):
    """A measured result in the internal unit."""

    objective: Objective
    value: float
    before: float = float("nan")  # in the run before the change, or NaN
    others: tuple[str, ...] = ()  # results that the same measurement includes: a timer around several parts of a step

    @property
    def column(self) -> Column:
        """The column of the (first) result."""
        return self.objective.column

    @property
    def names(self) -> tuple[str, ...]:
        """Every result that the measurement includes."""
        return (self.column.name, *self.others)

    def words(self, value: float) -> str:
        """``step time 38.2 s``; a sum of parts by its first and last."""
        between = " ... " if len(self.others) > 1 else " + "
        name = between.join(dict.fromkeys((self.names[0], self.names[-1]))).replace("_", " ")
        return f"{name} {self.column.amount(value)}"


def read_measured(kind: str, texts: Sequence[str], before: Sequence[str] = ()) -> list[Measured]:
    """Measurements from texts like ``step time=38 s``, of results or of measured sums; InputError with every fault."""
    faults: list[Fault] = []
    words: dict[str, dict[tuple[str, ...], tuple[Objective, float]]] = {"--measured": {}, "--before": {}}
    for place, given in (("--measured", texts), ("--before", before)):
        for text in given:
            stated = _MEASURED.fullmatch(text)
            try:
                if stated is None or not np.isfinite(number_of(stated.group(2))):
                    raise InputError(Fault(place, f'must be as "step time=38 s" or "memory=61 GiB", got "{text}"'))
                name, *others = stated.group(1).split(" + ")
                limit = limit_of(kind, "{} <= {} {}".format(name, *stated.groups()[1:]), place)
                names = limit.column.name, *(objective_of(kind, other).column.name for other in others)
                if not limit.bound > 0.0:
                    raise InputError(Fault(place, f'must be above 0, got "{text}"'))
                if names in words[place]:
                    raise InputError(Fault(place, f"{_joined(names)} is given twice"))
                words[place][names] = objective_of(kind, limit.column.name), limit.bound
            except InputError as error:
                faults += error.faults
    unmatched = [names for names in words["--before"] if names not in words["--measured"]]
    faults += [Fault("--before", f"{_joined(names)} is not among --measured") for names in unmatched]
    raise_faults(faults)
    earlier = {names: value for names, (_, value) in words["--before"].items()}
    return [
        Measured(objective, value, earlier.get(names, float("nan")), names[1:])
        for names, (objective, value) in words["--measured"].items()
    ]


def _joined(names: Sequence[str]) -> str:
    return " + ".join(names).replace("_", " ")


def measured_of(plan: Table) -> list[Measured]:
    """Measurements in the columns ``measured_step_time`` ... of one plan."""
    names = [name for name in plan.columns if name.startswith(MEASURED) and plan[name][0] == plan[name][0]]
    return [Measured(objective_of(plan.kind, name.removeprefix(MEASURED)), float(plan[name][0])) for name in names]


class Reading(NamedTuple):
    """One measurement beside its prediction and the 80 % band, all in internal units."""

    measured: Measured
    predicted: float
    low: float
    high: float

    @property
    def inside(self) -> bool:
        """Whether the measurement is in the band."""
        return self.low <= self.measured.value <= self.high

    @property
    def unexplained(self) -> bool:
        """Whether the measurement differs from the prediction inside a band too wide to explain it."""
        wide = max(self.high / self.predicted, self.predicted / self.low) > WIDE
        return self.inside and wide and abs(self.measured.value / self.predicted - 1.0) >= REST

    @property
    def words(self) -> str:
        """A line with the measurement, the prediction and the difference."""
        unit = unit_of(self.measured.column).factor
        low, high = (brief(end / unit) for end in (self.low, self.high))
        gap = self.measured.value / self.predicted - 1.0
        scaled = ", scaled to the run before" if self.measured.before == self.measured.before else ""
        where = f"{percent(gap, signed=True)}, outside the band"
        if self.inside:
            where = (
                f"{percent(gap, signed=True)}, inside the band, which is too wide to explain it"
                if self.unexplained
                else _INSIDE
            )
        values = self.measured.words(self.measured.value), self.measured.words(self.predicted)
        return f"measured {values[0]}; predicted {values[1]} (80 % band {low} to {high}{scaled}): {where}"


_INSIDE = "inside the band"


@dataclass(frozen=True)
class Diagnosis:
    """Measurements and ranked explanations."""

    readings: tuple[Reading, ...]  # in the order given
    explanations: Table  # the most probable first; no rows if all readings are inside bands that are not wide
    # From prediction to measurement of the first reading outside its band, whole times and rates before their parts
    steps: Table
    likeliest: tuple[Change, ...] = ()  # of the first explanation
    telling: str = ""  # the measurement that discriminates between the first two, "" if the first is much likelier
    unexplained: str = ""  # measurements outside the band of the first explanation
    # Whether the first whole time or rate (else the reading of ``steps``) is in the band of plan or an explanation
    near: bool = True

    @property
    def remainder(self) -> float:
        """Relative difference that the first explanation leaves; NaN without one. [-]"""
        return self.explanations.stated("remainder") if len(self.explanations) else float("nan")

    @property
    def inside(self) -> bool:
        """Whether every measurement is in the band of its prediction."""
        return all(reading.inside for reading in self.readings)


def diagnose(
    plan: Table,
    catalog: Catalog,
    measured: Sequence[Measured],
    top: int = 10,
    progress: Progress | None = None,
    ranked: bool = False,
    without: Collection[Change] = (),
) -> Diagnosis:
    """Rank the changes that would explain the measurements of one plan without ``auto``, by Bayes' theorem; InputError
    if the plan is illegal, or lacks a measured result.

    One call evaluates every change of ``causes.csv`` except ``without``, and every pair. The probability of an
    explanation is its prior times the likelihood of the measurements: prediction errors have a Laplace distribution
    whose central 80 % is the band. With a run before the change, the band applies to the ratio of the two runs: narrow
    if a change alters nothing, wide if it alters much. Values of one cause add up. If the likeliest explanation leaves
    5 % or more of the first reading, one of the next two precedes it if it adds a cause and leaves less, or if the
    reading is in its band and not in that of the likeliest. An unlisted cause, and no cause at all if all readings are
    inside (then only ``ranked`` ranks), have their share.
    """
    variants = Variants.of(plan, without)
    table, changed = variants.evaluated_on(catalog)
    results = evaluate(table, changed, progress)
    measured = [  # without parts of the time that the plan does not have, such as messages of a single accelerator
        reading
        for reading in measured
        if not reading.column.name.startswith("time_") or _predicted(variants, results, reading)[0] != 0.0
    ]
    if not measured:
        raise InputError(Fault(plan.place(0, "name"), "the plan has none of the parts of time that were measured"))
    predicted = np.stack([_predicted(variants, results, reading) for reading in measured])
    for number, reading in enumerate(measured):
        if not predicted[number, 0] > 0.0:
            why = results.stated_word("reason")
            problem = f"the plan has no {reading.column.name.replace('_', ' ')}{f': {why}' if why else ''}"
            raise InputError(Fault(plan.place(0, "name"), problem))
    spreads = np.stack([_spreads(variants, results, reading) for reading in measured])
    before = np.array([reading.before for reading in measured])[:, None]
    floors = _floors(results, measured)
    widths = np.where(
        np.isnan(before)[:, :, None], log(np.maximum(spreads, REPEATED)), _paired_widths(predicted, floors, measured)
    )
    predicted = predicted * np.where(np.isnan(before), 1.0, before / predicted[:, :1])
    readings = tuple(
        Reading(reading, *(float(predicted[n, 0] * exp(end)) for end in (0.0, -widths[n, 0, 0], widths[n, 0, 1])))
        for n, reading in enumerate(measured)
    )
    outside = not all(reading.inside for reading in readings)
    wide = any(reading.unexplained for reading in readings)
    if not (ranked or outside or wide):
        return Diagnosis(readings, Table.of_lines("diagnosis", []), Table.of_lines("diagnosis_steps", []))
    with np.errstate(all="ignore"):
        weights = _weights(variants, results, predicted, widths, floors, measured)
        nearer = _nearer(variants, predicted, widths, measured)
        weights = np.where(nearer | (not outside and not wide), weights, 0.0)
        unlisted = _unlisted(predicted[:, 0], widths[:, 0], floors, measured, outside)
    # Steps and remainder decompose the first reading outside its band, whole times and rates first.
    lead = min((reading.inside, _is_part(reading), number) for number, reading in enumerate(readings))[2]
    whole = min(range(len(readings)), key=lambda number: (_is_part(readings[number]), number != lead))
    with np.errstate(divide="ignore"):  # a change may leave no room for a cache
        rests = np.abs(measured[lead].value / predicted[lead] - 1.0)
    in_band = partial(_near, predicted=predicted[lead], widths=widths[lead], reading=measured[lead])
    result = _completed(variants, _ranked(variants, weights, unlisted), rests, in_band)[:top]
    lines = [
        _line(variants, rank, explanation, predicted, measured, lead) for rank, explanation in enumerate(result, 1)
    ]
    steps = _steps(variants, result[0][0], predicted[lead], measured[lead]) if result else []
    first = variants.made(result[0][0]) if result else ()
    near, unexplained = readings[whole].inside, ""
    if result:
        likeliest = result[0][0]
        near = near or any(_near(row, predicted[whole], widths[whole], measured[whole]) for row, _ in result)
        unexplained = _unexplained(likeliest, predicted, widths, measured)
    tables = Table.of_lines("diagnosis", lines), Table.of_lines("diagnosis_steps", steps)
    return Diagnosis(readings, *tables, first, _telling(variants, results, result, measured), unexplained, near)


def as_it_ran(plan: Table, diagnosis: Diagnosis) -> Table:
    """A plan with its measurements and the settings of the first explanation: a row of measured runs."""
    columns = dict(plan.columns)
    for change in diagnosis.likeliest:
        if change.sheet == PLAN:
            columns = change.made_on(plan.kind, columns)
    for reading in diagnosis.readings:
        if not reading.measured.others:
            columns[MEASURED + reading.measured.column.name] = np.array([reading.measured.value])
    return Table(plan.kind, columns, plan.place)


def _predicted(variants: Variants, results: Table, measured: Measured) -> Array:
    """A result of the variants, with the time that their changes add to measurements."""
    values = total(np.stack([results.number(name) for name in measured.names], axis=-1))
    name = measured.column.name
    if name in LARGER and name not in ("max_batch_size", "batch_at_targets", "running_batch"):
        return values / variants.time_factors
    whole = unit_of(measured.column).dimension == "s" and not name.startswith("time_")
    return values * variants.time_factors if whole else values


def _spreads(variants: Variants, results: Table, measured: Measured) -> Array:
    """Factors from predictions down and up to the ends of the 80 % band, (variants, 2)."""
    name, kind = measured.column.name, variants.plan.kind
    for pattern, factor, _ in SPREADS:
        if re.match(pattern, name):
            return np.full((len(results), 2), factor)
    base = BANDED[kind]
    value = results.number(base)
    with np.errstate(all="ignore"):
        down, up = value / results.number(f"{base}_low"), results.number(f"{base}_high") / value
    down, up = (ends[variants.as_published] for ends in (down, up))
    ends = (up, down) if measured.objective.larger else (down, up)  # NaN if a variant is illegal
    return np.asarray(np.nan_to_num(np.stack(ends, axis=-1), nan=SPREADS[1][1]))


def _nearer(variants: Variants, predicted: Array, widths: Array, measured: Sequence[Measured]) -> np.ndarray:
    """Variants nearer to the measurements than without either of their changes, in widths of the plan's band."""
    gaps = log(np.array([[reading.value] for reading in measured]) / predicted)
    width = np.where(gaps < 0.0, widths[:, :1, 0], widths[:, :1, 1])
    distance = np.abs(gaps / width).sum(axis=0)
    alone = (np.where(variants.second == NONE, 0, 1 + number) for number in (variants.first, variants.second))
    return np.asarray(np.all([distance < distance[rows] for rows in alone], axis=0))


def _factors(name: str) -> tuple[float, float]:
    known = ((predicted, repeated) for pattern, predicted, repeated in SPREADS if re.match(pattern, name))
    return next(known, (OF_CHANGE, REPEATED))


def ratio_band(name: str, ratio: float) -> tuple[float, float]:
    """80 % band of the predicted ratio of a result of two runs on one machine, whose shared errors cancel.

    >>> [f"{end:.2f}" for end in ratio_band("step_time", 2.0)]
    ['1.68', '2.38']
    """
    change, repeated = _factors(name)
    width = float(log(repeated) + log(change) * abs(float(log(ratio))))
    return ratio * float(exp(-width)), ratio * float(exp(width))


def _floors(results: Table, measured: Sequence[Measured]) -> Array:
    """Times added to measured and predicted parts so that small parts carry no weight, (measured, 1)."""
    whole = SMALL_PART * results.number(BANDED[results.kind.removesuffix("_results")])[0]
    return np.array([[whole if reading.column.name.startswith("time_") else 0.0] for reading in measured])


def _paired_widths(predicted: Array, floors: Array, measured: Sequence[Measured]) -> Array:
    """Logarithms of the ends of the 80 % band of the ratio of two runs, (measured, variants, 2).

    Errors of one plan on one machine cancel in the ratio. The repeatability of measurements and the error of the change
    remain: the logarithm of a change is predicted as well as a part of the time, or as memory.
    """
    factors = log([_factors(reading.column.name) for reading in measured])
    with np.errstate(all="ignore"):
        change = np.abs(log((predicted + floors) / (predicted[:, :1] + floors)))
    width = factors[:, 1:] + factors[:, :1] * np.nan_to_num(change, posinf=0.0)
    return np.repeat(width[:, :, None], 2, axis=-1)


def _weights(
    variants: Variants, results: Table, predicted: Array, widths: Array, floors: Array, measured: Sequence[Measured]
) -> Array:
    """Prior times likelihood of each variant; 0 if it is illegal, or one of its changes alters nothing."""
    weights = np.array([change.prior for change in variants.tried] + [1.0])
    result = weights[variants.first] * weights[variants.second]
    # Likelihood of each measurement: Laplace errors, of which the band holds four fifths
    for number, reading in enumerate(measured):
        gap = log((reading.value + floors[number]) / (predicted[number] + floors[number]))
        width = np.where(gap < 0.0, widths[number, :, 0], widths[number, :, 1])
        result = result * exp(-log(5.0) * np.abs(gap) / width) / widths[number].sum(axis=-1)
    fits = results.number("fits") == 1.0
    result = np.where(fits | ~fits[0], result, LARGE * result)
    # A pair counts only if both of its changes move some result
    single = np.searchsorted(variants.first[1 : len(variants.tried) + 1], np.arange(len(variants.tried))) + 1
    for member in (variants.first, variants.second):
        other = np.where(member == variants.first, variants.second, variants.first)
        without = np.where(other == NONE, 0, single[other])
        alike = np.abs(predicted - predicted[:, without]) <= 1e-3 * np.abs(predicted[:, without])
        same = np.all(alike, axis=0) & (member != NONE)
        result = np.where(same, 0.0, result)
    result[0] = 0.0
    return np.asarray(np.nan_to_num(result))


def _unlisted(predicted: Array, widths: Array, floors: Array, measured: Sequence[Measured], outside: bool) -> float:
    """Prior times likelihood of an unlisted cause, and of no cause if no measurement is outside its band."""
    none, unlisted = 0.0 if outside else 1.0, UNKNOWN
    for number, reading in enumerate(measured):
        floor = float(floors[number, 0])
        gap = float(log((reading.value + floor) / (float(predicted[number]) + floor)))
        down, up = (float(width) for width in widths[number])
        unknown = float(log(UNKNOWN_WIDTH))
        none *= float(exp(-log(5.0) * abs(gap) / (down if gap < 0.0 else up))) / (down + up)
        unlisted *= float(exp(-log(5.0) * abs(gap) / unknown)) / (2.0 * unknown)
    return none + unlisted


def _near(row: int, predicted: Array, widths: Array, reading: Measured) -> bool:
    """Whether a measurement is in the band of a variant, or differs by less than REST."""
    gap = float(log(reading.value / predicted[row]))
    return bool(abs(expm1(gap)) < REST or -float(widths[row, 0]) <= gap <= float(widths[row, 1]))


def _ranked(variants: Variants, weights: Array, unlisted: float) -> list[tuple[int, float]]:
    """The likeliest variant of each cause or pair of causes, and the total probability of the values of its causes."""
    sums: dict[tuple[str, ...], float] = {}
    best: dict[tuple[str, ...], int] = {}
    for row in np.flatnonzero(weights > 0.0).tolist():
        key = tuple(sorted(change.cause for change in variants.made(row)))
        sums[key] = sums.get(key, 0.0) + float(weights[row])
        if key not in best or weights[row] > weights[best[key]]:
            best[key] = row
    whole = fsum([*sums.values(), unlisted])
    order = sorted(sums, key=lambda key: -sums[key])
    return [(best[key], sums[key] / whole) for key in order]


def _completed(
    variants: Variants, result: list[tuple[int, float]], rests: Array, in_band: Callable[[int], bool]
) -> list[tuple[int, float]]:
    """The likeliest first, unless it leaves REST or more and one of two rivals adds a cause to it and leaves less, or
    has the measurement in its band and the likeliest has not.
    """
    if not result or not rests[result[0][0]] >= REST:
        return result
    causes = [{change.cause for change in variants.made(row)} for row, _ in result[:3]]
    for place in range(1, len(causes)):
        likely = result[place][1] >= RIVAL * result[0][1]
        completes = causes[0] < causes[place] and rests[result[place][0]] < REST
        if likely and (completes or in_band(result[place][0]) > in_band(result[0][0])):
            return [result[place], *result[:place], *result[place + 1 :]]
    return result


def _unexplained(row: int, predicted: Array, widths: Array, measured: Sequence[Measured]) -> str:
    gaps = [float(log(reading.value / predicted[number, row])) for number, reading in enumerate(measured)]
    left = [
        f"{reading.words(reading.value)} ({percent(float(expm1(gap)), signed=True)} from it)"
        for reading, gap, (down, up) in zip(measured, gaps, widths[:, row], strict=True)
        if not -down <= gap <= up
    ]
    return f"outside the band of explanation 1 as well: {', '.join(left)}" if left else ""


def _telling(
    variants: Variants, results: Table, sequence: Sequence[tuple[int, float]], measured: Sequence[Measured]
) -> str:
    """The unmeasured result that best discriminates between the first two explanations, in widths of its band."""
    if len(sequence) < 2 or sequence[1][1] < RIVAL * sequence[0][1]:
        return ""
    kind, known = variants.plan.kind, {mean_of(name) for reading in measured for name in reading.names}
    rivals, best, words = [row for row, _ in sequence[:2]], 1.0, "no other result tells 1 from 2"
    for name in (name for name in TELLING[kind] if name not in known):
        candidate = Measured(objective_of(kind, name), 1.0)
        values = (_predicted(variants, results, candidate) + _floors(results, [candidate])[0])[rivals]
        with np.errstate(all="ignore"):
            apart = abs(float(log(values[0] / values[1]))) / float(log(_factors(candidate.column.name)[0]))
        if apart > best:
            first, second = (candidate.words(float(_predicted(variants, results, candidate)[row])) for row in rivals)
            best, words = apart, f"to tell 1 from 2, measure {first} (1) or {second} (2)"
    return words


def _is_part(reading: Reading) -> bool:
    """Whether a reading is memory or a part of the time, with a band of its own, instead of a whole time or rate."""
    return any(re.match(pattern, reading.measured.column.name) for pattern, *_ in SPREADS)


def _line(
    variants: Variants, rank: int, result: tuple[int, float], predicted: Array, measured: Sequence[Measured], lead: int
) -> dict[str, object]:
    row, probability = result
    made = variants.made(row)
    return {
        "rank": float(rank),
        "probability": probability,
        "cause": " + ".join(change.cause for change in made),
        "change": "; ".join(change.words for change in made),
        "advice": "; ".join(change.advice for change in made),
        "predicted": ", ".join(reading.words(float(predicted[n, row])) for n, reading in enumerate(measured)),
        "remainder": measured[lead].value / float(predicted[lead, row]) - 1.0,
    }


def _steps(variants: Variants, row: int, predicted: Array, reading: Measured) -> list[dict[str, object]]:
    """From the prediction of the plan to the measurement: the larger change first, then the unexplained difference."""
    unit = unit_of(reading.column).factor
    made = [number for number in (variants.first[row], variants.second[row]) if number != NONE]
    made.sort(key=lambda number: -abs(float(predicted[1 + number] - predicted[0])))
    at = [float(predicted[0]), *([float(predicted[1 + made[0]])] if len(made) > 1 else []), float(predicted[row])]
    points = [value / unit for value in [*at, reading.value]]
    words = [*(variants.tried[number].cause for number in made), "not explained"]
    lines: list[dict[str, object]] = [{"step": "predicted", "value": points[0], "difference": points[0]}]
    for name, start, end in zip(words, points[:-1], points[1:], strict=True):
        lines.append({"step": name, "value": end, "difference": end - start})
    lines.append({"step": "measured", "value": points[-1], "difference": points[-1]})
    return [{**line, "result": reading.column.header} for line in lines]
