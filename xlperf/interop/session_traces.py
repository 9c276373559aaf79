"""Traces of requests: which tokens come again, and after how long.

A JSON line or a row of CSV is a request. With ``hash_ids`` (Mooncake: timestamps in ms, an identifier for each block of
512 tokens) blocks come again; with a session its tokens so far do.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError

BLOCK = 512.0
"""Tokens of a block of a Mooncake trace. [-]"""
MOST_BYTES, MOST_REQUESTS = 256 << 20, 500_000
_NAMES = {
    "time": ("timestamp", "time", "time (s)", "timestamp (ms)", "timestamp_ms"),
    "prompt": ("input_length", "input_tokens", "prompt_tokens", "prompt tokens"),
    "output": ("output_length", "output_tokens", "completion_tokens", "output tokens"),
    "session": ("session", "session_id", "conversation_id", "chat_id"),
}
"""Names of the fields of a request in the traces that are published."""
_COMMON, _MOST_TURNS = 0.05, 64.0
"""A block of more than this share of the requests, and of more requests than a session has turns, is common. [-]"""
_MILLISECONDS = ("timestamp", "timestamp (ms)", "timestamp_ms")


@dataclass(frozen=True)
class Trace:
    """What a trace says of a mean request.

    ``own``, ``new``, ``generated``: tokens that come again, that are new and that are generated. ``first``: prompt of a
    request that continues no session. ``intervals``: sorted times after which tokens come again, ``reused`` the
    tokens up to each of them; ``gaps``: sorted times from a use of tokens to their next one, infinite after the last,
    ``held`` their tokens. Sizes are per request.
    """

    requests: int
    sessions: int
    own: float
    new: float
    first: float
    generated: float
    intervals: Array
    reused: Array
    gaps: Array
    held: Array


@dataclass(frozen=True)
class _Request:
    time: float
    prompt: float
    output: float
    session: str
    blocks: tuple[Any, ...]


def read_trace(path: str) -> Trace:
    """Read a trace; InputError names the line of a fault: a hole, a number that is none, time that runs backwards."""
    requests = list(_requests(Path(path)))
    if not requests:
        raise InputError(Fault(path, "holds no request"))
    uses: list[tuple[float, float]] = []  # time since the last use and tokens
    gaps: list[tuple[float, float]] = []
    seen: dict[Any, tuple[float, float]] = {}  # time of the last use and tokens
    own = new = first = generated = 0.0
    begun = 0
    common = _common(requests)
    for request in requests:
        again, continued = 0.0, False
        for key, tokens, kept in _pieces(request, seen):
            if key in seen:
                interval = request.time - seen[key][0]
                gaps.append((interval, seen[key][1]))
                uses.append((interval, tokens))
                again += tokens
                continued |= key not in common
            seen[key] = request.time, kept
        own, new, generated = own + again, new + request.prompt - again, generated + request.output
        if not continued:
            begun, first = begun + 1, first + request.prompt
    gaps += [(np.inf, kept) for _, kept in seen.values()]
    count = float(len(requests))
    intervals, reused = _sorted(uses, count)
    lasting, held = _sorted(gaps, count)
    return Trace(len(requests), begun, own / count, new / count, first / max(begun, 1), generated / count, intervals,
                 np.cumsum(reused), lasting, held)  # fmt: skip


def _common(requests: list[_Request]) -> set[Any]:
    """Blocks of so many requests that they are no session's own."""
    uses = Counter(key for request in requests for key in request.blocks)
    return {key for key, count in uses.items() if count > max(_COMMON * len(requests), _MOST_TURNS)}


def _sorted(pairs: list[tuple[float, float]], count: float) -> tuple[Array, Array]:
    """Times in order and their tokens per request."""
    times, tokens = np.array(sorted(pairs), dtype=np.float64).reshape(-1, 2).T
    return times, tokens / count


def _pieces(request: _Request, seen: Mapping[Any, tuple[float, float]]) -> Iterator[tuple[Any, float, float]]:
    """Parts of a prompt that come again together: key, tokens that the prompt has of it, tokens kept after it."""
    if not request.blocks:
        before = seen.get(request.session, (0.0, 0.0))[1]
        yield request.session, min(before, request.prompt), request.prompt + request.output
        return
    for number, key in enumerate(request.blocks):
        tokens = min(BLOCK, request.prompt - number * BLOCK)
        yield key, tokens, tokens


def _requests(path: Path) -> Iterator[_Request]:
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise InputError(
                Fault(str(path), f"has {size >> 20} MiB; a trace of {MOST_BYTES >> 20} MiB at most is read")
            )
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(Fault(str(path), f"cannot be read: {error}")) from None
    if len(lines) > MOST_REQUESTS:
        raise InputError(Fault(str(path), f"has {len(lines):,} lines; a trace of {MOST_REQUESTS:,} at most is read"))
    last = -np.inf
    for number, row in _rows(path, lines):
        place = f"{path} [line {number}]"
        request = _request(row, place)
        if request.time < last:
            problem = f"time {request.time:g} s is before {last:g} s of the request above; sort the requests by time"
            raise InputError(Fault(place, problem))
        last = request.time
        yield request


def _rows(path: Path, lines: list[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Fields of each request, with the number of its line."""
    if not (lines and lines[0].lstrip().startswith("{")):
        for number, cells in enumerate(csv.DictReader(lines), start=2):
            yield number, {str(name).strip().casefold(): value for name, value in cells.items()}
        return
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                row: Any = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise InputError(Fault(f"{path} [line {number}]", "is no JSON object; write a request in each line"))
            yield number, row


def _request(row: Mapping[str, Any], place: str) -> _Request:
    times = next((name for name in _NAMES["time"] if name in row), "")
    time, prompt, output = (_number(row, field, place) for field in ("time", "prompt", "output"))
    time /= 1000.0 if times in _MILLISECONDS else 1.0
    blocks = row.get("hash_ids") or ()
    session = next((str(row[name]) for name in _NAMES["session"] if row.get(name) not in (None, "")), "")
    if not blocks and not session:
        raise InputError(Fault(place, "names neither a session nor hash_ids; without one nothing comes again"))
    if blocks and len(blocks) != -(-prompt // BLOCK):
        problem = (
            f"hash_ids has {len(blocks)} blocks, {prompt:,.0f} tokens take {-(-prompt // BLOCK):,.0f} of {BLOCK:.0f}"
        )
        raise InputError(Fault(place, problem))
    return _Request(time, prompt, output, session, tuple(blocks))


def _number(row: Mapping[str, Any], field: str, place: str) -> float:
    names = _NAMES[field]
    stated = next((row[name] for name in names if row.get(name) not in (None, "")), None)
    if stated is None:
        raise InputError(Fault(place, f"has no {field}: give {names[0]} or {names[1]}"))
    try:
        value = float(stated)
    except (TypeError, ValueError):
        value = -1.0
    if not 0.0 <= value < np.inf:
        raise InputError(Fault(place, f"{field} must be a number of at least 0, got {stated!r}"))
    return value
