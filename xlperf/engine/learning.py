"""The user's measured runs, rows of the sheet ``own_runs``: their predictions, and what they correct."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from xlperf.base import resources
from xlperf.base.arrays import Array, divide, exp, log, log2, power, total
from xlperf.base.errors import Fault, InputError
from xlperf.catalog.cards import run_plans
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import MEASURED, OWN_RUNS, results_of
from xlperf.catalog.table import Table, copied_name
from xlperf.engine.join import Named, named_rows, software_words
from xlperf.equations.plan.records import Remark
from xlperf.equations.training.step import STEP_PARTS

QUANTITIES = {
    "step_time": "step time",
    "tpot": "time per token",
    "ttft": "time to first token",
    "memory": "memory",
    "accelerator_power": "power",
}
"""Results that runs correct, with their names."""
TABLE = "catalog/own_runs.csv"
ANY = "any"  # quantity of the constants that all quantities share
EFFECTS = ("source", "model", "accelerator", "software", "configuration", "settings")
REACHES = {
    "degrees": ("num_accelerators", "tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel",
                "data_parallel_attention"),
    "load": ("micro_batch_size", "global_batch_size", "concurrency", "batch_size", "request_rate"),
    "lengths": ("sequence_length", "prompt_length", "output_length"),
    "choices": ("precision", "recompute", "mode"),
}  # fmt: skip
"""Columns of plans that define the distance between settings, by the constant for its reach."""
_NUMBERS = tuple(name for part in ("degrees", "load", "lengths") for name in REACHES[part])
_CHOICES = REACHES["choices"]
OWN = ("variance", "noise", "freedom", "width", "growth")
PARTS = {
    "step_time": STEP_PARTS,
    "tpot": ("time_matrix", "time_attention", "time_vector", "time_communication", "time_overhead", "prefill_share"),
}
"""Results that divide the time of a quantity; a run teaches most about the parts in which it spends its time."""


class Effects(NamedTuple):
    """Constants of the process for one quantity."""

    shares: tuple[float, ...]  # of the effects of EFFECTS in the variance without noise, which add up to 1 [-]
    reaches: tuple[float, ...]  # distances over which the effect of the settings falls by e [doublings, choices]
    parts: tuple[float, ...]  # variance of the log time of each part of PARTS over the variance [-]
    variance: float  # of a log ratio without noise
    noise: float  # variance of the noise over it [-]
    freedom: float  # degrees of freedom of the Student-t distribution [-]
    width: float  # half-width of an 80 % band over the scale of the process after one run [-]
    growth: float  # power of the number of runs by which it grows [-]


@cache
def effects_of(quantity: str) -> Effects:
    """Fitted constants of a quantity.

    >>> effects = effects_of("step_time")
    >>> 0.99 < sum(effects.shares) < 1.01, effects.variance > 0.0
    (True, True)
    """
    known = {(row["quantity"], row["constant"]): float(row["value"]) for row in resources.rows(TABLE)}
    shares, reaches = (tuple(known[ANY, name] for name in names) for names in (EFFECTS, REACHES))
    shares = tuple(share / sum(shares) for share in shares)  # of rounded shares, too
    parts = tuple(known[quantity, name] for name in PARTS.get(quantity, ()))
    return Effects(shares, reaches, parts, *(known[quantity, name] for name in OWN))


class Places(NamedTuple):
    """Plans as the process sees them, (rows,): codes of names, settings, and parts of their predicted time."""

    names: np.ndarray  # codes of model, accelerator and software, equal for equal names, (rows, 3)
    numbers: Array  # logarithms of degrees, load and lengths, NaN if unknown, (rows, numbers) [doublings]
    choices: np.ndarray  # (rows, choices)
    parts: Array  # shares of the predicted time, (rows, parts of the quantity) [-]

    def take(self, rows: np.ndarray) -> Places:
        """Select rows."""
        return Places(*(values[rows] for values in self))


def settings_of(plans: Table) -> tuple[Array, np.ndarray]:
    """Numbers and choices of plans for :class:`Places`."""
    known, blank = plans.schema.by_name, np.full(len(plans), np.nan)
    numbers = [log2(plans.filled(name)) if name in known else blank for name in _NUMBERS]
    choices = [plans.filled(name) if name in known else np.full(len(plans), "", dtype=object) for name in _CHOICES]
    return np.stack(numbers, axis=-1), np.stack(choices, axis=-1)


def shares_of(quantity: str, results: Mapping[str, np.ndarray]) -> Array:
    """Shares of the parts of a quantity in its predicted time, (rows, parts); 0 for plans without a prediction. [-]"""
    names = PARTS.get(quantity, ())
    if not names:
        return np.zeros((len(next(iter(results.values()))), 0))
    times = np.nan_to_num(np.stack([results[name] for name in names], axis=-1), posinf=0.0)
    if quantity != "tpot":
        return np.asarray(divide(times, total(times)[:, None], 0.0))
    step, prompts = times[:, :-1], times[:, -1:]  # the time between two tokens is a decode step and a share of prompts
    return np.concatenate([(1.0 - prompts) * divide(step, total(step)[:, None], 0.0), prompts], axis=1)


def distances(first: Places, second: Places, reaches: Sequence[float]) -> Array:
    r"""Distances between settings in units of their reach, (first, second).

    .. math:: d = \sum_p \frac{1}{l_p} \sum_{i \in p} |\log_2 x_i - \log_2 y_i|

    with 1 for each different choice, and 0 for numbers that one plan does not state.
    """
    result, start = np.zeros((len(first.names), len(second.names))), 0
    for names, reach in zip(REACHES.values(), reaches, strict=True):
        for column in range(start, start + len(names)) if names is not _CHOICES else ():
            doublings = np.abs(first.numbers[:, column, None] - second.numbers[None, :, column])
            result += np.nan_to_num(doublings) / reach
        start += len(names)
    for column in range(len(_CHOICES)):
        result += (first.choices[:, column, None] != second.choices[None, :, column]) / reaches[-1]
    return result


def covariance(first: Places, second: Places, effects: Effects) -> Array:
    """Covariance of the log ratios of plans without noise, over the variance, (first, second)."""
    result = _likeness(first, second, effects)
    for part, variance in enumerate(effects.parts):
        result += variance * first.parts[:, part, None] * second.parts[None, :, part]
    return result


def _likeness(first: Places, second: Places, effects: Effects) -> Array:
    """Covariance by names and settings; 1 for equal ones."""
    source, *named, configuration, settings = effects.shares
    alike = first.names[:, None, :] == second.names[None, :, :]
    result = np.full(alike.shape[:2], source)
    for at, share in enumerate(named):
        result += share * alike[:, :, at]
    near = exp(-distances(first, second, effects.reaches))
    return np.asarray(result + np.logical_and.reduce(alike, axis=-1) * (configuration + settings * near))


class Learned(NamedTuple):
    """What runs say about plans, (rows,)."""

    mean: Array  # of the log ratio measured/predicted
    half_width: Array  # of its 80 % band around the mean
    unknown: Array  # share of the variance that remains; 1: the runs say nothing
    first: Array  # half-width of the band of the process before any run
    cover: Array  # least half-width that covers the runs of equal settings


@dataclass(frozen=True)
class Process:
    """Runs of one quantity, in an order that their names and places do not change."""

    effects: Effects
    places: Places
    ratios: Array  # log of measured over predicted value, (runs,)

    def learned(self, plans: Places) -> Learned:
        r"""Posterior of plans.

        .. math:: \mu = k^T K^{-1} r, \quad s^2 = \frac{\nu + r^T K^{-1} r}{\nu + n} (k_0 - k^T K^{-1} k)

        with :math:`K` the covariance of n runs with their noise, :math:`k` that between runs and a plan, :math:`k_0`
        the variance of the plan.
        """
        effects, runs = self.effects, self.places
        scale, count = float(np.sqrt(effects.variance)), len(self.ratios)
        near, own = covariance(plans, runs, effects), covariance(runs, runs, effects)
        reduced, residual = _eliminated(own + effects.noise * np.eye(count), near, self.ratios / scale)
        before = 1.0 + total(np.asarray(effects.parts) * plans.parts * plans.parts) + effects.noise
        remaining = np.maximum(before - total(reduced * reduced), 1e-12)
        mean = total(reduced * residual)
        size = (effects.freedom + float(total(residual * residual))) / (effects.freedom + count)
        width = scale * effects.width * float(power(np.float64(count), np.float64(effects.growth)))
        gaps = np.abs(self.ratios[None, :] - scale * mean[:, None])
        equal = _likeness(plans, runs, effects) >= 1.0 - 1e-9
        cover = np.where(equal, gaps, 0.0).max(axis=-1)
        half, first = (width * np.sqrt(size * variance) for variance in (remaining, before))
        return Learned(scale * mean, half, remaining / before, first, cover)


def _eliminated(own: Array, near: Array, ratios: Array) -> tuple[Array, Array]:
    """L^-1 ``near`` and L^-1 ``ratios`` with L the Cholesky factor of ``own``."""
    count = len(own)
    lines = np.concatenate([own, near.T, ratios[:, None]], axis=1)
    for step in range(count):
        lines[step] /= np.sqrt(lines[step, step])
        lines[step + 1 :] -= lines[step, step + 1 : count, None] * lines[step]
    return lines[:, count:-1].T, lines[:, -1]


def band(learned: Learned, ends: Array) -> Array:
    r"""Half-widths of the 80 % band of corrected plans from those of their predictions alone, in logarithms.

    .. math:: h = h_{process} (h_{plan} / h_{first})^u

    with u the share of the variance that the runs leave unknown: a plan about which they say nothing keeps its band.
    """
    with np.errstate(all="ignore"):
        kept = power(ends / learned.first, np.broadcast_to(learned.unknown, ends.shape))
    return np.maximum(np.where(ends > 0.0, learned.half_width * kept, ends), learned.cover * (1.0 + 1e-9))


def ends_after_a_run(plans: Table, results: Mapping[str, np.ndarray], quantity: str, logs: Array) -> Array:
    """Logarithms of both ends of the bands of plans (2, rows) once a run of each has been measured as predicted."""
    effects, ends = effects_of(quantity), np.array(logs)
    places = Places(np.zeros((len(plans), 3), dtype=np.int64), *settings_of(plans), shares_of(quantity, results))
    for row in range(len(plans)):
        place = places.take(np.array([row]))
        learned = Process(effects, place, np.zeros(1)).learned(place)
        ends[:, row] = Corrections({quantity: learned}, {quantity: 1}, results).ends(quantity, logs[:, [row]])[:, 0]
    return ends


def log_ratio(measured: Array, predicted: Array, larger: bool) -> Array:
    """Log of measured over predicted time; of rates the inverse."""
    return log(predicted / measured) if larger else log(measured / predicted)


TIMES = {
    "training": ("step_time", "tokens_per_second", "tokens_per_second_per_accelerator", "model_flop_rate", "mfu"),
    "inference": (
        "tpot",
        "tpot_median",
        "tpot_itl",
        "latency",
        "tokens_per_second",
        "tokens_per_second_per_accelerator",
    ),
}
"""Measured results that give the time of a run, in order of preference, by kind of plan."""
OF_QUANTITY = {
    "training": {"step_time": TIMES["training"], "memory": ("memory",), "accelerator_power": ("accelerator_power",)},
    "inference": {
        "tpot": TIMES["inference"],
        "ttft": ("ttft", "ttft_median"),
        "accelerator_power": ("accelerator_power",),
    },
}
"""Measured results that give the ratio of a quantity, in order of preference."""
WORDS = {
    "step_time": "steps take {} times as long as predicted",
    "tpot": "tokens take {} times as long as predicted",
    "ttft": "first tokens take {} times as long as predicted",
    "memory": "memory is {} times as large as predicted",
    "accelerator_power": "power is {} times as high as predicted",
}
"""What runs teach about a quantity."""
_LEAST, _MOST = 0.05, 20.0  # ratios of measured over predicted value beyond which another unit is meant [-]


Evaluate = Callable[[Table, Catalog], Mapping[str, np.ndarray]]  # all results of plans of one kind, in internal units


@dataclass(frozen=True, eq=False)
class OwnRuns:
    """Measured runs of one kind of plan, their predictions without the runs, and a process for each quantity."""

    plans: Table
    predicted: Table
    names: tuple[dict[str, int], dict[str, int], dict[str, int]]  # codes by model, accelerator, software, casefolded
    processes: dict[str, Process]
    rows: dict[str, np.ndarray]  # positions in ``plans`` of the runs of each quantity, in the order of its process

    def codes(self, at: int, names: Sequence[str]) -> np.ndarray:
        """Codes of models, accelerators or software by name; -1 for names without a run."""
        return np.array([self.names[at].get(name, -1) for name in names], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Corrections:
    """What own runs say about a block of plans, by quantity."""

    learned: dict[str, Learned]
    counts: dict[str, int]
    predicted: Mapping[str, np.ndarray]  # results of the block without runs

    def drawing(self, results: Mapping[str, Array], **rates: Array) -> Mapping[str, Array]:
        """Results to predict power from: without runs, with ``rates`` without them, if the runs measured power."""
        return {**results, **self.predicted, **rates} if "accelerator_power" in self.learned else results

    def factor(self, quantity: str, size: int = 1) -> Array:
        """Factor on predictions; 1 without runs of the quantity."""
        return exp(self.learned[quantity].mean) if quantity in self.learned else np.ones(size)

    def ends(self, quantity: str, logs: Array) -> Array:
        """Logarithms of both ends of a band (2, rows) around the corrected prediction, from the ends without runs."""
        if quantity not in self.learned:
            return logs
        sign = np.array([[-1.0], [1.0]])
        return np.asarray(sign * band(self.learned[quantity], sign * logs))

    def notes(self, illegal: np.ndarray) -> list[Remark]:
        """Factors, and the number of runs behind them."""
        remarks = []
        for name in self.learned:
            runs = f"{self.counts[name]} own run{'s' * (self.counts[name] > 1)}"
            words = f"{runs}: {WORDS[name]} without"
            remarks.append(Remark(~illegal, words, (np.char.mod("%.2f", self.factor(name)),)))
        return remarks


_known: WeakKeyDictionary[Catalog, dict[str, OwnRuns | None]] = WeakKeyDictionary()
_codes: WeakKeyDictionary[Catalog, dict[str, tuple[np.ndarray, np.ndarray]]] = WeakKeyDictionary()


def without_own_runs(catalog: Catalog) -> Catalog:
    """The catalog with an empty sheet of own runs."""
    return catalog.with_tables([catalog.tables[OWN_RUNS].take(np.empty(0, dtype=np.int64))], checked=True)


def own_runs_of(catalog: Catalog, kind: str, evaluate: Evaluate) -> OwnRuns | None:
    """The user's runs of a kind of plan, evaluated with the catalog that they were given with; None without any. Raises
    InputError if a run is illegal, has no measured value of its kind, or one that is impossible.
    """
    if not len(catalog.tables[OWN_RUNS]):
        return None
    base = catalog.as_measured
    known = _known.setdefault(base, {})
    if kind not in known:
        faults: list[Fault] = []
        tables = {plans.kind: plans for plans in run_plans(base.tables[OWN_RUNS], faults)}
        own = _of_kind(tables[kind], without_own_runs(base), evaluate, faults) if kind in tables else None
        if faults:
            raise InputError(faults)
        known[kind] = own
    return known[kind]


def _of_kind(plans: Table, plain: Catalog, evaluate: Evaluate, faults: list[Fault]) -> OwnRuns:
    predicted = Table(f"{plans.kind}_results", evaluate(plans, plain))
    names, places = _names_of(plans, plain)
    schema = results_of(plans.kind).by_name
    taught = np.zeros(len(plans), dtype=bool)
    processes, rows_of = {}, {}
    for quantity, results in OF_QUANTITY[plans.kind].items():
        ratios = np.full(len(plans), math.nan)
        for name in results:
            stated = plans.number(MEASURED + name)
            for row in np.flatnonzero(~np.isnan(stated) & np.isnan(ratios)).tolist():
                measured, value = stated[[row]], predicted.number(name)[[row]]
                with np.errstate(all="ignore"):
                    ratio = float(log_ratio(measured, value, schema[name].is_larger_better)[0])
                taught[row] = True
                fault = _fault(plans, predicted, row, name, ratio)
                if fault is None:
                    ratios[row] = ratio
                else:
                    faults.append(fault)
        rows = np.flatnonzero(~np.isnan(ratios))
        if len(rows):
            # In an order that does not depend on that of the sheet, so that results do not either.
            keys = [(ratios[row], str(plans.text("name")[row])) for row in rows.tolist()]
            rows = rows[np.array(sorted(range(len(rows)), key=keys.__getitem__), dtype=np.int64)]
            parts = shares_of(quantity, predicted.columns)
            processes[quantity] = Process(effects_of(quantity), places._replace(parts=parts).take(rows), ratios[rows])
            rows_of[quantity] = rows
    for row in np.flatnonzero(~taught).tolist():
        wanted = [f"measured {names[0].replace('_', ' ')}" for names in OF_QUANTITY[plans.kind].values()]
        problem = f"the run has no measured value that teaches; enter {', '.join(wanted[:-1])} or {wanted[-1]}"
        faults.append(Fault(plans.place(row, "name"), problem))
    return OwnRuns(plans, predicted, names, processes, rows_of)


def _fault(plans: Table, predicted: Table, row: int, name: str, ratio: float) -> Fault | None:
    """Why a measured value teaches nothing."""
    words = name.replace("_", " ")
    if math.isnan(ratio):
        reason = str(predicted.text("reason")[row])
        return Fault(plans.place(row, "name"), f"the run has no {words} to compare with: {reason or 'illegal plan'}")
    if not float(log(_LEAST)) <= ratio <= float(log(_MOST)):
        column = results_of(plans.kind).by_name[name]
        stated, value = (
            column.amount(float(table[at][row])) for table, at in ((plans, MEASURED + name), (predicted, name))
        )
        problem = (
            f"measured {words} is {stated} and the prediction {value}: must be within 0.05 to 20 times; another unit?"
        )
        return Fault(plans.place(row, MEASURED + name), problem)
    return None


def _run_name(name: str) -> str:
    """A name as runs know it: a changed copy of a catalog row is the machine that was measured."""
    return copied_name(name).casefold()


def _names_of(plans: Table, catalog: Catalog) -> tuple[tuple[dict[str, int], dict[str, int], dict[str, int]], Places]:
    software, named = software_words(plans), named_rows(plans, catalog)
    models, accelerators = catalog.tables["models"].text("model"), catalog.tables["accelerators"].text("accelerator")
    words = [
        [_run_name(str(name)) for name in models[named.models].tolist()],
        [_run_name(str(name)) for name in accelerators[named.accelerators].tolist()],
        [software.words[code].casefold() for code in software.codes.tolist()],
    ]
    first, second, third = ({name: code for code, name in enumerate(dict.fromkeys(each))} for each in words)
    names = first, second, third
    codes = [[known[name] for name in each] for known, each in zip(names, words, strict=True)]
    return names, Places(np.array(codes, dtype=np.int64).reshape(3, -1).T, *settings_of(plans), _no_parts(plans))


def _no_parts(plans: Table) -> Array:
    return np.zeros((len(plans), 0))


def _codes_of_rows(runs: OwnRuns, catalog: Catalog, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Codes of all models and accelerators of a catalog."""
    known = _codes.setdefault(catalog, {})
    if kind not in known:
        columns = (("models", "model"), ("accelerators", "accelerator"))
        words = ([_run_name(str(name)) for name in catalog.tables[t].text(c).tolist()] for t, c in columns)
        models, accelerators = (runs.codes(at, each) for at, each in enumerate(words))
        known[kind] = models, accelerators
    return known[kind]


def corrections(
    plans: Table, catalog: Catalog, named: Named, results: Mapping[str, np.ndarray], evaluate: Evaluate
) -> Corrections | None:
    """Corrections of a block of plans by the user's runs of their kind; None without any. ``results``: predictions;
    quantities whose parts they lack are not corrected.
    """
    runs = own_runs_of(catalog, plans.kind, evaluate) if len(catalog.tables[OWN_RUNS]) else None
    if runs is None or not len(plans):
        return None
    models, accelerators = _codes_of_rows(runs, catalog, plans.kind)
    software = software_words(plans)
    words = runs.codes(2, [word.casefold() for word in software.words])[software.codes]
    names = np.stack([models[named.models], accelerators[named.accelerators], words], axis=-1)
    unnamed = np.where(names < 0, -2, names)  # not equal to any run
    places = Places(unnamed, *settings_of(plans), _no_parts(plans))
    learned = {
        quantity: process.learned(places._replace(parts=shares_of(quantity, results)) if quantity in PARTS else places)
        for quantity, process in runs.processes.items()
        if results.keys() >= set(PARTS.get(quantity, ()))
    }
    counts = {quantity: len(process.ratios) for quantity, process in runs.processes.items()}
    return Corrections(learned, counts, results)


def corrected_training(results: Mapping[str, Array], own: Corrections) -> dict[str, Array]:
    """Times of training steps scaled by what runs say."""
    factor = own.factor("step_time")
    return {
        name: values * factor if name == "step_time" or name.startswith("time_") else values
        for name, values in results.items()
    }


def corrected_memory(results: Mapping[str, Array], own: Corrections) -> dict[str, Array]:
    """Memory of training, and its parts, scaled by what runs say."""
    factor = own.factor("memory")
    return {name: values * factor for name, values in results.items()}


_PER_TOKEN = ("tpot", "tpot_median", "tpot_ninetieth", "tpot_ninety_ninth", "decode_time", "time_matrix",
              "time_attention", "time_vector", "time_communication", "time_overhead")  # fmt: skip
_FIRST = ("ttft", "ttft_median", "ttft_ninetieth", "ttft_ninety_ninth", "queue_time", "prefill_time")
_RATES = ("tokens_per_second", "tokens_per_second_per_accelerator")


def corrected_serving(results: Mapping[str, Array], own: Corrections, request_rate: Array) -> dict[str, Array]:
    """Times and rates of served plans, scaled by what runs say. The latency combines both times. Rates fall as it grows
    (Little's law) unless the plan states the request rate; then the number of running requests grows, and a rate above
    the corrected capacity has no steady state.
    """
    if not {"tpot", "ttft"} & own.learned.keys():
        return dict(results)
    first, token = own.factor("ttft"), own.factor("tpot")
    changed = dict(results)
    changed |= {name: results[name] * token for name in _PER_TOKEN if name in results}
    changed |= {name: results[name] * first for name in _FIRST if name in results}
    longer = token + 0.0 * first
    if "latency" in results:
        decoding = results["latency"] - results["ttft"]
        changed["latency"] = changed["ttft"] + np.where(decoding > 0.0, decoding * token, 0.0)
        longer = np.where(np.isfinite(results["latency"]), divide(changed["latency"], results["latency"]), longer)
        changed["tpot_itl"] = results["tpot_itl"] * longer
        given = ~np.isnan(request_rate)
        changed |= {name: results[name] / np.where(given, 1.0, longer) for name in _RATES}
        changed["running_batch"] = results["running_batch"] * np.where(given, longer, 1.0)
        changed["max_request_rate"] = results["max_request_rate"] / longer
        unserved = given & (request_rate > changed["max_request_rate"])
        changed["ttft"] = np.where(unserved, np.inf, changed["ttft"])
        weights = results["prefill_share"] * first, (1.0 - results["prefill_share"]) * token
        changed["prefill_share"] = divide(weights[0], weights[0] + weights[1])
    if "tokens_per_second_at_targets" in results:
        changed["tokens_per_second_at_targets"] = results["tokens_per_second_at_targets"] / longer
    return changed


def with_targets(plans: Table, own: Corrections) -> Table:
    """Plans whose targets of latency are as much shorter as runs are longer than predicted, if they have targets."""
    factors = {"ttft_target": own.factor("ttft"), "tpot_target": own.factor("tpot")}
    targets = {name: plans[name] / factor for name, factor in factors.items() if name in plans}
    return plans.with_columns(targets) if targets else plans
