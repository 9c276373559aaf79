"""The oldest releases that pyproject.toml allows, in an environment of their own: commands work, all can be installed.

Issue Cases 25: with numpy 2.0.0 ``uncertainty`` ended in a traceback; beside it no pandas of the stated floor installs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from places import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TRAIN = "name,model,accelerator,num accelerators,tensor parallel\na,Llama3-70B,H100-SXM-80GB,64,8\n"
SERVE = (
    "name,model,accelerator,num accelerators,tensor parallel,prompt length,output length,concurrency\n"
    "s,Llama3-70B,H100-SXM-80GB,8,8,1000,200,16\n"
)
COMMANDS = (
    "evaluate s.csv -o s_out.xlsx",
    "explain t.csv",
    "uncertainty t.csv --result cost --vary prices.rental_price=x0.7..x1..x1.5",
    "uncertainty s.csv --result tpot --vary accelerators.memory_bandwidth=normal:x1:0.1 --draws 200",
    "search t.csv --vary tensor_parallel=4,8 -o best.csv",
    "sweep s.csv --vary accelerators.memory_bandwidth=x1,x2 --vary calibration.gemm.launch_time=x1,x3 -o sweep.csv",
    "solve s.csv --vary concurrency=1..64 --target tpot<=30",
    "worth t.csv",
    "cost t.csv",
    "serve --model Llama3-8B --accelerator H100 --users 100",
    "check",
    "report t.csv -o report.xlsx",
    "new study.xlsx",
)


def floors(requirements: list[str]) -> list[str]:
    """Requirements at the oldest release that each allows."""
    result = [re.fullmatch(r"([\w.-]+)>=([\d.]+)(?:,<[\d.]+)?", one) for one in requirements]
    assert all(result), requirements
    return [f"{one[1]}=={one[2]}" for one in result if one]


def pip(python: str | Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Install into the environment of an interpreter, from wheels alone."""
    line = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install", "-q"]
    line += ["--only-binary=:all:", "--no-compile", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=1100, check=False)


@pytest.fixture(scope="module")
def floor(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python with the floors of what xlperf depends on."""
    asked = floors(PROJECT["dependencies"])
    numpy = next(one for one in asked if one.startswith("numpy=="))
    folder = tmp_path_factory.mktemp("floors")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True, timeout=1100)
    python = folder / "venv" / "bin" / "python"
    installed = pip(python, *asked)
    if installed.returncode and pip(sys.executable, "--dry-run", "--ignore-installed", "--no-deps", numpy).returncode:
        pytest.skip(f"no package index is reachable that has {numpy} for this Python")
    assert installed.returncode == 0, installed.stderr
    (folder / "t.csv").write_text(TRAIN)
    (folder / "s.csv").write_text(SERVE)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "error::RuntimeWarning,error::FutureWarning",
    }

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(python), *arguments], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=1100, check=False,
        )  # fmt: skip

    return run


@pytest.mark.slow
def test_commands_work_with_the_oldest_releases(floor: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """All in one process, which imports them once."""
    code = "import sys\nfrom xlperf.cli import run\n"
    code += "for line in sys.argv[1:]: print(line, run(line.split()), file=sys.stderr)"
    done = floor("-c", code, *COMMANDS)
    assert done.returncode == 0, done.stderr
    assert [line for line in COMMANDS if f"{line} 0" not in done.stderr.splitlines()] == [], done.stderr
    assert "Warning" not in done.stderr


@pytest.mark.slow
def test_the_oldest_releases_of_all_extras_can_be_installed_together(
    floor: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """What pip would install beside the floors that are there, without doing so."""
    extras = PROJECT["optional-dependencies"]
    asked = [*PROJECT["dependencies"], *(one for name in extras if name != "test" for one in extras[name])]
    python = floor("-c", "import sys; print(sys.executable)").stdout.strip()
    done = pip(python, "--dry-run", *floors(asked))
    assert done.returncode == 0, done.stderr
