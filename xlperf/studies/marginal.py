"""What the best device of each node would gain from more of one thing: area, power, memory, links, cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from xlperf.catalog.catalog import Catalog
from xlperf.engine.devices import evaluate_devices
from xlperf.studies.outcome import Chart, Finding, Inputs, StudySheet, own_column, sheet_of, span
from xlperf.studies.shares import devices_like

MORE = 0.05
"""How much more of each thing a device gets. [-]"""
_STILL = 0.005
"""Gain below which a thing is said to buy nothing. [-]"""
_THINGS: dict[str, tuple[tuple[str, ...], str]] = {
    "die area": (("die_area",), "mm2"),
    "power": (("power_budget",), "W"),
    "memory edge": (("memory_shoreline_share",), "share of the edge"),
    "link edge": (("link_shoreline_share",), "share of the edge"),
    "cache": (("cache_share",), "share of the rest"),
}
"""What grows, and the columns of the sheet devices that it is."""
Timed = Callable[[Catalog, Sequence[str]], np.ndarray]


class Marginal(NamedTuple):
    """Sheet and findings of what the next unit buys."""

    sheet: StudySheet
    findings: list[Finding]


def marginal(inputs: Inputs, catalog: Catalog, nodes: Sequence[str], best: Sequence[str], timed: Timed) -> Marginal:
    """What limits the best device of each node, and what the next square millimetre, watt and dollar should buy.

    ``catalog``: with the devices of the study. ``nodes``: nodes. ``best``: best device of each. ``timed``: time of a
    step of accelerators of a catalog, each with its best plan [s]. Returns a row per node and thing; a finding per
    node.
    """
    devices = catalog.tables["devices"]
    names = [str(name) for name in devices.text("device")]
    things = ["", *_THINGS]
    repeated = devices.take(np.repeat([names.index(name) for name in best], len(things)))
    labels = [f"{name}, more {thing}" if thing else f"{name}, as it is" for name in best for thing in things]
    columns = {name: repeated.filled(name).copy() for one in _THINGS.values() for name in one[0]}
    for place, thing in enumerate(things):
        for column in _THINGS[thing][0] if thing else ():
            columns[column][place :: len(things)] *= 1.0 + MORE
    made, changed = devices_like(inputs, catalog, best, labels, columns)
    shape = (len(nodes), len(things))
    time, cost = timed(changed, labels).reshape(shape), evaluate_devices(made, changed)["unit_cost"].reshape(shape)
    gain = time[:, :1] / time[:, 1:] - 1.0
    dearer = cost[:, 1:] - cost[:, :1]
    costs = dearer > 1.0
    per_dollar = np.where(costs, gain / np.where(costs, dearer, 1.0), np.nan)
    return Marginal(_sheet(nodes, gain, dearer, per_dollar), list(_findings(nodes, gain, per_dollar)))


def _sheet(nodes: Sequence[str], gain: np.ndarray, dearer: np.ndarray, per_dollar: np.ndarray) -> StudySheet:
    things = list(_THINGS)
    count, half = len(things), -(-len(nodes) // 2)
    charts = [
        Chart(
            "bars",
            f"Gain of a step, {nodes[first]} to {nodes[last - 1]}",
            "case",
            ["gain"],
            y_title="share",
            rows=(first * count, last * count),
        )
        for first, last in ((0, half), (half, len(nodes)))
        if last > first
    ]
    return sheet_of(
        "next unit",
        f"The best device of each node with {100 * MORE:.0f} % more of one thing and its best plan: what limits it.",
        [
            ("case", [f"{node}: {thing}" for node in nodes for thing in things]),
            ("node", np.repeat(list(nodes), count)),
            ("more_of", things * len(nodes)),
            (own_column("gain", "-", f"Steps that are so much faster with {100 * MORE:.0f} % more"), gain.ravel()),
            (own_column("extra_cost", "USD", "What the accelerator then costs more to make"), dearer.ravel()),
            (own_column("gain_per_dollar", "1/USD", "Gain over that cost; blank: no dearer"), per_dollar.ravel()),
        ],
        charts,
    )


def _findings(nodes: Sequence[str], gain: np.ndarray, per_dollar: np.ndarray) -> Iterator[Finding]:
    """One finding for neighbouring nodes that the same thing limits and the same dollar helps."""
    things = list(_THINGS)
    groups: list[tuple[tuple[str, str], list[str], list[float]]] = []
    for node, own, dollar in zip(nodes, gain, per_dollar, strict=True):
        if not np.isfinite(own).any():
            continue
        gains, paid = np.nan_to_num(own, nan=-np.inf), np.nan_to_num(dollar, nan=-np.inf)
        limit = things[int(np.argmax(gains))] if gains.max() >= _STILL else ""
        key = limit, things[int(np.argmax(paid))] if limit and paid.max() > 0.0 else ""
        if not groups or groups[-1][0] != key:
            groups.append((key, [], []))
        groups[-1][1].append(node)
        groups[-1][2].append(100 * float(gains.max()))
    for (limit, bought), own_nodes, gains_of in groups:
        who = own_nodes[0] if len(own_nodes) == 1 else f"{own_nodes[0]} to {own_nodes[-1]}"
        if not limit:
            words = f"{who}: {100 * MORE:.0f} % more of no one thing makes a step {100 * _STILL:.1f} % faster"
            yield Finding("Next unit", f"{words}: what is left is latency, launches and the pipeline.")
            continue
        words = f"{who}: limited by {limit}, {100 * MORE:.0f} % more of it makes a step {span(gains_of, 1)} % faster"
        if bought:
            words += f"; the next dollar buys most as {bought}"
        yield Finding("Next unit", f"{words}.", "good" if limit == things[0] else "plain")
