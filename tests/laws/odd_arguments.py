"""Odd arguments for every worksheet function: cells come back, never a traceback or an "internal error".

Call n of a seed is always the same. ``tests/laws/test_mutations.py`` makes some thousands; a longer run, and one call
alone:

    python tests/laws/odd_arguments.py --number 100000 --jobs 2
    python tests/laws/odd_arguments.py --call 4711
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import decimal
import fractions
import io
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
import unicodedata
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

SECONDS = 20.0
"""Processor time of a call at most. [s]"""
CELLS: list[Any] = [
    None, None, "", " ", 0, 0.0, -0.0, 1, 1.0, 2, 8, 64, 0.5, -1, -1e308, 1e308, 1e-320, 10**400, -(10**400), 2**53 + 1,
    math.nan, math.inf, -math.inf, True, False, "8", "8.5", "1_000", "\u0661", "nan", "inf", "auto", "x", "#N/A",
    "#REF!",
    "Err:502", "a\ud800b", "\x1b[2J", "\u202e", "a\nb", "x" * 5000, "=1+1", "Llama3-8B", "H100-SXM-80GB", "model",
    "name",
    "accelerator", "num accelerators", "prompt length", "step time", "step_time", "tpot", "cost", "poisson", "placed",
    "xlperf:000000000000000000000000", "xlperf:", "yes", "bf16", decimal.Decimal("8"), decimal.Decimal("NaN"),
    decimal.Decimal("1e999"), datetime.datetime(2024, 1, 1), datetime.datetime(1899, 12, 30, 12), datetime.date(9999,
    12, 31),
    datetime.time(1), datetime.timedelta(days=1), fractions.Fraction(1, 3), complex(1, 2), b"\xff", [], {}, [[1, 2],
    [3]],
    [["a"]], {"error": "#N/A"}, (1, 2), np.float64(8), np.int64(8), np.bool_(True), np.nan, object, Exception("x"),
]  # fmt: skip
TRAINING = [["model", "Llama3-8B"], ["accelerator", "H100-SXM-80GB"], ["num accelerators", 8], ["tensor parallel", 2]]
SERVING = [*TRAINING, ["prompt length", 1000], ["output length", 100], ["batch size", 4]]
DESIGN = [["chiplet", "a"], ["package", "CoWoS-S"], ["node", "N5"], ["num dies", 2], ["module area (mm2)", 800]]
SERVER = [["server", "a"], ["accelerator", "H100-SXM-80GB"], ["accelerator price", 30000], ["server price", 300000]]
ACCELERATORS = [
    ["accelerator", "generation", "peak flop rate bf16 (TFLOP/s)", "memory capacity (GiB)", "memory bandwidth (TB/s)",
     "thermal design power (W)", "default network", "kind", "source", "year"],
    ["H100", "hopper", 989, 79.65, 3.35, 700, "DGX-H100", "datasheet", "datasheet", 2022],
]  # fmt: skip
RESULTS = ["step time", "name, step time", "tpot", "reason", [["step time", "mfu"]], "nothing", 0, None]
VARY = [[["tensor parallel", 1, 2]], [["concurrency", 1, 8]], [["precision", "bf16", "fp8"]], [["x", 1]], None]


@cache
def _good(name: str) -> list[list[list[Any]]]:
    """Blocks that a kind of argument is made for."""
    cards = {
        "design": [DESIGN],
        "server": [SERVER],
        "device": [[["device", "a"], ["node", "N5"]]],
        "table": [ACCELERATORS],
    }
    return cards.get(
        name,
        [
            TRAINING,
            SERVING,
            [list(row) for row in zip(*TRAINING, strict=True)],
            [list(row) for row in zip(*SERVING, strict=True)],
        ],
    )


def odd_cell(rng: random.Random) -> Any:
    """One value."""
    way = rng.randrange(10)
    if way == 0:
        return rng.uniform(-1e3, 1e3)
    if way == 1:
        return "".join(
            chr(rng.choice([rng.randrange(1, 128), rng.randrange(0xD7F0, 0xE010), rng.randrange(128, 0x3000)]))
            for _ in range(rng.randrange(12))
        )
    return rng.choice(CELLS)


def odd_block(rng: random.Random) -> list[Any]:
    """Rows of any lengths, or what is not even a row among them."""
    rows: list[Any] = [[odd_cell(rng) for _ in range(rng.randrange(5))] for _ in range(rng.randrange(5))]
    if rng.random() < 0.2 and rows:
        rows[rng.randrange(len(rows))] = odd_cell(rng)
    return rows


def spoilt(rng: random.Random, block: list[list[Any]]) -> list[list[Any]]:
    """A good block with something changed in it."""
    rows = [list(row) for row in block]
    for _ in range(rng.choice([0, 0, 1, 1, 2, 4])):
        row = rng.randrange(len(rows))
        column = rng.randrange(len(rows[row])) if rows[row] else 0
        way = rng.randrange(8)
        if way < 4 and rows[row]:
            rows[row][column] = odd_cell(rng)
        elif way == 4 and rows[row]:
            del rows[row][column]
        elif way == 5:
            rows[row].insert(column, odd_cell(rng))
        elif way == 6:
            rows.insert(row, rng.choice([[], list(rows[row]), [None] * 3]))
        elif len(rows) > 1:
            del rows[row]
    return rows


def with_columns(rng: random.Random, card: list[list[Any]]) -> list[list[Any]]:
    """A card of a plan with more columns, most of them with values that could be meant."""
    from spoilt_files import plausible_value

    from xlperf.catalog.schema import table_schema

    kind = "inference" if any(row[0] == "prompt length" for row in card) else "training"
    columns = rng.choices(table_schema(kind).columns, k=rng.choice([1, 2, 4, 8]))
    stated = {row[0] for row in card}
    return [
        *card,
        *(
            [column.name, plausible_value(rng, column) if rng.random() < 0.9 else odd_cell(rng)]
            for column in dict.fromkeys(columns)
            if column.name.replace("_", " ") not in stated
        ),
    ]


def odd_argument(rng: random.Random, name: str, handle: str) -> Any:
    """An argument that may be what it should be, nearly so, or nothing of the kind."""
    way = rng.randrange(10)
    if way < 8:
        if name in ("plan", "plans") and rng.random() < 0.5:
            return with_columns(rng, rng.choice([TRAINING, SERVING]))
        if name in ("plan", "plans", "design", "server", "device", "table"):
            return spoilt(rng, rng.choice(_good(name)))
        if name == "catalog":
            return rng.choice([None, None, handle, [[handle]], odd_cell(rng)])
        if name == "header":
            return rng.choice([None, None, [[row[0] for row in TRAINING]], odd_block(rng)])
        if name in ("results", "part", "quantity", "objective"):
            return rng.choice(RESULTS)
        if name == "vary":
            return rng.choice(VARY)
        if name == "top":
            return rng.choice([1, 3, None, 2.5, -1, 1e9, 10**400])
        return rng.choice([None, 10, 25.0, 0.1, [[1, 2, 3]], [[1], [2]], [[1, "x"]], "negative binomial"])
    if way == 8:
        return odd_cell(rng)
    return odd_block(rng)


def arguments_of(seed: int, number: int, handle: str) -> tuple[str, list[Any]]:
    """Function and arguments of a call."""
    from xlperf.addin.functions import functions

    rng = random.Random(f"{seed}/{number}")
    name = rng.choice(list(functions()))
    if rng.random() < 0.3:  # the few that are not one result of a plan
        name = rng.choice([one for one, function in functions().items() if function.answer != "value"])
    function = functions()[name]
    given = [odd_argument(rng, argument.name, handle) for argument in function.arguments]
    if function.arguments[-1].repeated:
        given *= rng.choice([0, 1, 1, 2, 3])
    if rng.random() < 0.3:
        given = given[: rng.randrange(len(given) + 1)]
    if rng.random() < 0.05:
        given += [odd_cell(rng) for _ in range(rng.randrange(1, 4))]
    return name, given


def series(seed: int, numbers: range) -> int:
    """Make calls one after the other; how many have a problem."""
    from xlperf.addin.cells import CellError
    from xlperf.addin.handles import CatalogStore
    from xlperf.addin.worker import Session, answer

    bad = 0
    slowest = (0.0, -1)
    seen: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        session = Session(CatalogStore(Path(folder)))
        handle = session.call("XLPERF_CATALOG", [ACCELERATORS])[0][0]
        for number in numbers:
            name, given = arguments_of(seed, number, str(handle))
            start = time.process_time()
            said = io.StringIO()
            problem = ""
            try:
                with contextlib.redirect_stderr(said):
                    rows = session.call(name, given)
                    with contextlib.suppress(TypeError, ValueError):
                        line = json.dumps({"function": name, "arguments": given}).encode()
                        if not isinstance(json.loads(answer(session, line))["rows"], list):
                            problem = "the worker does not answer with rows"
            except BaseException as error:
                problem = f"{type(error).__name__}: {str(error)[:200]}"
            else:
                cells = [cell for row in rows for cell in row]
                if not cells or len({len(row) for row in rows}) != 1:
                    problem = "is no block of cells"
                for cell in cells:
                    seen["errors" if isinstance(cell, CellError) else type(cell).__name__] += 1
                    words = cell.message if isinstance(cell, CellError) else cell
                    if not isinstance(words, (str, float, int)):
                        problem = f"a cell is {type(words).__name__}"
                    elif "internal error" in str(words):
                        problem = str(words)
            last = [
                line.strip()
                for line in said.getvalue().splitlines()
                if line.strip().startswith("File") and "xlperf" in line
            ]
            # The log has the words of an error value, a line for each, with nothing that a terminal would obey.
            other = [
                line
                for line in said.getvalue().splitlines()
                if not line.startswith(f"{name}: ")
                or {unicodedata.category(mark) for mark in line if mark not in "\u200c\u200d"} & {"Cc", "Cf", "Cs"}
            ]
            if other and not problem:
                problem = f"says {other[-1][-200:]!r}"
            took = time.process_time() - start
            slowest = max(slowest, (took, number))
            if took > SECONDS:
                problem = problem or f"takes {took:.0f} s"
            if problem:
                bad += 1
                shown = ", ".join(repr(one)[:150] for one in given)
                print(
                    f"call {number} of seed {seed}: {name}({shown}): {problem} {last[-1] if last else ''}", flush=True
                )
    print(
        f"{len(numbers):,} calls, {bad} with a problem; slowest {slowest[0]:.1f} s (call {slowest[1]}); "
        f"cells {dict(seen)}",
        flush=True,
    )
    return bad


def main() -> int:
    """Make a series of calls, in several processes where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=3000, help="calls")
    parser.add_argument("--first", type=int, default=0, help="number of the first call")
    parser.add_argument("--call", type=int, help="one call alone")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    given = parser.parse_args()
    if given.call is not None:
        return 1 if series(given.seed, range(given.call, given.call + 1)) else 0
    if given.jobs == 1:
        return 1 if series(given.seed, range(given.first, given.first + given.number)) else 0
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
