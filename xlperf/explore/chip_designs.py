"""Chips of forms as devices: the choices for ``auto``, and for a broken limit the excess and a remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import numpy as np

from xlperf.base.arrays import Array, known_or
from xlperf.base.units import UNITS
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table, columns_of
from xlperf.engine.devices import evaluate_devices
from xlperf.equations.cost.designs import fits_reticle
from xlperf.equations.hardware.power import heat_resistance, junction_temperature, outer_perimeter, stack_bandwidth
from xlperf.explore.objectives import dollars
from xlperf.explore.search import stacked
from xlperf.explore.space import with_columns

CHIP = "My chip"
MARGIN = 0.02  # spare edge in stacks beyond the requested number, so that rounding loses none [-]
_ROUND = 1e-9
_NAMED = ("technology", "core", "memory", "link", "die_link", "package")
_STATED = ("power_budget", "margin_share", "volume")
_SMALLER = np.arange(0.96, 0.19, -0.04)  # trial die areas for a cost budget, over the requested area [-]
_MB, _TB = UNITS["MB"].factor, UNITS["TB"].factor


@dataclass
class Designs:
    """Chips of forms, row by row."""

    devices: Table  # rows of the sheet ``devices``
    results: Table  # of :func:`evaluate_devices`
    temperature: Array  # of the compute dies at full power [K]
    reasons: list[str]  # the broken limit of a chip, its excess and a remedy; "" for a chip that can be built
    chosen: list[str]  # the choices for ``auto``, in words


class _Forms:
    """Several forms as one table, and why their chips cannot be built."""

    def __init__(self, forms: Sequence[Table], catalog: Catalog) -> None:
        self.forms, self.catalog, self.reasons = forms, catalog, [""] * len(forms)
        self.table = replace(stacked(forms), place=lambda row, column: forms[max(row, 0)].place(0, column))
        self.filled, self.number, self.text = self.table.filled, self.table.number, self.table.text

    def is_auto(self, name: str) -> np.ndarray:
        return np.array([name in form.auto and bool(form.auto[name][0]) for form in self.forms])

    def refuse(self, row: int, words: str) -> None:
        """Record why a chip cannot be built; the first reason counts."""
        self.reasons[row] = self.reasons[row] or words

    def rows(self, kind: str, column: str) -> np.ndarray:
        """Rows of a sheet that a column names."""
        return self.catalog.rows(kind, self.text(column), self.table, column)


def designs_of(asked: Sequence[Table], catalog: Catalog) -> Designs:
    """The chips of forms: one-row tables of kind ``chip``. Raises InputError if a name is unknown."""
    forms = _Forms(asked, catalog)
    dies, area, words = _silicon(forms)
    columns: dict[str, Any] = {name: forms.text(name) for name in _NAMED} | {
        name: forms.filled(name) for name in _STATED
    }
    named = Table("devices", {"device": np.full(len(asked), CHIP, dtype=object)}, forms.table.place)
    devices = with_columns(named, **columns, num_dies=dies, die_area=area)
    devices, stacks = _with_stacks(devices, forms)
    devices = _within_temperature(_with_cache(devices, forms), forms)
    results = evaluate_devices(devices, catalog)
    cooled = devices.number("power_budget") != forms.number("power_budget")
    cooled &= ~np.isnan(devices.number("power_budget"))
    by_heat = [str(words).replace("the power budget", "the temperature limit") for words in results["limited_by"]]
    limited = np.where(cooled, np.array(by_heat, dtype=object), results["limited_by"])
    results = replace(results, columns={**results.columns, "limited_by": limited})
    _refuse_unbuilt(devices, results, forms)
    _refuse_dear(devices, results, forms)
    chosen = _chosen(devices, results, stacks, forms)
    joined = [", ".join(filter(None, (first, then))) for first, then in zip(words, chosen, strict=True)]
    return Designs(devices, results, _temperature(devices, results, forms), forms.reasons, joined)


def _silicon(forms: _Forms) -> tuple[Array, Array, list[str]]:
    """Number of dies and area of each [mm2], and in words the choices for ``auto``."""
    dies, area, budget = forms.filled("num_dies"), forms.filled("die_area"), forms.number("area_budget")
    field = _field(forms)
    bounded = ~np.isnan(budget)
    free, open_ = forms.is_auto("num_dies"), forms.is_auto("die_area")
    fewest = np.maximum(np.ceil(budget / field * (1.0 - _ROUND)), 1.0)
    most = np.maximum(np.floor(budget / area * (1.0 + _ROUND)), 1.0)
    dies = np.where(free & bounded, np.where(open_, fewest, most), dies)
    area = np.where(open_ & bounded, budget / dies, area)
    words = []
    for row in range(len(dies)):
        over = dies[row] * area[row] - budget[row]
        if over > _ROUND * budget[row]:
            forms.refuse(
                row,
                f"{counted(dies[row], 'die')} of {area[row]:,.0f} mm² are {over:,.0f} mm² beyond the area budget of "
                f"{budget[row]:,.0f} mm²: dies of {budget[row] / dies[row]:,.0f} mm² keep it",
            )
        elif area[row] > field[row] * (1.0 + _ROUND):
            number = dies[row] * np.ceil(area[row] / field[row] * (1.0 - _ROUND))
            forms.refuse(
                row,
                f"a compute die of {area[row]:,.0f} mm² is larger than the reticle of {field[row]:,.0f} mm² by "
                f"{area[row] - field[row]:,.0f} mm²: {number:,.0f} dies of {dies[row] * area[row] / number:,.0f} mm² "
                "have the same silicon",
            )
        known = f" for {budget[row]:,.0f} mm²" if bounded[row] else ", as the form has it first"
        chose = [counted(dies[row], "die")] * bool(free[row]) + [f"{area[row]:,.0f} mm² each"] * bool(open_[row])
        words.append(f"{' of '.join(chose)}{known}" if chose else "")
    return dies, area, words


def _field(forms: _Forms) -> Array:
    """Largest die in one exposure field of the process node, infinite if fields are stitched. [mm2]"""
    technology = forms.catalog.tables["technology"]
    at = forms.rows("technology", "technology")
    node = np.where(at >= 0, technology.text("process_node")[at], "").astype(object)
    rows = forms.catalog.known_rows("process_nodes", node)
    fields = columns_of(forms.catalog.tables["process_nodes"], rows)
    size = np.asarray(fields.reticle_width * fields.reticle_height)
    joined = fits_reticle(4.0 * size, np.nan, fields)
    return np.where(joined | np.isnan(size), np.inf, size)


def _with_stacks(devices: Table, forms: _Forms) -> tuple[Table, Array]:
    """Devices with an edge for the requested stacks or bandwidth, and the number of these stacks; NaN if open."""
    stacks, target = forms.number("memory_stacks"), forms.number("bandwidth_target")
    memory = columns_of(forms.catalog.tables["memories"], forms.rows("memories", "memory"))
    # Stacks that are asked for: their number, or as many as the bandwidth takes
    each = stack_bandwidth(memory.interface_width, memory.pin_rate, devices.filled("memory_rate_share"))
    asked = np.where(np.isnan(stacks), np.ceil(target / each * (1.0 - _ROUND)), stacks)
    # Edge and power that links and arithmetic leave to memory
    silicon = devices.number("num_dies") * devices.number("die_area")
    perimeter = outer_perimeter(silicon, devices.filled("aspect_ratio"))
    left = (1.0 - devices.filled("link_shoreline_share")) * perimeter
    power = each * memory.energy
    share, budget = devices.filled("memory_power_share"), devices.number("power_budget")
    for row in np.flatnonzero(~np.isnan(asked)).tolist():
        number, name = asked[row], str(forms.text("memory")[row])
        rate = f" for {target[row] / _TB:,.1f} TB/s" if np.isnan(stacks[row]) else ""
        wanted, verb = f"{counted(number, 'stack')} of {name}{rate}", "s" if number == 1.0 else ""
        edge, room = number * memory.shoreline[row], np.floor(left[row] / memory.shoreline[row] * (1.0 + _ROUND))
        drawn, fed = number * power[row], share[row] * budget[row]
        if edge > left[row] * (1.0 + _ROUND):
            forms.refuse(
                row,
                f"{wanted} take{verb} {edge:,.0f} mm of the edge, {edge - left[row]:,.0f} mm more than links "
                f"leave: {room:,.0f} have room; more dies or larger ones have more edge",
            )
        elif drawn > fed * (1.0 + _ROUND):
            fewer = f"{counted(fed // power[row], 'stack')} or " if fed >= power[row] else ""
            forms.refuse(
                row,
                f"{wanted} draw{verb} {drawn:,.0f} W, {drawn - fed:,.0f} W more than the {100.0 * share[row]:.0f} % of "
                f"the power budget for memory: {fewer}{drawn / share[row]:,.0f} W would do",
            )
    taken = np.minimum((asked + MARGIN) * memory.shoreline / perimeter, left / perimeter)
    if np.isnan(asked).all():
        return devices, asked
    usual = devices.filled("memory_shoreline_share")
    return with_columns(devices, memory_shoreline_share=np.where(np.isnan(asked), usual, taken)), asked


def _with_cache(devices: Table, forms: _Forms) -> Table:
    """Devices whose cache has the requested capacity; cores take the remaining area of cores and cache."""
    cache = forms.number("cache")
    if np.isnan(cache).all():
        return devices
    usual = evaluate_devices(devices, forms.catalog, costs=False)
    silicon, compute, held, memory, links = (
        usual.number(name) for name in ("silicon_area", *(f"area_share_{part}" for part in _FLOOR))
    )
    both = (compute + held) * silicon
    with np.errstate(divide="ignore", invalid="ignore"):
        density = held * silicon / usual.number("l2_capacity")
        wanted = cache * density
        cores = both - wanted
        share = wanted / (silicon - cores - (memory + links) * silicon)
    for row in np.flatnonzero(cores <= 0.0).tolist():
        forms.refuse(
            row,
            f"{cache[row] / _MB:,.0f} MB of cache take {wanted[row]:,.0f} mm², {-cores[row]:,.0f} mm² more than cores "
            f"and cache have together: less than {both[row] / density[row] / _MB:,.0f} MB leave room for cores",
        )
    given = cores > 0.0
    return with_columns(
        devices,
        compute_share=np.where(given, cores / silicon, devices.filled("compute_share")),
        cache_share=np.where(given, share, devices.filled("cache_share")),
    )


def _cooling(devices: Table, forms: _Forms) -> tuple[Array, Array, Array]:
    """Area of the compute dies, resistance to the coolant, and temperature of the coolant. [mm2, mm2 K/W, K]"""
    cooling, stack, share = (forms.filled(name) for name in ("cooling_resistance", "stack_resistance", "stack_share"))
    back = known_or(forms.number("back_resistance"), np.inf)
    resistance = heat_resistance(cooling, stack, share, back)
    return devices.number("num_dies") * devices.number("die_area"), resistance, forms.filled("coolant_temperature")


def _beside(results: Table, forms: _Forms) -> Array:
    """Power of memory beside the compute dies, whose heat does not pass through them. [W]"""
    return np.where(forms.filled("stack_resistance") > 0.0, 0.0, results.number("power_memory"))


def _within_temperature(devices: Table, forms: _Forms) -> Table:
    """Devices whose power budget keeps the temperature limit of the form as well, with the same memory."""
    limit = forms.number("temperature_limit")
    if np.isnan(limit).all():
        return devices
    area, resistance, coolant = _cooling(devices, forms)
    for row in np.flatnonzero(limit <= coolant).tolist():
        words = f"a temperature limit of {limit[row]:,.0f} °C is not above the coolant of {coolant[row]:,.0f} °C"
        forms.refuse(row, f"{words}: a higher limit, or a colder coolant")
    usual = evaluate_devices(devices, forms.catalog, costs=False)
    heat = np.maximum(area * (limit - coolant) / resistance, 0.0)  # the inverse of :func:`junction_temperature`
    budget = np.fmin(devices.number("power_budget"), heat + np.nan_to_num(_beside(usual, forms)))
    with np.errstate(divide="ignore", invalid="ignore"):
        fed = np.minimum(usual.number("power_memory") / budget * (1.0 + _ROUND), 1.0)  # the clock goes down, no stack
    share = np.fmax(devices.filled("memory_power_share"), np.where(np.isnan(limit), np.nan, fed))
    return with_columns(devices, power_budget=budget, memory_power_share=share)


def _temperature(devices: Table, results: Table, forms: _Forms) -> Array:
    """Temperature of the compute dies at full power. [K]"""
    area, resistance, coolant = _cooling(devices, forms)
    heat = results.number("thermal_design_power") - _beside(results, forms)
    return junction_temperature(heat, area, resistance, coolant)


_FLOOR = ("compute", "cache", "memory", "links")


def _refuse_unbuilt(devices: Table, results: Table, forms: _Forms) -> None:
    """Refuse devices that cannot be built: name the exceeded budget and the excess."""
    lost = np.flatnonzero(np.isnan(results.number("thermal_design_power")))
    if not len(lost):
        return
    free = evaluate_devices(with_columns(devices, power_budget=np.nan), forms.catalog, costs=False)
    cache = forms.number("cache")
    needed = np.sum([free.number(f"power_{part}") for part in ("static", "memory", "links")], axis=0)
    for row in lost.tolist():
        words, budget = str(results.text("reason")[row]).split(";")[0], devices.number("power_budget")[row]
        limit, stated = forms.number("temperature_limit")[row], forms.number("power_budget")[row]
        name = f"{budget:,.0f} W at which the dies have {limit:,.0f} °C" if not budget >= stated else ""
        name = name if limit == limit else ""
        cores = devices.filled("compute_share")[row] * devices.number("num_dies")[row] * devices.number("die_area")[row]
        if words.startswith("not one core") and cache[row] == cache[row]:
            words = (
                f"{cache[row] / _MB:,.0f} MB of cache leave {cores:,.1f} mm² for cores, and not one fits: less cache, "
                "or larger dies"
            )
        if needed[row] >= budget:
            words = (
                f"memory, links and leakage draw {needed[row]:,.0f} W, {needed[row] - budget:,.0f} W more than the "
                f"{name or f'power budget of {budget:,.0f} W'}: fewer stacks or dies, or more than {needed[row]:,.0f} W"
            )
        forms.refuse(row, words)


def _refuse_dear(devices: Table, results: Table, forms: _Forms) -> None:
    """Refuse chips beyond their cost budget: name the excess, and smaller dies or fewer stacks within the budget."""
    cost, budget = results.number("unit_cost"), forms.number("cost_budget")
    for row in np.flatnonzero(~np.isnan(budget)).tolist():
        if forms.reasons[row] or cost[row] <= budget[row] * (1.0 + _ROUND):
            continue
        if np.isnan(cost[row]):
            why = str(results.text("reason")[row]) or "without a package no cost follows"
            forms.refuse(row, f"no cost to hold against the cost budget: {why}")
            continue
        helps = " or ".join(_cheaper(forms.forms[row], devices.take([row]), results.take([row]), forms.catalog))
        helps = f"{helps} would keep it" if helps else "an older node, a cheaper memory or package, or a larger volume"
        over = cost[row] - budget[row]
        forms.refuse(
            row,
            f"a unit costs {dollars(cost[row])}, {dollars(over)} ({100.0 * over / budget[row]:,.0f} %) more than the "
            f"cost budget of {dollars(budget[row])}: {helps}",
        )


def _cheaper(form: Table, device: Table, results: Table, catalog: Catalog) -> list[str]:
    """Changes of one entry that bring a chip within its cost budget, in words."""
    budget = form.stated("cost_budget")
    dies, area = (device.stated(name) for name in ("num_dies", "die_area"))
    form = with_columns(form, num_dies=dies, cost_budget=np.nan, area_budget=np.nan)
    areas = (area * _SMALLER).tolist()
    stacks = np.arange(results.stated("memory_stacks") - 1.0, 0.0, -1.0).tolist()
    tried = [with_columns(form, die_area=size) for size in areas]
    tried += [with_columns(form, die_area=area, memory_stacks=number) for number in stacks]
    result = designs_of(tried, catalog)
    affordable = [
        cost <= budget and not why for cost, why in zip(result.results["unit_cost"], result.reasons, strict=True)
    ]
    words = [f"dies of {size:,.0f} mm²" for size in areas], [counted(number, "stack") for number in stacks]
    within = affordable[: len(areas)], affordable[len(areas) :]
    return [word for each, good in zip(words, within, strict=True) for word in list(compress(each, good))[:1]]


def counted(number: float, noun: str) -> str:
    """A number with its noun.

    >>> counted(1.0, "stack"), counted(1200.0, "stack")
    ('1 stack', '1,200 stacks')
    """
    return f"{number:,.0f} {noun}{'s' if number != 1.0 else ''}"


def _chosen(devices: Table, results: Table, asked: Array, forms: _Forms) -> list[str]:
    """Choices for ``auto`` of memory and cache in words, and the further stacks for which the edge has room."""
    memory = forms.catalog.tables["memories"].number("shoreline")[forms.rows("memories", "memory")]
    perimeter, number = results.number("outer_perimeter"), results.number("memory_stacks")
    left = (1.0 - devices.filled("link_shoreline_share")) * perimeter
    cache, limited = results.number("l2_capacity"), results.text("limited_by")
    words = []
    for row, reason in enumerate(forms.reasons):
        choices = []
        if not reason and np.isnan(asked[row]):
            room = float(np.floor(left[row] / memory[row] * (1.0 + _ROUND)))
            lacks = (room + 1.0) * memory[row] - left[row]
            more = f"a further one lacks {lacks:,.1f} mm of the edge"
            if room > number[row]:
                more = f"their share of the edge; all of it beside the links holds {room:,.0f}"
            power = "by power" in str(limited[row]).split(";")[0]
            choices.append(
                f"{counted(number[row], 'stack')} ({'all that their share of the power feeds' if power else more})"
            )
        elif not reason and np.isnan(forms.number("memory_stacks")[row]):
            choices.append(f"{counted(number[row], 'stack')}, the fewest with the bandwidth")
        if not reason and np.isnan(forms.number("cache")[row]):
            choices.append(f"{cache[row] / _MB:,.0f} MB of cache (the usual share of the silicon)")
        words.append(", ".join(choices))
    return words
