"""Demand, machines and prices of a plan over years, from a form of the kind ``fleet`` and the sheet ``generations``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, power
from xlperf.base.errors import Fault, InputError, nearest
from xlperf.base.units import MILLION, YEAR
from xlperf.catalog.catalog import Catalog, part_of
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table
from xlperf.engine.ownership import evaluate_ownership, owned_plans
from xlperf.engine.prices import servers_of
from xlperf.engine.software import computed_formats
from xlperf.equations.cost.tco import annuity_book_value, compounded_price, straight_line_depreciation
from xlperf.explore.fleet_plans import Fleet
from xlperf.explore.fleet_programme import Copy, Generation, Programme, Vintage
from xlperf.explore.money import OWN, RENT, FleetSize, sized
from xlperf.explore.objectives import short_name
from xlperf.explore.search import stacked
from xlperf.explore.serve import serve_answer, serving_each, serving_ways

SHEET = "generations"
_CHANGES = {"price": "price_change", "rental_price": "rental_change"}  # columns of prices and their yearly changes


class PricePaths:
    """Prices of one accelerator over the years of a plan, from its rows of the sheet ``generations``."""

    def __init__(self, name: str, catalog: Catalog, first_year: int, years: int) -> None:
        table, self.name = catalog.tables[SHEET], name
        named = [row for row, other in enumerate(table.text("accelerator").tolist()) if other == name]
        at = table.number("price_year")
        self.rows = sorted(named, key=lambda row: float(at[row]))
        self.table, self.years = table, first_year + np.arange(years)
        self.available = float(np.fmin.reduce(table.number("available")[self.rows]))
        self.available = self.available if self.available == self.available else float(at[self.rows[0]])
        self.spread = float(np.fmax.reduce(np.nan_to_num(table.number("release_spread")[self.rows]))) / YEAR
        self.resale_share = float(table.number("resale_share")[self.rows[-1]])

    def year_in(self, table: Table, column: str) -> float:
        """Year of the prices of the accelerator in another sheet; NaN if unknown."""
        rows = [row for row, name in enumerate(table.text(column).tolist()) if name.casefold() == self.name.casefold()]
        return float(table.number("year")[rows[0]]) if rows else np.nan

    def prices(self, column: str, listed: float, listed_year: float) -> Array:
        """Prices of one accelerator in each year; ``listed``: of another sheet where a first row is blank."""
        values, at = self.table.number(column), self.table.number("price_year")
        changes = self.table.number(_CHANGES[column])
        points = [(float(at[row]), float(values[row]), float(changes[row]), row) for row in self.rows]
        if points[0][1] != points[0][1]:
            year = listed_year if listed_year == listed_year else points[0][0]
            points[0] = (year, listed, points[0][2], points[0][3])
        points = [point for point in points if point[1] == point[1]]
        if not points:
            return np.full(len(self.years), np.nan)
        return np.array([self._price(points, column, int(year)) for year in self.years.tolist()])

    def _price(self, points: Sequence[tuple[float, float, float, int]], column: str, year: int) -> float:
        before = [point for point in points if point[0] <= year]
        if not before:
            if year < np.ceil(self.available):
                return np.nan
            first, words = points[0], column.replace("_", " ")
            problem = f"{words} of {self.name} is missing for {year}: its first one is of {first[0]:.0f}"
            hint = f"add a row of {year}, or start the plan in {first[0]:.0f}"
            raise InputError(Fault(self.table.place(first[3], "price_year"), f"{problem}; {hint}"))
        at, value, change, row = before[-1]
        if at == year:
            return value
        if change != change:
            name = _CHANGES[column]
            problem = f"{column.replace('_', ' ')} of {self.name} is missing for {year}: the last one is of {at:.0f}"
            hint = f"enter {name.replace('_', ' ')}, or add a row of {year}"
            raise InputError(Fault(self.table.place(row, name), f"{problem}; {hint}"))
        return float(compounded_price(value, change, (year - at) * YEAR))


MOST_USERS, MOST_REQUESTS = 1000.0 * MILLION, 10.0 * MILLION
"""Largest demand of a year: requests in flight of a tenth of mankind [-], and a hundred requests of all a day
[request/s].
"""
_NOT_ASKED = ("payment", "facility_power_limit", "users", "request_rate")
"""Entries that a fleet over years and ``serve`` share by name, but that the plan over years decides."""


class Owning(NamedTuple):
    """Cost of owning one accelerator for a year at the prices of the sheet ``servers``. [USD]"""

    capex: float  # purchase price with server and network
    accelerator: float  # part of it for the accelerator
    share: float  # capex per USD of the accelerator's price, storage included [-]
    upkeep: float
    building: float
    energy: float
    maintenance: float  # part of upkeep as a share of capex [-]
    life: float  # years that write it off
    residual: float  # share of the price that is left then [-]
    discount_rate: float
    words: str


class Offer(NamedTuple):
    """One accelerator with the copy that it runs and its prices over the years of the plan."""

    generation: Generation  # the copy, with the rent of each year
    price: Array  # of one accelerator with its share of the server in each year [USD], NaN if nobody sells it
    available: float  # date of its release
    spread: float  # standard deviation of the delay of its release [years]
    resale_share: float  # share of its value kept in a year; NaN: by the annuity
    owning: Owning | None
    plan: Table  # the copy for the largest demand, one row
    weights: str  # format of its weights
    trust: str
    trust_reason: str


class Horizon(NamedTuple):
    """A form's years, demand, limits and offers."""

    form: Table
    offers: Sequence[Offer]
    refused: Sequence[str]
    first_year: int
    demand: Array
    discount_rate: float
    tokens_of_demand: float  # output tokens per second that a unit of demand is promised

    @property
    def years(self) -> int:
        """Number of years."""
        return len(self.demand)

    @property
    def is_rate(self) -> bool:
        """Whether demand is in requests per second."""
        return bool(np.isnan(self.form.number("users")[0]))


class Future(NamedTuple):
    """One course of the future: demand of each year, factors on prices and rents, delays of releases [years]."""

    demand: Array
    price: Array
    rent: Array
    delays: Array


def horizon_of(form: Table, catalog: Catalog) -> Horizon:
    """Machines and demand of a form."""
    demand = _demand(form)
    first_year = int(form.filled("first_year")[0])
    form, names = _accelerators(form, catalog)
    asked = [serve_form(form, name, end) for name in names for end in _ends(demand)]
    part = part_of(catalog, stacked(asked), names)  # searches can only be joined on one catalog
    serving_each(asked, part)  # whose results stay known
    every = [_offer(form, demand, PricePaths(name, catalog, first_year, len(demand)), part) for name in names]
    offers = [offer for offer in every if isinstance(offer, Offer)]
    refused = [words for words in every if isinstance(words, str)]
    stated = form.stated("discount_rate")
    known = [offer.owning.discount_rate for offer in offers if offer.owning]
    if stated != stated and offers and not known:
        problem = "discount rate is not given, and no accelerator has a row of servers that states it; enter one"
        raise InputError(Fault(form.place(0, "discount_rate"), problem))
    each = "output_length" if np.isnan(form.number("users")[0]) else "speed_per_user"
    rate = stated if stated == stated else known[0] if known else np.nan
    return Horizon(form, offers, refused, first_year, demand, rate, form.value(each))


def steady(horizon: Horizon) -> Future:
    """The expected course: demand, prices and releases as the sheets have them."""
    one = np.ones(horizon.years)
    return Future(horizon.demand, one, one, np.zeros(len(horizon.offers)))


def programme_of(horizon: Horizon, future: Future | None = None) -> Programme:
    """The programme of a horizon, by its sheets or in one course of the future."""
    years = horizon.years
    course = steady(horizon) if future is None else future
    form, generations, vintages = horizon.form, [], []
    for place, offer in enumerate(horizon.offers):
        delay = course.delays[place] if offer.available > horizon.first_year else 0.0
        start = np.ceil(offer.available + delay)  # the first year at whose start it can be bought
        late = np.arange(years) < start - horizon.first_year
        rent = np.where(late, np.nan, offer.generation.rent * course.rent)
        price = np.where(late, np.nan, offer.price * course.price)
        generations.append(offer.generation._replace(rent=rent))
        if offer.owning is not None:
            vintages += _vintages(horizon, place, price)
    limit = float(np.nan_to_num(form.number("facility_power_limit")[0], nan=np.inf))
    unmet = form.stated("unmet_price") * horizon.tokens_of_demand * YEAR
    return Programme(
        generations, vintages, course.demand, np.full(years, limit), np.full(years, unmet), horizon.discount_rate
    )


def _vintages(horizon: Horizon, place: int, price: Array) -> list[Vintage]:
    """Purchases of one accelerator in each year, and the servers of it that are there already."""
    form, offer = horizon.form, horizon.offers[place]
    result = [_vintage(horizon, place, start, float(amount), 0.0) for start, amount in enumerate(price)]
    there = form.stated("owned_number")
    if form.stated_word("owned_accelerator").casefold() != offer.generation.name.casefold() or not there > 0.0:
        return result
    age = horizon.first_year - form.stated("owned_since")
    paid = float(offer.owning.capex) if offer.owning else np.nan
    value = _resale(horizon, offer, paid, np.array([age]))[0]
    servers = float(np.floor(there / offer.generation.server))
    old = _vintage(horizon, place, 0, paid, age)
    return [*result, old._replace(price=float(value), there=servers)]


def _vintage(horizon: Horizon, place: int, start: int, paid: float, age: float) -> Vintage:
    """Servers bought for a price at the start of a year, at an age at that time [years]."""
    offer, form = horizon.offers[place], horizon.form
    owning = offer.owning
    assert owning is not None  # only owned accelerators have vintages
    years = np.arange(horizon.years)
    ages = age + years - start + 1.0
    life = form.value("service_life") / YEAR
    out = (ages > life * (1.0 + 1e-9)) | (years < start)
    value = np.where(out, np.nan, _resale(horizon, offer, paid, np.maximum(ages, 0.0)))
    one = np.ones(horizon.years)
    energy = compounded_price(owning.energy, form.value("energy_price_change"), years * YEAR)
    spent = straight_line_depreciation(
        paid, owning.life * YEAR, np.maximum(ages - 1.0, 0.0) * YEAR, YEAR, owning.residual
    )
    upkeep = owning.upkeep + owning.maintenance * (paid - owning.capex)
    return Vintage(place, start, paid, value, upkeep * one, owning.building * one, energy, np.where(out, 0.0, spent))


def _resale(horizon: Horizon, offer: Offer, paid: float, ages: Array) -> Array:
    """Resale values of one accelerator at some ages [years]. [USD]"""
    owning = offer.owning
    assert owning is not None
    if offer.resale_share == offer.resale_share:
        return compounded_price(paid, offer.resale_share - 1.0, ages * YEAR)
    return annuity_book_value(paid, horizon.discount_rate, owning.life * YEAR, ages * YEAR, owning.residual)


# --- demand


def _demand(form: Table) -> Array:
    years = int(form.filled("years")[0])
    text = form.stated_word("demand_by_year").replace(",", " ").split()
    users, rate = form.stated("users"), form.stated("request_rate")
    if text:
        demand = _listed(form, text, years)
    elif users != users and rate != rate:
        problem = "users or request rate of the first year must be given, or the demand by year"
        raise InputError(Fault(form.place(0, "users"), problem))
    else:
        first = users if users == users else rate
        demand = first * power(1.0 + form.value("growth"), np.arange(years))
    most = MOST_USERS if users == users else MOST_REQUESTS
    if not demand.max() <= most:
        year = int(np.argmax(demand > most))
        unit = "users" if users == users else "requests/s"
        when = int(form.filled("first_year")[0]) + year
        problem = f"demand must stay below {most:.0e} {unit}, and is {demand[year]:.3g} in {when}"
        bound = float(power(most / demand[0], 1.0 / max(years - 1, 1))) - 1.0
        hint = "" if text else f"; a growth of {bound:.3g} at most, or fewer years"
        raise InputError(Fault(form.place(0, "demand_by_year" if text else "growth"), problem + hint))
    return demand


def _listed(form: Table, words: Sequence[str], years: int) -> Array:
    """Demand of each year from the words of a cell."""
    place = form.place(0, "demand_by_year")
    try:
        values = np.array([float(word) for word in words])
    except ValueError:
        values = np.array([np.nan])
    if not (values > 0.0).all() or not np.isfinite(values).all():
        raise InputError(Fault(place, f'must be numbers above 0 separated by spaces, got "{" ".join(words)}"'))
    if len(values) != years:
        problem = f"has {len(values)} numbers for {years} years; give one for each year, or change the years"
        raise InputError(Fault(place, problem))
    return values


# --- machines


def _accelerators(form: Table, catalog: Catalog) -> tuple[Table, list[str]]:
    """Accelerators to choose from, as the sheet ``accelerators`` spells them, and the form with such a name."""
    listed = list(dict.fromkeys(catalog.tables[SHEET].text("accelerator").tolist()))
    asked = [word.strip() for word in form.stated_word("generations").split(";") if word.strip()]
    there = [name for name in form.text("owned_accelerator").tolist() if name]
    if there:
        _check_owned(form)
        (exact,) = _exact(there, form, "owned_accelerator", catalog)
        form = form.with_columns({"owned_accelerator": np.array([exact], dtype=object)})
        there = [exact]
    place = form.place(0, "generations")
    if not listed:
        raise InputError(Fault(place, f"the sheet {SHEET} has no row with prices; add one for each accelerator"))
    names = [*(_exact(asked, form, "generations", catalog) or listed), *there]
    for name in names:
        if name not in listed:
            problem = f"{name} has no row in the sheet {SHEET}, which prices it by year; {nearest(name, listed)}"
            raise InputError(Fault(place, problem))
    return form, list(dict.fromkeys(names))


def _exact(names: Sequence[str], form: Table, column: str, catalog: Catalog) -> list[str]:
    """Names of accelerators in one cell of a form, as their sheet spells them."""
    cell = Table("fleet", {column: np.array(names, dtype=object)}, lambda _, name: form.place(0, name))
    every = catalog.tables["accelerators"].text("accelerator")
    return [str(every[row]) for row in catalog.rows("accelerators", cell[column], cell, column)]


def _check_owned(form: Table) -> None:
    place, first = form.place(0, "owned_accelerator"), form.value("first_year")
    for name in ("owned_number", "owned_since"):
        if np.isnan(form.number(name)[0]):
            words = name.replace("_", " ")
            raise InputError(
                Fault(place, f"needs {words} beside it, which is blank; enter {words} or leave both blank")
            )
    since = form.stated("owned_since")
    if since > first:
        raise InputError(
            Fault(form.place(0, "owned_since"), f"must be the first year {first:.0f} or before, got {since:.0f}")
        )


def serve_form(form: Table, accelerator: str, most: float) -> Table:
    """The question of ``serve`` for the largest demand of a plan on one accelerator."""
    known = table_schema("serve").by_name
    columns = {name: values for name, values in form.columns.items() if name in known and name not in _NOT_ASKED}
    demand = "request_rate" if np.isnan(form.number("users")[0]) else "users"
    columns |= {"accelerator": np.array([accelerator], dtype=object), demand: np.array([most])}
    return Table("serve", columns, form.place)


def _ends(demand: Array) -> list[float]:
    """The largest and the least demand of all years, once if they are equal."""
    return list(dict.fromkeys((float(demand.max()), float(demand.min()))))


def _offer(form: Table, demand: Array, paths: PricePaths, catalog: Catalog) -> Offer | str:
    """One accelerator with copies for the largest and least demand, and prices; or why it cannot serve, in words."""
    name, years, is_rate = paths.name, len(demand), bool(np.isnan(form.number("users")[0]))
    asked = [serve_form(form, name, end) for end in _ends(demand)]
    ways: list[tuple[Fleet, FleetSize, Copy]] = []
    for one in asked:
        # One server is the least: no other copy would serve the least demand with fewer.
        if ways and np.ceil(demand.min() / ways[0][2].capacity) * ways[0][2].size <= ways[0][1].server:
            break
        for fleet in serving_ways(one, catalog)[:1]:
            size = sized(fleet, catalog)
            latency, tokens = (fleet.results.stated(column) for column in ("latency", "tokens_per_second"))
            copy = Copy(size.size, size.load / (latency if is_rate else 1.0), tokens / size.longer)
            ways.append((fleet, size, copy))
    if not ways:
        return f"{short_name(name)}: {serve_answer(asked[0], catalog)['reason']}"
    fleet = ways[0][0]
    owning = _owning(fleet.plan, fleet.results, catalog)
    payment = form.word("payment")
    price, rent = np.full(years, np.nan), np.full(years, np.nan)
    if payment != RENT and owning is not None:
        bought = paths.prices("price", owning.accelerator, paths.year_in(servers_of(catalog), "accelerator"))
        price = owning.capex + (bought - owning.accelerator) * owning.share
    if payment != OWN:
        basis = str(fleet.results["cost_basis"][0])
        listed = fleet.results.stated("accelerator_hour_cost") if basis == "rent" else np.nan
        rent = paths.prices("rental_price", listed, paths.year_in(catalog.tables["prices"], "price")) * YEAR
    power, copies = max(size.each for _, size, _ in ways), list(dict.fromkeys(copy for *_, copy in ways))
    generation = Generation(name, copies, ways[0][1].server, power, rent)
    trust = (str(fleet.results[column][0]) for column in ("trust", "trust_reason"))
    weights = str(computed_formats(fleet.plan, catalog).text("precision")[0]).partition("-")[0].upper()
    kept = price, paths.available, paths.spread, paths.resale_share, owning, fleet.plan, weights
    return Offer(generation, *kept, *trust)


def _owning(plan: Table, results: Table, catalog: Catalog) -> Owning | None:
    """Cost of owning the accelerators of a copy; None if no row of servers has them."""
    ownership = evaluate_ownership(plan, catalog, results=results)
    if np.isnan(ownership.number("hour_cost")[0]):
        return None
    pool = owned_plans(plan, results, catalog).pools[0]
    server, used = pool.server, float(pool.terms().utilization[0])
    up = 1.0 - float(server.downtime_share[0])
    running = ("running", "support", "rented_storage", "setup")
    upkeep, building = (
        sum(ownership.stated(f"hour_{name}") for name in names) * YEAR / up for names in (running, ("facility",))
    )
    storage = 1.0 + float(server.storage_share[0])
    return Owning(
        capex=float((ownership.number("capex") / plan.number("num_accelerators"))[0]) / used,
        accelerator=float(server.accelerator_price[0]),
        share=storage / used,
        upkeep=upkeep,
        building=building,
        energy=ownership.stated("hour_energy") * YEAR,
        maintenance=float((server.maintenance_share + server.support_share)[0]),
        life=float(server.life[0]) / YEAR,
        residual=float(server.residual_share[0]),
        discount_rate=float(server.discount_rate[0]),
        words=str(ownership["server"][0]),
    )
