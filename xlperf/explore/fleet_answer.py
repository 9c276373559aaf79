"""The question ``fleet``: what to buy, rent and sell in each year, its cost over draws of the future, and waiting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from xlperf.base.arrays import Array, exp
from xlperf.base.units import MILLION, YEAR, percent
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table
from xlperf.equations.cost.tco import capital_recovery_rate
from xlperf.explore.fleet_inputs import Future, Horizon, horizon_of, programme_of, steady
from xlperf.explore.fleet_programme import (
    GAP,
    ROUND,
    Plan,
    Programme,
    assembled,
    at_once,
    best_plan,
    least_unmet,
    machine_accounts,
    minimised,
    year_accounts,
)
from xlperf.explore.money import OWN, RENT, megawatts
from xlperf.explore.objectives import PLAN, TABLES, Answer, dollars, no_answer, short_name, short_number
from xlperf.explore.search import stacked
from xlperf.explore.vary import normal_scores

DRAW_GAP = 1e-3  # relative optimality gap of programmes over draws [-]


class Commitment(NamedTuple):
    """The best purchases of the first year over all draws: servers of each vintage, and the cost of each draw [USD]"""

    first: Array
    costs: Array

    @property
    def mean(self) -> float:
        """Mean present cost over the draws. [USD]"""
        return float(self.costs.mean())


class Waiting(NamedTuple):
    """Policies for the first year over the same draws; None if a policy cannot serve the demand."""

    best: Commitment | None
    buy_now: Commitment | None
    wait: Commitment | None

    @property
    def value(self) -> float:
        """Mean cost of buying now less that of waiting a year; NaN if one of them cannot serve. [USD]"""
        if self.buy_now is None or self.wait is None:
            return float("nan")
        return self.buy_now.mean - self.wait.mean

    @property
    def wins(self) -> float:
        """Share of the draws in which waiting costs less. [-]"""
        if self.buy_now is None or self.wait is None:
            return float("nan")
        return float((self.wait.costs < self.buy_now.costs).mean())


def futures_of(horizon: Horizon) -> list[Future]:
    """Draws of demand, prices and releases of a form; the first year is known. Without draws: the expected course."""
    form, years = horizon.form, horizon.years
    count, seed = int(form.filled("draws")[0]), int(form.filled("seed")[0])
    random = np.random.default_rng(seed)
    scores = normal_scores(np.clip(random.random((count, 3, years)), ROUND, 1.0 - ROUND))
    late = np.abs(normal_scores(np.clip(random.random((count, len(horizon.offers))), ROUND, 1.0 - ROUND)))
    scores[:, :, 0] = 0.0
    spreads = [form.value(name) for name in ("demand_spread", "price_spread", "price_spread")]
    walks = [exp(np.cumsum(spread * scores[:, kind], axis=-1)) for kind, spread in enumerate(spreads)]
    delays = late * np.array([offer.spread for offer in horizon.offers])
    if not count:
        return [steady(horizon)]
    return [
        Future(horizon.demand * walks[0][draw], walks[1][draw], walks[2][draw], delays[draw]) for draw in range(count)
    ]


def waiting_of(horizon: Horizon, futures: Sequence[Future], expected: Plan) -> Waiting:
    """Buying at once, waiting a year, and the best purchases of the first year, over draws of the future.

    ``expected``: the best plan of the expected course.
    """
    programmes = [programme_of(horizon, future) for future in futures]
    bought = np.array([vintage.start == 0 and vintage.there != vintage.there for vintage in programmes[0].vintages])
    free, nothing = np.full(len(bought), np.nan), np.where(bought, 0.0, np.nan)
    if not int(horizon.form.filled("draws")[0]):
        # A policy that the best plan obeys has no better plan.
        rents, buys = bool(expected.rented[:, 0].any()), bool(expected.owned[bought, 0].any())
        orders = ((free, False, rents), (nothing, True, buys))
        tasks = [partial(best_plan, programmes[0], first, may_rent) for first, may_rent, differs in orders if differs]
        others = iter(at_once(tasks))
        plans = expected, *(next(others) if differs else expected for *_, differs in orders)
        return Waiting(*(plan and Commitment(plan.owned[:, 0], np.array([plan.present_cost])) for plan in plans))
    costed: dict[tuple[float, ...], Array] = {}
    both = [committed(programmes, free, False, costed), committed(programmes, nothing, True, costed)]
    every = [policy for policy in (committed(programmes, free, True, costed), *both) if policy is not None]
    return Waiting(min(every, key=lambda policy: policy.mean, default=None), *both)


def committed(
    programmes: Sequence[Programme], first: Array, may_rent: bool, costed: dict[tuple[float, ...], Array]
) -> Commitment | None:
    """The best fleet of the first year that all programmes share; None if one of them cannot be served.

    ``first``: servers of each vintage in its first year, NaN: free. ``may_rent``: whether the first year may be served
    by rented servers. ``costed``: cache of the costs of all draws by the fleet of the first year.
    """
    from scipy.sparse import block_diag, csr_array, vstack

    parts = [assembled(programme, first, may_rent) for programme in programmes]
    width, number = len(parts[0].costs), len(parts)
    columns = np.arange(0, width, programmes[0].years)  # the first year, which is known
    pairs = [(draw, column) for draw in range(1, number) for column in columns.tolist()]
    rows = np.repeat(np.arange(len(pairs)), 2)
    at = np.array([place for draw, column in pairs for place in (column, draw * width + column)], dtype=np.int64)
    same = csr_array((np.tile([1.0, -1.0], len(pairs)), (rows, at)), shape=(len(pairs), number * width))
    matrix: Any = vstack([block_diag([part.matrix for part in parts]), same]).tocsr()
    nothing = np.zeros(len(pairs))
    least, most = (np.concatenate([*(getattr(part, end) for part in parts), nothing]) for end in ("least", "most"))
    integral = np.zeros(number * width)
    integral[columns[:-1]] = 1.0  # all but unmet demand
    costs = np.concatenate([part.costs for part in parts])
    lower, upper = (np.concatenate([getattr(part, end) for part in parts]) for end in ("lower", "upper"))
    solved = minimised(costs, integral, (lower, upper), (matrix, least, most), DRAW_GAP)
    if solved.x is None:
        return None
    started = np.array([vintage.start == 0 for vintage in programmes[0].vintages])
    owned = np.where(started, np.round(solved.x[columns[: len(started)]]), np.nan)
    key = tuple(np.nan_to_num(owned, nan=-1.0).tolist())
    if key not in costed:
        plans = at_once([partial(best_plan, programme, owned, gap=DRAW_GAP) for programme in programmes])
        costed[key] = np.array([np.nan if plan is None else plan.present_cost for plan in plans])
    return Commitment(owned, costed[key]) if np.isfinite(costed[key]).all() else None


_TRUST = ("EXTRAPOLATED", "INTERPOLATED", "MEASURED")  # badges, the least trusted first


def fleet_answer(form: Table, catalog: Catalog) -> Answer:
    """The cheapest fleet over the years of a form."""
    horizon = horizon_of(form, catalog)
    if not horizon.offers:
        return no_answer("; ".join(horizon.refused))
    programme = programme_of(horizon)
    plan = best_plan(programme)
    if plan is None:
        return no_answer(_lacking(horizon, programme))
    accounts = year_accounts(programme, plan, horizon.first_year)
    machines = machine_accounts(programme, plan, horizon.first_year)
    others = [place for place in range(len(horizon.offers)) if not _is_taken(programme, plan, place)]
    tasks: list[Callable[[], Any]] = [partial(waiting_of, horizon, futures_of(horizon), plan)]
    waiting, *taken = at_once(tasks + [partial(best_plan, programme, taken=place) for place in others])
    by_generation, names = _by_generation(horizon, machines)
    accounts |= by_generation
    declared = [c.name for c in table_schema("fleet_years").columns if c.name in accounts]
    years = Table("fleet_years", {name: accounts[name] for name in declared})
    results = _results(horizon, programme, plan, accounts, machines, waiting)
    never = _not_taken(horizon, plan, dict(zip(others, taken, strict=True)))
    assumed = _weights(horizon, machines), never, _defaults(horizon)
    results["defaults_used"] = ". ".join(filter(None, assumed))
    used = set(machines["accelerator"].tolist())
    plans = [offer.plan for offer in horizon.offers if offer.generation.name in used]
    planned = {PLAN: stacked(plans)} if plans else {}  # none where leaving all demand unmet is cheapest
    return results | names | planned | {TABLES: {"years": years, "machines": machines}}


MOST_GENERATIONS = 6
"""Columns of the table by year for accelerators of one generation; the last one has all further ones. [-]"""


def _by_generation(horizon: Horizon, machines: Table) -> tuple[dict[str, np.ndarray], Answer]:
    """Owned and rented accelerators of each year by generation in the order of release, and names of generations."""
    used = set(machines["accelerator"].tolist())
    offers = sorted(horizon.offers, key=lambda offer: offer.available)
    names = [offer.generation.name for offer in offers if offer.generation.name in used]
    columns = {f"generation_{place + 1}": np.zeros(horizon.years) for place in range(min(len(names), MOST_GENERATIONS))}
    count = machines.number("bought") + machines.number("kept") + machines.number("rented")
    for row, name in enumerate(machines["accelerator"].tolist()):
        place = min(names.index(name) + 1, MOST_GENERATIONS)
        columns[f"generation_{place}"][int(machines["year"][row]) - horizon.first_year] += count[row]
    titles: Answer = {
        f"generation_{place}_name": short_name(name) for place, name in enumerate(names[: MOST_GENERATIONS - 1], 1)
    }
    last = " and ".join(map(short_name, names[MOST_GENERATIONS - 1 :]))
    return columns, titles | ({f"generation_{MOST_GENERATIONS}_name": last} if last else {})


def _results(
    horizon: Horizon,
    programme: Programme,
    plan: Plan,
    accounts: dict[str, np.ndarray],
    machines: Table,
    waiting: Waiting,
) -> Answer:
    discounts, rate = programme.discounts, horizon.discount_rate
    cost = float(accounts["present_cost"].sum())
    tokens = float((accounts["tokens"] * discounts[1:]).sum())
    later = {"rent", "upkeep", "building", "energy", "resale"}
    parts = {f"present_{name}": float((accounts[name] * discounts[1:]).sum()) for name in later}
    unserved = _unserved(horizon, programme, plan)
    result: Answer = {
        "present_cost": cost,
        "yearly_cost": cost * float(capital_recovery_rate(rate, horizon.years * YEAR)) * YEAR,
        "cost_per_million_output_tokens": cost / tokens if tokens > 0.0 else np.nan,
        "present_purchases": float((accounts["purchases"] * discounts[:-1]).sum()),
        **parts,
        "present_unmet": float((accounts["unmet_cost"] * discounts[1:]).sum()),
        "peak_power": float(accounts["power"].max()),
        "unmet_share": float(plan.unmet.sum() / programme.demand.sum()),
        "discount_rate": rate,
        "optimality_gap": plan.gap,
        "first_purchase": _counted(machines, horizon.first_year, "bought") or "nothing",
        "price_basis": _basis(horizon),
    }
    result |= _trust(horizon, machines)
    result |= _waiting_results(horizon, waiting)
    words = [_sentence(horizon, result, machines, _sold_at_once(programme, plan)), unserved]
    words += [str(result.get("waiting", ""))]
    result["answer"] = " ".join(filter(None, words))
    return result


def _waiting_results(horizon: Horizon, waiting: Waiting) -> Answer:
    """Costs of the policies for the first year, and the value of waiting in a sentence."""
    policies = {"buy_now_cost": waiting.buy_now, "wait_cost": waiting.wait, "best_first_cost": waiting.best}
    answer: Answer = {name: np.nan if policy is None else policy.mean for name, policy in policies.items()}
    draws = int(horizon.form.filled("draws")[0])
    answer |= {"value_of_waiting": waiting.value, "waiting_wins": waiting.wins if draws else np.nan}
    if waiting.best is not None and draws:
        low, high = np.percentile(waiting.best.costs, [10.0, 90.0])
        answer |= {"present_cost_p10": float(low), "present_cost_p90": float(high)}
    if horizon.form.word("payment") in (OWN, RENT):
        return answer  # there is nothing to decide
    if waiting.value != waiting.value:
        buys = waiting.buy_now is None
        lacks = "purchases alone cannot serve the first year" if buys else "nothing serves the first year without them"
        return answer | {"waiting": f"Buying now and waiting cannot be compared: {lacks}."}
    waits, each = waiting.value > 0.0, (waiting.buy_now, waiting.wait)
    saved = [policy.mean - waiting.best.mean for policy in each if policy and waiting.best]
    if waiting.best and min(saved) > (DRAW_GAP if draws else GAP) * abs(waiting.best.mean):
        than_buying, than_waiting = map(dollars, saved)
        words = f"Buying and renting in {horizon.first_year} takes {than_buying} less present cost than buying alone"
        return answer | {"waiting": f"{words}, and {than_waiting} less than renting for a year and waiting."}
    ways = ("Rent for a year and wait", "Buy now")
    words = f"{ways[not waits]}: {dollars(abs(waiting.value))} less present cost than {_OTHER[waits]}"
    wins = waiting.wins if waits else 1.0 - waiting.wins
    words += f" in the mean of {draws:,} draws, and less in {percent(wins, 0)} of them" if draws else ""
    return answer | {"waiting": f"{words}."}


_OTHER = {True: "buying now", False: "renting for a year and waiting"}
"""What the better policy is compared with, by whether waiting is better."""


_VERBS = {"keep": "kept", "buy": "bought", "rent": "rented", "sell": "sold", "retire": "retired"}
"""What happens to accelerators, and the column of ``fleet_machines`` with their number."""


def _sold_at_once(programme: Programme, plan: Plan) -> str:
    """Accelerators that are there already and not kept, in words."""
    for vintage, servers in zip(programme.vintages, plan.owned, strict=True):
        generation = programme.generations[vintage.generation]
        sold = (vintage.there - servers[0]) * generation.server
        if sold > 0.0:
            return f"{sold:,.0f} {short_name(generation.name)}"
    return ""


def _sentence(horizon: Horizon, result: Answer, machines: Table, sold: str) -> str:
    """What happens in the years that decide something, and what it costs; ``sold``: before the first year."""
    steps = [f"{horizon.first_year} sell {sold}"] if sold else []
    for year in range(horizon.first_year, horizon.first_year + horizon.years):
        for verb, column in _VERBS.items():
            words = _counted(machines, year, column)
            if words and (column != "kept" or year == horizon.first_year):  # what is there before the plan
                steps.append(f"{year}{' (end)' if column in ('sold', 'retired') else ''} {verb} {words}")
    cost = f"{dollars(result['present_cost'])} present cost"
    per = result["cost_per_million_output_tokens"] * MILLION
    cost += f", {dollars(per)} per million output tokens" if per == per else ""
    last = horizon.first_year + horizon.years - 1
    return f"{'; '.join(steps) or 'Buy and rent nothing'}. {horizon.first_year} to {last}: {cost}."


def _counted(machines: Table, year: int, column: str) -> str:
    """Accelerators of a column in a year in words: ``48 B200 and 72 GB300``."""
    rows = np.flatnonzero((machines["year"] == str(year)) & (machines.number(column) > 0.0))
    return " and ".join(
        f"{machines.number(column)[row]:,.0f} {short_name(machines['accelerator'][row])}" for row in rows.tolist()
    )


def _unit(horizon: Horizon) -> str:
    return "requests/s" if horizon.is_rate else "users"


def _part(programme: Programme, plan: Plan, year: int) -> str:
    """The demand of a year that is not served, and all of it."""
    return f"{short_number(float(plan.unmet[year]))} of {short_number(float(programme.demand[year]))}"


def _unserved(horizon: Horizon, programme: Programme, plan: Plan) -> str:
    rows = np.flatnonzero(plan.unmet > ROUND * programme.demand)
    if not len(rows):
        return ""
    listed = ", ".join(
        f"{_part(programme, plan, row)} {_unit(horizon)} in {horizon.first_year + row}" for row in rows.tolist()
    )
    return f"Not served at the price of unmet demand: {listed}."


def _weights(horizon: Horizon, machines: Table) -> str:
    """Format of the weights on the accelerators that a plan uses, in words."""
    used = set(machines["accelerator"].tolist())
    formats = {
        short_name(offer.generation.name): offer.weights for offer in horizon.offers if offer.generation.name in used
    }
    if len(set(formats.values())) == 1:
        return f"Weights in {next(iter(formats.values()))}"
    return f"Weights in {', '.join(f'{word} on {name}' for name, word in formats.items())}" if formats else ""


def _is_taken(programme: Programme, plan: Plan, place: int) -> bool:
    """Whether a plan buys or rents accelerators of a generation."""
    own = [row for row, vintage in enumerate(programme.vintages) if vintage.generation == place]
    return bool(plan.owned[own].any() or plan.rented[place].any())


def _not_taken(horizon: Horizon, plan: Plan, taken: Mapping[int, Plan | None]) -> str:
    """What the least order of each accelerator that a plan never takes would add to its cost, in words.

    ``taken``: the best plans that take them, by the position of the accelerator.
    """
    words = []
    for place, other in taken.items():
        offer = horizon.offers[place]
        name, size = short_name(offer.generation.name), offer.generation.server
        if other is None:
            late = offer.available > horizon.first_year + horizon.years - 1
            words.append(f"{name} ({f'available in {offer.available:g}' if late else 'not within the limits'})")
        else:
            more = max(other.present_cost - plan.present_cost, 0.0)
            words.append(f"{name} (the least order, {size:,.0f}, would add {dollars(more)})")
    return f"Never taken: {', '.join(words)}" if words else ""


def _lacking(horizon: Horizon, programme: Programme) -> str:
    """Why no fleet serves the demand: the first year that lacks machines, by how much, and what would do."""
    plan = least_unmet(programme)
    rows = np.flatnonzero(plan.unmet > ROUND * programme.demand)
    year = int(rows[0])
    when = horizon.first_year + year
    missing = f"{_part(programme, plan, year)} {_unit(horizon)} in {when} cannot be served"
    payment = horizon.form.word("payment")
    others = [] if payment == RENT else ["give an unmet price"]
    others = others if payment != OWN else ["payment both, which rents", *others]
    limit = programme.power_limit[year]
    sold = [each.generation for each in programme.vintages if each.start <= year and each.price == each.price]
    if not sold and not any(each.rent[year] == each.rent[year] for each in programme.generations):
        first = min(horizon.offers, key=lambda offer: offer.available)
        name = short_name(first.generation.name)
        words = f"none of these accelerators can be bought or rented by then; the first, {name}, is available in"
        return f"{missing}: {words} {first.available:g}; start later or add an accelerator"
    need = min((_power_for(programme, place, year) for place in set(sold)), default=np.inf)
    if np.isfinite(limit) and np.isfinite(need):
        words = f"within {megawatts(float(limit))} MW {missing}"
        return f"{words}; {megawatts(need)} MW would serve all, or {' or '.join(['less demand', *others])}"
    return f"{missing}; {' or '.join(['ask for less', *others])}"


def _power_for(programme: Programme, place: int, year: int) -> float:
    """Least power that serves the demand of a year on one accelerator alone. [W]"""
    generation, demand = programme.generations[place], float(programme.demand[year])
    servers = min(
        np.ceil(np.ceil(demand / copy.capacity * (1.0 - ROUND)) * copy.size / generation.server * (1.0 - ROUND))
        for copy in generation.copies
    )
    return float(servers) * generation.server * generation.power


def _trust(horizon: Horizon, machines: Table) -> Answer:
    used = set(machines["accelerator"].tolist())
    offers = [offer for offer in horizon.offers if offer.generation.name in used and offer.trust in _TRUST]
    if not offers:
        return {}
    least = min(offers, key=lambda offer: _TRUST.index(offer.trust))
    return {"trust": least.trust, "trust_reason": f"{short_name(least.generation.name)}: {least.trust_reason}"}


def _basis(horizon: Horizon) -> str:
    owners = "; ".join(dict.fromkeys(offer.owning.words for offer in horizon.offers if offer.owning))
    return f"rented by the sheet generations, owned by the sheet servers: {owners or 'none'}"


def _defaults(horizon: Horizon) -> str:
    form = horizon.form
    unsold = [short_name(offer.generation.name) for offer in horizon.offers if offer.owning is None]
    words = [
        f"Cost of capital {percent(horizon.discount_rate)}, "
        f"servers serve {form.filled('service_life')[0] / YEAR:g} years",
        "years start with purchases and end with rent, upkeep, energy and sales",
        "all demand is served" if np.isnan(form.number("unmet_price")[0]) else "",
        f"no row of servers, rented only: {', '.join(unsold)}" if unsold else "",
        f"not used: {'; '.join(horizon.refused)}" if horizon.refused else "",
    ]
    return ", ".join(filter(None, words))
