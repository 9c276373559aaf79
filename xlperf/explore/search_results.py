"""Results of a search in words, ownership results beside them, and the words of answers to forms."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xlperf.base.units import MILLION
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import Column, column, owned_kind, results_of, table_schema, unit_of
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.ownership import evaluate_ownership
from xlperf.explore.mappings import Counts
from xlperf.explore.objectives import BANDED, TOLD_APART, Limit, Objective, most_robust, num_alike
from xlperf.interop.software import STACKS

GOOD, BEYOND_LIMITS, TOO_LARGE, ILLEGAL = range(4)
"""Feasibility of a plan: a worse kind never precedes a better one."""
Lead = tuple[str, bool]
"""A number column of plans that precedes the objective: less is better, or more if True."""


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
            return f"none fits: {tried}, {self.num_legal:,} legal, the smallest has {needs} of {capacity:.4g} GiB"
        reason = str(self.results.text("reason")[0])
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
                f"compute {share:.0%}, {words[place]} {lost[place, row]:.0%}"
                for row, (share, place) in enumerate(zip(computed, most, strict=True))
            ]
        items = [spent]
        if limits:
            used = np.array([limit.used(results) for limit in limits])
            nearest = np.nan_to_num(used).argmax(axis=0)
            names = [limit.column.name.replace("_", " ") for limit in limits]
            numbered = enumerate(nearest.tolist())
            items.append(
                [f"{names[i]} at {used[i, row]:.0%} of its limit" if used[i, row] > 0.0 else "" for row, i in numbered]
            )
        items.append([f"memory {share:.0%} full" for share in results.number("memory_share").tolist()])
    return np.array(["; ".join(filter(None, words)) for words in zip(*items, strict=True)], dtype=object)


def _reached(limit: Limit, results: Table) -> str:
    """The first plan's value of a limited result, and its quantile if the limit has a probability."""
    sure = limit.sure(results)[0] / unit_of(limit.column).factor
    return _shown(limit.column, results) + (
        f" ({sure:.4g} with {limit.probability:.4g} probability)" if limit.probability > 0.5 else ""
    )


def _shown(column: Column, results: Table) -> str:
    return f"{column.words} {column.amount(results.number(column.name)[0])}"


Answer = dict[str, Any]
"""Results of one form by column, in internal units; a missing result is NaN or ""."""
PLAN, TABLES = "plan", "tables"
"""Keys of the plan and of the tables by name in an answer, beside its results."""


def one_plan(kind: str, columns: Mapping[str, Any], searched: Collection[str], form: Table) -> Table:
    """A plan of one row with ``auto`` in the ``searched`` columns that its form leaves blank."""
    order = table_schema(kind).by_name
    blank = {
        name: np.array([value[0] == "" if order[name].is_text else np.isnan(value[0])])
        for name, value in columns.items()
        if name in searched
    }
    given = {name: columns[name] for name in order if name in columns}
    return Table(kind, given, form.place, {name: mask for name, mask in blank.items() if mask.any()})


def slower(results: Table, name: str, catalog: Catalog) -> float:
    """Factor on a time of one plan in the case of a catalog: the end of its 80 % band over the prediction; ``low`` is
    fast and cheap, ``high`` slow and dear.
    """
    if catalog.case == "base":
        return 1.0
    return float(results.number(f"{name}_{catalog.case}")[0] / results.number(name)[0])


def short_name(accelerator: str) -> str:
    """Name of an accelerator without its memory and form: ``H200``.

    >>> short_name("H200-SXM-141GB"), short_name("My chip")
    ('H200', 'My chip')
    """
    return str(accelerator).split("-")[0]


def dollars(amount: float) -> str:
    """An amount of money in words.

    >>> dollars(0.476), dollars(12345.0), dollars(750208.0), dollars(2.5e6), dollars(3.1e9)
    ('$0.48', '$12,345', '$750 k', '$2.50 M', '$3.10 bn')
    """
    for factor, word in ((1000.0 * MILLION, " bn"), (MILLION, " M")):
        if amount >= factor:
            return f"${amount / factor:,.2f}{word}"
    return f"${amount / 1e3:,.0f} k" if amount >= 1e5 else f"${amount:,.2f}" if amount < 100 else f"${amount:,.0f}"


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
