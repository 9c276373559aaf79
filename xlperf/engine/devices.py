"""Devices: rows of the sheet ``devices`` through the equations of floor plan, power and cost to accelerators."""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from xlperf.base.arrays import Array, divide
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import TECHNOLOGY_TABLES, results_of
from xlperf.catalog.table import Table
from xlperf.equations.hardware import floorplan, power

PRECISIONS = ("fp32", "tf32", "bf16", "fp8", "int8", "fp4")
_FILLED = {
    **{f"peak_flop_rate_{name}": f"peak_flop_rate_{name}" for name in PRECISIONS},
    "num_multiprocessors": "num_multiprocessors",
    "clock_rate": "sustained_clock_rate",
    "memory_capacity": "memory_capacity",
    "memory_bandwidth": "memory_bandwidth",
    "l2_capacity": "l2_capacity",
    "l2_bandwidth": "l2_bandwidth",
    "shared_memory_capacity": "shared_memory_capacity",
    "shared_memory_bandwidth": "shared_memory_bandwidth",
    "thermal_design_power": "thermal_design_power",
    "link_bandwidth": "link_bandwidth",
}
"""Numbers of an accelerator that follow from its device: column of the sheet, result of the device."""

_cache: WeakKeyDictionary[Catalog, Accelerators] = WeakKeyDictionary()
_BEHIND = (*TECHNOLOGY_TABLES, "accelerators", "process_nodes", "packages")
_MOST_KEPT = 4
_recent: list[tuple[tuple[Table, ...], Accelerators]] = []
"""Last answers by the tables that they follow from: a fit makes many catalogs that differ in the calibration alone."""


class Accelerators(NamedTuple):
    """The sheet ``accelerators`` with what follows from devices.

    ``table`` has every number filled that a device gives; ``capex`` what an accelerator costs by its device and
    ``server_power`` what it draws with its share of the server, NaN where none says so; ``reasons`` why one cannot be
    built, "" where it can, and ``derived`` whether any is derived.
    """

    table: Table
    capex: Array
    server_power: Array
    reasons: np.ndarray
    derived: bool


class _Rows:
    """Columns of a catalog table for each device; NaN or "" where it names no row."""

    def __init__(self, catalog: Catalog, kind: str, devices: Table, column: str, strict: bool) -> None:
        self._table = catalog.tables[kind]
        if column not in devices:
            self.rows = np.full(len(devices), -1)
        elif strict:
            self.rows = catalog.rows(kind, devices.text(column), devices, column)
        else:
            self.rows = catalog.known_rows(kind, devices.text(column))

    def __getitem__(self, name: str) -> Array:
        values = self._table.filled(name)
        if not len(values):
            return np.full(len(self.rows), np.nan)
        return np.where(self.rows >= 0, values[np.maximum(self.rows, 0)], np.nan)

    def text(self, name: str) -> np.ndarray:
        values = self._table.text(name)
        if not len(values):
            return np.full(len(self.rows), "", dtype=object)
        return np.asarray(np.where(self.rows >= 0, values[np.maximum(self.rows, 0)], "").astype(object))

    def taken(self, rows: np.ndarray) -> _Rows:
        """The same table by other rows."""
        other = object.__new__(_Rows)
        other._table, other.rows = self._table, rows
        return other


class _Nodes(NamedTuple):
    """What devices are made of."""

    compute: _Rows
    base: _Rows
    core: _Rows
    reference: _Rows
    memory: _Rows
    link: _Rows
    die_link: _Rows
    base_is_lost: np.ndarray


def _joined(devices: Table, catalog: Catalog, strict: bool) -> _Nodes:
    compute = _Rows(catalog, "technology", devices, "technology", strict)
    base = _Rows(catalog, "technology", devices, "base_technology", strict)
    core = _Rows(catalog, "cores", devices, "core", strict)
    at = catalog.known_rows("technology", catalog.tables["cores"].text("technology"))
    return _Nodes(
        compute,
        base.taken(np.where(base.rows >= 0, base.rows, compute.rows)),
        core,
        compute.taken(np.where(core.rows >= 0, at[core.rows], -1) if len(at) else core.rows),
        _Rows(catalog, "memories", devices, "memory", strict),
        _Rows(catalog, "links", devices, "link", strict),
        _Rows(catalog, "links", devices, "die_link", strict),
        base.rows < 0,
    )


def evaluate_devices(devices: Table, catalog: Catalog, costs: bool = True, strict: bool = True) -> Table:
    """Rates, capacities, bandwidths, power and cost of devices that follow from budgets and shares.

    Parameters
    ----------
    devices : Table
        Rows of kind ``devices``.
    catalog : Catalog
        Technology, cores, memories and links that they name; process nodes and packages for their cost.
    costs : bool, default True
        Whether to compute what they cost.
    strict : bool, default True
        Whether a name that the catalog does not have is an error, rather than the reason of a device without results.

    Returns
    -------
    Table
        ``devices_results``, one row per device, in the units used inside. A device that cannot be built has NaN and a
        reason.

    Raises
    ------
    InputError
        When a device names what the catalog does not have.
    """
    nodes = _joined(devices, catalog, strict)
    number = {c.name: devices.filled(c.name) for c in devices.schema.columns if c.kind == "number"}
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        found, problems = _derived(number, nodes)
        unpriced: Problems = []
        if costs and (devices.text("package") != "").any():
            from xlperf.engine.device_costs import device_costs

            if strict:
                catalog.rows("packages", devices.text("package"), devices, "package")
            found["unit_cost"], found["capex"], unpriced = device_costs(devices, catalog, number, found, nodes)
        else:
            found["unit_cost"] = found["capex"] = np.full(len(devices), np.nan)
    lost = _lost(devices, nodes)
    problems = [(lost, "the catalog lacks what it names"), *((wrong & ~lost, words) for wrong, words in problems)]
    impossible = np.zeros(len(devices), dtype=bool)
    for wrong, _ in problems:
        impossible |= wrong
    found["reason"] = _reasons([*problems, *unpriced], len(devices))
    columns = {}
    for column in results_of("devices").columns:
        values = found[column.name]
        columns[column.name] = values if column.is_text else np.where(impossible, np.nan, values)
    return Table("devices_results", columns, devices.place)


def _lost(devices: Table, nodes: _Nodes) -> np.ndarray:
    """Devices that name a row that the catalog does not have."""
    lost = (nodes.compute.rows < 0) | (nodes.core.rows < 0) | (nodes.memory.rows < 0) | (nodes.reference.rows < 0)
    for column, rows in (("link", nodes.link.rows), ("die_link", nodes.die_link.rows)):
        lost |= (devices.text(column) != "") & (rows < 0)
    return np.asarray(lost | ((devices.text("base_technology") != "") & nodes.base_is_lost))


Problems = list[tuple[np.ndarray, str]]


def _reasons(problems: Problems, count: int) -> np.ndarray:
    reasons = np.full(count, "", dtype=object)
    for wrong, words in problems:
        for row in np.flatnonzero(wrong).tolist():
            reasons[row] = f"{reasons[row]}; {words}" if reasons[row] else words
    return reasons


def _derived(number: dict[str, Array], nodes: _Nodes) -> tuple[dict[str, np.ndarray], Problems]:
    """Results of devices, and what is wrong with them."""
    compute, base, core, memory, link = nodes.compute, nodes.base, nodes.core, nodes.memory, nodes.link
    based = number["num_base_dies"] > 0.0
    dies_area = number["num_dies"] * number["die_area"]
    base_area = np.where(based, number["num_base_dies"] * number["base_area"], 0.0)
    silicon = dies_area + base_area
    compute_area = np.where(based, 1.0, number["compute_share"]) * dies_area
    perimeter = np.where(
        np.isnan(number["perimeter"]),
        floorplan.outer_perimeter(np.where(based, base_area, dies_area), number["aspect_ratio"]),
        number["perimeter"],
    )
    budget = np.where(np.isnan(number["power_budget"]), np.inf, number["power_budget"])

    # memory
    rate = floorplan.stack_bandwidth(memory["interface_width"], memory["pin_rate"], number["memory_rate_share"])
    stack_power = power.transfer_power(rate, memory["energy"])
    edge = (perimeter, number["memory_shoreline_share"], memory["shoreline"])
    stacks = floorplan.stack_count(*edge, budget, number["memory_power_share"], stack_power)
    by_edge = floorplan.stack_count(*edge, np.inf, number["memory_power_share"], stack_power)
    height = np.where(np.isnan(number["stack_height"]), memory["stack_height"], number["stack_height"])
    memory_bandwidth, memory_power = stacks * rate, stacks * stack_power
    memory_area = stacks * memory["interface_area"]

    # links
    linked = link.rows >= 0
    density, lane_rate = link["shoreline_bandwidth"], link["lane_rate"]
    lanes = floorplan.lane_count(perimeter, number["link_shoreline_share"], density, lane_rate)
    lanes = np.where(linked, lanes, 0.0)
    link_bandwidth = np.where(linked, lanes * lane_rate, 0.0)
    link_area = np.where(linked, floorplan.interface_area(link_bandwidth, density, link["interface_depth"]), 0.0)
    crossed = nodes.die_link.rows >= 0
    crossing = np.where(
        np.isnan(number["die_link_bandwidth"]),
        floorplan.crossing_bandwidth(memory_bandwidth, number["num_dies"]),
        number["die_link_bandwidth"],
    )
    seam = nodes.die_link["shoreline_bandwidth"]
    both_ends = 2.0 * floorplan.interface_area(crossing, seam, nodes.die_link["interface_depth"])
    link_area = link_area + np.where(crossed, both_ends, 0.0)
    link_power = np.where(linked, power.transfer_power(link_bandwidth, link["energy"]), 0.0)
    link_power = link_power + np.where(crossed, power.transfer_power(crossing, nodes.die_link["energy"]), 0.0)

    # cores
    sram = floorplan.sram_area(compute["sram_cell_area"], compute["sram_cell_share"])
    own_size = core["shared_memory_capacity"] + core["register_capacity"]
    at = nodes.reference
    core_area = floorplan.scaled_core_area(
        core["core_area"], own_size, floorplan.sram_area(at["sram_cell_area"], at["sram_cell_share"]), sram,
        at["logic_density"], compute["logic_density"],
    )  # fmt: skip
    asked = number["num_cores"]
    cores = floorplan.core_count(compute_area, core_area, number["enabled_share"])
    cores = np.where(np.isnan(asked), cores, asked)
    full_clock = np.where(
        np.isnan(number["clock_rate"]),
        core["clock_rate"] * (compute["clock_ratio"] / at["clock_ratio"]),
        number["clock_rate"],
    )

    # cache
    left = silicon - compute_area - memory_area - link_area
    cache_area = number["cache_share"] * left
    cache = cache_area / floorplan.sram_area(base["sram_cell_area"], base["sram_cell_share"])

    # power
    static = power.static_power(compute_area, compute["static_power"])
    static = static + power.static_power(cache_area, base["static_power"])
    flop_energy = compute["flop_energy"] * core["energy_ratio"]
    per_clock = cores * core["flop_per_clock_bf16"]
    least = compute["least_voltage"] / compute["voltage"]
    full_power = power.switching_power(per_clock * full_clock, flop_energy, 1.0)
    spare = budget - static - memory_power - link_power
    share = power.clock_share(spare, full_power, least)
    voltage = power.voltage_share(share, least)
    clock = full_clock * share
    switching = power.switching_power(per_clock * clock, flop_energy, voltage)

    own_edges = number["num_dies"] * floorplan.outer_perimeter(number["die_area"], number["aspect_ratio"])
    problems: Problems = [
        (based & np.isnan(number["base_area"]), "base dies need a base area"),
        (
            number["memory_shoreline_share"] + number["link_shoreline_share"] > 1.0 + 1e-12,
            "the shares of memory and links are more than the perimeter",
        ),
        (left < 0.0, "the interfaces of memory and links do not fit beside the cores"),
        (crossed & ~based & (2.0 * crossing / seam > own_edges - perimeter), "the links between dies need more edge"),
        (~(cores >= 1.0), "not one core fits into the area for cores"),
        (asked * core_area > compute_area * (1.0 + 1e-9), "the cores do not fit into the area for them"),
        (spare <= 0.0, "the power budget leaves nothing for the cores"),
        (linked & ~(lanes >= 1.0), "not one lane of its links fits their share of the perimeter"),
        (~(stacks >= 1.0), "not one stack of memory fits the edge and the power budget"),
    ]
    found: dict[str, np.ndarray] = {
        "num_multiprocessors": cores,
        "sustained_clock_rate": clock,
        **{f"peak_flop_rate_{name}": cores * clock * core[f"flop_per_clock_{name}"] for name in PRECISIONS},
        "l2_capacity": cache,
        "l2_bandwidth": cores * clock * core["cache_bytes_per_clock"],
        "shared_memory_capacity": core["shared_memory_capacity"],
        "shared_memory_bandwidth": cores * clock * core["shared_memory_bytes_per_clock"],
        "sram_capacity": cache + cores * own_size,
        "memory_stacks": stacks,
        "memory_capacity": stacks * height * memory["layer_capacity"],
        "memory_bandwidth": memory_bandwidth,
        "num_lanes": lanes,
        "link_bandwidth": np.where(linked, link_bandwidth, np.nan),
        "thermal_design_power": switching + static + memory_power + link_power,
        "power_compute": switching,
        "power_static": static,
        "power_memory": memory_power,
        "power_links": link_power,
        "energy_per_flop": divide(switching, per_clock * clock),
        "memory_energy": memory["energy"],
        "link_energy": link["energy"],
        "silicon_area": silicon,
        "outer_perimeter": perimeter,
        "area_share_compute": compute_area / silicon,
        "area_share_cache": cache_area / silicon,
        "area_share_memory": memory_area / silicon,
        "area_share_links": link_area / silicon,
        "area_share_other": (left - cache_area) / silicon,
    }
    stack_words = np.where(stacks < by_edge, "memory by power", "memory by perimeter")
    clock_words = np.where(share < 1.0, "; clock by the power budget", "")
    found["limited_by"] = np.array([f"{a}{b}" for a, b in zip(stack_words, clock_words, strict=True)], dtype=object)
    found["stack_capacity"] = height * memory["layer_capacity"]
    found["stack_height"] = height
    found["core_area"] = core_area
    found["compute_area"] = compute_area
    return found, problems


def accelerators_of(catalog: Catalog) -> Accelerators:
    """The accelerators of a catalog with the numbers that follow from devices; made when first asked for.

    Parameters
    ----------
    catalog : Catalog
        Whose sheet ``accelerators`` is meant.

    Returns
    -------
    Accelerators
        The sheet with every blank number filled that a device gives.
    """
    found = _cache.get(catalog)
    if found is not None:
        return found
    behind = tuple(catalog.tables[kind] for kind in _BEHIND)
    for tables, kept in _recent:
        if all(own is other for own, other in zip(behind, tables, strict=True)):
            found = kept
    if found is None:
        found = _accelerators(catalog)
        _recent[:] = [(behind, found), *_recent[: _MOST_KEPT - 1]]
    _cache[catalog] = found
    return found


def _accelerators(catalog: Catalog) -> Accelerators:
    table = catalog.tables["accelerators"]
    count = len(table)
    reasons = np.full(count, "", dtype=object)
    names = table.text("device")
    own = np.flatnonzero(names != "")
    if not len(own):
        return Accelerators(table, np.full(count, np.nan), np.full(count, np.nan), reasons, False)
    rows = catalog.known_rows("devices", names[own])
    gone = own[rows < 0]
    reasons[gone] = [f"device {name} is not in the catalog" for name in names[gone].tolist()]
    own, rows = own[rows >= 0], rows[rows >= 0]
    if not len(own):
        return Accelerators(table, np.full(count, np.nan), np.full(count, np.nan), reasons, False)
    used = sorted(set(rows.tolist()))
    at = np.array([used.index(row) for row in rows.tolist()]) if len(used) < len(rows) else np.argsort(np.argsort(rows))
    devices = catalog.tables["devices"].take(used)
    results = evaluate_devices(devices, catalog, strict=False)
    columns = dict(table.columns)

    def fill(column: str, values: np.ndarray, blank: np.ndarray) -> None:
        filled = columns.get(column, np.full(count, "" if values.dtype == object else np.nan, dtype=values.dtype))
        filled = filled.copy()
        filled[own[blank]] = values[at][blank]
        columns[column] = filled

    for column, result in _FILLED.items():
        fill(column, results[result], np.isnan(table.number(column)[own]))
    fill("die_area", results["silicon_area"], np.isnan(table.number("die_area")[own]))
    fill("num_compute_dies", devices.filled("num_dies"), np.isnan(table.number("num_compute_dies")[own]))
    fill("technology_node", devices.text("technology"), table.text("technology_node")[own] == "")
    fill("memory_type", devices.text("memory"), table.text("memory_type")[own] == "")
    capex, drawn = np.full(count, np.nan), np.full(count, np.nan)
    capex[own] = results["capex"][at]
    drawn[own] = (results["thermal_design_power"] * devices.filled("server_power_ratio"))[at]
    failed = np.isnan(results["thermal_design_power"])
    words = np.array(
        [f'device {name}: {reason}' if bad else "" for name, reason, bad in
         zip(devices["device"], results["reason"], failed, strict=True)], dtype=object)  # fmt: skip
    reasons[own] = words[at]
    return Accelerators(Table("accelerators", columns, table.place), capex, drawn, reasons, True)
