"""Results within their calibration bands: their values at a quantile, as two halves of lognormal distributions."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.table import Table

DECILE = 1.2815515655446004
"""Standard deviations from the median to the end of an 80 % band. [-]"""
TIMES = {"training_results": "step_time", "inference_results": "tpot"}
"""Result whose band those that follow from it have."""
_AS_TIME = (
    "step_time", "time_", "layer_time", "step_cost", "ttft", "tpot", "latency", "prefill_time", "decode_time",
    "queue_time", "cost_per", "energy_per", "carbon_per", "run_time", "run_cost", "run_energy", "run_carbon",
)  # fmt: skip
_AS_RATE = ("tokens_per", "model_flop_rate", "mfu", "hfu", "max_request_rate")


def is_rate(name: str) -> bool:
    """Whether a result is small where times are long."""
    return name.startswith(_AS_RATE)


def band_factor(results: Table, name: str, score: Array | float) -> Array:
    """What a result is multiplied with at a quantile of its band.

    Parameters
    ----------
    results : Table
        Of training or inference plans, (rows,).
    name : str
        Result; one without a band of its own has that of times, and what does not follow from times has none.
    score : Array or float
        Standard score of the quantile: 0 is the prediction, 1.28 the upper end of the 80 % band. [-]

    Returns
    -------
    Array
        1 where there is no band, (rows,). [-]

    >>> results = Table("training_results", {n: np.array([v]) for n, v in
    ...     {"step_time": 2.0, "step_time_low": 1.0, "step_time_high": 3.0, "mfu": 0.4}.items()})
    >>> band_factor(results, "step_time", DECILE), band_factor(results, "mfu", DECILE)
    (array([1.5]), array([2.]))
    """
    turned = 1.0
    if f"{name}_low" not in results.columns:
        turned = 1.0 if name.startswith(_AS_TIME) else -1.0 if is_rate(name) else 0.0
        name = TIMES[results.kind]
    middle = results.number(name)
    share = np.asarray(score) / DECILE * turned
    with np.errstate(all="ignore"):
        low, high = (np.log(results.number(f"{name}_{end}") / middle) for end in ("low", "high"))
    return np.asarray(np.exp(turned * np.nan_to_num(np.where(share < 0.0, -low * share, high * share))))
