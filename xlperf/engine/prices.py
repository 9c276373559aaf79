"""Prices and power of accelerators: by the sheets prices, servers and chiplets, by their device, or as plans state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Columns
from xlperf.base.units import YEAR, factor
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import MARK, Table, columns_of
from xlperf.equations.cost.servers import server_terms
from xlperf.equations.cost.tco import Terms, accelerator_cost_rate

if TYPE_CHECKING:
    from xlperf.engine.catalog_arrays import CatalogArrays

OF_ENERGY = ("energy_price", "power_usage_effectiveness", "carbon_intensity")  # columns of plans and of both sheets
PLAN_PRICES = ("hour_price", *OF_ENERGY)
OF_OWNER = ("utilization", *OF_ENERGY)
OF_HOST = {"host_memory_capacity": "host_memory_price", "host_flop_rate": "host_processor_price"}
"""Columns of plans for the host of one accelerator, and the columns of servers that price them."""


def with_stated(prices: Columns, plans: Table) -> Columns:
    """Columns of the sheet prices or servers, a row for each plan, with the values of OF_OWNER that plans state."""
    stated = {name: plans.number(name) for name in OF_OWNER if name in plans}
    if not stated:
        return prices

    def read(name: str) -> np.ndarray:
        values, replacement = getattr(prices, name), stated.get(name)
        return np.asarray(values if replacement is None else np.where(np.isnan(replacement), values, replacement))

    return Columns(read)


def with_host(server: Columns, plans: Table, included: Columns) -> Columns:
    """Servers, a row for each plan, with the memory and the processors that plans state for the host beyond those of
    their accelerators' rows, which the price of the server includes.
    """
    stated = {name: plans.number(name) for name in OF_HOST if name in plans}

    def read(name: str) -> np.ndarray:
        values = np.asarray(getattr(server, name))
        if name != "server_price":
            return values
        for column, amount in stated.items():
            beyond = np.fmax(amount - getattr(included, column), 0.0)  # 0 of plans that state none
            values = values + server.num_accelerators * beyond * getattr(server, OF_HOST[column])
        return values

    return Columns(read) if stated else server


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
    from xlperf.engine.devices import accelerators_of

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
    from xlperf.engine.devices import accelerators_of

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
    from xlperf.engine.devices import evaluate_designs

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
    stated: Callable[[Columns, np.ndarray], Columns] | None = None,
) -> tuple[np.ndarray, Terms]:
    """Positions of accelerators that a row of servers prices, and their terms in it with what plans state."""
    servers = catalog.tables["servers"]
    rows = first_rows(servers, catalog, accelerators)
    known = np.flatnonzero(rows >= 0)
    if not len(known):
        return known, Terms(*np.zeros((5, 0)))
    with np.errstate(divide="ignore", invalid="ignore"):
        server = columns_of(with_chip_prices(servers.take(rows[known]), catalog))
        server = server if stated is None else stated(server, known)
        return known, server_terms(server, power_limit[known])


def servers_of(catalog: Catalog) -> Table:
    """The sheet servers, with a row for each derived accelerator without one."""
    rows, _ = _derived(catalog, "servers")
    return with_chip_prices(rows_by_device(catalog, "servers", rows), catalog)


def chiplets_of(catalog: Catalog) -> Table:
    """The sheet chiplets, with a row for each derived accelerator without one: the module of its device."""
    from xlperf.engine.devices import design_of_devices

    rows, table = _derived(catalog, "chiplets")
    if not len(rows):
        return table
    accelerators, devices = catalog.tables["accelerators"], catalog.tables["devices"]
    of_rows = catalog.known_rows("devices", accelerators.text("device")[rows])
    made = dict(design_of_devices(devices.take(of_rows), catalog, table).columns)
    names = accelerators.text("accelerator")[rows]
    made["chiplet"] = np.array([f"{name}{_BY_DEVICE}" for name in names.tolist()], dtype=object)
    return _with_rows(table, {**made, "accelerator": names}, len(rows))


def prices_of_accelerators(
    catalog: Catalog, power: Array, device_capex: Array, device_power: Array
) -> tuple[Terms, Array, np.ndarray, dict[str, Array]]:
    """Price and power by the sheet prices, rents, accelerators that servers price, and arguments of owning."""
    prices, row = catalog.tables["prices"], catalog.price_rows
    declared = table_schema("prices").by_name

    def price(column: str) -> Array:
        default = float(declared[column].default or "nan") * factor(declared[column].unit or "-")
        if not len(prices):
            return np.full(len(row), default)
        return np.where(row >= 0, prices.filled(column)[np.maximum(row, 0)], default)

    stated, stated_power, rent = price("capex"), price("server_power"), price("rental_price")
    names = ("life", "utilization", "power_usage_effectiveness", "energy_price", "opex_share")
    owning = {
        "capex": np.where(np.isnan(stated), device_capex, stated),
        "server_power": np.where(np.isnan(stated_power), device_power, stated_power),
        **{name: price(name) for name in names},
    }
    terms = Terms(
        accelerator_cost_rate(rental_price=rent, opex_period=YEAR, **owning),
        owning["server_power"] * owning["power_usage_effectiveness"],
        price("carbon_intensity"),
        np.minimum(power / owning["server_power"], 1.0),
        np.where(np.isnan(rent), owning["energy_price"], 0.0),
    )
    bought = set(catalog.known_rows("accelerators", catalog.tables["servers"].text("accelerator")).tolist())
    unpriced = np.flatnonzero(np.isnan(rent) & np.isnan(stated)).tolist()
    bare = np.array([row for row in unpriced if row in bought], dtype=np.int64)
    by_server = np.zeros(len(rent), dtype=bool)
    by_server[bare] = True
    if len(bare):
        known, of_servers = server_priced(catalog, bare, power[bare])
        terms = terms.with_rows(bare[known], of_servers)
    return terms, rent, by_server, owning


class Priced(NamedTuple):
    """Cost and power of each plan's accelerator at full load, and whether it is rented, (rows,)."""

    terms: Terms
    rented: np.ndarray


def priced(plans: Table, catalog: Catalog, arrays: CatalogArrays, accelerators: np.ndarray) -> Priced:
    """Cost and power of accelerators by the catalog and by stated prices; an hour price is a rent, energy included.
    Idle hours of a rent are paid in the others.
    """
    terms, rented = arrays.terms.take(accelerators), arrays.rented[accelerators]
    if any(name in plans for name in (*OF_OWNER, *OF_HOST)):
        # Owned accelerators anew, at the stated prices of energy and share of hours in use.
        columns = {**arrays.terms._asdict(), **arrays.owning}
        price = with_stated(Columns(lambda name: columns[name][accelerators]), plans)
        owning = {name: getattr(price, name) for name in arrays.owning}
        stated = Terms(
            np.where(rented, terms.cost_rate, accelerator_cost_rate(np.nan, opex_period=YEAR, **owning)),
            price.server_power * price.power_usage_effectiveness,
            price.carbon_intensity,
            terms.accelerator_share,
            np.where(rented, 0.0, price.energy_price),
        )
        by_server = np.flatnonzero(arrays.by_server[accelerators])
        if len(by_server):
            rows = accelerators[by_server]
            limits = arrays.thermal_design_power[rows]

            def as_stated(server: Columns, known: np.ndarray) -> Columns:
                own = plans.take(by_server[known])
                return with_host(with_stated(server, own), own, arrays.host_of(rows[known]))

            known, of_servers = server_priced(catalog, rows, limits, as_stated)
            stated = stated.with_rows(by_server[known], of_servers)
        terms = stated
    if "hour_price" in plans:
        hour = plans.number("hour_price")
        given = ~np.isnan(hour)
        terms = terms._replace(
            cost_rate=np.where(given, hour, terms.cost_rate), energy_price=np.where(given, 0.0, terms.energy_price)
        )
        rented = rented | given
    if "utilization" in plans:
        used = plans.number("utilization")
        idle = rented & ~np.isnan(used)
        terms = terms._replace(cost_rate=np.where(idle, terms.cost_rate / used, terms.cost_rate))
    return Priced(terms, rented)


def hours_used(plans: Table, catalog: Catalog, arrays: CatalogArrays, accelerators: np.ndarray) -> Array:
    """Share of the paid hours in which accelerators work, as :func:`priced` takes it. [-]"""
    by_sheet = arrays.owning["utilization"][accelerators]
    by_server = np.flatnonzero(arrays.by_server[accelerators])
    if len(by_server):
        servers = catalog.tables["servers"]
        rows = first_rows(servers, catalog, accelerators[by_server])
        by_sheet[by_server] = servers.filled("utilization")[rows]
    usual = np.where(priced(plans, catalog, arrays, accelerators).rented, 1.0, by_sheet)
    stated = plans.number("utilization")
    return np.where(np.isnan(stated), usual, stated)
