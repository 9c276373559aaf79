"""Plans that are owned: servers, a network counted from the plan's own topology, building, power; cost by part."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.arrays import Array, ceil_div
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table
from xlperf.cost.systems import carbon_of_energy
from xlperf.cost.tco import cost_per_token, energy_per_token, rate_per_cost, run_cost, token_rate_per_power
from xlperf.evaluate.designs import evaluate_designs
from xlperf.evaluate.door import evaluate
from xlperf.evaluate.servers import Columns, counted_parts, network_price, server_costs, server_numbers
from xlperf.units import YEAR

ACCELERATOR_PARTS = ("hour_dies", "hour_memory", "hour_package", "hour_board", "hour_one_time", "hour_margin")
DESIGN_PARTS = {
    "hour_dies": ("raw_dies", "die_defects", "wasted_dies"),
    "hour_memory": ("memory", "wasted_memory"),
    "hour_package": ("raw_package", "package_defects"),
    "hour_board": ("test", "board_cost"),
    "hour_one_time": ("nre_per_unit",),
}
"""Results of a design that each part of the hour but the margin is made of."""
HOUR_PARTS = ("hour_accelerator", "hour_server", "hour_network", "hour_storage", "hour_facility", "hour_running",
              "hour_energy")  # fmt: skip
"""Results that add up to the hour; the first is the sum of :data:`ACCELERATOR_PARTS` where a design is known."""


def evaluate_ownership(plans: Table, catalog: Catalog, owner: str = "", case: str = "base") -> Table:
    """What plans cost to an owner, by part from the wafer to the power.

    Parameters
    ----------
    plans : Table
        Plans of kind ``training`` or ``inference``.
    catalog : Catalog
        With servers, whose first row of an accelerator is bought, and chiplets, whose row of it says what it is made
        of.
    owner : str, default ""
        A word that the name of the server has to hold, so that of several rows of one accelerator another than the
        first is taken.
    case : str, default "base"
        ``low``, ``base`` or ``high`` values of the cost sheets.

    Returns
    -------
    Table
        ``ownership``, one row per plan, in the units used inside; NaN and a reason where no server has the plan's
        accelerator or the plan has no result.

    Raises
    ------
    InputError
        As :func:`xlperf.evaluate.evaluate`.
    """
    results = evaluate(plans, _at_one_dollar(plans, catalog))
    servers = catalog.tables["servers"]
    accelerator = catalog.rows("accelerators", plans.text("accelerator"), plans, "accelerator")
    row = first_rows(servers, catalog, accelerator, owner)
    known = row >= 0
    number = {
        name: np.where(known, values[row], np.nan) if len(values) else np.full(len(plans), np.nan)
        for name, values in server_numbers(servers, case).items()
    }
    count = plans.number("num_accelerators")
    with np.errstate(divide="ignore", invalid="ignore"):
        tier = _outer_tier(plans, catalog, accelerator, count, number)
        endpoints = tier.endpoints
        counted = counted_parts(tier.topology, endpoints, tier.oversubscription, number, tier.num_axes)
        parts = tuple(np.where(endpoints > 0.0, part, 0.0 * endpoints) for part in counted)
        network = network_price((parts[0], parts[1], parts[2]), endpoints, number) / count
        costs = server_costs(number, network)
        columns = _per_plan(plans, results, count, costs, number)
        columns |= _accelerator_parts(catalog, accelerator, costs, number, case)
    columns |= {
        "server": np.where(known, servers.text("server")[row], "") if len(servers) else _blank(plans),
        "accelerators_bought": number["num_accelerators"] * ceil_div(count, number["num_accelerators"]),
        "network_switches": parts[0],
        "network_cables": parts[1],
        "network_transceivers": parts[2],
        "network_cost": network,
    }
    refused = np.isnan(results["tokens_per_second"])
    reason = np.where(known, "", "no row of servers has this accelerator" + (f" and {owner}" if owner else ""))
    reason = np.where(refused, results["reason"], reason).astype(object)
    for name, values in columns.items():
        if values.dtype != object:
            columns[name] = np.where(refused, np.nan, values)
    columns["reason"] = reason
    schema = table_schema("ownership")
    return Table("ownership", {column.name: columns[column.name] for column in schema.columns}, plans.place)


def _blank(plans: Table) -> np.ndarray:
    return np.full(len(plans), "", dtype=object)


def _at_one_dollar(plans: Table, catalog: Catalog) -> Catalog:
    """A catalog in which a second of every accelerator of the plans costs one US dollar."""
    rows = catalog.rows("accelerators", plans.text("accelerator"), plans, "accelerator")
    names = catalog.tables["accelerators"].text("accelerator")
    used = dict.fromkeys(str(names[row]) for row in rows.tolist())
    prices = {"price": np.array(list(used), dtype=object), "rental_price": np.ones(len(used))}
    return catalog.with_tables([Table("prices", prices)])


def first_rows(table: Table, catalog: Catalog, accelerator: np.ndarray, word: str = "") -> np.ndarray:
    """First row of servers or chiplets for each accelerator, whose name holds a word; -1 where there is none."""
    first: dict[int, int] = {}
    if len(table):
        own = catalog.known_rows("accelerators", table.text("accelerator")).tolist()
        for row, (found, name) in enumerate(zip(own, table.text(table.schema.key.name).tolist(), strict=True)):
            if found >= 0 and word.casefold() in str(name).casefold():
                first.setdefault(found, row)
    return np.array([first.get(row, -1) for row in accelerator.tolist()], dtype=np.int64)


class _Tier(NamedTuple):
    """The tier that joins the servers of each plan, (rows,); no end points within one server."""

    topology: np.ndarray
    endpoints: Array
    oversubscription: Array
    num_axes: Array


def _outer_tier(plans: Table, catalog: Catalog, accelerator: np.ndarray, count: Array, number: Columns) -> _Tier:
    networks, accelerators = catalog.tables["networks"], catalog.tables["accelerators"]
    given = plans.text("network")
    names = np.where(given == "", accelerators.text("default_network")[accelerator], given)
    topologies, over = networks.filled("topology"), networks.filled("oversubscription")
    sizes, shared = networks.number("size"), networks.filled("accelerators_per_adapter")
    topology = np.full(len(plans), "fat-tree", dtype=object)
    links, oversubscription, num_axes = np.zeros(len(plans)), np.ones(len(plans)), np.ones(len(plans))
    dimensions = networks.text("dimensions")
    for row, (name, wanted) in enumerate(zip(names.tolist(), count.tolist(), strict=True)):
        tiers = catalog.network_tiers(str(name)).tolist()
        tier = next((tier for tier in tiers if sizes[tier] >= wanted), None)
        if tier is None or wanted <= number["num_accelerators"][row]:
            continue
        topology[row], oversubscription[row] = topologies[tier], over[tier]
        num_axes[row] = _num_axes(str(topologies[tier]), str(dimensions[tier]))
        links[row] = wanted * number["links_per_accelerator"][row] / shared[tier]
    links = np.where(np.isnan(number["num_accelerators"]), np.nan, links)
    return _Tier(topology, links, oversubscription, num_axes)


def _num_axes(topology: str, dimensions: str) -> float:
    """Axes of a torus or mesh as its dimensions have them: 16x16, or 3D of 4; two where they are blank."""
    if topology not in ("torus", "mesh"):
        return 1.0
    text = dimensions.strip().casefold()
    if "d" in text:
        return float(text[0])
    return text.count("x") + 1.0 if text else 2.0


def _per_plan(plans: Table, results: Table, count: Array, costs: Columns, number: Columns) -> dict[str, np.ndarray]:
    hour, grid = costs["cost_rate"], costs["grid_power"]
    training = plans.kind == "training"
    rate = results["tokens_per_second"]
    nothing = np.full(len(plans), np.nan)
    energy = energy_per_token(grid * number["load_share"], count, rate)
    run_time = results["run_time"] if training else nothing

    def per_token(column: str) -> np.ndarray:
        return np.asarray(results[column] * hour) if column in results else nothing

    return {
        "capex": count * costs["capex"],
        "facility": count * costs["facility"],
        "power": count * grid,
        "hour_accelerator": costs["accelerator_cost"],
        "hour_server": costs["server_cost"],
        "hour_network": costs["network_capital_cost"],
        "hour_storage": costs["storage_cost"],
        "hour_facility": costs["facility_cost"],
        "hour_running": costs["running_cost"],
        "hour_energy": costs["energy_cost"],
        "hour_cost": hour,
        "step_cost": run_cost(hour, count, results["step_time"]) if training else nothing,
        "run_cost": run_cost(hour, count, run_time),
        "cost_per_million_tokens": cost_per_token(hour, count, rate) if training else nothing,
        "cost_per_million_input_tokens": per_token("cost_per_million_input_tokens"),
        "cost_per_million_output_tokens": per_token("cost_per_million_output_tokens"),
        "tokens_per_dollar": rate_per_cost(rate, count, hour),
        "tokens_per_second_per_megawatt": token_rate_per_power(rate, count, grid),
        "energy_per_token": energy,
        "carbon_per_million_tokens": carbon_of_energy(energy, number["carbon_intensity"]),
        "run_carbon": costs["carbon_rate"] * count * run_time,
        "yearly_cost": hour * costs["used"] * count * YEAR,
    }


def _accelerator_parts(
    catalog: Catalog, accelerator: np.ndarray, costs: Columns, number: Columns, case: str
) -> dict[str, np.ndarray]:
    """Hour of the accelerator by what it is made of; NaN where no design is made for it."""
    designs = catalog.tables["chiplets"]
    rows = first_rows(designs, catalog, accelerator)
    names = np.full(len(accelerator), "", dtype=object)
    made = np.zeros((len(DESIGN_PARTS), len(accelerator)))
    if len(designs):
        results = evaluate_designs(designs, catalog, case)
        groups = DESIGN_PARTS.values()
        made = np.array([sum(results[name] for name in group) for group in groups])[:, rows]
        names = np.where(rows >= 0, designs.text("chiplet")[rows], "").astype(object)
    price = number["accelerator_price"]
    made = np.where(rows >= 0, made, np.nan)
    parts = [*made, price - np.sum(made, axis=0)]
    hours = {
        name: part * costs["accelerator_cost"] / price for name, part in zip(ACCELERATOR_PARTS, parts, strict=True)
    }
    return {**hours, "design": names}
