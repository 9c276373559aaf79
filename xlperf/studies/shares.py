"""Optimal shares of die area and edge of a device at each process node, and the marginal value of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.devices import evaluate_devices
from xlperf.engine.ownership import evaluate_servers
from xlperf.engine.prices import first_rows
from xlperf.studies.outcome import (
    Columns,
    Finding,
    Inputs,
    StudySheet,
    charts_of,
    finding,
    row_named,
    runs,
    sheet_of,
    span,
    with_rows,
)

CORES = (0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.94, 0.97, 0.99)  # cores of the area of cores and cache [-]
EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)  # perimeter for memory [-]
Timed = Callable[[Catalog, Sequence[str]], np.ndarray]
_LOSSES = ("longer_with_most_cache", "longer_with_least_cache", "longer_with_least_memory_edge",
           "longer_with_most_memory_edge")  # fmt: skip
"""Columns of the losses of a step at the ends of both axes."""


class Shares(NamedTuple):
    """Sheet and findings, and a device of each node with its best shares in a catalog."""

    sheet: StudySheet
    findings: list[Finding]
    catalog: Catalog
    names: list[str]
    inner: np.ndarray

    @property
    def facts(self) -> dict[str, str]:
        """Shares of all nodes for the advice: cache in per cent of the dies and MiB, memory in per cent of the edge."""
        cache, capacity, edge = (
            self.sheet.numbers(name) for name in ("cache_of_the_dies", "last_level_cache", "memory_of_the_edge")
        )
        return {"cache_share": span(cache), "cache_capacity": span(capacity), "memory_edge": span(edge)}


def _reference(inputs: Inputs) -> int:
    """Row of the device of the settings."""
    return row_named(inputs.catalog.tables["devices"], inputs.text("device"), "device", inputs.place)


def devices_like(
    inputs: Inputs, catalog: Catalog, best: Sequence[str], labels: Sequence[str], changes: dict[str, np.ndarray]
) -> tuple[Table, Catalog]:
    """Copies of devices, one for each label in turn, with changed columns; the catalog with them as accelerators."""
    devices, accelerators = catalog.tables["devices"], catalog.tables["accelerators"]
    each = len(labels) // len(best)
    names, known = ([str(name) for name in table.text(table.kind[:-1])] for table in (devices, accelerators))
    repeated = devices.take(np.repeat([names.index(name) for name in best], each))
    labelled = np.array(list(labels), dtype=object)
    package = np.full(len(labels), inputs.catalog.tables["devices"].text("package")[_reference(inputs)], dtype=object)
    made = Table("devices", {**repeated.columns, **changes, "device": labelled, "package": package})
    copies = accelerators.take(np.repeat([known.index(name) for name in best], each))
    named = {**copies.columns, "accelerator": labelled, "device": labelled}
    return made, with_rows(catalog, [made, Table("accelerators", named)])


def best_shares(inputs: Inputs, catalog: Catalog, nodes: Sequence[str], best: Sequence[str], timed: Timed) -> Shares:
    """Divide the dies of the best device of each node between cores and cache, and its edge.

    Network on chip, control and I/O keep their share of the dies: more cache means fewer cores. ``timed`` gives the
    step time of accelerators of a catalog, each with its best plan [s].
    """
    shipped, reference = inputs.catalog.tables["devices"], _reference(inputs)
    other_share = float(evaluate_devices(shipped.take([reference]), inputs.catalog)["area_share_other"][0])
    shape = (len(nodes), len(CORES), len(EDGES))
    labels = [f"{name}, {x:g} cores, {m:g} edge" for name in best for x in CORES for m in EDGES]
    cores, edge = (np.broadcast_to(np.array(values), shape) for values in (np.array(CORES)[:, None], EDGES))
    free = np.minimum(1.0 - edge, shipped.filled("link_shoreline_share")[reference])
    changes = {"memory_shoreline_share": edge.ravel(), "link_shoreline_share": free.ravel()}
    first, _ = devices_like(inputs, catalog, best, labels, changes)
    results = evaluate_devices(first, catalog)
    interfaces = (results["area_share_memory"] + results["area_share_links"]).reshape(shape)
    room = 1.0 - other_share - interfaces
    compute = np.where(room > 0.0, cores * room, np.nan)
    left = 1.0 - interfaces - compute
    changes |= {"compute_share": compute.ravel(), "cache_share": ((1.0 - cores) * room / left).ravel()}
    legal = np.isfinite(compute.ravel())
    made, changed = devices_like(
        inputs, catalog, best, labels, {name: np.where(legal, values, 0.5) for name, values in changes.items()}
    )
    time = np.where(legal, timed(changed, labels), np.nan).reshape(shape)
    numbers = evaluate_devices(made, changed)
    cache, capacity = (numbers[name].reshape(shape) for name in ("area_share_cache", "l2_capacity"))
    return _chosen(nodes, labels, changed, time, (compute, cache, capacity))


def _chosen(
    nodes: Sequence[str], labels: Sequence[str], catalog: Catalog, times: np.ndarray, parts: Sequence[np.ndarray]
) -> Shares:
    """The best point of each node among ``times`` (nodes, cores, edges), and the loss at the ends of each axis."""
    count = len(nodes)
    time = np.where(np.isfinite(times), times, np.inf)
    flat = time.reshape(count, -1).argmin(axis=1)
    at = np.arange(count), *np.unravel_index(flat, time.shape[1:])
    lowest = time[at]
    over_cores, over_edge = time[at[0], :, at[2]] / lowest[:, None] - 1.0, time[at[0], at[1]] / lowest[:, None] - 1.0
    inner = ((at[1] > 0) & (at[1] < len(CORES) - 1)) & ((at[2] > 0) & (at[2] < len(EDGES) - 1))
    names = [labels[row * len(CORES) * len(EDGES) + best] for row, best in enumerate(flat)]
    compute, cache, capacity = (values[at] for values in parts)
    mebibytes, edge = capacity / 2.0**20, np.array(EDGES)[at[2]]
    losses = [
        np.where(np.isfinite(loss), 100.0 * loss, np.nan)
        for loss in (over_cores[:, 0], over_cores[:, -1], over_edge[:, 0], over_edge[:, -1])
    ]
    columns: Columns = [
        ("node", nodes),
        ("cores_of_the_dies", 100.0 * compute),
        ("cache_of_the_dies", 100.0 * cache),
        ("last_level_cache", mebibytes),
        ("memory_of_the_edge", 100.0 * edge),
        ("step_time", lowest),
        *zip(_LOSSES, losses, strict=True),
        ("best_between_the_ends", np.where(inner, "yes", "no")),
    ]
    outer = [node for node, interior in zip(nodes, inner, strict=True) if not interior]
    ends = f"; the best of {' and '.join(outer)} lies at the end of what was tried" if outer else ""
    result = finding(
        "shares",
        "plain" if outer else "good",
        nodes=f"{nodes[0]} to {nodes[-1]}",
        cores=span(100 * compute),
        cache=span(100 * cache),
        capacity=span(mebibytes),
        edge=span(100 * edge),
        most_cache=span(losses[0]),
        least_cores=100 * CORES[0],
        least_cache=span(losses[1]),
        ends=ends,
    )
    return Shares(sheet_of("shares", columns), [result], catalog, names, inner)


MORE = 0.05  # how much more of each thing a device gets [-]
_STILL = 0.005  # gain below which a thing is said to buy nothing [-]
_THINGS = {
    "die area": "die_area", "power": "power_budget", "memory edge": "memory_shoreline_share",
    "link edge": "link_shoreline_share", "cache": "cache_share",
}  # fmt: skip
"""What grows, and its column of the sheet devices."""


class Marginal(NamedTuple):
    """Sheets and findings on the next unit to buy."""

    sheets: list[StudySheet]
    findings: list[Finding]

    @property
    def limits(self) -> str:
        """Limits and their nodes: ``die area at 12 nm to 7 nm and power at 5 nm to 1 nm``."""
        limits, nodes = (self.sheets[-1].values(name) for name in ("limited_by", "node"))
        pairs = zip(limits, nodes, strict=True)
        runs = [(what, [node for _, node in group]) for what, group in groupby(pairs, itemgetter(0))]
        clauses = [f"{what} at {' to '.join(dict.fromkeys((str(group[0]), str(group[-1]))))}" for what, group in runs]
        return f"{', '.join(clauses[:-1])} and {clauses[-1]}" if len(clauses) > 1 else clauses[0]

    @property
    def facts(self) -> dict[str, str]:
        """What to buy, for the advice: what limits which nodes, and what a further square millimetre should be."""
        area = dict.fromkeys(str(what) for what in self.sheets[-1].values("next_mm2") if what != "nothing")
        return {"limits": self.limits, **({"next_area": " or ".join(area)} if area else {})}


def marginal(inputs: Inputs, catalog: Catalog, nodes: Sequence[str], best: Sequence[str], timed: Timed) -> Marginal:
    """The limit of the best device of each node, and the best use of the next square millimetre, watt and dollar."""
    devices = catalog.tables["devices"]
    names = [str(name) for name in devices.text("device")]
    things = ["", *_THINGS]
    repeated = devices.take(np.repeat([names.index(name) for name in best], len(things)))
    labels = [f"{name}, more {thing}" if thing else f"{name}, as it is" for name in best for thing in things]
    columns = {column: repeated.filled(column).copy() for column in _THINGS.values()}
    for place, column in enumerate(_THINGS.values(), start=1):
        columns[column][place :: len(things)] *= 1.0 + MORE
    made, changed = devices_like(inputs, catalog, best, labels, columns)
    shape = (len(nodes), len(things))
    numbers = evaluate_devices(made, changed)
    time = timed(changed, labels).reshape(shape)
    cost = (numbers["unit_cost"] + _power_cost(inputs, numbers["thermal_design_power"])).reshape(shape)
    gain = time[:, :1] / time[:, 1:] - 1.0
    dearer = cost[:, 1:] - cost[:, :1]
    costs = dearer > 1.0
    per_dollar = np.where(costs, gain / np.where(costs, dearer, 1.0), np.nan)
    cores, cache = (
        time[:, 0] / timed(_with_area(inputs, catalog, best, numbers, columns, what), labels[:: len(things)]) - 1.0
        for what in ("cores", "cache")
    )
    bought = _bought(nodes, gain, per_dollar, cores, cache)
    return Marginal([_sheet(nodes, gain, dearer, per_dollar), bought], list(_findings_of_marginal(bought)))


def _power_cost(inputs: Inputs, power: np.ndarray) -> np.ndarray:
    """Lifetime cost of the power [W] of devices by the servers of the reference; zero without one. [USD]"""
    devices, servers = inputs.catalog.tables["devices"], inputs.catalog.tables["servers"]
    like = inputs.catalog.known_rows("accelerators", devices.text("compared_with")[[_reference(inputs)]])
    row = first_rows(servers, inputs.catalog, like)
    if like[0] < 0 or row[0] < 0:
        return np.zeros_like(power)
    terms = servers.take(np.repeat(row, len(power)))
    columns = {
        **terms.columns,
        "server_power": power * terms.filled("num_accelerators"),
        "network_power": np.zeros_like(power),
        "rack_cost": np.zeros_like(power),
    }
    results = evaluate_servers(Table("servers", columns), catalog=inputs.catalog)
    hours = terms.filled("life") * terms.filled("utilization")
    return np.asarray((results["facility_cost"] + results["energy_cost"]) * hours)


def _with_area(
    inputs: Inputs, catalog: Catalog, best: Sequence[str], numbers: Table, columns: dict[str, np.ndarray], what: str
) -> Catalog:
    """Devices with more die area for cores or cache; interfaces grow with the edge, I/O keeps its share."""
    each = 1 + len(_THINGS)
    here, larger = (numbers.take(list(range(start, len(numbers), each))) for start in (0, 1))
    interfaces = larger["area_share_memory"] + larger["area_share_links"]
    constant = here["area_share_cache" if what == "cores" else "area_share_compute"] / (1.0 + MORE)
    room = 1.0 - interfaces - here["area_share_other"]
    cores = room - constant if what == "cores" else constant
    changes = {
        "die_area": columns["die_area"][1::each],
        "compute_share": cores,
        "cache_share": (room - cores) / (1.0 - interfaces - cores),
    }
    return devices_like(inputs, catalog, best, [f"{name}, as it is" for name in best], changes)[1]


def _bought(
    nodes: Sequence[str], gain: np.ndarray, per_dollar: np.ndarray, cores: np.ndarray, cache: np.ndarray
) -> StudySheet:
    """Per node: its limit, and the best use of the next square millimetre, watt and dollar."""
    things = np.array([*_THINGS, "nothing"], dtype=object)
    gains = np.nan_to_num(gain, nan=-np.inf)
    paid = np.where(gains >= _STILL, np.nan_to_num(per_dollar, nan=-np.inf), -np.inf)
    most, power = gains.max(axis=1), gains[:, list(_THINGS).index("power")]
    area = np.where(np.fmax(cores, cache) < _STILL, "nothing", np.where(cores >= cache, "cores", "cache"))
    columns: Columns = [
        ("node", nodes),
        ("limited_by", things[np.where(most >= _STILL, gains.argmax(axis=1), len(_THINGS))]),
        ("gain", 100.0 * most),
        ("next_mm2", area),
        ("gain_cores", 100.0 * cores),
        ("gain_cache", 100.0 * cache),
        ("next_watt", np.where(power >= _STILL, "clock", "nothing")),
        ("gain_power", 100.0 * power),
        ("next_dollar", things[np.where(paid.max(axis=1) > 0.0, paid.argmax(axis=1), len(_THINGS))]),
    ]
    return sheet_of("what to buy", columns, more=100 * MORE, least=100 * _STILL)


def _sheet(nodes: Sequence[str], gain: np.ndarray, dearer: np.ndarray, per_dollar: np.ndarray) -> StudySheet:
    things = list(_THINGS)
    count, half = len(things), -(-len(nodes) // 2)
    charts = [
        chart
        for first, last in ((0, half), (half, len(nodes)))
        if last > first
        for chart in charts_of("next unit", (), (first * count, last * count), first=nodes[first], last=nodes[last - 1])
    ]
    columns: Columns = [
        ("case", [f"{node}: {thing}" for node in nodes for thing in things]),
        ("node", np.repeat(list(nodes), count)),
        ("more_of", things * len(nodes)),
        ("gain", 100.0 * gain.ravel()),
        ("extra_cost", dearer.ravel()),
        ("gain_for_100_dollars", 100.0 * 100.0 * per_dollar.ravel()),
    ]
    return sheet_of("next unit", columns, charts, more=100 * MORE)


def _findings_of_marginal(bought: StudySheet) -> Iterator[Finding]:
    """One finding for neighbouring nodes with the same answers."""
    names = ("limited_by", "next_mm2", "next_watt", "next_dollar")
    answers = list(zip(*(bought.values(name) for name in names), strict=True))
    for start, end in runs(answers):
        limit, area, watt, dollar = answers[start]
        own_nodes = dict.fromkeys(bought.values("node")[i] for i in (start, end - 1))
        nodes, more = " to ".join(map(str, own_nodes)), 100 * MORE
        if limit == "nothing":
            yield finding("nothing helps", nodes=nodes, more=more, still=100 * _STILL)
            continue
        tone = "good" if limit == next(iter(_THINGS)) else "plain"
        yield finding(
            "next unit",
            tone,
            nodes=nodes,
            more=more,
            limit=limit,
            area=area,
            watt=watt,
            dollar=dollar,
            gain=span(bought.numbers("gain")[start:end], 1),
        )
