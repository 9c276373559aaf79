"""Measured values from training logs and results of serving benchmarks: ``log_patterns.csv`` says what is read."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.base.resources import rows

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
