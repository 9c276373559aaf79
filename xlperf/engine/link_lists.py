"""Networks that a cell lists link by link: of a single operation, or the innermost tier of a network of the catalog."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.base.units import UNITS
from xlperf.catalog.table import Table
from xlperf.equations.network.link_lists import Links, Listed, group_rate, number_of_list, path_latencies
from xlperf.equations.network.topologies import SWITCH, Network

MOST_RANKS = 64
"""Ranks of a list: an all-to-all of them is a linear programme of seconds. [-]"""
_DIGITS = re.compile(r"(\d+)", re.ASCII)
_ENDS = re.compile(r"[;\n]")


class _Named(NamedTuple):
    """A list of links with its nodes by name; nodes whose name begins with s or S are switches."""

    listed: Listed
    names: tuple[str, ...]


@lru_cache(64)
def _read(text: str) -> _Named | str:
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
    links = Links(len(names), source, target, bandwidths * UNITS["GB/s"].factor, latencies * UNITS["us"].factor)
    ranks = sorted((name for name in names if name[:1] not in "sS"), key=_by_number)
    return _Named(Listed(links, np.array([names[name] for name in ranks], dtype=np.int64)), tuple(names))


def _by_number(name: str) -> list[tuple[int, str]]:
    """Key of the order of ranks: g2 before g10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(name)]


@lru_cache(256)
def listed_number(text: str, places: float, tier: int) -> float:
    """Number of the list of links of a tier; ValueError if it is wrong. Its latencies are in hops, of a link or of the
    longest path through switches, which the latency of the tier scales.
    """
    named = _read(text)
    if tier > 0:
        raise ValueError("is a list of links, which only the innermost tier can be")
    if isinstance(named, str):
        raise ValueError(f"is a list of links in dimensions: {named}")
    links, ranks = named.listed
    if len(ranks) != places:
        raise ValueError(f"lists the links of {len(ranks)} ranks, but joins {places:g}")
    if len(ranks) > MOST_RANKS:
        raise ValueError(f"lists the links of {len(ranks)} ranks; {MOST_RANKS} are the most")
    given = links if links.latency.max() > 0.0 else links._replace(latency=np.ones(len(links.latency)))
    paths = path_latencies(given)[np.ix_(ranks, ranks)]
    if not np.isfinite(paths).all():
        raise ValueError("is a list of links that does not connect all ranks")
    hop = paths.max() if named.listed.is_switched else given.latency.max()
    return number_of_list(Listed(given._replace(latency=given.latency / hop), ranks))


def _chosen(listed: Listed, group: int, stride: int) -> np.ndarray | str:
    """Nodes of the ranks of a group: each stride-th one in the order of the list."""
    ranks = listed.ranks[: group * stride : stride]
    if len(ranks) < group:
        return f"lists {len(listed.ranks)} ranks, fewer than the {group} of the group at a stride of {stride}"
    if group > MOST_RANKS:
        return f"has a group of {group} ranks; {MOST_RANKS} are the most"
    if not np.isfinite(path_latencies(listed.links)[np.ix_(ranks, ranks)]).all():
        return "does not connect the ranks of the group"
    return ranks


def _others(listed: _Named, text: str) -> list[np.ndarray] | str:
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


@lru_cache(256)
def _equivalent(text: str, group: int, stride: int, operation: str, beside: str) -> tuple[float, float] | str:
    """Bandwidth and latency of a link to a switch on which the operation takes as long as on the list. [B/s, s]"""
    named = _read(text)
    if isinstance(named, str):
        return named
    ranks, others = _chosen(named.listed, group, stride), _others(named, beside)
    if isinstance(ranks, str):
        return ranks
    if isinstance(others, str):
        return others
    bandwidth, latency = group_rate(named.listed, ranks, operation, others)
    return bandwidth, latency / max(group - 1.0, 1.0)


def listed_network(operations: Table, operation: str, network: Network) -> Network:
    """Networks of operations; a list of links replaces the tiers of its row. InputError for a wrong list."""
    texts, beside, faults = operations.text("links").tolist(), operations.text("beside").tolist(), []
    columns = {field.name: getattr(network, field.name).copy() for field in fields(Network)}
    plain = {
        "topology": SWITCH,
        "in_network_reduction": 0.0,
        "listed": np.nan,
        "num_rings": 0.0,
        "first_length": 1.0,
        "second_length": 1.0,
        "third_length": 1.0,
        "num_links": 1.0,
    }
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
