"""Uncertainty band of the time per token by mode: what a prediction has to get right differs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from xlperf.base.arrays import Array

FAMILIES = {"step": "serving_band", "loaded": "serving_band", "full": "capacity_band", "pooled": "capacity_band"}
"""Family of calibration constants that holds the two ends of each band."""
NEARLY_FULL = 0.85
"""Share of the largest batch from which on memory is the limit: some places wait for their next request. [-]"""
_MODES = {"static": "step", "continuous": "loaded", "disaggregated": "pooled"}


def full_cache(running_batch: np.ndarray, max_batch_size: np.ndarray) -> np.ndarray:
    """Whether the memory limits how many requests run (heuristic, this work).

    Parameters
    ----------
    running_batch : np.ndarray
        Requests that run together. [-]
    max_batch_size : np.ndarray
        Requests that fit into the memory. [-]

    Returns
    -------
    np.ndarray
        Mask. [-]
    """
    return np.asarray(running_batch >= NEARLY_FULL * max_batch_size)


def band_of_mode(mode: str, full: bool) -> str:
    """Name of the band of a plan.

    Parameters
    ----------
    mode : str
        static, continuous or disaggregated.
    full : bool
        Whether the memory limits how many requests run.

    Returns
    -------
    str
        A key of :data:`FAMILIES`.

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
        Where the memory limits how many requests run, (rows,).
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
