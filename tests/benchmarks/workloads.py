"""Work that ``python tests/benchmarks --against COMMIT`` repeats in both trees, each in a process of its own.

``python workloads.py FOLDER [--memory]`` runs with the tree on ``PYTHONPATH``: it uses only names that every commit
promises (``read_plans``, ``xlperf.engine.evaluate``, ``xlperf.cli.run``) and the plan files that
:func:`against.write_plans` wrote into FOLDER. It prints a line of JSON: the processor time of each workload [s], or
its peak memory [B], and the processor time of a calibration of fixed work in numpy and in Python [s].
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np

BLOCKS = ("training", "static", "continuous", "disaggregated", "under-targets")
SINGLE = ("training", "static", "continuous", "under-targets")
COMMANDS = {
    "search": ["search", "search.csv", "-o", "search_results.csv"],
    "serve": "serve --model Qwen3-235B-A22B --accelerator H100 --users 1000 --speed-per-user 30".split(),
    "sweep of a catalog": [
        "evaluate", "train.csv", "--vary", "accelerators.memory bandwidth=x0.9..x1..x1.1", "--samples", "5000",
        "--processes", "1", "-o", "sweep_results.csv",
    ],
    "explain": ["explain", "train.csv"],
    "file to file": ["evaluate", "training.csv", "--processes", "1", "-o", "training_results.csv"],
}  # fmt: skip


def calibration() -> float:
    """Processor time of work of fixed size, about half of it in numpy and half in Python. [s]"""
    start = time.process_time()
    column = np.linspace(1.0, 2.0, 2000)
    for _ in range(6000):
        column = np.sqrt(column * column + 1e-9)
    names = {f"plan {number}": number for number in range(100_000)}
    total = sum(names[f"plan {number}"] for number in range(0, 100_000, 2))
    assert total == 2_499_950_000
    return time.process_time() - start


def command(*arguments: str) -> None:
    """Run a command in this process, silently."""
    from xlperf.cli import run

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        code = run(arguments)
    if code != 0:
        raise RuntimeError(f"xlperf {' '.join(arguments)} ended with {code}: {errors.getvalue()}")


def workloads() -> dict[str, Callable[[], object]]:
    """Actions by name; the first one of a process includes imports and reading of the catalog."""
    actions: dict[str, Callable[[], object]] = {"first plan of a process": first_plan}
    for mode in BLOCKS:
        actions[f"{mode} block"] = lambda mode=mode: evaluate(f"{mode}.csv")
    for mode in SINGLE:
        actions[f"{mode}, one by one"] = lambda mode=mode: one_by_one(f"{mode}.csv")
    for name, arguments in COMMANDS.items():
        actions[name] = lambda arguments=arguments: command(*arguments)
    return actions


def evaluate(path: str, rows: slice = slice(None)) -> None:
    """Evaluate plans of a file."""
    from xlperf import load_catalog, read_plans
    from xlperf.engine import evaluate

    (plans,) = read_plans(path)
    evaluate(plans.take(np.arange(len(plans))[rows]), load_catalog())


def first_plan() -> None:
    """Evaluate the first training plan."""
    evaluate("train.csv")


def one_by_one(path: str, number: int = 40) -> None:
    """Evaluate plans of a file one after the other."""
    from xlperf import load_catalog, read_plans
    from xlperf.engine import evaluate

    (plans,), catalog = read_plans(path), load_catalog()
    for row in range(number):
        evaluate(plans.take([row]), catalog)


def main() -> None:
    """Run every workload once and print the figures."""
    memory = "--memory" in sys.argv
    figures: dict[str, float] = {"calibration": min(calibration() for _ in range(3))}
    for name, action in workloads().items():
        if memory:
            tracemalloc.start()
        start = time.process_time()
        action()
        figures[name] = time.process_time() - start
        if memory:
            figures[name] = float(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    print(json.dumps(figures))


if __name__ == "__main__":
    import os

    os.chdir(Path(sys.argv[1]))
    main()
