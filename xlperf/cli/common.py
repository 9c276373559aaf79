"""What the commands share: options, examples in the help, the catalog that is meant, progress on standard error."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from xlperf.base.errors import Fault, InputError, printable
from xlperf.cli.files import RESULTS, STANDARD, InputFile

if TYPE_CHECKING:
    from xlperf.catalog.catalog import Catalog

catalog_option = click.option(
    "--catalog",
    metavar="WORKBOOK",
    type=InputFile(),
    help="Workbook with catalog sheets (accelerators, networks, models, prices, calibration); a sheet that it lacks "
    "is the shipped one.",
)

output_option = click.option(
    "-o",
    "--output",
    metavar="OUT",
    type=RESULTS,
    help="Write .csv, .xlsx or .parquet, or - for CSV on standard output, instead of showing a table.",
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


def say(*lines: str, err: bool = False) -> None:
    """Print lines. All that a command prints goes through here: names and notes of a file cannot steer the terminal.

    Parameters
    ----------
    lines : str
        Printed one below the other; a line break inside one of them is written out.
    err : bool, default False
        Whether they go to standard error.
    """
    for line in lines:
        click.echo(printable(line), err=err)


def wrote(output: str, number: int, noun: str) -> None:
    """Say on standard error what a command wrote; nothing where that went to standard output.

    Parameters
    ----------
    output : str
        File, or ``-``.
    number : int
        Rows. [-]
    noun : str
        What a row is, in the singular.
    """
    if output != STANDARD:
        say(f"{output}: {number:,} {noun}{'s' if number != 1 else ''}", err=True)


def standard_output() -> IO[str]:
    """Standard output for data: UTF-8 with line feeds, as files are written, whatever the terminal takes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n", errors="backslashreplace")
    return sys.stdout


def examples(*lines: str) -> str:
    r"""Epilog of a command's help: example lines, kept as they are.

    >>> examples("xlperf show study.xlsx")
    '\x08\nExamples:\n  xlperf show study.xlsx'
    """
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


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
    from xlperf.catalog.read import unread_sheets
    from xlperf.catalog.schema import EVERY_TABLE
    from xlperf.catalog.xlsx import Workbook

    for path in dict.fromkeys(filter(None, (own, given))):
        with Workbook(path) as book:
            unread = unread_sheets(book)
            if path == given and not any(book.sheet(kind) for kind in EVERY_TABLE):
                raise InputError([*unread, Fault(book.name, f"has no sheet of a catalog: {', '.join(EVERY_TABLE)}")])
        for fault in unread:
            say(f"note: {fault}", err=True)


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
        sys.stderr.write(f"\r{count:,} {label}")
        sys.stderr.flush()

    yield counted
    sys.stderr.write("\n")
