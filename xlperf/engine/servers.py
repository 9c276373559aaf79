"""Servers and racks with their finance: rows of the sheet ``servers`` through the equations of ownership."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.units import YEAR
from xlperf.catalog.schema import results_of
from xlperf.catalog.table import Table
from xlperf.engine.lookup import values_in_case
from xlperf.equations.cost.systems import (
    accelerator_capex,
    accelerators_for_power,
    carbon_of_energy,
    facility_cost,
    network_cost,
    network_parts,
)
from xlperf.equations.cost.tco import building_power, capital_recovery_rate, energy_cost_rate, owned_cost_rate

Columns = dict[str, np.ndarray]
HOUR_PARTS = ("accelerator_cost", "server_cost", "network_capital_cost", "storage_cost", "facility_cost",
              "running_cost", "energy_cost")  # fmt: skip
"""Results of a server that add up to ``cost_rate``."""


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
    number = server_numbers(servers, case)
    endpoints = number["cluster_size"] * number["links_per_accelerator"]
    parts = counted_parts(servers.filled("topology"), endpoints, number["oversubscription"], number)
    network = network_price(parts, endpoints, number) / number["cluster_size"]
    costs = server_costs(number, network)
    asked, budget, group = number["fixed_accelerators"], number["fixed_power"], number["num_accelerators"]
    fed = accelerators_for_power(budget, costs["power"], number["power_usage_effectiveness"], group)
    planned = np.where(np.isnan(asked), fed, np.where(np.isnan(fed), asked, np.minimum(asked, fed)))
    columns = {
        "network_switches": parts[0],
        "network_cables": parts[1],
        "network_transceivers": parts[2],
        "network_cost": network,
        **costs,
        "accelerators_planned": planned,
        "power_planned": planned * costs["grid_power"],
        "capex_planned": planned * (costs["capex"] + costs["facility"]),
        "cost_planned": planned * costs["cost_rate"] * costs["used"] * YEAR,
    }
    return Table("servers_results", {c.name: columns[c.name] for c in results_of("servers").columns}, servers.place)


def server_numbers(servers: Table, case: str = "base") -> Columns:
    """Every number of rows of servers, blanks as the schema has them."""
    return {c.name: values_in_case(servers, c.name, case) for c in servers.schema.columns if c.kind == "number"}


def owner_terms(number: Columns, network: Array) -> Columns:
    """Arguments of :func:`xlperf.equations.cost.tco.owned_cost_rate` for an accelerator in a server.

    Parameters
    ----------
    number : dict of str to array
        Of :func:`server_numbers`, (rows,).
    network : Array
        Price of the network, share of one accelerator, (rows,). [USD]

    Returns
    -------
    dict of str to array
        By the names of its parameters, (rows,).
    """
    group, pue, discount = number["num_accelerators"], number["power_usage_effectiveness"], number["discount_rate"]
    bought = accelerator_capex(number["accelerator_price"], number["server_price"], group, network)
    power = number["server_power"] / group + number["network_power"]
    used = number["utilization"]
    return {
        "capex": bought * (1.0 + number["storage_share"]),
        "recovery_rate": capital_recovery_rate(discount, number["life"], number["residual_share"]),
        "facility": facility_cost(power, pue, number["building_price"], number["rack_cost"] / group),
        "facility_recovery_rate": capital_recovery_rate(discount, number["building_life"]),
        "maintenance_share": number["maintenance_share"],
        "staff_cost": number["staff_cost"],
        "server_power": power,
        "power_usage_effectiveness": pue,
        "energy_price": number["energy_price"],
        "utilization": np.where(used > 0.0, used, np.nan),
        "load_share": number["load_share"],
    }


def server_costs(number: Columns, network: Array) -> Columns:
    """Costs of an accelerator in a server, by part.

    Parameters
    ----------
    number : dict of str to array
        Of :func:`server_numbers`, (rows,).
    network : Array
        Price of the network, share of one accelerator, (rows,). [USD]

    Returns
    -------
    dict of str to array
        Results of servers but for those of the network and of the planner, and ``power`` and ``grid_power`` of one
        accelerator and the share of hours that are ``used``. [USD, USD/s, W]
    """
    terms = owner_terms(number, network)
    capex, recovery, facility, building = (
        terms[name] for name in ("capex", "recovery_rate", "facility", "facility_recovery_rate")
    )
    power, pue, used = (terms[name] for name in ("server_power", "power_usage_effectiveness", "utilization"))
    total = owned_cost_rate(**terms)
    energy = energy_cost_rate(power, pue, number["energy_price"]) * number["load_share"]
    capital = (capex * recovery + facility * building) / used
    earned = recovery / used
    from_grid = building_power(power, pue)
    stored = capex * number["storage_share"] / (1.0 + number["storage_share"])
    return {
        "capex": capex,
        "facility": facility,
        "accelerator_cost": number["accelerator_price"] * earned,
        "server_cost": number["server_price"] / number["num_accelerators"] * earned,
        "network_capital_cost": network * earned,
        "storage_cost": stored * earned,
        "facility_cost": facility * building / used,
        "capital_cost": capital,
        "running_cost": total - capital - energy,
        "energy_cost": energy,
        "cost_rate": total,
        "carbon_rate": carbon_of_energy(from_grid * number["load_share"], number["carbon_intensity"]),
        "power": power,
        "grid_power": from_grid,
        "used": used,
    }


def counted_parts(
    topology: np.ndarray, endpoints: Array, oversubscription: Array, number: Columns, num_axes: Array | None = None
) -> tuple[Array, Array, Array]:
    """Switches, cables and transceivers of each network; each topology is one call.

    Parameters
    ----------
    topology : np.ndarray
        Names, (rows,).
    endpoints : Array
        Links into each network, (rows,). [-]
    oversubscription : Array
        Bandwidth into each network over that through its core, (rows,). [-]
    number : dict of str to array
        With ``switch_ports``, (rows,). [-]
    num_axes : Array, optional
        Axes of each torus or mesh; 3 where it is not given, (rows,). [-]

    Returns
    -------
    tuple of Array
        Switches, cables and transceivers, (rows,). [-]
    """
    parts = tuple(np.full(endpoints.shape, np.nan) for _ in range(3))
    axes = np.full(endpoints.shape, 3.0) if num_axes is None else num_axes
    for name in dict.fromkeys(topology.tolist()):
        rows = topology == name
        counted = network_parts(
            str(name), endpoints[rows], number["switch_ports"][rows], oversubscription[rows], axes[rows]
        )
        for part, values in zip(parts, counted, strict=True):
            part[rows] = values
    return parts[0], parts[1], parts[2]


def network_price(parts: tuple[Array, Array, Array], endpoints: Array, number: Columns) -> Array:
    """Price of each network at the prices of its server's row, (rows,). [USD]"""
    return network_cost(
        *parts, endpoints, number["switch_price"], number["cable_price"], number["transceiver_price"],
        number["adapter_price"],
    )  # fmt: skip
