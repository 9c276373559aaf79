"""Shared parts of commands: options from a table, files, tasks; the catalog and the plans that options name.

A parameter that names a file has the type :class:`InputFile`, :class:`OutputFile` or :class:`EditedFile`.
:class:`Command` checks all of them before the work starts: no input is an output under any spelling (another path, a
link, a hard link, the redirected standard input), and no output is a file that xlperf ships.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from xlperf.base import resources
from xlperf.base.errors import Fault, InputError, OptionError, nearest, raise_faults
from xlperf.base.files import irreplaceable
from xlperf.cli.output import AS_JSON, STANDARD, WIDE, listed_choices, say

if TYPE_CHECKING:
    from xlperf.catalog.catalog import Catalog
    from xlperf.catalog.table import Table
    from xlperf.explore.candidates import Bounds

Identity = tuple[int, int]
Decorator = Callable[[Any], Any]
if TYPE_CHECKING:
    _FileType = click.ParamType[str]
else:
    _FileType = click.ParamType  # versions of click before 8.3 know no [str]


class _File(_FileType):
    """Name of a file, which a shell completes."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """The files that the shell itself offers."""
        return [CompletionItem(incomplete, type="file")]


class InputFile(_File):
    """Name of an input file, or ``-`` for standard input if the command reads it."""

    name = "input file"


class EditedFile(_File):
    """Name of a file a part of which is replaced."""

    name = "edited file"


class OutputFile(_File):
    """Name of a file that is written; ``suffixes``: its possible endings, ``-`` for CSV on standard output."""

    name = "output file"

    def __init__(self, *suffixes: str) -> None:
        self.suffixes = suffixes


class Number(click.FloatRange):
    """A number of a range; nan, which no comparison excludes, is none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number, or a message."""
        result = super().convert(value, param, ctx)
        return self.fail(f"{value!r} is not a valid number.", param, ctx) if result != result else result


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

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; an option of a form may have any name that its sheet takes for the entry (``--isl``)."""
        end = args.index("--") if "--" in args else len(args)
        return super().parse_args(ctx, [*map(self._known, args[:end]), *args[end:]])

    def _known(self, word: str) -> str:
        """An unknown option as the one whose entry has that name in the trade, if there is one."""
        name, equals, value = word.partition("=")
        options = {option for parameter in self.params for option in parameter.opts}
        if not name.startswith("--") or name in options:
            return word
        from xlperf.catalog.schema import FORMS, canonical

        entry = canonical(self.name, name[2:].replace("-", "_")) if self.name in FORMS else ""
        option = "--" + entry.replace("_", "-")
        return option + equals + value if option in options else word

    def invoke(self, ctx: click.Context) -> Any:
        """Check the files, then run."""
        check_files(ctx.command, ctx.params)
        try:
            return super().invoke(ctx)
        except OptionError as error:
            raise click.UsageError(str(error), ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Options, then the other tasks."""
        super().format_options(ctx, formatter)
        if self.tasks:
            with formatter.section("Other tasks, each with a --help of its own"):
                lines = [(" or ".join(task.chosen_by), task.command.get_short_help_str(200)) for task in self.tasks]
                formatter.write_dl(lines)


def check_files(command: click.Command, values: dict[str, Any]) -> None:
    """Refuse outputs that cannot be written, that are inputs, or that are named twice."""
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
    files = []
    for parameter in command.params:
        value = values.get(parameter.name or "")
        if isinstance(parameter.type, kind) and value is not None:
            files += [(path, parameter.type) for path in (value if isinstance(value, (tuple, list)) else (value,))]
    return files


def _identity(path: str | Path, reading: bool = True) -> Identity | None:
    """Device and inode of a file under any name; None if there is no file."""
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
    for folder in resources.shipped_folders():
        for path in folder.rglob("*"):
            if path.suffix not in (".pyc", ".md"):
                yield path


def _check_output(path: str, suffixes: Sequence[str]) -> None:
    """Refuse a name that no output can have."""
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


# --- options

VARY = (
    "Values to try for a column of the plans, with commas between, 1..64 for all whole numbers between, or auto; or of "
    "a catalog sheet for the rows that the plans name: 'accelerators.memory bandwidth=2,4,8' or factors, "
    "'networks.link bandwidth=x1,x2', 'technology.flop energy=x0.5,x1' of what a derived device is made of."
)


def page_of(name: str) -> str | None:
    """The page of the guide that a command names; None if there is no such command or page."""
    return next((row["meaning"] for row in _rows().get(name, ()) if row["option"] == "page"), None)


def command(**shared: Decorator) -> Callable[[Any], Command]:
    """Make a function a command by rows of ``commands.csv``; ``shared``: options that a row names with ``=`` and that
    this module does not know.
    """

    def made(function: Any) -> Command:
        name = function.__name__
        texts: dict[str, list[str]] = {"summary": [], "text": [], "example": [], "page": []}
        for row in reversed(_rows()[name]):
            if row["option"] in texts:
                texts[row["option"]].insert(0, row["meaning"])
            else:
                function = _parameter(row, shared)(function)
        lines = (re.sub(" {3,}", "\n      ", line) if len(line) > _EXAMPLE else line for line in texts["example"])
        epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
        epilog += f"\n\nGuide: xlperf guide {texts['page'][0]}"
        words = {"short_help": texts["summary"][0], "help": "\n\n".join(texts["text"]), "epilog": epilog}
        result: Command = click.command(name, cls=Command, **words)(function)
        return result

    return made


_EXAMPLE = 76
"""Letters of an example with its words that a line of 80 columns has; longer ones have their words below. [-]"""


@cache
def _rows() -> dict[str, list[dict[str, str]]]:
    """Rows of the table of commands by command, or by the name under which commands share options."""
    rows = resources.rows("cli/commands.csv")
    return {name: [row for row in rows if row["command"] == name] for name in {row["command"] for row in rows}}


def _parameter(row: dict[str, str], shared: dict[str, Decorator]) -> Decorator:
    """The parameter of a row: an argument, an option, or options that commands share."""
    option, value, default = row["option"], row["value"], row["default"]
    if option.startswith("="):
        return shared[option[1:]] if option[1:] in shared else _shared(option[1:], row["meaning"])
    settings: dict[str, Any] = {"metavar": row["metavar"] or None, "type": _type(value.rstrip("*!?"))}
    if not option.startswith("-"):
        optional = value.endswith(("?", "*"))
        return click.argument(option, required=not optional, nargs=-1 if value.endswith("*") else 1, **settings)
    settings |= {"multiple": "*" in value, "required": value.endswith("!"), "help": row["meaning"].format(vary=VARY)}
    metavar, more = listed_choices(getattr(settings["type"], "choices", ()))
    settings |= {"metavar": settings["metavar"] or (metavar if more else None), "help": settings["help"] + more}
    if value == "flag":
        settings |= {"is_flag": True, "type": None, "default": default == "True"}
        settings["show_default"] = bool(default)
    elif default:
        settings |= {"default": default.strip("()"), "show_default": not default.startswith("(")}
    names = option.split()
    settings |= {"shell_complete": partial(_completed, names[-1])}
    return click.option(*names, *filter(None, [row["name"]]), **settings)


def _completed(option: str, context: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Values of an option as a shell completes them."""
    known: dict[str, Complete] = {"--study": _studies, "--vary": _columns, **dict.fromkeys(_OBJECTIVES, _results)}
    return known.get(option, parameter.type.shell_complete)(context, parameter, incomplete)


def _type(value: str) -> Any:
    """Type of a parameter by the words of its row."""
    kind, *words = value.split()
    match kind:
        case "input":
            return InputFile()
        case "edited":
            return EditedFile()
        case "output":
            return OutputFile(*words)
        case "integer":
            low, _, high = words[0].partition("..")
            return click.IntRange(int(low), int(high) if high else None)
        case "probability":
            return Number(0.5, 1.0, max_open=True)
        case "positive":
            return Number(0.0, float(words[0]), min_open=True)
        case "choice" if "." in words[0]:
            from xlperf.catalog.schema import column

            return click.Choice(column(*words[0].split(".")).choices)
        case "choice" if words[0] == "stacks":
            return click.Choice([stack for table in words[1:] for stack in resources.stack_folders(table)])
        case "choice":
            return click.Choice(words)
        case "date":
            return click.DateTime(["%Y-%m-%d"])
    return str


# --- options that commands share


class Machines(NamedTuple):
    """Who computes: processes of this machine, or the workers of a Dask scheduler."""

    processes: int
    scheduler: str | None


class Chosen(NamedTuple):
    """Plans of a file: one by its row or its name, or all of a sheet, or all."""

    row: int | None
    name: str | None
    sheet: str | None

    @property
    def is_one(self) -> bool:
        """Whether one plan is named."""
        return self.row is not None or self.name is not None


class Sheets(NamedTuple):
    """The catalog of a command, and files of the user's measured runs."""

    path: str | None
    measured: tuple[str, ...] = ()


def _sheets(catalog: str | None, measured: tuple[str, ...]) -> Sheets:
    return Sheets(catalog, measured)


def _machines(processes: int | None, scheduler: str | None) -> Machines:
    if processes is not None and scheduler is not None:
        raise click.UsageError("give --processes or --scheduler, not both")
    return Machines(_processes(processes), scheduler)


def _processes(processes: int | None) -> int:
    """Processes of --processes, by default one for each core."""
    from xlperf.explore.workers import all_processes

    return processes or all_processes()


def _bounds(most: int | None, most_accelerators: int) -> dict[str, int]:
    return {"most_accelerators": most_accelerators, **({} if most is None else {"most": most})}


def _chosen(row: int | None, name: str | None, sheet: str | None) -> Chosen:
    if row is not None and name is not None:
        raise click.UsageError("give --row or --name, not both")
    return Chosen(row, name, sheet)


def packed(name: str, target: str, pack: Callable[..., Any], words: str = "") -> Decorator:
    """Rows of a shared name as the argument ``target``, made by ``pack``; ``words`` complete the help."""
    rows = _rows()[name]
    default, _, sheets = words.partition("|")
    rows = [row | {"meaning": row["meaning"].format(default=default, sheets=sheets)} for row in rows]
    names = [row["name"] or row["option"].strip("-").replace("-", "_") for row in rows]

    def decorated(function: Any) -> Any:
        @wraps(function)
        def called(**given: Any) -> Any:
            own = {each: given.pop(each) for each in names}
            return function(**given, **{target: pack(**own)})

        for row in reversed(rows):
            called = _parameter(row, {})(called)
        return called

    return decorated


def _output(output: str | None, as_json: bool, wide: bool = False, piped: bool = False) -> str | None:
    """Output of -o or --json; without either None for a table on a terminal, ``piped``: CSV into a pipe or a file."""
    if wide:
        click.get_current_context().meta[WIDE] = True
    if not as_json:
        return STANDARD if piped and output is None and not sys.stdout.isatty() else output
    if output is not None:
        raise click.UsageError("give -o or --json, not both", click.get_current_context())
    return AS_JSON


_PACKS: dict[str, tuple[str, Callable[..., Any]]] = {
    "machines": ("machines", _machines),
    "processes": ("processes", _processes),
    "bounds": ("bounds", _bounds),
    "sheets": ("catalog", _sheets),
    "chosen": ("chosen", _chosen),
    "output": ("output", _output),
    "answer": ("output", _output),
    "results": ("output", partial(_output, piped=True)),
}
"""Names of rows that commands share, the argument of the function that they become, and what makes it."""


def _shared(name: str, words: str) -> Decorator:
    if name in _PACKS:
        return packed(name, *_PACKS[name], words)
    (row,) = _rows()[name]
    return _parameter(row, {})


def catalog_of(given: str | Sheets | None, source: str | None) -> Catalog:
    """The catalog of ``--catalog``, else of the workbook ``source`` with the plans, else the shipped one, with the runs
    of ``--measured``. Rows that refer to unknown names are listed on standard error and left out.
    """
    from xlperf.catalog.catalog import load_catalog
    from xlperf.catalog.check import left_out
    from xlperf.catalog.read import is_workbook

    sheets = given if isinstance(given, Sheets) else Sheets(given)
    own = source if source is not None and is_workbook(source) else None
    note_unread(sheets.path, own)
    catalog = load_catalog(sheets.path or own)
    say(*(f"note: {line}" for line in left_out(catalog)), err=True)
    return with_measured(catalog, sheets.measured) if isinstance(given, Sheets) else catalog


def with_measured(catalog: Catalog, files: Sequence[str]) -> Catalog:
    """The catalog with the measured runs of some files beside its own; lists their lessons on standard error."""
    from xlperf.catalog.schema import OWN_RUNS

    if files:
        from pathlib import Path

        from xlperf.calibrate.validate import read_own_runs

        for file in files:
            catalog = catalog.with_tables([read_own_runs(Path(file), catalog)])
            if catalog.orphans.why.get(OWN_RUNS):
                raise InputError(catalog.orphans.faults)
    if len(catalog.tables[OWN_RUNS]):
        from xlperf.engine.lessons import lessons

        say(*(f"own runs: {lesson.words()}" for lesson in lessons(catalog)), err=True)
    return catalog


def note_unread(given: str | None, own: str | None) -> None:
    """Name on standard error each sheet that looks like a catalog sheet but is not read."""
    from xlperf.catalog.check import unread_in

    say(*(f"note: {fault}" for fault in unread_in(given, own)), err=True)


def catalog_for(given: str | Sheets | None, plans: str, tables: list[Table]) -> Catalog:
    """The catalog of plans. Unknown names of all plans are refused at once; corrected spellings are listed."""
    from xlperf.catalog.check import name_faults

    catalog = catalog_of(given, plans)
    faults = name_faults(tables, catalog)
    alone = given is None or (isinstance(given, Sheets) and given.path is None)
    if faults and alone and (beside := _catalog_beside(plans, tables)):
        faults.append(Fault(plans, f"these names are in {beside}: add --catalog {beside}"))
    raise_faults(faults)
    note_names(tables, catalog)
    for table in tables:
        note_own(table.own)
    return catalog


def _catalog_beside(plans: str, tables: list[Table]) -> str:
    """A table of the catalog in the folder of a file of plans that knows all their names; "" without one."""
    from xlperf.catalog.check import name_faults
    from xlperf.catalog.schema import CATALOG_TABLES

    for file in (Path(plans).with_name(f"{kind}.csv") for kind in CATALOG_TABLES):
        with contextlib.suppress(InputError):
            if file.exists() and not name_faults(tables, catalog_of(str(file), plans)):
                return str(file)
    return ""


def note_own(headers: Iterable[str]) -> None:
    """Say on standard error which columns of plans xlperf does not know."""
    listed = ", ".join(headers)
    if listed:
        say(f"note: columns that are not read: {listed}", err=True)


def note_names(tables: Sequence[Table], catalog: Catalog) -> None:
    """List on standard error the names that were corrected to a known spelling."""
    from xlperf.catalog.check import taken_names

    say(*(f"note: {words}" for words in taken_names(tables, catalog)), err=True)


def without_auto(plans: Table, catalog: Catalog, bounds: Bounds) -> Table:
    """Plans with every ``auto`` resolved; standard error lists the choices."""
    if not plans.auto:
        return plans
    from xlperf.explore.asked import plan_name
    from xlperf.explore.search import resolve

    resolved = resolve(plans, catalog, **bounds)
    for row, words in resolved.notes.items():
        say(f"{plan_name(plans, row)}: {words}", err=True)
    return resolved.plans


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
    """The chosen plan of a file, the first by default."""
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
    rows = [(table, index, str(text)) for table in tables for index, text in enumerate(table.text("name").tolist())]
    matches = [(table, index) for table, index, text in rows if text.casefold() == name.strip().casefold()]
    if len(matches) > 1:
        places = " and ".join(table.place(index, "name") for table, index in matches[:2])
        raise InputError(Fault(plans, f'{len(matches)} plans are named "{name}", at {places}; give --sheet and --row'))
    if not matches:
        hint = nearest(name, [text for *_, text in rows if text])
        raise InputError(Fault(plans, f'no plan is named "{name}"; {hint}'))
    table, index = matches[0]
    return table.take([index])


Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

_OBJECTIVES = ("--objective", "--result", "--limit", "--target")


def names_of(kind: str) -> Complete:
    """Names in a sheet of the shipped catalog."""

    def complete(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from xlperf.catalog.catalog import load_catalog
        from xlperf.catalog.schema import table_schema

        return _matching(load_catalog().tables[kind].text(table_schema(kind).key.name).tolist(), incomplete)

    return complete


def words_of(words: Sequence[str]) -> Complete:
    """Some words."""
    return lambda _context, _parameter, incomplete: _matching(words, incomplete)


def _studies(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from xlperf.studies import NAMES

    return _matching(["list", *NAMES], incomplete)


def _columns(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from xlperf.catalog.schema import PLAN_TABLES, table_schema

    columns = (column.name for kind in PLAN_TABLES for column in table_schema(kind).columns)
    return _matching([f"{name}=" for name in columns], incomplete)


def _results(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from xlperf.catalog.schema import PLAN_TABLES, results_of

    columns = (column for kind in PLAN_TABLES for column in results_of(kind).columns if column.kind == "result")
    return _matching([column.name for column in columns], incomplete)


def _matching(words: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Words that begin as the incomplete one does, whatever their case."""
    start = incomplete.casefold()
    return [CompletionItem(word) for word in dict.fromkeys(words) if word.casefold().startswith(start)]
