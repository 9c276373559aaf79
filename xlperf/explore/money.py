"""Cost of answers: rented and owned hours, stated prices, payment of a fleet, and API prices for comparison."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.base.units import DAY, MILLION
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.ownership import evaluate_ownership
from xlperf.engine.stated_prices import PLAN_PRICES
from xlperf.equations.cost.tokens import break_even_load
from xlperf.explore.fleet_plans import with_columns
from xlperf.explore.search_results import Answer, dollars, price_words

OWN, BOTH = "own", "both"


def stated_prices(form: Table) -> dict[str, float]:
    """The hour price, energy price, PUE and grid carbon that a form states, as columns of its plan.

    ``form``: one row of kind ``serve`` or ``train``. Raises InputError if it states a rent and asks for ownership only.
    """
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
    """Cost of one accelerator, [USD/s]: as paid, rented and owned; NaN if unknown.

    ``basis``: the kind of payment. ``lacking``: why a requested cost is unknown, or "". ``ownership``: ownership
    results of the plan, one row.
    """

    paid: float
    rented: float
    owned: float
    basis: str
    lacking: str
    ownership: Table

    @property
    def results(self) -> Answer:
        """The hours as results of a form."""
        return {"hour_price": self.paid, "rented_hour_cost": self.rented, "owned_hour_cost": self.owned}

    def costs(self, name: str, hours: float) -> Answer:
        """A cost as paid, rented and owned, by name, of ``hours`` of one accelerator [s]."""
        parts = (("", self.paid), ("rented_", self.rented), ("owned_", self.owned))
        return {f"{prefix}{name}": price * hours for prefix, price in parts}


def hours_of(form: Table, plans: Table, results: Table, catalog: Catalog) -> list[Hours]:
    """Hourly cost of the accelerators of each plan, by the payment of a form.

    ``plans``: with the prices of the form.
    """
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
    return Hours(listed, listed if basis == "rent" else np.nan, owned, words, lacking, ownership)


def cost_words(form: Table, hours: Hours, amount: float, per: str = "") -> str:
    """A cost in words, as paid or both ways side by side: `` for $0.41 per token rented, $0.35 owned``.

    ``amount``: hours of one accelerator [s]. ``per``: words behind the first amount.
    """
    payment = str(form.filled("payment")[0])
    paid, owned = hours.paid * amount, hours.owned * amount
    if payment == OWN:
        return f" for {dollars(owned)}{per} owned" if owned == owned else ""
    if paid != paid:
        return f" for {dollars(owned)}{per} owned" if payment == BOTH and owned == owned else ""
    beside = "rented" if hours.rented == hours.rented else "by the sheet prices"
    return f" for {dollars(paid)}{per}" + (
        f" {beside}, {dollars(owned)} owned" if payment == BOTH and owned == owned else ""
    )


def lacking_words(hours: Hours) -> str:
    """A sentence on a requested but unknown cost; "" if it is known."""
    return f" What owning costs is not known: {hours.lacking}." if hours.lacking else ""


def against_api(form: Table, catalog: Catalog, result: Answer) -> Answer:
    """The cheapest API that sells the model of a form, and the load from which the fleet of an answer is cheaper.

    ``form``: one row of kind ``serve``. ``result``: its answer: price of an hour, copies, servers, tokens per second.
    Returns nothing if the sheet ``api_prices`` lacks the model.
    """
    table = catalog.tables["api_prices"]
    model = str(form.text("model")[0]).casefold()
    rows = np.flatnonzero([str(name).casefold() == model for name in table.text("model").tolist()])
    if not len(rows):
        return {}
    lengths = [float(form.number(name)[0]) for name in ("prompt_length", "output_length")]
    paid, sold = table.number("input_price")[rows], table.number("output_price")[rows]
    each = sold + paid * lengths[0] / lengths[1]
    best = int(np.argmin(each))
    price, provider = float(each[best]), str(table.text("provider")[rows[best]])
    per_user = result["tokens_per_second"] / result["users"]
    users = float(
        break_even_load(
            result["hour_price"], result["copy_size"], result["server_size"], result["concurrency"], per_user * price
        )
    )
    users = users if np.isfinite(users) else np.nan
    tokens = users * per_user * DAY
    answer: Answer = {
        "api_price": str(table.text("api_price")[rows[best]]),
        "api_provider": provider,
        "api_cost_per_million_output_tokens_all_in": price,
        "api_monthly_cost": price * result["tokens_per_second"] * float(form.filled("hours_per_month")[0]),
        "break_even_users": users,
        "break_even_tokens_per_day": tokens,
    }
    asked = " and ".join(
        f"{dollars(float(prices[best]) * MILLION)} {way}" for prices, way in ((paid, "in"), (sold, "out"))
    )
    api = f"{provider}'s API of {table.text('model')[rows[best]]} at {asked} per million tokens"
    if result["hour_price"] != result["hour_price"]:
        answer["api_answer"] = f"{api} costs {dollars(price * MILLION)} per million output tokens with their prompts."
    elif users != users:
        least = result["hour_price"] * result["copy_size"] / (per_user * result["concurrency"])
        answer["api_answer"] = (
            f"At no load is this cheaper than {api}: {dollars(least * MILLION)} against {dollars(price * MILLION)} per "
            f"million output tokens with their prompts at best."
        )
    else:
        answer["api_answer"] = (
            f"From {users:,.0f} users in flight or {tokens / MILLION:,.0f} M output tokens a day on, this is cheaper "
            f"than {api}."
        )
    return answer
