"""Published rows whose own figures cannot be: more arithmetic than the peak of the accelerators that they state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.units import factor
from xlperf.calibrate.published import PublishedPlans
from xlperf.equations.plan.precisions import PRECISIONS

BEYOND_PEAK = (
    "its own figures need {} times the peak of its accelerators for the prompts alone: "
    "replicas or hits in a cache are not stated"
)


def prompt_share(plans: PublishedPlans) -> Array:
    r"""Arithmetic of the prompts that a loaded deployment takes by its own figures, over the peak of its accelerators.

    .. math:: u = \frac{c}{t_{first} + (o - 1) t_{token}} \cdot \frac{2 P i}{n F}

    with c requests in flight, prompts of i and outputs of o tokens, P active parameters and n accelerators of peak F:
    attention, and whatever is not prefill, come on top.

    Parameters
    ----------
    plans : PublishedPlans
        Inference rows as plans.

    Returns
    -------
    Array
        One per plan, NaN where a figure is not stated. [-]

    References
    ----------
    .. [1] J. D. C. Little, "A proof for the queuing formula L = lambda W", Oper. Res. 9(3), 1961,
       doi:10.1287/opre.9.3.383.
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
    return np.asarray(2.0 * parameters * stated["isl"] * rate / (peak * table.number("num_accelerators")))


def possible(plans: PublishedPlans) -> PublishedPlans:
    """The plans without those whose own figures cannot be; their rows get the reason.

    Parameters
    ----------
    plans : PublishedPlans
        Inference rows as plans.
    """
    share = prompt_share(plans)
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
