"""What accelerators of plans cost and draw: by the sheets prices and servers, or as the plans state themselves."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Columns
from xlperf.base.units import YEAR
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.catalog_arrays import catalog_arrays
from xlperf.engine.stated_prices import OF_ENERGY, with_stated
from xlperf.equations.cost.tco import accelerator_cost_rate, building_power
from xlperf.equations.cost.tokens import Terms


class Priced(NamedTuple):
    """What the accelerator of each plan costs and draws at full load, and whether it is rented, (rows,)."""

    terms: Terms
    rented: np.ndarray


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
