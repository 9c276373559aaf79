"""A training log of 100 MB: time and memory of reading it."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from benchmarks.engine import processor_seconds
from xlperf.interop.logs import read_log

SIZE = 100_000_000
"""Bytes of the log. [B]"""
LINE = (
    " [2026-11-20 10:00:00] iteration {:8d}/  500000 | consumed samples: {:12d} | elapsed time per iteration (ms): "
    "{:.1f} | learning rate: 1.0E-05 | global batch size:   512 | lm loss: 9.1E+00 | grad norm: 0.9 |\n"
)


def written(folder: Path, size: int = SIZE) -> Path:
    """A log of Megatron-LM of about that many bytes."""
    path = folder / "train.log"
    once = "".join(LINE.format(step, 512 * step, 20_600.0 + step % 3) for step in range(5_000)).encode()
    with path.open("wb") as stream:
        for _ in range(-(-size // len(once))):
            stream.write(once)
    return path


def read(path: Path, repeats: int) -> tuple[float, float]:
    """Least processor time of reading a log, and the most memory that it takes meanwhile. [s, B]"""
    seconds = min(processor_seconds(lambda: read_log(path)) for _ in range(repeats))
    tracemalloc.start()
    read_log(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return seconds, float(peak)
