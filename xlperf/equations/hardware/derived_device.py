"""An accelerator from its budgets: area, edge and power of its dies, and their technology.

Memory and links share the edge; cores, interfaces and cache share the area. The clock is the fastest that keeps cores,
memory, links and leakage within the power budget.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Columns, divide
from xlperf.equations.hardware import power

PEAKS = ("fp32", "tf32", "bf16", "fp8", "int8", "fp4")
"""Names of peak rates: ``flop_per_clock_<name>`` of a core, ``peak_flop_rate_<name>`` of its device."""
_ROUNDING, _CORE_ROUNDING = 1e-12, 1e-9  # relative errors that count as rounding: of shares, and of areas of cores [-]
LEAST_OTHER, USUAL_OTHER = 0.1, 0.2
"""Shares of the silicon for wires and control: a device below the first is illegal, below the second it gets a remark.
A100 to B200 have 21 to 24 % (heuristic, this work). [-]"""


class Technologies(NamedTuple):
    """Technology of each device, one row per device; NaN if a device names none. Columns of the sheet that follows."""

    compute: Columns  # ``technology``: node of the compute dies
    base: Columns  # ``technology``: node of the base dies, else of the compute dies
    core: Columns  # ``cores``
    core_node: Columns  # ``technology``: node at which area and clock of the core are stated
    memory: Columns  # ``memories``
    link: Columns  # ``links`` to other accelerators
    die_link: Columns  # ``links`` between the compute dies


class DerivedDevice(NamedTuple):
    """Devices derived from their budgets, (rows,)."""

    results: dict[str, Array]  # Columns of the sheet ``devices_results``
    chiplet: dict[str, Array]  # Package of the device: columns of the sheet ``chiplets``
    link_cost: Array  # Cables or optics of its links [USD]
    memory_by_power: np.ndarray  # Power rather than edge limits the memory stacks
    clock_by_power: np.ndarray  # The power budget limits the clock
    broken: dict[str, np.ndarray]  # Devices by the reason why they are illegal


class _Floor(NamedTuple):
    """Areas and outer edge of a device."""

    silicon: Array  # all dies [mm2]
    compute: Array  # for cores [mm2]
    perimeter: Array  # [mm]


class _Interface(NamedTuple):
    """Memory stacks or link lanes."""

    number: Array
    bandwidth: Array  # [B/s]
    power: Array  # [W]
    area: Array  # of their interfaces on the dies [mm2]


class _Cores(NamedTuple):
    """Cores of a device at its node."""

    number: Array  # enabled
    area: Array  # of one core [mm2]
    sram: Array  # of one core [B]
    nominal_clock: Array  # at the nominal voltage of the node [Hz]
    clock: Array  # of the device before the power limit [Hz]


def derived_device(device: Columns, technologies: Technologies) -> DerivedDevice:
    """Rates, capacities, bandwidths, areas and power of devices within their budgets. Cache takes its share of the area
    that cores and interfaces leave; the clock f is the largest with switching power n f e v(f)^2 within the budget less
    static, memory and link power, see :func:`~power.voltage_share`.
    """
    compute, base, core, memory = technologies.compute, technologies.base, technologies.core, technologies.memory
    # Areas and interfaces, then the cache in the area that remains [mm2].
    floor = _floor(device)
    budget = np.where(np.isnan(device.power_budget), np.inf, device.power_budget)
    stacks, stacks_by_edge = _memory(device, memory, floor.perimeter, budget)
    links, die_links = _links(device, technologies, floor.perimeter), _die_links(device, technologies, stacks.bandwidth)
    link_area, link_power = links.area + die_links.area, links.power + die_links.power
    cores = _cores(device, technologies, floor.compute)
    left = floor.silicon - floor.compute - stacks.area - link_area
    cache_area = device.cache_share * left
    cache = cache_area / (base.sram_cell_area / base.sram_cell_share)

    # Clock that leakage, memory and links leave within the power budget [W].
    static = floor.compute * compute.static_power + cache_area * base.static_power
    spare = budget - static - stacks.power - link_power
    flop_energy, per_clock = compute.flop_energy * core.energy_ratio, cores.number * core.flop_per_clock_bf16
    least_voltage = compute.least_voltage / compute.voltage
    nominal_power = per_clock * cores.nominal_clock * flop_energy
    wanted = cores.clock / cores.nominal_clock
    share = power.clock_share(spare, nominal_power, least_voltage, wanted)
    clock = cores.nominal_clock * share
    voltage = power.voltage_share(share, least_voltage)
    switching = per_clock * clock * flop_energy * voltage * voltage

    # Columns of the sheet devices_results.
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
    """Areas and outer edge; base dies, if any, hold cache and interfaces and give the edge."""
    based = device.num_base_dies > 0.0
    dies = device.num_dies * device.die_area
    base = np.where(based, device.num_base_dies * device.base_area, 0.0)
    perimeter = power.outer_perimeter(np.where(based, base, dies), device.aspect_ratio)
    return _Floor(
        dies + base,
        np.where(based, 1.0, device.compute_share) * dies,
        np.where(np.isnan(device.perimeter), perimeter, device.perimeter),
    )


def _memory(device: Columns, memory: Columns, perimeter: Array, budget: Array) -> tuple[_Interface, Array]:
    """Memory stacks, and the number that the edge alone allows."""
    rate = power.stack_bandwidth(memory.interface_width, memory.pin_rate, device.memory_rate_share)
    stack_power = rate * memory.energy
    edge = (perimeter, device.memory_shoreline_share, memory.shoreline)
    stacks = power.stack_count(*edge, budget, device.memory_power_share, stack_power)
    by_edge = power.stack_count(*edge, np.inf, device.memory_power_share, stack_power)
    return _Interface(stacks, stacks * rate, stacks * stack_power, stacks * memory.interface_area), by_edge


def _links(device: Columns, technologies: Technologies, perimeter: Array) -> _Interface:
    """Lanes to other accelerators; none if the device names no links."""
    link, linked = technologies.link, _present(technologies.link)
    lanes = np.floor(perimeter * device.link_shoreline_share * link.shoreline_bandwidth / link.lane_rate)
    lanes = np.where(linked, lanes, 0.0)
    bandwidth = np.where(linked, lanes * link.lane_rate, 0.0)
    area = bandwidth / link.shoreline_bandwidth * link.interface_depth  # of the PHYs at the edge
    return _Interface(lanes, bandwidth, np.where(linked, bandwidth * link.energy, 0.0), np.where(linked, area, 0.0))


def _die_links(device: Columns, technologies: Technologies, memory_bandwidth: Array) -> _Interface:
    """Die-to-die links with an interface at both ends; memory traffic is even over the dies unless stated."""
    link, linked = technologies.die_link, _present(technologies.die_link)
    crossing = memory_bandwidth * ((device.num_dies - 1.0) / device.num_dies)
    crossing = np.where(np.isnan(device.die_link_bandwidth), crossing, device.die_link_bandwidth)
    area = 2.0 * (crossing / link.shoreline_bandwidth * link.interface_depth)
    drawn = np.where(linked, crossing * link.energy, 0.0)
    return _Interface(crossing / link.lane_rate, crossing, drawn, np.where(linked, area, 0.0))


def _cores(device: Columns, technologies: Technologies, compute_area: Array) -> _Cores:
    """Cores of the compute area: SRAM scales with its cell, logic with its density, the clock with the node."""
    core, node, stated = technologies.core, technologies.compute, technologies.core_node
    sram = core.shared_memory_capacity + core.register_capacity  # [B]
    logic = np.maximum(core.core_area - sram * (stated.sram_cell_area / stated.sram_cell_share), 0.0)
    area = sram * (node.sram_cell_area / node.sram_cell_share) + logic * (stated.logic_density / node.logic_density)
    number = np.floor(np.floor(compute_area / area) * device.enabled_share)
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
    """Package of a device; disabled cores are spares for defects."""
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
    """Devices by the reason why they are illegal."""
    based = device.num_base_dies > 0.0
    # Edge of all dies; the links between them need twice the edge of their traffic, outside the outer perimeter.
    die_edges = device.num_dies * power.outer_perimeter(device.die_area, device.aspect_ratio)
    crossed = _present(technologies.die_link)
    shoreline = device.memory_shoreline_share + device.link_shoreline_share
    seam = 2.0 * die_links.bandwidth / technologies.die_link.shoreline_bandwidth
    asked = device.num_cores * cores.area
    return {
        "base dies need a base area": based & np.isnan(device.base_area),
        "the shares of memory and links are more than the perimeter": shoreline > 1.0 + _ROUNDING,
        "the interfaces of memory and links do not fit beside the cores: larger dies, fewer stacks, or a denser link": (
            left < 0.0
        ),
        f"cores, interfaces and cache leave less than {100.0 * LEAST_OTHER:g} % of the silicon for wires and control: "
        "larger dies, fewer stacks or a denser link; a larger cache share takes a smaller compute share": (
            (left >= 0.0) & ((1.0 - device.cache_share) * left < LEAST_OTHER * floor.silicon * (1.0 - _CORE_ROUNDING))
        ),
        "the links between dies need more edge: a denser link between dies, less memory, or larger dies": crossed
        & ~based
        & (seam > die_edges - floor.perimeter),
        "not one core fits into the area for cores": ~(cores.number >= 1.0),
        "the cores do not fit into the area for them": asked > floor.compute * (1.0 + _CORE_ROUNDING),
        "the power budget leaves nothing for the cores": spare <= 0.0,
        "not one lane of its links fits their share of the perimeter": (
            _present(technologies.link) & ~(links.number >= 1.0)
        ),
        "not one stack of memory fits the edge and the power budget": ~(stacks.number >= 1.0),
    }
