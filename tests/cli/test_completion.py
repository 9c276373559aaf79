"""Completion in a shell: commands, files, and names of the catalog, of studies, columns and results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def completed(words: str, at: int) -> list[str]:
    environment = {**os.environ, "COMP_WORDS": words, "COMP_CWORD": str(at), "_XLPERF_COMPLETE": "bash_complete"}
    command = [sys.executable, "-m", "xlperf"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1100, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "at", "wanted"),
    [
        ("xlperf sea", 1, {"plain,search"}),
        ("xlperf search pl", 2, {"file,pl"}),
        ("xlperf serve --model deepseek-v3", 3, {"plain,DeepSeek-V3", "plain,DeepSeek-V3.2"}),
        ("xlperf serve --payment o", 3, {"plain,own"}),
        ("xlperf report --study mixed", 3, {"plain,mixed-pools"}),
        ("xlperf search p.csv --vary tensor_p", 4, {"plain,tensor_parallel="}),
        ("xlperf search p.csv --objective tokens_per_second_per_u", 4, {"plain,tokens_per_second_per_user"}),
    ],
)
def test_names_are_completed(words: str, at: int, wanted: set[str]) -> None:
    found = completed(words, at)
    assert wanted <= set(found) and len(found) < 10


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_written_and_removed(shell: str, tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "SHELL": f"/bin/{shell}"}

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "xlperf", *arguments]
        return subprocess.run(
            command, env={**environment, **more}, capture_output=True, text=True, timeout=1100, check=False
        )

    done = run("install", "completion")
    path = Path(done.stdout.partition(": ")[0])
    assert done.returncode == 0 and path.is_relative_to(tmp_path) and "_XLPERF_COMPLETE" in path.read_text()
    assert run("uninstall", "completion").stdout == f"removed: {path}\n" and not path.exists()
    refused = run("install", "completion", SHELL="/bin/ksh")
    assert refused.returncode == 2 and "ksh" in refused.stderr and "bash, zsh, fish" in refused.stderr
