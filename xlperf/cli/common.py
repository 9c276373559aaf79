"""What the commands share: examples in the help, checks of the output file, progress on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlperf.errors import Fault, InputError

if TYPE_CHECKING:
    from xlperf.catalog.catalog import Catalog

STANDARD = "-"

catalog_option = click.option(
    "--catalog",
    metavar="WORKBOOK",
    help="Workbook with catalog sheets (accelerators, networks, models, prices, calibration); a sheet that it lacks "
    "is the shipped one.",
)

_most = click.option(
    "--most",
    type=click.IntRange(min=1, max=20_000_000),
    default=1_000_000,
    show_default=True,
    help="Plans that the cells with auto of one row may stand for; more are refused. A million takes some 3 GiB.",
)
_most_accelerators = click.option(
    "--most-accelerators",
    type=click.IntRange(min=1),
    default=16_384,
    show_default=True,
    help="Largest number of accelerators that auto stands for: powers of two, parts of a server or pod, whole ones.",
)


def most_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How many plans, and how many accelerators, cells with auto stand for at the most."""
    return _most(_most_accelerators(command))


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
    for name in inputs:
        if name != STANDARD and target.exists() and Path(name).exists() and target.samefile(name):
            raise InputError(Fault(path, "is the input; give the output another name"))


def catalog_of(given: str | None, source: str | None) -> Catalog:
    """The catalog that was asked for, else that of the workbook of the rows, else the shipped one.

    Parameters
    ----------
    given : str or None
        Workbook that ``--catalog`` names.
    source : str or None
        File of the rows, whether a workbook or not.

    Raises
    ------
    InputError
        With every fault of the workbook; where the one that was asked for has no sheet of a catalog.
    """
    from xlperf.catalog.catalog import load_catalog

    own = source if source is not None and Path(source).suffix.lower() in (".xlsx", ".xlsm") else None
    note_unread(given, own)
    return load_catalog(given or own)


def note_unread(given: str | None, own: str | None) -> None:
    """Name sheets that are not read, but seem to be meant, on standard error.

    Parameters
    ----------
    given : str or None
        Workbook that ``--catalog`` names; it must have at least one sheet of a catalog.
    own : str or None
        Workbook of the rows.

    Raises
    ------
    InputError
        Where a workbook cannot be read, or the one that was given has no sheet of a catalog.
    """
    from xlperf.catalog.schema import EVERY_TABLE
    from xlperf.catalog.workbook import Workbook, unread_sheets

    for path in dict.fromkeys(filter(None, (own, given))):
        with Workbook(path) as book:
            unread = unread_sheets(book)
            if path == given and not any(book.sheet(kind) for kind in EVERY_TABLE):
                raise InputError([*unread, Fault(book.name, f"has no sheet of a catalog: {', '.join(EVERY_TABLE)}")])
        for fault in unread:
            click.echo(f"note: {fault}", err=True)


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
