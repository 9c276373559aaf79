"""Plans that are owned: servers, a network counted from the plan's own topology, building, power; cost by part."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, ceil_div
from xlperf.base.units import YEAR
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table
from xlperf.engine.designs import evaluate_designs
from xlperf.engine.join import prefill_rows
from xlperf.engine.servers import HOUR_PARTS as SERVER_PARTS
from xlperf.engine.servers import Columns, counted_parts, network_price, server_costs, server_numbers
from xlperf.engine.tables import evaluate
from xlperf.engine.token_costs import ALL_IN, INPUT, OUTPUT, Terms, mean_terms, split_costs, token_costs
from xlperf.equations.cost.tco import pool_mean, run_cost, token_rate_per_power

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


class Owned(NamedTuple):
    """The accelerators of plans, or of one of their pools, as an owner buys them, (rows,).

    Attributes
    ----------
    row : np.ndarray
        Row of servers; -1 where it has none of the accelerator.
    number : dict of str to array
        Of :func:`xlperf.engine.servers.server_numbers`.
    parts : tuple of Array
        Switches, cables and transceivers outside the servers. [-]
    network : Array
        Their price with adapters, share of one accelerator. [USD]
    costs : dict of str to array
        Of :func:`xlperf.engine.servers.server_costs`.
    """

    row: np.ndarray
    number: Columns
    parts: tuple[Array, ...]
    network: Array
    costs: Columns

    @property
    def terms(self) -> Terms:
        """What an accelerator costs and draws on the mean of its working hours."""
        power = self.costs["grid_power"] * self.number["load_share"]
        return Terms(self.costs["cost_rate"], power, self.number["carbon_intensity"])


class OwnedPlans(NamedTuple):
    """Plans as an owner has them: the accelerators of each pool, the same but for mixed pools, (rows,).

    Attributes
    ----------
    accelerators : tuple of np.ndarray
        Rows of the sheet accelerators: those that decode, or all, and those that prefill.
    pools : tuple of Owned
        What each is bought as.
    prefill_share : Array
        Share of the accelerators' time, or of the accelerators, that prefills. [-]
    """

    accelerators: tuple[np.ndarray, np.ndarray]
    pools: tuple[Owned, Owned]
    prefill_share: Array

    @property
    def mixed(self) -> np.ndarray:
        """Whether the pools have unlike accelerators."""
        return np.asarray(self.accelerators[0] != self.accelerators[1])

    def mean(self, values: Callable[[Owned], Array]) -> Array:
        """A value of the mean accelerator."""
        first, second = self.pools
        return values(first) if first is second else pool_mean(values(first), values(second), self.prefill_share)


def owned_plans(plans: Table, results: Table, catalog: Catalog, owner: str = "", case: str = "base") -> OwnedPlans:
    """Look up what plans are bought as; arguments as :func:`evaluate_ownership`."""
    accelerator = catalog.rows("accelerators", plans.text("accelerator"), plans, "accelerator")
    other = prefill_rows(plans, catalog, accelerator)
    share = results["prefill_share"] if plans.kind == "inference" else np.zeros(len(plans))
    first = _owned(plans, catalog, accelerator, owner, case)
    second = first if (other == accelerator).all() else _owned(plans, catalog, other, owner, case)
    return OwnedPlans((accelerator, other), (first, second), share)


def _owned(plans: Table, catalog: Catalog, accelerator: np.ndarray, owner: str, case: str) -> Owned:
    servers, count = catalog.tables["servers"], plans.number("num_accelerators")
    row = first_rows(servers, catalog, accelerator, owner)
    number = {
        name: np.where(row >= 0, values[row], np.nan) if len(values) else np.full(len(plans), np.nan)
        for name, values in server_numbers(servers, case).items()
    }
    with np.errstate(divide="ignore", invalid="ignore"):
        tier = _outer_tier(plans, catalog, accelerator, count, number)
        endpoints = tier.endpoints
        counted = counted_parts(tier.topology, endpoints, tier.oversubscription, number, tier.num_axes)
        parts = tuple(np.where(endpoints > 0.0, part, 0.0 * endpoints) for part in counted)
        network = network_price((parts[0], parts[1], parts[2]), endpoints, number) / count
        return Owned(row, number, parts, network, server_costs(number, network))


def evaluate_ownership(
    plans: Table, catalog: Catalog, owner: str = "", case: str = "base", results: Table | None = None
) -> Table:
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
    results : Table, optional
        What :func:`xlperf.engine.evaluate` gives for the plans, where it is known already.

    Returns
    -------
    Table
        ``ownership``, one row per plan, in the units used inside; NaN and a reason where no server has the plan's
        accelerator or the plan has no result. Hours are those of the mean accelerator where pools have unlike ones;
        their network is counted as one of the whole plan, in shares of either pool's switches and cables.

    Raises
    ------
    InputError
        As :func:`xlperf.engine.evaluate`.
    """
    results = evaluate(plans, catalog) if results is None else results
    owned = owned_plans(plans, results, catalog, owner, case)
    count = plans.number("num_accelerators")
    with np.errstate(divide="ignore", invalid="ignore"):
        columns = _per_plan(plans, results, owned, count)
        made = [
            _accelerator_parts(catalog, accelerator, pool, case)
            for accelerator, pool in zip(owned.accelerators, owned.pools, strict=True)
        ]
        columns |= {name: pool_mean(made[0][name], made[1][name], owned.prefill_share) for name in ACCELERATOR_PARTS}
        columns |= {
            "server": _both_words(owned, [_names(catalog, "servers", pool.row) for pool in owned.pools]),
            "design": _both_words(owned, [own["design"] for own in made]),
            "accelerators_bought": _bought(owned, count),
            "network_cost": owned.mean(lambda pool: pool.network),
        }
        for place, part in enumerate(("network_switches", "network_cables", "network_transceivers")):
            columns[part] = owned.mean(lambda pool, place=place: pool.parts[place])  # type: ignore[misc]
    refused = np.isnan(results["tokens_per_second"])
    reason = np.where(refused, results["reason"], _unbought(catalog, owned, owner)).astype(object)
    for name, values in columns.items():
        if values.dtype != object:
            columns[name] = np.where(refused, np.nan, values)
    columns["reason"] = reason
    schema = table_schema("ownership")
    return Table("ownership", {column.name: columns[column.name] for column in schema.columns}, plans.place)


def _names(catalog: Catalog, kind: str, rows: np.ndarray) -> np.ndarray:
    table = catalog.tables[kind]
    if not len(table):
        return np.full(len(rows), "", dtype=object)
    return np.where(rows >= 0, table.text(table.schema.key.name)[rows], "").astype(object)


def _both_words(owned: OwnedPlans, words: list[np.ndarray]) -> np.ndarray:
    """Names of what both pools are; one where it is the same."""
    found = words[0].copy()
    for row in np.flatnonzero(owned.mixed).tolist():
        found[row] = " + ".join(dict.fromkeys(str(own[row]) for own in words if own[row]))
    return found


def _bought(owned: OwnedPlans, count: Array) -> Array:
    """Accelerators in whole servers, each pool in its own where they have unlike ones."""
    prefilling = np.where(owned.mixed, np.round(count * owned.prefill_share), 0.0)
    groups = [pool.number["num_accelerators"] for pool in owned.pools]
    first = groups[0] * ceil_div(count - prefilling, groups[0])
    return np.asarray(first + np.where(owned.mixed, groups[1] * ceil_div(prefilling, groups[1]), 0.0))


def _unbought(catalog: Catalog, owned: OwnedPlans, owner: str) -> np.ndarray:
    """Why plans have no owner's cost."""
    names = catalog.tables["accelerators"].text("accelerator")
    more = f" and {owner}" if owner else ""
    reason = np.full(len(owned.prefill_share), "", dtype=object)
    for accelerator, pool in zip(owned.accelerators[::-1], owned.pools[::-1], strict=True):
        for row in np.flatnonzero(pool.row < 0).tolist():
            reason[row] = f"no row of servers has accelerator {names[accelerator[row]]}{more}"
    return reason


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


def _per_plan(plans: Table, results: Table, owned: OwnedPlans, count: Array) -> dict[str, np.ndarray]:
    training = plans.kind == "training"
    rate, share = results["tokens_per_second"], owned.prefill_share
    nothing = np.full(len(plans), np.nan)
    decoding, prefilling = (pool.terms for pool in owned.pools)
    terms = mean_terms(decoding, prefilling, share)
    hour, grid = terms.cost_rate, owned.mean(lambda pool: pool.costs["grid_power"])
    tokens = token_costs(terms, count, rate, ALL_IN[plans.kind])
    tokens |= {name: nothing for name in (*ALL_IN.values(), INPUT, OUTPUT) if name not in tokens}
    if not training:
        lengths = plans.number("prompt_length"), plans.number("output_length")
        tokens |= split_costs(decoding, prefilling, share, count, rate, *lengths)
    del tokens["tokens_per_second_per_megawatt"]
    run_time = results["run_time"] if training else nothing
    hours = {name: owned.mean(lambda pool, part=part: pool.costs[part])  # type: ignore[misc]
             for name, part in zip(HOUR_PARTS, SERVER_PARTS, strict=True)}  # fmt: skip
    return {
        **{f"owned_{name}": values for name, values in tokens.items()},
        **hours,
        "capex": count * owned.mean(lambda pool: pool.costs["capex"]),
        "facility": count * owned.mean(lambda pool: pool.costs["facility"]),
        "power": count * grid,
        "hour_cost": hour,
        "owned_step_cost": run_cost(hour, count, results["step_time"]) if training else nothing,
        "owned_run_cost": run_cost(hour, count, run_time),
        "owned_run_carbon": owned.mean(lambda pool: pool.costs["carbon_rate"]) * count * run_time,
        "tokens_per_second_per_provisioned_megawatt": token_rate_per_power(rate, count, grid),
        "yearly_cost": owned.mean(lambda pool: pool.costs["cost_rate"] * pool.costs["used"]) * count * YEAR,
    }


def _accelerator_parts(catalog: Catalog, accelerator: np.ndarray, owned: Owned, case: str) -> dict[str, np.ndarray]:
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
    price = owned.number["accelerator_price"]
    made = np.where(rows >= 0, made, np.nan)
    parts = [*made, price - np.sum(made, axis=0)]
    hours = {
        name: part * owned.costs["accelerator_cost"] / price
        for name, part in zip(ACCELERATOR_PARTS, parts, strict=True)
    }
    return {**hours, "design": names}
