"""What accelerators of plans cost and draw: by the sheets prices and servers, or as the plans state themselves."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Columns
from xlperf.base.units import YEAR
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.catalog_arrays import catalog_arrays
from xlperf.equations.cost.tco import accelerator_cost_rate, building_power
from xlperf.equations.cost.tokens import Terms

OF_ENERGY = ("energy_price", "power_usage_effectiveness", "carbon_intensity")
"""Columns of plans that replace columns of the same name of the sheets prices and servers."""
PLAN_PRICES = ("hour_price", *OF_ENERGY)
"""Columns of plans that replace prices of the catalog."""


class Priced(NamedTuple):
    """What the accelerator of each plan costs and draws at full load, and whether it is rented, (rows,)."""

    terms: Terms
    rented: np.ndarray


def with_stated(prices: Columns, plans: Table) -> Columns:
    """Columns of the sheet prices or servers, a row for each plan, with the values that plans state in their place.

    ``prices``: in the units used inside, (rows,). ``plans``: with or without the columns of :data:`OF_ENERGY`.
    """
    stated = {name: plans.number(name) for name in OF_ENERGY if name in plans}
    if not stated:
        return prices

    def read(name: str) -> np.ndarray:
        values = getattr(prices, name)
        own = stated.get(name)
        return np.asarray(values if own is None else np.where(np.isnan(own), values, own))

    return Columns(read)


def priced(plans: Table, catalog: Catalog, accelerators: np.ndarray) -> Priced:
    """What accelerators cost and draw by the catalog, and by the prices that the plans state.

    ``plans``: training or inference plans. ``accelerators``: row of the sheet accelerators for each plan. An hour
    price of a plan counts as a rent: energy is in it.
    """
    arrays = catalog_arrays(catalog, accelerators)
    terms, rented = arrays.terms.take(accelerators), arrays.rented[accelerators]
    if any(name in plans for name in OF_ENERGY):
        price = with_stated(
            Columns(
                lambda name: (arrays.owning[name] if name in arrays.owning else getattr(arrays.terms, name))[
                    accelerators
                ]
            ),
            plans,
        )
        owned = accelerator_cost_rate(
            np.nan, opex_period=YEAR, **{name: getattr(price, name) for name in arrays.owning}
        )
        stated = Terms(
            np.where(rented, terms.cost_rate, owned),
            building_power(price.server_power, price.power_usage_effectiveness),
            price.carbon_intensity,
            terms.accelerator_share,
            np.where(rented, 0.0, price.energy_price),
        )
        by_server = np.flatnonzero(arrays.by_server[accelerators])
        if len(by_server):
            from xlperf.engine.server_prices import server_priced

            own = accelerators[by_server]
            known, found = server_priced(
                catalog, own, arrays.thermal_design_power[own], lambda rows: plans.take(by_server[rows])
            )
            stated = stated.with_rows(by_server[known], found)
        terms = stated
    if "hour_price" in plans:
        hour = plans.number("hour_price")
        given = ~np.isnan(hour)
        terms = terms._replace(
            cost_rate=np.where(given, hour, terms.cost_rate), energy_price=np.where(given, 0.0, terms.energy_price)
        )
        rented = rented | given
    return Priced(terms, rented)
