"""Study break-even: rent and purchase price at which a machine makes tokens as cheaply as another machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError, nearest
from xlperf.base.units import HOUR, UNITS
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import unit_of
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.equations.cost.tokens import ALL_IN, break_even_cost_rate, break_even_price
from xlperf.explore.objectives import Limit, objective_of
from xlperf.explore.solve import at_largest_rates
from xlperf.studies.outcome import (
    Chart,
    Finding,
    Inputs,
    Outcome,
    StudySheet,
    in_short,
    own_column,
    pivot_of,
    sheet_of,
    shown,
)

_WORK = {"inference": "serving", "training": "training"}
_AGAINST = " against "
_PROBE = 10_000.0
"""Purchase price in place of a blank one; the break-even price does not depend on it. [USD]"""
_VARIED = {
    "energy price": ("energy_prices", "energy_price", "USD/kWh", "Price of energy of both"),
    "years": ("years", "life", "year", "Years over which both are written off"),
    "utilization": ("utilizations", "utilization", "-", "Share of the hours of both that are used"),
}
"""Sheets of what an owner pays: setting, column of the sheet prices, unit and meaning."""


class _Pair(NamedTuple):
    """A kind of work, the machine with the unknown price, and the reference machine."""

    kind: str
    machine: str
    against: str

    @property
    def label(self) -> str:
        return f"{_WORK[self.kind]}, {self.machine}{_AGAINST}{self.against}"


class _Rents(NamedTuple):
    """Rents of each pair at the sheet's terms, and the break-even rent. [USD/h]"""

    now: Array
    against: Array
    break_even: Array


def analyse(inputs: Inputs) -> Outcome:
    """Break-even rents and purchase prices of pairs of machines, and their sensitivity to owner terms."""
    inputs = _loaded(inputs)
    results = {kind: evaluate(plans, inputs.catalog) for kind, plans in inputs.plans.items()}
    drawn = [(inputs.plans[kind], results[kind]) for kind in results]
    good = {kind: _good(inputs, results[kind]) for kind in results}
    pairs = [
        pair for pair in _pairs(inputs) if all(_rows(inputs, good, pair.kind, name).any() for name in pair[1:])
    ]  # fmt: skip
    if not pairs:
        words = "No pair has a plan on both machines that fits and keeps the target: nothing to compare."
        return Outcome([Finding("In short", words, "warning")], [], inputs.catalog, drawn)
    rents = _Rents(*np.array([_rent(inputs, results, good, pair) for pair in pairs]).T)
    base = _purchase(inputs, good, pairs, {})
    varied = {}
    for name, (setting, column, unit, _) in _VARIED.items():
        values = inputs.numbers(setting)
        varied[name] = np.array([_purchase(inputs, good, pairs, {column: v * UNITS[unit].factor}) for v in values])
    stated = _stated(inputs.catalog, [pair.machine for pair in pairs])
    sheets = [_rent_sheet(pairs, rents), _purchase_sheet(pairs, base, stated)]
    sheets += [_varied_sheet(inputs, name, pairs, values) for name, values in varied.items()]
    return Outcome(list(_findings(inputs, pairs, rents, base, stated, varied)), sheets, inputs.catalog, drawn)


def _loaded(inputs: Inputs) -> Inputs:
    """The inputs at the largest open loads: at a given request rate every machine makes the same tokens."""
    plans = dict(inputs.plans)
    if "inference" in plans:
        tpot = objective_of("inference", "tpot").column
        target = Limit(tpot, "<=", inputs.number("tpot_target") * unit_of(tpot).factor)
        plans["inference"] = at_largest_rates(plans["inference"], inputs.catalog, [target])
    return replace(inputs, plans=plans)


def _pairs(inputs: Inputs) -> Iterator[_Pair]:
    """Every pair of the setting with every kind of work, serving first."""
    asked = [
        (text.partition(_AGAINST)[0].strip(), text.partition(_AGAINST)[2].strip()) for text in inputs.words("pairs")
    ]
    for machine, against in asked:
        if not (machine and against):
            problem = f'pairs must be "MACHINE{_AGAINST}MACHINE" with commas between, got "{machine or against}"'
            raise InputError(Fault(inputs.place, problem))
    known = {str(name) for plans in inputs.plans.values() for name in plans.text("accelerator")}
    unknown = [name for names in asked for name in names if name.casefold() not in {word.casefold() for word in known}]
    if unknown:
        raise InputError(
            Fault(inputs.place, f'pairs: no plan is on "{unknown[0]}"; {nearest(unknown[0], tuple(known))}')
        )
    return (_Pair(kind, *names) for kind in _WORK if kind in inputs.plans for names in asked)


def _good(inputs: Inputs, results: Table) -> np.ndarray:
    """Plans that fit and, in serving, meet the target."""
    fits = results.number("fits") == 1
    return np.asarray(fits & (shown(results, "tpot") <= inputs.number("tpot_target")) if "tpot" in results else fits)


def _rows(inputs: Inputs, good: Mapping[str, np.ndarray], kind: str, machine: str) -> np.ndarray:
    names = inputs.plans[kind].text("accelerator").astype(str)
    return np.asarray(good[kind] & (np.char.lower(names) == machine.lower()))


def _rent(
    inputs: Inputs, results: Mapping[str, Table], good: Mapping[str, np.ndarray], pair: _Pair
) -> tuple[float, float, float]:
    """Rents of both machines and the break-even rent, the highest with equally cheap tokens. [USD/h]"""
    asked, reference = (_rows(inputs, good, pair.kind, name) for name in pair[1:])
    cost, hour = (results[pair.kind].number(name) for name in (ALL_IN[pair.kind], "accelerator_hour_cost"))
    rents = break_even_cost_rate(hour[asked], cost[asked], np.nanmin(cost[reference], initial=np.inf))
    rent, reference_rent, even = (float(rate) * HOUR for rate in (hour[asked][0], hour[reference][0], np.nanmax(rents)))
    return rent, reference_rent, even


def _stated(catalog: Catalog, machines: Sequence[str]) -> Array:
    """Purchase prices of the sheet prices, NaN without one. [USD]"""
    prices = catalog.tables["prices"]
    known = dict(zip(prices.text("price").tolist(), prices.number("capex").tolist(), strict=True))
    return np.array([known.get(name, np.nan) for name in machines])


def _owned(catalog: Catalog, free: bool, changes: Mapping[str, float]) -> Catalog:
    """The catalog with every machine of the sheet prices bought, or free of charge, and other terms of an owner."""
    prices = catalog.tables["prices"]
    size, capex = len(prices), prices.number("capex")
    bought = np.zeros(size) if free else np.where(capex > 0.0, capex, _PROBE)
    columns = {"rental_price": np.full(size, np.nan), "capex": bought}
    columns |= {name: np.full(size, value) for name, value in changes.items()}
    return catalog.with_tables([replace(prices, columns={**prices.columns, **columns})])


def _purchase(
    inputs: Inputs, good: Mapping[str, np.ndarray], pairs: Sequence[_Pair], changes: Mapping[str, float]
) -> Array:
    """Break-even purchase price of each pair, the highest with equally cheap tokens. [USD]"""
    bought, free = (_owned(inputs.catalog, each, changes) for each in (False, True))
    break_even = np.full(len(pairs), np.nan)
    for kind in dict.fromkeys(pair.kind for pair in pairs):
        plans, asked = inputs.plans[kind], (ALL_IN[kind], "accelerator_hour_cost")
        paid, unpaid = (evaluate(plans, catalog, results=asked) for catalog in (bought, free))
        cost, hour = (paid.number(name) for name in asked)
        price = _stated(bought, plans.text("accelerator").tolist())
        energy = unpaid.number("accelerator_hour_cost")
        known = _stated(inputs.catalog, plans.text("accelerator").tolist())
        for place, pair in enumerate(pairs):
            if pair.kind != kind:
                continue
            asked_rows, reference = (_rows(inputs, good, kind, name) for name in pair[1:])
            reference_cost = np.where(np.isnan(known[reference]), np.nan, cost[reference])
            if np.isfinite(reference_cost).any():
                hours = break_even_cost_rate(hour[asked_rows], cost[asked_rows], np.nanmin(reference_cost))
                prices = break_even_price(price[asked_rows], hour[asked_rows], energy[asked_rows], hours)
                break_even[place] = np.nanmax(prices) if np.isfinite(prices).any() else np.nan
    return break_even


def _rent_sheet(pairs: Sequence[_Pair], rents: _Rents) -> StudySheet:
    heading = "Rent at which a machine makes tokens as cheaply as the one it is held against, each with its best plan."
    hour = "All-in cost of an hour of one accelerator"
    return sheet_of(
        "rent",
        heading,
        [
            ("pair", [pair.label for pair in pairs]),
            (own_column("rent", "USD/h", hour), rents.now),
            (own_column("rent_of_the_other", "USD/h", hour), rents.against),
            (own_column("break_even_rent", "USD/h", "Rent at which tokens cost the same"), rents.break_even),
            (
                own_column("room", "%", "Break-even rent over the rent, less 1"),
                100.0 * (rents.break_even / rents.now - 1),
            ),
            (
                own_column("work_of_one", "-", "Accelerators of the other that do its work"),
                rents.break_even / rents.against,
            ),
        ],
        [Chart("bars", "Rent and break-even rent", "pair", ("rent", "break_even_rent"), y_title="USD/h")],
    )


def _purchase_sheet(pairs: Sequence[_Pair], base: Array, stated: Array) -> StudySheet:
    heading = (
        "Purchase price, with its share of server and network, at which an owner makes tokens as cheaply; "
        "terms of the sheet prices, straight line."
    )
    return sheet_of(
        "purchase",
        heading,
        [
            ("pair", [pair.label for pair in pairs]),
            (own_column("purchase_price", "USD", "Sheet prices; blank: it has none"), stated),
            (own_column("break_even_price", "USD", "Purchase price at which tokens cost the same"), base),
            (own_column("room", "%", "Break-even price over the price, less 1"), 100.0 * (base / stated - 1.0)),
        ],
        [Chart("bars", "Price and break-even price", "pair", ("purchase_price", "break_even_price"), y_title="USD")],
    )


def _varied_sheet(inputs: Inputs, name: str, pairs: Sequence[_Pair], values: Array) -> StudySheet:
    setting, column, unit, meaning = _VARIED[name]
    labels = [pair.label for pair in pairs]
    return pivot_of(
        name,
        f"Break-even purchase price by {name}; the machine that it is held against stays at its own price.",
        (own_column(column, unit, meaning), inputs.numbers(setting)),
        labels,
        values,
        "USD",
        "Purchase price at which tokens cost the same",
        [Chart("lines", f"Break-even price by {name}", column, labels, unit if unit != "-" else "share", "USD")],
    )


def _findings(
    inputs: Inputs, pairs: Sequence[_Pair], rents: _Rents, base: Array, stated: Array, varied: Mapping[str, Array]
) -> Iterator[Finding]:
    room = rents.break_even / rents.now - 1.0
    most, least = int(np.argmax(room)), int(np.argmin(room))
    first = f"most room has {pairs[most].label}: it breaks even at {_said(rents, most)}"
    second = f"least has {pairs[least].label}: {_said(rents, least)}"
    parts = [f"{name} {_range(inputs, name)} by up to {100 * _moved(values):.0f} %" for name, values in varied.items()]
    words = f"what moves a break-even purchase price: {', '.join(parts)}, as both machines pay the same terms"
    yield in_short(f"{first}; {second}", words)
    for place, pair in enumerate(pairs):
        words = f"{pair.machine} does the work of {rents.break_even[place] / rents.against[place]:.2f} {pair.against} "
        words += f"and breaks even at {_said(rents, place)}"
        if np.isfinite(base[place]):
            price = f"its price is {stated[place]:,.0f}" if np.isfinite(stated[place]) else "its price is not known"
            words += f"; bought, it breaks even at {base[place]:,.0f} USD ({price})"
        tone = "good" if room[place] >= 0.0 else "warning"
        yield Finding(_WORK[pair.kind].capitalize(), f"{words}.", tone)


def _said(rents: _Rents, place: int) -> str:
    return f"{rents.break_even[place]:.2f} USD/h, rent now {rents.now[place]:.2f}"


def _moved(values: Array) -> float:
    """Largest over smallest break-even price along the varied term, less 1, of the most sensitive pair."""
    known = values[:, np.isfinite(values).all(axis=0)]
    return float(np.max(known.max(axis=0) / known.min(axis=0)) - 1.0) if known.size else 0.0


def _range(inputs: Inputs, name: str) -> str:
    setting, _, unit, _ = _VARIED[name]
    values = inputs.numbers(setting)
    return f"of {min(values):g} to {max(values):g}" + ("" if unit in ("-", "year") else f" {unit}")
