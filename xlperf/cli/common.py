"""What the commands share: examples in the help, checks of the output file, progress on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from xlperf.errors import Fault, InputError

STANDARD = "-"

catalog_option = click.option(
    "--catalog",
    metavar="WORKBOOK",
    help="Workbook with catalog sheets (accelerators, networks, models, prices, calibration); a sheet that it lacks "
    "is the shipped one.",
)

most_option = click.option(
    "--most",
    type=click.IntRange(min=1),
    default=1_000_000,
    show_default=True,
    help="Plans that the cells with auto of one row may stand for; more are refused.",
)


def examples(*lines: str) -> str:
    r"""Epilog of a command's help: example lines, kept as they are.

    >>> examples("xlperf show study.xlsx")
    '\x08\nExamples:\n  xlperf show study.xlsx'
    """
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def check_output(path: str, suffixes: Sequence[str], inputs: Sequence[str] = ()) -> None:
    """Refuse an output file before the work starts rather than after it.

    Parameters
    ----------
    path : str
        File to write, or ``-`` for standard output where ``suffixes`` has ``-``.
    suffixes : sequence of str
        Kinds of file that can be written: ``.csv``.
    inputs : sequence of str
        Files that are read; none of them is ever replaced.

    Raises
    ------
    InputError
        One line with what would do.
    """
    if path == STANDARD and STANDARD in suffixes:
        return
    target = Path(path)
    known = [suffix for suffix in suffixes if suffix != STANDARD]
    if target.is_dir():
        raise InputError(Fault(path, f"is a folder; give a file name that ends in {_either(known)}"))
    if target.suffix.lower() not in known:
        shown = f'"{target.suffix}"' if target.suffix else "no ending"
        raise InputError(Fault(path, f"the output must end in {_either(known)}, got {shown}"))
    if not target.parent.is_dir():
        raise InputError(Fault(path, f'there is no folder "{target.parent}"; make it first'))
    for name in inputs:
        if name != STANDARD and target.exists() and Path(name).exists() and target.samefile(name):
            raise InputError(Fault(path, "is the input; give the output another name"))


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


@contextmanager
def progress(length: int, label: str) -> Iterator[Callable[[int], Any]]:
    """Show a progress bar on standard error; none where that is not a terminal.

    Parameters
    ----------
    length : int
        How many items there are; 0 where that is not known, then those that are done are counted.
    label : str
        What is done to them.

    Yields
    ------
    callable
        Call it with the number of items done since the last call.
    """
    if not sys.stderr.isatty():
        yield lambda _done: None
        return
    if length:
        with click.progressbar(length=length, label=label, file=sys.stderr) as bar:
            yield bar.update
        return
    count = 0

    def counted(done: int) -> None:
        nonlocal count
        count += done
        click.echo(f"\r{count:,} {label}", nl=False, err=True)

    yield counted
    click.echo(err=True)
