"""Measured runs of one's own: how far predictions of plans like them are moved, and how much narrower their band is."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array

SHARED = 0.7
"""Share of the variance of a residual that runs of one model, accelerator and software have in common. [-]"""
REACH = 3.0
"""Distance between two plans, in doublings, over which what they have in common falls by e. [-]"""
SHARED_FIRST = 0.3
"""The same share of the time to the first token, which depends on more that a plan does not say. [-]"""
HALF_WIDTH = 1.2815515655446004
"""Half-width of an 80 % band over the standard deviation. [-]"""


def plan_distances(numbers: Array, other_numbers: Array, choices: np.ndarray, other_choices: np.ndarray) -> Array:
    r"""Distance between plans: doublings of degrees and loads, and one for each choice that differs.

    .. math:: d = \sum_i |\log_2 x_i - \log_2 y_i| + \#\{c_i \ne c'_i\}

    Parameters
    ----------
    numbers : numeric
        Degrees, batch and lengths of plans, (rows, columns); NaN where a plan does not state one: not compared. [-]
    other_numbers : numeric
        The same of the plans to compare with, (others, columns). [-]
    choices : array
        Codes of precision, recomputation and mode, (rows, choices). [-]
    other_choices : array
        The same of the plans to compare with, (others, choices). [-]

    Returns
    -------
    distance : Array
        (rows, others). [-]

    References
    ----------
    .. [1] heuristic, this work: on residuals of published rows whose model was left out of the fit.
    """
    one, other = np.log2(np.asarray(numbers, dtype=float)), np.log2(np.asarray(other_numbers, dtype=float))
    apart = np.nan_to_num(np.abs(one[:, None, :] - other[None, :, :])).sum(axis=-1)
    return np.asarray(apart + (np.asarray(choices)[:, None, :] != np.asarray(other_choices)[None, :, :]).sum(axis=-1))


def shrunk_residual(
    distance: Array, between: Array, log_ratio: Array, noise: Array, half_width: float, shared: float = SHARED
) -> tuple[Array, Array]:
    r"""Expected residual of plans near measured runs, and the share of the width of their band that is left.

    The best linear prediction of a residual :math:`r` whose covariance falls with the distance of two plans
    (kriging, or empirical Bayes with the spread :math:`\sigma` of the family's residuals):

    .. math:: \hat r = k^T K^{-1} r, \quad k_i = \rho e^{-d_i / 3}, \quad
              K_{ij} = \rho e^{-d_{ij} / 3} + \delta_{ij} (1 - \rho + \nu_i^2 / \sigma^2)

    A residual outside the band counts as at its end: such a run has a cause that others need not share. The width
    left is :math:`\sqrt{1 - k^T K^{-1} k}`.

    Parameters
    ----------
    distance : numeric
        From plans to runs, (rows, runs). [-]
    between : numeric
        Between the runs, (runs, runs). [-]
    log_ratio : numeric
        Logarithm of measured over predicted time of each run, (runs,). [-]
    noise : numeric
        Relative spread of what was measured, (runs,). [-]
    half_width : float
        Half of the 80 % band of predictions in the logarithm: of the residuals of the family. [-]
    shared : float, default 0.7
        Share of the variance that runs at the same place have in common. [-]

    Returns
    -------
    log_scale : Array
        Logarithm of what predictions are multiplied by, (rows,). [-]
    width_share : Array
        Width of the band that is left, (rows,). [-]

    References
    ----------
    .. [1] C. E. Rasmussen and C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, section
       2.2; shares and reach: heuristic, this work.

    Examples
    --------
    A run at the place of the plan, 10 % slower than predicted, without noise: 7 % slower are expected.

    >>> scale, width = shrunk_residual(np.zeros((1, 1)), np.zeros((1, 1)), np.log([1.1]), np.zeros(1), 0.2)
    >>> [round(float(value), 3) for value in (np.exp(scale[0]), width[0])]
    [1.069, 0.714]
    """
    spread = half_width / HALF_WIDTH
    near = shared * np.exp(-np.asarray(distance, dtype=float) / REACH)
    own = 1.0 - shared + (np.asarray(noise, dtype=float) / spread) ** 2
    common = shared * np.exp(-np.asarray(between, dtype=float) / REACH) + np.diag(own)
    weights = np.linalg.solve(common, near.T).T
    seen = np.clip(np.asarray(log_ratio, dtype=float), -half_width, half_width)
    left = 1.0 - (weights * near).sum(axis=-1)
    return np.asarray((weights * seen).sum(axis=-1)), np.sqrt(np.maximum(left, 0.0))
