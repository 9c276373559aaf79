"""Networks as lists of links: the fastest collectives that the links allow, and shares of jobs that use them together.

A link has a bandwidth for each direction. Ranks send and receive; other nodes are switches, which only pass on. The
all-gather is bounded by cuts and reached by trees that fill the links; the all-to-all is a flow of all pairs at once.
A rank outside a group passes data on only if the group is not connected without it, over paths of fewest links.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import count
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


class Listed(NamedTuple):
    """A network that is listed link by link: ranks in their order, and switches."""

    links: Links
    ranks: np.ndarray  # nodes of the ranks

    @property
    def is_switched(self) -> bool:
        """Whether there are switches, so that a ring over all ranks takes one message per rank and step."""
        return len(self.ranks) < self.links.nodes

    @property
    def rank_bandwidth(self) -> float:
        """Largest bandwidth of a rank, all its links together. [B/s]"""
        sums = np.bincount(self.links.source, self.links.bandwidth, self.links.nodes)
        return float(sums[self.ranks].max())


_numbers = count()
_by_number: dict[int, Listed] = {}


def number_of_list(listed: Listed) -> float:
    """Number by which arrays refer to a list of links; each call gives another one. [-]"""
    number = next(_numbers)
    _by_number[number] = listed
    return float(number)


@lru_cache(1 << 14)
def listed_shape(number: float, operation: str, members: int, stride: int) -> tuple[float, float, bool]:
    """Hops of a collective in all groups of a stride at once, its time over the time at the bandwidth of one rank, and
    whether larger groups go tier by tier. [-]
    """
    listed = _by_number[int(number)]
    if operation == "point_to_point":
        return *_shifted(listed, stride), not listed.is_switched
    if members < 2:
        return 0.0, 1.0, not listed.is_switched
    block, ranks = members * stride, listed.ranks
    groups = [
        ranks[first + offset : first + block : stride]
        for first in range(0, max(len(ranks) - block, 0) + 1, block)
        for offset in range(stride)
    ]
    shapes = [
        group_rate(listed, group, operation, [other for other in groups if other is not group]) for group in groups
    ]
    slowest, hops = min(rate for rate, _ in shapes), max(hops for _, hops in shapes)
    return hops, listed.rank_bandwidth / slowest, not listed.is_switched


def _shifted(listed: Listed, distance: int) -> tuple[float, float]:
    """Hops of a message to the rank at a distance, and its slowdown if all ranks send over paths of fewest links."""
    links, ranks = listed.links, listed.ranks
    pairs = np.stack([ranks, np.roll(ranks, -distance)], axis=-1)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    if not len(pairs):
        return 1.0, 1.0
    loads = route_loads(links, pairs, np.ones(len(pairs)))
    hops = float(path_latencies(links)[pairs[:, 0], pairs[:, 1]].max())
    return hops, listed.rank_bandwidth * float((loads / links.bandwidth).max())


def group_rate(listed: Listed, ranks: np.ndarray, operation: str, others: list[np.ndarray]) -> tuple[float, float]:
    """Rate at which each rank of a group sends in a collective beside other groups [B/s], and its hops, in units of the
    latencies of the links. Heuristic for groups that share links: they slow each other down as on paths of fewest
    links.
    """
    if len(ranks) < 2:
        return listed.rank_bandwidth, 0.0
    own = _own_links(listed, ranks)
    links = _part(listed.links, own)
    rate_of = exchange_rate if operation == "all_to_all" else gather_rate
    rate = (len(ranks) - 1.0) * rate_of(links, ranks)
    if others:
        jobs = [ranks, *others]
        loads = np.zeros((len(jobs), len(own)))
        for load, job in zip(loads, jobs, strict=True):
            used = _own_links(listed, job)
            load[used] = route_loads(_part(listed.links, used), *_pairs(job, operation))
        together, alone = (max_min_rates(listed.links.bandwidth, some) for some in (loads, loads[:1]))
        rate *= float(together[0] / alone[0])
    longest = float(path_latencies(links)[np.ix_(ranks, ranks)].max())
    return rate, longest * (len(ranks) - 1.0 if listed.is_switched else 1.0)


def _own_links(listed: Listed, ranks: np.ndarray) -> np.ndarray:
    """Mask of the links that a group uses: all but those of ranks outside it if they connect the group; else those of
    paths of fewest links.
    """
    links = listed.links
    outside = np.setdiff1d(listed.ranks, ranks)
    own = np.asarray(~(np.isin(links.source, outside) | np.isin(links.target, outside)))
    if np.isfinite(path_latencies(_part(links, own))[np.ix_(ranks, ranks)]).all():
        return own
    return route_loads(links, *_pairs(ranks, "all_to_all")) > 0.0


def _part(links: Links, chosen: np.ndarray) -> Links:
    return Links(links.nodes, *(values[chosen] for values in links[1:]))


def _pairs(ranks: np.ndarray, operation: str) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of ranks that send, and bytes of each for a byte of the message: a ring, or everyone to everyone."""
    number = len(ranks)
    if operation == "all_to_all":
        pairs = [(int(a), int(b)) for a in ranks for b in ranks if a != b]
        return np.array(pairs), np.full(len(pairs), 1.0 / number)
    pairs = list(zip(ranks.tolist(), np.roll(ranks, -1).tolist(), strict=True))
    return np.array(pairs), np.full(number, (number - 1.0) / number)


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
