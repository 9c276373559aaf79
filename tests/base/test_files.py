"""Files: no input is ever an output, what is replaced keeps its owner and mode, what a killed command leaves goes."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from conftest import Outcome

from xlperf.base.errors import printable
from xlperf.base.files import replaced, scratch_folder
from xlperf.base.resources import template, workbook
from xlperf.catalog.catalog import cache_tables, cached_tables
from xlperf.catalog.read import read_catalog_tables
from xlperf.catalog.schema import FORMS, table_schema
from xlperf.cli.app import cli
from xlperf.cli.command import Command, EditedFile, InputFile, OutputFile

Run = Callable[..., Outcome]
PLANS = "name,model,accelerator,num accelerators,tensor parallel\nfirst,Llama3-70B,H100-SXM-80GB,64,8\n"
ROOT = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs another user's file")


# --- no input is ever an output ------------------------------------------------------------------------------------

NOT_FILES = {
    *"name sheet study tornado owner limits vary targets autos leave_out date accelerator objective".split(),
    *"measured before wanted result like parameters folder python wheel scheduler given".split(),
    *"objectives uncertain against topic words kind url pyodide".split(),
    *(column.name for name in (*FORMS, "operations") for column in table_schema(name).columns),
}
"""Parameters of commands that hold text and name no file."""


def spelling(command: click.Command) -> list[str]:
    """Words of the command line that choose a task whose required options are given."""
    (name,) = (name for name, known in cli.tasks().items() if known is command)
    return {"evaluate --vary": ["evaluate"], "search --target": ["search", "--least"]}.get(name, name.split())


def parameters(kind: type[click.ParamType]) -> Iterator[tuple[click.Command, click.Parameter]]:
    for command in cli.tasks().values():
        for parameter in command.params:
            if isinstance(parameter.type, kind):
                yield command, parameter


def test_every_parameter_that_names_a_file_says_so() -> None:
    """A new parameter is a number, a flag, one of the three kinds of files, or stands above as text that is none."""
    kinds = (InputFile, OutputFile, EditedFile)
    for command in cli.tasks().values():
        assert isinstance(command, Command), command.name
        for parameter in command.params:
            others = (
                click.types.BoolParamType,
                click.types.IntParamType,
                click.IntRange,
                click.FloatRange,
                click.Choice,
            )
            known = isinstance(parameter.type, (*kinds, *others)) or parameter.name in NOT_FILES
            assert known, f"{command.name} {parameter.name}: InputFile, OutputFile, EditedFile, or text that is none?"
            if "--output" in parameter.opts or parameter.name in ("catalog", "measurements"):
                assert isinstance(parameter.type, kinds)


def same_file(path: Path, how: str) -> Path:
    """Another name of a file."""
    other = path.parent / "sub" / f"other{path.suffix}"
    other.parent.mkdir(exist_ok=True)
    if how == "link":
        other.symlink_to(path)
    elif how == "hard link":
        os.link(path, other)
    else:
        return other.parent / ".." / path.name
    return other


PAIRS = [
    pytest.param(command, output, source, id=f"{command.name}-{output.name}-{source.name}")
    for kind in (OutputFile, EditedFile)
    for command, output in parameters(kind)
    for other, source in parameters(InputFile)
    if other is command
]


@pytest.mark.parametrize("how", ["path", "link", "hard link"])
@pytest.mark.parametrize(("taken", "output", "source"), PAIRS)
def test_no_input_of_any_command_is_its_output(
    taken: click.Command, output: click.Parameter, source: click.Parameter, how: str, tmp_path: Path, command: Run
) -> None:
    """Every pair of an input and an output of every command, found by their types: whatever is in the file."""
    endings = [ending for ending in getattr(output.type, "suffixes", (".csv",)) if ending != "-"]
    file = tmp_path / f"input{endings[0]}"
    file.write_bytes(b"whole")
    named, given = {id(output): str(file), id(source): str(same_file(file, how))}, list[str]()
    for parameter in taken.params:
        value = named.get(id(parameter))
        if value is None and isinstance(parameter, click.Argument) and parameter.required:
            choice = isinstance(parameter.type, click.Choice)
            value = parameter.type.choices[0] if choice else str(tmp_path / "none.csv")
        if value is None and parameter.required:
            value = "x<=1" if parameter.name == "targets" else "tensor parallel=1"
        if value is not None:
            given += [value] if isinstance(parameter, click.Argument) else [parameter.opts[-1], value]
    done = command(*spelling(taken), *given)
    assert (done.code, done.err) == (2, f"{file}: is the input; give the output another name\n")
    assert file.read_bytes() == b"whole"


def test_pairs_are_found() -> None:
    """The test above is none where nothing has these types."""
    named = {(param.values[0].name, param.values[1].name, param.values[2].name) for param in PAIRS}
    commands = {"evaluate", "report", "search", "explain", "device", "cost", "frontier", "sweep", "solve", "optimise"}
    assert {(name, "output", "catalog") for name in (*commands, "validate", "calibrate")} <= named
    assert {("calibrate", "output", "measurements"), ("validate", "readme", "files")} <= named


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("report", ["-o", workbook()]),
        ("report", ["--study", "recompute", "-o", template("studies") / "recompute.xlsx"]),
        ("calibrate", ["-o", workbook("validation.xlsx")]),
        ("new", [workbook(), "--force"]),
        ("new", [template("report.xlsx"), "--force"]),
    ],
)
def test_files_that_xlperf_ships_are_no_outputs(name: str, given: list[Any], command: Run) -> None:
    path = next(one for one in given if isinstance(one, Path))
    before = path.read_bytes()
    done = command(name, *given)
    assert done.code == 2
    assert done.err == f"{path}: comes with xlperf, which reads it; give the output another name\n"
    assert path.read_bytes() == before


def test_two_outputs_are_two_files(tmp_path: Path, command: Run) -> None:
    both = tmp_path / "both.csv"
    both.write_text("text")
    done = command("validate", "-o", both, "--readme", both)
    assert (done.code, done.err) == (2, f"{both}: is named for two outputs; give one of them another name\n")
    assert both.read_text() == "text"


@pytest.mark.parametrize(
    "redirected", ["- -o plans.csv < plans.csv", "plans.csv >> plans.csv", "- <plans.csv >>plans.csv"]
)
def test_redirected_streams_are_inputs_and_outputs(redirected: str, tmp_path: Path) -> None:
    plans = tmp_path / "plans.csv"
    plans.write_text(PLANS)
    line = f"exec {sys.executable} -m xlperf evaluate {redirected}"
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, timeout=1100, check=False)
    assert (done.returncode, plans.read_text()) == (2, PLANS)
    assert done.stderr.decode().endswith(": is the input; give the output another name\n")


# --- what stands at the output -------------------------------------------------------------------------------------


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("kind", ["pipe", "device", "socket"])
def test_what_is_no_regular_file_is_not_replaced(kind: str, linked: bool, tmp_path: Path, command: Run) -> None:
    import socket

    path = tmp_path / "out.csv"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to(os.devnull)
    else:
        with socket.socket(socket.AF_UNIX) as server:
            os.chdir(tmp_path)
            server.bind("out.csv")
    if linked:
        (tmp_path / "link.csv").symlink_to(path)
        path = tmp_path / "link.csv"
    (tmp_path / "plans.csv").write_text(PLANS)
    before = os.stat(path)
    done = command("evaluate", tmp_path / "plans.csv", "-o", path)
    assert (done.code, done.err) == (2, f"{path}: is a {kind}; give the name of a regular file\n")
    with pytest.raises(OSError, match=f"is a {kind}"), replaced(path) as temporary:
        temporary.write_text("lost")
    assert os.stat(path)[:3] == before[:3]
    assert sorted(entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")) == []


def test_a_link_to_a_file_stays_one_and_the_file_is_replaced(tmp_path: Path, command: Run) -> None:
    (tmp_path / "plans.csv").write_text(PLANS)
    (tmp_path / "sub").mkdir()
    real, link = tmp_path / "sub" / "real.csv", tmp_path / "link.csv"
    real.write_text("old")
    link.symlink_to("sub/real.csv")
    assert command("evaluate", tmp_path / "plans.csv", "-o", link).code == 0
    assert link.is_symlink() and real.read_text().startswith("name,")
    real.unlink()  # a link that leads nowhere makes the file that it names
    assert command("evaluate", tmp_path / "plans.csv", "-o", link).code == 0
    assert link.is_symlink() and real.read_text().startswith("name,")


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o604])
def test_a_file_that_is_replaced_keeps_its_mode(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("old")
    path.chmod(mode)
    with replaced(path) as temporary:
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o600  # nobody reads what is not finished
        temporary.write_text("new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", mode)


@ROOT
def test_a_file_that_is_replaced_keeps_its_owner_and_group(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("old")
    os.chown(path, 12345, 54321)
    path.chmod(0o4640)
    with replaced(path) as temporary:
        temporary.write_text("new")
    status = path.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (12345, 54321, 0o4640)


@ROOT
def test_the_file_of_another_user_is_not_taken_from_him(tmp_path: Path) -> None:
    """Who may write the folder, but is not root, cannot keep the owner of a file in it."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    path = folder / "out.csv"
    path.write_text("old")
    for parent in (tmp_path, *tmp_path.parents):
        if parent.owner() == "root" and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)  # pytest's folders are root's alone
    line = (
        "import os,sys; from xlperf.base.files import replaced\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        f"try:\n with replaced({str(path)!r}) as t: t.write_text('new')\n"
        "except OSError as e: print(e.strerror)"
    )
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, timeout=1100, check=False)
    assert done.stdout == "belongs to another user, who would no longer own it; give another name\n", done.stderr
    assert (path.read_text(), path.stat().st_uid) == ("old", 0)
    assert list(folder.iterdir()) == [path]


@pytest.mark.parametrize("mask", [0o777, 0o277, 0o022, 0o077])
def test_a_new_file_can_be_read_and_written_by_its_owner(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        with replaced(tmp_path / "new.csv") as temporary:
            temporary.write_text("new")
        tables, _ = read_catalog_tables(workbook(), required=False)
        folder = tmp_path / "cache"
        os.umask(0o022 if mask & 0o700 else mask)
        folder.mkdir(mode=0o700)
        os.umask(mask)
        cache_tables(workbook(), tables, folder)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new.csv").stat().st_mode) == 0o600 | (0o666 & ~mask)
    assert len(cached_tables(workbook(), folder) or ()) == len(tables)


# --- what is kept of the shipped workbook --------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["file", "folder"])
@pytest.mark.parametrize("how", ["group", "everybody", pytest.param("owner", marks=ROOT)])
def test_what_somebody_else_may_have_written_is_not_believed(what: str, how: str, tmp_path: Path) -> None:
    tables, _ = read_catalog_tables(workbook(), required=False)
    folder = tmp_path / "cache"
    cache_tables(workbook(), tables, folder)
    assert cached_tables(workbook(), folder) is not None
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(folder.stat().st_mode) == 0o700
    forged = file if what == "file" else folder
    if how == "owner":
        os.chown(forged, 12345, -1)
    else:
        forged.chmod(forged.stat().st_mode | (0o020 if how == "group" else 0o002))
    assert cached_tables(workbook(), folder) is None
    cache_tables(workbook(), tables, folder)  # a file is made anew; a folder of others gets nothing
    assert (cached_tables(workbook(), folder) is not None) is (what == "file")


# --- what a killed command leaves ----------------------------------------------------------------------------------


def leftovers(*folders: Path) -> list[str]:
    """Names that are no result: unfinished parts and folders, wherever they lie."""
    result = [str(path) for folder in folders for path in folder.rglob("*")]
    return [name for name in result if "xlperf-" in name or "openpyxl" in name or name.endswith(".tmp")]


def test_what_a_dead_writer_left_goes_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    dead = tmp_path / ".xlperf-0123456789abcdef.part.csv"
    dead.write_text("half")
    (tmp_path / ".xlperf-notes.csv").write_text("a user's own")
    with replaced(tmp_path / "a.csv") as living:
        living.write_text("a")
        with replaced(tmp_path / "b.csv") as other:
            assert not dead.exists() and living.exists()
            other.write_text("b")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".xlperf-notes.csv", "a.csv", "b.csv"]


def test_folders_of_the_dead_go_and_those_of_the_living_and_of_users_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead, own = tmp_path / "xlperf-0123456789abcdef.scratch", tmp_path / "xlperf-results"
    for folder in (dead, own):
        folder.mkdir()
        (folder / "file").write_text("text")
    with scratch_folder() as living, scratch_folder() as other:
        assert living.is_dir() and other.is_dir() and living != other
        assert not dead.exists()
    assert list(tmp_path.iterdir()) == [own]


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".csv", ".xlsx"])
def test_killed_at_a_random_moment(ending: str, tmp_path: Path) -> None:
    """Kill -9: the old file is whole, and after the next run nothing is left of the killed one."""
    home, temporary, out = tmp_path / "home", tmp_path / "tmp", tmp_path / "out"
    for folder in (home, temporary, out):
        folder.mkdir()
    rows = 100 if ending == ".xlsx" else 15_000
    plans = tmp_path / "plans.csv"
    plans.write_text(PLANS + "next,Llama3-70B,H100-SXM-80GB,64,4\n" * rows)
    result = out / f"result{ending}"
    environment = {**os.environ, "TMPDIR": str(temporary), "XDG_CACHE_HOME": str(home)}
    line = [sys.executable, "-m", "xlperf", "evaluate", str(plans), "-o", str(result)]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    began = time.monotonic()
    assert start().wait(300) == 0
    took = time.monotonic() - began
    whole = result.read_bytes()
    chance = random.Random(11)
    half = 0
    for number in range(3):
        process = start()
        if number < 1:
            time.sleep(chance.uniform(0.2, 1.0) * took)
        else:  # while it writes
            deadline = time.monotonic() + 600.0
            while not leftovers(out) and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        assert result.read_bytes() == whole
        half += bool(leftovers(out, home, temporary))
    (out / f".xlperf-{'0' * 16}.part{ending}").write_bytes(b"half")
    assert start().wait(300) == 0
    assert leftovers(out, home, temporary) == []
    assert list(temporary.iterdir()) == [] and list(out.iterdir()) == [result]
    assert half or ending == ".xlsx", "no run was killed while it wrote"


def test_a_message_shows_no_character_that_a_terminal_hides_or_obeys() -> None:
    """Controls, format characters and surrogates of all of Unicode, but for the tab and the joiners of emoji."""
    marks = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) in ("Cc", "Cf", "Cs")]
    assert [mark for mark in marks if printable(mark) == mark] == ["\t", "\u200c", "\u200d"]
    assert printable("Größe 東京 שלום") == "Größe 東京 שלום"
