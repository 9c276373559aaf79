"""Whole processes: a table from CSV to Parquet, and the first plan of a fresh process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from benchmarks.plans import columns_of
from xlperf.catalog.catalog import Catalog

FIRST_PLAN = """
import sys, time
from xlperf import load_catalog, read_plans
from xlperf.engine import evaluate
catalog, plan = load_catalog(), read_plans(sys.argv[1])[0].take([0])
start = time.perf_counter()
evaluate(plan, catalog)
print(time.perf_counter() - start)
"""

# A small process in between: the peak memory of a child counts what its parent had when it began.
MEASURED = """
import resource, subprocess, sys, time
start = time.perf_counter()
subprocess.run(sys.argv[1:], check=True, stdin=subprocess.DEVNULL)
wall, used = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
print(wall, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024.0)
"""


class Run(NamedTuple):
    """A finished process: wall-clock time, processor time and peak memory. [s, s, B]"""

    wall: float
    processor: float
    memory: float


def written(catalog: Catalog, folder: Path, mode: str, num_plans: int) -> Path:
    """A CSV file of seeded plans; blank cells are those that a row leaves out."""
    path = folder / f"{mode}.csv"
    pd.DataFrame(columns_of(catalog, num_plans, mode)).to_csv(path, index=False)
    return path


def evaluated(plans: Path) -> Run:
    """``xlperf evaluate`` from the CSV file to Parquet, imports and reading of the catalog included."""
    output = plans.with_suffix(".parquet")
    command = [
        sys.executable,
        "-c",
        MEASURED,
        sys.executable,
        "-m",
        "xlperf",
        "evaluate",
        str(plans),
        "-o",
        str(output),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    return Run(*map(float, done.stdout.split()[-3:]))


def first_plan(plans: Path) -> float:
    """Time of the first evaluation of a fresh process whose catalog is read. [s]"""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_PLAN, str(plans)], capture_output=True, text=True, check=True, timeout=120
    )
    return float(done.stdout)
