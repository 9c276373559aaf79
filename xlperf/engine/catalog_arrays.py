"""The catalog as arrays for the equations: models, devices and networks, built once and indexed by row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import prod
from weakref import WeakKeyDictionary

import numpy as np

from xlperf.base.arrays import Array, Columns, rows_of, some
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table, Words, aliases, coded_words
from xlperf.engine.link_lists import listed_number
from xlperf.engine.models import architecture_codes_of, model_columns
from xlperf.engine.prices import prices_of_accelerators
from xlperf.equations.cost.tco import Terms
from xlperf.equations.hardware.power import node_energy_ratio, peak_clock_rate
from xlperf.equations.hardware.roofline import MEMORY_ENERGY, cache_bandwidth, vector_flop_rate
from xlperf.equations.model.model import Model
from xlperf.equations.network.topologies import FAT_TREE, Network, torus_block
from xlperf.equations.plan.records import PRECISIONS, Remark

_AXES = 3
# Network columns that a plan uses unchanged
_COLUMNS = ("size", "link_bandwidth", "latency", "in_network_reduction")
_ON_AXES = ("ring", "torus", "mesh")
_REARRANGED = re.compile(r"([123])\s*D(?:\s+of\s+(\d+))?", re.IGNORECASE)
_LENGTHS = re.compile(r"\d+(\s*x\s*\d+){0,2}", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class _Layouts:
    """Shapes of the tiers of all networks, (networks, tiers) unless stated otherwise."""

    lengths: Array  # of the axes, (axes, networks, tiers)
    num_rings: Array
    num_links: Array
    listed: Array  # number of the list of links of a tier, else NaN
    num_axes: np.ndarray
    rearranged: np.ndarray  # whether the machine is rewired for each plan
    cube: np.ndarray  # length of the cubes that it is rewired from
    on_axes: np.ndarray  # whether a plan occupies a block of the tier
    dragonfly: np.ndarray  # whether oversubscription concerns global links only
    problems: np.ndarray  # fault of each network in words, or "", (networks,)
    columns: Array  # columns of _COLUMNS, with links divided by their sharers, (columns, networks, tiers)
    reach: Array  # accelerators that a network connects, (networks,)
    plain: np.ndarray  # whether all tiers are switches, (networks,)
    wrong: np.ndarray  # whether there is a fault, (networks,)
    names: np.ndarray  # (networks,)


_cached_layouts: WeakKeyDictionary[Table, _Layouts] = WeakKeyDictionary()


def _layouts(catalog: Catalog) -> _Layouts:
    table = catalog.tables["networks"]
    if table in _cached_layouts:
        return _cached_layouts[table]
    tiers = catalog.network_arrays
    shape = tiers["size"].shape
    lengths = np.ones((_AXES, *shape))
    num_rings, num_links, num_axes = np.zeros(shape), np.ones(shape), np.ones(shape, dtype=np.int64)
    listed = np.full(shape, np.nan)
    cube = np.ones(shape, dtype=np.int64)
    rearranged, on_axes, dragonfly = (np.zeros(shape, dtype=bool) for _ in range(3))
    problems = np.full(shape[0], "", dtype=object)
    topologies, dimensions = table.filled("topology"), table.text("dimensions")
    for number, name in enumerate(catalog.networks):
        rows = catalog.network_tiers(name).tolist()
        for tier, row in enumerate(rows + rows[-1:] * (shape[1] - len(rows))):
            inner = tiers["size"][number, tier - 1] if 0 < tier < len(rows) else 1.0
            if tier >= len(rows) > 1:
                inner = tiers["size"][number, len(rows) - 2]
            places = tiers["size"][number, tier] / inner
            topology, text = str(topologies[row]), str(dimensions[row]).strip()
            if topology == "fully-connected":
                num_links[number, tier] = max(places - 1.0, 1.0)
            if topology == "dragonfly":
                places = float(tiers["size"][number, tier])
            elif topology not in (*_ON_AXES, "links"):
                continue
            try:
                if topology == "links":
                    listed[number, tier] = listed_number(text, places, min(tier, len(rows) - 1))
                    continue
                at = _lengths(topology, text, places)
            except ValueError as problem:
                problems[number] = f"tier {table['tier'][row]:g} {problem}"
                continue
            lengths[: len(at), number, tier] = at
            if topology != "dragonfly":
                on_axes[number, tier], num_axes[number, tier] = True, len(at)
                rewired = _REARRANGED.fullmatch(text)
                rearranged[number, tier] = bool(rewired)
                cube[number, tier] = int(rewired[2] or 1) if rewired else 1
                num_rings[number, tier] = 0.0 if topology == "mesh" else len(at)
                num_links[number, tier] = 2.0 * len(at)
            else:
                dragonfly[number, tier] = True
                num_links[number, tier] = at[0] / tiers["oversubscription"][number, tier]
    tapered = np.where(dragonfly, 1.0, tiers["oversubscription"])
    links = tiers["link_bandwidth"] / (tapered * tiers["accelerators_per_adapter"])
    layouts = _cached_layouts[table] = _Layouts(
        lengths,
        num_rings,
        num_links,
        listed,
        num_axes,
        rearranged,
        cube,
        on_axes,
        dragonfly,
        problems,
        columns=np.array([links if name == "link_bandwidth" else tiers[name] for name in _COLUMNS]),
        reach=tiers["size"].max(axis=-1, initial=0.0),
        plain=np.asarray((tiers["topology"] <= FAT_TREE).all(axis=-1)),
        wrong=np.array([text != "" for text in problems.tolist()], dtype=bool),
        names=np.array(catalog.networks, dtype=object),
    )
    return layouts


def _lengths(topology: str, text: str, places: float) -> tuple[int, ...]:
    """Lengths of the axes of a whole tier; ValueError with the fault of its dimensions."""
    if places != np.floor(places):
        raise ValueError(f"joins {places:g} machines of the tier inside it, not a whole number")
    count, rewired = int(places), _REARRANGED.fullmatch(text)
    if topology == "dragonfly" and (not text or rewired):
        raise ValueError("is a dragonfly: its dimensions must say accelerators x routers x groups, as 4x8x33")
    axes = 1 if topology == "ring" else int(rewired[1]) if rewired else 2
    if not text or rewired:
        return tuple(sorted(torus_block(count, axes)[0]))
    if not _LENGTHS.fullmatch(text):
        raise ValueError(
            f'has dimensions "{text}": write lengths as 4x4x4, or 3D of 4 where cubes of 4 are wired to fit each plan'
        )
    lengths = tuple(int(part) for part in text.casefold().split("x"))
    if prod(lengths) != count:
        raise ValueError(f"has dimensions {text}, but joins {count}")
    if (topology == "ring" and len(lengths) != 1) or (topology == "dragonfly" and len(lengths) != _AXES):
        raise ValueError(f"is a {topology}, which does not have {len(lengths)} dimensions")
    return lengths


def switched_networks(catalog: Catalog, accelerators: np.ndarray, networks: np.ndarray) -> np.ndarray:
    """Whether the networks of plans (-1: the accelerator's default) have only switches or are none, (rows,)."""
    if not catalog.networks:
        return np.full(len(networks), True)
    rows = np.where(networks >= 0, networks, catalog.default_networks[accelerators])
    return np.asarray(_layouts(catalog).plain[np.maximum(rows, 0)] | (rows < 0))


def network_of(catalog: Catalog, rows: np.ndarray, accelerators: Array) -> tuple[Network, list[Remark]]:
    """Tiers and topologies (rows, tiers) of the networks of plans, -1 for none, and the rules that need the catalog. A
    plan smaller than a ring, torus or mesh occupies its most cubic block, whose axes are rings if the machine is
    rewired for each plan or if the block spans the axis.
    """
    single = accelerators <= 1
    if not catalog.networks:
        blank = np.full((len(rows), 1), np.nan)
        switch = np.zeros(blank.shape, dtype=np.int64)
        network = Network(blank, blank, blank, blank, blank, switch, blank, blank, blank, blank, blank)
        return network, [Remark(~single, "the catalog has no network for {} accelerators", (accelerators,))]
    tiers, layouts = catalog.network_arrays, _layouts(catalog)
    index = np.maximum(rows, 0)
    reach = layouts.reach[index]
    if some(layouts.on_axes[index]):
        lengths, num_rings = _blocks(layouts, tiers["size"], index, accelerators)
    else:
        lengths, num_rings = rows_of(layouts.lengths, index, 1), rows_of(layouts.num_rings, index)
    network = Network(
        **dict(zip(_COLUMNS, rows_of(layouts.columns, index, 1), strict=True)),
        topology=rows_of(tiers["topology"], index),
        first_length=lengths[0],
        second_length=lengths[1],
        third_length=lengths[2],
        num_rings=num_rings,
        num_links=rows_of(layouts.num_links, index),
        listed=rows_of(layouts.listed, index),
    )
    rules = [
        Remark(
            (rows < 0) & ~single,
            "the accelerator has no default network: name one for {} accelerators",
            (accelerators,),
        ),
        Remark(
            (rows >= 0) & ~single & layouts.wrong[index],
            "network {}: {}",
            (layouts.names[index], layouts.problems[index]),
        ),
        Remark(
            (rows >= 0) & (accelerators > reach),
            "network {} connects {} accelerators at most, the plan has {}",
            (layouts.names[index], reach, accelerators),
        ),
    ]
    return network, rules


def own_links(catalog: Catalog, network: Network, rows: np.ndarray, link_bandwidth: Array) -> Network:
    """Networks whose innermost tier has the bandwidth of the accelerators' own links (NaN: the network's). [B/s]"""
    if not catalog.networks:
        return network
    index = np.maximum(rows, 0)
    tiers = catalog.network_arrays
    ratio = np.where(np.isnan(link_bandwidth), 1.0, link_bandwidth / tiers["link_bandwidth"][index][:, 0])
    inner = np.arange(network.link_bandwidth.shape[1]) == 0
    inner = inner | (tiers["num_tiers"][index] == 1)[:, None]
    return replace(network, link_bandwidth=network.link_bandwidth * np.where(inner, ratio[:, None], 1.0))


def _blocks(layouts: _Layouts, size: Array, index: np.ndarray, accelerators: Array) -> tuple[Array, Array]:
    """Axis lengths (axes, rows, tiers) and rings (rows, tiers) of the blocks that plans occupy."""
    lengths, num_rings = layouts.lengths[:, index], layouts.num_rings[index]
    placed = np.flatnonzero(layouts.on_axes[index].any(axis=-1))
    counts = np.nan_to_num(accelerators[placed], nan=1.0)
    rows_of: dict[tuple[int, float], list[int]] = {}
    for row, number, count in zip(placed.tolist(), index[placed].tolist(), counts.tolist(), strict=True):
        rows_of.setdefault((number, count), []).append(row)
    for (number, count), chosen in rows_of.items():
        for tier in np.flatnonzero(layouts.on_axes[number]).tolist():
            inner = max((value for value in size[number, :tier].tolist() if value < size[number, tier]), default=1.0)
            places = int(min(max(np.ceil(count / inner), 1.0), size[number, tier] / inner))
            axes = int(layouts.num_axes[number, tier])
            machine = tuple(int(value) for value in layouts.lengths[:axes, number, tier])
            rings = bool(layouts.num_rings[number, tier] > 0)
            fixed = () if layouts.rearranged[number, tier] else machine
            block, closed = torus_block(places, axes, fixed, rings, int(layouts.cube[number, tier]))
            lengths[:, chosen, tier] = 1.0
            lengths[:axes, chosen, tier] = np.array(block, dtype=np.float64)[:, None]
            num_rings[chosen, tier] = closed
    return lengths, num_rings


DEVICE_COLUMNS = ("vector_flop_rate", "memory_bandwidth", "memory_capacity", "l2_bandwidth", "num_multiprocessors",
                  "thermal_design_power", "l2_capacity", "shared_memory_capacity", "energy_ratio", "static_power",
                  "idle_power", "host_bandwidth", "host_memory_bandwidth", "host_memory_capacity", "host_flop_rate",
                  "drive_bandwidth", "memory_energy", "exponential_rate")  # fmt: skip
HOST_COLUMNS = (
    *("host_bandwidth", "host_memory_bandwidth", "host_memory_capacity"),
    *("host_flop_rate", "drive_bandwidth"),
)


@dataclass(frozen=True, eq=False)
class CatalogArrays:
    """Columns of a catalog, built once and then indexed by row: models, or accelerators."""

    model: Array  # fields of Model, (fields, models)
    unmodelled: np.ndarray  # unmodelled features of each model in words, or ""
    is_unmodelled: np.ndarray
    architecture: np.ndarray  # codes of the models' architectures
    max_sequence_length: Array  # [token]
    generation: Words
    peaks: Array  # dense peak rates, (accelerators, precisions) [FLOP/s]
    device: Array  # columns of DEVICE_COLUMNS, (columns, accelerators)
    thermal_design_power: Array  # [W]
    reserved_memory: Array  # [B]
    terms: Terms  # price and power at full load by the sheet prices
    rented: np.ndarray  # whether the price is a rent
    by_server: np.ndarray  # whether a row of servers gives the price
    owning: Mapping[str, Array]  # further arguments of `accelerator_cost_rate`
    link_bandwidth: Array  # of the accelerator's own links, or NaN [B/s]
    linked: bool  # whether any accelerator has links of its own
    unbuilt: np.ndarray | None  # faults of derived accelerators in words; None without faults

    def host_of(self, accelerators: np.ndarray) -> Columns:
        """Columns of the devices, such as the memory of the host, of rows of accelerators."""
        return Columns(lambda name: self.device[DEVICE_COLUMNS.index(name)][accelerators])


class _CachedArrays:
    """Cached arrays of a catalog, with and without accelerators derived from devices, whose equations take longer."""

    def __init__(self, catalog: Catalog) -> None:
        names = catalog.tables["accelerators"].text("device")
        self.derived = np.array([name != "" for name in names.tolist()], dtype=bool)
        self.arrays: dict[bool, CatalogArrays] = {}


_cached_arrays: WeakKeyDictionary[Catalog, _CachedArrays] = WeakKeyDictionary()


def catalog_arrays(catalog: Catalog, accelerators: np.ndarray) -> CatalogArrays:
    """Columns of a catalog, cached; results of devices are included if one of ``accelerators`` is derived."""
    cached = _cached_arrays.get(catalog)
    if cached is None:
        cached = _cached_arrays[catalog] = _CachedArrays(catalog)
    derived = some(cached.derived[accelerators])
    if derived not in cached.arrays:
        cached.arrays[derived] = _arrays(catalog, derived)
    return cached.arrays[derived]


def _arrays(catalog: Catalog, derived: bool) -> CatalogArrays:
    models, accelerators = catalog.tables["models"], catalog.tables["accelerators"]
    capex = server_power = np.full(len(accelerators), np.nan)
    unbuilt = np.full(len(accelerators), "", dtype=object)
    if derived:
        from xlperf.engine.devices import accelerators_of

        accelerators, capex, _, server_power, unbuilt, _ = accelerators_of(catalog)
    model, unmodelled = model_columns(models)
    power = accelerators.number("thermal_design_power")
    ratio = float(table_schema("devices").by_name["server_power_ratio"].default)
    terms, rent, by_server, owning = prices_of_accelerators(
        catalog, power, capex, np.where(np.isnan(server_power), ratio * power, server_power)
    )
    device = _device_columns(catalog, accelerators)
    return CatalogArrays(
        model=np.array([model[field.name] for field in fields(Model)]),
        unmodelled=unmodelled,
        is_unmodelled=np.array([text != "" for text in unmodelled.tolist()], dtype=bool),
        architecture=architecture_codes_of(model),
        max_sequence_length=models.number("max_sequence_length"),
        generation=coded_words(accelerators.text("generation").tolist()),
        peaks=np.stack([accelerators.number(f"peak_flop_rate_{PRECISIONS[name].peak}") for name in PRECISIONS], -1),
        device=np.array([device[name] for name in DEVICE_COLUMNS]),
        thermal_design_power=power,
        reserved_memory=accelerators.filled("reserved_memory"),
        terms=terms,
        rented=~np.isnan(rent),
        by_server=by_server,
        owning=owning,
        link_bandwidth=accelerators.number("link_bandwidth"),
        linked=some(~np.isnan(accelerators.number("link_bandwidth"))),
        unbuilt=unbuilt if any(unbuilt.tolist()) else None,
    )


def _device_columns(catalog: Catalog, accelerators: Table) -> dict[str, Array]:
    """Columns of :data:`DEVICE_COLUMNS` by name."""
    units = accelerators.number("num_multiprocessors")
    as_stated = (
        "memory_bandwidth",
        "memory_capacity",
        "thermal_design_power",
        "l2_capacity",
        "shared_memory_capacity",
        "static_power",
        "idle_power",
        "exponential_rate",
    )
    return {
        **{name: accelerators.number(name) for name in as_stated},
        **{name: accelerators.filled(name) for name in HOST_COLUMNS},
        "num_multiprocessors": units,
        "vector_flop_rate": vector_flop_rate(
            accelerators.number("peak_flop_rate_fp32"),
            accelerators.number("peak_flop_rate_bf16"),
            accelerators.filled("matrix_to_vector_ratio"),
        ),
        "l2_bandwidth": cache_bandwidth(
            accelerators.number("l2_bandwidth"),
            units,
            accelerators.number("clock_rate"),
            accelerators.filled("l2_bytes_per_clock"),
        ),
        "energy_ratio": _energy_ratio(catalog, accelerators),
        "memory_energy": _memory_energy(catalog, accelerators),
    }


def _energy_ratio(catalog: Catalog, accelerators: Table) -> Array:
    """Energy of an operation over its energy at 5 nm: as stated, else by process node and clock."""
    nodes, stated = catalog.tables["technology"], accelerators.number("flop_energy")
    energy, nominal = stated, np.full(len(stated), np.nan)
    peaks, units = accelerators.number("peak_flop_rate_bf16"), accelerators.number("num_multiprocessors")
    clock = accelerators.number("clock_rate")
    if len(nodes):
        named = {name.casefold(): row for row, name in enumerate(nodes.text("technology").tolist())}
        named = {word.casefold(): row for row, word in aliases(nodes)} | named
        words = accelerators.text("technology_node").tolist()
        rows = np.array([named.get(word.strip().casefold(), -1) for word in words], dtype=np.int64)
        known = np.isnan(stated) & (rows >= 0)
        energy = np.where(known, nodes.number("flop_energy")[rows], stated)
        nominal = np.where(known, nodes.number("nominal_clock_rate")[rows], np.nan)
    return node_energy_ratio(energy, peak_clock_rate(peaks, units, clock, nominal), nominal)


def _memory_energy(catalog: Catalog, accelerators: Table) -> Array:
    """Energy of a byte of main memory: as stated, else of its memory type, else of HBM3. [J/B]"""
    memories, stated = catalog.tables["memories"], accelerators.number("memory_energy")
    if not len(memories):
        return np.where(np.isnan(stated), MEMORY_ENERGY, stated)
    rows = catalog.known_rows("memories", accelerators.text("memory_type"))
    of_type = np.where(rows >= 0, memories.number("energy")[rows], MEMORY_ENERGY)
    return np.where(np.isnan(stated), of_type, stated)


def catalog_models(catalog: Catalog) -> tuple[Model, np.ndarray]:
    """All models of a catalog, and the unmodelled features of each in words ("" without any)."""
    columns, unmodelled = model_columns(catalog.tables["models"])
    return Model.of_rows(np.array([columns[field.name] for field in fields(Model)])), unmodelled
