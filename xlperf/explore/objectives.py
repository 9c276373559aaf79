"""Objectives, limits and Pareto sets; the result of a search in words; answers to forms."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from xlperf.base.arrays import Array, exp, log
from xlperf.base.errors import Fault, InputError, nearest, raise_faults
from xlperf.base.units import MILLION, UNITS, percent
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.cells import number_of
from xlperf.catalog.schema import Column, column, owned_kind, results_of, schema, split_header, table_schema, unit_of
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.ownership import evaluate_ownership
from xlperf.explore.mappings import Counts
from xlperf.explore.vary import normal_scores
from xlperf.interop.software import STACKS

LARGER = frozenset(
    one.name
    for kind in ("training_results", "inference_results", "ownership")
    for one in schema()[kind].columns
    if one.is_larger_better
)
"""Results to maximise; all others are minimised."""


_KINDS = ("training", "inference", "serve", "train")
SHORT = {
    name: dict(zip(_KINDS, results, strict=False))
    for name, *results in (
        (
            "cost",
            "cost_per_million_tokens",
            "cost_per_million_output_tokens_all_in",
            "fleet_cost_per_million_output_tokens",
            "run_cost",
        ),
        ("owned_cost", "owned_cost_per_million_tokens", "owned_cost_per_million_output_tokens_all_in"),
        ("energy", "energy_per_token", "energy_per_token"),
        ("throughput", "tokens_per_second_per_accelerator", "tokens_per_second_per_accelerator"),
    )
}
"""Short names of objectives, by kind of plan."""
TARGETS = {"ttft": "ttft_target", "tpot": "tpot_target"}
AT_TARGETS = ("batch_at_targets", "tokens_per_second_at_targets")
TOLD_APART = 0.05
"""Relative difference below which two predictions are indistinguishable: of 749 measured pairs of mappings whose
predicted times are nearer, half have the measured order (three quarters if 5 to 10 % apart, four fifths if 10 to 25
%). [-]
"""
BANDED = {"training": "step_time", "inference": "tpot"}  # result whose band measures the uncertainty of a plan
_LIMIT = re.compile(r"\s*(.+?)\s*(<=|>=|<|>)\s*([-+.\deE]+)\s*(\S*)\s*")
_WORDS = {"at most": "<=", "within": "<=", "up to": "<=", "at least": ">=", "below": "<", "above": ">"}
"""Words of limits and their signs."""
_IN_WORDS = re.compile(rf"\s(?:is\s+)?({'|'.join(_WORDS)})\s", re.IGNORECASE)
_SPELLED = {
    "hour": "h", "hours": "h", "minute": "min", "minutes": "min", "seconds": "s", "days": "day", "years": "year",
}  # fmt: skip


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


COUNT = "num_accelerators"  # column of plans that may be an objective: the fewest accelerators


def is_number_of_accelerators(objective: str) -> bool:
    """Whether an objective is the fewest accelerators."""
    return split_header(objective)[0] == COUNT


def rival_of(kind: str, name: str, place: str = "objective") -> Objective:
    """As :func:`objective_of`, with ownership results, or the number of accelerators.

    >>> rival_of("training", "num accelerators").words
    'least num accelerators'
    """
    if is_number_of_accelerators(name):
        return Objective(table_schema(kind).by_name[COUNT], False)
    return objective_of(kind, name, place, owned=True)


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
    raise_faults(faults)
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


DECILE = 1.2815515655446004  # standard deviations from the median to the end of an 80 % band [-]


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


GOOD, BEYOND_LIMITS, TOO_LARGE, ILLEGAL = range(4)  # feasibility of a plan: a worse kind never precedes a better one
Lead = tuple[str, bool]  # A number column of plans that precedes the objective: less is better, or more if True


_DEGREES = ("tensor_parallel", "pipeline_parallel")
"""Degrees that divide the weights."""


@dataclass
class Search:
    """Result of the search of one plan; a feasible plan fits and satisfies the limits."""

    plans: Table  # the feasible plans, the best first; without any the nearest plan
    results: Table
    kind: int  # of the first: GOOD, BEYOND_LIMITS, TOO_LARGE or ILLEGAL
    num_tried: int  # candidates [-]
    num_legal: int  # legal candidates [-]
    num_fit: int  # legal candidates that fit [-]
    num_good: int  # feasible candidates [-]
    searched: tuple[str, ...]  # the columns with several values
    objective: Objective
    limits: tuple[Limit, ...] = ()
    counts: Counts | None = None  # tried numbers of accelerators, if the search chooses them
    lead: Lead | None = None
    note: str = ""  # candidates left out to limit their number
    refused: tuple[str, ...] = ()  # the software of the plans, if it starts none of the candidates
    rivals: tuple[Objective, ...] = ()  # further objectives, if the plans are the Pareto set of all objectives

    def taken(self, rows: np.ndarray) -> Search:
        """Some of its plans, in the order given."""
        return replace(self, plans=self.plans.take(rows), results=self.results.take(rows))

    @property
    def found(self) -> bool:
        """Whether any plan fits and satisfies the limits."""
        return self.kind == GOOD

    @property
    def limited_by(self) -> np.ndarray:
        """Bottleneck of each plan: the largest part of its step, the nearest limit, and the use of memory."""
        return limiting(self.results, self.limits)

    @property
    def kept_words(self) -> str:
        """The limits in words."""
        return " and ".join(limit.words for limit in self.limits)

    @property
    def words(self) -> str:
        """The number of candidates, or why no plan is feasible, and the tried numbers of accelerators."""
        counts = self.counts.words if self.counts is not None else ""
        titles = " and ".join(STACKS[stack].title for stack in self.refused)
        refused = f"{titles} refuses every candidate" if titles else ""
        return "; ".join(filter(None, [self._choice, refused, self._alike, counts, self.note]))

    @property
    def _alike(self) -> str:
        """Number of the first plans that are indistinguishable, and the one with the narrowest band."""
        loss = self.results.number(self.objective.column.name)
        if self.rivals and self.found:
            names = ", ".join(goal.words for goal in (self.objective, *self.rivals))
            return f"{len(self.plans):,} that no other beats in all of {names}"
        if not self.found or not (loss > 0.0).all():
            return ""
        loss = 1.0 / loss if self.objective.larger else loss
        if self.lead is not None:
            led = self.plans.number(self.lead[0])
            loss = loss[led == led[0]]
        alike = num_alike(loss)
        if alike < 2:
            return ""
        banded = BANDED[self.plans.kind]
        upper = loss * (self.results.number(f"{banded}_high") / self.results.number(banded))[: len(loss)]
        robust = most_robust(loss, upper) + 1
        least = f", no. {robust} has the narrowest band" if robust > 1 else ""
        return f"the first {alike} are within {100.0 * TOLD_APART:g} % and cannot be told apart{least}"

    @property
    def _choice(self) -> str:
        tried = f"{self.num_tried:,} plan{'s' if self.num_tried != 1 else ''} tried"
        if self.kind == GOOD:
            keep = f" with {self.kept_words}" if self.limits else ""
            column, larger = self.lead or ("", False)
            first = f"{'most' if larger else 'least'} {column.replace('_', ' ')}, then " if column else ""
            goal = f"{first}{self.objective.words}"
            return f"{goal} of {self.num_good:,} that fit{keep}; {tried}, {self.num_legal:,} legal"
        if self.kind == BEYOND_LIMITS:
            nearest = ", ".join(_reached(limit, self.results) for limit in self.limits)
            if not self.limits:
                return f"none of {self.num_fit:,} plans that fit has a {self.objective.column.name.replace('_', ' ')}"
            return f"none keeps {self.kept_words}: {tried}, {self.num_fit:,} fit, the nearest has {nearest}"
        if self.kind == TOO_LARGE:
            memory = "memory_reserved" if "memory_reserved" in self.results else "memory"
            needs = _shown(self.results.schema.by_name[memory], self.results)
            capacity = self.results["memory_capacity"][0] / 2.0**30
            names = [name for name in _DEGREES if name not in self.searched and not np.isnan(self.plans.stated(name))]
            fixed = f"; auto for {' and '.join(names).replace('_', ' ')} tries others" if names else ""
            return (
                f"none fits: {tried}, {self.num_legal:,} legal, the smallest has {needs} of {capacity:.4g} GiB{fixed}"
            )
        reason = self.results.stated_word("reason")
        return f"none is legal: {tried}" + (f", one of them: {reason}" if reason else "")

    @property
    def chosen_words(self) -> str:
        """The values of the first plan in the searched columns: ``tensor parallel 8, recompute none``."""
        return self.chosen()

    def chosen(self, without: str = "") -> str:
        """As :attr:`chosen_words`, without one column."""
        return ", ".join(f"{name.replace('_', ' ')} {self._value(name)}" for name in self.searched if name != without)

    def _value(self, name: str) -> str:
        column = self.plans.schema.by_name[name]
        value: Any = self.plans[name][0] if name in self.plans else ""
        if value == "" or value != value:
            return "blank"
        if column.kind == "flag":
            return "yes" if value else "no"
        return str(value) if column.is_text else column.amount(value, "g")


LIMITED_BY = column("found", "limited_by")
_COMPUTED = ("time_forward", "time_backward")


def limiting(results: Table, limits: Sequence[Limit]) -> np.ndarray:
    """Bottleneck of each plan, in words; ``limits``: that the results satisfy."""
    with np.errstate(all="ignore"):
        if "bound" in results.schema.by_name:
            spent = [f"decode limited by {word}" if word else "" for word in results.text("bound").tolist()]
        else:
            names = [name for name in results.schema.by_name if name.startswith("time_")]
            shares = np.nan_to_num(np.array([results.number(name) for name in names]) / results.number("step_time"))
            computed = shares[[name in _COMPUTED for name in names]].sum(axis=0).tolist()
            losses = [name for name in names if name not in _COMPUTED]
            lost = shares[[name in losses for name in names]]
            words = [name.removeprefix("time_").replace("_", " ") for name in losses]
            most = lost.argmax(axis=0).tolist()
            spent = [
                f"compute {percent(share, 0)}, {words[place]} {percent(lost[place, row], 0)}"
                for row, (share, place) in enumerate(zip(computed, most, strict=True))
            ]
        items = [spent]
        if limits:
            used = np.array([limit.used(results) for limit in limits])
            nearest = np.nan_to_num(used).argmax(axis=0)
            names = [limit.column.name.replace("_", " ") for limit in limits]
            numbered = enumerate(nearest.tolist())
            items.append(
                [
                    f"{names[i]} at {percent(used[i, row], 0)} of its limit" if used[i, row] > 0.0 else ""
                    for row, i in numbered
                ]
            )
        items.append([f"memory {percent(share, 0)} full" for share in results.number("memory_share").tolist()])
    return np.array(["; ".join(filter(None, words)) for words in zip(*items, strict=True)], dtype=object)


def _reached(limit: Limit, results: Table) -> str:
    """The first plan's value of a limited result, and its quantile if the limit has a probability."""
    sure = limit.sure(results)[0] / unit_of(limit.column).factor
    return _shown(limit.column, results) + (
        f" ({sure:.4g} with {limit.probability:.4g} probability)" if limit.probability > 0.5 else ""
    )


def _shown(column: Column, results: Table) -> str:
    return f"{column.words} {column.amount(results.number(column.name)[0])}"


Answer = dict[str, Any]  # results of one form by column, in internal units; a missing result is NaN or ""
PLAN, TABLES = "plan", "tables"  # keys of the plan and of the tables by name in an answer, beside its results


def no_answer(reason: str) -> Answer:
    """An answer without results: its reason, in a sentence too."""
    return {"reason": reason, "answer": f"No answer: {reason}."}


def short_of_memory(count: float, accelerator: str, reason: str) -> str:
    """A reason for which a plan does not fit, with the accelerators that lack memory.

    >>> short_of_memory(8.0, "H100", "needs 90 GiB of 80 GiB")
    'each of 8 H100 needs 90 GiB of 80 GiB'
    """
    return f"{'each of ' * (count > 1.0)}{count:,.0f} {accelerator} {reason}" if reason.startswith("needs") else reason


def one_plan(kind: str, columns: Mapping[str, Any], searched: Collection[str], form: Table) -> Table:
    """A plan of one row from values or columns, with ``auto`` in ``searched`` columns that are blank or missing."""
    given: dict[str, np.ndarray] = {}
    for name, declared in table_schema(kind).by_name.items():
        if name in columns or name in searched:
            value = columns.get(name, "" if declared.is_text else np.nan)
            given[name] = value if isinstance(value, np.ndarray) else declared.array([value])
    blank = {name: given[name] == "" if given[name].dtype == object else np.isnan(given[name]) for name in searched}
    return Table(kind, given, form.place, {name: np.asarray(mask) for name, mask in blank.items() if mask[0]})


def slower(results: Table, name: str, catalog: Catalog) -> float:
    """Factor on a time of one plan in the case of a catalog: ``low`` is fast and cheap, ``high`` slow and dear."""
    if catalog.case == "base":
        return 1.0
    return float(results.number(f"{name}_{catalog.case}")[0] / results.number(name)[0])


def short_number(value: float) -> str:
    """A number with at least three digits.

    >>> short_number(30000.0), short_number(0.552)
    ('30,000', '0.552')
    """
    return f"{value:,.0f}" if value >= 1000.0 else f"{value:.4g}"


def short_name(accelerator: str) -> str:
    """Name of an accelerator without its memory and form: ``H200``.

    >>> short_name("H200-SXM-141GB"), short_name("My chip")
    ('H200', 'My chip')
    """
    return str(accelerator).split("-")[0]


def dollars(amount: float) -> str:
    """An amount of money in words.

    >>> dollars(0.476), dollars(12345.0), dollars(750208.0), dollars(-2.5e6), dollars(3.1e9), dollars(-0.004)
    ('$0.48', '$12,345', '$750 k', '-$2.50 M', '$3.10 bn', '$0.00')
    """
    if amount < -0.005:
        return f"-{dollars(-amount)}"
    for factor, word in ((1000.0 * MILLION, " bn"), (MILLION, " M")):
        if amount >= factor:
            return f"${amount / factor:,.2f}{word}"
    return f"${amount / 1e3:,.0f} k" if amount >= 1e5 else f"${abs(amount):,.{2 * (amount < 100.0)}f}"


def price_words(given: float, basis: str) -> str:
    """Source of the price of an hour: the form, or the sheet prices.

    >>> price_words(float("nan"), "rent")
    'rent of the sheet prices'
    """
    if given == given:
        return "as given"
    return {"rent": "rent of the sheet prices", "own": "owned, by the sheet prices"}.get(basis, "no price known")


def names_of_owners(kind: str) -> list[str]:
    """Numeric ownership results that the results of a kind of plan lack.

    >>> names_of_owners("training")[:3]
    ['accelerators_bought', 'network_switches', 'network_cables']
    """
    known = results_of(kind).by_name
    return [name for name in table_schema(owned_kind(kind)).by_name if name not in known]


def are_owned(kind: str, names: Iterable[str]) -> bool:
    """Whether any of some results is an ownership result."""
    return not set(names_of_owners(kind)).isdisjoint(names)


def with_owned(plans: Table, results: Table, catalog: Catalog) -> Table:
    """All results of plans with ownership results beside them; NaN if no row of servers has the accelerator."""
    owned = evaluate_ownership(plans, catalog, results=results)
    columns = {name: owned[name] for name in names_of_owners(plans.kind)}
    return Table(owned_kind(plans.kind), {**results.columns, **columns}, results.place)


def evaluated(plans: Table, catalog: Catalog, owned: bool) -> Table:
    """As :func:`xlperf.engine.evaluate`, with ownership results if ``owned``."""
    results = evaluate(plans, catalog)
    return with_owned(plans, results, catalog) if owned else results


def pareto_rows(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Pareto-optimal rows of two quantities to be minimised, the smallest first quantity first; NaN rows are left out.

    >>> pareto_rows(np.array([1.0, 2.0, 3.0, 2.5]), np.array([9.0, 5.0, 6.0, 4.0]))
    array([0, 1, 3])
    """
    rows = np.flatnonzero(np.isfinite(first) & np.isfinite(second))
    rows = rows[np.lexsort((second[rows], first[rows]))]
    best = np.minimum.accumulate(np.concatenate([[np.inf], second[rows]]))[:-1]
    return np.asarray(rows[second[rows] < best])


def unbeaten_rows(losses: np.ndarray) -> np.ndarray:
    """Pareto-optimal rows of quantities to be minimised, (rows, quantities), of equal rows the first; NaN rows are left
    out.

    >>> unbeaten_rows(np.array([[1.0, 9.0, 1.0], [2.0, 5.0, 1.0], [3.0, 6.0, 1.0], [3.0, 6.0, 0.5], [1.0, 9.0, 1.0]]))
    array([0, 1, 3])
    """
    rows = np.flatnonzero(np.isfinite(losses).all(axis=1))
    rows = rows[np.lexsort((rows, *losses[rows].T[::-1]))]
    results = []
    while len(rows):
        first = rows[0]
        results.append(int(first))
        rows = rows[(losses[rows] < losses[first]).any(axis=1)]
    return np.sort(np.array(results, dtype=np.int64))
