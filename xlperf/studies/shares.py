"""The shares of a device that suit a plan best at each node: cores against cache, and the edge for memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.devices import evaluate_devices
from xlperf.studies.inputs import with_rows
from xlperf.studies.outcome import Finding, Inputs, StudySheet, own_column, sheet_of, span

CORES = (0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.94, 0.97, 0.99)
"""Cores of the area that cores and cache have together. [-]"""
EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
"""Perimeter for memory. [-]"""
Timed = Callable[[Catalog, Sequence[str]], np.ndarray]


class Shares(NamedTuple):
    """Sheet and findings, and a device of each node with its best shares in a catalog."""

    sheet: StudySheet
    findings: list[Finding]
    catalog: Catalog
    names: list[str]
    inner: np.ndarray


class _Grid(NamedTuple):
    """Times of all variants (nodes, cores, edges), and what they have."""

    time: np.ndarray
    compute: np.ndarray
    cache: np.ndarray
    capacity: np.ndarray


def devices_like(
    inputs: Inputs, catalog: Catalog, best: Sequence[str], labels: Sequence[str], changes: dict[str, np.ndarray]
) -> tuple[Table, Catalog]:
    """Copies of devices, one after the other, with other columns; and the catalog with them as accelerators.

    Parameters
    ----------
    inputs : Inputs
        Whose device says the package.
    catalog : Catalog
        With the devices and accelerators that are copied.
    best : sequence of str
        Devices; each is copied as often as there are labels for one.
    labels : sequence of str
        Names of the copies.
    changes : dict of str to array
        Columns of the copies.
    """
    devices, accelerators = catalog.tables["devices"], catalog.tables["accelerators"]
    each = len(labels) // len(best)
    names, known = ([str(name) for name in table.text(table.kind[:-1])] for table in (devices, accelerators))
    repeated = devices.take(np.repeat([names.index(name) for name in best], each))
    shipped = inputs.catalog.tables["devices"]
    own = [str(name).casefold() for name in shipped.text("device")].index(inputs.text("device").casefold())
    labelled = np.array(list(labels), dtype=object)
    package = np.full(len(labels), shipped.text("package")[own], dtype=object)
    made = Table("devices", {**repeated.columns, **changes, "device": labelled, "package": package})
    copies = accelerators.take(np.repeat([known.index(name) for name in best], each))
    named = {**copies.columns, "accelerator": labelled, "device": labelled}
    return made, with_rows(catalog, [made, Table("accelerators", named)])


def best_shares(inputs: Inputs, catalog: Catalog, nodes: Sequence[str], best: Sequence[str], timed: Timed) -> Shares:
    """Share out the dies of the best device of each node between cores and cache, and its edge.

    What is neither cores, cache nor an interface (network on the chip, control, input and output) keeps the share of
    the dies that it has on the device of the study: more cache are fewer cores.

    Parameters
    ----------
    inputs : Inputs
        The settings of the study.
    catalog : Catalog
        With the devices of the study.
    nodes : sequence of str
        Nodes.
    best : sequence of str
        A device of each.
    timed : callable
        Time of a step of accelerators of a catalog, each with its best plan. [s]

    Returns
    -------
    Shares
    """
    shipped = inputs.catalog.tables["devices"]
    own = [str(name).casefold() for name in shipped.text("device")].index(inputs.text("device").casefold())
    other = float(evaluate_devices(shipped.take([own]), inputs.catalog)["area_share_other"][0])
    shape = (len(nodes), len(CORES), len(EDGES))
    labels = [f"{name}, {x:g} cores, {m:g} edge" for name in best for x in CORES for m in EDGES]
    cores, edge = (np.broadcast_to(np.array(values), shape) for values in (np.array(CORES)[:, None], EDGES))
    free = np.minimum(1.0 - edge, shipped.filled("link_shoreline_share")[own])
    changes = {"memory_shoreline_share": edge.ravel(), "link_shoreline_share": free.ravel()}
    first, _ = devices_like(inputs, catalog, best, labels, changes)
    found = evaluate_devices(first, catalog)
    interfaces = (found["area_share_memory"] + found["area_share_links"]).reshape(shape)
    room = 1.0 - other - interfaces
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
    return _chosen(nodes, labels, changed, _Grid(time, compute, cache, capacity))


def _chosen(nodes: Sequence[str], labels: Sequence[str], catalog: Catalog, grid: _Grid) -> Shares:
    """The best point of each node, what the ends of each axis lose, and whether it lies between them."""
    count = len(nodes)
    time = np.where(np.isfinite(grid.time), grid.time, np.inf)
    flat = time.reshape(count, -1).argmin(axis=1)
    at = np.arange(count), *np.unravel_index(flat, time.shape[1:])
    lowest = time[at]
    over_cores, over_edge = time[at[0], :, at[2]] / lowest[:, None] - 1.0, time[at[0], at[1]] / lowest[:, None] - 1.0
    inner = ((at[1] > 0) & (at[1] < len(CORES) - 1)) & ((at[2] > 0) & (at[2] < len(EDGES) - 1))
    names = [labels[row * len(CORES) * len(EDGES) + best] for row, best in enumerate(flat)]
    compute, cache, capacity = (values[at] for values in (grid.compute, grid.cache, grid.capacity))
    losses = [np.where(np.isfinite(own), own, np.nan) for own in (
        over_cores[:, 0], over_cores[:, -1], over_edge[:, 0], over_edge[:, -1])]  # fmt: skip
    sheet = sheet_of(
        "shares",
        "Shares of the dies and of the edge with which the best device of each node is fastest, and what others lose.",
        [
            ("node", nodes),
            (own_column("cores_of_the_dies", "-", "Share of the dies for cores"), compute),
            (own_column("cache_of_the_dies", "-", "Share of the dies for cache"), cache),
            (own_column("last_level_cache", "MiB", "Capacity of the last-level cache"), capacity / 2.0**20),
            (own_column("memory_of_the_edge", "-", "Share of the edge for memory"), np.array(EDGES)[at[2]]),
            (own_column("step_time", "s", "Time of a training step with the best plan"), lowest),
            (own_column("longer_with_most_cache", "-", "How much longer a step is with the most cache"), losses[0]),
            (own_column("longer_with_least_cache", "-", "How much longer a step is with next to no cache"), losses[1]),
            (
                own_column("longer_with_least_memory_edge", "-", "How much longer with the least edge for memory"),
                losses[2],
            ),
            (own_column("longer_with_most_memory_edge", "-", "Blank where it does not fit"), losses[3]),
            ("best_between_the_ends", np.where(inner, "yes", "no")),
        ],
    )
    findings = list(_findings(nodes, compute, cache, capacity, np.array(EDGES)[at[2]], losses, inner))
    return Shares(sheet, findings, catalog, names, inner)


def _findings(
    nodes: Sequence[str],
    compute: np.ndarray,
    cache: np.ndarray,
    capacity: np.ndarray,
    edge: np.ndarray,
    losses: Sequence[np.ndarray],
    inner: np.ndarray,
) -> Iterator[Finding]:
    """The shares of all nodes in one finding; the sheet has those of each."""
    words = (
        f"{nodes[0]} to {nodes[-1]}: best with {span(100 * compute)} % of the dies for cores, {span(100 * cache)} % "
    )
    words += (
        f"for cache ({span(capacity / 2.0**20)} MiB) and {span(100 * edge)} % of the edge for memory; a step takes "
    )
    words += f"{span(100 * losses[0])} % longer with {100 * CORES[0]:.0f} % of that area for cores, "
    words += f"{span(100 * losses[1])} % longer with next to no cache"
    ends = [node for node, own in zip(nodes, inner, strict=True) if not own]
    if ends:
        words += f"; the best of {' and '.join(ends)} lies at the end of what was tried"
    yield Finding("Shares", f"{words}.", "plain" if ends else "good")
