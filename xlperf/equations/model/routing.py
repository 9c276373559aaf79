"""Where routers send tokens: how many experts are visited, and how full the busiest rank is."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array


def experts_hit(num_experts: Array, top_k: Array, tokens: Array, favoured_share: Numeric = 1.0) -> Array:
    r"""Distinct experts that a number of tokens visits, expected when routers prefer a share s of the experts.

    Of the visits the other experts have the share (1 - s)^3, spread evenly, and the preferred ones the rest. A token
    visits k experts whatever s is, and many tokens visit all.

    .. math:: E_{hit} = E \left(1 - s \left(1 - (3 - 3 s + s^2) \frac{k}{E}\right)^{n}
        - (1 - s) \left(1 - (1 - s)^2 \frac{k}{E}\right)^{n}\right)

    With a share of 1 routing is even; so it is where a token visits so many of the experts that none can be preferred.

    Heuristic, this work: even routing is the occupancy of bins by balls [1]_; the preference is fitted.

    Parameters
    ----------
    num_experts : Array
        Routed experts E of a layer. [-]
    top_k : Array
        Experts k that each token visits. [-]
    tokens : Array
        Tokens n. [-]
    favoured_share : numeric, default 1.0
        Share s of the experts that are preferred. [-]

    Returns
    -------
    Array
        At least k for a token or more. [-]

    References
    ----------
    .. [1] M. Mitzenmacher and E. Upfal, "Probability and Computing", Cambridge University Press, 2005, chapter 5.

    >>> experts_hit(np.array([8.0]), np.array([2.0]), np.array([1.0, 2.0])).tolist()
    [2.00, 3.50]
    >>> experts_hit(np.array([8.0]), np.array([2.0]), np.array([1.0, 2.0]), np.array([0.5])).tolist()
    [2.00, 3.22]
    """
    visited = np.minimum(np.divide(top_k, np.maximum(num_experts, 1.0)), 1.0)
    share = array(favoured_share)
    preferred = 3.0 - 3.0 * share + share * share
    even = preferred * visited > 1.0
    others = np.where(even, 0.0, 1.0 - share)
    missed = (1.0 - others) * np.power(1.0 - np.where(even, 1.0, preferred) * visited, tokens)
    if np.count_nonzero(others):
        missed = missed + others * np.power(1.0 - others * others * visited, tokens)
    return np.asarray(num_experts * (1.0 - missed))


def busiest_share(mean: Array, ranks: Array) -> Array:
    r"""Load of the busiest of several ranks over their mean, when load falls on them evenly and at random.

    .. math:: r = 1 + \sqrt{\frac{2 \ln e}{\mu}}

    Parameters
    ----------
    mean : Array
        Expected load mu of a rank, in what falls at once. [-]
    ranks : Array
        Ranks e. [-]

    Returns
    -------
    Array
        1 for a single rank, and towards 1 with much load. [-]

    References
    ----------
    .. [1] M. Raab and A. Steger, "Balls into bins: a simple and tight analysis", RANDOM 1998,
       doi:10.1007/3-540-49543-6_13.

    >>> busiest_share(np.array([100.0, 100.0]), np.array([1.0, 8.0])).round(3).tolist()
    [1.0, 1.204]
    """
    return np.asarray(1.0 + np.sqrt(2.0 * np.log(np.maximum(ranks, 1.0)) / np.maximum(mean, 1.0)))
