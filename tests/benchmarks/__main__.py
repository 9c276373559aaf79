"""Measure speed and print it: ``python tests/benchmarks [--calculon FOLDER] [--peers] [--decisions] [--cells]``.

``python tests/benchmarks --against COMMIT`` compares with another commit instead, workload by workload.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from benchmarks import designs, engine, logs, processes, rival
from benchmarks.plans import SERVING_MODES
from xlperf import load_catalog

MODES = ("training", *SERVING_MODES)
BAR, FRONTIER_BAR, ONE_PLAN_BAR, RATIO_BAR = 50_000.0, 0.3, 3e-3, 100.0
DESIGNS_BAR, LOG_BAR, SPACE_BAR = 3.0, 5.0, 40.0


def verdict(reached: bool, bar: str) -> str:
    """What a bar says of a figure."""
    return f"bar {bar}: {'reached' if reached else 'MISSED'}"


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(prog="python tests/benchmarks", description=__doc__)
    parser.add_argument("--calculon", metavar="FOLDER", type=Path, help="checkout of calculon to run beside xlperf")
    parser.add_argument("--peers", action="store_true", help="accuracy beside GenZ and llm-analysis, where installed")
    parser.add_argument("--cells", action="store_true", help="measure cells in LibreOffice too (takes a minute)")
    parser.add_argument("--plans", metavar="N", type=int, default=65_536, help="plans of a table (default %(default)s)")
    parser.add_argument("--single", metavar="N", type=int, default=200, help="plans one by one (default %(default)s)")
    parser.add_argument("--designs", metavar="N", type=int, default=1_000_000, help="designs (default %(default)s)")
    parser.add_argument("--repeats", metavar="N", type=int, default=5, help="repeats (default %(default)s)")
    parser.add_argument("--decisions", action="store_true", help="measure long files, sweeps, searches and draws too")
    parser.add_argument("--long", metavar="N", type=int, default=1_000_000, help="plans of these (default %(default)s)")
    parser.add_argument("--against", metavar="COMMIT", help="compare speed and memory with this commit, nothing else")
    parser.add_argument("--engine-only", action="store_true", help="leave out what starts processes of its own")
    return parser.parse_args()


def show_engine(options: argparse.Namespace) -> None:
    """Plans per second and core, one plan, the frontier."""
    catalog = load_catalog()
    print(f"engine, one thread, plans never seen: best (median) of {options.repeats} tables of {options.plans:,} plans")
    for mode in MODES:
        found = engine.rate(catalog, mode, options.plans, options.repeats)
        print(
            f"  {mode:<15} {found.best:>9,.0f} ({found.median:,.0f}) plans per second of processor time,"
            f" {found.legal:.1%} legal; {verdict(found.best >= BAR, f'{BAR:,.0f}')}"
        )
    print(f"one plan in a running process: median processor time (least wall clock) of {options.single} different ones")
    for mode in MODES:
        middle, least = engine.one_plan(catalog, mode, options.single)
        bar = verdict(middle < ONE_PLAN_BAR, f"{ONE_PLAN_BAR * 1e3:g} ms")
        print(f"  {mode:<15} {middle * 1e3:>9.2f} ({least * 1e3:.2f}) ms; {bar}")
    points, best, seconds = engine.frontier_points(catalog, options.repeats)
    print(f"frontier of {engine.FRONTIER_MODEL}, {best} of {points:,} points under load: {seconds:.3f} s;", end=" ")
    print(verdict(seconds < FRONTIER_BAR, f"{FRONTIER_BAR} s"))
    seconds, found = designs.costed(catalog, options.designs, options.repeats)
    print(
        f"{options.designs:,} die-and-package designs: {seconds:.2f} s of processor time, {found:.1%} with a cost;",
        end=" ",
    )
    print(verdict(seconds < DESIGNS_BAR, f"{DESIGNS_BAR:g} s"))


def show_processes(num_plans: int = 100_000, repeats: int = 3) -> None:
    """Whole processes."""
    catalog = load_catalog()
    with tempfile.TemporaryDirectory() as folder:
        for mode in ("training", "static", "continuous"):
            plans = processes.written(catalog, Path(folder), mode, num_plans)
            runs = [processes.evaluated(plans) for _ in range(repeats)]
            wall, processor = min(run.wall for run in runs), min(run.processor for run in runs)
            peak = max(run.memory for run in runs) / 2**20
            print(
                f"{num_plans:,} {mode} plans, CSV to Parquet, whole process: {wall:.2f} s wall clock,"
                f" {processor:.2f} s processor, peak {peak:.0f} MiB (least of {repeats})"
            )
            times = [processes.first_plan(plans) for _ in range(repeats)]
            print(f"first {mode} plan of a fresh process: {statistics.median(times) * 1e3:.2f} ms")


def show_log(repeats: int = 3) -> None:
    """A large training log."""
    with tempfile.TemporaryDirectory() as folder:
        seconds, peak = logs.read(logs.written(Path(folder)), repeats)
    print(f"training log of {logs.SIZE / 1e6:.0f} MB: {seconds:.2f} s, peak {peak / 2**20:.0f} MiB;", end=" ")
    print(verdict(seconds < LOG_BAR, f"{LOG_BAR:g} s"))


def show_rival(folder: Path | None, repeats: int) -> None:
    """The Korthikanti configurations on both sides."""
    if folder is None:
        print("calculon: skipped, because no checkout was given (--calculon FOLDER)")
        return
    try:
        theirs = rival.calculon_side(folder, 20, repeats)
    except (ImportError, OSError) as problem:
        print(f"calculon: skipped, because {folder} could not be used: {problem}")
        return
    ours = rival.xlperf_side(load_catalog(), 2048, repeats)
    print("Korthikanti configurations, one core, one process: step time [s] of xlperf and of calculon")
    for name in rival.names():
        print(f"  {name:<22} {ours.step_times[name]:>8.2f} {theirs.step_times[name]:>8.2f}")
    ratio = ours.rate / theirs.rate
    print(
        f"  {ours.rate:,.0f} and {theirs.rate:,.0f} plans per second of processor time: {ratio:,.0f} times;"
        f" {verdict(ratio >= RATIO_BAR, f'{RATIO_BAR:g} times')}"
    )
    space, catalog = rival.calculon_space(folder), load_catalog()
    here = min((rival.xlperf_space(catalog, space) for _ in range(repeats)), key=lambda one: one.processor)
    ratio, number = space.processor / here.processor, len(space.tried)
    print(
        f"GPT-3 175B on 64 A100, calculon's own space without offload: {number:,} configurations tried of"
        f" {space.whole:,}, {space.processor:.1f} s of processor time there, {here.processor:.2f} s for the same"
        f" {number:,} here ({here.distinct:,} distinct, {here.legal:,} legal): {ratio:,.0f} times;"
        f" {verdict(ratio >= SPACE_BAR, f'{SPACE_BAR:g} times')}; best step by xlperf's prediction {here.best:.2f} s,"
        f" of calculon's best {here.theirs:.2f} s: {verdict(here.best <= here.theirs, 'as fast')}"
    )
    tried, seconds, best = rival.xlperf_search(catalog)
    print(f"  search of the same run by its own candidates: {tried:,} plans in {seconds:.2f} s, best step {best:.2f} s")


def main() -> None:
    """Print the figures."""
    options = arguments()
    if options.against is not None:
        from benchmarks import against

        sys.exit(0 if against.compare(load_catalog(), options.against, options.repeats) else 1)
    print(f"Python {platform.python_version()}, {platform.machine()}")
    show_engine(options)
    show_rival(options.calculon, options.repeats)
    if options.peers:
        from benchmarks import peers

        peers.show(load_catalog(), options.calculon)
    if not options.engine_only:
        show_processes()
        show_log()
    if options.decisions:
        from benchmarks import decisions

        decisions.main(load_catalog(), options.repeats, options.long)
    if options.cells:
        from benchmarks import cells

        cells.main()


if __name__ == "__main__":
    main()
