"""Rollouts of reinforcement learning: how many of a batch still generate, from a distribution of their lengths.

Lengths follow a Weibull distribution that is cut at the longest length: those beyond it stop there.
"""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, exp, log, power, total

_POINTS = 200
"""Points of the quadrature of a mean length. [-]"""
_HALVINGS = 60
"""Halvings of the bracket of a length scale. [-]"""


def weibull_shape(length_variation: Numeric) -> Array:
    r"""Shape of the Weibull distribution with a coefficient of variation.

    .. math:: k = v^{-1.086}

    Parameters
    ----------
    length_variation : numeric
        Standard deviation of the lengths over their mean. [-]

    Returns
    -------
    length_shape : numeric
        Exponent of the distribution; 1 is exponential. [-]

    References
    ----------
    .. [1] C. G. Justus et al., "Methods for estimating wind speed frequency distributions", Journal of Applied
       Meteorology 17(3), 1978, eq. 20.

    Examples
    --------
    >>> weibull_shape([1.0, 0.5]).round(3)
    array([1.   , 2.123])
    """
    variation = array(length_variation)
    return exp(-1.086 * log(np.maximum(variation, 0.01) + 0.0 * variation))


def unfinished_share(tokens: Numeric, length_scale: Numeric, length_shape: Numeric, longest: Numeric) -> Array:
    r"""Share of rollouts that are longer than a number of tokens.

    .. math:: S(x) = e^{-(x / \lambda)^k} \text{ below the longest, else } 0

    Parameters
    ----------
    tokens : numeric
        Tokens generated so far. [-]
    length_scale : numeric
        Scale of the lengths. [-]
    length_shape : numeric
        Shape of the lengths. [-]
    longest : numeric
        Tokens at which every rollout stops. [-]

    Returns
    -------
    share : numeric
        Share of the rollouts. [-]

    References
    ----------
    .. [1] W. Weibull, "A statistical distribution function of wide applicability", Journal of Applied Mechanics 18,
       1951.

    Examples
    --------
    >>> unfinished_share([0.0, 100.0, 300.0], 100.0, 1.0, 300.0)
    array([1.        , 0.36787944, 0.        ])
    """
    ratio = np.maximum(array(tokens) / array(length_scale), 0.0)
    running = exp(-power(ratio, array(length_shape)))
    return np.where(array(tokens) < array(longest), running, 0.0 * running * array(longest))


def mean_rollout_length(length_scale: Numeric, length_shape: Numeric, longest: Numeric) -> Array:
    r"""Mean length of rollouts that stop at the longest length.

    .. math:: \bar{x} = \int_0^L S(x) \, dx

    Parameters
    ----------
    length_scale : numeric
        Scale of the lengths. [-]
    length_shape : numeric
        Shape of the lengths. [-]
    longest : numeric
        Tokens at which every rollout stops. [-]

    Returns
    -------
    mean_length : numeric
        Mean tokens of a rollout. [-]

    References
    ----------
    .. [1] Mean of a non-negative random number as the integral of its survival function; midpoint rule.

    Examples
    --------
    >>> mean_rollout_length([100.0, 50.0], 1.0, 100.0).round(2)
    array([63.21, 43.23])
    """
    longest = array(longest)[..., None]
    middle = (np.arange(_POINTS) + 0.5) / _POINTS * longest
    share = unfinished_share(middle, array(length_scale)[..., None], array(length_shape)[..., None], longest)
    return total(share * longest) / _POINTS


def weibull_scale(mean_length: Numeric, length_shape: Numeric, longest: Numeric) -> Array:
    r"""Scale of lengths with a given mean after the cut.

    .. math:: \bar{x}(\lambda) = \bar{x}, \text{ by bisection of } \log \lambda

    Parameters
    ----------
    mean_length : numeric
        Mean tokens of a rollout, below the longest. [-]
    length_shape : numeric
        Shape of the lengths. [-]
    longest : numeric
        Tokens at which every rollout stops. [-]

    Returns
    -------
    length_scale : numeric
        Scale of the lengths. [-]

    References
    ----------
    .. [1] This work: inverse of the mean length.

    Examples
    --------
    >>> weibull_scale([63.21, 43.23], 1.0, 100.0).round(0)
    array([100.,  50.])
    """
    mean, shape, longest = np.broadcast_arrays(array(mean_length), array(length_shape), array(longest))
    low, high = log(0.1 * mean), log(1e4 * longest)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        short = mean_rollout_length(exp(middle), shape, longest) < mean
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return exp(0.5 * (low + high)) + 0.0 * shape


def any_unfinished_share(share: Numeric, count: Numeric) -> Array:
    r"""Probability that any of several rollouts is unfinished.

    .. math:: 1 - (1 - S)^n

    Parameters
    ----------
    share : numeric
        Share of rollouts that are unfinished. [-]
    count : numeric
        Rollouts. [-]

    Returns
    -------
    probability : numeric
        Probability that at least one still generates. [-]

    References
    ----------
    .. [1] Distribution of the largest of n independent numbers.

    Examples
    --------
    >>> any_unfinished_share([0.5, 0.1], 2.0)
    array([0.75, 0.19])
    """
    share, count = array(share), array(count)
    return 1.0 - power(np.maximum(1.0 - share, 0.0), count)
