"""Commands on workbooks, spreadsheet programs and the guide: ``check``, ``new``, ``install``, ``guide`` ..."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from difflib import get_close_matches
from importlib import import_module
from itertools import accumulate, groupby
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from xlperf.base import resources
from xlperf.base.errors import Fault, HostError, InputError
from xlperf.base.files import replaced
from xlperf.cli.command import command, page_of
from xlperf.cli.output import aligned, fold, say, terminal_width, working

_HOSTS = {"libreoffice": "xlperf.addin.libreoffice", "excel": "xlperf.addin.excel"}
"""Modules with ``install`` and ``uninstall``, by spreadsheet program."""


@command()
def check(workbook: str | None) -> int:
    """Check a workbook: every fault of its sheets, and what looks doubtful."""
    from xlperf.base.resources import workbook as shipped
    from xlperf.calibrate.validate import parameter_faults
    from xlperf.catalog.check import check as checked
    from xlperf.engine.lessons import run_faults
    from xlperf.explore.allocate import device_faults

    result = checked(workbook or shipped(), [parameter_faults, device_faults, run_faults])
    say(*result.lines())
    return 0 if result.ok else 1


@command()
def functions(name: str | None) -> None:
    """List the worksheet functions: arguments, units, meaning."""
    from xlperf.addin.functions import PREFIX, example_ranges
    from xlperf.addin.functions import functions as registry

    if name is None:
        say(*(f"{one.call}  {one.doc.partition('. ')[0].rstrip('.')}" for one in registry().values()))
        return
    wanted = name.upper().replace(" ", "_").removeprefix(PREFIX)
    matches = [one for one in registry().values() if wanted in one.name.removeprefix(PREFIX)]
    if not matches:
        raise InputError(Fault(f'"{name}"', "is in the name of no function; xlperf install --list lists all"))
    for one in [one for one in matches if one.name == PREFIX + wanted] or matches:
        say(one.call, f"  {one.doc}", *(f"  {each.name}: {each.doc}" for each in one.arguments))
        example = one.example({each: each for each in one.example_ranges})
        say(f"  example: ={example}{' (a block of cells)' if one.spills else ''}")
        for each in one.example_ranges:
            cells = "; ".join(
                ", ".join(f"{cell:g}" if isinstance(cell, float) else cell for cell in row)
                for row in example_ranges()[each]
            )
            say(f"    where {each} is a range of cells: {cells}")
        say("")


@command()
def show(file: str) -> None:
    """Print a workbook as text, for git diff and grep."""
    from xlperf.catalog.xlsx_rows import shown_lines

    for line in shown_lines(file):
        say(line, folded=False)


@command()
def new(file: str, whole: bool, empty: bool, small: bool, study: str | None, force: bool) -> None:
    """Make a workbook of your own to edit."""
    from xlperf.workbook.build import new_workbook

    if Path(file).exists() and not force:
        raise InputError(Fault(file, "exists; give another name, or --force to replace it"))
    if whole + empty + small + (study is not None) > 1:
        raise click.UsageError("give one of --all, --empty, --examples and --study")
    if study is not None:
        from xlperf.studies import study as study_of
        from xlperf.workbook.report.studies import write_study

        chosen = study_of(study)
        write_study(file, chosen)
        say(f"{file}: edit it, then: xlperf report {_quoted(file)} --study {chosen.name} -o report.xlsx")
        return
    with working(f"making {Path(file).name}"):
        new_workbook(file, "all" if whole else "empty" if empty else "examples")
    say(f"{file}: edit it, then: xlperf report {_quoted(file)} -o report.xlsx")


def _quoted(name: str) -> str:
    """A name as a command line takes it."""
    if sys.platform == "win32":
        return f'"{name}"' if " " in name else name
    return shlex.quote(name)


@command()
def install(
    host: str,
    folder: str | None,
    output: str | None,
    checked: bool,
    updated: bool,
    python: str | None,
    wheel: str | None,
    url: str | None,
    pyodide: str | None,
) -> int:
    """Add the XLPERF_ functions to a spreadsheet program."""
    if checked and folder and not output:
        folder, output = None, folder  # the file to look at
    for name, given, only in (
        ("a folder", folder if host not in ("completion", "office") else None, "lite"),
        ("--output", output, "excel"),
        ("--check", checked, "excel"),
        ("--python", python, "excel"),
        ("--wheel", wheel if host != "office" else None, "lite"),
        ("--url", url, "office"),
        ("--pyodide", pyodide, "office"),
    ):
        if given and host != only:
            raise click.UsageError(f"{name} is for xlperf install {only}")
    if updated:
        if host not in _HOSTS or output is not None or checked:
            raise click.UsageError(f"--update goes with {' or '.join(_HOSTS)} alone")
        return _update(host)
    if host == "office":
        from xlperf.addin.office import write_office

        if folder is None or url is None:
            raise click.UsageError("say which folder and its address: xlperf install office FOLDER --url https://...")
        say(write_office(folder, url, pyodide, wheel))
        return 0
    if host == "lite":
        from xlperf.addin.office import write_lite

        if folder is None:
            raise click.UsageError("say which folder: xlperf install lite FOLDER")
        say(write_lite(folder, wheel))
        return 0
    if checked:
        from xlperf.addin.excel import check as checked_addin

        lines, sound = checked_addin(output)
        say(*lines)
        return 0 if sound else 1
    if output is not None:
        from xlperf.addin.excel import write as write_addin

        say(write_addin(output, python))
        return 0
    if python is not None:
        raise click.UsageError("--python goes with --output; without it, run the interpreter to compute with")
    if host == "completion":
        say(_install_completion(folder))
    else:
        say(import_module(_HOSTS[host]).install())
    return 0


def _update(host: str) -> int:
    """The newest xlperf into this environment, and its add-in into the program."""
    if subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "xlperf"], check=False
    ).returncode:
        problem = f"pip could not update xlperf in {sys.prefix}; update it with what installed it, then run: "
        raise HostError(f"{problem}xlperf install {host}")
    return subprocess.run([sys.executable, "-m", "xlperf", "install", host], check=False).returncode


@command()
def uninstall(host: str) -> None:
    """Remove the XLPERF_ functions from a spreadsheet program."""
    if host == "completion":
        say(_uninstall_completion())
    else:
        say(import_module(_HOSTS[host]).uninstall())


_TOPICS = (
    "start planner engineer architect images notebook excel sheets columns functions glossary equations accuracy "
    "questions extend changes"
).split()
_SHORT = 16  # lines of a section that is printed whole if some of it is asked for


@command()
def guide(topic: str | None, words: tuple[str, ...]) -> None:
    """Read the guide: first hours, sheets, columns, functions, equations, accuracy."""
    if topic is None:
        titles = [_page(name)[0].removeprefix("# ") for name in _TOPICS]
        say(*aligned([[f"xlperf guide {name}" for name in _TOPICS], titles], (False, False)))
        return
    name, phrase = topic.casefold(), " ".join(words)
    if name in _TOPICS:
        lines = _parts(_page(name), phrase) if words else _page(name)
        near, problem = [], f"the page {name} has no {phrase}"
    elif (page := page_of(name)) is not None:  # of a command: the sections that name it
        lines = _parts(_page(page), phrase or f"xlperf {name}", whole=True) or _page(page)
    else:
        phrase = " ".join((topic, *words))
        near = get_close_matches(name, _TOPICS, 1)
        problem = f"no page {phrase}"
        sections = [] if near else [part for page in _TOPICS for part in _sections(_page(page))]
        lines = [line for part in sections if phrase.casefold() in part[0].casefold() for line in part]
    if not lines:
        holding = [f"xlperf guide {page} {phrase}" for page in _TOPICS if not near and _parts(_page(page), phrase)]
        choice = f"choose from {', '.join(_TOPICS)}"
        hint = f"did you mean {near[0]}?" if near else f"see {', '.join(holding)}" if holding else ""
        raise InputError(Fault("guide", f"{problem}; {hint or choice}"))
    say(*_paragraphs(lines), folded=False)


def _paragraphs(lines: list[str]) -> list[str]:
    """Lines of a page as wide as the terminal: paragraphs and items are folded anew, blocks of code stay."""
    width = terminal_width()
    if not width:
        return lines
    folded, paragraph, code = [], "", False
    for line in [*lines, ""]:
        fence = line.startswith("```")
        goes_on = bool(paragraph and line) and not (code or fence or line.startswith(_BEGINS))
        if goes_on:
            paragraph += f" {line.strip()}"
            continue
        folded += fold(paragraph, width) if paragraph else []
        code ^= fence
        paragraph = "" if code or fence or not line else line
        folded += [] if paragraph else [line]
    return folded[:-1]


_BEGINS = ("|", "#", "- ", "  - ", *(f"{number}. " for number in range(1, 10)))
"""Starts of lines that begin a paragraph of their own."""


def _page(topic: str) -> list[str]:
    return resources.table(f"guide/{topic}.md").read_text(encoding="utf-8").splitlines()


def _parts(page: list[str], words: str, whole: bool = False) -> list[str]:
    """Short sections that have the words; of long ones heading and lines that have them, or the ``whole``."""
    parts = []
    wanted = words.casefold()
    for heading, *body in _sections(page):
        lines = [line for line in body if wanted in line.casefold().replace("_", " " if " " in wanted else "_")]
        short = (whole or len(body) <= _SHORT) and (lines or wanted in heading.casefold())
        parts += [heading, *body] if short else [heading, *lines, ""] if lines else []
    return parts


def _sections(page: list[str]) -> list[list[str]]:
    """Lines of each section of a page, its heading first."""
    numbers = accumulate(line.startswith("#") for line in page)
    return [[line for _, line in group] for _, group in groupby(zip(numbers, page, strict=True), lambda pair: pair[0])]


_SHELLS = {
    "bash": "~/.local/share/bash-completion/completions/xlperf",
    "zsh": "~/.zfunc/_xlperf",
    "fish": "~/.config/fish/completions/xlperf.fish",
}
"""Files from which each shell reads the completion of a command."""


def _install_completion(shell: str | None = None) -> str:
    """Write the completion of a shell, by default that of the user's account; a line with its place."""
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in _SHELLS:
        raise InputError(Fault("", f"the shell {name or 'is not known'}: name one of {', '.join(_SHELLS)}".strip()))
    script = get_completion_class(name)
    assert script is not None  # click has those of _SHELLS
    path = Path(_SHELLS[name]).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as temporary:
        temporary.write_text(
            script(click.get_current_context().find_root().command, {}, "xlperf", "_XLPERF_COMPLETE").source(),
            encoding="utf-8",
        )
    more = "; in ~/.zshrc: fpath+=~/.zfunc; autoload -U compinit; compinit" if name == "zsh" else ""
    return f"{path}: completion of xlperf in {name}, in new terminals{more}"


def _uninstall_completion() -> str:
    """Remove what :func:`_install_completion` wrote; a line with their names."""
    paths = [path for path in (Path(name).expanduser() for name in _SHELLS.values()) if path.is_file()]
    for path in paths:
        path.unlink()
    return f"removed: {', '.join(map(str, paths))}" if paths else "no completion of xlperf is installed"
