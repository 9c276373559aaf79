"""Cost and power of the plans' accelerators, by the sheets prices and servers or as stated by the plans."""

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
    """Cost and power of each plan's accelerator at full load, and whether it is rented, (rows,)."""

    terms: Terms
    rented: np.ndarray


def priced(plans: Table, catalog: Catalog, accelerators: np.ndarray) -> Priced:
    """Cost and power of accelerators by the catalog and by stated prices; an hour price is a rent, energy included."""
    arrays = catalog_arrays(catalog, accelerators)
    terms, rented = arrays.terms.take(accelerators), arrays.rented[accelerators]
    if any(name in plans for name in OF_ENERGY):
        # Owned accelerators anew, at the stated prices of energy.
        columns = {**arrays.terms._asdict(), **arrays.owning}
        price = with_stated(Columns(lambda name: columns[name][accelerators]), plans)
        owning = {name: getattr(price, name) for name in arrays.owning}
        stated = Terms(
            np.where(rented, terms.cost_rate, accelerator_cost_rate(np.nan, opex_period=YEAR, **owning)),
            building_power(price.server_power, price.power_usage_effectiveness),
            price.carbon_intensity,
            terms.accelerator_share,
            np.where(rented, 0.0, price.energy_price),
        )
        by_server = np.flatnonzero(arrays.by_server[accelerators])
        if len(by_server):
            from xlperf.engine.server_prices import server_priced

            rows = accelerators[by_server]
            limits = arrays.thermal_design_power[rows]
            known, of_servers = server_priced(catalog, rows, limits, lambda known: plans.take(by_server[known]))
            stated = stated.with_rows(by_server[known], of_servers)
        terms = stated
    if "hour_price" in plans:
        hour = plans.number("hour_price")
        given = ~np.isnan(hour)
        terms = terms._replace(
            cost_rate=np.where(given, hour, terms.cost_rate), energy_price=np.where(given, 0.0, terms.energy_price)
        )
        rented = rented | given
    return Priced(terms, rented)
