"""The guide: every command of its pages runs, in order, in one folder."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Outcome

from xlperf.base import resources

Command = Callable[..., Outcome]
PAGES = sorted(path.stem for path in resources.table("guide").glob("*.md"))


def _commands(page: str) -> list[str]:
    text = resources.table(f"guide/{page}.md").read_text(encoding="utf-8")
    return [line for block in re.findall(r"```\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_runs(
    page: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = _commands(page)
    assert len(lines) > 3
    for line in lines:
        name, *arguments = shlex.split(line)
        assert name == "xlperf"
        found = command(*arguments)
        assert found.code == 0, (line, found.err)


def test_the_command_prints_each_page_and_names_the_nearest(command: Command) -> None:
    titles = command("guide").out
    for page in PAGES:
        shown = command("guide", page).out
        assert shown.startswith("# ") and shown[2:].splitlines()[0] in titles
    found = command("guide", "planer")
    assert found.code == 2 and found.err == "guide: no page planer; did you mean planner?\n"
