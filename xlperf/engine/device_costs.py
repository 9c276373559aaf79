"""Cost of devices: each is a chiplet design with the area, stacks and spare cores that its budgets give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.designs import evaluate_designs

Problem = tuple[np.ndarray, str]


def device_costs(
    devices: Table, catalog: Catalog, number: Mapping[str, Array], found: Mapping[str, np.ndarray], nodes: Any
) -> tuple[Array, Array, list[Problem]]:
    """Unit cost and purchase price of devices that name a package.

    Parameters
    ----------
    devices : Table
        Rows of kind ``devices``.
    catalog : Catalog
        Process nodes and packages.
    number : mapping of str to Array
        Number columns of the devices with their defaults.
    found : mapping of str to array
        What was derived: stacks, cores, areas.
    nodes : object
        Rows of technology, memory and links that the devices name.

    Returns
    -------
    tuple of Array, Array and list
        Unit cost and purchase price with the share of server and network [USD], NaN where none follows; why a device
        that names a package has no cost, and which.
    """
    count = len(devices)
    unit, capex = np.full(count, np.nan), np.full(count, np.nan)
    designs = chiplets_of(devices, number, found, nodes)
    named = devices.text("package") != ""
    node_rows, base_rows = (catalog.known_rows("process_nodes", designs[name]) for name in ("node", "base_node"))
    priced = named & ~np.isnan(designs["memory_price"]) & (node_rows >= 0)
    priced &= (number["num_base_dies"] <= 0.0) | (base_rows >= 0)
    priced &= catalog.known_rows("packages", designs["package"]) >= 0
    priced &= (found["memory_stacks"] >= 1.0) & (found["num_multiprocessors"] >= 1.0)
    fits = _fits(catalog, designs["module_area"], node_rows) & _fits(catalog, designs["base_area"], base_rows)
    rows = np.flatnonzero(priced & fits)
    if len(rows):
        results = evaluate_designs(designs.take(rows), catalog)
        unit[rows] = results["unit_cost"]
        links = np.where(nodes.link.rows >= 0, nodes.link["price"], 0.0)
        wires = np.where(links > 0.0, links * np.nan_to_num(found["link_bandwidth"]), 0.0)
        capex[rows] = results["sale_price"] * number["system_price_ratio"][rows] + wires[rows]
    return (
        unit,
        capex,
        [
            (priced & ~fits, "a die is larger than the reticle: no cost"),
            (named & ~priced, "its package, process node or memory has no price: no cost"),
        ],
    )


def chiplets_of(devices: Table, number: Mapping[str, Array], found: Mapping[str, np.ndarray], nodes: Any) -> Table:
    """Devices as rows of the sheet ``chiplets``.

    Parameters
    ----------
    devices, number, found, nodes
        As in :func:`device_costs`.

    Returns
    -------
    Table
        Kind ``chiplets``, one row per device.
    """
    based = number["num_base_dies"] > 0.0
    per_die = np.maximum(np.floor(found["compute_area"] / number["num_dies"] / found["core_area"]), 1.0)
    needed = np.minimum(np.ceil(found["num_multiprocessors"] / number["num_dies"]), per_die)
    stack_capacity = nodes.memory["stack_height"] * nodes.memory["layer_capacity"]
    columns: dict[str, np.ndarray] = {
        "chiplet": devices.text("device"),
        "package": devices.text("package"),
        "node": nodes.compute.text("process_node"),
        "num_dies": number["num_dies"],
        "module_area": number["die_area"],
        "num_units": per_die,
        "num_units_needed": needed,
        "perfect_area_share": number["perfect_area_share"],
        "base_node": np.where(based, nodes.base.text("process_node"), "").astype(object),
        "num_base_dies": number["num_base_dies"],
        "base_area": np.where(based, number["base_area"], np.nan),
        "memory_stacks": found["memory_stacks"],
        "stack_capacity": found["stack_capacity"],
        "memory_price": nodes.memory["stack_price"] / stack_capacity,
        "stack_area": nodes.memory["stack_area"],
        "board_cost": number["board_cost"],
        "margin_share": number["margin_share"],
        "volume": number["volume"],
    }
    return Table("chiplets", columns, devices.place)


def _fits(catalog: Catalog, area: Array, rows: np.ndarray) -> np.ndarray:
    """Whether dies fit one exposure field of their node, or the node joins fields."""
    nodes = catalog.tables["process_nodes"]
    if not len(nodes):
        return np.zeros(len(rows), dtype=bool)
    at = np.maximum(rows, 0)
    wide, high = nodes.filled("reticle_width")[at], nodes.filled("reticle_height")[at]
    across = np.minimum(np.sqrt(area), wide)
    joined = ~np.isnan(nodes.filled("stitch_yield")[at])
    return np.asarray((rows < 0) | joined | ~(area / across > high))
