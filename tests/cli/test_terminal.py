"""What a terminal shows beside tables: how long work takes."""

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


@pytest.fixture
def plans(tmp_path: Path) -> Path:
    result = tmp_path / "plans.csv"
    result.write_text(PLANS, encoding="utf-8")
    return result


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
