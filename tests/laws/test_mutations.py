"""Spoilt files and odd arguments: a command or function answers in a line or a cell, whatever it is given.

The longer runs: ``python tests/laws/mutations.py --number 10000 --jobs 2`` and
``python tests/laws/odd_arguments.py --number 100000 --jobs 2``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


def _series(script: str, number: int) -> str:
    done = subprocess.run(
        [sys.executable, HERE / script, "--number", str(number)],
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def test_a_hundred_spoilt_files() -> None:
    words = _series("mutations.py", 100)
    assert words.startswith("100 files, 0 with a problem; ")
    codes = words.partition("exit codes ")[2]
    assert "0: " in codes and "2: " in codes  # some files are still good enough


def test_a_thousand_odd_arguments() -> None:
    words = _series("odd_arguments.py", 1000)
    assert words.startswith("1,000 calls, 0 with a problem; ")
    assert "'float': " in words and "'errors': " in words
