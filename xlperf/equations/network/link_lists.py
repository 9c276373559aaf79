"""Networks as lists of links: the fastest collectives that the links allow, and shares of jobs that use them together.

A link has a bandwidth for each direction. Ranks send and receive; other nodes are switches, which only pass on. The
all-gather is bounded by cuts and reached by trees that fill the links; the all-to-all is a flow of all pairs at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from xlperf.base.arrays import Array

_EVEN = 1e-12  # relative difference of two path lengths that count as equal [-]


class Links(NamedTuple):
    """Directed links between nodes 0 to ``nodes`` - 1."""

    nodes: int
    source: np.ndarray  # node that a link leaves, (links,)
    target: np.ndarray  # node that it enters, (links,)
    bandwidth: Array  # (links,) [B/s]
    latency: Array  # (links,) [s]


def gather_rate(links: Links, ranks: np.ndarray) -> float:
    r"""Largest rate at which each rank can send its own data to all other ranks at once. [B/s]

    Trees that fill the links reach the rate at which every rank can be reached from all others together (Edmonds'
    branchings): the least over all ranks of a largest flow. A reduce-scatter is the same on reversed links.

    .. math:: x = \min_v \max\{x : \text{a flow of } x \text{ from each other rank into } v\}

    Source: L. Zhao et al., "ForestColl: throughput-optimal collective communications on heterogeneous network
    fabrics", 2024, arXiv:2402.06787.

    A ring of four with 1 B/s each way, over which three quarters of all data enter each rank by two links:

    >>> ring = Links(4, np.arange(4), np.roll(np.arange(4), -1), np.ones(4), np.zeros(4))
    >>> both = Links(4, *(np.concatenate(pair) for pair in ((ring.source, ring.target), (ring.target, ring.source))),
    ...              np.ones(8), np.zeros(8))
    >>> round(gather_rate(both, np.arange(4)), 9)
    0.666666667
    """
    return min(_inflow(links, ranks, int(rank)) for rank in ranks)


def _inflow(links: Links, ranks: np.ndarray, sink: int) -> float:
    """Largest rate that reaches one rank from each of the others together. [B/s]"""
    from scipy.optimize import linprog  # slow to import
    from scipy.sparse import csr_array, hstack

    supply = np.zeros(links.nodes)
    supply[ranks] = -1.0
    inner = np.arange(links.nodes) != sink
    matrix = hstack([_incidence(links)[inner], csr_array(supply[inner, None])]).tocsr()
    scale = float(links.bandwidth.max())
    most = np.append(links.bandwidth / scale, np.inf)
    cost, none = np.zeros(len(most)), np.zeros(matrix.shape[0])
    cost[-1] = -1.0
    solved = linprog(cost, A_eq=matrix, b_eq=none, bounds=np.stack([np.zeros(len(most)), most], -1))
    return float(solved.x[-1]) * scale if solved.status == 0 else 0.0


def _incidence(links: Links) -> Any:
    """Flow that leaves each node less what enters it, for each link: a sparse matrix (nodes, links)."""
    from scipy.sparse import csr_array

    number = np.arange(len(links.source))
    rows, columns = np.concatenate([links.source, links.target]), np.concatenate([number, number])
    signs = np.concatenate([np.ones(len(number)), -np.ones(len(number))])
    return csr_array((signs, (rows, columns)), shape=(links.nodes, len(number)))


def exchange_rate(links: Links, ranks: np.ndarray) -> float:
    r"""Largest rate at which each rank can send to each other rank data of its own, all pairs at once. [B/s]

    .. math:: y = \max\{y : \text{flows of } y \text{ for all ordered pairs within the bandwidths}\}

    Source: F. Shahrokhi and D. W. Matula, "The maximum concurrent flow problem", J. ACM 37(2), 1990,
    doi:10.1145/77600.77620.

    Four ranks around a switch with 3 B/s each way: a third to each of the others.

    >>> star = Links(5, np.array([0, 1, 2, 3, 4, 4, 4, 4]), np.array([4, 4, 4, 4, 0, 1, 2, 3]), 3.0 * np.ones(8),
    ...              np.zeros(8))
    >>> round(exchange_rate(star, np.arange(4)), 9)
    1.0
    """
    from scipy.optimize import linprog  # slow to import
    from scipy.sparse import block_diag, csr_array, hstack

    incidence, edges, many = _incidence(links), len(links.source), len(ranks)
    demand = []
    for rank in ranks:
        wanted = np.zeros(links.nodes)
        wanted[ranks] = 1.0
        wanted[rank] = 1.0 - many
        demand.append(wanted)
    balance = hstack([block_diag([incidence] * many), csr_array(np.concatenate(demand)[:, None])]).tocsr()
    scale = float(links.bandwidth.max())
    shared = hstack([*([csr_array(np.eye(edges))] * many), csr_array((edges, 1))]).tocsr()
    cost = np.zeros(edges * many + 1)
    cost[-1] = -1.0
    solved = linprog(
        cost, A_eq=balance, b_eq=np.zeros(balance.shape[0]), A_ub=shared, b_ub=links.bandwidth / scale, bounds=(0, None)
    )
    return float(solved.x[-1]) * scale if solved.status == 0 else 0.0


def path_latencies(links: Links) -> Array:
    """Least latency from each node to each other, infinite without a path, (nodes, nodes). [s]

    By definition, with the algorithm of Floyd and Warshall.
    """
    length = np.full((links.nodes, links.nodes), np.inf)
    np.fill_diagonal(length, 0.0)
    np.minimum.at(length, (links.source, links.target), links.latency)
    for middle in range(links.nodes):
        length = np.minimum(length, length[:, middle, None] + length[None, middle])
    return length


def route_loads(links: Links, pairs: np.ndarray, amounts: Array) -> Array:
    """Load of each link if pairs of nodes (pairs, 2) send ``amounts`` by their paths of fewest links, (links,).

    Equal paths share the amount equally at each node (equal-cost multipath routing, RFC 2992).
    """
    hops = path_latencies(links._replace(latency=np.ones(len(links.source))))
    loads = np.zeros(len(links.source))
    for (first, last), amount in zip(pairs.tolist(), amounts.tolist(), strict=True):
        here = np.zeros(links.nodes)
        here[first] = amount
        nearer = hops[links.target, last] < hops[links.source, last] - _EVEN
        nearer &= np.isfinite(hops[links.source, last])
        ways = np.bincount(links.source[nearer], minlength=links.nodes)
        for distance in np.unique(hops[np.isfinite(hops[:, last]), last])[::-1]:
            moving = nearer & (hops[links.source, last] == distance) & (here[links.source] > 0.0)
            sent = np.where(moving, here[links.source] / np.maximum(ways[links.source], 1), 0.0)
            loads += sent
            here[np.unique(links.source[moving])] = 0.0
            np.add.at(here, links.target, sent)
    return loads


def max_min_rates(bandwidth: np.ndarray, loads: np.ndarray) -> Array:
    r"""Rates of jobs (jobs,) that share links max-min fairly: no rate can rise without one that is no larger falling.

    All rates rise together until a link is full; the jobs on it stop, and the others rise on (progressive filling).

    .. math:: \sum_j r_j l_{j e} \le B_e

    Source: D. Bertsekas and R. Gallager, "Data Networks", 2nd ed., Prentice Hall, 1992, section 6.5.2.

    Two jobs on a link of 10 B/s, one of them also on a link of 3 B/s:

    >>> max_min_rates(np.array([10.0, 3.0]), np.array([[1.0, 0.0], [1.0, 1.0]])).tolist()
    [7.0, 3.0]
    """
    rates, rising, left = np.zeros(len(loads)), np.ones(len(loads), dtype=bool), bandwidth.astype(float)
    while rising.any():
        asked = loads[rising].sum(axis=0)
        used = asked > 0.0
        if not used.any():
            rates[rising] = np.inf
            break
        step = np.full(len(left), np.inf)
        step[used] = left[used] / asked[used]
        least = float(step.min())
        rates[rising] += least
        left = np.maximum(left - least * asked, 0.0)
        full = step <= least * (1.0 + _EVEN)
        left[full] = 0.0
        rising &= ~(loads[:, full] > 0.0).any(axis=1)
    return rates
