"""Laws of ``launch --read`` and files of other people: no text takes long, much memory, or more than a line."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from itertools import permutations
from pathlib import Path
from pkgutil import iter_modules

import pytest

from xlperf import interop

READER = Path(__file__).with_name("hostile_plans.py")
MIB = 1 << 20
LONGEST = 20.0
"""Processor seconds of a text: twenty times what the slowest takes; a quadratic reader takes hours. [s]"""
MOST_MEMORY = 1 << 30
"""Bytes of the process that reads them all. [B]"""


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (4 * MOST_MEMORY, 4 * MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (900, 900))


@pytest.mark.slow
def test_every_reader_is_bounded() -> None:
    """Issue 36, C 27: deep and growing texts end in one line, in bounded processor time and memory."""
    done = subprocess.run(
        [sys.executable, READER], capture_output=True, text=True, preexec_fn=_limited, timeout=1800, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    costs = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(costs) >= 70
    for name, seconds, lines, longest, memory in costs:
        assert seconds < LONGEST, (name, seconds)
        assert lines <= 2 and longest < MIB // 32, (name, lines, longest)
        assert memory * 1024 < MOST_MEMORY, (name, memory)


MODULES = [
    import_module(f"{interop.__name__}.{one.name}")
    for one in iter_modules(interop.__path__)
    if one.name.startswith(("config", "launch"))
]


def patterns() -> Iterator[tuple[str, re.Pattern[str], list[str]]]:
    """Names of patterns, the patterns, and the ways in which they are applied: whole, or anywhere in a text."""
    sources = "".join(Path(str(module.__file__)).read_text() for module in MODULES)
    for module in MODULES:
        for name, value in vars(module).items():
            if isinstance(value, re.Pattern):
                uses = set(re.findall(rf"\b{name}\.(\w+)\(", sources))
                anchored = uses and uses <= {"match", "fullmatch"}
                yield f"{module.__name__.rpartition('.')[2]}.{name}", value, sorted(uses) if anchored else ["search"]


@pytest.mark.parametrize(("pattern", "ways"), [pytest.param(one, ways, id=name) for name, one, ways in patterns()])
def test_every_pattern_is_linear(pattern: re.Pattern[str], ways: list[str]) -> None:
    """The slowest of a pattern's texts, of its own signs alone and in pairs, at 1 MiB (issue 36, C 27)."""

    def seconds(text: str) -> float:
        start = time.process_time()
        for way in ways:
            getattr(pattern, way)(text)
        return time.process_time() - start

    words = re.findall(r"[a-z]{2,12}", pattern.pattern)
    signs = sorted({*re.sub(r"[\\^]|[a-zA-Z0-9]", "", pattern.pattern), "a", "0", " ", "\n", "-a"})[:24]
    units = [*signs, *words[:6], *("".join(pair) for pair in permutations(signs, 2))]
    forms = [form for unit in units for form in ((unit, ""), (unit[-1], unit[0]))]
    unit, before = max(forms, key=lambda form: seconds(form[1] + form[0] * 2_000))
    assert seconds((before + unit * MIB)[:MIB]) < LONGEST, (pattern.pattern, before, unit)


def test_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    """A file of 1 GiB, one line without an end, costs what its first million characters cost."""
    large = tmp_path / "large.sh"
    with large.open("wb") as stream:
        stream.write(b"torchrun --tensor-model-parallel-size ")
        stream.truncate(1 << 30)
    code = (
        "from xlperf.cli import main\n"
        "try: main()\n"
        "finally: print(next(line.split()[1] for line in open('/proc/self/status') if 'VmHWM' in line))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "launch", "--read", large],
        capture_output=True,
        text=True,
        preexec_fn=_limited,
        check=False,
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "more than 1,000,000 characters" in done.stderr
    assert int(done.stdout) * 1024 < MOST_MEMORY // 2
