"""Objectives and limits: a result to minimise or maximise, and bounds on results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, exp, log
from xlperf.base.errors import Fault, InputError, nearest
from xlperf.base.units import UNITS
from xlperf.catalog.cells import number_of
from xlperf.catalog.schema import Column, owned_kind, results_of, schema, split_header, table_schema, unit_of
from xlperf.catalog.table import Table
from xlperf.explore.vary import normal_scores

LARGER = frozenset(
    column.name
    for table in ("training_results", "inference_results", "ownership")
    for column in schema()[table].columns
    if column.is_larger_better
)
"""Results to maximise; all others are minimised."""
SHORT = {
    "cost": {
        "training": "cost_per_million_tokens",
        "inference": "cost_per_million_output_tokens_all_in",
        "serve": "fleet_cost_per_million_output_tokens",
        "train": "run_cost",
    },
    "owned_cost": {
        "training": "owned_cost_per_million_tokens",
        "inference": "owned_cost_per_million_output_tokens_all_in",
    },
    "energy": dict.fromkeys(("training", "inference"), "energy_per_token"),
    "throughput": dict.fromkeys(("training", "inference"), "tokens_per_second_per_accelerator"),
}
"""Short names of objectives, by kind of plan."""
TARGETS = {"ttft": "ttft_target", "tpot": "tpot_target"}
AT_TARGETS = ("batch_at_targets", "tokens_per_second_at_targets")
TOLD_APART = 0.05
"""Relative difference below which two predictions are indistinguishable: of 749 measured pairs of mappings whose
predicted times are nearer, half have the measured order (three quarters if 5 to 10 % apart, four fifths if 10 to 25
%). [-]
"""
BANDED = {"training": "step_time", "inference": "tpot"}
"""Result whose band measures the uncertainty of a plan."""
_LIMIT = re.compile(r"\s*(.+?)\s*(<=|>=|<|>)\s*([-+.\deE]+)\s*(\S*)\s*")
_WORDS = {"at most": "<=", "within": "<=", "up to": "<=", "at least": ">=", "below": "<", "above": ">"}
"""Words of limits and their signs."""
_IN_WORDS = re.compile(rf"\s(?:is\s+)?({'|'.join(_WORDS)})\s", re.IGNORECASE)
_SPELLED = {
    "hour": "h",
    "hours": "h",
    "minute": "min",
    "minutes": "min",
    "seconds": "s",
    "days": "day",
    "years": "year",
}


class Objective(NamedTuple):
    """A result, and whether more of it is better."""

    column: Column
    larger: bool

    @property
    def words(self) -> str:
        """``least step time`` or ``most tokens per second``."""
        return f"{'most' if self.larger else 'least'} {self.column.name.replace('_', ' ')}"

    @property
    def is_result(self) -> bool:
        """Whether it is a result; else it is a column of the plans."""
        return self.column.is_result

    def loss(self, results: Table, plans: Table | None = None) -> Array:
        """The quantity to minimise, of results or of a column of plans, one per row; NaN if there is none."""
        values = (results if self.is_result or plans is None else plans).number(self.column.name)
        return -values if self.larger else values


class Limit(NamedTuple):
    """A bound on a result in the internal unit; with a probability by its band, 1/2 by the prediction."""

    column: Column
    sign: str
    bound: float
    probability: float = 0.5

    @property
    def words(self) -> str:
        """``ttft <= 500 ms``."""
        sure = f" with {self.probability:.4g} probability" if self.probability > 0.5 else ""
        return f"{self.column.words} {self.sign} {self.column.amount(self.bound, 'g')}{sure}"

    def sure(self, results: Table) -> Array:
        """The result at the quantile of its band that has to satisfy the bound."""
        values = results.number(self.column.name)
        if self.probability == 0.5:
            return values
        score = float(normal_scores(np.array([self.probability]))[0])
        return values * band_factor(results, self.column.name, score if self.sign in ("<", "<=") else -score)

    def used(self, results: Table) -> Array:
        """Share of the bound that rows use up, of a lower bound its inverse; NaN if there is no result."""
        with np.errstate(all="ignore"):
            ratio = self.sure(results) / self.bound
            return ratio if self.sign in ("<", "<=") else 1.0 / ratio

    def kept(self, results: Table) -> np.ndarray:
        """Rows that satisfy the bound; rows without the result do not."""
        return self.keeps(self.sure(results))

    def keeps(self, values: Array) -> np.ndarray:
        """Which values of the result satisfy the bound; NaN does not."""
        compare = {"<=": np.less_equal, ">=": np.greater_equal, "<": np.less, ">": np.greater}[self.sign]
        return np.asarray(compare(values, self.bound))

    def excess(self, results: Table) -> Array:
        """Relative excess over the bound, 0 for rows that satisfy it, infinite if there is no result."""
        values = self.sure(results)
        beyond = np.abs(values - self.bound) / max(abs(self.bound), np.finfo(float).tiny)
        return np.where(self.kept(results), 0.0, np.where(np.isnan(values), np.inf, beyond))


def num_alike(values: Array) -> int:
    """Number of plans, with a positive result and the best plan first, that are indistinguishable from the first.

    >>> num_alike(np.array([1.0, 1.02, 1.04, 1.2]))
    3
    """
    far = np.abs(log(values / values[0])) > TOLD_APART
    return int(np.argmax(far)) if far.any() else len(values)


def most_robust(values: Array, upper: Array) -> int:
    """Position of the robust choice: the least upper end of the 80 % bands among the plans that are indistinguishable
    from the best by a positive result to minimise.

    >>> most_robust(np.array([1.0, 1.02, 1.2]), np.array([1.6, 1.2, 1.3]))
    1
    """
    alike = np.flatnonzero(values <= values.min() * (1.0 + TOLD_APART))
    return int(alike[np.argmin(upper[alike])])


def objective_of(kind: str, name: str, place: str = "objective", owned: bool = False) -> Objective:
    """The objective of a name: a numeric result, or cost, energy or throughput; with ``owned`` also ownership results.
    InputError, at ``place``, if there is no such result.

    >>> objective_of("training", "step time").words
    'least step time'
    >>> objective_of("inference", "throughput").words
    'most tokens per second per accelerator'
    """
    column = _result(kind, name, place, owned)
    return Objective(column, column.name in LARGER)


COUNT = "num_accelerators"
"""Column of plans that may be an objective: the fewest accelerators."""


def is_number_of_accelerators(objective: str) -> bool:
    """Whether an objective is the fewest accelerators."""
    return split_header(objective)[0] == COUNT


def rival_of(kind: str, name: str, place: str = "objective", owned: bool = False) -> Objective:
    """As :func:`objective_of`, or the number of accelerators.

    >>> rival_of("training", "num accelerators").words
    'least num accelerators'
    """
    if is_number_of_accelerators(name):
        return Objective(table_schema(kind).by_name[COUNT], False)
    return objective_of(kind, name, place, owned)


def limit_of(kind: str, text: str, place: str = "limit", owned: bool = False) -> Limit:
    """A bound on a result from its text: the result, a sign (``<=``, or "at most"), and a number with or without a
    unit. InputError, at ``place``, if it is malformed.

    >>> limit_of("inference", "ttft<=0.5 s").words, limit_of("training", "run time within 30 days").words
    ('ttft <= 500 ms', 'run time <= 30 day')
    """
    match = _LIMIT.fullmatch(_IN_WORDS.sub(lambda words: _WORDS[words[1].lower()], text))
    if match is None:
        raise InputError(Fault(place, f'must be as "ttft<=500" or "memory<=70 GiB", got "{text}"'))
    name, sign, number, symbol = match.groups()
    asked = split_header(name)[0]
    if asked in table_schema(kind).by_name and asked not in results_of(kind).by_name:
        words = asked.replace("_", " ")
        hint = " or --most-accelerators" if asked == COUNT else ""
        raise InputError(Fault(place, f"{words} is a column of plans, no result: say with --vary{hint} what is tried"))
    column = _result(kind, name, place, owned)
    symbol = symbol or split_header(name)[1] or column.unit or "-"
    unit = UNITS.get(_SPELLED.get(symbol, symbol))
    if unit is None or unit.dimension != unit_of(column).dimension:
        raise InputError(Fault(place, f"{column.header} cannot be in {symbol}"))
    bound = number_of(number)
    if not np.isfinite(bound):
        raise InputError(Fault(place, f'"{number}" of "{text}" is no number'))
    return Limit(column, sign, bound * unit.factor)


def tightest(limits: Iterable[Limit]) -> tuple[Limit, ...]:
    """Limits without redundant ones, which another limit on the same result implies.

    >>> wide, narrow = limit_of("inference", "ttft<=500"), limit_of("inference", "ttft<=0.3 s")
    >>> [limit.words for limit in tightest([wide, narrow, narrow])]
    ['ttft <= 300 ms']
    >>> [limit.words for limit in tightest([wide._replace(probability=0.9), wide])]
    ['ttft <= 500 ms with 0.9 probability']
    """
    tight: list[Limit] = []
    for limit in limits:
        if any(_implies(other, limit) for other in tight):
            continue
        tight = [
            limit if limit.column.name == other.column.name and _implies(limit, other) else other for other in tight
        ]
        tight = list(dict.fromkeys([*tight, limit]))
    return tuple(tight)


def _implies(first: Limit, second: Limit) -> bool:
    """Whether a limit implies another on the same result: a bound at least as tight, with at least its probability."""
    upper = first.sign in ("<", "<=")
    if first.column.name != second.column.name or upper != (second.sign in ("<", "<=")):
        return False
    nearer = first.bound < second.bound if upper else first.bound > second.bound
    as_near = nearer or (first.bound == second.bound and len(first.sign) <= len(second.sign))
    return as_near and first.probability >= second.probability


def limits_of(
    kind: str, texts: Iterable[str], place: str = "limit", probability: float = 0.5, owned: bool = False
) -> list[Limit]:
    """Limits from their texts as :func:`limit_of`, all with one probability; InputError with every fault."""
    limits: list[Limit] = []
    faults: list[Fault] = []
    for text in texts:
        try:
            limits.append(limit_of(kind, text, place, owned)._replace(probability=probability))
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(faults)
    return limits


def _result(kind: str, text: str, place: str, owned: bool) -> Column:
    name = split_header(text)[0]
    name = SHORT.get(name, {}).get(kind, name)
    every = table_schema(owned_kind(kind)) if owned else results_of(kind)
    known = {column.name: column for column in every.columns if column.kind == "result"}
    if name not in known:
        likely = [other for other in known if not other.endswith(("_low", "_high"))]
        short = [one for one, names in SHORT.items() if names.get(kind) in known]
        hint = nearest(name, [*short, *likely]).replace("_", " ")
        raise InputError(Fault(place, f'"{text.strip()}" is no result in numbers of {kind} plans; {hint}'))
    return known[name]


def default_objective(plan: Table, searched: Sequence[str]) -> Objective:
    """Default objective of a search over some columns.

    Training: step time; or tokens per second and accelerator if the search varies the number of accelerators or the
    global batch is blank, so that steps do not compare. Inference: output tokens per second and accelerator if the plan
    has targets, or the search varies the load, the accelerators or the lengths; latency if the load is given.
    """
    tried = set(searched)
    if plan.kind == "training":
        unlike = tried & {"num_accelerators", "global_batch_size", "sequence_length", "model"}
        if unlike or np.isnan(plan.number("global_batch_size")[0]):
            return objective_of("training", "tokens_per_second_per_accelerator")
        return objective_of("training", "step_time")
    unlike = tried & {"num_accelerators", "batch_size", "concurrency", "request_rate", "prompt_length", "output_length"}
    targets = any(not np.isnan(plan.number(name)[0]) for name in TARGETS.values())
    rated = not np.isnan(plan.number("request_rate")[0])
    if unlike or (targets and not rated):
        return objective_of("inference", "tokens_per_second_per_accelerator")
    return objective_of("inference", "latency")


DECILE = 1.2815515655446004
"""Standard deviations from the median to the end of an 80 % band. [-]"""


TIMES = {"training_results": "step_time", "inference_results": "tpot"}
TIMES |= {owned_kind(kind): time for kind, time in BANDED.items()}
"""Result with the band that times and rates share, by kind of results."""


_AS_TIME = (
    "step_time", "time_", "layer_time", "step_cost", "ttft", "tpot", "latency", "prefill_time", "decode_time",
    "queue_time", "cost_per", "energy_per", "carbon_per", "run_time", "run_cost", "run_energy", "run_carbon",
)  # fmt: skip


_AS_RATE = ("tokens_per", "model_flop_rate", "mfu", "hfu", "max_request_rate")


def is_rate(name: str) -> bool:
    """Whether a result is a rate, which falls as times grow."""
    return name.removeprefix("owned_").startswith(_AS_RATE)


def band_factor(results: Table, name: str, score: Array | float) -> Array:
    """Factor from a predicted result to the quantile of its band with a standard score (1.28: the upper end of the 80 %
    band), (rows,). Times and rates without a band share the band of :data:`TIMES`; other results have none: 1.

    >>> results = Table("training_results", {n: np.array([v]) for n, v in
    ...     {"step_time": 2.0, "step_time_low": 1.0, "step_time_high": 3.0, "mfu": 0.4}.items()})
    >>> band_factor(results, "step_time", DECILE), band_factor(results, "mfu", DECILE)
    (array([1.5]), array([2.]))
    """
    turned = 1.0
    if f"{name}_low" not in results.columns:
        turned = 1.0 if name.removeprefix("owned_").startswith(_AS_TIME) else -1.0 if is_rate(name) else 0.0
        name = TIMES[results.kind]
    middle = results.number(name)
    share = np.asarray(score) / DECILE * turned
    with np.errstate(all="ignore"):
        low, high = (log(results.number(f"{name}_{end}") / middle) for end in ("low", "high"))
    return exp(turned * np.nan_to_num(np.where(share < 0.0, -low * share, high * share)))
