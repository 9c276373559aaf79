"""What accelerators are bought as and at what price: their rows of servers and chiplets, or those of their device."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import MARK, Table, columns_of
from xlperf.engine.devices import accelerators_of, design_of_devices, evaluate_designs
from xlperf.engine.stated_prices import with_stated
from xlperf.equations.cost.ownership import server_terms
from xlperf.equations.cost.tokens import Terms


def first_rows(table: Table, catalog: Catalog, accelerator: np.ndarray, word: str = "") -> np.ndarray:
    """First row of servers or chiplets for each accelerator, whose name holds a word; -1 where there is none."""
    first: dict[int, int] = {}
    if len(table):
        own = catalog.known_rows("accelerators", table.text("accelerator")).tolist()
        for row, (found, name) in enumerate(zip(own, table.text(table.schema.key.name).tolist(), strict=True)):
            if found >= 0 and word.casefold() in str(name).casefold():
                first.setdefault(found, row)
    return np.array([first.get(row, -1) for row in accelerator.tolist()], dtype=np.int64)


_BY_DEVICE = " by its device"  # what names of rows end with that stand for accelerators which follow from a device


def first_or_device_rows(table: Table, catalog: Catalog, accelerator: np.ndarray, word: str = "") -> np.ndarray:
    """As :func:`first_rows`, else the row that an accelerator's device makes; -1 where it has none."""
    rows = first_rows(table, catalog, accelerator, word)
    own = first_rows(table, catalog, accelerator, _BY_DEVICE) if word and (rows < 0).any() else rows
    return np.where(rows < 0, own, rows)


def _derived(catalog: Catalog, kind: str) -> tuple[np.ndarray, Table]:
    """Accelerators that follow from a device with a cost and have no row of a sheet, and that sheet."""
    table, accelerators = catalog.tables[kind], catalog.tables["accelerators"]
    every = np.arange(len(accelerators))
    lacking = (accelerators.text("device") != "") & (first_rows(table, catalog, every) < 0)
    if not lacking.any():
        return np.flatnonzero(lacking), table
    return np.flatnonzero(lacking & ~np.isnan(accelerators_of(catalog).price)), table


def _with_rows(table: Table, columns: Mapping[str, np.ndarray], number: int) -> Table:
    """A sheet with more rows, blank where nothing is given."""
    found = {}
    for name in (*table.columns, *(name for name in columns if name not in table.columns)):
        text = table.schema.by_name[name].is_text
        blank, kept = ("" if text else np.nan), table.columns.get(name)
        dtype = object if text else float
        before = np.full(len(table), blank, dtype=dtype) if kept is None else kept
        found[name] = np.concatenate([before, columns.get(name, np.full(number, blank, dtype=dtype))])
    return Table(table.kind, found, table.place)


def rows_by_device(catalog: Catalog, kind: str, accelerators: np.ndarray) -> Table:
    """The sheet prices or servers with a row for each of some accelerators that follows from a device and has none.

    ``catalog``: with the sheet. ``kind``: which sheet. ``accelerators``: rows of the sheet accelerators. The row leaves
    blank what the device says.
    """
    table = catalog.tables[kind]
    own = np.unique(accelerators)
    rows = catalog.price_rows[own] if kind == "prices" else first_rows(table, catalog, own)
    lacking = own[(rows < 0) & (catalog.tables["accelerators"].text("device")[own] != "")]
    if not len(lacking):
        return table
    names = catalog.tables["accelerators"].text("accelerator")[lacking]
    if kind == "prices":
        return _with_rows(table, {"price": names}, len(names))
    keys = np.array([f"{name}{_BY_DEVICE}" for name in names.tolist()], dtype=object)
    return _with_rows(table, {"server": keys, "accelerator": names}, len(names))


def _by_device(servers: Table, catalog: Catalog) -> Table:
    """Servers whose rows that stand for a device have what follows from it where they are blank."""
    own = [row for row, name in enumerate(servers.text("server").tolist()) if name.split(MARK)[0].endswith(_BY_DEVICE)]
    if not own:
        return servers
    known = accelerators_of(catalog)
    at = catalog.known_rows("accelerators", servers.text("accelerator")[own])
    group = servers.filled("num_accelerators")[own]
    found = {
        "accelerator_price": known.price[at],
        "server_price": group * (known.capex - known.price)[at],
        "server_power": group * known.server_power[at],
    }
    columns = dict(servers.columns)
    for name, values in found.items():
        filled = servers.number(name).copy()
        filled[own] = np.where(np.isnan(filled[own]), values, filled[own])
        columns[name] = filled
    return Table(servers.kind, columns, servers.place)


def with_chip_prices(servers: Table, catalog: Catalog, case: str = "base") -> Table:
    """Servers whose blank price of an accelerator is what its row of chiplets, or its device, is sold at."""
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
    """Accelerators of some rows that a row of servers prices, and what they cost in it.

    ``catalog``: with servers. ``accelerators``: rows of the sheet accelerators that the sheet prices has no price of.
    ``power_limit``: their limits, (rows,) [W]. ``plans_of``: plans at some of the positions, whose own prices of energy
    count. Returns positions among the rows, and terms of those.
    """
    servers = catalog.tables["servers"]
    rows = first_rows(servers, catalog, accelerators)
    known = np.flatnonzero(rows >= 0)
    if not len(known):
        return known, Terms(*np.zeros((5, 0)))
    own = with_chip_prices(servers.take(rows[known]), catalog)
    with np.errstate(divide="ignore", invalid="ignore"):
        server = columns_of(own)
        server = server if plans_of is None else with_stated(server, plans_of(known))
        return known, server_terms(server, power_limit[known])


def servers_of(catalog: Catalog) -> Table:
    """The sheet servers, with a row for each derived accelerator without one: its price and power by its device."""
    rows, _ = _derived(catalog, "servers")
    return with_chip_prices(rows_by_device(catalog, "servers", rows), catalog)


def chiplets_of(catalog: Catalog) -> Table:
    """The sheet chiplets, with a row for each derived accelerator without one: the module that its device is."""
    rows, table = _derived(catalog, "chiplets")
    if not len(rows):
        return table
    accelerators, devices = catalog.tables["accelerators"], catalog.tables["devices"]
    found = catalog.known_rows("devices", accelerators.text("device")[rows])
    made = dict(design_of_devices(devices.take(found), catalog, table).columns)
    names = accelerators.text("accelerator")[rows]
    made["chiplet"] = np.array([f"{name}{_BY_DEVICE}" for name in names.tolist()], dtype=object)
    return _with_rows(table, {**made, "accelerator": names}, len(rows))
