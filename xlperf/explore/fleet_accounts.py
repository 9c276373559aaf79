"""Accounts of a plan over years: cash, energy and tokens by year, and accelerators by year and generation."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.units import YEAR
from xlperf.catalog.table import Table
from xlperf.explore.fleet_programme import Plan, Programme

PARTS = ("purchases", "rent", "upkeep", "building", "energy", "unmet_cost")
"""Payments of a year; with the resale they are its cash."""


def year_names(first_year: int, years: int) -> np.ndarray:
    """Names of the years."""
    return np.array([str(first_year + year) for year in range(years)], dtype=object)


def year_accounts(programme: Programme, plan: Plan, first_year: int) -> dict[str, np.ndarray]:
    """Columns of ``fleet_years``, (years,)."""
    generations, years, columns = programme.generations, programme.years, np.zeros(programme.years)
    money = {name: columns.copy() for name in (*PARTS, "resale", "depreciation")}
    owned, power = columns.copy(), columns.copy()
    for vintage, servers in zip(programme.vintages, plan.owned, strict=True):
        generation = generations[vintage.generation]
        count = servers * generation.server
        there = np.nan_to_num(vintage.there) * generation.server
        if there:  # servers of the owner that are sold at once are a resale before the first year ends
            money["purchases"][0] -= (there - count[0]) * vintage.price
        else:
            money["purchases"][vintage.start] += count[vintage.start] * np.nan_to_num(vintage.price)
        value = np.nan_to_num(vintage.value)
        money["resale"] += (count - np.append(count[1:], 0.0)) * value
        for name in ("upkeep", "building", "energy", "depreciation"):
            money[name] += count * np.where(count > 0.0, getattr(vintage, name), 0.0)
        owned, power = owned + count, power + count * generation.power
    rented = plan.rented * np.array([each.server for each in generations])[:, None]
    rents = np.array([np.nan_to_num(each.rent) for each in generations])
    money["rent"] = (rented * rents).sum(axis=0)
    money["unmet_cost"] = plan.unmet * np.nan_to_num(programme.unmet_price)
    discounts = programme.discounts
    later = sum((money[name] for name in PARTS[1:]), -money["resale"])
    return {
        "year": year_names(first_year, years),
        "demand": programme.demand,
        "unmet": plan.unmet,
        "owned": owned,
        "rented": rented.sum(axis=0),
        "power": power,
        **money,
        "cash": money["purchases"] + later,
        "present_cost": money["purchases"] * discounts[:-1] + later * discounts[1:],
        "tokens": served_tokens(programme, plan),
    }


def served_tokens(programme: Programme, plan: Plan) -> Array:
    """Output tokens of each year; copies of all kinds are loaded alike."""
    capacity, tokens = (
        np.array([getattr(copy, name) for _, copy in programme.copies]) for name in ("capacity", "tokens")
    )
    room = (capacity[:, None] * plan.copies).sum(axis=0)
    load = (programme.demand - plan.unmet) / np.where(room > 0.0, room, np.inf)
    return np.asarray((tokens[:, None] * plan.copies).sum(axis=0) * load * YEAR)


def machine_accounts(programme: Programme, plan: Plan, first_year: int) -> Table:
    """The table ``fleet_machines``: a row per year and accelerator that is owned or rented in it."""
    lines = []
    kinds = [place for place, _ in programme.copies]
    for year in range(programme.years):
        for place, generation in enumerate(programme.generations):
            own = [
                (vintage, servers * generation.server)
                for vintage, servers in zip(programme.vintages, plan.owned, strict=True)
                if vintage.generation == place
            ]
            owned = sum(count[year] for _, count in own)
            bought = sum(count[year] for each, count in own if each.start == year and each.there != each.there)
            rented = plan.rented[place, year] * generation.server
            sold = retired = 0.0
            for vintage, count in own:
                gone = max(count[year] - count[year + 1], 0.0) if year + 1 < programme.years else 0.0
                worth = np.nan_to_num(vintage.value[year]) > 0.0
                sold, retired = sold + gone * worth, retired + gone * (not worth)
            if not (owned or rented):
                continue
            copies = sum(plan.copies[kind, year] for kind, of in enumerate(kinds) if of == place)
            lines.append({
                "year": str(first_year + year), "accelerator": generation.name, "bought": bought,
                "kept": owned - bought, "rented": rented, "sold": sold, "retired": retired, "copies": copies,
                "power": owned * generation.power,
            })  # fmt: skip
    return Table.of_lines("fleet_machines", lines)
