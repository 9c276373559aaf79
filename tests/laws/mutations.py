"""Spoilt files for every command: no traceback, exit code 0, 1 or 2, a line with the file, time and memory bounded.

Case n of a seed is always the same file and command. ``tests/laws/test_mutations.py`` runs 300 of them; a longer run,
and one case alone with its file kept:

    python tests/laws/mutations.py --number 10000 --jobs 2
    python tests/laws/mutations.py --case 4711 --keep FOLDER
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from spoilt_files import PLANS, odd_plans, quiet, shipped, sources, spoilt_csv, spoilt_parquet, spoilt_workbook

SECONDS = 20.0
"""Processor time of a command at most; the slowest takes a tenth of it. [s]"""
ADDRESS_SPACE = 6 * 2**30
RESIDENT = 1.5 * 2**30
"""Memory that the whole series may take. [B]"""
# What no terminal may get: controls but tab and newline, line separators, turns of direction, halves of characters.
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

# --- cases ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A spoilt file and a command that is given it; {file}, {plans}, {out} stand for paths."""

    name: str
    content: bytes
    arguments: tuple[str, ...]


ROWS = [
    ("evaluate", "{file}", "-o", "{out}.csv"), ("evaluate", "{file}", "-o", "{out}.csv"), ("evaluate", "{file}"),
    ("evaluate", "{file}", "-o", "{out}.xlsx"), ("evaluate", "{file}", "-o", "{out}.parquet"), ("check", "{file}"),
    ("explain", "{file}"), ("explain", "{file}", "--name", "a"),
    ("evaluate", "{file}", "--vary", "tensor parallel=1,3"), ("search", "--frontier", "{file}", "--points", "3"),
    ("search", "{file}", "--row", "1", "--vary", "tensor parallel=1,2"),
    ("search", "{file}", "--row", "1", "--vary", "num accelerators=8,16", "--target", "memory<=70"), ("cost", "{file}"),
    ("cost", "{file}", "--tornado", "unit cost"), ("chip", "--devices", "{file}"), ("validate", "{file}", "-o", "-"),
]  # fmt: skip
BOOKS = [
    ("check", "{file}"), ("check", "{file}"), ("check", "--text", "{file}"), ("check", "--text", "{file}"),
    *ROWS[:9], ("cost", "{file}"),
    ("evaluate", "{plans}", "--catalog", "{file}"), ("evaluate", "{plans}", "--catalog", "{file}", "-o", "{out}.csv"),
    ("explain", "{plans}", "--catalog", "{file}"), ("chip", "--devices", "{file}"), ("validate", "{file}", "-o", "-"),
    ("search", "--frontier", "{file}", "--points", "2"), ("calibrate", "--catalog", "{file}"),
]  # fmt: skip


def case_of(seed: int, number: int) -> Case:
    """Case ``number`` of a seed."""
    rng = random.Random(f"{seed}/{number}")
    name = rng.choice(list(sources()))
    data = sources()[name]
    if name.endswith(".xlsx"):
        if rng.random() < 0.03:
            name, data = "shipped.xlsx", shipped()
        arguments = rng.choice(BOOKS)
        if name == "recompute.xlsx" and rng.random() < 0.02:
            arguments = ("report", "{file}", "--study", "recompute", "-o", "{out}.xlsx")
        elif name == "small.xlsx" and rng.random() < 0.02:
            arguments = ("report", "{file}", "-o", "{out}.xlsx")
        return Case(name, spoilt_workbook(rng, data), arguments)
    if name.endswith(".parquet"):
        return Case(name, spoilt_parquet(rng, data), rng.choice(ROWS))
    arguments = rng.choice(ROWS)
    if name == "published.csv" and rng.random() < 0.7:
        arguments = ("validate", "{file}", "-o", "-")
    if name == "designs.csv" and rng.random() < 0.7:
        arguments = ("cost", "{file}", "-o", "{out}.csv")
    if name in ("plans.csv", "serving.csv") and rng.random() < 0.5:
        data = odd_plans(rng, data)
        if rng.random() < 0.7:
            return Case(name, data, arguments)
    return Case(name, spoilt_csv(rng, data), arguments)


class OutOfTimeError(BaseException):
    """A command took too long."""


def out_of_time(*_: object) -> None:
    raise OutOfTimeError


def problem_of(case: Case, folder: Path) -> tuple[int | None, str]:
    """Exit code, and what a command does with a case that it must not do; "" where all is well."""
    from xlperf.cli import run

    file, plans, out = folder / case.name, folder / "good.csv", folder / "out"
    file.write_bytes(case.content)
    plans.write_text(PLANS, encoding="utf-8")
    arguments = [word.format(file=file, plans=plans, out=out) for word in case.arguments]
    signal.signal(signal.SIGPROF, out_of_time)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    code: int | None = None
    trouble = ""
    with quiet() as (printed, said):
        try:
            code = run(arguments)
        except OutOfTimeError:
            trouble = f"takes longer than {SECONDS:g} s"
        except BaseException as error:
            frames = traceback.extract_tb(error.__traceback__)
            own = next((frame for frame in reversed(frames) if "/xlperf/" in frame.filename), frames[-1])
            trouble = f"{type(error).__name__}: {str(error)[:200]} at {Path(own.filename).name}:{own.lineno} {own.name}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    return code, trouble or _said(case, folder, code, said.getvalue(), printed.getvalue())


def _said(case: Case, folder: Path, code: int | None, said: bytes, printed: bytes) -> str:
    """What is wrong with the exit code or with what was printed."""
    words, shown = said.decode("utf-8", "replace"), printed.decode("utf-8", "replace")
    if code not in (0, 1, 2):
        return f"exit code {code}"
    if "Traceback" in words or "internal error" in words + shown or "not enough memory" in words:
        return f"says {words[:300]!r}"
    named = [line for line in words.splitlines() if line.startswith((case.name, "good.csv", str(folder), "--"))]
    if code == 2 and not named:
        return f"exit code 2, no line names the file: {words[:300]!r}"
    if code == 2 and len(words) > 200_000:
        return f"says {len(words):,} characters"
    data = case.arguments[0] == "evaluate" or "-" in case.arguments or case.arguments[0] in ("cost", "chip")
    steered = UNPRINTABLE.search(words if data else words + shown)
    if steered:
        return f"prints {steered[0]!r}"
    left = [path.name for path in folder.iterdir() if path.name.startswith(".")]
    return f"leaves {left}" if left else ""


def series(seed: int, numbers: range, keep: str | None) -> int:
    """Run cases one after the other; how many have a problem."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    bad = 0
    slowest = (0.0, -1)
    codes: Counter[int | None] = Counter()
    with tempfile.TemporaryDirectory() as name:
        os.environ["XDG_CACHE_HOME"] = str(Path(name) / "cache")
        sources()
        for number in numbers:
            case = case_of(seed, number)
            with tempfile.TemporaryDirectory(dir=name) as own:
                start = time.process_time()
                code, problem = problem_of(case, Path(own))
                codes[code] += 1
                slowest = max(slowest, (time.process_time() - start, number))
            if problem:
                bad += 1
                print(
                    f"case {number} of seed {seed}: {' '.join(case.arguments)} with {case.name}: {problem}", flush=True
                )
            if keep is not None:
                Path(keep).mkdir(parents=True, exist_ok=True)
                (Path(keep) / case.name).write_bytes(case.content)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
    if sys.platform == "linux":  # ru_maxrss starts from that of the process that started this one
        lines = Path("/proc/self/status").read_text().splitlines()
        memory = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024.0
    if memory > RESIDENT:
        bad += 1
        print(f"the series took {memory / 2**20:,.0f} MiB")
    print(
        f"{len(numbers):,} files, {bad} with a problem; exit codes {dict(codes)}; "
        f"slowest {slowest[0]:.1f} s (case {slowest[1]}); "
        f"{memory / 2**20:,.0f} MiB",
        flush=True,
    )
    return bad


def main() -> int:
    """Run a series, in several processes where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=300, help="cases")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--case", type=int, help="one case alone")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--keep", metavar="FOLDER", help="leave the files there")
    given = parser.parse_args()
    if given.case is not None:
        return 1 if series(given.seed, range(given.case, given.case + 1), given.keep) else 0
    if given.jobs == 1:
        return 1 if series(given.seed, range(given.first, given.first + given.number), given.keep) else 0
    share = -(-given.number // given.jobs)
    started = [
        subprocess.Popen([
            sys.executable, __file__, "--seed", str(given.seed), "--first", str(given.first + start),
            "--number", str(min(share, given.number - start)),
        ])
        for start in range(0, given.number, share)
    ]  # fmt: skip
    return max(abs(process.wait()) for process in started)


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(main())
