"""Load of routed experts: which experts the tokens of a batch activate, and the load of the busiest rank."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, divide, power

_MIDDLE_OF_LARGEST = 0.5264
"""Probability below the mean of the largest of some normal deviates, to the power of their number. [-]"""
_LAMBDA, _LAMBDA_SCALE = 0.14, 4.91
"""Tukey's lambda distribution that is nearest to the normal one. [-]"""
_ALL, _NONE = np.asarray(1.0), np.asarray(0.0)


class Popularity(NamedTuple):
    """How unevenly routers visit experts, (rows,); even by default."""

    # Share s of the experts that routers prefer, hot ones excluded; the other experts receive (1 - s)^3 of the visits
    # that are not to hot ones. 1: no preference. [-]
    favoured_share: Array = _ALL
    hot_share: Array = _NONE  # share of the visits of every token that goes to the same few experts [-]


EVEN = Popularity()
"""Every expert is as likely as any other."""


def distinct_share(num_places: Numeric, top_k: Numeric) -> Array:
    r"""Share of a token's copies that are sent when it goes once to each place that holds any of its experts.

    Experts are chosen evenly; a place is a rank, or a node where the group spans several. None of k experts is at a
    place with probability (1 - 1/n)^k, so that a token goes to n (1 - (1 - 1/n)^k) places, out of k copies.

    .. math:: f = \frac{n}{k} \left(1 - \left(1 - \frac{1}{n}\right)^k\right)

    Source: DeepSeek-AI, "DeepSeek-V3 technical report", 2024, arXiv:2412.19437, section 3.2.2.

    >>> float(distinct_share(8, 2))  # Two experts on 8 ranks: 4 (1 - 49/64)
    0.9375

    Parameters
    ----------
    num_places : Places n that share the experts. [-]
    top_k : Experts k of a token. [-]

    Returns
    -------
    share : Copies that are sent over the experts of a token. [-]
    """
    places, chosen = array(num_places), array(top_k)
    missed = np.ones(np.broadcast(places, chosen).shape)
    others = 1.0 - 1.0 / places
    most = np.fmax.reduce(chosen, axis=None, initial=0.0)
    least = np.fmin.reduce(chosen, axis=None, initial=most)
    for count in range(int(most)):
        missed = np.where(chosen > count, missed * others, missed) if count >= least else missed * others
    return np.asarray(places / np.maximum(chosen, 1.0) * (1.0 - missed))


def activated_experts(num_experts: Array, top_k: Array, tokens: Array, popularity: Popularity = EVEN) -> Array:
    r"""Expected number of distinct experts activated by a batch of tokens, with popular experts, (rows,). [-]

    Every token visits the same h k hot experts; its other k' = (1 - h) k visits go to the E' = E - h k others. Experts
    that are not preferred receive the share (1 - s)^3 of these visits, spread evenly, the preferred ones the remainder.
    Part of a token visits part of h k. With s = 1 and h = 0 routing is even; a token with too many visits prefers no
    expert. Even routing is the occupancy of bins by balls [1]_; the preference is fitted (heuristic, this work).

    .. math:: E_{hit} = h k + E' \left(1 - s \left(1 - (3 - 3 s + s^2) \frac{k'}{E'}\right)^{n}
        - (1 - s) \left(1 - (1 - s)^2 \frac{k'}{E'}\right)^{n}\right)

    .. [1] M. Mitzenmacher and E. Upfal, "Probability and Computing", Cambridge University Press, 2005, chapter 5.

    >>> activated_experts(np.array([8.0]), np.array([2.0]), np.array([1.0, 2.0])).tolist()
    [2.00, 3.50]

    One of the two is the same for all tokens, the other one of seven:

    >>> hot = Popularity(hot_share=np.array([0.5]))
    >>> activated_experts(np.array([8.0]), np.array([2.0]), np.array([1.0, 2.0]), hot).round(3).tolist()
    [2.0, 2.857]
    """
    share, hot = array(popularity.favoured_share), array(popularity.hot_share) * array(top_k)
    first = hot * np.minimum(array(tokens), 1.0)
    num_experts, top_k = array(num_experts) - hot, array(top_k) - hot
    visited = np.minimum(np.divide(top_k, np.maximum(num_experts, 1.0)), 1.0)
    preferred = 3.0 - 3.0 * share + share * share
    even = preferred * visited > 1.0
    others = np.where(even, 0.0, 1.0 - share)
    missed = (1.0 - others) * power(1.0 - np.where(even, 1.0, preferred) * visited, tokens)
    if np.count_nonzero(others):
        missed = missed + others * power(1.0 - others * others * visited, tokens)
    return np.asarray(first + num_experts * (1.0 - missed))


def largest_of(number: Array) -> Array:
    r"""Mean of the largest of some independent normal deviates, in standard deviations above their mean.

    .. math:: m = \Phi^{-1}\left(0.5264^{1/e}\right) \approx 4.91 \left(p^{0.14} - (1 - p)^{0.14}\right),
        \qquad p = 0.5264^{1/e}

    Within 0.04 of the exact means up to 128 (0.564 of 2, 1.424 of 8, 1.766 of 16); :math:`\sqrt{2 \ln e}` bounds them.

    Parameters
    ----------
    number : Deviates e. [-]

    Returns
    -------
    Array : 0 for a single one. [-]

    References
    ----------
    .. [1] C.-C. Chen and C. W. Tyler, "Accurate approximation to the extreme order statistics of Gaussian samples",
       Commun. Stat. Simul. Comput. 28(1), 1999, doi:10.1080/03610919908813542.
    .. [2] B. L. Joiner and J. R. Rosenblatt, "Some properties of the range in samples from Tukey's symmetric lambda
       distributions", J. Am. Stat. Assoc. 66(334), 1971, doi:10.2307/2283943.

    >>> largest_of(np.array([1.0, 2.0, 8.0, 16.0])).round(2).tolist()
    [0.0, 0.6, 1.43, 1.76]
    """
    count = np.maximum(number, 1.0)
    below = power(_MIDDLE_OF_LARGEST, 1.0 / count)
    mean_largest = _LAMBDA_SCALE * (power(below, _LAMBDA) - power(1.0 - below, _LAMBDA))
    return np.where(count <= 1.0, 0.0, mean_largest)


def preference_variance(num_experts: Array, top_k: Array, held: Array, favoured_share: Numeric) -> Array:
    r"""Relative variance of the visits of ranks that comes with the experts they hold, however many tokens there are.

    Experts lie on ranks as they are numbered, preferred ones (:func:`activated_experts`) by chance. A preferred expert
    has a = 3 - 3 s + s^2 times the visits of the mean, another one b = (1 - s)^2, and a rank a sample of H of E. Hot
    experts are not counted: v is that of h = 0. It is 0 where a k is more than E, as none can be preferred then.

    .. math:: v = \frac{s a^2 + (1 - s) b^2 - 1}{H} \cdot \frac{E - H}{E - 1}

    Source: DeepSeek-AI, "DeepSeek-V3 technical report", 2024, arXiv:2412.19437, section 3.4: experts of high load in
    statistics of the service, and their copies that balance the ranks.

    Half of 64 experts preferred, 1.75 and 0.25 times the visits of the mean: 0.5625 / 8 x 56 / 63.

    >>> preference_variance(np.array([64.0]), np.array([4.0]), np.array([8.0]), 0.5).tolist()
    [0.0625]

    Parameters
    ----------
    num_experts : Routed experts E of a layer. [-]
    top_k : Experts that each token visits. [-]
    held : Experts H of a rank. [-]
    favoured_share : Share s of the experts that are preferred. [-]

    Returns
    -------
    Array : 0 where routing is even or a rank holds all experts. [-]
    """
    experts, own, share = array(num_experts), array(held), array(favoured_share)
    visited = divide(top_k, np.maximum(experts, 1.0))
    preferred = 3.0 - 3.0 * share + share * share
    other = (1.0 - share) * (1.0 - share)
    spread = share * (preferred * preferred) + (1.0 - share) * (other * other) - 1.0
    spread = np.where(preferred * visited <= 1.0, np.maximum(spread, 0.0), 0.0 * preferred * visited)
    left = np.maximum(experts - own, 0.0) / np.maximum(experts - 1.0, 1.0)
    return np.asarray(spread / np.maximum(own, 1.0) * left)


def busiest_rank_load(mean: Array, ranks: Array, most: Numeric = np.inf, lasting: Numeric = 0.0) -> Array:
    r"""Load of the busiest rank, mean over steps, for random routing.

    Visits fall on ranks as balls into bins: their number varies by the root of its mean. Of experts that are visited
    or not there are E on a rank at most, and their number varies by less the more of them are. Where routers prefer
    experts of some ranks, their loads differ by a variance v that stays however many visits there are:

    .. math:: r = \mu + m_e \sqrt{\mu \left(1 - \frac{\mu}{E}\right) + v \mu^2}

    Source: M. Raab and A. Steger, "Balls into bins: a simple and tight analysis", RANDOM 1998,
    doi:10.1007/3-540-49543-6_13.

    >>> busiest_rank_load(np.array([100.0, 100.0]), np.array([1.0, 8.0])).round(1).tolist()
    [100.0, 114.3]
    >>> busiest_rank_load(np.array([16.0, 32.0]), np.array([8.0, 8.0]), 32.0).round(1).tolist()
    [20.0, 32.0]

    Parameters
    ----------
    mean : Expected load mu of a rank, in what falls at once. [-]
    ranks : Ranks e. [-]
    most : What can fall on a rank at most, E. [-]
    lasting : Relative variance v between ranks, as in :func:`preference_variance`. [-]

    Returns
    -------
    Array : The mean for a single rank, and with even routing towards it in proportion with much load; at most ``most``.
        [-]
    """
    load = array(mean)
    left = np.maximum(1.0 - load / array(most), 0.0)
    variance = load * left + array(lasting) * (load * load)
    return np.asarray(np.minimum(load + largest_of(ranks) * np.sqrt(variance), most))
