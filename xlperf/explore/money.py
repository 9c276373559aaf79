"""Money of answers: rented and owned hours, prices that a form states, and how a fleet is paid."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.ownership import evaluate_ownership
from xlperf.engine.stated_prices import PLAN_PRICES
from xlperf.explore.fleet_plans import with_columns
from xlperf.explore.search_results import Answer, dollars, price_words

OWN, BOTH = "own", "both"


def stated_prices(form: Table) -> dict[str, float]:
    """The hour price, energy price, PUE and grid carbon that a form states, as columns of its plan.

    ``form``: one row of kind ``serve`` or ``train``. Raises InputError if it states a rent and asks for owners alone.
    """
    stated = {name: float(form.number(name)[0]) for name in PLAN_PRICES}
    stated = {name: value for name, value in stated.items() if value == value}
    if "hour_price" in stated and form.filled("payment")[0] == OWN:
        problem = "hour price is a rent: leave it auto or blank with payment own, or write payment rent or both"
        raise InputError(Fault(form.place(0, "hour_price"), problem))
    return stated


def with_prices(plans: Table, form: Table) -> Table:
    """Plans with the prices that a form states, as :func:`stated_prices` has them."""
    stated = stated_prices(form)
    return with_columns(plans, **stated) if stated else plans


class Hours(NamedTuple):
    """Cost of one accelerator, [USD/s]: as it is paid, rented and owned; NaN where it is not known.

    ``basis`` says how it is paid, ``lacking`` why what is asked for is not known; "" where it is. ``ownership`` is the
    plan as its owner has it, one row.
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
        """A cost as it is paid, rented and owned, by name, of so many hours of one accelerator [s]."""
        parts = (("", self.paid), ("rented_", self.rented), ("owned_", self.owned))
        return {f"{prefix}{name}": price * hours for prefix, price in parts}


def hours_of(form: Table, plan: Table, results: Table, catalog: Catalog) -> Hours:
    """What an hour of the accelerators of a plan costs, by the payment that a form asks for.

    ``plan``, ``results``: one row, the plan with the prices of the form.
    """
    payment = str(form.filled("payment")[0])
    listed, basis = float(results.number("accelerator_hour_cost")[0]), str(results["cost_basis"][0])
    ownership = evaluate_ownership(plan, catalog, results=results)
    owned, server = float(ownership.number("hour_cost")[0]), str(ownership["server"][0])
    lacking = str(ownership["reason"][0]) if payment in (OWN, BOTH) and owned != owned else ""
    words = price_words(float(form.number("hour_price")[0]), basis)
    by_server = f"owned, by the sheet servers: {server}" if owned == owned else "no owner known"
    if payment == OWN:
        return Hours(owned, listed if basis == "rent" else np.nan, owned, by_server, lacking, ownership)
    words = f"{words}; {by_server}" if payment == BOTH else words
    return Hours(listed, listed if basis == "rent" else np.nan, owned, words, lacking, ownership)


def cost_words(form: Table, hours: Hours, amount: float, per: str = "") -> str:
    """A cost in words, as it is paid or both ways side by side: `` for $0.41 per token rented, $0.35 owned``.

    ``amount``: hours of one accelerator that it takes [s]. ``per``: words behind the first amount.
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
    """A sentence on a cost that is asked for and not known; "" where it is known."""
    return f" What owning costs is not known: {hours.lacking}." if hours.lacking else ""
