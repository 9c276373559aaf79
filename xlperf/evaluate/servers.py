"""Servers and racks with their finance: rows of the sheet ``servers`` through the equations of ownership."""

from __future__ import annotations

import numpy as np

from xlperf.arrays import Array
from xlperf.catalog.schema import results_of
from xlperf.catalog.table import Table
from xlperf.cost.systems import (
    accelerator_capex,
    accelerators_for_power,
    carbon_of_energy,
    facility_cost,
    network_cost,
    network_parts,
)
from xlperf.cost.tco import building_power, capital_recovery_rate, energy_cost_rate, owned_cost_rate
from xlperf.evaluate.cases import values_in_case
from xlperf.units import YEAR

Columns = dict[str, np.ndarray]


def evaluate_servers(servers: Table, case: str = "base") -> Table:
    """Capital, running and energy cost of an accelerator-hour for every row of a table of servers.

    Parameters
    ----------
    servers : Table
        Rows of kind ``servers``.
    case : str, default "base"
        ``low``, ``base`` or ``high``: which of the prices, lives and rates that have a low and a high value.

    Returns
    -------
    Table
        ``servers_results``, one row per server, in the units used inside. ``fixed_accelerators`` and ``fixed_power``
        are the two views of a planner; where a row has both, what the power feeds bounds the number.
    """
    number = {c.name: values_in_case(servers, c.name, case) for c in servers.schema.columns if c.kind == "number"}
    group, endpoints = number["num_accelerators"], number["cluster_size"] * number["links_per_accelerator"]
    parts = _network(servers.filled("topology"), endpoints, number)
    network = (
        network_cost(
            *parts, endpoints, number["switch_price"], number["cable_price"], number["transceiver_price"],
            number["adapter_price"],
        )
        / number["cluster_size"]
    )  # fmt: skip
    bought = accelerator_capex(number["accelerator_price"], number["server_price"], group, network)
    capex = bought * (1.0 + number["storage_share"])
    power = number["server_power"] / group + number["network_power"]
    pue = number["power_usage_effectiveness"]
    facility = facility_cost(power, pue, number["building_price"], number["rack_cost"] / group)
    discount, used = number["discount_rate"], number["utilization"]
    used = np.where(used > 0.0, used, np.nan)
    recovery = capital_recovery_rate(discount, number["life"], number["residual_share"])
    building = capital_recovery_rate(discount, number["building_life"])
    capital = (capex * recovery + facility * building) / used
    total = owned_cost_rate(
        capex, recovery, facility, building, number["maintenance_share"], number["staff_cost"], power, pue,
        number["energy_price"], used, number["load_share"],
    )  # fmt: skip
    energy = energy_cost_rate(power, pue, number["energy_price"]) * number["load_share"]
    from_grid = building_power(power, pue)
    asked, budget = number["fixed_accelerators"], number["fixed_power"]
    fed = accelerators_for_power(budget, power, pue, group)
    planned = np.where(np.isnan(asked), fed, np.where(np.isnan(fed), asked, np.minimum(asked, fed)))
    columns = {
        "network_switches": parts[0],
        "network_cables": parts[1],
        "network_transceivers": parts[2],
        "network_cost": network,
        "capex": capex,
        "facility": facility,
        "capital_cost": capital,
        "running_cost": total - capital - energy,
        "energy_cost": energy,
        "cost_rate": total,
        "carbon_rate": carbon_of_energy(from_grid * number["load_share"], number["carbon_intensity"]),
        "accelerators_planned": planned,
        "power_planned": planned * from_grid,
        "capex_planned": planned * (capex + facility),
        "cost_planned": planned * total * used * YEAR,
    }
    return Table("servers_results", {c.name: columns[c.name] for c in results_of("servers").columns}, servers.place)


def _network(topology: np.ndarray, endpoints: Array, number: Columns) -> tuple[Array, Array, Array]:
    """Parts of each network; each topology is one call."""
    parts = tuple(np.full(endpoints.shape, np.nan) for _ in range(3))
    for name in dict.fromkeys(topology.tolist()):
        rows = topology == name
        counted = network_parts(
            str(name), endpoints[rows], number["switch_ports"][rows], number["oversubscription"][rows]
        )
        for part, values in zip(parts, counted, strict=True):
            part[rows] = values
    return parts[0], parts[1], parts[2]
