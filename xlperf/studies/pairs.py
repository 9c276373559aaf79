"""Studies break-even and mixed-pools: the price of one machine against another, and two machines in one plan."""

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
from xlperf.equations.cost.tco import ALL_IN, break_even_cost_rate, break_even_price
from xlperf.explore.objectives import TOLD_APART, Limit, objective_of
from xlperf.explore.solve import at_largest_rates
from xlperf.studies import outcome

_WORK = {"inference": "serving", "training": "training"}
_AGAINST = " against "
_PROBE = 10_000.0  # purchase price in place of a blank one; the break-even price does not depend on it [USD]
_VARIED = {
    "energy price": ("energy_prices", "energy_price", "USD/kWh"),
    "years": ("years", "life", "year"),
    "utilization": ("utilizations", "utilization", "-"),
}
"""Sheets of what an owner pays: setting, column of the sheet prices, and unit."""


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


def break_even_prices(inputs: outcome.Inputs) -> outcome.Outcome:
    """Break-even rents and purchase prices of pairs of machines, and their sensitivity to owner terms."""
    inputs = _loaded(inputs)
    results = {kind: evaluate(plans, inputs.catalog) for kind, plans in inputs.plans.items()}
    drawn = [(inputs.plans[kind], results[kind]) for kind in results]
    good = {kind: _good(inputs, results[kind]) for kind in results}
    pairs = [pair for pair in _pairs(inputs) if all(_rows(inputs, good, pair.kind, name).any() for name in pair[1:])]
    if not pairs:
        return outcome.Outcome([outcome.finding("no pair")], [], inputs.catalog, drawn)
    rents = _Rents(*np.array([_rent(inputs, results, good, pair) for pair in pairs]).T)
    base = _purchase(inputs, good, pairs, {})
    stated = _stated(inputs.catalog, [pair.machine for pair in pairs])
    labels = [pair.label for pair in pairs]
    rent_columns: outcome.Columns = [
        ("pair", labels),
        ("rent", rents.now),
        ("rent_of_the_other", rents.against),
        ("break_even_rent", rents.break_even),
        ("margin", 100.0 * (rents.break_even / rents.now - 1)),
        ("others_replaced", rents.break_even / rents.against),
    ]
    price_columns: outcome.Columns = [
        ("pair", labels),
        ("purchase_price", stated),
        ("break_even_price", base),
        ("margin", 100.0 * (base / stated - 1.0)),
    ]
    sheets, terms = [outcome.sheet_of("rent", rent_columns), outcome.sheet_of("purchase", price_columns)], []
    for name, (setting, column, unit) in _VARIED.items():
        values = inputs.numbers(setting)
        prices = np.array([_purchase(inputs, good, pairs, {column: v * UNITS[unit].factor}) for v in values])
        sheets.append(outcome.pivot_of(name, column, values, labels, prices))
        ends = f"of {min(values):g} to {max(values):g}" + ("" if unit in ("-", "year") else f" {unit}")
        terms.append(f"{name} {ends} by up to {100 * _moved(prices):.0f} %")
    return outcome.Outcome(list(_findings(pairs, rents, base, stated, terms)), sheets, inputs.catalog, drawn)


def _loaded(inputs: outcome.Inputs) -> outcome.Inputs:
    """The inputs at the largest open loads: at a given request rate every machine makes the same tokens."""
    plans = dict(inputs.plans)
    if "inference" in plans:
        tpot = objective_of("inference", "tpot").column
        target = Limit(tpot, "<=", inputs.number("tpot_target") * unit_of(tpot).factor)
        plans["inference"] = at_largest_rates(plans["inference"], inputs.catalog, [target])
    return replace(inputs, plans=plans)


def _pairs(inputs: outcome.Inputs) -> Iterator[_Pair]:
    """Every pair of the setting with every kind of work, serving first."""
    parts = [text.partition(_AGAINST) for text in inputs.words("pairs")]
    asked = [(machine.strip(), against.strip()) for machine, _, against in parts]
    for machine, against in asked:
        if not (machine and against):
            problem = f'pairs must be "MACHINE{_AGAINST}MACHINE" with commas between, got "{machine or against}"'
            raise InputError(Fault(inputs.place, problem))
    machines = {str(name) for plans in inputs.plans.values() for name in plans.text("accelerator")}
    folded = {name.casefold() for name in machines}
    unknown = [name for names in asked for name in names if name.casefold() not in folded]
    if unknown:
        problem = f'pairs: no plan is on "{unknown[0]}"; {nearest(unknown[0], tuple(machines))}'
        raise InputError(Fault(inputs.place, problem))
    return (_Pair(kind, *names) for kind in _WORK if kind in inputs.plans for names in asked)


def _good(inputs: outcome.Inputs, results: Table) -> np.ndarray:
    """Plans that fit and, in serving, meet the target."""
    fits = np.asarray(results.number("fits") == 1)
    return fits & (outcome.shown(results, "tpot") <= inputs.number("tpot_target")) if "tpot" in results else fits


def _rows(inputs: outcome.Inputs, good: Mapping[str, np.ndarray], kind: str, machine: str) -> np.ndarray:
    names = inputs.plans[kind].text("accelerator").astype(str)
    return np.asarray(good[kind] & (np.char.lower(names) == machine.lower()))


def _rent(
    inputs: outcome.Inputs, results: Mapping[str, Table], good: Mapping[str, np.ndarray], pair: _Pair
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
    price_of = dict(zip(prices.text("price").tolist(), prices.number("capex").tolist(), strict=True))
    return np.array([price_of.get(name, np.nan) for name in machines])


def _owned(catalog: Catalog, free: bool, changes: Mapping[str, float]) -> Catalog:
    """The catalog with every machine of the sheet prices bought, or free of charge, and other terms of an owner."""
    prices = catalog.tables["prices"]
    size, capex = len(prices), prices.number("capex")
    bought = np.zeros(size) if free else np.where(capex > 0.0, capex, _PROBE)
    columns = {"rental_price": np.full(size, np.nan), "capex": bought}
    columns |= {name: np.full(size, value) for name, value in changes.items()}
    return catalog.with_tables([replace(prices, columns={**prices.columns, **columns})])


def _purchase(
    inputs: outcome.Inputs, good: Mapping[str, np.ndarray], pairs: Sequence[_Pair], changes: Mapping[str, float]
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
        stated = _stated(inputs.catalog, plans.text("accelerator").tolist())
        for place, pair in enumerate(pairs):
            if pair.kind != kind:
                continue
            asked_rows, reference = (_rows(inputs, good, kind, name) for name in pair[1:])
            reference_cost = np.where(np.isnan(stated[reference]), np.nan, cost[reference])
            if np.isfinite(reference_cost).any():
                hours = break_even_cost_rate(hour[asked_rows], cost[asked_rows], np.nanmin(reference_cost))
                prices = break_even_price(price[asked_rows], hour[asked_rows], energy[asked_rows], hours)
                break_even[place] = np.nanmax(prices) if np.isfinite(prices).any() else np.nan
    return break_even


def _findings(
    pairs: Sequence[_Pair], rents: _Rents, base: Array, stated: Array, terms: Sequence[str]
) -> Iterator[outcome.Finding]:
    room = rents.break_even / rents.now - 1.0
    even = [f"{rent:.2f} USD/h, rent now {now:.2f}" for rent, now in zip(rents.break_even, rents.now, strict=True)]
    most, least = int(np.argmax(room)), int(np.argmin(room))
    yield outcome.finding(
        "break even short",
        most=pairs[most].label,
        most_rent=even[most],
        least=pairs[least].label,
        least_rent=even[least],
        terms=", ".join(terms),
    )
    for place, pair in enumerate(pairs):
        words = f"{pair.machine} does the work of {rents.break_even[place] / rents.against[place]:.2f} {pair.against} "
        words += f"and breaks even at {even[place]}"
        if np.isfinite(base[place]):
            price = f"its price is {stated[place]:,.0f}" if np.isfinite(stated[place]) else "its price is not known"
            words += f"; bought, it breaks even at {base[place]:,.0f} USD ({price})"
        tone = "good" if room[place] >= 0.0 else "warning"
        yield outcome.Finding(_WORK[pair.kind].capitalize(), f"{words}.", tone)


def _moved(values: Array) -> float:
    """Largest over smallest break-even price along the varied term, less 1, of the most sensitive pair."""
    computed = values[:, np.isfinite(values).all(axis=0)]
    return float(np.max(computed.max(axis=0) / computed.min(axis=0)) - 1.0) if computed.size else 0.0


_SIZES = ("num_accelerators", "prefill_accelerators")


def _cheapest(cost: Array, at: Sequence[np.ndarray], shape: tuple[int, ...]) -> tuple[Array, np.ndarray]:
    """Lowest cost at each place of a grid and its plan; infinite and -1 without a plan."""
    lowest, row = np.full(shape, np.inf), np.full(shape, -1)
    for plan in np.flatnonzero(np.isfinite(cost)).tolist():
        place = tuple(int(axis[plan]) for axis in at)
        if cost[plan] < lowest[place]:
            lowest[place], row[place] = cost[plan], plan
    return lowest, row


class _PoolPairs:
    """The cheapest plan of each pair of machines by prompt, (prompts, decode, prefill); -1: none is good."""

    def __init__(self, plans: Table, results: Table, targets: Sequence[float]) -> None:
        self.plans, self.results = plans, results
        decoders, prefillers = plans.text("accelerator"), plans.text("prefill_accelerator")
        self.names = outcome.positions([*decoders, *prefillers])[0]
        places = {name: place for place, name in enumerate(self.names)}
        decode, prefill = (np.array([places[name] for name in column]) for column in (decoders, prefillers))
        self.prompts = sorted(set(plans.number("prompt_length").tolist()))
        prompt = np.searchsorted(self.prompts, plans.number("prompt_length"))
        shape = (len(self.prompts), len(self.names), len(self.names))
        self.cost, self.row = _cheapest(_within(results, targets), (prompt, decode, prefill), shape)

    def one_kind(self, prompt: int) -> int:
        """The machine that serves a prompt cheapest alone."""
        return int(np.argmin(np.diagonal(self.cost[prompt])))

    def best(self, prompt: int) -> tuple[int, int]:
        """The cheapest pair: decode machine, prefill machine."""
        decode, prefill = np.unravel_index(int(np.argmin(self.cost[prompt])), self.cost[prompt].shape)
        return int(decode), int(prefill)

    def worth(self, prompt: int) -> Array:
        """Hourly price of a prefill machine at which the pair costs as much as the decode machine alone. [USD/h]"""
        prices = np.full(self.cost[prompt].shape, np.nan)
        price = {name: cost * HOUR for name, cost in _prices(self.plans, self.results).items()}
        for decode, prefill in np.argwhere(self.row[prompt] >= 0).tolist():
            alone = self.cost[prompt, decode, decode]
            row = self.row[prompt, decode, prefill]
            rate = self.results.number("tokens_per_second")[row]
            size, part = (self.plans.number(name)[row] for name in _SIZES)
            spent = alone * rate * HOUR / UNITS["M"].factor
            if np.isfinite(alone) and decode != prefill:
                prices[decode, prefill] = (spent - (size - part) * price[self.names[decode]]) / part
        return prices


def _prices(plans: Table, results: Table) -> dict[str, float]:
    """Cost of an accelerator per second, by kind of plan."""
    same = plans.text("accelerator") == plans.text("prefill_accelerator")
    rate = results.number("accelerator_hour_cost")
    return {name: float(rate[row]) for row, name in enumerate(plans.text("accelerator").tolist()) if same[row]}


def mixed_pools(inputs: outcome.Inputs) -> outcome.Outcome:
    """The cheapest pair of machines by prompt length, and the break-even price of a prefill or an expert pool."""
    whole = inputs.table("inference")
    models, split = whole.text("model"), ~np.isnan(whole.number("expert_accelerators"))
    with_experts = np.isin(models, list(set(models[split].tolist())))
    targets = inputs.number("ttft_target"), inputs.number("tpot_target")
    results = evaluate(whole, inputs.catalog)
    of_prompts, of_experts = np.flatnonzero(~with_experts), np.flatnonzero(with_experts)
    pairs = _PoolPairs(whole.take(of_prompts), results.take(of_prompts), targets)
    if not np.isfinite(np.diagonal(pairs.cost, axis1=1, axis2=2)).any(axis=1).all():
        return outcome.Outcome([outcome.finding("no machine alone")], [], inputs.catalog, [(whole, results)])
    gains, names = _gains(pairs), pairs.names
    sheets = [gains]
    for tokens, every in zip(pairs.prompts, pairs.cost, strict=True):
        cost = np.where(np.isfinite(every), every, np.nan)
        blank = " Blank: no such plan within the targets." * bool(np.isnan(cost).any())
        name = f"prompt {tokens:.0f}"
        sheets.append(outcome.pivot_of("prompt", "decoding", names, names, cost, name=name, tokens=tokens, blank=blank))
    worth = pairs.worth(len(pairs.prompts) - 1)
    sheets.append(outcome.pivot_of("worth of prefill", "decoding", names, names, worth, tokens=pairs.prompts[-1]))
    split_pools = list(_expert_pools(whole.take(of_experts), results.take(of_experts), targets))
    findings = [*_pool_findings(pairs, gains, worth), *(pools.finding() for pools in split_pools)]
    sheets += [pools.sheet() for pools in split_pools]
    return outcome.Outcome(findings, sheets, inputs.catalog, [(whole, results)])


class _ExpertPools(NamedTuple):
    """The cheapest plans of a model by the machines of attention and of the experts."""

    model: str
    names: list[str]
    alone: Array  # Cost on each machine without an expert pool
    cost: Array  # Cost of each pair (attention, experts); infinite: misses the targets
    row: np.ndarray  # Plan of each pair
    plans: Table
    results: Table

    def sheet(self) -> outcome.StudySheet:
        """Cost of each machine alone and of each pair."""
        costs, alone = np.column_stack([self.alone, self.cost]), "no expert pool"
        charts = outcome.charts_of("expert pools", [*self.names, alone])
        name, blank = f"experts of {self.model}", np.where(np.isfinite(costs), costs, np.nan)
        series = [alone, *self.names]
        return outcome.pivot_of("expert pools", "attention", self.names, series, blank, charts, name, model=self.model)

    def finding(self) -> outcome.Finding:
        """Whether the best pair is cheaper than the best machine without expert pools, and its utilisation."""
        best, alone = np.unravel_index(int(np.argmin(self.cost)), self.cost.shape), int(np.argmin(self.alone))
        tag, cost, alone_cost = f"Experts of {self.model}", self.cost[best], self.alone[alone]
        if not np.isfinite(cost) or not np.isfinite(alone_cost):
            return outcome.finding("no expert pool", tag=tag)
        saving, at = 100.0 * (1.0 - cost / alone_cost), self.row[best]
        apart = abs(saving) > 100.0 * TOLD_APART
        return outcome.finding(
            "expert pool",
            "good" if apart and saving > 0.0 else "plain",
            tag=tag,
            count=self.plans.number("expert_accelerators")[at],
            experts=self.names[best[1]],
            attention=self.names[best[0]],
            cost=cost,
            alone=self.names[alone],
            alone_cost=alone_cost,
            beside=f"{abs(saving):.1f} % {'less' if saving > 0.0 else 'more'} than" if apart else "as much as",
            near="" if apart else ", too near to tell apart",
            helped=self._most_helped(),
            busy=[100.0 * self.results.number(name)[at] for name in ("attention_pool_share", "expert_pool_share")],
        )

    def _most_helped(self) -> str:
        """The machine with the largest saving from experts on a second kind of machine."""
        with np.errstate(invalid="ignore"):
            gains = np.where(np.isfinite(self.alone)[:, None], 1.0 - self.cost / self.alone[:, None], -np.inf)
        np.fill_diagonal(gains, -np.inf)
        attention, experts = np.unravel_index(int(np.nanargmax(gains)), gains.shape)
        gain = gains[attention, experts]
        if not gain > TOLD_APART:
            return f" No machine gains more than {100.0 * TOLD_APART:g} % from a second kind for its experts."
        count = int(np.sum(gains > TOLD_APART))
        return (
            f" A second kind for the experts pays in {count} of {int(np.sum(np.isfinite(gains)))} pairs, most beside "
            f"{self.names[attention]}: {self.names[experts]} saves {100.0 * gain:.1f} %."
        )


def _expert_pools(plans: Table, results: Table, targets: Sequence[float]) -> Iterator[_ExpertPools]:
    """Models with plans about expert pools."""
    attention, experts = plans.text("accelerator"), plans.text("expert_accelerator")
    split = ~np.isnan(plans.number("expert_accelerators"))
    experts = np.where(split & (experts == ""), attention, experts)
    names = [name for name in outcome.positions([*attention, *experts])[0] if name]
    cost, size = _within(results, targets), len(names)
    at, other = (np.array([names.index(name) if name else -1 for name in column]) for column in (attention, experts))
    for model in dict.fromkeys(plans.text("model").tolist()):
        of_model = plans.text("model") == model
        alone, _ = _cheapest(np.where(of_model & ~split, cost, np.inf), (at,), (size,))
        pairs, rows = _cheapest(np.where(of_model & split, cost, np.inf), (at, other), (size, size))
        yield _ExpertPools(model, names, alone, pairs, rows, plans, results)


def _within(results: Table, targets: Sequence[float]) -> Array:
    """Cost of plans that fit within the TTFT and TPOT targets, else infinite."""
    ttft, tpot = (outcome.shown(results, name) for name in ("ttft", "tpot"))
    good = (results.number("fits") == 1) & (ttft <= targets[0]) & (tpot <= targets[1])
    cost = np.where(good, outcome.shown(results, ALL_IN["inference"]), np.inf)
    return np.where(np.isnan(cost), np.inf, cost)


def _gains(pairs: _PoolPairs) -> outcome.StudySheet:
    """By prompt: the best machine alone and the best pair."""
    rows = []
    for place, prompt in enumerate(pairs.prompts):
        alone, (decode, prefill) = pairs.one_kind(place), pairs.best(place)
        size, part = (pairs.plans.number(name)[pairs.row[place, decode, prefill]] for name in _SIZES)
        costs = pairs.cost[place, alone, alone], pairs.cost[place, decode, prefill]
        names = (pairs.names[machine] for machine in (alone, decode, prefill))
        rows.append((prompt, *names, *costs, part / size, 100.0 * (1.0 - costs[1] / costs[0])))
    prompt, one_kind, decoding, prefilling, alone_cost, cost, share, saving = zip(*rows, strict=True)
    columns: outcome.Columns = [
        ("prompt_length", prompt),
        ("one kind", one_kind),
        ("cost_of_one_kind", alone_cost),
        ("decoding", decoding),
        ("prefilling", prefilling),
        ("prefill_share", share),
        ("cost_of_the_pair", cost),
        ("saving", saving),
    ]
    return outcome.sheet_of("gains", columns)


def _pool_findings(pairs: _PoolPairs, gains: outcome.StudySheet, worth: Array) -> Iterator[outcome.Finding]:
    saving, prompts, names = gains.numbers("saving"), pairs.prompts, pairs.names
    rows = [
        dict(zip(("decode", "prefill", "alone"), row, strict=True))
        for row in zip(*(gains.values(name) for name in ("decoding", "prefilling", "one kind")), strict=True)
    ]
    place = int(np.nanargmax(saving))
    cost = np.where(np.isfinite(pairs.cost[-1]), pairs.cost[-1], np.nan)
    gain = 1.0 - cost / np.diagonal(cost)[:, None]
    gain[np.diag_indices_from(gain)] = np.nan
    decoder, prefiller = (names[int(each)] for each in np.unravel_index(int(np.nanargmax(gain)), gain.shape))
    yield outcome.finding(
        "pools short",
        "good" if saving[place] > 1.0 else "plain",
        **rows[place],
        prompt=prompts[place],
        saving=saving[place],
        first=prompts[0],
        first_saving=saving[0],
        decoder=decoder,
        prefiller=prefiller,
        gain=100.0 * np.nanmax(gain),
        last=prompts[-1],
        paid=int(np.sum(gain > 0.0)),
        tried=int(np.sum(np.isfinite(gain))),
    )
    costs = gains.numbers("cost_of_the_pair")
    for prompt, row, pair_cost, saved in zip(prompts, rows, costs, saving, strict=True):
        kind = "pool" if row["decode"] != row["prefill"] else "one kind"
        yield outcome.finding(kind, **row, prompt=prompt, cost=pair_cost, saving=saved)
    price = {name: hour * HOUR for name, hour in _prices(pairs.plans, pairs.results).items()}
    ratio = worth / np.array([price.get(name, np.nan) for name in names])
    best = np.unravel_index(int(np.nanargmax(ratio)), ratio.shape)
    decode, prefill = (names[int(each)] for each in best)
    yield outcome.finding("prefill worth", decode=decode, prefill=prefill, worth=worth[best], ratio=ratio[best])
