"""Chiplet designs: rows of the sheet ``chiplets`` through the equations of dies and packages."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import results_of
from xlperf.catalog.table import Table
from xlperf.engine.cases import values_in_case
from xlperf.equations.cost.dies import (
    dies_per_wafer,
    dies_per_wafer_exponential,
    dies_per_wafer_placed,
    good_die_cost,
    link_area,
    lithography_cost_factor,
    raw_die_cost,
    reticle_fields,
    reticle_utilization,
    testing_cost,
)
from xlperf.equations.cost.packages import (
    amortized_nre,
    bond_yield,
    bumping_cost,
    carrier_cost,
    chip_nre,
    module_cost,
    package_nre,
    substrate_cost,
    substrate_layer_factor,
)
from xlperf.equations.cost.systems import die_carbon, sale_price
from xlperf.equations.cost.yields import (
    critical_defects,
    die_yield,
    harvested_yield,
    negative_binomial_yield,
    sort_pass_share,
    stitching_yield,
)

BLOCK = 16_384
"""Rows that go through the equations together."""
_ORGANIC = ("soc", "organic")

Columns = dict[str, np.ndarray]
Progress = Callable[[int], None]


class _Dies(NamedTuple):
    """Dies of one kind: what one is, and what one costs."""

    area: Array
    per_wafer: Array
    sold: Array
    passed: Array
    raw: Array
    good: Array
    sort: Array
    carbon: Array


class _Package(NamedTuple):
    """Areas, costs and yields of the parts that dies are put on."""

    carrier_area: Array
    substrate_area: Array
    carrier: Array
    substrate: Array
    carrier_yield: Array
    bonding_yield: Array
    attach_yield: Array
    layers: Array


def evaluate_designs(
    designs: Table,
    catalog: Catalog,
    case: str = "base",
    placed: bool = False,
    progress: Progress | None = None,
) -> Table:
    """Cost of every chiplet design of a table, by part.

    Parameters
    ----------
    designs : Table
        Rows of kind ``chiplets``.
    catalog : Catalog
        Process nodes and packages that they name.
    case : str, default "base"
        ``low``, ``base`` or ``high``: which of the prices and yields that have a low and a high value.
    placed : bool, default False
        Count whole dies on a grid instead of the closed formula; slow.
    progress : callable, optional
        Called with the number of rows of each block that is done.

    Returns
    -------
    Table
        ``chiplets_results``, one row per design, in the units used inside. A design of which no die fits on a wafer,
        or none is good, has NaN and a reason.

    Raises
    ------
    InputError
        When a design names a node or package that the catalog does not have, lacks what its other cells ask for, or
        has a die that is larger than the reticle of a node without stitching.
    """
    schema = results_of("chiplets")
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


class _Rows(dict[str, np.ndarray]):
    """Columns of a catalog table for each design, looked up when first asked for; blanks as the schema has them."""

    def __init__(self, table: Table, rows: np.ndarray, case: str) -> None:
        super().__init__()
        self._table, self._rows, self._case = table, rows, case

    def __missing__(self, name: str) -> np.ndarray:
        values = values_in_case(self._table, name, self._case)
        self[name] = found = values[self._rows] if len(values) else np.full(len(self._rows), np.nan)
        return found


def _nodes(designs: Table, catalog: Catalog, column: str, case: str) -> tuple[Columns, np.ndarray]:
    """Process node of each design, and whether it names one."""
    if column in designs:
        rows = catalog.rows("process_nodes", designs.text(column), designs, column)
    else:
        rows = np.full(len(designs), -1)
    return _Rows(catalog.tables["process_nodes"], np.maximum(rows, 0), case), rows >= 0


def _yield(node: Columns, defects: Array) -> Array:
    """Yield of each die by the model of its node: each model is one call."""
    models = node["yield_model"]
    result = np.full(defects.shape, np.nan)
    for model in dict.fromkeys(models.tolist()):
        rows = models == model
        if rows.all():
            return die_yield(str(model), defects, node["clustering"], node["num_critical_layers"])
        result[rows] = die_yield(str(model), defects[rows], node["clustering"][rows], node["num_critical_layers"][rows])
    return result


def _across(area: Array, width: Array, reticle_width: Array) -> Array:
    """Width of dies: as given, else square, else as wide as the reticle."""
    return np.asarray(np.where(np.isnan(width), np.minimum(np.sqrt(area), reticle_width), width))


def _dies(node: Columns, area: Array, width: Array, designs: Table, placed: bool, units: bool) -> _Dies:
    across = _across(area, width, node["reticle_width"])
    down = area / across
    fields = reticle_fields(across, down, node["reticle_width"], node["reticle_height"])
    count = dies_per_wafer_placed if placed else dies_per_wafer
    per_wafer = count(across, down, node["wafer_diameter"], node["edge_exclusion"], node["scribe_width"])
    defects = critical_defects(area, node["defect_density"], node["critical_area_ratio"])
    sold = _yield(node, defects)
    number = designs.number("num_units")
    harvested = ~np.isnan(number) if units else np.zeros(len(area), dtype=bool)
    if harvested.any():
        perfect = designs.filled("perfect_area_share")
        number = np.where(harvested, number, 1.0)
        needed = designs.number("num_units_needed")
        needed = np.where(np.isnan(needed), number, needed)
        unit = _yield(node, defects * (1.0 - perfect) / number)
        sold = np.where(harvested, _yield(node, defects * perfect) * harvested_yield(unit, number, needed), sold)
    if (fields > 1.0).any():
        sold = np.where(fields > 1.0, sold * stitching_yield(node["stitch_yield"], fields), sold)
    wafer = node["wafer_price"]
    if node["lithography_share"].any():
        used = reticle_utilization(area, node["reticle_width"] * node["reticle_height"])
        wafer = wafer * lithography_cost_factor(node["lithography_share"], used)
    raw = raw_die_cost(wafer, np.where(per_wafer > 0.0, per_wafer, np.nan))
    sort = testing_cost(node["sort_time"], node["tester_rate"])
    passed = sort_pass_share(sold, designs.filled("test_coverage"))
    passed = np.where(passed > 0.0, passed, np.nan)
    carbon = die_carbon(
        area, passed, node["fab_energy"], node["fab_carbon_intensity"], node["fab_gas_carbon"],
        node["fab_material_carbon"],
    )  # fmt: skip
    return _Dies(area, per_wafer, sold, passed, raw, good_die_cost(raw, 0.0, passed), sort, carbon)


def _package(package: Columns, areas: Array, dies: Array, parts: Array, bridges: Array) -> _Package:
    """Carrier and substrate; where there is no other carrier, the substrate is the carrier."""
    structure = package["structure"]
    organic = np.isin(structure, _ORGANIC)
    carrier_area = areas * package["carrier_area_ratio"]
    substrate_area = np.where(organic, areas, carrier_area) * package["substrate_area_ratio"]
    chips = np.where(structure == "organic", dies, 1.0)
    medium, large = package["substrate_medium_area"], package["substrate_large_area"]
    layers = substrate_layer_factor(substrate_area, chips, medium, large)
    substrate = substrate_cost(substrate_area, package["substrate_price"], layers)
    side = np.sqrt(carrier_area)
    sizes = (side, side, package["carrier_wafer_diameter"], package["carrier_edge_exclusion"],
             package["carrier_scribe_width"])  # fmt: skip
    per_wafer = dies_per_wafer(*sizes)
    exponential = package["carrier_count"] == "exponential"
    if exponential.any():
        per_wafer = np.where(exponential, dies_per_wafer_exponential(*sizes), per_wafer)
    wafer = package["carrier_wafer_price"]
    usable = np.where(per_wafer > 0.0, per_wafer, np.where(wafer > 0.0, np.nan, 1.0))
    bumps = package["carrier_bump_price"]
    carrier = carrier_cost(wafer, usable, carrier_area, bumps, bridges, package["bridge_cost"])
    defects = critical_defects(carrier_area, package["carrier_defect_density"])
    good = negative_binomial_yield(defects, package["carrier_clustering"])
    good = good * stitching_yield(
        package["carrier_stitch_yield"], np.ceil(carrier_area / package["carrier_field_area"])
    )
    good = good * bond_yield(package["bridge_yield"], bridges)
    return _Package(
        np.where(organic, np.nan, carrier_area),
        substrate_area,
        np.where(organic, substrate, carrier),
        np.where(organic, 0.0, substrate),
        np.where(organic, 1.0, good),
        bond_yield(package["bonding_yield"], parts),
        np.where(organic, 1.0, package["attach_yield"]),
        np.where(organic, layers, 1.0),
    )


def _block(designs: Table, catalog: Catalog, case: str, placed: bool) -> Columns:
    node, _ = _nodes(designs, catalog, "node", case)
    base_node, has_base = _nodes(designs, catalog, "base_node", case)
    rows = catalog.rows("packages", designs.text("package"), designs, "package")
    package: Columns = _Rows(catalog.tables["packages"], rows, case)
    number = {c.name: values_in_case(designs, c.name, case) for c in designs.schema.columns if c.kind == "number"}
    num_dies, num_base, stacks = number["num_dies"], number["num_base_dies"], number["memory_stacks"]
    linked = number["link_bandwidth"]
    module_area = number["module_area"]
    own_links = link_area(linked, package["link_bandwidth"], package["link_area"])
    link = np.where(np.isnan(linked), module_area * number["link_area_share"], own_links)
    area = module_area + link
    _refuse(designs, node, base_node, has_base, package, number, area)
    dies = _dies(node, area, number["die_width"], designs, placed, units=True)
    base_area = np.where(num_base > 0.0, number["base_area"], 0.0)
    if num_base.any():
        base = _dies(base_node, number["base_area"], np.full(len(area), np.nan), designs, placed, units=False)
        base = _Dies(*(np.where(num_base > 0.0, values, 0.0) for values in base))
    else:
        base = _Dies(*(np.zeros(len(area)) for _ in _Dies._fields))
    stacked = package["structure"] == "hybrid-bonding"
    dummies = number["num_dummy_dies"]
    on_carrier = np.where(stacked, 0.0, num_dies) + num_base + stacks + dummies
    areas = np.where(stacked, 0.0, num_dies * area) + num_base * base_area + stacks * number["stack_area"]
    areas = areas + dummies * number["dummy_area"]
    parts = on_carrier + number["num_bridges"]
    below = _package(package, areas, num_dies + num_base, on_carrier, number["num_bridges"])
    bumps = bumping_cost(area, num_dies, package["bump_price"]) + bumping_cost(
        base_area, num_base, package["bump_price"]
    )
    bonding = np.where(stacked, num_dies * area * package["stack_bonding_price"], 0.0)
    assembly = package["assembly_cost"] + (parts + np.where(stacked, num_dies, 0.0)) * package["assembly_cost_per_part"]
    quality = bond_yield(np.minimum(dies.sold / dies.passed, 1.0), num_dies)
    if num_base.any():
        quality = quality * np.where(num_base > 0.0, bond_yield(base.sold / base.passed, num_base), 1.0)
    arguments = {
        "raw_dies": num_dies * dies.raw + num_base * base.raw + bumps + bonding,
        "die_defects": num_dies * (dies.good - dies.raw) + num_base * (base.good - base.raw),
        "sort_test": num_dies * dies.sort / dies.passed
        + np.where(num_base > 0.0, num_base * base.sort / base.passed, 0.0),
        "memory": np.where(stacks > 0.0, stacks * number["stack_capacity"] * number["memory_price"], 0.0),
        "carrier": below.carrier,
        "substrate": below.substrate + assembly,
        "final_test": testing_cost(package["final_test_time"], package["tester_rate"]),
        "carrier_yield": below.carrier_yield,
        "bonding_yield": below.bonding_yield,
        "attach_yield": below.attach_yield,
        "stack_yield": np.where(stacked, bond_yield(package["stack_bonding_yield"], num_dies), 1.0),
        "final_yield": package["final_yield"] * quality,
    }
    module = _module(package["structure"] == "fan-out-first", arguments)
    one_time = _one_time(node, base_node, package, number, module_area, link, area, base_area, below)
    bill = module["total"] + number["board_cost"]
    unit = bill + one_time["nre_per_unit"]
    reason = np.full(len(area), "", dtype=object)
    reason[np.isnan(dies.raw)] = "no compute die fits on a wafer"
    reason[~np.isnan(dies.raw) & np.isnan(dies.passed)] = "no compute die is good"
    reason[(reason == "") & np.isnan(unit)] = "base dies or carrier do not fit on a wafer, or none is good"
    made = num_dies * dies.carbon + num_base * base.carbon
    good_modules = np.where(unit == unit, arguments["stack_yield"] * below.bonding_yield * below.attach_yield, np.nan)
    return {
        "die_area": area,
        "dies_per_wafer": dies.per_wafer,
        "die_yield": dies.sold,
        "raw_die_cost": dies.raw,
        "good_die_cost": dies.good + dies.sort / dies.passed,
        "base_die_yield": np.where(num_base > 0.0, base.sold, np.nan),
        "good_base_die_cost": np.where(num_base > 0.0, base.good, np.nan),
        "carrier_area": below.carrier_area,
        "carrier_yield": below.carrier_yield,
        "substrate_area": below.substrate_area,
        "module_cost": module.pop("total"),
        **module,
        **one_time,
        "board_cost": number["board_cost"],
        "bill_of_materials": bill,
        "unit_cost": unit,
        "sale_price": sale_price(unit, number["margin_share"]),
        "die_carbon": made / (good_modules * arguments["final_yield"]),
        "reason": reason,
    }


def _module(first: np.ndarray, arguments: dict[str, Array]) -> dict[str, Array]:
    """Cost of modules; those that are assembled chips first and those chips last are one call each."""
    if not first.any() or first.all():
        return module_cost("chips-first" if first.any() else "chips-last", **arguments)._asdict()
    result = module_cost("chips-last", **arguments)._asdict()
    other = module_cost("chips-first", **{name: values[first] for name, values in arguments.items()})._asdict()
    for name, values in other.items():
        result[name][first] = values
    return result


def _one_time(
    node: Columns,
    base_node: Columns,
    package: Columns,
    number: Columns,
    module_area: Array,
    link: Array,
    area: Array,
    base_area: Array,
    below: _Package,
) -> dict[str, Array]:
    """One-time costs in all, and what one module carries."""
    designs, volume, num_dies = number["num_designs"], number["volume"], number["num_dies"]
    num_base = number["num_base_dies"]
    based = np.where(num_base > 0.0, 1.0, 0.0)
    rates = {name: np.where(based > 0.0, base_node[name], 0.0)
             for name in ("nre_module_per_area", "nre_chip_per_area", "nre_chip_fixed", "mask_set_price")}  # fmt: skip
    links = chip_nre(np.where(link > 0.0, package["link_design_area"], 0.0), 1.0, node["nre_module_per_area"])
    modules = chip_nre(module_area, designs, node["nre_module_per_area"]) + links
    chips = chip_nre(area, designs, node["nre_chip_per_area"], node["nre_chip_fixed"])
    masks = designs * node["mask_set_price"]
    base_modules = chip_nre(base_area, based, rates["nre_module_per_area"])
    base_chips = chip_nre(base_area, based, rates["nre_chip_per_area"], rates["nre_chip_fixed"])
    carrier = np.where(np.isnan(below.carrier_area), 0.0, below.carrier_area)
    fixed, per_substrate = package["nre_fixed"], package["nre_per_substrate_area"] * below.layers
    packaging = package_nre(carrier, package["nre_per_carrier_area"], below.substrate_area, per_substrate, fixed)
    made = num_dies * volume
    family = np.where(np.isnan(number["family_volume"]), made, number["family_volume"])
    base_made = np.where(num_base > 0.0, num_base * volume, 1.0)
    base_family = np.where(np.isnan(number["base_family_volume"]), base_made, number["base_family_volume"])
    per_unit = amortized_nre(modules + chips + masks, num_dies, family)
    per_unit = per_unit + amortized_nre(base_modules + base_chips + rates["mask_set_price"], num_base, base_family)
    return {
        "nre_module": modules + base_modules,
        "nre_chip": chips + base_chips,
        "nre_package": packaging,
        "nre_masks": masks + rates["mask_set_price"],
        "nre_per_unit": per_unit + amortized_nre(packaging, 1.0, volume),
    }


def _refuse(
    designs: Table,
    node: Columns,
    base_node: Columns,
    has_base: np.ndarray,
    package: Columns,
    number: Columns,
    area: Array,
) -> None:
    """Raise every fault that takes more than one cell to see."""
    faults: list[Fault] = []

    def add(wrong: np.ndarray, column: str, problem: Callable[[int], str]) -> None:
        faults.extend(Fault(designs.place(row, column), problem(row)) for row in np.flatnonzero(wrong).tolist())

    def needs(column: str, wanted: np.ndarray, by: str) -> None:
        words, given = column.replace("_", " "), number[column]
        add(wanted & np.isnan(given), column, lambda _row: f"{words} must be given where there are {by}")

    width = number["die_width"]
    unlinked = ~np.isnan(number["link_bandwidth"]) & np.isnan(package["link_bandwidth"] + package["link_area"])
    text = designs.text("package")
    add(unlinked, "link_bandwidth", lambda row: f'package "{text[row]}" has no die-to-die link; leave this blank')
    based = number["num_base_dies"] > 0.0
    needs("base_area", based, "base dies")
    add(based & ~has_base, "base_node", lambda _row: "base node must be given where there are base dies")
    needs("stack_capacity", number["memory_stacks"] > 0.0, "stacks of memory")
    needs("memory_price", number["memory_stacks"] > 0.0, "stacks of memory")
    stacked = package["structure"] == "hybrid-bonding"
    add(
        stacked & ~based,
        "num_base_dies",
        lambda row: f'package "{text[row]}" bonds dies on base dies; give their number',
    )
    wanted = number["num_units_needed"] > number["num_units"]
    add(wanted, "num_units_needed", lambda row: f"more units are needed than a die has ({number['num_units'][row]:g})")
    across = _across(area, width, node["reticle_width"])
    seen = [("module_area", node, area, across, np.full(len(area), True))]
    if based.any():
        nothing = np.full(len(area), np.nan)
        wide = _across(number["base_area"], nothing, base_node["reticle_width"])
        seen.append(("base_area", base_node, number["base_area"], wide, based & has_base))
    for name, kind, size, wide, present in seen:
        window = (kind["reticle_width"], kind["reticle_height"])
        large = (reticle_fields(wide, size / wide, *window) > 1.0) & np.isnan(kind["stitch_yield"]) & present

        def problem(row: int, size: Array = size, wide: Array = wide, window: tuple[Array, Array] = window) -> str:
            shape = f"{wide[row]:.4g} x {size[row] / wide[row]:.4g} mm ({size[row]:.4g} mm2)"
            field = f"{window[0][row]:g} x {window[1][row]:g} mm"
            return f"a die of {shape} is larger than the reticle of {field}; split it, or give its node a stitch yield"

        add(large, name, problem)
    if faults:
        raise InputError(faults)
