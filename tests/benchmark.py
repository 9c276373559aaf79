"""Speed of the engine, measured: ``python tests/benchmark.py`` prints the figures of the README.

100,000 seeded training plans go from CSV to Parquet in a process of their own (time and peak memory of the whole
process, imports and reading of the catalog included); then one plan is evaluated in a fresh process.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PLANS = 100_000
SEED = 2024
ONE_PLAN = """
import statistics, sys, time
from xlperf import load_catalog, read_plans
from xlperf.evaluate import evaluate
catalog = load_catalog()
plans = read_plans(sys.argv[1])[0]
times = []
for row in range(200):
    plan = plans.take([row])
    start = time.perf_counter()
    evaluate(plan, catalog)
    times.append(time.perf_counter() - start)
print(times[0], statistics.median(times[1:]))
"""


def write_plans(path: Path, num_plans: int = PLANS, seed: int = SEED) -> None:
    """Write seeded training plans with varied models, degrees and batches; most are legal.

    Parameters
    ----------
    path : Path
        CSV file.
    num_plans : int
        How many.
    seed : int
        Of the random numbers.
    """
    import numpy as np
    import pandas as pd

    from xlperf import load_catalog

    random = np.random.default_rng(seed)
    tables = load_catalog().tables
    attention = tables["models"].text("attention_type").astype(str)
    models = tables["models"].text("model")[np.isin(attention, ["", "MHA", "MQA", "GQA"])]
    accelerators = [name for name in tables["accelerators"].text("accelerator") if str(name).startswith(("A100", "H"))]
    tensor = random.choice([1, 2, 4, 8], num_plans)
    pipeline = random.choice([1, 2, 4, 8], num_plans)
    data = random.choice([1, 2, 4, 8, 16, 32, 64], num_plans)
    micro = random.choice([1, 2, 4], num_plans)
    columns = {
        "name": [f"plan {number}" for number in range(num_plans)],
        "model": random.choice(models, num_plans),
        "accelerator": random.choice(accelerators, num_plans),
        "num_accelerators": tensor * pipeline * data,
        "tensor_parallel": tensor,
        "pipeline_parallel": pipeline,
        "data_parallel": data,
        "micro_batch_size": micro,
        "global_batch_size": data * micro * random.choice([8, 16, 32, 64], num_plans),
        "sequence_length": random.choice([1024, 2048, 4096], num_plans),
        "recompute": random.choice(["none", "selective", "full"], num_plans),
        "zero_stage": random.choice([0, 1], num_plans),
    }
    pd.DataFrame(columns).to_csv(path, index=False)


def timed(*command: str | Path) -> tuple[float, float]:
    """Run a command; its wall-clock time in seconds and its peak memory in bytes."""
    start = time.perf_counter()
    process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return time.perf_counter() - start, usage.ru_maxrss * 1024.0


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        plans, results = Path(folder) / "plans.csv", Path(folder) / "results.parquet"
        write_plans(plans)
        runs = [timed(sys.executable, "-m", "xlperf", "evaluate", plans, "-o", results) for _ in range(3)]
        seconds, peak = statistics.median(run[0] for run in runs), max(run[1] for run in runs)
        print(f"{PLANS:,} training plans, CSV to Parquet: {seconds:.2f} s, peak {peak / 2**20:.0f} MiB")
        cold = [
            subprocess.run([sys.executable, "-c", ONE_PLAN, plans], capture_output=True, text=True, check=True).stdout
            for _ in range(3)
        ]
        first, later = zip(*(map(float, text.split()) for text in cold), strict=True)
        print(f"one plan, first evaluation of a fresh process: {statistics.median(first) * 1e3:.2f} ms")
        print(f"one plan, median of the next 199 different ones: {statistics.median(later) * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
