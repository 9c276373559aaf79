"""What a lowered power limit does, said in words, and carbon of the grid by hour of the day."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, some
from xlperf.base.errors import Fault, InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.cells import shown
from xlperf.catalog.table import Table
from xlperf.equations.cost.tco import daily_mean
from xlperf.equations.hardware.power import PowerLimits
from xlperf.equations.plan.records import Remark


def limit_notes(limits: PowerLimits, idle_power: Array, illegal: np.ndarray) -> list[Remark]:
    """Where a lowered power limit slows long products and to what share of their clock, and where none can keep it.

    ``limits``: of the plans, (rows,). ``idle_power``: with nothing to run, NaN where it is not known, (rows,). [W]
    """
    lowered = ~illegal & (limits.kept < limits.own)
    if not some(lowered):
        return []
    numbers = limits.kept, np.round(100.0 * limits.clock_share), limits.own
    slowed = "power limit {} W: the clock of long products falls to {} % of that at {} W"
    idle = "power limit {} W is below the {} W that it draws with nothing to run: no clock keeps it"
    return [
        Remark(lowered & (limits.clock_share < 1.0), slowed, numbers),
        Remark(lowered & (limits.kept < idle_power), idle, (limits.kept, idle_power)),
    ]


_HOURS = 24


def _by_hour(table: Table, column: str, rows: np.ndarray) -> Array:
    """What the rows of a table say by hour of the day in a column of words, (rows, 24); 1 where they say nothing."""
    found, words = np.ones((len(rows), _HOURS)), table.text(column)
    for place, row in enumerate(rows.tolist()):
        stated = str(words[row]).replace(";", " ").split() if row >= 0 else []
        if not stated:
            continue
        try:
            values = [float(word) for word in stated]
        except ValueError:
            values = []
        if len(values) != _HOURS or not all(0.0 <= value < np.inf for value in values) or not sum(values) > 0.0:
            problem = f"{column.replace('_', ' ')} must be {_HOURS} numbers of 0 or more, got {shown(words[row])}"
            raise InputError(Fault(table.place(row, column), problem))
        found[place] = values
    return found


def run_carbon_share(plans: Table, catalog: Catalog, accelerators: np.ndarray, run_time: Array) -> Array:
    """Carbon of the grid's energy while runs last, over the mean of a day, (rows,). [-]

    ``accelerators``: rows that the plans name; ``run_time`` [s].
    """
    if "start_hour" not in plans or "carbon_by_hour" not in catalog.tables["prices"]:
        return np.ones(len(plans))
    grid = _by_hour(catalog.tables["prices"], "carbon_by_hour", catalog.price_rows[accelerators])
    flat = (grid == grid[:, :1]).all(axis=1)
    return np.where(flat, 1.0, daily_mean(list(grid.T), plans.number("start_hour"), run_time))


def load_carbon_share(plans: Table, catalog: Catalog, accelerators: np.ndarray) -> Array:
    """Carbon of the grid's energy weighted by the load of each hour, over the mean of a day, (rows,). [-]

    ``accelerators``: rows that the plans name.
    """
    if "load_by_hour" not in plans or "carbon_by_hour" not in catalog.tables["prices"]:
        return np.ones(len(plans))
    grid = _by_hour(catalog.tables["prices"], "carbon_by_hour", catalog.price_rows[accelerators])
    load = _by_hour(plans, "load_by_hour", np.arange(len(plans)))
    return np.asarray((grid * load).mean(axis=1) / (grid.mean(axis=1) * load.mean(axis=1)))
