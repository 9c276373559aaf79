"""Accelerators judged by what they serve: the fastest copy of a model on each of many, all evaluated together.

The kernels of a chip that nobody has made are assumed, and its engine as well: one engine in one pool. Coarse first:
replicas with all attention layers or one of them on each rank, experts split like weights or one group. The best get
every group of experts, dispatch, overlap and length of a prefill pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.explore.fleet_machines import Machines
from xlperf.explore.fleet_plans import CHUNK, COUNT, DPA, EP, NEVER, TP, Demand, crossed, with_columns
from xlperf.explore.fleets import CHUNKS, WHOLE, FleetSearch
from xlperf.explore.search import stacked
from xlperf.explore.search_results import slower
from xlperf.explore.serve import replicas_of
from xlperf.explore.started import refused_reasons

ENGINE = str(table_schema("inference").by_name["software"].default)
"""Serving engine that accelerators are judged with."""
BEST = 2
"""Mappings of an accelerator that are refined. [-]"""
_COARSE = CHUNKS[:2]
"""Tokens of a prefill pass that are tried first. [-]"""


class Copies(NamedTuple):
    """The fastest copy on each of several accelerators, row by row.

    ``reasons``: why there is none, "" where there is; such rows hold the plan that comes nearest. ``slower``: factor on
    its times in the case of the catalog.
    """

    plans: Table
    results: Table
    reasons: list[str]
    slower: list[float]


def fastest_copies(asked: Sequence[Table], catalog: Catalog) -> Copies:
    """The copy with the most output tokens per second and accelerator that keeps the speed of each user.

    ``asked``: rows of kind ``serve``, each a table of its own: model, precision, accelerator, lengths and speed per
    user. ``catalog``: with the accelerators. A row has the same copy whatever other rows are asked for. Raises
    InputError where a name is unknown.
    """
    formats = [replicas_of(form, catalog) for form in asked]
    speeds = [float(form.filled("speed_per_user")[0]) for form in asked]
    groups: dict[object, list[int]] = {}
    for row, plan in enumerate(formats):
        at = catalog.rows("accelerators", plan.text("accelerator"), plan, "accelerator")
        network = str(catalog.tables["accelerators"].text("default_network")[at][0])
        same = [(name, str(values[0])) for name, values in plan.columns.items() if name != "accelerator"]
        groups.setdefault((network, speeds[row], *same), []).append(row)
    plans: dict[int, Table] = {}
    results: dict[int, Table] = {}
    for rows in groups.values():
        names = [str(formats[row].text("accelerator")[0]) for row in rows]
        best = _Search(formats[rows[0]], names, 1.0 / speeds[rows[0]], catalog).best()
        reached = evaluate(best, catalog)
        for number, row in enumerate(rows):
            plans[row], results[row] = best.take([number]), reached.take([number])
    order = range(len(asked))
    further = [slower(results[row], "tpot", catalog) for row in order]
    found = Copies(stacked([plans[row] for row in order]), stacked([results[row] for row in order]), [], further)
    return found._replace(reasons=[_reason(found, row, speeds[row]) for row in order])


class _Search:
    """The search on accelerators of one network, which have the same mappings and formats of the weights."""

    def __init__(self, replica: Table, names: Sequence[str], tpot: float, catalog: Catalog) -> None:
        """``replica``: plan of a replica on the first of the accelerators ``names``."""
        self.names, self.tpot, self.catalog = names, tpot, catalog
        machines = Machines.of(replica, "", catalog, False)
        self.space = FleetSearch(replica, [ENGINE], Demand(1.0, np.nan, tpot, np.nan), machines, catalog)

    def best(self) -> Table:
        """The best plan on each accelerator at its largest load; with one request where none keeps the speed."""
        plans = crossed(self.started(self.coarse()), CHUNK, _COARSE)
        chips = np.arange(len(self.names)).repeat(len(plans))
        every, scores, loads = self.tried(plans.take(np.tile(np.arange(len(plans)), len(self.names))), chips)
        near = _best_rows(scores, every, chips, BEST)
        finer = [self.finer(every.take(near[chip])) for chip in range(len(self.names))]
        own = np.repeat(np.arange(len(finer)), [len(tried) for tried in finer])
        more, better, larger = self.tried(stacked(finer), own)
        every, chips = stacked([every, more]), np.concatenate([chips, own])
        scores, loads = np.concatenate([scores, better]), np.concatenate([loads, larger])
        best = _best_rows(scores, every, chips, 1)
        rows = np.concatenate([best[chip] for chip in range(len(self.names))])
        return with_columns(every.take(rows), concurrency=np.maximum(loads[rows], 1.0))

    def coarse(self) -> Table:
        """Mappings that are tried first."""
        plans = self.space.mapped(WHOLE, self.space.sizes(WHOLE), {})
        size, replicas, group = (plans.number(name) for name in (TP, DPA, EP))
        return plans.take(np.flatnonzero(((replicas == 1.0) | (replicas == size)) & ((group == 1.0) | (group == size))))

    def finer(self, near: Table) -> Table:
        """Every group of experts, dispatch and overlap of some plans, and other lengths of a prefill pass."""
        if not self.space.experts:
            return crossed(near, CHUNK, CHUNKS)
        mapped = [
            self.space.mapped(WHOLE, [size], {DPA: replicas})
            for size, replicas in dict.fromkeys(zip(near.number(TP).tolist(), near.number(DPA).tolist(), strict=True))
        ]
        plans = stacked(mapped)
        more = [own for own in self.space.other_options(plans) if len(own)]
        return crossed(self.started(stacked([plans, *more])), CHUNK, CHUNKS)

    def started(self, plans: Table) -> Table:
        """Plans of copies with one pool that are legal and that the engine starts."""
        plans = self.space.stated(WHOLE, plans)
        return plans.take(np.flatnonzero([not words for words in refused_reasons(plans, self.catalog)]))

    def tried(self, plans: Table, chips: np.ndarray) -> tuple[Table, Array, Array]:
        """Plans on accelerators, their tokens per second and accelerator at the speed, and their largest loads.

        ``chips``: position of the accelerator of each plan.
        """
        names = np.array(self.names, dtype=object)[chips]
        every = with_columns(plans, accelerator=names, ttft_target=NEVER, tpot_target=self.tpot)
        results = evaluate(every, self.catalog)
        load = np.nan_to_num(results.number("batch_at_targets")) * every.number(COUNT) / every.number(TP)
        made = np.nan_to_num(results.number("tokens_per_second_at_targets")) / every.number(COUNT)
        alone = np.nan_to_num(results.number("tokens_per_second_per_user")) * (results.number("fits") == 1.0)
        need = np.nan_to_num(results.number("memory") - results.number("memory_capacity"), nan=np.inf)
        # Without a copy that keeps the speed the fastest one counts, without one that fits the smallest.
        nearest = np.where(alone > 0.0, -1.0 / np.maximum(alone, 1e-9), -NEVER * (1.0 + np.maximum(need, 0.0)))
        score = np.where((made > 0.0) & (load >= 1.0), made, nearest)
        return with_columns(every, ttft_target=np.nan, tpot_target=np.nan), score, np.round(load)


def _best_rows(scores: Array, plans: Table, chips: np.ndarray, each: int) -> dict[int, np.ndarray]:
    """Rows with the best scores of each accelerator; the smaller copy of equal ones comes first."""
    order = np.lexsort((plans.number(CHUNK), plans.number(COUNT), -scores))
    return {chip: order[chips[order] == chip][:each] for chip in set(chips.tolist())}


def _reason(found: Copies, row: int, speed: float) -> str:
    """Which limit the fastest copy misses, by how much, and what would help; "" where it keeps all."""
    results = found.results.take([row])
    model = str(found.plans.text("model")[row])
    said = str(results.text("reason")[0]).split(";")[0]
    if np.isnan(results.number("memory")[0]):
        return said
    if results.number("fits")[0] != 1.0:
        count = float(found.plans.number(COUNT)[row])
        return f"{model} on {count:,.0f} accelerators {said}: more stacks of memory, or weights of fewer bits"
    user = float(results.number("tokens_per_second_per_user")[0])
    if 1.0 / float(results.number("tpot")[0]) >= speed * (1.0 - 1e-6):
        return ""
    return (
        f"a user of {model} alone gets {user:,.0f} tokens/s at most, and {speed:,.0f} are asked for "
        f"({speed / user:,.1f} times as many): more memory bandwidth, or a lower speed"
    )
