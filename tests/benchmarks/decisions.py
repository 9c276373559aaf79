"""Choices and uncertainty, measured: long files, sweeps, searches, draws, shadow prices."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks import shadow
from benchmarks.plans import columns_of
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.explore.sweep import Sweep
from xlperf.explore.uncertainty import Uncertainty
from xlperf.explore.vary import LATIN_HYPERCUBE, Sampling, Variation, read_variation

TRAIN = "name,model,accelerator,num accelerators,global batch size,sequence length\n"
SPACES = {
    "GPT3-175B on 64 A100": (
        "g,GPT3-175B,A100-SXM4-80GB,64,64,2048\n",
        ("tensor overlap=none,gradients,all", "pipeline overlap=no,yes", "zero stage=0,1"),
    ),
    "DeepSeek-V3 on 2,048 H100": ("v3,DeepSeek-V3,H100-SXM-80GB,2048,15360,4096\n", ()),
}
SERVE = (
    "name,model,accelerator,num accelerators,prompt length,output length,precision,mode,ttft target,tpot target,"
    "tensor parallel,concurrency,prefill accelerators\n"
    "agg,Qwen3-32B,H200-SXM-141GB,32,4000,1000,fp8,continuous,2000,20,auto,auto,\n"
    "disagg,Qwen3-32B,H200-SXM-141GB,32,4000,1000,fp8,disaggregated,2000,20,auto,auto,auto\n"
)
UNCERTAIN = (
    *(f"accelerators.{name}" for name in (
        "memory bandwidth", "memory capacity", "peak flop rate bf16", "peak flop rate fp32", "peak flop rate tf32",
        "peak flop rate fp8", "peak flop rate int8", "num multiprocessors", "clock rate", "l2 capacity",
        "shared memory capacity", "thermal design power", "die area", "num compute dies",
    )),
    *(f"networks.{name}" for name in ("link bandwidth", "latency", "oversubscription", "size", "tier")),
    "prices.rental price",
)  # fmt: skip
"""Twenty numbers of the sheets that a plan on H100 has."""


class Used(NamedTuple):
    """A finished command: wall-clock and processor time of it and its processes, peak of the largest. [s, s, B]"""

    wall: float
    processor: float
    memory: float


def command(*arguments: str | Path) -> Used:
    """Run ``xlperf`` in a process of its own."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "xlperf", *map(str, arguments)], check=True, capture_output=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return Used(time.perf_counter() - start, processor, used.ru_maxrss * 1024.0)


def long_file(catalog: Catalog, folder: Path, number: int) -> Path:
    """A CSV file with a given number of training plans: 100,000 plans, repeated under other names."""
    import pandas as pd

    frame, path = pd.DataFrame(columns_of(catalog, min(number, 100_000), "training")), folder / "plans.csv"
    with path.open("w", encoding="utf-8") as stream:
        for start in range(0, number, len(frame)):
            frame["name"] = [f"plan {start + row}" for row in range(len(frame))]
            frame.to_csv(stream, index=False, header=start == 0)
    return path


def plan_of(tensor: float, batch: float, accelerator: str = "H100-SXM-80GB"):
    """A training plan."""
    header = ["model", "accelerator", "num accelerators", "tensor parallel", "global batch size"]
    return table_from_rows("training", header, [["Llama3-70B", accelerator, 64, tensor, batch]])


def draws(catalog: Catalog, number: int = 100_000) -> float:
    """Processor time of draws of the cost per token with twenty uncertain inputs. [s]"""
    asked: Variation = read_variation("training", [(name, ["x0.95..x1..x1.05"]) for name in UNCERTAIN], "")
    sweep = Sweep(plan_of(8, 512), catalog, asked.values, asked.varied, Sampling(number, LATIN_HYPERCUBE))
    start = time.process_time()
    assert len(Uncertainty(sweep, "cost").draws)
    return time.process_time() - start


def main(catalog: Catalog, repeats: int, long: int) -> None:
    """Print the figures, medians of the repeats."""

    def shown(what: str, runs: list[Used]) -> None:
        wall, processor = (statistics.median(getattr(run, part) for run in runs) for part in ("wall", "processor"))
        print(f"{what}: {wall:.2f} s wall clock, {processor:.2f} s of all cores, largest process "
              f"{max(run.memory for run in runs) / 2**20:.0f} MiB (medians of {len(runs)})")  # fmt: skip

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plans = folder / "one.csv"
        for what, (row, vary) in SPACES.items():
            plans.write_text(TRAIN + row)
            options = [part for text in vary for part in ("--vary", text)]
            shown(f"search of {what}", [
                command("search", plans, "--mapping", *options, "-o", folder / "best.csv") for _ in range(repeats)
            ])  # fmt: skip
        plans.write_text(SERVE)
        shown("Qwen3-32B FP8 on 32 H200, one pool and two", [
            command("search", plans, "--mapping", "-o", folder / "best.csv") for _ in range(repeats)
        ])  # fmt: skip
        print(f"100,000 draws with 20 inputs: {min(draws(catalog) for _ in range(repeats)):.2f} s of processor time")
        print(*shadow.report(catalog, 200, 17), sep="\n")
        plans.write_text(TRAIN + "m,Llama3-70B,H100-SXM-80GB,64,512,4096\n")
        wide = ("--vary", "accelerators.memory bandwidth=2..8", "--samples", str(long), "--result", "cost")
        for processes in (1, 2):
            shown(f"sweep of {long:,} samples, {processes} processes", [
                command("evaluate", plans, *wide, "--processes", processes, "-o", folder / "sweep.parquet")
            ])  # fmt: skip
        source = long_file(catalog, folder, long)
        for ending in ("parquet", "csv"):
            shown(f"{long:,} plans, CSV to {ending}", [command("evaluate", source, "-o", folder / f"out.{ending}")])
