"""Kernel times by class from a trace of a profiler: ``kernel_classes.csv`` says which kernel is of which class."""

from __future__ import annotations

import csv
import json
import re
from array import array
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError
from xlperf.base.resources import rows
from xlperf.base.units import UNITS
from xlperf.catalog.logs import blocks

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
        return sum(time for name, time in self.times.items() if name != COMMUNICATION)


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
