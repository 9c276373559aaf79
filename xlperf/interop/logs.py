"""Logs of runs, benchmark results and traces: step times, kernel times by class, and the plan that a log states.

Traces of requests say which tokens come again, and after how long. A JSON line or a row of CSV is a request. With
``hash_ids`` (Mooncake: timestamps in ms, an identifier for each block of 512 tokens) blocks come again; with a session
its tokens so far do.
"""

from __future__ import annotations

import csv
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xlperf.base.arrays import Array, added
from xlperf.base.errors import Fault, InputError
from xlperf.base.resources import rows, stack_rows
from xlperf.base.units import UNITS
from xlperf.catalog.csv_files import read_text
from xlperf.catalog.schema import mean_of, table_schema
from xlperf.interop.config_rules import Stated
from xlperf.interop.launch_rules import plan_of, stack_defaults
from xlperf.interop.launch_stacks import MOST_TEXT, by_name, candidates_of, flags, stacks
from xlperf.interop.launch_text import REPORT, lined_settings, loaded, log_lines, logged_settings
from xlperf.interop.launch_told import told_by
from xlperf.interop.software import stack_named

CHUNK = 1 << 20  # bytes that are read at a time. [B]
LONGEST_LINE = 1 << 16  # bytes of a line beyond which it is not looked at whole. [B]
MOST_VALUES = 2_000_000  # most values of one kind in memory
WARM_UP, MOST_WARM_UP = 0.1, 20  # share of the iterations at the start that is left out, and the most of them


_NUMBER = (
    r"(?P<number>\d{1,20}+(?:,\d{3})*+(?:\.\d{0,20}+)?+(?:[eE][-+]?\d{1,3}+)?+)"  # 1,024 or 6.859e+03
    r"(?P<suffix>[KMGBT](?![A-Za-z]))?+(?![.,]?\d)"  # 11.4K
)
"""A number as training stacks write it: with separators, an exponent, or the suffix of thousands."""
_SUFFIXES = {b"": 1.0, **{name.upper().encode(): UNITS[name].factor for name in ("k", "M", "G", "T")}}
_SUFFIXES[b"B"] = _SUFFIXES[b"G"]
_STEP_NUMBER = re.compile(rb"(?:\biteration:?\s{1,20}|step:\s{0,9})(\d{1,12})(?![\d.])")
"""Number of the iteration or step that a line belongs to."""
_NO_ROOM = re.compile(rb"OutOfMemoryError|CUDA out of memory|HIP out of memory")
_REPORT, _CLIENT = re.compile(REPORT.encode()), "vLLM and SGLang"
"""Title of a benchmark's report, and the source of the patterns of its lines."""
SETTING, RATE, INVERSE = "setting", "rate", "inverse"
"""How a pattern is used whose number is no result: a column of the plan, FLOP per second of one accelerator, or steps
per second.
"""


class LogValue(NamedTuple):
    """One number of a log, in the unit of its pattern: a result, a column of the plan, or a FLOP rate.

    ``low`` and ``high``: ends of the interval that holds 80 % of the steps. ``pick``: how the log's lines gave it.
    """

    source: str
    result: str
    value: float
    low: float
    high: float
    unit: str
    used: int
    left_out: int
    pick: str = "median"

    @property
    def text(self) -> str:
        """As ``--measured`` takes it: ``step time=381.2 ms``."""
        return f"{self.result}={self.value:.10g} {self.unit}"

    @property
    def words(self) -> str:
        """Origin of the value."""
        shown = f"{self.source}: {self.result} {_shown(self.value)} {self.unit.strip('-')}".rstrip()
        if self.used == 1:
            return shown
        warm = f", {self.left_out} of warm-up left out" if self.left_out else ""
        return f"{shown} ({self.used:,} values{warm}, 80 % from {self.low:.6g} to {self.high:.6g})"


def _shown(value: float) -> str:
    text = f"{value:.6g}"
    return f"{value:,.0f}" if "e+" in text else text


class Log(NamedTuple):
    """Measured results of a log; and plan columns, FLOP rates and step times, to compare with the plan."""

    results: list[LogValue]
    settings: list[LogValue]


def read_log(path: str | Path) -> Log:
    """Measured values of a log: medians over steps after the warm-up; lines of several ranks for one step count once.

    Rates of data-parallel replicas, which a pattern names as its ``part``, add up. Of several reports of a benchmark
    the last one counts. A log that starts in the middle of a run has no warm-up. Of times over requests the mean
    counts, the median or another quantile only without it. InputError if the log has no known result.
    """
    patterns = [
        (row, re.compile(row["pattern"].replace("{number}", _NUMBER).encode())) for row in stack_rows("log_patterns")
    ]
    values, steps, parts = ([array("d") for _ in patterns] for _ in range(3))
    last_step, count = -1.0, 0
    for block in blocks(Path(path)):
        reports = [match.end() for match in _REPORT.finditer(block)]
        count += len(reports)
        marks = [(match.start(), float(match.group(1))) for match in _STEP_NUMBER.finditer(block)]
        places, numbers = np.array([place for place, _ in marks]), [last_step, *(number for _, number in marks)]
        for one, own_steps, own_parts, (row, pattern) in zip(values, steps, parts, patterns, strict=True):
            start = reports[-1] if reports and row["source"] == _CLIENT else 0
            if start:
                del one[:], own_parts[:]
            for place, value, part in _numbers(pattern, block[start:], MOST_VALUES - len(one)):
                one.append(value)
                own_parts.append(part)
                if row["pick"] == "median":
                    own_steps.append(numbers[int(np.searchsorted(places, place, "right"))])
        last_step = numbers[-1]
    results: dict[str, LogValue] = {}
    settings: dict[str, LogValue] = {}
    partial = ""
    for one, own_steps, own_parts, (row, _) in zip(values, steps, parts, patterns, strict=True):
        target = settings if row["pick"] in (SETTING, RATE) else results
        if count > 1 and row["source"] == _CLIENT:
            row = row | {"source": f"{_CLIENT} (last of {count} reports)"}
        highest = max(own_parts, default=0.0)  # replicas are counted from 0: rates add up, sizes may be of all or one
        complete = len({*own_parts}) > highest if row["pick"] == "median" else not highest
        if one and complete and mean_of(row["result"]) not in target:
            target[mean_of(row["result"])] = _sum(row, np.array(one), np.array(own_steps), np.array(own_parts))
        elif one and not complete and row["pick"] == "median":
            partial = f"has {row['result']} of {len({*own_parts})} replicas of {highest + 1:.0f}: their sum takes all"
    if not results:
        names = (name for row, _ in patterns for name in row["source"].partition(" (")[0].split(" and "))
        known = ", ".join(dict.fromkeys(names))
        problem = partial or f"has no step time, throughput or latency of {known}"
        if any(_NO_ROOM.search(block) for block in blocks(Path(path))):
            problem = "ends out of memory without a measured step or request: xlperf evaluate says what the plan needs"
        raise InputError(Fault(Path(path).name, problem))
    return Log(list(results.values()), list(settings.values()))


def _sum(row: dict[str, str], values: np.ndarray, steps: np.ndarray, parts: np.ndarray) -> LogValue:
    """The value of a result, added up over its parts."""
    chosen = [parts == part for part in np.unique(parts)]
    each = [_value(row, values[own], steps[own] if len(steps) else steps) for own in chosen]
    return each[0]._replace(
        value=added(one.value for one in each),
        low=added(one.low for one in each),
        high=added(one.high for one in each),
        used=sum(one.used for one in each),
        left_out=sum(one.left_out for one in each),
    )


def _value(row: dict[str, str], values: np.ndarray, steps: np.ndarray) -> LogValue:
    left_out = 0
    if row["pick"] in ("last", SETTING):
        values = values[-1:]
    elif row["pick"] != "largest":
        values, steps = _per_step(values, steps)
        left_out = _warm_up(steps, len(values))
        values = values[left_out:]
    if row["pick"] == INVERSE:
        values = 1.0 / values
    value = float(values.max() if row["pick"] == "largest" else np.median(values))
    low, high = (float(end) for end in np.quantile(values, (0.1, 0.9)))
    return LogValue(row["source"], row["result"], value, low, high, row["unit"], len(values), left_out, row["pick"])


def _per_step(values: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Median over the lines of each step, in the order of steps; all values if a line names no step."""
    if not len(steps) or (steps < 0.0).any():
        return values, np.zeros(0)
    numbers, first, counts = np.unique(steps, return_index=True, return_counts=True)
    if len(numbers) == len(values):
        return values[first], numbers
    order = np.lexsort((values, steps))
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    middle = [values[order[starts + (counts - 1 + more) // 2]] for more in (0, 1)]
    return (middle[0] + middle[1]) / 2.0, numbers


def _warm_up(steps: np.ndarray, count: int) -> int:
    """Number of steps at the start to leave out: none if the log starts later than a warm-up lasts."""
    if len(steps) > 1 and steps[0] > max(MOST_WARM_UP, steps[1] - steps[0]):
        return 0
    fewest = 1 if len(steps) else 2
    return min(int(np.ceil(WARM_UP * count)), MOST_WARM_UP) if count > fewest else 0


def blocks(path: Path) -> Iterator[bytes]:
    """Parts of a file that end at the end of a line, or at a comma if there are no lines."""
    rest = b""
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            whole, end, after = (rest + chunk).rpartition(b"\n")
            if len(after) > LONGEST_LINE:
                whole, end, after = (rest + chunk).rpartition(b",")
            rest = after[-LONGEST_LINE:]
            yield whole + end
    yield rest


def _numbers(pattern: re.Pattern[bytes], block: bytes, most: int) -> Iterator[tuple[int, float, float]]:
    """Place, value and part of each number above zero that a pattern finds; the part is 0 if no line names one."""
    for _, match in zip(range(most), pattern.finditer(block), strict=False):
        value = float(match["number"].replace(b",", b"")) * _SUFFIXES[match["suffix"] or b""]
        if 0.0 < value < float("inf"):
            yield match.start(), value, float(match.groupdict().get("part") or 0)


COMMUNICATION = "communication"
MOST_KERNELS = 5_000_000  # kernels of a trace at the most
MOST_SUMMARY = 1 << 20  # bytes of a summary by class at the most. [B]
_TEXT = rb'"((?:[^"\\]|\\.){1,4000}+)"'
_TIMES = rb'(?>[^{}]{0,400}?"ts":\s*)([\d.]{1,30}+)(?>[^{}]{0,200}?"dur":\s*)([\d.]{1,30}+)'
_KERNEL = rb'"cat":\s*"(?:kernel|Kernel|gpu_memcpy|gpu_memset)"'
_EVENT = re.compile(
    _KERNEL + rb',\s*"name":\s*' + _TEXT + _TIMES + rb'|"name":\s*' + _TEXT + rb",\s*" + _KERNEL + _TIMES
)
_MS, _US = UNITS["ms"].factor, UNITS["us"].factor
_STEP = re.compile(rb"ProfilerStep#(\d+)")


class Profile(NamedTuple):
    """Times per step by class of kernels, of one accelerator; ``exposed``: messages while nothing else runs. [s]"""

    times: Mapping[str, float]
    exposed: float
    steps: int

    @property
    def computed(self) -> float:
        """Time of all kernels that are no messages. [s]"""
        return added(time for name, time in self.times.items() if name != COMMUNICATION)


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    result = rows("catalog/kernel_classes.csv")
    return tuple((row["class"], re.compile(row["pattern"], re.IGNORECASE)) for row in result)


@cache
def class_of(kernel: str) -> str:
    """Class of a kernel by its name: ``communication``, ``matrix``."""
    return next(name for name, pattern in _patterns() if pattern.search(kernel))


def read_profile(path: str | Path, steps: int | None = None) -> Profile:
    """Kernel times by class of a Chrome or Kineto trace, or of a summary (CSV or JSON: class and ms a step)."""
    source = Path(path)
    classes = {name: code for code, (name, _) in enumerate(_patterns())}
    codes, starts, lengths, seen = array("b"), array("d"), array("d"), set()
    for block in blocks(source):
        seen.update(_STEP.findall(block))
        for event in _EVENT.finditer(block):
            name, start, length = (one for one in event.groups() if one is not None)
            codes.append(classes[class_of(name.decode(errors="replace"))])
            starts.append(_number(start))
            lengths.append(_number(length))
        if len(codes) > MOST_KERNELS:
            raise InputError(Fault(source.name, f"has more than {MOST_KERNELS:,} kernels: profile fewer steps"))
    if not len(codes):
        return _summary(source, steps or 1)
    count = steps or len(seen)
    if not count:
        raise InputError(Fault(source.name, "has no ProfilerStep annotations: give --profile-steps"))
    code, start, length = np.array(codes), _US * np.array(starts), _US * np.array(lengths)
    totals = {name: float(length[code == own].sum()) / count for name, own in classes.items()}
    messages = code == classes[COMMUNICATION]
    whole = _covered(start, length)
    exposed = whole - _covered(start[~messages], length[~messages])
    return Profile({name: time for name, time in totals.items() if time > 0.0}, exposed / count, count)


def _number(digits: bytes) -> float:
    return float(digits) if digits.count(b".") <= 1 and digits.strip(b".") else 0.0


def _covered(start: Array, length: Array) -> float:
    """Length of the union of intervals."""
    if not len(start):
        return 0.0
    order = np.argsort(start, kind="stable")
    begin, end = start[order], (start + length)[order]
    before = np.maximum.accumulate(np.concatenate([[begin[0]], end[:-1]]))
    return float(np.maximum(end - np.maximum(begin, before), 0.0).sum())


def _summary(source: Path, steps: int) -> Profile:
    """A summary by class: ``class,time (ms)`` lines, or a JSON object of class and milliseconds."""
    text = source.read_bytes()[:MOST_SUMMARY].decode(errors="replace")
    result: dict[str, float] = {}
    stated = loaded(text)
    if isinstance(stated, dict):
        pairs = list(stated.items())
    else:
        pairs = [(line[0], line[1]) for line in csv.reader(text.splitlines()[:1000]) if len(line) > 1]
    names = {name for name, _ in _patterns()} | {"exposed"}
    for name, value in pairs:
        plain = str(name).strip().casefold()
        try:
            time = float(value)
        except (TypeError, ValueError):
            continue
        if plain in names and 0.0 <= time < float("inf"):
            result[plain] = result.get(plain, 0.0) + _MS * time / steps
    if not result:
        wanted = ", ".join(name for name, _ in _patterns())
        raise InputError(Fault(source.name, f"is no trace with kernels, nor a summary by class ({wanted}; ms)"))
    exposed = result.pop("exposed", result.get(COMMUNICATION, 0.0))
    return Profile(result, exposed, steps)


_SWITCHED = frozenset({"graphs", "draft_tokens", "two_batch_overlap"})
"""Columns of serving that a flag turns on or off, whose absence from a whole list of arguments means the default."""
_LOAD = ("prompt_length", "output_length", "concurrency")
"""Columns that the report of a client states."""
_ASSUMED = ("software", "num_accelerators", "mode")  # columns that follow from settings missing in a log


class Logged(NamedTuple):
    """Plan columns of a logged run: its stack ("" if unknown), values as in a sheet, columns at the value of a blank
    cell, and quantities for :func:`xlperf.interop.launch_rules.plan_of`.
    """

    stack: str
    columns: Stated
    defaults: frozenset[str]
    quantities: Stated


def beginning(path: str | Path) -> str:
    """The text at the start of a log or a launch file, in which it states its arguments."""
    with Path(path).open(encoding="utf-8", errors="replace") as stream:
        return stream.read(MOST_TEXT)


def read_logged(path: str | Path) -> Logged:
    """The plan that the beginning of a log states."""
    return logged_plan(beginning(path))


_BACKEND = re.compile(r"(?:\bBackend:|\"(?:backend|framework)\":)\s{0,60}\"?([A-Za-z][\w.-]{1,40})")
"""Engine that the client of a benchmark names in its report (SGLang: text; vLLM, SGLang and InferenceX: JSON)."""


def logged_plan(text: str) -> Logged:
    """The plan that a log states: the engine alone of a report that names it, nothing for an unknown text."""
    lines, settings = log_lines(text), logged_settings(text)
    stack = lines.stack
    if not stack:
        named = _BACKEND.search(text)
        engine = stack_named(named[1].casefold()) if named else ""
        given = settings or lined_settings(lines)
        load = plan_of(engine, told_by([[given]], engine).values) if engine in stacks() else {}
        return Logged(engine, {name: load[name] for name in _LOAD if name in load}, frozenset(), {})
    known = by_name(stack)
    stated = {flag.column for one in settings for flag in candidates_of(known, one.name)}
    told = told_by([[settings]], stack).values
    columns = plan_of(stack, told)
    whole = any(row["words"] in text for row in stack_rows("log_evidence") if row["arguments"] == "all")
    if not whole:
        assumed = {column for column, *_ in stack_defaults(stack)} - stated
        columns = {name: value for name, value in columns.items() if name not in assumed}
    columns = {name: value for name, value in columns.items() if name[0] != "@" and name not in _ASSUMED}
    if "num_accelerators" in told:
        columns["num_accelerators"] = told["num_accelerators"]
    if "kv_precision" not in told:  # auto is what the checkpoint says
        columns.pop("kv_precision", None)
    columns |= lines.facts
    known_columns = table_schema(flags(stack)[0].kind).by_name
    possible = {flag.column for flag in flags(stack)} & _SWITCHED if whole else stated & known_columns.keys()
    return Logged(stack, columns, frozenset(possible - columns.keys()), told)


BLOCK = 512.0  # tokens of a block of a Mooncake trace
MOST_BYTES, MOST_REQUESTS = 256 << 20, 500_000
_NAMES = {
    "time": ("timestamp", "time", "time (s)", "timestamp (ms)", "timestamp_ms"),
    "prompt": ("input_length", "prompt tokens", "input_tokens", "prompt_tokens"),
    "output": ("output_length", "output tokens", "output_tokens", "completion_tokens"),
    "session": ("session", "session_id", "conversation_id", "chat_id"),
}
"""Names of the fields of a request in the traces that are published; messages give two, of JSON lines and of CSV."""
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
    lines = read_text(path, "a trace", MOST_BYTES).splitlines()
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
            row = loaded(line)
            if not isinstance(row, dict):
                raise InputError(Fault(f"{path} [line {number}]", "is no JSON object; write a request in each line"))
            yield number, row


def _request(row: Mapping[str, Any], place: str) -> _Request:
    times = next((name for name in _NAMES["time"] if name in row), "")
    time, prompt, output = (_amount(row, field, place) for field in ("time", "prompt", "output"))
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


def _amount(row: Mapping[str, Any], field: str, place: str) -> float:
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
