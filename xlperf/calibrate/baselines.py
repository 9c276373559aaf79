"""Baselines of a few constants: what a published run takes by one efficiency per quantity and generation of machines.

The ideal time (or size) of a run is its work at the peak of the machine. Steps: FLOP of the model over the peak rate.
Tokens: weights and cache that a decode step reads over the memory bandwidth, and its FLOP over the peak rate in 16
bits. First tokens: FLOP of half of the prompts in flight over that rate. Memory of training: weights, gradients and
optimizer states. A constant is the median of ideal over measured values over the rows of the fit, a source of n rows
with the weight of the root of n, for each generation, and for dense models and models with experts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from xlperf.base.arrays import Array
from xlperf.calibrate.published_errors import (
    NEVER_FITTED,
    QUANTITIES,
    Errors,
    errors_of,
    plans_of,
    seen_rows,
    weighted_quantile,
)
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.catalog_arrays import catalog_models
from xlperf.engine.trust import model_traits
from xlperf.equations.model.operators import parameter_count
from xlperf.measurements.comparison import FIRST_TOKEN, MEMORY, STEP_TIME, TIME_PER_TOKEN, predicted
from xlperf.measurements.published import POWER, Published, PublishedPlans

_FEWEST_SOURCES = 2
"""Least number of sources that set a constant of a generation; one with fewer takes that of all machines. [-]"""
Key = tuple[str, str, bool]
"""Quantity, generation of machines ("" for all) and whether the model has experts."""


def ideal_shares(plans: PublishedPlans, results: Table) -> dict[str, Array]:
    """Ideal over predicted value of each plan by quantity. [-]"""
    if plans.published.kind == "training":
        states = [results.number(f"memory_{name}") for name in ("weights", "gradients", "optimizer")]
        return {STEP_TIME: results.number("mfu"), MEMORY: sum(states) / results.number("memory")}
    table, catalog = plans.plans, plans.catalog
    models = catalog.rows("models", table.text("model"), table, "model")
    chips = catalog.rows("accelerators", table.text("accelerator"), table, "accelerator")
    device, active = catalog.tables["accelerators"], model_traits(catalog)[1][models]
    whole = parameter_count(catalog_models(catalog)[0])[models]
    top, experts = (catalog.tables["models"].number(name)[models] for name in ("top_k", "num_experts"))
    batch = results.number("running_batch")
    degrees = [table.filled(f"{name}_parallel").astype(np.float64) for name in ("tensor", "pipeline")]
    with np.errstate(all="ignore"):
        flop_time = 2.0 * active / (degrees[0] * degrees[1] * device.number("peak_flop_rate_bf16")[chips])
        read = np.fmax(active / whole, 1.0 - (1.0 - np.where(experts > 0.0, top / experts, 1.0)) ** batch)
        size = read * results.number("memory_weights") + results.number("memory_kv_cache")
        step = size / device.number("memory_bandwidth")[chips] + batch * flop_time
        prompts = np.where(table.filled("mode") == "static", batch, np.maximum(0.5 * batch, 1.0))
        prefill = prompts * table.number("prompt_length") * flop_time
        return {TIME_PER_TOKEN: step / results.number("tpot"), FIRST_TOKEN: prefill / results.number("ttft")}


class Baselines:
    """Constants of the baselines, fitted on the rows of the fit."""

    def __init__(self, published: Sequence[Published], catalog: Catalog) -> None:
        logs: dict[Key, list[tuple[float, str]]] = {}
        for rows in published:
            if rows.kind != POWER:
                groups = seen_rows(rows).text["group"]
                kept = [row for row, group in enumerate(groups) if group.casefold() != NEVER_FITTED]
                for key, log, source in _logs(plans_of(seen_rows(rows).take(kept), catalog)):
                    for each in (key, (key[0], "", key[2])):
                        logs.setdefault(each, []).append((log, source))
        self.constants = {
            key: _median(values)
            for key, values in logs.items()
            if not key[1] or len({source for _, source in values}) >= _FEWEST_SOURCES
        }

    def changes(self, plans: PublishedPlans, results: Table, errors: Errors) -> Array:
        """Logarithm of the baseline over the prediction of each entry; NaN without a constant."""
        shares = ideal_shares(plans, results)
        keys = zip(errors.quantity.tolist(), errors.generation.tolist(), errors.experts.tolist(), strict=True)
        constants = np.array([self._constant(*key) for key in keys])
        pairs = zip(errors.quantity.tolist(), errors.plan.tolist(), strict=True)
        share = [float(shares[name][plan]) if name in shares else math.nan for name, plan in pairs]
        with np.errstate(all="ignore"):
            return np.asarray(np.log(np.array(share)) - constants)

    def _constant(self, quantity: str, generation: str, experts: bool) -> float:
        keys = [(quantity, generation, experts), (quantity, "", experts), (quantity, "", not experts)]
        return next((self.constants[key] for key in keys if key in self.constants), math.nan)


def _logs(plans: PublishedPlans) -> Iterator[tuple[Key, float, str]]:
    """Logarithms of ideal over measured values, with their keys and sources."""
    if not len(plans.plans):
        return
    shares, errors = ideal_shares(plans, predicted(plans)), errors_of(plans, (*QUANTITIES, MEMORY))
    source = plans.published.text["source_id"]
    for at, (quantity, plan) in enumerate(zip(errors.quantity.tolist(), errors.plan.tolist(), strict=True)):
        share = float(shares[quantity][plan]) if quantity in shares else math.nan
        if share > 0.0 and not math.isnan(errors.fitted[at]):
            key = quantity, str(errors.generation[at]), bool(errors.experts[at])
            yield key, math.log(share) + float(errors.fitted[at]), source[plans.index[plan]]


def _median(values: Sequence[tuple[float, str]]) -> float:
    count = Counter(source for _, source in values)
    weights = np.array([count[source] ** -0.5 for _, source in values])
    return weighted_quantile(np.array([log for log, _ in values]), weights, 0.5)
