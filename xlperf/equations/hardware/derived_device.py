r"""An accelerator that follows from budgets: area, edge and power of its dies, and the technology they are made in.

Memory and links share the edge, cores, interfaces and cache the area, and the clock is the fastest at which cores,
memory, links and leakage stay within the power.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Columns, divide
from xlperf.equations.hardware import budgets

PEAKS = ("fp32", "tf32", "bf16", "fp8", "int8", "fp4")
"""Names of peak rates: ``flop_per_clock_<name>`` of a core, ``peak_flop_rate_<name>`` of its device."""
_ROUNDING = 1e-12
_CORE_ROUNDING = 1e-9
LEAST_OTHER, USUAL_OTHER = 0.1, 0.2
"""Shares of the silicon for wires and control, which serve the cores: below the first a device is refused, below the
second a remark says so. The sheet ``devices`` has 21 to 24 % for A100 to B200 (heuristic, this work). [-]"""


class Technologies(NamedTuple):
    """What devices are made of, one row per device; NaN where a device names none."""

    compute: Columns  # Node of the compute dies: rows of the sheet ``technology``
    # Node of the base dies, that of the compute dies where there are none: rows of the sheet ``technology``
    base: Columns
    core: Columns  # Rows of the sheet ``cores``
    core_node: Columns  # Node at which area and clock of the core are stated: rows of the sheet ``technology``
    memory: Columns  # Rows of the sheet ``memories``
    link: Columns  # Links to other accelerators: rows of the sheet ``links``
    die_link: Columns  # Links between the compute dies: rows of the sheet ``links``


class DerivedDevice(NamedTuple):
    """A device as its budgets give it, (rows,)."""

    results: dict[str, Array]  # Columns of the sheet ``devices_results``
    chiplet: dict[str, Array]  # The module that the device is made as: columns of the sheet ``chiplets``
    link_cost: Array  # Cables or optics of its links [USD]
    memory_by_power: np.ndarray  # Whether power rather than edge limits the stacks of memory
    clock_by_power: np.ndarray  # Whether the power budget limits the clock
    broken: dict[str, np.ndarray]  # Reasons why devices cannot be built, and the devices concerned


class _Floor(NamedTuple):
    """Areas of a device [mm2] and its outer edge [mm]."""

    silicon: Array
    compute: Array
    perimeter: Array


class _Interface(NamedTuple):
    """Memory stacks or link lanes: number, bandwidth [B/s], power [W] and area of the dies that they take [mm2]."""

    number: Array
    bandwidth: Array
    power: Array
    area: Array


class _Cores(NamedTuple):
    """Cores that are switched on, area of one [mm2], SRAM of one [B].

    Clocks [Hz]: that of the core at the node and its nominal voltage, and that of the device before any limit of power.
    """

    number: Array
    area: Array
    sram: Array
    nominal_clock: Array
    clock: Array


def derived_device(device: Columns, technologies: Technologies) -> DerivedDevice:
    r"""Rates, capacities, bandwidths, areas and power of devices within their budgets.

    The edge p holds memory and links, the area A holds cores, interfaces and, by the cache share c, cache; the clock
    is the largest :math:`f \le f_0` that keeps the power budget P:

    .. math:: A_\mathrm{cache} = c\,(A - A_\mathrm{cores} - A_\mathrm{memory} - A_\mathrm{links})

    .. math:: n f e\,v(f)^2 \le P - P_\mathrm{static} - P_\mathrm{memory} - P_\mathrm{links}

    A clock above that of the core at the node takes a higher voltage v, see :func:`~budgets.voltage_share`.
    """
    compute, base, core, memory = technologies.compute, technologies.base, technologies.core, technologies.memory
    floor = _floor(device)
    budget = np.where(np.isnan(device.power_budget), np.inf, device.power_budget)
    stacks, stacks_by_edge = _memory(device, memory, floor.perimeter, budget)
    links, die_links = _links(device, technologies, floor.perimeter), _die_links(device, technologies, stacks.bandwidth)
    link_area, link_power = links.area + die_links.area, links.power + die_links.power
    cores = _cores(device, technologies, floor.compute)
    left = floor.silicon - floor.compute - stacks.area - link_area
    cache_area = device.cache_share * left
    cache = cache_area / budgets.sram_area(base.sram_cell_area, base.sram_cell_share)

    static = budgets.static_power(floor.compute, compute.static_power)
    static = static + budgets.static_power(cache_area, base.static_power)
    spare = budget - static - stacks.power - link_power
    flop_energy, per_clock = compute.flop_energy * core.energy_ratio, cores.number * core.flop_per_clock_bf16
    least_voltage = compute.least_voltage / compute.voltage
    nominal_power = budgets.switching_power(per_clock * cores.nominal_clock, flop_energy, 1.0)
    wanted = cores.clock / cores.nominal_clock
    share = budgets.clock_share(spare, nominal_power, least_voltage, wanted)
    clock = cores.nominal_clock * share
    switching = budgets.switching_power(per_clock * clock, flop_energy, budgets.voltage_share(share, least_voltage))

    height = np.where(np.isnan(device.stack_height), memory.stack_height, device.stack_height)
    stack_capacity = height * memory.layer_capacity
    results = {
        "num_multiprocessors": cores.number,
        "sustained_clock_rate": clock,
        **{f"peak_flop_rate_{name}": cores.number * clock * getattr(core, f"flop_per_clock_{name}") for name in PEAKS},
        "l2_capacity": cache,
        "l2_bandwidth": cores.number * clock * core.cache_bytes_per_clock,
        "shared_memory_capacity": core.shared_memory_capacity,
        "shared_memory_bandwidth": cores.number * clock * core.shared_memory_bytes_per_clock,
        "sram_capacity": cache + cores.number * cores.sram,
        "memory_stacks": stacks.number,
        "memory_capacity": stacks.number * height * memory.layer_capacity,
        "memory_bandwidth": stacks.bandwidth,
        "num_lanes": links.number,
        "link_bandwidth": np.where(_present(technologies.link), links.bandwidth, np.nan),
        "thermal_design_power": switching + static + stacks.power + link_power,
        "power_compute": switching,
        "power_static": static,
        "power_memory": stacks.power,
        "power_links": link_power,
        "energy_per_flop": divide(switching, per_clock * clock),
        "memory_energy": memory.energy,
        "link_energy": technologies.link.energy,
        "silicon_area": floor.silicon,
        "outer_perimeter": floor.perimeter,
        "area_share_compute": floor.compute / floor.silicon,
        "area_share_cache": cache_area / floor.silicon,
        "area_share_memory": stacks.area / floor.silicon,
        "area_share_links": link_area / floor.silicon,
        "area_share_other": (left - cache_area) / floor.silicon,
    }
    return DerivedDevice(
        results,
        _chiplet(device, memory, floor, cores, stacks.number, stack_capacity),
        np.where(links.bandwidth > 0.0, technologies.link.price * links.bandwidth, 0.0),
        stacks.number < stacks_by_edge,
        share < wanted,
        _broken(device, technologies, floor, stacks, links, die_links, cores, left, spare),
    )


def _present(technology: Columns) -> np.ndarray:
    """Whether a device names links."""
    return np.asarray(~np.isnan(technology.shoreline_bandwidth))


def _floor(device: Columns) -> _Floor:
    """Base dies, where there are any, hold cache and interfaces and give the outer edge."""
    based = device.num_base_dies > 0.0
    dies = device.num_dies * device.die_area
    base = np.where(based, device.num_base_dies * device.base_area, 0.0)
    perimeter = budgets.outer_perimeter(np.where(based, base, dies), device.aspect_ratio)
    return _Floor(
        dies + base,
        np.where(based, 1.0, device.compute_share) * dies,
        np.where(np.isnan(device.perimeter), perimeter, device.perimeter),
    )


def _memory(device: Columns, memory: Columns, perimeter: Array, budget: Array) -> tuple[_Interface, Array]:
    """Memory stacks, and how many of them the edge alone would allow."""
    rate = budgets.stack_bandwidth(memory.interface_width, memory.pin_rate, device.memory_rate_share)
    each = budgets.transfer_power(rate, memory.energy)
    edge = (perimeter, device.memory_shoreline_share, memory.shoreline)
    stacks = budgets.stack_count(*edge, budget, device.memory_power_share, each)
    by_edge = budgets.stack_count(*edge, np.inf, device.memory_power_share, each)
    return _Interface(stacks, stacks * rate, stacks * each, stacks * memory.interface_area), by_edge


def _links(device: Columns, technologies: Technologies, perimeter: Array) -> _Interface:
    """Lanes to other accelerators; none where the device names no links."""
    link, linked = technologies.link, _present(technologies.link)
    lanes = budgets.lane_count(perimeter, device.link_shoreline_share, link.shoreline_bandwidth, link.lane_rate)
    lanes = np.where(linked, lanes, 0.0)
    bandwidth = np.where(linked, lanes * link.lane_rate, 0.0)
    area = budgets.interface_area(bandwidth, link.shoreline_bandwidth, link.interface_depth)
    drawn = budgets.transfer_power(bandwidth, link.energy)
    return _Interface(lanes, bandwidth, np.where(linked, drawn, 0.0), np.where(linked, area, 0.0))


def _die_links(device: Columns, technologies: Technologies, memory_bandwidth: Array) -> _Interface:
    """Die-to-die links with an interface at both ends; no area or power where the device names none."""
    link, linked = technologies.die_link, _present(technologies.die_link)
    crossing = budgets.crossing_bandwidth(memory_bandwidth, device.num_dies)
    crossing = np.where(np.isnan(device.die_link_bandwidth), crossing, device.die_link_bandwidth)
    area = 2.0 * budgets.interface_area(crossing, link.shoreline_bandwidth, link.interface_depth)
    drawn = budgets.transfer_power(crossing, link.energy)
    return _Interface(crossing / link.lane_rate, crossing, np.where(linked, drawn, 0.0), np.where(linked, area, 0.0))


def _cores(device: Columns, technologies: Technologies, compute_area: Array) -> _Cores:
    """Cores of the compute area: SRAM shrinks with its cell, logic with its density, the clock rises with the node."""
    core, node, stated = technologies.core, technologies.compute, technologies.core_node
    sram = core.shared_memory_capacity + core.register_capacity
    area = budgets.scaled_core_area(
        core.core_area,
        sram,
        budgets.sram_area(stated.sram_cell_area, stated.sram_cell_share),
        budgets.sram_area(node.sram_cell_area, node.sram_cell_share),
        stated.logic_density,
        node.logic_density,
    )
    number = budgets.core_count(compute_area, area, device.enabled_share)
    clock = core.clock_rate * (node.clock_ratio / stated.clock_ratio)
    return _Cores(
        np.where(np.isnan(device.num_cores), number, device.num_cores),
        area,
        sram,
        clock,
        np.where(np.isnan(device.clock_rate), clock, device.clock_rate),
    )


def _chiplet(
    device: Columns, memory: Columns, floor: _Floor, cores: _Cores, stacks: Array, stack_capacity: Array
) -> dict[str, Array]:
    """The module of a device: cores beyond those switched on are spares that save dies with defects."""
    per_die = np.maximum(np.floor(floor.compute / device.num_dies / cores.area), 1.0)
    return {
        "num_dies": device.num_dies,
        "module_area": device.die_area,
        "num_units": per_die,
        "num_units_needed": np.minimum(np.ceil(cores.number / device.num_dies), per_die),
        "perfect_area_share": device.perfect_area_share,
        "num_base_dies": device.num_base_dies,
        "base_area": np.where(device.num_base_dies > 0.0, device.base_area, np.nan),
        "memory_stacks": stacks,
        "stack_capacity": stack_capacity,
        "memory_price": memory.stack_price / (memory.stack_height * memory.layer_capacity),
        "memory_carbon": memory.carbon,
        "stack_area": memory.stack_area,
        "board_cost": device.board_cost,
        "margin_share": device.margin_share,
        "volume": device.volume,
    }


def _broken(
    device: Columns,
    technologies: Technologies,
    floor: _Floor,
    stacks: _Interface,
    links: _Interface,
    die_links: _Interface,
    cores: _Cores,
    left: Array,
    spare: Array,
) -> dict[str, np.ndarray]:
    """Reasons why devices cannot be built, and the devices concerned."""
    based = device.num_base_dies > 0.0
    own_edges = device.num_dies * budgets.outer_perimeter(device.die_area, device.aspect_ratio)
    crossed = _present(technologies.die_link)
    shoreline = device.memory_shoreline_share + device.link_shoreline_share
    seam = 2.0 * die_links.bandwidth / technologies.die_link.shoreline_bandwidth
    asked = device.num_cores * cores.area
    return {
        "base dies need a base area": based & np.isnan(device.base_area),
        "the shares of memory and links are more than the perimeter": shoreline > 1.0 + _ROUNDING,
        "the interfaces of memory and links do not fit beside the cores": left < 0.0,
        f"cores, interfaces and cache leave less than {100.0 * LEAST_OTHER:g} % of the silicon for wires and control: "
        "a larger cache share takes a smaller compute share (or larger base dies)": (
            (left >= 0.0) & ((1.0 - device.cache_share) * left < LEAST_OTHER * floor.silicon * (1.0 - _CORE_ROUNDING))
        ),
        "the links between dies need more edge": crossed & ~based & (seam > own_edges - floor.perimeter),
        "not one core fits into the area for cores": ~(cores.number >= 1.0),
        "the cores do not fit into the area for them": asked > floor.compute * (1.0 + _CORE_ROUNDING),
        "the power budget leaves nothing for the cores": spare <= 0.0,
        "not one lane of its links fits their share of the perimeter": (
            _present(technologies.link) & ~(links.number >= 1.0)
        ),
        "not one stack of memory fits the edge and the power budget": ~(stacks.number >= 1.0),
    }
