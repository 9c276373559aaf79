"""Input of commands: options, files, and the catalog and the plans that they name.

Every parameter of a command that names a file says so by its type: :class:`InputFile`, :class:`OutputFile` or
:class:`EditedFile`. :class:`Command` knows them all before the work starts: no input is ever an output, however its
name is spelled (another path, a link, a hard link, the redirected standard input), nor is a file that xlperf ships.
Options that belong together arrive as one: ``bounds`` of a search, :class:`Chosen` plans.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from xlperf.base.errors import Fault, InputError, nearest
from xlperf.base.files import irreplaceable
from xlperf.base.resources import shipped_folders
from xlperf.cli.output import AS_JSON, STANDARD, say

if TYPE_CHECKING:
    import numpy as np

    from xlperf.catalog.catalog import Catalog
    from xlperf.catalog.table import Table
    from xlperf.explore.candidates import Bounds
    from xlperf.explore.vary import Varied

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

    ``suffixes``: endings that the name may have; ``-`` among them for CSV on standard output.
    """

    name = "output file"

    def __init__(self, *suffixes: str) -> None:
        self.suffixes = suffixes


RESULTS = OutputFile(".xlsx", ".csv", ".parquet", ".json", STANDARD)
"""A table in a workbook, a CSV, Parquet or JSON file, or as CSV on standard output."""


TOP = 10
"""Plans that are shown of each row by default. [-]"""
VARY = (
    "Values to try for a column of the plans, with commas between, 1..64 for all whole numbers between, or auto; or of "
    "a catalog sheet for the rows that the plans name: 'accelerators.memory bandwidth=2,4,8' or factors, "
    "'networks.link bandwidth=x1,x2', 'technology.flop energy=x0.5,x1' of what a derived device is made of."
)
"""Help of --vary, wherever it stands."""


catalog_option = click.option(
    "--catalog",
    metavar="WORKBOOK",
    type=InputFile(),
    help="Workbook with catalog sheets (accelerators, networks, models, prices, calibration), which replace the "
    "shipped ones. Or one table as .csv or .parquet whose first header names it, a folder of these, or a workbook "
    "with one such sheet: its rows are added to the shipped ones and replace those of the same name (a calibration "
    "replaces all).",
)

_JSON = "xlperf.json"


def _table_output(metavar: str, words: str, default: Callable[[], str | None]) -> Callable[[Any], Any]:
    """The options -o and --json of a command that puts out a table; ``default`` says where to without them."""

    def chosen(context: click.Context, _: click.Parameter, value: str | None) -> str | None:
        if not context.meta.get(_JSON):
            return default() if value is None else value
        if value is not None:
            raise click.UsageError("give -o or --json, not both")
        return AS_JSON

    def asked(context: click.Context, _: click.Parameter, value: bool) -> None:
        context.meta[_JSON] = value

    def decorated(function: Any) -> Any:
        output = click.option("-o", "--output", metavar=metavar, type=RESULTS, help=words, callback=chosen)
        as_json = click.option(
            "--json",
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=asked,
            help="Print JSON, an object for each row.",
        )
        return output(as_json(function))

    return decorated


def _piped() -> str | None:
    """CSV where standard output is a file or a pipe; a table where somebody reads it."""
    return None if sys.stdout.isatty() else STANDARD


output_option = _table_output(
    "OUT", "Write .csv, .xlsx, .parquet or .json, or - for CSV on standard output, instead of showing a table.",
    lambda: None,
)  # fmt: skip
results_option = _table_output(
    "RESULTS", "File to write: .xlsx, .csv, .parquet or .json; - for CSV on standard output, as into a pipe. Without "
    "it a terminal shows a table.", _piped,
)  # fmt: skip

_most = click.option(
    "--most",
    type=click.IntRange(min=1, max=20_000_000),
    help="Refuse rows whose cells with auto stand for more plans than this. Default: no limit for a search, a million "
    "for grids and frontiers.",
)
_most_accelerators = click.option(
    "--most-accelerators",
    type=click.IntRange(min=1),
    default=16_384,
    show_default=True,
    help="Largest number of accelerators that auto stands for: powers of two, parts of a server or pod, whole ones.",
)


processes_option = click.option(
    "--processes",
    type=click.IntRange(min=1),
    help="Processes that compute what is long, this one among them. Default: one for each core.",
)
_scheduler = click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Dask scheduler whose workers compute instead, as tcp://10.0.0.1:8786 (pip install 'xlperf[cluster]').",
)


class Machines(NamedTuple):
    """Who computes: processes of this machine, or the workers of a Dask scheduler."""

    processes: int | None
    scheduler: str | None


def machines_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--processes`` and ``--scheduler``, as its argument ``machines``."""

    @wraps(command)
    def called(processes: int | None, scheduler: str | None, **given: Any) -> Any:
        if processes is not None and scheduler is not None:
            raise click.UsageError("give --processes or --scheduler, not both")
        return command(machines=Machines(processes, scheduler), **given)

    return processes_option(_scheduler(called))


def bounds_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--most`` and ``--most-accelerators``, as its argument ``bounds``."""

    @wraps(command)
    def called(most: int | None, most_accelerators: int, **given: Any) -> Any:
        bounds = {"most_accelerators": most_accelerators, **({} if most is None else {"most": most})}
        return command(bounds=bounds, **given)

    return _most(_most_accelerators(called))


class Chosen(NamedTuple):
    """Which plans of a file are meant: one by its row or its name, or all of a sheet, or all."""

    row: int | None
    name: str | None
    sheet: str | None

    @property
    def is_one(self) -> bool:
        """Whether one plan is named."""
        return self.row is not None or self.name is not None


def chosen_options(default: str, sheets: str = "training or inference") -> Callable[..., Any]:
    """Give a command ``--row``, ``--name`` and ``--sheet``, as its argument ``chosen``.

    ``default``: which plan is meant without them, for the help. ``sheets``: which sheets there are, for the help.
    """

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def called(row: int | None, name: str | None, sheet: str | None, **given: Any) -> Any:
            if row is not None and name is not None:
                raise click.UsageError("give --row or --name, not both")
            return command(chosen=Chosen(row, name, sheet), **given)

        row = f"Which plan, counted from 1; default: {default}."
        sheet_ = f"Sheet of the workbook{':' if sheets == 'training or inference' else '; default:'} {sheets}."
        called = click.option("--sheet", metavar="NAME", help=sheet_)(called)
        called = click.option("--name", help="Which plan, by its name.")(called)
        return click.option("--row", type=click.IntRange(min=1), help=row)(called)

    return decorated


def examples(*lines: str) -> str:
    r"""Epilog of a command's help: example lines, kept as they are.

    >>> examples("xlperf check --text study.xlsx")
    '\x08\nExamples:\n  xlperf check --text study.xlsx'
    """
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


class Task(NamedTuple):
    """Another task of a command, chosen by an option or a word of the command line."""

    chosen_by: tuple[str, ...]  # options, or one word after the command; help and errors show the first
    command: click.Command
    old_name: str  # the command that had this task up to the last release
    dropped: bool = True  # whether the chosen option is only a mark, unknown to the task's own command


class Command(click.Command):
    """A command that checks its files before it runs, and hands over to its other tasks."""

    tasks: tuple[Task, ...] = ()

    def task_of(self, name: str, arguments: Sequence[str]) -> tuple[str, click.Command, list[str]]:
        """Spelling, command and arguments of the task that the arguments choose."""
        for task in self.tasks:
            for place, word in enumerate(arguments):
                if word.partition("=")[0] in task.chosen_by and (word.startswith("-") or place == 0):
                    left = [*arguments[:place], *arguments[place + task.dropped :]]
                    if any(word in ("-h", "--help") for word in left):
                        left = ["--help"]
                    return f"{name} {task.chosen_by[0]}", task.command, left
        return name, self, list(arguments)

    def invoke(self, ctx: click.Context) -> Any:
        """Check the files, then run."""
        check_files(ctx.command, ctx.params)
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Options, then the other tasks."""
        super().format_options(ctx, formatter)
        if self.tasks:
            with formatter.section("Other tasks, each with a --help of its own"):
                lines = [(" or ".join(task.chosen_by), task.command.get_short_help_str(200)) for task in self.tasks]
                formatter.write_dl(lines)


def check_files(command: click.Command, values: dict[str, Any]) -> None:
    """Refuse outputs that cannot be written, that are inputs, or that are named twice.

    ``command``: whose parameters they are. ``values``: what the command was given, by parameter. Raises InputError: one
    line with what would do.
    """
    inputs, outputs = _named(command, values, InputFile), [(STANDARD, _identity(STANDARD, reading=False))]
    for kind in (OutputFile, EditedFile):
        for path, type_ in _named(command, values, kind):
            if isinstance(type_, OutputFile):
                _check_output(path, type_.suffixes)
            if path not in (STANDARD, AS_JSON):
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
    """Files that xlperf itself reads: its code and tables, workbooks and templates, not the page of figures."""
    for folder in shipped_folders():
        for path in folder.rglob("*"):
            if path.suffix not in (".pyc", ".md"):
                yield path


def _check_output(path: str, suffixes: Sequence[str]) -> None:
    """Refuse a name that no output can have."""
    if path in (STANDARD, AS_JSON) and STANDARD in suffixes:
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


# --- catalog and plans


def catalog_of(given: str | None, source: str | None) -> Catalog:
    """The catalog of ``--catalog``, else of the workbook that holds the rows, else the shipped one.

    ``given``: workbook that ``--catalog`` names. ``source``: file of the rows, whether a workbook or not. Rows that
    name what no table has are named on standard error and left out. Raises InputError with every fault of the
    workbook; where the one that was asked for has no sheet of a catalog.
    """
    from xlperf.catalog.catalog import load_catalog
    from xlperf.catalog.read import is_workbook

    own = source if source is not None and is_workbook(source) else None
    note_unread(given, own)
    catalog = load_catalog(given or own)
    if catalog.orphans.faults:
        left_out = InputError(catalog.orphans.faults).lines()
        say(*(f"note: left out: {line}" for line in left_out), err=True)
    return catalog


def note_unread(given: str | None, own: str | None) -> None:
    """Name sheets on standard error that are not read, but look as if they should be.

    ``given``: workbook that ``--catalog`` names; it must have at least one sheet of a catalog. ``own``: workbook of the
    rows. Raises InputError where a workbook cannot be read, or the one that was given has no sheet of a catalog.
    """
    from xlperf.catalog.ods import open_workbook
    from xlperf.catalog.read import is_table_file, unread_sheets
    from xlperf.catalog.schema import EVERY_TABLE

    if given is not None and is_table_file(given):
        given = None
    for path in dict.fromkeys(filter(None, (own, given))):
        with open_workbook(path) as book:
            unread = unread_sheets(book)
            if path == given and not any(book.sheet(kind) for kind in EVERY_TABLE):
                raise InputError([*unread, Fault(book.name, f"has no sheet of a catalog: {', '.join(EVERY_TABLE)}")])
        for fault in unread:
            say(f"note: {fault}", err=True)


def vary_line(text: str) -> tuple[str, list[str]]:
    """A column and its values: ``tensor parallel=1,2,4``."""
    name, equals, values = text.partition("=")
    if not equals:
        raise click.UsageError(f'--vary takes COLUMN=VALUES, got "{text}"')
    return name, values.split(",")


def varied(
    table: Table, vary: Sequence[str], of_catalog: bool = False
) -> tuple[Table, dict[str, np.ndarray], tuple[Varied, ...]]:
    """Plans whose columns of ``--vary COLUMN=auto`` say so, values of the other ones, and what is searched one by one.

    The latter, with ``of_catalog``: values of the catalog, factors of columns of the plans, and targets.
    """
    from xlperf.explore.candidates import with_auto
    from xlperf.explore.objectives import TARGETS
    from xlperf.explore.vary import Varied, read_variation

    found = read_variation(table.kind, [vary_line(text) for text in vary], "--vary")
    for one in found.varied:
        if one.shape:
            raise InputError(Fault("--vary", f"{one.column.name}: a search needs values, not a range"))
        if not of_catalog:
            what = (
                f"a factor of {one.name.replace('_', ' ')}"
                if one.sheet == table.kind
                else f"{one.column.name}, of the catalog"
            )
            problem = f"a frontier takes no {what}; xlperf evaluate --vary and a search without --frontier do"
            raise InputError(Fault("--vary", problem))
    targets = [name for name in found.values if of_catalog and name in TARGETS.values()]
    alone = [Varied(table.kind, name, found.values[name], False) for name in targets]
    values = {name: tried for name, tried in found.values.items() if name not in targets}
    return with_auto(table, found.auto, "--vary"), values, (*alone, *found.varied)


def catalog_for(given: str | None, plans: str, tables: list[Table]) -> Catalog:
    """The catalog of plans; names that it lacks are refused for all plans at once, before any is evaluated.

    Names that it spells otherwise are said on standard error.
    """
    from xlperf.catalog.check import name_faults

    catalog = catalog_of(given, plans)
    faults = name_faults(tables, catalog)
    if faults:
        raise InputError(faults)
    note_names(tables, catalog)
    for table in tables:
        note_own(table.own)
    return catalog


def note_own(headers: Iterable[str]) -> None:
    """Say on standard error which columns of plans xlperf does not know."""
    listed = ", ".join(headers)
    if listed:
        say(f"note: columns that are not read: {listed}", err=True)


def note_names(tables: Sequence[Table], catalog: Catalog) -> None:
    """Say on standard error which names of rows were taken for others; they were looked up before."""
    from xlperf.catalog.check import taken_names

    say(*(f"note: {words}" for words in taken_names(tables, catalog)), err=True)


def without_auto(plans: Table, catalog: Catalog, bounds: Bounds) -> Table:
    """Plans with a value in the place of every ``auto``; what was chosen is said on standard error."""
    if not plans.auto:
        return plans
    from xlperf.explore.auto import resolve

    found = resolve(plans, catalog, **bounds)
    for row, words in found.notes.items():
        say(f"{plan_name(plans, row)}: {words}", err=True)
    return found.plans


def plan_name(plans: Table, row: int = 0) -> str:
    """Name of a plan; where it stands if it has none."""
    return str(plans.text("name")[row]) or plans.place(row, "name")


def read_chosen(plans: str, chosen: Chosen) -> list[Table]:
    """Plans of a file: the one that is named, else all that the sheet or the file has."""
    from xlperf.catalog.read import read_plans

    tables = read_plans(plans, sheet=chosen.sheet)
    return [_picked(tables, plans, chosen)] if chosen.is_one else tables


def read_one_kind(plans: str, chosen: Chosen) -> Table:
    """The plans that are meant, all training or all inference."""
    tables = read_chosen(plans, chosen)
    if len(tables) > 1:
        raise InputError(Fault(plans, f"holds both kinds of plans: give --sheet {tables[0].kind}"))
    return tables[0]


def read_one(plans: str, chosen: Chosen) -> Table:
    """The one plan of a file that is meant; the first where none is named."""
    tables = read_chosen(plans, chosen)
    return tables[0] if chosen.is_one else _picked(tables, plans, chosen)


def _picked(tables: list[Table], plans: str, chosen: Chosen) -> Table:
    """Plans by row or by name; a row number counts within one sheet, a name is looked for in all."""
    row, name, _ = chosen
    if name is None:
        index = (row or 1) - 1
        if index >= len(tables[0]):
            problem = f"--row {row} is beyond the last of {len(tables[0])} {tables[0].kind} plans"
            raise InputError(Fault(plans, problem))
        return tables[0].take([index])
    names = [(table, index, str(own)) for table in tables for index, own in enumerate(table.text("name").tolist())]
    found = [(table, index) for table, index, own in names if own.casefold() == name.strip().casefold()]
    if len(found) > 1:
        places = " and ".join(own.place(index, "name") for own, index in found[:2])
        raise InputError(Fault(plans, f'{len(found)} plans are named "{name}", at {places}; give --sheet and --row'))
    if not found:
        hint = nearest(name, [own for _, _, own in names if own])
        raise InputError(Fault(plans, f'no plan is named "{name}"; {hint}'))
    table, index = found[0]
    return table.take([index])
