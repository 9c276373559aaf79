"""What runs leave behind: logs of steps, results of benchmarks, and times of kernels by class from traces."""

from __future__ import annotations

import csv
import json
import re
from array import array
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, added
from xlperf.base.errors import Fault, InputError
from xlperf.base.resources import rows
from xlperf.base.units import UNITS

CHUNK = 1 << 20
"""Bytes that are read at a time. [B]"""
LONGEST_LINE = 1 << 16
"""Bytes of a line beyond which it is not looked at whole. [B]"""
MOST_VALUES = 2_000_000
"""Values of one kind that are kept. [-]"""
WARM_UP, MOST_WARM_UP = 0.1, 20
"""Share of the iterations at the start that is left out, and the most of them. [-]"""


class LogValue(NamedTuple):
    """One result of a log, in the unit of its pattern; ``low`` and ``high``: where 80 % of the iterations lie."""

    source: str
    result: str
    value: float
    low: float
    high: float
    unit: str
    used: int
    left_out: int

    @property
    def text(self) -> str:
        """As ``--measured`` takes it: ``step time=381.2 ms``."""
        return f"{self.result}={self.value:.10g} {self.unit}"

    @property
    def words(self) -> str:
        """Where the value is from."""
        if self.used == 1:
            return f"{self.source}: {self.result} {self.value:.6g} {self.unit}"
        spread = f"80 % from {self.low:.6g} to {self.high:.6g}"
        warm = f", {self.left_out} of warm-up left out" if self.left_out else ""
        return f"{self.source}: {self.result} {self.value:.6g} {self.unit} ({self.used:,} values{warm}, {spread})"


def read_log(path: str | Path) -> list[LogValue]:
    """Measured values of a log: medians after the warm-up, with their spread.

    ``path``: text or JSON of any length; memory does not grow with it. Raises InputError where nothing that is known
    stands in it.
    """
    patterns = [(row, re.compile(row["pattern"].encode())) for row in rows("catalog/log_patterns.csv")]
    found = [array("d") for _ in patterns]
    for block in blocks(Path(path)):
        for values, (_, pattern) in zip(found, patterns, strict=True):
            values.extend(_numbers(pattern, block, MOST_VALUES - len(values)))
    results: dict[str, LogValue] = {}
    for values, (row, _) in zip(found, patterns, strict=True):
        if values and row["result"] not in results:
            results[row["result"]] = _value(row, np.array(values))
    if not results:
        known = ", ".join(dict.fromkeys(row["source"] for row, _ in patterns))
        raise InputError(Fault(Path(path).name, f"has no step time, throughput or latency of {known}"))
    return list(results.values())


def _value(row: dict[str, str], values: np.ndarray) -> LogValue:
    if row["pick"] == "last":
        kept, value = values[-1:], float(values[-1])
    else:
        left_out = min(int(np.ceil(WARM_UP * len(values))), MOST_WARM_UP) if len(values) > 2 else 0
        kept = values if row["pick"] == "largest" else values[left_out:]
        value = float(kept.max() if row["pick"] == "largest" else np.median(kept))
    low, high = (float(end) for end in np.quantile(kept, (0.1, 0.9)))
    left = len(values) - len(kept) if row["pick"] == "median" else 0
    return LogValue(row["source"], row["result"], value, low, high, row["unit"], len(kept), left)


def blocks(path: Path) -> Iterator[bytes]:
    """Parts of a file that end at the end of a line, or at a comma where there are no lines.

    ``path``: any file; memory does not grow with it.
    """
    rest = b""
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            whole, end, after = (rest + chunk).rpartition(b"\n")
            if len(after) > LONGEST_LINE:
                whole, end, after = (rest + chunk).rpartition(b",")
            rest = after[-LONGEST_LINE:]
            yield whole + end
    yield rest


def _numbers(pattern: re.Pattern[bytes], block: bytes, most: int) -> Iterator[float]:
    for _, match in zip(range(most), pattern.finditer(block), strict=False):
        digits = match.group(1).replace(b",", b"")
        if len(digits) < 30 and digits.count(b".") <= 1 and digits.strip(b".0"):
            yield float(digits)


COMMUNICATION = "communication"
MOST_KERNELS = 5_000_000
"""Kernels of a trace at the most. [-]"""
MOST_SUMMARY = 1 << 20
"""Bytes of a summary by class at the most. [B]"""
_TEXT = rb'"((?:[^"\\]|\\.){1,4000})"'
_EVENT = re.compile(
    rb'"cat":\s*"(?:kernel|Kernel|gpu_memcpy|gpu_memset)",\s*"name":\s*' + _TEXT + rb'[^{}]{0,400}?"ts":\s*'
    rb'([\d.]+)[^{}]{0,200}?"dur":\s*([\d.]+)'
    rb"|"
    rb'"name":\s*' + _TEXT + rb',\s*"cat":\s*"(?:kernel|Kernel|gpu_memcpy|gpu_memset)"[^{}]{0,400}?"ts":\s*'
    rb'([\d.]+)[^{}]{0,200}?"dur":\s*([\d.]+)'
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
    found = rows("catalog/kernel_classes.csv")
    return tuple((row["class"], re.compile(row["pattern"], re.IGNORECASE)) for row in found)


@cache
def class_of(kernel: str) -> str:
    """Class of a kernel by its name.

    >>> class_of("ncclDevKernel_AllReduce_Sum_bf16_RING_LL"), class_of("nvjet_tst_128x256_64x4_2x1_v_bz_TNT")
    ('communication', 'matrix')
    """
    return next(name for name, pattern in _patterns() if pattern.search(kernel))


def read_profile(path: str | Path, steps: int | None = None) -> Profile:
    """Kernel times by class of a Chrome or Kineto trace, or of a summary by class (CSV or JSON: class and ms a step).

    ``path``: trace of one accelerator, of any length; memory grows with its kernels only. ``steps``: steps that it
    covers; default: its ``ProfilerStep`` annotations; a summary is of one. Raises InputError where there are no
    kernels, or the number of steps is not to be found.
    """
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
    found: dict[str, float] = {}
    try:
        stated = json.loads(text)
        pairs = list(stated.items()) if isinstance(stated, dict) else []
    except (ValueError, RecursionError):
        pairs = [(line[0], line[1]) for line in csv.reader(text.splitlines()[:1000]) if len(line) > 1]
    names = {name for name, _ in _patterns()} | {"exposed"}
    for name, value in pairs:
        plain = str(name).strip().casefold()
        try:
            time = float(value)
        except (TypeError, ValueError):
            continue
        if plain in names and 0.0 <= time < float("inf"):
            found[plain] = found.get(plain, 0.0) + _MS * time / steps
    if not found:
        wanted = ", ".join(name for name, _ in _patterns())
        raise InputError(Fault(source.name, f"is no trace with kernels, nor a summary by class ({wanted}; ms)"))
    exposed = found.pop("exposed", found.get(COMMUNICATION, 0.0))
    return Profile(found, exposed, steps)
