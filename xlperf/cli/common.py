"""What the commands share: options, examples in the help, the catalog that is meant, progress on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlperf.cli.files import RESULTS, InputFile
from xlperf.errors import Fault, InputError

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
