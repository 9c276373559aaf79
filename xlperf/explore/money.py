"""Cost and power of answers: rented and owned hours, API prices for comparison, and fleets in a facility's power."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError
from xlperf.base.units import DAY, MILLION, percent
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import rounded
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.ownership import evaluate_ownership
from xlperf.engine.prices import PLAN_PRICES
from xlperf.equations.cost.servers import accelerators_for_power
from xlperf.equations.cost.tco import break_even_load
from xlperf.equations.serving.vision import encode_pool_size
from xlperf.explore import fleet_plans
from xlperf.explore.objectives import GOOD, ILLEGAL, Answer, Search, dollars, no_answer, price_words, short_name, slower
from xlperf.explore.search import stacked
from xlperf.explore.space import with_columns

OWN, RENT, BOTH = "own", "rent", "both"


def stated_prices(form: Table) -> dict[str, float]:
    """The hour price, energy price, PUE and grid carbon that a form states, as columns of its plan."""
    stated = {name: float(form.number(name)[0]) for name in PLAN_PRICES}
    stated = {name: value for name, value in stated.items() if value == value}
    if "hour_price" in stated and form.filled("payment")[0] == OWN:
        problem = "hour price is a rent: leave it auto or blank with payment own, or write payment rent or both"
        raise InputError(Fault(form.place(0, "hour_price"), problem))
    return stated


def with_prices(plans: Table, form: Table) -> Table:
    """Plans with the prices of :func:`stated_prices`."""
    stated = stated_prices(form)
    return with_columns(plans, **stated) if stated else plans


class Hours(NamedTuple):
    """Cost of one accelerator, [USD/s]: as paid, rented and owned; NaN if unknown."""

    paid: float
    rented: float
    owned: float
    basis: str  # the kind of payment
    lacking: str  # why a requested cost is unknown, or ""
    ownership: Table  # ownership results of the plan, one row

    @property
    def results(self) -> Answer:
        """The hours as results of a form."""
        return {"hour_price": self.paid, "rented_hour_cost": self.rented, "owned_hour_cost": self.owned}

    def costs(self, name: str, hours: float) -> Answer:
        """A cost as paid, rented and owned, by name, of ``hours`` of one accelerator [s]."""
        parts = (("", self.paid), ("rented_", self.rented), ("owned_", self.owned))
        return {f"{prefix}{name}": price * hours for prefix, price in parts}


def hours_of(form: Table, plans: Table, results: Table, catalog: Catalog) -> list[Hours]:
    """Hourly cost of the accelerators of each plan, by the payment of a form."""
    ownership = evaluate_ownership(plans, catalog, results=results)
    return [_hours(form, results.take([row]), ownership.take([row])) for row in range(len(plans))]


def _hours(form: Table, results: Table, ownership: Table) -> Hours:
    payment = str(form.filled("payment")[0])
    listed, basis = float(results.number("accelerator_hour_cost")[0]), str(results["cost_basis"][0])
    owned, server = float(ownership.number("hour_cost")[0]), str(ownership["server"][0])
    lacking = str(ownership["reason"][0]) if payment in (OWN, BOTH) and owned != owned else ""
    words = price_words(float(form.number("hour_price")[0]), basis)
    by_server = f"owned, by the sheet servers: {server}" if owned == owned else "no owner known"
    if payment == OWN:
        return Hours(owned, listed if basis == "rent" else np.nan, owned, by_server, lacking, ownership)
    words = f"{words}; {by_server}" if payment == BOTH else words
    if basis == "rent" and float(form.number("energy_price")[0]) >= 0.0:
        words += "; a rent includes energy, the energy price moves the owned cost alone"
    return Hours(listed, listed if basis == "rent" else np.nan, owned, words, lacking, ownership)


def cost_words(form: Table, hours: Hours, amount: float, per: str = "") -> str:
    """A cost in words, as paid or both ways side by side: `` for $0.41 per token rented or $0.35 owned``."""
    payment = str(form.filled("payment")[0])
    paid, owned = hours.paid * amount, hours.owned * amount
    if payment == OWN or paid != paid:
        return f" for {dollars(owned)}{per} owned" if payment != RENT and owned == owned else ""
    both = payment == BOTH and owned == owned
    beside = "rented" if hours.rented == hours.rented else "by the sheet prices"
    return f" for {dollars(paid)}{per}" + (f" {beside} or {dollars(owned)} owned" if both else "")


def lacking_words(hours: Hours) -> str:
    """A sentence on a requested but unknown cost; "" if it is known."""
    return f" What owning costs is not known: {hours.lacking}." if hours.lacking else ""


def people(users: float) -> str:
    """Users in words, a mean of few with two digits.

    >>> people(10_000.0), people(1.0), people(1.43)
    ('10,000 users', '1 user', '1.4 users')
    """
    return f"{users:.2g} user{'s' * (users != 1.0)}" if users < 9.5 else f"{users:,.0f} users"


def copy_words(form: Table, answer: Answer) -> str:
    """The users of one copy, if a form gives its size and the fleet has several."""
    is_given = form.number("num_accelerators")[0] == answer["copy_size"]
    many = f", {answer['concurrency']:,.0f} on each copy of {answer['copy_size']:,.0f},"
    return many if is_given and answer["copies"] > 1.0 else ""


def against_api(form: Table, catalog: Catalog, result: Answer, per_user: float) -> Answer:
    """The cheapest API that sells the model of a form, and the load from which the fleet of an answer is cheaper.

    ``per_user``: output of a full copy for each of its users. [token/s]
    """
    table = catalog.tables["api_prices"]
    model = catalog.rows("models", form.text("model")[:1], form, "model")
    rows = np.flatnonzero(catalog.known_rows("models", table.text("model")) == model)
    if not len(rows):
        return {}
    prompt, generated = (float(form.number(name)[0]) for name in ("prompt_length", "output_length"))
    prompt += result["image_tokens_per_request"]
    paid, sold = table.number("input_price")[rows], table.number("output_price")[rows]
    each = sold + paid * prompt / generated
    best = int(np.argmin(each))
    price, row = float(each[best]), rows[best]
    hour, size, load = (result[name] for name in ("hour_price", "copy_size", "concurrency"))
    users = float(break_even_load(hour, size, result["server_size"], load, per_user * price))
    users = users if np.isfinite(users) else np.nan
    tokens = users * per_user * DAY
    provider = str(table.text("provider")[row])
    asked = f"{dollars(float(paid[best]) * MILLION)} in and {dollars(float(sold[best]) * MILLION)} out"
    api = f"{provider}'s API of {table.text('model')[row]} at {asked} per million tokens"
    cost, output = dollars(price * MILLION), "per million output tokens with their prompts"
    if hour != hour:
        words = f"{api} costs {cost} {output}."
    elif users != users:
        least = dollars(hour * size / (per_user * load) * MILLION)
        words = f"At no load is this cheaper than {api}: {least} against {cost} {output} at best."
    else:
        many = f"{users:,.0f} users in flight or {tokens / MILLION:,.0f} M output tokens a day"
        own = dollars(result["fleet_cost_per_million_output_tokens"] * MILLION)
        words = f"From {many} on, this is cheaper than {api}: here {own} against {cost} {output}."
        if result["fleet_cost_per_million_output_tokens"] > price:
            words = f"{api} costs less here: {cost} against {own} {output}. From {many} on, this is cheaper."
    return {
        "api_price": str(table.text("api_price")[row]),
        "api_provider": provider,
        "api_answer": words,
        "api_cost_per_million_output_tokens_all_in": price,
        "break_even_users": users,
        "api_monthly_cost": price * result["tokens_per_second"] * float(form.filled("hours_per_month")[0]),
        "break_even_tokens_per_day": tokens,
    }


MANY_USERS = 100_000.0
"""Requests in flight of a fleet so large that fractions of servers do not affect the choice of its copy. [-]"""
_FIRST_FED = 256.0  # accelerators of the first mapping, which gives the power of one [-]
NEARLY_FULL = 0.98  # share of the users of a divisible fleet from which on whole copies leave no power to search [-]
WELL_FILLED = 0.9  # likewise after a search for the size that fits [-]
SHARES_OF_POWER = (1.0, 0.5, 0.25), (0.5, 0.125)
"""Sizes of fleets that are searched for copies which fit into a power limit, over the whole limit: below and above
:data:`MANY_USERS`. After one that draws more than the limit comes the size that its power points to. [-]
"""


class FleetSize(NamedTuple):
    """A fleet in whole copies and servers."""

    users: float  # requests in flight of the fleet [-]
    load: float  # largest number of one copy [-]
    size: float  # accelerators of a copy [-]
    server: float  # accelerators of one purchase [-]
    prefill: float  # accelerators of another kind in a copy [-]
    prefill_server: float  # as ``server`` [-]
    each: float  # power from the grid of one accelerator with its share of server and building [W]
    pooled: bool  # whether pools are separate: they grow by replicas, not by copies
    longer: float  # factor on the time per token in the case of the catalog [-]
    encode_load: float  # accelerators that encode the images of a copy's requests, if they do nothing else [-]

    def whole(self, further: float = 1.0) -> tuple[float, tuple[float, float]]:
        """Copies, and accelerators of both kinds in whole servers, if a copy takes ``further`` times as long."""
        copies = self.users / self.load * further
        grows = self.pooled and further * self.longer != 1.0
        copies = copies if grows else float(np.ceil(copies * (1.0 - 1e-9)))
        return copies, self.in_servers(copies)

    def in_servers(self, copies: float) -> tuple[float, float]:
        """Accelerators of both kinds in the whole servers of some copies. [-]"""
        own = copies * (self.size - self.prefill) + self.encoders(copies)
        counts = (own, self.server), (copies * self.prefill, self.prefill_server)
        main, prefill = (float(np.ceil(count / server * (1.0 - 1e-9)) * server) for count, server in counts)
        return main, prefill

    def encoders(self, copies: float) -> float:
        """Accelerators that encode the images of some copies and nothing else. [-]"""
        return float(encode_pool_size(copies * self.encode_load)) if self.encode_load else 0.0

    def copies_in(self, kinds: tuple[float, float]) -> float:
        """Whole copies that some accelerators of both kinds make. [-]"""
        each = self.size - self.prefill, self.prefill
        copies = min(
            float(np.floor(kind / needed * (1.0 + 1e-9))) for kind, needed in zip(kinds, each, strict=True) if needed
        )
        while copies * each[0] + self.encoders(copies) > kinds[0] * (1.0 + 1e-9):
            copies -= 1.0
        return copies

    @property
    def accelerators(self) -> float:
        """Accelerators of whole servers. [-]"""
        return sum(self.whole()[1])

    @property
    def servers(self) -> float:
        """Whole servers. [-]"""
        main, prefill = self.whole()[1]
        return main / self.server + prefill / self.prefill_server

    @property
    def power(self) -> float:
        """Power from the grid at full load. [W]"""
        return self.accelerators * self.each

    def accelerators_within(self, limit: float) -> float:
        """Accelerators of whole servers that a power [W] feeds. [-]"""
        if self.prefill:
            return sum(self.in_servers(self._copies_within(limit)))
        return float(accelerators_for_power(limit * (1.0 + 1e-9), self.each, 1.0, self.server))

    def users_within(self, limit: float) -> float:
        """Requests in flight that whole copies serve within a power [W]. [-]"""
        return self._copies_within(limit) * self.load

    def _copies_within(self, limit: float) -> float:
        copies = float(np.floor(limit / (self.each * self.size) * (1.0 + 1e-9)))
        while copies > 0.0 and sum(self.in_servers(copies)) * self.each > limit * (1.0 + 1e-9):
            copies -= 1.0
        return copies


def is_pooled(plan: Table) -> bool:
    """Whether a plan has separate pools."""
    return str(plan["mode"][0]) == fleet_plans.TWO


def sized(fleet: fleet_plans.Fleet, catalog: Catalog) -> FleetSize:
    """The size of a fleet in the case of a catalog: a slower copy serves fewer users at the requested speed."""
    plan, results = fleet.plan, fleet.results
    size, load = (float(plan.number(name)[0]) for name in (fleet_plans.COUNT, fleet_plans.LOAD))
    longer, pooled = slower(results, "tpot", catalog), is_pooled(plan)
    machines = fleet_plans.Machines.of(plan, str(plan.text("prefill_accelerator")[0]), catalog, False)
    server = size if fleet_plans.in_slices(plan, catalog) and not pooled else machines.own.server
    prefill = float(machines.counts(plan, np.ones(1))[1][0])
    each = float(results.number("grid_power")[0]) / size
    encoding = float(results.number("encode_load")[0])
    servers = server, prefill, machines.prefill.server
    return FleetSize(fleet.users, load / longer, size, *servers, each, pooled, longer, encoding)


def as_asked(form: Table, fleets: list[fleet_plans.Fleet], catalog: Catalog) -> list[fleet_plans.Fleet]:
    """Fleets with a copy at its share of the requests in flight, unless the form states it: it may be far from full."""
    loads = np.array([float(fleet.plan.number(fleet_plans.LOAD)[0]) for fleet in fleets])
    shares = fleet_plans.shared_loads(np.array([fleet.users for fleet in fleets]), loads)
    rows = np.flatnonzero((shares < loads) & np.isnan(form.number(fleet_plans.LOAD)[0]))
    if not len(rows):
        return fleets
    plans = with_columns(stacked([fleets[row].plan for row in rows]), concurrency=shares[rows])
    results, shown = evaluate(plans, catalog), list(fleets)
    for place, row in enumerate(rows):
        own = results.take([place])
        fleet, sooner = fleets[row], 1.0
        if not np.isnan(form.number("request_rate")[0]):
            sooner = own.stated("latency") / fleet.results.stated("latency")
        shown[row] = fleet._replace(plan=plans.take([place]), results=own, users=fleet.users * sooner)
    return shown


_EXTRAPOLATED = "EXTRAPOLATED"


def nearer_measured(fleets: list[fleet_plans.Fleet], way: int, accelerator: str) -> str:
    """A sentence on the cheapest way near measured runs, if the shown way is far from them."""
    badges = [str(fleet.results["trust"][0]) for fleet in fleets]
    if badges[way - 1] != _EXTRAPOLATED:
        return ""
    near = next((place for place, badge in enumerate(badges) if badge != _EXTRAPOLATED), None)
    if near is None:
        return " No measured run is near this way or any other: treat it as an estimate."
    there = f"{fleets[near].accelerators:,.0f} {accelerator} with {fleets[near].words}"
    return f" No measured run is near this way; some are near {there}."


_CHEAPER = 0.95  # ratio of costs of a token at one bill from which on an answer says why the lower one comes later [-]


def tokens_of(fleet: fleet_plans.Fleet) -> float:
    """Output tokens of a fleet. [token/s]"""
    return fleet.users / fleet.plan.stated(fleet_plans.LOAD) * fleet.results.stated("tokens_per_second")


def at_same_bill(fleets: list[fleet_plans.Fleet]) -> str:
    """A sentence on a way that makes more tokens at the bill of the first, and why it comes later."""
    first = fleets[0]
    best = max((fleet for fleet in fleets if fleet.price <= first.price * (1.0 + fleet_plans.ROUND)), key=tokens_of)
    ratio = tokens_of(first) / tokens_of(best)
    if not ratio <= _CHEAPER:
        return ""
    why = f"in copies of {best.plan.stated('num_accelerators'):,.0f}"
    if best.order[1] != first.order[1]:
        why = "further from measured runs"
    elif best.used > first.used:
        why = f"on {best.used:,.0f} accelerators in use, not {first.used:,.0f}"
    return f" At the same bill a token costs {percent(1.0 - ratio, 0)} less with {best.words}, {why}."


def used_shares(form: Table, results: Table) -> dict[str, float]:
    """Shares of the memory and of the targets of a form that a copy uses."""
    late = results.stated("ttft") / form.number("ttft_target")[0]
    return {
        "memory_used": results.stated("memory") / results.stated("memory_capacity"),
        "speed_used": results.stated("tpot") * float(form.filled("speed_per_user")[0]),
        "ttft_used": float(np.nan_to_num(late)),
    }


def with_encoders(fleets: list[fleet_plans.Fleet], catalog: Catalog) -> list[fleet_plans.Fleet]:
    """Fleets with the accelerators that encode images alone, the cheapest first; as they are without."""
    if not any(fleet.results.number("encode_load")[0] > 0.0 for fleet in fleets):
        return fleets
    return sorted((_with_users(fleet, fleet.users, catalog) for fleet in fleets), key=lambda fleet: fleet.order)


def filling(fleets: Sequence[fleet_plans.Fleet], limit: float, catalog: Catalog) -> list[fleet_plans.Fleet]:
    """Fleets resized to the power of a facility [W], the one with most users first."""
    most = [(fleet, sized(fleet, catalog).users_within(limit)) for fleet in fleets]
    results = [_with_users(fleet, users, catalog) for fleet, users in most if users > 0.0]
    return sorted(results, key=lambda fleet: -fleet.users)


def filling_copy(fleets: Sequence[fleet_plans.Fleet], catalog: Catalog) -> list[fleet_plans.Fleet]:
    """Fleets resized to one copy at its largest load, the one with most users first."""
    results = [_with_users(fleet, float(fleet.plan.number(fleet_plans.LOAD)[0]), catalog) for fleet in fleets]
    return sorted(results, key=lambda fleet: -fleet.users)


def serving(fleet: fleet_plans.Fleet, demand: fleet_plans.Demand, catalog: Catalog) -> fleet_plans.Fleet:
    """A fleet of the same copies that serves a demand."""
    users = demand.rate * float(fleet.results.number("latency")[0]) if demand.is_rate else demand.users
    return _with_users(fleet, users, catalog)


def _with_users(fleet: fleet_plans.Fleet, users: float, catalog: Catalog) -> fleet_plans.Fleet:
    """A fleet of the same copies for a number of requests in flight."""
    result = fleet._replace(users=users)
    size = sized(result, catalog)
    count = size.accelerators
    price = fleet.price / fleet.accelerators * count
    return result._replace(used=size.whole()[0] * size.size, accelerators=count, price=price)


def in_power(form: Table, size: FleetSize, request_rate: float) -> Answer:
    """Accelerators, requests in flight and requests per second within the facility power limit of a form, if any."""
    limit = float(form.number("facility_power_limit")[0])
    if limit != limit:
        return {}
    users = size.users_within(limit)
    rate = request_rate * users / size.users
    most = size.accelerators_within(limit)
    return {"accelerators_in_power": most, "users_in_power": users, "request_rate_in_power": rate}


def power_words(form: Table, answer: Answer) -> str:
    """A sentence on the power of an answer under the facility power limit of its form; "" without a limit."""
    limit = float(form.number("facility_power_limit")[0])
    if limit != limit:
        return ""
    most = f"which feeds up to {answer['users_in_power']:,.0f} users in flight this way"
    return f" It draws {rounded(answer['power'] / MILLION)} MW of {megawatts(limit)}, {most}."


def beyond_power(form: Table, ways: Sequence[Answer], filled: Answer) -> Answer:
    """An answer beyond the facility power limit: the reason, the size within the limit, and a remedy.

    ``filled``: answer with the most users that the limit feeds, if it was searched.
    """
    limit = float(form.number("facility_power_limit")[0])
    least = min(ways, key=lambda way: float(way["power"]))
    most = max(ways, key=lambda way: float(way["users_in_power"]))
    if filled.get("users", 0.0) > most["users_in_power"]:
        most = most | {f"{name}_in_power": filled[name] for name in ("accelerators", "users", "request_rate")}
    name = short_name(str(form.text("accelerator")[0]))
    power, users = float(least["power"]), float(most["users_in_power"])
    fits = f"{users:,.0f} users in flight on {most['accelerators_in_power']:,.0f} {name} fit in it"
    fits = fits if users > 0.0 else f"no copy fits in it: {name} come in servers of {most['server_size']:,.0f}"
    reason = (
        f"{least['accelerators']:,.0f} {name} for {least['users']:,.0f} users in flight draw {megawatts(power)} MW at "
        f"least, {power / limit:,.3g} times the facility power limit of {megawatts(limit)} MW; {fits}; or give "
        f"{megawatts(power)} MW, fewer users, less speed per user or another accelerator"
    )
    names = ("accelerators_in_power", "users_in_power", "request_rate_in_power")
    return no_answer(reason) | {name: most[name] for name in names}


MOST_FED, _FINER = 6, 3  # most numbers of accelerators to map for a facility power limit, coarse and finer [-]


def fastest_fed(limit: float, every: Array, counts: Array, mapped: Callable[[float], Search]) -> Search:
    """The fastest run on about the most accelerators that a power [W] feeds, or else the last run tried.

    ``counts``: coarse numbers of accelerators among ``every`` candidate, both ascending [-]. ``mapped``: gives the best
    mapping on a number of accelerators. The power per accelerator depends on its work, so the power at one number
    determines the next; then come the largest numbers above the best coarse one.
    """
    tried: dict[int, Search] = {}
    best, place = -1, int(np.searchsorted(counts, _FIRST_FED, side="right")) - 1
    while max(place, 0) not in tried and len(tried) < MOST_FED:
        place = max(place, 0)
        result = tried[place] = mapped(float(counts[place]))
        if result.kind == GOOD:
            power = _drawn(result)
            best = max(best, place) if power <= limit else best
            place = int(np.searchsorted(counts, limit / power * counts[place], side="right")) - 1
        else:
            place = place // 2 if result.kind == ILLEGAL else int(np.searchsorted(counts, 4.0 * counts[place]))
        if max(place, 0) in tried and best < 0:
            place = min(tried) - 1
    if best < 0:
        return result
    most = limit / _drawn(tried[best]) * counts[best]
    finer = every[(every > counts[best]) & (every <= most)][::-1][:_FINER].tolist()
    runs = [*tried.values(), *map(mapped, finer)]
    fed = [run for run in runs if run.kind == GOOD and _drawn(run) <= limit]
    return min(fed, key=lambda run: float(run.results.number("run_time")[0]))


def _drawn(run: Search) -> float:
    return float(run.results.number("grid_power")[0])


def run_beyond_power(form: Table, answer: Answer, fed: Answer) -> Answer:
    """A run beyond the facility power limit: the reason, the run ``fed`` that is within the limit, and a remedy."""
    limit, power = float(form.number("facility_power_limit")[0]), float(answer["power"])
    name = short_name(str(form.text("accelerator")[0]))
    fits, numbers = "no number of them fits in it", {}
    if fed and float(fed["power"]) <= limit:
        fits = f"{fed['accelerators']:,.0f} {name} fit in it and take {fed['run_time'] / DAY:,.1f} days"
        numbers = {"accelerators_in_power": fed["accelerators"], "run_time_in_power": fed["run_time"]}
    return numbers | no_answer(
        f"{answer['accelerators']:,.0f} {name} draw {megawatts(power)} MW, {power / limit:,.3g} times the facility "
        f"power limit of {megawatts(limit)} MW; {fits}; or give {megawatts(power)} MW, more days or another accelerator"
    )


def megawatts(power: float) -> str:
    """A power [W] in megawatts, rounded up to three digits so that the stated number suffices.

    >>> megawatts(123_410.0), megawatts(2e6)
    ('0.124', '2')
    """
    value = power / MILLION
    step = float(f"1e{int(f'{value:e}'.partition('e')[2]) - 2}")
    return f"{np.ceil(value / step * (1.0 - 1e-9)) * step:.6g}"


def seconds_words(time: float) -> str:
    """A time with three significant digits.

    >>> seconds_words(0.001), seconds_words(11.684)
    ('0.001 s', '11.7 s')
    """
    return f"{np.format_float_positional(time, 3, fractional=False, trim='-')} s"


_LIMITS = {
    "memory_used": "memory is the limit",
    "speed_used": "the speed per user is the limit",
    "ttft_used": "the time to the first token is the limit",
}


def limit_words(shares: dict[str, float], roomy: bool) -> str:
    """What a full copy lacks first by its used shares; of a ``roomy`` fleet, that servers are bought whole."""
    return "a whole server is the least" if roomy else _LIMITS[max(_LIMITS, key=lambda name: shares[name])]
