"""Owned servers and plans: the accelerator-hour by part, and the bridge from list prices to it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Columns, ceil_div
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import grouped, results_of, table_schema
from xlperf.catalog.table import Table, columns_of
from xlperf.engine.catalog_arrays import catalog_arrays
from xlperf.engine.devices import evaluate_designs
from xlperf.engine.join import pool_rows
from xlperf.engine.prices import (
    chiplets_of,
    first_or_device_rows,
    priced,
    servers_of,
    with_chip_prices,
    with_host,
    with_stated,
)
from xlperf.engine.tables import evaluate
from xlperf.equations.cost.servers import (
    DrawnPower,
    OwnedPool,
    OwnerTerms,
    accelerator_hour,
    embodied_costs,
    owned_hour,
    owned_pool,
    server_costs,
    straight_line_terms,
    working_terms,
)
from xlperf.equations.cost.tco import (
    ALL_IN,
    INPUT,
    OUTPUT,
    carbon_of_energy,
    cost_per_token,
    drawn_terms,
    energy_per_token,
    mean_terms,
    owned_cost_rate,
    pool_mean,
    run_cost,
    split_costs,
    token_costs,
)

ACCELERATOR_PARTS = grouped("ownership", "accelerator hour")
HOUR_PARTS = grouped("ownership", "hour")
# Results that add up to the hour; with a known design the first is the sum of `ACCELERATOR_PARTS`
AT_PRICES = {
    "rent": "rented, sheet prices",
    "own": "owned, sheet prices",
    "rent and own": "one pool rented, one owned, sheet prices",
}
MARGIN = "provider: margin, overhead, idle hours (rent less owning at sheet prices)"
# Lines of the bridge, and the arguments of `owned_cost_rate` that each replaces by the owner's
LINES = (
    ("purchase price: accelerator, server, network, storage", ("capex",)),
    ("life, cost of capital, resale value", ("recovery_rate",)),
    ("maintenance and staff", ("maintenance_share", "staff_cost")),
    ("support, rented storage, set-up", ("quoted_cost_rate",)),
    ("rack and building", ("facility", "facility_recovery_rate")),
    ("power of server and network", ("server_power", "load_share")),
    ("power usage effectiveness", ("power_usage_effectiveness",)),
    ("price of electric energy", ("energy_price",)),
    ("utilization, downtime", ("utilization",)),
)


def evaluate_servers(servers: Table, case: str = "base", catalog: Catalog | None = None) -> Table:
    """Capital, running and energy cost of an accelerator-hour for every server (``servers_results``). ``catalog``:
    chiplets and devices that price accelerators if their cell is blank. ``fixed_accelerators`` and ``fixed_power`` are
    a planner's two views; with both, the power feed limits the number.
    """
    servers = servers if catalog is None else with_chip_prices(servers, catalog, case)
    with np.errstate(divide="ignore", invalid="ignore"):
        costs = server_costs(columns_of(servers, case=case))
    return Table("servers_results", {c.name: costs[c.name] for c in results_of("servers").columns}, servers.place)


class OwnedPlans(NamedTuple):
    """Plans of an owner by pool: decoding (or all), and prefill, (rows,)."""

    accelerators: tuple[np.ndarray, np.ndarray]  # rows of the sheet accelerators
    servers: tuple[np.ndarray, np.ndarray]  # rows of the sheet servers, -1 without one
    pools: tuple[OwnedPool, OwnedPool]  # costs
    prefill_share: Array  # of the accelerators, or of their time [-]

    @property
    def mixed(self) -> np.ndarray:
        """Whether the pools have different accelerators."""
        return np.asarray(self.accelerators[0] != self.accelerators[1])


def owned_plans(plans: Table, results: Table, catalog: Catalog, owner: str = "", case: str = "base") -> OwnedPlans:
    """Servers and costs of plans; arguments as in :func:`evaluate_ownership`."""
    accelerator = catalog.rows("accelerators", plans.text("accelerator"), plans, "accelerator")
    prefill_accelerator = pool_rows(plans, catalog, accelerator)
    share = results["prefill_share"] if plans.kind == "inference" else np.zeros(len(plans))
    training = plans.kind == "training"
    server, decoding = _pool(
        plans, catalog, accelerator, owner, case, results["accelerator_power" if training else "decode_power"]
    )
    prefill_server, prefilling = (
        (server, decoding)
        if training
        else _pool(plans, catalog, prefill_accelerator, owner, case, results["prefill_power"])
    )
    return OwnedPlans((accelerator, prefill_accelerator), (server, prefill_server), (decoding, prefilling), share)


def _pool(
    plans: Table, catalog: Catalog, accelerator: np.ndarray, owner: str, case: str, power: Array
) -> tuple[np.ndarray, OwnedPool]:
    """Server rows of some accelerators, and their cost at the power that the work draws."""
    arrays = catalog_arrays(catalog, accelerator)
    limit = arrays.thermal_design_power[accelerator]
    provided = np.fmin(plans.number("power_limit"), limit)
    servers, count = servers_of(catalog), plans.number("num_accelerators")
    rows = first_or_device_rows(servers, catalog, accelerator, owner)
    server = with_stated(columns_of(servers, rows, case), plans)
    server = with_host(server, plans, arrays.host_of(accelerator))
    with np.errstate(divide="ignore", invalid="ignore"):
        network = _outer_tier(plans, catalog, accelerator, count, server)
        return rows, owned_pool(server, *network, count, DrawnPower(power, provided, limit))


def evaluate_ownership(
    plans: Table, catalog: Catalog, owner: str = "", case: str = "base", results: Table | None = None
) -> Table:
    """Cost of plans to an owner by part, from the wafer to the power (table ``ownership``), by the first server of an
    accelerator with the word ``owner``; plans without a server or a result have NaN and a reason. Mixed pools have the
    hour of the mean accelerator, and one network in shares of each pool's switches and cables.
    """
    results = evaluate(plans, catalog) if results is None else results
    owned = owned_plans(plans, results, catalog, owner, case)
    count = plans.number("num_accelerators")
    with np.errstate(divide="ignore", invalid="ignore"):
        made = [_accelerator_parts(catalog, owned, pool, case) for pool in (0, 1)]
        prefilling = np.where(owned.mixed, np.round(count * owned.prefill_share), 0.0)
        # accelerators in whole servers, used or not
        decode_size, prefill_size = (pool.server.num_accelerators for pool in owned.pools)
        bought = decode_size * ceil_div(count - prefilling, decode_size)
        bought = bought + np.where(
            prefilling > 0.0, prefill_size * ceil_div(prefilling, prefill_size), 0.0 * prefilling
        )
        columns: dict[str, np.ndarray] = {
            **embodied_costs(
                *owned.pools,
                made[0]["embodied_carbon"],
                made[1]["embodied_carbon"],
                owned.prefill_share,
                count,
                results["tokens_per_second"],
                _run_time(plans, results),
            ),
            **owned_hour(*owned.pools, owned.prefill_share, count, results["tokens_per_second"]),
            **_tokens_and_runs(plans, results, owned, count),
            **{name: pool_mean(made[0][name], made[1][name], owned.prefill_share) for name in ACCELERATOR_PARTS},
            "accelerators_bought": bought,
        }
    split = plans.kind == "inference" and ~np.isnan(plans.number("expert_accelerators"))
    refused = np.isnan(results["tokens_per_second"]) | split
    columns = {name: np.where(refused, np.nan, values) for name, values in columns.items()}
    columns["server"] = _both_words(owned, [_names(servers_of(catalog), rows) for rows in owned.servers])
    columns["design"] = _both_words(owned, [parts["design"] for parts in made])
    words = np.where(refused, results["reason"], _unbought(catalog, owned, owner))
    columns["reason"] = np.where(split & (results["reason"] == ""), _NO_EXPERT_POOLS, words).astype(object)
    return Table("ownership", {c.name: columns[c.name] for c in table_schema("ownership").columns}, plans.place)


_NO_EXPERT_POOLS = "what an owner pays for an expert pool is not modelled; its cost is that of the sheet prices"


def _names(table: Table, rows: np.ndarray) -> np.ndarray:
    if not len(table):
        return np.full(len(rows), "", dtype=object)
    return np.where(rows >= 0, table.text(table.schema.key.name)[rows], "").astype(object)


def _both_words(owned: OwnedPlans, words: list[np.ndarray]) -> np.ndarray:
    """Names of both pools, once if they are equal."""
    joined = words[0].copy()
    for row in np.flatnonzero(owned.mixed).tolist():
        joined[row] = " + ".join(dict.fromkeys(str(names[row]) for names in words if names[row]))
    return joined


def _unbought(catalog: Catalog, owned: OwnedPlans, owner: str) -> np.ndarray:
    """Reasons of plans without a server."""
    names = catalog.tables["accelerators"].text("accelerator")
    more = f" and {owner}" if owner else ""
    reason = np.full(len(owned.prefill_share), "", dtype=object)
    for accelerator, server in zip(owned.accelerators[::-1], owned.servers[::-1], strict=True):
        for row in np.flatnonzero(server < 0).tolist():
            reason[row] = f"no row of servers has accelerator {names[accelerator[row]]}{more}"
    return reason


def _outer_tier(
    plans: Table, catalog: Catalog, accelerator: np.ndarray, count: Array, server: Columns
) -> tuple[np.ndarray, Array, Array, Array]:
    """Topology, end points, oversubscription and axes of the tier that joins the servers of a plan, if any."""
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
        if tier is None or wanted <= server.num_accelerators[row]:
            continue
        topology[row], oversubscription[row] = topologies[tier], over[tier]
        num_axes[row] = _num_axes(str(topologies[tier]), str(dimensions[tier]))
        links[row] = wanted * server.links_per_accelerator[row] / shared[tier]
    links = np.where(np.isnan(server.num_accelerators), np.nan, links)
    return topology, links, oversubscription, num_axes


def _num_axes(topology: str, dimensions: str) -> float:
    """Axes of a torus or mesh from its dimensions (16x16, 3D of 4); two for a blank."""
    if topology not in ("torus", "mesh"):
        return 1.0
    text = dimensions.strip().casefold()
    if "d" in text:
        return float(text[0])
    return text.count("x") + 1.0 if text else 2.0


def _tokens_and_runs(plans: Table, results: Table, owned: OwnedPlans, count: Array) -> dict[str, np.ndarray]:
    """Cost, energy and carbon of tokens, of a step and of a run; NaN if not applicable."""
    training = plans.kind == "training"
    rate, blank = results["tokens_per_second"], np.full(len(plans), np.nan)
    decoding, prefilling = (working_terms(pool) for pool in owned.pools)
    terms = mean_terms(decoding, prefilling, owned.prefill_share)
    tokens = dict.fromkeys((*ALL_IN.values(), INPUT, OUTPUT), blank) | token_costs(
        terms, count, rate, ALL_IN[plans.kind]
    )
    if not training:
        lengths = plans.number("prompt_length"), plans.number("output_length")
        tokens |= split_costs(decoding, prefilling, owned.prefill_share, count, rate, *lengths)
    carbon = [carbon_of_energy(each.power, each.carbon_intensity) for each in (decoding, prefilling)]
    step_time, run_time = results["step_time"] if training else blank, _run_time(plans, results)
    return {
        **{f"owned_{name}": values for name, values in tokens.items()},
        "owned_step_cost": run_cost(terms.cost_rate, count, step_time),
        "owned_run_cost": run_cost(terms.cost_rate, count, run_time),
        "owned_run_carbon": pool_mean(carbon[0], carbon[1], owned.prefill_share) * count * run_time,
    }


def _run_time(plans: Table, results: Table) -> Array:
    """Time of training runs; NaN for inference."""
    return results["run_time"] if plans.kind == "training" else np.full(len(plans), np.nan)


def _accelerator_parts(catalog: Catalog, owned: OwnedPlans, pool: int, case: str) -> dict[str, np.ndarray]:
    """Hour and carbon of the accelerator by component, and its design; NaN and "" without a design."""
    designs, accelerator = chiplets_of(catalog), owned.accelerators[pool]
    rows = first_or_device_rows(designs, catalog, accelerator)
    results = evaluate_designs(designs, catalog, case) if len(designs) else Table("chiplets_results", {})
    design = columns_of(results, rows)
    parts: dict[str, np.ndarray] = dict(accelerator_hour(design, owned.pools[pool]))
    stated = catalog.tables["accelerators"].number("embodied_carbon")[accelerator]
    carbon = np.where(np.isnan(stated), design.embodied_carbon, stated)
    return {**parts, "embodied_carbon": carbon, "design": _names(designs, rows)}


def cost_bridge(
    plans: Table, catalog: Catalog, owner: str = "", case: str = "base", results: Table | None = None
) -> Table:
    """Bridge from cost and energy per token at sheet prices to the owner's: a row per plan and line that counts, none
    without a price or a server. The first line equals :func:`xlperf.engine.evaluate`, the last
    :func:`evaluate_ownership`, bit for bit.
    """
    results = evaluate(plans, catalog) if results is None else results
    owned = owned_plans(plans, results, catalog, owner, case)
    with np.errstate(all="ignore"):
        states = [_states(plans, catalog, owned, place) for place in (0, 1)]
        rate, count = results["tokens_per_second"], plans.number("num_accelerators")
        energies, costs = (
            [
                per_token(pool_mean(first[kind], second[kind], owned.prefill_share), count, rate)
                for first, second in zip(*states, strict=True)
            ]
            for kind, per_token in ((1, energy_per_token), (0, cost_per_token))
        )
    networked = owned.pools[0].network + owned.pools[1].network > 0.0
    return _lines(plans, results, np.array(costs), np.array(energies), networked)


def _states(plans: Table, catalog: Catalog, owned: OwnedPlans, place: int) -> list[tuple[Array, Array]]:
    """Cost rate [USD/s] and power [W] of an accelerator of one pool after each line of the bridge."""
    accelerators, pool = owned.accelerators[place], owned.pools[place]
    arrays = catalog_arrays(catalog, accelerators)
    rented = drawn_terms(priced(plans, catalog, arrays, accelerators).terms, pool.drawn.mean, pool.drawn.limit)
    final = pool.terms()
    price = with_stated(Columns(lambda name: arrays.owning[name][accelerators]), plans)
    terms = straight_line_terms(price, final, pool.drawn)
    states = [(rented.cost_rate, rented.power), _state(terms)]
    for _, names in LINES:
        terms = terms._replace(**{name: getattr(final, name) for name in names})
        states.append(_state(terms))
    return states


def _state(terms: OwnerTerms) -> tuple[Array, Array]:
    return owned_cost_rate(*terms), terms.grid_power * terms.load_share


def _lines(plans: Table, results: Table, costs: Array, energies: Array, networked: np.ndarray) -> Table:
    """The lines of all plans, (lines, rows) each, as a table without lines that change nothing. ``networked``: whether
    servers of a plan need a network between them.
    """
    known = np.isfinite(costs[0]) & np.isfinite(costs[-1])
    changes, energy_changes = (np.diff(values, axis=0, prepend=0.0) for values in (costs, energies))
    shown = (changes != 0.0) | (np.nan_to_num(energy_changes) != 0.0)
    shown[0] = True
    words = np.empty((len(costs) + 1, len(plans)), dtype=object)
    words[0] = [AT_PRICES.get(str(basis), "") for basis in results["cost_basis"]]
    words[1] = MARGIN
    for place, (line, _) in enumerate(LINES, start=2):
        words[place] = line
    words[-1] = np.where(networked, "owner, sheet servers", "owner, sheet servers, within one server: no network")
    blank, last = np.full((1, len(plans)), np.nan), np.ones((1, len(plans)), dtype=bool)
    listed_lines = np.concatenate([shown, last]) & known
    order = np.argsort(np.nonzero(listed_lines)[1], kind="stable")

    def listed(values: np.ndarray) -> np.ndarray:
        return np.asarray(values[listed_lines][order])

    names = plans.text("name")
    columns = {
        "plan": listed(np.broadcast_to(names, words.shape)),
        "line": listed(words),
        "cost_change": listed(np.concatenate([changes, blank])),
        "cost": listed(np.concatenate([costs, costs[-1:]])),
        "energy_change": listed(np.concatenate([energy_changes, blank])),
        "energy": listed(np.concatenate([energies, energies[-1:]])),
    }
    return Table("cost_bridge", {column.name: columns[column.name] for column in table_schema("cost_bridge").columns})
