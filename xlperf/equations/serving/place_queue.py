"""Queue for the places of a serving replica under open arrivals: a GI/G/c approximation with its wait distribution.

A replica runs c requests together, limited by its cache or ``max running batch``. Further requests wait in its own
first-come-first-served queue, since routers ignore queues. A request holds its place for the mean hold time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, divide, exp, expm1, log, power

_MOST_LOAD = 1.0 - 1e-12
_LEAST_SQUARE = 1e-6  # squared coefficient of variation below which times count as constant [-]
_LEAST_LOAD, _LEAST_SHARE = 1e-9, 1e-6  # least load in the equations; share of requests below which none waits [-]
# Normal tail: Abramowitz and Stegun, 26.2.17
_TAIL = 0.2316419, (0.319381530, -0.356563782, 1.781477937, -1.821255978, 1.330274429)
_ROOT_OF_TWO_PI = 2.5066282746310002
_MOST_GAMMA = 0.24  # largest correction for evenly spaced arrivals (Whitt 1993, equation 2.13) [-]
_FEWER, _FEWER_AT, _FEWER_POWER = 0.19, 1.6, -0.65  # M/D/c against M/M/c: fewer requests wait, fitted [-]
_ITERATIONS = 8  # Newton iterations for the decay rate [-]
_BEND = 0.9  # rate at which the wait distribution approaches its exponential tail: heuristic, this work [-]


class PlaceWait(NamedTuple):
    """Wait for a place of a replica, (rows,)."""

    probability: Array  # share of the requests that wait [-]
    mean: Array  # mean wait over all requests; infinite beyond the capacity [s]
    decay: Array  # decay rate of the tail of the wait distribution [1/s]

    def quantile(self, share: float) -> Array:
        r"""Wait that a share q of the requests does not exceed. [s]

        With :math:`u = \ln(P_w / (1 - q))`, at least 0: a quantile function that begins at 0 and has the decay rate
        theta of the tail and the mean W (heuristic, this work; exact for M/M/c, which has k = 1):

        .. math:: t_q = \frac{1}{\theta} \left(u + (k - 1)\,\frac{1 + a}{a}\,(1 - e^{-a u})\right), \qquad
            k = \frac{\theta\,W}{P_w}, \qquad a = 0.9

        Half of the requests wait, 1 s on average: nine of ten wait for at most 1 s x ln(0.5 / 0.1).

        >>> round(float(PlaceWait(*map(np.asarray, (0.5, 0.5, 1.0))).quantile(0.9)), 3)
        1.609
        """
        depth = np.maximum(log(np.maximum(self.probability, 1e-300) / (1.0 - share)), 0.0)
        shape = divide(self.decay * self.mean, self.probability, 1.0) - 1.0
        shape = np.maximum(shape, -1.0 / (1.0 + _BEND))
        bent = depth - shape * ((1.0 + _BEND) / _BEND) * expm1(-_BEND * depth)
        late = np.where(np.isinf(self.mean), np.inf, divide(bent, self.decay, np.inf))
        return np.where(depth > 0.0, late, 0.0 * self.mean)

    def chosen(self, rows: np.ndarray) -> PlaceWait:
        """The wait in rows of a mask, 0 elsewhere."""
        return PlaceWait(*(np.where(rows, values, 0.0) for values in self))


def erlang_c(servers: Numeric, busy_share: Numeric) -> Array:
    r"""Probability that an arrival finds all servers of an M/M/c queue busy, for a real number of servers of 1 or more.

    Mean of an upper and a lower bound of the inverse (Janssen, van Leeuwaarden and Zwart), in closed form: within 1.5 %
    for one server and 0.1 % from 16 on.

    .. math:: C \approx \left[\rho + (1 - \rho) \sqrt{c} \left(\frac{\Phi(\alpha)}{\varphi(\alpha)} +
        \frac{2}{3 \sqrt{c}} + \frac{1}{2 \varphi(\alpha) (12 c - 1)}\right)\right]^{-1}, \qquad
        \alpha = \sqrt{-2 c (1 - \rho + \ln \rho)}

    Parameters
    ----------
    servers : numeric
        Servers c, 1 or more. [-]
    busy_share : numeric
        Utilisation rho. [-]

    Returns
    -------
    Array
        0 to 1. [-]

    References
    ----------
    .. [1] A. J. E. M. Janssen, J. S. H. van Leeuwaarden and B. Zwart, "Refining square-root safety staffing by
       expanding Erlang C", Oper. Res. 59(6), 2011, doi:10.1287/opre.1110.0991.

    Exactly 0.5 with one server at half load; 0.2870 with four at 60 %:

    >>> erlang_c([1.0, 4.0], [0.5, 0.6]).round(3).tolist()
    [0.496, 0.287]
    """
    count, busy = np.maximum(array(servers), 1.0), np.minimum(array(busy_share), _MOST_LOAD)
    half_square = -count * np.minimum(1.0 - busy + log(busy), 0.0)
    alpha = np.sqrt(2.0 * half_square)
    argument, factors = 1.0 / (1.0 + _TAIL[0] * alpha), _TAIL[1]
    tail = 0.0 * alpha
    for factor in reversed(factors):
        tail = argument * (factor + tail)
    inverse_density = _ROOT_OF_TWO_PI * exp(half_square)
    root = np.sqrt(count)
    inside = inverse_density * (1.0 + 0.5 / (12.0 * count - 1.0)) - tail + 2.0 / (3.0 * root)
    return np.asarray(1.0 / (busy + (1.0 - busy) * root * inside))


def wait_correction(
    servers: Numeric, busy_share: Numeric, arrival_variation: Numeric, hold_variation: Numeric
) -> Array:
    r"""Mean wait of a GI/G/c queue over the Allen-Cunneen formula (Whitt 1993, equations 2.17 to 2.25).

    1 for M/M/c; above 1 with constant service times and several servers.

    .. math:: W = \phi\,\frac{c_a^2 + c_s^2}{2}\,W_{M/M/c}

    Parameters
    ----------
    servers : numeric
        Servers c. [-]
    busy_share : numeric
        Utilisation rho. [-]
    arrival_variation : numeric
        Coefficient of variation c_a of interarrival times. [-]
    hold_variation : numeric
        Coefficient of variation c_s of service times. [-]

    Returns
    -------
    Array
        The factor phi. [-]

    References
    ----------
    .. [1] W. Whitt, "Approximations for the GI/G/m queue", Prod. Oper. Manag. 2(2), 1993,
       doi:10.1111/j.1937-5956.1993.tb00094.x.

    M/M/c and M/D/c with 16 servers at 90 % load:

    >>> wait_correction(16.0, 0.9, 1.0, [1.0, 0.0]).round(4).tolist()
    [1.0, 1.0466]
    """
    count, busy = array(servers), np.minimum(array(busy_share), _MOST_LOAD)
    arriving, serving = array(arrival_variation) ** 2, array(hold_variation) ** 2
    gamma = (1.0 - busy) * (count - 1.0) * (np.sqrt(4.0 + 5.0 * count) - 2.0) / (16.0 * busy * count)
    # Factors of M/D/c (phi_1) and D/M/c (phi_3), and their combination for the variations between.
    constant = 1.0 + np.minimum(gamma, (count - 1.0) / (count + 1.0))
    even = (1.0 - 4.0 * np.minimum(gamma, _MOST_GAMMA)) * exp(-2.0 * (1.0 - busy) / (3.0 * busy))
    between = np.minimum(1.0, 0.5 * (constant + even))
    middle = 0.5 * (arriving + serving)
    mixed = exp(2.0 * np.maximum(1.0 - middle, 0.0) * log(between))
    varied, sides = 4.0 * arriving - 3.0 * serving, 2.0 * (arriving + serving)
    more = divide(4.0 * (arriving - serving) * constant + serving * mixed, varied, 1.0)
    less = divide((serving - arriving) * even + (serving + 3.0 * arriving) * mixed, sides, 1.0)
    return np.where(arriving >= serving, more, less)


def tail_decay(busy_share: Numeric, arrival_variation: Numeric, hold_variation: Numeric) -> Array:
    r"""Decay rate of the wait distribution of a GI/G/c queue, relative to the service rate of the busy servers.

    The positive root x of the equation of the moment-generating functions, for gamma-distributed interarrival and
    service times [1]_; 1 - rho for M/M/c.

    .. math:: -\frac{\ln(1 - x c_s^2)}{c_s^2} = \frac{\ln(1 + x c_a^2 / \rho)}{c_a^2}

    Parameters
    ----------
    busy_share : numeric
        Utilisation rho. [-]
    arrival_variation : numeric
        Coefficient of variation c_a of interarrival times. [-]
    hold_variation : numeric
        Coefficient of variation c_s of service times. [-]

    Returns
    -------
    Array
        The root x; infinite if neither varies. [-]

    References
    ----------
    .. [1] Y. Takahashi, "Asymptotic exponentiality of the tail of the waiting-time distribution in a PH/PH/c queue",
       Adv. Appl. Probab. 13(3), 1981, doi:10.2307/1426788.

    M/M/c and M/D/c at 90 %, with exp(x) = 1 + x / 0.9:

    >>> tail_decay(0.9, 1.0, [1.0, 0.0]).round(4).tolist()
    [0.1, 0.2072]
    """
    busy = np.minimum(array(busy_share), _MOST_LOAD)
    arriving, serving = (np.maximum(array(each) ** 2, _LEAST_SQUARE) for each in (arrival_variation, hold_variation))
    # Newton's method in y = -ln(1 - x c_s^2) / c_s^2, convex and without a pole: to the right of its minimum the
    # iterates decrease to the root. The right-hand side at the largest x bounds y.
    lowest = (1.0 - busy) / (serving + arriving)
    first = np.minimum(2.0 * lowest, 0.5 * (lowest + 1.0 / serving))
    y, most = -log(1.0 - first * serving) / serving, log(1.0 + arriving / (serving * busy)) / arriving
    for _ in range(_ITERATIONS):
        root = -expm1(-serving * y) / serving
        value = y - log(1.0 + root * arriving / busy) / arriving
        slope = 1.0 - (1.0 - root * serving) / (busy + root * arriving)
        y = np.minimum(y - value / slope, most)
    return np.asarray(-expm1(-serving * y) / serving)


def place_wait(
    places: Numeric, busy_share: Numeric, hold: Numeric, arrival_variation: Numeric, hold_variation: Numeric
) -> PlaceWait:
    r"""Wait for a place of a replica under independent arrivals: Whitt's GI/G/c approximation.

    Places are the servers and the mean hold time h is the service time. The share of waiting requests is Erlang's C for
    c / z servers, with the peakedness z of the arrivals relative to the hold time.

    .. math:: W = \phi\,\frac{c_a^2 + c_s^2}{2}\,\frac{C(c, \rho)\,h}{c (1 - \rho)}, \qquad
        P_w = C\left(\frac{c}{z}, \rho\right), \qquad z = \frac{c_a^2 + c_s^2}{1 + c_s^2}

    References
    ----------
    .. [1] W. Whitt, "Approximations for the GI/G/m queue", Prod. Oper. Manag. 2(2), 1993,
       doi:10.1111/j.1937-5956.1993.tb00094.x.

    One place at half load, hold time 1 s, Poisson arrivals: a wait of 1 s (M/M/1) or 0.5 s (M/D/1).

    >>> place_wait(1.0, 0.5, 1.0, 1.0, [1.0, 0.0]).mean.round(2).tolist()
    [0.99, 0.5]
    """
    count, busy, time = np.maximum(array(places), 1.0), array(busy_share), array(hold)
    arriving, serving = array(arrival_variation) ** 2, array(hold_variation) ** 2
    rho = np.minimum(np.maximum(busy, _LEAST_LOAD), _MOST_LOAD)
    # Mean wait, share of waiting requests and decay rate.
    finish = time / count
    mean = erlang_c(count, rho) * finish / (1.0 - rho) * (0.5 * (arriving + serving))
    mean = mean * wait_correction(count, rho, arrival_variation, hold_variation)
    peakedness = np.maximum((arriving + serving) / (1.0 + serving), _LEAST_SQUARE)
    safety = (1.0 - rho) * np.sqrt(count)
    fewer = _FEWER * safety * exp(-safety / _FEWER_AT) * (1.0 - power(count, _FEWER_POWER))
    probability = erlang_c(count / peakedness, rho) * (1.0 - fewer * np.maximum(1.0 - serving, 0.0))
    decay = divide(tail_decay(rho, arrival_variation, hold_variation), finish, np.inf)
    # Rows without waits, beyond the capacity, or with unknown inputs.
    waits = (probability >= _LEAST_SHARE) | np.isnan(probability)
    endless = ~((busy < 1.0) | np.isnan(busy))
    mean = np.where(endless, np.inf, np.where(waits, mean, 0.0))
    unknown = 0.0 * (array(places) + arriving + serving) + np.where(np.isnan(time), np.nan, 0.0)
    share = np.where(endless, 1.0, np.where(waits, probability, 0.0))
    return PlaceWait(share + unknown, mean, np.where(endless, unknown, decay))
