"""Numbers of requests in flight at which inference plans are worth a look."""

from __future__ import annotations

import numpy as np

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine import evaluate

NUM_POINTS = 24
LOADS = ("concurrency", "batch_size", "request_rate")


def load_steps(
    plans: Table, catalog: Catalog, num_points: int = NUM_POINTS
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers of requests in flight at which plans are worth a look, from one per replica to what memory has room for.

    Parameters
    ----------
    plans : Table
        Inference plans; their own load does not matter.
    catalog : Catalog
        What they refer to.
    num_points : int
        Steps of each plan at the most, in equal ratios. [-]

    Returns
    -------
    tuple of array
        Of each step: the plan, requests of a replica, and replicas. Plans that are illegal or that do not fit with a
        single request have none.
    """
    columns = {**plans.columns, **dict.fromkeys(LOADS, np.full(len(plans), np.nan))}
    replicas = _replicas(plans)
    results = evaluate(Table(plans.kind, {**columns, "concurrency": replicas}, plans.place, plans.auto), catalog)
    most, kept = results.number("max_batch_size"), results.number("batch_at_targets")
    most = np.where(np.isnan(kept) | (plans.filled("mode") == "disaggregated"), most, kept)
    rows = np.flatnonzero(most >= 1.0)
    steps = [np.unique(np.round(np.geomspace(1.0, room, num_points))) for room in most[rows].tolist()]
    index = np.repeat(rows, [len(batches) for batches in steps])
    return index, np.concatenate([*steps, np.zeros(0)]), replicas[index]


def _replicas(plans: Table) -> np.ndarray:
    """Copies of the model that decode."""
    total, asked = plans.number("num_accelerators"), plans.number("prefill_accelerators")
    pools = plans.filled("mode") == "disaggregated"
    decode = np.where(pools, total - np.where(np.isnan(asked), np.floor(0.5 * total), asked), total)
    ranks = plans.filled("tensor_parallel") * plans.filled("context_parallel") * plans.filled("pipeline_parallel")
    return np.asarray(np.maximum(np.floor(decode / ranks), 1.0))
