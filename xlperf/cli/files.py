"""Files that commands are given: what each one reads, what it writes, and that the two are never the same.

Every parameter of a command that names a file says so by its type: :class:`InputFile`, :class:`OutputFile` or
:class:`EditedFile`. :class:`Command` knows them all before the work starts: no input is ever an output, however its
name is spelled (another path, a link, a hard link, the redirected standard input), nor is a file that xlperf ships.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlperf.base.errors import Fault, InputError

STANDARD = "-"

Identity = tuple[int, int]
if TYPE_CHECKING:
    _FileType = click.ParamType[str]
else:
    _FileType = click.ParamType  # versions of click before 8.3 know no [str]


class InputFile(_FileType):
    """Name of a file that is read, or ``-`` for standard input where the command takes it."""

    name = "input file"


class EditedFile(_FileType):
    """Name of a file a part of which is replaced."""

    name = "edited file"


class OutputFile(_FileType):
    """Name of a file that is written.

    Parameters
    ----------
    suffixes : sequence of str
        Endings that the name may have; ``-`` among them for CSV on standard output.
    """

    name = "output file"

    def __init__(self, *suffixes: str) -> None:
        self.suffixes = suffixes


RESULTS = OutputFile(".xlsx", ".csv", ".parquet", STANDARD)
"""A table in a workbook, a CSV or a Parquet file, or as CSV on standard output."""


class Command(click.Command):
    """A command that refuses its output before the work starts rather than after it."""

    def invoke(self, ctx: click.Context) -> Any:
        """Check the files, then run."""
        check_files(ctx.command, ctx.params)
        return super().invoke(ctx)


def check_files(command: click.Command, values: dict[str, Any]) -> None:
    """Refuse outputs that cannot be written, that are inputs, or that are named twice.

    Parameters
    ----------
    command : click.Command
        Whose parameters they are.
    values : dict
        What the command was given, by parameter.

    Raises
    ------
    InputError
        One line with what would do.
    """
    inputs, outputs = _named(command, values, InputFile), [(STANDARD, _identity(STANDARD, reading=False))]
    for kind in (OutputFile, EditedFile):
        for path, type_ in _named(command, values, kind):
            if isinstance(type_, OutputFile):
                _check_output(path, type_.suffixes)
            if path != STANDARD:
                outputs.append((path, _identity(path)))
    read = {_identity(path) for path, _ in inputs}
    for path, identity in outputs:
        if identity is None:
            continue
        shown = "standard output" if path == STANDARD else path
        if identity in read:
            raise InputError(Fault(shown, "is the input; give the output another name"))
        if [other for _, other in outputs].count(identity) > 1:
            raise InputError(Fault(shown, "is named for two outputs; give one of them another name"))
        if identity in set(map(_identity, _shipped())):
            raise InputError(Fault(shown, "comes with xlperf, which reads it; give the output another name"))


def _named(command: click.Command, values: dict[str, Any], kind: type[_FileType]) -> list[tuple[str, Any]]:
    """Files of one kind that a command was given, with the type of their parameters."""
    found = []
    for parameter in command.params:
        value = values.get(parameter.name or "")
        if isinstance(parameter.type, kind) and value is not None:
            found += [(path, parameter.type) for path in (value if isinstance(value, (tuple, list)) else (value,))]
    return found


def _identity(path: str | Path, reading: bool = True) -> Identity | None:
    """What a file is, whatever name leads to it; None where there is none, or where a stream is no file."""
    try:
        if str(path) == STANDARD:
            stream = sys.stdin if reading else sys.stdout
            status = os.fstat(stream.fileno())
            return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None
        status = os.stat(path)
    except (OSError, ValueError, AttributeError):
        return None
    return status.st_dev, status.st_ino


def _shipped() -> Iterator[Path]:
    """Files that xlperf itself reads: its code and tables, workbooks and templates."""
    from xlperf.base.resources import shipped_folders

    for folder in shipped_folders():
        for path in folder.rglob("*"):
            if path.suffix != ".pyc":
                yield path


def _check_output(path: str, suffixes: Sequence[str]) -> None:
    """Refuse a name that no output can have."""
    from xlperf.base.files import irreplaceable

    if path == STANDARD and STANDARD in suffixes:
        return
    if not path.strip():
        raise InputError(Fault("--output", "is blank; give a file name"))
    target = Path(path)
    known = [suffix for suffix in suffixes if suffix != STANDARD]
    if target.is_dir():
        raise InputError(Fault(path, f"is a folder; give a file name that ends in {_either(known)}"))
    if target.suffix.lower() not in known:
        shown = f'"{target.suffix}"' if target.suffix else "no ending"
        raise InputError(Fault(path, f"the output must end in {_either(known)}, got {shown}"))
    if not target.parent.is_dir():
        raise InputError(Fault(path, f'there is no folder "{target.parent}"; make it first'))
    problem = irreplaceable(path)
    if problem:
        raise InputError(Fault(path, problem))


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
