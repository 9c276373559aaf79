"""Plots of text on a terminal: frontier and memory by stage; none where there is no terminal."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Outcome

from xlperf.cli import output

Run = Callable[..., Outcome]
PLANS = (
    "name,model,accelerator,num accelerators,prompt length,output length\n"
    "a,Llama3-8B,H100-SXM-80GB,1,1024,128\nb,Llama3-8B,H200-SXM-141GB,1,1024,128\n"
)
TRAINING = (
    "name,model,accelerator,num accelerators,tensor parallel,pipeline parallel\nt,Llama3-70B,H100-SXM-80GB,32,4,4\n"
)


@pytest.fixture
def plans(tmp_path: Path) -> Path:
    result = tmp_path / "plans.csv"
    result.write_text(PLANS, encoding="utf-8")
    return result


def test_a_frontier_is_drawn_on_a_terminal_with_a_marker_for_each_plan(
    command: Run, plans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = command("search", "--frontier", plans, "--all").out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    drawn = command("search", "--frontier", plans, "--all", "--wide").out
    assert drawn.startswith(plain.rstrip("\n"))
    plot = drawn[len(plain) :].splitlines()
    assert any("token/s of an accelerator over token/s for a user" in line for line in plot)
    assert any("x a, o b" in line or "x b, o a" in line for line in plot)
    inside = [line.partition("\u2524")[2] or line.partition("\u2502")[2] for line in plot]
    assert sum("x" in line for line in inside) > 3 and sum("o" in line for line in inside) > 0
    assert "\x1b" not in drawn


def test_memory_of_each_stage_is_drawn_below_the_operators(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = tmp_path / "plans.csv"
    plans.write_text(TRAINING, encoding="utf-8")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    drawn = command("explain", plans).out
    assert "Memory by stage (GiB): u = used, r = reserved, f = free" in drawn
    stages = ("first stage", "middle stage", "last stage")
    lines = [line.lstrip() for line in drawn.splitlines()]
    used = {words: line.count("u") for line in lines for words in stages if line.startswith(words)}
    assert set(used) == set(stages)
    assert used["first stage"] > used["middle stage"] > 3  # more micro-batches in flight


def test_nothing_is_drawn_without_a_terminal_or_the_library(
    command: Run, plans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Frontier:" not in command("search", "--frontier", plans, "--all").out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setitem(sys.modules, "plotext", None)
    done = command("search", "--frontier", plans)
    assert (done.code, done.err) == (0, "") and "Frontier:" not in done.out


def test_long_work_without_steps_says_for_how_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "_LONG", 0.01)
    with output.working("a study"):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with output.working("a study"):
        time.sleep(0.05)
    said = capsys.readouterr().err
    assert "\ra study, 0 s" in said and said.endswith("\r") and "\n" not in said


def test_a_terminal_is_told_how_long_a_table_took(command: Run, plans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_LONG", 0.0)
    assert command("explain", plans).err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert re.search(r"\d+ operators in [\d.]+ s\n$", command("explain", plans).err)
