"""KV cache of sessions under least-recently-used eviction: reuse between turns, characteristic time, hit rate by tier.

A session has turns. The prompt of a turn is a prefix that all sessions share, the session's tokens so far, and new
tokens. Between turns the session thinks, and its cache ages; Che's approximation evicts it at one characteristic time,
at which the tokens younger than it fill the tier.

Rollouts of reinforcement learning: how many of a batch still generate. Their lengths follow a Weibull distribution that
is cut at the longest length, at which every rollout stops.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, divide, exp, log, power, total

_UPPER = (3.52624965998911e-2, 0.700383064443688, 6.37396220353165, 33.912866078383, 112.079291497871,
          221.213596169931, 220.206867912376)  # fmt: skip
_LOWER = (8.83883476483184e-2, 1.75566716318264, 16.064177579207, 86.7807322029461, 296.564248779674,
          637.333633378831, 793.826512519948, 440.413735824752)  # fmt: skip
_FAR = 7.07106781186547
"""Score beyond which the tail is below 1e-12 of the whole. [-]"""
_SMALLEST = 1e-9
"""Least spread of the logarithm, which makes a constant time a distribution. [-]"""
_STEPS = 44
"""Bisection steps, to twelve digits of a characteristic time. [-]"""


def normal_probability(score: Numeric) -> Array:
    r"""Probability that a standard normal variable is below a score, to fourteen digits.

    .. math:: \Phi(z) = \frac{1}{\sqrt{2 \pi}} \int_{-\infty}^z e^{-x^2 / 2} dx

    Source: G. West, "Better approximations to cumulative normal functions", Wilmott Magazine, May 2005, pp. 70-76; the
    rational function of J. F. Hart et al., "Computer Approximations", Wiley, 1968.

    >>> normal_probability([0.0, 1.0, -1.0]).round(6).tolist()
    [0.5, 0.841345, 0.158655]

    Parameters
    ----------
    score : Standard score z. [-]

    Returns
    -------
    probability : Probability; 0 and 1 beyond a score of 7. [-]
    """
    z = array(score)
    size = np.abs(z)
    near = np.minimum(size, _FAR)
    upper, lower = np.zeros(z.shape), np.zeros(z.shape)
    for factor in _UPPER:
        upper = upper * near + factor
    for factor in _LOWER:
        lower = lower * near + factor
    tail = np.where(size < _FAR, exp(-0.5 * near * near) * upper / lower, 0.0)
    return np.where(np.isnan(z), np.nan, np.where(z > 0.0, 1.0 - tail, tail))


def within_time(time: Numeric, mean: Numeric, variation: Numeric) -> Array:
    r"""Probability that a log-normal time is at most a given one.

    .. math:: F(t) = \Phi\left(\frac{\ln (t / m)}{\sigma} + \frac{\sigma}{2}\right), \sigma^2 = \ln(1 + v^2)

    Source: N. L. Johnson, S. Kotz and N. Balakrishnan, "Continuous Univariate Distributions", vol. 1, Wiley, 1994,
    chapter 14.

    >>> within_time([0.0, 10.0, 1e9], 10.0, 1.0).round(4).tolist()
    [0.0, 0.6615, 1.0]

    Parameters
    ----------
    time : Time t. [s]
    mean : Mean m of the distribution; 0: no time at all. [s]
    variation : Coefficient of variation v; 0: always the mean. [-]

    Returns
    -------
    probability : Share of the times that are at most t. [-]
    """
    spread = _spread(variation)
    within = normal_probability(_score(time, mean, spread) + 0.5 * spread)
    return np.where(array(mean) == 0.0, np.where(np.isnan(within), within, 1.0), within)


def mean_within_time(time: Numeric, mean: Numeric, variation: Numeric) -> Array:
    r"""Mean of the smaller of a log-normal time and a given one.

    .. math:: E[\min(Z, t)] = m \Phi\left(\frac{\ln (t / m)}{\sigma} - \frac{\sigma}{2}\right) + t (1 - F(t))

    Source: N. L. Johnson, S. Kotz and N. Balakrishnan, "Continuous Univariate Distributions", vol. 1, Wiley, 1994,
    chapter 14.

    >>> mean_within_time([0.0, 10.0, 1e9], 10.0, 1.0).round(3).tolist()
    [0.0, 6.772, 10.0]

    Parameters
    ----------
    time : Time t. [s]
    mean : Mean m of the distribution. [s]
    variation : Coefficient of variation v. [-]

    Returns
    -------
    mean_time : Mean time up to t: t for small t and m for large t. [s]
    """
    t, m, spread = array(time), array(mean), _spread(variation)
    below = normal_probability(_score(t, m, spread) - 0.5 * spread)
    beyond = np.where(m > 0.0, 1.0 - within_time(t, m, variation), 0.0)
    return np.where(beyond > 0.0, m * below + np.where(beyond > 0.0, t, 0.0) * beyond, m * below)


def _spread(variation: Numeric) -> Array:
    """Standard deviation of the logarithm of a log-normal time."""
    v = array(variation)
    return np.maximum(np.sqrt(log(1.0 + v * v)), _SMALLEST)


def _score(time: Numeric, mean: Numeric, spread: Array) -> Array:
    """Logarithm of a time over the mean in units of the spread."""
    return log(divide(array(time), array(mean), np.inf)) / spread


def cached_tokens(
    age: Numeric,
    turn_rate: Numeric,
    turn_time: Numeric,
    turns: Numeric,
    think_time: Numeric,
    think_variation: Numeric,
    running_tokens: Numeric,
    waiting_tokens: Numeric,
    last_tokens: Numeric,
    common: Numeric,
) -> Array:
    r"""Tokens of a tier that keeps every session up to an age since its last turn.

    .. math:: c + X \left(r R + \frac{n - 1}{n} w E[\min(Z, T)] + \frac{l}{n} T\right)

    Source: H. Che, Y. Tung and Z. Wang, "Hierarchical Web caching systems: modeling, design and experimental results",
    IEEE J. Sel. Areas Commun. 20(7), 2002, doi:10.1109/JSAC.2002.801752.

    A session that has ended ages like one that thinks: nobody knows that it is over.

    >>> cached_tokens(0.0, 2.0, 5.0, 10.0, 60.0, 1.0, 4000.0, 4000.0, 8000.0, 1000.0).tolist()
    41000.0

    Parameters
    ----------
    age : Characteristic time T. [s]
    turn_rate : Turns X that start per second. [1/s]
    turn_time : Time R from the prompt of a turn to its last token. [s]
    turns : Turns n of a session. [-]
    think_time : Mean of the time Z between turns. [s]
    think_variation : Coefficient of variation of that time. [-]
    running_tokens : Mean tokens r of a session during a turn, the common prefix left out. [-]
    waiting_tokens : Mean tokens w of a session between turns. [-]
    last_tokens : Tokens l of a session after its last turn. [-]
    common : Tokens c of the common prefix, which is there once. [-]

    Returns
    -------
    tokens : Tokens in the tier. [-]
    """
    n, t = array(turns), array(age)
    thinking = (n - 1.0) / n * array(waiting_tokens) * mean_within_time(t, think_time, think_variation)
    ended = array(last_tokens) / n * t
    return array(common) + array(turn_rate) * (array(running_tokens) * array(turn_time) + thinking + ended)


def characteristic_time(capacity: Array, scale: Array, cached: Callable[[Array], Array]) -> Array:
    """Age at which a tier evicts a session, 0 if the running turns alone fill it and infinite in an endless one. [s]

    Che's approximation: ``cached`` of the age, as :func:`cached_tokens`, is the capacity, by bisection. It takes the
    age as constant, which is too sharp for few sessions that all think equally long. ``scale``: a usual age. [s]

    >>> given = 2.0, 5.0, 10.0, 60.0, 1.0, 4000.0, 4000.0, 8000.0, 1000.0
    >>> time = characteristic_time(array(200e3), array(65.0), lambda age: cached_tokens(age, *given))
    >>> bool(abs(cached_tokens(time, *given) - 200e3) < 1e-3)
    True
    """
    usual = cached(scale)
    # The age is scale x u / (1 - u), so that u from 0 to 1 covers every age
    low = np.zeros(np.broadcast(capacity, usual).shape)
    high = np.ones(low.shape)
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        full = cached(scale * middle / (1.0 - middle)) > capacity
        low, high = np.where(full, low, middle), np.where(full, middle, high)
    age = np.where(high == 1.0, np.inf, scale * low / (1.0 - low))
    return np.where(np.isnan(capacity + usual), np.nan, age)


_POINTS = 200
"""Points of the quadrature of a mean length. [-]"""
_HALVINGS = 60
"""Halvings of the bracket of a length scale. [-]"""


def unfinished_share(tokens: Numeric, length_scale: Numeric, length_shape: Numeric, longest: Numeric) -> Array:
    r"""Share of rollouts that are longer than a number of tokens.

    .. math:: S(x) = e^{-(x / \lambda)^k} \text{ below the longest, else } 0

    Source: W. Weibull, "A statistical distribution function of wide applicability",
    Journal of Applied Mechanics 18, 1951.

    >>> unfinished_share([0.0, 100.0, 300.0], 100.0, 1.0, 300.0)
    array([1.        , 0.36787944, 0.        ])

    Parameters
    ----------
    tokens : Tokens generated so far. [-]
    length_scale : Scale of the lengths. [-]
    length_shape : Shape of the lengths. [-]
    longest : Tokens at which every rollout stops. [-]

    Returns
    -------
    share : Share of the rollouts. [-]
    """
    ratio = np.maximum(array(tokens) / array(length_scale), 0.0)
    running = exp(-power(ratio, array(length_shape)))
    return np.where(array(tokens) < array(longest), running, 0.0 * running * array(longest))


def mean_rollout_length(length_scale: Numeric, length_shape: Numeric, longest: Numeric) -> Array:
    r"""Mean length of rollouts that stop at the longest length.

    .. math:: \bar{x} = \int_0^L S(x) \, dx

    Source: Mean of a non-negative random number as the integral of its survival function; midpoint rule.

    >>> mean_rollout_length([100.0, 50.0], 1.0, 100.0).round(2)
    array([63.21, 43.23])

    Parameters
    ----------
    length_scale : Scale of the lengths. [-]
    length_shape : Shape of the lengths. [-]
    longest : Tokens at which every rollout stops. [-]

    Returns
    -------
    mean_length : Mean tokens of a rollout. [-]
    """
    longest = array(longest)[..., None]
    middle = (np.arange(_POINTS) + 0.5) / _POINTS * longest
    share = unfinished_share(middle, array(length_scale)[..., None], array(length_shape)[..., None], longest)
    return total(share * longest) / _POINTS


def weibull_scale(mean_length: Numeric, length_shape: Numeric, longest: Numeric) -> Array:
    r"""Scale of lengths with a given mean after the cut.

    .. math:: \bar{x}(\lambda) = \bar{x}, \text{ by bisection of } \log \lambda

    Source: This work: inverse of the mean length.

    >>> weibull_scale([63.21, 43.23], 1.0, 100.0).round(0)
    array([100.,  50.])

    Parameters
    ----------
    mean_length : Mean tokens of a rollout, below the longest. [-]
    length_shape : Shape of the lengths. [-]
    longest : Tokens at which every rollout stops. [-]

    Returns
    -------
    length_scale : Scale of the lengths. [-]
    """
    mean, shape, longest = np.broadcast_arrays(array(mean_length), array(length_shape), array(longest))
    low, high = log(0.1 * mean), log(1e4 * longest)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        short = mean_rollout_length(exp(middle), shape, longest) < mean
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return exp(0.5 * (low + high)) + 0.0 * shape
