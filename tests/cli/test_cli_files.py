"""The command line where files or streams fail: files are replaced whole or not at all, one line, no traceback."""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.test_cli import HEADER, ROWS
from conftest import Outcome

Command = Callable[..., Outcome]
STOPPED = "stopped; files are as they were\n"


@pytest.fixture
def plans(tmp_path: Path) -> Path:
    path = tmp_path / "plans.csv"
    path.write_text("\n".join([HEADER, *ROWS, ""]), encoding="utf-8")
    return path


def _started(plans: Path, code: str, output: str = "out.csv") -> subprocess.CompletedProcess[str]:
    """Run ``xlperf evaluate plans.csv -o out.csv`` after some code has changed the process."""
    program = f"{code}\nfrom xlperf.cli import main; main()"
    arguments = ["evaluate", str(plans), "-o", output]
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=plans.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )


def _only(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_killed_half_way_leaves_the_old_file(plans: Path) -> None:
    old = plans.parent / "out.csv"
    old.write_text("old")
    code = "import os, signal, xlperf.base.files as f; f.os.replace = lambda *_: os.kill(os.getpid(), 9)"
    done = _started(plans, code)
    assert done.returncode == -signal.SIGKILL
    assert old.read_text() == "old"


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_interrupted_leaves_no_half_file(plans: Path, name: str, code: int) -> None:
    old = plans.parent / "out.csv"
    old.write_text("old")
    done = _started(
        plans,
        "import os, signal, time, xlperf.base.files as f\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job of the background ignores it
        f"f.os.fsync = lambda *_: (os.kill(os.getpid(), signal.{name}), time.sleep(20))",
    )
    assert (done.returncode, done.stderr) == (code, STOPPED)
    assert old.read_text() == "old"
    assert _only(plans.parent) == ["out.csv", "plans.csv"]


KILL = (
    "import os, signal, sys, time\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "def stop(*_): os.kill(os.getpid(), signal.NAME); time.sleep(0.01)\n"
)
MOMENTS = {
    "as it is imported": (
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name in ('xlperf.cli.app', 'xlperf.cli.output'): stop()\n"
        "sys.meta_path.insert(0, Finder())\n"
    ),
    "as numpy is imported": (
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.startswith('numpy') and name.endswith('multiarray'): stop()\n"
        "sys.meta_path.insert(0, Finder())\n"
    ),
    "as a sheet is written": (
        "import xlperf.workbook.package as part\n"
        "own = part._rows\n"
        "def rows(writer): stop(); return own(writer)\n"
        "part._rows = rows\n"
    ),
    "in a destructor": (
        "import xlperf.base.files as f\n"
        "class Late:\n"
        "    def __del__(self): stop()\n"
        "def fsync(*_):\n"
        "    Late()\n"
        "    time.sleep(1)\n"  # a thread repeats the signal, which ends no sleep
        "f.os.fsync = fsync\n"
    ),
    "twice": "import xlperf.base.files as f\nf.os.fsync = lambda *_: (stop(), stop())\n",
    "as it cleans up": (
        "import pathlib\n"
        "own = pathlib.Path.unlink\n"
        "def unlink(*a, **k): stop(); own(*a, **k)\n"
        "pathlib.Path.unlink = unlink\n"
        "import xlperf.base.files as f\nf.os.fsync = stop\n"
    ),
}


@pytest.mark.parametrize(
    ("moment", "name", "code"),
    [(moment, *(("SIGINT", 130), ("SIGTERM", 143))[at % 2]) for at, moment in enumerate(MOMENTS)],
)
def test_stopped_at_any_moment_ends_in_one_line(plans: Path, moment: str, name: str, code: int) -> None:
    """Issue Cases 28: a workbook being written ended in the traceback of a generator, start-up in that of an import."""
    old = plans.parent / "out.xlsx"
    old.write_text("old")
    done = _started(plans, KILL.replace("NAME", name) + MOMENTS[moment], "out.xlsx")
    assert (done.returncode, done.stderr) == (code, STOPPED)
    assert old.read_text() == "old"
    assert _only(plans.parent) == ["out.xlsx", "plans.csv"]


def test_full_disk_is_one_line(plans: Path) -> None:
    old = plans.parent / "out.csv"
    old.write_text("old")
    done = _started(plans, "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))")
    assert (done.returncode, done.stderr) == (2, "out.csv: file too large\n")
    assert old.read_text() == "old"
    assert _only(plans.parent) == ["out.csv", "plans.csv"]


def test_folder_without_permission_is_one_line(command: Command, plans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied", "/somewhere/.xlperf-0.part.csv")

    monkeypatch.setattr("xlperf.base.files._new_part", refuse)
    monkeypatch.chdir(plans.parent)
    done = command("evaluate", plans, "-o", "out.csv")
    assert (done.code, done.err) == (2, "out.csv: permission denied\n")


def test_output_keeps_permissions_and_links(command: Command, plans: Path) -> None:
    real, link = plans.parent / "real.csv", plans.parent / "out.csv"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    assert command("evaluate", plans, "-o", link).code == 0
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert real.read_text().startswith("name,model")
    fresh = plans.parent / "fresh.csv"
    assert command("evaluate", plans, "-o", fresh).code == 0
    mask = os.umask(0)
    os.umask(mask)
    assert fresh.stat().st_mode & 0o777 == 0o666 & ~mask


def test_reader_that_leaves_is_no_error(plans: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "xlperf", "evaluate", str(plans)],
        stdout=writer,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        timeout=1100,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_progress_is_shown_on_a_terminal_only(plans: Path) -> None:
    main, terminal = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "xlperf", "evaluate", str(plans), "-o", "out.csv"],
        cwd=plans.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=terminal,
        timeout=1100,
        check=False,
    )
    os.close(terminal)
    shown = os.read(main, 10_000).decode()
    os.close(main)
    assert (done.returncode, done.stdout) == (0, b"")
    *moved, last = re.split(r"\r(?!\n)", shown)
    sentence = " ".join(last.split())  # folded at the width of the terminal
    assert sentence.startswith("out.csv: 3 of 4 plans legal: data parallel must be") and "\n" not in "".join(moved)
    assert not moved or (moved[-1].isspace() and all(line.startswith("plans evaluated: ") for line in moved[1:-1]))


def test_parquet_without_pyarrow_says_what_to_install(
    command: Command, plans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = command("evaluate", plans, "-o", plans.parent / "out.parquet")
    assert (done.code, done.err) == (2, "pyarrow: is not installed, Parquet needs it: pip install pyarrow\n")
    assert _only(plans.parent) == ["plans.csv"]


@pytest.mark.parametrize("experts", ["", "  num_experts .................................... 64\n"])
def test_a_log_whose_model_the_catalog_lacks_becomes_a_better_launch_line(
    command: Command, tmp_path: Path, experts: str
) -> None:
    """The hint of diagnose and of launch is the command that makes the row, as pasted."""
    arguments = {
        "add_bias_linear": False, "ffn_hidden_size": 1792, "global_batch_size": 64, "group_query_attention": True,
        "hidden_size": 512, "kv_lora_rank": 32, "micro_batch_size": 8, "moe_router_topk": 1,
        "multi_latent_attention": False, "normalization": "RMSNorm", "num_attention_heads": 4, "num_layers": 24,
        "num_query_groups": 1, "padded_vocab_size": 128256, "position_embedding_type": "rope", "seq_length": 2048,
        "swiglu": True, "untie_embeddings_and_output_weights": True, "world_size": 8,
    }  # fmt: skip
    step = " iteration {:8d}/ 40000 | elapsed time per iteration (ms): {} | global batch size:    64 |\n"
    log, models, better = (tmp_path / name for name in ("a train.log", "models.csv", "better.csv"))
    lines = [f"  {name} {'.' * (48 - len(name))} {value}\n" for name, value in arguments.items()]
    log.write_text("".join([*lines, experts, *(step.format(count, 600) for count in range(1, 20))]))
    given = ("--set", "accelerator=H100")
    hints = {command("diagnose", log, *given).err, command("launch", "--read", log, *given).err}
    assert len(hints) == 1
    pasted = shlex.split(hints.pop().partition("its row with xlperf ")[2].partition(" and --catalog")[0])
    assert pasted[:3] == ["add", "model", str(log)] and pasted[-1] == "models.csv"
    assert command(*pasted[:-1], models).code == 0
    assert command("diagnose", log, *given, "--catalog", models, "-o", better).code == 0
    assert "--vocab-size 128256" in command("launch", better, "--catalog", models).out
    assert ",a train," in command("launch", "--read", log, *given, "--catalog", models).out
