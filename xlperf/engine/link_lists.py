"""Operations on a network that a cell lists link by link, in place of the tiers of a network."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.base.units import UNITS
from xlperf.catalog.table import Table
from xlperf.equations.network.link_lists import (
    Links,
    exchange_rate,
    gather_rate,
    max_min_rates,
    path_latencies,
    route_loads,
)
from xlperf.equations.network.topologies import SWITCH, Network

MOST_RANKS = 64
"""Ranks of a list: an all-to-all of them is a linear programme of seconds. [-]"""
_ENDS = re.compile(r"[;\n]")


class _Listed(NamedTuple):
    """A list of links with its nodes by name; nodes whose name begins with s or S are switches."""

    links: Links
    names: tuple[str, ...]

    @property
    def ranks(self) -> list[int]:
        return [number for number, name in enumerate(self.names) if name[:1] not in "sS"]


@lru_cache(64)
def _read(text: str) -> _Listed | str:
    """The links of a text, or what is wrong with it."""
    names: dict[str, int] = {}
    rows: list[tuple[int, int, float, float]] = []
    for part in _ENDS.split(text):
        words = part.split()
        if not words:
            continue
        try:
            first, second, bandwidth, *rest = words
            numbers = float(bandwidth), float(rest[0]) if rest else 0.0
        except ValueError:
            return f'"{part.strip()}" is no link: write two nodes, GB/s of each direction and us, as "g0 g1 25 1"'
        if len(rest) > 1 or first == second or not 0.0 < numbers[0] < np.inf or not 0.0 <= numbers[1] < np.inf:
            return f'"{part.strip()}" is no link: two nodes, a bandwidth above 0 and a latency of 0 or more'
        one, other = (names.setdefault(name, len(names)) for name in (first, second))
        rows += [(one, other, *numbers), (other, one, *numbers)]
    if not rows:
        return "has no links"
    source, target, bandwidths, latencies = (np.array(column) for column in zip(*rows, strict=True))
    return _Listed(
        Links(len(names), source, target, bandwidths * UNITS["GB/s"].factor, latencies * UNITS["us"].factor),
        tuple(names),
    )


def _chosen(listed: _Listed, group: int, stride: int) -> np.ndarray | str:
    """Nodes of the ranks of a group: each stride-th one in the order of the list."""
    ranks = listed.ranks[: group * stride : stride]
    if len(ranks) < group:
        return f"lists {len(listed.ranks)} ranks, fewer than the {group} of the group at a stride of {stride}"
    if group > MOST_RANKS:
        return f"has a group of {group} ranks; {MOST_RANKS} are the most"
    if not np.isfinite(path_latencies(listed.links)[np.ix_(ranks, ranks)]).all():
        return "does not connect the ranks of the group"
    return np.array(ranks)


def _others(listed: _Listed, text: str) -> list[np.ndarray] | str:
    """Nodes of other jobs that run at the same time."""
    jobs = []
    for part in _ENDS.split(text):
        words = part.split()
        unknown = [word for word in words if word not in listed.names]
        if unknown:
            return f'beside names "{unknown[0]}", which is no node of the links'
        if len(words) == 1:
            return f'beside has a job of one rank ("{words[0]}"), which sends nothing'
        if words:
            jobs.append(np.array([listed.names.index(word) for word in words]))
    return jobs


def _pairs(ranks: np.ndarray, operation: str) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of ranks that send, and bytes of each for a byte of the message: a ring, or everyone to everyone."""
    number = len(ranks)
    if operation == "all_to_all":
        pairs = [(int(a), int(b)) for a in ranks for b in ranks if a != b]
        return np.array(pairs), np.full(len(pairs), 1.0 / number)
    pairs = list(zip(ranks.tolist(), np.roll(ranks, -1).tolist(), strict=True))
    return np.array(pairs), np.full(number, (number - 1.0) / number)


def _share(links: Links, jobs: list[np.ndarray], operation: str) -> float:
    """Rate of the first job beside the others over its rate alone, on paths of fewest links. [-]"""
    loads = np.array([route_loads(links, *_pairs(ranks, operation)) for ranks in jobs])
    together, alone = max_min_rates(links.bandwidth, loads), max_min_rates(links.bandwidth, loads[:1])
    return float(together[0] / alone[0])


@lru_cache(256)
def _equivalent(text: str, group: int, stride: int, operation: str, beside: str) -> tuple[float, float] | str:
    """Bandwidth and latency of a link to a switch on which the operation takes as long as on the list. [B/s, s]"""
    listed = _read(text)
    if isinstance(listed, str):
        return listed
    ranks, others = _chosen(listed, group, stride), _others(listed, beside)
    if isinstance(ranks, str):
        return ranks
    if isinstance(others, str):
        return others
    if group == 1:
        return float(listed.links.bandwidth.max()), 0.0
    if operation == "all_to_all":
        bandwidth = (group - 1.0) * exchange_rate(listed.links, ranks)
    else:
        bandwidth = (group - 1.0) * gather_rate(listed.links, ranks)
    if others:
        bandwidth *= _share(listed.links, [ranks, *others], operation)
    longest = float(path_latencies(listed.links)[np.ix_(ranks, ranks)].max())
    hops = group - 1.0 if len(listed.ranks) < len(listed.names) else 1.0
    return bandwidth, hops * longest / (group - 1.0)


def listed_network(operations: Table, operation: str, network: Network) -> Network:
    """Networks of operations; a list of links replaces the tiers of its row. InputError for a wrong list."""
    texts, beside, faults = operations.text("links").tolist(), operations.text("beside").tolist(), []
    columns = {field.name: getattr(network, field.name).copy() for field in fields(Network)}
    plain = {"topology": SWITCH, "in_network_reduction": 0.0, "links_per_peer": np.nan, "num_rings": 0.0,
             "first_length": 1.0, "second_length": 1.0, "third_length": 1.0, "num_links": 1.0}  # fmt: skip
    group, stride = operations.number("group"), operations.filled("stride")
    for row, text in enumerate(texts):
        if not text:
            if beside[row]:
                faults.append(Fault(operations.place(row, "beside"), "beside needs links, which the jobs share"))
            continue
        found = _equivalent(str(text), int(group[row]), int(stride[row]), operation, str(beside[row]))
        if isinstance(found, str):
            faults.append(Fault(operations.place(row, "links"), f"links: {found}"))
            continue
        for name, value in {**plain, "size": group[row]}.items():
            columns[name][row] = value
        columns["link_bandwidth"][row], columns["latency"][row] = found
    if faults:
        raise InputError(faults)
    return replace(network, **columns)
