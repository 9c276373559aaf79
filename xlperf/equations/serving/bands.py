"""Which band of the time per token holds: what a prediction has to get right differs by mode."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from xlperf.base.arrays import Array, Numeric, array

FAMILIES = {"step": "serving_band", "loaded": "serving_band", "full": "capacity_band", "pooled": "capacity_band"}
"""Family of calibration constants that holds the two ends of each band."""
NEARLY_FULL = 0.85
"""Share of the requests that the memory takes from which on it decides: some places wait for their next request."""
_MODES = {"static": "step", "continuous": "loaded", "disaggregated": "pooled"}


def full_cache(running_batch: Numeric, max_batch_size: Numeric) -> np.ndarray:
    """Whether the memory decides how many requests run.

    Parameters
    ----------
    running_batch : numeric
        Requests that run together. [-]
    max_batch_size : numeric
        Requests that the memory takes. [-]
    """
    return np.asarray(array(running_batch) >= NEARLY_FULL * array(max_batch_size))


def band_of_mode(mode: str, full: bool) -> str:
    """Name of the band of a plan.

    >>> band_of_mode("continuous", True), band_of_mode("static", True)
    ('full', 'step')
    """
    return "full" if mode == "continuous" and full else _MODES[mode]


def band_ends(mode: str, full: np.ndarray, constants: Mapping[str, Mapping[str, Array]]) -> tuple[Array, Array]:
    """Ends of the band over the prediction.

    Parameters
    ----------
    mode : str
        static, continuous or disaggregated.
    full : np.ndarray
        Where the memory decides how many requests run, (rows,).
    constants : mapping of str to mapping of str to Array
        Constants of the families of :data:`FAMILIES`, (rows, 1).

    Returns
    -------
    low, high : Array
        Time per token at the ends over the predicted one, (rows,). [-]
    """
    ends = []
    for end in ("low", "high"):
        usual, capped = (
            constants[FAMILIES[band]][f"{band}_{end}"][:, 0] for band in (_MODES[mode], band_of_mode(mode, True))
        )
        ends.append(np.where(full, capped, usual))
    return ends[0], ends[1]
