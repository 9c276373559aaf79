"""The benchmarks run, on few plans: what they print is the one place where speed is claimed from."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.plans import SERVING_MODES

FOLDER = Path(__file__).parent / "benchmarks"


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    nothing = tmp_path_factory.mktemp("nothing")
    options = ("--engine-only", "--plans", "200", "--repeats", "1", "--calculon", str(nothing))
    done = subprocess.run(
        [sys.executable, str(FOLDER), *options], capture_output=True, text=True, timeout=280, check=False, cwd=nothing
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("mode", ("training", *SERVING_MODES))
def test_every_mode_has_a_rate_and_the_time_of_one_plan(printed: str, mode: str) -> None:
    rates = re.findall(
        rf"^ +{mode} +([\d,]+) \(([\d,]+)\) plans per second of processor time, ([\d.]+)% legal", printed, re.M
    )
    assert len(rates) == 1
    best, median, legal = (float(text.replace(",", "")) for text in rates[0])
    assert best >= median > 100.0
    assert legal > 85.0
    assert len(re.findall(rf"^ +{mode} +[\d.]+ \([\d.]+\) ms; bar", printed, re.M)) == 1


def test_the_frontier_has_two_thousand_points(printed: str) -> None:
    assert re.search(r"\d+ of 2,000 points under load: [\d.]+ s", printed)


def test_the_half_without_calculon_says_why_it_was_left_out(printed: str) -> None:
    assert re.search(r"^calculon: skipped, because .+ could not be used: No module named 'calculon'$", printed, re.M)
