"""From what a token costs at the sheet ``prices`` to what it costs an owner of the sheet ``servers``, line by line.

Each line puts the owner's value of one input in the place of that of the sheet prices and keeps all others: the lines
add up by construction. The order of the lines decides how much each shows, not where they end.
"""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table
from xlperf.engine.catalog_arrays import catalog_arrays
from xlperf.engine.ownership import Owned, OwnedPlans, owned_plans
from xlperf.engine.servers import owner_terms
from xlperf.engine.tables import evaluate
from xlperf.equations.cost.tco import building_power, cost_per_token, energy_per_token, owned_cost_rate, pool_mean

Columns = dict[str, np.ndarray]
AT_PRICES = {
    "rent": "rented, sheet prices",
    "own": "owned, sheet prices",
    "rent and own": "one pool rented, one owned, sheet prices",
}
MARGIN = "provider: margin, overhead, idle hours (rent less owning at sheet prices)"
LINES = (
    ("purchase price: accelerator, server, network, storage", ("capex",)),
    ("life, cost of capital, resale value", ("recovery_rate",)),
    ("maintenance and staff", ("maintenance_share", "staff_cost")),
    ("rack and building", ("facility", "facility_recovery_rate")),
    ("power of server and network", ("server_power",)),
    ("power usage effectiveness", ("power_usage_effectiveness",)),
    ("price of electric energy", ("energy_price",)),
    ("mean load in place of full load", ("load_share",)),
    ("utilization", ("utilization",)),
)
"""Lines, and the arguments of :func:`xlperf.equations.cost.tco.owned_cost_rate` that each takes over from the owner."""


def cost_bridge(
    plans: Table, catalog: Catalog, owner: str = "", case: str = "base", results: Table | None = None
) -> Table:
    """Walk from the cost and energy per token of plans at the sheet prices to those of their owner.

    Parameters
    ----------
    plans, catalog, owner, case, results
        As :func:`xlperf.engine.evaluate_ownership`. Where the sheet prices lacks an input of an owner, such as a
        purchase price beside a rent, the owner's own stands for it from the second line on.

    Returns
    -------
    Table
        ``cost_bridge``: a row per plan and line; lines that change nothing are left out, and so are plans that lack
        a price or a server. The first line is the cost of :func:`xlperf.engine.evaluate`, the last that of
        :func:`xlperf.engine.evaluate_ownership`, to the last bit.
    """
    results = evaluate(plans, catalog) if results is None else results
    owned = owned_plans(plans, results, catalog, owner, case)
    with np.errstate(all="ignore"):
        states = [_states(catalog, owned, place) for place in (0, 1)]
        rate, count = results["tokens_per_second"], plans.number("num_accelerators")
        energies, costs = (
            [per_token(pool_mean(first[kind], second[kind], owned.prefill_share), count, rate)
             for first, second in zip(*states, strict=True)]
            for kind, per_token in ((1, energy_per_token), (0, cost_per_token))
        )  # fmt: skip
    return _table(plans, results, owned, np.array(costs), np.array(energies))


def _states(catalog: Catalog, owned: OwnedPlans, place: int) -> list[tuple[Array, Array]]:
    """Cost of a second [USD/s] and power [W] of an accelerator of one pool after each line, the first one included."""
    accelerators, pool = owned.accelerators[place], owned.pools[place]
    arrays = catalog_arrays(catalog, accelerators)
    priced = arrays.terms.take(accelerators)
    terms, final = _price_terms({name: v[accelerators] for name, v in arrays.owning.items()}, pool)
    found = [(priced.cost_rate, priced.power), _state(terms)]
    for _, names in LINES:
        terms = {**terms, **{name: final[name] for name in names}}
        found.append(_state(terms))
    return found


def _price_terms(owning: Columns, pool: Owned) -> tuple[Columns, Columns]:
    """Arguments of the owner's hour as the sheet prices has them, the owner's where it has none; and the owner's."""
    final = owner_terms(pool.number, pool.network)
    nothing = np.zeros_like(final["capex"])
    stated = {
        "capex": owning["capex"],
        "recovery_rate": 1.0 / owning["life"],
        "facility": nothing,
        "facility_recovery_rate": nothing,
        "maintenance_share": owning["opex_share"],
        "staff_cost": nothing,
        "load_share": nothing + 1.0,
        **{name: owning[name] for name in ("server_power", "power_usage_effectiveness", "energy_price", "utilization")},
    }
    return {name: np.where(np.isnan(values), final[name], values) for name, values in stated.items()}, final


def _state(terms: Columns) -> tuple[Array, Array]:
    power = building_power(terms["server_power"], terms["power_usage_effectiveness"]) * terms["load_share"]
    return owned_cost_rate(**terms), power


def _table(plans: Table, results: Table, owned: OwnedPlans, costs: Array, energies: Array) -> Table:
    """The lines of all plans, (lines, rows) each, as a table."""
    known = np.isfinite(costs[0]) & np.isfinite(costs[-1])
    changes, energy_changes = (np.diff(values, axis=0, prepend=0.0) for values in (costs, energies))
    shown = (changes != 0.0) | (np.nan_to_num(energy_changes) != 0.0)
    shown[0] = True
    words = np.empty((len(costs) + 1, len(plans)), dtype=object)
    words[0] = [AT_PRICES.get(str(basis), "") for basis in results["cost_basis"]]
    words[1] = MARGIN
    for place, (line, _) in enumerate(LINES, start=2):
        words[place] = line
    words[-1] = "owner, sheet servers"
    nothing, last = np.full((1, len(plans)), np.nan), np.ones((1, len(plans)), dtype=bool)
    kept = np.concatenate([shown, last]) & known
    order = np.argsort(np.nonzero(kept)[1], kind="stable")

    def listed(values: np.ndarray) -> np.ndarray:
        return np.asarray(values[kept][order])

    names = plans.text("name")
    columns = {
        "plan": listed(np.broadcast_to(names, words.shape)),
        "line": listed(words),
        "cost_change": listed(np.concatenate([changes, nothing])),
        "cost": listed(np.concatenate([costs, costs[-1:]])),
        "energy_change": listed(np.concatenate([energy_changes, nothing])),
        "energy": listed(np.concatenate([energies, energies[-1:]])),
    }
    return Table("cost_bridge", {column.name: columns[column.name] for column in table_schema("cost_bridge").columns})
