"""Spares of a training run or a service: how many, what they give, and what they cost, from failure domains.

Shares of the time are steady states of domains that fail and are repaired independently; spares fail as the units in
use do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, added, ceil_div, divide, exp, total
from xlperf.base.errors import Fault, InputError, nearest
from xlperf.base.units import DAY, HOUR, UNITS, YEAR, percent
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.catalog_arrays import catalog_arrays
from xlperf.engine.prices import priced
from xlperf.equations.hardware.failures import (
    WideDomain,
    asynchronous_interval,
    checkpoint_interval,
    domain_failure_rate,
    down_shares,
    running_rate,
    tiered_goodput,
)
from xlperf.explore.mappings import server_sizes
from xlperf.explore.objectives import TABLES, Answer, dollars, no_answer, one_plan, short_name

SOFTWARE, SERVING = "software", "serving"
STEPS = "steps"  # table by number of spares beside an answer
_COLD_SWAP = 15.0 * 60.0  # time until a cold spare takes over; assumed [s]
_FIRST, _MOST = 16, 2048  # numbers of spares of the first table, and of the largest [-]
_HOPELESS = 0.5  # units up on average with the most spares, over the units needed: below it more spares do not help [-]
_ROWS, _SURE = 11, 1.0 - 1e-6  # rows of the table by number of spares, and availability of its last [-]
_ENOUGH, _NEVER = 1.0 - 1e-12, 0.001
"""Availability with which the table ends, and share of the time below which a run has no answer. [-]"""


class Domain(NamedTuple):
    """A kind of failure domain: accelerators of one [-], mean time between failures and repair time [s]."""

    kind: str
    size: float
    mtbf: float
    repair: float


def fleet_domains(form: Table, catalog: Catalog) -> list[Domain]:
    """Failure domains of a form, from the smallest: rows of its fleet, with the numbers that the form states."""
    table, name = catalog.tables["failures"], str(form.filled("fleet")[0])
    fleets = table.text("fleet").tolist()
    rows = [row for row, fleet in enumerate(fleets) if fleet.casefold() == name.casefold()]
    if not rows and "fleet" in form and form.text("fleet")[0]:
        known = nearest(name, sorted(set(fleets))) if fleets else "the sheet failures has no rows"
        raise InputError(Fault(form.place(0, "fleet"), f'unknown fleet "{name}" of the sheet failures; {known}'))
    given: dict[str, Domain] = {}
    for row in rows:
        columns = (float(table.filled(column)[row]) for column in ("size", "mtbf", "repair_time"))
        given[str(table.text("domain")[row])] = Domain(str(table.text("domain")[row]), *columns)
    kinds = table_schema("failures").by_name["domain"].choices
    stated = [_stated(form, kind, given.get(kind)) for kind in kinds]
    result = sorted((one for one in stated if one is not None), key=lambda one: one.size)
    if not result:
        problem = "no failure rate is known: name a fleet of the sheet failures, or give accelerator mtbf or node mtbf"
        raise InputError(Fault(form.place(0, "fleet"), problem))
    return result


def _stated(form: Table, kind: str, fleet: Domain | None) -> Domain | None:
    """A failure domain as a form states it, else as its fleet has it; None if neither does."""
    schema = form.schema.by_name
    size, mtbf = (
        float(form.number(name)[0]) if name in schema else np.nan for name in (f"{kind}_size", f"{kind}_mtbf")
    )
    if fleet is None and mtbf != mtbf:
        return None
    size = size if size == size else fleet.size if fleet else 1.0 if f"{kind}_size" not in schema else np.nan
    if size != size:
        problem = f"{kind} size must be given with {kind} mtbf: the fleet has none"
        raise InputError(Fault(form.place(0, f"{kind}_size"), problem))
    mtbf = mtbf if mtbf == mtbf else fleet.mtbf if fleet else np.nan
    default = table_schema("failures").by_name["repair_time"]
    repair = float(form.number("repair_time")[0])
    repair = repair if repair == repair else fleet.repair if fleet else HOUR * float(default.default)
    return Domain(kind, size, mtbf, 0.0 if kind == SOFTWARE else repair)


@dataclass(frozen=True)
class Work:
    """What runs: units that must be up, accelerators of one, and the domains that fail."""

    units: float
    unit_size: float
    slack: float  # accelerators of a unit that may be down [-]
    domains: list[Domain]
    restart: float  # time until a copy of a service serves again, 0 for a training run [s]

    @property
    def accelerators(self) -> float:
        """Accelerators of the units that must be up. [-]"""
        return self.units * self.unit_size

    def rate(self, wide: bool) -> float:
        """Failures per second, of domains of several units or of domains within one. [1/s]"""
        return self._rate([one for one in self.domains if (one.size > self.unit_size) == wide])

    @property
    def failures(self) -> float:
        """Failures per second. [1/s]"""
        return self.rate(False) + self.rate(True)

    @property
    def replaced_share(self) -> float:
        """Share of the failures after which a spare takes over. [-]"""
        return self._rate([one for one in self.domains if one.kind != SOFTWARE]) / self.failures

    def _rate(self, domains: Sequence[Domain]) -> float:
        rates = [float(domain_failure_rate(self.accelerators, one.size, one.mtbf)) for one in domains]
        return float(np.add.reduce(rates))

    def _down(self, one: Domain) -> float:
        """Share of the time that one failure domain is down. [-]"""
        repair = one.repair + self.restart
        return repair / (one.mtbf + repair)

    @cached_property
    def unit_down(self) -> float:
        """Share of the time in which a unit is down by its own domains, as far as its slack does not cover them. [-]"""
        inner = [one for one in self.domains if one.size < self.unit_size]
        single = _any_down([self._down(one) for one in inner if one.size <= 1.0])
        wider = [WideDomain(one.size, self._down(one)) for one in inner if one.size > 1.0]
        up = float(total(down_shares(self.unit_size, single, wider, int(min(self.slack, self.unit_size)))))
        whole = _any_down([self._down(one) for one in self.domains if one.size == self.unit_size])
        return 1.0 - up * (1.0 - whole)

    @property
    def wide(self) -> list[WideDomain]:
        """Domains of several units, from the smallest."""
        return [
            WideDomain(max(float(np.floor(one.size / self.unit_size)), 1.0), self._down(one))
            for one in self.domains
            if one.size > self.unit_size
        ]

    def shares(self, spares: Array, most: int) -> Array:
        """Shares of the time by units down, 0 to ``most``, (spares, down)."""
        return down_shares(self.units + spares, self.unit_down, self.wide, most)


def _any_down(shares: Iterable[float | Array]) -> float:
    """Share of the time in which any of independent things is down. [-]"""
    return 1.0 - math.prod(1.0 - float(share) for share in shares)


class BySpares(NamedTuple):
    """Columns by number of spares from 0, (spares,)."""

    spares: Array
    availability: Array
    waiting: Array  # rate of a run that waits for repairs, or of a service, over its full rate
    elastic: Array  # rate of a run that trains on with fewer replicas


def by_spares(work: Work, copy_size: float, target: float, least: int) -> BySpares:
    """Availability and rates by number of spares, up to at least ``least`` and to the availability asked for."""
    most = max(_FIRST, least)
    up = 1.0 - _any_down([work.unit_down, *(one.unavailability for one in work.wide)])
    few_up = (work.units + _MOST) * up < _HOPELESS * work.units
    while True:
        spares = np.arange(most + 1.0)
        terms = int(min(work.units + most, 2 * most + sum(one.units for one in work.wide) + _FIRST))
        shares = work.shares(spares, terms)
        down = np.arange(terms + 1.0)
        rates = [
            running_rate(down, spares[:, None], work.accelerators / copy_size, copy_size / work.unit_size, on)
            for on in (0.0, 1.0)
        ]
        enough = np.minimum(total(shares * rates[0]), 1.0)
        if enough[-1] >= max(target, _ENOUGH) or most >= _MOST or few_up:
            break
        most *= 2
    return BySpares(spares, enough, enough, np.minimum(total(shares * rates[1]), 1.0))


def checkpoints_of(form: Table, work: Work, state: float) -> Answer:
    """Results of checkpoints at the best intervals of both tiers, for a state in bytes."""
    names = ("host_bandwidth", "drive_bandwidth", "storage_bandwidth", "restart_time")
    host, drives, storage, restart = (float(form.filled(name)[0]) for name in names)
    tier, at_once = str(form.filled("checkpoint_tier")[0]), form.filled("asynchronous")[0] == 0.0
    snapshot = state / (work.accelerators * host)
    stored = state / storage
    near = {"memory": snapshot, "local": state / (work.units * drives), "remote": stored}[tier]
    swap = swap_time(form) * work.replaced_share
    rates = [work.rate(False), work.rate(True)]
    if tier == "remote":
        rates = [rates[0] + rates[1], 0.0]
    waits, intervals, lost = [], [], []
    for write, rate in zip((near, stored), rates, strict=True):
        wait = write if at_once else min(snapshot, write)
        between = np.inf if rate <= 0.0 else 1.0 / rate
        interval = checkpoint_interval(wait, between) if at_once else asynchronous_interval(wait, wait + write, between)
        waits.append(wait)
        intervals.append(float(interval))
        lost.append(restart + swap + write + 0.5 * (float(interval) + wait) if rate > 0.0 else 0.0)
    share = tiered_goodput(*(value for pair in (intervals, waits, rates, lost) for value in pair))
    mean = divide(added(rate * time for rate, time in zip(rates, lost, strict=True)), added(rates))
    return {
        "checkpoint_size": state,
        "goodput": float(share),
        "checkpoint_interval": intervals[0],
        "checkpoint_time": waits[0],
        "restore_time": near,
        "lost_per_interruption": float(mean),
        "remote_interval": intervals[1] if np.isfinite(intervals[1]) else np.nan,
    }


def _pause_words(form: Table, work: Work, checkpoints: Answer) -> str:
    """What a checkpoint stops the run for, and what its writing asks of the storage."""
    if form.filled("asynchronous")[0] == 0.0:
        return "a checkpoint stops the run until it is written"
    each = checkpoints["checkpoint_size"] / work.accelerators / UNITS["GB"].factor
    words = (
        f"a checkpoint stops the run for a copy of {each:.2g} GB of each accelerator into host memory, no fixed pause"
    )
    if str(form.filled("checkpoint_tier")[0]) != "remote":
        return words
    share = checkpoints["restore_time"] / (checkpoints["checkpoint_interval"] + checkpoints["checkpoint_time"])
    return f"{words}; writing it takes {percent(share, 0)} of the storage's rate"


def swap_time(form: Table) -> float:
    """Time until a spare takes over beside the restart: none of a warm spare. [s]"""
    if str(form.filled("spare_kind")[0]) == "warm":
        return 0.0
    given = float(form.number("swap_time")[0])
    return given if given == given else _COLD_SWAP


def spares_answer(form: Table, catalog: Catalog) -> Answer:
    """The spares of a form, with what they give and cost, and the table by number of spares."""
    serving = str(form.filled("workload")[0]) == SERVING
    needed, unit, copy = (float(form.number(name)[0]) for name in ("num_accelerators", "unit_size", "copy_size"))
    server = min(float(server_sizes(_plan(form), catalog)[0][0]), needed)
    unit = unit if unit == unit else copy if serving and copy == copy else server
    copy = unit if serving or copy != copy else copy
    for name in ("unit_size", "copy_size"):
        if (size := float(form.number(name)[0])) > needed:
            problem = f"{name.replace('_', ' ')} is {size:,.0f}, more than num accelerators, {needed:,.0f}"
            raise InputError(Fault(form.place(0, name), problem))
    if (slack := float(form.filled("unit_slack")[0])) >= unit:
        problem = f"unit slack is {slack:,.0f}: a unit has {unit:,.0f} accelerators, of which one must work at least"
        raise InputError(Fault(form.place(0, "unit_slack"), problem))
    restart = float(form.filled("restart_time")[0]) if serving else 0.0
    domains = fleet_domains(form, catalog)
    work = Work(float(ceil_div(needed, unit)), unit, slack, domains, restart)
    given = float(form.number("spares")[0])
    steps = by_spares(work, copy, float(form.filled("availability")[0]), int(np.nan_to_num(given)))
    answer = (_service if serving else _run)(form, catalog, work, steps, _hour_price(form, catalog))
    for name, size in ("copies" if serving else "units", unit), ("replicas", copy):
        if needed % size:
            words = f"the answer is of {work.accelerators:,.0f}" if size == unit else "the last is smaller"
            answer["answer"] += f" {needed:,.0f} accelerators are no whole number of {name} of {size:,.0f}: {words}."
            break
    if not serving and any(1.0 < one.size < unit for one in domains):
        answer["answer"] += f" {_slack_words(unit, slack)}"
    return answer


def _slack_words(unit: float, slack: float) -> str:
    """Accelerators that a unit of several nodes needs."""
    if slack > 0.0:
        return f"A run uses {unit - slack:,.0f} of the {unit:,.0f} accelerators of a unit."
    return f"A unit stops with the first of its {unit:,.0f} accelerators: state a unit slack if a run uses fewer."


def _plan(form: Table) -> Table:
    """A training plan of one accelerator of a form, which gives the state of a checkpoint."""
    columns = {name: form.text(name) for name in ("model", "accelerator")}
    return one_plan("training", {**columns, "num_accelerators": 1.0, "training_tokens": 1.0}, (), form)


def _hour_price(form: Table, catalog: Catalog) -> float:
    """Price of an accelerator, [USD/s]; NaN if none is known."""
    given = float(form.number("hour_price")[0])
    rows = catalog.rows("accelerators", form.text("accelerator"), form, "accelerator")
    return (
        given
        if given == given
        else float(priced(_plan(form), catalog, catalog_arrays(catalog, rows), rows).terms.cost_rate[0])
    )


def _state(form: Table, catalog: Catalog) -> float:
    """State in a checkpoint, [B]. Raises InputError if the form gives neither it nor a model."""
    given = float(form.number("checkpoint_size")[0])
    if given == given:
        return given
    if not form.text("model")[0]:
        raise InputError(Fault(form.place(0, "model"), "a training run needs a model or the checkpoint size"))
    return float(evaluate(_plan(form), catalog).number("checkpoint_size")[0])


def _enough(steps: BySpares, target: float) -> float:
    """Fewest spares that keep the availability asked for; NaN if none does."""
    enough = np.flatnonzero(steps.availability >= target)
    return float(enough[0]) if len(enough) else np.nan


def _service(form: Table, catalog: Catalog, work: Work, steps: BySpares, price: float) -> Answer:
    """Spare copies of a service: the time in which a copy swaps in counts as down."""
    ready = float(exp(-work.failures * swap_time(form)))
    steps = steps._replace(availability=steps.availability * ready)
    target = float(form.filled("availability")[0])
    fewest = _enough(steps, target)
    given = float(form.number("spares")[0])
    chosen = given if given == given else fewest
    if chosen != chosen:
        return no_answer(
            f"no number of spares up to {_MOST:,} gives {percent(target, 5)}: "
            "the swap or a domain of many units is down longer"
        )
    answer = _common(form, work, steps, steps.elastic, price, int(chosen))
    answer |= {
        "spares_for_availability": fewest,
        "interruptions": work.failures * YEAR,
        "spare_cost": chosen * work.unit_size * price * YEAR,
    }
    cost = f"; the spares cost {dollars(answer['spare_cost'])} a year" if price == price else ""
    answer["answer"] = (
        f"{_units_in_words(form, work, 'copy', 'copies')} with {_count(chosen, 'spare copy', 'spare copies')}: enough "
        f"are up {_percent(answer['availability'])} of the time, {answer['shortage_per_year'] / HOUR:,.1f} h a year "
        f"too few; {100.0 * target:g} % takes {_count(fewest, 'spare copy', 'spare copies')}. "
        f"{answer['interruptions']:,.1f} failures of copies a year{cost}."
    )
    return answer


def _run(form: Table, catalog: Catalog, work: Work, steps: BySpares, price: float) -> Answer:
    """Spares of a training run: the share of the time that trains, and the cost of an hour that does."""
    checkpoints = checkpoints_of(form, work, _state(form, catalog))
    copes = str(form.filled("shortage")[0]) == "elastic"
    rates = checkpoints["goodput"] * (steps.elastic if copes else steps.waiting)
    cheapest = int(np.argmin((work.units + steps.spares) / np.maximum(rates, 1e-12)))
    given = float(form.number("spares")[0])
    chosen = int(given) if given == given else cheapest
    if not rates[chosen] > _NEVER:
        helps = [f"about {cheapest:,} spares"] if rates[cheapest] > _NEVER else []
        helps += ["shorter repairs", "rarer failures"] if copes else ["shortage elastic"]
        waits = "goes on with fewer copies" if copes else "waits for repairs"
        return no_answer(
            f"with {_count(chosen, 'spare', 'spares')} a run on {work.units:,.0f} units that {waits} hardly "
            f"ever trains; it needs {' or '.join(helps)}"
        )
    answer = _common(form, work, steps, rates, price, chosen) | checkpoints
    answer["defaults_used"] += f"; {_pause_words(form, work, checkpoints)}"
    days = float(form.filled("run_time")[0]) / answer["effective_share"]
    each = work.unit_size * price * days
    target = float(form.filled("availability")[0])
    fewest = _enough(steps, target)
    answer |= {
        "spares_for_availability": fewest,
        "spares_of_least_cost": float(cheapest),
        "run_time": days,
        "interruptions": work.failures * days,
        "elastic_share": float(checkpoints["goodput"] * steps.elastic[chosen]),
        "wait_share": float(checkpoints["goodput"] * steps.waiting[chosen]),
        "run_cost": (work.units + chosen) * each,
        "spare_cost": chosen * each,
    }
    cost = f"; the run costs {dollars(answer['run_cost'])}" if price == price else ""
    answer["answer"] = (
        f"{_units_in_words(form, work, 'unit', 'units')} with {_count(chosen, 'spare', 'spares')} train "
        f"{_percent(answer['effective_share'])} of the time: {answer['interruptions']:,.0f} interruptions in "
        f"{days / DAY:,.1f} days, one every {answer['interruption_interval'] / HOUR:,.1f} h{cost}."
    )
    if fewest == fewest:
        spares = _count(fewest, "spare", "spares")
        answer["answer"] += f" Enough units are up {100.0 * target:g} % of the time with {spares}."
    return answer


def _common(form: Table, work: Work, steps: BySpares, rates: Array, price: float, chosen: int) -> Answer:
    """Results of both kinds of work, with the table by number of spares."""
    count = (work.units + steps.spares) * work.unit_size
    hour = np.where(rates > _NEVER, count * price / np.maximum(rates, _NEVER) / work.accelerators, np.nan)
    table = {
        "spares": steps.spares,
        "accelerators": count,
        "availability": steps.availability,
        "shortage_per_year": (1.0 - steps.availability) * YEAR,
        "effective_share": rates,
        "useful_hour_cost": hour,
    }
    rows = _shown_rows(rates, steps.availability, chosen)
    domains = "; ".join(
        f"{one.kind}{f' of {one.size:,.0f}' if one.size > 1.0 else ''} fails every {one.mtbf / HOUR:,.0f} h"
        + (f", back in {one.repair / HOUR:,.0f} h" if one.repair else "")
        for one in work.domains
    )
    answer: Answer = {name: float(values[chosen]) for name, values in table.items()}
    return answer | {
        TABLES: {STEPS: Table("spares_steps", {name: values[rows] for name, values in table.items()})},
        "units": work.units,
        "unit_size": work.unit_size,
        "spare_share": chosen / work.units,
        "unavailability_without_spares": 1.0 - float(steps.availability[0]),
        "unit_unavailability": _any_down([work.unit_down, *(one.unavailability for one in work.wide)]),
        "interruption_interval": 1.0 / work.failures,
        "defaults_used": f"Fleet {form.filled('fleet')[0]}: {domains}",
    }


def _shown_rows(rates: Array, availability: Array, chosen: int) -> np.ndarray:
    """Numbers of spares that a table shows: none, the chosen one, and evenly spaced ones from half its rate on."""
    last = max(int(np.searchsorted(availability, _SURE)), chosen)
    first = min(int(np.argmax(rates > 0.5 * rates[chosen])), chosen)
    spread = np.linspace(first, min(last, len(rates) - 1), _ROWS - (0 if first == 0 else 1)).round()
    nearest_row = int(np.argmin(np.abs(spread - chosen)))
    spread[nearest_row] = chosen
    return np.unique(np.concatenate([[0.0], spread])).astype(np.int64)


def _units_in_words(form: Table, work: Work, one: str, many: str) -> str:
    accelerator = short_name(str(form.text("accelerator")[0]))
    return f"{_count(work.units, one, many)} of {work.unit_size:,.0f} {accelerator}"


def _count(number: float, one: str, many: str) -> str:
    return f"{number:,.0f} {one if number == 1.0 else many}"


def _percent(share: float) -> str:
    """A share in per cent with the digits that tell it from all.

    >>> _percent(0.934), _percent(0.99953)
    ('93.4 %', '99.953 %')
    """
    digits = 1 + sum(share > 1.0 - bound for bound in (0.01, 0.001, 0.0001))
    return f"{100.0 * share:.{digits}f} %"
