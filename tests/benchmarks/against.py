"""Compare the speed of this tree with another commit: ``python tests/benchmarks --against COMMIT``.

The commit is checked out into a temporary folder. Both trees run :mod:`benchmarks.workloads` in turns, in fresh
processes, on the same plan files; each figure is processor time, and processor time over that of a calibration in the
same process, so that a busy or slower machine moves both sides alike. On a busy machine the calibration itself varies
by 10 %: a workload is named as slower where both ratios say so.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import processes, workloads
from benchmarks.decisions import TRAIN
from xlperf.catalog.catalog import Catalog

ROOT = Path(__file__).resolve().parents[2]
SLOWER = 1.10  # ratio from which a workload is named as slower
BLOCK, LONG = 2000, 20_000  # plans of a block, and of the file of trainings


def compare(catalog: Catalog, commit: str, turns: int) -> bool:
    """Print the ratio of every workload, new over old; True if none is slower by more than 10 %."""
    with tempfile.TemporaryDirectory() as folder:
        tree, files = Path(folder) / "tree", Path(folder) / "files"
        subprocess.run(["git", "-C", str(ROOT), "worktree", "add", "-q", "--detach", str(tree), commit], check=True)
        try:
            write_plans(catalog, files)
            return _compared(tree, files, commit, turns)
        finally:
            subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(tree)], check=True)


def write_plans(catalog: Catalog, folder: Path) -> None:
    """Write the plan files that the workloads read."""
    folder.mkdir()
    for mode in workloads.BLOCKS:
        processes.written(catalog, folder, mode, LONG if mode == "training" else BLOCK)
    (folder / "train.csv").write_text(TRAIN + "g,Llama3-70B,H100-SXM-80GB,64,256,8192\n")
    header = TRAIN.rstrip("\n") + ",tensor parallel,pipeline parallel,micro batch size\n"
    (folder / "search.csv").write_text(header + "g,GPT3-175B,A100-SXM4-80GB,64,64,2048,auto,auto,auto\n")


def _compared(tree: Path, files: Path, commit: str, turns: int) -> bool:
    trees = {"old": tree, "new": ROOT}
    times: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    for turn in range(turns):
        for name in trees if turn % 2 == 0 else reversed(trees):
            times[name].append(_run(trees[name], files))
    peaks = {name: _run(trees[name], files, "--memory") for name in trees}
    width = max(map(len, times["new"][0]))
    print(f"{turns} turns, median processor time; ratios: this tree over {commit}, plain and each over its calibration")
    print(f"{'':<{width}}  old (s)  new (s)  plain  ratio  memory")
    slower = []
    for workload in times["new"][0]:
        old, new = (statistics.median(run[workload] for run in times[name]) for name in trees)
        if workload == "calibration":
            print(f"{workload:<{width}} {old:>8.3f} {new:>8.3f}")
            continue
        ratio = statistics.median(
            (after[workload] / after["calibration"]) / (before[workload] / before["calibration"])
            for before, after in zip(times["old"], times["new"], strict=True)
        )
        memory, plain = peaks["new"][workload] / peaks["old"][workload], new / old
        late = min(plain, ratio) > SLOWER
        slower += [workload] if late else []
        ratios = f"{plain:>6.2f} {ratio:>6.2f} {memory:>7.2f}"
        print(f"{workload:<{width}} {old:>8.3f} {new:>8.3f} {ratios}{'  SLOWER' if late else ''}")
    print("slower by more than 10 %: " + (", ".join(slower) or "none"))
    return not slower


def _run(tree: Path, files: Path, *options: str) -> dict[str, float]:
    """Figures of one process with the package of a tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": ""}
    script = [sys.executable, str(Path(workloads.__file__)), str(files), *options]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"the workloads failed in {tree}:\n{done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures
