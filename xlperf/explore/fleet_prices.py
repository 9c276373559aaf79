"""Prices of an accelerator over the years of a plan, from its rows of the sheet ``generations``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError
from xlperf.base.units import YEAR
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.prices import servers_of
from xlperf.equations.cost.tco import compounded_price

SHEET = "generations"
_CHANGES = {"price": "price_change", "rental_price": "rental_change"}
"""Columns of prices and their yearly changes."""


class PricePaths:
    """Prices of one accelerator over the years of a plan, from its rows of the sheet ``generations``."""

    def __init__(self, name: str, catalog: Catalog, first_year: int, years: int) -> None:
        table, self.catalog, self.name = catalog.tables[SHEET], catalog, name
        named = [row for row, other in enumerate(table.text("accelerator").tolist()) if other == name]
        at = table.number("price_year")
        self.rows = sorted(named, key=lambda row: float(at[row]))
        self.table, self.years = table, first_year + np.arange(years)
        self.available = float(np.fmin.reduce(table.number("available")[self.rows]))
        self.available = self.available if self.available == self.available else float(at[self.rows[0]])
        self.spread = float(np.fmax.reduce(np.nan_to_num(table.number("release_spread")[self.rows]))) / YEAR
        self.resale_share = float(table.number("resale_share")[self.rows[-1]])

    def servers_year(self) -> float:
        """Year of the prices of the accelerator in the sheet ``servers``; NaN if unknown."""
        return self._year_of(servers_of(self.catalog), "accelerator")

    def prices_year(self) -> float:
        """Year of the rent of the accelerator in the sheet ``prices``; NaN if unknown."""
        return self._year_of(self.catalog.tables["prices"], "price")

    def _year_of(self, table: Table, column: str) -> float:
        rows = [row for row, name in enumerate(table.text(column).tolist()) if name.casefold() == self.name.casefold()]
        return float(table.number("year")[rows[0]]) if rows else np.nan

    def prices(self, column: str, listed: float, listed_year: float) -> Array:
        """Prices of one accelerator in each year; ``listed``: of another sheet where a first row is blank.

        Raises InputError if a year from the release on has no price.
        """
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
