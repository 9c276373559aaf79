"""Settings and facts in the lines of a log: flags of its stack, and columns of the run that was logged.

``log_settings.csv`` has a pattern for each line of a stack's start or of a benchmark's report. A setting becomes a
column of the plan. A fact, whose name starts with ``=``, holds for the logged run alone: it rules causes out and
contradicts plans.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from math import prod
from typing import NamedTuple

from xlperf.base.resources import stack_rows

_CLIENT_ONLY = "serving"
"""Stack of the report of a benchmark that does not name its engine."""
_TITAN = {
    "pp": "--parallelism.pipeline_parallel_degree", "cp": "--parallelism.context_parallel_degree",
    "tp": "--parallelism.tensor_parallel_degree", "ep": "--parallelism.expert_parallel_degree",
    "dp_replicate": "--parallelism.data_parallel_replicate_degree",
    "dp_shard": "--parallelism.data_parallel_shard_degree",
}  # fmt: skip
_RANKS = ("pp", "dp_replicate", "dp_shard", "dp", "cp", "tp")
_MESH = re.compile(r"Building \d-D device mesh with \[([^\]\n]{1,200})\], \[([\d, ]{1,100})\]")
_DEGREES = re.compile(r"device mesh with parallelism: ((?:\w{1,20}=\d{1,6}(?:, )?){1,12})")
_CLIENT = re.compile(r"\bNamespace\(([^\n]{1,20000})")
_PAIR = re.compile(r"\b([a-z][a-z_]{1,40})=('[^'\n]{0,300}'|[\w.]{1,40})")
_COUNTED = {
    name: re.compile(rf"{words}:\s{{1,60}}(\d{{1,12}})")
    for name, words in (("requests", "Successful requests"), ("isl", "Total input tokens"),
                        ("osl", "Total generated tokens"))
}  # fmt: skip


class LogLines(NamedTuple):
    """Settings of a log by the names of its stack's flags, and facts by column.

    ``stack``: "" if a benchmark does not name its engine, or the text is no log.
    """

    stack: str
    settings: Mapping[str, str]
    facts: Mapping[str, str]


@cache
def _patterns() -> tuple[tuple[frozenset[str], re.Pattern[str], str, str], ...]:
    result = stack_rows("log_settings")
    return tuple(
        (frozenset(row["stack"].split()), re.compile(row["pattern"]), row["setting"], row["value"]) for row in result
    )


def log_lines(text: str) -> LogLines:
    """Settings and facts of the lines of a log; none for a text that is no log of a known stack.

    >>> log_lines("[titan] INFO - Model llama3 8B size: 8,030,261,248 total parameters").settings["--model.flavor"]
    '8B'
    """
    evidence = [row for row in stack_rows("log_evidence") if row["words"] in text]
    stack = next((row["stack"] for row in evidence if row["stack"] != _CLIENT_ONLY), "")
    settings: dict[str, str] = {}
    facts: dict[str, str] = {}
    if evidence:
        reported = any(row["client_report"] and row["stack"] in (stack or _CLIENT_ONLY) for row in evidence)
        kinds = {stack, *((_CLIENT_ONLY,) if reported else ())}
        for own, pattern, name, value in _patterns():
            match = pattern.search(text) if kinds & own else None
            if match is None:
                continue
            stated = _stated(match, value)
            target, key = (facts, name[1:]) if name.startswith("=") else (settings, name)
            if stated not in ("", "None"):
                target.setdefault(key, stated)
        settings |= dict(_mesh(text)) if stack == "torchtitan" else {}
        settings |= dict(_client(text)) if reported else {}
    return LogLines(stack, settings, facts)


def _stated(match: re.Match[str], value: str) -> str:
    if value == "#":
        return str(len(re.findall(r"\d+", match[1])))
    if value == "%":
        return f"{float(match[1]) / 100.0:.6g}"
    return value or match[1]


def _mesh(text: str) -> Iterator[tuple[str, str]]:
    """Degrees of torchtitan's device mesh, and the ranks of all of them."""
    mesh, stated = _MESH.search(text), _DEGREES.search(text)
    if mesh:
        names, sizes = re.findall(r"\w+", mesh[1]), re.findall(r"\d+", mesh[2])
        degrees = dict(zip(names, map(int, sizes), strict=False))
    elif stated:
        degrees = {name: int(size) for name, size in re.findall(r"(\w+)=(\d+)", stated[1])}
    else:
        return
    yield "--nproc_per_node", str(prod(degrees.get(name, 1) for name in _RANKS))
    yield from ((flag, str(degrees[name])) for name, flag in _TITAN.items() if degrees.get(name, 1) > 1)


def _client(text: str) -> Iterator[tuple[str, str]]:
    """Mean lengths and load of a benchmark's client."""
    counted = {name: pattern.search(text) for name, pattern in _COUNTED.items()}
    requests = counted.pop("requests")
    if requests and float(requests[1]) > 0.0:
        yield from ((name, f"{float(one[1]) / float(requests[1]):.6g}") for name, one in counted.items() if one)
    client = _CLIENT.search(text)
    pairs = {name: value.strip("'") for name, value in _PAIR.findall(client[1])} if client else {}
    if pairs.get("max_concurrency", "None") != "None":
        yield "max_concurrency", pairs["max_concurrency"]
    if pairs.get("request_rate", "inf") != "inf":
        yield "--request-rate", pairs["request_rate"]
