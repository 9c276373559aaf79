"""Prices stated by plans, which replace prices of the sheets prices and servers."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Columns
from xlperf.catalog.table import Table

OF_ENERGY = ("energy_price", "power_usage_effectiveness", "carbon_intensity")  # columns of plans and of both sheets
PLAN_PRICES = ("hour_price", *OF_ENERGY)


def with_stated(prices: Columns, plans: Table) -> Columns:
    """Columns of the sheet prices or servers, a row for each plan, with the values that plans state
    (:data:`OF_ENERGY`).
    """
    stated = {name: plans.number(name) for name in OF_ENERGY if name in plans}
    if not stated:
        return prices

    def read(name: str) -> np.ndarray:
        values, replacement = getattr(prices, name), stated.get(name)
        return np.asarray(values if replacement is None else np.where(np.isnan(replacement), values, replacement))

    return Columns(read)
