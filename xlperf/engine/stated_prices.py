"""Prices that plans state themselves, in place of those of the sheets prices and servers."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Columns
from xlperf.catalog.table import Table

# Columns of plans that replace columns of the same name of the sheets prices and servers
OF_ENERGY = ("energy_price", "power_usage_effectiveness", "carbon_intensity")
PLAN_PRICES = ("hour_price", *OF_ENERGY)  # columns of plans that replace prices of the catalog


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
