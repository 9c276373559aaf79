"""Accelerators derived from the budgets of the sheet ``devices``: rates, capacities, power and cost."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Columns
from xlperf.base.errors import Fault, InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import TECHNOLOGY_TABLES, results_of
from xlperf.catalog.table import Table, columns_of
from xlperf.equations.cost.designs import DesignRule, carrier_rule, design_cost, design_rules
from xlperf.equations.hardware.derived_device import PEAKS, USUAL_OTHER, DerivedDevice, Technologies, derived_device
from xlperf.equations.plan.records import Remark, remarks_of_rows

# Accelerator columns, and the device results that fill them
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

# Accelerator columns that the device fills if they are blank
FOLLOWING = (*_FILLED, "die_area", "num_compute_dies", "technology_node", "memory_type")

# Device columns, and the sheets whose rows they name
_NAMES = {"technology": "technology", "base_technology": "technology", "core": "cores", "memory": "memories",
          "link": "links", "die_link": "links"}  # fmt: skip
# Fields of `Technologies`
_MADE_OF = ("technology", "base_technology", "core", "core_node", "memory", "link", "die_link")
_REQUIRED = ("technology", "core", "memory")

_BEHIND = (*TECHNOLOGY_TABLES, "accelerators", "process_nodes", "packages", "chiplets")
_MOST_KEPT = 16
# Latest results by their tables: the catalogs of a fit differ in the calibration alone
_recent: OrderedDict[tuple[Table, ...], Accelerators] = OrderedDict()


class Accelerators(NamedTuple):
    """The sheet ``accelerators`` with the results of devices, (accelerators,)."""

    table: Table  # with every number that a device gives
    capex: Array  # by the device, with its share of the server, or NaN [USD]
    price: Array  # without that share [USD]
    server_power: Array  # with that share [W]
    reasons: np.ndarray  # faults of devices that cannot be built, or ""
    derived: bool  # whether any accelerator is derived


def evaluate_devices(devices: Table, catalog: Catalog, costs: bool = True, strict: bool = True) -> Table:
    """Rates, capacities, bandwidths, power and cost of devices from budgets and shares: ``devices_results``. A device
    that cannot be built has NaN and a reason. An unknown name raises InputError, or is the reason unless ``strict``.
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
    results = {name: np.where(impossible, np.nan, values) for name, values in {**derived.results, **made}.items()}
    # Limits of memory and clock in words.
    limits = np.where(derived.memory_by_power, "memory by power", "memory by the edge of the dies").astype(object)
    limits = limits + np.where(derived.clock_by_power, "; clock by the power budget", "").astype(object)
    columns = {**results, "limited_by": np.asarray(limits), "reason": reason}
    schema = results_of("devices")
    return Table(schema.name, {column.name: columns[column.name] for column in schema.columns}, devices.place)


def _technologies(devices: Table, catalog: Catalog, strict: bool) -> tuple[Technologies, np.ndarray]:
    """Technology rows of devices, and devices that name a row that the catalog lacks."""
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


def _costs(
    devices: Table, catalog: Catalog, technologies: Technologies, derived: DerivedDevice
) -> tuple[dict[str, Array], list[Remark]]:
    """Unit cost, purchase price [USD] and carbon [kg] of devices with a package, and reasons for a lack of cost."""
    designs = _designs(devices, catalog.tables["chiplets"], technologies, derived)
    kinds = {"node": "process_nodes", "base_node": "process_nodes", "package": "packages"}
    rows_of = {name: catalog.known_rows(kind, designs.text(name)) for name, kind in kinds.items()}
    based = designs.number("num_base_dies") > 0.0
    priced = (rows_of["package"] >= 0) & ~np.isnan(designs.number("memory_price"))
    priced &= (rows_of["node"] >= 0) & (~based | (rows_of["base_node"] >= 0))
    priced &= (derived.results["memory_stacks"] >= 1.0) & (derived.results["num_multiprocessors"] >= 1.0)
    node, base_node, package = (columns_of(catalog.tables[kinds[name]], rows) for name, rows in rows_of.items())
    design, unmade = columns_of(designs), np.full(len(devices), "", dtype=object)
    rules = [*design_rules(design, node, base_node, package), carrier_rule(design, package)]
    for row, _, sentence in reversed([*_broken_rules(designs, rules)]):
        unmade[row] = sentence
    costs = {name: np.full(len(devices), np.nan) for name in ("unit_cost", "capex", "embodied_carbon")}
    rows = np.flatnonzero(priced & (unmade == ""))
    if len(rows):
        results = evaluate_designs(designs.take(rows), catalog)
        ratio, links = devices.filled("system_price_ratio")[rows], derived.link_cost[rows]
        costs["unit_cost"][rows] = results["unit_cost"]
        # price with the share of server and network, from a ratio (arXiv:2405.21015, appendix A)
        costs["capex"][rows] = results["sale_price"] * ratio + links
        costs["embodied_carbon"][rows] = results["embodied_carbon"]
    unpriced = [
        Remark(priced & (unmade != ""), "{}: no cost", (unmade,)),
        Remark((designs.text("package") != "") & ~priced, "its package, process node or memory has no price: no cost"),
    ]
    return costs, unpriced


def _designs(devices: Table, designs: Table, technologies: Technologies, derived: DerivedDevice) -> Table:
    """Devices as rows of the sheet ``chiplets``: values of the row that names a device, else by its budgets."""
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
        stated = designs[name][rows[known]]
        columns[name] = filled = _copied(columns, name, stated, len(devices))
        filled[known] = np.where(_blank(stated), filled[known], stated)
    return Table("chiplets", columns, devices.place)


def _blank(values: np.ndarray) -> np.ndarray:
    return np.asarray(values == "" if values.dtype == object else np.isnan(values))


def _copied(columns: Mapping[str, np.ndarray], name: str, like: np.ndarray, number: int) -> np.ndarray:
    """A copy of a column, or blanks of a kind of values without it."""
    blank = "" if like.dtype == object else np.nan
    return columns.get(name, np.full(number, blank, dtype=like.dtype)).copy()


def design_of_devices(devices: Table, catalog: Catalog, designs: Table) -> Table:
    """Devices as rows of the sheet ``chiplets`` with equal cost; rows of ``designs`` of a device have priority."""
    technologies, _ = _technologies(devices, catalog, strict=False)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return _designs(devices, designs, technologies, derived_device(columns_of(devices), technologies))


def device_cost_parts(devices: Table, catalog: Catalog) -> Table | None:
    """Parts of the cost of devices (``chiplets_results``); None if the cost of a device is unknown."""
    if np.isnan(evaluate_devices(devices, catalog).number("unit_cost")).any():
        return None
    return evaluate_designs(design_of_devices(devices, catalog, catalog.tables["chiplets"]), catalog)


def accelerators_of(catalog: Catalog) -> Accelerators:
    """Accelerators of a catalog with the results of their devices, cached."""
    behind = tuple(catalog.tables[kind] for kind in _BEHIND)
    if behind not in _recent:
        _recent[behind] = _accelerators(catalog)
    _recent.move_to_end(behind)
    while len(_recent) > _MOST_KEPT:
        _recent.popitem(last=False)
    return _recent[behind]


def _accelerators(catalog: Catalog) -> Accelerators:
    table = catalog.tables["accelerators"]
    count = len(table)
    reasons, blank = np.full(count, "", dtype=object), np.full(count, np.nan)
    names = table.text("device")
    own = np.flatnonzero(names != "")
    rows = catalog.known_rows("devices", names[own])
    missing = own[rows < 0]
    reasons[missing] = [f"device {name} is not in the catalog" for name in names[missing].tolist()]
    own, rows = own[rows >= 0], rows[rows >= 0]
    if not len(own):
        return Accelerators(table, blank, blank, blank, reasons, False)
    # Each distinct device is evaluated once.
    used = sorted(set(rows.tolist()))
    at = np.array([used.index(row) for row in rows.tolist()]) if len(used) < len(rows) else np.argsort(np.argsort(rows))
    devices = catalog.tables["devices"].take(used)
    results = evaluate_devices(devices, catalog, strict=False)
    columns = dict(table.columns)

    of_devices = {
        **{column: results[result] for column, result in _FILLED.items()},
        "die_area": results["silicon_area"],
        "num_compute_dies": devices.filled("num_dies"),
        "technology_node": devices.text("technology"),
        "memory_type": devices.text("memory"),
    }
    for column, values in of_devices.items():
        stated = table.text(column) if values.dtype == object else table.number(column)
        blank = _blank(stated[own])
        columns[column] = filled = _copied(columns, column, values, count)
        filled[own[blank]] = values[at][blank]
    capex, price, drawn = np.full((3, count), np.nan)
    capex[own] = results["capex"][at]
    price[own] = capex[own] / devices.filled("system_price_ratio")[at]
    drawn[own] = (results["thermal_design_power"] * devices.filled("server_power_ratio"))[at]
    failed = np.isnan(results["thermal_design_power"])
    words = np.array(
        [
            f"device {name}: {reason}" if bad else ""
            for name, reason, bad in zip(devices["device"], results["reason"], failed, strict=True)
        ],
        dtype=object,
    )
    reasons[own] = words[at]
    return Accelerators(Table("accelerators", columns, table.place), capex, price, drawn, reasons, True)


BLOCK = 16_384  # rows per call of the equations

Progress = Callable[[int], None]


def evaluate_designs(
    designs: Table, catalog: Catalog, case: str = "base", placed: bool = False, progress: Progress | None = None
) -> Table:
    """Cost of every chiplet design by part (``chiplets_results``), in a case; ``placed`` counts whole dies on a grid,
    slowly. A design without a good die has NaN and a reason; InputError for unknown names, missing values and dies
    beyond the reticle.
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
    """Chiplet designs whose blank cells are filled from the device that they name."""
    named = np.flatnonzero(designs.text("device") != "") if "device" in designs else np.zeros(0, dtype=np.int64)
    if not len(named):
        return designs
    rows = catalog.rows("devices", designs.text("device")[named], designs.take(named), "device")
    made = design_of_devices(catalog.tables["devices"].take(rows), catalog, Table("chiplets", {}))
    columns = dict(designs.columns)
    for name, values in made.columns.items():
        if name != "chiplet":
            columns[name] = filled = _copied(columns, name, values, len(designs))
            filled[named] = np.where(_blank(filled[named]), values, filled[named])
    return Table("chiplets", columns, designs.place)


def _block(designs: Table, catalog: Catalog, case: str, placed: bool) -> dict[str, np.ndarray]:
    def named(kind: str, column: str) -> Columns:
        none = np.full(len(designs), -1)
        rows = catalog.rows(kind, designs.text(column), designs, column) if column in designs else none
        return columns_of(catalog.tables[kind], rows, case)

    design, package = columns_of(designs, case=case), named("packages", "package")
    node, base_node = named("process_nodes", "node"), named("process_nodes", "base_node")
    _refuse(designs, design_rules(design, node, base_node, package))
    costs = design_cost(design, node, base_node, package, placed)
    reason = np.full(len(designs), "", dtype=object)
    made, good = ~np.isnan(costs["raw_die_cost"]), ~np.isnan(costs["good_die_cost"])
    reason[np.isnan(costs["unit_cost"])] = "base dies or carrier do not fit on a wafer, or none is good"
    reason[made & ~good] = "no compute die is good"
    reason[~made] = "no compute die fits on a wafer"
    return {**costs, "reason": reason}


def _refuse(designs: Table, rules: Sequence[DesignRule]) -> None:
    """Raise InputError with every rule that a design breaks."""
    if faults := [Fault(designs.place(row, column), words) for row, column, words in _broken_rules(designs, rules)]:
        raise InputError(faults)


def _broken_rules(designs: Table, rules: Sequence[DesignRule]) -> Iterator[tuple[int, str, str]]:
    """Row, column and sentence of every rule that a design breaks."""
    names = designs.text("package")
    for rule in rules:
        for row in np.flatnonzero(rule.broken).tolist():
            values = {name: values[row] for name, values in rule.values.items()}
            yield row, rule.column, rule.sentence.format(package=names[row], **values)
