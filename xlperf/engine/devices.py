"""Accelerators that follow from the budgets of the sheet ``devices``: rates, capacities, power and cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from xlperf.base.arrays import Array, Columns
from xlperf.base.errors import Fault, InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import TECHNOLOGY_TABLES, results_of
from xlperf.catalog.table import Table, columns_of
from xlperf.equations.cost.designs import DesignRule, design_cost, design_rules
from xlperf.equations.hardware.derived_device import PEAKS, USUAL_OTHER, DerivedDevice, Technologies, derived_device
from xlperf.equations.plan.records import Remark, remarks_of_rows

# Numbers of an accelerator that follow from its device: column of the sheet, result of the device
_FILLED = {
    **{f"peak_flop_rate_{name}": f"peak_flop_rate_{name}" for name in PEAKS},
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
    "flop_energy": "energy_per_flop",
    "static_power": "power_static",
    "memory_energy": "memory_energy",
}

# Columns of an accelerator that follow from its device where they are blank
FOLLOWING = (*_FILLED, "die_area", "num_compute_dies", "technology_node", "memory_type")

# Sheet that each column of a device names a row of
_NAMES = {
    "technology": "technology",
    "base_technology": "technology",
    "core": "cores",
    "memory": "memories",
    "link": "links",
    "die_link": "links",
}
# In the order of `Technologies`
_MADE_OF = ("technology", "base_technology", "core", "core_node", "memory", "link", "die_link")
_REQUIRED = ("technology", "core", "memory")

TOO_LARGE_DIE = "a die is larger than the reticle"

_cache: WeakKeyDictionary[Catalog, Accelerators] = WeakKeyDictionary()
_BEHIND = (*TECHNOLOGY_TABLES, "accelerators", "process_nodes", "packages", "chiplets")
_MOST_KEPT = 4
# Last answers by the tables that they follow from: a fit makes many catalogs that differ in the calibration alone
_recent: list[tuple[tuple[Table, ...], Accelerators]] = []


class Accelerators(NamedTuple):
    """The sheet ``accelerators`` with what follows from devices.

    ``table`` has every number filled that a device gives; ``capex`` what an accelerator costs by its device with its
    share of the server, ``price`` without it, and ``server_power`` what it draws with that share, NaN where none says
    so; ``reasons`` why one cannot be built, "" where it can, and ``derived`` whether any is derived.
    """

    table: Table
    capex: Array
    price: Array
    server_power: Array
    reasons: np.ndarray
    derived: bool


def evaluate_devices(devices: Table, catalog: Catalog, costs: bool = True, strict: bool = True) -> Table:
    """Rates, capacities, bandwidths, power and cost of devices that follow from budgets and shares.

    ``devices``: rows of kind ``devices``. ``catalog``: technology, cores, memories and links that they name; process
    nodes and packages for their cost. ``costs``: whether to compute what they cost. ``strict``: whether a name that the
    catalog does not have is an error, rather than the reason of a device without results. Returns ``devices_results``,
    one row per device, in the units used inside. A device that cannot be built has NaN and a reason. Raises InputError
    when a device names what the catalog does not have.
    """
    technologies, lost = _technologies(devices, catalog, strict)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        derived = derived_device(columns_of(devices), technologies)
        made = dict.fromkeys(("unit_cost", "capex", "embodied_carbon"), np.full(len(devices), np.nan))
        unpriced: list[Remark] = []
        if costs and (devices.text("package") != "").any():
            if strict:
                catalog.rows("packages", devices.text("package"), devices, "package")
            made, unpriced = _costs(devices, catalog, technologies, derived)
    remarks = [Remark(lost, "the catalog lacks what it names")]
    remarks += [Remark(broken & ~lost, sentence) for sentence, broken in derived.broken.items()]
    impossible, _ = remarks_of_rows(remarks, len(devices))
    other = derived.results["area_share_other"]
    words = f"wires and control have {{}} % of the silicon, less than the {100.0 * USUAL_OTHER:g} % of devices known"
    sparse = Remark((other < USUAL_OTHER) & ~impossible, words, (np.round(100.0 * other),))
    _, reason = remarks_of_rows([*remarks, *unpriced, sparse], len(devices))
    found = {**derived.results, **made}
    found = {name: np.where(impossible, np.nan, values) for name, values in found.items()}
    texts = {"limited_by": _limits(derived), "reason": reason}
    schema = results_of("devices")
    return Table(schema.name, {c.name: (texts if c.is_text else found)[c.name] for c in schema.columns}, devices.place)


def _technologies(devices: Table, catalog: Catalog, strict: bool) -> tuple[Technologies, np.ndarray]:
    """What devices are made of, and which of them name a row that the catalog does not have."""
    rows, lost = {}, np.zeros(len(devices), dtype=bool)
    for column, kind in _NAMES.items():
        names = devices.text(column)
        rows[column] = catalog.rows(kind, names, devices, column) if strict else catalog.known_rows(kind, names)
        lost |= (rows[column] < 0) & ((names != "") | (column in _REQUIRED))
    rows["base_technology"] = np.where(rows["base_technology"] >= 0, rows["base_technology"], rows["technology"])
    stated_at = catalog.known_rows("technology", catalog.tables["cores"].text("technology"))
    core = rows["core"]
    rows["core_node"] = np.where(core >= 0, stated_at[core], -1) if len(stated_at) else core
    lost |= rows["core_node"] < 0
    kinds = {**_NAMES, "core_node": "technology"}
    return Technologies(*(columns_of(catalog.tables[kinds[name]], rows[name]) for name in _MADE_OF)), lost


def _limits(derived: DerivedDevice) -> np.ndarray:
    """What limits the memory and the clock of devices, in words."""
    memory = np.where(derived.memory_by_power, "memory by power", "memory by perimeter").astype(object)
    return np.asarray(memory + np.where(derived.clock_by_power, "; clock by the power budget", "").astype(object))


def _costs(
    devices: Table, catalog: Catalog, technologies: Technologies, derived: DerivedDevice
) -> tuple[dict[str, Array], list[Remark]]:
    """Unit cost, purchase price [USD] and carbon [kg] of devices that name a package, and why others have none."""
    from xlperf.equations.cost.designs import fits_reticle
    from xlperf.equations.cost.tco import system_price

    designs = _designs(devices, catalog.tables["chiplets"], technologies, derived)
    packages, node, base_node = (designs.text(n) for n in ("package", "node", "base_node"))
    based = designs.number("num_base_dies") > 0.0
    node_rows, base_rows = (catalog.known_rows("process_nodes", names) for names in (node, base_node))
    priced = (packages != "") & (catalog.known_rows("packages", packages) >= 0)
    priced &= (node_rows >= 0) & (~based | (base_rows >= 0)) & ~np.isnan(designs.number("memory_price"))
    priced &= (derived.results["memory_stacks"] >= 1.0) & (derived.results["num_multiprocessors"] >= 1.0)
    nodes, square = catalog.tables["process_nodes"], np.nan
    fits = fits_reticle(designs.number("module_area"), designs.number("die_width"), columns_of(nodes, node_rows))
    fits &= fits_reticle(designs.number("base_area"), square, columns_of(nodes, base_rows))
    found = {name: np.full(len(devices), np.nan) for name in ("unit_cost", "capex", "embodied_carbon")}
    rows = np.flatnonzero(priced & fits)
    if len(rows):
        results = evaluate_designs(designs.take(rows), catalog)
        ratio, links = devices.filled("system_price_ratio")[rows], derived.link_cost[rows]
        found["unit_cost"][rows] = results["unit_cost"]
        found["capex"][rows] = system_price(results["sale_price"], ratio, links)
        found["embodied_carbon"][rows] = results["embodied_carbon"]
    unpriced = [
        Remark(priced & ~fits, f"{TOO_LARGE_DIE}: no cost"),
        Remark((packages != "") & ~priced, "its package, process node or memory has no price: no cost"),
    ]
    return found, unpriced


def _designs(devices: Table, designs: Table, technologies: Technologies, derived: DerivedDevice) -> Table:
    """Rows of the sheet ``chiplets`` that devices are: what the row that names a device states, else by its budgets."""
    made, node = derived.chiplet, technologies.compute.process_node
    base_node = np.where(made["num_base_dies"] > 0.0, technologies.base.process_node, "").astype(object)
    names = {"chiplet": devices.text("device"), "package": devices.text("package"), "node": node}
    columns = {**names, "base_node": base_node, **made}
    of_device: dict[str, int] = {}
    for row, name in enumerate(designs.text("device").tolist()):
        of_device.setdefault(name.casefold(), row)
    rows = np.array([of_device.get(name.casefold(), -1) for name in devices.text("device").tolist()], dtype=np.int64)
    known = np.flatnonzero(rows >= 0)
    for name in designs.columns if len(known) else ():
        if name in ("chiplet", "accelerator", "device"):
            continue
        own = designs[name][rows[known]]
        blank = own == "" if own.dtype == object else np.isnan(own)
        nothing = np.full(len(devices), "" if own.dtype == object else np.nan, dtype=own.dtype)
        filled = columns.get(name, nothing).copy()
        filled[known] = np.where(blank, filled[known], own)
        columns[name] = filled
    return Table("chiplets", columns, devices.place)


def design_of_devices(devices: Table, catalog: Catalog, designs: Table) -> Table:
    """Rows of the sheet ``chiplets`` that devices are; their results cost the same as the devices.

    ``devices``: rows of kind ``devices``. ``designs``: rows of kind ``chiplets``: where one names a device, what it
    states counts; may be empty. Of kind ``chiplets``.
    """
    technologies, _ = _technologies(devices, catalog, strict=False)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return _designs(devices, designs, technologies, derived_device(columns_of(devices), technologies))


def device_cost_parts(devices: Table, catalog: Catalog) -> Table | None:
    """Parts of the cost of devices, as of rows of the sheet ``chiplets``.

    ``devices``: rows of kind ``devices`` that can be built. Returns ``chiplets_results``; none where
    :func:`evaluate_devices` knows no cost of one of them.
    """
    if np.isnan(evaluate_devices(devices, catalog).number("unit_cost")).any():
        return None
    return evaluate_designs(design_of_devices(devices, catalog, catalog.tables["chiplets"]), catalog)


def accelerators_of(catalog: Catalog) -> Accelerators:
    """The accelerators of a catalog with the numbers that follow from devices; made when first asked for.

    ``catalog``: whose sheet ``accelerators`` is meant. Returns the sheet with every blank number filled that a device
    gives.
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
    reasons, nothing = np.full(count, "", dtype=object), np.full(count, np.nan)
    names = table.text("device")
    own = np.flatnonzero(names != "")
    if not len(own):
        return Accelerators(table, nothing, nothing, nothing, reasons, False)
    rows = catalog.known_rows("devices", names[own])
    gone = own[rows < 0]
    reasons[gone] = [f"device {name} is not in the catalog" for name in names[gone].tolist()]
    own, rows = own[rows >= 0], rows[rows >= 0]
    if not len(own):
        return Accelerators(table, nothing, nothing, nothing, reasons, False)
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
    capex, price, drawn = np.full((3, count), np.nan)
    capex[own] = results["capex"][at]
    price[own] = capex[own] / devices.filled("system_price_ratio")[at]
    drawn[own] = (results["thermal_design_power"] * devices.filled("server_power_ratio"))[at]
    failed = np.isnan(results["thermal_design_power"])
    words = np.array(
        [f'device {name}: {reason}' if bad else "" for name, reason, bad in
         zip(devices["device"], results["reason"], failed, strict=True)], dtype=object)  # fmt: skip
    reasons[own] = words[at]
    return Accelerators(Table("accelerators", columns, table.place), capex, price, drawn, reasons, True)


BLOCK = 16_384  # rows that go through the equations together

Progress = Callable[[int], None]


def evaluate_designs(
    designs: Table, catalog: Catalog, case: str = "base", placed: bool = False, progress: Progress | None = None
) -> Table:
    """Cost of every chiplet design of a table, by part.

    ``designs``: rows of kind ``chiplets``. ``catalog``: process nodes and packages that they name. ``case``: ``low``,
    ``base`` or ``high``: which of the prices and yields that have a low and a high value. ``placed``: count whole dies
    on a grid instead of the closed formula; slow. ``progress``: called with the number of rows of each block that is
    done. Returns ``chiplets_results``, one row per design, in the units used inside. A design of which no die fits on a
    wafer, or none is good, has NaN and a reason. Raises InputError when a design names a node or package that the
    catalog does not have, lacks what its other cells ask for, or has a die that is larger than the reticle of a node
    without stitching.
    """
    schema = results_of("chiplets")
    designs = designs_with_devices(designs, catalog)
    blocks = []
    for start in range(0, max(len(designs), 1), BLOCK):
        block = designs if len(designs) <= BLOCK else designs.take(slice(start, start + BLOCK))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            blocks.append(_block(block, catalog, case, placed))
        if progress is not None:
            progress(len(block))
    columns = {
        column.name: blocks[0][column.name] if len(blocks) == 1 else np.concatenate([b[column.name] for b in blocks])
        for column in schema.columns
    }
    return Table(schema.name, columns, designs.place)


def designs_with_devices(designs: Table, catalog: Catalog) -> Table:
    """Chiplet designs whose blank cells follow from the device that they name.

    ``designs``: rows of kind ``chiplets``. ``catalog``: devices that they name, and what those are made of.
    """
    named = np.flatnonzero(designs.text("device") != "") if "device" in designs else np.zeros(0, dtype=np.int64)
    if not len(named):
        return designs

    rows = catalog.rows("devices", designs.text("device")[named], designs.take(named), "device")
    made = design_of_devices(catalog.tables["devices"].take(rows), catalog, Table("chiplets", {}))
    columns = dict(designs.columns)
    for name, values in made.columns.items():
        if name != "chiplet":
            blank = "" if values.dtype == object else np.nan
            own = columns.get(name, np.full(len(designs), blank, dtype=values.dtype)).copy()
            given = own[named]
            own[named] = np.where(given == "" if own.dtype == object else np.isnan(given), values, given)
            columns[name] = own
    return Table("chiplets", columns, designs.place)


def _block(designs: Table, catalog: Catalog, case: str, placed: bool) -> dict[str, np.ndarray]:
    def named(kind: str, column: str) -> Columns:
        none = np.full(len(designs), -1)
        rows = catalog.rows(kind, designs.text(column), designs, column) if column in designs else none
        return columns_of(catalog.tables[kind], rows, case)

    design, package = columns_of(designs, case=case), named("packages", "package")
    node, base_node = named("process_nodes", "node"), named("process_nodes", "base_node")
    _refuse(designs, design_rules(design, node, base_node, package))
    found = design_cost(design, node, base_node, package, placed)
    reason = np.full(len(designs), "", dtype=object)
    made, passed = ~np.isnan(found["raw_die_cost"]), ~np.isnan(found["good_die_cost"])
    reason[np.isnan(found["unit_cost"])] = "base dies or carrier do not fit on a wafer, or none is good"
    reason[made & ~passed] = "no compute die is good"
    reason[~made] = "no compute die fits on a wafer"
    return {**found, "reason": reason}


def _refuse(designs: Table, rules: Sequence[DesignRule]) -> None:
    """Raise every rule that a design breaks."""
    names = designs.text("package")
    faults = [
        Fault(
            designs.place(row, rule.column),
            rule.sentence.format(package=names[row], **{name: values[row] for name, values in rule.values.items()}),
        )
        for rule in rules
        for row in np.flatnonzero(rule.broken).tolist()
    ]
    if faults:
        raise InputError(faults)
