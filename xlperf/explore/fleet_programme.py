"""The cheapest fleet over years as an integer linear programme: decisions of each year, and its accounts.

A purchase is a vintage: servers of one generation bought at the start of one year. Whole servers hold whole copies of
a model, copies serve the demand, and the servers of an owner stay within a power limit. Purchases are paid at the
start of a year; rent, upkeep and energy are paid at its end, when servers are sold too. HiGHS solves the programme.

HiGHS branches on the servers of a generation in a year, owned and rented together. Once these are whole, an interval
of years for each purchase and sale covers them, a totally unimodular programme whose basic solutions are whole too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np

from xlperf.base.arrays import Array, total
from xlperf.base.units import YEAR
from xlperf.catalog.table import Table
from xlperf.equations.cost.tco import present_value
from xlperf.explore.workers import all_processes

Result = TypeVar("Result")
GAP = 1e-6  # relative optimality gap at which HiGHS stops; an answer states the one that is left [-]
ROUND = 1e-9  # rounding of demand and power, relative [-]
MOST_SECONDS = 30.0  # time limit of one programme; an answer that reaches it states its gap [s]
_WHOLE = 1e-6
_KEPT = 1e-6
"""What a purchase counts beyond its price, relative: of plans that cost the same, the best keeps what is there. [-]"""


class Copy(NamedTuple):
    """A copy of the model: its accelerators, the demand that it serves, and its output tokens per second at that."""

    size: float
    capacity: float
    tokens: float


class Generation(NamedTuple):
    """One kind of accelerator and the copies of the model that run on it."""

    name: str
    copies: Sequence[Copy]
    server: float  # accelerators of one purchase [-]
    power: float  # from the grid, of one accelerator [W]
    rent: Array  # of one accelerator for each year [USD], NaN if nobody offers it


class Vintage(NamedTuple):
    """Servers of one generation bought at the start of one year, amounts per accelerator. [USD]"""

    generation: int  # position of the generation
    start: int  # year of purchase, 0 for servers that are there already
    price: float  # paid at the start; servers that are there already: their resale value
    value: Array  # resale value at the end of each year; NaN from the year on in which it is out of service
    upkeep: Array  # paid at the end of each year, as building and energy
    building: Array
    energy: Array
    depreciation: Array  # in each year, straight line
    there: float = np.nan  # servers that are there at the start, NaN for a purchase [-]

    @property
    def running(self) -> Array:
        """Paid at the end of each year. [USD]"""
        return self.upkeep + self.building + self.energy


class Programme(NamedTuple):
    """Demand, machines and limits over years."""

    generations: Sequence[Generation]
    vintages: Sequence[Vintage]
    demand: Array  # of each year
    power_limit: Array  # power from the grid of owned servers in each year [W]
    unmet_price: Array  # price of one unit of demand that is not served for a year [USD]; NaN: all must be served
    discount_rate: float

    @property
    def years(self) -> int:
        """Number of years."""
        return len(self.demand)

    @property
    def copies(self) -> list[tuple[int, Copy]]:
        """Kinds of copies, each with the position of its generation."""
        return [(place, copy) for place, generation in enumerate(self.generations) for copy in generation.copies]

    @property
    def discounts(self) -> Array:
        """Present value of one USD at the start of each year and at the end of the last one, (years + 1,)."""
        return present_value(1.0, self.discount_rate, np.arange(self.years + 1) * YEAR)


class Plan(NamedTuple):
    """Decisions of each year."""

    owned: Array  # servers of each vintage, (vintages, years) [-]
    rented: Array  # servers of each generation, (generations, years) [-]
    copies: Array  # working copies of each kind, (kinds, years) [-]
    unmet: Array  # demand that is not served, (years,)
    present_cost: float  # present value of all costs less resale [USD]
    gap: float  # relative optimality gap [-]


class _Blocks(NamedTuple):
    """First column of each block of variables; all blocks have one column per year."""

    owned: int
    rented: int
    servers: int  # of each generation, owned and rented
    copies: int
    unmet: int
    end: int

    @staticmethod
    def of(programme: Programme) -> _Blocks:
        generations = len(programme.generations)
        sizes = len(programme.vintages), generations, generations, len(programme.copies), 1
        return _Blocks(0, *(int(each) * programme.years for each in np.cumsum(sizes)))


def holding_costs(vintage: Vintage, discounts: Array) -> Array:
    """Present cost of one accelerator of a vintage for each year: fall in value, upkeep and energy; infinite if none.

    The value falls from the price or the last year's resale value to the resale value at the end of the year.
    """
    years = len(discounts) - 1
    known = np.nan_to_num(vintage.value)
    before = np.concatenate([[0.0], known[:-1]])
    before[vintage.start] = vintage.price
    costs = before * discounts[:-1] + (vintage.running - known) * discounts[1:]
    out = np.isnan(vintage.value) | (np.arange(years) < vintage.start)
    return np.where(out, np.inf, costs)


class Assembled(NamedTuple):
    """A programme as arrays: minimise costs times values within bounds, and rows of a sparse matrix within limits."""

    blocks: _Blocks
    costs: Array
    lower: Array
    upper: Array
    matrix: Any
    least: Array
    most: Array
    there: float  # value of servers that are there at the start, a constant of the cost [USD]


def assembled(programme: Programme, first: Array | None = None, may_rent: bool = True) -> Assembled:
    """Arrays of a programme; ``first``: servers of each vintage to own in its first year, NaN: free."""
    blocks = _Blocks.of(programme)
    costs, upper = _costs_and_bounds(programme, blocks)
    lower = np.zeros(blocks.end)
    for row, number in enumerate([] if first is None else first.tolist()):
        column = row * programme.years + programme.vintages[row].start
        if number == number:
            lower[column] = upper[column] = number
    if not may_rent:
        upper[blocks.rented : blocks.servers : programme.years] = 0.0
    there = sum(
        each.there * programme.generations[each.generation].server * each.price
        for each in programme.vintages
        if each.there == each.there
    )
    return Assembled(blocks, costs, lower, upper, *_constraints(programme, blocks), float(there))


def minimised(
    costs: Array, integral: Array, bounds: tuple[Array, Array], rows: tuple[Any, Array, Array], gap: float
) -> Any:
    """Result of HiGHS for least costs, values within bounds and rows of a matrix within limits; ``x`` may be None."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # slow to import

    scale = max(float(np.abs(costs).max()), 1.0)
    return milp(
        costs / scale,
        integrality=integral,
        bounds=Bounds(*bounds),
        constraints=LinearConstraint(*rows),
        options={"mip_rel_gap": gap, "time_limit": MOST_SECONDS},
    )


def at_once(tasks: Sequence[Callable[[], Result]]) -> list[Result]:
    """Results of tasks that solve programmes, on several cores: HiGHS runs outside the lock of the interpreter."""
    if sys.platform == "emscripten" or not tasks:  # a browser has no threads
        return [task() for task in tasks]
    with ThreadPoolExecutor(min(len(tasks), all_processes())) as pool:
        return [running.result() for running in [pool.submit(task) for task in tasks]]


def best_plan(
    programme: Programme, first: Array | None = None, may_rent: bool = True, gap: float = GAP, taken: int | None = None
) -> Plan | None:
    """The plan of least present cost; None if no plan serves the demand.

    ``taken``: position of a generation of which some year buys or rents a server at least.
    """
    blocks, costs, lower, upper, matrix, least, most, there = assembled(programme, first, may_rent)
    if taken is not None:
        from scipy.sparse import csr_array, vstack

        some = np.zeros(blocks.end)
        some[blocks.servers + taken * programme.years : blocks.servers + (taken + 1) * programme.years] = 1.0
        matrix = vstack([matrix, csr_array(some[None])]).tocsr()
        least, most = np.append(least, 1.0), np.append(most, np.inf)
    is_whole = np.arange(blocks.end) < blocks.unmet
    is_branched = is_whole & ((np.arange(blocks.end) >= blocks.servers) | np.isfinite(programme.power_limit).any())
    counted = costs.copy()
    for row, vintage in enumerate(programme.vintages):
        if vintage.there != vintage.there and vintage.price == vintage.price:
            server = programme.generations[vintage.generation].server
            counted[row * programme.years + vintage.start] += _KEPT * server * vintage.price
    solved = minimised(counted, is_branched.astype(np.float64), (lower, upper), (matrix, least, most), gap)
    if solved.x is None:
        return None
    values = np.where(is_whole, np.round(solved.x), solved.x) + 0.0  # no -0
    owned, rented, _, copies, _ = np.split(
        values.reshape(-1, programme.years), [start // programme.years for start in blocks[1:-1]]
    )
    room = sum(
        (copy.capacity * number for (_, copy), number in zip(programme.copies, copies, strict=True)),
        0.0 * programme.demand,
    )
    lacking = np.maximum(programme.demand - room, 0.0)
    values.reshape(-1, programme.years)[-1] = np.where(lacking > ROUND * programme.demand, lacking, 0.0)
    copies[:] = _of_one_kind(programme, owned, rented, copies, programme.demand - values[blocks.unmet :])
    left = float(getattr(solved, "mip_gap", None) or 0.0)
    return Plan(owned, rented, copies, values[blocks.unmet :], float((costs * values).sum()) - there, left)


def _of_one_kind(programme: Programme, owned: Array, rented: Array, copies: Array, served: Array) -> Array:
    """Copies of each kind and year, of one kind for each generation if these serve the demand; else as they are.

    Copies cost nothing beside their servers, so that an optimum may mix kinds without a reason.
    """
    result = np.zeros_like(copies)
    kinds = programme.copies
    for place, generation in enumerate(programme.generations):
        own = [row for row, vintage in enumerate(programme.vintages) if vintage.generation == place]
        room = (owned[own].sum(axis=0) + rented[place]) * generation.server
        of = [kind for kind, (position, _) in enumerate(kinds) if position == place]
        fill = np.array([np.floor(room / kinds[kind][1].size + _WHOLE) for kind in of])
        best = np.argmax(fill * np.array([[kinds[kind][1].capacity] for kind in of]), axis=0)
        for number, kind in enumerate(of):
            result[kind] = np.where(best == number, fill[number], 0.0)
    capacity = total((np.array([[copy.capacity] for _, copy in kinds]) * result).T)
    enough = capacity >= served * (1.0 - ROUND)
    return np.where(enough, result, copies)


def _costs_and_bounds(programme: Programme, blocks: _Blocks) -> tuple[Array, Array]:
    """Present cost of a unit of each variable [USD], and its upper bound."""
    discounts, years = programme.discounts, programme.years
    costs, upper = np.zeros(blocks.end), np.full(blocks.end, np.inf)
    held = [
        holding_costs(each, discounts) * programme.generations[each.generation].server for each in programme.vintages
    ]
    rents = [each.rent * each.server * discounts[1:] for each in programme.generations]
    costs[: blocks.rented] = np.concatenate([*held, []])
    costs[blocks.rented : blocks.servers] = np.concatenate(rents)
    costs[blocks.unmet :] = programme.unmet_price * discounts[1:]
    upper[blocks.unmet :] = programme.demand
    for row, each in enumerate(programme.vintages):
        if each.there == each.there:
            upper[row * years : (row + 1) * years] = each.there
    closed = ~np.isfinite(costs)
    costs[closed], upper[closed] = 0.0, 0.0
    return costs, upper


def _constraints(programme: Programme, blocks: _Blocks) -> tuple[Any, Array, Array]:
    """Rows of the programme as a sparse matrix with their lower and upper bounds."""
    from scipy.sparse import csr_array

    years, every = programme.years, range(programme.years)
    rows: list[dict[int, float]] = []
    least: list[float] = []
    most: list[float] = []

    def add(row: dict[int, float], low: float, high: float) -> None:
        rows.append(row)
        least.append(low)
        most.append(high)

    for place, vintage in enumerate(programme.vintages):
        for year in every[vintage.start + 1 :]:
            column = blocks.owned + place * years + year
            add({column: 1.0, column - 1: -1.0}, -np.inf, 0.0)
    for place, generation in enumerate(programme.generations):
        own = [row for row, vintage in enumerate(programme.vintages) if vintage.generation == place]
        for year in every:
            servers = blocks.servers + place * years + year
            held = dict.fromkeys((blocks.owned + row * years + year for row in own), -1.0)
            add({**held, blocks.rented + place * years + year: -1.0, servers: 1.0}, -np.inf, 0.0)
            used = {
                blocks.copies + kind * years + year: copy.size
                for kind, (of, copy) in enumerate(programme.copies)
                if of == place
            }
            add({servers: -generation.server, **used}, -np.inf, _WHOLE)
    for year in every:
        served = {blocks.copies + kind * years + year: copy.capacity for kind, (_, copy) in enumerate(programme.copies)}
        add({**served, blocks.unmet + year: 1.0}, float(programme.demand[year]) * (1.0 - ROUND), np.inf)
        if np.isfinite(programme.power_limit[year]):
            drawn = {
                blocks.owned + row * years + year: generation.power * generation.server
                for row, generation in enumerate(programme.generations[each.generation] for each in programme.vintages)
            }
            add(drawn, -np.inf, float(programme.power_limit[year]) * (1.0 + ROUND))
    indices = [column for row in rows for column in row]
    values = [value for row in rows for value in row.values()]
    starts = np.cumsum([0, *map(len, rows)])
    return csr_array((values, indices, starts), shape=(len(rows), blocks.end)), np.array(least), np.array(most)


def least_unmet(programme: Programme) -> Plan:
    """The plan that leaves the least demand unmet over the years, regardless of its cost."""
    one = programme._replace(unmet_price=np.ones(programme.years), discount_rate=0.0)
    free = [each._replace(rent=0.0 * each.rent) for each in one.generations]
    unpaid = [
        each._replace(
            price=0.0,
            value=0.0 * each.value,
            upkeep=0.0 * each.upkeep,
            building=0.0 * each.building,
            energy=0.0 * each.energy,
        )
        for each in one.vintages
    ]
    plan = best_plan(one._replace(generations=free, vintages=unpaid))
    assert plan is not None  # all demand may stay unmet
    return plan


PARTS = ("purchases", "rent", "upkeep", "building", "energy", "unmet_cost")
"""Payments of a year; with the resale they are its cash."""


def year_accounts(programme: Programme, plan: Plan, first_year: int) -> dict[str, np.ndarray]:
    """Columns of ``fleet_years``, (years,)."""
    generations, years, columns = programme.generations, programme.years, np.zeros(programme.years)
    money = {name: columns.copy() for name in (*PARTS, "resale", "depreciation")}
    owned, power = columns.copy(), columns.copy()
    for vintage, servers in zip(programme.vintages, plan.owned, strict=True):
        generation = generations[vintage.generation]
        count = servers * generation.server
        there = np.nan_to_num(vintage.there) * generation.server
        if there:  # servers of the owner that are sold at once are a resale before the first year ends
            money["purchases"][0] -= (there - count[0]) * vintage.price
        else:
            money["purchases"][vintage.start] += count[vintage.start] * np.nan_to_num(vintage.price)
        value = np.nan_to_num(vintage.value)
        money["resale"] += (count - np.append(count[1:], 0.0)) * value
        for name in ("upkeep", "building", "energy", "depreciation"):
            money[name] += count * np.where(count > 0.0, getattr(vintage, name), 0.0)
        owned, power = owned + count, power + count * generation.power
    rented = plan.rented * np.array([each.server for each in generations])[:, None]
    rents = np.array([np.nan_to_num(each.rent) for each in generations])
    money["rent"] = (rented * rents).sum(axis=0)
    money["unmet_cost"] = plan.unmet * np.nan_to_num(programme.unmet_price)
    discounts = programme.discounts
    later = sum((money[name] for name in PARTS[1:]), -money["resale"])
    return {
        "year": np.array([str(first_year + year) for year in range(years)], dtype=object),
        "demand": programme.demand,
        "unmet": plan.unmet,
        "owned": owned,
        "rented": rented.sum(axis=0),
        "power": power,
        **money,
        "cash": money["purchases"] + later,
        "present_cost": money["purchases"] * discounts[:-1] + later * discounts[1:],
        "tokens": served_tokens(programme, plan),
    }


def served_tokens(programme: Programme, plan: Plan) -> Array:
    """Output tokens of each year; copies of all kinds are loaded alike."""
    capacity, tokens = (
        np.array([getattr(copy, name) for _, copy in programme.copies]) for name in ("capacity", "tokens")
    )
    room = (capacity[:, None] * plan.copies).sum(axis=0)
    load = (programme.demand - plan.unmet) / np.where(room > 0.0, room, np.inf)
    return np.asarray((tokens[:, None] * plan.copies).sum(axis=0) * load * YEAR)


def machine_accounts(programme: Programme, plan: Plan, first_year: int) -> Table:
    """The table ``fleet_machines``: a row per year and accelerator that is owned or rented in it."""
    lines = []
    kinds = [place for place, _ in programme.copies]
    for year in range(programme.years):
        for place, generation in enumerate(programme.generations):
            own = [
                (vintage, servers * generation.server)
                for vintage, servers in zip(programme.vintages, plan.owned, strict=True)
                if vintage.generation == place
            ]
            owned = sum(count[year] for _, count in own)
            bought = sum(count[year] for each, count in own if each.start == year and each.there != each.there)
            rented = plan.rented[place, year] * generation.server
            sold = retired = 0.0
            for vintage, count in own:
                gone = max(count[year] - count[year + 1], 0.0) if year + 1 < programme.years else 0.0
                worth = np.nan_to_num(vintage.value[year]) > 0.0
                sold, retired = sold + gone * worth, retired + gone * (not worth)
            if not (owned or rented):
                continue
            run = {kind: plan.copies[kind, year] for kind, of in enumerate(kinds) if of == place}
            copies = sum(run.values())
            used = sum(programme.copies[kind][1].size * number for kind, number in run.items())
            lines.append(
                {
                    "year": str(first_year + year),
                    "accelerator": generation.name,
                    "bought": bought,
                    "kept": owned - bought,
                    "rented": rented,
                    "sold": sold,
                    "retired": retired,
                    "copies": copies,
                    "copy_size": used / copies if copies else np.nan,
                    "power": owned * generation.power,
                }
            )
    return Table.of_lines("fleet_machines", lines)
