r"""Cost of a chiplet design: dies, carrier and substrate, module, one-time costs, price and carbon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Columns, Numeric, array, ceil_div, power
from xlperf.equations.cost import dies
from xlperf.equations.cost.tco import die_carbon, sale_price

ORGANIC = ("soc", "organic")  # structures whose substrate is the carrier
STACKED = "hybrid-bonding"
CHIPS_FIRST = "fan-out-first"


class DesignRule(NamedTuple):
    """A rule of a design."""

    column: str  # To blame
    broken: np.ndarray  # Mask of the designs that break it
    sentence: str  # Braces take the row's values
    values: Mapping[str, np.ndarray] = {}


class _Dies(NamedTuple):
    """Dies of one kind."""

    per_wafer: Array  # [-]
    sold: Array  # Yield of dies good enough to sell [-]
    passed: Array  # Share that passes the sort [-]
    raw: Array  # Cost of a die, good or bad [USD]
    good: Array  # Cost of a die that passes, without the sort [USD]
    sort: Array  # Cost of the sort of a die [USD]
    carbon: Array  # Of a die that passes [kg]


class _Package(NamedTuple):
    """Carrier and substrate of a module."""

    carrier_area: Array  # [mm2]
    substrate_area: Array  # [mm2]
    bridges: Array  # Number [-]
    carrier: Array  # Cost [USD]
    substrate: Array  # Cost [USD]
    carrier_yield: Array  # [-]
    attach_yield: Array  # [-]
    layers: Array  # Price factor of the substrate's layers [-]


def design_cost(design: Columns, node: Columns, base_node: Columns, package: Columns) -> dict[str, Array]:
    """Cost of a module by part, one-time costs, price and carbon: columns of the sheet ``chiplets_results``."""
    num_dies, num_base, stacks, dummies = (
        design.num_dies,
        design.num_base_dies,
        design.memory_stacks,
        design.num_dummy_dies,
    )
    based, stacked = num_base > 0.0, package.structure == STACKED
    area, base_area = _die_area(design, package), np.where(based, design.base_area, 0.0)
    chip = _dies(design, node, area, design.die_width, harvested=True)
    base = _base_dies(design, base_node)
    # Parts on the carrier, and their area [mm2]; memory beside it is soldered to the board after the test.
    inside = np.where(design.stack_area > 0.0, stacks, 0.0)
    on_carrier = np.where(stacked, 0.0, num_dies) + num_base + inside + dummies
    carried = np.where(stacked, 0.0, num_dies * area) + num_base * base_area + stacks * design.stack_area
    carried = carried + dummies * design.dummy_area
    # Bridges: one beside each stack and between neighbouring dies, unless stated.
    usual = np.where(package.structure == "bridge", inside + num_dies + num_base - 1.0, 0.0)
    bridges = np.where(np.isnan(design.num_bridges), usual, design.num_bridges)
    below = _package(package, carried, num_dies + num_base, bridges)
    memory = np.where(stacks > 0.0, stacks * design.stack_capacity * design.memory_price, 0.0)
    within = np.where(inside < stacks, 0.0, memory)
    module = _module(design, package, area, base_area, chip, base, below, on_carrier, within)
    # Cost of the tested module with all memory, then one-time costs and the unit on its board [USD].
    cost = dies.module_cost(module)._asdict()
    cost["total"] = cost["total"] + (memory - cost["memory"])
    cost["memory"] = memory
    one_time = _one_time(design, node, base_node, package, area, base_area, below)
    bill = cost["total"] + design.board_cost
    unit = bill + one_time["nre_per_unit"]
    # Carbon of dies, memory and package per module that passes the final test [kg].
    bonded = np.where(unit == unit, module.stack_yield * module.bonding_yield * below.attach_yield, np.nan)
    sold = bonded * module.final_yield
    made = (num_dies * chip.carbon + num_base * base.carbon) / sold
    stored = np.where(stacks > 0.0, stacks * design.stack_capacity * design.memory_carbon, 0.0) / sold
    carrier = np.where(np.isnan(below.carrier_area), 0.0, below.carrier_area) / below.carrier_yield
    packaged = (package.assembly_carbon + carrier * package.carrier_carbon) / sold
    return {
        "die_area": area,
        "dies_per_wafer": chip.per_wafer,
        "die_yield": chip.sold,
        "raw_die_cost": chip.raw,
        "good_die_cost": chip.good + chip.sort / chip.passed,
        "base_die_yield": np.where(based, base.sold, np.nan),
        "good_base_die_cost": np.where(based, base.good, np.nan),
        "carrier_area": below.carrier_area,
        "carrier_yield": below.carrier_yield,
        "substrate_area": below.substrate_area,
        "module_cost": cost.pop("total"),
        **cost,
        **one_time,
        "board_cost": design.board_cost,
        "bill_of_materials": bill,
        "unit_cost": unit,
        "sale_price": sale_price(unit, design.margin_share),
        "die_carbon": made,
        "stacked_memory_carbon": stored,
        "package_carbon": packaged,
        "embodied_carbon": made + stored + packaged + design.board_carbon,
    }


def _die_area(design: Columns, package: Columns) -> Array:
    """Area of a compute die with its die-to-die links: macros for their bandwidth, or a share of the module."""
    macros = ceil_div(design.link_bandwidth, package.link_bandwidth) * package.link_area  # whole macros of a standard
    share = design.module_area * design.link_area_share
    return np.asarray(design.module_area + np.where(np.isnan(design.link_bandwidth), share, macros))


def _across(area: Array, width: Numeric, reticle_width: Array) -> Array:
    """Width of dies: as given, else square, else as wide as the reticle."""
    return np.asarray(np.where(np.isnan(width), np.minimum(np.sqrt(area), reticle_width), width))


def _oversized(across: Array, down: Array, node: Columns) -> np.ndarray:
    """Whether dies need more than one exposure field, laid along or across."""
    along = (across <= node.reticle_width) & (down <= node.reticle_height)
    return np.asarray(~(along | ((down <= node.reticle_width) & (across <= node.reticle_height))))


def _model_yield(node: Columns, defects: Array) -> Array:
    """Yield of dies by the model of their node: each model is one call."""
    models, result = node.yield_model, np.full(defects.shape, np.nan)
    for model in dict.fromkeys(models.tolist()):
        rows = models == model
        if rows.all() and model:
            return dies.die_yield(model, defects, node.clustering, node.num_critical_layers)
        if model:
            layers = node.num_critical_layers[rows]
            result[rows] = dies.die_yield(model, defects[rows], node.clustering[rows], layers)
    return result


def _die_yield(design: Columns, node: Columns, area: Array, harvested: bool) -> Array:
    """Share of dies that can be sold: perfect ones, or those with enough good units; before the seams of fields."""
    defects = dies.critical_defects(area, node.defect_density, node.critical_area_ratio)
    perfect = _model_yield(node, defects)
    units = ~np.isnan(design.num_units)
    if not harvested or not units.any():
        return perfect
    share, number = design.perfect_area_share, np.where(units, design.num_units, 1.0)
    needed = np.where(np.isnan(design.num_units_needed), number, design.num_units_needed)
    unit = _model_yield(node, defects * (1.0 - share) / number)
    enough = _model_yield(node, defects * share) * dies.harvested_yield(unit, number, needed)
    return np.where(units, enough, perfect)


def _dies(design: Columns, node: Columns, area: Array, width: Numeric, harvested: bool) -> _Dies:
    """Dies of one kind, from the wafer to those that pass the sort."""
    across = _across(area, width, node.reticle_width)
    down = area / across
    wafer_sizes = node.wafer_diameter, node.edge_exclusion, node.scribe_width
    per_wafer = dies.dies_per_wafer(across, down, *wafer_sizes)
    sold = _die_yield(design, node, area, harvested)
    if _oversized(across, down, node).any():
        # Exposure fields in the better orientation (CATCH, arXiv:2503.15753)
        along = ceil_div(across, node.reticle_width) * ceil_div(down, node.reticle_height)
        fields = np.minimum(along, ceil_div(down, node.reticle_width) * ceil_div(across, node.reticle_height))
        sold = np.where(fields > 1.0, sold * power(node.stitch_yield, fields - 1.0), sold)  # seams fail independently
    wafer = node.wafer_price
    if node.lithography_share.any():
        # Partly filled fields: more exposures for the same dies (CATCH, arXiv:2503.15753)
        used = dies.reticle_utilization(area, node.reticle_width * node.reticle_height)
        wafer = wafer * (1.0 - node.lithography_share + node.lithography_share / used)
    raw = dies.raw_die_cost(wafer, np.where(per_wafer > 0.0, per_wafer, np.nan))
    passed = 1.0 - (1.0 - sold) * design.test_coverage  # dies that pass a test of this coverage (arXiv:2503.15753)
    passed = np.where(passed > 0.0, passed, np.nan)
    carbon = die_carbon(
        area, passed, node.fab_energy, node.fab_carbon_intensity, node.fab_gas_carbon, node.fab_material_carbon
    )
    sort = node.sort_time * node.tester_rate
    return _Dies(per_wafer, sold, passed, raw, dies.good_die_cost(raw, 0.0, passed), sort, carbon)


def _base_dies(design: Columns, node: Columns) -> _Dies:
    """Base dies, which must be perfect; zeros without base dies."""
    based = design.num_base_dies > 0.0
    if not based.any():
        return _Dies(*(np.zeros(based.shape),) * len(_Dies._fields))
    base = _dies(design, node, design.base_area, np.nan, harvested=False)
    return _Dies(*(np.where(based, values, 0.0) for values in base))


def _package(package: Columns, carried: Array, chips: Array, bridges: Array) -> _Package:
    """Carrier and substrate; an organic substrate is its own carrier."""
    organic = np.isin(package.structure, ORGANIC)
    carrier_area = carried * package.carrier_area_ratio
    substrate_area = np.where(organic, carried, carrier_area) * package.substrate_area_ratio
    parts = np.where(organic, chips, 1.0)
    # Substrates of several chips have more layers, larger ones the most (Chiplet Actuary, doi:10.1145/3489517.3530428).
    medium = np.where(substrate_area > package.substrate_medium_area, 1.75, 1.5)
    several = np.where(substrate_area > package.substrate_large_area, 2.0, medium)
    layers = np.where(parts > 1.0, several, 1.0)
    substrate = substrate_area * package.substrate_price * layers
    silicon = package.carrier_wafer_price / _carriers_per_wafer(package, carrier_area)
    carrier = silicon + carrier_area * package.carrier_bump_price + bridges * package.bridge_cost
    defects = dies.critical_defects(carrier_area, package.carrier_defect_density)
    good = dies.negative_binomial_yield(defects, package.carrier_clustering)
    fields = np.ceil(carrier_area / package.carrier_field_area)
    good = good * power(package.carrier_stitch_yield, fields - 1.0)  # seams between fields fail independently
    good = good * power(package.bridge_yield, bridges)
    return _Package(
        np.where(organic, np.nan, carrier_area),
        substrate_area,
        bridges,
        np.where(organic, substrate, carrier),
        np.where(organic, 0.0, substrate),
        np.where(organic, 1.0, good),
        np.where(organic, 1.0, package.attach_yield),
        np.where(organic, layers, 1.0),
    )


def _carriers_per_wafer(package: Columns, area: Array) -> Array:
    """Square carriers on a wafer; 1 for free wafers, NaN if no carrier fits."""
    side, wafer = np.sqrt(area), package.carrier_wafer_price
    sizes = (side, side, package.carrier_wafer_diameter, package.carrier_edge_exclusion, package.carrier_scribe_width)
    number = dies.dies_per_wafer(*sizes)
    exponential = package.carrier_count == "exponential"
    if exponential.any():
        number = np.where(exponential, dies.dies_by_rule("exponential", *sizes), number)
    return np.where(number > 0.0, number, np.where(wafer > 0.0, np.nan, 1.0))


def _module(
    design: Columns,
    package: Columns,
    area: Array,
    base_area: Array,
    chip: _Dies,
    base: _Dies,
    below: _Package,
    on_carrier: Array,
    memory: Array,
) -> dies.Module:
    """Costs and yields of the parts of a module: dies with bumps, memory, carrier, substrate with assembly."""
    num_dies, num_base = design.num_dies, design.num_base_dies
    based, stacked = num_base > 0.0, package.structure == STACKED
    # Bumps of all dies, bonding of stacked dies, and parts that assembly places.
    bumps = area * num_dies * package.bump_price + base_area * num_base * package.bump_price
    bonding = np.where(stacked, num_dies * area * package.stack_bonding_price, 0.0)
    assembled = on_carrier + below.bridges + np.where(stacked, num_dies, 0.0)
    # All bonds of a module are good: y^n for n parts (D. Stow et al., ICCAD 2017, doi:10.1109/ICCAD.2017.8203849).
    good = power(np.minimum(chip.sold / chip.passed, 1.0), num_dies)
    if based.any():
        good = good * np.where(based, power(base.sold / base.passed, num_base), 1.0)
    base_sort = np.where(based, num_base * base.sort / base.passed, 0.0)
    return dies.Module(
        chips_first=np.asarray(package.structure == CHIPS_FIRST, dtype=float),
        raw_dies=num_dies * chip.raw + num_base * base.raw + bumps + bonding,
        die_defects=num_dies * (chip.good - chip.raw) + num_base * (base.good - base.raw),
        sort_test=num_dies * chip.sort / chip.passed + base_sort,
        memory=memory,
        carrier=below.carrier,
        substrate=below.substrate + (package.assembly_cost + assembled * package.assembly_cost_per_part),
        final_test=package.final_test_time * package.tester_rate,
        carrier_yield=below.carrier_yield,
        bonding_yield=power(package.bonding_yield, on_carrier),
        attach_yield=below.attach_yield,
        stack_yield=np.where(stacked, power(package.stack_bonding_yield, num_dies), 1.0),
        final_yield=package.final_yield * good,
    )


def _one_time(
    design: Columns, node: Columns, base_node: Columns, package: Columns, area: Array, base_area: Array, below: _Package
) -> dict[str, Array]:
    """One-time costs of modules, chips, masks and package, in total and per module."""
    num_dies, num_base, volume = design.num_dies, design.num_base_dies, design.volume
    # Design of the modules of the dies and of their link, of the dies, and their masks; the same of base dies; package.
    based = np.where(num_base > 0.0, 1.0, 0.0)
    module_rate, chip_rate, fixed, mask_set = (
        np.where(based > 0.0, getattr(base_node, name), 0.0)
        for name in ("nre_module_per_area", "nre_chip_per_area", "nre_chip_fixed", "mask_set_price")
    )
    linked = np.where(area - design.module_area > 0.0, package.link_design_area, 0.0)
    modules = dies.chip_nre(design.module_area, design.num_designs, node.nre_module_per_area)
    modules = modules + dies.chip_nre(linked, 1.0, node.nre_module_per_area)
    chips = dies.chip_nre(area, design.num_designs, node.nre_chip_per_area, node.nre_chip_fixed)
    masks = design.num_designs * node.mask_set_price
    base_modules = dies.chip_nre(base_area, based, module_rate)
    base_chips = dies.chip_nre(base_area, based, chip_rate, fixed)
    packaging = np.where(np.isnan(below.carrier_area), 0.0, below.carrier_area) * package.nre_per_carrier_area
    packaging = packaging + below.substrate_area * (package.nre_per_substrate_area * below.layers) + package.nre_fixed
    family = np.where(np.isnan(design.family_volume), num_dies * volume, design.family_volume)
    base_made = np.where(num_base > 0.0, num_base * volume, 1.0)
    base_family = np.where(np.isnan(design.base_family_volume), base_made, design.base_family_volume)
    # A family of products shares a design: one-time cost times parts in the product, over all parts (Chiplet Actuary).
    per_unit = (modules + chips + masks) * num_dies / family
    per_unit = per_unit + (base_modules + base_chips + mask_set) * num_base / base_family
    return {
        "nre_module": modules + base_modules,
        "nre_chip": chips + base_chips,
        "nre_package": packaging,
        "nre_masks": masks + mask_set,
        "nre_per_unit": per_unit + packaging / volume,
    }


def fits_reticle(area: Numeric, width: Numeric, node: Columns) -> np.ndarray:
    """Whether dies fit one exposure field of their node, or the node stitches fields; unknown areas fit."""
    size = array(area)
    across = _across(size, width, node.reticle_width)
    known = ~np.isnan(size / across)
    return np.asarray(~(known & _oversized(across, size / across, node) & np.isnan(node.stitch_yield)))


def carrier_rule(design: Columns, package: Columns) -> DesignRule:
    """Stacks beside the dies have more wires than an organic substrate: they need silicon or fan-out below them."""
    stacked = (design.memory_stacks > 0.0) & (design.stack_area > 0.0)
    words = 'stacks of memory need an interposer, bridges or fan-out, and package "{package}" has none'
    return DesignRule("memory_stacks", stacked & np.isin(package.structure, ORGANIC), words)


def design_rules(design: Columns, node: Columns, base_node: Columns, package: Columns) -> list[DesignRule]:
    """Rules of chiplet designs: mandatory numbers, and limits of dies and dies."""
    based, has_memory = design.num_base_dies > 0.0, design.memory_stacks > 0.0
    has_base = ~np.isnan(base_node.wafer_price)
    linked = ~np.isnan(design.link_bandwidth)
    memory = "{words} must be given where there are stacks of memory"
    large = (
        "a die of {across:.4g} x {down:.4g} mm ({area:.4g} mm2) is larger than the reticle of {wide:g} x {high:g} mm; "
        "split it, or give its node a stitch yield"
    )
    # Numbers that must or must not be given, then the reticle.
    rules = [
        DesignRule(
            "link_bandwidth",
            linked & np.isnan(package.link_bandwidth + package.link_area),
            'package "{package}" has no die-to-die link; leave this blank',
        ),
        DesignRule(
            "base_area", based & np.isnan(design.base_area), "base area must be given where there are base dies"
        ),
        DesignRule("base_node", based & ~has_base, "base node must be given where there are base dies"),
        *(
            DesignRule(name, has_memory & np.isnan(getattr(design, name)), memory.format(words=name.replace("_", " ")))
            for name in ("stack_capacity", "memory_price")
        ),
        DesignRule(
            "num_base_dies",
            (package.structure == STACKED) & ~based,
            'package "{package}" bonds dies on base dies: give their number, or take another package',
        ),
        DesignRule(
            "num_units_needed",
            design.num_units_needed > design.num_units,
            "more units are needed than a die has ({units:g})",
            {"units": design.num_units},
        ),
    ]
    chips = [("module_area", node, _die_area(design, package), design.die_width, np.full(based.shape, True))]
    if based.any():
        chips.append(("base_area", base_node, design.base_area, np.full(based.shape, np.nan), based & has_base))
    for name, process, area, width, present in chips:
        across = _across(area, width, process.reticle_width)
        values = {
            "across": across,
            "down": area / across,
            "area": area,
            "wide": process.reticle_width,
            "high": process.reticle_height,
        }
        rules.append(DesignRule(name, ~fits_reticle(area, width, process) & present, large, values))
    return rules
