"""Purchase prices of accelerators: their rows of servers and chiplets, or those of their device."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import MARK, Table, columns_of
from xlperf.engine.devices import accelerators_of, design_of_devices, evaluate_designs
from xlperf.engine.stated_prices import with_stated
from xlperf.equations.cost.servers import server_terms
from xlperf.equations.cost.tokens import Terms


def first_rows(table: Table, catalog: Catalog, accelerator: np.ndarray, word: str = "") -> np.ndarray:
    """First row of servers or chiplets for each accelerator with a word in its name; -1 without one."""
    first: dict[int, int] = {}
    if len(table):
        accelerators = catalog.known_rows("accelerators", table.text("accelerator")).tolist()
        names = table.text(table.schema.key.name).tolist()
        for row, (known, name) in enumerate(zip(accelerators, names, strict=True)):
            if known >= 0 and word.casefold() in str(name).casefold():
                first.setdefault(known, row)
    return np.array([first.get(row, -1) for row in accelerator.tolist()], dtype=np.int64)


_BY_DEVICE = " by its device"  # suffix of the names of rows of derived accelerators


def first_or_device_rows(table: Table, catalog: Catalog, accelerator: np.ndarray, word: str = "") -> np.ndarray:
    """As :func:`first_rows`, else the row of the accelerator's device; -1 without one."""
    rows = first_rows(table, catalog, accelerator, word)
    by_device = first_rows(table, catalog, accelerator, _BY_DEVICE) if word and (rows < 0).any() else rows
    return np.where(rows < 0, by_device, rows)


def _derived(catalog: Catalog, kind: str) -> tuple[np.ndarray, Table]:
    """Derived accelerators with a cost and without a row of a sheet, and that sheet."""
    table, accelerators = catalog.tables[kind], catalog.tables["accelerators"]
    every = np.arange(len(accelerators))
    lacking = (accelerators.text("device") != "") & (first_rows(table, catalog, every) < 0)
    if not lacking.any():
        return np.flatnonzero(lacking), table
    return np.flatnonzero(lacking & ~np.isnan(accelerators_of(catalog).price)), table


def _with_rows(table: Table, columns: Mapping[str, np.ndarray], number: int) -> Table:
    """A sheet with further rows, blank in columns that are not given."""
    extended = {}
    for name in (*table.columns, *(name for name in columns if name not in table.columns)):
        blank, dtype = ("", object) if table.schema.by_name[name].is_text else (np.nan, float)
        before = table.columns.get(name)
        before = np.full(len(table), blank, dtype=dtype) if before is None else before
        extended[name] = np.concatenate([before, columns.get(name, np.full(number, blank, dtype=dtype))])
    return Table(table.kind, extended, table.place)


def rows_by_device(catalog: Catalog, kind: str, accelerators: np.ndarray) -> Table:
    """The sheet prices or servers with a row for each derived accelerator without one; its device fills the blanks."""
    table = catalog.tables[kind]
    distinct = np.unique(accelerators)
    rows = catalog.price_rows[distinct] if kind == "prices" else first_rows(table, catalog, distinct)
    lacking = distinct[(rows < 0) & (catalog.tables["accelerators"].text("device")[distinct] != "")]
    if not len(lacking):
        return table
    names = catalog.tables["accelerators"].text("accelerator")[lacking]
    if kind == "prices":
        return _with_rows(table, {"price": names}, len(names))
    keys = np.array([f"{name}{_BY_DEVICE}" for name in names.tolist()], dtype=object)
    return _with_rows(table, {"server": keys, "accelerator": names}, len(names))


def _by_device(servers: Table, catalog: Catalog) -> Table:
    """Servers whose rows of derived accelerators have their blanks filled by the device."""
    rows = [row for row, name in enumerate(servers.text("server").tolist()) if name.split(MARK)[0].endswith(_BY_DEVICE)]
    if not rows:
        return servers
    accelerators = accelerators_of(catalog)
    at = catalog.known_rows("accelerators", servers.text("accelerator")[rows])
    group = servers.filled("num_accelerators")[rows]
    by_device = {
        "accelerator_price": accelerators.price[at],
        "server_price": group * (accelerators.capex - accelerators.price)[at],
        "server_power": group * accelerators.server_power[at],
    }
    columns = dict(servers.columns)
    for name, values in by_device.items():
        filled = servers.number(name).copy()
        filled[rows] = np.where(np.isnan(filled[rows]), values, filled[rows])
        columns[name] = filled
    return Table(servers.kind, columns, servers.place)


def with_chip_prices(servers: Table, catalog: Catalog, case: str = "base") -> Table:
    """Servers with blank accelerator prices filled by the sale price of the chiplets row or the device."""
    servers = _by_device(servers, catalog)
    blank = np.flatnonzero(np.isnan(servers.number("accelerator_price")))
    if not len(blank):
        return servers
    accelerators = catalog.known_rows("accelerators", servers.text("accelerator")[blank])
    designs = chiplets_of(catalog)
    rows = first_or_device_rows(designs, catalog, accelerators)
    price = servers.number("accelerator_price").copy()
    if len(designs):
        price[blank] = columns_of(evaluate_designs(designs, catalog, case), rows).sale_price
    return Table(servers.kind, {**servers.columns, "accelerator_price": price}, servers.place)


def server_priced(
    catalog: Catalog,
    accelerators: np.ndarray,
    power_limit: Array,
    plans_of: Callable[[np.ndarray], Table] | None = None,
) -> tuple[np.ndarray, Terms]:
    """Positions of accelerators that a row of servers prices, and their terms in it.

    ``plans_of``: plans at some of the positions, whose stated energy prices count.
    """
    servers = catalog.tables["servers"]
    rows = first_rows(servers, catalog, accelerators)
    known = np.flatnonzero(rows >= 0)
    if not len(known):
        return known, Terms(*np.zeros((5, 0)))
    with np.errstate(divide="ignore", invalid="ignore"):
        server = columns_of(with_chip_prices(servers.take(rows[known]), catalog))
        server = server if plans_of is None else with_stated(server, plans_of(known))
        return known, server_terms(server, power_limit[known])


def servers_of(catalog: Catalog) -> Table:
    """The sheet servers, with a row for each derived accelerator without one."""
    rows, _ = _derived(catalog, "servers")
    return with_chip_prices(rows_by_device(catalog, "servers", rows), catalog)


def chiplets_of(catalog: Catalog) -> Table:
    """The sheet chiplets, with a row for each derived accelerator without one: the module of its device."""
    rows, table = _derived(catalog, "chiplets")
    if not len(rows):
        return table
    accelerators, devices = catalog.tables["accelerators"], catalog.tables["devices"]
    of_rows = catalog.known_rows("devices", accelerators.text("device")[rows])
    made = dict(design_of_devices(devices.take(of_rows), catalog, table).columns)
    names = accelerators.text("accelerator")[rows]
    made["chiplet"] = np.array([f"{name}{_BY_DEVICE}" for name in names.tolist()], dtype=object)
    return _with_rows(table, {**made, "accelerator": names}, len(rows))
