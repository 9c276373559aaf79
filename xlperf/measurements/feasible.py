"""Published inference rows whose own figures no accelerator can reach: what they leave out is not known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.units import factor
from xlperf.equations.plan.records import PRECISIONS
from xlperf.measurements.published import PublishedPlans

BEYOND_PEAK = (
    "its own figures need {} times the peak of its accelerators for the prompts alone: "
    "replicas or hits in a cache are not stated"
)


def prefill_utilization(plans: PublishedPlans) -> Array:
    r"""Prefill FLOP/s that a loaded deployment needs by its own figures, over the peak of its accelerators.

    .. math:: u = \frac{c}{t_{first} + (o - 1) t_{token}} \cdot \frac{2 P i}{n F}

    with c requests in flight, prompts of i and outputs of o tokens, P active parameters and n accelerators of peak F:
    attention, and whatever is not prefill, come on top (J. D. C. Little, "A proof for the queuing formula L = lambda
    W", Oper. Res. 9(3), 1961, doi:10.1287/opre.9.3.383). A batch that starts at once prefills all its prompts before
    the last of them is decoded, o - 1 steps that each read all weights W from a memory of bandwidth B:

    .. math:: u = \frac{b}{t - (o - 1) W / (n B)} \cdot \frac{2 P i + 2 i^2 h l}{n F}

    with the attention of l layers of width h. NaN where a figure is not stated.
    """
    table, catalog, number = plans.plans, plans.catalog, plans.published.number
    models = catalog.rows("models", table.text("model"), table, "model")
    accelerators = catalog.rows("accelerators", table.text("accelerator"), table, "accelerator")
    size = catalog.tables["models"]
    active = size.number("stated_active_parameters")[models]
    parameters = np.where(np.isnan(active), size.number("stated_parameters")[models], active)
    peak = np.full(len(table), np.nan)
    for name in set(table.filled("precision").tolist()):
        column = f"peak_flop_rate_{PRECISIONS[str(name)].peak}" if str(name) in PRECISIONS else ""
        if column in catalog.tables["accelerators"].columns:
            chosen = table.filled("precision") == name
            peak[chosen] = catalog.tables["accelerators"].number(column)[accelerators][chosen]
    stated = {name: number[name][plans.index] for name in ("concurrency", "isl", "osl", "ttft_ms", "tpot_ms")}
    duration = (stated["ttft_ms"] + (stated["osl"] - 1.0) * stated["tpot_ms"]) * factor("ms")
    rate = stated["concurrency"] / duration
    loaded = 2.0 * parameters * stated["isl"] * rate / (peak * table.number("num_accelerators"))
    return np.where(np.isnan(loaded), _batch_utilization(plans, models, accelerators, parameters, peak), loaded)


def _batch_utilization(
    plans: PublishedPlans, models: np.ndarray, accelerators: np.ndarray, parameters: Array, peak: Array
) -> Array:
    """The same of static batches whose latency is stated, NaN where decoding alone takes that long."""
    table, catalog, number = plans.plans, plans.catalog, plans.published.number
    size = catalog.tables["models"]
    prompt, output, latency = (number[name][plans.index] for name in ("isl", "osl", "latency_s"))
    wide = size.number("hidden_size")[models] * size.number("num_layers")[models]
    flop = table.number("batch_size") * prompt * (2.0 * parameters + 2.0 * prompt * wide)
    stored = np.array([PRECISIONS[str(name)].served_size for name in table.filled("precision").tolist()])
    ranks = table.number("num_accelerators")
    read = parameters * stored / (ranks * catalog.tables["accelerators"].number("memory_bandwidth")[accelerators])
    left = np.where(table.filled("mode") == "static", latency - (output - 1.0) * read, np.nan)
    return np.asarray(flop / (peak * ranks) / np.where(left > 0.0, left, np.nan))


def without_infeasible(plans: PublishedPlans) -> PublishedPlans:
    """Plans whose own figures are feasible; the rows of the others get the reason.

    ``plans``: inference rows as plans.
    """
    share = prefill_utilization(plans)
    kept = np.flatnonzero(~(share > 1.0))
    reasons = np.array(plans.reasons, dtype=object)
    for plan in np.flatnonzero(share > 1.0).tolist():
        reasons[plans.index[plan]] = BEYOND_PEAK.format(f"{share[plan]:.1f}")
    return replace(
        plans,
        plans=plans.plans.take(kept),
        index=plans.index[kept],
        reference=plans.reference[kept],
        reasons=reasons,
    )
